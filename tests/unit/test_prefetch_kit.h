/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of stage 3's plan share: a plan over a small layout of one rank, and its gathers
 * as a log.
 */
#ifndef GW_TEST_PREFETCH_KIT_H
#define GW_TEST_PREFETCH_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/prefetch.h"
#include "gradwire/errors.h"

#define UNITS 24u

struct plan {
    struct layout *layout;
    struct place *place;
    struct prefetch *plan;
    uint64_t budget, largest;
    uint32_t gathers;   /* in all */
    char log[4096];     /* since asked last: "d3 a4": demand of fetch unit 3, ahead of 4 */
};

/* World 1, align 4 bytes. */
static inline struct plan *open_params(const struct layout_param *params, uint32_t count,
                                       struct layout_options *options,
                                       struct prefetch_config *config)
{
    struct wire_seal seal = {.stage = 3, .accumulate = GW_ACCUMULATE_SHARD, .micro_steps = 1,
                             .ring_slots = 1, .gather_bytes = config->budget_bytes};
    struct plan *plan = calloc(1, sizeof(*plan));
    uint32_t wrong;

    assert_non_null(plan);
    options->stage = 3;
    options->world = 1;
    options->align_bytes = 4;
    assert_int_equal(layout_new(options, params, count, &plan->layout, &wrong), 0);
    assert_int_equal(place_new(layout_page(plan->layout), &seal, 1, &plan->place), 0);
    assert_int_equal(prefetch_new(plan->layout, plan->place, config, &plan->plan), 0);
    plan->budget = config->budget_bytes;
    plan->largest = place_fetch_bytes_max(plan->place);
    return plan;
}

/* A unit of one fp32 parameter per numel; buckets of `bucket` elements. */
static inline struct plan *open_reuse(const uint64_t *numels, uint32_t count, uint64_t bucket,
                                      uint64_t budget_numel, uint64_t ahead_numel,
                                      uint64_t reuse_numel)
{
    static char names[UNITS][16];
    struct layout_param params[UNITS];
    struct layout_options options = {.bucket_bytes = bucket * 4};
    struct prefetch_config config = {.budget_bytes = budget_numel * 4,
                                     .ahead_bytes = ahead_numel * 4,
                                     .reuse_bytes = reuse_numel * 4};

    assert_true(count <= UNITS);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "u%u", i);
        params[i] = (struct layout_param){.name = names[i], .unit = "", .numel = numels[i]};
    }
    return open_params(params, count, &options, &config);
}

static inline struct plan *open_plan(const uint64_t *numels, uint32_t count, uint64_t bucket,
                                     uint64_t budget_numel, uint64_t ahead_numel)
{
    return open_reuse(numels, count, bucket, budget_numel, ahead_numel, 0);
}

static inline void close_plan(struct plan *plan)
{
    prefetch_free(plan->plan);
    place_free(plan->place);
    layout_free(plan->layout);
    free(plan);
}

static inline void note(struct plan *plan, char kind, uint32_t f)
{
    size_t used = strlen(plan->log);

    plan->gathers++;
    snprintf(plan->log + used, sizeof(plan->log) - used, "%s%c%u", used ? " " : "", kind, f);
}

static inline const char *log_of(struct plan *plan)
{
    static char log[sizeof(plan->log)];

    memcpy(log, plan->log, sizeof(log));
    plan->log[0] = 0;
    return log;
}

static inline void ahead(struct plan *plan)
{
    struct prefetch_gather gather;

    while (prefetch_ahead(plan->plan, &gather))
        note(plan, 'a', gather.fetch_unit);
    assert_true(prefetch_figures(plan->plan).bytes_now <= plan->budget + plan->largest);
}

static inline int fetch(struct plan *plan, uint32_t unit)
{
    struct prefetch_gather gather;
    int r = prefetch_fetch(plan->plan, unit, &gather);

    if (r == 1)
        note(plan, 'd', gather.fetch_unit);
    if (r >= 0)
        ahead(plan);
    return r;
}

static inline void release(struct plan *plan, uint32_t unit)
{
    prefetch_release(plan->plan, unit);
    ahead(plan);
}

static inline void use(struct plan *plan, uint32_t unit)
{
    assert_true(fetch(plan, unit) >= 0);
    release(plan, unit);
}

/* Forward over all units, then back. */
static inline void pass(struct plan *plan, uint32_t units)
{
    for (uint32_t u = 0; u < units; u++)
        use(plan, u);
    for (uint32_t u = units; u-- > 0;)
        use(plan, u);
}

static inline void assert_figures(const struct plan *plan, uint64_t hits, uint64_t misses,
                                  uint64_t drops)
{
    struct prefetch_figures figures = prefetch_figures(plan->plan);

    assert_int_equal(figures.hits, hits);
    assert_int_equal(figures.misses, misses);
    assert_int_equal(figures.drops, drops);
}

#endif
