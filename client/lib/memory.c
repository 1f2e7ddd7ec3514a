/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting and mapping what the seal gave the rank (proto/place.h says what and where), and the
 * shard: spans and arrays. Set-up calls block to a deadline; nothing here holds the job's lock
 * while waiting.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/guard.h"
#include "client/lib/zero.h"

/* A device has no read-only mappings that every driver grants: a view is the mapping itself. */
static int map_on_device(gw_job *job, const struct reply *reply, uint64_t bytes, const char *what,
                         struct map *view, struct map *map)
{
    struct map *owner = map ? map : view;
    int r = 0;

    if (!owner->base)
        r = map_device(job->device, reply->fds[0], bytes, reply->msg->u.arena.mapped_bytes, what,
                       owner);
    if (r == 0 && view && view != owner) {
        *view = *owner;
        view->mapped_bytes = 0;
    }
    return r;
}

static int map_arena(gw_job *job, const struct reply *reply, uint64_t bytes, const char *what,
                     struct map *view, struct map *map)
{
    int r = 0;

    if (reply->msg->u.arena.device != GW_DEVICE_HOST) {
        if (!job->device || job->device->ops->kind != reply->msg->u.arena.device)
            return err_set(GW_E_PROTOCOL, "the engine's %s lie on a device of another kind", what);
        return map_on_device(job, reply, bytes, what, view, map);
    }
    if (view && !view->base)
        r = map_new(reply->fds[0], bytes, PROT_READ, what, view);
    if (r == 0 && map && !map->base)
        r = map_new(reply->fds[0], bytes, PROT_READ | PROT_WRITE, what, map);
    return r;
}

int memory_get(gw_job *job, enum gw_arena_kind kind, uint32_t index, uint64_t bytes,
               const char *what, int64_t deadline, struct map *view, struct map *map)
{
    struct reply reply = {0};
    struct wire_msg msg;
    int r;

    if (bytes == 0 || ((!view || view->base) && (!map || map->base)))
        return 0;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_ARENA_GET;
    msg.u.arena_get.kind = kind;
    msg.u.arena_get.index = index;
    r = job_request(job, &msg, WIRE_ARENA, CHANNEL_PARK_DRAIN, deadline, &reply);
    if (r < 0)
        return err_prefix(r, "memory for the %s", what);
    if (reply.fd_count != 1 || reply.msg->u.arena.bytes < bytes)
        r = err_set(GW_E_PROTOCOL,
                    "the engine's %s come with %u descriptors and %llu bytes, "
                    "expected 1 and %llu",
                    what, reply.fd_count, (unsigned long long)reply.msg->u.arena.bytes,
                    (unsigned long long)bytes);
    if (r == 0)
        r = map_arena(job, &reply, bytes, what, view, map);
    reply_free(&job->channel, &reply);
    return r;
}

/* The pool's size is the engine's to choose: persistent parameters, budget and the largest unit. */
static int get_pool(gw_job *job, struct zero *zero, int64_t deadline)
{
    uint64_t bytes = place_fetch_bytes_max(zero->place);
    struct reply reply = {0};
    struct wire_msg msg;
    int r;

    if (zero->page->persistent)
        bytes += place_fetch_bytes(zero->place, 0);
    if (zero->pool.base || bytes == 0)
        return 0;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_ARENA_GET;
    msg.u.arena_get.kind = GW_ARENA_POOL;
    r = job_request(job, &msg, WIRE_ARENA, CHANNEL_PARK_DRAIN, deadline, &reply);
    if (r < 0)
        return err_prefix(r, "memory for the gather pool");
    if (reply.fd_count != 1 || reply.msg->u.arena.bytes < bytes)
        r = err_set(GW_E_PROTOCOL, "the engine's gather pool is too small");
    if (r == 0)
        r = map_arena(job, &reply, reply.msg->u.arena.bytes, "gather pool", &zero->pool, NULL);
    reply_free(&job->channel, &reply);
    return r;
}

static uint8_t *reduced_base(const struct zero *zero, uint8_t kind)
{
    return kind == GW_ARENA_GRADS ? zero->grads_view.base
           : kind == GW_ARENA_ACC ? zero->acc.base
                                  : zero->shard_grads.base;
}

/* The rank's slice of a bucket (stage 0: all of it). */
static void fill_span(const struct zero *zero, uint32_t bucket, uint32_t slice,
                      struct gw_span *span)
{
    const struct gw_layout_bucket *b = &zero->view.buckets[bucket];
    struct place_ref master = place_master(zero->place, bucket, slice);
    struct place_ref reduced = place_reduced(zero->place, bucket, slice);
    const struct map *params = master.kind == GW_ARENA_MASTER ? &zero->master : &zero->params;

    *span = (struct gw_span){
        .bucket = bucket,
        .numel = place_span_numel(zero->place, bucket),
        .bucket_offset =
            zero->options.stage == 0 ? 0 : slice * place_slice_numel(zero->place, bucket),
        .shard_offset = place_span_offset(zero->place, bucket),
        .params = (float *)(void *)(params->base + master.offset_bytes),
        .grads = reduced_base(zero, reduced.kind) + reduced.offset_bytes,
        .grads_dtype = reduced.dtype,
    };
    if (b->numel > span->bucket_offset)
        span->valid_numel = b->numel - span->bucket_offset;
    if (span->valid_numel > span->numel)
        span->valid_numel = span->numel;
}

static void fill_spans(const gw_job *job, struct zero *zero)
{
    const struct gw_layout_group *groups = layout_page_groups(zero->page);

    zero->span_count = 0;
    for (uint32_t b = 0; b < zero->page->buckets; b++) {
        uint32_t group = zero->view.buckets[b].group;
        uint32_t position = layout_page_position(zero->page, group, job->rank);

        zero->span_of[b] = UINT32_MAX;
        if (position == UINT32_MAX)
            continue;
        zero->span_of[b] = zero->span_count;
        fill_span(zero, b, position % groups[group].shard_ranks, &zero->spans[zero->span_count++]);
    }
}

/* view: a read-only, map: a writable mapping; either may be NULL. */
static int get(gw_job *job, struct zero *zero, enum gw_arena_kind kind, const char *what,
               int64_t deadline, struct map *view, struct map *map)
{
    uint64_t bytes = place_arena_bytes(zero->place, kind);

    return memory_get(job, kind, 0, bytes, what, deadline, view, map);
}

/* The view is a mapping of its own even of memory that is ours to write: a stray store through a
 * fetched pointer faults, as it would in a pool. */
static int get_params(gw_job *job, struct zero *zero, int64_t deadline)
{
    bool spans = zero->options.stage == 3 && !place_mapped(zero->place);
    int r;

    r = get(job, zero, GW_ARENA_MASTER, "master parameters", deadline, NULL, &zero->master);
    if (r < 0)
        return r;
    if (place_mapped(zero->place))
        return get(job, zero, GW_ARENA_SHARED_PARAMS, "shared parameters", deadline,
                   &zero->params_view, &zero->params);
    r = get(job, zero, GW_ARENA_PARAMS, spans ? "parameter shards" : "parameters", deadline,
            spans ? NULL : &zero->params_view, &zero->params);
    return r < 0 || !spans ? r : get_pool(job, zero, deadline);
}

static int get_gradients(gw_job *job, struct zero *zero, int64_t deadline)
{
    int r;

    r = get(job, zero, GW_ARENA_RING, "bucket buffers", deadline, NULL, &zero->ring);
    if (r == 0)
        r = get(job, zero, GW_ARENA_GRADS, "gradients", deadline, &zero->grads_view, &zero->grads);
    if (r == 0)
        r = get(job, zero, GW_ARENA_ACC, "gradient sums", deadline, &zero->acc, NULL);
    if (r == 0)
        r = get(job, zero, GW_ARENA_SHARD_GRADS, "gradient shards", deadline, &zero->shard_grads,
                NULL);
    return r;
}

/* Repeatable: what is mapped already is kept, so a seal that timed out goes on from there. */
int memory_map(gw_job *job, struct zero *zero, int64_t deadline)
{
    int r;

    r = get_params(job, zero, deadline);
    if (r == 0)
        r = get_gradients(job, zero, deadline);
    if (r < 0)
        return r;
    fill_spans(job, zero);
    guard_start(job, zero);
    return 0;
}

/* Fixed by the seal; the array lives as long as the job. */
int gw_shard_spans(gw_job *job, const struct gw_span **ret_spans, uint32_t *ret_count)
{
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r < 0)
        return r;
    if (!ret_spans || !ret_count)
        return err_set(GW_E_INVALID, "the place for the spans is NULL");
    *ret_spans = zero->spans;
    *ret_count = zero->span_count;
    return 0;
}

static struct zero_array *find_array(const struct zero *zero, const char *name)
{
    struct zero_array *array = zero->arrays;

    while (array && strcmp(array->name, name) != 0)
        array = array->next;
    return array;
}

/* Of a shard of no elements there is a handle alone: its dtype is the job's. */
static int make_array(gw_job *job, struct zero *zero, struct zero_array *array)
{
    int64_t deadline = clock_deadline(job->timeout_ns);
    uint64_t numel = place_shard_numel(zero->place);
    struct reply reply = {0};
    struct wire_msg msg;
    uint32_t index;
    int r;

    if (numel == 0)
        return 0;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_ARRAY_GET;
    memcpy(msg.u.array_get.name, array->name, sizeof(array->name));
    msg.u.array_get.dtype = array->dtype;
    r = job_request(job, &msg, WIRE_ARRAY_MADE, CHANNEL_PARK_DRAIN, deadline, &reply);
    if (r < 0)
        return r;
    index = reply.msg->u.array_made.index;
    if (reply.msg->u.array_made.numel != numel)
        r = err_set(GW_E_PROTOCOL, "it has %llu elements, the shard has %llu",
                    (unsigned long long)reply.msg->u.array_made.numel, (unsigned long long)numel);
    reply_free(&job->channel, &reply);
    if (r < 0)
        return r;
    return memory_get(job, GW_ARENA_ARRAY, index, numel * gw_dtype_bytes(array->dtype),
                      "shard array", deadline, NULL, &array->map);
}

/* Another thread may have been faster: then its array is the one. */
static struct zero_array *keep_array(gw_job *job, struct zero *zero, struct zero_array *made)
{
    struct zero_array *array;

    pthread_mutex_lock(&job->lock);
    array = find_array(zero, made->name);
    if (!array) {
        made->next = zero->arrays;
        array = zero->arrays = made;
    }
    pthread_mutex_unlock(&job->lock);
    if (array != made) {
        map_free(&made->map);
        free(made);
    }
    return array;
}

static int get_array(gw_job *job, struct zero *zero, const char *name, uint32_t dtype,
                     struct zero_array **ret_array)
{
    struct zero_array *made;
    int r;

    pthread_mutex_lock(&job->lock);
    *ret_array = find_array(zero, name);
    pthread_mutex_unlock(&job->lock);
    if (*ret_array)
        return (*ret_array)->dtype == dtype
                   ? 0
                   : err_set(GW_E_MISMATCH, "it was made with dtype %u and is asked for with %u",
                             (*ret_array)->dtype, dtype);
    made = calloc(1, sizeof(*made));
    if (!made)
        return err_set(GW_E_NOMEM, "no memory for its handle");
    memcpy(made->name, name, strlen(name));
    made->dtype = dtype;
    r = make_array(job, zero, made);
    if (r < 0)
        free(made);
    else
        *ret_array = keep_array(job, zero, made);
    return r;
}

int gw_shard_array(gw_job *job, const char *name, uint32_t dtype, void **ret_values,
                   uint64_t *ret_numel)
{
    static float nothing; /* for a shard of no elements: a pointer that may be kept */
    struct zero_array *array = NULL;
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r < 0)
        return r;
    if (!ret_values || !name || !name[0] || strlen(name) > GW_LABEL_MAX)
        return err_set(GW_E_INVALID, "%s",
                       ret_values ? "a shard array needs a name of 1 to 63 bytes"
                                  : "the place for the array is NULL");
    if (dtype >= GW_DTYPES)
        return err_set(GW_E_INVALID, "there is no dtype %u", dtype);
    r = get_array(job, zero, name, dtype, &array);
    if (r < 0)
        return err_prefix(r, "shard array %s", name);
    *ret_values = array->map.base ? (void *)array->map.base : &nothing;
    if (ret_numel)
        *ret_numel = place_shard_numel(zero->place);
    return 0;
}
