/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text put together in a buffer of fixed size. Pure; any thread.
 *
 *   char line[128];
 *   struct text text = TEXT(line);
 *   text_add(&text, "rank %u", rank);
 *
 * The buffer is a string at all times. What does not fit is cut and `cut` is set; nothing fails.
 */
#ifndef GW_BASE_TEXT_H
#define GW_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/ranks.h"

struct text {
    char *buffer;
    size_t bytes; /* of the buffer, final 0 included */
    size_t used;  /* without the 0 */
    bool cut;
};

/* For an array; sets no byte, so add something (or "") before reading it. */
#define TEXT(array)                                                                                \
    {                                                                                              \
        (array), sizeof(array), 0, false                                                           \
    }

/* Starts an empty string in buffer. */
void text_start(struct text *text, char *buffer, size_t bytes);
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_addv(struct text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
/* Escaped as escape.h says. */
void text_add_escaped(struct text *text, const char *client_text);
/* A set of ranks: "0, 2-5, 7"; "none". */
void text_add_ranks(struct text *text, const struct ranks *ranks);

#endif
