/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Misfortune in virtual time: stalls and their reports, deadlines, lost ranks, jobs that form
 * again.
 * ctest: timeout=240 link=gw_sim
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/world/reference.h"
#include "tests/sim/world/sim.h"

#define SECOND 1000000000ull
#define SLACK SECOND /* virtual time that the ranks themselves need, and more */

static const struct layout_param model[] = {
    SIM_PARAM("a", "u0", 5), SIM_PARAM("b", "u0", 1), SIM_PARAM("c", "u1", 7),
    SIM_PARAM("d", "u1", 3), SIM_PARAM("e", "u1", 2), SIM_PARAM("f", "u2", 6),
    SIM_PARAM("g", "u2", 4), SIM_PARAM("h", "u3", 4)};

static struct sim_plan plan_of(uint64_t seed, uint32_t stage, uint32_t world)
{
    struct sim_plan plan = sim_plan_default(seed, stage, world, model, 8);

    plan.steps = 4;
    plan.seal.micro_steps = 1 + seed % 2;
    sim_plan_disturb(&plan, seed);
    return plan;
}

static void check_time(uint64_t have_ns, uint64_t want_ns)
{
    assert_true(have_ns >= want_ns && have_ns < want_ns + SLACK);
}

/* A rank goes silent: reports after 10, 20, 40 s, ..., which name it, then the op's deadline. */
static void test_stall_is_reported_and_ends_at_the_deadline(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct sim_plan plan = plan_of(stage, stage, 3);
        struct sim_result result;

        plan.stop_rank = 1;
        plan.stop_step = 1;
        plan.stop_action = 3;
        plan.config.op_timeout_ns = 100 * SECOND;
        sim_run(&plan, &result);
        assert_string_equal(result.error, "");
        assert_true(result.report_count >= 4);
        check_time(result.reports[0].now_ns, result.reports[0].now_ns);
        for (uint32_t i = 0; i < 4; i++) {
            check_time(result.reports[i].now_ns - result.reports[0].now_ns,
                       ((1ull << i) - 1) * 10 * SECOND);
            assert_non_null(strstr(result.reports[i].text, "1"));
        }
        check_time(result.reports[0].now_ns, 10 * SECOND);
        assert_int_equal(result.fail_code, GW_E_TIMEOUT);
        check_time(result.fail_ns, 100 * SECOND);
        assert_non_null(strstr(result.fail_text, "1"));
    }
}

/* T07: the join deadline and the op deadline each apply to their own thing. */
static void test_join_deadline(void **state)
{
    struct sim_plan plan = plan_of(1, 2, 3);
    struct sim_result result;

    (void)state;
    plan.config.join_timeout_ns = 25 * SECOND;
    plan.never_joins = 2;
    sim_run(&plan, &result);
    assert_string_equal(result.error, "");
    assert_int_equal(result.fail_code, GW_E_TIMEOUT);
    check_time(result.fail_ns, 25 * SECOND);
    assert_non_null(strstr(result.fail_text, "2"));
    assert_true(result.report_count >= 1);
    check_time(result.reports[0].now_ns, 10 * SECOND);
}

static void test_slow_peer_within_the_op_deadline_is_no_error(void **state)
{
    struct sim_plan plan = plan_of(2, 1, 2);
    struct sim_result result;

    (void)state;
    plan.config.join_timeout_ns = SECOND;
    plan.config.op_timeout_ns = 3600 * SECOND;
    plan.stop_rank = 1;
    plan.stop_step = 1;
    plan.sleep_ns = 35 * SECOND;
    sim_run(&plan, &result);
    assert_string_equal(result.error, "");
    assert_int_equal(result.fail_code, 0);
    assert_int_equal(result.report_count, 2); /* after 10 s and 20 s */
}

/* C06, T05: a rank dies anywhere in a step: the others hear of it at once, with its number. */
static void test_lost_rank_is_told_at_once(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 80; seed++) {
        struct sim_plan plan = plan_of(seed, seed % 4, 3);
        struct sim_result result;

        plan.stop_rank = seed % 3;
        plan.stop_step = 1 + seed / 40;
        plan.stop_action = seed * 5;
        plan.stop_is_loss = true;
        if (seed % 2)
            sim_plan_stream(&plan, seed);
        sim_run(&plan, &result);
        assert_string_equal(result.error, "");
        assert_int_equal(result.fail_code, GW_E_PEER_LOST);
        assert_int_equal(result.fail_rank, plan.stop_rank);
        assert_int_equal(result.fail_ns, result.stop_ns);
    }
}

/* All ranks join again: training goes on from what the shards hold, or the job says that a shard is
 * torn, and only when its owner died while it wrote. */
static void form_again(bool unread)
{
    uint32_t torn = 0, went_on = 0;

    for (uint32_t seed = 0; seed < 240; seed++) {
        struct sim_plan plan = plan_of(seed, seed % 4, 3);
        struct sim_result result;

        plan.seal.gather = plan.seal.stage == 3 && seed % 8 == 7;
        plan.stop_rank = seed % 3;
        plan.stop_step = 1;
        plan.stop_action = seed * 7;
        plan.stop_is_loss = plan.rejoin = true;
        plan.stop_unread = unread;
        plan.unused = seed % 5 ? 0 : 200;
        sim_run(&plan, &result);
        if (result.error[0])
            print_error("seed %u: %s\n", seed, result.error);
        assert_string_equal(result.error, "");
        if (result.fail_code == GW_E_TORN) {
            torn++;
            assert_true(result.lost_in_update || result.lost_between_commits);
        } else {
            assert_int_equal(result.fail_code, GW_E_PEER_LOST); /* the first; then no more */
            assert_true(result.rejoined);
            assert_false(result.lost_half_written || result.lost_between_commits);
            went_on++;
        }
    }
    assert_true(torn > 5);
    assert_true(went_on > 100);
}

static void test_job_forms_again(void **state)
{
    (void)state;
    form_again(false);
}

/* A torn shard is known as such even if its owner's last messages are never read: who writes has
 * been told to, and only a begun update is. */
static void test_job_forms_again_without_last_messages(void **state)
{
    (void)state;
    form_again(true);
}

/* When the job breaks, the streams of those who live run through all that was enqueued. It goes on
 * only if none of that was an update, and all updates before were made. */
static void test_job_with_streams_forms_again(void **state)
{
    uint32_t torn = 0, went_on = 0;

    (void)state;
    for (uint32_t seed = 0; seed < 400; seed++) {
        struct sim_plan plan = plan_of(seed, seed % 4, 3);
        struct sim_result result;

        sim_plan_stream(&plan, seed);
        plan.deaf = false;
        plan.done_speed = 300;
        plan.stop_rank = seed % 3;
        plan.stop_step = 1;
        plan.stop_action = seed * 7;
        plan.stop_is_loss = plan.rejoin = true;
        plan.stop_unread = seed / 200;
        sim_run(&plan, &result);
        if (result.error[0])
            print_error("seed %u: %s\n", seed, result.error);
        assert_string_equal(result.error, "");
        if (result.fail_code == GW_E_TORN) {
            torn++;
        } else {
            assert_int_equal(result.fail_code, GW_E_PEER_LOST);
            assert_true(result.rejoined);
            went_on++;
        }
    }
    print_message("%u torn, %u went on\n", torn, went_on);
    assert_true(torn > 20);
    assert_true(went_on > 20);
}

/* Jobs of all kinds: what is rounded and gathered is made again from whole masters. */
static void test_varied_jobs_form_again(void **state)
{
    uint32_t torn = 0, went_on = 0;

    (void)state;
    for (uint32_t seed = 0; seed < 400; seed++) {
        struct sim_model varied;
        struct sim_plan plan;
        struct sim_result result;

        sim_model_random(&varied, seed + 300);
        sim_plan_random(&plan, &varied, seed % 4, seed);
        sim_plan_vary(&plan, &varied, seed + 700);
        if (seed % 8 >= 4) {
            sim_plan_stream(&plan, seed);
            plan.deaf = plan.idle_skip = false;
            plan.done_speed = 300;
        }
        plan.no_update = 0;
        plan.infinite_step = SIM_NEVER;
        plan.stop_rank = seed % plan.world;
        plan.stop_step = 1;
        plan.stop_action = seed * 7;
        plan.stop_is_loss = plan.rejoin = true;
        plan.stop_unread = seed % 3 == 0;
        sim_run(&plan, &result);
        if (result.error[0])
            print_error("seed %u: %s\n", seed, result.error);
        assert_string_equal(result.error, "");
        if (result.fail_code == GW_E_TORN) {
            torn++;
            assert_true(plan.streams || result.lost_in_update || result.lost_between_commits);
        } else {
            assert_int_equal(result.fail_code, GW_E_PEER_LOST);
            assert_true(result.rejoined);
            assert_false(result.lost_half_written || result.lost_between_commits);
            went_on++;
        }
    }
    print_message("%u torn, %u went on\n", torn, went_on);
    assert_true(torn > 20);
    assert_true(went_on > 100);
}

/* Nobody comes back: the engine is told to end at the join deadline. */
static void test_broken_job_ends(void **state)
{
    struct sim_plan plan = plan_of(5, 2, 3);
    struct sim_result result;

    (void)state;
    plan.config.join_timeout_ns = 20 * SECOND;
    plan.stop_rank = 0;
    plan.stop_step = 1;
    plan.stop_is_loss = true;
    plan.wait_for_end = true;
    sim_run(&plan, &result);
    assert_string_equal(result.error, "");
    assert_true(result.ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stall_is_reported_and_ends_at_the_deadline),
        cmocka_unit_test(test_join_deadline),
        cmocka_unit_test(test_slow_peer_within_the_op_deadline_is_no_error),
        cmocka_unit_test(test_lost_rank_is_told_at_once),
        cmocka_unit_test(test_job_forms_again),
        cmocka_unit_test(test_job_forms_again_without_last_messages),
        cmocka_unit_test(test_job_with_streams_forms_again),
        cmocka_unit_test(test_varied_jobs_form_again),
        cmocka_unit_test(test_broken_job_ends),
    };

    return cmocka_run_group_tests_name("sim_faults", tests, NULL, NULL);
}
