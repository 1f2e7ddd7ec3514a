/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the cuda device: C that nvcc (C++) and the C compiler take alike, through kernel.h.
 * No state; touch only what their argument points to. What bits are promised, kernels.h says.
 *
 * Element i of a chunk belongs to lane i % 16, and a lane to one thread: so squares are added in
 * order, and neighbours in a warp read neighbours in memory. Without squares, elements are dealt
 * over all threads. GROUP elements are read before one is stored, for as many loads on their way.
 */
#include "daemon/device/cuda/kernels.h"

#include <math.h>

#include "daemon/device/cuda/kernel.h"
#ifndef __CUDACC__
#include "daemon/device/host/kernels.h"
#include "proto/limits.h"
#include "proto/shm.h"
#endif

#define GROUP 4u

/* ---- halves: by integers, so that both builds have the same bits ----------------------------- */

/* What is shifted out of `bits`, `shift` < 32, decides: to nearest, ties to even. */
GW_DEVICE uint32_t round_shift(uint32_t bits, uint32_t shift)
{
    uint32_t kept = bits >> shift;
    uint32_t rest = bits & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1u);

    return kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u);
}

/* A NaN keeps its sign and upper payload, and becomes quiet. */
GW_DEVICE uint16_t to_bf16(float value)
{
    uint32_t bits = gw_k_bits(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x0040u);
    return (uint16_t)round_shift(bits, 16); /* a carry out of the mantissa is the next exponent */
}

GW_DEVICE float from_bf16(uint16_t half)
{
    return gw_k_float((uint32_t)half << 16);
}

/* fp32 has exponent bias 127 and 23 bits behind the point, fp16 15 and 10. */
GW_DEVICE uint16_t to_fp16(float value)
{
    uint32_t bits = gw_k_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    uint32_t exponent = size >> 23;

    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x1ffu));
    if (size >= 0x47800000u) /* 2^16 and up; what lies below rounds up to infinity by itself */
        return (uint16_t)(sign | 0x7c00u);
    if (exponent >= 113u) /* 2^-14 and up: normal */
        return (uint16_t)(sign | (round_shift(size, 13) - (112u << 10)));
    if (exponent < 102u) /* below 2^-25, half of the smallest */
        return (uint16_t)sign;
    /* Denormal, in units of 2^-24: the mantissa with its leading 1 is in units of 2^(exponent-150).
     * A carry into the exponent is the smallest normal number. */
    return (uint16_t)(sign | round_shift((size & 0x7fffffu) | 0x800000u, 126u - exponent));
}

GW_DEVICE float from_fp16(uint16_t half)
{
    uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
    uint32_t exponent = (uint32_t)half >> 10 & 0x1fu;
    uint32_t mantissa = (uint32_t)half & 0x3ffu;

    if (exponent == 0x1fu)
        return gw_k_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return gw_k_float(sign | (((exponent + 112u) << 23) | mantissa << 13));
    /* Denormal: mantissa * 2^-24, which is exact. */
    return gw_k_float(sign | gw_k_bits((float)mantissa * 5.9604644775390625e-8f));
}

/* Reading and decoding apart: several reads can be on their way at once. 0 decodes to 0. */
GW_DEVICE uint32_t read_raw(const void *from, uint32_t type, uint64_t at)
{
    return type == GW_K_FP32 ? ((const uint32_t *)from)[at] : ((const uint16_t *)from)[at];
}

GW_DEVICE float decode(uint32_t type, uint32_t raw)
{
    if (type == GW_K_FP16)
        return from_fp16((uint16_t)raw);
    return type == GW_K_BF16 ? from_bf16((uint16_t)raw) : gw_k_float(raw);
}

GW_DEVICE void write_as(void *to, uint32_t type, uint64_t at, float value)
{
    if (type == GW_K_FP16)
        ((uint16_t *)to)[at] = to_fp16(value);
    else if (type == GW_K_BF16)
        ((uint16_t *)to)[at] = to_bf16(value);
    else
        ((float *)to)[at] = value;
}

/* What reading back gives. */
GW_DEVICE float rounded_to(uint32_t type, float value)
{
    if (type == GW_K_FP16)
        return from_fp16(to_fp16(value));
    return type == GW_K_BF16 ? from_bf16(to_bf16(value)) : value;
}

/* ---- reduce ---------------------------------------------------------------------------------- */

/* ((0+1)+(2+3))+((4+5)+(6+7)) of the first n, 1 <= n <= 8, an odd last one passing up. */
GW_DEVICE float tree8(const float value[8], uint32_t n)
{
    float a = n > 1 ? value[0] + value[1] : value[0];
    float b = n > 3 ? value[2] + value[3] : value[2];
    float c = n > 5 ? value[4] + value[5] : value[4];
    float d = n > 7 ? value[6] + value[7] : value[6];
    float left = n > 2 ? a + b : a;
    float right = n > 6 ? c + d : c;

    return n > 4 ? left + right : left;
}

/* Of GROUP elements at once; scalars, as an array that is indexed would not be registers. */
struct sums {
    float at[GROUP];
};

GW_DEVICE struct sums plus(struct sums a, struct sums b)
{
    struct sums sum;

    GW_UNROLL
    for (uint32_t e = 0; e < GROUP; e++)
        sum.at[e] = a.at[e] + b.at[e];
    return sum;
}

/* Inputs [first, first + n), n <= 8, at the elements at, at + step, ... */
GW_DEVICE struct sums sum8(const struct gw_k_reduce *arg, uint32_t type, uint32_t first, uint32_t n,
                           uint64_t at, uint64_t step, uint32_t elements)
{
    uint32_t raw[GROUP][8] = {{0}};
    struct sums sum = {{0}};

    GW_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const void *from = i < n ? arg->in[first + i] : (const void *)0;
        GW_UNROLL
        for (uint32_t e = 0; e < elements; e++)
            raw[e][i] = from ? read_raw(from, type, at + e * step) : 0;
    }
    GW_UNROLL
    for (uint32_t e = 0; e < elements; e++) {
        float value[8];
        GW_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            value[i] = rounded_to(arg->round_type, decode(type, raw[e][i]));
        sum.at[e] = tree8(value, n);
    }
    return sum;
}

/* Aligned blocks of eight are complete subtrees (the last may be smaller: it passes up as it is).
 * The tree goes on over at most eight of them: a binary counter joins neighbours of equal size, and
 * what is left at the end is joined from the right. */
GW_DEVICE struct sums sum64(const struct gw_k_reduce *arg, uint32_t type, uint64_t at,
                            uint64_t step, uint32_t elements)
{
    uint32_t blocks = (arg->n + 7u) / 8u;
    struct sums one = {{0}}, two = {{0}}, four = {{0}}, sum = {{0}};

    GW_NO_UNROLL
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t rest = arg->n - b * 8u;
        sum = sum8(arg, type, b * 8u, rest < 8u ? rest : 8u, at, step, elements);
        if (b % 2 == 0)
            one = sum;
        else if (b % 4 == 1)
            two = plus(one, sum);
        else if (b == 3)
            four = plus(two, plus(one, sum));
        else
            sum = plus(four, plus(two, plus(one, sum)));
    }
    if (blocks == 8)
        return sum;
    if (blocks & 1u)
        sum = one;
    if (blocks & 2u)
        sum = blocks & 1u ? plus(two, sum) : two;
    if (blocks & 4u)
        sum = blocks & 3u ? plus(four, sum) : four;
    return sum;
}

struct lane {
    double norm;
    uint64_t nonfinite;
};

GW_DEVICE uint64_t double_bits(double value)
{
#ifdef __CUDACC__
    return (uint64_t)__double_as_longlong(value);
#else
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
#endif
}

/* Of numbers that are not negative, and of NaNs, which win. */
GW_DEVICE double larger(double a, double b)
{
    return double_bits(a) > double_bits(b) ? a : b;
}

GW_DEVICE void finish_element(const struct gw_k_reduce *arg, uint64_t at, float sum,
                              struct lane *lane)
{
    float value = sum * arg->scale;

    if (arg->accumulate)
        value = decode(arg->out_type, read_raw(arg->out[0], arg->out_type, at)) + value;
    for (uint32_t i = 0; i < arg->outs; i++)
        write_as(arg->out[i], arg->out_type, at, value);
    value = rounded_to(arg->out_type, value);
    if (arg->max)
        lane->norm = larger(lane->norm, (double)gw_k_float(gw_k_bits(value) & 0x7fffffffu));
    else
        lane->norm = lane->norm + (double)value * (double)value;
    lane->nonfinite += (gw_k_bits(value) & 0x7f800000u) == 0x7f800000u;
}

/* Elements at, at + step, ... below end. Inlined with a constant in_type: code for each. */
GW_DEVICE void reduce_run(const struct gw_k_reduce *arg, uint32_t in_type, uint64_t at,
                          uint64_t step, uint64_t end, struct lane *lane)
{
    for (; at < end && end - at > (GROUP - 1u) * step; at += GROUP * step) {
        struct sums sum = sum64(arg, in_type, at, step, GROUP);
        GW_UNROLL
        for (uint32_t i = 0; i < GROUP; i++)
            finish_element(arg, at + i * step, sum.at[i], lane);
    }
    for (; at < end; at += step) {
        struct sums sum = sum64(arg, in_type, at, step, 1);
        finish_element(arg, at, sum.at[0], lane);
    }
}

GW_DEVICE void reduce_some(const struct gw_k_reduce *arg, uint64_t at, uint64_t step, uint64_t end,
                           struct lane *lane)
{
    if (arg->in_type == GW_K_FP32)
        reduce_run(arg, GW_K_FP32, at, step, end, lane);
    else if (arg->in_type == GW_K_FP16)
        reduce_run(arg, GW_K_FP16, at, step, end, lane);
    else
        reduce_run(arg, GW_K_BF16, at, step, end, lane);
}

GW_KERNEL(gw_k_reduce)
{
    uint64_t pieces = gw_k_chunks(arg->count) * GW_K_LANES;
    uint64_t last = arg->first + arg->count;
    struct lane lane = {0, 0};

    if (!arg->lanes) {
        reduce_some(arg, arg->first + gw_k_index(), gw_k_count(), last, &lane);
        return;
    }
    for (uint64_t i = gw_k_index(); i < pieces; i += gw_k_count()) {
        uint64_t begin = arg->first + i / GW_K_LANES * GW_K_CHUNK;
        uint64_t end = last - begin < GW_K_CHUNK ? last : begin + GW_K_CHUNK;
        lane.norm = 0;
        lane.nonfinite = 0;
        reduce_some(arg, begin + i % GW_K_LANES, GW_K_LANES, end, &lane);
        arg->lanes[i].norm = lane.norm;
        arg->lanes[i].nonfinite = lane.nonfinite;
    }
}

GW_DEVICE double joined(double a, double b, uint64_t max)
{
    return max ? larger(a, b) : a + b;
}

GW_KERNEL(gw_k_partials)
{
    for (uint64_t i = gw_k_index(); i < arg->chunks; i += gw_k_count()) {
        const struct gw_k_partial *from = arg->lanes + i * GW_K_LANES;
        double sum[GW_K_LANES];
        uint64_t nonfinite = 0;

        GW_UNROLL
        for (uint32_t j = 0; j < GW_K_LANES; j++) {
            sum[j] = from[j].norm;
            nonfinite += from[j].nonfinite;
        }
        GW_UNROLL
        for (uint32_t j = 0; j < 8; j++)
            sum[j] = joined(sum[2 * j], sum[2 * j + 1], arg->max);
        GW_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            sum[j] = joined(sum[2 * j], sum[2 * j + 1], arg->max);
        arg->partials[i].norm = joined(joined(sum[0], sum[1], arg->max),
                                       joined(sum[2], sum[3], arg->max), arg->max);
        arg->partials[i].nonfinite = nonfinite;
    }
}

/* ---- moving ---------------------------------------------------------------------------------- */

GW_KERNEL(gw_k_fill)
{
    uint64_t words = arg->bytes / 4u;

    for (uint64_t i = gw_k_index(); i < words; i += gw_k_count())
        ((uint32_t *)arg->to)[i] = arg->word;
    for (uint64_t i = words * 4u + gw_k_index(); i < arg->bytes; i += gw_k_count())
        ((uint8_t *)arg->to)[i] = (uint8_t)(arg->word >> (i % 4u * 8u));
}

/* The bits of the same type are copied, NaN and all. */
GW_KERNEL(gw_k_cast)
{
    for (uint64_t i = gw_k_index(); i < arg->count; i += gw_k_count()) {
        if (arg->in_type != arg->out_type)
            write_as(arg->out, arg->out_type, i,
                     decode(arg->in_type, read_raw(arg->in, arg->in_type, i)));
        else if (arg->in_type == GW_K_FP32)
            ((uint32_t *)arg->out)[i] = ((const uint32_t *)arg->in)[i];
        else
            ((uint16_t *)arg->out)[i] = ((const uint16_t *)arg->in)[i];
    }
}

/* ---- verdict --------------------------------------------------------------------------------- */

#define VERDICT_WORDS 5u
#define AHEAD 8u /* partials that are read before the first of them is added */

struct step_sum {
    double norm;
    uint32_t nonfinite, first_bucket;
};

GW_DEVICE void add_bucket(struct step_sum *sum, const struct gw_k_bucket *bucket, uint32_t index,
                          uint64_t max)
{
    const struct gw_k_partial *partials = bucket->partials;
    uint64_t nonfinite = 0, i = 0;

    for (; bucket->chunks - i >= AHEAD; i += AHEAD) {
        double norm[AHEAD];
        GW_UNROLL
        for (uint32_t j = 0; j < AHEAD; j++) {
            norm[j] = partials[i + j].norm;
            nonfinite |= partials[i + j].nonfinite;
        }
        GW_UNROLL
        for (uint32_t j = 0; j < AHEAD; j++)
            sum->norm = joined(sum->norm, norm[j], max);
    }
    for (; i < bucket->chunks; i++) {
        sum->norm = joined(sum->norm, partials[i].norm, max);
        nonfinite |= partials[i].nonfinite;
    }
    if (nonfinite && !sum->nonfinite) {
        sum->nonfinite = 1;
        sum->first_bucket = index;
    }
}

/* The words of struct gw_shm_verdict, whose members are two halves each where they are small. */
GW_DEVICE void verdict_words(const struct gw_k_verdict *arg, const struct step_sum *sum,
                             uint64_t words[VERDICT_WORDS])
{
    double norm = (double)(float)(arg->max ? sum->norm : sqrt(sum->norm));
    double clip = arg->clip_norm > 0 ? arg->clip_norm / (norm + 1e-6) : 1.0;
    float factor = sum->nonfinite ? 0.0f : clip < 1 ? (float)clip : 1.0f;

    words[0] = arg->step;
    words[1] = double_bits(norm);
    words[2] = gw_k_bits(factor) | (uint64_t)sum->nonfinite << 32;
    words[3] = sum->first_bucket | (uint64_t)arg->used_params << 32;
    words[4] = arg->digest;
}

GW_KERNEL(gw_k_verdict)
{
    struct step_sum sum = {0, 0, UINT32_MAX};
    uint64_t words[VERDICT_WORDS];

    for (uint32_t to = 0; to < 2; to++)
        for (uint64_t i = gw_k_index(); arg->bits[to] && i < arg->bits_bytes; i += gw_k_count())
            gw_k_store_byte(&arg->bits[to][i], arg->used_bits[i]);
    if (gw_k_index() != 0)
        return;
    for (uint32_t b = 0; b < arg->bucket_count; b++)
        add_bucket(&sum, &arg->buckets[b], b, arg->max);
    verdict_words(arg, &sum, words);
    /* A reader may look at any time: word by word; the step slot's value publishes. */
    for (uint32_t i = 0; i < 2; i++)
        if (arg->verdict[i])
            for (uint32_t j = 0; j < VERDICT_WORDS; j++)
                gw_k_store(&arg->verdict[i][j], words[j]);
}

/* ---- time, signals --------------------------------------------------------------------------- */

GW_DEVICE uint64_t now_ns(int64_t clock_ns)
{
    return gw_k_clock() + (uint64_t)clock_ns;
}

GW_DEVICE int any_aborted(const uint64_t *aborted, uint64_t ranks)
{
    return aborted && (gw_k_load(aborted) & ranks) != 0;
}

GW_KERNEL(gw_k_stamp)
{
    if (gw_k_index() == 0)
        gw_k_store(arg->at, now_ns(arg->clock_ns));
}

GW_KERNEL(gw_k_begin)
{
    uint64_t now = now_ns(arg->clock_ns);

    if (gw_k_index() != 0)
        return;
    /* A chained work that was ready before the last one ended goes on with its run. */
    if (!arg->chained || arg->ready_ns > arg->lane->last_done_ns)
        arg->lane->run_started_ns = now;
    gw_k_store(&arg->stamps->started_ns, now);
    gw_k_store(&arg->stamps->run_started_ns, arg->lane->run_started_ns);
    gw_k_store(&arg->stamps->done_ns, 0);
}

GW_KERNEL(gw_k_end)
{
    uint64_t now = now_ns(arg->clock_ns);

    if (gw_k_index() != 0)
        return;
    arg->lane->last_done_ns = now;
    gw_k_store(&arg->stamps->done_ns, now);
    gw_k_fence(); /* other GPUs read it once the work's done word is up */
}

#define NAP_MAX_NS 20000u

GW_KERNEL(gw_k_hold)
{
    uint64_t until, before, now;

    if (gw_k_index() != 0)
        return;
    do {
        now = now_ns(arg->clock_ns);
        before = gw_k_load(arg->link_free_ns);
        until = (before > now ? before : now) + arg->hold_ns;
    } while (!gw_k_swap(arg->link_free_ns, before, until));
    for (; now < until && !any_aborted(arg->aborted, arg->ranks); now = now_ns(arg->clock_ns))
        gw_k_nap(until - now < NAP_MAX_NS ? (uint32_t)(until - now) : NAP_MAX_NS);
}

GW_DEVICE uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

GW_DEVICE uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

GW_DEVICE void join_parts(const struct gw_k_finish *arg, struct gw_k_stamps *all)
{
    all->started_ns = all->run_started_ns = UINT64_MAX;
    all->done_ns = 0;
    for (uint32_t i = 0; i < arg->parts; i++) {
        const struct gw_k_stamps *part = &arg->stamps[i];
        all->started_ns = earlier(all->started_ns, gw_k_load(&part->started_ns));
        all->run_started_ns = earlier(all->run_started_ns, gw_k_load(&part->run_started_ns));
        all->done_ns = later(all->done_ns, gw_k_load(&part->done_ns));
    }
    if (all->done_ns == 0)
        all->done_ns = now_ns(arg->clock_ns);
}

/* Signals of one slot from two streams may meet out of order; a timeline only rises. */
GW_DEVICE void raise_slot(const struct gw_k_finish *arg, const struct gw_k_signal *signal,
                          const struct gw_k_stamps *all)
{
    struct gw_k_slot *slot = signal->slot;

    if (gw_k_load(&slot->value) < signal->value) {
        gw_k_store(&slot->ready_ns, arg->ready_ns);
        gw_k_store(&slot->started_ns, all->run_started_ns);
        gw_k_store(&slot->done_ns, all->done_ns);
        gw_k_store(&slot->offset, signal->offset);
        gw_k_fence();
        gw_k_raise(&slot->value, signal->value);
    }
    gw_k_fence();
    if (signal->mirror)
        gw_k_raise(signal->mirror, signal->value);
}

/* One thread per signal: the fence of one does not wait for the others'. */
GW_KERNEL(gw_k_finish)
{
    struct gw_k_stamps all;

    join_parts(arg, &all);
    if (arg->result && gw_k_index() == 0) {
        gw_k_store(&arg->result->started_ns, all.started_ns);
        gw_k_store(&arg->result->run_started_ns, all.run_started_ns);
        gw_k_store(&arg->result->done_ns, all.done_ns);
    }
    for (uint64_t i = gw_k_index(); i < arg->signals; i += gw_k_count())
        if (!any_aborted(arg->aborted, arg->ranks))
            raise_slot(arg, &arg->signal[i], &all);
    gw_k_fence();
}

/* ---- how they are found ---------------------------------------------------------------------- */

#ifdef __CUDACC__

#define BLOCKS_MAX 65535u

/* `work`: threads that have something to do. */
static int launch(const void *kernel, const void *arg, uint64_t work, uint64_t threads,
                  void *stream)
{
    void *args[1] = {(void *)arg};
    uint64_t blocks, block;

    if (work == 0)
        return (int)cudaSuccess;
    if (threads != 0 && threads < work)
        work = threads;
    block = work < GW_K_BLOCK ? work : GW_K_BLOCK;
    blocks = (work + block - 1) / block;
    if (blocks > BLOCKS_MAX)
        blocks = BLOCKS_MAX;
    return (int)cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3((unsigned)block), args, 0,
                                 (cudaStream_t)stream);
}

#define LAUNCH(name, work)                                                                         \
    extern "C" int cuda_launch_##name(const struct gw_k_##name *arg, uint64_t threads,             \
                                      void *stream)                                                \
    {                                                                                              \
        return launch((const void *)gw_k_##name, arg, work, threads, stream);                      \
    }

LAUNCH(reduce, arg->lanes ? gw_k_chunks(arg->count) * GW_K_LANES : (arg->count + GROUP - 1) / GROUP)
LAUNCH(partials, arg->chunks)
LAUNCH(fill, (arg->bytes + 3) / 4)
LAUNCH(cast, arg->count)
LAUNCH(verdict, arg->bits_bytes > 1 ? arg->bits_bytes : 1)
LAUNCH(stamp, 1)
LAUNCH(begin, 1)
LAUNCH(end, 1)
LAUNCH(hold, 1)
LAUNCH(finish, arg->signals > 1 ? arg->signals : 1)

/* Asking for a kernel's attributes loads it. */
extern "C" int cuda_load_kernels(void)
{
    static const void *const kernels[] = {
        (const void *)gw_k_reduce, (const void *)gw_k_partials,
        (const void *)gw_k_fill,   (const void *)gw_k_cast,     (const void *)gw_k_verdict,
        (const void *)gw_k_stamp,  (const void *)gw_k_begin,    (const void *)gw_k_end,
        (const void *)gw_k_hold,   (const void *)gw_k_finish,
    };
    cudaError_t error = cudaSuccess;

    for (size_t i = 0; error == cudaSuccess && i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        struct cudaFuncAttributes attributes;
        error = cudaFuncGetAttributes(&attributes, kernels[i]);
    }
    return (int)error;
}

#else

_Static_assert(sizeof(struct gw_k_partial) == sizeof(struct kernel_partial) &&
                   offsetof(struct gw_k_partial, nonfinite) ==
                       offsetof(struct kernel_partial, nonfinite) &&
                   GW_K_CHUNK == KERNEL_CHUNK && GW_K_INPUTS == GW_GPU_RANKS_MAX,
               "as the host's");
_Static_assert(sizeof(struct gw_k_slot) == sizeof(struct gw_shm_slot) &&
                   offsetof(struct gw_k_slot, ready_ns) == offsetof(struct gw_shm_slot, ready_ns) &&
                   offsetof(struct gw_k_slot, started_ns) ==
                       offsetof(struct gw_shm_slot, started_ns) &&
                   offsetof(struct gw_k_slot, done_ns) == offsetof(struct gw_shm_slot, done_ns) &&
                   offsetof(struct gw_k_slot, offset) == offsetof(struct gw_shm_slot, offset),
               "slots of shared pages");
_Static_assert(sizeof(struct gw_shm_verdict) == VERDICT_WORDS * 8u &&
                   offsetof(struct gw_shm_verdict, norm) == 8 &&
                   offsetof(struct gw_shm_verdict, clip_factor) == 16 &&
                   offsetof(struct gw_shm_verdict, nonfinite) == 20 &&
                   offsetof(struct gw_shm_verdict, first_bucket) == 24 &&
                   offsetof(struct gw_shm_verdict, used_params) == 28 &&
                   offsetof(struct gw_shm_verdict, digest) == 32,
               "words of a verdict");

GW_KERNEL_TABLE_BEGIN
GW_KERNEL_ENTRY(gw_k_reduce)
GW_KERNEL_ENTRY(gw_k_partials)
GW_KERNEL_ENTRY(gw_k_fill)
GW_KERNEL_ENTRY(gw_k_cast)
GW_KERNEL_ENTRY(gw_k_verdict)
GW_KERNEL_ENTRY(gw_k_stamp)
GW_KERNEL_ENTRY(gw_k_begin)
GW_KERNEL_ENTRY(gw_k_end)
GW_KERNEL_ENTRY(gw_k_hold)
GW_KERNEL_ENTRY(gw_k_finish)
GW_KERNEL_TABLE_END

#endif
