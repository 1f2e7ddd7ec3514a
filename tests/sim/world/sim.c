/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The draw: of all things that could happen next, one is chosen by weight from the plan's seed, and
 * the clock moves. When nothing can happen, time jumps to the core's deadline.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world/internal.h"

#define DRAWS_MAX 3000000u
#define JUMPS_MAX 64u

void sim_fail(struct sim *sim, const char *format, ...)
{
    va_list arguments;

    if (sim->failed)
        return;
    sim->failed = true;
    va_start(arguments, format);
    vsnprintf(sim->result->error, sizeof(sim->result->error), format, arguments);
    va_end(arguments);
}

uint32_t sim_draw(struct sim *sim, uint32_t below)
{
    sim->random = sim_hash(sim->random, 1, 2, 3, 4);
    return below ? (uint32_t)(sim->random >> 16) % below : 0;
}

/* ---- the draw -------------------------------------------------------------------------------- */

static uint32_t weight(uint32_t speed)
{
    return speed ? speed : 10;
}

static uint32_t stream_speed(const struct sim_plan *plan, uint32_t stream)
{
    if (stream == CORE_STREAM_REDUCE)
        return weight(plan->reduce_speed);
    return weight(stream == CORE_STREAM_CONTROL ? plan->control_speed : plan->gather_speed);
}

static void say_stuck(struct sim *sim)
{
    char line[128], text[900] = "";

    for (uint32_t r = 0; r < sim->plan->world; r++) {
        client_describe(&sim->clients[r], line, sizeof(line));
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "; %s", line);
    }
    sim_fail(sim, "%s%s", sim->done ? "stuck without completions" : "stuck", text);
}

/* Without completions the steps go on, up to their end. */
static void check_deaf(struct sim *sim)
{
    bool in_steps = true, all_done = true;

    for (uint32_t r = 0; r < sim->plan->world; r++) {
        in_steps &= !sim->clients[r].set_up;
        all_done &= sim->clients[r].finished && stream_idle(&sim->clients[r]);
    }
    if (in_steps && !all_done)
        say_stuck(sim);
}

uint32_t sim_choices(struct sim *sim, struct sim_choice *choices)
{
    const struct sim_plan *plan = sim->plan;
    uint32_t count = 0;

    for (uint32_t r = 0; r < plan->world; r++) {
        if (client_can_act(sim, &sim->clients[r]))
            choices[count++] = (struct sim_choice){WHAT_CLIENT, r, weight(plan->client_speed[r])};
        if (sim->clients[r].out && !sim->clients[r].gone && !sim->broken)
            choices[count++] = (struct sim_choice){WHAT_WIRE, r, weight(plan->wire_speed[r])};
        for (uint32_t q = 0; q < SIM_QUEUES; q++) {
            if (stream_can_run(sim, &sim->clients[r], q))
                choices[count++] = (struct sim_choice){WHAT_QUEUE, r * SIM_QUEUES + q,
                                                       weight(plan->stream_speed[r])};
        }
    }
    for (uint32_t s = 0; s < CORE_STREAM_GATHER + plan->world; s++) {
        if (device_can_run(sim, s))
            choices[count++] = (struct sim_choice){WHAT_STREAM, s, stream_speed(plan, s)};
    }
    if (sim->done && (!plan->deaf || !count))
        choices[count++] = (struct sim_choice){WHAT_REPORT, 0, weight(plan->done_speed)};
    return count;
}

void sim_take(struct sim *sim, const struct sim_choice *choice)
{
    switch (choice->what) {
    case WHAT_CLIENT:
        client_act(sim, &sim->clients[choice->which]);
        break;
    case WHAT_WIRE:
        client_deliver(sim, &sim->clients[choice->which]);
        break;
    case WHAT_QUEUE:
        stream_run(sim, &sim->clients[choice->which / SIM_QUEUES], choice->which % SIM_QUEUES);
        break;
    case WHAT_STREAM:
        device_run(sim, choice->which);
        break;
    case WHAT_REPORT:
        if (sim->plan->deaf)
            check_deaf(sim);
        device_report(sim);
        break;
    }
}

static bool draw(struct sim *sim)
{
    struct sim_choice choices[SIM_CHOICES_MAX];
    uint32_t count = sim_choices(sim, choices), total = 0, at = 0, drawn;

    if (!count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        total += choices[i].weight;
    drawn = sim_draw(sim, total);
    while (drawn >= choices[at].weight)
        drawn -= choices[at++].weight;
    sim->now_ns += sim_draw(sim, 2000);
    sim->result->draws++;
    sim_take(sim, &choices[at]);
    return true;
}

static bool all_finished(const struct sim *sim)
{
    for (uint32_t r = 0; r < sim->plan->world; r++) {
        if (!sim->clients[r].finished || !stream_idle(&sim->clients[r]))
            return false;
    }
    return true;
}

/* Nothing can happen: the next deadline, or the end. False: the run is over. */
static bool jump(struct sim *sim, uint32_t *jumps)
{
    const struct core_event tick = {.kind = CORE_EV_TICK};
    uint64_t deadline = core_deadline_ns(sim->core);

    for (uint32_t r = 0; r < sim->plan->world; r++) {
        uint64_t wakes_ns = sim->clients[r].wakes_ns;

        if (wakes_ns > sim->now_ns && wakes_ns < deadline) {
            sim->now_ns = wakes_ns;
            return true;
        }
    }
    if (all_finished(sim) || sim->result->ended)
        return false;
    if (!sim->result->stop_ns)
        sim->result->stop_ns = sim->now_ns;
    if (deadline == UINT64_MAX || (*jumps)++ == JUMPS_MAX)
        return false;
    if (deadline > sim->now_ns)
        sim->now_ns = deadline;
    sim_post_event(sim, &tick);
    return true;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* How the updates of all owners stand when the job forms again. */
static void note_updates(struct sim *sim)
{
    sim->version = sim->clients[0].commits;
    for (uint32_t r = 0; r < sim->plan->world; r++) {
        sim->result->lost_in_update |= sim->clients[r].in_update;
        sim->result->lost_half_written |= sim->clients[r].wrote;
        sim->result->lost_between_commits |= sim->clients[r].commits != sim->version;
    }
}

static void start_clients(struct sim *sim)
{
    for (uint32_t r = 0; r < sim->plan->world; r++)
        client_start(sim, &sim->clients[r], r);
}

static void rejoin(struct sim *sim)
{
    /* What the others had sent before they knew is still read. */
    for (uint32_t r = 0; r < sim->plan->world; r++) {
        while (sim->clients[r].out && !sim->clients[r].gone)
            client_deliver(sim, &sim->clients[r]);
    }
    note_updates(sim);
    for (uint32_t r = 0; r < sim->plan->world; r++) {
        if (!sim->clients[r].gone)
            stream_run_wild(sim, &sim->clients[r]);
    }
    device_reset(sim);
    while (sim->done)
        device_report(sim);
    sim->broken = false;
    sim->rejoined = sim->result->rejoined = true;
    for (uint32_t r = 0; r < sim->plan->world; r++)
        memset(sim->boards[r].ops, 0, sizeof(sim->boards[r].ops));
    start_clients(sim);
}

/* At the end everybody leaves; nobody may be missed. */
static void leave(struct sim *sim)
{
    for (uint32_t r = 0; r < sim->plan->world; r++) {
        struct core_event event = {.kind = CORE_EV_LEAVE, .rank = r};

        sim_post_event(sim, &event);
    }
    if (sim->broken)
        sim_fail(sim, "leaving broke the job: %s", sim->result->fail_text);
}

static void gather_figures(struct sim *sim)
{
    struct wire_msg msg = {0};

    for (uint32_t r = 0; r < sim->plan->world && core_layout(sim->core); r++) {
        core_stats(sim->core, r, &msg);
        sim->result->hits += msg.u.stats.prefetch_hits;
        sim->result->misses += msg.u.stats.prefetch_misses;
        sim->result->drops += msg.u.stats.prefetch_drops;
        if (msg.u.stats.gathered_bytes_max > sim->result->gathered_max_bytes)
            sim->result->gathered_max_bytes = msg.u.stats.gathered_bytes_max;
    }
}

void sim_go_on(struct sim *sim)
{
    uint32_t jumps = 0;

    while (!sim->failed && sim->result->draws < DRAWS_MAX) {
        if (sim->broken && sim->plan->rejoin && !sim->rejoined)
            rejoin(sim);
        else if (sim->broken && !sim->plan->wait_for_end)
            break;
        if (!draw(sim) && !jump(sim, &jumps))
            break;
    }
    if (sim->result->draws == DRAWS_MAX)
        sim_fail(sim, "no end after %u draws", DRAWS_MAX);
    sim_finish(sim);
}

void sim_finish(struct sim *sim)
{
    gather_figures(sim);
    if (sim->failed || sim->broken)
        return;
    if (!all_finished(sim)) {
        say_stuck(sim);
        return;
    }
    check_final(sim);
    leave(sim);
}

struct sim *sim_close(struct sim *sim)
{
    for (uint32_t r = 0; r < SIM_RANKS_MAX; r++) {
        client_free(&sim->clients[r]);
        free(sim->boards[r].buckets);
        free(sim->boards[r].units);
        free(sim->boards[r].used);
    }
    device_free(sim);
    memory_free(sim);
    core_free(sim->core);
    core_free(sim->twin);
    reference_free(sim->reference);
    free(sim->executed);
    free(sim->partials);
    free(sim->nonfinite);
    free(sim);
    return NULL;
}

struct sim *sim_open(const struct sim_plan *plan, struct sim_result *result)
{
    struct sim *sim = calloc(1, sizeof(*sim));
    struct core_config config = plan->config;

    if (!sim)
        abort();
    memset(result, 0, sizeof(*result));
    sim->plan = plan;
    sim->result = result;
    sim->now_ns = 1000000;
    sim->random = plan->seed;
    sim->done_end = &sim->done;
    for (uint32_t s = 0; s < SIM_STREAMS; s++)
        sim->streams[s].end = &sim->streams[s].head;
    config.world = plan->world;
    sim->reference = reference_new(plan);
    if (core_new(&config, &sim->core) < 0 || core_new(&config, &sim->twin) < 0)
        sim_fail(sim, "core_new");
    else
        start_clients(sim);
    return sim;
}

void sim_run(const struct sim_plan *plan, struct sim_result *ret_result)
{
    struct sim *sim = sim_open(plan, ret_result);

    if (!sim->failed)
        sim_go_on(sim);
    sim_close(sim);
}

/* ---- plans ----------------------------------------------------------------------------------- */

struct sim_plan sim_plan_default(uint64_t seed, uint32_t stage, uint32_t world,
                                 const struct layout_param *params, uint32_t param_count)
{
    struct sim_plan plan = {.seed = seed,
                            .world = world,
                            .steps = 3,
                            .params = params,
                            .param_count = param_count,
                            .fetch = true};

    plan.seal.stage = stage;
    plan.seal.bucket_bytes = 48;
    plan.seal.shard_align_bytes = 4;
    plan.seal.micro_steps = 1;
    plan.infinite_step = plan.micro_short_rank = plan.stop_rank = plan.never_joins = SIM_NEVER;
    plan.slighted_rank = SIM_NEVER;
    return plan;
}

void sim_plan_stream(struct sim_plan *plan, uint64_t seed)
{
    static const uint32_t speeds[] = {1, 3, 10, 30, 100, 300};

    plan->streams = true;
    plan->config.device = GW_DEVICE_CUDA;
    plan->seal.gather = GW_GATHER_PRIVATE;
    /* What is frozen waits for the last step's end. */
    plan->deaf = !plan->freeze && sim_hash(seed, 5, 5, 5, 5) % 2;
    plan->narrow = sim_hash(seed, 8, 8, 8, 8) % 2;
    plan->sums = sim_hash(seed, 6, 6, 6, 6) % 2;
    plan->idle_skip = sim_hash(seed, 7, 7, 7, 7) % 4 == 0;
    for (uint32_t r = 0; r < SIM_RANKS_MAX; r++)
        plan->stream_speed[r] = speeds[sim_hash(seed, r, 4, 0, 0) % 6];
}

void sim_plan_disturb(struct sim_plan *plan, uint64_t seed)
{
    static const uint32_t speeds[] = {1, 3, 10, 10, 30, 100};
    uint32_t *const all[] = {&plan->reduce_speed, &plan->control_speed, &plan->gather_speed,
                             &plan->done_speed};

    for (uint32_t r = 0; r < SIM_RANKS_MAX; r++) {
        plan->client_speed[r] = speeds[sim_hash(seed, r, 1, 0, 0) % 6];
        plan->wire_speed[r] = speeds[sim_hash(seed, r, 2, 0, 0) % 6];
    }
    for (uint32_t i = 0; i < 4; i++)
        *all[i] = speeds[sim_hash(seed, i, 3, 0, 0) % 6];
}
