/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host kernels of every width and all dtypes beside arithmetic the long way: halves are read and
 * rounded in double, by their definition, and sums are paired level by level in fp32.
 * ctest: timeout=120
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "daemon/device/host/kernels_isa.h"

#define MOST 4099u
#define ROOM (MOST + 64u)
#define INPUTS 5u
#define DTYPES 3u
#define HALVES 65536u

static const size_t size_of[DTYPES] = {4, 2, 2};
static uint64_t random_state = 0x2545f4914f6cdd1dull;

static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

/* ---- halves, by definition ------------------------------------------------------------------- */

/* Bits of the fraction, and the smallest exponent of a normal number. */
static const struct form {
    int fraction, least, bias;
} forms[DTYPES] = {{23, -126, 127}, {10, -14, 15}, {7, -126, 127}};

static double value_of(uint16_t bits, uint8_t dtype)
{
    const struct form *form = &forms[dtype];
    int fraction = bits & ((1 << form->fraction) - 1);
    int exponent = (bits & 0x7fff) >> form->fraction;
    double sign = bits & 0x8000 ? -1 : 1;

    if (exponent == 2 * form->bias + 1)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, form->least - form->fraction);
    return sign * ldexp(fraction + (1 << form->fraction), exponent - form->bias - form->fraction);
}

/* The nearest number of the dtype, ties to the even one, as double: exact in it. */
static double nearest(double value, uint8_t dtype)
{
    const struct form *form = &forms[dtype];
    double unit, rounded;
    int exponent;

    if (value == 0 || !isfinite(value))
        return value;
    exponent = ilogb(value) > form->least ? ilogb(value) : form->least;
    unit = ldexp(1, exponent - form->fraction);
    rounded = rint(value / unit) * unit;
    return fabs(rounded) >= ldexp(1, form->bias + 1) ? copysign((double)INFINITY, value) : rounded;
}

/* Of what is a number of the dtype, not NaN. */
static uint16_t bits_of(double value, uint8_t dtype)
{
    const struct form *form = &forms[dtype];
    unsigned sign = signbit(value) ? 0x8000u : 0;
    double size = fabs(value);
    int exponent;

    if (isinf(value))
        return (uint16_t)(sign | (unsigned)(2 * form->bias + 1) << form->fraction);
    if (size < ldexp(1, form->least))
        return (uint16_t)(sign | (unsigned)ldexp(size, form->fraction - form->least));
    exponent = ilogb(size);
    /* The leading 1 of the fraction is what is left out of the exponent here. */
    return (uint16_t)(sign | ((unsigned)(exponent + form->bias - 1) * (1u << form->fraction) +
                              (unsigned)ldexp(size, form->fraction - exponent)));
}

static void put(void *to, uint8_t dtype, size_t at, double value)
{
    double rounded = nearest(value, dtype);
    float whole = (float)value;
    uint16_t half;

    if (dtype == GW_DTYPE_FP32) {
        memcpy((char *)to + at * 4, &whole, 4);
    } else {
        half = bits_of(rounded, dtype);
        memcpy((char *)to + at * 2, &half, 2);
    }
}

static double get(const void *from, uint8_t dtype, size_t at)
{
    float whole;
    uint16_t half;

    if (dtype == GW_DTYPE_FP32) {
        memcpy(&whole, (const char *)from + at * 4, 4);
        return (double)whole;
    }
    memcpy(&half, (const char *)from + at * 2, 2);
    return value_of(half, dtype);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint8_t inputs[DTYPES][INPUTS][ROOM * 4], before[DTYPES][ROOM * 4];
static uint8_t expected[ROOM * 4], outputs[2][ROOM * 4] __attribute__((aligned(64)));

struct plan {
    uint32_t n, outs, shift;
    uint8_t in, round, out;
    bool accumulate, past;
    uint32_t missing; /* bit per input */
};

/* Ties and denormals of all dtypes among ordinary numbers; nothing that adds up to a NaN. */
static double some_value(void)
{
    static const double odd[] = {0.0, -0.0, 1e-42, -1e-45, 6e-8, 65520, 0x1.01p0, -0x1.03p0};
    uint32_t bits = random_u32();

    if (bits % 61 == 0)
        return odd[bits / 61 % 8];
    return ldexp((double)(int32_t)random_u32(), -31 - (int)(bits % 23) + 8);
}

static int fill(void **state)
{
    (void)state;
    for (uint8_t dtype = 0; dtype < DTYPES; dtype++)
        for (uint32_t i = 0; i <= INPUTS; i++)
            for (size_t at = 0; at < ROOM; at++)
                put(i < INPUTS ? inputs[dtype][i] : before[dtype], dtype, at, some_value());
    return 0;
}

/* Input i begins i elements further, outputs `shift` ones. */
static double sum_at(const struct plan *plan, size_t at)
{
    volatile float value[INPUTS];
    volatile float sum;
    uint32_t n = plan->n;

    for (uint32_t i = 0; i < n; i++)
        value[i] = plan->missing >> i & 1
                       ? 0.0f
                       : (float)nearest(get(inputs[plan->in][i], plan->in, at + i), plan->round);
    while (n > 1) {
        uint32_t to = 0;
        for (uint32_t i = 0; i + 1 < n; i += 2)
            value[to++] = value[i] + value[i + 1];
        if (n % 2)
            value[to++] = value[n - 1];
        n = to;
    }
    sum = value[0] * 0.77f;
    if (plan->accumulate)
        sum = (float)get(before[plan->out], plan->out, at + plan->shift) + sum;
    return (double)sum;
}

static void expect(const struct plan *plan)
{
    memcpy(expected, before[plan->out], sizeof(expected));
    for (size_t at = 0; at < MOST; at++)
        put(expected, plan->out, at + plan->shift, sum_at(plan, at));
}

static void run(const struct kernel_isa *isa, const struct plan *plan, uint32_t count, uint8_t norm,
                struct kernel_partial *partials)
{
    size_t size = size_of[plan->out];
    struct kernel_moved moved = {0, 0};
    const void *in[INPUTS];
    void *out[2];

    for (uint32_t i = 0; i < plan->n; i++)
        in[i] = plan->missing >> i & 1 ? NULL : inputs[plan->in][i] + i * size_of[plan->in];
    for (uint32_t i = 0; i < plan->outs; i++) {
        memcpy(outputs[i], before[plan->out], sizeof(outputs[i]));
        out[i] = outputs[i] + plan->shift * size;
    }
    kernel_reduce_with(isa,
                       &(struct kernel_reduce){.in = in,
                                               .n = plan->n,
                                               .out = out,
                                               .outs = plan->outs,
                                               .in_dtype = plan->in,
                                               .out_dtype = plan->out,
                                               .round_dtype = plan->round,
                                               .norm = norm,
                                               .count = count,
                                               .scale = 0.77f,
                                               .accumulate = plan->accumulate,
                                               .past = plan->past,
                                               .partials = partials},
                       &moved);
    assert_int_equal(moved.written, plan->outs * count * size);
    assert_int_equal(moved.read, (plan->n - (uint32_t)__builtin_popcount(plan->missing)) * count *
                                     size_of[plan->in]);
}

/* What was asked for is there, and all around it is as before. */
static void check(const struct kernel_isa *isa, const struct plan *plan, uint32_t count)
{
    size_t begin = plan->shift * size_of[plan->out], end = begin + count * size_of[plan->out];

    run(isa, plan, count, GW_NORM_2, NULL);
    for (uint32_t i = 0; i < plan->outs; i++) {
        if (memcmp(outputs[i], expected, end) == 0 &&
            memcmp(outputs[i] + end, before[plan->out] + end, sizeof(expected) - end) == 0)
            continue;
        for (size_t at = 0; at < MOST; at++) {
            double got = get(outputs[i], plan->out, at + plan->shift);
            double right =
                get(at < count ? expected : before[plan->out], plan->out, at + plan->shift);
            if (memcmp(&got, &right, sizeof(got)) != 0)
                fail_msg("%s: n %u, %u to %u by %u, from %u, element %zu of %u: %a, expected %a",
                         isa->name, plan->n, plan->in, plan->out, plan->round, plan->shift, at,
                         count, got, right);
        }
        fail_msg("%s: n %u: bits differ around %u elements", isa->name, plan->n, count);
    }
}

static struct plan plan_of(uint32_t turn)
{
    return (struct plan){.n = 1 + turn % INPUTS,
                         .outs = 1 + turn % 2,
                         .shift = turn * 7 % 33,
                         .in = (uint8_t)(turn % 3),
                         .round = (uint8_t)(turn / 3 % 3),
                         .out = (uint8_t)(turn / 9 % 3),
                         .accumulate = turn / 27 % 2,
                         .past = turn / 54 % 2,
                         .missing = turn % 4 == 3 && turn % INPUTS > 0 ? 1u << turn % INPUTS : 0};
}

#define PLANS 108u /* dtypes, accumulating, past the caches; n and the rest turn on */

static void all_sizes_have_the_bits_of_the_long_way(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < PLANS; turn++) {
        const struct plan plan = plan_of(turn);
        expect(&plan);
        for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++)
            for (uint32_t count = turn % 4; count <= MOST; count += count < 600 ? 1 : 4)
                check(*isa, &plan, count);
    }
}

static void alignments_change_no_bit(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < PLANS; turn += 5) {
        struct plan plan = plan_of(turn);
        for (plan.shift = 0; plan.shift < 33; plan.shift++) {
            expect(&plan);
            for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
                check(*isa, &plan, 600 + plan.shift);
                check(*isa, &plan, MOST);
            }
        }
    }
}

/* ---- partials -------------------------------------------------------------------------------- */

static struct kernel_partial partial_of(const struct plan *plan, size_t from, size_t to,
                                        uint8_t norm)
{
    volatile double lane[16] = {0};
    struct kernel_partial partial = {0, 0};

    for (size_t at = from; at < to; at++) {
        double value = get(expected, plan->out, at + plan->shift);
        volatile double square = value * value;
        lane[(at - from) % 16] = lane[(at - from) % 16] + square;
        partial.nonfinite += isfinite(value) ? 0 : 1;
        if (norm == GW_NORM_MAX && fabs(value) > partial.norm)
            partial.norm = fabs(value);
    }
    for (size_t width = 8; width > 0; width /= 2)
        for (size_t i = 0; i < width; i++)
            lane[i] = lane[2 * i] + lane[2 * i + 1];
    if (norm == GW_NORM_2)
        partial.norm = lane[0];
    return partial;
}

static void partials_are_of_what_is_stored(void **state)
{
    static const uint32_t sizes[] = {1, 15, 16, 17, 511, 512, 513, 4095, 4096, 4097, 4099};

    (void)state;
    for (uint32_t turn = 0; turn < PLANS * 2; turn++) {
        const struct plan plan = plan_of(turn / 2);
        uint8_t norm = turn % 2 ? GW_NORM_MAX : GW_NORM_2;
        expect(&plan);
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            size_t first = sizes[s] < KERNEL_CHUNK ? sizes[s] : KERNEL_CHUNK;
            struct kernel_partial right[2] = {partial_of(&plan, 0, first, norm),
                                              partial_of(&plan, first, sizes[s], norm)};
            for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
                struct kernel_partial got[2] = {{0, 0}, {0, 0}};
                run(*isa, &plan, sizes[s], norm, got);
                assert_memory_equal(got, right, sizeof(got));
            }
        }
    }
}

/* ---- what is not a number -------------------------------------------------------------------- */

static void odd_values_propagate_in_every_dtype(void **state)
{
    static const float values[8] = {1, INFINITY, -INFINITY, NAN, -3, 3e38f, -0.0f, 0};

    (void)state;
    for (uint8_t out = 0; out < DTYPES; out++)
        for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++)
            for (uint8_t norm = 0; norm < 2; norm++) {
                uint8_t got[32];
                const void *in[2] = {values, values};
                void *to[1] = {got};
                struct kernel_partial partial;
                struct kernel_moved moved = {0, 0};
                kernel_reduce_with(*isa,
                                   &(struct kernel_reduce){.in = in,
                                                           .n = 2,
                                                           .out = to,
                                                           .outs = 1,
                                                           .out_dtype = out,
                                                           .norm = norm,
                                                           .count = 8,
                                                           .scale = 0.5f,
                                                           .partials = &partial},
                                   &moved);
                assert_true(get(got, out, 0) == 1 && get(got, out, 4) == -3);
                assert_true(isinf(get(got, out, 1)) && get(got, out, 1) > 0);
                assert_true(isinf(get(got, out, 2)) && get(got, out, 2) < 0);
                assert_true(isnan(get(got, out, 3)));
                assert_true(isinf(get(got, out, 5))); /* the sum in fp32 is too large */
                assert_true(get(got, out, 6) == 0 && signbit(get(got, out, 6)));
                assert_int_equal(partial.nonfinite, 4);
                assert_true(isnan(partial.norm));
            }
}

static void an_infinity_is_the_largest_but_for_nan(void **state)
{
    float values[40] = {0};
    const void *in[1] = {values};
    void *to[1] = {outputs[0]};
    struct kernel_partial partial;
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce reduce = {.in = in,
                                   .n = 1,
                                   .out = to,
                                   .outs = 1,
                                   .norm = GW_NORM_MAX,
                                   .count = 40,
                                   .scale = 1,
                                   .partials = &partial};

    (void)state;
    for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
        values[37] = -2.5f;
        kernel_reduce_with(*isa, &reduce, &moved);
        assert_true(partial.norm == 2.5 && partial.nonfinite == 0);
        values[37] = -INFINITY;
        kernel_reduce_with(*isa, &reduce, &moved);
        assert_true(isinf(partial.norm) && partial.norm > 0 && partial.nonfinite == 1);
    }
}

/* ---- casts ----------------------------------------------------------------------------------- */

/* Every half; and every upper half of a float with lower bits at and around ties. */
static void casts_are_the_nearest_ties_to_even(void **state)
{
    static const uint32_t lows[] = {0,      1,      0x7fff, 0x8000, 0x8001, 0xffff,
                                    0x0fff, 0x1000, 0x1001, 0x3000, 0x2fff, 0xf000};
    static float from[HALVES];
    static uint16_t to[HALVES];

    (void)state;
    for (uint8_t dtype = GW_DTYPE_FP16; dtype < DTYPES; dtype++)
        for (size_t l = 0; l < sizeof(lows) / sizeof(lows[0]); l++) {
            for (uint32_t i = 0; i < HALVES; i++)
                memcpy(&from[i], &(uint32_t){i << 16 | lows[l]}, sizeof(from[i]));
            kernel_cast(to, dtype, from, HALVES, l % 2);
            for (uint32_t i = 0; i < HALVES; i++) {
                double right = nearest((double)from[i], dtype);
                if (isnan(right) ? !isnan(value_of(to[i], dtype)) : to[i] != bits_of(right, dtype))
                    fail_msg("dtype %u of %a: bits %04x, expected %a", dtype, (double)from[i],
                             to[i], right);
            }
        }
}

static void halves_are_read_as_they_are_defined(void **state)
{
    static uint16_t from[HALVES];
    static float to[HALVES];
    const void *in[1] = {from};
    void *out[1] = {to};
    struct kernel_moved moved = {0, 0};

    (void)state;
    for (uint32_t i = 0; i < HALVES; i++)
        from[i] = (uint16_t)i;
    for (uint8_t dtype = GW_DTYPE_FP16; dtype < DTYPES; dtype++)
        for (const struct kernel_isa *const *isa = kernel_isas(); *isa; isa++) {
            kernel_reduce_with(*isa,
                               &(struct kernel_reduce){.in = in,
                                                       .n = 1,
                                                       .out = out,
                                                       .outs = 1,
                                                       .in_dtype = dtype,
                                                       .count = HALVES,
                                                       .scale = 1},
                               &moved);
            for (uint32_t i = 0; i < HALVES; i++) {
                double right = value_of(from[i], dtype), got = (double)to[i];
                if (isnan(right) ? !isnan(got) : memcmp(&got, &right, sizeof(got)) != 0)
                    fail_msg("%s: dtype %u, bits %04x: %a, expected %a", (*isa)->name, dtype, i,
                             got, right);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes_have_the_bits_of_the_long_way),
        cmocka_unit_test(alignments_change_no_bit),
        cmocka_unit_test(partials_are_of_what_is_stored),
        cmocka_unit_test(odd_values_propagate_in_every_dtype),
        cmocka_unit_test(an_infinity_is_the_largest_but_for_nan),
        cmocka_unit_test(casts_are_the_nearest_ties_to_even),
        cmocka_unit_test(halves_are_read_as_they_are_defined),
    };

    return cmocka_run_group_tests(tests, fill, NULL);
}
