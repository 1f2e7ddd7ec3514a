/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where things lie, as references: proto/place knows the bytes, the layout who owns what. Pure; one
 * thread; changes nothing.
 */
#include "daemon/core/zero_internal.h"

static struct core_ref ref_of(struct place_ref at, uint32_t rank)
{
    /* SHARED_PARAMS are the job's. */
    return (struct core_ref){
        .kind = at.kind,
        .rank = (int16_t)(at.kind == GW_ARENA_SHARED_PARAMS ? -1 : (int)rank),
        .index = at.index,
        .offset_bytes = at.offset_bytes,
    };
}

static const struct place *place_of(const struct zero *z, uint32_t rank)
{
    return z->ranks[rank].place;
}

/* Of its run's slices, the one that a member owns. */
static uint32_t slice_of(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    uint32_t group = z->bucket_table[bucket].group;

    return zero_position(z, group, rank) % z->groups[group].shard_ranks;
}

struct core_ref place_of_grads(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    return ref_of(place_grads(place_of(z, rank), bucket), rank);
}

struct core_ref place_of_acc(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    return ref_of(place_acc(place_of(z, rank), bucket), rank);
}

struct core_ref place_of_slot(const struct zero *z, uint32_t slot, uint32_t rank)
{
    return ref_of(place_slot(place_of(z, rank), slot), rank);
}

struct core_ref place_of_reduced(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    return ref_of(place_reduced(place_of(z, rank), bucket, slice_of(z, bucket, rank)), rank);
}

struct core_ref place_of_params(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    return ref_of(place_params(place_of(z, rank), bucket), rank);
}

/* ---- what the engine asks -------------------------------------------------------------------- */

static bool holds(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    return bucket < z->buckets && rank < z->world && zero_member(z, bucket, rank);
}

uint64_t zero_arena_bytes(const struct zero *z, enum gw_arena_kind kind, int rank)
{
    bool shared = kind == GW_ARENA_SHARED_PARAMS;

    if (rank >= (int)z->world || shared != (rank < 0))
        return 0;
    return place_arena_bytes(shared ? z->places[0] : place_of(z, (uint32_t)rank), kind);
}

struct core_ref zero_param_slice(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    if (!holds(z, bucket, rank))
        return (struct core_ref){.kind = GW_ARENA_NONE};
    return ref_of(place_shard(place_of(z, rank), bucket, slice_of(z, bucket, rank)), rank);
}

struct core_ref zero_master_slice(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    if (!holds(z, bucket, rank))
        return (struct core_ref){.kind = GW_ARENA_NONE};
    return ref_of(place_master(place_of(z, rank), bucket, slice_of(z, bucket, rank)), rank);
}

struct core_ref zero_secondary_slice(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    if (!holds(z, bucket, rank))
        return (struct core_ref){.kind = GW_ARENA_NONE};
    return ref_of(place_secondary(place_of(z, rank), bucket), rank);
}

uint64_t zero_gathered(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    return holds(z, bucket, rank) && z->stage == 3 && !z->mapped
               ? place_gathered(place_of(z, rank), bucket)
               : 0;
}

/* The piece of `param` that holds its element `offset`; the caller has checked the bounds. */
static const struct gw_layout_piece *find_piece(const struct zero *z,
                                                const struct gw_layout_param *param,
                                                uint64_t offset)
{
    const struct gw_layout_piece *pieces = layout_pieces(z->layout) + param->first_piece;
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

/* An element of a parameter: in its bucket, up to where its piece, or the slice, ends. */
struct element {
    uint32_t bucket;
    uint64_t at, left;
};

static bool find_element(const struct zero *z, uint32_t param, uint64_t offset,
                         struct element *ret_element)
{
    const struct gw_layout_param *at;
    const struct gw_layout_piece *piece;

    if (param >= z->params || offset >= layout_params(z->layout)[param].numel)
        return false;
    at = &layout_params(z->layout)[param];
    piece = find_piece(z, at, offset);
    *ret_element = (struct element){piece->bucket,
                                    piece->bucket_offset + (offset - piece->param_offset),
                                    piece->numel - (offset - piece->param_offset)};
    return true;
}

/* Of an element, no further than its slice goes: in the rank's own span? */
static bool in_span(const struct zero *z, uint32_t rank, struct element *element)
{
    uint64_t slice = place_slice_numel(z->places[0], element->bucket), owner;

    if (z->stage == 0)
        return holds(z, element->bucket, rank);
    owner = element->at / slice;
    element->at -= owner * slice;
    if (element->left > slice - element->at)
        element->left = slice - element->at;
    return holds(z, element->bucket, rank) && slice_of(z, element->bucket, rank) == owner;
}

static struct core_ref moved(struct core_ref ref, uint64_t numel, uint32_t dtype)
{
    ref.offset_bytes += numel * gw_dtype_bytes(dtype);
    return ref;
}

struct core_ref zero_param_ref(const struct zero *z, uint32_t param, uint64_t offset,
                               uint32_t rank, uint64_t *ret_count)
{
    struct core_ref none = {.kind = GW_ARENA_NONE};
    struct element element;
    uint32_t dtype;

    *ret_count = 0;
    if (!find_element(z, param, offset, &element))
        return none;
    dtype = z->bucket_table[element.bucket].dtype;
    if (z->stage == 3 && !z->mapped) {
        bool own = in_span(z, rank, &element);

        *ret_count = element.left;
        return own ? moved(zero_param_slice(z, element.bucket, rank), element.at, dtype) : none;
    }
    *ret_count = element.left;
    return holds(z, element.bucket, rank)
               ? moved(place_of_params(z, element.bucket, rank), element.at, dtype)
               : none;
}

struct core_ref zero_master_ref(const struct zero *z, uint32_t param, uint64_t offset,
                                uint32_t rank, uint64_t *ret_count)
{
    struct core_ref none = {.kind = GW_ARENA_NONE};
    struct element element;
    bool own;

    *ret_count = 0;
    if (!find_element(z, param, offset, &element))
        return none;
    own = in_span(z, rank, &element);
    *ret_count = element.left;
    return own ? moved(zero_master_slice(z, element.bucket, rank), element.at, GW_DTYPE_FP32)
               : none;
}
