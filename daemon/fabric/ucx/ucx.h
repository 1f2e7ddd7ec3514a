/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the ucx fabric: the node's own part of each op is done as the local fabric does it;
 * what crosses between nodes is said in flows of messages. Not for users of the fabric table.
 *
 * Every node launches every op, so nothing is negotiated: who sends what to whom, in which pieces,
 * follows from the op and from where its ranks are (files by kind). An op of ranks of one node
 * alone has no flows.
 */
#ifndef GW_FABRIC_UCX_UCX_H
#define GW_FABRIC_UCX_UCX_H

#include "daemon/fabric/local/local.h"
#include "daemon/fabric/ucx/net.h"

#define UCX_CHUNK_BYTES (1u << 20)                        /* of a message, at most */
#define UCX_CHUNK_NUMEL (UCX_CHUNK_BYTES / sizeof(float)) /* whole chunks of the kernels */
#define UCX_WINDOW 6u                                     /* rows of a flow under way at a time */
#define UCX_SCRATCH_MAX 128u /* chunks that a sum has under way each way, at most */

/* Messages of an op, by what they are. */
#define UCX_RESULT (1ull << 62)
#define UCX_START (2ull << 62)
#define UCX_PULL (3ull << 62)

/* A maximal aligned subtree of the op's sum whose ranks are all on one node. */
struct ucx_part {
    uint32_t first, count; /* positions among the members */
    uint8_t height;
    uint16_t node;
};

struct ucx_op;
struct ucx_flow;

/* A message on its way. */
struct ucx_slot {
    struct net_request request; /* first */
    struct ucx_flow *flow;
    uint64_t row;
    void *scratch;
};

/* Rows of messages, sent to or expected from other nodes, in order; at most a window of them at a
 * time. A row is over when all its pieces are; rows are over in order. */
struct ucx_flow {
    bool send;
    bool gated;      /* `ready` rises with what comes in */
    uint32_t node;   /* the other, where pieces are of one */
    uint32_t pieces; /* of each row */
    uint32_t window;
    uint64_t rows;
    uint64_t ready; /* rows that may be posted by now */
    uint64_t posted, over;
    /* Says what the message is; also where it goes, if not to `node`. < 0: no memory. */
    int (*prepare)(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                   struct ucx_slot *slot);
    void (*complete)(struct ucx_op *op, struct ucx_flow *flow, uint64_t row); /* NULL: nothing */
    uint32_t segment; /* gathers: where the last prepared row was */
    uint64_t segment_row;
    struct ucx_slot *slots; /* window x pieces */
    uint32_t *missing;      /* of the window's rows */
};

/* What a gather or fill crosses with. */
struct ucx_segment {
    struct fabric_segment at;
    uint64_t rows;
    uint32_t node; /* the other one */
};

/* An op's part between nodes; loop thread until it is enqueued, then its stream's. */
struct ucx_op {
    struct ucx_fabric *fabric;
    struct local_op *local;
    uint64_t digest;
    uint16_t *node;              /* of the members; this and the next three behind the op */
    struct ranks nodes;          /* with members; a gather's owners */
    uint32_t own;
    uint32_t first_own; /* position of this node's first member; the members' number: none */
    struct ucx_part *parts;
    uint32_t part_count, own_parts;
    uint64_t *moved; /* by position */
    uint64_t crossed;
    struct ucx_segment *segments;
    uint32_t segment_count;
    struct kernel_partial *packed; /* the verdict's, node by node */
    uint64_t *packed_at; /* by node, and the end */
    struct ucx_flow *flows; /* the first `starts`: before anything else */
    uint32_t flow_count, flow_room, starts;
    bool shared;                          /* a gather that finds all on its node */
    void (*begin)(struct ucx_op *op);     /* once it starts */
    void (*meanwhile)(struct ucx_op *op); /* once the first messages are on their way */
    void (*finish)(struct ucx_op *op);    /* once all flows are over */
    struct net_inbox inbox;
};

struct ucx_fabric {
    struct local_fabric local; /* first */
    struct net *net;
    pthread_mutex_t lock;
    struct ucx_scratch *scratch; /* free ones */
    struct ucx_copy *copies;     /* loop thread */
    char fault[GW_TEXT_MAX + 1]; /* not yet taken */
};

/* flow.c */
/* Room for its messages as well. */
int ucx_flow_add(struct ucx_op *op, const struct ucx_flow *flow);
/* Stream thread. False: the job is being ended, and the op with it. */
bool ucx_flows_run(struct ucx_op *op, uint32_t first, uint32_t count,
                   void (*meanwhile)(struct ucx_op *op));
void ucx_flows_free(struct ucx_op *op);
void *ucx_scratch_take(struct ucx_fabric *fabric);
void ucx_scratch_give(struct ucx_fabric *fabric, void *scratch);
void ucx_scratch_free(struct ucx_fabric *fabric);

/* parts.c: pure */
/* Cuts the positions [0, n), node by node, into parts; returns how many. */
uint32_t ucx_parts_cut(const uint16_t *node, uint32_t n, struct ucx_part *parts);
/* Whether the tree over these inputs is the plain one over as many leaves. */
bool ucx_parts_plain(const struct kernel_subtree *subtrees, uint32_t n);

/* By kind: flows are added at launch. */
int ucx_plan_sum(struct ucx_op *op);        /* sum.c: REDUCE_SCATTER, ALL_REDUCE */
int ucx_plan_all_gather(struct ucx_op *op); /* copy.c */
int ucx_plan_broadcast(struct ucx_op *op);
int ucx_plan_gather(struct ucx_op *op);  /* gather.c: GATHER, FILL */
int ucx_plan_verdict(struct ucx_op *op); /* verdict.c */
/* A gather's or fill's segments: those that cross to or from this node are the op's from now on,
 * those that stay here are left in ret_own, which has room for all. */
int ucx_split_gather(struct ucx_op *op, const struct fabric_op *from,
                     struct fabric_segment *ret_own, uint32_t *ret_own_count);

/* Ops that an op waits for. */
struct ucx_waits {
    uint64_t *ops;
    uint32_t count;
};
int ucx_waits_add(struct ucx_waits *waits, uint64_t op);

/* copies.c */
#define UCX_READERS_MAX 64u
/* A gather of a rank here: what it overwrites is no copy any more; what it gets may be one already,
 * then it is copied from there, with the segments that are own; else it is one from now on. */
int ucx_copies_gather(struct ucx_op *op, const struct fabric_op *from, struct fabric_segment *own,
                      uint32_t *own_count, struct ucx_waits *waits);
void ucx_copies_gone(struct ucx_fabric *fabric, const struct device_memory *memory);
void ucx_copies_clear(struct ucx_fabric *fabric);

static inline uint64_t ucx_ceil(uint64_t count, uint64_t part)
{
    return (count + part - 1) / part;
}

static inline uint32_t ucx_nodes(const struct ucx_op *op)
{
    return op->fabric->local.config.nodes->count;
}

static inline bool ucx_is_own(const struct ucx_op *op, uint32_t position)
{
    return op->node[position] == op->own;
}

#endif
