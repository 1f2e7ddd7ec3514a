/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The submission ring: frames of one client on their way to the engine, in the client page's memory
 * behind the page itself. One writer (the library, under its channel's lock), one reader (the
 * engine's loop thread). Neither makes a system call here; who wakes whom: proto/WIRE.md.
 *
 *   put   bytes ever written, in the client page     taken   bytes ever read, in the engine page
 *
 *   | frame bytes u32 | zero u32 | frame, padded to 8 bytes | next record ...
 *
 * Records go round the ring's end. put - taken bytes are full; what is free is the writer's credit.
 * Each side keeps its own position privately and treats the other's, and the content, as hostile:
 * the reader copies a record out before anybody looks into it. Pure; any thread, one per side.
 */
#ifndef GW_PROTO_SUBMIT_H
#define GW_PROTO_SUBMIT_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/frame.h"
#include "proto/shm.h"

#define SUBMIT_HEADER 8u
#define SUBMIT_RECORD_MAX (SUBMIT_HEADER + GW_FRAME_MAX)

struct submit_writer {
    uint8_t *data; /* GW_SUBMIT_BYTES */
    _Atomic uint64_t *put;
    const _Atomic uint64_t *taken;
    uint64_t at; /* what *put is, or was before the other side wrote there */
};

struct submit_reader {
    const uint8_t *data;
    const _Atomic uint64_t *put;
    _Atomic uint64_t *taken;
    uint64_t at;
};

void submit_writer_start(struct submit_writer *writer, struct gw_client_page *client,
                         const struct gw_engine_page *engine);
/* 0; GW_E_AGAIN: no room now; GW_E_PROTOCOL: the reader's position cannot be. The frame has
 * GW_FRAME_HEADER to GW_FRAME_MAX bytes. */
int submit_put(struct submit_writer *writer, const uint8_t *frame, size_t bytes);
/* The reader has taken everything. */
bool submit_all_taken(const struct submit_writer *writer);

void submit_reader_start(struct submit_reader *reader, const struct gw_client_page *client,
                         struct gw_engine_page *engine);
/* The writer's position by now: frames before it may be taken. */
uint64_t submit_seen(const struct submit_reader *reader);
/* One frame of those before `seen` into frame[GW_FRAME_MAX]: its bytes; 0: there is none;
 * GW_E_PROTOCOL: position or record cannot be, and never will be. */
int submit_take(struct submit_reader *reader, uint64_t seen, uint8_t *frame);

#endif
