/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes, durations and ports as people write them, for options and configuration alike. Exact: no
 * floating point, nothing rounded. Pure; any thread.
 *
 * The whole text must be used (no blanks). Errors: GW_E_INVALID (malformed, or not a whole number
 * of the smallest unit), GW_E_LIMIT (too large).
 */
#ifndef GW_BASE_PARSE_H
#define GW_BASE_PARSE_H

#include <stdint.h>

/* "4096", "64M", "1GiB", "5e8", "1.5G", "25MB". K M G T and KiB MiB GiB TiB (any case): powers of
 * 1024; kB MB GB TB (any case): powers of 1000; B or nothing: 1. */
int parse_size(const char *text, uint64_t *ret_size);
/* Plain digits, min..max. */
int parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value);
/* "10s", "2min", "500ms", "1.5h", "3us", "7ns", "1d"; no unit: seconds; "infinity": INT64_MAX. */
int parse_duration(const char *text, int64_t *ret_ns);

/* "46200-46399", or one port; 1..65535 in order. "0": both 0, any free one. */
int parse_ports(const char *text, uint16_t *ret_first, uint16_t *ret_last);

#endif
