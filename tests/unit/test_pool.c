/* SPDX-License-Identifier: Apache-2.0 */
/* First fit, coalescing, and never beyond the capacity. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/core/pool.h"

static uint64_t take(struct pool *pool, uint64_t bytes)
{
    uint64_t offset = UINT64_MAX;

    return pool_take(pool, bytes, &offset) ? offset : UINT64_MAX;
}

static void takes_the_first_gap_that_fits(void **state)
{
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(100, 8, &pool), 0);
    assert_int_equal(take(pool, 30), 0);
    assert_int_equal(take(pool, 20), 30);
    assert_int_equal(take(pool, 40), 50);
    assert_int_equal(take(pool, 11), UINT64_MAX); /* 10 left */
    assert_int_equal(take(pool, 10), 90);
    assert_true(pool_give(pool, 30)); /* gap 30..50 */
    assert_int_equal(take(pool, 21), UINT64_MAX);
    assert_int_equal(take(pool, 5), 30);
    assert_int_equal(take(pool, 15), 35);
    pool_free(pool);
}

static void neighbouring_gaps_become_one(void **state)
{
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(90, 8, &pool), 0);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(take(pool, 30), 30 * i);
    assert_true(pool_give(pool, 30));
    assert_true(pool_give(pool, 0));
    assert_int_equal(take(pool, 60), 0);
    assert_true(pool_give(pool, 60));
    assert_true(pool_give(pool, 0));
    assert_int_equal(take(pool, 90), 0);
    pool_free(pool);
}

static void refuses_what_it_cannot_do(void **state)
{
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(UINT64_MAX, 2, &pool), 0);
    assert_int_equal(take(pool, 0), UINT64_MAX);
    assert_false(pool_give(pool, 0));
    assert_int_equal(take(pool, UINT64_MAX), 0);
    assert_int_equal(take(pool, 1), UINT64_MAX);
    assert_true(pool_give(pool, 0));
    assert_int_equal(take(pool, 1), 0);
    assert_int_equal(take(pool, 1), 1);
    assert_int_equal(take(pool, 1), UINT64_MAX); /* two ranges at most */
    pool_free(pool);
    assert_null(pool_free(NULL));
}

static void a_copy_tries_what_would_fit(void **state)
{
    struct pool *pool, *trial;
    struct pool_room room;

    (void)state;
    assert_int_equal(pool_new(100, 4, &pool), 0);
    assert_int_equal(pool_new(100, 4, &trial), 0);
    room = pool_room(pool);
    assert_int_equal(room.free_bytes, 100);
    assert_int_equal(room.gap_bytes, 100);
    assert_int_equal(take(pool, 20), 0);
    assert_int_equal(take(pool, 30), 20);
    assert_int_equal(take(pool, 25), 50);
    assert_true(pool_give(pool, 20));
    room = pool_room(pool); /* 20..50 and 75..100 */
    assert_int_equal(room.free_bytes, 55);
    assert_int_equal(room.gap_bytes, 30);
    pool_copy(trial, pool);
    assert_true(pool_give(trial, 50));
    assert_int_equal(take(trial, 80), 20);
    room = pool_room(trial);
    assert_int_equal(room.free_bytes, 0);
    assert_int_equal(room.gap_bytes, 0);
    assert_int_equal(take(pool, 31), UINT64_MAX);
    assert_int_equal(take(pool, 30), 20);
    pool_free(pool);
    pool_free(trial);
}

/* Against a byte map, through 20,000 steps of a fixed pseudo-random sequence. */
static void agrees_with_a_map_of_bytes(void **state)
{
    enum { BYTES = 64, RANGES = 12 };
    uint8_t map[BYTES] = {0};
    struct { uint64_t offset, bytes; } taken[RANGES];
    uint32_t count = 0, seed = 1;
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(BYTES, RANGES, &pool), 0);
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1664525u + 1013904223u;
        if (seed >> 31 && count) {
            uint32_t i = (seed >> 8) % count;
            assert_true(pool_give(pool, taken[i].offset));
            for (uint64_t b = 0; b < taken[i].bytes; b++)
                map[taken[i].offset + b] = 0;
            taken[i] = taken[--count];
            continue;
        }
        uint64_t bytes = 1 + (seed >> 8) % 20, at = 0, run = 0, first = UINT64_MAX;
        for (at = 0; at < BYTES && first == UINT64_MAX; at++) {
            run = map[at] ? 0 : run + 1;
            if (run == bytes)
                first = at + 1 - bytes;
        }
        if (count == RANGES)
            first = UINT64_MAX;
        assert_int_equal(take(pool, bytes), first);
        if (first == UINT64_MAX)
            continue;
        for (uint64_t b = 0; b < bytes; b++)
            map[first + b] = 1;
        taken[count].offset = first;
        taken[count++].bytes = bytes;
    }
    pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_first_gap_that_fits),
        cmocka_unit_test(neighbouring_gaps_become_one),
        cmocka_unit_test(refuses_what_it_cannot_do),
        cmocka_unit_test(a_copy_tries_what_would_fit),
        cmocka_unit_test(agrees_with_a_map_of_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
