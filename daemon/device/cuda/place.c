/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs of ranks: found by UUID, their primary contexts, streams, peers and clocks. Loop thread,
 * set-up path; owns what it makes in struct cuda_gpu.
 *
 * Streams are non-blocking (the trainer's default stream is another process's, NCCL's and ours are
 * not to be ordered by a default stream here either) and of the highest priority.
 */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/gpu_name.h"
#include "gradwire/errors.h"

#define SETTLE_NS UINT64_C(60000000000) /* what set-up work may take */
#define CLOCK_ROUNDS 16

static int refuse(char text[GW_TEXT_MAX + 1], const struct cuda_gpu *gpu, const char *call,
                  CUresult result)
{
    char why[256];

    cuda_error_text((int)result, why, sizeof(why));
    snprintf(text, GW_TEXT_MAX + 1, "GPU %d of rank %u cannot be used: %s: %s", gpu->ordinal,
             gpu->rank, call, why);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? GW_E_NOMEM : GW_E_NO_DEVICE;
}

int cuda_settle(struct cuda_gpu *gpu, CUstream stream)
{
    uint64_t until_ns = cuda_now_ns() + SETTLE_NS;
    const struct timespec nap = {0, 20000};
    CUresult result = cu.cuStreamQuery(stream);

    while (result == CUDA_ERROR_NOT_READY && cuda_now_ns() < until_ns) {
        nanosleep(&nap, NULL);
        result = cu.cuStreamQuery(stream);
    }
    if (result == CUDA_ERROR_NOT_READY) {
        cuda_fault((struct device *)gpu->device, "GPU %d (rank %u) did no set-up work within %u s",
                   gpu->ordinal, gpu->rank, (unsigned)(SETTLE_NS / 1000000000u));
        return GW_E_DEVICE;
    }
    return cuda_good(gpu, result, "cuStreamQuery", 0) ? 0 : GW_E_DEVICE;
}

/* ---- finding --------------------------------------------------------------------------------- */

static int find(struct cuda_gpu *gpu, const struct device_place *place, int count,
                char text[GW_TEXT_MAX + 1])
{
    char name[DEVICE_GPU_NAME_BYTES];

    for (int i = 0; i < count; i++) {
        CUuuid uuid;
        if (cu.cuDeviceGet(&gpu->handle, i) != CUDA_SUCCESS ||
            cu.cuDeviceGetUuid(&uuid, gpu->handle) != CUDA_SUCCESS)
            continue;
        if (memcmp(uuid.bytes, place->gpu, GW_GPU_BYTES) == 0) {
            gpu->ordinal = i;
            memcpy(gpu->uuid, place->gpu, sizeof(gpu->uuid));
            return 0;
        }
    }
    device_gpu_name(place->gpu, name);
    snprintf(text, GW_TEXT_MAX + 1,
             "%s of rank %u is not among the %d GPUs that the engine sees: start gradwired where "
             "all of them can be used (CUDA_VISIBLE_DEVICES, container)",
             name, gpu->rank, count);
    return GW_E_NO_DEVICE;
}

/* NCCL refuses two ranks on one GPU, and so do we. */
static int check_alone(const struct cuda_device *device, const struct cuda_gpu *gpu,
                       const struct device_place *place, char text[GW_TEXT_MAX + 1])
{
    char name[DEVICE_GPU_NAME_BYTES];

    for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX; rank++) {
        const struct cuda_gpu *other = &device->gpus[rank];
        if (!other->placed || memcmp(other->uuid, place->gpu, GW_GPU_BYTES) != 0)
            continue;
        device_gpu_name(place->gpu, name);
        snprintf(text, GW_TEXT_MAX + 1,
                 "%s is used by rank %u already: give rank %u another GPU, or put the job on the "
                 "host (no gw_device), where ranks can share one",
                 name, rank, gpu->rank);
        return GW_E_BUSY;
    }
    return 0;
}

/* The job's way is what its first GPU can do; a GPU that can do more, or less, has other peers. */
static int choose_way(const struct cuda_gpu *gpu, char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *device = gpu->device;
    const struct cuda_way *way = &cuda_events;
    int words = 0;

    /* Older than the attribute, a driver has none of it. */
    if (cu.cuDeviceGetAttribute(&words, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                gpu->handle) == CUDA_SUCCESS &&
        words)
        way = &cuda_words;
    if (device->placed && device->way != way) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "GPU %d of rank %u has %s 64-bit stream memory operations, unlike those of other "
                 "ranks: give a job GPUs of one kind",
                 gpu->ordinal, gpu->rank, words ? "" : "no");
        return GW_E_NO_DEVICE;
    }
    pthread_mutex_lock(&device->lock);
    device->way = way;
    pthread_mutex_unlock(&device->lock);
    return 0;
}

/* ---- one GPU --------------------------------------------------------------------------------- */

static int priority_of(void)
{
    int lowest = 0, highest = 0;

    return cu.cuCtxGetStreamPriorityRange(&lowest, &highest) == CUDA_SUCCESS ? highest : 0;
}

int cuda_track_new(struct cuda_gpu *gpu, uint32_t lane)
{
    struct cuda_track *track = &gpu->tracks[lane];
    CUresult result = cu.cuCtxSetCurrent(gpu->context);
    int r;

    if (result == CUDA_SUCCESS)
        result = cu.cuStreamCreateWithPriority(&track->work, CU_STREAM_NON_BLOCKING, priority_of());
    if (result == CUDA_SUCCESS)
        result =
            cu.cuStreamCreateWithPriority(&track->notify, CU_STREAM_NON_BLOCKING, priority_of());
    if (result == CUDA_SUCCESS)
        r = gpu->device->way->track_new(gpu, lane);
    else
        r = result == CUDA_ERROR_OUT_OF_MEMORY ? GW_E_NOMEM : GW_E_DEVICE;
    if (r < 0)
        cuda_track_free(gpu, lane);
    return r;
}

void cuda_track_free(struct cuda_gpu *gpu, uint32_t lane)
{
    struct cuda_track *track = &gpu->tracks[lane];

    if (track->work)
        (void)cu.cuStreamDestroy(track->work);
    if (track->notify)
        (void)cu.cuStreamDestroy(track->notify);
    gpu->device->way->track_free(gpu, lane);
    *track = (struct cuda_track){0};
}

static CUresult ask(struct cuda_gpu *gpu)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->ordinal}};
    int vmm = 0;
    CUresult result = cu.cuDeviceGetAttribute(
        &vmm, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, gpu->handle);

    if (result == CUDA_SUCCESS && !vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        result = cu.cuMemGetAllocationGranularity(&gpu->granularity, &prop,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    return result;
}

/* Both ways with every GPU of the job so far: cuda_copy_apart is for what one does not reach. */
static CUresult meet_peers(struct cuda_gpu *gpu)
{
    struct cuda_device *device = gpu->device;

    for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX; rank++) {
        struct cuda_gpu *pair[2] = {gpu, &device->gpus[rank]};
        if (!pair[1]->placed)
            continue;
        for (int i = 0; i < 2; i++) {
            CUresult result;
            int can = 0;
            if (cu.cuDeviceCanAccessPeer(&can, pair[i]->handle, pair[!i]->handle) != CUDA_SUCCESS ||
                !can)
                continue;
            result = cu.cuCtxSetCurrent(pair[i]->context);
            if (result == CUDA_SUCCESS)
                result = cu.cuCtxEnablePeerAccess(pair[!i]->context, 0);
            /* A GPU has so many peers and no more: the rest it does not reach. */
            if (result == CUDA_ERROR_TOO_MANY_PEERS)
                continue;
            if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
                return result;
            pair[i]->reached |= UINT64_C(1) << pair[!i]->rank;
        }
    }
    return cu.cuCtxSetCurrent(gpu->context);
}

/* The shortest of several round trips says best what the GPU's clock was at which of our times. */
static int measure_clock(struct cuda_gpu *gpu)
{
    uint64_t *stamp = &gpu->device->shared->clock[gpu->rank], best = UINT64_MAX;

    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        uint64_t before_ns, after_ns, at;
        __atomic_store_n(stamp, 0, __ATOMIC_RELAXED);
        before_ns = cuda_now_ns();
        if (!cuda_good(gpu,
                       (CUresult)cuda_launch_stamp(&(struct gw_k_stamp){stamp, 0}, 0, gpu->setup),
                       "gw_k_stamp", 0))
            return GW_E_DEVICE;
        while (cu.cuStreamQuery(gpu->setup) == CUDA_ERROR_NOT_READY &&
               cuda_now_ns() - before_ns < SETTLE_NS)
            ;
        after_ns = cuda_now_ns();
        if (cuda_settle(gpu, gpu->setup) < 0)
            return GW_E_DEVICE;
        at = __atomic_load_n(stamp, __ATOMIC_RELAXED);
        if (after_ns - before_ns < best) {
            best = after_ns - before_ns;
            gpu->clock_ns = (int64_t)(before_ns + best / 2 - at);
        }
    }
    return 0;
}

/* ---- the job's ------------------------------------------------------------------------------- */

/* With the first GPU. */
static CUresult shared_new(struct cuda_device *device)
{
    const unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    size_t stamps = CUDA_STAMP_SLOTS * sizeof(device->stamps[0]);
    void *shared = NULL, *slots = NULL;
    CUresult result;

    if (device->shared)
        return CUDA_SUCCESS;
    result = cu.cuMemHostAlloc(&shared, sizeof(*device->shared), flags);
    if (result == CUDA_SUCCESS)
        result = cu.cuMemHostAlloc(&slots, stamps, flags);
    if (result != CUDA_SUCCESS) {
        if (shared)
            (void)cu.cuMemFreeHost(shared);
        return result;
    }
    memset(slots, 0, stamps);
    device->shared = memset(shared, 0, sizeof(*device->shared));
    device->stamps = slots;
    return CUDA_SUCCESS;
}

/* The first GPU does not come about: nobody else has a use for what is the job's, and no context to
 * free it in. */
static void shared_free(struct cuda_gpu *gpu)
{
    struct cuda_device *device = gpu->device;

    (void)cu.cuCtxSetCurrent(gpu->context);
    cuda_pages_unregister(device);
    if (device->shared) {
        (void)cu.cuMemFreeHost(device->stamps);
        (void)cu.cuMemFreeHost(device->shared);
    }
    device->stamps = NULL;
    device->shared = NULL;
}

static int make(struct cuda_gpu *gpu, char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *device = gpu->device;
    const char *call = "cuDevicePrimaryCtxRetain";
    CUresult result = cu.cuDevicePrimaryCtxRetain(&gpu->context, gpu->handle);
    int r = 0;

    if (result == CUDA_SUCCESS) {
        call =
            "cudaSetDevice"; /* the runtime's view of this thread, and its first look at the GPU */
        result = (CUresult)cudaSetDevice(gpu->ordinal);
    }
    if (result == CUDA_SUCCESS)
        result = cu.cuCtxSetCurrent(gpu->context);
    if (result == CUDA_SUCCESS) {
        call = "asking for stream and memory features";
        result = ask(gpu);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuMemHostAlloc";
        result = shared_new(device);
    }
    if (result == CUDA_SUCCESS) {
        call = "cuStreamCreateWithPriority";
        result = cu.cuStreamCreateWithPriority(&gpu->setup, CU_STREAM_NON_BLOCKING, 0);
    }
    if (result == CUDA_SUCCESS)
        result = cu.cuStreamCreateWithPriority(&gpu->later, CU_STREAM_NON_BLOCKING, priority_of());
    for (uint32_t i = 0; result == CUDA_SUCCESS && r == 0 && i < device->ledger.lane_count; i++)
        r = cuda_track_new(gpu, i);
    if (result == CUDA_SUCCESS) {
        call = "loading kernels";
        result = (CUresult)cuda_load_kernels();
    }
    if (result != CUDA_SUCCESS)
        return refuse(text, gpu, call, result);
    return r;
}

/* With the rest of the job. */
static int join(struct cuda_gpu *gpu, char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *device = gpu->device;
    CUresult result;
    int r = cuda_pages_register(gpu);

    if (r == 0)
        r = measure_clock(gpu);
    if (r < 0)
        return r;
    result = meet_peers(gpu);
    if (result != CUDA_SUCCESS)
        return refuse(text, gpu, "cuCtxEnablePeerAccess", result);
    r = cuda_blocks_open_to(device, gpu);
    return r < 0 ? r : cuda_issuer_start(gpu);
}

int cuda_place(struct device *device, uint32_t rank, const struct device_place *place,
               char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_gpu *gpu = &of->gpus[rank];
    int r;

    text[0] = 0;
    if (gpu->placed) {
        if (memcmp(gpu->uuid, place->gpu, GW_GPU_BYTES) == 0)
            return 0;
        snprintf(text, GW_TEXT_MAX + 1,
                 "rank %u has its memory on another GPU: join with the GPU that it had before",
                 rank);
        return GW_E_MISMATCH;
    }
    r = cuda_driver_open(text);
    if (r < 0)
        return r;
    *gpu = (struct cuda_gpu){
        .device = of, .rank = rank, .reached = UINT64_C(1) << rank, .ordinal = -1};
    r = find(gpu, place, r, text);
    if (r == 0)
        r = check_alone(of, gpu, place, text);
    if (r == 0)
        r = choose_way(gpu, text);
    if (r == 0)
        r = make(gpu, text);
    if (r == 0)
        r = join(gpu, text);
    if (r < 0) {
        if (!text[0])
            snprintf(text, GW_TEXT_MAX + 1, "GPU %d of rank %u cannot be used%s%.400s",
                     gpu->ordinal, rank, of->fault[0] ? ": " : "", of->fault);
        if (cuda_is_broken(of))
            return r;
        if (gpu->context && !of->placed)
            shared_free(gpu);
        cuda_unplace(gpu);
        return r;
    }
    pthread_mutex_lock(&of->lock);
    gpu->placed = true;
    of->placed |= UINT64_C(1) << rank;
    pthread_mutex_unlock(&of->lock);
    if (of->way == &cuda_events)
        snprintf(text, GW_TEXT_MAX + 1,
                 "GPU %d has no 64-bit stream memory operations: streams are ordered by events, "
                 "and hosts wait where streams cannot, which is slower",
                 gpu->ordinal);
    return 0;
}

void cuda_unplace(struct cuda_gpu *gpu)
{
    struct cuda_device *device = gpu->device;

    if (!gpu->context) {
        memset(gpu->uuid, 0, sizeof(gpu->uuid));
        return;
    }
    (void)cu.cuCtxSetCurrent(gpu->context);
    for (uint32_t i = 0; i < device->ledger.lane_count; i++)
        cuda_track_free(gpu, i);
    for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX; rank++)
        device->gpus[rank].reached &= ~(UINT64_C(1) << gpu->rank);
    if (gpu->setup)
        (void)cu.cuStreamDestroy(gpu->setup);
    if (gpu->later)
        (void)cu.cuStreamDestroy(gpu->later);
    (void)cu.cuDevicePrimaryCtxRelease(gpu->handle);
    gpu->context = NULL;
    gpu->setup = gpu->later = NULL;
    gpu->placed = false;
}
