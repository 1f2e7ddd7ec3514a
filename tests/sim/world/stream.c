/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of a job on GPUs: what it does to memory is enqueued into streams of its own, each in
 * order, which wait for the engine's words; what it declares carries marks in these streams.
 */
#include <stdlib.h>

#include "tests/sim/world/internal.h"

/* ---- enqueuing ------------------------------------------------------------------------------- */

struct sim_item *stream_add(struct sim_client *client, uint32_t queue, enum sim_item_kind kind)
{
    struct sim_item *item = calloc(1, sizeof(*item));

    if (!item)
        abort();
    item->kind = kind;
    item->step = client->step;
    *client->queues[queue].end = item;
    client->queues[queue].end = &item->next;
    return item;
}

void stream_wait(struct sim_client *client, uint32_t queue, uint32_t timeline, uint64_t value)
{
    struct sim_item *item = stream_add(client, queue, ITEM_WAIT);

    item->timeline = timeline;
    item->value = value;
}

struct wire_after stream_mark(struct sim_client *client, uint32_t queue)
{
    struct sim_item *item = stream_add(client, queue, ITEM_TOKEN);

    item->timeline = GW_TIMELINE(GW_TL_CLIENT, queue);
    item->value = ++client->promised[queue];
    return (struct wire_after){.tokens = 1, .timeline = {queue}, .value = {item->value}};
}

static void add_unit(struct sim_client *client, uint32_t unit, const char *when)
{
    struct sim_item *item = stream_add(client, SIM_MAIN, ITEM_READ);

    item->a = unit;
    item->when = when;
}

static void add_sum(struct sim_client *client)
{
    struct wire_op *op;
    struct wire_after mark;

    stream_add(client, SIM_MAIN, ITEM_FILL);
    mark = stream_mark(client, SIM_MAIN);
    op = &client_post(client, WIRE_OP, 0)->msg.u.op;
    op->kind = WIRE_OP_ALL_REDUCE;
    op->sequence = ++client->ops;
    op->scale = 1;
    op->count = 1;
    op->send_buffer = op->recv_buffer = SIM_BUFFER;
    op->recv_offset = 1;
    op->after = mark;
    stream_wait(client, SIM_MAIN, GW_TIMELINE(GW_TL_OP, client->ops % GW_OPS_IN_FLIGHT),
                client->ops);
    stream_add(client, SIM_MAIN, ITEM_SUM);
}

/* A fetch waits for nothing; its mark only tells that the last step's gradients are read. */
static void fetch(struct sim *sim, struct sim_client *client, uint32_t unit)
{
    struct wire_after mark = {0};
    struct wire_msg *msg;

    if (sim_draw(sim, 2))
        mark = stream_mark(client, SIM_MAIN);
    msg = &client_post(client, WIRE_FETCH, 0)->msg;
    msg->u.unit.unit = unit;
    msg->u.unit.after = mark;
    client->fetches[unit]++;
}

static void close_micro(struct sim *sim, struct sim_client *client, bool step_ends)
{
    struct wire_after mark = stream_mark(client, SIM_MAIN);

    client_post(client, step_ends ? WIRE_STEP_END : WIRE_MICRO_END, 0)->msg.u.after = mark;
    gradient_close_micro(sim, client, step_ends);
    client->micro++;
    if (step_ends) {
        client->grad_step++;
        client->micro = 0;
    }
}

void stream_act(struct sim *sim, struct sim_client *client, const struct sim_action *action)
{
    uint32_t drop = sim->plan->drop_client;
    struct wire_after mark;

    switch (action->kind) {
    case ACT_FETCH:
        fetch(sim, client, action->a);
        break;
    case ACT_USE:
        if (!(drop & SIM_DROP_GATHERED))
            stream_wait(client, SIM_MAIN, GW_TIMELINE(GW_TL_UNIT, action->a),
                        client->fetches[action->a]);
        add_unit(client, action->a, "as fetched");
        break;
    case ACT_RELEASE: {
        struct wire_msg *msg;

        add_unit(client, action->a, "before release");
        mark = stream_mark(client, SIM_MAIN);
        msg = &client_post(client, WIRE_RELEASE, 0)->msg;
        msg->u.unit.unit = action->a;
        msg->u.unit.after = mark;
        break;
    }
    case ACT_MICRO_END:
    case ACT_STEP_END:
        close_micro(sim, client, action->kind == ACT_STEP_END);
        break;
    case ACT_VERDICT:
        if (!(drop & SIM_DROP_VERDICT_READ))
            stream_wait(client, SIM_MAIN, GW_TIMELINE(GW_TL_STEP, 0), client->step + 1);
        stream_add(client, SIM_MAIN, ITEM_VERDICT);
        break;
    case ACT_UPDATE_BEGIN:
        client_post(client, WIRE_UPDATE_BEGIN, 0);
        break;
    case ACT_UPDATE_WAIT:
        stream_wait(client, SIM_MAIN, GW_TIMELINE(GW_TL_UPDATE, 0), client->step + 1);
        break;
    case ACT_WRITE:
        stream_add(client, SIM_MAIN, ITEM_SPAN)->a = action->a;
        break;
    case ACT_COMMIT:
        if (!sim->plan->blind)
            stream_add(client, SIM_MAIN, ITEM_SHARD);
        mark = stream_mark(client, SIM_MAIN);
        client_post(client, WIRE_UPDATE_COMMIT, 0)->msg.u.after = mark;
        break;
    case ACT_SUM:
        add_sum(client);
        break;
    default:
        break;
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static uint64_t word(const struct sim *sim, const struct sim_client *client, uint32_t timeline)
{
    const struct sim_board *board = &sim->boards[client->rank];
    uint32_t index = GW_TIMELINE_INDEX(timeline);

    switch (GW_TIMELINE_CLASS(timeline)) {
    case GW_TL_OP:
        return board->ops[index].value;
    case GW_TL_BUCKET:
        return board->buckets[index].value;
    case GW_TL_UNIT:
        return board->units[index].value;
    case GW_TL_STEP:
        return board->step.value;
    case GW_TL_UPDATE:
        return board->update.value;
    default:
        return client->timelines[index];
    }
}

bool stream_can_run(struct sim *sim, const struct sim_client *client, uint32_t queue)
{
    const struct sim_item *item = client->queues[queue].head;

    return item && !client->gone && !sim->broken &&
           (item->kind != ITEM_WAIT || word(sim, client, item->timeline) >= item->value);
}

static float *buffer(struct sim *sim, const struct sim_client *client)
{
    const struct core_ref ref = {GW_ARENA_BUFFER, (int16_t)client->rank, SIM_BUFFER, 0};

    return memory_at(sim, &ref, 2, GW_DTYPE_FP32);
}

static float addend(uint32_t rank, uint32_t step)
{
    return (float)(1 + rank + 10 * step);
}

static void check_sum(struct sim *sim, const struct sim_client *client, uint32_t step)
{
    const float *have = buffer(sim, client);
    float want = 0;

    for (uint32_t r = 0; r < sim->plan->world; r++)
        want += addend(r, step); /* small integers: exact in any order */
    if (have && (have[1] < want || have[1] > want))
        sim_fail(sim, "rank %u step %u: the sum is %g, not %g", client->rank, step,
                 (double)have[1], (double)want);
}

static void perform(struct sim *sim, struct sim_client *client, const struct sim_item *item)
{
    float *to;

    switch (item->kind) {
    case ITEM_WAIT:
        break;
    case ITEM_TOKEN:
        client->timelines[GW_TIMELINE_INDEX(item->timeline)] = item->value;
        break;
    case ITEM_PIECE:
        gradient_write_piece(sim, client, &item->write);
        break;
    case ITEM_READ:
        check_unit(sim, client, item->step, item->a, item->when);
        break;
    case ITEM_VERDICT:
        check_verdict(sim, client, item->step);
        break;
    case ITEM_SPAN:
        write_span(sim, client, item->a);
        break;
    case ITEM_SHARD:
        check_shard(sim, client, item->step, "before commit");
        break;
    case ITEM_FILL:
        to = buffer(sim, client);
        if (to)
            to[0] = addend(client->rank, item->step);
        break;
    case ITEM_SUM:
        check_sum(sim, client, item->step);
        break;
    }
}

static struct sim_item *take(struct sim_client *client, uint32_t queue)
{
    struct sim_queue *from = &client->queues[queue];
    struct sim_item *item = from->head;

    from->head = item->next;
    if (!from->head)
        from->end = &from->head;
    return item;
}

void stream_run(struct sim *sim, struct sim_client *client, uint32_t queue)
{
    struct sim_item *item = take(client, queue);

    trace_item(sim, client, queue, item);
    perform(sim, client, item);
    free(item);
}

bool stream_idle(const struct sim_client *client)
{
    for (uint32_t q = 0; q < SIM_QUEUES; q++) {
        if (client->queues[q].head)
            return false;
    }
    return true;
}

/* Values are nobody's business now, but that they are written is. */
void stream_run_wild(struct sim *sim, struct sim_client *client)
{
    for (uint32_t q = 0; q < SIM_QUEUES; q++) {
        while (client->queues[q].head) {
            struct sim_item *item = take(client, q);

            if (item->kind == ITEM_SPAN || item->kind == ITEM_PIECE)
                perform(sim, client, item);
            free(item);
        }
    }
}

void stream_free(struct sim_client *client)
{
    for (uint32_t q = 0; q < SIM_QUEUES; q++) {
        while (client->queues[q].head)
            free(take(client, q));
    }
}
