/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a checked message (wire.h) and its generated protobuf struct correspond: one row per field,
 * with its bounds, used by packing and unpacking alike. Internal to proto/wire*.c. Pure.
 *
 * Two levels at most: a message, and one list of entries in it. So nothing here recurses.
 */
#ifndef GW_PROTO_WIRE_FIELDS_H
#define GW_PROTO_WIRE_FIELDS_H

#include "gradwire/v1/control.pb-c.h"
#include "proto/wire.h"

enum wire_field_kind {
    WIRE_F_U32,           /* min <= value <= max */
    WIRE_F_U64,           /* value <= max */
    WIRE_F_S32,           /* min <= value <= max */
    WIRE_F_S64,           /* min <= value <= max */
    WIRE_F_DOUBLE,        /* finite */
    WIRE_F_TEXT,          /* char[max + 1] in place; min..max bytes */
    WIRE_F_TEXT_AT,       /* const char * into the message's allocation; min..max bytes */
    WIRE_F_BYTES,         /* uint8_t[max] in place, min..max bytes, their number at count_at */
    WIRE_F_BYTES_AT,      /* const uint8_t *, size_t at count_at; min..max bytes */
    WIRE_F_U32S,          /* uint32_t[max] in place, min..max of them, their number at count_at */
    WIRE_F_U32S_AT,       /* const uint32_t *, min..max of them, their number at count_at */
    WIRE_F_U64S,          /* as U32S; where count_at was set by a field before, it must be equal */
    WIRE_F_FIRST_U64S,    /* uint64_t[max]: the first max; fewer are filled up with 0 */
    WIRE_F_ENTRIES,       /* pointer to min..max structs, their number at count_at */
    WIRE_F_FIRST_ENTRIES, /* max structs in place; as FIRST_U64S */
};

/* No count_at: exactly max bytes. */
#define WIRE_NO_COUNT UINT16_MAX

struct wire_table;

struct wire_field {
    uint8_t kind;
    bool count_set;            /* the entry's count was set by an earlier row */
    uint16_t at, count_at;     /* in the checked struct */
    uint16_t from, from_count; /* in the generated struct */
    int64_t min;
    uint64_t max;
    const struct wire_table *entries; /* F_ENTRIES, F_FIRST_ENTRIES */
};

struct wire_table {
    const ProtobufCMessageDescriptor *descriptor;
    const struct wire_field *fields;
    uint32_t field_count;
    uint32_t struct_bytes; /* entries: of the checked struct */
    /* What one field alone cannot tell. 0, GW_E_INVALID, GW_E_LIMIT. NULL: nothing. */
    int (*check)(const void *checked);
};

/* Offset of a member, or a compile error where the two structs' members differ in size. */
#define WIRE_SAME(Message, field, type, member)                                                    \
    (offsetof(type, member) +                                                                      \
     0 * sizeof(char[sizeof(((type *)0)->member) == sizeof(((Gradwire__V1__##Message *)0)->field)  \
                         ? 1                                                                       \
                         : -1]))
#define WIRE_SCALAR(KIND, Message, field, type, member, lo, hi)                                    \
    {                                                                                              \
        .kind = KIND, .from = offsetof(Gradwire__V1__##Message, field),                            \
        .at = WIRE_SAME(Message, field, type, member), .min = lo, .max = (uint64_t)(hi)            \
    }
/* Members of the same name in message `Message` and in `type`, below `path` there. */
#define WIRE_U32(Message, type, path, field, lo, hi)                                               \
    WIRE_SCALAR(WIRE_F_U32, Message, field, type, path field, lo, hi)
#define WIRE_U64(Message, type, path, field, hi)                                                   \
    WIRE_SCALAR(WIRE_F_U64, Message, field, type, path field, 0, hi)
#define WIRE_DOUBLE(Message, type, path, field)                                                    \
    WIRE_SCALAR(WIRE_F_DOUBLE, Message, field, type, path field, 0, 0)
#define WIRE_TEXT(Message, type, path, field, lo)                                                  \
    {                                                                                              \
        .kind = WIRE_F_TEXT, .from = offsetof(Gradwire__V1__##Message, field),                     \
        .at = offsetof(type, path field), .min = lo, .max = sizeof(((type *)0)->path field) - 1    \
    }
#define WIRE_TEXT_AT(Message, type, path, field, lo, hi)                                           \
    WIRE_SCALAR(WIRE_F_TEXT_AT, Message, field, type, path field, lo, hi)
#define WIRE_BYTES(Message, type, path, field, count, lo)                                          \
    {                                                                                              \
        .kind = WIRE_F_BYTES, .from = offsetof(Gradwire__V1__##Message, field),                    \
        .at = offsetof(type, path field), .count_at = offsetof(type, path count), .min = lo,       \
        .max = sizeof(((type *)0)->path field)                                                     \
    }
#define WIRE_BYTES_EXACT(Message, type, path, field)                                               \
    {                                                                                              \
        .kind = WIRE_F_BYTES, .from = offsetof(Gradwire__V1__##Message, field),                    \
        .at = offsetof(type, path field), .count_at = WIRE_NO_COUNT,                               \
        .min = sizeof(((type *)0)->path field), .max = sizeof(((type *)0)->path field)             \
    }
#define WIRE_LIST(KIND, Message, type, path, field, count, is_set, lo, hi, table)                  \
    {                                                                                              \
        .kind = KIND, .count_set = is_set, .from = offsetof(Gradwire__V1__##Message, field),       \
        .from_count = offsetof(Gradwire__V1__##Message, n_##field),                                \
        .at = offsetof(type, path field), .count_at = count, .min = lo, .max = hi,                 \
        .entries = table                                                                           \
    }
/* The two lists of struct wire_after at `path`. */
#define WIRE_AFTER(Message, path)                                                                  \
    WIRE_LIST(WIRE_F_U32S, Message, struct wire_msg, path, timeline,                               \
              offsetof(struct wire_msg, path tokens), false, 0, GW_READY_TOKENS, NULL),            \
        WIRE_LIST(WIRE_F_U64S, Message, struct wire_msg, path, value,                              \
                  offsetof(struct wire_msg, path tokens), true, 0, GW_READY_TOKENS, NULL)
#define WIRE_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define WIRE_TABLE(name, lower, rows, type, checker)                                               \
    const struct wire_table name = {                                                               \
        .descriptor = &gradwire__v1__##lower##__descriptor,                                        \
        .fields = rows,                                                                            \
        .field_count = WIRE_COUNT(rows),                                                           \
        .struct_bytes = sizeof(type),                                                              \
        .check = checker,                                                                          \
    }
#define WIRE_MESSAGE(lower, rows, checker)                                                         \
    WIRE_TABLE(wire_table_##lower, lower, rows, struct wire_msg, checker)
#define WIRE_MESSAGE_EMPTY(lower)                                                                  \
    const struct wire_table wire_table_##lower = {.descriptor =                                    \
                                                      &gradwire__v1__##lower##__descriptor}

#define WIRE_DECLARE(name, value, member, message, lower)                                          \
    extern const struct wire_table wire_table_##lower;
WIRE_TYPE_MAP(WIRE_DECLARE)
#undef WIRE_DECLARE

/* Most that protobuf-c may allocate for one packet: above what any legal one needs. */
#define WIRE_UNPACK_MAX (512u << 10)

/* 0, or GW_E_INVALID: a timeline that no client has. */
int wire_check_after(const struct wire_after *after);
/* Copies the value of a scalar field, if it is within its bounds. */
bool wire_copy_scalar(const struct wire_field *field, const uint8_t *from, uint8_t *to);
/* Checks a body before protobuf-c sees it: well-formed for its descriptor, at most two levels, no
 * NUL inside a string (protobuf-c would cut it there in silence). GW_E_PROTOCOL. */
int wire_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *body, size_t body_bytes);
/* Body -> checked message (type and request are the caller's to set), with at most max_bytes
 * allocated on the way. GW_E_PROTOCOL, GW_E_NOMEM. */
int wire_unpack(const struct wire_table *table, const uint8_t *body, size_t body_bytes,
                size_t max_bytes, struct wire_msg **ret_msg);
/* Checked message -> body. GW_E_INVALID, GW_E_LIMIT, GW_E_NOMEM. */
int wire_pack(const struct wire_table *table, const struct wire_msg *msg, uint8_t *body,
              size_t body_bytes, size_t *ret_bytes);

#endif
