/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: what they share, and those that measure the collectives. In a worker; one thread. */
#include "client/bench/rank.h"

#include <stdlib.h>
#include <string.h>

#include "client/bench/values.h"

int rank_check(struct worker *worker, const char *call, int r)
{
    if (r >= 0)
        return 0;
    return worker_fail(worker, WORKER_FAILED, "rank %u: %s: %s", worker->rank, call,
                       gw_last_error());
}

int rank_wrong(struct worker *worker, const char *what, uint64_t index, float is, float must)
{
    return worker_fail(worker, WORKER_WRONG, "WRONG VALUE: rank %u: %s: element %llu is %g, not %g",
                       worker->rank, what, (unsigned long long)index, (double)is, (double)must);
}

float rank_sum_factor(const struct worker *worker)
{
    return (float)(worker->what->ranks * (worker->what->ranks + 1) / 2);
}

int rank_join(struct worker *worker, gw_job **ret_job)
{
    struct gw_job_options options = {
        .struct_size = sizeof options,
        .socket_path = worker->socket,
        .rank = worker->rank,
        .world = worker->what->ranks,
        .op_timeout_ns = RANK_WAIT_NS,
        .linger_ns = -1,
        .name = "gwbench",
    };
    int r;

    if (worker->rank == 0) {
        r = rank_check(worker, "create job", gw_job_create(&options, ret_job));
        if (r == 0)
            r = rank_check(worker, "job id", gw_job_get_id(*ret_job, &worker->share->id));
        worker_say(worker);
    } else {
        r = rank_check(worker, "join job", gw_job_join(&options, &worker->first->id, ret_job));
    }
    return r != 0 ? r
                  : rank_check(worker, "wait for all ranks",
                               gw_job_wait_ready(*ret_job, RANK_WAIT_NS));
}

int rank_wait(struct worker *worker, gw_job *job, const char *what, struct gw_token token)
{
    return rank_check(worker, what, gw_wait(job, token, RANK_WAIT_NS));
}

int rank_barrier(struct worker *worker, gw_job *job)
{
    struct gw_token token;
    int r;

    r = rank_check(worker, "barrier", gw_barrier(job, NULL, &token));
    return r != 0 ? r : rank_wait(worker, job, "barrier", token);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static int write_values(struct worker *worker, gw_job *job, const struct rank_model *model)
{
    float *values = malloc(model->numel * sizeof *values);
    int r = 0;

    if (values == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    for (uint32_t p = worker->rank; r == 0 && p < model->units; p += worker->what->ranks) {
        values_fill(values, model->numel, p * model->numel, 1.0f);
        values_plant("gradwire", values, model->numel);
        r = rank_check(worker, "write values",
                       gw_param_write_sync(job, p, 0, model->numel, values, RANK_WAIT_NS));
    }
    free(values);
    return r != 0 ? r : rank_barrier(worker, job);
}

int rank_seal(struct worker *worker, gw_job *job, const struct rank_model *model,
              const struct gw_zero_options *options)
{
    char name[32];
    uint32_t param;
    int r = 0;

    for (uint32_t p = 0; r == 0 && p < model->units; p++) {
        (void)snprintf(name, sizeof name, "p%u", p);
        r = rank_check(worker, "add parameter",
                       gw_param_add(job, name, model->numel, NULL, &param));
    }
    if (r == 0)
        r = rank_check(worker, "seal", gw_seal(job, options, RANK_WAIT_NS));
    return r != 0 ? r : write_values(worker, job, model);
}

/* ---- collectives ----------------------------------------------------------------------------- */

struct collective {
    gw_job *job;
    gw_buffer *send, *recv;
    uint64_t count;                  /* of the call */
    uint64_t send_count, recv_count; /* of the buffers */
};

static int collective_open(struct worker *worker)
{
    struct collective *c = calloc(1, sizeof *c);
    const struct bench_case *what = worker->what;
    uint64_t numel = what->bytes / sizeof(float), part = numel / what->ranks;
    uint64_t first = 0;
    int r;

    if (c == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = c;
    c->count = c->send_count = c->recv_count = numel;
    if (what->op == BENCH_REDUCE_SCATTER)
        c->count = c->recv_count = part;
    if (what->op == BENCH_ALL_GATHER) {
        c->count = c->send_count = part;
        first = worker->rank * part;
    }
    r = rank_join(worker, &c->job);
    if (r == 0)
        r = rank_check(worker, "new buffer",
                       gw_buffer_new(c->job, c->send_count * sizeof(float), &c->send));
    if (r == 0)
        r = rank_check(worker, "new buffer",
                       gw_buffer_new(c->job, c->recv_count * sizeof(float), &c->recv));
    if (r != 0)
        return r;
    values_fill(gw_buffer_data(c->send), c->send_count, first, (float)(worker->rank + 1));
    if (worker->rank == 0)
        values_plant("gradwire", gw_buffer_data(c->send), c->send_count);
    return 0;
}

static int submit(const struct worker *worker, struct gw_token *ret_token)
{
    const struct collective *c = (const struct collective *)worker->state;
    struct gw_slice send = {c->send, 0}, recv = {c->recv, 0};

    switch (worker->what->op) {
    case BENCH_REDUCE_SCATTER:
        return gw_reduce_scatter(c->job, send, recv, c->count, NULL, ret_token);
    case BENCH_ALL_GATHER:
        return gw_all_gather(c->job, send, recv, c->count, NULL, ret_token);
    default:
        return gw_all_reduce(c->job, send, recv, c->count, NULL, ret_token);
    }
}

static int one_op(struct worker *worker, uint64_t *ret_ns)
{
    const struct collective *c = (const struct collective *)worker->state;
    struct gw_token token;
    uint64_t began = bench_now_ns();
    int r;

    r = rank_check(worker, bench_op_names[worker->what->op], submit(worker, &token));
    if (r == 0)
        r = rank_wait(worker, c->job, bench_op_names[worker->what->op], token);
    *ret_ns = bench_now_ns() - began;
    return r;
}

/* Part q of what must be received: where it lies, and its factor. */
static void expected(const struct worker *worker, uint32_t q, uint64_t *ret_at, uint64_t *ret_first,
                     float *ret_factor)
{
    const struct collective *c = (const struct collective *)worker->state;

    *ret_at = q * c->count;
    *ret_factor = rank_sum_factor(worker);
    *ret_first = 0;
    if (worker->what->op == BENCH_REDUCE_SCATTER)
        *ret_first = worker->rank * c->count;
    if (worker->what->op == BENCH_ALL_GATHER) {
        *ret_first = *ret_at;
        *ret_factor = (float)(q + 1);
    }
}

static int verify(struct worker *worker, bool all)
{
    const struct collective *c = (const struct collective *)worker->state;
    const float *values = gw_buffer_data(c->recv);

    for (uint32_t q = 0; q < c->recv_count / c->count; q++) {
        uint64_t at, first, bad;
        float factor;

        expected(worker, q, &at, &first, &factor);
        if (!all && values_spots(values + at, c->count, first, factor, 0.0f))
            continue;
        bad = values_check(values + at, c->count, first, factor, 0.0f);
        if (bad < c->count)
            return rank_wrong(worker, bench_op_names[worker->what->op], at + bad, values[at + bad],
                              values_at(first + bad, factor));
    }
    return 0;
}

/* Every op is looked at in places; the first is not timed, and another after the last timed one is
 * looked at everywhere. */
static int collective_run(struct worker *worker, uint64_t iterations)
{
    struct collective *c = (struct collective *)worker->state;
    uint64_t ns = 0;
    int r = 0;

    for (uint64_t i = 0; r == 0 && i <= iterations + 1; i++) {
        if (i > iterations)
            memset(gw_buffer_data(c->recv), 0xff, c->recv_count * sizeof(float));
        for (uint32_t q = 0; q < c->recv_count / c->count; q++)
            values_poison_spots((float *)gw_buffer_data(c->recv) + q * c->count, c->count);
        r = one_op(worker, &ns);
        if (r == 0 && i > 0 && i <= iterations)
            worker_sample(worker, ns);
        if (r == 0)
            r = verify(worker, i > iterations);
    }
    return r;
}

static void collective_close(struct worker *worker)
{
    struct collective *c = (struct collective *)worker->state;

    if (c != NULL)
        gw_job_close(c->job);
    free(c);
}

const struct worker_ops worker_collective = {collective_open, collective_run, collective_close};
