/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checked message -> generated struct -> body. Pure; any thread.
 *
 * The generated struct only points into the message; nothing is copied but the entries' structs.
 * The same bounds hold as for unpacking, so that we never send what a peer would refuse.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/wire_fields.h"

/* Room for any generated message of one level. */
union generated {
    ProtobufCMessage base;
    uint8_t room[320];
};

static int check_count(const struct wire_field *field, size_t count)
{
    if (count > field->max)
        return GW_E_LIMIT;
    return count < (uint64_t)field->min ? GW_E_INVALID : 0;
}

static int put_text(const struct wire_field *field, const uint8_t *from, uint8_t *to)
{
    const char *text = (const char *)from + field->at;
    int r;

    if (field->kind == WIRE_F_TEXT_AT) {
        memcpy(&text, from + field->at, sizeof(text));
        text = text ? text : "";
    }
    r = check_count(field, strnlen(text, field->max + 1));
    if (r < 0)
        return r;
    memcpy(to + field->from, &text, sizeof(text));
    return 0;
}

static uint32_t count_of(const struct wire_field *field, const uint8_t *from)
{
    uint32_t count;

    if (field->count_at == WIRE_NO_COUNT)
        return (uint32_t)field->max;
    memcpy(&count, from + field->count_at, sizeof(count));
    return count;
}

static int put_bytes(const struct wire_field *field, const uint8_t *from, uint8_t *to)
{
    const uint8_t *bytes = from + field->at;
    ProtobufCBinaryData data;
    int r;

    if (field->kind == WIRE_F_BYTES_AT) {
        memcpy(&bytes, from + field->at, sizeof(bytes));
        memcpy(&data.len, from + field->count_at, sizeof(data.len));
    } else {
        data.len = count_of(field, from);
    }
    r = check_count(field, data.len);
    if (r < 0)
        return r;
    data.data = (uint8_t *)bytes; /* protobuf-c only reads it */
    memcpy(to + field->from, &data, sizeof(data));
    return 0;
}

static void put_list(const struct wire_field *field, const void *list, size_t count, uint8_t *to)
{
    memcpy(to + field->from, &list, sizeof(list));
    memcpy(to + field->from_count, &count, sizeof(count));
}

static int put_numbers(const struct wire_field *field, const uint8_t *from, uint8_t *to)
{
    const bool whole = field->kind == WIRE_F_FIRST_U64S;
    const size_t count = whole ? (size_t)field->max : count_of(field, from);
    const uint8_t *list = from + field->at;
    int r;

    r = check_count(field, count);
    if (r < 0)
        return r;
    if (field->kind == WIRE_F_U32S_AT)
        memcpy(&list, from + field->at, sizeof(list));
    put_list(field, list, count, to);
    return 0;
}

static int put_field(const struct wire_field *field, const uint8_t *from, uint8_t *to)
{
    switch (field->kind) {
    case WIRE_F_TEXT:
    case WIRE_F_TEXT_AT:
        return put_text(field, from, to);
    case WIRE_F_BYTES:
    case WIRE_F_BYTES_AT:
        return put_bytes(field, from, to);
    case WIRE_F_U32S:
    case WIRE_F_U32S_AT:
    case WIRE_F_U64S:
    case WIRE_F_FIRST_U64S:
        return put_numbers(field, from, to);
    default:
        return wire_copy_scalar(field, from + field->at, to + field->from) ? 0 : GW_E_INVALID;
    }
}

static int put_entry(const struct wire_table *table, const uint8_t *from, uint8_t *to)
{
    int r;

    if (table->check) {
        r = table->check(from);
        if (r < 0)
            return r;
    }
    for (uint32_t i = 0; i < table->field_count; i++) {
        r = put_field(&table->fields[i], from, to);
        if (r < 0)
            return r;
    }
    return 0;
}

/* *ret_scratch: pointers to the entries and the entries; the caller frees it after packing. */
static int put_entries(const struct wire_field *field, const uint8_t *from, uint8_t *to,
                       void **ret_scratch)
{
    const ProtobufCMessageDescriptor *descriptor = field->entries->descriptor;
    const bool in_place = field->kind == WIRE_F_FIRST_ENTRIES;
    const uint32_t count = in_place ? (uint32_t)field->max : count_of(field, from);
    const uint8_t *list = from + field->at;
    uint8_t *entry, *scratch;
    int r;

    r = check_count(field, count);
    if (r < 0 || count == 0)
        return r;
    if (!in_place)
        memcpy(&list, from + field->at, sizeof(list));
    scratch = calloc(count, sizeof(entry) + descriptor->sizeof_message);
    if (!scratch)
        return GW_E_NOMEM;
    for (uint32_t k = 0; k < count; k++) {
        entry = scratch + count * sizeof(entry) + k * descriptor->sizeof_message;
        memcpy(scratch + k * sizeof(entry), &entry, sizeof(entry));
        protobuf_c_message_init(descriptor, entry);
        r = put_entry(field->entries, list + k * (size_t)field->entries->struct_bytes, entry);
        if (r < 0) {
            free(scratch);
            return r;
        }
    }
    put_list(field, scratch, count, to);
    *ret_scratch = scratch;
    return 0;
}

static int put_message(const struct wire_table *table, const struct wire_msg *msg, uint8_t *to,
                       void **ret_scratch)
{
    const struct wire_field *field;
    int r;

    for (uint32_t i = 0; i < table->field_count; i++) {
        field = &table->fields[i];
        if (field->kind == WIRE_F_ENTRIES || field->kind == WIRE_F_FIRST_ENTRIES)
            r = put_entries(field, (const uint8_t *)msg, to, ret_scratch);
        else
            r = put_field(field, (const uint8_t *)msg, to);
        if (r < 0)
            return r;
    }
    return table->check ? table->check(msg) : 0;
}

int wire_pack(const struct wire_table *table, const struct wire_msg *msg, uint8_t *body,
              size_t body_bytes, size_t *ret_bytes)
{
    union generated proto;
    void *scratch = NULL;
    size_t bytes;
    int r;

    if (table->descriptor->sizeof_message > sizeof(proto))
        return GW_E_INTERNAL;
    protobuf_c_message_init(table->descriptor, &proto);
    r = put_message(table, msg, proto.room, &scratch);
    if (r < 0)
        goto out;
    bytes = protobuf_c_message_get_packed_size(&proto.base);
    if (bytes > body_bytes) {
        r = GW_E_LIMIT;
        goto out;
    }
    *ret_bytes = protobuf_c_message_pack(&proto.base, body);
out:
    free(scratch);
    return r;
}
