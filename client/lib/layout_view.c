/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Full check of a layout page: the client indexes memory with it, so a damaged page must fail here
 * and never later. Pure; any thread.
 */
#include "client/lib/layout_view.h"

#include <stdbool.h>
#include <string.h>

#include "gradwire/errors.h"
#include "proto/limits.h"

#define NUMEL_MAX (UINT64_MAX / 64) /* keeps every sum and byte count below 2^64 */

/* Division, not multiplication: count is not to be trusted yet. */
static bool array_fits(const struct gw_layout_page *page, uint64_t at, uint64_t count,
                       uint64_t item_bytes, uint64_t align)
{
    return at >= sizeof(*page) && at % align == 0 && at <= page->size_bytes &&
           count <= (page->size_bytes - at) / item_bytes;
}

static const char *check_header(const struct gw_layout_page *p, size_t bytes)
{
    if (p->magic != GW_LAYOUT_MAGIC || p->version != GW_LAYOUT_VERSION)
        return "magic or version";
    if (p->size_bytes < sizeof(*p) || p->size_bytes > bytes)
        return "size";
    if (p->stage > 3 || p->world == 0 || p->world > GW_RANKS_MAX || p->align_numel == 0)
        return "stage, world or alignment";
    if (p->params > GW_PARAMS_MAX || p->units > p->params || p->fetch_units > p->units)
        return "counts";
    if (p->numel > NUMEL_MAX || p->padded_numel > NUMEL_MAX ||
        p->max_bucket_numel > p->padded_numel || p->max_fetch_numel > p->padded_numel)
        return "sizes";
    if (!array_fits(p, p->params_at, p->params, sizeof(struct gw_layout_param), 8) ||
        !array_fits(p, p->pieces_at, p->pieces, sizeof(struct gw_layout_piece), 8) ||
        !array_fits(p, p->buckets_at, p->buckets, sizeof(struct gw_layout_bucket), 8) ||
        !array_fits(p, p->units_at, p->units, sizeof(struct gw_layout_unit), 4) ||
        !array_fits(p, p->fetch_units_at, p->fetch_units, sizeof(struct gw_layout_fetch_unit), 8) ||
        !array_fits(p, p->names_at, p->names_bytes, 1, 1))
        return "arrays";
    return NULL;
}

static bool run_fits(uint32_t first, uint32_t count, uint32_t total)
{
    return first <= total && count <= total - first;
}

/* Texts are used as C strings. */
static bool name_fits(const struct layout_view *v, uint32_t at, uint32_t bytes)
{
    return at < v->page->names_bytes && bytes < v->page->names_bytes - at &&
           v->names[at + bytes] == 0 && !memchr(v->names + at, 0, bytes);
}

/* Consecutive, without gaps, in flat order: then no two overlap. */
static const char *check_buckets(const struct layout_view *v)
{
    uint64_t offset = 0;
    uint32_t pieces = 0;

    for (uint32_t b = 0; b < v->page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &v->buckets[b];

        if (bucket->offset != offset || bucket->padded_numel > v->page->max_bucket_numel ||
            bucket->numel > bucket->padded_numel || bucket->numel == 0 ||
            bucket->padded_numel % v->page->world != 0)
            return "a bucket's size";
        if (bucket->pieces == 0 || bucket->first_piece != pieces ||
            !run_fits(pieces, bucket->pieces, v->page->pieces))
            return "a bucket's pieces";
        if (bucket->fetch_unit != UINT32_MAX && bucket->fetch_unit >= v->page->fetch_units)
            return "a bucket's fetch unit";
        offset += bucket->padded_numel; /* each <= NUMEL_MAX, and checked against it below */
        if (offset > v->page->padded_numel)
            return "the sum of buckets";
        pieces += bucket->pieces;
    }
    return offset == v->page->padded_numel && pieces == v->page->pieces ? NULL
                                                                        : "the sum of buckets";
}

/* A piece lies in the bucket that lists it and in the parameter that lists it, and says so. */
static const char *check_pieces(const struct layout_view *v)
{
    for (uint32_t b = 0; b < v->page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &v->buckets[b];

        for (uint32_t i = 0; i < bucket->pieces; i++) {
            const struct gw_layout_piece *piece = &v->pieces[bucket->first_piece + i];

            if (piece->bucket != b || piece->param >= v->page->params || piece->numel == 0)
                return "a piece";
            if (piece->bucket_offset > bucket->numel ||
                piece->numel > bucket->numel - piece->bucket_offset)
                return "a piece's place in its bucket";
        }
    }
    return NULL;
}

/* Its pieces, one after the other, are exactly its flat range: the view of a parameter is one
 * contiguous array. */
static const char *check_param(const struct layout_view *v, uint32_t index)
{
    const struct gw_layout_param *param = &v->params[index];
    uint64_t at = 0;

    if (param->numel > v->page->numel || param->unit >= v->page->units ||
        !run_fits(param->first_piece, param->pieces, v->page->pieces))
        return "a parameter";
    if (!name_fits(v, param->name_at, param->name_bytes))
        return "a parameter's name";
    if (param->offset > v->page->padded_numel ||
        param->numel > v->page->padded_numel - param->offset)
        return "a parameter's place";
    for (uint32_t i = 0; i < param->pieces; i++) {
        const struct gw_layout_piece *piece = &v->pieces[param->first_piece + i];

        if (piece->param != index || piece->param_offset != at ||
            piece->numel > param->numel - at ||
            v->buckets[piece->bucket].offset + piece->bucket_offset != param->offset + at)
            return "a parameter's pieces";
        at += piece->numel;
    }
    return at == param->numel ? NULL : "a parameter's pieces";
}

static const char *check_params(const struct layout_view *v)
{
    uint64_t numel = 0;

    for (uint32_t i = 0; i < v->page->params; i++) {
        const char *what = check_param(v, i);

        if (what)
            return what;
        numel += v->params[i].numel; /* at most 2^20 of at most 2^58: no wrap counts as equal */
        if (numel > v->page->numel)
            return "the sum of parameters";
    }
    return numel == v->page->numel ? NULL : "the sum of parameters";
}

/* Both lists are runs that cover what they are runs of. */
static const char *check_units(const struct layout_view *v)
{
    uint32_t params = 0, units = 0;

    for (uint32_t u = 0; u < v->page->units; u++) {
        const struct gw_layout_unit *unit = &v->units[u];

        if (unit->first_param != params || unit->params == 0 ||
            !run_fits(params, unit->params, v->page->params) ||
            !run_fits(unit->first_bucket, unit->buckets, v->page->buckets) ||
            unit->fetch_unit >= v->page->fetch_units ||
            !name_fits(v, unit->name_at, unit->name_bytes))
            return "a unit";
        for (uint32_t i = 0; i < unit->params; i++) {
            if (v->params[params + i].unit != u)
                return "a unit's parameters";
        }
        params += unit->params;
    }
    for (uint32_t f = 0; f < v->page->fetch_units; f++) {
        const struct gw_layout_fetch_unit *fetch = &v->fetch_units[f];

        if (fetch->first_unit != units || fetch->units == 0 ||
            !run_fits(units, fetch->units, v->page->units) ||
            !run_fits(fetch->first_bucket, fetch->buckets, v->page->buckets) ||
            fetch->offset > v->page->padded_numel ||
            fetch->padded_numel > v->page->padded_numel - fetch->offset)
            return "a fetch unit";
        units += fetch->units;
    }
    return params == v->page->params && units == v->page->units ? NULL : "the sum of units";
}

/* Stage 3: a unit lies inside its fetch unit, so that pool offsets stay inside the pool. */
static const char *check_nesting(const struct layout_view *v)
{
    for (uint32_t u = 0; u < v->page->units && v->page->stage == 3; u++) {
        const struct gw_layout_fetch_unit *fetch = &v->fetch_units[v->units[u].fetch_unit];
        uint64_t offset = 0, numel = 0;

        layout_view_unit(v, u, &offset, &numel);
        if (numel > 0 && (offset < fetch->offset || offset - fetch->offset > fetch->padded_numel ||
                          numel > fetch->padded_numel - (offset - fetch->offset)))
            return "a unit's place in its fetch unit";
        if (fetch->padded_numel > v->page->max_fetch_numel)
            return "the largest fetch unit";
    }
    return NULL;
}

int layout_view(const void *copy, size_t bytes, struct layout_view *ret_view, const char **ret_what)
{
    const struct gw_layout_page *page = copy;
    const char *at = copy;
    struct layout_view v = {.page = page};

    *ret_what = bytes < sizeof(*page) ? "size" : check_header(page, bytes);
    if (*ret_what)
        return GW_E_PROTOCOL;
    v.params = (const void *)(at + page->params_at);
    v.pieces = (const void *)(at + page->pieces_at);
    v.buckets = (const void *)(at + page->buckets_at);
    v.units = (const void *)(at + page->units_at);
    v.fetch_units = (const void *)(at + page->fetch_units_at);
    v.names = at + page->names_at;
    *ret_what = check_buckets(&v);
    if (!*ret_what)
        *ret_what = check_pieces(&v);
    if (!*ret_what)
        *ret_what = check_params(&v);
    if (!*ret_what)
        *ret_what = check_units(&v);
    if (!*ret_what)
        *ret_what = check_nesting(&v);
    if (*ret_what)
        return GW_E_PROTOCOL;
    *ret_view = v;
    return 0;
}

void layout_view_unit(const struct layout_view *view, uint32_t unit, uint64_t *ret_offset,
                      uint64_t *ret_numel)
{
    const struct gw_layout_unit *u = &view->units[unit];
    uint64_t first = UINT64_MAX, end = 0;

    for (uint32_t i = 0; i < u->params; i++) {
        const struct gw_layout_param *param = &view->params[u->first_param + i];

        if (param->numel == 0)
            continue;
        if (param->offset < first)
            first = param->offset;
        if (param->offset + param->numel > end)
            end = param->offset + param->numel;
    }
    *ret_offset = end ? first : 0;
    *ret_numel = end ? end - first : 0;
}
