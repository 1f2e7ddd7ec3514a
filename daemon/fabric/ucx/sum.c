/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over ranks of several nodes. A node sends, for each slice whose owner is elsewhere, the sums
 * of its parts (the maximal aligned subtrees of its ranks), one rank's part as it is; the owner's
 * node adds up its own ranks' inputs and the others' parts in the order of the one tree, with the
 * epilogue that a sum of one node has: the same bits wherever ranks are. An all-reduce then sends
 * each slice's result once to every other node; one to shards puts it over the inputs there, as
 * here. Stream threads; flows are made on the loop thread.
 */
#include "daemon/fabric/ucx/ucx.h"

/* ---- rows: a node's slices, one after the other, in chunks ----------------------------------- */

struct rowed {
    uint32_t slice;     /* position of its owner */
    uint64_t at, count; /* elements within it */
};

/* Every rank gets the whole result in a place of its own. */
static bool is_full(const struct core_op *what)
{
    return what->kind == CORE_OP_ALL_REDUCE && !what->shards;
}

static uint64_t total_of(const struct core_op *what)
{
    return what->kind == CORE_OP_ALL_REDUCE && what->total_numel ? what->total_numel
                                                                 : what->numel * what->world;
}

static uint64_t slice_numel(const struct core_op *what, uint32_t slice)
{
    uint64_t total = total_of(what), begin = slice * what->numel;

    if (begin >= total)
        return 0;
    return total - begin < what->numel ? total - begin : what->numel;
}

static uint64_t rows_of(const struct ucx_op *op, uint32_t node)
{
    const struct core_op *what = &op->local->op;
    uint64_t rows = 0;

    for (uint32_t i = 0; i < what->world; i++)
        if (op->node[i] == node)
            rows += ucx_ceil(slice_numel(what, i), UCX_CHUNK_NUMEL);
    return rows;
}

static struct rowed row_of(const struct ucx_op *op, uint32_t node, uint64_t row)
{
    const struct core_op *what = &op->local->op;
    struct rowed rowed = {0, 0, 0};

    for (uint32_t i = 0; i < what->world; i++) {
        uint64_t numel = op->node[i] == node ? slice_numel(what, i) : 0;
        uint64_t rows = ucx_ceil(numel, UCX_CHUNK_NUMEL);
        if (row >= rows) {
            row -= rows;
            continue;
        }
        rowed.slice = i;
        rowed.at = row * UCX_CHUNK_NUMEL;
        rowed.count = numel - rowed.at < UCX_CHUNK_NUMEL ? numel - rowed.at : UCX_CHUNK_NUMEL;
        break;
    }
    return rowed;
}

/* Of the whole: where the row begins in an input, and in an all-reduce's output. */
static uint64_t begin_of(const struct ucx_op *op, const struct rowed *rowed)
{
    return rowed->slice * op->local->op.numel + rowed->at;
}

static const void *input_at(const struct ucx_op *op, uint32_t position, uint64_t begin)
{
    const void *in = op->local->in[position];

    return in ? (const char *)in + begin * gw_dtype_bytes(op->local->op.in_dtype) : NULL;
}

static void *output_at(const struct ucx_op *op, uint32_t position, const struct rowed *rowed)
{
    const struct core_op *what = &op->local->op;
    uint64_t at = is_full(what) ? begin_of(op, rowed) : rowed->at;

    return (char *)op->local->out[position] + at * gw_dtype_bytes(what->out_dtype);
}

/* ---- parts go out ---------------------------------------------------------------------------- */

/* Part `index` of those that node has; the first node's without one: never. */
static const struct ucx_part *part_of(const struct ucx_op *op, uint32_t node, uint64_t index)
{
    for (uint32_t i = 0; i < op->part_count; i++)
        if (op->parts[i].node == node && index-- == 0)
            return &op->parts[i];
    return NULL;
}

static uint32_t parts_of(const struct ucx_op *op, uint32_t node)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < op->part_count; i++)
        count += op->parts[i].node == node;
    return count;
}

static uint64_t part_bytes(const struct ucx_op *op, const struct ucx_part *part, uint64_t count)
{
    return count * (part->count > 1 ? sizeof(float) : gw_dtype_bytes(op->local->op.in_dtype));
}

/* The subtree's sum in fp32, of inputs rounded as the sum wants them. */
static void add_part(struct ucx_op *op, const struct ucx_part *part, const void *const *in,
                     uint64_t count, void *to)
{
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce reduce = {.in = in,
                                   .n = part->count,
                                   .out = &to,
                                   .outs = 1,
                                   .in_dtype = op->local->op.in_dtype,
                                   .round_dtype = op->local->op.round_dtype,
                                   .count = count,
                                   .scale = 1};

    local_sum(&op->fabric->local, &reduce, &moved);
}

static int prepare_part(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                        struct ucx_slot *slot)
{
    const struct ucx_part *part = part_of(op, op->own, row % op->own_parts);
    const struct rowed rowed = row_of(op, flow->node, row / op->own_parts);
    const void *in[GW_RANKS_MAX];
    bool any = false;

    (void)piece;
    for (uint32_t i = 0; i < part->count; i++) {
        in[i] = input_at(op, part->first + i, begin_of(op, &rowed));
        any = any || in[i];
    }
    slot->request.piece = row;
    slot->request.bytes = part_bytes(op, part, rowed.count);
    if (!any) {
        slot->request.flags = NET_EMPTY;
        return 0;
    }
    if (part->count == 1) {
        slot->request.buffer = (void *)(uintptr_t)in[0];
        return 0;
    }
    slot->scratch = ucx_scratch_take(op->fabric);
    if (!slot->scratch)
        return GW_E_NOMEM;
    slot->request.buffer = slot->scratch;
    add_part(op, part, in, rowed.count, slot->scratch);
    return 0;
}

/* ---- parts come in --------------------------------------------------------------------------- */

/* Piece `piece` of a row is the piece-th part that is elsewhere. */
static int prepare_others(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                          struct ucx_slot *slot)
{
    const struct rowed rowed = row_of(op, op->own, row);
    const struct ucx_part *part = NULL;
    uint32_t index = 0; /* among its node's */

    (void)flow;
    for (uint32_t i = 0, others = 0; i < op->part_count; i++) {
        part = &op->parts[i];
        if (part->node != op->own && others++ == piece)
            break;
    }
    for (const struct ucx_part *before = op->parts; before < part; before++)
        index += before->node == part->node;
    slot->scratch = ucx_scratch_take(op->fabric);
    if (!slot->scratch)
        return GW_E_NOMEM;
    slot->request.node = part->node;
    slot->request.piece = row * parts_of(op, part->node) + index;
    slot->request.buffer = slot->scratch;
    slot->request.bytes = part_bytes(op, part, rowed.count);
    return 0;
}

/* What a row's sum is made of, in the tree's order: own ranks one by one, others' parts. */
struct inputs {
    const void *in[GW_RANKS_MAX];
    struct kernel_subtree subtrees[GW_RANKS_MAX];
    uint32_t n;
    bool alike; /* all as the op's own inputs are */
};

static void add_input(struct inputs *inputs, const void *in, struct kernel_subtree subtree)
{
    inputs->in[inputs->n] = in;
    inputs->subtrees[inputs->n++] = subtree;
}

static void collect(const struct ucx_op *op, const struct ucx_slot *slots,
                    const struct rowed *rowed, struct inputs *inputs)
{
    const struct core_op *what = &op->local->op;

    inputs->n = 0;
    inputs->alike = true;
    for (uint32_t p = 0; p < op->part_count; p++) {
        const struct ucx_part *part = &op->parts[p];
        bool sum = part->count > 1;
        if (part->node == op->own) {
            for (uint32_t i = part->first; i < part->first + part->count; i++)
                add_input(inputs, input_at(op, i, begin_of(op, rowed)),
                          (struct kernel_subtree){.first = i, .dtype = what->in_dtype});
            continue;
        }
        inputs->alike =
            inputs->alike &&
            (!sum || (what->in_dtype == GW_DTYPE_FP32 && what->round_dtype == GW_DTYPE_FP32));
        add_input(inputs, slots->request.flags & NET_EMPTY ? NULL : slots->scratch,
                  (struct kernel_subtree){.first = part->first,
                                          .height = part->height,
                                          .dtype = sum ? GW_DTYPE_FP32 : what->in_dtype,
                                          .sum = sum});
        slots++;
    }
}

static uint32_t outputs_of(const struct ucx_op *op, const struct rowed *rowed,
                           void *out[GW_RANKS_MAX])
{
    const struct core_op *what = &op->local->op;
    uint32_t outs = 0;

    if (!is_full(what)) {
        out[0] = output_at(op, rowed->slice, rowed);
        return 1;
    }
    for (uint32_t i = 0; i < what->world; i++)
        if (ucx_is_own(op, i))
            out[outs++] = output_at(op, i, rowed);
    return outs;
}

/* All-reduce to shards: a row's result, to this node's inputs. */
static void put_back(struct ucx_op *op, const struct rowed *rowed, const void *from,
                     uint8_t from_dtype)
{
    const struct local_op *local = op->local;

    for (uint32_t i = 0; i < local->op.world; i++)
        if (local->in[i])
            op->moved[i] += local_put_back(&local->op, local->in[i], begin_of(op, rowed), from,
                                           from_dtype, rowed->count, false);
}

/* All parts of a row are here. */
static void add_row(struct ucx_op *op, struct ucx_flow *flow, uint64_t row)
{
    const struct core_op *what = &op->local->op;
    const struct local_partials *partials = op->local->partials;
    const struct rowed rowed = row_of(op, op->own, row);
    struct kernel_reduce reduce = local_sum_of(what);
    struct kernel_moved moved = {0, 0};
    void *out[GW_RANKS_MAX];
    struct inputs inputs;

    collect(op, &flow->slots[row % flow->window * flow->pieces], &rowed, &inputs);
    reduce.in = inputs.in;
    reduce.n = inputs.n;
    if (!inputs.alike || !ucx_parts_plain(inputs.subtrees, inputs.n))
        reduce.subtrees = inputs.subtrees;
    reduce.out = out;
    reduce.outs = outputs_of(op, &rowed, out);
    reduce.count = rowed.count;
    reduce.past = kernel_is_past(total_of(what) * gw_dtype_bytes(what->out_dtype));
    if (partials)
        reduce.partials = op->local->partials->at +
                          (what->slice_first + rowed.slice) * kernel_chunks(partials->numel) +
                          rowed.at / KERNEL_CHUNK;
    local_sum(&op->fabric->local, &reduce, &moved);
    op->moved[rowed.slice] += moved.read;
    for (uint32_t i = 0; is_full(what) && i < what->world; i++)
        if (ucx_is_own(op, i))
            op->moved[i] += moved.written / reduce.outs;
    if (what->shards)
        put_back(op, &rowed, out[0], what->out_dtype);
    for (uint32_t i = 0; i < op->flow_count; i++) /* results may go out */
        if (op->flows[i].gated)
            op->flows[i].ready = row + 1;
}

/* ---- results of an all-reduce ---------------------------------------------------------------- */

static int prepare_result(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                          struct ucx_slot *slot)
{
    uint32_t owner = flow->send ? op->own : flow->node;
    const struct rowed rowed = row_of(op, owner, row);

    (void)piece;
    slot->request.piece = UCX_RESULT | row;
    slot->request.buffer = output_at(op, op->first_own, &rowed);
    slot->request.bytes = rowed.count * gw_dtype_bytes(op->local->op.out_dtype);
    return 0;
}

/* To shards: what goes over inputs has their dtype on its way as well. */
static int prepare_put_back(struct ucx_op *op, struct ucx_flow *flow, uint64_t row, uint32_t piece,
                            struct ucx_slot *slot)
{
    const struct core_op *what = &op->local->op;
    const struct rowed rowed = row_of(op, flow->send ? op->own : flow->node, row);

    (void)piece;
    slot->request.piece = UCX_RESULT | row;
    slot->request.bytes = rowed.count * gw_dtype_bytes(what->in_dtype);
    if (flow->send && what->in_dtype == what->out_dtype) {
        slot->request.buffer = output_at(op, rowed.slice, &rowed);
        return 0;
    }
    slot->scratch = ucx_scratch_take(op->fabric);
    if (!slot->scratch)
        return GW_E_NOMEM;
    slot->request.buffer = slot->scratch;
    if (flow->send)
        (void)local_put_back(what, slot->scratch, 0, output_at(op, rowed.slice, &rowed),
                             what->out_dtype, rowed.count, false);
    return 0;
}

static void take_back(struct ucx_op *op, struct ucx_flow *flow, uint64_t row)
{
    const struct rowed rowed = row_of(op, flow->node, row);

    put_back(op, &rowed, flow->slots[row % flow->window * flow->pieces].scratch,
             op->local->op.in_dtype);
}

static void spread_result(struct ucx_op *op, struct ucx_flow *flow, uint64_t row)
{
    const struct core_op *what = &op->local->op;
    const struct rowed rowed = row_of(op, flow->node, row);
    uint64_t bytes = rowed.count * gw_dtype_bytes(what->out_dtype);
    const void *from = output_at(op, op->first_own, &rowed);

    op->moved[op->first_own] += bytes;
    for (uint32_t i = op->first_own + 1; i < what->world; i++)
        if (ucx_is_own(op, i))
            op->moved[i] += kernel_copy(output_at(op, i, &rowed), from, bytes, false);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void count_sum(struct ucx_op *op)
{
    for (uint32_t i = 0; i < op->local->op.world; i++)
        local_count(op->local, op->local->op.members[i], op->moved[i]);
}

static int plan_results(struct ucx_op *op, uint32_t node)
{
    uint64_t own_rows = rows_of(op, op->own), rows = rows_of(op, node);
    bool shards = op->local->op.shards;
    int r = 0;

    if (own_rows > 0)
        r = ucx_flow_add(op, &(struct ucx_flow){.send = true,
                                                .gated = true,
                                                .node = node,
                                                .pieces = 1,
                                                .rows = own_rows,
                                                .prepare = shards ? prepare_put_back
                                                                  : prepare_result});
    if (r == 0 && rows > 0)
        r = ucx_flow_add(op, &(struct ucx_flow){.node = node,
                                                .pieces = 1,
                                                .rows = rows,
                                                .ready = rows,
                                                .prepare = shards ? prepare_put_back
                                                                  : prepare_result,
                                                .complete = shards ? take_back : spread_result});
    return r;
}

int ucx_plan_sum(struct ucx_op *op)
{
    const struct core_op *what = &op->local->op;
    uint64_t own_rows = rows_of(op, op->own);
    int r = 0;

    op->finish = count_sum;
    op->part_count = ucx_parts_cut(op->node, what->world, op->parts);
    op->own_parts = parts_of(op, op->own);
    if (own_rows > 0)
        r = ucx_flow_add(op, &(struct ucx_flow){.pieces = op->part_count - op->own_parts,
                                                .rows = own_rows,
                                                .ready = own_rows,
                                                .prepare = prepare_others,
                                                .complete = add_row});
    for (uint32_t step = 1; r == 0 && step < ucx_nodes(op); step++) {
        uint32_t node = (op->own + step) % ucx_nodes(op); /* not all the same one first */
        uint64_t rows = ranks_has(&op->nodes, node) ? rows_of(op, node) * op->own_parts : 0;
        if (rows > 0)
            r = ucx_flow_add(op, &(struct ucx_flow){.send = true,
                                                    .node = node,
                                                    .pieces = 1,
                                                    .rows = rows,
                                                    .ready = rows,
                                                    .prepare = prepare_part});
        if (r == 0 && what->kind == CORE_OP_ALL_REDUCE && ranks_has(&op->nodes, node))
            r = plan_results(op, node);
    }
    return r;
}
