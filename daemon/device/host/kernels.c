/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host kernels. Written as plain loops over restrict pointers with a fixed trip count of 16 lanes
 * where order matters, so that gcc -O3 vectorizes them without changing a bit. Stream threads; no
 * state.
 */
#include "daemon/device/host/kernels.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LANES 16u
#define DEPTH 5u /* binary counter over 16 groups of four inputs */

static const float zeros[KERNEL_CHUNK];

static void sum2(float *restrict to, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = a[i] + b[i];
}

static void sum3(float *restrict to, const float *a, const float *b, const float *c, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (a[i] + b[i]) + c[i];
}

static void sum4(float *restrict to, const float *a, const float *b, const float *c, const float *d,
                 size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

/* to = to + b, where `to` is the tree's left side. */
static void sum_right(float *restrict to, const float *restrict b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = to[i] + b[i];
}

static const float *input(const struct kernel_reduce *reduce, uint32_t index, uint64_t at)
{
    return reduce->in[index] ? reduce->in[index] + at : zeros;
}

/* The subtree over inputs [first, first + n), n <= 4. */
static void sum_group(const struct kernel_reduce *reduce, uint32_t first, uint32_t n, uint64_t at,
                      float *to, size_t count)
{
    const float *in[4] = {0};

    for (uint32_t i = 0; i < n; i++)
        in[i] = input(reduce, first + i, at);
    if (n == 1)
        memcpy(to, in[0], count * sizeof(*to));
    else if (n == 2)
        sum2(to, in[0], in[1], count);
    else if (n == 3)
        sum3(to, in[0], in[1], in[2], count);
    else
        sum4(to, in[0], in[1], in[2], in[3], count);
}

/* The whole tree for one chunk, into level[0]. Groups of four are complete subtrees (the last may
 * be smaller: it passes up as it is); a binary counter joins neighbours of equal size, and what is
 * left at the end is joined from the right: both are what pairing level by level gives. */
static void sum_chunk(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                      float level[DEPTH][KERNEL_CHUNK])
{
    uint32_t groups = (reduce->n + 3) / 4, held = 0;

    for (uint32_t group = 0; group < groups; group++) {
        uint32_t rest = reduce->n - group * 4;
        sum_group(reduce, group * 4, rest < 4 ? rest : 4, at, level[held++], count);
        for (uint32_t pairs = group; pairs & 1; pairs >>= 1) {
            sum_right(level[held - 2], level[held - 1], count);
            held--;
        }
    }
    for (; held > 1; held--)
        sum_right(level[held - 2], level[held - 1], count);
}

static void scale_to(float *restrict to, const float *restrict from, float scale, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from[i] * scale;
}

static void scale_add_to(float *restrict to, const float *restrict from, float scale, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float product = from[i] * scale;
        to[i] = to[i] + product;
    }
}

typedef float vec __attribute__((vector_size(16), may_alias));
typedef float loose_vec __attribute__((vector_size(16), aligned(4), may_alias));

static inline vec load(const float *from)
{
    return *(const loose_vec *)from;
}

static inline void store(float *to, vec values, bool past)
{
#ifdef __SSE2__
    if (past)
        _mm_stream_ps(to, (__m128)values);
    else
#endif
        *(loose_vec *)to = values;
    (void)past;
}

/* Stores past the caches are in no order with others: before anybody is told, they are done. */
static void settle(bool past)
{
#ifdef __SSE2__
    if (past)
        _mm_sfence();
#endif
    (void)past;
}

static float tree_at(const float *const in[4], uint32_t n, size_t i)
{
    if (n == 1)
        return in[0][i];
    if (n == 2)
        return in[0][i] + in[1][i];
    return n == 3 ? (in[0][i] + in[1][i]) + in[2][i]
                  : (in[0][i] + in[1][i]) + (in[2][i] + in[3][i]);
}

/* Scaled tree over n <= 4 inputs, in one go: no pass over a buffer between. `to` may be an input:
 * element i is stored after the elements i are read. Inlined with a constant n and past. */
static inline __attribute__((always_inline)) void
direct_n(float *to, const float *const in[4], uint32_t n, float scale, size_t count, bool past)
{
    const vec factor = {scale, scale, scale, scale};
    size_t i = 0;

    /* A store past the caches must be aligned. */
    for (; past && i < count && ((uintptr_t)(to + i) & 15u) != 0; i++)
        to[i] = tree_at(in, n, i) * scale;
    for (; i + 4 <= count; i += 4) {
        vec sum = load(in[0] + i);
        if (n > 1)
            sum = sum + load(in[1] + i);
        if (n == 3)
            sum = sum + load(in[2] + i);
        if (n == 4)
            sum = sum + (load(in[2] + i) + load(in[3] + i));
        store(to + i, sum * factor, past);
    }
    for (; i < count; i++)
        to[i] = tree_at(in, n, i) * scale;
}

static inline __attribute__((always_inline)) void
direct(float *to, const float *const in[4], uint32_t n, float scale, size_t count, bool past)
{
    if (n == 1)
        direct_n(to, in, 1, scale, count, past);
    else if (n == 2)
        direct_n(to, in, 2, scale, count, past);
    else if (n == 3)
        direct_n(to, in, 3, scale, count, past);
    else
        direct_n(to, in, 4, scale, count, past);
}

/* A chunk of few inputs with one result that is not added to. */
static void direct_chunk(const struct kernel_reduce *reduce, uint64_t at, size_t count, bool past,
                         struct kernel_moved *moved)
{
    const float *in[4] = {0};

    for (uint32_t i = 0; i < reduce->n; i++) {
        in[i] = input(reduce, i, at);
        moved->read += reduce->in[i] ? count * sizeof(float) : 0;
    }
    if (past)
        direct(reduce->out[0] + at, in, reduce->n, reduce->scale, count, true);
    else
        direct(reduce->out[0] + at, in, reduce->n, reduce->scale, count, false);
    moved->written += count * sizeof(float);
}

static double lanes_sum(double lane[LANES])
{
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; i++)
            lane[i] = lane[2 * i] + lane[2 * i + 1];
    return lane[0];
}

static double squares_of(const float *restrict values, size_t count)
{
    double lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            double value = (double)values[i + j];
            lane[j] = lane[j] + value * value;
        }
    }
    for (size_t j = 0; i + j < count; j++) {
        double value = (double)values[i + j];
        lane[j] = lane[j] + value * value;
    }
    return lanes_sum(lane);
}

/* By the exponent's bits: comparisons with NaN would be branches. */
static uint64_t nonfinite_of(const float *restrict values, size_t count)
{
    uint32_t found = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        found += (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found;
}

/* Inputs of the chunk have all been read when the first output is written, so that outputs may be
 * inputs. */
static void finish_chunk(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                         const float *sum, struct kernel_moved *moved)
{
    float *to = reduce->out[0] + at;

    if (reduce->accumulate)
        scale_add_to(to, sum, reduce->scale, count);
    else
        scale_to(to, sum, reduce->scale, count);
    moved->written += count * sizeof(float);
    for (uint32_t i = 1; i < reduce->outs; i++)
        moved->written += kernel_copy(reduce->out[i] + at, to, count * sizeof(float));
    for (uint32_t i = 0; i < reduce->n; i++)
        moved->read += reduce->in[i] ? count * sizeof(float) : 0;
}

void kernel_reduce(const struct kernel_reduce *reduce, struct kernel_moved *moved)
{
    float level[DEPTH][KERNEL_CHUNK] __attribute__((aligned(64)));
    bool is_direct = reduce->n <= 4 && reduce->outs == 1 && !reduce->accumulate;
    /* Not where the result is read again at once, for its norm. */
    bool past = is_direct && !reduce->partials && reduce->past;

    for (uint64_t at = 0; at < reduce->count; at += KERNEL_CHUNK) {
        uint64_t rest = reduce->count - at;
        size_t count = rest < KERNEL_CHUNK ? (size_t)rest : KERNEL_CHUNK;
        if (is_direct) {
            direct_chunk(reduce, reduce->first + at, count, past, moved);
        } else {
            sum_chunk(reduce, reduce->first + at, count, level);
            finish_chunk(reduce, reduce->first + at, count, level[0], moved);
        }
        if (reduce->partials) {
            const float *values = reduce->out[0] + reduce->first + at;
            struct kernel_partial *partial = &reduce->partials[at / KERNEL_CHUNK];
            partial->squares = squares_of(values, count);
            partial->nonfinite = nonfinite_of(values, count);
        }
    }
    settle(past);
}

void kernel_add(float *out, const float *in, uint64_t count, bool accumulate)
{
    for (uint64_t at = 0; at < count; at += KERNEL_CHUNK) {
        uint64_t rest = count - at;
        size_t piece = rest < KERNEL_CHUNK ? (size_t)rest : KERNEL_CHUNK;
        const float *from = in ? in + at : zeros;
        if (accumulate)
            sum_right(out + at, from, piece);
        else
            (void)kernel_copy(out + at, from, piece * sizeof(float));
    }
}

uint64_t kernel_copy(void *to, const void *from, uint64_t bytes)
{
    if (to == from)
        return 0;
    memcpy(to, from, (size_t)bytes);
    return bytes;
}
