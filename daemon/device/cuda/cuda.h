/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the cuda device: what its files share. Not for users of the device table, nor for
 * fabrics (native.h).
 *
 * Threads: the engine's loop thread calls the table; one issuing thread per GPU enqueues on its
 * streams, in the order of the loop's calls; a thread of the driver runs host functions (done.c),
 * which make no CUDA call. What they share is under cuda_device.lock, which is never held during a
 * CUDA call.
 */
#ifndef GW_DEVICE_CUDA_CUDA_H
#define GW_DEVICE_CUDA_CUDA_H

#include <pthread.h>

#include "daemon/device/cuda/driver.h"
#include "daemon/device/cuda/imports.h"
#include "daemon/device/cuda/kernels.h"
#include "daemon/device/cuda/native.h"
#include "daemon/device/cuda/way.h"
#include "daemon/device/cuda/work.h"

#define CUDA_STAMP_SLOTS 2048u /* works in flight with stamps of their own; others share slot 0 */
#define CUDA_SLOT_PARTS (GW_GPU_RANKS_MAX + 1u) /* the last one in use: the result of the parts */
#define CUDA_TICK_NS 100000000u /* how often an issuing thread looks after what is unfinished */

/* Pinned host memory that all GPUs reach at the same address. */
struct cuda_shared {
    uint64_t aborted;                            /* bit per rank; kernels read it */
    uint64_t done[CUDA_LANES_MAX][GW_GPU_RANKS_MAX]; /* words.c: ops that have run */
    struct gw_k_lane runs[CUDA_LANES_MAX][GW_GPU_RANKS_MAX];
    uint64_t link_free_ns[GW_GPU_RANKS_MAX];
    uint64_t clock[GW_GPU_RANKS_MAX]; /* for the measurement of clock_ns */
};

struct cuda_mark;     /* events.c */
struct cuda_timeline; /* tokens.c */

struct cuda_track { /* of one lane on one GPU */
    CUstream work, notify;
    /* events.c; under the device's lock */
    struct cuda_mark *marks;
    uint32_t next;          /* the mark to be recorded next */
    uint64_t issued, ended; /* ops whose part is enqueued, and over */
};

/* The GPU of one rank. */
struct cuda_gpu {
    struct cuda_device *device;
    uint32_t rank;
    bool placed;
    int ordinal;
    CUdevice handle;
    CUcontext context;
    uint8_t uuid[GW_GPU_BYTES];
    uint64_t reached; /* bit per rank: it may use that rank's memory; its own too */
    size_t granularity;
    _Atomic int64_t clock_ns; /* the GPU's clock + this = CLOCK_MONOTONIC */
    CUstream setup, later;
    struct cuda_track tracks[CUDA_LANES_MAX];
    pthread_t thread;
    bool running;
    /* Under the device's lock. */
    pthread_cond_t wake;
    struct cuda_item *head, *tail;
    struct cuda_item *later_head, *later_tail; /* signals of the rank on their way, on any GPU */
    bool busy;                       /* with an item, or looking after things */
    uint64_t look_ns, look_pause_ns; /* when the way wants to look; 0: not at all */
    /* How the GPU's clock drifts: from a part's end to its being told, the least of a window. */
    int64_t told_least_ns, told_usual_ns; /* usual: the first window's */
    uint64_t told_count, window_ns;       /* window_ns: when this window began */
    void (*idle)(void *arg, int gpu);
    void *idle_arg;
};

struct cuda_page {
    struct cuda_page *next;
    char *base;
    size_t bytes;
    char *alias; /* for streams and kernels; NULL: no GPU has been placed yet */
};

enum cuda_block_kind {
    CUDA_BLOCK_ARENA,
    CUDA_BLOCK_SPARE, /* an arena that nobody has taken yet */
    CUDA_BLOCK_STAGING,
    CUDA_BLOCK_IMPORT,
    CUDA_BLOCK_SCRATCH
};

/* Memory of any kind that the device made or opened. */
struct cuda_block {
    struct device_memory memory; /* first: what callers hold */
    struct cuda_block *next;
    enum cuda_block_kind kind;
    uint32_t rank;
    size_t mapped; /* bytes reserved and mapped on the GPU */
    CUmemGenericAllocationHandle handle;
    struct device_memory *pages; /* STAGING */
    struct cuda_import *import;  /* IMPORT */
};

struct cuda_stream { /* struct device_stream */
    struct cuda_device *device;
    uint32_t lane;
};

/* A word that abort raised. */
struct cuda_raised {
    struct cuda_raised *next;
    _Atomic uint64_t *word;
    uint64_t before;
};

struct cuda_device {
    struct cuda_device *left; /* the next that was left as it is */
    struct device_config config;
    struct cuda_gpu gpus[GW_GPU_RANKS_MAX];
    struct cuda_stream streams[CUDA_LANES_MAX];
    uint64_t placed;                               /* bit per rank */
    struct cuda_shared *shared;                    /* NULL until the first place */
    struct gw_k_stamps (*stamps)[CUDA_SLOT_PARTS]; /* CUDA_STAMP_SLOTS of them, pinned */
    struct cuda_block *blocks;
    struct cuda_imports imports;
    const struct cuda_way *way; /* NULL until the first place */

    pthread_mutex_t lock; /* everything below, and what says so above */
    pthread_cond_t quiet;
    pthread_cond_t moved;            /* events.c, tokens.c: what they count has moved */
    struct cuda_work *held;          /* tokens.c: ops rising */
    struct cuda_timeline *timelines; /* tokens.c */
    struct cuda_page *pages;
    struct cuda_ledger ledger;
    struct cuda_item *retired; /* calls that were made */
    struct cuda_raised *raised;
    uint32_t free_slots[CUDA_STAMP_SLOTS];
    uint32_t free_slot_count;
    bool stopping; /* issuing threads end */
    bool broken;   /* no CUDA call is made for works any more */
    bool awake;    /* config.wake was called, and take_done has not come to the end yet */
    bool fault_told;
    char fault[GW_TEXT_MAX + 1];
};

static inline struct cuda_device *cuda_of(const struct device *device)
{
    return (struct cuda_device *)(uintptr_t)device;
}

uint64_t cuda_now_ns(void);
uint64_t cuda_aborted(const struct cuda_device *device); /* any thread */
/* Any thread. What a broken device holds is left to the end of the process: a call that frees it
 * may wait for ever. */
bool cuda_is_broken(struct cuda_device *device);

/* False: the call failed, and that is the device's fault. Any thread. */
bool cuda_good(struct cuda_gpu *gpu, CUresult result, const char *call, uint64_t op);
/* With the lock held: the loop is told to look, at most once. */
void cuda_wake_loop(struct cuda_device *device);
/* With the lock held: words that streams wait for and an aborted rank would raise. */
void cuda_raise_words(struct cuda_device *device);

/* place.c */
int cuda_place(struct device *device, uint32_t rank, const struct device_place *place,
               char text[GW_TEXT_MAX + 1]);
void cuda_unplace(struct cuda_gpu *gpu);
/* Set-up path: blocks until the stream has done everything, or a deadline is over. */
int cuda_settle(struct cuda_gpu *gpu, CUstream stream);
/* Streams of a lane on a GPU. */
int cuda_track_new(struct cuda_gpu *gpu, uint32_t lane);
void cuda_track_free(struct cuda_gpu *gpu, uint32_t lane);

/* page.c */
int cuda_page_add(struct device *device, void *base, size_t bytes);
void cuda_page_remove(struct device *device, void *base);
/* All pages that no GPU knew yet. The GPU's context is current. */
int cuda_pages_register(struct cuda_gpu *gpu);
/* The same pages wait for another GPU. The context they were registered in is current. */
void cuda_pages_unregister(struct cuda_device *device);
/* With the lock held. 0: in no page. */
CUdeviceptr cuda_alias(const struct cuda_device *device, const void *host);
/* The same without it. */
CUdeviceptr cuda_alias_now(struct cuda_device *device, const void *host);

/* memory.c */
int cuda_memory_new(struct device *device, enum device_memory_kind kind, uint32_t rank,
                    const char *name, size_t bytes, struct device_memory **ret_memory);
int cuda_memory_reserve(struct device *device, uint32_t rank, size_t bytes, uint32_t count);
int cuda_memory_import(struct device *device, uint32_t rank, const struct device_import *import,
                       struct device_memory **ret_memory, char text[GW_TEXT_MAX + 1]);
struct device_memory *cuda_memory_free(struct device *device, struct device_memory *memory);
/* A GPU that was placed later reaches what is there already. */
int cuda_blocks_open_to(struct cuda_device *device, const struct cuda_gpu *gpu);
void cuda_copy(struct device *device, void *to, const void *from, size_t bytes);
void cuda_zero(struct device *device, void *to, size_t bytes);

/* lane.c */
int cuda_stream_new(struct device *device, const char *name, struct device_stream **ret_stream);
int cuda_enqueue(struct device_stream *stream, const struct device_work *work);
int cuda_signal_after(struct device *device, uint64_t op, const struct device_signal *signal);
/* With the lock held: its parts, then signals behind it, into the queues of their GPUs. */
void cuda_push_work(struct cuda_device *device, struct cuda_work *work);

/* issue.c */
int cuda_issuer_start(struct cuda_gpu *gpu);
void cuda_issuer_stop(struct cuda_gpu *gpu); /* device.stopping is set */
/* With the lock held. */
void cuda_issuer_push(struct cuda_gpu *gpu, struct cuda_item *item);

/* done.c: CUhostFn, arg a struct cuda_item. */
void cuda_part_notified(void *item);
/* The same where no stream will say it: the part was not issued. */
void cuda_part_failed(struct cuda_item *item);
/* Host stores of stamps, value, mirror; then the client is woken. */
void cuda_raise_now(const struct device_signal *signal, uint64_t ready_ns, uint64_t started_ns,
                    uint64_t done_ns);

#endif
