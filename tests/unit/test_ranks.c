/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of ranks, beside a plain table of bool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/ranks.h"

#define MOST GW_RANKS_MAX

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Some ranks, and the last one of each word always or never. */
static struct ranks some(uint32_t seed, bool table[MOST])
{
    struct ranks set = {{0}};

    for (uint32_t i = 0; i < MOST; i++) {
        table[i] = i % 64 == 63 ? seed % 2 == 0 : next_random(&seed) % 3 == 0;
        if (table[i])
            ranks_add(&set, i);
    }
    return set;
}

static void check(const struct ranks *set, const bool table[MOST])
{
    uint32_t count = 0, next = MOST;

    for (uint32_t i = MOST; i-- > 0;) {
        count += table[i];
        next = table[i] ? i : next;
        assert_int_equal(ranks_has(set, i), table[i]);
        assert_int_equal(ranks_next(set, i), next);
    }
    assert_int_equal(ranks_count(set), count);
    assert_int_equal(ranks_first(set), next);
    assert_int_equal(ranks_any(set), count > 0);
    assert_int_equal(ranks_next(set, MOST), MOST);
}

static void sets_hold_what_was_put_in(void **state)
{
    bool table[MOST];

    (void)state;
    for (uint32_t seed = 1; seed < 20; seed++) {
        struct ranks set = some(seed, table);

        check(&set, table);
        for (uint32_t i = 0; i < MOST; i += 7) {
            ranks_drop(&set, i);
            table[i] = false;
        }
        check(&set, table);
    }
}

static void two_sets_make_a_third(void **state)
{
    bool a[MOST], b[MOST], want[MOST];

    (void)state;
    for (uint32_t seed = 1; seed < 20; seed++) {
        struct ranks x = some(seed, a), y = some(seed * 77 + 1, b), made = ranks_or(&x, &y);

        for (uint32_t i = 0; i < MOST; i++)
            want[i] = a[i] || b[i];
        check(&made, want);
        made = ranks_and(&x, &y);
        for (uint32_t i = 0; i < MOST; i++)
            want[i] = a[i] && b[i];
        check(&made, want);
        made = ranks_and_not(&x, &y);
        for (uint32_t i = 0; i < MOST; i++)
            want[i] = a[i] && !b[i];
        check(&made, want);
        assert_false(ranks_equal(&x, &y));
        made = x;
        assert_true(ranks_equal(&x, &made));
        ranks_drop(&made, ranks_first(&made));
        assert_false(ranks_equal(&x, &made));
    }
}

static void worlds_and_single_ranks(void **state)
{
    bool table[MOST];

    (void)state;
    for (uint32_t count = 0; count <= MOST; count++) {
        struct ranks below = ranks_below(count);

        for (uint32_t i = 0; i < MOST; i++)
            table[i] = i < count;
        check(&below, table);
    }
    for (uint32_t rank = 0; rank < MOST; rank++) {
        struct ranks one = ranks_one(rank);

        for (uint32_t i = 0; i < MOST; i++)
            table[i] = i == rank;
        check(&one, table);
    }
}

static void rows_are_as_long_as_the_world(void **state)
{
    uint64_t row[RANKS_WORDS + 1];

    (void)state;
    assert_int_equal(ranks_words(1), 1);
    assert_int_equal(ranks_words(64), 1);
    assert_int_equal(ranks_words(65), 2);
    assert_int_equal(ranks_words(MOST), RANKS_WORDS);
    for (uint32_t words = 1; words <= RANKS_WORDS; words++) {
        struct ranks read, want = ranks_one(words * 64 - 1);

        memset(row, 0, sizeof(row));
        row[words] = UINT64_MAX; /* of the next row */
        ranks_row_add(row, words * 64 - 1);
        read = ranks_of_row(row, words);
        assert_true(ranks_equal(&read, &want));
        ranks_row_add(row, 0);
        ranks_add(&want, 0);
        read = ranks_of_row(row, words);
        assert_true(ranks_equal(&read, &want));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_hold_what_was_put_in),
        cmocka_unit_test(two_sets_make_a_third),
        cmocka_unit_test(worlds_and_single_ranks),
        cmocka_unit_test(rows_are_as_long_as_the_world),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
