/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's limit: the same bytes in one pass over memory, by a plain loop and two threads,
 * with nothing to agree on. A worker; its second thread lives from open to close.
 *
 * Reduce-scatter of S bytes on n ranks: reads n arrays of S, writes one. All-reduce: reads n,
 * writes n. All-gather: reads one, writes n (every rank's copy). A pass of small arrays is repeated
 * within one sample, so that what starting it costs is not in it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/bench/bench.h"
#include "client/bench/values.h"

enum { CHUNK = 4096, THREADS = 2, RANKS = 64 };

#define SAMPLE_NS 1000000u /* a sample takes about as long, or one pass */
#define HUGE_BYTES (2ull << 20)

struct limit {
    float *in[RANKS], *out[RANKS];
    uint32_t ins, outs;
    uint64_t count;  /* of each array */
    uint64_t passes; /* of a sample */
    bool ending;
    pthread_t other;
    bool has_other;
    pthread_barrier_t begin, end;
};

static void sum_chunk(const struct limit *l, uint64_t at, size_t count)
{
    float *restrict to = l->out[0] + at;
    const float *restrict a = l->in[0] + at;

    if (l->ins == 1) {
        memcpy(to, a, count * sizeof *to);
    } else if (l->ins == 4) {
        const float *restrict b = l->in[1] + at, *restrict c = l->in[2] + at;
        const float *restrict d = l->in[3] + at;

        for (size_t i = 0; i < count; i++)
            to[i] = (a[i] + b[i]) + (c[i] + d[i]);
    } else {
        const float *restrict b = l->in[1] + at;

        for (size_t i = 0; i < count; i++)
            to[i] = a[i] + b[i];
        for (uint32_t n = 2; n < l->ins; n++) {
            const float *restrict more = l->in[n] + at;

            for (size_t i = 0; i < count; i++)
                to[i] += more[i];
        }
    }
    for (uint32_t n = 1; n < l->outs; n++)
        memcpy(l->out[n] + at, to, count * sizeof *to);
}

/* This thread's half of all passes. */
static void share_of(const struct limit *l, uint32_t thread)
{
    uint64_t half = (l->count / THREADS + 15) / 16 * 16;
    uint64_t first = thread == 0 || half > l->count ? thread * l->count : half;
    uint64_t end = thread == 0 && half < l->count ? half : l->count;

    for (uint64_t pass = 0; pass < l->passes; pass++) {
        for (uint64_t at = first; at < end; at += CHUNK)
            sum_chunk(l, at, end - at < CHUNK ? end - at : CHUNK);
        /* Another pass is not the same as this one. */
        __asm__ volatile("" ::: "memory");
    }
}

static void *other_main(void *arg)
{
    struct limit *l = (struct limit *)arg;

    for (;;) {
        pthread_barrier_wait(&l->begin);
        if (l->ending)
            return NULL;
        share_of(l, 1);
        pthread_barrier_wait(&l->end);
    }
}

static float *array_new(uint64_t count)
{
    size_t bytes = count * sizeof(float);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    if (bytes >= HUGE_BYTES)
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return (float *)memory;
}

static int no_memory(struct worker *worker)
{
    return worker_fail(worker, WORKER_FAILED, "limit: no memory or thread");
}

static int limit_open(struct worker *worker)
{
    const struct bench_case *what = worker->what;
    struct limit *l = calloc(1, sizeof *l);

    if (l == NULL)
        return no_memory(worker);
    worker->state = l;
    l->passes = 1;
    l->count = what->bytes / sizeof(float);
    l->ins = what->op == BENCH_ALL_GATHER ? 1 : what->ranks;
    l->outs = what->op == BENCH_REDUCE_SCATTER ? 1 : what->ranks;
    for (uint32_t n = 0; n < l->ins; n++) {
        l->in[n] = array_new(l->count);
        if (l->in[n] == NULL)
            return no_memory(worker);
        values_fill(l->in[n], l->count, 0, (float)(n + 1));
    }
    values_plant("limit", l->in[0], l->count);
    for (uint32_t n = 0; n < l->outs; n++) {
        l->out[n] = array_new(l->count);
        if (l->out[n] == NULL)
            return no_memory(worker);
    }
    pthread_barrier_init(&l->begin, NULL, THREADS);
    pthread_barrier_init(&l->end, NULL, THREADS);
    l->has_other = pthread_create(&l->other, NULL, other_main, l) == 0;
    return l->has_other ? 0 : no_memory(worker);
}

static uint64_t one_sample(struct limit *l)
{
    uint64_t began;

    pthread_barrier_wait(&l->begin);
    began = bench_now_ns();
    share_of(l, 0);
    pthread_barrier_wait(&l->end);
    return (bench_now_ns() - began) / l->passes;
}

static int limit_run(struct worker *worker, uint64_t iterations)
{
    struct limit *l = (struct limit *)worker->state;
    float factor = (float)(l->ins * (l->ins + 1) / 2);
    uint64_t ns = one_sample(l);

    ns = one_sample(l); /* the first made the pages */
    if (l->passes == 1 && ns < SAMPLE_NS)
        l->passes = SAMPLE_NS / (ns + 1) + 1;
    for (uint32_t n = 0; n < l->outs; n++)
        memset(l->out[n], 0xff, l->count * sizeof(float));
    for (uint64_t i = 0; i < iterations; i++)
        worker_sample(worker, one_sample(l));
    for (uint32_t n = 0; n < l->outs; n++) {
        uint64_t bad = values_check(l->out[n], l->count, 0, factor, 0.0f);

        if (bad < l->count)
            return worker_fail(worker, WORKER_WRONG, "WRONG VALUE: limit: element %llu is %g",
                               (unsigned long long)bad, (double)l->out[n][bad]);
    }
    return 0;
}

/* Memory goes with the process. */
static void limit_close(struct worker *worker)
{
    struct limit *l = (struct limit *)worker->state;

    if (l != NULL && l->has_other) {
        l->ending = true;
        pthread_barrier_wait(&l->begin);
        pthread_join(l->other, NULL);
    }
    free(l);
}

const struct worker_ops worker_limit = {limit_open, limit_run, limit_close};
