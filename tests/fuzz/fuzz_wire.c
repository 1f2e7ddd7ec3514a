/* SPDX-License-Identifier: Apache-2.0 */
/* A packet from a hostile peer: frame, scan, message. What is taken must encode and come back. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/wire_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t packet[GW_FRAME_MAX];
    struct wire_msg *msg, *again;
    uint32_t request;
    size_t packet_bytes;

    if (wire_decode(data, bytes, &msg, &request) < 0)
        return 0;
    FUZZ_CHECK(wire_encode(msg, packet, sizeof(packet), &packet_bytes) == 0);
    FUZZ_CHECK(wire_decode(packet, packet_bytes, &again, &request) == 0);
    FUZZ_CHECK(again->type == msg->type && request == msg->request);
    wire_free(again);
    wire_free(msg);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    struct wire_msg small;

    if (samples_used == 0)
        samples_make();
    if (index >= samples_used || bytes < GW_FRAME_MAX)
        return 0;
    small = samples_all[index];
    /* Short lists: a mutation then hits structure more often than filler. */
    if (small.type == WIRE_REGISTER)
        small.u.reg.count = 3;
    else if (small.type == WIRE_READY)
        small.u.ready.count = 6;
    else if (small.type == WIRE_JOBS)
        small.u.jobs.count = 2;
    else if (small.type == WIRE_HANDOVER)
        small.u.handover.hello_bytes = 64;
    return sample_packet(&small, buffer);
}

/* Keeps the frame's length right, so that mutations reach the body. */
void fuzz_repair(uint8_t *data, size_t bytes)
{
    if (bytes >= GW_FRAME_HEADER)
        gw_frame_header(data, (uint16_t)(data[4] | data[5] << 8), 1, bytes - GW_FRAME_HEADER);
}
