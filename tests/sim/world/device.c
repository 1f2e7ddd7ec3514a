/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual device: streams of ops that each run in order, words that ops raise, completions that
 * the core hears of later. An op runs in one go, at a moment that the draw chooses.
 *
 * A real device has fewer queues than there are streams, and signals asked for afterwards stand in
 * one behind the other. Which of them share a queue is nobody's business: with plan.narrow all do,
 * and whatever can get stuck in some queues gets stuck in this one.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world/internal.h"

static void *copy_of(const void *from, size_t bytes)
{
    void *to;

    if (!from || !bytes)
        return NULL;
    to = malloc(bytes);
    if (to)
        memcpy(to, from, bytes);
    return to;
}

static void op_free(struct sim_op *op)
{
    free((void *)(uintptr_t)op->op.members);
    free((void *)(uintptr_t)op->op.in);
    free((void *)(uintptr_t)op->op.out);
    free((void *)(uintptr_t)op->op.wait_ops);
    free((void *)(uintptr_t)op->op.waits);
    free((void *)(uintptr_t)op->op.signals);
    free((void *)(uintptr_t)op->op.used_bits);
    free((void *)(uintptr_t)op->op.used_buckets);
    free(op);
}

/* Entries of `in`: an op of one rank has one, a broadcast only the root's. */
static size_t inputs_of(const struct core_op *op)
{
    if (op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_BROADCAST || op->kind == CORE_OP_FILL)
        return 1;
    return op->in ? op->world : 0;
}

static size_t outputs_of(const struct core_op *op)
{
    if (op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_ZERO || op->kind == CORE_OP_GATHER)
        return 1;
    return op->out ? op->world : 0;
}

static void copy_op(const struct sim *sim, const struct core_op *from, struct core_op *to)
{
    const struct gw_layout_page *page =
        core_layout(sim->core) ? layout_page(core_layout(sim->core)) : NULL;
    size_t inputs = inputs_of(from) * sizeof(*from->in);
    size_t outputs = outputs_of(from) * sizeof(*from->out);

    *to = *from;
    to->members = copy_of(from->members, from->world * sizeof(*from->members));
    to->in = copy_of(from->in, inputs);
    to->out = copy_of(from->out, outputs);
    to->wait_ops = copy_of(from->wait_ops, from->wait_op_count * sizeof(*from->wait_ops));
    to->waits = copy_of(from->waits, from->wait_count * sizeof(*from->waits));
    to->signals = copy_of(from->signals, from->signal_count * sizeof(*from->signals));
    if (page && from->kind == CORE_OP_VERDICT) {
        to->used_bits = copy_of(from->used_bits, (page->params + 7) / 8);
        to->used_buckets = copy_of(from->used_buckets, page->buckets);
    }
}

static uint32_t stream_of(const struct core_op *op)
{
    return op->stream == CORE_STREAM_GATHER ? CORE_STREAM_GATHER + op->rank : op->stream;
}

static bool holds(const struct core_op *op, uint32_t rank)
{
    bool found = false;

    for (uint32_t i = 0; i < op->world; i++)
        found |= op->members[i] == rank;
    return found;
}

static void count(struct sim *sim, const struct core_op *op)
{
    sim->result->fills += op->kind == CORE_OP_FILL;
    sim->result->second_gathers += op->secondary;
    if (op->measure || op->traffic >= GW_KINDS || op->kind == CORE_OP_FILL)
        return;
    if (op->kind == CORE_OP_GATHER ? op->rank != 0 : !holds(op, 0))
        return; /* figures are rank 0's */
    sim->result->calls[op->traffic]++;
    sim->result->payload_bytes[op->traffic] += op->payload_bytes;
    sim->result->padding_bytes[op->traffic] += op->padding_bytes;
    if ((op->kind == CORE_OP_REDUCE_SCATTER || op->kind == CORE_OP_ALL_REDUCE) && op->bucket < 64)
        sim->result->reductions[op->bucket]++;
}

/* The order is the contract's, of each group and kind: the same whoever came first. */
static void note_order(struct sim *sim, const struct core_op *op)
{
    const struct layout *layout = core_layout(sim->core);
    bool within = op->kind == CORE_OP_REDUCE_SCATTER || op->shards;
    uint64_t *order = &sim->launches[SIM_ORDER_VERDICT];
    uint32_t group, from = op->members[0];

    if (op->kind == CORE_OP_GATHER) {
        group = layout_buckets(layout)[op->bucket].group;
        order = &sim->launches[SIM_ORDER_GATHER(op->rank, group)];
        if (sim->plan->seal.secondary_ranks)
            from = 0; /* who of a block comes first gathers from all owners */
    } else if (layout && (within || op->kind == CORE_OP_ALL_REDUCE) && op->slices) {
        group = layout_buckets(layout)[op->bucket].group;
        order = &sim->launches[SIM_ORDER_REDUCE(within, group)];
    } else if (op->kind != CORE_OP_VERDICT) {
        return;
    }
    *order = sim_hash(*order, op->kind, op->bucket, op->step, op->accumulate + 2 * from);
}

/* plan.slighted_rank: as if the core had asked for it. */
static void slight(const struct sim *sim, struct core_op *op)
{
    const struct sim_op *last = sim->streams[CORE_STREAM_REDUCE].head;
    uint64_t *waits;

    if (!last || op->kind != CORE_OP_GATHER || op->rank != sim->plan->slighted_rank)
        return;
    while (last->next)
        last = last->next;
    waits = realloc((void *)(uintptr_t)op->wait_ops, (op->wait_op_count + 1) * sizeof(*waits));
    if (!waits)
        abort();
    waits[op->wait_op_count++] = last->op.id;
    op->wait_ops = waits;
}

void device_launch(struct sim *sim, const struct core_op *op)
{
    struct sim_stream *stream = &sim->streams[stream_of(op)];
    struct sim_op *mine = calloc(1, sizeof(*mine));

    if (op->id != sim->launched + 1)
        sim_fail(sim, "op %lu launched after %lu", (unsigned long)op->id,
                 (unsigned long)sim->launched);
    sim->launched = op->id;
    for (uint32_t i = 0; i < op->wait_op_count; i++) {
        if (op->wait_ops[i] >= op->id || !op->wait_ops[i])
            sim_fail(sim, "op %lu waits for the later %lu", (unsigned long)op->id,
                     (unsigned long)op->wait_ops[i]);
    }
    for (uint32_t i = 0; i < op->wait_count; i++) {
        const struct core_token *wait = &op->waits[i];

        if (wait->index >= SIM_TIMELINES || !wait->value ||
            wait->value > sim->clients[wait->rank].heard[wait->index])
            sim_fail(sim, "op %lu waits for token %u:%u %lu, which nobody has declared",
                     (unsigned long)op->id, wait->rank, wait->index, (unsigned long)wait->value);
    }
    if (op->id >= sim->executed_room) {
        uint64_t room = 2 * op->id + 64;

        sim->executed = realloc(sim->executed, room * sizeof(*sim->executed));
        memset(sim->executed + sim->executed_room, 0, room - sim->executed_room);
        sim->executed_room = room;
        sim->executed[0] = true; /* before the first */
    }
    copy_op(sim, op, &mine->op);
    slight(sim, &mine->op);
    count(sim, op);
    note_order(sim, op);
    *stream->end = mine;
    stream->end = &mine->next;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void raise_word(struct sim *sim, const struct core_signal *signal)
{
    struct sim_board *board = &sim->boards[signal->rank];
    uint32_t index = GW_TIMELINE_INDEX(signal->timeline);
    struct sim_slot *slot = NULL;

    switch (GW_TIMELINE_CLASS(signal->timeline)) {
    case GW_TL_OP:
        slot = &board->ops[index % GW_OPS_IN_FLIGHT];
        break;
    case GW_TL_BUCKET:
        slot = &board->buckets[index];
        break;
    case GW_TL_UNIT:
        slot = &board->units[index];
        break;
    case GW_TL_STEP:
        slot = &board->step;
        break;
    case GW_TL_UPDATE:
        slot = &board->update;
        if (sim->clients[signal->rank].begun < signal->value)
            sim_fail(sim, "rank %u may write, but has not begun its update", signal->rank);
        break;
    default:
        sim_fail(sim, "signal of timeline %x", signal->timeline);
        return;
    }
    if (signal->value < slot->value) {
        sim_fail(sim, "timeline %x of rank %u falls from %lu to %lu", signal->timeline,
                 signal->rank, (unsigned long)slot->value, (unsigned long)signal->value);
        return;
    }
    slot->value = signal->value;
    slot->offset = signal->offset;
}

void device_signal(struct sim *sim, uint64_t after_op, const struct core_signal *signal)
{
    struct sim_signal *waiting, **end = &sim->signals;

    if (sim->plan->narrow)
        after_op = sim->launched;
    if (!after_op || (after_op < sim->executed_room && sim->executed[after_op])) {
        raise_word(sim, signal);
        return;
    }
    if (after_op > sim->launched)
        sim_fail(sim, "a signal after op %lu, which nobody launched", (unsigned long)after_op);
    waiting = calloc(1, sizeof(*waiting));
    waiting->after_op = after_op;
    waiting->signal = *signal;
    while (*end)
        end = &(*end)->next;
    *end = waiting;
}

static void raise_after(struct sim *sim, uint64_t op)
{
    struct sim_signal **at = &sim->signals;

    while (*at) {
        struct sim_signal *signal = *at;

        if (signal->after_op != op) {
            at = &signal->next;
            continue;
        }
        *at = signal->next;
        raise_word(sim, &signal->signal);
        free(signal);
    }
}

/* ---- streams --------------------------------------------------------------------------------- */

bool device_can_run(const struct sim *sim, uint32_t stream)
{
    const struct sim_op *op = sim->streams[stream].head;

    if (!op || (sim->plan->narrow && !sim->executed[op->op.id - 1]))
        return false;
    for (uint32_t i = 0; i < op->op.wait_op_count; i++) {
        if (!sim->executed[op->op.wait_ops[i]])
            return false;
    }
    for (uint32_t i = 0; i < op->op.wait_count; i++) {
        const struct core_token *wait = &op->op.waits[i];

        if (sim->clients[wait->rank].timelines[wait->index] < wait->value)
            return false;
    }
    return true;
}

void device_run(struct sim *sim, uint32_t stream)
{
    struct sim_op *op = sim->streams[stream].head;

    sim->streams[stream].head = op->next;
    if (!op->next)
        sim->streams[stream].end = &sim->streams[stream].head;
    op->next = NULL;
    op->started_ns = sim->now_ns;
    trace_run(sim, "run op", op->op.id);
    kernel_run(sim, &op->op);
    sim->now_ns += 1000;
    op->done_ns = sim->now_ns;
    sim->executed[op->op.id] = true;
    for (uint32_t i = 0; i < op->op.signal_count; i++)
        raise_word(sim, &op->op.signals[i]);
    raise_after(sim, op->op.id);
    *sim->done_end = op;
    sim->done_end = &op->next;
}

void device_report(struct sim *sim)
{
    struct sim_op *op = sim->done;
    const struct core_event event = {.kind = CORE_EV_OP_DONE,
                                     .op = op->op.id,
                                     .started_ns = op->started_ns,
                                     .done_ns = op->done_ns};

    sim->done = op->next;
    if (!op->next)
        sim->done_end = &sim->done;
    op_free(op);
    sim_post_event(sim, &event);
}

/* What is queued will never run: the job broke, or the run is over. Completions that the core still
 * waits for are told first (as failed works are). */
void device_reset(struct sim *sim)
{
    for (uint32_t s = 0; s < SIM_STREAMS; s++) {
        while (sim->streams[s].head) {
            struct sim_op *op = sim->streams[s].head;

            sim->streams[s].head = op->next;
            sim->executed[op->op.id] = true;
            op->next = NULL;
            *sim->done_end = op;
            sim->done_end = &op->next;
        }
        sim->streams[s].end = &sim->streams[s].head;
    }
    while (sim->signals) {
        struct sim_signal *next = sim->signals->next;

        free(sim->signals);
        sim->signals = next;
    }
}

void device_free(struct sim *sim)
{
    device_reset(sim);
    while (sim->done) {
        struct sim_op *next = sim->done->next;

        op_free(sim->done);
        sim->done = next;
    }
}
