/* SPDX-License-Identifier: Apache-2.0 */
/* Renamings of ranks, and what floats stand for: see symmetry.h. */
#include "tests/sim/world/symmetry.h"

#include <stdlib.h>
#include <string.h>

enum value_kind { VALUE_GRADIENT, VALUE_ADDED, VALUE_SUM, VALUE_SQUARES, VALUE_PARAM };

/* ---- which ----------------------------------------------------------------------------------- */

/* Ranks differ in nothing but their names. */
static bool is_even(const struct sim *sim)
{
    const struct sim_plan *plan = sim->plan;
    const struct gw_layout_page *page = layout_page(core_layout(sim->core));
    bool even = plan->world <= SYMMETRY_WORLD_MAX && plan->group_count == 0 &&
                !plan->seal.shard_ranks && !plan->seal.secondary_ranks && !plan->unused &&
                !plan->early_final && !plan->shuffle && !plan->narrow && !plan->sums;

    for (uint32_t b = 0; b < page->buckets; b++) {
        const struct gw_layout_bucket *at = &layout_page_buckets(page)[b];

        even &= at->pieces == 1 && at->numel == at->padded_numel &&
                at->padded_numel == layout_page_buckets(page)[0].padded_numel &&
                at->dtype == GW_DTYPE_FP32 && at->grad_dtype == GW_DTYPE_FP32;
    }
    return even;
}

/* The next order of to[1..] by the alphabet. False: it was the last. */
static bool next_order(uint8_t *to, uint32_t ranks)
{
    uint32_t at = ranks - 1, other = ranks - 1;
    uint8_t rank;

    while (at > 1 && to[at - 1] > to[at])
        at--;
    if (at <= 1)
        return false;
    while (to[other] < to[at - 1])
        other--;
    rank = to[at - 1];
    to[at - 1] = to[other];
    to[other] = rank;
    for (uint32_t low = at, high = ranks - 1; low < high; low++, high--) {
        rank = to[low];
        to[low] = to[high];
        to[high] = rank;
    }
    return true;
}

static void add_renaming(struct symmetry *symmetry, const uint8_t *to)
{
    struct renaming *renaming = &symmetry->renamings[symmetry->count++];

    memcpy(renaming->to, to, SIM_RANKS_MAX);
    for (uint32_t r = 0; r < SIM_RANKS_MAX; r++)
        renaming->from[to[r]] = (uint8_t)r;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void add_name(struct symmetry *symmetry, uint64_t bits, uint64_t name, uint32_t rank,
                     uint32_t slice)
{
    if (symmetry->name_count == symmetry->name_room) {
        symmetry->name_room = 2 * symmetry->name_room + 64;
        symmetry->names =
            realloc(symmetry->names, symmetry->name_room * sizeof(*symmetry->names));
        if (!symmetry->names)
            abort();
    }
    symmetry->names[symmetry->name_count++] =
        (struct value_name){bits, name, (uint8_t)rank, (uint8_t)slice};
}

static uint64_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

struct spot { /* an element of a parameter, and where it lies in its bucket */
    uint32_t param, slice;
    uint64_t element, flat; /* in the parameter; in the reference */
};

static uint64_t name_of(const struct symmetry *symmetry, enum value_kind kind, uint32_t step,
                        uint32_t micro, const struct spot *spot)
{
    uint64_t bucket = spot->element / (symmetry->slice * symmetry->slices);

    return sim_hash(kind, step, micro, spot->param,
                    bucket * symmetry->slice + spot->element % symmetry->slice);
}

/* What a rank writes, and what it adds up by itself. */
static void name_gradients(const struct sim_plan *plan, struct symmetry *symmetry,
                           const struct spot *spot)
{
    for (uint32_t r = 0; r < plan->world; r++) {
        for (uint32_t s = 0; s < plan->steps; s++) {
            float sum = 0;

            for (uint32_t m = 0; m < plan_micro_steps(plan, r); m++) {
                float value = plan_contribution(plan, r, s, m, spot->param, spot->element);

                sum += value;
                add_name(symmetry, float_bits(value),
                         name_of(symmetry, VALUE_GRADIENT, s, m, spot), r, spot->slice);
                if (m > 0)
                    add_name(symmetry, float_bits(sum), name_of(symmetry, VALUE_ADDED, s, m, spot),
                             r, spot->slice);
            }
        }
    }
}

/* Sums over all ranks: of the micro-steps up to each. */
static void name_sums(const struct sim *sim, struct symmetry *symmetry, const struct spot *spots,
                      uint32_t count)
{
    for (uint32_t m = 0; m < plan_micro_steps(sim->plan, SIM_NEVER); m++) {
        struct sim_plan plan = *sim->plan;
        struct reference *reference;

        plan.seal.micro_steps = m + 1;
        reference = reference_new(&plan);
        for (uint32_t s = 0; s < plan.steps; s++) {
            double squares = 0;

            for (uint32_t i = 0; i < count; i++) {
                float value = reference->grads[s][spots[i].flat];
                uint64_t bits;

                add_name(symmetry, float_bits(value),
                         name_of(symmetry, VALUE_SUM, s, m, &spots[i]), 0, spots[i].slice);
                squares += (double)value * (double)value;
                if ((spots[i].element + 1) % symmetry->slice)
                    continue;
                memcpy(&bits, &squares, sizeof(bits));
                add_name(symmetry, bits, name_of(symmetry, VALUE_SQUARES, s, m, &spots[i]), 0,
                         spots[i].slice);
                squares = 0;
            }
        }
        reference_free(reference);
    }
}

static int by_bits(const void *one, const void *other)
{
    const struct value_name *a = one, *b = other;

    return a->bits < b->bits ? -1 : a->bits > b->bits;
}

static void name_values(struct sim *sim, struct symmetry *symmetry)
{
    const struct reference *reference = sim->reference;
    struct spot *spots = calloc(reference->numel + 1, sizeof(*spots));
    uint32_t count = 0;

    if (!spots)
        abort();
    for (uint32_t p = 0; p < sim->plan->param_count; p++) {
        for (uint64_t i = 0; i < sim->plan->params[p].numel; i++)
            spots[count++] = (struct spot){p, (uint32_t)(i / symmetry->slice) % symmetry->slices,
                                           i, reference->param_at[p] + i};
    }
    for (uint32_t i = 0; i < count; i++) {
        name_gradients(sim->plan, symmetry, &spots[i]);
        for (uint32_t s = 0; s <= sim->plan->steps; s++)
            add_name(symmetry, float_bits(reference->values[s][spots[i].flat]),
                     name_of(symmetry, VALUE_PARAM, s, 0, &spots[i]), 0, spots[i].slice);
    }
    name_sums(sim, symmetry, spots, count);
    free(spots);
    qsort(symmetry->names, symmetry->name_count, sizeof(*symmetry->names), by_bits);
    for (uint32_t i = 1; i < symmetry->name_count; i++) {
        if (symmetry->names[i].bits == symmetry->names[i - 1].bits)
            sim_fail(sim, "two values look alike: take another seed");
    }
}

uint64_t symmetry_value(const struct symmetry *symmetry, const struct renaming *renaming,
                        uint64_t bits)
{
    const struct value_name wanted = {.bits = bits};
    const struct value_name *found;

    if (!symmetry->names || !bits)
        return bits;
    found = bsearch(&wanted, symmetry->names, symmetry->name_count, sizeof(wanted), by_bits);
    if (!found)
        return bits;
    return found->name + ((uint64_t)renaming->to[found->rank] << 8 | renaming->to[found->slice]);
}

/* ---- the rest -------------------------------------------------------------------------------- */

void symmetry_find(struct sim *sim, struct symmetry *ret_symmetry)
{
    const struct gw_layout_page *page = layout_page(core_layout(sim->core));
    uint8_t to[SIM_RANKS_MAX];

    *ret_symmetry = (struct symmetry){.slices = sim->plan->world};
    for (uint32_t r = 0; r < SIM_RANKS_MAX; r++)
        to[r] = (uint8_t)r;
    add_renaming(ret_symmetry, to);
    if (!is_even(sim))
        return;
    ret_symmetry->slice = layout_page_buckets(page)[0].padded_numel / sim->plan->world;
    while (next_order(to, sim->plan->world))
        add_renaming(ret_symmetry, to);
    if (ret_symmetry->count > 1)
        name_values(sim, ret_symmetry);
}

void symmetry_free(struct symmetry *symmetry)
{
    free(symmetry->names);
    *symmetry = (struct symmetry){0};
}

uint64_t symmetry_place(const struct symmetry *symmetry, const struct renaming *renaming,
                        uint64_t element)
{
    uint64_t bucket, slice;

    if (!symmetry->slice)
        return element;
    slice = element / symmetry->slice % symmetry->slices;
    bucket = element / (symmetry->slice * symmetry->slices);
    return (bucket * symmetry->slices + renaming->to[slice]) * symmetry->slice +
           element % symmetry->slice;
}

struct sim_choice symmetry_choice(const struct renaming *renaming, struct sim_choice choice)
{
    if (choice.what == WHAT_QUEUE)
        choice.which = renaming->to[choice.which / SIM_QUEUES] * SIM_QUEUES +
                       choice.which % SIM_QUEUES;
    else if (choice.what == WHAT_STREAM && choice.which >= CORE_STREAM_GATHER)
        choice.which = CORE_STREAM_GATHER + renaming->to[choice.which - CORE_STREAM_GATHER];
    else if (choice.what == WHAT_CLIENT || choice.what == WHAT_WIRE)
        choice.which = renaming->to[choice.which];
    return choice;
}
