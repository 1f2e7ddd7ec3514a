/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waking a client's threads after a word of its pages has risen. Any thread.
 *
 * The client counts itself into `waiting`, reads `wake`, looks at its tokens, sleeps on `wake`.
 * Both sides are seq_cst: if `waiting` is 0 here, the client's count comes later in the one order
 * of all such accesses, so its read of `wake` sees this rise and its tokens what was stored before.
 * The client page is hostile: `waiting` only saves or costs a system call.
 */
#ifndef GW_DEVICE_RING_H
#define GW_DEVICE_RING_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/shm.h"

static inline void device_ring(struct gw_engine_page *engine, const struct gw_client_page *client)
{
    atomic_fetch_add_explicit(&engine->wake, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&client->waiting, memory_order_seq_cst) != 0)
        (void)syscall(SYS_futex, &engine->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
