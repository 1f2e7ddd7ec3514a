/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client: its two pages and doorbell, packets in and out, and its death, which its process
 * (pidfd) or its socket tells, whichever is first; what it had sent by then is handed to the job
 * before its end is. Loop thread. What it sends is hostile until wire_decode has checked it; what
 * it means is the job's.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/escape.h"
#include "daemon/base/text.h"
#include "daemon/device/pages.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* ---- out ------------------------------------------------------------------------------------- */

static void watch_socket(struct session *session)
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
            watch_socket(session);
        return;
    }
    /* A broken socket says so to its watch; here only what nobody else would see. */
    if (r == GW_E_IO && (errno == EPIPE || errno == ECONNRESET))
        return;
    session_doom(session, GW_E_LIMIT, "%s",
                 r == GW_E_LIMIT ? "the client does not read its replies"
                                 : "a reply could not be sent");
}

void session_send_done(struct session *session, uint32_t request, int code, const char *format,
                       ...)
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
    job_detach(engine->job, session->rank);
}

static void discard(struct engine *engine, struct device_memory *page, bool lent)
{
    if (lent)
        job_discard(engine->job, page);
    else
        pages_free(page);
}

static void session_free(struct session *session)
{
    struct engine *engine = session->engine;

    watch_free(session->socket);
    watch_free(session->doorbell);
    watch_free(session->process);
    alarm_free(session->alarm);
    fd_close(&session->event);
    outbox_end(&session->outbox);
    discard(engine, session->client_page, session->client_lent);
    discard(engine, session->engine_page, session->engine_lent);
    free(session);
}

static void send_close(struct session *session)
{
    if (!outbox_empty(&session->outbox) && outbox_flush(&session->outbox,
                                                        watch_fd(session->socket)) < 0)
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
        log_line("rank %u (%s, pid %d) is gone: %s", rank, session->client, (int)session->pid,
                 how);
    if (held) {
        engine->ranks[rank] = NULL;
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

/* ---- in -------------------------------------------------------------------------------------- */

static void handle_joined(struct session *session, const struct wire_msg *msg)
{
    struct engine *engine = session->engine;
    int r = job_request(engine->job, now_ns(), session->rank, msg);

    if (r == 0 && msg->type == WIRE_LEAVE)
        session_unbind(session);
    engine_fault(engine, r);
}

/* For clients that wait in an event loop. Written by the loop, after completions: the words have
 * risen by then, and a stream's thread need not know of it. */
static void event_get(struct session *session, const struct wire_msg *msg)
{
    struct wire_msg reply = {.type = WIRE_DONE, .request = msg->request};
    const struct gw_engine_page *page = session->engine_page->base;

    if (session->event < 0)
        session->event = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK); /* 1: look now, once */
    if (session->event < 0) {
        session_send_done(session, msg->request, GW_E_LIMIT,
                          "no descriptor for the job's events: raise the engine's file limit");
        return;
    }
    session->event_wake = atomic_load(&page->wake);
    session_send(session, &reply, &session->event, 1);
}

void session_tell_events(struct engine *engine)
{
    struct session *session;

    TAILQ_FOREACH(session, &engine->sessions, link) {
        const struct gw_engine_page *page =
            session->engine_page ? session->engine_page->base : NULL;
        uint64_t one = 1;
        uint32_t wake;

        if (session->event < 0 || !page)
            continue;
        wake = atomic_load(&page->wake);
        if (wake == session->event_wake)
            continue;
        session->event_wake = wake;
        /* A full counter is readable already. */
        if (write(session->event, &one, sizeof(one)) < 0 && errno != EAGAIN)
            log_line("rank %u: its event descriptor broke", session->rank);
    }
}

static void handle_message(struct session *session, struct wire_msg *msg)
{
    if (session->state == SESSION_JOINED && msg->type == WIRE_EVENT_GET && msg->request > 0)
        event_get(session, msg);
    else if (session->state == SESSION_JOINED)
        handle_joined(session, msg);
    else if (session->state == SESSION_LEFT)
        return; /* it said that it would send no more */
    else if (msg->type == WIRE_JOB_CREATE && msg->request > 0)
        join_create(session, msg);
    else if (msg->type == WIRE_JOIN && msg->request > 0)
        join_join(session, msg);
    else
        session_doom(session, GW_E_PROTOCOL, "%s came before JOB_CREATE or JOIN",
                     wire_type_name(msg->type));
}

static void handle_packet(struct session *session, struct packet *packet)
{
    struct wire_msg *msg = NULL;
    uint32_t request = 0;
    int r;

    if (packet->fd_count > 0) {
        packet_close_fds(packet);
        session_doom(session, GW_E_PROTOCOL, "descriptors came that nobody asked for");
        return;
    }
    r = wire_decode(packet->data, packet->bytes, &msg, &request);
    if (msg && msg->type == WIRE_JOIN)
        id_wipe(packet->data, packet->bytes); /* its handler reads others' packets to there */
    if (r == GW_E_UNIMPLEMENTED && request > 0)
        session_send_done(session, request, GW_E_UNIMPLEMENTED,
                          "this engine (protocol %u) does not know that message",
                          GW_PROTOCOL_VERSION);
    else if (r == GW_E_NOMEM)
        session_doom(session, GW_E_NOMEM, "no memory for a message");
    else if (r < 0)
        session_doom(session, GW_E_PROTOCOL, "a malformed message came");
    else
        handle_message(session, msg);
    if (msg) {
        if (msg->type == WIRE_JOIN)
            id_wipe(&msg->u.join, sizeof(msg->u.join));
        wire_free(msg);
    }
}

/* What a client that broke the protocol, or of which a message was lost, says later means nothing;
 * one that does not read its replies has still said what it said. */
static bool is_heard(const struct session *session)
{
    return !session->closed && session->engine->fault == 0 &&
           (!session->doomed || session->doom_code == GW_E_LIMIT);
}

/* Bytes of the packet that was handled; 0: nothing more to read for now. */
static size_t receive(struct session *session)
{
    struct packet *packet = &session->engine->packet;
    size_t bytes;
    int r;

    r = packet_receive(watch_fd(session->socket), packet);
    /* Comes once, if the client closed with replies unread, and before what it had sent. */
    if (r == GW_E_IO && errno == ECONNRESET)
        r = packet_receive(watch_fd(session->socket), packet);
    bytes = packet->bytes;
    if (r == GW_E_AGAIN)
        return 0;
    if (r == GW_E_PROTOCOL)
        session_doom(session, GW_E_PROTOCOL, "a packet came that was too long");
    else if (r <= 0)
        session_close(session, "its connection closed");
    else
        handle_packet(session, packet);
    return is_heard(session) ? bytes : 0;
}

/* What lies in the socket by now, and its end if that has come. Not what is sent meanwhile: a
 * child that keeps a dead client's socket could go on for ever. */
static void drain(struct session *session)
{
    int pending = 0;
    size_t left, bytes;

    if (!is_heard(session))
        return;
    if (ioctl(watch_fd(session->socket), FIONREAD, &pending) < 0)
        pending = 0;
    left = (size_t)pending;
    while ((bytes = receive(session)) > 0 && bytes <= left)
        left -= bytes;
}

/* A last hearing, then the end. On the session's own stack. */
static void finish(struct session *session, const char *how)
{
    drain(session);
    if (!session->closed)
        session_close(session, how);
}

static bool process_ended(const struct session *session)
{
    struct pollfd process = {.fd = watch_fd(session->process), .events = POLLIN};

    return poll(&process, 1, 0) > 0;
}

/* Of a session that is not on the stack: it is freed if it has ended. */
static void hear(struct session *session)
{
    bool ended = process_ended(session); /* before reading: it sends nothing after */

    session->busy = true;
    drain(session);
    session->busy = false;
    if (session->closed)
        session_free(session);
    else if (session->doomed)
        session_close(session, session->doom);
    else if (ended)
        session_close(session, "its process ended");
}

void session_hear_ranks(struct engine *engine)
{
    for (uint32_t rank = 0; rank < GW_RANKS_MAX && engine->fault == 0; rank++) {
        if (engine->ranks[rank])
            hear(engine->ranks[rank]);
    }
}

static struct session *next_doomed(struct engine *engine)
{
    struct session *session;

    TAILQ_FOREACH(session, &engine->sessions, link) {
        if (session->doomed && !session->busy)
            return session;
    }
    return NULL;
}

void session_reap(struct engine *engine)
{
    struct session *session;

    /* From the front each time: closing one may doom others, anywhere in the list. */
    while ((session = next_doomed(engine)) != NULL)
        hear(session);
}

static void leave_stack(struct session *session)
{
    struct engine *engine = session->engine;

    session->busy = false;
    if (session->closed)
        session_free(session);
    engine_after(engine);
}

static void on_socket(void *owner, int events)
{
    struct session *session = owner;

    session->busy = true;
    /* After an error libuv watches no more: all must be read now. */
    if (events < 0 || (events & UV_WRITABLE &&
                       outbox_flush(&session->outbox, watch_fd(session->socket)) < 0)) {
        finish(session, "its connection broke");
    } else {
        if (events & UV_WRITABLE)
            watch_socket(session);
        for (unsigned i = 0; i < ENGINE_PACKETS_PER_TURN && !session->closed; i++)
            if (receive(session) == 0)
                break;
    }
    leave_stack(session);
}

static void on_process(void *owner, int events)
{
    struct session *session = owner;

    (void)events;
    session->busy = true;
    finish(session, "its process ended");
    leave_stack(session);
}

static void on_doorbell(void *owner, int events)
{
    struct session *session = owner;
    uint64_t rings;

    (void)events;
    /* A client that takes the count away itself only loses its own bell. */
    if (read(watch_fd(session->doorbell), &rings, sizeof(rings)) < 0 && errno != EAGAIN)
        return;
    if (session->engine->device)
        session->engine->device_ops->kick(session->engine->device);
}

static void on_alarm(void *owner)
{
    struct session *session = owner;

    if (session->state != SESSION_NEW)
        return;
    session_doom(session, GW_E_TIMEOUT, "no JOB_CREATE or JOIN came in time");
    engine_after(session->engine);
}

/* ---- start ----------------------------------------------------------------------------------- */

static int make_page(enum pages_kind kind, const char *name, uint32_t shm_kind, size_t used,
                     size_t bytes, struct device_memory **ret_page)
{
    struct device_memory *page;
    int r;

    r = pages_new(kind, name, bytes, &page);
    if (r < 0)
        return r;
    *(struct gw_shm_header *)page->base =
        (struct gw_shm_header){GW_SHM_MAGIC, GW_SHM_VERSION, shm_kind, (uint32_t)used};
    *ret_page = page;
    return 0;
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
    int doorbell, pidfd = open_pidfd(fd, session->pid);
    int r;

    r = watch_new(engine->loop, fd, UV_READABLE, on_socket, session, &session->socket);
    if (r == 0 && pidfd >= 0) {
        r = watch_new(engine->loop, pidfd, UV_READABLE, on_process, session, &session->process);
        pidfd = -1;
    } else if (r == 0) {
        log_line("client %s (pid %d) is in another pid namespace: its end is seen by its socket "
                 "alone", session->client, (int)session->pid);
    }
    fd_close(&pidfd);
    if (r < 0)
        return r;
    doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (doorbell < 0)
        return GW_E_LIMIT;
    r = watch_new(engine->loop, doorbell, UV_READABLE, on_doorbell, session, &session->doorbell);
    if (r == 0)
        r = alarm_new(engine->loop, on_alarm, session, &session->alarm);
    if (r == 0)
        alarm_set(session->alarm, ENGINE_FIRST_NS);
    return r;
}

static int make_pages(struct session *session)
{
    int r;

    r = make_page(PAGES_SHARED, "gradwire-client", GW_SHM_CLIENT, sizeof(struct gw_client_page),
                  GW_PAGE_BYTES, &session->client_page);
    if (r == 0)
        r = make_page(PAGES_OUT, "gradwire-engine", GW_SHM_ENGINE, sizeof(struct gw_engine_page),
                      GW_ENGINE_PAGE_BYTES, &session->engine_page);
    return r;
}

static void welcome(struct session *session)
{
    struct wire_msg msg = {.type = WIRE_WELCOME};
    int fds[3] = {session->client_page->fd, session->engine_page->fd,
                  watch_fd(session->doorbell)};

    msg.u.welcome.version = GW_PROTOCOL_VERSION;
    msg.u.welcome.engine_pid = (uint32_t)getpid();
    session_send(session, &msg, fds, 3);
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
        text_add(why, "this engine speaks protocol %u, the client %u to %u: use a client library "
                 "of the same release", GW_PROTOCOL_VERSION, hello->u.hello.version_min,
                 hello->u.hello.version_max);
        return GW_E_VERSION;
    }
    if (hello->u.hello.tag_bytes > 0 &&
        memcmp(hello->u.hello.tag, engine->id->tag, GW_TAG_BYTES) != 0) {
        text_add(why, "this engine runs another job");
        return GW_E_NOT_FOUND;
    }
    if (engine->session_count >= ENGINE_SESSIONS_MAX) {
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
    session->event = -1;
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
