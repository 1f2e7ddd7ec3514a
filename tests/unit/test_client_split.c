/* SPDX-License-Identifier: Apache-2.0 */
/* How waits are added up by cause: united per step, nothing counted twice, nothing lost.
 * ctest: link=gw_client */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "client/lib/split.h"

static struct split split;

static int set_up(void **state)
{
    (void)state;
    split = (struct split){0};
    return split_init(&split);
}

static int tear_down(void **state)
{
    (void)state;
    split_deinit(&split);
    return 0;
}

static void expect(uint64_t late, uint64_t queued, uint64_t exposed, uint64_t wakeup)
{
    struct wait_parts parts;

    split_get(&split, &parts);
    assert_int_equal(parts.late, late);
    assert_int_equal(parts.queued, queued);
    assert_int_equal(parts.exposed, exposed);
    assert_int_equal(parts.wakeup, wakeup);
}

static void one_wait_has_four_parts(void **state)
{
    struct wait_op op = {.ready = 120, .started = 150, .done = 190};

    (void)state;
    split_add(&split, 100, 200, &op, 1);
    expect(20, 30, 40, 10);
}

static void overlapping_waits_are_counted_once(void **state)
{
    struct wait_op op = {.ready = 120, .started = 150, .done = 190}, again = op, third = op;

    (void)state;
    split_add(&split, 100, 200, &op, 1);
    split_add(&split, 100, 200, &again, 1); /* another thread, the same op */
    expect(20, 30, 40, 10);
    split_add(&split, 90, 210, &third, 1); /* 10 more before, 10 more after */
    expect(30, 30, 40, 20);
    split_next_step(&split);
    op = (struct wait_op){.ready = 120, .started = 150, .done = 190};
    split_add(&split, 100, 200, &op, 1); /* a new step is united by itself */
    expect(50, 60, 80, 30);
}

static void ops_over_before_the_wait_make_it_wakeup(void **state)
{
    struct wait_op ops[] = {{10, 20, 30}, {40, 50, 60}, {0, 0, 0}};

    (void)state;
    split_add(&split, 100, 107, ops, 3);
    expect(0, 0, 0, 7);
    split_add(&split, 200, 205, NULL, 0); /* nothing known: another rank was slow */
    expect(5, 0, 0, 7);
}

static void a_wait_cut_by_its_deadline_is_split_by_the_next(void **state)
{
    struct wait_op op = {.ready = 120, .started = 150, .done = 190};

    (void)state;
    split_defer(&split, 100, 140); /* 20 late, 20 queued */
    expect(0, 0, 0, 0);
    split_add(&split, 145, 200, &op, 1);
    expect(20, 25, 40, 10);
    split_defer(&split, 300, 310);
    split_next_step(&split); /* nothing ever came */
    expect(30, 25, 40, 10);
}

/* Far more than are remembered one by one: each still counts once, and whole. */
static void short_waits_without_end_lose_nothing(void **state)
{
    enum { WAITS = 5000, EVERY = 100, LONG = 40 };

    (void)state;
    for (int64_t i = 1; i <= WAITS; i++) {
        uint64_t at = (uint64_t)(i * EVERY);
        struct wait_op op = {.ready = at + 10, .started = at + 15, .done = at + 35}, again = op;

        split_add(&split, i * EVERY, i * EVERY + LONG, &op, 1);
        split_add(&split, i * EVERY, i * EVERY + LONG, &again, 1); /* another thread's */
    }
    expect(10ull * WAITS, 5ull * WAITS, 20ull * WAITS, 5ull * WAITS);
}

/* One thread waits 200 times for 40 ticks, 60 apart; another all the time, for an op that starts in
 * the middle: 20,000 ticks, of which 12,000 are in no short wait, 6,000 of those before it starts.
 */
static void a_long_wait_is_split_between_many_short_ones(void **state)
{
    enum { WAITS = 200, EVERY = 100, LONG = 40 };
    struct wait_op all = {.ready = 1, .started = WAITS * EVERY / 2 + 1, .done = WAITS * EVERY + 1};

    (void)state;
    for (int64_t i = 0; i < WAITS; i++) {
        uint64_t at = (uint64_t)(1 + i * EVERY);
        struct wait_op op = {.ready = at, .started = at, .done = at + LONG};

        split_add(&split, (int64_t)at, (int64_t)at + LONG, &op, 1);
    }
    expect(0, 0, 8000, 0);
    split_add(&split, 1, WAITS * EVERY + 1, &all, 1);
    expect(0, 6000, 14000, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_wait_has_four_parts),
        TEST(overlapping_waits_are_counted_once),
        TEST(ops_over_before_the_wait_make_it_wakeup),
        TEST(a_wait_cut_by_its_deadline_is_split_by_the_next),
        TEST(short_waits_without_end_lose_nothing),
        TEST(a_long_wait_is_split_between_many_short_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
