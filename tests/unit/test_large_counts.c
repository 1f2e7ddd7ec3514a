/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts above 2^31 and 2^32 elements: where things lie and how they are cut, by arithmetic alone,
 * for nobody has that memory here. Values worked out by hand.
 * ctest: timeout=30
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/layout.h"
#include "daemon/fabric/nccl/parts.h"
#include "gradwire/errors.h"
#include "proto/place.h"

#define A 6442450944ull  /* 3 * 2^31 */
#define B 8589934597ull  /* 2^33 + 5 */
#define AB 15032385541ull
#define PADDED 15032385544ull /* to a multiple of 4 */
#define SLICE 3758096386ull   /* of 4 ranks */

static struct layout *make(uint32_t stage, uint64_t bucket_bytes, const struct layout_param *params,
                           uint32_t count)
{
    const struct layout_options options = {
        .stage = stage, .world = 4, .bucket_bytes = bucket_bytes, .align_bytes = 4};
    struct layout *layout = NULL;
    uint32_t bad;

    assert_int_equal(layout_new(&options, params, count, &layout, &bad), 0);
    return layout;
}

static void check_piece(const struct gw_layout_piece *piece, uint32_t bucket,
                        uint64_t bucket_offset, uint64_t param_offset, uint64_t numel)
{
    assert_int_equal(piece->bucket, bucket);
    assert_int_equal(piece->bucket_offset, bucket_offset);
    assert_int_equal(piece->param_offset, param_offset);
    assert_int_equal(piece->numel, numel);
}

static void check_slice(const struct layout *layout, uint32_t slice, uint64_t offset,
                        uint64_t valid)
{
    uint64_t at, numel, valid_numel;

    layout_slice(layout, 0, slice, &at, &numel, &valid_numel);
    assert_int_equal(at, offset);
    assert_int_equal(numel, SLICE);
    assert_int_equal(valid_numel, valid);
}

static const struct layout_param two[] = {{.name = "a", .unit = "u", .numel = A},
                                          {.name = "b", .unit = "u", .numel = B}};

static void two_large_parameters_lie_in_one_bucket(void **state)
{
    (void)state;
    for (uint32_t stage = 1; stage <= 3; stage++) {
        struct layout *layout = make(stage, 1ull << 36, two, 2);

        assert_int_equal(layout_page(layout)->buckets, 1);
        assert_int_equal(layout_page(layout)->numel, AB);
        assert_int_equal(layout_page(layout)->padded_numel, PADDED);
        assert_int_equal(layout_params(layout)[1].offset, A);
        check_piece(&layout_pieces(layout)[0], 0, 0, 0, A);
        check_piece(&layout_pieces(layout)[1], 0, A, 0, B);
        check_slice(layout, 0, 0, SLICE);
        check_slice(layout, 2, 7516192772ull, SLICE);
        check_slice(layout, 3, 11274289158ull, 3758096383ull);
        layout_free(layout);
    }
}

static void a_large_parameter_is_cut_into_large_buckets(void **state)
{
    const struct layout_param one[] = {{.name = "b", .unit = "u", .numel = B}};
    struct layout *layout = make(3, 1ull << 34, one, 1); /* 2^32 elements */

    (void)state;
    assert_int_equal(layout_page(layout)->buckets, 3);
    check_piece(&layout_pieces(layout)[0], 0, 0, 0, 4294967296ull);
    check_piece(&layout_pieces(layout)[1], 1, 0, 4294967296ull, 4294967296ull);
    check_piece(&layout_pieces(layout)[2], 2, 0, 8589934592ull, 5);
    assert_int_equal(layout_buckets(layout)[2].offset, 8589934592ull);
    layout_free(layout);
}

static void arenas_are_as_large_as_they_are(void **state)
{
    const struct wire_seal options = {.stage = 1, .micro_steps = 1, .ring_slots = 3};
    struct layout *layout = make(1, 1ull << 36, two, 2);
    struct place *place;

    (void)state;
    assert_int_equal(place_new(layout_page(layout), &options, 1, &place), 0);
    assert_int_equal(place_arena_bytes(place, GW_ARENA_GRADS), 60129542176ull);
    assert_int_equal(place_arena_bytes(place, GW_ARENA_PARAMS), 60129542176ull);
    assert_int_equal(place_reduced(place, 0, 3).offset_bytes, 45097156632ull);
    assert_int_equal(place_shard(place, 0, 3).offset_bytes, 45097156632ull);
    place_free(place);
    layout_free(layout);
}

static void shares_and_partials_of_large_counts(void **state)
{
    const uint64_t slices[] = {SLICE, B};
    const uint32_t counts[] = {4, 1};
    const struct parts_range last = parts_share(B, 2863311533ull, 2);
    uint64_t starts[3];

    (void)state;
    assert_int_equal(last.first, 5726623066ull);
    assert_int_equal(last.count, 2863311531ull);
    assert_int_equal(parts_chunks(B), 2097153); /* 2^33 / 4096, and one for five elements */
    parts_partials(slices, counts, 2, starts);
    assert_int_equal(starts[1], 4 * 917505); /* 3758096386 / 4096 = 917504.0005 */
    assert_int_equal(starts[2], 4 * 917505 + 2097153);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_large_parameters_lie_in_one_bucket),
        cmocka_unit_test(a_large_parameter_is_cut_into_large_buckets),
        cmocka_unit_test(arenas_are_as_large_as_they_are),
        cmocka_unit_test(shares_and_partials_of_large_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
