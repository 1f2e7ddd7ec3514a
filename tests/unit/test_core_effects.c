/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of effects: order, the life of an op's arrays, op numbers, and the look at launches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/effects.h"

static struct core_effect taken; /* large */

static void test_first_in_first_out(void **state)
{
    struct effects *effects = NULL;

    (void)state;
    assert_int_equal(effects_new(&effects), 0);
    assert_false(effects_take(effects, &taken));
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 100; i++) {
            struct core_effect *effect = effects_add(effects, CORE_EFF_SIGNAL);

            assert_int_equal(effect->rank, 0); /* zeroed, also when used again */
            effect->rank = i;
        }
        for (uint32_t i = 0; i < 100; i++) {
            assert_true(effects_take(effects, &taken));
            assert_int_equal(taken.rank, i);
        }
        assert_false(effects_take(effects, &taken));
    }
    assert_false(effects_failed(effects));
    assert_null(effects_free(effects));
}

/* Two effects under construction, arrays asked for in any order. */
static void test_arrays_live_until_the_next_is_asked_for(void **state)
{
    struct effects *effects = NULL;
    struct core_effect *first, *second;
    uint32_t *early, *one, *two;

    (void)state;
    assert_int_equal(effects_new(&effects), 0);
    early = effects_alloc(effects, 400); /* before there is an effect */
    first = effects_add(effects, CORE_EFF_LAUNCH);
    one = effects_alloc(effects, 400);
    first->op.members = one; /* the effect has not moved */
    second = effects_add(effects, CORE_EFF_LAUNCH);
    two = effects_alloc(effects, 400);
    second->op.members = two;
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(early[i] | one[i] | two[i], 0);
        early[i] = one[i] = two[i] = i;
    }
    assert_true(effects_take(effects, &taken));
    assert_ptr_equal(taken.op.members, one);
    assert_int_equal(one[99] + early[99], 198);
    assert_true(effects_take(effects, &taken));
    assert_int_equal(two[99], 99);
    assert_false(effects_take(effects, &taken));
    effects_free(effects);
}

static void test_what_was_not_taken_is_freed(void **state)
{
    struct effects *effects = NULL;

    (void)state;
    assert_int_equal(effects_new(&effects), 0);
    for (uint32_t i = 0; i < 50; i++) {
        effects_add(effects, CORE_EFF_LAUNCH);
        assert_non_null(effects_alloc(effects, 64));
    }
    assert_true(effects_take(effects, &taken));
    effects_free(effects);
    assert_null(effects_free(NULL));
}

static void test_op_numbers_and_launches(void **state)
{
    struct effects *effects = NULL;

    (void)state;
    assert_int_equal(effects_new(&effects), 0);
    assert_null(effects_next_launch(effects));
    for (uint32_t i = 1; i <= 3; i++) {
        effects_add(effects, CORE_EFF_SIGNAL);
        effects_add(effects, CORE_EFF_LAUNCH)->op.id = effects_next_op(effects);
    }
    assert_int_equal(effects_next_launch(effects)->id, 1);
    assert_int_equal(effects_next_launch(effects)->id, 2);
    /* Taking goes past the place where looking stands. */
    for (uint32_t i = 0; i < 6; i++)
        assert_true(effects_take(effects, &taken));
    assert_null(effects_next_launch(effects));
    effects_add(effects, CORE_EFF_LAUNCH)->op.id = effects_next_op(effects);
    assert_int_equal(effects_next_launch(effects)->id, 4);
    assert_null(effects_next_launch(effects));
    effects_free(effects);
}

static void test_memory_that_cannot_be_had(void **state)
{
    struct effects *effects = NULL;

    (void)state;
    assert_int_equal(effects_new(&effects), 0);
    effects_add(effects, CORE_EFF_LAUNCH);
    assert_null(effects_alloc(effects, SIZE_MAX - 4));
    assert_true(effects_failed(effects));
    effects_free(effects);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_in_first_out),
        cmocka_unit_test(test_arrays_live_until_the_next_is_asked_for),
        cmocka_unit_test(test_what_was_not_taken_is_freed),
        cmocka_unit_test(test_op_numbers_and_launches),
        cmocka_unit_test(test_memory_that_cannot_be_had),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
