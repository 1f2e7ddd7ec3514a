/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: how they join and wait; those that measure collectives. In a worker; one thread. */
#include "client/bench/rank.h"

#include <stdlib.h>
#include <string.h>

int rank_check(struct worker *worker, const char *call, int r)
{
    if (r >= 0)
        return 0;
    return worker_fail(worker, WORKER_FAILED, "rank %u: %s: %s", worker->rank, call,
                       gw_last_error());
}

int rank_wrong(struct worker *worker, const char *what, const void *is, uint64_t at,
               const struct values *must, uint64_t shown)
{
    return worker_fail(worker, WORKER_WRONG, "WRONG VALUE: rank %u: %s: element %llu is %g, not %g",
                       worker->rank, what, (unsigned long long)shown,
                       (double)values_is(must->type, is, at), (double)values_must(must, at));
}

void rank_options(const struct worker *worker, struct gw_job_options *ret_options)
{
    *ret_options = (struct gw_job_options){
        .struct_size = sizeof *ret_options,
        .socket_path = worker->socket,
        .rank = worker->rank,
        .world = worker->what->ranks,
        .nodes = worker->what->nodes,
        .op_timeout_ns = RANK_WAIT_NS,
        .linger_ns = -1,
        .name = "gwbench",
    };
}

int rank_join(struct worker *worker, uint64_t link_bytes_per_s, gw_job **ret_job)
{
    struct gw_job_options options;
    int r;

    rank_options(worker, &options);
    options.link_bytes_per_s = link_bytes_per_s;
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

/* ---- collectives ----------------------------------------------------------------------------- */

struct collective {
    gw_job *job;
    gw_buffer *send, *recv;
    uint32_t type;
    uint64_t count;                  /* of the call */
    uint64_t send_count, recv_count; /* of the buffers */
};

static int collective_open(struct worker *worker)
{
    struct collective *c = calloc(1, sizeof *c);
    const struct bench_case *what = worker->what;
    uint64_t numel = what->bytes / values_bytes(what->dtype), part = numel / what->ranks;
    struct values sent = {.type = what->dtype, .factor = values_factor(what->dtype, worker->rank)};
    int r;

    if (c == NULL)
        return worker_fail(worker, WORKER_FAILED, "rank %u: no memory", worker->rank);
    worker->state = c;
    c->type = what->dtype;
    c->count = c->send_count = c->recv_count = numel;
    if (what->op == BENCH_REDUCE_SCATTER)
        c->count = c->recv_count = part;
    if (what->op == BENCH_ALL_GATHER) {
        c->count = c->send_count = part;
        sent.first = worker->rank * part;
    }
    r = rank_join(worker, 0, &c->job);
    if (r == 0)
        r = rank_check(worker, "new buffer",
                       gw_buffer_new(c->job, c->send_count * values_bytes(c->type), &c->send));
    if (r == 0)
        r = rank_check(worker, "new buffer",
                       gw_buffer_new(c->job, c->recv_count * values_bytes(c->type), &c->recv));
    if (r != 0)
        return r;
    values_fill(gw_buffer_data(c->send), c->send_count, &sent);
    if (worker->rank == 0)
        values_plant("gradwire", c->type, gw_buffer_data(c->send), c->send_count);
    return 0;
}

static int submit(const struct worker *worker, struct gw_token *ret_token)
{
    const struct collective *c = (const struct collective *)worker->state;
    struct gw_slice send = {c->send, 0}, recv = {c->recv, 0};
    struct gw_op_options options = {.struct_size = sizeof options, .dtype = c->type};

    switch (worker->what->op) {
    case BENCH_REDUCE_SCATTER:
        return gw_reduce_scatter(c->job, send, recv, c->count, &options, ret_token);
    case BENCH_ALL_GATHER:
        return gw_all_gather(c->job, send, recv, c->count, &options, ret_token);
    default:
        return gw_all_reduce(c->job, send, recv, c->count, &options, ret_token);
    }
}

static int one_op(struct worker *worker, uint64_t *ret_ns)
{
    const struct collective *c = (const struct collective *)worker->state;
    struct gw_token token;
    uint64_t began = bench_now_ns();
    int r;

    r = rank_check(worker, bench_ops[worker->what->op].name, submit(worker, &token));
    if (r == 0)
        r = rank_wait(worker, c->job, bench_ops[worker->what->op].name, token);
    *ret_ns = bench_now_ns() - began;
    return r;
}

/* Part q of what must be received. */
static struct values expected(const struct worker *worker, uint32_t q)
{
    const struct collective *c = (const struct collective *)worker->state;
    struct values must = {.type = c->type,
                          .factor = values_sum_factor(c->type, worker->what->ranks)};

    if (worker->what->op == BENCH_REDUCE_SCATTER)
        must.first = worker->rank * c->count;
    if (worker->what->op == BENCH_ALL_GATHER) {
        must.first = q * c->count;
        must.factor = values_factor(c->type, q);
    }
    return must;
}

static char *part(const struct collective *c, uint32_t q)
{
    return (char *)gw_buffer_data(c->recv) + q * c->count * values_bytes(c->type);
}

static int verify(struct worker *worker, bool all)
{
    const struct collective *c = (const struct collective *)worker->state;

    for (uint32_t q = 0; q < c->recv_count / c->count; q++) {
        struct values must = expected(worker, q);
        uint64_t bad;

        if (!all && values_spots(part(c, q), c->count, &must))
            continue;
        bad = values_check(part(c, q), c->count, &must);
        if (bad < c->count)
            return rank_wrong(worker, bench_ops[worker->what->op].name, part(c, q), bad, &must,
                              q * c->count + bad);
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
            memset(gw_buffer_data(c->recv), 0xff, c->recv_count * values_bytes(c->type));
        for (uint32_t q = 0; q < c->recv_count / c->count; q++)
            values_poison_spots(c->type, part(c, q), c->count);
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

/* ---- ranks that only are there --------------------------------------------------------------- */

static int idle_open(struct worker *worker)
{
    gw_job *job = NULL;
    int r;

    r = rank_join(worker, 0, &job);
    worker->state = job;
    return r;
}

static int idle_run_nothing(struct worker *worker, uint64_t iterations)
{
    (void)worker;
    (void)iterations;
    return 0;
}

static void idle_close(struct worker *worker)
{
    gw_job_close((gw_job *)worker->state);
}

const struct worker_ops worker_idle = {idle_open, idle_run_nothing, idle_close};
