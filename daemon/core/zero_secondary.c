/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Secondary shards (stage 3, options.secondary_ranks): each block of so many neighbouring ranks of
 * group 0 keeps a copy of what its ranks gather, a slice per rank, so that a version of a part
 * comes from all owners once per block. Pure; one thread. It knows which version each block's copy
 * has, or will have when the ops launched so far are done; who gathers from where follows from it.
 *
 * A commit of any owner, or a write between steps, makes a version; a new generation begins without
 * copies, for fills may not have been made. Persistent parameters are gathered once per version
 * anyhow: they have none.
 *
 * Nothing reads a block's old copy when it is filled anew: between two versions there is an update
 * window, or quiet, and both wait for every rank's last gather or fill (zero_gather_op).
 */
#include "daemon/core/zero_internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t blocks(const struct zero *z)
{
    return z->world / z->secondary_ranks;
}

/* Of the rank's block. NULL: the part has no secondary shards. */
static struct zero_secondary *secondary_of(const struct zero *z, uint32_t rank, uint32_t part)
{
    if (!z->secondaries || part < z->persistent_parts || z->parts[part].group != 0)
        return NULL;
    return &z->secondaries[(size_t)part * blocks(z) + rank / z->secondary_ranks];
}

static uint64_t version_now(const struct zero *z)
{
    return zero_version(z, &z->groups[0]);
}

/* The first of the block's ranks: group 0 is all ranks in order. */
static const uint32_t *block_of(const struct zero *z, uint32_t rank)
{
    return &z->members[rank - rank % z->secondary_ranks];
}

/* A slice each for the block's ranks, of what all have slices of. */
static void by_block(struct zero *z, struct core_op *op)
{
    ops_members(z, op, block_of(z, op->rank), z->secondary_ranks);
    op->numel = op->numel * z->world / z->secondary_ranks;
}

bool secondary_holds(const struct zero *z, uint32_t rank, uint32_t part)
{
    const struct zero_secondary *secondary = secondary_of(z, rank, part);

    return secondary && secondary->version == version_now(z);
}

void secondary_read(struct zero *z, struct core_op *op, uint32_t part)
{
    const struct zero_secondary *secondary = secondary_of(z, op->rank, part);

    op->secondary = 1;
    by_block(z, op);
    if (zero_edge(z, EDGE_SECONDARY))
        ops_wait(z, op, &secondary->op, 1);
}

/* Behind the gather, on its stream; nothing that the rank waits for waits for it. */
static void fill(struct zero *z, uint32_t rank, uint32_t part, uint64_t offset_bytes,
                 struct zero_secondary *secondary)
{
    const struct zero_part *at = &z->parts[part];
    struct core_op *op = ops_new(z, CORE_OP_FILL, CORE_STREAM_GATHER, GW_KIND_ALL_GATHER,
                                 FLIGHT_FILL);
    struct core_ref *in = ops_refs(z, 1);

    ops_payload(z, op, OPS_OF_PARAMS, at->first_bucket, at->buckets);
    op->rank = rank;
    by_block(z, op);
    op->in = in;
    if (in)
        *in = fetch_place(z, rank, at->first_bucket, offset_bytes);
    *zero_gather_op(z, rank, at->group) = op->id;
    *secondary = (struct zero_secondary){.version = version_now(z), .op = op->id};
}

void secondary_fill(struct zero *z, uint32_t rank, const struct prefetch_gather *gather)
{
    for (uint32_t part = z->unit_parts[gather->fetch_unit];
         part < z->unit_parts[gather->fetch_unit + 1]; part++) {
        struct zero_secondary *secondary = secondary_of(z, rank, part);

        if (secondary && secondary->version != version_now(z))
            fill(z, rank, part, gather->offset_bytes, secondary);
    }
}

int secondary_init(struct zero *z)
{
    if (z->secondary_ranks == 0)
        return 0;
    z->secondaries = calloc((size_t)z->part_count * blocks(z) + 1, sizeof(*z->secondaries));
    return z->secondaries ? 0 : GW_E_NOMEM;
}

void secondary_free(struct zero *z)
{
    free(z->secondaries);
}

void secondary_forget(struct zero *z)
{
    if (z->secondaries)
        memset(z->secondaries, 0, (size_t)z->part_count * blocks(z) * sizeof(*z->secondaries));
}
