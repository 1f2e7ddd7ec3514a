/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ways in which a device orders streams with clients and with each other. One is chosen
 * with the first GPU, for the whole job; what issues works (issue.c) never asks which.
 *
 *              words (words.c)                     events (events.c, tokens.c)
 *   needs      64-bit stream memory operations     events, interprocess ones of the clients
 *   a token    the stream waits for the word       the work is held back on the host until the
 *                                                  client's event or word says that it is reached
 *   a part     the stream writes a done word,      the stream records one of the lane's events, and
 *   of a work  other streams wait for it           other streams wait for that once it is recorded
 *
 * So with events no stream ever waits for another process: CUDA says nothing of a wait for an event
 * whose recorder has died, and such a stream might never go on. The price is paid in time: a work
 * is issued up to half a millisecond after its tokens are reached, and not ahead of them.
 */
#ifndef GW_DEVICE_CUDA_WAY_H
#define GW_DEVICE_CUDA_WAY_H

#include <stdbool.h>

#include "daemon/device/cuda/driver.h"
#include "daemon/device/cuda/work.h"

struct cuda_device;
struct cuda_gpu;

struct cuda_way {
    const char *name; /* for people */
    /* Loop thread, set-up path: what a lane needs on the GPU beside its streams. */
    int (*track_new)(struct cuda_gpu *gpu, uint32_t lane);
    void (*track_free)(struct cuda_gpu *gpu, uint32_t lane);
    /* Loop thread, with the lock held: the work is in the ledger. It goes to the issuing threads
     * (cuda_push_work), now or later. */
    void (*submit)(struct cuda_device *device, struct cuda_work *work);
    /* With the lock held: tokens may be reached now, for ranks were aborted or words raised. */
    void (*retry)(struct cuda_device *device);
    /* Issuing threads. False: the device is broken, or stops. */
    bool (*wait_tokens)(struct cuda_gpu *gpu, CUstream stream, const struct cuda_work *work);
    /* The GPU's part of op ends here: behind all that the lane's work stream holds. */
    bool (*mark)(struct cuda_gpu *gpu, uint32_t lane, uint64_t op);
    /* The stream waits until the parts of op `value` of that lane on the GPUs of `ranks` have
     * ended. Theirs were given to the issuing threads before what this is done for. */
    bool (*wait)(struct cuda_gpu *gpu, CUstream stream, uint32_t lane, uint64_t ranks,
                 uint64_t value, uint64_t op);
    /* With the lock held: the GPU's part has been told as ended. */
    void (*ended)(struct cuda_gpu *gpu, uint32_t lane, uint64_t op);
    /* Issuing thread, between its items, at gpu->look_ns: asks what no stream waits for. */
    void (*look)(struct cuda_gpu *gpu);
};

extern const struct cuda_way cuda_words, cuda_events;

/* tokens.c: works that are held back until the tokens of clients are reached. */
void cuda_tokens_submit(struct cuda_device *device, struct cuda_work *work);
void cuda_tokens_retry(struct cuda_device *device);
void cuda_tokens_look(struct cuda_gpu *gpu);
/* struct device_ops.timeline_events */
int cuda_timeline_events(struct device *device, uint32_t rank, const _Atomic uint64_t *word,
                         const uint8_t *handles, char text[GW_TEXT_MAX + 1]);
/* Closes the events of timelines in a page that goes; NULL: all. */
void cuda_timelines_drop(struct cuda_device *device, const void *page, size_t bytes);

#endif
