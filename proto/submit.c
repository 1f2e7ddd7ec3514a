/* SPDX-License-Identifier: Apache-2.0 */
/* The submission ring; see submit.h. Pure. */
#include "proto/submit.h"

#include <string.h>

#include "gradwire/errors.h"

_Static_assert((GW_SUBMIT_BYTES & (GW_SUBMIT_BYTES - 1)) == 0, "positions wrap by a mask");
_Static_assert(GW_SUBMIT_BYTES >= SUBMIT_RECORD_MAX, "any frame fits");
_Static_assert(GW_FRAME_MAX % SUBMIT_HEADER == 0, "padding keeps records within their bound");

static size_t padded(size_t bytes)
{
    return (bytes + SUBMIT_HEADER - 1) & ~(size_t)(SUBMIT_HEADER - 1);
}

/* ---- writer ---------------------------------------------------------------------------------- */

void submit_writer_start(struct submit_writer *writer, struct gw_client_page *client,
                         const struct gw_engine_page *engine)
{
    *writer = (struct submit_writer){.data = (uint8_t *)client + GW_SUBMIT_AT,
                                     .put = &client->put,
                                     .taken = &engine->taken};
}

static void copy_in(uint8_t *data, uint64_t at, const void *from, size_t bytes)
{
    size_t offset = at & (GW_SUBMIT_BYTES - 1), first = GW_SUBMIT_BYTES - offset;

    if (first > bytes)
        first = bytes;
    memcpy(data + offset, from, first);
    memcpy(data, (const uint8_t *)from + first, bytes - first);
}

/* The position rises last, and in the one order of all such accesses: either the reader, which says
 * first that it will sleep, sees it, or the writer sees that it sleeps. */
int submit_put(struct submit_writer *writer, const uint8_t *frame, size_t bytes)
{
    uint64_t full = writer->at - atomic_load_explicit(writer->taken, memory_order_acquire);
    uint32_t header[2] = {(uint32_t)bytes, 0};

    if (full > GW_SUBMIT_BYTES || full % SUBMIT_HEADER != 0)
        return GW_E_PROTOCOL;
    if (SUBMIT_HEADER + padded(bytes) > GW_SUBMIT_BYTES - full)
        return GW_E_AGAIN;
    copy_in(writer->data, writer->at, header, sizeof(header));
    copy_in(writer->data, writer->at + SUBMIT_HEADER, frame, bytes);
    writer->at += SUBMIT_HEADER + padded(bytes);
    atomic_store_explicit(writer->put, writer->at, memory_order_seq_cst);
    return 0;
}

bool submit_all_taken(const struct submit_writer *writer)
{
    return atomic_load_explicit(writer->taken, memory_order_acquire) == writer->at;
}

/* ---- reader ---------------------------------------------------------------------------------- */

void submit_reader_start(struct submit_reader *reader, const struct gw_client_page *client,
                         struct gw_engine_page *engine)
{
    *reader = (struct submit_reader){.data = (const uint8_t *)client + GW_SUBMIT_AT,
                                     .put = &client->put,
                                     .taken = &engine->taken};
}

uint64_t submit_seen(const struct submit_reader *reader)
{
    return atomic_load_explicit(reader->put, memory_order_seq_cst);
}

static void copy_out(const uint8_t *data, uint64_t at, void *to, size_t bytes)
{
    size_t offset = at & (GW_SUBMIT_BYTES - 1), first = GW_SUBMIT_BYTES - offset;

    if (first > bytes)
        first = bytes;
    memcpy(to, data + offset, first);
    memcpy((uint8_t *)to + first, data, bytes - first);
}

/* In one load, so that what was checked is what is used. It never lies round the end. */
static void load_header(const struct submit_reader *reader, uint32_t ret_header[2])
{
    const uint8_t *at = reader->data + (reader->at & (GW_SUBMIT_BYTES - 1));
    uint64_t word = __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_RELAXED);

    memcpy(ret_header, &word, sizeof(word));
}

int submit_take(struct submit_reader *reader, uint64_t seen, uint8_t *frame)
{
    uint64_t full = seen - reader->at;
    uint32_t header[2];

    if (full == 0)
        return 0;
    if (full > GW_SUBMIT_BYTES || full % SUBMIT_HEADER != 0)
        return GW_E_PROTOCOL;
    load_header(reader, header);
    if (header[0] < GW_FRAME_HEADER || header[0] > GW_FRAME_MAX || header[1] != 0 ||
        SUBMIT_HEADER + padded(header[0]) > full)
        return GW_E_PROTOCOL;
    copy_out(reader->data, reader->at + SUBMIT_HEADER, frame, header[0]);
    reader->at += SUBMIT_HEADER + padded(header[0]);
    atomic_store_explicit(reader->taken, reader->at, memory_order_release);
    return (int)header[0];
}
