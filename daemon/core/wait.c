/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No silent wait: finds what the job has waited for longest, reports it when it stalls, and ends it
 * at its deadline. Joining has one deadline, everything after it another; a wait's clock begins
 * when its first rank arrives, but not before all ranks have joined.
 *
 *   since ----- stall_report ----- x2 --------- x4 ... ----- deadline: GW_E_TIMEOUT
 *
 * Pure; the core's thread, at the end of each event. Reads the other parts, changes only `stall`.
 */
#include "daemon/core/core_internal.h"

#include <string.h>

#define NS_PER_S 1000000000ull

enum wait_source {
    WAIT_JOIN,
    WAIT_SEAL,
    WAIT_GROUP,
    WAIT_LANE,
    WAIT_ZERO,
    WAIT_FLIGHT,
    WAIT_SOURCES
};

static uint64_t add_ns(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static void add_seconds(struct text *text, uint64_t ns)
{
    if (ns % NS_PER_S == 0)
        text_add(text, "%llu s", (unsigned long long)(ns / NS_PER_S));
    else
        text_add(text, "%.3f s", (double)ns / (double)NS_PER_S);
}

/* ---- what is waited for ---------------------------------------------------------------------- */

static bool join_wait(const struct core *core, struct core_wait *ret_wait)
{
    struct text text;

    if (core->complete || !ranks_any(&core->present))
        return false;
    ret_wait->since_ns = core->first_join_ns;
    ret_wait->missing = ranks_and_not(&core->everyone, &core->present);
    text_start(&text, ret_wait->text, sizeof(ret_wait->text));
    text_add(&text, "join of generation %u", core->generation);
    return true;
}

static bool seal_wait(const struct core *core, struct core_wait *ret_wait)
{
    struct text text;

    if (!seal_pending(core) || ranks_equal(&core->sealed_ranks, &core->everyone))
        return false;
    ret_wait->since_ns = core->seal_since_ns;
    ret_wait->missing = ranks_and_not(&core->everyone, &core->sealed_ranks);
    text_start(&text, ret_wait->text, sizeof(ret_wait->text));
    text_add(&text, "seal");
    return true;
}

static bool zero_wait(const struct core *core, struct core_wait *ret_wait)
{
    return core->sealed && zero_oldest_wait(core->zero, ret_wait);
}

static bool (*const sources[WAIT_SOURCES])(const struct core *, struct core_wait *) = {
    [WAIT_JOIN] = join_wait, [WAIT_SEAL] = seal_wait, [WAIT_GROUP] = group_wait,
    [WAIT_LANE] = lane_wait, [WAIT_ZERO] = zero_wait, [WAIT_FLIGHT] = flight_wait,
};

/* The oldest wait; the earlier source where two began together. False: none. */
static bool oldest(const struct core *core, struct core_wait *ret_wait, uint32_t *ret_source)
{
    uint32_t last = core->complete ? WAIT_SOURCES : WAIT_JOIN + 1;
    struct core_wait wait;
    bool found = false;

    for (uint32_t source = 0; source < last && ranks_any(&core->present); source++) {
        wait.op = 0;
        wait.text[0] = 0;
        if (!sources[source](core, &wait))
            continue;
        if (source != WAIT_JOIN && wait.since_ns < core->complete_ns)
            wait.since_ns = core->complete_ns;
        if (found && wait.since_ns >= ret_wait->since_ns)
            continue;
        *ret_wait = wait;
        *ret_source = source;
        found = true;
    }
    return found;
}

/* Ops come by the thousand, and what they are is told of few of them. */
static void describe(const struct core *core, uint32_t source, struct core_wait *wait)
{
    struct text text;

    if (wait->op == 0)
        return;
    text_start(&text, wait->text, sizeof(wait->text));
    if (source == WAIT_LANE)
        lane_describe_wait(core, &text);
    else
        flight_describe_wait(core, &text);
}

/* ---- reports --------------------------------------------------------------------------------- */

static void stall_over(struct core *core)
{
    if (core->stall.active && core->stall.reported)
        effects_add(core->effects, CORE_EFF_REPORT);
    core->stall.active = false;
}

/* The first of the wait's doubled times from now on: what has long been waited for beside an older
 * wait is not reported in the moment when both resolve. */
static uint64_t next_report(const struct core *core, const struct core_wait *wait)
{
    uint64_t interval = core->config.stall_report_ns;

    while (add_ns(wait->since_ns, interval) < core->now_ns)
        interval = add_ns(interval, interval);
    return add_ns(wait->since_ns, interval);
}

static void stall_follow(struct core *core, const struct core_wait *wait, uint32_t source)
{
    if (core->stall.active && core->stall.source == source &&
        core->stall.since_ns == wait->since_ns && core->stall.op == wait->op &&
        strcmp(core->stall.text, wait->text) == 0)
        return;
    stall_over(core);
    core->stall.active = true;
    core->stall.reported = false;
    core->stall.source = source;
    core->stall.since_ns = wait->since_ns;
    core->stall.op = wait->op;
    core->stall.report_ns = next_report(core, wait);
    memcpy(core->stall.text, wait->text, sizeof(core->stall.text));
}

static void stall_report(struct core *core, struct core_wait *wait)
{
    uint64_t interval = core->stall.report_ns - wait->since_ns;
    struct core_effect *effect;
    struct text text;

    if (core->now_ns < core->stall.report_ns)
        return;
    describe(core, core->stall.source, wait);
    effect = effects_add(core->effects, CORE_EFF_REPORT);
    text_start(&text, effect->text, sizeof(effect->text));
    text_add(&text, "%s: ", wait->text);
    add_seconds(&text, core->now_ns - wait->since_ns);
    if (ranks_any(&wait->missing)) {
        text_add(&text, ", ranks not arrived: ");
        text_add_ranks(&text, &wait->missing);
    } else {
        text_add(&text, ", all ranks arrived, not finished");
    }
    core->stall.reported = true;
    while (core->stall.report_ns <= core->now_ns && core->stall.report_ns != UINT64_MAX) {
        interval = add_ns(interval, interval);
        core->stall.report_ns = add_ns(wait->since_ns, interval);
    }
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static void time_out(struct core *core, struct core_wait *wait, uint32_t source)
{
    const struct ranks *missing = &wait->missing;
    uint32_t rank = CORE_NO_RANK;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);

    describe(core, source, wait);
    if (ranks_count(missing) == 1)
        rank = ranks_first(missing);
    text_add(&text, "%s: ", wait->text);
    if (ranks_any(missing)) {
        text_add(&text, "ranks not arrived within ");
        add_seconds(&text, core->now_ns - wait->since_ns);
        text_add(&text, ": ");
        text_add_ranks(&text, missing);
    } else {
        text_add(&text, "all ranks arrived, but it is not finished after ");
        add_seconds(&text, core->now_ns - wait->since_ns);
    }
    text_add(&text, source == WAIT_JOIN ? " (join_timeout_ns)" : " (op_timeout_ns)");
    core_fail(core, GW_E_TIMEOUT, rank, "%s", line);
}

/* A broken job may form again until then. */
static void wait_broken(struct core *core)
{
    uint64_t deadline_ns = add_ns(core->broken_ns, core->config.join_timeout_ns);

    stall_over(core);
    core->deadline_ns = deadline_ns;
    if (core->now_ns < deadline_ns)
        return;
    core->ended = true;
    core->deadline_ns = UINT64_MAX;
    effects_add(core->effects, CORE_EFF_END);
}

void wait_update(struct core *core)
{
    struct core_wait wait = {0};
    uint32_t source = WAIT_JOIN;
    uint64_t deadline_ns = UINT64_MAX;

    core->deadline_ns = UINT64_MAX;
    if (core->ended)
        return;
    if (!core->broken && !oldest(core, &wait, &source)) {
        stall_over(core);
        return;
    }
    if (!core->broken) {
        deadline_ns = add_ns(wait.since_ns, source == WAIT_JOIN ? core->config.join_timeout_ns
                                                                : core->config.op_timeout_ns);
        if (core->now_ns >= deadline_ns)
            time_out(core, &wait, source);
    }
    if (core->broken) {
        wait_broken(core);
        return;
    }
    stall_follow(core, &wait, source);
    stall_report(core, &wait);
    core->deadline_ns = deadline_ns < core->stall.report_ns ? deadline_ns : core->stall.report_ns;
}
