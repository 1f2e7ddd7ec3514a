/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the arithmetic does to one element, for the host's loops and the GPU's kernels alike. Pure.
 * MATH_FN is how a function is declared there.
 */
#ifndef CHARLM_MATH_ONE_H
#define CHARLM_MATH_ONE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef MATH_FN
#define MATH_FN static inline
#endif

/* Cephes' expf: x = n ln 2 + r, a polynomial for e^r, n into the exponent. Adding 1.5 * 2^23 rounds
 * to an integer and leaves it in the low bits. Relative error below 1e-6 in -87 .. 88, clamped
 * beyond. */
MATH_FN float math_exp_one(float x)
{
    const float magic = 12582912.0f;
    float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    float t = clamped * 1.44269504f + magic;
    float n = t - magic;
    float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f, power;
    uint32_t bits;

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 127u) << 23;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

MATH_FN float math_tanh_one(float x)
{
    float e = math_exp_one(-2.0f * fabsf(x));

    return copysignf((1.0f - e) / (1.0f + e), x);
}

/* No gradient or parameter of charlm is a NaN, which this would turn into an infinity. */
MATH_FN uint16_t math_to_bf16_one(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

MATH_FN float math_from_bf16_one(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Adam's corrections of the moments' bias at step `step` from 1; on the host. */
static inline void math_adam_unbias(uint32_t step, float *ret_m, float *ret_v)
{
    double power_m = 1.0, power_v = 1.0;

    for (uint32_t i = 0; i < step; i++) {
        power_m *= 0.9;
        power_v *= 0.999;
    }
    *ret_m = (float)(1.0 / (1.0 - power_m));
    *ret_v = (float)(1.0 / (1.0 - power_v));
}

MATH_FN void math_adam_one(float *param, float *m, float *v, float g, float unbias_m,
                           float unbias_v)
{
    *m = 0.9f * *m + 0.1f * g;
    *v = 0.999f * *v + 0.001f * (g * g);
    *param -= 1e-3f * (*m * unbias_m) / (sqrtf(*v * unbias_v) + 1e-8f);
}

/* One sample: deltas = (softmax(scores) - target) * share; returns its cross-entropy in nats. */
MATH_FN double math_loss_one(const float *scores, float *deltas, size_t vocab, uint8_t target,
                             float share)
{
    float largest = scores[0], sum = 0.0f;

    for (size_t v = 1; v < vocab; v++)
        largest = scores[v] > largest ? scores[v] : largest;
    for (size_t v = 0; v < vocab; v++)
        deltas[v] = math_exp_one(scores[v] - largest);
    for (size_t v = 0; v < vocab; v++)
        sum += deltas[v];
    for (size_t v = 0; v < vocab; v++)
        deltas[v] = deltas[v] / sum * share;
    deltas[target] -= share;
    return log((double)sum) - ((double)scores[target] - (double)largest);
}

#endif
