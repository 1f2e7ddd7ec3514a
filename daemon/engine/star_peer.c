/* SPDX-License-Identifier: Apache-2.0 */
/* Peers of the star: what is sent to them and heard of them, until they are lost. Star thread.
 * Knows connections by star_internal.h alone, and no sockets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/star_internal.h"
#include "gradwire/errors.h"

static void on_tick(uv_timer_t *timer);
static void on_leave(uv_timer_t *timer);

int star_peer_new(struct star *star, uint32_t number, uint64_t session, struct star_peer **ret_peer)
{
    struct star_peer *peer = calloc(1, sizeof(*peer));

    if (!peer)
        return GW_E_NOMEM;
    peer->star = star;
    peer->number = number;
    peer->session = session;
    peer->references = 2;
    star_list_start(&peer->pending);
    star_flow_start(&peer->flow);
    peer->next = star->peers;
    star->peers = peer;
    star->peer_count++;
    uv_mutex_lock(&star->lock);
    peer->next_named = star->named[number % STAR_NAMED];
    star->named[number % STAR_NAMED] = peer;
    uv_mutex_unlock(&star->lock);
    *ret_peer = peer;
    return 0;
}

struct star_peer *star_peer_find(struct star *star, uint64_t session)
{
    struct star_peer *peer = star->peers;

    while (peer && peer->session != session)
        peer = peer->next;
    return peer;
}

void star_peer_end(struct star *star, struct star_peer *peer)
{
    struct star_peer **at = &star->peers;

    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    star->peer_count--;
    star_flow_end(&peer->flow);
    uv_mutex_lock(&star->lock);
    peer->deaf = true;
    if (star_eased(peer) && !star->freed)
        uv_async_send(&star->heard);
    star_list_end(&peer->pending);
    star_release(peer);
    uv_mutex_unlock(&star->lock);
    if (!star->peers)
        (void)uv_timer_stop(&star->tick);
}

/* Its connection goes on without it, to say good-bye. */
static void let_go(struct star_peer *peer, enum star_bye bye)
{
    struct star_conn *conn = peer->conn;

    if (!conn)
        return;
    peer->conn = NULL;
    conn->peer = NULL;
    if (bye && conn->state == STAR_OPEN_NOW)
        star_conn_bye(conn, bye);
    else
        star_conn_close(conn);
}

void star_peer_lose(struct star_peer *peer, enum star_bye bye, int code, const char *text)
{
    struct star *star = peer->star;

    /* Without memory for these words, nothing can be said; the engine is about to end then. */
    (void)star_tell(peer, STAR_LOST, code, text, strlen(text) + 1);
    let_go(peer, bye);
    star_peer_end(star, peer);
    star_check_end(star);
}

static bool join(struct star_peer *peer, const struct star_conn *conn)
{
    struct star *star = peer->star;
    const uint64_t beat_ms = star->beat_ns / 1000000;

    peer->joined = true;
    if (!uv_is_active((uv_handle_t *)&star->tick)) {
        star->ticked_ns = peer->heard_ns;
        (void)uv_timer_start(&star->tick, on_tick, beat_ms, beat_ms);
    }
    return star_tell(peer, STAR_JOINED, 0, conn->from, strlen(conn->from) + 1);
}

void star_peer_open(struct star_peer *peer, struct star_conn *conn, uint64_t received)
{
    struct star *star = peer->star;

    peer->conn = conn;
    conn->peer = peer;
    conn->state = STAR_OPEN_NOW;
    (void)uv_timer_stop(&conn->timer);
    peer->heard_ns = uv_hrtime();
    star->retry_ns = 0;
    if (!peer->joined && !join(peer, conn))
        star_peer_lose(peer, STAR_BYE_FULL, GW_E_NOMEM, "no memory for it");
    else if (star_flow_resume(&peer->flow, received) < 0)
        star_peer_lose(peer, STAR_BYE_NONSENSE, GW_E_PROTOCOL,
                       "it claims to have received what was never sent");
    else if (!star->root || star_conn_opened(conn, peer->flow.received))
        star_conn_pump(conn);
}

/* ---- records --------------------------------------------------------------------------------- */

size_t star_peer_fill(struct star_peer *peer, bool beat, uint8_t *ret_record)
{
    struct star *star = peer->star;
    uint64_t delivered;

    uv_mutex_lock(&star->lock);
    star_flow_add(&peer->flow, &peer->pending);
    beat |= peer->ack_wanted || peer->flow.unsent;
    delivered = peer->delivered;
    if (beat) {
        peer->ack_wanted = false;
        peer->unacknowledged = 0;
    }
    uv_mutex_unlock(&star->lock);
    return beat ? star_flow_fill(&peer->flow, delivered, ret_record) : 0;
}

static int take_message(void *user, const uint8_t *message, size_t count)
{
    struct star_peer *peer = user;
    struct star *star = peer->star;
    bool more;

    uv_mutex_lock(&star->lock);
    more = peer->undelivered + STAR_COST(count) > STAR_QUEUE_BYTES;
    uv_mutex_unlock(&star->lock);
    if (more)
        return GW_E_LIMIT;
    return star_tell(peer, STAR_MESSAGE, 0, message, count) ? 0 : GW_E_NOMEM;
}

static void take_data(struct star_peer *peer, const uint8_t *record, size_t bytes)
{
    struct star *star = peer->star;
    size_t freed = 0;
    const int r = star_flow_take(&peer->flow, record, bytes, take_message, peer, &freed);

    uv_mutex_lock(&star->lock);
    peer->waiting -= freed;
    if (star_eased(peer))
        uv_async_send(&star->heard);
    uv_mutex_unlock(&star->lock);
    if (r == GW_E_NOMEM)
        star_peer_lose(peer, STAR_BYE_FULL, r, "no memory for what it sent");
    else if (r < 0)
        star_peer_lose(peer, STAR_BYE_NONSENSE, GW_E_PROTOCOL,
                       r == GW_E_LIMIT ? "it sent more than may wait"
                                       : "it sent a malformed record");
}

void star_peer_take(struct star_peer *peer, const uint8_t *record, size_t bytes)
{
    const char *text;
    int code;

    peer->heard_ns = uv_hrtime();
    if (star_bye_get(record, bytes, &code, &text) == 0)
        star_peer_lose(peer, 0, code, text);
    else if (peer->conn->state == STAR_OPEN_NOW)
        take_data(peer, record, bytes);
    else
        star_peer_lose(peer, 0, GW_E_PROTOCOL, "it did not begin as it should");
}

/* ---- leaving --------------------------------------------------------------------------------- */

static void leave(struct star_peer *peer)
{
    struct star *star = peer->star;

    let_go(peer, peer->leaving);
    star_peer_end(star, peer);
    star_check_end(star);
}

static bool has_unsent(struct star_peer *peer)
{
    bool pending;

    uv_mutex_lock(&peer->star->lock);
    pending = peer->pending.first != NULL;
    uv_mutex_unlock(&peer->star->lock);
    return pending || peer->flow.unsent;
}

bool star_peer_idle(struct star_peer *peer)
{
    if (!peer->leaving || (peer->conn && peer->conn->writing) || has_unsent(peer))
        return false;
    leave(peer);
    return true;
}

static void start_leaving(struct star_peer *peer, enum star_bye reason)
{
    struct star *star = peer->star;

    peer->leaving = reason;
    peer->leave_ns = uv_hrtime() + STAR_LEAVE_NS;
    if (!uv_is_active((uv_handle_t *)&star->leave))
        (void)uv_timer_start(&star->leave, on_leave, STAR_LEAVE_NS / 1000000, 0);
}

static void on_leave(uv_timer_t *timer)
{
    struct star *star = timer->data;
    const uint64_t now_ns = uv_hrtime();
    uint64_t first_ns = UINT64_MAX;
    struct star_peer *next;

    for (struct star_peer *peer = star->peers; peer; peer = next) {
        next = peer->next;
        if (!peer->leaving)
            continue;
        if (peer->leave_ns <= now_ns)
            leave(peer);
        else if (peer->leave_ns < first_ns)
            first_ns = peer->leave_ns;
    }
    if (first_ns != UINT64_MAX)
        (void)uv_timer_start(&star->leave, on_leave, (first_ns - now_ns) / 1000000 + 1, 0);
}

/* ---- the thread's turns ---------------------------------------------------------------------- */

void star_peers_wake(struct star *star)
{
    struct star_peer *next;

    for (struct star_peer *peer = star->peers; peer; peer = next) {
        bool behind, dropped, ending;

        next = peer->next;
        uv_mutex_lock(&star->lock);
        behind = peer->behind;
        dropped = peer->dropped;
        ending = star->ending;
        uv_mutex_unlock(&star->lock);
        if (behind) {
            star_peer_lose(peer, STAR_BYE_BEHIND, GW_E_LIMIT,
                           "too much waited for it: it does not keep up");
            continue;
        }
        if ((dropped || ending) && !peer->leaving)
            start_leaving(peer, dropped ? STAR_BYE_SENT_AWAY : STAR_BYE_ENDED);
        if (peer->conn && peer->conn->state == STAR_OPEN_NOW)
            star_conn_pump(peer->conn);
        else
            (void)star_peer_idle(peer);
    }
}

/* false: it is lost, or its connection is broken. */
static bool judge(struct star_peer *peer, uint64_t now_ns)
{
    const struct star *star = peer->star;
    const uint64_t silent_ns = now_ns - peer->heard_ns;
    char text[GW_TEXT_MAX + 1];

    if (silent_ns >= star->lost_ns) {
        snprintf(text, sizeof(text), "nothing was heard of it for %llu ms",
                 (unsigned long long)(silent_ns / 1000000));
        star_peer_lose(peer, STAR_BYE_FORGOTTEN, GW_E_PEER_LOST, text);
        return false;
    }
    if (!peer->conn || peer->conn->state != STAR_OPEN_NOW)
        return false;
    if (silent_ns >= star->lost_ns / 2) {
        star_conn_close(peer->conn);
        return false;
    }
    return true;
}

static void beat(struct star_conn *conn)
{
    const bool due = !conn->wrote;

    conn->wrote = false;
    if (due) {
        conn->beat = true;
        star_conn_pump(conn);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct star *star = timer->data;
    const uint64_t now_ns = uv_hrtime();
    /* A thread that did not run for a while has not read what lies there: nobody was silent. */
    const bool fair = now_ns - star->ticked_ns < 2 * star->beat_ns;
    struct star_peer *next;

    star->ticked_ns = now_ns;
    for (struct star_peer *peer = star->peers; peer; peer = next) {
        next = peer->next;
        if (!peer->joined)
            continue;
        if (fair && !judge(peer, now_ns))
            continue;
        if (peer->conn && peer->conn->state == STAR_OPEN_NOW)
            beat(peer->conn);
    }
}
