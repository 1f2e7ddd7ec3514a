/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an engine's threads and its ranks' memory go on a node: the policy, without a system call.
 * Pure; any thread.
 *
 *   processors   those that the job's ranks on this node may use, all together, as far as gradwired
 *                lets the engine use them
 *   workers      bound to the processors of a NUMA node, not to one, so that they can step aside
 *                for training; where all lie in one node, bound to nothing more
 *   memory       of a rank on the NUMA node where most of its processors are. A rank that several
 *                nodes suit (it is bound to none) gets the one that its place among the ranks says,
 *                so that memory, and what it can move, is spread over all of them
 */
#ifndef GW_BASE_PLACEMENT_H
#define GW_BASE_PLACEMENT_H

#include "daemon/base/ranks.h"
#include "daemon/base/topology.h"

#define PLACEMENT_WORKERS_MAX 15u /* of a NUMA node: fewer use all its bandwidth already */

struct placement {
    struct cpus cpus; /* of all threads */
    uint32_t count;   /* NUMA nodes that they are on, at least 1 */
    struct placement_node {
        uint32_t number;
        uint32_t workers; /* beside the thread that they help */
        struct cpus cpus;
    } node[TOPOLOGY_NODES_MAX];
    uint8_t rank_node[GW_RANKS_MAX]; /* index into node; 0 of ranks elsewhere */
};

/* own: what this process may use; of[rank]: what the rank may, no processor: not known. */
void placement_make(const struct topology *topology, const struct cpus *own,
                    const struct ranks *ranks, const struct cpus of[GW_RANKS_MAX],
                    struct placement *ret_placement);
/* Where memory goes, as a set of the kernel's numbers: of a rank, or (no rank: GW_RANKS_MAX and
 * above) of all, spread. 0: anywhere. */
uint64_t placement_memory(const struct placement *placement, uint32_t rank);

#endif
