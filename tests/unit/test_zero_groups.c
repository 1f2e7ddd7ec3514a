/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of ranks in the ZeRO layer: launch orders of their own, whom they wait for, hybrid
 * sharding, measuring. Values are derived by hand; test_zero_fixture.h has the notation.
 */
#include "test_zero_fixture.h"

#define NONE GW_NO_SLOT
#define MORE GW_GRAD_ACCUMULATE

static const uint32_t two_and_zero[] = {2, 0};

/* Three ranks; p0 of all, p1 of ranks 2 and 0 in this order. Buckets of 4 elements. */
static struct fx *open_pair_in_three(uint32_t stage)
{
    struct fx_unit params[] = {{.numel = 3}, {.numel = 4, .group = 1}};
    struct fx *fx = fx_new(stage, 3, 4, 1);

    fx->options.scale = 0; /* each group's own mean */
    fx->groups[0] = (struct layout_group){.ranks = two_and_zero, .count = 2};
    fx->group_count = 1;
    fx_open_layout(fx, params, 2, 0);
    return fx;
}

/* n ranks in runs of `run`; one parameter of `numel`. */
static struct fx *open_hybrid(uint32_t stage, uint32_t world, uint32_t run, uint64_t numel,
                              uint32_t micro_steps)
{
    struct fx_unit params[] = {{.numel = numel}};
    struct fx *fx = fx_new(stage, world, numel, 1);

    fx->options.shard_ranks = run;
    fx->options.micro_steps = micro_steps;
    fx_open_layout(fx, params, 1, 0);
    return fx;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void a_group_waits_for_its_members_only(void **state)
{
    struct fx *fx = open_pair_in_three(1);
    struct core_wait wait;

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 1, 0, NONE), 0);
    assert_int_equal(fx_ready(fx, 0, 0, 0, NONE), 0);
    fx_expect(fx, "");
    assert_true(zero_oldest_wait(fx->zero, &wait));
    assert_string_equal(wait.text, "reduce-scatter of bucket 1 (step 1)");
    assert_int_equal(wait.missing.word[0], 1 << 2); /* not rank 1 */
    /* Half of 4 for each; rank 2 comes first. Its slice is the first. */
    assert_int_equal(fx_ready(fx, 2, 1, 0, NONE), 0);
    fx_expect(fx, "RS b1 n2 r2,0 x0.5 s0/2 [G2:3 G0:3] -> [G2:3 G0:5] sig b1@2=1 b1@0=1\n");
    assert_true(zero_oldest_wait(fx->zero, &wait));
    assert_string_equal(wait.text, "reduce-scatter of bucket 0 (step 1)");
    assert_int_equal(wait.missing.word[0], 1 << 1 | 1 << 2);
    assert_int_equal(fx_ready(fx, 2, 0, 0, NONE), 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, NONE), 0);
    fx_expect(fx, "RS b0 n1 [G0:0 G1:0 G2:0] -> [G0:0 G1:1 G2:2] sig b0@0=1 b0@1=1 b0@2=1\n");
    fx_all(fx, WIRE_STEP_END);
    fx_expect(fx, "VE step 1 used 2 sig step@0=1 step@1=1 step@2=1 <2\n");
    fx_free(fx);
}

static void memory_is_for_the_rank_s_own_groups(void **state)
{
    struct fx *fx = open_pair_in_three(1);
    uint64_t count;

    (void)state;
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_PARAMS, 0), 7 * 4);
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_PARAMS, 1), 3 * 4);
    assert_int_equal(zero_param_slice(fx->zero, 1, 1).kind, GW_ARENA_NONE);
    assert_int_equal(zero_master_slice(fx->zero, 1, 1).kind, GW_ARENA_NONE);
    assert_int_equal(zero_param_ref(fx->zero, 1, 0, 1, &count).kind, GW_ARENA_NONE);
    assert_int_equal(count, 4);
    assert_int_equal(zero_param_slice(fx->zero, 1, 2).offset_bytes, 3 * 4);
    assert_int_equal(zero_param_slice(fx->zero, 1, 0).offset_bytes, 5 * 4);
    assert_int_equal(zero_param_slice(fx->zero, 2, 0).kind, GW_ARENA_NONE);
    fx_free(fx);
}

static void gradients_of_other_groups_are_refused(void **state)
{
    struct fx *fx = open_pair_in_three(2);

    (void)state;
    assert_int_equal(fx_acquire(fx, 1, 1), 0);
    fx_expect(fx, "DONE@1 -1\n");
    assert_string_equal(fx->last_text, "rank 1 acquires a ring slot for bucket 1, but there is "
                                       "none for it: its group does not hold the rank");
    assert_int_equal(fx_ready(fx, 1, 1, 0, 0), GW_E_INVALID);
    assert_int_equal(fx->fault.rank, 1);
    assert_string_equal(fx->fault.text, "rank 1: piece 0 of parameter 'p1' was declared, but its "
                                        "group does not hold the rank");
    fx_free(fx);
}

/* Rank 1 has nothing of bucket 1: its word, its step's end and policy "error" ask nothing of it. */
static void unused_parameters_of_other_groups_are_no_error(void **state)
{
    struct fx_unit params[] = {{.numel = 3}, {.numel = 4, .group = 1}};
    struct fx *fx = fx_new(2, 3, 4, 1);

    (void)state;
    fx->groups[0] = (struct layout_group){.ranks = two_and_zero, .count = 2};
    fx->group_count = 1;
    fx->options.unused = GW_UNUSED_ERROR;
    fx_open_layout(fx, params, 2, 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), GW_E_UNUSED);
    assert_string_equal(fx->fault.text, "rank 0 ended step 1 without a gradient for 'p1' (1)");
    fx_free(fx);
}

/* Nobody of group 1 used it: zeroed at the step's end, for its members. */
static void an_unused_group_is_zeroed(void **state)
{
    struct fx *fx = open_pair_in_three(2);

    (void)state;
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(fx_ready(fx, r, 0, 0, 0), 0);
    fx_lines(fx);
    fx_all(fx, WIRE_STEP_END);
    fx_expect(fx, "SIG b1@2=1\n"
                  "SIG b1@0=1\n"
                  "ZE@2 b1 n2 [S2:1]\n"
                  "ZE@0 b1 n2 [S0:1]\n"
                  "VE step 1 used 1 sig step@0=1 step@1=1 step@2=1 <3 <1 <2\n");
    fx_free(fx);
}

/* The first member's order is the group's next. Rank 2 declares p2 before p1, rank 0 the other way.
 */
static void each_group_records_its_own_order(void **state)
{
    struct fx_unit params[] = {{.numel = 3}, {.numel = 4, .group = 1}, {.numel = 4, .group = 1}};
    struct fx *fx = fx_new(1, 3, 4, 1);

    (void)state;
    fx->groups[0] = (struct layout_group){.ranks = two_and_zero, .count = 2};
    fx->group_count = 1;
    fx_open_layout(fx, params, 3, 0);
    for (uint32_t step = 0; step < 2; step++) {
        assert_int_equal(fx_ready(fx, 2, 1, 0, NONE), 0);
        assert_int_equal(fx_ready(fx, 2, 2, 0, NONE), 0);
        assert_int_equal(fx_ready(fx, 0, 2, 0, NONE), 0);
        /* Backward at first: bucket 2, then 1. Then as rank 2 does. */
        assert_int_equal(fx_count(fx, "RS b2"), step == 0);
        assert_int_equal(fx_ready(fx, 0, 1, 0, NONE), 0);
        assert_int_equal(fx_count(fx, "RS"), step == 0 ? 1 : 2);
        for (uint32_t r = 0; r < 3; r++)
            assert_int_equal(fx_ready(fx, r, 0, 0, NONE), 0);
        fx_all(fx, WIRE_STEP_END);
        fx_all_done(fx);
        fx_lines(fx);
    }
    fx_free(fx);
}

/* Stage 1: group 1's new parameters are gathered as soon as its members have committed. */
static void a_group_s_gathers_wait_for_its_commits_only(void **state)
{
    struct fx *fx = open_pair_in_three(1);

    (void)state;
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(fx_bare(fx, r, WIRE_UPDATE_BEGIN), 0);
    fx_all_done(fx);
    fx_lines(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 2, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "GA@2 b1 n2 r2,0 [P2:3]\n"
                  "GA@0 b1 n2 r2,0 [P0:3]\n");
    /* A fetch waits for all groups of its rank. */
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "GA@0 b0 n1 [P0:0]\n"
                  "GA@1 b0 n1 [P1:0]\n"
                  "GA@2 b0 n1 [P2:0]\n"
                  "SIG u1@0=1 <11\n");
    /* Of a unit that it has nothing of: at once. */
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 1), 0);
    fx_expect(fx, "SIG u1@1=1\n");
    fx_free(fx);
}

/* Of group 1's members, one more micro-step than the other: the bucket is one of theirs. Rank 1
 * shares bucket 0 with both. */
static void micro_steps_are_compared_in_common_groups(void **state)
{
    static const uint32_t zero_and_one[] = {0, 1}, two[] = {2};
    struct fx_unit params[] = {{.numel = 4, .group = 1}, {.numel = 4, .group = 2}};
    struct fx *fx = fx_new(1, 3, 4, 1);

    (void)state;
    fx->groups[0] = (struct layout_group){.ranks = zero_and_one, .count = 2};
    fx->groups[1] = (struct layout_group){.ranks = two, .count = 1};
    fx->group_count = 2;
    fx->options.micro_steps = 2;
    fx_open_layout(fx, params, 2, 0);
    assert_int_equal(fx_bare(fx, 2, WIRE_STEP_END), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0); /* rank 2 is none of its business */
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), GW_E_MISMATCH);
    assert_non_null(strstr(fx->fault.text, "bucket 0 would lack a contribution"));
    fx_free(fx);
}

/* Groups without a common rank: neither's reductions are behind the other's. So each waits for the
 * verdict that reads the last partials, and for its own owners' commits; once. */
static void each_group_waits_for_the_last_verdict(void **state)
{
    static const uint32_t zero[] = {0}, one[] = {1};
    struct fx_unit params[] = {{.numel = 2, .group = 1}, {.numel = 2, .group = 2},
                               {.numel = 2, .group = 2}};
    struct fx *fx = fx_new(1, 2, 2, 1);

    (void)state;
    fx->ordered = true;
    fx->groups[0] = (struct layout_group){.ranks = zero, .count = 1};
    fx->groups[1] = (struct layout_group){.ranks = one, .count = 1};
    fx->group_count = 2;
    fx_open_layout(fx, params, 3, 0);
    fx_all(fx, WIRE_STEP_END); /* three zeroings, and verdict 4 */
    fx_lines(fx);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(fx_bare(fx, r, WIRE_UPDATE_BEGIN), 0);
        assert_int_equal(fx_after(fx, r, WIRE_UPDATE_COMMIT, 5 + r), 0);
    }
    fx_lines(fx);
    assert_int_equal(fx_ready(fx, 1, 2, 0, NONE), 0);
    fx_expect(fx, "RS b2 n2 r1 s0/1 [G1:2] -> [G1:2] wait 1.0=6 sig b2@1=2 <4\n");
    assert_int_equal(fx_ready(fx, 0, 0, 0, NONE), 0);
    fx_expect(fx, "RS b0 n2 r0 s0/1 [G0:0] -> [G0:0] wait 0.0=5 sig b0@0=2 <4\n");
    assert_int_equal(fx_ready(fx, 1, 1, 0, NONE), 0);
    fx_expect(fx, "RS b1 n2 r1 s0/1 [G1:0] -> [G1:0] sig b1@1=2\n");
    fx_free(fx);
}

/* Rank 0 has gone on to the next step, and its gather waits for its streams. The window of rank 1,
 * which shares nothing with it, must not: what those streams wait for comes after it. */
static void windows_do_not_wait_for_other_groups(void **state)
{
    static const uint32_t zero[] = {0}, one[] = {1};
    struct fx_unit params[] = {{.numel = 2, .group = 1}, {.numel = 2, .group = 2}};
    struct fx *fx = fx_new(3, 2, 2, 1);

    (void)state;
    fx->groups[0] = (struct layout_group){.ranks = zero, .count = 1};
    fx->groups[1] = (struct layout_group){.ranks = one, .count = 1};
    fx->group_count = 2;
    fx->options.gather_bytes = 16;
    fx_open_layout(fx, params, 2, 0);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0); /* it skips its update */
    fx_expect(fx, "GA@0 b0 n2 r0 [L0:0] sig u0@0=1\n");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA sig update@1=1\n");
    fx_free(fx);
}

/* All commits and skips come at once, behind messages that had to wait: the version is gathered,
 * though the gate is a step further. */
static void a_version_is_gathered_though_the_gate_went_further(void **state)
{
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx->ordered = true;
    fx_open(fx, 0, 4);
    /* Both run ahead: the update of step 1 before its window, step 2, which they do not update. */
    for (uint32_t r = 0; r < 2; r++)
        (void)zero_op_submitted(fx->zero, r); /* a collective holds all of it back */
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(fx_bare(fx, r, WIRE_STEP_END), 0);
        assert_int_equal(fx_bare(fx, r, WIRE_UPDATE_BEGIN), 0);
        assert_int_equal(fx_bare(fx, r, WIRE_UPDATE_COMMIT), 0);
        assert_int_equal(fx_bare(fx, r, WIRE_STEP_END), 0);
        assert_int_equal(fx_unit(fx, r, WIRE_FETCH, 0), 0);
    }
    fx_expect(fx, "");
    for (uint32_t r = 0; r < 2; r++)
        zero_op_launched(fx->zero, r);
    assert_int_equal(zero_resume(fx->zero, fx->now_ns, &fx->fault), 0);
    fx_take(fx);
    assert_int_equal(zero_steps(fx->zero), 2);
    assert_int_equal(fx_count(fx, "GA"), 2);
    fx_free(fx);
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* One slot each. Rank 0 holds one of group 1 = {0, 1}, which waits for rank 1, and asks for one of
 * group 2 = {0, 2}: rank 1 goes on, so it waits. When rank 1 asks too, for it holds one of group 3
 * = {1, 2} that waits for rank 2, and rank 2 for rank 0, none would ever be freed: rank 0 is given
 * one. */
static void slots_are_given_where_groups_wait_in_a_circle(void **state)
{
    static const uint32_t a[] = {0, 1}, b[] = {0, 2}, c[] = {1, 2};
    struct fx_unit params[] = {{.numel = 2, .group = 1}, {.numel = 2, .group = 2},
                               {.numel = 2, .group = 3}};
    struct fx *fx = fx_new(2, 3, 2, 1);

    (void)state;
    fx->groups[0] = (struct layout_group){.ranks = a, .count = 2};
    fx->groups[1] = (struct layout_group){.ranks = b, .count = 2};
    fx->groups[2] = (struct layout_group){.ranks = c, .count = 2};
    fx->group_count = 3;
    fx->options.ring_slots = 1;
    fx_open_layout(fx, params, 3, 0);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0);
    assert_int_equal(fx_acquire(fx, 0, 1), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 1, 2, 0, 0), 0);
    assert_int_equal(fx_acquire(fx, 1, 0), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 2, 1, 0, 0), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_acquire(fx, 2, 2), 0);
    fx_expect(fx, "OVF@0 0\n");
    assert_int_equal(fx_overflow(fx, 0, 0), 0);
    fx_expect(fx, "ACQ@0 1\n");
    assert_int_equal(fx_ready(fx, 0, 1, 0, 1), 0);
    fx_expect(fx, "RS b1 n1 r0,2 s0/2 [O0:0.0 R2:0] -> [S0:1 S2:0] sig b1@0=1 b1@2=1\n");
    fx_free(fx);
}

/* ---- hybrid sharding ------------------------------------------------------------------------- */

/* E03: shard x replica, three micro-steps: partial sums of each, and one all-reduce in the end. */
static void e03_replicas_are_summed_once_when_final(void **state)
{
    struct fx *fx = open_hybrid(2, 4, 2, 8, 3);

    (void)state;
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(fx_ready(fx, r, 0, MORE, 0), 0);
    fx_expect(fx, "RS b0 n4 r0,1 x1 [R0:0 R1:0] -> [S0:0 S1:0] sig b0@0=1 b0@1=1\n"
                  "RS b0 n4 r2,3 x1 [R2:0 R3:0] -> [S2:0 S3:0] sig b0@2=1 b0@3=1\n");
    fx_all(fx, WIRE_MICRO_END);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(fx_ready(fx, r, 0, MORE, 1), 0);
    fx_expect(fx, "RS b0 n4 acc r0,1 x1 [R0:8 R1:8] -> [S0:0 S1:0] sig b0@0=2 b0@1=2\n"
                  "RS b0 n4 acc r2,3 x1 [R2:8 R3:8] -> [S2:0 S3:0] sig b0@2=2 b0@3=2\n");
    fx_all(fx, WIRE_MICRO_END);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(fx_ready(fx, r, 0, 0, 2), 0);
    fx_expect(fx, "RS b0 n4 acc r0,1 x1 [R0:16 R1:16] -> [S0:0 S1:0] sig b0@0=3 b0@1=3\n"
                  "RS b0 n4 acc r2,3 x1 [R2:16 R3:16] -> [S2:0 S3:0] sig b0@2=3 b0@3=3\n"
                  "AR b0 n2 r0,2 [S0:0 S2:0] -> [S0:0 S2:0]\n"
                  "AR b0 n2 r1,3 s2/4 [S1:0 S3:0] -> [S1:0 S3:0]\n");
    fx_all(fx, WIRE_STEP_END);
    fx_expect(fx, "VE step 1 used 1 sig step@0=1 step@1=1 step@2=1 step@3=1 <7 <8\n");
    fx_free(fx);
}

/* Only the step's end tells that the second micro-step's contributions were the last. */
static void what_was_not_said_to_be_final_is_summed_at_the_end(void **state)
{
    struct fx *fx = open_hybrid(3, 2, 1, 4, 2);

    (void)state;
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(fx_ready(fx, r, 0, MORE, 0), 0);
    fx_all(fx, WIRE_MICRO_END);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(fx_ready(fx, r, 0, MORE, 1), 0);
    assert_int_equal(fx_count(fx, "AR"), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_expect(fx, "AR b0 n2 [S0:0 S1:0] -> [S0:0 S1:0]\n"
                  "VE step 1 used 1 sig step@0=1 step@1=1 <5\n");
    fx_free(fx);
}

/* Stage 1: the sums lie in the gradients' own memory, so that is given back after the last one. */
static void buffers_are_given_back_after_the_sum_between_runs(void **state)
{
    struct fx *fx = open_hybrid(1, 4, 2, 8, 1);

    (void)state;
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(fx_ready(fx, r, 0, 0, NONE), 0);
    fx_expect(fx, "RS b0 n4 r0,1 x1 [G0:0 G1:0] -> [G0:0 G1:4]\n"
                  "RS b0 n4 r2,3 x1 [G2:0 G3:0] -> [G2:0 G3:4]\n"
                  "AR b0 n2 r0,2 [G0:0 G2:0] -> [G0:0 G2:0] sig b0@0=1 b0@2=1\n"
                  "AR b0 n2 r1,3 s2/4 [G1:4 G3:4] -> [G1:4 G3:4] sig b0@1=1 b0@3=1\n");
    fx_free(fx);
}

/* Gathers take the slices of the rank's own run. */
static void gathers_stay_within_a_run(void **state)
{
    struct fx *fx = open_hybrid(2, 4, 2, 8, 1);

    (void)state;
    fx_all(fx, WIRE_STEP_END);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(fx_bare(fx, r, WIRE_UPDATE_BEGIN), 0);
    fx_lines(fx);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_expect(fx, "GA@0 b0 n4 r0,1 [P0:0]\n"
                  "GA@1 b0 n4 r0,1 [P1:0]\n"
                  "GA@2 b0 n4 r2,3 [P2:0]\n"
                  "GA@3 b0 n4 r2,3 [P3:0]\n");
    fx_free(fx);
}

/* Nothing was declared: no sum between runs either. */
static void unused_buckets_are_not_summed_between_runs(void **state)
{
    struct fx *fx = open_hybrid(1, 4, 2, 8, 1);

    (void)state;
    fx_all(fx, WIRE_STEP_END);
    assert_int_equal(fx->launched[CORE_OP_ALL_REDUCE], 0);
    assert_int_equal(fx->launched[CORE_OP_REDUCE_SCATTER], 0);
    assert_int_equal(fx->launched[CORE_OP_ZERO], 4);
    assert_int_equal(fx->launched[CORE_OP_VERDICT], 1);
    fx_free(fx);
}

/* R17: divided by 300 exactly once: one group of 8, and 2 x 4. The other factor is 1. */
static void r17_a_factor_is_applied_once(void **state)
{
    static const struct {
        uint32_t run, within, between;
        const char *once;
    } rows[] = {{0, 1, 0, "RS"}, {4, 2, 4, "AR"}, {2, 4, 2, "AR"}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct fx_unit params[] = {{.numel = 8}};
        struct fx *fx = fx_new(2, 8, 8, 1);

        fx->options.scale = 1.0 / 300;
        fx->options.shard_ranks = rows[i].run;
        fx_open_layout(fx, params, 1, 0);
        for (uint32_t r = 0; r < 8; r++)
            assert_int_equal(fx_ready(fx, r, 0, 0, 0), 0);
        for (uint32_t l = 0; l < fx->count; l++)
            assert_non_null(strstr(fx->lines[l], strncmp(fx->lines[l], rows[i].once, 2)
                                                     ? " x1 "
                                                     : " x0.00333333"));
        assert_int_equal(fx->launched[CORE_OP_REDUCE_SCATTER], rows[i].within);
        assert_int_equal(fx->launched[CORE_OP_ALL_REDUCE], rows[i].between);
        fx_free(fx);
    }
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Each op takes 10 ns. Rank 1 of the flat pair takes part in bucket 0 only: its reduction, and its
 * gather. */
static void a_rank_s_share_of_a_measurement_is_its_own_ops(void **state)
{
    struct fx *fx = open_pair_in_three(1);
    struct wire_msg msg = {0};

    (void)state;
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(fx_request(fx, r, WIRE_MEASURE), 0);
    while (fx->open_count)
        fx_done(fx, fx->open[0], 100, 110);
    zero_stats(fx->zero, 0, &msg);
    assert_int_equal(msg.u.stats.comm_alone_ns, 40); /* 2 reductions, 2 gathers */
    zero_stats(fx->zero, 1, &msg);
    assert_int_equal(msg.u.stats.comm_alone_ns, 20);
    /* 3 passes of 2 reductions, 3 + 2 gathers */
    assert_int_equal(fx->launched[CORE_OP_REDUCE_SCATTER], 6);
    assert_int_equal(fx->launched[CORE_OP_GATHER], 15);
    fx_free(fx);
}

/* Per step and rank: within its run once for each of two micro-steps, between runs once. */
static void hybrid_sums_are_measured(void **state)
{
    struct fx *fx = open_hybrid(2, 4, 2, 8, 2);
    struct wire_msg msg = {0};

    (void)state;
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(fx_request(fx, r, WIRE_MEASURE), 0);
    assert_non_null(strstr(fx_lines(fx),
                           "RS b0 n4 measure r0,1 x1 [R0:0 R1:0] -> [S0:0 S1:0]\n"
                           "RS b0 n4 measure r2,3 x1 [R2:0 R3:0] -> [S2:0 S3:0]\n"
                           "AR b0 n2 measure r0,2 [S0:0 S2:0] -> [S0:0 S2:0]\n"
                           "AR b0 n2 measure r1,3 [S1:0 S3:0] -> [S1:0 S3:0]\n"));
    while (fx->open_count)
        fx_done(fx, fx->open[0], 100, 110);
    for (uint32_t r = 0; r < 4; r++) {
        zero_stats(fx->zero, r, &msg);
        assert_int_equal(msg.u.stats.comm_alone_ns, 2 * 10 + 10 + 10);
    }
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_waits_for_its_members_only),
        cmocka_unit_test(memory_is_for_the_rank_s_own_groups),
        cmocka_unit_test(gradients_of_other_groups_are_refused),
        cmocka_unit_test(unused_parameters_of_other_groups_are_no_error),
        cmocka_unit_test(an_unused_group_is_zeroed),
        cmocka_unit_test(each_group_records_its_own_order),
        cmocka_unit_test(a_group_s_gathers_wait_for_its_commits_only),
        cmocka_unit_test(micro_steps_are_compared_in_common_groups),
        cmocka_unit_test(each_group_waits_for_the_last_verdict),
        cmocka_unit_test(windows_do_not_wait_for_other_groups),
        cmocka_unit_test(a_version_is_gathered_though_the_gate_went_further),
        cmocka_unit_test(slots_are_given_where_groups_wait_in_a_circle),
        cmocka_unit_test(e03_replicas_are_summed_once_when_final),
        cmocka_unit_test(what_was_not_said_to_be_final_is_summed_at_the_end),
        cmocka_unit_test(buffers_are_given_back_after_the_sum_between_runs),
        cmocka_unit_test(gathers_stay_within_a_run),
        cmocka_unit_test(unused_buckets_are_not_summed_between_runs),
        cmocka_unit_test(r17_a_factor_is_applied_once),
        cmocka_unit_test(a_rank_s_share_of_a_measurement_is_its_own_ops),
        cmocka_unit_test(hybrid_sums_are_measured),
    };

    return cmocka_run_group_tests_name("zero_groups", tests, NULL, NULL);
}
