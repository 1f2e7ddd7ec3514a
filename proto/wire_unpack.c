/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Body -> generated struct -> checked message in one allocation. Pure; any thread.
 *
 * What protobuf-c allocates is temporary and bounded; nothing of it stays in the result.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/wire_fields.h"

/* ---- bounded memory for protobuf-c ----------------------------------------------------------- */

#define ALLOC_OVERHEAD 16u /* of malloc, per block: counted, so that many tiny blocks cost too */

struct budget {
    size_t left;
    bool nomem; /* malloc failed; else the packet wanted too much */
};

static void *budget_alloc(void *data, size_t bytes)
{
    struct budget *budget = data;
    void *block;

    if (bytes > budget->left || budget->left - bytes < ALLOC_OVERHEAD)
        return NULL;
    budget->left -= bytes + ALLOC_OVERHEAD;
    block = malloc(bytes);
    budget->nomem |= !block;
    return block;
}

static void budget_free(void *data, void *block)
{
    (void)data;
    free(block);
}

/* ---- the one allocation ---------------------------------------------------------------------- */

struct tail {
    uint8_t *at, *end;
};

#define TAIL_ALIGN 8u

static size_t tail_round(size_t bytes)
{
    return (bytes + TAIL_ALIGN - 1) & ~(size_t)(TAIL_ALIGN - 1);
}

/* Never NULL for the bytes that extra_bytes() counted; NULL is an error in here. */
static void *tail_take(struct tail *tail, size_t bytes)
{
    void *block = tail->at;

    if (tail_round(bytes) > (size_t)(tail->end - tail->at))
        return NULL;
    tail->at += tail_round(bytes);
    return block;
}

static size_t list_count(const struct wire_field *field, const uint8_t *from)
{
    size_t count;

    memcpy(&count, from + field->from_count, sizeof(count));
    return count;
}

static const char *text_of(const struct wire_field *field, const uint8_t *from)
{
    const char *text;

    memcpy(&text, from + field->from, sizeof(text));
    return text ? text : "";
}

static ProtobufCBinaryData bytes_of(const struct wire_field *field, const uint8_t *from)
{
    ProtobufCBinaryData data;

    memcpy(&data, from + field->from, sizeof(data));
    return data;
}

static const uint8_t *pointer_of(const struct wire_field *field, const uint8_t *from)
{
    const uint8_t *pointer;

    memcpy(&pointer, from + field->from, sizeof(pointer));
    return pointer;
}

static const uint8_t *entry_of(const struct wire_field *field, const uint8_t *from, size_t index)
{
    const uint8_t *entry;

    memcpy(&entry, pointer_of(field, from) + index * sizeof(entry), sizeof(entry));
    return entry;
}

/* Bytes behind the struct that one level of fields needs, its entries' own apart. Sizes cannot
 * overflow: all of it came out of one packet. */
static size_t extra_bytes(const struct wire_table *table, const uint8_t *from)
{
    const struct wire_field *field;
    size_t bytes = 0;

    for (uint32_t i = 0; i < table->field_count; i++) {
        field = &table->fields[i];
        if (field->kind == WIRE_F_TEXT_AT)
            bytes += tail_round(strlen(text_of(field, from)) + 1);
        else if (field->kind == WIRE_F_BYTES_AT)
            bytes += tail_round(bytes_of(field, from).len);
        else if (field->kind == WIRE_F_U32S_AT)
            bytes += tail_round(list_count(field, from) * sizeof(uint32_t));
        else if (field->kind == WIRE_F_ENTRIES)
            bytes += tail_round(list_count(field, from) * field->entries->struct_bytes);
    }
    return bytes;
}

static size_t extra_bytes_all(const struct wire_table *table, const uint8_t *from)
{
    const struct wire_field *field;
    size_t bytes = extra_bytes(table, from);

    for (uint32_t i = 0; i < table->field_count; i++) {
        field = &table->fields[i];
        if (field->kind != WIRE_F_ENTRIES)
            continue;
        for (size_t k = 0; k < list_count(field, from); k++)
            bytes += extra_bytes(field->entries, entry_of(field, from, k));
    }
    return bytes;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static bool in_bounds(const struct wire_field *field, size_t count)
{
    return count >= (uint64_t)field->min && count <= field->max;
}

static int get_text(const struct wire_field *field, const uint8_t *from, uint8_t *to,
                    struct tail *tail)
{
    const char *text = text_of(field, from);
    const size_t bytes = strlen(text);
    char *copy;

    if (!in_bounds(field, bytes))
        return GW_E_PROTOCOL;
    if (field->kind == WIRE_F_TEXT) {
        memcpy(to + field->at, text, bytes + 1);
        return 0;
    }
    copy = tail_take(tail, bytes + 1);
    if (!copy)
        return GW_E_INTERNAL;
    memcpy(copy, text, bytes + 1);
    memcpy(to + field->at, &copy, sizeof(copy));
    return 0;
}

static int get_bytes(const struct wire_field *field, const uint8_t *from, uint8_t *to,
                     struct tail *tail)
{
    const ProtobufCBinaryData data = bytes_of(field, from);
    const uint32_t count = (uint32_t)data.len;
    uint8_t *copy = to + field->at;

    if (!in_bounds(field, data.len))
        return GW_E_PROTOCOL;
    if (field->kind == WIRE_F_BYTES_AT) {
        copy = tail_take(tail, data.len);
        if (!copy)
            return GW_E_INTERNAL;
        memcpy(to + field->at, &copy, sizeof(copy));
        memcpy(to + field->count_at, &data.len, sizeof(data.len));
    } else if (field->count_at != WIRE_NO_COUNT) {
        memcpy(to + field->count_at, &count, sizeof(count));
    }
    if (data.len > 0)
        memcpy(copy, data.data, data.len);
    return 0;
}

static int get_numbers(const struct wire_field *field, const uint8_t *from, uint8_t *to,
                       struct tail *tail)
{
    const bool apart = field->kind == WIRE_F_U32S_AT;
    const size_t width = apart || field->kind == WIRE_F_U32S ? 4 : 8;
    uint8_t *list = to + field->at;
    size_t count = list_count(field, from);
    uint32_t count_before;
    const uint32_t count32 = (uint32_t)count;

    if (field->kind == WIRE_F_FIRST_U64S) {
        count = count < field->max ? count : field->max;
    } else {
        if (!in_bounds(field, count))
            return GW_E_PROTOCOL;
        memcpy(&count_before, to + field->count_at, sizeof(count_before));
        if (field->count_set && count_before != count32)
            return GW_E_PROTOCOL;
        memcpy(to + field->count_at, &count32, sizeof(count32));
    }
    if (apart) {
        list = tail_take(tail, count * width);
        if (!list)
            return GW_E_INTERNAL;
        memcpy(to + field->at, &list, sizeof(list));
    }
    if (count > 0)
        memcpy(list, pointer_of(field, from), count * width);
    return 0;
}

/* A field that is no list of entries. */
static int get_field(const struct wire_field *field, const uint8_t *from, uint8_t *to,
                     struct tail *tail)
{
    switch (field->kind) {
    case WIRE_F_TEXT:
    case WIRE_F_TEXT_AT:
        return get_text(field, from, to, tail);
    case WIRE_F_BYTES:
    case WIRE_F_BYTES_AT:
        return get_bytes(field, from, to, tail);
    case WIRE_F_U32S:
    case WIRE_F_U32S_AT:
    case WIRE_F_U64S:
    case WIRE_F_FIRST_U64S:
        return get_numbers(field, from, to, tail);
    default:
        return wire_copy_scalar(field, from + field->from, to + field->at) ? 0 : GW_E_PROTOCOL;
    }
}

static int get_entry(const struct wire_table *table, const uint8_t *from, uint8_t *to,
                     struct tail *tail)
{
    int r;

    for (uint32_t i = 0; i < table->field_count; i++) {
        r = get_field(&table->fields[i], from, to, tail);
        if (r < 0)
            return r;
    }
    return table->check && table->check(to) < 0 ? GW_E_PROTOCOL : 0;
}

static int get_entries(const struct wire_field *field, const uint8_t *from, uint8_t *to,
                       struct tail *tail)
{
    const size_t bytes = field->entries->struct_bytes;
    size_t count = list_count(field, from);
    const uint32_t count32 = (uint32_t)count;
    uint8_t *list = to + field->at;
    int r;

    if (field->kind == WIRE_F_FIRST_ENTRIES) {
        count = count < field->max ? count : field->max;
    } else {
        if (!in_bounds(field, count))
            return GW_E_PROTOCOL;
        list = tail_take(tail, count * bytes);
        if (!list)
            return GW_E_INTERNAL;
        memcpy(to + field->at, &list, sizeof(list));
        memcpy(to + field->count_at, &count32, sizeof(count32));
    }
    for (size_t k = 0; k < count; k++) {
        r = get_entry(field->entries, entry_of(field, from, k), list + k * bytes, tail);
        if (r < 0)
            return r;
    }
    return 0;
}

static int get_message(const struct wire_table *table, const uint8_t *from, struct wire_msg *msg,
                       struct tail *tail)
{
    const struct wire_field *field;
    int r;

    for (uint32_t i = 0; i < table->field_count; i++) {
        field = &table->fields[i];
        if (field->kind == WIRE_F_ENTRIES || field->kind == WIRE_F_FIRST_ENTRIES)
            r = get_entries(field, from, (uint8_t *)msg, tail);
        else
            r = get_field(field, from, (uint8_t *)msg, tail);
        if (r < 0)
            return r;
    }
    return table->check && table->check(msg) < 0 ? GW_E_PROTOCOL : 0;
}

int wire_unpack(const struct wire_table *table, const uint8_t *body, size_t body_bytes,
                size_t max_bytes, struct wire_msg **ret_msg)
{
    struct budget budget = {max_bytes, false};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    ProtobufCMessage *proto;
    struct wire_msg *msg;
    struct tail tail;
    size_t extra;
    int r;

    r = wire_scan(table->descriptor, body, body_bytes);
    if (r < 0)
        return r;
    proto = protobuf_c_message_unpack(table->descriptor, &allocator, body_bytes, body);
    if (!proto)
        return budget.nomem ? GW_E_NOMEM : GW_E_PROTOCOL;
    extra = extra_bytes_all(table, (const uint8_t *)proto);
    msg = calloc(1, sizeof(*msg) + extra);
    if (!msg) {
        r = GW_E_NOMEM;
        goto out;
    }
    tail = (struct tail){(uint8_t *)(msg + 1), (uint8_t *)(msg + 1) + extra};
    r = get_message(table, (const uint8_t *)proto, msg, &tail);
    if (r < 0) {
        free(msg);
        goto out;
    }
    *ret_msg = msg;
out:
    protobuf_c_message_free_unpacked(proto, &allocator);
    return r;
}
