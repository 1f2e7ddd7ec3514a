/* SPDX-License-Identifier: Apache-2.0 */
/* Option structs that may grow: the caller's struct_size says which fields it knows. Any thread. */
#ifndef GW_CLIENT_OPTIONS_H
#define GW_CLIENT_OPTIONS_H

#include <stddef.h>

/* Copies the caller's struct (its first field is size_t struct_size) over zeros. Fields that the
 * caller does not know stay 0, their default; fields that this library does not know must be 0. */
int options_take(void *options, size_t bytes, const void *given, size_t min_bytes,
                 const char *what);

#endif
