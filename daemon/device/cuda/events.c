/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order by events (way.h), for GPUs without 64-bit stream memory operations. Between the streams of
 * this process: each lane has on each GPU a ring of events, of which its parts record one each.
 *
 * cuStreamWaitEvent waits for what was recorded when it is called, and for nothing if nothing was.
 * So an issuing thread waits on the host until the other GPU's thread has recorded its part: for as
 * long as that takes to enqueue it, never for a GPU; both queues have works in the same order, and
 * a thread's own part comes before. An event is recorded again only once its op has ended and no
 * thread is about to wait for it: a later op in its place might wait for this very stream.
 * Issuing threads, but for the life of the rings (loop thread). Owns the rings.
 */
#include <stdlib.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/cuda/plant.h"
#include "gradwire/errors.h"

#define MARKS 64u         /* parts of a lane on a GPU that have not ended */
#define STEP_NS 10000000u /* between two looks whether the device stops */

struct cuda_mark {
    CUevent event;
    uint64_t op;    /* 0: never recorded */
    uint32_t users; /* threads that are about to wait for it */
};

static int track_new(struct cuda_gpu *gpu, uint32_t lane)
{
    struct cuda_track *track = &gpu->tracks[lane];
    CUresult result = CUDA_SUCCESS;

    track->marks = calloc(MARKS, sizeof(*track->marks));
    if (!track->marks)
        return GW_E_NOMEM;
    for (uint32_t i = 0; i < MARKS && result == CUDA_SUCCESS; i++)
        result = cu.cuEventCreate(&track->marks[i].event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        return 0;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? GW_E_NOMEM : GW_E_DEVICE;
}

static void track_free(struct cuda_gpu *gpu, uint32_t lane)
{
    struct cuda_track *track = &gpu->tracks[lane];

    for (uint32_t i = 0; track->marks && i < MARKS; i++)
        if (track->marks[i].event)
            (void)cu.cuEventDestroy(track->marks[i].event);
    free(track->marks);
}

/* With the lock held, which is let go while waiting. False: the device is broken, or stops. */
static bool wait_moved(struct cuda_device *device)
{
    uint64_t until_ns = cuda_now_ns() + STEP_NS;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};

    if (device->stopping || device->broken)
        return false;
    (void)pthread_cond_timedwait(&device->moved, &device->lock, &until);
    return true;
}

/* The track's next event, once nobody needs what it tells. NULL: the device stops. */
static struct cuda_mark *take(struct cuda_device *device, struct cuda_track *track)
{
    struct cuda_mark *mark;

    pthread_mutex_lock(&device->lock);
    mark = &track->marks[track->next];
    while (mark && (mark->op > track->ended || mark->users > 0))
        if (!wait_moved(device))
            mark = NULL;
    if (mark)
        track->next = (track->next + 1) % MARKS;
    pthread_mutex_unlock(&device->lock);
    return mark;
}

static bool record(struct cuda_gpu *gpu, uint32_t lane, uint64_t op)
{
    struct cuda_device *device = gpu->device;
    struct cuda_track *track = &gpu->tracks[lane];
    struct cuda_mark *mark = take(device, track);

    if (!mark || !cuda_good(gpu, cu.cuEventRecord(mark->event, track->work), "cuEventRecord", op))
        return false;
    pthread_mutex_lock(&device->lock);
    mark->op = op;
    track->issued = op;
    pthread_cond_broadcast(&device->moved);
    pthread_mutex_unlock(&device->lock);
    return true;
}

/* The event of `op` on the track, kept from being recorded again; NULL in *ret_mark: the op has
 * ended. False: the device stops. */
static bool borrow(struct cuda_device *device, struct cuda_track *track, uint64_t op,
                   struct cuda_mark **ret_mark)
{
    struct cuda_mark *mark = NULL;
    bool good = true;

    pthread_mutex_lock(&device->lock);
    while (good && track->issued < op && !planted("mark_too_early"))
        good = wait_moved(device);
    if (good && track->ended < op) {
        for (uint32_t i = 0; i < MARKS && !mark; i++)
            if (track->marks[i].op == op)
                mark = &track->marks[i];
        if (!mark && planted("mark_too_early"))
            mark = &track->marks[track->next];
        if (mark)
            mark->users++;
        good = mark != NULL;
    }
    pthread_mutex_unlock(&device->lock);
    *ret_mark = mark;
    return good;
}

static bool wait(struct cuda_gpu *gpu, CUstream stream, uint32_t lane, uint64_t ranks,
                 uint64_t value, uint64_t op)
{
    struct cuda_device *device = gpu->device;

    for (; ranks; ranks &= ranks - 1) {
        struct cuda_track *track = &device->gpus[__builtin_ctzll(ranks)].tracks[lane];
        struct cuda_mark *mark = NULL;
        bool good = borrow(device, track, value, &mark);
        if (!good || !mark) {
            if (!good)
                return false;
            continue;
        }
        good = cuda_good(gpu, cu.cuStreamWaitEvent(stream, mark->event, CU_EVENT_WAIT_DEFAULT),
                         "cuStreamWaitEvent", op);
        pthread_mutex_lock(&device->lock);
        if (--mark->users == 0)
            pthread_cond_broadcast(&device->moved);
        pthread_mutex_unlock(&device->lock);
        if (!good)
            return false;
    }
    return true;
}

static void ended(struct cuda_gpu *gpu, uint32_t lane, uint64_t op)
{
    struct cuda_track *track = &gpu->tracks[lane];

    if (op > track->ended)
        track->ended = op;
    pthread_cond_broadcast(&gpu->device->moved);
}

/* They were reached before the work was issued. */
static bool wait_tokens(struct cuda_gpu *gpu, CUstream stream, const struct cuda_work *work)
{
    (void)gpu;
    (void)stream;
    (void)work;
    return true;
}

const struct cuda_way cuda_events = {
    .name = "events",
    .track_new = track_new,
    .track_free = track_free,
    .submit = cuda_tokens_submit,
    .retry = cuda_tokens_retry,
    .wait_tokens = wait_tokens,
    .mark = record,
    .wait = wait,
    .ended = ended,
    .look = cuda_tokens_look,
};
