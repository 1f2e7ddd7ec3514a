/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What belongs to reductions on the REDUCE stream: zero fills before, local adds, zeroing of what
 * nobody contributed to, and the signals that give buffers back. Pure; one thread. Waits are
 * enqueued, never waited for: that the ops of one stream run in order is all that is relied on.
 */
#include "daemon/core/zero_internal.h"

struct core_signal launch_bucket_signal(struct zero *z, uint32_t rank, uint32_t bucket)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);

    entry->consumed++;
    return (struct core_signal){.rank = rank,
                                .timeline = GW_TIMELINE(GW_TL_BUCKET, bucket),
                                .value = entry->consumed};
}

void launch_consumed(struct zero *z, uint32_t rank, uint32_t bucket)
{
    ops_signal(z, launch_bucket_signal(z, rank, bucket), zero_entry(z, rank, bucket)->last_op);
}

/* ---- local ops ------------------------------------------------------------------------------- */

static struct core_op *own_op(struct zero *z, enum core_op_kind kind, uint32_t rank,
                              uint32_t bucket)
{
    struct core_op *op = ops_new(z, kind, CORE_STREAM_REDUCE, GW_KINDS, FLIGHT_OTHER);

    op->rank = rank;
    ops_members(z, op, &z->members[rank], 1);
    op->bucket = bucket;
    op->bucket_count = 1;
    zero_entry(z, rank, bucket)->last_op = z->ranks[rank].reduce_op = op->id;
    return op;
}

/* Elements of `dtype` from base on. */
static void zero_range(struct zero *z, uint32_t rank, uint32_t bucket, struct core_ref base,
                       uint8_t dtype, uint64_t from, uint64_t to)
{
    struct core_op *op;
    struct core_ref *out;

    if (from == to)
        return;
    op = own_op(z, CORE_OP_ZERO, rank, bucket);
    op->in_dtype = op->out_dtype = dtype;
    op->numel = to - from;
    op->out = out = ops_refs(z, 1);
    if (!out)
        return;
    *out = base;
    out->offset_bytes += from * gw_dtype_bytes(dtype);
    if (!z->ring || base.kind == GW_ARENA_SHARD_GRADS)
        tokens_shard(z, op, rank); /* the last step's reduced gradient may lie there */
    if (z->closing)
        tokens_closing(z, op, rank);
}

void launch_zero_fill(struct zero *z, uint32_t rank, uint32_t bucket, uint8_t bit,
                      struct core_ref base, bool tail)
{
    const struct gw_layout_bucket *at = &z->bucket_table[bucket];
    const struct gw_layout_piece *pieces = layout_pieces(z->layout);
    uint64_t from = 0, to = 0; /* the range that is open */

    if (!zero_edge(z, EDGE_ZERO_FILLED))
        return;
    for (uint32_t p = at->first_piece; p < at->first_piece + at->pieces; p++) {
        if (*zero_piece_bits(z, rank, p) & bit)
            continue;
        if (pieces[p].bucket_offset != to) {
            zero_range(z, rank, bucket, base, at->grad_dtype, from, to);
            from = pieces[p].bucket_offset;
        }
        to = pieces[p].bucket_offset + pieces[p].numel;
    }
    if (tail && to == at->numel) {
        to = at->padded_numel;
    } else if (tail) {
        zero_range(z, rank, bucket, base, at->grad_dtype, from, to);
        from = at->numel;
        to = at->padded_numel;
    }
    zero_range(z, rank, bucket, base, at->grad_dtype, from, to);
}

void launch_waits(struct zero *z, struct core_op *op, struct core_token *waits, uint32_t rank,
                  struct zero_tokens *tokens)
{
    for (uint32_t i = 0; i < tokens->count && waits && zero_edge(z, EDGE_GRAD_WRITTEN); i++)
        waits[op->wait_count++] =
            (struct core_token){rank, tokens->timeline[i], tokens->value[i]};
    tokens->count = 0;
    op->waits = waits;
}

void launch_local_add(struct zero *z, uint32_t rank, uint32_t bucket)
{
    const struct gw_layout_bucket *at = &z->bucket_table[bucket];
    struct zero_entry *entry = zero_entry(z, rank, bucket);
    struct zero_tokens *tokens = zero_tokens(z, rank, bucket);
    struct core_op *op = own_op(z, CORE_OP_LOCAL_ADD, rank, bucket);
    struct core_ref *refs = ops_refs(z, 2);

    op->numel = at->padded_numel;
    op->in_dtype = at->grad_dtype;
    op->out_dtype = at->accum_dtype;
    op->accumulate = entry->acc_valid;
    launch_waits(z, op, effects_alloc(z->effects, ZERO_TOKENS * sizeof(struct core_token)), rank,
                 tokens);
    entry->acc_valid = true;
    if (!refs)
        return;
    refs[0] = place_of_grads(z, bucket, rank);
    refs[1] = place_of_acc(z, bucket, rank);
    op->in = &refs[0];
    op->out = &refs[1];
}

void launch_zero_reduced(struct zero *z, uint32_t bucket, bool consumed)
{
    const struct zero_group *group = zero_group_of(z, bucket);
    const struct gw_layout_bucket *at = &z->bucket_table[bucket];

    for (uint32_t i = 0; i < group->count; i++) {
        uint32_t r = group->ranks[i];

        zero_range(z, r, bucket, place_of_reduced(z, bucket, r), at->accum_dtype, 0,
                   place_span_numel(z->ranks[r].place, bucket));
        if (consumed)
            launch_consumed(z, r, bucket);
    }
    z->zeroed[bucket] = 1;
}
