/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the local fabric: what its files share, and what the ucx fabric, which does a node's
 * own part in the same way, is built on. Not for users of the fabric table. On a node of several,
 * pointers of ranks elsewhere are NULL, and nothing is counted for them.
 */
#ifndef GW_FABRIC_LOCAL_LOCAL_H
#define GW_FABRIC_LOCAL_LOCAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/device/host/crew.h"
#include "daemon/device/host/kernels.h"
#include "daemon/fabric/figures.h"

#define LOCAL_QUICK_BYTES (64u << 10) /* of a rank's larger buffer; a gather's */
#define LOCAL_QUICK_RANKS 16u

/* Norms and non-finite counts of one bucket in one step: slices x chunks, slice by slice; several
 * ops may leave some slices each. Held by the fabric until the step's verdict takes it over, and by
 * each op that writes it, so that a verdict that fails early frees nothing under a reduction.
 * References: loop thread only. */
struct local_partials {
    uint32_t references;
    uint64_t numel; /* of a slice */
    uint32_t slices;
    uint16_t *rank_of; /* whose ops leave each slice's; GW_RANKS_MAX: nobody's yet. Behind `at` */
    struct kernel_partial at[];
};

/* What a thread takes at a time, of what it shares with others: local.c says how much. */
struct local_blocks {
    uint64_t copy_bytes;
    uint64_t numel; /* of a sum or a cast: whole chunks */
};

/* Blocks are numbered over all segments of an op. */
struct local_segment {
    struct fabric_segment at;
    uint64_t first_block;
};

/* An op on its way through a stream; one allocation, arrays behind it. */
struct local_op {
    struct local_fabric *fabric;
    struct core_op op; /* its arrays: copies, or NULL where the fabric has no use for them */
    const void **in;
    void **out;
    struct local_segment *segments;
    uint32_t segment_count;
    uint64_t segment_blocks, segment_bytes; /* of all */
    struct local_partials *partials;        /* of op.bucket; NULL: not asked for */
    struct gw_shm_board **boards;
    struct local_partials **verdict; /* by bucket; NULL entries: no gradient this step */
    uint32_t buckets, params;
    _Atomic uint64_t *read; /* bytes, by part, or by whose memory it is; bulk.c */
    uint64_t ring_bytes, hold_ns;
    void *exchange; /* ucx: its part of the op */
};

/* How an op is handed to its stream. */
struct local_way {
    bool quick;
    void (*run)(void *arg, void *native); /* arg: the struct local_op */
    void (*release)(void *arg);
    const uint64_t *wait_ops;
    uint32_t wait_op_count;
};

struct local_fabric {
    struct fabric_config config;
    struct local_blocks blocks;
    struct crew *crew; /* helps all streams; made anew when ranks have come */
    struct device_stream *reduce, *control;
    struct device_stream *gather[GW_RANKS_MAX];
    struct local_partials **partials; /* of the step under way, by bucket */
    uint32_t partial_room;
    pthread_mutex_t pace_lock;
    uint64_t link_free_ns[GW_RANKS_MAX];
    struct fabric_counters counters;
};

/* local.c: loop thread. The parts of the fabric that is built in place, and of the table that do
 * not depend on where ranks are. */
int local_init(struct local_fabric *fabric, const struct fabric_config *config);
/* cache_bytes: of a core's second cache; 0: not known. */
struct local_blocks local_blocks_for(uint64_t cache_bytes);
void local_end(struct local_fabric *fabric);
void local_clear(struct local_fabric *fabric); /* counters and partials */
/* Ranks have come: helpers go where the device says. No op is in flight. GW_E_NOMEM. */
int local_place(struct local_fabric *fabric);
bool local_is_quick(const struct local_op *op);
int local_enqueue(struct local_fabric *fabric, const struct fabric_op *op, struct local_op *copy,
                  const struct local_way *way);

static inline bool local_is_here(const struct local_fabric *fabric, uint32_t rank)
{
    const struct fabric_nodes *nodes = fabric->config.nodes;

    return !nodes || nodes->of_rank[rank] == nodes->own;
}

/* run.c: stream threads. */
void local_run(void *arg, void *native);
uint64_t local_hold(void *arg, uint64_t now_ns);
void local_count(const struct local_op *op, uint32_t rank, uint64_t moved_bytes);
void local_verdict(struct local_op *op);

/* bulk.c: stream threads and their helpers. */
void local_reduce_scatter(struct local_op *op); /* or an all-reduce to shards */
void local_all_reduce(struct local_op *op);
void local_all_gather(struct local_op *op);
void local_gather(struct local_op *op);
void local_fill(struct local_op *op);
void local_cast(struct local_op *op);
void local_add(struct local_op *op);
/* All-reduce to shards: `count` elements at `from` of a slice's result go over an input, from its
 * element `begin` on. How many bytes these are, also where they are there already. */
uint64_t local_put_back(const struct core_op *what, const void *in, uint64_t begin,
                        const void *from, uint8_t from_dtype, uint64_t count, bool past);
/* Of a sum: what all its parts have in common. */
struct kernel_reduce local_sum_of(const struct core_op *what);
/* A part of a sum, `first` 0: in blocks as well, on as many threads as are worth it. partials: of
 * its first chunk. */
void local_sum(struct local_fabric *fabric, const struct kernel_reduce *reduce,
               struct kernel_moved *moved);

/* op.c: loop thread. */
int local_op_new(struct local_fabric *fabric, const struct fabric_op *from,
                 struct local_op **ret_op);
void local_op_free(void *arg);
struct local_partials *local_partials_unref(struct local_partials *partials);

#endif
