/* SPDX-License-Identifier: Apache-2.0 */
/* Client-chosen text made safe to print. Pure; any thread. */
#include "daemon/base/escape.h"

#include <string.h>

#define ESCAPE_LONGEST 6u /* \u00XX */

static size_t escape_byte(unsigned char byte, char out[ESCAPE_LONGEST])
{
    static const char hex[] = "0123456789abcdef";

    if (byte == '"' || byte == '\\') {
        out[0] = '\\';
        out[1] = (char)byte;
        return 2;
    }
    if (byte >= 0x20 && byte < 0x7f) {
        out[0] = (char)byte;
        return 1;
    }
    memcpy(out, "\\u00", 4);
    out[4] = hex[byte >> 4];
    out[5] = hex[byte & 15u];
    return ESCAPE_LONGEST;
}

size_t escape_text(const char *text, size_t text_bytes, char *buffer, size_t buffer_bytes)
{
    char piece[ESCAPE_LONGEST];
    size_t used = 0;
    size_t bytes;

    if (buffer_bytes == 0)
        return 0;
    for (size_t i = 0; i < text_bytes; i++) {
        bytes = escape_byte((unsigned char)text[i], piece);
        if (bytes > buffer_bytes - 1 - used)
            break;
        memcpy(buffer + used, piece, bytes);
        used += bytes;
    }
    buffer[used] = 0;
    return used;
}

const char *escape_string(const char *text, char *buffer, size_t buffer_bytes)
{
    (void)escape_text(text, text ? strlen(text) : 0, buffer, buffer_bytes);
    return buffer;
}
