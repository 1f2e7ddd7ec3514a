/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank whose calls are watched by strace: it marks what it does by calls of access() with a name
 * that exists nowhere. Run by test_submit_calls.py.
 *
 *   submit_calls fetch               stage 3, alone: begin, then "hit" behind a fetch that is one
 *                                    and its release, or "no hit"; ends after HITS
 *   submit_calls ready               stage 1, alone: begin, "ready" behind each declaration
 *   submit_calls ops RANK ID_FILE    2 ranks: "started", waits for ID_FILE.go, OPS all-reduces of
 *                                    4 KiB, "done", waits for ID_FILE.end
 *   submit_calls sums RANK ID_FILE   2 ranks: for "small" (64 KiB) and "large" (16 MiB), "started",
 *                                    waits for ID_FILE.small or .large, SUMS reduce-scatters,
 *                                    "done"; then waits for ID_FILE.end
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gradwire/gradwire.h"

#define LIMIT 120000000000ll
#define UNITS 6u
#define NUMEL 1024u
#define HITS 10u
#define STEPS 200u
#define PARAMS 128u
#define OPS 200u
#define SUMS 20u
#define SMALL (64u << 10)
#define LARGE (16u << 20)

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            fprintf(stderr, "%s: %s\n", #call, gw_last_error());                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void mark(const char *what)
{
    if (access(what, F_OK) == 0)
        exit(1);
}

static void pause_ms(long ms)
{
    struct timespec time = {0, ms * 1000000};

    nanosleep(&time, NULL);
}

static gw_job *alone(const struct gw_zero_options *zero, uint32_t params)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .world = 1};
    gw_job *job = NULL;
    char name[16];

    TRY(gw_job_create(&options, &job));
    for (uint32_t i = 0; i < params; i++) {
        snprintf(name, sizeof(name), "p%u", i);
        TRY(gw_param_add(job, name, NUMEL, NULL, NULL));
    }
    TRY(gw_seal(job, zero, LIMIT));
    return job;
}

static void end_step(gw_job *job)
{
    struct gw_token token;

    TRY(gw_step_end(job, &token));
    TRY(gw_wait_step(job, LIMIT, NULL));
    TRY(gw_update_begin(job, &token));
    TRY(gw_wait(job, token, LIMIT));
    TRY(gw_update_commit(job));
}

/* All units of a step are gathered ahead behind the first one. */
static void fetches(void)
{
    struct gw_zero_options zero = {.struct_size = sizeof(zero),
                                   .stage = 3,
                                   .gather = GW_GATHER_PRIVATE,
                                   .bucket_bytes = NUMEL * sizeof(float),
                                   .gather_bytes = UNITS * NUMEL * sizeof(float),
                                   .prefetch_bytes = UNITS * NUMEL * sizeof(float)};
    gw_job *job = alone(&zero, UNITS);
    uint32_t hits = 0;

    for (uint32_t step = 0; step < STEPS && hits < HITS; step++) {
        for (uint32_t unit = 0; unit < UNITS; unit++) {
            struct gw_token token;
            const void *values;

            mark("begin");
            TRY(gw_fetch(job, unit, &token));
            if (token.timeline == 0) {
                TRY(gw_wait(job, token, LIMIT));
                TRY(gw_param_ptr(job, unit, &values));
                TRY(gw_release(job, unit));
                mark("hit");
                hits++;
            } else {
                mark("no hit");
                TRY(gw_wait(job, token, LIMIT));
                TRY(gw_release(job, unit));
            }
            pause_ms(5); /* computes */
        }
        end_step(job);
    }
    gw_job_close(job);
    if (hits < HITS)
        exit(2);
}

static void readies(void)
{
    struct gw_zero_options zero = {.struct_size = sizeof(zero),
                                   .stage = 1,
                                   .bucket_bytes = PARAMS / 4 * NUMEL * sizeof(float)};
    gw_job *job = alone(&zero, PARAMS);

    for (uint32_t p = PARAMS; p-- > 0;) {
        void *values;

        TRY(gw_grad_acquire_sync(job, p, 0, LIMIT, &values, NULL));
        memset(values, 0, NUMEL * sizeof(float));
        mark("begin");
        TRY(gw_grad_ready(job, p, 0, GW_GRAD_FINAL, NULL, 0));
        mark("ready");
    }
    end_step(job);
    gw_job_close(job);
}

static void wait_for(const char *id_file, const char *what)
{
    char path[256];

    snprintf(path, sizeof(path), "%s.%s", id_file, what);
    while (access(path, F_OK) != 0)
        pause_ms(10);
}

static void say(const char *what)
{
    puts(what);
    fflush(stdout);
}

static gw_job *one_of_two(uint32_t rank, const char *id_file)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .world = 2, .rank = rank};
    gw_job *job = NULL;
    struct gw_job_id id;

    if (rank == 0) {
        TRY(gw_job_create(&options, &job));
        TRY(gw_job_get_id(job, &id));
        TRY(gw_job_id_save(&id, id_file));
    } else {
        TRY(gw_job_id_load(id_file, LIMIT, &id));
        TRY(gw_job_join(&options, &id, &job));
    }
    TRY(gw_job_wait_ready(job, LIMIT));
    return job;
}

static void ops(uint32_t rank, const char *id_file)
{
    gw_job *job = one_of_two(rank, id_file);
    gw_buffer *buffer = NULL;

    TRY(gw_buffer_new(job, 4096, &buffer));
    say("started");
    wait_for(id_file, "go");
    for (uint32_t i = 0; i < OPS; i++) {
        struct gw_slice slice = {buffer, 0};
        struct gw_token token;

        TRY(gw_all_reduce(job, slice, slice, 1024, NULL, &token));
        TRY(gw_wait(job, token, LIMIT));
    }
    say("done");
    wait_for(id_file, "end");
    gw_job_close(job);
}

static void reduce_scatter(gw_job *job, gw_buffer *buffer, size_t bytes)
{
    struct gw_slice whole = {buffer, 0}, mine = {buffer, 0};
    struct gw_op_options options = {.struct_size = sizeof(options)};
    size_t part = bytes / sizeof(float) / 2;
    struct gw_token token;

    mine.offset = gw_job_rank(job) * part;
    TRY(gw_reduce_scatter(job, whole, mine, part, &options, &token));
    TRY(gw_wait(job, token, LIMIT));
}

/* The first is not counted: threads and memory of the engine's come with it. */
static void some_sums(gw_job *job, const char *id_file, const char *name, size_t bytes)
{
    gw_buffer *buffer = NULL;

    TRY(gw_buffer_new(job, bytes, &buffer));
    memset(gw_buffer_data(buffer), 0, bytes);
    reduce_scatter(job, buffer, bytes);
    say("started");
    wait_for(id_file, name);
    for (uint32_t i = 0; i < SUMS; i++)
        reduce_scatter(job, buffer, bytes);
    say("done");
}

static void sums(uint32_t rank, const char *id_file)
{
    gw_job *job = one_of_two(rank, id_file);

    some_sums(job, id_file, "small", SMALL);
    some_sums(job, id_file, "large", LARGE);
    wait_for(id_file, "end");
    gw_job_close(job);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "fetch") == 0)
        fetches();
    else if (argc > 1 && strcmp(argv[1], "ready") == 0)
        readies();
    else if (argc > 3 && strcmp(argv[1], "sums") == 0)
        sums((uint32_t)(argv[2][0] - '0'), argv[3]);
    else if (argc > 3)
        ops((uint32_t)(argv[2][0] - '0'), argv[3]);
    return 0;
}
