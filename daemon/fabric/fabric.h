/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabric table: turns an op of the core, its references resolved to pointers, into work on the
 * device's streams, and counts what it moves. One table per kind of fabric, chosen once at set-up
 * beside the device: `local` (one node, host), `ucx` (host, several nodes) or `nccl` (GPUs).
 *
 * All calls come from the engine's loop thread. Counters are read there while streams add to them.
 *
 * Figures, per rank and enum gw_kind; an op of gw_measure_sync adds to none of them:
 *  - calls, payload_bytes, padding_bytes: as the op says, once for each rank it is for, when it has
 *    been carried out. A GATHER is for one rank; every other op for all members. A FILL adds to
 *    none of these, nor to ring_bytes.
 *  - ring_bytes: computed from the payload P over n members: P(n-1)/n for reduce-scatter and
 *    all-gather, 2P(n-1)/n for all-reduce and control, P for broadcast; 0 with one member.
 *  - cross_node_bytes: what this node sent to others of the op's data, headers excluded; counted
 *    for its first rank among the members (a GATHER's owners), so that the sum over ranks is right.
 *  - moved_bytes: added up inside the loops:
 *      reduce-scatter, rank r: what is read of all inputs for r's slice (n slices, the rank's own
 *      included; a missing input reads nothing).
 *      all-reduce, rank r: what is read of all inputs for r's 1/n share, and what is written of the
 *      full result into r's memory (to shards: over r's input, where it has one).
 *      gather, all-gather, broadcast, rank r: what is copied into r's memory (nothing where a slice
 *      is in place already, so nothing in mapped mode).
 *      fill, member r: what is copied into r's secondary shard, to all-gather's.
 *      control: what is written to the rank's board.
 *    On several nodes what has come from others is read there as well, a sum of theirs once; what
 *    it is made of is nobody's here.
 *    Reading and writing accumulators and shards is not moving.
 */
#ifndef GW_FABRIC_FABRIC_H
#define GW_FABRIC_FABRIC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/device/device.h"
#include "gradwire/gradwire.h"

struct fabric;

#define FABRIC_NO_NODE UINT16_MAX

/* The job's nodes, as they are known by form(). Owned by the job; lives as long as the fabric. */
struct fabric_nodes {
    uint32_t count, own;
    uint16_t of_rank[GW_RANKS_MAX]; /* FABRIC_NO_NODE: the rank has not joined yet */
    struct fabric_node {
        bool active;            /* takes part; not gone */
        uint32_t address_bytes; /* 0: no rank is there; not to be reached */
        uint8_t address[GW_FABRIC_ADDRESS_MAX]; /* what `address` said there */
        char name[GW_LABEL_MAX + 1];            /* for texts */
    } at[GW_NODES_MAX];
};

/* Of those that there are: the table has room for many more. */
static inline void fabric_nodes_copy(struct fabric_nodes *to, const struct fabric_nodes *from)
{
    memcpy(to, from, offsetof(struct fabric_nodes, at) + from->count * sizeof(from->at[0]));
}

struct fabric_config {
    const struct fabric_nodes *nodes; /* NULL: all ranks are here */
    const struct device_ops *device_ops;
    struct device *device;
    uint32_t world;            /* ranks of the job */
    uint64_t link_bytes_per_s; /* simulated link of each rank; 0: none */
    uint64_t op_timeout_ns;    /* longest that a call of a communicator is polled; 0: 1800 s */
};

/* A part of a gather, fill or cast: contiguous on both sides. */
struct fabric_segment {
    void *to;
    const void *from;
    uint64_t bytes; /* of `to` */
    uint32_t owner; /* rank whose memory `from` is; `to` is the op's rank's. FILL: vice versa */
};

/* An op with its references resolved. Only read during launch: the fabric copies what it keeps.
 *
 * Several nodes: every node launches every op, with the same ids in the same order, and does its
 * own ranks' part. Pointers into memory of ranks of other nodes are NULL (as zeros are: op->in[i]
 * of a rank of this node is what tells them apart there), segments are all there, in the same
 * order, on every node, with `to` or `from` NULL where it lies elsewhere. Of waits and signals each
 * node has those of its own ranks. An op is done here when this node's part is: when what it reads
 * here is no longer needed, and what it writes here is written. */
struct fabric_op {
    const struct core_op *op;
    const void *const *in; /* op->world entries (NULL: zeros); BROADCAST, LOCAL_ADD: one */
    void *const *out;      /* op->world entries; LOCAL_ADD, ZERO: one; those with segments: none */
    const struct fabric_segment *segments; /* GATHER, FILL, CAST (fp32 to out_dtype) */
    uint32_t segment_count;
    const struct device_wait *waits;
    uint32_t wait_count;
    const struct device_signal *signals;
    uint32_t signal_count;
    /* VERDICT: the boards of op->members (NULL: that rank has none any more), and their sizes. */
    struct gw_shm_board *const *boards;
    void *const *verdicts; /* the same on the ranks' devices; NULL: the device has none */
    uint32_t buckets, params;
};

struct fabric_ops {
    const char *name;
    int (*fabric_new)(const struct fabric_config *config, struct fabric **ret_fabric);
    /* After the device's streams have ended or been drained, and all completions taken. */
    struct fabric *(*fabric_free)(struct fabric *fabric);
    /* How other nodes' fabrics find this one; once, before form(). NULL: not needed. */
    int (*address)(struct fabric *fabric, uint8_t ret_address[GW_FABRIC_ADDRESS_MAX],
                   uint32_t *ret_bytes);
    /* What another node gave as such, before it gets into config.nodes: 0, or < 0 and what is wrong
     * with that node. NULL: all are taken. */
    int (*address_check)(const uint8_t *address, uint32_t bytes, char text[GW_TEXT_MAX + 1]);
    /* All ranks have joined (again) and are placed: communicators are made, without blocking; works
     * launched from now on use them. Several nodes: config.nodes is complete, and every node forms
     * as often as every other; what another node sent for an earlier time must not be taken. */
    int (*form)(struct fabric *fabric);
    /* A group came to be, in this order of members: what its ops need is made, without blocking.
     * The world is known since form(). Again for the same list: nothing more. */
    int (*group)(struct fabric *fabric, const uint32_t *members, uint32_t count);
    /* Bulk memory came or is about to go: fabrics register it. What comes in the middle of a step
     * is not told, for registering would wait; that it goes may be. */
    void (*memory_added)(struct fabric *fabric, uint32_t rank, const struct device_memory *memory);
    void (*memory_removed)(struct fabric *fabric, uint32_t rank,
                           const struct device_memory *memory);
    /* A layout was sealed: what its steps need beside the arenas is made here, for a step must not
     * allocate. Before reset; no op is in flight. GW_E_NOMEM. */
    int (*sealed)(struct fabric *fabric, const struct gw_layout_page *page);
    /* The job failed: nothing of it may wait for another rank any more. Before the device's abort
     * and drain; form() begins anew. */
    void (*abort)(struct fabric *fabric);
    int (*launch)(struct fabric *fabric, const struct fabric_op *op);
    /* False: none. Else what happened, once: another node sends what this one does not expect, or
     * cannot be reached although nobody says that it is lost. The fabric has aborted the device, so
     * completions of failed works wake the loop. NULL: faults are told by the device. */
    bool (*take_fault)(struct fabric *fabric, char text[GW_TEXT_MAX + 1]);
    /* "nccl exact": the fabric and how it adds up ops of this order. */
    const char *(*order_name)(uint32_t order);
    void (*counters)(const struct fabric *fabric, uint32_t rank,
                     struct gw_counters ret_kinds[GW_KINDS]);
    /* Counters start from 0 again: a new seal. No op is in flight. */
    void (*reset)(struct fabric *fabric);
};

/* Ring bytes of a payload, as above. */
uint64_t fabric_ring_bytes(enum gw_kind kind, uint64_t payload_bytes, uint32_t world);

/* All ranks on one node, on a device whose work runs on the host. */
extern const struct fabric_ops fabric_local;
/* Ranks on several nodes, on such a device. In gw_fabric_ucx, which links UCX. */
extern const struct fabric_ops fabric_ucx;

#endif
