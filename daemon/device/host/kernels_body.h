/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One chunk of a sum, in pieces of PIECE elements that stay in the first cache: widen, round, tree,
 * scale, accumulate, store and norm, each a plain loop over restrict pointers with 16 lanes where
 * order matters, so that gcc -O3 vectorizes it for the width of the file that includes this
 * (ISA_NAME, ISA_TABLE) without changing a bit. Stream threads; no state.
 */
#include <stdbool.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "daemon/device/host/kernels_half.h"
#include "daemon/device/host/kernels_isa.h"

#define PIECE 512u
#define LANES 16u
#define DIRECT_INPUTS 8u
#define DEPTH 12u /* binary counter over 1,024 leaves (GW_RANKS_MAX), and what is added to it */

/* A vector of this width, and one of as many elements of half the size; whole ones are stored past
 * the caches. Its lower and upper half as doubles, where the processor widens them in registers. */
#if defined(__AVX512F__)
typedef __m512 vec;
#define VEC_STREAM(to, value) _mm512_stream_ps(to, value)
#define HALF_STREAM(to, value) _mm256_stream_si256((__m256i *)(to), (__m256i)(value))
#define VEC_LOW(values) ((wide_vec)_mm512_cvtps_pd(_mm512_castps512_ps256(values)))
#define VEC_HIGH(values) \
    ((wide_vec)_mm512_cvtps_pd((__m256)_mm512_extractf64x4_pd((__m512d)(values), 1)))
#elif defined(__AVX2__)
typedef __m256 vec;
#define VEC_STREAM(to, value) _mm256_stream_ps(to, value)
#define HALF_STREAM(to, value) _mm_stream_si128((__m128i *)(to), (__m128i)(value))
#define VEC_LOW(values) ((wide_vec)_mm256_cvtps_pd(_mm256_castps256_ps128(values)))
#define VEC_HIGH(values) ((wide_vec)_mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)))
#elif defined(__SSE2__)
typedef __m128 vec;
#define VEC_STREAM(to, value) _mm_stream_ps(to, value)
#define HALF_STREAM(to, value) _mm_stream_si64((long long *)(to), (long long)(value))
#define VEC_LOW(values) ((wide_vec)_mm_cvtps_pd(values))
#define VEC_HIGH(values) ((wide_vec)_mm_cvtps_pd(_mm_movehl_ps(values, values)))
#else
typedef float vec __attribute__((vector_size(16), may_alias));
#define VEC_STREAM(to, value) (*(vec *)(void *)(to) = (value))
#define HALF_STREAM(to, value) (*(half_vec *)(to) = (value))
#endif
typedef vec loose_vec __attribute__((aligned(1), may_alias));
typedef uint32_t bits_vec __attribute__((vector_size(sizeof(vec)), may_alias));
typedef double wide_vec __attribute__((vector_size(sizeof(vec)), may_alias));
typedef uint16_t half_vec __attribute__((vector_size(sizeof(vec) / 2), may_alias));
typedef half_vec loose_half_vec __attribute__((aligned(1), may_alias));
#define VEC_NUMEL (sizeof(vec) / sizeof(float))

struct room {
    float level[DEPTH][PIECE], wide[4][PIECE];
} __attribute__((aligned(64)));

static const float zeros[PIECE];

/* Stores past the caches are in no order with others: before anybody is told, they are done. */
static void settle(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

static inline vec load(const void *from)
{
    return *(const loose_vec *)from;
}

/* ---- vectors of half types: the bits of kernels_half.h --------------------------------------- */

static inline vec vec_from_bf16(half_vec half)
{
    return (vec)(__builtin_convertvector(half, bits_vec) << 16);
}

static inline half_vec vec_to_bf16(vec values)
{
    bits_vec bits = (bits_vec)values, nan = bits >> 16 | 0x0040u;
    bits_vec is_nan = (bits_vec)((bits & 0x7fffffffu) > 0x7f800000u);
    bits_vec number = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;

    return __builtin_convertvector((nan & is_nan) | (number & ~is_nan), half_vec);
}

/* Where the processor has an instruction; else pieces are the way. */
#if defined(__AVX512F__)
#define VEC_HAS_FP16 true
#define VEC_FROM_FP16(half) _mm512_cvtph_ps((__m256i)(half))
#define VEC_TO_FP16(values) ((half_vec)_mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT))
#elif defined(__F16C__)
#define VEC_HAS_FP16 true
#define VEC_FROM_FP16(half) _mm256_cvtph_ps((__m128i)(half))
#define VEC_TO_FP16(values) ((half_vec)_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT))
#elif defined(__aarch64__)
typedef __fp16 fp16_vec __attribute__((vector_size(sizeof(half_vec)), may_alias));
#define VEC_HAS_FP16 true
#define VEC_FROM_FP16(half) __builtin_convertvector((fp16_vec)(half), vec)
#define VEC_TO_FP16(values) ((half_vec) __builtin_convertvector(values, fp16_vec))
#else
#define VEC_HAS_FP16 false
#define VEC_FROM_FP16(half) vec_from_bf16(half)
#define VEC_TO_FP16(values) vec_to_bf16(values)
#endif

/* Elements [at, at + VEC_NUMEL), as fp32. */
static inline __attribute__((always_inline)) vec load_wide(const void *from, size_t at,
                                                           uint8_t dtype)
{
    half_vec half;

    if (dtype == GW_DTYPE_FP32)
        return load((const float *)from + at);
    half = *(const loose_half_vec *)(const void *)((const uint16_t *)from + at);
    return dtype == GW_DTYPE_FP16 ? VEC_FROM_FP16(half) : vec_from_bf16(half);
}

/* Returns what is stored there. */
static inline __attribute__((always_inline)) vec store_narrow(void *to, size_t at, uint8_t dtype,
                                                              vec values, bool past)
{
    uint16_t *half = (uint16_t *)to + at;
    half_vec narrow;

    if (dtype == GW_DTYPE_FP32) {
        if (past)
            VEC_STREAM((float *)to + at, values);
        else
            *(loose_vec *)(void *)((float *)to + at) = values;
        return values;
    }
    narrow = dtype == GW_DTYPE_FP16 ? VEC_TO_FP16(values) : vec_to_bf16(values);
    if (past)
        HALF_STREAM((void *)half, narrow);
    else
        *(loose_half_vec *)(void *)half = narrow;
    return dtype == GW_DTYPE_FP16 ? VEC_FROM_FP16(narrow) : vec_from_bf16(narrow);
}

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

/* ---- dtypes: `half` and `wide` are of a piece ------------------------------------------------ */

static void widen(float *restrict wide, const uint16_t *restrict half, uint8_t dtype, size_t count)
{
    if (dtype == GW_DTYPE_FP16)
        widen_fp16(wide, half, count);
    else
        widen_bf16(wide, half, count);
}

static void narrow(uint16_t *restrict half, const float *restrict wide, uint8_t dtype, size_t count)
{
    if (dtype == GW_DTYPE_FP16)
        narrow_fp16(half, wide, count);
    else
        narrow_bf16(half, wide, count);
}

static const float *rounded(const struct kernel_reduce *reduce, const float *values, float *wide,
                            size_t count)
{
    uint16_t half[PIECE];

    narrow(half, values, reduce->round_dtype, count);
    widen(wide, half, reduce->round_dtype, count);
    return wide;
}

/* The piece of an input, as fp32: where it lies, or in `wide`. */
static const float *input(const struct kernel_reduce *reduce, uint32_t index, uint64_t at,
                          float *wide, size_t count)
{
    const struct kernel_subtree *subtree = reduce->subtrees ? &reduce->subtrees[index] : NULL;
    uint8_t dtype = subtree ? subtree->dtype : reduce->in_dtype;
    const void *in = reduce->in[index];
    const float *values = wide;

    if (!in)
        return zeros;
    if (dtype == GW_DTYPE_FP32)
        values = (const float *)in + at;
    else
        widen(wide, (const uint16_t *)in + at, dtype, count);
    if (reduce->round_dtype == GW_DTYPE_FP32 || reduce->round_dtype == dtype ||
        (subtree && subtree->sum))
        return values;
    return rounded(reduce, values, wide, count);
}

/* ---- the tree -------------------------------------------------------------------------------- */

/* The subtree over inputs [first, first + n), n <= 4. */
static void sum_group(const struct kernel_reduce *reduce, uint32_t first, uint32_t n, uint64_t at,
                      size_t count, struct room *room, float *to)
{
    const float *in[4] = {0};

    for (uint32_t i = 0; i < n; i++)
        in[i] = input(reduce, first + i, at, room->wide[i], count);
    if (n == 1)
        memcpy(to, in[0], count * sizeof(*to));
    else if (n == 2)
        sum2(to, in[0], in[1], count);
    else if (n == 3)
        sum3(to, in[0], in[1], in[2], count);
    else
        sum4(to, in[0], in[1], in[2], in[3], count);
}

/* The whole tree, into level[0]. Groups of four are complete subtrees (the last may be smaller: it
 * passes up as it is); a binary counter joins neighbours of equal size, and what is left at the end
 * is joined from the right: both are what pairing level by level gives. */
static void sum_piece(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                      struct room *room)
{
    uint32_t groups = (reduce->n + 3) / 4, held = 0;

    for (uint32_t group = 0; group < groups; group++) {
        uint32_t rest = reduce->n - group * 4;
        sum_group(reduce, group * 4, rest < 4 ? rest : 4, at, count, room, room->level[held++]);
        for (uint32_t pairs = group; pairs & 1; pairs >>= 1) {
            sum_right(room->level[held - 2], room->level[held - 1], count);
            held--;
        }
    }
    for (; held > 1; held--)
        sum_right(room->level[held - 2], room->level[held - 1], count);
}

/* The top two of the stack become one. What is at level k lies in level[k], or in an input. */
static void join_top(const float **top, struct room *room, uint32_t left, size_t count)
{
    float *to = room->level[left];

    if (top[left] == to)
        sum_right(to, top[left + 1], count);
    else
        sum2(to, top[left], top[left + 1], count);
    top[left] = to;
}

/* The same tree over subtrees: one that is its parent's right side is joined to its left neighbour,
 * which by then is the whole left side; what is left at the end is joined from the right. */
static void sum_subtrees(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                         struct room *room)
{
    const float *top[DEPTH];
    uint32_t held = 0;

    for (uint32_t i = 0; i < reduce->n; i++) {
        const struct kernel_subtree *subtree = &reduce->subtrees[i];
        top[held] = input(reduce, i, at, room->level[held], count);
        held++;
        for (uint32_t side = subtree->first >> subtree->height; side & 1; side >>= 1)
            join_top(top, room, --held - 1, count);
    }
    for (; held > 1; held--)
        join_top(top, room, held - 2, count);
    if (top[0] != room->level[0])
        memcpy(room->level[0], top[0], count * sizeof(*top[0]));
}

static void scale_all(float *restrict values, float scale, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = values[i] * scale;
}

/* Of fp32, what is added up is stored at once. */
static void accumulate(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                       float *restrict values, float *restrict wide)
{
    void *out = reduce->out[0];
    float *restrict to = wide;

    if (reduce->out_dtype == GW_DTYPE_FP32)
        to = (float *)out + at;
    else
        widen(wide, (const uint16_t *)out + at, reduce->out_dtype, count);
    for (size_t i = 0; i < count; i++) {
        values[i] = to[i] + values[i];
        to[i] = values[i];
    }
}

/* Past the caches, but for what is before the first whole vector of `to` and behind the last. */
static void stream(char *to, const char *from, size_t bytes)
{
    size_t lead = -(uintptr_t)to % sizeof(vec), i;

    if (lead > bytes)
        lead = bytes;
    memcpy(to, from, lead);
    for (i = lead; i + sizeof(vec) <= bytes; i += sizeof(vec))
        VEC_STREAM((float *)(void *)(to + i), load(from + i));
    memcpy(to + i, from + i, bytes - i);
}

/* Leaves in `values` what was stored, where somebody asks for that. */
static void store(const struct kernel_reduce *reduce, uint64_t at, size_t count, float *values)
{
    bool whole = reduce->out_dtype == GW_DTYPE_FP32;
    size_t size = whole ? sizeof(float) : sizeof(uint16_t);
    const void *from = values;
    uint16_t half[PIECE];

    if (!whole) {
        narrow(half, values, reduce->out_dtype, count);
        from = half;
        if (reduce->partials)
            widen(values, half, reduce->out_dtype, count);
    }
    for (uint32_t i = 0; i < reduce->outs; i++) {
        char *to = (char *)reduce->out[i] + at * size;
        bool added = reduce->accumulate && reduce->out[i] == reduce->out[0]; /* it is in cache */
        if (whole && added)
            continue; /* there already */
        if (reduce->past && !added)
            stream(to, from, count * size);
        else
            memcpy(to, from, count * size);
    }
}

/* ---- partials -------------------------------------------------------------------------------- */

static double lanes_sum(double lane[LANES])
{
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; i++)
            lane[i] = lane[2 * i] + lane[2 * i + 1];
    return lane[0];
}

/* A piece begins at a multiple of LANES in its chunk. */
static void squares_of(const float *restrict values, size_t count, double to[restrict LANES])
{
    double lane[LANES];
    size_t i = 0;

    memcpy(lane, to, sizeof(lane));
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
    memcpy(to, lane, sizeof(lane));
}

/* By the exponent's bits: comparisons with NaN would be branches. */
static uint32_t nonfinite_of(const float *restrict values, size_t count)
{
    uint32_t found = 0;

    for (size_t i = 0; i < count; i++)
        found += (half_bits(values[i]) & 0x7f800000u) == 0x7f800000u;
    return found;
}

/* By the bits, without the sign: NaNs are the largest, then infinities. */
static int32_t largest_of(const float *restrict values, size_t count, int32_t largest)
{
    for (size_t i = 0; i < count; i++) {
        int32_t size = (int32_t)(half_bits(values[i]) & 0x7fffffffu);
        largest = size > largest ? size : largest;
    }
    return largest;
}

struct norm {
    double lane[LANES];
    int32_t largest;
    uint64_t nonfinite;
};

static void norm_add(struct norm *norm, uint8_t kind, const float *values, size_t count)
{
    if (kind == GW_NORM_MAX)
        norm->largest = largest_of(values, count, norm->largest);
    else
        squares_of(values, count, norm->lane);
    norm->nonfinite += nonfinite_of(values, count);
}

static struct kernel_partial norm_end(struct norm *norm, uint8_t kind)
{
    double of =
        kind == GW_NORM_MAX ? (double)half_float((uint32_t)norm->largest) : lanes_sum(norm->lane);

    return (struct kernel_partial){of, norm->nonfinite};
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* A sum of few inputs to one place: no pass over a buffer between, its norm included. `to` may be
 * an input: element i is stored after the elements i are read. */
struct direct {
    void *to;
    const void *in[DIRECT_INPUTS];
    struct norm *norm; /* NULL: not asked for */
    size_t count;
    float scale;
    uint8_t out_dtype;
    bool accumulated, past;
};

/* Elements from `at` on of the tree over inputs [first, first + n). Inlined with constants. */
static inline __attribute__((always_inline)) vec direct_tree(const struct direct *d, uint32_t first,
                                                             uint32_t n, uint8_t dtype, size_t at)
{
    vec sum = load_wide(d->in[first], at, dtype);

    if (n > 1)
        sum = sum + load_wide(d->in[first + 1], at, dtype);
    if (n == 3)
        sum = sum + load_wide(d->in[first + 2], at, dtype);
    if (n == 4)
        sum =
            sum + (load_wide(d->in[first + 2], at, dtype) + load_wide(d->in[first + 3], at, dtype));
    return sum;
}

/* What is stored at `at`. */
static inline __attribute__((always_inline)) vec direct_at(const struct direct *d, uint32_t n,
                                                           uint8_t dtype, vec factor, size_t at)
{
    vec sum = direct_tree(d, 0, n < 4 ? n : 4, dtype, at);

    if (n > 4)
        sum = sum + direct_tree(d, 4, n - 4, dtype, at);
    sum = sum * factor;
    if (d->accumulated)
        sum = load_wide(d->to, at, d->out_dtype) + sum;
    return store_narrow(d->to, at, d->out_dtype, sum, d->past);
}

#ifdef VEC_LOW
#define NORM_IS_DIRECT true
#define WIDE_NUMEL (sizeof(wide_vec) / sizeof(double))

/* squares_of and nonfinite_of, of what is still in registers. */
static inline __attribute__((always_inline)) void direct_squares(const struct direct *d, uint32_t n,
                                                                 uint8_t dtype, vec factor)
{
    wide_vec lane[LANES / WIDE_NUMEL];
    bits_vec nonfinite = {0};

    memcpy(lane, d->norm->lane, sizeof(lane));
    for (size_t i = 0; i < d->count; i += LANES) {
        for (size_t j = 0; j < LANES / VEC_NUMEL; j++) {
            vec sum = direct_at(d, n, dtype, factor, i + j * VEC_NUMEL);
            wide_vec low = VEC_LOW(sum), high = VEC_HIGH(sum);
            lane[2 * j] = lane[2 * j] + low * low;
            lane[2 * j + 1] = lane[2 * j + 1] + high * high;
            nonfinite -= (bits_vec)(((bits_vec)sum & 0x7f800000u) == 0x7f800000u);
        }
    }
    memcpy(d->norm->lane, lane, sizeof(lane));
    for (size_t i = 0; i < VEC_NUMEL; i++)
        d->norm->nonfinite += nonfinite[i];
}
#else
#define NORM_IS_DIRECT false
static inline void direct_squares(const struct direct *d, uint32_t n, uint8_t dtype, vec factor)
{
    (void)d, (void)n, (void)dtype, (void)factor;
}
#endif

static inline __attribute__((always_inline)) void direct_n(const struct direct *given, uint32_t n,
                                                           uint8_t dtype)
{
    const struct direct d = *given; /* nobody else's: kept in registers */
    const vec factor = d.scale - (vec){0};

    if (d.norm)
        direct_squares(&d, n, dtype, factor);
    else
        for (size_t i = 0; i < d.count; i += VEC_NUMEL)
            (void)direct_at(&d, n, dtype, factor, i);
}

static inline __attribute__((always_inline)) void direct_of(const struct direct *d, uint32_t n,
                                                            uint8_t dtype)
{
    switch (n) {
    case 1:
        direct_n(d, 1, dtype);
        break;
    case 2:
        direct_n(d, 2, dtype);
        break;
    case 3:
        direct_n(d, 3, dtype);
        break;
    case 4:
        direct_n(d, 4, dtype);
        break;
    case 5:
        direct_n(d, 5, dtype);
        break;
    case 6:
        direct_n(d, 6, dtype);
        break;
    case 7:
        direct_n(d, 7, dtype);
        break;
    default:
        direct_n(d, 8, dtype);
    }
}

static void direct_fp32(const struct direct *d, uint32_t n)
{
    direct_of(d, n, GW_DTYPE_FP32);
}

static void direct_fp16(const struct direct *d, uint32_t n)
{
    direct_of(d, n, GW_DTYPE_FP16);
}

static void direct_bf16(const struct direct *d, uint32_t n)
{
    direct_of(d, n, GW_DTYPE_BF16);
}

static bool is_direct(const struct kernel_reduce *reduce, const struct direct *d)
{
    bool fp16 = reduce->in_dtype == GW_DTYPE_FP16 || reduce->out_dtype == GW_DTYPE_FP16;
    size_t whole = d->out_dtype == GW_DTYPE_FP32 ? sizeof(vec) : sizeof(half_vec);

    return reduce->n <= DIRECT_INPUTS && !reduce->subtrees && reduce->outs == 1 &&
           (reduce->round_dtype == GW_DTYPE_FP32 || reduce->round_dtype == reduce->in_dtype) &&
           (VEC_HAS_FP16 || !fp16) && !(d->past && (uintptr_t)d->to % whole != 0) &&
           (!d->norm || (NORM_IS_DIRECT && reduce->norm != GW_NORM_MAX));
}

/* How many elements from `at` on were done so: whole vectors, with a norm of all lanes. */
static size_t direct_chunk(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                           struct norm *norm)
{
    size_t in_size = reduce->in_dtype == GW_DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t);
    size_t out_size = reduce->out_dtype == GW_DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t);
    struct direct d = {.to = (char *)reduce->out[0] + at * out_size,
                       .norm = norm,
                       .count = count - count % (norm ? LANES : VEC_NUMEL),
                       .scale = reduce->scale,
                       .out_dtype = reduce->out_dtype,
                       .accumulated = reduce->accumulate,
                       .past = reduce->past && !reduce->accumulate};

    if (!is_direct(reduce, &d))
        return 0;
    for (uint32_t i = 0; i < reduce->n; i++) {
        if (!reduce->in[i])
            return 0;
        d.in[i] = (const char *)reduce->in[i] + at * in_size;
    }
    if (reduce->in_dtype == GW_DTYPE_FP32)
        direct_fp32(&d, reduce->n);
    else if (reduce->in_dtype == GW_DTYPE_FP16)
        direct_fp16(&d, reduce->n);
    else
        direct_bf16(&d, reduce->n);
    return d.count;
}

/* Inputs of the piece have all been read when the first output is written, so that outputs may be
 * inputs. */
static void chunk(const struct kernel_reduce *reduce, uint64_t at, size_t count,
                  struct kernel_partial *partial)
{
    struct norm norm = {{0}, 0, 0};
    size_t done = direct_chunk(reduce, at, count, partial ? &norm : NULL);
    struct room room;

    for (size_t piece; done < count; done += piece) {
        float *values = room.level[0];
        piece = count - done < PIECE ? count - done : PIECE;
        if (reduce->subtrees)
            sum_subtrees(reduce, at + done, piece, &room);
        else
            sum_piece(reduce, at + done, piece, &room);
        scale_all(values, reduce->scale, piece);
        if (reduce->accumulate)
            accumulate(reduce, at + done, piece, values, room.wide[0]);
        store(reduce, at + done, piece, values);
        if (partial)
            norm_add(&norm, reduce->norm, values, piece);
    }
    if (partial)
        *partial = norm_end(&norm, reduce->norm);
}

static void copy_past(void *to, const void *from, size_t bytes)
{
    stream(to, from, bytes);
    settle();
}

const struct kernel_isa ISA_TABLE = {
    .name = ISA_NAME,
    .chunk = chunk,
    .copy_past = copy_past,
    .settle = settle,
};
