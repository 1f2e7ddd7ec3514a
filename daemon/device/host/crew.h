/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of stream threads: a large work is cut into blocks that the stream's thread and the
 * helpers take off a counter, so that all free cores share its memory traffic. Which thread does a
 * block must not show in what it writes.
 *
 * As many helpers as there are cores beside the one of the caller, at most CREW_HELPERS_MAX; made
 * by the first work, asleep while there is none. With several works at a time, helpers take turns
 * among them. No lock, allocation or system call per block.
 */
#ifndef GW_DEVICE_HOST_CREW_H
#define GW_DEVICE_HOST_CREW_H

#include <stdint.h>

#define CREW_HELPERS_MAX 15u

struct crew;

/* `helpers`: how many; CREW_AUTO: by the cores this process may use. */
#define CREW_AUTO UINT32_MAX
int crew_new(uint32_t helpers, struct crew **ret_crew);
/* No work is under way. */
struct crew *crew_free(struct crew *crew);

/* run(arg, 0) ... run(arg, blocks - 1), once each, in any order and on any thread; returns when all
 * have returned, and what they wrote is seen. Any number of threads at a time. */
void crew_run(struct crew *crew, void (*run)(void *arg, uint64_t block), void *arg,
              uint64_t blocks);

#endif
