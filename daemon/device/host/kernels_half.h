/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp16 and bf16 of the host kernels, by integers where there is no instruction: the bits of
 * daemon/device/cuda/kernels.cu. Included by kernels_body.h; pure; any thread.
 */
#ifndef GW_DEVICE_HOST_KERNELS_HALF_H
#define GW_DEVICE_HOST_KERNELS_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

static inline uint32_t half_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float half_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* What is shifted out decides: to nearest, ties to even. 0 < shift < 32. */
static inline uint32_t half_round(uint32_t bits, uint32_t shift)
{
    uint32_t below = (1u << (shift - 1u)) - 1u + (bits >> shift & 1u);

    return (bits + below) >> shift;
}

static inline float from_bf16(uint16_t half)
{
    return half_float((uint32_t)half << 16);
}

/* A NaN keeps its sign and upper payload, and becomes quiet. */
static inline uint16_t to_bf16(float value)
{
    uint32_t bits = half_bits(value);
    uint32_t nan = bits >> 16 | 0x0040u, number = half_round(bits, 16);

    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : number);
}

static inline float from_fp16(uint16_t half)
{
    uint32_t sign = ((uint32_t)half & 0x8000u) << 16, size = (uint32_t)half & 0x7fffu;

    if (size >= 0x7c00u)
        return half_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    if (size >= 0x0400u)
        return half_float(sign | ((size << 13) + (112u << 23)));
    return half_float(sign | half_bits((float)size * 5.9604644775390625e-8f)); /* 2^-24; exact */
}

static inline uint16_t to_fp16(float value)
{
    uint32_t bits = half_bits(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    uint32_t exponent = size >> 23;

    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x1ffu));
    if (size >= 0x47800000u) /* 2^16 and up */
        return (uint16_t)(sign | 0x7c00u);
    if (exponent >= 113u) /* 2^-14 and up: normal */
        return (uint16_t)(sign | (half_round(size, 13) - (112u << 10)));
    if (exponent < 102u) /* below half of the smallest */
        return (uint16_t)sign;
    return (uint16_t)(sign | half_round((size & 0x7fffffu) | 0x800000u, 126u - exponent));
}

static inline void widen_bf16(float *restrict to, const uint16_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from_bf16(from[i]);
}

static inline void narrow_bf16(uint16_t *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = to_bf16(from[i]);
}

static inline void widen_fp16(float *restrict to, const uint16_t *restrict from, size_t count)
{
    size_t i = 0;

#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)&from[i])));
#endif
    for (; i < count; i++)
        to[i] = from_fp16(from[i]);
}

static inline void narrow_fp16(uint16_t *restrict to, const float *restrict from, size_t count)
{
    size_t i = 0;

#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(void *)&to[i],
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; i++)
        to[i] = to_fp16(from[i]);
}

#endif
