/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ZeRO layer tells about itself: whom ranks wait for, and statistics. Pure; one thread;
 * changes nothing.
 */
#include "daemon/core/zero_internal.h"

#include <string.h>

static unsigned long long number(uint64_t value)
{
    return (unsigned long long)value;
}

/* ---- who waits for whom ---------------------------------------------------------------------- */

/* True: older than what *wait holds, which then starts anew. */
static bool older(struct core_wait *wait, uint64_t since_ns, const struct ranks *missing)
{
    if (!ranks_any(missing) || since_ns >= wait->since_ns)
        return false;
    wait->since_ns = since_ns;
    wait->missing = *missing;
    return true;
}

static void reductions_wait(const struct zero *z, struct core_wait *wait)
{
    const char *kind = zero_all_reduces(z) ? "all-reduce" : "reduce-scatter";

    for (uint32_t b = 0; b < z->buckets; b++) {
        for (uint32_t m = z->launched[b]; m < z->depth && zero_due(z, b, m)->any; m++) {
            const struct zero_due *due = zero_due(z, b, m);
            struct ranks arrived = zero_arrived(z, b, m);
            struct ranks missing = ranks_and_not(&zero_group_of(z, b)->members, &arrived);
            struct text text = TEXT(wait->text);

            if (older(wait, due->first_ns, &missing))
                text_add(&text, "%s of bucket %u (step %llu)", kind, b, number(z->step + 1));
        }
    }
}

/* Ranks whose update of `step` is still to come. */
static struct ranks unresolved(const struct zero *z, uint64_t step)
{
    struct ranks ranks = {{0}};

    for (uint32_t r = 0; r < z->world; r++) {
        if (z->ranks[r].resolved < step)
            ranks_add(&ranks, r);
    }
    return ranks;
}

/* All have declared, but the shard still holds a gradient that somebody's update may read. */
static void updates_wait(const struct zero *z, struct core_wait *wait)
{
    struct ranks late = unresolved(z, z->step);

    for (uint32_t b = 0; b < z->buckets && ranks_any(&late); b++) {
        const struct zero_due *due = zero_due(z, b, 0);
        struct ranks missing = ranks_and(&late, &zero_group_of(z, b)->members);
        struct text text = TEXT(wait->text);

        if (due->any && older(wait, due->first_ns, &missing))
            text_add(&text, "update of step %llu, before bucket %u is reduced again",
                     number(z->step), b);
    }
}

static void io_wait(const struct zero *z, struct core_wait *wait)
{
    struct ranks missing = {{0}};

    for (uint32_t r = 0; r < z->world; r++) {
        if (z->ranks[r].update == UPDATE_BEGUN || z->ranks[r].resolved < z->committed)
            ranks_add(&missing, r);
    }
    for (uint32_t r = 0; r < z->world && ranks_any(&missing); r++) {
        const struct zero_rank *rank = &z->ranks[r];
        struct text text = TEXT(wait->text);

        if (rank->io.waiting && older(wait, rank->io.since_ns, &missing))
            text_add(&text, "update of step %llu, before rank %u reads or writes parameter %u",
                     number(z->step), r, rank->io.param);
    }
}

static void steps_wait(const struct zero *z, struct core_wait *wait)
{
    struct text text = TEXT(wait->text);
    uint64_t since_ns = UINT64_MAX;
    struct ranks missing = {{0}};

    for (uint32_t r = 0; r < z->world; r++) {
        const struct zero_rank *rank = &z->ranks[r];
        if (rank->ended <= z->step)
            ranks_add(&missing, r);
        else if (rank->ended_ns < since_ns)
            since_ns = rank->ended_ns;
    }
    if (since_ns != UINT64_MAX && older(wait, since_ns, &missing))
        text_add(&text, "end of step %llu", number(z->step + 1));
}

static void fetches_wait(const struct zero *z, struct core_wait *wait)
{
    for (uint32_t r = 0; r < z->world && z->stage > 0; r++) {
        const struct zero_late *head = z->ranks[r].fetches.head;
        struct text text = TEXT(wait->text);
        struct ranks missing, others;

        if (!head)
            continue;
        others = groups_neighbours(z, r);
        ranks_drop(&others, r);
        missing = unresolved(z, head->step - 1);
        missing = ranks_and(&missing, &others);
        if (!older(wait, head->now_ns, &missing))
            continue;
        text_add(&text, "update of step %llu", number(head->step - 1));
        if (head->type == WIRE_FETCH) /* else the end of a step that fetched nothing */
            text_add(&text, ", for a fetch of unit %u", head->unit);
    }
}

static void asks_wait(const struct zero *z, struct core_wait *wait, bool freeze)
{
    struct text text = TEXT(wait->text);
    uint64_t since_ns = UINT64_MAX;
    struct ranks missing = {{0}};

    for (uint32_t r = 0; r < z->world; r++) {
        const struct zero_ask *ask = freeze ? &z->ranks[r].freeze : &z->ranks[r].measure;

        if (!ask->waiting)
            ranks_add(&missing, r);
        else if (ask->since_ns < since_ns)
            since_ns = ask->since_ns;
    }
    if (since_ns != UINT64_MAX && older(wait, since_ns, &missing))
        text_add(&text, "%s", freeze ? "freezing of parameters" : "measurement");
}

bool zero_oldest_wait(const struct zero *z, struct core_wait *ret_wait)
{
    struct core_wait wait = {.since_ns = UINT64_MAX};

    reductions_wait(z, &wait);
    updates_wait(z, &wait);
    io_wait(z, &wait);
    steps_wait(z, &wait);
    fetches_wait(z, &wait);
    asks_wait(z, &wait, false);
    asks_wait(z, &wait, true);
    if (wait.since_ns == UINT64_MAX)
        return false;
    *ret_wait = wait;
    return true;
}

static bool neighbours(const struct zero *z, uint32_t rank, uint32_t other)
{
    struct ranks all = groups_neighbours(z, rank);

    return ranks_has(&all, other);
}

/* Others have begun a step that the rank has not ended, or wait for its update, measuring or
 * freezing. */
bool zero_needs(const struct zero *z, uint32_t rank)
{
    const struct zero_rank *gone = &z->ranks[rank];
    struct ranks others = z->declared;

    ranks_drop(&others, rank);
    if (gone->ended <= z->step && ranks_any(&others))
        return true;
    for (uint32_t r = 0; r < z->world; r++) {
        const struct zero_rank *other = &z->ranks[r];

        if (r == rank)
            continue;
        if ((other->measure.waiting && !gone->measure.waiting) ||
            (other->freeze.waiting && !gone->freeze.waiting))
            return true;
        if (other->io.waiting &&
            (gone->update == UPDATE_BEGUN || gone->resolved < z->committed))
            return true;
        if (z->stage > 0 && other->fetches.head && neighbours(z, r, rank) &&
            gone->resolved + 1 < other->fetches.head->step)
            return true;
    }
    return false;
}

/* ---- statistics ------------------------------------------------------------------------------ */

uint64_t zero_steps(const struct zero *z)
{
    return z->step;
}

void zero_stats(const struct zero *z, uint32_t rank, struct wire_msg *msg)
{
    const struct zero_rank *mine;

    if (rank >= z->world)
        return;
    mine = &z->ranks[rank];
    msg->u.stats.steps = z->step;
    msg->u.stats.overflow_slots = mine->overflows;
    msg->u.stats.comm_alone_ns = mine->comm_alone_ns;
    msg->u.stats.comm_ns = mine->comm.total_ns + intervals_total(mine->comm.set[0]) +
                           intervals_total(mine->comm.set[1]);
    if (mine->plan) {
        struct prefetch_figures figures = prefetch_figures(mine->plan);
        uint64_t persistent = fetch_persistent_bytes(z, rank);

        msg->u.stats.prefetch_hits = figures.hits;
        msg->u.stats.prefetch_misses = figures.misses;
        msg->u.stats.prefetch_drops = figures.drops;
        /* Mapped: the plan is the same, but nothing is copied into a pool. */
        msg->u.stats.gathered_bytes_now = z->mapped ? 0 : persistent + figures.bytes_now;
        msg->u.stats.gathered_bytes_max = z->mapped ? 0 : persistent + figures.bytes_max;
    }
}
