/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: cases from the field with values worked out by hand. Each expected layout is written as
 * rows of numbers beside the input they follow from.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/layout.h"
#include "gradwire/errors.h"

#define MAX_PARAMS 16u

static const char *const param_names[MAX_PARAMS] = {"p0",  "p1",  "p2",  "p3", "p4",  "p5",
                                                    "p6",  "p7",  "p8",  "p9", "p10", "p11",
                                                    "p12", "p13", "p14", "p15"};

/* Of fp32 elements; one group. */
static struct layout_options fp32(uint32_t stage, uint32_t world, uint64_t bucket, uint32_t align)
{
    return (struct layout_options){
        .stage = stage, .world = world, .bucket_bytes = bucket * 4, .align_bytes = align * 4};
}

static struct layout_param param(const char *name, const char *unit, uint64_t numel)
{
    return (struct layout_param){.name = name, .unit = unit, .numel = numel};
}

/* Parameters p0.. with the sizes given, each in the unit of the same index. */
static struct layout *make(uint32_t stage, uint32_t world, uint64_t bucket, uint32_t align,
                           const uint64_t *numels, const char *const *units, uint32_t count)
{
    struct layout_options options = fp32(stage, world, bucket, align);
    struct layout_param params[MAX_PARAMS];
    struct layout *layout = NULL;
    uint32_t bad = 0;

    for (uint32_t i = 0; i < count; i++)
        params[i] = param(param_names[i], units ? units[i] : "", numels[i]);
    assert_int_equal(layout_new(&options, params, count, &layout, &bad), 0);
    assert_non_null(layout);
    return layout;
}

static void check_buckets(const struct layout *layout, const uint64_t *numels,
                          const uint64_t *padded, uint32_t count)
{
    uint64_t offset = 0;

    assert_int_equal(layout_page(layout)->buckets, count);
    for (uint32_t b = 0; b < count; b++) {
        assert_int_equal(layout_buckets(layout)[b].numel, numels[b]);
        assert_int_equal(layout_buckets(layout)[b].padded_numel, padded[b]);
        assert_int_equal(layout_buckets(layout)[b].offset, offset);
        offset += padded[b];
    }
    assert_int_equal(layout_page(layout)->padded_numel, offset);
}

/* param, bucket, bucket_offset, param_offset, numel */
static void check_pieces(const struct layout *layout, const uint64_t (*rows)[5], uint32_t count)
{
    assert_int_equal(layout_page(layout)->pieces, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct gw_layout_piece *piece = &layout_pieces(layout)[i];

        assert_int_equal(piece->param, rows[i][0]);
        assert_int_equal(piece->bucket, rows[i][1]);
        assert_int_equal(piece->bucket_offset, rows[i][2]);
        assert_int_equal(piece->param_offset, rows[i][3]);
        assert_int_equal(piece->numel, rows[i][4]);
    }
}

static void check_slice(const struct layout *layout, uint32_t bucket, uint32_t slice,
                        uint64_t want_offset, uint64_t want_numel, uint64_t want_valid)
{
    uint64_t offset, numel, valid;

    layout_slice(layout, bucket, slice, &offset, &numel, &valid);
    assert_int_equal(offset, want_offset);
    assert_int_equal(numel, want_numel);
    assert_int_equal(valid, want_valid);
}

/* R02: bucket of 12, N=4: [5,1] (7 would make 13), [7,3,2] = 12, [6,4] (4 more: 14), [4]. */
static void test_r02_buckets_close_when_next_does_not_fit(void **state)
{
    const uint64_t numels[] = {5, 1, 7, 3, 2, 6, 4, 4};
    const uint64_t buckets[] = {6, 12, 10, 4}, padded[] = {8, 12, 12, 4};
    const uint64_t pieces[][5] = {{0, 0, 0, 0, 5}, {1, 0, 5, 0, 1},  {2, 1, 0, 0, 7},
                                  {3, 1, 7, 0, 3}, {4, 1, 10, 0, 2}, {5, 2, 0, 0, 6},
                                  {6, 2, 6, 0, 4}, {7, 3, 0, 0, 4}};
    const uint64_t offsets[] = {0, 5, 8, 15, 18, 20, 26, 32};
    struct layout *layout = make(2, 4, 12, 1, numels, NULL, 8);

    (void)state;
    check_buckets(layout, buckets, padded, 4);
    check_pieces(layout, pieces, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(layout_params(layout)[i].offset, offsets[i]);
    assert_int_equal(layout_page(layout)->numel, 32);
    assert_int_equal(layout_page(layout)->max_bucket_bytes, 48);
    check_slice(layout, 0, 2, 4, 2, 2); /* element 4 of p0, and p1 */
    check_slice(layout, 0, 3, 6, 2, 0); /* padding only */
    check_slice(layout, 2, 3, 9, 3, 1);
    layout_free(layout);
}

/* R11: N=2, numels 3,4: one bucket of 7, padded to 8. Rank 0 owns p0 and one element of p1. */
static void test_r11_slices_cut_through_parameters(void **state)
{
    const uint64_t numels[] = {3, 4}, buckets[] = {7}, padded[] = {8};
    struct layout *layout = make(1, 2, 100, 1, numels, NULL, 2);

    (void)state;
    check_buckets(layout, buckets, padded, 1);
    check_slice(layout, 0, 0, 0, 4, 4);
    check_slice(layout, 0, 1, 4, 4, 3);
    layout_free(layout);
}

/* F01: 10 elements, N=8, alignment 16: slices of 16; rank 0 has all 10, the others padding. */
static void test_f01_ranks_past_the_end_own_padding(void **state)
{
    const uint64_t numels[] = {10}, buckets[] = {10}, padded[] = {128};
    struct layout *layout = make(1, 8, 1000, 16, numels, NULL, 1);

    (void)state;
    check_buckets(layout, buckets, padded, 1);
    check_slice(layout, 0, 0, 0, 16, 10);
    for (uint32_t r = 1; r < 8; r++)
        check_slice(layout, 0, r, 16 * r, 16, 0);
    layout_free(layout);
}

/* R08: stage 3, ten units of 100, bucket 500: two fetch units of five, a bucket each. */
static void test_r08_small_units_merge_into_fetch_units(void **state)
{
    const uint64_t numels[] = {100, 100, 100, 100, 100, 100, 100, 100, 100, 100};
    const uint64_t buckets[] = {500, 500}, padded[] = {500, 500};
    struct layout *layout = make(3, 2, 500, 1, numels, NULL, 10);
    const struct gw_layout_fetch_unit *fetch = layout_fetch_units(layout);

    (void)state;
    check_buckets(layout, buckets, padded, 2);
    assert_int_equal(layout_page(layout)->units, 10);
    assert_int_equal(layout_page(layout)->fetch_units, 2);
    for (uint32_t f = 0; f < 2; f++) {
        assert_int_equal(fetch[f].first_unit, 5 * f);
        assert_int_equal(fetch[f].units, 5);
        assert_int_equal(fetch[f].first_bucket, f);
        assert_int_equal(fetch[f].buckets, 1);
        assert_int_equal(fetch[f].offset, 500 * f);
        assert_int_equal(fetch[f].numel, 500);
        assert_int_equal(layout_buckets(layout)[f].fetch_unit, f);
    }
    assert_string_equal(layout_name(layout, layout_units(layout)[3].name_at), "p3");
    layout_free(layout);
}

/* R10: a parameter larger than the bucket starts its own and is cut; nothing is ever empty. */
static void test_r10_bucket_smaller_than_first_parameter(void **state)
{
    /* N=2, align 1, bucket 5: cut at 4. p0=10: 4,4,2, and p1=3 joins the last piece (2+3=5). p2
     * does not fit any more. */
    const uint64_t numels[] = {10, 3, 1};
    const uint64_t buckets[] = {4, 4, 5, 1}, padded[] = {4, 4, 6, 2};
    const uint64_t pieces[][5] = {
        {0, 0, 0, 0, 4}, {0, 1, 0, 4, 4}, {0, 2, 0, 8, 2}, {1, 2, 2, 0, 3}, {2, 3, 0, 0, 1}};
    struct layout *layout = make(0, 2, 5, 1, numels, NULL, 3);

    (void)state;
    check_buckets(layout, buckets, padded, 4);
    check_pieces(layout, pieces, 5);
    assert_int_equal(layout_params(layout)[0].pieces, 3);
    assert_int_equal(layout_params(layout)[1].offset, 10);
    assert_int_equal(layout_params(layout)[2].offset, 14);
    check_slice(layout, 2, 1, 0, 6, 5); /* stage 0: the whole bucket is everybody's */
    layout_free(layout);
}

/* A bucket below one multiple of world * align is cut at one multiple. */
static void test_r10_bucket_smaller_than_one_slice_of_each(void **state)
{
    const uint64_t numels[] = {20, 1}; /* grain 2*4 = 8: 8, 8, 4; then 4+1 > 3: own bucket */
    const uint64_t buckets[] = {8, 8, 4, 1}, padded[] = {8, 8, 8, 8};
    struct layout *layout = make(2, 2, 3, 4, numels, NULL, 2);

    (void)state;
    check_buckets(layout, buckets, padded, 4);
    layout_free(layout);
}

/* Exactly a bucket is not larger than a bucket: one piece, even where 13 is no multiple of 2. */
static void test_parameter_of_exactly_a_bucket_is_whole(void **state)
{
    const uint64_t numels[] = {13, 25}; /* 25 > 13: cut at 12 into 12, 12, 1 */
    const uint64_t buckets[] = {13, 12, 12, 1}, padded[] = {14, 12, 12, 2};
    struct layout *layout = make(1, 2, 13, 1, numels, NULL, 2);

    (void)state;
    check_buckets(layout, buckets, padded, 4);
    layout_free(layout);
}

/* B07: zero-size parameters have no piece, no bucket, and change nothing around them. */
static void test_b07_zero_size_parameters(void **state)
{
    const uint64_t first[] = {8, 0, 24}, second[] = {8, 24, 0}, none[] = {0, 0};
    const uint64_t buckets[] = {32}, eight[] = {8, 24};

    (void)state;
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct layout *layout = make(stage, 2, 100, 1, first, NULL, 3);

        check_buckets(layout, buckets, buckets, 1);
        assert_int_equal(layout_params(layout)[1].pieces, 0);
        assert_int_equal(layout_params(layout)[1].offset, 0);
        assert_int_equal(layout_params(layout)[2].offset, 8);
        assert_int_equal(layout_units(layout)[1].buckets, 0);
        layout_free(layout);
        layout = make(stage, 2, 25, 1, second, NULL, 3);
        check_buckets(layout, eight, eight, 2);
        assert_int_equal(layout_params(layout)[2].pieces, 0);
        layout_free(layout);
        layout = make(stage, 2, 25, 1, none, NULL, 2);
        check_buckets(layout, NULL, NULL, 0);
        assert_int_equal(layout_page(layout)->pieces, 0);
        layout_free(layout);
    }
}

/* Stage 3: each fetch unit starts a bucket; a unit larger than a bucket stands alone. */
static void test_stage3_fetch_units_start_buckets(void **state)
{
    /* a = 3+4 = 7, b = 2 (sum 9 <= 10), c = 5+9 = 14 > 10 alone: buckets 5 | 9; d = 1, e = 0. */
    const uint64_t numels[] = {3, 4, 2, 5, 9, 1, 0};
    const char *const units[] = {"a", "a", "b", "c", "c", "d", "e"};
    const uint64_t buckets[] = {9, 5, 9, 1}, padded[] = {10, 6, 10, 2};
    struct layout *layout = make(3, 2, 10, 1, numels, units, 7);
    const struct gw_layout_fetch_unit *fetch = layout_fetch_units(layout);
    const struct gw_layout_unit *unit = layout_units(layout);

    (void)state;
    check_buckets(layout, buckets, padded, 4);
    assert_int_equal(layout_page(layout)->units, 5);
    assert_int_equal(layout_page(layout)->fetch_units, 3);
    assert_int_equal(fetch[1].first_bucket, 1);
    assert_int_equal(fetch[1].buckets, 2);
    assert_int_equal(fetch[1].offset, 10);
    assert_int_equal(fetch[1].numel, 14);
    assert_int_equal(fetch[1].padded_numel, 16);
    assert_int_equal(fetch[2].first_unit, 3);
    assert_int_equal(fetch[2].units, 1); /* e has nothing to fetch */
    assert_int_equal(unit[1].first_param, 2);
    assert_int_equal(unit[1].first_bucket, 0);
    assert_int_equal(unit[1].buckets, 1);
    assert_int_equal(unit[4].fetch_unit, UINT32_MAX);
    assert_int_equal(unit[4].buckets, 0);
    assert_string_equal(layout_name(layout, unit[2].name_at), "c");
    layout_free(layout);
}

/* Stages 0-2: units do not move parameters; each says which buckets hold it. */
static void test_units_of_lower_stages_name_their_buckets(void **state)
{
    const uint64_t numels[] = {3, 4, 2, 5};
    const char *const units[] = {"a", "a", "b", "b"};
    const uint64_t buckets[] = {7, 7}, padded[] = {8, 8};
    struct layout *layout = make(1, 2, 8, 1, numels, units, 4);
    const struct gw_layout_unit *unit = layout_units(layout);

    (void)state;
    check_buckets(layout, buckets, padded, 2);
    assert_int_equal(unit[0].first_bucket, 0);
    assert_int_equal(unit[0].buckets, 1);
    assert_int_equal(unit[1].first_bucket, 1);
    assert_int_equal(unit[1].buckets, 1);
    assert_int_equal(layout_page(layout)->fetch_units, 2);
    assert_int_equal(layout_fetch_units(layout)[1].offset, 8);
    assert_int_equal(layout_fetch_units(layout)[1].padded_numel, 8);
    assert_int_equal(layout_buckets(layout)[0].fetch_unit, UINT32_MAX);
    layout_free(layout);
}

static void check_code(const struct layout_options *options, const struct layout_param *params,
                       uint32_t count, int want, uint32_t want_bad)
{
    struct layout *layout = NULL;
    uint32_t bad = 12345;

    assert_int_equal(layout_new(options, params, count, &layout, &bad), want);
    assert_int_equal(bad, want_bad);
    assert_null(layout);
}

static void check_refused(const struct layout_options *options, const struct layout_param *params,
                          uint32_t count, uint32_t want_bad)
{
    check_code(options, params, count, GW_E_INVALID, want_bad);
}

static void test_refusals_name_the_parameter(void **state)
{
    const struct layout_options good = fp32(3, 2, 10, 1);
    const struct layout_param twice[] = {param("a", "", 1), param("b", "", 1), param("a", "", 1)};
    const struct layout_param back[] = {
        param("a", "u", 1), param("b", "v", 1), param("c", "v", 1), param("d", "u", 1)};
    const struct layout_param own[] = {param("a", "", 1), param("b", "a", 1)};
    const struct layout_param huge[] = {
        param("a", "", 1), param("b", "", UINT64_MAX / 2), param("c", "", UINT64_MAX / 2 + 2)};
    const struct layout_param many[] = {param("a", "", 1), param("b", "", 1ull << 40)};
    const struct layout_param unnamed[] = {param("a", "", 1), param("", "", 1)};

    (void)state;
    check_refused(&good, twice, 3, 2);
    check_refused(&good, back, 4, 3);
    check_refused(&good, own, 2, 1);
    check_refused(&good, huge, 3, 1);
    check_code(&good, many, 2, GW_E_LIMIT, 1); /* 2^40 / 10 buckets */
    check_refused(&good, unnamed, 2, 1);
}

static void test_a_million_buckets_at_most(void **state)
{
    const struct layout_options options = fp32(3, 1, 2, 1);
    const struct layout_param most[] = {param("a", "", 2ull << 20)};
    const struct layout_param more[] = {param("a", "", 2ull << 20), param("b", "", 1)};
    struct layout *layout = NULL;
    uint32_t bad;

    (void)state;
    assert_int_equal(layout_new(&options, most, 1, &layout, &bad), 0);
    assert_int_equal(layout_page(layout)->buckets, 1u << 20);
    layout_free(layout);
    check_code(&options, more, 2, GW_E_LIMIT, 1);
}

static void test_bad_options_are_refused(void **state)
{
    const struct layout_param one[] = {param("a", "", 1)};
    const struct layout_options bad[] = {fp32(4, 2, 10, 1), fp32(1, 0, 10, 1), fp32(1, 2, 0, 1),
                                         fp32(1, 2, 10, 0), fp32(1, 2, 10, 3),
                                         fp32(1, 1u << 16, 10, 1u << 14)};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        check_refused(&bad[i], one, 1, UINT32_MAX);
}

static void test_page_is_one_block_with_consistent_offsets(void **state)
{
    const uint64_t numels[] = {3, 4, 2};
    const char *const units[] = {"a", "a", ""};
    struct layout *layout = make(3, 2, 10, 1, numels, units, 3);
    const struct gw_layout_page *page = layout_page(layout);
    const char *base = (const char *)page;

    (void)state;
    assert_int_equal(page->magic, GW_LAYOUT_MAGIC);
    assert_int_equal(page->version, GW_LAYOUT_VERSION);
    assert_ptr_equal(base + page->params_at, layout_params(layout));
    assert_ptr_equal(base + page->pieces_at, layout_pieces(layout));
    assert_ptr_equal(base + page->buckets_at, layout_buckets(layout));
    assert_ptr_equal(base + page->units_at, layout_units(layout));
    assert_ptr_equal(base + page->fetch_units_at, layout_fetch_units(layout));
    assert_ptr_equal(base + page->groups_at, layout_groups(layout));
    assert_ptr_equal(base + page->members_at, layout_page_members(page, 0));
    assert_ptr_equal(base + page->names_at, layout_name(layout, 0));
    assert_int_equal(page->groups, 1);
    assert_int_equal(page->members, 2);
    assert_int_equal(page->persistent, 0);
    assert_int_equal(page->shard_align_bytes, 4);
    assert_int_equal(page->bucket_bytes, 40);
    assert_int_equal(page->names_bytes, 3 * 3 + 2); /* p0 p1 p2 a; p2 is its own unit */
    assert_true(page->names_at + page->names_bytes <= page->size_bytes);
    assert_int_equal(page->size_bytes % 8, 0);
    assert_string_equal(layout_name(layout, layout_units(layout)[0].name_at), "a");
    assert_string_equal(layout_name(layout, layout_units(layout)[1].name_at), "p2");
    assert_int_equal(layout_params(layout)[2].unit, 1);
    assert_int_equal(layout_params(layout)[2].name_bytes, 2);
    assert_null(layout_free(layout));
    assert_null(layout_free(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_r02_buckets_close_when_next_does_not_fit),
        cmocka_unit_test(test_r11_slices_cut_through_parameters),
        cmocka_unit_test(test_f01_ranks_past_the_end_own_padding),
        cmocka_unit_test(test_r08_small_units_merge_into_fetch_units),
        cmocka_unit_test(test_r10_bucket_smaller_than_first_parameter),
        cmocka_unit_test(test_r10_bucket_smaller_than_one_slice_of_each),
        cmocka_unit_test(test_parameter_of_exactly_a_bucket_is_whole),
        cmocka_unit_test(test_b07_zero_size_parameters),
        cmocka_unit_test(test_stage3_fetch_units_start_buckets),
        cmocka_unit_test(test_units_of_lower_stages_name_their_buckets),
        cmocka_unit_test(test_refusals_name_the_parameter),
        cmocka_unit_test(test_a_million_buckets_at_most),
        cmocka_unit_test(test_bad_options_are_refused),
        cmocka_unit_test(test_page_is_one_block_with_consistent_offsets),
    };

    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
