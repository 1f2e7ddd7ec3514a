/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parts of a plan: plan.c (figures), plan_nodes.c (what crosses nodes), plan_fetch.c
 * (how often stage 3 gathers). Pure; any thread. */
#ifndef GW_CORE_PLAN_INTERNAL_H
#define GW_CORE_PLAN_INTERNAL_H

#include "daemon/core/plan.h"
#include "proto/place.h"

/* Collectives of one sort in a group: within all its runs, between them, or within all blocks. */
struct plan_level {
    uint32_t members; /* of one */
    /* What the busiest node sends of all of them: so often the payload of one / members. */
    uint64_t reduced, gathered, both;
};

/* Within runs; between them: one per slice, of as many members as there are runs; within blocks
 * that keep secondary shards (none: of no members). */
enum plan_levels { PLAN_WITHIN, PLAN_BETWEEN, PLAN_BLOCKS, PLAN_LEVELS };

/* Of group g, whose blocks have so many ranks (0: it has none). GW_E_NOMEM. */
int plan_levels(const struct plan_request *request, const struct gw_layout_page *page, uint32_t g,
                uint32_t block_ranks, struct plan_level ret_levels[PLAN_LEVELS]);

/* Stage 3: how often a step gathers each fetch unit (but the persistent one: 0), for a rank with
 * this place. *ret_times is malloc'd. GW_E_NOMEM. */
int plan_fetches(const struct layout *layout, const struct place *place,
                 const struct wire_seal *options, uint64_t **ret_times);

#endif
