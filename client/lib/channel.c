/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending: batch, pending frames, one-way messages; see channel.h. Any thread, under
 * channel->lock; no call here blocks. Replies are read in request.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/channel_internal.h"
#include "client/lib/clock.h"
#include "client/lib/err.h"

struct packet {
    struct packet *next;
    size_t bytes;
    uint8_t data[];
};

int channel_init(struct channel *channel, struct fork_state *fork)
{
    pthread_condattr_t attr;
    int r;

    channel->fd = -1;
    channel->fork = fork;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    r = pthread_cond_init(&channel->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (r != 0)
        return err_set(GW_E_NOMEM, "no memory for the control channel");
    pthread_mutex_init(&channel->lock, NULL);
    return 0;
}

void channel_deinit(struct channel *channel)
{
    struct packet *next;

    for (struct packet *packet = channel->first; packet; packet = next) {
        next = packet->next;
        free(packet);
    }
    channel_requests_free(channel);
    fork_fd_close(channel->fork, &channel->fd);
    pthread_cond_destroy(&channel->cond);
    pthread_mutex_destroy(&channel->lock);
}

int channel_error(struct channel *channel)
{
    int code = atomic_load_explicit(&channel->dead, memory_order_acquire);

    return code ? err_set(code, "%s", channel->dead_text) : 0;
}

void channel_die(struct channel *channel, int code, const char *text)
{
    if (atomic_load(&channel->dead))
        return; /* the first cause is kept */
    snprintf(channel->dead_text, sizeof(channel->dead_text), "%s", text);
    atomic_store_explicit(&channel->dead, code < 0 ? code : GW_E_INTERNAL, memory_order_release);
    pthread_cond_broadcast(&channel->cond);
}

int channel_break(struct channel *channel, const char *text)
{
    char whole[sizeof(channel->dead_text)];

    snprintf(whole, sizeof(whole),
             "%s: a check in libgradwire has failed, which ends the job; report it with this text",
             text);
    channel_die(channel, GW_E_INTERNAL, whole);
    shutdown(channel->fd, SHUT_RDWR); /* the descriptor is closed with the channel */
    return channel_error(channel);
}

int channel_broken(struct channel *channel, const char *text)
{
    int r;

    pthread_mutex_lock(&channel->lock);
    r = channel_break(channel, text);
    pthread_mutex_unlock(&channel->lock);
    return r;
}

/* What cannot be encoded no caller can mend. */
int channel_unencodable(struct channel *channel, int code, const struct wire_msg *msg)
{
    char text[GW_TEXT_MAX + 1];

    if (code == GW_E_NOMEM)
        return err_set(code, "no memory for a message to the engine");
    snprintf(text, sizeof(text), "cannot encode a %s message", wire_type_name(msg->type));
    return channel_break(channel, text);
}

/* Before WELCOME the other side is gradwired, or an engine that ended as it took us over; no job is
 * lost yet. */
void channel_lost(struct channel *channel)
{
    char text[sizeof(channel->dead_text)];

    if (channel->welcomed)
        snprintf(text, sizeof(text),
                 "the %s is gone: its socket closed without a word; its log and gradwired's tell "
                 "why; start the job anew",
                 channel->engine);
    else
        snprintf(text, sizeof(text),
                 "gradwired or the job's engine has ended before a welcome; its log tells why");
    channel_die(channel, channel->welcomed ? GW_E_ENGINE_LOST : GW_E_NO_DAEMON, text);
}

void channel_join(struct channel *channel, struct gw_client_page *page,
                  const struct gw_engine_page *engine_page, int doorbell)
{
    pthread_mutex_lock(&channel->lock);
    submit_writer_start(&channel->ring, page, engine_page);
    channel->doorbell = doorbell;
    channel->engine_page = engine_page;
    pthread_mutex_unlock(&channel->lock);
}

/* After the ring's position, in the one order of all such accesses: an engine that is not seen to
 * sleep here looks at the ring once more before it does. */
static void ring_bell(struct channel *channel)
{
    uint32_t sleeps = atomic_load_explicit(&channel->engine_page->sleeps, memory_order_seq_cst);
    uint64_t one = 1;

    channel->unrung = false;
    if ((sleeps & 1) == 0 || sleeps == channel->rung)
        return;
    channel->rung = sleeps;
    /* A full counter rings already. */
    if (write(channel->doorbell, &one, sizeof(one)) < 0)
        return;
}

/* As try_send. A full ring is an engine that is behind, or gone. */
static int try_put(struct channel *channel, const uint8_t *data, size_t bytes)
{
    int r = submit_put(&channel->ring, data, bytes);

    if (r == 0) {
        channel->unrung = true;
        if (!channel->quiet)
            ring_bell(channel);
        return 1;
    }
    if (r == GW_E_AGAIN) {
        if (channel->unrung) /* it may be full of frames that nobody has heard of */
            ring_bell(channel);
        channel_drain(channel);
    } else {
        channel_die(channel, GW_E_PROTOCOL, "the engine took more than was sent");
    }
    return channel_error(channel);
}

/* 1: sent, 0: there is no room, negative: the channel is dead. */
static int try_send(struct channel *channel, const uint8_t *data, size_t bytes)
{
    ssize_t sent;

    if (channel->engine_page)
        return try_put(channel, data, bytes);
    do {
        sent = send(channel->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)bytes)
        return 1;
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
        return 0;
    channel_drain(channel); /* a CLOSE that came first says why */
    channel_lost(channel);
    return channel_error(channel);
}

int channel_push_pending(struct channel *channel)
{
    while (channel->first) {
        struct packet *packet = channel->first;
        int r = try_send(channel, packet->data, packet->bytes);

        if (r <= 0)
            return r;
        channel->first = packet->next;
        if (!channel->first)
            channel->last = NULL;
        channel->pending_bytes -= packet->bytes;
        free(packet);
    }
    return 0;
}

/* Copies the packet in channel->out behind those that wait already. */
static int keep(struct channel *channel, size_t bytes)
{
    struct packet *packet = malloc(sizeof(*packet) + bytes);

    if (!packet)
        return err_set(GW_E_NOMEM, "no memory for a message to the engine");
    packet->next = NULL;
    packet->bytes = bytes;
    memcpy(packet->data, channel->out, bytes);
    if (channel->last)
        channel->last->next = packet;
    else
        channel->first = packet;
    channel->last = packet;
    channel->pending_bytes += bytes;
    return 0;
}

/* Pending frames go first, so order is kept; one is kept only while older ones are, or the ring is
 * full. The bound is checked before encoding: a refused call has done nothing. */
int channel_put(struct channel *channel, const struct wire_msg *msg)
{
    size_t bytes = 0;
    int r;

    if (atomic_load(&channel->dead))
        return channel_error(channel);
    r = channel_push_pending(channel);
    if (r < 0)
        return r;
    if (channel->pending_bytes > CHANNEL_PENDING_MAX)
        return err_set(GW_E_AGAIN,
                       "the %s takes no messages and %zu bytes wait already; wait for a token "
                       "(gw_wait) and call again",
                       channel->engine, channel->pending_bytes);
    r = wire_encode(msg, channel->out, sizeof(channel->out), &bytes);
    if (r < 0)
        return channel_unencodable(channel, r, msg);
    if (!channel->first) {
        r = try_send(channel, channel->out, bytes);
        if (r != 0)
            return r < 0 ? r : 0;
    }
    return keep(channel, bytes);
}

/* Entries that cannot be completed can never be sent, nor those after them. Lock held. */
static int stamp_batch(struct channel *channel)
{
    uint32_t first = channel->stamped;
    int r;

    if (!channel->stamp || first == channel->batch_count)
        return 0;
    if (atomic_load(&channel->dead))
        return channel_error(channel);
    r = channel->stamp(channel->stamp_job, channel->batch + first, channel->batch_count - first);
    if (r < 0)
        channel_die(channel, r, gw_last_error());
    else
        channel->stamped = channel->batch_count;
    return r;
}

int channel_stamp(struct channel *channel)
{
    int r;

    pthread_mutex_lock(&channel->lock);
    r = stamp_batch(channel);
    pthread_mutex_unlock(&channel->lock);
    return r;
}

/* The batch stays as it is if it cannot go out now. */
int channel_put_batch(struct channel *channel)
{
    struct wire_msg msg;
    int r;

    if (channel->batch_count == 0)
        return 0;
    r = stamp_batch(channel);
    if (r < 0)
        return r;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_READY;
    msg.u.ready.count = channel->batch_count;
    msg.u.ready.entries = channel->batch;
    r = channel_put(channel, &msg);
    if (r == 0)
        channel->batch_count = channel->stamped = 0;
    return r;
}

int channel_send(struct channel *channel, const struct wire_msg *msg)
{
    int r;

    pthread_mutex_lock(&channel->lock);
    r = channel_put_batch(channel);
    if (r == 0)
        r = channel_put(channel, msg);
    pthread_mutex_unlock(&channel->lock);
    return r;
}

int channel_send_quiet(struct channel *channel, const struct wire_msg *msg)
{
    int r;

    pthread_mutex_lock(&channel->lock);
    r = channel_put_batch(channel);
    channel->quiet = !channel->first; /* what is pending goes along, and may be loud */
    if (r == 0)
        r = channel_put(channel, msg);
    channel->quiet = false;
    pthread_mutex_unlock(&channel->lock);
    return r;
}

/* All that can be sent is, and heard of. Lock held. */
static void push_all(struct channel *channel)
{
    (void)channel_put_batch(channel);
    if (channel->first)
        (void)channel_push_pending(channel);
    if (channel->unrung)
        ring_bell(channel);
}

int channel_ready(struct channel *channel, const struct wire_ready_entry *entry, bool flush)
{
    int r = 0;

    pthread_mutex_lock(&channel->lock);
    if (channel->batch_count == GW_READY_PER_FRAME)
        r = channel_put_batch(channel);
    if (r == 0 && atomic_load(&channel->dead))
        r = channel_error(channel);
    if (r == 0) {
        channel->batch[channel->batch_count++] = *entry;
        /* The entry is taken; if there is no room, a later call sends the batch. */
        if (flush)
            (void)channel_put_batch(channel);
    }
    pthread_mutex_unlock(&channel->lock);
    return r;
}

/* Waiters call it between naps: what they wait for may be pending here. */
bool channel_flush(struct channel *channel)
{
    bool empty;

    pthread_mutex_lock(&channel->lock);
    push_all(channel);
    empty = !channel->first && channel->batch_count == 0;
    pthread_mutex_unlock(&channel->lock);
    return empty;
}

void channel_pause(struct channel *channel)
{
    struct timespec pause = clock_timespec(CHANNEL_PAUSE_NS);

    channel_poll(channel);
    nanosleep(&pause, NULL);
}

void channel_poll(struct channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    if (!atomic_load(&channel->dead)) {
        push_all(channel);
        channel_drain(channel);
    }
    pthread_mutex_unlock(&channel->lock);
}
