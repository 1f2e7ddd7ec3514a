/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processors threads may use: asked of the kernel, and told to it. What cannot be had is left
 * as it is, for a thread on another processor does the same. Any thread; owns nothing.
 */
#ifndef GW_DEVICE_HOST_AFFINITY_H
#define GW_DEVICE_HOST_AFFINITY_H

#include <sys/types.h>

#include "daemon/base/topology.h"

/* Of the calling thread. */
struct cpus affinity_own(void);
/* Of all of a process's threads, for some may be bound by themselves; no processor: not known. */
struct cpus affinity_process(pid_t pid);
/* tid 0: the calling thread. */
void affinity_set(pid_t tid, const struct cpus *cpus);
/* All of this process's threads, and those that they start from now on. */
void affinity_confine(const struct cpus *cpus);

#endif
