/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's entry points, found once through the runtime: the plug-in loads, and says why it
 * cannot be used, on a machine without a driver. Filled on the loop thread before any other thread
 * of the device starts; only read afterwards.
 */
#ifndef GW_DEVICE_CUDA_DRIVER_H
#define GW_DEVICE_CUDA_DRIVER_H

#include <cuda.h>
#include <stdint.h>

#include "proto/limits.h"

#define CUDA_DRIVER_CALLS(CALL)                                                                    \
    CALL(cuInit)                                                                                   \
    CALL(cuGetErrorName)                                                                           \
    CALL(cuGetErrorString)                                                                         \
    CALL(cuDeviceGet)                                                                              \
    CALL(cuDeviceGetCount)                                                                         \
    CALL(cuDeviceGetUuid)                                                                          \
    CALL(cuDeviceGetAttribute)                                                                     \
    CALL(cuDeviceCanAccessPeer)                                                                    \
    CALL(cuDevicePrimaryCtxRetain)                                                                 \
    CALL(cuDevicePrimaryCtxRelease)                                                                \
    CALL(cuCtxSetCurrent)                                                                          \
    CALL(cuCtxGetStreamPriorityRange)                                                              \
    CALL(cuCtxEnablePeerAccess)                                                                    \
    CALL(cuStreamCreateWithPriority)                                                               \
    CALL(cuStreamDestroy)                                                                          \
    CALL(cuStreamQuery)                                                                            \
    CALL(cuStreamWaitValue64)                                                                      \
    CALL(cuStreamWriteValue64)                                                                     \
    CALL(cuLaunchHostFunc)                                                                         \
    CALL(cuStreamWaitEvent)                                                                        \
    CALL(cuEventCreate)                                                                            \
    CALL(cuEventDestroy)                                                                           \
    CALL(cuEventRecord)                                                                            \
    CALL(cuEventQuery)                                                                             \
    CALL(cuIpcOpenEventHandle)                                                                     \
    CALL(cuMemHostAlloc)                                                                           \
    CALL(cuMemFreeHost)                                                                            \
    CALL(cuMemHostRegister)                                                                        \
    CALL(cuMemHostUnregister)                                                                      \
    CALL(cuMemHostGetDevicePointer)                                                                \
    CALL(cuMemGetAllocationGranularity)                                                            \
    CALL(cuMemCreate)                                                                              \
    CALL(cuMemRelease)                                                                             \
    CALL(cuMemAddressReserve)                                                                      \
    CALL(cuMemAddressFree)                                                                         \
    CALL(cuMemMap)                                                                                 \
    CALL(cuMemUnmap)                                                                               \
    CALL(cuMemSetAccess)                                                                           \
    CALL(cuMemExportToShareableHandle)                                                             \
    CALL(cuMemcpyAsync)                                                                            \
    CALL(cuMemcpyPeerAsync)                                                                        \
    CALL(cuMemsetD8Async)                                                                          \
    CALL(cuMemGetAddressRange)                                                                     \
    CALL(cuIpcOpenMemHandle)                                                                       \
    CALL(cuIpcCloseMemHandle)

#define CUDA_DRIVER_FIELD(call) __typeof__(&call) call;
struct cuda_driver {
    CUDA_DRIVER_CALLS(CUDA_DRIVER_FIELD)
};

/* cu.cuMemMap(...): the names as cuda.h maps them to the versions that it declares. */
extern struct cuda_driver cu;

/* Number of GPUs; GW_E_NO_DEVICE and why. Sets CUDA_DEVICE_MAX_CONNECTIONS unless it is set: one
 * hardware queue per stream, so that a stream that waits holds up no other. Makes no context. */
int cuda_probe(char text[GW_TEXT_MAX + 1]);
/* cuda_probe, then the entry points. Again: nothing more. */
int cuda_driver_open(char text[GW_TEXT_MAX + 1]);
/* "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)". Any thread. */
void cuda_error_text(int error, char *text, size_t size);

#endif
