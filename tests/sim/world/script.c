/* SPDX-License-Identifier: Apache-2.0 */
/* What a client does, in order: set-up, then step by step, as the plan draws it. */
#include <stdlib.h>

#include "tests/sim/world/internal.h"

static void add(struct sim_client *client, enum sim_action_kind kind, uint32_t a, uint32_t b)
{
    if (client->action_count == client->action_room) {
        client->action_room = 2 * client->action_room + 64;
        client->actions = realloc(client->actions, client->action_room * sizeof(*client->actions));
        if (!client->actions)
            abort();
    }
    client->actions[client->action_count++] = (struct sim_action){kind, a, b};
}

static void ask(struct sim_client *client, enum sim_action_kind kind, uint32_t a)
{
    add(client, kind, a, 0);
    add(client, ACT_REPLY, kind, 0);
}

void script_set_up(struct sim *sim, struct sim_client *client)
{
    ask(client, ACT_JOIN, 0);
    ask(client, ACT_WAIT_READY, 0);
    for (uint32_t g = 0; g < sim->plan->group_count; g++)
        ask(client, ACT_GROUP, g);
    ask(client, ACT_REGISTER, 0);
    ask(client, ACT_SEAL, 0);
    for (uint32_t p = client->rank; p < sim->plan->param_count && !sim->rejoined;
         p += sim->plan->world) {
        if (sim->plan->params[p].numel)
            ask(client, ACT_PARAM_IO, p);
    }
    if (sim->plan->sums)
        add(client, ACT_BUFFER, 0, 0);
    add(client, ACT_BARRIER, 0, 0);
    add(client, ACT_BARRIER_WAIT, 0, 0);
    if (sim->plan->measure)
        ask(client, ACT_MEASURE, 0);
}

/* ---- one micro-step -------------------------------------------------------------------------- */

static uint64_t draw(const struct sim *sim, const struct sim_client *client, uint32_t step,
                     uint32_t micro, uint64_t what)
{
    return sim_hash(sim->plan->seed, 100 + client->rank, step * 64 + micro, what, 7);
}

static void shuffle(uint32_t *items, uint32_t count, uint64_t seed)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)(sim_hash(seed, i, 0, 0, 0) % i), item = items[j];

        items[j] = items[i - 1];
        items[i - 1] = item;
    }
}

/* Does the rank have any gradient of the unit in this micro-step? */
static bool needs_unit(const struct sim *sim, const struct sim_client *client, uint32_t step,
                       uint32_t micro, uint32_t unit)
{
    const struct gw_layout_unit *u = &layout_units(core_layout(sim->core))[unit];

    for (uint32_t p = u->first_param; p < u->first_param + u->params; p++) {
        if (plan_uses(sim->plan, client->rank, step, micro, p))
            return true;
    }
    return false;
}

static uint32_t choose_units(const struct sim *sim, const struct sim_client *client, uint32_t step,
                             uint32_t micro, uint32_t units[SIM_UNITS_MAX])
{
    uint32_t total = layout_page(core_layout(sim->core))->units, count = 0;

    for (uint32_t u = 0; u < total; u++) {
        if (needs_unit(sim, client, step, micro, u) ||
            !sim_chance(draw(sim, client, step, micro, u), sim->plan->skip_unit))
            units[count++] = u;
    }
    if (sim_chance(draw(sim, client, step, micro, 1000), sim->plan->other_order))
        shuffle(units, count, draw(sim, client, step, micro, 1001));
    return count;
}

static void add_grads_of(const struct sim *sim, struct sim_client *client, uint32_t step,
                         uint32_t micro, uint32_t param)
{
    uint32_t pieces = layout_params(core_layout(sim->core))[param].pieces;

    if (!plan_uses(sim->plan, client->rank, step, micro, param) || (client->early && micro == 0))
        return;
    for (uint32_t piece = pieces; piece-- > 0;)
        add(client, ACT_GRAD, param, piece);
}

/* All gradients of the micro-step, last parameter first, or shuffled piece by piece. */
static void add_all_grads(const struct sim *sim, struct sim_client *client, uint32_t step,
                          uint32_t micro)
{
    uint32_t first = client->action_count, count;
    uint64_t seed = draw(sim, client, step, micro, 1002);

    for (uint32_t p = sim->plan->param_count; p-- > 0;)
        add_grads_of(sim, client, step, micro, p);
    count = client->action_count - first;
    for (uint32_t i = count; i > 1 && sim->plan->shuffle; i--) {
        uint32_t j = (uint32_t)(sim_hash(seed, i, 0, 0, 0) % i);
        struct sim_action action = client->actions[first + j];

        client->actions[first + j] = client->actions[first + i - 1];
        client->actions[first + i - 1] = action;
    }
}

static void add_fetch(const struct sim *sim, struct sim_client *client, uint32_t step,
                      uint32_t micro, uint32_t unit, bool *ret_twice)
{
    *ret_twice = sim_chance(draw(sim, client, step, micro, 2000 + unit), sim->plan->twice);
    add(client, ACT_FETCH, unit, 0);
    if (*ret_twice)
        add(client, ACT_FETCH, unit, 0);
    add(client, ACT_USE, unit, 0);
}

static void add_pass(const struct sim *sim, struct sim_client *client, uint32_t step,
                     uint32_t micro, const uint32_t *units, uint32_t count, bool backward)
{
    const struct gw_layout_unit *all = layout_units(core_layout(sim->core));
    uint32_t hold = sim->plan->hold_units ? sim->plan->hold_units : 1;
    bool twice[SIM_UNITS_MAX] = {false};

    for (uint32_t i = 0; i < count + hold - 1; i++) {
        if (i < count) {
            uint32_t unit = units[backward ? count - 1 - i : i];

            add_fetch(sim, client, step, micro, unit, &twice[i]);
            for (uint32_t p = all[unit].first_param + all[unit].params;
                 backward && !sim->plan->shuffle && p-- > all[unit].first_param;)
                add_grads_of(sim, client, step, micro, p);
        }
        if (i + 1 >= hold) {
            uint32_t at = i + 1 - hold;
            uint32_t unit = units[backward ? count - 1 - at : at];

            add(client, ACT_RELEASE, unit, 0);
            if (twice[at])
                add(client, ACT_RELEASE, unit, 0);
        }
    }
}

static void add_micro_step(const struct sim *sim, struct sim_client *client, uint32_t step,
                           uint32_t micro)
{
    uint32_t units[SIM_UNITS_MAX], count;

    if (!sim->plan->fetch) {
        add_all_grads(sim, client, step, micro);
        return;
    }
    count = choose_units(sim, client, step, micro, units);
    if (count)
        add_pass(sim, client, step, micro, units, count, false);
    if (sim->plan->shuffle)
        add_all_grads(sim, client, step, micro);
    if (count)
        add_pass(sim, client, step, micro, units, count, true);
}

/* ---- one step -------------------------------------------------------------------------------- */

static bool owns_any(struct sim *sim, const struct sim_client *client)
{
    bool any = false;

    for (uint32_t b = 0; b < layout_page(core_layout(sim->core))->buckets; b++) {
        struct sim_span span;

        any |= span_of(sim, client, b, &span) && span.valid > 0;
    }
    return any;
}

void script_step(struct sim *sim, struct sim_client *client, uint32_t step)
{
    uint32_t micro_steps = plan_micro_steps(sim->plan, client->rank);
    uint32_t buckets = layout_page(core_layout(sim->core))->buckets;
    bool updates = plan_updates(sim->plan, step);
    uint64_t chance = draw(sim, client, step, 0, 3000);

    client->action_count = client->at = 0;
    client->step = step;
    if (plan_freezes(sim->plan, step))
        ask(client, ACT_FREEZE, step);
    if (sim->plan->sums)
        add(client, ACT_SUM, 0, 0);
    for (uint32_t m = 0; m < micro_steps; m++) {
        add_micro_step(sim, client, step, m);
        if (m + 1 < micro_steps)
            add(client, ACT_MICRO_END, 0, 0);
    }
    client->early = false;
    add(client, ACT_STEP_END, 0, 0);
    if (!updates && sim_chance(chance, sim->plan->run_ahead))
        return;
    if (!sim->plan->blind)
        add(client, ACT_VERDICT, 0, 0);
    if (!updates && chance / 1000 % 2)
        return;
    if (sim->plan->idle_skip && !owns_any(sim, client) && step + 1 < sim->plan->steps)
        return;
    /* Also without an update: begin and commit, with nothing written, on some ranks. */
    add(client, ACT_UPDATE_BEGIN, 0, 0);
    add(client, ACT_UPDATE_WAIT, 0, 0);
    if (sim->plan->early_grads && step + 1 < sim->plan->steps) {
        add_all_grads(sim, client, step + 1, 0);
        client->early = true;
    }
    for (uint32_t b = 0; b < buckets && updates; b++)
        add(client, ACT_WRITE, b, 0);
    add(client, ACT_COMMIT, 0, 0);
}
