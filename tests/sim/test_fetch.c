/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stage 3 in virtual time: how many gathers a step takes, prefetch hits, budgets, odd orders.
 * ctest: timeout=120 link=gw_sim
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/world/reference.h"
#include "tests/sim/world/sim.h"

/* Ten units of two parameters, 12 elements each: ten buckets of 12, no merging, no padding. */
#define TEN_UNITS 10u
#define UNIT_BYTES 48u
static const struct layout_param ten[] = {
    SIM_PARAM("a0", "a", 8), SIM_PARAM("a1", "a", 4), SIM_PARAM("b0", "b", 8),
    SIM_PARAM("b1", "b", 4), SIM_PARAM("c0", "c", 8), SIM_PARAM("c1", "c", 4),
    SIM_PARAM("d0", "d", 8), SIM_PARAM("d1", "d", 4), SIM_PARAM("e0", "e", 8),
    SIM_PARAM("e1", "e", 4), SIM_PARAM("f0", "f", 8), SIM_PARAM("f1", "f", 4),
    SIM_PARAM("g0", "g", 8), SIM_PARAM("g1", "g", 4), SIM_PARAM("h0", "h", 8),
    SIM_PARAM("h1", "h", 4), SIM_PARAM("i0", "i", 8), SIM_PARAM("i1", "i", 4),
    SIM_PARAM("j0", "j", 8), SIM_PARAM("j1", "j", 4)};

static struct sim_plan ten_plan(uint64_t seed, uint32_t world)
{
    struct sim_plan plan = sim_plan_default(seed, 3, world, ten, 20);

    plan.seal.bucket_bytes = UNIT_BYTES;
    plan.steps = 5;
    sim_plan_disturb(&plan, seed);
    return plan;
}

static void run_once(const struct sim_plan *plan, struct sim_result *result)
{
    sim_run(plan, result);
    if (result->error[0] || result->fail_code)
        print_error("seed %lu%s: %s; failed with %d: %s\n", (unsigned long)plan->seed,
                    plan->streams ? ", streams" : "", result->error, result->fail_code,
                    result->fail_text);
    assert_string_equal(result->error, "");
    assert_int_equal(result->fail_code, 0);
    assert_int_equal(result->report_count, 0);
}

/* What is gathered depends on the clients' calls only: the same with streams. */
static void run(const struct sim_plan *plan, struct sim_result *result)
{
    struct sim_plan streams = *plan;
    struct sim_result other;

    run_once(plan, result);
    sim_plan_stream(&streams, plan->seed);
    streams.sums = false;
    run_once(&streams, &other);
    assert_int_equal(other.calls[GW_KIND_ALL_GATHER], result->calls[GW_KIND_ALL_GATHER]);
    assert_int_equal(other.hits, result->hits);
    assert_int_equal(other.misses, result->misses);
    assert_int_equal(other.drops, result->drops);
    if (plan->seal.gather == GW_GATHER_PRIVATE)
        assert_int_equal(other.gathered_max_bytes, result->gathered_max_bytes);
    assert_int_equal(other.params_hash, result->params_hash);
}

/* 20 residencies per step and rank: forward and backward of ten units. In the first step nothing is
 * known; from the second on all but the very first fetch are gathered ahead. */
static void test_prefetch_hits_from_the_second_step(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        struct sim_plan plan = ten_plan(seed, 2);
        struct sim_result result;

        run(&plan, &result);
        assert_int_equal(result.calls[GW_KIND_ALL_GATHER], 20 * plan.steps);
        assert_int_equal(result.hits, 2 * 19 * (plan.steps - 1));
        assert_int_equal(result.hits + result.misses, 2 * 20 * plan.steps);
        assert_int_equal(result.drops, 0);
    }
}

/* Of each unit the smaller parameter (16 of 48 bytes) stays gathered: one gather more per step,
 * after the update, and units of two thirds. */
static void test_persistent_parameters_are_gathered_once_a_step(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 10; seed++) {
        struct sim_plan plan = ten_plan(seed, 2);
        struct sim_result result;

        plan.seal.persist_bytes = 16;
        plan.seal.bucket_bytes = 32;
        run(&plan, &result);
        assert_int_equal(result.calls[GW_KIND_ALL_GATHER], (20 + 1) * plan.steps);
        assert_int_equal(result.payload_bytes[GW_KIND_ALL_GATHER],
                         (20 * 32 + 10 * 16) * plan.steps);
        assert_int_equal(result.hits, 2 * 19 * (plan.steps - 1));
    }
}

/* Forward a ... j, backward j ... a: between the two fetches of i, 48 bytes of j are fetched. The
 * last units of the forward pass stay gathered for the backward one, from the second step on. */
static void test_units_that_are_fetched_again_soon_stay(void **state)
{
    struct sim_plan plan = ten_plan(3, 2);
    struct sim_result without, with;

    (void)state;
    plan.seal.gather_bytes = 6 * UNIT_BYTES;
    run(&plan, &without);
    plan.seal.reuse_bytes = 3 * UNIT_BYTES;
    run(&plan, &with);
    assert_int_equal(without.calls[GW_KIND_ALL_GATHER], 20 * plan.steps);
    assert_true(with.calls[GW_KIND_ALL_GATHER] < without.calls[GW_KIND_ALL_GATHER]);
    assert_int_equal(with.params_hash, without.params_hash);
}

/* Four ranks in blocks of two: of each version (there is one per step) a block gathers each of ten
 * units once from all owners, and fills its copy with it; the other 20 - 5 gathers per rank and
 * step, on average, read such copies. Values are the same, and so is what a rank gathers. */
static void test_blocks_gather_a_version_once_from_all_owners(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        struct sim_plan plan = ten_plan(seed, 4);
        struct sim_result without, with;

        run(&plan, &without);
        assert_int_equal(without.fills + without.second_gathers, 0);
        plan.seal.secondary_ranks = 2;
        run(&plan, &with);
        assert_int_equal(with.fills, 2 * 10 * plan.steps);
        assert_int_equal(with.second_gathers, (4 * 20 - 2 * 10) * plan.steps);
        assert_int_equal(with.calls[GW_KIND_ALL_GATHER], without.calls[GW_KIND_ALL_GATHER]);
        assert_int_equal(with.payload_bytes[GW_KIND_ALL_GATHER],
                         without.payload_bytes[GW_KIND_ALL_GATHER]);
        assert_int_equal(with.hits, without.hits);
        assert_int_equal(with.params_hash, without.params_hash);
    }
}

/* Without updates there is one version. Blocks of one: each rank keeps all that it gathers. Blocks
 * of all: the shards themselves. */
static void test_a_copy_lasts_as_long_as_its_version(void **state)
{
    struct sim_plan plan = ten_plan(5, 4);
    struct sim_result result;

    (void)state;
    plan.no_update = plan.run_ahead = 1000;
    plan.seal.secondary_ranks = 2;
    run(&plan, &result);
    assert_int_equal(result.fills, 2 * 10);
    plan.seal.secondary_ranks = 1;
    run(&plan, &result);
    assert_int_equal(result.fills, 4 * 10);
    assert_int_equal(result.second_gathers, 4 * (20 * plan.steps - 10));
    plan.seal.secondary_ranks = 4;
    run(&plan, &result);
    assert_int_equal(result.fills + result.second_gathers, 0);
}

static void test_overlap_off_prefetches_nothing(void **state)
{
    struct sim_plan plan = ten_plan(4, 2);
    struct sim_result result;

    (void)state;
    plan.seal.overlap_off = 1;
    run(&plan, &result);
    assert_int_equal(result.hits, 0);
    assert_int_equal(result.calls[GW_KIND_ALL_GATHER], 20 * plan.steps);
}

/* R08 and merged units: two fetch units of five, each gathered once per pass. */
static void test_merged_units_are_gathered_once_per_pass(void **state)
{
    struct sim_plan plan = ten_plan(9, 3);
    struct sim_result result;

    (void)state;
    plan.seal.bucket_bytes = 5 * UNIT_BYTES;
    run(&plan, &result);
    assert_int_equal(result.calls[GW_KIND_ALL_GATHER], 4 * plan.steps);
    assert_int_equal(result.calls[GW_KIND_REDUCE_SCATTER], 2 * plan.steps);
}

/* A fetch unit cut into several buckets is gathered by one grouped launch. */
static void test_cut_units_are_gathered_by_one_launch(void **state)
{
    struct sim_plan plan = ten_plan(10, 2);
    struct sim_result result;

    (void)state;
    plan.seal.bucket_bytes = 16; /* 8 = 4 + 4, and 4: three buckets per unit */
    run(&plan, &result);
    assert_int_equal(result.calls[GW_KIND_ALL_GATHER], 20 * plan.steps);
    assert_int_equal(result.calls[GW_KIND_REDUCE_SCATTER], 30 * plan.steps);
}

/* D07: budget of one unit, prefetch of ten, units held and fetched twice: resident bytes never
 * exceed the budget and the largest single fetch. */
static void test_d07_budget_is_never_exceeded(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 40; seed++) {
        struct sim_plan plan = ten_plan(seed, 2);
        struct sim_result result;

        plan.seal.gather_bytes = UNIT_BYTES * (1 + seed % 3);
        plan.seal.prefetch_bytes = UNIT_BYTES * TEN_UNITS;
        plan.hold_units = 1 + seed % 2;
        plan.twice = 300;
        plan.skip_unit = 300;
        plan.unused = 500;
        plan.other_order = 300;
        run(&plan, &result);
        assert_true(result.gathered_max_bytes <= plan.seal.gather_bytes + UNIT_BYTES);
    }
}

/* Three units held where the budget is one, and the pool two: a named error, not a hang. */
static void test_held_units_beyond_the_budget_are_named(void **state)
{
    struct sim_plan plan = ten_plan(3, 2);
    struct sim_result result;

    (void)state;
    plan.seal.gather_bytes = UNIT_BYTES;
    plan.hold_units = 4;
    sim_run(&plan, &result);
    assert_string_equal(result.error, "");
    assert_int_equal(result.fail_code, GW_E_BUDGET);
    assert_non_null(strstr(result.fail_text, "48"));
    assert_int_equal(result.report_count, 0);
}

/* D01: a module is skipped by chance each step. Never fatal; what was gathered for nothing
 * counts. */
static void test_d01_toggled_unit(void **state)
{
    uint64_t drops = 0;

    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        struct sim_plan plan = ten_plan(seed, 2);
        struct sim_result result;

        plan.unused = 700; /* most units are not needed, and then skipped half of the time */
        plan.skip_unit = 500;
        run(&plan, &result);
        drops += result.drops;
    }
    assert_true(drops > 0);
}

/* D08: the order changes between steps, on every rank in its own way. */
static void test_d08_changing_orders(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 20; seed++) {
        struct sim_plan plan = ten_plan(seed, 3);
        struct sim_result result;

        plan.other_order = 600;
        plan.shuffle = true;
        run(&plan, &result);
        /* A demand is served once; what is gathered beyond that was dropped. */
        assert_true(result.calls[GW_KIND_ALL_GATHER] >= 20 * plan.steps);
    }
}

/* D03: two threads fetch one unit together: one all-gather, both get the same event. */
static void test_d03_two_threads_fetch_one_unit(void **state)
{
    struct sim_plan plan = ten_plan(8, 2);
    struct sim_result result;

    (void)state;
    plan.twice = 1000;
    run(&plan, &result);
    assert_int_equal(result.calls[GW_KIND_ALL_GATHER], 20 * plan.steps);
}

/* C02: rank r uses only the units of its own half. */
static void test_c02_ranks_use_different_units(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 10; seed++) {
        struct sim_plan plan = ten_plan(seed, 2);
        struct sim_result result;

        plan.unused = 500;
        plan.skip_unit = 1000;
        run(&plan, &result);
    }
}

static void test_mapped_counts_the_same_gathers(void **state)
{
    struct sim_plan plan = ten_plan(12, 2);
    struct sim_result result;

    (void)state;
    plan.seal.gather = GW_GATHER_MAPPED;
    run(&plan, &result);
    assert_int_equal(result.calls[GW_KIND_ALL_GATHER], 20 * plan.steps);
    assert_int_equal(result.payload_bytes[GW_KIND_ALL_GATHER],
                     20 * plan.steps * (uint64_t)UNIT_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefetch_hits_from_the_second_step),
        cmocka_unit_test(test_persistent_parameters_are_gathered_once_a_step),
        cmocka_unit_test(test_units_that_are_fetched_again_soon_stay),
        cmocka_unit_test(test_blocks_gather_a_version_once_from_all_owners),
        cmocka_unit_test(test_a_copy_lasts_as_long_as_its_version),
        cmocka_unit_test(test_overlap_off_prefetches_nothing),
        cmocka_unit_test(test_merged_units_are_gathered_once_per_pass),
        cmocka_unit_test(test_cut_units_are_gathered_by_one_launch),
        cmocka_unit_test(test_d07_budget_is_never_exceeded),
        cmocka_unit_test(test_held_units_beyond_the_budget_are_named),
        cmocka_unit_test(test_d01_toggled_unit),
        cmocka_unit_test(test_d08_changing_orders),
        cmocka_unit_test(test_d03_two_threads_fetch_one_unit),
        cmocka_unit_test(test_c02_ranks_use_different_units),
        cmocka_unit_test(test_mapped_counts_the_same_gathers),
    };

    return cmocka_run_group_tests_name("sim_fetch", tests, NULL, NULL);
}
