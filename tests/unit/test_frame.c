/* SPDX-License-Identifier: Apache-2.0 */
/* The 16 bytes before every message: golden bytes, and everything that is no frame. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gradwire/errors.h"
#include "proto/frame.h"

/* Written out from WIRE.md: magic "WGR1" (bytes 57 47 52 31 read as text "WGR1"), little-endian. */
static const uint8_t golden[GW_FRAME_HEADER + 3] = {
    'W',  'G',  'R',  '1',  /* magic */
    0x28, 0x01, 0x00, 0x00, /* type 0x0128, zero */
    0x04, 0x03, 0x02, 0x01, /* request 0x01020304 */
    0x03, 0x00, 0x00, 0x00, /* length */
    0xaa, 0xbb, 0xcc,
};

static void header_has_golden_bytes(void **state)
{
    uint8_t header[GW_FRAME_HEADER];

    (void)state;
    memset(header, 0xee, sizeof(header));
    gw_frame_header(header, 0x0128, 0x01020304, 3);
    assert_memory_equal(header, golden, sizeof(header));
}

static void golden_bytes_parse(void **state)
{
    struct gw_frame frame = {0};

    (void)state;
    assert_int_equal(gw_frame_parse(golden, sizeof(golden), &frame), 0);
    assert_int_equal(frame.type, 0x0128);
    assert_int_equal(frame.request, 0x01020304);
    assert_int_equal(frame.body_bytes, 3);
    assert_ptr_equal(frame.body, golden + GW_FRAME_HEADER);
}

/* Length and packet agree, or it is no frame. */
static void wrong_lengths_are_refused(void **state)
{
    uint8_t packet[sizeof(golden) + 1];
    struct gw_frame frame = {.type = 7};

    (void)state;
    memcpy(packet, golden, sizeof(golden));
    packet[sizeof(golden)] = 0;
    for (size_t bytes = 0; bytes <= sizeof(packet); bytes++) {
        if (bytes != sizeof(golden))
            assert_int_equal(gw_frame_parse(packet, bytes, &frame), GW_E_PROTOCOL);
    }
    assert_int_equal(frame.type, 7);
}

static void wrong_magic_or_zero_is_refused(void **state)
{
    uint8_t packet[sizeof(golden)];
    struct gw_frame frame;

    (void)state;
    for (size_t at = 0; at < GW_FRAME_HEADER; at++) {
        const int free_field = (at >= 4 && at < 6) || (at >= 8 && at < 12); /* type, request */

        for (unsigned bit = 0; bit < 8; bit++) {
            memcpy(packet, golden, sizeof(packet));
            packet[at] ^= (uint8_t)(1u << bit);
            assert_int_equal(gw_frame_parse(packet, sizeof(packet), &frame),
                             free_field ? 0 : GW_E_PROTOCOL);
        }
    }
}

static void largest_frame_is_the_limit(void **state)
{
    static uint8_t packet[GW_FRAME_MAX + 1];
    struct gw_frame frame;

    (void)state;
    gw_frame_header(packet, 1, 0, GW_FRAME_MAX - GW_FRAME_HEADER);
    assert_int_equal(gw_frame_parse(packet, GW_FRAME_MAX, &frame), 0);
    assert_int_equal(frame.body_bytes, 65520);
    gw_frame_header(packet, 1, 0, GW_FRAME_MAX - GW_FRAME_HEADER + 1);
    assert_int_equal(gw_frame_parse(packet, GW_FRAME_MAX + 1, &frame), GW_E_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_has_golden_bytes),
        cmocka_unit_test(golden_bytes_parse),
        cmocka_unit_test(wrong_lengths_are_refused),
        cmocka_unit_test(wrong_magic_or_zero_is_refused),
        cmocka_unit_test(largest_frame_is_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
