/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a driver and GPUs are there, and the driver's entry points. Loop thread; owns the table
 * of entry points, which lives as long as the process.
 */
#include "daemon/device/cuda/driver.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "gradwire/errors.h"

struct cuda_driver cu;

static const struct {
    const char *name;
    size_t at;
} calls[] = {
#define CUDA_DRIVER_ROW(call) {#call, offsetof(struct cuda_driver, call)},
    CUDA_DRIVER_CALLS(CUDA_DRIVER_ROW)};

int cuda_probe(char text[GW_TEXT_MAX + 1])
{
    int version = 0, count = 0;
    cudaError_t error;

    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    error = cudaDriverGetVersion(&version);
    if (error != cudaSuccess || version == 0) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "no NVIDIA driver: libcuda.so.1 is not there; install a driver for CUDA 13 (580 "
                 "or newer)");
        return GW_E_NO_DEVICE;
    }
    if (version < GW_CUDA_ABI) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "the NVIDIA driver is for CUDA %d.%d, 13.0 is needed: install driver 580 or newer",
                 version / 1000, version % 1000 / 10);
        return GW_E_NO_DEVICE;
    }
    error = cudaGetDeviceCount(&count);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        snprintf(
            text, GW_TEXT_MAX + 1,
            "a driver for CUDA %d.%d, but no GPU that this process may use: look at nvidia-smi, "
            "at CUDA_VISIBLE_DEVICES and at what the container passes in",
            version / 1000, version % 1000 / 10);
        return GW_E_NO_DEVICE;
    }
    if (error != cudaSuccess) {
        snprintf(text, GW_TEXT_MAX + 1, "the NVIDIA driver does not start: %s (%s)",
                 cudaGetErrorString(error), cudaGetErrorName(error));
        return GW_E_NO_DEVICE;
    }
    return count;
}

int cuda_driver_open(char text[GW_TEXT_MAX + 1])
{
    static bool open;
    int count = cuda_probe(text);
    CUresult result;

    if (count < 0 || open)
        return count;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void **entry = (void **)(void *)((char *)&cu + calls[i].at);
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        cudaError_t error = cudaGetDriverEntryPointByVersion(calls[i].name, entry, GW_CUDA_ABI,
                                                             cudaEnableDefault, &found);
        if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || !*entry) {
            snprintf(text, GW_TEXT_MAX + 1,
                     "the NVIDIA driver lacks %s: install driver 580 or newer", calls[i].name);
            return GW_E_NO_DEVICE;
        }
    }
    result = cu.cuInit(0);
    if (result != CUDA_SUCCESS) {
        snprintf(text, GW_TEXT_MAX + 1, "the NVIDIA driver does not start: error %d", (int)result);
        return GW_E_NO_DEVICE;
    }
    open = true;
    return count;
}

void cuda_error_text(int error, char *text, size_t size)
{
    const char *name = NULL, *what = NULL;

    (void)cu.cuGetErrorName((CUresult)error, &name);
    (void)cu.cuGetErrorString((CUresult)error, &what);
    snprintf(text, size, "%s (%s %d)", what ? what : "unknown error", name ? name : "error", error);
}
