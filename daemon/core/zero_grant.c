/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants, stage 3 on the host: which units a rank finds gathered without asking. The rank's client
 * reads them beside its own count of what it has declared and we have not yet served, and can tell
 * whether its next fetch is a hit; it is one here too when we come to serve it, for grants follow
 * the plan, and the plan follows the rank's declarations alone. Nothing here is an input of
 * anything. Pure; one thread.
 *
 * A unit is granted while its fetch unit is resident and gathered, no other fetch unit has been
 * fetched since it was first used, and the unit itself has not been fetched in this residency.
 * `since` is the number of the declaration after which the residency began: if the client declared
 * nothing of the fetch unit after it, nothing but a fetch that is no hit, or the step's end, can
 * end the residency; else a fetch of another unit can, too.
 *
 * Not granted are units with persistent parameters, which another gather brings; and none is where
 * units may stay from one residency to the next (reuse_bytes), for `since` would not tell that.
 */
#include <stdlib.h>

#include "daemon/core/zero_internal.h"

struct zero_grant { /* of a rank's fetch unit */
    uint64_t since;
    uint64_t gathered; /* last gather that is known to be done */
    bool changed;      /* stands in the list */
};

struct zero_grants {
    struct zero_grant *grants; /* rank x fetch unit */
    uint32_t *changed;         /* rank x fetch unit: those to be told */
    uint32_t *changed_count;   /* rank */
    bool *moved;               /* rank: something was served since grant_progress */
    uint32_t rank, unit;       /* where grant_next goes on: in the first changed one of the rank */
};

int grant_init(struct zero *z)
{
    size_t ranks = z->world, all = ranks * z->fetch_units + 1;
    struct zero_grants *g;

    if (z->stage != 3 || z->ordered || z->options.reuse_bytes > 0)
        return 0;
    g = z->grants = calloc(1, sizeof(*g));
    if (!g)
        return GW_E_NOMEM;
    g->grants = calloc(all, sizeof(*g->grants));
    g->changed = calloc(all, sizeof(*g->changed));
    g->changed_count = calloc(ranks, sizeof(*g->changed_count));
    g->moved = calloc(ranks, sizeof(*g->moved));
    return g->grants && g->changed && g->changed_count && g->moved ? 0 : GW_E_NOMEM;
}

void grant_free(struct zero *z)
{
    struct zero_grants *g = z->grants;

    if (!g)
        return;
    free(g->grants);
    free(g->changed);
    free(g->changed_count);
    free(g->moved);
    free(g);
    z->grants = NULL;
}

/* Boards are made anew in each generation, and show no grant. */
void grant_reset(struct zero *z)
{
    struct zero_grants *g = z->grants;

    if (!g)
        return;
    for (size_t i = 0; i < (size_t)z->world * z->fetch_units; i++)
        g->grants[i] = (struct zero_grant){.changed = false};
    for (uint32_t r = 0; r < z->world; r++) {
        uint32_t fetch_unit;

        while (prefetch_next_changed(z->ranks[r].plan, &fetch_unit))
            continue;
        z->ranks[r].served = g->changed_count[r] = 0;
        g->moved[r] = false;
    }
    g->rank = g->unit = 0;
}

static struct zero_grant *grant_of(const struct zero *z, uint32_t rank, uint32_t fetch_unit)
{
    return &z->grants->grants[(size_t)rank * z->fetch_units + fetch_unit];
}

static void mark(const struct zero *z, uint32_t rank, uint32_t fetch_unit)
{
    struct zero_grants *g = z->grants;
    struct zero_grant *grant = grant_of(z, rank, fetch_unit);

    if (grant->changed)
        return;
    grant->changed = true;
    g->changed[(size_t)rank * z->fetch_units + g->changed_count[rank]++] = fetch_unit;
}

void grant_launched(struct zero *z, uint32_t rank, uint32_t fetch_unit, bool ahead)
{
    if (z->grants)
        grant_of(z, rank, fetch_unit)->since = z->ranks[rank].served - (ahead ? 0 : 1);
}

void grant_gathered(struct zero *z, const struct zero_flight *flight)
{
    uint32_t rank = ranks_first(&flight->ranks);
    struct zero_grant *grant;

    if (!z->grants || layout_fetch_units(z->layout)[flight->index].units == 0)
        return;
    grant = grant_of(z, rank, flight->index);
    /* Its groups' gathers are done in order, but need not be told so. */
    if (flight->id > grant->gathered)
        grant->gathered = flight->id;
    mark(z, rank, flight->index);
}

void grant_served(struct zero *z, uint32_t rank)
{
    uint32_t fetch_unit;

    if (!z->grants)
        return;
    z->grants->moved[rank] = true;
    while (prefetch_next_changed(z->ranks[rank].plan, &fetch_unit))
        mark(z, rank, fetch_unit);
}

static void describe(const struct zero *z, uint32_t rank, uint32_t fetch_unit, uint32_t unit,
                     struct core_grant *ret_grant)
{
    const struct zero_grant *grant = grant_of(z, rank, fetch_unit);
    uint64_t gather = z->unit_gather[(size_t)rank * z->fetch_units + fetch_unit], offset = 0;
    const struct gw_layout_unit *at = &layout_units(z->layout)[unit];
    bool given = at->fetch_unit == fetch_unit && !at->persistent && gather &&
                 grant->gathered == gather &&
                 prefetch_is_fresh(z->ranks[rank].plan, unit, &offset);

    *ret_grant = (struct core_grant){.rank = rank, .unit = unit};
    if (!given)
        return;
    ret_grant->value = z->unit_fetches[(size_t)rank * z->units + unit] + 1;
    ret_grant->offset = z->mapped ? 0 : offset;
    ret_grant->since = grant->since;
}

bool grant_next(struct zero *z, struct core_grant *ret_grant)
{
    struct zero_grants *g = z->grants;

    for (; g && g->rank < z->world; g->rank++) {
        const struct gw_layout_fetch_unit *at;
        uint32_t fetch_unit;

        if (g->changed_count[g->rank] == 0)
            continue;
        fetch_unit = g->changed[(size_t)g->rank * z->fetch_units + g->changed_count[g->rank] - 1];
        at = &layout_fetch_units(z->layout)[fetch_unit];
        describe(z, g->rank, fetch_unit, at->first_unit + g->unit, ret_grant);
        if (++g->unit >= at->units) {
            g->unit = 0;
            g->changed_count[g->rank]--;
            grant_of(z, g->rank, fetch_unit)->changed = false;
        }
        return true;
    }
    if (g)
        g->rank = 0;
    return false;
}

bool grant_progress(struct zero *z, uint32_t rank, struct core_progress *ret_progress)
{
    struct zero_grants *g = z->grants;
    uint32_t ahead = 0;

    if (!g || !g->moved[rank])
        return false;
    g->moved[rank] = false;
    ret_progress->served = z->ranks[rank].served;
    ret_progress->ring_at = UINT64_MAX;
    /* Half of what is gathered ahead is left when more is asked for. */
    if (prefetch_has_more(z->ranks[rank].plan, &ahead))
        ret_progress->ring_at = ret_progress->served + (ahead + 1) / 2;
    return true;
}
