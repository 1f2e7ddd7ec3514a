/* SPDX-License-Identifier: Apache-2.0 */
/* How often a step gathers in stage 3. Units that are reused are a question for the planner of
 * gathers itself: it is driven through steps here. Pure; any thread. */
#include <stdlib.h>

#include "daemon/core/plan_internal.h"
#include "daemon/core/prefetch.h"
#include "gradwire/errors.h"

#define FETCHES_PER_MICRO_STEP 2u /* forward and backward */

struct walk {
    const struct layout *layout;
    const struct place *place;
    struct prefetch *plan;
    uint64_t *times; /* NULL: not counted */
};

static void count(struct walk *walk, const struct prefetch_gather *gather)
{
    if (walk->times)
        walk->times[gather->fetch_unit]++;
}

static void ahead(struct walk *walk)
{
    struct prefetch_gather gather;

    while (prefetch_ahead(walk->plan, &gather))
        count(walk, &gather);
}

/* As zero_fetch.c serves it; one unit at a time always fits. */
static void use(struct walk *walk, uint32_t unit)
{
    uint32_t fetch_unit = layout_units(walk->layout)[unit].fetch_unit;
    struct prefetch_gather gather;

    if (fetch_unit == UINT32_MAX || place_fetch_bytes(walk->place, fetch_unit) == 0)
        return;
    if (prefetch_fetch(walk->plan, unit, &gather) == 1)
        count(walk, &gather);
    ahead(walk);
    prefetch_release(walk->plan, unit);
    ahead(walk);
}

static void step(struct walk *walk, uint32_t micro_steps)
{
    uint32_t units = layout_page(walk->layout)->units;

    for (uint32_t m = 0; m < micro_steps; m++) {
        for (uint32_t u = 0; u < units; u++)
            use(walk, u);
        for (uint32_t u = units; u-- > 0;)
            use(walk, u);
    }
    prefetch_step_end(walk->plan);
}

/* The order is known from the second step on, and what is gathered ahead from then on too. */
static int walk_steps(const struct layout *layout, const struct place *place,
                      const struct wire_seal *options, uint64_t *times)
{
    struct prefetch_config config = {
        .budget_bytes = options->gather_bytes,
        .ahead_bytes = options->overlap_off ? 0 : options->prefetch_bytes,
        .reuse_bytes = options->reuse_bytes,
    };
    struct walk walk = {.layout = layout, .place = place};
    int r;

    r = prefetch_new(layout, place, &config, &walk.plan);
    if (r < 0)
        return r;
    step(&walk, options->micro_steps);
    walk.times = times;
    step(&walk, options->micro_steps);
    (void)prefetch_free(walk.plan);
    return 0;
}

int plan_fetches(const struct layout *layout, const struct place *place,
                 const struct wire_seal *options, uint64_t **ret_times)
{
    const struct gw_layout_page *page = layout_page(layout);
    uint64_t *times = calloc((size_t)page->fetch_units + 1, sizeof(*times));
    int r = 0;

    if (!times)
        return GW_E_NOMEM;
    if (options->reuse_bytes)
        r = walk_steps(layout, place, options, times);
    for (uint32_t f = page->persistent; f < page->fetch_units && !options->reuse_bytes; f++)
        times[f] = FETCHES_PER_MICRO_STEP * options->micro_steps;
    if (r < 0) {
        free(times);
        return r;
    }
    *ret_times = times;
    return 0;
}
