/* SPDX-License-Identifier: Apache-2.0 */
/* Frame codec. Byte by byte, so that neither alignment nor byte order matters. Pure; any thread. */
#include "proto/frame.h"

#include "gradwire/errors.h"

static uint32_t get_le(const uint8_t *at, unsigned bytes)
{
    uint32_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << (8 * i);
    return value;
}

static void put_le(uint8_t *at, unsigned bytes, uint32_t value)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

int gw_frame_parse(const uint8_t *packet, size_t packet_bytes, struct gw_frame *ret_frame)
{
    if (packet_bytes < GW_FRAME_HEADER || packet_bytes > GW_FRAME_MAX)
        return GW_E_PROTOCOL;
    if (get_le(packet, 4) != GW_FRAME_MAGIC || get_le(packet + 6, 2) != 0)
        return GW_E_PROTOCOL;
    if (get_le(packet + 12, 4) != packet_bytes - GW_FRAME_HEADER)
        return GW_E_PROTOCOL;
    *ret_frame = (struct gw_frame){
        .type = (uint16_t)get_le(packet + 4, 2),
        .request = get_le(packet + 8, 4),
        .body = packet + GW_FRAME_HEADER,
        .body_bytes = packet_bytes - GW_FRAME_HEADER,
    };
    return 0;
}

void gw_frame_header(uint8_t header[GW_FRAME_HEADER], uint16_t type, uint32_t request,
                     size_t body_bytes)
{
    put_le(header, 4, GW_FRAME_MAGIC);
    put_le(header + 4, 2, type);
    put_le(header + 6, 2, 0);
    put_le(header + 8, 4, request);
    put_le(header + 12, 4, (uint32_t)body_bytes);
}
