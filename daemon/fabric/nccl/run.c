/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's part of an op: everything is enqueued on the stream given, nothing waits for the GPU.
 * Issuing threads; parts of one op run at the same time and only read it. Counts what it moved.
 */
#include "daemon/device/cuda/driver.h"
#include "daemon/device/cuda/plant.h"
#include "daemon/fabric/nccl/nccl.h"

void nccl_check(struct nccl_part *part, int code, const char *call)
{
    char text[GW_TEXT_MAX + 1];

    if (code == 0)
        return;
    part->failed = true;
    cuda_error_text(code, text, sizeof(text));
    cuda_fault(part->native->device, "rank %u: %s of op %llu: %s", part->native->rank, call,
               (unsigned long long)part->op->op.id, text);
}

bool nccl_reaches(const struct nccl_part *part, const struct nccl_side *side)
{
    uint32_t own = part->native->rank;

    if (side->rank == own || planted("peers_assumed"))
        return true;
    if (side->lent && !planted("import_shared"))
        return false;
    return cuda_peers(part->native->device, side->rank, own);
}

struct nccl_side nccl_in(const struct nccl_op *op, uint32_t index, uint64_t first)
{
    return (struct nccl_side){(const char *)op->in[index] + first * gw_dtype_bytes(op->op.in_dtype),
                              op->op.members[index], op->lent_in >> index & 1};
}

struct nccl_side nccl_out(const struct nccl_op *op, uint32_t index, uint64_t first)
{
    return (struct nccl_side){(char *)op->out[index] + first * gw_dtype_bytes(op->op.out_dtype),
                              op->op.members[index], op->lent_out >> index & 1};
}

void nccl_copy(struct nccl_part *part, struct nccl_side to, struct nccl_side from, uint64_t bytes)
{
    bool apart = !nccl_reaches(part, &to) || !nccl_reaches(part, &from);
    CUdeviceptr target = (CUdeviceptr)to.at, source = (CUdeviceptr)from.at;

    for (uint64_t at = 0; at < bytes && !part->failed; at += NCCL_COPY_BYTES) {
        uint64_t piece = bytes - at < NCCL_COPY_BYTES ? bytes - at : NCCL_COPY_BYTES;
        if (apart)
            nccl_check(part,
                       cuda_copy_apart(part->native->device, (void *)(uintptr_t)(target + at),
                                       to.rank, (const void *)(uintptr_t)(source + at), from.rank,
                                       piece, part->native->stream),
                       "cuMemcpyPeerAsync");
        else
            nccl_check(part,
                       (int)cu.cuMemcpyAsync(target + at, source + at, piece,
                                             (CUstream)part->native->stream),
                       "cuMemcpyAsync");
    }
}

struct gw_k_partial *nccl_lanes(const struct nccl_part *part)
{
    return part->op->partials ? (struct gw_k_partial *)(void *)(part->scratch + NCCL_INPUT_BYTES)
                              : NULL;
}

void nccl_squares(struct nccl_part *part, uint64_t chunk, uint64_t count)
{
    struct gw_k_partials arg = {.lanes = nccl_lanes(part),
                                .partials = part->op->partials +
                                            part->index * parts_chunks(part->op->op.numel) + chunk,
                                .chunks = parts_chunks(count),
                                .max = part->op->op.norm == GW_NORM_MAX};

    if (!part->failed)
        nccl_check(part, cuda_launch_partials(&arg, NCCL_THREADS, part->native->stream),
                   "gw_k_partials");
}

static void run_gather(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;

    if (op->crosses)
        nccl_span_gather(part);
    for (uint32_t i = 0; part->native->rank == op->op.rank && i < op->segment_count &&
                         !part->failed;
         i++) {
        const struct fabric_segment *segment = &op->segments[i];
        part->moved += segment->from ? 0 : segment->bytes;
        if (!segment->from)
            continue;
        nccl_copy(part, nccl_own(part, segment->to),
                  (struct nccl_side){segment->from, segment->owner, false}, segment->bytes);
        part->moved += segment->bytes;
    }
}

/* To the members' secondary shards. */
static void run_fill(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;

    if (op->crosses)
        nccl_span_fill(part);
    for (uint32_t i = 0; part->native->rank == op->op.rank && i < op->segment_count &&
                         !part->failed;
         i++) {
        const struct fabric_segment *segment = &op->segments[i];
        if (!segment->to)
            continue;
        nccl_copy(part, (struct nccl_side){segment->to, segment->owner, false},
                  nccl_own(part, segment->from), segment->bytes);
        if (!part->failed)
            figures_moved(&op->fabric->counters, &op->op, segment->owner, segment->bytes);
    }
}

/* Own memory on the own GPU: a kernel, which is bounded, where a copy within a GPU is not. in NULL:
 * zeros. */
static void run_add(struct nccl_part *part, const void *in)
{
    const struct core_op *what = &part->op->op;
    struct gw_k_reduce arg = {.in = {in},
                              .n = 1,
                              .outs = 1,
                              .out = {part->op->out[0]},
                              .in_type = what->in_dtype,
                              .out_type = what->out_dtype,
                              .accumulate = what->accumulate,
                              .count = what->numel,
                              .scale = 1.0f};

    if (arg.count > 0)
        nccl_check(part, cuda_launch_reduce(&arg, NCCL_THREADS, part->native->stream),
                   "gw_k_reduce");
}

static void run_cast(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;

    for (uint32_t i = 0; i < op->segment_count && !part->failed; i++) {
        const struct fabric_segment *segment = &op->segments[i];
        struct gw_k_cast arg = {.in = segment->from,
                                .out = segment->to,
                                .count = segment->bytes / gw_dtype_bytes(op->op.out_dtype),
                                .in_type = GW_K_FP32,
                                .out_type = op->op.out_dtype};
        nccl_check(part, cuda_launch_cast(&arg, NCCL_THREADS, part->native->stream), "gw_k_cast");
    }
}

static void run_sum(struct nccl_part *part)
{
    bool scatter = part->op->op.kind == CORE_OP_REDUCE_SCATTER;

    if (part->op->op.numel == 0)
        return;
    if (part->op->exact && scatter)
        nccl_exact_reduce_scatter(part);
    else if (part->op->exact)
        nccl_exact_all_reduce(part);
    else if (scatter)
        nccl_ring_reduce_scatter(part);
    else
        nccl_ring_all_reduce(part);
}

static void run_part(struct nccl_part *part)
{
    switch ((enum core_op_kind)part->op->op.kind) {
    case CORE_OP_REDUCE_SCATTER:
    case CORE_OP_ALL_REDUCE:
        run_sum(part);
        break;
    case CORE_OP_ALL_GATHER:
        nccl_all_gather(part);
        break;
    case CORE_OP_GATHER:
        run_gather(part);
        break;
    case CORE_OP_FILL:
        run_fill(part);
        break;
    case CORE_OP_BROADCAST:
        nccl_broadcast(part);
        break;
    case CORE_OP_BARRIER:
        if (part->op->crosses)
            nccl_span_meet(part);
        break;
    case CORE_OP_LOCAL_ADD:
        run_add(part, part->op->in[0]);
        break;
    case CORE_OP_ZERO:
        run_add(part, NULL);
        break;
    case CORE_OP_CAST:
        run_cast(part);
        break;
    case CORE_OP_VERDICT:
        nccl_verdict(part);
        break;
    }
}

void nccl_run(void *arg, void *native)
{
    const struct nccl_op *op = (const struct nccl_op *)arg;
    const struct cuda_native *own = (const struct cuda_native *)native;
    struct nccl_fabric *fabric = op->fabric;
    struct nccl_part part = {.op = op,
                             .native = own,
                             .index = parts_index(op->op.members, op->op.world, own->rank),
                             .scratch = fabric->scratch[own->rank].base};

    if (op->nothing || atomic_load_explicit(&op->world->aborted, memory_order_acquire))
        return;
    if (planted("memory_in_step") && own->rank == 0) {
        void *base = NULL;
        (void)cuda_scratch_new(own->device, own->rank, 1, &base);
        cuda_scratch_free(own->device, own->rank, base);
    }
    run_part(&part);
    if (!part.failed && op->op.kind != CORE_OP_FILL &&
        figures_ranks(&op->op).word[0] >> own->rank & 1)
        figures_count(&fabric->counters, &op->op, op->ring_bytes, own->rank, part.moved);
}
