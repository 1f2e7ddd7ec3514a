/* SPDX-License-Identifier: Apache-2.0 */
/* What the plug-in hands out of the cuda device. */
#ifndef GW_DEVICE_CUDA_DEVICE_CUDA_H
#define GW_DEVICE_CUDA_DEVICE_CUDA_H

#include "daemon/device/plugin.h"

extern const struct device_ops device_cuda;

#endif
