/* SPDX-License-Identifier: Apache-2.0 */
/* Text in a buffer of fixed size. Pure; any thread. */
#include "daemon/base/text.h"

#include <stdio.h>

#include "daemon/base/escape.h"

void text_start(struct text *text, char *buffer, size_t bytes)
{
    *text = (struct text){.buffer = buffer, .bytes = bytes};
    if (bytes > 0)
        buffer[0] = 0;
}

void text_addv(struct text *text, const char *format, va_list arguments)
{
    size_t room = text->bytes - text->used;
    int r;

    if (room == 0)
        return;
    r = vsnprintf(text->buffer + text->used, room, format, arguments);
    if (r < 0) {
        text->buffer[text->used] = 0;
        text->cut = true;
    } else if ((size_t)r >= room) {
        text->used = text->bytes - 1;
        text->cut = true;
    } else {
        text->used += (size_t)r;
    }
}

void text_add(struct text *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    text_addv(text, format, arguments);
    va_end(arguments);
}

void text_add_escaped(struct text *text, const char *client_text)
{
    char piece[ESCAPE_BYTES(1)];

    /* Byte by byte, so that an escape is written whole or not at all. */
    for (; client_text && *client_text; client_text++) {
        if (escape_text(client_text, 1, piece, sizeof(piece)) >= text->bytes - text->used) {
            text->cut = true;
            break;
        }
        text_add(text, "%s", piece);
    }
    text_add(text, "%s", "");
}

void text_add_ranks(struct text *text, const struct ranks *ranks)
{
    const char *comma = "";
    uint32_t rank = ranks_first(ranks), last;

    if (rank == GW_RANKS_MAX)
        text_add(text, "none");
    for (; rank < GW_RANKS_MAX; rank = ranks_next(ranks, last + 1)) {
        last = rank;
        while (last + 1 < GW_RANKS_MAX && ranks_has(ranks, last + 1))
            last++;
        if (last == rank)
            text_add(text, "%s%u", comma, rank);
        else
            text_add(text, last == rank + 1 ? "%s%u, %u" : "%s%u-%u", comma, rank, last);
        comma = ", ";
    }
}
