/* SPDX-License-Identifier: Apache-2.0 */
/* The table is memory.h's. Pure; any thread; touches no memory of the job. */
#include "daemon/core/memory.h"

enum gw_memory memory_use(enum gw_arena_kind kind)
{
    switch (kind) {
    case GW_ARENA_PARAMS:
    case GW_ARENA_SHARED_PARAMS:
    case GW_ARENA_SECONDARY:
        return GW_MEMORY_PARAMS;
    case GW_ARENA_GRADS:
    case GW_ARENA_ACC:
    case GW_ARENA_SHARD_GRADS:
        return GW_MEMORY_GRADIENTS;
    case GW_ARENA_RING:
    case GW_ARENA_OVERFLOW:
        return GW_MEMORY_BUCKETS;
    case GW_ARENA_POOL:
        return GW_MEMORY_GATHERED;
    case GW_ARENA_ARRAY:
    case GW_ARENA_MASTER:
        return GW_MEMORY_OPTIMIZER;
    default:
        return GW_MEMORIES;
    }
}
