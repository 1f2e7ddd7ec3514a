/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of two processes: memory, events and words between them; one that dies. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fakegpu/cases_gpu.h"

struct pair pair_new(void (*child)(int fd))
{
    int ends[2];
    struct pair pair;

    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    pair.fd = ends[0];
    pair.pid = fork();
    EXPECT(pair.pid >= 0);
    if (!pair.pid) {
        close(ends[0]);
        child(ends[1]);
        exit(0);
    }
    close(ends[1]);
    return pair;
}

void pair_end(struct pair pair)
{
    int status = 0;

    close(pair.fd);
    EXPECT(waitpid(pair.pid, &status, 0) == pair.pid);
    EXPECT(status == 0);
}

void put(int fd, const void *bytes, size_t size)
{
    EXPECT(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
}

void get(int fd, void *bytes, size_t size)
{
    EXPECT(recv(fd, bytes, size, 0) == (ssize_t)size);
}

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

void put_fd(int fd, int passed)
{
    union control control = {0};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &passed, sizeof(int));
    EXPECT(sendmsg(fd, &message, MSG_NOSIGNAL) == 1);
}

int get_fd(int fd)
{
    union control control = {0};
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    int passed = -1;

    EXPECT(recvmsg(fd, &message, MSG_CMSG_CLOEXEC) == 1);
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return passed;
}

/* ---- legacy IPC ----------------------------------------------------------------------------- */

struct shared {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
    void *address;
};

static void ipc_child(int fd)
{
    struct shared shared;
    float *device, *to = host_new(0);
    cudaStream_t stream = stream_new();
    cudaEvent_t event;
    CUdeviceptr base;
    size_t size;

    get(fd, &shared, sizeof(shared));
    CUDA(cudaIpcOpenMemHandle((void **)&device, shared.memory,
                              cudaIpcMemLazyEnablePeerAccess));
    CUDA(cudaIpcOpenEventHandle(&event, shared.event));
    EXPECT((void *)device != shared.address);
    CUDA(cuMemGetAddressRange(&base, &size, (CUdeviceptr)(device + 10)));
    EXPECT(base == (CUdeviceptr)device && size == BYTES);
    CUDA(cudaStreamWaitEvent(stream, event, 0));
    CUDA(launch_add(device, device, COUNT, stream));
    CUDA(cudaMemcpyAsync(to, device, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    expect_values(to, 6, 2);
    CUDA(cudaIpcCloseMemHandle(device));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFreeHost(to));
    put(fd, "x", 1);
}

static void ipc(void)
{
    struct pair pair = pair_new(ipc_child);
    float *device = device_new(), *from = host_new(3);
    cudaEvent_t event = event_new(cudaEventInterprocess);
    cudaStream_t stream = stream_new();
    struct shared shared = {.address = device};
    char byte;

    CUDA(cudaMemcpyAsync(device, from, BYTES, cudaMemcpyHostToDevice, stream));
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaIpcGetMemHandle(&shared.memory, device + 3));
    CUDA(cudaIpcGetEventHandle(&shared.event, event));
    put(pair.fd, &shared, sizeof(shared));
    get(pair.fd, &byte, 1);
    CUDA(cudaMemcpy(from, device, BYTES, cudaMemcpyDeviceToHost));
    expect_values(from, 6, 2);
    pair_end(pair);
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(from));
}

/* ---- VMM ------------------------------------------------------------------------------------ */

static const CUmemAccessDesc ACCESS = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static void vmm_child(int fd)
{
    int passed = get_fd(fd);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    float *to = host_new(0);

    EXPECT(mmap(NULL, 4096, PROT_READ, MAP_SHARED, passed, 0) == MAP_FAILED);
    CUDA(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)passed,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(passed);
    CUDA(cuMemAddressReserve(&at, VMM_BYTES, 0, 0, 0));
    CUDA(cuMemMap(at, VMM_BYTES, 0, handle, 0));
    CUDA(cuMemSetAccess(at, VMM_BYTES, &ACCESS, 1));
    CUDA(cudaMemcpy(to, (void *)at, BYTES, cudaMemcpyDefault));
    expect_values(to, 4, 0);
    CUDA(cudaMemset((void *)at, 0, BYTES));
    CUDA(cuMemUnmap(at, VMM_BYTES));
    CUDA(cuMemAddressFree(at, VMM_BYTES));
    CUDA(cuMemRelease(handle));
    CUDA(cudaFreeHost(to));
}

static void vmm_pair(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = ACCESS.location};
    struct pair pair = pair_new(vmm_child);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    float *to = host_new(0);
    int fd;

    CUDA(cuMemCreate(&handle, VMM_BYTES, &prop, 0));
    CUDA(cuMemAddressReserve(&at, VMM_BYTES, 0, 0, 0));
    CUDA(cuMemMap(at, VMM_BYTES, 0, handle, 0));
    CUDA(cuMemSetAccess(at, VMM_BYTES, &ACCESS, 1));
    CUDA(launch_fill((float *)at, 4, COUNT, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    put_fd(pair.fd, fd);
    close(fd);
    pair_end(pair);
    CUDA(cudaMemcpy(to, (void *)at, BYTES, cudaMemcpyDefault));
    expect_values(to, 0, 0);
    CUDA(cuMemUnmap(at, VMM_BYTES));
    CUDA(cuMemAddressFree(at, VMM_BYTES));
    CUDA(cuMemRelease(handle));
    CUDA(cudaFreeHost(to));
}

/* ---- words on a page that both have registered ---------------------------------------------- */

static uint64_t *page_map(int fd, int protection)
{
    void *page = mmap(NULL, 4096, protection, MAP_SHARED, fd, 0);

    EXPECT(page != MAP_FAILED);
    return page;
}

static void words_child(int fd)
{
    int passed = get_fd(fd);
    uint64_t *page = page_map(passed, PROT_READ);
    cudaIpcMemHandle_t handle;
    cudaStream_t stream = stream_new();
    float *device, *to = host_new(0);
    CUdeviceptr alias;

    get(fd, &handle, sizeof(handle));
    CUDA(cudaIpcOpenMemHandle((void **)&device, handle, cudaIpcMemLazyEnablePeerAccess));
    EXPECT(cuMemHostRegister(page, 4096, 0) == CUDA_ERROR_INVALID_VALUE);
    CUDA(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_READ_ONLY));
    CUDA(cuMemHostGetDevicePointer(&alias, page, 0));
    CUDA(cuStreamWaitValue64(stream, alias + 64, 20, CU_STREAM_WAIT_VALUE_GEQ));
    CUDA(cudaMemcpyAsync(to, device, BYTES, cudaMemcpyDeviceToHost, stream));
    put(fd, "x", 1);
    CUDA(cudaStreamSynchronize(stream));
    expect_values(to, 1, 1);
    CUDA(cuMemHostUnregister(page));
    CUDA(cudaIpcCloseMemHandle(device));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFreeHost(to));
}

static void words(void)
{
    struct pair pair = pair_new(words_child);
    int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    float *device = device_new(), *from = host_new(1);
    cudaStream_t stream = stream_new();
    cudaIpcMemHandle_t handle;
    CUdeviceptr alias;
    uint64_t *page;
    char byte;

    EXPECT(fd >= 0 && ftruncate(fd, 4096) == 0);
    page = page_map(fd, PROT_READ | PROT_WRITE);
    CUDA(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    CUDA(cuMemHostGetDevicePointer(&alias, page, 0));
    CUDA(cudaIpcGetMemHandle(&handle, device));
    put_fd(pair.fd, fd);
    put(pair.fd, &handle, sizeof(handle));
    get(pair.fd, &byte, 1);
    CUDA(cudaMemcpyAsync(device, from, BYTES, cudaMemcpyHostToDevice, stream));
    CUDA(cuStreamWriteValue64(stream, alias + 64, 20, 0));
    pair_end(pair);
    EXPECT(page[8] == 20);
    CUDA(cuMemHostUnregister(page));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(from));
}

/* ---- a process that dies -------------------------------------------------------------------- */

static void dead_child(int fd)
{
    cudaEvent_t event = event_new(cudaEventInterprocess);
    cudaStream_t stream = stream_new();
    cudaIpcEventHandle_t handle;
    uint64_t *word;

    CUDA(cudaMallocHost((void **)&word, 4096));
    *word = 0;
    CUDA(cuStreamWaitValue64(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaIpcGetEventHandle(&handle, event));
    put(fd, &handle, sizeof(handle));
    pause();
}

/* A stream that waits for a dead process' event stays where it is; others go on. */
static void dead_peer(void)
{
    struct pair pair = pair_new(dead_child);
    cudaStream_t stuck = stream_new(), free_stream = stream_new();
    float *device = device_new();
    cudaIpcEventHandle_t handle;
    cudaEvent_t event;
    int status;

    get(pair.fd, &handle, sizeof(handle));
    CUDA(cudaIpcOpenEventHandle(&event, handle));
    CUDA(cudaStreamWaitEvent(stuck, event, 0));
    kill(pair.pid, SIGKILL);
    EXPECT(waitpid(pair.pid, &status, 0) == pair.pid);
    CUDA(cudaMemsetAsync(device, 0, BYTES, free_stream));
    EXPECT(until(stream_done, free_stream));
    usleep(50000);
    EXPECT(cudaStreamQuery(stuck) == cudaErrorNotReady);
    CUDA(cudaStreamDestroy(stuck));
    CUDA(cudaStreamDestroy(free_stream));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaFree(device));
}

/* ---- kernels of two processes --------------------------------------------------------------- */

#define SPANS 6
#define SPAN_NS UINT64_C(20000000)

static void spans(uint64_t *to)
{
    cudaStream_t stream = stream_new();
    uint64_t *stamps;

    CUDA(cudaMallocHost((void **)&stamps, 4096));
    for (int i = 0; i < SPANS; i++)
        CUDA(launch_span(stamps + 2 * i, SPAN_NS, stream));
    CUDA(cudaStreamSynchronize(stream));
    memcpy(to, stamps, SPANS * 2 * sizeof(*to));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFreeHost(stamps));
}

static void spans_child(int fd)
{
    uint64_t mine[SPANS * 2];

    CUDA(cudaSetDevice(0));
    put(fd, "x", 1);
    spans(mine);
    put(fd, mine, sizeof(mine));
}

/* Prints whether kernels of two processes ever ran at the same time. */
static void overlap(void)
{
    struct pair pair = pair_new(spans_child);
    uint64_t mine[SPANS * 2], other[SPANS * 2];
    bool met = false;
    char byte;

    CUDA(cudaSetDevice(0));
    get(pair.fd, &byte, 1);
    spans(mine);
    get(pair.fd, other, sizeof(other));
    for (int i = 0; i < SPANS * 2; i += 2)
        for (int j = 0; j < SPANS * 2; j += 2)
            met = met || (mine[i] < other[j + 1] && other[j] < mine[i + 1]);
    puts(met ? "overlap" : "apart");
    pair_end(pair);
}

/* ---- injected, and broken rules between processes ------------------------------------------- */

static void open_child(int fd)
{
    cudaIpcMemHandle_t handle;
    void *pointer;

    get(fd, &handle, sizeof(handle));
    CUDA(cudaSetDevice(0));
    EXPECT(cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess) ==
           cudaErrorInvalidResourceHandle);
    CUDA(cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess));
    CUDA(cudaIpcCloseMemHandle(pointer));
}

static void open_fails(void)
{
    struct pair pair = pair_new(open_child);
    float *device = device_new();
    cudaIpcMemHandle_t handle;

    CUDA(cudaIpcGetMemHandle(&handle, device));
    put(pair.fd, &handle, sizeof(handle));
    pair_end(pair);
    CUDA(cudaFree(device));
}

static void node_child(int fd)
{
    cudaIpcMemHandle_t handle;
    void *pointer;
    int count = 0;

    setenv("FAKEGPU_NODE", "1", 1);
    get(fd, &handle, sizeof(handle));
    CUDA(cudaGetDeviceCount(&count));
    EXPECT(count == 2);
    EXPECT(cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess) ==
           cudaErrorInvalidResourceHandle);
}

/* Another node has its own GPUs and cannot open this one's memory. */
static void nodes(void)
{
    struct pair pair = pair_new(node_child);
    float *device = device_new();
    cudaIpcMemHandle_t handle;

    CUDA(cudaIpcGetMemHandle(&handle, device));
    put(pair.fd, &handle, sizeof(handle));
    pair_end(pair);
    CUDA(cudaFree(device));
}

static void double_child(int fd)
{
    cudaIpcMemHandle_t handle;
    void *pointer, *again;

    get(fd, &handle, sizeof(handle));
    CUDA(cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess));
    (void)cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess);
    CUDA(cudaIpcCloseMemHandle(pointer));
}

static void bad_double_open(void)
{
    struct pair pair = pair_new(double_child);
    float *device = device_new();
    cudaIpcMemHandle_t handle;

    CUDA(cudaIpcGetMemHandle(&handle, device));
    put(pair.fd, &handle, sizeof(handle));
    pair_end(pair);
    CUDA(cudaFree(device));
}

static void early_child(int fd)
{
    cudaIpcMemHandle_t handle;
    float *pointer, *to = host_new(0);
    char byte;

    get(fd, &handle, sizeof(handle));
    CUDA(cudaIpcOpenMemHandle((void **)&pointer, handle, cudaIpcMemLazyEnablePeerAccess));
    put(fd, "x", 1);
    get(fd, &byte, 1);
    CUDA(cudaMemcpy(to, pointer, BYTES, cudaMemcpyDeviceToHost));
    EXPECT(to[5] != to[5]); /* poison */
    CUDA(cudaIpcCloseMemHandle(pointer));
    CUDA(cudaFreeHost(to));
}

static void bad_free_open(void)
{
    struct pair pair = pair_new(early_child);
    float *device = device_new();
    cudaIpcMemHandle_t handle;
    char byte;

    CUDA(cudaMemset(device, 0, BYTES));
    CUDA(cudaIpcGetMemHandle(&handle, device));
    put(pair.fd, &handle, sizeof(handle));
    get(pair.fd, &byte, 1);
    CUDA(cudaFree(device));
    put(pair.fd, "x", 1);
    pair_end(pair);
}

static void reuse_child(int fd)
{
    cudaIpcEventHandle_t handle;
    cudaStream_t stream = stream_new();
    cudaEvent_t event;
    char byte;

    get(fd, &handle, sizeof(handle));
    CUDA(cudaIpcOpenEventHandle(&event, handle));
    CUDA(cudaStreamWaitEvent(stream, event, 0));
    put(fd, "x", 1);
    get(fd, &byte, 1);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
    put(fd, "x", 1);
    get(fd, &byte, 1);
}

static void event_pair(bool again, bool destroy)
{
    struct pair pair = pair_new(reuse_child);
    cudaEvent_t event = event_new(cudaEventInterprocess);
    cudaStream_t stream = stream_new();
    cudaIpcEventHandle_t handle;
    volatile uint64_t *word;
    char byte;

    CUDA(cudaMallocHost((void **)&word, 4096));
    *word = 0;
    CUDA(cuStreamWaitValue64(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaIpcGetEventHandle(&handle, event));
    put(pair.fd, &handle, sizeof(handle));
    get(pair.fd, &byte, 1);
    if (again)
        CUDA(cudaEventRecord(event, stream));
    if (destroy)
        CUDA(cudaEventDestroy(event));
    *word = 1;
    put(pair.fd, "x", 1);
    get(pair.fd, &byte, 1);
    CUDA(cudaStreamSynchronize(stream));
    if (!destroy)
        CUDA(cudaEventDestroy(event));
    put(pair.fd, "x", 1);
    pair_end(pair);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFreeHost((void *)word));
}

static void bad_event_reuse(void)
{
    event_pair(true, false);
}

static void bad_event_free(void)
{
    event_pair(false, true);
}

static void foreign_child(int fd)
{
    float *pointer;

    get(fd, &pointer, sizeof(pointer));
    CUDA(launch_fill(pointer, 1, COUNT, NULL));
    CUDA(cudaDeviceSynchronize());
}

/* An address that means something in another process only. */
static void bad_foreign(void)
{
    struct pair pair = pair_new(foreign_child);
    float *device = device_new();

    put(pair.fd, &device, sizeof(device));
    pair_end(pair);
    CUDA(cudaFree(device));
}

const struct test_case cases_pair[] = {
    {"ipc", ipc}, {"vmm_pair", vmm_pair}, {"words", words}, {"dead_peer", dead_peer},
    {"overlap", overlap}, {"open_fails", open_fails}, {"nodes", nodes},
    {"bad_double_open", bad_double_open},
    {"bad_free_open", bad_free_open}, {"bad_event_reuse", bad_event_reuse},
    {"bad_event_free", bad_event_free}, {"bad_foreign", bad_foreign}, {0},
};
