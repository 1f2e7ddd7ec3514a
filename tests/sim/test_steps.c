/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole steps of the real core in virtual time: right values in every stage and mode, whatever the
 * timing; the same with overlap on and off; exactly the collectives that were promised.
 * ctest: timeout=300 link=gw_sim
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/world/reference.h"
#include "tests/sim/world/sim.h"

#define WORLDS 250u /* per stage */

static void run(const struct sim_plan *plan, struct sim_result *result)
{
    char text[2048];

    sim_run(plan, result);
    if (!result->error[0] && !result->fail_code && !result->report_count)
        return;
    sim_plan_describe(plan, text, sizeof(text));
    print_error("%s\n%s\nfailed with %d: %s\n", text, result->error, result->fail_code,
                result->fail_text);
    if (result->report_count)
        print_error("stalled: %s\n", result->reports[0].text);
    fail();
}

/* $GW_SIM_SEED=n runs that world of every stage alone. */
static void check_stage(uint32_t stage)
{
    const char *only = getenv("GW_SIM_SEED");
    uint64_t first = only ? strtoull(only, NULL, 10) : 0;

    for (uint64_t seed = first; seed < first + (only ? 1 : WORLDS); seed++) {
        struct sim_model model;
        struct sim_plan plan;
        struct sim_result result;

        sim_model_random(&model, seed);
        sim_plan_random(&plan, &model, stage, seed * 4 + stage);
        run(&plan, &result);
        sim_plan_stream(&plan, seed);
        run(&plan, &result);
    }
}

/* The same with dtypes, groups, hybrid sharding, persistent parameters, units that stay, and what
 * freezes and thaws. */
static void vary(uint32_t stage, uint64_t seed)
{
    struct sim_model model;
    struct sim_plan plan;
    struct sim_result result;

    sim_model_random(&model, seed + 5000);
    sim_plan_random(&plan, &model, stage, seed * 4 + stage + 50000);
    sim_plan_vary(&plan, &model, seed * 4 + stage);
    sim_plan_freeze(&plan, seed * 4 + stage);
    run(&plan, &result);
    sim_plan_stream(&plan, seed);
    run(&plan, &result);
}

static void check_varied(uint32_t stage)
{
    const char *only = getenv("GW_SIM_SEED");
    uint64_t first = only ? strtoull(only, NULL, 10) : 0;

    for (uint64_t seed = first; seed < first + (only ? 1 : WORLDS); seed++)
        vary(stage, seed);
    vary(stage, 3118); /* groups that skip an update, one queue: fetched before the verdict */
}

static void test_stage0_varied(void **state)
{
    (void)state;
    check_varied(0);
}

static void test_stage1_varied(void **state)
{
    (void)state;
    check_varied(1);
}

static void test_stage2_varied(void **state)
{
    (void)state;
    check_varied(2);
}

static void test_stage3_varied(void **state)
{
    (void)state;
    check_varied(3);
}

static void test_stage0_values(void **state)
{
    (void)state;
    check_stage(0);
}

static void test_stage1_values(void **state)
{
    (void)state;
    check_stage(1);
}

static void test_stage2_values(void **state)
{
    (void)state;
    check_stage(2);
}

static void test_stage3_values(void **state)
{
    (void)state;
    check_stage(3);
}

/* ---- a fixed model: 8 tensors as in case R02, buckets 5+1, 7+3+2, 6+4, 4 in every stage ------ */

static const struct layout_param r02[] = {
    SIM_PARAM("a", "u0", 5), SIM_PARAM("b", "u0", 1), SIM_PARAM("c", "u1", 7),
    SIM_PARAM("d", "u1", 3), SIM_PARAM("e", "u1", 2), SIM_PARAM("f", "u2", 6),
    SIM_PARAM("g", "u2", 4), SIM_PARAM("h", "u3", 4)};

static struct sim_plan r02_plan(uint64_t seed, uint32_t stage, uint32_t world)
{
    struct sim_plan plan = sim_plan_default(seed, stage, world, r02, 8);

    plan.steps = 4;
    plan.shuffle = seed % 2;
    sim_plan_disturb(&plan, seed);
    return plan;
}

/* On the host and with streams: the same calls and bits. */
static void run_twice(const struct sim_plan *plan, struct sim_result *result)
{
    struct sim_plan streams = *plan;
    struct sim_result other;

    run(plan, result);
    sim_plan_stream(&streams, plan->seed);
    streams.sums = false;
    run(&streams, &other);
    assert_int_equal(other.params_hash, result->params_hash);
    assert_memory_equal(other.calls, result->calls, sizeof(other.calls));
}

static void check_pattern(const struct sim_plan *plan, const struct sim_result *result)
{
    bool shard = plan->seal.accumulate == GW_ACCUMULATE_SHARD ||
                 (plan->seal.accumulate == GW_ACCUMULATE_AUTO && plan->seal.stage >= 2);
    uint64_t steps = plan->steps, sends = steps * (shard ? plan->seal.micro_steps : 1);
    uint64_t gathers = steps * (plan->seal.stage == 3 ? 2 * plan->seal.micro_steps : 1);
    bool full = plan->seal.stage == 0;

    assert_int_equal(result->calls[GW_KIND_ALL_REDUCE], full ? 4 * sends : 0);
    assert_int_equal(result->calls[GW_KIND_REDUCE_SCATTER], full ? 0 : 4 * sends);
    assert_int_equal(result->calls[GW_KIND_ALL_GATHER], full ? 0 : 4 * gathers);
    assert_int_equal(result->payload_bytes[GW_KIND_REDUCE_SCATTER], full ? 0 : 128 * sends);
    assert_int_equal(result->payload_bytes[GW_KIND_ALL_GATHER], full ? 0 : 128 * gathers);
    /* Verdicts, and the barrier after the set-up. */
    assert_int_equal(result->calls[GW_KIND_CONTROL], steps + 1);
    assert_int_equal(result->payload_bytes[GW_KIND_CONTROL], 0);
    for (uint32_t b = 0; b < 4; b++)
        assert_int_equal(result->reductions[b], sends);
}

/* Padding to multiples of 4 ranks: 6+2, 12, 10+2, 4: 4 elements. */
static void test_pattern_is_the_promised_one(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        for (uint32_t accumulate = 0; accumulate <= 2; accumulate++) {
            for (uint32_t seed = 0; seed < 8; seed++) {
                struct sim_plan plan = r02_plan(seed, stage, 4);
                struct sim_result result;

                plan.seal.accumulate = accumulate;
                plan.seal.micro_steps = 1 + seed % 3;
                plan.seal.overlap_off = seed / 4;
                run(&plan, &result);
                check_pattern(&plan, &result);
                if (stage == 1 && accumulate != GW_ACCUMULATE_SHARD)
                    assert_int_equal(result.padding_bytes[GW_KIND_REDUCE_SCATTER], 16 * plan.steps);
            }
        }
    }
}

/* S2: the same bits and the same collectives with overlap on and off, for any timing. */
static void test_overlap_changes_nothing(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        for (uint32_t seed = 0; seed < 20; seed++) {
            struct sim_plan plan = r02_plan(7, stage, 3);
            struct sim_result on, off;

            plan.unused = 150;
            plan.seal.micro_steps = 1 + seed % 2;
            plan.seal.gather = stage == 3 && seed % 3 == 0;
            sim_plan_disturb(&plan, seed);
            run(&plan, &on);
            plan.seal.overlap_off = 1;
            sim_plan_disturb(&plan, seed + 1000);
            run(&plan, &off);
            assert_int_equal(on.params_hash, off.params_hash);
            assert_memory_equal(on.calls, off.calls, sizeof(on.calls));
            assert_memory_equal(on.payload_bytes, off.payload_bytes, sizeof(on.payload_bytes));
        }
    }
}

/* The same bits in all stages, with the same accumulate mode. */
static void test_stages_agree(void **state)
{
    (void)state;
    for (uint32_t accumulate = 1; accumulate <= 2; accumulate++) {
        uint64_t hash = 0;

        for (uint32_t stage = 0; stage <= 3; stage++) {
            struct sim_plan plan = r02_plan(11, stage, 5);
            struct sim_result result;

            plan.seal.accumulate = accumulate;
            plan.seal.micro_steps = 3;
            plan.unused = 100;
            run(&plan, &result);
            if (stage == 0)
                hash = result.params_hash;
            assert_int_equal(result.params_hash, hash);
        }
    }
}

/* In place of a reduce-scatter, call for call: the same bits in every stage and mode, with halves,
 * in runs, for ranks that have no gradient, with streams, ahead or one after the other. */
static void test_all_reduces_change_no_bit(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 36; i++) {
        uint32_t stage = 1 + i % 3, accumulate = 1 + i / 3 % 2;
        struct sim_plan plan = r02_plan(31 + i, stage, i % 5 ? 4 : 3);
        struct sim_result scatters, all;

        plan.seal.accumulate = accumulate;
        plan.seal.micro_steps = 1 + i / 6 % 3;
        plan.seal.overlap_off = i % 7 == 0;
        plan.seal.shard_ranks = i % 4 == 1 && plan.world == 4 ? 2 : 0;
        plan.unused = i % 2 ? 300 : 0;
        run_twice(&plan, &scatters);
        plan.seal.all_reduce = 1;
        run_twice(&plan, &all);
        assert_int_equal(all.params_hash, scatters.params_hash);
        assert_int_equal(all.calls[GW_KIND_REDUCE_SCATTER], 0);
        assert_int_equal(all.calls[GW_KIND_ALL_REDUCE],
                         scatters.calls[GW_KIND_ALL_REDUCE] +
                             scatters.calls[GW_KIND_REDUCE_SCATTER]);
        assert_int_equal(all.payload_bytes[GW_KIND_ALL_REDUCE],
                         scatters.payload_bytes[GW_KIND_ALL_REDUCE] +
                             scatters.payload_bytes[GW_KIND_REDUCE_SCATTER]);
        assert_int_equal(all.calls[GW_KIND_ALL_GATHER], scatters.calls[GW_KIND_ALL_GATHER]);
    }
}

/* Runs of an aligned power of 2: the tree of sums is the flat one's, so the bits are. Counted are,
 * for each rank, one reduce-scatter in its run (per micro-step, of all the bucket) and one
 * all-reduce of its slice. */
static void test_runs_change_no_bit(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t world = i % 2 ? 8 : 4, run = i % 3 ? i % 3 : world / 2, stage = 1 + i / 2 % 3;
        struct sim_plan plan = r02_plan(13 + i, stage, world);
        struct sim_result flat, hybrid;
        uint64_t sends;

        plan.seal.accumulate = 1 + i / 12;
        plan.seal.micro_steps = plan.seal.accumulate == GW_ACCUMULATE_LOCAL ? 2 : 1;
        sends = plan.seal.accumulate == GW_ACCUMULATE_LOCAL ? 1 : plan.seal.micro_steps;
        run_twice(&plan, &flat);
        plan.seal.shard_ranks = run;
        run_twice(&plan, &hybrid);
        assert_int_equal(hybrid.params_hash, flat.params_hash);
        assert_int_equal(hybrid.calls[GW_KIND_REDUCE_SCATTER], 4 * sends * plan.steps);
        assert_int_equal(hybrid.calls[GW_KIND_ALL_REDUCE], 4 * plan.steps);
        assert_int_equal(hybrid.calls[GW_KIND_ALL_GATHER], flat.calls[GW_KIND_ALL_GATHER]);
        assert_int_equal(hybrid.payload_bytes[GW_KIND_REDUCE_SCATTER], 128 * sends * plan.steps);
        /* Slice 0 of buckets of 6, 12, 10 and 4, which holds no less than its share. */
        assert_in_range(hybrid.payload_bytes[GW_KIND_ALL_REDUCE] / plan.steps, 128 / run, 128);
    }
}

/* E03 in values: what a group of 2 x 2 sums in three micro-steps, beside parameters of all. */
static void test_e03_a_hybrid_group_beside_the_world(void **state)
{
    static const uint32_t ranks[] = {3, 1, 0, 2};
    static const struct layout_group group = {.ranks = ranks, .count = 4, .shard_ranks = 2};
    struct layout_param params[8];

    (void)state;
    memcpy(params, r02, sizeof(params));
    params[2].group = params[3].group = params[7].group = 1;
    for (uint32_t seed = 0; seed < 24; seed++) {
        struct sim_plan plan = r02_plan(seed, 1 + seed % 3, 4);
        struct sim_result result;

        plan.params = params;
        plan.groups = &group;
        plan.group_count = 1;
        plan.seal.micro_steps = 3;
        plan.seal.accumulate = GW_ACCUMULATE_SHARD;
        run_twice(&plan, &result);
        assert_true(result.calls[GW_KIND_ALL_REDUCE] > 0);
        /* All-reduces of a step: as many as its reduce-scatters of the group in one micro-step. */
        assert_int_equal(result.calls[GW_KIND_ALL_REDUCE] % plan.steps, 0);
    }
}

/* R02: gradients arrive last to first on some ranks and shuffled on others, through a ring of one
 * slot: nobody waits for ever, and overflow slots are granted only where orders differ. */
static void test_different_orders_through_a_small_ring(void **state)
{
    uint64_t overflows = 0;

    (void)state;
    for (uint32_t seed = 0; seed < 60; seed++) {
        struct sim_plan plan = r02_plan(seed, 2 + seed / 2 % 2, 4);
        struct sim_result result;

        plan.seal.ring_slots = 1;
        plan.seal.micro_steps = 1 + seed % 2;
        plan.shuffle = true;
        run(&plan, &result);
        overflows += result.overflow_slots;
        plan.shuffle = false; /* all in launch order: one slot is enough */
        run(&plan, &result);
        assert_int_equal(result.overflow_slots, 0);
    }
    assert_true(overflows > 0);
}

/* Case C04: rank 1 ends one micro-step fewer. */
static void test_c04_micro_steps_that_differ_are_named(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct sim_plan plan = r02_plan(3, stage, 3);
        struct sim_result result;

        plan.seal.micro_steps = 2;
        plan.micro_short_rank = 1;
        sim_run(&plan, &result);
        assert_string_equal(result.error, "");
        assert_int_equal(result.fail_code, GW_E_MISMATCH);
        assert_non_null(strstr(result.fail_text, "rank 1"));
        assert_non_null(strstr(result.fail_text, "bucket"));
        assert_int_equal(result.report_count, 0);
    }
}

/* C03: an infinity on one rank is every rank's verdict; the step is not taken. */
static void test_c03_infinity_is_seen_by_all(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct sim_plan plan = r02_plan(5, stage, 4);
        struct sim_result result;

        plan.infinite_step = 1;
        run(&plan, &result);
    }
}

/* C01 with the policy "error": ranks and parameters that lack a gradient are named. */
static void test_c01_unused_is_an_error_if_asked(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct sim_plan plan = r02_plan(6, stage, 3);
        struct sim_result result;

        plan.seal.unused = GW_UNUSED_ERROR;
        run(&plan, &result);
        plan.unused = 100;
        sim_run(&plan, &result);
        assert_string_equal(result.error, "");
        assert_int_equal(result.fail_code, GW_E_UNUSED);
        assert_non_null(strstr(result.fail_text, "rank"));
        assert_non_null(strstr(result.fail_text, "'"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pattern_is_the_promised_one),
        cmocka_unit_test(test_stage0_values),
        cmocka_unit_test(test_stage1_values),
        cmocka_unit_test(test_stage2_values),
        cmocka_unit_test(test_stage3_values),
        cmocka_unit_test(test_stage0_varied),
        cmocka_unit_test(test_stage1_varied),
        cmocka_unit_test(test_stage2_varied),
        cmocka_unit_test(test_stage3_varied),
        cmocka_unit_test(test_overlap_changes_nothing),
        cmocka_unit_test(test_stages_agree),
        cmocka_unit_test(test_all_reduces_change_no_bit),
        cmocka_unit_test(test_runs_change_no_bit),
        cmocka_unit_test(test_e03_a_hybrid_group_beside_the_world),
        cmocka_unit_test(test_different_orders_through_a_small_ring),
        cmocka_unit_test(test_c04_micro_steps_that_differ_are_named),
        cmocka_unit_test(test_c01_unused_is_an_error_if_asked),
        cmocka_unit_test(test_c03_infinity_is_seen_by_all),
    };

    return cmocka_run_group_tests_name("sim_steps", tests, NULL, NULL);
}
