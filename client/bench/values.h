/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that are sent and expected: whole numbers so small that every type holds what is sent, and
 * that sums of 64 ranks are exact in fp32 in any order; a half type's result is that sum, rounded
 * once. Pure, but for values_plant; any thread.
 */
#ifndef GW_BENCH_VALUES_H
#define GW_BENCH_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <gradwire/gradwire.h>

enum {
    VALUES_SPOTS = 16,
    /* Beside enum gw_dtype: whole numbers of 16 bits, which wrap. The limit's, for half types. */
    VALUES_U16 = GW_DTYPES,
    VALUES_TYPES
};

/* Element i is factor * (1 + (first + i) % 61) + add. */
struct values {
    uint32_t type;
    uint64_t first;
    float factor, add;
};

size_t values_bytes(uint32_t type);
/* Factor of what a rank sends, and of the sum over all ranks. */
float values_factor(uint32_t type, uint32_t rank);
float values_sum_factor(uint32_t type, uint32_t ranks);

void values_fill(void *to, uint64_t count, const struct values *must);
/* Index of the first element whose bits differ; count: none. */
uint64_t values_check(const void *is, uint64_t count, const struct values *must);
/* The same at VALUES_SPOTS places only, first and last included. */
bool values_spots(const void *is, uint64_t count, const struct values *must);
/* Gives these places bits that are never expected, so that an op that writes nothing is found. */
void values_poison_spots(uint32_t type, void *is, uint64_t count);
/* One element, for messages; `index` 0 of values_must is must->first. */
float values_is(uint32_t type, const void *is, uint64_t index);
float values_must(const struct values *must, uint64_t index);
/* The root of the squares' sum. */
double values_norm(const struct values *must, uint64_t count);
/* Builds with GW_TEST_EDGES: if $GRADWIRE_BENCH_PLANT is `system`, one of the values to send is
 * made wrong. True: it was, or a peer should do so. */
bool values_planted(const char *system);
void values_plant(const char *system, uint32_t type, void *values, uint64_t count);

#endif
