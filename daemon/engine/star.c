/* SPDX-License-Identifier: Apache-2.0 */
/* The star's calls and its thread: see star.h, star_internal.h. Knows nothing of sockets. */
#include <assert.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/error.h"
#include "daemon/base/text.h"
#include "daemon/engine/star_internal.h"
#include "gradwire/errors.h"

#define CONNECT_NS 10000000000ull

/* ---- events, to the loop thread -------------------------------------------------------------- */

void star_release(struct star_peer *peer)
{
    assert(peer->references > 0);
    if (--peer->references == 0)
        free(peer);
}

static void event_free(struct star_event *event)
{
    sodium_memzero(event->data, event->bytes);
    free(event);
}

bool star_tell(struct star_peer *peer, enum star_event_kind kind, int code, const void *data,
               size_t bytes)
{
    struct star *star = peer->star;
    struct star_event *event = malloc(sizeof(*event) + bytes);

    if (!event)
        return false;
    *event =
        (struct star_event){.peer = peer, .kind = kind, .code = code, .bytes = (uint32_t)bytes};
    if (bytes > 0)
        memcpy(event->data, data, bytes);
    uv_mutex_lock(&star->lock);
    peer->references++;
    if (kind == STAR_MESSAGE)
        peer->undelivered += STAR_COST(bytes);
    *star->last_event = event;
    star->last_event = &event->next;
    uv_mutex_unlock(&star->lock);
    uv_async_send(&star->heard);
    return true;
}

/* Behind those that are due already. */
static void take_events(struct star *star)
{
    uv_mutex_lock(&star->lock);
    if (star->events) {
        *star->last_due = star->events;
        star->last_due = star->last_event;
        star->events = NULL;
        star->last_event = &star->events;
    }
    uv_mutex_unlock(&star->lock);
}

static struct star_event *next_due(struct star *star)
{
    struct star_event *event = star->due;

    if (event && !(star->due = event->next))
        star->last_due = &star->due;
    return event;
}

bool star_full(const struct star *star)
{
    return atomic_load_explicit(&star->full, memory_order_relaxed) > 0;
}

bool star_eased(struct star_peer *peer)
{
    if (!peer->full || (peer->waiting > STAR_FULL_BYTES / 2 && !peer->deaf && !peer->dropped))
        return false;
    peer->full = false;
    atomic_fetch_sub(&peer->star->full, 1);
    return true;
}

/* Loop thread, lock held: the engine cannot name it any more. */
static void forget(struct star *star, struct star_peer *peer)
{
    struct star_peer **at = &star->named[peer->number % STAR_NAMED];

    while (*at && *at != peer)
        at = &(*at)->next_named;
    if (*at)
        *at = peer->next_named;
    peer->forgotten = true;
    star_release(peer);
}

static void call(struct star *star, const struct star_event *event)
{
    const struct star_callbacks *to = &star->callbacks;
    const uint32_t number = event->peer->number;

    if (event->kind == STAR_JOINED)
        to->joined(to->user, number, (const char *)event->data);
    else if (event->kind == STAR_MESSAGE)
        to->message(to->user, number, event->data, event->bytes);
    else
        to->lost(to->user, number, event->code, (const char *)event->data);
}

/* It has been called, or need not be. */
static void delivered(struct star *star, struct star_event *event)
{
    struct star_peer *peer = event->peer;
    const size_t cost = STAR_COST(event->bytes);
    bool wake = false;

    uv_mutex_lock(&star->lock);
    if (event->kind == STAR_MESSAGE) {
        peer->delivered++;
        peer->undelivered -= cost;
        peer->unacknowledged += cost;
        wake = peer->unacknowledged >= STAR_ACK_BYTES && !peer->ack_wanted;
        peer->ack_wanted |= wake;
    }
    if (event->kind == STAR_LOST && !peer->forgotten)
        forget(star, peer);
    star_release(peer);
    uv_mutex_unlock(&star->lock);
    event_free(event);
    if (wake && !star->freed)
        uv_async_send(&star->wake);
}

static void on_heard(uv_async_t *handle)
{
    struct star *star = handle->data;
    struct star_event *event;

    take_events(star);
    while (!(star->root && star_full(star)) && (event = next_due(star)) != NULL) {
        if (!star->freed && !event->peer->forgotten)
            call(star, event);
        delivered(star, event);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void close_handles(struct star *star)
{
    star->ended = true;
    uv_close((uv_handle_t *)&star->wake, NULL);
    uv_close((uv_handle_t *)&star->tick, NULL);
    uv_close((uv_handle_t *)&star->leave, NULL);
    uv_close((uv_handle_t *)&star->retry, NULL);
    if (star->root && !uv_is_closing((uv_handle_t *)&star->listener))
        uv_close((uv_handle_t *)&star->listener, NULL);
}

void star_check_end(struct star *star)
{
    bool ending;

    uv_mutex_lock(&star->lock);
    ending = star->ending;
    uv_mutex_unlock(&star->lock);
    if (!ending || star->ended || star->peers)
        return;
    for (struct star_conn *conn = star->conns; conn; conn = conn->next)
        if (conn->state != STAR_LEAVING)
            star_conn_close(conn);
    if (!star->conns)
        close_handles(star);
}

static void on_wake(uv_async_t *handle)
{
    struct star *star = handle->data;

    star_peers_wake(star);
    star_check_end(star);
}

static void thread_main(void *user)
{
    struct star *star = user;

    if (!star->root)
        star_connect(star);
    (void)uv_run(&star->loop, UV_RUN_DEFAULT);
}

/* Signals are for the loop thread, broken pipes for nobody. */
static int thread_start(struct star *star)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t all, before;
    int r;

    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    r = uv_thread_create(&star->thread, thread_main, star);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r == 0 ? 0 : GW_E_NOMEM;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void memory_free(struct star *star)
{
    uv_mutex_destroy(&star->lock);
    sodium_free(star->secret);
    sodium_memzero(star->record_in, sizeof(star->record_in));
    sodium_memzero(star->record_out, sizeof(star->record_out));
    free(star);
}

static void on_heard_closed(uv_handle_t *handle)
{
    memory_free(handle->data);
}

/* The star's own loop; nothing of it runs before the thread does. */
static int loop_new(struct star *star)
{
    if (uv_loop_init(&star->loop) != 0)
        return GW_E_NOMEM;
    if (uv_async_init(&star->loop, &star->wake, on_wake) != 0) {
        (void)uv_loop_close(&star->loop);
        return GW_E_NOMEM;
    }
    (void)uv_timer_init(&star->loop, &star->tick);
    (void)uv_timer_init(&star->loop, &star->leave);
    (void)uv_timer_init(&star->loop, &star->retry);
    star->wake.data = star->tick.data = star->leave.data = star->retry.data = star;
    return 0;
}

static int star_new(const struct star_config *config, bool root, struct star **ret_star)
{
    const uint64_t beat_ns = config->beat_ns ? config->beat_ns : STAR_BEAT_NS;
    const uint64_t lost_ns = config->lost_ns ? config->lost_ns : STAR_LOST_NS;
    struct star *star;

    /* A connection counts as broken after lost_ns / 2: that must be more than one beat. */
    if (beat_ns < 1000000 || beat_ns > lost_ns / 4)
        return GW_E_INVALID;
    if (sodium_init() < 0)
        return GW_E_INTERNAL;
    star = calloc(1, sizeof(*star));
    if (!star)
        return GW_E_NOMEM;
    star->root = root;
    star->beat_ns = beat_ns;
    star->lost_ns = lost_ns;
    star->peers_max = config->peers_max;
    star->callbacks = config->callbacks;
    star->last_event = &star->events;
    star->last_due = &star->due;
    star->secret = sodium_malloc(JOB_ID_SECRET_BYTES);
    if (!star->secret || uv_mutex_init(&star->lock) != 0) {
        sodium_free(star->secret);
        free(star);
        return GW_E_NOMEM;
    }
    memcpy(star->secret, config->secret, JOB_ID_SECRET_BYTES);
    if (loop_new(star) < 0) {
        memory_free(star);
        return GW_E_NOMEM;
    }
    *ret_star = star;
    return 0;
}

static void loop_free(struct star *star)
{
    int r;

    if (!star->ended)
        close_handles(star);
    (void)uv_run(&star->loop, UV_RUN_DEFAULT);
    r = uv_loop_close(&star->loop);
    assert(r == 0);
}

/* The thread does not run, or has ended. */
static void unmake(struct star *star)
{
    struct star_event *event;

    star->freed = true;
    while (star->peers)
        star_peer_end(star, star->peers);
    loop_free(star);
    take_events(star);
    while ((event = next_due(star)) != NULL)
        delivered(star, event);
    for (uint32_t row = 0; row < STAR_NAMED; row++)
        while (star->named[row])
            forget(star, star->named[row]);
}

static void abandon(struct star *star)
{
    unmake(star);
    memory_free(star);
}

/* All but the thread has been made. */
static int start(struct star *star, uv_loop_t *loop)
{
    int r;

    if (uv_async_init(loop, &star->heard, on_heard) != 0) {
        abandon(star);
        return GW_E_NOMEM;
    }
    star->heard.data = star;
    r = thread_start(star);
    if (r < 0) {
        unmake(star);
        uv_close((uv_handle_t *)&star->heard, on_heard_closed);
    }
    return r;
}

int star_root(const struct star_config *config, struct star **ret_star,
              struct job_address *ret_address, char text[GW_TEXT_MAX + 1])
{
    struct job_address address;
    struct star *star;
    int fd, r;

    r = star_address_choose(config->interface, &address, text);
    if (r == 0)
        r = star_address_listen(&address, config->port_first, config->port_last, &fd, text);
    if (r < 0)
        return r;
    r = star_new(config, true, &star);
    if (r < 0)
        close(fd);
    else if ((r = star_listen(star, fd)) < 0)
        abandon(star);
    else
        r = start(star, config->loop);
    if (r < 0) {
        struct text into;

        text_start(&into, text, GW_TEXT_MAX + 1);
        text_add(&into, "cannot start to listen for other nodes: %s", gw_base_error_message(r));
        return r;
    }
    *ret_address = address;
    *ret_star = star;
    return 0;
}

int star_node(const struct star_config *config, const struct job_address *root,
              struct star **ret_star)
{
    struct sockaddr_storage to;
    struct star_peer *peer;
    struct star *star;
    int r;

    if (!star_address_socket(root, &to))
        return GW_E_INVALID;
    r = star_new(config, false, &star);
    if (r < 0)
        return r;
    star->to = *root;
    randombytes_buf(&star->session, sizeof(star->session));
    star->give_up_ns =
        uv_hrtime() + (config->connect_timeout_ns ? config->connect_timeout_ns : CONNECT_NS);
    r = star_peer_new(star, STAR_ROOT, star->session, &peer);
    if (r < 0) {
        abandon(star);
        return r;
    }
    r = start(star, config->loop);
    if (r == 0)
        *ret_star = star;
    return r;
}

struct star *star_free(struct star *star)
{
    if (!star)
        return NULL;
    uv_mutex_lock(&star->lock);
    star->ending = true;
    uv_mutex_unlock(&star->lock);
    uv_async_send(&star->wake);
    (void)uv_thread_join(&star->thread);
    unmake(star);
    /* The memory goes with the next turn of the engine's loop. */
    uv_close((uv_handle_t *)&star->heard, on_heard_closed);
    return NULL;
}

/* ---- what the engine asks for ---------------------------------------------------------------- */

/* Lock held. */
static struct star_peer *named(struct star *star, uint32_t number)
{
    struct star_peer *peer = star->named[number % STAR_NAMED];

    while (peer && peer->number != number)
        peer = peer->next_named;
    return peer;
}

static int queue(struct star_peer *peer, const void *bytes, size_t count)
{
    int r;

    if (peer->deaf)
        return 0; /* the engine is about to hear why */
    if (peer->waiting + STAR_COST(count) > STAR_QUEUE_BYTES) {
        peer->deaf = peer->behind = true;
        return GW_E_LIMIT;
    }
    r = star_list_add(&peer->pending, bytes, count);
    if (r < 0)
        return r;
    peer->waiting += STAR_COST(count);
    if (peer->waiting > STAR_FULL_BYTES && !peer->full) {
        peer->full = true;
        atomic_fetch_add(&peer->star->full, 1);
    }
    return 0;
}

int star_send(struct star *star, uint32_t peer, const void *bytes, size_t count)
{
    struct star_peer *to;
    int r = GW_E_NOT_FOUND;

    if (count > STAR_MESSAGE_MAX)
        return GW_E_INVALID;
    uv_mutex_lock(&star->lock);
    to = named(star, peer);
    if (to)
        r = queue(to, bytes, count);
    uv_mutex_unlock(&star->lock);
    if (r != GW_E_NOT_FOUND)
        uv_async_send(&star->wake);
    return r;
}

void star_drop(struct star *star, uint32_t peer)
{
    struct star_peer *to;

    uv_mutex_lock(&star->lock);
    to = named(star, peer);
    if (to) {
        to->dropped = true;
        if (star_eased(to))
            uv_async_send(&star->heard);
        forget(star, to);
    }
    uv_mutex_unlock(&star->lock);
    uv_async_send(&star->wake);
}

void star_close_door(struct star *star)
{
    uv_mutex_lock(&star->lock);
    star->door_closed = true;
    uv_mutex_unlock(&star->lock);
}
