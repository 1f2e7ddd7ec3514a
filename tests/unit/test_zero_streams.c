/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that order by streams: which tokens each op waits for, and that it is never a later one
 * than it needs; what is held back because a stream may wait for something else first.
 */
#include "test_zero_fixture.h"

/* Two ranks, two buckets of 4 elements, of one parameter each; 1 first in launch order. */
static struct fx *open_pair(uint32_t stage)
{
    struct fx *fx = fx_new(stage, 2, 4, 1);

    fx->ordered = true;
    fx_open(fx, 0, 4, 4);
    return fx;
}

/* Declares both buckets (tokens first, first + 1) and ends the step (first + 2). */
static void backward(struct fx *fx, uint32_t rank, uint64_t first)
{
    assert_int_equal(fx_ready_after(fx, rank, 1, 0, 0, first), 0);
    assert_int_equal(fx_ready_after(fx, rank, 0, 0, 1, first + 1), 0);
    assert_int_equal(fx_after(fx, rank, WIRE_STEP_END, first + 2), 0);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void a_window_waits_for_every_ranks_step_end(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0, 1);
    backward(fx, 1, 11);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2] wait 0.0=1 1.0=11 sig b1@0=1 b1@1=1\n"
                  "RS b0 n2 [R0:4 R1:4] -> [S0:0 S1:0] wait 0.0=2 1.0=12 sig b0@0=1 b0@1=1\n"
                  "VE step 1 used 2 sig step@0=1 step@1=1 <2\n");
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA wait 0.0=3 1.0=13 sig update@0=1\n");
    fx_free(fx);
}

/* Rank 1 has skipped the update and ended the next step: its later token is behind the gathers of
 * that step, which wait for rank 0's update. */
static void a_late_window_waits_for_its_own_step(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0, 1);
    backward(fx, 1, 11);
    backward(fx, 1, 21);
    fx_lines(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA wait 0.0=3 1.0=13 sig update@0=1\n");
    fx_free(fx);
}

/* Each rank's gathers wait once; so does the REDUCE stream, for the commit and for what skipped. */
static void gathers_and_reductions_wait_for_commits(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0, 1);
    backward(fx, 1, 11);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    fx_lines(fx);
    assert_int_equal(fx_after(fx, 0, WIRE_UPDATE_COMMIT, 4), 0);
    fx_expect(fx, "BA wait 0.0=4\n"); /* done when the update is */
    assert_int_equal(fx_ready_after(fx, 1, 1, 0, 2, 21), 0);
    fx_expect(fx, "GA@0 b0 n2 [P0:0] wait 0.0=4\n"
                  "GA@1 b0 n2 [P1:0] wait 0.0=4\n"
                  "GA@0 b1 n2 [P0:4]\n"
                  "GA@1 b1 n2 [P1:4]\n");
    assert_int_equal(fx_ready_after(fx, 0, 1, 0, 2, 5), 0);
    fx_expect(fx, "RS b1 n2 [R0:8 R1:8] -> [S0:2 S1:2] wait 0.0=5 1.0=21 0.0=4 1.0=21"
                  " sig b1@0=2 b1@1=2 <3\n");
    assert_int_equal(fx_ready_after(fx, 0, 0, 0, 0, 6), 0);
    assert_int_equal(fx_ready_after(fx, 1, 0, 0, 0, 22), 0);
    fx_expect(fx, "RS b0 n2 [R0:0 R1:0] -> [S0:0 S1:0] wait 0.0=6 1.0=22 sig b0@0=2 b0@1=2\n");
    fx_free(fx);
}

/* A fetch says nothing; then the first gradients tell that the last ones are done with. */
static void a_fetch_without_tokens_skips_until_the_next_message(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0, 1);
    backward(fx, 1, 11);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    assert_int_equal(fx_ready_after(fx, 0, 0, 0, 2, 7), 0); /* not the bucket reduced first */
    assert_int_equal(fx_ready_after(fx, 0, 1, 0, 0, 8), 0);
    assert_int_equal(fx_unit_after(fx, 1, WIRE_FETCH, 0, 19), 0);
    fx_lines(fx);
    assert_int_equal(fx_ready_after(fx, 1, 1, 0, 0, 21), 0);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2] wait 0.0=8 1.0=21 0.0=7 1.0=19"
                  " sig b1@0=2 b1@1=2 <3\n");
    fx_free(fx);
}

static void stage_0_fetches_wait_for_the_own_update(void **state)
{
    struct fx *fx = open_pair(0);

    (void)state;
    backward(fx, 0, 1);
    backward(fx, 1, 11);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    fx_lines(fx);
    assert_int_equal(fx_after(fx, 0, WIRE_UPDATE_COMMIT, 4), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "BA wait 0.0=4\n"
                  "SIG u1@0=1 <5\n");
    fx_done(fx, 5, 1, 2);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "SIG u1@0=2\n");
    fx_free(fx);
}

/* Stage 3, room for two units: a gather waits for the releases before it in the rank's order, once,
 * and for none that comes later. */
static void gathers_into_the_pool_wait_for_releases(void **state)
{
    struct fx *fx = fx_new(3, 2, 4, 1);

    (void)state;
    fx->ordered = true;
    fx->options.gather_bytes = 16;
    fx_open(fx, 0, 4, 4, 4);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "GA@0 b0 n2 [L0:0] sig u0@0=1\n"
                  "GA@0 b1 n2 [L0:4] sig u1@0=1+4\n");
    assert_int_equal(fx_unit_after(fx, 0, WIRE_RELEASE, 0, 5), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 2), 0);
    fx_expect(fx, "GA@0 b2 n2 [L0:0] wait 0.0=5 sig u2@0=1\n");
    assert_int_equal(fx_unit_after(fx, 0, WIRE_RELEASE, 1, 6), 0);
    assert_int_equal(fx_unit_after(fx, 0, WIRE_RELEASE, 2, 7), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "GA@0 b0 n2 [L0:0] wait 0.0=7 sig u0@0=2\n"
                  "GA@0 b1 n2 [L0:4] sig u1@0=2+4\n");
    fx_free(fx);
}

/* Zero-fill: behind what the rank's stream does to the buffer before it closes the contribution,
 * and behind its reads of the last step's gradient, which lies there. */
static void zero_fill_waits_for_what_closes(void **state)
{
    struct fx *fx = fx_new(1, 2, 8, 1);

    (void)state;
    fx->ordered = true;
    fx_open(fx, 0, 4, 4);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(fx_ready_after(fx, r, 0, 0, GW_NO_SLOT, 1), 0);
        assert_int_equal(fx_after(fx, r, WIRE_STEP_END, 2), 0);
    }
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_after(fx, 0, WIRE_UPDATE_COMMIT, 3), 0);
    assert_int_equal(fx_ready_after(fx, 0, 0, 0, GW_NO_SLOT, 4), 0);
    fx_lines(fx);
    assert_int_equal(fx_after(fx, 0, WIRE_STEP_END, 5), 0);
    fx_expect(fx, "ZE@0 b0 n4 [G0:4] wait 0.0=3 0.0=5\n");
    fx_free(fx);
}

/* ---- what is held back ----------------------------------------------------------------------- */

/* The client's stream waits for the window; what it declares behind that comes at once. */
static void a_commit_before_the_window_is_kept(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0, 1);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_after(fx, 0, WIRE_UPDATE_COMMIT, 4), 0);
    assert_int_equal(fx_ready_after(fx, 0, 1, 0, 2, 5), 0);
    fx_expect(fx, "");
    backward(fx, 1, 11);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2] wait 0.0=1 1.0=11 sig b1@0=1 b1@1=1\n"
                  "RS b0 n2 [R0:4 R1:4] -> [S0:0 S1:0] wait 0.0=2 1.0=12 sig b0@0=1 b0@1=1\n"
                  "VE step 1 used 2 sig step@0=1 step@1=1 <2\n"
                  "BA wait 0.0=3 1.0=13 sig update@0=1\n"
                  "BA wait 0.0=4\n");
    fx_free(fx);
}

/* Stage 1, a full buffer that takes the next micro-step's gradient: not before the last one's
 * reduction is launched, for the stream waits for that first. */
static void a_buffer_is_declared_again_after_its_launch(void **state)
{
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx->ordered = true;
    fx->options.accumulate = GW_ACCUMULATE_SHARD;
    fx->options.micro_steps = 2;
    fx_open(fx, 0, 4);
    assert_int_equal(fx_ready_after(fx, 0, 0, GW_GRAD_ACCUMULATE, GW_NO_SLOT, 1), 0);
    assert_int_equal(fx_after(fx, 0, WIRE_MICRO_END, 2), 0);
    assert_int_equal(fx_ready_after(fx, 0, 0, 0, GW_NO_SLOT, 3), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready_after(fx, 1, 0, GW_GRAD_ACCUMULATE, GW_NO_SLOT, 11), 0);
    assert_int_equal(fx_after(fx, 1, WIRE_MICRO_END, 12), 0);
    fx_expect(fx, "RS b0 n2 [G0:0 G1:0] -> [S0:0 S1:0] wait 0.0=1 1.0=11 sig b0@0=1 b0@1=1\n");
    assert_int_equal(fx_ready_after(fx, 1, 0, 0, GW_NO_SLOT, 13), 0);
    fx_expect(fx, "RS b0 n2 acc [G0:0 G1:0] -> [S0:0 S1:0] wait 0.0=3 1.0=13"
                  " sig b0@0=2 b0@1=2\n");
    fx_free(fx);
}

/* Messages keep their place among the rank's collectives, and the other way round. */
static void messages_wait_for_the_collectives_before_them(void **state)
{
    struct fx *fx = open_pair(2);
    struct core_fault fault;

    (void)state;
    assert_int_equal(fx_ready_after(fx, 0, 1, 0, 0, 1), 0);
    assert_int_equal(zero_op_submitted(fx->zero, 0), 1);
    assert_true(zero_settled(fx->zero, 0, 1)); /* nothing of it that a stream may wait for */
    assert_int_equal(fx_ready_after(fx, 0, 0, 0, 1, 2), 0);
    assert_int_equal(fx_ready_after(fx, 1, 1, 0, 0, 11), 0);
    assert_int_equal(fx_ready_after(fx, 1, 0, 0, 1, 12), 0);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2] wait 0.0=1 1.0=11 sig b1@0=1 b1@1=1\n");
    zero_op_launched(fx->zero, 0);
    assert_int_equal(zero_resume(fx->zero, fx->now_ns, &fault), 0);
    fx_take(fx);
    fx_expect(fx, "RS b0 n2 [R0:4 R1:4] -> [S0:0 S1:0] wait 0.0=2 1.0=12 sig b0@0=1 b0@1=1\n");
    assert_int_equal(fx_after(fx, 0, WIRE_STEP_END, 3), 0);
    assert_false(zero_settled(fx->zero, 0, 3)); /* its stream may wait for the verdict */
    assert_int_equal(fx_after(fx, 1, WIRE_STEP_END, 13), 0);
    assert_true(zero_settled(fx->zero, 0, 3));
    fx_free(fx);
}

/* ---- ring slots ------------------------------------------------------------------------------ */

static void a_launched_slot_is_named_once(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx->ordered = true;
    fx->options.ring_slots = 2;
    fx_open(fx, 0, 4, 4, 4, 4, 4, 4);
    assert_int_equal(fx_ready_after(fx, 0, 5, 0, 0, 1), 0);
    assert_int_equal(fx_ready_after(fx, 0, 4, 0, 1, 2), 0);
    assert_int_equal(fx_acquire_ordered(fx, 0, 3), 0);
    fx_expect(fx, ""); /* neither is launched, and rank 1 is waited for */
    assert_int_equal(fx_ready_after(fx, 1, 5, 0, 0, 11), 0);
    fx_expect(fx, "RS b5 n2 [R0:0 R1:0] -> [S0:10 S1:10] wait 0.0=1 1.0=11 sig b5@0=1 b5@1=1\n"
                  "ACQ@0 0 launched\n");
    assert_int_equal(fx_acquire_ordered(fx, 0, 2), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready_after(fx, 0, 3, 0, 0, 3), 0); /* not done, but launched */
    assert_int_equal(fx_ready_after(fx, 1, 4, 0, 1, 12), 0);
    fx_expect(fx, "RS b4 n2 [R0:4 R1:4] -> [S0:8 S1:8] wait 0.0=2 1.0=12 sig b4@0=1 b4@1=1\n"
                  "ACQ@0 1 launched\n");
    /* The next in launch order, 3, is declared; no overflow while rank 1 is waited for. */
    assert_int_equal(fx_acquire_ordered(fx, 0, 1), 0);
    fx_expect(fx, "");
    fx_free(fx);
}

/* All named, and the next in launch order is the rank's own: waiting would be for itself. */
static void an_overflow_slot_where_all_are_named(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx->ordered = true;
    fx->options.ring_slots = 1;
    fx_open(fx, 0, 4, 4, 4);
    assert_int_equal(fx_ready_after(fx, 0, 2, 0, 0, 1), 0);
    assert_int_equal(fx_ready_after(fx, 1, 2, 0, 0, 11), 0);
    fx_lines(fx);
    assert_int_equal(fx_acquire_ordered(fx, 0, 0), 0);
    fx_expect(fx, "ACQ@0 0 launched\n");
    assert_int_equal(fx_acquire_ordered(fx, 0, 1), 0);
    fx_expect(fx, "OVF@0 0\n");
    assert_int_equal(fx_overflow(fx, 0, 0), 0);
    fx_expect(fx, "ACQ@0 1\n");
    fx_free(fx);
}

/* ---- between steps --------------------------------------------------------------------------- */

/* The host copies parameters: everything declared must have come to pass. */
static void reads_wait_until_all_is_quiet(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0, 1);
    backward(fx, 1, 11);
    fx_lines(fx);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 4), 0);
    fx_expect(fx, "BA wait 0.0=3 1.0=13\n");
    fx_all_done(fx);
    fx_expect(fx, "IO@0 r p0 0+4\n");
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 4), 0);
    fx_expect(fx, "IO@1 r p0 0+4\n"); /* nothing new */
    fx_free(fx);
}

/* A job that breaks lets the streams run: what was begun, or is not known to be done, is torn. */
static void an_update_that_is_not_reported_is_torn(void **state)
{
    (void)state;
    for (uint32_t reported = 0; reported < 2; reported++) {
        struct fx *fx = open_pair(2);

        backward(fx, 0, 1);
        backward(fx, 1, 11);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(fx_bare(fx, r, WIRE_UPDATE_BEGIN), 0);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(fx_after(fx, r, WIRE_UPDATE_COMMIT, 20), 0);
        if (reported)
            fx_all_done(fx);
        assert_int_equal(fx_reattach(fx), reported ? 0 : GW_E_TORN);
        if (!reported)
            assert_non_null(strstr(fx->fault.text, "the streams of rank 0"));
        fx_free(fx);
    }
}

static void an_update_begun_too_late_is_torn(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0, 1);
    zero_late_update(fx->zero, 0, false);
    assert_int_equal(fx_reattach(fx), GW_E_TORN);
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_waits_for_every_ranks_step_end),
        cmocka_unit_test(a_late_window_waits_for_its_own_step),
        cmocka_unit_test(gathers_and_reductions_wait_for_commits),
        cmocka_unit_test(a_fetch_without_tokens_skips_until_the_next_message),
        cmocka_unit_test(stage_0_fetches_wait_for_the_own_update),
        cmocka_unit_test(gathers_into_the_pool_wait_for_releases),
        cmocka_unit_test(zero_fill_waits_for_what_closes),
        cmocka_unit_test(a_commit_before_the_window_is_kept),
        cmocka_unit_test(a_buffer_is_declared_again_after_its_launch),
        cmocka_unit_test(messages_wait_for_the_collectives_before_them),
        cmocka_unit_test(a_launched_slot_is_named_once),
        cmocka_unit_test(an_overflow_slot_where_all_are_named),
        cmocka_unit_test(reads_wait_until_all_is_quiet),
        cmocka_unit_test(an_update_that_is_not_reported_is_torn),
        cmocka_unit_test(an_update_begun_too_late_is_torn),
    };

    return cmocka_run_group_tests_name("zero_streams", tests, NULL, NULL);
}
