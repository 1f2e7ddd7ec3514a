/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, errors, versions, entry points. */
#include <stdio.h>
#include <string.h>

#include "tests/fakegpu/runtime.h"

static _Thread_local cudaError_t last_error;

cudaError_t runtime_result(CUresult result)
{
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        last_error = (cudaError_t)result;
    return (cudaError_t)result;
}

cudaError_t runtime_ready(void)
{
    if (fg_current_gpu() >= 0)
        return cudaSuccess;
    return runtime_result(fg_gpu_count() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NO_DEVICE);
}

/* ---- devices -------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = fg_gpu_count();
    return *count ? cudaSuccess : runtime_result(CUDA_ERROR_NO_DEVICE);
}

cudaError_t cudaSetDevice(int device)
{
    return runtime_result((CUresult)fg_set_device(device));
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t r = runtime_ready();

    if (!r)
        *device = fg_ordinal_of_gpu(fg_current_gpu());
    return r;
}

static void properties(struct cudaDeviceProp *p, int device)
{
    int mps = 0, ipc = 0;
    CUuuid uuid;

    (void)cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
    (void)cuDeviceGetAttribute(&ipc, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, device);
    (void)cuDeviceGetUuid(&uuid, device);
    snprintf(p->name, sizeof(p->name), "Fake GPU");
    memcpy(&p->uuid, &uuid, sizeof(p->uuid));
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = 9;
    p->multiProcessorCount = 32;
    p->maxThreadsPerMultiProcessor = 2048;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = 1;
    p->streamPrioritiesSupported = p->hostRegisterSupported = 1;
    p->hostRegisterReadOnlySupported = p->computePreemptionSupported = 1;
    p->asyncEngineCount = 3;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = fg_gpu_of_ordinal(device) + 1;
    p->ipcEventSupported = ipc;
    p->mpsEnabled = mps;
    p->hostNumaId = -1;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    size_t total = 0;
    CUresult r = cuDeviceTotalMem(&total, device);

    if (r)
        return runtime_result(r);
    memset(p, 0, sizeof(*p));
    properties(p, device);
    p->totalGlobalMem = total;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device)
{
    return runtime_result(cuDeviceGetAttribute(value, (CUdevice_attribute)which, device));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return runtime_result(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr which, int from, int to)
{
    return runtime_result(cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)which, from, to));
}

static cudaError_t with_peer(int peer, CUresult (*call)(CUcontext context))
{
    CUcontext context;
    cudaError_t r = runtime_ready();
    CUresult result;

    if (r)
        return r;
    result = cuDevicePrimaryCtxRetain(&context, peer);
    if (result)
        return runtime_result(result);
    result = call(context);
    (void)cuDevicePrimaryCtxRelease(peer);
    return runtime_result(result);
}

static CUresult peer_on(CUcontext context)
{
    return cuCtxEnablePeerAccess(context, 0);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    return flags ? runtime_result(CUDA_ERROR_INVALID_VALUE) : with_peer(peer, peer_on);
}

cudaError_t cudaDeviceSynchronize(void)
{
    RUN(cuCtxSynchronize());
}

cudaError_t cudaDeviceReset(void)
{
    return runtime_ready();
}

/* ---- errors --------------------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;

    if (error == cudaErrorInvalidDeviceFunction)
        return "invalid device function";
    (void)cuGetErrorString((CUresult)error, &text);
    return text ? text : "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error)
{
    static const struct {
        cudaError_t error;
        const char *name;
    } names[] = {
        {cudaSuccess, "cudaSuccess"},
        {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
        {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
        {cudaErrorInitializationError, "cudaErrorInitializationError"},
        {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction"},
        {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable"},
        {cudaErrorNoDevice, "cudaErrorNoDevice"},
        {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
        {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
        {cudaErrorNotReady, "cudaErrorNotReady"},
        {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
        {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled"},
        {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled"},
        {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered"},
        {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered"},
        {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
        {cudaErrorNotPermitted, "cudaErrorNotPermitted"},
        {cudaErrorNotSupported, "cudaErrorNotSupported"},
        {cudaErrorUnknown, "cudaErrorUnknown"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].error == error)
            return names[i].name;
    return "unrecognized error code";
}

/* ---- versions ------------------------------------------------------------------------------- */

/* 0 where there is no driver, as documented. */
cudaError_t cudaDriverGetVersion(int *version)
{
    if (cuInit(0) == CUDA_SUCCESS)
        return runtime_result(cuDriverGetVersion(version));
    *version = 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **entry,
                                             unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *ret_status)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

    (void)cuGetProcAddress(symbol, entry, (int)version, flags, &status);
    if (ret_status)
        *ret_status = status == CU_GET_PROC_ADDRESS_SUCCESS ? cudaDriverEntryPointSuccess
                                                            : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
