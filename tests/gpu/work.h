/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's work on a GPU, for measurements: a matrix product that fills it. C and C++ (nvcc). */
#ifndef GW_TESTS_GPU_WORK_H
#define GW_TESTS_GPU_WORK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* c = a * b, n x n, n a multiple of 4. */
struct gpu_k_gemm {
    const float *a, *b;
    float *c;
    uint64_t n;
};

/* Enqueues it; the cudaError_t. Any thread. */
int gpu_launch_gemm(const struct gpu_k_gemm *arg, void *stream);

#ifdef __cplusplus
}
#endif
#endif
