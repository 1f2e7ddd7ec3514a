/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charlm's arithmetic on a GPU: each function of charlm_math.h enqueues a kernel on one stream, in
 * which gradwire's calls are ordered too, so that a step needs no synchronization of the host. A
 * CUDA call that fails ends the program. One thread.
 */
#include "client/examples/charlm_math.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#include <gradwire/cuda.h>

#include "client/examples/charlm_device.h"
#include "client/examples/charlm_kernels.h"
#include "client/examples/charlm_math_one.h"

enum { LOSSES_MAX = 1 << 22 }; /* samples of a batch (--batch x --plain) */

static cudaStream_t stream;
static int ordinal;
static double *each; /* losses of a batch */
static size_t each_room;

/* Two events around each wait of the stream, in order. */
static cudaEvent_t *events;
static size_t event_count, event_room;
static char gpu_name[256];

static void check(const char *what, int error)
{
    if (error == 0)
        return;
    fprintf(stderr, "charlm: %s on GPU %d: %s\n", what, ordinal,
            cudaGetErrorString((cudaError_t)error));
    exit(EX_SOFTWARE);
}

/* ---- device ---------------------------------------------------------------------------------- */

static void name_gpu(void)
{
    struct cudaDeviceProp properties;

    check("cudaGetDeviceProperties", (int)cudaGetDeviceProperties(&properties, ordinal));
    snprintf(gpu_name, sizeof gpu_name, "%s", properties.name);
}

int charlm_device_start(int gpu, uint32_t rank)
{
    int count = 0, error = (int)cudaGetDeviceCount(&count);

    if (error != 0 || count == 0 || gpu >= count) {
        fprintf(stderr, "charlm: GPU %d of %d: %s\n", gpu, count,
                error != 0 ? cudaGetErrorString((cudaError_t)error)
                           : "no such GPU; --gpu counts from 0");
        return EX_UNAVAILABLE;
    }
    ordinal = gpu >= 0 ? gpu : (int)rank % count;
    check("cudaSetDevice", (int)cudaSetDevice(ordinal));
    check("cudaStreamCreate", (int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    name_gpu();
    return 0;
}

void charlm_device_stop(void)
{
    math_free(each);
    each = NULL;
    each_room = 0;
    check("cudaStreamDestroy", (int)cudaStreamDestroy(stream));
}

int charlm_device_new(struct gw_device **ret_device)
{
    return gw_cuda_device_new(ordinal, ret_device);
}

void charlm_device_free(struct gw_device *device)
{
    gw_cuda_device_free(device);
}

int charlm_device_attach(gw_job *job)
{
    return gw_cuda_set_stream(job, stream);
}

static void mark(void)
{
    if (event_count == event_room) {
        event_room = event_room > 0 ? 2 * event_room : 1024;
        events = realloc(events, event_room * sizeof *events);
        if (events == NULL)
            check("events", (int)cudaErrorMemoryAllocation);
    }
    check("cudaEventCreate", (int)cudaEventCreateWithFlags(&events[event_count], 0));
    check("cudaEventRecord", (int)cudaEventRecord(events[event_count++], stream));
}

int charlm_device_wait(gw_job *job, struct gw_token token)
{
    int r;

    mark();
    r = gw_stream_wait(job, token, stream);
    mark();
    return r;
}

const char *charlm_device_name(void)
{
    return gpu_name;
}

/* The end of the run: waits for the stream. */
bool charlm_device_waited(double *ret_ns)
{
    float ms = 0.0f;

    *ret_ns = 0.0;
    check("cudaStreamSynchronize", (int)cudaStreamSynchronize(stream));
    for (size_t i = 0; i + 1 < event_count; i += 2) {
        check("cudaEventElapsedTime", (int)cudaEventElapsedTime(&ms, events[i], events[i + 1]));
        *ret_ns += (double)ms * 1e6;
    }
    for (size_t i = 0; i < event_count; i++)
        check("cudaEventDestroy", (int)cudaEventDestroy(events[i]));
    free(events);
    events = NULL;
    event_count = event_room = 0;
    return true;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *math_alloc(size_t bytes)
{
    void *memory = NULL;

    if (cudaMalloc(&memory, bytes > 0 ? bytes : 1) != cudaSuccess)
        return NULL;
    check("cudaMemsetAsync", (int)cudaMemsetAsync(memory, 0, bytes > 0 ? bytes : 1, stream));
    return memory;
}

void math_free(void *memory)
{
    if (memory == NULL)
        return;
    check("cudaStreamSynchronize", (int)cudaStreamSynchronize(stream));
    check("cudaFree", (int)cudaFree(memory));
}

/* From pageable memory the call returns when the bytes are on their way. */
void math_put(void *to, const void *from, size_t bytes)
{
    check("copy to the GPU",
          (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
}

void math_get(void *to, const void *from, size_t bytes)
{
    check("copy from the GPU",
          (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
    check("cudaStreamSynchronize", (int)cudaStreamSynchronize(stream));
}

void math_copy(float *to, const float *from, size_t count)
{
    check("copy", (int)cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyDeviceToDevice,
                                       stream));
}

void math_zero(float *values, size_t count)
{
    check("cudaMemsetAsync", (int)cudaMemsetAsync(values, 0, count * sizeof *values, stream));
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

void math_gemm(const struct math_gemm *g)
{
    struct charlm_k_gemm arg = {g->rows, g->cols,  g->depth, g->a, g->a_row, g->a_depth,
                                g->b,    g->b_row, g->first, g->c, g->c_row};

    check("gemm", charlm_launch_gemm(&arg, arg.rows * arg.cols, stream));
}

void math_transpose(const float *in, size_t rows, size_t cols, float *out)
{
    struct charlm_k_transpose arg = {in, rows, cols, out};

    check("transpose", charlm_launch_transpose(&arg, rows * cols, stream));
}

static void map(enum charlm_k_map_kind kind, float *to, const float *from, float scale,
                size_t count)
{
    struct charlm_k_map arg = {(uint64_t)kind, count, to, from, scale, 0};

    check("map", charlm_launch_map(&arg, count, stream));
}

void math_tanh(float *values, size_t count)
{
    map(CHARLM_TANH, values, NULL, 0.0f, count);
}

void math_tanh_back(float *delta, const float *y, size_t count)
{
    map(CHARLM_TANH_BACK, delta, y, 0.0f, count);
}

void math_add(float *sum, const float *values, size_t count)
{
    map(CHARLM_ADD, sum, values, 0.0f, count);
}

void math_scale(float *values, float scale, size_t count)
{
    map(CHARLM_SCALE, values, NULL, scale, count);
}

void math_to_bf16(uint16_t *to, const float *from, size_t count)
{
    struct charlm_k_bf16 arg = {(float *)(uintptr_t)from, to, count, 1};

    check("to bf16", charlm_launch_bf16(&arg, count, stream));
}

void math_from_bf16(float *to, const uint16_t *from, size_t count)
{
    struct charlm_k_bf16 arg = {to, (uint16_t *)(uintptr_t)from, count, 0};

    check("from bf16", charlm_launch_bf16(&arg, count, stream));
}

void math_embed(const struct math_samples *samples, const float *table, size_t width, float *values)
{
    struct charlm_k_embed arg = {.symbols = samples->symbols,
                                 .count = samples->count,
                                 .context = samples->context,
                                 .width = width,
                                 .table = table,
                                 .values = values};

    check("embed", charlm_launch_embed(&arg, arg.count * arg.context * width, stream));
}

void math_embed_back(const struct math_samples *samples, const float *deltas, size_t vocab,
                     size_t width, float *table)
{
    struct charlm_k_embed arg = {.symbols = samples->symbols,
                                 .count = samples->count,
                                 .context = samples->context,
                                 .vocab = vocab,
                                 .width = width,
                                 .deltas = deltas,
                                 .table_grad = table};

    check("embed back", charlm_launch_embed(&arg, vocab * width, stream));
}

/* Made by the first batch, which comes before any step. */
static void loss_room(size_t count)
{
    if (count <= each_room)
        return;
    if (count > LOSSES_MAX)
        check("losses", (int)cudaErrorMemoryAllocation);
    check("losses", (int)cudaMalloc((void **)&each, count * sizeof *each));
    each_room = count;
}

void math_loss(const struct math_samples *samples, const float *scores, size_t vocab, float *deltas,
               double *mean)
{
    struct charlm_k_loss arg = {samples->symbols, samples->count, samples->context, vocab,
                                scores,           deltas,         NULL};
    struct charlm_k_mean total;

    loss_room(samples->count);
    arg.each = each;
    check("loss", charlm_launch_loss(&arg, arg.count, stream));
    total = (struct charlm_k_mean){each, arg.count, mean};
    check("mean", charlm_launch_mean(&total, 1, stream));
}

void math_sum_rows(const float *rows, size_t count, size_t cols, float *out)
{
    struct charlm_k_sum_rows arg = {rows, count, cols, out};

    check("sum of rows", charlm_launch_sum_rows(&arg, cols, stream));
}

void math_adam(const struct math_adam *adam, uint32_t step)
{
    struct charlm_k_adam arg = {adam->params, adam->m,     adam->v, adam->grads,
                                adam->count,  0.0f, 0.0f};

    math_adam_unbias(step, &arg.unbias_m, &arg.unbias_v);
    check("adam", charlm_launch_adam(&arg, adam->count, stream));
}
