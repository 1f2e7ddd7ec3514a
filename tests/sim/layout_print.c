/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints layouts and the plans of their first ranks as JSON, one line each, for the comparison with
 * tests/cases/plan.py. stdin, repeated:
 *   stage world bucket_bytes align_bytes accum_as_grads persist_bytes shard_ranks
 *   micro_steps accumulate gather reuse_bytes secondary_ranks all_reduce groups count
 *   per group: count shard_ranks rank...
 *   per parameter: name unit numel group dtype grad_dtype     ("-": no unit)
 * A refused layout prints {"refused": index}.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/layout.h"
#include "daemon/core/plan.h"
#include "proto/limits.h"

#define COUNT_MAX 4096u
#define PLANS_MAX 4u

struct lines {
    struct layout_options options;
    struct wire_seal seal;
    uint32_t count;
    struct layout_group groups[GW_GROUPS_MAX];
    uint32_t ranks[GW_GROUPS_MAX][GW_RANKS_MAX];
    struct layout_param params[COUNT_MAX];
    char names[COUNT_MAX][64], units[COUNT_MAX][64];
};

static const char *const dtypes[] = {"fp32", "fp16", "bf16"};
static const char *const kinds[GW_KINDS] = {"all_reduce", "reduce_scatter", "all_gather",
                                            "broadcast", "control"};
static const char *const memories[GW_MEMORIES] = {"params", "gradients", "buckets", "gathered",
                                                  "optimizer"};

/* ---- reading --------------------------------------------------------------------------------- */

static int read_groups(struct lines *lines)
{
    for (uint32_t g = 0; g < lines->options.group_count; g++) {
        struct layout_group *group = &lines->groups[g];

        if (scanf("%u %u", &group->count, &group->shard_ranks) != 2 || group->count > GW_RANKS_MAX)
            return -1;
        for (uint32_t i = 0; i < group->count; i++) {
            if (scanf("%u", &lines->ranks[g][i]) != 1)
                return -1;
        }
        group->ranks = lines->ranks[g];
    }
    return 0;
}

static int read_params(struct lines *lines)
{
    for (uint32_t i = 0; i < lines->count; i++) {
        struct layout_param *param = &lines->params[i];
        unsigned dtype, grad_dtype;

        *param = (struct layout_param){.name = lines->names[i], .unit = lines->units[i]};
        if (scanf("%63s %63s %" SCNu64 " %u %u %u", lines->names[i], lines->units[i], &param->numel,
                  &param->group, &dtype, &grad_dtype) != 6)
            return -1;
        param->dtype = (uint8_t)dtype;
        param->grad_dtype = (uint8_t)grad_dtype;
        if (!strcmp(lines->units[i], "-"))
            lines->units[i][0] = '\0';
    }
    return 0;
}

/* 1: another one; 0: no more. */
static int read_lines(struct lines *lines)
{
    struct layout_options *options = &lines->options;
    struct wire_seal *seal = &lines->seal;

    memset(lines, 0, sizeof(*lines));
    if (scanf("%u %u %" SCNu64 " %u %u %" SCNu64 " %u", &options->stage, &options->world,
              &options->bucket_bytes, &options->align_bytes, &options->accum_as_grads,
              &options->persist_bytes, &options->shard_ranks) != 7)
        return 0;
    if (scanf("%u %u %u %" SCNu64 " %u %u %u %u", &seal->micro_steps, &seal->accumulate,
              &seal->gather, &seal->reuse_bytes, &seal->secondary_ranks, &seal->all_reduce,
              &options->group_count, &lines->count) != 8 ||
        options->group_count >= GW_GROUPS_MAX || lines->count > COUNT_MAX)
        return -1;
    options->groups = lines->groups;
    seal->stage = options->stage;
    seal->bucket_bytes = options->bucket_bytes;
    seal->shard_align_bytes = options->align_bytes;
    seal->accum_as_grads = options->accum_as_grads;
    seal->persist_bytes = options->persist_bytes;
    seal->shard_ranks = options->shard_ranks;
    seal->gather_bytes = seal->reuse_bytes ? UINT64_MAX / 4 : 0;
    return read_groups(lines) < 0 || read_params(lines) < 0 ? -1 : 1;
}

/* ---- layouts --------------------------------------------------------------------------------- */

static void print_fetch_unit(uint32_t fetch_unit)
{
    if (fetch_unit == UINT32_MAX)
        printf(",\"fetch_unit\":null");
    else
        printf(",\"fetch_unit\":%u", fetch_unit);
}

static void print_buckets(const struct layout *layout)
{
    const struct gw_layout_page *page = layout_page(layout);

    printf("\"buckets\":[");
    for (uint32_t b = 0; b < page->buckets; b++) {
        const struct gw_layout_bucket *bucket = &layout_buckets(layout)[b];

        printf("%s{\"offset\":%" PRIu64 ",\"numel\":%" PRIu64 ",\"padded_numel\":%" PRIu64,
               b ? "," : "", bucket->offset, bucket->numel, bucket->padded_numel);
        printf(",\"group\":%u,\"dtype\":\"%s\",\"grad_dtype\":\"%s\",\"accum_dtype\":\"%s\"",
               bucket->group, dtypes[bucket->dtype], dtypes[bucket->grad_dtype],
               dtypes[bucket->accum_dtype]);
        print_fetch_unit(bucket->fetch_unit);
        printf("}");
    }
    printf("],\"pieces\":[");
    for (uint32_t i = 0; i < page->pieces; i++) {
        const struct gw_layout_piece *piece = &layout_pieces(layout)[i];

        printf("%s{\"param\":%u,\"bucket\":%u,\"bucket_offset\":%" PRIu64
               ",\"param_offset\":%" PRIu64 ",\"numel\":%" PRIu64 "}",
               i ? "," : "", piece->param, piece->bucket, piece->bucket_offset,
               piece->param_offset, piece->numel);
    }
    printf("],\"slices\":[");
    for (uint32_t b = 0; b < page->buckets; b++) {
        const struct gw_layout_group *group =
            &layout_groups(layout)[layout_buckets(layout)[b].group];

        printf("%s[", b ? "," : "");
        for (uint32_t i = 0; i < group->shard_ranks; i++) {
            uint64_t offset, numel, valid;

            layout_slice(layout, b, i, &offset, &numel, &valid);
            printf("%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", i ? "," : "", offset, numel, valid);
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

        printf("%s{\"name\":\"%s\",\"first_param\":%u,\"params\":%u,\"first_bucket\":%u,"
               "\"buckets\":%u,\"persistent\":%u",
               u ? "," : "", layout_name(layout, unit->name_at), unit->first_param, unit->params,
               unit->first_bucket, unit->buckets, unit->persistent);
        print_fetch_unit(unit->fetch_unit);
        printf("}");
    }
    printf("],\"fetch_units\":[");
    for (uint32_t f = 0; f < page->fetch_units; f++) {
        const struct gw_layout_fetch_unit *fetch = &layout_fetch_units(layout)[f];

        printf("%s{\"first_unit\":%u,\"units\":%u,\"numel\":%" PRIu64 "}", f ? "," : "",
               fetch->first_unit, fetch->units, fetch->numel);
    }
    printf("],");
}

static void print_others(const struct layout *layout)
{
    const struct gw_layout_page *page = layout_page(layout);
    const char *comma = "";

    printf("\"groups\":[");
    for (uint32_t g = 0; g < page->groups; g++) {
        const struct gw_layout_group *group = &layout_groups(layout)[g];

        printf("%s{\"shard_ranks\":%u,\"ranks\":[", g ? "," : "", group->shard_ranks);
        for (uint32_t i = 0; i < group->members; i++)
            printf("%s%u", i ? "," : "", layout_page_members(page, g)[i]);
        printf("]}");
    }
    printf("],\"names\":[");
    for (uint32_t i = 0; i < page->params; i++)
        printf("%s\"%s\"", i ? "," : "", layout_name(layout, layout_params(layout)[i].name_at));
    printf("],\"persistent\":[");
    for (uint32_t i = 0; i < page->params; i++) {
        if (layout_params(layout)[i].persistent) {
            printf("%s%u", comma, i);
            comma = ",";
        }
    }
    printf("]}");
}

static void print_layout(const struct layout *layout)
{
    const struct gw_layout_page *page = layout_page(layout);

    printf("{\"numel\":%" PRIu64 ",\"padded_numel\":%" PRIu64 ",\"max_bucket_bytes\":%" PRIu64 ",",
           page->numel, page->padded_numel, page->max_bucket_bytes);
    print_buckets(layout);
    print_units(layout);
    print_others(layout);
}

/* ---- plans ----------------------------------------------------------------------------------- */

#define PRINT_KINDS(plan, name, member)                                                            \
    do {                                                                                           \
        printf("\"" name "\":{");                                                                  \
        for (unsigned k = 0; k < GW_KINDS; k++)                                                    \
            printf("%s\"%s\":%" PRIu64, k ? "," : "", kinds[k], (plan)->kinds[k].member);          \
        printf("},");                                                                              \
    } while (0)

static void print_plan(const struct plan *plan)
{
    printf("{");
    PRINT_KINDS(plan, "calls", calls);
    PRINT_KINDS(plan, "payload_bytes", payload_bytes);
    PRINT_KINDS(plan, "padding_bytes", padding_bytes);
    PRINT_KINDS(plan, "ring_bytes", ring_bytes);
    PRINT_KINDS(plan, "moved_bytes", in_node_bytes);
    printf("\"memory_bytes\":{");
    for (unsigned m = 0; m < GW_MEMORIES; m++)
        printf("%s\"%s\":%" PRIu64, m ? "," : "", memories[m], plan->memory_bytes[m]);
    printf("}}");
}

static void print_plans(const struct lines *lines)
{
    struct plan_request request = {
        .params = lines->params,
        .param_count = lines->count,
        .groups = lines->groups,
        .group_count = lines->options.group_count,
        .world = lines->options.world,
        .nodes = 1,
        .options = lines->seal,
    };
    char why[GW_TEXT_MAX + 1] = "";
    struct text text = TEXT(why);
    struct plan *plan;
    uint32_t param;

    printf("[");
    for (; request.rank < request.world && request.rank < PLANS_MAX; request.rank++) {
        printf("%s", request.rank ? "," : "");
        if (plan_new(&request, &plan, &text, &param) < 0) {
            printf("\"%s\"", why);
            continue;
        }
        print_plan(plan);
        (void)plan_free(plan);
    }
    printf("]");
}

int main(void)
{
    struct lines *lines = calloc(1, sizeof(*lines));
    int r;

    if (!lines)
        return 1;
    while ((r = read_lines(lines)) > 0) {
        struct layout *layout = NULL;
        uint32_t bad = 0;

        if (layout_new(&lines->options, lines->params, lines->count, &layout, &bad) < 0) {
            printf("{\"refused\":%u}\n", bad);
            continue;
        }
        printf("{\"layout\":");
        print_layout(layout);
        printf(",\"plans\":");
        print_plans(lines);
        printf("}\n");
        layout_free(layout);
    }
    free(lines);
    return r < 0 ? 1 : 0;
}
