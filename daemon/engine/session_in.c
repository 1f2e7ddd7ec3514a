/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client sends, by its socket until it has joined and by its submission ring from then on;
 * and that it has ended, which its process (pidfd) or its socket tells, whichever is first; what it
 * had sent by then is handed to the job before its end is. Loop thread. What it sends is hostile
 * until wire_decode has checked it; what it means is the job's.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/engine/log.h"
#include "daemon/engine/session_internal.h"

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

    TAILQ_FOREACH(session, &engine->sessions, link)
    {
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

/* One frame of those that lie before `seen`. False: there is none, or no more is heard. */
static bool take(struct session *session, uint64_t seen)
{
    struct packet *packet = &session->engine->packet;
    int bytes = submit_take(&session->submit, seen, packet->data);

    if (bytes == 0)
        return false;
    if (bytes < 0) {
        session_doom(session, GW_E_PROTOCOL, "a malformed record came in the submission ring");
        return false;
    }
    packet->bytes = (size_t)bytes;
    packet->fd_count = 0;
    handle_packet(session, packet);
    return is_heard(session) && session->state == SESSION_JOINED;
}

/* What lies in the ring by now, not what is put there meanwhile. */
static void take_all(struct session *session)
{
    uint64_t seen = submit_seen(&session->submit);

    if (is_heard(session) && session->state == SESSION_JOINED)
        while (take(session, seen))
            ;
}

bool session_has_more(const struct session *session)
{
    return is_heard(session) && submit_seen(&session->submit) != session->submit.at;
}

void session_say_asleep(struct session *session, bool asleep)
{
    struct gw_engine_page *page = session->engine_page->base;
    uint32_t sleeps = atomic_load_explicit(&page->sleeps, memory_order_relaxed);

    if ((sleeps & 1) != asleep)
        atomic_store_explicit(&page->sleeps, sleeps + 1, memory_order_seq_cst);
}

bool session_take_turns(struct engine *engine)
{
    bool some = false;

    for (uint32_t rank = ranks_first(&engine->held); rank < GW_RANKS_MAX;
         rank = ranks_next(&engine->held, rank + 1)) {
        struct session *session = engine->ranks[rank];
        unsigned left = ENGINE_FRAMES_PER_TURN;
        uint64_t seen;

        if (!session_has_more(session))
            continue;
        some = session->busy = true;
        seen = submit_seen(&session->submit);
        while (left-- > 0 && take(session, seen))
            ;
        session->busy = false;
    }
    return some;
}

/* What was said before a request that has been read lies in the rings at the latest. A pass may
 * bring more to be judged, at most one of a kind from each client: its next is refused while one
 * waits. */
bool session_hear_out(struct engine *engine)
{
    uint32_t unheard = engine->job ? job_unheard(engine->job) : 0, before = 0;

    if (unheard == 0)
        return false;
    while (unheard != before) {
        before = unheard;
        for (uint32_t rank = ranks_first(&engine->held); rank < GW_RANKS_MAX;
             rank = ranks_next(&engine->held, rank + 1)) {
            struct session *session = engine->ranks[rank];

            session->busy = true;
            take_all(session);
            session->busy = false;
        }
        unheard = job_unheard(engine->job);
    }
    engine_fault(engine, job_heard(engine->job, now_ns()));
    return true;
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
    if (r == GW_E_PROTOCOL) {
        session_doom(session, GW_E_PROTOCOL, "a packet came that was too long");
    } else if (r <= 0) {
        take_all(session);
        session_close(session, "its connection closed");
    } else if (session->state == SESSION_NEW) {
        handle_packet(session, packet);
    } else {
        packet_close_fds(packet);
        session_doom(session, GW_E_PROTOCOL,
                     "a packet came on the socket: after JOINED frames go into the ring");
    }
    return is_heard(session) ? bytes : 0;
}

/* What lies in the ring or the socket by now, and its end if that has come. Not what is sent
 * meanwhile: a child that keeps a dead client's socket could go on for ever. */
static void drain(struct session *session)
{
    int pending = 0;
    size_t left, bytes;

    take_all(session);
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
    for (uint32_t rank = ranks_first(&engine->held); rank < GW_RANKS_MAX && engine->fault == 0;
         rank = ranks_next(&engine->held, rank + 1))
        hear(engine->ranks[rank]);
}

static struct session *next_doomed(struct engine *engine)
{
    struct session *session;

    TAILQ_FOREACH(session, &engine->sessions, link)
    {
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

void session_on_socket(void *owner, int events)
{
    struct session *session = owner;

    session->busy = true;
    /* After an error libuv watches no more: all must be read now. */
    if (events < 0 ||
        (events & UV_WRITABLE && outbox_flush(&session->outbox, watch_fd(session->socket)) < 0)) {
        finish(session, "its connection broke");
    } else {
        if (events & UV_WRITABLE)
            session_watch(session);
        for (unsigned i = 0; i < ENGINE_FRAMES_PER_TURN && !session->closed; i++)
            if (receive(session) == 0)
                break;
    }
    leave_stack(session);
}

void session_on_process(void *owner, int events)
{
    struct session *session = owner;

    (void)events;
    session->busy = true;
    finish(session, "its process ended");
    leave_stack(session);
}
