/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sums whose bits are promised, on the host. Pure arithmetic on memory the caller owns; any
 * thread; no state.
 *
 * Sum: over the inputs in order, each rounded to round_dtype first if that is asked for, the fixed
 * binary tree ((0+1)+(2+3))+..., an odd last one passing up, in fp32. Times scale (fp32), a
 * separate multiply. Accumulating is a separate fp32 add to what out[0] holds. The value is rounded
 * once to the outputs' dtype; all rounding is to nearest, ties to even. All in pieces of
 * KERNEL_CHUNK elements, so that each input is read from memory once and everything between stays
 * in cache.
 *
 * Partials are of the values as stored. Squares of a chunk: element i of it adds
 * (double)x*(double)x to lane i % 16, in order; the lanes are added as ((0+1)+(2+3))+... : the same
 * bits whatever the width of the machine's vectors. The largest |x|: by its bits as an integer, so
 * that an infinity is larger than numbers, and a NaN than those.
 */
#ifndef GW_DEVICE_HOST_KERNELS_H
#define GW_DEVICE_HOST_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire/gradwire.h"

#define KERNEL_CHUNK 4096u /* elements; part of the norm's contract */

/* Of one chunk of a reduction's result. */
struct kernel_partial {
    double norm;        /* squares added up, or the largest |x| */
    uint64_t nonfinite; /* elements that are an infinity or NaN */
};

/* What an input is of the tree's leaves: one of them, or the sum over an aligned subtree that was
 * made elsewhere, which is not rounded again. */
struct kernel_subtree {
    uint32_t first; /* leaf; a multiple of 2^height */
    uint8_t height; /* leaves [first, first + 2^height), as far as there are so many */
    uint8_t dtype;  /* of what the pointer points to */
    bool sum;
};

struct kernel_reduce {
    const void *const *in; /* n pointers; NULL: zeros, with the bits that real zeros give */
    uint32_t n;            /* 1..GW_RANKS_MAX */
    const struct kernel_subtree *subtrees; /* n, which hold all leaves in order; NULL: input i is
                                            * leaf i, of in_dtype */
    void *const *out; /* outs pointers; each may be one of `in`, if of its dtype; else no overlap */
    uint32_t outs;    /* >= 1: out[0] is computed, the others are copies of it */
    uint8_t in_dtype, out_dtype; /* enum gw_dtype */
    uint8_t round_dtype;         /* of each input before the sum; FP32: none */
    uint8_t norm;                /* enum gw_norm of the partials */
    uint64_t first, count;       /* elements [first, first+count) of every pointer */
    float scale;
    bool accumulate;                 /* out = out[0] + scale * sum */
    bool past;                       /* kernel_is_past of the whole op; only a matter of speed */
    struct kernel_partial *partials; /* NULL, or one per chunk of `count` */
};

/* Bytes of inputs read and of outputs written, added up. */
struct kernel_moved {
    uint64_t read, written;
};

void kernel_reduce(const struct kernel_reduce *reduce, struct kernel_moved *moved);
/* to = from, rounded to its dtype. No overlap, unless it is fp32 in the same place. */
void kernel_cast(void *to, uint8_t dtype, const float *from, uint64_t count, bool past);
/* Returns the bytes copied. Regions do not overlap, or are the same (then nothing is copied). */
uint64_t kernel_copy(void *to, const void *from, uint64_t bytes, bool past);

/* From so many bytes on, results are stored past the caches: they would not hold them until
 * somebody reads them, and a line that is written whole need not be read first. */
#define KERNEL_PAST_BYTES (8u << 20)

static inline bool kernel_is_past(uint64_t bytes)
{
    return bytes >= KERNEL_PAST_BYTES;
}

static inline uint64_t kernel_chunks(uint64_t count)
{
    return (count + KERNEL_CHUNK - 1) / KERNEL_CHUNK;
}

#endif
