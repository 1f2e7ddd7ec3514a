/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: properties that hold in every small world: up to 6 tensors of 4 sizes (0 included), up to
 * 5 ranks, several bucket sizes, alignments, unit patterns, all stages. No expected layouts here;
 * only what any right layout must satisfy.
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

#define TENSORS_MAX 6u

static const uint64_t sizes[] = {0, 1, 5, 9};
static const uint64_t bucket_sizes[] = {1, 4, 9, 13, 60};
static const uint32_t aligns[] = {1, 4};
static const char *const names[TENSORS_MAX] = {"a", "b", "c", "d", "e", "f"};
/* Every parameter a unit; pairs; one for all; mixed. */
static const char *const unit_patterns[][TENSORS_MAX] = {
    {"", "", "", "", "", ""},
    {"u", "u", "v", "v", "w", "w"},
    {"", "u", "u", "u", "", "v"},
};

struct world {
    struct layout_options options;
    struct layout_param params[TENSORS_MAX];
    uint32_t count;
    uint64_t bucket_numel; /* of fp32, as align_numel */
    uint32_t align_numel;
    const struct layout *layout;
};

#define EXPECT(world, condition)                                                                   \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_world(world, #condition, __LINE__);                                               \
    } while (0)

static void fail_world(const struct world *w, const char *condition, int line)
{
    print_error("line %d: not so: %s\n", line, condition);
    print_error("stage %u world %u bucket %llu align %u sizes", w->options.stage, w->options.world,
                (unsigned long long)w->bucket_numel, w->align_numel);
    for (uint32_t i = 0; i < w->count; i++)
        print_error(" %llu/%s", (unsigned long long)w->params[i].numel, w->params[i].unit);
    print_error("\n");
    fail();
}

/* Each element exactly once, parameters contiguous in flat order and in order of registration. */
static void check_coverage(const struct world *w)
{
    const struct gw_layout_page *page = layout_page(w->layout);
    const struct gw_layout_bucket *buckets = layout_buckets(w->layout);
    uint32_t next_piece = 0;
    uint64_t numel = 0, flat = 0;

    for (uint32_t i = 0; i < w->count; i++) {
        const struct gw_layout_param *param = &layout_params(w->layout)[i];
        uint64_t covered = 0;

        EXPECT(w, param->numel == w->params[i].numel);
        EXPECT(w, param->numel == 0 || param->first_piece == next_piece);
        for (uint32_t p = 0; p < param->pieces; p++) {
            const struct gw_layout_piece *piece = &layout_pieces(w->layout)[next_piece + p];

            EXPECT(w, piece->param == i && piece->numel > 0);
            EXPECT(w, piece->param_offset == covered);
            EXPECT(w,
                   buckets[piece->bucket].offset + piece->bucket_offset == param->offset + covered);
            covered += piece->numel;
        }
        EXPECT(w, covered == param->numel);
        EXPECT(w, !param->numel ? !param->offset : param->offset >= flat);
        if (param->numel)
            flat = param->offset + param->numel;
        next_piece += param->pieces;
        numel += param->numel;
    }
    EXPECT(w, next_piece == page->pieces && numel == page->numel);
}

/* Buckets: tiled by their pieces, bounded, padded by less than one slice of each, never empty. */
static void check_buckets(const struct world *w)
{
    const struct gw_layout_page *page = layout_page(w->layout);
    uint64_t grain = (uint64_t)w->options.world * w->align_numel, offset = 0, largest = 0;
    uint64_t bound = w->bucket_numel > grain ? w->bucket_numel : grain;
    uint32_t next_piece = 0;

    for (uint32_t b = 0; b < page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &layout_buckets(w->layout)[b];
        uint64_t filled = 0;

        EXPECT(w, bucket->offset == offset && bucket->first_piece == next_piece);
        EXPECT(w, bucket->numel > 0 && bucket->numel <= bound);
        EXPECT(w, bucket->padded_numel % grain == 0);
        EXPECT(w, bucket->padded_numel >= bucket->numel);
        EXPECT(w, bucket->padded_numel - bucket->numel < grain);
        for (uint32_t p = 0; p < bucket->pieces; p++) {
            const struct gw_layout_piece *piece = &layout_pieces(w->layout)[next_piece + p];

            EXPECT(w, piece->bucket == b && piece->bucket_offset == filled);
            filled += piece->numel;
        }
        EXPECT(w, filled == bucket->numel);
        next_piece += bucket->pieces;
        offset += bucket->padded_numel;
        largest = bucket->padded_numel > largest ? bucket->padded_numel : largest;
    }
    EXPECT(w, page->padded_numel == offset && page->max_bucket_bytes == 4 * largest);
}

/* A bucket ends only where the next parameter does not fit, is cut, or starts a fetch unit. */
static void check_bucket_ends(const struct world *w)
{
    const struct gw_layout_bucket *buckets = layout_buckets(w->layout);
    uint64_t grain = (uint64_t)w->options.world * w->align_numel;

    for (uint32_t b = 0; b + 1 < layout_page(w->layout)->buckets; b++) {
        const struct gw_layout_piece *next = &layout_pieces(w->layout)[buckets[b + 1].first_piece];

        if (w->options.stage == 3 && buckets[b].fetch_unit != buckets[b + 1].fetch_unit)
            continue;
        if (next->param_offset) {
            EXPECT(w, buckets[b].numel == buckets[b].padded_numel);
            EXPECT(w, buckets[b].pieces == 1 && next->param_offset % grain == 0);
            EXPECT(w, w->params[next->param].numel > w->bucket_numel);
        } else {
            EXPECT(w, buckets[b].numel + w->params[next->param].numel > w->bucket_numel);
        }
    }
}

/* Slices of all ranks tile each padded bucket. */
static void check_slices(const struct world *w)
{
    for (uint32_t b = 0; b < layout_page(w->layout)->buckets; b++) {
        const struct gw_layout_bucket *bucket = &layout_buckets(w->layout)[b];
        uint64_t offset = 0, at, numel = 0, valid, valid_sum = 0;

        for (uint32_t r = 0; r < w->options.world; r++) {
            layout_slice(w->layout, b, r, &at, &numel, &valid);
            EXPECT(w, valid <= numel && numel % w->align_numel == 0);
            EXPECT(w, w->options.stage ? at == offset : at == 0);
            EXPECT(w, w->options.stage || valid == bucket->numel);
            /* Valid elements come first in the bucket, padding last. */
            EXPECT(w, valid == numel || at + valid == bucket->numel || valid == 0);
            offset += numel;
            valid_sum += valid;
        }
        if (w->options.stage) {
            EXPECT(w, offset == bucket->padded_numel);
            EXPECT(w, valid_sum == bucket->numel);
        } else {
            EXPECT(w, numel == bucket->padded_numel);
        }
    }
}

static void check_unit(const struct world *w, uint32_t u)
{
    const struct gw_layout_unit *unit = &layout_units(w->layout)[u];
    uint32_t low = UINT32_MAX, high = 0;

    for (uint32_t i = unit->first_param; i < unit->first_param + unit->params; i++) {
        const struct gw_layout_param *param = &layout_params(w->layout)[i];

        EXPECT(w, param->unit == u);
        for (uint32_t p = 0; p < param->pieces; p++) {
            uint32_t bucket = layout_pieces(w->layout)[param->first_piece + p].bucket;

            low = bucket < low ? bucket : low;
            high = bucket + 1 > high ? bucket + 1 : high;
        }
    }
    if (high == 0)
        EXPECT(w, unit->buckets == 0);
    else
        EXPECT(w, unit->first_bucket == low && unit->buckets == high - low);
}

static uint64_t unit_numel(const struct world *w, uint32_t u)
{
    const struct gw_layout_unit *unit = &layout_units(w->layout)[u];
    uint64_t numel = 0;

    for (uint32_t i = 0; i < unit->params; i++)
        numel += w->params[unit->first_param + i].numel;
    return numel;
}

/* Stages 0-2: one per unit. */
static void check_own_fetch_units(const struct world *w)
{
    const struct gw_layout_page *page = layout_page(w->layout);

    EXPECT(w, page->fetch_units == page->units);
    for (uint32_t f = 0; f < page->fetch_units; f++) {
        const struct gw_layout_fetch_unit *fetch = &layout_fetch_units(w->layout)[f];
        const struct gw_layout_unit *unit = &layout_units(w->layout)[f];

        EXPECT(w, fetch->first_unit == f && fetch->units == 1 && unit->fetch_unit == f);
        EXPECT(w, fetch->numel == unit_numel(w, f));
        EXPECT(w, fetch->first_bucket == unit->first_bucket && fetch->buckets == unit->buckets);
    }
}

/* Stage 3: runs of units, empty ones passed over, merged as far as a bucket goes, each with buckets
 * of its own. */
static void check_fetch_unit(const struct world *w, uint32_t f, uint32_t *next_unit,
                             uint32_t *next_bucket)
{
    const struct gw_layout_page *page = layout_page(w->layout);
    const struct gw_layout_fetch_unit *fetch = &layout_fetch_units(w->layout)[f];
    uint64_t numel = 0, padded = 0;
    uint32_t merged = 0;

    for (; *next_unit < fetch->first_unit; ++*next_unit)
        EXPECT(w, unit_numel(w, *next_unit) == 0);
    EXPECT(w, *next_unit == fetch->first_unit && fetch->units > 0 && fetch->buckets > 0);
    for (uint32_t end = *next_unit + fetch->units; *next_unit < end; ++*next_unit) {
        uint32_t want = unit_numel(w, *next_unit) ? f : UINT32_MAX;

        EXPECT(w, layout_units(w->layout)[*next_unit].fetch_unit == want);
        merged += want == f;
        numel += unit_numel(w, *next_unit);
    }
    EXPECT(w, fetch->numel == numel);
    EXPECT(w, merged == 1 || numel <= w->bucket_numel);
    if (f + 1 < page->fetch_units)
        EXPECT(w, numel + unit_numel(w, fetch[1].first_unit) > w->bucket_numel);
    for (uint32_t b = 0; b < fetch->buckets; b++) {
        EXPECT(w, fetch->first_bucket == *next_bucket);
        EXPECT(w, layout_buckets(w->layout)[*next_bucket + b].fetch_unit == f);
        padded += layout_buckets(w->layout)[*next_bucket + b].padded_numel;
    }
    EXPECT(w, padded == fetch->padded_numel);
    EXPECT(w, fetch->offset == layout_buckets(w->layout)[*next_bucket].offset);
    *next_bucket += fetch->buckets;
}

static void check_units(const struct world *w)
{
    const struct gw_layout_page *page = layout_page(w->layout);
    uint32_t next_unit = 0, next_bucket = 0;

    for (uint32_t u = 0; u < page->units; u++)
        check_unit(w, u);
    if (w->options.stage < 3) {
        check_own_fetch_units(w);
        return;
    }
    for (uint32_t f = 0; f < page->fetch_units; f++)
        check_fetch_unit(w, f, &next_unit, &next_bucket);
    for (; next_unit < page->units; next_unit++)
        EXPECT(w, unit_numel(w, next_unit) == 0);
    EXPECT(w, next_bucket == page->buckets);
}

static void check_world(struct world *w)
{
    struct layout *layout = NULL, *again = NULL;
    uint32_t bad = 0;

    assert_int_equal(layout_new(&w->options, w->params, w->count, &layout, &bad), 0);
    assert_int_equal(layout_new(&w->options, w->params, w->count, &again, &bad), 0);
    w->layout = layout;
    EXPECT(w, layout_page(layout)->size_bytes == layout_page(again)->size_bytes);
    EXPECT(w, !memcmp(layout_page(layout), layout_page(again),
                      (size_t)layout_page(layout)->size_bytes));
    check_coverage(w);
    check_buckets(w);
    check_bucket_ends(w);
    check_slices(w);
    check_units(w);
    layout_free(layout);
    layout_free(again);
}

/* Tensor sizes from the digits of `code` in base 4. */
static void set_sizes(struct world *w, uint32_t code, uint32_t count, uint32_t pattern)
{
    w->count = count;
    for (uint32_t i = 0; i < count; i++) {
        w->params[i] = (struct layout_param){
            .name = names[i], .unit = unit_patterns[pattern][i], .numel = sizes[code % 4]};
        code /= 4;
    }
}

/* All option sets for one list of parameters; units matter in stage 3 only. */
static uint32_t check_options(struct world *w, uint32_t stage)
{
    uint32_t checked = 0;

    for (uint32_t world = 1; world <= 5; world++) {
        for (size_t b = 0; b < sizeof(bucket_sizes) / sizeof(bucket_sizes[0]); b++) {
            for (size_t a = 0; a < sizeof(aligns) / sizeof(aligns[0]); a++) {
                w->bucket_numel = bucket_sizes[b];
                w->align_numel = aligns[a];
                w->options = (struct layout_options){.stage = stage,
                                                     .world = world,
                                                     .bucket_bytes = 4 * bucket_sizes[b],
                                                     .align_bytes = 4 * aligns[a]};
                check_world(w);
                checked++;
            }
        }
    }
    return checked;
}

static void check_stage(uint32_t stage, uint32_t tensors, uint32_t patterns)
{
    struct world w = {0};
    uint32_t codes = 1, checked = 0;

    for (uint32_t count = 0; count <= tensors; count++) {
        for (uint32_t code = 0; code < codes; code++) {
            for (uint32_t pattern = 0; pattern < patterns; pattern++) {
                set_sizes(&w, code, count, pattern);
                checked += check_options(&w, stage);
            }
        }
        codes *= 4;
    }
    print_message("stage %u: %u layouts\n", stage, checked);
}

static void test_stage0_small_worlds(void **state)
{
    (void)state;
    check_stage(0, 5, 1);
}

static void test_stage1_small_worlds(void **state)
{
    (void)state;
    check_stage(1, 6, 1);
}

static void test_stage2_small_worlds(void **state)
{
    (void)state;
    check_stage(2, 5, 2);
}

static void test_stage3_small_worlds(void **state)
{
    (void)state;
    check_stage(3, 6, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stage0_small_worlds),
        cmocka_unit_test(test_stage1_small_worlds),
        cmocka_unit_test(test_stage2_small_worlds),
        cmocka_unit_test(test_stage3_small_worlds),
    };

    return cmocka_run_group_tests_name("layout_worlds", tests, NULL, NULL);
}
