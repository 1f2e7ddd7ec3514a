/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one rank's collective op may say: its group, count, buffers and forms in place. Pure; the
 * core's thread. Reads the job, changes nothing.
 */
#include "daemon/core/core_internal.h"

#include <math.h>

/* Elements of send and recv, in counts (1) or in counts of every member (2). */
static const struct op_row {
    const char *name;
    uint8_t send, recv;
    bool reduces; /* scale counts */
} op_rows[] = {
    [WIRE_OP_REDUCE_SCATTER] = {"reduce_scatter", 2, 1, true},
    [WIRE_OP_ALL_GATHER] = {"all_gather", 1, 2, false},
    [WIRE_OP_ALL_REDUCE] = {"all_reduce", 1, 1, true},
    [WIRE_OP_BROADCAST] = {"broadcast", 1, 1, false},
    [WIRE_OP_BARRIER] = {"barrier", 0, 0, false},
};

float lane_scale(const struct wire_op *op)
{
    return (float)(op->scale * op->pre_scale);
}

void lane_describe(const struct wire_op *op, struct text *text)
{
    text_add(text, "%s ", op_rows[op->kind].name);
    core_add_name(text, op->name);
    if (op->kind == WIRE_OP_BARRIER)
        return;
    text_add(text, " %llu elements", (unsigned long long)op->count);
    if (op->dtype != GW_DTYPE_FP32)
        text_add(text, " %s", core_dtype_name(op->dtype));
    if (op_rows[op->kind].reduces)
        text_add(text, " scale %.9g%s", (double)lane_scale(op),
                 op->order == GW_ORDER_FABRIC ? " order fabric" : "");
    if (op->kind == WIRE_OP_BROADCAST)
        text_add(text, " root %u", op->root);
}

/* The rank's place in the group; UINT32_MAX: not a member. */
static uint32_t member_index(const struct core_group *group, uint32_t rank)
{
    for (uint32_t i = 0; i < group->count; i++) {
        if (group->ranks[i] == rank)
            return i;
    }
    return UINT32_MAX;
}

static int check_group(const struct core *core, uint32_t rank, const struct wire_op *op,
                       struct text *text)
{
    const struct core_group *group = &core->groups[op->group < core->group_count ? op->group : 0];
    struct ranks gone;

    if (op->group >= core->group_count) {
        text_add(text, "there is no group %u: make it with gw_group_new", op->group);
        return GW_E_NOT_FOUND;
    }
    if (member_index(group, rank) == UINT32_MAX) {
        text_add(text, "it is not a member of group %u", op->group);
        return GW_E_INVALID;
    }
    if (op->kind == WIRE_OP_BROADCAST && member_index(group, op->root) == UINT32_MAX) {
        text_add(text, "root %u is not a member of group %u", op->root, op->group);
        return GW_E_INVALID;
    }
    gone = ranks_and(&group->members, &core->left);
    if (ranks_any(&gone)) {
        text_add(text, "group %u needs ranks that have left the job: ", op->group);
        text_add_ranks(text, &gone);
        return GW_E_PEER_LOST;
    }
    return 0;
}

/* One side's elements lie in its buffer. */
static int check_slice(const struct core *core, uint32_t rank, const struct wire_op *op, bool send,
                       uint64_t numel, struct text *text)
{
    const char *side = send ? "send" : "recv";
    uint32_t id = send ? op->send_buffer : op->recv_buffer;
    uint64_t offset = send ? op->send_offset : op->recv_offset;
    const struct lane_buffer *buffer = lane_find_buffer(core, rank, id);
    uint64_t holds = buffer ? buffer->bytes / gw_dtype_bytes(op->dtype) : 0;

    if (!buffer) {
        text_add(text, "%s names buffer %u, which is not registered", side, id);
        return GW_E_NOT_FOUND;
    }
    if (offset > holds || numel > holds - offset) {
        text_add(text, "%s needs %llu elements from %llu on, but buffer %u holds %llu", side,
                 (unsigned long long)numel, (unsigned long long)offset, id,
                 (unsigned long long)holds);
        return GW_E_INVALID;
    }
    return 0;
}

/* In place: the rank's own slice, or exactly the same memory; nothing else may overlap. */
static int check_overlap(const struct wire_op *op, uint32_t index, uint64_t send_numel,
                         uint64_t recv_numel, struct text *text)
{
    uint64_t send = op->send_offset, recv = op->recv_offset;
    bool fits;

    if (op->send_buffer != op->recv_buffer || send + send_numel <= recv ||
        recv + recv_numel <= send)
        return 0;
    if (op->kind == WIRE_OP_REDUCE_SCATTER)
        fits = recv == send + index * op->count;
    else if (op->kind == WIRE_OP_ALL_GATHER)
        fits = send == recv + index * op->count;
    else
        fits = send == recv;
    if (fits)
        return 0;
    text_add(text, "send (from %llu) and recv (from %llu) overlap in buffer %u, but are not %s",
             (unsigned long long)send, (unsigned long long)recv, op->send_buffer,
             send_numel == recv_numel ? "the same" : "the rank's own slice");
    return GW_E_INVALID;
}

static int check_memory(const struct core *core, uint32_t rank, const struct wire_op *op,
                        struct text *text)
{
    const struct core_group *group = &core->groups[op->group];
    const struct op_row *row = &op_rows[op->kind];
    uint64_t send, recv;
    int r;

    if (op->count == 0) {
        text_add(text, "a collective of 0 elements is not allowed");
        return GW_E_INVALID;
    }
    if (op->count > UINT64_MAX / sizeof(float) / GW_RANKS_MAX) {
        text_add(text, "%llu elements are too many", (unsigned long long)op->count);
        return GW_E_INVALID;
    }
    send = row->send == 2 ? op->count * group->count : op->count;
    recv = row->recv == 2 ? op->count * group->count : op->count;
    r = check_slice(core, rank, op, true, send, text);
    if (r == 0)
        r = check_slice(core, rank, op, false, recv, text);
    if (r == 0)
        r = check_overlap(op, member_index(group, rank), send, recv, text);
    return r;
}

/* Of a kind that there is. */
static int check_op(const struct core *core, uint32_t rank, const struct wire_op *op,
                    struct text *text)
{
    int r = check_group(core, rank, op, text);

    if (r == 0 && op->dtype >= GW_DTYPES) {
        text_add(text, "there is no dtype %u", op->dtype);
        r = GW_E_INVALID;
    }
    if (r == 0 && !isfinite(lane_scale(op))) {
        text_add(text, "scale %g is not a finite fp32 value", op->scale * op->pre_scale);
        r = GW_E_INVALID;
    }
    if (r == 0 && op->after.tokens > GW_READY_TOKENS) {
        text_add(text, "it waits for %u tokens, of %u at most", op->after.tokens, GW_READY_TOKENS);
        r = GW_E_INVALID;
    }
    if (r == 0 && op->order != GW_ORDER_EXACT && core->config.device == GW_DEVICE_HOST) {
        text_add(text, "order fabric is for GPUs; in host memory sums are always exact");
        r = GW_E_INVALID;
    }
    if (r == 0 && op->kind != WIRE_OP_BARRIER)
        r = check_memory(core, rank, op, text);
    return r;
}

/* An op that is sound is not put into words: that takes longer than to check it. */
int lane_check(const struct core *core, uint32_t rank, const struct wire_op *op,
               struct text *text)
{
    char line[GW_TEXT_MAX + 1];
    struct text why = TEXT(line);
    int r;

    if (op->kind < WIRE_OP_REDUCE_SCATTER || op->kind > WIRE_OP_BARRIER) {
        text_add(text, "there is no collective of kind %u", op->kind);
        return GW_E_INVALID;
    }
    r = check_op(core, rank, op, &why);
    if (r < 0) {
        lane_describe(op, text);
        text_add(text, ": %s", line);
    }
    return r;
}
