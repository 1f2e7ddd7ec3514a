/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step's verdict on one rank's GPU: everybody's partials from pinned host memory to the own
 * GPU, where one thread adds them up in order, then to the rank's board and device memory. Issuing
 * threads.
 *
 * Ops only carry what differs from step to step as kernel arguments, so that any number of steps
 * may be enqueued ahead without host memory that must live as long: a bucket without a gradient is
 * one whose partials are zeros, which change no bit of the sum; used bits are filled in by runs of
 * equal words, of which a step in which every parameter has a gradient has two.
 */
#include "daemon/fabric/nccl/nccl.h"

static void fill(struct nccl_part *part, void *to, uint64_t bytes, uint32_t word)
{
    struct gw_k_fill arg = {.to = to, .bytes = bytes, .word = word};

    if (bytes > 0 && !part->failed)
        nccl_check(part, cuda_launch_fill(&arg, NCCL_THREADS, part->native->stream), "gw_k_fill");
}

static void bring_partials(struct nccl_part *part, const struct nccl_staging *staging)
{
    const struct nccl_fabric *fabric = part->op->fabric;
    const uint64_t *starts = fabric->starts;
    uint32_t end;

    uint64_t bytes = starts[fabric->buckets] * sizeof(*fabric->partials);

    /* Of several nodes, each gives its ranks' slices, once. */
    if (part->op->crosses && nccl_first_here(fabric, part->op->op.members, part->op->op.world) !=
                                 part->native->rank)
        fill(part, staging->partials, bytes, 0);
    else
        nccl_copy(part, nccl_own(part, staging->partials), nccl_own(part, fabric->partials), bytes);
    if (part->op->crosses)
        nccl_span_partials(part, staging->partials, bytes);
    for (uint32_t at = 0; parts_zero_run(part->op->op.used_buckets, fabric->buckets, &at, &end);
         at = end)
        fill(part, staging->partials + starts[at],
             (starts[end] - starts[at]) * sizeof(*fabric->partials), 0);
}

static void bring_bits(struct nccl_part *part, const struct nccl_staging *staging)
{
    uint64_t bytes = (part->op->fabric->params + 7) / 8;
    struct parts_run run;

    for (uint32_t at = 0; (run = parts_word_run(part->op->op.used_bits, bytes, at)).words > 0;
         at += run.words)
        fill(part, staging->bits + at, run.words * sizeof(uint32_t), run.word);
}

/* Behind the verdict in device memory. */
static uint8_t *device_bits(const struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    uint64_t *verdict = op->verdicts ? op->verdicts[part->index] : NULL;

    return verdict ? (uint8_t *)verdict + sizeof(struct gw_shm_verdict) : NULL;
}

void nccl_verdict(struct nccl_part *part)
{
    const struct nccl_op *op = part->op;
    const struct nccl_fabric *fabric = op->fabric;
    const struct nccl_staging *staging = &fabric->staging[part->native->rank];
    struct gw_k_verdict arg = {
        .buckets = staging->buckets,
        .verdict = {op->boards[part->index], op->verdicts ? op->verdicts[part->index] : NULL},
        .used_bits = (const uint8_t *)staging->bits,
        .bits = {op->board_bits[part->index], device_bits(part)},
        .bits_bytes = (fabric->params + 7) / 8,
        .step = op->op.step,
        .digest = op->op.digest,
        .clip_norm = op->op.clip_norm,
        .bucket_count = fabric->buckets,
        .used_params = op->op.used_params,
        .max = op->op.norm == GW_NORM_MAX};

    if (!part->op->crosses && !arg.verdict[0] && !arg.verdict[1])
        return;
    bring_partials(part, staging);
    if (arg.bits[0] || arg.bits[1])
        bring_bits(part, staging);
    if (part->failed || (!arg.verdict[0] && !arg.verdict[1]))
        return;
    nccl_check(part, cuda_launch_verdict(&arg, NCCL_THREADS, part->native->stream), "gw_k_verdict");
    if (arg.verdict[0])
        part->moved = sizeof(struct gw_shm_verdict) + arg.bits_bytes;
}
