/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro-steps: both accumulate modes in all stages, unused parameters (cases B01 to B04), ranks
 * that differ (C04), and declarations that make no sense.
 */
#include "test_zero_fixture.h"

#define ACC GW_GRAD_ACCUMULATE
#define RUN GW_GRAD_RUNNING
#define NONE GW_NO_SLOT

/* Two ranks, a bucket of 4 elements per parameter, `micro` micro-steps. */
static struct fx *open_two(uint32_t stage, uint32_t accumulate, uint32_t micro)
{
    struct fx *fx = fx_new(stage, 2, 4, 1);

    fx->options.accumulate = accumulate;
    fx->options.micro_steps = micro;
    fx_open(fx, 0, 4, 4);
    return fx;
}

static void ready_both(struct fx *fx, uint32_t param, uint32_t flags, uint32_t slot)
{
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, param, flags, slot), 0);
}

/* ---- accumulate=shard ------------------------------------------------------------------------ */

/* B04: one reduction per micro-step; the first overwrites, later ones add. */
static void each_micro_step_is_reduced_into_the_accumulator(void **state)
{
    static const char *const from_to[4] = {"AR b1 n2%s [G0:4 G1:4] -> [A0:4 A1:4]",
                                           "RS b1 n2%s [G0:4 G1:4] -> [S0:2 S1:2]",
                                           "RS b1 n2%s [R0:0 R1:0] -> [S0:2 S1:2]",
                                           "RS b1 n2%s [R0:0 R1:0] -> [S0:2 S1:2]"};

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct fx *fx = open_two(stage, GW_ACCUMULATE_SHARD, 4);

        for (uint32_t micro = 0; micro < 4; micro++) {
            char line[160], expected[200];

            ready_both(fx, 1, micro < 3 ? ACC : 0, 0);
            snprintf(line, sizeof(line), from_to[stage], micro ? " acc" : "");
            snprintf(expected, sizeof(expected), "%s sig b1@0=%u b1@1=%u\n", line, micro + 1,
                     micro + 1);
            fx_expect(fx, expected);
            ready_both(fx, 0, micro < 3 ? ACC : 0, 1);
            assert_int_equal(fx_count(fx, stage ? "RS b0" : "AR b0"), 1);
            if (micro < 3)
                fx_all(fx, WIRE_MICRO_END);
        }
        fx_all(fx, WIRE_STEP_END);
        assert_int_equal(fx->launched[CORE_OP_ZERO], 0);
        fx_free(fx);
    }
}

/* B01, B03: the second layer is used in the first micro-step only; nothing is sent for it then. */
static void a_layer_used_in_the_first_micro_step_only(void **state)
{
    (void)state;
    for (uint32_t stage = 2; stage < 4; stage++) {
        struct fx *fx = open_two(stage, GW_ACCUMULATE_SHARD, 2);

        ready_both(fx, 1, ACC, 0);
        ready_both(fx, 0, ACC, 1);
        fx_all(fx, WIRE_MICRO_END);
        fx_lines(fx);
        ready_both(fx, 0, 0, 2);
        fx_expect(fx, ""); /* bucket 1 comes first, and is open until the step ends */
        assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
        fx_expect(fx, "");
        assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
        fx_expect(fx, "SIG b1@0=2 <1\nSIG b1@1=2 <1\n"
                      "RS b0 n2 acc [R0:8 R1:8] -> [S0:0 S1:0] sig b0@0=2 b0@1=2\n"
                      "VE step 1 used 2 sig step@0=1 step@1=1 <3\n");
        fx_all(fx, WIRE_UPDATE_BEGIN);
        fx_expect(fx, "BA sig update@0=1\nBA sig update@1=1\n");
        fx_free(fx);
    }
}

/* Used only in the second: that contribution is the first of the step, so it overwrites. */
static void the_first_real_contribution_overwrites(void **state)
{
    struct fx *fx = open_two(2, GW_ACCUMULATE_SHARD, 2);

    (void)state;
    ready_both(fx, 0, ACC, 0);
    fx_all(fx, WIRE_MICRO_END);
    fx_expect(fx, "SIG b1@0=1\nSIG b1@1=1\n"
                  "RS b0 n2 [R0:0 R1:0] -> [S0:0 S1:0] sig b0@0=1 b0@1=1\n");
    assert_int_equal(fx_ready(fx, 1, 1, 0, 1), 0);
    fx_all(fx, WIRE_STEP_END);
    assert_non_null(strstr(fx_lines(fx), "RS b1 n2 [- R1:4] -> [S0:2 S1:2] sig b1@0=2 b1@1=2\n"));
    fx_free(fx);
}

/* A rank may be micro-steps ahead: contributions are kept, each for its own reduction. */
static void contributions_of_a_rank_ahead_are_kept(void **state)
{
    struct fx *fx = open_two(2, GW_ACCUMULATE_SHARD, 3);

    (void)state;
    for (uint32_t micro = 0; micro < 3; micro++) {
        assert_int_equal(fx_ready(fx, 0, 1, micro < 2 ? ACC : 0, micro), 0);
        if (micro < 2)
            assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    }
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 1, 1, ACC, 0), 0);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2] sig b1@0=1 b1@1=1\n");
    assert_int_equal(fx_bare(fx, 1, WIRE_MICRO_END), 0);
    fx_expect(fx, "SIG b0@0=1\nSIG b0@1=1\n");
    assert_int_equal(fx_ready(fx, 1, 1, ACC, 2), 0);
    fx_expect(fx, "RS b1 n2 acc [R0:4 R1:8] -> [S0:2 S1:2] sig b1@0=2 b1@1=2\n");
    fx_free(fx);
}

/* Final early: no further contribution; the others' are summed without it, its word stays. */
static void a_final_bucket_contributes_no_more(void **state)
{
    struct fx *fx = open_two(2, GW_ACCUMULATE_SHARD, 2);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 1, 1, ACC, 0), 0);
    fx_all(fx, WIRE_MICRO_END);
    fx_lines(fx);
    assert_int_equal(fx_ready(fx, 1, 1, 0, 1), 0);
    fx_expect(fx, "RS b1 n2 acc [- R1:4] -> [S0:2 S1:2] sig b1@1=2\n");
    fx_free(fx);
}

/* Pieces that were final are not outstanding, but a buffer used again holds no value for them. */
static void final_pieces_of_an_open_bucket_read_as_zero(void **state)
{
    struct fx *fx = fx_new(2, 1, 4, 1);

    (void)state;
    fx->options.micro_steps = 2;
    fx_open(fx, 0, 1, 2, 1);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 0, ACC, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 2, ACC, 0), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    fx_lines(fx);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 1), 0);
    assert_int_equal(fx_ready(fx, 0, 2, 0, 1), 0);
    fx_expect(fx, "ZE@0 b0 n2 [R0:5]\nRS b0 n4 acc [R0:4] -> [S0:0] sig b0@0=2\n");
    fx_free(fx);
}

static void overlap_off_starts_after_each_micro_step(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx->options.micro_steps = 2;
    fx->options.overlap_off = 1;
    fx_open(fx, 0, 4, 4);
    ready_both(fx, 1, ACC, 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 1, WIRE_MICRO_END), 0);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2] sig b1@0=1 b1@1=1\n"
                  "SIG b0@0=1\nSIG b0@1=1\n");
    fx_free(fx);
}

/* ---- accumulate=local ------------------------------------------------------------------------ */

/* REPLACE: summed in ACC; one reduction, in the step's end; the word rises when the micro-step
 * ends. */
static void local_sums_lie_in_acc(void **state)
{
    static const char *const reduction[4] = {
        "AR b1 n2 [A0:4 A1:4] -> [G0:4 G1:4] sig b1@0=2 b1@1=2\n",
        "RS b1 n2 [A0:4 A1:4] -> [G0:4 G1:6] sig b1@0=2 b1@1=2\n",
        "RS b1 n2 [A0:4 A1:4] -> [S0:2 S1:2] sig b1@0=2 b1@1=2\n",
        "RS b1 n2 [A0:4 A1:4] -> [S0:2 S1:2] sig b1@0=2 b1@1=2\n",
    };

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct fx *fx = open_two(stage, GW_ACCUMULATE_LOCAL, 2);

        ready_both(fx, 1, ACC, NONE);
        fx_expect(fx, "LA@0 b1 n4 [G0:4] -> [A0:4]\nLA@1 b1 n4 [G1:4] -> [A1:4]\n");
        fx_all(fx, WIRE_MICRO_END); /* bucket 0: an empty contribution */
        fx_expect(fx, "SIG b0@0=1\nSIG b1@0=1 <1\nSIG b0@1=1\nSIG b1@1=1 <2\n");
        assert_int_equal(fx_ready(fx, 0, 1, 0, NONE), 0);
        fx_expect(fx, "LA@0 b1 n4 acc [G0:4] -> [A0:4]\n");
        assert_int_equal(fx_ready(fx, 1, 1, 0, NONE), 0);
        assert_non_null(strstr(fx_lines(fx), reduction[stage]));
        fx_free(fx);
    }
}

/* Final in the first micro-step: reduced at once, while the others go on. */
static void local_final_is_reduced_at_once(void **state)
{
    struct fx *fx = open_two(0, GW_ACCUMULATE_LOCAL, 2);

    (void)state;
    ready_both(fx, 1, 0, NONE);
    fx_expect(fx, "LA@0 b1 n4 [G0:4] -> [A0:4]\nLA@1 b1 n4 [G1:4] -> [A1:4]\n"
                  "AR b1 n2 [A0:4 A1:4] -> [G0:4 G1:4] sig b1@0=1 b1@1=1\n");
    fx_all(fx, WIRE_MICRO_END);
    fx_expect(fx, "SIG b0@0=1\nSIG b0@1=1\n");
    fx_free(fx);
}

/* B01, local: what is not used in a micro-step adds nothing; a part of a bucket: zeros. */
static void local_micro_step_without_a_layer(void **state)
{
    struct fx *fx = fx_new(1, 1, 4, 1);

    (void)state;
    fx->options.micro_steps = 2;
    fx_open(fx, 0, 4, 2, 2); /* bucket 0: p0; bucket 1: p1 p2 */
    for (uint32_t param = 0; param < 3; param++)
        assert_int_equal(fx_ready(fx, 0, param, ACC, NONE), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    fx_lines(fx);
    assert_int_equal(fx_ready(fx, 0, 1, ACC, NONE), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_expect(fx, "ZE@0 b1 n2 [G0:6]\n"
                  "LA@0 b1 n4 acc [G0:4] -> [A0:4]\n"
                  "RS b1 n4 [A0:4] -> [G0:4] sig b1@0=2\n"
                  "RS b0 n4 [A0:0] -> [G0:0] sig b0@0=2\n"
                  "VE step 1 used 3 sig step@0=1 <6\n");
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA sig update@0=1\n");
    fx_free(fx);
}

/* RUNNING: the caller has added in place: nothing to add; never written: zero. */
static void running_sums_stay_where_they_are(void **state)
{
    struct fx *fx = fx_new(0, 1, 4, 1);

    (void)state;
    fx->options.micro_steps = 2;
    fx_open(fx, 0, 4, 1, 1, 2); /* bucket 0: p0; bucket 1: p1 p2 p3 */
    assert_int_equal(fx_ready_one(fx, 0, (struct wire_ready_entry){
                         .param = 1, .flags = ACC | RUN, .tokens = 1, .timeline = {2},
                         .value = {5}}), 0);
    assert_int_equal(fx_ready(fx, 0, 0, ACC | RUN, NONE), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    fx_expect(fx, "SIG b0@0=1\nSIG b1@0=1\n");
    assert_int_equal(fx_ready(fx, 0, 2, RUN, NONE), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_expect(fx, "ZE@0 b1 n2 [G0:6]\n" /* p3; p1 keeps its running sum, and so does p0 */
                  "AR b1 n4 [G0:4] -> [G0:4] wait 0.2=5 sig b1@0=2\n"
                  "AR b0 n4 [G0:0] -> [G0:0] sig b0@0=2\n"
                  "VE step 1 used 3 sig step@0=1 <3\n");
    fx_free(fx);
}

/* The last micro-step said ACCUMULATE: that the step ends makes it the last contribution, and the
 * buffer is free only after the reduction into it. */
static void accumulate_then_step_end(void **state)
{
    (void)state;
    for (uint32_t running = 0; running < 2; running++) {
        struct fx *fx = fx_new(0, 1, 4, 1);

        fx->options.micro_steps = 2;
        fx_open(fx, 0, 4);
        assert_int_equal(fx_ready(fx, 0, 0, running ? ACC | RUN : ACC, NONE), 0);
        fx_expect(fx, running ? "" : "LA@0 b0 n4 [G0:0] -> [A0:0]\n");
        assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
        assert_non_null(strstr(fx_lines(fx), running ? "AR b0 n4 [G0:0] -> [G0:0] sig b0@0=1\n"
                                                     : "AR b0 n4 [A0:0] -> [G0:0] sig b0@0=1\n"));
        fx_free(fx);
    }
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

/* C04: rank 0 runs two backwards, rank 1 one; whoever is second to say so gets the error. */
static void different_numbers_of_micro_steps_are_told(void **state)
{
    struct fx *fx;

    (void)state;
    fx = open_two(2, GW_ACCUMULATE_SHARD, 2);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), GW_E_MISMATCH);
    assert_int_equal(fx->fault.rank, 1);
    assert_string_equal(fx->fault.text,
                        "rank 1 ended the step with micro-step 1 of step 1, but rank 0 ended it "
                        "with 2: bucket 1 would lack a contribution. All ranks must make the same "
                        "number of micro-steps");
    fx_free(fx);

    /* the other has ended already: the error comes with the first call too many */
    fx = open_two(0, GW_ACCUMULATE_LOCAL, 3);
    assert_int_equal(fx_bare(fx, 1, WIRE_MICRO_END), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), GW_E_MISMATCH);
    fx_free(fx);

    /* and if it is in a later micro-step, with the step's end */
    fx = open_two(0, GW_ACCUMULATE_LOCAL, 3);
    assert_int_equal(fx_bare(fx, 1, WIRE_MICRO_END), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), GW_E_MISMATCH);
    fx_free(fx);
}

/* ---- declarations that make no sense --------------------------------------------------------- */

static void twice_in_a_micro_step_is_refused_by_name(void **state)
{
    struct fx *fx = open_two(1, GW_ACCUMULATE_LOCAL, 2);

    (void)state;
    assert_int_equal(fx_ready(fx, 1, 0, ACC, NONE), 0);
    assert_int_equal(fx_ready(fx, 1, 0, ACC, NONE), GW_E_DUPLICATE);
    assert_string_equal(fx->fault.text,
                        "rank 1: piece 0 of parameter 'p0' was declared twice in one micro-step");
    fx_free(fx);
}

static void after_final_is_refused_by_name(void **state)
{
    struct fx *fx = open_two(1, GW_ACCUMULATE_LOCAL, 2);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 1, 0, NONE), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, NONE), GW_E_STATE);
    assert_non_null(strstr(fx->fault.text, "'p1'"));
    fx_free(fx);
}

static void running_needs_local_and_is_not_mixed(void **state)
{
    struct fx *fx = open_two(2, GW_ACCUMULATE_SHARD, 2);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 1, RUN, 0), GW_E_STATE);
    assert_non_null(strstr(fx->fault.text, "accumulate=local"));
    fx_free(fx);

    fx = fx_new(0, 1, 4, 1);
    fx->options.micro_steps = 2;
    fx_open(fx, 0, 2, 2);
    assert_int_equal(fx_ready(fx, 0, 0, RUN | ACC, NONE), 0);
    assert_int_equal(fx_ready(fx, 0, 1, ACC, NONE), GW_E_STATE);
    assert_non_null(strstr(fx->fault.text, "RUNNING and REPLACE"));
    fx_free(fx);
}

static void more_micro_steps_than_sealed(void **state)
{
    struct fx *fx = open_two(1, GW_ACCUMULATE_LOCAL, 2);

    (void)state;
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), GW_E_STATE);
    fx_free(fx);
}

static void nonsense_is_refused(void **state)
{
    static const struct wire_ready_entry wrong[] = {
        {.param = 2},
        {.param = UINT32_MAX, .piece = UINT32_MAX},
        {.param = 0, .piece = 1},
        {.param = 0, .flags = 4},
        {.param = 0, .tokens = GW_READY_TOKENS + 1},
        {.param = 0, .tokens = 1, .timeline = {GW_TIMELINES_MAX}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct fx *fx = open_two(0, GW_ACCUMULATE_LOCAL, 1);

        assert_int_equal(fx_ready_one(fx, 1, wrong[i]), GW_E_INVALID);
        assert_int_equal(fx->fault.rank, 1);
        assert_true(strlen(fx->fault.text) > 10);
        fx_free(fx);
    }
}

/* One buffer for all micro-steps: declared again before its reduction, the core can see it. */
static void a_buffer_that_is_not_reduced_yet_is_busy(void **state)
{
    struct fx *fx = open_two(0, GW_ACCUMULATE_SHARD, 2);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 1, ACC, NONE), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, NONE), GW_E_BUSY);
    assert_non_null(strstr(fx->fault.text, "bucket 1"));
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_micro_step_is_reduced_into_the_accumulator),
        cmocka_unit_test(a_layer_used_in_the_first_micro_step_only),
        cmocka_unit_test(the_first_real_contribution_overwrites),
        cmocka_unit_test(contributions_of_a_rank_ahead_are_kept),
        cmocka_unit_test(a_final_bucket_contributes_no_more),
        cmocka_unit_test(final_pieces_of_an_open_bucket_read_as_zero),
        cmocka_unit_test(overlap_off_starts_after_each_micro_step),
        cmocka_unit_test(local_sums_lie_in_acc),
        cmocka_unit_test(local_final_is_reduced_at_once),
        cmocka_unit_test(local_micro_step_without_a_layer),
        cmocka_unit_test(running_sums_stay_where_they_are),
        cmocka_unit_test(accumulate_then_step_end),
        cmocka_unit_test(different_numbers_of_micro_steps_are_told),
        cmocka_unit_test(twice_in_a_micro_step_is_refused_by_name),
        cmocka_unit_test(after_final_is_refused_by_name),
        cmocka_unit_test(running_needs_local_and_is_not_mixed),
        cmocka_unit_test(more_micro_steps_than_sealed),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(a_buffer_that_is_not_reduced_yet_is_busy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
