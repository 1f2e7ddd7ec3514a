/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, stream memory operations and host functions. */
#include <string.h>

#include "tests/fakegpu/driver.h"

CUstream stream_handle(uint64_t number)
{
    return (CUstream)(uintptr_t)(STREAM_TAG | number);
}

CUevent event_handle(uint64_t number)
{
    return (CUevent)(uintptr_t)(EVENT_TAG | number);
}

uint64_t event_number(CUevent event)
{
    return (ADDRESS(event) & TAG_MASK) == EVENT_TAG ? ADDRESS(event) & ~TAG_MASK : 0;
}

/* The NULL stream of the current device, or the thread's own. */
static uint64_t special_stream(bool of_thread)
{
    static _Thread_local uint64_t own[FG_GPUS_MAX];
    int gpu = fg_current_gpu();
    struct fg_reply reply;

    if (gpu < 0)
        return 0;
    if (!of_thread)
        return core_call(FG_STREAM_NULL, (uint32_t)gpu, ARGS(0), &reply) ? 0 : reply.v[0];
    if (!own[gpu] && !core_call(FG_STREAM_NEW, (uint32_t)gpu, ARGS(2, 0), &reply))
        own[gpu] = reply.v[0];
    return own[gpu];
}

uint64_t fg_stream(void *stream)
{
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return special_stream(false);
    if (stream == CU_STREAM_PER_THREAD)
        return special_stream(true);
    return (ADDRESS(stream) & TAG_MASK) == STREAM_TAG ? ADDRESS(stream) & ~TAG_MASK : 0;
}

CUresult wait_for(uint32_t scope, uint32_t gpu, uint64_t number)
{
    uint32_t us = 20;
    CUresult r;

    while ((r = core_call(FG_QUERY, gpu, ARGS(scope, number), NULL)) == FG_BUSY)
        core_nap(&us);
    return r;
}

/* ---- streams -------------------------------------------------------------------------------- */

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    struct fg_reply reply;
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (!r && flags & ~1u)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = core_call(FG_STREAM_NEW, gpu, ARGS(flags, (uint64_t)(int64_t)priority), &reply);
    if (!r)
        *stream = stream_handle(reply.v[0]);
    return r;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy(CUstream stream)
{
    CUresult r = core_open();

    if ((ADDRESS(stream) & TAG_MASK) != STREAM_TAG)
        return CUDA_ERROR_INVALID_HANDLE;
    return r ? r : core_call(FG_STREAM_FREE, core_first_gpu(), ARGS(fg_stream(stream)), NULL);
}

CUresult cuStreamQuery(CUstream stream)
{
    CUresult r = core_open();

    if (!r)
        r = core_call(FG_QUERY, core_first_gpu(), ARGS(FG_SCOPE_STREAM, fg_stream(stream)), NULL);
    return r == FG_BUSY ? CUDA_ERROR_NOT_READY : r;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CUresult r = core_open();

    if (r)
        return r;
    fg_note_sync("cuStreamSynchronize");
    return wait_for(FG_SCOPE_STREAM, core_first_gpu(), fg_stream(stream));
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    (void)flags;
    return core_call(FG_EVENT_WAIT, core_first_gpu(),
                     ARGS(fg_stream(stream), event_number(event)), NULL);
}

/* ---- events --------------------------------------------------------------------------------- */

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    struct fg_reply reply;
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (!r && (flags & ~7u || (flags & 6u) == CU_EVENT_INTERPROCESS)) /* which has no timing */
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = core_call(FG_EVENT_NEW, gpu, ARGS(flags), &reply);
    if (!r)
        *event = event_handle(reply.v[0]);
    return r;
}

CUresult cuEventDestroy(CUevent event)
{
    return core_call(FG_EVENT_FREE, core_first_gpu(), ARGS(event_number(event)), NULL);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return core_call(FG_EVENT_RECORD, core_first_gpu(),
                     ARGS(fg_stream(stream), event_number(event)), NULL);
}

CUresult cuEventQuery(CUevent event)
{
    CUresult r = core_call(FG_QUERY, core_first_gpu(),
                           ARGS(FG_SCOPE_EVENT, event_number(event)), NULL);

    return r == FG_BUSY ? CUDA_ERROR_NOT_READY : r;
}

CUresult cuEventSynchronize(CUevent event)
{
    fg_note_sync("cuEventSynchronize");
    return wait_for(FG_SCOPE_EVENT, core_first_gpu(), event_number(event));
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    struct fg_reply reply;
    CUresult r = core_call(FG_EVENT_ELAPSED, core_first_gpu(),
                           ARGS(event_number(start), event_number(end)), &reply);

    if (!r)
        *ms = (float)((double)(int64_t)reply.v[0] / 1e6);
    return r;
}

/* ---- memory operations ---------------------------------------------------------------------- */

static CUresult memop(CUstream stream, const struct fg_memop *op)
{
    struct fg_request request = {.kind = FG_MEMOP, .device = core_first_gpu(),
                                 .payload_bytes = (uint32_t)sizeof(*op)};
    CUresult r = core_context(NULL);

    if (r)
        return r;
    request.a[0] = fg_stream(stream);
    return (CUresult)fg_call(&request, op, NULL);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                             unsigned int flags)
{
    struct fg_memop op = {.kind = FG_MEMOP_WAIT, .compare = flags & 3u, .address = address,
                          .value = value};

    /* Flushing of remote writes is a capability that this GPU does not claim. */
    return flags & ~3u ? CUDA_ERROR_NOT_SUPPORTED : memop(stream, &op);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned int flags)
{
    struct fg_memop op = {.kind = FG_MEMOP_WRITE, .address = address, .value = value};

    return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : memop(stream, &op);
}

/* ---- host functions ------------------------------------------------------------------------- */

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
    return core_call(FG_HOSTFN, core_first_gpu(),
                     ARGS(fg_stream(stream), ADDRESS(function), ADDRESS(argument)), NULL);
}

CUresult cuCtxSynchronize(void)
{
    uint32_t gpu;
    CUresult r = core_context(&gpu);

    if (r)
        return r;
    fg_note_sync("cuCtxSynchronize");
    return wait_for(FG_SCOPE_DEVICE, gpu, 0);
}
