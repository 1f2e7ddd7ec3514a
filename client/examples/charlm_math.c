/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 arithmetic on the host; see charlm_math.h. */
#include "client/examples/charlm_math.h"

#include <stdlib.h>
#include <string.h>

#include "client/examples/charlm_math_one.h"

void *math_alloc(size_t bytes)
{
    return calloc(1, bytes > 0 ? bytes : 1);
}

void math_free(void *memory)
{
    free(memory);
}

void math_put(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void math_get(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void math_copy(float *to, const float *from, size_t count)
{
    memcpy(to, from, count * sizeof *to);
}

void math_zero(float *values, size_t count)
{
    memset(values, 0, count * sizeof *values);
}

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

void math_tanh(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = math_tanh_one(values[i]);
}

void math_tanh_back(float *delta, const float *y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        delta[i] *= 1.0f - y[i] * y[i];
}

void math_embed(const struct math_samples *samples, const float *table, size_t width, float *values)
{
    for (size_t s = 0; s < samples->count; s++) {
        const uint8_t *symbols = samples->symbols + s * (samples->context + 1);

        for (size_t c = 0; c < samples->context; c++, values += width)
            memcpy(values, table + symbols[c] * width, width * sizeof *values);
    }
}

void math_embed_back(const struct math_samples *samples, const float *deltas, size_t vocab,
                     size_t width, float *table)
{
    math_zero(table, vocab * width);
    for (size_t s = 0; s < samples->count; s++) {
        const uint8_t *symbols = samples->symbols + s * (samples->context + 1);

        for (size_t c = 0; c < samples->context; c++, deltas += width)
            math_add(table + symbols[c] * width, deltas, width);
    }
}

void math_loss(const struct math_samples *samples, const float *scores, size_t vocab, float *deltas,
               double *mean)
{
    double total = 0.0;

    for (size_t s = 0; s < samples->count; s++) {
        uint8_t target = samples->symbols[s * (samples->context + 1) + samples->context];

        total += math_loss_one(scores + s * vocab, deltas + s * vocab, vocab, target,
                               1.0f / (float)samples->count);
    }
    *mean = total / (double)samples->count;
}

void math_sum_rows(const float *rows, size_t count, size_t cols, float *out)
{
    math_zero(out, cols);
    for (size_t i = 0; i < count; i++)
        math_add(out, rows + i * cols, cols);
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

void math_to_bf16(uint16_t *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = math_to_bf16_one(from[i]);
}

void math_from_bf16(float *to, const uint16_t *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = math_from_bf16_one(from[i]);
}

static void adam_span(const struct math_adam *adam, float unbias_m, float unbias_v)
{
    float *restrict params = adam->params, *restrict m = adam->m, *restrict v = adam->v;
    const float *restrict grads = adam->grads;

    for (size_t i = 0; i < adam->count; i++)
        math_adam_one(&params[i], &m[i], &v[i], grads[i], unbias_m, unbias_v);
}

void math_adam(const struct math_adam *adam, uint32_t step)
{
    float unbias_m, unbias_v;

    math_adam_unbias(step, &unbias_m, &unbias_v);
    adam_span(adam, unbias_m, unbias_v);
}
