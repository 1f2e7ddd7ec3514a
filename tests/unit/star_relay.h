/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay between nodes and their root, on the kit's loop: passes bytes on, late if asked; stops,
 * cuts and goes on when the test says so; cuts or turns a bit over after so many bytes; keeps the
 * first that went to the root.
 */
#ifndef TESTS_UNIT_STAR_RELAY_H
#define TESTS_UNIT_STAR_RELAY_H

#include <signal.h>

#include "tests/unit/star_kit.h"

#define RELAY_KEPT 256u

struct relay_chunk {
    struct relay_chunk *next;
    uv_write_t write;
    uint64_t due_ns;
    size_t bytes;
    char data[];
};

struct relay_pair;

struct relay_end {
    struct relay_pair *pair;
    uv_tcp_t tcp;
    struct relay_chunk *first, **last; /* to be written to it */
};

struct relay_pair {
    struct relay_pair *next;
    struct relay *relay;
    struct relay_end ends[2]; /* node, root */
    uv_connect_t connect;
    unsigned handles;
    bool connected, closing;
};

struct relay {
    uv_tcp_t listener;
    uv_timer_t timer;
    struct job_address address, to;
    struct relay_pair *pairs;
    unsigned connections, cuts;
    uint64_t delay_ns, passed;
    bool frozen;
    uint64_t cut_at, flip_at; /* bytes passed by then; 0: never */
    size_t kept_bytes;
    uint8_t kept[RELAY_KEPT];
};

static inline void relay_on_closed(uv_handle_t *handle)
{
    struct relay_end *end = handle->data;
    struct relay_pair *pair = end->pair;
    struct relay_pair **at = &pair->relay->pairs;

    for (struct relay_chunk *chunk; (chunk = end->first);) {
        end->first = chunk->next;
        free(chunk);
    }
    if (--pair->handles > 0)
        return;
    while (*at != pair)
        at = &(*at)->next;
    *at = pair->next;
    free(pair);
}

static inline void relay_close(struct relay_pair *pair)
{
    if (pair->closing)
        return;
    pair->closing = true;
    uv_close((uv_handle_t *)&pair->ends[0].tcp, relay_on_closed);
    uv_close((uv_handle_t *)&pair->ends[1].tcp, relay_on_closed);
}

static inline void relay_cut(struct relay *relay)
{
    relay->cuts++;
    for (struct relay_pair *pair = relay->pairs; pair; pair = pair->next)
        relay_close(pair);
}

static inline void relay_on_written(uv_write_t *request, int status)
{
    (void)status;
    free(request->data);
}

/* What is to happen to these bytes. false: they were the last. */
static inline bool relay_judge(struct relay *relay, struct relay_chunk *chunk, bool to_root)
{
    const uint64_t end = relay->passed + chunk->bytes;

    if (to_root && relay->kept_bytes < RELAY_KEPT) {
        size_t more = RELAY_KEPT - relay->kept_bytes;
        more = more < chunk->bytes ? more : chunk->bytes;
        memcpy(relay->kept + relay->kept_bytes, chunk->data, more);
        relay->kept_bytes += more;
    }
    if (relay->flip_at && end >= relay->flip_at) {
        chunk->data[relay->flip_at - relay->passed - 1] ^= 4;
        relay->flip_at = 0;
    }
    if (relay->cut_at && end >= relay->cut_at) {
        chunk->bytes = (size_t)(relay->cut_at - relay->passed);
        relay->passed = relay->cut_at;
        relay->cut_at = 0;
        return false;
    }
    relay->passed = end;
    return true;
}

static inline void relay_flush_end(struct relay_end *end)
{
    struct relay_pair *pair = end->pair;
    struct relay *relay = pair->relay;

    while (!relay->frozen && !pair->closing && pair->connected && end->first &&
           end->first->due_ns <= uv_hrtime()) {
        struct relay_chunk *chunk = end->first;
        bool more;
        uv_buf_t buffer;

        end->first = chunk->next;
        if (!end->first)
            end->last = &end->first;
        more = relay_judge(relay, chunk, end == &pair->ends[1]);
        buffer = uv_buf_init(chunk->data, (unsigned)chunk->bytes);
        chunk->write.data = chunk;
        if (uv_write(&chunk->write, (uv_stream_t *)&end->tcp, &buffer, 1, relay_on_written) != 0)
            free(chunk);
        if (!more)
            relay_cut(relay);
    }
}

static inline void relay_on_timer(uv_timer_t *timer)
{
    struct relay *relay = timer->data;

    for (struct relay_pair *pair = relay->pairs; pair; pair = pair->next) {
        relay_flush_end(&pair->ends[0]);
        relay_flush_end(&pair->ends[1]);
    }
}

static inline void relay_on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buffer)
{
    static char room[65536];

    (void)handle;
    (void)suggested;
    *ret_buffer = uv_buf_init(room, sizeof(room));
}

static inline void relay_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct relay_end *from = stream->data;
    struct relay_pair *pair = from->pair;
    struct relay_end *to = from == &pair->ends[0] ? &pair->ends[1] : &pair->ends[0];
    struct relay_chunk *chunk;

    if (pair->closing || n == 0)
        return;
    if (n < 0) {
        if (pair->relay->frozen) /* nobody hears of it */
            (void)uv_read_stop(stream);
        else
            relay_close(pair);
        return;
    }
    chunk = malloc(sizeof(*chunk) + (size_t)n);
    assert_non_null(chunk);
    chunk->next = NULL;
    chunk->bytes = (size_t)n;
    chunk->due_ns = uv_hrtime() + pair->relay->delay_ns;
    memcpy(chunk->data, buffer->base, (size_t)n);
    *to->last = chunk;
    to->last = &chunk->next;
    relay_flush_end(to);
}

static inline void relay_on_connect(uv_connect_t *request, int status)
{
    struct relay_pair *pair = request->data;

    if (pair->closing)
        return;
    if (status != 0) {
        relay_close(pair);
        return;
    }
    pair->connected = true;
    (void)uv_tcp_nodelay(&pair->ends[1].tcp, 1);
    (void)uv_read_start((uv_stream_t *)&pair->ends[1].tcp, relay_on_room, relay_on_read);
    relay_flush_end(&pair->ends[1]);
}

static inline void relay_on_connection(uv_stream_t *listener, int status)
{
    struct relay *relay = listener->data;
    struct relay_pair *pair = calloc(1, sizeof(*pair));
    struct sockaddr_storage to;

    assert_int_equal(status, 0);
    assert_non_null(pair);
    relay->connections++;
    pair->relay = relay;
    pair->next = relay->pairs;
    relay->pairs = pair;
    pair->handles = 2;
    for (unsigned i = 0; i < 2; i++) {
        struct relay_end *end = &pair->ends[i];
        end->pair = pair;
        end->last = &end->first;
        end->tcp.data = end;
        assert_int_equal(uv_tcp_init(listener->loop, &end->tcp), 0);
    }
    assert_int_equal(uv_accept(listener, (uv_stream_t *)&pair->ends[0].tcp), 0);
    (void)uv_tcp_nodelay(&pair->ends[0].tcp, 1);
    (void)uv_read_start((uv_stream_t *)&pair->ends[0].tcp, relay_on_room, relay_on_read);
    pair->connect.data = pair;
    assert_true(star_address_socket(&relay->to, &to));
    assert_int_equal(uv_tcp_connect(&pair->connect, &pair->ends[1].tcp, (struct sockaddr *)&to,
                                    relay_on_connect),
                     0);
}

static inline void relay_start(struct kit *kit, struct relay *relay, const struct job_address *to)
{
    char text[GW_TEXT_MAX + 1];
    int fd;

    memset(relay, 0, sizeof(*relay));
    (void)signal(SIGPIPE, SIG_IGN); /* of the relay's own; the star's thread gets no signals */
    relay->to = *to;
    relay->address = (struct job_address){.family = 4, .bytes = {127, 0, 0, 1}};
    assert_int_equal(star_address_listen(&relay->address, 0, 0, &fd, text), 0);
    relay->listener.data = relay->timer.data = relay;
    assert_int_equal(uv_tcp_init(&kit->loop, &relay->listener), 0);
    assert_int_equal(uv_tcp_open(&relay->listener, fd), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&relay->listener, 16, relay_on_connection), 0);
    assert_int_equal(uv_timer_init(&kit->loop, &relay->timer), 0);
    assert_int_equal(uv_timer_start(&relay->timer, relay_on_timer, 1, 1), 0);
}

/* Before kit_end. */
static inline void relay_end(struct relay *relay)
{
    relay_cut(relay);
    uv_close((uv_handle_t *)&relay->listener, NULL);
    uv_close((uv_handle_t *)&relay->timer, NULL);
}

#endif
