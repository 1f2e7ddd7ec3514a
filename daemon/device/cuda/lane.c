/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: works become records and go into the queues of all their GPUs, in the same order
 * everywhere. Loop thread; makes no CUDA call on the step path.
 *
 * Every wait names a word that an earlier work raises, or a client's token whose declaration came
 * before: the order of enqueue is an order in which everything can run, on any number of queues.
 */
#include <stdlib.h>

#include "daemon/device/cuda/cuda.h"
#include "gradwire/errors.h"

int cuda_stream_new(struct device *device, const char *name, struct device_stream **ret_stream)
{
    struct cuda_device *of = cuda_of(device);
    uint32_t lane = of->ledger.lane_count;
    int r = 0;

    (void)name;
    if (lane == CUDA_LANES_MAX)
        return GW_E_LIMIT;
    for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX && r == 0; rank++)
        if (of->gpus[rank].placed)
            r = cuda_track_new(&of->gpus[rank], lane);
    if (r < 0) {
        for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX; rank++)
            if (of->gpus[rank].placed)
                cuda_track_free(&of->gpus[rank], lane);
        return r;
    }
    of->streams[lane] = (struct cuda_stream){of, lane};
    pthread_mutex_lock(&of->lock);
    of->ledger.lane_count++;
    pthread_mutex_unlock(&of->lock);
    *ret_stream = (struct device_stream *)(void *)&of->streams[lane];
    return 0;
}

/* Work of ranks without a place is done by any GPU: it has only signals. */
static uint64_t parts_of(const struct cuda_device *device, const struct device_work *work)
{
    uint64_t parts = work->ranks.word[0] & device->placed;

    return parts ? parts : device->placed & -device->placed;
}

/* With the lock held. Every word and slot lies in a page that the GPUs know. */
static bool reachable(const struct cuda_device *device, const struct device_work *work)
{
    for (uint32_t i = 0; i < work->wait_count; i++)
        if (!cuda_alias(device, work->waits[i].word))
            return false;
    for (uint32_t i = 0; i < work->signal_count; i++)
        if (!cuda_alias(device, work->signals[i].slot))
            return false;
    return true;
}

/* With the lock held. */
static uint32_t take_slot(struct cuda_device *device)
{
    return device->free_slot_count > 0 ? device->free_slots[--device->free_slot_count] : 0;
}

void cuda_push_work(struct cuda_device *device, struct cuda_work *work)
{
    struct cuda_item *later = work->later;

    for (uint32_t i = 0; i < (uint32_t)__builtin_popcountll(work->parts); i++)
        cuda_issuer_push(&device->gpus[work->items[i].rank], &work->items[i]);
    work->later = NULL;
    while (later) {
        struct cuda_item *next = later->next;
        cuda_issuer_push(&device->gpus[later->rank], later);
        later = next;
    }
}

int cuda_enqueue(struct device_stream *stream, const struct device_work *work)
{
    struct cuda_stream *to = (struct cuda_stream *)(void *)stream;
    struct cuda_device *device = to->device;
    uint64_t parts = parts_of(device, work);
    struct cuda_work *copy;
    int r;

    if (!parts)
        return GW_E_INTERNAL;
    r = cuda_work_new(work, parts, &copy);
    if (r < 0)
        return r;
    pthread_mutex_lock(&device->lock);
    if (!reachable(device, work)) {
        pthread_mutex_unlock(&device->lock);
        cuda_work_free(copy);
        return GW_E_INTERNAL;
    }
    copy->slot = take_slot(device);
    cuda_ledger_add(&device->ledger, to->lane, copy);
    device->way->submit(device, copy);
    pthread_mutex_unlock(&device->lock);
    return 0;
}

static void append_later(struct cuda_gpu *gpu, struct cuda_item *item)
{
    if (gpu->later_tail)
        gpu->later_tail->later_next = item;
    else
        gpu->later_head = item;
    gpu->later_tail = item;
}

/* With the lock held: behind the work on a stream of its own, so that nobody waits for it. */
static int push_later(struct cuda_device *device, struct cuda_work *work,
                      const struct device_signal *signal)
{
    struct cuda_item *item = calloc(1, sizeof(*item));
    uint32_t rank = signal->rank;

    if (!item)
        return GW_E_NOMEM;
    if (!(work->parts >> rank & 1))
        rank = work->items[0].rank;
    item->kind = CUDA_ITEM_LATER;
    item->rank = rank;
    item->work = work;
    item->later = *signal;
    work->pending++;
    append_later(&device->gpus[signal->rank], item);
    if (work->held) {
        item->next = work->later;
        work->later = item;
    } else {
        cuda_issuer_push(&device->gpus[rank], item);
    }
    return 0;
}

/* With the lock held: the work that the signal is to stand behind; NULL: nothing is in its way.
 * While a GPU raises a slot, nobody else may: where it has no atomics on host memory, it reads the
 * word and writes it, and what a host stores in between is lost. So signals of a rank follow those
 * that are on their way. */
static struct cuda_work *behind(struct cuda_device *device, uint64_t op, uint32_t rank)
{
    struct cuda_work *work = cuda_ledger_find(&device->ledger, op);
    const struct cuda_item *last = device->gpus[rank].later_tail;

    return work || !last || last->work->told ? work : last->work;
}

int cuda_signal_after(struct device *device, uint64_t op, const struct device_signal *signal)
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_work *work;
    uint64_t now_ns;
    int r = 0;

    pthread_mutex_lock(&of->lock);
    work = behind(of, op, signal->rank);
    if (work)
        r = cuda_alias(of, signal->slot) ? push_later(of, work, signal) : GW_E_INTERNAL;
    pthread_mutex_unlock(&of->lock);
    if (!work) {
        now_ns = op ? 1 : cuda_now_ns();
        cuda_raise_now(signal, now_ns, now_ns, now_ns);
    }
    return r;
}
