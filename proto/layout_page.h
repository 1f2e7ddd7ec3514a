/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout as data: the sealed, read-only page that the engine hands to every rank at seal, and the
 * form in which daemon/core/layout holds it. Host byte order; offsets in bytes from the page's
 * start; all sizes of tensors in elements. Arrays follow the header in the order of its fields.
 *
 * Flat order: buckets one after the other, padding at each bucket's end. A parameter is contiguous
 * in it, because cut buckets have no padding.
 *
 *   | p0 | p1 |pad| p2 (first piece)  | p2 (rest) | p3 |pad|
 *   |- bucket 0 -||---- bucket 1 ----||---- bucket 2 -----|
 */
#ifndef GW_PROTO_LAYOUT_PAGE_H
#define GW_PROTO_LAYOUT_PAGE_H

#include <stdint.h>

#define GW_LAYOUT_MAGIC 0x314c5747u /* "GWL1" */
#define GW_LAYOUT_VERSION 1u

struct gw_layout_page {
    uint32_t magic, version;
    uint64_t size_bytes;
    uint32_t stage, world;
    uint32_t params, pieces, buckets, units, fetch_units;
    uint32_t align_numel;      /* a slice is a multiple of it */
    uint64_t bucket_numel;     /* the configured size */
    uint64_t numel;            /* sum over parameters */
    uint64_t padded_numel;     /* sum over padded buckets */
    uint64_t max_bucket_numel; /* largest padded bucket */
    uint64_t max_fetch_numel;  /* largest padded fetch unit (stage 3) */
    uint64_t shard_numel;      /* per rank: padded_numel/world; stage 0: padded_numel */
    uint64_t params_at, pieces_at, buckets_at, units_at, fetch_units_at, names_at;
    uint64_t names_bytes;
};

struct gw_layout_param {
    uint64_t numel;
    uint64_t offset; /* flat; 0 where numel is 0 */
    uint32_t unit;
    uint32_t first_piece, pieces;
    uint32_t name_at, name_bytes; /* in the names; followed by a 0 byte */
    uint32_t flags;
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
    uint32_t reserved;
};

/* A registered unit: a run of parameters with the same unit name. */
struct gw_layout_unit {
    uint32_t first_param, params;
    uint32_t first_bucket, buckets; /* that hold its parameters; 0 buckets: only empty ones */
    uint32_t fetch_unit;
    uint32_t name_at, name_bytes;
    uint32_t reserved;
};

/* Stage 3: neighbouring units merged while together not larger than a bucket. Stages 0-2: one per
 * unit, buckets as the unit's. */
struct gw_layout_fetch_unit {
    uint32_t first_unit, units;
    uint32_t first_bucket, buckets;
    uint64_t offset, numel, padded_numel; /* flat; padded: of its buckets */
};

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
