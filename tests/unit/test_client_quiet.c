/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that the engine need not hear of: it is rung for none of them, but for what comes after
 * them, and for a ring that they have filled. One thread plays both sides. ctest: link=gw_client
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/lib/channel.h"

static _Alignas(64) uint8_t memory[GW_CLIENT_PAGE_BYTES];
static struct gw_engine_page engine;
static struct fork_state fork_list;
static struct channel channel;
static struct submit_reader reader;
static int bell;

static int start(void **state)
{
    struct gw_client_page *client = (struct gw_client_page *)(void *)memory;

    (void)state;
    memset(memory, 0, sizeof(memory));
    memset(&engine, 0, sizeof(engine));
    memset(&channel, 0, sizeof(channel));
    bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bell < 0 || channel_init(&channel, &fork_list) < 0)
        return -1;
    channel_join(&channel, client, &engine, bell);
    submit_reader_start(&reader, client, &engine);
    atomic_store(&engine.sleeps, 1);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    channel_deinit(&channel);
    close(bell);
    return 0;
}

static bool rung(void)
{
    uint64_t rings;

    return read(bell, &rings, sizeof(rings)) == sizeof(rings);
}

static void send_fetch(bool quiet)
{
    struct wire_msg msg = {.type = WIRE_FETCH};

    assert_int_equal(quiet ? channel_send_quiet(&channel, &msg) : channel_send(&channel, &msg), 0);
}

/* All that lies in the ring; then the engine sleeps again. */
static unsigned take_all(void)
{
    static uint8_t frame[GW_FRAME_MAX];
    uint64_t seen = submit_seen(&reader);
    unsigned count = 0;

    while (submit_take(&reader, seen, frame) > 0)
        count++;
    atomic_fetch_add(&engine.sleeps, 2);
    return count;
}

static unsigned fill(void)
{
    unsigned count = 0;

    while (channel.pending_bytes == 0) {
        assert_false(rung());
        send_fetch(true);
        count++;
    }
    return count;
}

static void quiet_frames_wait_for_the_next_loud_one(void **state)
{
    (void)state;
    send_fetch(true);
    send_fetch(true);
    assert_false(rung());
    send_fetch(false);
    assert_true(rung());
    assert_int_equal(take_all(), 3);
    send_fetch(true);
    assert_false(rung());
    assert_true(channel_flush(&channel)); /* as who waits does */
    assert_true(rung());
    assert_int_equal(take_all(), 1);
}

static void a_ring_full_of_quiet_frames_is_rung_for(void **state)
{
    unsigned count;

    (void)state;
    count = fill();
    assert_true(rung());
    assert_int_equal(take_all(), count - 1);
    assert_true(channel_flush(&channel));
    assert_int_equal(take_all(), 1);
}

/* The loud one waited for room, and a quiet one finds some. */
static void a_loud_frame_that_was_kept_is_rung_for(void **state)
{
    unsigned count;

    (void)state;
    count = fill();
    send_fetch(false);
    assert_true(rung());
    assert_int_equal(take_all(), count - 1);
    send_fetch(true);
    assert_true(rung());
    assert_int_equal(take_all(), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(quiet_frames_wait_for_the_next_loud_one, start, stop),
        cmocka_unit_test_setup_teardown(a_ring_full_of_quiet_frames_is_rung_for, start, stop),
        cmocka_unit_test_setup_teardown(a_loud_frame_that_was_kept_is_rung_for, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
