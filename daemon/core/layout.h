/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: which parameter lies in which bucket, and who owns what. A pure function of parameters,
 * stage, world and sizes, used by engine, plan and tests alike. Pure; any thread.
 *
 * Stages 0-2 ignore units: parameters in registration order without gaps; a bucket closes when the
 * next parameter does not fit; a larger parameter starts a bucket of its own and is cut at the
 * bucket size rounded down to a multiple of world * align (at least one multiple); its last piece
 * leaves the bucket open for what follows. Stage 3 first merges neighbouring units while their sum
 * is <= the bucket size (a unit that is larger stands alone), then each fetch unit starts a bucket.
 * Each bucket is padded to a multiple of world * align.
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
};

struct layout_options {
    uint32_t stage, world;
    uint64_t bucket_numel; /* > 0 */
    uint32_t align_numel;  /* > 0 */
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

/* The slice of bucket b that rank r owns, from the bucket's start: r*padded/world, and how much of
 * it is not padding. Stage 0: the whole bucket. */
void layout_span(const struct layout *layout, uint32_t bucket, uint32_t rank,
                 uint64_t *ret_bucket_offset, uint64_t *ret_numel, uint64_t *ret_valid_numel);
/* Elements before bucket b's span in a rank's spans put one after the other (same on all ranks). */
uint64_t layout_shard_offset(const struct layout *layout, uint32_t bucket);

#endif
