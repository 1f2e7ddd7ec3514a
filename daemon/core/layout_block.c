/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of a layout: one zeroed block with header, arrays and names, and everything in it that
 * is no placement. Pure; any thread. Places nothing itself.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/layout_internal.h"
#include "gradwire/errors.h"

uint64_t layout_names_bytes(const struct layout_param *params, uint32_t param_count,
                            const struct layout_runs *runs)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < param_count; i++)
        bytes += strlen(params[i].name) + 1;
    for (uint32_t u = 0; u < runs->count; u++) {
        if (params[runs->runs[u].first_param].unit[0])
            bytes += strlen(runs->runs[u].name) + 1;
    }
    return bytes;
}

/* Room for n entries at the end of what is taken so far. */
static uint64_t take(uint64_t *taken, uint64_t count, size_t entry_bytes)
{
    uint64_t at = *taken;

    *taken += (count * entry_bytes + 7) / 8 * 8;
    return at;
}

int layout_block_new(struct gw_layout_page *header, struct layout **ret_layout)
{
    struct layout *layout;
    uint64_t bytes = 0;
    char *base;

    take(&bytes, 1, sizeof(*header));
    header->params_at = take(&bytes, header->params, sizeof(*layout->params));
    header->pieces_at = take(&bytes, header->pieces, sizeof(*layout->pieces));
    header->buckets_at = take(&bytes, header->buckets, sizeof(*layout->buckets));
    header->units_at = take(&bytes, header->units, sizeof(*layout->units));
    header->fetch_units_at = take(&bytes, header->fetch_units, sizeof(*layout->fetch_units));
    header->groups_at = take(&bytes, header->groups, sizeof(*layout->groups));
    header->members_at = take(&bytes, header->members, sizeof(*layout->members));
    header->names_at = take(&bytes, header->names_bytes, 1);
    header->size_bytes = bytes;
    if (header->size_bytes > SIZE_MAX / 2)
        return GW_E_NOMEM;
    layout = calloc(1, sizeof(*layout) + (size_t)header->size_bytes);
    if (!layout)
        return GW_E_NOMEM;
    base = (char *)layout->block;
    layout->page = (struct gw_layout_page *)layout->block;
    layout->params = (struct gw_layout_param *)(void *)(base + header->params_at);
    layout->pieces = (struct gw_layout_piece *)(void *)(base + header->pieces_at);
    layout->buckets = (struct gw_layout_bucket *)(void *)(base + header->buckets_at);
    layout->units = (struct gw_layout_unit *)(void *)(base + header->units_at);
    layout->fetch_units = (struct gw_layout_fetch_unit *)(void *)(base + header->fetch_units_at);
    layout->groups = (struct gw_layout_group *)(void *)(base + header->groups_at);
    layout->members = (uint32_t *)(void *)(base + header->members_at);
    layout->names = base + header->names_at;
    *layout->page = *header;
    *ret_layout = layout;
    return 0;
}

/* ---- before placement ------------------------------------------------------------------------ */

static uint32_t put_name(struct layout *layout, uint32_t *at, const char *name,
                         uint32_t *ret_name_bytes)
{
    uint32_t name_at = *at;
    size_t bytes = strlen(name);

    memcpy(layout->names + name_at, name, bytes + 1);
    *at += (uint32_t)bytes + 1;
    *ret_name_bytes = (uint32_t)bytes;
    return name_at;
}

static void fill_params(struct layout *layout, const struct layout_options *options,
                        const struct layout_param *params, uint32_t *name_at)
{
    for (uint32_t i = 0; i < layout->page->params; i++) {
        struct gw_layout_param *param = &layout->params[i];

        *param = (struct gw_layout_param){
            .numel = params[i].numel,
            .flags = params[i].flags,
            .group = params[i].group,
            .dtype = params[i].dtype,
            .grad_dtype = params[i].grad_dtype,
            .persistent = layout_persists(options, &params[i]),
        };
        param->name_at = put_name(layout, name_at, params[i].name, &param->name_bytes);
        layout->page->numel += param->numel;
    }
}

static void fill_units(struct layout *layout, const struct layout_param *params,
                       const struct layout_runs *runs, uint32_t *name_at)
{
    for (uint32_t u = 0; u < layout->page->units; u++) {
        const struct layout_run *run = &runs->runs[u];
        const struct gw_layout_param *first = &layout->params[run->first_param];
        struct gw_layout_unit *unit = &layout->units[u];

        *unit = (struct gw_layout_unit){
            .first_param = run->first_param,
            .params = run->params,
            .fetch_unit = run->fetch_unit,
            .name_at = first->name_at,
            .name_bytes = first->name_bytes,
            .persistent = run->persistent,
        };
        if (params[run->first_param].unit[0])
            unit->name_at = put_name(layout, name_at, run->name, &unit->name_bytes);
        for (uint32_t p = run->first_param; p < run->first_param + run->params; p++)
            layout->params[p].unit = u;
    }
}

/* Stage 0 keeps no shards that replicas could share. */
static void fill_groups(struct layout *layout, const struct layout_options *options)
{
    uint32_t at = 0;

    for (uint32_t g = 0; g < layout->page->groups; g++) {
        struct gw_layout_group *group = &layout->groups[g];
        uint32_t shard_ranks =
            g == 0 ? options->shard_ranks : options->groups[g - 1].shard_ranks;

        group->first_member = at;
        group->members = layout_members(options, g);
        group->shard_ranks = options->stage > 0 && shard_ranks ? shard_ranks : group->members;
        for (uint32_t i = 0; i < group->members; i++)
            layout->members[at++] = g == 0 ? i : options->groups[g - 1].ranks[i];
    }
}

void layout_block_begin(struct layout *layout, const struct layout_options *options,
                        const struct layout_param *params, const struct layout_runs *runs)
{
    uint32_t name_at = 0;

    fill_params(layout, options, params, &name_at);
    fill_units(layout, params, runs, &name_at);
    fill_groups(layout, options);
}

/* ---- after placement ------------------------------------------------------------------------- */

/* From the first to the last bucket of its parameters. */
static void fill_unit(struct layout *layout, struct gw_layout_unit *unit)
{
    uint32_t first = UINT32_MAX, end = 0;

    for (uint32_t p = unit->first_param; p < unit->first_param + unit->params; p++) {
        const struct gw_layout_param *param = &layout->params[p];
        uint32_t from, to;

        if (param->pieces == 0 || param->persistent)
            continue;
        from = layout->pieces[param->first_piece].bucket;
        to = layout->pieces[param->first_piece + param->pieces - 1].bucket + 1;
        first = from < first ? from : first;
        end = to > end ? to : end;
    }
    unit->first_bucket = end ? first : 0;
    unit->buckets = end ? end - first : 0;
}

/* Stages 0-2: one per unit, with the unit's buckets. */
static void fill_fetch_unit_of(struct layout *layout, uint32_t u)
{
    const struct gw_layout_unit *unit = &layout->units[u];
    struct gw_layout_fetch_unit *fetch = &layout->fetch_units[u];

    *fetch = (struct gw_layout_fetch_unit){.first_unit = u,
                                           .units = 1,
                                           .first_bucket = unit->first_bucket,
                                           .buckets = unit->buckets};
    for (uint32_t i = 0; i < unit->buckets; i++)
        fetch->padded_numel += layout->buckets[unit->first_bucket + i].padded_numel;
    if (unit->buckets)
        fetch->offset = layout->buckets[unit->first_bucket].offset;
    for (uint32_t i = 0; i < unit->params; i++)
        fetch->numel += layout->params[unit->first_param + i].numel;
}

/* Stage 3: they are made of buckets; units without any may lie between a fetch unit's. */
static void fill_fetch_units(struct layout *layout)
{
    for (uint32_t b = 0; b < layout->page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &layout->buckets[b];
        struct gw_layout_fetch_unit *fetch = &layout->fetch_units[bucket->fetch_unit];

        if (fetch->buckets++ == 0) {
            fetch->first_bucket = b;
            fetch->offset = bucket->offset;
        }
        fetch->numel += bucket->numel;
        fetch->padded_numel += bucket->padded_numel;
    }
    for (uint32_t u = 0; u < layout->page->units; u++) {
        struct gw_layout_fetch_unit *fetch;

        if (layout->units[u].fetch_unit == UINT32_MAX)
            continue;
        fetch = &layout->fetch_units[layout->units[u].fetch_unit];
        if (fetch->units == 0)
            fetch->first_unit = u;
        fetch->units = u - fetch->first_unit + 1;
    }
}

static void fill_totals(struct layout *layout)
{
    struct gw_layout_page *page = layout->page;

    for (uint32_t b = 0; b < page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &layout->buckets[b];
        uint64_t bytes = bucket->padded_numel * gw_dtype_bytes(bucket->grad_dtype);

        page->padded_numel += bucket->padded_numel;
        if (bytes > page->max_bucket_bytes)
            page->max_bucket_bytes = bytes;
    }
}

void layout_block_end(struct layout *layout)
{
    for (uint32_t u = 0; u < layout->page->units; u++) {
        fill_unit(layout, &layout->units[u]);
        if (layout->page->stage < 3)
            fill_fetch_unit_of(layout, u);
    }
    if (layout->page->stage == 3)
        fill_fetch_units(layout);
    fill_totals(layout);
}
