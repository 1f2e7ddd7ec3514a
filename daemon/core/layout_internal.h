/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a layout is made, private to layout*.c. Pure; any thread.
 *
 *   layout_runs.c    the parameter list cut into units, neighbouring units merged
 *   layout.c         parameters placed into buckets
 *   layout_block.c   the page: its memory, names, units, totals
 */
#ifndef GW_CORE_LAYOUT_INTERNAL_H
#define GW_CORE_LAYOUT_INTERNAL_H

#include "daemon/core/layout.h"

struct layout {
    struct gw_layout_page *page;
    struct gw_layout_param *params;
    struct gw_layout_piece *pieces;
    struct gw_layout_bucket *buckets;
    struct gw_layout_unit *units;
    struct gw_layout_fetch_unit *fetch_units;
    char *names;
    uint64_t block[]; /* the page; zeroed first, so that its bytes (and hash) are the same always */
};

/* A registered unit: consecutive parameters with one unit name. */
struct layout_run {
    const char *name; /* the caller's; the parameter's own name where it has no unit */
    uint32_t first_param, params;
    uint32_t fetch_unit;
    uint64_t numel;
};

/* ---- layout_runs.c -------------------------------------------------------------------------- */

/* *ret_runs is malloc'd, `*ret_count` entries (NULL where there are none). Errors as layout_new. */
int layout_runs_new(const struct layout_options *options, const struct layout_param *params,
                    uint32_t param_count, struct layout_run **ret_runs, uint32_t *ret_count,
                    uint32_t *ret_param);

/* ---- layout_block.c ------------------------------------------------------------------------- */

/* Bytes of all names that the page holds, each with its final 0. */
uint64_t layout_names_bytes(const struct layout_param *params, uint32_t param_count,
                            const struct layout_run *runs, uint32_t run_count);
/* The header's counts and names_bytes are set; fills in where the arrays begin and copies it. */
int layout_block_new(struct gw_layout_page *header, struct layout **ret_layout);
/* All that follows from where the pieces lie: names, units, fetch units, totals. */
void layout_block_fill(struct layout *layout, const struct layout_param *params,
                       const struct layout_run *runs);

#endif
