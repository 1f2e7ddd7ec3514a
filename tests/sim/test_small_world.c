/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of small worlds (explore.h): 2 to 4 ranks, three buckets, all stages, both
 * modes of accumulation, clients on the host and with streams. The states visited are printed.
 *
 * In worlds of three ranks and more, states that differ in names of ranks only count once
 * (symmetry.h): rank 0 records the order of launches, so that is ranks 1 and 2 changing places, and
 * all orders of 1 to 3.
 *
 * ctest: timeout=400 link=gw_sim
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/world/explore.h"

/* A bucket takes two elements: a0 and a1, b, c and padding. Units are the three letters. */
static const struct layout_param three[] = {
    SIM_PARAM("a0", "a", 1), SIM_PARAM("a1", "a", 1), SIM_PARAM("b", "b", 2),
    SIM_PARAM("c", "c", 1)};

/* A slice for each rank in every bucket, all alike. */
static const struct layout_param thirds[] = {
    SIM_PARAM("a", "a", 3), SIM_PARAM("b", "b", 3), SIM_PARAM("c", "c", 3)};
static const struct layout_param quarters[] = {
    SIM_PARAM("a", "a", 4), SIM_PARAM("b", "b", 4), SIM_PARAM("c", "c", 4)};

/* Two groups of both ranks, in other orders: neither waits for the other. */
static const uint32_t turned[] = {1, 0};
static const struct layout_group groups[] = {{.ranks = turned, .count = 2}};
static const struct layout_param of_two_groups[] = {
    {.name = "a", .unit = "a", .numel = 2},
    {.name = "b", .unit = "b", .numel = 2, .group = 1},
    {.name = "c", .unit = "c", .numel = 1, .group = 1}};

/* Masters are rounded. */
static const struct layout_param halves[] = {
    {.name = "a", .unit = "a", .numel = 2, .dtype = GW_DTYPE_BF16, .grad_dtype = GW_DTYPE_BF16},
    {.name = "b", .unit = "b", .numel = 3, .dtype = GW_DTYPE_BF16, .grad_dtype = GW_DTYPE_BF16}};

struct world {
    const char *what;
    uint32_t stage, accumulate, ranks, steps, params, micro_steps;
    bool fetch, streams, narrow, reports, losses;
    uint32_t ring_slots, unused;
    const struct layout_param *list; /* NULL: three */
    uint32_t groups, shard_ranks, persist_bytes, secondary_ranks, all_reduce;
};

#define LOCAL GW_ACCUMULATE_LOCAL
#define SHARD GW_ACCUMULATE_SHARD

static struct sim_plan plan_of(const struct world *world)
{
    const struct layout_param *even = world->ranks == 3 ? thirds : quarters;
    struct sim_plan plan = sim_plan_default(world->ranks - 1, world->stage, world->ranks,
                                            world->ranks > 2 ? even : three, world->params);

    plan.seal.bucket_bytes = world->ranks > 2 ? 4 * world->ranks : 8;
    if (world->list)
        plan.params = world->list;
    plan.groups = groups;
    plan.group_count = world->groups;
    plan.seal.shard_ranks = world->shard_ranks;
    plan.seal.persist_bytes = world->persist_bytes;
    plan.seal.secondary_ranks = world->secondary_ranks;
    plan.seal.all_reduce = world->all_reduce;
    plan.seal.accumulate = world->accumulate;
    plan.seal.micro_steps = world->micro_steps;
    plan.seal.ring_slots = world->ring_slots;
    plan.steps = world->steps;
    plan.fetch = world->fetch;
    plan.streams = world->streams;
    plan.narrow = world->narrow;
    plan.unused = world->unused;
    plan.config.device = world->streams ? GW_DEVICE_CUDA : GW_DEVICE_HOST;
    return plan;
}

static void explore_world(const struct world *world)
{
    struct sim_plan plan = plan_of(world);
    struct explore explore = {.plan = &plan,
                              .reports = world->reports,
                              .losses = world->losses,
                              .ahead = 2,
                              .states_max = 60000};

    explore_run(&explore);
    printf("stage %u %s, %u ranks, %u steps of %u, %s%s: %u states, %u edges, %u ends, depth %u",
           world->stage, world->accumulate == LOCAL ? "local" : "shard", world->ranks,
           world->steps, world->micro_steps, world->what,
           world->narrow ? ", streams, one queue" : world->streams ? ", streams" : "",
           explore.states, explore.edges, explore.ends, explore.depth);
    if (explore.renamings > 1)
        printf(", for %u with ranks told apart", explore.all);
    if (world->losses)
        printf(", %u losses (%u torn)", explore.went_on + explore.torn, explore.torn);
    printf("\n");
    fflush(stdout);
    assert_string_equal(explore.error, "");
    assert_true(explore.ends > 0);
    /* Nearly every state is reached in several ways: else the dump would tell too much apart. */
    assert_true(explore.merges > explore.states / 4);
    free(explore.keys);
}

static void explore_all(const struct world *worlds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        explore_world(&worlds[i]);
}

#define EXPLORE(worlds) explore_all(worlds, sizeof(worlds) / sizeof((worlds)[0]))

static void test_gradients_and_updates(void **state)
{
    static const struct world worlds[] = {
        {"updates", 0, LOCAL, 2, 2, 4, 1, .ring_slots = 3},
        {"updates", 0, SHARD, 2, 2, 4, 1, .ring_slots = 3},
        {"updates", 1, LOCAL, 2, 2, 4, 1, .ring_slots = 3},
        {"updates", 1, SHARD, 2, 2, 4, 1, .ring_slots = 3},
        {"updates", 2, LOCAL, 2, 2, 4, 1, .ring_slots = 3},
        {"updates", 2, SHARD, 2, 1, 4, 1, .ring_slots = 3},
        {"updates", 3, LOCAL, 2, 2, 4, 1, .ring_slots = 3},
        {"updates", 3, SHARD, 2, 1, 4, 1, .ring_slots = 3},
    };

    (void)state;
    EXPLORE(worlds);
}

/* Ranks change names, and it is the same job. */
static void test_three_ranks(void **state)
{
    static const struct world worlds[] = {
        {"updates", 0, LOCAL, 3, 2, 3, 1, .ring_slots = 3},
        {"updates", 1, LOCAL, 3, 1, 3, 1, .ring_slots = 3},
        {"updates", 1, SHARD, 3, 1, 3, 2, .ring_slots = 3},
        {"updates", 2, SHARD, 3, 1, 2, 1, .ring_slots = 3},
        {"updates", 3, LOCAL, 3, 2, 3, 1, .ring_slots = 3},
        {"losses", 1, LOCAL, 3, 1, 2, 1, .losses = true, .ring_slots = 3},
#ifndef __SANITIZE_ADDRESS__
        {"updates", 1, LOCAL, 3, 1, 1, 2, .ring_slots = 3},
        {"updates", 3, SHARD, 3, 1, 3, 1, .ring_slots = 3},
        {"fetches", 1, LOCAL, 3, 1, 2, 1, .fetch = true, .ring_slots = 3},
        {"fetches", 3, LOCAL, 3, 1, 3, 1, .fetch = true, .ring_slots = 3},
        {"fetches", 3, LOCAL, 3, 2, 1, 1, .fetch = true, .ring_slots = 3},
        {"fetches", 3, SHARD, 3, 1, 1, 1, .fetch = true, .ring_slots = 3},
        {"fetches and losses", 3, LOCAL, 3, 1, 1, 1, .fetch = true, .losses = true,
         .ring_slots = 3},
        {"updates", 1, LOCAL, 3, 1, 1, 1, .streams = true, .ring_slots = 3},
        {"updates", 1, LOCAL, 4, 1, 3, 1, .ring_slots = 3},
        {"fetches", 3, LOCAL, 4, 1, 1, 1, .fetch = true, .ring_slots = 3},
#endif
    };

    (void)state;
    EXPLORE(worlds);
}

#ifndef __SANITIZE_ADDRESS__
static int by_value(const void *one, const void *other)
{
    const uint64_t *a = one, *b = other;

    return *a < *b ? -1 : *a > *b;
}

/* Sorts, and keeps one of each. */
static uint32_t make_set(uint64_t *keys, uint32_t count)
{
    uint32_t kept = 0;

    qsort(keys, count, sizeof(*keys), by_value);
    for (uint32_t i = 0; i < count; i++) {
        if (kept == 0 || keys[i] != keys[kept - 1])
            keys[kept++] = keys[i];
    }
    return kept;
}

/* With ranks told apart, a state for each name of one that is visited else, and no other. */
static void test_nothing_is_left_out(void **state)
{
    static const struct world worlds[] = {
        {"updates", 1, LOCAL, 3, 1, 3, 1, .ring_slots = 3},
        {"updates", 2, SHARD, 3, 1, 1, 1, .ring_slots = 3},
        {"fetches", 3, LOCAL, 3, 1, 1, 1, .fetch = true, .ring_slots = 3},
        {"updates", 3, LOCAL, 4, 1, 2, 1, .ring_slots = 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct sim_plan plan = plan_of(&worlds[i]);
        struct explore some = {.plan = &plan, .states_max = 60000};
        struct explore all = {.plan = &plan, .states_max = 60000, .apart = true};

        explore_run(&some);
        explore_run(&all);
        printf("%u ranks: %u states, told apart %u\n", plan.world, some.states, all.states);
        assert_string_equal(some.error, "");
        assert_string_equal(all.error, "");
        assert_int_equal(some.all, all.states);
        assert_true(all.states > (plan.world - 1) * some.states / 2);
        assert_int_equal(make_set(some.keys, some.states), some.states);
        assert_int_equal(make_set(all.keys, all.states), some.states);
        assert_memory_equal(some.keys, all.keys, some.states * sizeof(*some.keys));
        free(some.keys);
        free(all.keys);
    }
}

/* One rank's gathers come later than others': seen, but for rank 0, which has no other name. */
static void test_a_slighted_rank_is_found(void **state)
{
    static const struct world world = {"fetches", 3, LOCAL, 3, 1, 2, 1, .fetch = true};

    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct sim_plan plan = plan_of(&world);
        struct explore explore = {.plan = &plan, .states_max = 60000};

        plan.slighted_rank = rank;
        explore_run(&explore);
        if (rank == 0)
            assert_string_equal(explore.error, "");
        else
            assert_non_null(strstr(explore.error, "other names"));
        free(explore.keys);
    }
}

#endif

static void test_micro_steps(void **state)
{
    static const struct world worlds[] = {
        {"unused gradients", 0, LOCAL, 2, 1, 4, 2, .ring_slots = 3, .unused = 300},
        {"unused gradients", 0, SHARD, 2, 1, 4, 2, .ring_slots = 3, .unused = 300},
        {"unused gradients", 1, LOCAL, 2, 1, 4, 2, .ring_slots = 3, .unused = 300},
        {"unused gradients", 1, SHARD, 2, 1, 4, 2, .ring_slots = 3, .unused = 300},
        {"unused gradients", 2, LOCAL, 2, 1, 4, 2, .ring_slots = 3, .unused = 300},
        {"unused gradients", 2, SHARD, 2, 1, 3, 2, .ring_slots = 2, .unused = 300},
        {"unused gradients", 3, SHARD, 2, 1, 3, 2, .ring_slots = 2, .unused = 300},
    };

    (void)state;
    EXPLORE(worlds);
}

#ifndef __SANITIZE_ADDRESS__
/* One slot for three buckets: whoever finds it taken asks, and is answered or given another. */
static void test_slots(void **state)
{
    static const struct world worlds[] = {
        {"one slot", 2, SHARD, 2, 1, 4, 1, .ring_slots = 1, .reports = true},
        {"one slot", 3, SHARD, 2, 1, 4, 1, .ring_slots = 1},
    };

    (void)state;
    EXPLORE(worlds);
}

static void test_fetches(void **state)
{
    static const struct world worlds[] = {
        {"fetches", 0, LOCAL, 2, 2, 4, 1, .fetch = true, .ring_slots = 3},
        {"fetches", 1, LOCAL, 2, 2, 4, 1, .fetch = true, .ring_slots = 3},
        {"fetches", 2, SHARD, 2, 1, 4, 1, .fetch = true, .ring_slots = 3},
        {"fetches", 3, LOCAL, 2, 2, 4, 1, .fetch = true, .ring_slots = 3},
        {"fetches", 3, SHARD, 2, 1, 4, 1, .fetch = true, .ring_slots = 3},
        {"copies of what is fetched", 3, LOCAL, 2, 2, 3, 1, .fetch = true, .ring_slots = 3,
         .secondary_ranks = 1},
        {"copies of two ranks each", 3, LOCAL, 4, 1, 1, 1, .fetch = true, .ring_slots = 3,
         .secondary_ranks = 2},
    };

    (void)state;
    EXPLORE(worlds);
}

static void test_streams(void **state)
{
    static const struct world worlds[] = {
        {"updates", 0, LOCAL, 2, 2, 3, 1, .streams = true, .ring_slots = 3},
        {"updates", 1, LOCAL, 2, 1, 4, 1, .streams = true, .ring_slots = 3},
        {"updates", 2, SHARD, 2, 1, 4, 1, .streams = true, .ring_slots = 1},
        {"fetches", 1, LOCAL, 2, 2, 3, 1, .streams = true, .fetch = true, .ring_slots = 3},
        {"fetches", 3, LOCAL, 2, 2, 3, 1, .streams = true, .fetch = true, .ring_slots = 3},
    };

    (void)state;
    EXPLORE(worlds);
}

/* Whatever ranks enqueue ahead, over micro-steps and steps: the order of the core's effects is one
 * in which all can run, one after the other. */
static void test_one_queue(void **state)
{
    static const struct world worlds[] = {
        {"fetches", 1, LOCAL, 2, 2, 1, 2, .streams = true, .narrow = true, .fetch = true},
        {"fetches", 3, LOCAL, 2, 2, 1, 1, .streams = true, .narrow = true, .fetch = true},
    };

    (void)state;
    EXPLORE(worlds);
}

#endif

static void test_groups(void **state)
{
    static const struct world worlds[] = {
        {"two groups", 1, LOCAL, 2, 1, 3, 1, .ring_slots = 3, .list = of_two_groups, .groups = 1},
        {"two groups", 2, SHARD, 2, 1, 3, 1, .ring_slots = 1, .list = of_two_groups, .groups = 1},
        {"runs of one", 1, LOCAL, 2, 2, 3, 1, .ring_slots = 3, .shard_ranks = 1},
        {"runs of one", 2, SHARD, 2, 1, 3, 2, .ring_slots = 2, .shard_ranks = 1},
    };

    (void)state;
    EXPLORE(worlds);
}

/* They write what clients wrote: whoever refills a buffer comes later, and nobody reads it. */
static void test_all_reduces(void **state)
{
    static const struct world worlds[] = {
        {"all-reduces", 1, LOCAL, 2, 2, 3, 1, .ring_slots = 3, .all_reduce = 1},
        {"all-reduces", 2, SHARD, 2, 1, 3, 2, .ring_slots = 1, .unused = 300, .all_reduce = 1},
    };

    (void)state;
    EXPLORE(worlds);
}

static void test_rounding(void **state)
{
    static const struct world worlds[] = {
        {"rounding", 0, LOCAL, 2, 2, 2, 1, .fetch = true, .ring_slots = 3, .list = halves},
        {"rounding", 1, LOCAL, 2, 2, 1, 1, .fetch = true, .ring_slots = 3, .list = halves},
        {"rounding", 3, LOCAL, 2, 2, 1, 1, .fetch = true, .ring_slots = 3, .list = halves},
        {"persistent", 3, LOCAL, 2, 2, 2, 1, .fetch = true, .ring_slots = 3, .list = halves,
         .persist_bytes = 4},
    };

    (void)state;
    EXPLORE(worlds);
}

/* In each state each rank dies: all hear of it, come again, and training ends right, or the job
 * says that a shard is torn. */
static void test_losses(void **state)
{
    static const struct world worlds[] = {
        {"losses", 0, LOCAL, 2, 2, 3, 1, .losses = true, .ring_slots = 3},
        {"losses", 1, LOCAL, 2, 2, 3, 1, .losses = true, .ring_slots = 3},
        {"losses", 2, SHARD, 2, 1, 3, 1, .losses = true, .ring_slots = 2},
        {"losses", 3, LOCAL, 2, 1, 3, 1, .losses = true, .fetch = true, .ring_slots = 3},
        {"losses, copies of what is fetched", 3, LOCAL, 2, 2, 1, 1, .losses = true, .fetch = true,
         .ring_slots = 3, .secondary_ranks = 1},
        {"losses", 0, LOCAL, 2, 2, 1, 1, .losses = true, .fetch = true, .list = halves},
        {"losses", 1, LOCAL, 2, 1, 2, 1, .losses = true, .fetch = true, .list = halves},
    };

    (void)state;
    EXPLORE(worlds);
}

/* A client that breaks a rule of its own, in no more than one interleaving, is caught. */
static void test_broken_rules_are_found(void **state)
{
    static const uint32_t rules[] = {SIM_DROP_BUFFER_CONSUMED, SIM_DROP_VERDICT_READ,
                                     SIM_DROP_GATHERED};

    (void)state;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        struct sim_plan plan = sim_plan_default(1, 1, 2, three, 3);
        struct explore explore = {.plan = &plan, .states_max = 60000};

        plan.seal.bucket_bytes = 8;
        plan.seal.micro_steps = 2;
        plan.steps = 2;
        plan.fetch = true;
        plan.drop_client = rules[i];
        explore_run(&explore);
        assert_true(explore.error[0]);
        free(explore.keys);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_and_updates),
        cmocka_unit_test(test_three_ranks),
        cmocka_unit_test(test_micro_steps),
#ifndef __SANITIZE_ADDRESS__ /* ten times slower, for the same states */
        cmocka_unit_test(test_nothing_is_left_out),
        cmocka_unit_test(test_a_slighted_rank_is_found),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_fetches),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_one_queue),
#endif
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_all_reduces),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_broken_rules_are_found),
    };

    return cmocka_run_group_tests_name("sim_small_world", tests, NULL, NULL);
}
