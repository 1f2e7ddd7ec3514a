/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of tests/gpu share: errors that end the program, the clock, statistics, and
 * memory of GPU 0. They print one JSON object on stdout; one thread unless said.
 */
#ifndef GW_TESTS_GPU_KIT_H
#define GW_TESTS_GPU_KIT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void kit_check(int error, const char *what, int line)
{
    if (error == 0)
        return;
    fprintf(stderr, "%s (line %d): %s\n", what, line, cudaGetErrorString((cudaError_t)error));
    exit(1);
}
#define CUDA(call) kit_check((int)(call), #call, __LINE__)

#define NEED(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline uint64_t kit_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void kit_nap(void)
{
    const struct timespec time = {.tv_nsec = 100000};

    nanosleep(&time, NULL);
}

static inline void *kit_device(size_t bytes)
{
    void *memory = NULL;

    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemset(memory, 0, bytes));
    return memory;
}

static inline cudaStream_t kit_stream(void)
{
    cudaStream_t stream;

    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static inline int kit_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* "NAME": {"p50":..., "min":..., "max":...}; sorts the values. */
static inline void kit_print(const char *name, double *values, size_t count)
{
    qsort(values, count, sizeof(*values), kit_compare);
    printf("\"%s\": {\"p50\": %.3f, \"min\": %.3f, \"max\": %.3f}", name, values[count / 2],
           values[0], values[count - 1]);
}

/* Milliseconds between two events, once the second is over. */
static inline double kit_elapsed_ms(cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0.0f;

    CUDA(cudaEventSynchronize(to));
    CUDA(cudaEventElapsedTime(&ms, from, to));
    return (double)ms;
}

#endif
