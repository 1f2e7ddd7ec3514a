/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protobuf bodies from a short notation, written apart from protobuf-c:
 *
 *   "1=5"       field 1, varint 5; "0x..." too
 *   "4=t8"      field 4, 8 bytes of 'a'; "4=z" the 3 bytes a, NUL, a
 *   "9=d1.5"    field 9, a double ("dnan", "dinf")
 *   "2=f"       field 2, 4 bytes
 *   "3=(1=t1)"  field 3, a message; "3=(...)*7" seven times
 *
 * Parts are parted by one blank. Two levels, like the protocol.
 */
#ifndef TESTS_UNIT_WIRE_BODY_H
#define TESTS_UNIT_WIRE_BODY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

struct body {
    size_t used;
    uint8_t bytes[1u << 17];
};

static inline void body_raw(struct body *body, const void *bytes, size_t count)
{
    if (count > sizeof(body->bytes) - body->used)
        abort();
    memcpy(body->bytes + body->used, bytes, count);
    body->used += count;
}

static inline void body_varint(struct body *body, uint64_t value)
{
    uint8_t byte;

    do {
        byte = (uint8_t)(value & 0x7f);
        value >>= 7;
        byte |= value ? 0x80 : 0;
        body_raw(body, &byte, 1);
    } while (value);
}

/* Bytes of field `number`. */
static inline void body_bytes(struct body *body, uint64_t number, const void *bytes, size_t count)
{
    body_varint(body, number << 3 | 2);
    body_varint(body, count);
    body_raw(body, bytes, count);
}

/* One part that is no message; returns what follows it. */
static inline const char *body_part(struct body *body, const char *text)
{
    static char filler[1u << 17];
    char *end;
    const uint64_t number = strtoull(text, &end, 0);
    double real;

    if (*end++ != '=')
        abort();
    switch (*end) {
    case 't':
        memset(filler, 'a', sizeof(filler));
        body_bytes(body, number, filler, strtoull(end + 1, &end, 0));
        break;
    case 'z':
        body_bytes(body, number, "a\0a", 3);
        end++;
        break;
    case 'd':
        real = strtod(end + 1, &end);
        body_varint(body, number << 3 | 1);
        body_raw(body, &real, 8);
        break;
    case 'f':
        body_varint(body, number << 3 | 5);
        body_raw(body, "abcd", 4);
        end++;
        break;
    default:
        body_varint(body, number << 3);
        body_varint(body, strtoull(end, &end, 0));
        break;
    }
    return end;
}

static inline const char *body_message(struct body *body, const char *text)
{
    static struct body inner;
    char *end;
    const uint64_t number = strtoull(text, &end, 0);
    unsigned long times = 1;
    const char *at = end + 2; /* "=(" */

    inner.used = 0;
    while (*at != ')') {
        at = body_part(&inner, at);
        while (*at == ' ')
            at++;
    }
    at++;
    if (*at == '*') {
        times = strtoul(at + 1, &end, 0);
        at = end;
    }
    while (times-- > 0)
        body_bytes(body, number, inner.bytes, inner.used);
    return at;
}

static inline void body_write(struct body *body, const char *text)
{
    while (*text) {
        const char *equals = strchr(text, '=');

        if (!equals)
            abort();
        text = equals[1] == '(' ? body_message(body, text) : body_part(body, text);
        while (*text == ' ')
            text++;
    }
}

/* A whole packet; the header is as gw_frame_header writes it (golden bytes: test_frame). */
static inline void body_packet(struct body *body, uint16_t type, uint32_t request, const char *text)
{
    body->used = GW_FRAME_HEADER;
    body_write(body, text);
    gw_frame_header(body->bytes, type, request, body->used - GW_FRAME_HEADER);
}

#endif
