/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unions of intervals and the split of a wait: by hand, and against a model that marks every single
 * tick of a short axis.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/intervals.h"
#include "gradwire/errors.h"

static uint32_t random_below(uint64_t *seed, uint32_t bound)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % bound;
}

/* ---- unions ---------------------------------------------------------------------------------- */

static void unites_before_measuring(void **state)
{
    const struct interval *list;
    struct intervals *set;
    size_t count;

    (void)state;
    assert_int_equal(intervals_new(8, &set), 0);
    intervals_add(set, 10, 20);
    intervals_add(set, 30, 40);
    intervals_add(set, 15, 25); /* overlaps */
    intervals_add(set, 25, 28); /* touches */
    intervals_add(set, 50, 50); /* empty */
    intervals_add(set, 60, 55); /* backwards */
    assert_int_equal(intervals_total(set), 28);
    list = intervals_from(set, 0, &count);
    assert_int_equal(count, 2);
    assert_int_equal(list[0].end, 28);
    list = intervals_from(set, 28, &count); /* the first ends there: not before */
    assert_int_equal(count, 2);
    list = intervals_from(set, 29, &count);
    assert_int_equal(count, 1);
    assert_int_equal(list[0].start, 30);
    (void)intervals_from(set, 41, &count);
    assert_int_equal(count, 0);
    intervals_add(set, 0, UINT64_MAX); /* swallows all */
    list = intervals_from(set, 0, &count);
    assert_int_equal(count, 1);
    assert_true(intervals_total(set) == UINT64_MAX);
    intervals_clear(set);
    assert_int_equal(intervals_total(set), 0);
    assert_null(intervals_free(set));
    assert_null(intervals_free(NULL));
    assert_int_equal(intervals_new(0, &set), GW_E_INVALID);
    assert_int_equal(intervals_new(SIZE_MAX, &set), GW_E_INVALID);
    assert_int_equal(intervals_new(SIZE_MAX / 2, &set), GW_E_NOMEM);
}

static void joins_the_nearest_when_full(void **state)
{
    const struct interval *list;
    struct intervals *set;
    size_t count;

    (void)state;
    assert_int_equal(intervals_new(2, &set), 0);
    intervals_add(set, 0, 10);
    intervals_add(set, 100, 110);
    intervals_add(set, 113, 120); /* nearest gap: 110..113 */
    list = intervals_from(set, 0, &count);
    assert_int_equal(count, 2);
    assert_int_equal(list[1].start, 100);
    assert_int_equal(list[1].end, 120);
    assert_int_equal(intervals_total(set), 27 + 3); /* too long by the gap */
    intervals_free(set);
}

/* 16 intervals of 10 ticks, then another: of 16 gaps the 4 smallest go, of equal ones the earliest.
 */
static void joins_a_quarter_when_full(void **state)
{
    static const uint64_t gaps[16] = {9, 5, 7, 5, 9, 5, 3, 9, 9, 5, 9, 9, 9, 9, 9, 9};
    static const uint64_t starts[13] = {0, 19, 51, 85, 132, 151, 166, 185, 204, 223, 242, 261, 280};
    const struct interval *list;
    struct intervals *set;
    uint64_t at = 0;
    size_t count;

    (void)state;
    assert_int_equal(intervals_new(16, &set), 0);
    for (size_t i = 0; i < 16; i++) {
        intervals_add(set, at, at + 10);
        at += 10 + gaps[i];
    }
    assert_int_equal(intervals_total(set), 160);
    intervals_add(set, at, at + 10);
    assert_int_equal(intervals_total(set), 170 + 5 + 5 + 5 + 3);
    list = intervals_from(set, 0, &count);
    assert_int_equal(count, 13);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(list[i].start, starts[i]);
    intervals_free(set);
}

#define AXIS 64u

static void agrees_with_marked_ticks(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (unsigned run = 0; run < 3000; run++) {
        bool marked[AXIS] = {false};
        struct intervals *set;
        uint64_t total = 0;

        assert_int_equal(intervals_new(AXIS, &set), 0);
        for (uint32_t n = random_below(&seed, 12); n > 0; n--) {
            const uint32_t start = random_below(&seed, AXIS);
            const uint32_t end = random_below(&seed, AXIS + 1);

            intervals_add(set, start, end);
            for (uint32_t t = start; t < end; t++)
                marked[t] = true;
        }
        for (uint32_t t = 0; t < AXIS; t++)
            total += marked[t];
        assert_int_equal(intervals_total(set), total);
        intervals_free(set);
    }
}

/* ---- split ----------------------------------------------------------------------------------- */

static void check_split(uint64_t w0, uint64_t w1, const struct wait_op *ops, size_t count,
                        struct wait_parts want)
{
    struct wait_parts got;

    wait_split(w0, w1, ops, count, &got);
    if (got.late != want.late || got.queued != want.queued || got.exposed != want.exposed ||
        got.wakeup != want.wakeup)
        fail_msg("late %llu queued %llu exposed %llu wakeup %llu, not %llu %llu %llu %llu",
                 (unsigned long long)got.late, (unsigned long long)got.queued,
                 (unsigned long long)got.exposed, (unsigned long long)got.wakeup,
                 (unsigned long long)want.late, (unsigned long long)want.queued,
                 (unsigned long long)want.exposed, (unsigned long long)want.wakeup);
}

static void splits_by_hand(void **state)
{
    const struct wait_op one = {120, 150, 180};
    const struct wait_op two[2] = {{110, 120, 140}, {115, 140, 170}};
    const struct wait_op gap[2] = {{100, 100, 110}, {150, 150, 160}};
    const struct wait_op blank = {0, 0, 0};

    (void)state;
    check_split(100, 200, &one, 1, (struct wait_parts){20, 30, 30, 20});
    check_split(130, 160, &one, 1, (struct wait_parts){0, 20, 10, 0});
    check_split(190, 200, &one, 1, (struct wait_parts){0, 0, 0, 10});
    check_split(100, 110, &one, 1, (struct wait_parts){10, 0, 0, 0});
    /* queued behind the first op, whose own time is exposed, not counted twice */
    check_split(100, 180, two, 2, (struct wait_parts){10, 10, 50, 10});
    /* between two ops nothing of ours runs: another rank was late with the second */
    check_split(90, 170, gap, 2, (struct wait_parts){50, 0, 20, 10});
    check_split(100, 150, NULL, 0, (struct wait_parts){50, 0, 0, 0});
    check_split(100, 150, &blank, 1, (struct wait_parts){50, 0, 0, 0});
    check_split(150, 100, &one, 1, (struct wait_parts){0, 0, 0, 0});
    /* not done when the wait gave up */
    check_split(100, 160, &one, 1, (struct wait_parts){20, 30, 10, 0});
}

/* One tick at a time, by the definitions. */
static struct wait_parts split_ticks(uint32_t w0, uint32_t w1, const struct wait_op *ops,
                                     size_t count)
{
    struct wait_parts parts = {0};

    for (uint32_t t = w0; t < w1; t++) {
        bool exposed = false, queued = false;
        uint64_t last_done = 0;

        for (size_t i = 0; i < count; i++) {
            if (ops[i].done == 0)
                continue;
            exposed |= t >= ops[i].started && t < ops[i].done;
            queued |= t >= ops[i].ready && t < ops[i].started;
            last_done = ops[i].done > last_done ? ops[i].done : last_done;
        }
        if (exposed)
            parts.exposed++;
        else if (queued)
            parts.queued++;
        else if (last_done > 0 && t >= last_done)
            parts.wakeup++;
        else
            parts.late++;
    }
    return parts;
}

/* Stamps in any order too: they come out of shared memory. */
static void splits_without_rest(void **state)
{
    uint64_t seed = 2;

    (void)state;
    for (unsigned run = 0; run < 20000; run++) {
        struct wait_op ops[5];
        const uint32_t count = random_below(&seed, 6);
        const uint32_t w0 = random_below(&seed, AXIS), w1 = random_below(&seed, AXIS);
        struct wait_parts got;

        for (uint32_t i = 0; i < count; i++)
            ops[i] = (struct wait_op){random_below(&seed, AXIS), random_below(&seed, AXIS),
                                      random_below(&seed, AXIS)};
        wait_split(w0, w1, ops, count, &got);
        assert_int_equal(got.late + got.queued + got.exposed + got.wakeup, w1 > w0 ? w1 - w0 : 0);
        check_split(w0, w1, ops, count, split_ticks(w0, w1, ops, count));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unites_before_measuring),
        cmocka_unit_test(joins_the_nearest_when_full),
        cmocka_unit_test(joins_a_quarter_when_full),
        cmocka_unit_test(agrees_with_marked_ticks),
        cmocka_unit_test(splits_by_hand),
        cmocka_unit_test(splits_without_rest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
