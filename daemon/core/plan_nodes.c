/* SPDX-License-Identifier: Apache-2.0 */
/* What crosses nodes: who lies where, and how many partial sums and slices leave a node. Pure; any
 * thread. */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/plan_internal.h"
#include "gradwire/errors.h"

#define MIXED UINT32_MAX /* a subtree of several nodes */

/* By node. */
struct counts {
    uint64_t *ranks, *partials;  /* of one collective */
    uint64_t *reduced, *gathered; /* of all so far: in payloads / members */
    uint32_t *tree;               /* nodes of one collective's members, then of its subtrees */
    uint32_t nodes;
};

/* In blocks; the first ones are a rank larger. */
static uint32_t node_of(const struct plan_request *request, uint32_t rank)
{
    uint32_t each = request->world / request->nodes, larger = request->world % request->nodes;
    uint32_t in_larger = larger * (each + 1);

    return rank < in_larger ? rank / (each + 1) : larger + (rank - in_larger) / each;
}

/* A subtree that lies on one node is one partial sum, if the next larger one does not. */
static void count_partials(struct counts *counts, uint32_t members)
{
    uint32_t *tree = counts->tree;

    for (uint32_t length = members; length > 1; length = length / 2 + length % 2) {
        for (uint32_t i = 0; i < length / 2; i++) {
            uint32_t left = tree[2 * i], right = tree[2 * i + 1];

            if (left != right && left != MIXED)
                counts->partials[left]++;
            if (left != right && right != MIXED)
                counts->partials[right]++;
            tree[i] = left == right ? left : MIXED;
        }
        if (length % 2)
            tree[length / 2] = tree[length - 1];
    }
}

/* One collective over `members` ranks, every `stride`-th of a group. */
static void count_collective(const struct plan_request *request, struct counts *counts,
                             const uint32_t *ranks, uint32_t stride, uint32_t members)
{
    uint64_t others = 0; /* nodes but one */

    for (uint32_t i = 0; i < members; i++) {
        uint32_t node = node_of(request, ranks[(size_t)i * stride]);

        counts->tree[i] = node;
        others += counts->ranks[node]++ == 0;
    }
    others--;
    count_partials(counts, members);
    for (uint32_t i = 0; i < members; i++) {
        uint32_t node = node_of(request, ranks[(size_t)i * stride]);

        counts->reduced[node] += (members - counts->ranks[node]) * counts->partials[node];
        counts->gathered[node] += counts->ranks[node] * others;
        counts->ranks[node] = counts->partials[node] = 0; /* each node once */
    }
}

/* The busiest node. */
static void set_level(struct plan_level *level, uint32_t members, const struct counts *counts)
{
    level->members = members;
    for (uint32_t node = 0; node < counts->nodes; node++) {
        uint64_t reduced = counts->reduced[node], gathered = counts->gathered[node];

        level->reduced = reduced > level->reduced ? reduced : level->reduced;
        level->gathered = gathered > level->gathered ? gathered : level->gathered;
        if (reduced + gathered > level->both)
            level->both = reduced + gathered;
        counts->reduced[node] = counts->gathered[node] = 0;
    }
}

/* Of neighbours, `each` in one. */
static void set_runs(const struct plan_request *request, struct counts *counts,
                     const uint32_t *ranks, uint32_t members, uint32_t each,
                     struct plan_level *ret_level)
{
    for (uint32_t first = 0; first < members && counts->nodes; first += each)
        count_collective(request, counts, ranks + first, 1, each);
    set_level(ret_level, each, counts);
}

int plan_levels(const struct plan_request *request, const struct gw_layout_page *page, uint32_t g,
                uint32_t block_ranks, struct plan_level ret_levels[PLAN_LEVELS])
{
    const struct gw_layout_group *group = &layout_page_groups(page)[g];
    const uint32_t *ranks = layout_page_members(page, g);
    uint32_t shard_ranks = group->shard_ranks, runs = group->members / shard_ranks;
    struct counts counts = {.nodes = request->nodes > 1 ? request->nodes : 0};
    uint64_t *table;

    memset(ret_levels, 0, PLAN_LEVELS * sizeof(*ret_levels));
    table = calloc((size_t)counts.nodes * 4 + 1, sizeof(*table));
    counts.tree = calloc(group->members, sizeof(*counts.tree));
    if (!table || !counts.tree) {
        free(table);
        free(counts.tree);
        return GW_E_NOMEM;
    }
    counts.ranks = table;
    counts.partials = table + counts.nodes;
    counts.reduced = table + (size_t)counts.nodes * 2;
    counts.gathered = table + (size_t)counts.nodes * 3;
    set_runs(request, &counts, ranks, group->members, shard_ranks, &ret_levels[PLAN_WITHIN]);
    for (uint32_t slice = 0; slice < shard_ranks && counts.nodes; slice++)
        count_collective(request, &counts, ranks + slice, shard_ranks, runs);
    set_level(&ret_levels[PLAN_BETWEEN], runs, &counts);
    if (block_ranks > 0)
        set_runs(request, &counts, ranks, group->members, block_ranks, &ret_levels[PLAN_BLOCKS]);
    free(table);
    free(counts.tree);
    return 0;
}
