/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of charlm in fp32. Pure; any thread. Every result has the same bits on every CPU:
 * each element is one chain of additions in ascending order, vector code only works on many
 * elements at once, nothing is contracted into FMA, and exp and tanh are our own.
 */
#ifndef CHARLM_MATH_H
#define CHARLM_MATH_H

#include <stddef.h>
#include <stdint.h>

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

/* values = exp(values): relative error below 1e-6 in -87 .. 88, clamped beyond. */
void math_exp(float *values, size_t count);
/* values = tanh(values): absolute error below 1e-6. */
void math_tanh(float *values, size_t count);
/* delta *= 1 - y*y: back through y = tanh(x). */
void math_tanh_back(float *delta, const float *y, size_t count);

/* sum += values, sum *= scale. */
void math_add(float *sum, const float *values, size_t count);
void math_scale(float *values, float scale, size_t count);

/* Adam (Kingma and Ba 2015, algorithm 1) for step `step` from 1: learning rate 1e-3, decay 0.9 and
 * 0.999, epsilon 1e-8. Element by element, so that a shard's result does not depend on its cut. */
struct math_adam {
    float *params, *m, *v;
    const float *grads;
    size_t count;
};
void math_adam(const struct math_adam *adam, uint32_t step);

#endif
