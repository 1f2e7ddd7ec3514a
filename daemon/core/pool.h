/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First-fit allocator of byte ranges inside a region it never touches: where in a rank's gather
 * pool a fetch unit lies. Free ranges are the gaps between taken ones, so neighbours coalesce by
 * themselves. Never beyond the capacity. Pure; one thread per pool.
 */
#ifndef GW_CORE_POOL_H
#define GW_CORE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;

/* max_ranges: how many ranges may be taken at once. GW_E_NOMEM. */
int pool_new(uint64_t capacity_bytes, size_t max_ranges, struct pool **ret_pool);
struct pool *pool_free(struct pool *pool);
/* Takes `bytes` (> 0) at the lowest offset where they fit. False: nowhere, or max_ranges taken. */
bool pool_take(struct pool *pool, uint64_t bytes, uint64_t *ret_offset);
/* Gives back the range that starts at offset. False: none does. */
bool pool_give(struct pool *pool, uint64_t offset);
/* *to, made like *from, becomes equal to it: to try what would fit. */
void pool_copy(struct pool *to, const struct pool *from);
/* Bytes that are free, in all and in the largest gap. */
struct pool_room {
    uint64_t free_bytes, gap_bytes;
};
struct pool_room pool_room(const struct pool *pool);

#endif
