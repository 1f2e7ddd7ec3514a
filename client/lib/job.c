/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's handle: create, join, close, who it is, and how it failed; see job.h. Any thread.
 */
#include "client/lib/job.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/collective.h"
#include "client/lib/connect.h"
#include "client/lib/err.h"
#include "client/lib/event.h"
#include "client/lib/options.h"
#include "client/lib/zero.h"
#include "daemon/base/tag.h"
#include "proto/job_id.h"

#define TIMEOUT_DEFAULT_NS (30 * CLOCK_SECOND)
#define JOIN_DEFAULT_NS (300 * CLOCK_SECOND)
#define OP_DEFAULT_NS (1800 * CLOCK_SECOND)
#define AGAIN_NS (50 * CLOCK_MS)
#define LEAVE_NS (1 * CLOCK_SECOND) /* for the last message when there is no room */

/* Relaxed: the flag is set in a new process before any call of it can run. */
int job_enter(const gw_job *job)
{
    if (!job)
        return err_set(GW_E_INVALID, "the job is NULL");
    if (atomic_load_explicit(&job->guard.forked, memory_order_relaxed))
        return err_set(GW_E_FORKED,
                       "this job's handle belongs to the parent process; a forked child must not "
                       "use it (join with a handle of its own)");
    return 0;
}

/* The page's text is the engine's reason, told to every rank alike; the channel's is only that the
 * connection has ended. So the page goes first, unless a check of this library ended it: what the
 * engine then says is that this rank was lost. */
int job_failure(gw_job *job)
{
    char text[GW_TEXT_MAX + 1];
    int code = atomic_load_explicit(&job->engine->error, memory_order_acquire);

    if (code == 0 || atomic_load(&job->channel.dead) == GW_E_INTERNAL) {
        code = channel_error(&job->channel);
        if (code < 0)
            job->order.ops->release(job);
        return code;
    }
    job->order.ops->release(job);
    memcpy(text, job->engine->failure.text, sizeof(text));
    text[GW_TEXT_MAX] = 0;
    if (code > 0 || code <= GW_ERROR_LAST)
        code = GW_E_INTERNAL;
    return err_set(code, "%s", text[0] ? text : gw_error_message(code));
}

bool job_deadline_passed(gw_job *job, int *r)
{
    int failure;

    if (*r != GW_E_TIMEOUT)
        return false;
    failure = job_failure(job);
    if (failure < 0)
        *r = failure;
    return failure == 0;
}

int job_check(gw_job *job)
{
    int r = job_enter(job);

    return r < 0 ? r : job_failure(job);
}

int job_request(gw_job *job, struct wire_msg *msg, uint16_t expect, enum channel_park park,
                int64_t deadline, struct reply *ret_reply)
{
    int r = channel_request(&job->channel, msg, expect, park, deadline, ret_reply);

    if (r == GW_E_TIMEOUT && atomic_load(&job->engine->error) != 0)
        r = job_failure(job);
    return r;
}

bool job_edge_dropped(const gw_job *job, enum job_edge edge)
{
    return (job->dropped_edges & edge) != 0;
}

bool job_cond_wait(gw_job *job, int64_t deadline)
{
    struct timespec until = clock_timespec(deadline);

    return pthread_cond_timedwait(&job->cond, &job->lock, &until) != ETIMEDOUT;
}

/* An ordinary build has no such switch: a stray variable must not cost somebody's gradients. */
static uint32_t edges_from_environment(void)
{
    uint32_t edges = 0;
#ifdef GW_TEST_EDGES
    const char *name = secure_getenv("GRADWIRE_DROP_EDGE");

    if (name && !strcmp(name, "BUFFER_CONSUMED"))
        edges = JOB_EDGE_BUFFER_CONSUMED;
    if (name && !strcmp(name, "VERDICT_READ"))
        edges = JOB_EDGE_VERDICT_READ;
    if (name && !strcmp(name, "GATHERED"))
        edges = JOB_EDGE_GATHERED;
#endif
    return edges;
}

/* A handle that gw_job_close takes, whatever else comes to pass. */
static int job_new(struct gw_device *device, gw_job **ret_job)
{
    gw_job *job = calloc(1, sizeof(*job));
    const char *debug = secure_getenv("GRADWIRE_DEBUG");
    pthread_condattr_t attr;
    int r;

    if (!job)
        return err_set(GW_E_NOMEM, "no memory for a job's handle");
    job->doorbell = job->client_fd = job->event = job->epoll = -1;
    job->debug_guard = debug && !strcmp(debug, "guard") && !device; /* pages of the host */
    job->dropped_edges = edges_from_environment();
    job->groups = calloc(GW_GROUPS_MAX, sizeof(*job->groups));
    job->device = device;
    order_init(job);
    r = job->groups ? channel_init(&job->channel, &job->guard)
                    : err_set(GW_E_NOMEM, "no memory for a job's groups");
    if (r < 0) {
        order_deinit(job);
        free(job->groups);
        free(job);
        return r;
    }
    if (device)
        atomic_fetch_add(&device->jobs, 1);
    pthread_mutex_init(&job->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&job->cond, &attr);
    pthread_condattr_destroy(&attr);
    r = split_init(&job->split);
    if (r == 0)
        r = fork_register(&job->guard);
    *ret_job = job;
    if (r < 0)
        *ret_job = gw_job_close(job);
    return r;
}

/* A job that fails now has no LEAVE to send: the engine sees a lost client or none at all. */
static void leave(gw_job *job)
{
    int64_t deadline = clock_deadline(LEAVE_NS);
    struct wire_msg msg;

    if (job->generation == 0 || channel_error(&job->channel) < 0)
        return;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_LEAVE;
    if (channel_send(&job->channel, &msg) < 0)
        return;
    while (!channel_flush(&job->channel) && channel_error(&job->channel) == 0 &&
           clock_now() < deadline)
        channel_pause(&job->channel);
}

/* Streams of a GPU may still hold waits and raises of ours, or be about to read our memory: they
 * are given a second before the job is left, and one more when nothing holds them. */
static void leave_device(gw_job *job)
{
    bool quiet;

    if (!job->device) {
        leave(job);
        return;
    }
    quiet = order_quiet(job, false);
    if (quiet)
        order_end(job);
    leave(job);
    if (!quiet)
        quiet = order_quiet(job, true);
    order_close(job, quiet);
}

gw_job *gw_job_close(gw_job *job)
{
    if (!job || atomic_load(&job->guard.forked))
        return NULL; /* a child's copy: its locks may be held by threads that do not exist here */
    leave_device(job);
    event_close(job);
    zero_close(job);
    collective_close(job);
    if (job->device)
        atomic_fetch_sub(&job->device->jobs, 1);
    order_deinit(job);
    channel_deinit(&job->channel);
    fork_fd_close(&job->guard, &job->doorbell);
    fork_fd_close(&job->guard, &job->client_fd);
    map_free(&job->client_map);
    map_free(&job->engine_map);
    map_free(&job->job_map);
    split_deinit(&job->split);
    fork_unregister(&job->guard);
    pthread_cond_destroy(&job->cond);
    pthread_mutex_destroy(&job->lock);
    free(job->groups);
    sodium_memzero(job, sizeof(*job)); /* the id, and packets that held it */
    free(job);
    return NULL;
}

/* What only this process can know to be wrong is refused before a daemon is asked; defaults are
 * filled in, so that the engine sees the caller's numbers and no rule is kept twice. */
static int check_options(struct gw_job_options *o)
{
    if (o->world == 0 || o->world > GW_RANKS_MAX)
        return err_set(GW_E_INVALID, "world is %u; a job has 1 to %u ranks", o->world,
                       GW_RANKS_MAX);
    if (o->rank >= o->world)
        return err_set(GW_E_INVALID, "rank is %u, but the world has ranks 0 to %u", o->rank,
                       o->world - 1);
    if (o->timeout_ns < 0 || o->join_timeout_ns < 0 || o->op_timeout_ns < 0)
        return err_set(GW_E_INVALID, "a timeout is negative; 0 is its default");
    if (o->name && strlen(o->name) > GW_LABEL_MAX)
        return err_set(GW_E_INVALID, "the job's name has %zu bytes, at most %u are allowed",
                       strlen(o->name), GW_LABEL_MAX);
    if (o->nodes > GW_NODES_MAX)
        return err_set(GW_E_INVALID, "nodes is %u; a job may span %u nodes at most", o->nodes,
                       GW_NODES_MAX);
    if (o->device && o->device->ops->version != GW_DEVICE_TABLE)
        return err_set(GW_E_VERSION,
                       "libgradwire-cuda's table has version %u, libgradwire needs %u; install "
                       "both of one release",
                       o->device->ops->version, GW_DEVICE_TABLE);
    o->timeout_ns = o->timeout_ns ? o->timeout_ns : TIMEOUT_DEFAULT_NS;
    o->join_timeout_ns = o->join_timeout_ns ? o->join_timeout_ns : JOIN_DEFAULT_NS;
    o->op_timeout_ns = o->op_timeout_ns ? o->op_timeout_ns : OP_DEFAULT_NS;
    o->linger_ns = o->linger_ns < 0 ? -1 : o->linger_ns;
    return 0;
}

/* Of a good id. */
static void tag_of(const struct gw_job_id *id, uint8_t ret_tag[GW_TAG_BYTES])
{
    /* Less than the 16 bytes that libsodium recommends: a tag is a name and proves nothing. */
    crypto_generichash_blake2b(ret_tag, GW_TAG_BYTES, id->bytes + JOB_ID_NAMED_AT,
                               JOB_ID_NAMED_BYTES, NULL, 0);
}

/* From here on texts name the job by its tag, never by its id. */
static int take_joined(gw_job *job, const struct reply *reply)
{
    const struct wire_msg *msg = reply->msg;
    uint8_t tag[GW_TAG_BYTES];

    channel_join(&job->channel, job->page, job->engine, job->doorbell);
    job->id.size_bytes = msg->u.joined.id_bytes;
    memcpy(job->id.bytes, msg->u.joined.id, sizeof(job->id.bytes));
    job->generation = msg->u.joined.generation;
    if (!job_id_good(job->id.bytes, job->id.size_bytes) || job->generation == 0)
        return err_set(GW_E_PROTOCOL, "the engine's answer to the join holds no job id");
    tag_of(&job->id, tag);
    tag_to_hex(tag, job->tag);
    pthread_mutex_lock(&job->channel.lock);
    snprintf(job->channel.engine, sizeof(job->channel.engine), "engine of job %s", job->tag);
    pthread_mutex_unlock(&job->channel.lock);
    for (uint32_t i = 0; i < job->world; i++)
        job->groups[GW_GROUP_WORLD].ranks[i] = i;
    job->groups[GW_GROUP_WORLD].count = job->world;
    if (msg->u.joined.device != (job->device ? job->device->ops->kind : GW_DEVICE_HOST))
        return err_set(GW_E_PROTOCOL, "the engine took rank %u for one of another device",
                       job->rank);
    if (reply->fd_count != 1)
        return err_set(GW_E_PROTOCOL,
                       "the engine's answer to the join has %u descriptors, expected 1",
                       reply->fd_count);
    return job->device ? order_start(job, reply->fds[0]) : connect_job_page(job, reply->fds[0]);
}

static struct connect_to job_of(const struct gw_job_id *id)
{
    struct connect_to to = {.join = true};
    struct job_address address;

    tag_of(id, to.tag);
    job_id_address(id->bytes, &address);
    to.spans = address.family != 0;
    return to;
}

static void create_message(const struct gw_job_options *o, struct wire_msg *msg)
{
    msg->type = WIRE_JOB_CREATE;
    msg->u.job_create.rank = o->rank;
    msg->u.job_create.world = o->world;
    msg->u.job_create.join_timeout_ns = (uint64_t)o->join_timeout_ns;
    msg->u.job_create.op_timeout_ns = (uint64_t)o->op_timeout_ns;
    msg->u.job_create.linger_ns = o->linger_ns;
    msg->u.job_create.link_bytes_per_s = o->link_bytes_per_s;
    msg->u.job_create.nodes = o->nodes;
    snprintf(msg->u.job_create.name, sizeof(msg->u.job_create.name), "%.*s", (int)GW_LABEL_MAX,
             o->name && o->name[0] ? o->name : program_invocation_short_name);
    if (o->device) {
        msg->u.job_create.device = o->device->ops->kind;
        msg->u.job_create.gpu_bytes = GW_GPU_BYTES;
        memcpy(msg->u.job_create.gpu, o->device->gpu, GW_GPU_BYTES);
    }
}

static void join_message(const struct gw_job_options *o, const struct gw_job_id *id,
                         struct wire_msg *msg)
{
    msg->type = WIRE_JOIN;
    msg->u.join.rank = o->rank;
    msg->u.join.world = o->world;
    msg->u.join.id_bytes = id->size_bytes;
    memcpy(msg->u.join.id, id->bytes, id->size_bytes);
    if (o->device) {
        msg->u.join.device = o->device->ops->kind;
        msg->u.join.gpu_bytes = GW_GPU_BYTES;
        memcpy(msg->u.join.gpu, o->device->gpu, GW_GPU_BYTES);
    }
}

/* A handle that has its welcome. An engine that is ending, or cannot take one more now, says so
 * (GW_E_AGAIN): then once more. */
static int welcomed(const struct gw_job_options *o, const struct connect_to *to, int64_t deadline,
                    gw_job **ret_job)
{
    const struct timespec pause = clock_timespec(AGAIN_NS);
    gw_job *job = NULL;
    int r;

    for (;;) {
        r = job_new(o->device, &job);
        if (r < 0)
            return r;
        r = connect_path(job, o->socket_path);
        if (r == 0)
            r = connect_open(job, to, deadline);
        if (r == 0)
            break;
        job = gw_job_close(job);
        if (r != GW_E_AGAIN || clock_now() + AGAIN_NS > deadline)
            return r;
        nanosleep(&pause, NULL);
    }
    job->rank = o->rank;
    job->world = o->world;
    job->timeout_ns = o->timeout_ns;
    *ret_job = job;
    return 0;
}

/* Both ways into a job: the same handshake, then one request that differs. The message holds the
 * job's secret, so it is wiped. */
static int start(const struct gw_job_options *options, const struct gw_job_id *id, gw_job **ret_job)
{
    struct gw_job_options o;
    struct wire_msg msg;
    struct reply reply = {0};
    struct connect_to to = {0};
    gw_job *job = NULL;
    int64_t deadline;
    int r;

    r = options_take(&o, sizeof(o), options, offsetof(struct gw_job_options, timeout_ns),
                     "gw_job_options");
    if (r == 0)
        r = check_options(&o);
    if (r < 0)
        return r;
    deadline = clock_deadline(o.timeout_ns);
    if (id)
        to = job_of(id);
    r = welcomed(&o, &to, deadline, &job);
    if (r < 0)
        return r;
    memset(&msg, 0, sizeof(msg));
    if (id)
        join_message(&o, id, &msg);
    else
        create_message(&o, &msg);
    r = channel_request(&job->channel, &msg, WIRE_JOINED, CHANNEL_PARK_NONE, deadline, &reply);
    if (r == 0)
        r = take_joined(job, &reply);
    sodium_memzero(&msg, sizeof(msg));
    if (reply.msg)
        sodium_memzero(&reply.msg->u, sizeof(reply.msg->u));
    reply_free(&job->channel, &reply);
    if (r < 0)
        job = gw_job_close(job);
    else
        *ret_job = job;
    return r;
}

int gw_job_create(const struct gw_job_options *options, gw_job **ret_job)
{
    if (!ret_job)
        return err_set(GW_E_INVALID, "ret_job is NULL");
    return start(options, NULL, ret_job);
}

int gw_job_join(const struct gw_job_options *options, const struct gw_job_id *id, gw_job **ret_job)
{
    if (!ret_job || !id)
        return err_set(GW_E_INVALID, "%s is NULL", id ? "ret_job" : "id");
    if (!job_id_good(id->bytes, id->size_bytes))
        return err_set(GW_E_INVALID,
                       "what was given as the job's id (%u bytes) is not an id of gw_job_get_id",
                       id->size_bytes);
    return start(options, id, ret_job);
}

int gw_job_get_id(gw_job *job, struct gw_job_id *ret_id)
{
    int r = job_enter(job);

    if (r == 0 && !ret_id)
        r = err_set(GW_E_INVALID, "ret_id is NULL");
    if (r == 0)
        *ret_id = job->id;
    return r;
}

int gw_job_tag(gw_job *job, char ret_tag[GW_TAG_CHARS])
{
    int r = job_enter(job);

    if (r == 0 && !ret_tag)
        r = err_set(GW_E_INVALID, "ret_tag is NULL");
    if (r == 0)
        memcpy(ret_tag, job->tag, GW_TAG_CHARS);
    return r;
}

uint32_t gw_job_rank(const gw_job *job)
{
    return job ? job->rank : 0;
}

uint32_t gw_job_world(const gw_job *job)
{
    return job ? job->world : 0;
}

uint32_t gw_job_generation(const gw_job *job)
{
    return job ? job->generation : 0;
}

int gw_job_wait_ready(gw_job *job, int64_t timeout_ns)
{
    struct wire_msg msg;
    int r = job_check(job);

    if (r < 0)
        return r;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_WAIT_READY;
    return job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_ANY, clock_deadline(timeout_ns), NULL);
}
