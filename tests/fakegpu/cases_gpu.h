/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of gpu_cases share: one program, a case by name, an exit status. */
#ifndef FAKEGPU_CASES_GPU_H
#define FAKEGPU_CASES_GPU_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/fakegpu/kernels_test.h"

#define COUNT 1024u
#define BYTES (COUNT * sizeof(float))
#define VMM_BYTES (UINT64_C(2) << 20)

_Noreturn void die(int line, const char *what, int error);
#define CUDA(call)                                                                                 \
    do {                                                                                           \
        int error_ = (int)(call);                                                                  \
        if (error_ != 0)                                                                           \
            die(__LINE__, #call, error_);                                                          \
    } while (0)
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            die(__LINE__, #condition, 0);                                                          \
    } while (0)

/* Kernels, launched as nvcc's output does, or by it. */
void kernels_register(void);
cudaError_t launch_fill(float *to, float value, uint64_t count, cudaStream_t stream);
cudaError_t launch_add(float *to, const float *from, uint64_t count, cudaStream_t stream);
cudaError_t launch_span(uint64_t *stamps, uint64_t ns, cudaStream_t stream);
cudaError_t launch_unknown(cudaStream_t stream);

float *device_new(void);               /* BYTES */
float *host_new(float first);          /* pinned: first, first + 1, ... */
cudaStream_t stream_new(void);         /* non-blocking */
cudaEvent_t event_new(unsigned flags); /* without timing */
void expect_values(const float *host, float first, float step);
bool until(bool (*condition)(void *arg), void *arg); /* false: after 20 s */
bool stream_done(void *stream);

/* Two processes: the parent goes on with a socket to the child, which runs `child` and exits. */
struct pair {
    int fd, pid;
};
struct pair pair_new(void (*child)(int fd));
void pair_end(struct pair pair); /* waits; the child must have succeeded */
void put(int fd, const void *bytes, size_t size);
void get(int fd, void *bytes, size_t size);
void put_fd(int fd, int passed);
int get_fd(int fd);

struct test_case {
    const char *name;
    void (*run)(void);
};
extern const struct test_case cases_bad[], cases_pair[]; /* end with NULL */

#endif
