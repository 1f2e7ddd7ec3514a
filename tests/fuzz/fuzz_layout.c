/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout page as a client gets it: refused, or every index in it may be used.
 * ctest: link=gw_fuzz_layout
 */
#include <string.h>

#include "client/lib/layout_view.h"
#include "daemon/core/layout.h"
#include "tests/fuzz/fuzz.h"

#define PAGE_MAX 65536u

/* Reads all that a client reads by index. */
static uint64_t use(const struct layout_view *view)
{
    uint64_t sum = 0, offset, numel;

    for (uint32_t p = 0; p < view->page->params; p++) {
        const struct gw_layout_param *param = &view->params[p];

        sum += strlen(view->names + param->name_at);
        for (uint32_t i = 0; i < param->pieces; i++)
            sum += view->buckets[view->pieces[param->first_piece + i].bucket].numel;
    }
    for (uint32_t u = 0; u < view->page->units; u++) {
        layout_view_unit(view, u, &offset, &numel);
        FUZZ_CHECK(offset <= view->page->padded_numel &&
                   numel <= view->page->padded_numel - offset);
        sum += offset + numel;
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint64_t aligned[PAGE_MAX / 8];
    static volatile uint64_t sink;
    struct layout_view view;
    const char *what = NULL;
    int r;

    if (bytes > PAGE_MAX)
        return 0;
    memcpy(aligned, data, bytes);
    memset((char *)aligned + bytes, 0xa5, bytes < PAGE_MAX - 64 ? 64 : PAGE_MAX - bytes);
    r = layout_view(aligned, bytes, &view, &what);
    if (r < 0)
        FUZZ_CHECK(what && what[0]);
    else
        sink += use(&view);
    return 0;
}

/* Of each stage, with cut, merged, empty and padded parameters. */
size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    static const struct layout_param params[] = {
        {"embed", "", 40, 0}, {"l0.w", "l0", 100, 0}, {"l0.b", "l0", 0, 0},
        {"l1.w", "l1", 7, 0}, {"l1.b", "l1", 3, 0},   {"head", "", 19, 0}};
    struct layout_options options = {.stage = (uint32_t)index % 4,
                                     .world = 1 + (uint32_t)index / 4,
                                     .bucket_numel = 32,
                                     .align_numel = 1};
    struct layout *layout;
    uint32_t wrong;
    size_t used;

    if (index >= 16 || layout_new(&options, params, 6, &layout, &wrong) < 0)
        return 0;
    used = layout_page(layout)->size_bytes;
    if (used <= bytes)
        memcpy(buffer, layout_page(layout), used);
    layout_free(layout);
    return used <= bytes ? used : 0;
}

void fuzz_repair(uint8_t *data, size_t bytes)
{
    struct gw_layout_page page;

    if (bytes < sizeof(page))
        return;
    memcpy(&page, data, sizeof(page));
    page.magic = GW_LAYOUT_MAGIC;
    page.version = GW_LAYOUT_VERSION;
    page.size_bytes = bytes;
    memcpy(data, &page, sizeof(page));
}
