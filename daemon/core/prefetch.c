/* SPDX-License-Identifier: Apache-2.0 */
/* Planner of stage 3; prefetch.h has its rules. Pure; one thread per object; starts nothing. */
#include "daemon/core/prefetch.h"

#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

/* A step may fetch each unit several times (forward, backward, recomputation, shared modules). */
#define SEQUENCE_PER_UNIT 8u
#define SEQUENCE_EXTRA 64u
#define ORDERS 8u /* remembered: graphs that alternate */
#define NO_ORDER UINT32_MAX

struct residency { /* of a fetch unit */
    bool resident;
    bool fetched; /* since the gather; if not: gathered ahead */
    bool kept;    /* not fetched, but there from the residency before */
    bool passed;  /* another fetch unit was fetched after it */
    bool changed; /* stands in the list */
    uint32_t references;
    uint32_t units_fetched; /* different registered units, in this residency */
    uint32_t units_needed;  /* registered units */
    uint64_t serial;        /* order of gathers */
    uint64_t seen;          /* by the last search for what is needed last */
    uint64_t offset, bytes;
    uint64_t own_offset; /* in a pool that holds all units */
};

struct order { /* a step's sequence of fetch units */
    uint32_t *units;
    uint32_t count; /* 0: none */
    uint32_t then;  /* the order of the step after it, last time; NO_ORDER: never seen */
    uint64_t used;  /* serial of the last step that had it */
};

struct prefetch {
    const struct gw_layout_unit *units;
    struct prefetch_config config;
    struct pool *pool;
    struct pool *trial; /* what it would be */
    uint64_t pool_at; /* where it begins: behind persistent parameters */
    bool whole; /* the pool holds all units: each has its own place */
    struct residency *residencies; /* by fetch unit */
    uint32_t *changed;             /* fetch units that prefetch_next_changed has to tell */
    uint32_t changed_count;
    uint64_t *unit_serial;         /* by registered unit: the residency it was last fetched in */
    uint32_t *residents;           /* fetch units that are, in no order */
    uint32_t resident_count;
    uint64_t serial, searches;
    uint64_t resident_bytes, ahead_bytes;
    struct order orders[ORDERS];
    uint64_t steps;     /* that had a sequence */
    uint32_t last;      /* order of the last step; NO_ORDER: none yet */
    uint32_t following; /* order that this step is taken to have; NO_ORDER: unknown */
    uint32_t next;      /* in it: what is expected to be fetched next */
    bool lost;          /* the step has left it for good */
    uint32_t *current;  /* this step's sequence */
    uint32_t current_count, sequence_max;
    struct prefetch_figures figures;
};

/* ---- set-up ---------------------------------------------------------------------------------- */

static void forget_orders(struct prefetch *plan)
{
    for (uint32_t o = 0; o < ORDERS; o++) {
        plan->orders[o].count = 0;
        plan->orders[o].then = NO_ORDER;
        plan->orders[o].used = 0;
    }
    plan->last = plan->following = NO_ORDER;
    plan->current_count = plan->next = 0;
    plan->lost = false;
}

static int allocate(struct prefetch *plan, const struct gw_layout_page *page, uint64_t pool_bytes)
{
    plan->residencies = calloc((size_t)page->fetch_units + 1, sizeof(*plan->residencies));
    plan->residents = calloc((size_t)page->fetch_units + 1, sizeof(*plan->residents));
    plan->unit_serial = calloc((size_t)page->units + 1, sizeof(*plan->unit_serial));
    plan->current = calloc(plan->sequence_max, sizeof(*plan->current));
    plan->changed = calloc((size_t)page->fetch_units + 1, sizeof(*plan->changed));
    if (!plan->residencies || !plan->residents || !plan->unit_serial || !plan->current ||
        !plan->changed)
        return GW_E_NOMEM;
    for (uint32_t o = 0; o < ORDERS; o++) {
        plan->orders[o].units = calloc(plan->sequence_max, sizeof(*plan->orders[o].units));
        if (!plan->orders[o].units)
            return GW_E_NOMEM;
    }
    if (pool_new(pool_bytes, page->fetch_units, &plan->pool) < 0)
        return GW_E_NOMEM;
    return pool_new(pool_bytes, page->fetch_units, &plan->trial);
}

static void set_sizes(struct prefetch *plan, const struct gw_layout_page *page,
                      const struct place *place)
{
    uint64_t all = 0;

    for (uint32_t f = page->persistent; f < page->fetch_units; f++) {
        plan->residencies[f].bytes = place_fetch_bytes(place, f);
        plan->residencies[f].own_offset = all;
        all += plan->residencies[f].bytes;
    }
    plan->whole = all == place_pool_bytes(place);
    plan->pool_at = page->persistent ? place_fetch_bytes(place, 0) : 0;
    for (uint32_t u = 0; u < page->units; u++) {
        if (plan->units[u].fetch_unit != UINT32_MAX)
            plan->residencies[plan->units[u].fetch_unit].units_needed++;
    }
}

int prefetch_new(const struct layout *layout, const struct place *place,
                 const struct prefetch_config *config, struct prefetch **ret_plan)
{
    const struct gw_layout_page *page = layout_page(layout);
    struct prefetch *plan = calloc(1, sizeof(*plan));
    int r;

    if (!plan)
        return GW_E_NOMEM;
    plan->units = layout_units(layout);
    plan->config = *config;
    plan->sequence_max = page->fetch_units * SEQUENCE_PER_UNIT + SEQUENCE_EXTRA;
    r = allocate(plan, page, place_pool_bytes(place));
    forget_orders(plan);
    if (r < 0) {
        prefetch_free(plan);
        return r;
    }
    set_sizes(plan, page, place);
    *ret_plan = plan;
    return 0;
}

struct prefetch *prefetch_free(struct prefetch *plan)
{
    if (!plan)
        return NULL;
    pool_free(plan->pool);
    pool_free(plan->trial);
    free(plan->residencies);
    free(plan->residents);
    free(plan->changed);
    free(plan->unit_serial);
    for (uint32_t o = 0; o < ORDERS; o++)
        free(plan->orders[o].units);
    free(plan->current);
    free(plan);
    return NULL;
}

/* ---- residencies ----------------------------------------------------------------------------- */

/* Nothing of it has been fetched. */
static void begin(struct prefetch *plan, struct residency *at, bool kept)
{
    at->resident = true;
    at->kept = kept;
    at->fetched = at->passed = false;
    at->references = at->units_fetched = 0;
    at->serial = ++plan->serial;
}

static void start_residency(struct prefetch *plan, uint32_t f, uint64_t offset)
{
    struct residency *at = &plan->residencies[f];

    begin(plan, at, false);
    at->offset = offset;
    plan->residents[plan->resident_count++] = f;
    plan->resident_bytes += at->bytes;
    plan->ahead_bytes += at->bytes;
    if (plan->resident_bytes > plan->figures.bytes_max)
        plan->figures.bytes_max = plan->resident_bytes;
}

static void note_change(struct prefetch *plan, uint32_t f)
{
    struct residency *at = &plan->residencies[f];

    if (at->changed)
        return;
    at->changed = true;
    plan->changed[plan->changed_count++] = f;
}

/* Places change: else each unit has its own, or tests want all at one. */
static bool allots(const struct prefetch *plan)
{
    return !plan->config.no_pool_free && !plan->whole;
}

static void end_residency(struct prefetch *plan, uint32_t f)
{
    struct residency *at = &plan->residencies[f];
    uint32_t i = 0;

    note_change(plan, f);
    at->resident = false;
    plan->resident_bytes -= at->bytes;
    while (plan->residents[i] != f)
        i++;
    plan->residents[i] = plan->residents[--plan->resident_count];
    if (!at->fetched && !at->kept) {
        plan->ahead_bytes -= at->bytes;
        plan->figures.drops++;
    }
    if (allots(plan))
        (void)pool_give(plan->pool, at->offset - plan->pool_at);
}

static bool take_room(struct prefetch *plan, const struct residency *at, uint64_t *ret_offset)
{
    uint64_t offset = plan->config.no_pool_free ? 0 : at->own_offset;

    if (allots(plan) && !pool_take(plan->pool, at->bytes, &offset))
        return false;
    *ret_offset = plan->pool_at + offset;
    return true;
}

static const struct order *followed(const struct prefetch *plan)
{
    return plan->following == NO_ORDER || plan->lost ? NULL : &plan->orders[plan->following];
}

/* Soon enough fetched again, and no reason to make room? */
static bool worth_keeping(const struct prefetch *plan, uint32_t f)
{
    const struct order *order = followed(plan);
    uint64_t between = 0;

    if (!order || plan->resident_bytes > plan->config.budget_bytes)
        return false;
    for (uint32_t i = plan->next; i < order->count && between < plan->config.reuse_bytes; i++) {
        if (order->units[i] == f)
            return true;
        between += plan->residencies[order->units[i]].bytes;
    }
    return false;
}

/* Nothing of it is fetched any more. */
static void leave(struct prefetch *plan, uint32_t f)
{
    if (worth_keeping(plan, f))
        begin(plan, &plan->residencies[f], true);
    else
        end_residency(plan, f);
}

/* Gives up the kept residency that is needed last, of those not needed before place `from` of the
 * order. False: there is none. */
static bool drop_kept(struct prefetch *plan, uint32_t from)
{
    const struct order *order = followed(plan);
    uint32_t last = UINT32_MAX;

    plan->searches++;
    for (uint32_t i = plan->next; order && i < order->count; i++) {
        struct residency *at = &plan->residencies[order->units[i]];

        if (!at->resident || !at->kept || at->seen == plan->searches)
            continue;
        at->seen = plan->searches;
        if (i >= from)
            last = order->units[i];
    }
    for (uint32_t i = 0; i < plan->resident_count; i++) {
        const struct residency *at = &plan->residencies[plan->residents[i]];

        if (at->kept && at->seen != plan->searches) /* not needed at all */
            last = plan->residents[i];
    }
    if (last == UINT32_MAX)
        return false;
    end_residency(plan, last);
    return true;
}

/* Giving up all that drop_kept would makes room. */
static bool kept_make_room(struct prefetch *plan, const struct residency *at, uint32_t from)
{
    const struct order *order = followed(plan);
    uint64_t left = plan->resident_bytes, offset;

    plan->searches++;
    for (uint32_t i = plan->next; i < from; i++)
        plan->residencies[order->units[i]].seen = plan->searches;
    pool_copy(plan->trial, plan->pool);
    for (uint32_t i = 0; i < plan->resident_count; i++) {
        const struct residency *kept = &plan->residencies[plan->residents[i]];

        if (!kept->kept || kept->seen == plan->searches)
            continue;
        left -= kept->bytes;
        if (allots(plan))
            (void)pool_give(plan->trial, kept->offset - plan->pool_at);
    }
    return left + at->bytes <= plan->config.budget_bytes &&
           (!allots(plan) || pool_take(plan->trial, at->bytes, &offset));
}

/* Gives up the residency that was gathered ahead last (so the one needed last). False: none. */
static bool drop_ahead(struct prefetch *plan)
{
    uint32_t last = UINT32_MAX;

    for (uint32_t i = 0; i < plan->resident_count; i++) {
        uint32_t f = plan->residents[i];
        const struct residency *at = &plan->residencies[f];

        if (!at->fetched && !at->kept &&
            (last == UINT32_MAX || at->serial > plan->residencies[last].serial))
            last = f;
    }
    if (last == UINT32_MAX)
        return false;
    end_residency(plan, last);
    return true;
}

static bool drop_any(struct prefetch *plan)
{
    return drop_kept(plan, plan->next) || drop_ahead(plan);
}

/* Room for a fetch: within the budget if dropping what is not fetched can achieve that, else
 * anywhere in the pool. */
static int make_room(struct prefetch *plan, const struct residency *at, uint64_t *ret_offset)
{
    while (plan->resident_bytes + at->bytes > plan->config.budget_bytes && drop_any(plan))
        continue;
    while (!take_room(plan, at, ret_offset)) {
        if (!drop_any(plan))
            return GW_E_BUDGET;
    }
    return 0;
}

/* Another fetch unit than f is used now: idle ones end, busy ones will when released. */
static void pass_others(struct prefetch *plan, uint32_t f)
{
    for (uint32_t i = plan->resident_count; i-- > 0;) { /* ending one moves those behind it */
        uint32_t other = plan->residents[i];
        struct residency *at = &plan->residencies[other];

        if (other == f || !at->fetched)
            continue;
        at->passed = true;
        note_change(plan, other);
        if (at->references == 0)
            leave(plan, other);
    }
}

/* ---- sequence -------------------------------------------------------------------------------- */

/* The order used last among those that began as this step has; NO_ORDER: none did. */
static uint32_t order_by_prefix(const struct prefetch *plan)
{
    size_t bytes = plan->current_count * sizeof(*plan->current);
    uint32_t found = NO_ORDER;

    for (uint32_t o = 0; o < ORDERS; o++) {
        const struct order *order = &plan->orders[o];

        if (order->count >= plan->current_count && !memcmp(order->units, plan->current, bytes) &&
            (found == NO_ORDER || order->used > plan->orders[found].used))
            found = o;
    }
    return found;
}

/* The residency of f is used for the first time: where does that leave us in a known order? What
 * was expected; else an order that began with all that this step has fetched; else further on in
 * the one that was followed. */
static void find_place(struct prefetch *plan, uint32_t f)
{
    const struct order *order = followed(plan);
    uint32_t other;

    if (order && plan->next < order->count && order->units[plan->next] == f) {
        plan->next++;
        return;
    }
    other = order_by_prefix(plan);
    if (other != NO_ORDER) {
        plan->following = other;
        plan->next = plan->current_count;
        plan->lost = false;
        return;
    }
    for (uint32_t i = plan->next; order && i < order->count; i++) {
        if (order->units[i] == f) {
            plan->next = i + 1;
            return;
        }
    }
    plan->lost = true;
}

static void follow(struct prefetch *plan, uint32_t f)
{
    if (plan->current_count < plan->sequence_max)
        plan->current[plan->current_count++] = f;
    find_place(plan, f);
}

static void first_fetch(struct prefetch *plan, uint32_t f, bool ahead)
{
    struct residency *at = &plan->residencies[f];

    at->fetched = true;
    if (!at->kept)
        plan->ahead_bytes -= at->bytes;
    at->kept = false;
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
    uint32_t f = plan->units[unit].fetch_unit;
    struct residency *at = &plan->residencies[f];

    if (!at->resident || at->references == 0)
        return; /* the caller counts fetches and releases; nothing to end */
    at->references--;
    if (at->references == 0 && (at->passed || at->units_fetched == at->units_needed))
        leave(plan, f);
}

/* after: its place in the order followed + 1. What is kept is not given up for nothing. */
static bool room_ahead(struct prefetch *plan, const struct residency *at, uint32_t after,
                       uint64_t *ret_offset)
{
    bool will = false;

    while (plan->resident_bytes + at->bytes > plan->config.budget_bytes ||
           !take_room(plan, at, ret_offset)) {
        will = will || kept_make_room(plan, at, after);
        if (!will || !drop_kept(plan, after))
            return false;
    }
    return true;
}

bool prefetch_ahead(struct prefetch *plan, struct prefetch_gather *ret_gather)
{
    const struct order *order = followed(plan);

    for (uint32_t i = plan->next; order && i < order->count; i++) {
        struct residency *at = &plan->residencies[order->units[i]];
        uint64_t offset;

        if (at->resident && !at->fetched)
            continue; /* there already */
        /* In use: its next residency cannot start before this one ends, and what comes after must
         * not take its room. */
        if (at->resident || plan->ahead_bytes + at->bytes > plan->config.ahead_bytes ||
            !room_ahead(plan, at, i + 1, &offset))
            return false;
        start_residency(plan, order->units[i], offset);
        *ret_gather = (struct prefetch_gather){order->units[i], offset};
        return true;
    }
    return false;
}

/* ---- steps ----------------------------------------------------------------------------------- */

void prefetch_empty(struct prefetch *plan)
{
    while (plan->resident_count)
        end_residency(plan, plan->residents[plan->resident_count - 1]);
}

/* The step's order: a known one, or in place of the one used longest ago. */
static uint32_t remember(struct prefetch *plan)
{
    size_t bytes = plan->current_count * sizeof(*plan->current);
    uint32_t at = 0;
    uint32_t *units;

    for (uint32_t o = 0; o < ORDERS; o++) {
        if (plan->orders[o].count == plan->current_count &&
            !memcmp(plan->orders[o].units, plan->current, bytes))
            return o;
        if (plan->orders[o].used < plan->orders[at].used)
            at = o;
    }
    for (uint32_t o = 0; o < ORDERS; o++) {
        if (plan->orders[o].then == at)
            plan->orders[o].then = NO_ORDER;
    }
    if (plan->last == at)
        plan->last = NO_ORDER;
    units = plan->orders[at].units;
    plan->orders[at] = (struct order){plan->current, plan->current_count, NO_ORDER, 0};
    plan->current = units;
    return at;
}

void prefetch_step_end(struct prefetch *plan)
{
    uint32_t at;

    prefetch_empty(plan);
    if (plan->current_count > 0) {
        at = remember(plan);
        plan->orders[at].used = ++plan->steps;
        if (plan->last != NO_ORDER)
            plan->orders[plan->last].then = at;
        plan->last = at;
        /* The next step is what came after this one last time; never seen: the same again. */
        plan->following = plan->orders[at].then == NO_ORDER ? at : plan->orders[at].then;
    }
    plan->current_count = 0;
    plan->next = 0;
    plan->lost = false;
}

void prefetch_reset(struct prefetch *plan)
{
    uint64_t drops = plan->figures.drops;

    prefetch_empty(plan);
    plan->figures.drops = drops; /* a broken step's residencies are nobody's misjudgement */
    forget_orders(plan);
}

/* ---- what others ask ------------------------------------------------------------------------- */

bool prefetch_next_changed(struct prefetch *plan, uint32_t *ret_fetch_unit)
{
    if (plan->changed_count == 0)
        return false;
    *ret_fetch_unit = plan->changed[--plan->changed_count];
    plan->residencies[*ret_fetch_unit].changed = false;
    return true;
}

bool prefetch_is_fresh(const struct prefetch *plan, uint32_t unit, uint64_t *ret_offset)
{
    const struct residency *at = &plan->residencies[plan->units[unit].fetch_unit];

    *ret_offset = at->offset;
    return at->resident && !at->passed && plan->unit_serial[unit] != at->serial;
}

bool prefetch_has_more(const struct prefetch *plan, uint32_t *ret_ahead)
{
    const struct order *order = plan->following == NO_ORDER ? NULL : &plan->orders[plan->following];
    uint32_t ahead = 0;

    if (!order || plan->lost || plan->config.ahead_bytes == 0)
        return false;
    for (uint32_t i = plan->next; i < order->count; i++, ahead++) {
        const struct residency *at = &plan->residencies[order->units[i]];

        if (!at->resident || at->fetched) {
            *ret_ahead = ahead;
            return true;
        }
    }
    return false;
}

struct prefetch_figures prefetch_figures(const struct prefetch *plan)
{
    struct prefetch_figures figures = plan->figures;

    figures.bytes_now = plan->resident_bytes;
    return figures;
}

struct pool_room prefetch_room(const struct prefetch *plan)
{
    return pool_room(plan->pool);
}

uint32_t prefetch_sequence_max(const struct prefetch *plan)
{
    return plan->sequence_max;
}
