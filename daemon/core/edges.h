/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of ordering edges (edges.def) as an enum, and whether a row is in force. Only builds
 * with GW_TEST_EDGES can leave a row out; in all others edge_kept is constant. Pure; any thread.
 */
#ifndef GW_CORE_EDGES_H
#define GW_CORE_EDGES_H

#include <stdbool.h>
#include <stdint.h>

enum edge {
#define X(name, side, what, why) EDGE_##name,
#include "daemon/core/edges.def"
#undef X
    EDGES
};

/* drop_mask: bit per row that is left out. */
static inline bool edge_kept(uint64_t drop_mask, enum edge edge)
{
#ifdef GW_TEST_EDGES
    return !(drop_mask >> edge & 1);
#else
    (void)drop_mask;
    (void)edge;
    return true;
#endif
}

/* "ALL_READY" -> its bit; 0: no such row. */
uint64_t edges_parse(const char *name);

#endif
