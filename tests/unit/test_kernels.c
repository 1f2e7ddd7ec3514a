/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sums whose bits are promised, against a scalar reference that pairs level by level.
 * ctest: label=unit timeout=120
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/host/kernels.h"

#define MOST 4100u
#define INPUTS 64u

static float inputs[INPUTS][MOST];
static float before[MOST], outputs[INPUTS][MOST];

static uint64_t random_state = 0x9e3779b97f4a7c15ull;

static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

/* Mostly ordinary numbers of both signs, with everything odd in between. */
static float random_float(void)
{
    static const float odd[] = {0.0f, -0.0f, 1e-42f, -1e-45f, 3.4e38f, -3.4e38f, 1.0f, -1.0f};
    uint32_t bits = random_u32();

    if (bits % 97 == 0)
        return odd[bits / 97 % 8];
    return ((float)(int32_t)random_u32()) * 1e-6f;
}

static void fill(void)
{
    for (uint32_t i = 0; i < INPUTS; i++)
        for (uint32_t j = 0; j < MOST; j++)
            inputs[i][j] = random_float();
    for (uint32_t j = 0; j < MOST; j++)
        before[j] = random_float();
}

/* ((0+1)+(2+3))+..., an odd last one passing up: literally. */
static float tree(const float *const *in, uint32_t n, uint32_t at)
{
    volatile float value[INPUTS];

    for (uint32_t i = 0; i < n; i++)
        value[i] = in[i] ? in[i][at] : 0.0f;
    while (n > 1) {
        uint32_t to = 0;
        for (uint32_t i = 0; i + 1 < n; i += 2)
            value[to++] = value[i] + value[i + 1];
        if (n % 2)
            value[to++] = value[n - 1];
        n = to;
    }
    return value[0];
}

static void assert_bits(float got, float expected, uint32_t n, uint32_t count, uint32_t at)
{
    uint32_t a, b;

    memcpy(&a, &got, 4);
    memcpy(&b, &expected, 4);
    if (a != b && !(isnan(got) && isnan(expected)))
        fail_msg("n=%u count=%u element %u: %a, expected %a", n, count, at, (double)got,
                 (double)expected);
}

static void assert_partials(const struct kernel_partial *partials, const float *values,
                            uint32_t count)
{
    for (uint32_t chunk = 0; chunk * 4096u < count; chunk++) {
        volatile double lane[16] = {0};
        uint64_t nonfinite = 0;
        double sum;
        for (uint32_t i = 0; i < 4096 && chunk * 4096 + i < count; i++) {
            volatile double square = (double)values[chunk * 4096 + i];
            square = square * square;
            lane[i % 16] = lane[i % 16] + square;
            nonfinite += isfinite(values[chunk * 4096 + i]) ? 0 : 1;
        }
        sum = (((lane[0] + lane[1]) + (lane[2] + lane[3])) +
               ((lane[4] + lane[5]) + (lane[6] + lane[7]))) +
              (((lane[8] + lane[9]) + (lane[10] + lane[11])) +
               ((lane[12] + lane[13]) + (lane[14] + lane[15])));
        if (isnan(sum))
            assert_true(isnan(partials[chunk].norm));
        else
            assert_memory_equal(&partials[chunk].norm, &sum, sizeof(sum));
        assert_int_equal(partials[chunk].nonfinite, nonfinite);
    }
}

/* What has no partials to leave is added up another way. */
static void check(const float *const *in, uint32_t n, uint32_t outs, uint32_t count, float scale,
                  bool accumulate, bool partial)
{
    struct kernel_partial partials[2] = {{0, 0}, {0, 0}};
    struct kernel_moved moved = {0, 0};
    void *out[INPUTS];
    uint32_t present = 0;

    for (uint32_t i = 0; i < outs; i++) {
        out[i] = outputs[i];
        memcpy(outputs[i], before, sizeof(before));
    }
    kernel_reduce(&(struct kernel_reduce){.in = (const void *const *)(const void *)in,
                                          .n = n,
                                          .out = out,
                                          .outs = outs,
                                          .count = count,
                                          .scale = scale,
                                          .accumulate = accumulate,
                                          .partials = partial ? partials : NULL},
                  &moved);
    for (uint32_t at = 0; at < count; at++) {
        volatile float expected = tree(in, n, at);
        expected = expected * scale;
        if (accumulate)
            expected = before[at] + expected;
        for (uint32_t i = 0; i < outs; i++)
            assert_bits(outputs[i][at], expected, n, count, at);
    }
    for (uint32_t i = 0; i < outs; i++)
        assert_memory_equal(outputs[i] + count, before + count, (MOST - count) * sizeof(float));
    if (partial)
        assert_partials(partials, outputs[0], count);
    for (uint32_t i = 0; i < n; i++)
        present += in[i] != NULL;
    assert_int_equal(moved.read, (uint64_t)present * count * 4);
    assert_int_equal(moved.written, (uint64_t)outs * count * 4);
}

static const uint32_t sizes[] = {0,  1,  2,   3,    7,    15,   16,   17,
                                 31, 64, 100, 1023, 4095, 4096, 4097, 4099};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void sums_are_the_tree_for_all_sizes_and_ranks(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 31, 32, 33, 47, 63, 64};
    const float *in[INPUTS];

    (void)state;
    fill();
    for (uint32_t i = 0; i < INPUTS; i++)
        in[i] = inputs[i];
    for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++)
        for (size_t s = 0; s < SIZES; s++)
            for (int how = 0; how < 4; how++)
                check(in, worlds[w], 1, sizes[s], s % 2 ? 1.0f : 0.3333f, how & 1, how & 2);
}

static void missing_inputs_are_zeros(void **state)
{
    static float zeros[MOST];
    const float *in[9];
    const void *real[9], *missing[9];
    float expected[MOST];
    void *out = outputs[0];
    struct kernel_moved moved = {0, 0};

    (void)state;
    fill();
    for (uint32_t j = 0; j < MOST; j++)
        inputs[0][j] = -0.0f; /* -0 + a real zero is +0 */
    for (uint32_t mask = 0; mask < 512; mask += 37) {
        for (uint32_t i = 0; i < 9; i++) {
            missing[i] = in[i] = mask >> i & 1 ? NULL : inputs[i];
            real[i] = mask >> i & 1 ? zeros : inputs[i];
        }
        check(in, 9, 2, 4097, 0.5f, false, true);
        kernel_reduce(
            &(struct kernel_reduce){
                .in = real, .n = 9, .out = &out, .outs = 1, .count = 4097, .scale = 0.5f},
            &moved);
        memcpy(expected, out, sizeof(expected));
        kernel_reduce(
            &(struct kernel_reduce){
                .in = missing, .n = 9, .out = &out, .outs = 1, .count = 4097, .scale = 0.5f},
            &moved);
        assert_memory_equal(out, expected, 4097 * sizeof(float));
    }
}

static void infinities_and_nans_propagate_and_are_counted(void **state)
{
    const void *in[3] = {inputs[0], inputs[1], inputs[2]};
    struct kernel_partial partial;
    struct kernel_moved moved = {0, 0};
    float *out = outputs[0];
    void *outs[1] = {out};

    (void)state;
    memset(inputs, 0, sizeof(inputs));
    inputs[1][5] = INFINITY;
    inputs[2][6] = NAN;
    inputs[0][7] = 3e38f;
    inputs[1][7] = 3e38f; /* the sum overflows */
    inputs[0][8] = INFINITY;
    inputs[1][8] = -INFINITY;
    kernel_reduce(&(struct kernel_reduce){.in = in,
                                          .n = 3,
                                          .out = outs,
                                          .outs = 1,
                                          .count = 16,
                                          .scale = 1,
                                          .partials = &partial},
                  &moved);
    assert_true(isinf(out[5]) && isnan(out[6]) && isinf(out[7]) && isnan(out[8]));
    assert_int_equal(partial.nonfinite, 4);
    assert_true(isnan(partial.norm));
}

static void outputs_may_be_inputs(void **state)
{
    const float *values[4];
    const void *in[4];
    void *out[4];
    float expected[MOST];
    struct kernel_moved moved = {0, 0};

    (void)state;
    fill();
    for (uint32_t i = 0; i < 4; i++)
        in[i] = out[i] = inputs[i], values[i] = inputs[i];
    for (uint32_t at = 0; at < MOST; at++)
        expected[at] = tree(values, 4, at);
    kernel_reduce(
        &(struct kernel_reduce){
            .in = in, .n = 4, .out = out, .outs = 4, .first = 3, .count = MOST - 3, .scale = 1},
        &moved);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t at = 3; at < MOST; at++)
            assert_bits(inputs[i][at], expected[at], 4, MOST, at);
}

static void copying_onto_itself_moves_nothing(void **state)
{
    (void)state;
    assert_int_equal(kernel_copy(inputs[0], inputs[0], 64, false), 0);
    assert_int_equal(kernel_copy(inputs[0], inputs[1], 64, true), 64);
}

/* Large results take another way (past the caches), aligned or not, and may lie in an input. */
static void large_sums_are_the_tree(uint32_t n, uint32_t shift, bool in_place)
{
    enum { COUNT = 1100003 };
    float *memory = malloc((n + 1) * (COUNT + 8) * sizeof(float)), *in[4] = {0};
    float *before_sum = malloc(COUNT * sizeof(float)), *out;
    const void *from[4];
    void *to;
    struct kernel_moved moved = {0, 0};

    assert_non_null(memory);
    assert_non_null(before_sum);
    for (uint32_t i = 0; i < n; i++) {
        from[i] = in[i] = memory + i * (COUNT + 8) + shift;
        for (uint32_t at = 0; at < COUNT; at++)
            in[i][at] = inputs[i][at % MOST] + (float)(at % 1000);
    }
    for (uint32_t at = 0; at < COUNT; at++)
        before_sum[at] = tree((const float *const *)in, n, at);
    out = in_place ? in[n - 1] : memory + n * (COUNT + 8) + shift;
    out[COUNT] = 42.0f;
    to = out;
    kernel_reduce(
        &(struct kernel_reduce){
            .in = from, .n = n, .out = &to, .outs = 1, .count = COUNT, .scale = 0.3f, .past = true},
        &moved);
    for (uint32_t at = 0; at < COUNT; at++) {
        volatile float expected = before_sum[at];
        expected = expected * 0.3f;
        assert_bits(out[at], expected, n, COUNT, at);
    }
    assert_true(out[COUNT] == 42.0f);
    assert_int_equal(moved.read, (uint64_t)n * COUNT * 4);
    assert_int_equal(moved.written, (uint64_t)COUNT * 4);
    free(memory);
    free(before_sum);
}

static void large_sums_are_the_tree_wherever_they_lie(void **state)
{
    (void)state;
    fill();
    for (uint32_t n = 1; n <= 4; n++)
        for (uint32_t shift = 0; shift < 4; shift += 3) {
            large_sums_are_the_tree(n, shift, false);
            large_sums_are_the_tree(n, shift, true);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_tree_for_all_sizes_and_ranks),
        cmocka_unit_test(missing_inputs_are_zeros),
        cmocka_unit_test(infinities_and_nans_propagate_and_are_counted),
        cmocka_unit_test(outputs_may_be_inputs),
        cmocka_unit_test(copying_onto_itself_moves_nothing),
        cmocka_unit_test(large_sums_are_the_tree_wherever_they_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
