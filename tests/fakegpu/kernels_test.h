/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the kernels of the fake GPU's own tests. C and C++. */
#ifndef FAKEGPU_KERNELS_TEST_H
#define FAKEGPU_KERNELS_TEST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gw_k_test_fill {
    float *to;
    uint64_t count;
    float value;
};

struct gw_k_test_add {
    float *to;
    const float *from;
    uint64_t count;
};

struct gw_k_test_span {
    uint64_t *stamps; /* two: begin, end */
    uint64_t ns;
};

/* A cudaError_t. */
int test_launch_fill(const struct gw_k_test_fill *arg, void *stream);
int test_launch_add(const struct gw_k_test_add *arg, void *stream);

#ifdef __cplusplus
}
#endif
#endif
