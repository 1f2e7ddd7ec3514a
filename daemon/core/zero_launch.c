/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launch of reductions in the agreed order, and of what belongs to them on the REDUCE stream: zero
 * fills before, local adds, zeroing of what nobody contributed to, and the signals that give
 * buffers back. Pure; one thread. Waits are enqueued, never waited for: that the ops of one stream
 * run in order is all that is relied on.
 */
#include "daemon/core/zero_internal.h"

#include "daemon/base/hash.h"

static struct core_signal bucket_signal(struct zero *z, uint32_t rank, uint32_t bucket)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);

    entry->consumed++;
    return (struct core_signal){.rank = rank,
                                .timeline = GW_TIMELINE(GW_TL_BUCKET, bucket),
                                .value = entry->consumed};
}

void launch_consumed(struct zero *z, uint32_t rank, uint32_t bucket)
{
    ops_signal(z, bucket_signal(z, rank, bucket), zero_entry(z, rank, bucket)->last_op);
}

/* ---- local ops ------------------------------------------------------------------------------- */

static struct core_op *own_op(struct zero *z, enum core_op_kind kind, uint32_t rank,
                              uint32_t bucket)
{
    struct core_op *op = ops_new(z, kind, CORE_STREAM_REDUCE, GW_KINDS, FLIGHT_OTHER);

    op->rank = rank;
    op->world = 1;
    op->members = &z->members[rank];
    op->bucket = bucket;
    op->bucket_count = 1;
    zero_entry(z, rank, bucket)->last_op = z->ranks[rank].reduce_op = op->id;
    return op;
}

static void zero_range(struct zero *z, uint32_t rank, uint32_t bucket, struct core_ref base,
                       uint64_t from, uint64_t to)
{
    struct core_op *op;
    struct core_ref *out;

    if (from == to)
        return;
    op = own_op(z, CORE_OP_ZERO, rank, bucket);
    op->numel = to - from;
    op->out = out = ops_refs(z, 1);
    if (!out)
        return;
    *out = base;
    out->offset_bytes += from * MEMORY_FLOAT;
    if (!z->memory.ring || base.kind == GW_ARENA_SHARD_GRADS)
        tokens_shard(z, op, rank); /* the last step's reduced gradient may lie there */
    if (z->closing)
        tokens_closing(z, op, rank);
}

void launch_zero_fill(struct zero *z, uint32_t rank, uint32_t bucket, uint8_t bit,
                      struct core_ref base, bool tail)
{
    const struct gw_layout_bucket *at = &z->memory.buckets[bucket];
    const struct gw_layout_piece *pieces = layout_pieces(z->layout);
    uint64_t from = 0, to = 0; /* the range that is open */

    if (!zero_edge(z, EDGE_ZERO_FILLED))
        return;
    for (uint32_t p = at->first_piece; p < at->first_piece + at->pieces; p++) {
        if (*zero_piece_bits(z, rank, p) & bit)
            continue;
        if (pieces[p].bucket_offset != to) {
            zero_range(z, rank, bucket, base, from, to);
            from = pieces[p].bucket_offset;
        }
        to = pieces[p].bucket_offset + pieces[p].numel;
    }
    if (tail && to == at->numel) {
        to = at->padded_numel;
    } else if (tail) {
        zero_range(z, rank, bucket, base, from, to);
        from = at->numel;
        to = at->padded_numel;
    }
    zero_range(z, rank, bucket, base, from, to);
}

/* waits: NULL, or room for them. */
static void add_waits(struct zero *z, struct core_op *op, struct core_token *waits, uint32_t rank,
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
    struct zero_entry *entry = zero_entry(z, rank, bucket);
    struct zero_tokens *tokens = zero_tokens(z, rank, bucket);
    struct core_op *op = own_op(z, CORE_OP_LOCAL_ADD, rank, bucket);
    struct core_ref *refs = ops_refs(z, 2);

    op->numel = z->memory.buckets[bucket].padded_numel;
    op->accumulate = entry->acc_valid;
    add_waits(z, op, effects_alloc(z->effects, ZERO_TOKENS * sizeof(struct core_token)), rank,
              tokens);
    entry->acc_valid = true;
    if (!refs)
        return;
    refs[0] = memory_flat(&z->memory, GW_ARENA_GRADS, bucket, rank);
    refs[1] = memory_flat(&z->memory, GW_ARENA_ACC, bucket, rank);
    op->in = &refs[0];
    op->out = &refs[1];
}

void launch_zero_reduced(struct zero *z, uint32_t bucket, bool consumed)
{
    for (uint32_t r = 0; r < z->world; r++) {
        zero_range(z, r, bucket, memory_reduced(&z->memory, bucket, r), 0,
                   memory_reduced_numel(&z->memory, bucket));
        if (consumed)
            launch_consumed(z, r, bucket);
    }
    z->zeroed[bucket] = 1;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Where contribution m of a rank lies; kind NONE: it has none, or an empty one. */
static struct core_ref input(const struct zero *z, uint32_t rank, uint32_t bucket, uint32_t m)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);
    const struct core_ref none = {.kind = GW_ARENA_NONE};
    bool due = z->memory.local ? entry->done : entry->closed > m;
    uint32_t slot;

    if (z->memory.local && entry->acc_valid)
        return memory_flat(&z->memory, GW_ARENA_ACC, bucket, rank);
    /* Edge ALL_READY dropped: a rank that has not declared it is summed as its memory is. */
    if (!due && entry->done)
        return none;
    if (!z->memory.ring)
        return !due || (z->memory.local ? entry->ever : *zero_contribution(z, rank, bucket, m) > 0)
                   ? memory_flat(&z->memory, GW_ARENA_GRADS, bucket, rank)
                   : none;
    slot = due ? *zero_contribution(z, rank, bucket, m)
               : 1 + (entry->slot == GW_NO_SLOT ? 0 : entry->slot);
    return slot ? memory_slot(&z->memory, slot - 1, rank) : none;
}

/* The rank's BUCKET word counts contribution m; one that made none is not told. */
static bool counts(const struct zero *z, uint32_t rank, uint32_t bucket, uint32_t m)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);

    return z->memory.local || entry->closed > m || !entry->done;
}

/* Tokens, slots and signals of the ranks that take part. */
static void attach_ranks(struct zero *z, struct core_op *op, uint32_t bucket, uint32_t m)
{
    struct core_token *waits =
        effects_alloc(z->effects, (size_t)z->world * ZERO_TOKENS * sizeof(*waits));
    struct core_signal *signals = ops_signals(z, op, z->world);
    uint32_t count = 0;

    for (uint32_t r = 0; r < z->world; r++) {
        struct zero_entry *entry = zero_entry(z, r, bucket);
        uint32_t slot = entry->closed > m ? *zero_contribution(z, r, bucket, m) : 0;
        uint32_t key = z->memory.ring ? slot - 1 : bucket;

        if (z->memory.local || slot)
            add_waits(z, op, waits, r, zero_tokens(z, r, key));
        if (z->memory.ring && slot) {
            zero_slot(z, r, slot - 1)->held = false;
            zero_slot(z, r, slot - 1)->op = op->id;
            zero_slot(z, r, slot - 1)->used = true;
        }
        if (counts(z, r, bucket, m) && signals)
            signals[count++] = bucket_signal(z, r, bucket);
        entry->last_op = z->ranks[r].reduce_op = op->id;
    }
    op->signal_count = count;
    tokens_shards(z, op);
}

static void launch_reduction(struct zero *z, uint32_t bucket, uint32_t m)
{
    bool full = z->memory.stage == 0;
    struct core_op *op = ops_new(z, full ? CORE_OP_ALL_REDUCE : CORE_OP_REDUCE_SCATTER,
                                 CORE_STREAM_REDUCE,
                                 full ? GW_KIND_ALL_REDUCE : GW_KIND_REDUCE_SCATTER, FLIGHT_REDUCE);
    struct core_ref *in = ops_refs(z, z->world), *out = ops_refs(z, z->world);

    ops_payload(z, op, bucket, 1);
    op->accumulate = z->valid[bucket];
    op->partials = 1;
    op->scale = z->scale;
    op->ready_ns = zero_due(z, bucket, m)->ready_ns;
    op->order = (uint8_t)z->options.order;
    /* The last verdict has read what this one leaves. */
    ops_wait(z, op, &z->verdict_op, 1);
    z->verdict_op = 0;
    for (uint32_t r = 0; r < z->world && in && out; r++) {
        in[r] = input(z, r, bucket, m);
        out[r] = memory_reduced(&z->memory, bucket, r);
    }
    op->in = in;
    op->out = out;
    attach_ranks(z, op, bucket, m);
    z->valid[bucket] = 1;
    z->digest = hash_add_u64(z->digest, op->kind);
    z->digest = hash_add_u64(z->digest, bucket);
    z->digest = hash_add_u64(z->digest, op->numel);
    z->digest = hash_add_u64(z->digest, z->step + 1);
}

/* Contribution m of no rank holds anything: nothing is sent. */
static void launch_nothing(struct zero *z, uint32_t bucket, uint32_t m)
{
    /* In place the word must not rise before the zeroing of the same memory. */
    if (z->memory.in_place) {
        launch_zero_reduced(z, bucket, true);
        return;
    }
    for (uint32_t r = 0; r < z->world; r++) {
        if (counts(z, r, bucket, m))
            launch_consumed(z, r, bucket);
    }
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Overlap off: nothing before every rank has declared all it contributes to this micro-step. */
static bool all_declared(const struct zero *z, uint32_t m)
{
    for (uint32_t r = 0; r < z->world; r++) {
        const struct zero_rank *rank = &z->ranks[r];

        if (z->memory.local ? rank->undone_buckets > 0
                            : rank->ended == z->step && rank->micro <= m && rank->open_buckets > 0)
            return false;
    }
    return true;
}

static bool may_launch(const struct zero *z, uint32_t bucket, uint32_t m)
{
    uint64_t mask = z->done[bucket];

    if (zero_edge(z, EDGE_SHARD_CONSUMED) && z->gate < z->step)
        return false;
    if (!z->memory.local)
        mask |= zero_due(z, bucket, m)->mask;
    if (zero_edge(z, EDGE_ALL_READY) ? mask != z->everyone : mask == 0)
        return false;
    return !z->options.overlap_off || all_declared(z, m);
}

static void launch_position(struct zero *z, uint32_t bucket, uint32_t m)
{
    bool filled = false, any = false;

    for (uint32_t r = 0; r < z->world; r++) {
        filled |= input(z, r, bucket, m).kind != GW_ARENA_NONE;
        any |= counts(z, r, bucket, m);
    }
    if (filled)
        launch_reduction(z, bucket, m);
    else if (any)
        launch_nothing(z, bucket, m);
    z->launched[bucket] = m + 1;
}

static uint32_t micro_steps_begun(const struct zero *z)
{
    return z->memory.local ? 1 : z->micro_max + 1;
}

bool launch_complete(const struct zero *z)
{
    return z->buckets == 0 || z->pos_m >= micro_steps_begun(z);
}

bool launch_reductions(struct zero *z)
{
    bool some = false;

    while (!launch_complete(z)) {
        uint32_t bucket = z->order[z->pos_i];

        if (!may_launch(z, bucket, z->pos_m))
            break;
        launch_position(z, bucket, z->pos_m);
        some = true;
        if (++z->pos_i == z->buckets) {
            z->pos_i = 0;
            z->pos_m++;
        }
    }
    return some;
}
