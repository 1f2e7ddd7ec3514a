/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates that others wait for, and updates that overlap the loss of a rank: what the ZeRO layer
 * tells about them, and what it makes of them when the ranks are back.
 */
#include "tests/unit/test_zero_fixture.h"

/* Two ranks have ended step 1 of a bucket of 4: their update windows open as they begin. */
static struct fx *after_step(uint32_t stage)
{
    struct fx *fx = fx_new(stage, 2, 4, 1);

    fx_open(fx, 0, 4);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, 0, 0, 0), 0);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    fx_lines(fx);
    return fx;
}

static void check_wait(struct fx *fx, uint64_t since_ns, uint64_t missing, const char *expected)
{
    struct core_wait wait;

    assert_true(zero_oldest_wait(fx->zero, &wait));
    assert_string_equal(wait.text, expected);
    assert_int_equal(wait.missing.word[0], missing);
    assert_int_equal(wait.since_ns, since_ns);
}

static void a_reduction_that_waits_for_an_update_is_seen(void **state)
{
    struct fx *fx = after_step(1);
    struct core_wait wait;

    (void)state;
    fx_all(fx, WIRE_UPDATE_BEGIN);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    assert_false(zero_oldest_wait(fx->zero, &wait));
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0);
    check_wait(fx, fx->now_ns, 2, "reduce-scatter of bucket 0 (step 2)");
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    /* Rank 1 has declared step 2's gradient, but its optimizer still reads step 1's. */
    check_wait(fx, fx->now_ns - 10, 2, "update of step 1, before bucket 0 is reduced again");
    fx_free(fx);
}

static void a_read_that_waits_for_an_update_is_seen(void **state)
{
    struct fx *fx = after_step(2);

    (void)state;
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_expect(fx, "BA sig update@0=1\nBA sig update@1=1\n");
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 4), 0);
    fx_expect(fx, "");
    check_wait(fx, fx->now_ns, 2, "update of step 1, before rank 0 reads or writes parameter 0");
    assert_true(zero_needs(fx->zero, 1));
    /* Inside its own update a rank would wait for itself. */
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 4), 0);
    fx_expect(fx, "DONE@1 -2\n");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    fx_all_done(fx);
    assert_int_equal(fx_count(fx, "IO@0 r p0 0+4"), 1);
    fx_free(fx);
}

/* It was never told that its window is open, so it has written nothing. */
static void an_update_begun_too_late_to_be_told_is_not_torn(void **state)
{
    struct fx *fx = after_step(3);

    (void)state;
    zero_late_update(fx->zero, 1, false);
    assert_int_equal(fx_reattach(fx), 0);
    fx_free(fx);
}

static void an_update_under_way_when_another_rank_died_is_torn(void **state)
{
    struct fx *fx = after_step(3);

    (void)state;
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_reattach(fx), GW_E_TORN);
    assert_int_equal(fx->fault.rank, 1);
    assert_non_null(strstr(fx->fault.text, "shard of rank 1"));
    fx_free(fx);
}

static void an_update_of_one_rank_alone_is_torn(void **state)
{
    struct fx *fx = after_step(3);

    (void)state;
    zero_late_update(fx->zero, 1, false);
    zero_late_update(fx->zero, 1, true);
    assert_int_equal(fx_reattach(fx), GW_E_TORN);
    assert_int_equal(fx->fault.rank, 0); /* whose shard lacks it */
    fx_free(fx);
}

/* All had made the update, though the last of them said so after the loss: step 1 counts, and in
 * stage 1 the replicas, which nobody had gathered yet, are. */
static void an_update_that_all_made_counts(void **state)
{
    struct fx *fx = after_step(1);

    (void)state;
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    zero_late_update(fx->zero, 1, false);
    zero_late_update(fx->zero, 1, true);
    fx_expect(fx, "BA sig update@0=1\n");
    assert_int_equal(fx_reattach(fx), 0);
    assert_int_equal(zero_steps(fx->zero), 1);
    fx_expect(fx, "GA@0 b0 n2 measure [P0:0]\nGA@1 b0 n2 measure [P1:0]\n");
    fx_free(fx);
}

/* Nobody began: the step was not made. What is no update, or of no rank, changes nothing. */
static void a_step_without_update_is_made_again(void **state)
{
    struct fx *fx = after_step(1);

    (void)state;
    zero_late_update(fx->zero, 0, true);
    zero_late_update(fx->zero, 2, false);
    assert_int_equal(fx_reattach(fx), 0);
    assert_int_equal(zero_steps(fx->zero), 0);
    fx_expect(fx, "");
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reduction_that_waits_for_an_update_is_seen),
        cmocka_unit_test(a_read_that_waits_for_an_update_is_seen),
        cmocka_unit_test(an_update_begun_too_late_to_be_told_is_not_torn),
        cmocka_unit_test(an_update_under_way_when_another_rank_died_is_torn),
        cmocka_unit_test(an_update_of_one_rank_alone_is_torn),
        cmocka_unit_test(an_update_that_all_made_counts),
        cmocka_unit_test(a_step_without_update_is_made_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
