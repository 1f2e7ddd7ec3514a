/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: which ops which declarations lead to, in which order, from and to where. Small
 * layouts; every expectation is written down from DESIGN's rules.
 */
#include "test_zero_fixture.h"

#define ACC GW_GRAD_ACCUMULATE
#define RUN GW_GRAD_RUNNING
#define NONE GW_NO_SLOT

/* Two ranks, one bucket of 4 elements per parameter: buckets 0, 1 at elements 0, 4. */
static struct fx *pair(uint32_t stage)
{
    return fx_new(stage, 2, 4, 1);
}

static void end_step(struct fx *fx)
{
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_all_done(fx);
}

/* ---- one micro-step -------------------------------------------------------------------------- */

static void stage_0_all_reduces_in_place(void **state)
{
    struct fx *fx = pair(0);

    (void)state;
    fx_open(fx, 0, 4, 4);
    assert_int_equal(fx_ready(fx, 0, 0, 0, NONE), 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, NONE), 0);
    fx_expect(fx, ""); /* bucket 1 comes first */
    assert_int_equal(fx_ready(fx, 0, 1, 0, NONE), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 1, 1, 0, NONE), 0);
    fx_expect(fx, "AR b1 n2 [G0:4 G1:4] -> [G0:4 G1:4] sig b1@0=1 b1@1=1\n"
                  "AR b0 n2 [G0:0 G1:0] -> [G0:0 G1:0] sig b0@0=1 b0@1=1\n");
    fx_all(fx, WIRE_STEP_END);
    fx_expect(fx, "VE step 1 used 2 sig step@0=1 step@1=1 <2\n");
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_expect(fx, "BA sig update@0=1\n"
                  "BA sig update@1=1\n");
    fx_free(fx);
}

static void stage_1_scatters_into_own_slices(void **state)
{
    struct fx *fx = pair(1);

    (void)state;
    fx_open(fx, 0, 4, 4);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fx_ready(fx, rank, 1, 0, NONE), 0);
        assert_int_equal(fx_ready(fx, rank, 0, 0, NONE), 0);
    }
    fx_expect(fx, "RS b1 n2 [G0:4 G1:4] -> [G0:4 G1:6] sig b1@0=1 b1@1=1\n"
                  "RS b0 n2 [G0:0 G1:0] -> [G0:0 G1:2] sig b0@0=1 b0@1=1\n");
    fx_free(fx);
}

static void stage_2_scatters_from_the_ring_to_shards(void **state)
{
    struct fx *fx = pair(2);

    (void)state;
    fx_open(fx, 0, 4, 4);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 2), 0);
    assert_int_equal(fx_ready(fx, 1, 1, 0, 1), 0);
    fx_expect(fx, "RS b1 n2 [R0:0 R1:4] -> [S0:2 S1:2] sig b1@0=1 b1@1=1\n");
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    fx_expect(fx, "RS b0 n2 [R0:8 R1:0] -> [S0:0 S1:0] sig b0@0=1 b0@1=1\n");
    fx_free(fx);
}

/* R08: ten parameters of 100 in buckets of 500 are exactly two collectives, in stage 3 too. */
static void two_collectives_for_ten_parameters(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct fx *fx = fx_new(stage, 2, 500, 1);

        fx_open(fx, 0, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100);
        for (uint32_t param = 10; param-- > 0;) {
            for (uint32_t rank = 0; rank < 2; rank++)
                assert_int_equal(fx_ready(fx, rank, param, 0, param / 5), 0);
        }
        assert_int_equal(fx_count(fx, stage ? "RS" : "AR"), 2);
        end_step(fx);
        assert_int_equal(fx->launched[CORE_OP_REDUCE_SCATTER], stage ? 2 : 0);
        assert_int_equal(fx->launched[CORE_OP_ALL_REDUCE], stage ? 0 : 2);
        assert_int_equal(fx->launched[CORE_OP_ZERO], 0);
        assert_int_equal(fx->launched[CORE_OP_GATHER], stage == 1 || stage == 2 ? 4 : 0);
        fx_free(fx);
    }
}

/* The op carries what the figures count and what the fabric needs. */
static void an_op_carries_payload_padding_scale_and_times(void **state)
{
    /* R02: numels 5,1,7 -> bucket 0 of 6 (padded 8), 1 of 7 (8) */
    struct fx *fx = fx_new(2, 4, 12, 1);
    struct core_event event = {.kind = CORE_EV_REQUEST};
    struct wire_ready_entry entry = {.param = 2};
    struct wire_msg msg = {.type = WIRE_READY};
    struct core_effect effect;

    (void)state;
    fx->options.scale = 1.0 / 3;
    fx_open(fx, 0, 5, 1, 7);
    msg.u.ready.count = 1;
    msg.u.ready.entries = &entry;
    event.msg = &msg;
    for (event.rank = 0; event.rank < 4; event.rank++)
        assert_int_equal(zero_event(fx->zero, 100 + event.rank, &event, &fx->fault), 0);
    /* ring slots hold old values in the padding: it is zeroed */
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_true(effects_take(fx->effects, &effect));
        assert_int_equal(effect.op.kind, CORE_OP_ZERO);
        assert_int_equal(effect.op.numel, 1);
        assert_int_equal(effect.op.out[0].offset_bytes, 7 * 4);
        assert_int_equal(effect.op.rank, rank);
    }
    assert_true(effects_take(fx->effects, &effect));
    assert_int_equal(effect.op.kind, CORE_OP_REDUCE_SCATTER);
    assert_int_equal(effect.op.stream, CORE_STREAM_REDUCE);
    assert_int_equal(effect.op.traffic, GW_KIND_REDUCE_SCATTER);
    assert_int_equal(effect.op.bucket, 1);
    assert_int_equal(effect.op.bucket_count, 1);
    assert_int_equal(effect.op.numel, 2);
    assert_int_equal(effect.op.payload_bytes, 28);
    assert_int_equal(effect.op.padding_bytes, 4);
    assert_int_equal(effect.op.partials, 1);
    assert_int_equal(effect.op.ready_ns, 103);
    assert_int_equal(effect.op.world, 4);
    assert_int_equal(effect.op.members[3], 3);
    assert_true(effect.op.scale == (float)(1.0 / 3));
    fx_free(fx);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Ranks declare in any order; launches follow the buckets down, then rank 0's order of the step
 * before. */
static void launches_follow_rank_0_from_the_second_step_on(void **state)
{
    static const uint32_t mine[3] = {1, 2, 0}, other[3] = {0, 1, 2};
    struct fx *fx = pair(1);

    (void)state;
    fx_open(fx, 0, 4, 4, 4);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(fx_ready(fx, 0, mine[i], 0, NONE), 0);
        assert_int_equal(fx_ready(fx, 1, other[i], 0, NONE), 0);
    }
    fx_expect(fx, "RS b2 n2 [G0:8 G1:8] -> [G0:8 G1:10] sig b2@0=1 b2@1=1\n"
                  "RS b1 n2 [G0:4 G1:4] -> [G0:4 G1:6] sig b1@0=1 b1@1=1\n"
                  "RS b0 n2 [G0:0 G1:0] -> [G0:0 G1:2] sig b0@0=1 b0@1=1\n");
    end_step(fx);
    fx_lines(fx);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(fx_ready(fx, 1, other[i], 0, NONE), 0);
        assert_int_equal(fx_ready(fx, 0, other[i], 0, NONE), 0);
    }
    fx_expect(fx, "RS b1 n2 [G0:4 G1:4] -> [G0:4 G1:6] sig b1@0=2 b1@1=2\n"
                  "RS b2 n2 [G0:8 G1:8] -> [G0:8 G1:10] sig b2@0=2 b2@1=2\n"
                  "RS b0 n2 [G0:0 G1:0] -> [G0:0 G1:2] sig b0@0=2 b0@1=2\n");
    end_step(fx);
    fx_lines(fx);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(fx_ready(fx, 0, mine[i], 0, NONE), 0);
        assert_int_equal(fx_ready(fx, 1, mine[i], 0, NONE), 0);
    }
    /* rank 0 recorded 0, 1, 2 in step 2 */
    assert_non_null(strstr(fx_lines(fx), "RS b0 n2 [G0:0 G1:0] -> [G0:0 G1:2] sig b0@0=3 b0@1=3\n"
                                         "RS b1 n2"));
    fx_free(fx);
}

static void overlap_off_waits_for_the_last_gradient_of_all(void **state)
{
    struct fx *fx = pair(2);

    (void)state;
    fx->options.overlap_off = 1;
    fx_open(fx, 0, 4, 4);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, 1, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 1), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 1, 0, 0, 1), 0);
    assert_int_equal(fx_count(fx, "RS"), 2);
    fx_free(fx);
}

static void the_ops_of_a_step_have_one_digest(void **state)
{
    uint64_t digest[2] = {0};

    (void)state;
    for (int run = 0; run < 2; run++) { /* different orders of declaration */
        struct fx *fx = pair(2);
        struct core_event event = {.kind = CORE_EV_REQUEST};
        struct wire_msg msg = {.type = WIRE_STEP_END};
        struct core_effect effect;

        fx_open(fx, 0, 4, 4);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t k = run ? 3 - i : i;
            assert_int_equal(fx_ready(fx, k / 2, k % 2, 0, k % 2), 0);
        }
        event.msg = &msg;
        for (event.rank = 0; event.rank < 2; event.rank++)
            assert_int_equal(zero_event(fx->zero, 1, &event, &fx->fault), 0);
        assert_true(effects_take(fx->effects, &effect));
        assert_int_equal(effect.op.kind, CORE_OP_VERDICT);
        assert_int_equal(effect.op.stream, CORE_STREAM_CONTROL);
        assert_int_equal(effect.op.traffic, GW_KIND_CONTROL);
        digest[run] = effect.op.digest;
        assert_int_equal(effect.op.used_bits[0], 3);
        assert_int_equal(effect.op.used_buckets[0], 1);
        fx_free(fx);
    }
    assert_true(digest[0] == digest[1]);
    /* FNV-1a 64 over (kind 0, bucket, numel 2, step 1) of bucket 1, then 0; by a program of its
     * own */
    assert_true(digest[0] == 0x12c264eea8d7bec4ull);
}

/* ---- producer tokens ------------------------------------------------------------------------- */

/* R07: one bucket written by two streams; the reduction waits for both, at their highest values. */
static void a_reduction_waits_for_every_producer(void **state)
{
    struct fx *fx = pair(2);
    struct wire_ready_entry first = {.param = 0, .tokens = 2, .timeline = {3, 5}, .value = {7, 1}};
    struct wire_ready_entry second = {.param = 1, .tokens = 1, .timeline = {3}, .value = {9}};

    (void)state;
    fx_open(fx, 0, 2, 2);
    assert_int_equal(fx_ready_one(fx, 0, first), 0);
    assert_int_equal(fx_ready_one(fx, 0, second), 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    second.timeline[0] = 0;
    assert_int_equal(fx_ready_one(fx, 1, second), 0);
    fx_expect(fx, "RS b0 n2 [R0:0 R1:0] -> [S0:0 S1:0] wait 0.3=9 0.5=1 1.0=9 sig b0@0=1 b0@1=1\n");
    /* the next step's gradients in the same slot have tokens of their own */
    end_step(fx);
    fx_lines(fx);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fx_ready(fx, rank, 0, 0, 0), 0);
        assert_int_equal(fx_ready(fx, rank, 1, 0, 0), 0);
    }
    fx_expect(fx, "RS b0 n2 [R0:0 R1:0] -> [S0:0 S1:0] sig b0@0=2 b0@1=2\n");
    fx_free(fx);
}

static void more_than_eight_timelines_are_refused(void **state)
{
    struct fx *fx = fx_new(0, 1, 16, 1);

    (void)state;
    fx_open(fx, 0, 1, 1, 1);
    for (uint32_t param = 0; param < 3; param++) {
        struct wire_ready_entry entry = {.param = param, .tokens = 4};
        for (uint32_t i = 0; i < 4; i++)
            entry.timeline[i] = param * 4 + i;
        assert_int_equal(fx_ready_one(fx, 0, entry), param < 2 ? 0 : GW_E_LIMIT);
    }
    assert_non_null(strstr(fx->fault.text, "bucket 0"));
    fx_free(fx);
}

/* ---- missing gradients ----------------------------------------------------------------------- */

/* C01: what a rank did not declare is zero; neighbouring gaps are one op; nothing at all: no
 * input. */
static void missing_pieces_are_zero_filled_before_the_reduction(void **state)
{
    struct fx *fx = fx_new(0, 2, 8, 1);

    (void)state;
    fx_open(fx, 0, 2, 1, 3, 2, 8); /* bucket 0: p0 p1 p2 p3; bucket 1: p4 */
    assert_int_equal(fx_ready(fx, 0, 0, 0, NONE), 0);
    assert_int_equal(fx_ready(fx, 0, 4, 0, NONE), 0);
    assert_int_equal(fx_ready(fx, 1, 1, 0, NONE), 0);
    assert_int_equal(fx_ready(fx, 1, 3, 0, NONE), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_expect(fx, "ZE@0 b0 n6 [G0:2]\n");
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    fx_expect(fx, "ZE@1 b0 n2 [G1:0]\n"
                  "ZE@1 b0 n3 [G1:3]\n"
                  "AR b1 n4 [G0:8 -] -> [G0:8 G1:8] sig b1@0=1 b1@1=1\n"
                  "AR b0 n4 [G0:0 G1:0] -> [G0:0 G1:0] sig b0@0=1 b0@1=1\n"
                  "VE step 1 used 4 sig step@0=1 step@1=1 <5\n");
    fx_free(fx);
}

/* B02: unused everywhere is "no gradient": the reduced gradient is zero, never the last step's. */
static void a_bucket_without_gradient_is_zeroed(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        static const char *const expected[4] = {
            "ZE@0 b1 n4 [G0:4]\nSIG b1@0=1 <1\nZE@1 b1 n4 [G1:4]\nSIG b1@1=1 <2\n",
            "ZE@0 b1 n2 [G0:4]\nSIG b1@0=1 <1\nZE@1 b1 n2 [G1:6]\nSIG b1@1=1 <2\n",
            "SIG b1@0=1\nSIG b1@1=1\n",
            "SIG b1@0=1\nSIG b1@1=1\n",
        };
        struct fx *fx = pair(stage);
        char *lines;

        fx_open(fx, 0, 4, 4);
        for (uint32_t rank = 0; rank < 2; rank++)
            assert_int_equal(fx_ready(fx, rank, 0, 0, 0), 0);
        fx_expect(fx, "");
        fx_all(fx, WIRE_STEP_END);
        lines = strdup(fx_lines(fx));
        assert_non_null(lines);
        assert_memory_equal(lines, expected[stage], strlen(expected[stage]));
        if (stage >= 2) {
            assert_non_null(
                strstr(lines, "ZE@0 b1 n2 [S0:2]\nZE@1 b1 n2 [S1:2]\nVE step 1 used 1"));
        } else {
            assert_non_null(strstr(lines, "VE step 1 used 1"));
        }
        free(lines);
        fx_free(fx);
    }
}

static void policy_error_names_the_rank_and_what_it_lacks(void **state)
{
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx->options.unused = GW_UNUSED_ERROR;
    fx_open(fx, 0, 4, 0, 4, 4); /* p1 is empty: it needs none */
    for (uint32_t param = 0; param < 4; param++)
        assert_int_equal(param == 1 ? 0 : fx_ready(fx, 0, param, 0, NONE), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, NONE), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), GW_E_UNUSED);
    assert_int_equal(fx->fault.code, GW_E_UNUSED);
    assert_int_equal(fx->fault.rank, 1);
    assert_string_equal(fx->fault.text,
                        "rank 1 ended step 1 without a gradient for 'p2' (2), 'p3' (3)");
    fx_free(fx);
}

/* B06: a backward given up in mid-bucket leaves nothing behind. */
static void a_step_given_up_leaves_nothing(void **state)
{
    struct fx *fx = pair(2);

    (void)state;
    fx_open(fx, 0, 2, 2);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 1), 0);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    fx_lines(fx);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fx_ready(fx, rank, 1, 0, 0), 0);
        assert_int_equal(fx_ready(fx, rank, 0, 0, 0), 0);
    }
    fx_expect(fx, "RS b0 n2 [R0:0 R1:0] -> [S0:0 S1:0] sig b0@0=2 b0@1=2\n");
    fx_free(fx);
}

/* B07: an empty parameter has no piece, no bucket, no collective. */
static void empty_parameters_cost_nothing(void **state)
{
    struct fx *fx = fx_new(2, 2, 24, 1);

    (void)state;
    fx_open(fx, 0, 8, 0, 24);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fx_ready(fx, rank, 2, 0, 0), 0);
        assert_int_equal(fx_ready(fx, rank, 0, 0, 1), 0);
    }
    assert_int_equal(fx_count(fx, "RS"), 2);
    assert_int_equal(fx_ready_one(fx, 0, (struct wire_ready_entry){.param = 1}), GW_E_INVALID);
    fx_free(fx);
}

static void a_job_of_empty_parameters_steps(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct fx *fx = pair(stage);

        fx_open(fx, 0, 0, 0);
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
        fx_expect(fx, "SIG u1@0=1\n");
        assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 1), 0);
        for (uint64_t step = 1; step < 3; step++) {
            fx_all(fx, WIRE_STEP_END);
            assert_int_equal(zero_steps(fx->zero), step);
        }
        fx_free(fx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stage_0_all_reduces_in_place),
        cmocka_unit_test(stage_1_scatters_into_own_slices),
        cmocka_unit_test(stage_2_scatters_from_the_ring_to_shards),
        cmocka_unit_test(two_collectives_for_ten_parameters),
        cmocka_unit_test(an_op_carries_payload_padding_scale_and_times),
        cmocka_unit_test(launches_follow_rank_0_from_the_second_step_on),
        cmocka_unit_test(overlap_off_waits_for_the_last_gradient_of_all),
        cmocka_unit_test(the_ops_of_a_step_have_one_digest),
        cmocka_unit_test(a_reduction_waits_for_every_producer),
        cmocka_unit_test(more_than_eight_timelines_are_refused),
        cmocka_unit_test(missing_pieces_are_zero_filled_before_the_reduction),
        cmocka_unit_test(a_bucket_without_gradient_is_zeroed),
        cmocka_unit_test(policy_error_names_the_rank_and_what_it_lacks),
        cmocka_unit_test(a_step_given_up_leaves_nothing),
        cmocka_unit_test(empty_parameters_cost_nothing),
        cmocka_unit_test(a_job_of_empty_parameters_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
