/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the local fabric: what its files share. Not for users of the fabric table. */
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
    struct kernel_partial at[];
};

#define LOCAL_COPY_BYTES (512u << 10) /* of one copied block */
#define LOCAL_BLOCK_NUMEL (16u * KERNEL_CHUNK)

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
    uint64_t ring_bytes, hold_ns;
};

struct local_fabric {
    struct fabric_config config;
    struct crew *crew; /* helps all streams */
    struct device_stream *reduce, *control;
    struct device_stream *gather[GW_RANKS_MAX];
    struct local_partials **partials; /* of the step under way, by bucket */
    uint32_t partial_room;
    pthread_mutex_t pace_lock;
    uint64_t link_free_ns[GW_RANKS_MAX];
    struct fabric_counters counters;
};

/* run.c: stream threads. */
void local_run(void *arg, void *native);
uint64_t local_hold(void *arg, uint64_t now_ns);
void local_count(const struct local_op *op, uint32_t rank, uint64_t moved_bytes);

/* bulk.c: stream threads and their helpers. */
void local_reduce_scatter(struct local_op *op);
void local_all_reduce(struct local_op *op);
void local_all_gather(struct local_op *op);
void local_gather(struct local_op *op);
void local_cast(struct local_op *op);
void local_add(struct local_op *op);

/* op.c: loop thread. */
int local_op_new(struct local_fabric *fabric, const struct fabric_op *from,
                 struct local_op **ret_op);
void local_op_free(void *arg);
struct local_partials *local_partials_unref(struct local_partials *partials);

#endif
