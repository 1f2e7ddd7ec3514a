/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, copies, IPC. */
#include <string.h>

#include "tests/fakegpu/runtime.h"

#define RUN_BOTH(call, then)                                                                       \
    do {                                                                                           \
        cudaError_t ready_ = runtime_ready();                                                      \
        CUresult result_ = ready_ ? (CUresult)ready_ : (call);                                     \
        if (result_ == CUDA_SUCCESS) {                                                             \
            then;                                                                                  \
        }                                                                                          \
        return runtime_result(result_);                                                            \
    } while (0)

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    CUdeviceptr device = 0;

    if (!bytes) {
        *pointer = NULL;
        return cudaSuccess;
    }
    RUN_BOTH(cuMemAlloc(&device, bytes), *pointer = (void *)(uintptr_t)device);
}

cudaError_t cudaFree(void *pointer)
{
    RUN(cuMemFree(ADDRESS(pointer)));
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    RUN(cuMemHostAlloc(pointer, bytes, 0));
}

cudaError_t cudaFreeHost(void *pointer)
{
    RUN(cuMemFreeHost(pointer));
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    RUN(cuMemHostRegister(pointer, bytes, flags));
}

cudaError_t cudaHostUnregister(void *pointer)
{
    RUN(cuMemHostUnregister(pointer));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
    CUdeviceptr pointer = 0;

    RUN_BOTH(cuMemHostGetDevicePointer(&pointer, host, flags),
             *device = (void *)(uintptr_t)pointer);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    RUN(cuMemGetInfo(free_bytes, total_bytes));
}

static void attributes(struct cudaPointerAttributes *a, CUdeviceptr pointer)
{
    unsigned type = 0;

    memset(a, 0, sizeof(*a));
    a->device = -1;
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)) {
        a->type = cudaMemoryTypeUnregistered;
        a->hostPointer = (void *)(uintptr_t)pointer;
        return;
    }
    a->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    (void)cuPointerGetAttribute(&a->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    (void)cuPointerGetAttribute(&a->devicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer);
    if (type != CU_MEMORYTYPE_DEVICE)
        a->hostPointer = (void *)(uintptr_t)pointer;
}

/* ---- copies and fills ----------------------------------------------------------------------- */

/* The kind must be what the pointers are. */
static bool kind_fits(CUdeviceptr to, CUdeviceptr from, enum cudaMemcpyKind kind)
{
    struct cudaPointerAttributes a;
    bool to_device, from_device;

    if (kind == cudaMemcpyDefault)
        return true;
    attributes(&a, to);
    to_device = a.type == cudaMemoryTypeDevice;
    attributes(&a, from);
    from_device = a.type == cudaMemoryTypeDevice;
    return to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
           from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    if (!kind_fits(ADDRESS(to), ADDRESS(from), kind))
        return runtime_result(CUDA_ERROR_INVALID_VALUE);
    RUN(cuMemcpy(ADDRESS(to), ADDRESS(from), bytes));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (!kind_fits(ADDRESS(to), ADDRESS(from), kind))
        return runtime_result(CUDA_ERROR_INVALID_VALUE);
    RUN(cuMemcpyAsync(ADDRESS(to), ADDRESS(from), bytes, stream));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream)
{
    if (fg_gpu_of_ordinal(to_device) < 0 || fg_gpu_of_ordinal(from_device) < 0)
        return runtime_result(CUDA_ERROR_INVALID_DEVICE);
    RUN(cuMemcpyAsync(ADDRESS(to), ADDRESS(from), bytes, stream));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    RUN(cuMemsetD8(ADDRESS(to), (unsigned char)value, bytes));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    RUN(cuMemsetD8Async(ADDRESS(to), (unsigned char)value, bytes, stream));
}

/* ---- IPC ------------------------------------------------------------------------------------ */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    RUN(cuIpcGetMemHandle((CUipcMemHandle *)handle, ADDRESS(pointer)));
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags)
{
    CUipcMemHandle same;
    CUdeviceptr device = 0;

    memcpy(&same, &handle, sizeof(same));
    RUN_BOTH(cuIpcOpenMemHandle(&device, same, flags), *pointer = (void *)(uintptr_t)device);
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    RUN(cuIpcCloseMemHandle(ADDRESS(pointer)));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    RUN(cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    CUipcEventHandle same;

    memcpy(&same, &handle, sizeof(same));
    RUN(cuIpcOpenEventHandle(event, same));
}
