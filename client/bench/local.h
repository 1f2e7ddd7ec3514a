/* SPDX-License-Identifier: Apache-2.0 */
/* A system that measures in workers of ours: gradwire's ranks, or the limit. Coordinator's. */
#ifndef GW_BENCH_LOCAL_H
#define GW_BENCH_LOCAL_H

#include "client/bench/bench.h"

struct local {
    const char *name;
    struct bench_case what;
    struct worker workers[RANKS_MAX];
    uint32_t count;
    uint64_t iterations; /* of a round */
    struct bench_samples samples;
};

/* NULL: no memory. */
struct local *local_new(const char *name, const struct bench_case *what);
/* Starts its workers: a rank each, or the limit's, which is one, or one on each node.
 * 0 or an exit code after a message. */
int local_start(struct local *local, const struct worker_ops *ops, const struct bench *bench);
/* One round; adds samples. */
int local_round(struct local *local, const struct bench_options *options);
/* Means over its ranks of what they tell beside times. */
void local_figures(const struct local *local, double ret_figures[FIGURES]);
struct local *local_free(struct local *local);

#endif
