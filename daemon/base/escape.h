/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that a client chose, made safe to print: for logs, status, metrics and JSON strings alike.
 * Pure; any thread.
 *
 * Printable ASCII stays, but `"` and `\` get a backslash; every other byte, those of UTF-8
 * included, becomes \u00XX. So the result is plain ASCII, holds no control character, and stands
 * between quotes in JSON as it is.
 */
#ifndef GW_BASE_ESCAPE_H
#define GW_BASE_ESCAPE_H

#include <stddef.h>

/* Room that always suffices for `n` bytes of text, final 0 included. */
#define ESCAPE_BYTES(n) ((n)*6u + 1u)

/* Escapes text_bytes bytes into buffer, always ended by a 0 (if buffer_bytes > 0). Text that does
 * not fit is cut, never inside an escape. Returns the bytes written, without the 0. */
size_t escape_text(const char *text, size_t text_bytes, char *buffer, size_t buffer_bytes);
/* The same up to the text's 0; returns buffer, for use as an argument. NULL counts as "". */
const char *escape_string(const char *text, char *buffer, size_t buffer_bytes);

#endif
