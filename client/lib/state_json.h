/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of JSON text from left to right, for the headers of safetensors files: no tree, no
 * memory, no recursion, so a header of 100 MB costs nothing beside itself. Libgradwire links no
 * JSON library for it: jansson's are the daemon's and gwctl's. Any thread; touches nothing but the
 * text.
 *
 * After a failure (false) the scanner stays where it was wrong: `at`.
 */
#ifndef GW_CLIENT_STATE_JSON_H
#define GW_CLIENT_STATE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scan {
    const char *at, *end;
};

/* Spaces, then this character. `peek` does not take it. */
bool scan_mark(struct scan *scan, char mark);
bool scan_peek(struct scan *scan, char mark);
/* A string, as UTF-8 with a final 0. *ret_bytes: its whole length; what does not fit is cut. A 0
 * inside (\u0000) is refused. */
bool scan_string(struct scan *scan, char *buffer, size_t bytes, size_t *ret_bytes);
/* A whole number from 0, below 2^63, without fraction or exponent. */
bool scan_number(struct scan *scan, uint64_t *ret_number);
/* Any value, at most 64 deep. */
bool scan_skip(struct scan *scan);
/* Spaces to the end. */
bool scan_end(struct scan *scan);

#endif
