/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything of a sealed job lies: bytes of each arena, and references to gradients, reduced
 * gradients and parameters, by stage and modes. A pure function of layout and options; any thread.
 *
 *                     contribution     summed over micro-steps    reduced gradient
 *   stage 0, local    GRADS            ACC (micro_steps > 1)      GRADS
 *   stage 0, shard    GRADS            ACC (micro_steps > 1)      ACC, else GRADS
 *   stage 1, local    GRADS            ACC (micro_steps > 1)      GRADS, own slices
 *   stage 1, shard    GRADS            SHARD_GRADS (m.-s. > 1)    SHARD_GRADS, else GRADS, slices
 *   stage 2-3, local  GRADS            ACC (micro_steps > 1)      SHARD_GRADS
 *   stage 2-3, shard  RING, OVERFLOW   SHARD_GRADS                SHARD_GRADS
 */
#ifndef GW_CORE_MEMORY_H
#define GW_CORE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/core.h"

#define MEMORY_FLOAT 4u /* bytes of an element */

struct memory {
    const struct layout *layout;
    const struct gw_layout_page *page;
    const struct gw_layout_bucket *buckets;
    uint32_t stage, world, micro_steps, ring_slots;
    bool local;    /* accumulate=local */
    bool ring;     /* contributions lie in slots of RING and OVERFLOW */
    bool mapped;   /* stage 3, gather=mapped */
    bool acc;      /* ACC exists */
    bool in_place; /* the reduced gradient lies in GRADS */
    uint64_t gather_bytes, prefetch_bytes; /* stage 3 */
};

/* The layout stays the caller's and must outlive `memory`. options: defaults filled in. */
void memory_init(struct memory *memory, const struct layout *layout,
                 const struct wire_seal *options, uint32_t world);
/* Bytes of an arena (one of them, where several exist); 0: there is none. rank -1: of the job. */
uint64_t memory_arena_bytes(const struct memory *memory, enum gw_arena_kind kind, int rank);

/* What a kind is counted as; GW_MEMORIES: as nothing (staging, registered buffers). */
enum gw_memory memory_use(enum gw_arena_kind kind);

/* Elements of one rank's slice of bucket b, padding included (stage 0 too). */
uint64_t memory_slice_numel(const struct memory *memory, uint32_t bucket);
/* Start of bucket b in rank r's GRADS or ACC. */
struct core_ref memory_flat(const struct memory *memory, enum gw_arena_kind kind, uint32_t bucket,
                            uint32_t rank);
/* Start of a ring slot; slots from ring_slots on are overflow arenas. */
struct core_ref memory_slot(const struct memory *memory, uint32_t slot, uint32_t rank);
/* Where rank r's reduced gradient of bucket b lies: its slice; stage 0: the whole bucket. */
struct core_ref memory_reduced(const struct memory *memory, uint32_t bucket, uint32_t rank);
/* Elements there. */
uint64_t memory_reduced_numel(const struct memory *memory, uint32_t bucket);
/* core_param_slice and core_param_ref of core.h. */
struct core_ref memory_param_slice(const struct memory *memory, uint32_t bucket, uint32_t rank);
struct core_ref memory_param_ref(const struct memory *memory, uint32_t param, uint64_t offset,
                                 uint32_t *ret_owner, uint64_t *ret_count);

#endif
