/* SPDX-License-Identifier: Apache-2.0 */
/* Planner of stage 3; prefetch.h has its rules. Pure; one thread per object; starts nothing. */
#include "daemon/core/prefetch.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/pool.h"
#include "gradwire/errors.h"

#define FLOAT_BYTES 4u
/* A step may fetch each unit several times (forward, backward, recomputation, shared modules). */
#define SEQUENCE_PER_UNIT 8u
#define SEQUENCE_EXTRA 64u

struct residency { /* of a fetch unit */
    bool resident;
    bool fetched; /* since the gather; if not: gathered ahead */
    bool passed;  /* another fetch unit was fetched after it */
    uint32_t references;
    uint32_t units_fetched; /* different registered units, in this residency */
    uint32_t units_needed;  /* registered units that have buckets */
    uint64_t serial;        /* order of gathers */
    uint64_t offset, bytes;
    uint64_t flat_offset; /* bytes, in the flat order */
};

struct prefetch {
    const struct gw_layout_unit *units;
    struct prefetch_config config;
    struct pool *pool;
    bool whole; /* the pool holds all units: each has its own place */
    uint32_t fetch_units;
    struct residency *residencies; /* by fetch unit */
    uint64_t *unit_serial;         /* by registered unit: the residency it was last fetched in */
    uint64_t serial;
    uint64_t resident_bytes, ahead_bytes;
    uint32_t *recorded, *current; /* fetch units: the last step's sequence, and this one's */
    uint32_t recorded_count, current_count, sequence_max;
    uint32_t next; /* in recorded: what is expected to be fetched next */
    bool lost;     /* the step has left the recorded sequence for good */
    struct prefetch_figures figures;
};

/* ---- set-up ---------------------------------------------------------------------------------- */

uint64_t prefetch_pool_bytes(const struct gw_layout_page *page, uint64_t budget_bytes)
{
    uint64_t all = page->padded_numel * FLOAT_BYTES, bytes;

    if (__builtin_add_overflow(page->max_fetch_numel * FLOAT_BYTES, budget_bytes, &bytes))
        return all;
    return bytes < all ? bytes : all;
}

static int allocate(struct prefetch *plan, const struct gw_layout_page *page)
{
    uint64_t pool_bytes = prefetch_pool_bytes(page, plan->config.budget_bytes);

    plan->whole = pool_bytes == page->padded_numel * FLOAT_BYTES;
    plan->residencies = calloc((size_t)page->fetch_units + 1, sizeof(*plan->residencies));
    plan->unit_serial = calloc((size_t)page->units + 1, sizeof(*plan->unit_serial));
    plan->recorded = calloc(plan->sequence_max, sizeof(*plan->recorded));
    plan->current = calloc(plan->sequence_max, sizeof(*plan->current));
    if (!plan->residencies || !plan->unit_serial || !plan->recorded || !plan->current)
        return GW_E_NOMEM;
    return pool_new(pool_bytes, page->fetch_units, &plan->pool);
}

int prefetch_new(const struct layout *layout, const struct prefetch_config *config,
                 struct prefetch **ret_plan)
{
    const struct gw_layout_page *page = layout_page(layout);
    const struct gw_layout_fetch_unit *fetch_units = layout_fetch_units(layout);
    struct prefetch *plan = calloc(1, sizeof(*plan));
    int r;

    if (!plan)
        return GW_E_NOMEM;
    plan->units = layout_units(layout);
    plan->config = *config;
    plan->fetch_units = page->fetch_units;
    plan->sequence_max = page->fetch_units * SEQUENCE_PER_UNIT + SEQUENCE_EXTRA;
    r = allocate(plan, page);
    if (r < 0) {
        prefetch_free(plan);
        return r;
    }
    for (uint32_t f = 0; f < page->fetch_units; f++) {
        plan->residencies[f].bytes = fetch_units[f].padded_numel * FLOAT_BYTES;
        plan->residencies[f].flat_offset = fetch_units[f].offset * FLOAT_BYTES;
    }
    for (uint32_t u = 0; u < page->units; u++)
        plan->residencies[plan->units[u].fetch_unit].units_needed += plan->units[u].buckets > 0;
    *ret_plan = plan;
    return 0;
}

struct prefetch *prefetch_free(struct prefetch *plan)
{
    if (!plan)
        return NULL;
    pool_free(plan->pool);
    free(plan->residencies);
    free(plan->unit_serial);
    free(plan->recorded);
    free(plan->current);
    free(plan);
    return NULL;
}

/* ---- residencies ----------------------------------------------------------------------------- */

static void start_residency(struct prefetch *plan, uint32_t f, uint64_t offset)
{
    struct residency *at = &plan->residencies[f];

    at->resident = true;
    at->fetched = at->passed = false;
    at->references = at->units_fetched = 0;
    at->serial = ++plan->serial;
    at->offset = offset;
    plan->resident_bytes += at->bytes;
    plan->ahead_bytes += at->bytes;
    if (plan->resident_bytes > plan->figures.bytes_max)
        plan->figures.bytes_max = plan->resident_bytes;
}

static void end_residency(struct prefetch *plan, struct residency *at)
{
    at->resident = false;
    plan->resident_bytes -= at->bytes;
    if (!at->fetched) {
        plan->ahead_bytes -= at->bytes;
        plan->figures.drops++;
    }
    if (!plan->config.no_pool_free && !plan->whole)
        (void)pool_give(plan->pool, at->offset);
}

static bool take_room(struct prefetch *plan, const struct residency *at, uint64_t *ret_offset)
{
    if (plan->config.no_pool_free || plan->whole) {
        *ret_offset = plan->config.no_pool_free ? 0 : at->flat_offset;
        return true;
    }
    return pool_take(plan->pool, at->bytes, ret_offset);
}

/* Gives up the residency that was gathered ahead last (so the one needed last). False: none. */
static bool drop_ahead(struct prefetch *plan)
{
    struct residency *last = NULL;

    for (uint32_t f = 0; f < plan->fetch_units; f++) {
        struct residency *at = &plan->residencies[f];
        if (at->resident && !at->fetched && (!last || at->serial > last->serial))
            last = at;
    }
    if (!last)
        return false;
    end_residency(plan, last);
    return true;
}

/* Room for a fetch: within the budget if dropping what was gathered ahead can achieve that, else
 * anywhere in the pool. */
static int make_room(struct prefetch *plan, const struct residency *at, uint64_t *ret_offset)
{
    while (plan->resident_bytes + at->bytes > plan->config.budget_bytes && drop_ahead(plan))
        continue;
    while (!take_room(plan, at, ret_offset)) {
        if (!drop_ahead(plan))
            return GW_E_BUDGET;
    }
    return 0;
}

/* Another fetch unit than f is used now: idle ones end, busy ones will when released. */
static void pass_others(struct prefetch *plan, uint32_t f)
{
    for (uint32_t other = 0; other < plan->fetch_units; other++) {
        struct residency *at = &plan->residencies[other];

        if (other == f || !at->resident || !at->fetched)
            continue;
        at->passed = true;
        if (at->references == 0)
            end_residency(plan, at);
    }
}

/* ---- sequence -------------------------------------------------------------------------------- */

/* The residency of f is used for the first time: record it, and find it in the recorded order. */
static void follow(struct prefetch *plan, uint32_t f)
{
    if (plan->current_count < plan->sequence_max)
        plan->current[plan->current_count++] = f;
    for (uint32_t i = plan->next; i < plan->recorded_count && !plan->lost; i++) {
        if (plan->recorded[i] == f) {
            plan->next = i + 1;
            return;
        }
    }
    plan->lost = true;
}

static void first_fetch(struct prefetch *plan, uint32_t f, bool ahead)
{
    struct residency *at = &plan->residencies[f];

    at->fetched = true;
    plan->ahead_bytes -= at->bytes;
    if (ahead)
        plan->figures.hits++;
    else
        plan->figures.misses++;
    follow(plan, f);
}

int prefetch_fetch(struct prefetch *plan, uint32_t unit, struct prefetch_gather *ret_gather)
{
    uint32_t f = plan->units[unit].fetch_unit;
    struct residency *at = &plan->residencies[f];
    bool gather = !at->resident;
    uint64_t offset;
    int r;

    pass_others(plan, f);
    if (gather) {
        r = make_room(plan, at, &offset);
        if (r < 0)
            return r;
        start_residency(plan, f, offset);
    }
    if (!at->fetched)
        first_fetch(plan, f, !gather);
    at->passed = false;
    at->references++;
    if (plan->unit_serial[unit] != at->serial) {
        plan->unit_serial[unit] = at->serial;
        at->units_fetched++;
    }
    *ret_gather = (struct prefetch_gather){f, at->offset};
    return gather;
}

void prefetch_release(struct prefetch *plan, uint32_t unit)
{
    struct residency *at = &plan->residencies[plan->units[unit].fetch_unit];

    if (!at->resident || at->references == 0)
        return; /* the caller counts fetches and releases; nothing to end */
    at->references--;
    if (at->references == 0 && (at->passed || at->units_fetched == at->units_needed))
        end_residency(plan, at);
}

bool prefetch_ahead(struct prefetch *plan, struct prefetch_gather *ret_gather)
{
    if (plan->lost)
        return false;
    for (uint32_t i = plan->next; i < plan->recorded_count; i++) {
        struct residency *at = &plan->residencies[plan->recorded[i]];
        uint64_t offset;

        if (at->resident && !at->fetched)
            continue; /* gathered ahead already */
        /* In use: its next residency cannot start before this one ends, and what comes after must
         * not take its room. */
        if (at->resident || plan->ahead_bytes + at->bytes > plan->config.ahead_bytes ||
            plan->resident_bytes + at->bytes > plan->config.budget_bytes ||
            !take_room(plan, at, &offset))
            return false;
        start_residency(plan, plan->recorded[i], offset);
        *ret_gather = (struct prefetch_gather){plan->recorded[i], offset};
        return true;
    }
    return false;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void end_all(struct prefetch *plan)
{
    for (uint32_t f = 0; f < plan->fetch_units; f++) {
        if (plan->residencies[f].resident)
            end_residency(plan, &plan->residencies[f]);
    }
}

void prefetch_step_end(struct prefetch *plan)
{
    uint32_t *sequence = plan->recorded;

    end_all(plan);
    plan->recorded = plan->current;
    plan->recorded_count = plan->current_count;
    plan->current = sequence;
    plan->current_count = 0;
    plan->next = 0;
    plan->lost = false;
}

void prefetch_reset(struct prefetch *plan)
{
    uint64_t drops = plan->figures.drops;

    end_all(plan);
    plan->figures.drops = drops; /* a broken step's residencies are nobody's misjudgement */
    plan->recorded_count = plan->current_count = 0;
    plan->next = 0;
    plan->lost = false;
}

struct prefetch_figures prefetch_figures(const struct prefetch *plan)
{
    struct prefetch_figures figures = plan->figures;

    figures.bytes_now = plan->resident_bytes;
    return figures;
}

uint32_t prefetch_sequence_max(const struct prefetch *plan)
{
    return plan->sequence_max;
}
