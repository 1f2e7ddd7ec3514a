/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections to gradwired: accept, limits, deadlines, end. Loop thread only.
 *
 * Every socket is non-blocking and every send is tried once: who does not read is closed, so nobody
 * can hold the loop up. A connection costs one record and one descriptor until it is handed over.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/supervisor/log.h"
#include "daemon/supervisor/supervisor.h"

#define ACCEPTS_PER_TURN 16
#define ASKING_IDLE_NS 60000000000ull
#define STARVED_SAID_NS 60000000000ull

struct peer *peer_free(struct peer *peer)
{
    if (peer->engine != NULL)
        engine_forget_client(peer->engine, peer);
    TAILQ_REMOVE(&peer->sup->peers, peer, link);
    peer->watch = watch_free(peer->watch);
    peer->alarm = alarm_free(peer->alarm);
    free(peer->hello);
    free(peer);
    return NULL;
}

/* A unix socket closed with unread packets gives its peer ECONNRESET before our last words. */
static void say_close(int fd, int code, const char *text)
{
    char byte;

    (void)packet_send_code(fd, WIRE_CLOSE, 0, code, text);
    (void)shutdown(fd, SHUT_RD);
    for (unsigned i = 0; i < 1024 && recv(fd, &byte, 1, MSG_DONTWAIT) > 0; i++) {
    }
}

void peer_close(struct peer *peer, int code, const char *text)
{
    log_debug("closing a connection of user %u (pid %d): %s", peer->cred.uid, (int)peer->cred.pid,
              text);
    say_close(watch_fd(peer->watch), code, text);
    (void)peer_free(peer);
}

static void on_deadline(void *owner)
{
    struct peer *peer = owner;

    if (peer->state == PEER_HALF_OPEN)
        peer_close(peer, GW_E_TIMEOUT, "no Hello came within 2 s of the connection");
    else if (peer->state == PEER_ASKING && !peer->wants_end)
        peer_close(peer, GW_E_TIMEOUT, "no request came for 60 s");
}

static void on_peer(void *owner, int events)
{
    struct peer *peer = owner;
    struct packet *packet = &peer->sup->packet;
    int r;

    if (peer->state == PEER_WAITING) {
        (void)peer_free(peer); /* only hang-up is watched now */
        return;
    }
    r = packet_receive(watch_fd(peer->watch), packet);
    if (r == GW_E_AGAIN && events >= 0)
        return;
    if (r == GW_E_PROTOCOL) {
        peer_close(peer, GW_E_PROTOCOL, "a packet or its descriptors were cut: too large");
    } else if (r != 1) {
        (void)peer_free(peer);
    } else if (packet->fd_count > 0) {
        packet_close_fds(packet);
        peer_close(peer, GW_E_PROTOCOL, "gradwired takes no descriptors");
    } else {
        request_handle(peer);
    }
}

void peer_asks(struct peer *peer)
{
    peer->state = PEER_ASKING;
    alarm_set(peer->alarm, ASKING_IDLE_NS);
}

int peer_wait(struct peer *peer, struct engine *engine, const struct packet *packet)
{
    peer->hello = malloc(packet->bytes);
    if (peer->hello == NULL)
        return GW_E_NOMEM;
    memcpy(peer->hello, packet->data, packet->bytes);
    peer->hello_bytes = packet->bytes;
    peer->state = PEER_WAITING;
    peer->engine = engine;
    TAILQ_INSERT_TAIL(&engine->waiting, peer, wait_link);
    engine->waiting_count++;
    alarm_clear(peer->alarm);
    return watch_events(peer->watch, UV_DISCONNECT);
}

void peers_answer_end(struct supervisor *sup, int code, const char *text)
{
    struct peer *peer, *next;

    for (peer = TAILQ_FIRST(&sup->peers); peer != NULL; peer = next) {
        next = TAILQ_NEXT(peer, link);
        if (!peer->wants_end)
            continue;
        peer->wants_end = false;
        if (packet_send_code(watch_fd(peer->watch), WIRE_DONE, peer->end_request, code, text) < 0)
            (void)peer_free(peer);
        else
            alarm_set(peer->alarm, ASKING_IDLE_NS);
    }
}

/* ---- accept -------------------------------------------------------------------------------- */

/* Why this user may not connect now, or NULL. */
static int refuse(const struct supervisor *sup, bool admin, const struct ucred *cred, char *text,
                  size_t text_bytes)
{
    const struct peer *peer;
    unsigned connections = 0, half_open = 0;

    if (!sup->privileged && cred->uid != sup->uid && !(admin && cred->uid == 0)) {
        (void)snprintf(text, text_bytes,
                       "this gradwired was started by user %u and serves that user only", sup->uid);
        return GW_E_DENIED;
    }
    TAILQ_FOREACH(peer, &sup->peers, link) {
        if (peer->cred.uid != cred->uid)
            continue;
        connections++;
        half_open += peer->state == PEER_HALF_OPEN;
    }
    if (connections >= sup->conf.max_connections_per_user) {
        (void)snprintf(text, text_bytes,
                       "user %u has %u connections to gradwired, which is the limit "
                       "(max_connections_per_user in gradwired.conf)",
                       cred->uid, connections);
        return GW_E_LIMIT;
    }
    if (half_open >= sup->conf.max_half_open) {
        (void)snprintf(text, text_bytes,
                       "user %u has %u connections that have said nothing yet, which is the limit "
                       "(max_half_open in gradwired.conf)",
                       cred->uid, half_open);
        return GW_E_LIMIT;
    }
    return 0;
}

/* Takes fd over. */
static int peer_new(struct supervisor *sup, bool admin, int fd, const struct ucred *cred)
{
    struct peer *peer = calloc(1, sizeof(*peer));
    int r;

    if (peer == NULL) {
        fd_close(&fd);
        return GW_E_NOMEM;
    }
    peer->sup = sup;
    peer->admin = admin;
    peer->cred = *cred;
    TAILQ_INSERT_TAIL(&sup->peers, peer, link);
    r = watch_new(sup->loop, fd, UV_READABLE | UV_DISCONNECT, on_peer, peer, &peer->watch);
    if (r == 0)
        r = alarm_new(sup->loop, on_deadline, peer, &peer->alarm);
    if (r < 0) {
        (void)peer_free(peer);
        return r;
    }
    alarm_set(peer->alarm, (uint64_t)GW_HELLO_TIMEOUT_NS);
    return 0;
}

static void take_connection(struct listener *listener, int fd)
{
    struct ucred cred = {0};
    socklen_t cred_bytes = sizeof(cred);
    char text[GW_TEXT_MAX + 1];
    int code;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) < 0) {
        fd_close(&fd);
        return;
    }
    code = refuse(listener->sup, listener->admin, &cred, text, sizeof(text));
    if (code < 0) {
        log_debug("refusing a connection of user %u (pid %d): %s", cred.uid, (int)cred.pid, text);
        say_close(fd, code, text);
        fd_close(&fd);
    } else if (peer_new(listener->sup, listener->admin, fd, &cred) < 0) {
        log_error("no memory for a connection of user %u", cred.uid);
    }
}

/* Out of descriptors: the one kept back lets us take the connection off the queue and drop it;
 * left there it would wake the loop for ever. */
static void drop_connection(struct supervisor *sup, int listen_fd)
{
    int fd;

    fd_close(&sup->reserve_fd);
    fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        if (now_ns() - sup->starved_ns > STARVED_SAID_NS) {
            log_error("out of descriptors (LimitNOFILE): connections are refused");
            sup->starved_ns = now_ns();
        }
        say_close(fd, GW_E_LIMIT, "gradwired is out of descriptors; try again later");
        fd_close(&fd);
    }
    sup->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_listener(void *owner, int events)
{
    struct listener *listener = owner;
    int listen_fd = watch_fd(listener->watch);

    (void)events; /* an error shows itself in accept4 */
    for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            take_connection(listener, fd);
        } else if (errno == EMFILE || errno == ENFILE) {
            drop_connection(listener->sup, listen_fd);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

int peers_listen(struct supervisor *sup, bool admin, int fd)
{
    struct listener *listener = &sup->listeners[admin ? 1 : 0];

    listener->sup = sup;
    listener->admin = admin;
    return watch_new(sup->loop, fd, UV_READABLE, on_listener, listener, &listener->watch);
}

void peers_stop_listening(struct supervisor *sup)
{
    for (unsigned i = 0; i < 2; i++)
        sup->listeners[i].watch = watch_free(sup->listeners[i].watch);
}
