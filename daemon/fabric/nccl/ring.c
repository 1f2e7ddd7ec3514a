/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's own collectives: all-gather (large ones go by copy engines), broadcast, and the sums of
 * order=fabric, whose order of adding is NCCL's. What NCCL cannot do comes behind it in one kernel
 * pass (the epilogue): scale, accumulate, squares. In place where the op is. Issuing threads; every
 * call is polled until it is on the stream.
 *
 * Scratch of order=fabric: its first half takes results that are added to an accumulator, the
 * second holds zeros for a rank that has no input.
 */
#include "daemon/fabric/nccl/nccl.h"
#include "daemon/device/cuda/plant.h"

#define HALF_NUMEL ((uint64_t)NCCL_INPUT_BYTES / 2 / sizeof(float))

/* NULL: the communicator could not be made, which is told already. */
static ncclComm_t comm_of(struct nccl_part *part)
{
    ncclComm_t comm = part->op->group->comm[part->native->rank];

    part->failed = part->failed || !comm;
    return comm;
}

static void settle(struct nccl_part *part, ncclResult_t result, const char *call)
{
    ncclComm_t *comm = &part->op->group->comm[part->native->rank];

    if (!nccl_settled(part->op->world, part->native->rank, comm, result, call))
        part->failed = true;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The rank fetches what it has not, not all from the same rank at once. */
static void gather_by_copies(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint64_t bytes = op->op.numel * sizeof(float);

    for (uint32_t i = 0; i < op->op.world && !part->failed; i++) {
        uint32_t q = (part->index + i) % op->op.world;
        float *to = op->out[part->index] + q * op->op.numel;
        if (to == op->in[q])
            continue;
        nccl_copy(part, nccl_own(part, to), nccl_in(op, q, 0), bytes);
        part->moved += bytes;
    }
}

void nccl_all_gather(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint64_t bytes = op->op.numel * sizeof(float);
    const float *in = op->in[part->index];
    float *out = op->out[part->index];
    ncclComm_t comm;

    if (op->copies)
        gather_by_copies(part);
    if (bytes == 0 || op->copies)
        return;
    comm = comm_of(part);
    if (!comm)
        return;
    settle(part, ncclAllGather(in, out, op->op.numel, ncclFloat, comm, part->native->stream),
           "ncclAllGather");
    part->moved = bytes * (op->op.world - 1);
    if (in != out + part->index * op->op.numel)
        part->moved += bytes;
}

void nccl_broadcast(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint32_t root = parts_index(op->op.members, op->op.world, op->op.rank);
    bool is_root = part->index == root;
    float *out = op->out[part->index];
    ncclComm_t comm;

    if (op->op.numel == 0)
        return;
    comm = comm_of(part);
    if (!comm)
        return;
    /* The root's own result is not asked for: in place, so that nothing of it is written. */
    if (is_root)
        out = (float *)(uintptr_t)op->in[0];
    settle(part,
           ncclBroadcast(is_root ? op->in[0] : out, out, op->op.numel, ncclFloat, (int)root, comm,
                         part->native->stream),
           "ncclBroadcast");
    part->moved = is_root ? 0 : op->op.numel * sizeof(float);
}

/* ---- epilogue -------------------------------------------------------------------------------- */

/* out[0..count) = (out +) scale * from. squares: they are values of the part's slice from its first
 * element on. */
static void finish(struct nccl_part *part, const float *from, float *out, uint64_t count,
                   float scale, bool accumulate, bool squares)
{
    if (planted("epilogue_skipped"))
        return;
    for (uint64_t at = 0; at < count && !part->failed; at += NCCL_PIECE_MAX) {
        struct gw_k_reduce arg = {.in = {from + at},
                                  .n = 1,
                                  .outs = accumulate ? 0 : 1,
                                  .out = {out + at},
                                  .accumulator = accumulate ? out + at : NULL,
                                  .lanes = squares ? nccl_lanes(part) : NULL,
                                  .count =
                                      count - at < NCCL_PIECE_MAX ? count - at : NCCL_PIECE_MAX,
                                  .scale = scale};
        nccl_check(part, cuda_launch_reduce(&arg, NCCL_THREADS, part->native->stream),
                   "gw_k_reduce");
        if (arg.lanes)
            nccl_squares(part, at / GW_K_CHUNK, arg.count);
    }
}

/* The op's input from element `first` on, or `count` zeros. */
static const float *input(struct nccl_part *part, uint64_t first, uint64_t count)
{
    const float *in = part->op->in[part->index];
    struct gw_k_add arg = {.out = (float *)(void *)part->scratch + HALF_NUMEL, .count = count};

    if (in)
        return in + first;
    nccl_check(part, cuda_launch_add(&arg, NCCL_THREADS, part->native->stream), "gw_k_add");
    return arg.out;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t input_bytes(const struct nccl_op *op, uint64_t count)
{
    uint64_t bytes = 0;

    for (uint32_t q = 0; q < op->op.world; q++)
        bytes += op->in[q] ? count * sizeof(float) : 0;
    return bytes;
}

void nccl_ring_reduce_scatter(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    const struct core_op *what = &op->op;
    float *out = op->out[part->index];
    float *to = what->accumulate ? (float *)(void *)part->scratch : out;
    const float *in = input(part, 0, what->numel * what->world);
    ncclComm_t comm = comm_of(part);

    if (part->failed)
        return;
    settle(part,
           ncclReduceScatter(in, to, what->numel, ncclFloat, ncclSum, comm, part->native->stream),
           "ncclReduceScatter");
    part->moved = input_bytes(op, what->numel);
    if (what->accumulate || what->scale != 1.0f || op->partials)
        finish(part, to, out, what->numel, what->scale, what->accumulate, op->partials != NULL);
}

/* The sum alone: to `out`, or by pieces into the accumulator that is there. */
static void all_reduce(struct nccl_part *part, uint64_t total, uint64_t piece)
{
    const struct core_op *what = &part->op->op;
    float *out = part->op->out[part->index];
    ncclComm_t comm = comm_of(part);

    for (uint64_t at = 0; at < total && !part->failed; at += piece) {
        uint64_t count = total - at < piece ? total - at : piece;
        float *to = what->accumulate ? (float *)(void *)part->scratch : out + at;
        const float *in = input(part, at, count);
        if (part->failed)
            return;
        settle(part, ncclAllReduce(in, to, count, ncclFloat, ncclSum, comm, part->native->stream),
               "ncclAllReduce");
        if (what->accumulate)
            finish(part, to, out + at, count, what->scale, true, false);
    }
}

void nccl_ring_all_reduce(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    const struct core_op *what = &op->op;
    uint64_t total = what->total_numel ? what->total_numel : what->world * what->numel;
    struct parts_range share = parts_share(total, what->numel, part->index);
    uint64_t end = share.first + share.count;
    float *out = op->out[part->index];
    /* What is added already is not scaled again, only squared. */
    float scale = what->accumulate ? 1.0f : what->scale;
    bool whole = !what->accumulate;

    for (uint32_t q = 0; q < what->world; q++)
        whole = whole && op->in[q];
    all_reduce(part, total, whole ? total : HALF_NUMEL);
    part->moved = input_bytes(op, share.count) + total * sizeof(float);
    if (share.count > 0 && (scale != 1.0f || op->partials))
        finish(part, out + share.first, out + share.first, share.count, scale, false,
               op->partials != NULL);
    if (scale == 1.0f)
        return;
    if (share.count == 0)
        end = 0;
    finish(part, out, out, share.count ? share.first : 0, scale, false, false);
    finish(part, out + end, out + end, total - end, scale, false, false);
}
