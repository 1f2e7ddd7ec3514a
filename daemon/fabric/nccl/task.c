/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks: what issuing threads do beside parts of ops. Posted and released on the loop thread, run
 * on a rank's issuing thread. A task holds its world.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/fabric/nccl/nccl.h"

#define STEP_NS 10000000

/* Shared by a task and who waits for it; references are the loop thread's. */
struct nccl_finish {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t references;
    bool done;
};

static struct nccl_finish *finish_new(void)
{
    struct nccl_finish *finish = calloc(1, sizeof(*finish));
    pthread_condattr_t attributes;

    if (!finish)
        return NULL;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&finish->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&finish->lock, NULL);
    finish->references = 1;
    return finish;
}

static void finish_unref(struct nccl_finish *finish)
{
    if (!finish || --finish->references > 0)
        return;
    pthread_cond_destroy(&finish->changed);
    pthread_mutex_destroy(&finish->lock);
    free(finish);
}

static void call(void *arg, int gpu)
{
    struct nccl_task *task = (struct nccl_task *)arg;

    (void)gpu;
    task->run(task);
    if (!task->finish)
        return;
    pthread_mutex_lock(&task->finish->lock);
    task->finish->done = true;
    pthread_cond_signal(&task->finish->changed);
    pthread_mutex_unlock(&task->finish->lock);
}

static void release(void *arg)
{
    struct nccl_task *task = (struct nccl_task *)arg;

    finish_unref(task->finish);
    nccl_world_unref(task->world);
    free(task);
}

int nccl_task_post(const struct nccl_task *task)
{
    struct nccl_task *copy = malloc(sizeof(*copy));
    int r;

    if (!copy)
        return GW_E_NOMEM;
    *copy = *task;
    copy->world->references++;
    if (copy->finish)
        copy->finish->references++;
    r = cuda_call(copy->world->device, copy->rank, call, copy, release);
    if (r < 0)
        release(copy);
    return r;
}

/* False: the device is broken, now at the latest. */
static bool wait_for(struct nccl_finish *finish, struct device *device)
{
    struct timespec until;
    bool done;

    pthread_mutex_lock(&finish->lock);
    for (uint64_t waited_ns = 0; !finish->done && !cuda_broken(device); waited_ns += STEP_NS) {
        if (waited_ns >= NCCL_SETTLE_NS)
            cuda_fault(device, "NCCL could not be asked within %u s; a GPU hangs",
                       (unsigned)(NCCL_SETTLE_NS / 1000000000u));
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += STEP_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&finish->changed, &finish->lock, &until);
    }
    done = finish->done;
    pthread_mutex_unlock(&finish->lock);
    return done;
}

bool nccl_task_wait(const struct nccl_task *task)
{
    struct nccl_task waited = *task;
    bool done;

    waited.finish = finish_new();
    if (!waited.finish)
        return false;
    done = nccl_task_post(&waited) == 0 && wait_for(waited.finish, waited.world->device);
    finish_unref(waited.finish);
    return done;
}
