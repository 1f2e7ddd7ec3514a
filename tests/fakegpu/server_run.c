/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The adversary: workers pick, at random, any op at the head of its stream that CUDA's rules let
 * run, after a random delay. The choices come from the seed; which ones there are depends on when
 * processes ask, so a seed makes a run likely to repeat, not certain.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/fakegpu/server_internal.h"

#define WORKERS_MAX 8
#define POLL_MIN_NS UINT64_C(20000)
#define POLL_MAX_NS UINT64_C(100000)

static pthread_t threads[WORKERS_MAX];
static uint32_t thread_count;
static struct server *the_server;
static bool tick_busy, somebody_polls;

uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * S_NS + (uint64_t)now.tv_nsec;
}

uint64_t mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t random_of(const struct server *s, uint64_t what, uint64_t which)
{
    return mix64(mix64(mix64(s->seed) ^ what) ^ which);
}

uint64_t random_delay_ns(const struct server *s, uint64_t what, uint64_t which)
{
    uint64_t random = random_of(s, what, which), kind = random % 1000, value = random >> 10;
    uint64_t delay = 0;

    if (kind >= 999)
        delay = value % 3000000;
    else if (kind >= 980)
        delay = value % 300000;
    else if (kind >= 500)
        delay = value % 60000;
    return delay * s->delay_percent / 100;
}

void server_kick(struct server *s)
{
    pthread_cond_signal(&s->work);
}

/* ---- choice --------------------------------------------------------------------------------- */

struct pick {
    struct op *op; /* chosen so far */
    uint32_t choices;
    uint64_t next_ns; /* when a held one is due */
    bool polls;       /* a wait for a word is at a head */
};

static bool fits(struct server *s, const struct op *op)
{
    const struct gpu *gpu = &s->gpus[op->stream->gpu];

    if (op->kind == OP_COLLECTIVE)
        return op->ctas <= gpu->ctas_free;
    if (op->kind != OP_KERNEL)
        return true;
    /* Without MPS the kernels of one process at a time; and no room, no kernel. */
    return gpu->ctas_free && (s->mps || !gpu->slice_running || gpu->slice == op->stream->process);
}

/* Streams beyond the number of hardware queues share them: what was enqueued earlier in another
 * stream of the queue, and has not started, is in front. */
static bool queued_behind(const struct server *s, const struct op *op)
{
    const struct stream *stream = op->stream;
    const struct process *p = stream->process;

    if (p->streams[stream->gpu] <= p->queues)
        return false;
    for (uint32_t i = 0; i < s->busy_count; i++) {
        const struct stream *other = s->busy[i];

        if (other->process == p && other->gpu == stream->gpu && other->queue == stream->queue &&
            other != stream && other->head && !other->head->running && !other->dead &&
            other->head->id < op->id)
            return true;
    }
    return false;
}

static void consider(struct server *s, struct op *op, uint64_t now, struct pick *pick)
{
    for (uint32_t i = 0; i < op->after_count; i++)
        if (!after_done(s, &op->after[i]))
            return;
    if (op->kind == OP_WAIT && !wait_satisfied(s, op)) {
        pick->polls = true;
        return;
    }
    if (!op->not_before_ns)
        op->not_before_ns = now + random_delay_ns(s, (uint64_t)op->stream->index << 8 | 'D',
                                                  op->seq);
    if (op->not_before_ns > now) {
        if (op->not_before_ns < pick->next_ns)
            pick->next_ns = op->not_before_ns;
        return;
    }
    if (!fits(s, op) || queued_behind(s, op))
        return;
    /* Each of n candidates with probability 1/n. */
    pick->choices++;
    if (random_of(s, 'C', ++s->picks) % pick->choices == 0)
        pick->op = op;
}

static struct pick choose(struct server *s, uint64_t now)
{
    struct pick pick = {.next_ns = UINT64_MAX};

    for (uint32_t i = 0; i < s->busy_count;) {
        struct stream *stream = s->busy[i];
        struct op *op = stream->head;

        if (!op) {
            stream->busy = false;
            s->busy[i] = s->busy[--s->busy_count];
            continue;
        }
        if (!op->running && !stream->dead)
            consider(s, op, now, &pick);
        i++;
    }
    return pick;
}

/* ---- workers -------------------------------------------------------------------------------- */

static void sleep_until(struct server *s, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / S_NS),
                             .tv_nsec = (long)(until_ns % S_NS)};

    if (until_ns == UINT64_MAX)
        pthread_cond_wait(&s->work, &s->lock);
    else
        pthread_cond_timedwait(&s->work, &s->lock, &until);
}

static bool run_collective(struct server *s)
{
    void *job = nccl_take(s);
    uint64_t faulted;

    if (!job)
        return false;
    pthread_mutex_unlock(&s->lock);
    faulted = guard_run(nccl_run, job);
    pthread_mutex_lock(&s->lock);
    nccl_finish(s, job, faulted);
    server_kick(s);
    return true;
}

static uint64_t tick(struct server *s, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    if (!tick_busy) {
        tick_busy = true;
        next = nccl_tick(s, now);
        tick_busy = false;
    }
    return next;
}

static void *worker(void *arg)
{
    struct server *s = the_server;
    uint64_t poll_ns = POLL_MIN_NS;
    bool polls;

    (void)arg;
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        uint64_t now = now_ns(), next = tick(s, now);

        if (run_collective(s))
            continue;
        struct pick pick = choose(s, now);

        if (pick.op) {
            poll_ns = POLL_MIN_NS;
            op_execute(s, pick.op);
            continue;
        }
        if (pick.next_ns < next)
            next = pick.next_ns;
        /* Of those that sleep one looks at words. */
        polls = pick.polls && !somebody_polls;
        if (polls && now + poll_ns < next)
            next = now + poll_ns;
        somebody_polls |= polls;
        poll_ns = poll_ns + poll_ns / 16 < POLL_MAX_NS ? poll_ns + poll_ns / 16 : POLL_MAX_NS;
        sleep_until(s, next);
        if (polls)
            somebody_polls = false;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int workers_start(struct server *s, uint32_t count)
{
    the_server = s;
    if (count > WORKERS_MAX)
        count = WORKERS_MAX;
    for (; thread_count < count; thread_count++)
        if (pthread_create(&threads[thread_count], NULL, worker, NULL))
            return -1;
    return 0;
}

void workers_stop(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (; thread_count > 0; thread_count--)
        pthread_join(threads[thread_count - 1], NULL);
}
