/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling process's CUDA driver: found when the first device is made, never linked. Its entry
 * points are written once, before any other thread can have a device; only read afterwards.
 */
#ifndef GW_CLIENT_CUDA_DRIVER_H
#define GW_CLIENT_CUDA_DRIVER_H

#include <cuda.h>

#define DRIVER_CALLS(CALL)                                                                         \
    CALL(cuInit)                                                                                   \
    CALL(cuGetErrorName)                                                                           \
    CALL(cuGetErrorString)                                                                         \
    CALL(cuDeviceGet)                                                                              \
    CALL(cuDeviceGetCount)                                                                         \
    CALL(cuDeviceGetUuid)                                                                          \
    CALL(cuDeviceGetAttribute)                                                                     \
    CALL(cuDevicePrimaryCtxRetain)                                                                 \
    CALL(cuDevicePrimaryCtxRelease)                                                                \
    CALL(cuCtxPushCurrent)                                                                         \
    CALL(cuCtxPopCurrent)                                                                          \
    CALL(cuStreamCreateWithPriority)                                                               \
    CALL(cuStreamDestroy)                                                                          \
    CALL(cuStreamQuery)                                                                            \
    CALL(cuStreamWaitEvent)                                                                        \
    CALL(cuEventCreate)                                                                            \
    CALL(cuEventDestroy)                                                                           \
    CALL(cuEventRecord)                                                                            \
    CALL(cuEventQuery)                                                                             \
    CALL(cuIpcGetEventHandle)                                                                      \
    CALL(cuStreamWaitValue64)                                                                      \
    CALL(cuStreamWriteValue64)                                                                     \
    CALL(cuMemHostAlloc)                                                                           \
    CALL(cuMemFreeHost)                                                                            \
    CALL(cuMemHostRegister)                                                                        \
    CALL(cuMemHostUnregister)                                                                      \
    CALL(cuMemHostGetDevicePointer)                                                                \
    CALL(cuMemAddressReserve)                                                                      \
    CALL(cuMemAddressFree)                                                                         \
    CALL(cuMemImportFromShareableHandle)                                                           \
    CALL(cuMemMap)                                                                                 \
    CALL(cuMemUnmap)                                                                               \
    CALL(cuMemSetAccess)                                                                           \
    CALL(cuMemRelease)                                                                             \
    CALL(cuMemcpyAsync)                                                                            \
    CALL(cuMemGetAddressRange)                                                                     \
    CALL(cuPointerGetAttribute)                                                                    \
    CALL(cuIpcGetMemHandle)

#define DRIVER_FIELD(call) __typeof__(&call) call;
struct driver {
    DRIVER_CALLS(DRIVER_FIELD)
};

/* cu.cuMemMap(...): the names as cuda.h maps them to the versions that it declares. */
extern struct driver cu;

/* 0, or GW_E_NO_DEVICE with why. Again: the same answer, but a driver that has come is found. */
int driver_open(void);
/* "what: text (CUDA_ERROR_X)" as the thread's error; returns `code`. */
int driver_error(int code, CUresult error, const char *what);

#endif
