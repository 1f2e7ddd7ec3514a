/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of steps: verdict, update windows, versions, and the gathers that bring updated parameters
 * to all ranks in stages 1-2. Pure; one thread.
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
    if (z->update_open < mine->ended && zero_edge(z, EDGE_READS_OVER) && z->ordered)
        return 1; /* its streams wait for the window */
    if (z->update_open < mine->ended && zero_edge(z, EDGE_READS_OVER))
        return zero_fail(z, GW_E_STATE, rank,
                         "rank %u committed the update of step %llu before every rank had ended "
                         "the step: wait for the token of gw_update_begin", rank,
                         number(mine->ended));
    if (mine->ended > z->committed)
        z->committed = mine->ended;
    z->commits++;
    mine->committed_after = *after;
    mine->skipped = false;
    if (after->tokens)
        launch_commit(z, rank, after);
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
        if (mine->ended > z->committed)
            z->committed = mine->ended;
        resolve(z, rank, &none);
    }
}

/* ---- parameters of the next step ------------------------------------------------------------- */

void step_gather_all(struct zero *z, uint64_t step, bool counted)
{
    z->gathered = step;
    for (uint32_t b = 0; b < z->buckets; b++) {
        for (uint32_t r = 0; r < z->world; r++) {
            struct core_op *op = ops_new(z, CORE_OP_GATHER, CORE_STREAM_GATHER,
                                         GW_KIND_ALL_GATHER, FLIGHT_GATHER);
            struct zero_flight *flight = ops_flight(z, op->id);
            struct core_ref *out = ops_refs(z, 1);

            ops_payload(z, op, b, 1);
            op->rank = r;
            op->step = step;
            tokens_gather(z, op, r);
            op->measure = !counted;
            op->in_place_skip = 1;
            op->out = out;
            if (out)
                *out = memory_flat(&z->memory, GW_ARENA_PARAMS, b, r);
            if (flight) {
                flight->rank = r;
                flight->step = step;
            }
            zero_entry(z, r, b)->gather_op = z->ranks[r].gather_op = op->id;
        }
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

bool step_gate(struct zero *z)
{
    bool replicas = z->memory.stage == 1 || z->memory.stage == 2;
    uint64_t gate = step_resolved(z);
    bool changed;

    changed = gate != z->gate;
    z->gate = gate;
    /* Edge VERSION dropped: the first commit is enough. */
    if (replicas && z->committed > z->gathered &&
        (z->committed == gate || !zero_edge(z, EDGE_VERSION))) {
        step_gather_all(z, z->committed, true);
        changed = true;
    }
    return changed;
}

/* ---- end of a step --------------------------------------------------------------------------- */

static void *copy(struct zero *z, const void *from, size_t bytes)
{
    void *to = effects_alloc(z->effects, bytes);

    return to && bytes ? memcpy(to, from, bytes) : to;
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
    op->digest = z->digest;
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

bool step_close(struct zero *z)
{
    uint32_t *order = z->order;

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
    if (z->recorded_count == z->buckets) {
        z->order = z->recorded;
        z->recorded = order;
    }
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

/* The word rises when nobody's streams read the parameters any more: those that compute with them,
 * and gathers that copy them. */
static void launch_windows(struct zero *z, const uint32_t *ranks, uint32_t count)
{
    struct core_op *op = ops_barrier(z, CORE_STREAM_CONTROL, ranks, count);
    uint64_t gathers[GW_RANKS_MAX];
    struct core_signal *signals;

    op->step = z->update_open;
    for (uint32_t r = 0; r < z->world; r++)
        gathers[r] = z->ranks[r].gather_op;
    ops_wait(z, op, gathers, z->world);
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
