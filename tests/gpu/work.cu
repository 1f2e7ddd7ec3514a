// SPDX-License-Identifier: Apache-2.0
/*
 * A matrix product in tiles of 4 x 4 values per thread. Compiles with nvcc and, for the doubles of
 * tests/fakegpu, as C (daemon/device/cuda/kernel.h).
 */
#include "tests/gpu/work.h"

#include "daemon/device/cuda/kernel.h"

#define TILE 4u

GW_KERNEL(gpu_k_gemm)
{
    uint64_t n = arg->n, side = n / TILE;

    for (uint64_t at = gw_k_index(); at < side * side; at += gw_k_count()) {
        const float *a = arg->a + at / side * TILE * n, *b = arg->b + at % side * TILE;
        float *c = arg->c + at / side * TILE * n + at % side * TILE;
        float sum[TILE][TILE] = {{0.0f}};

        for (uint64_t k = 0; k < n; k++)
            for (uint32_t i = 0; i < TILE; i++)
                for (uint32_t j = 0; j < TILE; j++)
                    sum[i][j] += a[i * n + k] * b[k * n + j];
        for (uint32_t i = 0; i < TILE; i++)
            for (uint32_t j = 0; j < TILE; j++)
                c[i * n + j] = sum[i][j];
    }
}

#ifdef __CUDACC__

extern "C" int gpu_launch_gemm(const struct gpu_k_gemm *arg, void *stream)
{
    uint64_t side = arg->n / TILE;
    uint64_t blocks = (side * side + 255) / 256;

    gpu_k_gemm<<<(unsigned)blocks, 256, 0, (cudaStream_t)stream>>>(*arg);
    return (int)cudaGetLastError();
}

#else

GW_KERNEL_TABLE_BEGIN
GW_KERNEL_ENTRY(gpu_k_gemm)
GW_KERNEL_TABLE_END

#endif
