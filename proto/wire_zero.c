/* SPDX-License-Identifier: Apache-2.0 */
/* Fields and bounds of the ZeRO layer's messages. Pure. */
#include "proto/wire_fields.h"

#define MSG struct wire_msg

/* ---- set-up ---------------------------------------------------------------------------------- */

static const struct wire_field param[] = {
    WIRE_TEXT_AT(Param, struct wire_param, , name, 1, GW_NAME_MAX),
    WIRE_U64(Param, struct wire_param, , numel, UINT64_MAX),
    WIRE_TEXT_AT(Param, struct wire_param, , unit, 0, GW_NAME_MAX),
    WIRE_U32(Param, struct wire_param, , flags, 0, UINT32_MAX),
    WIRE_U32(Param, struct wire_param, , dtype, 0, GW_DTYPES - 1),
    WIRE_U32(Param, struct wire_param, , grad_dtype, 0, GW_DTYPES - 1),
    WIRE_U32(Param, struct wire_param, , group, 0, GW_GROUPS_MAX - 1),
};
static WIRE_TABLE(table_param, param, param, struct wire_param, NULL);

static const struct wire_field reg[] = {
    WIRE_U32(Register, MSG, u.reg., first, 0, GW_PARAMS_MAX - 1),
    WIRE_U32(Register, MSG, u.reg., total, 1, GW_PARAMS_MAX),
    WIRE_LIST(WIRE_F_ENTRIES, Register, MSG, u.reg., params, offsetof(MSG, u.reg.count), false, 1,
              GW_PARAMS_PER_FRAME, &table_param),
};

static int check_register(const void *checked)
{
    const struct wire_msg *msg = checked;

    return msg->u.reg.first + msg->u.reg.count > msg->u.reg.total ? GW_E_INVALID : 0;
}

WIRE_MESSAGE(register, reg, check_register);

static const struct wire_field param_group[] = {
    WIRE_LIST(WIRE_F_U32S_AT, ParamGroup, MSG, u.param_group., ranks,
              offsetof(MSG, u.param_group.count), false, 1, GW_RANKS_MAX, NULL),
    WIRE_U32(ParamGroup, MSG, u.param_group., shard_ranks, 0, GW_RANKS_MAX),
};

static int check_param_group(const void *checked)
{
    const struct wire_msg *msg = checked;

    for (uint32_t i = 0; i < msg->u.param_group.count; i++) {
        if (msg->u.param_group.ranks[i] >= GW_RANKS_MAX)
            return GW_E_INVALID;
    }
    return 0;
}

WIRE_MESSAGE(param_group, param_group, check_param_group);

static const struct wire_field seal[] = {
    WIRE_U32(Seal, MSG, u.seal., stage, 0, 3),
    WIRE_U32(Seal, MSG, u.seal., accumulate, 0, GW_ACCUMULATE_SHARD),
    WIRE_U32(Seal, MSG, u.seal., gather, 0, GW_GATHER_MAPPED),
    WIRE_U32(Seal, MSG, u.seal., unused, 0, GW_UNUSED_ERROR),
    WIRE_U32(Seal, MSG, u.seal., overlap_off, 0, 1),
    WIRE_U32(Seal, MSG, u.seal., ring_slots, 0, GW_RING_SLOTS_MAX),
    WIRE_U32(Seal, MSG, u.seal., micro_steps, 0, UINT32_MAX),
    WIRE_U32(Seal, MSG, u.seal., shard_align_bytes, 0, 4096),
    WIRE_U64(Seal, MSG, u.seal., bucket_bytes, UINT64_MAX),
    WIRE_DOUBLE(Seal, MSG, u.seal., scale),
    WIRE_DOUBLE(Seal, MSG, u.seal., clip_norm),
    WIRE_U64(Seal, MSG, u.seal., gather_bytes, UINT64_MAX),
    WIRE_U64(Seal, MSG, u.seal., prefetch_bytes, UINT64_MAX),
    WIRE_U32(Seal, MSG, u.seal., order, 0, GW_ORDER_FABRIC),
    WIRE_U32(Seal, MSG, u.seal., norm, 0, GW_NORM_MAX),
    WIRE_DOUBLE(Seal, MSG, u.seal., pre_scale),
    WIRE_U32(Seal, MSG, u.seal., reduce_dtype, 0, GW_DTYPES - 1),
    WIRE_U32(Seal, MSG, u.seal., accum_as_grads, 0, 1),
    WIRE_U32(Seal, MSG, u.seal., shard_ranks, 0, GW_RANKS_MAX),
    WIRE_U64(Seal, MSG, u.seal., persist_bytes, UINT64_MAX),
    WIRE_U64(Seal, MSG, u.seal., reuse_bytes, UINT64_MAX),
    WIRE_U32(Seal, MSG, u.seal., secondary_ranks, 0, GW_RANKS_MAX),
    WIRE_U32(Seal, MSG, u.seal., all_reduce, 0, 1),
};

/* shard_align_bytes: 0 (default) or a power of 2 that holds an fp32. */
static int check_seal(const void *checked)
{
    const struct wire_msg *msg = checked;
    const uint32_t align = msg->u.seal.shard_align_bytes;

    if (align != 0 && (align < 4 || (align & (align - 1)) != 0))
        return GW_E_INVALID;
    return msg->u.seal.clip_norm < 0 ? GW_E_INVALID : 0;
}

WIRE_MESSAGE(seal, seal, check_seal);

static const struct wire_field sealed[] = {
    WIRE_BYTES_EXACT(Sealed, MSG, u.sealed., layout_hash),
    WIRE_U64(Sealed, MSG, u.sealed., layout_bytes, UINT64_MAX),
    WIRE_U64(Sealed, MSG, u.sealed., board_bytes, UINT64_MAX),
    WIRE_U64(Sealed, MSG, u.sealed., steps, UINT64_MAX),
};
WIRE_MESSAGE(sealed, sealed, NULL);

static const struct wire_field arena_get[] = {
    WIRE_U32(ArenaGet, MSG, u.arena_get., kind, GW_ARENA_PARAMS, GW_ARENA_SECONDARY - 1),
    WIRE_U32(ArenaGet, MSG, u.arena_get., index, 0, UINT32_MAX),
};
WIRE_MESSAGE(arena_get, arena_get, NULL);

static const struct wire_field arena[] = {
    WIRE_U64(Arena, MSG, u.arena., bytes, UINT64_MAX),
    WIRE_U64(Arena, MSG, u.arena., mapped_bytes, UINT64_MAX),
    WIRE_U32(Arena, MSG, u.arena., device, 0, GW_DEVICE_KINDS - 1),
};
WIRE_MESSAGE(arena, arena, NULL);

static const struct wire_field array_get[] = {
    WIRE_TEXT(ArrayGet, MSG, u.array_get., name, 1),
    WIRE_U32(ArrayGet, MSG, u.array_get., dtype, 0, GW_DTYPES - 1),
};
WIRE_MESSAGE(array_get, array_get, NULL);

static const struct wire_field array_made[] = {
    WIRE_U32(ArrayMade, MSG, u.array_made., index, 0, GW_ARRAYS_MAX - 1),
    WIRE_U64(ArrayMade, MSG, u.array_made., numel, UINT64_MAX),
};
WIRE_MESSAGE(array_made, array_made, NULL);

static const struct wire_field param_io[] = {
    WIRE_U32(ParamIo, MSG, u.param_io., write, 0, 1),
    WIRE_U32(ParamIo, MSG, u.param_io., param, 0, UINT32_MAX),
    WIRE_U64(ParamIo, MSG, u.param_io., offset, UINT64_MAX),
    WIRE_U64(ParamIo, MSG, u.param_io., count, GW_STAGING_BYTES / 4),
};
WIRE_MESSAGE(param_io, param_io, NULL);

static const struct wire_field freeze[] = {
    {.kind = WIRE_F_BYTES_AT,
     .from = offsetof(Gradwire__V1__Freeze, params),
     .at = offsetof(MSG, u.freeze.params),
     .count_at = offsetof(MSG, u.freeze.bytes),
     .min = 1,
     .max = GW_FREEZE_PARAMS_MAX / 8},
};
WIRE_MESSAGE(freeze, freeze, NULL);

/* ---- a step ---------------------------------------------------------------------------------- */

/* A slot of the ring, an overflow slot, or none. */
static bool slot_good(uint32_t slot)
{
    return slot < GW_RING_SLOTS_MAX + GW_OVERFLOW_MAX || slot == GW_NO_SLOT;
}

static const struct wire_field ready_entry[] = {
    WIRE_U32(ReadyEntry, struct wire_ready_entry, , param, 0, GW_PARAMS_MAX - 1),
    WIRE_U32(ReadyEntry, struct wire_ready_entry, , piece, 0, UINT32_MAX),
    WIRE_U32(ReadyEntry, struct wire_ready_entry, , flags, 0, GW_GRAD_ACCUMULATE | GW_GRAD_RUNNING),
    WIRE_U32(ReadyEntry, struct wire_ready_entry, , slot, 0, UINT32_MAX),
    WIRE_LIST(WIRE_F_U32S, ReadyEntry, struct wire_ready_entry, , timeline,
              offsetof(struct wire_ready_entry, tokens), false, 0, GW_READY_TOKENS, NULL),
    WIRE_LIST(WIRE_F_U64S, ReadyEntry, struct wire_ready_entry, , value,
              offsetof(struct wire_ready_entry, tokens), true, 0, GW_READY_TOKENS, NULL),
};

static int check_ready_entry(const void *checked)
{
    const struct wire_ready_entry *entry = checked;

    if (entry->tokens > GW_READY_TOKENS)
        return GW_E_LIMIT;
    for (uint32_t i = 0; i < entry->tokens; i++) {
        if (entry->timeline[i] >= GW_TIMELINES_MAX)
            return GW_E_INVALID;
    }
    return slot_good(entry->slot) ? 0 : GW_E_INVALID;
}

static WIRE_TABLE(table_ready_entry, ready_entry, ready_entry, struct wire_ready_entry,
                  check_ready_entry);

static const struct wire_field ready[] = {
    WIRE_LIST(WIRE_F_ENTRIES, Ready, MSG, u.ready., entries, offsetof(MSG, u.ready.count), false, 1,
              GW_READY_PER_FRAME, &table_ready_entry),
};
WIRE_MESSAGE(ready, ready, NULL);

static const struct wire_field acquire[] = {
    WIRE_U32(Acquire, MSG, u.acquire., bucket, 0, UINT32_MAX),
    WIRE_U32(Acquire, MSG, u.acquire., ordered, 0, 1),
};
WIRE_MESSAGE(acquire, acquire, NULL);

static const struct wire_field acquired[] = {
    WIRE_U32(Acquired, MSG, u.acquired., slot, 0, UINT32_MAX),
    WIRE_U32(Acquired, MSG, u.acquired., launched, 0, 1),
};

static int check_acquired(const void *checked)
{
    const struct wire_msg *msg = checked;

    if (msg->u.acquired.launched && msg->u.acquired.slot == GW_NO_SLOT)
        return GW_E_INVALID;
    return slot_good(msg->u.acquired.slot) ? 0 : GW_E_INVALID;
}

WIRE_MESSAGE(acquired, acquired, check_acquired);

static int check_unit(const void *checked)
{
    const struct wire_msg *msg = checked;

    return wire_check_after(&msg->u.unit.after);
}

static const struct wire_field fetch[] = {
    WIRE_U32(Fetch, MSG, u.unit., unit, 0, UINT32_MAX),
    WIRE_AFTER(Fetch, u.unit.after.),
};
WIRE_MESSAGE(fetch, fetch, check_unit);

static const struct wire_field release[] = {
    WIRE_U32(Release, MSG, u.unit., unit, 0, UINT32_MAX),
    WIRE_AFTER(Release, u.unit.after.),
};
WIRE_MESSAGE(release, release, check_unit);

static int check_only_after(const void *checked)
{
    const struct wire_msg *msg = checked;

    return wire_check_after(&msg->u.after);
}

static const struct wire_field micro_end[] = {WIRE_AFTER(MicroEnd, u.after.)};
WIRE_MESSAGE(micro_end, micro_end, check_only_after);
static const struct wire_field step_end[] = {WIRE_AFTER(StepEnd, u.after.)};
WIRE_MESSAGE(step_end, step_end, check_only_after);
static const struct wire_field update_commit[] = {WIRE_AFTER(UpdateCommit, u.after.)};
WIRE_MESSAGE(update_commit, update_commit, check_only_after);
WIRE_MESSAGE_EMPTY(update_begin);
WIRE_MESSAGE_EMPTY(measure);
