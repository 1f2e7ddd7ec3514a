/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an engine's threads that sum and copy in host memory share processors with training, and the
 * words for it: of gradwired's configuration, the engine's option and what gwctl shows. Pure; any
 * thread.
 */
#ifndef GW_BASE_PRIORITY_H
#define GW_BASE_PRIORITY_H

enum priority {
    PRIORITY_EQUAL, /* as all others */
    PRIORITY_NICE,  /* PRIORITY_NICE_MORE nicer */
    PRIORITY_IDLE,  /* SCHED_IDLE: what nobody else wants */
    PRIORITIES
};

/* Beside a thread that wants a whole processor it has a tenth of it (weights 110 and 1024). */
#define PRIORITY_NICE_MORE 10

/* By enum priority; then NULL. */
extern const char *const priority_names[];

#endif
