/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: which parameter lies in which bucket, and who owns what. A pure function of parameters,
 * stage, world and sizes, used by engine, plan and tests alike. Pure; any thread.
 *
 * Parameters of one group, dtype and gradient dtype are of one class; a bucket holds one class.
 * Stages 0-2 ignore units: each class fills its own buckets with its parameters in registration
 * order without gaps; a bucket closes when the next parameter of its class does not fit; a larger
 * parameter starts a bucket of its own and is cut at the bucket size rounded down to a multiple of
 * members * align (at least one multiple); its last piece leaves the bucket open for what follows.
 * Buckets are numbered as they are opened. Stage 3 first takes out parameters of at most
 * persist_bytes: their buckets come first and are fetch unit 0. Then it merges neighbouring units
 * while all are of one and the same group and the sum of their gradients' bytes is <= the bucket
 * size (a unit that is larger stands alone); each fetch unit starts buckets of its own, sorted by
 * group and then by class, both in order of appearance. Each bucket is padded to a multiple of
 * members * align. The size of a bucket is in bytes of its gradient dtype; align is
 * shard_align_bytes in elements of the smallest of its dtypes.
 */
#ifndef GW_CORE_LAYOUT_H
#define GW_CORE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/layout_page.h"

struct layout_param {
    const char *name;
    const char *unit; /* "" : a unit of its own, named like the parameter */
    uint64_t numel;
    uint32_t flags;
    uint32_t group;
    uint8_t dtype, grad_dtype; /* enum gw_dtype */
};

struct layout_group {
    const uint32_t *ranks;
    uint32_t count;
    uint32_t shard_ranks; /* 0: count */
};

struct layout_options {
    uint32_t stage, world;
    uint64_t bucket_bytes; /* >= one element of each gradient dtype */
    uint32_t align_bytes;  /* >= 4, a power of 2 */
    uint32_t accum_as_grads;
    uint64_t persist_bytes;            /* stage 3 */
    uint32_t shard_ranks;              /* of group 0; 0: world */
    const struct layout_group *groups; /* from group 1 on */
    uint32_t group_count;
};

struct layout; /* immutable after layout_new */

/* 0; GW_E_INVALID with *ret_param = the offending index (a name twice, a unit name that comes back
 * after another unit, sizes whose sum overflows; UINT32_MAX: the options); GW_E_LIMIT: more than
 * GW_BUCKETS_MAX buckets; GW_E_NOMEM. */
int layout_new(const struct layout_options *options, const struct layout_param *params,
               uint32_t param_count, struct layout **ret_layout, uint32_t *ret_param);
struct layout *layout_free(struct layout *layout);

/* The page's bytes (header and arrays in one block); live as long as the layout. */
const struct gw_layout_page *layout_page(const struct layout *layout);
const struct gw_layout_param *layout_params(const struct layout *layout);
const struct gw_layout_piece *layout_pieces(const struct layout *layout);
const struct gw_layout_bucket *layout_buckets(const struct layout *layout);
const struct gw_layout_unit *layout_units(const struct layout *layout);
const struct gw_layout_fetch_unit *layout_fetch_units(const struct layout *layout);
const char *layout_name(const struct layout *layout, uint32_t name_at);

const struct gw_layout_group *layout_groups(const struct layout *layout);

/* Slice `slice` of bucket b, from the bucket's start: slice * padded / shard_ranks, and how much of
 * it is not padding. Stage 0: the whole bucket. */
void layout_slice(const struct layout *layout, uint32_t bucket, uint32_t slice,
                  uint64_t *ret_bucket_offset, uint64_t *ret_numel, uint64_t *ret_valid_numel);

#endif
