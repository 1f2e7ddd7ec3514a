/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waking a client's threads after words of its pages have risen. Any thread.
 *
 * The client counts itself into `waiting` of the lines of its slots, reads `wake`, looks at its
 * tokens, sleeps on `wake`. Both sides are seq_cst: if `waiting` is 0 here, the client's count
 * comes later in the one order of all such accesses, so its read of `wake` sees this rise and its
 * tokens what was stored before. The client page is hostile: `waiting` only saves or costs a system
 * call.
 */
#ifndef GW_DEVICE_RING_H
#define GW_DEVICE_RING_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/shm.h"

static inline uint32_t device_line(const struct gw_shm_slot *slot)
{
    return 1u << gw_wake_line(slot);
}

/* lines: a bit for each line of which a slot has risen. Only who waits for one of them is woken. */
static inline void device_ring(struct gw_engine_page *engine, const struct gw_client_page *client,
                               uint32_t lines)
{
    bool any = false;

    atomic_fetch_add_explicit(&engine->wake, 1, memory_order_seq_cst);
    for (uint32_t left = lines; left != 0 && !any; left &= left - 1)
        any = atomic_load_explicit(&client->waiting[__builtin_ctz(left)], memory_order_seq_cst) > 0;
    if (any)
        (void)syscall(SYS_futex, &engine->wake, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, lines);
}

#endif
