/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No silent wait, in virtual time: when a stall is reported, how it is named, when it is over, and
 * when the deadline ends the job. The stall report is at 10 s, then 20, 40, 80...
 */
#include "tests/unit/test_core_kit.h"

static void submit(uint32_t rank, uint64_t sequence, const char *name)
{
    struct wire_msg msg = {.type = WIRE_OP,
                           .u.op = {.kind = WIRE_OP_BARRIER, .sequence = sequence}};

    snprintf(msg.u.op.name, sizeof(msg.u.op.name), "%s", name);
    kit_send(rank, &msg);
}

static void reported(const char *text)
{
    const char *got = kit_next(CORE_EFF_REPORT)->text;

    if (strcmp(got, text) != 0)
        fail_msg("expected report \"%s\", got \"%s\"", text, got);
}

/* Nothing until just before `at`, then exactly one report. */
static void report_at(uint64_t at_ns, const char *text)
{
    assert_int_equal(core_deadline_ns(kit.core), at_ns);
    kit_tick(at_ns - 1);
    kit_none();
    kit_tick(at_ns);
    reported(text);
    kit_none();
}

static void done(uint64_t op)
{
    struct core_event event = {.kind = CORE_EV_OP_DONE, .op = op};

    kit_event(&event);
}

static void test_nothing_waits(void **state)
{
    (void)state;
    kit_start(2, 300, 1800);
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
    kit_join_all(2, 1);
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
    kit_tick(1000000 * S);
    kit_none();
}

static void test_join_is_reported_at_doubled_times(void **state)
{
    (void)state;
    kit_start(4, 300, 1800);
    kit_join_world(1, 4); /* at 100 s */
    kit_joined(1, 1);
    report_at(110 * S, "join of generation 1: 10 s, ranks not arrived: 0, 2, 3");
    report_at(120 * S, "join of generation 1: 20 s, ranks not arrived: 0, 2, 3");
    kit_join_world(0, 4);
    kit_joined(0, 1);
    report_at(140 * S, "join of generation 1: 40 s, ranks not arrived: 2, 3");
    report_at(180 * S, "join of generation 1: 80 s, ranks not arrived: 2, 3");
    report_at(260 * S, "join of generation 1: 160 s, ranks not arrived: 2, 3");
    kit_join_world(2, 4);
    kit_joined(2, 1);
    kit_join_world(3, 4);
    kit_joined(3, 1);
    reported("");
    kit_none();
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
}

/* What nobody has chosen: 300 s to join, 1,800 s for an op, a report after 10 s. */
static void test_defaults(void **state)
{
    struct core_config config = {.world = 2};

    (void)state;
    kit_start(2, 1, 1);
    kit.core = core_free(kit.core);
    assert_int_equal(core_new(&config, &kit.core), 0);
    kit_join_world(0, 2); /* at 100 s */
    kit_joined(0, 1);
    report_at(110 * S, "join of generation 1: 10 s, ranks not arrived: 1");
    kit_tick(400 * S - 1);
    reported("join of generation 1: 300.000 s, ranks not arrived: 1");
    kit_tick(400 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, 1), "ranks not arrived within 300 s: 1");
    kit.core = core_free(kit.core);

    kit_start(2, 1, 1);
    kit.core = core_free(kit.core);
    assert_int_equal(core_new(&config, &kit.core), 0);
    kit_join_all(2, 1);
    submit(0, 1, "x");
    report_at(110 * S, "barrier 'x' on group 0: 10 s, ranks not arrived: 1");
    kit_tick(1900 * S - 1);
    reported("barrier 'x' on group 0: 1800.000 s, ranks not arrived: 1");
    kit_tick(1900 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, 1), "ranks not arrived within 1800 s: 1");
}

/* A late clock: one report, and the next at the next doubled time. */
static void test_late_tick_reports_once(void **state)
{
    (void)state;
    kit_start(2, 300, 1800);
    kit_join_world(0, 2);
    kit_joined(0, 1);
    kit_tick(145 * S + S / 2);
    reported("join of generation 1: 45.500 s, ranks not arrived: 1");
    kit_none();
    assert_int_equal(core_deadline_ns(kit.core), 180 * S);
}

/* Case C08: a subset of ranks submits. */
static void test_c08_missing_ranks_named_then_timeout(void **state)
{
    (void)state;
    kit_start(4, 300, 60);
    kit_join_all(4, 1);
    submit(2, 1, "x");
    kit.now_ns += S;
    submit(0, 1, "x");
    report_at(110 * S, "barrier 'x' on group 0: 10 s, ranks not arrived: 1, 3");
    submit(3, 1, "x");
    report_at(120 * S, "barrier 'x' on group 0: 20 s, ranks not arrived: 1");
    report_at(140 * S, "barrier 'x' on group 0: 40 s, ranks not arrived: 1");
    assert_int_equal(core_deadline_ns(kit.core), 160 * S);
    kit_tick(160 * S - 1);
    kit_none();
    kit_tick(160 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, 1), "barrier 'x' on group 0: ranks not arrived within 60 s: 1");
    reported("");
    kit_none();
    assert_int_equal(core_deadline_ns(kit.core), 460 * S); /* may form again until then */
}

/* Case T07: the join deadline of 1 s and the op deadline of 60 s each apply to their own thing. */
static void test_t07_each_timeout_for_its_own(void **state)
{
    (void)state;
    kit_start(2, 1, 60);
    kit_join_all(2, 1);
    submit(0, 1, "x");
    kit_tick(140 * S); /* a peer 40 s late */
    reported("barrier 'x' on group 0: 40 s, ranks not arrived: 1");
    submit(1, 1, "x");
    kit_next(CORE_EFF_LAUNCH);
    done(1);
    reported("");
    kit_none();
    kit.core = core_free(kit.core);

    /* Long to join, short for ops: what was submitted early waits from the last join on. */
    kit_start(2, 300, 5);
    kit_join_world(0, 2);
    kit_joined(0, 1);
    submit(0, 1, "x");
    kit_tick(130 * S);
    reported("join of generation 1: 30 s, ranks not arrived: 1");
    kit_join_world(1, 2);
    kit_joined(1, 1);
    reported("");
    assert_int_equal(core_deadline_ns(kit.core), 135 * S);
    kit_tick(135 * S);
    kit_fail(GW_E_TIMEOUT, 1);
}

static void test_launched_op_that_never_finishes(void **state)
{
    (void)state;
    kit_start(1, 300, 15);
    kit_join_all(1, 1);
    submit(0, 1, "x");
    kit_next(CORE_EFF_LAUNCH);
    report_at(110 * S, "barrier 'x' on group 0: 10 s, all ranks arrived, not finished");
    kit_tick(115 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, UINT32_MAX), "all ranks arrived, but it is not finished after "
                                                "15 s");
    reported("");
}

/* A reduction of the ZeRO layer was launched and waits for a token that is never raised. */
static void test_token_that_never_rises(void **state)
{
    (void)state;
    kit_start(2, 300, 15);
    kit_join_all(2, 1);
    kit_seal_all(2);
    fake.launches = true;
    kit_tell(0, WIRE_READY); /* at 100 s */
    kit_next(CORE_EFF_LAUNCH);
    kit.now_ns = 103 * S;
    kit_tell(1, WIRE_READY);
    kit_next(CORE_EFF_LAUNCH);
    assert_int_equal(fake.last_op, 2);
    done(2); /* on another stream: the first is still out */
    report_at(110 * S, "reduce-scatter of bucket 3 (step 12), after tokens of ranks 1: 10 s, all "
                       "ranks arrived, not finished");
    done(1);
    reported("");
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
    kit.now_ns = 200 * S;
    kit_tell(0, WIRE_READY);
    kit_next(CORE_EFF_LAUNCH);
    kit_tick(215 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, UINT32_MAX), "reduce-scatter of bucket 3 (step 12), after "
                                                "tokens of ranks 1: all ranks arrived");
}

/* The oldest wait is followed; when it ends, the next oldest, whose clock began when it did. */
static void test_oldest_wait_first(void **state)
{
    struct wire_msg group = {.u.group_new = {.count = 2, .ranks = (const uint32_t[]){0, 1}}};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    submit(0, 1, "first"); /* at 100 s */
    kit.now_ns = 104 * S;
    kit_ask(1, &group, WIRE_GROUP_NEW);
    report_at(110 * S, "barrier 'first' on group 0: 10 s, ranks not arrived: 1");
    kit.now_ns = 112 * S;
    submit(1, 1, "first");
    kit_next(CORE_EFF_LAUNCH);
    /* At 112 s the barrier runs since 112, the group waits since 104. */
    reported("");
    kit_none();
    done(1);
    report_at(114 * S, "new group of ranks [0, 1]: 10 s, ranks not arrived: 0");
}

/* Three ops wait for the same rank; when it comes late, the younger ones are not news. */
static void test_resolving_stall_is_one_stall(void **state)
{
    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    submit(0, 1, "a");
    kit.now_ns = 101 * S;
    submit(0, 2, "b");
    submit(0, 3, "c");
    report_at(110 * S, "barrier 'a' on group 0: 10 s, ranks not arrived: 1");
    kit.now_ns = 115 * S;
    submit(1, 1, "a");
    kit_next(CORE_EFF_LAUNCH);
    reported("");
    submit(1, 2, "b");
    kit_next(CORE_EFF_LAUNCH);
    kit_none();
    /* But if it stays away again, the next doubled time of the third op counts. */
    report_at(121 * S, "barrier 'c' on group 0: 20 s, ranks not arrived: 1");
}

static void test_seal_wait(void **state)
{
    const struct kit_param param = {"w", "", 8};
    const struct wire_seal seal = {.stage = 2, .bucket_bytes = 64};
    uint32_t request;

    (void)state;
    kit_start(3, 300, 30);
    kit_join_all(3, 1);
    kit_register(1, &param, 1);
    request = kit_seal(1, &seal);
    report_at(110 * S, "seal: 10 s, ranks not arrived: 0, 2");
    report_at(120 * S, "seal: 20 s, ranks not arrived: 0, 2");
    kit_tick(130 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, UINT32_MAX), "seal: ranks not arrived within 30 s: 0, 2");
    reported("");
    kit_done(1, request, GW_E_TIMEOUT, "seal");
    kit_none();
}

/* While the engine makes memory, nobody is late. */
static void test_building_is_no_stall(void **state)
{
    const struct kit_param param = {"w", "", 8};
    const struct wire_seal seal = {.stage = 2, .bucket_bytes = 64};

    (void)state;
    kit_start(1, 300, 30);
    kit_join_all(1, 1);
    kit_register(0, &param, 1);
    kit_seal(0, &seal);
    kit_next(CORE_EFF_BUILD);
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
}

static void test_zero_wait_in_its_words(void **state)
{
    (void)state;
    kit_start(2, 300, 100);
    kit_join_all(2, 1);
    kit_seal_all(2);
    fake.waits = true;
    fake.wait = (struct core_wait){.since_ns = 105 * S, .missing = {{2}},
                                   .text = "reduce-scatter of bucket 3 (step 12)"};
    kit.now_ns = 105 * S;
    kit_tell(0, WIRE_READY);
    report_at(115 * S, "reduce-scatter of bucket 3 (step 12): 10 s, ranks not arrived: 1");
    /* The same op of the next step is another wait. */
    fake.wait.since_ns = 116 * S;
    snprintf(fake.wait.text, sizeof(fake.wait.text), "reduce-scatter of bucket 3 (step 13)");
    kit.now_ns = 116 * S;
    kit_tell(0, WIRE_READY);
    reported("");
    kit_none();
    report_at(126 * S, "reduce-scatter of bucket 3 (step 13): 10 s, ranks not arrived: 1");
    kit_tick(216 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, 1),
            "reduce-scatter of bucket 3 (step 13): ranks not arrived within 100 s: 1");
}

static void test_broken_job_reports_nothing(void **state)
{
    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    submit(0, 1, "x");
    kit_tick(115 * S);
    kit_next(CORE_EFF_REPORT);
    kit_gone(CORE_EV_LOST, 1, "killed");
    kit_fail(GW_E_PEER_LOST, 1);
    reported("");
    kit_none();
    kit_tick(200 * S);
    kit_none();
    assert_int_equal(core_deadline_ns(kit.core), 415 * S);
    /* Forming again has its own clock. */
    kit_join_world(1, 2);
    kit_joined(1, 2);
    report_at(210 * S, "join of generation 2: 10 s, ranks not arrived: 0");
}

/* Deadlines near the end of time do not wrap. */
static void test_endless_timeouts(void **state)
{
    struct core_config config = {.world = 2, .join_timeout_ns = UINT64_MAX,
                                 .op_timeout_ns = UINT64_MAX, .stall_report_ns = UINT64_MAX};

    (void)state;
    kit_start(2, 1, 1);
    core_free(kit.core);
    assert_int_equal(core_new(&config, &kit.core), 0);
    kit_join_world(0, 2);
    kit_joined(0, 1);
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
    kit_tick(1ull << 62);
    kit_none();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_nothing_waits, kit_stop),
        cmocka_unit_test_teardown(test_join_is_reported_at_doubled_times, kit_stop),
        cmocka_unit_test_teardown(test_defaults, kit_stop),
        cmocka_unit_test_teardown(test_late_tick_reports_once, kit_stop),
        cmocka_unit_test_teardown(test_c08_missing_ranks_named_then_timeout, kit_stop),
        cmocka_unit_test_teardown(test_t07_each_timeout_for_its_own, kit_stop),
        cmocka_unit_test_teardown(test_launched_op_that_never_finishes, kit_stop),
        cmocka_unit_test_teardown(test_token_that_never_rises, kit_stop),
        cmocka_unit_test_teardown(test_oldest_wait_first, kit_stop),
        cmocka_unit_test_teardown(test_resolving_stall_is_one_stall, kit_stop),
        cmocka_unit_test_teardown(test_seal_wait, kit_stop),
        cmocka_unit_test_teardown(test_building_is_no_stall, kit_stop),
        cmocka_unit_test_teardown(test_zero_wait_in_its_words, kit_stop),
        cmocka_unit_test_teardown(test_broken_job_reports_nothing, kit_stop),
        cmocka_unit_test_teardown(test_endless_timeouts, kit_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
