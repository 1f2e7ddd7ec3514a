/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mistakes that test builds (GW_TEST_EDGES) can be told to make, by GRADWIRE_PLANT=<name>: the fake
 * GPU or wrong values have to show each. tests/fakegpu/faults.def lists them; all other builds have
 * none. Any thread.
 */
#ifndef GW_DEVICE_CUDA_PLANT_H
#define GW_DEVICE_CUDA_PLANT_H

#ifdef GW_TEST_EDGES
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool planted(const char *name)
{
    const char *plant = getenv("GRADWIRE_PLANT");

    return plant && strcmp(plant, name) == 0;
}
#else
#define planted(name) false
#endif

#endif
