/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests about memory and figures, which the engine answers itself: arenas, registered buffers,
 * shard arrays, events of timelines, statistics; and values in and out of parameters, which the
 * core asks for. Loop thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/device/host/kernels.h"
#include "daemon/engine/job_internal.h"
#include "daemon/engine/log.h"

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

    r = job_tell(job, now_ns,
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

/* Copies that nobody asked for, said once: further buffers are a number in gw_stats. */
static void warn_of_copies(struct job *job, uint32_t rank, const struct wire_msg *msg)
{
    bool exported = msg->u.buffer_new.stands_in == WIRE_STANDS_IN_UNOPENED;

    if (msg->u.buffer_new.stands_in == WIRE_STANDS_IN_NOT || job->copies_told)
        return;
    job->copies_told = true;
    log_line("warning: rank %u's own memory (%llu bytes) cannot be %s: every op on it copies its "
             "operands in and its results out, and as many bytes are held twice (gw_stats: "
             "staged_bytes; told once per job); use gw_buffer_new, or %s",
             rank, (unsigned long long)msg->u.buffer_new.bytes,
             exported ? "opened by the engine (another PID namespace?)"
                      : "exported (a stream-ordered pool or an expandable segment?)",
             exported ? "let the rank share the engine's PID namespace"
                      : "memory of cudaMalloc (PyTorch: expandable_segments:False)");
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
    warn_of_copies(job, rank, msg);
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

static void array_differs(struct job *job, uint32_t rank, const struct wire_msg *msg)
{
    char line[GW_TEXT_MAX + 1] = "";
    struct text text = TEXT(line);

    text_add(&text, "rank %u has shard array '", rank);
    text_add_escaped(&text, msg->u.array_get.name);
    text_add(&text, "' with another dtype or size: ask for it as it was made, or by another name");
    job_reply_done(job, rank, msg->request, GW_E_MISMATCH, "%s", line);
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
    uint32_t dtype = msg->u.array_get.dtype;
    uint64_t numel;
    int r;

    if (!job->built || !core_layout(job->core)) {
        job_reply_done(job, rank, msg->request, GW_E_STATE,
                       "a shard array has the shape of the shard: call gw_seal first");
        return;
    }
    numel = core_arena_bytes(job->core, GW_ARENA_ARRAY, (int)rank);
    if (numel == 0) {
        job_reply_done(job, rank, msg->request, GW_E_STATE,
                       "the shard is empty, so no array has its shape");
        return;
    }
    reply.u.array_made.numel = numel;
    r = arenas_array(job->arenas, rank, msg->u.array_get.name, numel, dtype,
                     &reply.u.array_made.index);
    if (r == GW_E_MISMATCH)
        array_differs(job, rank, msg);
    else if (r < 0)
        reply_no_memory(job, rank, msg->request, numel * gw_dtype_bytes(dtype), r);
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
    if (memory && (job->failed || !ranks_has(core_present(job->core), rank))) {
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

/* Where an element lies in a rank's memory: core_param_ref or core_master_ref. */
typedef struct core_ref place_fn(const struct core *core, uint32_t param, uint64_t offset,
                                 uint32_t rank, uint64_t *ret_count);

/* Elements of the effect, `done` after its first: how many lie together, at most the rest. count 0:
 * the core knows no such element. */
struct run {
    struct core_ref ref;
    uint64_t count;
};

static struct run run_of(const struct job *job, const struct core_effect *effect, place_fn *place,
                         uint32_t rank, uint64_t done)
{
    uint64_t rest = effect->io.count - done;
    struct run run;

    run.ref = place(job->core, effect->io.param, effect->io.offset + done, rank, &run.count);
    if (run.count > rest)
        run.count = rest;
    return run;
}

/* `values` of that dtype to all that the rank holds in that form. first: the group's first member:
 * what all share is written by it alone. */
static int write_form(struct job *job, const struct core_effect *effect, place_fn *place,
                      uint32_t rank, bool first, const void *values, uint32_t dtype)
{
    uint64_t size = gw_dtype_bytes(dtype);
    struct run run;

    for (uint64_t done = 0; done < effect->io.count; done += run.count) {
        void *to;
        run = run_of(job, effect, place, rank, done);
        if (run.count == 0)
            return GW_E_INTERNAL;
        if (run.ref.kind == GW_ARENA_NONE || (run.ref.rank < 0 && !first) || !job_here(job, rank))
            continue;
        to = arenas_at(job->arenas, &run.ref, run.count * size);
        if (!to)
            return GW_E_INTERNAL;
        job->config.device_ops->copy(job->config.device, to, (const char *)values + done * size,
                                     run.count * size);
    }
    return 0;
}

/* Masters as they come, all copies of what is gathered of them rounded. */
static int write_values(struct job *job, const struct core_effect *effect,
                        const struct gw_layout_param *param, const uint32_t *members,
                        uint32_t count, const float *values)
{
    const void *rounded = values;
    void *room = NULL;
    int r = 0;

    if (param->dtype != GW_DTYPE_FP32) {
        rounded = room = malloc(effect->io.count * gw_dtype_bytes(param->dtype));
        if (!room)
            return GW_E_NOMEM;
        kernel_cast(room, param->dtype, values, effect->io.count, false);
    }
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        if (room)
            r = write_form(job, effect, core_master_ref, members[i], i == 0, values, GW_DTYPE_FP32);
        if (r == 0)
            r = write_form(job, effect, core_param_ref, members[i], i == 0, rounded, param->dtype);
    }
    free(room);
    return r;
}

/* One run of masters on this node, to the rank that reads: its staging memory, or its node. */
static int give_values(struct job *job, const struct core_effect *effect, const char *from,
                       float *staging, uint64_t done, uint64_t count)
{
    const struct device_ops *ops = job->config.device_ops;
    const struct job_log *log = job->config.log;
    uint64_t bytes = count * sizeof(float), offset = done * sizeof(float);
    char part[GW_STAR_DATA_MAX];
    int r = 0;

    if (staging) {
        ops->copy(job->config.device, staging + done, from, bytes);
        return 0;
    }
    for (uint64_t at = 0; r == 0 && at < bytes; at += sizeof(part)) {
        uint64_t rest = bytes - at < sizeof(part) ? bytes - at : sizeof(part);
        ops->copy(job->config.device, part, from + at, rest);
        r = log->values(log->user, effect->rank, effect->reply.request, true, offset + at, part,
                        rest);
    }
    return r;
}

/* From the first member that has each element's master. staging NULL: the rank is elsewhere. */
static int read_values(struct job *job, const struct core_effect *effect, const uint32_t *members,
                       uint32_t count, float *staging, uint64_t *ret_elsewhere)
{
    struct run run = {.count = 0};
    int r = 0;

    *ret_elsewhere = 0;
    for (uint64_t done = 0; r == 0 && done < effect->io.count; done += run.count) {
        const char *from;
        uint32_t owner = 0;
        run.ref.kind = GW_ARENA_NONE;
        for (uint32_t i = 0; i < count && run.ref.kind == GW_ARENA_NONE; i++) {
            owner = members[i];
            run = run_of(job, effect, core_master_ref, owner, done);
        }
        if (run.count == 0)
            return GW_E_INTERNAL;
        if (!job_here(job, owner)) {
            *ret_elsewhere += run.count * sizeof(float);
            continue;
        }
        from = arenas_at(job->arenas, &run.ref, run.count * sizeof(float));
        r = from ? give_values(job, effect, from, staging, done, run.count) : GW_E_INTERNAL;
    }
    return r;
}

static int move_values(struct job *job, const struct core_effect *effect, float *values,
                       uint64_t *ret_elsewhere)
{
    const struct layout *layout = core_layout(job->core);
    const struct gw_layout_param *param = &layout_params(layout)[effect->io.param];
    const uint32_t *members = layout_page_members(layout_page(layout), param->group);
    uint32_t count = layout_groups(layout)[param->group].members;

    if (!effect->io.write)
        return read_values(job, effect, members, count, values, ret_elsewhere);
    return write_values(job, effect, param, members, count, values);
}

static const char *io_problem(int code)
{
    switch (code) {
    case GW_E_STATE:
        return "no staging memory: ask for that arena before PARAM_IO";
    case GW_E_NOMEM:
        return "no memory to round the values: write fewer at a time";
    default:
        return "a parameter has no place in memory";
    }
}

/* What a rank elsewhere asks for: this node's part. */
static int help_param_io(struct job *job, const struct core_effect *effect)
{
    uint64_t bytes = effect->io.count * sizeof(float), elsewhere = 0;
    uint32_t request = effect->reply.request;
    float *written = NULL;
    int r = 0;

    if (bytes == 0)
        return 0;
    if (effect->io.write)
        written = span_written(job, effect->rank, request, bytes);
    /* Without values: it had no staging memory, and hears so from its own node. */
    if (written || !effect->io.write)
        r = move_values(job, effect, written, &elsewhere);
    if (r < 0 || !effect->io.write)
        return r;
    return span_taken(job, effect->rank, request);
}

int request_param_io(struct job *job, struct core_effect *effect)
{
    struct core_ref ref = {.kind = GW_ARENA_STAGING, .rank = (int16_t)effect->rank};
    uint64_t elsewhere = 0;
    float *staging = NULL;
    int r = 0;

    if (!job_here(job, effect->rank))
        return help_param_io(job, effect);
    if (effect->io.count > 0) {
        staging = arenas_at(job->arenas, &ref, effect->io.count * sizeof(float));
        r = staging ? move_values(job, effect, staging, &elsewhere) : GW_E_STATE;
    }
    /* Before the answer: the client must not take what it overwrote for a hit. */
    launch_grants(job);
    if (r == 0 && effect->io.write && effect->io.count > 0)
        elsewhere = span_others(job);
    if (r < 0)
        job_reply_done(job, effect->rank, effect->reply.request, r, "%s", io_problem(r));
    else if (elsewhere > 0)
        span_reply(job, effect, elsewhere);
    else
        job_reply(job, effect->rank, &effect->reply, NULL, 0);
    return 0;
}
