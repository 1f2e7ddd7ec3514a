/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The submission ring, read with whatever a client wrote there: what is taken lies before the
 * client's position, is what the ring holds, and has the length of a frame; a position that cannot
 * be ends it. And written with whatever the engine says it has taken: full rings stay as they are.
 *
 *   | start / 8 u16 | put - start u32 | ring from start on ... |
 */
#include <string.h>

#include "gradwire/errors.h"
#include "proto/submit.h"
#include "tests/fuzz/fuzz.h"

#define INPUT_HEADER 6u

static _Alignas(64) uint8_t memory[GW_CLIENT_PAGE_BYTES];
static struct gw_engine_page engine;

static uint8_t ring_byte(uint64_t at)
{
    return memory[GW_SUBMIT_AT + at % GW_SUBMIT_BYTES];
}

static void read_all(struct submit_reader *reader)
{
    static uint8_t frame[GW_FRAME_MAX];
    uint64_t seen = submit_seen(reader);
    int bytes;

    for (;;) {
        uint64_t before = reader->at;

        bytes = submit_take(reader, seen, frame);
        if (bytes <= 0)
            break;
        FUZZ_CHECK(bytes >= (int)GW_FRAME_HEADER && bytes <= (int)GW_FRAME_MAX);
        FUZZ_CHECK(reader->at > before && reader->at <= seen && reader->at % 8 == 0);
        FUZZ_CHECK(reader->at - before < SUBMIT_HEADER + (uint64_t)bytes + 8);
        FUZZ_CHECK(atomic_load(reader->taken) == reader->at);
        for (int i = 0; i < bytes; i++)
            FUZZ_CHECK(frame[i] == ring_byte(before + SUBMIT_HEADER + (uint64_t)i));
    }
    FUZZ_CHECK(bytes == GW_E_PROTOCOL || (bytes == 0 && reader->at == seen));
}

/* `taken` is the engine's word, from the input too. */
static void write_one(struct gw_client_page *client, uint64_t at, uint64_t taken, size_t bytes)
{
    static uint8_t frame[GW_FRAME_MAX];
    struct submit_writer writer;
    int r;

    submit_writer_start(&writer, client, &engine);
    writer.at = at;
    atomic_store(&engine.taken, taken);
    r = submit_put(&writer, frame, bytes);
    if (r == 0) {
        FUZZ_CHECK(writer.at - taken <= GW_SUBMIT_BYTES && writer.at >= at + SUBMIT_HEADER + bytes);
        FUZZ_CHECK(atomic_load(&client->put) == writer.at);
    } else {
        FUZZ_CHECK(writer.at == at);
        FUZZ_CHECK(r == GW_E_AGAIN ? at - taken <= GW_SUBMIT_BYTES : r == GW_E_PROTOCOL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct gw_client_page *client = (struct gw_client_page *)(void *)memory;
    struct submit_reader reader;
    uint16_t start;
    uint32_t delta;

    if (bytes < INPUT_HEADER || bytes - INPUT_HEADER > GW_SUBMIT_BYTES)
        return 0;
    memcpy(&start, data, sizeof(start));
    memcpy(&delta, data + 2, sizeof(delta));
    submit_reader_start(&reader, client, &engine);
    reader.at = start * 8ull;
    for (size_t i = INPUT_HEADER; i < bytes; i++)
        memory[GW_SUBMIT_AT + (reader.at + i - INPUT_HEADER) % GW_SUBMIT_BYTES] = data[i];
    atomic_store(&client->put, reader.at + delta);
    atomic_store(&engine.taken, reader.at);
    read_all(&reader);
    write_one(client, start * 8ull + GW_SUBMIT_BYTES, start * 8ull + delta,
              GW_FRAME_HEADER + bytes % (GW_FRAME_MAX - GW_FRAME_HEADER));
    return 0;
}

/* Two frames, near the ring's end and not. */
size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    const uint16_t starts[] = {0, 3, GW_SUBMIT_BYTES / 8 - 1, GW_SUBMIT_BYTES / 8 - 4};
    const uint32_t lengths[] = {GW_FRAME_HEADER, 21, 64, GW_FRAME_HEADER};
    uint32_t length, delta = 0;
    size_t at = INPUT_HEADER;

    if (index >= 4 || bytes < 256)
        return 0;
    memset(buffer, 0, 256);
    length = lengths[index];
    for (int i = 0; i < 2; i++) {
        memcpy(buffer + at, &length, sizeof(length));
        at += SUBMIT_HEADER + (length + 7) / 8 * 8;
    }
    delta = (uint32_t)(at - INPUT_HEADER);
    memcpy(buffer, &starts[index], sizeof(starts[index]));
    memcpy(buffer + 2, &delta, sizeof(delta));
    return at;
}

/* The client's position just behind the input, most of the time. */
void fuzz_repair(uint8_t *data, size_t bytes)
{
    uint32_t delta = (uint32_t)(bytes - INPUT_HEADER) / 8 * 8;

    if (bytes > INPUT_HEADER && bytes % 4 != 3)
        memcpy(data + 2, &delta, sizeof(delta));
}
