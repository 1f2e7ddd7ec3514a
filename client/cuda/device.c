/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of client/lib/device.h over the CUDA driver, and the calls that make and free a device.
 * Any thread. Holds the device's primary context, which is the one that the CUDA runtime works in;
 * makes it current for the duration of a call, and leaves the thread as it was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cuda/device.h"
#include "client/cuda/driver.h"
#include "gradwire/cuda.h"

static struct cuda_device *of(struct gw_device *device)
{
    return (struct cuda_device *)(void *)device;
}

static CUdeviceptr address_of(const void *base)
{
    return (CUdeviceptr)(uintptr_t)base;
}

CUresult cuda_enter(struct gw_device *device)
{
    return cu.cuCtxPushCurrent(of(device)->context);
}

void cuda_leave(void)
{
    CUcontext context;

    (void)cu.cuCtxPopCurrent(&context);
}

/* ---- bulk memory ----------------------------------------------------------------------------- */

/* A whole mapping or none: what was done is undone in the order of the driver's rules. */
static CUresult map_import(struct gw_device *device, CUmemGenericAllocationHandle handle,
                           size_t bytes, CUdeviceptr *ret_base)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = of(device)->gpu},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr base = 0;
    CUresult error;

    error = cu.cuMemAddressReserve(&base, bytes, 0, 0, 0);
    if (error != CUDA_SUCCESS)
        return error;
    error = cu.cuMemMap(base, bytes, 0, handle, 0);
    if (error == CUDA_SUCCESS) {
        error = cu.cuMemSetAccess(base, bytes, &access, 1);
        if (error != CUDA_SUCCESS)
            (void)cu.cuMemUnmap(base, bytes);
    }
    if (error != CUDA_SUCCESS)
        (void)cu.cuMemAddressFree(base, bytes);
    else
        *ret_base = base;
    return error;
}

/* The mapping keeps the memory; the handle is not needed any more. */
static int map(struct gw_device *device, int fd, uint64_t mapped_bytes, void **ret_base)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base = 0;
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (error == CUDA_SUCCESS) {
        error = map_import(device, handle, (size_t)mapped_bytes, &base);
        (void)cu.cuMemRelease(handle);
    }
    cuda_leave();
    if (error != CUDA_SUCCESS)
        return driver_error(error == CUDA_ERROR_OUT_OF_MEMORY ? GW_E_NOMEM : GW_E_DEVICE, error,
                            "memory of the service cannot be mapped on the GPU");
    *ret_base = (void *)(uintptr_t)base;
    return 0;
}

static void unmap(struct gw_device *device, void *base, uint64_t mapped_bytes)
{
    if (cuda_enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuMemUnmap(address_of(base), (size_t)mapped_bytes);
    (void)cu.cuMemAddressFree(address_of(base), (size_t)mapped_bytes);
    cuda_leave();
}

/* ---- pages ----------------------------------------------------------------------------------- */

static int page_add(struct gw_device *device, void *base, size_t bytes, uint64_t *ret_address)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CUdeviceptr address = 0;
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemHostRegister(base, (bytes + page - 1) / page * page,
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (error == CUDA_SUCCESS) {
        error = cu.cuMemHostGetDevicePointer(&address, base, 0);
        if (error != CUDA_SUCCESS)
            (void)cu.cuMemHostUnregister(base);
    }
    cuda_leave();
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error,
                            "a shared page cannot be registered with the GPU (is RLIMIT_MEMLOCK "
                            "too low?)");
    *ret_address = address;
    return 0;
}

static void page_remove(struct gw_device *device, void *base)
{
    if (cuda_enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuMemHostUnregister(base);
    cuda_leave();
}

static int host_new(struct gw_device *device, size_t bytes, void **ret_base)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemHostAlloc(ret_base, bytes, CU_MEMHOSTALLOC_PORTABLE);
    cuda_leave();
    return error == CUDA_SUCCESS ? 0 : driver_error(GW_E_NOMEM, error, "pinned host memory");
}

static void host_free(struct gw_device *device, void *base)
{
    if (cuda_enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuMemFreeHost(base);
    cuda_leave();
}

/* ---- streams --------------------------------------------------------------------------------- */

static int stream_check(struct gw_device *device, void *stream)
{
    (void)device;
    if (stream == (void *)CU_STREAM_PER_THREAD)
        return gw_private_error(GW_E_INVALID,
                                "the per-thread default stream is one per thread, and so no "
                                "stream of a job; give one of your own, or NULL");
    return 0;
}

static int stream_new(struct gw_device *device, void **ret_stream)
{
    CUstream stream = NULL;
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
    cuda_leave();
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "a stream cannot be made");
    *ret_stream = stream;
    return 0;
}

static void stream_free(struct gw_device *device, void *stream)
{
    if (cuda_enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuStreamDestroy(stream);
    cuda_leave();
}

static int stream_idle(struct gw_device *device, void *stream)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamQuery(stream);
    cuda_leave();
    if (error == CUDA_ERROR_NOT_READY)
        return GW_E_AGAIN;
    return error == CUDA_SUCCESS ? 0 : driver_error(GW_E_DEVICE, error, "a look at a stream");
}

/* Host memory is unknown to the driver, or registered. */
static bool on_device(struct gw_device *device, const void *base)
{
    CUmemorytype type = 0;
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return false;
    error = cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(base));
    cuda_leave();
    return error == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

static int copy(struct gw_device *device, void *stream, void *to, const void *from, size_t bytes)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream);
    cuda_leave();
    return error == CUDA_SUCCESS ? 0
                                 : driver_error(GW_E_DEVICE, error, "a copy in the job's stream");
}

/* ---- export ---------------------------------------------------------------------------------- */

/* Whose memory it is, before the question whether it can cross. */
static int check_memory(struct gw_device *device, CUdeviceptr address)
{
    CUmemorytype type = 0;
    int ordinal = -1;

    if (cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
            CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE)
        return gw_private_error(GW_E_INVALID, "the pointer is no device memory (cudaMalloc)");
    if (cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) ==
            CUDA_SUCCESS &&
        ordinal != of(device)->gpu)
        return gw_private_error(GW_E_INVALID, "the memory lies on another GPU than the job's");
    return 0;
}

/* A handle names a whole allocation. Memory of a pool or of expandable segments has none. */
static int export_current(struct gw_device *device, const void *base, size_t bytes,
                          struct gw_device_export *ret_export)
{
    CUipcMemHandle handle;
    CUdeviceptr address = address_of(base), start = 0;
    size_t whole = 0;
    CUresult error;
    int r = check_memory(device, address);

    if (r < 0)
        return r;
    error = cu.cuMemGetAddressRange(&start, &whole, address);
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_INVALID, error, "the pointer lies in no allocation");
    if (address - start > whole || bytes > whole - (address - start))
        return gw_private_error(GW_E_INVALID, "the memory ends before the buffer would");
    error = cu.cuIpcGetMemHandle(&handle, start);
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_UNIMPLEMENTED, error, "the memory cannot be exported");
    _Static_assert(sizeof(handle) == GW_IPC_HANDLE_BYTES, "a handle on the wire");
    memcpy(ret_export->handle, &handle, sizeof(handle));
    ret_export->allocation_bytes = whole;
    ret_export->offset = address - start;
    return 0;
}

static int export_memory(struct gw_device *device, const void *base, size_t bytes,
                         struct gw_device_export *ret_export)
{
    CUresult error = cuda_enter(device);
    int r;

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    r = export_current(device, base, bytes, ret_export);
    cuda_leave();
    return r;
}

/* All but what differs between the two ways (device.h). */
#define COMMON                                                                                     \
    .version = GW_DEVICE_TABLE, .kind = GW_DEVICE_CUDA, .map = map, .unmap = unmap,                \
    .page_add = page_add, .page_remove = page_remove, .stream_check = stream_check,                \
    .stream_new = stream_new, .stream_free = stream_free, .stream_idle = stream_idle,              \
    .on_device = on_device, .copy = copy, .host_new = host_new, .host_free = host_free,            \
    .export_memory = export_memory

static const struct gw_device_ops words = {
    COMMON,
    .stream_wait = cuda_stream_wait,
    .stream_raise = cuda_stream_raise,
};

static const struct gw_device_ops events = {
    COMMON,
    .events_new = cuda_events_new,
    .events_free = cuda_events_free,
    .events_record = cuda_events_record,
    .events_wait = cuda_events_wait,
    .events_passed = cuda_events_passed,
};

/* ---- life ------------------------------------------------------------------------------------ */

static bool has(CUdevice gpu, CUdevice_attribute attribute)
{
    int value = 0;

    return cu.cuDeviceGetAttribute(&value, attribute, gpu) == CUDA_SUCCESS && value;
}

/* Words are better: only they let a stream wait for what no process has enqueued yet. */
static const struct gw_device_ops *choose_ops(CUdevice gpu)
{
    return has(gpu, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) ? &words : &events;
}

/* What a job cannot do without, and the driver's name for it. */
static int check_gpu(CUdevice gpu, const struct gw_device_ops *ops)
{
    static const struct {
        CUdevice_attribute attribute;
        const char *what;
    } needs[] = {
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing"},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "registration of host memory"},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
         "memory shared by descriptors"},
    };
    char text[GW_TEXT_MAX + 1];

    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
        if (has(gpu, needs[i].attribute))
            continue;
        snprintf(text, sizeof(text), "the GPU or its driver lacks %s", needs[i].what);
        return gw_private_error(GW_E_NO_DEVICE, text);
    }
    if (ops == &events && !has(gpu, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED))
        return gw_private_error(GW_E_NO_DEVICE,
                                "the GPU or its driver lacks 64-bit stream memory operations, and "
                                "interprocess events that could stand in for them");
    return 0;
}

static int find_gpu(int ordinal, CUdevice *ret_gpu)
{
    char text[GW_TEXT_MAX + 1];
    CUresult error;
    int count = 0;

    error = cu.cuDeviceGetCount(&count);
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_NO_DEVICE, error, "the GPUs cannot be counted");
    if (ordinal < 0 || ordinal >= count) {
        snprintf(text, sizeof(text),
                 "there is no GPU %d; this process sees %d (CUDA_VISIBLE_DEVICES chooses)", ordinal,
                 count);
        return gw_private_error(GW_E_NO_DEVICE, text);
    }
    error = cu.cuDeviceGet(ret_gpu, ordinal);
    return error == CUDA_SUCCESS ? 0 : driver_error(GW_E_NO_DEVICE, error, "cuDeviceGet");
}

int gw_cuda_device_new(int ordinal, struct gw_device **ret_device)
{
    struct cuda_device *device;
    CUresult error;
    CUuuid uuid;
    CUdevice gpu = 0;
    int r = ret_device ? driver_open() : gw_private_error(GW_E_INVALID, "ret_device is NULL");

    if (r == 0)
        r = find_gpu(ordinal, &gpu);
    if (r == 0)
        r = check_gpu(gpu, choose_ops(gpu));
    if (r < 0)
        return r;
    device = calloc(1, sizeof(*device));
    if (!device)
        return gw_private_error(GW_E_NOMEM, "no memory for a device's handle");
    *device = (struct cuda_device){.device = {.ops = choose_ops(gpu)}, .gpu = gpu, .pid = getpid()};
    error = cu.cuDeviceGetUuid(&uuid, gpu);
    if (error == CUDA_SUCCESS)
        error = cu.cuDevicePrimaryCtxRetain(&device->context, gpu);
    if (error != CUDA_SUCCESS) {
        free(device);
        return driver_error(GW_E_NO_DEVICE, error, "the GPU cannot be used");
    }
    _Static_assert(sizeof(uuid.bytes) == GW_GPU_BYTES, "a UUID on the wire");
    memcpy(device->device.gpu, uuid.bytes, GW_GPU_BYTES);
    *ret_device = &device->device;
    return 0;
}

struct gw_device *gw_cuda_device_free(struct gw_device *device)
{
    char text[GW_TEXT_MAX + 1];
    unsigned jobs;

    if (!device)
        return NULL;
    if (getpid() != of(device)->pid) {
        (void)gw_private_error(GW_E_FORKED, "the device belongs to the parent process");
        return NULL;
    }
    jobs = atomic_load(&device->jobs);
    if (jobs > 0) {
        snprintf(text, sizeof(text), "%u job%s still use%s the device; close %s first", jobs,
                 jobs == 1 ? "" : "s", jobs == 1 ? "s" : "", jobs == 1 ? "it" : "them");
        (void)gw_private_error(GW_E_BUSY, text);
        return NULL;
    }
    if (!atomic_load(&device->stuck))
        (void)cu.cuDevicePrimaryCtxRelease(of(device)->gpu);
    free(device);
    return NULL;
}
