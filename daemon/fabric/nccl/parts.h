/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nccl fabric's arithmetic: how ops are cut into pieces, which copies are one, which words of a
 * bit field are alike. Pure; any thread; built without CUDA too.
 */
#ifndef GW_FABRIC_NCCL_PARTS_H
#define GW_FABRIC_NCCL_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/fabric/fabric.h"

#define PARTS_CHUNK 4096u /* elements, KERNEL_CHUNK: pieces are whole chunks but for the last */

/* Elements per piece when `inputs` pieces lie in `bytes` side by side (0 inputs: only bounded by
 * `most`): whole chunks, at least one, at most `most` elements. */
uint64_t parts_piece(uint64_t bytes, uint32_t inputs, uint64_t most);

/* Part `index` of a total cut into shares of `share` elements; the last are short or empty. */
struct parts_range {
    uint64_t first, count;
};
struct parts_range parts_share(uint64_t total, uint64_t share, uint32_t index);

/* Merges neighbours of one owner that are contiguous on both sides (two GPUs' memory may be side by
 * side by chance, and no copy is of both); drops what is empty or in place already. Returns how
 * many are left, in the same order. */
uint32_t parts_coalesce(struct fabric_segment *segments, uint32_t count);

/* The run of equal 32-bit words (little-endian, zeros behind the end) that begins at word `first`
 * of `bytes` bytes: its value and length, at most up to the end. */
struct parts_run {
    uint32_t word, words;
};
struct parts_run parts_word_run(const uint8_t *bits, uint64_t bytes, uint32_t first);

/* The next run of zero flags at or behind *at: false, none; else [*at, *ret_end). */
bool parts_zero_run(const uint8_t *flags, uint32_t count, uint32_t *at, uint32_t *ret_end);

/* Whether two ordered lists of members are the same. */
bool parts_same(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count);
/* Where `rank` stands; UINT32_MAX: nowhere. */
uint32_t parts_index(const uint32_t *members, uint32_t count, uint32_t rank);

/* Where each bucket's partials begin, in entries: slice by slice, chunk by chunk. starts has room
 * for buckets + 1; the last is the whole. */
void parts_partials(const uint64_t *slice_numel, const uint32_t *slices, uint32_t buckets,
                    uint64_t *starts);

static inline uint64_t parts_chunks(uint64_t count)
{
    return (count + PARTS_CHUNK - 1) / PARTS_CHUNK;
}

#endif
