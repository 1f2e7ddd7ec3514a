/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First half of making a layout: the parameter list cut into units, and neighbouring units merged
 * into fetch units. Private to layout*.c. Pure; any thread.
 */
#ifndef GW_CORE_LAYOUT_RUNS_H
#define GW_CORE_LAYOUT_RUNS_H

#include "daemon/core/layout.h"

/* A registered unit: consecutive parameters with one unit name. */
struct layout_run {
    const char *name; /* the caller's; the parameter's own name where it has no unit */
    uint32_t first_param, params;
    uint32_t fetch_unit;
    uint64_t numel;
};

/* *ret_runs is malloc'd, `*ret_count` entries (NULL where there are none). Errors as layout_new. */
int layout_runs_new(const struct layout_options *options, const struct layout_param *params,
                    uint32_t param_count, struct layout_run **ret_runs, uint32_t *ret_count,
                    uint32_t *ret_param);

#endif
