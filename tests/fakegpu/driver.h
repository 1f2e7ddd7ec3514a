/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the double of libcuda.so.1: the process' one connection, and what its files share. Any
 * thread; the connection has a lock, the current context is the thread's.
 */
#ifndef FAKEGPU_DRIVER_H
#define FAKEGPU_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

#include "tests/fakegpu/fakegpu.h"

#define CONTEXT_DEPTH 16

/* Numbers of the server as CUDA handles: no address, so that who follows one faults. */
#define STREAM_TAG UINT64_C(0x5354000000000000)
#define EVENT_TAG UINT64_C(0x4556000000000000)
#define TAG_MASK UINT64_C(0xffff000000000000)

/* CUDA_SUCCESS once there is a server; CUDA_ERROR_NO_DEVICE without $FAKEGPU_SOCKET. */
CUresult core_open(void);
/* The same, and the calling thread has a context. ret_gpu: the server's number; may be NULL. */
CUresult core_context(uint32_t *ret_gpu);
uint32_t core_first_gpu(void); /* of the node */
CUcontext core_context_of(uint32_t gpu);
uint32_t core_gpu_of(CUcontext context);
/* A call with up to four arguments. */
CUresult core_call(enum fg_kind kind, uint32_t gpu, const uint64_t args[4],
                   struct fg_reply *ret_reply);
/* The same, again and again while the server is busy. */
CUresult core_call_wait(enum fg_kind kind, uint32_t gpu, const uint64_t args[4],
                        struct fg_reply *ret_reply);
CUresult core_call_name(enum fg_kind kind, const char *name, struct fg_reply *ret_reply);
void core_nap(uint32_t *us);

CUstream stream_handle(uint64_t number);
CUevent event_handle(uint64_t number);
uint64_t event_number(CUevent event); /* 0: none */
/* Waits on the host for a stream, an event or the device (FG_SCOPE_*). */
CUresult wait_for(uint32_t scope, uint32_t gpu, uint64_t number);

/* Makes the addresses of device memory inaccessible; 0 or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult space_take(uint64_t address, uint64_t bytes);
void space_give(uint64_t address, uint64_t bytes);

/* A copy whose host side may be pageable. `name`: for the rule about blocking. */
CUresult copy_any(uint64_t to, uint64_t from, uint64_t bytes, CUstream stream, const char *name);
void copy_end(void); /* gives the staging memory back */

#define ARGS(...) ((const uint64_t[4]){__VA_ARGS__})
#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

#endif
