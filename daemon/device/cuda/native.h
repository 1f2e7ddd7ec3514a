/* SPDX-License-Identifier: Apache-2.0 */
/* What a work's run gets on a cuda device, and what a fabric may ask of it. See device.h. */
#ifndef GW_DEVICE_CUDA_NATIVE_H
#define GW_DEVICE_CUDA_NATIVE_H

#include <stdint.h>

#include "daemon/device/device.h"

/*
 * Only during run, on the issuing thread of the rank's GPU, which is current there. What run
 * enqueues is behind all earlier works of the lane that any rank of this work took part in, on the
 * GPUs of all ranks of those, not only on this GPU: parts read and write each other's memory.
 */
struct cuda_native {
    struct device *device;
    uint32_t rank;
    int gpu;      /* CUDA ordinal */
    void *stream; /* CUstream of the work's lane on that GPU */
};

/* On any thread: the device cannot go on; told by take_fault, once. No signal is raised any more:
 * what parts have left behind may be half of a result. */
void cuda_fault(struct device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Such a fault has come, or the device ends: what issuing threads have to do is dropped, calls
 * too. Any thread. */
bool cuda_broken(const struct device *device);
/* Loop thread: runs `call` on the issuing thread of the rank's GPU, after what is queued there;
 * `release` on the loop thread afterwards. For communicators. */
int cuda_call(struct device *device, uint32_t rank, void (*call)(void *arg, int gpu), void *arg,
              void (*release)(void *arg));
/* Loop thread: from now on `idle` runs on the issuing thread of the rank's GPU, about every 100 ms
 * while works are unfinished, whatever else is queued there; NULL: no more (it may still be running
 * when this returns). For errors that come without a call. */
int cuda_idle(struct device *device, uint32_t rank, void (*idle)(void *arg, int gpu), void *arg);
/* Where streams and kernels reach `host` inside a page of page_add; NULL: inside none. */
void *cuda_page_address(const struct device *device, const void *host);
/* -1: the rank has no place. */
int cuda_gpu(const struct device *device, uint32_t rank);
/* Pinned host memory, zeroed, that all of the job's GPUs reach at the same address; set-up path
 * only. */
int cuda_pinned_new(struct device *device, size_t bytes, void **ret_base);
void cuda_pinned_free(struct device *device, void *base);
/* Memory of the rank's GPU, not shared with clients; set-up path only. */
int cuda_scratch_new(struct device *device, uint32_t rank, size_t bytes, void **ret_base);
void cuda_scratch_free(struct device *device, uint32_t rank, void *base);
/* The GPU of `other` may use what the device made on `rank`'s: kernels and plain copies of its
 * streams reach it. Any thread. */
bool cuda_peers(const struct device *device, uint32_t rank, uint32_t other);
/* Loop thread: `at` lies in memory that a client exported by IPC. It is open in one context, and
 * CUDA says of no other that it may use it: only streams of its rank's own GPU do, whatever
 * cuda_peers says; others by cuda_copy_apart. */
bool cuda_imported(const struct device *device, const void *at);
/* On the issuing thread of one of the two ranks' GPUs: enqueues a copy in which each GPU touches
 * its own memory only, for where it may touch no other's. The CUresult. */
int cuda_copy_apart(struct device *device, void *to, uint32_t to_rank, const void *from,
                    uint32_t from_rank, uint64_t bytes, void *stream);

#endif
