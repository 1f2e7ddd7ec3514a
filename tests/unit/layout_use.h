/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that a client does by the numbers of a layout page: every index of it is followed, and every
 * place that they make is looked for in its arena. For the unit test and the fuzz target.
 */
#ifndef GW_TESTS_LAYOUT_USE_H
#define GW_TESTS_LAYOUT_USE_H

#include <stdlib.h>
#include <string.h>

#include "client/lib/layout_view.h"
#include "proto/place.h"

static bool use_place(const struct place *place, struct place_ref ref, uint64_t numel)
{
    uint64_t bytes = place_arena_bytes(place, (enum gw_arena_kind)ref.kind);
    uint64_t need = numel * gw_dtype_bytes(ref.dtype);

    return ref.kind == GW_ARENA_NONE ||
           (ref.offset_bytes <= bytes && need <= bytes - ref.offset_bytes);
}

static bool use_bucket(const struct layout_view *v, const struct place *place, uint32_t b,
                       uint32_t rank)
{
    const struct gw_layout_bucket *bucket = &v->buckets[b];
    const struct gw_layout_group *group = &v->groups[bucket->group];
    uint32_t position = layout_page_position(v->page, bucket->group, rank);
    uint32_t slice = position == UINT32_MAX ? 0 : position % group->shard_ranks;
    uint64_t span = place_span_numel(place, b);
    bool ok = use_place(place, place_grads(place, b), bucket->padded_numel) &&
              use_place(place, place_acc(place, b), bucket->padded_numel) &&
              use_place(place, place_params(place, b), bucket->padded_numel) &&
              use_place(place, place_reduced(place, b, slice), span) &&
              use_place(place, place_shard(place, b, slice), span) &&
              use_place(place, place_master(place, b, slice), span);

    if (position == UINT32_MAX) {
        ok = ok && span == 0 && place_shard(place, b, 0).kind == GW_ARENA_NONE;
    } else {
        ok = ok && place_span_offset(place, b) <= place_shard_numel(place) - span;
        if (v->page->stage == 3) {
            uint64_t all = place_fetch_bytes(place, bucket->fetch_unit);
            uint64_t mine = bucket->padded_numel * gw_dtype_bytes(bucket->dtype);

            ok = ok && mine <= all && place_gathered(place, b) <= all - mine;
        }
    }
    return ok;
}

static bool use_rank(const struct layout_view *v, uint32_t rank, const struct wire_seal *options)
{
    struct place *place = NULL;
    bool ok = true;

    if (place_new(v->page, options, place_groups_of(v->page, rank), &place) < 0)
        return false;
    for (uint32_t b = 0; b < v->page->buckets; b++)
        ok = ok && use_bucket(v, place, b, rank);
    place_free(place);
    return ok;
}

static bool use_params(const struct layout_view *v)
{
    uint64_t sum = 0;
    bool ok = true;

    for (uint32_t i = 0; i < v->page->params; i++) {
        const struct gw_layout_param *p = &v->params[i];

        sum += strlen(v->names + p->name_at) + v->units[p->unit].params;
        ok = ok && p->offset + p->numel <= v->page->padded_numel;
        for (uint32_t k = 0; k < p->pieces; k++) {
            const struct gw_layout_piece *piece = &v->pieces[p->first_piece + k];
            const struct gw_layout_bucket *bucket = &v->buckets[piece->bucket];
            uint64_t bytes = bucket->padded_numel * gw_dtype_bytes(bucket->grad_dtype);

            ok = ok && piece->bucket_offset + piece->numel <= bucket->padded_numel &&
                 bytes <= v->page->max_bucket_bytes &&
                 bucket->offset + bucket->padded_numel <= v->page->padded_numel;
        }
    }
    for (uint32_t u = 0; u < v->page->units; u++) {
        uint32_t fetch_unit = v->units[u].fetch_unit;

        sum += strlen(v->names + v->units[u].name_at);
        for (uint32_t b = 0; b < v->units[u].buckets; b++)
            sum += v->buckets[v->units[u].first_bucket + b].numel;
        if (fetch_unit != UINT32_MAX)
            sum += v->fetch_units[fetch_unit].buckets;
    }
    return ok && sum < UINT64_MAX; /* so that nothing above is left out */
}

/* False: something lies outside. */
static bool layout_use(const struct layout_view *v)
{
    bool ok = use_params(v);

    for (uint32_t i = 0; i < 8 && ok; i++) {
        struct wire_seal options = {
            .stage = v->page->stage,
            .accumulate = i & 1 ? GW_ACCUMULATE_LOCAL : GW_ACCUMULATE_SHARD,
            .micro_steps = i & 2 ? 2 : 1,
            .gather = i & 4 && v->page->stage == 3 ? GW_GATHER_MAPPED : GW_GATHER_PRIVATE,
            .ring_slots = 3,
        };

        for (uint32_t rank = 0; rank < v->page->world && rank < 8; rank++)
            ok = ok && use_rank(v, rank, &options);
    }
    return ok;
}

#endif
