/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's limit: the same bytes in one pass over memory, by a plain loop and two threads,
 * with nothing to agree on. A worker; its second thread lives from open to close.
 *
 * Reduce-scatter of S bytes on n ranks: reads n arrays of S, writes one. All-reduce: reads n,
 * writes n. All-gather: reads one, writes n (every rank's copy). A pass of small arrays is repeated
 * within one sample, so that what starting it costs is not in it.
 *
 * Of half types it adds the bits as whole numbers: the same bytes, and no conversion whose speed
 * would be measured in place of memory's. Stores are ordinary ones or go past the caches, whichever
 * is the quicker here: each round tries both.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "client/bench/bench.h"
#include "client/bench/values.h"

enum { CHUNK_BYTES = 16384, THREADS = 2, RANKS = 64, TRIES = 3 };

#define SAMPLE_NS 1000000u /* a sample takes about as long, or one pass */
#define HUGE_BYTES (2ull << 20)

struct limit {
    char *in[RANKS], *out[RANKS];
    uint32_t ins, outs;
    uint32_t type;   /* of values.h */
    uint64_t count;  /* of each array */
    uint64_t bytes;  /* of each array */
    uint64_t passes; /* of a sample */
    bool past_caches;
    bool ending;
    pthread_t other;
    bool has_other;
    pthread_barrier_t begin, end;
};

/* Sums of all arrays from byte `at` on. */
#define SUM_CHUNK(name, type)                                                                      \
    static void name(const struct limit *l, uint64_t at, void *result, size_t bytes)               \
    {                                                                                              \
        size_t count = bytes / sizeof(type);                                                       \
        type *restrict to = (type *)result;                                                        \
        const type *restrict a = (const type *)(l->in[0] + at);                                    \
        const type *restrict b = (const type *)(l->in[1] + at);                                    \
                                                                                                   \
        if (l->ins == 4) {                                                                         \
            const type *restrict c = (const type *)(l->in[2] + at);                                \
            const type *restrict d = (const type *)(l->in[3] + at);                                \
                                                                                                   \
            for (size_t i = 0; i < count; i++)                                                     \
                to[i] = (type)((a[i] + b[i]) + (c[i] + d[i]));                                     \
            return;                                                                                \
        }                                                                                          \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = (type)(a[i] + b[i]);                                                           \
        for (uint32_t n = 2; n < l->ins; n++) {                                                    \
            const type *restrict more = (const type *)(l->in[n] + at);                             \
                                                                                                   \
            for (size_t i = 0; i < count; i++)                                                     \
                to[i] = (type)(to[i] + more[i]);                                                   \
        }                                                                                          \
    }

SUM_CHUNK(sum_fp32, float)
SUM_CHUNK(sum_u16, uint16_t)

static void copy(const struct limit *l, char *to, const char *from, size_t bytes)
{
#if defined(__SSE2__)
    size_t whole = l->past_caches ? bytes / sizeof(__m128i) : 0;

    for (size_t i = 0; i < whole; i++)
        _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)from + i));
    to += whole * sizeof(__m128i);
    from += whole * sizeof(__m128i);
    bytes -= whole * sizeof(__m128i);
#else
    (void)l;
#endif
    memcpy(to, from, bytes);
}

/* One sum is made where it stays, or in a cache, from where it is stored past all of them. */
static void one_chunk(const struct limit *l, uint64_t at, size_t bytes)
{
    char near[CHUNK_BYTES] __attribute__((aligned(64)));
    const char *from = l->in[0] + at;
    uint32_t first = 0;

    if (l->ins > 1) {
        char *to = l->past_caches ? near : l->out[0] + at;

        (l->type == GW_DTYPE_FP32 ? sum_fp32 : sum_u16)(l, at, to, bytes);
        from = to;
        first = l->past_caches ? 0 : 1;
    }
    for (uint32_t n = first; n < l->outs; n++)
        copy(l, l->out[n] + at, from, bytes);
}

/* This thread's half of all passes. */
static void share_of(const struct limit *l, uint32_t thread)
{
    uint64_t half = (l->bytes / THREADS + 63) / 64 * 64;
    uint64_t first = thread == 0 || half > l->bytes ? thread * l->bytes : half;
    uint64_t end = thread == 0 && half < l->bytes ? half : l->bytes;

    for (uint64_t pass = 0; pass < l->passes; pass++) {
        for (uint64_t at = first; at < end; at += CHUNK_BYTES)
            one_chunk(l, at, end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES);
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

static char *array_new(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    if (bytes >= HUGE_BYTES)
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
    return (char *)memory;
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
    l->type = what->dtype == GW_DTYPE_FP32 ? GW_DTYPE_FP32 : VALUES_U16;
    l->bytes = what->bytes;
    l->count = what->bytes / values_bytes(l->type);
    l->ins = what->op == BENCH_ALL_GATHER ? 1 : what->ranks;
    l->outs = what->op == BENCH_REDUCE_SCATTER ? 1 : what->ranks;
    for (uint32_t n = 0; n < l->ins; n++) {
        l->in[n] = array_new(l->bytes);
        if (l->in[n] == NULL)
            return no_memory(worker);
        values_fill(l->in[n], l->count, &(struct values){l->type, 0, (float)(n + 1), 0.0f});
    }
    values_plant("limit", l->type, l->in[0], l->count);
    for (uint32_t n = 0; n < l->outs; n++) {
        l->out[n] = array_new(l->bytes);
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

/* The least of a few: what is held up says nothing about stores. */
static uint64_t try_stores(struct limit *l, bool past_caches)
{
    uint64_t least = UINT64_MAX;

    l->past_caches = past_caches;
    for (uint32_t i = 0; i < TRIES; i++) {
        uint64_t ns = one_sample(l);

        least = ns < least ? ns : least;
    }
    return least;
}

static int limit_run(struct worker *worker, uint64_t iterations)
{
    struct limit *l = (struct limit *)worker->state;
    struct values must = {l->type, 0, (float)(l->ins * (l->ins + 1) / 2), 0.0f};
    uint64_t ns = one_sample(l);

    ns = one_sample(l); /* the first made the pages */
    if (l->passes == 1 && ns < SAMPLE_NS)
        l->passes = SAMPLE_NS / (ns + 1) + 1;
    l->past_caches = try_stores(l, true) < try_stores(l, false);
    for (uint32_t n = 0; n < l->outs; n++)
        memset(l->out[n], 0xff, l->bytes);
    for (uint64_t i = 0; i < iterations; i++)
        worker_sample(worker, one_sample(l));
    for (uint32_t n = 0; n < l->outs; n++) {
        uint64_t bad = values_check(l->out[n], l->count, &must);

        if (bad < l->count)
            return worker_fail(worker, WORKER_WRONG, "WRONG VALUE: limit: element %llu is %g",
                               (unsigned long long)bad, (double)values_is(l->type, l->out[n], bad));
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
