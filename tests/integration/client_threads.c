/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank whose calls come from many threads at once: gradients of different parameters, fetches,
 * collectives on groups of their own, figures, own timelines. Values are checked; a
 * ThreadSanitizer build checks the rest. Run by test_client.py.
 *
 *   client_threads RANK WORLD ID_FILE STAGE STEPS
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gradwire/gradwire.h"

#define SECONDS 1000000000ll
#define LIMIT (120 * SECONDS)
#define PARAMS 6
#define NUMEL 3000
#define WORKERS 3

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            fprintf(stderr, "%s: %s\n", #call, gw_last_error());                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition);                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static gw_job *job;
static uint32_t rank, world;
static uint64_t step;
static atomic_bool over;

/* Gradient of parameter p in this step, on a rank. */
static float gradient(uint32_t p, uint32_t of)
{
    return (float)(step * 10 + p + of);
}

static void *backward(void *argument)
{
    uint32_t worker = (uint32_t)(uintptr_t)argument;
    uint32_t timeline = 0;

    TRY(gw_timeline_new(job, &timeline));
    for (uint32_t p = PARAMS - 1 - worker; p < PARAMS; p -= WORKERS) {
        uint32_t pieces = 0;

        TRY(gw_param_pieces(job, p, &pieces));
        for (uint32_t piece = pieces; piece-- > 0;) {
            struct gw_token written = {.timeline = timeline, .value = p * 100 + piece + 1};
            uint64_t count = 0;
            void *memory;
            float *values;

            TRY(gw_grad_acquire_sync(job, p, piece, LIMIT, &memory, &count));
            values = memory;
            for (uint64_t i = 0; i < count; i++)
                values[i] = gradient(p, rank);
            written.value = PARAMS * 100 - p * 100 + pieces - piece; /* only rises */
            TRY(gw_grad_ready(job, p, piece, GW_GRAD_FINAL, &written, 1));
            TRY(gw_timeline_raise(job, timeline, written.value));
        }
    }
    return NULL;
}

static void *forward(void *argument)
{
    uint32_t worker = (uint32_t)(uintptr_t)argument;

    for (uint32_t unit = worker; unit < PARAMS; unit += WORKERS) {
        const void *memory;
        const float *values;
        struct gw_token token;

        TRY(gw_fetch(job, unit, &token));
        TRY(gw_wait(job, token, LIMIT));
        TRY(gw_param_ptr(job, unit, &memory));
        values = memory;
        for (uint32_t i = 0; i < NUMEL; i++)
            CHECK(values[i] == (float)unit);
        TRY(gw_release(job, unit));
    }
    return NULL;
}

static void *figures(void *argument)
{
    (void)argument;
    while (!atomic_load(&over)) {
        struct gw_stats stats = {.struct_size = sizeof(stats)};

        TRY(gw_stats_sync(job, LIMIT, &stats));
    }
    return NULL;
}

struct reducer {
    pthread_t thread;
    uint32_t group;
    gw_buffer *buffer;
};

static void *reduce(void *argument)
{
    struct reducer *reducer = argument;
    float *values = gw_buffer_data(reducer->buffer);
    struct gw_op_options options = {.struct_size = sizeof(options), .group = reducer->group};

    for (uint32_t i = 0; i < 50; i++) {
        struct gw_slice all = {.buffer = reducer->buffer};
        struct gw_token token;
        int r;

        values[0] = (float)(rank + i);
        /* Another thread's op may be 64 behind. */
        while ((r = gw_all_reduce(job, all, all, 1, &options, &token)) == GW_E_AGAIN)
            usleep(1000);
        TRY(r);
        TRY(gw_wait(job, token, LIMIT));
        CHECK(values[0] == (float)(world * i + world * (world - 1) / 2));
    }
    return NULL;
}

static void run_all(void *(*body)(void *))
{
    pthread_t threads[WORKERS];

    for (uintptr_t i = 0; i < WORKERS; i++)
        pthread_create(&threads[i], NULL, body, (void *)i);
    for (uintptr_t i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
}

static void check_gradients(void)
{
    const struct gw_span *spans;
    uint32_t count = 0;

    TRY(gw_shard_spans(job, &spans, &count));
    for (uint32_t p = 0; p < PARAMS; p++) {
        uint32_t pieces = 0;
        float sum = 0;

        for (uint32_t r = 0; r < world; r++)
            sum += gradient(p, r);
        TRY(gw_param_pieces(job, p, &pieces));
        for (uint32_t k = 0; k < pieces; k++) {
            struct gw_piece_info piece;
            const struct gw_span *span;

            TRY(gw_param_piece(job, p, k, &piece));
            span = &spans[piece.bucket];
            for (uint64_t i = piece.bucket_offset; i < piece.bucket_offset + piece.numel; i++) {
                if (i >= span->bucket_offset && i < span->bucket_offset + span->numel)
                    CHECK(((const float *)span->grads)[i - span->bucket_offset] == sum);
            }
        }
    }
}

static void connect_rank(char **argv)
{
    struct gw_job_options options = {
        .struct_size = sizeof(options), .rank = rank, .world = world, .linger_ns = -1};
    struct gw_job_id id;

    if (rank == 0) {
        TRY(gw_job_create(&options, &job));
        TRY(gw_job_get_id(job, &id));
        TRY(gw_job_id_save(&id, argv[3]));
    } else {
        TRY(gw_job_id_load(argv[3], LIMIT, &id));
        TRY(gw_job_join(&options, &id, &job));
    }
}

static void set_up(uint32_t stage, struct reducer *reducers)
{
    struct gw_zero_options zero = {.struct_size = sizeof(zero),
                                   .stage = stage,
                                   .bucket_bytes = 8192,
                                   .scale = 1,
                                   .ring_slots = 2,
                                   .gather_bytes = WORKERS * (8192 + NUMEL * sizeof(float))};
    struct gw_token token;
    uint32_t ranks[64];
    float values[NUMEL];

    for (uint32_t r = 0; r < world; r++)
        ranks[r] = r;
    for (uint32_t i = 0; i < WORKERS; i++) {
        TRY(gw_group_new(job, ranks, world, LIMIT, &reducers[i].group));
        TRY(gw_buffer_new(job, 64, &reducers[i].buffer));
    }
    for (uint32_t p = 0; p < PARAMS; p++) {
        char name[16];

        snprintf(name, sizeof(name), "p%u", p);
        TRY(gw_param_add(job, name, NUMEL, NULL, NULL));
    }
    TRY(gw_seal(job, &zero, LIMIT));
    for (uint32_t p = rank; p < PARAMS; p += world) {
        for (uint32_t i = 0; i < NUMEL; i++)
            values[i] = (float)p;
        TRY(gw_param_write_sync(job, p, 0, NUMEL, values, LIMIT));
    }
    TRY(gw_barrier(job, NULL, &token));
    TRY(gw_wait(job, token, LIMIT));
}

int main(int argc, char **argv)
{
    struct reducer reducers[WORKERS];
    struct gw_token token;
    pthread_t asker;
    uint64_t steps;

    if (argc != 6)
        return 2;
    rank = (uint32_t)strtoul(argv[1], NULL, 10);
    world = (uint32_t)strtoul(argv[2], NULL, 10);
    steps = strtoull(argv[5], NULL, 10);
    connect_rank(argv);
    set_up((uint32_t)strtoul(argv[4], NULL, 10), reducers);
    pthread_create(&asker, NULL, figures, NULL);
    for (uint32_t i = 0; i < WORKERS; i++)
        pthread_create(&reducers[i].thread, NULL, reduce, &reducers[i]);
    for (step = 1; step <= steps; step++) {
        struct gw_verdict verdict;

        run_all(forward);
        run_all(backward);
        TRY(gw_step_end(job, NULL));
        TRY(gw_wait_step(job, LIMIT, &verdict));
        CHECK(verdict.step == step && verdict.used_params == PARAMS);
        check_gradients();
        TRY(gw_update_begin(job, &token));
        TRY(gw_wait(job, token, LIMIT));
        TRY(gw_update_commit(job));
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        pthread_join(reducers[i].thread, NULL);
        TRY(gw_buffer_free(job, reducers[i].buffer));
    }
    atomic_store(&over, true);
    pthread_join(asker, NULL);
    TRY(gw_barrier(job, NULL, &token));
    TRY(gw_wait(job, token, LIMIT));
    gw_job_close(job);
    return 0;
}
