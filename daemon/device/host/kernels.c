/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host kernels: which width of vectors, and the way over a sum's chunks. Stream threads; no state
 * but the choice, which is always the same.
 */
#include "daemon/device/host/kernels.h"

#include <string.h>

#include "daemon/device/host/kernels_isa.h"
#include "proto/layout_page.h"

const struct kernel_isa *const *kernel_isas(void)
{
#ifdef __x86_64__
    static const struct kernel_isa *const all[] = {&kernel_isa_avx512, &kernel_isa_avx2,
                                                   &kernel_isa_plain, NULL};

    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("f16c"))
        return all;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? all + 1 : all + 2;
#else
    static const struct kernel_isa *const all[] = {&kernel_isa_plain, NULL};

    return all;
#endif
}

void kernel_reduce_with(const struct kernel_isa *isa, const struct kernel_reduce *reduce,
                        struct kernel_moved *moved)
{
    for (uint64_t at = 0; at < reduce->count; at += KERNEL_CHUNK) {
        uint64_t rest = reduce->count - at;
        isa->chunk(reduce, reduce->first + at, rest < KERNEL_CHUNK ? (size_t)rest : KERNEL_CHUNK,
                   reduce->partials ? &reduce->partials[at / KERNEL_CHUNK] : NULL);
    }
    if (reduce->past)
        isa->settle();
    for (uint32_t i = 0; i < reduce->n; i++) {
        uint8_t dtype = reduce->subtrees ? reduce->subtrees[i].dtype : reduce->in_dtype;
        moved->read += reduce->in[i] ? reduce->count * gw_dtype_bytes(dtype) : 0;
    }
    moved->written += reduce->outs * reduce->count * gw_dtype_bytes(reduce->out_dtype);
}

void kernel_reduce(const struct kernel_reduce *reduce, struct kernel_moved *moved)
{
    kernel_reduce_with(kernel_isas()[0], reduce, moved);
}

void kernel_cast(void *to, uint8_t dtype, const float *from, uint64_t count, bool past)
{
    struct kernel_moved moved = {0, 0};
    const void *in = from;

    kernel_reduce(&(struct kernel_reduce){.in = &in,
                                          .n = 1,
                                          .out = &to,
                                          .outs = 1,
                                          .out_dtype = dtype,
                                          .count = count,
                                          .scale = 1,
                                          .past = past},
                  &moved);
}

uint64_t kernel_copy(void *to, const void *from, uint64_t bytes, bool past)
{
    if (to == from)
        return 0;
    if (past)
        kernel_isas()[0]->copy_past(to, from, (size_t)bytes);
    else
        memcpy(to, from, (size_t)bytes);
    return bytes;
}
