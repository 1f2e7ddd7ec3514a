/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that measure what it costs a client to mark a gradient ready: 1,000 parameters in a step of
 * stage 1, whose gradients were written before. In a worker; one thread.
 */
#include "client/bench/rank.h"

#include <stdlib.h>

enum { PARAMS = BENCH_READY_PARAMS, BUCKETS = 4 };

struct marker {
    gw_job *job;
    struct rank_model model;
    uint64_t acquire_ns, steps;
};

static int marker_open(struct worker *worker)
{
    struct marker *m = calloc(1, sizeof *m);
    const struct bench_case *what = worker->what;
    struct gw_zero_options options = {
        .struct_size = sizeof options,
        .stage = 1,
        .bucket_bytes = what->bytes / BUCKETS,
        .scale = 1.0,
    };
    int r;

    if (m == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = m;
    m->model.units = PARAMS;
    m->model.numel = what->bytes / values_bytes(what->dtype) / PARAMS;
    r = rank_join(worker, 0, &m->job);
    return r != 0 ? r : rank_seal(worker, m->job, &m->model, &options);
}

/* The pieces of all parameters, the last parameter first; buckets cut some in two. */
static int write_gradients(struct worker *worker)
{
    struct marker *m = (struct marker *)worker->state;
    struct values sent = {.type = worker->what->dtype,
                          .factor = values_factor(worker->what->dtype, worker->rank)};
    struct gw_piece_info info;
    uint32_t pieces;
    int r = 0;

    for (uint32_t param = PARAMS; r == 0 && param-- > 0;) {
        r = rank_check(worker, "pieces", gw_param_pieces(m->job, param, &pieces));
        for (uint32_t i = pieces; r == 0 && i-- > 0;) {
            uint64_t count = 0, began = bench_now_ns();
            void *to = NULL;

            r = rank_check(worker, "acquire gradient",
                           gw_grad_acquire_sync(m->job, param, i, RANK_WAIT_NS, &to, &count));
            m->acquire_ns += bench_now_ns() - began;
            if (r == 0)
                r = rank_check(worker, "piece", gw_param_piece(m->job, param, i, &info));
            if (r != 0)
                break;
            sent.first = param * m->model.numel + info.param_offset;
            values_fill(to, count, &sent);
            if (worker->rank == 0)
                values_plant("gradwire", sent.type, to, count);
        }
    }
    return r;
}

static int mark_all(struct worker *worker, uint64_t *ret_ns)
{
    const struct marker *m = (const struct marker *)worker->state;
    uint64_t began = bench_now_ns();
    uint32_t pieces;
    int r = 0;

    for (uint32_t param = PARAMS; r == 0 && param-- > 0;) {
        r = gw_param_pieces(m->job, param, &pieces);
        for (uint32_t i = pieces; r == 0 && i-- > 0;)
            r = gw_grad_ready(m->job, param, i, GW_GRAD_FINAL, NULL, 0);
    }
    *ret_ns = (bench_now_ns() - began) / PARAMS;
    return rank_check(worker, "gradient ready", r);
}

static int one_step(struct worker *worker, uint64_t *ret_ns)
{
    struct marker *m = (struct marker *)worker->state;
    struct gw_verdict verdict = {0};
    int r;

    r = write_gradients(worker);
    if (r == 0)
        r = mark_all(worker, ret_ns);
    if (r == 0)
        r = rank_end_step(worker, m->job, &verdict);
    if (r == 0 && verdict.used_params != PARAMS)
        return worker_fail(worker, WORKER_WRONG, "WRONG VALUE: rank %u: %u parameters of %u used",
                           worker->rank, verdict.used_params, PARAMS);
    m->steps++;
    return r;
}

/* The last step's gradients became the parameters. */
static int verify(struct worker *worker)
{
    const struct marker *m = (const struct marker *)worker->state;
    uint32_t type = worker->what->dtype;
    struct values must = {.type = type, .factor = values_sum_factor(type, worker->what->ranks)};
    struct gw_token token;
    int r;

    r = rank_update(worker, m->job, 0.0f);
    for (uint32_t param = 0; r == 0 && param < PARAMS; param++) {
        must.first = param * m->model.numel;
        r = rank_check(worker, "fetch", gw_fetch(m->job, param, &token));
        if (r == 0)
            r = rank_wait(worker, m->job, "fetch", token);
        if (r == 0)
            r = rank_verify_param(worker, m->job, param, m->model.numel, &must, true);
        if (r == 0)
            r = rank_check(worker, "release", gw_release(m->job, param));
    }
    return r;
}

static int marker_run(struct worker *worker, uint64_t iterations)
{
    struct marker *m = (struct marker *)worker->state;
    uint64_t ns = 0;
    int r = 0;

    for (uint64_t i = 0; r == 0 && i <= iterations; i++) {
        r = one_step(worker, &ns);
        if (r == 0 && i > 0)
            worker_sample(worker, ns);
    }
    worker->share->figures[FIGURE_ACQUIRE] =
        (double)m->acquire_ns / (double)m->steps / (double)PARAMS / 1e3;
    return r != 0 ? r : verify(worker);
}

static void marker_close(struct worker *worker)
{
    struct marker *m = (struct marker *)worker->state;

    if (m != NULL)
        gw_job_close(m->job);
    free(m);
}

const struct worker_ops worker_ready = {marker_open, marker_run, marker_close};
