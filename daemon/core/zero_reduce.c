/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions, each group's in its agreed order. Pure; one thread.
 *
 * Flat: a contribution of all members is one reduce-scatter (stage 0, or options.all_reduce: an
 * all-reduce, which leaves the same shards). Hybrid sharding: it is one per run of owners,
 * unscaled; once a step, when a bucket gets no more, the replicas of each slice are summed between
 * the runs, scaled and measured for the verdict.
 *
 *   members  0 1 | 2 3   shard_ranks 2
 *   within   0+1   2+3   slices to 0, 1 and to 2, 3; with each contribution
 *   between  0+2   1+3   slice 0, slice 1; once
 */
#include "daemon/core/zero_internal.h"

#include <string.h>

#include "daemon/base/hash.h"

/* ---- ops ------------------------------------------------------------------------------------- */

static struct core_op *sum_op(struct zero *z, uint32_t bucket, bool full, enum flight_kind flight)
{
    struct core_op *op = ops_new(z, full ? CORE_OP_ALL_REDUCE : CORE_OP_REDUCE_SCATTER,
                                 CORE_STREAM_REDUCE,
                                 full ? GW_KIND_ALL_REDUCE : GW_KIND_REDUCE_SCATTER, flight);

    op->bucket = bucket;
    op->bucket_count = 1;
    op->order = (uint8_t)z->options.order;
    op->norm = (uint8_t)z->options.norm;
    op->out_dtype = z->bucket_table[bucket].accum_dtype;
    return op;
}

struct core_op *reduce_within_op(struct zero *z, uint32_t bucket, uint32_t first,
                                 enum flight_kind flight)
{
    const struct gw_layout_bucket *at = &z->bucket_table[bucket];
    const struct zero_group *group = zero_group_of(z, bucket);
    struct core_op *op = sum_op(z, bucket, zero_all_reduces(z), flight);

    ops_members(z, op, &group->ranks[first], group->shard_ranks);
    ops_payload(z, op, OPS_OF_GRADS, bucket, 1);
    op->scale = zero_hybrid(group) ? 1 : group->scale;
    op->slices = group->shard_ranks;
    op->round_dtype = (uint8_t)z->options.reduce_dtype;
    op->shards = z->stage > 0 && zero_all_reduces(z);
    /* What was summed over micro-steps before has the accumulators' dtype. */
    op->in_dtype = z->local && place_sums(z->ranks[group->ranks[0]].place, bucket)
                       ? at->accum_dtype
                       : at->grad_dtype;
    return op;
}

/* Members of the sum between runs: the owners of one slice. */
static void replicas(struct zero *z, struct core_op *op, const struct zero_group *group,
                     uint32_t slice)
{
    uint32_t count = group->count / group->shard_ranks;
    uint32_t *ranks = effects_alloc(z->effects, count * sizeof(*ranks));

    for (uint32_t i = 0; i < count && ranks; i++)
        ranks[i] = group->ranks[i * group->shard_ranks + slice];
    if (ranks)
        ops_members(z, op, ranks, count);
}

struct core_op *reduce_between_op(struct zero *z, uint32_t bucket, uint32_t slice,
                                  enum flight_kind flight)
{
    const struct zero_group *group = zero_group_of(z, bucket);
    struct core_op *op = sum_op(z, bucket, true, flight);
    uint32_t bytes = gw_dtype_bytes(op->out_dtype);
    uint64_t offset, numel, valid;

    layout_slice(z->layout, bucket, slice, &offset, &numel, &valid);
    replicas(z, op, group, slice);
    op->in_dtype = op->out_dtype;
    op->scale = group->scale;
    op->numel = numel / op->world;
    op->slices = group->count;
    op->slice_first = slice * op->world;
    op->payload_bytes = valid * bytes;
    op->padding_bytes = (numel - valid) * bytes;
    return op;
}

/* What earlier verdicts read of the partials is read. Ops of a rank are in order, so it is enough
 * that one of the members has come after the last verdict already. */
static void after_verdict(struct zero *z, struct core_op *op)
{
    bool seen = false;

    op->partials = 1;
    for (uint32_t i = 0; i < op->world; i++)
        seen |= z->ranks[op->members[i]].verdict_seen == z->verdict_op;
    if (!seen)
        ops_wait(z, op, &z->verdict_op, 1);
    for (uint32_t i = 0; i < op->world; i++)
        z->ranks[op->members[i]].verdict_seen = z->verdict_op;
}

static void add_digest(struct zero *z, const struct core_op *op)
{
    struct zero_group *group = zero_group_of(z, op->bucket);

    group->digest = hash_add_u64(group->digest, op->kind);
    group->digest = hash_add_u64(group->digest, op->bucket);
    group->digest = hash_add_u64(group->digest, op->numel);
    group->digest = hash_add_u64(group->digest, z->step + 1);
}

/* ---- contributions --------------------------------------------------------------------------- */

/* Where contribution m of a rank lies; kind NONE: it has none, or an empty one. */
static struct core_ref input(const struct zero *z, uint32_t rank, uint32_t bucket, uint32_t m)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);
    const struct core_ref none = {.kind = GW_ARENA_NONE};
    bool due = z->local ? entry->done : entry->closed > m;
    uint32_t slot;

    if (z->local && entry->acc_valid)
        return place_of_acc(z, bucket, rank);
    /* Edge ALL_READY dropped: a rank that has not declared it is summed as its memory is. */
    if (!due && entry->done)
        return none;
    if (!z->ring)
        return !due || (z->local ? entry->ever : *zero_contribution(z, rank, bucket, m) > 0)
                   ? place_of_grads(z, bucket, rank)
                   : none;
    slot = due ? *zero_contribution(z, rank, bucket, m)
               : 1 + (entry->slot == GW_NO_SLOT ? 0 : entry->slot);
    return slot ? place_of_slot(z, slot - 1, rank) : none;
}

/* The rank's BUCKET word counts contribution m; one that made none is not told. */
static bool counts(const struct zero *z, uint32_t rank, uint32_t bucket, uint32_t m)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);

    return !zero_frozen(z, bucket) && (z->local || entry->closed > m || !entry->done);
}

/* The sum between the runs reads and writes the contributions' own memory: that gives it back. */
static bool gives_back_late(const struct zero *z, uint32_t bucket)
{
    const struct zero_group *group = zero_group_of(z, bucket);

    return zero_hybrid(group) && place_in_place(z->ranks[group->ranks[0]].place, bucket);
}

/* Tokens, slots and signals of the ranks that take part. */
static void attach_ranks(struct zero *z, struct core_op *op, uint32_t bucket, uint32_t m)
{
    struct core_token *waits =
        effects_alloc(z->effects, (size_t)op->world * ZERO_TOKENS * sizeof(*waits));
    struct core_signal *signals = ops_signals(z, op, op->world);
    bool late = gives_back_late(z, bucket);
    uint32_t count = 0;

    for (uint32_t i = 0; i < op->world; i++) {
        uint32_t r = op->members[i];
        struct zero_entry *entry = zero_entry(z, r, bucket);
        uint32_t slot = entry->closed > m ? *zero_contribution(z, r, bucket, m) : 0;
        uint32_t key = z->ring ? slot - 1 : bucket;

        if (z->local || slot)
            launch_waits(z, op, waits, r, zero_tokens(z, r, key));
        if (z->ring && slot) {
            zero_slot(z, r, slot - 1)->held = false;
            zero_slot(z, r, slot - 1)->op = op->id;
            zero_slot(z, r, slot - 1)->used = true;
        }
        if (counts(z, r, bucket, m) && signals && !late)
            signals[count++] = launch_bucket_signal(z, r, bucket);
        entry->last_op = z->ranks[r].reduce_op = op->id;
    }
    op->signal_count = count;
    tokens_shards(z, op);
}

static void launch_within(struct zero *z, uint32_t bucket, uint32_t m, uint32_t first)
{
    struct core_op *op = reduce_within_op(z, bucket, first, FLIGHT_REDUCE);
    struct core_ref *in = ops_refs(z, op->world), *out = ops_refs(z, op->world);

    op->accumulate = z->valid[bucket];
    op->ready_ns = zero_due(z, bucket, m)->ready_ns;
    if (!zero_hybrid(zero_group_of(z, bucket)))
        after_verdict(z, op);
    for (uint32_t i = 0; i < op->world && in && out; i++) {
        in[i] = input(z, op->members[i], bucket, m);
        out[i] = place_of_reduced(z, bucket, op->members[i]);
    }
    op->in = in;
    op->out = out;
    attach_ranks(z, op, bucket, m);
    add_digest(z, op);
}

static void launch_reduction(struct zero *z, uint32_t bucket, uint32_t m)
{
    const struct zero_group *group = zero_group_of(z, bucket);

    for (uint32_t first = 0; first < group->count; first += group->shard_ranks)
        launch_within(z, bucket, m, first);
    z->valid[bucket] = 1;
}

/* Contribution m of no rank holds anything: nothing is sent. */
static void launch_nothing(struct zero *z, uint32_t bucket, uint32_t m)
{
    const struct zero_group *group = zero_group_of(z, bucket);

    /* In place the word must not rise before the zeroing of the same memory. */
    if (place_in_place(z->ranks[group->ranks[0]].place, bucket)) {
        launch_zero_reduced(z, bucket, true);
        return;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        if (counts(z, group->ranks[i], bucket, m))
            launch_consumed(z, group->ranks[i], bucket);
    }
}

/* ---- between runs ---------------------------------------------------------------------------- */

static void launch_between(struct zero *z, uint32_t bucket, uint32_t slice)
{
    struct core_op *op = reduce_between_op(z, bucket, slice, FLIGHT_REDUCE);
    struct core_ref *places = ops_refs(z, op->world);
    struct core_signal *signals = NULL;

    after_verdict(z, op);
    for (uint32_t i = 0; i < op->world && places; i++)
        places[i] = place_of_reduced(z, bucket, op->members[i]);
    op->in = op->out = places;
    if (gives_back_late(z, bucket))
        signals = ops_signals(z, op, op->world);
    for (uint32_t i = 0; i < op->world; i++) {
        uint32_t r = op->members[i];

        if (signals)
            signals[i] = launch_bucket_signal(z, r, bucket);
        zero_entry(z, r, bucket)->last_op = z->ranks[r].reduce_op = op->id;
    }
    add_digest(z, op);
}

/* No contribution of this step comes any more, and those that came are launched. */
static bool is_final(const struct zero *z, const struct zero_group *group, uint32_t bucket)
{
    struct ranks done = ranks_of_row(zero_done_row(z, bucket), z->words);

    if (!ranks_equal(&done, &group->members))
        return false;
    for (uint32_t i = 0; i < group->count; i++) {
        const struct zero_entry *entry = zero_entry(z, group->ranks[i], bucket);

        if (z->launched[bucket] < (z->local ? 1 : entry->closed))
            return false;
    }
    return true;
}

/* In launch order: the same whoever came first. */
static bool launch_finals(struct zero *z, struct zero_group *group)
{
    bool some = false;

    while (group->finals < group->buckets &&
           is_final(z, group, group->order[group->finals])) {
        uint32_t bucket = group->order[group->finals++];

        for (uint32_t i = 0; i < group->shard_ranks && z->valid[bucket]; i++)
            launch_between(z, bucket, i);
        some = true;
    }
    return some;
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Overlap off: nothing before every rank has declared all it contributes to this micro-step. */
static bool all_declared(const struct zero *z, uint32_t m)
{
    for (uint32_t r = 0; r < z->world; r++) {
        const struct zero_rank *rank = &z->ranks[r];

        if (z->local ? rank->undone_buckets > 0
                     : rank->ended == z->step && rank->micro <= m && rank->open_buckets > 0)
            return false;
    }
    return true;
}

static bool may_launch(const struct zero *z, const struct zero_group *group, uint32_t bucket,
                       uint32_t m)
{
    struct ranks arrived;

    if (zero_edge(z, EDGE_SHARD_CONSUMED) && group->gate < z->step)
        return false;
    arrived = zero_arrived(z, bucket, m);
    if (zero_edge(z, EDGE_ALL_READY) ? !ranks_equal(&arrived, &group->members)
                                     : !ranks_any(&arrived))
        return false;
    return !z->options.overlap_off || all_declared(z, m);
}

static void launch_position(struct zero *z, const struct zero_group *group, uint32_t bucket,
                            uint32_t m)
{
    bool filled = false, any = false;

    for (uint32_t i = 0; i < group->count; i++) {
        filled |= input(z, group->ranks[i], bucket, m).kind != GW_ARENA_NONE;
        any |= counts(z, group->ranks[i], bucket, m);
    }
    if (filled)
        launch_reduction(z, bucket, m);
    else if (any)
        launch_nothing(z, bucket, m);
    z->launched[bucket] = m + 1;
}

static bool launch_group(struct zero *z, struct zero_group *group)
{
    bool some = false;

    while (!groups_complete(z, group)) {
        uint32_t bucket = group->order[group->pos_i];

        if (!may_launch(z, group, bucket, group->pos_m))
            break;
        launch_position(z, group, bucket, group->pos_m);
        if (zero_hybrid(group))
            (void)launch_finals(z, group);
        some = true;
        if (++group->pos_i == group->buckets) {
            group->pos_i = 0;
            group->pos_m++;
        }
    }
    /* Also without a launch: it may be known only now that a contribution was the last. */
    return (zero_hybrid(group) && launch_finals(z, group)) || some;
}

bool launch_complete(const struct zero *z)
{
    for (uint32_t g = 0; g < z->group_count; g++) {
        const struct zero_group *group = &z->groups[g];

        if (!groups_complete(z, group) || (zero_hybrid(group) && group->finals < group->buckets))
            return false;
    }
    return true;
}

bool launch_reductions(struct zero *z)
{
    bool some = false;

    for (uint32_t g = 0; g < z->group_count; g++)
        some |= launch_group(z, &z->groups[g]);
    return some;
}
