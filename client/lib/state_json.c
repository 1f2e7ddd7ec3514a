/* SPDX-License-Identifier: Apache-2.0 */
/* Left to right through JSON; see state_json.h. Any thread. */
#include "client/lib/state_json.h"

#include <string.h>

#define DEPTH_MAX 64u

static void skip_spaces(struct scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r'))
        scan->at++;
}

bool scan_peek(struct scan *scan, char mark)
{
    skip_spaces(scan);
    return scan->at < scan->end && *scan->at == mark;
}

bool scan_mark(struct scan *scan, char mark)
{
    bool there = scan_peek(scan, mark);

    scan->at += there;
    return there;
}

bool scan_end(struct scan *scan)
{
    skip_spaces(scan);
    return scan->at == scan->end;
}

/* ---- strings --------------------------------------------------------------------------------- */

struct sink {
    char *buffer;
    size_t room, used; /* used: of the whole string */
};

static void put(struct sink *sink, uint32_t byte)
{
    if (sink->used + 1 < sink->room)
        sink->buffer[sink->used] = (char)byte;
    sink->used++;
}

static void put_character(struct sink *sink, uint32_t c)
{
    if (c < 0x80) {
        put(sink, c);
        return;
    }
    if (c < 0x800) {
        put(sink, 0xc0 | c >> 6);
    } else {
        if (c < 0x10000) {
            put(sink, 0xe0 | c >> 12);
        } else {
            put(sink, 0xf0 | c >> 18);
            put(sink, 0x80 | (c >> 12 & 0x3f));
        }
        put(sink, 0x80 | (c >> 6 & 0x3f));
    }
    put(sink, 0x80 | (c & 0x3f));
}

static bool hex4(struct scan *scan, uint32_t *ret_value)
{
    uint32_t value = 0;

    if (scan->end - scan->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        char c = scan->at[i];

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return false;
    }
    scan->at += 4;
    *ret_value = value;
    return true;
}

/* After \u: one unit, or two that are one character beyond the first 65536. */
static bool unicode(struct scan *scan, struct sink *sink)
{
    uint32_t c = 0, low = 0;

    if (!hex4(scan, &c) || c == 0 || (c >= 0xdc00 && c < 0xe000))
        return false;
    if (c >= 0xd800 && c < 0xdc00) {
        if (scan->end - scan->at < 6 || scan->at[0] != '\\' || scan->at[1] != 'u')
            return false;
        scan->at += 2;
        if (!hex4(scan, &low) || low < 0xdc00 || low >= 0xe000)
            return false;
        c = 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00));
    }
    put_character(sink, c);
    return true;
}

static bool escaped(struct scan *scan, struct sink *sink)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;
    char c;

    if (scan->at == scan->end)
        return false;
    c = *scan->at++;
    if (c == 'u')
        return unicode(scan, sink);
    found = c ? strchr(from, c) : NULL;
    if (!found)
        return false;
    put(sink, (unsigned char)to[found - from]);
    return true;
}

bool scan_string(struct scan *scan, char *buffer, size_t bytes, size_t *ret_bytes)
{
    struct sink sink = {.buffer = buffer, .room = bytes};

    if (!scan_mark(scan, '"'))
        return false;
    while (scan->at < scan->end && *scan->at != '"') {
        unsigned char c = (unsigned char)*scan->at;

        if (c < 0x20)
            return false;
        scan->at++;
        if (c != '\\')
            put(&sink, c);
        else if (!escaped(scan, &sink))
            return false;
    }
    if (!scan_mark(scan, '"'))
        return false;
    if (bytes > 0)
        buffer[sink.used < bytes ? sink.used : bytes - 1] = '\0';
    *ret_bytes = sink.used;
    return true;
}

/* ---- other values ---------------------------------------------------------------------------- */

static bool is_digit(const struct scan *scan)
{
    return scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9';
}

bool scan_number(struct scan *scan, uint64_t *ret_number)
{
    uint64_t number = 0;

    skip_spaces(scan);
    if (!is_digit(scan))
        return false;
    if (*scan->at == '0') {
        scan->at++;
    } else {
        for (; is_digit(scan); scan->at++) {
            if (__builtin_mul_overflow(number, 10u, &number) ||
                __builtin_add_overflow(number, (uint64_t)(*scan->at - '0'), &number) ||
                number > INT64_MAX)
                return false;
        }
    }
    if (scan->at < scan->end && strchr("0123456789.eE", *scan->at) && *scan->at)
        return false;
    *ret_number = number;
    return true;
}

/* A number of any kind, or a word; loosely, as its value is of no use here. */
static bool skip_plain(struct scan *scan)
{
    const char *start = scan->at;

    while (scan->at < scan->end &&
           ((*scan->at >= '0' && *scan->at <= '9') || (*scan->at >= 'a' && *scan->at <= 'z') ||
            *scan->at == '-' || *scan->at == '+' || *scan->at == '.' || *scan->at == 'E'))
        scan->at++;
    return scan->at > start;
}

/* A scalar, or an opening bracket: then *depth is one more. */
static bool skip_one(struct scan *scan, uint64_t *objects, unsigned *depth)
{
    bool object = scan_peek(scan, '{');
    size_t bytes;

    if (!object && !scan_peek(scan, '['))
        return scan_peek(scan, '"') ? scan_string(scan, NULL, 0, &bytes) : skip_plain(scan);
    if (*depth == DEPTH_MAX)
        return false;
    scan->at++;
    *objects = *objects << 1 | object;
    (*depth)++;
    return true;
}

static bool skip_key(struct scan *scan)
{
    size_t bytes;

    return scan_string(scan, NULL, 0, &bytes) && scan_mark(scan, ':');
}

/* Bit 0 of `objects`: the innermost bracket is one of an object. */
bool scan_skip(struct scan *scan)
{
    uint64_t objects = 0;
    unsigned depth = 0;
    bool fresh; /* right behind an opening bracket */

    for (;;) {
        unsigned before = depth;

        if (!skip_one(scan, &objects, &depth))
            return false;
        fresh = depth > before;
        while (depth > 0 && scan_mark(scan, objects & 1 ? '}' : ']')) {
            objects >>= 1;
            depth--;
            fresh = false;
        }
        if (depth == 0)
            return true;
        if (!fresh && !scan_mark(scan, ','))
            return false;
        if ((objects & 1) && !skip_key(scan))
            return false;
    }
}
