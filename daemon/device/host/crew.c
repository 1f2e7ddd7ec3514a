/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of stream threads: see crew.h. A task lives on its caller's stack and is in the crew's
 * ring while it has blocks to give; a helper enters and leaves it under the lock, and takes blocks
 * in between by an atomic counter alone. Touches nothing else.
 */
#include "daemon/device/host/crew.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "daemon/device/host/affinity.h"
#include "gradwire/errors.h"

#define TURN_BLOCKS 16u /* of one task, before a helper looks for another */
#define PAUSES 100u     /* before sleeping: at most 5 us, where a pause takes 50 ns */

/* The blocks of a task that lie on one node: those of parts[first], parts[first + 1] ... */
struct share {
    uint64_t blocks;
    _Atomic uint64_t taken;
    uint32_t first;
};

struct task {
    struct task *next; /* in the ring */
    const struct crew_work *work;
    struct share shares[TOPOLOGY_NODES_MAX];
    uint16_t parts[GW_RANKS_MAX]; /* node by node */
    uint64_t part_blocks;
    _Atomic uint32_t inside; /* helpers; rises and falls under the lock */
    pthread_cond_t left;
};

struct helper {
    struct crew *crew;
    pthread_t thread;
    uint32_t node;
};

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct task *last; /* of the ring: the one after it is next; NULL: no task */
    uint32_t wanted, asleep, count;
    bool made, stopping;
    struct placement placement;
    struct helper helpers[]; /* node by node */
};

static uint32_t workers_of(const struct placement *placement)
{
    uint32_t workers = 0;

    for (uint32_t i = 0; i < placement->count; i++)
        workers += placement->node[i].workers;
    return workers;
}

int crew_new(const struct placement *placement, struct crew **ret_crew)
{
    struct placement plain;
    struct crew *crew;

    if (!placement) {
        struct cpus own = affinity_own();
        placement_make(&(struct topology){0}, &own, &(struct ranks){{0}}, NULL, &plain);
        placement = &plain;
    }
    crew = calloc(1, sizeof(*crew) + workers_of(placement) * sizeof(struct helper));
    if (!crew)
        return GW_E_NOMEM;
    crew->placement = *placement;
    crew->wanted = workers_of(placement);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->wake, NULL);
    *ret_crew = crew;
    return 0;
}

struct crew *crew_free(struct crew *crew)
{
    if (!crew)
        return NULL;
    pthread_mutex_lock(&crew->lock);
    crew->stopping = true;
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    for (uint32_t i = 0; i < crew->count; i++)
        pthread_join(crew->helpers[i].thread, NULL);
    pthread_cond_destroy(&crew->wake);
    pthread_mutex_destroy(&crew->lock);
    free(crew);
    return NULL;
}

/* ---- the ring, with the lock held ------------------------------------------------------------ */

static void ring_add(struct crew *crew, struct task *task)
{
    task->next = crew->last ? crew->last->next : task;
    if (crew->last)
        crew->last->next = task;
    crew->last = task;
}

static void ring_remove(struct crew *crew, struct task *task)
{
    struct task *before = crew->last;

    if (!before)
        return;
    while (before->next != task) {
        before = before->next;
        if (before == crew->last)
            return; /* a helper has removed it */
    }
    before->next = task->next;
    if (crew->last == task)
        crew->last = before == task ? NULL : before;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void share_out(const struct placement *placement, struct task *task)
{
    const struct crew_work *work = task->work;
    uint32_t used = 0;

    if (placement->count == 1 || !work->ranks) {
        task->part_blocks = work->blocks;
        task->shares[0].blocks = work->blocks;
        return;
    }
    assert(work->parts > 0 && work->parts <= GW_RANKS_MAX && work->blocks % work->parts == 0);
    task->part_blocks = work->blocks / work->parts;
    for (uint32_t node = 0; node < placement->count; node++) {
        task->shares[node].first = used;
        for (uint32_t part = 0; part < work->parts; part++)
            if (placement->rank_node[work->ranks[part]] == node)
                task->parts[used++] = (uint16_t)part;
        task->shares[node].blocks = (used - task->shares[node].first) * task->part_blocks;
    }
}

/* False: the share has no more. */
static bool take_block(struct task *task, struct share *share)
{
    uint64_t index = atomic_fetch_add_explicit(&share->taken, 1, memory_order_relaxed);
    uint64_t part;

    if (index >= share->blocks)
        return false;
    part = task->parts[share->first + index / task->part_blocks];
    task->work->run(task->work->arg, part * task->part_blocks + index % task->part_blocks);
    return true;
}

/* Up to `most`, those of `node` first. False: the task has no more. */
static bool take_blocks(const struct crew *crew, struct task *task, uint32_t node, uint64_t most)
{
    uint32_t count = crew->placement.count;

    for (uint32_t i = 0; i < count; i++) {
        struct share *share = &task->shares[(node + i) % count];
        while (most > 0 && take_block(task, share))
            most--;
    }
    return most == 0;
}

/* With the lock held: the first in turn that has blocks on the node, else the first. */
static struct task *next_task(const struct crew *crew, uint32_t node)
{
    struct task *task = crew->last;

    if (!task || crew->placement.count == 1)
        return task ? task->next : NULL;
    do {
        task = task->next;
        if (atomic_load_explicit(&task->shares[node].taken, memory_order_relaxed) <
            task->shares[node].blocks)
            return task;
    } while (task != crew->last);
    return task->next;
}

static void *helper_main(void *arg)
{
    const struct helper *helper = arg;
    struct crew *crew = helper->crew;

    if (crew->placement.count > 1)
        affinity_set(0, &crew->placement.node[helper->node].cpus);
    pthread_mutex_lock(&crew->lock);
    while (!crew->stopping) {
        struct task *task = next_task(crew, helper->node);
        bool more;

        if (!task) {
            crew->asleep++;
            pthread_cond_wait(&crew->wake, &crew->lock);
            crew->asleep--;
            continue;
        }
        crew->last = task; /* its turn comes again after all others' */
        atomic_fetch_add_explicit(&task->inside, 1, memory_order_relaxed);
        pthread_mutex_unlock(&crew->lock);
        more = take_blocks(crew, task, helper->node, TURN_BLOCKS);
        pthread_mutex_lock(&crew->lock);
        if (!more)
            ring_remove(crew, task);
        /* The last look at the task: its caller may be gone once the lock is. */
        if (atomic_fetch_sub_explicit(&task->inside, 1, memory_order_release) == 1)
            pthread_cond_signal(&task->left);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* With the lock held. Fewer than wanted are fewer. */
static void make_helpers(struct crew *crew)
{
    sigset_t all, before;
    uint32_t node = 0, on_node = 0;

    crew->made = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (crew->count < crew->wanted) {
        struct helper *helper = &crew->helpers[crew->count];
        for (; on_node == crew->placement.node[node].workers; on_node = 0)
            node++;
        *helper = (struct helper){.crew = crew, .node = node};
        if (pthread_create(&helper->thread, NULL, helper_main, helper) != 0)
            break;
        crew->count++;
        on_node++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static inline void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The helpers that are inside are in their last blocks. */
static void wait_for_helpers(struct crew *crew, struct task *task)
{
    for (uint32_t i = 0; i < PAUSES; i++) {
        if (atomic_load_explicit(&task->inside, memory_order_relaxed) == 0)
            break;
        pause_briefly();
    }
    pthread_mutex_lock(&crew->lock);
    ring_remove(crew, task);
    while (atomic_load_explicit(&task->inside, memory_order_acquire) > 0)
        pthread_cond_wait(&task->left, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}

/* Where the calling thread is now. */
static uint32_t node_here(const struct placement *placement)
{
    int cpu = placement->count > 1 ? sched_getcpu() : -1;

    for (uint32_t i = 0; cpu >= 0 && cpu < (int)CPUS_MAX && i < placement->count; i++)
        if (cpus_has(&placement->node[i].cpus, (uint32_t)cpu))
            return i;
    return 0;
}

void crew_run(struct crew *crew, const struct crew_work *work)
{
    struct task task;

    if (work->blocks < 2 || crew->wanted == 0) {
        for (uint64_t block = 0; block < work->blocks; block++)
            work->run(work->arg, block);
        return;
    }
    task = (struct task){.work = work};
    share_out(&crew->placement, &task);
    pthread_cond_init(&task.left, NULL);
    pthread_mutex_lock(&crew->lock);
    if (!crew->made)
        make_helpers(crew);
    ring_add(crew, &task);
    for (uint32_t i = 0; i < crew->asleep && i + 1 < work->blocks; i++)
        pthread_cond_signal(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    (void)take_blocks(crew, &task, node_here(&crew->placement), UINT64_MAX);
    wait_for_helpers(crew, &task);
    pthread_cond_destroy(&task.left);
}
