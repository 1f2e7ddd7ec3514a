/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GRADWIRE_DEBUG=guard: takes access away outside the windows in which the contract allows it, so
 * that a stray store or a stale read faults where it happens. All no-ops without it. Under
 * job->lock. Covered, in whole pages that belong to one owner alone:
 *
 *   gradient buffers  writable from gw_grad_acquire_sync until the bucket's last piece is ready;
 *                     no access otherwise (ring slots, overflow slots, full gradient buffer)
 *   parameter views   readable from gw_param_ptr until the unit's last gw_release; else no access
 *                     (gather pool, full parameters of stages 0-2, mapped shards)
 *   the shard         span->params writable while the update window is open; else read-only
 *
 * Not covered: pages that two buckets or units share, span->grads, shard arrays, registered
 * buffers, and what the engine itself does. Views are read-only in any mode.
 */
#ifndef GW_CLIENT_GUARD_H
#define GW_CLIENT_GUARD_H

#include "client/lib/zero.h"

void guard_start(const gw_job *job, const struct zero *zero);
/* The bucket's gradient memory: its ring slot, or its part of the full buffer. */
void guard_bucket(const gw_job *job, const struct zero *zero, uint32_t bucket, uint32_t slot,
                  bool open);
/* A unit's view; pool_offset counts in stage 3 private only. */
void guard_unit(const gw_job *job, const struct zero *zero, uint32_t unit, uint64_t pool_offset,
                bool open);
void guard_update(const gw_job *job, const struct zero *zero, bool open);

#endif
