/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of charlm's kernels, and how they are started. What each computes is said at the
 * function of charlm_math.h with the same name.
 */
#ifndef CHARLM_KERNELS_H
#define CHARLM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct charlm_k_gemm {
    uint64_t rows, cols, depth;
    const float *a;
    uint64_t a_row, a_depth;
    const float *b;
    uint64_t b_row;
    const float *first;
    float *c;
    uint64_t c_row;
};

struct charlm_k_transpose {
    const float *in;
    uint64_t rows, cols;
    float *out;
};

enum charlm_k_map_kind { CHARLM_TANH, CHARLM_TANH_BACK, CHARLM_ADD, CHARLM_SCALE };

struct charlm_k_map {
    uint64_t kind, count;
    float *to;
    const float *from;
    float scale;
    uint32_t reserved; /* no byte of an argument is left open */
};

struct charlm_k_embed {
    const uint8_t *symbols;
    uint64_t count, context, vocab, width;
    const float *table, *deltas;
    float *values, *table_grad; /* one of them is NULL */
};

/* Threads are samples; the total is for one thread, afterwards. */
struct charlm_k_loss {
    const uint8_t *symbols;
    uint64_t count, context, vocab;
    const float *scores;
    float *deltas;
    double *each; /* of each sample */
};

struct charlm_k_mean {
    const double *each;
    uint64_t count;
    double *mean;
};

struct charlm_k_sum_rows {
    const float *rows;
    uint64_t count, cols;
    float *out;
};

struct charlm_k_adam {
    float *params, *m, *v;
    const float *grads;
    uint64_t count;
    float unbias_m, unbias_v;
};

/* One of them is where from, the other where to. */
struct charlm_k_bf16 {
    float *floats;
    uint16_t *halves;
    uint64_t count, to_halves;
};

/* X(kernel): int charlm_launch_<kernel>(argument, elements, stream): a cudaError_t. */
#define CHARLM_KERNELS(X)                                                                          \
    X(gemm) X(transpose) X(map) X(embed) X(loss) X(mean) X(sum_rows) X(adam) X(bf16)
#define CHARLM_LAUNCH(kernel)                                                                      \
    int charlm_launch_##kernel(const struct charlm_k_##kernel *arg, uint64_t elements,             \
                               void *stream);
CHARLM_KERNELS(CHARLM_LAUNCH)
#undef CHARLM_LAUNCH

#ifdef __cplusplus
}
#endif
#endif
