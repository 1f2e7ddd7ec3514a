/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waking clients' threads after words of their pages have risen. Any thread.
 *
 * The client counts itself into `waiting` of the lines of its slots, reads `wake`, looks at its
 * tokens, sleeps on `wake`. Both sides are seq_cst: if `waiting` is 0 here, the client's count
 * comes later in the one order of all such accesses, so its read of `wake` sees this rise and its
 * tokens what was stored before. The client page is hostile: `waiting` only saves or costs a system
 * call. The same holds for `together` and the job page's `wake`, which rises once for all clients
 * whose words have risen.
 */
#ifndef GW_DEVICE_RING_H
#define GW_DEVICE_RING_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/device/device.h"

static inline uint32_t device_line(const struct gw_shm_slot *slot)
{
    return 1u << gw_wake_line(slot);
}

/* Those of the lines that somebody waits for. */
static inline uint32_t device_awaited(const _Atomic uint32_t counts[GW_WAKE_LINES], uint32_t lines)
{
    uint32_t awaited = 0;

    for (uint32_t left = lines; left != 0; left &= left - 1) {
        if (atomic_load_explicit(&counts[__builtin_ctz(left)], memory_order_seq_cst) > 0)
            awaited |= left & -left;
    }
    return awaited;
}

static inline void device_wake(_Atomic uint32_t *wake, uint32_t lines)
{
    if (lines != 0)
        (void)syscall(SYS_futex, wake, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, lines);
}

/* lines: a bit for each line of which a slot has risen. Only who waits for one of them is woken. */
static inline void device_ring(struct gw_engine_page *engine, const struct gw_client_page *client,
                               uint32_t lines)
{
    atomic_fetch_add_explicit(&engine->wake, 1, memory_order_seq_cst);
    device_wake(&engine->wake, device_awaited(client->waiting, lines));
}

/* For slots that have risen (> 0), all of one job: one wake for neighbours of the same rank, and
 * one for all ranks that sleep on the job's word. */
static inline void device_ring_all(const struct device_signal *signals, uint32_t count)
{
    struct gw_job_page *job = signals[0].job;
    uint32_t lines = 0, together = 0;

    if (job)
        atomic_fetch_add_explicit(&job->wake, 1, memory_order_seq_cst);
    for (uint32_t i = 0; i < count; i++) {
        lines |= device_line(signals[i].slot);
        if (i + 1 < count && signals[i + 1].engine == signals[i].engine)
            continue;
        device_ring(signals[i].engine, signals[i].client, lines);
        if (job)
            together |= device_awaited(signals[i].client->together, lines);
        lines = 0;
    }
    if (job)
        device_wake(&job->wake, together);
}

#endif
