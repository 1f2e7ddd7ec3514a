/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_trainer WHAT [reduced]: a job of one rank on GPU 0 ($GRADWIRE_SOCKET), beside a stopwatch;
 * nothing is judged.
 *   latency  from the call of a collective to its token
 *   overlap  a loop of matrix products here, and collectives in the engine: each alone, then both.
 *            overlap = (a + b - both) / min(a, b): 1 all of the shorter one was hidden, 0 none
 */
#include <gradwire/cuda.h>

#include "tests/gpu/kit.h"
#include "tests/gpu/work.h"

enum { FLIGHT = 32, GEMMS = 100 };

static bool reduced;
static gw_job *job;
static struct gw_device *device;
static gw_buffer *send, *recv;

static void gradwire(int error, const char *what)
{
    NEED(error >= 0, "%s: %s: %s", what, gw_error_name(error), gw_last_error());
}

enum kind { ALL_REDUCE, ALL_GATHER, KINDS };
static const char *const kind_names[KINDS] = {"all_reduce", "all_gather"};

static void start(size_t bytes)
{
    struct gw_job_options options = {.struct_size = sizeof(options), .world = 1};

    CUDA(cudaSetDevice(0));
    gradwire(gw_cuda_device_new(0, &device), "gw_cuda_device_new");
    options.device = device;
    gradwire(gw_job_create(&options, &job), "gw_job_create");
    gradwire(gw_buffer_new(job, bytes, &send), "gw_buffer_new");
    gradwire(gw_buffer_new(job, bytes, &recv), "gw_buffer_new");
}

static void stop(void)
{
    gradwire(gw_buffer_free(job, send), "gw_buffer_free");
    gradwire(gw_buffer_free(job, recv), "gw_buffer_free");
    gw_job_close(job);
    gw_cuda_device_free(device);
}

static struct gw_token submit(enum kind kind, uint64_t count, uint32_t order)
{
    struct gw_op_options options = {.struct_size = sizeof(options), .order = order};
    struct gw_slice from = {send, 0}, to = {recv, 0};
    struct gw_token token = {0};

    if (kind == ALL_REDUCE)
        gradwire(gw_all_reduce(job, from, to, count, &options, &token), "gw_all_reduce");
    else
        gradwire(gw_all_gather(job, from, to, count, &options, &token), "gw_all_gather");
    return token;
}

static void wait_for(struct gw_token token)
{
    gradwire(gw_wait(job, token, 30000000000), "gw_wait");
}

/* ---- latency --------------------------------------------------------------------------------- */

static void measure(enum kind kind, uint64_t bytes, uint32_t order, bool first)
{
    double us[200], submit_us[200];
    size_t runs = reduced ? 3 : bytes > 1 << 20 ? 30 : 200;
    char name[80];

    wait_for(submit(kind, bytes / 4, order));
    for (size_t i = 0; i < runs; i++) {
        uint64_t began_ns = kit_now_ns();
        struct gw_token token = submit(kind, bytes / 4, order);
        submit_us[i] = (double)(kit_now_ns() - began_ns) / 1e3;
        wait_for(token);
        us[i] = (double)(kit_now_ns() - began_ns) / 1e3;
    }
    printf("%s", first ? "{" : ", ");
    snprintf(name, sizeof(name), "%s_%s_%llu_us", kind_names[kind],
             order == GW_ORDER_FABRIC ? "fabric" : "exact", (unsigned long long)bytes);
    kit_print(name, us, runs);
    snprintf(name, sizeof(name), "%s_%s_%llu_call_us", kind_names[kind],
             order == GW_ORDER_FABRIC ? "fabric" : "exact", (unsigned long long)bytes);
    printf(", ");
    kit_print(name, submit_us, runs);
}

static void latency(void)
{
    static const uint64_t sizes[] = {4096, 65536, 1 << 20, 16 << 20, 64 << 20};
    uint64_t most = reduced ? sizes[1] : sizes[4];

    start(most);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && sizes[s] <= most; s++) {
        measure(ALL_REDUCE, sizes[s], GW_ORDER_EXACT, s == 0);
        measure(ALL_REDUCE, sizes[s], GW_ORDER_FABRIC, false);
        measure(ALL_GATHER, sizes[s], GW_ORDER_EXACT, false);
    }
    printf("}\n");
    stop();
}

/* ---- overlap --------------------------------------------------------------------------------- */

struct loop {
    struct gpu_k_gemm gemm;
    cudaStream_t stream;
    cudaEvent_t from, to;
    uint64_t bytes, ops;
};

static void enqueue_gemms(struct loop *loop)
{
    int count = reduced ? 3 : GEMMS;

    CUDA(cudaEventRecord(loop->from, loop->stream));
    for (int i = 0; i < count; i++)
        CUDA(gpu_launch_gemm(&loop->gemm, loop->stream));
    CUDA(cudaEventRecord(loop->to, loop->stream));
}

/* All ops, at most FLIGHT at once; milliseconds to the last one's token. */
static double run_ops(struct loop *loop, enum kind kind)
{
    struct gw_token tokens[FLIGHT] = {{0}};
    uint64_t began_ns = kit_now_ns();

    for (uint64_t i = 0; i < loop->ops; i++) {
        wait_for(tokens[i % FLIGHT]);
        tokens[i % FLIGHT] = submit(kind, loop->bytes / 4, GW_ORDER_EXACT);
    }
    for (int i = 0; i < FLIGHT; i++)
        wait_for(tokens[i]);
    return (double)(kit_now_ns() - began_ns) / 1e6;
}

static void overlap_of(struct loop *loop, enum kind kind, bool first)
{
    double gemms, gemms_beside, ops, ops_beside, both;
    uint64_t began_ns;

    enqueue_gemms(loop);
    gemms = kit_elapsed_ms(loop->from, loop->to);
    /* As many ops as take about as long. */
    loop->ops = reduced ? 3 : FLIGHT;
    run_ops(loop, kind);
    ops = run_ops(loop, kind);
    if (!reduced && ops > 0.0)
        loop->ops = (uint64_t)((double)loop->ops * gemms / ops) + 1;
    if (loop->ops > 20000)
        loop->ops = 20000;
    ops = run_ops(loop, kind);
    began_ns = kit_now_ns();
    enqueue_gemms(loop);
    ops_beside = run_ops(loop, kind);
    gemms_beside = kit_elapsed_ms(loop->from, loop->to);
    both = (double)(kit_now_ns() - began_ns) / 1e6;
    printf("%s\"%s\": {\"bytes\": %llu, \"ops\": %llu, \"gemms_ms\": %.3f, \"ops_ms\": %.3f, "
           "\"gemms_beside_ms\": %.3f, \"ops_beside_ms\": %.3f, \"both_ms\": %.3f, "
           "\"overlap\": %.3f}",
           first ? "{" : ", ", kind_names[kind], (unsigned long long)loop->bytes,
           (unsigned long long)loop->ops, gemms, ops, gemms_beside, ops_beside, both,
           (gemms + ops - both) / (gemms < ops ? gemms : ops));
}

static void overlap(void)
{
    struct loop loop = {.gemm.n = reduced ? 32 : 2048, .bytes = reduced ? 65536 : 16 << 20};
    size_t matrix = loop.gemm.n * loop.gemm.n * sizeof(float);

    start(loop.bytes);
    loop.stream = kit_stream();
    CUDA(cudaEventCreate(&loop.from));
    CUDA(cudaEventCreate(&loop.to));
    loop.gemm.a = kit_device(matrix);
    loop.gemm.b = kit_device(matrix);
    loop.gemm.c = kit_device(matrix);
    CUDA(cudaDeviceSynchronize());
    enqueue_gemms(&loop);
    (void)kit_elapsed_ms(loop.from, loop.to);
    overlap_of(&loop, ALL_REDUCE, true);
    overlap_of(&loop, ALL_GATHER, false);
    printf("}\n");
    CUDA(cudaEventDestroy(loop.from));
    CUDA(cudaEventDestroy(loop.to));
    stop();
    CUDA(cudaFree((void *)(uintptr_t)loop.gemm.a));
    CUDA(cudaFree((void *)(uintptr_t)loop.gemm.b));
    CUDA(cudaFree(loop.gemm.c));
    CUDA(cudaStreamDestroy(loop.stream));
}

int main(int argc, char **argv)
{
    reduced = argc > 2 && strcmp(argv[2], "reduced") == 0;
    if (argc > 1 && strcmp(argv[1], "latency") == 0) {
        latency();
    } else if (argc > 1 && strcmp(argv[1], "overlap") == 0) {
        overlap();
    } else {
        fprintf(stderr, "usage: gpu_trainer latency|overlap [reduced]\n");
        return 64;
    }
    return 0;
}
