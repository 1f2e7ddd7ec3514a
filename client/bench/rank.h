/* SPDX-License-Identifier: Apache-2.0 */
/* What the workers that are ranks share: joining, sealing, waiting. In a worker; one thread. */
#ifndef GW_BENCH_RANK_H
#define GW_BENCH_RANK_H

#include "client/bench/bench.h"
#include "client/bench/values.h"

#define RANK_WAIT_NS 120000000000ll

/* 0, or -1 after the failed call's text was kept. */
int rank_check(struct worker *worker, const char *call, int r);
/* Element `at` of what lies at `is` is not what it must be; in the message it is `shown`. */
int rank_wrong(struct worker *worker, const char *what, const void *is, uint64_t at,
               const struct values *must, uint64_t shown);
/* Of this worker's rank in its job. */
void rank_options(const struct worker *worker, struct gw_job_options *ret_options);
/* Joins the job of the case; rank 0 makes it, with that link (0: none), tells its id, and says so.
 * Waits for all. */
int rank_join(struct worker *worker, uint64_t link_bytes_per_s, gw_job **ret_job);
int rank_wait(struct worker *worker, gw_job *job, const char *what, struct gw_token token);
int rank_barrier(struct worker *worker, gw_job *job);
/* `units` parameters of `numel` each, of the case's dtype as their gradients, a unit each; sealed
 * with `options`; values are those from index p * numel on, factor 1, written by rank p mod n. */
struct rank_model {
    uint32_t units;
    uint64_t numel;
};
int rank_seal(struct worker *worker, gw_job *job, const struct rank_model *model,
              const struct gw_zero_options *options);
/* A fetched parameter of a rank_model, everywhere or in places. */
int rank_verify_param(struct worker *worker, gw_job *job, uint32_t param, uint64_t numel,
                      const struct values *must, bool all);
int rank_end_step(struct worker *worker, gw_job *job, struct gw_verdict *ret_verdict);
/* What computing took, by the clock and of a processor. */
struct rank_work {
    uint64_t ns, cpu_ns;
};
/* As much work as takes `ns` of a processor, however long others hold it; added to *work. */
void rank_compute(struct rank_work *work, uint64_t ns);
/* Figures of it, of so many steps. */
void rank_tell_work(struct worker *worker, const struct rank_work *work, uint64_t steps);
enum { RANK_COMPUTING_UNITS = 32 }; /* parameters of a step that computes */
/* An update of so many values: parameters become the reduced gradients, and `add`. */
void rank_add(float *restrict params, const float *restrict grads, uint64_t count, float add);
/* The shard's. */
int rank_update(struct worker *worker, gw_job *job, float add);

#endif
