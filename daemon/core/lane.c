/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the collectives layer: one ordered queue per group. The n-th op of each member must be
 * the same op; it is launched when all members have submitted it, else the job ends with both sides
 * told before a byte is summed.
 *
 *   rank's pending ops (all groups, in order) --all members agree--> flights --OP_DONE--> free
 *
 * Pure; the core's thread. What one op may say is checked in lane_op.c; lane_buffer.c has buffers.
 */
#include "daemon/core/core_internal.h"
#include "daemon/core/edges.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */

void lane_detach(struct core *core, uint32_t rank)
{
    struct lane_rank *lane = &core->ranks[rank].lane;

    free(lane->pending);
    free(lane->buffers);
    memset(lane, 0, sizeof(*lane));
}

void lane_reset(struct core *core)
{
    while (core->flights) {
        struct lane_flight *next = core->flights->next;

        free(core->flights);
        core->flights = next;
    }
    core->flights_end = &core->flights;
    for (uint32_t rank = 0; rank < core->config.world; rank++)
        lane_detach(core, rank);
}

/* ---- queues ---------------------------------------------------------------------------------- */

/* A rank's next op on a group, or NULL. */
static struct lane_op *next_op(const struct core *core, uint32_t rank, uint32_t group)
{
    const struct lane_rank *lane = &core->ranks[rank].lane;

    for (uint32_t i = 0; i < lane->pending_count; i++) {
        if (lane->pending[i].op.group == group)
            return &lane->pending[i];
    }
    return NULL;
}

static void take_op(struct core *core, uint32_t rank, struct lane_op *op)
{
    struct lane_rank *lane = &core->ranks[rank].lane;
    size_t at = (size_t)(op - lane->pending);

    lane->pending_count--;
    memmove(&lane->pending[at], &lane->pending[at + 1],
            (lane->pending_count - at) * sizeof(lane->pending[0]));
    lane->in_flight++;
}

/* The group's next op. */
static bool all_submitted(const struct core *core, uint32_t group)
{
    const struct core_group *members = &core->groups[group];
    uint32_t i = 0;

    while (i < members->count && next_op(core, members->ranks[i], group))
        i++;
    return i == members->count;
}

/* Members that have not submitted the group's next op. */
static struct ranks missing(const struct core *core, uint32_t group)
{
    struct ranks missing = {{0}};

    for (uint32_t i = 0; i < core->groups[group].count; i++) {
        if (!next_op(core, core->groups[group].ranks[i], group))
            ranks_add(&missing, core->groups[group].ranks[i]);
    }
    return missing;
}

/* ---- agreement ------------------------------------------------------------------------------- */

/* The digest: everything that must be equal (buffers and offsets are each rank's own affair). */
static bool same_op(const struct wire_op *a, const struct wire_op *b)
{
    float scale_a = lane_scale(a), scale_b = lane_scale(b);

    return a->kind == b->kind && a->count == b->count && a->root == b->root &&
           a->order == b->order && a->dtype == b->dtype &&
           memcmp(&scale_a, &scale_b, sizeof(scale_a)) == 0 && strcmp(a->name, b->name) == 0;
}

static bool agree(struct core *core, uint32_t group)
{
    const struct core_group *members = &core->groups[group];
    const struct wire_op *first = &next_op(core, members->ranks[0], group)->op;

    for (uint32_t i = 1; i < members->count; i++) {
        const struct wire_op *other = &next_op(core, members->ranks[i], group)->op;
        char line[GW_TEXT_MAX + 1];
        struct text text = TEXT(line);

        if (same_op(first, other))
            continue;
        text_add(&text, "rank %u: ", members->ranks[0]);
        lane_describe(first, &text);
        text_add(&text, "; rank %u: ", members->ranks[i]);
        lane_describe(other, &text);
        core_fail(core, GW_E_MISMATCH, members->ranks[i],
                  "op %llu of group %u differs: %s", (unsigned long long)members->launched + 1,
                  group, line);
        return false;
    }
    return true;
}

/* ---- launch ---------------------------------------------------------------------------------- */

static const struct {
    uint8_t op, traffic;
    bool send, recv, slices; /* payload counts all slices */
} launch_rows[] = {
    [WIRE_OP_REDUCE_SCATTER] = {CORE_OP_REDUCE_SCATTER, GW_KIND_REDUCE_SCATTER, true, true, true},
    [WIRE_OP_ALL_GATHER] = {CORE_OP_ALL_GATHER, GW_KIND_ALL_GATHER, true, true, true},
    [WIRE_OP_ALL_REDUCE] = {CORE_OP_ALL_REDUCE, GW_KIND_ALL_REDUCE, true, true, false},
    [WIRE_OP_BROADCAST] = {CORE_OP_BROADCAST, GW_KIND_BROADCAST, true, true, false},
    [WIRE_OP_BARRIER] = {CORE_OP_BARRIER, GW_KIND_CONTROL, false, false, false},
};

static struct core_ref buffer_ref(uint32_t rank, uint32_t buffer, uint64_t offset, uint32_t dtype)
{
    struct core_ref ref = {.kind = GW_ARENA_BUFFER, .rank = (int16_t)rank, .index = buffer,
                           .offset_bytes = offset * gw_dtype_bytes(dtype)};
    return ref;
}

/* Sizes and counts of an op that all members agree on. */
static void fill_op(struct core_op *launch, const struct wire_op *op, uint32_t members)
{
    launch->kind = launch_rows[op->kind].op;
    launch->traffic = launch_rows[op->kind].traffic;
    launch->stream = CORE_STREAM_REDUCE;
    launch->world = members;
    launch->scale = lane_scale(op);
    launch->in_dtype = launch->out_dtype = (uint8_t)op->dtype;
    launch->rank = op->root;
    launch->order = (uint8_t)op->order;
    launch->numel = op->count;
    launch->payload_bytes = op->count * gw_dtype_bytes(op->dtype);
    if (launch_rows[op->kind].slices)
        launch->payload_bytes *= members;
    if (op->kind == WIRE_OP_ALL_REDUCE) {
        launch->total_numel = op->count;
        launch->numel = (op->count + members - 1) / members;
    }
}

/* Per member: where it reads and writes, and the slot it raises. */
static void fill_members(struct core *core, uint32_t group, struct core_op *launch, uint32_t *ranks,
                         struct core_ref *refs, struct core_signal *signals)
{
    const struct core_group *members = &core->groups[group];
    struct core_ref *in = refs, *out = refs + members->count;

    for (uint32_t i = 0; i < members->count; i++) {
        uint32_t rank = members->ranks[i];
        const struct wire_op *op = &next_op(core, rank, group)->op;
        struct core_ref send = buffer_ref(rank, op->send_buffer, op->send_offset, op->dtype);

        ranks[i] = rank;
        if (op->kind == WIRE_OP_BROADCAST && rank == op->root)
            in[0] = send;
        else if (op->kind != WIRE_OP_BROADCAST)
            in[i] = send;
        out[i] = buffer_ref(rank, op->recv_buffer, op->recv_offset, op->dtype);
        signals[i].rank = rank;
        signals[i].timeline = GW_TIMELINE(GW_TL_OP, op->sequence % GW_OPS_IN_FLIGHT);
        signals[i].value = op->sequence;
    }
    launch->members = ranks;
    launch->in = launch_rows[next_op(core, ranks[0], group)->op.kind].send ? in : NULL;
    launch->out = launch_rows[next_op(core, ranks[0], group)->op.kind].recv ? out : NULL;
    launch->signals = signals;
    launch->signal_count = members->count;
}

/* What the members' streams must have done: their inputs are filled, their outputs free. */
static void fill_waits(struct core *core, uint32_t group, struct core_op *launch,
                       struct core_token *waits)
{
    const struct core_group *members = &core->groups[group];

    launch->waits = waits;
    for (uint32_t i = 0; i < members->count && edge_kept(core->config.drop_edges, EDGE_FILLED);
         i++) {
        uint32_t rank = members->ranks[i];
        const struct wire_after *after = &next_op(core, rank, group)->op.after;

        for (uint32_t k = 0; k < after->tokens; k++)
            waits[launch->wait_count++] =
                (struct core_token){rank, after->timeline[k], after->value[k]};
    }
}

/* Remembers which buffers are in use until OP_DONE, and takes the op off the queues. */
static void fly(struct core *core, uint32_t group, uint64_t op_id, struct lane_flight *flight)
{
    const struct core_group *members = &core->groups[group];

    flight->op_id = op_id;
    flight->op = next_op(core, members->ranks[0], group)->op;
    flight->uses = members->count;
    for (uint32_t i = 0; i < members->count; i++) {
        struct lane_op *op = next_op(core, members->ranks[i], group);

        flight->use[i].rank = members->ranks[i];
        flight->use[i].send_buffer = op->op.send_buffer;
        flight->use[i].recv_buffer = op->op.recv_buffer;
        if (op->marked)
            zero_op_launched(core->zero, members->ranks[i]);
        take_op(core, members->ranks[i], op);
    }
    *core->flights_end = flight;
    core->flights_end = &flight->next;
}

static void launch(struct core *core, uint32_t group)
{
    uint32_t count = core->groups[group].count;
    struct core_effect *effect = effects_add(core->effects, CORE_EFF_LAUNCH);
    uint32_t *ranks = effects_alloc(core->effects, count * sizeof(*ranks));
    struct core_ref *refs = effects_alloc(core->effects, 2u * count * sizeof(*refs));
    struct core_signal *signals = effects_alloc(core->effects, count * sizeof(*signals));
    struct core_token *waits =
        effects_alloc(core->effects, (size_t)count * GW_READY_TOKENS * sizeof(*waits));
    struct lane_flight *flight =
        calloc(1, sizeof(*flight) + count * sizeof(struct lane_use));

    if (!ranks || !refs || !signals || !waits || !flight) {
        free(flight);
        core->nomem = true;
        return;
    }
    effect->op.id = effects_next_op(core->effects);
    effect->op.ready_ns = core->now_ns;
    fill_op(&effect->op, &next_op(core, core->groups[group].ranks[0], group)->op, count);
    fill_members(core, group, &effect->op, ranks, refs, signals);
    fill_waits(core, group, &effect->op, waits);
    fly(core, group, effect->op.id, flight);
    core->groups[group].launched++;
    core->lane_launches++;
    core->running = true;
}

/* The rank's next op on a group may be launched. With streams: when what the rank declared before
 * is launched too, for its stream may wait for that first. */
static bool may_launch(const struct core *core, uint32_t rank, uint32_t group)
{
    const struct lane_rank *lane = &core->ranks[rank].lane;

    /* A backstop: clients keep fewer ops than this unfinished, but the core may hear late of those
     * that are done. */
    if (lane->in_flight >= CORE_FLIGHT_MAX)
        return false;
    if (core->config.device == GW_DEVICE_HOST)
        return true;
    return lane->pending[0].op.group == group &&
           (!lane->pending[0].marked || zero_settled(core->zero, rank, lane->pending[0].mark));
}

static bool all_may_launch(const struct core *core, uint32_t group)
{
    const struct core_group *members = &core->groups[group];

    for (uint32_t i = 0; i < members->count; i++) {
        if (!may_launch(core, members->ranks[i], group))
            return false;
    }
    return true;
}

void lane_kick(struct core *core, uint32_t group)
{
    while (core->complete && !core->broken && !core->nomem && !seal_holds(core) &&
           all_submitted(core, group) && all_may_launch(core, group)) {
        if (agree(core, group))
            launch(core, group);
    }
}

void lane_kick_all(struct core *core)
{
    for (uint32_t group = 0; group < core->group_count; group++)
        lane_kick(core, group);
}

void lane_settle(struct core *core)
{
    struct core_fault fault = {.rank = CORE_NO_RANK};
    uint64_t launches;
    int r;

    while (!core->broken && core->config.device != GW_DEVICE_HOST) {
        launches = core->lane_launches;
        lane_kick_all(core);
        if (core->lane_launches == launches || !core->sealed)
            return;
        r = zero_resume(core->zero, core->now_ns, &fault);
        if (r < 0)
            core_fail_fault(core, &fault, r);
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Only what a library cannot do: the client is dropped. */
static bool lane_sound(struct core *core, uint32_t rank, const struct wire_op *op)
{
    const struct lane_rank *lane = &core->ranks[rank].lane;

    if (op->sequence != lane->sequence + 1)
        member_drop(core, rank, "op %llu came after op %llu", (unsigned long long)op->sequence,
                    (unsigned long long)lane->sequence);
    else if (lane->pending_count >= GW_OPS_IN_FLIGHT)
        member_drop(core, rank, "op %llu exceeds the limit of %u ops in flight",
                    (unsigned long long)op->sequence, GW_OPS_IN_FLIGHT);
    else
        return true;
    return false;
}

/* Fields that mean nothing for this kind are made equal, so that they cannot differ. */
static void plain(struct wire_op *op)
{
    bool sums = op->kind == WIRE_OP_REDUCE_SCATTER || op->kind == WIRE_OP_ALL_REDUCE;

    if (op->scale == 0 || !sums)
        op->scale = 1;
    if (op->pre_scale == 0 || !sums)
        op->pre_scale = 1;
    if (!sums)
        op->order = GW_ORDER_EXACT;
    if (op->kind != WIRE_OP_BROADCAST)
        op->root = 0;
    if (op->kind == WIRE_OP_BARRIER)
        op->count = op->dtype = 0;
}

void lane_submit(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct lane_rank *lane = &core->ranks[rank].lane;
    bool streams = core->config.device != GW_DEVICE_HOST; /* else threads order it all */
    struct wire_op op = msg->u.op;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    int r;

    if (!lane_sound(core, rank, &op))
        return;
    plain(&op);
    r = lane_check(core, rank, &op, &text);
    if (r < 0) {
        core_fail(core, r, r == GW_E_PEER_LOST ? ranks_first(&core->left) : rank,
                  "rank %u: %s", rank, line);
        return;
    }
    if (!lane->pending)
        lane->pending = calloc(GW_OPS_IN_FLIGHT, sizeof(*lane->pending));
    if (!lane->pending) {
        core->nomem = true;
        return;
    }
    lane->sequence = op.sequence;
    lane->pending[lane->pending_count] =
        (struct lane_op){.op = op, .since_ns = core->now_ns, .marked = streams && core->sealed};
    if (streams && core->sealed)
        lane->pending[lane->pending_count].mark = zero_op_submitted(core->zero, rank);
    lane->pending_count++;
    lane_use_buffers(core, rank, &op, 1);
    if (!streams)
        lane_kick(core, op.group);
}

void lane_op_done(struct core *core, const struct core_event *event)
{
    struct lane_flight **at = &core->flights, *flight;

    while (*at && (*at)->op_id != event->op)
        at = &(*at)->next;
    flight = *at;
    if (!flight)
        return;
    for (uint32_t i = 0; i < flight->uses; i++) {
        const struct lane_use *use = &flight->use[i];
        struct wire_op op = flight->op;

        if (!ranks_has(&core->present, use->rank))
            continue; /* it left, and its buffers with it */
        op.send_buffer = use->send_buffer;
        op.recv_buffer = use->recv_buffer;
        lane_use_buffers(core, use->rank, &op, -1);
        core->ranks[use->rank].lane.in_flight--;
    }
    if (event->done_ns > event->started_ns)
        core->lane_comm_ns += event->done_ns - event->started_ns;
    *at = flight->next;
    if (!flight->next)
        core->flights_end = at;
    free(flight);
    lane_kick_all(core);
    seal_kick(core);
}

/* ---- waits ----------------------------------------------------------------------------------- */

bool lane_needs(const struct core *core, uint32_t rank)
{
    for (uint32_t group = 0; group < core->group_count; group++) {
        struct ranks gone = missing(core, group);

        if (ranks_has(&gone, rank) && !ranks_equal(&gone, &core->groups[group].members))
            return true;
    }
    return false;
}

/* The longest-waiting op. A rank's first one is the next of its group, which some member has not
 * submitted, or which waits for a seal; else it were launched. */
static const struct lane_op *oldest_pending(const struct core *core, uint32_t *ret_rank)
{
    const struct lane_op *oldest = NULL;

    *ret_rank = 0;
    for (uint32_t rank = 0; rank < core->config.world; rank++) {
        const struct lane_rank *lane = &core->ranks[rank].lane;

        if (!lane->pending_count || (oldest && lane->pending[0].since_ns >= oldest->since_ns))
            continue;
        oldest = &lane->pending[0];
        *ret_rank = rank;
    }
    return oldest;
}

bool lane_wait(const struct core *core, struct core_wait *ret_wait)
{
    uint32_t rank;
    const struct lane_op *pending = oldest_pending(core, &rank);

    if (!pending)
        return false;
    ret_wait->since_ns = pending->since_ns;
    ret_wait->missing = missing(core, pending->op.group);
    ret_wait->op = pending->op.sequence * GW_RANKS_MAX + rank;
    return true;
}

void lane_describe_wait(const struct core *core, struct text *text)
{
    uint32_t rank;
    const struct lane_op *pending = oldest_pending(core, &rank);

    lane_describe(&pending->op, text);
    text_add(text, " on group %u", pending->op.group);
}

bool lane_describe_flight(const struct core *core, uint64_t op_id, struct text *text)
{
    const struct lane_flight *flight = core->flights;

    while (flight && flight->op_id != op_id)
        flight = flight->next;
    if (!flight)
        return false;
    lane_describe(&flight->op, text);
    text_add(text, " on group %u", flight->op.group);
    return true;
}
