/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the host device: what its files share. Not for users of the device table. */
#ifndef GW_DEVICE_HOST_HOST_H
#define GW_DEVICE_HOST_HOST_H

#include <pthread.h>

#include "daemon/device/device.h"

#define HOST_STREAMS_MAX (GW_RANKS_MAX + 8u)

/* One enqueued work: a single allocation with its arrays behind it. */
struct host_work {
    struct host_work *next; /* in the stream's queue, later in the list of completions */
    struct device_work work;
    struct device_done done;
    uint64_t run_started_ns;           /* what its signals say */
    struct host_stream **wait_streams; /* of work.wait_ops; NULL: nothing to wait for (any more) */
    /* Signals asked for by signal_after; under the device's lock. */
    struct device_signal *later;
    uint32_t later_count, later_room;
};

struct host_stream {
    struct host_device *device;
    pthread_t thread;
    pthread_cond_t wake;
    struct host_work *head, *tail;         /* head: the one that runs or waits */
    uint64_t done_op;                      /* last op finished here; rises */
    uint64_t run_started_ns, last_done_ns; /* of its chained works */
    bool waiting;                          /* for a token or an op: look again when kicked */
    char name[16];
};

struct host_device {
    pthread_mutex_t lock; /* everything below but raise_lock; never held while running a work */
    pthread_mutex_t raise_lock; /* slots: a slot may be raised by two streams */
    pthread_cond_t idle;
    struct device_config config;
    struct host_stream *streams[HOST_STREAMS_MAX];
    uint32_t stream_count;
    struct ranks aborted;
    bool stopping;
    bool awake; /* config.wake was called and take_done has not come to the end yet */
    uint32_t unfinished;
    /* Loop thread; but for what is its own, empty without config.topology. */
    struct {
        struct placement *now; /* NULL: no rank has come */
        struct cpus own, of[GW_RANKS_MAX];
        struct ranks ranks;
        int memory_error;
    } place;
    /* The last work done within enqueue: what signals asked for behind it say. Loop thread. */
    struct {
        uint64_t op, ready_ns, started_ns, done_ns;
    } quick;
    struct host_work *done_head, *done_tail;
};

static inline struct host_device *host_of(struct device *device)
{
    return (struct host_device *)(void *)device;
}

uint64_t host_now_ns(void);

/* raise.c: stamps, value, wake. Any thread; takes raise_lock. */
void host_raise(struct host_device *device, const struct device_signal *signals, uint32_t count,
                uint64_t ready_ns, uint64_t started_ns, uint64_t done_ns);

/* stream.c */
int host_stream_new(struct device *device, const char *name, struct device_stream **ret_stream);
void host_stream_free(struct host_stream *stream); /* its thread, and all others, have ended */
int host_enqueue(struct device_stream *stream, const struct device_work *work);
int host_signal_after(struct device *device, uint64_t op, const struct device_signal *signal);

/* With the device's lock held: every stream that waits looks again. */
void host_wake_streams(struct host_device *device);
struct host_work *host_work_free(struct host_work *work);

#endif
