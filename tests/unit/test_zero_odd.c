/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ZeRO layer is told things out of place, or asked at odd times: each is refused with a code
 * and a text, or changes nothing.
 */
#include "tests/unit/test_zero_fixture.h"

static void test_worlds_out_of_range(void **state)
{
    struct fx *fx = fx_new(1, 64, 64, 1);
    struct zero *none = NULL;

    (void)state;
    fx->options.scale = 0; /* the mean */
    fx_open(fx, 0, 128);
    assert_int_equal(zero_new(fx->layout, &fx->options, 0, false, 0, fx->effects, &none),
                     GW_E_INVALID);
    assert_int_equal(zero_new(fx->layout, &fx->options, 1025, false, 0, fx->effects, &none),
                     GW_E_INVALID);
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_GRADS, 63), 128 * 4);
    assert_int_equal(fx_bare(fx, 63, WIRE_STEP_END), 0);
    assert_int_equal(fx_count(fx, "RS"), 0); /* 63 others are missing */
    assert_int_equal(fx_bare(fx, 64, WIRE_STEP_END), GW_E_INTERNAL);
    fx_free(fx);
}

static void test_messages_that_mean_nothing(void **state)
{
    struct fx *fx = fx_new(3, 2, 4, 1);
    struct wire_msg msg = {.type = WIRE_READY};

    (void)state;
    fx_open(fx, 0, 4, 4, 4);
    assert_int_equal(fx_send(fx, 0, &msg), 0); /* no gradient in it */
    assert_int_equal(fx_bare(fx, 0, WIRE_HELLO), GW_E_INTERNAL);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 3), GW_E_INVALID);
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 3), GW_E_INVALID);
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 1), GW_E_STATE);
    msg = (struct wire_msg){.type = WIRE_FETCH,
                            .u.unit = {.after = {.tokens = GW_READY_TOKENS + 1}}};
    assert_int_equal(fx_send(fx, 1, &msg), GW_E_INVALID);
    msg.u.unit.after = fx_token(GW_TIMELINES_MAX, 1);
    assert_int_equal(fx_send(fx, 1, &msg), GW_E_INVALID);
    /* The last unit is still held: it is named. */
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 2), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), GW_E_STATE);
    assert_non_null(strstr(fx->fault.text, "p2"));
    fx_free(fx);
}

/* With streams, a gradient that does not exist does not wait for its buffer. */
static void test_gradients_that_do_not_exist(void **state)
{
    struct fx *fx = fx_new(1, 2, 4, 1);
    struct wire_ready_entry entry = {.param = 9};

    (void)state;
    fx->ordered = true;
    fx->options.accumulate = GW_ACCUMULATE_SHARD;
    fx_open(fx, 0, 4, 4);
    assert_int_equal(fx_ready_one(fx, 0, entry), GW_E_INVALID);
    entry = (struct wire_ready_entry){.param = 1, .piece = 7};
    assert_int_equal(fx_ready_one(fx, 0, entry), GW_E_INVALID);
    fx_free(fx);
}

static void test_many_unused_parameters(void **state)
{
    struct fx *fx = fx_new(0, 2, 4, 1);

    (void)state;
    fx->options.unused = GW_UNUSED_ERROR;
    fx_open(fx, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), GW_E_UNUSED);
    assert_non_null(strstr(fx->fault.text, "'p7' (7) and 3 more"));
    assert_null(strstr(fx->fault.text, "p8"));
    fx_free(fx);
}

static void test_too_many_slots_asked_for(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx_open(fx, 0, 4, 4, 4, 4);
    for (uint32_t b = 4; b-- > 1;)
        assert_int_equal(fx_ready(fx, 0, b, GW_GRAD_FINAL, 3 - b), 0);
    (void)fx_lines(fx);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(fx_acquire(fx, 0, 0), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_acquire(fx, 0, 0), 0);
    fx_expect(fx, "DONE@0 -8\n");
    assert_int_equal(fx_overflow(fx, 0, 0), 0); /* that nobody has asked for */
    assert_int_equal(fx_overflow(fx, 1, GW_E_NOMEM), 0);
    fx_expect(fx, "");
    fx_free(fx);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Durations 30, 10, 20 in the three passes, in any order: the middle one counts. */
static void measure(uint32_t stage, const uint64_t durations[3])
{
    struct fx *fx = fx_new(stage, 2, 4, 1);
    struct wire_msg stats = {0};

    fx->options.gather_bytes = 64;
    fx_open(fx, 0, 4, 4);
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    fx_expect(fx, "DONE@0 -10\n"); /* measures already */
    assert_int_equal(fx_request(fx, 1, WIRE_MEASURE), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), GW_E_STATE);
    while (fx->open_count) {
        uint32_t reductions =
            fx->launched[CORE_OP_REDUCE_SCATTER] + fx->launched[CORE_OP_ALL_REDUCE];

        fx_done(fx, fx->open[0], 100, 100 + durations[(reductions - 1) / 2 % 3]);
    }
    zero_stats(fx->zero, 0, &stats);
    /* Two buckets: reduced, and gathered once; in stage 3 forward and backward. */
    assert_int_equal(stats.u.stats.comm_alone_ns, 20 * (stage == 0 ? 2 : stage == 3 ? 6 : 4));
    zero_stats(fx->zero, 2, &stats); /* no such rank */
    fx_free(fx);
}

static void test_measured_times(void **state)
{
    static const uint64_t orders[][3] = {{30, 10, 20}, {10, 20, 30}, {20, 30, 10},
                                         {10, 30, 20}, {30, 20, 10}, {20, 10, 30}};

    (void)state;
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        measure(0, orders[i]);
        measure(1, orders[i]);
        measure(3, orders[i]);
    }
}

static void test_measuring_at_the_wrong_time(void **state)
{
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx_open(fx, 0, 4);
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    (void)fx_lines(fx);
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    fx_expect(fx, "DONE@0 -2\n");
    assert_non_null(strstr(fx->last_text, "neither updated nor gone on"));
    assert_int_equal(fx_ready(fx, 1, 0, GW_GRAD_FINAL, 0), 0);
    assert_int_equal(fx_request(fx, 1, WIRE_MEASURE), 0);
    assert_non_null(strstr(fx->last_text, "gradients declared"));
    fx_free(fx);
}

/* ---- parameters between steps ---------------------------------------------------------------- */

/* With streams, the end of an update may wait in the backlog; that begins no step. */
static void test_param_io_behind_a_waiting_commit(void **state)
{
    struct fx *fx = fx_new(1, 2, 4, 1);

    (void)state;
    fx->ordered = true;
    fx_open(fx, 0, 4, 4);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    (void)fx_lines(fx);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 1), 0); /* behind its own backlog */
    fx_expect(fx, "");
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 1), 0);
    fx_expect(fx, "DONE@1 -2\n"); /* rank 0 has declared its step's end */
    assert_int_equal(fx_ready(fx, 0, 0, GW_GRAD_FINAL, 0), 0);
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 1), 0);
    assert_non_null(strstr(fx->last_text, "rank 0 is in step 1 already"));
    assert_int_equal(fx_io(fx, 1, 0, 9, 0, 1), 0);
    assert_non_null(strstr(fx->last_text, "no such part"));
    fx_free(fx);
}

/* ---- after the generation has broken --------------------------------------------------------- */

static void test_late_updates(void **state)
{
    (void)state;
    for (uint32_t ordered = 0; ordered < 2; ordered++) {
        for (uint32_t what = 0; what < 5; what++) {
            struct fx *fx = fx_new(1, 2, 4, 1);
            bool torn = what == 1 || what == 3 || (ordered && what > 0);

            fx->ordered = ordered;
            fx_open(fx, 0, 4);
            fx_all(fx, WIRE_STEP_END);
            fx_all_done(fx);
            zero_late_update(fx->zero, 2, false); /* no such rank */
            if (what == 1 || what == 2) {
                assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
                assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
            }
            if (what == 3 || what == 4)
                zero_late_update(fx->zero, 0, false);
            for (uint32_t r = 0; r < 2 && (what == 2 || what == 4); r++)
                zero_late_update(fx->zero, r, true);
            /* Begun after the break: no window was told, so nothing was written. */
            if (!ordered && what == 3)
                torn = false;
            if (!ordered && what == 4)
                torn = fx_reattach(fx) < 0; /* one commit of two */
            else
                assert_int_equal(fx_reattach(fx), torn ? GW_E_TORN : 0);
            fx_free(fx);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worlds_out_of_range),
        cmocka_unit_test(test_messages_that_mean_nothing),
        cmocka_unit_test(test_gradients_that_do_not_exist),
        cmocka_unit_test(test_many_unused_parameters),
        cmocka_unit_test(test_too_many_slots_asked_for),
        cmocka_unit_test(test_measured_times),
        cmocka_unit_test(test_measuring_at_the_wrong_time),
        cmocka_unit_test(test_param_io_behind_a_waiting_commit),
        cmocka_unit_test(test_late_updates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
