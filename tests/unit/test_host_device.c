/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the host device: order, waits, signals, aborts. Also run under ThreadSanitizer.
 * ctest: label=tsan timeout=60
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/device.h"
#include "daemon/device/ring.h"
#include "gradwire/errors.h"

#define OPS (&device_host)

struct world {
    struct device *device;
    struct device_stream *stream[3];
    struct gw_engine_page *engine;
    struct gw_client_page *client;
    _Atomic int wakes, released, runs;
    _Atomic uint64_t gate; /* runs of gated works wait for it */
    uint64_t order[64];
    _Atomic uint32_t ordered;
};

struct item {
    struct world *world;
    uint64_t id;
    uint64_t gate; /* run only returns once world->gate >= this */
    uint64_t hold_ns;
};

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

static void on_wake(void *user)
{
    ((struct world *)user)->wakes++;
}

static void run(void *arg, void *native)
{
    struct item *item = arg;

    (void)native;
    while (item->world->gate < item->gate)
        pause_ms(1);
    item->world->order[item->world->ordered++ % 64] = item->id;
    item->world->runs++;
}

static uint64_t hold(void *arg, uint64_t now_ns)
{
    return now_ns + ((struct item *)arg)->hold_ns;
}

static void release(void *arg)
{
    struct item *item = arg;

    item->world->released++;
    free(item);
}

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof(*world));

    world->engine = aligned_alloc(64, GW_ENGINE_PAGE_BYTES);
    world->client = aligned_alloc(64, GW_PAGE_BYTES);
    memset(world->engine, 0, GW_ENGINE_PAGE_BYTES);
    memset(world->client, 0, GW_PAGE_BYTES);
    assert_int_equal(
        OPS->device_new(&(struct device_config){.wake = on_wake, .user = world}, &world->device),
        0);
    assert_int_equal(OPS->stream_new(world->device, "a", &world->stream[0]), 0);
    assert_int_equal(OPS->stream_new(world->device, "b", &world->stream[1]), 0);
    assert_int_equal(OPS->stream_new(world->device, "c", &world->stream[2]), 0);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;

    world->gate = UINT64_MAX;
    assert_null(OPS->device_free(world->device));
    free(world->engine);
    free(world->client);
    free(world);
    return 0;
}

static struct item *item_new(struct world *world, uint64_t id)
{
    struct item *item = calloc(1, sizeof(*item));

    item->world = world;
    item->id = id;
    return item;
}

static void enqueue(struct world *world, int stream, struct device_work *work, struct item *item)
{
    work->op = item->id;
    work->arg = item;
    work->run = run;
    work->release = release;
    if (!ranks_any(&work->ranks))
        work->ranks = ranks_one(0);
    assert_int_equal(OPS->enqueue(world->stream[stream], work), 0);
}

static struct device_done wait_done(struct world *world)
{
    struct device_done done = {0};

    for (int i = 0; i < 20000; i++) {
        if (OPS->take_done(world->device, &done))
            return done;
        pause_ms(1);
    }
    fail_msg("no completion came");
    return done;
}

static struct device_signal signal_of(struct world *world, uint32_t slot, uint64_t value)
{
    return (struct device_signal){
        &world->engine->op[slot], value, value * 10, 0, world->engine, world->client, NULL, NULL};
}

static void a_stream_runs_in_order_and_signals(void **state)
{
    struct world *world = *state;

    for (uint64_t id = 1; id <= 20; id++) {
        struct device_signal signal = signal_of(world, 3, id);
        enqueue(world, 0,
                &(struct device_work){.ready_ns = id, .signals = &signal, .signal_count = 1},
                item_new(world, id));
    }
    for (uint64_t id = 1; id <= 20; id++) {
        struct device_done done = wait_done(world);
        assert_int_equal(done.op, id);
        assert_false(done.failed);
        assert_true(done.started_ns > 0 && done.started_ns <= done.done_ns);
    }
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(world->order[i], i + 1);
    assert_int_equal(world->engine->op[3].value, 20);
    assert_int_equal(world->engine->op[3].ready_ns, 20);
    assert_int_equal(world->engine->op[3].offset, 200);
    assert_true(world->engine->op[3].started_ns <= world->engine->op[3].done_ns);
    assert_int_equal(world->released, 20);
    assert_true(world->wakes >= 1);
}

static void an_op_waits_for_one_of_another_stream(void **state)
{
    struct world *world = *state;
    struct item *first = item_new(world, 1);
    uint64_t one = 1;

    first->gate = 1;
    enqueue(world, 0, &(struct device_work){0}, first);
    enqueue(world, 1, &(struct device_work){.wait_ops = &one, .wait_op_count = 1},
            item_new(world, 2));
    pause_ms(20);
    assert_int_equal(world->runs, 0);
    world->gate = 1;
    assert_int_equal(wait_done(world).op, 1);
    assert_int_equal(wait_done(world).op, 2);
    /* One that is done already holds nobody up. */
    enqueue(world, 1, &(struct device_work){.wait_ops = &one, .wait_op_count = 1},
            item_new(world, 3));
    assert_int_equal(wait_done(world).op, 3);
}

static void an_op_waits_for_several_of_other_streams(void **state)
{
    struct world *world = *state;
    const uint64_t before[] = {2, 0, 1};
    struct item *first = item_new(world, 1), *second = item_new(world, 2);

    first->gate = 1;
    second->gate = 2;
    enqueue(world, 0, &(struct device_work){0}, first);
    enqueue(world, 1, &(struct device_work){0}, second);
    enqueue(world, 2, &(struct device_work){.wait_ops = before, .wait_op_count = 3},
            item_new(world, 3));
    world->gate = 1;
    assert_int_equal(wait_done(world).op, 1);
    pause_ms(10);
    assert_int_equal(world->runs, 1);
    world->gate = 2;
    assert_int_equal(wait_done(world).op, 2);
    assert_int_equal(wait_done(world).op, 3);
}

static void an_op_waits_for_a_client_timeline(void **state)
{
    struct world *world = *state;
    struct device_wait waits[2] = {{&world->client->timeline[0], 5, 0},
                                   {&world->client->timeline[9], 1, 0}};

    enqueue(world, 0, &(struct device_work){.waits = waits, .wait_count = 2}, item_new(world, 1));
    OPS->kick(world->device);
    pause_ms(10);
    assert_int_equal(world->runs, 0);
    atomic_store_explicit(&world->client->timeline[0], 5, memory_order_release);
    OPS->kick(world->device);
    pause_ms(10);
    assert_int_equal(world->runs, 0);
    atomic_store_explicit(&world->client->timeline[9], 7, memory_order_release);
    OPS->kick(world->device);
    assert_int_equal(wait_done(world).op, 1);
}

static void a_signal_after_an_op_comes_when_it_is_done(void **state)
{
    struct world *world = *state;
    struct item *item = item_new(world, 1);
    struct device_signal signal = signal_of(world, 0, 1), other = signal_of(world, 1, 4);

    item->gate = 1;
    enqueue(world, 0, &(struct device_work){.ready_ns = 77}, item);
    for (int i = 0; i < 9; i++) { /* more than the first room */
        signal = signal_of(world, (uint32_t)(10 + i), 1);
        assert_int_equal(OPS->signal_after(world->device, 1, &signal), 0);
    }
    assert_int_equal(OPS->signal_after(world->device, 0, &other), 0);
    assert_int_equal(world->engine->op[1].value, 4);
    assert_int_equal(world->engine->op[10].value, 0);
    world->gate = 1;
    (void)wait_done(world);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(world->engine->op[10 + i].value, 1);
        assert_int_equal(world->engine->op[10 + i].ready_ns, 77);
    }
    /* Long done: at once. */
    signal = signal_of(world, 0, 9);
    assert_int_equal(OPS->signal_after(world->device, 1, &signal), 0);
    assert_int_equal(world->engine->op[0].value, 9);
    /* A timeline never falls. */
    signal = signal_of(world, 0, 8);
    assert_int_equal(OPS->signal_after(world->device, 1, &signal), 0);
    assert_int_equal(world->engine->op[0].value, 9);
}

/* It is done when enqueue returns, nobody is woken for it, and what is asked for later has its
 * stamps; not so where something is before it. */
static void a_quick_op_is_done_at_once_where_it_can_be(void **state)
{
    struct world *world = *state;
    struct device_wait wait = {&world->client->timeline[0], 5, 0};
    struct device_signal signal = signal_of(world, 0, 1), later = signal_of(world, 1, 1);
    struct device_done done;

    enqueue(
        world, 0,
        &(struct device_work){.quick = true, .ready_ns = 9, .signals = &signal, .signal_count = 1},
        item_new(world, 1));
    assert_int_equal(world->runs, 1);
    assert_int_equal(world->wakes, 0);
    assert_int_equal(world->engine->op[0].value, 1);
    assert_int_equal(OPS->signal_after(world->device, 1, &later), 0);
    assert_int_equal(world->engine->op[1].ready_ns, 9);
    assert_int_equal(world->engine->op[1].done_ns, world->engine->op[0].done_ns);
    assert_true(OPS->take_done(world->device, &done));
    assert_int_equal(done.op, 1);
    assert_false(OPS->take_done(world->device, &done));
    enqueue(world, 0, &(struct device_work){.quick = true, .waits = &wait, .wait_count = 1},
            item_new(world, 2));
    enqueue(world, 0, &(struct device_work){.quick = true}, item_new(world, 3));
    assert_int_equal(world->runs, 1);
    atomic_store_explicit(&world->client->timeline[0], 5, memory_order_release);
    OPS->kick(world->device);
    assert_int_equal(wait_done(world).op, 2);
    assert_int_equal(wait_done(world).op, 3);
    OPS->abort(world->device, &(struct ranks){{1}});
    enqueue(world, 0, &(struct device_work){.quick = true}, item_new(world, 4));
    assert_true(wait_done(world).failed);
    assert_int_equal(world->runs, 3);
}

static void an_abort_ends_waits_holds_and_signals(void **state)
{
    struct world *world = *state;
    struct device_wait wait = {&world->client->timeline[0], 5, 3};
    struct device_signal signal = signal_of(world, 0, 1), later = signal_of(world, 1, 1);
    struct item *held = item_new(world, 2);
    struct device_done done;

    /* 1 waits for a token, 2 is held for ages; both take rank 3 in. */
    enqueue(world, 0,
            &(struct device_work){.ranks = {{1u << 3}},
                                  .waits = &wait,
                                  .wait_count = 1,
                                  .signals = &signal,
                                  .signal_count = 1},
            item_new(world, 1));
    held->hold_ns = 3600ull * 1000000000u;
    enqueue(world, 1, &(struct device_work){.ranks = {{1u << 3 | 1}}, .hold = hold}, held);
    assert_int_equal(OPS->signal_after(world->device, 1, &later), 0);
    pause_ms(10);
    OPS->abort(world->device, &(struct ranks){{1u << 3}});
    done = wait_done(world);
    assert_true(done.failed);
    done = wait_done(world);
    assert_true(done.failed);
    assert_int_equal(world->runs, 0);
    assert_int_equal(world->engine->op[0].value, 0);
    assert_int_equal(world->engine->op[1].value, 0);
    /* Others go on, and a token of the dead rank counts as reached for them. */
    enqueue(world, 0, &(struct device_work){.ranks = {{1}}, .waits = &wait, .wait_count = 1},
            item_new(world, 3));
    done = wait_done(world);
    assert_int_equal(done.op, 3);
    assert_false(done.failed);
    OPS->abort(world->device, DEVICE_ALL_RANKS);
    OPS->drain(world->device);
    OPS->resume(world->device);
    enqueue(world, 0, &(struct device_work){.ranks = {{1u << 3}}}, item_new(world, 4));
    assert_false(wait_done(world).failed);
}

static void a_hold_delays_the_run_by_its_time(void **state)
{
    struct world *world = *state;
    struct item *item = item_new(world, 1);
    uint64_t before = clock_ns();
    struct device_done done;

    item->hold_ns = 20000000;
    enqueue(world, 0, &(struct device_work){.hold = hold}, item);
    done = wait_done(world);
    assert_true(done.done_ns >= before + 20000000);
    assert_true(done.done_ns - done.started_ns >= 20000000);
}

static void drain_waits_for_all_streams(void **state)
{
    struct world *world = *state;

    for (uint64_t id = 1; id <= 50; id++) {
        uint64_t before = id - 1; /* 0: none */
        enqueue(world, (int)(id % 2),
                &(struct device_work){.wait_ops = &before, .wait_op_count = 1},
                item_new(world, id));
    }
    OPS->drain(world->device);
    assert_int_equal(world->runs, 50);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(world->order[i], i + 1);
}

static void freeing_the_device_drops_what_has_not_run(void **state)
{
    struct world *world = *state;
    struct device_wait wait = {&world->client->timeline[0], 5, 3};

    for (uint64_t id = 1; id <= 5; id++)
        enqueue(world, 0, &(struct device_work){.waits = &wait, .wait_count = 1},
                item_new(world, id));
    world->device = OPS->device_free(world->device);
    assert_int_equal(world->runs, 0);
    assert_int_equal(world->released, 5);
}

struct sleeper {
    struct world *world;
    uint64_t rounds;
};

/* What a client does: never asleep when its slot has been raised. */
static void *sleeper_main(void *arg)
{
    struct sleeper *sleeper = arg;
    struct gw_engine_page *engine = sleeper->world->engine;
    struct gw_client_page *client = sleeper->world->client;
    uint32_t line = gw_wake_line(&engine->op[2]);

    for (uint64_t round = 1; round <= sleeper->rounds; round++) {
        while (atomic_load_explicit(&engine->op[2].value, memory_order_acquire) < round) {
            uint32_t wake;
            atomic_fetch_add(&client->waiting[line], 1);
            wake = atomic_load(&engine->wake);
            if (atomic_load_explicit(&engine->op[2].value, memory_order_acquire) < round)
                (void)syscall(SYS_futex, &engine->wake, FUTEX_WAIT_BITSET, wake, NULL, NULL,
                              1u << line);
            atomic_fetch_sub(&client->waiting[line], 1);
        }
        atomic_store_explicit(&client->timeline[1], round, memory_order_release);
        OPS->kick(sleeper->world->device);
    }
    return NULL;
}

/* Ping-pong between a sleeping client and a waiting stream; a lost wake-up would end in the test's
 * deadline. */
static void no_wake_up_is_lost(void **state)
{
    struct world *world = *state;
    struct sleeper sleeper = {world, 2000};
    struct device_done done;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, sleeper_main, &sleeper), 0);
    for (uint64_t id = 1; id <= sleeper.rounds; id++) {
        struct device_wait wait = {&world->client->timeline[1], id - 1, 0};
        struct device_signal signal = signal_of(world, 2, id);
        enqueue(world, 0,
                &(struct device_work){
                    .waits = &wait, .wait_count = 1, .signals = &signal, .signal_count = 1},
                item_new(world, id));
    }
    pthread_join(thread, NULL);
    OPS->drain(world->device);
    while (OPS->take_done(world->device, &done))
        assert_false(done.failed);
    assert_int_equal(world->released, sleeper.rounds);
}

static void a_host_needs_no_places_and_takes_no_imports(void **state)
{
    struct world *world = *state;
    struct device_memory *memory = NULL;
    char text[GW_TEXT_MAX + 1] = "";

    assert_int_equal(OPS->place(world->device, 0, &(struct device_place){{1}}, text), 0);
    assert_int_equal(OPS->page_add(world->device, world->client, GW_PAGE_BYTES), 0);
    OPS->page_remove(world->device, world->client);
    assert_int_equal(
        OPS->memory_import(world->device, 0, &(struct device_import){.bytes = 4}, &memory, text),
        GW_E_UNIMPLEMENTED);
    assert_null(memory);
    assert_true(text[0]);
    assert_false(OPS->take_fault(world->device, text));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_stream_runs_in_order_and_signals),
        TEST(an_op_waits_for_one_of_another_stream),
        TEST(an_op_waits_for_several_of_other_streams),
        TEST(an_op_waits_for_a_client_timeline),
        TEST(a_signal_after_an_op_comes_when_it_is_done),
        TEST(a_quick_op_is_done_at_once_where_it_can_be),
        TEST(an_abort_ends_waits_holds_and_signals),
        TEST(a_hold_delays_the_run_by_its_time),
        TEST(drain_waits_for_all_streams),
        TEST(freeing_the_device_drops_what_has_not_run),
        TEST(no_wake_up_is_lost),
        TEST(a_host_needs_no_places_and_takes_no_imports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
