/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sums whose bits are promised, on the host. Pure arithmetic on memory the caller owns; any
 * thread; no state.
 *
 * Sum: over the inputs in order, the fixed binary tree ((0+1)+(2+3))+..., an odd last one passing
 * up, in fp32. Times scale (fp32), a separate multiply. Accumulating is a separate fp32 add. All in
 * pieces of KERNEL_CHUNK elements, so that each input is read from memory once and everything
 * between stays in cache.
 *
 * Squares of a chunk: element i of it adds (double)x*(double)x to lane i % 16, in order; the lanes
 * are added as ((0+1)+(2+3))+... : the same bits whatever the width of the machine's vectors.
 */
#ifndef GW_DEVICE_HOST_KERNELS_H
#define GW_DEVICE_HOST_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KERNEL_CHUNK 4096u /* elements; part of the norm's contract */

/* Of one chunk of a reduction's result. */
struct kernel_partial {
    double squares;
    uint64_t nonfinite; /* elements that are an infinity or NaN */
};

struct kernel_reduce {
    const float *const *in; /* n pointers; NULL: zeros, with the bits that real zeros give */
    uint32_t n;             /* 1..64 */
    float *const *out;      /* outs pointers; each may be one of `in`, else no overlap */
    uint32_t outs;          /* >= 1: out[0] is computed, the others are copies of it */
    uint64_t first, count;  /* elements [first, first+count) of every pointer */
    float scale;
    bool accumulate;                 /* out = out[0] + scale * sum */
    bool past;                       /* kernel_is_past of the whole op; only a matter of speed */
    struct kernel_partial *partials; /* NULL, or one per chunk of `count` */
};

/* The contract of struct gw_k_reduce (daemon/device/cuda/kernels.h), bit for bit: inputs of one
 * type, summed, scaled and accumulated in fp32, rounded once to the outputs' type. Conversions are
 * to nearest, ties to even. */
enum kernel_type { KERNEL_FP32 = 0, KERNEL_FP16 = 1, KERNEL_BF16 = 2 };

struct kernel_mixed {
    const void *const *in; /* n pointers; NULL: zeros */
    uint32_t n;            /* 1..64 */
    void *const *out;
    uint32_t outs; /* 0 only with an accumulator */
    enum kernel_type in_type, out_type;
    uint64_t first, count;
    float scale;
    float *accumulator; /* NULL, or value = accumulator + scale * sum, stored there too */
    bool past;
    struct kernel_partial *partials; /* of the values stored */
};

/* Bytes of inputs read and of outputs written, added up. */
struct kernel_moved {
    uint64_t read, written;
};

void kernel_reduce(const struct kernel_reduce *reduce, struct kernel_moved *moved);
void kernel_reduce_mixed(const struct kernel_mixed *reduce, struct kernel_moved *moved);
/* out = in, or out + in; in NULL: zeros. */
void kernel_add(float *out, const float *in, uint64_t count, bool accumulate);
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
