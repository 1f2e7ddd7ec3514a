/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_cases CASE: one small program against the doubles of the driver and the runtime, for
 * test_fakegpu.py, which knows what the server has to report. Exits with 0 when the program saw
 * what it should. Here: programs of one process that keep the rules, and the helpers.
 */
#include "tests/fakegpu/cases_gpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- helpers -------------------------------------------------------------------------------- */

_Noreturn void die(int line, const char *what, int error)
{
    fprintf(stderr, "line %d: %s: %d (%s)\n", line, what, error,
            cudaGetErrorString((cudaError_t)error));
    exit(1);
}

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *function, const char *name,
                            int threads, void *tid, void *bid, dim3 *block, dim3 *grid, int *warp);

static const char stubs[4];

void kernels_register(void)
{
    static const char *const names[] = {"gw_k_test_fill", "gw_k_test_add", "gw_k_test_span",
                                        "gw_k_nobody"};
    static int binary;
    void **handle = __cudaRegisterFatBinary(&binary);

    for (int i = 0; i < 4; i++)
        __cudaRegisterFunction(handle, &stubs[i], NULL, names[i], -1, NULL, NULL, NULL, NULL,
                               NULL);
    __cudaRegisterFatBinaryEnd(handle);
}

static cudaError_t launch(int which, void *argument, cudaStream_t stream)
{
    dim3 grid = {4, 1, 1}, block = {64, 1, 1};

    return cudaLaunchKernel(&stubs[which], grid, block, &argument, 0, stream);
}

cudaError_t launch_fill(float *to, float value, uint64_t count, cudaStream_t stream)
{
    struct gw_k_test_fill argument = {to, count, value};

    return launch(0, &argument, stream);
}

cudaError_t launch_add(float *to, const float *from, uint64_t count, cudaStream_t stream)
{
    struct gw_k_test_add argument = {to, from, count};

    return launch(1, &argument, stream);
}

cudaError_t launch_span(uint64_t *stamps, uint64_t ns, cudaStream_t stream)
{
    struct gw_k_test_span argument = {stamps, ns};

    return launch(2, &argument, stream);
}

cudaError_t launch_unknown(cudaStream_t stream)
{
    int argument = 0;

    return launch(3, &argument, stream);
}

float *device_new(void)
{
    void *pointer;

    CUDA(cudaMalloc(&pointer, BYTES));
    return pointer;
}

float *host_new(float first)
{
    void *pointer;

    CUDA(cudaMallocHost(&pointer, BYTES));
    for (uint32_t i = 0; i < COUNT; i++)
        ((float *)pointer)[i] = first + (float)i;
    return pointer;
}

cudaStream_t stream_new(void)
{
    cudaStream_t stream;

    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

cudaEvent_t event_new(unsigned flags)
{
    cudaEvent_t event;

    CUDA(cudaEventCreateWithFlags(&event, flags | cudaEventDisableTiming));
    return event;
}

void expect_values(const float *host, float first, float step)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        if (host[i] == first + step * (float)i)
            continue;
        fprintf(stderr, "element %u: %g, not %g\n", i, (double)host[i],
                (double)(first + step * (float)i));
        exit(1);
    }
}

bool until(bool (*condition)(void *arg), void *arg)
{
    struct timespec nap = {.tv_nsec = 1000000};

    for (int i = 0; i < 20000; i++) {
        if (condition(arg))
            return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

bool stream_done(void *stream)
{
    return cudaStreamQuery(stream) == cudaSuccess;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void add_one(void *count)
{
    ++*(int *)count;
}

static void copies(void)
{
    float *device = device_new(), *from = host_new(5), *to = host_new(0);
    cudaStream_t a = stream_new(), b = stream_new();
    cudaEvent_t event = event_new(0);
    int count = 0;

    CUDA(cudaMemcpyAsync(device, from, BYTES, cudaMemcpyHostToDevice, a));
    CUDA(cudaEventRecord(event, a));
    CUDA(cudaStreamWaitEvent(b, event, 0));
    CUDA(cudaMemcpyAsync(to, device, BYTES, cudaMemcpyDeviceToHost, b));
    for (int i = 0; i < 10; i++)
        CUDA(cudaLaunchHostFunc(b, add_one, &count));
    CUDA(cudaStreamSynchronize(b));
    EXPECT(count == 10);
    expect_values(to, 5, 1);
    CUDA(cudaMemsetAsync(device, 0, BYTES, a));
    CUDA(cudaMemcpyAsync(to, device, BYTES, cudaMemcpyDeviceToHost, a));
    CUDA(cudaDeviceSynchronize());
    expect_values(to, 0, 0);
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(a));
    CUDA(cudaStreamDestroy(b));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(from));
    CUDA(cudaFreeHost(to));
}

/* What is not pinned goes through the library, which blocks; fresh memory is poison. */
static void pageable(void)
{
    static float data[COUNT * 700], back[COUNT * 700];
    float *device;

    CUDA(cudaMalloc((void **)&device, sizeof(data)));
    CUDA(cudaMemcpy(back, device, BYTES, cudaMemcpyDeviceToHost));
    EXPECT(back[0] != back[0] && back[COUNT - 1] != back[COUNT - 1]);
    for (uint32_t i = 0; i < COUNT * 700; i++)
        data[i] = (float)i;
    CUDA(cudaMemcpy(device, data, sizeof(data), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpyAsync(back, device, sizeof(data), cudaMemcpyDeviceToHost, NULL));
    EXPECT(!memcmp(data, back, sizeof(data)));
    EXPECT(cudaMemcpy(back, device, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    CUDA(cudaFree(device));
}

/* The NULL stream is between what was put into blocking streams before and after. */
static void null_stream(void)
{
    float *a = device_new(), *b = device_new(), *from = host_new(1), *to = host_new(0);
    cudaStream_t one, two;

    CUDA(cudaStreamCreate(&one));
    CUDA(cudaStreamCreate(&two));
    for (int i = 0; i < 20; i++) {
        CUDA(cudaMemsetAsync(to, 0, BYTES, one));
        CUDA(cudaMemcpyAsync(a, from, BYTES, cudaMemcpyHostToDevice, one));
        CUDA(cudaMemcpyAsync(b, a, BYTES, cudaMemcpyDeviceToDevice, NULL));
        CUDA(cudaMemcpyAsync(to, b, BYTES, cudaMemcpyDeviceToHost, two));
        CUDA(cudaStreamSynchronize(two));
        expect_values(to, 1, 1);
        CUDA(cudaMemsetAsync(a, 0, BYTES, cudaStreamPerThread));
        CUDA(cudaStreamSynchronize(cudaStreamPerThread));
    }
    CUDA(cudaStreamDestroy(one));
    CUDA(cudaStreamDestroy(two));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFreeHost(from));
    CUDA(cudaFreeHost(to));
}

static void kernels(void)
{
    float *a = device_new(), *b = device_new(), *to = host_new(0);
    cudaStream_t stream = stream_new();

    CUDA(launch_fill(a, 3, COUNT, stream));
    CUDA(launch_fill(b, 4, COUNT, stream));
    CUDA(launch_add(a, b, COUNT, stream));
    CUDA(launch_add(to, a, 0, stream));
    CUDA(cudaMemcpyAsync(to, a, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    expect_values(to, 7, 0);
    CUDA(launch_add(to, a, COUNT, stream)); /* pinned memory has one address */
    CUDA(cudaStreamSynchronize(stream));
    expect_values(to, 14, 0);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFreeHost(to));
}

/* The same by nvcc's own output. */
static void nvcc(void)
{
#ifdef GW_FAKEGPU_NVCC
    float *a = device_new(), *b = device_new(), *to = host_new(0);
    cudaStream_t stream = stream_new();
    struct gw_k_test_fill fill = {a, COUNT, 3};
    struct gw_k_test_add add = {a, b, COUNT};

    CUDA(test_launch_fill(&fill, stream));
    fill.to = b;
    CUDA(test_launch_fill(&fill, stream));
    CUDA(test_launch_add(&add, stream));
    CUDA(cudaMemcpyAsync(to, a, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    expect_values(to, 6, 0);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    CUDA(cudaFreeHost(to));
#else
    exit(77);
#endif
}

/* Registered memory: shared pages, private pages, and again and again. */
static void registered(void)
{
    int fd = memfd_create("page", MFD_CLOEXEC);
    _Atomic uint64_t *page;
    float *private;
    float *device = device_new();
    CUdeviceptr alias;
    cudaStream_t stream = stream_new();

    EXPECT(fd >= 0 && ftruncate(fd, 8192) == 0);
    page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    private = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(page != MAP_FAILED && private != MAP_FAILED);
    CUDA(cuMemHostRegister((void *)(page + 512), 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    CUDA(cuMemHostGetDevicePointer(&alias, (void *)(page + 512), 0));
    EXPECT(alias != (CUdeviceptr)(uintptr_t)(page + 512));
    CUDA(cuStreamWaitValue64(stream, alias, 7, CU_STREAM_WAIT_VALUE_GEQ));
    CUDA(cuStreamWriteValue64(stream, alias + 8, 9, CU_STREAM_WRITE_VALUE_DEFAULT));
    EXPECT(cudaStreamQuery(stream) == cudaErrorNotReady);
    page[512] = 8;
    EXPECT(until(stream_done, stream));
    EXPECT(page[513] == 9);
    for (uint32_t i = 0; i < COUNT; i++)
        private[i] = (float)i;
    CUDA(cudaHostRegister(private, 65536, cudaHostRegisterPortable));
    EXPECT(cudaHostRegister(private, 4096, 0) == cudaErrorHostMemoryAlreadyRegistered);
    CUDA(cudaMemcpyAsync(device, private, BYTES, cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(private + COUNT, device, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    expect_values(private + COUNT, 0, 1);
    CUDA(cudaHostUnregister(private));
    CUDA(cuMemHostUnregister((void *)(page + 512)));
    for (int i = 0; i < 500; i++) {
        CUDA(cuMemHostRegister((void *)page, 8192, 0));
        CUDA(cuMemHostUnregister((void *)page));
    }
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(device));
}

static void vmm(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr at;
    float *to = host_new(0);
    size_t granularity = 0, free_before, free_after, total;
    int fd = -1;

    CUDA(cuMemGetAllocationGranularity(&granularity, &prop,
                                       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    EXPECT(granularity == VMM_BYTES);
    CUDA(cudaMemGetInfo(&free_before, &total));
    for (int i = 0; i < 20; i++) {
        CUDA(cuMemCreate(&handle, VMM_BYTES, &prop, 0));
        CUDA(cuMemAddressReserve(&at, 2 * VMM_BYTES, 0, 0, 0));
        CUDA(cuMemMap(at, VMM_BYTES, 0, handle, 0));
        CUDA(cuMemSetAccess(at, VMM_BYTES, &access, 1));
        CUDA(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                          0));
        CUDA(cuMemRelease(handle));
        CUDA(launch_fill((float *)at, 2, COUNT, NULL));
        CUDA(cudaMemcpy(to, (void *)at, BYTES, cudaMemcpyDefault));
        expect_values(to, 2, 0);
        CUDA(cuMemUnmap(at, VMM_BYTES));
        /* The descriptor alone keeps it. */
        CUDA(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(fd);
        CUDA(cuMemMap(at + VMM_BYTES, VMM_BYTES, 0, again, 0));
        CUDA(cuMemRelease(again));
        CUDA(cuMemSetAccess(at + VMM_BYTES, VMM_BYTES, &access, 1));
        CUDA(cudaMemcpy(to, (void *)(at + VMM_BYTES), BYTES, cudaMemcpyDefault));
        expect_values(to, 2, 0);
        CUDA(cuMemUnmap(at + VMM_BYTES, VMM_BYTES));
        CUDA(cuMemAddressFree(at, 2 * VMM_BYTES));
    }
    CUDA(cudaMemGetInfo(&free_after, &total));
    EXPECT(free_before == free_after);
    CUDA(cudaFreeHost(to));
}

static void peers(void)
{
    float *a, *b, *to = host_new(0);
    cudaStream_t stream;
    int can = 0, rank = -1;

    CUDA(cudaDeviceCanAccessPeer(&can, 1, 0));
    EXPECT(can);
    CUDA(cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, 1, 0));
    EXPECT(rank == 0);
    EXPECT(cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, 1, 1) ==
           cudaErrorInvalidDevice);
    a = device_new();
    CUDA(launch_fill(a, 5, COUNT, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaSetDevice(1));
    b = device_new();
    stream = stream_new();
    CUDA(cudaMemcpyPeerAsync(b, 1, a, 0, BYTES, stream));
    CUDA(cudaDeviceEnablePeerAccess(0, 0));
    EXPECT(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CUDA(launch_add(b, a, COUNT, stream));
    CUDA(cudaMemcpyAsync(to, b, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    expect_values(to, 10, 0);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(b));
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(a));
    CUDA(cudaFreeHost(to));
}

static void by_words(void)
{
    float *a = device_new(), *from = host_new(2), *to = host_new(0);
    cudaStream_t one = stream_new(), two = stream_new();
    uint64_t *words;

    CUDA(cudaMallocHost((void **)&words, 4096));
    memset(words, 0, 4096);
    for (uint64_t i = 1; i <= 30; i++) {
        CUDA(cuStreamWaitValue64(two, (CUdeviceptr)words, i, CU_STREAM_WAIT_VALUE_GEQ));
        CUDA(cudaMemcpyAsync(to, a, BYTES, cudaMemcpyDeviceToHost, two));
        CUDA(cuStreamWriteValue64(two, (CUdeviceptr)(words + 1), i, 0));
        CUDA(cudaMemsetAsync(a, 0, BYTES, one));
        CUDA(cudaMemcpyAsync(a, from, BYTES, cudaMemcpyHostToDevice, one));
        CUDA(cuStreamWriteValue64(one, (CUdeviceptr)words, i, 0));
        CUDA(cuStreamWaitValue64(one, (CUdeviceptr)(words + 1), i, CU_STREAM_WAIT_VALUE_GEQ));
    }
    CUDA(cudaDeviceSynchronize());
    expect_values(to, 2, 1);
    CUDA(cudaStreamDestroy(one));
    CUDA(cudaStreamDestroy(two));
    CUDA(cudaFree(a));
    CUDA(cudaFreeHost(from));
    CUDA(cudaFreeHost(to));
    CUDA(cudaFreeHost(words));
}

/* The difference counts, not the order of numbers: UINT64_MAX frees nobody who waits for 5. */
static void cyclic(void)
{
    cudaStream_t stream = stream_new();
    volatile uint64_t *word;

    CUDA(cudaMallocHost((void **)&word, 4096));
    *word = UINT64_MAX;
    CUDA(cuStreamWaitValue64(stream, (CUdeviceptr)word, 5, CU_STREAM_WAIT_VALUE_GEQ));
    usleep(20000);
    EXPECT(cudaStreamQuery(stream) == cudaErrorNotReady);
    *word = INT64_MAX;
    EXPECT(until(stream_done, stream));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFreeHost((void *)word));
}

/* Streams share 8 hardware queues: the ninth stands behind the first. */
static void queues(void)
{
    cudaStream_t streams[9];
    volatile uint64_t *word;
    float *device;

    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    device = device_new();
    CUDA(cudaMallocHost((void **)&word, 4096));
    *word = 0;
    for (int i = 0; i < 9; i++)
        streams[i] = stream_new();
    CUDA(cuStreamWaitValue64(streams[0], (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CUDA(cudaMemsetAsync(device, 0, 64, streams[1]));
    CUDA(cudaMemsetAsync(device + 16, 0, 64, streams[8]));
    EXPECT(until(stream_done, streams[1]));
    usleep(20000);
    EXPECT(cudaStreamQuery(streams[8]) == cudaErrorNotReady);
    *word = 1;
    EXPECT(until(stream_done, streams[8]));
    for (int i = 0; i < 9; i++)
        CUDA(cudaStreamDestroy(streams[i]));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost((void *)word));
}

static void touch(void)
{
    float *device = device_new();
    pid_t child = fork();
    int status = 0;

    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        device[0] = 1;
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CUDA(cudaFree(device));
}

static void forked(void)
{
    float *device = device_new();
    pid_t child = fork();
    int status = 0;

    if (!child)
        _exit(cudaMemset(device, 0, 4) == cudaErrorInitializationError ? 0 : 1);
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(status == 0);
    CUDA(cudaMemset(device, 0, 4));
    CUDA(cudaFree(device));
}

static void entry_points(void)
{
    enum cudaDriverEntryPointQueryResult status;
    int version = 0, value = -1;
    void *entry = NULL;

    CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &entry, 13000, 0, &status));
    EXPECT(status == cudaDriverEntryPointSuccess && entry == (void *)cuStreamWaitValue64);
    CUDA(cudaGetDriverEntryPointByVersion("cuNobody", &entry, 13000, 0, &status));
    EXPECT(status == cudaDriverEntryPointSymbolNotFound && !entry);
    CUDA(cudaDriverGetVersion(&version));
    EXPECT(version == 13000);
    CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrCanUseHostPointerForRegisteredMem, 0));
    EXPECT(value == 0);
}

static bool begun(void *stamps)
{
    return ((volatile uint64_t *)stamps)[0] != 0;
}

/* A free returns when what ran has ended, whatever it touched. */
static void free_waits(void)
{
    float *device = device_new();
    cudaStream_t stream = stream_new();
    volatile uint64_t *stamps;

    CUDA(cudaMallocHost((void **)&stamps, 4096));
    stamps[0] = stamps[1] = 0;
    CUDA(launch_span((uint64_t *)stamps, 30000000, stream));
    EXPECT(until(begun, (void *)stamps));
    CUDA(cudaFree(device));
    EXPECT(stamps[1] != 0);
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFreeHost((void *)stamps));
}

/* Out of memory, once, is told and over. */
static void oom(void)
{
    void *pointer = NULL;

    EXPECT(cudaMalloc(&pointer, 4096) == cudaErrorMemoryAllocation);
    CUDA(cudaMalloc(&pointer, 4096));
    CUDA(cudaFree(pointer));
    EXPECT(cudaMalloc(&pointer, (size_t)1 << 50) == cudaErrorMemoryAllocation);
}

static void sticky(void)
{
    float *device;
    char line[200];

    CUDA(cudaMalloc((void **)&device, BYTES));
    snprintf(line, sizeof(line), "%s inject sticky %d", getenv("FAKEGPU_CTL"), (int)getpid());
    EXPECT(system(line) == 0);
    CUDA(launch_fill(device, 1, COUNT, NULL));
    EXPECT(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
    EXPECT(cudaFree(device) == cudaErrorLaunchFailure);
    EXPECT(launch_fill(device, 1, COUNT, NULL) == cudaErrorLaunchFailure);
}

static const struct test_case cases_good[] = {
    {"copies", copies}, {"pageable", pageable}, {"null_stream", null_stream},
    {"kernels", kernels}, {"nvcc", nvcc}, {"registered", registered}, {"vmm", vmm},
    {"peers", peers}, {"by_words", by_words}, {"cyclic", cyclic}, {"queues", queues},
    {"touch", touch}, {"forked", forked}, {"entry_points", entry_points}, {"oom", oom},
    {"free_waits", free_waits}, {"sticky", sticky}, {0},
};

int main(int argc, char **argv)
{
    const struct test_case *const all[] = {cases_good, cases_bad, cases_pair};

    kernels_register();
    for (size_t i = 0; argc == 2 && i < sizeof(all) / sizeof(all[0]); i++)
        for (const struct test_case *one = all[i]; one->name; one++)
            if (!strcmp(one->name, argv[1])) {
                one->run();
                return 0;
            }
    fputs("usage: gpu_cases CASE\n", stderr);
    return 2;
}
