/* SPDX-License-Identifier: Apache-2.0 */
/* The job's memory: plain arrays by (kind, rank, index), sized as the core says. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world/internal.h"

static struct sim_arena *find(const struct sim *sim, uint32_t kind, int rank, uint32_t index)
{
    for (struct sim_arena *arena = sim->arenas; arena; arena = arena->next) {
        if (arena->kind == kind && arena->rank == rank && arena->index == index)
            return arena;
    }
    return NULL;
}

int memory_add(struct sim *sim, enum gw_arena_kind kind, int rank, uint32_t index, uint64_t bytes)
{
    struct sim_arena *arena = calloc(1, sizeof(*arena));

    if (!arena)
        return GW_E_NOMEM;
    *arena = (struct sim_arena){sim->arenas, kind, rank, index, bytes, calloc(1, bytes)};
    if (!arena->data) {
        free(arena);
        return GW_E_NOMEM;
    }
    sim->arenas = arena;
    return 0;
}

/* As CORE_EFF_BUILD asks: what is there with the right size stays; scratch is zeroed. */
static void build_one(struct sim *sim, enum gw_arena_kind kind, int rank)
{
    uint64_t bytes = core_arena_bytes(sim->core, kind, rank);
    struct sim_arena *arena = find(sim, kind, rank, 0);

    if (!bytes)
        return;
    if (!arena) {
        memory_add(sim, kind, rank, 0, bytes);
        return;
    }
    if (arena->bytes != bytes) {
        sim_fail(sim, "arena %d of rank %d: %lu bytes before, %lu now", (int)kind, rank,
                 (unsigned long)arena->bytes, (unsigned long)bytes);
        return;
    }
    if (kind == GW_ARENA_GRADS || kind == GW_ARENA_ACC || kind == GW_ARENA_RING ||
        kind == GW_ARENA_POOL)
        memset(arena->data, 0, bytes);
}

/* Of a whole parameter: runs are short and many, and all of it is zeroed each time. */
static uint64_t staging_bytes(const struct sim_plan *plan)
{
    uint64_t numel = 1;

    for (uint32_t p = 0; p < plan->param_count; p++)
        numel = plan->params[p].numel > numel ? plan->params[p].numel : numel;
    return numel * sizeof(float);
}

void memory_build(struct sim *sim)
{
    for (int rank = -1; rank < (int)sim->plan->world; rank++) {
        for (uint32_t kind = GW_ARENA_PARAMS; kind < GW_ARENA_KINDS; kind++) {
            if (kind != GW_ARENA_OVERFLOW && kind != GW_ARENA_ARRAY && kind != GW_ARENA_BUFFER &&
                kind != GW_ARENA_STAGING)
                build_one(sim, (enum gw_arena_kind)kind, rank);
        }
        if (rank >= 0 && !find(sim, GW_ARENA_STAGING, rank, 0))
            memory_add(sim, GW_ARENA_STAGING, rank, 0, staging_bytes(sim->plan));
    }
}

void memory_free(struct sim *sim)
{
    while (sim->arenas) {
        struct sim_arena *next = sim->arenas->next;

        free(sim->arenas->data);
        free(sim->arenas);
        sim->arenas = next;
    }
}

void *memory_at(struct sim *sim, const struct core_ref *ref, uint64_t numel, uint32_t dtype)
{
    uint64_t bytes = numel * gw_dtype_bytes(dtype);
    const struct sim_arena *arena;

    if (ref->kind == GW_ARENA_NONE)
        return NULL;
    arena = find(sim, ref->kind, ref->rank, ref->index);
    if (!arena || ref->offset_bytes % gw_dtype_bytes(dtype) || ref->offset_bytes > arena->bytes ||
        bytes > arena->bytes - ref->offset_bytes) {
        sim_fail(sim, "no memory: kind %u rank %d index %u offset %lu bytes %lu (arena: %lu)",
                 ref->kind, ref->rank, ref->index, (unsigned long)ref->offset_bytes,
                 (unsigned long)bytes, arena ? (unsigned long)arena->bytes : 0ul);
        return NULL;
    }
    return (char *)arena->data + ref->offset_bytes;
}

struct core_ref memory_ref(const struct sim_client *client, struct place_ref at)
{
    return (struct core_ref){
        at.kind, (int16_t)(at.kind == GW_ARENA_SHARED_PARAMS ? -1 : (int)client->rank), at.index,
        at.offset_bytes};
}

/* One stretch of a rank's masters or of what is gathered. Elements; 0: sim_fail. */
static uint64_t io_part(struct sim *sim, const struct core_effect *effect, bool masters,
                        uint32_t rank, uint64_t done, float *staging)
{
    uint32_t dtype = masters ? GW_DTYPE_FP32 : sim->plan->params[effect->io.param].dtype;
    uint64_t count = 0, offset = effect->io.offset + done;
    struct core_ref ref =
        masters ? core_master_ref(sim->core, effect->io.param, offset, rank, &count)
                : core_param_ref(sim->core, effect->io.param, offset, rank, &count);
    void *at;

    if (count > effect->io.count - done)
        count = effect->io.count - done;
    at = memory_at(sim, &ref, count, dtype);
    if (!count)
        sim_fail(sim, "param_io: nowhere");
    for (uint64_t i = 0; i < count && at; i++) {
        if (effect->io.write)
            sim_store(at, dtype, i, staging[done + i]);
        else
            staging[done + i] = sim_load(at, dtype, i);
    }
    return count;
}

/* Between a rank's staging and the parameters: written are all masters and all copies of them,
 * read is a master. */
void memory_param_io(struct sim *sim, const struct core_effect *effect)
{
    const struct core_ref staging_ref = {GW_ARENA_STAGING, (int16_t)effect->rank, 0, 0};
    float *staging = memory_at(sim, &staging_ref, effect->io.count, GW_DTYPE_FP32);

    for (uint32_t rank = 0; rank < sim->plan->world && staging; rank++) {
        for (uint32_t masters = 0; masters <= 1; masters++) {
            uint64_t done = 0;

            while (done < effect->io.count && !sim->failed && (masters || effect->io.write))
                done += io_part(sim, effect, masters, rank, done, staging);
        }
    }
}
