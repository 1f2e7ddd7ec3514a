/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the star: bytes in and out, the proof, sealed records, good-byes. Star thread.
 *
 * Until the other side has proved itself, reads ask for exactly what the next step of the proof
 * needs, into a buffer of that size; what a stranger sends beyond stays in the kernel.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/star_internal.h"
#include "gradwire/errors.h"

#define OUT_BYTES STAR_SEALED_BYTES(STAR_RECORD_MAX)

static void on_closed(uv_handle_t *handle)
{
    struct star_conn *conn = handle->data;
    struct star *star = conn->star;
    struct star_conn **at = &star->conns;

    if (--conn->handles > 0)
        return;
    while (*at != conn)
        at = &(*at)->next;
    *at = conn->next;
    star_proof_free(conn->proof);
    free(conn->in);
    free(conn->out);
    free(conn);
    star_check_end(star);
}

void star_conn_close(struct star_conn *conn)
{
    struct star_peer *peer = conn->peer;

    if (conn->closing)
        return;
    conn->closing = true;
    conn->peer = NULL;
    uv_close((uv_handle_t *)&conn->tcp, on_closed);
    uv_close((uv_handle_t *)&conn->timer, on_closed);
    if (peer) {
        peer->conn = NULL;
        star_cut(conn->star, peer, conn->failure);
    }
}

static void on_timer(uv_timer_t *timer)
{
    star_conn_close(timer->data);
}

void star_conn_wait(struct star_conn *conn, uint64_t timeout_ns)
{
    (void)uv_timer_start(&conn->timer, on_timer, (timeout_ns + 999999) / 1000000, 0);
}

int star_conn_new(struct star *star, struct star_conn **ret_conn)
{
    struct star_conn *conn = calloc(1, sizeof(*conn));

    if (!conn)
        return GW_E_NOMEM;
    if (uv_tcp_init(&star->loop, &conn->tcp) != 0) {
        free(conn);
        return GW_E_NOMEM;
    }
    (void)uv_timer_init(&star->loop, &conn->timer);
    conn->star = star;
    conn->handles = 2;
    conn->failure = GW_E_TIMEOUT;
    conn->tcp.data = conn->timer.data = conn;
    conn->next = star->conns;
    star->conns = conn;
    *ret_conn = conn;
    return 0;
}

/* ---- out ------------------------------------------------------------------------------------- */

static void on_written(uv_write_t *request, int status);

/* Writes what the socket takes at once, and has the rest written. false: closed. */
static bool write_out(struct star_conn *conn, size_t bytes)
{
    uv_buf_t buffer = uv_buf_init((char *)conn->out, (unsigned)bytes);
    int n = uv_try_write((uv_stream_t *)&conn->tcp, &buffer, 1);

    if (n == UV_EAGAIN)
        n = 0;
    if (n >= 0 && (size_t)n < bytes) {
        buffer = uv_buf_init((char *)conn->out + n, (unsigned)(bytes - (size_t)n));
        conn->writing = true;
        n = uv_write(&conn->write, (uv_stream_t *)&conn->tcp, &buffer, 1, on_written);
    }
    if (n >= 0)
        return true;
    star_conn_close(conn);
    return false;
}

static void on_shutdown(uv_shutdown_t *request, int status)
{
    (void)request;
    (void)status;
}

/* The last record; then the other side closes, or on_timer does. */
static void write_bye(struct star_conn *conn)
{
    uint8_t record[STAR_BYE_BYTES];

    star_bye_put(conn->bye, record);
    conn->bye = 0;
    if (!write_out(conn, star_seal(conn->proof, record, sizeof(record), conn->out)))
        return;
    if (uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown) != 0)
        star_conn_close(conn);
}

void star_conn_bye(struct star_conn *conn, enum star_bye reason)
{
    conn->state = STAR_LEAVING;
    conn->bye = reason;
    star_conn_wait(conn, STAR_LEAVE_NS);
    if (!conn->writing)
        write_bye(conn);
}

bool star_conn_opened(struct star_conn *conn, uint64_t received)
{
    uint8_t record[STAR_OPENED_BYTES];

    star_opened_put(received, record);
    return write_out(conn, star_seal(conn->proof, record, sizeof(record), conn->out));
}

void star_conn_pump(struct star_conn *conn)
{
    struct star *star = conn->star;

    for (unsigned i = 0; i < STAR_RECORDS_PER_TURN; i++) {
        size_t bytes;

        if (conn->writing)
            return;
        bytes = star_peer_fill(conn->peer, conn->beat, star->record_out);
        if (bytes == 0) {
            (void)star_peer_idle(conn->peer);
            return;
        }
        conn->beat = false;
        conn->wrote = true;
        if (!write_out(conn, star_seal(conn->proof, star->record_out, bytes, conn->out)))
            return;
    }
    uv_async_send(&star->wake);
}

static void on_written(uv_write_t *request, int status)
{
    struct star_conn *conn = request->handle->data;

    conn->writing = false;
    if (conn->closing)
        return;
    if (status < 0)
        star_conn_close(conn);
    else if (conn->state == STAR_OPEN_NOW)
        star_conn_pump(conn);
    else if (conn->bye)
        write_bye(conn);
}

/* ---- in -------------------------------------------------------------------------------------- */

/* Its buffers: from now on it may say as much as a peer. */
static bool proved(struct star_conn *conn)
{
    conn->in = malloc(STAR_IN_BYTES);
    conn->out = malloc(OUT_BYTES);
    conn->used = 0;
    conn->state = STAR_PROVED;
    return conn->in && conn->out;
}

/* A few bytes on a connection where nothing else was written or waits: they fit. */
static bool write_step(struct star_conn *conn, const uint8_t *step, size_t bytes)
{
    uv_buf_t buffer = uv_buf_init((char *)(uintptr_t)step, (unsigned)bytes);

    return bytes == 0 || uv_try_write((uv_stream_t *)&conn->tcp, &buffer, 1) == (int)bytes;
}

static void take_step(struct star_conn *conn)
{
    uint8_t answer[STAR_STEP_MAX];
    size_t bytes;
    const int r = star_proof_take(conn->proof, conn->step, answer, &bytes);

    conn->used = 0;
    if (r == GW_E_VERSION && conn->star->root) { /* so that the node can say so too */
        star_proof_hello(conn->proof, answer);
        (void)write_step(conn, answer, STAR_HELLO_BYTES);
    }
    if (r < 0)
        conn->failure = r;
    if (r < 0 || !write_step(conn, answer, bytes)) {
        star_conn_close(conn);
        return;
    }
    if (star_proof_wants(conn->proof) > 0)
        return;
    if (!proved(conn))
        star_conn_close(conn);
    else if (conn->star->root)
        star_known(conn->star, conn);
}

/* A node's first record: the root has found its session. */
static void take_opened(struct star_conn *conn, const uint8_t *record, size_t bytes)
{
    uint64_t received;

    if (star_opened_get(record, bytes, &received) < 0) {
        star_peer_take(conn->peer, record, bytes); /* BYE, or nonsense */
        return;
    }
    star_peer_open(conn->peer, conn, received);
}

/* Sealed records, as many as have come whole. false: the connection is none any more. */
static bool take_records(struct star_conn *conn)
{
    struct star *star = conn->star;
    size_t at = 0;

    while (conn->used - at >= STAR_LENGTH_BYTES) {
        const size_t bytes = star_sealed_bytes(conn->in + at);
        size_t record_bytes;

        if (bytes > 0 && conn->used - at < bytes)
            break;
        if (bytes == 0 ||
            star_unseal(conn->proof, conn->in + at, bytes, star->record_in, &record_bytes) < 0) {
            /* Not from the peer: somebody meddles. A new connection will tell. */
            star_conn_close(conn);
            return false;
        }
        at += bytes;
        if (conn->state == STAR_PROVED)
            take_opened(conn, star->record_in, record_bytes);
        else
            star_peer_take(conn->peer, star->record_in, record_bytes);
        if (conn->closing || conn->state == STAR_LEAVING)
            return false;
    }
    memmove(conn->in, conn->in + at, conn->used - at);
    conn->used -= at;
    return true;
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buffer)
{
    struct star_conn *conn = handle->data;

    (void)suggested;
    if (conn->state == STAR_PROVING)
        *ret_buffer = uv_buf_init((char *)conn->step + conn->used,
                                  (unsigned)(star_proof_wants(conn->proof) - conn->used));
    else if (conn->state == STAR_LEAVING) /* nobody looks at it */
        *ret_buffer = uv_buf_init((char *)conn->in, STAR_IN_BYTES);
    else
        *ret_buffer =
            uv_buf_init((char *)conn->in + conn->used, (unsigned)(STAR_IN_BYTES - conn->used));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct star_conn *conn = stream->data;

    (void)buffer;
    if (conn->closing || n == 0)
        return;
    if (n < 0) {
        star_conn_close(conn);
    } else if (conn->state == STAR_PROVING) {
        conn->used += (size_t)n;
        if (conn->used == star_proof_wants(conn->proof))
            take_step(conn);
    } else if (conn->state != STAR_LEAVING) {
        conn->used += (size_t)n;
        (void)take_records(conn);
    }
}

void star_conn_begin(struct star_conn *conn)
{
    struct star *star = conn->star;
    struct star_peer *peer = conn->peer;
    const struct star_open open =
        peer ? (struct star_open){peer->session, peer->flow.received, peer->joined}
             : (struct star_open){0};
    uint8_t nonce[STAR_NONCE_BYTES], hello[STAR_HELLO_BYTES];

    (void)uv_tcp_nodelay(&conn->tcp, 1);
    randombytes_buf(nonce, sizeof(nonce));
    if (star_proof_new(star->secret, nonce, peer ? &open : NULL, &conn->proof) < 0 ||
        uv_read_start((uv_stream_t *)&conn->tcp, on_room, on_read) != 0) {
        star_conn_close(conn);
        return;
    }
    if (star->root)
        return;
    star_proof_hello(conn->proof, hello);
    if (!write_step(conn, hello, sizeof(hello)))
        star_conn_close(conn);
}
