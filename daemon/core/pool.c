/* SPDX-License-Identifier: Apache-2.0 */
/* First-fit allocator: taken ranges in one array by offset. Pure; one thread per pool. */
#include "daemon/core/pool.h"

#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

struct range {
    uint64_t offset, bytes;
};

struct pool {
    uint64_t capacity;
    size_t max, count;
    struct range ranges[]; /* taken, ascending, disjoint */
};

int pool_new(uint64_t capacity_bytes, size_t max_ranges, struct pool **ret_pool)
{
    struct pool *pool;
    size_t bytes;

    if (__builtin_mul_overflow(max_ranges, sizeof(struct range), &bytes) ||
        __builtin_add_overflow(bytes, sizeof(*pool), &bytes))
        return GW_E_NOMEM;
    pool = malloc(bytes);
    if (!pool)
        return GW_E_NOMEM;
    *pool = (struct pool){.capacity = capacity_bytes, .max = max_ranges};
    *ret_pool = pool;
    return 0;
}

struct pool *pool_free(struct pool *pool)
{
    free(pool);
    return NULL;
}

bool pool_take(struct pool *pool, uint64_t bytes, uint64_t *ret_offset)
{
    uint64_t at = 0;
    size_t i;

    if (bytes == 0 || pool->count == pool->max || bytes > pool->capacity)
        return false;
    for (i = 0; i < pool->count; i++) {
        if (pool->ranges[i].offset - at >= bytes)
            break;
        at = pool->ranges[i].offset + pool->ranges[i].bytes;
    }
    if (i == pool->count && pool->capacity - at < bytes)
        return false;
    memmove(&pool->ranges[i + 1], &pool->ranges[i], (pool->count - i) * sizeof(pool->ranges[0]));
    pool->ranges[i] = (struct range){at, bytes};
    pool->count++;
    *ret_offset = at;
    return true;
}

bool pool_give(struct pool *pool, uint64_t offset)
{
    for (size_t i = 0; i < pool->count; i++) {
        if (pool->ranges[i].offset != offset)
            continue;
        pool->count--;
        memmove(&pool->ranges[i], &pool->ranges[i + 1],
                (pool->count - i) * sizeof(pool->ranges[0]));
        return true;
    }
    return false;
}

void pool_copy(struct pool *to, const struct pool *from)
{
    to->count = from->count;
    memcpy(to->ranges, from->ranges, from->count * sizeof(from->ranges[0]));
}

struct pool_room pool_room(const struct pool *pool)
{
    struct pool_room room = {0};
    uint64_t at = 0;

    for (size_t i = 0; i <= pool->count; i++) {
        uint64_t end = i < pool->count ? pool->ranges[i].offset : pool->capacity;

        room.free_bytes += end - at;
        if (end - at > room.gap_bytes)
            room.gap_bytes = end - at;
        if (i < pool->count)
            at = end + pool->ranges[i].bytes;
    }
    return room;
}
