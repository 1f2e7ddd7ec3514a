/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device table: memory that clients can map, streams that run work in order, and timelines.
 * One table per kind of device, chosen once at set-up; the flow above never asks which it is.
 *
 * All calls come from the engine's loop thread; only device_config.wake and, on a device whose
 * work runs on the host, device_work.run and .hold are called on a stream's own thread.
 *
 * What a table must keep so that `host` and `cuda` are the same to their callers
 *  - Nothing on the step path waits on the host. enqueue returns at once, whatever the work waits
 *    for; order is a property of streams, not of callbacks.
 *  - Works of several streams, and signals asked for afterwards, may stand in one queue, in the
 *    order of the calls; a GPU has few queues. So callers make their calls in an order in which all
 *    that was asked for can be done, one after the other: nothing waits, through a word or another
 *    process's stream either, for what is enqueued later.
 *      host: a stream is a thread with a queue.
 *      cuda: a stream is a lane: on the GPU of each rank a work stream and a notify stream. A wait
 *      is cuStreamWaitValue64(GEQ, cyclic) on the word's device alias, so it may be enqueued before
 *      the work that ends it; wait_ops are the same on the done words that work streams write
 *      (cuStreamWriteValue64) after each work; where GPUs have neither, works are held back until
 *      their tokens are reached, and events take the place of done words (cuda/way.h). The notify
 *      stream waits for the done words of all the work's GPUs; a small kernel there stores stamps
 *      (globaltimer, corrected by a measured offset) and raises slots behind a fence. The futex
 *      wake of sleeping clients is a host function behind it: late, but no stream waits for it.
 *  - run: host: called once, when the work's turn has come, does it; native is NULL. cuda: called
 *    once for each rank in work.ranks, on the issuing thread of that rank's GPU, with a struct
 *    cuda_native (daemon/device/cuda/native.h); it may only enqueue on the stream given there.
 *  - A work is done when it is done for all its ranks; then its signals are raised, each by the GPU
 *    of its rank.
 *  - Words and slots lie in host pages (pages.h) on every device; cuda registers them (page_add) so
 *    that streams can wait on them and write them.
 *  - abort: a rank's tokens count as reached and works it takes part in as failed, at once or when
 *    their turn comes; a failed work runs nothing and raises nothing, but its completion is told.
 *    cuda: the words of the rank's page that works wait for are raised to GW_TIMELINE_END by the
 *    device (and lowered by resume), kernels look at an abort flag before they signal; for
 *    collectives of a communicator, the fabric aborts that.
 */
#ifndef GW_DEVICE_DEVICE_H
#define GW_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/placement.h"
#include "daemon/base/priority.h"
#include "daemon/base/ranks.h"
#include "proto/shm.h"
#include "proto/wire.h"

struct device;
struct device_stream;

#define DEVICE_ALL_RANKS NULL /* for abort */
#define DEVICE_NO_RANK UINT32_MAX   /* memory of the job */

struct device_config {
    /* Completions can be taken (take_done). Called on a stream's thread, at most once until the
     * next take_done that finds nothing more; must only wake the loop. */
    void (*wake)(void *user);
    void *user;
    enum priority priority; /* of threads that run works on the host, and of those they start */
    const struct topology *topology; /* outlives the device; NULL: nothing is placed by it */
};

/* Pages are made by daemon/device/pages.h, on the host whatever the device. */
enum device_memory_kind {
    DEVICE_MEMORY_ARENA,    /* bulk data, on the rank's GPU; clients map it read-write */
    DEVICE_MEMORY_RESERVED, /* an arena too: one of those that lie ready, if there is one */
    DEVICE_MEMORY_STAGING,  /* data on its way to and from a client: host memory on every device */
};

/* Zeroed memory that exists for real (nothing is allocated later by touching it) and whose size
 * nobody can change. */
struct device_memory {
    void *base;          /* for run() and the engine's own access to pages */
    size_t bytes;        /* as asked for */
    size_t mapped_bytes; /* whole pages: what quotas count */
    int fd;              /* close-on-exec; what a client maps; stays the memory's. -1: imported */
    bool on_device;      /* base is a device address: fd and mapped_bytes are what it exports */
    int place_error;     /* errno: it could not be asked for on its NUMA node */
};

/* Which GPU a rank uses, as its client says. */
struct device_place {
    uint8_t gpu[GW_GPU_BYTES];
};

/* A client's own device memory: a part of an allocation exported by CUDA IPC. */
struct device_import {
    uint64_t client; /* who exported it: handles are compared within one client */
    uint8_t handle[GW_IPC_HANDLE_BYTES];
    uint64_t allocation_bytes, offset, bytes;
};

struct device_wait {
    const _Atomic uint64_t *word;
    uint64_t value;
    uint32_t rank; /* whose page the word is in */
};

struct device_signal {
    struct gw_shm_slot *slot;
    uint64_t value;
    uint64_t offset; /* into slot.offset */
    uint32_t rank;
    /* Whom to wake: the rank's two pages; the job's (NULL: nobody sleeps on it; not on cuda). */
    struct gw_engine_page *engine;
    const struct gw_client_page *client;
    struct gw_job_page *job;
    /* The slot's word in the rank's wait page (struct gw_wait_page): raised to `value` too, after
     * slot->value, for the client's streams. NULL: none (always so on the host device). */
    _Atomic uint64_t *mirror;
};

/* Copied by enqueue, arrays included; `arg` is the caller's until release. */
struct device_work {
    uint64_t op;      /* > 0, rising in the order of enqueue over all streams of the device */
    const uint64_t *wait_ops; /* enqueued before, on any stream; 0: none */
    uint32_t wait_op_count;
    struct ranks ranks; /* fails when one of them is aborted */
    uint64_t ready_ns;
    /* A signal's started_ns is where the stream's uninterrupted run of such works began: who waits
     * for the last of a run waits for all of it. */
    bool chained;
    /* run is over in microseconds: where works run on the host, enqueue may do it at once, if
     * nothing is before it and nothing to wait for. Then its signals have been raised when enqueue
     * returns, and its completion is there to be taken, untold by config.wake. */
    bool quick;
    const struct device_wait *waits;
    uint32_t wait_count;
    const struct device_signal *signals;
    uint32_t signal_count;
    /* Simulated link: until when the stream is held before run; NULL: no hold. The time started_ns
     * is taken before. cuda: not called; hold_ns is waited for by a kernel, per rank's link. */
    uint64_t (*hold)(void *arg, uint64_t now_ns);
    uint64_t hold_ns; /* time that the op takes of each rank's link */
    void (*run)(void *arg, void *native);
    void (*release)(void *arg); /* on the loop thread, after completion or at device_free */
    void *arg;
};

struct device_done {
    uint64_t op, started_ns, done_ns;
    bool failed;
};

struct device_ops {
    const char *name;
    int (*device_new)(const struct device_config *config, struct device **ret_device);
    /* Ends all streams; works that have not run are dropped (released). */
    struct device *(*device_free)(struct device *device);

    /* Where a rank computes; before any memory or work of it. text: why not, or after 0 what is
     * missing there, "": nothing. GW_E_NO_DEVICE (no such GPU here), GW_E_BUSY (another rank of the
     * job is on it, which NCCL refuses), GW_E_MISMATCH (the rank was on another). */
    int (*place)(struct device *device, uint32_t rank, const struct device_place *place,
                 char text[GW_TEXT_MAX + 1]);
    /* A rank has joined from this process: threads that run works, all of the engine's, will be
     * where ranks may be. Every time, after place. NULL: works do not run on the host. */
    void (*beside)(struct device *device, uint32_t rank, pid_t pid);
    /* Where they and memory are, since the last beside; place_error of memory (0: none). NULL, or
     * returns NULL: wherever the kernel puts them. */
    const struct placement *(*placement)(const struct device *device, int *ret_place_error);
    /* How its streams and other processes wait for each other, in a word for people: "words",
     * "events"; "": no rank was placed. NULL: they do not, hosts wait. */
    const char *(*ordering)(const struct device *device);
    /* Words and slots (pages.h) that streams of the device are to reach, until page_remove, which
     * comes after all works that name them. */
    int (*page_add)(struct device *device, void *base, size_t bytes);
    void (*page_remove)(struct device *device, void *base);

    /* From now on the client records events of its own for a timeline of its page, because its
     * streams cannot raise it: GW_TIMELINE_EVENTS handles, value v being told by event v modulo
     * that; NULL: no more, and the client may destroy them. Set-up path. With text: GW_E_STATE,
     * GW_E_UNIMPLEMENTED, GW_E_NOMEM, GW_E_DEVICE. NULL: the device has no such clients. */
    int (*timeline_events)(struct device *device, uint32_t rank, const _Atomic uint64_t *word,
                           const uint8_t *handles, char text[GW_TEXT_MAX + 1]);

    /* GW_E_NOMEM: it cannot be had, now; GW_E_LIMIT: more descriptors than allowed. */
    int (*memory_new)(struct device *device, enum device_memory_kind kind, uint32_t rank,
                      const char *name, size_t bytes, struct device_memory **ret_memory);
    /* From now on `count` arenas of the rank lie ready (none is kept of what was reserved before)
     * for memory_new(DEVICE_MEMORY_RESERVED): making one in the middle of a step may wait for works
     * that run. Host: nothing to do. GW_E_NOMEM, GW_E_LIMIT. */
    int (*memory_reserve)(struct device *device, uint32_t rank, size_t bytes, uint32_t count);
    /* GW_E_INVALID: it is not what the client says; GW_E_UNIMPLEMENTED on the host. */
    int (*memory_import)(struct device *device, uint32_t rank, const struct device_import *import,
                         struct device_memory **ret_memory, char text[GW_TEXT_MAX + 1]);
    struct device_memory *(*memory_free)(struct device *device, struct device_memory *memory);
    /* Set-up path only, blocking. Either side may be device or host memory. */
    void (*copy)(struct device *device, void *to, const void *from, size_t bytes);
    void (*zero)(struct device *device, void *to, size_t bytes);

    /* Streams live as long as the device. GW_E_LIMIT, GW_E_NOMEM. */
    int (*stream_new)(struct device *device, const char *name, struct device_stream **ret_stream);
    int (*enqueue)(struct device_stream *stream, const struct device_work *work);
    /* Raises once `op` is done: now if it is already (or 0), never if it fails. The stamps are the
     * op's; now for op 0; long ago (1) for one done before, so that a wait for it is all
     * wake-up. cuda: if signals of the rank are on their way, it comes behind the last of these,
     * with its stamps. */
    int (*signal_after)(struct device *device, uint64_t op, const struct device_signal *signal);
    /* False: none. Else the device cannot go on; what happened, once. After config.wake. */
    bool (*take_fault)(struct device *device, char text[GW_TEXT_MAX + 1]);
    /* Some client raised a timeline or rang its bell: waits are looked at again. */
    void (*kick)(struct device *device);
    /* One completion; false: none. Order is that of completion. */
    bool (*take_done)(struct device *device, struct device_done *ret_done);

    void (*abort)(struct device *device, const struct ranks *ranks); /* or DEVICE_ALL_RANKS */
    /* Blocks until no work is left. Set-up path only, after abort of all ranks. */
    void (*drain)(struct device *device);
    /* Forgets aborts: the job re-forms. */
    void (*resume)(struct device *device);
};

/* Threads of this process as streams, sealed memfds as memory. */
extern const struct device_ops device_host;

#endif
