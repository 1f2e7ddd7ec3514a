/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory, VMM and IPC as a process sees them: addresses that the server gives are reserved
 * here without any access, so that a host that touches device memory faults.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakegpu/driver.h"

#define GRANULARITY (UINT64_C(2) << 20)

static uint64_t pages(uint64_t bytes)
{
    return (bytes + 4095) & ~UINT64_C(4095);
}

CUresult space_take(uint64_t address, uint64_t bytes)
{
    void *at = mmap((void *)(uintptr_t)address, pages(bytes), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

    return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void space_give(uint64_t address, uint64_t bytes)
{
    munmap((void *)(uintptr_t)address, pages(bytes));
}

/* The range that begins at the address. */
static uint64_t bytes_at(uint64_t address)
{
    struct fg_reply reply;

    if (core_call(FG_POINTER, core_first_gpu(), ARGS(address), &reply) || reply.v[0] != address)
        return 0;
    return reply.v[1];
}

/* ---- device memory -------------------------------------------------------------------------- */

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes)
{
    struct fg_reply reply;
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (!r && !bytes)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r)
        return r;
    fg_note_sync("cuMemAlloc");
    r = core_call_wait(FG_ALLOC, gpu, ARGS(bytes), &reply);
    if (r)
        return r;
    *pointer = reply.v[0];
    return space_take(reply.v[0], bytes);
}

CUresult cuMemFree(CUdeviceptr pointer)
{
    uint64_t bytes;
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (r || !pointer)
        return r;
    fg_note_sync("cuMemFree");
    bytes = bytes_at(pointer);
    r = core_call_wait(FG_FREE, gpu, ARGS(pointer), NULL);
    if (!r && bytes)
        space_give(pointer, bytes);
    return r;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    struct fg_reply reply;
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (!r)
        r = core_call(FG_DEVICE, gpu, ARGS(0), &reply);
    if (r)
        return r;
    *total_bytes = reply.v[0];
    *free_bytes = reply.v[1];
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    struct fg_reply reply;
    CUresult r = core_context(NULL);

    if (!r)
        r = core_call(FG_POINTER, core_first_gpu(), ARGS(pointer), &reply);
    if (r)
        return r == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_NOT_FOUND : r;
    if (base)
        *base = reply.v[0];
    if (bytes)
        *bytes = reply.v[1];
    return CUDA_SUCCESS;
}

/* ---- pinned host memory: the same address on host and device -------------------------------- */

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    struct fg_request request = {.kind = FG_HOST_ALLOC, .a = {bytes, flags}};
    struct fg_reply reply;
    uint32_t us = 20;
    int fd = -1;
    void *at;
    CUresult r = core_context(&request.device);

    if (r)
        return r;
    fg_note_sync("cuMemHostAlloc");
    while ((r = (CUresult)fg_call_fd(&request, NULL, -1, &reply, &fd)) == FG_BUSY) {
        request.a[5] = reply.v[0];
        core_nap(&us);
    }
    if (r)
        return r;
    at = mmap((void *)(uintptr_t)reply.v[0], pages(bytes), PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    close(fd);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = at;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *pointer)
{
    uint64_t bytes;
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (r || !pointer)
        return r;
    fg_note_sync("cuMemFreeHost");
    bytes = bytes_at(ADDRESS(pointer));
    r = core_call_wait(FG_HOST_FREE, gpu, ARGS(ADDRESS(pointer)), NULL);
    if (!r && bytes)
        munmap(pointer, pages(bytes));
    return r;
}

/* ---- virtual memory management -------------------------------------------------------------- */

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    (void)option;
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    int gpu = fg_gpu_of_ordinal(prop->location.id);
    struct fg_reply reply;
    CUresult r = core_open();

    if (r)
        return r;
    if (flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (gpu < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    fg_note_sync("cuMemCreate");
    r = core_call(FG_VMM_CREATE, (uint32_t)gpu,
                  ARGS(bytes, prop->requestedHandleTypes ==
                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), &reply);
    if (!r)
        *handle = reply.v[0];
    return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult r = core_open();

    if (!r)
        fg_note_sync("cuMemRelease");
    return r ? r : core_call(FG_VMM_RELEASE, core_first_gpu(), ARGS(handle), NULL);
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags)
{
    struct fg_reply reply;
    CUresult r = core_open();

    (void)wanted; /* a hint */
    if (!r && flags)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = core_call(FG_VMM_RESERVE, core_first_gpu(), ARGS(bytes, alignment), &reply);
    if (r)
        return r;
    *pointer = reply.v[0];
    return space_take(reply.v[0], bytes);
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    CUresult r = core_open();

    if (!r)
        r = core_call(FG_VMM_UNRESERVE, core_first_gpu(), ARGS(pointer, bytes), NULL);
    if (!r)
        space_give(pointer, bytes);
    return r;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult r = core_open();

    if (!r && flags)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r)
        return r;
    fg_note_sync("cuMemMap");
    return core_call_wait(FG_VMM_MAP, core_first_gpu(), ARGS(pointer, bytes, offset, handle),
                          NULL);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    CUresult r = core_open();

    if (r)
        return r;
    fg_note_sync("cuMemUnmap");
    return core_call_wait(FG_VMM_UNMAP, core_first_gpu(), ARGS(pointer, bytes), NULL);
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *desc,
                        size_t count)
{
    CUresult r = core_open();

    if (!r)
        fg_note_sync("cuMemSetAccess");
    for (size_t i = 0; i < count && !r; i++) {
        int gpu = fg_gpu_of_ordinal(desc[i].location.id);

        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || gpu < 0)
            return CUDA_ERROR_INVALID_DEVICE;
        r = core_call(FG_VMM_ACCESS, (uint32_t)gpu, ARGS(pointer, bytes, desc[i].flags), NULL);
    }
    return r;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    struct fg_request request = {.kind = FG_VMM_EXPORT, .a = {handle}};
    int fd = -1;
    CUresult r = core_open();

    if (!r && (flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        r = CUDA_ERROR_INVALID_VALUE;
    request.device = core_first_gpu();
    if (!r)
        r = (CUresult)fg_call_fd(&request, NULL, -1, NULL, &fd);
    if (!r)
        memcpy(shareable, &fd, sizeof(fd));
    return r;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    struct fg_request request = {.kind = FG_VMM_IMPORT};
    struct fg_reply reply;
    CUresult r = core_open();

    if (!r && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        r = CUDA_ERROR_INVALID_VALUE;
    request.device = core_first_gpu();
    if (!r)
        r = (CUresult)fg_call_fd(&request, NULL, (int)(intptr_t)shareable, &reply, NULL);
    if (!r)
        *handle = reply.v[0];
    return r;
}

/* ---- legacy IPC ----------------------------------------------------------------------------- */

static void handle_put(char *reserved, const char *magic, const struct fg_reply *reply)
{
    memset(reserved, 0, CU_IPC_HANDLE_SIZE);
    memcpy(reserved, magic, 8);
    memcpy(reserved + 8, reply->v, 16);
}

static CUresult handle_open(const char *reserved, const char *magic, enum fg_kind kind,
                            struct fg_reply *reply)
{
    uint64_t words[2];
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (!r && memcmp(reserved, magic, 8) != 0)
        r = CUDA_ERROR_INVALID_HANDLE;
    if (r)
        return r;
    memcpy(words, reserved + 8, sizeof(words));
    return core_call(kind, gpu, ARGS(words[0], words[1]), reply);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct fg_reply reply;
    CUresult r = core_context(NULL);

    if (!r)
        r = core_call(FG_IPC_EXPORT, core_first_gpu(), ARGS(pointer), &reply);
    if (!r)
        handle_put(handle->reserved, "fgmemory", &reply);
    return r;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    struct fg_reply reply;
    CUresult r;

    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    r = handle_open(handle.reserved, "fgmemory", FG_IPC_OPEN, &reply);
    if (r)
        return r;
    *pointer = reply.v[0];
    return space_take(reply.v[0], reply.v[1]);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    uint64_t bytes = 0;
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (r)
        return r;
    fg_note_sync("cuIpcCloseMemHandle");
    bytes = bytes_at(pointer);
    r = core_call_wait(FG_IPC_CLOSE, gpu, ARGS(pointer), NULL);
    if (!r && bytes)
        space_give(pointer, bytes);
    return r;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    struct fg_reply reply;
    CUresult r = core_context(NULL);

    if (!r)
        r = core_call(FG_EVENT_EXPORT, core_first_gpu(), ARGS(event_number(event)), &reply);
    if (!r)
        handle_put(handle->reserved, "fg-event", &reply);
    return r;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    struct fg_reply reply;
    CUresult r = handle_open(handle.reserved, "fg-event", FG_EVENT_OPEN, &reply);

    if (!r)
        *event = event_handle(reply.v[0]);
    return r;
}

/* ---- what a pointer is ---------------------------------------------------------------------- */

static CUresult attribute(void *data, CUpointer_attribute which, CUdeviceptr pointer,
                          const struct fg_reply *reply)
{
    uint32_t gpu = (uint32_t)(reply->v[2] >> 8) & 0xff, kind = (uint32_t)reply->v[2] & 0xff;
    bool device = kind == FG_MEM_DEVICE;

    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = core_context_of(gpu);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = reply->v[3];
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (device)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = fg_ordinal_of_gpu((int)gpu);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = reply->v[0];
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = reply->v[1];
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = reply->v[0] >> 12;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(int *)data = 1;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)data = reply->v[2] >> 32 == FG_MAP_MALLOC;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data =
            reply->v[2] >> 32 == FG_MAP_VMM ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr pointer)
{
    struct fg_reply reply;
    CUresult r = core_open();

    if (!r)
        r = core_call(FG_POINTER, core_first_gpu(), ARGS(pointer), &reply);
    return r ? r : attribute(data, which, pointer, &reply);
}
