/* SPDX-License-Identifier: Apache-2.0 */
/* Arena sizes and references; the table is in memory.h. Pure; any thread; touches no memory of the
 * job. */
#include "daemon/core/memory.h"

#include "daemon/core/prefetch.h"

void memory_init(struct memory *memory, const struct layout *layout,
                 const struct wire_seal *options, uint32_t world)
{
    bool many = options->micro_steps > 1;

    *memory = (struct memory){
        .layout = layout,
        .page = layout_page(layout),
        .buckets = layout_buckets(layout),
        .stage = options->stage,
        .world = world,
        .micro_steps = options->micro_steps,
        .ring_slots = options->ring_slots,
        .local = options->accumulate == GW_ACCUMULATE_LOCAL,
        .mapped = options->stage == 3 && options->gather == GW_GATHER_MAPPED,
        .gather_bytes = options->gather_bytes,
        .prefetch_bytes = options->prefetch_bytes,
    };
    memory->ring = memory->stage >= 2 && !memory->local;
    memory->acc = many && (memory->local || memory->stage == 0);
    memory->in_place = memory->stage <= 1 && (memory->local || !many);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static uint64_t rank_bytes(const struct memory *memory, enum gw_arena_kind kind)
{
    const struct gw_layout_page *page = memory->page;
    uint64_t full = page->padded_numel * MEMORY_FLOAT, shard = page->shard_numel * MEMORY_FLOAT;
    uint64_t bucket = page->max_bucket_numel * MEMORY_FLOAT;
    bool shards = memory->stage >= 2 || (memory->stage == 1 && !memory->in_place);

    switch (kind) {
    case GW_ARENA_PARAMS:
        return memory->stage < 3 ? full : memory->mapped ? 0 : shard;
    case GW_ARENA_GRADS:
        return memory->ring ? 0 : full;
    case GW_ARENA_ACC:
        return memory->acc ? full : 0;
    case GW_ARENA_RING:
        return memory->ring ? memory->ring_slots * bucket : 0;
    case GW_ARENA_OVERFLOW:
        return memory->ring ? bucket : 0;
    case GW_ARENA_SHARD_GRADS:
        return shards ? shard : 0;
    case GW_ARENA_POOL:
        return memory->stage == 3 && !memory->mapped
                   ? prefetch_pool_bytes(page, memory->gather_bytes)
                   : 0;
    case GW_ARENA_ARRAY:
        return shard;
    case GW_ARENA_STAGING:
        return GW_STAGING_BYTES;
    default:
        return 0;
    }
}

enum gw_memory memory_use(enum gw_arena_kind kind)
{
    switch (kind) {
    case GW_ARENA_PARAMS:
    case GW_ARENA_SHARED_PARAMS:
        return GW_MEMORY_PARAMS;
    case GW_ARENA_GRADS:
    case GW_ARENA_ACC:
    case GW_ARENA_SHARD_GRADS:
        return GW_MEMORY_GRADIENTS;
    case GW_ARENA_RING:
    case GW_ARENA_OVERFLOW:
        return GW_MEMORY_BUCKETS;
    case GW_ARENA_POOL:
        return GW_MEMORY_GATHERED;
    case GW_ARENA_ARRAY:
        return GW_MEMORY_OPTIMIZER;
    default:
        return GW_MEMORIES;
    }
}

uint64_t memory_arena_bytes(const struct memory *memory, enum gw_arena_kind kind, int rank)
{
    if (rank < 0)
        return kind == GW_ARENA_SHARED_PARAMS && memory->mapped
                   ? memory->page->padded_numel * MEMORY_FLOAT
                   : 0;
    return (uint32_t)rank < memory->world ? rank_bytes(memory, kind) : 0;
}

/* ---- references ------------------------------------------------------------------------------ */

static struct core_ref ref_at(enum gw_arena_kind kind, uint32_t rank, uint64_t element)
{
    return (struct core_ref){.kind = (uint8_t)kind,
                             .rank = (int16_t)rank,
                             .offset_bytes = element * MEMORY_FLOAT};
}

uint64_t memory_slice_numel(const struct memory *memory, uint32_t bucket)
{
    return memory->buckets[bucket].padded_numel / memory->world;
}

struct core_ref memory_flat(const struct memory *memory, enum gw_arena_kind kind, uint32_t bucket,
                            uint32_t rank)
{
    return ref_at(kind, rank, memory->buckets[bucket].offset);
}

struct core_ref memory_slot(const struct memory *memory, uint32_t slot, uint32_t rank)
{
    struct core_ref ref;

    if (slot < memory->ring_slots)
        return ref_at(GW_ARENA_RING, rank, slot * memory->page->max_bucket_numel);
    ref = ref_at(GW_ARENA_OVERFLOW, rank, 0);
    ref.index = slot - memory->ring_slots;
    return ref;
}

struct core_ref memory_reduced(const struct memory *memory, uint32_t bucket, uint32_t rank)
{
    uint64_t slice = rank * memory_slice_numel(memory, bucket);

    if (memory->stage == 0)
        return memory_flat(memory, memory->in_place ? GW_ARENA_GRADS : GW_ARENA_ACC, bucket, rank);
    if (memory->in_place)
        return ref_at(GW_ARENA_GRADS, rank, memory->buckets[bucket].offset + slice);
    return ref_at(GW_ARENA_SHARD_GRADS, rank, layout_shard_offset(memory->layout, bucket));
}

uint64_t memory_reduced_numel(const struct memory *memory, uint32_t bucket)
{
    return memory->stage == 0 ? memory->buckets[bucket].padded_numel
                              : memory_slice_numel(memory, bucket);
}

struct core_ref memory_param_slice(const struct memory *memory, uint32_t bucket, uint32_t rank)
{
    uint64_t flat = memory->buckets[bucket].offset;
    struct core_ref ref;

    if (memory->stage == 0)
        return ref_at(GW_ARENA_PARAMS, rank, flat);
    flat += rank * memory_slice_numel(memory, bucket);
    if (memory->stage < 3)
        return ref_at(GW_ARENA_PARAMS, rank, flat);
    if (!memory->mapped)
        return ref_at(GW_ARENA_PARAMS, rank, layout_shard_offset(memory->layout, bucket));
    ref = ref_at(GW_ARENA_SHARED_PARAMS, 0, flat);
    ref.rank = -1;
    return ref;
}

/* The piece of `param` that holds its element `offset`; the caller has checked the bounds. */
static const struct gw_layout_piece *find_piece(const struct memory *memory,
                                                const struct gw_layout_param *param,
                                                uint64_t offset)
{
    const struct gw_layout_piece *pieces = layout_pieces(memory->layout) + param->first_piece;
    uint32_t low = 0, high = param->pieces;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (pieces[middle].param_offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return &pieces[low];
}

struct core_ref memory_param_ref(const struct memory *memory, uint32_t param, uint64_t offset,
                                 uint32_t *ret_owner, uint64_t *ret_count)
{
    const struct gw_layout_param *at = &layout_params(memory->layout)[param];
    const struct gw_layout_piece *piece;
    struct core_ref ref = {.kind = GW_ARENA_NONE};
    uint64_t in_bucket, slice, rest;
    uint32_t owner = 0;

    *ret_owner = 0;
    *ret_count = 0;
    if (param >= memory->page->params || offset >= at->numel)
        return ref;
    piece = find_piece(memory, at, offset);
    in_bucket = piece->bucket_offset + (offset - piece->param_offset);
    rest = piece->numel - (offset - piece->param_offset);
    if (memory->stage > 0) {
        /* No further than the owner's slice goes. */
        slice = memory_slice_numel(memory, piece->bucket);
        owner = (uint32_t)(in_bucket / slice);
        in_bucket -= owner * slice;
        if (rest > slice - in_bucket)
            rest = slice - in_bucket;
    }
    ref = memory_param_slice(memory, piece->bucket, owner);
    ref.offset_bytes += in_bucket * MEMORY_FLOAT;
    *ret_owner = owner;
    *ret_count = rest;
    return ref;
}
