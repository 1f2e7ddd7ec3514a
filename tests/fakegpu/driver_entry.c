/* SPDX-License-Identifier: Apache-2.0 */
/* cuGetProcAddress: names without version, as the documentation lists them. Read-only. */
#include <string.h>

#include "tests/fakegpu/driver.h"

/* One macro only: # takes the name before cuda.h's macros turn it into its newest version's. */
#define ROW(call) {#call, (void *)(uintptr_t)call},

static const struct {
    const char *name;
    void *entry;
} entries[] = {
    ROW(cuCtxEnablePeerAccess)
    ROW(cuCtxGetStreamPriorityRange)
    ROW(cuCtxPopCurrent)
    ROW(cuCtxPushCurrent)
    ROW(cuCtxSetCurrent)
    ROW(cuCtxSynchronize)
    ROW(cuDeviceCanAccessPeer)
    ROW(cuDeviceGet)
    ROW(cuDeviceGetAttribute)
    ROW(cuDeviceGetCount)
    ROW(cuDeviceGetP2PAttribute)
    ROW(cuDeviceGetUuid)
    ROW(cuDevicePrimaryCtxRelease)
    ROW(cuDevicePrimaryCtxRetain)
    ROW(cuDeviceTotalMem)
    ROW(cuDriverGetVersion)
    ROW(cuEventCreate)
    ROW(cuEventDestroy)
    ROW(cuEventElapsedTime)
    ROW(cuEventQuery)
    ROW(cuEventRecord)
    ROW(cuEventSynchronize)
    ROW(cuGetErrorName)
    ROW(cuGetErrorString)
    ROW(cuGetProcAddress)
    ROW(cuInit)
    ROW(cuIpcCloseMemHandle)
    ROW(cuIpcGetEventHandle)
    ROW(cuIpcGetMemHandle)
    ROW(cuIpcOpenEventHandle)
    ROW(cuIpcOpenMemHandle)
    ROW(cuLaunchHostFunc)
    ROW(cuMemAddressFree)
    ROW(cuMemAddressReserve)
    ROW(cuMemAlloc)
    ROW(cuMemCreate)
    ROW(cuMemExportToShareableHandle)
    ROW(cuMemFree)
    ROW(cuMemFreeHost)
    ROW(cuMemGetAddressRange)
    ROW(cuMemGetAllocationGranularity)
    ROW(cuMemGetInfo)
    ROW(cuMemHostAlloc)
    ROW(cuMemHostGetDevicePointer)
    ROW(cuMemHostRegister)
    ROW(cuMemHostUnregister)
    ROW(cuMemImportFromShareableHandle)
    ROW(cuMemMap)
    ROW(cuMemRelease)
    ROW(cuMemSetAccess)
    ROW(cuMemUnmap)
    ROW(cuMemcpy)
    ROW(cuMemcpyAsync)
    ROW(cuMemcpyDtoDAsync)
    ROW(cuMemcpyDtoH)
    ROW(cuMemcpyDtoHAsync)
    ROW(cuMemcpyHtoDAsync)
    ROW(cuMemcpyPeerAsync)
    ROW(cuMemsetD32Async)
    ROW(cuMemsetD8)
    ROW(cuMemsetD8Async)
    ROW(cuPointerGetAttribute)
    ROW(cuStreamCreate)
    ROW(cuStreamCreateWithPriority)
    ROW(cuStreamDestroy)
    ROW(cuStreamQuery)
    ROW(cuStreamSynchronize)
    ROW(cuStreamWaitEvent)
    ROW(cuStreamWaitValue64)
    ROW(cuStreamWriteValue64)
};

CUresult cuGetProcAddress(const char *symbol, void **entry, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status)
{
    (void)flags;
    *entry = NULL;
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        if (!strcmp(entries[i].name, symbol))
            *entry = entries[i].entry;
    /* Older versions of some calls have other arguments: not here. */
    if (*entry && version < 13000)
        *entry = NULL;
    if (status)
        *status = *entry ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *entry ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
