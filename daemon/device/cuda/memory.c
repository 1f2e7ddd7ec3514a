/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the cuda device: arenas (virtual memory, exported as descriptors), staging (host pages,
 * registered), clients' own allocations, scratch and pinned memory of fabrics. Loop thread, set-up
 * path: calls here may block. Owns the list of blocks.
 *
 * Arenas are open to the GPUs of all ranks that have been placed and reach theirs; a GPU placed
 * later is let in then.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/cuda/plant.h"
#include "daemon/device/pages.h"
#include "gradwire/errors.h"

static CUdeviceptr address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

static struct cuda_gpu *gpu_of(struct cuda_device *device, uint32_t rank)
{
    return rank < GW_GPU_RANKS_MAX && device->gpus[rank].placed ? &device->gpus[rank] : NULL;
}

static void link_block(struct cuda_device *device, struct cuda_block *block)
{
    block->next = device->blocks;
    device->blocks = block;
}

static int error_of(struct cuda_gpu *gpu, CUresult result, const char *call)
{
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return GW_E_NOMEM;
    return cuda_good(gpu, result, call, 0) ? 0 : GW_E_DEVICE;
}

/* ---- arenas and scratch ---------------------------------------------------------------------- */

static CUresult open_to(const struct cuda_block *block, const struct cuda_gpu *gpu)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->ordinal},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return cu.cuMemSetAccess(address(block->memory.base), block->mapped, &access, 1);
}

int cuda_blocks_open_to(struct cuda_device *device, const struct cuda_gpu *gpu)
{
    for (struct cuda_block *block = device->blocks; block; block = block->next) {
        if (!block->mapped || !(gpu->reached >> block->rank & 1))
            continue;
        if (!cuda_good(&device->gpus[gpu->rank], open_to(block, gpu), "cuMemSetAccess", 0))
            return GW_E_DEVICE;
    }
    return 0;
}

static void unmap(struct cuda_block *block)
{
    if (block->memory.base) {
        (void)cu.cuMemUnmap(address(block->memory.base), block->mapped);
        (void)cu.cuMemAddressFree(address(block->memory.base), block->mapped);
    }
    if (block->handle)
        (void)cu.cuMemRelease(block->handle);
}

/* Reserves and maps what block->handle is. */
static CUresult map(struct cuda_device *device, struct cuda_block *block)
{
    struct cuda_gpu *gpu = &device->gpus[block->rank];
    CUdeviceptr base = 0;
    CUresult result = cu.cuMemAddressReserve(&base, block->mapped, gpu->granularity, 0, 0);

    if (result != CUDA_SUCCESS)
        return result;
    result = cu.cuMemMap(base, block->mapped, 0, block->handle, 0);
    if (result != CUDA_SUCCESS) {
        (void)cu.cuMemAddressFree(base, block->mapped);
        return result;
    }
    block->memory.base = (void *)(uintptr_t)base;
    for (uint32_t rank = 0; rank < GW_GPU_RANKS_MAX && result == CUDA_SUCCESS; rank++) {
        const struct cuda_gpu *other = &device->gpus[rank];
        if (other->placed && other->reached >> block->rank & 1)
            result = open_to(block, other);
    }
    return result;
}

static CUresult export_block(struct cuda_block *block)
{
    int fd = -1;
    CUresult result = cu.cuMemExportToShareableHandle(&fd, block->handle,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result != CUDA_SUCCESS)
        return result;
    block->memory.fd = fd;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

static int clear(struct cuda_gpu *gpu, void *base, size_t bytes)
{
    CUresult result = cu.cuMemsetD8Async(address(base), 0, bytes, gpu->setup);

    if (!cuda_good(gpu, result, "cuMemsetD8Async", 0))
        return GW_E_DEVICE;
    return cuda_settle(gpu, gpu->setup);
}

static int fill_block(struct cuda_gpu *gpu, struct cuda_block *block, bool shared)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->ordinal}};
    const char *call = "cuMemCreate";
    CUresult result = cu.cuCtxSetCurrent(gpu->context);

    if (shared)
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (result == CUDA_SUCCESS)
        result = cu.cuMemCreate(&block->handle, block->mapped, &prop, 0);
    if (result == CUDA_SUCCESS) {
        call = "cuMemMap";
        result = map(gpu->device, block);
    }
    if (result == CUDA_SUCCESS && shared) {
        call = "cuMemExportToShareableHandle";
        result = export_block(block);
        /* Which limit of descriptors it was, a driver does not say. */
        if (result == CUDA_ERROR_OPERATING_SYSTEM)
            return GW_E_LIMIT;
    }
    if (result != CUDA_SUCCESS)
        return error_of(gpu, result, call);
    return clear(gpu, block->memory.base, block->mapped);
}

static size_t whole(const struct cuda_gpu *gpu, size_t bytes)
{
    return (bytes + gpu->granularity - 1) / gpu->granularity * gpu->granularity;
}

static int vmm_new(struct cuda_gpu *gpu, enum cuda_block_kind kind, size_t bytes,
                   struct cuda_block **ret_block)
{
    struct cuda_block *block;
    int r;

    if (bytes == 0 || bytes > (size_t)INT64_MAX - gpu->granularity)
        return GW_E_NOMEM;
    block = calloc(1, sizeof(*block));
    if (!block)
        return GW_E_NOMEM;
    block->kind = kind;
    block->rank = gpu->rank;
    block->mapped = whole(gpu, bytes);
    block->memory = (struct device_memory){
        .bytes = bytes, .mapped_bytes = block->mapped, .fd = -1, .on_device = true};
    r = fill_block(gpu, block, kind != CUDA_BLOCK_SCRATCH);
    if (r < 0) {
        unmap(block);
        if (block->memory.fd >= 0)
            close(block->memory.fd);
        free(block);
        return r;
    }
    link_block(gpu->device, block);
    *ret_block = block;
    return 0;
}

/* ---- staging --------------------------------------------------------------------------------- */

static int staging_new(struct cuda_device *device, const char *name, size_t bytes,
                       struct cuda_block **ret_block)
{
    struct cuda_block *block = calloc(1, sizeof(*block));
    int r;

    if (!block)
        return GW_E_NOMEM;
    r = pages_new(PAGES_SHARED, name, bytes, PAGES_ANYWHERE, &block->pages);
    if (r == 0) {
        r = cuda_page_add((struct device *)device, block->pages->base, block->pages->mapped_bytes);
        if (r < 0)
            pages_free(block->pages);
    }
    if (r < 0) {
        free(block);
        return r;
    }
    block->kind = CUDA_BLOCK_STAGING;
    block->memory = *block->pages;
    link_block(device, block);
    *ret_block = block;
    return 0;
}

/* ---- clients' own ---------------------------------------------------------------------------- */

static int import_open(struct cuda_gpu *gpu, const struct device_import *import,
                       struct cuda_import **ret_import, char text[GW_TEXT_MAX + 1])
{
    CUipcMemHandle handle;
    CUdeviceptr opened = 0, base = 0;
    size_t bytes = 0;
    char why[256];
    CUresult result;
    int r;

    memcpy(&handle, import->handle, sizeof(handle));
    result = cu.cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
        cuda_error_text((int)result, why, sizeof(why));
        snprintf(text, GW_TEXT_MAX + 1,
                 "rank %u's memory cannot be opened: %s; memory of expandable segments or of "
                 "another PID namespace cannot be shared this way: use gw_buffer_new",
                 gpu->rank, why);
        return GW_E_INVALID;
    }
    result = cu.cuMemGetAddressRange(&base, &bytes, opened);
    if (result != CUDA_SUCCESS) {
        (void)cu.cuIpcCloseMemHandle(opened);
        return error_of(gpu, result, "cuMemGetAddressRange");
    }
    /* What the client says counts from the address that we got. */
    r = cuda_imports_add(&gpu->device->imports, import, gpu->rank, opened,
                         bytes - (size_t)(opened - base), ret_import);
    if (r < 0)
        (void)cu.cuIpcCloseMemHandle(opened);
    return r;
}

static void import_drop(struct cuda_device *device, struct cuda_import *import)
{
    bool last = cuda_imports_drop(&device->imports, import);

    if (!last && !planted("lease_forgotten"))
        return;
    if (!cuda_is_broken(device)) {
        (void)cu.cuCtxSetCurrent(device->gpus[import->rank].context);
        (void)cu.cuIpcCloseMemHandle(import->base);
    }
    if (last)
        free(import);
}

int cuda_memory_import(struct device *device, uint32_t rank, const struct device_import *import,
                       struct device_memory **ret_memory, char text[GW_TEXT_MAX + 1])
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_gpu *gpu = gpu_of(of, rank);
    struct cuda_block *block;
    struct cuda_import *open;
    int r = 0;

    if (!gpu || cu.cuCtxSetCurrent(gpu->context) != CUDA_SUCCESS)
        return GW_E_DEVICE;
    block = calloc(1, sizeof(*block));
    if (!block)
        return GW_E_NOMEM;
    open = cuda_imports_find(&of->imports, import->client, import->handle);
    if (planted("handle_opened_twice"))
        open = NULL;
    if (open)
        open->references++;
    else
        r = import_open(gpu, import, &open, text);
    if (r == 0) {
        r = cuda_imports_check(import, open->bytes, text);
        if (r < 0)
            import_drop(of, open);
    }
    if (r < 0) {
        free(block);
        return r;
    }
    block->kind = CUDA_BLOCK_IMPORT;
    block->rank = rank;
    block->import = open;
    block->memory = (struct device_memory){.base = (void *)(uintptr_t)(open->base + import->offset),
                                           .bytes = (size_t)import->bytes,
                                           .fd = -1,
                                           .on_device = true};
    link_block(of, block);
    *ret_memory = &block->memory;
    return 0;
}

/* ---- the table's ----------------------------------------------------------------------------- */

static void block_free(struct cuda_device *device, struct cuda_block *block)
{
    struct cuda_block **at = &device->blocks;

    while (*at && *at != block)
        at = &(*at)->next;
    if (*at)
        *at = block->next;
    if (block->kind == CUDA_BLOCK_STAGING) {
        cuda_page_remove((struct device *)device, block->pages->base);
        pages_free(block->pages);
    } else if (block->kind == CUDA_BLOCK_IMPORT) {
        import_drop(device, block->import);
    } else {
        if (!cuda_is_broken(device)) {
            (void)cu.cuCtxSetCurrent(device->gpus[block->rank].context);
            unmap(block);
        }
        if (block->memory.fd >= 0)
            close(block->memory.fd);
    }
    free(block);
}

struct device_memory *cuda_memory_free(struct device *device, struct device_memory *memory)
{
    if (memory)
        block_free(cuda_of(device), (struct cuda_block *)(void *)memory);
    return NULL;
}

/* It has been zeroed when it was made. */
static struct cuda_block *take_spare(struct cuda_gpu *gpu, size_t bytes)
{
    struct cuda_block *block = gpu->device->blocks;

    while (block && (block->kind != CUDA_BLOCK_SPARE || block->rank != gpu->rank ||
                     block->mapped != whole(gpu, bytes)))
        block = block->next;
    if (block) {
        block->kind = CUDA_BLOCK_ARENA;
        block->memory.bytes = bytes;
    }
    return block;
}

int cuda_memory_new(struct device *device, enum device_memory_kind kind, uint32_t rank,
                    const char *name, size_t bytes, struct device_memory **ret_memory)
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_gpu *gpu = gpu_of(of, rank);
    struct cuda_block *block = NULL;
    int r = 0;

    if (kind == DEVICE_MEMORY_STAGING)
        r = staging_new(of, name, bytes, &block);
    else if (!gpu)
        r = GW_E_NO_DEVICE;
    else if (kind != DEVICE_MEMORY_RESERVED || !(block = take_spare(gpu, bytes)))
        r = vmm_new(gpu, CUDA_BLOCK_ARENA, bytes, &block);
    if (r == 0)
        *ret_memory = &block->memory;
    return r;
}

int cuda_memory_reserve(struct device *device, uint32_t rank, size_t bytes, uint32_t count)
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_gpu *gpu = gpu_of(of, rank);
    struct cuda_block *block = of->blocks;
    int r = 0;

    if (!gpu)
        return GW_E_NO_DEVICE;
    while (block) {
        struct cuda_block *next = block->next;
        if (block->kind == CUDA_BLOCK_SPARE && block->rank == rank)
            block_free(of, block);
        block = next;
    }
    for (uint32_t i = 0; i < count && r == 0; i++)
        r = vmm_new(gpu, CUDA_BLOCK_SPARE, bytes, &block);
    return r;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool inside(const struct cuda_block *block, const void *at)
{
    const char *base = (const char *)block->memory.base;
    size_t bytes = block->mapped ? block->mapped : block->memory.bytes;

    return (const char *)at >= base && (const char *)at < base + bytes;
}

/* The GPU whose memory it is; NULL: the host's. */
static struct cuda_gpu *owner_of(struct cuda_device *device, const void *at)
{
    for (struct cuda_block *block = device->blocks; block; block = block->next)
        if (block->memory.on_device && inside(block, at))
            return &device->gpus[block->rank];
    return NULL;
}

bool cuda_imported(const struct device *device, const void *at)
{
    const struct cuda_import *open = cuda_of(device)->imports.first;

    while (open && address(at) - open->base >= open->bytes)
        open = open->next;
    return open != NULL;
}

/* By two contexts: the driver has each GPU use its own memory, and brings it over the host where
 * there is no other way. A plain copy is for what its stream's GPU reaches: memory of cuMemCreate
 * wants cuMemSetAccess for that (PyTorch's allocator for expandable segments decides alike, and
 * says that only this call is right there). */
int cuda_copy_apart(struct device *device, void *to, uint32_t to_rank, const void *from,
                    uint32_t from_rank, uint64_t bytes, void *stream)
{
    const struct cuda_gpu *gpus = cuda_of(device)->gpus;

    return (int)cu.cuMemcpyPeerAsync(address(to), gpus[to_rank].context, address(from),
                                     gpus[from_rank].context, bytes, (CUstream)stream);
}

void cuda_copy(struct device *device, void *to, const void *from, size_t bytes)
{
    struct cuda_device *of = cuda_of(device);
    const struct cuda_gpu *owner = owner_of(of, to), *reader = owner_of(of, from);
    struct cuda_gpu *gpu = &of->gpus[owner ? owner->rank : reader ? reader->rank : 0];
    bool apart = owner && reader && owner != reader &&
                 (!(owner->reached >> reader->rank & 1) || cuda_imported(device, from));
    const char *call = apart ? "cuMemcpyPeerAsync" : "cuMemcpyAsync";
    CUresult result;

    if (!owner && !reader) {
        memcpy(to, from, bytes);
        return;
    }
    result = cu.cuCtxSetCurrent(gpu->context);
    if (result == CUDA_SUCCESS && apart)
        result = (CUresult)cuda_copy_apart(device, to, owner->rank, from, reader->rank, bytes,
                                           gpu->setup);
    else if (result == CUDA_SUCCESS)
        result = cu.cuMemcpyAsync(address(to), address(from), bytes, gpu->setup);
    if (cuda_good(gpu, result, call, 0))
        (void)cuda_settle(gpu, gpu->setup);
}

void cuda_zero(struct device *device, void *to, size_t bytes)
{
    struct cuda_gpu *owner = owner_of(cuda_of(device), to);

    if (!owner)
        memset(to, 0, bytes);
    else if (cu.cuCtxSetCurrent(owner->context) == CUDA_SUCCESS)
        (void)clear(owner, to, bytes);
}

/* ---- fabrics' -------------------------------------------------------------------------------- */

int cuda_scratch_new(struct device *device, uint32_t rank, size_t bytes, void **ret_base)
{
    struct cuda_gpu *gpu = gpu_of(cuda_of(device), rank);
    struct cuda_block *block;
    int r = gpu ? vmm_new(gpu, CUDA_BLOCK_SCRATCH, bytes, &block) : GW_E_NO_DEVICE;

    if (r == 0)
        *ret_base = block->memory.base;
    return r;
}

void cuda_scratch_free(struct device *device, uint32_t rank, void *base)
{
    struct cuda_device *of = cuda_of(device);

    for (struct cuda_block *block = of->blocks; base && block; block = block->next) {
        if (block->kind == CUDA_BLOCK_SCRATCH && block->rank == rank &&
            block->memory.base == base) {
            block_free(of, block);
            return;
        }
    }
}

int cuda_pinned_new(struct device *device, size_t bytes, void **ret_base)
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_gpu *gpu;
    void *base = NULL;
    CUresult result;

    if (!of->placed)
        return GW_E_NO_DEVICE;
    gpu = &of->gpus[__builtin_ctzll(of->placed)];
    result = cu.cuCtxSetCurrent(gpu->context);
    if (result == CUDA_SUCCESS)
        result =
            cu.cuMemHostAlloc(&base, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (result != CUDA_SUCCESS)
        return error_of(gpu, result, "cuMemHostAlloc");
    *ret_base = memset(base, 0, bytes);
    return 0;
}

void cuda_pinned_free(struct device *device, void *base)
{
    struct cuda_device *of = cuda_of(device);

    if (!base || !of->placed || cuda_is_broken(of))
        return;
    (void)cu.cuCtxSetCurrent(of->gpus[__builtin_ctzll(of->placed)].context);
    (void)cu.cuMemFreeHost(base);
}
