/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: dtypes, groups, hybrid sharding and persistence, with values worked out by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/layout.h"
#include "gradwire/errors.h"
#include "proto/limits.h"

#define FP32 GW_DTYPE_FP32
#define FP16 GW_DTYPE_FP16
#define BF16 GW_DTYPE_BF16
#define COUNT(array) (uint32_t)(sizeof(array) / sizeof((array)[0]))

struct row { /* of an expected bucket */
    uint64_t offset, numel, padded;
    uint32_t group, first_piece, pieces, fetch_unit;
    uint8_t dtype, grad_dtype, accum_dtype;
};

static struct layout_param param(const char *name, const char *unit, uint64_t numel, uint32_t group,
                                 uint8_t dtype, uint8_t grad_dtype)
{
    return (struct layout_param){.name = name,
                                 .unit = unit,
                                 .numel = numel,
                                 .group = group,
                                 .dtype = dtype,
                                 .grad_dtype = grad_dtype};
}

static struct layout *make(const struct layout_options *options, const struct layout_param *params,
                           uint32_t count)
{
    struct layout *layout = NULL;
    uint32_t bad;

    assert_int_equal(layout_new(options, params, count, &layout, &bad), 0);
    return layout;
}

static void check_buckets(const struct layout *layout, const struct row *rows, uint32_t count)
{
    const struct gw_layout_page *page = layout_page(layout);
    uint64_t padded = 0;

    assert_int_equal(page->buckets, count);
    for (uint32_t b = 0; b < count; b++) {
        const struct gw_layout_bucket *got = &layout_buckets(layout)[b];

        assert_int_equal(got->offset, rows[b].offset);
        assert_int_equal(got->numel, rows[b].numel);
        assert_int_equal(got->padded_numel, rows[b].padded);
        assert_int_equal(got->group, rows[b].group);
        assert_int_equal(got->first_piece, rows[b].first_piece);
        assert_int_equal(got->pieces, rows[b].pieces);
        assert_int_equal(got->fetch_unit, rows[b].fetch_unit);
        assert_int_equal(got->dtype, rows[b].dtype);
        assert_int_equal(got->grad_dtype, rows[b].grad_dtype);
        assert_int_equal(got->accum_dtype, rows[b].accum_dtype);
        padded += rows[b].padded;
    }
    assert_int_equal(page->padded_numel, padded);
}

static void check_offsets(const struct layout *layout, const uint64_t *offsets,
                          const uint32_t *first_pieces)
{
    for (uint32_t i = 0; i < layout_page(layout)->params; i++) {
        assert_int_equal(layout_params(layout)[i].offset, offsets[i]);
        assert_int_equal(layout_params(layout)[i].first_piece, first_pieces[i]);
    }
}

static void check_fetch(const struct layout *layout, uint32_t f,
                        const struct gw_layout_fetch_unit *want)
{
    const struct gw_layout_fetch_unit *got = &layout_fetch_units(layout)[f];

    assert_int_equal(got->first_unit, want->first_unit);
    assert_int_equal(got->units, want->units);
    assert_int_equal(got->first_bucket, want->first_bucket);
    assert_int_equal(got->buckets, want->buckets);
    assert_int_equal(got->offset, want->offset);
    assert_int_equal(got->numel, want->numel);
    assert_int_equal(got->padded_numel, want->padded_numel);
}

/* ---- stages 0-2 ------------------------------------------------------------------------------ */

/* Four ranks, a group of two of them, buckets of 32 bytes of gradients: 8 fp32 or 16 bf16. */
static void each_class_fills_its_own_buckets(void **state)
{
    static const uint32_t ranks[] = {2, 0};
    const struct layout_group group = {ranks, 2, 0};
    const struct layout_param params[] = {
        param("a", "", 5, 0, FP32, FP32), param("b", "", 6, 0, BF16, BF16),
        param("c", "", 3, 0, FP32, FP32), param("d", "", 3, 1, FP32, FP32),
        param("e", "", 9, 0, BF16, BF16), param("f", "", 1, 0, FP32, FP32),
        param("g", "", 2, 0, BF16, FP32)};
    /* Four bytes are 2 bf16: a grain of 8, where any of the dtypes is bf16; of two ranks: 2. */
    const struct row rows[] = {{0, 8, 8, 0, 0, 2, UINT32_MAX, FP32, FP32, FP32},
                               {8, 15, 16, 0, 2, 2, UINT32_MAX, BF16, BF16, FP32},
                               {24, 3, 4, 1, 4, 1, UINT32_MAX, FP32, FP32, FP32},
                               {28, 1, 4, 0, 5, 1, UINT32_MAX, FP32, FP32, FP32},
                               {32, 2, 8, 0, 6, 1, UINT32_MAX, BF16, FP32, FP32}};
    const uint64_t offsets[] = {0, 8, 5, 24, 14, 28, 32};
    const uint32_t first_pieces[] = {0, 2, 1, 4, 3, 5, 6};
    struct row as_grads[COUNT(rows)];
    struct layout_options options = {.world = 4,
                                     .bucket_bytes = 32,
                                     .align_bytes = 4,
                                     .groups = &group,
                                     .group_count = 1};

    (void)state;
    memcpy(as_grads, rows, sizeof(rows));
    as_grads[1].accum_dtype = BF16;
    for (options.stage = 0; options.stage < 3; options.stage++) {
        for (options.accum_as_grads = 0; options.accum_as_grads < 2; options.accum_as_grads++) {
            struct layout *layout = make(&options, params, COUNT(params));

            check_buckets(layout, options.accum_as_grads ? as_grads : rows, COUNT(rows));
            check_offsets(layout, offsets, first_pieces);
            assert_int_equal(layout_page(layout)->numel, 29);
            assert_int_equal(layout_page(layout)->max_bucket_bytes, 32);
            assert_int_equal(layout_params(layout)[6].dtype, BF16);
            assert_int_equal(layout_params(layout)[6].grad_dtype, FP32);
            assert_int_equal(layout_params(layout)[3].group, 1);
            layout_free(layout);
        }
    }
}

/* A parameter that is cut takes buckets in a row, though another class has one open. */
static void cut_parameters_stay_contiguous(void **state)
{
    const struct layout_param params[] = {
        param("a", "u", 2, 0, FP32, FP32), param("b", "u", 20, 0, BF16, BF16),
        param("c", "u", 2, 0, FP32, FP32), param("d", "v", 4, 0, BF16, BF16),
        param("e", "v", 1, 0, FP32, FP32)};
    /* Buckets of 16 bytes: 4 fp32, 8 bf16. Grains 2 and 4. */
    const struct row rows[] = {{0, 4, 4, 0, 0, 2, UINT32_MAX, FP32, FP32, FP32},
                               {4, 8, 8, 0, 2, 1, UINT32_MAX, BF16, BF16, FP32},
                               {12, 8, 8, 0, 3, 1, UINT32_MAX, BF16, BF16, FP32},
                               {20, 8, 8, 0, 4, 2, UINT32_MAX, BF16, BF16, FP32},
                               {28, 1, 2, 0, 6, 1, UINT32_MAX, FP32, FP32, FP32}};
    const uint64_t offsets[] = {0, 4, 2, 24, 28};
    const uint32_t first_pieces[] = {0, 2, 1, 5, 6};
    struct layout_options options = {
        .stage = 1, .world = 2, .bucket_bytes = 16, .align_bytes = 4};
    struct layout *layout = make(&options, params, COUNT(params));
    const struct gw_layout_unit *units = layout_units(layout);

    (void)state;
    check_buckets(layout, rows, COUNT(rows));
    check_offsets(layout, offsets, first_pieces);
    assert_int_equal(layout_params(layout)[1].pieces, 3);
    assert_int_equal(layout_pieces(layout)[4].param_offset, 16);
    assert_int_equal(layout_pieces(layout)[4].numel, 4);
    assert_int_equal(layout_pieces(layout)[5].bucket_offset, 4);
    /* From the first to the last bucket of its parameters. */
    assert_int_equal(units[0].first_bucket, 0);
    assert_int_equal(units[0].buckets, 4);
    assert_int_equal(units[1].first_bucket, 3);
    assert_int_equal(units[1].buckets, 2);
    layout_free(layout);
}

/* A bucket that holds one bf16 value holds no fp32 one. */
static void a_bucket_holds_at_least_an_element(void **state)
{
    const struct layout_param params[] = {param("a", "", 3, 0, FP32, BF16),
                                          param("b", "", 3, 0, FP32, FP32)};
    struct layout_options options = {.stage = 1, .world = 1, .bucket_bytes = 2, .align_bytes = 4};
    struct layout *layout = NULL;
    uint32_t bad;

    (void)state;
    layout = make(&options, params, 1);
    assert_int_equal(layout_page(layout)->buckets, 2); /* cut at the grain, 2 elements */
    layout_free(layout);
    assert_int_equal(layout_new(&options, params, 2, &layout, &bad), GW_E_INVALID);
    assert_int_equal(bad, 1);
}

/* ---- stage 3 --------------------------------------------------------------------------------- */

static void fetch_units_sort_their_buckets_by_group_and_class(void **state)
{
    static const uint32_t ranks[] = {1, 3};
    const struct layout_group group = {ranks, 2, 0};
    const struct layout_param params[] = {
        param("a", "u", 4, 0, FP32, FP32), param("b", "u", 4, 1, FP32, FP32),
        param("c", "u", 4, 0, BF16, FP32), param("d", "u", 2, 0, FP32, FP32),
        param("e", "u", 2, 1, FP32, FP32), param("f", "v", 3, 0, FP32, FP32),
        param("g", "w", 3, 0, BF16, BF16), param("h", "x", 4, 1, FP32, FP32),
        param("i", "y", 4, 1, FP32, FP32), param("j", "z", 4, 1, FP32, FP32)};
    /* u has two groups and stands alone; v and w are of one group; x and y fill 32 bytes. */
    const struct row rows[] = {
        {0, 6, 8, 0, 0, 2, 0, FP32, FP32, FP32},  {8, 4, 8, 0, 2, 1, 0, BF16, FP32, FP32},
        {16, 6, 6, 1, 3, 2, 0, FP32, FP32, FP32}, {22, 3, 4, 0, 5, 1, 1, FP32, FP32, FP32},
        {26, 3, 8, 0, 6, 1, 1, BF16, BF16, FP32}, {34, 8, 8, 1, 7, 2, 2, FP32, FP32, FP32},
        {42, 4, 4, 1, 9, 1, 3, FP32, FP32, FP32}};
    const uint64_t offsets[] = {0, 16, 8, 4, 20, 22, 26, 34, 38, 42};
    const uint32_t first_pieces[] = {0, 3, 2, 1, 4, 5, 6, 7, 8, 9};
    const struct gw_layout_fetch_unit fetch[] = {{0, 1, 0, 3, 0, 16, 22},
                                                 {1, 2, 3, 2, 22, 6, 12},
                                                 {3, 2, 5, 1, 34, 8, 8},
                                                 {5, 1, 6, 1, 42, 4, 4}};
    struct layout_options options = {.stage = 3,
                                     .world = 4,
                                     .bucket_bytes = 32,
                                     .align_bytes = 4,
                                     .groups = &group,
                                     .group_count = 1};
    struct layout *layout = make(&options, params, COUNT(params));

    (void)state;
    check_buckets(layout, rows, COUNT(rows));
    check_offsets(layout, offsets, first_pieces);
    assert_int_equal(layout_page(layout)->fetch_units, COUNT(fetch));
    for (uint32_t f = 0; f < COUNT(fetch); f++)
        check_fetch(layout, f, &fetch[f]);
    assert_int_equal(layout_units(layout)[0].buckets, 3);
    assert_int_equal(layout_units(layout)[2].first_bucket, 4);
    assert_int_equal(layout_units(layout)[4].fetch_unit, 2);
    layout_free(layout);
}

/* Two ranks, 8 bytes: l0.b, l1.b and ln.g persist. What is left of l0, l1 and head is 116 bytes. */
static void small_parameters_persist_together(void **state)
{
    const struct layout_param params[] = {
        param("l0.w", "l0", 10, 0, FP32, FP32), param("l0.b", "l0", 2, 0, FP32, FP32),
        param("l0.e", "l0", 0, 0, FP32, FP32),  param("l1.w", "l1", 10, 0, FP32, FP32),
        param("l1.b", "l1", 4, 0, BF16, FP32),  param("ln.g", "ln", 1, 0, FP32, FP32),
        param("head", "", 9, 0, FP32, FP32)};
    const struct row rows[] = {{0, 3, 4, 0, 0, 2, 0, FP32, FP32, FP32},
                               {4, 4, 4, 0, 2, 1, 0, BF16, FP32, FP32},
                               {8, 29, 30, 0, 3, 3, 1, FP32, FP32, FP32}};
    const uint64_t offsets[] = {8, 0, 0, 18, 4, 2, 28};
    const uint32_t first_pieces[] = {3, 0, 0, 4, 2, 1, 5};
    const uint8_t persistent[] = {0, 1, 0, 0, 1, 1, 0}, some[] = {1, 1, 1, 0};
    const uint32_t fetch_units[] = {1, 1, UINT32_MAX, 1};
    struct layout_options options = {
        .stage = 3, .world = 2, .bucket_bytes = 120, .align_bytes = 4, .persist_bytes = 8};
    struct layout *layout = make(&options, params, COUNT(params));

    (void)state;
    check_buckets(layout, rows, COUNT(rows));
    check_offsets(layout, offsets, first_pieces);
    assert_int_equal(layout_page(layout)->persistent, 1);
    assert_int_equal(layout_page(layout)->fetch_units, 2);
    check_fetch(layout, 0, &(struct gw_layout_fetch_unit){0, 0, 0, 2, 0, 7, 8});
    check_fetch(layout, 1, &(struct gw_layout_fetch_unit){0, 4, 2, 1, 8, 29, 30});
    for (uint32_t i = 0; i < COUNT(params); i++)
        assert_int_equal(layout_params(layout)[i].persistent, persistent[i]);
    for (uint32_t u = 0; u < 4; u++) {
        assert_int_equal(layout_units(layout)[u].persistent, some[u]);
        assert_int_equal(layout_units(layout)[u].fetch_unit, fetch_units[u]);
        assert_int_equal(layout_units(layout)[u].buckets, u != 2);
    }
    layout_free(layout);
    options.stage = 2; /* all are there all the time */
    layout = make(&options, params, COUNT(params));
    assert_int_equal(layout_page(layout)->persistent, 0);
    assert_int_equal(layout_page(layout)->buckets, 3); /* 23 + 9 fp32 are more than 30 */
    layout_free(layout);
    options.stage = 3; /* all of them */
    options.persist_bytes = UINT64_MAX;
    layout = make(&options, params, COUNT(params));
    assert_int_equal(layout_page(layout)->fetch_units, 1);
    assert_int_equal(layout_units(layout)[3].fetch_unit, UINT32_MAX);
    layout_free(layout);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void groups_keep_order_and_runs(void **state)
{
    static const uint32_t ranks[] = {5, 0, 3, 2}, one[] = {4};
    const struct layout_group groups[] = {{ranks, 4, 2}, {one, 1, 0}};
    const struct layout_param params[] = {param("a", "", 24, 0, FP32, FP32),
                                          param("b", "", 10, 1, FP32, FP32)};
    struct layout_options options = {.stage = 2,
                                     .world = 6,
                                     .bucket_bytes = 1000,
                                     .align_bytes = 4,
                                     .shard_ranks = 3,
                                     .groups = groups,
                                     .group_count = 2};
    struct layout *layout = make(&options, params, 2);
    const struct gw_layout_page *page = layout_page(layout);
    const struct gw_layout_group *made = layout_groups(layout);
    uint64_t offset, numel, valid;

    (void)state;
    assert_int_equal(page->groups, 3);
    assert_int_equal(page->members, 6 + 4 + 1);
    assert_int_equal(made[0].shard_ranks, 3);
    assert_int_equal(made[1].shard_ranks, 2);
    assert_int_equal(made[2].members, 1);
    assert_int_equal(made[2].shard_ranks, 1);
    assert_memory_equal(layout_page_members(page, 1), ranks, sizeof(ranks));
    assert_int_equal(layout_page_position(page, 1, 3), 2);
    assert_int_equal(layout_page_position(page, 1, 4), UINT32_MAX);
    assert_int_equal(layout_page_position(page, 0, 4), 4);
    /* b: 10 padded to a multiple of 4 members; two slices of 6. */
    assert_int_equal(layout_buckets(layout)[1].padded_numel, 12);
    layout_slice(layout, 1, 1, &offset, &numel, &valid);
    assert_int_equal(offset, 6);
    assert_int_equal(numel, 6);
    assert_int_equal(valid, 4);
    layout_slice(layout, 0, 2, &offset, &numel, &valid);
    assert_int_equal(offset, 16);
    assert_int_equal(valid, 8);
    layout_free(layout);
    options.stage = 0; /* no shards: nothing to keep copies of */
    layout = make(&options, params, 2);
    assert_int_equal(layout_groups(layout)[0].shard_ranks, 6);
    assert_int_equal(layout_groups(layout)[1].shard_ranks, 4);
    layout_free(layout);
}

static void a_plan_has_more_ranks_than_bits(void **state)
{
    const struct layout_param params[] = {param("a", "", 24, 0, FP32, FP32)};
    struct layout_options options = {
        .stage = 1, .world = 1000, .bucket_bytes = 1000, .align_bytes = 4, .shard_ranks = 8};
    struct layout *layout = make(&options, params, 1);

    (void)state;
    assert_int_equal(layout_groups(layout)[0].members, 1000);
    assert_int_equal(layout_groups(layout)[0].shard_ranks, 8);
    assert_int_equal(layout_page_members(layout_page(layout), 0)[999], 999);
    layout_free(layout);
}

static void check_refused(const struct layout_options *options, const struct layout_param *param,
                          uint32_t want_bad)
{
    struct layout *layout = NULL;
    uint32_t bad = 12345;

    assert_int_equal(layout_new(options, param, 1, &layout, &bad), GW_E_INVALID);
    assert_int_equal(bad, want_bad);
}

static void groups_that_cannot_be_are_refused(void **state)
{
    static const uint32_t twice[] = {1, 2, 1}, none[] = {0, 4}, good[] = {0, 1, 2, 3, 3};
    const struct layout_group bad[] = {
        {twice, 3, 0}, {none, 2, 0}, {good, 0, 0}, {good, 5, 0}, {good, 3, 2}};
    struct layout_group many[GW_GROUPS_MAX];
    struct layout_param a = param("a", "", 8, 0, FP32, FP32);
    struct layout_options options = {
        .stage = 1, .world = 4, .bucket_bytes = 1000, .align_bytes = 4, .group_count = 1};

    (void)state;
    for (uint32_t i = 0; i < COUNT(bad); i++) {
        options.groups = &bad[i];
        check_refused(&options, &a, UINT32_MAX);
    }
    for (uint32_t i = 0; i < GW_GROUPS_MAX; i++)
        many[i] = (struct layout_group){good, 2, 0};
    options.groups = many;
    options.group_count = GW_GROUPS_MAX;
    check_refused(&options, &a, UINT32_MAX);
    options.group_count = GW_GROUPS_MAX - 1;
    layout_free(make(&options, &a, 1));
    options.shard_ranks = 3;
    check_refused(&options, &a, UINT32_MAX);
    options.shard_ranks = 0;
    a.group = GW_GROUPS_MAX;
    check_refused(&options, &a, 0);
    a.group = 1;
    a.dtype = GW_DTYPES;
    check_refused(&options, &a, 0);
    a.dtype = FP16;
    a.grad_dtype = GW_DTYPES;
    check_refused(&options, &a, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_class_fills_its_own_buckets),
        cmocka_unit_test(cut_parameters_stay_contiguous),
        cmocka_unit_test(a_bucket_holds_at_least_an_element),
        cmocka_unit_test(fetch_units_sort_their_buckets_by_group_and_class),
        cmocka_unit_test(small_parameters_persist_together),
        cmocka_unit_test(groups_keep_order_and_runs),
        cmocka_unit_test(a_plan_has_more_ranks_than_bits),
        cmocka_unit_test(groups_that_cannot_be_are_refused),
    };

    return cmocka_run_group_tests_name("layout_classes", tests, NULL, NULL);
}
