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

#include "client/cuda/driver.h"
#include "client/lib/device.h"
#include "gradwire/cuda.h"

struct cuda_device {
    struct gw_device device; /* first */
    CUdevice gpu;
    CUcontext context;
    pid_t pid; /* a forked child has no CUDA */
};

static struct cuda_device *of(struct gw_device *device)
{
    return (struct cuda_device *)(void *)device;
}

static CUdeviceptr address_of(const void *base)
{
    return (CUdeviceptr)(uintptr_t)base;
}

static CUresult enter(struct gw_device *device)
{
    return cu.cuCtxPushCurrent(of(device)->context);
}

static void leave(void)
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
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (error == CUDA_SUCCESS) {
        error = map_import(device, handle, (size_t)mapped_bytes, &base);
        (void)cu.cuMemRelease(handle);
    }
    leave();
    if (error != CUDA_SUCCESS)
        return driver_error(error == CUDA_ERROR_OUT_OF_MEMORY ? GW_E_NOMEM : GW_E_DEVICE, error,
                            "memory of the service cannot be mapped on the GPU");
    *ret_base = (void *)(uintptr_t)base;
    return 0;
}

static void unmap(struct gw_device *device, void *base, uint64_t mapped_bytes)
{
    if (enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuMemUnmap(address_of(base), (size_t)mapped_bytes);
    (void)cu.cuMemAddressFree(address_of(base), (size_t)mapped_bytes);
    leave();
}

/* ---- pages ----------------------------------------------------------------------------------- */

static int page_add(struct gw_device *device, void *base, size_t bytes, uint64_t *ret_address)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CUdeviceptr address = 0;
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemHostRegister(base, (bytes + page - 1) / page * page,
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (error == CUDA_SUCCESS) {
        error = cu.cuMemHostGetDevicePointer(&address, base, 0);
        if (error != CUDA_SUCCESS)
            (void)cu.cuMemHostUnregister(base);
    }
    leave();
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error,
                            "a shared page cannot be registered with the GPU (is RLIMIT_MEMLOCK "
                            "too low?)");
    *ret_address = address;
    return 0;
}

static void page_remove(struct gw_device *device, void *base)
{
    if (enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuMemHostUnregister(base);
    leave();
}

static int host_new(struct gw_device *device, size_t bytes, void **ret_base)
{
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemHostAlloc(ret_base, bytes, CU_MEMHOSTALLOC_PORTABLE);
    leave();
    return error == CUDA_SUCCESS ? 0 : driver_error(GW_E_NOMEM, error, "pinned host memory");
}

static void host_free(struct gw_device *device, void *base)
{
    if (enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuMemFreeHost(base);
    leave();
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
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
    leave();
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "a stream cannot be made");
    *ret_stream = stream;
    return 0;
}

static void stream_free(struct gw_device *device, void *stream)
{
    if (enter(device) != CUDA_SUCCESS)
        return;
    (void)cu.cuStreamDestroy(stream);
    leave();
}

static int stream_wait(struct gw_device *device, void *stream, uint64_t address, uint64_t value)
{
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamWaitValue64(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ);
    leave();
    return error == CUDA_SUCCESS ? 0
                                 : driver_error(GW_E_DEVICE, error, "a wait in the job's stream");
}

/* With the barrier that the call has by default. */
static int stream_raise(struct gw_device *device, void *stream, uint64_t address, uint64_t value)
{
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamWriteValue64(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    leave();
    return error == CUDA_SUCCESS ? 0
                                 : driver_error(GW_E_DEVICE, error, "a mark in the job's stream");
}

static int stream_idle(struct gw_device *device, void *stream)
{
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamQuery(stream);
    leave();
    if (error == CUDA_ERROR_NOT_READY)
        return GW_E_AGAIN;
    return error == CUDA_SUCCESS ? 0 : driver_error(GW_E_DEVICE, error, "a look at a stream");
}

/* Host memory is unknown to the driver, or registered. */
static bool on_device(struct gw_device *device, const void *base)
{
    CUmemorytype type = 0;
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return false;
    error = cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(base));
    leave();
    return error == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

static int copy(struct gw_device *device, void *stream, void *to, const void *from, size_t bytes)
{
    CUresult error = enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream);
    leave();
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
    CUresult error = enter(device);
    int r;

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    r = export_current(device, base, bytes, ret_export);
    leave();
    return r;
}

static const struct gw_device_ops ops = {
    .version = GW_DEVICE_TABLE,
    .kind = GW_DEVICE_CUDA,
    .map = map,
    .unmap = unmap,
    .page_add = page_add,
    .page_remove = page_remove,
    .stream_check = stream_check,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .stream_raise = stream_raise,
    .stream_idle = stream_idle,
    .on_device = on_device,
    .copy = copy,
    .host_new = host_new,
    .host_free = host_free,
    .export_memory = export_memory,
};

/* ---- life ------------------------------------------------------------------------------------ */

/* What a job cannot do without, and the driver's name for it. */
static int check_gpu(CUdevice gpu)
{
    static const struct {
        CUdevice_attribute attribute;
        const char *what;
    } needs[] = {
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit stream memory operations"},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing"},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "registration of host memory"},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
         "memory shared by descriptors"},
    };
    char text[GW_TEXT_MAX + 1];

    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
        int has = 0;

        if (cu.cuDeviceGetAttribute(&has, needs[i].attribute, gpu) == CUDA_SUCCESS && has)
            continue;
        snprintf(text, sizeof(text), "the GPU or its driver lacks %s", needs[i].what);
        return gw_private_error(GW_E_NO_DEVICE, text);
    }
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
        r = check_gpu(gpu);
    if (r < 0)
        return r;
    device = calloc(1, sizeof(*device));
    if (!device)
        return gw_private_error(GW_E_NOMEM, "no memory for a device's handle");
    *device = (struct cuda_device){.device = {.ops = &ops}, .gpu = gpu, .pid = getpid()};
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
