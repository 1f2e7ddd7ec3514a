/* SPDX-License-Identifier: Apache-2.0 */
/* What GPUs say about themselves: a plausible Hopper of the driver for CUDA 13. */
#include <stdio.h>
#include <string.h>

#include "tests/fakegpu/driver.h"

#define VERSION 13000

CUresult cuInit(unsigned int flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : core_open();
}

CUresult cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult r = core_open();

    *count = fg_gpu_count();
    return r == CUDA_ERROR_NO_DEVICE ? CUDA_ERROR_NOT_INITIALIZED : r;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (fg_gpu_of_ordinal(ordinal) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    int gpu = fg_gpu_of_ordinal(device);

    if (gpu < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "fakegpu-uuid-000", sizeof(uuid->bytes));
    uuid->bytes[14] = (char)('0' + gpu / 10);
    uuid->bytes[15] = (char)('0' + gpu % 10);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    int gpu = fg_gpu_of_ordinal(device);
    struct fg_reply reply;
    CUresult r;

    if (gpu < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    r = core_call(FG_DEVICE, (uint32_t)gpu, ARGS(0), &reply);
    *bytes = reply.v[0];
    return r;
}

static int attribute(CUdevice_attribute which, uint32_t gpu, uint64_t caps)
{
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        return 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        return (caps & FG_CAP_IPC) != 0;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        return (caps & FG_CAP_MEMOPS) != 0;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: return caps >> FG_MODE_SHIFT & 0xff;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: return (caps & FG_CAP_MPS) != 0;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return (int)gpu + 1;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1700000;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: return -1;
    /* Registered memory has a device address of its own: never assume they are the same. */
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    default: return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    int gpu = fg_gpu_of_ordinal(device);
    struct fg_reply reply;
    CUresult r;

    if (gpu < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    r = core_call(FG_DEVICE, (uint32_t)gpu, ARGS(0), &reply);
    if (!r)
        *value = attribute(which, (uint32_t)gpu, reply.v[2]);
    return r;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    int gpu = fg_gpu_of_ordinal(device), other = fg_gpu_of_ordinal(peer);
    struct fg_reply reply;
    CUresult r;

    if (gpu < 0 || other < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    r = core_call(FG_DEVICE, (uint32_t)gpu, ARGS(0), &reply);
    if (!r)
        *can = reply.v[3] >> other & 1;
    return r;
}

/* Of GPUs that reach each other: over NVLink, or where links differ (inject links), over PCIe too,
 * which is slower and has no atomics. Of others nothing is documented but that they don't. */
CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute which, CUdevice from,
                                 CUdevice to)
{
    int gpu = fg_gpu_of_ordinal(from), other = fg_gpu_of_ordinal(to);
    struct fg_reply reply;
    uint64_t group;
    bool reached, fast;
    CUresult r;

    if (gpu < 0 || other < 0 || gpu == other)
        return CUDA_ERROR_INVALID_DEVICE;
    r = core_call(FG_DEVICE, (uint32_t)gpu, ARGS(0), &reply);
    if (r)
        return r;
    group = reply.v[2] >> FG_LINKS_SHIFT;
    reached = reply.v[3] >> other & 1;
    fast = !group || ((uint64_t)gpu - core_first_gpu()) / group ==
                         ((uint64_t)other - core_first_gpu()) / group;
    switch (which) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = reached ? !fast : 77;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        *value = reached;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = reached && fast;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned int flags)
{
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (r)
        return r;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    return context ? core_call(FG_PEER, gpu, ARGS(core_gpu_of(context)), NULL)
                   : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUresult r = core_context(NULL);

    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return r;
}

/* ---- errors --------------------------------------------------------------------------------- */

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
     "peer access has not been enabled"},
    {CUDA_ERROR_TOO_MANY_PEERS, "CUDA_ERROR_TOO_MANY_PEERS",
     "peer mapping resources exhausted"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult cuGetErrorName(CUresult error, const char **name)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        if (errors[i].error != error)
            continue;
        *name = errors[i].name;
        return CUDA_SUCCESS;
    }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        if (errors[i].error != error)
            continue;
        *text = errors[i].text;
        return CUDA_SUCCESS;
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
