/* SPDX-License-Identifier: Apache-2.0 */
/* The frame alone: what parses lies inside the packet and makes the same header again. */
#include <string.h>

#include "proto/frame.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t header[GW_FRAME_HEADER];
    struct gw_frame frame;

    if (gw_frame_parse(data, bytes, &frame) < 0)
        return 0;
    FUZZ_CHECK(frame.body == data + GW_FRAME_HEADER);
    FUZZ_CHECK(frame.body_bytes == bytes - GW_FRAME_HEADER);
    gw_frame_header(header, frame.type, frame.request, frame.body_bytes);
    FUZZ_CHECK(memcmp(header, data, sizeof(header)) == 0);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    if (index >= 3 || bytes < 64)
        return 0;
    memset(buffer, 0, 64);
    gw_frame_header(buffer, (uint16_t)(index * 100), (uint32_t)index, index * 20);
    return GW_FRAME_HEADER + index * 20;
}

void fuzz_repair(uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}
