/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of the collectives layer. A group comes to be when every member has asked for the same
 * ordered list; a rank asks for one at a time, so two members that wait for each other with
 * different lists never meet: that is told at once. Group 0 is the world.
 * Pure; the core's thread. Must not touch lanes.
 */
#include "daemon/core/core_internal.h"

#include <stdlib.h>
#include <string.h>

void group_reset(struct core *core)
{
    struct core_group *world = &core->groups[GW_GROUP_WORLD];

    for (uint32_t rank = 0; rank < core->config.world; rank++)
        core->ranks[rank].group.request = 0;
    for (uint32_t group = 0; group < GW_GROUPS_MAX; group++)
        free(core->groups[group].ranks);
    memset(core->groups, 0, sizeof(core->groups));
    world->count = core->config.world;
    world->members = core->everyone;
    world->ranks = calloc(core->config.world, sizeof(*world->ranks));
    if (!world->ranks) {
        world->count = 0;
        core->nomem = true;
        return;
    }
    for (uint32_t rank = 0; rank < core->config.world; rank++)
        world->ranks[rank] = rank;
    core->group_count = 1;
}

void group_detach(struct core *core, uint32_t rank)
{
    core->ranks[rank].group.request = 0;
}

static bool asks_for(const struct core_rank *asking, uint32_t rank)
{
    for (uint32_t i = 0; i < asking->group.count; i++) {
        if (asking->group.ranks[i] == rank)
            return true;
    }
    return false;
}

static bool is_list(const struct core_rank *asking, const uint32_t *ranks, uint32_t count)
{
    return asking->group.count == count &&
           memcmp(asking->group.ranks, ranks, count * sizeof(*ranks)) == 0;
}

static bool same_list(const struct core_rank *a, const struct core_rank *b)
{
    return is_list(a, b->group.ranks, b->group.count);
}

static void add_list(struct text *text, const uint32_t *ranks, uint32_t count)
{
    text_add(text, "[");
    for (uint32_t i = 0; i < count; i++)
        text_add(text, i ? ", %u" : "%u", ranks[i]);
    text_add(text, "]");
}

static int group_check(const struct core *core, uint32_t rank, const struct wire_msg *msg,
                       struct text *text)
{
    const uint32_t *ranks = msg->u.group_new.ranks;
    uint32_t count = msg->u.group_new.count;
    struct ranks members = {{0}}, gone;

    for (uint32_t i = 0; i < count && i < GW_RANKS_MAX; i++) {
        if (ranks[i] >= core->config.world) {
            text_add(text, "a group cannot hold rank %u: the job has %u ranks", ranks[i],
                     core->config.world);
            return GW_E_INVALID;
        }
        if (ranks_has(&members, ranks[i])) {
            text_add(text, "rank %u stands twice in a group's list", ranks[i]);
            return GW_E_INVALID;
        }
        ranks_add(&members, ranks[i]);
    }
    if (!ranks_has(&members, rank)) {
        text_add(text, "rank %u asks for a group that it is not in: only members call", rank);
        return GW_E_INVALID;
    }
    gone = ranks_and(&members, &core->left);
    if (ranks_any(&gone)) {
        text_add(text, "a group needs ranks that have left the job: ");
        text_add_ranks(text, &gone);
        return GW_E_PEER_LOST;
    }
    if (core->group_count >= GW_GROUPS_MAX) {
        text_add(text, "the job has %u groups already, which is the limit", core->group_count);
        return GW_E_LIMIT;
    }
    return 0;
}

/* Two members that wait for each other with different lists. */
static bool differs(struct core *core, uint32_t rank)
{
    const struct core_rank *mine = &core->ranks[rank];

    for (uint32_t i = 0; i < mine->group.count; i++) {
        uint32_t other = mine->group.ranks[i];
        const struct core_rank *theirs = &core->ranks[other];
        char line[GW_TEXT_MAX + 1];
        struct text text = TEXT(line);

        if (!theirs->group.request || same_list(mine, theirs) || !asks_for(theirs, rank))
            continue;
        text_add(&text, "rank %u: ", rank < other ? rank : other);
        add_list(&text, core->ranks[rank < other ? rank : other].group.ranks,
                 core->ranks[rank < other ? rank : other].group.count);
        text_add(&text, "; rank %u: ", rank < other ? other : rank);
        add_list(&text, core->ranks[rank < other ? other : rank].group.ranks,
                 core->ranks[rank < other ? other : rank].group.count);
        core_fail(core, GW_E_MISMATCH, rank, "the ranks ask for different groups: %s", line);
        return true;
    }
    return false;
}

static bool all_ask(const struct core *core, uint32_t rank)
{
    const struct core_rank *mine = &core->ranks[rank];

    for (uint32_t i = 0; i < mine->group.count; i++) {
        const struct core_rank *theirs = &core->ranks[mine->group.ranks[i]];

        if (!theirs->group.request || !same_list(mine, theirs))
            return false;
    }
    return true;
}

static void make_group(struct core *core, uint32_t rank)
{
    struct core_group *group = &core->groups[core->group_count];

    group->count = core->ranks[rank].group.count;
    group->launched = 0;
    group->ranks = core->ranks[rank].group.ranks; /* which that rank needs no more */
    core->ranks[rank].group.ranks = NULL;
    for (uint32_t i = 0; i < group->count; i++) {
        struct core_rank *member = &core->ranks[group->ranks[i]];
        struct core_effect *effect =
            core_reply(core, group->ranks[i], member->group.request, WIRE_GROUP_MADE);

        effect->reply.u.group_made.group = core->group_count;
        member->group.request = 0;
        ranks_add(&group->members, group->ranks[i]);
    }
    core->group_count++;
}

/* Makes the group a rank asks for, if all its members do. */
static void try_group(struct core *core, uint32_t rank)
{
    if (!core->ranks[rank].group.request || differs(core, rank) || !all_ask(core, rank))
        return;
    if (core->group_count < GW_GROUPS_MAX)
        make_group(core, rank);
    else
        core_fail(core, GW_E_LIMIT, rank, "the job has %u groups already, which is the limit",
                  core->group_count);
}

void group_kick(struct core *core)
{
    for (uint32_t rank = 0; rank < core->config.world && core->complete && !core->broken; rank++)
        try_group(core, rank);
}

void group_request(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct core_rank *mine = &core->ranks[rank];
    const uint32_t *ranks = msg->u.group_new.ranks;
    uint32_t count = msg->u.group_new.count, *list = NULL;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    int r;

    r = group_check(core, rank, msg, &text);
    if (r == 0 && mine->group.request && !is_list(mine, ranks, count)) {
        text_add(&text, "rank %u still waits for another group: ", rank);
        add_list(&text, mine->group.ranks, mine->group.count);
        r = GW_E_STATE;
    }
    if (r < 0) {
        core_reply_done(core, rank, msg->request, r, "%s", line);
        return;
    }
    list = malloc(count * sizeof(*list));
    if (!list) {
        core->nomem = true;
        return;
    }
    if (mine->group.request) /* its caller gave up waiting and calls again */
        core_reply_done(core, rank, mine->group.request, GW_E_AGAIN,
                        "a later call of rank %u took this one's place", rank);
    else
        mine->group.since_ns = core->now_ns;
    mine->group.request = msg->request;
    free(mine->group.ranks);
    mine->group.ranks = memcpy(list, ranks, count * sizeof(*list));
    mine->group.count = count;
    if (core->complete)
        try_group(core, rank);
}

bool group_needs(const struct core *core, uint32_t rank)
{
    for (uint32_t other = 0; other < core->config.world; other++) {
        if (core->ranks[other].group.request && asks_for(&core->ranks[other], rank))
            return true;
    }
    return false;
}

bool group_wait(const struct core *core, struct core_wait *ret_wait)
{
    const struct core_rank *oldest = NULL;
    struct text text;

    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        const struct core_rank *mine = &core->ranks[rank];

        if (mine->group.request && (!oldest || mine->group.since_ns < oldest->group.since_ns))
            oldest = mine;
    }
    if (!oldest)
        return false;
    ret_wait->since_ns = oldest->group.since_ns;
    ret_wait->missing = (struct ranks){{0}};
    for (uint32_t i = 0; i < oldest->group.count; i++) {
        const struct core_rank *member = &core->ranks[oldest->group.ranks[i]];

        if (!member->group.request || !same_list(oldest, member))
            ranks_add(&ret_wait->missing, oldest->group.ranks[i]);
    }
    text_start(&text, ret_wait->text, sizeof(ret_wait->text));
    text_add(&text, "new group of ranks ");
    add_list(&text, oldest->group.ranks, oldest->group.count);
    return true;
}
