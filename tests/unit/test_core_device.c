/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on GPUs: tokens and order of collectives, what is refused there, and what is told. */
#include "tests/unit/test_core_kit.h"

static uint64_t sequences[GW_RANKS_MAX];

static int on_gpus(void **state)
{
    (void)state;
    memset(sequences, 0, sizeof(sequences));
    kit_device = GW_DEVICE_CUDA;
    return 0;
}

static void start(uint32_t world)
{
    kit_start(world, 300, 1800);
    kit_join_all(world, 1);
    for (uint32_t rank = 0; rank < world; rank++) {
        const struct core_event event = {
            .kind = CORE_EV_BUFFER, .rank = rank, .index = 1, .size_bytes = 256};

        kit_event(&event);
    }
}

static struct wire_op sum(uint32_t group, uint64_t token)
{
    struct wire_op op = {.kind = WIRE_OP_ALL_REDUCE, .group = group, .send_buffer = 1,
                         .recv_buffer = 1, .recv_offset = 32, .count = 8, .name = "s"};

    if (token)
        op.after = (struct wire_after){.tokens = 1, .timeline = {3}, .value = {token}};
    return op;
}

static void submit(uint32_t rank, const struct wire_op *op)
{
    struct wire_msg msg = {.type = WIRE_OP, .u.op = *op};

    msg.u.op.sequence = ++sequences[rank];
    kit_send(rank, &msg);
}

static const struct kit_op *launched(void)
{
    kit_next(CORE_EFF_LAUNCH);
    return &kit.ops[kit.read - 1];
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void test_a_collective_waits_for_its_members_tokens(void **state)
{
    struct wire_op op = sum(0, 5);
    const struct kit_op *kept;

    (void)state;
    start(2);
    submit(0, &op);
    op.after = (struct wire_after){.tokens = 2, .timeline = {0, 63}, .value = {7, 8}};
    op.order = GW_ORDER_EXACT;
    submit(1, &op);
    kept = launched();
    assert_int_equal(kept->op.order, GW_ORDER_EXACT);
    assert_int_equal(kept->op.wait_count, 3);
    assert_int_equal(kept->waits[0].rank, 0);
    assert_int_equal(kept->waits[0].index, 3);
    assert_int_equal(kept->waits[0].value, 5);
    assert_int_equal(kept->waits[1].rank, 1);
    assert_int_equal(kept->waits[1].index, 0);
    assert_int_equal(kept->waits[1].value, 7);
    assert_int_equal(kept->waits[2].index, 63);
    assert_int_equal(kept->waits[2].value, 8);
}

static void test_order_must_agree(void **state)
{
    struct wire_op op = sum(0, 0);

    (void)state;
    start(2);
    op.order = GW_ORDER_FABRIC;
    submit(0, &op);
    submit(1, &op);
    assert_int_equal(launched()->op.order, GW_ORDER_FABRIC);
    submit(0, &op);
    op.order = GW_ORDER_EXACT;
    submit(1, &op);
    kit_has(kit_fail(GW_E_MISMATCH, 1), "order fabric");
}

/* It means nothing where nothing is summed. */
static void test_order_of_other_kinds_is_no_matter(void **state)
{
    struct wire_op op = {.kind = WIRE_OP_BARRIER, .order = GW_ORDER_FABRIC};

    (void)state;
    start(2);
    submit(0, &op);
    op.order = GW_ORDER_EXACT;
    submit(1, &op);
    assert_int_equal(launched()->op.order, GW_ORDER_EXACT);
}

static void test_order_fabric_is_refused_in_host_memory(void **state)
{
    struct wire_op op = sum(0, 0);

    (void)state;
    kit_device = GW_DEVICE_HOST;
    start(1);
    op.order = GW_ORDER_FABRIC;
    submit(0, &op);
    kit_has(kit_fail(GW_E_INVALID, 0), "order fabric is for GPUs");
}

/* Rank 0's stream may wait for its first op before it does the second: the second is not launched
 * first, though its group is complete. */
static void test_ops_of_different_groups_keep_their_order(void **state)
{
    const struct wire_op all = sum(0, 1), pair = sum(1, 2);

    (void)state;
    start(3);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct wire_msg msg = {.type = WIRE_GROUP_NEW, .request = 70};

        msg.u.group_new.count = 2;
        msg.u.group_new.ranks = (const uint32_t[]){0, 1};
        kit_send(rank, &msg);
    }
    kit_next(CORE_EFF_REPLY);
    kit_next(CORE_EFF_REPLY);
    submit(0, &all);
    submit(0, &pair);
    submit(1, &all);
    submit(1, &pair);
    kit_none();
    submit(2, &all);
    assert_int_equal(launched()->op.world, 3);
    assert_int_equal(launched()->op.world, 2);
    kit_none();
}

/* ... nor before what it declared to the ZeRO layer is launched. */
static void test_ops_wait_for_the_rank_to_settle(void **state)
{
    const struct wire_op op = sum(0, 1);
    struct wire_msg msg = {.type = WIRE_MICRO_END};

    (void)state;
    start(2);
    kit_seal_all(2);
    fake.unsettled = 1;
    submit(0, &op);
    submit(1, &op);
    kit_none();
    fake.unsettled = 0;
    kit_send(1, &msg); /* any event */
    launched();
    kit_none();
    assert_int_equal(fake.ops_launched, 2);
    assert_int_equal(fake.resumes, 1);
}

/* The core hears of completions late: more ops than it keeps track of are held back. */
static void test_many_ops_that_nobody_reports(void **state)
{
    const struct wire_op op = sum(0, 0);
    struct core_event done = {.kind = CORE_EV_OP_DONE, .op = 1};

    (void)state;
    start(1);
    for (uint32_t i = 0; i < 300; i++) {
        submit(0, &op);
        if (i < 256)
            launched();
        kit_none();
    }
    kit_event(&done);
    assert_int_equal(launched()->op.id, 257);
    kit_none();
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void test_joined_says_where(void **state)
{
    const struct core_event join = {.kind = CORE_EV_JOIN, .rank = 0, .request = 5, .world = 1};

    (void)state;
    kit_start(1, 300, 1800);
    kit_event(&join);
    assert_int_equal(kit_reply(0, 5, WIRE_JOINED)->reply.u.joined.device, GW_DEVICE_CUDA);
}

static void test_mapped_gathers_are_for_the_host(void **state)
{
    const struct wire_seal mapped = {.stage = 3, .bucket_bytes = 64, .gather = GW_GATHER_MAPPED};
    const struct wire_seal fabric = {.stage = 3, .bucket_bytes = 64, .order = GW_ORDER_FABRIC};
    const struct kit_param param = {"w", "", 8};

    (void)state;
    start(1);
    kit_register(0, &param, 1);
    kit_done(0, kit_seal(0, &mapped), GW_E_INVALID, "gather mapped is for host memory");
    kit_seal(0, &fabric);
    kit_next(CORE_EFF_BUILD);
    assert_int_equal(core_options(kit.core)->order, GW_ORDER_FABRIC);
}

static void test_verdicts_lie_in_device_memory_too(void **state)
{
    (void)state;
    start(2);
    assert_int_equal(core_arena_bytes(kit.core, GW_ARENA_VERDICT, 0), 0); /* no seal */
    kit_seal_all(2);
    assert_int_equal(core_arena_bytes(kit.core, GW_ARENA_VERDICT, 1),
                     sizeof(struct gw_shm_verdict) + 1); /* bits of a few parameters */
}

static void test_imports_are_the_engines(void **state)
{
    struct wire_msg msg = {.type = WIRE_BUFFER_IMPORT, .request = 9};

    (void)state;
    start(1);
    kit_send(0, &msg);
    kit_done(0, 9, GW_E_UNIMPLEMENTED, "BUFFER_IMPORT is not answered by the core");
}

static void test_a_million_buckets_are_the_limit(void **state)
{
    const struct wire_seal tiny = {.stage = 2, .bucket_bytes = 4, .shard_align_bytes = 4};
    const struct kit_param param = {"w", "", (1u << 20) + 1};

    (void)state;
    start(1);
    kit_register(0, &param, 1);
    kit_done(0, kit_seal(0, &tiny), GW_E_LIMIT, "more than 1048576 buckets of 4 bytes");
}

static void test_a_lost_device_ends_the_job(void **state)
{
    const struct core_event event = {.kind = CORE_EV_DEVICE_LOST, .code = GW_E_DEVICE,
                                     .text = "GPU 3: sticky error"};

    (void)state;
    start(2);
    kit_event(&event);
    kit_has(kit_fail(GW_E_DEVICE, UINT32_MAX), "GPU 3: sticky error");
    kit_next(CORE_EFF_END);
    kit_none();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_collective_waits_for_its_members_tokens, on_gpus,
                                        kit_stop),
        cmocka_unit_test_setup_teardown(test_order_must_agree, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_order_of_other_kinds_is_no_matter, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_order_fabric_is_refused_in_host_memory, on_gpus,
                                        kit_stop),
        cmocka_unit_test_setup_teardown(test_ops_of_different_groups_keep_their_order, on_gpus,
                                        kit_stop),
        cmocka_unit_test_setup_teardown(test_ops_wait_for_the_rank_to_settle, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_many_ops_that_nobody_reports, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_joined_says_where, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_mapped_gathers_are_for_the_host, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_verdicts_lie_in_device_memory_too, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_imports_are_the_engines, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_a_million_buckets_are_the_limit, on_gpus, kit_stop),
        cmocka_unit_test_setup_teardown(test_a_lost_device_ends_the_job, on_gpus, kit_stop),
    };

    return cmocka_run_group_tests_name("core_device", tests, NULL, NULL);
}
