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

static void resolve(struct zero *z, uint32_t rank)
{
    z->ranks[rank].update = UPDATE_NONE;
    z->ranks[rank].resolved = z->ranks[rank].ended;
}

void step_touch(struct zero *z, uint32_t rank)
{
    if (z->ranks[rank].update == UPDATE_PENDING)
        resolve(z, rank);
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

int step_update_commit(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    if (mine->update != UPDATE_BEGUN)
        return zero_fail(z, GW_E_STATE, rank, "rank %u committed an update that it had not begun",
                         rank);
    if (z->update_open < mine->ended && zero_edge(z, EDGE_READS_OVER))
        return zero_fail(z, GW_E_STATE, rank,
                         "rank %u committed the update of step %llu before every rank had ended "
                         "the step: wait for the token of gw_update_begin", rank,
                         number(mine->ended));
    if (mine->ended > z->committed)
        z->committed = mine->ended;
    resolve(z, rank);
    return 0;
}

void zero_late_update(struct zero *z, uint32_t rank, bool commit)
{
    struct zero_rank *mine;

    if (rank >= z->world || z->ranks[rank].backlog.count)
        return; /* then it is about a window that has not opened */
    mine = &z->ranks[rank];
    if (!commit && mine->update == UPDATE_PENDING) {
        mine->update = UPDATE_BEGUN;
    } else if (commit && mine->update == UPDATE_BEGUN && z->update_open >= mine->ended) {
        if (mine->ended > z->committed)
            z->committed = mine->ended;
        resolve(z, rank);
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
            op->measure = !counted;
            op->in_place_skip = 1;
            op->out = out;
            if (out)
                *out = memory_flat(&z->memory, GW_ARENA_PARAMS, b, r);
            if (flight) {
                flight->rank = r;
                flight->step = step;
            }
            zero_entry(z, r, b)->gather_op = op->id;
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
    uint64_t last = z->reduce_op;
    struct core_op *op = ops_new(z, CORE_OP_VERDICT, CORE_STREAM_CONTROL, GW_KIND_CONTROL,
                                 FLIGHT_OTHER);
    struct core_signal *signals;

    if (zero_edge(z, EDGE_VERDICT_LAST))
        ops_wait(z, op, &last, 1);
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
static void signal_update(struct zero *z, uint32_t rank, uint64_t step)
{
    if (z->ranks[rank].update != UPDATE_BEGUN || z->ranks[rank].update_told >= step)
        return;
    z->ranks[rank].update_told = step;
    ops_signal(z, (struct core_signal){.rank = rank,
                                       .timeline = GW_TIMELINE(GW_TL_UPDATE, 0),
                                       .value = step}, 0);
}

/* An update window opens when nobody reads the parameters any more: every rank has ended its step,
 * and no gather that nobody fetched, or waited for, is still copying from the shards. */
void step_open_updates(struct zero *z)
{
    bool kept = zero_edge(z, EDGE_READS_OVER);

    if (!kept || (z->update_open < z->step && !z->gathers_in_flight))
        z->update_open = z->step;
    for (uint32_t r = 0; r < z->world; r++) {
        if (!kept || z->update_open >= z->ranks[r].ended)
            signal_update(z, r, z->ranks[r].ended);
    }
}
