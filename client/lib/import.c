/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers over the caller's own device memory. Exported to the engine where the driver can; else
 * staged: a buffer of the service's memory, and copies on streams. In before an op in the job's
 * stream; out behind the op in a stream of ours, whose own timeline counts ops, so that its token
 * is the op's for the caller. Any thread; no call here waits but gw_cuda_buffer_import (set-up).
 */
#include <stdlib.h>
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/collective.h"
#include "client/lib/err.h"
#include "client/lib/timeline.h"
#include "client/lib/wait.h"
#include "gradwire/cuda.h"

/* ---- copies ---------------------------------------------------------------------------------- */

static struct gw_token copy_token(const gw_job *job, uint64_t sequence)
{
    return (struct gw_token){.timeline = GW_TIMELINE(GW_TL_CLIENT, job->order.copy_timeline),
                             .value = sequence};
}

bool import_copied(gw_job *job, uint64_t sequence)
{
    return wait_reached(job, copy_token(job, sequence));
}

/* The caller's memory may still await the result of the op before, which it need not have waited
 * for: ops of a group run in their order. */
int import_copy_in(gw_job *job, const struct gw_slice *slice, uint64_t numel, uint32_t size)
{
    const struct gw_buffer *buffer = slice->buffer;
    uint64_t at = slice->offset * size, bytes = numel * size;
    struct wait_time time;
    void *stream;
    int r = 0;

    if (numel == 0 || !buffer->staged)
        return 0;
    stream = order_stream(job);
    if (buffer->copied_out > 0)
        r = order_stream_wait(job, copy_token(job, buffer->copied_out), stream, clock_now(), &time);
    if (r == 0)
        r = job->device->ops->copy(job->device, stream, buffer->map.base + at,
                                   (uint8_t *)buffer->data + at, bytes);
    if (r == 0)
        atomic_fetch_add(&job->staged_bytes, bytes);
    return r;
}

int import_copy_out(gw_job *job, const struct gw_slice *slice, uint64_t numel, uint32_t size,
                    uint64_t sequence, struct gw_token *ret_token)
{
    struct order *order = &job->order;
    struct gw_buffer *buffer = slice->buffer;
    uint64_t at = slice->offset * size, bytes = numel * size, word = 0;
    int r = 0;

    if (numel == 0 || !buffer->staged)
        return 0;
    order_word(job, *ret_token, &word);
    pthread_mutex_lock(&order->lock);
    r = job->device->ops->stream_wait(job->device, order->copy_stream, word, sequence);
    if (r == 0)
        r = job->device->ops->copy(job->device, order->copy_stream, (uint8_t *)buffer->data + at,
                                   buffer->map.base + at, bytes);
    if (r == 0 && order_word(job, copy_token(job, sequence), &word))
        r = job->device->ops->stream_raise(job->device, order->copy_stream, word, sequence);
    if (r == 0)
        order->copied_out = sequence;
    pthread_mutex_unlock(&order->lock);
    if (r < 0)
        return r;
    buffer->copied_out = sequence;
    atomic_fetch_add(&job->staged_bytes, bytes);
    *ret_token = copy_token(job, sequence);
    return 0;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

/* Once per job. */
static int make_copies(gw_job *job)
{
    struct order *order = &job->order;
    int r = 0;

    pthread_mutex_lock(&order->lock);
    if (!order->has_copies) {
        r = timeline_take(job, &order->copy_timeline);
        if (r == 0)
            r = job->device->ops->stream_new(job->device, &order->copy_stream);
        if (r == 0)
            order->has_copies = true;
    }
    pthread_mutex_unlock(&order->lock);
    return r;
}

static int staged(gw_job *job, void *data, size_t size_bytes, enum wire_stands_in why,
                  gw_buffer **ret_buffer)
{
    int r;

    if (!job->device->ops->stream_wait)
        return err_set(GW_E_UNIMPLEMENTED,
                       "the memory cannot be exported, and on a GPU without 64-bit stream memory "
                       "operations no copy stands in for it; use gw_buffer_new");
    r = make_copies(job);
    if (r == 0)
        r = buffer_make(job, size_bytes, why, ret_buffer);
    if (r < 0)
        return r;
    (*ret_buffer)->data = data;
    (*ret_buffer)->staged = true;
    return 0;
}

/* The engine opens the handle, and asks the driver whether it is what we say. */
static int imported(gw_job *job, const struct gw_device_export *memory, void *data,
                    size_t size_bytes, gw_buffer **ret_buffer)
{
    struct gw_buffer *buffer = calloc(1, sizeof(*buffer));
    struct reply reply = {0};
    struct wire_msg msg;
    int r;

    if (!buffer)
        return err_set(GW_E_NOMEM, "no memory for a buffer's handle");
    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_BUFFER_IMPORT;
    memcpy(msg.u.buffer_import.handle, memory->handle, sizeof(memory->handle));
    msg.u.buffer_import.allocation_bytes = memory->allocation_bytes;
    msg.u.buffer_import.offset = memory->offset;
    msg.u.buffer_import.bytes = size_bytes;
    r = job_request(job, &msg, WIRE_BUFFER_MADE, CHANNEL_PARK_SAME, clock_deadline(job->timeout_ns),
                    &reply);
    if (r == 0) {
        *buffer = (struct gw_buffer){.job = job,
                                     .data = data,
                                     .id = reply.msg->u.buffer_made.buffer,
                                     .size_bytes = size_bytes};
        *ret_buffer = buffer;
    } else {
        free(buffer);
    }
    reply_free(&job->channel, &reply);
    return r;
}

/* What says that the memory cannot cross, and not that the call is wrong or the job at its end. */
static bool cannot_cross(const gw_job *job, int r)
{
    return (r == GW_E_UNIMPLEMENTED || r == GW_E_INVALID || r == GW_E_DENIED) &&
           atomic_load(&job->engine->error) == 0;
}

int gw_cuda_buffer_import(gw_job *job, void *device_pointer, size_t size_bytes,
                          gw_buffer **ret_buffer, int *ret_staged)
{
    enum wire_stands_in why = WIRE_STANDS_IN_UNEXPORTED;
    struct gw_device_export memory;
    bool copies = false;
    int r = job_check(job);

    if (r < 0)
        return r;
    if (!job->device)
        return err_set(GW_E_STATE, "the job has no GPU; give gw_job_options.device");
    if (!ret_buffer || !device_pointer || size_bytes == 0)
        return err_set(GW_E_INVALID, "%s",
                       ret_buffer ? "no memory was given, or 0 bytes of it" : "ret_buffer is NULL");
    r = job->device->ops->export_memory(job->device, device_pointer, size_bytes, &memory);
    if (r == GW_E_INVALID)
        return r; /* none of this device's memory: copies would not help */
    if (r == 0) {
        why = WIRE_STANDS_IN_UNOPENED;
        r = imported(job, &memory, device_pointer, size_bytes, ret_buffer);
    }
    if (cannot_cross(job, r)) {
        copies = true;
        r = staged(job, device_pointer, size_bytes, why, ret_buffer);
    }
    if (r < 0)
        return err_prefix(r, "importing %zu bytes", size_bytes);
    buffer_keep(job, *ret_buffer);
    if (ret_staged)
        *ret_staged = copies;
    return 0;
}
