/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of steps: verdict, update windows, versions, and the ops that follow a commit: rounding of
 * masters, gathers that bring updated parameters to all ranks in stages 1-2, and persistent ones in
 * stage 3. Pure; one thread.
 *
 * A rank's update of the step that it ended last:
 *
 *   NONE --STEP_END--> PENDING --UPDATE_BEGIN--> BEGUN --UPDATE_COMMIT--> NONE (committed)
 *                         `--READY, FETCH, MICRO_END, STEP_END--> NONE (skipped)
 *
 * In an open window gradients of the next step may be declared (their reductions wait for the
 * commit), but the next step cannot end.
 */
#include "daemon/core/zero_internal.h"

#include <string.h>

#include "daemon/base/hash.h"

static unsigned long long number(uint64_t value)
{
    return (unsigned long long)value;
}

/* ---- a rank's update ------------------------------------------------------------------------- */

/* after: the rank's streams have no use for the step's gradients any more. */
static void resolve(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    struct zero_rank *mine = &z->ranks[rank];

    mine->update = UPDATE_NONE;
    mine->resolved = mine->ended;
    mine->resolved_after[mine->ended & 1] = *after;
}

void step_touch(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    struct zero_rank *mine = &z->ranks[rank];
    struct wire_after *said = &mine->resolved_after[mine->ended & 1];

    if (mine->update == UPDATE_PENDING) {
        resolve(z, rank, after);
        mine->skipped = true;
    } else if (mine->skipped && !said->tokens) {
        *said = *after; /* what skipped it had none: a fetch, which waits for nothing */
    }
}

int step_update_begin(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    if (mine->update == UPDATE_BEGUN)
        return zero_fail(z, GW_E_STATE, rank, "rank %u began the update of step %llu twice", rank,
                         number(mine->ended));
    if (mine->update == UPDATE_NONE)
        return zero_fail(z, GW_E_STATE, rank,
                         "rank %u began an update after it had gone on to step %llu: end the step "
                         "first", rank, number(mine->ended + 1));
    mine->update = UPDATE_BEGUN;
    return 0;
}

static void cast(struct zero *z, uint32_t rank, uint32_t dtype, const struct wire_after *after)
{
    struct zero_rank *mine = &z->ranks[rank];
    struct core_op *op = ops_new(z, CORE_OP_CAST, CORE_STREAM_GATHER, GW_KINDS, FLIGHT_CAST);

    op->step = mine->ended;
    op->rank = rank;
    op->in_dtype = GW_DTYPE_FP32;
    op->out_dtype = (uint8_t)dtype;
    op->bucket_count = z->buckets;
    ops_members(z, op, &z->members[rank], 1);
    if (zero_edge(z, EDGE_COMMITTED) && after->tokens && tokens_room(z, op, after->tokens))
        tokens_add(op, rank, after);
    mine->cast_op = op->id;
}

void step_cast(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    for (uint32_t dtype = GW_DTYPE_FP32 + 1; dtype < GW_DTYPES; dtype++) {
        if (z->ranks[rank].dtypes >> dtype & 1)
            cast(z, rank, dtype, after);
    }
}

static bool rounds(const struct zero *z, uint32_t rank)
{
    return (z->ranks[rank].dtypes & ~(1u << GW_DTYPE_FP32)) != 0;
}

/* Done when the rank's streams have made the update: until then its shard may be half written. */
static void launch_commit(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    struct core_op *op = ops_barrier(z, CORE_STREAM_GATHER, &rank, 1);

    op->step = z->ranks[rank].ended;
    if (zero_edge(z, EDGE_COMMITTED) && tokens_room(z, op, after->tokens))
        tokens_add(op, rank, after);
    z->ranks[rank].commit_op = op->id;
}

int step_update_commit(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    struct zero_rank *mine = &z->ranks[rank];

    if (mine->update != UPDATE_BEGUN)
        return zero_fail(z, GW_E_STATE, rank, "rank %u committed an update that it had not begun",
                         rank);
    if (z->ordered && mine->update_told < mine->ended)
        return 1; /* its streams wait for the window */
    if (z->update_open < mine->ended && zero_edge(z, EDGE_READS_OVER))
        return zero_fail(z, GW_E_STATE, rank,
                         "rank %u committed the update of step %llu before every rank had ended "
                         "the step: wait for the token of gw_update_begin", rank,
                         number(mine->ended));
    groups_committed(z, rank, mine->ended);
    mine->committed_after = *after;
    mine->skipped = false;
    if (rounds(z, rank)) {
        step_cast(z, rank, after);
        mine->commit_op = mine->cast_op;
    } else if (after->tokens) {
        launch_commit(z, rank, after);
    }
    resolve(z, rank, after);
    return 0;
}

void zero_late_update(struct zero *z, uint32_t rank, bool commit)
{
    static const struct wire_after none;
    struct zero_rank *mine;

    if (rank >= z->world)
        return;
    mine = &z->ranks[rank];
    if (z->ordered) {
        /* Nothing holds its streams any more, whatever they wait for. */
        mine->late_update = true;
        return;
    }
    if (mine->backlog.count)
        return; /* then it is about a window that has not opened */
    if (!commit && mine->update == UPDATE_PENDING) {
        mine->update = UPDATE_BEGUN;
    } else if (commit && mine->update == UPDATE_BEGUN && z->update_open >= mine->ended) {
        groups_committed(z, rank, mine->ended);
        resolve(z, rank, &none);
    }
}

/* ---- parameters of the next step ------------------------------------------------------------- */

static void gather_bucket(struct zero *z, uint32_t part, uint32_t rank, uint64_t step,
                          bool counted)
{
    uint32_t bucket = z->parts[part].first_bucket;
    struct core_op *op = fetch_part_op(z, rank, part, 0, FLIGHT_GATHER);
    struct zero_flight *flight = ops_flight(z, op->id);

    op->step = step;
    op->measure = !counted;
    if (flight)
        flight->step = step;
    zero_entry(z, rank, bucket)->gather_op = op->id;
}

void step_gather_all(struct zero *z, uint32_t group, uint64_t step, bool counted)
{
    const struct zero_group *of = &z->groups[group];

    for (uint32_t part = 0; part < z->part_count; part++) {
        for (uint32_t i = 0; i < of->count && z->parts[part].group == group; i++)
            gather_bucket(z, part, of->ranks[i], step, counted);
    }
}

uint64_t step_resolved(const struct zero *z)
{
    uint64_t resolved = UINT64_MAX;

    for (uint32_t r = 0; r < z->world; r++) {
        if (z->ranks[r].resolved < resolved)
            resolved = z->ranks[r].resolved;
    }
    return resolved;
}

static uint64_t group_resolved(const struct zero *z, const struct zero_group *group)
{
    uint64_t resolved = UINT64_MAX;

    for (uint32_t i = 0; i < group->count; i++) {
        if (z->ranks[group->ranks[i]].resolved < resolved)
            resolved = z->ranks[group->ranks[i]].resolved;
    }
    return resolved;
}

static bool persists(const struct zero *z, uint32_t group)
{
    bool some = false;

    for (uint32_t part = 0; part < z->persistent_parts; part++)
        some |= z->parts[part].group == group;
    return some;
}

/* Parameters that all members have, gathered as soon as there is a new version of them. */
static void gather_version(struct zero *z, uint32_t g)
{
    struct zero_group *group = &z->groups[g];

    group->gathered = group->committed;
    if (z->stage == 3) {
        for (uint32_t i = 0; i < group->count; i++)
            fetch_persistent(z, group->ranks[i], g, group->committed, true);
    } else {
        step_gather_all(z, g, group->committed, true);
    }
}

static bool group_gate(struct zero *z, uint32_t g)
{
    struct zero_group *group = &z->groups[g];
    bool follows = z->stage == 1 || z->stage == 2 || persists(z, g);
    uint64_t gate = group_resolved(z, group);
    bool changed = gate != group->gate;

    group->gate = gate;
    /* The gate may be a step further: of messages that waited all are handled at once. Edge VERSION
     * dropped: the first commit is enough. */
    if (follows && group->committed > group->gathered &&
        (group->committed <= gate || !zero_edge(z, EDGE_VERSION))) {
        gather_version(z, g);
        changed = true;
    }
    return changed;
}

bool step_gate(struct zero *z)
{
    bool changed = false;

    for (uint32_t g = 0; g < z->group_count; g++) {
        if (z->groups[g].buckets)
            changed |= group_gate(z, g);
    }
    return changed;
}

/* ---- end of a step --------------------------------------------------------------------------- */

static void *copy(struct zero *z, const void *from, size_t bytes)
{
    void *to = effects_alloc(z->effects, bytes);

    return to && bytes ? memcpy(to, from, bytes) : to;
}

/* Of all groups: each one's launches are in an order of their own. */
static uint64_t step_digest(const struct zero *z)
{
    uint64_t digest = z->groups[0].digest;

    for (uint32_t g = 1; g < z->group_count; g++) {
        if (z->groups[g].buckets)
            digest = hash_add_u64(digest, z->groups[g].digest);
    }
    return digest;
}

static void launch_verdict(struct zero *z)
{
    uint64_t last[GW_RANKS_MAX];
    struct core_op *op = ops_new(z, CORE_OP_VERDICT, CORE_STREAM_CONTROL, GW_KIND_CONTROL,
                                 FLIGHT_OTHER);
    struct core_signal *signals;

    for (uint32_t r = 0; r < z->world; r++)
        last[r] = z->ranks[r].reduce_op;
    if (zero_edge(z, EDGE_VERDICT_LAST))
        ops_wait(z, op, last, z->world);
    tokens_shards(z, op); /* no bucket, no reduction; but the last verdict must have been read */
    op->clip_norm = z->options.clip_norm;
    op->digest = step_digest(z);
    op->norm = (uint8_t)z->options.norm;
    op->used_params = z->used_params;
    op->used_bits = copy(z, z->used_bits, ((size_t)z->params + 7) / 8);
    op->used_buckets = copy(z, z->valid, z->buckets);
    signals = ops_signals(z, op, z->world);
    for (uint32_t r = 0; r < z->world && signals; r++)
        signals[r] = (struct core_signal){.rank = r,
                                          .timeline = GW_TIMELINE(GW_TL_STEP, 0),
                                          .value = z->step + 1};
    z->verdict_op = op->id;
}

/* The first members' orders become those of launches. */
static void take_orders(struct zero *z)
{
    for (uint32_t g = 0; g < z->group_count; g++) {
        struct zero_group *group = &z->groups[g];
        uint32_t *order = group->order;

        if (group->recorded_count != group->buckets)
            continue;
        group->order = group->recorded;
        group->recorded = order;
    }
}

bool step_close(struct zero *z)
{
    for (uint32_t r = 0; r < z->world; r++) {
        if (z->ranks[r].ended <= z->step)
            return false;
    }
    if (!launch_complete(z))
        return false;
    for (uint32_t b = 0; b < z->buckets; b++) {
        if (!z->valid[b] && !z->zeroed[b])
            launch_zero_reduced(z, b, false);
    }
    launch_verdict(z);
    take_orders(z);
    z->step++;
    grad_reset_step(z);
    return true;
}

/* Told only to a rank whose UPDATE_BEGIN is here: what it writes from now on is known to be
 * unfinished until its commit, however it dies. */
static bool wants_window(struct zero *z, uint32_t rank, uint64_t step)
{
    struct zero_rank *mine = &z->ranks[rank];

    if (mine->update != UPDATE_BEGUN || mine->ended > step || mine->update_told >= mine->ended)
        return false;
    mine->update_told = mine->ended;
    return true;
}

static struct core_signal window_signal(const struct zero *z, uint32_t rank)
{
    return (struct core_signal){.rank = rank,
                                .timeline = GW_TIMELINE(GW_TL_UPDATE, 0),
                                .value = z->ranks[rank].ended};
}

/* Gathers of the ranks' groups, and the rounding of their own masters. Members of other groups only
 * may be further on already: their gathers wait for what comes after these windows. */
static void wait_readers(struct zero *z, struct core_op *op, const uint32_t *ranks, uint32_t count)
{
    uint32_t room = count + z->group_count * z->world, ids = 0;
    uint64_t *readers = effects_alloc(z->effects, room * sizeof(*readers)), groups = 0;

    for (uint32_t i = 0; i < count && readers; i++) {
        groups |= z->ranks[ranks[i]].groups;
        readers[ids++] = z->ranks[ranks[i]].cast_op;
    }
    for (uint32_t g = 0; g < z->group_count && readers; g++) {
        for (uint32_t i = 0; i < z->groups[g].count && groups >> g & 1; i++)
            readers[ids++] = *zero_gather_op(z, z->groups[g].ranks[i], g);
    }
    if (readers)
        ops_wait(z, op, readers, ids);
}

/* The word rises when nobody's streams read the parameters any more: those that compute with them,
 * and ops that copy them. */
static void launch_windows(struct zero *z, const uint32_t *ranks, uint32_t count)
{
    struct core_op *op = ops_barrier(z, CORE_STREAM_CONTROL, ranks, count);
    struct core_signal *signals;

    op->step = z->update_open;
    wait_readers(z, op, ranks, count);
    tokens_reads(z, op, z->update_open);
    signals = ops_signals(z, op, count);
    for (uint32_t i = 0; i < count && signals; i++)
        signals[i] = window_signal(z, ranks[i]);
}

bool step_open_updates(struct zero *z)
{
    bool opened = z->update_open < z->step, kept = zero_edge(z, EDGE_READS_OVER);
    uint32_t ranks[GW_RANKS_MAX], count = 0;

    z->update_open = z->step;
    for (uint32_t r = 0; r < z->world; r++) {
        if (!wants_window(z, r, kept ? z->update_open : UINT64_MAX))
            continue;
        if (kept)
            ranks[count++] = r;
        else
            ops_signal(z, window_signal(z, r), 0);
    }
    if (count)
        launch_windows(z, ranks, count);
    return opened;
}
