/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs worth mutating: seeds, the kept corpus, and what found new edges since. One thread. */
#ifndef TESTS_FUZZ_POOL_H
#define TESTS_FUZZ_POOL_H

#include <stddef.h>
#include <stdint.h>

/* A copy; what does not fit any more is left out. */
void pool_add(const uint8_t *data, size_t bytes);
size_t pool_count(void);
/* Copies entry `at` into buffer and returns its bytes. */
size_t pool_get(size_t at, uint8_t *buffer, size_t buffer_bytes);
/* All files of a directory, by name. < 0: it cannot be read. */
int pool_read(const char *directory);
/* Into a directory, as files 00, 01, ...: few entries that together reach every edge that all do,
 * each run with run(). < 0: cannot be written. */
int pool_write(const char *directory, void (*run)(const uint8_t *data, size_t bytes));

#endif
