/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops whose ranks are on several nodes: what goes between nodes goes by grouped sends and receives
 * of NCCL, raw, to the rank that adds it up or asked for it; inside a node nothing changes. Issuing
 * threads; every call is polled until it is on the stream.
 *
 * Every node launches the same ops in the same order, and a GPU's issuing thread issues them in
 * that order, so that calls between two ranks match, and none waits for one behind it. Each lane
 * has communicators of its own: within one, NCCL lets a call wait for the one before.
 */
#include "daemon/fabric/nccl/nccl.h"

/* ---- sends and receives ---------------------------------------------------------------------- */

static ncclComm_t *comm_at(struct nccl_part *part)
{
    return &part->op->group->comm[part->native->rank];
}

void nccl_exchange_begin(struct nccl_part *part)
{
    if (!*comm_at(part))
        part->failed = true; /* could not be made, which is told */
    if (!part->failed)
        (void)ncclGroupStart();
}

static void check_call(struct nccl_part *part, ncclResult_t result, const char *call)
{
    if (result != ncclSuccess && result != ncclInProgress)
        part->failed = !nccl_settled(part->op->world, part->native->rank, comm_at(part), result,
                                     call);
}

void nccl_send(struct nccl_part *part, uint32_t to, const void *from, uint64_t bytes)
{
    if (part->failed || bytes == 0)
        return;
    check_call(part,
               ncclSend(from, bytes, ncclUint8, (int)to, *comm_at(part), part->native->stream),
               "ncclSend");
    figures_crossed(&part->op->fabric->counters, &part->op->op, part->native->rank, bytes);
}

void nccl_receive(struct nccl_part *part, uint32_t from, void *to, uint64_t bytes)
{
    if (part->failed || bytes == 0)
        return;
    check_call(part,
               ncclRecv(to, bytes, ncclUint8, (int)from, *comm_at(part), part->native->stream),
               "ncclRecv");
}

/* `began`: nccl_exchange_begin had not failed. */
void nccl_exchange_end(struct nccl_part *part, bool began)
{
    ncclResult_t result;

    if (!began)
        return;
    result = ncclGroupEnd();
    if (!part->failed &&
        !nccl_settled(part->op->world, part->native->rank, comm_at(part), result, "ncclGroupEnd"))
        part->failed = true;
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct parts_range nccl_share(const struct core_op *op, uint32_t index)
{
    if (op->kind == CORE_OP_REDUCE_SCATTER)
        return (struct parts_range){index * op->numel, op->numel};
    return parts_share(op->total_numel ? op->total_numel : op->world * op->numel, op->numel, index);
}

void nccl_span_send_inputs(struct nccl_part *part, uint64_t at, uint64_t room)
{
    const struct nccl_op *op = part->op;
    uint64_t size = gw_dtype_bytes(op->op.in_dtype);
    const char *in = op->in[part->index];

    for (uint32_t q = 0; in && q < op->op.world; q++) {
        struct parts_range share = nccl_share(&op->op, q);
        uint64_t left = share.count > at ? share.count - at : 0;
        if (!(op->here >> q & 1))
            nccl_send(part, q, in + (share.first + at) * size, (left < room ? left : room) * size);
    }
}

/* Every owner's result to all, in place. */
void nccl_span_spread(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint64_t size = gw_dtype_bytes(op->op.out_dtype);
    struct parts_range own = nccl_share(&op->op, part->index);
    char *out = op->out[part->index];
    bool began;

    nccl_exchange_begin(part);
    began = !part->failed;
    for (uint32_t q = 0; q < op->op.world; q++) {
        struct parts_range share = nccl_share(&op->op, q);
        if (op->here >> q & 1)
            continue;
        nccl_send(part, q, out + own.first * size, own.count * size);
        nccl_receive(part, q, out + share.first * size, share.count * size);
        part->moved += share.count * size;
    }
    nccl_exchange_end(part, began);
}

void nccl_span_put_back(struct nccl_part *part, const char *own, uint64_t at, uint64_t bytes)
{
    const struct nccl_op *op = part->op;
    bool takes = !(op->absent >> part->index & 1), began;

    nccl_exchange_begin(part);
    began = !part->failed;
    for (uint32_t q = 0; q < op->op.world; q++) {
        const char *to = takes ? nccl_in(op, part->index, q * op->op.numel + at).at : NULL;
        if (op->here >> q & 1)
            continue;
        if (!(op->absent >> q & 1))
            nccl_send(part, q, own, bytes);
        if (takes) {
            nccl_receive(part, q, (char *)(uintptr_t)to, bytes);
            part->moved += bytes;
        }
    }
    nccl_exchange_end(part, began);
}

/* ---- gathers --------------------------------------------------------------------------------- */

void nccl_span_gather(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint32_t rank = part->native->rank, asks = parts_index(op->op.members, op->op.world,
                                                           op->op.rank);
    bool began;

    nccl_exchange_begin(part);
    began = !part->failed;
    for (uint32_t i = 0; i < op->segment_count && !part->failed; i++) {
        const struct fabric_segment *segment = &op->segments[i];
        uint32_t owner = parts_index(op->op.members, op->op.world, segment->owner);
        if (rank != op->op.rank && segment->owner == rank)
            nccl_send(part, asks, segment->from, segment->bytes);
        else if (rank == op->op.rank && !segment->from)
            nccl_receive(part, owner, segment->to, segment->bytes);
    }
    nccl_exchange_end(part, began);
}

/* The other way. */
void nccl_span_fill(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint32_t rank = part->native->rank, gives = parts_index(op->op.members, op->op.world,
                                                            op->op.rank);
    bool began;

    nccl_exchange_begin(part);
    began = !part->failed;
    for (uint32_t i = 0; i < op->segment_count && !part->failed; i++) {
        const struct fabric_segment *segment = &op->segments[i];
        uint32_t owner = parts_index(op->op.members, op->op.world, segment->owner);
        if (rank == op->op.rank && !segment->to) {
            nccl_send(part, owner, segment->from, segment->bytes);
        } else if (rank != op->op.rank && segment->owner == rank) {
            nccl_receive(part, gives, segment->to, segment->bytes);
            figures_moved(&op->fabric->counters, &op->op, rank, segment->bytes);
        }
    }
    nccl_exchange_end(part, began);
}

/* ---- what all wait for ----------------------------------------------------------------------- */

static void all_reduce(struct nccl_part *part, void *at, uint64_t count, ncclDataType_t type,
                       ncclRedOp_t how)
{
    ncclComm_t comm = *comm_at(part);

    part->failed = part->failed || !comm;
    if (!part->failed && count > 0)
        part->failed = !nccl_settled(
            part->op->world, part->native->rank, comm_at(part),
            ncclAllReduce(at, at, count, type, how, comm, part->native->stream), "ncclAllReduce");
}

/* Nobody's stream goes on before everybody's has come to it. */
void nccl_span_meet(struct nccl_part *part)
{
    all_reduce(part,
               part->scratch + NCCL_SCRATCH_BYTES + (uint32_t)part->op->op.stream * NCCL_WORD_BYTES,
               1, ncclUint32, ncclMax);
}

/* Partials of slices elsewhere are zeros here, and 64-bit words add up to what they are. */
void nccl_span_partials(struct nccl_part *part, void *partials, uint64_t bytes)
{
    all_reduce(part, partials, bytes / sizeof(uint64_t), ncclUint64, ncclSum);
}
