/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers and groups: set-up of the collectives layer. Any thread; requests block to the
 * handle's timeout, without a lock. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/lib/clock.h"
#include "client/lib/collective.h"
#include "client/lib/err.h"
#include "daemon/base/ranks.h"

/* The list is checked here, where it was made: a wrong one would end the job at the engine. */
int gw_group_new(gw_job *job, const uint32_t *ranks, uint32_t count, int64_t timeout_ns,
                 uint32_t *ret_group)
{
    struct wire_msg msg;
    struct reply reply = {0};
    struct ranks seen = {{0}};
    uint32_t group;
    int r = job_check(job);

    if (r < 0)
        return r;
    if (!ranks || !ret_group || count == 0 || count > job->world)
        return err_set(GW_E_INVALID,
                       "a group needs 1 to %u ranks and a place for its number; "
                       "given were %u",
                       job->world, count);
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_GROUP_NEW;
    msg.u.group_new.count = count;
    msg.u.group_new.ranks = ranks;
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= job->world || ranks_has(&seen, ranks[i]))
            return err_set(GW_E_INVALID, "rank %u of the group is %s", ranks[i],
                           ranks[i] >= job->world ? "not in the job's world" : "given twice");
        ranks_add(&seen, ranks[i]);
    }
    if (!ranks_has(&seen, job->rank))
        return err_set(GW_E_INVALID, "rank %u is not in the group; only members call gw_group_new",
                       job->rank);
    r = job_request(job, &msg, WIRE_GROUP_MADE, CHANNEL_PARK_SAME, clock_deadline(timeout_ns),
                    &reply);
    if (r < 0)
        return r;
    group = reply.msg->u.group_made.group;
    reply_free(&job->channel, &reply);
    if (group == GW_GROUP_WORLD || group >= GW_GROUPS_MAX)
        return err_set(GW_E_PROTOCOL, "the engine made group %u, which cannot be", group);
    pthread_mutex_lock(&job->lock);
    job->groups[group].count = count;
    memcpy(job->groups[group].ranks, ranks, count * sizeof(*ranks));
    pthread_mutex_unlock(&job->lock);
    *ret_group = group;
    return 0;
}

static int take_buffer(gw_job *job, const struct reply *reply, size_t size_bytes,
                       struct gw_buffer *buffer)
{
    int r;

    if (reply->fd_count != 1 || reply->msg->u.buffer_made.bytes < size_bytes)
        return err_set(GW_E_PROTOCOL,
                       "the engine's buffer comes with %u descriptors and %llu "
                       "bytes, expected 1 and %zu",
                       reply->fd_count, (unsigned long long)reply->msg->u.buffer_made.bytes,
                       size_bytes);
    buffer->id = reply->msg->u.buffer_made.buffer;
    r = job->device
            ? map_device(job->device, reply->fds[0], size_bytes,
                         reply->msg->u.buffer_made.mapped_bytes, "buffer", &buffer->map)
            : map_new(reply->fds[0], size_bytes, PROT_READ | PROT_WRITE, "buffer", &buffer->map);
    buffer->data = buffer->map.base;
    return r;
}

int buffer_make(gw_job *job, size_t size_bytes, enum wire_stands_in why, gw_buffer **ret_buffer)
{
    struct gw_buffer *buffer = calloc(1, sizeof(*buffer));
    struct wire_msg msg;
    struct reply reply = {0};
    int r;

    if (!buffer)
        return err_set(GW_E_NOMEM, "no memory for a buffer's handle");
    buffer->job = job;
    buffer->size_bytes = size_bytes;
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_BUFFER_NEW;
    msg.u.buffer_new.bytes = size_bytes;
    msg.u.buffer_new.stands_in = why;
    r = job_request(job, &msg, WIRE_BUFFER_MADE, CHANNEL_PARK_SAME, clock_deadline(job->timeout_ns),
                    &reply);
    if (r == 0)
        r = take_buffer(job, &reply, size_bytes, buffer);
    reply_free(&job->channel, &reply);
    if (r < 0) {
        free(buffer);
        return err_prefix(r, "a buffer of %zu bytes", size_bytes);
    }
    *ret_buffer = buffer;
    return 0;
}

void buffer_keep(gw_job *job, gw_buffer *buffer)
{
    pthread_mutex_lock(&job->lock);
    buffer->next = job->buffers;
    job->buffers = buffer;
    pthread_mutex_unlock(&job->lock);
}

/* Size 0 would be a mapping that does not exist; the engine refuses it as well. */
int gw_buffer_new(gw_job *job, size_t size_bytes, gw_buffer **ret_buffer)
{
    int r = job_check(job);

    if (r < 0)
        return r;
    if (!ret_buffer || size_bytes == 0)
        return err_set(GW_E_INVALID, "%s",
                       ret_buffer ? "a buffer of 0 bytes was asked for" : "ret_buffer is NULL");
    r = buffer_make(job, size_bytes, WIRE_STANDS_IN_NOT, ret_buffer);
    if (r == 0)
        buffer_keep(job, *ret_buffer);
    return r;
}

/* An op that has not reached its slot yet may still read or write the buffer. Lock held. */
static uint64_t user_of(const gw_job *job, uint32_t id)
{
    for (uint32_t i = 0; i < GW_OPS_IN_FLIGHT; i++) {
        const struct job_op *op = &job->ops[i];

        if (op->sequence > 0 && !op->barrier && (op->send_buffer == id || op->recv_buffer == id) &&
            atomic_load_explicit(&job->engine->op[i].value, memory_order_acquire) < op->sequence)
            return op->sequence;
    }
    return 0;
}

/* Lock held. */
static void unlink_buffer(gw_job *job, const struct gw_buffer *buffer)
{
    for (struct gw_buffer **at = &job->buffers; *at; at = &(*at)->next) {
        if (*at == buffer) {
            *at = buffer->next;
            return;
        }
    }
}

/* Of a failed job too, the engine closes the caller's memory before it answers, whatever the
 * answer; an engine that is gone holds nothing. GW_E_BUSY: it has not answered. */
static int close_import(gw_job *job, uint32_t id)
{
    struct reply reply = {0};
    struct wire_msg msg;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_BUFFER_FREE;
    msg.u.buffer_free.buffer = id;
    r = channel_request(&job->channel, &msg, WIRE_DONE, CHANNEL_PARK_NONE,
                        clock_deadline(job->timeout_ns), &reply);
    reply_free(&job->channel, &reply);
    if (r == GW_E_TIMEOUT && atomic_load(&job->engine->error) != GW_E_TIMEOUT)
        return err_set(GW_E_BUSY, "the engine of the failed job still holds the memory");
    return 0;
}

/* The engine may hear of a finished op a little after its token has risen. */
static int tell_free(gw_job *job, uint32_t id)
{
    int64_t deadline = clock_deadline(job->timeout_ns);
    int r;

    for (;;) {
        struct timespec pause = clock_timespec(CLOCK_MS);
        struct wire_msg msg;

        memset(&msg, 0, sizeof(msg));
        msg.type = WIRE_BUFFER_FREE;
        msg.u.buffer_free.buffer = id;
        r = job_request(job, &msg, WIRE_DONE, CHANNEL_PARK_NONE, deadline, NULL);
        if (r == GW_E_NOT_FOUND)
            return 0; /* the answer to an earlier call came after its deadline */
        if (r != GW_E_BUSY || clock_now() >= deadline)
            return r;
        nanosleep(&pause, NULL);
    }
}

/* The caller's own memory, of a failed job: neither the engine nor copies of ours may touch it any
 * more. */
static int give_back(gw_job *job, const struct gw_buffer *buffer)
{
    if (buffer->staged && !order_quiet(job, true))
        return err_set(GW_E_BUSY,
                       "copies to and from the memory are not over in the job's streams");
    return buffer->map.base ? 0 : close_import(job, buffer->id);
}

static int check_unused(gw_job *job, const struct gw_buffer *buffer)
{
    uint64_t user;

    pthread_mutex_lock(&job->lock);
    user = user_of(job, buffer->id);
    if (user == 0 && buffer->copied_out > 0 && !import_copied(job, buffer->copied_out))
        user = buffer->copied_out;
    pthread_mutex_unlock(&job->lock);
    if (user > 0)
        return err_set(GW_E_BUSY, "op %llu still uses the buffer; wait for its token first",
                       (unsigned long long)user);
    return 0;
}

int gw_buffer_free(gw_job *job, gw_buffer *buffer)
{
    int r = job_enter(job);

    if (r < 0 || !buffer)
        return r;
    if (buffer->job != job)
        return err_set(GW_E_INVALID, "the buffer belongs to another job");
    /* A failed job runs no op any more, and the engine frees everything of its clients. */
    if (job_failure(job) == 0) {
        r = check_unused(job, buffer);
        if (r == 0)
            r = tell_free(job, buffer->id);
        if (r < 0 && job_failure(job) == 0)
            return r; /* the caller still has it */
    }
    if (job->device && job_failure(job) < 0) {
        r = give_back(job, buffer);
        if (r < 0)
            return r;
    }
    pthread_mutex_lock(&job->lock);
    unlink_buffer(job, buffer);
    pthread_mutex_unlock(&job->lock);
    map_free(&buffer->map);
    free(buffer);
    return 0;
}

void *gw_buffer_data(gw_buffer *buffer)
{
    if (!buffer || atomic_load(&buffer->job->guard.forked))
        return NULL; /* not mapped in a forked child */
    return buffer->data;
}

size_t gw_buffer_size(const gw_buffer *buffer)
{
    return buffer ? buffer->size_bytes : 0;
}

void collective_close(gw_job *job)
{
    struct gw_buffer *next;

    for (struct gw_buffer *buffer = job->buffers; buffer; buffer = next) {
        next = buffer->next;
        map_free(&buffer->map);
        free(buffer);
    }
    job->buffers = NULL;
}
