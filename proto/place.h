/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything of a sealed job lies: bytes of each arena of a rank, and byte offsets of buckets
 * in them, by stage, modes, dtypes and groups. A pure function of the layout page and the seal's
 * options, shared by engine and client so that both mean the same place. Ranks in the same groups
 * have the same places, but for the slice they own. Immutable once made; any thread.
 *
 *                     contribution     summed over micro-steps    reduced gradient
 *   stage 0, local    GRADS            ACC (micro_steps > 1)      GRADS, else ACC
 *   stage 0, shard    GRADS            ACC (micro_steps > 1)      ACC, else GRADS
 *   stage 1, local    GRADS            ACC (micro_steps > 1)      GRADS, slices; else SHARD_GRADS
 *   stage 1, shard    GRADS            SHARD_GRADS (m.-s. > 1)    SHARD_GRADS, else GRADS, slices
 *   stage 2-3, local  GRADS            ACC (micro_steps > 1)      SHARD_GRADS
 *   stage 2-3, shard  RING, OVERFLOW   SHARD_GRADS                SHARD_GRADS
 *
 * The reduced gradient lies in GRADS only in buckets whose accumulators have the gradients' dtype.
 * GRADS, RING and OVERFLOW have a bucket's gradient dtype, ACC and SHARD_GRADS its accumulators'
 * (accum_dtype), PARAMS, SHARED_PARAMS, POOL and SECONDARY its parameters'; MASTER is fp32 and has
 * the rank's spans of buckets whose parameters are not. Offsets of buckets are multiples of
 * shard_align_bytes.
 */
#ifndef GW_PROTO_PLACE_H
#define GW_PROTO_PLACE_H

#include "proto/layout_page.h"
#include "proto/wire.h"

struct place;

struct place_ref {
    uint8_t kind;  /* enum gw_arena_kind; NONE: the rank has no such thing */
    uint8_t dtype; /* enum gw_dtype of what lies there */
    uint32_t index;
    uint64_t offset_bytes;
};

/* Groups that a rank is in: a bit per group. */
uint64_t place_groups_of(const struct gw_layout_page *page, uint32_t rank);
/* For ranks in these groups. The page stays the caller's and must outlive the place. options:
 * defaults filled in, gather_bytes but for the POOL's size (place_fetch_bytes tells what they
 * need). GW_E_NOMEM. */
int place_new(const struct gw_layout_page *page, const struct wire_seal *options, uint64_t groups,
              struct place **ret_place);
struct place *place_free(struct place *place);

/* ---- modes ----------------------------------------------------------------------------------- */

bool place_local(const struct place *place);  /* accumulate=local */
bool place_ring(const struct place *place);   /* contributions lie in slots of RING and OVERFLOW */
bool place_mapped(const struct place *place); /* stage 3, gather=mapped */
/* Sums over micro-steps lie in the bucket's ACC, and are what is reduced in the end. */
bool place_sums(const struct place *place, uint32_t bucket);
/* The reduced gradient of the bucket lies in GRADS. */
bool place_in_place(const struct place *place, uint32_t bucket);

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Bytes of an arena (one of them, where several exist); 0: there is none. ARRAY: of a dtype of one
 * byte, so times the array's own. SHARED_PARAMS: the job's. */
uint64_t place_arena_bytes(const struct place *place, enum gw_arena_kind kind);
/* Elements of one slice of the bucket, padding included (stage 0 too). */
uint64_t place_slice_numel(const struct place *place, uint32_t bucket);
/* Elements of the rank's span: the slice; stage 0: the whole bucket; 0: it is in none. */
uint64_t place_span_numel(const struct place *place, uint32_t bucket);
/* Elements before the bucket's span in shard arrays, and of all spans. */
uint64_t place_span_offset(const struct place *place, uint32_t bucket);
uint64_t place_shard_numel(const struct place *place);
/* Stage 3: bytes of a fetch unit's buckets as the rank gathers them; the largest of all fetch units
 * but the persistent one. */
uint64_t place_fetch_bytes(const struct place *place, uint32_t fetch_unit);
uint64_t place_fetch_bytes_max(const struct place *place);
/* Stage 3: bytes for gathered fetch units but the persistent one: gather_bytes + the largest, never
 * more than all. The POOL has them behind the persistent ones; mapped: planned with, not made. */
uint64_t place_pool_bytes(const struct place *place);

/* ---- places ---------------------------------------------------------------------------------- */

/* The whole bucket: the rank's contribution, its sum over micro-steps. */
struct place_ref place_grads(const struct place *place, uint32_t bucket);
struct place_ref place_acc(const struct place *place, uint32_t bucket);
/* A ring slot; from ring_slots on they are overflow arenas. dtype: fp32, meaningless. */
struct place_ref place_slot(const struct place *place, uint32_t slot);
/* Reduced gradient of slice `slice` (stage 0: the whole bucket). */
struct place_ref place_reduced(const struct place *place, uint32_t bucket, uint32_t slice);
/* Stages 0-2 and mapped: the whole bucket's parameters. */
struct place_ref place_params(const struct place *place, uint32_t bucket);
/* The rank's own parameters (slice `slice`; stage 0: whole bucket), as gathered ... */
struct place_ref place_shard(const struct place *place, uint32_t bucket, uint32_t slice);
/* ... and as updated: in MASTER, or for fp32 parameters the same as place_shard. */
struct place_ref place_master(const struct place *place, uint32_t bucket, uint32_t slice);
/* Stage 3 private: the bucket's bytes behind the start of its gathered fetch unit. The persistent
 * fetch unit is gathered to the POOL's start, others behind it. */
uint64_t place_gathered(const struct place *place, uint32_t bucket);
/* Its secondary shard of the bucket's parameters: 1 of secondary_ranks equal slices. NONE: there is
 * none, of persistent parameters and of groups but the first. */
struct place_ref place_secondary(const struct place *place, uint32_t bucket);

#endif
