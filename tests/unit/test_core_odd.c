/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core is asked, and told, things out of place: ranks that do not exist, events too early, too
 * late, twice or without their text. It answers, and nothing breaks.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/core.h"
#include "gradwire/errors.h"

static struct core *core;
static struct core_effect effect; /* large */
static char fail_text[GW_TEXT_MAX + 1];
static uint32_t fails, drops, ends, steps_done;
static int fail_code;

static void tell(struct core_event event)
{
    assert_int_equal(core_handle(core, 1000, &event), 0);
    while (core_next_effect(core, &effect)) {
        fails += effect.kind == CORE_EFF_FAIL;
        drops += effect.kind == CORE_EFF_DROP;
        ends += effect.kind == CORE_EFF_END;
        steps_done += effect.kind == CORE_EFF_LAUNCH && effect.op.kind == CORE_OP_VERDICT;
        if (effect.kind == CORE_EFF_FAIL) {
            fail_code = effect.code;
            memcpy(fail_text, effect.text, sizeof(fail_text));
        }
    }
}

static void ask(uint32_t rank, struct wire_msg msg, uint16_t type, uint32_t request)
{
    msg.type = type;
    msg.request = request;
    tell((struct core_event){.kind = CORE_EV_REQUEST, .rank = rank, .msg = &msg});
    if (core_unheard(core))
        tell((struct core_event){.kind = CORE_EV_HEARD});
}

static void start(uint32_t world, uint32_t device)
{
    struct core_config config = {.world = world, .device = device};

    core = NULL;
    fails = drops = ends = steps_done = 0;
    fail_code = 0;
    fail_text[0] = 0;
    assert_int_equal(core_new(&config, &core), 0);
}

static void join_all(uint32_t world)
{
    for (uint32_t r = 0; r < world; r++)
        tell((struct core_event){.kind = CORE_EV_JOIN, .rank = r, .request = 1, .world = world});
}

static void seal_all(uint32_t world, struct wire_seal seal)
{
    struct wire_param params[] = {{.name = "a", .unit = "", .numel = 8},
                                  {.name = "b", .unit = "", .numel = 8}};

    for (uint32_t r = 0; r < world; r++) {
        ask(r, (struct wire_msg){.u.reg = {.total = 2, .count = 2, .params = params}},
            WIRE_REGISTER, 2);
        ask(r, (struct wire_msg){.u.seal = seal}, WIRE_SEAL, 3);
    }
    tell((struct core_event){.kind = CORE_EV_BUILT});
}

static int stop(void **state)
{
    (void)state;
    core = core_free(core);
    return 0;
}

static void test_no_job_of_these_sizes(void **state)
{
    struct core_config none = {.world = 0}, many = {.world = GW_RANKS_MAX + 1};

    (void)state;
    assert_int_equal(core_new(&none, &core), GW_E_INVALID);
    assert_int_equal(core_new(&many, &core), GW_E_INVALID);
    assert_null(core_free(NULL));
    core = NULL;
}

static void test_ranks_that_do_not_exist(void **state)
{
    static const enum core_event_kind kinds[] = {CORE_EV_LEAVE, CORE_EV_LOST, CORE_EV_REQUEST,
                                                 CORE_EV_OVERFLOW, CORE_EV_BUFFER};
    struct wire_msg msg = {.type = WIRE_STEP_END};

    (void)state;
    start(2, GW_DEVICE_HOST);
    join_all(2);
    for (uint32_t round = 0; round < 2; round++) {
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
            tell((struct core_event){.kind = kinds[k], .rank = 2 + 1000 * round, .msg = &msg});
        tell((struct core_event){.kind = CORE_EV_REQUEST, .rank = 0, .msg = NULL});
        tell((struct core_event){.kind = CORE_EV_OP_DONE, .op = 77});
        tell((struct core_event){.kind = CORE_EV_OVERFLOW, .rank = 0});
        tell((struct core_event){.kind = CORE_EV_TICK});
        if (round == 0)
            seal_all(2, (struct wire_seal){.stage = 2, .bucket_bytes = 64});
    }
    assert_int_equal(fails + drops, 0);
    assert_int_equal(core_present(core)->word[0], 3);
}

static void test_asked_before_there_is_a_layout(void **state)
{
    struct wire_msg msg = {0};
    uint64_t count = 9;

    (void)state;
    start(2, GW_DEVICE_CUDA);
    assert_null(core_layout(core));
    assert_int_equal(core_steps(core), 0);
    assert_int_equal(core_arena_bytes(core, GW_ARENA_PARAMS, 0), 0);
    assert_int_equal(core_param_slice(core, 0, 0).kind, GW_ARENA_NONE);
    assert_int_equal(core_master_slice(core, 0, 0).kind, GW_ARENA_NONE);
    assert_int_equal(core_secondary_slice(core, 0, 0).kind, GW_ARENA_NONE);
    assert_int_equal(core_param_ref(core, 0, 0, 0, &count).kind, GW_ARENA_NONE);
    assert_int_equal(count, 0);
    assert_int_equal(core_master_ref(core, 0, 0, 0, &count).kind, GW_ARENA_NONE);
    assert_int_equal(count, 0);
    assert_int_equal(core_gathered(core, 0, 0), 0);
    core_stats(core, 0, &msg);
    assert_int_equal(msg.u.stats.steps, 0);
    join_all(2);
    seal_all(2, (struct wire_seal){.stage = 1, .bucket_bytes = 64});
    assert_non_null(core_layout(core));
    assert_int_equal(core_arena_bytes(core, GW_ARENA_VERDICT, 0),
                     sizeof(struct gw_shm_verdict) + 1); /* bits of a few parameters */
    assert_int_equal(core_arena_bytes(core, GW_ARENA_VERDICT, 2), 0);
    assert_int_equal(core_arena_bytes(core, GW_ARENA_VERDICT, -1), 0);
    assert_int_equal(core_param_slice(core, 0, 1).kind, GW_ARENA_PARAMS);
    assert_int_equal(core_param_slice(core, 0, 2).kind, GW_ARENA_NONE);
    assert_int_equal(core_master_slice(core, 0, 1).kind, GW_ARENA_PARAMS);
    assert_int_equal(core_master_slice(core, 1, 0).kind, GW_ARENA_NONE);
    assert_int_equal(core_secondary_slice(core, 0, 1).kind, GW_ARENA_NONE);
    assert_int_equal(core_param_ref(core, 1, 2, 1, &count).kind, GW_ARENA_PARAMS);
    assert_int_equal(core_master_ref(core, 1, 2, 0, &count).kind, GW_ARENA_PARAMS);
    assert_int_equal(core_gathered(core, 0, 0), 0);
    core_stats(core, 7, &msg);
}

/* A device that failed ends the job; what comes after changes nothing. */
static void test_device_lost(void **state)
{
    static const char *const texts[] = {NULL, "", "GPU 3 fell off"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        start(1, GW_DEVICE_HOST);
        join_all(1);
        tell((struct core_event){.kind = CORE_EV_DEVICE_LOST,
                                 .code = i == 2 ? GW_E_NOMEM : 0,
                                 .text = texts[i]});
        assert_int_equal(fails, 1);
        assert_int_equal(ends, 1);
        assert_int_equal(fail_code, i == 2 ? GW_E_NOMEM : GW_E_DEVICE);
        assert_string_equal(fail_text, i == 2 ? "GPU 3 fell off" : "a device failed");
        tell((struct core_event){.kind = CORE_EV_DEVICE_LOST});
        tell((struct core_event){.kind = CORE_EV_OP_DONE, .op = 1});
        tell((struct core_event){.kind = CORE_EV_LOST, .rank = 0});
        tell((struct core_event){.kind = CORE_EV_JOIN, .rank = 0, .request = 9, .world = 1});
        assert_int_equal(fails, 1);
        core = core_free(core);
    }
}

static void test_lost_without_a_reason(void **state)
{
    static const char *const texts[] = {NULL, "", "it was killed"};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        start(2, GW_DEVICE_HOST);
        join_all(2);
        seal_all(2, (struct wire_seal){.stage = 0, .bucket_bytes = 64});
        ask(0, (struct wire_msg){.u.after = {0}}, WIRE_STEP_END, 0);
        tell((struct core_event){.kind = CORE_EV_LOST, .rank = 1, .text = texts[i]});
        assert_int_equal(fail_code, GW_E_PEER_LOST);
        assert_non_null(strstr(fail_text, i == 2 ? "killed" : "connection closed"));
        /* Too late for a generation that has ended. */
        tell((struct core_event){.kind = CORE_EV_OVERFLOW, .rank = 0});
        tell((struct core_event){.kind = CORE_EV_OP_DONE, .op = 1});
        assert_int_equal(fails, 1);
        core = core_free(core);
    }
}

/* Who waits for the measurement, or for staging, of a rank that left is told. */
static void test_leaving_while_others_wait(void **state)
{
    (void)state;
    for (uint32_t what = 0; what < 4; what++) {
        start(2, GW_DEVICE_HOST);
        join_all(2);
        seal_all(2, (struct wire_seal){.stage = 1, .bucket_bytes = 64});
        if (what == 0)
            ask(0, (struct wire_msg){0}, WIRE_MEASURE, 5);
        for (uint32_t r = 0; r < 2 && what > 0; r++)
            ask(r, (struct wire_msg){.u.after = {0}}, WIRE_STEP_END, 0);
        if (what > 0)
            ask(what == 3 ? 0 : 1, (struct wire_msg){0}, WIRE_UPDATE_BEGIN, 0);
        if (what == 3)
            ask(0, (struct wire_msg){.u.after = {0}}, WIRE_UPDATE_COMMIT, 0);
        if (what > 0)
            ask(0, (struct wire_msg){.u.param_io = {.param = 0, .count = 1}}, WIRE_PARAM_IO, 6);
        if (what == 2)
            ask(0, (struct wire_msg){.u.unit = {.unit = 0}}, WIRE_FETCH, 0);
        tell((struct core_event){.kind = CORE_EV_LEAVE, .rank = 1});
        assert_int_equal(fails, 1);
        assert_int_equal(fail_code, GW_E_PEER_LOST);
        assert_non_null(strstr(fail_text, "rank 1 has left"));
        core = core_free(core);
    }
}

/* Ops that are never reported done: more than the table of flights begins with. */
static void test_many_ops_in_flight(void **state)
{
    (void)state;
    start(2, GW_DEVICE_CUDA);
    join_all(2);
    seal_all(2, (struct wire_seal){.stage = 1, .bucket_bytes = 64});
    for (uint32_t step = 0; step < 400; step++) {
        for (uint32_t r = 0; r < 2; r++) {
            struct wire_ready_entry entry = {.param = 0};

            ask(r, (struct wire_msg){.u.ready = {1, &entry}}, WIRE_READY, 0);
            ask(r, (struct wire_msg){.u.after = {0}}, WIRE_STEP_END, 0);
        }
    }
    assert_int_equal(steps_done, 400);
    assert_int_equal(fails, 0);
    for (uint64_t op = 1; op < 4000; op += 3)
        tell((struct core_event){.kind = CORE_EV_OP_DONE, .op = op, .started_ns = 9, .done_ns = 3});
    for (uint64_t op = 1; op < 4000; op++)
        tell((struct core_event){.kind = CORE_EV_OP_DONE, .op = op, .started_ns = 1, .done_ns = 3});
    assert_int_equal(fails, 0);
}

static void test_numbers_that_are_none(void **state)
{
    static const struct {
        double scale, clip;
    } rows[] = {{INFINITY, 0}, {1e300, 0}, {NAN, 0}, {1, INFINITY}, {1, -1}, {1, NAN}, {1, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        start(1, GW_DEVICE_HOST);
        join_all(1);
        seal_all(1, (struct wire_seal){.stage = 1,
                                       .bucket_bytes = 64,
                                       .scale = rows[i].scale,
                                       .clip_norm = rows[i].clip});
        assert_int_equal(core_layout(core) != NULL, i + 1 == sizeof(rows) / sizeof(rows[0]));
        core = core_free(core);
    }
}

/* ---- lists that differ ----------------------------------------------------------------------- */

static void register_list(uint32_t rank, uint32_t count, uint32_t changed, uint32_t flags)
{
    static char names[24][GW_NAME_MAX + 1];
    static struct wire_param params[24];

    for (uint32_t i = 0; i < count; i++) {
        memset(names[i], 'a' + (int)i, GW_NAME_MAX);
        names[i][0] = i == changed && !flags ? '!' : names[i][0];
        params[i] = (struct wire_param){.name = names[i], .unit = "", .numel = 4,
                                        .flags = i == changed ? flags : 0};
    }
    ask(rank, (struct wire_msg){.u.reg = {.total = count, .count = count, .params = params}},
        WIRE_REGISTER, 2);
    ask(rank, (struct wire_msg){.u.seal = {.stage = 0, .bucket_bytes = 64}}, WIRE_SEAL, 3);
}

/* Long names, flags, and names beyond those that are shown: all differences are refused. */
static void test_lists_that_differ(void **state)
{
    static const struct {
        uint32_t count, changed, flags;
    } rows[] = {{24, 3, 1}, {24, 5, 0}, {24, 23, 0}, {20, 99, 0}, {1, 99, 0}, {24, 99, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        start(2, GW_DEVICE_HOST);
        join_all(2);
        register_list(0, 24, 99, 0);
        register_list(1, rows[i].count, rows[i].changed, rows[i].flags);
        tell((struct core_event){.kind = CORE_EV_BUILT});
        assert_int_equal(core_layout(core) != NULL, i + 1 == sizeof(rows) / sizeof(rows[0]));
        core = core_free(core);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_job_of_these_sizes),
        cmocka_unit_test_teardown(test_ranks_that_do_not_exist, stop),
        cmocka_unit_test_teardown(test_asked_before_there_is_a_layout, stop),
        cmocka_unit_test(test_device_lost),
        cmocka_unit_test(test_lost_without_a_reason),
        cmocka_unit_test(test_leaving_while_others_wait),
        cmocka_unit_test(test_numbers_that_are_none),
        cmocka_unit_test(test_lists_that_differ),
        cmocka_unit_test_teardown(test_many_ops_in_flight, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
