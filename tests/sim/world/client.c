/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client: goes through its script, one action at a time, each as soon as (or any time after) the
 * rules allow; posts messages into its own queue, which the draw delivers later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world/internal.h"

static const char *const action_names[] = {
    "join",      "wait ready", "group",   "register",     "seal",        "param io",
    "barrier",   "barrier wait", "measure", "freeze",     "reply",       "fetch",
    "use",       "release",    "grad",    "micro end",    "step end",    "verdict",
    "update begin", "update wait", "write", "commit",    "buffer",      "sum"};

void client_describe(const struct sim_client *client, char *text, size_t bytes)
{
    const struct sim_action *action = &client->actions[client->at];

    if (client->gone || client->finished || client->at >= client->action_count)
        snprintf(text, bytes, "rank %u %s", client->rank, client->gone ? "gone" : "at its end");
    else
        snprintf(text, bytes, "rank %u step %u micro %u: %s %u %u", client->rank, client->step,
                 client->micro, action_names[action->kind], action->a, action->b);
}

struct sim_posted *client_post(struct sim_client *client, uint16_t type, uint32_t request)
{
    struct sim_posted *posted = calloc(1, sizeof(*posted));

    if (!posted)
        abort();
    posted->kind = CORE_EV_REQUEST;
    posted->msg.type = type;
    posted->msg.request = request;
    *client->out_end = posted;
    client->out_end = &posted->next;
    return posted;
}

void client_free(struct sim_client *client)
{
    while (client->out) {
        struct sim_posted *next = client->out->next;

        free(client->out);
        client->out = next;
    }
    stream_free(client);
    (void)place_free(client->place);
    free(client->actions);
    free(client->buckets);
    free(client->fetches);
    memset(client, 0, sizeof(*client));
}

void client_start(struct sim *sim, struct sim_client *client, uint32_t rank)
{
    client_free(client);
    client->rank = rank;
    client->out_end = &client->out;
    for (uint32_t q = 0; q < SIM_QUEUES; q++)
        client->queues[q].end = &client->queues[q].head;
    client->set_up = true;
    script_set_up(sim, client);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void fill_register(const struct sim *sim, struct wire_msg *msg)
{
    static struct wire_param params[SIM_PARAMS_MAX]; /* read by the core before the next */

    for (uint32_t p = 0; p < sim->plan->param_count; p++) {
        const struct layout_param *param = &sim->plan->params[p];

        params[p] = (struct wire_param){.name = param->name,
                                        .unit = param->unit,
                                        .numel = param->numel,
                                        .flags = param->flags,
                                        .dtype = param->dtype,
                                        .grad_dtype = param->grad_dtype,
                                        .group = param->group};
    }
    msg->u.reg.first = 0;
    msg->u.reg.total = msg->u.reg.count = sim->plan->param_count;
    msg->u.reg.params = params;
}

static void fill_group(const struct sim *sim, uint32_t group, struct wire_msg *msg)
{
    const struct layout_group *from = &sim->plan->groups[group];

    msg->u.param_group.count = from->count;
    msg->u.param_group.shard_ranks = from->shard_ranks;
    msg->u.param_group.ranks = from->ranks;
}

static void hear(struct sim_client *client, uint32_t count, const uint32_t *timelines,
                 const uint64_t *values)
{
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] > client->heard[timelines[i]])
            client->heard[timelines[i]] = values[i];
    }
}

static void hear_tokens(struct sim_client *client, const struct sim_posted *posted)
{
    const struct wire_after *after = NULL;

    if (posted->msg.type == WIRE_READY)
        hear(client, posted->entry.tokens, posted->entry.timeline, posted->entry.value);
    else if (posted->msg.type == WIRE_FETCH || posted->msg.type == WIRE_RELEASE)
        after = &posted->msg.u.unit.after;
    else if (posted->msg.type == WIRE_OP)
        after = &posted->msg.u.op.after;
    else if (posted->msg.type == WIRE_MICRO_END || posted->msg.type == WIRE_STEP_END ||
             posted->msg.type == WIRE_UPDATE_COMMIT)
        after = &posted->msg.u.after;
    if (after)
        hear(client, after->tokens, after->timeline, after->value);
}

void client_deliver(struct sim *sim, struct sim_client *client)
{
    struct sim_posted *posted = client->out;
    struct core_event event = {.kind = posted->kind,
                               .rank = client->rank,
                               .request = posted->msg.request,
                               .world = sim->plan->world,
                               .index = posted->index,
                               .size_bytes = posted->size_bytes,
                               .msg = &posted->msg,
                               .text = "killed"};

    client->out = posted->next;
    if (!posted->next)
        client->out_end = &client->out;
    if (posted->msg.type == WIRE_READY) {
        posted->msg.u.ready.count = 1;
        posted->msg.u.ready.entries = &posted->entry;
    }
    client->ended += posted->msg.type == WIRE_STEP_END;
    hear_tokens(client, posted);
    if (posted->msg.type == WIRE_UPDATE_BEGIN) {
        client->in_update = true;
        client->begun = client->ended;
    }
    if (posted->msg.type == WIRE_UPDATE_COMMIT) {
        client->in_update = client->wrote = false;
        client->commits++;
    }
    sim_post_event(sim, &event);
    free(posted);
}

void client_reply(struct sim *sim, const struct core_effect *effect)
{
    struct sim_client *client = &sim->clients[effect->rank];
    const struct wire_msg *reply = &effect->reply;

    if (client->gone)
        return;
    if (client->asked_slot && reply->request == client->slot_request) {
        client->asked_slot = false;
        if (sim->broken)
            return;
        if (reply->type != WIRE_ACQUIRED)
            sim_fail(sim, "rank %u: acquire refused: %s", client->rank, reply->u.done.text);
        else if (reply->u.acquired.launched)
            gradient_promised(sim, client, reply->u.acquired.slot);
        else if (reply->u.acquired.slot != GW_NO_SLOT)
            gradient_granted(sim, client, reply->u.acquired.slot);
        return;
    }
    if (reply->type == WIRE_DONE && reply->u.done.code < 0 && !sim->broken)
        sim_fail(sim, "rank %u: refused with %d: %s", client->rank, reply->u.done.code,
                 reply->u.done.text);
    if (reply->request != client->awaited)
        sim_fail(sim, "rank %u: reply to request %u, which does not wait", client->rank,
                 reply->request);
    client->awaited = 0;
    client->reply = *reply;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void post_param_io(struct sim *sim, struct sim_client *client, uint32_t param)
{
    struct core_ref ref = {GW_ARENA_STAGING, (int16_t)client->rank, 0, 0};
    uint64_t numel = sim->plan->params[param].numel;
    float *staging = memory_at(sim, &ref, numel, GW_DTYPE_FP32);
    struct wire_msg *msg = &client_post(client, WIRE_PARAM_IO, client->awaited)->msg;

    if (staging)
        memcpy(staging, sim->reference->values[0] + sim->reference->param_at[param],
               numel * sizeof(float));
    msg->u.param_io.write = 1;
    msg->u.param_io.param = param;
    msg->u.param_io.offset = 0;
    msg->u.param_io.count = numel;
}

static void post_freeze(const struct sim *sim, struct sim_client *client, uint32_t step)
{
    struct wire_msg *msg = &client_post(client, WIRE_FREEZE, client->awaited)->msg;

    memset(client->frozen, 0, sizeof(client->frozen));
    for (uint32_t p = 0; p < sim->plan->param_count; p++)
        client->frozen[p / 8] |= (uint8_t)(plan_frozen(sim->plan, step, p) << p % 8);
    msg->u.freeze.params = client->frozen;
    msg->u.freeze.bytes = (sim->plan->param_count + 7) / 8;
}

static void ask(struct sim *sim, struct sim_client *client, const struct sim_action *action)
{
    client->awaited = ++client->request;
    switch (action->kind) {
    case ACT_JOIN:
        client_post(client, WIRE_JOIN, client->awaited)->kind = CORE_EV_JOIN;
        break;
    case ACT_WAIT_READY:
        client_post(client, WIRE_WAIT_READY, client->awaited);
        break;
    case ACT_GROUP:
        fill_group(sim, action->a, &client_post(client, WIRE_PARAM_GROUP, client->awaited)->msg);
        break;
    case ACT_REGISTER:
        fill_register(sim, &client_post(client, WIRE_REGISTER, client->awaited)->msg);
        break;
    case ACT_SEAL:
        client_post(client, WIRE_SEAL, client->awaited)->msg.u.seal = sim->plan->seal;
        break;
    case ACT_PARAM_IO:
        post_param_io(sim, client, action->a);
        break;
    case ACT_FREEZE:
        post_freeze(sim, client, action->a);
        break;
    default:
        client_post(client, WIRE_MEASURE, client->awaited);
        break;
    }
}

/* The layout is known from here on. */
static void got_reply(struct sim *sim, struct sim_client *client)
{
    const struct gw_layout_page *page;

    if (client->reply.type != WIRE_SEALED)
        return;
    page = layout_page(core_layout(sim->core));
    if (place_new(page, core_options(sim->core), place_groups_of(page, client->rank),
                  &client->place) < 0)
        abort();
    client->buckets = calloc(page->buckets + 1, sizeof(*client->buckets));
    client->fetches = calloc(page->units + 1, sizeof(*client->fetches));
    client->slot_count = gradient_in_ring(sim) ? core_options(sim->core)->ring_slots : 0;
    client->step = client->grad_step = (uint32_t)client->reply.u.sealed.steps;
    client->ended = client->step;
    if (sim->rejoined && client->rank == 0) {
        sim->result->steps_before = client->step;
        reference_restart(sim->reference, client->step, sim->version);
    }
    gradient_open_micro(sim, client, true);
}

/* ---- what is waited for ---------------------------------------------------------------------- */

static bool stopped(const struct sim *sim, struct sim_client *client)
{
    if (sim->rejoined || client->set_up || client->rank != sim->plan->stop_rank ||
        client->step != sim->plan->stop_step ||
        client->at < sim->plan->stop_action % client->action_count)
        return false;
    if (sim->plan->sleep_ns && !client->wakes_ns)
        client->wakes_ns = sim->now_ns + sim->plan->sleep_ns;
    return !sim->plan->sleep_ns || sim->now_ns < client->wakes_ns;
}

static bool may_act(struct sim *sim, struct sim_client *client, const struct sim_action *action)
{
    const struct sim_board *board = &sim->boards[client->rank];
    uint32_t drop = sim->plan->drop_client;

    if (action->kind == ACT_REPLY)
        return !client->awaited;
    if (action->kind == ACT_BARRIER_WAIT)
        return board->ops[client->ops % GW_OPS_IN_FLIGHT].value >= client->ops;
    if (sim->plan->streams)
        return action->kind != ACT_GRAD || gradient_stream_can_act(sim, client, action);
    switch (action->kind) {
    case ACT_USE:
        return drop & SIM_DROP_GATHERED ||
               board->units[action->a].value >= client->fetches[action->a];
    case ACT_GRAD:
        return gradient_can_act(sim, client, action);
    case ACT_VERDICT:
        return drop & SIM_DROP_VERDICT_READ || board->step.value > client->step;
    case ACT_UPDATE_WAIT:
        return board->update.value > client->step;
    default:
        return true;
    }
}

bool client_can_act(struct sim *sim, struct sim_client *client)
{
    if (client->gone || sim->broken || client->rank == sim->plan->never_joins)
        return false;
    if (client->finished)
        return client->write_count > 0;
    if (stopped(sim, client))
        return sim->plan->stop_is_loss || client->write_count > 0;
    return client->write_count > 0 || client->at >= client->action_count ||
           may_act(sim, client, &client->actions[client->at]);
}

/* ---- actions --------------------------------------------------------------------------------- */

void write_span(struct sim *sim, struct sim_client *client, uint32_t bucket)
{
    struct sim_span span;

    if (!span_of(sim, client, bucket, &span))
        return;
    for (uint64_t i = 0; i < span.valid; i++)
        span.masters[i] = reference_update(sim->plan, span.masters[i],
                                           sim_load(span.grads, span.grads_dtype, i));
}

static void act_in_step(struct sim *sim, struct sim_client *client, const struct sim_action *action)
{
    switch (action->kind) {
    case ACT_FETCH:
        client_post(client, WIRE_FETCH, 0)->msg.u.unit.unit = action->a;
        client->fetches[action->a]++;
        break;
    case ACT_USE:
        check_unit(sim, client, client->step, action->a, "as fetched");
        break;
    case ACT_RELEASE:
        check_unit(sim, client, client->step, action->a, "before release");
        client_post(client, WIRE_RELEASE, 0)->msg.u.unit.unit = action->a;
        break;
    case ACT_MICRO_END:
    case ACT_STEP_END:
        client_post(client, action->kind == ACT_STEP_END ? WIRE_STEP_END : WIRE_MICRO_END, 0);
        gradient_close_micro(sim, client, action->kind == ACT_STEP_END);
        client->micro++;
        if (action->kind == ACT_STEP_END) {
            client->grad_step++;
            client->micro = 0;
        }
        break;
    case ACT_VERDICT:
        check_verdict(sim, client, client->step);
        break;
    case ACT_UPDATE_BEGIN:
        client_post(client, WIRE_UPDATE_BEGIN, 0);
        break;
    case ACT_WRITE:
        client->wrote = true;
        write_span(sim, client, action->a);
        break;
    case ACT_COMMIT:
        if (!sim->plan->blind)
            check_shard(sim, client, client->step, "before commit");
        client_post(client, WIRE_UPDATE_COMMIT, 0);
        break;
    default:
        break;
    }
}

static void next_step(struct sim *sim, struct sim_client *client)
{
    uint32_t step = client->set_up ? client->step : client->step + 1;

    client->set_up = false;
    if (step < sim->plan->steps) {
        script_step(sim, client, step);
    } else {
        client->step = step;
        client->finished = true;
    }
}

static void act(struct sim *sim, struct sim_client *client, const struct sim_action *action)
{
    client->at++;
    if (action->kind <= ACT_SEAL || action->kind == ACT_PARAM_IO || action->kind == ACT_MEASURE ||
        action->kind == ACT_FREEZE) {
        ask(sim, client, action);
    } else if (action->kind == ACT_REPLY) {
        got_reply(sim, client);
        if (action->a == ACT_FREEZE)
            gradient_open_micro(sim, client, true);
    } else if (action->kind == ACT_BARRIER) {
        struct wire_op *op = &client_post(client, WIRE_OP, 0)->msg.u.op;

        op->kind = WIRE_OP_BARRIER;
        op->sequence = ++client->ops;
        op->scale = 1;
    } else if (action->kind == ACT_BUFFER) {
        struct sim_posted *posted = client_post(client, 0, 0);

        posted->kind = CORE_EV_BUFFER;
        posted->index = SIM_BUFFER;
        posted->size_bytes = SIM_BUFFER_BYTES;
        memory_add(sim, GW_ARENA_BUFFER, (int)client->rank, SIM_BUFFER, SIM_BUFFER_BYTES);
    } else if (sim->plan->streams) {
        stream_act(sim, client, action);
    } else {
        act_in_step(sim, client, action);
    }
}

/* The engine reads what a client had sent before it says that the client is gone; else an update
 * whose commit still lay in the socket would count as torn. (That it is never taken for whole does
 * not hang on this: stop_unread.) */
void client_die(struct sim *sim, struct sim_client *client)
{
    const struct core_event lost = {.kind = CORE_EV_LOST, .rank = client->rank, .text = "killed"};

    while (client->out && !sim->plan->stop_unread)
        client_deliver(sim, client);
    client->gone = true;
    sim->result->stop_ns = sim->now_ns;
    sim_post_event(sim, &lost);
}

void client_act(struct sim *sim, struct sim_client *client)
{
    struct sim_action action;
    bool may;

    if (stopped(sim, client) && sim->plan->stop_is_loss) {
        client_die(sim, client);
        return;
    }
    may =
        !client->finished && !stopped(sim, client) &&
        (client->at >= client->action_count || may_act(sim, client, &client->actions[client->at]));
    /* Another thread of the client may write a promised gradient at any time. */
    if (client->write_count > 0 && (!may || sim_draw(sim, 3) == 0)) {
        gradient_write(sim, client);
        return;
    }
    if (client->at >= client->action_count) {
        next_step(sim, client);
        return;
    }
    action = client->actions[client->at];
    if (action.kind == ACT_GRAD && sim->plan->streams)
        gradient_stream_act(sim, client, &action);
    else if (action.kind == ACT_GRAD)
        gradient_act(sim, client, &action);
    else
        act(sim, client, &action);
}
