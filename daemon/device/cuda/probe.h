/* SPDX-License-Identifier: Apache-2.0 */
/* Points of GPUs for gwctl doctor: struct plugin's doctor. */
#ifndef GW_DEVICE_CUDA_PROBE_H
#define GW_DEVICE_CUDA_PROBE_H

#include "daemon/device/plugin.h"

void cuda_doctor(plugin_point *point, void *user);

#endif
