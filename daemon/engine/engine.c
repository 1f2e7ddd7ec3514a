/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's life: loop, the job and its device, the job's callbacks, linger, the end. Loop
 * thread; completions reach it from stream threads through one uv_async.
 */
#include "daemon/engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/error.h"
#include "daemon/base/escape.h"
#include "daemon/engine/log.h"

/* ---- the job's callbacks --------------------------------------------------------------------- */

struct session *engine_session(struct engine *engine, uint64_t identity)
{
    struct session *session;

    TAILQ_FOREACH(session, &engine->sessions, link)
    {
        if (session->identity == identity)
            return session;
    }
    return NULL;
}

static void on_reply(void *user, uint32_t rank, uint64_t joiner, const struct wire_msg *msg,
                     const int *fds, unsigned fd_count)
{
    struct engine *engine = user;
    struct session *session = joiner ? engine_session(engine, joiner) : engine->ranks[rank];

    if (joiner && session)
        join_reply(session, rank, msg);
    else if (joiner && msg->type == WIRE_JOINED) /* it is gone meanwhile */
        engine_fault(engine, job_lost(engine->job, now_ns(), rank, "its connection closed"));
    else if (session)
        session_send(session, msg, fds, fd_count);
}

static void on_drop(void *user, uint32_t rank, int code, const char *text)
{
    struct engine *engine = user;
    struct session *session = engine->ranks[rank];

    if (!session)
        return;
    log_line("rank %u (%s, pid %d) is sent away: %s", rank, session->client, (int)session->pid,
             text);
    session_doom(session, code, "%s", text);
    session_unbind(session);
}

static void on_failed(void *user, uint32_t rank, int code, const char *text)
{
    struct engine *engine = user;

    (void)rank;
    log_line("%s: %s", gw_base_error_name(code), text);
    snprintf(engine->wait, sizeof(engine->wait), "%s", text);
}

static void on_report(void *user, const char *text)
{
    struct engine *engine = user;

    log_line("%s", *text ? text : "the wait is over");
    snprintf(engine->wait, sizeof(engine->wait), "%s", text);
}

static void on_end(void *user)
{
    struct engine *engine = user;

    /* Not here: the job is on the stack. */
    engine->end_soon = true;
}

static void on_waits(void *user, const struct device_memory *page, bool made)
{
    struct engine *engine = user;

    engine_guard(engine, page, made);
}

void engine_guard(struct engine *engine, const struct device_memory *page, bool made)
{
    if (engine->guard && made && guard_watch(engine->guard, page) < 0)
        log_line("the guard process is gone: if this one is killed, streams of clients may hang");
    else if (engine->guard && !made)
        guard_forget(engine->guard, page);
}

static void on_wake(void *user)
{
    struct engine *engine = user;

    (void)uv_async_send(&engine->completed); /* a stream's thread */
}

int engine_make_page(enum pages_kind kind, const char *name, uint32_t shm_kind, size_t used,
                     size_t bytes, struct device_memory **ret_page)
{
    struct device_memory *page;
    int r;

    r = pages_new(kind, name, bytes, PAGES_ANYWHERE, &page);
    if (r < 0)
        return r;
    *(struct gw_shm_header *)page->base =
        (struct gw_shm_header){GW_SHM_MAGIC, GW_SHM_VERSION, shm_kind, (uint32_t)used};
    *ret_page = page;
    return 0;
}

/* On GPUs nothing ends for all ranks at once. */
static int make_job_page(struct engine *engine, struct job_config *config)
{
    int r;

    if (config->kind != GW_DEVICE_HOST)
        return 0;
    r = engine_make_page(PAGES_OUT, "gradwire-job", GW_SHM_JOB, sizeof(struct gw_job_page),
                         GW_PAGE_BYTES, &engine->job_page);
    if (r == 0)
        config->page = engine->job_page->base;
    return r;
}

int engine_make_job(struct engine *engine, struct job_config *config)
{
    int r;

    if (config->kind != GW_DEVICE_HOST && !engine->guard && guard_new(&engine->guard) < 0)
        return GW_E_LIMIT;
    r = config->device_ops->device_new(
        &(struct device_config){
            .wake = on_wake,
            .user = engine,
            .priority = engine->options.worker_priority,
            .topology = engine->options.topology.count > 0 ? &engine->options.topology : NULL,
        },
        &config->device);
    if (r < 0)
        return r;
    config->callbacks = (struct job_callbacks){.reply = on_reply,
                                               .drop = on_drop,
                                               .failed = on_failed,
                                               .report = on_report,
                                               .end = on_end,
                                               .waits = on_waits,
                                               .user = engine};
    r = make_job_page(engine, config);
    if (r == 0)
        r = job_new(config, &engine->job);
    if (r < 0) {
        engine->job_page = pages_free(engine->job_page);
        config->device_ops->device_free(config->device);
        return r;
    }
    engine->kind = config->kind;
    engine->device_ops = config->device_ops;
    engine->device = config->device;
    return 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_completed(uv_async_t *async)
{
    struct engine *engine = async->data;

    if (!engine->job || engine->ending)
        return;
    engine_fault(engine, job_completions(engine->job, now_ns()));
    engine_after(engine);
}

static void on_deadline(void *owner)
{
    struct engine *engine = owner;

    if (!engine->job || engine->ending)
        return;
    engine_fault(engine, job_tick(engine->job, now_ns()));
    engine_after(engine);
}

static void on_linger(void *owner)
{
    struct engine *engine = owner;

    log_line("no client: ending");
    engine_stop(engine, GW_E_ENGINE_LOST, "the job has ended");
}

static void on_lost(void *owner)
{
    struct engine *engine = owner;

    engine_stop(engine, GW_E_DEVICE, job_device_lost(engine->job));
}

/* A broken device is never used again: the next job of these ranks has another engine. This one
 * stays for a while, so that who comes hears why. */
static void end_with_device(struct engine *engine)
{
    if (engine->device_lost)
        return;
    engine->device_lost = true;
    engine->linger_ns = 0;
    alarm_set(engine->lost, ENGINE_LOST_NS);
    if (engine->session_count == 0)
        engine_check_linger(engine);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct engine *engine = handle->data;

    log_line("signal %d: ending", number);
    engine_stop(engine, GW_E_ENGINE_LOST, "the job's engine was told to end by a signal");
}

void engine_fault(struct engine *engine, int r)
{
    if (r < 0 && engine->fault == 0)
        engine->fault = r;
}

static void stop_by_fault(struct engine *engine)
{
    char text[GW_TEXT_MAX + 1];

    engine->exit_code = 1;
    snprintf(text, sizeof(text), "the engine cannot go on (%s): %s",
             gw_base_error_name(engine->fault), gw_base_error_message(engine->fault));
    log_line("%s", text);
    engine_stop(engine, engine->fault == GW_E_NOMEM ? GW_E_NOMEM : GW_E_INTERNAL, text);
}

static void arm_deadline(struct engine *engine)
{
    uint64_t due = job_deadline_ns(engine->job), now = now_ns();

    if (due == UINT64_MAX)
        alarm_clear(engine->deadline);
    else
        alarm_set(engine->deadline, due > now ? due - now : 0);
}

static void follow_ranks(struct engine *engine);

void engine_after(struct engine *engine)
{
    if (!engine->ending)
        session_reap(engine);
    if (engine->ending)
        return;
    session_tell_events(engine);
    if (engine->job && job_device_lost(engine->job))
        end_with_device(engine);
    if (engine->ending)
        return;
    if (engine->fault) {
        stop_by_fault(engine);
    } else if (engine->end_soon && !engine->device_lost) {
        engine_stop(engine, GW_E_ENGINE_LOST, "the job has ended: not all ranks came back");
    } else if (engine->job) {
        arm_deadline(engine);
        stats_touch(engine);
        follow_ranks(engine);
    }
}

/* While ranks of other nodes have clients, this node's part of the job is needed: what it sent may
 * be on its way. */
static bool needed_elsewhere(const struct engine *engine)
{
    return engine->nodes && engine->job && ranks_any(core_present(job_core(engine->job)));
}

static void follow_ranks(struct engine *engine)
{
    const struct ranks *present = engine->nodes ? core_present(job_core(engine->job)) : NULL;

    if (!present || ranks_equal(present, &engine->present))
        return;
    engine->present = *present;
    if (engine->session_count == 0)
        engine_check_linger(engine);
}

void engine_check_linger(struct engine *engine)
{
    engine->idle_ns = 0;
    if (engine->session_count > 0 || needed_elsewhere(engine)) {
        alarm_clear(engine->linger);
    } else if (!engine->job || engine->linger_ns == 0) {
        engine_stop(engine, GW_E_ENGINE_LOST, "the job has ended");
    } else {
        engine->idle_ns = now_ns();
        alarm_set(engine->linger, engine->linger_ns);
    }
}

void engine_wanted(struct engine *engine)
{
    if (engine->idle_ns == 0 || !core_over(job_core(engine->job)))
        return;
    log_line("no client, and another job wants a GPU: ending");
    engine_stop(engine, GW_E_ENGINE_LOST,
                "the job has ended: all its ranks had left, and another job wanted a GPU of it");
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Best effort: where the runtime directory is root's, gradwired does it. The socket's own name
 * leads there; gradwired renames the entry (rundir.h there) once it knows the tag. */
static void remove_entry(struct engine *engine)
{
    static const char *const files[] = {"sock", "lock", ""};
    struct sockaddr_un address = {.sun_family = AF_UNSPEC};
    socklen_t bytes = sizeof(address);
    char path[sizeof(address.sun_path) + 40], entry[TAG_HEX_BYTES + 11];
    char *slash;

    if (!engine->listener ||
        getsockname(watch_fd(engine->listener), (struct sockaddr *)&address, &bytes) < 0 ||
        address.sun_family != AF_UNIX || address.sun_path[0] != '/')
        return;
    address.sun_path[sizeof(address.sun_path) - 1] = 0;
    slash = strrchr(address.sun_path, '/');
    *slash = 0; /* the entry's first name */
    if (!strrchr(address.sun_path, '/'))
        return;
    if (engine->options.follow)
        snprintf(entry, sizeof(entry), "%s.%u", engine->tag, getuid());
    else
        snprintf(entry, sizeof(entry), "%s", engine->tag);
    for (int old = 0; old < 2; old++) {
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
            if (old)
                snprintf(path, sizeof(path), "%s/%s", address.sun_path, files[i]);
            else
                snprintf(path, sizeof(path), "%.*s/%s/%s",
                         (int)(strrchr(address.sun_path, '/') - address.sun_path), address.sun_path,
                         entry, files[i]);
            (void)(*files[i] ? unlink(path) : rmdir(path));
        }
    }
}

void engine_stop(struct engine *engine, int code, const char *text)
{
    struct session *session, *next;
    sigset_t told;

    if (engine->ending)
        return;
    engine->ending = true;
    /* Told again, it goes on ending: libuv's handlers go before the process does. */
    sigemptyset(&told);
    sigaddset(&told, SIGTERM);
    sigaddset(&told, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &told, NULL);
    if (engine->job)
        job_fail_all(engine->job, UINT32_MAX, code, text);
    for (session = TAILQ_FIRST(&engine->sessions); session; session = next) {
        next = TAILQ_NEXT(session, link);
        session_doom(session, code, "%s", text);
        session_close(session, text);
    }
    channel_refuse(engine, code, text);
    remove_entry(engine);
    uv_stop(engine->loop);
}

static void close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

struct engine *engine_free(struct engine *engine)
{
    if (!engine)
        return NULL;
    /* First: what is sent goes out, and no event comes any more. */
    engine->nodes = nodes_free(engine->nodes);
    engine->job = job_free(engine->job);
    if (engine->device)
        engine->device_ops->device_free(engine->device);
    pages_free(engine->job_page);
    engine->guard = guard_free(engine->guard);
    if (engine->loop) {
        lease_end(engine);
        channel_end(engine);
        intake_end(engine);
        stats_end(engine);
        alarm_free(engine->deadline);
        alarm_free(engine->linger);
        alarm_free(engine->lost);
        uv_walk(engine->loop, close_handle, NULL);
        (void)uv_run(engine->loop, UV_RUN_DEFAULT);
        int r = uv_loop_close(engine->loop);
        assert(r == 0);
        (void)r;
        free(engine->loop);
    }
    fd_close(&engine->options.channel_fd);
    fd_close(&engine->options.listen_fd);
    fd_close(&engine->options.stats_fd);
    fd_close(&engine->options.lock_fd); /* last: whoever takes the lock finds us gone */
    plugins_free(engine->plugins);
    id_free(engine->id);
    free(engine);
    return NULL;
}

/* ---- start ----------------------------------------------------------------------------------- */

static int start_loop(struct engine *engine)
{
    static const int numbers[2] = {SIGTERM, SIGINT};
    int r;

    engine->loop = calloc(1, sizeof(*engine->loop));
    if (!engine->loop)
        return GW_E_NOMEM;
    if (uv_loop_init(engine->loop) < 0) {
        free(engine->loop);
        engine->loop = NULL;
        return GW_E_NOMEM;
    }
    engine->completed.data = engine;
    if (uv_async_init(engine->loop, &engine->completed, on_completed) < 0)
        return GW_E_IO;
    for (int i = 0; i < 2; i++) {
        engine->signals[i].data = engine;
        if (uv_signal_init(engine->loop, &engine->signals[i]) < 0 ||
            uv_signal_start(&engine->signals[i], on_signal, numbers[i]) < 0)
            return GW_E_IO;
    }
    r = alarm_new(engine->loop, on_deadline, engine, &engine->deadline);
    if (r == 0)
        r = alarm_new(engine->loop, on_linger, engine, &engine->linger);
    if (r == 0)
        r = alarm_new(engine->loop, on_lost, engine, &engine->lost);
    return r;
}

int engine_new(const struct engine_options *options, struct engine **ret_engine)
{
    struct engine *engine = calloc(1, sizeof(*engine));
    int r;

    if (!engine)
        return GW_E_NOMEM;
    engine->options = *options;
    engine->linger_ns = options->linger_ns;
    engine->started_ns = now_ns();
    TAILQ_INIT(&engine->sessions);
    TAILQ_INIT(&engine->leases);
    r = options->follow ? id_follow(options->follow_tag, &engine->id) : id_new(&engine->id);
    if (r == 0) {
        tag_to_hex(engine->id->tag, engine->tag);
        log_set_tag(engine->tag);
        r = start_loop(engine);
    }
    if (r == 0)
        r = plugins_open(&(struct plugins_config){options->offer, options->plugins},
                         &engine->plugins);
    if (r == 0)
        r = intake_start(engine);
    if (r == 0)
        r = stats_start(engine);
    if (r == 0)
        r = channel_start(engine);
    if (r < 0) {
        engine_free(engine);
        return r;
    }
    /* A client is on its way: it must come. */
    alarm_set(engine->linger, ENGINE_FIRST_NS);
    *ret_engine = engine;
    return 0;
}

int engine_run(struct engine *engine)
{
    if (!engine->ending)
        (void)uv_run(engine->loop, UV_RUN_DEFAULT);
    return engine->exit_code;
}
