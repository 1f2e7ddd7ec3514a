/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nvcc's output calls: kernels are registered by their stubs' addresses and launched by name.
 * The server knows the kernels and how large each one's single argument is.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakegpu/runtime.h"

/* crt/host_runtime.h and crt/device_functions.h declare them for C++ only. */
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *function, const char *name,
                            int threads, void *tid, void *bid, dim3 *block, dim3 *grid,
                            int *warp);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external,
                       size_t size, int constant, int global);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

struct registered {
    void **module;
    const void *stub;
    const char *name; /* the module's */
    uint64_t number, argument_bytes; /* 0: not asked for yet */
    struct registered *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered *kernels;

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed[8];
static _Thread_local int pushed_count;

/* ---- modules -------------------------------------------------------------------------------- */

void **__cudaRegisterFatBinary(void *binary)
{
    void **handle = malloc(sizeof(*handle));

    if (handle)
        *handle = binary;
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    pthread_mutex_lock(&lock);
    for (struct registered **at = &kernels; *at;) {
        struct registered *kernel = *at;

        if (kernel->module != handle) {
            at = &kernel->next;
            continue;
        }
        *at = kernel->next;
        free(kernel);
    }
    pthread_mutex_unlock(&lock);
    free(handle);
}

void __cudaRegisterFunction(void **handle, const char *stub, char *function, const char *name,
                            int threads, void *tid, void *bid, dim3 *block, dim3 *grid, int *warp)
{
    struct registered *kernel = calloc(1, sizeof(*kernel));

    (void)function, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    if (!kernel)
        return;
    kernel->module = handle;
    kernel->stub = stub;
    kernel->name = name;
    pthread_mutex_lock(&lock);
    kernel->next = kernels;
    kernels = kernel;
    pthread_mutex_unlock(&lock);
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external,
                       size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)address, (void)name, (void)external, (void)size;
    (void)constant, (void)global;
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

/* ---- launches ------------------------------------------------------------------------------- */

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    if (pushed_count == 8)
        return 1;
    pushed[pushed_count].grid = grid;
    pushed[pushed_count].block = block;
    pushed[pushed_count].shared = shared;
    pushed[pushed_count++].stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (!pushed_count)
        return cudaErrorMissingConfiguration;
    pushed_count--;
    *grid = pushed[pushed_count].grid;
    *block = pushed[pushed_count].block;
    *shared = pushed[pushed_count].shared;
    memcpy(stream, &pushed[pushed_count].stream, sizeof(void *));
    return cudaSuccess;
}

static struct registered *find(const void *stub)
{
    struct registered *kernel;

    pthread_mutex_lock(&lock);
    for (kernel = kernels; kernel && kernel->stub != stub; kernel = kernel->next) {
    }
    pthread_mutex_unlock(&lock);
    return kernel;
}

/* Asks the server once. */
static CUresult resolve(struct registered *kernel)
{
    struct fg_request request = {.kind = FG_KERNEL_FIND};
    struct fg_reply reply;
    CUresult r;

    if (__atomic_load_n(&kernel->number, __ATOMIC_ACQUIRE))
        return CUDA_SUCCESS;
    request.device = (uint32_t)fg_current_gpu();
    request.payload_bytes = (uint32_t)strlen(kernel->name);
    r = (CUresult)fg_call(&request, kernel->name, &reply);
    if (r == CUDA_ERROR_NOT_FOUND)
        return (CUresult)cudaErrorInvalidDeviceFunction;
    if (r)
        return r;
    kernel->argument_bytes = reply.v[1];
    __atomic_store_n(&kernel->number, reply.v[0], __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult launch(struct registered *kernel, dim3 grid, dim3 block, void **args,
                       cudaStream_t stream)
{
    struct fg_request request = {.kind = FG_LAUNCH};
    CUresult r;

    if (!kernel)
        return (CUresult)cudaErrorInvalidDeviceFunction;
    r = resolve(kernel);
    if (r)
        return r;
    request.device = (uint32_t)fg_current_gpu();
    request.a[0] = fg_stream(stream);
    request.a[1] = kernel->number;
    request.a[2] = (uint64_t)grid.x * grid.y * grid.z;
    request.a[3] = (uint64_t)block.x * block.y * block.z;
    request.payload_bytes = (uint32_t)kernel->argument_bytes;
    if (!request.a[2] || !request.a[3] || request.a[3] > 1024)
        return (CUresult)cudaErrorInvalidConfiguration;
    return (CUresult)fg_call(&request, args[0], NULL);
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    (void)shared;
    RUN(launch(find(stub), grid, block, args, stream));
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub)
{
    *kernel = (cudaKernel_t)find(stub);
    return *kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    (void)shared;
    RUN(launch((struct registered *)kernel, grid, block, args, stream));
}

/* ---- what kernels are ----------------------------------------------------------------------- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *stub)
{
    if (!find(stub))
        return runtime_result((CUresult)cudaErrorInvalidDeviceFunction);
    memset(attributes, 0, sizeof(*attributes));
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = 90;
    attributes->ptxVersion = 90;
    return cudaSuccess;
}
