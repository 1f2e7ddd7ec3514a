/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that measure fetches of stage 3. A mapped fetch of one unit is the all-gather that moves
 * nothing; a private one that nobody foresaw is a miss; one that was prefetched is a hit. In a
 * worker; one thread.
 */
#include "client/bench/rank.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HIT_UNITS = 8, AWAKE_NS = 50000 };

struct fetcher {
    gw_job *job;
    struct rank_model model;
    uint64_t miss_ns;           /* how long a gather takes here, about */
    struct bench_samples calls; /* of hits: without what looking at the clock takes */
    uint64_t clock_ns;
};

/* Of two looks one after the other, the median. */
static uint64_t time_clock(void)
{
    struct bench_samples looks = {0};
    uint64_t ns;

    for (uint32_t i = 0; i < 1001; i++) {
        uint64_t began = bench_now_ns();

        samples_add(&looks, bench_now_ns() - began);
    }
    ns = samples_percentile(&looks, 50);
    samples_clear(&looks);
    return ns;
}

static int fetcher_open(struct worker *worker)
{
    struct fetcher *f = calloc(1, sizeof *f);
    const struct bench_case *what = worker->what;
    struct gw_zero_options options = {
        .struct_size = sizeof options,
        .stage = 3,
        .gather = what->variant == VARIANT_MAPPED ? GW_GATHER_MAPPED : GW_GATHER_PRIVATE,
        .overlap_off = what->variant == VARIANT_MISS,
        .ring_slots = 1,
        .bucket_bytes = what->bytes < 1u << 20 ? what->bytes : 1u << 20,
    };
    int r;

    if (f == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = f;
    f->model.units = what->variant == VARIANT_MAPPED ? 1 : HIT_UNITS;
    f->model.numel = what->bytes / values_bytes(what->dtype);
    f->clock_ns = time_clock();
    r = rank_join(worker, 0, &f->job);
    return r != 0 ? r : rank_seal(worker, f->job, &f->model, &options);
}

/* Stands for the work between two fetches: long enough for the next unit to be gathered. Ranks
 * sleep, for the gather may want their processor, and at last compute, as a rank does that comes to
 * a fetch: a processor that has just been woken is a slow one. */
static void compute(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    uint64_t until;

    (void)nanosleep(&t, NULL);
    until = bench_now_ns() + AWAKE_NS;
    while (bench_now_ns() < until)
        ;
}

static int one_fetch(struct worker *worker, uint32_t unit, bool all, uint64_t *ret_ns)
{
    struct fetcher *f = (struct fetcher *)worker->state;
    struct values must = {worker->what->dtype, unit * f->model.numel, 1.0f, 0.0f};
    struct gw_token token;
    uint64_t began = bench_now_ns();
    int r;

    r = rank_check(worker, "fetch", gw_fetch(f->job, unit, &token));
    if (r == 0)
        r = rank_wait(worker, f->job, "fetch", token);
    *ret_ns = bench_now_ns() - began;
    if (r == 0)
        r = rank_verify_param(worker, f->job, unit, f->model.numel, &must, all);
    if (r == 0 && worker->what->variant == VARIANT_HIT)
        compute(2 * f->miss_ns + 200000);
    return r != 0 ? r : rank_check(worker, "release", gw_release(f->job, unit));
}

/* What the counters must say: a mapped gather moves nothing, and hits are hits. */
static int check_counters(struct worker *worker)
{
    const struct fetcher *f = (const struct fetcher *)worker->state;
    struct gw_stats stats = {.struct_size = sizeof stats};
    uint64_t moved;
    int r;

    r = rank_check(worker, "figures", gw_stats_sync(f->job, RANK_WAIT_NS, &stats));
    moved = stats.kinds[GW_KIND_ALL_GATHER].moved_bytes;
    if (r == 0 && worker->what->variant == VARIANT_MAPPED && moved != 0)
        return worker_fail(worker, WORKER_WRONG, "rank %u: mapped fetches moved %llu bytes",
                           worker->rank, (unsigned long long)moved);
    if (r == 0 && worker->what->variant == VARIANT_HIT && stats.prefetch_hits == 0)
        return worker_fail(worker, WORKER_FAILED, "rank %u: nothing was prefetched", worker->rank);
    return r;
}

static void add_sample(struct worker *worker, uint64_t ns)
{
    struct fetcher *f = (struct fetcher *)worker->state;

    worker_sample(worker, ns);
    if (worker->what->variant == VARIANT_HIT)
        samples_add(&f->calls, ns > f->clock_ns ? ns - f->clock_ns : 0);
}

static void tell_calls(struct worker *worker)
{
    struct fetcher *f = (struct fetcher *)worker->state;
    double *figures = worker->share->figures;

    if (f->calls.count == 0)
        return;
    figures[FIGURE_CALL_P50] = (double)samples_percentile(&f->calls, 50) / 1e3;
    figures[FIGURE_CALL_P99] = (double)samples_percentile(&f->calls, 99) / 1e3;
}

/* Steps of one pass over all units; the first is looked at everywhere and not timed. Of a step of
 * hits, the first unit is none. */
static int fetcher_run(struct worker *worker, uint64_t iterations)
{
    struct fetcher *f = (struct fetcher *)worker->state;
    bool hits = worker->what->variant == VARIANT_HIT;
    uint32_t first = hits ? 1 : 0;
    uint64_t per_step = f->model.units - first, steps = (iterations + per_step - 1) / per_step;
    struct gw_verdict verdict;
    uint64_t ns = 0;
    int r = 0;

    for (uint64_t step = 0; r == 0 && step <= steps; step++) {
        for (uint32_t unit = 0; r == 0 && unit < f->model.units; unit++) {
            r = one_fetch(worker, unit, step == 0, &ns);
            if (r == 0 && step > 0 && unit >= first)
                add_sample(worker, ns);
            if (r == 0 && step == 0 && unit == 0 && f->miss_ns == 0)
                f->miss_ns = ns;
        }
        if (r == 0 && hits)
            r = rank_end_step(worker, f->job, &verdict);
    }
    tell_calls(worker);
    return r != 0 ? r : check_counters(worker);
}

static void fetcher_close(struct worker *worker)
{
    struct fetcher *f = (struct fetcher *)worker->state;

    if (f != NULL) {
        gw_job_close(f->job);
        samples_clear(&f->calls);
    }
    free(f);
}

const struct worker_ops worker_fetch = {fetcher_open, fetcher_run, fetcher_close};
