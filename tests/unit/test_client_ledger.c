/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's account of gradients: contributions per bucket, refusals, ring slots. Two buckets:
 * bucket 0 holds pieces 0 and 1, bucket 1 piece 2. ctest: link=gw_client
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "client/lib/ledger.h"
#include "gradwire/gradwire.h"

static const struct gw_layout_page page = {.pieces = 3, .buckets = 2};
static const struct gw_layout_piece pieces[] = {
    {.param = 0, .bucket = 0, .numel = 4},
    {.param = 1, .bucket = 0, .bucket_offset = 4, .numel = 4},
    {.param = 2, .bucket = 1, .numel = 4},
};
static const struct gw_layout_bucket buckets[] = {
    {.numel = 8, .padded_numel = 8, .first_piece = 0, .pieces = 2},
    {.offset = 8, .numel = 4, .padded_numel = 4, .first_piece = 2, .pieces = 1},
};
static struct gw_shm_slot words[2];

static struct ledger *make(uint32_t ring_slots, uint32_t micro_steps, bool local)
{
    struct ledger *ledger = NULL;

    words[0].value = words[1].value = 0;
    assert_int_equal(ledger_new(&page, pieces, buckets, 1, ring_slots, micro_steps, local, &ledger),
                     0);
    return ledger;
}

static bool give(struct ledger *ledger, uint32_t piece, uint32_t flags)
{
    assert_int_equal(ledger_check_acquire(ledger, piece), LEDGER_OK);
    ledger_acquire(ledger, piece);
    assert_int_equal(ledger_check_ready(ledger, piece, flags), LEDGER_OK);
    return ledger_ready(ledger, piece, flags);
}

static void a_bucket_closes_with_its_last_piece(void **state)
{
    struct ledger *ledger = make(0, 1, true);

    (void)state;
    assert_false(give(ledger, 1, GW_GRAD_FINAL));
    assert_int_equal(ledger->buckets[0].count, 0);
    assert_true(ledger_completes(ledger, 0));
    assert_true(give(ledger, 0, GW_GRAD_FINAL));
    assert_int_equal(ledger->buckets[0].count, 1);
    /* Bucket 1 closes at the step's end, with nothing declared; bucket 0 not again. */
    ledger_step_end(ledger);
    assert_int_equal(ledger->buckets[0].count, 1);
    assert_int_equal(ledger->buckets[1].count, 1);
    ledger_free(ledger);
}

static void each_micro_step_closes_one_contribution(void **state)
{
    struct ledger *ledger = make(0, 4, true);

    (void)state;
    for (uint32_t m = 0; m < 3; m++) {
        give(ledger, 0, GW_GRAD_ACCUMULATE);
        assert_int_equal(ledger_check_micro_end(ledger), LEDGER_OK);
        ledger_micro_end(ledger);
        assert_int_equal(ledger->buckets[0].count, m + 1);
        assert_int_equal(ledger->buckets[1].count, m + 1);
    }
    assert_int_equal(ledger_check_micro_end(ledger), LEDGER_LAST_MICRO);
    ledger_step_end(ledger);
    assert_int_equal(ledger->buckets[0].count, 4);
    assert_int_equal(ledger_check_micro_end(ledger), LEDGER_OK);
    ledger_free(ledger);
}

/* Bucket 0 closes without its frozen piece, bucket 1 has no contributions; until thawed. */
static void frozen_pieces_are_not_waited_for(void **state)
{
    static const struct gw_layout_param params[] = {
        {.first_piece = 0, .pieces = 1}, {.first_piece = 1, .pieces = 1},
        {.first_piece = 2, .pieces = 1}};
    struct ledger *ledger = make(0, 2, true);

    (void)state;
    ledger_freeze(ledger, params, 3, &(uint8_t){5});
    assert_int_equal(ledger_check_acquire(ledger, 0), LEDGER_FROZEN);
    assert_int_equal(ledger_check_ready(ledger, 2, GW_GRAD_FINAL), LEDGER_FROZEN);
    assert_true(ledger_completes(ledger, 1));
    assert_true(give(ledger, 1, GW_GRAD_ACCUMULATE));
    ledger_micro_end(ledger);
    ledger_step_end(ledger);
    assert_int_equal(ledger->buckets[0].count, 2);
    assert_int_equal(ledger->buckets[1].count, 0);
    ledger_freeze(ledger, params, 3, &(uint8_t){0});
    assert_false(give(ledger, 1, GW_GRAD_FINAL));
    assert_true(give(ledger, 2, GW_GRAD_FINAL));
    ledger->shut = true;
    assert_int_equal(ledger_check_acquire(ledger, 0), LEDGER_SHUT);
    assert_int_equal(ledger_check_ready(ledger, 0, GW_GRAD_FINAL), LEDGER_SHUT);
    ledger_free(ledger);
}

static void a_final_bucket_has_no_later_contribution(void **state)
{
    struct ledger *ledger = make(0, 3, true);

    (void)state;
    give(ledger, 2, GW_GRAD_FINAL);
    give(ledger, 0, GW_GRAD_FINAL);
    give(ledger, 1, GW_GRAD_ACCUMULATE);
    ledger_micro_end(ledger); /* bucket 1: final in micro-step 0; bucket 0: piece 1 is not */
    assert_int_equal(ledger->buckets[0].count, 1);
    assert_int_equal(ledger->buckets[1].count, 1);
    assert_int_equal(ledger_check_acquire(ledger, 2), LEDGER_WAS_FINAL);
    assert_int_equal(ledger_check_acquire(ledger, 0), LEDGER_WAS_FINAL);
    assert_true(ledger_completes(ledger, 1)); /* the only piece outstanding */
    assert_true(give(ledger, 1, GW_GRAD_FINAL));
    ledger_micro_end(ledger);
    ledger_step_end(ledger);
    assert_int_equal(ledger->buckets[0].count, 2);
    assert_int_equal(ledger->buckets[1].count, 1);
    assert_int_equal(ledger_check_acquire(ledger, 2), LEDGER_OK);
    ledger_free(ledger);
}

static void what_cannot_be_is_refused(void **state)
{
    struct ledger *ledger = make(0, 2, true);

    (void)state;
    assert_int_equal(ledger_check_ready(ledger, 0, 0), LEDGER_NOT_ACQUIRED);
    give(ledger, 0, GW_GRAD_RUNNING | GW_GRAD_ACCUMULATE);
    assert_int_equal(ledger_check_acquire(ledger, 0), LEDGER_TWICE);
    assert_int_equal(ledger_check_ready(ledger, 0, GW_GRAD_RUNNING), LEDGER_TWICE);
    ledger_acquire(ledger, 1);
    assert_int_equal(ledger_check_ready(ledger, 1, GW_GRAD_ACCUMULATE), LEDGER_MIXED);
    ledger_micro_end(ledger);
    assert_int_equal(ledger_check_ready(ledger, 1, GW_GRAD_RUNNING), LEDGER_NOT_ACQUIRED);
    ledger_acquire(ledger, 1);
    assert_int_equal(ledger_check_ready(ledger, 1, GW_GRAD_FINAL), LEDGER_MIXED);
    ledger_acquire(ledger, 2);
    assert_int_equal(ledger_check_ready(ledger, 2, GW_GRAD_ACCUMULATE), LEDGER_LAST_MICRO);
    ledger_step_end(ledger);
    give(ledger, 0, GW_GRAD_FINAL); /* another step, another mode */
    ledger_free(ledger);
    ledger = make(3, 2, false);
    ledger_acquire(ledger, 0);
    assert_int_equal(ledger_check_ready(ledger, 0, GW_GRAD_RUNNING), LEDGER_NOT_LOCAL);
    ledger_free(ledger);
}

static void slots_are_free_once_their_contribution_is_consumed(void **state)
{
    struct ledger *ledger = make(1, 1, false);

    (void)state;
    assert_true(ledger_slot_take(ledger, 1, words, false));
    assert_int_equal(ledger->buckets[1].slot, 0);
    assert_false(ledger_slot_take(ledger, 0, words, false)); /* being filled */
    give(ledger, 2, GW_GRAD_FINAL);
    assert_int_equal(ledger->slots[0].until, 1);
    assert_false(ledger_slot_take(ledger, 0, words, false)); /* being reduced */
    assert_true(ledger_slot_take(ledger, 0, words, true));   /* the dropped edge */
    ledger_free(ledger);

    ledger = make(1, 1, false);
    assert_true(ledger_slot_take(ledger, 1, words, false));
    give(ledger, 2, GW_GRAD_FINAL);
    words[1].value = 1;
    assert_true(ledger_slot_take(ledger, 0, words, false));
    assert_int_equal(ledger->buckets[0].slot, 0);
    ledger_free(ledger);
}

static void a_slot_without_declaration_is_free_at_once(void **state)
{
    struct ledger *ledger = make(1, 1, false);

    (void)state;
    assert_true(ledger_slot_take(ledger, 0, words, false));
    ledger_acquire(ledger, 0);
    ledger_step_end(ledger);
    assert_int_equal(ledger->buckets[0].count, 1);
    assert_true(ledger_slot_take(ledger, 1, words, false));
    ledger_free(ledger);
}

static void overflow_slots_go_to_the_bucket_that_asked(void **state)
{
    struct ledger *ledger = make(1, 1, false);

    (void)state;
    assert_true(ledger_slot_take(ledger, 1, words, false));
    assert_int_equal(ledger_slot_add(ledger, 2), GW_E_LIMIT); /* 1 is the next */
    assert_int_equal(ledger_slot_add(ledger, 1), 0);
    ledger_slot_give(ledger, 0, 1);
    assert_int_equal(ledger->buckets[0].slot, 1);
    assert_false(ledger_slot_take(ledger, 0, words, false));
    ledger_slot_give(ledger, 1, 1); /* has one, and 1 is taken */
    assert_int_equal(ledger->buckets[1].slot, 0);
    give(ledger, 0, 0);
    give(ledger, 1, 0);
    words[0].value = 1;
    ledger_step_end(ledger);
    /* Slot 0 was never declared; slot 1 is consumed: both are used again. */
    assert_true(ledger_slot_take(ledger, 0, words, false));
    assert_int_equal(ledger->buckets[0].slot, 0);
    assert_true(ledger_slot_take(ledger, 1, words, false));
    assert_int_equal(ledger->buckets[1].slot, 1);
    for (uint32_t slot = 2; slot < 1 + GW_OVERFLOW_MAX; slot++)
        assert_int_equal(ledger_slot_add(ledger, slot), 0);
    assert_int_equal(ledger_slot_add(ledger, 1 + GW_OVERFLOW_MAX), GW_E_LIMIT);
    ledger_free(ledger);
}

/* The engine's answer may be about a use of the slot that is over, and another one closed since. */
static void a_launched_slot_that_was_given_away_is_left_alone(void **state)
{
    struct ledger *ledger = make(1, 1, false);
    uint64_t asked;

    (void)state;
    assert_int_equal(ledger_slot_reuse(ledger, 0, 1, 0), GW_E_LIMIT);
    assert_true(ledger_slot_take(ledger, 1, words, false));
    asked = ledger->gives;
    give(ledger, 2, GW_GRAD_FINAL);
    assert_int_equal(ledger_slot_reuse(ledger, 0, 0, asked - 1), 0);
    assert_int_equal(ledger->buckets[0].slot, GW_NO_SLOT);
    assert_int_equal(ledger_slot_reuse(ledger, 0, 0, asked), 0);
    assert_int_equal(ledger->buckets[0].slot, 0);
    ledger_free(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_closes_with_its_last_piece),
        cmocka_unit_test(each_micro_step_closes_one_contribution),
        cmocka_unit_test(frozen_pieces_are_not_waited_for),
        cmocka_unit_test(a_final_bucket_has_no_later_contribution),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(slots_are_free_once_their_contribution_is_consumed),
        cmocka_unit_test(a_slot_without_declaration_is_free_at_once),
        cmocka_unit_test(overflow_slots_go_to_the_bucket_that_asked),
        cmocka_unit_test(a_launched_slot_that_was_given_away_is_left_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
