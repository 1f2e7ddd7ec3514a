/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client: its start, its two pages and doorbell, packets to it, and its end. What it sends:
 * session_in.c. Loop thread.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/escape.h"
#include "daemon/base/text.h"
#include "daemon/device/pages.h"
#include "daemon/engine/log.h"
#include "daemon/engine/session_internal.h"
#include "daemon/engine/waits.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* ---- out ------------------------------------------------------------------------------------- */

void session_watch(struct session *session)
{
    int events = UV_READABLE | (outbox_empty(&session->outbox) ? 0 : UV_WRITABLE);

    (void)watch_events(session->socket, events);
}

void session_send(struct session *session, const struct wire_msg *msg, const int *fds,
                  unsigned fd_count)
{
    static uint8_t buffer[GW_FRAME_MAX];
    bool was_empty = outbox_empty(&session->outbox);
    size_t bytes = 0;
    int r;

    if (session->closed || session->doomed)
        return;
    r = wire_encode(msg, buffer, sizeof(buffer), &bytes);
    if (r == 0)
        r = outbox_send(&session->outbox, watch_fd(session->socket), buffer, bytes, fds, fd_count);
    id_wipe(buffer, bytes);
    if (r == 0) {
        if (was_empty && !outbox_empty(&session->outbox))
            session_watch(session);
        return;
    }
    /* A broken socket says so to its watch; here only what nobody else would see. */
    if (r == GW_E_IO && (errno == EPIPE || errno == ECONNRESET))
        return;
    session_doom(session, GW_E_LIMIT, "%s",
                 r == GW_E_LIMIT ? "the client does not read its replies"
                                 : "a reply could not be sent");
}

void session_send_done(struct session *session, uint32_t request, int code, const char *format, ...)
{
    struct wire_msg msg = {.type = WIRE_DONE, .request = request};
    struct text text = TEXT(msg.u.done.text);
    va_list arguments;

    msg.u.done.code = code;
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
    session_send(session, &msg, NULL, 0);
}

/* ---- end ------------------------------------------------------------------------------------- */

void session_doom(struct session *session, int code, const char *format, ...)
{
    struct text text = TEXT(session->doom);
    va_list arguments;

    if (session->closed || session->doomed)
        return;
    session->doomed = true;
    session->doom_code = code;
    va_start(arguments, format);
    text_addv(&text, format, arguments);
    va_end(arguments);
}

void session_unbind(struct session *session)
{
    struct engine *engine = session->engine;

    if (session->state != SESSION_JOINED)
        return;
    session->state = SESSION_LEFT;
    engine->ranks[session->rank] = NULL;
    ranks_drop(&engine->held, session->rank);
    job_detach(engine->job, session->rank);
}

static void discard(struct engine *engine, struct device_memory *page, bool lent)
{
    if (lent)
        job_discard(engine->job, page);
    else
        pages_free(page);
}

/* Its streams, if it lives yet, wait for nothing any more. */
static void session_drop_waits(struct session *session)
{
    struct device_memory *page = session->wait_page;

    if (!page)
        return;
    waits_release(page->base, page->bytes);
    engine_guard(session->engine, page, false);
    discard(session->engine, page, true);
}

void session_free(struct session *session)
{
    struct engine *engine = session->engine;

    watch_free(session->socket);
    intake_unhang(engine, &session->doorbell);
    watch_free(session->process);
    alarm_free(session->alarm);
    fd_close(&session->event);
    outbox_end(&session->outbox);
    free(session->asked);
    discard(engine, session->client_page, session->client_lent);
    discard(engine, session->engine_page, session->engine_lent);
    session_drop_waits(session);
    free(session);
}

static void send_close(struct session *session)
{
    if (!outbox_empty(&session->outbox) &&
        outbox_flush(&session->outbox, watch_fd(session->socket)) < 0)
        return;
    if (outbox_empty(&session->outbox))
        (void)packet_send_code(watch_fd(session->socket), WIRE_CLOSE, 0, session->doom_code,
                               session->doom);
}

void session_close(struct session *session, const char *how)
{
    struct engine *engine = session->engine;
    uint32_t rank = session->rank;
    bool held = session->state == SESSION_JOINED;
    int r = 0;

    if (session->closed)
        return;
    if (session->doomed)
        send_close(session);
    session->closed = true;
    TAILQ_REMOVE(&engine->sessions, session, link);
    engine->session_count--;
    if (held && !engine->ending)
        log_line("rank %u (%s, pid %d) is gone: %s", rank, session->client, (int)session->pid, how);
    if (held) {
        engine->ranks[rank] = NULL;
        ranks_drop(&engine->held, rank);
        if (!engine->ending)
            r = job_lost(engine->job, now_ns(), rank, how);
        session->state = SESSION_LEFT;
        job_detach(engine->job, rank);
    }
    engine_fault(engine, r);
    if (!session->busy)
        session_free(session);
    if (!engine->ending)
        engine_check_linger(engine);
}

/* ---- start ----------------------------------------------------------------------------------- */

static void on_alarm(void *owner)
{
    struct session *session = owner;

    if (session->state != SESSION_NEW)
        return;
    session_doom(session, GW_E_TIMEOUT, "no JOB_CREATE or JOIN came in time");
    engine_after(session->engine);
}

/* By the socket where the kernel can say it, else by number: the connection was made moments
 * ago. */
static int open_pidfd(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t bytes = sizeof(pidfd);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0)
        return pidfd;
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static int make_watches(struct session *session, int fd)
{
    struct engine *engine = session->engine;
    int pidfd = open_pidfd(fd, session->pid);
    int r;

    r = watch_new(engine->loop, fd, UV_READABLE, session_on_socket, session, &session->socket);
    if (r == 0 && pidfd >= 0) {
        r = watch_new(engine->loop, pidfd, UV_READABLE, session_on_process, session,
                      &session->process);
        pidfd = -1;
    } else if (r == 0) {
        log_line("client %s (pid %d) is in another pid namespace: its end is seen by its socket "
                 "alone",
                 session->client, (int)session->pid);
    }
    fd_close(&pidfd);
    if (r < 0)
        return r;
    r = intake_hang(engine, &session->doorbell);
    if (r == 0)
        r = alarm_new(engine->loop, on_alarm, session, &session->alarm);
    if (r == 0)
        alarm_set(session->alarm, ENGINE_FIRST_NS);
    return r;
}

static int make_pages(struct session *session)
{
    int r;

    r = engine_make_page(PAGES_SHARED, "gradwire-client", GW_SHM_CLIENT,
                         sizeof(struct gw_client_page), GW_CLIENT_PAGE_BYTES,
                         &session->client_page);
    if (r == 0)
        r = engine_make_page(PAGES_OUT, "gradwire-engine", GW_SHM_ENGINE,
                             sizeof(struct gw_engine_page), GW_ENGINE_PAGE_BYTES,
                             &session->engine_page);
    if (r == 0)
        submit_reader_start(&session->submit, session->client_page->base,
                            session->engine_page->base);
    return r;
}

/* Nothing that others of the job use: whoever has the user's id and the tag gets this far. */
static void welcome(struct session *session)
{
    struct wire_msg msg = {.type = WIRE_WELCOME};
    int fds[3] = {session->client_page->fd, session->engine_page->fd, session->doorbell};

    msg.u.welcome.version = GW_PROTOCOL_VERSION;
    msg.u.welcome.engine_pid = (uint32_t)getpid();
    session_send(session, &msg, fds, 3);
}

/* Two for each rank, for its last client may be there yet, and some to be sent away. Before the job
 * is made: who would make it; or, on a node that follows, as many as a job may have ranks, which
 * come at once. */
static unsigned sessions_max(const struct engine *engine)
{
    unsigned ranks = engine->job              ? job_world(engine->job)
                     : engine->options.follow ? GW_RANKS_MAX
                                              : 0;
    unsigned most = 2 * ranks + 32;

    return most > ENGINE_SESSIONS_LEAST ? most : ENGINE_SESSIONS_LEAST;
}

/* 0, or why this client cannot be served. */
static int check_client(struct engine *engine, int fd, const struct wire_msg *hello,
                        struct ucred *ret_cred, struct text *why)
{
    socklen_t bytes = sizeof(*ret_cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret_cred, &bytes) < 0) {
        text_add(why, "the connection does not say who it is");
        return GW_E_DENIED;
    }
    if (ret_cred->uid != getuid()) {
        text_add(why, "this job belongs to user %u, not to user %u", getuid(), ret_cred->uid);
        return GW_E_DENIED;
    }
    if (!hello || hello->type != WIRE_HELLO) {
        text_add(why, "the first message must be HELLO");
        return GW_E_PROTOCOL;
    }
    if (hello->u.hello.version_min > GW_PROTOCOL_VERSION ||
        hello->u.hello.version_max < GW_PROTOCOL_VERSION) {
        text_add(why,
                 "this engine speaks protocol %u, the client %u to %u: use a client library "
                 "of the same release",
                 GW_PROTOCOL_VERSION, hello->u.hello.version_min, hello->u.hello.version_max);
        return GW_E_VERSION;
    }
    if (hello->u.hello.tag_bytes > 0 &&
        memcmp(hello->u.hello.tag, engine->id->tag, GW_TAG_BYTES) != 0) {
        text_add(why, "this engine runs another job");
        return GW_E_NOT_FOUND;
    }
    if (engine->session_count >= sessions_max(engine)) {
        text_add(why, "%u clients are connected to this job already", engine->session_count);
        return GW_E_LIMIT;
    }
    return 0;
}

void session_start(struct engine *engine, int fd, const uint8_t *hello, size_t hello_bytes)
{
    char line[GW_TEXT_MAX + 1] = "no memory for a client";
    struct text why = TEXT(line);
    struct session *session = NULL;
    struct wire_msg *msg = NULL;
    struct ucred cred;
    uint32_t request;
    int r;

    (void)wire_decode(hello, hello_bytes, &msg, &request);
    r = check_client(engine, fd, msg, &cred, &why);
    if (r == 0) {
        session = calloc(1, sizeof(*session));
        r = session ? 0 : GW_E_NOMEM;
    }
    if (r < 0) {
        (void)packet_send_code(fd, WIRE_CLOSE, 0, r, line);
        fd_close(&fd);
        wire_free(msg);
        return;
    }
    session->engine = engine;
    session->doorbell = session->event = -1;
    session->identity = ++engine->identities;
    session->pid = cred.pid;
    outbox_start(&session->outbox);
    escape_string(msg->u.hello.client, session->client, sizeof(session->client));
    wire_free(msg);
    TAILQ_INSERT_TAIL(&engine->sessions, session, link);
    engine->session_count++;
    r = make_watches(session, fd); /* first: the socket tells what follows */
    if (r == 0)
        r = make_pages(session);
    if (r < 0) {
        log_line("client %s (pid %d) cannot be served: no memory or descriptors", session->client,
                 (int)session->pid);
        session_doom(session, r,
                     "the job's engine has no memory or descriptors for another client: raise its "
                     "limits, or free buffers");
        session_close(session, "it could not be served");
        return;
    }
    welcome(session);
    engine_check_linger(engine);
}
