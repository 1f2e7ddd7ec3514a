/* SPDX-License-Identifier: Apache-2.0 */
/* See values.h. */
#include "client/bench/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD = 251 };

float values_at(uint64_t index, float factor)
{
    return factor * (float)(1 + index % PERIOD);
}

void values_fill(float *to, uint64_t count, uint64_t first, float factor)
{
    uint64_t phase = first % PERIOD;

    for (uint64_t i = 0; i < count; i++) {
        to[i] = factor * (float)(1 + phase);
        phase = phase + 1 == PERIOD ? 0 : phase + 1;
    }
}

uint64_t values_check(const float *values, uint64_t count, uint64_t first, float factor, float add)
{
    uint64_t phase = first % PERIOD;

    for (uint64_t i = 0; i < count; i++) {
        if (!(values[i] == factor * (float)(1 + phase) + add))
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

bool values_spots(const float *values, uint64_t count, uint64_t first, float factor, float add)
{
    for (uint64_t i = 0; count > 0 && i < VALUES_SPOTS; i++) {
        uint64_t at = spot(count, i);

        if (!(values[at] == values_at(first + at, factor) + add))
            return false;
    }
    return true;
}

void values_poison_spots(float *values, uint64_t count)
{
    for (uint64_t i = 0; count > 0 && i < VALUES_SPOTS; i++)
        values[spot(count, i)] = NAN;
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

void values_plant(const char *system, float *values, uint64_t count)
{
    if (values_planted(system) && count > 0)
        values[count / 2] += 1.0f;
}
