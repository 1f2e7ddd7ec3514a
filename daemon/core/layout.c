/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places parameters into buckets and holds the result as the flat page of proto/layout_page.h. The
 * same walk runs twice: first it counts, then it fills the block that the counts asked for. Pure;
 * any thread; a layout never changes once made.
 */
#include "daemon/core/layout.h"

#include <stdlib.h>

#include "daemon/core/layout_internal.h"
#include "gradwire/errors.h"
#include "proto/limits.h"

/* A bucket's number must fit into a timeline (proto/shm.h: 24 bits). */

/* The walk: buckets and pieces so far, and the bucket that is still open. */
struct packer {
    const struct layout_options *options;
    const struct layout_param *params;
    uint64_t grain;     /* world * align: a padded bucket is a multiple of it */
    uint64_t cut;       /* where parameters larger than a bucket are cut; a multiple of grain */
    struct layout *out; /* NULL: only count */
    uint32_t buckets, pieces;
    uint32_t open_first_piece;
    uint64_t open_offset; /* flat */
    uint64_t open_numel;
};

static uint64_t padded(uint64_t numel, uint64_t grain)
{
    return (numel + grain - 1) / grain * grain;
}

static void close_bucket(struct packer *packer, uint32_t fetch_unit)
{
    if (!packer->open_numel)
        return;
    if (packer->out) {
        packer->out->buckets[packer->buckets] = (struct gw_layout_bucket){
            .offset = packer->open_offset,
            .numel = packer->open_numel,
            .padded_numel = padded(packer->open_numel, packer->grain),
            .first_piece = packer->open_first_piece,
            .pieces = packer->pieces - packer->open_first_piece,
            .fetch_unit = packer->options->stage == 3 ? fetch_unit : UINT32_MAX,
        };
    }
    packer->buckets++;
    packer->open_first_piece = packer->pieces;
    packer->open_offset += padded(packer->open_numel, packer->grain);
    packer->open_numel = 0;
}

static void put_piece(struct packer *packer, uint32_t param, uint64_t param_offset, uint64_t numel)
{
    if (packer->out) {
        packer->out->pieces[packer->pieces] = (struct gw_layout_piece){
            .param = param,
            .bucket = packer->buckets,
            .bucket_offset = packer->open_numel,
            .param_offset = param_offset,
            .numel = numel,
        };
    }
    packer->pieces++;
    packer->open_numel += numel;
}

/* Into the open bucket if it fits, else into a new one; cut if larger than a bucket. */
static int place_param(struct packer *packer, uint32_t index, uint32_t unit, uint32_t fetch_unit)
{
    uint64_t numel = packer->params[index].numel, limit = packer->options->bucket_numel;
    uint64_t placed = 0;
    uint32_t first_piece;

    if (numel && (packer->open_numel > limit || numel > limit - packer->open_numel))
        close_bucket(packer, fetch_unit);
    first_piece = packer->pieces;
    if (packer->out) {
        packer->out->params[index].offset = numel ? packer->open_offset + packer->open_numel : 0;
        packer->out->params[index].unit = unit;
        packer->out->params[index].first_piece = first_piece;
    }
    while (numel > limit && numel - placed > packer->cut) {
        put_piece(packer, index, placed, packer->cut);
        close_bucket(packer, fetch_unit);
        placed += packer->cut;
        if (packer->buckets >= GW_BUCKETS_MAX) /* and one that is open */
            return GW_E_LIMIT;
    }
    if (numel)
        put_piece(packer, index, placed, numel - placed);
    if (packer->buckets + (packer->open_numel > 0) > GW_BUCKETS_MAX)
        return GW_E_LIMIT;
    if (packer->out)
        packer->out->params[index].pieces = packer->pieces - first_piece;
    return 0;
}

static int pack(struct packer *packer, const struct layout_run *runs, uint32_t run_count,
                uint32_t *ret_param)
{
    int r;

    packer->buckets = packer->pieces = packer->open_first_piece = 0;
    packer->open_offset = packer->open_numel = 0;
    for (uint32_t u = 0; u < run_count; u++) {
        /* Stages 0-2 ignore units: buckets run on across them. */
        if (packer->options->stage == 3 && u > 0 && runs[u].fetch_unit != runs[u - 1].fetch_unit)
            close_bucket(packer, runs[u - 1].fetch_unit);
        for (uint32_t i = 0; i < runs[u].params; i++) {
            r = place_param(packer, runs[u].first_param + i, u, runs[u].fetch_unit);
            if (r) {
                *ret_param = runs[u].first_param + i;
                return r;
            }
        }
    }
    if (run_count)
        close_bucket(packer, runs[run_count - 1].fetch_unit);
    return 0;
}

static int build(struct packer *packer, uint32_t param_count, const struct layout_run *runs,
                 uint32_t run_count, struct layout **ret_layout, uint32_t *ret_param)
{
    struct gw_layout_page header = {
        .magic = GW_LAYOUT_MAGIC,
        .version = GW_LAYOUT_VERSION,
        .stage = packer->options->stage,
        .world = packer->options->world,
        .params = param_count,
        .units = run_count,
        .fetch_units = run_count ? runs[run_count - 1].fetch_unit + 1 : 0,
        .align_numel = packer->options->align_numel,
        .bucket_numel = packer->options->bucket_numel,
    };
    struct layout *layout;
    int r;

    r = pack(packer, runs, run_count, ret_param);
    if (r)
        return r;
    header.pieces = packer->pieces;
    header.buckets = packer->buckets;
    header.names_bytes = layout_names_bytes(packer->params, param_count, runs, run_count);
    if (header.names_bytes > UINT32_MAX)
        return GW_E_NOMEM;
    r = layout_block_new(&header, &layout);
    if (r)
        return r;
    packer->out = layout;
    r = pack(packer, runs, run_count, ret_param);
    if (r) {
        layout_free(layout);
        return r;
    }
    layout_block_fill(layout, packer->params, runs);
    *ret_layout = layout;
    return 0;
}

int layout_new(const struct layout_options *options, const struct layout_param *params,
               uint32_t param_count, struct layout **ret_layout, uint32_t *ret_param)
{
    struct packer packer = {.options = options, .params = params};
    struct layout_run *runs = NULL;
    uint32_t run_count = 0;
    int r;

    *ret_param = UINT32_MAX;
    packer.grain = (uint64_t)options->world * options->align_numel;
    if (options->stage > 3 || !options->bucket_numel || !packer.grain || packer.grain > UINT32_MAX)
        return GW_E_INVALID;
    packer.cut = options->bucket_numel / packer.grain * packer.grain;
    if (!packer.cut)
        packer.cut = packer.grain;
    r = layout_runs_new(options, params, param_count, &runs, &run_count, ret_param);
    if (r)
        return r;
    r = build(&packer, param_count, runs, run_count, ret_layout, ret_param);
    free(runs);
    return r;
}

struct layout *layout_free(struct layout *layout)
{
    free(layout);
    return NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

const struct gw_layout_page *layout_page(const struct layout *layout)
{
    return layout->page;
}

const struct gw_layout_param *layout_params(const struct layout *layout)
{
    return layout->params;
}

const struct gw_layout_piece *layout_pieces(const struct layout *layout)
{
    return layout->pieces;
}

const struct gw_layout_bucket *layout_buckets(const struct layout *layout)
{
    return layout->buckets;
}

const struct gw_layout_unit *layout_units(const struct layout *layout)
{
    return layout->units;
}

const struct gw_layout_fetch_unit *layout_fetch_units(const struct layout *layout)
{
    return layout->fetch_units;
}

const char *layout_name(const struct layout *layout, uint32_t name_at)
{
    return layout->names + name_at;
}

void layout_span(const struct layout *layout, uint32_t bucket, uint32_t rank,
                 uint64_t *ret_bucket_offset, uint64_t *ret_numel, uint64_t *ret_valid_numel)
{
    const struct gw_layout_bucket *b = &layout->buckets[bucket];
    uint64_t slice, offset;

    slice = layout->page->stage ? b->padded_numel / layout->page->world : b->padded_numel;
    offset = layout->page->stage ? rank * slice : 0;
    *ret_bucket_offset = offset;
    *ret_numel = slice;
    if (b->numel <= offset)
        *ret_valid_numel = 0;
    else
        *ret_valid_numel = b->numel - offset < slice ? b->numel - offset : slice;
}

uint64_t layout_shard_offset(const struct layout *layout, uint32_t bucket)
{
    uint64_t offset = layout->buckets[bucket].offset;

    return layout->page->stage ? offset / layout->page->world : offset;
}
