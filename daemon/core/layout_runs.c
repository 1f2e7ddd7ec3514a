/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units and fetch units of a layout, and the checks of names and sizes that come before any
 * placement. Pure: no state, no I/O; any thread.
 */
#include "daemon/core/layout_internal.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

/* With at most 2^24 buckets of less than 2^32 padding each, every flat offset in bytes stays below
 * 2^63. */
#define NUMEL_MAX (1ull << 60)

struct named {
    const char *name;
    uint32_t param; /* whom to blame */
};

static int compare_named(const void *left, const void *right)
{
    const struct named *a = left, *b = right;
    int r;

    r = strcmp(a->name, b->name);
    if (r)
        return r;
    return a->param < b->param ? -1 : a->param > b->param;
}

/* The lowest index whose name was there before; UINT32_MAX: all differ. Sorts `names`. */
static uint32_t find_repeated(struct named *names, uint32_t count)
{
    uint32_t found = UINT32_MAX;

    if (count)
        qsort(names, count, sizeof(*names), compare_named);
    for (uint32_t i = 1; i < count; i++) {
        if (!strcmp(names[i].name, names[i - 1].name) && names[i].param < found)
            found = names[i].param;
    }
    return found;
}

static bool starts_run(const struct layout_param *params, uint32_t i)
{
    return i == 0 || !params[i].unit[0] || strcmp(params[i].unit, params[i - 1].unit);
}

/* Names present, sizes bounded, no parameter named twice. */
static int check_params(const struct layout_param *params, uint32_t param_count,
                        struct named *names, uint32_t *ret_param)
{
    uint64_t numel = 0;
    uint32_t repeated;

    for (uint32_t i = 0; i < param_count; i++) {
        if (!params[i].name || !params[i].name[0] || !params[i].unit ||
            params[i].numel > NUMEL_MAX - numel) {
            *ret_param = i;
            return GW_E_INVALID;
        }
        numel += params[i].numel;
        names[i] = (struct named){params[i].name, i};
    }
    repeated = find_repeated(names, param_count);
    if (repeated != UINT32_MAX) {
        *ret_param = repeated;
        return GW_E_INVALID;
    }
    return 0;
}

static uint32_t fill_runs(const struct layout_param *params, uint32_t param_count,
                          struct layout_run *runs)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < param_count; i++) {
        if (starts_run(params, i)) {
            runs[count] = (struct layout_run){
                .name = params[i].unit[0] ? params[i].unit : params[i].name,
                .first_param = i,
            };
            count++;
        }
        runs[count - 1].params++;
        runs[count - 1].numel += params[i].numel;
    }
    return count;
}

/* Two runs of one name: a unit that came back, or one named like a parameter that is a unit of its
 * own. Either way a fetch by that name would be ambiguous. */
static int check_runs(const struct layout_run *runs, uint32_t count, struct named *names,
                      uint32_t *ret_param)
{
    uint32_t repeated;

    for (uint32_t i = 0; i < count; i++)
        names[i] = (struct named){runs[i].name, runs[i].first_param};
    repeated = find_repeated(names, count);
    if (repeated != UINT32_MAX) {
        *ret_param = repeated;
        return GW_E_INVALID;
    }
    return 0;
}

/* Stage 3: neighbours while their sum fits into a bucket. Else one fetch unit per unit. */
static void merge_runs(const struct layout_options *options, struct layout_run *runs,
                       uint32_t count)
{
    uint64_t sum = 0;
    uint32_t fetch_unit = 0;

    for (uint32_t i = 0; i < count; i++) {
        bool joins = options->stage == 3 && sum <= options->bucket_numel &&
                     runs[i].numel <= options->bucket_numel - sum;

        if (i > 0 && !joins) {
            fetch_unit++;
            sum = 0;
        }
        runs[i].fetch_unit = fetch_unit;
        sum += runs[i].numel;
    }
}

int layout_runs_new(const struct layout_options *options, const struct layout_param *params,
                    uint32_t param_count, struct layout_run **ret_runs, uint32_t *ret_count,
                    uint32_t *ret_param)
{
    struct layout_run *runs = NULL;
    struct named *names = NULL;
    uint32_t count;
    int r = 0;

    if (param_count) {
        runs = calloc(param_count, sizeof(*runs));
        names = calloc(param_count, sizeof(*names));
        if (!runs || !names) {
            r = GW_E_NOMEM;
            goto out;
        }
    }
    r = check_params(params, param_count, names, ret_param);
    if (r)
        goto out;
    count = fill_runs(params, param_count, runs);
    r = check_runs(runs, count, names, ret_param);
    if (r)
        goto out;
    merge_runs(options, runs, count);
    *ret_runs = runs;
    *ret_count = count;
    runs = NULL;
out:
    free(names);
    free(runs);
    return r;
}
