/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan of one rank's gathers in stage 3: which fetch unit is resident, where in the pool, and what
 * is gathered ahead. It takes decisions and starts nothing; its only inputs are the layout, the
 * rank's fetches and releases, and the sequences they made in earlier steps. Never completions,
 * other ranks or time. Pure; one thread per object.
 *
 * A residency of a fetch unit starts with its gather and ends when nothing of it is fetched and
 * either all its registered units have been fetched in it, or another fetch unit has been fetched
 * since, or the step ends. So a pass over merged units gathers them once, and forward and backward
 * gather each unit twice.
 *
 * The order of first fetches is recorded, residency by residency; the last orders are remembered,
 * so that graphs may alternate, and for each the order that came after it. A step is taken to have
 * the order that came after the last one's, until it fetches something else; then the order used
 * last among those that began with all that the step has fetched; if there is none, a fetch out of
 * order moves on to its next occurrence in the order followed, and if it does not occur there,
 * nothing is gathered ahead until the step ends. Along the order followed units are gathered ahead
 * as far as prefetch_bytes (gathered and not yet fetched) and the budget (all residencies) allow,
 * never past the step's end.
 *
 * With reuse_bytes a residency that would end is kept as if gathered ahead, while the budget holds,
 * if on the order followed less than so many bytes of others are fetched before it is again. Kept
 * ones give way first: to fetches, the one needed last first; to a gather ahead, if needed later
 * than that and if it makes room.
 *
 * All residencies together take at most budget + the largest fetch unit. Persistent parameters are
 * none of it: their fetch unit is never planned.
 */
#ifndef GW_CORE_PREFETCH_H
#define GW_CORE_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/layout.h"
#include "daemon/core/pool.h"
#include "proto/place.h"

struct prefetch;

struct prefetch_config {
    uint64_t budget_bytes;
    uint64_t ahead_bytes; /* of gathered ahead and not yet fetched; 0: nothing is */
    uint64_t reuse_bytes; /* 0: none is kept */
    bool no_pool_free;    /* tests: edge POOL_FREE dropped, all residencies at one offset */
};

/* A gather that the caller starts now. */
struct prefetch_gather {
    uint32_t fetch_unit;
    uint64_t offset_bytes; /* in the pool */
};

struct prefetch_figures {
    uint64_t hits, misses; /* residencies whose first fetch found them gathered ahead or kept, or
                            * not */
    uint64_t drops;        /* gathered ahead and given up unfetched */
    uint64_t bytes_now, bytes_max;
};

/* The layout (stage 3) and the rank's place stay the caller's. GW_E_NOMEM. */
int prefetch_new(const struct layout *layout, const struct place *place,
                 const struct prefetch_config *config, struct prefetch **ret_plan);
struct prefetch *prefetch_free(struct prefetch *plan);

/* The rank fetches a registered unit with a fetch unit of which it gathers bytes. 0: that one is
 * gathered or being gathered, at *ret_gather; 1: the caller gathers it to *ret_gather now;
 * GW_E_BUDGET: the units held leave no room, in all or in one piece. */
int prefetch_fetch(struct prefetch *plan, uint32_t unit, struct prefetch_gather *ret_gather);
/* ... and releases it: once for each fetch. */
void prefetch_release(struct prefetch *plan, uint32_t unit);
/* After a fetch or release: the next gather ahead to start now; false: no more. */
bool prefetch_ahead(struct prefetch *plan, struct prefetch_gather *ret_gather);
/* Everything has been released. The step's sequence is remembered. */
void prefetch_step_end(struct prefetch *plan);
/* Nothing is fetched, and what is there is no longer what a gather would bring: all residencies
 * end. */
void prefetch_empty(struct prefetch *plan);
/* As new, but for the figures. */
void prefetch_reset(struct prefetch *plan);

/* A fetch unit of which something has ended, its residency or that it is the one in use; each once.
 * False: none since. */
bool prefetch_next_changed(struct prefetch *plan, uint32_t *ret_fetch_unit);
/* The registered unit is resident, was not fetched in this residency, and no other fetch unit has
 * been fetched since this one was first: a fetch of it now would be served from *ret_offset. */
bool prefetch_is_fresh(const struct prefetch *plan, uint32_t unit, uint64_t *ret_offset);
/* There is more to gather ahead than is; *ret_ahead: how many of the order are, from the next. */
bool prefetch_has_more(const struct prefetch *plan, uint32_t *ret_ahead);

struct prefetch_figures prefetch_figures(const struct prefetch *plan);
/* What the units held leave of the pool, after GW_E_BUDGET. */
struct pool_room prefetch_room(const struct prefetch *plan);
/* The largest number of residencies a step's sequence may hold; later ones are not recorded. */
uint32_t prefetch_sequence_max(const struct prefetch *plan);

#endif
