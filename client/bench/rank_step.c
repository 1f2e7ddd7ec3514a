/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that measure a whole optimizer step: fetch and release forward, gradients copied in
 * backward, the verdict, and an update that takes over the gradients. Stages 0 to 3 compute
 * nothing. The overlap variants are stage 2 with a forward and a backward that compute, on a
 * simulated link on which the step's communication takes half of that backward; the covered ones,
 * of stages 2 and 3, compute 21 times as long as their communication takes alone, without a link.
 * In a worker; one thread.
 */
#include "client/bench/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNITS = 8, COVERED_TIMES = 14 /* backward; forward is half of it */ };

#define BACKWARD_MIN_NS 20000000u
#define ALONE_MIN_NS 50000u /* of communication: less is no base for a fraction */

struct stepper {
    gw_job *job;
    struct rank_model model;
    char *grads;           /* of all parameters, in order */
    uint64_t steps;        /* that were updated */
    uint64_t backward_ns;  /* of a step, processor time; 0: computes nothing */
    struct rank_work work; /* all that was computed */
};

static bool has_link(const struct bench_case *what)
{
    return what->variant == VARIANT_OVERLAP || what->variant == VARIANT_OVERLAP_OFF;
}

static bool computes(const struct bench_case *what)
{
    return has_link(what) || what->variant == VARIANT_COVERED ||
           what->variant == VARIANT_COVERED_STAGE3;
}

static uint32_t stage_of(const struct bench_case *what)
{
    if (what->variant == VARIANT_COVERED_STAGE3)
        return 3;
    return computes(what) ? 2 : (uint32_t)(what->variant - VARIANT_STAGE0);
}

/* Ring bytes of a step's two ways, in half of the time that backward takes when ranks share the
 * processors fairly. */
static uint64_t choose_link(const struct bench_case *what, uint64_t backward_ns)
{
    double cpus = fmax(1.0, (double)sysconf(_SC_NPROCESSORS_ONLN));
    double backward_s = (double)backward_ns / 1e9 * fmax(1.0, (double)what->ranks / cpus);
    double ring_bytes = 2.0 * (double)what->bytes * (double)(what->ranks - 1) / (double)what->ranks;

    return (uint64_t)(ring_bytes / (backward_s / 2.0)) + 1;
}

static int join_and_seal(struct worker *worker, struct stepper *s)
{
    const struct bench_case *what = worker->what;
    uint64_t unit_bytes = what->bytes / s->model.units;
    struct gw_zero_options options = {
        .struct_size = sizeof options,
        .stage = stage_of(what),
        .overlap_off = what->variant == VARIANT_OVERLAP_OFF,
        .bucket_bytes = unit_bytes,
        .scale = 1.0,
    };
    int r;

    r = rank_join(worker, has_link(what) ? choose_link(what, s->backward_ns) : 0, &s->job);
    if (r == 0)
        r = rank_seal(worker, s->job, &s->model, &options);
    if (r == 0 && computes(what))
        r = rank_check(worker, "measure", gw_measure_sync(s->job, RANK_WAIT_NS));
    return r;
}

/* Rank 0 does, for all ranks and for what takes turns with them. */
static int choose_backward(struct worker *worker, const struct stepper *s)
{
    struct gw_stats stats = {.struct_size = sizeof stats};
    uint64_t ns;
    int r = rank_check(worker, "figures", gw_stats_sync(s->job, RANK_WAIT_NS, &stats));

    ns = COVERED_TIMES * stats.comm_alone_ns;
    worker->share->backward_ns = ns > BACKWARD_MIN_NS ? ns : BACKWARD_MIN_NS;
    return r;
}

static int stepper_open(struct worker *worker)
{
    struct stepper *s = calloc(1, sizeof *s);
    const struct bench_case *what = worker->what;
    struct values sent = {.type = what->dtype, .factor = values_factor(what->dtype, worker->rank)};
    uint64_t numel = what->bytes / values_bytes(what->dtype);
    int r;

    if (s == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = s;
    s->model.units = computes(what) ? RANK_COMPUTING_UNITS : UNITS;
    s->model.numel = numel / s->model.units;
    s->backward_ns = what->backward_ns;
    if (has_link(what))
        s->backward_ns = what->bytes > BACKWARD_MIN_NS ? what->bytes : BACKWARD_MIN_NS;
    s->grads = malloc(what->bytes);
    if (s->grads == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    values_fill(s->grads, numel, &sent);
    if (worker->rank == 0)
        values_plant("gradwire", what->dtype, s->grads, numel);
    r = join_and_seal(worker, s);
    if (r == 0 && what->variant == VARIANT_COVERED && worker->rank == 0)
        r = choose_backward(worker, s);
    return r;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* After k updates a parameter is its summed gradient and k % 8. */
static float added(const struct stepper *s)
{
    return (float)(s->steps % 8);
}

static int verify(struct worker *worker, uint32_t unit, bool all)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    uint32_t type = worker->what->dtype;
    struct values must = {type, unit * s->model.numel, 1.0f, added(s)};

    if (s->steps > 0)
        must.factor = values_sum_factor(type, worker->what->ranks);
    return rank_verify_param(worker, s->job, unit, s->model.numel, &must, all);
}

static int forward(struct worker *worker, bool all)
{
    struct stepper *s = (struct stepper *)worker->state;
    struct gw_token token;
    int r = 0;

    for (uint32_t unit = 0; r == 0 && unit < s->model.units; unit++) {
        r = rank_check(worker, "fetch", gw_fetch(s->job, unit, &token));
        if (r == 0)
            r = rank_wait(worker, s->job, "fetch", token);
        if (r == 0)
            r = verify(worker, unit, all);
        rank_compute(&s->work, s->backward_ns / 2 / s->model.units);
        if (r == 0)
            r = rank_check(worker, "release", gw_release(s->job, unit));
    }
    return r;
}

static int gradient(struct worker *worker, uint32_t unit)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    size_t element = values_bytes(worker->what->dtype);
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
        memcpy(to, s->grads + (unit * s->model.numel + info.param_offset) * element,
               count * element);
        r = rank_check(worker, "gradient ready",
                       gw_grad_ready(s->job, unit, i, GW_GRAD_FINAL, NULL, 0));
    }
    return r;
}

static int backward(struct worker *worker)
{
    struct stepper *s = (struct stepper *)worker->state;
    struct gw_token token;
    int r = 0;

    for (uint32_t unit = s->model.units; r == 0 && unit-- > 0;) {
        r = rank_check(worker, "fetch", gw_fetch(s->job, unit, &token));
        rank_compute(&s->work, s->backward_ns / s->model.units);
        if (r == 0)
            r = gradient(worker, unit);
        if (r == 0)
            r = rank_wait(worker, s->job, "fetch", token);
        if (r == 0)
            r = rank_check(worker, "release", gw_release(s->job, unit));
    }
    return r;
}

static int one_step(struct worker *worker, bool all, uint64_t *ret_ns)
{
    struct stepper *s = (struct stepper *)worker->state;
    struct gw_verdict verdict;
    uint64_t began = bench_now_ns();
    int r;

    r = forward(worker, all);
    if (r == 0)
        r = backward(worker);
    if (r == 0)
        r = rank_end_step(worker, s->job, &verdict);
    s->steps++;
    if (r == 0)
        r = rank_update(worker, s->job, added(s));
    *ret_ns = bench_now_ns() - began;
    return r;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Of all steps so far. A step's communication hides behind what is computed. */
static int tell_overlap(struct worker *worker)
{
    const struct stepper *s = (const struct stepper *)worker->state;
    struct gw_stats stats = {.struct_size = sizeof stats};
    double *figures = worker->share->figures;
    double exposed_ns;
    int r;

    r = rank_check(worker, "figures", gw_stats_sync(s->job, RANK_WAIT_NS, &stats));
    if (r != 0 || stats.steps == 0)
        return r;
    exposed_ns = (double)stats.exposed_ns / (double)stats.steps;
    figures[FIGURE_COMM_ALONE] = (double)stats.comm_alone_ns / 1e3;
    figures[FIGURE_COMM] = (double)stats.comm_ns / (double)stats.steps / 1e3;
    figures[FIGURE_EXPOSED] = exposed_ns / 1e3;
    rank_tell_work(worker, &s->work, s->steps);
    if (stats.comm_alone_ns >= ALONE_MIN_NS)
        figures[FIGURE_HIDDEN] = fmax(0.0, 1.0 - exposed_ns / (double)stats.comm_alone_ns);
    return 0;
}

/* A step's values are looked at in the next step's forward: everywhere after the last timed one. */
static int stepper_run(struct worker *worker, uint64_t iterations)
{
    struct stepper *s = (struct stepper *)worker->state;
    uint64_t ns = 0;
    int r = 0;

    if (worker->what->variant == VARIANT_COVERED)
        s->backward_ns = worker->first->backward_ns;

    for (uint64_t i = 0; r == 0 && i <= iterations + 1; i++) {
        r = one_step(worker, i > iterations, &ns);
        if (r == 0 && i > 0 && i <= iterations)
            worker_sample(worker, ns);
    }
    return r == 0 && computes(worker->what) ? tell_overlap(worker) : r;
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
