/* SPDX-License-Identifier: Apache-2.0 */
/* Order on the host, and life of the order of either kind; see order.h. Any thread. */
#include "client/lib/order.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/wait.h"

#define PLACE_TRIES 1000

static int host_wait(gw_job *job, struct gw_token token, int64_t deadline,
                     struct wait_time *ret_time)
{
    size_t index = 0;

    return wait_tokens(job, &token, 1, false, deadline, &index, ret_time);
}

/* What the caller has written on the host is written. */
static int host_mark(gw_job *job, struct wire_after *ret_after)
{
    (void)job;
    *ret_after = (struct wire_after){0};
    return 0;
}

static int host_settle(gw_job *job, int64_t deadline)
{
    (void)job;
    (void)deadline;
    return 0;
}

/* A slot's offset and word belong together only if the word is the same before and after. */
static int host_place(gw_job *job, const struct gw_shm_slot *slot, uint64_t value,
                      uint64_t *ret_offset)
{
    uint64_t before = 0, offset = 0;

    (void)job;
    for (int i = 0; i < PLACE_TRIES; i++) {
        before = atomic_load_explicit(&slot->value, memory_order_acquire);
        offset = __atomic_load_n(&slot->offset, __ATOMIC_ACQUIRE);
        if (atomic_load_explicit(&slot->value, memory_order_relaxed) == before)
            break;
    }
    *ret_offset = offset;
    return before < value ? GW_E_AGAIN : 0;
}

static int host_copy_in(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline)
{
    (void)job;
    (void)deadline;
    memcpy(to, from, bytes);
    return 0;
}

static int host_copy_out(gw_job *job, void *to, const void *from, size_t bytes, int64_t deadline)
{
    return host_copy_in(job, to, from, bytes, deadline);
}

static void host_declared(gw_job *job)
{
    (void)job;
}

/* Waits on the host end by themselves when the job fails. */
static void host_release(gw_job *job)
{
    (void)job;
}

const struct order_ops order_host = {
    .streams = false,
    .tokens_max = GW_READY_TOKENS,
    .wait = host_wait,
    .mark = host_mark,
    .settle = host_settle,
    .place = host_place,
    .copy_in = host_copy_in,
    .copy_out = host_copy_out,
    .declared = host_declared,
    .stamp = NULL,
    .release = host_release,
};

/* The device is known: job->device. */
void order_init(gw_job *job)
{
    struct order *order = &job->order;

    order->ops = job->device ? &order_device : &order_host;
    if (job->device)
        order->way = job->device->ops->stream_wait ? &order_words : &order_events;
    job->channel.stamp = order->ops->stamp;
    job->channel.stamp_job = job;
    pthread_mutex_init(&order->begin_lock, NULL);
    pthread_mutex_init(&order->lock, NULL);
    pthread_mutex_init(&order->bounce.lock, NULL);
}

void order_deinit(gw_job *job)
{
    for (uint32_t i = 0; i < ORDER_STREAMS; i++)
        free(job->order.streams[i].waited);
    pthread_mutex_destroy(&job->order.bounce.lock);
    pthread_mutex_destroy(&job->order.lock);
    pthread_mutex_destroy(&job->order.begin_lock);
}
