/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership in virtual time: joining and its refusals, generations, ranks that leave or die, the
 * join deadline, and clients that break the protocol.
 */
#include "tests/unit/test_core_kit.h"

static void test_all_join_then_ready(void **state)
{
    uint32_t early, late;

    (void)state;
    kit_start(2, 300, 1800);
    assert_int_equal(core_state(kit.core), GW_JOB_FORMING);
    kit_join_world(0, 2);
    kit_joined(0, 1);
    early = kit_ask_empty(0, WIRE_WAIT_READY);
    kit_none();
    assert_int_equal(core_present(kit.core)->word[0], 1);
    kit_join_world(1, 2);
    kit_joined(1, 1);
    kit_done(0, early, 0, "");
    late = kit_ask_empty(1, WIRE_WAIT_READY);
    kit_done(1, late, 0, "");
    kit_none();
    assert_int_equal(core_present(kit.core)->word[0], 3);
    assert_int_equal(core_generation(kit.core), 1);
}

/* Case C05: a client says world 1 where the job has 8. */
static void test_c05_other_world_names_both(void **state)
{
    (void)state;
    kit_start(8, 300, 1800);
    kit_join_world(0, 8);
    kit_joined(0, 1);
    kit_join_world(0, 1);
    kit_has(kit.effects[kit.read].reply.u.done.text, "has 1 ranks");
    kit_done(0, kit.request, GW_E_INVALID, "creator said 8");
    kit_none();
    assert_int_equal(core_present(kit.core)->word[0], 1);
}

static void test_refused_ranks(void **state)
{
    (void)state;
    kit_start(4, 300, 1800);
    kit_join_world(2, 4);
    kit_joined(2, 1);
    kit_join_world(4, 4);
    kit_done(4, kit.request, GW_E_INVALID, "rank 4 does not exist in a job of 4 ranks");
    kit_join_world(2, 4);
    assert_int_equal(kit.effects[kit.read].index, 1);
    kit_done(2, kit.request, GW_E_DUPLICATE, "rank 2 is taken");
    kit_none();
    assert_int_equal(core_present(kit.core)->word[0], 4);
}

static void test_join_deadline_names_missing(void **state)
{
    uint32_t ready;

    (void)state;
    kit_start(5, 3, 1800);
    kit.now_ns = 50 * S; /* virtual time starts with the first event */
    kit_join_world(1, 5);
    kit_joined(1, 1);
    ready = kit_ask_empty(1, WIRE_WAIT_READY);
    kit.now_ns = 51 * S;
    kit_join_world(3, 5);
    kit_joined(3, 1);
    assert_int_equal(core_deadline_ns(kit.core), 53 * S);
    kit_tick(53 * S - 1);
    kit_none();
    kit_tick(53 * S);
    kit_has(kit_fail(GW_E_TIMEOUT, UINT32_MAX), "not arrived within 3 s: 0, 2, 4");
    kit_done(1, ready, GW_E_TIMEOUT, "0, 2, 4");
    kit_none();
    assert_int_equal(core_state(kit.core), GW_JOB_BROKEN);
    /* Nobody joins again: the engine may end, exactly one join deadline later. */
    assert_int_equal(core_deadline_ns(kit.core), 56 * S);
    kit_tick(56 * S - 1);
    kit_none();
    kit_tick(56 * S);
    kit_next(CORE_EFF_END);
    kit_none();
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
    kit_join_world(0, 5);
    kit_done(0, kit.request, GW_E_STATE, "the job has ended");
}

static void test_lost_fails_at_once(void **state)
{
    uint32_t request;

    (void)state;
    kit_start(3, 300, 1800);
    kit_join_all(3, 1);
    kit_gone(CORE_EV_LOST, 1, "killed by signal 9");
    request = kit.request;
    kit_has(kit_fail(GW_E_PEER_LOST, 1), "rank 1 is gone (killed by signal 9)");
    kit_none();
    assert_int_equal(request, kit.request);
    assert_int_equal(core_state(kit.core), GW_JOB_BROKEN);
    assert_int_equal(core_present(kit.core)->word[0], 5);
    /* Everything asked now is answered with the job's error, one-way messages are not. */
    kit_done(0, kit_ask_empty(0, WIRE_WAIT_READY), GW_E_PEER_LOST, "rank 1 is gone");
    kit_tell(0, WIRE_STEP_END);
    kit_none();
    /* The next death is no news. */
    kit_gone(CORE_EV_LOST, 2, "end of file");
    kit_none();
}

static void test_lost_answers_open_requests(void **state)
{
    const struct kit_param param = {"w", "", 8};
    const struct wire_seal seal = {.stage = 0, .bucket_bytes = 64};
    struct wire_msg group = {.u.group_new = {.count = 2, .ranks = (const uint32_t[]){0, 1}}};
    uint32_t sealing, grouping;

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_register(0, &param, 1);
    sealing = kit_seal(0, &seal);
    grouping = kit_ask(0, &group, WIRE_GROUP_NEW);
    kit_none();
    kit_gone(CORE_EV_LOST, 1, "killed");
    kit_fail(GW_E_PEER_LOST, 1);
    kit_done(0, sealing, GW_E_PEER_LOST, "rank 1");
    kit_done(0, grouping, GW_E_PEER_LOST, "rank 1");
    kit_none();
}

static void test_rejoin_is_next_generation(void **state)
{
    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_gone(CORE_EV_LOST, 1, "killed");
    kit_fail(GW_E_PEER_LOST, 1);
    /* The lost rank comes back: nobody to drop. */
    kit_join_world(1, 2);
    kit_joined(1, 2);
    kit_none();
    assert_int_equal(core_state(kit.core), GW_JOB_FORMING);
    assert_int_equal(core_present(kit.core)->word[0], 2);
    /* Rank 0's old client still hears why its generation ended. */
    kit_done(0, kit_ask_empty(0, WIRE_WAIT_READY), GW_E_PEER_LOST, "rank 1");
    /* Its new one takes its place. */
    kit_join_world(0, 2);
    assert_int_equal(kit_next(CORE_EFF_DROP)->rank, 0);
    kit_joined(0, 2);
    kit_done(0, kit_ask_empty(0, WIRE_WAIT_READY), 0, "");
    kit_none();
    assert_int_equal(core_present(kit.core)->word[0], 3);
    assert_int_equal(core_generation(kit.core), 2);
}

/* An old client that goes away after others formed the next generation harms nobody. */
static void test_old_client_leaves_quietly(void **state)
{
    (void)state;
    kit_start(3, 300, 1800);
    kit_join_all(3, 1);
    kit_gone(CORE_EV_LOST, 2, "killed");
    kit_fail(GW_E_PEER_LOST, 2);
    kit_join_world(2, 3);
    kit_joined(2, 2);
    kit_gone(CORE_EV_LOST, 0, "exit");
    kit_gone(CORE_EV_LEAVE, 1, NULL);
    kit_none();
    kit_join_world(0, 3);
    kit_joined(0, 2);
    kit_join_world(1, 3);
    kit_joined(1, 2);
    kit_none();
    assert_int_equal(core_present(kit.core)->word[0], 7);
}

static void test_clean_leave_of_unneeded_rank(void **state)
{
    struct wire_msg op = {.type = WIRE_OP};

    (void)state;
    kit_start(3, 300, 1800);
    kit_join_all(3, 1);
    kit_gone(CORE_EV_LEAVE, 1, NULL);
    kit_gone(CORE_EV_LOST, 1, "end of file"); /* its socket closes after it */
    kit_none();
    /* It cannot come back while the others run. */
    kit_join_world(1, 3);
    kit_done(1, kit.request, GW_E_STATE, "rank 1 has left generation 1");
    /* An op of the world needs it again. */
    op.u.op.kind = WIRE_OP_BARRIER;
    op.u.op.sequence = 1;
    kit_send(0, &op);
    kit_has(kit_fail(GW_E_PEER_LOST, 1), "ranks that have left the job: 1");
    kit_none();
}

static void test_leave_while_others_wait(void **state)
{
    struct wire_msg op = {.type = WIRE_OP};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    op.u.op.kind = WIRE_OP_BARRIER;
    op.u.op.sequence = 1;
    kit_send(0, &op);
    kit_none();
    kit_tell(1, WIRE_LEAVE);
    kit_has(kit_fail(GW_E_PEER_LOST, 1), "rank 1 has left the job, but others wait for it in a "
                                         "collective");
}

static void test_leave_while_zero_needs_it(void **state)
{
    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_seal_all(2);
    kit_gone(CORE_EV_LEAVE, 0, NULL); /* not needed now */
    kit_none();
    fake.needs = 1; /* rank 1's next message shows that it goes on */
    kit_tell(1, WIRE_STEP_END);
    kit_has(kit_fail(GW_E_PEER_LOST, 0), "rank 0 has left the job");
}

static void test_all_leave_then_lingering(void **state)
{
    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_gone(CORE_EV_LEAVE, 0, NULL);
    kit_gone(CORE_EV_LEAVE, 1, NULL);
    kit_none();
    assert_int_equal(core_state(kit.core), GW_JOB_LINGERING);
    assert_true(core_over(kit.core));
    assert_true(core_deadline_ns(kit.core) == UINT64_MAX);
    kit_join_world(1, 2);
    kit_joined(1, 2);
    assert_int_equal(core_state(kit.core), GW_JOB_FORMING);
}

static void test_leave_while_forming_frees_the_rank(void **state)
{
    (void)state;
    kit_start(3, 300, 1800);
    kit_join_world(0, 3);
    kit_joined(0, 1);
    kit_join_world(1, 3);
    kit_joined(1, 1);
    kit_gone(CORE_EV_LEAVE, 1, NULL);
    kit_none();
    kit_join_world(1, 3);
    kit_joined(1, 1);
    kit_join_world(2, 3);
    kit_joined(2, 1);
    kit_done(0, kit_ask_empty(0, WIRE_WAIT_READY), 0, "");
}

static void test_wrong_message_drops_the_client(void **state)
{
    static const struct {
        uint16_t type;
        uint32_t request;
        const char *text;
    } rows[] = {
        {WIRE_WELCOME, 0, "WELCOME"},      {WIRE_SEALED, 7, "SEALED"},
        {WIRE_JOIN, 7, "JOIN"},            {WIRE_JOB_CREATE, 7, "JOB_CREATE"},
        {WIRE_ENGINE_STOP, 0, "ENGINE_STOP"}, {777, 7, "777"},
        {WIRE_SEAL, 0, "without a request number"}, {WIRE_STEP_END, 7, "is one-way"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wire_msg msg = {.type = rows[i].type, .request = rows[i].request};
        struct core_effect *effect;

        kit_start(2, 300, 1800);
        kit_join_all(2, 1);
        kit_send(1, &msg);
        effect = kit_next(CORE_EFF_DROP);
        assert_int_equal(effect->rank, 1);
        assert_int_equal(effect->code, GW_E_PROTOCOL);
        kit_has(effect->text, rows[i].text);
        kit_has(kit_fail(GW_E_PEER_LOST, 1), "broke the protocol");
        kit_gone(CORE_EV_LOST, 1, "end of file"); /* the engine closed it */
        kit_none();
        assert_int_equal(core_present(kit.core)->word[0], 1);
        core_free(kit.core);
    }
    kit.core = NULL;
}

static void test_request_numbers_and_their_limit(void **state)
{
    struct wire_msg again = {.type = WIRE_WAIT_READY};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_world(0, 2);
    kit_joined(0, 1);
    for (uint32_t i = 0; i < 64; i++)
        kit_ask_empty(0, WIRE_WAIT_READY);
    kit_none();
    kit_done(0, kit_ask_empty(0, WIRE_WAIT_READY), GW_E_LIMIT, "64 requests of rank 0");
    again.request = kit.request - 1; /* still open */
    kit_send(0, &again);
    kit_has(kit_next(CORE_EFF_DROP)->text, "still waits for its reply");
    kit_fail(GW_E_PEER_LOST, 0);
    kit_none();
}

static void test_world_of_one(void **state)
{
    (void)state;
    kit_start(1, 300, 1800);
    kit_join_all(1, 1);
    kit_done(0, kit_ask_empty(0, WIRE_WAIT_READY), 0, "");
    kit_gone(CORE_EV_LOST, 0, "killed");
    kit_fail(GW_E_PEER_LOST, 0);
    assert_int_equal(core_state(kit.core), GW_JOB_LINGERING);
    assert_false(core_over(kit.core)); /* it may come back */
    kit_join_all(1, 2);
    kit_gone(CORE_EV_LEAVE, 0, NULL);
    assert_true(core_over(kit.core));
}

/* A client of no rank, or of a rank that does not exist, changes nothing. */
static void test_stray_events(void **state)
{
    struct wire_msg msg = {.type = WIRE_SEAL, .request = 5};

    (void)state;
    kit_start(2, 300, 1800);
    kit_gone(CORE_EV_LOST, 0, "x");
    kit_gone(CORE_EV_LEAVE, 9, NULL);
    kit_send(1, &msg);
    kit_send(64, &msg);
    kit_built(0, NULL);
    kit_none();
    assert_int_equal(core_state(kit.core), GW_JOB_FORMING);
}

static void test_lost_memory_ends_the_job(void **state)
{
    struct core_event event = {.kind = CORE_EV_DEVICE_LOST, .code = GW_E_IO, .text = "device 3"};

    (void)state;
    kit_start(1, 300, 1800);
    kit_join_all(1, 1);
    kit_event(&event);
    kit_has(kit_fail(GW_E_IO, UINT32_MAX), "device 3");
    kit_next(CORE_EFF_END);
    kit_none();
}

static void test_configuration(void **state)
{
    struct core_config config = {.world = 0};
    struct core *core = NULL;

    (void)state;
    assert_int_equal(core_new(&config, &core), GW_E_INVALID);
    config.world = 1025;
    assert_int_equal(core_new(&config, &core), GW_E_INVALID);
    config.world = 1024;
    assert_int_equal(core_new(&config, &core), 0);
    assert_null(core_free(core));
    assert_null(core_free(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_all_join_then_ready, kit_stop),
        cmocka_unit_test_teardown(test_c05_other_world_names_both, kit_stop),
        cmocka_unit_test_teardown(test_refused_ranks, kit_stop),
        cmocka_unit_test_teardown(test_join_deadline_names_missing, kit_stop),
        cmocka_unit_test_teardown(test_lost_fails_at_once, kit_stop),
        cmocka_unit_test_teardown(test_lost_answers_open_requests, kit_stop),
        cmocka_unit_test_teardown(test_rejoin_is_next_generation, kit_stop),
        cmocka_unit_test_teardown(test_old_client_leaves_quietly, kit_stop),
        cmocka_unit_test_teardown(test_clean_leave_of_unneeded_rank, kit_stop),
        cmocka_unit_test_teardown(test_leave_while_others_wait, kit_stop),
        cmocka_unit_test_teardown(test_leave_while_zero_needs_it, kit_stop),
        cmocka_unit_test_teardown(test_all_leave_then_lingering, kit_stop),
        cmocka_unit_test_teardown(test_leave_while_forming_frees_the_rank, kit_stop),
        cmocka_unit_test_teardown(test_wrong_message_drops_the_client, kit_stop),
        cmocka_unit_test_teardown(test_request_numbers_and_their_limit, kit_stop),
        cmocka_unit_test_teardown(test_world_of_one, kit_stop),
        cmocka_unit_test_teardown(test_stray_events, kit_stop),
        cmocka_unit_test_teardown(test_lost_memory_ends_the_job, kit_stop),
        cmocka_unit_test(test_configuration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
