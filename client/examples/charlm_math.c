/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 arithmetic; see charlm_math.h. */
#include "client/examples/charlm_math.h"

#include <math.h>
#include <string.h>

/* A tile of sums fills the 16 vector registers that every 64-bit CPU has. */
enum {
    VEC = 4, /* floats of a vector */
    TILE_ROWS = 4,
    TILE_VECS = 4,
    TILE_COLS = TILE_VECS * VEC,
    DEPTH_BLOCK = 256, /* rows of b that stay in the first-level cache while all rows of a pass */
};

typedef float vec __attribute__((vector_size(4 * VEC), aligned(4), may_alias));

/* A full tile. `k0` > 0: c holds the sum so far. */
static void tile(const struct math_gemm *g, size_t i, size_t j, size_t k0, size_t k1)
{
    const float *a = g->a + i * g->a_row;
    vec sum[TILE_ROWS][TILE_VECS];

    for (size_t r = 0; r < TILE_ROWS; r++) {
        for (size_t q = 0; q < TILE_VECS; q++) {
            if (k0 > 0)
                sum[r][q] = *(const vec *)(g->c + (i + r) * g->c_row + j + q * VEC);
            else
                sum[r][q] = g->first != NULL ? *(const vec *)(g->first + j + q * VEC) : (vec){0};
        }
    }
    for (size_t k = k0; k < k1; k++) {
        const float *b = g->b + k * g->b_row + j;

        for (size_t r = 0; r < TILE_ROWS; r++) {
            for (size_t q = 0; q < TILE_VECS; q++)
                sum[r][q] += a[r * g->a_row + k * g->a_depth] * *(const vec *)(b + q * VEC);
        }
    }
    for (size_t r = 0; r < TILE_ROWS; r++) {
        for (size_t q = 0; q < TILE_VECS; q++)
            *(vec *)(g->c + (i + r) * g->c_row + j + q * VEC) = sum[r][q];
    }
}

/* What does not fill a tile: the same chain of additions, one element after the other. */
static void edge(const struct math_gemm *g, size_t i, size_t j, size_t k0, size_t k1)
{
    float sum = g->first != NULL ? g->first[j] : 0.0f;

    if (k0 > 0)
        sum = g->c[i * g->c_row + j];
    for (size_t k = k0; k < k1; k++)
        sum += g->a[i * g->a_row + k * g->a_depth] * g->b[k * g->b_row + j];
    g->c[i * g->c_row + j] = sum;
}

static void gemm_block(const struct math_gemm *g, size_t j, size_t k0, size_t k1)
{
    size_t cols = g->cols - j < TILE_COLS ? g->cols - j : TILE_COLS;
    size_t i = 0;

    if (cols == TILE_COLS) {
        for (; i + TILE_ROWS <= g->rows; i += TILE_ROWS)
            tile(g, i, j, k0, k1);
    }
    for (; i < g->rows; i++) {
        for (size_t c = j; c < j + cols; c++)
            edge(g, i, c, k0, k1);
    }
}

void math_gemm(const struct math_gemm *g)
{
    for (size_t k0 = 0; k0 == 0 || k0 < g->depth; k0 += DEPTH_BLOCK) {
        size_t k1 = g->depth - k0 < DEPTH_BLOCK ? g->depth : k0 + DEPTH_BLOCK;

        for (size_t j = 0; j < g->cols; j += TILE_COLS)
            gemm_block(g, j, k0, k1);
    }
}

void math_transpose(const float *in, size_t rows, size_t cols, float *out)
{
    enum { BLOCK = 16 };

    for (size_t i0 = 0; i0 < rows; i0 += BLOCK) {
        size_t i1 = i0 + BLOCK < rows ? i0 + BLOCK : rows;

        for (size_t j = 0; j < cols; j++) {
            for (size_t i = i0; i < i1; i++)
                out[j * rows + i] = in[i * cols + j];
        }
    }
}

/* Cephes' expf: x = n ln 2 + r, a polynomial for e^r, n into the exponent. Adding 1.5 * 2^23 rounds
 * to an integer and leaves it in the low bits. */
static inline float exp_one(float x)
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

void math_exp(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = exp_one(values[i]);
}

void math_tanh(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float e = exp_one(-2.0f * fabsf(values[i]));

        values[i] = copysignf((1.0f - e) / (1.0f + e), values[i]);
    }
}

void math_tanh_back(float *delta, const float *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        delta[i] *= 1.0f - y[i] * y[i];
}

void math_add(float *sum, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += values[i];
}

void math_scale(float *values, float scale, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] *= scale;
}

static void adam_span(const struct math_adam *adam, float unbias_m, float unbias_v)
{
    float *restrict params = adam->params, *restrict m = adam->m, *restrict v = adam->v;
    const float *restrict grads = adam->grads;

    for (size_t i = 0; i < adam->count; i++) {
        float g = grads[i];

        m[i] = 0.9f * m[i] + 0.1f * g;
        v[i] = 0.999f * v[i] + 0.001f * (g * g);
        params[i] -= 1e-3f * (m[i] * unbias_m) / (sqrtf(v[i] * unbias_v) + 1e-8f);
    }
}

void math_adam(const struct math_adam *adam, uint32_t step)
{
    double power_m = 1.0, power_v = 1.0;

    for (uint32_t i = 0; i < step; i++) {
        power_m *= 0.9;
        power_v *= 0.999;
    }
    adam_span(adam, (float)(1.0 / (1.0 - power_m)), (float)(1.0 / (1.0 - power_v)));
}
