/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of a layout: one zeroed block with header, arrays and names, and everything in it that
 * follows from where the pieces lie. Pure; any thread. Places nothing itself.
 */
#include "daemon/core/layout_internal.h"

#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

uint64_t layout_names_bytes(const struct layout_param *params, uint32_t param_count,
                            const struct layout_run *runs, uint32_t run_count)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < param_count; i++)
        bytes += strlen(params[i].name) + 1;
    for (uint32_t u = 0; u < run_count; u++) {
        if (params[runs[u].first_param].unit[0])
            bytes += strlen(runs[u].name) + 1;
    }
    return bytes;
}

/* Room for n entries at the end of what is taken so far. */
static uint64_t take(uint64_t *taken, uint64_t count, size_t entry_bytes)
{
    uint64_t at = *taken;

    *taken += count * entry_bytes;
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
    header->names_at = take(&bytes, header->names_bytes, 1);
    header->size_bytes = (bytes + 7) / 8 * 8;
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
    layout->names = base + header->names_at;
    *layout->page = *header;
    *ret_layout = layout;
    return 0;
}

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

static void fill_names(struct layout *layout, const struct layout_param *params,
                       const struct layout_run *runs)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < layout->page->params; i++) {
        struct gw_layout_param *param = &layout->params[i];

        param->numel = params[i].numel;
        param->flags = params[i].flags;
        param->name_at = put_name(layout, &at, params[i].name, &param->name_bytes);
    }
    for (uint32_t u = 0; u < layout->page->units; u++) {
        const struct gw_layout_param *first = &layout->params[runs[u].first_param];
        struct gw_layout_unit *unit = &layout->units[u];

        if (params[runs[u].first_param].unit[0]) {
            unit->name_at = put_name(layout, &at, runs[u].name, &unit->name_bytes);
        } else {
            unit->name_at = first->name_at;
            unit->name_bytes = first->name_bytes;
        }
    }
}

/* Buckets of a unit, from those of its parameters' pieces, which are consecutive. */
static void fill_unit(struct layout *layout, const struct layout_run *run,
                      struct gw_layout_unit *unit)
{
    const struct gw_layout_param *last = &layout->params[run->first_param + run->params - 1];
    uint32_t first_piece = layout->params[run->first_param].first_piece;
    uint32_t end_piece = last->first_piece + last->pieces;

    /* An empty first parameter notes the piece that came next, in whichever unit: still right, as
     * only pieces of this unit lie in [first_piece, end_piece). */
    unit->first_param = run->first_param;
    unit->params = run->params;
    unit->fetch_unit = run->fetch_unit;
    if (end_piece == first_piece)
        return;
    unit->first_bucket = layout->pieces[first_piece].bucket;
    unit->buckets = layout->pieces[end_piece - 1].bucket - unit->first_bucket + 1;
}

static void fill_fetch_unit(struct layout *layout, uint32_t unit_index, uint64_t numel)
{
    const struct gw_layout_unit *unit = &layout->units[unit_index];
    struct gw_layout_fetch_unit *fetch = &layout->fetch_units[unit->fetch_unit];

    if (!fetch->units)
        fetch->first_unit = unit_index;
    fetch->units++;
    fetch->numel += numel;
    if (!unit->buckets)
        return;
    if (!fetch->buckets) {
        fetch->first_bucket = unit->first_bucket;
        fetch->offset = layout->buckets[unit->first_bucket].offset;
    }
    for (uint32_t b = fetch->first_bucket + fetch->buckets; b < unit->first_bucket + unit->buckets;
         b++) {
        fetch->buckets++;
        fetch->padded_numel += layout->buckets[b].padded_numel;
    }
}

static void fill_totals(struct layout *layout)
{
    struct gw_layout_page *page = layout->page;

    for (uint32_t b = 0; b < page->buckets; b++) {
        page->numel += layout->buckets[b].numel;
        page->padded_numel += layout->buckets[b].padded_numel;
        if (layout->buckets[b].padded_numel > page->max_bucket_numel)
            page->max_bucket_numel = layout->buckets[b].padded_numel;
    }
    for (uint32_t f = 0; f < page->fetch_units && page->stage == 3; f++) {
        if (layout->fetch_units[f].padded_numel > page->max_fetch_numel)
            page->max_fetch_numel = layout->fetch_units[f].padded_numel;
    }
    page->shard_numel = page->stage ? page->padded_numel / page->world : page->padded_numel;
}

void layout_block_fill(struct layout *layout, const struct layout_param *params,
                       const struct layout_run *runs)
{
    fill_names(layout, params, runs);
    for (uint32_t u = 0; u < layout->page->units; u++) {
        fill_unit(layout, &runs[u], &layout->units[u]);
        fill_fetch_unit(layout, u, runs[u].numel);
    }
    fill_totals(layout);
}
