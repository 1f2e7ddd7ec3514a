/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of nccl_cases share: ranks, one per GPU, and threads for them. */
#ifndef FAKEGPU_CASES_NCCL_H
#define FAKEGPU_CASES_NCCL_H

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#define RANKS_MAX 8
#define BYTES_MAX (1u << 20)

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess)                                                                 \
            die(__LINE__, #call, (int)error_);                                                     \
    } while (0)
#define NCCL(call)                                                                                 \
    do {                                                                                           \
        ncclResult_t result_ = (call);                                                             \
        if (result_ != ncclSuccess)                                                                \
            die(__LINE__, #call, (int)result_);                                                    \
    } while (0)
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            die(__LINE__, #condition, 0);                                                          \
    } while (0)

struct rank {
    int index, device;
    ncclComm_t comm;
    cudaStream_t stream;
    unsigned char *send, *recv; /* device, BYTES_MAX each */
    unsigned char *host_send, *host_recv;
};

extern struct rank ranks[RANKS_MAX];
extern int n; /* ranks */
extern ncclUniqueId id;

void die(int line, const char *what, int code);
void rank_open(int i, int device);
void rank_close(int i);
void all_open(void);
/* Blocking communicators of all GPUs, made by this thread. */
void all_init(void);
void all_close(void);
void all_sync(void);
/* fn(i) on a thread for each rank, with its GPU current. */
void all_threads(void (*fn)(int i));
/* Until the last call on it has ended, or for some seconds. */
ncclResult_t poll(ncclComm_t comm);
void init_only(int i);
void init_non_blocking(int i);
void all_init_non_blocking(void);
/* Success of a call that is in progress. */
ncclResult_t started(ncclResult_t result);
void all_reduce_one(int i);
void all_reduce_polled(int i);
void abort_one(int i);
void abort_and_close(void);

/* cases_nccl_bad.c */
#define BAD_CASES(CASE)                                                                            \
    CASE(bad_count)                                                                                \
    CASE(bad_order)                                                                                \
    CASE(bad_overlap)                                                                              \
    CASE(bad_unpolled)                                                                             \
    CASE(bad_in_progress)                                                                          \
    CASE(bad_use_after_abort)                                                                      \
    CASE(bad_duplicate_gpu)                                                                        \
    CASE(bad_leak)                                                                                 \
    CASE(bad_registration)                                                                         \
    CASE(bad_registered)                                                                           \
    CASE(bad_threads)                                                                              \
    CASE(bad_launch_order)                                                                         \
    CASE(bad_device)                                                                               \
    CASE(bad_memory)                                                                               \
    CASE(bad_free)
#define CASE(name) void case_##name(void);
BAD_CASES(CASE)
#undef CASE

#endif
