/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which memory a stage has, where each thing lies in it, and the shard: spans and arrays.
 * Set-up calls block to a deadline; nothing here holds the job's lock while waiting.
 *
 *                     parameters            gradients written to   reduced gradient read from
 *   stage 0           PARAMS                GRADS                  GRADS, ACC (shard, micro-steps)
 *   stage 1           PARAMS                GRADS                  GRADS, SHARD_GRADS (same)
 *   stage 2           PARAMS                RING (local: GRADS)    SHARD_GRADS
 *   stage 3 private   PARAMS (spans), POOL  RING (local: GRADS)    SHARD_GRADS
 *   stage 3 mapped    SHARED_PARAMS         RING (local: GRADS)    SHARD_GRADS
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

/* The pool's size is the engine's to choose: budget and the largest unit. */
static int get_pool(gw_job *job, struct zero *zero, int64_t deadline)
{
    struct reply reply = {0};
    struct wire_msg msg;
    int r;

    if (zero->pool.base || zero->page->max_fetch_numel == 0)
        return 0;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_ARENA_GET;
    msg.u.arena_get.kind = GW_ARENA_POOL;
    r = job_request(job, &msg, WIRE_ARENA, CHANNEL_PARK_DRAIN, deadline, &reply);
    if (r < 0)
        return err_prefix(r, "memory for the gather pool");
    if (reply.fd_count != 1 ||
        reply.msg->u.arena.bytes < zero->page->max_fetch_numel * sizeof(float))
        r = err_set(GW_E_PROTOCOL, "the engine's gather pool is too small");
    if (r == 0)
        r = map_arena(job, &reply, reply.msg->u.arena.bytes, "gather pool", &zero->pool, NULL);
    reply_free(&job->channel, &reply);
    return r;
}

/* One copy of the parameters for all local ranks, which is its own gather. */
static bool mapped(const struct zero *zero)
{
    return zero->options.stage == 3 && zero->options.gather == GW_GATHER_MAPPED;
}

/* Where the rank's reduced gradient lies: in the full order, or as spans one after the other. */
static const struct map *reduced(const struct zero *zero, bool *ret_full)
{
    bool sums = zero->options.accumulate == GW_ACCUMULATE_SHARD && zero->options.micro_steps > 1;

    *ret_full = zero->options.stage == 0 || (zero->options.stage == 1 && !sums);
    if (!*ret_full)
        return &zero->shard_grads;
    return zero->options.stage == 0 && sums ? &zero->acc : &zero->grads_view;
}

/* The rank's slice of each bucket (stage 0: all of it). */
static void fill_spans(const gw_job *job, struct zero *zero)
{
    bool full_params = zero->options.stage < 3 || mapped(zero), full_grads = false;
    const struct map *grads = reduced(zero, &full_grads);
    uint64_t shard = 0;

    for (uint32_t b = 0; b < zero->page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &zero->view.buckets[b];
        struct gw_span *span = &zero->spans[b];
        uint64_t parts = zero->options.stage == 0 ? 1 : job->world;
        uint64_t flat;

        span->bucket = b;
        span->numel = bucket->padded_numel / parts;
        span->bucket_offset = zero->options.stage == 0 ? 0 : job->rank * span->numel;
        span->shard_offset = shard;
        if (bucket->numel > span->bucket_offset)
            span->valid_numel = bucket->numel - span->bucket_offset;
        if (span->valid_numel > span->numel)
            span->valid_numel = span->numel;
        flat = bucket->offset + span->bucket_offset;
        span->params = (float *)(void *)zero->params.base + (full_params ? flat : shard);
        span->grads = (const float *)(const void *)grads->base + (full_grads ? flat : shard);
        shard += span->numel;
    }
    zero->shard_numel = shard;
}

/* Buckets are padded to a multiple of the world, so slices are equal. */
static uint64_t shard_numel(const gw_job *job, const struct zero *zero)
{
    return zero->options.stage == 0 ? zero->page->padded_numel
                                    : zero->page->padded_numel / job->world;
}

/* The view is a mapping of its own even of memory that is ours to write: a stray store through a
 * fetched pointer faults, as it would in a pool. */
static int get_params(gw_job *job, struct zero *zero, int64_t deadline)
{
    uint64_t full = zero->page->padded_numel * sizeof(float);
    uint64_t shard = shard_numel(job, zero) * sizeof(float);
    int r;

    if (mapped(zero))
        return memory_get(job, GW_ARENA_SHARED_PARAMS, 0, full, "shared parameters", deadline,
                          &zero->params_view, &zero->params);
    if (zero->options.stage < 3)
        return memory_get(job, GW_ARENA_PARAMS, 0, full, "parameters", deadline, &zero->params_view,
                          &zero->params);
    r = memory_get(job, GW_ARENA_PARAMS, 0, shard, "parameter shards", deadline, NULL,
                   &zero->params);
    return r < 0 ? r : get_pool(job, zero, deadline);
}

static int get_gradients(gw_job *job, struct zero *zero, int64_t deadline)
{
    uint64_t full = zero->page->padded_numel * sizeof(float);
    uint64_t ring = zero->page->max_bucket_numel * sizeof(float) * zero->options.ring_slots;
    bool full_grads = false;
    const struct map *grads = reduced(zero, &full_grads);
    int r;

    if (zero->ledger->ring)
        r = memory_get(job, GW_ARENA_RING, 0, ring, "bucket buffers", deadline, NULL, &zero->ring);
    else
        r = memory_get(job, GW_ARENA_GRADS, 0, full, "gradients", deadline, &zero->grads_view,
                       &zero->grads);
    if (r == 0 && grads == &zero->acc)
        r = memory_get(job, GW_ARENA_ACC, 0, full, "gradient sums", deadline, &zero->acc, NULL);
    if (r == 0 && grads == &zero->shard_grads)
        r = memory_get(job, GW_ARENA_SHARD_GRADS, 0, shard_numel(job, zero) * sizeof(float),
                       "gradient shards", deadline, &zero->shard_grads, NULL);
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
    *ret_count = zero->page->buckets;
    return 0;
}

static struct zero_array *find_array(const struct zero *zero, const char *name)
{
    struct zero_array *array = zero->arrays;

    while (array && strcmp(array->name, name) != 0)
        array = array->next;
    return array;
}

static int make_array(gw_job *job, struct zero *zero, struct zero_array *array)
{
    int64_t deadline = clock_deadline(job->timeout_ns);
    struct reply reply = {0};
    struct wire_msg msg;
    uint32_t index;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_ARRAY_GET;
    memcpy(msg.u.array_get.name, array->name, sizeof(array->name));
    r = job_request(job, &msg, WIRE_ARRAY_MADE, CHANNEL_PARK_DRAIN, deadline, &reply);
    if (r < 0)
        return r;
    index = reply.msg->u.array_made.index;
    if (reply.msg->u.array_made.numel != zero->shard_numel)
        r = err_set(GW_E_PROTOCOL, "it has %llu elements, the shard has %llu",
                    (unsigned long long)reply.msg->u.array_made.numel,
                    (unsigned long long)zero->shard_numel);
    reply_free(&job->channel, &reply);
    if (r < 0)
        return r;
    return memory_get(job, GW_ARENA_ARRAY, index, zero->shard_numel * sizeof(float), "shard array",
                      deadline, NULL, &array->map);
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

static int get_array(gw_job *job, struct zero *zero, const char *name,
                     struct zero_array **ret_array)
{
    struct zero_array *made;
    int r;

    pthread_mutex_lock(&job->lock);
    *ret_array = find_array(zero, name);
    pthread_mutex_unlock(&job->lock);
    if (*ret_array)
        return 0;
    made = calloc(1, sizeof(*made));
    if (!made)
        return err_set(GW_E_NOMEM, "no memory for its handle");
    memcpy(made->name, name, strlen(name));
    r = make_array(job, zero, made);
    if (r < 0)
        free(made);
    else
        *ret_array = keep_array(job, zero, made);
    return r;
}

int gw_shard_array(gw_job *job, const char *name, float **ret_values, uint64_t *ret_numel)
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
    if (zero->shard_numel > 0)
        r = get_array(job, zero, name, &array);
    if (r < 0)
        return err_prefix(r, "shard array %s", name);
    *ret_values = array ? (float *)(void *)array->map.base : &nothing;
    if (ret_numel)
        *ret_numel = zero->shard_numel;
    return 0;
}
