/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages with words and slots, registered so that streams and kernels reach them. Made on the loop
 * thread; looked up on any, under the device's lock.
 *
 * Registered once for all contexts (portable): with unified addresses the alias is the same on
 * every GPU.
 */
#include <stdlib.h>

#include "daemon/device/cuda/cuda.h"
#include "daemon/device/cuda/plant.h"
#include "gradwire/errors.h"

/* The GPU's context is current; any will do. */
static int register_page(struct cuda_gpu *gpu, struct cuda_page *page)
{
    struct cuda_device *device = gpu->device;
    CUdeviceptr alias = 0;
    CUresult result;

    result = cu.cuMemHostRegister(page->base, page->bytes,
                                  CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_OUT_OF_MEMORY               ? GW_E_NOMEM
               : cuda_good(gpu, result, "cuMemHostRegister", 0) ? 0
                                                                : GW_E_DEVICE;
    result = cu.cuMemHostGetDevicePointer(&alias, page->base, 0);
    if (!cuda_good(gpu, result, "cuMemHostGetDevicePointer", 0)) {
        (void)cu.cuMemHostUnregister(page->base);
        return GW_E_DEVICE;
    }
    pthread_mutex_lock(&device->lock);
    page->alias = (char *)(uintptr_t)alias;
    pthread_mutex_unlock(&device->lock);
    if (planted("page_unregistered_early"))
        (void)cu.cuMemHostUnregister(page->base);
    return 0;
}

int cuda_pages_register(struct cuda_gpu *gpu)
{
    int r = 0;

    for (struct cuda_page *page = gpu->device->pages; page && r == 0; page = page->next)
        if (!page->alias)
            r = register_page(gpu, page);
    return r;
}

void cuda_pages_unregister(struct cuda_device *device)
{
    for (struct cuda_page *page = device->pages; page; page = page->next) {
        if (page->alias)
            (void)cu.cuMemHostUnregister(page->base);
        pthread_mutex_lock(&device->lock);
        page->alias = NULL;
        pthread_mutex_unlock(&device->lock);
    }
}

int cuda_page_add(struct device *device, void *base, size_t bytes)
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_page *page = calloc(1, sizeof(*page));
    int r = 0;

    if (!page)
        return GW_E_NOMEM;
    page->base = base;
    page->bytes = bytes;
    if (of->placed) {
        struct cuda_gpu *gpu = &of->gpus[__builtin_ctzll(of->placed)];
        r = cu.cuCtxSetCurrent(gpu->context) == CUDA_SUCCESS ? register_page(gpu, page)
                                                             : GW_E_DEVICE;
    }
    if (r < 0) {
        free(page);
        return r;
    }
    pthread_mutex_lock(&of->lock);
    page->next = of->pages;
    of->pages = page;
    pthread_mutex_unlock(&of->lock);
    return 0;
}

/* Words that abort raised there are nobody's any more. */
static void forget_raised(struct cuda_device *device, const struct cuda_page *page)
{
    struct cuda_raised **at = &device->raised;

    while (*at) {
        struct cuda_raised *raised = *at;
        const char *word = (const char *)raised->word;
        if (word < page->base || word >= page->base + page->bytes) {
            at = &raised->next;
            continue;
        }
        *at = raised->next;
        free(raised);
    }
}

void cuda_page_remove(struct device *device, void *base)
{
    struct cuda_device *of = cuda_of(device);
    struct cuda_page **at = &of->pages, *page;

    pthread_mutex_lock(&of->lock);
    while (*at && (*at)->base != base)
        at = &(*at)->next;
    page = *at;
    if (page) {
        *at = page->next;
        forget_raised(of, page);
    }
    pthread_mutex_unlock(&of->lock);
    if (page)
        cuda_timelines_drop(of, page->base, page->bytes);
    if (page && page->alias && !cuda_is_broken(of)) {
        (void)cu.cuCtxSetCurrent(of->gpus[__builtin_ctzll(of->placed)].context);
        (void)cu.cuMemHostUnregister(base);
    }
    free(page);
}

CUdeviceptr cuda_alias(const struct cuda_device *device, const void *host)
{
    const char *at = (const char *)host;

    for (const struct cuda_page *page = device->pages; page; page = page->next)
        if (page->alias && at >= page->base && at < page->base + page->bytes)
            return (CUdeviceptr)(uintptr_t)(page->alias + (at - page->base));
    return 0;
}

CUdeviceptr cuda_alias_now(struct cuda_device *device, const void *host)
{
    CUdeviceptr alias;

    pthread_mutex_lock(&device->lock);
    alias = cuda_alias(device, host);
    pthread_mutex_unlock(&device->lock);
    return alias;
}

void *cuda_page_address(const struct device *device, const void *host)
{
    return (void *)(uintptr_t)cuda_alias_now(cuda_of(device), host);
}
