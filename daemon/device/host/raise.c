/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raising timelines: time stamps, then the value, then the wake words. Any thread; writes slots of
 * engine pages and boards, under one lock per device.
 */
#include <stdatomic.h>

#include "daemon/device/host/host.h"
#include "daemon/device/ring.h"

/* A reader may look at any time: stamps are stored one by one, relaxed; `value` publishes them. */
static void raise_one(const struct device_signal *signal, uint64_t ready_ns, uint64_t started_ns,
                      uint64_t done_ns)
{
    struct gw_shm_slot *slot = signal->slot;

    /* Signals of one slot from two streams may meet out of order; a timeline only rises. */
    if (atomic_load_explicit(&slot->value, memory_order_relaxed) >= signal->value)
        return;
    __atomic_store_n(&slot->ready_ns, ready_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->started_ns, started_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->done_ns, done_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->offset, signal->offset, __ATOMIC_RELAXED);
    atomic_store_explicit(&slot->value, signal->value, memory_order_release);
}

void host_raise(struct host_device *device, const struct device_signal *signals, uint32_t count,
                uint64_t ready_ns, uint64_t started_ns, uint64_t done_ns)
{
    if (count == 0)
        return;
    pthread_mutex_lock(&device->raise_lock);
    for (uint32_t i = 0; i < count; i++)
        raise_one(&signals[i], ready_ns, started_ns, done_ns);
    pthread_mutex_unlock(&device->raise_lock);
    device_ring_all(signals, count);
}
