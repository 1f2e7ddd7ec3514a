/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: what one optimizer step will send and what a rank will hold, worked out before a run from
 * layout and place alone. A pure function; any thread. The counters of a real run equal it (no
 * step skipped, every parameter with a gradient, each unit fetched and released forward and, in
 * reverse, backward; with reuse_bytes from the second step on, when the order is known).
 *
 * Figures are those of one rank, per optimizer step, and mean what fabric.h says; but
 *  - in_node_bytes: what the rank reads and copies in its own node's memory, padding included: on
 *    one node its moved_bytes (of control: nothing). Sums over micro-steps are taken to be the
 *    service's (REPLACE).
 *  - A rank's figures are the sums of its groups', and one control call, the verdict. Of memory,
 *    buckets' buffers and the gather pool serve all of a rank's groups: they are in the sum alone.
 *  - cross_node_bytes: what one node sends to the others; the busiest node's, of all collectives of
 *    the rank's groups. Ranks lie on nodes in blocks, in order, the first world % nodes blocks one
 *    rank larger. A node sends one partial sum per maximal aligned subtree of its ranks: one, where
 *    blocks are aligned.
 *  - with secondary_ranks a block of ranks gathers each unit once a step from all owners. Whoever
 *    of the block comes first does; in ring_bytes each has its share of that. (Blocks are best
 *    within nodes: what a fill sends to other nodes is not in cross_node_bytes.)
 */
#ifndef GW_CORE_PLAN_H
#define GW_CORE_PLAN_H

#include "daemon/base/text.h"
#include "daemon/core/core.h"
#include "gradwire/gradwire.h"

#define PLAN_OPTIMIZER_ARRAYS 2u  /* Adam's two fp32 moments */
#define PLAN_WORLD_MAX (1u << 20) /* ranks of a plan; a job takes GW_RANKS_MAX */

struct plan_request {
    const struct layout_param *params;
    uint32_t param_count;
    const struct layout_group *groups; /* from group 1 on */
    uint32_t group_count;
    uint32_t world, nodes;
    uint32_t rank;            /* whose figures */
    struct wire_seal options; /* zero: default, as at a seal. gather, persist_bytes, reuse_bytes
                               * and secondary_ranks count in stage 3 only, shard_ranks not in
                               * stage 0 */
};

struct plan_kind {
    uint64_t calls, payload_bytes, padding_bytes, ring_bytes, in_node_bytes, cross_node_bytes;
};

/* A group's part in the figures of one of its members. */
struct plan_group {
    uint32_t rank; /* that member: the plan's rank, or, if that is none, the group's first */
    struct plan_kind kinds[GW_KINDS];
    uint64_t memory_bytes[GW_MEMORIES]; /* params, gradients, optimizer; mapped: params are the
                                         * job's, a rank's share of them */
    uint32_t buckets;
    uint64_t padding_bytes; /* of gradients, at the ends of its buckets */
};

struct plan {
    struct layout *layout;
    struct wire_seal options;  /* defaults filled in */
    struct plan_group *groups; /* as many as the layout has */
    struct plan_kind kinds[GW_KINDS];
    uint64_t memory_bytes[GW_MEMORIES];
};

/* 0, GW_E_NOMEM, or GW_E_INVALID with *text saying why, and *ret_param as layout_new leaves it. */
int plan_new(const struct plan_request *request, struct plan **ret_plan, struct text *text,
             uint32_t *ret_param);
struct plan *plan_free(struct plan *plan);

/* As fabric_ring_bytes, which the core must not know; a test holds both together. */
uint64_t plan_ring_bytes(enum gw_kind kind, uint64_t payload_bytes, uint32_t world);

#endif
