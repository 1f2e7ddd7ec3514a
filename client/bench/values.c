/* SPDX-License-Identifier: Apache-2.0 */
/* See values.h. Its half types are the compiler's, not the service's kernels. */
#include "client/bench/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD = 61 };

size_t values_bytes(uint32_t type)
{
    return type == GW_DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t);
}

/* 4 * 61 has 8 significant bits, which is all that bf16 holds. */
float values_factor(uint32_t type, uint32_t rank)
{
    return (float)(1 + (values_bytes(type) == sizeof(uint16_t) ? rank % 4 : rank));
}

float values_sum_factor(uint32_t type, uint32_t ranks)
{
    float sum = 0.0f;

    for (uint32_t rank = 0; rank < ranks; rank++)
        sum += values_factor(type, rank);
    return sum;
}

/* ---- one element's bits ---------------------------------------------------------------------- */

static uint32_t encode(uint32_t type, float value)
{
    uint32_t bits;
    _Float16 half;

    memcpy(&bits, &value, sizeof bits);
    switch (type) {
    case GW_DTYPE_FP16:
        half = (_Float16)value;
        bits = 0;
        memcpy(&bits, &half, sizeof half);
        return bits;
    case GW_DTYPE_BF16: /* to nearest, ties to even; values here are finite */
        return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    case VALUES_U16:
        return (uint32_t)value & 0xffffu;
    default:
        return bits;
    }
}

static float decode(uint32_t type, uint32_t bits)
{
    _Float16 half;
    float value;

    if (type == VALUES_U16)
        return (float)bits;
    if (type == GW_DTYPE_FP16) {
        memcpy(&half, &bits, sizeof half);
        return (float)half;
    }
    if (type == GW_DTYPE_BF16)
        bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t load(uint32_t type, const void *is, uint64_t index)
{
    return values_bytes(type) == sizeof(uint16_t) ? ((const uint16_t *)is)[index]
                                                  : ((const uint32_t *)is)[index];
}

static void store(uint32_t type, void *to, uint64_t index, uint32_t bits)
{
    if (values_bytes(type) == sizeof(uint16_t))
        ((uint16_t *)to)[index] = (uint16_t)bits;
    else
        ((uint32_t *)to)[index] = bits;
}

static uint32_t must_bits(const struct values *must, uint64_t index)
{
    float whole = (float)(1 + (must->first + index) % PERIOD);

    return encode(must->type, must->factor * whole + must->add);
}

float values_is(uint32_t type, const void *is, uint64_t index)
{
    return decode(type, load(type, is, index));
}

float values_must(const struct values *must, uint64_t index)
{
    return decode(must->type, must_bits(must, index));
}

double values_norm(const struct values *must, uint64_t count)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < PERIOD; i++) {
        double value = (double)values_must(must, i);

        sum += value * value * (double)((count + PERIOD - 1 - i) / PERIOD);
    }
    return sqrt(sum);
}

/* ---- many ------------------------------------------------------------------------------------ */

static void one_period(const struct values *must, uint32_t bits[PERIOD])
{
    for (uint32_t i = 0; i < PERIOD; i++)
        bits[i] = must_bits(must, i);
}

void values_fill(void *to, uint64_t count, const struct values *must)
{
    uint32_t bits[PERIOD], phase = 0;

    one_period(must, bits);
    for (uint64_t i = 0; i < count; i++) {
        store(must->type, to, i, bits[phase]);
        phase = phase + 1 == PERIOD ? 0 : phase + 1;
    }
}

uint64_t values_check(const void *is, uint64_t count, const struct values *must)
{
    uint32_t bits[PERIOD], phase = 0;

    one_period(must, bits);
    for (uint64_t i = 0; i < count; i++) {
        if (load(must->type, is, i) != bits[phase])
            return i;
        phase = phase + 1 == PERIOD ? 0 : phase + 1;
    }
    return count;
}

static uint64_t spot(uint64_t count, uint64_t index)
{
    return (count - 1) / (VALUES_SPOTS - 1) * index +
           (count - 1) % (VALUES_SPOTS - 1) * index / (VALUES_SPOTS - 1);
}

bool values_spots(const void *is, uint64_t count, const struct values *must)
{
    for (uint64_t i = 0; count > 0 && i < VALUES_SPOTS; i++) {
        uint64_t at = spot(count, i);

        if (load(must->type, is, at) != must_bits(must, at))
            return false;
    }
    return true;
}

/* All bits set: a NaN of each type. */
void values_poison_spots(uint32_t type, void *is, uint64_t count)
{
    for (uint64_t i = 0; count > 0 && i < VALUES_SPOTS; i++)
        store(type, is, spot(count, i), 0xffffffffu);
}

bool values_planted(const char *system)
{
#ifdef GW_TEST_EDGES
    const char *wanted = secure_getenv("GRADWIRE_BENCH_PLANT");

    return wanted != NULL && strcmp(wanted, system) == 0;
#else
    (void)system;
    return false;
#endif
}

/* Twice the value: more than a half type's rounding of a sum hides. */
void values_plant(const char *system, uint32_t type, void *values, uint64_t count)
{
    uint64_t at = count / 2;

    if (values_planted(system) && count > 0)
        store(type, values, at, encode(type, 2.0f * values_is(type, values, at)));
}
