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
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include <gradwire/cuda.h>

#include "client/examples/charlm_device.h"
#include "client/examples/charlm_kernels.h"
#include "client/examples/charlm_math_one.h"

enum {
    LOSSES_MAX = 1 << 22, /* samples of a batch (--batch x --plain) */
    PUTS = 16,            /* on their way at once */
    PUT_BYTES = 1 << 16,  /* of one */
};

static cudaStream_t stream;
static int ordinal;
static const struct gw_cuda_verdict *verdict; /* of the job */
static double *each;                          /* losses of a batch */
static size_t each_room;

/* Points of the stream, in order. Waits stand between two of them. */
struct point {
    cudaEvent_t event;
    uint64_t *ns; /* who wants to know; NULL: the begin or end of a wait, by turns */
};
static struct point *points;
static size_t point_count, point_room;
static double waited_ns;
static char gpu_name[256];

/* Pinned memory, for a copy from any other may wait for the stream. */
static struct put {
    uint8_t *bytes;
    cudaEvent_t copied;
} put_slots[PUTS];
static uint32_t next_put;

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
    for (uint32_t i = 0; i < PUTS; i++) {
        check("pinned memory", (int)cudaMallocHost((void **)&put_slots[i].bytes, PUT_BYTES));
        check("cudaEventCreate",
              (int)cudaEventCreateWithFlags(&put_slots[i].copied, cudaEventDisableTiming));
        check("cudaEventRecord", (int)cudaEventRecord(put_slots[i].copied, stream));
    }
    name_gpu();
    return 0;
}

static void drop_points(void)
{
    for (size_t i = 0; i < point_count; i++)
        check("cudaEventDestroy", (int)cudaEventDestroy(points[i].event));
    free(points);
    points = NULL;
    point_count = point_room = 0;
}

void charlm_device_stop(void)
{
    math_free(each);
    each = NULL;
    each_room = 0;
    check("cudaStreamSynchronize", (int)cudaStreamSynchronize(stream));
    drop_points(); /* of waits after the end, or of a run that failed */
    for (uint32_t i = 0; i < PUTS; i++) {
        check("cudaEventDestroy", (int)cudaEventDestroy(put_slots[i].copied));
        check("cudaFreeHost", (int)cudaFreeHost(put_slots[i].bytes));
    }
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

int charlm_device_sealed(gw_job *job)
{
    return gw_cuda_verdict_ptr(job, &verdict);
}

static void add_point(uint64_t *ns)
{
    struct point *point;

    if (point_count == point_room) {
        point_room = point_room > 0 ? 2 * point_room : 1024;
        points = realloc(points, point_room * sizeof *points);
        if (points == NULL)
            check("events", (int)cudaErrorMemoryAllocation);
    }
    point = &points[point_count++];
    point->ns = ns;
    check("cudaEventCreate", (int)cudaEventCreateWithFlags(&point->event, 0));
    check("cudaEventRecord", (int)cudaEventRecord(point->event, stream));
}

int charlm_device_wait(gw_job *job, struct gw_token token)
{
    int r;

    add_point(NULL);
    r = gw_stream_wait(job, token, stream);
    add_point(NULL);
    return r;
}

int charlm_device_norm(gw_job *job, double *to)
{
    (void)job;
    check("copy of the norm",
          (int)cudaMemcpyAsync(to, &verdict->norm, sizeof *to, cudaMemcpyDeviceToDevice, stream));
    return 0;
}

void charlm_device_stamp(uint64_t *ret_ns)
{
    add_point(ret_ns);
}

/* Times are added up from point to point, for an event's own are floats. */
void charlm_device_settle(void)
{
    double now_ns = 0.0, began_ns = 0.0;
    bool waits = false;
    float ms = 0.0f;

    check("cudaStreamSynchronize", (int)cudaStreamSynchronize(stream));
    for (size_t i = 0; i < point_count; i++) {
        const struct point *point = &points[i];

        if (i > 0)
            check("cudaEventElapsedTime",
                  (int)cudaEventElapsedTime(&ms, points[i - 1].event, point->event));
        now_ns += (double)ms * 1e6;
        if (point->ns != NULL) {
            *point->ns = (uint64_t)now_ns;
            continue;
        }
        waited_ns += waits ? now_ns - began_ns : 0.0;
        began_ns = now_ns;
        waits = !waits;
    }
    drop_points();
}

const char *charlm_device_name(void)
{
    return gpu_name;
}

bool charlm_device_waited(double *ret_ns)
{
    *ret_ns = waited_ns;
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

/* What has no room in pinned memory is set-up. A put is long over when its turn comes again: a rank
 * waits for the step before. */
void math_put(void *to, const void *from, size_t bytes)
{
    const struct timespec pause = {0, 50000};
    struct put *put = &put_slots[next_put++ % PUTS];

    if (bytes > PUT_BYTES) {
        check("copy to the GPU",
              (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
        return;
    }
    while (cudaEventQuery(put->copied) == cudaErrorNotReady)
        nanosleep(&pause, NULL);
    memcpy(put->bytes, from, bytes);
    check("copy to the GPU",
          (int)cudaMemcpyAsync(to, put->bytes, bytes, cudaMemcpyHostToDevice, stream));
    check("cudaEventRecord", (int)cudaEventRecord(put->copied, stream));
}

void math_get(void *to, const void *from, size_t bytes)
{
    check("copy from the GPU",
          (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
    check("cudaStreamSynchronize", (int)cudaStreamSynchronize(stream));
}

void math_copy(float *to, const float *from, size_t count)
{
    check("copy",
          (int)cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyDeviceToDevice, stream));
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
    struct charlm_k_loss arg = {
        samples->symbols, samples->count, samples->context, vocab, scores, deltas, NULL};
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
    struct charlm_k_adam arg = {adam->params, adam->m, adam->v, adam->grads,
                                adam->count,  0.0f,    0.0f};

    math_adam_unbias(step, &arg.unbias_m, &arg.unbias_v);
    check("adam", charlm_launch_adam(&arg, adam->count, stream));
}
