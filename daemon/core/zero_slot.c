/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ring slots (stages 2-3, accumulate=shard): which contribution holds which slot, and what a rank
 * that finds none free is answered. Pure; one thread. The client hands slots out; this only checks
 * what it can see, and never waits.
 *
 * A client sends ACQUIRE when each of its slots is in use as far as it can tell. It is answered
 *  - GW_NO_SLOT ("look again") once one of its slots has become free since the last answer;
 *  - a slot whose reduction is launched, if the client's stream will wait for it (ordered). Only
 *    then: a stream that waited for a reduction that is not launched might keep back the very
 *    gradient that is to be reduced before;
 *  - an overflow slot, if waiting would be for its own later gradients or commit: no reduction in
 *    flight will free a slot of the rank, and in each group that its slots hold buckets of, the
 *    next one in launch order waits for the rank, or for others that wait for a slot like it; among
 *    them some that wait for this one.
 */
#include "daemon/core/zero_internal.h"

#include <string.h>

int slot_use(struct zero *z, uint32_t rank, uint32_t bucket, uint32_t slot)
{
    struct zero_entry *entry = zero_entry(z, rank, bucket);
    struct zero_slot *at;

    if (slot >= z->ring_slots + z->ranks[rank].overflows)
        return zero_fail(z, GW_E_INVALID, rank,
                         "rank %u put a gradient of bucket %u into slot %u, but has %u", rank,
                         bucket, slot, z->ring_slots + z->ranks[rank].overflows);
    if (entry->slot == slot)
        return 0;
    if (entry->slot != GW_NO_SLOT)
        return zero_fail(z, GW_E_INVALID, rank,
                         "rank %u put gradients of bucket %u into slots %u and %u in one "
                         "micro-step", rank, bucket, entry->slot, slot);
    at = zero_slot(z, rank, slot);
    if (at->held)
        return zero_fail(z, GW_E_BUSY, rank,
                         "rank %u put a gradient of bucket %u into slot %u, which still holds "
                         "bucket %u: acquire a free one first", rank, bucket, slot, at->bucket);
    *at = (struct zero_slot){.held = true, .bucket = bucket, .used = at->used};
    entry->slot = slot;
    return 0;
}

/* ---- ACQUIRE --------------------------------------------------------------------------------- */

static void answer(struct zero *z, uint32_t rank, uint32_t slot, bool launched)
{
    struct zero_rank *mine = &z->ranks[rank];
    struct core_effect *effect = effects_add(z->effects, CORE_EFF_REPLY);

    effect->rank = rank;
    effect->reply.type = WIRE_ACQUIRED;
    effect->reply.request = mine->acquires[0].request;
    effect->reply.u.acquired.slot = slot;
    effect->reply.u.acquired.launched = launched;
    mine->acquire_count--;
    memmove(&mine->acquires[0], &mine->acquires[1],
            mine->acquire_count * sizeof(mine->acquires[0]));
}

/* Everybody who waits looks again; whom an overflow slot is being made for waits for that. */
static void answer_news(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    if (!mine->slot_news || mine->acquire_count == 0 || mine->overflow_pending)
        return;
    while (mine->acquire_count)
        answer(z, rank, GW_NO_SLOT, false);
    mine->slot_news = false;
}

int slot_acquire(struct zero *z, uint32_t rank, const struct wire_msg *msg)
{
    struct zero_rank *mine = &z->ranks[rank];
    uint32_t request = msg->request, bucket = msg->u.acquire.bucket;
    bool ordered = msg->u.acquire.ordered;

    if (!z->ring || bucket >= z->buckets || !zero_member(z, bucket, rank)) {
        zero_reply(z, rank, request, GW_E_INVALID,
                   "rank %u acquires a ring slot for bucket %u, but there is %s", rank, bucket,
                   !z->ring                ? "no ring in this stage and mode"
                   : bucket >= z->buckets ? "no such bucket"
                                           : "none for it: its group does not hold the rank");
    } else if (mine->acquire_count == ZERO_ACQUIRES) {
        zero_reply(z, rank, request, GW_E_LIMIT,
                   "rank %u waits for %u ring slots already", rank, ZERO_ACQUIRES);
    } else {
        mine->acquires[mine->acquire_count++] = (struct zero_acquire){request, bucket, ordered};
    }
    return 0;
}

static bool slot_in_flight(const struct zero *z, uint32_t rank)
{
    for (uint32_t s = 0; s < z->ring_slots + z->ranks[rank].overflows; s++) {
        if (zero_slot(z, rank, s)->op)
            return true;
    }
    return false;
}

/* The next reduction in the group's launch order waits for this rank: for a declaration, or for the
 * commit of the update inside which it declares. */
static bool head_lacks(const struct zero *z, const struct zero_group *group, uint32_t rank)
{
    const struct zero_rank *mine = &z->ranks[rank];
    uint32_t bucket = group->order[group->pos_i];
    struct ranks arrived;

    if (mine->ended > z->step)
        return false;
    if (mine->resolved < z->step)
        return true;
    if (z->options.overlap_off) /* it waits for all that the rank declares in the micro-step */
        return mine->micro <= group->pos_m && mine->open_buckets > 0;
    if (group->pos_m >= z->depth)
        return false;
    arrived = zero_arrived(z, bucket, group->pos_m);
    return !ranks_has(&arrived, rank);
}

/* Groups of which a gradient of the rank's micro-step may be due. */
static uint64_t open_groups(const struct zero *z, uint32_t rank)
{
    uint64_t groups = 0;

    for (uint32_t g = 0; g < z->group_count; g++) {
        if (zero_in(z, g, rank) && z->groups[g].pos_m <= z->ranks[rank].micro)
            groups |= UINT64_C(1) << g;
    }
    return groups;
}

/* Groups whose reductions could free a slot of the rank. A slot that holds nothing as far as the
 * core knows is in the client's hands, for it alone knows which bucket. */
static uint64_t slot_groups(const struct zero *z, uint32_t rank)
{
    uint64_t groups = 0;

    for (uint32_t s = 0; s < z->ring_slots + z->ranks[rank].overflows; s++) {
        const struct zero_slot *at = zero_slot(z, rank, s);

        groups |= at->held ? UINT64_C(1) << z->bucket_table[at->bucket].group
                           : open_groups(z, rank);
    }
    return groups;
}

/* Ranks that the heads of these groups lack. */
static struct ranks lacking(const struct zero *z, uint64_t groups)
{
    struct ranks ranks = {{0}};

    for (uint32_t g = 0; g < z->group_count; g++) {
        const struct zero_group *group = &z->groups[g];

        for (uint32_t i = 0; i < group->count && groups >> g & 1; i++) {
            if (head_lacks(z, group, group->ranks[i]))
                ranks_add(&ranks, group->ranks[i]);
        }
    }
    return ranks;
}

/* A launched slot that is nobody's; each is named once. GW_NO_SLOT: none. */
static uint32_t promisable(const struct zero *z, uint32_t rank)
{
    for (uint32_t s = 0; s < z->ring_slots + z->ranks[rank].overflows; s++) {
        const struct zero_slot *at = zero_slot(z, rank, s);

        if (!at->held && !at->promised && at->used)
            return s;
    }
    return GW_NO_SLOT;
}

/* It waits for a slot, and no reduction that is launched will free one. */
static bool is_stuck(const struct zero *z, uint32_t rank)
{
    const struct zero_rank *mine = &z->ranks[rank];

    if (!mine->acquire_count || mine->overflow_pending || mine->slot_news || mine->backlog.count)
        return false;
    return mine->acquires[0].ordered ? promisable(z, rank) == GW_NO_SLOT : !slot_in_flight(z, rank);
}

/* Someone that the rank waits for waits, in the end, for the rank. */
static bool waits_for_itself(const struct zero *z, uint32_t rank)
{
    uint64_t groups = slot_groups(z, rank), seen = 0;
    struct ranks late = {{0}};

    while (groups & ~seen) {
        struct ranks more = lacking(z, groups & ~seen);

        late = ranks_or(&late, &more);
        seen |= groups;
        for (uint32_t r = ranks_first(&late); r < z->world; r = ranks_next(&late, r + 1)) {
            if (is_stuck(z, r))
                groups |= slot_groups(z, r);
        }
    }
    return ranks_has(&late, rank);
}

/* One of the rank's slots is of a group whose next reduction waits for none but `going` ranks. */
static bool gets_slot(const struct zero *z, uint32_t rank, const struct ranks *going)
{
    uint64_t groups = slot_groups(z, rank);

    for (uint32_t g = 0; g < z->group_count; g++) {
        struct ranks lacks;

        if (!(groups >> g & 1))
            continue;
        lacks = lacking(z, UINT64_C(1) << g);
        lacks = ranks_and_not(&lacks, going);
        if (!ranks_any(&lacks))
            return true;
    }
    return false;
}

/* Nobody who goes on will free a slot for the rank, nor for those it waits for. */
static bool waits_for_ever(const struct zero *z, uint32_t rank)
{
    struct ranks going = {{0}};
    bool more = true;

    for (uint32_t r = 0; r < z->world; r++) {
        if (!is_stuck(z, r))
            ranks_add(&going, r);
    }
    while (more) {
        more = false;
        for (uint32_t r = 0; r < z->world; r++) {
            if (ranks_has(&going, r) || !gets_slot(z, r, &going))
                continue;
            ranks_add(&going, r);
            more = true;
        }
    }
    return !ranks_has(&going, rank);
}

/* False: the bucket of the request has a slot, or its contribution is closed: whoever asked gave up
 * waiting and found one. (A grant would then be taken for the bucket's next contribution.) */
static bool needs_slot(const struct zero *z, uint32_t rank, uint32_t bucket)
{
    const struct zero_entry *entry = zero_entry(z, rank, bucket);

    if (z->ranks[rank].ended > z->step) /* the ledger is still at the step before */
        return true;
    return !entry->overflow && entry->slot == GW_NO_SLOT && !entry->closed_now && !entry->done;
}

static void grant_overflow(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];
    struct zero_entry *entry = zero_entry(z, rank, mine->acquires[0].bucket);
    uint32_t quota = z->slots - z->ring_slots; /* what the tables hold */
    struct core_effect *effect;

    if (mine->overflows == quota) {
        zero_reply(z, rank, mine->acquires[0].request, GW_E_LIMIT,
                   "rank %u has used up its %u overflow slots: declare gradients nearer to the "
                   "order of the buckets, or seal with more ring_slots%s", rank, quota,
                   z->options.overlap_off ? " (overlap off needs a slot for every bucket)" : "");
        mine->acquire_count--;
        memmove(&mine->acquires[0], &mine->acquires[1],
                mine->acquire_count * sizeof(mine->acquires[0]));
        return;
    }
    entry->overflow = true;
    mine->overflow_pending = true;
    effect = effects_add(z->effects, CORE_EFF_OVERFLOW);
    effect->rank = rank;
    effect->index = mine->overflows;
}

static bool promise(struct zero *z, uint32_t rank)
{
    uint32_t slot = promisable(z, rank);

    if (slot == GW_NO_SLOT)
        return false;
    zero_slot(z, rank, slot)->promised = true;
    answer(z, rank, slot, true);
    return true;
}

static void pump_rank(struct zero *z, uint32_t rank)
{
    struct zero_rank *mine = &z->ranks[rank];

    answer_news(z, rank);
    /* What waits in the backlog lies in slots that seem to be free. */
    while (mine->acquire_count && !mine->overflow_pending && !mine->backlog.count) {
        if (!needs_slot(z, rank, mine->acquires[0].bucket)) {
            answer(z, rank, GW_NO_SLOT, false); /* look again */
            continue;
        }
        if (mine->acquires[0].ordered && promise(z, rank))
            continue;
        if (!is_stuck(z, rank) || !waits_for_itself(z, rank) || !waits_for_ever(z, rank))
            return;
        grant_overflow(z, rank);
    }
}

void slot_pump(struct zero *z)
{
    for (uint32_t r = 0; r < z->world && z->ring && z->buckets; r++)
        pump_rank(z, r);
}

void slot_overflow(struct zero *z, uint32_t rank, int code)
{
    struct zero_rank *mine = &z->ranks[rank];
    uint32_t bucket;

    if (!mine->overflow_pending || mine->acquire_count == 0)
        return;
    mine->overflow_pending = false;
    bucket = mine->acquires[0].bucket;
    if (code == 0) {
        answer(z, rank, z->ring_slots + mine->overflows, false);
        mine->overflows++;
        return;
    }
    zero_entry(z, rank, bucket)->overflow = false;
    zero_reply(z, rank, mine->acquires[0].request, code,
               "no memory for an overflow slot of rank %u", rank);
    mine->acquire_count--;
    memmove(&mine->acquires[0], &mine->acquires[1],
            mine->acquire_count * sizeof(mine->acquires[0]));
}

void slot_op_done(struct zero *z, uint64_t op)
{
    for (uint32_t r = 0; r < z->world && z->ring; r++) {
        for (uint32_t s = 0; s < z->ring_slots + z->ranks[r].overflows; s++) {
            struct zero_slot *at = zero_slot(z, r, s);

            if (at->op != op)
                continue;
            at->op = 0;
            z->ranks[r].slot_news = true;
        }
    }
}
