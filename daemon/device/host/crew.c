/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of stream threads: see crew.h. A task lives on its caller's stack and is in the crew's
 * ring while it has blocks to give; a helper enters and leaves it under the lock, and takes blocks
 * in between by an atomic counter alone. Touches nothing else.
 */
#include "daemon/device/host/crew.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "gradwire/errors.h"

#define TURN_BLOCKS 16u /* of one task, before a helper looks for another */
#define PAUSES 300u     /* a helper's last block is short: some microseconds before sleeping */

struct task {
    struct task *next; /* in the ring */
    void (*run)(void *arg, uint64_t block);
    void *arg;
    uint64_t blocks;
    _Atomic uint64_t taken;
    _Atomic uint32_t inside; /* helpers; rises and falls under the lock */
    pthread_cond_t left;
};

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct task *last; /* of the ring: the one after it is next; NULL: no task */
    uint32_t wanted, asleep, count;
    bool made, stopping;
    pthread_t helpers[CREW_HELPERS_MAX];
};

static uint32_t cores_beside(void)
{
    cpu_set_t cores;

    if (sched_getaffinity(0, sizeof(cores), &cores) < 0)
        return 0;
    return (uint32_t)CPU_COUNT(&cores) - 1;
}

int crew_new(uint32_t helpers, struct crew **ret_crew)
{
    struct crew *crew = calloc(1, sizeof(*crew));

    if (!crew)
        return GW_E_NOMEM;
    crew->wanted = helpers == CREW_AUTO ? cores_beside() : helpers;
    if (crew->wanted > CREW_HELPERS_MAX)
        crew->wanted = CREW_HELPERS_MAX;
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
        pthread_join(crew->helpers[i], NULL);
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

/* Up to `most`. False: the task has no more. */
static bool take_blocks(struct task *task, uint64_t most)
{
    for (uint64_t i = 0; i < most; i++) {
        uint64_t block = atomic_fetch_add_explicit(&task->taken, 1, memory_order_relaxed);
        if (block >= task->blocks)
            return false;
        task->run(task->arg, block);
    }
    return true;
}

static void *helper_main(void *arg)
{
    struct crew *crew = arg;

    pthread_mutex_lock(&crew->lock);
    while (!crew->stopping) {
        struct task *task = crew->last ? crew->last->next : NULL;
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
        more = take_blocks(task, TURN_BLOCKS);
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

    crew->made = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (crew->count < crew->wanted &&
           pthread_create(&crew->helpers[crew->count], NULL, helper_main, crew) == 0)
        crew->count++;
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

void crew_run(struct crew *crew, void (*run)(void *arg, uint64_t block), void *arg, uint64_t blocks)
{
    struct task task = {.run = run, .arg = arg, .blocks = blocks};

    if (blocks < 2 || crew->wanted == 0) {
        (void)take_blocks(&task, blocks);
        return;
    }
    pthread_cond_init(&task.left, NULL);
    pthread_mutex_lock(&crew->lock);
    if (!crew->made)
        make_helpers(crew);
    ring_add(crew, &task);
    for (uint32_t i = 0; i < crew->asleep && i + 1 < blocks; i++)
        pthread_cond_signal(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    (void)take_blocks(&task, UINT64_MAX);
    wait_for_helpers(crew, &task);
    pthread_cond_destroy(&task.left);
}
