/* SPDX-License-Identifier: Apache-2.0 */
/* The submission ring: order and content round its end, credit, and sides that lie.
 * ctest: label=tsan */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradwire/errors.h"
#include "proto/submit.h"

#define FRAMES 20000u

struct rig {
    uint8_t *memory;
    struct gw_client_page *client;
    struct gw_engine_page *engine;
    struct submit_writer writer;
    struct submit_reader reader;
    uint8_t frame[GW_FRAME_MAX];
};

static int start(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    rig->memory = aligned_alloc(64, GW_CLIENT_PAGE_BYTES);
    rig->engine = aligned_alloc(64, GW_ENGINE_PAGE_BYTES);
    memset(rig->memory, 0xee, GW_CLIENT_PAGE_BYTES);
    memset(rig->memory, 0, GW_PAGE_BYTES);
    memset(rig->engine, 0, GW_ENGINE_PAGE_BYTES);
    rig->client = (struct gw_client_page *)(void *)rig->memory;
    submit_writer_start(&rig->writer, rig->client, rig->engine);
    submit_reader_start(&rig->reader, rig->client, rig->engine);
    *state = rig;
    return 0;
}

static int end(void **state)
{
    struct rig *rig = *state;

    free(rig->memory);
    free(rig->engine);
    free(rig);
    return 0;
}

/* Content that tells which frame it is, and where in it. */
static void fill(uint8_t *frame, size_t bytes, uint32_t number)
{
    for (size_t i = 0; i < bytes; i++)
        frame[i] = (uint8_t)(number * 7 + i * 3 + i / 251);
}

static size_t length_of(uint32_t number)
{
    return GW_FRAME_HEADER + number * 37 % 501;
}

static int put(struct rig *rig, uint32_t number, size_t bytes)
{
    fill(rig->frame, bytes, number);
    return submit_put(&rig->writer, rig->frame, bytes);
}

static int take(struct rig *rig)
{
    return submit_take(&rig->reader, submit_seen(&rig->reader), rig->frame);
}

static void expect(struct rig *rig, uint32_t number, size_t bytes)
{
    static uint8_t expected[GW_FRAME_MAX];

    assert_int_equal(take(rig), bytes);
    fill(expected, bytes, number);
    assert_memory_equal(rig->frame, expected, bytes);
}

static void frames_come_in_order_whatever_their_length(void **state)
{
    struct rig *rig = *state;

    assert_int_equal(take(rig), 0);
    for (uint32_t n = 0; n < 3000; n += 3) { /* many times round the ring */
        for (uint32_t i = n; i < n + 3; i++)
            assert_int_equal(put(rig, i, length_of(i)), 0);
        for (uint32_t i = n; i < n + 3; i++)
            expect(rig, i, length_of(i));
        assert_true(submit_all_taken(&rig->writer));
    }
    assert_true(rig->writer.at > 2 * GW_SUBMIT_BYTES);
    assert_int_equal(take(rig), 0);
}

static void every_place_of_the_ring_s_end_in_a_frame(void **state)
{
    struct rig *rig = *state;

    for (uint32_t before = 8; before <= 64; before += 8) {
        uint64_t at = 5 * GW_SUBMIT_BYTES - before;
        rig->writer.at = rig->reader.at = at;
        atomic_store(&rig->client->put, at);
        atomic_store(&rig->engine->taken, at);
        assert_int_equal(put(rig, before, 45), 0);
        assert_int_equal(rig->writer.at, at + 8 + 48);
        expect(rig, before, 45);
        assert_int_equal(atomic_load(&rig->engine->taken), at + 8 + 48);
    }
}

static void a_full_ring_takes_nothing_until_something_is_taken(void **state)
{
    struct rig *rig = *state;
    uint32_t count = 0;
    uint64_t at;

    while (put(rig, count, 1016) == 0)
        count++;
    assert_int_equal(count, GW_SUBMIT_BYTES / 1024);
    at = rig->writer.at;
    assert_int_equal(put(rig, 9, GW_FRAME_HEADER), GW_E_AGAIN);
    assert_int_equal(rig->writer.at, at);
    assert_int_equal(atomic_load(&rig->client->put), at);
    expect(rig, 0, 1016);
    assert_int_equal(put(rig, count, 1017), GW_E_AGAIN);
    assert_int_equal(put(rig, count, 1016), 0);
    for (uint32_t i = 1; i <= count; i++)
        expect(rig, i, 1016);
}

static void the_largest_frame_fits_into_an_empty_ring(void **state)
{
    struct rig *rig = *state;

    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(put(rig, i, GW_FRAME_MAX), 0);
        expect(rig, i, GW_FRAME_MAX);
    }
}

static void only_what_was_seen_is_taken(void **state)
{
    struct rig *rig = *state;
    uint64_t seen;

    assert_int_equal(put(rig, 1, 20), 0);
    seen = submit_seen(&rig->reader);
    assert_int_equal(put(rig, 2, 30), 0);
    assert_int_equal(submit_take(&rig->reader, seen, rig->frame), 20);
    assert_int_equal(submit_take(&rig->reader, seen, rig->frame), 0);
    expect(rig, 2, 30);
}

static void a_position_that_cannot_be_is_refused(void **state)
{
    struct rig *rig = *state;
    const uint64_t start = 3 * GW_SUBMIT_BYTES + 16;
    const uint64_t wrong[] = {start + GW_SUBMIT_BYTES + 8, start - 8, start + 4, start + 1, 0,
                              UINT64_MAX, start + (1ull << 63)};

    rig->reader.at = start;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        atomic_store(&rig->client->put, wrong[i]);
        assert_int_equal(take(rig), GW_E_PROTOCOL);
        assert_int_equal(rig->reader.at, start);
    }
}

static void a_record_that_cannot_be_is_refused(void **state)
{
    struct rig *rig = *state;
    const struct {
        uint32_t bytes, zero;
        uint64_t put;
    } wrong[] = {{0, 0, 64},           {GW_FRAME_HEADER - 1, 0, 64}, {GW_FRAME_MAX + 1, 0, 131072},
                 {UINT32_MAX, 0, 64},  {16, 1, 64},                  {17, 0, 24},
                 {57, 0, 64},          {16, 0, 8},                   {65536, 0, 65536}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(rig->memory + GW_SUBMIT_AT, &wrong[i], 8);
        atomic_store(&rig->client->put, wrong[i].put);
        assert_int_equal(take(rig), GW_E_PROTOCOL);
        assert_int_equal(atomic_load(&rig->engine->taken), 0);
    }
}

static void an_engine_s_position_that_cannot_be_is_refused(void **state)
{
    struct rig *rig = *state;
    const uint64_t wrong[] = {8, UINT64_MAX, 4};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        atomic_store(&rig->engine->taken, wrong[i]);
        assert_int_equal(put(rig, 1, 20), GW_E_PROTOCOL);
        assert_int_equal(atomic_load(&rig->client->put), 0);
    }
}

static void *write_frames(void *arg)
{
    struct rig *rig = arg;
    static uint8_t frame[GW_FRAME_MAX];

    for (uint32_t i = 0; i < FRAMES; i++) {
        fill(frame, length_of(i), i);
        while (submit_put(&rig->writer, frame, length_of(i)) == GW_E_AGAIN)
            sched_yield();
    }
    return NULL;
}

static void two_threads_lose_nothing(void **state)
{
    struct rig *rig = *state;
    static uint8_t expected[GW_FRAME_MAX];
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, write_frames, rig), 0);
    for (uint32_t i = 0; i < FRAMES;) {
        int bytes = take(rig);

        assert_true(bytes >= 0);
        if (bytes == 0) {
            sched_yield();
            continue;
        }
        assert_int_equal(bytes, length_of(i));
        fill(expected, length_of(i), i);
        assert_memory_equal(rig->frame, expected, length_of(i));
        i++;
    }
    pthread_join(thread, NULL);
    assert_int_equal(take(rig), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, end)
    const struct CMUnitTest tests[] = {
        TEST(frames_come_in_order_whatever_their_length),
        TEST(every_place_of_the_ring_s_end_in_a_frame),
        TEST(a_full_ring_takes_nothing_until_something_is_taken),
        TEST(the_largest_frame_fits_into_an_empty_ring),
        TEST(only_what_was_seen_is_taken),
        TEST(a_position_that_cannot_be_is_refused),
        TEST(a_record_that_cannot_be_is_refused),
        TEST(an_engine_s_position_that_cannot_be_is_refused),
        TEST(two_threads_lose_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
