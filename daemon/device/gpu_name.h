/* SPDX-License-Identifier: Apache-2.0 */
/* How a GPU is called in messages and files, as nvidia-smi writes its UUID:
 * "GPU-00112233-4455-6677-8899-aabbccddeeff". Pure. */
#ifndef GW_DEVICE_GPU_NAME_H
#define GW_DEVICE_GPU_NAME_H

#include <stdint.h>
#include <stdio.h>

#include "proto/wire.h"

#define DEVICE_GPU_NAME_BYTES 48u

static inline void device_gpu_name(const uint8_t gpu[GW_GPU_BYTES],
                                   char ret_name[DEVICE_GPU_NAME_BYTES])
{
    size_t used = (size_t)snprintf(ret_name, DEVICE_GPU_NAME_BYTES, "GPU-");

    for (unsigned i = 0; i < GW_GPU_BYTES; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        used += (size_t)snprintf(ret_name + used, DEVICE_GPU_NAME_BYTES - used, "%s%02x", dash,
                                 gpu[i]);
    }
}

#endif
