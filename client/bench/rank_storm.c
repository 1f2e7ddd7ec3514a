/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of a storm: in each, rank 0 of a job creates it, the others join as soon as they know its
 * id, and all wait until it is complete. Two samples: the call, and from the order to the complete
 * job. In a worker; one thread.
 */
#include "client/bench/rank.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Words of pages that processes share: the futexes are not private ones. */
static void wake_all(uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* In place of a turn: the job could not be created. */
#define NO_TURN UINT32_MAX

static void say_turn(struct worker_share *share, uint32_t turn)
{
    __atomic_store_n(&share->turn, turn, __ATOMIC_RELEASE);
    wake_all(&share->turn);
}

static int await_turn(struct worker *worker, uint32_t turn)
{
    const uint32_t *word = &worker->first->turn;
    uint64_t until = bench_now_ns() + (uint64_t)RANK_WAIT_NS;
    struct timespec slice = {0, 100000000};
    uint32_t is;

    while ((is = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != turn) {
        if (is == NO_TURN || bench_now_ns() > until)
            return worker_fail(worker, WORKER_FAILED, "rank %u: its job was not created",
                               worker->rank);
        (void)syscall(SYS_futex, word, FUTEX_WAIT, is, &slice, NULL, 0);
    }
    return 0;
}

static int create(struct worker *worker, struct gw_job_options *options, uint32_t turn,
                  gw_job **ret_job)
{
    struct worker_share *share = worker->share;
    uint64_t began = bench_now_ns();
    int r;

    r = rank_check(worker, "create job", gw_job_create(options, ret_job));
    worker_sample(worker, bench_now_ns() - began);
    if (r == 0)
        r = rank_check(worker, "job id", gw_job_get_id(*ret_job, &share->id));
    say_turn(share, r == 0 ? turn : NO_TURN);
    return r;
}

static int join(struct worker *worker, struct gw_job_options *options, uint32_t turn,
                gw_job **ret_job)
{
    uint64_t began;
    int r;

    r = await_turn(worker, turn);
    if (r != 0)
        return r;
    began = bench_now_ns();
    r = rank_check(worker, "join job", gw_job_join(options, &worker->first->id, ret_job));
    worker_sample(worker, bench_now_ns() - began);
    return r;
}

static int storm_open(struct worker *worker)
{
    (void)worker;
    return 0;
}

/* `turn`: which storm this is, from 1. */
static int storm_one(struct worker *worker, uint64_t turn)
{
    struct gw_job_options options;
    uint64_t began = bench_now_ns();
    gw_job *job = NULL;
    int r;

    rank_options(worker, &options);
    r = worker->rank == 0 ? create(worker, &options, (uint32_t)turn, &job)
                          : join(worker, &options, (uint32_t)turn, &job);
    if (r == 0)
        r = rank_check(worker, "wait for all ranks", gw_job_wait_ready(job, RANK_WAIT_NS));
    worker_sample(worker, bench_now_ns() - began);
    gw_job_close(job);
    return r;
}

static void storm_close(struct worker *worker)
{
    (void)worker;
}

const struct worker_ops worker_storm = {storm_open, storm_one, storm_close};
