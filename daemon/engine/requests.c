/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about memory and figures, which the engine answers itself: arenas, registered buffers,
 * shard arrays, events of timelines, statistics; and values in and out of parameters, which the
 * core asks for. Loop thread.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/engine/job_internal.h"

void request_memory_text(const struct job *job, uint64_t bytes, int code, char *text,
                         size_t text_bytes)
{
    unsigned long long wanted = bytes, held = arenas_total_bytes(job->arenas);
    unsigned long long limit = arenas_limit_bytes(job->arenas);

    if (code == GW_E_LIMIT && limit && (wanted > limit || held > limit - wanted))
        snprintf(
            text, text_bytes,
            "%llu more bytes do not fit: the job holds %llu of at most %llu; make the model or "
            "its buffers smaller, or raise the job's memory limit",
            wanted, held, limit);
    else if (code == GW_E_LIMIT)
        snprintf(text, text_bytes,
                 "no memory of %llu bytes can be made: too many descriptors or buffers are in use; "
                 "free some, or raise the engine's file limit",
                 wanted);
    else
        snprintf(text, text_bytes,
                 "%llu bytes cannot be had: this node has not enough free memory (the job holds "
                 "%llu); free some, or use more nodes",
                 wanted, held);
}

static void reply_no_memory(struct job *job, uint32_t rank, uint32_t request, uint64_t bytes,
                            int code)
{
    char text[GW_TEXT_MAX + 1];

    request_memory_text(job, bytes, code, text, sizeof(text));
    job_reply_done(job, rank, request, code, "%s", text);
}

static void arena_get(struct job *job, uint32_t rank, const struct wire_msg *msg)
{
    enum gw_arena_kind kind = (enum gw_arena_kind)msg->u.arena_get.kind;
    int owner = kind == GW_ARENA_SHARED_PARAMS ? -1 : (int)rank;
    struct wire_msg reply = {.type = WIRE_ARENA, .request = msg->request};
    const struct device_memory *memory;
    bool kept;
    int r;

    if (kind == GW_ARENA_STAGING && msg->u.arena_get.index == 0) {
        r = arenas_make(job->arenas, kind, owner, 0, GW_STAGING_BYTES, &kept);
        if (r < 0) {
            reply_no_memory(job, rank, msg->request, GW_STAGING_BYTES, r);
            return;
        }
    }
    memory = arenas_get(job->arenas, kind, owner, msg->u.arena_get.index);
    if (!memory) {
        job_reply_done(job, rank, msg->request, GW_E_NOT_FOUND,
                       "rank %u has no memory of kind %u with index %u in this job", rank,
                       msg->u.arena_get.kind, msg->u.arena_get.index);
        return;
    }
    reply.u.arena.bytes = memory->bytes;
    reply.u.arena.mapped_bytes = memory->mapped_bytes;
    reply.u.arena.device = memory->on_device ? GW_DEVICE_CUDA : GW_DEVICE_HOST;
    job_reply(job, rank, &reply, &memory->fd, 1);
}

/* Tells the core and the client of a buffer. An imported one has nothing to be mapped. */
static int buffer_made(struct job *job, uint64_t now_ns, uint32_t rank, uint32_t request,
                       uint32_t id)
{
    const struct device_memory *memory = arenas_get(job->arenas, GW_ARENA_BUFFER, (int)rank, id);
    struct wire_msg reply = {.type = WIRE_BUFFER_MADE, .request = request};
    int r;

    r = core_handle(job->core, now_ns,
                    &(struct core_event){.kind = CORE_EV_BUFFER,
                                         .rank = rank,
                                         .request = request,
                                         .index = id,
                                         .size_bytes = memory->bytes});
    if (r < 0)
        return r;
    reply.u.buffer_made.buffer = id;
    reply.u.buffer_made.bytes = memory->bytes;
    reply.u.buffer_made.mapped_bytes = memory->fd < 0 ? 0 : memory->mapped_bytes;
    job_reply(job, rank, &reply, &memory->fd, memory->fd < 0 ? 0 : 1);
    return 0;
}

static int buffer_new(struct job *job, uint64_t now_ns, uint32_t rank, const struct wire_msg *msg)
{
    uint32_t id = 0;
    int r;

    if (msg->u.buffer_new.bytes == 0) {
        job_reply_done(job, rank, msg->request, GW_E_INVALID, "a buffer of 0 bytes: give its size");
        return 0;
    }
    r = arenas_buffer_new(job->arenas, rank, msg->u.buffer_new.bytes, &id);
    if (r < 0) {
        reply_no_memory(job, rank, msg->request, msg->u.buffer_new.bytes, r);
        return 0;
    }
    return buffer_made(job, now_ns, rank, msg->request, id);
}

static int buffer_import(struct job *job, uint64_t now_ns, uint32_t rank,
                         const struct wire_msg *msg)
{
    struct device_import import = {.client = job->ports[rank].identity,
                                   .allocation_bytes = msg->u.buffer_import.allocation_bytes,
                                   .offset = msg->u.buffer_import.offset,
                                   .bytes = msg->u.buffer_import.bytes};
    char text[GW_TEXT_MAX + 1];
    uint32_t id = 0;
    int r;

    memcpy(import.handle, msg->u.buffer_import.handle, sizeof(import.handle));
    r = arenas_buffer_import(job->arenas, rank, &import, &id, text);
    if (r == 0)
        return buffer_made(job, now_ns, rank, msg->request, id);
    if (text[0])
        job_reply_done(job, rank, msg->request, r, "%s", text);
    else if (r == GW_E_UNIMPLEMENTED)
        job_reply_done(job, rank, msg->request, r,
                       "memory of clients can be used where ranks compute on GPUs alone: use "
                       "gw_buffer_new");
    else
        reply_no_memory(job, rank, msg->request, msg->u.buffer_import.bytes, r);
    return 0;
}

/* Events of a client's own timeline, or none any more. */
static void timeline_events(struct job *job, uint32_t rank, const struct wire_msg *msg)
{
    const struct gw_client_page *page = job->ports[rank].client;
    char text[GW_TEXT_MAX + 1] = "";
    int r = GW_E_UNIMPLEMENTED;

    if (page && job->config.device_ops->timeline_events)
        r = job->config.device_ops->timeline_events(
            job->config.device, rank, &page->timeline[msg->u.timeline_events.timeline],
            msg->u.timeline_events.handle_bytes ? msg->u.timeline_events.handles : NULL, text);
    job_reply_done(job, rank, msg->request, r, "%s",
                   text[0] || r == 0 ? text : "streams of this job take no events");
}

static void array_get(struct job *job, uint32_t rank, const struct wire_msg *msg)
{
    struct wire_msg reply = {.type = WIRE_ARRAY_MADE, .request = msg->request};
    const struct layout *layout = core_layout(job->core);
    uint64_t bytes;
    int r;

    if (!job->built || !layout) {
        job_reply_done(job, rank, msg->request, GW_E_STATE,
                       "a shard array has the shape of the shard: call gw_seal first");
        return;
    }
    reply.u.array_made.numel = layout_page(layout)->shard_numel;
    bytes = reply.u.array_made.numel * sizeof(float);
    if (bytes == 0) {
        job_reply_done(job, rank, msg->request, GW_E_STATE,
                       "the shard is empty, so no array has its shape");
        return;
    }
    r = arenas_array(job->arenas, rank, msg->u.array_get.name, bytes, &reply.u.array_made.index);
    if (r < 0)
        reply_no_memory(job, rank, msg->request, bytes, r);
    else
        job_reply(job, rank, &reply, NULL, 0);
}

static void stats_get(struct job *job, uint32_t rank, const struct wire_msg *msg)
{
    struct wire_msg reply = {.type = WIRE_STATS, .request = msg->request};

    core_stats(job->core, rank, &reply);
    reply.type = WIRE_STATS;
    reply.request = msg->request;
    job_counters(job, rank, reply.u.stats.kinds);
    arenas_sum(job->arenas, rank, reply.u.stats.memory_bytes);
    job_reply(job, rank, &reply, NULL, 0);
}

bool request_own(struct job *job, uint64_t now_ns, uint32_t rank, const struct wire_msg *msg,
                 int *ret_r)
{
    bool memory = msg->type == WIRE_ARENA_GET || msg->type == WIRE_BUFFER_NEW ||
                  msg->type == WIRE_BUFFER_IMPORT || msg->type == WIRE_ARRAY_GET;
    bool other = msg->type == WIRE_STATS_GET || msg->type == WIRE_TIMELINE_EVENTS;

    if (msg->request == 0 || (!memory && !other))
        return false; /* without a request number: the core sends the client away */
    *ret_r = 0;
    if (memory && (job->failed || !(core_present(job->core) >> rank & 1))) {
        job_reply_done(job, rank, msg->request, job->fail_code ? job->fail_code : GW_E_STATE, "%s",
                       job->fail_text);
        return true;
    }
    if (msg->type == WIRE_ARENA_GET)
        arena_get(job, rank, msg);
    else if (msg->type == WIRE_BUFFER_NEW)
        *ret_r = buffer_new(job, now_ns, rank, msg);
    else if (msg->type == WIRE_BUFFER_IMPORT)
        *ret_r = buffer_import(job, now_ns, rank, msg);
    else if (msg->type == WIRE_ARRAY_GET)
        array_get(job, rank, msg);
    else if (msg->type == WIRE_TIMELINE_EVENTS)
        timeline_events(job, rank, msg);
    else
        stats_get(job, rank, msg);
    return true;
}

/* ---- parameters in and out ------------------------------------------------------------------- */

/* Stages 0-2 hold a copy per rank, and a write goes to all; later each element has one place. */
static int write_values(struct job *job, struct core_ref ref, const float *from, uint64_t bytes)
{
    uint32_t copies = core_options(job->core)->stage < 3 ? job->config.world : 1;

    for (uint32_t rank = 0; rank < copies; rank++) {
        void *to;
        if (copies > 1)
            ref.rank = (int16_t)rank;
        to = arenas_at(job->arenas, &ref, bytes);
        if (!to)
            return GW_E_INTERNAL;
        job->config.device_ops->copy(job->config.device, to, from, bytes);
    }
    return 0;
}

static int move_values(struct job *job, const struct core_effect *effect, float *staging)
{
    uint64_t done = 0;
    int r = 0;

    while (r == 0 && done < effect->io.count) {
        uint64_t count = 0;
        uint32_t owner;
        struct core_ref ref =
            core_param_ref(job->core, effect->io.param, effect->io.offset + done, &owner, &count);
        uint64_t bytes;
        if (count > effect->io.count - done)
            count = effect->io.count - done;
        bytes = count * sizeof(float);
        if (count == 0) {
            r = GW_E_INTERNAL;
        } else if (effect->io.write) {
            r = write_values(job, ref, staging + done, bytes);
        } else {
            const void *from = arenas_at(job->arenas, &ref, bytes);
            if (from)
                job->config.device_ops->copy(job->config.device, staging + done, from, bytes);
            else
                r = GW_E_INTERNAL;
        }
        done += count;
    }
    return r;
}

void request_param_io(struct job *job, struct core_effect *effect)
{
    struct core_ref ref = {.kind = GW_ARENA_STAGING, .rank = (int16_t)effect->rank};
    float *staging = NULL;
    int r = 0;

    if (effect->io.count > 0) {
        staging = arenas_at(job->arenas, &ref, effect->io.count * sizeof(float));
        r = staging ? move_values(job, effect, staging) : GW_E_STATE;
    }
    if (r < 0)
        job_reply_done(job, effect->rank, effect->reply.request, r, "%s",
                       r == GW_E_STATE ? "no staging memory: ask for that arena before PARAM_IO"
                                       : "a parameter has no place in memory");
    else
        job_reply(job, effect->rank, &effect->reply, NULL, 0);
}
