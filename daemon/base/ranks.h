/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of a job's ranks; of its nodes as well, of which there are no more than ranks. Pure; all
 * inline, and short loops of a fixed length, because small ops go through some of them.
 *
 * Tables with a set in each row would be mostly air in small jobs: their rows have as many words as
 * the world needs (ranks_words).
 */
#ifndef GW_BASE_RANKS_H
#define GW_BASE_RANKS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "proto/limits.h"

#define RANKS_WORDS (GW_RANKS_MAX / 64u)

_Static_assert(GW_RANKS_MAX % 64u == 0 && GW_NODES_MAX <= GW_RANKS_MAX, "whole words for both");

struct ranks {
    uint64_t word[RANKS_WORDS];
};

static inline bool ranks_has(const struct ranks *of, uint32_t rank)
{
    return of->word[rank / 64u] >> (rank % 64u) & 1u;
}

static inline void ranks_add(struct ranks *to, uint32_t rank)
{
    to->word[rank / 64u] |= UINT64_C(1) << (rank % 64u);
}

static inline void ranks_drop(struct ranks *from, uint32_t rank)
{
    from->word[rank / 64u] &= ~(UINT64_C(1) << (rank % 64u));
}

static inline struct ranks ranks_one(uint32_t rank)
{
    struct ranks one = {{0}};

    ranks_add(&one, rank);
    return one;
}

/* 0 to count - 1. */
static inline struct ranks ranks_below(uint32_t count)
{
    struct ranks below = {{0}};

    for (uint32_t i = 0; i < RANKS_WORDS && count > i * 64u; i++)
        below.word[i] = count - i * 64u >= 64u ? UINT64_MAX
                                               : (UINT64_C(1) << (count - i * 64u)) - 1u;
    return below;
}

static inline bool ranks_any(const struct ranks *of)
{
    uint64_t any = 0;

    for (uint32_t i = 0; i < RANKS_WORDS; i++)
        any |= of->word[i];
    return any != 0;
}

static inline bool ranks_equal(const struct ranks *a, const struct ranks *b)
{
    uint64_t differ = 0;

    for (uint32_t i = 0; i < RANKS_WORDS; i++)
        differ |= a->word[i] ^ b->word[i];
    return differ == 0;
}

static inline uint32_t ranks_count(const struct ranks *of)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < RANKS_WORDS; i++)
        count += (uint32_t)__builtin_popcountll(of->word[i]);
    return count;
}

/* The lowest one that is not below `from`; GW_RANKS_MAX: none. */
static inline uint32_t ranks_next(const struct ranks *of, uint32_t from)
{
    for (uint32_t i = from / 64u; i < RANKS_WORDS; i++) {
        uint64_t left = of->word[i];

        if (i == from / 64u)
            left &= UINT64_MAX << (from % 64u);
        if (left)
            return i * 64u + (uint32_t)__builtin_ctzll(left);
    }
    return GW_RANKS_MAX;
}

static inline uint32_t ranks_first(const struct ranks *of)
{
    return ranks_next(of, 0);
}

static inline struct ranks ranks_or(const struct ranks *a, const struct ranks *b)
{
    struct ranks both = *a;

    for (uint32_t i = 0; i < RANKS_WORDS; i++)
        both.word[i] |= b->word[i];
    return both;
}

static inline struct ranks ranks_and(const struct ranks *a, const struct ranks *b)
{
    struct ranks common = *a;

    for (uint32_t i = 0; i < RANKS_WORDS; i++)
        common.word[i] &= b->word[i];
    return common;
}

static inline struct ranks ranks_and_not(const struct ranks *a, const struct ranks *b)
{
    struct ranks left = *a;

    for (uint32_t i = 0; i < RANKS_WORDS; i++)
        left.word[i] &= ~b->word[i];
    return left;
}

/* ---- rows of tables -------------------------------------------------------------------------- */

static inline uint32_t ranks_words(uint32_t world)
{
    return (world + 63u) / 64u;
}

static inline void ranks_row_add(uint64_t *row, uint32_t rank)
{
    row[rank / 64u] |= UINT64_C(1) << (rank % 64u);
}

static inline struct ranks ranks_of_row(const uint64_t *row, uint32_t words)
{
    struct ranks of = {{0}};

    memcpy(of.word, row, words * sizeof(*row));
    return of;
}

#endif
