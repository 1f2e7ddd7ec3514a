/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers between nodes: the rank's node asks each owners' node for what it has, and gets it in
 * place. Where another rank of the node lies with the same of the same version, the owners are told
 * that nothing is needed, and it is copied from there: each slice crosses once per node. Fills go
 * the other way: each member's node asks the rank's. Stream threads; flows are made on the loop
 * thread.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/ucx/ucx.h"

static int prepare_ask(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                       struct ucx_slot *slot)
{
    (void)row;
    (void)piece;
    slot->request.piece = UCX_PULL;
    if (flow->send && op->shared)
        slot->request.flags = NET_SKIP;
    return 0;
}

/* Who has it hears what the other node wants. */
static void asked(struct ucx_op *op, struct ucx_flow *flow, uint64_t row)
{
    bool skip = flow->slots[row % flow->window].request.flags & NET_SKIP;

    for (uint32_t i = 0; !skip && i < op->flow_count; i++)
        if (op->flows[i].gated && op->flows[i].node == flow->node)
            op->flows[i].ready = op->flows[i].rows;
}

/* Rows are prepared in order: each flow remembers where its last one was. */
static int prepare_data(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                        struct ucx_slot *slot)
{
    const struct ucx_segment *segment = &op->segments[flow->segment];
    uint64_t at;
    char *begin;

    (void)piece;
    while (segment->node != flow->node || row >= flow->segment_row + segment->rows) {
        if (segment->node == flow->node)
            flow->segment_row += segment->rows;
        segment = &op->segments[++flow->segment];
    }
    at = (row - flow->segment_row) * UCX_CHUNK_BYTES;
    begin = flow->send ? (char *)(uintptr_t)segment->at.from : segment->at.to;
    slot->request.piece = row;
    slot->request.buffer = begin + at;
    slot->request.bytes =
        segment->at.bytes - at < UCX_CHUNK_BYTES ? segment->at.bytes - at : UCX_CHUNK_BYTES;
    return 0;
}

static void received(struct ucx_op *op, struct ucx_flow *flow, uint64_t row)
{
    op->moved[0] += flow->slots[row % flow->window].request.bytes;
}

static void copy_own(struct ucx_op *op)
{
    local_run(op->local, NULL);
}

static void count(struct ucx_op *op)
{
    figures_moved(&op->fabric->local.counters, &op->local->op, op->local->op.rank, op->moved[0]);
}

static void count_filled(struct ucx_op *op)
{
    for (uint32_t i = 0; i < op->segment_count; i++)
        figures_moved(&op->fabric->local.counters, &op->local->op, op->segments[i].at.owner,
                      op->segments[i].at.bytes);
}

static uint64_t rows_with(const struct ucx_op *op, uint32_t node)
{
    uint64_t rows = 0;

    for (uint32_t i = 0; i < op->segment_count; i++)
        rows += op->segments[i].node == node ? op->segments[i].rows : 0;
    return rows;
}

/* One of the two asks, the other sends. */
static int plan_with(struct ucx_op *op, uint32_t node, bool pulls)
{
    uint64_t rows = rows_with(op, node);
    int r;

    if (rows == 0)
        return 0;
    r = ucx_flow_add(op, &(struct ucx_flow){.send = pulls,
                                            .node = node,
                                            .pieces = 1,
                                            .rows = 1,
                                            .ready = 1,
                                            .prepare = prepare_ask,
                                            .complete = pulls ? NULL : asked});
    if (r < 0 || (pulls && op->shared))
        return r;
    return ucx_flow_add(op, &(struct ucx_flow){.send = !pulls,
                                               .gated = !pulls,
                                               .node = node,
                                               .pieces = 1,
                                               .rows = rows,
                                               .ready = pulls ? rows : 0,
                                               .prepare = prepare_data,
                                               .complete = pulls ? received : NULL});
}

int ucx_plan_gather(struct ucx_op *op)
{
    const struct local_fabric *local = &op->fabric->local;
    uint32_t at = local->config.nodes->of_rank[op->local->op.rank];
    bool fills = op->local->op.kind == CORE_OP_FILL, here = at == op->own;
    int r = 0;

    if (here != fills)
        op->finish = fills ? count_filled : count;
    if (!here)
        return plan_with(op, at, fills);
    op->meanwhile = copy_own;
    for (uint32_t node = 0; r == 0 && node < ucx_nodes(op); node++)
        if (node != op->own)
            r = plan_with(op, node, !fills);
    return r;
}

/* ---- what crosses and what does not ---------------------------------------------------------- */

int ucx_split_gather(struct ucx_op *op, const struct fabric_op *from,
                     struct fabric_segment *ret_own, uint32_t *ret_own_count)
{
    const struct fabric_nodes *nodes = op->fabric->local.config.nodes;
    uint32_t to = nodes->of_rank[from->op->rank], own = 0;

    op->segments = calloc(from->segment_count ? from->segment_count : 1, sizeof(*op->segments));
    if (!op->segments)
        return GW_E_NOMEM;
    for (uint32_t i = 0; i < from->segment_count; i++) {
        const struct fabric_segment *segment = &from->segments[i];
        uint32_t owner = nodes->of_rank[segment->owner];
        if (owner == to && to == op->own)
            ret_own[own++] = *segment;
        else if (owner != to && (owner == op->own || to == op->own))
            op->segments[op->segment_count++] = (struct ucx_segment){
                *segment, ucx_ceil(segment->bytes, UCX_CHUNK_BYTES), to == op->own ? owner : to};
    }
    *ret_own_count = own;
    return 0;
}
