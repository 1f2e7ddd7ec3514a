/* SPDX-License-Identifier: Apache-2.0 */
/* What can be laid out at all: options, names and sizes. Pure: no state, no I/O; any thread. */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/layout_internal.h"
#include "gradwire/errors.h"

/* With at most 2^20 buckets of less than 2^32 padding each, every flat offset in bytes stays below
 * 2^63. */
#define NUMEL_MAX (1ull << 60)

struct named {
    const char *name;
    uint32_t param; /* whom to blame */
};

/* ---- options --------------------------------------------------------------------------------- */

static int compare_ranks(const void *left, const void *right)
{
    const uint32_t *a = left, *b = right;

    return *a < *b ? -1 : *a > *b;
}

/* Ranks of the job, each once. */
static int check_ranks(const struct layout_options *options, const struct layout_group *group)
{
    uint32_t *sorted;
    int r = 0;

    if (group->count == 0 || group->count > options->world)
        return GW_E_INVALID;
    sorted = calloc(group->count, sizeof(*sorted));
    if (!sorted)
        return GW_E_NOMEM;
    memcpy(sorted, group->ranks, group->count * sizeof(*sorted));
    qsort(sorted, group->count, sizeof(*sorted), compare_ranks);
    for (uint32_t i = 0; i < group->count; i++) {
        if (sorted[i] >= options->world || (i > 0 && sorted[i] == sorted[i - 1]))
            r = GW_E_INVALID;
    }
    free(sorted);
    return r;
}

int layout_check_options(const struct layout_options *options)
{
    uint32_t align = options->align_bytes;
    int r;

    if (options->stage > 3 || options->world == 0 || options->bucket_bytes == 0 ||
        options->group_count >= GW_GROUPS_MAX)
        return GW_E_INVALID;
    /* Every padding is less than 2^32 elements. */
    if (align < gw_dtype_bytes(GW_DTYPE_FP32) || (align & (align - 1)) ||
        (uint64_t)options->world * align > UINT32_MAX)
        return GW_E_INVALID;
    if (options->shard_ranks && options->world % options->shard_ranks)
        return GW_E_INVALID;
    for (uint32_t g = 0; g < options->group_count; g++) {
        const struct layout_group *group = &options->groups[g];

        r = check_ranks(options, group);
        if (r == 0 && group->shard_ranks && group->count % group->shard_ranks)
            r = GW_E_INVALID;
        if (r)
            return r;
    }
    return 0;
}

/* ---- parameters ------------------------------------------------------------------------------ */

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

/* Present, and of a kind and size that can be. */
static bool param_fits(const struct layout_options *options, const struct layout_param *param,
                       uint64_t numel)
{
    return param->name && param->name[0] && param->unit && param->numel <= NUMEL_MAX - numel &&
           param->group <= options->group_count && param->dtype < GW_DTYPES &&
           param->grad_dtype < GW_DTYPES &&
           options->bucket_bytes >= gw_dtype_bytes(param->grad_dtype);
}

/* Units, by their first parameters. Two of one name are one that came back, or one named like a
 * parameter that is a unit of its own: either way a fetch by that name would be ambiguous. */
static uint32_t fill_units(const struct layout_param *params, uint32_t param_count,
                           struct named *names)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < param_count; i++) {
        if (!params[i].unit[0])
            names[count++] = (struct named){params[i].name, i};
        else if (i == 0 || strcmp(params[i].unit, params[i - 1].unit))
            names[count++] = (struct named){params[i].unit, i};
    }
    return count;
}

int layout_check_params(const struct layout_options *options, const struct layout_param *params,
                        uint32_t param_count, uint32_t *ret_param)
{
    struct named *names = calloc((size_t)param_count + 1, sizeof(*names));
    uint32_t wrong = UINT32_MAX;
    uint64_t numel = 0;

    if (!names)
        return GW_E_NOMEM;
    for (uint32_t i = 0; i < param_count && wrong == UINT32_MAX; i++) {
        if (!param_fits(options, &params[i], numel))
            wrong = i;
        numel += params[i].numel;
        names[i] = (struct named){params[i].name, i};
    }
    if (wrong == UINT32_MAX)
        wrong = find_repeated(names, param_count);
    if (wrong == UINT32_MAX)
        wrong = find_repeated(names, fill_units(params, param_count, names));
    free(names);
    if (wrong == UINT32_MAX)
        return 0;
    *ret_param = wrong;
    return GW_E_INVALID;
}
