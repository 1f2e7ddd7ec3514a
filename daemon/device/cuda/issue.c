/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The issuing thread of a GPU: takes parts of works in the order in which they came and enqueues
 * them on the lanes' streams. It never waits for a stream. What marks the end of a part, and how a
 * stream waits for that, is the way's (way.h).
 *
 *   work stream    wait tokens, marks of other works | begin | hold | run | end | mark op
 *   notify stream  wait marks of all parts | finish (slots) | host function
 *   later stream   the same for signals that were asked for afterwards
 *
 * So a work stream waits for no host, and a slot rises only when all GPUs have finished.
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/cuda/plant.h"
#include "gradwire/errors.h"

static bool stopped(struct cuda_device *device)
{
    bool stop;

    pthread_mutex_lock(&device->lock);
    stop = device->stopping || device->broken;
    pthread_mutex_unlock(&device->lock);
    return stop;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static bool failed(const struct cuda_device *device, const struct cuda_work *work)
{
    return (cuda_aborted(device) & work->work.ranks.word[0]) != 0;
}

static bool begin(struct cuda_gpu *gpu, CUstream stream, const struct cuda_work *work,
                  struct gw_k_stamps *stamps)
{
    struct cuda_shared *shared = gpu->device->shared;
    const struct gw_k_begin arg = {.stamps = stamps,
                                   .lane = &shared->runs[work->lane][gpu->rank],
                                   .ready_ns = work->work.ready_ns,
                                   .clock_ns = gpu->clock_ns,
                                   .chained = work->work.chained};
    const struct gw_k_hold hold = {.link_free_ns = &shared->link_free_ns[gpu->rank],
                                   .aborted = &shared->aborted,
                                   .ranks = work->work.ranks.word[0],
                                   .hold_ns = work->work.hold_ns,
                                   .clock_ns = gpu->clock_ns};

    if (!cuda_good(gpu, (CUresult)cuda_launch_begin(&arg, 0, stream), "gw_k_begin", work->work.op))
        return false;
    return work->work.hold_ns == 0 ||
           cuda_good(gpu, (CUresult)cuda_launch_hold(&hold, 0, stream), "gw_k_hold", work->work.op);
}

static bool run(struct cuda_gpu *gpu, CUstream stream, const struct cuda_work *work,
                struct gw_k_stamps *stamps)
{
    struct cuda_native native = {.device = (struct device *)gpu->device,
                                 .rank = gpu->rank,
                                 .gpu = gpu->ordinal,
                                 .stream = stream};
    const struct gw_k_end arg = {.stamps = stamps,
                                 .lane = &gpu->device->shared->runs[work->lane][gpu->rank],
                                 .clock_ns = gpu->clock_ns};

    if (work->work.run && work->work.ranks.word[0] >> gpu->rank & 1)
        work->work.run(work->work.arg, &native);
    if (planted("host_sync"))
        (void)cudaStreamSynchronize((cudaStream_t)stream);
    return cuda_good(gpu, (CUresult)cuda_launch_end(&arg, 0, stream), "gw_k_end", work->work.op);
}

/* False: the device is broken, or stops. */
static bool issue_work(struct cuda_gpu *gpu, const struct cuda_item *item)
{
    const struct cuda_work *work = item->work;
    const struct cuda_way *way = gpu->device->way;
    CUstream stream = gpu->tracks[work->lane].work;
    struct gw_k_stamps *stamps = &gpu->device->stamps[work->slot][(size_t)(item - work->items)];

    for (uint32_t i = 0; i < work->after_count && !planted("lane_wait_missing"); i++) {
        const struct cuda_after *after = &work->after[i];
        uint64_t ranks = after->ranks;
        if (after->lane == work->lane)
            ranks &= ~(UINT64_C(1) << gpu->rank); /* in order by itself */
        if (!way->wait(gpu, stream, after->lane, ranks, after->op, work->work.op))
            return false;
    }
    if (failed(gpu->device, work))
        return true;
    if (!way->wait_tokens(gpu, stream, work))
        return false;
    if (!begin(gpu, stream, work, stamps))
        return false;
    return run(gpu, stream, work, stamps);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static struct gw_k_signal resolve(struct cuda_device *device, const struct device_signal *signal)
{
    CUdeviceptr mirror = signal->mirror ? cuda_alias_now(device, signal->mirror) : 0;

    return (struct gw_k_signal){
        .slot = (struct gw_k_slot *)(uintptr_t)cuda_alias_now(device, signal->slot),
        .value = signal->value,
        .offset = signal->offset,
        .mirror = (uint64_t *)(uintptr_t)mirror};
}

static bool finish(struct cuda_gpu *gpu, CUstream stream, const struct cuda_work *work,
                   struct gw_k_finish *arg)
{
    uint32_t parts = (uint32_t)__builtin_popcountll(work->parts);

    arg->stamps = gpu->device->stamps[work->slot];
    arg->aborted = &gpu->device->shared->aborted;
    arg->ranks = work->work.ranks.word[0];
    arg->ready_ns = work->work.ready_ns;
    arg->clock_ns = gpu->clock_ns;
    arg->parts = parts;
    return cuda_good(gpu, (CUresult)cuda_launch_finish(arg, 0, stream), "gw_k_finish",
                     work->work.op);
}

/* As many launches as it takes; the first part's GPU says what the times of all are. */
static bool finish_part(struct cuda_gpu *gpu, CUstream stream, const struct cuda_item *item)
{
    const struct cuda_work *work = item->work;
    bool first = item == work->items;
    struct gw_k_finish arg = {0};
    uint32_t next = 0;

    if (first)
        arg.result = &gpu->device->stamps[work->slot][__builtin_popcountll(work->parts)];
    do {
        arg.signals = 0;
        for (; next < work->work.signal_count && arg.signals < GW_K_SIGNALS; next++) {
            const struct device_signal *signal = &work->work.signals[next];
            bool mine = signal->rank == gpu->rank || (first && !(work->parts >> signal->rank & 1));
            if (mine)
                arg.signal[arg.signals++] = resolve(gpu->device, signal);
        }
        if ((arg.signals || arg.result) && !finish(gpu, stream, work, &arg))
            return false;
        arg.result = NULL;
    } while (next < work->work.signal_count);
    return true;
}

static bool tell(struct cuda_gpu *gpu, CUstream stream, struct cuda_item *item)
{
    item->arg = gpu->device;
    return cuda_good(gpu, cu.cuLaunchHostFunc(stream, cuda_part_notified, item), "cuLaunchHostFunc",
                     item->work->work.op);
}

static bool issue_part(struct cuda_gpu *gpu, struct cuda_item *item)
{
    struct cuda_work *work = item->work;
    const struct cuda_way *way = gpu->device->way;
    CUstream notify = gpu->tracks[work->lane].notify;
    uint64_t op = work->work.op, parts = work->parts;

    if (planted("done_before_work") && !way->mark(gpu, work->lane, op))
        return false;
    if (planted("signal_of_one_gpu"))
        parts = UINT64_C(1) << gpu->rank;
    if (!issue_work(gpu, item) || !way->mark(gpu, work->lane, op))
        return false;
    if (!way->wait(gpu, notify, work->lane, parts, op, op))
        return false;
    if (!failed(gpu->device, work) && !finish_part(gpu, notify, item))
        return false;
    return tell(gpu, notify, item);
}

static bool issue_later(struct cuda_gpu *gpu, struct cuda_item *item)
{
    const struct cuda_work *work = item->work;
    struct gw_k_finish arg = {.signals = 1};

    if (!gpu->device->way->wait(gpu, gpu->later, work->lane, work->parts, work->work.op,
                                work->work.op))
        return false;
    arg.signal[0] = resolve(gpu->device, &item->later);
    if (!failed(gpu->device, work) && !finish(gpu, gpu->later, work, &arg))
        return false;
    return tell(gpu, gpu->later, item);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void retire(struct cuda_device *device, struct cuda_item *item)
{
    item->kind = CUDA_ITEM_RETIRED;
    pthread_mutex_lock(&device->lock);
    item->next = device->retired;
    device->retired = item;
    cuda_wake_loop(device);
    pthread_mutex_unlock(&device->lock);
}

static void issue(struct cuda_gpu *gpu, struct cuda_item *item)
{
    struct cuda_device *device = gpu->device;
    bool stop = stopped(device), good = false;

    if (item->kind == CUDA_ITEM_CALL) {
        if (!stop)
            item->call(item->arg, gpu->ordinal);
        retire(device, item);
        return;
    }
    item->arg = device;
    if (!stop && item->kind == CUDA_ITEM_PART)
        good = issue_part(gpu, item);
    else if (!stop)
        good = issue_later(gpu, item);
    if (!good)
        cuda_part_failed(item);
}

/* Errors that no call returns, tokens that a dying client lowered again. */
static void look_after(struct cuda_gpu *gpu)
{
    struct cuda_device *device = gpu->device;
    void (*idle)(void *arg, int gpu_ordinal);
    CUresult result;
    void *arg;

    pthread_mutex_lock(&device->lock);
    device->way->retry(device);
    idle = gpu->idle;
    arg = gpu->idle_arg;
    pthread_mutex_unlock(&device->lock);
    result = cu.cuStreamQuery(gpu->later);
    if (result != CUDA_ERROR_NOT_READY && !cuda_good(gpu, result, "cuStreamQuery", 0))
        return;
    if (idle)
        idle(arg, gpu->ordinal);
}

/* With the lock held. Until when a thread without items may sleep; 0: as long as there are none. */
static uint64_t sleep_until(const struct cuda_gpu *gpu)
{
    uint64_t until_ns = gpu->device->ledger.unfinished ? cuda_now_ns() + CUDA_TICK_NS : 0;

    return gpu->look_ns && (!until_ns || gpu->look_ns < until_ns) ? gpu->look_ns : until_ns;
}

/* With the lock held, which is let go while waiting. The next item, or NULL: time to look. */
static struct cuda_item *next_item(struct cuda_gpu *gpu)
{
    struct cuda_device *device = gpu->device;
    struct cuda_item *item;

    while (!gpu->head && !device->stopping) {
        uint64_t until_ns = sleep_until(gpu);
        const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                       .tv_nsec = (long)(until_ns % 1000000000u)};
        if (until_ns == 0)
            pthread_cond_wait(&gpu->wake, &device->lock);
        else if (pthread_cond_timedwait(&gpu->wake, &device->lock, &until) == ETIMEDOUT)
            return NULL;
    }
    item = gpu->head;
    if (item) {
        gpu->head = item->next;
        if (!gpu->head)
            gpu->tail = NULL;
    }
    return item;
}

static void *issuer_main(void *arg)
{
    struct cuda_gpu *gpu = (struct cuda_gpu *)arg;
    struct cuda_device *device = gpu->device;
    uint64_t looked_ns = cuda_now_ns();

    (void)cuda_good(gpu, (CUresult)cudaSetDevice(gpu->ordinal), "cudaSetDevice", 0);
    (void)cuda_good(gpu, cu.cuCtxSetCurrent(gpu->context), "cuCtxSetCurrent", 0);
    pthread_mutex_lock(&device->lock);
    while (gpu->head || !device->stopping) {
        struct cuda_item *item = next_item(gpu);
        bool going = !device->broken && !device->stopping;
        bool look =
            device->ledger.unfinished > 0 && going && cuda_now_ns() - looked_ns > CUDA_TICK_NS;
        bool ask = gpu->look_ns && going && cuda_now_ns() >= gpu->look_ns;
        gpu->busy = item || look || ask;
        pthread_mutex_unlock(&device->lock);
        if (ask)
            device->way->look(gpu);
        if (look) {
            look_after(gpu);
            looked_ns = cuda_now_ns();
        }
        if (item)
            issue(gpu, item);
        pthread_mutex_lock(&device->lock);
        gpu->busy = false;
        if (device->broken)
            pthread_cond_broadcast(&device->quiet);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

int cuda_issuer_start(struct cuda_gpu *gpu)
{
    pthread_condattr_t attributes;
    sigset_t all, before;
    int r;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&gpu->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    /* Signals are the loop thread's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&gpu->thread, NULL, issuer_main, gpu);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r != 0) {
        pthread_cond_destroy(&gpu->wake);
        return r == EAGAIN ? GW_E_LIMIT : GW_E_NOMEM;
    }
    gpu->running = true;
    return 0;
}

void cuda_issuer_stop(struct cuda_gpu *gpu)
{
    if (!gpu->running)
        return;
    pthread_mutex_lock(&gpu->device->lock);
    pthread_cond_signal(&gpu->wake);
    pthread_mutex_unlock(&gpu->device->lock);
    pthread_join(gpu->thread, NULL);
    pthread_cond_destroy(&gpu->wake);
    gpu->running = false;
}

void cuda_issuer_push(struct cuda_gpu *gpu, struct cuda_item *item)
{
    if (planted("order_swapped") && gpu->rank == 1 && gpu->head &&
        gpu->head->kind == CUDA_ITEM_PART && item->kind == CUDA_ITEM_PART) {
        item->next = gpu->head;
        gpu->head = item;
        return;
    }
    item->next = NULL;
    if (gpu->tail)
        gpu->tail->next = item;
    else
        gpu->head = item;
    gpu->tail = item;
    pthread_cond_signal(&gpu->wake);
}

int cuda_call(struct device *device, uint32_t rank, void (*call)(void *arg, int gpu), void *arg,
              void (*release)(void *arg))
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_item *item;

    if (rank >= GW_GPU_RANKS_MAX || !of->gpus[rank].placed)
        return GW_E_NO_DEVICE;
    item = calloc(1, sizeof(*item));
    if (!item)
        return GW_E_NOMEM;
    *item = (struct cuda_item){
        .kind = CUDA_ITEM_CALL, .rank = rank, .call = call, .arg = arg, .release = release};
    pthread_mutex_lock(&of->lock);
    cuda_issuer_push(&of->gpus[rank], item);
    pthread_mutex_unlock(&of->lock);
    return 0;
}

int cuda_idle(struct device *device, uint32_t rank, void (*idle)(void *arg, int gpu), void *arg)
{
    struct cuda_device *of = cuda_of(device);

    if (rank >= GW_GPU_RANKS_MAX || !of->gpus[rank].placed)
        return GW_E_NO_DEVICE;
    pthread_mutex_lock(&of->lock);
    of->gpus[rank].idle = idle;
    of->gpus[rank].idle_arg = arg;
    pthread_mutex_unlock(&of->lock);
    return 0;
}
