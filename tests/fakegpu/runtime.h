/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the double of libcudart.so.13: a thin layer over the double of the driver, which holds all
 * state of the process. Error numbers of the two are the same where both have one.
 */
#ifndef FAKEGPU_RUNTIME_H
#define FAKEGPU_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "tests/fakegpu/fakegpu.h"

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

/* The thread has a context, device 0's if none was chosen. */
cudaError_t runtime_ready(void);
/* Keeps an error for cudaGetLastError and returns it. */
cudaError_t runtime_result(CUresult result);
/* The call, in a context; its result kept. */
#define RUN(call)                                                                                  \
    do {                                                                                           \
        cudaError_t ready_ = runtime_ready();                                                      \
        return ready_ ? ready_ : runtime_result(call);                                             \
    } while (0)

#endif
