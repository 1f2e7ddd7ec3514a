/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and their replies; see channel.h. Any thread. One of the waiting threads polls the
 * socket (`reading`), without the lock; packets are read and handed out under the lock.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/lib/channel_internal.h"
#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "daemon/base/hash.h"

#define POLL_SLICE_NS (200 * CLOCK_MS)

struct request {
    struct request *next;
    uint32_t id; /* 0: the HELLO */
    uint16_t type;
    uint64_t digest; /* of the message without its id */
    bool done;
    bool parked; /* its caller's deadline passed */
    struct reply reply;
};

void reply_free(struct channel *channel, struct reply *reply)
{
    for (uint32_t i = 0; i < reply->fd_count; i++)
        fork_fd_close(channel->fork, &reply->fds[i]);
    wire_free(reply->msg);
    *reply = (struct reply){0};
}

/* A request is on the list from before it is sent until its caller has taken the outcome. */
static void request_free(struct channel *channel, struct request *request)
{
    for (struct request **at = &channel->requests; *at; at = &(*at)->next) {
        if (*at == request) {
            *at = request->next;
            break;
        }
    }
    reply_free(channel, &request->reply);
    free(request);
}

void channel_requests_free(struct channel *channel)
{
    while (channel->requests)
        request_free(channel, channel->requests);
}

/* One packet and its descriptors, which are listed for forks in the same step. Bytes, 0 at the end
 * of file, -1 with errno. */
static ssize_t receive(struct channel *channel, struct reply *reply, bool *ret_cut)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * GW_FRAME_FDS_MAX)];
    } control;
    struct iovec io = {.iov_base = channel->in, .iov_len = sizeof(channel->in)};
    struct msghdr msg = {.msg_iov = &io,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    ssize_t bytes;

    fork_lock();
    bytes = recvmsg(channel->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *ret_cut = bytes >= 0 && (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    for (struct cmsghdr *c = bytes < 0 ? NULL : CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        size_t count;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (reply->fd_count == GW_FRAME_FDS_MAX)
                close(fd);
            else if (fork_fd_add(channel->fork, fd) == 0)
                reply->fds[reply->fd_count++] = fd;
            else
                *ret_cut = true;
        }
    }
    fork_unlock();
    return bytes;
}

/* Hands a decoded message to its request, or drops it. Takes the reply over. */
static void dispatch(struct channel *channel, struct reply *reply)
{
    struct wire_msg *msg = reply->msg;
    struct request *request = channel->requests;

    if (msg->type == WIRE_CLOSE) {
        channel_die(channel, msg->u.done.code,
                    msg->u.done.text[0] ? msg->u.done.text : "closed by the engine");
        reply_free(channel, reply);
        return;
    }
    while (request && (request->id != msg->request || request->done))
        request = request->next;
    if (!request) {
        reply_free(channel, reply); /* late: nobody waits any more */
        return;
    }
    if (msg->type == WIRE_WELCOME)
        channel->welcomed = true;
    request->reply = *reply;
    request->done = true;
    pthread_cond_broadcast(&channel->cond);
}

void channel_drain(struct channel *channel)
{
    while (!atomic_load(&channel->dead) && channel->fd >= 0) {
        struct reply reply = {0};
        bool cut = false;
        uint32_t request = 0;
        ssize_t bytes = receive(channel, &reply, &cut);
        int r;

        if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        /* ECONNRESET comes once, before packets still queued: a CLOSE may be among them. */
        if (bytes < 0 && (errno == EINTR || errno == ECONNRESET))
            continue;
        if (bytes <= 0) {
            reply_free(channel, &reply);
            channel_lost(channel);
            return;
        }
        r = cut ? GW_E_PROTOCOL : wire_decode(channel->in, (size_t)bytes, &reply.msg, &request);
        if (r == 0) {
            dispatch(channel, &reply);
            continue;
        }
        reply_free(channel, &reply);
        if (r == GW_E_UNIMPLEMENTED && request == 0)
            continue; /* a newer engine's notice */
        channel_die(channel, r == GW_E_NOMEM ? r : GW_E_PROTOCOL,
                    r == GW_E_NOMEM ? "no memory for a message of the engine"
                                    : "the engine sent a malformed packet; the versions of "
                                      "library and service may differ");
    }
}

/* One turn as the reader: polls at most a slice. Lock held on entry and return. */
static void pump(struct channel *channel, int64_t deadline)
{
    int64_t slice = channel->first ? CHANNEL_PAUSE_NS : POLL_SLICE_NS;
    struct timespec timeout = clock_timespec(clock_slice(clock_now(), deadline, slice));
    struct pollfd poll = {.fd = channel->fd, .events = POLLIN};

    channel->reading = true;
    pthread_mutex_unlock(&channel->lock);
    (void)ppoll(&poll, 1, &timeout, NULL);
    pthread_mutex_lock(&channel->lock);
    channel->reading = false;
    if (channel->first)
        (void)channel_push_pending(channel);
    channel_drain(channel);
    pthread_cond_broadcast(&channel->cond); /* somebody else may read now */
}

static bool job_failed(const struct channel *channel)
{
    return channel->failure && atomic_load_explicit(channel->failure, memory_order_acquire) != 0;
}

static int await(struct channel *channel, const struct request *request, int64_t deadline)
{
    bool failed = false;

    while (!request->done) {
        int64_t slice_end = clock_deadline(POLL_SLICE_NS);
        struct timespec until = clock_timespec(slice_end < deadline ? slice_end : deadline);

        if (!failed && job_failed(channel)) {
            /* The engine answers its requests then; nobody hangs if it does not. */
            failed = true;
            deadline = clock_slice(clock_now(), deadline, CLOCK_SECOND) + clock_now();
        }
        if (atomic_load(&channel->dead))
            return channel_error(channel);
        if (clock_now() >= deadline) {
            channel_drain(channel); /* a poll (timeout 0) must see what has arrived */
            if (request->done)
                return 0;
            return atomic_load(&channel->dead) ? channel_error(channel) : GW_E_TIMEOUT;
        }
        if (!channel->reading)
            pump(channel, deadline);
        else
            pthread_cond_timedwait(&channel->cond, &channel->lock, &until);
    }
    return 0;
}

/* Of the body alone: the header has the request's number. */
static uint64_t digest_of(const struct channel *channel, size_t bytes)
{
    return hash_add(HASH_START, channel->out + GW_FRAME_HEADER, bytes - GW_FRAME_HEADER);
}

/* A request may wait for room; the messages before it go first. */
static int put_request(struct channel *channel, const struct wire_msg *msg, int64_t deadline)
{
    for (;;) {
        int r = channel_put_batch(channel);

        if (r == 0)
            r = channel_put(channel, msg);
        if (r != GW_E_AGAIN || clock_now() >= deadline)
            return r;
        if (channel->reading) { /* the reader pushes pending frames too */
            struct timespec until = clock_timespec(clock_now() + 10 * CLOCK_MS);

            pthread_cond_timedwait(&channel->cond, &channel->lock, &until);
        } else {
            pump(channel, deadline);
        }
    }
}

/* At most one of a type, but for calls that never ask again. */
static struct request *parked(struct channel *channel, uint16_t type)
{
    struct request *request = channel->requests;

    while (request && !(request->parked && request->type == type))
        request = request->next;
    return request;
}

/* Takes a parked request over, or makes and sends a new one. *ret_request NULL: ask again. */
static int begin(struct channel *channel, struct wire_msg *msg, enum channel_park park,
                 int64_t deadline, struct request **ret_request)
{
    struct request *request = park == CHANNEL_PARK_NONE ? NULL : parked(channel, msg->type);
    uint64_t digest;
    size_t bytes = 0;
    int r;

    msg->request = 0;
    r = wire_encode(msg, channel->out, sizeof(channel->out), &bytes);
    if (r < 0)
        return channel_unencodable(channel, r, msg);
    digest = digest_of(channel, bytes);
    if (request && park == CHANNEL_PARK_SAME && request->digest != digest)
        return err_set(GW_E_STATE,
                       "an earlier %s request that timed out is still being worked on; repeat that "
                       "one first",
                       wire_type_name(msg->type));
    if (request) {
        request->parked = false;
        *ret_request = request;
        return 0;
    }
    request = calloc(1, sizeof(*request));
    if (!request)
        return err_set(GW_E_NOMEM, "no memory for a request");
    if (msg->type != WIRE_HELLO)
        request->id = ++channel->last_request ? channel->last_request : ++channel->last_request;
    request->type = msg->type;
    request->digest = digest;
    msg->request = request->id;
    request->next = channel->requests;
    channel->requests = request;
    r = put_request(channel, msg, deadline);
    if (r < 0)
        request_free(channel, request);
    else
        *ret_request = request;
    return r;
}

/* The request's outcome into the caller's reply or error. */
static int finish(struct channel *channel, const struct request *request, uint16_t expect,
                  struct reply *reply)
{
    const struct wire_msg *msg = reply->msg;

    if (msg->type == WIRE_DONE && msg->u.done.code < 0)
        return err_set(msg->u.done.code, "%s",
                       msg->u.done.text[0] ? msg->u.done.text : gw_error_message(msg->u.done.code));
    if (msg->type != expect) {
        pthread_mutex_lock(&channel->lock);
        channel_die(channel, GW_E_PROTOCOL, "the engine gave an answer of the wrong kind");
        pthread_mutex_unlock(&channel->lock);
        return err_set(GW_E_PROTOCOL, "the %s answered %s to %s", channel->engine,
                       wire_type_name(msg->type), wire_type_name(request->type));
    }
    return 0;
}

/* Lock held. *ret_request is answered, and still on the list. */
static int request_once(struct channel *channel, struct wire_msg *msg, enum channel_park park,
                        int64_t deadline, struct request **ret_request)
{
    struct request *request = NULL;
    int r;

    r = begin(channel, msg, park, deadline, &request);
    if (r < 0)
        return r;
    r = await(channel, request, deadline);
    if (r == GW_E_TIMEOUT) {
        if (park == CHANNEL_PARK_NONE)
            request_free(channel, request);
        else
            request->parked = true;
        return err_set(GW_E_TIMEOUT, "the %s has not answered %s before the deadline",
                       channel->engine, wire_type_name(msg->type));
    }
    if (r < 0)
        request_free(channel, request);
    else
        *ret_request = request;
    return r;
}

/* The outcome is judged without the lock: only this caller has the reply now. */
int channel_request(struct channel *channel, struct wire_msg *msg, uint16_t expect,
                    enum channel_park park, int64_t deadline, struct reply *ret_reply)
{
    struct reply reply = {0};
    struct request *request = NULL;
    bool drain;
    int r;

    pthread_mutex_lock(&channel->lock);
    r = channel_error(channel);
    do {
        drain = park == CHANNEL_PARK_DRAIN && parked(channel, msg->type);
        if (r == 0)
            r = request_once(channel, msg, park, deadline, &request);
        if (r == 0 && drain) {
            request_free(channel, request);
            request = NULL;
        }
    } while (r == 0 && drain);
    if (r == 0) {
        reply = request->reply;
        request->reply = (struct reply){0};
    }
    pthread_mutex_unlock(&channel->lock);
    if (r == 0)
        r = finish(channel, request, expect, &reply);
    if (request) {
        pthread_mutex_lock(&channel->lock);
        request_free(channel, request);
        pthread_mutex_unlock(&channel->lock);
    }
    if (r == 0 && ret_reply)
        *ret_reply = reply;
    else
        reply_free(channel, &reply);
    return r;
}
