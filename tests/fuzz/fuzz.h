/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each fuzz_<name>.c defines: libFuzzer's entry, and for driver.c its seeds. With clang:
 * -fsanitize=fuzzer,address in place of driver.c.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Seed number `index` into buffer; its bytes, 0 when there is none. */
size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes);
/* Makes right again what would stop a mutated input at the door. */
void fuzz_repair(uint8_t *data, size_t bytes);

#endif
