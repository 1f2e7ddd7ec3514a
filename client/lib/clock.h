/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines: absolute CLOCK_MONOTONIC ns, INT64_MAX for none. Any thread. */
#ifndef GW_CLIENT_CLOCK_H
#define GW_CLIENT_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_SECOND 1000000000ll
#define CLOCK_MS 1000000ll

static inline int64_t clock_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * CLOCK_SECOND + now.tv_nsec;
}

/* Negative timeouts count as 0 (poll). */
static inline int64_t clock_deadline(int64_t timeout_ns)
{
    int64_t now = clock_now();

    if (timeout_ns <= 0)
        return now;
    return timeout_ns > INT64_MAX - now ? INT64_MAX : now + timeout_ns;
}

static inline struct timespec clock_timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / CLOCK_SECOND, .tv_nsec = ns % CLOCK_SECOND};
}

/* The shorter of `slice_ns` and what is left to the deadline, at least 0. */
static inline int64_t clock_slice(int64_t now, int64_t deadline, int64_t slice_ns)
{
    int64_t left = deadline - now;

    if (left < 0)
        return 0;
    return left < slice_ns ? left : slice_ns;
}

#endif
