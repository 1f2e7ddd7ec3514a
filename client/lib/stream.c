/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of <gradwire/cuda.h> on a job. They are here and not in libgradwire-cuda, because they
 * are the job's own and know no CUDA: the device's table does. Any thread; none waits for the GPU.
 */
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/wait.h"
#include "client/lib/zero.h"
#include "gradwire/cuda.h"

_Static_assert(sizeof(struct gw_cuda_verdict) == sizeof(struct gw_shm_verdict), "one layout");
_Static_assert(offsetof(struct gw_cuda_verdict, clip_factor) ==
                   offsetof(struct gw_shm_verdict, clip_factor),
               "one layout");
_Static_assert(offsetof(struct gw_cuda_verdict, digest) == offsetof(struct gw_shm_verdict, digest),
               "one layout");

static int enter(gw_job *job)
{
    int r = job_check(job);

    if (r == 0 && !job->device)
        r = err_set(GW_E_STATE, "the job has no GPU; give gw_job_options.device");
    return r;
}

int gw_cuda_set_stream(gw_job *job, void *stream)
{
    int r = enter(job);

    return r < 0 ? r : order_set_stream(job, stream);
}

/* Once a stream waits for the window, what comes after may write. */
static void note_window(gw_job *job, struct gw_token token)
{
    struct zero *zero = atomic_load_explicit(&job->zero, memory_order_acquire);

    if (!zero || GW_TIMELINE_CLASS(token.timeline) != GW_TL_UPDATE)
        return;
    pthread_mutex_lock(&job->lock);
    if (token.value > zero->window_waited)
        zero->window_waited = token.value;
    pthread_mutex_unlock(&job->lock);
}

int gw_stream_wait(gw_job *job, struct gw_token token, void *stream)
{
    const struct gw_shm_slot *slot = NULL;
    struct wait_time time = {0};
    int r = enter(job);

    if (r == 0)
        r = wait_slot(job, token, &slot);
    if (r == 0 && wait_dropped(job, &token, 1))
        r = order_flush(job);
    else if (r == 0)
        r = order_stream_wait(job, token, stream, clock_deadline(job->timeout_ns), &time);
    if (r == 0)
        wait_record(job, &token, 1, time);
    if (job_deadline_passed(job, &r)) {
        split_defer(&job->split, time.w0, time.w1);
        return err_set(r,
                       "the token was not reached within %lld ms (the GPU's streams cannot wait "
                       "for it themselves); it stays valid",
                       (long long)(job->timeout_ns / CLOCK_MS));
    }
    if (r == 0)
        note_window(job, token);
    return r;
}

int gw_record(gw_job *job, void *stream, struct gw_token *ret_token)
{
    int r = enter(job);

    if (r == 0 && !ret_token)
        r = err_set(GW_E_INVALID, "ret_token is NULL");
    return r < 0 ? r : order_record(job, stream, ret_token);
}

/* Set-up the first time; two threads may both map it, and one mapping is dropped. */
int gw_cuda_verdict_ptr(gw_job *job, const struct gw_cuda_verdict **ret_device_pointer)
{
    struct zero *zero = NULL;
    struct map map = {0};
    int r = enter(job);

    if (r == 0)
        r = zero_enter(job, &zero);
    if (r == 0 && !ret_device_pointer)
        r = err_set(GW_E_INVALID, "ret_device_pointer is NULL");
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    *ret_device_pointer = (const struct gw_cuda_verdict *)(const void *)zero->verdict.base;
    pthread_mutex_unlock(&job->lock);
    if (*ret_device_pointer)
        return 0;
    r = memory_get(job, GW_ARENA_VERDICT, 0,
                   sizeof(struct gw_cuda_verdict) + (zero->page->params + 7) / 8, "verdict",
                   clock_deadline(job->timeout_ns), NULL, &map);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    if (!zero->verdict.base) {
        zero->verdict = map;
        map = (struct map){0};
    }
    *ret_device_pointer = (const struct gw_cuda_verdict *)(const void *)zero->verdict.base;
    pthread_mutex_unlock(&job->lock);
    map_free(&map);
    return 0;
}
