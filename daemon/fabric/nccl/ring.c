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

#define HALF_BYTES ((uint64_t)NCCL_INPUT_BYTES / 2)

static ncclDataType_t type_of(uint8_t dtype)
{
    return dtype == GW_DTYPE_FP16   ? ncclHalf
           : dtype == GW_DTYPE_BF16 ? ncclBfloat16
                                    : ncclFloat;
}

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
    uint64_t bytes = op->op.numel * gw_dtype_bytes(op->op.in_dtype);

    for (uint32_t i = 0; i < op->op.world && !part->failed; i++) {
        uint32_t q = (part->index + i) % op->op.world;
        char *to = (char *)op->out[part->index] + q * bytes;
        if (to == op->in[q])
            continue;
        nccl_copy(part, nccl_own(part, to), nccl_in(op, q, 0), bytes);
        part->moved += bytes;
    }
}

void nccl_all_gather(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint64_t bytes = op->op.numel * gw_dtype_bytes(op->op.in_dtype);
    const char *in = op->in[part->index];
    char *out = op->out[part->index];
    ncclComm_t comm;

    if (op->copies)
        gather_by_copies(part);
    if (bytes == 0 || op->copies)
        return;
    comm = comm_of(part);
    if (!comm)
        return;
    settle(part,
           ncclAllGather(in, out, op->op.numel, type_of(op->op.in_dtype), comm,
                         part->native->stream),
           "ncclAllGather");
    part->moved = bytes * (op->op.world - 1);
    if (in != out + part->index * bytes)
        part->moved += bytes;
}

void nccl_broadcast(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint32_t root = parts_index(op->op.members, op->op.world, op->op.rank);
    bool is_root = part->index == root;
    void *out = op->out[part->index];
    ncclComm_t comm;

    if (op->op.numel == 0)
        return;
    comm = comm_of(part);
    if (!comm)
        return;
    /* The root's own result is not asked for: in place, so that nothing of it is written. */
    if (is_root)
        out = (void *)(uintptr_t)op->in[0];
    settle(part,
           ncclBroadcast(is_root ? op->in[0] : out, out, op->op.numel, type_of(op->op.in_dtype),
                         (int)root, comm, part->native->stream),
           "ncclBroadcast");
    part->moved = is_root ? 0 : op->op.numel * gw_dtype_bytes(op->op.in_dtype);
}

/* ---- epilogue -------------------------------------------------------------------------------- */

/* What is left to do with a sum of NCCL's. */
struct finish {
    const void *from;
    void *out; /* may be `from`, of its type then */
    uint8_t from_dtype, out_dtype;
    uint64_t count;
    float scale;
    bool accumulate;
    bool partials; /* the values are those of the part's slice, from its first element on */
};

/* out = (out +) scale * from */
static void finish(struct nccl_part *part, const struct finish *what)
{
    uint64_t from_size = gw_dtype_bytes(what->from_dtype);
    uint64_t out_size = gw_dtype_bytes(what->out_dtype);

    if (planted("epilogue_skipped"))
        return;
    for (uint64_t at = 0; at < what->count && !part->failed; at += NCCL_PIECE_MAX) {
        uint64_t left = what->count - at;
        struct gw_k_reduce arg = {.in = {(const char *)what->from + at * from_size},
                                  .n = 1,
                                  .outs = 1,
                                  .out = {(char *)what->out + at * out_size},
                                  .in_type = what->from_dtype,
                                  .out_type = what->out_dtype,
                                  .accumulate = what->accumulate,
                                  .max = part->op->op.norm == GW_NORM_MAX,
                                  .lanes = what->partials ? nccl_lanes(part) : NULL,
                                  .count = left < NCCL_PIECE_MAX ? left : NCCL_PIECE_MAX,
                                  .scale = what->scale};
        nccl_check(part, cuda_launch_reduce(&arg, NCCL_THREADS, part->native->stream),
                   "gw_k_reduce");
        if (arg.lanes)
            nccl_squares(part, at / GW_K_CHUNK, arg.count);
    }
}

/* The op's input from element `first` on, or `count` zeros. */
static const void *input(struct nccl_part *part, uint64_t first, uint64_t count)
{
    uint64_t size = gw_dtype_bytes(part->op->op.in_dtype);
    const char *in = part->op->in[part->index];
    struct gw_k_fill arg = {.to = part->scratch + HALF_BYTES, .bytes = count * size};

    if (in)
        return in + first * size;
    nccl_check(part, cuda_launch_fill(&arg, NCCL_THREADS, part->native->stream), "gw_k_fill");
    return arg.to;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t input_bytes(const struct nccl_op *op, uint64_t count)
{
    uint64_t bytes = 0;

    for (uint32_t q = 0; q < op->op.world; q++)
        bytes += op->in[q] ? count * gw_dtype_bytes(op->op.in_dtype) : 0;
    return bytes;
}

/* NCCL's sum cannot go to its place: something is there to be added to, or it is of another type.
 * */
static bool aside(const struct core_op *what)
{
    return what->accumulate || what->in_dtype != what->out_dtype;
}

void nccl_ring_reduce_scatter(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    const struct core_op *what = &op->op;
    void *out = op->out[part->index], *to = aside(what) ? part->scratch : out;
    const void *in = input(part, 0, what->numel * what->world);
    ncclComm_t comm = comm_of(part);

    if (part->failed)
        return;
    settle(part,
           ncclReduceScatter(in, to, what->numel, type_of(what->in_dtype), ncclSum, comm,
                             part->native->stream),
           "ncclReduceScatter");
    part->moved = input_bytes(op, what->numel);
    if (aside(what) || what->scale != 1.0f || op->partials)
        finish(part, &(struct finish){.from = to,
                                      .out = out,
                                      .from_dtype = what->in_dtype,
                                      .out_dtype = what->out_dtype,
                                      .count = what->numel,
                                      .scale = what->scale,
                                      .accumulate = what->accumulate,
                                      .partials = op->partials != NULL});
}

static void add_up(struct nccl_part *part, const void *in, void *to, uint64_t count)
{
    ncclComm_t comm = comm_of(part);

    if (!part->failed)
        settle(part,
               ncclAllReduce(in, to, count, type_of(part->op->op.in_dtype), ncclSum, comm,
                             part->native->stream),
               "ncclAllReduce");
}

/* The sum alone: to `out`, or by pieces through scratch, then scaled. */
static void all_reduce(struct nccl_part *part, uint64_t total, uint64_t piece)
{
    const struct core_op *what = &part->op->op;
    uint64_t size = gw_dtype_bytes(what->out_dtype);
    char *out = part->op->out[part->index];

    for (uint64_t at = 0; at < total && !part->failed; at += piece) {
        uint64_t count = total - at < piece ? total - at : piece;
        void *to = aside(what) ? part->scratch : out + at * size;
        const void *in = input(part, at, count);
        if (part->failed)
            return;
        add_up(part, in, to, count);
        if (aside(what))
            finish(part, &(struct finish){.from = to,
                                          .out = out + at * size,
                                          .from_dtype = what->in_dtype,
                                          .out_dtype = what->out_dtype,
                                          .count = count,
                                          .scale = what->scale,
                                          .accumulate = what->accumulate});
    }
}

/* The sum over the inputs, of which the part's slice then goes to its shard. */
static void reduce_in_place(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    const struct core_op *what = &op->op;
    uint64_t size = gw_dtype_bytes(what->in_dtype), total = what->world * what->numel;
    char *in = (char *)(uintptr_t)op->in[part->index];

    add_up(part, in, in, total);
    if (part->failed)
        return;
    part->moved = input_bytes(op, what->numel) + total * size;
    finish(part, &(struct finish){.from = in + part->index * what->numel * size,
                                  .out = op->out[part->index],
                                  .from_dtype = what->in_dtype,
                                  .out_dtype = what->out_dtype,
                                  .count = what->numel,
                                  .scale = what->scale,
                                  .accumulate = what->accumulate,
                                  .partials = op->partials != NULL});
}

/* Of elements [first, first + count) of the result, in place. */
static void finish_range(struct nccl_part *part, uint64_t first, uint64_t count, float scale,
                         bool partials)
{
    uint8_t dtype = part->op->op.out_dtype;
    char *at = (char *)part->op->out[part->index] + first * gw_dtype_bytes(dtype);

    finish(part, &(struct finish){.from = at,
                                  .out = at,
                                  .from_dtype = dtype,
                                  .out_dtype = dtype,
                                  .count = count,
                                  .scale = scale,
                                  .partials = partials});
}

void nccl_ring_all_reduce(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    const struct core_op *what = &op->op;
    uint64_t total = what->total_numel ? what->total_numel : what->world * what->numel;
    uint64_t pieces = HALF_BYTES / gw_dtype_bytes(what->in_dtype);
    struct parts_range share = parts_share(total, what->numel, part->index);
    uint64_t end = share.count ? share.first + share.count : 0;
    /* What came by scratch is scaled already, only its norm is taken. */
    float scale = aside(what) ? 1.0f : what->scale;
    bool whole = !aside(what);

    if (what->shards) {
        reduce_in_place(part);
        return;
    }
    for (uint32_t q = 0; q < what->world; q++)
        whole = whole && op->in[q];
    all_reduce(part, total, whole ? total : pieces);
    part->moved = input_bytes(op, share.count) + total * gw_dtype_bytes(what->out_dtype);
    if (share.count > 0 && (scale != 1.0f || op->partials))
        finish_range(part, share.first, share.count, scale, op->partials != NULL);
    if (scale == 1.0f)
        return;
    finish_range(part, 0, share.count ? share.first : 0, scale, false);
    finish_range(part, end, total - end, scale, false);
}
