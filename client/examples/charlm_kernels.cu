// SPDX-License-Identifier: Apache-2.0
/*
 * charlm's arithmetic on a GPU: one thread per element and the chain of additions that
 * charlm_math.h asks for. An example of how to train through gradwire, not of fast kernels.
 * Compiles with nvcc and, for tests without a GPU, as C (daemon/device/cuda/kernel.h).
 */
#include "client/examples/charlm_kernels.h"

#include "daemon/device/cuda/kernel.h"

#define MATH_FN GW_DEVICE
#include "client/examples/charlm_math_one.h"

GW_KERNEL(charlm_k_gemm)
{
    for (uint64_t at = gw_k_index(); at < arg->rows * arg->cols; at += gw_k_count()) {
        uint64_t i = at / arg->cols, j = at % arg->cols;
        float sum = arg->first ? arg->first[j] : 0.0f;

        for (uint64_t k = 0; k < arg->depth; k++)
            sum += arg->a[i * arg->a_row + k * arg->a_depth] * arg->b[k * arg->b_row + j];
        arg->c[i * arg->c_row + j] = sum;
    }
}

GW_KERNEL(charlm_k_transpose)
{
    for (uint64_t at = gw_k_index(); at < arg->rows * arg->cols; at += gw_k_count())
        arg->out[at % arg->cols * arg->rows + at / arg->cols] = arg->in[at];
}

GW_KERNEL(charlm_k_map)
{
    for (uint64_t i = gw_k_index(); i < arg->count; i += gw_k_count()) {
        if (arg->kind == CHARLM_TANH)
            arg->to[i] = math_tanh_one(arg->to[i]);
        else if (arg->kind == CHARLM_TANH_BACK)
            arg->to[i] *= 1.0f - arg->from[i] * arg->from[i];
        else if (arg->kind == CHARLM_ADD)
            arg->to[i] += arg->from[i];
        else
            arg->to[i] *= arg->scale;
    }
}

/* Forward: an element of the values. Back: an element of the table, which looks for its symbol in
 * the order of the samples, so that its additions come in that order. */
GW_KERNEL(charlm_k_embed)
{
    uint64_t row = arg->context * arg->width;
    uint64_t count = arg->values ? arg->count * row : arg->vocab * arg->width;

    for (uint64_t at = gw_k_index(); at < count; at += gw_k_count()) {
        uint64_t column = at % arg->width;
        float sum = 0.0f;

        if (arg->values) {
            uint64_t place = at / arg->width;
            uint8_t symbol = arg->symbols[place + place / arg->context];

            arg->values[at] = arg->table[symbol * arg->width + column];
            continue;
        }
        for (uint64_t place = 0; place < arg->count * arg->context; place++) {
            if (arg->symbols[place + place / arg->context] == at / arg->width)
                sum += arg->deltas[place * arg->width + column];
        }
        arg->table_grad[at] = sum;
    }
}

GW_KERNEL(charlm_k_loss)
{
    for (uint64_t s = gw_k_index(); s < arg->count; s += gw_k_count())
        arg->each[s] =
            math_loss_one(arg->scores + s * arg->vocab, arg->deltas + s * arg->vocab, arg->vocab,
                          arg->symbols[s * (arg->context + 1) + arg->context],
                          1.0f / (float)arg->count);
}

GW_KERNEL(charlm_k_mean)
{
    double total = 0.0;

    if (gw_k_index() > 0)
        return;
    for (uint64_t i = 0; i < arg->count; i++)
        total += arg->each[i];
    *arg->mean = total / (double)arg->count;
}

GW_KERNEL(charlm_k_sum_rows)
{
    for (uint64_t j = gw_k_index(); j < arg->cols; j += gw_k_count()) {
        float sum = 0.0f;

        for (uint64_t i = 0; i < arg->count; i++)
            sum += arg->rows[i * arg->cols + j];
        arg->out[j] = sum;
    }
}

GW_KERNEL(charlm_k_adam)
{
    for (uint64_t i = gw_k_index(); i < arg->count; i += gw_k_count())
        math_adam_one(&arg->params[i], &arg->m[i], &arg->v[i], arg->grads[i], arg->unbias_m,
                      arg->unbias_v);
}

GW_KERNEL(charlm_k_bf16)
{
    for (uint64_t i = gw_k_index(); i < arg->count; i += gw_k_count()) {
        if (arg->to_halves)
            arg->halves[i] = math_to_bf16_one(arg->floats[i]);
        else
            arg->floats[i] = math_from_bf16_one(arg->halves[i]);
    }
}

#ifdef __CUDACC__

#define CHARLM_LAUNCH(kernel)                                                                      \
    int charlm_launch_##kernel(const struct charlm_k_##kernel *arg, uint64_t elements,             \
                               void *stream)                                                       \
    {                                                                                              \
        uint64_t blocks = (elements + 255) / 256;                                                  \
                                                                                                   \
        if (blocks == 0)                                                                           \
            return 0;                                                                              \
        charlm_k_##kernel<<<(unsigned)(blocks < 4096 ? blocks : 4096), 256, 0,                     \
                            (cudaStream_t)stream>>>(*arg);                                         \
        return (int)cudaGetLastError();                                                            \
    }
CHARLM_KERNELS(CHARLM_LAUNCH)

#else

GW_KERNEL_TABLE_BEGIN
#define CHARLM_ENTRY(kernel) GW_KERNEL_ENTRY(charlm_k_##kernel)
CHARLM_KERNELS(CHARLM_ENTRY)
GW_KERNEL_TABLE_END

#endif
