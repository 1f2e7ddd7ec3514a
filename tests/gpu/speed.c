/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_speed WHAT [reduced]: figures of GPU 0 without gradwire running; nothing is judged.
 *   info     the machine
 *   reduce   our sum over 1, 2, 4, 8 inputs beside a copy
 *   words    two processes wait in streams for words of one registered page, in turns
 *   nccl     NCCL's collectives in this process: one rank
 *   twice    two ranks of NCCL on one GPU
 */
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/device/cuda/kernels.h"
#include "tests/gpu/kit.h"

#define DRIVER(ret, name)                                                                          \
    do {                                                                                           \
        enum cudaDriverEntryPointQueryResult status_;                                              \
        CUDA(cudaGetDriverEntryPointByVersion(#name, (void **)(ret), 13000, cudaEnableDefault,     \
                                              &status_));                                          \
        NEED(status_ == cudaDriverEntryPointSuccess, "the driver has no %s", #name);               \
    } while (0)

static bool reduced;

/* ---- the machine ----------------------------------------------------------------------------- */

static void info(void)
{
    static const enum cudaDeviceAttr attributes[] = {
        cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor,
        cudaDevAttrComputeCapabilityMinor, cudaDevAttrAsyncEngineCount};
    static const char *const names[] = {"multiprocessors", "capability_major", "capability_minor",
                                        "copy_engines"};
    struct cudaDeviceProp properties;
    size_t free_bytes, total_bytes;
    int driver, runtime, count, value;

    CUDA(cudaGetDeviceCount(&count));
    CUDA(cudaSetDevice(0));
    CUDA(cudaGetDeviceProperties(&properties, 0));
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaRuntimeGetVersion(&runtime));
    CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    printf("{\"gpu\": \"%s\", \"gpus\": %d, \"cuda_driver\": \"%d.%d\", \"cuda_runtime\": "
           "\"%d.%d\", \"memory_bytes\": %zu, \"memory_free_bytes\": %zu",
           properties.name, count, driver / 1000, driver % 1000 / 10, runtime / 1000,
           runtime % 1000 / 10, total_bytes, free_bytes);
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
        if (cudaDeviceGetAttribute(&value, attributes[i], 0) == cudaSuccess)
            printf(", \"%s\": %d", names[i], value);
    printf("}\n");
}

/* ---- sums beside a copy ---------------------------------------------------------------------- */

struct sums {
    struct gw_k_reduce arg;
    struct gw_k_partials add;
    float *in[8];
    cudaStream_t stream;
    uint64_t bytes;
};

static void run_copy(struct sums *s)
{
    CUDA(cudaMemcpyAsync(s->arg.out[0], s->in[0], s->bytes, cudaMemcpyDeviceToDevice, s->stream));
}

static void run_sum(struct sums *s)
{
    CUDA(cuda_launch_reduce(&s->arg, 0, s->stream));
    if (s->arg.lanes)
        CUDA(cuda_launch_partials(&s->add, 0, s->stream));
}

/* GB/s of bytes read and written, the median of several runs. */
static double speed_of(struct sums *s, void (*run)(struct sums *), double moved_bytes)
{
    enum { RUNS = 21 };
    double ms[RUNS];
    int runs = reduced ? 3 : RUNS;
    cudaEvent_t from, to;

    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    run(s);
    for (int i = 0; i < runs; i++) {
        CUDA(cudaEventRecord(from, s->stream));
        run(s);
        CUDA(cudaEventRecord(to, s->stream));
        ms[i] = kit_elapsed_ms(from, to);
    }
    CUDA(cudaEventDestroy(from));
    CUDA(cudaEventDestroy(to));
    qsort(ms, (size_t)runs, sizeof(ms[0]), kit_compare);
    return ms[runs / 2] > 0.0 ? moved_bytes / (ms[runs / 2] * 1e6) : 0.0;
}

static void reduce(void)
{
    static const uint32_t inputs[] = {1, 2, 4, 8};
    struct sums s = {.bytes = reduced ? 1u << 16 : 256u << 20, .stream = kit_stream()};
    uint64_t count = s.bytes / 4, chunks = gw_k_chunks(count);
    struct gw_k_partial *lanes = kit_device(chunks * GW_K_LANES * sizeof(*lanes));

    CUDA(cuda_load_kernels());
    s.add = (struct gw_k_partials){lanes, kit_device(chunks * sizeof(*lanes)), chunks, 0};
    for (uint32_t i = 0; i < 8; i++)
        s.in[i] = kit_device(s.bytes);
    s.arg = (struct gw_k_reduce){.out = {kit_device(s.bytes)}, .outs = 1, .count = count,
                                 .scale = 0.5f};
    CUDA(cudaDeviceSynchronize());
    printf("{\"bytes\": %llu, \"copy_gb_per_s\": %.1f", (unsigned long long)s.bytes,
           speed_of(&s, run_copy, 2.0 * (double)s.bytes));
    for (uint32_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        double moved = (inputs[i] + 1.0) * (double)s.bytes;

        s.arg.n = inputs[i];
        for (uint32_t k = 0; k < s.arg.n; k++)
            s.arg.in[k] = s.in[k];
        s.arg.lanes = NULL;
        printf(", \"sum_%u_gb_per_s\": %.1f", s.arg.n, speed_of(&s, run_sum, moved));
        s.arg.lanes = lanes;
        printf(", \"sum_%u_with_squares_gb_per_s\": %.1f", s.arg.n, speed_of(&s, run_sum, moved));
    }
    printf("}\n");
    for (uint32_t i = 0; i < 8; i++)
        CUDA(cudaFree(s.in[i]));
    CUDA(cudaFree(s.arg.out[0]));
    CUDA(cudaFree(lanes));
    CUDA(cudaFree(s.add.partials));
    CUDA(cudaStreamDestroy(s.stream));
}

/* ---- words ----------------------------------------------------------------------------------- */

enum { PAGE = 4096, OTHER = 64 /* bytes between the two words */ };

/* One side of the turns: enqueues all of them, then waits. 0, or 1 if they did not come through. */
static int turns(void *page, bool first, uint64_t count, double *ret_ns)
{
    CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
    CUresult (*write_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
    cudaStream_t stream;
    uint64_t began_ns, now;
    void *device = NULL;
    CUdeviceptr own, other;

    CUDA(cudaSetDevice(0));
    DRIVER(&wait_value, cuStreamWaitValue64);
    DRIVER(&write_value, cuStreamWriteValue64);
    stream = kit_stream();
    CUDA(cudaHostRegister(page, PAGE, cudaHostRegisterPortable | cudaHostRegisterMapped));
    CUDA(cudaHostGetDevicePointer(&device, page, 0));
    own = (CUdeviceptr)(uintptr_t)device + (first ? 0 : OTHER);
    other = (CUdeviceptr)(uintptr_t)device + (first ? OTHER : 0);
    began_ns = kit_now_ns();
    for (uint64_t i = 1; i <= count; i++) {
        if (!first)
            CUDA(wait_value((CUstream)stream, other, i, CU_STREAM_WAIT_VALUE_GEQ));
        CUDA(write_value((CUstream)stream, own, i, CU_STREAM_WRITE_VALUE_DEFAULT));
        if (first)
            CUDA(wait_value((CUstream)stream, other, i, CU_STREAM_WAIT_VALUE_GEQ));
    }
    for (now = kit_now_ns(); cudaStreamQuery(stream) == cudaErrorNotReady; now = kit_now_ns()) {
        if (now - began_ns > 20000000000u) /* so that no stream stays blocked */
            __atomic_store_n((uint64_t *)page + (first ? OTHER / 8 : 0), INT64_MAX,
                             __ATOMIC_RELEASE);
        if (now - began_ns > 25000000000u)
            return 1;
        kit_nap();
    }
    *ret_ns = (double)(kit_now_ns() - began_ns) / (double)count;
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaHostUnregister(page));
    CUDA(cudaStreamDestroy(stream));
    return now - began_ns > 20000000000u;
}

/* The descriptor stays open: the doubles find registered memory by it. */
static void words(void)
{
    uint64_t count = reduced ? 20 : 1000;
    int fd = memfd_create("words", MFD_CLOEXEC), status = 0, failed;
    double ns = 0.0;
    void *page;
    pid_t child;

    NEED(fd >= 0 && ftruncate(fd, PAGE) == 0, "no shared page");
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(page != MAP_FAILED, "no shared page");
    child = fork();
    NEED(child >= 0, "no second process");
    if (child == 0)
        exit(turns(page, false, count, &ns));
    failed = turns(page, true, count, &ns);
    NEED(waitpid(child, &status, 0) == child, "the second process is lost");
    printf("{\"works\": %s, \"turns\": %llu, \"turn_us\": %.3f}\n",
           failed == 0 && status == 0 ? "true" : "false", (unsigned long long)count, ns / 1e3);
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

struct nccl {
    __typeof__(&ncclGetVersion) version;
    __typeof__(&ncclGetUniqueId) unique_id;
    __typeof__(&ncclCommInitRank) init;
    __typeof__(&ncclCommDestroy) destroy;
    __typeof__(&ncclCommAbort) abort;
    __typeof__(&ncclGroupStart) group_start;
    __typeof__(&ncclGroupEnd) group_end;
    __typeof__(&ncclGetErrorString) text;
    __typeof__(&ncclGetLastError) last;
    __typeof__(&ncclAllReduce) all_reduce;
};

/* At run time: the machine may have none, or only the Python wheel's. */
static struct nccl nccl_open(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    struct nccl n;

    NEED(library, "%s", dlerror());
    n.version = (__typeof__(n.version))dlsym(library, "ncclGetVersion");
    n.unique_id = (__typeof__(n.unique_id))dlsym(library, "ncclGetUniqueId");
    n.init = (__typeof__(n.init))dlsym(library, "ncclCommInitRank");
    n.destroy = (__typeof__(n.destroy))dlsym(library, "ncclCommDestroy");
    n.abort = (__typeof__(n.abort))dlsym(library, "ncclCommAbort");
    n.group_start = (__typeof__(n.group_start))dlsym(library, "ncclGroupStart");
    n.group_end = (__typeof__(n.group_end))dlsym(library, "ncclGroupEnd");
    n.text = (__typeof__(n.text))dlsym(library, "ncclGetErrorString");
    n.last = (__typeof__(n.last))dlsym(library, "ncclGetLastError");
    n.all_reduce = (__typeof__(n.all_reduce))dlsym(library, "ncclAllReduce");
    NEED(n.version && n.unique_id && n.init && n.destroy && n.abort && n.group_start &&
             n.group_end && n.text && n.last && n.all_reduce,
         "libnccl.so.2 lacks a function");
    CUDA(cudaSetDevice(0));
    return n;
}

static int nccl_version(const struct nccl *n)
{
    int version = 0;

    NEED(n->version(&version) == ncclSuccess, "NCCL tells no version");
    return version;
}

static void nccl_speed(void)
{
    static const uint64_t sizes[] = {4096, 65536, 1 << 20, 16 << 20, 64 << 20};
    struct nccl n = nccl_open();
    cudaStream_t stream = kit_stream();
    uint64_t most = reduced ? sizes[1] : sizes[4];
    float *send = kit_device(most), *recv = kit_device(most);
    ncclUniqueId id;
    ncclComm_t comm;
    double us[200];

    NEED(n.unique_id(&id) == ncclSuccess && n.init(&comm, 1, id, 0) == ncclSuccess,
         "no communicator: %s", n.last(NULL));
    printf("{\"version\": %d", nccl_version(&n));
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && sizes[s] <= most; s++) {
        size_t runs = reduced ? 3 : sizes[s] > 1 << 20 ? 30 : 200;
        char name[48];

        for (size_t i = 0; i < runs; i++) {
            uint64_t began_ns = kit_now_ns();
            NEED(n.all_reduce(send, recv, sizes[s] / 4, ncclFloat, ncclSum, comm, stream) ==
                     ncclSuccess, "ncclAllReduce: %s", n.last(comm));
            CUDA(cudaStreamSynchronize(stream));
            us[i] = (double)(kit_now_ns() - began_ns) / 1e3;
        }
        snprintf(name, sizeof(name), "all_reduce_%llu_us", (unsigned long long)sizes[s]);
        printf(", ");
        kit_print(name, us, runs);
    }
    printf("}\n");
    (void)n.destroy(comm);
    CUDA(cudaFree(send));
    CUDA(cudaFree(recv));
    CUDA(cudaStreamDestroy(stream));
}

static void nccl_twice(void)
{
    struct nccl n = nccl_open();
    ncclUniqueId id;
    ncclComm_t comm[2] = {NULL, NULL};
    ncclResult_t result;

    NEED(n.unique_id(&id) == ncclSuccess, "ncclGetUniqueId: %s", n.last(NULL));
    (void)n.group_start();
    (void)n.init(&comm[0], 2, id, 0);
    (void)n.init(&comm[1], 2, id, 1);
    result = n.group_end();
    printf("{\"version\": %d, \"allowed\": %s, \"answer\": \"%s\"}\n", nccl_version(&n),
           result == ncclSuccess ? "true" : "false", n.text(result));
    fflush(stdout);
    for (int i = 0; i < 2; i++)
        if (comm[i])
            (void)n.abort(comm[i]);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"info", info}, {"reduce", reduce}, {"words", words}, {"nccl", nccl_speed},
               {"twice", nccl_twice}};

    reduced = argc > 2 && strcmp(argv[2], "reduced") == 0;
    for (size_t i = 0; argc > 1 && i < sizeof(all) / sizeof(all[0]); i++) {
        if (strcmp(argv[1], all[i].name) == 0) {
            all[i].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: gpu_speed info|reduce|words|nccl|twice [reduced]\n");
    return 64;
}
