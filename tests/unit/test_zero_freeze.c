/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frozen parameters: agreed by all ranks between steps; buckets then wait for the others only, and
 * are not reduced when all of them is frozen.
 */
#include "test_zero_fixture.h"

#define NONE GW_NO_SLOT

/* Two ranks, buckets of 4 elements: p0 and p1 share bucket 0, p2 is bucket 1. */
static struct fx *open_stage(uint32_t stage, uint32_t accumulate, uint32_t micro_steps)
{
    struct fx *fx = fx_new(stage, 2, 4, 1);

    fx->options.accumulate = accumulate;
    fx->options.micro_steps = micro_steps;
    fx_open(fx, 0, 2, 2, 4);
    return fx;
}

/* `frozen`: a bit for each of the three parameters. */
static int freeze(struct fx *fx, uint32_t rank, uint8_t frozen)
{
    struct wire_msg msg = {.type = WIRE_FREEZE, .request = ++fx->request};

    msg.u.freeze.params = &frozen;
    msg.u.freeze.bytes = 1;
    return fx_send(fx, rank, &msg);
}

static void freeze_both(struct fx *fx, uint8_t frozen)
{
    (void)fx_lines(fx);
    assert_int_equal(freeze(fx, 0, frozen), 0);
    fx_expect(fx, ""); /* not before all have said it */
    assert_int_equal(freeze(fx, 1, frozen), 0);
    fx_expect(fx, "DONE@0 0\nDONE@1 0\n");
}

static void ready_both(struct fx *fx, uint32_t param, uint32_t slot)
{
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, param, GW_GRAD_FINAL, slot), 0);
}

/* Bucket 0 is reduced with p1 alone, bucket 1 not at all and blocks nothing. The frozen part of
 * bucket 0 is filled with zeros: its memory holds anything. */
static void a_bucket_waits_for_what_is_not_frozen(void **state)
{
    static const char *const op[4] = {"AR b0", "RS b0", "RS b0", "RS b0"};

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        for (uint32_t shard = 0; shard < 2; shard++) {
            struct fx *fx =
                open_stage(stage, shard ? GW_ACCUMULATE_SHARD : GW_ACCUMULATE_LOCAL, 1);

            freeze_both(fx, 5);
            ready_both(fx, 1, shard && stage >= 2 ? 0 : NONE);
            assert_int_equal(fx_count(fx, op[stage]), 1); /* though no step has ended */
            assert_int_equal(fx->launched[CORE_OP_ZERO], 2);
            fx_all(fx, WIRE_STEP_END);
            assert_int_equal(fx_count(fx, "VE step 1 used 1"), 1);
            assert_int_equal(
                fx->launched[CORE_OP_ALL_REDUCE] + fx->launched[CORE_OP_REDUCE_SCATTER], 1);
            fx_all_done(fx);
            fx_free(fx);
        }
    }
}

/* RUNNING sums lie in the gradients' memory, where last epoch's values of p0 still are: they are
 * zeroed when p1 is final, which is before the step's end. */
static void running_sums_have_zeros_where_they_are_frozen(void **state)
{
    struct fx *fx = open_stage(1, GW_ACCUMULATE_LOCAL, 2);

    (void)state;
    freeze_both(fx, 5);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fx_ready(fx, rank, 1, GW_GRAD_RUNNING | GW_GRAD_ACCUMULATE, NONE), 0);
        assert_int_equal(fx_bare(fx, rank, WIRE_MICRO_END), 0);
    }
    assert_int_equal(fx->launched[CORE_OP_ZERO], 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, 1, GW_GRAD_RUNNING, NONE), 0);
    assert_int_equal(fx_count(fx, "RS b0"), 1);
    assert_int_equal(fx->launched[CORE_OP_ZERO], 2);
    fx_free(fx);
}

/* Also where the step ends early, with the micro-step that closed the bucket. */
static void running_sums_that_end_early_have_them_too(void **state)
{
    struct fx *fx = open_stage(1, GW_ACCUMULATE_LOCAL, 2);

    (void)state;
    freeze_both(fx, 5);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, 1, GW_GRAD_RUNNING | GW_GRAD_ACCUMULATE, NONE), 0);
    assert_int_equal(fx->launched[CORE_OP_ZERO], 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_bare(fx, rank, WIRE_STEP_END), 0);
    assert_int_equal(fx_count(fx, "RS b0"), 1);
    assert_int_equal(fx->launched[CORE_OP_ZERO], 4); /* p0, and bucket 1, of each rank */
    fx_free(fx);
}

/* The word of a bucket that is frozen as a whole stays where it was, on both sides' counts. */
static void words_count_no_frozen_contribution(void **state)
{
    (void)state;
    for (uint32_t shard = 0; shard < 2; shard++) {
        struct fx *fx = open_stage(1, shard ? GW_ACCUMULATE_SHARD : GW_ACCUMULATE_LOCAL, 2);

        freeze_both(fx, 3);
        fx_all(fx, WIRE_MICRO_END);
        fx_all(fx, WIRE_STEP_END);
        fx_all_done(fx);
        assert_null(strstr(fx_lines(fx), "b0@"));
        freeze_both(fx, 0);
        ready_both(fx, 0, NONE);
        ready_both(fx, 1, NONE);
        fx_all(fx, WIRE_STEP_END);
        fx_all_done(fx);
        assert_non_null(strstr(fx_lines(fx), "b0@1=1")); /* the first ever */
        fx_free(fx);
    }
}

/* The order of launches after it: what was frozen comes last. */
static void what_was_frozen_comes_last_when_it_thaws(void **state)
{
    struct fx *fx = open_stage(2, GW_ACCUMULATE_SHARD, 1);

    (void)state;
    freeze_both(fx, 4); /* bucket 1, which is the first to be reduced */
    ready_both(fx, 1, 0);
    ready_both(fx, 0, 0);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    freeze_both(fx, 0);
    ready_both(fx, 2, 0);
    fx_expect(fx, ""); /* bucket 0 comes first now */
    ready_both(fx, 0, 1);
    ready_both(fx, 1, 1);
    assert_int_equal(fx_count(fx, "RS"), 2);
    fx_free(fx);
}

/* A frozen bucket's zeros are written where its gradients will be, once it thaws. */
static void the_last_step_is_over_before_it_counts(void **state)
{
    struct fx *fx = open_stage(1, GW_ACCUMULATE_LOCAL, 1);

    (void)state;
    freeze_both(fx, 4);
    ready_both(fx, 0, NONE);
    ready_both(fx, 1, NONE);
    fx_all(fx, WIRE_STEP_END);
    (void)fx_lines(fx);
    assert_int_equal(freeze(fx, 0, 0), 0);
    assert_int_equal(freeze(fx, 1, 0), 0);
    fx_expect(fx, "");
    fx_all_done(fx);
    fx_expect(fx, "DONE@0 0\nDONE@1 0\n");
    fx_free(fx);
}

static void other_sets_and_wrong_times_are_refused(void **state)
{
    struct fx *fx = open_stage(2, GW_ACCUMULATE_SHARD, 1);

    (void)state;
    assert_int_equal(freeze(fx, 0, 8), 0); /* there are three */
    fx_expect(fx, "DONE@0 -1\n");
    assert_int_equal(freeze(fx, 0, 1), 0);
    fx_expect(fx, "");
    assert_int_equal(freeze(fx, 0, 1), 0);
    fx_expect(fx, "DONE@0 -10\n"); /* it waits already */
    /* The other is inside its step. */
    assert_int_equal(fx_ready(fx, 1, 2, GW_GRAD_FINAL, 0), 0);
    assert_int_equal(freeze(fx, 1, 1), 0);
    fx_expect(fx, "DONE@0 -2\nDONE@1 -2\n");
    assert_non_null(strstr(fx->last_text, "rank 1 is inside step 1: freeze between steps"));
    assert_int_equal(fx_ready(fx, 0, 2, GW_GRAD_FINAL, 0), 0);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    (void)fx_lines(fx);
    /* Another set ends the job, and both hear which parameter it is. */
    assert_int_equal(freeze(fx, 0, 3), 0);
    assert_int_equal(freeze(fx, 1, 1), GW_E_MISMATCH);
    assert_non_null(
        strstr(fx->fault.text, "rank 0 freezes parameter 1, 'p1', and rank 1 does not"));
    fx_free(fx);
}

static void a_gradient_of_a_frozen_parameter_is_refused(void **state)
{
    struct fx *fx = open_stage(2, GW_ACCUMULATE_SHARD, 1);

    (void)state;
    freeze_both(fx, 1);
    assert_int_equal(fx_ready(fx, 1, 0, GW_GRAD_FINAL, 0), GW_E_STATE);
    assert_non_null(strstr(fx->fault.text, "it is frozen"));
    fx_free(fx);
}

static void unused_as_an_error_leaves_frozen_ones_out(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx->options.unused = GW_UNUSED_ERROR;
    fx_open(fx, 0, 2, 2, 4);
    freeze_both(fx, 5);
    ready_both(fx, 1, 0);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    freeze_both(fx, 1);
    ready_both(fx, 1, 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), GW_E_UNUSED);
    assert_non_null(strstr(fx->fault.text, "'p2' (2)"));
    assert_null(strstr(fx->fault.text, "'p0'"));
    fx_free(fx);
}

/* Who comes again has no frozen parameters. */
static void a_new_generation_begins_thawed(void **state)
{
    struct fx *fx = open_stage(2, GW_ACCUMULATE_SHARD, 1);

    (void)state;
    freeze_both(fx, 5);
    assert_int_equal(freeze(fx, 0, 0), 0);
    assert_int_equal(fx_reattach(fx), 0);
    (void)fx_lines(fx);
    for (uint32_t p = 0; p < 3; p++)
        ready_both(fx, 2 - p, p ? 1 : 0);
    assert_int_equal(fx_count(fx, "RS"), 2);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    freeze_both(fx, 0); /* nobody waits from before */
    fx_free(fx);
}

static void who_waits_for_whom_is_told(void **state)
{
    struct fx *fx = open_stage(2, GW_ACCUMULATE_SHARD, 1);
    struct core_wait wait;

    (void)state;
    assert_false(zero_oldest_wait(fx->zero, &wait));
    assert_int_equal(freeze(fx, 1, 1), 0);
    assert_true(zero_oldest_wait(fx->zero, &wait));
    assert_string_equal(wait.text, "freezing of parameters");
    assert_true(zero_needs(fx->zero, 0));
    assert_false(zero_needs(fx->zero, 1));
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_waits_for_what_is_not_frozen),
        cmocka_unit_test(running_sums_have_zeros_where_they_are_frozen),
        cmocka_unit_test(running_sums_that_end_early_have_them_too),
        cmocka_unit_test(words_count_no_frozen_contribution),
        cmocka_unit_test(what_was_frozen_comes_last_when_it_thaws),
        cmocka_unit_test(the_last_step_is_over_before_it_counts),
        cmocka_unit_test(other_sets_and_wrong_times_are_refused),
        cmocka_unit_test(a_gradient_of_a_frozen_parameter_is_refused),
        cmocka_unit_test(unused_as_an_error_leaves_frozen_ones_out),
        cmocka_unit_test(a_new_generation_begins_thawed),
        cmocka_unit_test(who_waits_for_whom_is_told),
    };

    return cmocka_run_group_tests_name("zero_freeze", tests, NULL, NULL);
}
