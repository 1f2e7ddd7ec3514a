/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the rows of edges.def. Pure; any thread; knows nothing of what the rows do. */
#include "daemon/core/edges.h"

#include <stddef.h>
#include <string.h>

static const char *const edge_names[EDGES] = {
#define X(name, side, what, why) #name,
#include "daemon/core/edges.def"
#undef X
};

_Static_assert(EDGES <= 64, "a row is a bit of a 64-bit mask");

uint64_t edges_parse(const char *name)
{
    for (size_t i = 0; name && i < EDGES; i++) {
        if (!strcmp(name, edge_names[i]))
            return 1ull << i;
    }
    return 0;
}
