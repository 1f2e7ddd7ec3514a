/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of the cuda device: lanes, what a part waits for, ends, giving up; imported allocations.
 * Needs no CUDA. ctest: label=unit timeout=60 link=gw_device_records
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/cuda/imports.h"
#include "daemon/device/cuda/work.h"
#include "gradwire/errors.h"

static struct cuda_ledger *ledger_new(uint32_t lanes)
{
    struct cuda_ledger *ledger = calloc(1, sizeof(*ledger));

    ledger->lane_count = lanes;
    return ledger;
}

static struct cuda_work *add(struct cuda_ledger *ledger, uint32_t lane, uint64_t op, uint64_t parts,
                             const uint64_t *wait_ops, uint32_t count)
{
    const struct device_work work = {
        .op = op, .ranks = {{parts}}, .wait_ops = wait_ops, .wait_op_count = count};
    struct cuda_work *copy = NULL;

    assert_int_equal(cuda_work_new(&work, parts, &copy), 0);
    cuda_ledger_add(ledger, lane, copy);
    return copy;
}

static uint64_t take(struct cuda_ledger *ledger)
{
    struct cuda_work *work = cuda_ledger_take(ledger);
    uint64_t op = work ? work->done.op : 0;

    cuda_work_free(work);
    return op;
}

static bool waits_for(const struct cuda_work *work, uint32_t lane, uint64_t ranks, uint64_t op)
{
    for (uint32_t i = 0; i < work->after_count; i++) {
        const struct cuda_after *after = &work->after[i];
        if (after->lane == lane && after->ranks == ranks && after->op == op)
            return true;
    }
    return false;
}

static void a_work_is_copied_with_its_arrays(void **state)
{
    _Atomic uint64_t word = 0;
    struct device_wait waits[3] = {{&word, 1, 0}, {&word, 2, 1}, {&word, 3, 2}};
    struct device_signal signal = {.value = 9, .rank = 5};
    uint64_t ops[2] = {7, 8};
    struct device_work work = {.op = 10,
                               .waits = waits,
                               .wait_count = 3,
                               .signals = &signal,
                               .signal_count = 1,
                               .wait_ops = ops,
                               .wait_op_count = 2};
    struct cuda_work *copy = NULL;

    (void)state;
    assert_int_equal(cuda_work_new(&work, 1u << 2 | 1u << 5 | UINT64_C(1) << 63, &copy), 0);
    memset(waits, 0xff, sizeof(waits));
    memset(&signal, 0xff, sizeof(signal));
    memset(ops, 0xff, sizeof(ops));
    assert_int_equal(copy->work.waits[2].value, 3);
    assert_int_equal(copy->work.waits[1].rank, 1);
    assert_int_equal(copy->work.signals[0].value, 9);
    assert_int_equal(copy->work.wait_ops[1], 8);
    assert_int_equal(copy->pending, 3);
    assert_int_equal(copy->items[0].rank, 2);
    assert_int_equal(copy->items[1].rank, 5);
    assert_int_equal(copy->items[2].rank, 63);
    assert_ptr_equal(copy->items[2].work, copy);
    assert_null(cuda_work_free(copy));
    assert_null(cuda_work_free(NULL));
}

static void a_part_is_behind_other_lanes_and_other_gpus(void **state)
{
    struct cuda_ledger *ledger = ledger_new(3);
    struct cuda_work *first = add(ledger, 0, 1, 1u << 0 | 1u << 1, NULL, 0);
    struct cuda_work *second = add(ledger, 1, 2, 1u << 1, NULL, 0);
    const uint64_t before[] = {1, 0, 2, 99};
    struct cuda_work *third = add(ledger, 2, 3, 1u << 0, before, 4);
    struct cuda_work *fourth = add(ledger, 0, 4, 1u << 1 | 1u << 2, NULL, 0);
    struct cuda_work *fifth = add(ledger, 0, 5, 7, NULL, 0), *sixth;

    (void)state;
    assert_int_equal(first->after_count, 0);
    assert_int_equal(third->after_count, 2);
    assert_true(waits_for(third, 0, 3, 1));
    assert_true(waits_for(third, 1, 2, 2));
    /* The lane's own order: every part of the last work of each rank, on other GPUs too. */
    assert_int_equal(fourth->after_count, 1);
    assert_true(waits_for(fourth, 0, 3, 1));
    assert_int_equal(fifth->after_count, 2);
    assert_true(waits_for(fifth, 0, 3, 1));
    assert_true(waits_for(fifth, 0, 6, 4));
    /* What has ended holds nobody up. */
    assert_false(cuda_ledger_end(ledger, first));
    assert_true(cuda_ledger_end(ledger, first));
    assert_true(cuda_ledger_end(ledger, second));
    assert_true(cuda_ledger_end(ledger, third));
    assert_false(cuda_ledger_end(ledger, fifth));
    assert_false(cuda_ledger_end(ledger, fifth));
    assert_true(cuda_ledger_end(ledger, fifth)); /* before the fourth: other GPUs were faster */
    assert_false(cuda_ledger_end(ledger, fourth));
    assert_true(cuda_ledger_end(ledger, fourth));
    sixth = add(ledger, 1, 6, 7, before, 4);
    assert_int_equal(sixth->after_count, 0);
    assert_int_equal(ledger->unfinished, 1);
    assert_int_equal(take(ledger), 1);
    assert_int_equal(take(ledger), 2);
    assert_int_equal(take(ledger), 3);
    assert_int_equal(take(ledger), 5);
    assert_int_equal(take(ledger), 4);
    assert_int_equal(take(ledger), 0);
    assert_true(cuda_ledger_give_up(ledger, 1));
    assert_int_equal(take(ledger), 6);
    cuda_work_free(sixth);
    free(ledger);
}

static void an_unfinished_work_is_found_on_any_lane(void **state)
{
    struct cuda_ledger *ledger = ledger_new(CUDA_LANES_MAX);
    struct cuda_work *works[200];

    (void)state;
    for (uint64_t op = 1; op < 200; op++)
        works[op] = add(ledger, (uint32_t)(op * 7 % CUDA_LANES_MAX), op, 1, NULL, 0);
    for (uint64_t op = 1; op < 200; op += 2)
        assert_true(cuda_ledger_end(ledger, works[op]));
    assert_null(cuda_ledger_find(ledger, 0));
    assert_null(cuda_ledger_find(ledger, 200));
    for (uint64_t op = 1; op < 200; op++)
        assert_ptr_equal(cuda_ledger_find(ledger, op), op % 2 ? NULL : works[op]);
    for (uint64_t op = 1; op < 200; op += 2)
        assert_int_equal(take(ledger), op);
    for (uint64_t op = 198; op > 0; op -= 2) {
        assert_true(cuda_ledger_end(ledger, works[op]));
        assert_int_equal(take(ledger), op);
    }
    assert_int_equal(ledger->unfinished, 0);
    for (uint32_t lane = 0; lane < CUDA_LANES_MAX; lane++)
        assert_true(!ledger->lanes[lane].head && !ledger->lanes[lane].tail);
    free(ledger);
}

static void what_is_given_up_is_told_once_and_in_order(void **state)
{
    struct cuda_ledger *ledger = ledger_new(2);
    struct cuda_work *works[5];

    (void)state;
    for (uint64_t op = 1; op < 5; op++)
        works[op] = add(ledger, (uint32_t)(op % 2), op, 3, NULL, 0);
    assert_false(cuda_ledger_end(ledger, works[2]));
    assert_true(cuda_ledger_give_up(ledger, 77));
    assert_int_equal(ledger->unfinished, 0);
    for (uint64_t op = 1; op < 5; op++) {
        struct cuda_work *told = cuda_ledger_take(ledger);
        assert_non_null(told);
        assert_int_equal(told->done.op, op);
        assert_true(told->done.failed);
        assert_int_equal(told->done.done_ns, 77);
        assert_null(told->work.release); /* its owner's memory may still be in use */
        cuda_work_free(told);
    }
    /* GPUs that come back change nothing. */
    assert_false(cuda_ledger_end(ledger, works[2]));
    assert_false(cuda_ledger_end(ledger, works[1]));
    assert_false(cuda_ledger_end(ledger, works[1]));
    assert_null(cuda_ledger_take(ledger));
    for (uint64_t op = 1; op < 5; op++)
        cuda_work_free(works[op]);
    free(ledger);
}

static struct device_import import_of(uint64_t client, uint8_t handle)
{
    struct device_import import = {
        .client = client, .allocation_bytes = 4096, .offset = 1024, .bytes = 3072};

    memset(import.handle, handle, sizeof(import.handle));
    return import;
}

static void an_allocation_is_open_once_until_its_last_buffer(void **state)
{
    struct cuda_imports imports = {0};
    struct device_import one = import_of(1, 9), other = import_of(2, 9), third = import_of(1, 8);
    struct cuda_import *first = NULL, *second = NULL;

    (void)state;
    assert_null(cuda_imports_find(&imports, 1, one.handle));
    assert_int_equal(cuda_imports_add(&imports, &one, 0, 0x1000, 4096, &first), 0);
    assert_int_equal(cuda_imports_add(&imports, &other, 1, 0x2000, 4096, &second), 0);
    assert_ptr_equal(cuda_imports_find(&imports, 1, one.handle), first);
    assert_ptr_equal(cuda_imports_find(&imports, 2, one.handle), second);
    assert_null(cuda_imports_find(&imports, 1, third.handle));
    first->references++;
    assert_false(cuda_imports_drop(&imports, first));
    assert_ptr_equal(cuda_imports_find(&imports, 1, one.handle), first);
    assert_true(cuda_imports_drop(&imports, first));
    assert_null(cuda_imports_find(&imports, 1, one.handle));
    assert_true(cuda_imports_drop(&imports, second));
    assert_null(imports.first);
    free(first);
    free(second);
}

static void an_import_lies_in_what_the_driver_knows(void **state)
{
    struct device_import import = import_of(1, 9);
    char text[GW_TEXT_MAX + 1] = "";

    (void)state;
    assert_int_equal(cuda_imports_check(&import, 4096, text), 0);
    assert_int_equal(cuda_imports_check(&import, 2u << 20, text), 0);
    assert_int_equal(cuda_imports_check(&import, 4095, text), GW_E_INVALID);
    assert_non_null(strstr(text, "4095"));
    import.bytes = 3073;
    assert_int_equal(cuda_imports_check(&import, 4096, text), GW_E_INVALID);
    import.bytes = UINT64_MAX;
    assert_int_equal(cuda_imports_check(&import, 4096, text), GW_E_INVALID);
    import.offset = UINT64_MAX;
    import.bytes = 2;
    assert_int_equal(cuda_imports_check(&import, 4096, text), GW_E_INVALID);
    import.offset = 0;
    import.bytes = 0;
    assert_int_equal(cuda_imports_check(&import, 4096, text), GW_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_work_is_copied_with_its_arrays),
        cmocka_unit_test(a_part_is_behind_other_lanes_and_other_gpus),
        cmocka_unit_test(an_unfinished_work_is_found_on_any_lane),
        cmocka_unit_test(what_is_given_up_is_told_once_and_in_order),
        cmocka_unit_test(an_allocation_is_open_once_until_its_last_buffer),
        cmocka_unit_test(an_import_lies_in_what_the_driver_knows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
