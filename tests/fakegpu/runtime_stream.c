/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, host functions. */
#include "tests/fakegpu/runtime.h"

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    RUN(cuStreamCreateWithPriority(stream, flags, 0));
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    RUN(cuStreamCreateWithPriority(stream, 0, 0));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    RUN(cuStreamDestroy(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    RUN(cuStreamQuery(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    RUN(cuStreamSynchronize(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    RUN(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    RUN(cuEventCreate(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    RUN(cuEventCreate(event, 0));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    RUN(cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    RUN(cuEventRecord(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    RUN(cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    RUN(cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    RUN(cuEventElapsedTime(ms, start, end));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    RUN(cuLaunchHostFunc(stream, function, argument));
}
