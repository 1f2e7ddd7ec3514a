/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rank's waits, split into late, queued, exposed and wakeup. Waits of
 * several threads are united per step before lengths are taken: of each new wait only the part that
 * no earlier wait of the step covers is split and added. Own lock; any thread.
 */
#ifndef GW_CLIENT_SPLIT_H
#define GW_CLIENT_SPLIT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/intervals.h"

#define SPLIT_DEFERRED 64

struct split {
    pthread_mutex_t lock;
    struct intervals *covered;                /* of the present step */
    struct interval deferred[SPLIT_DEFERRED]; /* waits that ended at their deadline */
    size_t deferred_count;
    struct wait_parts total;
};

int split_init(struct split *split);
void split_deinit(struct split *split);
/* A wait [w0, w1) that depended on these ops (those without stamps, done 0, are left out). */
void split_add(struct split *split, int64_t w0, int64_t w1, struct wait_op *ops, size_t count);
/* A wait that its deadline ended: what it waited for has no stamps yet, so it is split with the ops
 * of the wait that succeeds next (the same one, when a caller waits in short slices). */
void split_defer(struct split *split, int64_t w0, int64_t w1);
/* The step is over: the next waits are united among themselves. */
void split_next_step(struct split *split);
void split_get(struct split *split, struct wait_parts *ret_total);

#endif
