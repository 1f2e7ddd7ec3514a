/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layout page as a client gets it: refused, or every index in it may be used.
 * ctest: link=gw_fuzz_layout
 */
#include <string.h>

#include "client/lib/layout_view.h"
#include "daemon/core/layout.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/layout_use.h"

#define PAGE_MAX 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint64_t aligned[PAGE_MAX / 8];
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
        FUZZ_CHECK(layout_use(&view));
    return 0;
}

/* Of each stage, with cut, merged, empty, padded and persistent parameters of several classes. */
size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    static const struct layout_param params[] = {
        {.name = "embed", .unit = "", .numel = 40},
        {.name = "l0.w", .unit = "l0", .numel = 100, .dtype = 2, .grad_dtype = 2},
        {.name = "l0.b", .unit = "l0", .numel = 0},
        {.name = "l1.w", .unit = "l1", .numel = 7},
        {.name = "l1.b", .unit = "l1", .numel = 3, .group = 1},
        {.name = "head", .unit = "", .numel = 19, .grad_dtype = 1}};
    static const uint32_t ranks[] = {1, 0};
    uint32_t world = 1 + (uint32_t)index / 4 % 4;
    struct layout_group group = {ranks, world < 2 ? world : 2, 1};
    struct layout_options options = {.stage = (uint32_t)index % 4,
                                     .world = world,
                                     .bucket_bytes = 128,
                                     .align_bytes = 4,
                                     .accum_as_grads = (uint32_t)index % 3 == 0,
                                     .persist_bytes = index >= 16 ? 30 : 0,
                                     .shard_ranks = world % 2 == 0 ? 2 : 0,
                                     .groups = &group,
                                     .group_count = 1};
    struct layout *layout;
    uint32_t wrong;
    size_t used;

    group.ranks += world == 1; /* rank 0 alone */
    if (index >= 32 || layout_new(&options, params, 6, &layout, &wrong) < 0)
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
