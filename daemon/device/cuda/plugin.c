/* SPDX-License-Identifier: Apache-2.0 */
/* The one symbol of gradwire-cuda.so. Loop thread of whoever opens it. */
#include "daemon/device/cuda/device_cuda.h"
#include "daemon/device/cuda/driver.h"
#include "daemon/device/cuda/probe.h"
#include "daemon/fabric/nccl/nccl.h"
#include "proto/wire.h"

extern const struct plugin gradwire_plugin;

__attribute__((visibility("default"))) const struct plugin gradwire_plugin = {
    .version = GW_PLUGIN_VERSION,
    .device = GW_DEVICE_CUDA,
    .name = "cuda",
    .device_ops = &device_cuda,
    .fabric_ops = &fabric_nccl,
    .probe = cuda_probe,
    .doctor = cuda_doctor,
};
