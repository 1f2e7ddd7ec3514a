/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that measure the sum that training makes: a reduction of stage 2, which leaves the norm and
 * what is not finite beside the sums. One parameter is one bucket; its gradient lies in the
 * service's memory, where a backward pass would have written it. There is no update: nothing is
 * gathered. In a worker; one thread.
 */
#include <math.h>
#include <stdlib.h>

#include "client/bench/rank.h"

#define NORM_WITHIN 1e-5 /* of it: sums of squares are made in many orders */

struct gradients {
    gw_job *job;
    uint64_t numel, steps, fills;
    void *filled; /* with values of that fill; NULL: with older ones */
};

static int gradients_open(struct worker *worker)
{
    struct gradients *g = calloc(1, sizeof *g);
    const struct bench_case *what = worker->what;
    struct gw_zero_options options = {
        .struct_size = sizeof options,
        .stage = 2,
        .ring_slots = 1,
        .bucket_bytes = (what->bytes + 3) / 4 * 4,
        .scale = 1.0,
    };
    struct rank_model model = {1, what->bytes / values_bytes(what->dtype)};
    int r;

    if (g == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = g;
    g->numel = model.numel;
    r = rank_join(worker, 0, &g->job);
    return r != 0 ? r : rank_seal(worker, g->job, &model, &options);
}

/* What is sent changes from fill to fill. */
static float added(const struct gradients *g)
{
    return (float)(g->fills % 8);
}

static struct values expected(const struct worker *worker, uint64_t first)
{
    const struct gradients *g = (const struct gradients *)worker->state;
    uint32_t ranks = worker->what->ranks;

    return (struct values){GW_DTYPE_FP32, first, values_sum_factor(worker->what->dtype, ranks),
                           (float)ranks * added(g)};
}

/* The slot is the same in every step, and keeps what was written. */
static int acquire(struct worker *worker)
{
    struct gradients *g = (struct gradients *)worker->state;
    uint32_t type = worker->what->dtype;
    struct values sent = {type, 0, values_factor(type, worker->rank), added(g)};
    uint64_t count;
    void *to;
    int r;

    r = rank_check(worker, "acquire gradient",
                   gw_grad_acquire_sync(g->job, 0, 0, RANK_WAIT_NS, &to, &count));
    if (r != 0 || to == g->filled)
        return r;
    if (count != g->numel)
        return worker_fail(worker, WORKER_FAILED, "rank %u: the gradient is cut", worker->rank);
    values_fill(to, count, &sent);
    if (worker->rank == 0)
        values_plant("gradients", type, to, count);
    g->filled = to;
    return 0;
}

static int verify(struct worker *worker, const struct gw_verdict *verdict, bool all)
{
    const struct gradients *g = (const struct gradients *)worker->state;
    struct values must = expected(worker, 0);
    double norm = values_norm(&must, g->numel);
    const struct gw_span *spans;
    uint32_t count;
    int r;

    r = rank_check(worker, "shard", gw_shard_spans(g->job, &spans, &count));
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        uint64_t bad, numel = spans[i].valid_numel;

        must = expected(worker, spans[i].bucket_offset);
        if (numel == 0 || (!all && values_spots(spans[i].grads, numel, &must)))
            continue;
        bad = values_check(spans[i].grads, numel, &must);
        if (bad < numel)
            r = rank_wrong(worker, "gradient", spans[i].grads, bad, &must, must.first + bad);
    }
    if (r == 0 && (verdict->nonfinite || !(fabs(verdict->norm - norm) <= NORM_WITHIN * norm)))
        r = worker_fail(worker, WORKER_WRONG, "WRONG VALUE: rank %u: the norm is %g, not %g%s",
                        worker->rank, verdict->norm, norm,
                        verdict->nonfinite ? ", and something is not finite" : "");
    return r;
}

static int one_step(struct worker *worker, bool all, uint64_t *ret_ns)
{
    struct gradients *g = (struct gradients *)worker->state;
    struct gw_verdict verdict;
    uint64_t began;
    int r;

    r = acquire(worker);
    began = bench_now_ns();
    if (r == 0)
        r = rank_check(worker, "gradient ready",
                       gw_grad_ready(g->job, 0, 0, GW_GRAD_FINAL, NULL, 0));
    if (r == 0)
        r = rank_end_step(worker, g->job, &verdict);
    *ret_ns = bench_now_ns() - began;
    g->steps++;
    return r != 0 ? r : verify(worker, &verdict, all);
}

/* That each step was one reduction, and what the service took for it. */
static int tell_service(struct worker *worker)
{
    const struct gradients *g = (const struct gradients *)worker->state;
    struct gw_stats stats = {.struct_size = sizeof stats};
    uint64_t calls;
    int r;

    r = rank_check(worker, "figures", gw_stats_sync(g->job, RANK_WAIT_NS, &stats));
    calls = stats.kinds[GW_KIND_REDUCE_SCATTER].calls;
    if (r == 0 && calls != g->steps)
        r = worker_fail(worker, WORKER_WRONG, "rank %u: %llu steps made %llu reductions",
                        worker->rank, (unsigned long long)g->steps, (unsigned long long)calls);
    if (r == 0)
        worker->share->figures[FIGURE_COMM] = (double)stats.comm_ns / (double)g->steps / 1e3;
    return r;
}

/* The first step is not timed. Another after the last timed one has other gradients, so that a sum
 * that was not made is found, and is looked at everywhere. */
static int gradients_run(struct worker *worker, uint64_t iterations)
{
    struct gradients *g = (struct gradients *)worker->state;
    uint64_t ns = 0;
    int r = 0;

    for (uint64_t i = 0; r == 0 && i <= iterations + 1; i++) {
        if (i > iterations) {
            g->fills++;
            g->filled = NULL;
        }
        r = one_step(worker, i > iterations, &ns);
        if (r == 0 && i > 0 && i <= iterations)
            worker_sample(worker, ns);
    }
    return r != 0 ? r : tell_service(worker);
}

static void gradients_close(struct worker *worker)
{
    struct gradients *g = (struct gradients *)worker->state;

    if (g != NULL)
        gw_job_close(g->job);
    free(g);
}

const struct worker_ops worker_gradients = {gradients_open, gradients_run, gradients_close};
