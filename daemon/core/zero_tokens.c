/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens: what ops wait for on their streams, because a rank's declaration says what its own
 * streams will have done by then. Pure; one thread. Which op is launched when is decided elsewhere,
 * from the declarations alone.
 *
 *   STEP_END       -> windows of the step's updates          (READS_DONE)
 *   UPDATE_COMMIT  -> gathers, and reductions into shards    (COMMITTED)
 *                  -> the casts of masters, and gathers wait for these (ROUNDED)
 *   FETCH, READY, MICRO_END, STEP_END that skip an update
 *                  -> reductions into shards                 (COMMITTED)
 *   RELEASE        -> gathers into the pool                  (RELEASED)
 *   MICRO_END, STEP_END, READY -> zero-fills of what they close
 *
 * Exactness. Of each kind the tokens of the step that the op belongs to are taken, though the rank
 * may have declared a later one already. Releases are merged, the highest value of each timeline:
 * they are served in the rank's order, so all are earlier than the fetch or release that launches
 * the gather. Commits: a window of the next step opens only when all have ended it, and then all
 * gathers of that step are launched.
 */
#include "daemon/core/zero_internal.h"

#include <string.h>

void tokens_note(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    uint64_t *said = z->ranks[rank].said;

    for (uint32_t i = 0; i < after->tokens; i++) {
        if (after->value[i] > said[after->timeline[i]])
            said[after->timeline[i]] = after->value[i];
        z->loud = true;
    }
}

bool tokens_room(struct zero *z, struct core_op *op, size_t count)
{
    struct core_token *waits =
        effects_alloc(z->effects, (op->wait_count + count) * sizeof(*waits));

    if (waits && op->wait_count)
        memcpy(waits, op->waits, op->wait_count * sizeof(*waits));
    if (waits)
        op->waits = waits;
    return waits != NULL;
}

static void add(struct core_op *op, uint32_t rank, uint32_t timeline, uint64_t value)
{
    /* The array is the op's own, from tokens_room. */
    struct core_token *waits = (struct core_token *)(uintptr_t)op->waits;

    waits[op->wait_count++] = (struct core_token){rank, timeline, value};
}

void tokens_add(struct core_op *op, uint32_t rank, const struct wire_after *after)
{
    for (uint32_t i = 0; i < after->tokens; i++)
        add(op, rank, after->timeline[i], after->value[i]);
}

/* ---- gathers --------------------------------------------------------------------------------- */

void tokens_release(struct zero *z, uint32_t rank, const struct wire_after *after)
{
    uint64_t *released = z->ranks[rank].released;

    for (uint32_t i = 0; i < after->tokens; i++) {
        if (after->value[i] > released[after->timeline[i]])
            released[after->timeline[i]] = after->value[i];
    }
}

static uint32_t commit_tokens(const struct zero *z, const struct core_op *op)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < op->world; i++)
        count += z->ranks[op->members[i]].committed_after.tokens;
    return count;
}

/* Casts of the owners' masters; the rank's own is on the same stream. */
static void wait_rounded(struct zero *z, struct core_op *op)
{
    uint64_t casts[GW_RANKS_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < op->world; i++) {
        if (op->members[i] != op->rank)
            casts[count++] = z->ranks[op->members[i]].cast_op;
    }
    ops_wait(z, op, casts, count);
}

static uint32_t release_tokens(const struct zero_rank *mine)
{
    uint32_t count = 0;

    for (uint32_t t = 0; t < GW_TIMELINES_MAX; t++)
        count += mine->released[t] > mine->gather_waits[t];
    return count;
}

/* The owners' commits, and what rounds their masters. *ret_count tokens of theirs are to come. */
static bool wait_commits(struct zero *z, struct core_op *op, uint32_t group, uint32_t *ret_count)
{
    uint64_t *waited = &z->gather_commits[(size_t)op->rank * z->group_count + group];
    bool news = !op->secondary && *waited != z->groups[group].commits;
    bool commits = news && zero_edge(z, EDGE_COMMITTED);

    if (news)
        *waited = z->groups[group].commits;
    if (news && z->groups[group].rounds && zero_edge(z, EDGE_ROUNDED))
        wait_rounded(z, op);
    *ret_count = commits ? commit_tokens(z, op) : 0;
    return commits;
}

/* The rank's GATHER stream waits once for each. */
void tokens_gather(struct zero *z, struct core_op *op, uint32_t group)
{
    uint32_t rank = op->rank;
    struct zero_rank *mine = &z->ranks[rank];
    bool releases = zero_edge(z, EDGE_RELEASED), commits;
    uint32_t count;

    commits = wait_commits(z, op, group, &count);
    count += releases ? release_tokens(mine) : 0;
    if (count == 0 || !tokens_room(z, op, count))
        return;
    for (uint32_t i = 0; i < op->world && commits; i++)
        tokens_add(op, op->members[i], &z->ranks[op->members[i]].committed_after);
    for (uint32_t t = 0; t < GW_TIMELINES_MAX && releases; t++) {
        if (mine->released[t] <= mine->gather_waits[t])
            continue;
        mine->gather_waits[t] = mine->released[t];
        add(op, rank, t, mine->released[t]);
    }
}

/* ---- reductions and updates ------------------------------------------------------------------ */

/* How the rank resolved the step before the ledger's; none: it has not yet. */
static const struct wire_after *resolved(const struct zero *z, uint32_t rank)
{
    static const struct wire_after none;
    const struct zero_rank *mine = &z->ranks[rank];

    return mine->resolved < z->step ? &none : &mine->resolved_after[z->step & 1];
}

/* True: no op of the REDUCE stream with this rank has waited yet. */
static bool shards_unwaited(const struct zero *z, uint32_t rank)
{
    return z->ranks[rank].shards_waited <= z->step;
}

void tokens_shards(struct zero *z, struct core_op *op)
{
    uint32_t count = 0;

    if (!zero_edge(z, EDGE_COMMITTED))
        return;
    for (uint32_t i = 0; i < op->world; i++) {
        if (shards_unwaited(z, op->members[i]))
            count += resolved(z, op->members[i])->tokens;
    }
    if (count > 0 && !tokens_room(z, op, count))
        return;
    for (uint32_t i = 0; i < op->world; i++) {
        uint32_t r = op->members[i];

        if (shards_unwaited(z, r))
            tokens_add(op, r, resolved(z, r));
        z->ranks[r].shards_waited = z->step + 1;
    }
}

void tokens_shard(struct zero *z, struct core_op *op, uint32_t rank)
{
    const struct wire_after *after = resolved(z, rank);

    if (after->tokens && zero_edge(z, EDGE_COMMITTED) && tokens_room(z, op, after->tokens))
        tokens_add(op, rank, after);
}

void tokens_closing(struct zero *z, struct core_op *op, uint32_t rank)
{
    if (z->closing->tokens && tokens_room(z, op, z->closing->tokens))
        tokens_add(op, rank, z->closing);
}

void tokens_reads(struct zero *z, struct core_op *op, uint64_t step)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < z->world; r++)
        count += z->ranks[r].ended_after[step & 1].tokens;
    if (count == 0 || !zero_edge(z, EDGE_READS_DONE) || !tokens_room(z, op, count))
        return;
    for (uint32_t r = 0; r < z->world; r++)
        tokens_add(op, r, &z->ranks[r].ended_after[step & 1]);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static uint32_t said_tokens(const struct zero *z)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < z->world; r++) {
        for (uint32_t t = 0; t < GW_TIMELINES_MAX; t++)
            count += z->ranks[r].said[t] > 0;
    }
    return count;
}

bool tokens_quiet(struct zero *z)
{
    struct core_op *op;

    if (ops_flight(z, z->quiet_op))
        return false;
    if (!z->loud)
        return true;
    op = ops_barrier(z, CORE_STREAM_CONTROL, z->members, z->world);
    z->quiet_op = op->id;
    z->loud = false;
    if (!tokens_room(z, op, said_tokens(z)))
        return false;
    for (uint32_t r = 0; r < z->world; r++) {
        for (uint32_t t = 0; t < GW_TIMELINES_MAX; t++) {
            if (z->ranks[r].said[t])
                add(op, r, t, z->ranks[r].said[t]);
        }
    }
    return false;
}

/* Clients that join again count their timelines from 0. */
void tokens_reset(struct zero *z)
{
    for (uint32_t r = 0; r < z->world; r++) {
        struct zero_rank *mine = &z->ranks[r];

        memset(mine->ended_after, 0, sizeof(mine->ended_after));
        memset(mine->resolved_after, 0, sizeof(mine->resolved_after));
        memset(&mine->committed_after, 0, sizeof(mine->committed_after));
        for (uint32_t g = 0; g < z->group_count; g++) {
            z->gather_commits[(size_t)r * z->group_count + g] = z->groups[g].commits;
            *zero_gather_op(z, r, g) = 0;
        }
        mine->commit_op = mine->cast_op = mine->persist_op = mine->reduce_op = 0;
        mine->shards_waited = mine->verdict_seen = 0;
        mine->late_update = false;
    }
    memset(z->timelines, 0, (size_t)z->world * 3 * GW_TIMELINES_MAX * sizeof(*z->timelines));
    z->quiet_op = 0;
    z->loud = false;
}
