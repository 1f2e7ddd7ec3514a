/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks: what issuing threads do beside parts of ops. Posted and released on the loop thread, run
 * on a rank's issuing thread. A task holds its world.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/fabric/nccl/nccl.h"

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

bool nccl_task_wait(const struct nccl_task *task)
{
    struct nccl_task waited = *task;
    struct timespec until;
    bool done;

    waited.finish = finish_new();
    if (!waited.finish)
        return false;
    if (nccl_task_post(&waited) < 0) {
        finish_unref(waited.finish);
        return false;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(NCCL_REMOVE_NS / 1000000000u);
    pthread_mutex_lock(&waited.finish->lock);
    while (!waited.finish->done &&
           pthread_cond_timedwait(&waited.finish->changed, &waited.finish->lock, &until) !=
               ETIMEDOUT)
        ;
    done = waited.finish->done;
    pthread_mutex_unlock(&waited.finish->lock);
    finish_unref(waited.finish);
    return done;
}
