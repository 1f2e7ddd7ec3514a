/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of steps: verdict, update windows, skip and commit, ranks that run ahead, versions and
 * re-attaching, whom others wait for.
 */
#include "test_zero_fixture.h"

#define NONE GW_NO_SLOT

static struct fx *open_pair(uint32_t stage)
{
    struct fx *fx = fx_new(stage, 2, 4, 1);

    fx_open(fx, 0, 4, 4);
    return fx;
}

/* The rank's gradients of a step, in the launch order, and its end. */
static void backward(struct fx *fx, uint32_t rank)
{
    assert_int_equal(fx_ready(fx, rank, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, rank, 0, 0, 1), 0);
    assert_int_equal(fx_bare(fx, rank, WIRE_STEP_END), 0);
}

static void step(struct fx *fx)
{
    backward(fx, 0);
    backward(fx, 1);
    fx_all_done(fx);
    fx_lines(fx);
}

static void update(struct fx *fx, uint32_t rank)
{
    assert_int_equal(fx_bare(fx, rank, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, rank, WIRE_UPDATE_COMMIT), 0);
}

/* ---- verdict and windows --------------------------------------------------------------------- */

static void windows_open_when_every_rank_has_ended(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_count(fx, "BA sig update"), 0);
    backward(fx, 1);
    assert_non_null(strstr(fx_lines(fx), "VE step 1 used 2 sig step@0=1 step@1=1 <2\n"
                                         "BA sig update@0=1\n"));
    assert_int_equal(zero_steps(fx->zero), 1);
    fx_free(fx);
}

/* ... for those that have begun: of a rank that writes, the core then knows that it does. Rank 1
 * begins before the step closes, rank 0 after, rank 2 never; in step 2 gathers still read. */
static void a_window_is_told_once_and_only_to_who_has_begun(void **state)
{
    struct fx *fx = fx_new(2, 3, 3, 1);

    (void)state;
    fx_open(fx, 0, 3, 3);
    backward(fx, 1);
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    backward(fx, 0);
    assert_int_equal(fx_count(fx, "BA sig update"), 0);
    backward(fx, 2);
    assert_non_null(strstr(fx_lines(fx), " step@2=1 <2\nBA sig update@1=1\n"));
    fx_all_done(fx);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA sig update@0=1\n");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "");
    backward(fx, 2); /* skips, so all are resolved */
    assert_int_equal(fx_count(fx, "GA"), 6);
    backward(fx, 1);
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    backward(fx, 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(zero_steps(fx->zero), 2);
    assert_non_null(strstr(fx_lines(fx), "BA sig update@1=2 <9 <10 <11\n"
                                         "BA sig update@0=2 <9 <10 <11\n"));
    fx_all_done(fx);
    fx_expect(fx, "");
    fx_free(fx);
}

/* Partials of the next step must not be written before the verdict has read the last ones. */
static void the_next_reduction_waits_for_the_verdict(void **state)
{
    struct fx *fx = open_pair(1);

    (void)state;
    backward(fx, 0);
    backward(fx, 1);
    fx_done(fx, 1, 0, 1);
    fx_done(fx, 2, 0, 1); /* both reductions, but not the verdict, op 3 */
    fx_lines(fx);
    backward(fx, 0);
    backward(fx, 1);
    assert_non_null(strstr(fx_lines(fx),
                           "RS b1 n2 [G0:4 G1:4] -> [G0:4 G1:6] sig b1@0=2 b1@1=2 <3\n"
                           "RS b0 n2 [G0:0 G1:0] -> [G0:0 G1:2] sig b0@0=2 b0@1=2\n"));
    fx_free(fx);
}

/* Nobody waited for it, so it may still be reading shards: the word waits for it. */
static void windows_stay_shut_while_a_gather_reads(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    step(fx);
    update(fx, 0);
    update(fx, 1);
    assert_int_equal(fx_count(fx, "GA"), 4);
    backward(fx, 0);
    backward(fx, 1);
    fx_lines(fx);
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_expect(fx, "BA sig update@0=2 <8 <9\nBA sig update@1=2 <8 <9\n");
    fx_free(fx);
}

static void updates_out_of_place_are_refused(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), GW_E_STATE);
    fx_free(fx);
    fx = open_pair(2);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), GW_E_STATE);
    fx_free(fx);
    fx = open_pair(2);
    step(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), GW_E_STATE);
    fx_free(fx);
    fx = open_pair(2); /* gone on, so skipped */
    step(fx);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), GW_E_STATE);
    fx_free(fx);
    fx = open_pair(2); /* did not wait for the window */
    backward(fx, 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), GW_E_STATE);
    assert_non_null(strstr(fx->fault.text, "gw_update_begin"));
    fx_free(fx);
    fx = open_pair(2); /* a step cannot end inside the window of the last */
    step(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), GW_E_STATE);
    fx_free(fx);
}

/* ---- gathers of stages 1-2 ------------------------------------------------------------------- */

static void all_committed_gathers_each_bucket_for_each_rank(void **state)
{
    (void)state;
    for (uint32_t stage = 1; stage < 3; stage++) {
        struct fx *fx = open_pair(stage);

        step(fx);
        update(fx, 0);
        fx_expect(fx, "BA sig update@0=1\n");
        update(fx, 1);
        fx_expect(fx, "BA sig update@1=1\n"
                      "GA@0 b0 n2 [P0:0]\nGA@1 b0 n2 [P1:0]\n"
                      "GA@0 b1 n2 [P0:4]\nGA@1 b1 n2 [P1:4]\n");
        fx_free(fx);
    }
}

static void skipped_by_all_gathers_nothing_by_some_all(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    step(fx);
    step(fx); /* the next gradients: both skipped */
    assert_int_equal(fx->launched[CORE_OP_GATHER], 0);
    update(fx, 1);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_count(fx, "GA"), 4);
    fx_free(fx);
}

/* A fetch waits for every owner's commit, then for the unit's gathers of its rank. */
static void a_fetch_is_served_after_the_units_gathers(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    fx_expect(fx, "SIG u0@0=1\n"); /* initial values */
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 0), 0);
    step(fx);
    update(fx, 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "BA sig update@0=1\n");
    update(fx, 1);
    fx_expect(fx, "BA sig update@1=1\n"
                  "GA@0 b0 n2 [P0:0]\nGA@1 b0 n2 [P1:0]\n" /* ops 4 to 7 */
                  "GA@0 b1 n2 [P0:4]\nGA@1 b1 n2 [P1:4]\n"
                  "SIG u0@0=2 <6\nSIG u1@0=1 <8\n");
    fx_all_done(fx);
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 1), 0);
    fx_expect(fx, "SIG u1@1=1\n");
    fx_free(fx);
}

static void overlap_off_serves_after_all_gathers(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx->options.overlap_off = 1;
    fx_open(fx, 0, 4, 4);
    step(fx);
    update(fx, 0);
    update(fx, 1);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    fx_expect(fx, "SIG u0@0=1 <8\n"); /* bucket 1's, the rank's last */
    fx_free(fx);
}

/* Stage 0 updates its own replica: nobody else's commit matters. */
static void stage_0_fetches_after_the_own_commit(void **state)
{
    struct fx *fx = open_pair(0);

    (void)state;
    step(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "BA sig update@0=1\n");
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "SIG u1@0=1\n");
    fx_free(fx);
}

/* ---- running ahead --------------------------------------------------------------------------- */

static void a_rank_ahead_is_kept_and_replayed(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 0, 1, 0, 2), 0); /* step 2 */
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0); /* its slot is reduced when that is replayed */
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 1), 0); /* step 3 */
    fx_expect(fx, "");
    backward(fx, 1);
    assert_non_null(strstr(fx_lines(fx), "VE step 1 used 2"));
    assert_int_equal(fx_ready(fx, 1, 1, 0, 2), 0);
    fx_expect(fx, "RS b1 n2 [R0:8 R1:8] -> [S0:2 S1:2] sig b1@0=2 b1@1=2 <3\n");
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    assert_int_equal(fx_count(fx, "VE step 2"), 1);
    assert_int_equal(zero_steps(fx->zero), 2);
    assert_int_equal(fx_ready(fx, 1, 1, 0, 0), 0);
    fx_expect(fx, "RS b1 n2 [R0:4 R1:0] -> [S0:2 S1:2] sig b1@0=3 b1@1=3 <6\n");
    fx_free(fx);
}

/* How far a rank may be ahead is bounded. */
static void the_backlog_is_bounded(void **state)
{
    struct fx *fx = open_pair(0);
    int r = 0;
    uint32_t sent = 0;

    (void)state;
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    for (; r == 0 && sent < 5000; sent++)
        r = fx_bare(fx, 0, WIRE_STEP_END);
    assert_int_equal(r, GW_E_LIMIT);
    assert_int_equal(sent, 4097);
    assert_int_equal(fx->fault.rank, 0);
    fx_free(fx);
}

/* Gradients may be declared inside the window; their reductions wait for its end. */
static void shards_are_not_written_before_they_are_read(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    step(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 1, 1, 0, 0), 0);
    fx_expect(fx, "BA sig update@0=1\n");
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    assert_non_null(strstr(fx_lines(fx), "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2]"));
    fx_free(fx);
}

/* ---- re-attaching ---------------------------------------------------------------------------- */

static void a_broken_step_is_forgotten(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    step(fx);
    update(fx, 0);
    update(fx, 1);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 1), 0);
    fx_lines(fx);
    assert_int_equal(fx_reattach(fx), 0);
    assert_int_equal(zero_steps(fx->zero), 1);
    /* replicas are brought up to date, uncounted */
    fx_expect(fx, "GA@0 b0 n2 measure [P0:0]\nGA@1 b0 n2 measure [P1:0]\n"
                  "GA@0 b1 n2 measure [P0:4]\nGA@1 b1 n2 measure [P1:4]\n");
    fx_all_done(fx);
    backward(fx, 0); /* words count from the start again; so does the order */
    backward(fx, 1);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:0] -> [S0:2 S1:2] sig b1@0=1 b1@1=1\n"
                  "RS b0 n2 [R0:4 R1:4] -> [S0:0 S1:0] sig b0@0=1 b0@1=1\n"
                  "VE step 2 used 2 sig step@0=2 step@1=2 <15\n");
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_expect(fx, "BA sig update@0=2\nBA sig update@1=2\n");
    fx_free(fx);
}

static void a_step_nobody_updated_counts_as_not_made(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    step(fx);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0); /* skipped by rank 0 */
    assert_int_equal(fx_reattach(fx), 0);
    assert_int_equal(zero_steps(fx->zero), 0);
    fx_free(fx);
}

static void a_shard_left_inside_its_update_is_torn(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    step(fx);
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_reattach(fx), GW_E_TORN);
    assert_int_equal(fx->fault.rank, 1);
    assert_non_null(strstr(fx->fault.text, "step 1"));
    fx_free(fx);
    /* begun, but the window had not opened: nothing was written */
    fx = open_pair(2);
    backward(fx, 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_reattach(fx), 0);
    assert_int_equal(zero_steps(fx->zero), 0);
    fx_free(fx);
}

static void different_versions_are_torn(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    step(fx);
    update(fx, 0);
    assert_int_equal(fx_reattach(fx), GW_E_TORN);
    assert_int_equal(fx->fault.rank, 1);
    fx_free(fx);
}

/* ---- waiting for others ---------------------------------------------------------------------- */

static void the_oldest_wait_names_what_and_whom(void **state)
{
    struct core_wait wait;
    struct fx *fx = open_pair(2);

    (void)state;
    assert_false(zero_oldest_wait(fx->zero, &wait));
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0); /* at 10 */
    assert_int_equal(fx_ready(fx, 1, 1, 0, 1), 0); /* at 20 */
    assert_true(zero_oldest_wait(fx->zero, &wait));
    assert_string_equal(wait.text, "reduce-scatter of bucket 0 (step 1)");
    assert_int_equal(wait.since_ns, 10);
    assert_int_equal(wait.missing.word[0], 1);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 1), 0);
    assert_true(zero_oldest_wait(fx->zero, &wait));
    assert_string_equal(wait.text, "end of step 1");
    assert_int_equal(wait.since_ns, 30);
    assert_int_equal(wait.missing.word[0], 1);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    assert_false(zero_oldest_wait(fx->zero, &wait));
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0); /* skips; rank 1 has not gone on */
    assert_true(zero_oldest_wait(fx->zero, &wait));
    assert_string_equal(wait.text, "update of step 1, for a fetch of unit 0");
    assert_int_equal(wait.missing.word[0], 2);
    fx_free(fx);
}

static void a_rank_is_needed_while_others_wait_for_it(void **state)
{
    struct fx *fx = open_pair(2);

    (void)state;
    assert_false(zero_needs(fx->zero, 0));
    assert_int_equal(fx_ready(fx, 1, 1, 0, 0), 0);
    assert_true(zero_needs(fx->zero, 0));
    assert_false(zero_needs(fx->zero, 1)); /* rank 0 has begun nothing */
    assert_int_equal(fx_ready(fx, 1, 0, 0, 1), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    assert_false(zero_needs(fx->zero, 1));
    backward(fx, 0);
    assert_false(zero_needs(fx->zero, 0)); /* ended by all */
    fx_all_done(fx);
    update(fx, 0);
    assert_false(zero_needs(fx->zero, 0)); /* may leave after its last update */
    assert_false(zero_needs(fx->zero, 1)); /* ... and nobody waits for rank 1's yet */
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    assert_true(zero_needs(fx->zero, 1));
    fx_free(fx);
}

/* Overlapping intervals of one step are united, per rank; local ops are not communication. */
static void communication_time_is_united_per_step(void **state)
{
    struct wire_msg stats = {.type = WIRE_STATS};
    struct fx *fx = open_pair(2);

    (void)state;
    backward(fx, 0);
    backward(fx, 1);
    fx_done(fx, 1, 100, 150); /* reductions */
    fx_done(fx, 2, 140, 200);
    fx_done(fx, 3, 500, 900); /* the verdict */
    update(fx, 0);
    update(fx, 1);
    fx_done(fx, 6, 300, 310); /* rank 0's gather; 4 and 5 were the windows */
    fx_done(fx, 7, 300, 330); /* rank 1's */
    fx_done(fx, 8, 305, 320); /* rank 0's */
    fx_done(fx, 9, 330, 340);
    zero_stats(fx->zero, 0, &stats);
    assert_int_equal(stats.u.stats.comm_ns, 100 + 20);
    assert_int_equal(stats.u.stats.steps, 1);
    zero_stats(fx->zero, 1, &stats);
    assert_int_equal(stats.u.stats.comm_ns, 100 + 40);
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_open_when_every_rank_has_ended),
        cmocka_unit_test(a_window_is_told_once_and_only_to_who_has_begun),
        cmocka_unit_test(the_next_reduction_waits_for_the_verdict),
        cmocka_unit_test(windows_stay_shut_while_a_gather_reads),
        cmocka_unit_test(updates_out_of_place_are_refused),
        cmocka_unit_test(all_committed_gathers_each_bucket_for_each_rank),
        cmocka_unit_test(skipped_by_all_gathers_nothing_by_some_all),
        cmocka_unit_test(a_fetch_is_served_after_the_units_gathers),
        cmocka_unit_test(overlap_off_serves_after_all_gathers),
        cmocka_unit_test(stage_0_fetches_after_the_own_commit),
        cmocka_unit_test(a_rank_ahead_is_kept_and_replayed),
        cmocka_unit_test(the_backlog_is_bounded),
        cmocka_unit_test(shards_are_not_written_before_they_are_read),
        cmocka_unit_test(a_broken_step_is_forgotten),
        cmocka_unit_test(a_step_nobody_updated_counts_as_not_made),
        cmocka_unit_test(a_shard_left_inside_its_update_is_torn),
        cmocka_unit_test(different_versions_are_torn),
        cmocka_unit_test(the_oldest_wait_names_what_and_whom),
        cmocka_unit_test(a_rank_is_needed_while_others_wait_for_it),
        cmocka_unit_test(communication_time_is_united_per_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
