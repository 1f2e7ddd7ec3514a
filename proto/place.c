/* SPDX-License-Identifier: Apache-2.0 */
/* Arena sizes and places of a sealed job; the table is in place.h. Pure; any thread; touches no
 * memory of the job. */
#include "proto/place.h"

#include <stdlib.h>

#include "gradwire/errors.h"
#include "proto/limits.h"

#define NOWHERE UINT64_MAX

/* A bucket's places: bytes from the start of each arena; NOWHERE: it has none there. */
struct spot {
    uint64_t params; /* as gathered or full: PARAMS, SHARED_PARAMS; stage 3 private: NOWHERE */
    uint64_t shard;  /* stage 3 private: the span in PARAMS */
    uint64_t master, grads, acc, shard_grads;
    uint64_t gathered; /* stage 3: behind the start of its fetch unit */
    uint64_t secondary;
    uint64_t span;     /* elements, in shard arrays */
};

struct place {
    const struct gw_layout_page *page;
    const struct gw_layout_bucket *buckets;
    struct wire_seal options;
    uint64_t groups;
    bool local, ring, mapped, many;
    uint64_t arena_bytes[GW_ARENA_KINDS];
    uint64_t fetch_bytes_max, pool_bytes;
    uint64_t *fetch_bytes; /* by fetch unit; in the one allocation, behind the spots */
    struct spot spots[];
};

uint64_t place_groups_of(const struct gw_layout_page *page, uint32_t rank)
{
    uint64_t groups = 0;

    for (uint32_t g = 0; g < page->groups; g++) {
        if (layout_page_position(page, g, rank) != UINT32_MAX)
            groups |= (uint64_t)1 << g;
    }
    return groups;
}

static bool is_mine(const struct place *place, uint32_t bucket)
{
    return place->groups >> place->buckets[bucket].group & 1;
}

/* ---- modes ----------------------------------------------------------------------------------- */

bool place_local(const struct place *place)
{
    return place->local;
}

bool place_ring(const struct place *place)
{
    return place->ring;
}

bool place_mapped(const struct place *place)
{
    return place->mapped;
}

bool place_sums(const struct place *place, uint32_t bucket)
{
    return is_mine(place, bucket) && place->many && (place->local || place->page->stage == 0);
}

bool place_in_place(const struct place *place, uint32_t bucket)
{
    const struct gw_layout_bucket *at = &place->buckets[bucket];

    return is_mine(place, bucket) && place->page->stage <= 1 && (place->local || !place->many) &&
           at->accum_dtype == at->grad_dtype;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

uint64_t place_slice_numel(const struct place *place, uint32_t bucket)
{
    const struct gw_layout_bucket *at = &place->buckets[bucket];

    return at->padded_numel / layout_page_groups(place->page)[at->group].shard_ranks;
}

uint64_t place_span_numel(const struct place *place, uint32_t bucket)
{
    if (!is_mine(place, bucket))
        return 0;
    return place->page->stage == 0 ? place->buckets[bucket].padded_numel
                                   : place_slice_numel(place, bucket);
}

uint64_t place_arena_bytes(const struct place *place, enum gw_arena_kind kind)
{
    return place->arena_bytes[kind];
}

uint64_t place_span_offset(const struct place *place, uint32_t bucket)
{
    return place->spots[bucket].span;
}

uint64_t place_shard_numel(const struct place *place)
{
    return place->arena_bytes[GW_ARENA_ARRAY];
}

uint64_t place_fetch_bytes(const struct place *place, uint32_t fetch_unit)
{
    return place->fetch_bytes[fetch_unit];
}

uint64_t place_fetch_bytes_max(const struct place *place)
{
    return place->fetch_bytes_max;
}

uint64_t place_pool_bytes(const struct place *place)
{
    return place->pool_bytes;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Room at the end of an arena. */
static uint64_t take(struct place *place, enum gw_arena_kind kind, uint64_t numel, uint32_t dtype)
{
    uint64_t at = place->arena_bytes[kind];

    place->arena_bytes[kind] += numel * gw_dtype_bytes(dtype);
    return at;
}

/* What is gathered again and again, of group 0. */
static bool keeps_second(const struct place *place, const struct gw_layout_bucket *bucket)
{
    bool persistent = place->page->persistent && bucket->fetch_unit == 0;

    return place->page->stage == 3 && !place->mapped && place->options.secondary_ranks > 0 &&
           bucket->group == 0 && !persistent;
}

static void put_params(struct place *place, uint32_t b, struct spot *spot)
{
    const struct gw_layout_bucket *at = &place->buckets[b];
    uint64_t span = place_span_numel(place, b), full = at->padded_numel;

    if (place->mapped) /* the job's: buckets of other groups too */
        spot->params = take(place, GW_ARENA_SHARED_PARAMS, full, at->dtype);
    if (!is_mine(place, b))
        return;
    if (place->page->stage < 3)
        spot->params = take(place, GW_ARENA_PARAMS, full, at->dtype);
    else if (!place->mapped)
        spot->shard = take(place, GW_ARENA_PARAMS, span, at->dtype);
    if (place->page->stage == 3) {
        spot->gathered = place->fetch_bytes[at->fetch_unit];
        place->fetch_bytes[at->fetch_unit] += full * gw_dtype_bytes(at->dtype);
    }
    if (keeps_second(place, at))
        spot->secondary = take(place, GW_ARENA_SECONDARY, full / place->options.secondary_ranks,
                               at->dtype);
    if (at->dtype != GW_DTYPE_FP32)
        spot->master = take(place, GW_ARENA_MASTER, span, GW_DTYPE_FP32);
    spot->span = place->arena_bytes[GW_ARENA_ARRAY];
    place->arena_bytes[GW_ARENA_ARRAY] += span;
}

static void put_grads(struct place *place, uint32_t b, struct spot *spot)
{
    const struct gw_layout_bucket *at = &place->buckets[b];
    uint64_t span = place_span_numel(place, b), full = at->padded_numel;
    bool reduced = !place_in_place(place, b); /* somewhere else than in GRADS */

    if (!place->ring)
        spot->grads = take(place, GW_ARENA_GRADS, full, at->grad_dtype);
    if (place_sums(place, b) || (reduced && place->page->stage == 0))
        spot->acc = take(place, GW_ARENA_ACC, full, at->accum_dtype);
    if (reduced && place->page->stage > 0)
        spot->shard_grads = take(place, GW_ARENA_SHARD_GRADS, span, at->accum_dtype);
}

static void set_pool(struct place *place)
{
    uint64_t largest = 0, all = 0, bytes;

    for (uint32_t f = place->page->persistent; f < place->page->fetch_units; f++) {
        all += place->fetch_bytes[f];
        if (place->fetch_bytes[f] > largest)
            largest = place->fetch_bytes[f];
    }
    if (__builtin_add_overflow(place->options.gather_bytes, largest, &bytes) || bytes > all)
        bytes = all;
    place->fetch_bytes_max = largest;
    place->pool_bytes = bytes;
    if (place->page->stage == 3 && !place->mapped)
        place->arena_bytes[GW_ARENA_POOL] =
            bytes + (place->page->persistent ? place->fetch_bytes[0] : 0);
}

static void set_ring(struct place *place)
{
    uint64_t *bytes = place->arena_bytes, slot = place->page->max_bucket_bytes;

    if (!place->ring || bytes[GW_ARENA_ARRAY] == 0)
        return;
    bytes[GW_ARENA_OVERFLOW] = slot;
    if (__builtin_mul_overflow(slot, place->options.ring_slots, &bytes[GW_ARENA_RING]))
        bytes[GW_ARENA_RING] = UINT64_MAX; /* more than anybody has */
}

int place_new(const struct gw_layout_page *page, const struct wire_seal *options, uint64_t groups,
              struct place **ret_place)
{
    struct place *place;

    place = calloc(1, sizeof(*place) + page->buckets * sizeof(place->spots[0]) +
                          page->fetch_units * sizeof(*place->fetch_bytes));
    if (!place)
        return GW_E_NOMEM;
    place->page = page;
    place->buckets = layout_page_buckets(page);
    place->options = *options;
    place->groups = groups;
    place->local = options->accumulate == GW_ACCUMULATE_LOCAL;
    place->ring = page->stage >= 2 && !place->local;
    place->mapped = page->stage == 3 && options->gather == GW_GATHER_MAPPED;
    place->many = options->micro_steps > 1;
    place->fetch_bytes = (uint64_t *)(void *)&place->spots[page->buckets];
    for (uint32_t b = 0; b < page->buckets; b++) {
        struct spot *spot = &place->spots[b];

        *spot = (struct spot){NOWHERE, NOWHERE, NOWHERE, NOWHERE,
                              NOWHERE, NOWHERE, NOWHERE, NOWHERE, 0};
        put_params(place, b, spot);
        if (is_mine(place, b))
            put_grads(place, b, spot);
    }
    place->arena_bytes[GW_ARENA_STAGING] = GW_STAGING_BYTES;
    set_pool(place);
    set_ring(place);
    *ret_place = place;
    return 0;
}

struct place *place_free(struct place *place)
{
    free(place);
    return NULL;
}

/* ---- places ---------------------------------------------------------------------------------- */

static struct place_ref ref_at(enum gw_arena_kind kind, uint64_t offset_bytes, uint32_t dtype)
{
    if (offset_bytes == NOWHERE)
        return (struct place_ref){.kind = GW_ARENA_NONE};
    return (struct place_ref){
        .kind = (uint8_t)kind, .dtype = (uint8_t)dtype, .offset_bytes = offset_bytes};
}

/* A slice of what lies at ref. */
static struct place_ref slice_of(const struct place *place, struct place_ref ref, uint32_t bucket,
                                 uint32_t slice)
{
    if (ref.kind != GW_ARENA_NONE && place->page->stage > 0)
        ref.offset_bytes += slice * place_slice_numel(place, bucket) * gw_dtype_bytes(ref.dtype);
    return ref;
}

struct place_ref place_grads(const struct place *place, uint32_t bucket)
{
    return ref_at(GW_ARENA_GRADS, place->spots[bucket].grads, place->buckets[bucket].grad_dtype);
}

struct place_ref place_acc(const struct place *place, uint32_t bucket)
{
    return ref_at(GW_ARENA_ACC, place->spots[bucket].acc, place->buckets[bucket].accum_dtype);
}

struct place_ref place_slot(const struct place *place, uint32_t slot)
{
    struct place_ref ref = {.kind = GW_ARENA_RING};

    if (slot < place->options.ring_slots) {
        ref.offset_bytes = slot * place->page->max_bucket_bytes;
    } else {
        ref.kind = GW_ARENA_OVERFLOW;
        ref.index = slot - place->options.ring_slots;
    }
    return ref;
}

struct place_ref place_reduced(const struct place *place, uint32_t bucket, uint32_t slice)
{
    if (place_in_place(place, bucket))
        return slice_of(place, place_grads(place, bucket), bucket, slice);
    if (place->page->stage == 0)
        return place_acc(place, bucket);
    return ref_at(GW_ARENA_SHARD_GRADS, place->spots[bucket].shard_grads,
                  place->buckets[bucket].accum_dtype);
}

struct place_ref place_params(const struct place *place, uint32_t bucket)
{
    uint64_t at = is_mine(place, bucket) ? place->spots[bucket].params : NOWHERE;

    return ref_at(place->mapped ? GW_ARENA_SHARED_PARAMS : GW_ARENA_PARAMS, at,
                  place->buckets[bucket].dtype);
}

struct place_ref place_shard(const struct place *place, uint32_t bucket, uint32_t slice)
{
    if (place->spots[bucket].shard != NOWHERE)
        return ref_at(GW_ARENA_PARAMS, place->spots[bucket].shard, place->buckets[bucket].dtype);
    return slice_of(place, place_params(place, bucket), bucket, slice);
}

struct place_ref place_master(const struct place *place, uint32_t bucket, uint32_t slice)
{
    if (place->buckets[bucket].dtype == GW_DTYPE_FP32)
        return place_shard(place, bucket, slice);
    return ref_at(GW_ARENA_MASTER, place->spots[bucket].master, GW_DTYPE_FP32);
}

uint64_t place_gathered(const struct place *place, uint32_t bucket)
{
    return place->spots[bucket].gathered;
}

struct place_ref place_secondary(const struct place *place, uint32_t bucket)
{
    return ref_at(GW_ARENA_SECONDARY, place->spots[bucket].secondary,
                  place->buckets[bucket].dtype);
}
