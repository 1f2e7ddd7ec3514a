/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather and broadcast between nodes: what a node has crosses once to each other one, into the
 * memory of its first member; the others there copy it. Stream threads; flows are made on the loop
 * thread.
 */
#include "daemon/fabric/ucx/ucx.h"

/* An input in chunks; those of an all-gather's node one after the other. */
struct rowed {
    uint32_t position;
    uint64_t at, bytes;
};

static uint64_t input_bytes(const struct ucx_op *op)
{
    return op->local->op.numel * gw_dtype_bytes(op->local->op.in_dtype);
}

static struct rowed row_of(const struct ucx_op *op, uint32_t node, uint64_t row)
{
    uint64_t bytes = input_bytes(op), rows = ucx_ceil(bytes, UCX_CHUNK_BYTES);
    struct rowed rowed = {.at = row % rows * UCX_CHUNK_BYTES};
    uint64_t index = row / rows;

    for (uint32_t i = 0; op->local->op.kind == CORE_OP_ALL_GATHER; i++) {
        rowed.position = i;
        if (op->node[i] == node && index-- == 0)
            break;
    }
    rowed.bytes = bytes - rowed.at < UCX_CHUNK_BYTES ? bytes - rowed.at : UCX_CHUNK_BYTES;
    return rowed;
}

static char *output_at(const struct ucx_op *op, uint32_t position, const struct rowed *rowed)
{
    uint64_t begin =
        op->local->op.kind == CORE_OP_ALL_GATHER ? rowed->position * input_bytes(op) : 0;

    return (char *)op->local->out[position] + begin + rowed->at;
}

static int prepare_out(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                       struct ucx_slot *slot)
{
    const struct rowed rowed = row_of(op, op->own, row);
    const char *in = op->local->in[rowed.position];

    (void)flow;
    (void)piece;
    slot->request.piece = row;
    slot->request.buffer = (void *)(uintptr_t)(in + rowed.at);
    slot->request.bytes = rowed.bytes;
    return 0;
}

static int prepare_in(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                      struct ucx_slot *slot)
{
    const struct rowed rowed = row_of(op, flow->node, row);

    (void)piece;
    slot->request.piece = row;
    slot->request.buffer = output_at(op, op->first_own, &rowed);
    slot->request.bytes = rowed.bytes;
    return 0;
}

static void spread(struct ucx_op *op, struct ucx_flow *flow, uint64_t row)
{
    const struct core_op *what = &op->local->op;
    const struct rowed rowed = row_of(op, flow->node, row);
    const char *from = output_at(op, op->first_own, &rowed);

    op->moved[op->first_own] += rowed.bytes;
    for (uint32_t i = op->first_own + 1; i < what->world; i++)
        if (ucx_is_own(op, i))
            op->moved[i] += kernel_copy(output_at(op, i, &rowed), from, rowed.bytes, false);
}

/* What does not cross: and counts the op. */
static void copy_own(struct ucx_op *op)
{
    local_run(op->local, NULL);
}

static void count_received(struct ucx_op *op)
{
    for (uint32_t i = 0; i < op->local->op.world; i++)
        if (ucx_is_own(op, i))
            figures_moved(&op->fabric->local.counters, &op->local->op, op->local->op.members[i],
                          op->moved[i]);
}

static int plan_out(struct ucx_op *op, uint32_t node, uint64_t inputs)
{
    uint64_t rows = inputs * ucx_ceil(input_bytes(op), UCX_CHUNK_BYTES);

    if (rows == 0)
        return 0;
    return ucx_flow_add(op, &(struct ucx_flow){.send = true,
                                               .node = node,
                                               .pieces = 1,
                                               .rows = rows,
                                               .ready = rows,
                                               .prepare = prepare_out});
}

static int plan_in(struct ucx_op *op, uint32_t node, uint64_t inputs)
{
    uint64_t rows = inputs * ucx_ceil(input_bytes(op), UCX_CHUNK_BYTES);

    if (rows == 0)
        return 0;
    return ucx_flow_add(op, &(struct ucx_flow){.node = node,
                                               .pieces = 1,
                                               .rows = rows,
                                               .ready = rows,
                                               .prepare = prepare_in,
                                               .complete = spread});
}

static uint64_t members_on(const struct ucx_op *op, uint32_t node)
{
    uint64_t members = 0;

    for (uint32_t i = 0; i < op->local->op.world; i++)
        members += op->node[i] == node;
    return members;
}

int ucx_plan_all_gather(struct ucx_op *op)
{
    int r = 0;

    op->meanwhile = copy_own;
    op->finish = count_received;
    for (uint32_t step = 1; r == 0 && step < ucx_nodes(op); step++) {
        uint32_t to = (op->own + step) % ucx_nodes(op);
        uint32_t from = (op->own + ucx_nodes(op) - step) % ucx_nodes(op);
        if (ranks_has(&op->nodes, to))
            r = plan_out(op, to, members_on(op, op->own));
        if (r == 0 && ranks_has(&op->nodes, from))
            r = plan_in(op, from, members_on(op, from));
    }
    return r;
}

static void count_broadcast(struct ucx_op *op)
{
    for (uint32_t i = 0; i < op->local->op.world; i++)
        local_count(op->local, op->local->op.members[i], op->moved[i]);
}

int ucx_plan_broadcast(struct ucx_op *op)
{
    uint32_t root = op->own;
    int r = 0;

    for (uint32_t i = 0; i < op->local->op.world; i++)
        if (op->local->op.members[i] == op->local->op.rank)
            root = op->node[i];
    if (root != op->own) {
        op->finish = count_broadcast;
        return plan_in(op, root, 1);
    }
    op->meanwhile = copy_own;
    for (uint32_t node = 0; r == 0 && node < ucx_nodes(op); node++)
        if (node != op->own && ranks_has(&op->nodes, node))
            r = plan_out(op, node, 1);
    return r;
}
