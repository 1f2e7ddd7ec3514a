/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frame codec: a 16-byte little-endian header before each message. Pure; any thread.
 *
 *   0      4      6      8          12         16
 *   | magic| type | zero | request  | length   | message (protobuf) ...
 *
 * One SOCK_SEQPACKET packet carries exactly one frame; length must equal the rest of the packet.
 * `request` pairs a reply with its request (0: one-way).
 */
#ifndef GW_PROTO_FRAME_H
#define GW_PROTO_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define GW_FRAME_MAGIC 0x31524757u /* "WGR1" */
#define GW_FRAME_HEADER 16u

struct gw_frame {
    uint16_t type;
    uint32_t request;
    const uint8_t *body; /* inside the caller's packet */
    size_t body_bytes;
};

/* Checks a received packet. 0, or GW_E_PROTOCOL (short, wrong magic, wrong length, too long). */
int gw_frame_parse(const uint8_t *packet, size_t packet_bytes, struct gw_frame *ret_frame);
/* Writes a header for body_bytes that follow it in the same buffer. */
void gw_frame_header(uint8_t header[GW_FRAME_HEADER], uint16_t type, uint32_t request,
                     size_t body_bytes);

#endif
