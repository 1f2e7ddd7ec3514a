/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Full check of a layout page: the client indexes memory with it, and place.c adds up its sizes, so
 * a damaged page must fail here and never later. Pure; any thread.
 */
#include "client/lib/layout_view.h"

#include <stdbool.h>
#include <string.h>

#include "daemon/base/ranks.h"
#include "gradwire/errors.h"
#include "proto/limits.h"

#define NUMEL_MAX (UINT64_MAX / 64) /* keeps every sum and byte count below 2^64 */

/* ---- header ---------------------------------------------------------------------------------- */

/* Division, not multiplication: count is not to be trusted yet. */
static bool array_fits(const struct gw_layout_page *page, uint64_t at, uint64_t count,
                       uint64_t item_bytes, uint64_t align)
{
    return at >= sizeof(*page) && at % align == 0 && at <= page->size_bytes &&
           count <= (page->size_bytes - at) / item_bytes;
}

static const char *check_arrays(const struct gw_layout_page *p)
{
    if (!array_fits(p, p->params_at, p->params, sizeof(struct gw_layout_param), 8) ||
        !array_fits(p, p->pieces_at, p->pieces, sizeof(struct gw_layout_piece), 8) ||
        !array_fits(p, p->buckets_at, p->buckets, sizeof(struct gw_layout_bucket), 8) ||
        !array_fits(p, p->units_at, p->units, sizeof(struct gw_layout_unit), 4) ||
        !array_fits(p, p->fetch_units_at, p->fetch_units, sizeof(struct gw_layout_fetch_unit), 8) ||
        !array_fits(p, p->groups_at, p->groups, sizeof(struct gw_layout_group), 8) ||
        !array_fits(p, p->members_at, p->members, sizeof(uint32_t), 4) ||
        !array_fits(p, p->names_at, p->names_bytes, 1, 1))
        return "arrays";
    return NULL;
}

static const char *check_header(const struct gw_layout_page *p, size_t bytes)
{
    uint32_t align = p->shard_align_bytes;

    if (p->magic != GW_LAYOUT_MAGIC || p->version != GW_LAYOUT_VERSION)
        return "magic or version";
    if (p->size_bytes < sizeof(*p) || p->size_bytes > bytes)
        return "size";
    if (p->stage > 3 || p->world == 0 || p->world > GW_RANKS_MAX)
        return "stage or world";
    if (align < gw_dtype_bytes(GW_DTYPE_FP32) || (align & (align - 1)))
        return "alignment";
    if (p->persistent > (p->stage == 3))
        return "persistent parameters";
    if (p->params > GW_PARAMS_MAX || p->buckets > GW_BUCKETS_MAX || p->units > p->params ||
        p->fetch_units > p->units + p->persistent || p->groups == 0 || p->groups > GW_GROUPS_MAX)
        return "counts";
    if (p->numel > NUMEL_MAX || p->padded_numel > NUMEL_MAX)
        return "sizes";
    return check_arrays(p);
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

/* ---- groups ---------------------------------------------------------------------------------- */

/* Ranks of the job, each once. Group 0: all of them, in order. */
static const char *check_members(const struct layout_view *v, uint32_t g)
{
    const struct gw_layout_group *group = &v->groups[g];
    struct ranks seen = {{0}};

    for (uint32_t i = 0; i < group->members; i++) {
        uint32_t rank = v->members[group->first_member + i];

        if (rank >= v->page->world || ranks_has(&seen, rank) || (g == 0 && rank != i))
            return "a group's members";
        ranks_add(&seen, rank);
    }
    return NULL;
}

static const char *check_groups(const struct layout_view *v)
{
    uint32_t members = 0;

    for (uint32_t g = 0; g < v->page->groups; g++) {
        const struct gw_layout_group *group = &v->groups[g];
        const char *what;

        if (group->first_member != members || group->members == 0 ||
            !run_fits(members, group->members, v->page->members) ||
            (g == 0 && group->members != v->page->world))
            return "a group";
        if (group->shard_ranks == 0 || group->members % group->shard_ranks != 0 ||
            (v->page->stage == 0 && group->shard_ranks != group->members))
            return "a group's shard_ranks";
        what = check_members(v, g);
        if (what)
            return what;
        members += group->members;
    }
    return members == v->page->members ? NULL : "the sum of groups";
}

/* ---- buckets --------------------------------------------------------------------------------- */

static bool dtypes_fit(const struct gw_layout_bucket *bucket)
{
    return bucket->dtype < GW_DTYPES && bucket->grad_dtype < GW_DTYPES &&
           (bucket->accum_dtype == GW_DTYPE_FP32 || bucket->accum_dtype == bucket->grad_dtype);
}

/* Whole slices, each a multiple of the alignment in every dtype. */
static bool padding_fits(const struct layout_view *v, const struct gw_layout_bucket *bucket)
{
    uint32_t members = v->groups[bucket->group].members;
    uint32_t a = gw_dtype_bytes(bucket->dtype), b = gw_dtype_bytes(bucket->grad_dtype);

    return bucket->padded_numel % members == 0 &&
           bucket->padded_numel / members * (a < b ? a : b) % v->page->shard_align_bytes == 0;
}

/* Consecutive, without gaps, in flat order: then no two overlap. */
static const char *check_buckets(const struct layout_view *v)
{
    uint64_t offset = 0, largest = 0;
    uint32_t pieces = 0;

    for (uint32_t b = 0; b < v->page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &v->buckets[b];
        uint64_t bytes;

        if (bucket->group >= v->page->groups || !dtypes_fit(bucket))
            return "a bucket's group or dtypes";
        if (bucket->offset != offset || bucket->padded_numel > v->page->padded_numel - offset ||
            bucket->numel > bucket->padded_numel || bucket->numel == 0 || !padding_fits(v, bucket))
            return "a bucket's size";
        if (bucket->pieces == 0 || bucket->first_piece != pieces ||
            !run_fits(pieces, bucket->pieces, v->page->pieces))
            return "a bucket's pieces";
        if (v->page->stage == 3 ? bucket->fetch_unit >= v->page->fetch_units
                                : bucket->fetch_unit != UINT32_MAX)
            return "a bucket's fetch unit";
        bytes = bucket->padded_numel * gw_dtype_bytes(bucket->grad_dtype);
        largest = bytes > largest ? bytes : largest;
        offset += bucket->padded_numel;
        pieces += bucket->pieces;
    }
    if (largest != v->page->max_bucket_bytes)
        return "the largest bucket";
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

/* ---- parameters ------------------------------------------------------------------------------ */

/* A bucket holds one class; stage 3: of its unit's fetch unit, or of the persistent one. */
static bool belongs(const struct layout_view *v, const struct gw_layout_param *param,
                    const struct gw_layout_bucket *bucket)
{
    uint32_t fetch_unit = param->persistent ? 0 : v->units[param->unit].fetch_unit;

    return bucket->group == param->group && bucket->dtype == param->dtype &&
           bucket->grad_dtype == param->grad_dtype &&
           (v->page->stage < 3 || bucket->fetch_unit == fetch_unit);
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
    if (param->group >= v->page->groups || param->dtype >= GW_DTYPES ||
        param->grad_dtype >= GW_DTYPES)
        return "a parameter's group or dtypes";
    if (param->persistent > v->page->persistent)
        return "a parameter's persistence";
    if (!name_fits(v, param->name_at, param->name_bytes))
        return "a parameter's name";
    if (param->offset > v->page->padded_numel ||
        param->numel > v->page->padded_numel - param->offset)
        return "a parameter's place";
    for (uint32_t i = 0; i < param->pieces; i++) {
        const struct gw_layout_piece *piece = &v->pieces[param->first_piece + i];
        const struct gw_layout_bucket *bucket = &v->buckets[piece->bucket];

        if (piece->param != index || piece->param_offset != at ||
            piece->numel > param->numel - at || !belongs(v, param, bucket) ||
            bucket->offset + piece->bucket_offset != param->offset + at)
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

/* ---- units ----------------------------------------------------------------------------------- */

/* The range of buckets is that of its parameters, the persistent ones apart. */
static const char *check_unit_buckets(const struct layout_view *v,
                                      const struct gw_layout_unit *unit)
{
    uint32_t first = UINT32_MAX, end = 0;
    bool persistent = false;

    for (uint32_t p = unit->first_param; p < unit->first_param + unit->params; p++) {
        const struct gw_layout_param *param = &v->params[p];
        uint32_t from, to;

        persistent = persistent || param->persistent;
        if (param->pieces == 0 || param->persistent)
            continue;
        from = v->pieces[param->first_piece].bucket;
        to = v->pieces[param->first_piece + param->pieces - 1].bucket + 1;
        first = from < first ? from : first;
        end = to > end ? to : end;
    }
    if (unit->persistent != persistent)
        return "a unit's persistence";
    if (unit->buckets != (end ? end - first : 0) || (end && unit->first_bucket != first) ||
        unit->first_bucket > v->page->buckets)
        return "a unit's buckets";
    return NULL;
}

/* Runs that cover all parameters. Whose fetch unit: below. Before the parameters are looked at. */
static const char *check_units(const struct layout_view *v)
{
    uint32_t params = 0;

    for (uint32_t u = 0; u < v->page->units; u++) {
        const struct gw_layout_unit *unit = &v->units[u];

        if (unit->first_param != params || unit->params == 0 ||
            !run_fits(params, unit->params, v->page->params) ||
            !name_fits(v, unit->name_at, unit->name_bytes))
            return "a unit";
        for (uint32_t i = 0; i < unit->params; i++) {
            if (v->params[params + i].unit != u)
                return "a unit's parameters";
        }
        params += unit->params;
    }
    return params == v->page->params ? NULL : "the sum of units";
}

/* A unit lies in the fetch unit it names; in stage 3 it names none if nothing of it is gathered. */
static const char *check_unit(const struct layout_view *v, uint32_t u)
{
    const struct gw_layout_unit *unit = &v->units[u];
    const struct gw_layout_fetch_unit *fetch;
    const char *what = check_unit_buckets(v, unit);

    if (what)
        return what;
    if (unit->fetch_unit == UINT32_MAX)
        return v->page->stage == 3 && unit->buckets == 0 ? NULL : "a unit without fetch unit";
    if (unit->fetch_unit < v->page->persistent || unit->fetch_unit >= v->page->fetch_units ||
        (v->page->stage == 3 && unit->buckets == 0))
        return "a unit's fetch unit";
    fetch = &v->fetch_units[unit->fetch_unit];
    return u >= fetch->first_unit && u - fetch->first_unit < fetch->units &&
                   unit->first_bucket >= fetch->first_bucket &&
                   unit->first_bucket - fetch->first_bucket <= fetch->buckets &&
                   unit->buckets <= fetch->buckets - (unit->first_bucket - fetch->first_bucket)
               ? NULL
               : "a unit's place in its fetch unit";
}

/* Runs of units one after the other; stage 3: and of all buckets. */
static const char *check_fetch_unit(const struct layout_view *v, uint32_t f, uint32_t first_unit,
                                    uint32_t first_bucket)
{
    const struct gw_layout_fetch_unit *fetch = &v->fetch_units[f];
    uint64_t numel = 0, padded_numel = 0;
    bool units = f > 0 || !v->page->persistent; /* else of persistent parameters */

    if (!run_fits(fetch->first_unit, fetch->units, v->page->units) ||
        (fetch->units > 0) != units || fetch->first_unit < first_unit)
        return "a fetch unit";
    if (!run_fits(fetch->first_bucket, fetch->buckets, v->page->buckets))
        return "a fetch unit's buckets";
    if (v->page->stage < 3)
        return fetch->units == 1 && fetch->first_unit == f ? NULL : "a fetch unit";
    for (uint32_t i = 0; i < fetch->buckets; i++) {
        const struct gw_layout_bucket *bucket = &v->buckets[fetch->first_bucket + i];

        if (bucket->fetch_unit != f)
            return "a fetch unit's buckets";
        numel += bucket->numel;
        padded_numel += bucket->padded_numel;
    }
    if (fetch->first_bucket != first_bucket || fetch->buckets == 0 ||
        fetch->offset != v->buckets[first_bucket].offset || fetch->numel != numel ||
        fetch->padded_numel != padded_numel)
        return "a fetch unit's size";
    return NULL;
}

static const char *check_fetch_units(const struct layout_view *v)
{
    uint32_t units = 0, buckets = 0;

    if (v->page->fetch_units < v->page->persistent ||
        (v->page->stage < 3 && v->page->fetch_units != v->page->units))
        return "the number of fetch units";
    for (uint32_t f = 0; f < v->page->fetch_units; f++) {
        const char *what = check_fetch_unit(v, f, units, buckets);

        if (what)
            return what;
        units = v->fetch_units[f].first_unit + v->fetch_units[f].units;
        buckets += v->page->stage == 3 ? v->fetch_units[f].buckets : 0;
    }
    if (v->page->stage == 3 && buckets != v->page->buckets)
        return "the sum of fetch units";
    for (uint32_t u = 0; u < v->page->units; u++) {
        const char *what = check_unit(v, u);

        if (what)
            return what;
    }
    return NULL;
}

/* ---- the page -------------------------------------------------------------------------------- */

int layout_view(const void *copy, size_t bytes, struct layout_view *ret_view, const char **ret_what)
{
    /* Each looks only at what those before it found sound. */
    static const char *(*const checks[])(const struct layout_view *v) = {
        check_groups, check_buckets, check_pieces, check_units, check_params, check_fetch_units};
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
    v.groups = (const void *)(at + page->groups_at);
    v.members = (const void *)(at + page->members_at);
    v.names = at + page->names_at;
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        *ret_what = checks[i](&v);
        if (*ret_what)
            return GW_E_PROTOCOL;
    }
    *ret_view = v;
    return 0;
}
