/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that measure a whole optimizer step that computes nothing: fetch and release forward,
 * gradients copied in backward, the verdict, and an update that takes over the gradients. In a
 * worker; one thread.
 */
#include "client/bench/rank.h"

#include <stdlib.h>
#include <string.h>

#include "client/bench/values.h"

enum { UNITS = 8 };

struct stepper {
    gw_job *job;
    struct rank_model model;
    float *grads;   /* of all parameters, in order */
    uint64_t steps; /* that were updated */
};

static int stepper_open(struct worker *worker)
{
    struct stepper *s = calloc(1, sizeof *s);
    const struct bench_case *what = worker->what;
    uint64_t unit_bytes = what->bytes / UNITS;
    struct gw_zero_options options = {
        .struct_size = sizeof options,
        .stage = (uint32_t)(what->variant - VARIANT_STAGE0),
        .bucket_bytes = unit_bytes,
        .scale = 1.0,
    };
    int r;

    if (s == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = s;
    s->model = (struct rank_model){UNITS, unit_bytes / sizeof(float)};
    s->grads = malloc(UNITS * unit_bytes);
    if (s->grads == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    values_fill(s->grads, UNITS * s->model.numel, 0, (float)(worker->rank + 1));
    if (worker->rank == 0)
        values_plant("gradwire", s->grads, UNITS * s->model.numel);
    r = rank_join(worker, &s->job);
    return r != 0 ? r : rank_seal(worker, s->job, &s->model, &options);
}

/* After k updates a parameter is its summed gradient and k % 8. */
static float added(const struct stepper *s)
{
    return (float)(s->steps % 8);
}

static int verify(struct worker *worker, uint32_t unit, bool all)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    uint64_t first = unit * s->model.numel, bad;
    float factor = s->steps > 0 ? rank_sum_factor(worker) : 1.0f;
    const void *at = NULL;
    const float *values;
    int r;

    r = rank_check(worker, "parameter", gw_param_ptr(s->job, unit, &at));
    values = at;
    if (r != 0 || (!all && values_spots(values, s->model.numel, first, factor, added(s))))
        return r;
    bad = values_check(values, s->model.numel, first, factor, added(s));
    if (bad < s->model.numel)
        return rank_wrong(worker, "parameter after the step", first + bad, values[bad],
                          values_at(first + bad, factor) + added(s));
    return 0;
}

static int forward(struct worker *worker, bool all)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    struct gw_token token;
    int r = 0;

    for (uint32_t unit = 0; r == 0 && unit < UNITS; unit++) {
        r = rank_check(worker, "fetch", gw_fetch(s->job, unit, &token));
        if (r == 0)
            r = rank_wait(worker, s->job, "fetch", token);
        if (r == 0)
            r = verify(worker, unit, all);
        if (r == 0)
            r = rank_check(worker, "release", gw_release(s->job, unit));
    }
    return r;
}

static int gradient(struct worker *worker, uint32_t unit)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    struct gw_piece_info info;
    uint32_t pieces;
    uint64_t count;
    void *to;
    int r;

    r = rank_check(worker, "pieces", gw_param_pieces(s->job, unit, &pieces));
    for (uint32_t i = pieces; r == 0 && i-- > 0;) {
        r = rank_check(worker, "piece", gw_param_piece(s->job, unit, i, &info));
        if (r == 0)
            r = rank_check(worker, "acquire gradient",
                           gw_grad_acquire_sync(s->job, unit, i, RANK_WAIT_NS, &to, &count));
        if (r != 0)
            break;
        memcpy(to, s->grads + unit * s->model.numel + info.param_offset, count * sizeof(float));
        r = rank_check(worker, "gradient ready",
                       gw_grad_ready(s->job, unit, i, GW_GRAD_FINAL, NULL, 0));
    }
    return r;
}

static int backward(struct worker *worker)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    struct gw_token token;
    int r = 0;

    for (uint32_t unit = UNITS; r == 0 && unit-- > 0;) {
        r = rank_check(worker, "fetch", gw_fetch(s->job, unit, &token));
        if (r == 0)
            r = gradient(worker, unit);
        if (r == 0)
            r = rank_wait(worker, s->job, "fetch", token);
        if (r == 0)
            r = rank_check(worker, "release", gw_release(s->job, unit));
    }
    return r;
}

static int update(struct worker *worker)
{
    struct stepper *s = (struct stepper *)worker->state;
    const struct gw_span *spans;
    struct gw_token token;
    uint32_t count;
    int r;

    r = rank_check(worker, "begin update", gw_update_begin(s->job, &token));
    if (r == 0)
        r = rank_wait(worker, s->job, "begin update", token);
    if (r == 0)
        r = rank_check(worker, "shard", gw_shard_spans(s->job, &spans, &count));
    if (r != 0)
        return r;
    s->steps++;
    for (uint32_t i = 0; i < count; i++) {
        const float *grads = spans[i].grads;

        for (uint64_t j = 0; j < spans[i].valid_numel; j++)
            spans[i].params[j] = grads[j] + added(s);
    }
    return rank_check(worker, "commit update", gw_update_commit(s->job));
}

static int one_step(struct worker *worker, bool all, uint64_t *ret_ns)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    struct gw_verdict verdict;
    struct gw_token token;
    uint64_t began = bench_now_ns();
    int r;

    r = forward(worker, all);
    if (r == 0)
        r = backward(worker);
    if (r == 0)
        r = rank_check(worker, "end step", gw_step_end(s->job, &token));
    if (r == 0)
        r = rank_check(worker, "wait for step", gw_wait_step(s->job, RANK_WAIT_NS, &verdict));
    if (r == 0)
        r = update(worker);
    *ret_ns = bench_now_ns() - began;
    return r;
}

/* A step's values are looked at in the next step's forward: everywhere after the last timed one. */
static int stepper_run(struct worker *worker, uint64_t iterations)
{
    uint64_t ns = 0;
    int r = 0;

    for (uint64_t i = 0; r == 0 && i <= iterations + 1; i++) {
        r = one_step(worker, i > iterations, &ns);
        if (r == 0 && i > 0 && i <= iterations)
            worker_sample(worker, ns);
    }
    return r;
}

static void stepper_close(struct worker *worker)
{
    struct stepper *s = (struct stepper *)worker->state;

    if (s != NULL) {
        gw_job_close(s->job);
        free(s->grads);
    }
    free(s);
}

const struct worker_ops worker_step = {stepper_open, stepper_run, stepper_close};
