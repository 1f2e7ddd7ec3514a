/* SPDX-License-Identifier: Apache-2.0 */
/* GRADWIRE_DEBUG=guard; see guard.h. Under job->lock; only changes page access. */
#include "client/lib/guard.h"

#include <sys/mman.h>

static void set(const struct map *map, uint64_t offset, uint64_t bytes, bool open, int prot)
{
    if (open)
        map_guard_open(map, offset, bytes, prot);
    else
        map_guard_close(map, offset, bytes, PROT_NONE);
}

void guard_bucket(const gw_job *job, const struct zero *zero, uint32_t bucket, uint32_t slot,
                  bool open)
{
    uint64_t bytes = zero->page->max_bucket_numel * sizeof(float);
    int prot = PROT_READ | PROT_WRITE;

    if (!job->debug_guard)
        return;
    if (!zero->ledger->ring)
        set(&zero->grads, zero->view.buckets[bucket].offset * sizeof(float),
            zero->view.buckets[bucket].padded_numel * sizeof(float), open, prot);
    else if (slot < zero->options.ring_slots)
        set(&zero->ring, slot * bytes, bytes, open, prot);
    else if (slot - zero->options.ring_slots < GW_OVERFLOW_MAX)
        set(&zero->overflow[slot - zero->options.ring_slots], 0, bytes, open, prot);
}

/* A unit's place in the pool may be another one at each fetch: the caller has the slot's offset. */
void guard_unit(const gw_job *job, const struct zero *zero, uint32_t unit, uint64_t pool_offset,
                bool open)
{
    const struct gw_layout_unit *u = &zero->view.units[unit];
    uint64_t offset = 0, numel = 0;

    if (!job->debug_guard)
        return;
    layout_view_unit(&zero->view, unit, &offset, &numel);
    if (zero->pool.base)
        set(&zero->pool,
            pool_offset + (offset - zero->view.fetch_units[u->fetch_unit].offset) * sizeof(float),
            numel * sizeof(float), open, PROT_READ);
    else
        set(&zero->params_view, offset * sizeof(float), numel * sizeof(float), open, PROT_READ);
}

void guard_update(const gw_job *job, const struct zero *zero, bool open)
{
    if (job->debug_guard && zero->params.base)
        mprotect(zero->params.base, zero->params.bytes, open ? PROT_READ | PROT_WRITE : PROT_READ);
}

/* Before the first step nothing may be touched but what a call hands out. */
void guard_start(const gw_job *job, const struct zero *zero)
{
    if (!job->debug_guard)
        return;
    for (uint32_t b = 0; b < zero->page->buckets && !zero->ledger->ring; b++)
        guard_bucket(job, zero, b, GW_NO_SLOT, false);
    for (uint32_t slot = 0; slot < zero->options.ring_slots && zero->ledger->ring; slot++)
        guard_bucket(job, zero, 0, slot, false);
    for (uint32_t u = 0; u < zero->page->units && !zero->pool.base; u++)
        guard_unit(job, zero, u, 0, false);
    map_guard_close(&zero->pool, 0, zero->pool.bytes, PROT_NONE);
    guard_update(job, zero, false);
}
