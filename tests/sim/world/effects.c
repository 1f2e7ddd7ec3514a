/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's part: events into the core, and what each of its effects does to memory, device and
 * clients. Effects are taken to the end before the next event is handed in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world/internal.h"

static void new_boards(struct sim *sim)
{
    const struct gw_layout_page *page = layout_page(core_layout(sim->core));

    for (uint32_t r = 0; r < sim->plan->world; r++) {
        struct sim_board *board = &sim->boards[r];

        free(board->buckets);
        free(board->units);
        free(board->used);
        board->buckets = calloc(page->buckets + 1, sizeof(*board->buckets));
        board->units = calloc(page->units + 1, sizeof(*board->units));
        board->used = calloc(page->params / 8 + 1, 1);
        board->step.value = board->update.value = core_steps(sim->core);
        memset(&board->verdict, 0, sizeof(board->verdict));
    }
    if (!sim->partials) {
        sim->partials = calloc((page->buckets + 1) * SIM_RANKS_MAX, sizeof(*sim->partials));
        sim->nonfinite = calloc((page->buckets + 1) * SIM_RANKS_MAX, sizeof(*sim->nonfinite));
    }
}

static void build(struct sim *sim)
{
    const struct core_event event = {.kind = CORE_EV_BUILT};

    memory_build(sim);
    new_boards(sim);
    sim_post_event(sim, &event);
}

static void overflow(struct sim *sim, const struct core_effect *effect)
{
    uint64_t bytes = layout_page(core_layout(sim->core))->max_bucket_bytes;
    struct core_event event = {
        .kind = CORE_EV_OVERFLOW, .rank = effect->rank, .index = effect->index};

    event.code = memory_add(sim, GW_ARENA_OVERFLOW, (int)effect->rank, effect->index, bytes);
    sim_post_event(sim, &event);
}

static void report(struct sim *sim, const char *text)
{
    struct sim_result *result = sim->result;

    if (!text[0] || result->report_count == SIM_REPORTS_MAX)
        return;
    result->reports[result->report_count].now_ns = sim->now_ns;
    snprintf(result->reports[result->report_count++].text, GW_TEXT_MAX + 1, "%s", text);
}

static void fail(struct sim *sim, const struct core_effect *effect)
{
    struct sim_result *result = sim->result;

    sim->broken = true;
    result->fail_code = effect->code;
    result->fail_rank = effect->rank;
    result->fail_ns = sim->now_ns;
    snprintf(result->fail_text, sizeof(result->fail_text), "%s", effect->text);
}

static void take_effect(struct sim *sim, const struct core_effect *effect)
{
    trace_effect(sim, effect);
    switch (effect->kind) {
    case CORE_EFF_REPLY:
        client_reply(sim, effect);
        break;
    case CORE_EFF_LAUNCH:
        device_launch(sim, &effect->op);
        break;
    case CORE_EFF_SIGNAL:
        device_signal(sim, effect->after_op, &effect->signal);
        break;
    case CORE_EFF_BUILD:
        build(sim);
        break;
    case CORE_EFF_OVERFLOW:
        overflow(sim, effect);
        break;
    case CORE_EFF_FAIL:
        fail(sim, effect);
        break;
    case CORE_EFF_DROP:
        /* A rank that joins again takes its old client's place. */
        if (!sim->rejoined)
            sim_fail(sim, "client %u dropped: %s", effect->rank, effect->text);
        break;
    case CORE_EFF_PARAM_IO:
        memory_param_io(sim, effect);
        client_reply(sim, effect);
        break;
    case CORE_EFF_REPORT:
        report(sim, effect->text);
        break;
    case CORE_EFF_END:
        sim->result->ended = true;
        break;
    }
}

/* Effects are taken to the end before the next event is handed in. An answer that an effect gives
 * at once (BUILT, OVERFLOW) waits its turn. Clients of this world do not order their calls behind
 * the core's back: nothing is unread that was sent before what is handed in. */
void sim_post_event(struct sim *sim, const struct core_event *event)
{
    struct core_effect *effect;
    int r;

    if (sim->handling) {
        sim->answers[sim->answer_count++ % SIM_ANSWERS_MAX] = *event;
        return;
    }
    effect = calloc(1, sizeof(*effect));
    sim->handling = true;
    trace_event(sim, event);
    r = core_handle(sim->core, sim->now_ns, event);
    if (r < 0)
        sim_fail(sim, "core_handle: %d", r);
    twin_handle(sim, event);
    while (core_next_effect(sim->core, effect)) {
        twin_compare(sim, effect);
        take_effect(sim, effect);
    }
    twin_compare(sim, NULL);
    sim->handling = false;
    free(effect);
    if (core_unheard(sim->core))
        sim_post_event(sim, &(struct core_event){.kind = CORE_EV_HEARD});
    while (sim->answer_taken < sim->answer_count && !sim->handling) {
        struct core_event answer = sim->answers[sim->answer_taken++ % SIM_ANSWERS_MAX];

        sim_post_event(sim, &answer);
    }
}
