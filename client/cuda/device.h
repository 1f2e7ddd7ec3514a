/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of libgradwire-cuda: the device, and the two ways in which its streams are ordered with
 * another process; the GPU decides when the device is made. Any thread.
 */
#ifndef GW_CLIENT_CUDA_DEVICE_H
#define GW_CLIENT_CUDA_DEVICE_H

#include <cuda.h>
#include <sys/types.h>

#include "client/lib/device.h"

struct cuda_device {
    struct gw_device device; /* first */
    CUdevice gpu;
    CUcontext context;
    pid_t pid; /* a forked child has no CUDA */
};

/* The device's context becomes current, until cuda_leave. */
CUresult cuda_enter(struct gw_device *device);
void cuda_leave(void);

/* words.c: 64-bit stream memory operations */
int cuda_stream_wait(struct gw_device *device, void *stream, uint64_t address, uint64_t value);
int cuda_stream_raise(struct gw_device *device, void *stream, uint64_t address, uint64_t value);

/* events.c: interprocess events */
int cuda_events_new(struct gw_device *device,
                    uint8_t handles[GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES],
                    struct gw_device_events **ret_events);
void cuda_events_free(struct gw_device *device, struct gw_device_events *events);
int cuda_events_record(struct gw_device *device, struct gw_device_events *events, void *stream,
                       uint64_t value);
int cuda_events_wait(struct gw_device *device, struct gw_device_events *events, void *stream,
                     uint64_t value);
int cuda_events_passed(struct gw_device *device, struct gw_device_events *events, uint64_t value);

#endif
