/* SPDX-License-Identifier: Apache-2.0 */
/* What the workers that are ranks share: joining, sealing, waiting. In a worker; one thread. */
#ifndef GW_BENCH_RANK_H
#define GW_BENCH_RANK_H

#include "client/bench/bench.h"

#define RANK_WAIT_NS 120000000000ll

/* 0, or -1 after the failed call's text was kept. */
int rank_check(struct worker *worker, const char *call, int r);
int rank_wrong(struct worker *worker, const char *what, uint64_t index, float is, float must);
/* Joins the job of the case; rank 0 makes it, tells its id, and says so. Waits for all. */
int rank_join(struct worker *worker, gw_job **ret_job);
int rank_wait(struct worker *worker, gw_job *job, const char *what, struct gw_token token);
int rank_barrier(struct worker *worker, gw_job *job);
/* Sum over ranks of (rank + 1): what a sum's factor must be. */
float rank_sum_factor(const struct worker *worker);

/* `units` parameters of `numel` each, a unit each; sealed with `options`; values are values_fill
 * from index p * numel on, factor 1, written by rank p mod n. */
struct rank_model {
    uint32_t units;
    uint64_t numel;
};
int rank_seal(struct worker *worker, gw_job *job, const struct rank_model *model,
              const struct gw_zero_options *options);

#endif
