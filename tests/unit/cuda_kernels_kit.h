/* SPDX-License-Identifier: Apache-2.0 */
/* Running CUDA kernels on the CPU: finds one in the table of the CPU build, and is its threads. */
#ifndef GW_TESTS_CUDA_KERNELS_KIT_H
#define GW_TESTS_CUDA_KERNELS_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "daemon/device/cuda/kernel.h"
#include "daemon/device/cuda/kernels.h"

extern const struct gw_kernel_entry gw_kernel_table[];

/* As `threads` threads of which the last comes first: their order is nobody's promise. */
static inline void run_kernel(const char *name, const void *arg, size_t arg_bytes, uint64_t threads)
{
    for (const struct gw_kernel_entry *entry = gw_kernel_table; entry->name; entry++) {
        if (strcmp(entry->name, name) != 0)
            continue;
        assert_int_equal(entry->arg_bytes, arg_bytes);
        for (uint64_t i = threads; i-- > 0;)
            entry->run(arg, i, threads);
        return;
    }
    fail_msg("no kernel %s in the CPU build", name);
}
#define RUN(kernel, arg, threads) run_kernel(#kernel, arg, sizeof(struct kernel), threads)

static inline uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

#endif
