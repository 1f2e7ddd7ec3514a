/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints layouts as JSON, one line each, for the comparison with tests/cases/plan.py.
 * stdin, repeated: "stage world bucket_numel align_numel count", then `count` lines
 * "name unit numel" ("-": no unit). A refused layout prints {"refused": index}.
 */
#include <stdint.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/layout.h"

#define COUNT_MAX 4096u

struct lines {
    struct layout_param params[COUNT_MAX];
    char names[COUNT_MAX][64], units[COUNT_MAX][64];
};

static int read_params(struct lines *lines, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t numel;

        if (scanf("%63s %63s %" SCNu64, lines->names[i], lines->units[i], &numel) != 3)
            return -1;
        if (!strcmp(lines->units[i], "-"))
            lines->units[i][0] = '\0';
        lines->params[i] = (struct layout_param){lines->names[i], lines->units[i], numel, 0};
    }
    return 0;
}

static void print_buckets(const struct layout *layout)
{
    const struct gw_layout_page *page = layout_page(layout);

    printf("\"buckets\":[");
    for (uint32_t b = 0; b < page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &layout_buckets(layout)[b];

        printf("%s{\"offset\":%" PRIu64 ",\"numel\":%" PRIu64 ",\"padded_numel\":%" PRIu64,
               b ? "," : "", bucket->offset, bucket->numel, bucket->padded_numel);
        if (bucket->fetch_unit == UINT32_MAX)
            printf(",\"fetch_unit\":null}");
        else
            printf(",\"fetch_unit\":%u}", bucket->fetch_unit);
    }
    printf("],\"pieces\":[");
    for (uint32_t i = 0; i < page->pieces; i++) {
        const struct gw_layout_piece *piece = &layout_pieces(layout)[i];

        printf("%s{\"param\":%u,\"bucket\":%u,\"param_offset\":%" PRIu64 ",\"numel\":%" PRIu64 "}",
               i ? "," : "", piece->param, piece->bucket, piece->param_offset, piece->numel);
    }
    printf("],\"spans\":[");
    for (uint32_t b = 0; b < page->buckets; b++) {
        printf("%s[", b ? "," : "");
        for (uint32_t r = 0; r < page->world; r++) {
            uint64_t offset, numel, valid;

            layout_span(layout, b, r, &offset, &numel, &valid);
            printf("%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", r ? "," : "", offset, numel, valid);
        }
        printf("]");
    }
    printf("],");
}

static void print_units(const struct layout *layout)
{
    const struct gw_layout_page *page = layout_page(layout);

    printf("\"units\":[");
    for (uint32_t u = 0; u < page->units; u++) {
        const struct gw_layout_unit *unit = &layout_units(layout)[u];

        printf("%s{\"name\":\"%s\",\"first_param\":%u,\"params\":%u}", u ? "," : "",
               layout_name(layout, unit->name_at), unit->first_param, unit->params);
    }
    printf("],\"fetch_units\":[");
    for (uint32_t f = 0; f < page->fetch_units; f++) {
        const struct gw_layout_fetch_unit *fetch = &layout_fetch_units(layout)[f];

        printf("%s{\"first_unit\":%u,\"units\":%u,\"numel\":%" PRIu64 "}", f ? "," : "",
               fetch->first_unit, fetch->units, fetch->numel);
    }
    printf("],\"names\":[");
    for (uint32_t i = 0; i < page->params; i++)
        printf("%s\"%s\"", i ? "," : "", layout_name(layout, layout_params(layout)[i].name_at));
    printf("]}\n");
}

int main(void)
{
    struct lines *lines = calloc(1, sizeof(*lines));
    struct layout_options options;
    uint32_t count;

    if (!lines)
        return 1;
    while (scanf("%u %u %" SCNu64 " %u %u", &options.stage, &options.world, &options.bucket_numel,
                 &options.align_numel, &count) == 5) {
        struct layout *layout = NULL;
        uint32_t bad = 0;

        if (count > COUNT_MAX || read_params(lines, count) < 0) {
            free(lines);
            return 1;
        }
        if (layout_new(&options, lines->params, count, &layout, &bad) < 0) {
            printf("{\"refused\":%u}\n", bad);
            continue;
        }
        printf("{\"numel\":%" PRIu64 ",\"padded_numel\":%" PRIu64 ",\"shard_numel\":%" PRIu64 ",",
               layout_page(layout)->numel, layout_page(layout)->padded_numel,
               layout_page(layout)->shard_numel);
        print_buckets(layout);
        print_units(layout);
        layout_free(layout);
    }
    free(lines);
    return 0;
}
