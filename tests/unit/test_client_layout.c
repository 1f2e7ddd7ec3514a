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

static const struct layout_param params[] = {
    {"embed", "", 40, 0}, {"l0.w", "l0", 100, 0}, {"l0.b", "l0", 0, 0},
    {"l1.w", "l1", 7, 0}, {"l1.b", "l1", 3, 0},   {"head", "", 19, 0},
};

static struct layout *make(uint32_t stage)
{
    struct layout_options options = {
        .stage = stage, .world = 3, .bucket_numel = 32, .align_numel = 1};
    struct layout *layout = NULL;
    uint32_t bad;

    assert_int_equal(layout_new(&options, params, 6, &layout, &bad), 0);
    return layout;
}

static void what_the_core_makes_is_taken(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct layout *layout = make(stage);
        const struct gw_layout_page *page = layout_page(layout);
        struct layout_view view;
        const char *what = NULL;
        uint64_t offset, numel;

        assert_int_equal(layout_view(page, page->size_bytes, &view, &what), 0);
        assert_int_equal(view.page->params, 6);
        assert_string_equal(view.names + view.params[3].name_at, "l1.w");
        assert_string_equal(view.names + view.units[1].name_at, "l0");
        layout_view_unit(&view, 2, &offset, &numel); /* l1: 7 + 3 elements, side by side */
        assert_int_equal(numel, 10);
        assert_int_equal(offset, view.params[3].offset);
        layout_free(layout);
    }
}

static void a_short_or_foreign_page_is_refused(void **state)
{
    struct layout *layout = make(2);
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

/* What the client does with a page that was taken; a sanitizer build sees each step outside. */
static uint64_t use(const struct layout_view *v)
{
    uint64_t sum = 0, offset, numel;

    for (uint32_t i = 0; i < v->page->params; i++) {
        const struct gw_layout_param *p = &v->params[i];

        sum += strlen(v->names + p->name_at) + v->units[p->unit].params;
        assert_true(p->offset + p->numel <= v->page->padded_numel);
        for (uint32_t k = 0; k < p->pieces; k++) {
            const struct gw_layout_piece *piece = &v->pieces[p->first_piece + k];
            const struct gw_layout_bucket *bucket = &v->buckets[piece->bucket];

            assert_true(piece->bucket_offset + piece->numel <= bucket->padded_numel);
            assert_true(bucket->padded_numel <= v->page->max_bucket_numel);
            assert_true(bucket->offset + bucket->padded_numel <= v->page->padded_numel);
        }
    }
    for (uint32_t u = 0; u < v->page->units; u++) {
        const struct gw_layout_fetch_unit *fetch = &v->fetch_units[v->units[u].fetch_unit];

        layout_view_unit(v, u, &offset, &numel);
        sum += strlen(v->names + v->units[u].name_at);
        if (v->page->stage == 3 && numel > 0) {
            assert_true(offset >= fetch->offset);
            assert_true(offset - fetch->offset + numel <= v->page->max_fetch_numel);
        }
    }
    return sum;
}

static void damaged_pages_never_lead_outside(void **state)
{
    uint64_t seed = 88172645463325252ull, refused = 0;

    (void)state;
    for (uint32_t round = 0; round < 40000; round++) {
        struct layout *layout = make(round % 4);
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
            use(&view);
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
        cmocka_unit_test(damaged_pages_never_lead_outside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
