/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait for words and raise them (client/lib/device.h). Any thread. */
#include "client/cuda/device.h"
#include "client/cuda/driver.h"

int cuda_stream_wait(struct gw_device *device, void *stream, uint64_t address, uint64_t value)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamWaitValue64(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ);
    cuda_leave();
    return error == CUDA_SUCCESS ? 0
                                 : driver_error(GW_E_DEVICE, error, "a wait in the job's stream");
}

/* With the barrier that the call has by default. */
int cuda_stream_raise(struct gw_device *device, void *stream, uint64_t address, uint64_t value)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamWriteValue64(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    cuda_leave();
    return error == CUDA_SUCCESS ? 0
                                 : driver_error(GW_E_DEVICE, error, "a mark in the job's stream");
}
