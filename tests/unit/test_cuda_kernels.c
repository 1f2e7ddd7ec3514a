/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of the CUDA kernels, in their CPU build: all sizes, types and alignments against the tree
 * taken literally, against the host's kernels bit for bit, and against double.
 * ctest: timeout=120 link=gw_kernels_cpu
 */
#include "cuda_kernels_kit.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "daemon/device/host/kernels.h"

#define MOST 4099u
#define ROOM (MOST + 16u)
#define INPUTS 64u
#define TYPES 3

static const size_t type_bytes[TYPES] = {4, 2, 2};
static uint8_t inputs[TYPES][INPUTS][ROOM * 4] __attribute__((aligned(64)));
static float meant[TYPES][INPUTS][ROOM]; /* what they mean */
static float before[ROOM];
static uint8_t before_as[TYPES][ROOM * 4]; /* what is accumulated to */
static float before_meant[TYPES][ROOM];
static uint8_t outputs[INPUTS][ROOM * 4] __attribute__((aligned(64)));
static struct gw_k_partial lanes[3 * GW_K_LANES], partials[3];

static void cast(const void *in, void *out, uint64_t count, int in_type, int out_type)
{
    const struct gw_k_cast arg = {.in = in,
                                  .out = out,
                                  .count = count,
                                  .in_type = (uint32_t)in_type,
                                  .out_type = (uint32_t)out_type};

    RUN(gw_k_cast, &arg, 1);
}

/* Mostly ordinary numbers of both signs, with everything finite and odd in between. */
static float some_float(uint64_t *random)
{
    static const float odd[] = {0.0f, -0.0f, 1e-42f, -1e-45f, 6e-8f, -3e-5f, 1e4f, -1.0f};
    uint32_t bits = next_random(random);

    if (bits % 97 == 0)
        return odd[bits / 97 % 8];
    return (float)(int32_t)next_random(random) * 1e-6f;
}

static int fill(void **state)
{
    uint64_t random = 0x9e3779b97f4a7c15ull;

    (void)state;
    for (uint32_t i = 0; i < INPUTS; i++) {
        float values[ROOM];
        for (uint32_t j = 0; j < ROOM; j++)
            values[j] = some_float(&random);
        for (int type = 0; type < TYPES; type++) {
            cast(values, inputs[type][i], ROOM, GW_K_FP32, type);
            cast(inputs[type][i], meant[type][i], ROOM, type, GW_K_FP32);
        }
    }
    for (uint32_t j = 0; j < ROOM; j++)
        before[j] = some_float(&random);
    for (int type = 0; type < TYPES; type++) {
        cast(before, before_as[type], ROOM, GW_K_FP32, type);
        cast(before_as[type], before_meant[type], ROOM, type, GW_K_FP32);
    }
    return 0;
}

/* ((0+1)+(2+3))+..., an odd last one passing up: literally. */
static float tree(const float *values, uint32_t n)
{
    volatile float value[INPUTS];

    for (uint32_t i = 0; i < n; i++)
        value[i] = values[i];
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

struct plan {
    int in_type, out_type, round_type;
    uint32_t n, shift; /* shift: elements that pointers are off 64 bytes */
    float scale;
    bool accumulate, max;
};

/* Of the first MOST elements; `ret_stored` in out_type, `ret_sums` before that rounding. */
static void expect(const struct plan *plan, void *ret_stored, float *ret_sums)
{
    static float read[INPUTS][ROOM];
    static uint8_t rounded[ROOM * 4];

    for (uint32_t i = 0; i < plan->n; i++) {
        cast(meant[plan->in_type][i], rounded, ROOM, GW_K_FP32, plan->round_type);
        cast(rounded, read[i], ROOM, plan->round_type, GW_K_FP32);
    }
    for (uint32_t j = 0; j < MOST; j++) {
        float values[INPUTS];
        volatile float value;
        for (uint32_t i = 0; i < plan->n; i++)
            values[i] = read[i][j + plan->shift];
        value = tree(values, plan->n);
        value = value * plan->scale;
        if (plan->accumulate)
            value = before_meant[plan->out_type][j] + value;
        ret_sums[j] = value;
    }
    cast(ret_sums, ret_stored, MOST, GW_K_FP32, plan->out_type);
}

static void assert_same(const void *got, const void *expected, size_t bytes, const char *what,
                        uint32_t size)
{
    const uint8_t *a = got, *b = expected;

    for (size_t i = 0; memcmp(a, b, bytes) != 0 && i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%u elements, %s: byte %zu is %02x, expected %02x", size, what, i, a[i], b[i]);
}

/* What the lanes hold of the first `size` elements is known from the size before. */
static void add_to_lanes(struct gw_k_partial *ret_lanes, float value, uint32_t at, bool max)
{
    struct gw_k_partial *lane = &ret_lanes[at / 4096 * 16 + at % 16];
    volatile double square = (double)value;

    square = square * square;
    if (!max)
        lane->norm = lane->norm + square;
    else if (fabs((double)value) > lane->norm)
        lane->norm = fabs((double)value);
    lane->nonfinite += isfinite(value) ? 0u : 1u;
}

static double pairwise(const struct gw_k_partial *of)
{
    return (((of[0].norm + of[1].norm) + (of[2].norm + of[3].norm)) +
            ((of[4].norm + of[5].norm) + (of[6].norm + of[7].norm))) +
           (((of[8].norm + of[9].norm) + (of[10].norm + of[11].norm)) +
            ((of[12].norm + of[13].norm) + (of[14].norm + of[15].norm)));
}

static double largest(const struct gw_k_partial *of)
{
    double most = 0;

    for (uint32_t i = 0; i < 16; i++)
        most = of[i].norm > most ? of[i].norm : most;
    return most;
}

static void assert_partials(const struct gw_k_partial *expected, uint32_t size, bool max)
{
    uint64_t chunks = (size + 4095) / 4096;
    const struct gw_k_partials arg = {
        .lanes = lanes, .partials = partials, .chunks = chunks, .max = max};

    memset(partials, 0xa5, sizeof(partials));
    RUN(gw_k_partials, &arg, 2);
    assert_same(lanes, expected, chunks * 16 * sizeof(*lanes), "lanes", size);
    for (uint64_t c = 0; c < chunks; c++) {
        double sum = max ? largest(&expected[c * 16]) : pairwise(&expected[c * 16]);
        uint64_t nonfinite = 0;
        for (uint32_t i = 0; i < 16; i++)
            nonfinite += expected[c * 16 + i].nonfinite;
        assert_memory_equal(&partials[c].norm, &sum, sizeof(sum));
        assert_int_equal(partials[c].nonfinite, nonfinite);
    }
}

static struct gw_k_reduce reduce_of(const struct plan *plan, uint32_t size)
{
    struct gw_k_reduce arg = {.n = plan->n,
                              .outs = 1,
                              .count = size,
                              .in_type = (uint32_t)plan->in_type,
                              .out_type = (uint32_t)plan->out_type,
                              .round_type = (uint32_t)plan->round_type,
                              .scale = plan->scale,
                              .accumulate = plan->accumulate,
                              .max = plan->max,
                              .lanes = lanes};

    for (uint32_t i = 0; i < plan->n; i++)
        arg.in[i] = inputs[plan->in_type][i] + plan->shift * type_bytes[plan->in_type];
    arg.out[0] = outputs[0] + plan->shift * type_bytes[plan->out_type];
    return arg;
}

static void check_all_sizes(const struct plan *plan)
{
    static uint8_t stored[ROOM * 4], unwritten[ROOM * 4];
    static float sums[ROOM], values[ROOM];
    size_t unit = type_bytes[plan->out_type];
    struct gw_k_partial expected[2 * GW_K_LANES];

    memset(expected, 0, sizeof(expected));
    memset(unwritten, 0xa5, sizeof(unwritten));
    expect(plan, stored, sums);
    cast(stored, values, MOST, plan->out_type, GW_K_FP32);
    for (uint32_t size = 0; size <= MOST; size++) {
        struct gw_k_reduce arg = reduce_of(plan, size);
        uint8_t *out = arg.out[0];
        if (size > 0)
            add_to_lanes(expected, values[size - 1], size - 1, plan->max);
        memset(outputs[0], 0xa5, sizeof(outputs[0]));
        if (plan->accumulate)
            memcpy(out, before_as[plan->out_type], size * unit);
        RUN(gw_k_reduce, &arg, 1 + size % 5);
        assert_same(out, stored, size * unit, "sum", size);
        assert_same(out + size * unit, unwritten, 8 * unit, "behind", size);
        assert_partials(expected, size, plan->max);
    }
}

static void sums_are_the_tree_for_all_sizes_and_ranks(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 64};

    (void)state;
    for (uint32_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++)
        check_all_sizes(&(struct plan){.n = worlds[w],
                                       .shift = w % 4,
                                       .scale = w % 2 ? 1.0f : 0.3333f,
                                       .accumulate = w % 3 == 1});
}

static void sums_are_the_tree_for_all_sizes_and_types(void **state)
{
    static const uint32_t worlds[] = {2, 1, 3, 5, 8, 9, 4, 7, 6};

    (void)state;
    for (int in = 0; in < TYPES; in++)
        for (int out = 0; out < TYPES; out++)
            check_all_sizes(&(struct plan){.in_type = in,
                                           .out_type = out,
                                           .n = worlds[in * TYPES + out],
                                           .shift = (uint32_t)(in * TYPES + out) % 8,
                                           .scale = 0.125f + (float)out * 0.3f,
                                           .accumulate = (in + out) % 2 == 1,
                                           .max = in == out});
}

/* Also to a type that holds more than the input's: nothing is lost then. */
static void inputs_are_rounded_before_they_are_added(void **state)
{
    (void)state;
    for (int in = 0; in < TYPES; in++)
        for (int round = 1; round < TYPES; round++)
            check_all_sizes(&(struct plan){.in_type = in,
                                           .out_type = (in + round) % TYPES,
                                           .round_type = round,
                                           .n = 3 + (uint32_t)in,
                                           .scale = 0.25f,
                                           .accumulate = round == 2});
}

static void every_number_of_ranks_gives_its_tree(void **state)
{
    static uint8_t stored[ROOM * 4];
    static float sums[ROOM];

    (void)state;
    for (uint32_t n = 1; n <= INPUTS; n++)
        for (int type = 0; type < TYPES; type++) {
            struct plan plan = {.in_type = type, .out_type = type, .n = n, .scale = 0.7f};
            struct gw_k_reduce arg = reduce_of(&plan, MOST);
            arg.lanes = NULL;
            expect(&plan, stored, sums);
            RUN(gw_k_reduce, &arg, 7);
            assert_same(outputs[0], stored, MOST * type_bytes[type], "sum", MOST);
        }
}

static void partials_are_the_same_for_any_number_of_threads(void **state)
{
    static const uint64_t threads[] = {1, 2, 15, 16, 17, 32, 33, 256};
    struct plan plan = {.n = 5, .scale = 0.3f};
    struct gw_k_partial first[2 * GW_K_LANES];
    static uint8_t out[ROOM * 4];

    (void)state;
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        struct gw_k_reduce arg = reduce_of(&plan, MOST);
        memset(lanes, 0xa5, sizeof(lanes));
        RUN(gw_k_reduce, &arg, threads[i]);
        if (i == 0) {
            memcpy(first, lanes, sizeof(first));
            memcpy(out, outputs[0], sizeof(out));
        }
        assert_memory_equal(lanes, first, sizeof(first));
        assert_memory_equal(outputs[0], out, MOST * sizeof(float));
        arg.lanes = NULL;
        memset(outputs[0], 0, sizeof(outputs[0]));
        RUN(gw_k_reduce, &arg, threads[i]);
        assert_memory_equal(outputs[0], out, MOST * sizeof(float));
    }
}

/* ---- beside the host's kernels --------------------------------------------------------------- */

static void check_as_host(uint32_t n, uint32_t outs, uint32_t first, uint32_t size,
                          uint64_t missing, bool accumulate)
{
    static float host_out[INPUTS][ROOM];
    struct plan plan = {.n = n, .scale = 0.77f};
    struct gw_k_reduce arg = reduce_of(&plan, size);
    struct kernel_partial host_partials[2];
    struct kernel_moved moved = {0, 0};
    const void *in[INPUTS];
    void *out[INPUTS];

    for (uint32_t i = 0; i < n; i++) {
        in[i] = missing >> i & 1 ? NULL : meant[0][i];
        arg.in[i] = in[i];
    }
    for (uint32_t i = 0; i < outs; i++) {
        memcpy(host_out[i], before, sizeof(before));
        memcpy(outputs[i], before, sizeof(before));
        out[i] = host_out[i];
        arg.out[i] = outputs[i];
    }
    arg.first = first;
    arg.outs = outs;
    arg.accumulate = accumulate;
    kernel_reduce(&(struct kernel_reduce){.in = in,
                                          .n = n,
                                          .out = out,
                                          .outs = outs,
                                          .first = first,
                                          .count = size,
                                          .scale = 0.77f,
                                          .accumulate = accumulate,
                                          .partials = host_partials},
                  &moved);
    RUN(gw_k_reduce, &arg, 3);
    for (uint32_t i = 0; i < outs; i++)
        assert_same(outputs[i], host_out[i], sizeof(before), "as the host", size);
    RUN(gw_k_partials,
        (&(struct gw_k_partials){
            .lanes = lanes, .partials = partials, .chunks = gw_k_chunks(size)}),
        1);
    assert_same(partials, host_partials, gw_k_chunks(size) * sizeof(*partials), "partials", size);
}

static void sums_and_squares_are_the_hosts(void **state)
{
    static const uint32_t worlds[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,
                                      13, 16, 17, 31, 32, 33, 47, 63, 64};
    static const uint32_t sizes[] = {0, 1, 15, 16, 17, 64, 1023, 4095, 4096, 4097, 4099};

    (void)state;
    for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
            for (uint32_t k = 0; k < 4; k++)
                check_as_host(worlds[w], 1 + k % 3, k * 5, sizes[s],
                              k < 2 ? 0 : 0x5aa55aa5c33c1234ull, k % 2);
}

/* ---- beside double --------------------------------------------------------------------------- */

/* Each of n - 1 additions, the multiplication and the final rounding is off by half a unit of what
 * it gives, which no partial sum of absolute values exceeds. */
static void sums_are_near_those_of_double(void **state)
{
    static const double unit[TYPES] = {0x1p-24, 0x1p-11, 0x1p-8};
    static const double smallest[TYPES] = {0x1p-149, 0x1p-24, 0x1p-133};
    static float got[ROOM];

    (void)state;
    for (int in = 0; in < TYPES; in++)
        for (int out = 0; out < TYPES; out++)
            for (uint32_t n = 1; n <= 64; n = n * 2 + 1) {
                struct plan plan = {.in_type = in, .out_type = out, .n = n, .scale = 0.01f};
                struct gw_k_reduce arg = reduce_of(&plan, MOST);
                RUN(gw_k_reduce, &arg, 1);
                cast(outputs[0], got, MOST, out, GW_K_FP32);
                for (uint32_t j = 0; j < MOST; j++) {
                    double sum = 0, size = 0, most;
                    for (uint32_t i = 0; i < n; i++) {
                        sum += (double)meant[in][i][j];
                        size += fabs((double)meant[in][i][j]);
                    }
                    sum *= (double)0.01f;
                    size *= (double)0.01f;
                    most =
                        size * (n * 0x1p-24) * 1.01 + fabs(sum) * unit[out] * 1.01 + smallest[out];
                    if (!(fabs((double)got[j] - sum) <= most))
                        fail_msg("types %d to %d, n=%u, element %u: %a, expected %a within %a", in,
                                 out, n, j, (double)got[j], sum, most);
                }
            }
}

/* ---- odd numbers, aliases -------------------------------------------------------------------- */

static void infinities_and_nans_propagate_and_are_counted(void **state)
{
    static const float columns[8][3] = {
        {0, INFINITY, 0},          {0, 0, NAN},     {3e38f, 3e38f, 0}, {INFINITY, -INFINITY, 0},
        {-INFINITY, -INFINITY, 5}, {1.5f, 2.5f, 0}, {0, -0.0f, 0},     {-NAN, INFINITY, 1},
    };
    uint16_t in[TYPES][3][16];
    float wide[3][16], out[16];

    (void)state;
    for (int type = 0; type < TYPES; type++) {
        struct gw_k_reduce arg = {.n = 3,
                                  .outs = 1,
                                  .count = 16,
                                  .in_type = (uint32_t)type,
                                  .scale = 1,
                                  .out = {out},
                                  .lanes = lanes};
        for (uint32_t i = 0; i < 3; i++) {
            for (uint32_t j = 0; j < 16; j++)
                wide[i][j] = j < 8 ? columns[j][i] : 0;
            arg.in[i] = wide[i];
            if (type != GW_K_FP32) {
                cast(wide[i], in[type][i], 16, GW_K_FP32, type);
                arg.in[i] = in[type][i];
            }
        }
        RUN(gw_k_reduce, &arg, 3);
        RUN(gw_k_partials,
            (&(struct gw_k_partials){.lanes = lanes, .partials = partials, .chunks = 1}), 1);
        assert_true(isinf(out[0]) && out[0] > 0 && isnan(out[1]) && isinf(out[2]));
        assert_true(isnan(out[3]) && isinf(out[4]) && out[4] < 0 && isnan(out[7]));
        assert_int_equal(bits_of(out[5]), bits_of(4.0f));
        assert_int_equal(bits_of(out[6]), 0);
        assert_int_equal(partials[0].nonfinite, 6);
        assert_true(isnan(partials[0].norm));
    }
}

/* A finite sum that no fp16 can hold is an infinity in what is stored and counted. */
static void what_overflows_when_rounded_is_not_finite(void **state)
{
    float in[2] = {65519.0f, 65520.0f};
    uint16_t out[2];
    struct gw_k_reduce arg = {.in = {in},
                              .out = {out},
                              .lanes = lanes,
                              .count = 2,
                              .n = 1,
                              .outs = 1,
                              .out_type = GW_K_FP16,
                              .scale = 1};

    (void)state;
    RUN(gw_k_reduce, &arg, 1);
    assert_int_equal(out[0], 0x7bff);
    assert_int_equal(out[1], 0x7c00);
    assert_true(lanes[0].norm == 65504.0 * 65504.0 && lanes[0].nonfinite == 0);
    assert_true(isinf(lanes[1].norm) && lanes[1].nonfinite == 1);
}

static void denormals_are_added_exactly(void **state)
{
    float in[3][4], out[4];
    struct gw_k_reduce arg = {.out = {out}, .count = 4, .n = 3, .outs = 1, .scale = 1};

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        in[i][0] = float_of(1);        /* 3 of the smallest */
        in[i][1] = float_of(0x7fffff); /* three of the largest denormal: normal */
        in[i][2] = i == 0 ? float_of(0x800000) : i == 1 ? -float_of(1) : 0;
        in[i][3] = -float_of(5 + i);
        arg.in[i] = in[i];
    }
    RUN(gw_k_reduce, &arg, 1);
    assert_int_equal(bits_of(out[0]), 3);
    assert_int_equal(bits_of(out[1]), bits_of((float)(3.0 * 8388607.0 * 0x1p-149)));
    assert_int_equal(bits_of(out[2]), 0x7fffff);
    assert_int_equal(bits_of(out[3]), 0x80000000u | 18);
    arg.scale = 0.5f; /* halves of units: ties to even */
    RUN(gw_k_reduce, &arg, 1);
    assert_int_equal(bits_of(out[0]), 2);
    assert_int_equal(bits_of(out[2]), 0x400000);
}

/* What is not there adds nothing, not even a zero: -0 + 0 would be 0. Missing inputs are zeros. */
static void minus_zeros_stay(void **state)
{
    float in[4] = {-0.0f, -0.0f, -0.0f, -0.0f}, out[4];

    (void)state;
    for (uint32_t n = 1; n <= INPUTS; n++) {
        struct gw_k_reduce arg = {.out = {out}, .count = 4, .n = n, .outs = 1, .scale = 1};
        for (uint32_t i = 0; i < n; i++)
            arg.in[i] = in;
        RUN(gw_k_reduce, &arg, 1);
        assert_int_equal(bits_of(out[3]), bits_of(-0.0f));
        arg.in[n / 2] = NULL;
        RUN(gw_k_reduce, &arg, 1);
        assert_int_equal(bits_of(out[3]), 0);
    }
}

static void outs_may_be_inputs(void **state)
{
    static float memory[INPUTS][ROOM];
    static uint8_t stored[ROOM * 4];
    static float sums[ROOM];

    (void)state;
    for (uint32_t n = 1; n <= INPUTS; n = n * 2 + 2) {
        struct plan plan = {.n = n, .scale = 1};
        struct gw_k_reduce arg = reduce_of(&plan, MOST);
        memcpy(memory, meant[0], sizeof(memory));
        expect(&plan, stored, sums);
        arg.outs = n;
        for (uint32_t i = 0; i < n; i++)
            arg.in[i] = arg.out[i] = memory[i];
        RUN(gw_k_reduce, &arg, 4);
        for (uint32_t i = 0; i < n; i++)
            assert_same(memory[i], sums, MOST * sizeof(float), "in place", MOST);
        arg.lanes = NULL;
        memcpy(memory, meant[0], sizeof(memory));
        RUN(gw_k_reduce, &arg, 6);
        for (uint32_t i = 0; i < n; i++)
            assert_same(memory[i], sums, MOST * sizeof(float), "in place, no squares", MOST);
    }
}

/* gw_k_reduce with one input, or none, is the epilogue behind another's sum, and a local add. */
static void one_input_or_none_is_added(void **state)
{
    struct plan plan = {.n = 1, .scale = 0.3f, .accumulate = true};
    struct gw_k_reduce arg = reduce_of(&plan, MOST);
    static uint8_t stored[ROOM * 4];
    static float sums[ROOM];

    (void)state;
    expect(&plan, stored, sums);
    memcpy(outputs[0], before, sizeof(before));
    RUN(gw_k_reduce, &arg, 2);
    assert_same(outputs[0], sums, MOST * sizeof(float), "one input", MOST);
    memcpy(outputs[0], before, sizeof(before));
    arg.in[0] = NULL;
    RUN(gw_k_reduce, &arg, 2);
    for (uint32_t j = 0; j < MOST; j++)
        assert_true(((const float *)(const void *)outputs[0])[j] == before[j]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_tree_for_all_sizes_and_ranks),
        cmocka_unit_test(sums_are_the_tree_for_all_sizes_and_types),
        cmocka_unit_test(every_number_of_ranks_gives_its_tree),
        cmocka_unit_test(partials_are_the_same_for_any_number_of_threads),
        cmocka_unit_test(sums_and_squares_are_the_hosts),
        cmocka_unit_test(sums_are_near_those_of_double),
        cmocka_unit_test(infinities_and_nans_propagate_and_are_counted),
        cmocka_unit_test(what_overflows_when_rounded_is_not_finite),
        cmocka_unit_test(denormals_are_added_exactly),
        cmocka_unit_test(minus_zeros_stay),
        cmocka_unit_test(outs_may_be_inputs),
        cmocka_unit_test(one_input_or_none_is_added),
        cmocka_unit_test(inputs_are_rounded_before_they_are_added),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
