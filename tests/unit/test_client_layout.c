/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's check of layout pages: what daemon/core/layout makes is taken, and every field
 * changed at random is either refused or leaves all indices inside their arrays.
 * ctest: link=gw_client
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/lib/layout_view.h"
#include "daemon/core/layout.h"
#include "gradwire/gradwire.h"
#include "proto/limits.h"
#include "tests/unit/layout_use.h"

static const struct layout_param params[] = {
    {.name = "embed", .unit = "", .numel = 40},
    {.name = "l0.w", .unit = "l0", .numel = 100, .dtype = GW_DTYPE_BF16,
     .grad_dtype = GW_DTYPE_BF16},
    {.name = "l0.b", .unit = "l0", .numel = 0},
    {.name = "l0.e", .unit = "l0", .numel = 30, .group = 1, .grad_dtype = GW_DTYPE_FP16},
    {.name = "l1.w", .unit = "l1", .numel = 7},
    {.name = "l1.b", .unit = "l1", .numel = 3},
    {.name = "head", .unit = "", .numel = 19, .dtype = GW_DTYPE_BF16},
};
#define PARAMS (sizeof(params) / sizeof(params[0]))

/* Hybrid in group 0; parameters of up to persist_bytes stay gathered in stage 3. */
static struct layout *make(uint32_t stage, uint64_t persist_bytes)
{
    static const uint32_t ranks[] = {3, 1, 0};
    static const struct layout_group group = {ranks, 3, 0};
    struct layout_options options = {.stage = stage,
                                     .world = 4,
                                     .bucket_bytes = 128,
                                     .align_bytes = 4,
                                     .accum_as_grads = stage == 2,
                                     .persist_bytes = persist_bytes,
                                     .shard_ranks = 2,
                                     .groups = &group,
                                     .group_count = 1};
    struct layout *layout = NULL;
    uint32_t bad;

    assert_int_equal(layout_new(&options, params, PARAMS, &layout, &bad), 0);
    return layout;
}

static void what_the_core_makes_is_taken(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 8; round++) {
        struct layout *layout = make(round % 4, round / 4 * 30);
        const struct gw_layout_page *page = layout_page(layout);
        struct layout_view view;
        const char *what = NULL;

        assert_int_equal(layout_view(page, page->size_bytes, &view, &what), 0);
        assert_int_equal(view.page->params, PARAMS);
        assert_string_equal(view.names + view.params[4].name_at, "l1.w");
        assert_string_equal(view.names + view.units[1].name_at, "l0");
        assert_int_equal(view.groups[1].members, 3);
        assert_int_equal(view.members[view.groups[1].first_member], 3);
        assert_int_equal(view.params[5].persistent, round == 7);
        assert_true(layout_use(&view));
        layout_free(layout);
    }
}

static void a_short_or_foreign_page_is_refused(void **state)
{
    struct layout *layout = make(2, 0);
    const struct gw_layout_page *page = layout_page(layout);
    struct gw_layout_page other = *page;
    struct layout_view view;
    const char *what = NULL;

    (void)state;
    assert_int_equal(layout_view(page, page->size_bytes - 1, &view, &what), GW_E_PROTOCOL);
    assert_string_equal(what, "size");
    assert_int_equal(layout_view(page, 8, &view, &what), GW_E_PROTOCOL);
    other.magic ^= 1;
    assert_int_equal(layout_view(&other, page->size_bytes, &view, &what), GW_E_PROTOCOL);
    layout_free(layout);
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* A copy of a page with its arrays at hand, to be damaged. */
struct damaged {
    struct layout *layout;
    struct gw_layout_page *page;
    struct gw_layout_param *params;
    struct gw_layout_piece *pieces;
    struct gw_layout_bucket *buckets;
    struct gw_layout_unit *units;
    struct gw_layout_fetch_unit *fetch_units;
    struct gw_layout_group *groups;
    uint32_t *members;
};

static struct damaged open_page(uint32_t stage, uint64_t persist_bytes)
{
    struct damaged d = {.layout = make(stage, persist_bytes)};
    char *at;

    d.page = malloc(layout_page(d.layout)->size_bytes);
    assert_non_null(d.page);
    memcpy(d.page, layout_page(d.layout), layout_page(d.layout)->size_bytes);
    at = (char *)d.page;
    d.params = (void *)(at + d.page->params_at);
    d.pieces = (void *)(at + d.page->pieces_at);
    d.buckets = (void *)(at + d.page->buckets_at);
    d.units = (void *)(at + d.page->units_at);
    d.fetch_units = (void *)(at + d.page->fetch_units_at);
    d.groups = (void *)(at + d.page->groups_at);
    d.members = (void *)(at + d.page->members_at);
    return d;
}

/* What it says, or "taken". */
static const char *close_page(struct damaged *d)
{
    struct layout_view view;
    const char *what = NULL;

    if (layout_view(d->page, d->page->size_bytes, &view, &what) == 0)
        what = "taken";
    free(d->page);
    layout_free(d->layout);
    return what;
}

#define REFUSED(stage, persist_bytes, change, text)                                                \
    do {                                                                                           \
        struct damaged d = open_page(stage, persist_bytes);                                        \
        change;                                                                                    \
        assert_string_equal(close_page(&d), text);                                                 \
    } while (0)

static void headers_that_lie_are_refused(void **state)
{
    (void)state;
    REFUSED(1, 0, d.page->version = 1, "magic or version");
    REFUSED(1, 0, d.page->stage = 4, "stage or world");
    REFUSED(1, 0, d.page->world = 0, "stage or world");
    REFUSED(1, 0, d.page->world = GW_RANKS_MAX + 1, "stage or world");
    REFUSED(1, 0, d.page->shard_align_bytes = 2, "alignment");
    REFUSED(1, 0, d.page->shard_align_bytes = 12, "alignment");
    REFUSED(1, 0, d.page->persistent = 1, "persistent parameters");
    REFUSED(3, 0, d.page->persistent = 2, "persistent parameters");
    REFUSED(1, 0, d.page->groups = 0, "counts");
    REFUSED(1, 0, d.page->groups = GW_GROUPS_MAX + 1, "counts");
    REFUSED(1, 0, d.page->params = GW_PARAMS_MAX + 1, "counts");
    REFUSED(1, 0, d.page->buckets = GW_BUCKETS_MAX + 1, "counts");
    REFUSED(1, 0, d.page->units = PARAMS + 1, "counts");
    REFUSED(1, 0, d.page->fetch_units = PARAMS, "counts");
    REFUSED(1, 0, d.page->numel = UINT64_MAX / 2, "sizes");
    REFUSED(1, 0, d.page->padded_numel = UINT64_MAX / 2, "sizes");
    REFUSED(1, 0, d.page->members = UINT32_MAX, "arrays");
    REFUSED(1, 0, d.page->groups_at += 4, "arrays");
    REFUSED(1, 0, d.page->members_at = 8, "arrays");
    REFUSED(1, 0, d.page->names_at = d.page->size_bytes, "arrays");
    REFUSED(1, 0, d.page->params_at = UINT64_MAX - 7, "arrays");
    REFUSED(1, 0, d.page->pieces_at += 1, "arrays");
    REFUSED(1, 0, d.page->buckets_at += 1, "arrays");
    REFUSED(1, 0, d.page->units_at += 1, "arrays");
    REFUSED(1, 0, d.page->fetch_units_at += 1, "arrays");
}

static void groups_that_cannot_be_are_refused(void **state)
{
    (void)state;
    REFUSED(1, 0, d.groups[1].first_member = 3, "a group");
    REFUSED(1, 0, d.groups[1].members = 0, "a group");
    REFUSED(1, 0, d.groups[1].members = 4, "a group");
    REFUSED(1, 0, d.groups[0].members = 3, "a group");
    REFUSED(1, 0, d.groups[0].shard_ranks = 0, "a group's shard_ranks");
    REFUSED(1, 0, d.groups[0].shard_ranks = 3, "a group's shard_ranks");
    REFUSED(0, 0, d.groups[0].shard_ranks = 2, "a group's shard_ranks");
    REFUSED(1, 0, d.members[5] = 4, "a group's members");  /* no such rank */
    REFUSED(1, 0, d.members[5] = 3, "a group's members");  /* twice */
    REFUSED(1, 0, (d.members[0] = 1, d.members[1] = 0), "a group's members");
    REFUSED(1, 0, (d.groups[1].members = d.groups[1].shard_ranks = 2),
            "the sum of groups");
}

static void buckets_that_lie_are_refused(void **state)
{
    (void)state;
    REFUSED(1, 0, d.buckets[0].group = 2, "a bucket's group or dtypes");
    REFUSED(1, 0, d.buckets[0].dtype = GW_DTYPES, "a bucket's group or dtypes");
    REFUSED(1, 0, d.buckets[0].grad_dtype = GW_DTYPES, "a bucket's group or dtypes");
    REFUSED(1, 0, d.buckets[0].accum_dtype = GW_DTYPE_FP16, "a bucket's group or dtypes");
    REFUSED(1, 0, d.buckets[1].offset += 4, "a bucket's size");
    REFUSED(1, 0, d.buckets[0].padded_numel = d.page->padded_numel + 4, "a bucket's size");
    REFUSED(1, 0, d.buckets[0].numel = d.buckets[0].padded_numel + 1, "a bucket's size");
    REFUSED(1, 0, d.buckets[0].numel = 0, "a bucket's size");
    REFUSED(1, 0, d.buckets[0].padded_numel -= 1, "a bucket's size");
    REFUSED(1, 0, d.page->shard_align_bytes = 4096, "a bucket's size");
    REFUSED(1, 0, d.buckets[0].pieces = 0, "a bucket's pieces");
    REFUSED(1, 0, d.buckets[1].first_piece++, "a bucket's pieces");
    REFUSED(1, 0, d.buckets[0].pieces = UINT32_MAX, "a bucket's pieces");
    REFUSED(1, 0, d.buckets[0].fetch_unit = 0, "a bucket's fetch unit");
    REFUSED(3, 0, d.buckets[0].fetch_unit = UINT32_MAX, "a bucket's fetch unit");
    REFUSED(1, 0, d.page->max_bucket_bytes += 4, "the largest bucket");
    REFUSED(1, 0, d.page->max_bucket_bytes -= 4, "the largest bucket");
    REFUSED(1, 0, d.page->padded_numel += 4, "the sum of buckets");
    REFUSED(1, 0, d.pieces[0].bucket = 1, "a piece");
    REFUSED(1, 0, d.pieces[0].param = PARAMS, "a piece");
    REFUSED(1, 0, d.pieces[0].numel = 0, "a piece");
    REFUSED(1, 0, d.pieces[0].bucket_offset = 1000, "a piece's place in its bucket");
    REFUSED(1, 0, d.pieces[0].numel = 1000, "a piece's place in its bucket");
}

static void parameters_that_lie_are_refused(void **state)
{
    (void)state;
    REFUSED(1, 0, d.params[0].numel = 1u << 20, "a parameter");
    REFUSED(1, 0, d.params[0].first_piece = UINT32_MAX, "a parameter");
    REFUSED(1, 0, d.params[0].group = 2, "a parameter's group or dtypes");
    REFUSED(1, 0, d.params[2].dtype = GW_DTYPES, "a parameter's group or dtypes");
    REFUSED(1, 0, d.params[2].grad_dtype = GW_DTYPES, "a parameter's group or dtypes");
    REFUSED(1, 0, d.params[0].persistent = 1, "a parameter's persistence");
    REFUSED(3, 30, d.params[0].persistent = 2, "a parameter's persistence");
    REFUSED(1, 0, d.params[0].name_at = UINT32_MAX, "a parameter's name");
    REFUSED(1, 0, d.params[0].name_bytes++, "a parameter's name");
    REFUSED(1, 0, d.params[0].name_bytes--, "a parameter's name");
    REFUSED(1, 0, d.params[0].offset = UINT64_MAX, "a parameter's place");
    REFUSED(1, 0, d.params[0].offset = d.page->padded_numel - 3, "a parameter's place");
    /* Another class than its bucket's. */
    REFUSED(1, 0, d.params[0].group = 1, "a parameter's pieces");
    REFUSED(1, 0, d.params[0].dtype = GW_DTYPE_BF16, "a parameter's pieces");
    REFUSED(1, 0, d.params[0].grad_dtype = GW_DTYPE_BF16, "a parameter's pieces");
    REFUSED(3, 30, d.params[0].persistent = 1, "a parameter's pieces");
    REFUSED(3, 30, d.params[5].persistent = 0, "a parameter's pieces");
    REFUSED(3, 0, d.units[0].fetch_unit = 1, "a parameter's pieces");
    REFUSED(1, 0, d.params[0].offset += 4, "a parameter's pieces");
    REFUSED(1, 0, d.params[0].pieces--, "a parameter's pieces");
    REFUSED(1, 0, d.params[5].numel++, "a parameter's pieces");
    REFUSED(1, 0, d.pieces[1].param_offset++, "a parameter's pieces");
    REFUSED(1, 0, d.page->numel++, "the sum of parameters");
    REFUSED(1, 0, d.page->numel--, "the sum of parameters");
}

/* Stage 3 with persistence: fetch unit 0 has l1 (12 and 28 bytes), others embed, l0, head. */
static void units_that_lie_are_refused(void **state)
{
    (void)state;
    REFUSED(1, 0, d.units[1].first_param++, "a unit");
    REFUSED(1, 0, d.units[0].params = 0, "a unit");
    REFUSED(1, 0, d.units[0].params = 100, "a unit");
    REFUSED(1, 0, d.units[0].name_bytes++, "a unit");
    REFUSED(1, 0, d.params[0].unit = 1, "a unit's parameters");
    REFUSED(1, 0, (d.page->units--, d.page->fetch_units--), "the sum of units");
    REFUSED(1, 0, d.units[0].persistent = 1, "a unit's persistence");
    REFUSED(3, 30, d.units[2].persistent = 0, "a unit's persistence");
    REFUSED(1, 0, d.units[0].buckets++, "a unit's buckets");
    REFUSED(1, 0, d.units[1].first_bucket--, "a unit's buckets");
    REFUSED(3, 30, d.units[2].first_bucket = 1000, "a unit's buckets");
    REFUSED(1, 0, d.units[0].fetch_unit = UINT32_MAX, "a unit without fetch unit");
    REFUSED(1, 0, d.units[0].fetch_unit = 4, "a unit's fetch unit");
    REFUSED(3, 30, d.units[2].fetch_unit = 0, "a unit's fetch unit");
    REFUSED(3, 30, d.units[2].fetch_unit = 1, "a unit's fetch unit");
    REFUSED(1, 0, d.units[0].fetch_unit = 1, "a unit's place in its fetch unit");
    REFUSED(1, 0, d.fetch_units[0].buckets--, "a unit's place in its fetch unit");
    REFUSED(1, 0, d.fetch_units[0].first_bucket++, "a unit's place in its fetch unit");
    REFUSED(1, 0, d.page->fetch_units--, "the number of fetch units");
    REFUSED(3, 30, d.page->fetch_units = 0, "a bucket's fetch unit");
    REFUSED(1, 0, d.fetch_units[0].first_unit = 1, "a fetch unit");
    REFUSED(1, 0, d.fetch_units[0].units = 2, "a fetch unit");
    REFUSED(1, 0, d.fetch_units[0].units = 0, "a fetch unit");
    REFUSED(1, 0, d.fetch_units[0].units = 1000, "a fetch unit");
    REFUSED(3, 30, d.fetch_units[0].units = 1, "a fetch unit");
    REFUSED(3, 0, d.fetch_units[1].first_unit = 0, "a fetch unit");
    REFUSED(1, 0, d.fetch_units[0].first_bucket = UINT32_MAX, "a fetch unit's buckets");
    REFUSED(3, 0, d.fetch_units[0].buckets++, "a fetch unit's buckets");
    REFUSED(3, 0, d.fetch_units[0].numel++, "a fetch unit's size");
    REFUSED(3, 0, d.fetch_units[0].padded_numel++, "a fetch unit's size");
    REFUSED(3, 0, d.fetch_units[0].offset++, "a fetch unit's size");
    REFUSED(3, 0, d.fetch_units[0].buckets--, "a fetch unit's size");
}

static void damaged_pages_never_lead_outside(void **state)
{
    uint64_t seed = 88172645463325252ull, refused = 0;

    (void)state;
    for (uint32_t round = 0; round < 40000; round++) {
        struct layout *layout = make(round % 4, round / 4 % 2 * 30);
        size_t bytes = layout_page(layout)->size_bytes;
        uint8_t *copy = malloc(bytes);
        struct layout_view view;
        const char *what = NULL;

        assert_non_null(copy);
        memcpy(copy, layout_page(layout), bytes);
        for (uint32_t i = 0; i <= round % 3; i++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            copy[seed % bytes] ^= (uint8_t)(1u << (seed >> 40 & 7));
        }
        if (layout_view(copy, bytes, &view, &what) == 0)
            assert_true(layout_use(&view));
        else
            refused++;
        free(copy);
        layout_free(layout);
    }
    assert_true(refused > 20000); /* the check does something */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_core_makes_is_taken),
        cmocka_unit_test(a_short_or_foreign_page_is_refused),
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(groups_that_cannot_be_are_refused),
        cmocka_unit_test(buckets_that_lie_are_refused),
        cmocka_unit_test(parameters_that_lie_are_refused),
        cmocka_unit_test(units_that_lie_are_refused),
        cmocka_unit_test(damaged_pages_never_lead_outside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
