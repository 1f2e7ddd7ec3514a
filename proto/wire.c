/* SPDX-License-Identifier: Apache-2.0 */
/* Packets and checked messages: header, table of types, and the way to packing and unpacking.
 * Pure; any thread. */
#include "proto/wire.h"

#include <stdlib.h>

#include "proto/wire_fields.h"

static const struct {
    const char *name;
    const struct wire_table *table;
} types[] = {
#define WIRE_ROW(name, value, member, message, lower) [value] = {#name, &wire_table_##lower},
    WIRE_TYPE_MAP(WIRE_ROW)
#undef WIRE_ROW
};

static const struct wire_table *table_of(uint16_t type)
{
    return type < WIRE_COUNT(types) ? types[type].table : NULL;
}

const char *wire_type_name(uint16_t type)
{
    return table_of(type) ? types[type].name : "?";
}

int wire_decode(const uint8_t *packet, size_t packet_bytes, struct wire_msg **ret_msg,
                uint32_t *ret_request)
{
    return wire_decode_within(packet, packet_bytes, WIRE_UNPACK_MAX, ret_msg, ret_request);
}

int wire_decode_within(const uint8_t *packet, size_t packet_bytes, size_t max_bytes,
                       struct wire_msg **ret_msg, uint32_t *ret_request)
{
    const struct wire_table *table;
    struct gw_frame frame;
    struct wire_msg *msg;
    int r;

    *ret_request = 0;
    r = gw_frame_parse(packet, packet_bytes, &frame);
    if (r < 0)
        return r;
    *ret_request = frame.request;
    table = table_of(frame.type);
    if (!table)
        return GW_E_UNIMPLEMENTED;
    r = wire_unpack(table, frame.body, frame.body_bytes, max_bytes, &msg);
    if (r < 0)
        return r;
    msg->type = frame.type;
    msg->request = frame.request;
    *ret_msg = msg;
    return 0;
}

int wire_encode(const struct wire_msg *msg, uint8_t *buffer, size_t buffer_bytes, size_t *ret_bytes)
{
    const struct wire_table *table = table_of(msg->type);
    size_t bytes;
    int r;

    if (!table)
        return GW_E_INVALID;
    if (buffer_bytes > GW_FRAME_MAX)
        buffer_bytes = GW_FRAME_MAX;
    if (buffer_bytes < GW_FRAME_HEADER)
        return GW_E_LIMIT;
    r = wire_pack(table, msg, buffer + GW_FRAME_HEADER, buffer_bytes - GW_FRAME_HEADER, &bytes);
    if (r < 0)
        return r;
    gw_frame_header(buffer, msg->type, msg->request, bytes);
    *ret_bytes = GW_FRAME_HEADER + bytes;
    return 0;
}

struct wire_msg *wire_free(struct wire_msg *msg)
{
    free(msg);
    return NULL;
}
