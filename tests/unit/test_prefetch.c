/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of stage 3's gathers: residencies, the recorded sequence, budgets. Driven by fetches and
 * releases alone; gathers are counted and their ranges checked against each other.
 */
#include "tests/unit/test_prefetch_kit.h"

/* ---- residencies ----------------------------------------------------------------------------- */

/* 3 Psi: each unit is gathered twice per step, with the record and without. */
static void forward_and_backward_gather_each_unit_twice(void **state)
{
    static const uint64_t numels[] = {10, 20, 10, 30, 10};
    struct plan *plan = open_plan(numels, 5, 5, 90, 30);

    (void)state;
    pass(plan, 5);
    assert_string_equal(log_of(plan), "d0 d1 d2 d3 d4 d4 d3 d2 d1 d0");
    prefetch_step_end(plan->plan);
    for (int step = 0; step < 3; step++) {
        plan->gathers = 0;
        pass(plan, 5);
        assert_int_equal(plan->gathers, 10);
        prefetch_step_end(plan->plan);
    }
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
    close_plan(plan);
}

/* D05: the gather of k+1 is asked for before k's compute ends; only the step's first is missed. */
static void the_next_unit_is_gathered_while_this_one_is_used(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10};
    struct plan *plan = open_plan(numels, 4, 5, 30, 10);

    (void)state;
    pass(plan, 4);
    prefetch_step_end(plan->plan);
    assert_figures(plan, 0, 8, 0);
    log_of(plan);
    assert_int_equal(fetch(plan, 0), 1);
    assert_string_equal(log_of(plan), "d0 a1");
    release(plan, 0);
    assert_string_equal(log_of(plan), ""); /* prefetch_bytes: one unit ahead */
    assert_int_equal(fetch(plan, 1), 0);
    assert_string_equal(log_of(plan), "a2");
    release(plan, 1);
    use(plan, 2);
    assert_string_equal(log_of(plan), "a3");
    assert_int_equal(fetch(plan, 3), 0);
    assert_string_equal(log_of(plan), ""); /* 3 comes next again: after this residency */
    release(plan, 3);
    assert_string_equal(log_of(plan), "a3");
    for (uint32_t u = 4; u-- > 0;)
        use(plan, u);
    assert_string_equal(log_of(plan), "a2 a1 a0");
    prefetch_step_end(plan->plan);
    assert_figures(plan, 7, 9, 0);
    close_plan(plan);
}

/* D06: neighbours merged into one fetch unit are gathered once per pass. */
static void merged_units_are_gathered_once_per_pass(void **state)
{
    static const uint64_t numels[] = {2, 3, 4, 8, 1, 1}; /* buckets of 10: {0 1 2} {3 4 5} */
    struct plan *plan = open_plan(numels, 6, 10, 30, 10);

    (void)state;
    assert_int_equal(layout_page(plan->layout)->fetch_units, 2);
    pass(plan, 6);
    assert_string_equal(log_of(plan), "d0 d1 d1 d0");
    prefetch_step_end(plan->plan);
    plan->gathers = 0;
    pass(plan, 6);
    assert_int_equal(plan->gathers, 4);
    assert_figures(plan, 3, 5, 0);
    close_plan(plan);
}

/* A merged unit of which one was skipped ends when another fetch unit is fetched. */
static void an_incomplete_residency_ends_with_the_next(void **state)
{
    static const uint64_t numels[] = {5, 5, 10, 10};
    struct plan *plan = open_plan(numels, 4, 10, 30, 10);

    (void)state;
    use(plan, 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 40);
    use(plan, 2);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
    use(plan, 0); /* gathered again */
    assert_string_equal(log_of(plan), "d0 d1 d0");
    /* still held when the other is fetched: it ends with its release */
    assert_int_equal(fetch(plan, 1), 0);
    assert_int_equal(fetch(plan, 2), 1);
    release(plan, 1);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 40);
    close_plan(plan);
}

/* D03: two threads fetch one unit together: one gather, both held. */
static void two_fetches_share_a_residency(void **state)
{
    static const uint64_t numels[] = {10, 10};
    struct plan *plan = open_plan(numels, 2, 10, 30, 10);

    (void)state;
    assert_int_equal(fetch(plan, 0), 1);
    assert_int_equal(fetch(plan, 0), 0);
    release(plan, 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 40);
    release(plan, 0);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
    assert_figures(plan, 0, 1, 0);
    close_plan(plan);
}

static void units_without_buckets_do_not_hold_a_residency(void **state)
{
    static const uint64_t numels[] = {4, 0, 4}; /* merged into one fetch unit of 8 */
    struct plan *plan = open_plan(numels, 3, 10, 30, 10);

    (void)state;
    use(plan, 0);
    use(plan, 2);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
    assert_string_equal(log_of(plan), "d0");
    close_plan(plan);
}

/* ---- budgets --------------------------------------------------------------------------------- */

/* D07: prefetch_bytes far above the budget, one unit used twice in a row. */
static void resident_bytes_stay_within_budget_and_one_unit(void **state)
{
    static const uint64_t numels[] = {40, 30, 30, 40};
    struct plan *plan = open_plan(numels, 4, 10, 100, 1000);

    (void)state;
    for (int step = 0; step < 4; step++) {
        use(plan, 0);
        use(plan, 1);
        use(plan, 1);
        use(plan, 2);
        use(plan, 3);
        prefetch_step_end(plan->plan); /* `ahead` checks the bound at each call */
    }
    assert_true(prefetch_figures(plan->plan).bytes_max <= (100 + 40) * 4);
    assert_int_equal(plan->gathers, 4 * 5);
    assert_figures(plan, 12, 8, 0);
    close_plan(plan);
}

static void units_held_may_leave_no_room(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10};
    struct plan *plan = open_plan(numels, 4, 10, 20, 10);

    (void)state;
    assert_int_equal(fetch(plan, 0), 1);
    assert_int_equal(fetch(plan, 1), 1);
    assert_int_equal(fetch(plan, 2), 1); /* budget + the largest */
    assert_int_equal(fetch(plan, 3), GW_E_BUDGET);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 120);
    release(plan, 1);
    assert_int_equal(fetch(plan, 3), 1);
    close_plan(plan);
}

/* What was gathered ahead gives way to what is needed. */
static void a_fetch_drops_what_was_gathered_ahead(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10};
    struct plan *plan = open_plan(numels, 4, 10, 20, 10);

    (void)state;
    use(plan, 0);
    use(plan, 1);
    prefetch_step_end(plan->plan);
    log_of(plan);
    assert_int_equal(fetch(plan, 0), 1);
    assert_string_equal(log_of(plan), "d0 a1");
    assert_int_equal(fetch(plan, 3), 1);
    assert_string_equal(log_of(plan), "d3");
    assert_figures(plan, 0, 4, 1);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 80);
    close_plan(plan);
}

static void nothing_ahead_without_prefetch_bytes(void **state)
{
    static const uint64_t numels[] = {10, 10, 10};
    struct plan *plan = open_plan(numels, 3, 10, 30, 0);

    (void)state;
    for (int step = 0; step < 2; step++) {
        pass(plan, 3);
        prefetch_step_end(plan->plan);
    }
    assert_figures(plan, 0, 12, 0);
    close_plan(plan);
}

/* ---- orders that change ---------------------------------------------------------------------- */

/* D01, D08: a module is left out: its gather is dropped at the step's end, the rest goes on. */
static void a_skipped_unit_is_dropped_and_the_order_found_again(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10};
    struct plan *plan = open_plan(numels, 4, 10, 40, 20);

    (void)state;
    for (uint32_t u = 0; u < 4; u++)
        use(plan, u);
    prefetch_step_end(plan->plan);
    log_of(plan);
    use(plan, 0);
    assert_string_equal(log_of(plan), "d0 a1 a2");
    use(plan, 2); /* 1 is skipped: its 10 stay ahead */
    assert_string_equal(log_of(plan), "a3");
    use(plan, 3);
    assert_figures(plan, 2, 5, 0);
    prefetch_step_end(plan->plan);
    assert_figures(plan, 2, 5, 1);
    /* 0 2 3 is what is recorded now */
    use(plan, 0);
    assert_string_equal(log_of(plan), "d0 a2 a3");
    close_plan(plan);
}

/* Not in the record at all: nothing is gathered ahead until the step's end. */
static void an_unknown_order_stops_the_prefetch(void **state)
{
    static const uint64_t numels[] = {10, 10, 10, 10};
    struct plan *plan = open_plan(numels, 4, 10, 40, 10);

    (void)state;
    use(plan, 0);
    use(plan, 1);
    use(plan, 2);
    prefetch_step_end(plan->plan);
    log_of(plan);
    use(plan, 0);
    use(plan, 3);
    use(plan, 1);
    use(plan, 2);
    assert_string_equal(log_of(plan), "d0 a1 d3 d2");
    prefetch_step_end(plan->plan);
    use(plan, 0);
    use(plan, 3);
    assert_string_equal(log_of(plan), "d0 a3 a1");
    close_plan(plan);
}

/* D02: A = forward and backward over ten units, B = forward only; more than 90 % hits after two of
 * each, though only the last step's order is kept. */
static void alternating_orders_mostly_hit(void **state)
{
    uint64_t numels[10];
    struct plan *plan;
    struct prefetch_figures before, after;

    (void)state;
    for (uint32_t i = 0; i < 10; i++)
        numels[i] = 10;
    plan = open_plan(numels, 10, 10, 40, 10);
    for (int round = 0; round < 2; round++) {
        pass(plan, 10);
        prefetch_step_end(plan->plan);
        for (uint32_t u = 0; u < 10; u++)
            use(plan, u);
        prefetch_step_end(plan->plan);
    }
    before = prefetch_figures(plan->plan);
    for (uint32_t u = 0; u < 10; u++)
        use(plan, u); /* B after B */
    prefetch_step_end(plan->plan);
    after = prefetch_figures(plan->plan);
    assert_int_equal(after.hits - before.hits, 9);
    assert_int_equal(after.misses - before.misses, 1);
    close_plan(plan);
}

static void a_long_step_is_recorded_as_far_as_there_is_room(void **state)
{
    static const uint64_t numels[] = {10, 10};
    struct plan *plan = open_plan(numels, 2, 10, 30, 10);
    uint32_t max = prefetch_sequence_max(plan->plan);

    (void)state;
    assert_true(max >= 4);
    for (int step = 0; step < 2; step++) {
        for (uint32_t i = 0; i < max; i++)
            pass(plan, 2);
        prefetch_step_end(plan->plan);
    }
    assert_int_equal(plan->gathers, 2 * 4 * max);
    close_plan(plan);
}

static void reset_forgets_all_but_the_figures(void **state)
{
    static const uint64_t numels[] = {10, 10};
    struct plan *plan = open_plan(numels, 2, 10, 30, 10);

    (void)state;
    pass(plan, 2);
    prefetch_step_end(plan->plan);
    assert_int_equal(fetch(plan, 0), 1);
    prefetch_reset(plan->plan);
    log_of(plan);
    assert_int_equal(prefetch_figures(plan->plan).bytes_now, 0);
    assert_figures(plan, 0, 5, 0);
    pass(plan, 2);
    assert_string_equal(log_of(plan), "d0 d1 d1 d0");
    close_plan(plan);
}

static void check_overlap(uint64_t reuse_numel)
{
    static const uint64_t numels[] = {7, 3, 9, 1, 5, 8, 2, 6};
    struct plan *plan = open_reuse(numels, 8, 1, 20, 9, reuse_numel);
    uint32_t held[8] = {0}, seed = 7;
    uint64_t offset[8] = {0};

    for (int i = 0; i < 20000; i++) {
        struct prefetch_gather gather;
        uint32_t u = (seed = seed * 1664525u + 1013904223u) >> 16 & 7;

        if (i % 50 == 49) {
            for (u = 0; u < 8; u++) {
                while (held[u] && held[u]--)
                    prefetch_release(plan->plan, u);
            }
            prefetch_step_end(plan->plan);
            continue;
        }
        if (held[u] && seed >> 31) {
            held[u]--;
            release(plan, u);
            continue;
        }
        if (prefetch_fetch(plan->plan, u, &gather) < 0)
            continue;
        if (held[u]++)
            assert_int_equal(gather.offset_bytes, offset[u]);
        offset[u] = gather.offset_bytes;
        for (uint32_t v = 0; v < 8; v++) {
            if (v != u && held[v])
                assert_true(offset[u] + numels[u] * 4 <= offset[v] ||
                            offset[v] + numels[v] * 4 <= offset[u]);
        }
        assert_true(offset[u] + numels[u] * 4 <= plan->budget + plan->largest);
        ahead(plan);
        plan->log[0] = 0;
    }
    close_plan(plan);
}

/* Gathered units never share a byte, whatever the order of fetches and releases. */
static void residencies_never_overlap(void **state)
{
    (void)state;
    check_overlap(0);
    check_overlap(12);
    check_overlap(1000);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* p persists, in 8 bytes, and is not planned; the others begin behind it. */
static void the_pool_begins_behind_persistent_parameters(void **state)
{
    static const struct layout_param params[] = {
        {.name = "p", .unit = "p", .numel = 2},
        {.name = "a", .unit = "a", .numel = 10},
        {.name = "b", .unit = "b", .numel = 10, .dtype = GW_DTYPE_BF16},
        {.name = "c", .unit = "c", .numel = 10},
    };

    (void)state;
    for (uint64_t budget = 0; budget <= 100; budget += 100) { /* one at a time; all */
        struct layout_options options = {.bucket_bytes = 40, .persist_bytes = 8};
        struct prefetch_config config = {.budget_bytes = budget};
        struct plan *plan = open_params(params, 4, &options, &config);
        struct prefetch_gather gather;

        assert_int_equal(layout_units(plan->layout)[0].fetch_unit, UINT32_MAX);
        assert_int_equal(place_arena_bytes(plan->place, GW_ARENA_POOL), budget ? 108 : 48);
        assert_int_equal(prefetch_fetch(plan->plan, 1, &gather), 1);
        assert_int_equal(gather.fetch_unit, 1);
        assert_int_equal(gather.offset_bytes, 8);
        assert_int_equal(prefetch_figures(plan->plan).bytes_now, 40);
        prefetch_release(plan->plan, 1);
        assert_int_equal(prefetch_fetch(plan->plan, 2, &gather), 1);
        assert_int_equal(gather.offset_bytes, budget ? 48 : 8);
        assert_int_equal(prefetch_figures(plan->plan).bytes_now, 20); /* bf16 */
        prefetch_release(plan->plan, 2);
        assert_int_equal(prefetch_fetch(plan->plan, 3, &gather), 1);
        assert_int_equal(gather.offset_bytes, budget ? 68 : 8);
        prefetch_release(plan->plan, 3);
        close_plan(plan);
    }
}

/* Tests drop the edge: all at one place. */
static void without_pool_free_all_lie_at_the_start(void **state)
{
    static const struct layout_param params[] = {{.name = "a", .unit = "a", .numel = 10},
                                                 {.name = "b", .unit = "b", .numel = 10}};
    struct layout_options options = {.bucket_bytes = 40};
    struct prefetch_config config = {.budget_bytes = 100, .no_pool_free = true};
    struct plan *plan = open_params(params, 2, &options, &config);
    struct prefetch_gather gather;

    (void)state;
    assert_int_equal(prefetch_fetch(plan->plan, 0, &gather), 1);
    assert_int_equal(gather.offset_bytes, 0);
    assert_int_equal(prefetch_fetch(plan->plan, 1, &gather), 1);
    assert_int_equal(gather.offset_bytes, 0);
    prefetch_release(plan->plan, 0);
    prefetch_release(plan->plan, 1);
    close_plan(plan);
}

/* ---- several graphs -------------------------------------------------------------------------- */

/* Ten units; a: forward and back, b: forward alone. */
static struct plan *ten(void)
{
    static const uint64_t numels[10] = {12, 12, 12, 12, 12, 12, 12, 12, 12, 12};

    return open_plan(numels, 10, 12, 120, 120);
}

static void step(struct plan *plan, bool back)
{
    for (uint32_t u = 0; u < 10; u++)
        use(plan, u);
    for (uint32_t u = 10; u-- > 0 && back;)
        use(plan, u);
    prefetch_step_end(plan->plan);
}

/* D02: once both were seen in turn, all but the first fetch of a step is gathered ahead. */
static void test_d02_two_graphs_alternate(void **state)
{
    struct plan *plan = ten();
    struct prefetch_figures before, after;
    uint64_t hits, all;

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        step(plan, i % 2 == 0);
    before = prefetch_figures(plan->plan);
    for (uint32_t i = 0; i < 20; i++)
        step(plan, i % 2 == 0);
    after = prefetch_figures(plan->plan);
    hits = after.hits - before.hits;
    all = hits + after.misses - before.misses;
    /* A's middle unit stays resident between forward and back or is fetched again. */
    assert_true(hits * 10 > all * 9);
    assert_int_equal(after.misses - before.misses, 20);
    assert_int_equal(after.drops, before.drops);
    close_plan(plan);
}

/* A graph that comes back after others prefetches from its first step on, by its first fetch. */
static void test_known_graph_prefetches_at_once(void **state)
{
    struct plan *plan = ten();
    struct prefetch_figures before, after;

    (void)state;
    for (uint32_t i = 0; i < 3; i++) { /* units 5 to 9 alone */
        for (uint32_t u = 5; u < 10; u++)
            use(plan, u);
        prefetch_step_end(plan->plan);
    }
    for (uint32_t i = 0; i < 5; i++)
        step(plan, true);
    before = prefetch_figures(plan->plan);
    for (uint32_t u = 5; u < 10; u++)
        use(plan, u);
    after = prefetch_figures(plan->plan);
    assert_int_equal(after.hits - before.hits, 4);
    assert_int_equal(after.misses - before.misses, 1);
    prefetch_step_end(plan->plan);
    close_plan(plan);
}

/* Nine orders: the one used longest ago is forgotten, the other eight are known. */
static void test_oldest_order_is_forgotten(void **state)
{
    struct plan *plan = ten();
    struct prefetch_figures before;

    (void)state;
    for (uint32_t first = 0; first < 9; first++) {
        use(plan, first);
        use(plan, 9);
        prefetch_step_end(plan->plan);
    }
    before = prefetch_figures(plan->plan);
    use(plan, 1);
    use(plan, 9);
    prefetch_step_end(plan->plan);
    assert_int_equal(prefetch_figures(plan->plan).hits - before.hits, 1);
    before = prefetch_figures(plan->plan);
    use(plan, 0);
    use(plan, 9);
    assert_int_equal(prefetch_figures(plan->plan).hits - before.hits, 0);
    prefetch_step_end(plan->plan); /* forgets order 2, which came after order 1 */
    before = prefetch_figures(plan->plan);
    use(plan, 2);
    use(plan, 9);
    assert_int_equal(prefetch_figures(plan->plan).hits - before.hits, 0);
    prefetch_release(plan->plan, 9); /* what is not held changes nothing */
    prefetch_release(plan->plan, 4);
    prefetch_step_end(plan->plan);
    close_plan(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_d02_two_graphs_alternate),
        cmocka_unit_test(test_known_graph_prefetches_at_once),
        cmocka_unit_test(test_oldest_order_is_forgotten),
        cmocka_unit_test(forward_and_backward_gather_each_unit_twice),
        cmocka_unit_test(the_next_unit_is_gathered_while_this_one_is_used),
        cmocka_unit_test(merged_units_are_gathered_once_per_pass),
        cmocka_unit_test(an_incomplete_residency_ends_with_the_next),
        cmocka_unit_test(two_fetches_share_a_residency),
        cmocka_unit_test(units_without_buckets_do_not_hold_a_residency),
        cmocka_unit_test(resident_bytes_stay_within_budget_and_one_unit),
        cmocka_unit_test(units_held_may_leave_no_room),
        cmocka_unit_test(a_fetch_drops_what_was_gathered_ahead),
        cmocka_unit_test(nothing_ahead_without_prefetch_bytes),
        cmocka_unit_test(a_skipped_unit_is_dropped_and_the_order_found_again),
        cmocka_unit_test(an_unknown_order_stops_the_prefetch),
        cmocka_unit_test(alternating_orders_mostly_hit),
        cmocka_unit_test(a_long_step_is_recorded_as_far_as_there_is_room),
        cmocka_unit_test(reset_forgets_all_but_the_figures),
        cmocka_unit_test(residencies_never_overlap),
        cmocka_unit_test(the_pool_begins_behind_persistent_parameters),
        cmocka_unit_test(without_pool_free_all_lie_at_the_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
