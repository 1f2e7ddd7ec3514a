/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of works. Host functions on a thread of the driver (no CUDA call in here), or the issuing
 * thread where nothing was enqueued. Wakes clients that sleep, tells the loop.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/ring.h"

void cuda_raise_now(const struct device_signal *signal, uint64_t ready_ns, uint64_t started_ns,
                    uint64_t done_ns)
{
    struct gw_shm_slot *slot = signal->slot;

    if (atomic_load_explicit(&slot->value, memory_order_relaxed) < signal->value) {
        __atomic_store_n(&slot->ready_ns, ready_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->started_ns, started_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->done_ns, done_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->offset, signal->offset, __ATOMIC_RELAXED);
        atomic_store_explicit(&slot->value, signal->value, memory_order_release);
    }
    /* Whoever ended the job has the last word there. */
    if (signal->mirror) {
        uint64_t before = atomic_load(signal->mirror);
        while (before < signal->value &&
               !atomic_compare_exchange_weak(signal->mirror, &before, signal->value))
            ;
    }
    device_ring(signal->engine, signal->client, device_line(signal->slot));
}

/* Those of the part's GPU, and those of ranks without a part on the first. */
static bool is_mine(const struct cuda_item *item, const struct device_signal *signal)
{
    const struct cuda_work *work = item->work;

    return signal->rank == item->rank ||
           (!(work->parts >> signal->rank & 1) && item == &work->items[0]);
}

static void ring_clients(const struct cuda_item *item)
{
    const struct device_work *work = &item->work->work;
    const struct device_signal *last = NULL;
    uint32_t lines = 0;

    if (item->kind == CUDA_ITEM_LATER) {
        device_ring(item->later.engine, item->later.client, device_line(item->later.slot));
        return;
    }
    /* One wake for neighbours of the same rank. */
    for (uint32_t i = 0; i < work->signal_count; i++) {
        const struct device_signal *signal = &work->signals[i];
        if (!is_mine(item, signal))
            continue;
        if (last && last->engine != signal->engine) {
            device_ring(last->engine, last->client, lines);
            lines = 0;
        }
        lines |= device_line(signal->slot);
        last = signal;
    }
    if (last)
        device_ring(last->engine, last->client, lines);
}

#define WINDOW_NS UINT64_C(5000000000)
#define WINDOW_COUNT 64u

/* With the lock held. A GPU's clock runs on its own: within hours it is off by more than a step is
 * long. Being told takes the same few microseconds at best, always; what changes in the best of
 * many is the clock. */
static void follow_clock(struct cuda_gpu *gpu, uint64_t done_ns)
{
    uint64_t now_ns = cuda_now_ns();
    int64_t took_ns = (int64_t)(now_ns - done_ns);

    if (gpu->told_count++ == 0) {
        gpu->told_least_ns = took_ns;
        gpu->window_ns = gpu->window_ns ? gpu->window_ns : now_ns;
    }
    if (took_ns < gpu->told_least_ns)
        gpu->told_least_ns = took_ns;
    if (gpu->told_count < WINDOW_COUNT || now_ns - gpu->window_ns < WINDOW_NS)
        return;
    if (gpu->told_usual_ns == 0)
        gpu->told_usual_ns = gpu->told_least_ns;
    else
        gpu->clock_ns += gpu->told_least_ns - gpu->told_usual_ns;
    gpu->told_count = 0;
    gpu->window_ns = now_ns;
}

/* With the lock held. */
static void fill_in(struct cuda_device *device, struct cuda_work *work)
{
    const struct gw_k_stamps *result =
        &device->stamps[work->slot][__builtin_popcountll(work->parts)];
    uint64_t now_ns = cuda_now_ns();
    uint64_t started_ns = __atomic_load_n(&result->started_ns, __ATOMIC_RELAXED);
    uint64_t done_ns = __atomic_load_n(&result->done_ns, __ATOMIC_RELAXED);

    work->done.failed = (cuda_aborted(device) & work->work.ranks.word[0]) != 0 || device->broken;
    /* Nothing was stamped: the work was failed before its turn. */
    if (started_ns == 0 || started_ns > done_ns || work->done.failed)
        started_ns = done_ns = now_ns;
    work->done.started_ns = started_ns;
    work->done.done_ns = done_ns;
    if (work->slot) {
        memset(device->stamps[work->slot], 0, sizeof(device->stamps[0]));
        device->free_slots[device->free_slot_count++] = work->slot;
    }
}

/* With the lock held. Mostly they end in their order. */
static void remove_later(struct cuda_gpu *gpu, const struct cuda_item *item)
{
    struct cuda_item **at = &gpu->later_head, *before = NULL;

    while (*at != item) {
        before = *at;
        at = &before->later_next;
    }
    *at = item->later_next;
    if (gpu->later_tail == item)
        gpu->later_tail = before;
}

static void end(struct cuda_item *item)
{
    struct cuda_work *work = item->work;
    struct cuda_device *device;
    bool last, later = item->kind == CUDA_ITEM_LATER;
    uint64_t done_ns;

    device = (struct cuda_device *)item->arg;
    pthread_mutex_lock(&device->lock);
    if (!later && work->slot && !work->told) {
        done_ns = __atomic_load_n(&device->stamps[work->slot][item - work->items].done_ns,
                                  __ATOMIC_RELAXED);
        if (done_ns)
            follow_clock(&device->gpus[item->rank], done_ns);
    }
    if (later)
        remove_later(&device->gpus[item->later.rank], item);
    else
        device->way->ended(&device->gpus[item->rank], work->lane, work->work.op);
    last = work->pending == 1 && !work->told;
    if (last)
        fill_in(device, work);
    if (cuda_ledger_end(&device->ledger, work)) {
        cuda_wake_loop(device);
        if (device->ledger.unfinished == 0)
            pthread_cond_broadcast(&device->quiet);
    }
    pthread_mutex_unlock(&device->lock);
    if (later)
        free(item);
}

void cuda_part_notified(void *arg)
{
    struct cuda_item *item = (struct cuda_item *)arg;
    const struct cuda_device *device = (const struct cuda_device *)item->arg;

    if (!(cuda_aborted(device) & item->work->work.ranks.word[0]))
        ring_clients(item);
    end(item);
}

void cuda_part_failed(struct cuda_item *item)
{
    end(item);
}
