/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host kernels of every width that this processor has, all types, beside the CPU build of the CUDA
 * kernels: bit for bit, the conversions over every half and every rounding.
 * ctest: timeout=120 link=gw_kernels_cpu
 */
#include "cuda_kernels_kit.h"

#include <stdbool.h>
#include <stdlib.h>

#include "daemon/device/host/kernels_isa.h"

#define MOST 9001u
#define ROOM (MOST + 64u)
#define INPUTS 64u
#define TYPES 3
#define HALVES 65536u

static const size_t type_bytes[TYPES] = {4, 2, 2};
static uint8_t inputs[TYPES][INPUTS][ROOM * 4] __attribute__((aligned(64)));
static float before[ROOM];

struct result {
    uint8_t out[3][ROOM * 4];
    struct gw_k_partial partials[4];
} __attribute__((aligned(64)));
static struct result host, cuda;

struct plan {
    uint32_t n, outs, shift, size;
    int in_type, out_type, round_type;
    uint64_t missing;
    bool accumulate, partials, past, max;
};

static void cast(const void *in, void *out, uint64_t count, int in_type, int out_type)
{
    const struct gw_k_cast arg = {.in = in,
                                  .out = out,
                                  .count = count,
                                  .in_type = (uint32_t)in_type,
                                  .out_type = (uint32_t)out_type};

    RUN(gw_k_cast, &arg, 1);
}

static float some_float(uint64_t *random)
{
    static const float odd[] = {0.0f, -0.0f, 1e-42f, -1e-45f, 6e-8f, -3e-5f, 1e4f, 3e38f};
    uint32_t bits = next_random(random);

    if (bits % 97 == 0)
        return odd[bits / 97 % 8];
    return (float)(int32_t)next_random(random) * 1e-6f;
}

static int fill(void **state)
{
    uint64_t random = 0x9e3779b97f4a7c15ull;
    static float values[ROOM];

    (void)state;
    for (uint32_t i = 0; i < INPUTS; i++) {
        for (uint32_t j = 0; j < ROOM; j++)
            values[j] = some_float(&random);
        for (int type = 0; type < TYPES; type++)
            cast(values, inputs[type][i], ROOM, GW_K_FP32, type);
    }
    for (uint32_t j = 0; j < ROOM; j++)
        before[j] = some_float(&random);
    return 0;
}

static void clear(struct result *result, const struct plan *plan)
{
    memset(result, 0xa5, sizeof(*result));
    memset(result->partials, 0, sizeof(result->partials));
    if (plan->accumulate)
        cast(before, result->out[0], ROOM, GW_K_FP32, plan->out_type);
}

static void run_cuda(const struct plan *plan)
{
    static struct gw_k_partial lanes[4 * GW_K_LANES];
    struct gw_k_reduce arg = {.n = plan->n,
                              .outs = plan->outs,
                              .first = plan->shift,
                              .count = plan->size,
                              .in_type = (uint32_t)plan->in_type,
                              .out_type = (uint32_t)plan->out_type,
                              .scale = 0.77f,
                              .round_type = (uint32_t)plan->round_type,
                              .accumulate = plan->accumulate,
                              .max = plan->max,
                              .lanes = plan->partials ? lanes : NULL};

    for (uint32_t i = 0; i < plan->n; i++)
        arg.in[i] = plan->missing >> i & 1 ? NULL : inputs[plan->in_type][i];
    for (uint32_t i = 0; i < plan->outs; i++)
        arg.out[i] = cuda.out[i];
    RUN(gw_k_reduce, &arg, 3);
    if (plan->partials)
        RUN(gw_k_partials,
            (&(struct gw_k_partials){.lanes = lanes,
                                     .partials = cuda.partials,
                                     .chunks = gw_k_chunks(plan->size),
                                     .max = plan->max}),
            1);
}

static void run_host(const struct kernel_isa *isa, const struct plan *plan)
{
    const void *in[INPUTS];
    void *out[3] = {host.out[0], host.out[1], host.out[2]};
    struct kernel_partial partials[4];
    struct kernel_moved moved = {0, 0};

    for (uint32_t i = 0; i < plan->n; i++)
        in[i] = plan->missing >> i & 1 ? NULL : inputs[plan->in_type][i];
    kernel_reduce_with(isa,
                       &(struct kernel_reduce){.in = in,
                                               .n = plan->n,
                                               .out = out,
                                               .outs = plan->outs,
                                               .in_dtype = (uint8_t)plan->in_type,
                                               .out_dtype = (uint8_t)plan->out_type,
                                               .round_dtype = (uint8_t)plan->round_type,
                                               .norm = plan->max ? GW_NORM_MAX : GW_NORM_2,
                                               .first = plan->shift,
                                               .count = plan->size,
                                               .scale = 0.77f,
                                               .accumulate = plan->accumulate,
                                               .past = plan->past,
                                               .partials = plan->partials ? partials : NULL},
                       &moved);
    for (uint64_t c = 0; plan->partials && c < kernel_chunks(plan->size); c++)
        host.partials[c] = (struct gw_k_partial){partials[c].norm, partials[c].nonfinite};
    assert_int_equal(moved.written, (uint64_t)plan->outs * plan->size * type_bytes[plan->out_type]);
}

static void check(const struct plan *plan)
{
    clear(&cuda, plan);
    run_cuda(plan);
    for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
        clear(&host, plan);
        run_host(*isa, plan);
        if (memcmp(&host, &cuda, sizeof(host)) != 0)
            fail_msg("%s: n %u, outs %u, from %u, %u elements, types %d to %d, past %d differ",
                     (*isa)->name, plan->n, plan->outs, plan->shift, plan->size, plan->in_type,
                     plan->out_type, plan->past);
    }
}

static void every_width_has_the_same_bits(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 33, 64};
    static const uint32_t sizes[] = {0, 1, 15, 17, 511, 513, 4095, 4097, 9001};
    uint32_t turn = 0;

    (void)state;
    for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
            for (int types = 0; types < TYPES * TYPES; types++, turn++)
                check(&(struct plan){.n = worlds[w],
                                     .outs = 1 + turn % 3,
                                     .shift = turn % 2 ? turn % 17 : 0,
                                     .size = sizes[s],
                                     .in_type = types / TYPES,
                                     .out_type = types % TYPES,
                                     .missing = turn % 5 == 0 ? 2 : 0,
                                     .round_type = turn % 5 == 2 ? 1 + (int)(turn / 5 % 2) : 0,
                                     .accumulate = turn % 4 == 1,
                                     .max = turn % 6 == 1,
                                     .partials = turn % 3 == 1,
                                     .past = turn % 2});
}

/* To one place, without a norm, of up to eight inputs: the shortest way; of nine, another. */
static void direct_sums_have_them_too(void **state)
{
    uint32_t turn = 0;

    (void)state;
    for (uint32_t n = 1; n <= 9; n++)
        for (int types = 0; types < TYPES * TYPES; types++)
            for (uint32_t way = 0; way < 4; way++, turn++)
                check(&(struct plan){.n = n,
                                     .outs = 1,
                                     .shift = turn % 17,
                                     .size = (turn % 5 ? 500 : 4090) + turn % 33,
                                     .in_type = types / TYPES,
                                     .out_type = types % TYPES,
                                     .round_type = turn % 3 ? 0 : types / TYPES,
                                     .accumulate = way / 2,
                                     .past = way % 2});
}

/* ---- conversions ----------------------------------------------------------------------------- */

static void convert(const struct kernel_isa *isa, const void *from, void *to, int in_type,
                    int out_type)
{
    struct kernel_moved moved = {0, 0};

    kernel_reduce_with(isa,
                       &(struct kernel_reduce){.in = &from,
                                               .n = 1,
                                               .out = &to,
                                               .outs = 1,
                                               .in_dtype = (uint8_t)in_type,
                                               .out_dtype = (uint8_t)out_type,
                                               .count = HALVES,
                                               .scale = 1},
                       &moved);
}

/* A NaN that signals is quiet after any arithmetic: the CUDA kernel's is gone through the same. */
static void assert_converted(const void *from, int in_type, int out_type)
{
    static uint8_t got[HALVES * 4], expected[HALVES * 4];
    struct gw_k_reduce arg = {.n = 1,
                              .outs = 1,
                              .count = HALVES,
                              .in_type = (uint32_t)in_type,
                              .out_type = (uint32_t)out_type,
                              .scale = 1};

    arg.in[0] = from;
    arg.out[0] = expected;
    RUN(gw_k_reduce, &arg, 1);
    for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
        convert(*isa, from, got, in_type, out_type);
        if (memcmp(got, expected, HALVES * type_bytes[out_type]) != 0)
            fail_msg("%s: types %d to %d differ", (*isa)->name, in_type, out_type);
    }
}

static void halves_convert_as_by_integers(void **state)
{
    static uint16_t halves[HALVES];
    static uint32_t floats[HALVES];

    (void)state;
    for (uint32_t i = 0; i < HALVES; i++)
        halves[i] = (uint16_t)i;
    for (int type = GW_K_FP16; type <= GW_K_BF16; type++)
        for (int to = 0; to < TYPES; to++)
            assert_converted(halves, type, to);
    /* Every upper half of a float with lower ones at and around ties, of both types. */
    for (uint32_t low = 0; low < 24; low++) {
        static const uint32_t lows[8] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1000, 0xf000};
        for (uint32_t i = 0; i < HALVES; i++)
            floats[i] = i << 16 | (lows[low % 8] ^ (low / 8 * 0x0fffu));
        assert_converted(floats, GW_K_FP32, GW_K_FP16);
        assert_converted(floats, GW_K_FP32, GW_K_BF16);
    }
}

static void copies_past_the_caches_are_whole(void **state)
{
    static uint8_t from[4096 + 64], to[4096 + 64], expected[4096 + 64];

    (void)state;
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 37);
    for (size_t offset = 0; offset < 40; offset++)
        for (size_t bytes = 0; bytes < 300; bytes += 7) {
            memset(to, 0, sizeof(to));
            memset(expected, 0, sizeof(expected));
            memcpy(expected + offset, from + 64 - offset, bytes);
            for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
                (*isa)->copy_past(to + offset, from + 64 - offset, bytes);
                assert_memory_equal(to, expected, sizeof(to));
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_has_the_same_bits),
        cmocka_unit_test(direct_sums_have_them_too),
        cmocka_unit_test(halves_convert_as_by_integers),
        cmocka_unit_test(copies_past_the_caches_are_whole),
    };

    return cmocka_run_group_tests(tests, fill, NULL);
}
