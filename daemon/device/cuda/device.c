/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda device's table, its life, completions, aborts and faults. Loop thread, but for what it
 * shares under its lock, and cuda_fault. Owns everything in struct cuda_device.
 *
 * After a fault no CUDA call is made for works any more. What GPUs still hold then is left to the
 * end of the process: records too, for a host function may still come.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/cuda/device_cuda.h"
#include "daemon/device/cuda/plant.h"
#include "gradwire/errors.h"

#define DRAIN_NS UINT64_C(30000000000) /* after that the GPUs do not come to rest by themselves */
#define DRAIN_STEP_NS 10000000u

uint64_t cuda_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t cuda_aborted(const struct cuda_device *device)
{
    return device->shared ? __atomic_load_n(&device->shared->aborted, __ATOMIC_ACQUIRE) : 0;
}

/* ---- faults ---------------------------------------------------------------------------------- */

void cuda_wake_loop(struct cuda_device *device)
{
    if (!device->awake) {
        device->awake = true;
        device->config.wake(device->config.user);
    }
}

bool cuda_is_broken(struct cuda_device *device)
{
    bool broken;

    pthread_mutex_lock(&device->lock);
    broken = device->broken;
    pthread_mutex_unlock(&device->lock);
    return broken;
}

/* With the lock held. */
static void wake_issuers(struct cuda_device *device)
{
    for (uint64_t left = device->placed; left; left &= left - 1)
        pthread_cond_signal(&device->gpus[__builtin_ctzll(left)].wake);
}

void cuda_fault(struct device *device, const char *format, ...)
{
    struct cuda_device *of = cuda_of(device);
    va_list arguments;

    pthread_mutex_lock(&of->lock);
    if (!of->fault[0]) {
        va_start(arguments, format);
        vsnprintf(of->fault, sizeof(of->fault), format, arguments);
        va_end(arguments);
        of->broken = true;
        if (of->shared)
            __atomic_store_n(&of->shared->aborted, UINT64_MAX, __ATOMIC_SEQ_CST);
        wake_issuers(of);
        pthread_cond_broadcast(&of->quiet);
        pthread_cond_broadcast(&of->moved);
        cuda_wake_loop(of);
    }
    pthread_mutex_unlock(&of->lock);
}

bool cuda_good(struct cuda_gpu *gpu, CUresult result, const char *call, uint64_t op)
{
    char why[256], what[48] = "";

    if (result == CUDA_SUCCESS || planted("fault_swallowed"))
        return true;
    cuda_error_text((int)result, why, sizeof(why));
    if (op)
        snprintf(what, sizeof(what), ", op %llu", (unsigned long long)op);
    cuda_fault((struct device *)gpu->device, "GPU %d (rank %u%s): %s: %s", gpu->ordinal, gpu->rank,
               what, call, why);
    return false;
}

static bool take_fault(struct device *device, char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *of = cuda_of(device);
    bool found;

    pthread_mutex_lock(&of->lock);
    found = of->fault[0] && !of->fault_told;
    if (found) {
        memcpy(text, of->fault, sizeof(of->fault));
        of->fault_told = true;
    }
    pthread_mutex_unlock(&of->lock);
    return found;
}

/* ---- aborts ---------------------------------------------------------------------------------- */

/* With the lock held. What the word was is kept: a client that stays goes on from there. */
static void raise_word(struct cuda_device *device, _Atomic uint64_t *word)
{
    struct cuda_raised *raised = device->raised;
    uint64_t before = atomic_exchange(word, GW_TIMELINE_END);

    if (before == GW_TIMELINE_END)
        return;
    while (raised && raised->word != word)
        raised = raised->next;
    if (!raised) {
        raised = malloc(sizeof(*raised));
        if (!raised)
            return;
        raised->word = word;
        raised->next = device->raised;
        device->raised = raised;
    }
    raised->before = before;
}

void cuda_raise_words(struct cuda_device *device)
{
    uint64_t aborted = cuda_aborted(device);

    if (!aborted)
        return;
    for (uint32_t lane = 0; lane < device->ledger.lane_count; lane++) {
        struct cuda_work *work = device->ledger.lanes[lane].head;
        for (; work; work = work->next) {
            for (uint32_t i = 0; i < work->work.wait_count; i++) {
                const struct device_wait *wait = &work->work.waits[i];
                if (aborted >> wait->rank & 1)
                    raise_word(device, (_Atomic uint64_t *)(uintptr_t)wait->word);
            }
        }
    }
}

static void do_abort(struct device *device, const struct ranks *ranks)
{
    struct cuda_device *of = cuda_of(device);

    if (planted("abort_ignored"))
        return;
    pthread_mutex_lock(&of->lock);
    if (of->shared)
        __atomic_fetch_or(&of->shared->aborted, ranks ? ranks->word[0] : UINT64_MAX,
                          __ATOMIC_SEQ_CST);
    if (of->way)
        of->way->retry(of);
    wake_issuers(of);
    pthread_mutex_unlock(&of->lock);
}

/* With the lock held. */
static bool issuers_busy(const struct cuda_device *device)
{
    for (uint64_t left = device->placed; left; left &= left - 1)
        if (device->gpus[__builtin_ctzll(left)].busy)
            return true;
    return false;
}

/* With the lock held, which is let go while waiting. */
static void wait_a_little(struct cuda_device *device)
{
    uint64_t until_ns = cuda_now_ns() + DRAIN_STEP_NS;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};

    (void)pthread_cond_timedwait(&device->quiet, &device->lock, &until);
}

/* With the lock held, which is let go meanwhile. A fabric's run may be slow to notice. */
static void give_up(struct cuda_device *device)
{
    uint64_t end_ns = cuda_now_ns() + DRAIN_NS;

    while (issuers_busy(device) && cuda_now_ns() < end_ns)
        wait_a_little(device);
    (void)cuda_ledger_give_up(&device->ledger, cuda_now_ns());
    cuda_wake_loop(device);
}

static void drain(struct device *device)
{
    struct cuda_device *of = cuda_of(device);
    uint64_t end_ns = cuda_now_ns() + DRAIN_NS;
    bool stuck;

    pthread_mutex_lock(&of->lock);
    while (of->ledger.unfinished > 0 && !of->broken && cuda_now_ns() < end_ns) {
        of->way->retry(of);
        wait_a_little(of);
    }
    stuck = of->ledger.unfinished > 0 && !of->broken;
    pthread_mutex_unlock(&of->lock);
    if (stuck)
        cuda_fault(device, "the GPUs did not come to rest within %u s of an abort",
                   (unsigned)(DRAIN_NS / 1000000000u));
    pthread_mutex_lock(&of->lock);
    if (of->broken)
        give_up(of);
    pthread_mutex_unlock(&of->lock);
}

static void resume(struct device *device)
{
    struct cuda_device *of = cuda_of(device);

    pthread_mutex_lock(&of->lock);
    while (of->raised) {
        struct cuda_raised *raised = of->raised;
        uint64_t end = GW_TIMELINE_END;
        (void)atomic_compare_exchange_strong(raised->word, &end, raised->before);
        of->raised = raised->next;
        free(raised);
    }
    if (of->shared && !of->broken)
        __atomic_store_n(&of->shared->aborted, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&of->lock);
}

/* ---- completions ----------------------------------------------------------------------------- */

static void release_calls(struct cuda_item *item)
{
    while (item) {
        struct cuda_item *next = item->next;
        if (item->release)
            item->release(item->arg);
        free(item);
        item = next;
    }
}

static bool take_done(struct device *device, struct device_done *ret_done)
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_work *work = NULL;
    struct cuda_item *retired;

    do {
        pthread_mutex_lock(&of->lock);
        retired = of->retired;
        of->retired = NULL;
        work = cuda_ledger_take(&of->ledger);
        if (!work && !retired)
            of->awake = false;
        pthread_mutex_unlock(&of->lock);
        release_calls(retired);
    } while (!work && retired);
    if (!work)
        return false;
    *ret_done = work->done;
    if (work->work.release)
        work->work.release(work->work.arg);
    cuda_work_free(work);
    return true;
}

static void kick(struct device *device)
{
    struct cuda_device *of = cuda_of(device);

    if (!of->way)
        return;
    pthread_mutex_lock(&of->lock);
    of->way->retry(of);
    pthread_mutex_unlock(&of->lock);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int device_new(const struct device_config *config, struct device **ret_device)
{
    struct cuda_device *device = calloc(1, sizeof(*device));
    pthread_condattr_t attributes;

    if (!device)
        return GW_E_NOMEM;
    device->config = *config;
    pthread_mutex_init(&device->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&device->quiet, &attributes);
    pthread_cond_init(&device->moved, &attributes);
    pthread_condattr_destroy(&attributes);
    for (uint32_t slot = CUDA_STAMP_SLOTS - 1; slot > 0; slot--)
        device->free_slots[device->free_slot_count++] = slot;
    *ret_device = (struct device *)device;
    return 0;
}

static void free_all(struct cuda_device *device)
{
    cuda_timelines_drop(device, NULL, 0);
    while (device->blocks)
        cuda_memory_free((struct device *)device, &device->blocks->memory);
    while (device->pages)
        cuda_page_remove((struct device *)device, device->pages->base);
    if (device->shared) {
        (void)cu.cuCtxSetCurrent(device->gpus[__builtin_ctzll(device->placed)].context);
        (void)cu.cuMemFreeHost(device->stamps);
        (void)cu.cuMemFreeHost(device->shared);
    }
    for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX; rank++)
        cuda_unplace(&device->gpus[rank]);
    pthread_cond_destroy(&device->quiet);
    pthread_cond_destroy(&device->moved);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

/* Broken devices, which stay until the process ends. */
static struct cuda_device *left;

static struct device *device_free(struct device *device)
{
    struct cuda_device *of = cuda_of(device);
    struct device_done done;

    if (!of)
        return NULL;
    do_abort(device, DEVICE_ALL_RANKS);
    drain(device);
    pthread_mutex_lock(&of->lock);
    of->stopping = true;
    wake_issuers(of);
    pthread_mutex_unlock(&of->lock);
    /* An issuing thread may never come back from a call on a broken device. */
    if (cuda_is_broken(of)) {
        while (take_done(device, &done))
            ;
        of->left = left;
        left = of;
        return NULL;
    }
    for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX; rank++)
        cuda_issuer_stop(&of->gpus[rank]);
    while (take_done(device, &done))
        ;
    resume(device);
    free_all(of);
    return NULL;
}

/* ---- what fabrics ask (native.h) ------------------------------------------------------------- */

bool cuda_broken(const struct device *device)
{
    struct cuda_device *of = cuda_of(device);
    bool broken;

    pthread_mutex_lock(&of->lock);
    broken = of->broken || of->stopping;
    pthread_mutex_unlock(&of->lock);
    return broken;
}

int cuda_gpu(const struct device *device, uint32_t rank)
{
    const struct cuda_device *of = cuda_of(device);

    return rank < GW_GPU_RANKS_MAX && of->gpus[rank].placed ? of->gpus[rank].ordinal : -1;
}

bool cuda_peers(const struct device *device, uint32_t rank, uint32_t other)
{
    const struct cuda_device *of = cuda_of(device);

    return rank < GW_GPU_RANKS_MAX && other < GW_GPU_RANKS_MAX &&
           of->gpus[other].reached >> rank & 1;
}

static const char *ordering(const struct device *device)
{
    const struct cuda_device *of = cuda_of(device);

    return of->way ? of->way->name : "";
}

const struct device_ops device_cuda = {
    .name = "cuda",
    .device_new = device_new,
    .device_free = device_free,
    .place = cuda_place,
    .ordering = ordering,
    .page_add = cuda_page_add,
    .page_remove = cuda_page_remove,
    .timeline_events = cuda_timeline_events,
    .memory_new = cuda_memory_new,
    .memory_reserve = cuda_memory_reserve,
    .memory_import = cuda_memory_import,
    .memory_free = cuda_memory_free,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .stream_new = cuda_stream_new,
    .enqueue = cuda_enqueue,
    .signal_after = cuda_signal_after,
    .take_fault = take_fault,
    .kick = kick,
    .take_done = take_done,
    .abort = do_abort,
    .drain = drain,
    .resume = resume,
};
