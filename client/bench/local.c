/* SPDX-License-Identifier: Apache-2.0 */
/* See local.h. */
#include "client/bench/local.h"

#include <math.h>
#include <stdlib.h>

#include "client/bench/nodes.h"

enum { CALIBRATE = 3 };

struct local *local_new(const char *name, const struct bench_case *what)
{
    struct local *local = calloc(1, sizeof *local);

    if (local == NULL) {
        fprintf(stderr, "gwbench: no memory for another system\n");
        return NULL;
    }
    local->name = name;
    local->what = *what;
    return local;
}

/* Whose share a worker looks at: rank 0's; a link's end at that of the end it connects to. */
static const struct worker_share *looks_at(const struct local *local, uint32_t i)
{
    bool link = local->workers[i].ops == &worker_link;

    return local->workers[link ? (i + 1) % local->count : 0].share;
}

static int make_workers(struct local *local, const struct worker_ops *ops,
                        const struct bench *bench)
{
    int r = 0;

    local->count = ops == &worker_limit  ? 1
                   : ops == &worker_link ? local->what.nodes
                                         : local->what.ranks;
    for (uint32_t i = 0; i < local->count; i++) {
        local->workers[i] = (struct worker){.ops = ops,
                                            .what = &local->what,
                                            .socket = daemon_socket(bench, &local->what, i),
                                            .nodes = bench->nodes,
                                            .rank = i,
                                            .order_fd = -1,
                                            .answer_fd = -1};
        if (r == 0)
            r = worker_share_new(&local->workers[i]);
    }
    return r;
}

int local_start(struct local *local, const struct worker_ops *ops, const struct bench *bench)
{
    bool limit = ops == &worker_limit || ops == &worker_link;
    int r = make_workers(local, ops, bench);

    for (uint32_t i = 0; r == 0 && i < local->count; i++) {
        local->workers[i].first = looks_at(local, i);
        r = worker_start(&local->workers[i]);
        if (r == 0 && i == 0 && !limit)
            r = worker_await(&local->workers[i], "start of the job");
    }
    for (uint32_t i = 0; r == 0 && i < local->count; i++)
        r = worker_await(&local->workers[i], "set-up");
    return r;
}

/* The i-th sample is that of the slowest rank. */
static void take_samples(struct local *local, struct bench_samples *to)
{
    uint64_t count = local->workers[0].share->count;

    for (uint64_t i = 0; i < count && i < WORKER_SAMPLES; i++) {
        uint64_t slowest = 0;

        for (uint32_t rank = 0; rank < local->count; rank++) {
            uint64_t ns = local->workers[rank].share->samples[i];
            slowest = ns > slowest ? ns : slowest;
        }
        samples_add(to, slowest);
    }
}

/* How many ops a round has: as told, or what fits into its share of the time, with what a worker
 * does between them: of fetches that hit, that is nearly all. */
static int choose_iterations(struct local *local, const struct bench_options *options)
{
    struct bench_samples samples = {0};
    uint64_t one_ns, each_ns;
    int r;

    local->iterations = (options->iterations + options->rounds - 1) / options->rounds;
    if (options->iterations > 0)
        return 0;
    each_ns = bench_now_ns();
    r = workers_run(local->workers, local->count, CALIBRATE);
    each_ns = (bench_now_ns() - each_ns) / CALIBRATE;
    if (r == 0) {
        take_samples(local, &samples);
        one_ns = samples_percentile(&samples, 50) + 1;
        if (each_ns / 4 > one_ns) /* more than that is checks and the first op's start */
            one_ns = each_ns / 4;
        local->iterations = (uint64_t)options->budget_ns / options->rounds / one_ns;
    }
    if (local->iterations < 1)
        local->iterations = 1;
    if (local->iterations > WORKER_SAMPLES)
        local->iterations = WORKER_SAMPLES;
    samples_clear(&samples);
    return r;
}

int local_round(struct local *local, const struct bench_options *options)
{
    int r = 0;

    if (local->iterations == 0)
        r = choose_iterations(local, options);
    if (r == 0)
        r = workers_run(local->workers, local->count, local->iterations);
    if (r == 0)
        take_samples(local, &local->samples);
    return r;
}

void local_figures(const struct local *local, double ret_figures[FIGURES])
{
    for (uint32_t i = 0; i < FIGURES; i++) {
        double sum = 0.0;

        for (uint32_t rank = 0; rank < local->count; rank++)
            sum += local->workers[rank].share->figures[i];
        ret_figures[i] = local->count > 0 ? sum / local->count : (double)NAN;
    }
}

struct local *local_free(struct local *local)
{
    if (local != NULL) {
        workers_stop(local->workers, local->count);
        samples_clear(&local->samples);
    }
    free(local);
    return NULL;
}
