/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nccl fabric's arithmetic, without CUDA: pieces, shares, copies that are one, runs of bits,
 * lists of members, where partials lie.
 * ctest: timeout=30
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/nccl/parts.h"

static void pieces_are_whole_chunks_that_fit(void **state)
{
    (void)state;
    /* 32 MiB: 2^23 floats for one input, 2^23 / 3 for three: 2796202, less 2730 * 4096's rest */
    assert_int_equal(parts_piece(32u << 20, 1, 16u << 20), 8u << 20);
    assert_int_equal(parts_piece(32u << 20, 3, 16u << 20), 682 * 4096);
    assert_int_equal(parts_piece(32u << 20, 63, 16u << 20), 32 * 4096);
    /* no input lies there, or few: bounded by the kernel's lanes */
    assert_int_equal(parts_piece(32u << 20, 0, 16u << 20), 16u << 20);
    assert_int_equal(parts_piece(1u << 30, 1, 5000), 4096);
    /* never nothing */
    assert_int_equal(parts_piece(100, 7, 16u << 20), 4096);
}

static void assert_share(uint64_t total, uint64_t share, uint32_t index, uint64_t first,
                         uint64_t count)
{
    struct parts_range range = parts_share(total, share, index);

    assert_int_equal(range.first, first);
    assert_int_equal(range.count, count);
}

static void shares_cover_a_total_that_does_not_divide(void **state)
{
    (void)state;
    assert_share(10, 4, 0, 0, 4);
    assert_share(10, 4, 1, 4, 4);
    assert_share(10, 4, 2, 8, 2);
    assert_share(10, 4, 3, 12, 0);
    assert_share(8, 4, 2, 8, 0);
    assert_share(0, 0, 0, 0, 0);
}

static void neighbouring_copies_are_one(void **state)
{
    static char to[100], from[100], far[100];
    struct fabric_segment segments[] = {
        {to, from, 10, 0},        {to + 10, from + 10, 5, 0}, {to + 15, from + 15, 0, 0},
        {to + 15, far, 5, 0},     {to + 20, far + 6, 5, 0},   {to + 25, far + 11, 5, 0},
        {to + 40, to + 40, 8, 0}, {to + 30, far + 16, 1, 0}};

    (void)state;
    assert_int_equal(parts_coalesce(segments, 8), 3);
    assert_ptr_equal(segments[0].to, to);
    assert_int_equal(segments[0].bytes, 15);
    assert_ptr_equal(segments[1].from, far);
    assert_int_equal(segments[1].bytes, 5);
    assert_ptr_equal(segments[2].to, to + 20);
    assert_ptr_equal(segments[2].from, far + 6);
    assert_int_equal(segments[2].bytes, 11);
    assert_int_equal(parts_coalesce(NULL, 0), 0);
}

/* Side by side in addresses, on two GPUs: no one copy is of both. */
static void neighbours_of_two_owners_stay_apart(void **state)
{
    static char to[20], from[20];
    struct fabric_segment segments[] = {
        {to, from, 5, 1}, {to + 5, from + 5, 5, 1}, {to + 10, from + 10, 5, 2}};

    (void)state;
    assert_int_equal(parts_coalesce(segments, 3), 2);
    assert_int_equal(segments[0].bytes, 10);
    assert_int_equal(segments[0].owner, 1);
    assert_ptr_equal(segments[1].from, from + 10);
    assert_int_equal(segments[1].owner, 2);
}

static void assert_run(const uint8_t *bits, uint64_t bytes, uint32_t first, uint32_t word,
                       uint32_t words)
{
    struct parts_run run = parts_word_run(bits, bytes, first);

    assert_int_equal(run.words, words);
    assert_int_equal(run.word, word);
}

static void used_bits_go_by_runs_of_words(void **state)
{
    static const uint8_t bits[] = {255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 3, 4, 7};

    (void)state;
    assert_run(bits, 13, 0, 0xffffffff, 2);
    assert_run(bits, 13, 1, 0xffffffff, 1);
    assert_run(bits, 13, 2, 0x04030201, 1);
    assert_run(bits, 13, 3, 7, 1);
    assert_run(bits, 13, 4, 0, 0);
    assert_run(bits, 8, 0, 0xffffffff, 2);
    assert_run(bits, 7, 1, 0x00ffffff, 1);
    assert_run(bits, 0, 0, 0, 0);
}

static void unused_buckets_go_by_runs(void **state)
{
    static const uint8_t flags[] = {0, 1, 0, 0, 1, 1, 0};
    uint32_t at = 0, end = 0;

    (void)state;
    assert_true(parts_zero_run(flags, 7, &at, &end));
    assert_int_equal(at, 0);
    assert_int_equal(end, 1);
    at = end;
    assert_true(parts_zero_run(flags, 7, &at, &end));
    assert_int_equal(at, 2);
    assert_int_equal(end, 4);
    at = end;
    assert_true(parts_zero_run(flags, 7, &at, &end));
    assert_int_equal(at, 6);
    assert_int_equal(end, 7);
    at = end;
    assert_false(parts_zero_run(flags, 7, &at, &end));
    at = 4;
    assert_false(parts_zero_run(flags, 6, &at, &end));
}

static void groups_are_their_ordered_lists(void **state)
{
    static const uint32_t a[] = {3, 1, 2}, b[] = {1, 2, 3};

    (void)state;
    assert_true(parts_same(a, 3, (const uint32_t[]){3, 1, 2}, 3));
    assert_false(parts_same(a, 3, b, 3));
    assert_false(parts_same(a, 3, a, 2));
    assert_int_equal(parts_index(a, 3, 2), 2);
    assert_int_equal(parts_index(a, 3, 3), 0);
    assert_int_equal(parts_index(a, 3, 0), UINT32_MAX);
}

static void partials_lie_slice_by_slice(void **state)
{
    static const uint64_t numel[] = {4096, 1, 0, 4097};
    static const uint32_t slices[] = {3, 3, 2, 5};
    uint64_t starts[5];

    (void)state;
    parts_partials(numel, slices, 4, starts);
    /* chunks: 1, 1, 0, 2 per slice */
    assert_int_equal(starts[0], 0);
    assert_int_equal(starts[1], 3);
    assert_int_equal(starts[2], 6);
    assert_int_equal(starts[3], 6);
    assert_int_equal(starts[4], 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_whole_chunks_that_fit),
        cmocka_unit_test(shares_cover_a_total_that_does_not_divide),
        cmocka_unit_test(neighbouring_copies_are_one),
        cmocka_unit_test(neighbours_of_two_owners_stay_apart),
        cmocka_unit_test(used_bits_go_by_runs_of_words),
        cmocka_unit_test(unused_buckets_go_by_runs),
        cmocka_unit_test(groups_are_their_ordered_lists),
        cmocka_unit_test(partials_lie_slice_by_slice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
