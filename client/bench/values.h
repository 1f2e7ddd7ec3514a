/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that are sent and expected: whole numbers so small that sums of 64 ranks are exact in fp32
 * in any order. Pure, but for values_plant; any thread.
 */
#ifndef GW_BENCH_VALUES_H
#define GW_BENCH_VALUES_H

#include <stdbool.h>
#include <stdint.h>

enum { VALUES_SPOTS = 16 };

/* to[i] = factor * (1 + (first + i) % 251) + add */
void values_fill(float *to, uint64_t count, uint64_t first, float factor);
/* Index of the first value that differs from that; count: none. */
uint64_t values_check(const float *values, uint64_t count, uint64_t first, float factor, float add);
/* The same at VALUES_SPOTS places only, first and last included. */
bool values_spots(const float *values, uint64_t count, uint64_t first, float factor, float add);
/* Makes these places NaN, so that an op that writes nothing is found. */
void values_poison_spots(float *values, uint64_t count);
float values_at(uint64_t index, float factor);
/* Builds with GW_TEST_EDGES: if $GRADWIRE_BENCH_PLANT is `system`, one of the values to send is
 * made wrong. True: it was, or a peer should do so. */
bool values_planted(const char *system);
void values_plant(const char *system, float *values, uint64_t count);

#endif
