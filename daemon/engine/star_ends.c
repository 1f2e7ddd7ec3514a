/* SPDX-License-Identifier: Apache-2.0 */
/* Where the star's connections come from: the root's listener and its strangers; a node's attempts
 * to reach the root. Star thread. */
#include <string.h>
#include <unistd.h>

#include "daemon/base/error.h"
#include "daemon/base/text.h"
#include "daemon/engine/star_internal.h"
#include "gradwire/errors.h"

#define BACKLOG 1024
#define RETRY_FIRST_NS 10000000ull /* doubled */
#define RETRY_MOST_NS 160000000ull
/* The root listens before anybody has its id: refused for so long, it is there no more. */
#define REFUSED_NS 1000000000ull

/* ---- root ------------------------------------------------------------------------------------ */

/* Who waited longest makes room for who comes: a crowd of strangers that say nothing cannot keep a
 * node out, whose proof takes two round trips. (conns: newest first.) */
static void make_room(struct star *star)
{
    struct star_conn *oldest = NULL;
    unsigned strangers = 0;

    for (struct star_conn *conn = star->conns; conn; conn = conn->next) {
        if (conn->state == STAR_PROVING && !conn->closing) {
            strangers++;
            oldest = conn;
        }
    }
    if (strangers >= STAR_STRANGERS)
        star_conn_close(oldest);
}

static void set_from(struct star_conn *conn)
{
    struct sockaddr_storage other;
    struct job_address address;
    int bytes = sizeof(other);

    if (uv_tcp_getpeername(&conn->tcp, (struct sockaddr *)&other, &bytes) == 0 &&
        star_address_of((struct sockaddr *)&other, &address))
        star_address_text(&address, conn->from, sizeof(conn->from));
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct star *star = listener->data;
    struct star_conn *conn;

    if (status < 0)
        return;
    make_room(star);
    if (star_conn_new(star, &conn) < 0)
        return;
    if (uv_accept(listener, (uv_stream_t *)&conn->tcp) != 0) {
        star_conn_close(conn);
        return;
    }
    set_from(conn);
    star_conn_wait(conn, STAR_PROOF_NS);
    star_conn_begin(conn);
}

int star_listen(struct star *star, int fd)
{
    (void)uv_tcp_init(&star->loop, &star->listener);
    star->listener.data = star;
    if (uv_tcp_open(&star->listener, fd) != 0) {
        close(fd);
        return GW_E_IO;
    }
    return uv_listen((uv_stream_t *)&star->listener, BACKLOG, on_connection) == 0 ? 0 : GW_E_IO;
}

static struct star_peer *peer_for(struct star *star, const struct star_open *open,
                                  enum star_bye *ret_refusal)
{
    struct star_peer *peer = star_peer_find(star, open->session);
    bool closed;

    if (peer)
        return peer;
    uv_mutex_lock(&star->lock);
    closed = star->door_closed || star->ending;
    uv_mutex_unlock(&star->lock);
    if (open->resumed)
        *ret_refusal = STAR_BYE_FORGOTTEN;
    else if (closed)
        *ret_refusal = STAR_BYE_DOOR;
    else if (star->peer_count >= star->peers_max ||
             star_peer_new(star, star->last_number + 1, open->session, &peer) < 0)
        *ret_refusal = STAR_BYE_FULL;
    else
        star->last_number++;
    return peer;
}

void star_known(struct star *star, struct star_conn *conn)
{
    const struct star_open *open = star_proof_open(conn->proof);
    enum star_bye refusal = 0;
    struct star_peer *peer = peer_for(star, open, &refusal);

    if (!peer) {
        star_conn_bye(conn, refusal);
        return;
    }
    if (peer->conn) { /* its node has given that one up */
        peer->conn->peer = NULL;
        star_conn_close(peer->conn);
        peer->conn = NULL;
    }
    star_peer_open(peer, conn, open->received);
}

/* ---- node ------------------------------------------------------------------------------------ */

static void not_connected(struct star_conn *conn, int status)
{
    struct star *star = conn->star;

    if (status != UV_ECONNREFUSED)
        star->refused_ns = 0;
    else if (star->refused_ns == 0)
        star->refused_ns = uv_hrtime();
    star->error = status;
    if (status != UV_ETIMEDOUT)
        conn->failure = GW_E_NOT_FOUND;
    star_conn_close(conn);
}

static void on_connect(uv_connect_t *request, int status)
{
    struct star_conn *conn = request->handle->data;

    if (conn->closing)
        return;
    if (status == 0)
        star_conn_begin(conn);
    else
        not_connected(conn, status);
}

/* How long one attempt may take: while the root is being missed, several must find room. */
static uint64_t attempt_ns(const struct star *star, const struct star_peer *peer)
{
    const uint64_t now_ns = uv_hrtime();

    if (peer->joined)
        return star->lost_ns / 4;
    if (star->give_up_ns <= now_ns)
        return 0;
    return star->give_up_ns - now_ns < STAR_PROOF_NS ? star->give_up_ns - now_ns : STAR_PROOF_NS;
}

static void give_up(struct star_peer *peer, int failure)
{
    char buffer[GW_TEXT_MAX + 1];
    struct text text = TEXT(buffer);

    if (failure == GW_E_NOT_FOUND && peer->star->error == UV_ECONNREFUSED)
        text_add(&text,
                 "nobody listens there: has the job ended, or does a firewall refuse its port?");
    else if (failure == GW_E_NOT_FOUND)
        text_add(&text,
                 "it cannot be reached (%s): is it on a network that this node has too? Else set "
                 "star_interface where the job is created",
                 uv_strerror(peer->star->error));
    else if (failure == GW_E_DENIED)
        text_add(&text, "who listens there does not know the job's secret: is the id an old one?");
    else if (failure == GW_E_VERSION)
        text_add(&text,
                 "it speaks another version of the star: install the same gradwire on all nodes");
    else if (failure == GW_E_TIMEOUT)
        text_add(&text, "no answer in time: does a firewall drop what is sent to its port?");
    else
        text_add(&text, "cannot connect: %s", gw_base_error_message(failure));
    star_peer_lose(peer, 0, failure, buffer);
}

static void on_retry(uv_timer_t *timer)
{
    struct star *star = timer->data;
    struct star_peer *peer = star->peers;

    if (!peer || peer->conn)
        return;
    if (!peer->joined && uv_hrtime() >= star->give_up_ns)
        give_up(peer, star->failure);
    else
        star_connect(star);
}

/* The connection to the root, or the attempt, is no more. */
static void again(struct star *star, struct star_peer *peer, int failure)
{
    uint64_t wait_ns = star->retry_ns ? star->retry_ns : RETRY_FIRST_NS;
    const uint64_t now_ns = uv_hrtime();

    if (!peer->joined && (failure == GW_E_DENIED || failure == GW_E_VERSION)) {
        give_up(peer, failure);
        return;
    }
    if (failure != GW_E_NOT_FOUND)
        star->refused_ns = 0;
    if (!peer->joined && star->refused_ns && now_ns - star->refused_ns >= REFUSED_NS) {
        give_up(peer, failure);
        return;
    }
    /* The last attempts have little time: their silence says less than a refusal. */
    if (failure != GW_E_TIMEOUT || !star->failure)
        star->failure = failure;
    star->retry_ns = 2 * wait_ns < RETRY_MOST_NS ? 2 * wait_ns : RETRY_MOST_NS;
    if (!peer->joined && now_ns + wait_ns > star->give_up_ns)
        wait_ns = star->give_up_ns > now_ns ? star->give_up_ns - now_ns : 0;
    (void)uv_timer_start(&star->retry, on_retry, (wait_ns + 999999) / 1000000, 0);
}

void star_cut(struct star *star, struct star_peer *peer, int failure)
{
    if (star_peer_idle(peer))
        return;
    if (!star->root)
        again(star, peer, failure);
}

void star_connect(struct star *star)
{
    struct star_peer *peer = star->peers;
    struct sockaddr_storage to;
    struct star_conn *conn;
    int r;

    if (star_conn_new(star, &conn) < 0) {
        again(star, peer, GW_E_NOMEM);
        return;
    }
    conn->peer = peer;
    peer->conn = conn;
    star_address_text(&star->to, conn->from, sizeof(conn->from));
    star_conn_wait(conn, attempt_ns(star, peer));
    (void)star_address_socket(&star->to, &to);
    r = uv_tcp_connect(&conn->connect, &conn->tcp, (struct sockaddr *)&to, on_connect);
    if (r != 0)
        not_connected(conn, r);
}
