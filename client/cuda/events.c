/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Own timelines as rings of interprocess events (client/lib/device.h). Any thread; calls on one
 * ring are one after the other.
 *
 * Events of a ring are recorded in one stream, in the order of their values. So an event that has
 * been recorded again since tells of more than was asked for, never of less.
 */
#include <stdlib.h>
#include <string.h>

#include "client/cuda/device.h"
#include "client/cuda/driver.h"

struct gw_device_events {
    CUevent event[GW_TIMELINE_EVENTS];
    uint64_t recorded; /* the last value */
};

/* The event that tells of the value, or the oldest there is that tells of more. */
static CUevent event_of(const struct gw_device_events *events, uint64_t value)
{
    if (value + GW_TIMELINE_EVENTS <= events->recorded)
        value = events->recorded - GW_TIMELINE_EVENTS + 1;
    return events->event[value % GW_TIMELINE_EVENTS];
}

static void destroy(struct gw_device_events *events)
{
    for (uint32_t i = 0; i < GW_TIMELINE_EVENTS; i++)
        if (events->event[i])
            (void)cu.cuEventDestroy(events->event[i]);
    free(events);
}

int cuda_events_new(struct gw_device *device,
                    uint8_t handles[GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES],
                    struct gw_device_events **ret_events)
{
    const unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    struct gw_device_events *events = calloc(1, sizeof(*events));
    CUipcEventHandle handle;
    CUresult error;

    if (!events)
        return gw_private_error(GW_E_NOMEM, "no memory for a timeline's events");
    error = cuda_enter(device);
    if (error != CUDA_SUCCESS) {
        free(events);
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    }
    for (uint32_t i = 0; i < GW_TIMELINE_EVENTS && error == CUDA_SUCCESS; i++) {
        _Static_assert(sizeof(handle) == GW_IPC_HANDLE_BYTES, "a handle on the wire");
        error = cu.cuEventCreate(&events->event[i], flags);
        if (error == CUDA_SUCCESS)
            error = cu.cuIpcGetEventHandle(&handle, events->event[i]);
        if (error == CUDA_SUCCESS)
            memcpy(handles + i * sizeof(handle), &handle, sizeof(handle));
    }
    if (error != CUDA_SUCCESS)
        destroy(events);
    cuda_leave();
    if (error != CUDA_SUCCESS)
        return driver_error(error == CUDA_ERROR_OUT_OF_MEMORY ? GW_E_NOMEM : GW_E_DEVICE, error,
                            "interprocess events cannot be made");
    *ret_events = events;
    return 0;
}

void cuda_events_free(struct gw_device *device, struct gw_device_events *events)
{
    if (cuda_enter(device) != CUDA_SUCCESS)
        return;
    destroy(events);
    cuda_leave();
}

int cuda_events_record(struct gw_device *device, struct gw_device_events *events, void *stream,
                       uint64_t value)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuEventRecord(events->event[value % GW_TIMELINE_EVENTS], stream);
    cuda_leave();
    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "a mark in the job's stream");
    events->recorded = value;
    return 0;
}

int cuda_events_wait(struct gw_device *device, struct gw_device_events *events, void *stream,
                     uint64_t value)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuStreamWaitEvent(stream, event_of(events, value), CU_EVENT_WAIT_DEFAULT);
    cuda_leave();
    return error == CUDA_SUCCESS ? 0
                                 : driver_error(GW_E_DEVICE, error, "a wait in the job's stream");
}

int cuda_events_passed(struct gw_device *device, struct gw_device_events *events, uint64_t value)
{
    CUresult error = cuda_enter(device);

    if (error != CUDA_SUCCESS)
        return driver_error(GW_E_DEVICE, error, "the GPU's context");
    error = cu.cuEventQuery(event_of(events, value));
    cuda_leave();
    if (error == CUDA_ERROR_NOT_READY)
        return GW_E_AGAIN;
    return error == CUDA_SUCCESS ? 0 : driver_error(GW_E_DEVICE, error, "a look at an event");
}
