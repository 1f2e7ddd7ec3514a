/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job asks of the rank's GPU: a table that libgradwire-cuda implements with the driver API
 * (client/cuda), and unit tests with none. libgradwire itself never loads a CUDA library.
 *
 * Calls come from any thread, and several at once. None waits for the GPU. They make the device's
 * context current for their duration only. A call that fails returns a GW_E_* with the thread's
 * text set (gw_private_error). None is made in a forked child.
 */
#ifndef GW_CLIENT_DEVICE_H
#define GW_CLIENT_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire/gradwire.h"
#include "proto/wire.h"

#define GW_DEVICE_TABLE 2u /* version: libgradwire and libgradwire-cuda must agree */

struct gw_device;
struct gw_device_events;

/* The caller's memory for another process: a part of an allocation. */
struct gw_device_export {
    uint8_t handle[GW_IPC_HANDLE_BYTES];
    uint64_t allocation_bytes, offset;
};

struct gw_device_ops {
    uint32_t version; /* GW_DEVICE_TABLE */
    uint32_t kind;    /* enum gw_device_kind */

    /* Bulk memory that the engine exported as `fd`, which stays the caller's. */
    int (*map)(struct gw_device *device, int fd, uint64_t mapped_bytes, void **ret_base);
    void (*unmap)(struct gw_device *device, void *base, uint64_t mapped_bytes);

    /* Host pages (mapped shared and writable) whose words streams wait for and raise; address: as
     * the device sees `base`. Removed when no stream can reach them any more. */
    int (*page_add)(struct gw_device *device, void *base, size_t bytes, uint64_t *ret_address);
    void (*page_remove)(struct gw_device *device, void *base);

    /* NULL is the default stream. GW_E_INVALID: not one stream, but one per thread. */
    int (*stream_check)(struct gw_device *device, void *stream);
    /* A stream of the library's own, that no other stream waits for. */
    int (*stream_new)(struct gw_device *device, void **ret_stream);
    void (*stream_free)(struct gw_device *device, void *stream);
    /* Words, or NULL where streams have no memory operations. Behind all that was enqueued before:
     * waits until (int64_t)(word - value) >= 0; stores value, all that came before being visible
     * then. */
    int (*stream_wait)(struct gw_device *device, void *stream, uint64_t address, uint64_t value);
    int (*stream_raise)(struct gw_device *device, void *stream, uint64_t address, uint64_t value);
    /* Events instead; NULL where there are words. GW_TIMELINE_EVENTS of them tell of the values of
     * one timeline, by turns, in this process and, by their handles (for TIMELINE_EVENTS), in
     * another, which must have closed them before they are freed. Calls on one timeline are one
     * after the other. */
    int (*events_new)(struct gw_device *device,
                      uint8_t handles[GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES],
                      struct gw_device_events **ret_events);
    void (*events_free)(struct gw_device *device, struct gw_device_events *events);
    /* Values rise by 1. */
    int (*events_record)(struct gw_device *device, struct gw_device_events *events, void *stream,
                         uint64_t value);
    /* In the stream, until `value` is reached. */
    int (*events_wait)(struct gw_device *device, struct gw_device_events *events, void *stream,
                       uint64_t value);
    /* On the host: 0: `value` is reached. GW_E_AGAIN (no text): not yet. */
    int (*events_passed)(struct gw_device *device, struct gw_device_events *events, uint64_t value);
    /* 0: all that was enqueued there has run. GW_E_AGAIN (no text): not yet. */
    int (*stream_idle)(struct gw_device *device, void *stream);
    /* Whether `base` lies on a GPU. */
    bool (*on_device)(struct gw_device *device, const void *base);
    /* Between places on the device, or from host_new's memory to it, or back. */
    int (*copy)(struct gw_device *device, void *stream, void *to, const void *from, size_t bytes);
    /* Host memory that copies need not wait for. */
    int (*host_new)(struct gw_device *device, size_t bytes, void **ret_base);
    void (*host_free)(struct gw_device *device, void *base);

    /* GW_E_INVALID: no device memory, or not of this device. GW_E_UNIMPLEMENTED: memory that cannot
     * be exported. */
    int (*export_memory)(struct gw_device *device, const void *base, size_t bytes,
                         struct gw_device_export *ret_export);
};

/* Made by gw_cuda_device_new. */
struct gw_device {
    const struct gw_device_ops *ops;
    uint8_t gpu[GW_GPU_BYTES];
    atomic_uint jobs; /* that use it */
    /* A job was closed while streams still held work on its memory: nothing is unmapped then. */
    atomic_bool stuck;
};

/* Sets the calling thread's text and returns `code`. For the libraries beside this one (cuda,
 * deepspeed, MPI); no call of the public interface. */
GW_API int gw_private_error(int code, const char *text);

#endif
