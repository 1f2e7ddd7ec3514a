/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order=exact: the host's bits. The rank that owns a slice (of an all-reduce: a share) brings the
 * others' values to itself and adds them up in the fixed tree by one kernel pass, scale, accumulate
 * and squares included. Issuing threads.
 *
 * How values come: by copy engine into scratch, in pieces that fit there, then the kernel at the
 * speed of the own memory. A kernel that reads peers directly would hold its SMs for as long as the
 * link takes, which the trainer beside it pays; the bytes on the link are the same. Only small ops,
 * where a copy's fixed cost is all there is, are read in place, if the GPUs may.
 *
 * Results of an all-reduce go from the owner to every other rank by copy engine. In place needs no
 * second phase: share r of every input is read by part r alone, before it writes it. So does an
 * all-reduce to shards, whose results go over the inputs.
 *
 * Who waits for such a result sees it, without CU_STREAM_WAIT_VALUE_FLUSH. The owner's stream
 * writes the op's done word behind its copies by cuStreamWriteValue64, with its default fence,
 * "similar to __threadfence_system() but scoped to the stream": what the stream wrote before is
 * visible to every device before the word is. A flush is for remote writes that have only reached
 * the GPU by then (cuda.h at the flag): those of a third party, as a network card's, which no fence
 * of ours orders; few platforms have one (CAN_FLUSH_REMOTE_WRITES).
 */
#include "daemon/fabric/nccl/nccl.h"
#include "daemon/device/cuda/plant.h"

static bool reads_directly(const struct nccl_part *part, const struct nccl_side *side,
                           uint64_t count)
{
    return count * gw_dtype_bytes(part->op->op.in_dtype) * (part->op->op.world - 1) <=
               NCCL_DIRECT_BYTES &&
           nccl_reaches(part, side);
}

/* Where the kernel finds elements [first, first + count) of every input. */
static void bring(struct nccl_part *part, uint64_t first, uint64_t count, uint64_t room,
                  struct gw_k_reduce *arg)
{
    const struct nccl_op *op = part->op;
    uint64_t size = gw_dtype_bytes(op->op.in_dtype);
    char *scratch = part->scratch;

    for (uint32_t q = 0; q < op->op.world; q++) {
        bool here = op->here >> q & 1;
        struct nccl_side from;
        arg->in[q] = NULL;
        if (op->absent >> q & 1)
            continue;
        part->moved += count * size;
        from = nccl_in(op, q, first);
        arg->in[q] = from.at;
        if (here && (q == part->index || reads_directly(part, &from, count)))
            continue;
        if (here)
            nccl_copy(part, nccl_own(part, scratch), from, count * size);
        else
            nccl_receive(part, q, scratch, count * size);
        arg->in[q] = scratch;
        scratch += planted("scratch_shared") ? 0 : room * size;
    }
}

/* One piece of the inputs, also of what other nodes add up. */
static void exchange(struct nccl_part *part, uint64_t first, uint64_t at, uint64_t room,
                     struct gw_k_reduce *arg)
{
    bool began = false;

    if (part->op->crosses) {
        nccl_exchange_begin(part);
        began = !part->failed;
        nccl_span_send_inputs(part, at, room);
    }
    if (!part->failed)
        bring(part, first + at, arg->count, room, arg);
    nccl_exchange_end(part, began);
}

/* out[0..) = (out +) scale * sum of the inputs' elements that the part adds up. */
static void sum(struct nccl_part *part, void *out)
{
    const struct core_op *what = &part->op->op;
    struct parts_range share = nccl_share(what, part->index);
    uint64_t room = parts_piece(NCCL_INPUT_BYTES, what->world - 1, NCCL_PIECE_MAX);
    /* Others' shares may be longer: member 0's is the longest. */
    uint64_t most = part->op->crosses ? nccl_share(what, 0).count : share.count;

    for (uint64_t at = 0; at < most && !part->failed; at += room) {
        uint64_t left = share.count > at ? share.count - at : 0;
        struct gw_k_reduce arg = {.n = what->world,
                                  .outs = 1,
                                  .out = {(char *)out + at * gw_dtype_bytes(what->out_dtype)},
                                  .in_type = what->in_dtype,
                                  .out_type = what->out_dtype,
                                  .round_type = what->round_dtype,
                                  .accumulate = what->accumulate,
                                  .max = what->norm == GW_NORM_MAX,
                                  .lanes = nccl_lanes(part),
                                  .count = left < room ? left : room,
                                  .scale = what->scale};
        exchange(part, share.first, at, room, &arg);
        if (part->failed)
            return;
        if (arg.count == 0)
            continue;
        nccl_check(part, cuda_launch_reduce(&arg, NCCL_THREADS, part->native->stream),
                   "gw_k_reduce");
        if (planted("scratch_freed_early") && part->index == 0)
            cuda_scratch_free(part->native->device, part->native->rank, part->scratch);
        if (arg.lanes)
            nccl_squares(part, at / GW_K_CHUNK, arg.count);
    }
}

void nccl_exact_reduce_scatter(struct nccl_part *part)
{
    sum(part, part->op->out[part->index]);
}

static bool has_input(const struct nccl_op *op, uint32_t index)
{
    return !(op->absent >> index & 1);
}

/* Elements from `at` on of the part's result, in the inputs' dtype: over its own input, where they
 * stay, or in scratch. */
static char *own_piece(struct nccl_part *part, uint64_t at, uint64_t count)
{
    const struct nccl_op *op = part->op;
    const struct core_op *what = &op->op;
    char *from = (char *)op->out[part->index] + at * gw_dtype_bytes(what->out_dtype);
    uint64_t begin = part->index * what->numel + at;
    char *to = has_input(op, part->index)
                   ? (char *)(uintptr_t)nccl_in(op, part->index, begin).at
                   : part->scratch;
    struct gw_k_reduce arg = {.in = {from},
                              .n = 1,
                              .outs = 1,
                              .out = {to},
                              .in_type = what->out_dtype,
                              .out_type = what->in_dtype,
                              .count = count,
                              .scale = 1.0f};

    if (to != from)
        nccl_check(part, cuda_launch_reduce(&arg, NCCL_THREADS, part->native->stream),
                   "gw_k_reduce");
    if (to != part->scratch)
        part->moved += count * gw_dtype_bytes(what->in_dtype);
    return to;
}

/* It goes over the inputs of the node's other ranks. */
static void put_back(struct nccl_part *part, const char *own, uint64_t at, uint64_t bytes)
{
    const struct nccl_op *op = part->op;

    for (uint32_t i = 1; i < op->op.world && !part->failed; i++) {
        uint32_t q = (part->index + i) % op->op.world;
        if (!(op->here >> q & 1) || !has_input(op, q))
            continue;
        nccl_copy(part, nccl_in(op, q, part->index * op->op.numel + at), nccl_own(part, own),
                  bytes);
        figures_moved(&op->fabric->counters, &op->op, op->op.members[q], bytes);
    }
}

/* All slices are of one length, so all parts go through as many pieces. */
static void reduce_to_shards(struct nccl_part *part)
{
    const struct core_op *what = &part->op->op;
    uint64_t size = gw_dtype_bytes(what->in_dtype), room = NCCL_INPUT_BYTES / size;

    sum(part, part->op->out[part->index]);
    for (uint64_t at = 0; at < what->numel && !part->failed; at += room) {
        uint64_t left = what->numel - at, count = left < room ? left : room;
        const char *own = own_piece(part, at, count);
        put_back(part, own, at, count * size);
        if (part->op->crosses && !part->failed)
            nccl_span_put_back(part, own, at, count * size);
    }
}

void nccl_exact_all_reduce(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    const struct core_op *what = &op->op;
    struct parts_range share = nccl_share(what, part->index);
    uint64_t size = gw_dtype_bytes(what->out_dtype), bytes = share.count * size;
    char *own = (char *)op->out[part->index] + share.first * size;

    if (what->shards) {
        reduce_to_shards(part);
        return;
    }
    sum(part, own);
    part->moved += bytes;
    for (uint32_t i = 1; i < what->world && !part->failed; i++) {
        /* Not all owners to the same rank at once. */
        uint32_t q = (part->index + i) % what->world;
        if (!(op->here >> q & 1))
            continue;
        nccl_copy(part, nccl_out(op, q, share.first), nccl_own(part, own), bytes);
        figures_moved(&op->fabric->counters, what, what->members[q], bytes);
    }
    if (op->crosses && !part->failed)
        nccl_span_spread(part);
}
