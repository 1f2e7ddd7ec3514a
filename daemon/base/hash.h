/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a, 64 bits (public domain: Fowler, Noll, Vo): digests that tell differing ops apart. Not
 * secure against anybody; secrets use libsodium. Pure; any thread. */
#ifndef GW_BASE_HASH_H
#define GW_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START 0xcbf29ce484222325ull

static inline uint64_t hash_add(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = (const uint8_t *)data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3ull;
    return hash;
}

/* As 8 little-endian bytes, so that the digest is the same on every machine. */
static inline uint64_t hash_add_u64(uint64_t hash, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++)
        hash = (hash ^ (value >> (8 * i) & 0xffu)) * 0x100000001b3ull;
    return hash;
}

#endif
