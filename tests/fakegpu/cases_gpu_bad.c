/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of one process that break a rule each; what the calls answer does not matter much here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakegpu/cases_gpu.h"

/* Holds a stream until *ret_word is set to 1. */
static cudaStream_t held_stream(volatile uint64_t **ret_word)
{
    cudaStream_t stream = stream_new();

    CUDA(cudaMallocHost((void **)ret_word, 4096));
    **ret_word = 0;
    CUDA(cuStreamWaitValue64(stream, (CUdeviceptr)*ret_word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    return stream;
}

/* The context is lost: nothing can be given back, and nothing is a leak. */
static void use_after_free(void)
{
    float *device = device_new(), *other = device_new();

    CUDA(cudaFree(device));
    CUDA(launch_fill(device, 1, COUNT, NULL));
    EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    EXPECT(cudaFree(other) == cudaErrorIllegalAddress);
}

static void out_of_bounds(void)
{
    float *device = device_new(), *from = host_new(0);

    EXPECT(cudaMemcpyAsync(device + 1, from, BYTES, cudaMemcpyDefault, NULL) ==
           cudaErrorInvalidValue);
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(from));
}

/* A kernel that runs past the end of everything. */
static void overrun(void)
{
    float *device = device_new();

    CUDA(launch_fill(device, 1, 1u << 20, NULL));
    EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
}

static void no_peer_access(void)
{
    float *device = device_new();

    CUDA(cudaSetDevice(1));
    CUDA(launch_fill(device, 1, COUNT, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(device));
}

static void read_only(void)
{
    int fd = memfd_create("page", MFD_CLOEXEC);
    cudaStream_t stream = stream_new();
    CUdeviceptr alias;
    void *page;

    EXPECT(fd >= 0 && ftruncate(fd, 4096) == 0);
    page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CUDA(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_READ_ONLY));
    CUDA(cuMemHostGetDevicePointer(&alias, page, 0));
    EXPECT(cuStreamWriteValue64(stream, alias, 1, 0) != CUDA_SUCCESS);
    CUDA(cuMemHostUnregister(page));
    CUDA(cudaStreamDestroy(stream));
}

static void double_free(void)
{
    float *device = device_new();

    CUDA(cudaFree(device));
    EXPECT(cudaFree(device) != cudaSuccess);
}

static void open_own(void)
{
    float *device = device_new();
    cudaIpcMemHandle_t handle;
    void *again;

    CUDA(cudaIpcGetMemHandle(&handle, device));
    EXPECT(cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
    CUDA(cudaFree(device));
}

static void never_recorded(void)
{
    cudaEvent_t event = event_new(0);
    cudaStream_t stream = stream_new();

    CUDA(cudaStreamWaitEvent(stream, event, 0));
    CUDA(cudaStreamSynchronize(stream)); /* waits for nothing */
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
}

/* The test sets the phase. */
static void host_sync(void)
{
    cudaStream_t stream = stream_new();

    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaStreamDestroy(stream));
}

static void allocate_in_step(void)
{
    CUDA(cudaFree(device_new()));
}

/* Both wait for the same, but not for each other. */
static void unordered(void)
{
    float *device = device_new(), *from = host_new(1), *to = host_new(0);
    volatile uint64_t *word;
    cudaStream_t stream = held_stream(&word), other = stream_new(), third = stream_new();

    CUDA(cuStreamWaitValue64(other, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CUDA(cudaMemcpyAsync(device, from, BYTES, cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(to, device, BYTES, cudaMemcpyDeviceToHost, other));
    CUDA(cuStreamWriteValue64(third, (CUdeviceptr)word, 1, 0));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaStreamDestroy(other));
    CUDA(cudaStreamDestroy(third));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(from));
    CUDA(cudaFreeHost(to));
    CUDA(cudaFreeHost((void *)word));
}

/* The same of a kernel whose ranges the server knows. */
static void unordered_kernel(void)
{
    float *device = device_new(), *to = host_new(0);
    volatile uint64_t *word;
    cudaStream_t stream = held_stream(&word), other = stream_new(), third = stream_new();

    CUDA(cuStreamWaitValue64(other, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CUDA(launch_fill(device, 1, COUNT, stream));
    CUDA(cudaMemcpyAsync(to, device + COUNT - 1, 4, cudaMemcpyDeviceToHost, other));
    CUDA(cuStreamWriteValue64(third, (CUdeviceptr)word, 1, 0));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaStreamDestroy(other));
    CUDA(cudaStreamDestroy(third));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(to));
    CUDA(cudaFreeHost((void *)word));
}

static void unknown_kernel(void)
{
    EXPECT(launch_unknown(NULL) == cudaErrorInvalidDeviceFunction);
}

static void calls(void *arg)
{
    (void)arg;
    (void)cudaGetDeviceCount(&(int){0});
    (void)cudaStreamQuery(NULL);
}

static void call_in_hostfn(void)
{
    CUDA(cudaLaunchHostFunc(NULL, calls, NULL));
    CUDA(cudaDeviceSynchronize());
}

static void wrong_device(void)
{
    cudaStream_t stream = stream_new();
    cudaEvent_t event;

    CUDA(cudaSetDevice(1));
    event = event_new(0);
    EXPECT(cudaEventRecord(event, stream) != cudaSuccess);
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
}

/* The memory goes while a queued copy names it. */
static void unmap_busy(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    volatile uint64_t *word;
    cudaStream_t stream;
    CUdeviceptr at;

    CUDA(cudaSetDevice(0));
    stream = held_stream(&word);
    CUDA(cuMemCreate(&handle, VMM_BYTES, &prop, 0));
    CUDA(cuMemAddressReserve(&at, VMM_BYTES, 0, 0, 0));
    CUDA(cuMemMap(at, VMM_BYTES, 0, handle, 0));
    CUDA(cuMemSetAccess(at, VMM_BYTES, &access, 1));
    CUDA(cudaMemsetAsync((void *)at, 0, BYTES, stream));
    CUDA(cuMemUnmap(at, VMM_BYTES));
    *word = 1;
    EXPECT(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
}

static void memop_address(void)
{
    cudaStream_t stream = stream_new();
    static uint64_t word;

    EXPECT(cuStreamWriteValue64(stream, (CUdeviceptr)&word, 1, 0) != CUDA_SUCCESS);
    CUDA(cudaStreamDestroy(stream));
}

/* The test takes the operations away. */
static void no_memops(void)
{
    uint64_t *word;
    int value = -1;

    CUDA(cudaMallocHost((void **)&word, 4096));
    CUDA(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    EXPECT(value == 0);
    EXPECT(cuStreamWriteValue64(NULL, (CUdeviceptr)word, 1, 0) == CUDA_ERROR_NOT_SUPPORTED);
    CUDA(cudaFreeHost(word));
}

static void no_ipc(void)
{
    float *device = device_new();
    cudaIpcMemHandle_t handle;

    EXPECT(cudaIpcGetMemHandle(&handle, device) != cudaSuccess);
    CUDA(cudaFree(device));
}

static void stream_destroyed(void)
{
    float *device = device_new();
    cudaStream_t stream = stream_new();

    CUDA(cudaStreamDestroy(stream));
    EXPECT(cudaMemsetAsync(device, 0, BYTES, stream) != cudaSuccess);
    CUDA(cudaFree(device));
}

static void leak_memory(void)
{
    (void)device_new();
}

static void leak_stream(void)
{
    CUDA(cudaSetDevice(0));
    (void)stream_new();
    (void)event_new(0);
}

static void leak_mapping(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle handle;

    CUDA(cudaSetDevice(0));
    CUDA(cuMemHostRegister(page, 4096, 0));
    CUDA(cuMemCreate(&handle, VMM_BYTES, &prop, 0));
}

const struct test_case cases_bad[] = {
    {"use_after_free", use_after_free}, {"out_of_bounds", out_of_bounds}, {"overrun", overrun},
    {"no_peer_access", no_peer_access}, {"read_only", read_only}, {"double_free", double_free},
    {"open_own", open_own}, {"never_recorded", never_recorded}, {"host_sync", host_sync},
    {"allocate_in_step", allocate_in_step}, {"unordered", unordered},
    {"unordered_kernel", unordered_kernel},
    {"unknown_kernel", unknown_kernel}, {"call_in_hostfn", call_in_hostfn},
    {"wrong_device", wrong_device}, {"unmap_busy", unmap_busy},
    {"memop_address", memop_address}, {"no_memops", no_memops}, {"no_ipc", no_ipc},
    {"stream_destroyed", stream_destroyed}, {"leak_memory", leak_memory},
    {"leak_stream", leak_stream}, {"leak_mapping", leak_mapping}, {0},
};
