/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets that nobody would send: unknown fields and types, truncations, nesting, blow-up, lack of
 * memory, seeded mutations. Nothing crashes, nothing leaks, and what is taken can be encoded again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/wire_body.h"
#include "tests/unit/wire_samples.h"

static uint8_t packet[GW_FRAME_MAX], other[GW_FRAME_MAX];
static struct body body;

static int decode(const uint8_t *bytes, size_t count, struct wire_msg **ret_msg)
{
    uint32_t request;

    return wire_decode(bytes, count, ret_msg, &request);
}

static void unknown_fields_are_ignored(void **state)
{
    struct wire_msg *msg;

    (void)state;
    body_packet(&body, WIRE_STOP, 1, "100=7 1=1 101=t9 102=d3 103=f 536870911=1 200=(1=t1)");
    assert_int_equal(decode(body.bytes, body.used, &msg), 0);
    assert_int_equal(msg->u.stop.engines, 1);
    wire_free(msg);
    body_packet(&body, WIRE_REGISTER, 1, "2=1 3=(90=t4 1=t2 91=0xffffffffffffffff) 99=z");
    assert_int_equal(decode(body.bytes, body.used, &msg), 0);
    assert_string_equal(msg->u.reg.params[0].name, "aa");
    wire_free(msg);
    body_packet(&body, WIRE_LEAVE, 1, "1=5 2=t3");
    assert_int_equal(decode(body.bytes, body.used, &msg), 0);
    wire_free(msg);
}

static void unknown_types_are_named_so(void **state)
{
    struct wire_msg *msg = NULL;
    uint32_t request = 0;

    (void)state;
    for (uint32_t type = 0; type <= UINT16_MAX; type++) {
        if (wire_type_name((uint16_t)type)[0] != '?')
            continue;
        body_packet(&body, (uint16_t)type, type + 5, "1=5");
        assert_int_equal(wire_decode(body.bytes, body.used, &msg, &request), GW_E_UNIMPLEMENTED);
        assert_int_equal(request, type + 5);
        assert_null(msg);
    }
    body_packet(&body, 999, 8, "1=5");
    body.bytes[0] = 'X';
    assert_int_equal(wire_decode(body.bytes, body.used, &msg, &request), GW_E_PROTOCOL);
    assert_int_equal(request, 0);
}

/* Cut packets fail on their length; cut bodies with a right length must not be misread. */
static void truncation_at_every_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < samples_used; i++) {
        const size_t bytes = sample_packet(&samples_all[i], packet);
        const size_t step = bytes > 3000 ? 7 : 1;
        struct wire_msg *msg = NULL;

        for (size_t cut = 0; cut < bytes; cut += step) {
            uint8_t *exact = malloc(cut ? cut : 1); /* so that ASan sees a read behind it */

            assert_non_null(exact);
            memcpy(exact, packet, cut);
            assert_int_equal(decode(exact, cut, &msg), GW_E_PROTOCOL);
            if (cut >= GW_FRAME_HEADER) {
                gw_frame_header(exact, samples_all[i].type, 1, cut - GW_FRAME_HEADER);
                if (decode(exact, cut, &msg) == 0)
                    msg = wire_free(msg);
            }
            free(exact);
        }
    }
}

static void malformed_wire_format_is_refused(void **state)
{
    static const struct {
        const char *what;
        size_t bytes;
        uint8_t body[16];
    } bodies[] = {
        {"field 0", 2, {0x00, 1}},
        {"group start", 1, {0x0b}},
        {"group end", 1, {0x0c}},
        {"wire type 6", 2, {0x0e, 1}},
        {"wire type 7", 2, {0x0f, 1}},
        {"varint without end", 3, {0x08, 0x80, 0x80}},
        {"varint of 11 bytes",
         12,
         {0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}},
        {"varint above 64 bits",
         11,
         {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}},
        {"length behind the end", 3, {0x12, 2, 'a'}},
        {"length of 2^64-1",
         12,
         {0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 'a'}},
        {"tag above 32 bits", 6, {0x80, 0x80, 0x80, 0x80, 0x10, 1}},
        {"half a double", 5, {0x51, 1, 2, 3, 4}},
    };
    struct wire_msg *msg = NULL;

    (void)state;
    for (size_t i = 0; i < SAMPLES_COUNT(bodies); i++) {
        gw_frame_header(packet, WIRE_SEAL, 1, bodies[i].bytes);
        memcpy(packet + GW_FRAME_HEADER, bodies[i].body, bodies[i].bytes);
        if (decode(packet, GW_FRAME_HEADER + bodies[i].bytes, &msg) != GW_E_PROTOCOL)
            fail_msg("%s was taken", bodies[i].what);
    }
}

/* A number where text belongs, text where a number belongs. */
static void wrong_wire_types_are_refused_or_unknown(void **state)
{
    struct wire_msg *msg = NULL;

    (void)state;
    body_packet(&body, WIRE_HELLO, 1, "1=1 2=1 5=7");
    assert_int_equal(decode(body.bytes, body.used, &msg), GW_E_PROTOCOL);
    body_packet(&body, WIRE_HELLO, 1, "1=t4 2=1");
    assert_int_equal(decode(body.bytes, body.used, &msg), GW_E_PROTOCOL);
    body_packet(&body, WIRE_REGISTER, 1, "2=1 3=8");
    assert_int_equal(decode(body.bytes, body.used, &msg), GW_E_PROTOCOL);
    body_packet(&body, WIRE_SEAL, 1, "10=5");
    assert_int_equal(decode(body.bytes, body.used, &msg), GW_E_PROTOCOL);
}

/* 2 bytes on the wire, some 100 in memory, 32,000 times. */
static void blow_up_is_bounded(void **state)
{
    static const uint16_t types[] = {WIRE_READY, WIRE_REGISTER, WIRE_JOBS, WIRE_STATS};
    static const uint8_t tags[] = {0x0a, 0x1a, 0x12, 0x12};
    struct wire_msg *msg = NULL;

    (void)state;
    for (size_t i = 0; i < SAMPLES_COUNT(types); i++) {
        for (size_t at = GW_FRAME_HEADER; at < GW_FRAME_MAX; at += 2) {
            packet[at] = tags[i];
            packet[at + 1] = 0;
        }
        gw_frame_header(packet, types[i], 1, GW_FRAME_MAX - GW_FRAME_HEADER);
        assert_int_equal(decode(packet, GW_FRAME_MAX, &msg), GW_E_PROTOCOL);
    }
    /* the same with unknown fields */
    for (size_t at = GW_FRAME_HEADER; at < GW_FRAME_MAX; at += 3)
        memcpy(packet + at, "\xd2\x06\x00", at + 3 <= GW_FRAME_MAX ? 3 : 1);
    gw_frame_header(packet, WIRE_LEAVE, 1, GW_FRAME_MAX - GW_FRAME_HEADER - 1);
    if (decode(packet, GW_FRAME_MAX - 1, &msg) == 0)
        wire_free(msg);
}

/* Each allocation of protobuf-c fails in turn, as the bound rises. */
static void every_bound_on_memory_is_survived(void **state)
{
    uint32_t request;

    (void)state;
    for (size_t i = 0; i < samples_used; i++) {
        const size_t bytes = sample_packet(&samples_all[i], packet);
        struct wire_msg *msg = NULL;
        size_t bound = 0;

        while (wire_decode_within(packet, bytes, bound, &msg, &request) == GW_E_PROTOCOL) {
            assert_null(msg);
            bound += bound < 4096 ? 8 : 1024;
        }
        assert_non_null(msg);
        assert_in_range(bound, 16, 128u << 10); /* far below what is allowed */
        wire_free(msg);
    }
}

/* ---- mutations ------------------------------------------------------------------------------- */

static uint32_t random_below(uint64_t *seed, uint32_t bound)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*seed >> 33) % bound);
}

static size_t mutate(uint8_t *bytes, size_t count, uint64_t *seed)
{
    static const uint8_t corners[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0x0a, 0x12};
    const size_t at =
        GW_FRAME_HEADER +
        (count > GW_FRAME_HEADER ? random_below(seed, (uint32_t)(count - GW_FRAME_HEADER)) : 0);

    switch (random_below(seed, 6)) {
    case 0: /* one bit */
        if (at < count)
            bytes[at] ^= (uint8_t)(1u << random_below(seed, 8));
        return count;
    case 1: /* one telling byte */
        if (at < count)
            bytes[at] = corners[random_below(seed, sizeof(corners))];
        return count;
    case 2: /* cut */
        return at < count ? at : count;
    case 3: /* one byte out */
        if (at + 1 < count)
            memmove(bytes + at, bytes + at + 1, count - at - 1);
        return count > GW_FRAME_HEADER ? count - 1 : count;
    case 4: /* one byte in */
        if (count == GW_FRAME_MAX)
            return count;
        memmove(bytes + at + 1, bytes + at, count - at);
        bytes[at] = (uint8_t)random_below(seed, 256);
        return count + 1;
    default: /* another type for the same body */
        bytes[4] = (uint8_t)random_below(seed, 90);
        return count;
    }
}

static void mutations_never_crash(void **state)
{
    uint64_t seed = 3, taken = 0;

    (void)state;
    for (unsigned run = 0; run < 250000; run++) {
        const struct wire_msg *sample = &samples_all[random_below(&seed, (uint32_t)samples_used)];
        struct wire_msg small = *sample;
        struct wire_msg *msg = NULL, *msg_again = NULL;
        size_t bytes, bytes_again;

        /* cheap ones: lists of a few entries */
        if (small.type == WIRE_REGISTER)
            small.u.reg.count = 2;
        else if (small.type == WIRE_READY)
            small.u.ready.count = 3;
        else if (small.type == WIRE_JOBS)
            small.u.jobs.count = 2;
        else if (small.type == WIRE_HANDOVER)
            small.u.handover.hello_bytes = 40;
        bytes = sample_packet(&small, packet);
        for (uint32_t n = 1 + random_below(&seed, 4); n > 0; n--)
            bytes = mutate(packet, bytes, &seed);
        gw_frame_header(packet, (uint16_t)(packet[4] | packet[5] << 8), run,
                        bytes - GW_FRAME_HEADER);
        if (decode(packet, bytes, &msg) < 0)
            continue;
        taken++;
        assert_int_equal(wire_encode(msg, other, sizeof(other), &bytes_again), 0);
        assert_int_equal(decode(other, bytes_again, &msg_again), 0);
        assert_int_equal(msg_again->type, msg->type);
        wire_free(msg_again);
        wire_free(msg);
    }
    assert_in_range(taken, 10000, 240000); /* both sides are exercised */
}

static void noise_never_crashes(void **state)
{
    uint64_t seed = 4;

    (void)state;
    for (unsigned run = 0; run < 100000; run++) {
        const uint32_t bytes = GW_FRAME_HEADER + random_below(&seed, 60);
        struct wire_msg *msg = NULL;

        for (uint32_t i = 0; i < bytes; i++)
            packet[i] = (uint8_t)random_below(&seed, 256);
        if (run % 4)
            gw_frame_header(packet, (uint16_t)random_below(&seed, 90), run,
                            bytes - GW_FRAME_HEADER);
        if (decode(packet, bytes, &msg) == 0)
            wire_free(msg);
    }
}

static int make_samples(void **state)
{
    (void)state;
    samples_make();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(unknown_types_are_named_so),
        cmocka_unit_test(truncation_at_every_byte),
        cmocka_unit_test(malformed_wire_format_is_refused),
        cmocka_unit_test(wrong_wire_types_are_refused_or_unknown),
        cmocka_unit_test(blow_up_is_bounded),
        cmocka_unit_test(every_bound_on_memory_is_survived),
        cmocka_unit_test(mutations_never_crash),
        cmocka_unit_test(noise_never_crashes),
    };

    return cmocka_run_group_tests(tests, make_samples, NULL);
}
