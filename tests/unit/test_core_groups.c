/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of parameters and dtypes as ranks register them: what is refused, how ranks that differ
 * are told, and the options that go with them.
 */
#include "tests/unit/test_core_kit.h"

static const struct wire_seal plain = {.stage = 2, .bucket_bytes = 64};

static struct wire_msg group_msg(uint32_t count, uint32_t shard_ranks, uint32_t a, uint32_t b)
{
    static uint32_t pool[8][4], next;
    uint32_t *ranks = pool[next++ % 8];
    struct wire_msg msg = {
        .u.param_group = {.count = count, .ranks = ranks, .shard_ranks = shard_ranks}};

    ranks[0] = a;
    ranks[1] = b;
    ranks[2] = 2;
    ranks[3] = 3;
    return msg;
}

/* A group of one or two; what comes of it is checked. */
static void add_group(uint32_t rank, uint32_t count, uint32_t shard_ranks, uint32_t a, uint32_t b,
                      int code, const char *text)
{
    struct wire_msg msg = group_msg(count, shard_ranks, a, b);

    kit_done(rank, kit_ask(rank, &msg, WIRE_PARAM_GROUP), code, text);
}

static void add_param(uint32_t rank, struct wire_param param, int code, const char *text)
{
    param.name = "w";
    param.unit = "";
    param.numel = 8;
    kit_done(rank, kit_register_page(rank, &param, 1), code, text);
}

static void start(uint32_t world)
{
    kit_start(world, 300, 1800);
    kit_join_all(world, 1);
}

/* ---- one rank's ------------------------------------------------------------------------------ */

static void test_wrong_groups_are_refused(void **state)
{
    (void)state;
    start(4);
    add_group(0, 2, 0, 0, 4, GW_E_INVALID, "a group cannot hold rank 4: the job has 4 ranks");
    add_group(0, 2, 0, 3, 3, GW_E_INVALID, "rank 3 stands twice in a group's list");
    add_group(0, 0, 0, 0, 0, GW_E_INVALID, "a group has 1 to 1024 ranks, not 0");
    add_group(0, GW_RANKS_MAX + 1, 0, 0, 0, GW_E_INVALID, "a group has 1 to 1024 ranks, not 1025");
    add_group(0, 4, 3, 0, 1, GW_E_INVALID,
              "a group's shard_ranks is 3, but must divide the 4 ranks");
    for (uint32_t g = 1; g < GW_GROUPS_MAX; g++)
        add_group(0, 2, 0, 0, 1, 0, "");
    add_group(0, 2, 0, 0, 1, GW_E_LIMIT, "rank 0 adds more groups than 64, the world included");
    add_param(0, (struct wire_param){.group = GW_GROUPS_MAX - 1}, 0, "");
    add_group(0, 2, 0, 0, 1, 0, ""); /* all anew: the limit is far again */
    add_param(0, (struct wire_param){.group = 2}, GW_E_INVALID, "but rank 0 has added 1");
}

static void test_parameters_name_groups_that_are_there(void **state)
{
    (void)state;
    start(2);
    add_param(0, (struct wire_param){.group = 1}, GW_E_INVALID,
              "parameter 0, 'w', is of group 1, but rank 0 has added 0: add it first");
    add_param(0, (struct wire_param){.dtype = 3}, GW_E_INVALID, "'w', has a dtype that does not");
    add_param(0, (struct wire_param){.grad_dtype = 3}, GW_E_INVALID, "has a dtype that does not");
    add_group(0, 2, 0, 1, 0, 0, "");
    add_param(0, (struct wire_param){.group = 1, .dtype = 2, .grad_dtype = 1}, 0, "");
    add_param(0, (struct wire_param){.group = 1}, 0, ""); /* the list anew, with the same groups */
    add_group(0, 1, 0, 1, 0, 0, "");                      /* all anew */
    add_param(0, (struct wire_param){.group = 2}, GW_E_INVALID, "but rank 0 has added 1");
}

static void test_groups_come_before_the_seal(void **state)
{
    (void)state;
    start(2);
    add_param(0, (struct wire_param){0}, 0, "");
    kit_seal(0, &plain);
    add_group(0, 1, 0, 0, 0, GW_E_STATE, "rank 0 adds a group after its seal");
}

/* ---- options --------------------------------------------------------------------------------- */

static void test_contradicting_options_are_named(void **state)
{
    static const struct {
        struct wire_seal seal;
        const char *text;
    } rows[] = {
        {{.stage = 1, .bucket_bytes = 64, .shard_ranks = 3},
         "shard_ranks is 3, but must divide the 4 ranks"},
        {{.stage = 0, .bucket_bytes = 64, .shard_ranks = 2},
         "shard_ranks is 2, but in stage 0 nothing is sharded"},
        {{.stage = 3, .bucket_bytes = 64, .shard_ranks = 2, .gather = GW_GATHER_MAPPED},
         "shard_ranks is 2, but with gather mapped there is one copy of the shards"},
        {{.stage = 1, .bucket_bytes = 64, .shard_ranks = 1025},
         "shard_ranks is 1025, but must be 0 to 1024"},
        {{.stage = 2, .bucket_bytes = 64, .persist_bytes = 8},
         "persist_bytes is for stage 3, but stage is 2"},
        {{.stage = 2, .bucket_bytes = 64, .secondary_ranks = 2},
         "secondary_ranks is for stage 3, but stage is 2, where parameters are not gathered twice"},
        {{.stage = 3, .bucket_bytes = 64, .secondary_ranks = 2, .gather = GW_GATHER_MAPPED},
         "secondary_ranks is 2, but with gather mapped all read the one copy of the shards"},
        {{.stage = 3, .bucket_bytes = 64, .secondary_ranks = 3},
         "secondary_ranks is 3, but must divide the 4 ranks"},
        {{.stage = 3, .bucket_bytes = 64, .secondary_ranks = 2, .shard_ranks = 2},
         "secondary_ranks is 2 and shard_ranks 2, but a run of shard_ranks holds a whole copy"},
        {{.stage = 3, .bucket_bytes = 64, .secondary_ranks = 1025},
         "secondary_ranks is 1025, but must be 0 to 1024"},
        {{.stage = 1, .bucket_bytes = 64, .norm = 2}, "norm is 2, but must be 0 to 1"},
        {{.stage = 1, .bucket_bytes = 64, .reduce_dtype = 3},
         "reduce_dtype is 3, but must be 0 to 2"},
        {{.stage = 1, .bucket_bytes = 64, .accum_as_grads = 2}, "accum_as_grads is 2"},
        {{.stage = 1, .bucket_bytes = 64, .pre_scale = 1e39}, "scale times pre_scale is 1 times"},
        {{.stage = 1, .bucket_bytes = 64, .scale = 1e30, .pre_scale = 1e30},
         "1e+30 times 1e+30, but must be a finite fp32 value"},
    };

    (void)state;
    start(4);
    add_param(0, (struct wire_param){0}, 0, "");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        kit_done(0, kit_seal(0, &rows[i].seal), GW_E_INVALID, rows[i].text);
    kit_none();
}

/* Of a group's runs the stage has to say the same. Runs of all members are none. */
static void test_a_group_s_runs_contradict_the_stage(void **state)
{
    struct wire_seal seal = {.stage = 0, .bucket_bytes = 64};

    (void)state;
    start(4);
    add_group(0, 2, 2, 0, 1, 0, "");
    add_group(0, 2, 1, 0, 1, 0, "");
    add_param(0, (struct wire_param){0}, 0, "");
    kit_done(0, kit_seal(0, &seal), GW_E_INVALID,
             "group 2's shard_ranks is 1, but in stage 0 nothing is sharded");
    seal.stage = 3;
    seal.gather = GW_GATHER_MAPPED;
    kit_done(0, kit_seal(0, &seal), GW_E_INVALID, "group 2's shard_ranks is 1, but with gather");
    seal.gather = GW_GATHER_PRIVATE;
    kit_seal(0, &seal);
    kit_none();
}

/* Each group has a mean of its own, so no one number can stand for it. */
static void test_a_mean_of_groups_stays_a_mean(void **state)
{
    (void)state;
    start(1);
    add_group(0, 1, 0, 0, 0, 0, "");
    add_param(0, (struct wire_param){.group = 1, .dtype = GW_DTYPE_BF16}, 0, "");
    kit_seal(0, &plain);
    kit_next(CORE_EFF_BUILD);
    assert_true(core_options(kit.core)->scale >= 0 && core_options(kit.core)->scale <= 0);
    assert_true(core_options(kit.core)->pre_scale >= 1 && core_options(kit.core)->pre_scale <= 1);
    assert_int_equal(layout_page(core_layout(kit.core))->groups, 2);
    assert_int_equal(layout_buckets(core_layout(kit.core))[0].dtype, GW_DTYPE_BF16);
    assert_int_equal(layout_buckets(core_layout(kit.core))[0].group, 1);
}

/*
 * Stage 3, group 1 = {0}, buckets of 64 bytes: rank 0 gathers a (16 bytes), b (32), c (8), d (24);
 * rank 1 only a and c. The three largest of rank 0 are 72 bytes, its largest 32.
 */
static void test_defaults_are_for_the_rank_that_gathers_most(void **state)
{
    const struct wire_seal seal = {.stage = 3, .bucket_bytes = 32, .shard_align_bytes = 4};

    (void)state;
    start(2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct wire_param params[] = {
            {.name = "a", .unit = "", .numel = 4},
            {.name = "b", .unit = "", .numel = 8, .group = 1},
            {.name = "c", .unit = "", .numel = 2},
            {.name = "d", .unit = "", .numel = 6, .group = 1}};

        add_group(rank, 1, 0, 0, 0, 0, "");
        kit_done(rank, kit_register_page(rank, params, 4), 0, "");
        kit_seal(rank, &seal);
    }
    kit_next(CORE_EFF_BUILD);
    assert_int_equal(core_options(kit.core)->gather_bytes, 16 + 32 + 24);
    assert_int_equal(core_options(kit.core)->prefetch_bytes, 32);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

static void differ(const struct wire_msg *first, const struct wire_msg *second, const char *text)
{
    const struct wire_msg *const of[] = {first, second};

    start(2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        if (of[rank]) {
            struct wire_msg msg = *of[rank];

            kit_done(rank, kit_ask(rank, &msg, WIRE_PARAM_GROUP), 0, "");
        }
        add_param(rank, (struct wire_param){0}, 0, "");
        kit_seal(rank, &plain);
    }
    kit_has(kit_fail(GW_E_MISMATCH, 1), text);
    kit.core = core_free(kit.core);
}

static void test_groups_that_differ_are_told(void **state)
{
    struct wire_msg both = group_msg(2, 0, 0, 1), turned = group_msg(2, 0, 1, 0);
    struct wire_msg one = group_msg(1, 0, 0, 0), runs = group_msg(2, 1, 0, 1);

    (void)state;
    differ(&both, &turned, "rank 0: group 1 = 0,1; rank 1: group 1 = 1,0");
    differ(&both, &one, "rank 0: group 1 = 0,1; rank 1: group 1 = 0");
    differ(&both, &runs, "rank 0: group 1 = 0,1; rank 1: group 1 = 0,1 in runs of 1");
    differ(&both, NULL, "rank 0: group 1 = 0,1; rank 1: no group 1");
    differ(NULL, &both, "rank 0: no group 1; rank 1: group 1 = 0,1");
}

static void test_parameters_that_differ_are_told(void **state)
{
    static const struct {
        struct wire_param other;
        const char *text;
    } rows[] = {
        {{.dtype = GW_DTYPE_BF16},
         "parameter 0: rank 0 has 'w' (8 elements), rank 1 has 'w' (8 elements, bf16, gradients "
         "fp32)"},
        {{.grad_dtype = GW_DTYPE_FP16}, "rank 1 has 'w' (8 elements, fp32, gradients fp16)"},
        {{.group = 1}, "rank 1 has 'w' (8 elements, group 1)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        start(2);
        for (uint32_t rank = 0; rank < 2; rank++) {
            add_group(rank, 2, 0, 0, 1, 0, "");
            add_param(rank, rank ? rows[i].other : (struct wire_param){0}, 0, "");
            kit_seal(rank, &plain);
        }
        kit_has(kit_fail(GW_E_MISMATCH, 1), rows[i].text);
        kit.core = core_free(kit.core);
    }
}

static void test_options_that_differ_are_told(void **state)
{
    static const struct {
        struct wire_seal other;
        const char *text;
    } rows[] = {
        {{.stage = 2, .bucket_bytes = 64, .norm = 1}, "option norm: rank 0 says 0, rank 1 says 1"},
        {{.stage = 2, .bucket_bytes = 64, .pre_scale = 2}, "option pre_scale: rank 0 says 1, rank"},
        {{.stage = 2, .bucket_bytes = 64, .reduce_dtype = 2}, "option reduce_dtype: rank 0 says 0"},
        {{.stage = 2, .bucket_bytes = 64, .accum_as_grads = 1}, "option accum_as_grads: rank 0"},
        {{.stage = 2, .bucket_bytes = 64, .shard_ranks = 1}, "option shard_ranks: rank 0 says 0"},
        {{.stage = 2, .bucket_bytes = 64, .reuse_bytes = 9}, "option reuse_bytes: rank 0 says 0"},
        {{.stage = 2, .bucket_bytes = 64, .all_reduce = 1}, "option all_reduce: rank 0 says 0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        start(2);
        for (uint32_t rank = 0; rank < 2; rank++) {
            add_param(rank, (struct wire_param){0}, 0, "");
            kit_seal(rank, rank ? &rows[i].other : &plain);
        }
        kit_has(kit_fail(GW_E_MISMATCH, 1), rows[i].text);
        kit.core = core_free(kit.core);
    }
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void start_buffers(void)
{
    start(2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct core_event event = {
            .kind = CORE_EV_BUFFER, .rank = rank, .index = 1, .size_bytes = 256};

        kit_event(&event);
    }
}

static struct wire_op sum(uint64_t count, uint32_t dtype, double scale, double pre_scale)
{
    return (struct wire_op){.kind = WIRE_OP_ALL_REDUCE, .send_buffer = 1, .recv_buffer = 1,
                            .count = count, .dtype = dtype, .scale = scale,
                            .pre_scale = pre_scale, .name = "x"};
}

static void submit(uint32_t rank, struct wire_op op)
{
    struct wire_msg msg = {.type = WIRE_OP, .u.op = op};

    msg.u.op.sequence = 1;
    kit_send(rank, &msg);
}

/* C07: another dtype, another factor. What differs in spelling only does not: 0.25 * 2 = 0.5. */
static void test_c07_dtypes_and_factors(void **state)
{
    (void)state;
    start_buffers();
    submit(0, sum(8, GW_DTYPE_BF16, 0, 0));
    submit(1, sum(8, GW_DTYPE_FP16, 0, 0));
    kit_has(kit_fail(GW_E_MISMATCH, 1),
            "rank 0: all_reduce 'x' 8 elements bf16 scale 1; rank 1: all_reduce 'x' 8 elements "
            "fp16 scale 1");
    kit.core = core_free(kit.core);
    start_buffers();
    submit(0, sum(8, 0, 0.5, 0));
    submit(1, sum(8, 0, 0.5, 2));
    kit_has(kit_fail(GW_E_MISMATCH, 1), "scale 0.5; rank 1: all_reduce 'x' 8 elements scale 1");
    kit.core = core_free(kit.core);
    start_buffers();
    submit(0, sum(8, 0, 0.5, 0));
    submit(1, sum(8, 0, 0.25, 2));
    kit_next(CORE_EFF_LAUNCH);
    assert_true(kit.ops[0].op.scale >= 0.5f && kit.ops[0].op.scale <= 0.5f);
}

/* 256 bytes hold 128 halves. */
static void test_halves_take_half_the_bytes(void **state)
{
    struct wire_op op = sum(64, GW_DTYPE_FP16, 0, 0);

    (void)state;
    start_buffers();
    op.recv_offset = 64;
    submit(0, op);
    submit(1, op);
    kit_next(CORE_EFF_LAUNCH);
    assert_int_equal(kit.ops[0].op.in_dtype, GW_DTYPE_FP16);
    assert_int_equal(kit.ops[0].op.out_dtype, GW_DTYPE_FP16);
    assert_int_equal(kit.ops[0].op.round_dtype, GW_DTYPE_FP32);
    assert_int_equal(kit.ops[0].op.payload_bytes, 128);
    assert_int_equal(kit.ops[0].out[1].offset_bytes, 128);
    kit.core = core_free(kit.core);
    start_buffers();
    submit(0, sum(129, GW_DTYPE_FP16, 0, 0));
    kit_has(kit_fail(GW_E_INVALID, 0), "send needs 129 elements from 0 on, but buffer 1 holds 128");
    kit.core = core_free(kit.core);
    start_buffers();
    submit(0, sum(8, 3, 0, 0));
    kit_has(kit_fail(GW_E_INVALID, 0), "there is no dtype 3");
    kit.core = core_free(kit.core);
    start_buffers();
    submit(0, sum(8, 0, 1e30, 1e30));
    kit_has(kit_fail(GW_E_INVALID, 0), "scale 1e+60 is not a finite fp32 value");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_wrong_groups_are_refused, kit_stop),
        cmocka_unit_test_teardown(test_parameters_name_groups_that_are_there, kit_stop),
        cmocka_unit_test_teardown(test_groups_come_before_the_seal, kit_stop),
        cmocka_unit_test_teardown(test_contradicting_options_are_named, kit_stop),
        cmocka_unit_test_teardown(test_a_group_s_runs_contradict_the_stage, kit_stop),
        cmocka_unit_test_teardown(test_a_mean_of_groups_stays_a_mean, kit_stop),
        cmocka_unit_test_teardown(test_defaults_are_for_the_rank_that_gathers_most, kit_stop),
        cmocka_unit_test_teardown(test_groups_that_differ_are_told, kit_stop),
        cmocka_unit_test_teardown(test_parameters_that_differ_are_told, kit_stop),
        cmocka_unit_test_teardown(test_options_that_differ_are_told, kit_stop),
        cmocka_unit_test_teardown(test_c07_dtypes_and_factors, kit_stop),
        cmocka_unit_test_teardown(test_halves_take_half_the_bytes, kit_stop),
    };

    return cmocka_run_group_tests_name("core_groups", tests, NULL, NULL);
}
