/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. A host side that is not pinned goes through staging memory of this library, and
 * then the call blocks, as the real one may.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/fakegpu/driver.h"

#define STAGE_BYTES (UINT64_C(1) << 20)

static pthread_mutex_t stage_lock = PTHREAD_MUTEX_INITIALIZER;
static char *stage;

void copy_end(void)
{
    if (stage && fg_current_gpu() >= 0)
        (void)cuMemFreeHost(stage);
    stage = NULL;
}

static CUresult enqueue(uint64_t stream, uint64_t to, uint64_t from, uint64_t bytes,
                        struct fg_reply *reply)
{
    return core_call(FG_COPY, core_first_gpu(), ARGS(stream, to, from, bytes), reply);
}

/* sides: 1 the destination is pageable, 2 the source. Under the lock. */
static CUresult staged(uint64_t to, uint64_t from, uint64_t bytes, uint64_t stream, uint64_t sides)
{
    CUresult r = CUDA_SUCCESS;

    if (!stage)
        r = cuMemHostAlloc((void **)&stage, STAGE_BYTES, 0);
    for (uint64_t done = 0, part; done < bytes && !r; done += part) {
        part = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
        if (sides & 2) {
            memcpy(stage, (const void *)(uintptr_t)(from + done), part);
            r = enqueue(stream, to + done, ADDRESS(stage), part, NULL);
        } else {
            r = enqueue(stream, ADDRESS(stage), from + done, part, NULL);
        }
        if (!r)
            r = wait_for(FG_SCOPE_STREAM, core_first_gpu(), stream);
        if (!r && sides & 1)
            memcpy((void *)(uintptr_t)(to + done), stage, part);
    }
    return r;
}

CUresult copy_any(uint64_t to, uint64_t from, uint64_t bytes, CUstream stream, const char *name)
{
    uint64_t number;
    struct fg_reply reply;
    char text[80];
    CUresult r = core_context(NULL);

    if (r)
        return r;
    number = fg_stream(stream);
    r = enqueue(number, to, from, bytes, &reply);
    if (r != FG_PAGEABLE)
        return r;
    snprintf(text, sizeof(text), "%s with pageable memory", name);
    fg_note_sync(text);
    r = wait_for(FG_SCOPE_STREAM, core_first_gpu(), number);
    if (r)
        return r;
    if (reply.v[0] == 3) {
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&stage_lock);
    r = staged(to, from, bytes, number, reply.v[0]);
    pthread_mutex_unlock(&stage_lock);
    return r;
}

static CUresult copy_now(uint64_t to, uint64_t from, uint64_t bytes, const char *name)
{
    CUresult r = core_context(NULL);

    if (r)
        return r;
    fg_note_sync(name);
    r = copy_any(to, from, bytes, NULL, name);
    return r ? r : wait_for(FG_SCOPE_STREAM, core_first_gpu(), fg_stream(NULL));
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy_now(to, from, bytes, "cuMemcpy");
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_any(to, from, bytes, stream, "cuMemcpyAsync");
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    return copy_now(ADDRESS(to), from, bytes, "cuMemcpyDtoH");
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy_any(to, ADDRESS(from), bytes, stream, "cuMemcpyHtoDAsync");
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_any(ADDRESS(to), from, bytes, stream, "cuMemcpyDtoHAsync");
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_any(to, from, bytes, stream, "cuMemcpyDtoDAsync");
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream)
{
    struct fg_request request = {.kind = FG_COPY, .a = {fg_stream(stream), to, from, bytes}};
    CUresult r = core_context(&request.device);

    if (!to_context || !from_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    request.a[4] = (core_gpu_of(to_context) + 1) | (core_gpu_of(from_context) + 1) << 8;
    return r ? r : (CUresult)fg_call(&request, NULL, NULL);
}

/* ---- fills ---------------------------------------------------------------------------------- */

static CUresult fill(CUdeviceptr to, uint32_t value, uint64_t width, size_t count,
                     CUstream stream)
{
    struct fg_request request = {.kind = FG_FILL, .device = core_first_gpu()};
    CUresult r = core_context(NULL);

    if (r)
        return r;
    request.a[0] = fg_stream(stream);
    request.a[1] = to;
    request.a[2] = value;
    request.a[3] = width;
    request.a[4] = count;
    return (CUresult)fg_call(&request, NULL, NULL);
}

static CUresult fill_now(CUdeviceptr to, uint32_t value, uint64_t width, size_t count,
                         const char *name)
{
    CUresult r = fill(to, value, width, count, NULL);

    if (r)
        return r;
    fg_note_sync(name);
    return wait_for(FG_SCOPE_STREAM, core_first_gpu(), fg_stream(NULL));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return fill(to, value, 1, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
    return fill(to, value, 4, count, stream);
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count)
{
    return fill_now(to, value, 1, count, "cuMemsetD8");
}
