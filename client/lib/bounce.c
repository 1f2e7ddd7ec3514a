/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of the caller's memory to the job's and back, in the job's stream. Host memory may be used
 * again at once: it goes by pinned memory of ours, for a driver's own copy of pageable memory may
 * wait for the stream. Any thread; waits only until a half of that memory has left it.
 */
#include <string.h>

#include "client/lib/job.h"
#include "client/lib/wait.h"

#define HALF_BYTES (1u << 20)

/* Both under the lock. */
static int make(gw_job *job)
{
    struct order_bounce *bounce = &job->order.bounce;
    void *base = NULL;
    int r;

    if (bounce->base)
        return 0;
    r = job->device->ops->host_new(job->device, 2 * (size_t)HALF_BYTES, &base);
    if (r == 0)
        bounce->base = base;
    return r;
}

static int copy_half(gw_job *job, uint8_t *to, const uint8_t *from, size_t bytes, int64_t deadline)
{
    struct order_bounce *bounce = &job->order.bounce;
    uint8_t *half = bounce->base + bounce->next * HALF_BYTES;
    void *stream = order_stream(job);
    struct wait_time time;
    size_t index = 0;
    int r;

    r = wait_tokens(job, &bounce->busy[bounce->next], 1, false, deadline, &index, &time);
    if (r < 0)
        return r;
    memcpy(half, from, bytes);
    r = job->device->ops->copy(job->device, stream, to, half, bytes);
    if (r == 0)
        r = order_record(job, stream, &bounce->busy[bounce->next]);
    bounce->next ^= 1;
    return r;
}

int bounce_copy_in(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline)
{
    int r;

    if (job->device->ops->on_device(job->device, from))
        return job->device->ops->copy(job->device, order_stream(job), to, from, bytes);
    pthread_mutex_lock(&job->order.bounce.lock);
    r = make(job);
    for (size_t done = 0; done < bytes && r == 0;) {
        size_t part = bytes - done < HALF_BYTES ? bytes - done : HALF_BYTES;

        r = copy_half(job, (uint8_t *)to + done, (const uint8_t *)from + done, part, deadline);
        done += part;
    }
    pthread_mutex_unlock(&job->order.bounce.lock);
    return r;
}

/* A half is filled by the stream, and read once the stream has passed. */
static int take_half(gw_job *job, uint8_t *to, const uint8_t *from, size_t bytes, int64_t deadline)
{
    struct order_bounce *bounce = &job->order.bounce;
    uint8_t *half = bounce->base + bounce->next * HALF_BYTES;
    struct gw_token *busy = &bounce->busy[bounce->next];
    void *stream = order_stream(job);
    struct wait_time time;
    size_t index = 0;
    int r;

    r = wait_tokens(job, busy, 1, false, deadline, &index, &time);
    if (r == 0)
        r = job->device->ops->copy(job->device, stream, half, from, bytes);
    if (r == 0)
        r = order_record(job, stream, busy);
    if (r == 0)
        r = wait_tokens(job, busy, 1, false, deadline, &index, &time);
    if (r == 0)
        memcpy(to, half, bytes);
    bounce->next ^= 1;
    return r;
}

int bounce_copy_out(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline)
{
    int r;

    pthread_mutex_lock(&job->order.bounce.lock);
    r = make(job);
    for (size_t done = 0; done < bytes && r == 0;) {
        size_t part = bytes - done < HALF_BYTES ? bytes - done : HALF_BYTES;

        r = take_half(job, (uint8_t *)to + done, (const uint8_t *)from + done, part, deadline);
        done += part;
    }
    pthread_mutex_unlock(&job->order.bounce.lock);
    return r;
}
