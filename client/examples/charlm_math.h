/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of charlm in fp32: on the host in charlm_math.c, which computes at once, or on a
 * GPU in charlm_math_cuda.c, which enqueues on one stream. All pointers below but those of math_put
 * and math_get are to memory of math_alloc or of gradwire. One thread.
 *
 * Every result has the same bits on every CPU, and on every GPU: each element is one chain of
 * additions in ascending order, vector code only works on many elements at once, nothing is
 * contracted into FMA, and exp and tanh are our own. (Between a CPU and a GPU only the loss may
 * differ, in its logarithm; nothing is computed from it.)
 */
#ifndef CHARLM_MATH_H
#define CHARLM_MATH_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed; NULL: there is none. */
void *math_alloc(size_t bytes);
void math_free(void *memory);
/* From the host; `from` may change right afterwards. */
void math_put(void *to, const void *from, size_t bytes);
/* To the host: waits for all that was asked for before. */
void math_get(void *to, const void *from, size_t bytes);
void math_copy(float *to, const float *from, size_t count);
void math_zero(float *values, size_t count);

/* c[i][j] = start + sum over k ascending of a[i*a_row + k*a_depth] * b[k*b_row + j];
 * start: first[j], or 0 where `first` is NULL. c has rows of c_row elements. */
struct math_gemm {
    size_t rows, cols, depth;
    const float *a;
    size_t a_row, a_depth;
    const float *b;
    size_t b_row;
    const float *first;
    float *c;
    size_t c_row;
};
void math_gemm(const struct math_gemm *g);

/* out[j*rows + i] = in[i*cols + j] */
void math_transpose(const float *in, size_t rows, size_t cols, float *out);

/* values = tanh(values): absolute error below 1e-6. */
void math_tanh(float *values, size_t count);
/* delta *= 1 - y*y: back through y = tanh(x). */
void math_tanh_back(float *delta, const float *y, size_t count);

/* Samples: `count` rows of `context` symbols and one to predict. */
struct math_samples {
    const uint8_t *symbols;
    size_t count, context;
};
/* values[s][c] = table[symbol c of sample s], rows of `width`; back: the table's gradient. */
void math_embed(const struct math_samples *samples, const float *table, size_t width,
                float *values);
void math_embed_back(const struct math_samples *samples, const float *deltas, size_t vocab,
                     size_t width, float *table);
/* Mean cross-entropy in nats of scores[count][vocab] into *mean, and its deltas by the scores. */
void math_loss(const struct math_samples *samples, const float *scores, size_t vocab, float *deltas,
               double *mean);
/* out[j] = sum over i ascending of rows[i*cols + j] */
void math_sum_rows(const float *rows, size_t count, size_t cols, float *out);

/* sum += values, sum *= scale. */
void math_add(float *sum, const float *values, size_t count);
void math_scale(float *values, float scale, size_t count);

/* bf16 is the upper half of an fp32: rounded to nearest, ties to even; and exactly back. */
void math_to_bf16(uint16_t *to, const float *from, size_t count);
void math_from_bf16(float *to, const uint16_t *from, size_t count);

/* Adam (Kingma and Ba 2015, algorithm 1) for step `step` from 1: learning rate 1e-3, decay 0.9 and
 * 0.999, epsilon 1e-8. Element by element, so that a shard's result does not depend on its cut. */
struct math_adam {
    float *params, *m, *v;
    const float *grads;
    size_t count;
};
void math_adam(const struct math_adam *adam, uint32_t step);

#endif
