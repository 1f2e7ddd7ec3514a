/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First look at a body, before protobuf-c: walks the wire format along the descriptor without
 * allocating anything. Pure; any thread. Format: protobuf.dev/programming-guides/encoding.
 */
#include <string.h>

#include "proto/wire_fields.h"

enum { TYPE_VARINT = 0, TYPE_64 = 1, TYPE_BYTES = 2, TYPE_32 = 5 };

struct cursor {
    const ProtobufCMessageDescriptor *descriptor; /* NULL: of an unknown message */
    const uint8_t *at, *end;
};

static int skip(struct cursor *cursor, uint64_t bytes)
{
    if (bytes > (uint64_t)(cursor->end - cursor->at))
        return GW_E_PROTOCOL;
    cursor->at += bytes;
    return 0;
}

/* At most 10 bytes of 7 bits; the tenth may hold only the last bit. */
static int varint(struct cursor *cursor, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 70 && cursor->at < cursor->end; shift += 7) {
        const uint8_t byte = *cursor->at++;

        if (shift == 63 && byte > 1)
            return GW_E_PROTOCOL;
        value |= (uint64_t)(byte & 0x7fu) << shift;
        if (!(byte & 0x80u)) {
            *ret_value = value;
            return 0;
        }
    }
    return GW_E_PROTOCOL;
}

static const ProtobufCFieldDescriptor *field_of(const struct cursor *cursor, uint64_t number)
{
    if (!cursor->descriptor || number > UINT32_MAX)
        return NULL;
    return protobuf_c_message_descriptor_get_field(cursor->descriptor, (unsigned)number);
}

/* A length-delimited field; *ret_nested gets the body of a known message. */
static int scan_bytes(struct cursor *cursor, const ProtobufCFieldDescriptor *field,
                      struct cursor *ret_nested)
{
    const uint8_t *start;
    uint64_t bytes;
    int r;

    r = varint(cursor, &bytes);
    if (r < 0)
        return r;
    start = cursor->at;
    r = skip(cursor, bytes);
    if (r < 0)
        return r;
    if (field && field->type == PROTOBUF_C_TYPE_STRING && memchr(start, 0, (size_t)bytes))
        return GW_E_PROTOCOL;
    if (field && field->type == PROTOBUF_C_TYPE_MESSAGE)
        *ret_nested = (struct cursor){field->descriptor, start, cursor->at};
    return 0;
}

static int scan_field(struct cursor *cursor, struct cursor *ret_nested)
{
    const ProtobufCFieldDescriptor *field;
    uint64_t tag, value;
    int r;

    r = varint(cursor, &tag);
    if (r < 0)
        return r;
    if (tag >> 3 == 0 || tag > UINT32_MAX)
        return GW_E_PROTOCOL;
    field = field_of(cursor, tag >> 3);
    switch (tag & 7u) {
    case TYPE_VARINT:
        return varint(cursor, &value);
    case TYPE_64:
        return skip(cursor, 8);
    case TYPE_32:
        return skip(cursor, 4);
    case TYPE_BYTES:
        return scan_bytes(cursor, field, ret_nested);
    default: /* groups are long dead */
        return GW_E_PROTOCOL;
    }
}

int wire_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *body, size_t body_bytes)
{
    struct cursor levels[2] = {{descriptor, body, body + body_bytes}};
    struct cursor nested;
    unsigned level = 0;
    int r;

    for (;;) {
        if (levels[level].at == levels[level].end) {
            if (level == 0)
                return 0;
            level--;
            continue;
        }
        nested = (struct cursor){NULL, NULL, NULL};
        r = scan_field(&levels[level], &nested);
        if (r < 0)
            return r;
        if (!nested.at)
            continue;
        if (level + 1 == WIRE_COUNT(levels))
            return GW_E_PROTOCOL;
        levels[++level] = nested;
    }
}
