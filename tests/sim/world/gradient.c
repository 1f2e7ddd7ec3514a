/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's gradients: where a piece may be written and when, and how contributions are counted.
 * Written from the rules, apart from client/lib.
 */
#include <string.h>

#include "tests/sim/world/internal.h"

bool gradient_in_ring(const struct sim *sim)
{
    const struct wire_seal *seal = core_options(sim->core);

    return seal->stage >= 2 && seal->accumulate == GW_ACCUMULATE_SHARD;
}

static const struct gw_layout_piece *piece_of(const struct sim *sim, uint32_t param, uint32_t piece)
{
    const struct layout *layout = core_layout(sim->core);

    return &layout_pieces(layout)[layout_params(layout)[param].first_piece + piece];
}

static bool consumed(const struct sim *sim, const struct sim_client *client, uint32_t bucket,
                     uint64_t count)
{
    return sim->plan->drop_client & SIM_DROP_BUFFER_CONSUMED ||
           sim->boards[client->rank].buckets[bucket].value >= count;
}

static uint32_t free_slot(const struct sim *sim, const struct sim_client *client)
{
    for (uint32_t i = 0; i < client->slot_count; i++) {
        const struct sim_ring_slot *slot = &client->slots[i];

        if (!slot->taken && (!slot->count || consumed(sim, client, slot->bucket, slot->count)))
            return i;
    }
    return GW_NO_SLOT;
}

bool gradient_can_act(struct sim *sim, struct sim_client *client, const struct sim_action *action)
{
    uint32_t bucket = piece_of(sim, action->a, action->b)->bucket;

    /* A RUNNING sum is the caller's: its own threads do not write one piece at once. */
    for (uint32_t i = 0; i < client->write_count && sim->plan->running; i++) {
        if (client->writes[i].param == action->a && client->writes[i].piece == action->b)
            return false;
    }
    if (!gradient_in_ring(sim))
        return consumed(sim, client, bucket, client->buckets[bucket].closed);
    if (client->buckets[bucket].slot != GW_NO_SLOT || !client->asked_slot)
        return true;
    /* A caller that gave up waiting for the answer looks by itself. */
    return sim->plan->impatient && free_slot(sim, client) != GW_NO_SLOT;
}

static uint32_t dtype_of(const struct sim *sim, uint32_t bucket)
{
    return layout_buckets(core_layout(sim->core))[bucket].grad_dtype;
}

static void *piece_memory(struct sim *sim, const struct sim_client *client,
                          const struct gw_layout_piece *piece)
{
    struct place_ref at = gradient_in_ring(sim)
                              ? place_slot(client->place, client->buckets[piece->bucket].slot)
                              : place_grads(client->place, piece->bucket);
    struct core_ref ref = memory_ref(client, at);
    uint32_t dtype = dtype_of(sim, piece->bucket);

    ref.offset_bytes += piece->bucket_offset * gw_dtype_bytes(dtype);
    return memory_at(sim, &ref, piece->numel, dtype);
}

/* The client's memory of a piece gets this micro-step's gradient; RUNNING: added in place. */
void gradient_write_piece(struct sim *sim, const struct sim_client *client,
                          const struct sim_write *write)
{
    const struct gw_layout_piece *piece = piece_of(sim, write->param, write->piece);
    uint32_t dtype = dtype_of(sim, piece->bucket);
    bool add = false;

    for (uint32_t m = 0; m < write->micro && sim->plan->running; m++)
        add |= plan_uses(sim->plan, client->rank, write->step, m, write->param);
    for (uint64_t i = 0; i < piece->numel; i++) {
        float value = plan_gradient(sim->plan, client->rank, write->step, write->micro,
                                    write->param, piece->param_offset + i);

        sim_store(write->to, dtype, i, add ? sim_load(write->to, dtype, i) + value : value);
    }
}

void gradient_write(struct sim *sim, struct sim_client *client)
{
    uint32_t at = sim_draw(sim, client->write_count);
    struct sim_write write = client->writes[at];

    client->writes[at] = client->writes[--client->write_count];
    gradient_write_piece(sim, client, &write);
    client->timelines[write.timeline] = write.value;
}

/* A timeline on which no write is outstanding; SIM_TIMELINES: none. */
static uint32_t idle_timeline(const struct sim_client *client)
{
    for (uint32_t t = 0; t < SIM_TIMELINES; t++) {
        if (client->timelines[t] == client->promised[t])
            return t;
    }
    return SIM_TIMELINES;
}

static void close_contribution(struct sim_client *client, uint32_t bucket)
{
    struct sim_bucket *mine = &client->buckets[bucket];

    mine->closed++;
    mine->open = false;
    if (mine->slot == GW_NO_SLOT)
        return;
    client->slots[mine->slot].taken = false;
    client->slots[mine->slot].count = mine->closed;
    mine->slot = GW_NO_SLOT;
}

static void take_slot(struct sim_client *client, uint32_t bucket, uint32_t slot)
{
    client->slots[slot] = (struct sim_ring_slot){true, bucket, 0, client->slots[slot].bucket,
                                                 client->slots[slot].count, ++client->serial};
    client->buckets[bucket].slot = slot;
}

void gradient_granted(struct sim *sim, struct sim_client *client, uint32_t slot)
{
    const struct sim_bucket *mine = &client->buckets[client->slot_bucket];

    if (slot != client->slot_count)
        sim_fail(sim, "rank %u: overflow slot %u granted out of turn", client->rank, slot);
    sim->result->overflow_slots++;
    client->slot_count = slot + 1;
    if (mine->open && mine->slot == GW_NO_SLOT)
        take_slot(client, client->slot_bucket, slot);
}

void gradient_promised(struct sim *sim, struct sim_client *client, uint32_t slot)
{
    const struct sim_bucket *mine = &client->buckets[client->slot_bucket];

    if (slot >= client->slot_count) {
        sim_fail(sim, "rank %u: slot %u promised, of %u", client->rank, slot, client->slot_count);
        return;
    }
    /* Taken since it asked: the answer is about an earlier use. */
    if (client->slots[slot].serial > client->slot_serial)
        return;
    if (!client->slots[slot].taken && mine->open && mine->slot == GW_NO_SLOT)
        take_slot(client, client->slot_bucket, slot);
}

static struct wire_ready_entry *declare(struct sim *sim, struct sim_client *client,
                                        const struct sim_action *action, uint32_t slot,
                                        uint32_t timeline)
{
    bool final = plan_final(sim->plan, client->rank, client->grad_step, client->micro, action->a);
    struct sim_posted *posted = client_post(client, WIRE_READY, 0);
    struct wire_ready_entry *entry = &posted->entry;

    entry->param = action->a;
    entry->piece = action->b;
    entry->slot = slot;
    entry->flags =
        (final ? GW_GRAD_FINAL : GW_GRAD_ACCUMULATE) | (sim->plan->running ? GW_GRAD_RUNNING : 0u);
    if (timeline < SIM_TIMELINES) {
        entry->tokens = 1;
        entry->timeline[0] = timeline;
        entry->value[0] = client->promised[timeline];
    }
    return entry;
}

static void ask_slot(struct sim *sim, struct sim_client *client, uint32_t bucket)
{
    struct wire_msg *msg;

    if (client->asked_slot)
        return;
    client->slot_request = ++client->request;
    client->slot_bucket = bucket;
    client->slot_serial = client->serial;
    msg = &client_post(client, WIRE_ACQUIRE, client->slot_request)->msg;
    msg->u.acquire.bucket = bucket;
    msg->u.acquire.ordered = sim->plan->streams;
    client->asked_slot = true;
}

/* The piece is declared: the client's own account. */
static void count_piece(struct sim *sim, struct sim_client *client, const struct sim_action *action,
                        uint32_t bucket)
{
    struct sim_bucket *mine = &client->buckets[bucket];

    mine->declared++;
    mine->final += plan_final(sim->plan, client->rank, client->grad_step, client->micro, action->a);
    if (--mine->outstanding == 0)
        close_contribution(client, bucket);
    client->at++;
}

void gradient_act(struct sim *sim, struct sim_client *client, const struct sim_action *action)
{
    const struct gw_layout_piece *piece = piece_of(sim, action->a, action->b);
    struct sim_bucket *mine = &client->buckets[piece->bucket];
    struct sim_write write = {action->a,     action->b, client->micro, client->grad_step,
                              SIM_TIMELINES, 0,         NULL};
    uint32_t slot = free_slot(sim, client);

    if (gradient_in_ring(sim) && mine->slot == GW_NO_SLOT) {
        if (slot == GW_NO_SLOT) {
            ask_slot(sim, client, piece->bucket);
            return;
        }
        take_slot(client, piece->bucket, slot);
    }
    slot = mine->slot;
    write.to = piece_memory(sim, client, piece);
    if (!write.to)
        return;
    if (sim_draw(sim, 1000) < sim->plan->token)
        write.timeline = idle_timeline(client);
    if (write.timeline < SIM_TIMELINES) {
        write.value = ++client->promised[write.timeline];
        client->writes[client->write_count++] = write;
    } else {
        gradient_write_piece(sim, client, &write);
    }
    (void)declare(sim, client, action, slot, write.timeline);
    count_piece(sim, client, action, piece->bucket);
}

/* ---- with streams ---------------------------------------------------------------------------- */

bool gradient_stream_can_act(struct sim *sim, struct sim_client *client,
                             const struct sim_action *action)
{
    uint32_t bucket = piece_of(sim, action->a, action->b)->bucket;

    return !gradient_in_ring(sim) || client->buckets[bucket].slot != GW_NO_SLOT ||
           !client->asked_slot || (sim->plan->impatient && free_slot(sim, client) != GW_NO_SLOT);
}

/* The stream waits for the memory's last reader. */
static void wait_reader(struct sim *sim, struct sim_client *client, uint32_t queue, uint32_t bucket)
{
    const struct sim_bucket *mine = &client->buckets[bucket];
    uint32_t of = bucket;
    uint64_t count = mine->closed;

    if (sim->plan->drop_client & SIM_DROP_BUFFER_CONSUMED)
        return;
    if (mine->slot != GW_NO_SLOT) {
        of = client->slots[mine->slot].after_bucket;
        count = client->slots[mine->slot].after_count;
    }
    if (count)
        stream_wait(client, queue, GW_TIMELINE(GW_TL_BUCKET, of), count);
}

static void add_token(struct wire_ready_entry *entry, const struct wire_after *after)
{
    entry->timeline[entry->tokens] = after->timeline[0];
    entry->value[entry->tokens++] = after->value[0];
}

/* Some pieces are written by another stream, which the job's stream has forked off. */
void gradient_stream_act(struct sim *sim, struct sim_client *client,
                         const struct sim_action *action)
{
    const struct gw_layout_piece *piece = piece_of(sim, action->a, action->b);
    struct sim_bucket *mine = &client->buckets[piece->bucket];
    struct sim_write write = {action->a,     action->b, client->micro, client->grad_step,
                              SIM_TIMELINES, 0,         NULL};
    bool side = !sim->plan->running && sim_draw(sim, 1000) < sim->plan->token;
    uint32_t queue = side ? SIM_SIDE : SIM_MAIN, slot = free_slot(sim, client);
    struct wire_ready_entry *entry;
    struct wire_after mark;

    if (gradient_in_ring(sim) && mine->slot == GW_NO_SLOT) {
        if (slot == GW_NO_SLOT) {
            ask_slot(sim, client, piece->bucket);
            return;
        }
        take_slot(client, piece->bucket, slot);
    }
    slot = mine->slot;
    write.to = piece_memory(sim, client, piece);
    if (!write.to)
        return;
    if (side) {
        mark = stream_mark(client, SIM_MAIN);
        stream_wait(client, queue, GW_TIMELINE(GW_TL_CLIENT, SIM_MAIN), mark.value[0]);
    }
    wait_reader(sim, client, queue, piece->bucket);
    stream_add(client, queue, ITEM_PIECE)->write = write;
    mark = stream_mark(client, queue);
    entry = declare(sim, client, action, slot, SIM_TIMELINES);
    add_token(entry, &mark);
    if (side) {
        mark = stream_mark(client, SIM_MAIN);
        add_token(entry, &mark);
    }
    count_piece(sim, client, action, piece->bucket);
}

/* Pieces of it without a gradient in the step. */
static uint32_t frozen_in(const struct sim *sim, uint32_t step, uint32_t bucket)
{
    const struct layout *layout = core_layout(sim->core);
    uint32_t count = 0;

    for (uint32_t p = 0; p < sim->plan->param_count; p++) {
        const struct gw_layout_param *param = &layout_params(layout)[p];

        for (uint32_t i = 0; i < param->pieces && plan_frozen(sim->plan, step, p); i++)
            count += layout_pieces(layout)[param->first_piece + i].bucket == bucket;
    }
    return count;
}

void gradient_open_micro(struct sim *sim, struct sim_client *client, bool step_begins)
{
    for (uint32_t b = 0; b < layout_page(core_layout(sim->core))->buckets; b++) {
        struct sim_bucket *mine = &client->buckets[b];

        if (step_begins)
            mine->final = frozen_in(sim, client->grad_step, b);
        mine->declared = 0;
        mine->slot = GW_NO_SLOT;
        mine->outstanding = layout_buckets(core_layout(sim->core))[b].pieces - mine->final;
        if (!place_span_numel(client->place, b)) /* of a group that it is not in */
            mine->outstanding = 0;
        mine->open = mine->outstanding > 0;
    }
}

void gradient_close_micro(struct sim *sim, struct sim_client *client, bool step_ends)
{
    for (uint32_t b = 0; b < layout_page(core_layout(sim->core))->buckets; b++) {
        if (client->buckets[b].open)
            close_contribution(client, b);
    }
    gradient_open_micro(sim, client, step_ends);
}
