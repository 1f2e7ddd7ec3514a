// SPDX-License-Identifier: Apache-2.0
/* Kernels of the fake GPU's own tests: by nvcc where there is a toolkit, as C for the server. */
#include "tests/fakegpu/kernels_test.h"

#include "daemon/device/cuda/kernel.h"

GW_KERNEL(gw_k_test_fill)
{
    for (uint64_t i = gw_k_index(); i < arg->count; i += gw_k_count())
        arg->to[i] = arg->value;
}

GW_KERNEL(gw_k_test_add)
{
    for (uint64_t i = gw_k_index(); i < arg->count; i += gw_k_count())
        arg->to[i] += arg->from[i];
}

/* When it ran, and for some while. */
GW_KERNEL(gw_k_test_span)
{
    if (gw_k_index() != 0)
        return;
    gw_k_store(&arg->stamps[0], gw_k_clock());
    while (gw_k_clock() < arg->stamps[0] + arg->ns)
        gw_k_nap(100000);
    gw_k_store(&arg->stamps[1], gw_k_clock());
}

#ifdef __CUDACC__

extern "C" int test_launch_fill(const struct gw_k_test_fill *arg, void *stream)
{
    gw_k_test_fill<<<4, 64, 0, (cudaStream_t)stream>>>(*arg);
    return (int)cudaGetLastError();
}

extern "C" int test_launch_add(const struct gw_k_test_add *arg, void *stream)
{
    void *args[1] = {(void *)arg};

    return (int)cudaLaunchKernel((const void *)gw_k_test_add, dim3(4), dim3(64), args, 0,
                                 (cudaStream_t)stream);
}

#else

GW_KERNEL_TABLE_BEGIN
GW_KERNEL_ENTRY(gw_k_test_fill)
GW_KERNEL_ENTRY(gw_k_test_add)
GW_KERNEL_ENTRY(gw_k_test_span)
GW_KERNEL_TABLE_END

#endif
