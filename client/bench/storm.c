/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storm: clients that have all been started create and join their jobs at once. The coordinator's
 * thread.
 */
#include <math.h>
#include <stdlib.h>

#include "client/bench/bench.h"

struct storm {
    struct bench_case what;
    struct worker *workers; /* those of a job lie together, its rank 0 first */
    uint32_t count, jobs;
    uint32_t failures;
    struct bench_samples create, join, complete;
};

static int start(struct storm *storm, const struct bench *bench)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < storm->count; i++) {
        struct worker *worker = &storm->workers[i];
        uint32_t rank = i % storm->what.ranks;

        *worker = (struct worker){.ops = &worker_storm,
                                  .what = &storm->what,
                                  .socket = daemon_socket(bench, &storm->what, rank),
                                  .rank = rank,
                                  .order_fd = -1,
                                  .answer_fd = -1};
        r = worker_share_new(worker);
        worker->first = storm->workers[i - rank].share;
        if (r == 0)
            r = worker_start(worker);
        if (r == 0)
            r = worker_await(worker, "start");
    }
    return r;
}

static void take_samples(struct storm *storm)
{
    for (uint32_t i = 0; i < storm->count; i++) {
        const struct worker_share *share = storm->workers[i].share;

        if (share->status != WORKER_OK || share->count < 2) {
            storm->failures++;
            continue;
        }
        samples_add(i % storm->what.ranks == 0 ? &storm->create : &storm->join, share->samples[0]);
        samples_add(&storm->complete, share->samples[1]);
    }
}

/* Rows come also of a storm that failed: they tell how many did. */
static int tell(const struct bench_options *options, struct storm *storm)
{
    struct bench_samples *const samples[] = {&storm->create, &storm->join, &storm->complete};
    double figures[FIGURES];
    int r = 0;

    for (uint32_t i = 0; i < FIGURES; i++)
        figures[i] = (double)NAN;
    figures[FIGURE_CLIENTS] = storm->count;
    figures[FIGURE_JOBS] = storm->jobs;
    figures[FIGURE_FAILURES] = storm->failures;
    for (uint32_t i = 0; r == 0 && i < sizeof samples / sizeof samples[0]; i++) {
        storm->what.variant = (enum bench_variant)(VARIANT_CREATE + i);
        r = output_row(options, &storm->what, "gradwire", samples[i], 0, figures);
    }
    return r;
}

int storm_run(struct bench *bench, const struct bench_case *base)
{
    const struct bench_options *o = &bench->options;
    uint64_t storms = o->iterations > 0 ? o->iterations : o->rounds;
    struct storm storm = {.what = *base, .jobs = (uint32_t)o->jobs};
    uint32_t ranks = base->ranks;
    int r, told;

    storm.workers = calloc(storm.jobs * ranks, sizeof *storm.workers);
    if (storm.workers == NULL) {
        fprintf(stderr, "gwbench: no memory for %u clients\n", storm.jobs * ranks);
        return EX_OSERR;
    }
    storm.count = storm.jobs * ranks;
    for (uint32_t i = 0; i < storm.count; i++)
        storm.workers[i] = (struct worker){.order_fd = -1, .answer_fd = -1};
    r = start(&storm, bench);
    for (uint64_t turn = 1; r == 0 && turn <= storms; turn++) {
        r = workers_run(storm.workers, storm.count, turn);
        take_samples(&storm);
    }
    told = storm.create.count > 0 || storm.failures > 0 ? tell(o, &storm) : 0;
    workers_stop(storm.workers, storm.count);
    free(storm.workers);
    samples_clear(&storm.create);
    samples_clear(&storm.join);
    samples_clear(&storm.complete);
    if (storm.failures > 0 && !bench_stopped()) {
        bench->failed = true; /* its rows are still to be printed */
        return told;
    }
    return r != 0 ? r : told;
}
