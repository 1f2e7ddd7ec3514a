/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of ranks in the ZeRO layer: which buckets are whose, launch orders, gates, and the parts
 * that gathers are made of. Pure; one thread. Decides nothing about a step: tables and questions.
 */
#include "daemon/core/zero_internal.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"

/* ---- places ---------------------------------------------------------------------------------- */

/* One for each set of groups; ranks in the same ones share it. */
static int make_place(struct zero *z, uint32_t rank, uint64_t groups)
{
    int r;

    for (uint32_t i = 0; i < z->place_count; i++) {
        if (z->place_groups[i] == groups) {
            z->ranks[rank].place = z->places[i];
            return 0;
        }
    }
    r = place_new(layout_page(z->layout), &z->options, groups, &z->places[z->place_count]);
    if (r < 0)
        return r;
    z->ranks[rank].place = z->places[z->place_count];
    z->place_groups[z->place_count++] = groups;
    return 0;
}

static int make_ranks(struct zero *z)
{
    const struct gw_layout_page *page = layout_page(z->layout);
    int r = 0;

    for (uint32_t rank = 0; rank < z->world && r == 0; rank++) {
        struct zero_rank *mine = &z->ranks[rank];
        uint64_t groups = place_groups_of(page, rank);

        r = make_place(z, rank, groups);
        for (uint32_t g = 0; g < z->group_count; g++) {
            z->positions[(size_t)g * z->world + rank] = layout_page_position(page, g, rank);
            if (groups >> g & 1 && z->groups[g].buckets)
                mine->groups |= UINT64_C(1) << g;
        }
        for (uint32_t b = 0; b < z->buckets; b++) {
            if (!zero_member(z, b, rank))
                continue;
            mine->own_buckets++;
            mine->dtypes |= 1u << z->bucket_table[b].dtype;
        }
    }
    return r;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* A mean is over the bucket's group, whatever its runs. One rounding of the product. */
static float scale_of(const struct wire_seal *options, uint32_t members)
{
    double pre_scale = options->pre_scale != 0 ? options->pre_scale : 1;

    return (float)((options->scale != 0 ? options->scale : 1.0 / members) * pre_scale);
}

static void make_groups(struct zero *z)
{
    const struct gw_layout_page *page = layout_page(z->layout);
    uint32_t first = 0;

    for (uint32_t b = 0; b < z->buckets; b++) {
        struct zero_group *group = zero_group_of(z, b);

        group->buckets++;
        group->rounds |= z->bucket_table[b].dtype != GW_DTYPE_FP32;
    }
    for (uint32_t g = 0; g < z->group_count; g++) {
        const struct gw_layout_group *at = &layout_page_groups(page)[g];
        struct zero_group *group = &z->groups[g];

        group->ranks = layout_page_members(page, g);
        group->count = at->members;
        group->shard_ranks = at->shard_ranks;
        for (uint32_t i = 0; i < at->members; i++)
            ranks_add(&group->members, group->ranks[i]);
        group->scale = scale_of(&z->options, at->members);
        group->order = z->orders[0] + first;
        group->recorded = z->orders[1] + first;
        first += group->buckets;
    }
}

/* ---- parts of gathers ------------------------------------------------------------------------ */

static void add_part(struct zero *z, uint32_t bucket, uint32_t fetch_unit, bool joins)
{
    struct zero_part *last = joins ? &z->parts[z->part_count - 1] : NULL;

    if (last && last->group == z->bucket_table[bucket].group) {
        last->buckets++;
        return;
    }
    z->parts[z->part_count++] =
        (struct zero_part){bucket, 1, z->bucket_table[bucket].group, fetch_unit};
}

static void make_parts(struct zero *z)
{
    const struct gw_layout_fetch_unit *units = layout_fetch_units(z->layout);

    for (uint32_t b = 0; b < z->buckets && (z->stage == 1 || z->stage == 2); b++)
        add_part(z, b, UINT32_MAX, false);
    for (uint32_t f = 0; f < z->fetch_units && z->stage == 3; f++) {
        z->unit_parts[f] = z->part_count;
        for (uint32_t b = units[f].first_bucket; b < units[f].first_bucket + units[f].buckets; b++)
            add_part(z, b, f, b > units[f].first_bucket);
    }
    z->unit_parts[z->fetch_units] = z->part_count;
    if (layout_page(z->layout)->persistent)
        z->persistent_parts = z->unit_parts[1];
}

/* ---- life ------------------------------------------------------------------------------------ */

int groups_init(struct zero *z)
{
    size_t buckets = (size_t)z->buckets + 1, groups = z->group_count;

    z->groups = calloc(groups, sizeof(*z->groups));
    z->positions = calloc(groups * z->world, sizeof(*z->positions));
    z->gather_commits = calloc(groups * z->world, sizeof(*z->gather_commits));
    z->gather_ops = calloc(groups * z->world, sizeof(*z->gather_ops));
    z->places = calloc(z->world, sizeof(*z->places));
    z->place_groups = calloc(z->world, sizeof(*z->place_groups));
    z->parts = calloc(buckets, sizeof(*z->parts));
    z->unit_parts = calloc((size_t)z->fetch_units + 1, sizeof(*z->unit_parts));
    z->orders[0] = calloc(buckets, sizeof(*z->orders[0]));
    z->orders[1] = calloc(buckets, sizeof(*z->orders[1]));
    if (!z->groups || !z->positions || !z->gather_commits || !z->gather_ops || !z->places ||
        !z->place_groups || !z->parts || !z->unit_parts || !z->orders[0] || !z->orders[1])
        return GW_E_NOMEM;
    make_groups(z);
    make_parts(z);
    groups_first_order(z);
    return make_ranks(z);
}

void groups_free(struct zero *z)
{
    for (uint32_t i = 0; i < z->place_count; i++)
        (void)place_free(z->places[i]);
    free(z->groups);
    free(z->positions);
    free(z->gather_commits);
    free(z->gather_ops);
    free(z->places);
    free(z->place_groups);
    free(z->parts);
    free(z->unit_parts);
    free(z->orders[0]);
    free(z->orders[1]);
}

void groups_first_order(struct zero *z)
{
    for (uint32_t g = 0; g < z->group_count; g++)
        z->groups[g].recorded_count = 0;
    /* Backward: the last bucket first. */
    for (uint32_t b = z->buckets; b-- > 0;) {
        struct zero_group *group = zero_group_of(z, b);

        group->order[group->recorded_count++] = b;
    }
}

void groups_reset_step(struct zero *z)
{
    for (uint32_t g = 0; g < z->group_count; g++) {
        struct zero_group *group = &z->groups[g];

        group->recorded_count = group->finals = 0;
        group->micro_max = group->pos_m = group->pos_i = 0;
        group->digest = HASH_START;
    }
}

/* ---- questions ------------------------------------------------------------------------------- */

uint32_t groups_run(const struct zero *z, uint32_t group, uint32_t rank)
{
    uint32_t position = zero_position(z, group, rank);

    return position - position % z->groups[group].shard_ranks;
}

struct ranks groups_neighbours(const struct zero *z, uint32_t rank)
{
    struct ranks ranks = ranks_one(rank);

    for (uint32_t g = 0; g < z->group_count; g++) {
        if (zero_in(z, g, rank))
            ranks = ranks_or(&ranks, &z->groups[g].members);
    }
    return ranks;
}

uint64_t groups_rank_gate(const struct zero *z, uint32_t rank)
{
    uint64_t gate = z->ranks[rank].resolved;

    for (uint32_t g = 0; g < z->group_count; g++) {
        if (zero_in(z, g, rank) && z->groups[g].gate < gate)
            gate = z->groups[g].gate;
    }
    return gate;
}

void groups_committed(struct zero *z, uint32_t rank, uint64_t step)
{
    if (step > z->committed)
        z->committed = step;
    for (uint32_t g = 0; g < z->group_count; g++) {
        struct zero_group *group = &z->groups[g];

        if (!zero_in(z, g, rank))
            continue;
        group->commits++;
        if (step > group->committed)
            group->committed = step;
    }
}

bool groups_complete(const struct zero *z, const struct zero_group *group)
{
    uint32_t begun = z->local ? 1 : group->micro_max + 1;

    return group->buckets == 0 || group->pos_m >= begun;
}
