/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout as data: the sealed, read-only page that the engine hands to every rank at seal, and the
 * form in which daemon/core/layout holds it. Host byte order; offsets in bytes from the page's
 * start; all sizes of tensors in elements. Arrays follow the header in the order of its fields.
 *
 * A bucket is of one group and one pair of dtypes. Flat order: buckets one after the other, padding
 * at each bucket's end. A parameter is contiguous in it, because cut buckets have no padding and
 * follow each other.
 *
 *   | p0 | p1 |pad| p2 (first piece)  | p2 (rest) | p3 |pad|
 *   |- bucket 0 -||---- bucket 1 ----||---- bucket 2 -----|
 *
 * It is an order of numbers, the same for all ranks; where a bucket's bytes lie in a rank's memory
 * is told by place.h.
 */
#ifndef GW_PROTO_LAYOUT_PAGE_H
#define GW_PROTO_LAYOUT_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "gradwire/gradwire.h"

#define GW_LAYOUT_MAGIC 0x314c5747u /* "GWL1" */
#define GW_LAYOUT_VERSION 3u

struct gw_layout_page {
    uint32_t magic, version;
    uint64_t size_bytes;
    uint32_t stage, world;
    uint32_t params, pieces, buckets, units, fetch_units;
    uint32_t groups, members; /* entries of these arrays */
    uint32_t persistent;      /* 1: fetch unit 0 is that of persistent parameters */
    uint32_t shard_align_bytes; /* a slice is a multiple of it, in every dtype */
    uint32_t reserved;
    uint64_t bucket_bytes;     /* the configured size, of gradients */
    uint64_t numel;            /* sum over parameters */
    uint64_t padded_numel;     /* sum over padded buckets */
    uint64_t max_bucket_bytes; /* largest padded bucket, of gradients: a ring slot */
    uint64_t params_at, pieces_at, buckets_at, units_at, fetch_units_at, groups_at, members_at;
    uint64_t names_at, names_bytes;
};

struct gw_layout_param {
    uint64_t numel;
    uint64_t offset; /* flat; 0 where numel is 0 */
    uint32_t unit;
    uint32_t first_piece, pieces;
    uint32_t name_at, name_bytes; /* in the names; followed by a 0 byte */
    uint32_t flags;
    uint32_t group;
    uint8_t dtype, grad_dtype; /* enum gw_dtype */
    uint8_t persistent, reserved;
};

/* In flat order, so that a parameter's and a bucket's pieces are both consecutive. */
struct gw_layout_piece {
    uint32_t param, bucket;
    uint64_t bucket_offset, param_offset, numel;
};

struct gw_layout_bucket {
    uint64_t offset, numel, padded_numel;
    uint32_t first_piece, pieces;
    uint32_t fetch_unit; /* stage 3; else UINT32_MAX */
    uint32_t group;
    uint8_t dtype, grad_dtype, accum_dtype; /* enum gw_dtype */
    uint8_t reserved[5];
};

/* A registered unit: a run of parameters with the same unit name. */
struct gw_layout_unit {
    uint32_t first_param, params;
    uint32_t first_bucket, buckets; /* the range of buckets that hold its parameters, persistent
                                     * ones apart; others may lie between. 0 buckets: none */
    uint32_t fetch_unit; /* UINT32_MAX: all its parameters are persistent, or empty (stage 3) */
    uint32_t name_at, name_bytes;
    uint32_t persistent; /* 1: some of its parameters are */
};

/* Stage 3: neighbouring units merged while together not larger than a bucket, and of one group; its
 * buckets are sorted by group. Stages 0-2: one per unit, buckets as the unit's. */
struct gw_layout_fetch_unit {
    uint32_t first_unit, units; /* 0 units: of persistent parameters */
    uint32_t first_bucket, buckets;
    uint64_t offset, numel, padded_numel; /* flat; padded: of its buckets */
};

/* Group 0 is all ranks. A run of shard_ranks members holds one copy of the shards. */
struct gw_layout_group {
    uint32_t first_member, members;
    uint32_t shard_ranks; /* divides members; = members without hybrid sharding */
    uint32_t reserved;
};

/* The arrays of a page that was checked, or made here. */
static inline const void *layout_array(const struct gw_layout_page *page, uint64_t at)
{
    return (const char *)page + at;
}

static inline const struct gw_layout_bucket *layout_page_buckets(const struct gw_layout_page *page)
{
    return (const struct gw_layout_bucket *)layout_array(page, page->buckets_at);
}

static inline const struct gw_layout_group *layout_page_groups(const struct gw_layout_page *page)
{
    return (const struct gw_layout_group *)layout_array(page, page->groups_at);
}

/* Ranks of the group, in its order. */
static inline const uint32_t *layout_page_members(const struct gw_layout_page *page, uint32_t group)
{
    return (const uint32_t *)layout_array(page, page->members_at) +
           layout_page_groups(page)[group].first_member;
}

/* Position of a rank in a group; UINT32_MAX: it is none of it. */
static inline uint32_t layout_page_position(const struct gw_layout_page *page, uint32_t group,
                                            uint32_t rank)
{
    const uint32_t *ranks = layout_page_members(page, group);

    for (uint32_t i = 0; i < layout_page_groups(page)[group].members; i++) {
        if (ranks[i] == rank)
            return i;
    }
    return UINT32_MAX;
}

static inline uint32_t gw_dtype_bytes(uint32_t dtype)
{
    return dtype == GW_DTYPE_FP32 ? 4u : 2u;
}

/* No more bucket buffers than can be in use at once: small models do not fill a ring. */
static inline uint32_t layout_ring_slots(const struct gw_layout_page *page, uint32_t ring_slots,
                                         uint32_t micro_steps)
{
    uint64_t most = (uint64_t)page->buckets * micro_steps;

    if (most == 0)
        most = 1;
    return ring_slots < most ? ring_slots : (uint32_t)most;
}

#endif
