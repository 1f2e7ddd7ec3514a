/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp16 and bf16 of the CUDA kernels, in their CPU build: every half read, and written back; every
 * rounding between two halves; against values computed in double.
 * ctest: timeout=60 link=gw_kernels_cpu
 */
#include "cuda_kernels_kit.h"

#include <math.h>
#include <stdbool.h>

#define HALVES 65536u

static uint16_t halves[HALVES], written[HALVES];
static float floats[HALVES];

/* bits of mantissa behind the point, lowest exponent of a normal number, highest */
struct format {
    enum gw_k_type type;
    int mantissa_bits, exponent_min, exponent_max;
};
static const struct format formats[] = {{GW_K_FP16, 10, -14, 15}, {GW_K_BF16, 7, -126, 127}};

static void cast(const void *in, void *out, uint64_t count, enum gw_k_type in_type,
                 enum gw_k_type out_type)
{
    const struct gw_k_cast arg = {
        .in = in, .out = out, .count = count, .in_type = in_type, .out_type = out_type};

    RUN(gw_k_cast, &arg, 3);
}

/* What IEEE 754 says the bits mean. Not for NaN. */
static double meaning(const struct format *format, uint16_t half)
{
    int exponent_bits = 15 - format->mantissa_bits;
    int exponent = half >> format->mantissa_bits & ((1 << exponent_bits) - 1);
    int mantissa = half & ((1 << format->mantissa_bits) - 1);
    double size;

    if (exponent == (1 << exponent_bits) - 1)
        size = INFINITY;
    else if (exponent == 0)
        size = ldexp(mantissa, format->exponent_min - format->mantissa_bits);
    else
        size = ldexp(mantissa + (1 << format->mantissa_bits),
                     exponent - 1 + format->exponent_min - format->mantissa_bits);
    return half & 0x8000 ? -size : size;
}

static bool half_is_nan(const struct format *format, uint16_t half)
{
    uint16_t infinity = (uint16_t)(0x7fff & ~((1 << format->mantissa_bits) - 1));

    return (half & 0x7fff) > infinity;
}

/* To nearest, ties to even, by the current (default) rounding of double's nearbyint. */
static double nearest(const struct format *format, double value)
{
    int exponent;
    double unit, rounded;

    if (value == 0 || isinf(value))
        return value;
    (void)frexp(value, &exponent); /* value = m * 2^exponent, 0.5 <= |m| < 1 */
    exponent -= 1;
    if (exponent < format->exponent_min)
        exponent = format->exponent_min;
    unit = ldexp(1, exponent - format->mantissa_bits);
    rounded = nearbyint(value / unit) * unit;
    if (fabs(rounded) >= ldexp(1, format->exponent_max + 1))
        return value < 0 ? -INFINITY : INFINITY;
    return copysign(rounded, value);
}

static void assert_rounds(const struct format *format, const float *from, uint32_t count)
{
    assert_true(count <= HALVES);
    cast(from, written, count, GW_K_FP32, format->type);
    for (uint32_t i = 0; i < count; i++) {
        double expected = nearest(format, (double)from[i]), got = meaning(format, written[i]);
        if (half_is_nan(format, written[i]) || got != expected ||
            (written[i] >> 15 != 0) != (signbit(from[i]) != 0))
            fail_msg("type %d: %a becomes %04x (%a), expected %a", format->type, (double)from[i],
                     written[i], got, expected);
    }
}

static void every_half_is_read_as_what_it_means(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < HALVES; i++)
        halves[i] = (uint16_t)i;
    for (size_t f = 0; f < 2; f++) {
        cast(halves, floats, HALVES, formats[f].type, GW_K_FP32);
        for (uint32_t i = 0; i < HALVES; i++) {
            float expected;
            if (half_is_nan(&formats[f], halves[i])) {
                assert_true(isnan(floats[i]) && (signbit(floats[i]) != 0) == (i >= 0x8000));
                continue;
            }
            expected = (float)meaning(&formats[f], halves[i]);
            if (bits_of(expected) != bits_of(floats[i]))
                fail_msg("type %d: %04x is %a, expected %a", formats[f].type, i, (double)floats[i],
                         (double)expected);
        }
    }
}

static void every_half_comes_back(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        uint16_t quiet = (uint16_t)(1u << (formats[f].mantissa_bits - 1));
        cast(halves, floats, HALVES, formats[f].type, GW_K_FP32);
        cast(floats, written, HALVES, GW_K_FP32, formats[f].type);
        for (uint32_t i = 0; i < HALVES; i++)
            assert_int_equal(written[i], half_is_nan(&formats[f], (uint16_t)i) ? i | quiet : i);
    }
}

/* At the middle between any two neighbours, infinity counted as the next power of 2, and one float
 * below and above it. */
static void ties_go_to_even_and_all_else_to_the_nearest(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        const struct format *format = &formats[f];
        uint32_t count = 0;
        for (uint32_t i = 0; i < 0x7fff && !half_is_nan(format, (uint16_t)(i + 1)); i++) {
            double next = meaning(format, (uint16_t)(i + 1));
            float middle;
            if (isinf(next))
                next = ldexp(1, format->exponent_max + 1);
            middle = (float)((meaning(format, (uint16_t)i) + next) / 2);
            if ((double)middle * 2 != meaning(format, (uint16_t)i) + next) {
                assert_int_equal(format->type, GW_K_BF16); /* below the smallest float, or above */
                continue;
            }
            floats[count++] = middle;
            floats[count++] = -middle;
            floats[count++] = nextafterf(middle, 0);
            floats[count++] = nextafterf(middle, INFINITY);
            if (count + 4 > HALVES) {
                assert_rounds(format, floats, count);
                count = 0;
            }
        }
        assert_rounds(format, floats, count);
    }
}

static void floats_of_all_sizes_round_to_nearest(void **state)
{
    uint64_t random = 88172645463325252ull;
    uint32_t count = 0;

    (void)state;
    while (count < HALVES) {
        floats[count] = float_of(next_random(&random));
        count += isnan(floats[count]) ? 0u : 1u;
    }
    for (size_t f = 0; f < 2; f++)
        assert_rounds(&formats[f], floats, count);
}

static void odd_floats_have_known_halves(void **state)
{
    static const struct {
        uint32_t bits;
        uint16_t fp16, bf16;
    } known[] = {
        {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000}, /* zeros */
        {0x3f800000, 0x3c00, 0x3f80}, {0xc0000000, 0xc000, 0xc000}, /* 1, -2 */
        {0x7f800000, 0x7c00, 0x7f80}, {0xff800000, 0xfc00, 0xff80}, /* infinities */
        {0x7fc00000, 0x7e00, 0x7fc0}, {0xffc00000, 0xfe00, 0xffc0}, /* quiet NaNs */
        {0x7f800001, 0x7e00, 0x7fc0}, {0xff800001, 0xfe00, 0xffc0}, /* signalling ones */
        {0x7fa00000, 0x7f00, 0x7fe0}, {0x477fe000, 0x7bff, 0x4780},
        {0x477fefff, 0x7bff, 0x4780}, /* 65504 is the largest fp16 */
        {0x477ff000, 0x7c00, 0x4780}, {0x47800000, 0x7c00, 0x4780},
        {0x7f7fffff, 0x7c00, 0x7f80}, {0x7f7f7fff, 0x7c00, 0x7f7f}, /* the largest of bf16 */
        {0x38800000, 0x0400, 0x3880}, {0x387fffff, 0x0400, 0x3880}, /* smallest normal fp16 */
        {0x387fc000, 0x03ff, 0x3880}, {0x33800000, 0x0001, 0x3380}, /* denormal ones */
        {0x33000000, 0x0000, 0x3300}, {0x33000001, 0x0001, 0x3300}, /* 2^-25: the tie with 0 */
        {0x32ffffff, 0x0000, 0x3300}, {0xb3c00000, 0x8002, 0xb3c0},
        {0x00000001, 0x0000, 0x0000}, {0x00008000, 0x0000, 0x0000}, /* denormal floats */
        {0x00008001, 0x0000, 0x0001}, {0x00018000, 0x0000, 0x0002},
        {0x807fffff, 0x8000, 0x8080},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint16_t got;
        cast(&known[i].bits, &got, 1, GW_K_FP32, GW_K_FP16);
        if (got != known[i].fp16)
            fail_msg("fp16 of %08x: %04x, expected %04x", known[i].bits, got, known[i].fp16);
        cast(&known[i].bits, &got, 1, GW_K_FP32, GW_K_BF16);
        if (got != known[i].bf16)
            fail_msg("bf16 of %08x: %04x, expected %04x", known[i].bits, got, known[i].bf16);
    }
}

static void casting_to_the_same_type_keeps_all_bits(void **state)
{
    static uint32_t words[HALVES], copies[HALVES];

    (void)state;
    for (uint32_t i = 0; i < HALVES; i++)
        words[i] = i << 16 | 1;
    cast(words, copies, HALVES, GW_K_FP32, GW_K_FP32);
    assert_memory_equal(words, copies, sizeof(words));
    for (size_t f = 0; f < 2; f++) {
        memset(written, 0, sizeof(written));
        cast(halves, written, HALVES, formats[f].type, formats[f].type);
        assert_memory_equal(halves, written, sizeof(halves));
    }
}

static void halves_are_cast_to_halves_with_one_rounding(void **state)
{
    static uint16_t expected[HALVES];

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        cast(halves, floats, HALVES, formats[f].type, GW_K_FP32);
        cast(floats, expected, HALVES, GW_K_FP32, formats[1 - f].type);
        cast(halves, written, HALVES, formats[f].type, formats[1 - f].type);
        assert_memory_equal(written, expected, sizeof(expected));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_is_read_as_what_it_means),
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(ties_go_to_even_and_all_else_to_the_nearest),
        cmocka_unit_test(floats_of_all_sizes_round_to_nearest),
        cmocka_unit_test(odd_floats_have_known_halves),
        cmocka_unit_test(casting_to_the_same_type_keeps_all_bits),
        cmocka_unit_test(halves_are_cast_to_halves_with_one_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
