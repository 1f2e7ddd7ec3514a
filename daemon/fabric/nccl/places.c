/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are on this node, and what that makes of an op. Loop and issuing threads; the table
 * of nodes is complete before the first op. */
#include "daemon/fabric/nccl/nccl.h"

bool nccl_is_here(const struct nccl_fabric *fabric, uint32_t rank)
{
    const struct fabric_nodes *nodes = fabric->config.nodes;

    return !nodes || nodes->of_rank[rank] == nodes->own;
}

bool nccl_crosses(const struct nccl_fabric *fabric, const struct core_op *op)
{
    const struct fabric_nodes *nodes = fabric->config.nodes;

    for (uint32_t i = 1; nodes && i < op->world; i++)
        if (nodes->of_rank[op->members[i]] != nodes->of_rank[op->members[0]])
            return true;
    return nodes && op->kind == CORE_OP_GATHER && op->world > 0 &&
           nodes->of_rank[op->rank] != nodes->of_rank[op->members[0]];
}

uint64_t nccl_parts_here(const struct nccl_fabric *fabric, const struct core_op *op)
{
    bool asked = op->kind == CORE_OP_GATHER || op->kind == CORE_OP_FILL;
    bool owners = asked && !nccl_is_here(fabric, op->rank);
    uint64_t ranks = figures_ranks(op).word[0], here = 0;

    for (uint32_t i = 0; owners && i < op->world; i++)
        ranks |= 1ull << op->members[i];
    for (uint32_t rank = 0; rank < fabric->config.world; rank++)
        here |= (uint64_t)nccl_is_here(fabric, rank) << rank;
    return ranks & here;
}

uint32_t nccl_first_here(const struct nccl_fabric *fabric, const uint32_t *ranks, uint32_t count)
{
    uint32_t i = 0;

    while (i < count && !nccl_is_here(fabric, ranks[i]))
        i++;
    return i < count ? ranks[i] : UINT32_MAX;
}
