/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units and fetch units of a layout, and the order in which parameters are placed. Pure: no state,
 * no I/O; any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/layout_internal.h"
#include "gradwire/errors.h"

static bool starts_run(const struct layout_param *params, uint32_t i)
{
    return i == 0 || !params[i].unit[0] || strcmp(params[i].unit, params[i - 1].unit);
}

static void add_param(struct layout_runs *runs, const struct layout_options *options,
                      const struct layout_param *param)
{
    struct layout_run *run = &runs->runs[runs->count - 1];

    run->params++;
    if (layout_persists(options, param)) {
        run->persistent = runs->persistent = true;
        return;
    }
    if (param->numel == 0)
        return;
    run->group = run->grad_bytes == 0 || run->group == param->group ? param->group : UINT32_MAX;
    run->grad_bytes += param->numel * gw_dtype_bytes(param->grad_dtype);
}

static void fill_runs(struct layout_runs *runs, const struct layout_options *options,
                      const struct layout_param *params, uint32_t param_count)
{
    for (uint32_t i = 0; i < param_count; i++) {
        if (starts_run(params, i)) {
            runs->runs[runs->count++] = (struct layout_run){
                .name = params[i].unit[0] ? params[i].unit : params[i].name,
                .first_param = i,
                .fetch_unit = UINT32_MAX,
                .group = UINT32_MAX,
            };
        }
        add_param(runs, options, &params[i]);
    }
}

/* Stage 3: neighbours of one group while their sum fits into a bucket; units of which nothing is
 * left are passed over. Else one fetch unit per unit. */
static void merge_runs(struct layout_runs *runs, const struct layout_options *options)
{
    uint64_t sum = 0, most = options->bucket_bytes;
    uint32_t group = UINT32_MAX;

    runs->fetch_units = runs->persistent;
    for (uint32_t u = 0; u < runs->count; u++) {
        struct layout_run *run = &runs->runs[u];
        bool joins = group != UINT32_MAX && run->group == group && sum <= most &&
                     run->grad_bytes <= most - sum;

        if (options->stage == 3 && run->grad_bytes == 0)
            continue;
        if (options->stage < 3 || !joins) {
            runs->fetch_units++;
            sum = 0;
        }
        run->fetch_unit = runs->fetch_units - 1;
        group = run->group;
        sum += run->grad_bytes;
    }
}

/* ---- order ----------------------------------------------------------------------------------- */

static int compare_items(const void *left, const void *right)
{
    const struct layout_item *a = left, *b = right;

    if (a->fetch_unit != b->fetch_unit)
        return a->fetch_unit < b->fetch_unit ? -1 : 1;
    if (a->group_first != b->group_first)
        return a->group_first < b->group_first ? -1 : 1;
    if (a->class_first != b->class_first)
        return a->class_first < b->class_first ? -1 : 1;
    return a->param < b->param ? -1 : a->param > b->param;
}

/* What a fetch unit has shown so far. Parameters come in order, so those of one fetch unit come
 * together, but for the persistent ones: they have an own one of these. */
struct seen {
    uint32_t fetch_unit;
    uint32_t groups[GW_GROUPS_MAX]; /* first parameter + 1 of this fetch unit; 0, or one before
                                     * `since`: none yet */
    uint32_t classes[LAYOUT_CLASSES];
    uint32_t since;
};

static uint32_t first_of(uint32_t *first, uint32_t since, uint32_t param)
{
    if (*first <= since)
        *first = param + 1;
    return *first - 1;
}

static void see(struct seen *seen, const struct layout_param *param, struct layout_item *item)
{
    if (seen->fetch_unit != item->fetch_unit) {
        seen->fetch_unit = item->fetch_unit;
        seen->since = item->param;
    }
    item->group_first = first_of(&seen->groups[param->group], seen->since, item->param);
    item->class_first = first_of(&seen->classes[layout_class(param)], seen->since, item->param);
}

static int fill_items(struct layout_runs *runs, const struct layout_options *options,
                      const struct layout_param *params)
{
    struct seen *seen = calloc(2, sizeof(*seen)); /* of units, of persistent parameters */

    if (!seen)
        return GW_E_NOMEM;
    for (uint32_t u = 0; u < runs->count; u++) {
        const struct layout_run *run = &runs->runs[u];

        for (uint32_t p = run->first_param; p < run->first_param + run->params; p++) {
            bool persists = layout_persists(options, &params[p]);
            struct layout_item item = {.param = p, .fetch_unit = persists ? 0 : run->fetch_unit};

            if (params[p].numel == 0)
                continue;
            if (options->stage == 3)
                see(&seen[persists], &params[p], &item);
            else
                item.fetch_unit = UINT32_MAX;
            runs->items[runs->item_count++] = item;
        }
    }
    free(seen);
    if (runs->item_count)
        qsort(runs->items, runs->item_count, sizeof(*runs->items), compare_items);
    return 0;
}

int layout_runs_init(struct layout_runs *runs, const struct layout_options *options,
                     const struct layout_param *params, uint32_t param_count)
{
    int r;

    *runs = (struct layout_runs){
        .runs = calloc((size_t)param_count + 1, sizeof(*runs->runs)),
        .items = calloc((size_t)param_count + 1, sizeof(*runs->items)),
    };
    r = runs->runs && runs->items ? 0 : GW_E_NOMEM;
    if (r == 0) {
        fill_runs(runs, options, params, param_count);
        merge_runs(runs, options);
        r = fill_items(runs, options, params);
    }
    if (r < 0)
        layout_runs_done(runs);
    return r;
}

void layout_runs_done(struct layout_runs *runs)
{
    free(runs->runs);
    free(runs->items);
    *runs = (struct layout_runs){0};
}
