/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all fabrics count and derive alike: an op's figures as fabric.h defines them, whom it is
 * for, and the time that it takes of a simulated link. Not for users of the fabric table. Counters
 * are added to on any thread; the rest is pure.
 */
#ifndef GW_FABRIC_FIGURES_H
#define GW_FABRIC_FIGURES_H

#include <stdatomic.h>

#include "daemon/fabric/fabric.h"

struct fabric_counter {
    _Atomic uint64_t calls, payload, padding, ring, moved, cross;
};

struct fabric_counters {
    struct fabric_counter at[GW_RANKS_MAX][GW_KINDS];
};

/* The op is carried out for the rank: adds it, unless it is not counted. */
void figures_count(struct fabric_counters *counters, const struct core_op *op, uint64_t ring_bytes,
                   uint32_t rank, uint64_t moved_bytes);
/* What another rank's part moves into the rank's memory, of the same op. */
void figures_moved(struct fabric_counters *counters, const struct core_op *op, uint32_t rank,
                   uint64_t moved_bytes);
/* What was sent to other nodes of the op's data. */
void figures_crossed(struct fabric_counters *counters, const struct core_op *op, uint32_t rank,
                     uint64_t bytes);
void figures_read(const struct fabric_counters *counters, uint32_t rank,
                  struct gw_counters ret_kinds[GW_KINDS]);
void figures_reset(struct fabric_counters *counters, uint32_t world);

uint64_t figures_ring_bytes(const struct core_op *op);
/* Those that take part. */
struct ranks figures_ranks(const struct core_op *op);
/* How long ring_bytes take on a link of that rate; 0: no link, or nothing sent over it. */
uint64_t figures_hold_ns(const struct fabric_op *op, uint64_t ring_bytes,
                         uint64_t link_bytes_per_s);

#endif
