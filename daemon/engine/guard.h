/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard: a process beside the engine of a job on GPUs that raises all words of its wait pages
 * (proto/shm.h) to GW_TIMELINE_END once the engine has ended, however it did, so that no stream of
 * a client waits for an engine that is no more. It is the engine's own program, started with
 * --guard and one socket: no CUDA in it, nothing to go wrong.
 *
 *   engine --{page, descriptor}: watch; {page}: forget; end of file: raise all for 2 s--> guard
 *
 * Loop thread; the calls of the engine's side.
 */
#ifndef GW_ENGINE_GUARD_H
#define GW_ENGINE_GUARD_H

#include "daemon/device/device.h"

#define GUARD_FD 3

struct guard;

/* GW_E_IO: errno says why. */
int guard_new(struct guard **ret_guard);
/* It raises what it still watches, and ends. */
struct guard *guard_free(struct guard *guard);
/* GW_E_IO: the guard is gone. */
int guard_watch(struct guard *guard, const struct device_memory *page);
void guard_forget(struct guard *guard, const struct device_memory *page);

/* The guard's main: returns when the engine has ended. Exit code. */
int guard_run(int fd);

#endif
