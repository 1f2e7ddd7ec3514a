/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of placement.h. Pure; any thread. */
#include "daemon/base/placement.h"

/* Where ranks and engine have none in common, the engine's: it runs there. */
static struct cpus allowed(const struct cpus *own, const struct ranks *ranks,
                           const struct cpus of[GW_RANKS_MAX])
{
    struct cpus wanted = {{0}};

    for (uint32_t rank = 0; rank < GW_RANKS_MAX; rank++) {
        if (!ranks_has(ranks, rank))
            continue;
        if (cpus_count(&of[rank]) == 0)
            return *own;
        wanted = cpus_or(&wanted, &of[rank]);
    }
    wanted = cpus_and(&wanted, own);
    return cpus_count(&wanted) > 0 ? wanted : *own;
}

static void find_nodes(const struct topology *topology, struct placement *placement)
{
    for (uint32_t i = 0; i < topology->count; i++) {
        struct cpus cpus = cpus_and(&topology->node[i].cpus, &placement->cpus);
        if (cpus_count(&cpus) > 0)
            placement->node[placement->count++] =
                (struct placement_node){.number = topology->node[i].number, .cpus = cpus};
    }
    if (placement->count > 1)
        return;
    placement->count = 1;
    placement->node[0].cpus = placement->cpus;
}

/* The thread that they help takes part on the first. */
static void count_workers(struct placement *placement)
{
    for (uint32_t i = 0; i < placement->count; i++) {
        uint32_t workers = cpus_count(&placement->node[i].cpus);
        if (i == 0 && workers > 0)
            workers--;
        placement->node[i].workers =
            workers < PLACEMENT_WORKERS_MAX ? workers : PLACEMENT_WORKERS_MAX;
    }
}

static uint8_t node_of(const struct placement *placement, const struct cpus *cpus, uint32_t index,
                       uint32_t ranks)
{
    uint32_t most = 0, ties = 0;
    uint8_t tied[TOPOLOGY_NODES_MAX];

    for (uint32_t i = 0; i < placement->count; i++) {
        struct cpus both = cpus_and(cpus, &placement->node[i].cpus);
        uint32_t shared = cpus_count(&both);
        if (shared > most) {
            most = shared;
            ties = 0;
        }
        if (shared == most)
            tied[ties++] = (uint8_t)i;
    }
    return tied[index * ties / ranks];
}

void placement_make(const struct topology *topology, const struct cpus *own,
                    const struct ranks *ranks, const struct cpus of[GW_RANKS_MAX],
                    struct placement *ret_placement)
{
    struct placement placement = {.cpus = allowed(own, ranks, of)};
    uint32_t count = ranks_count(ranks), index = 0;

    find_nodes(topology, &placement);
    count_workers(&placement);
    for (uint32_t rank = 0; rank < GW_RANKS_MAX; rank++)
        if (ranks_has(ranks, rank))
            placement.rank_node[rank] = node_of(&placement, &of[rank], index++, count);
    *ret_placement = placement;
}

uint64_t placement_memory(const struct placement *placement, uint32_t rank)
{
    uint64_t nodes = 0;

    if (placement->count == 1)
        return 0;
    if (rank < GW_RANKS_MAX)
        return UINT64_C(1) << placement->node[placement->rank_node[rank]].number;
    for (uint32_t i = 0; i < placement->count; i++)
        nodes |= UINT64_C(1) << placement->node[i].number;
    return nodes;
}
