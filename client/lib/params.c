/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter list before the seal, and reading the layout after it. Any thread. */
#include <stdlib.h>
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/options.h"
#include "client/lib/zero.h"
#include "daemon/base/ranks.h"

void params_free(struct params *params)
{
    if (!params)
        return;
    for (uint32_t i = 0; i < params->count; i++) {
        free(params->entries[i].name);
        free(params->entries[i].unit);
    }
    free(params->entries);
    free(params->groups);
    free(params);
}

/* The engine checks names too; here the caller learns of a bad one at the call that gave it, and a
 * page of parameters (seal.c) is known to fit into a frame. */
static int check_name(const char *name, const char *what, size_t min)
{
    size_t bytes = name ? strlen(name) : 0;

    if (bytes < min)
        return err_set(GW_E_INVALID, "a parameter needs a %s", what);
    if (bytes > GW_NAME_MAX)
        return err_set(GW_E_INVALID, "the %s %.40s... has %zu bytes, at most %u are allowed", what,
                       name, bytes, GW_NAME_MAX);
    return 0;
}

/* Room for one more. Lock held. */
static int grow(gw_job *job)
{
    struct params *params = job->params;
    struct params_entry *entries;
    uint32_t room;

    if (!params)
        params = job->params = calloc(1, sizeof(*params));
    if (!params)
        return err_set(GW_E_NOMEM, "no memory for the list of parameters");
    if (params->frozen)
        return err_set(GW_E_STATE, "gw_seal has been called; parameters must be added before it");
    if (params->count == GW_PARAMS_MAX)
        return err_set(GW_E_LIMIT, "a job has at most %u parameters", GW_PARAMS_MAX);
    if (params->count < params->room)
        return 0;
    room = params->room ? params->room * 2 : 64;
    entries = realloc(params->entries, room * sizeof(*entries));
    if (!entries)
        return err_set(GW_E_NOMEM, "no memory for the list of parameters");
    params->entries = entries;
    params->room = room;
    return 0;
}

static int check_options(const char *name, const struct gw_param_options *options)
{
    if (options->dtype >= GW_DTYPES || options->grad_dtype >= GW_DTYPES)
        return err_set(GW_E_INVALID,
                       "parameter %s has dtype %u and gradient dtype %u; there are fp32 (0), fp16 "
                       "(1) and bf16 (2)",
                       name, options->dtype, options->grad_dtype);
    return options->unit ? check_name(options->unit, "unit name", 0) : 0;
}

/* Room for one more of the group. Lock held. */
static int check_group(const gw_job *job, const char *name, uint32_t group)
{
    uint32_t groups = 1 + (job->params ? job->params->group_count : 0);

    if (group < groups)
        return 0;
    return err_set(GW_E_NOT_FOUND,
                   "parameter %s is of group %u, but there are %u: gw_param_group_add makes one",
                   name, group, groups);
}

/* Nothing is sent before gw_seal: so adding never blocks, and a list of any length is one agreement
 * of all ranks. */
int gw_param_add(gw_job *job, const char *name, uint64_t numel,
                 const struct gw_param_options *options, uint32_t *ret_param)
{
    struct gw_param_options o = {0};
    struct params_entry entry = {.numel = numel};
    int r = job_check(job);

    if (r == 0 && options)
        r = options_take(&o, sizeof(o), options, sizeof(size_t), "gw_param_options");
    if (r == 0)
        r = check_name(name, "name", 1);
    if (r == 0)
        r = check_options(name, &o);
    if (r < 0)
        return r;
    entry.name = strdup(name);
    entry.unit = strdup(o.unit ? o.unit : "");
    entry.dtype = o.dtype;
    entry.grad_dtype = o.grad_dtype;
    entry.group = o.group;
    pthread_mutex_lock(&job->lock);
    r = entry.name && entry.unit ? grow(job)
                                 : err_set(GW_E_NOMEM, "no memory for parameter %s", name);
    if (r == 0)
        r = check_group(job, name, o.group);
    if (r == 0) {
        if (ret_param)
            *ret_param = job->params->count;
        job->params->entries[job->params->count++] = entry;
    }
    pthread_mutex_unlock(&job->lock);
    if (r < 0) {
        free(entry.name);
        free(entry.unit);
    }
    return r;
}

/* The engine checks groups when they are registered; here the caller learns at the call. */
static int check_ranks(const gw_job *job, const uint32_t *ranks, uint32_t count,
                       uint32_t shard_ranks)
{
    struct ranks seen = {{0}};

    if (!ranks || count == 0 || count > job->world)
        return err_set(GW_E_INVALID, "a group has 1 to %u ranks, not %u", job->world, count);
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= job->world || ranks_has(&seen, ranks[i]))
            return err_set(GW_E_INVALID, "rank %u is %s", ranks[i],
                           ranks[i] >= job->world ? "not in the job" : "in the group twice");
        ranks_add(&seen, ranks[i]);
    }
    if (shard_ranks > 0 && count % shard_ranks != 0)
        return err_set(GW_E_INVALID, "shard_ranks %u does not divide a group of %u ranks",
                       shard_ranks, count);
    return 0;
}

/* Lock held. */
static int add_group(gw_job *job, const struct params_group *group, uint32_t *ret_group)
{
    struct params_group *groups;
    struct params *params;
    int r = grow(job);

    if (r < 0)
        return r;
    params = job->params;
    if (params->group_count + 1 >= GW_GROUPS_MAX)
        return err_set(GW_E_LIMIT, "a job has at most %u groups of parameters", GW_GROUPS_MAX);
    groups = realloc(params->groups, (params->group_count + 1) * sizeof(*groups));
    if (!groups)
        return err_set(GW_E_NOMEM, "no memory for the list of groups");
    params->groups = groups;
    groups[params->group_count++] = *group;
    *ret_group = params->group_count;
    return 0;
}

int gw_param_group_add(gw_job *job, const uint32_t *ranks, uint32_t count, uint32_t shard_ranks,
                       uint32_t *ret_group)
{
    struct params_group group = {.count = count, .shard_ranks = shard_ranks};
    int r = job_check(job);

    if (r == 0 && !ret_group)
        r = err_set(GW_E_INVALID, "ret_group is NULL");
    if (r == 0)
        r = check_ranks(job, ranks, count, shard_ranks);
    if (r < 0)
        return r;
    memcpy(group.ranks, ranks, count * sizeof(*ranks));
    pthread_mutex_lock(&job->lock);
    r = add_group(job, &group, ret_group);
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* How calls of the ZeRO layer begin. `zero` is published once, whole, by gw_seal. */
int zero_sealed(const gw_job *job, struct zero **ret_zero)
{
    int r = job_enter(job);

    if (r < 0)
        return r;
    *ret_zero = atomic_load_explicit(&job->zero, memory_order_acquire);
    return *ret_zero ? 0 : err_set(GW_E_STATE, "the job is not sealed; call gw_seal first");
}

int zero_enter(gw_job *job, struct zero **ret_zero)
{
    int r = job_check(job);

    return r < 0 ? r : zero_sealed(job, ret_zero);
}

/* The layout may be read after a failure too: its copy is our own memory. */
static int layout_enter(const gw_job *job, const void *ret, struct zero **ret_zero)
{
    int r = zero_sealed(job, ret_zero);

    if (r == 0 && !ret)
        r = err_set(GW_E_INVALID, "the place for the result is NULL");
    return r;
}

const char *zero_param_name(const struct zero *zero, uint32_t param)
{
    return zero->view.names + zero->view.params[param].name_at;
}

int zero_param_check(const struct zero *zero, uint32_t param)
{
    if (param >= zero->page->params)
        return err_set(GW_E_INVALID, "there is no parameter %u; %u were added", param,
                       zero->page->params);
    return 0;
}

int zero_param_held(const gw_job *job, const struct zero *zero, uint32_t param)
{
    uint32_t group;
    int r = zero_param_check(zero, param);

    if (r < 0)
        return r;
    group = zero->view.params[param].group;
    if (group == 0 || layout_page_position(zero->page, group, job->rank) != UINT32_MAX)
        return 0;
    return err_set(GW_E_NOT_FOUND,
                   "rank %u is not in group %u of parameter %s and holds none of it", job->rank,
                   group, zero_param_name(zero, param));
}

/* The calls below read our checked copy of the layout page: no lock, no message. */
int gw_layout(gw_job *job, struct gw_layout_info *ret_info)
{
    struct zero *zero = NULL;
    int r = layout_enter(job, ret_info, &zero);

    if (r < 0)
        return r;
    *ret_info = (struct gw_layout_info){
        .buckets = zero->page->buckets,
        .units = zero->page->units,
        .fetch_units = zero->page->fetch_units,
        .params = zero->page->params,
        .numel = zero->page->numel,
        .padded_numel = zero->page->padded_numel,
    };
    memcpy(ret_info->hash, zero->hash, sizeof(ret_info->hash));
    return 0;
}

int gw_layout_bucket(gw_job *job, uint32_t bucket, struct gw_bucket_info *ret_info)
{
    const struct gw_layout_bucket *b;
    struct zero *zero = NULL;
    int r = layout_enter(job, ret_info, &zero);

    if (r < 0)
        return r;
    if (bucket >= zero->page->buckets)
        return err_set(GW_E_INVALID, "there is no bucket %u; the layout has %u", bucket,
                       zero->page->buckets);
    b = &zero->view.buckets[bucket];
    *ret_info = (struct gw_bucket_info){
        .offset = b->offset,
        .numel = b->numel,
        .padded_numel = b->padded_numel,
        .fetch_unit = b->fetch_unit,
        .group = b->group,
        .members = layout_page_groups(zero->page)[b->group].members,
        .shard_ranks = layout_page_groups(zero->page)[b->group].shard_ranks,
        .dtype = b->dtype,
        .grad_dtype = b->grad_dtype,
        .accum_dtype = b->accum_dtype,
    };
    return 0;
}

int gw_param_pieces(gw_job *job, uint32_t param, uint32_t *ret_count)
{
    struct zero *zero = NULL;
    int r = layout_enter(job, ret_count, &zero);

    if (r == 0)
        r = zero_param_check(zero, param);
    if (r == 0)
        *ret_count = zero->view.params[param].pieces;
    return r;
}

int gw_param_piece(gw_job *job, uint32_t param, uint32_t piece, struct gw_piece_info *ret_info)
{
    struct zero *zero = NULL;
    const struct gw_layout_piece *p;
    int r = layout_enter(job, ret_info, &zero);

    if (r == 0)
        r = zero_param_check(zero, param);
    if (r < 0)
        return r;
    if (piece >= zero->view.params[param].pieces)
        return err_set(GW_E_INVALID, "parameter %s has %u pieces, not a piece %u",
                       zero_param_name(zero, param), zero->view.params[param].pieces, piece);
    p = &zero->view.pieces[zero->view.params[param].first_piece + piece];
    *ret_info = (struct gw_piece_info){.bucket = p->bucket,
                                       .bucket_offset = p->bucket_offset,
                                       .param_offset = p->param_offset,
                                       .numel = p->numel};
    return 0;
}

int gw_param_unit(gw_job *job, uint32_t param, uint32_t *ret_unit)
{
    struct zero *zero = NULL;
    int r = layout_enter(job, ret_unit, &zero);

    if (r == 0)
        r = zero_param_check(zero, param);
    if (r == 0)
        *ret_unit = zero->view.params[param].unit;
    return r;
}
