/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points of GPUs for gwctl doctor.
 *
 *   probe.c        libraries, and each GPU
 *   probe_peers.c  pairs of GPUs
 */
#ifndef GW_DEVICE_CUDA_PROBE_H
#define GW_DEVICE_CUDA_PROBE_H

#include "daemon/device/plugin.h"

#define PROBE_GPUS_MAX 64 /* of a node: bits of a word */

/* struct plugin's doctor. */
void cuda_doctor(plugin_point *point, void *user);

void cuda_doctor_peers(plugin_point *point, void *user, int gpus);

#endif
