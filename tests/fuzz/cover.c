/* SPDX-License-Identifier: Apache-2.0 */
/* Edges as pairs of places in the program, hashed into a map: see cover.h. */
#include "tests/fuzz/cover.h"

#include <string.h>

#define MAP_EDGES 65536u

static uint8_t seen[MAP_EDGES];
static uint32_t news, edges;
static uintptr_t last;

void __sanitizer_cov_trace_pc(void);

/* Called by the code under test at each basic block. Places are taken from this function on, so
 * that the map is the same wherever the program is loaded. */
void __sanitizer_cov_trace_pc(void)
{
    const uintptr_t at = (uintptr_t)__builtin_return_address(0) -
                         (uintptr_t)(void (*)(void))__sanitizer_cov_trace_pc;
    const uint32_t edge = (uint32_t)((at * 0x9e3779b1u) ^ (last >> 1)) % MAP_EDGES;

    last = at * 0x9e3779b1u;
    if (seen[edge])
        return;
    seen[edge] = 1;
    news++;
    edges++;
}

void cover_start(void)
{
    last = 0;
    news = 0;
}

uint32_t cover_news(void)
{
    return news;
}

uint32_t cover_edges(void)
{
    return edges;
}

void cover_forget(void)
{
    memset(seen, 0, sizeof(seen));
    edges = news = 0;
}
