/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a layout is made, private to layout*.c. Pure; any thread.
 *
 *   layout_check.c   options, names and sizes, before any placement
 *   layout_runs.c    the parameter list cut into units, neighbouring units merged, and the order in
 *                    which parameters are placed
 *   layout.c         parameters placed into buckets
 *   layout_block.c   the page: its memory, names, units, groups, totals
 */
#ifndef GW_CORE_LAYOUT_INTERNAL_H
#define GW_CORE_LAYOUT_INTERNAL_H

#include <stdbool.h>

#include "daemon/core/layout.h"
#include "proto/limits.h"

/* A class as a number: group, dtype and gradient dtype. */
#define LAYOUT_CLASSES (GW_GROUPS_MAX * GW_DTYPES * GW_DTYPES)

struct layout {
    struct gw_layout_page *page;
    struct gw_layout_param *params;
    struct gw_layout_piece *pieces;
    struct gw_layout_bucket *buckets;
    struct gw_layout_unit *units;
    struct gw_layout_fetch_unit *fetch_units;
    struct gw_layout_group *groups;
    uint32_t *members;
    char *names;
    uint64_t block[]; /* the page; zeroed first, so that its bytes (and hash) are the same always */
};

/* A registered unit: consecutive parameters with one unit name. */
struct layout_run {
    const char *name; /* the caller's; the parameter's own name where it has no unit */
    uint32_t first_param, params;
    uint32_t fetch_unit; /* UINT32_MAX: none, nothing of it is left */
    uint32_t group;      /* of what is left; UINT32_MAX: of several, or nothing is */
    uint64_t grad_bytes; /* of what is left */
    bool persistent;     /* some parameters are */
};

/* A parameter that is not empty, in the order of placement. */
struct layout_item {
    uint32_t fetch_unit; /* stages 0-2: UINT32_MAX */
    uint32_t group_first, class_first; /* the first parameter of its fetch unit that is alike */
    uint32_t param;
};

struct layout_runs {
    struct layout_run *runs;
    struct layout_item *items;
    uint32_t count, item_count, fetch_units;
    bool persistent; /* fetch unit 0 is that of persistent parameters */
};

static inline uint32_t layout_class(const struct layout_param *param)
{
    return (param->group * GW_DTYPES + param->dtype) * GW_DTYPES + param->grad_dtype;
}

static inline bool layout_persists(const struct layout_options *options,
                                   const struct layout_param *param)
{
    return options->stage == 3 && param->numel > 0 &&
           param->numel * gw_dtype_bytes(param->dtype) <= options->persist_bytes;
}

static inline uint32_t layout_members(const struct layout_options *options, uint32_t group)
{
    return group == 0 ? options->world : options->groups[group - 1].count;
}

/* shard_align_bytes in elements of the smallest dtype of its buckets. */
static inline uint32_t layout_align_numel(const struct layout_options *options,
                                          const struct layout_param *param)
{
    uint32_t a = gw_dtype_bytes(param->dtype), b = gw_dtype_bytes(param->grad_dtype);

    return options->align_bytes / (a < b ? a : b);
}

/* ---- layout_check.c ------------------------------------------------------------------------- */

/* Errors as layout_new. */
int layout_check_options(const struct layout_options *options);
int layout_check_params(const struct layout_options *options, const struct layout_param *params,
                        uint32_t param_count, uint32_t *ret_param);

/* ---- layout_runs.c -------------------------------------------------------------------------- */

/* Of checked parameters. GW_E_NOMEM. */
int layout_runs_init(struct layout_runs *runs, const struct layout_options *options,
                     const struct layout_param *params, uint32_t param_count);
void layout_runs_done(struct layout_runs *runs);

/* ---- layout_block.c ------------------------------------------------------------------------- */

/* Bytes of all names that the page holds, each with its final 0. */
uint64_t layout_names_bytes(const struct layout_param *params, uint32_t param_count,
                            const struct layout_runs *runs);
/* The header's counts and names_bytes are set; fills in where the arrays begin and copies it. */
int layout_block_new(struct gw_layout_page *header, struct layout **ret_layout);
/* What needs no placement: names, groups, a parameter's own. */
void layout_block_begin(struct layout *layout, const struct layout_options *options,
                        const struct layout_param *params, const struct layout_runs *runs);
/* All that follows from where the pieces lie: units, fetch units, totals. */
void layout_block_end(struct layout *layout);

#endif
