/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of clients where streams cannot wait for words (way.h): a work is held back until all of
 * its tokens are reached, and works that come after it with it. Whatever is let go goes to all its
 * GPUs' queues in one step, so that those agree about the order.
 *
 * A token is reached when its word says so (the client's host raised it, or saw its event), or when
 * the client's event of that value does. Events are asked by the issuing thread of the client's
 * GPU, between its items: within 20 us at first, then ever more rarely, up to half a millisecond.
 * Loop thread; issuing threads (look). Owns the held list and the opened events.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/cuda/plant.h"
#include "gradwire/errors.h"

#define LOOK_FIRST_NS UINT64_C(20000)
#define LOOK_LAST_NS UINT64_C(500000)
#define ASKS 16u /* events asked in one look */

/* A client's timeline that is told by events. */
struct cuda_timeline {
    struct cuda_timeline *next;
    const _Atomic uint64_t *word;
    uint32_t rank;
    uint32_t users;   /* being asked right now */
    uint64_t reached; /* what the events have said */
    CUevent events[GW_TIMELINE_EVENTS];
};

struct ask {
    struct cuda_timeline *timeline;
    uint64_t value;
    CUresult answer;
};

/* ---- tokens, all with the lock held ---------------------------------------------------------- */

static struct cuda_timeline *timeline_of(const struct cuda_device *device,
                                         const _Atomic uint64_t *word)
{
    struct cuda_timeline *timeline = device->timelines;

    while (timeline && timeline->word != word)
        timeline = timeline->next;
    return timeline;
}

/* Cyclic, as streams compare. */
static bool at_least(uint64_t word, uint64_t value)
{
    return (int64_t)(word - value) >= 0;
}

/* A dead rank's tokens count as reached. */
static bool reached(const struct cuda_device *device, const struct device_wait *wait)
{
    const struct cuda_timeline *timeline;

    if (cuda_aborted(device) >> wait->rank & 1 || planted("token_not_asked"))
        return true;
    if (at_least(atomic_load_explicit(wait->word, memory_order_acquire), wait->value))
        return true;
    timeline = timeline_of(device, wait->word);
    return timeline && at_least(timeline->reached, wait->value);
}

static bool is_held(const struct cuda_device *device, uint64_t op)
{
    const struct cuda_work *work = device->held;

    while (work && work->work.op < op)
        work = work->held_next;
    return work && work->work.op == op;
}

/* A failed work waits for its turn, and for no token. */
static bool may_go(const struct cuda_device *device, const struct cuda_work *work)
{
    bool failed = (cuda_aborted(device) & work->work.ranks.word[0]) != 0;

    for (uint32_t i = 0; i < work->work.wait_count && !failed; i++)
        if (!reached(device, &work->work.waits[i]))
            return false;
    for (uint32_t i = 0; i < work->after_count; i++)
        if (is_held(device, work->after[i].op))
            return false;
    return true;
}

/* In the order of their ops: what comes after a work that goes may go with it. */
void cuda_tokens_retry(struct cuda_device *device)
{
    struct cuda_work **at = &device->held;

    while (*at) {
        struct cuda_work *work = *at;
        if (!may_go(device, work)) {
            at = &work->held_next;
            continue;
        }
        *at = work->held_next;
        work->held = false;
        cuda_push_work(device, work);
    }
}

static void look_soon(struct cuda_gpu *gpu)
{
    gpu->look_pause_ns = LOOK_FIRST_NS;
    gpu->look_ns = cuda_now_ns();
    if (gpu->running)
        pthread_cond_signal(&gpu->wake);
}

void cuda_tokens_submit(struct cuda_device *device, struct cuda_work *work)
{
    struct cuda_work **at = &device->held;

    if (may_go(device, work)) {
        cuda_push_work(device, work);
        return;
    }
    while (*at)
        at = &(*at)->held_next;
    *at = work;
    work->held = true;
    work->held_next = NULL;
    for (uint32_t i = 0; i < work->work.wait_count; i++)
        if (!reached(device, &work->work.waits[i]))
            look_soon(&device->gpus[work->work.waits[i].rank]);
}

/* ---- asking events --------------------------------------------------------------------------- */

/* With the lock held. True: tokens of the GPU's rank are waited for. */
static bool collect(struct cuda_gpu *gpu, struct ask asks[ASKS], uint32_t *ret_count)
{
    const struct cuda_device *device = gpu->device;
    bool waited_for = false;
    uint32_t count = 0;

    for (const struct cuda_work *work = device->held; work; work = work->held_next) {
        for (uint32_t i = 0; i < work->work.wait_count; i++) {
            const struct device_wait *wait = &work->work.waits[i];
            struct cuda_timeline *timeline;
            if (wait->rank != gpu->rank || reached(device, wait))
                continue;
            waited_for = true;
            timeline = timeline_of(device, wait->word);
            if (!timeline || count == ASKS)
                continue;
            timeline->users++;
            asks[count++] = (struct ask){timeline, wait->value, CUDA_ERROR_NOT_READY};
        }
    }
    *ret_count = count;
    return waited_for;
}

/* With the lock held. True: something was reached. */
static bool take_answers(struct cuda_device *device, const struct ask *asks, uint32_t count)
{
    bool news = false;

    for (uint32_t i = 0; i < count; i++) {
        struct cuda_timeline *timeline = asks[i].timeline;
        timeline->users--;
        if (asks[i].answer != CUDA_SUCCESS || at_least(timeline->reached, asks[i].value))
            continue;
        timeline->reached = asks[i].value;
        news = true;
    }
    if (count > 0)
        pthread_cond_broadcast(&device->moved);
    return news;
}

/* An event that was recorded again tells of later work: late, and right. */
void cuda_tokens_look(struct cuda_gpu *gpu)
{
    struct cuda_device *device = gpu->device;
    struct ask asks[ASKS];
    uint32_t count = 0;
    bool waited_for, news;

    pthread_mutex_lock(&device->lock);
    waited_for = collect(gpu, asks, &count);
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < count; i++) {
        CUevent event = asks[i].timeline->events[asks[i].value % GW_TIMELINE_EVENTS];
        /* An error that is the GPU's is found by look_after; one that is not, of a dying client. */
        asks[i].answer = cu.cuEventQuery(event);
    }
    pthread_mutex_lock(&device->lock);
    news = take_answers(device, asks, count);
    cuda_tokens_retry(device);
    gpu->look_pause_ns = news ? LOOK_FIRST_NS : 2 * gpu->look_pause_ns;
    if (gpu->look_pause_ns > LOOK_LAST_NS)
        gpu->look_pause_ns = LOOK_LAST_NS;
    gpu->look_ns = waited_for ? cuda_now_ns() + gpu->look_pause_ns : 0;
    pthread_mutex_unlock(&device->lock);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

/* Unlinks it, and waits until nobody asks. With the lock held, which is let go while waiting. NULL:
 * the device is broken, and somebody may ask for ever. */
static struct cuda_timeline *take_out(struct cuda_device *device, struct cuda_timeline **at)
{
    struct cuda_timeline *timeline = *at;

    *at = timeline->next;
    while (timeline->users > 0 && !device->broken)
        pthread_cond_wait(&device->moved, &device->lock);
    return timeline->users > 0 ? NULL : timeline;
}

static void close_events(struct cuda_device *device, struct cuda_timeline *timeline)
{
    if (timeline && !cuda_is_broken(device)) {
        (void)cu.cuCtxSetCurrent(device->gpus[timeline->rank].context);
        for (uint32_t i = 0; i < GW_TIMELINE_EVENTS; i++)
            if (timeline->events[i])
                (void)cu.cuEventDestroy(timeline->events[i]);
    }
    free(timeline);
}

static int open_events(struct cuda_gpu *gpu, const uint8_t *handles, struct cuda_timeline *timeline,
                       char text[GW_TEXT_MAX + 1])
{
    CUresult result = cu.cuCtxSetCurrent(gpu->context);
    char why[256];

    for (uint32_t i = 0; i < GW_TIMELINE_EVENTS && result == CUDA_SUCCESS; i++) {
        CUipcEventHandle handle;
        _Static_assert(sizeof(handle) == GW_IPC_HANDLE_BYTES, "a handle on the wire");
        memcpy(&handle, handles + i * sizeof(handle), sizeof(handle));
        result = cu.cuIpcOpenEventHandle(&timeline->events[i], handle);
    }
    if (result == CUDA_SUCCESS)
        return 0;
    cuda_error_text((int)result, why, sizeof(why));
    snprintf(text, GW_TEXT_MAX + 1,
             "GPU %d has no 64-bit stream memory operations, and events of rank %u cannot be "
             "opened instead: cuIpcOpenEventHandle: %s; do both processes see one /dev/shm and one "
             "IPC namespace (containers: --ipc=host)?",
             gpu->ordinal, gpu->rank, why);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? GW_E_NOMEM : GW_E_UNIMPLEMENTED;
}

static int add(struct cuda_gpu *gpu, const _Atomic uint64_t *word, const uint8_t *handles,
               char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *device = gpu->device;
    struct cuda_timeline *timeline = calloc(1, sizeof(*timeline));
    int r;

    if (!timeline) {
        snprintf(text, GW_TEXT_MAX + 1, "no memory for events of rank %u", gpu->rank);
        return GW_E_NOMEM;
    }
    timeline->word = word;
    timeline->rank = gpu->rank;
    r = open_events(gpu, handles, timeline, text);
    if (r < 0) {
        close_events(device, timeline);
        return r;
    }
    pthread_mutex_lock(&device->lock);
    timeline->next = device->timelines;
    device->timelines = timeline;
    pthread_mutex_unlock(&device->lock);
    return 0;
}

int cuda_timeline_events(struct device *device, uint32_t rank, const _Atomic uint64_t *word,
                         const uint8_t *handles, char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_timeline **at = &of->timelines, *old = NULL;

    text[0] = 0;
    if (cuda_is_broken(of)) { /* they stay open until this process ends */
        snprintf(text, GW_TEXT_MAX + 1, "the GPU of rank %u is broken", rank);
        return GW_E_DEVICE;
    }
    if (of->way != &cuda_events || !of->gpus[rank].placed) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "rank %u records events for streams of the engine that wait for words: both see "
                 "another GPU or driver",
                 rank);
        return GW_E_STATE;
    }
    pthread_mutex_lock(&of->lock);
    while (*at && (*at)->word != word)
        at = &(*at)->next;
    if (*at && !handles)
        old = take_out(of, at);
    else if (*at || !handles)
        snprintf(text, GW_TEXT_MAX + 1, "the timeline has %s", handles ? "its events" : "no event");
    pthread_mutex_unlock(&of->lock);
    if (text[0])
        return GW_E_STATE;
    close_events(of, old);
    return handles ? add(&of->gpus[rank], word, handles, text) : 0;
}

void cuda_timelines_drop(struct cuda_device *device, const void *page, size_t bytes)
{
    struct cuda_timeline **at = &device->timelines;

    pthread_mutex_lock(&device->lock);
    while (*at) {
        uintptr_t word = (uintptr_t)(*at)->word, base = (uintptr_t)page;
        struct cuda_timeline *timeline;
        if (page && (word < base || word >= base + bytes)) {
            at = &(*at)->next;
            continue;
        }
        timeline = take_out(device, at);
        pthread_mutex_unlock(&device->lock);
        close_events(device, timeline);
        pthread_mutex_lock(&device->lock);
        at = &device->timelines;
    }
    pthread_mutex_unlock(&device->lock);
}
