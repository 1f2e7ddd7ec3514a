/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_kernels CPU-BUILD.so [reduced]: the kernels of daemon/device/cuda/kernels.cu on GPU 0, their
 * results beside their own build for the CPU, bit by bit, and beside float64. Inputs have NaN,
 * infinities and denormals among them. The bits of a NaN that an addition makes are the
 * processor's: any NaN equals any. Exits with 1 when something differs.
 */
#include <dlfcn.h>
#include <math.h>

#include "daemon/device/cuda/kernel.h"
#include "daemon/device/cuda/kernels.h"
#include "tests/gpu/kit.h"

enum { TYPES = 3, INPUTS = 8, ROOM = 65537 + 64, CHUNKS = ROOM / 4096 + 2 };

static const char *const type_names[TYPES] = {"fp32", "fp16", "bf16"};
static const size_t type_bytes[TYPES] = {4, 2, 2};
static const double type_step[TYPES] = {0x1p-24, 0x1p-11, 0x1p-8}; /* half of the last place */
static const double type_tiny[TYPES] = {0x1p-149, 0x1p-25, 0x1p-133};
static const double type_huge[TYPES] = {0x1.fffffep127, 65504.0, 0x1.fep127};

struct memory { /* the same on both sides */
    uint8_t input[INPUTS][ROOM * 4];
    uint8_t out[ROOM * 4];
    struct gw_k_partial lanes[CHUNKS * GW_K_LANES], partials[CHUNKS];
};

static struct memory before, cpu, back;
static struct memory *gpu;
static cudaStream_t stream;
static const struct gw_kernel_entry *table;
static uint64_t cases, elements, bits_differ, outside, nans;

static uint32_t next_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void run_cpu(const char *name, const void *arg)
{
    for (const struct gw_kernel_entry *entry = table; entry->name; entry++) {
        if (strcmp(entry->name, name) == 0) {
            entry->run(arg, 0, 1);
            return;
        }
    }
    NEED(false, "no kernel %s in the CPU build", name);
}

static float value_at(const uint8_t *values, int type, uint64_t i)
{
    uint16_t half;
    uint32_t bits, size;
    float value;

    if (type == GW_K_FP32) {
        memcpy(&value, values + 4 * i, 4);
        return value;
    }
    memcpy(&half, values + 2 * i, 2);
    if (type == GW_K_BF16) {
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, 4);
        return value;
    }
    size = half & 0x7fffu;
    if (size >= 0x7c00u)
        value = size > 0x7c00u ? NAN : INFINITY;
    else
        value = ldexpf((float)(size & 0x3ffu) + (size >= 0x400u ? 1024.0f : 0.0f),
                       (size >= 0x400u ? (int)(size >> 10) - 1 : 0) - 24);
    return half & 0x8000u ? -value : value;
}

/* Mostly ordinary numbers; one in 64 is any bits at all. */
static void random_values(uint8_t *values, int type)
{
    static const uint32_t mantissa_bits[TYPES] = {23, 10, 7}, one[TYPES] = {127, 15, 127};

    for (uint64_t i = 0; i < ROOM; i++) {
        uint32_t bits = next_random();

        if (next_random() % 64 != 0) {
            uint32_t sign = bits >> 31 << (type_bytes[type] * 8 - 1);
            uint32_t mantissa = bits & ((1u << mantissa_bits[type]) - 1);
            bits = sign | (one[type] - 4 + (bits >> 24) % 8) << mantissa_bits[type] | mantissa;
        }
        memcpy(values + i * type_bytes[type], &bits, type_bytes[type]);
    }
}

static void to_gpu(void *on_gpu, const void *from, size_t bytes)
{
    CUDA(cudaMemcpyAsync(on_gpu, from, bytes, cudaMemcpyHostToDevice, stream));
}

static void take_back(void)
{
    CUDA(cudaMemcpyAsync(&back, gpu, sizeof(back), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
}

static void compare(const char *what, const uint8_t *a, const uint8_t *b, int type, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        float x = value_at(a, type, i), y = value_at(b, type, i);

        elements++;
        if (isnan(x) && isnan(y)) {
            nans++;
            continue;
        }
        if (memcmp(a + i * type_bytes[type], b + i * type_bytes[type], type_bytes[type]) == 0)
            continue;
        if (bits_differ++ < 5)
            fprintf(stderr, "%s, %s, element %llu of %llu: GPU %a, CPU %a\n", what,
                    type_names[type], (unsigned long long)i, (unsigned long long)count, (double)y,
                    (double)x);
    }
}

static void compare_partials(const struct gw_k_partial *a, const struct gw_k_partial *b,
                             uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        bool same = a[i].nonfinite == b[i].nonfinite &&
                    (memcmp(&a[i].norm, &b[i].norm, 8) == 0 ||
                     (isnan(a[i].norm) && isnan(b[i].norm)));
        if (!same && bits_differ++ < 5)
            fprintf(stderr, "partial %llu of %llu: GPU %a (%llu), CPU %a (%llu)\n",
                    (unsigned long long)i, (unsigned long long)count, b[i].norm,
                    (unsigned long long)b[i].nonfinite, a[i].norm,
                    (unsigned long long)a[i].nonfinite);
    }
}

/* n roundings of fp32 for the tree, one for the scale, one for what is added to, one to out_type.
 * */
static void beside_float64(const struct gw_k_reduce *arg, const uint8_t *out, uint64_t shift)
{
    for (uint64_t i = 0; i < arg->count; i++) {
        double sum = 0.0, size = 0.0, room, got;

        for (uint32_t k = 0; k < arg->n; k++) {
            double x = (double)value_at(before.input[k], (int)arg->in_type, shift + i);
            sum += x;
            size += fabs(x);
        }
        sum *= (double)arg->scale;
        size *= fabs((double)arg->scale);
        if (arg->accumulate) {
            double x = (double)value_at(before.out, (int)arg->out_type, i);
            sum += x;
            size += fabs(x);
        }
        got = (double)value_at(out, (int)arg->out_type, i);
        room = size * (arg->n + 2) * 0x1p-23 + fabs(sum) * type_step[arg->out_type] * 1.01 +
               2.0 * type_tiny[arg->out_type];
        if (!isfinite(size) || size > 0x1p120 || fabs(sum) + room > type_huge[arg->out_type])
            continue; /* overflows where the order of additions says */
        if (fabs(got - sum) <= room)
            continue;
        if (outside++ < 5)
            fprintf(stderr, "%u x %s to %s, element %llu: %a, in float64 %a, off by more than %a\n",
                    arg->n, type_names[arg->in_type], type_names[arg->out_type],
                    (unsigned long long)i, got, sum, room);
    }
}

static struct gw_k_reduce reduce_in(struct memory *m, const struct gw_k_reduce *like,
                                    uint64_t shift)
{
    struct gw_k_reduce arg = *like;

    for (uint32_t k = 0; k < arg.n; k++)
        arg.in[k] = m->input[k] + shift * type_bytes[arg.in_type];
    arg.out[0] = m->out;
    arg.lanes = m->lanes;
    return arg;
}

static void check_reduce(struct gw_k_reduce like, uint64_t shift)
{
    uint64_t chunks = gw_k_chunks(like.count);
    struct gw_k_reduce on_cpu = reduce_in(&cpu, &like, shift);
    struct gw_k_reduce on_gpu = reduce_in(gpu, &like, shift);
    struct gw_k_partials add = {cpu.lanes, cpu.partials, chunks, like.max};

    memcpy(&cpu, &before, sizeof(cpu));
    to_gpu(gpu, &before, sizeof(before));
    run_cpu("gw_k_reduce", &on_cpu);
    CUDA(cuda_launch_reduce(&on_gpu, 0, stream));
    run_cpu("gw_k_partials", &add);
    add = (struct gw_k_partials){gpu->lanes, gpu->partials, chunks, like.max};
    CUDA(cuda_launch_partials(&add, 0, stream));
    take_back();
    compare("sum", cpu.out, back.out, (int)like.out_type, like.count);
    compare_partials(cpu.partials, back.partials, chunks);
    NEED(memcmp(back.out + like.count * type_bytes[like.out_type],
                before.out + like.count * type_bytes[like.out_type], 64) == 0,
         "the kernel wrote behind %llu elements", (unsigned long long)like.count);
    beside_float64(&on_cpu, back.out, shift);
    cases++;
}

static void check_cast(int in, int out, uint64_t count)
{
    struct gw_k_cast arg = {cpu.input[0], cpu.out, count, (uint32_t)in, (uint32_t)out};

    memcpy(&cpu, &before, sizeof(cpu));
    to_gpu(gpu, &before, sizeof(before));
    run_cpu("gw_k_cast", &arg);
    arg.in = gpu->input[0];
    arg.out = gpu->out;
    CUDA(cuda_launch_cast(&arg, 0, stream));
    take_back();
    compare("cast", cpu.out, back.out, out, count);
    cases++;
}

static void check_types(int in, int out, bool reduced)
{
    static const uint64_t sizes[] = {4099, 65537, 0, 1, 3, 16, 17, 4095, 4096, 4097, 8191};
    static const uint32_t inputs[] = {5, 8, 1, 2, 3};
    uint32_t few = reduced ? 1 : sizeof(sizes) / sizeof(sizes[0]);

    for (uint32_t k = 0; k < INPUTS; k++)
        random_values(before.input[k], in);
    random_values(before.out, out);
    for (uint32_t i = 0; i < few; i++)
        for (uint32_t k = 0; k < (reduced ? 1 : 5); k++) {
            struct gw_k_reduce like = {.n = inputs[k],
                                       .outs = 1,
                                       .count = sizes[i],
                                       .in_type = (uint32_t)in,
                                       .out_type = (uint32_t)out,
                                       .scale = (i + k) % 2 ? 0.3333f : 1.0f};
            like.accumulate = (i + k) % 3 == 1;
            like.max = (i + k) % 5 == 2;
            check_reduce(like, (i + k) % 8);
        }
    for (uint32_t i = 0; i < few; i++)
        check_cast(in, out, sizes[i]);
}

int main(int argc, char **argv)
{
    bool reduced = argc > 2 && strcmp(argv[2], "reduced") == 0;
    void *library;

    NEED(argc > 1, "usage: gpu_kernels CPU-BUILD.so [reduced]");
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    NEED(library, "%s", dlerror());
    table = dlsym(library, GW_KERNEL_TABLE);
    NEED(table, "%s has no table of kernels", argv[1]);
    CUDA(cudaSetDevice(0));
    CUDA(cuda_load_kernels());
    stream = kit_stream();
    gpu = kit_device(sizeof(*gpu));
    for (int in = 0; in < TYPES; in++)
        for (int out = 0; out < TYPES; out++)
            check_types(in, out, reduced);
    CUDA(cudaFree(gpu));
    CUDA(cudaStreamDestroy(stream));
    printf("{\"cases\": %llu, \"elements\": %llu, \"bits_differ\": %llu, "
           "\"outside_float64\": %llu, \"nan\": %llu}\n",
           (unsigned long long)cases, (unsigned long long)elements,
           (unsigned long long)bits_differ, (unsigned long long)outside, (unsigned long long)nans);
    return bits_differ == 0 && outside == 0 ? 0 : 1;
}
