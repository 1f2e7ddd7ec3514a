/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places parameters into buckets and holds the result as the flat page of proto/layout_page.h. The
 * same walk runs three times: first it counts; then it fills the buckets of the block that the
 * counts asked for; then, buckets having their places, the pieces, for buckets of several classes
 * are filled by turns. Pure; any thread; a layout never changes once made.
 */
#include "daemon/core/layout.h"

#include <stdlib.h>

#include "daemon/core/layout_internal.h"
#include "gradwire/errors.h"

enum walk { WALK_COUNT, WALK_BUCKETS, WALK_PIECES };

/* A class's bucket that is not full yet. numel 0: there is none. */
struct open {
    uint32_t bucket;
    uint64_t numel;
};

struct packer {
    const struct layout_options *options;
    const struct layout_param *params;
    const struct layout_runs *runs;
    enum walk walk;
    struct layout *out; /* NULL: only count */
    uint32_t buckets, pieces;
    struct open open[LAYOUT_CLASSES];
};

static uint64_t padded(uint64_t numel, uint64_t grain)
{
    return (numel + grain - 1) / grain * grain;
}

/* A padded bucket is a multiple of it. */
static uint64_t grain_of(const struct layout_options *options, const struct layout_param *param)
{
    return (uint64_t)layout_members(options, param->group) * layout_align_numel(options, param);
}

static int open_bucket(struct packer *packer, const struct layout_item *item, struct open *open)
{
    const struct layout_param *param = &packer->params[item->param];

    if (packer->buckets >= GW_BUCKETS_MAX)
        return GW_E_LIMIT;
    open->bucket = packer->buckets++;
    if (packer->walk == WALK_BUCKETS)
        packer->out->buckets[open->bucket] = (struct gw_layout_bucket){
            .fetch_unit = item->fetch_unit,
            .group = param->group,
            .dtype = param->dtype,
            .grad_dtype = param->grad_dtype,
            .accum_dtype = packer->options->accum_as_grads ? param->grad_dtype : GW_DTYPE_FP32,
        };
    return 0;
}

static int put_piece(struct packer *packer, const struct layout_item *item, struct open *open,
                     uint64_t param_offset, uint64_t numel)
{
    struct gw_layout_bucket *bucket;
    int r;

    if (open->numel == 0) {
        r = open_bucket(packer, item, open);
        if (r < 0)
            return r;
    }
    packer->pieces++;
    if (packer->walk != WALK_COUNT) {
        bucket = &packer->out->buckets[open->bucket];
        if (packer->walk == WALK_BUCKETS)
            bucket->numel += numel;
        else
            packer->out->pieces[bucket->first_piece + bucket->pieces] = (struct gw_layout_piece){
                .param = item->param,
                .bucket = open->bucket,
                .bucket_offset = open->numel,
                .param_offset = param_offset,
                .numel = numel,
            };
        bucket->pieces++;
    }
    open->numel += numel;
    return 0;
}

/* Into the class's open bucket if it fits, else into a new one; cut if larger than a bucket. */
static int place_param(struct packer *packer, const struct layout_item *item)
{
    const struct layout_param *param = &packer->params[item->param];
    struct open *open = &packer->open[layout_class(param)];
    uint64_t limit = packer->options->bucket_bytes / gw_dtype_bytes(param->grad_dtype);
    uint64_t grain = grain_of(packer->options, param), cut = limit / grain * grain, placed = 0;
    int r;

    if (cut == 0)
        cut = grain;
    if (open->numel > limit || param->numel > limit - open->numel)
        open->numel = 0;
    while (param->numel > limit && param->numel - placed > cut) {
        r = put_piece(packer, item, open, placed, cut);
        if (r < 0)
            return r;
        open->numel = 0;
        placed += cut;
    }
    return put_piece(packer, item, open, placed, param->numel - placed);
}

/* Stages 0-2 ignore units: buckets run on across them. Stage 3: items come class by class. */
static void close_before(struct packer *packer, const struct layout_item *item)
{
    const struct layout_item *last = item - 1;
    uint32_t class = layout_class(&packer->params[last->param]);

    if (packer->options->stage == 3 && (last->fetch_unit != item->fetch_unit ||
                                        class != layout_class(&packer->params[item->param])))
        packer->open[class].numel = 0;
}

static int walk(struct packer *packer, enum walk which, uint32_t *ret_param)
{
    int r;

    packer->walk = which;
    packer->buckets = packer->pieces = 0;
    for (uint32_t class = 0; class < LAYOUT_CLASSES; class++)
        packer->open[class].numel = 0;
    for (uint32_t i = 0; i < packer->runs->item_count; i++) {
        const struct layout_item *item = &packer->runs->items[i];

        if (i > 0)
            close_before(packer, item);
        r = place_param(packer, item);
        if (r < 0) {
            *ret_param = item->param;
            return r;
        }
    }
    return 0;
}

/* Padding, flat offsets and each bucket's run of pieces, which the next walk fills. */
static void set_buckets(struct packer *packer)
{
    struct layout *layout = packer->out;
    uint64_t offset = 0;
    uint32_t pieces = 0;

    for (uint32_t b = 0; b < packer->buckets; b++) {
        struct gw_layout_bucket *bucket = &layout->buckets[b];
        struct layout_param like = {
            .group = bucket->group, .dtype = bucket->dtype, .grad_dtype = bucket->grad_dtype};

        bucket->padded_numel = padded(bucket->numel, grain_of(packer->options, &like));
        bucket->offset = offset;
        bucket->first_piece = pieces;
        offset += bucket->padded_numel;
        pieces += bucket->pieces;
        bucket->pieces = 0;
    }
}

/* A parameter's pieces are consecutive: all but its last one fill buckets alone. */
static void set_params(struct layout *layout)
{
    for (uint32_t i = 0; i < layout->page->pieces; i++) {
        const struct gw_layout_piece *piece = &layout->pieces[i];
        struct gw_layout_param *param = &layout->params[piece->param];

        if (param->pieces++ == 0) {
            param->first_piece = i;
            param->offset = layout->buckets[piece->bucket].offset + piece->bucket_offset;
        }
    }
}

static int build(struct packer *packer, uint32_t param_count, struct layout **ret_layout,
                 uint32_t *ret_param)
{
    const struct layout_options *options = packer->options;
    const struct layout_runs *runs = packer->runs;
    struct gw_layout_page header = {
        .magic = GW_LAYOUT_MAGIC,
        .version = GW_LAYOUT_VERSION,
        .stage = options->stage,
        .world = options->world,
        .params = param_count,
        .units = runs->count,
        .fetch_units = runs->fetch_units,
        .groups = options->group_count + 1,
        .persistent = runs->persistent,
        .shard_align_bytes = options->align_bytes,
        .bucket_bytes = options->bucket_bytes,
    };
    int r;

    r = walk(packer, WALK_COUNT, ret_param);
    if (r < 0)
        return r;
    header.pieces = packer->pieces;
    header.buckets = packer->buckets;
    for (uint32_t g = 0; g < header.groups; g++)
        header.members += layout_members(options, g);
    header.names_bytes = layout_names_bytes(packer->params, param_count, runs);
    if (header.names_bytes > UINT32_MAX)
        return GW_E_NOMEM;
    r = layout_block_new(&header, &packer->out);
    if (r < 0)
        return r;
    layout_block_begin(packer->out, options, packer->params, runs);
    (void)walk(packer, WALK_BUCKETS, ret_param);
    set_buckets(packer);
    (void)walk(packer, WALK_PIECES, ret_param);
    set_params(packer->out);
    layout_block_end(packer->out);
    *ret_layout = packer->out;
    return 0;
}

int layout_new(const struct layout_options *options, const struct layout_param *params,
               uint32_t param_count, struct layout **ret_layout, uint32_t *ret_param)
{
    struct packer packer = {.options = options, .params = params};
    struct layout_runs runs;
    int r;

    *ret_param = UINT32_MAX;
    r = layout_check_options(options);
    if (r == 0)
        r = layout_check_params(options, params, param_count, ret_param);
    if (r == 0)
        r = layout_runs_init(&runs, options, params, param_count);
    if (r < 0)
        return r;
    packer.runs = &runs;
    r = build(&packer, param_count, ret_layout, ret_param);
    layout_runs_done(&runs);
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

const struct gw_layout_group *layout_groups(const struct layout *layout)
{
    return layout->groups;
}

const char *layout_name(const struct layout *layout, uint32_t name_at)
{
    return layout->names + name_at;
}

void layout_slice(const struct layout *layout, uint32_t bucket, uint32_t slice,
                  uint64_t *ret_bucket_offset, uint64_t *ret_numel, uint64_t *ret_valid_numel)
{
    const struct gw_layout_bucket *b = &layout->buckets[bucket];
    bool whole = layout->page->stage == 0;
    uint64_t numel, offset;

    numel = whole ? b->padded_numel : b->padded_numel / layout->groups[b->group].shard_ranks;
    offset = whole ? 0 : slice * numel;
    *ret_bucket_offset = offset;
    *ret_numel = numel;
    if (b->numel <= offset)
        *ret_valid_numel = 0;
    else
        *ret_valid_numel = b->numel - offset < numel ? b->numel - offset : numel;
}
