/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every row of edges.def left out in turn: the simulator must then see a wrong value or a named
 * error in some timing, and nothing wrong in the same timings with the row in force.
 * ctest: label=edges timeout=240 link=gw_sim
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/edges.h"
#include "tests/sim/world/reference.h"
#include "tests/sim/world/sim.h"

#define TIMINGS 60u

static const struct layout_param model[] = {
    SIM_PARAM("a", "u0", 5), SIM_PARAM("b", "u0", 1), SIM_PARAM("c", "u1", 7),
    SIM_PARAM("d", "u1", 3), SIM_PARAM("e", "u1", 2), SIM_PARAM("f", "u2", 6),
    SIM_PARAM("g", "u2", 4), SIM_PARAM("h", "u3", 4)};

struct row {
    const char *name;
    uint64_t core;   /* bits of core_config.drop_edges */
    uint32_t client; /* enum sim_client_edge */
    uint32_t stage;
    bool streams;    /* clients of a job on GPUs */
    void (*arrange)(struct sim_plan *plan); /* what makes it likely to show */
};

static void producers_are_late(struct sim_plan *plan)
{
    plan->token = 800;
}

static void some_unused(struct sim_plan *plan)
{
    plan->unused = 400;
}

static void slow_control(struct sim_plan *plan)
{
    plan->reduce_speed = 1;
    plan->control_speed = 100;
}

static void slow_reduce(struct sim_plan *plan)
{
    plan->reduce_speed = 1;
    plan->seal.micro_steps = 2;
}

static void blind_update(struct sim_plan *plan)
{
    plan->blind = true;
    plan->client_speed[plan->seed % 3] = 1;
}

static void mapped(struct sim_plan *plan)
{
    blind_update(plan);
    plan->seal.gather = GW_GATHER_MAPPED;
}

static void one_slow_client(struct sim_plan *plan)
{
    plan->client_speed[plan->seed % 3] = 1;
}

/* The next step's backward runs beside a slow optimizer. */
static void early_gradients(struct sim_plan *plan)
{
    plan->early_grads = true;
    plan->seal.ring_slots = 8;
    plan->client_speed[plan->seed % 3] = 1;
}

static void slow_gather(struct sim_plan *plan)
{
    plan->gather_speed = 1;
}

static void two_held(struct sim_plan *plan)
{
    plan->hold_units = 2;
}

/* Streams of one client lag behind its host, and behind the other clients. */
static void slow_streams(struct sim_plan *plan)
{
    plan->client_speed[plan->seed % 3] = 300;
    plan->stream_speed[plan->seed % 3] = 1;
}

/* Room for one unit more than is held: the next fetch takes what the last release left. */
static void small_pool(struct sim_plan *plan)
{
    slow_streams(plan);
    plan->gather_speed = 300;
    plan->seal.gather_bytes = 48;
}

/* Rank 2 owns nothing of so small a model: it makes no update, and still reads while others do. */
static void idle_reader(struct sim_plan *plan)
{
    plan->param_count = 1;
    plan->seal.shard_align_bytes = 16;
    plan->idle_skip = true;
    plan->gather_speed = 300;
    plan->stream_speed[2] = 1;
}

/* The next step's gradients are declared, with tokens, before the commit. */
static void early_streams(struct sim_plan *plan)
{
    early_gradients(plan);
    slow_streams(plan);
}

/* bf16 parameters; whoever rounds its masters is slow at times. */
static void rounded(struct sim_plan *plan)
{
    static struct layout_param halves[8];

    memcpy(halves, model, sizeof(model));
    for (size_t p = 0; p < 8; p++)
        halves[p].dtype = p == 4 ? GW_DTYPE_FP32 : GW_DTYPE_BF16;
    plan->params = halves;
}

static void rounded_streams(struct sim_plan *plan)
{
    rounded(plan);
    slow_streams(plan);
}

/* Runs of one: each rank's gradients are summed with the others' where they lie, at the end. Nobody
 * updates, and some do not wait for the verdict. */
static void runs(struct sim_plan *plan)
{
    plan->reduce_speed = 1;
    plan->seal.shard_ranks = 1;
    plan->no_update = 1000;
    plan->run_ahead = 500;
}

/* Blocks of two: who comes second gathers from what the first one's fill brings, or is to bring. */
static void blocks(struct sim_plan *plan)
{
    plan->world = 4;
    plan->seal.secondary_ranks = 2;
    plan->gather_speed = 1;
}

static void blocks_streams(struct sim_plan *plan)
{
    slow_streams(plan);
    blocks(plan);
}

static void sums(struct sim_plan *plan)
{
    slow_streams(plan);
    plan->sums = true;
}

#define CORE_ROW(edge, stage, arrange)                                                             \
    {                                                                                              \
#edge, 1ull << EDGE_##edge, 0, stage, false, arrange                                       \
    }
#define CLIENT_ROW(edge, stage, arrange)                                                           \
    {                                                                                              \
#edge, 0, SIM_DROP_##edge, stage, false, arrange                                           \
    }
#define STREAM_ROW(edge, stage, arrange)                                                           \
    {                                                                                              \
#edge, 1ull << EDGE_##edge, 0, stage, true, arrange                                        \
    }
#define STREAM_CLIENT_ROW(edge, stage, arrange)                                                    \
    {                                                                                              \
#edge, 0, SIM_DROP_##edge, stage, true, arrange                                            \
    }

static const struct row rows[] = {
    CORE_ROW(GRAD_WRITTEN, 1, producers_are_late),
    CORE_ROW(GRAD_WRITTEN, 2, producers_are_late),
    CORE_ROW(ALL_READY, 0, one_slow_client),
    CORE_ROW(ALL_READY, 2, one_slow_client),
    CORE_ROW(ZERO_FILLED, 1, some_unused),
    CORE_ROW(ZERO_FILLED, 2, some_unused),
    CLIENT_ROW(BUFFER_CONSUMED, 1, slow_reduce),
    CLIENT_ROW(BUFFER_CONSUMED, 1, runs),
    CLIENT_ROW(BUFFER_CONSUMED, 2, slow_reduce),
    CORE_ROW(SHARD_CONSUMED, 2, early_gradients),
    CORE_ROW(SHARD_CONSUMED, 3, early_gradients),
    CORE_ROW(ROUNDED, 0, rounded),
    CORE_ROW(ROUNDED, 1, rounded),
    CORE_ROW(ROUNDED, 3, rounded),
    CORE_ROW(SECONDARY, 3, blocks),
    CORE_ROW(VERDICT_LAST, 0, slow_control),
    CORE_ROW(VERDICT_LAST, 2, slow_control),
    CLIENT_ROW(VERDICT_READ, 2, slow_reduce),
    CORE_ROW(READS_OVER, 3, blind_update),
    CORE_ROW(READS_OVER, 3, mapped),
    CORE_ROW(VERSION, 1, one_slow_client),
    CORE_ROW(VERSION, 3, one_slow_client),
    CLIENT_ROW(GATHERED, 1, slow_gather),
    CLIENT_ROW(GATHERED, 3, slow_gather),
    CORE_ROW(POOL_FREE, 3, two_held),
    STREAM_ROW(GRAD_WRITTEN, 2, slow_streams),
    STREAM_ROW(FILLED, 2, sums),
    STREAM_CLIENT_ROW(BUFFER_CONSUMED, 1, slow_reduce),
    STREAM_CLIENT_ROW(BUFFER_CONSUMED, 2, slow_reduce),
    STREAM_ROW(ROUNDED, 2, rounded_streams),
    STREAM_ROW(SECONDARY, 3, blocks_streams),
    STREAM_ROW(COMMITTED, 1, slow_streams),
    STREAM_ROW(COMMITTED, 2, early_streams),
    STREAM_ROW(COMMITTED, 3, slow_streams),
    STREAM_CLIENT_ROW(VERDICT_READ, 2, slow_reduce),
    STREAM_ROW(READS_DONE, 1, idle_reader),
    STREAM_CLIENT_ROW(GATHERED, 3, slow_gather),
    STREAM_ROW(RELEASED, 3, small_pool),
};

static struct sim_plan plan_of(const struct row *row, uint64_t seed)
{
    struct sim_plan plan = sim_plan_default(seed, row->stage, 3, model, 8);

    plan.steps = 3;
    sim_plan_disturb(&plan, seed);
    if (row->streams)
        sim_plan_stream(&plan, seed);
    row->arrange(&plan);
    return plan;
}

static bool goes_wrong(const struct sim_plan *plan, struct sim_result *result)
{
    sim_run(plan, result);
    return result->error[0] || result->fail_code;
}

static void check_row(const struct row *row)
{
    struct sim_result result, seen = {.error = ""};
    uint32_t wrong = 0;

    for (uint64_t seed = 0; seed < TIMINGS; seed++) {
        struct sim_plan plan = plan_of(row, seed);

        if (goes_wrong(&plan, &result)) {
            print_error("%s stage %u seed %lu, edge in force: %s; %s\n", row->name, row->stage,
                        (unsigned long)seed, result.error, result.fail_text);
            fail();
        }
        plan.config.drop_edges = row->core;
        plan.drop_client = row->client;
        if (goes_wrong(&plan, &result)) {
            seen = wrong++ ? seen : result;
        }
    }
    print_message("%-16s stage %u%s: %2u of %u timings go wrong, e.g. %s%s\n", row->name,
                  row->stage, row->streams ? ", streams" : "", wrong, TIMINGS, seen.error,
                  seen.fail_text);
    assert_true(wrong > 0);
}

static void test_every_edge_is_needed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_row(&rows[i]);
}

/* No row of the table is forgotten above. */
static void test_every_row_of_the_table_is_shown(void **state)
{
    static const char *const table[] = {
#define X(name, side, what, why) #name,
#include "daemon/core/edges.def"
#undef X
    };

    (void)state;
    for (size_t e = 0; e < sizeof(table) / sizeof(table[0]); e++) {
        bool shown = false;

        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
            shown |= !strcmp(rows[i].name, table[e]);
        if (!shown)
            print_error("no row for %s\n", table[e]);
        assert_true(shown);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_of_the_table_is_shown),
        cmocka_unit_test(test_every_edge_is_needed),
    };

    return cmocka_run_group_tests_name("sim_edges", tests, NULL, NULL);
}
