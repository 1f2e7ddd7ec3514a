/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of stream threads: a large work is cut into blocks that the stream's thread and the
 * helpers take off a counter, so that all free cores share its memory traffic. Which thread does a
 * block must not show in what it writes.
 *
 * As many helpers as the placement says, each bound to its NUMA node if there are several; made by
 * the first work, asleep while there is none. A thread takes blocks that lie on its own node first,
 * then what is left. With several works at a time, helpers take turns among them. No lock,
 * allocation or system call per block.
 */
#ifndef GW_DEVICE_HOST_CREW_H
#define GW_DEVICE_HOST_CREW_H

#include <stdint.h>

#include "daemon/base/placement.h"

struct crew;

/* What helpers do. */
struct crew_work {
    void (*run)(void *arg, uint64_t block);
    void *arg;
    uint64_t blocks;
    /* Blocks are `parts` runs of one length, each in the memory of a rank; NULL: anywhere. */
    const uint32_t *ranks;
    uint32_t parts;
};

/* placement: copied; NULL: one node, with as many helpers as this process has cores beside one. */
int crew_new(const struct placement *placement, struct crew **ret_crew);
/* No work is under way. */
struct crew *crew_free(struct crew *crew);

/* run(arg, 0) ... run(arg, blocks - 1), once each, in any order and on any thread; returns when all
 * have returned, and what they wrote is seen. Any number of threads at a time. */
void crew_run(struct crew *crew, const struct crew_work *work);

#endif
