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
    const struct gw_layout_bucket *b = &zero->view.buckets[bucket];
    uint64_t bytes = zero->page->max_bucket_bytes;
    int prot = PROT_READ | PROT_WRITE;

    if (!job->debug_guard)
        return;
    if (!zero->ledger->ring)
        set(&zero->grads, place_grads(zero->place, bucket).offset_bytes,
            b->padded_numel * gw_dtype_bytes(b->grad_dtype), open, prot);
    else if (slot < zero->options.ring_slots)
        set(&zero->ring, slot * bytes, bytes, open, prot);
    else if (slot - zero->options.ring_slots < GW_OVERFLOW_MAX)
        set(&zero->overflow[slot - zero->options.ring_slots], 0, bytes, open, prot);
}

/* A unit's place in the pool may be another one at each fetch: the caller has the slot's offset.
 * Parameters that lie behind each other are one range, for only whole pages can be guarded. Those
 * that stay gathered stay readable. */
void guard_unit(const gw_job *job, const struct zero *zero, uint32_t unit, uint64_t pool_offset,
                bool open)
{
    const struct gw_layout_unit *u = &zero->view.units[unit];
    const struct map *map = zero->pool.base ? &zero->pool : &zero->params_view;
    uint64_t from = 0, to = 0;

    if (!job->debug_guard)
        return;
    for (uint32_t p = u->first_param; p < u->first_param + u->params; p++) {
        const struct gw_layout_param *param = &zero->view.params[p];
        uint64_t at;

        if (param->pieces == 0 || param->persistent || zero_param_held(job, zero, p) < 0)
            continue;
        at = zero_param_at(zero, p, pool_offset);
        if (at != to) {
            set(map, from, to - from, open, PROT_READ);
            from = at;
        }
        to = at + param->numel * gw_dtype_bytes(param->dtype);
    }
    set(map, from, to - from, open, PROT_READ);
}

static void guard_writable(const struct map *map, bool open)
{
    if (map->base)
        mprotect(map->base, map->bytes, open ? PROT_READ | PROT_WRITE : PROT_READ);
}

void guard_update(const gw_job *job, const struct zero *zero, bool open)
{
    if (!job->debug_guard)
        return;
    guard_writable(&zero->master, open);
    guard_writable(&zero->params, open);
}

/* Before the first step nothing may be touched but what a call hands out. */
void guard_start(const gw_job *job, const struct zero *zero)
{
    if (!job->debug_guard)
        return;
    for (uint32_t i = 0; i < zero->span_count && !zero->ledger->ring; i++)
        guard_bucket(job, zero, zero->spans[i].bucket, GW_NO_SLOT, false);
    for (uint32_t slot = 0; slot < zero->options.ring_slots && zero->ledger->ring; slot++)
        guard_bucket(job, zero, 0, slot, false);
    for (uint32_t u = 0; u < zero->page->units && !zero->pool.base; u++)
        guard_unit(job, zero, u, 0, false);
    map_guard_close(&zero->pool, 0, zero->pool.bytes, PROT_NONE);
    guard_update(job, zero, false);
}
