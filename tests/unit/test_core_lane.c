/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives layer: groups, buffers, what an op may say, agreement of ranks, and the op that is
 * launched.
 */
#include "tests/unit/test_core_kit.h"

/* A buffer of `numel` floats. */
static void buffer(uint32_t rank, uint32_t id, uint64_t numel)
{
    struct core_event event = {.kind = CORE_EV_BUFFER, .rank = rank, .index = id,
                               .size_bytes = numel * 4};

    kit_event(&event);
}

/* Every rank has buffers 1 and 2 of 64 floats. */
static void start(uint32_t world)
{
    kit_start(world, 300, 1800);
    kit_join_all(world, 1);
    for (uint32_t rank = 0; rank < world; rank++) {
        buffer(rank, 1, 64);
        buffer(rank, 2, 64);
    }
}

static uint64_t sequences[GW_RANKS_MAX];

static int start_sequences(void **state)
{
    (void)state;
    memset(sequences, 0, sizeof(sequences));
    return 0;
}

/* Submits the rank's next op. */
static void submit(uint32_t rank, const struct wire_op *op)
{
    struct wire_msg msg = {.type = WIRE_OP, .u.op = *op};

    msg.u.op.sequence = ++sequences[rank];
    kit_send(rank, &msg);
}

static struct wire_op make(uint32_t kind, const char *name, uint64_t count)
{
    struct wire_op op = {.kind = kind, .send_buffer = 1, .recv_buffer = 2, .count = count};

    snprintf(op.name, sizeof(op.name), "%s", name);
    return op;
}

static const struct kit_op *launched(void)
{
    kit_next(CORE_EFF_LAUNCH);
    return &kit.ops[kit.read - 1];
}

static void done(uint64_t op)
{
    struct core_event event = {.kind = CORE_EV_OP_DONE, .op = op, .started_ns = kit.now_ns,
                               .done_ns = kit.now_ns + 1000};

    kit_event(&event);
}

static void check_ref(const struct core_ref *ref, int rank, uint32_t buffer_id, uint64_t offset)
{
    assert_int_equal(ref->kind, GW_ARENA_BUFFER);
    assert_int_equal(ref->rank, rank);
    assert_int_equal(ref->index, buffer_id);
    assert_int_equal(ref->offset_bytes, offset);
}

/* ---- what is launched ------------------------------------------------------------------------ */

static void test_reduce_scatter(void **state)
{
    struct wire_op op = make(WIRE_OP_REDUCE_SCATTER, "g", 8);
    const struct kit_op *kept;

    (void)state;
    start(3);
    op.scale = 0.1;
    op.send_offset = 10;
    submit(1, &op);
    kit.now_ns += 5;
    op.recv_offset = 3;
    submit(0, &op);
    kit_none();
    kit.now_ns += 7;
    submit(2, &op);
    kept = launched();
    kit_none();
    assert_int_equal(kept->op.id, 1);
    assert_int_equal(kept->op.kind, CORE_OP_REDUCE_SCATTER);
    assert_int_equal(kept->op.stream, CORE_STREAM_REDUCE);
    assert_int_equal(kept->op.traffic, GW_KIND_REDUCE_SCATTER);
    assert_int_equal(kept->op.world, 3);
    assert_int_equal(kept->op.numel, 8);
    assert_int_equal(kept->op.payload_bytes, 3 * 8 * 4); /* all slices */
    assert_int_equal(kept->op.padding_bytes, 0);
    assert_int_equal(kept->op.ready_ns, kit.now_ns);
    assert_true(memcmp(&kept->op.scale, &(float){0.1f}, sizeof(float)) == 0);
    assert_int_equal(kept->op.accumulate, 0);
    assert_int_equal(kept->op.wait_count, 0);
    assert_int_equal(kept->op.wait_op_count, 0);
    assert_int_equal(kept->op.signal_count, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(kept->members[rank], rank);
        check_ref(&kept->in[rank], (int)rank, 1, 40);
        check_ref(&kept->out[rank], (int)rank, 2, rank == 1 ? 0 : 12);
        assert_int_equal(kept->signals[rank].rank, rank);
        assert_int_equal(kept->signals[rank].timeline, GW_TIMELINE(GW_TL_OP, 1));
        assert_int_equal(kept->signals[rank].value, 1);
    }
    assert_int_equal(core_state(kit.core), GW_JOB_RUNNING);
}

/* Payload as nccl-tests counts: all-gather all slices, all-reduce and broadcast the buffer. */
static void test_sizes_of_the_other_kinds(void **state)
{
    static const struct {
        uint32_t kind;
        uint8_t op, traffic;
        uint64_t numel, total, payload;
    } rows[] = {
        {WIRE_OP_ALL_GATHER, CORE_OP_ALL_GATHER, GW_KIND_ALL_GATHER, 10, 0, 120},
        /* 10 = 4 + 4 + 2 */
        {WIRE_OP_ALL_REDUCE, CORE_OP_ALL_REDUCE, GW_KIND_ALL_REDUCE, 4, 10, 40},
        {WIRE_OP_BROADCAST, CORE_OP_BROADCAST, GW_KIND_BROADCAST, 10, 0, 40},
        {WIRE_OP_BARRIER, CORE_OP_BARRIER, GW_KIND_CONTROL, 0, 0, 0},
    };

    (void)state;
    start(3);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wire_op op = make(rows[i].kind, "x", 10);
        const struct kit_op *kept;

        for (uint32_t rank = 0; rank < 3; rank++)
            submit(rank, &op);
        kept = launched();
        assert_int_equal(kept->op.id, i + 1);
        assert_int_equal(kept->op.kind, rows[i].op);
        assert_int_equal(kept->op.traffic, rows[i].traffic);
        assert_int_equal(kept->op.numel, rows[i].numel);
        assert_int_equal(kept->op.total_numel, rows[i].total);
        assert_int_equal(kept->op.payload_bytes, rows[i].payload);
        assert_true(memcmp(&kept->op.scale, &(float){1}, sizeof(float)) == 0);
        assert_int_equal(kept->signals[2].timeline, GW_TIMELINE(GW_TL_OP, i + 1));
        kit_none();
    }
}

static void test_broadcast_reads_the_root(void **state)
{
    struct wire_op op = make(WIRE_OP_BROADCAST, "w", 4);
    const struct kit_op *kept;

    (void)state;
    start(3);
    op.root = 2;
    op.recv_buffer = 1; /* one place for both, as the library says it */
    for (uint32_t rank = 0; rank < 3; rank++) {
        op.send_offset = op.recv_offset = rank;
        submit(rank, &op);
    }
    kept = launched();
    assert_int_equal(kept->op.rank, 2);
    check_ref(&kept->in[0], 2, 1, 8);
    for (uint32_t rank = 0; rank < 3; rank++)
        check_ref(&kept->out[rank], (int)rank, 1, 4 * rank);
}

/* Ops are launched in each rank's order, one lane per group; slot n % 64. */
static void test_order_and_slots(void **state)
{
    struct wire_op op = make(WIRE_OP_BARRIER, "b", 0);

    (void)state;
    start(2);
    for (uint64_t i = 1; i <= 64; i++)
        submit(0, &op);
    kit_none();
    for (uint64_t i = 1; i <= 64; i++) {
        submit(1, &op);
        assert_int_equal(launched()->signals[0].value, i);
        assert_int_equal(kit.ops[kit.read - 1].signals[1].timeline, GW_TIMELINE(GW_TL_OP, i % 64));
        kit_none();
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static uint32_t ask_group(uint32_t rank, uint32_t count, uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t ranks[] = {a, b, c};
    struct wire_msg msg = {.u.group_new = {.count = count, .ranks = ranks}};

    return kit_ask(rank, &msg, WIRE_GROUP_NEW);
}

static void test_groups_when_all_have_asked(void **state)
{
    struct wire_op op = make(WIRE_OP_ALL_GATHER, "g", 4);
    const struct kit_op *kept;
    uint32_t requests[3];

    (void)state;
    start(3);
    requests[2] = ask_group(2, 2, 2, 0, 0);
    kit_none();
    requests[0] = ask_group(0, 2, 2, 0, 0);
    assert_int_equal(kit_reply(2, requests[2], WIRE_GROUP_MADE)->reply.u.group_made.group, 1);
    assert_int_equal(kit_reply(0, requests[0], WIRE_GROUP_MADE)->reply.u.group_made.group, 1);
    requests[1] = ask_group(1, 1, 1, 0, 0);
    assert_int_equal(kit_reply(1, requests[1], WIRE_GROUP_MADE)->reply.u.group_made.group, 2);
    /* Members in group order: rank 2 is first. Other ranks' ops do not matter. */
    op.group = 1;
    submit(0, &op);
    submit(2, &op);
    kept = launched();
    assert_int_equal(kept->op.world, 2);
    assert_int_equal(kept->members[0], 2);
    assert_int_equal(kept->members[1], 0);
    check_ref(&kept->in[0], 2, 1, 0);
    assert_int_equal(kept->op.payload_bytes, 2 * 4 * 4);
    kit_none();
}

static void test_wrong_groups(void **state)
{
    (void)state;
    start(3);
    kit_done(0, ask_group(0, 2, 1, 2, 0), GW_E_INVALID, "only members call");
    kit_done(0, ask_group(0, 2, 0, 3, 0), GW_E_INVALID, "cannot hold rank 3");
    kit_done(0, ask_group(0, 3, 0, 1, 0), GW_E_INVALID, "rank 0 stands twice");
    kit_done(0, ask_group(0, 0, 0, 0, 0), GW_E_INVALID, "only members call");
    kit_none();
}

static void test_groups_that_differ(void **state)
{
    uint32_t requests[2];

    (void)state;
    start(3);
    requests[0] = ask_group(0, 2, 0, 1, 0);
    requests[1] = ask_group(1, 2, 1, 0, 0);
    kit_has(kit_fail(GW_E_MISMATCH, 1), "rank 0: [0, 1]; rank 1: [1, 0]");
    kit_done(0, requests[0], GW_E_MISMATCH, "[1, 0]");
    kit_done(1, requests[1], GW_E_MISMATCH, "[0, 1]");
}

/* Rank 1 makes its groups in the order (0,1), (1,2); rank 2 may ask for the second before. */
static void test_groups_in_a_chain(void **state)
{
    uint32_t late;

    (void)state;
    start(3);
    late = ask_group(2, 2, 1, 2, 0);
    ask_group(1, 2, 0, 1, 0);
    kit_none();
    ask_group(0, 2, 0, 1, 0);
    kit_next(CORE_EFF_REPLY);
    kit_next(CORE_EFF_REPLY);
    ask_group(1, 2, 1, 2, 0);
    kit_reply(1, kit.request, WIRE_GROUP_MADE);
    assert_int_equal(kit_reply(2, late, WIRE_GROUP_MADE)->reply.u.group_made.group, 2);
    kit_none();
}

static void test_group_before_all_joined(void **state)
{
    uint32_t requests[2];

    (void)state;
    kit_start(3, 300, 1800);
    for (uint32_t rank = 0; rank < 2; rank++) {
        kit_join_world(rank, 3);
        kit_joined(rank, 1);
        requests[rank] = ask_group(rank, 2, 0, 1, 0);
    }
    kit_none();
    kit_join_world(2, 3);
    kit_joined(2, 1);
    kit_reply(0, requests[0], WIRE_GROUP_MADE);
    kit_reply(1, requests[1], WIRE_GROUP_MADE);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

/* Case R15: two tensors of equal size, submitted in opposite order. */
static void test_r15_opposite_order(void **state)
{
    struct wire_op a = make(WIRE_OP_ALL_REDUCE, "a", 8), b = make(WIRE_OP_ALL_REDUCE, "b", 8);
    const char *text;

    (void)state;
    start(2);
    submit(0, &a);
    submit(0, &b);
    submit(1, &b);
    text = kit_fail(GW_E_MISMATCH, 1);
    kit_has(text, "op 1 of group 0 differs: rank 0: all_reduce 'a' 8 elements scale 1; rank 1: "
                  "all_reduce 'b' 8 elements scale 1");
    kit_none(); /* nothing was launched */
}

/* Case C07: kinds, counts, scale or root differ. */
static void test_c07_other_op(void **state)
{
    static const struct {
        struct wire_op other;
        const char *text;
    } rows[] = {
        {{.kind = WIRE_OP_ALL_GATHER, .count = 8, .name = "x"},
         "rank 1: all_gather 'x' 8 elements"},
        {{.kind = WIRE_OP_REDUCE_SCATTER, .count = 9, .name = "x"},
         "rank 1: reduce_scatter 'x' 9 elements scale 1"},
        {{.kind = WIRE_OP_REDUCE_SCATTER, .count = 8, .name = "x", .scale = 0.5},
         "rank 1: reduce_scatter 'x' 8 elements scale 0.5"},
        {{.kind = WIRE_OP_BARRIER, .name = "x"}, "rank 1: barrier 'x'"},
    };
    struct wire_op op = make(WIRE_OP_REDUCE_SCATTER, "x", 8);
    struct wire_op cast = make(WIRE_OP_BROADCAST, "y", 8);

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wire_op other = rows[i].other;

        start_sequences(NULL);
        start(2);
        other.send_buffer = 1;
        other.recv_buffer = 2;
        submit(1, &other);
        submit(0, &op);
        kit_has(kit_fail(GW_E_MISMATCH, 1), rows[i].text);
        kit_none();
        kit.core = core_free(kit.core);
    }
    start_sequences(NULL);
    start(2);
    submit(0, &cast);
    cast.root = 1;
    submit(1, &cast);
    kit_has(kit_fail(GW_E_MISMATCH, 1), "elements root 0; rank 1: broadcast 'y' 8 elements root 1");
}

/* ---- what an op may say ---------------------------------------------------------------------- */

static void refused(const struct wire_op *op, int code, const char *text)
{
    start_sequences(NULL);
    start(3);
    submit(1, op);
    kit_has(kit_fail(code, 1), text);
    kit_none();
    kit.core = core_free(kit.core);
}

/* Case T09: unknown buffer, unknown group; and what else one rank can get wrong. */
static void test_t09_wrong_ops(void **state)
{
    static const struct {
        struct wire_op op;
        int code;
        const char *text;
    } rows[] = {
        {{.kind = 3, .count = 4, .group = 1, .send_buffer = 1, .recv_buffer = 2}, GW_E_NOT_FOUND,
         "there is no group 1"},
        {{.kind = 3, .count = 4, .send_buffer = 7, .recv_buffer = 2}, GW_E_NOT_FOUND,
         "rank 1: all_reduce '' 4 elements scale 1: send names buffer 7"},
        {{.kind = 3, .count = 4, .send_buffer = 1, .recv_buffer = 8}, GW_E_NOT_FOUND,
         "recv names buffer 8"},
        {{.kind = 3, .count = 65, .send_buffer = 1, .recv_buffer = 2}, GW_E_INVALID,
         "send needs 65 elements from 0 on, but buffer 1 holds 64"},
        {{.kind = 3, .count = 4, .send_offset = 61, .send_buffer = 1, .recv_buffer = 2},
         GW_E_INVALID, "send needs 4 elements from 61 on"},
        {{.kind = 3, .count = 4, .send_offset = UINT64_MAX - 1, .send_buffer = 1, .recv_buffer = 2},
         GW_E_INVALID, "send needs 4 elements from"},
        {{.kind = 3, .count = UINT64_MAX, .send_buffer = 1, .recv_buffer = 2}, GW_E_INVALID,
         "too many"},
        /* wraps to 2 elements where times 3 were not checked */
        {{.kind = 1, .count = 0x5555555555555556ull, .send_buffer = 1, .recv_buffer = 2},
         GW_E_INVALID, "too many"},
        /* case R10: never a collective of 0 bytes */
        {{.kind = 3, .count = 0, .send_buffer = 1, .recv_buffer = 2}, GW_E_INVALID,
         "0 elements is not allowed"},
        /* case T10: sizes that do not add up: 3 slices of 22 are more than 64 */
        {{.kind = 1, .count = 22, .send_buffer = 1, .recv_buffer = 2}, GW_E_INVALID,
         "send needs 66 elements"},
        {{.kind = 2, .count = 22, .send_buffer = 1, .recv_buffer = 2}, GW_E_INVALID,
         "recv needs 66 elements"},
        {{.kind = 4, .count = 4, .root = 3, .send_buffer = 1, .recv_buffer = 1}, GW_E_INVALID,
         "root 3 is not a member"},
        {{.kind = 6, .count = 4, .send_buffer = 1, .recv_buffer = 2}, GW_E_INVALID, "kind 6"},
        {{.kind = 3, .count = 4, .scale = 1e300, .send_buffer = 1, .recv_buffer = 2}, GW_E_INVALID,
         "not a finite fp32 value"},
        /* in place, but not the rank's own slice or the same memory */
        {{.kind = 1, .count = 8, .recv_offset = 0, .send_buffer = 1, .recv_buffer = 1},
         GW_E_INVALID, "overlap in buffer 1, but are not the rank's own slice"},
        {{.kind = 2, .count = 8, .send_offset = 16, .send_buffer = 1, .recv_buffer = 1},
         GW_E_INVALID, "overlap"},
        {{.kind = 3, .count = 8, .send_offset = 7, .send_buffer = 1, .recv_buffer = 1},
         GW_E_INVALID, "but are not the same"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refused(&rows[i].op, rows[i].code, rows[i].text);
}

/* Rank 1's own slice of 8 elements begins at 8; a disjoint part of the same buffer is fine, too. */
static void test_in_place_forms(void **state)
{
    static const struct wire_op rows[] = {
        {.kind = 1, .count = 8, .recv_offset = 8, .send_buffer = 1, .recv_buffer = 1},
        {.kind = 1, .count = 8, .send_offset = 5, .recv_offset = 13, .send_buffer = 1,
         .recv_buffer = 1},
        {.kind = 1, .count = 8, .recv_offset = 24, .send_buffer = 1, .recv_buffer = 1},
        {.kind = 2, .count = 8, .send_offset = 8, .send_buffer = 1, .recv_buffer = 1},
        {.kind = 2, .count = 8, .send_offset = 56, .send_buffer = 1, .recv_buffer = 1},
        {.kind = 3, .count = 64, .send_buffer = 1, .recv_buffer = 1},
        {.kind = 3, .count = 32, .send_offset = 32, .send_buffer = 1, .recv_buffer = 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        start_sequences(NULL);
        start(3);
        submit(1, &rows[i]);
        kit_none();
        assert_int_not_equal(core_state(kit.core), GW_JOB_BROKEN);
        kit.core = core_free(kit.core);
    }
}

/* Case T04: a reduce-scatter of one scalar per rank is defined. */
static void test_t04_scalar(void **state)
{
    struct wire_op op = make(WIRE_OP_REDUCE_SCATTER, "s", 1);

    (void)state;
    start(3);
    for (uint32_t rank = 0; rank < 3; rank++)
        submit(rank, &op);
    assert_int_equal(launched()->op.payload_bytes, 12);
}

static void test_member_of_another_group_only(void **state)
{
    struct wire_op op = make(WIRE_OP_BARRIER, "b", 0);

    (void)state;
    start(2);
    ask_group(0, 1, 0, 0, 0);
    kit_next(CORE_EFF_REPLY);
    op.group = 1;
    submit(1, &op);
    kit_has(kit_fail(GW_E_INVALID, 1), "not a member of group 1");
}

/* ---- flow ------------------------------------------------------------------------------------ */

static void test_sequence_gap_drops(void **state)
{
    struct wire_msg msg = {.type = WIRE_OP, .u.op = {.kind = WIRE_OP_BARRIER, .sequence = 2}};

    (void)state;
    start(2);
    kit_send(0, &msg);
    kit_has(kit_next(CORE_EFF_DROP)->text, "op 2 came after op 0");
    kit_fail(GW_E_PEER_LOST, 0);
}

static void test_more_than_64_waiting_drops(void **state)
{
    struct wire_op op = make(WIRE_OP_BARRIER, "b", 0);

    (void)state;
    start(2);
    for (uint32_t i = 0; i < 64; i++)
        submit(0, &op);
    kit_none();
    submit(0, &op);
    kit_has(kit_next(CORE_EFF_DROP)->text, "limit of 64 ops");
    kit_fail(GW_E_PEER_LOST, 0);
}

static void test_buffer_is_busy_until_done(void **state)
{
    struct wire_op op = make(WIRE_OP_ALL_REDUCE, "x", 4);
    struct wire_msg free_1 = {.u.buffer_free.buffer = 1}, free_9 = {.u.buffer_free.buffer = 9};

    (void)state;
    start(2);
    submit(0, &op);
    kit_done(0, kit_ask(0, &free_1, WIRE_BUFFER_FREE), GW_E_BUSY, "used by 1 unfinished");
    submit(1, &op);
    launched();
    kit_done(0, kit_ask(0, &free_1, WIRE_BUFFER_FREE), GW_E_BUSY, "buffer 1 of rank 0");
    done(1);
    kit_done(0, kit_ask(0, &free_1, WIRE_BUFFER_FREE), 0, "");
    kit_done(0, kit_ask(0, &free_1, WIRE_BUFFER_FREE), GW_E_NOT_FOUND, "no buffer 1");
    kit_done(1, kit_ask(1, &free_9, WIRE_BUFFER_FREE), GW_E_NOT_FOUND, "no buffer 9");
    kit_none();
    /* The other rank's buffer of that number is still there. */
    kit_done(1, kit_ask(1, &free_1, WIRE_BUFFER_FREE), 0, "");
}

static void test_ops_before_all_joined_wait(void **state)
{
    struct wire_op op = make(WIRE_OP_BARRIER, "b", 0);

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_world(0, 2);
    kit_joined(0, 1);
    submit(0, &op);
    kit_none();
    kit_join_world(1, 2);
    kit_joined(1, 1);
    kit_none();
    submit(1, &op);
    launched();
}

static void test_next_generation_starts_clean(void **state)
{
    struct wire_op op = make(WIRE_OP_BARRIER, "b", 0);

    (void)state;
    start(2);
    submit(0, &op);
    kit_gone(CORE_EV_LOST, 1, "killed");
    kit_fail(GW_E_PEER_LOST, 1);
    kit_gone(CORE_EV_LOST, 0, "killed");
    kit_join_all(2, 2);
    start_sequences(NULL);
    submit(1, &op);
    kit_none();
    submit(0, &op);
    assert_int_equal(launched()->signals[0].value, 1);
    /* An old op that finishes now is nobody's. */
    done(77);
    kit_none();
}

static void test_comm_time_without_zero(void **state)
{
    struct wire_op op = make(WIRE_OP_ALL_REDUCE, "x", 4);
    struct wire_msg stats = {0};

    (void)state;
    start(1);
    submit(0, &op);
    submit(0, &op);
    done(1);
    done(2);
    core_stats(kit.core, 0, &stats);
    assert_int_equal(stats.u.stats.comm_ns, 2000);
}

#define LANE_TEST(name) cmocka_unit_test_setup_teardown(name, start_sequences, kit_stop)

/* ---- beside a seal --------------------------------------------------------------------------- */

static void submit_both(const struct wire_op *op)
{
    for (uint32_t rank = 0; rank < 2; rank++)
        submit(rank, op);
}

/* Memory and figures are made with no op in flight. */
static void test_a_seal_waits_for_ops_under_way(void **state)
{
    const struct kit_param param = {"w", "", 8};
    const struct wire_seal seal = {.stage = 1, .bucket_bytes = 4096};
    const struct wire_op op = make(WIRE_OP_BARRIER, "b", 0);
    uint64_t first, second;
    uint32_t requests[2];

    (void)state;
    for (int code = GW_E_NOMEM; code <= 0; code -= GW_E_NOMEM) { /* refused, made */
        memset(sequences, 0, sizeof(sequences));
        kit_start(2, 300, 1800);
        kit_join_all(2, 1);
        submit_both(&op);
        first = launched()->op.id;
        submit_both(&op);
        second = launched()->op.id;
        for (uint32_t rank = 0; rank < 2; rank++) {
            kit_register(rank, &param, 1);
            requests[rank] = kit_seal(rank, &seal);
        }
        kit_none();
        submit_both(&op); /* comes meanwhile */
        done(second);
        kit_none();
        done(first);
        kit_next(CORE_EFF_BUILD);
        kit_none();
        kit_built(code, "no memory");
        for (uint32_t rank = 0; rank < 2 && code == 0; rank++)
            kit_reply(rank, requests[rank], WIRE_SEALED);
        for (uint32_t rank = 0; rank < 2 && code < 0; rank++)
            kit_done(rank, requests[rank], code, "no memory");
        assert_int_equal(launched()->op.kind, CORE_OP_BARRIER);
        kit_none();
        kit_stop(state);
    }
}

/* One that cannot be made lets them go on, too. */
static void test_a_seal_that_is_refused_holds_nothing_up(void **state)
{
    const struct kit_param params[] = {{"w", "", 8}, {"w", "", 8}};
    const struct wire_seal seal = {.stage = 1, .bucket_bytes = 4096};
    const struct wire_op op = make(WIRE_OP_BARRIER, "b", 0);
    uint64_t first;

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    submit_both(&op);
    first = launched()->op.id;
    for (uint32_t rank = 0; rank < 2; rank++) {
        kit_register(rank, params, 2);
        kit_seal(rank, &seal);
    }
    submit_both(&op);
    done(first);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(kit_next(CORE_EFF_REPLY)->code, GW_E_INVALID);
    launched();
    kit_none();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LANE_TEST(test_reduce_scatter),
        LANE_TEST(test_sizes_of_the_other_kinds),
        LANE_TEST(test_broadcast_reads_the_root),
        LANE_TEST(test_order_and_slots),
        LANE_TEST(test_groups_when_all_have_asked),
        LANE_TEST(test_wrong_groups),
        LANE_TEST(test_groups_that_differ),
        LANE_TEST(test_groups_in_a_chain),
        LANE_TEST(test_group_before_all_joined),
        LANE_TEST(test_r15_opposite_order),
        LANE_TEST(test_c07_other_op),
        LANE_TEST(test_t09_wrong_ops),
        LANE_TEST(test_in_place_forms),
        LANE_TEST(test_t04_scalar),
        LANE_TEST(test_member_of_another_group_only),
        LANE_TEST(test_sequence_gap_drops),
        LANE_TEST(test_more_than_64_waiting_drops),
        LANE_TEST(test_buffer_is_busy_until_done),
        LANE_TEST(test_ops_before_all_joined_wait),
        LANE_TEST(test_next_generation_starts_clean),
        LANE_TEST(test_comm_time_without_zero),
        LANE_TEST(test_a_seal_waits_for_ops_under_way),
        LANE_TEST(test_a_seal_that_is_refused_holds_nothing_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
