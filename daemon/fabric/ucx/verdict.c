/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step's verdict on several nodes: each sends the others what its ranks' slices of the used
 * buckets left, and then does by itself what one node would, over the same numbers in the same
 * order. Stream thread; flows and room are made on the loop thread.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/ucx/ucx.h"

/* Goes over a node's slices in order; what to do with `chunks` partials of each. */
static uint64_t walk(struct ucx_op *op, uint32_t node, struct kernel_partial *packed, bool pack)
{
    uint64_t at = 0;

    for (uint32_t b = 0; b < op->local->buckets; b++) {
        struct local_partials *partials = op->local->verdict[b];
        uint64_t chunks = partials ? kernel_chunks(partials->numel) : 0;
        for (uint32_t slice = 0; partials && slice < partials->slices; slice++) {
            struct kernel_partial *own = &partials->at[slice * chunks];
            uint16_t rank = partials->rank_of[slice];
            if (rank == GW_RANKS_MAX || op->fabric->local.config.nodes->of_rank[rank] != node)
                continue;
            if (packed)
                memcpy(pack ? &packed[at] : own, pack ? own : &packed[at], chunks * sizeof(*own));
            at += chunks;
        }
    }
    return at;
}

static int prepare(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                   struct ucx_slot *slot)
{
    uint32_t owner = flow->send ? op->own : flow->node;
    uint64_t bytes = (op->packed_at[owner + 1] - op->packed_at[owner]) * sizeof(*op->packed);
    uint64_t at = row * UCX_CHUNK_BYTES;

    (void)piece;
    slot->request.piece = row;
    slot->request.buffer = (char *)&op->packed[op->packed_at[owner]] + at;
    slot->request.bytes = bytes - at < UCX_CHUNK_BYTES ? bytes - at : UCX_CHUNK_BYTES;
    return 0;
}

static void finish(struct ucx_op *op)
{
    for (uint32_t node = 0; node < ucx_nodes(op); node++)
        if (node != op->own && ranks_has(&op->nodes, node))
            walk(op, node, &op->packed[op->packed_at[node]], false);
    local_verdict(op->local);
}

static void pack(struct ucx_op *op)
{
    walk(op, op->own, &op->packed[op->packed_at[op->own]], true);
}

int ucx_plan_verdict(struct ucx_op *op)
{
    int r = 0;

    op->begin = pack;
    op->finish = finish;
    for (uint32_t node = 0; node < ucx_nodes(op); node++)
        op->packed_at[node + 1] =
            op->packed_at[node] + (ranks_has(&op->nodes, node) ? walk(op, node, NULL, false) : 0);
    op->packed = malloc((op->packed_at[ucx_nodes(op)] + 1) * sizeof(*op->packed));
    if (!op->packed)
        return GW_E_NOMEM;
    /* At least one message, if an empty one: a verdict is of all. */
    for (uint32_t node = 0; r == 0 && node < ucx_nodes(op); node++) {
        struct ucx_flow flow = {.node = node, .pieces = 1, .prepare = prepare};
        uint64_t own = op->packed_at[op->own + 1] - op->packed_at[op->own];
        uint64_t theirs = op->packed_at[node + 1] - op->packed_at[node];
        if (node == op->own || !(ranks_has(&op->nodes, node)))
            continue;
        flow.rows = flow.ready =
            theirs ? ucx_ceil(theirs * sizeof(*op->packed), UCX_CHUNK_BYTES) : 1;
        r = ucx_flow_add(op, &flow);
        flow.send = true;
        flow.rows = flow.ready = own ? ucx_ceil(own * sizeof(*op->packed), UCX_CHUNK_BYTES) : 1;
        if (r == 0)
            r = ucx_flow_add(op, &flow);
    }
    return r;
}
