/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that compute what the ranks of a covered step do (rank_step.c), write their gradients into
 * memory of their own, update as many values as a shard has, and send nothing: there is no job. In
 * a worker; one thread.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/bench/rank.h"

struct lone {
    char *grads, *to;
    float *params, *sums; /* of a shard: fp32, whatever the gradients are */
    uint64_t shard_numel;
    struct rank_work work;
    uint64_t steps;
};

static uint64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void rank_compute(struct rank_work *work, uint64_t ns)
{
    uint64_t began = bench_now_ns(), cpu_began = cpu_ns(), cpu = cpu_began;

    while (ns > 0 && cpu - cpu_began < ns)
        cpu = cpu_ns();
    work->ns += bench_now_ns() - began;
    work->cpu_ns += cpu - cpu_began;
}

void rank_tell_work(struct worker *worker, const struct rank_work *work, uint64_t steps)
{
    worker->share->figures[FIGURE_COMPUTE] = (double)work->ns / (double)steps / 1e3;
    worker->share->figures[FIGURE_SLOWED] = (double)work->ns / (double)work->cpu_ns;
}

static int lone_open(struct worker *worker)
{
    struct lone *l = calloc(1, sizeof *l);
    const struct bench_case *what = worker->what;
    struct values sent = {.type = what->dtype, .factor = values_factor(what->dtype, worker->rank)};
    uint64_t numel = what->bytes / values_bytes(what->dtype);

    if (l == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = l;
    l->grads = malloc(what->bytes);
    l->to = malloc(what->bytes);
    l->shard_numel = numel / what->ranks;
    l->params = malloc(l->shard_numel * sizeof *l->params);
    l->sums = malloc(l->shard_numel * sizeof *l->sums);
    if (l->grads == NULL || l->to == NULL || l->params == NULL || l->sums == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    values_fill(l->grads, numel, &sent);
    values_fill(l->sums, l->shard_numel, &(struct values){GW_DTYPE_FP32, 0, 1.0f, 0.0f});
    if (worker->rank == 0)
        worker_say(worker); /* as for a job that has started */
    return 0;
}

/* As after so many steps of a job's. */
static float added(const struct lone *l)
{
    return (float)(l->steps % 8);
}

static void one_step(struct worker *worker)
{
    struct lone *l = (struct lone *)worker->state;
    uint64_t unit_ns = worker->what->backward_ns / RANK_COMPUTING_UNITS;
    uint64_t part = worker->what->bytes / RANK_COMPUTING_UNITS;

    for (uint32_t unit = 0; unit < RANK_COMPUTING_UNITS; unit++)
        rank_compute(&l->work, unit_ns / 2);
    for (uint32_t unit = RANK_COMPUTING_UNITS; unit-- > 0;) {
        rank_compute(&l->work, unit_ns);
        memcpy(l->to + unit * part, l->grads + unit * part, part);
    }
    l->steps++;
    rank_add(l->params, l->sums, l->shard_numel, added(l));
}

static int lone_run(struct worker *worker, uint64_t iterations)
{
    const struct lone *l = (const struct lone *)worker->state;
    struct values must = {GW_DTYPE_FP32, 0, 1.0f, 0.0f};
    uint64_t bad;

    for (uint64_t i = 0; i <= iterations; i++) {
        uint64_t began = bench_now_ns();

        one_step(worker);
        if (i > 0)
            worker_sample(worker, bench_now_ns() - began);
    }
    rank_tell_work(worker, &l->work, l->steps);
    must.add = added(l);
    bad = values_check(l->params, l->shard_numel, &must);
    if (bad < l->shard_numel)
        return rank_wrong(worker, "parameter", l->params, bad, &must, bad);
    if (memcmp(l->to, l->grads, worker->what->bytes) != 0)
        return worker_fail(worker, WORKER_WRONG, "WRONG VALUE: rank %u: gradients were not written",
                           worker->rank);
    return 0;
}

static void lone_close(struct worker *worker)
{
    struct lone *l = (struct lone *)worker->state;

    if (l != NULL) {
        free(l->grads);
        free(l->to);
        free(l->params);
        free(l->sums);
    }
    free(l);
}

const struct worker_ops worker_unsent = {lone_open, lone_run, lone_close};
