/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of stage 3's gathers: units that are kept from one residency to the next. */
#include "tests/unit/test_prefetch_kit.h"

/* On the way back, 4 comes at once and 3 after 4's twenty elements; 2 after forty. */
static void units_needed_soon_are_kept(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10, 10};
    struct plan *plan = open_reuse(numels, 5, 5, 50, 0, 21);

    (void)state;
    pass(plan, 5); /* no order to follow yet */
    assert_string_equal(log_of(plan), "d0 d1 d2 d3 d4 d4 d3 d2 d1 d0");
    prefetch_step_end(plan->plan);
    for (uint32_t step = 1; step < 4; step++) {
        pass(plan, 5);
        assert_string_equal(log_of(plan), "d0 d1 d2 d3 d4 d2 d1 d0");
        prefetch_step_end(plan->plan);
        assert_figures(plan, 2 * step, 10 + 8 * step, 0);
    }
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_max, 20 * 4); /* 3, kept, and 4 */
    close_plan(plan);
    plan = open_reuse(numels, 5, 5, 50, 0, 20); /* less than so many */
    for (uint32_t step = 0; step < 2; step++) {
        pass(plan, 5);
        prefetch_step_end(plan->plan);
    }
    assert_figures(plan, 1, 19, 0);
    close_plan(plan);
}

/* A budget of three units: what is kept neither stops the prefetch nor is what is needed last. */
static void kept_units_give_way_the_one_needed_last_first(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10, 10};
    struct plan *plan = open_reuse(numels, 5, 5, 30, 10, 1000);

    (void)state;
    pass(plan, 5);
    prefetch_step_end(plan->plan);
    log_of(plan);
    pass(plan, 5);
    assert_string_equal(log_of(plan), "d0 a1 a2 a3 a4 a1 a0");
    prefetch_step_end(plan->plan);
    assert_figures(plan, 9, 11, 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_max, 30 * 4);
    close_plan(plan);
}

/* Beyond the budget nothing is kept, and a fetch that was not foreseen takes what is. */
static void kept_units_give_way_to_fetches(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10};
    struct plan *plan = open_reuse(numels, 4, 10, 20, 0, 1000);

    (void)state;
    use(plan, 0);
    use(plan, 1);
    use(plan, 0);
    prefetch_step_end(plan->plan);
    log_of(plan);
    use(plan, 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 40); /* kept */
    use(plan, 3);                                                /* no such order: not kept */
    assert_int_equal(fetch(plan, 2), 1);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 80);
    assert_int_equal(fetch(plan, 1), 1);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 80); /* 2 and 1: 0 went */
    assert_int_equal(fetch(plan, 3), 1);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 120);
    release(plan, 1);
    release(plan, 2);
    release(plan, 3);
    prefetch_step_end(plan->plan);
    assert_figures(plan, 0, 3 + 5, 0);
    close_plan(plan);
}

/* More is held than the budget allows: nothing is kept on top. */
static void nothing_is_kept_beyond_the_budget(void **state)
{
    static const uint64_t numels[] = {10, 10};
    struct plan *plan = open_reuse(numels, 2, 10, 10, 0, 1000);

    (void)state;
    for (uint32_t step = 0; step < 2; step++) {
        for (uint32_t i = 0; i < 2; i++) {
            assert_true(fetch(plan, 0) >= 0);
            assert_true(fetch(plan, 1) >= 0);
            release(plan, 0);
            release(plan, 1);
        }
        prefetch_step_end(plan->plan);
    }
    /* Of the second step, 0 ends (20 are there) and 1 is kept: 1, by then alone in the budget, is
     * fetched after 0. */
    assert_string_equal(log_of(plan), "d0 d1 d0 d1 d0 d1 d0 d1");
    close_plan(plan);
}

/* Of a budget of 30 elements 10 are held: giving up what is kept, 10, makes no room for the 25 that
 * come before it in the order. */
static void what_is_kept_is_not_given_up_where_the_budget_is_too_small(void **state)
{
    static const uint64_t numels[] = {10, 10, 25};
    struct plan *plan = open_reuse(numels, 3, 1, 30, 25, 1000);

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        use(plan, (const uint32_t[]){0, 1, 2, 0}[i]);
    prefetch_step_end(plan->plan);
    use(plan, 0); /* kept: 35 until it is fetched again */
    assert_true(fetch(plan, 1) >= 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, (10 + 10) * 4);
    log_of(plan);
    release(plan, 1); /* now it does */
    assert_string_equal(log_of(plan), "a2");
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 25 * 4);
    close_plan(plan);
}

/* A pool of 16 elements, 12 and the largest. Units of 1 and 3 alternate in it; those of 1 are held.
 */
static struct plan *open_pieces(void)
{
    static const uint64_t numels[] = {1, 3, 1, 3, 1, 3, 1, 3, 4};
    struct plan *plan = open_reuse(numels, 9, 1, 12, 4, 1000);

    for (uint32_t u = 0; u < 8; u++)
        assert_int_equal(fetch(plan, u), 1);
    for (uint32_t u = 0; u < 8; u++)
        release(plan, u);
    use(plan, 8);
    use(plan, 1);
    prefetch_step_end(plan->plan);
    for (uint32_t u = 0; u < 8; u++)
        assert_true(fetch(plan, u) >= 0);
    for (uint32_t u = 8; u-- > 0;) {
        if (u % 2) /* 1 last: it is kept */
            release(plan, u);
    }
    return plan;
}

static void what_is_kept_is_not_given_up_where_the_pool_is_in_pieces(void **state)
{
    struct plan *plan = open_pieces();

    (void)state;
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, (4 + 3) * 4);
    assert_int_equal(fetch(plan, 1), 0);
    close_plan(plan);
}

static void what_is_free_may_be_in_pieces(void **state)
{
    struct plan *plan = open_pieces();
    struct pool_room room;

    (void)state;
    assert_int_equal(fetch(plan, 8), GW_E_BUDGET); /* 8 of the budget's 12 elements with it */
    room = prefetch_room(plan->plan);
    assert_int_equal(room.free_bytes, 12 * 4);
    assert_int_equal(room.gap_bytes, 3 * 4);
    log_of(plan);
    release(plan, 0); /* it lay beside a gap */
    assert_string_equal(log_of(plan), "a8");
    close_plan(plan);
}

/* D01: the second of three is used in every other step. Never fatal; what is kept unused goes at
 * the step's end and is nobody's misjudgement. */
static void test_d01_a_toggled_unit(void **state)
{
    static const uint64_t numels[] = {10, 10, 10};
    struct plan *plan = open_reuse(numels, 3, 10, 100, 20, 1000);
    uint32_t before = 0;

    (void)state;
    for (uint32_t step = 0; step < 12; step++) {
        before = plan->gathers;
        use(plan, 0);
        if (step % 2 == 0)
            use(plan, 1);
        use(plan, 2);
        use(plan, 2);
        if (step % 2 == 0)
            use(plan, 1);
        use(plan, 0);
        prefetch_step_end(plan->plan);
        assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
        if (step > 3) /* both are known: forward gathers, back reuses */
            assert_int_equal(plan->gathers - before, step % 2 == 0 ? 3 : 2);
    }
    close_plan(plan);
}

/* D07: a module called twice, more prefetch and reuse than budget. */
static void test_d07_the_budget_holds(void **state)
{
    static const uint64_t numels[] = {400, 700, 1500, 300, 900};
    static const uint32_t order[] = {0, 1, 1, 2, 3, 3, 4, 4, 3, 2, 1, 0};
    struct plan *plan = open_reuse(numels, 5, 100, 1000, 10000, 10000);

    (void)state;
    for (uint32_t step = 0; step < 6; step++) {
        for (uint32_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
            use(plan, order[(i * (step == 4 ? 5 : 1)) % 12]); /* once in another order */
        prefetch_step_end(plan->plan);
        plan->log[0] = 0;
    }
    assert_true(prefetch_figures(plan->plan).bytes_max <= (1000 + 1500) * 4);
    assert_true(prefetch_figures(plan->plan).hits > 0);
    close_plan(plan);
}

static void reset_ends_what_is_kept(void **state)
{
    static const uint64_t numels[] = {10, 10};
    struct plan *plan = open_reuse(numels, 2, 10, 30, 10, 1000);

    (void)state;
    pass(plan, 2);
    prefetch_step_end(plan->plan);
    use(plan, 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 80);
    prefetch_reset(plan->plan);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
    log_of(plan);
    pass(plan, 2);
    assert_string_equal(log_of(plan), "d0 d1 d1 d0");
    close_plan(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_needed_soon_are_kept),
        cmocka_unit_test(kept_units_give_way_the_one_needed_last_first),
        cmocka_unit_test(kept_units_give_way_to_fetches),
        cmocka_unit_test(nothing_is_kept_beyond_the_budget),
        cmocka_unit_test(what_is_kept_is_not_given_up_where_the_budget_is_too_small),
        cmocka_unit_test(what_is_kept_is_not_given_up_where_the_pool_is_in_pieces),
        cmocka_unit_test(what_is_free_may_be_in_pieces),
        cmocka_unit_test(test_d01_a_toggled_unit),
        cmocka_unit_test(test_d07_the_budget_holds),
        cmocka_unit_test(reset_ends_what_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
