/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works of a cuda device as records: what is unfinished on which lane, what a work waits for on
 * other lanes and GPUs, what has ended. Pure: no CUDA, no threads; the caller holds the device's
 * lock where several threads come.
 *
 * A work has a part on the GPU of each of its ranks; GPUs are named by their rank, for a job has
 * one rank per GPU. A part ends when its notify stream says so, the work with its last part and the
 * last of the signals asked for afterwards.
 */
#ifndef GW_DEVICE_CUDA_WORK_H
#define GW_DEVICE_CUDA_WORK_H

#include "daemon/device/device.h"

#define CUDA_LANES_MAX (GW_GPU_RANKS_MAX + 8u)

/* Wait until the done words of `lane` on all GPUs of `ranks` have reached op. */
struct cuda_after {
    uint32_t lane;
    uint64_t ranks;
    uint64_t op;
};

struct cuda_work;

enum cuda_item_kind {
    CUDA_ITEM_PART,   /* of a work */
    CUDA_ITEM_LATER,  /* a signal behind a work that had been issued */
    CUDA_ITEM_CALL,   /* cuda_call */
    CUDA_ITEM_RETIRED /* a call that was made: only its release is left */
};

/* What an issuing thread takes from its queue. */
struct cuda_item {
    struct cuda_item *next;
    enum cuda_item_kind kind;
    uint32_t rank; /* the GPU */
    struct cuda_work *work;
    struct device_signal later;
    struct cuda_item *later_next; /* the rank's next, as they were asked for */
    void (*call)(void *arg, int gpu);
    void *arg;
    void (*release)(void *arg);
};

struct cuda_work {
    struct cuda_work *before, *next; /* on its lane; `next` in the list of the done, then */
    struct device_work work;
    struct device_done done;
    uint32_t lane;
    uint64_t parts;   /* bit per rank: on whose GPUs */
    uint32_t pending; /* parts and later signals that have not ended */
    uint32_t after_count;
    struct cuda_after *after;
    uint32_t slot;           /* of time stamps */
    bool told;               /* given up: told as failed although it may still be running */
    bool held;               /* not given to the issuing threads yet (tokens.c) */
    struct cuda_work *held_next;
    struct cuda_item *later; /* held: signals that will stand behind it */
    struct cuda_item *items; /* one per part, ascending */
};

struct cuda_lane {
    struct cuda_work *head, *tail;  /* unfinished, ops rising */
    uint64_t last_op[GW_GPU_RANKS_MAX]; /* enqueued on the GPU */
};

struct cuda_ledger {
    struct cuda_lane lanes[CUDA_LANES_MAX];
    uint32_t lane_count;
    uint32_t unfinished; /* works */
    struct cuda_work *done_head, *done_tail;
    struct cuda_work *given_up; /* kept for GPUs that come back */
};

/* A copy, arrays included. parts: not 0. */
int cuda_work_new(const struct device_work *work, uint64_t parts, struct cuda_work **ret_work);
/* Does not release the work's arg. */
struct cuda_work *cuda_work_free(struct cuda_work *work);

/* Behind what the lane has; fills in work->after: of work.wait_ops those that are unfinished, and
 * what the lane has unfinished on the GPUs of the other parts. */
void cuda_ledger_add(struct cuda_ledger *ledger, uint32_t lane, struct cuda_work *work);
/* NULL: it has ended, or was never. */
struct cuda_work *cuda_ledger_find(struct cuda_ledger *ledger, uint64_t op);
/* One part or later signal has ended. True: the work has, and is among the done. */
bool cuda_ledger_end(struct cuda_ledger *ledger, struct cuda_work *work);
/* All that is unfinished is given up: told as failed (now_ns), in order of their ops; their records
 * stay, for GPUs may still come back to them. False on lack of memory. */
bool cuda_ledger_give_up(struct cuda_ledger *ledger, uint64_t now_ns);
/* The next of the done; NULL: none. The caller's from then on. */
struct cuda_work *cuda_ledger_take(struct cuda_ledger *ledger);

#endif
