/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dtypes in the ZeRO layer: what ops are told of them, factors, masters and their rounding; and
 * parameters of stage 3 that stay gathered. Values are derived by hand; test_zero_fixture.h has the
 * notation.
 */
#include "test_zero_fixture.h"

#define NONE GW_NO_SLOT
#define MORE GW_GRAD_ACCUMULATE
#define FP16 GW_DTYPE_FP16
#define BF16 GW_DTYPE_BF16

/* ---- gradients ------------------------------------------------------------------------------- */

/* R11: fp16 gradients, fp32 accumulation, N=2, numels 3,4, mean: 7 elements and one of padding;
 * slices of 4 in fp32, so not in the gradients' own memory. */
static void r11_halves_are_summed_into_floats(void **state)
{
    struct fx_unit params[] = {{.numel = 3, .grad_dtype = FP16}, {.numel = 4, .grad_dtype = FP16}};
    struct fx *fx = fx_new(1, 2, 8, 1);

    (void)state;
    fx->options.scale = 0;
    fx_open_layout(fx, params, 2, 0);
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_GRADS, 0), 8 * 2);
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_SHARD_GRADS, 0), 4 * 4);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(fx_ready(fx, r, 1, 0, NONE), 0);
        assert_int_equal(fx_ready(fx, r, 0, 0, NONE), 0);
    }
    fx_expect(fx, "RS b0 n4 fp16>fp32 [G0:0 G1:0] -> [S0:0 S1:0] sig b0@0=1 b0@1=1\n");
    fx_free(fx);
}

/* ... with accumulators like the gradients: in place, half the bytes. */
static void accumulators_like_gradients_lie_in_place(void **state)
{
    struct fx_unit params[] = {{.numel = 8, .grad_dtype = BF16}};
    struct fx *fx = fx_new(1, 2, 8, 1);

    (void)state;
    fx->options.accum_as_grads = 1;
    fx->options.norm = GW_NORM_MAX;
    fx_open_layout(fx, params, 1, 0);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(fx_ready(fx, r, 0, 0, NONE), 0);
    fx_expect(fx, "RS b0 n4 bf16>bf16 max [G0:0 G1:0] -> [G0:0 G1:4] sig b0@0=1 b0@1=1\n");
    fx_free(fx);
}

/* R09, R14: what is given is rounded before the sum; unset: it is not. */
static void reduce_dtype_rounds_what_ranks_give(void **state)
{
    struct fx_unit params[] = {{.numel = 8}};
    struct fx *fx = fx_new(2, 2, 8, 1);

    (void)state;
    fx->options.reduce_dtype = BF16;
    fx_open_layout(fx, params, 1, 0);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(fx_ready(fx, r, 0, 0, 0), 0);
    fx_expect(fx, "RS b0 n4 by bf16 [R0:0 R1:0] -> [S0:0 S1:0] sig b0@0=1 b0@1=1\n");
    fx_free(fx);
}

/* R12: mean and sum, times pre-scale 1, 2, N, in all stages: one factor, rounded once. */
static void r12_factors_are_one(void **state)
{
    static const struct {
        double scale, pre_scale;
        const char *text; /* mean (0.5) is not shown */
    } rows[] = {{0, 1, ""},   {0, 2, " x1"},  {0, 0.25, " x0.125"}, {0.5, 0, ""},
                {1, 1, " x1"}, {1, 2, " x2"}, {1, 0, " x1"}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) * 4; i++) {
        struct fx_unit params[] = {{.numel = 2}};
        struct fx *fx = fx_new((uint32_t)i % 4, 2, 2, 1);
        char want[32];

        fx->options.scale = rows[i / 4].scale;
        fx->options.pre_scale = rows[i / 4].pre_scale;
        fx_open_layout(fx, params, 1, 0);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(fx_ready(fx, r, 0, 0, i % 4 < 2 ? NONE : 0), 0);
        snprintf(want, sizeof(want), "%s b0 n1%s [", i % 4 ? "RS" : "AR", rows[i / 4].text);
        assert_int_equal(fx->count, 1);
        assert_non_null(strstr(fx->lines[0], want));
        fx_free(fx);
    }
}

/* Zero fills are of the gradients' dtype: 1 of 3 bf16 elements, then the padding to 4. */
static void missing_halves_are_zeroed(void **state)
{
    struct fx_unit params[] = {{.numel = 2, .grad_dtype = BF16}, {.numel = 1, .grad_dtype = BF16}};
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx_open_layout(fx, params, 2, 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 1), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    /* A slot is as large as the padded bucket: 4 bf16 elements. */
    fx_expect(fx, "ZE@0 b0 n2 bf16>bf16 [R0:4]\n"
                  "ZE@0 b0 n1 bf16>bf16 [R0:7]\n");
    fx_free(fx);
}

/* Sums over micro-steps are fp32: what the caller has added up itself in fp16 is brought there, for
 * all ranks of an op must give the same dtype. */
static void sums_of_callers_join_those_of_the_service(void **state)
{
    struct fx_unit params[] = {{.numel = 4, .grad_dtype = FP16}};
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx->options.micro_steps = 2;
    fx_open_layout(fx, params, 1, 0);
    assert_int_equal(fx_ready(fx, 0, 0, MORE | GW_GRAD_RUNNING, NONE), 0);
    assert_int_equal(fx_ready(fx, 1, 0, MORE, NONE), 0);
    fx_expect(fx, "LA@1 b0 n4 fp16>fp32 [G1:0] -> [A1:0]\n");
    fx_all(fx, WIRE_MICRO_END);
    fx_expect(fx, "SIG b0@0=1\nSIG b0@1=1 <1\n");
    assert_int_equal(fx_ready(fx, 0, 0, GW_GRAD_RUNNING, NONE), 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, NONE), 0);
    fx_expect(fx, "LA@0 b0 n4 fp16>fp32 [G0:0] -> [A0:0]\n"
                  "LA@1 b0 n4 acc fp16>fp32 [G1:0] -> [A1:0]\n"
                  "RS b0 n2 [A0:0 A1:0] -> [S0:0 S1:0] sig b0@0=2 b0@1=2\n");
    fx_free(fx);
}

/* ---- masters --------------------------------------------------------------------------------- */

/* 4 elements of bf16, 4 of fp16, 2 of fp32: three buckets. */
static struct fx *open_mixed(uint32_t stage)
{
    struct fx_unit params[] = {
        {.numel = 4, .dtype = BF16}, {.numel = 4, .dtype = FP16}, {.numel = 2}};
    struct fx *fx = fx_new(stage, 2, 4, 1);

    fx_open_layout(fx, params, 3, 0);
    return fx;
}

static void end_and_begin(struct fx *fx)
{
    fx_all(fx, WIRE_STEP_END);
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_all_done(fx);
    fx_lines(fx);
}

static void masters_lie_beside_what_is_gathered(void **state)
{
    struct fx *fx = open_mixed(2);
    uint64_t count;
    struct core_ref ref;

    (void)state;
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_PARAMS, 0), 4 * 2 + 4 * 2 + 2 * 4);
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_MASTER, 0), (2 + 2) * 4);
    ref = zero_param_ref(fx->zero, 1, 3, 0, &count);
    assert_int_equal(ref.kind, GW_ARENA_PARAMS);
    assert_int_equal(ref.offset_bytes, 8 + 3 * 2);
    assert_int_equal(count, 1);
    ref = zero_master_ref(fx->zero, 1, 3, 1, &count); /* rank 1's second of p1 */
    assert_int_equal(ref.kind, GW_ARENA_MASTER);
    assert_int_equal(ref.rank, 1);
    assert_int_equal(ref.offset_bytes, (2 + 1) * 4);
    assert_int_equal(zero_master_ref(fx->zero, 1, 3, 0, &count).kind, GW_ARENA_NONE);
    ref = zero_master_ref(fx->zero, 2, 1, 1, &count); /* fp32: the shard itself */
    assert_int_equal(ref.kind, GW_ARENA_PARAMS);
    assert_int_equal(ref.offset_bytes, 16 + 4);
    ref = zero_master_slice(fx->zero, 1, 1);
    assert_int_equal(ref.kind, GW_ARENA_MASTER);
    assert_int_equal(ref.offset_bytes, 2 * 4);
    fx_free(fx);
}

/* Gathers of any rank wait for every owner's rounding; its own is before them in the same stream.
 * Each stream waits once. */
static void gathers_wait_for_the_rounding(void **state)
{
    struct fx *fx = open_mixed(1);

    (void)state;
    end_and_begin(fx);
    assert_int_equal(fx_after(fx, 0, WIRE_UPDATE_COMMIT, 7), 0);
    /* After three zeroings for each rank, the verdict and two windows. */
    fx_expect(fx, "CA@0 fp32>fp16 wait 0.0=7\nCA@0 fp32>bf16 wait 0.0=7\n");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "CA@1 fp32>fp16\nCA@1 fp32>bf16\n"
                  "GA@0 b0 n2 [P0:0] wait 0.0=7 <13\n"
                  "GA@1 b0 n2 [P1:0] wait 0.0=7 <11\n"
                  "GA@0 b1 n2 [P0:2]\n"
                  "GA@1 b1 n2 [P1:2]\n"
                  "GA@0 b2 n1 [P0:4]\n"
                  "GA@1 b2 n1 [P1:4]\n");
    /* Nothing moves while a cast is under way. */
    assert_int_equal(fx_io(fx, 0, 1, 0, 0, 4), 0);
    fx_expect(fx, "");
    fx_all_done(fx);
    fx_expect(fx, "BA wait 0.0=7\nIO@0 w p0 0+4\n");
    fx_free(fx);
}

/* fp32 alone: nothing is rounded, and nothing waits for it. */
static void floats_are_not_rounded(void **state)
{
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx_open(fx, 0, 4);
    end_and_begin(fx);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_expect(fx, "GA@0 b0 n2 [P0:0]\nGA@1 b0 n2 [P1:0]\n");
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_MASTER, 0), 0);
    fx_free(fx);
}

/* Stage 0: the replica is the rank's own; its fetch waits for its own rounding. */
static void replicas_are_rounded_before_they_are_fetched(void **state)
{
    struct fx_unit params[] = {{.numel = 4, .dtype = BF16}};
    struct fx *fx = fx_new(0, 2, 4, 1);

    (void)state;
    fx_open_layout(fx, params, 1, 0);
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_MASTER, 0), 16);
    end_and_begin(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    fx_expect(fx, "CA@0 fp32>bf16\nSIG u0@0=1 <6\n");
    fx_free(fx);
}

/* The next window: who writes masters again waits until they are read. */
static void windows_wait_for_the_rounding(void **state)
{
    struct fx_unit params[] = {{.numel = 4, .dtype = BF16}};
    struct fx *fx = fx_new(0, 2, 4, 1);

    (void)state;
    fx_open_layout(fx, params, 1, 0);
    end_and_begin(fx);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_expect(fx, "CA@0 fp32>bf16\nCA@1 fp32>bf16\n"); /* ops 6 and 7 */
    fx_all(fx, WIRE_STEP_END);
    fx_lines(fx);
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA sig update@1=2 <7\n");
    fx_free(fx);
}

/* Masters are whole, but rounding and gathers may have been lost with the generation. */
static void a_job_that_forms_again_rounds_again(void **state)
{
    struct fx_unit params[] = {{.numel = 4, .dtype = BF16}};
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx_open_layout(fx, params, 1, 0);
    end_and_begin(fx);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_lines(fx);
    assert_int_equal(fx_reattach(fx), 0);
    fx_expect(fx, "CA@0 fp32>bf16\nCA@1 fp32>bf16\n"
                  "GA@0 b0 n2 measure [P0:0] <11\n"
                  "GA@1 b0 n2 measure [P1:0] <10\n");
    fx_free(fx);
}

/* ... and in stage 0, where nothing is gathered, fetches wait for it. */
static void replicas_of_a_job_that_forms_again_are_rounded_again(void **state)
{
    struct fx_unit params[] = {{.numel = 4, .dtype = BF16}};
    struct fx *fx = fx_new(0, 2, 4, 1);

    (void)state;
    fx_open_layout(fx, params, 1, 0);
    end_and_begin(fx);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_lines(fx); /* casts 6 and 7 */
    assert_int_equal(fx_reattach(fx), 0);
    fx_expect(fx, "CA@0 fp32>bf16\nCA@1 fp32>bf16\n");
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 0), 0);
    fx_expect(fx, "SIG u0@1=1 <9\n");
    fx_free(fx);
}

/* ---- persistent parameters ------------------------------------------------------------------- */

/* Stage 3: p0 and p2 of 1 element stay: bucket 0, fetch unit 0, 2 elements. p1 is bucket 1, in a
 * unit with p2; p0's unit has nothing else. */
static struct fx *open_persistent(void)
{
    struct fx_unit params[] = {
        {.unit = "a", .numel = 1}, {.unit = "b", .numel = 4}, {.unit = "b", .numel = 1}};
    struct fx *fx = fx_new(3, 2, 4, 1);

    fx->options.persist_bytes = 4;
    fx->options.gather_bytes = 16;
    fx_open_layout(fx, params, 3, 0);
    return fx;
}

static void persistent_parameters_are_gathered_once_per_version(void **state)
{
    struct fx *fx = open_persistent();
    struct wire_msg msg = {0};

    (void)state;
    /* Persistent bytes, then the only other unit. */
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_POOL, 0), 2 * 4 + 4 * 4);
    /* Initial values: by the first fetch, and not counted. */
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    fx_expect(fx, "GA@0 b0 n1 measure [L0:0]\nSIG u0@0=1 <1\n");
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "GA@0 b1 n2 [L0:2] sig u1@0=1+2\n");
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 1), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 0), 0);
    fx_all(fx, WIRE_STEP_END);
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_all_done(fx);
    fx_lines(fx);
    /* The new version: for all, when the last has committed, counted. */
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "GA@0 b0 n1 [L0:0]\nGA@1 b0 n1 [L1:0]\n");
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 0), 0);
    assert_non_null(strstr(fx_lines(fx), "SIG u0@1=1 <"));
    zero_stats(fx->zero, 1, &msg);
    assert_int_equal(msg.u.stats.gathered_bytes_now, 8);
    fx_free(fx);
}

/* Values written between steps are not in what was gathered. */
static void written_values_are_gathered_again(void **state)
{
    struct fx *fx = open_persistent();

    (void)state;
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 0), 0);
    fx_all_done(fx);
    fx_lines(fx);
    assert_int_equal(fx_io(fx, 1, 1, 1, 0, 4), 0); /* not persistent */
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
    fx_expect(fx, "IO@1 w p1 0+4\nSIG u0@0=2\n");
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 0), 0);
    assert_int_equal(fx_io(fx, 1, 0, 2, 0, 1), 0); /* read */
    assert_int_equal(fx_io(fx, 1, 1, 2, 0, 1), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "IO@1 r p2 0+1\nIO@1 w p2 0+1\n"
                  "GA@0 b0 n1 measure [L0:0]\n"
                  "GA@0 b1 n2 [L0:2] sig u1@0=1+2\n");
    fx_free(fx);
}

/* Each of them once a pass; fetch units lie behind. */
static void persistent_parameters_are_measured_once(void **state)
{
    struct fx *fx = open_persistent();
    struct wire_msg msg = {0};

    (void)state;
    fx_all(fx, WIRE_STEP_END);
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_all_done(fx);
    fx_lines(fx);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(fx_request(fx, r, WIRE_MEASURE), 0);
    while (fx->open_count)
        fx_done(fx, fx->open[0], 100, 110);
    assert_non_null(strstr(fx_lines(fx), "GA@0 b0 n1 measure [L0:0]\n"
                                         "GA@0 b1 n2 measure [L0:2]\n"));
    zero_stats(fx->zero, 0, &msg);
    assert_int_equal(msg.u.stats.comm_alone_ns, 2 * 10 + 10 + 2 * 10);
    fx_free(fx);
}

/* C02: each rank fetches and has a gradient for its own linear only; nobody waits for the other. */
static void c02_ranks_may_use_different_units(void **state)
{
    struct fx *fx = fx_new(3, 2, 4, 1);

    (void)state;
    fx->options.gather_bytes = 32;
    fx_open(fx, 0, 4, 4);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(fx_unit(fx, r, WIRE_FETCH, r), 0);
        assert_int_equal(fx_ready(fx, r, r, 0, 0), 0);
        assert_int_equal(fx_unit(fx, r, WIRE_RELEASE, r), 0);
    }
    fx_expect(fx, "GA@0 b0 n2 [L0:0] sig u0@0=1\n"
                  "GA@1 b1 n2 [L1:4] sig u1@1=1+4\n");
    fx_all(fx, WIRE_STEP_END);
    fx_expect(fx, "RS b1 n2 [- R1:0] -> [S0:2 S1:2] sig b1@0=1 b1@1=1\n"
                  "RS b0 n2 [R0:0 -] -> [S0:0 S1:0] sig b0@0=1 b0@1=1\n"
                  "VE step 1 used 2 sig step@0=1 step@1=1 <4\n");
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r11_halves_are_summed_into_floats),
        cmocka_unit_test(accumulators_like_gradients_lie_in_place),
        cmocka_unit_test(reduce_dtype_rounds_what_ranks_give),
        cmocka_unit_test(r12_factors_are_one),
        cmocka_unit_test(missing_halves_are_zeroed),
        cmocka_unit_test(sums_of_callers_join_those_of_the_service),
        cmocka_unit_test(masters_lie_beside_what_is_gathered),
        cmocka_unit_test(gathers_wait_for_the_rounding),
        cmocka_unit_test(floats_are_not_rounded),
        cmocka_unit_test(replicas_are_rounded_before_they_are_fetched),
        cmocka_unit_test(windows_wait_for_the_rounding),
        cmocka_unit_test(a_job_that_forms_again_rounds_again),
        cmocka_unit_test(replicas_of_a_job_that_forms_again_are_rounded_again),
        cmocka_unit_test(persistent_parameters_are_gathered_once_per_version),
        cmocka_unit_test(written_values_are_gathered_again),
        cmocka_unit_test(persistent_parameters_are_measured_once),
        cmocka_unit_test(c02_ranks_may_use_different_units),
    };

    return cmocka_run_group_tests_name("zero_dtypes", tests, NULL, NULL);
}
