/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's pump: events into the core, effects out of it, completions back. Loop thread. Must not
 * decide anything; what an effect means is said in daemon/core/core.h.
 */
#include "daemon/engine/job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/device/ring.h"
#include "daemon/engine/job_internal.h"

int job_new(const struct job_config *config, struct job **ret_job)
{
    struct job *job = calloc(1, sizeof(*job));
    int r;

    if (!job)
        return GW_E_NOMEM;
    job->config = *config;
    r = core_new(&(struct core_config){.world = config->world,
                                       .join_timeout_ns = config->join_timeout_ns,
                                       .op_timeout_ns = config->op_timeout_ns,
                                       .stall_report_ns = config->stall_report_ns,
                                       .drop_edges = config->drop_edges,
                                       .device = config->kind,
                                       .spans = config->log != NULL},
                 &job->core);
    if (r == 0)
        r = config->fabric_ops->fabric_new(
            &(struct fabric_config){.device_ops = config->device_ops,
                                    .device = config->device,
                                    .world = config->world,
                                    .nodes = config->nodes,
                                    .link_bytes_per_s = config->link_bytes_per_s,
                                    .op_timeout_ns = config->op_timeout_ns},
            &job->fabric);
    if (r == 0)
        r = arenas_new(&(struct arenas_config){config->device_ops, config->device,
                                               config->fabric_ops, job->fabric, config->world,
                                               config->memory_max_bytes},
                       &job->arenas);
    if (r == 0)
        r = launch_new(job);
    if (r == 0)
        r = span_new(job);
    if (r < 0) {
        job_free(job);
        return r;
    }
    *ret_job = job;
    return 0;
}

bool job_here(const struct job *job, uint32_t rank)
{
    return !job->config.nodes || job->config.nodes->of_rank[rank] == job->config.nodes->own;
}

int job_tell(struct job *job, uint64_t now_ns, const struct core_event *event)
{
    const struct job_log *log = job->config.log;

    return log ? log->put(log->user, event, 0) : core_handle(job->core, now_ns, event);
}

/* ---- replies --------------------------------------------------------------------------------- */

void job_reply(struct job *job, uint32_t rank, const struct wire_msg *msg, const int *fds,
               unsigned fd_count)
{
    if (job_here(job, rank))
        job->config.callbacks.reply(job->config.callbacks.user, rank, 0, msg, fds, fd_count);
}

void job_reply_done(struct job *job, uint32_t rank, uint32_t request, int code, const char *format,
                    ...)
{
    struct wire_msg msg = {.type = WIRE_DONE, .request = request};
    struct text text = TEXT(msg.u.done.text);
    va_list arguments;

    msg.u.done.code = code;
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
    job_reply(job, rank, &msg, NULL, 0);
}

/* ---- ops under way --------------------------------------------------------------------------- */

static int unfinished_add(struct job *job, uint64_t op)
{
    if (job->unfinished_count == job->unfinished_room) {
        uint32_t room = job->unfinished_room ? job->unfinished_room * 2 : 64;
        uint64_t *grown = realloc(job->unfinished, room * sizeof(*grown));
        if (!grown)
            return GW_E_NOMEM;
        job->unfinished = grown;
        job->unfinished_room = room;
    }
    job->unfinished[job->unfinished_count++] = op;
    job->last_op = op;
    return 0;
}

static void unfinished_remove(struct job *job, uint64_t op)
{
    for (uint32_t i = 0; i < job->unfinished_count; i++) {
        if (job->unfinished[i] != op)
            continue;
        job->unfinished_count--;
        memmove(&job->unfinished[i], &job->unfinished[i + 1],
                (job->unfinished_count - i) * sizeof(job->unfinished[0]));
        return;
    }
}

uint64_t job_last_unfinished(const struct job *job)
{
    return job->unfinished_count ? job->last_op : 0;
}

static void collect(struct job *job)
{
    arenas_collect(job->arenas, job->unfinished_count ? job->unfinished[0] : UINT64_MAX);
}

/* Nothing of this generation waits for anything any more. Communicators first: a device's streams
 * may hang in them. */
static void abort_all(struct job *job)
{
    if (job->formed)
        job->config.fabric_ops->abort(job->fabric);
    job->formed = false;
    job->config.device_ops->abort(job->config.device, DEVICE_ALL_RANKS);
}

/* Before another generation's ops: none of the last one's is left, on any stream. */
static void settle(struct job *job)
{
    const struct device_ops *ops = job->config.device_ops;
    struct device_done done;

    abort_all(job);
    ops->drain(job->config.device);
    while (ops->take_done(job->config.device, &done))
        ;
    job->unfinished_count = 0;
    build_release_waits(job); /* once more: none of the last works raises them any more */
    collect(job);
    ops->resume(job->config.device);
    job->failed = false;
    span_reset(job);
}

struct job *job_free(struct job *job)
{
    if (!job)
        return NULL;
    if (job->arenas) {
        settle(job);
        build_free(job);
    }
    arenas_free(job->arenas); /* first: the fabric hears of it */
    if (job->fabric)
        job->config.fabric_ops->fabric_free(job->fabric);
    core_free(job->core);
    launch_free(job);
    span_free(job);
    free(job->unfinished);
    free(job);
    return NULL;
}

/* ---- effects --------------------------------------------------------------------------------- */

static void write_failure(const struct job *job, const struct job_port *port, uint32_t rank,
                          int code, const char *text)
{
    struct gw_job_page *page = job->config.page;

    if (!port->engine || atomic_load_explicit(&port->engine->error, memory_order_relaxed) != 0)
        return;
    port->engine->failure.rank = rank;
    memcpy(port->engine->failure.text, text, strnlen(text, GW_TEXT_MAX));
    atomic_store_explicit(&port->engine->error, code, memory_order_release);
    device_ring(port->engine, port->client, GW_WAKE_ALL);
    if (page) {
        atomic_fetch_add(&page->wake, 1);
        device_wake(&page->wake, GW_WAKE_ALL);
    }
}

void job_fail_all(struct job *job, uint32_t rank, int code, const char *text)
{
    /* First the streams: what has not been told done by now never will be. */
    abort_all(job);
    for (uint32_t i = 0; i < job->config.world; i++)
        write_failure(job, &job->ports[i], rank, code, text);
    build_release_waits(job);
}

static void effect_fail(struct job *job, const struct core_effect *effect)
{
    job_fail_all(job, effect->rank, effect->code, effect->text);
    job->failed = true;
    job->fail_code = effect->code;
    memcpy(job->fail_text, effect->text, sizeof(job->fail_text));
    job->config.callbacks.failed(job->config.callbacks.user, effect->rank, effect->code,
                                 effect->text);
}

static int device_lost(struct job *job, uint64_t now_ns, const char *text)
{
    job->lost = true;
    snprintf(job->lost_text, sizeof(job->lost_text), "%s", text);
    return job_tell(job, now_ns,
                    &(struct core_event){
                        .kind = CORE_EV_DEVICE_LOST, .code = GW_E_DEVICE, .text = text});
}

/* Its last client's buffers: another client holds the rank now. */
static void replace_client(struct job *job, uint32_t rank)
{
    if (!ranks_has(&job->detached, rank))
        return;
    ranks_drop(&job->detached, rank);
    arenas_drop_kind(job->arenas, GW_ARENA_BUFFER, (int)rank, job_last_unfinished(job));
}

/* Answer to a JOIN: the first of a generation ends the last one, the last one makes it whole,
 * before any op of it comes. */
static int effect_joined(struct job *job, uint64_t now_ns, const struct core_effect *effect)
{
    const struct wire_msg *reply = &effect->reply;
    struct fabric_nodes *nodes = job->config.nodes;
    int r = 0;

    if (reply->type == WIRE_JOINED && reply->u.joined.generation != job->generation) {
        settle(job);
        job->generation = reply->u.joined.generation;
    }
    if (nodes && reply->type == WIRE_JOINED) {
        nodes->of_rank[effect->rank] = (uint16_t)job->origin;
        replace_client(job, effect->rank);
    }
    if (!nodes || job->origin == nodes->own)
        job->config.callbacks.reply(job->config.callbacks.user, effect->rank, job->cookie, reply,
                                    NULL, 0);
    if (reply->type != WIRE_JOINED || job->formed ||
        ranks_count(core_present(job->core)) < job->config.world)
        return 0;
    r = job->config.fabric_ops->form(job->fabric);
    if (r < 0)
        return device_lost(job, now_ns, "the ranks' communicators cannot be made");
    job->formed = job->has_formed = true;
    return 0;
}

/* The core has agreed: no op it knows of uses the buffer. Memory of the client's own is closed
 * before the answer, for the client may free it then; also after a failure, whose works are ended
 * first. */
static void free_buffer(struct job *job, uint32_t rank, uint32_t id, bool agreed)
{
    const struct device_memory *memory = arenas_get(job->arenas, GW_ARENA_BUFFER, (int)rank, id);
    bool imported = memory && memory->fd < 0;

    if (!agreed && !(imported && job->failed))
        return;
    if (!agreed)
        job->config.device_ops->drain(job->config.device);
    arenas_drop(job->arenas, GW_ARENA_BUFFER, (int)rank, id,
                imported ? 0 : job_last_unfinished(job));
    collect(job);
}

static void effect_reply(struct job *job, const struct core_effect *effect)
{
    const struct wire_msg *reply = &effect->reply;
    const struct wire_msg *request = job->request;

    if (reply->type == WIRE_SEALED) {
        if (job_here(job, effect->rank))
            build_reply_sealed(job, effect);
        return;
    }
    /* Ops may follow at once. Should it fail here, the first of them tries again. */
    if (reply->type == WIRE_GROUP_MADE && request && request->type == WIRE_GROUP_NEW)
        (void)job->config.fabric_ops->group(job->fabric, request->u.group_new.ranks,
                                            request->u.group_new.count);
    if (reply->type == WIRE_DONE && request && request->type == WIRE_BUFFER_FREE &&
        effect->rank == job->request_rank && reply->request == request->request &&
        job_here(job, effect->rank))
        free_buffer(job, effect->rank, request->u.buffer_free.buffer, reply->u.done.code == 0);
    job_reply(job, effect->rank, reply, NULL, 0);
}

static int effect_build(struct job *job, uint64_t now_ns)
{
    const struct job_log *log = job->config.log;
    char text[GW_TEXT_MAX + 1];
    int code = build_all(job, text), r;

    if (log)
        return log->built(log->user, code, text);
    r = core_handle(job->core, now_ns,
                    &(struct core_event){.kind = CORE_EV_BUILT, .code = code, .text = text});
    build_told(job);
    return r;
}

static int effect_overflow(struct job *job, uint64_t now_ns, const struct core_effect *effect)
{
    uint64_t bytes = core_arena_bytes(job->core, GW_ARENA_OVERFLOW, (int)effect->rank);
    bool kept;
    int code;

    if (!job_here(job, effect->rank))
        return 0;
    code =
        arenas_make(job->arenas, GW_ARENA_OVERFLOW, (int)effect->rank, effect->index, bytes, &kept);
    return job_tell(
        job, now_ns,
        &(struct core_event){
            .kind = CORE_EV_OVERFLOW, .rank = effect->rank, .code = code, .index = effect->index});
}

static int effect_launch(struct job *job, const struct core_op *op)
{
    int r = launch_op(job, op);

    return r < 0 ? r : unfinished_add(job, op->id);
}

static int execute(struct job *job, uint64_t now_ns, struct core_effect *effect)
{
    const struct job_callbacks *callbacks = &job->config.callbacks;

    switch (effect->kind) {
    case CORE_EFF_REPLY:
        if (effect->index == 1)
            return effect_joined(job, now_ns, effect);
        effect_reply(job, effect);
        return 0;
    case CORE_EFF_LAUNCH:
        return effect_launch(job, &effect->op);
    case CORE_EFF_SIGNAL:
        return launch_signal(job, &effect->signal, effect->after_op);
    case CORE_EFF_BUILD:
        return effect_build(job, now_ns);
    case CORE_EFF_OVERFLOW:
        return effect_overflow(job, now_ns, effect);
    case CORE_EFF_FAIL:
        effect_fail(job, effect);
        return 0;
    case CORE_EFF_DROP:
        if (job_here(job, effect->rank))
            callbacks->drop(callbacks->user, effect->rank, effect->code, effect->text);
        return 0;
    case CORE_EFF_PARAM_IO:
        return request_param_io(job, effect);
    case CORE_EFF_REPORT:
        callbacks->report(callbacks->user, effect->text);
        return 0;
    case CORE_EFF_END:
        callbacks->end(callbacks->user);
        return 0;
    }
    return GW_E_INTERNAL;
}

static int drain_effects(struct job *job, uint64_t now_ns)
{
    struct core_effect effect;
    int r = 0;

    while (r == 0 && core_next_effect(job->core, &effect))
        r = execute(job, now_ns, &effect);
    launch_grants(job);
    return r;
}

/* What is done by now. Quick works are when they are launched, and nobody tells. */
static int take_completions(struct job *job, uint64_t now_ns)
{
    struct device_done done;
    bool any = false;
    int r = 0;

    while (r == 0 && job->config.device_ops->take_done(job->config.device, &done)) {
        any = true;
        unfinished_remove(job, done.op);
        if (done.failed)
            continue;
        if (job->config.log) {
            span_note(job, &done);
            r = job->config.log->op_done(job->config.log->user, done.op);
            continue;
        }
        r = core_handle(job->core, now_ns,
                        &(struct core_event){.kind = CORE_EV_OP_DONE,
                                             .op = done.op,
                                             .started_ns = done.started_ns,
                                             .done_ns = done.done_ns});
        if (r == 0)
            r = drain_effects(job, now_ns);
    }
    if (any)
        collect(job);
    return r;
}

static int handle(struct job *job, uint64_t now_ns, const struct core_event *event)
{
    int r = core_handle(job->core, now_ns, event);

    if (r == 0)
        r = drain_effects(job, now_ns);
    job->request = NULL; /* answered, or it will be later */
    return r < 0 ? r : take_completions(job, now_ns);
}

/* What comes from outside: at once into the core, or into the log. */
static int put(struct job *job, uint64_t now_ns, const struct core_event *event, uint64_t cookie)
{
    const struct job_log *log = job->config.log;

    if (log)
        return log->put(log->user, event, cookie);
    job->cookie = cookie;
    return handle(job, now_ns, event);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* By a client of the present generation. */
static bool is_taken(const struct job *job, uint32_t rank)
{
    return core_state(job->core) != GW_JOB_BROKEN && ranks_has(core_present(job->core), rank);
}

/* Once: a rank that comes again is where it was. */
static int place_once(struct job *job, uint32_t rank, const struct device_place *place,
                      char text[GW_TEXT_MAX + 1])
{
    int r;

    if (ranks_has(&job->placed, rank)) {
        if (memcmp(&job->places[rank], place, sizeof(*place)) == 0)
            return 0;
        snprintf(text, GW_TEXT_MAX + 1,
                 "rank %u has its memory on another GPU: join with the GPU that it had before",
                 rank);
        return GW_E_MISMATCH;
    }
    r = job->config.device_ops->place(job->config.device, rank, place, text);
    if (r < 0)
        return r;
    job->places[rank] = *place;
    ranks_add(&job->placed, rank);
    return 0;
}

int job_place(struct job *job, uint32_t rank, uint32_t world, const struct device_place *place,
              char text[GW_TEXT_MAX + 1])
{
    text[0] = 0;
    if (world != job->config.world || rank >= world || is_taken(job, rank))
        return 0;
    return place_once(job, rank, place, text);
}

int job_lend(struct job *job, struct device_memory *page)
{
    return arenas_page_lend(job->arenas, page);
}

int job_join(struct job *job, uint64_t now_ns, uint32_t rank, uint32_t world, uint32_t request,
             uint64_t cookie)
{
    return put(job, now_ns,
               &(struct core_event){
                   .kind = CORE_EV_JOIN, .rank = rank, .world = world, .request = request},
               cookie);
}

void job_attach(struct job *job, uint32_t rank, const struct job_port *port)
{
    const struct device_ops *ops = job->config.device_ops;

    job->ports[rank] = *port;
    if (ops->beside)
        ops->beside(job->config.device, rank, port->pid);
}

/* Several nodes: ops that the log brings before it says that the rank has gone name its buffers,
 * and wait for its tokens. */
static void drop_detached(struct job *job)
{
    struct ranks gone = ranks_and_not(&job->detached, core_present(job->core));

    for (uint32_t rank = ranks_first(&gone); rank < GW_RANKS_MAX;
         rank = ranks_next(&gone, rank + 1))
        arenas_drop_kind(job->arenas, GW_ARENA_BUFFER, (int)rank, job_last_unfinished(job));
    job->detached = ranks_and_not(&job->detached, &gone);
}

void job_detach(struct job *job, uint32_t rank)
{
    if (job->config.log)
        span_keep_words(job, rank);
    job->ports[rank] = (struct job_port){.engine = NULL};
    if (job->config.log) {
        ranks_add(&job->detached, rank);
        drop_detached(job);
        return;
    }
    arenas_drop_kind(job->arenas, GW_ARENA_BUFFER, (int)rank, job_last_unfinished(job));
}

void job_discard(struct job *job, struct device_memory *memory)
{
    arenas_page_drop(job->arenas, memory, ARENAS_PAGE_LENT, job_last_unfinished(job));
}

int job_lost(struct job *job, uint64_t now_ns, uint32_t rank, const char *how)
{
    return put(job, now_ns,
               &(struct core_event){.kind = CORE_EV_LOST, .rank = rank, .text = how}, 0);
}

int job_request(struct job *job, uint64_t now_ns, uint32_t rank, const struct wire_msg *msg)
{
    int r;

    if (request_own(job, now_ns, rank, msg, &r)) {
        if (r == 0)
            r = drain_effects(job, now_ns);
        return r < 0 ? r : take_completions(job, now_ns);
    }
    if (job->config.log) {
        r = msg->type == WIRE_PARAM_IO ? span_param_io(job, rank, msg) : 0;
        if (r < 0)
            return r;
    } else {
        job->request_rank = rank;
        job->request = msg;
    }
    return put(job, now_ns,
               &(struct core_event){
                   .kind = CORE_EV_REQUEST, .rank = rank, .request = msg->request, .msg = msg},
               0);
}

/* A rank's memory lies where it was when the job formed. On every node alike. Whether the rank is
 * taken is the core's to say. */
static bool may_join(const struct job *job, const struct core_event *event, const char **ret_text)
{
    const struct fabric_nodes *nodes = job->config.nodes;
    uint32_t node = event->rank < job->config.world ? nodes->of_rank[event->rank] : FABRIC_NO_NODE;

    if (job->node_lost[0]) {
        *ret_text = job->node_lost;
        return false;
    }
    *ret_text = "the rank's shard lies on another node: start it there again";
    return !job->has_formed || node == FABRIC_NO_NODE || node == job->origin ||
           is_taken(job, event->rank);
}

static void refuse_join(struct job *job, const struct core_event *event, const char *why)
{
    struct wire_msg msg = {.type = WIRE_DONE, .request = event->request};

    if (job->origin != job->config.nodes->own)
        return;
    msg.u.done.code = job->node_lost[0] ? GW_E_PEER_LOST : GW_E_MISMATCH;
    snprintf(msg.u.done.text, sizeof(msg.u.done.text), "rank %u may not join: %.440s", event->rank,
             why);
    job->config.callbacks.reply(job->config.callbacks.user, event->rank, job->cookie, &msg, NULL,
                                0);
}

int job_apply(struct job *job, uint64_t now_ns, const struct core_event *event, uint32_t node,
              uint64_t cookie)
{
    struct core_event own = *event;
    const char *why;
    int r;

    job->origin = node;
    job->cookie = cookie;
    if (event->kind == CORE_EV_JOIN && !may_join(job, event, &why)) {
        refuse_join(job, event, why);
        return 0;
    }
    if (event->kind == CORE_EV_OP_DONE)
        span_times(job, &own);
    if (event->kind == CORE_EV_REQUEST) {
        job->request_rank = event->rank;
        job->request = event->msg;
    }
    r = handle(job, now_ns, &own);
    if (event->kind == CORE_EV_BUILT)
        build_told(job);
    drop_detached(job);
    return r;
}

void job_node_lost(struct job *job, const char *text)
{
    snprintf(job->node_lost, sizeof(job->node_lost), "%s", text);
}

int job_address(struct job *job, uint8_t ret_address[GW_FABRIC_ADDRESS_MAX], uint32_t *ret_bytes)
{
    const struct fabric_ops *ops = job->config.fabric_ops;

    *ret_bytes = 0;
    return ops->address ? ops->address(job->fabric, ret_address, ret_bytes) : 0;
}

int job_address_check(const struct job *job, const uint8_t *address, uint32_t bytes,
                      char text[GW_TEXT_MAX + 1])
{
    const struct fabric_ops *ops = job->config.fabric_ops;

    return bytes > 0 && ops->address_check ? ops->address_check(address, bytes, text) : 0;
}

uint64_t job_last_op(const struct job *job)
{
    return job->last_op;
}

bool job_has_formed(const struct job *job)
{
    return job->has_formed;
}

int job_heard(struct job *job, uint64_t now_ns)
{
    if (job->config.log)
        return job->config.log->heard(job->config.log->user);
    return handle(job, now_ns, &(struct core_event){.kind = CORE_EV_HEARD});
}

uint32_t job_unheard(const struct job *job)
{
    return core_unheard(job->core);
}

static bool take_fault(struct job *job, char text[GW_TEXT_MAX + 1])
{
    const struct fabric_ops *fabric_ops = job->config.fabric_ops;

    return job->config.device_ops->take_fault(job->config.device, text) ||
           (fabric_ops->take_fault && fabric_ops->take_fault(job->fabric, text));
}

int job_completions(struct job *job, uint64_t now_ns)
{
    char text[GW_TEXT_MAX + 1];
    int r = take_completions(job, now_ns);

    if (job->failed)
        build_release_waits(job); /* of what was under way, some may have raised its words late */
    collect(job);
    if (r == 0 && take_fault(job, text)) {
        r = device_lost(job, now_ns, text);
        if (r == 0)
            r = drain_effects(job, now_ns);
    }
    return r;
}

int job_tick(struct job *job, uint64_t now_ns)
{
    return put(job, now_ns, &(struct core_event){.kind = CORE_EV_TICK}, 0);
}

uint64_t job_deadline_ns(const struct job *job)
{
    const struct fabric_nodes *nodes = job->config.nodes;

    /* The root's clock decides for all. */
    return nodes && nodes->own != 0 ? UINT64_MAX : core_deadline_ns(job->core);
}

/* ---- figures --------------------------------------------------------------------------------- */

const struct core *job_core(const struct job *job)
{
    return job->core;
}

uint32_t job_world(const struct job *job)
{
    return job->config.world;
}

const char *job_device_lost(const struct job *job)
{
    return job->lost ? job->lost_text : NULL;
}

const char *job_device_name(const struct job *job)
{
    return job->config.device_ops->name;
}

const char *job_ordering_name(const struct job *job)
{
    const struct device_ops *ops = job->config.device_ops;

    return ops->ordering ? ops->ordering(job->config.device) : "";
}

void job_placement_text(const struct job *job, char *text, size_t text_bytes)
{
    const struct device_ops *ops = job->config.device_ops;
    const struct placement *placement = NULL;
    uint32_t workers = 0;
    int error = 0;

    text[0] = 0;
    if (ops->placement)
        placement = ops->placement(job->config.device, &error);
    if (!placement)
        return;
    for (uint32_t i = 0; i < placement->count; i++)
        workers += placement->node[i].workers;
    snprintf(text, text_bytes, "%u workers on %u processors of %u NUMA node%s%s%s", workers,
             cpus_count(&placement->cpus), placement->count, placement->count == 1 ? "" : "s",
             error ? "; memory not placed: " : "", error ? strerror(error) : "");
}

const char *job_fabric_name(const struct job *job)
{
    bool sealed = core_layout(job->core) != NULL;

    return job->config.fabric_ops->order_name(sealed ? core_options(job->core)->order
                                                     : GW_ORDER_EXACT);
}

uint64_t job_memory_bytes(const struct job *job)
{
    return arenas_total_bytes(job->arenas);
}

void job_counters(const struct job *job, uint32_t rank, struct gw_counters ret_kinds[GW_KINDS])
{
    job->config.fabric_ops->counters(job->fabric, rank, ret_kinds);
}
