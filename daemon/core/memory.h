/* SPDX-License-Identifier: Apache-2.0 */
/* What each arena is counted as; where things lie in them is told by proto/place.h. Pure; any
 * thread. */
#ifndef GW_CORE_MEMORY_H
#define GW_CORE_MEMORY_H

#include "proto/wire.h"

/* GW_MEMORIES: as nothing (staging, registered buffers). */
enum gw_memory memory_use(enum gw_arena_kind kind);

#endif
