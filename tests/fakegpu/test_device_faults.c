/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda device where GPUs lack something or fail, on doubles. The failing one comes last: a
 * process cannot use its GPUs any more after that.
 * ctest: label=cuda timeout=120 link=gw_device
 */
#include "tests/fakegpu/device_kit.h"

static int setup_without_memops(void **state)
{
    assert_true(alone_control("inject no-stream-memops"));
    return kit_setup(state);
}

static int teardown_injection(void **state)
{
    int r = kit_teardown(state);

    assert_true(alone_control("inject none"));
    return r;
}

static void a_work_is_held_until_its_tokens_are_reached(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory = kit_arena(kit, 0, 4096);
    struct device_wait wait = {&kit->client[0]->timeline[7], 1, 0};
    struct device_signal signal = kit_signal(kit, 1, 0, 3);
    const uint64_t before[] = {1, 2};

    assert_non_null(strstr(kit->place_text, "no 64-bit stream memory operations"));
    kit_enqueue(kit, 0, kit_item(kit, 1, memory, 1),
                &(struct device_work){.ranks = {{1}}, .waits = &wait, .wait_count = 1});
    kit_enqueue(kit, 1, kit_item(kit, 2, NULL, 0), &(struct device_work){.ranks = {{2}}});
    kit_enqueue(kit, 2, kit_item(kit, 3, memory, 3),
                &(struct device_work){.ranks = {{3}},
                                      .wait_ops = before,
                                      .wait_op_count = 2,
                                      .signals = &signal,
                                      .signal_count = 1});
    assert_int_equal(kit_done(kit).op, 2);
    kit_pause(kit);
    assert_true(kit_quiet(kit));
    kit_raise(kit, 0, 7, 1);
    assert_int_equal(kit_done(kit).op, 1);
    assert_int_equal(kit_done(kit).op, 3);
    assert_int_equal(kit->engine[1]->op[0].value, 3);
    kit_holds(kit, memory, 3);
}

static void a_signal_behind_a_held_work_comes_after_it(void **state)
{
    struct kit *kit = *state;
    struct device_wait wait = {&kit->client[1]->timeline[3], 5, 1};
    struct device_signal first = kit_signal(kit, 0, 0, 1), second = kit_signal(kit, 0, 1, 2);

    kit_enqueue(kit, 0, kit_item(kit, 1, NULL, 0),
                &(struct device_work){.ranks = {{3}}, .waits = &wait, .wait_count = 1});
    assert_int_equal(kit->ops->signal_after(kit->device, 1, &first), 0);
    assert_int_equal(kit->ops->signal_after(kit->device, 1, &second), 0);
    kit_pause(kit);
    assert_true(kit_quiet(kit));
    assert_int_equal(kit->engine[0]->op[0].value, 0);
    kit_raise(kit, 1, 3, 4);
    kit_pause(kit);
    assert_true(kit_quiet(kit));
    kit_raise(kit, 1, 3, 5);
    assert_int_equal(kit_done(kit).op, 1);
    assert_int_equal(kit->engine[0]->op[0].value, 1);
    assert_int_equal(kit->engine[0]->op[1].value, 2);
}

/* A lane's events are recorded again and again; each lane waits for the other. */
static void more_works_than_a_lane_has_events(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory = kit_arena(kit, 0, 4096);

    for (uint64_t id = 1; id <= 300; id++) {
        const uint64_t before[] = {id - 1};
        kit_enqueue(kit, (int)(id % 2), kit_item(kit, id, memory, (uint32_t)id),
                    &(struct device_work){.ranks = {{id % 3 ? 3 : 1}},
                                          .wait_ops = before,
                                          .wait_op_count = 1});
    }
    for (uint64_t id = 1; id <= 300; id++)
        assert_false(kit_done(kit).failed);
    kit_holds(kit, memory, 300);
}

static void events_are_for_streams_that_take_them(void **state)
{
    static const uint8_t handles[GW_TIMELINE_EVENTS * GW_IPC_HANDLE_BYTES];
    struct kit *kit = *state;
    char text[GW_TEXT_MAX + 1];

    assert_int_equal(kit->ops->timeline_events(kit->device, 0, &kit->client[0]->timeline[0],
                                               handles, text),
                     GW_E_STATE);
    assert_non_null(strstr(text, "wait for words"));
}

static void what_is_held_goes_with_an_abort(void **state)
{
    struct kit *kit = *state;
    struct device_wait wait = {&kit->client[0]->timeline[7], 1, 0};
    struct device_done done;

    for (uint64_t id = 1; id <= 6; id++)
        kit_enqueue(kit, (int)(id % 3), kit_item(kit, id, NULL, 0),
                    &(struct device_work){.ranks = {{3}}, .waits = &wait, .wait_count = 1});
    kit_pause(kit);
    kit->ops->abort(kit->device, DEVICE_ALL_RANKS);
    kit->ops->drain(kit->device);
    for (uint64_t i = 1; i <= 6; i++) {
        done = kit_done(kit);
        assert_true(done.failed);
    }
    assert_int_equal(kit->runs, 0);
    kit->ops->resume(kit->device);
    kit_enqueue(kit, 0, kit_item(kit, 7, NULL, 0), &(struct device_work){.ranks = {{3}}});
    done = kit_done(kit);
    assert_true(done.op == 7 && !done.failed);
}

/* Two host allocations are the first GPU's, then it meets the page that is there. Afterwards the
 * GPU comes about, or none ever does. */
static void memory_that_runs_out_with_the_first_gpu(void **state)
{
    struct device_memory *page = NULL;
    struct device_place place;
    char line[32], text[GW_TEXT_MAX + 1];

    (void)state;
    memcpy(place.gpu, kit_uuid(0), sizeof(place.gpu));
    assert_int_equal(pages_new(PAGES_SHARED, "test-page", GW_PAGE_BYTES, PAGES_ANYWHERE, &page), 0);
    for (int comes = 1; comes >= 0; comes--) {
        struct kit kit = {0};
        kit_device(&kit);
        assert_int_equal(kit.ops->page_add(kit.device, page->base, page->mapped_bytes), 0);
        /* The last again: nothing of the time before is left. */
        for (int i = 0; i < 4; i++) {
            snprintf(line, sizeof(line), "inject oom 1 %d", i < 3 ? i : 2);
            assert_true(alone_control(line));
            assert_int_equal(kit.ops->place(kit.device, 0, &place, text), GW_E_NOMEM);
        }
        if (comes)
            assert_int_equal(kit.ops->place(kit.device, 0, &place, text), 0);
        kit.ops->page_remove(kit.device, page->base);
        kit.ops->device_free(kit.device);
    }
    pages_free(page);
}

/* An error that no call returns, while everything waits for a client: found by looking. */
static void an_error_of_a_gpu_ends_the_device(void **state)
{
    struct kit *kit = *state;
    struct device_wait wait = {&kit->client[0]->timeline[7], 1, 0};
    struct device_signal signal = kit_signal(kit, 1, 0, 3);
    uint64_t until_ns = kit_now_ns() + 30000000000u;
    char text[GW_TEXT_MAX + 1] = "", line[64];
    bool seen[4] = {false};
    struct device_done done;

    snprintf(line, sizeof(line), "inject sticky %d 1", (int)getpid());
    assert_true(alone_control(line));
    for (uint64_t id = 1; id <= 3; id++) {
        struct device_work work = {.ranks = {{3}}, .signals = &signal, .signal_count = 1};
        if (id > 1) {
            work.waits = &wait;
            work.wait_count = 1;
        }
        kit_enqueue(kit, (int)id - 1, kit_item(kit, id, NULL, 0), &work);
    }
    while (!kit->ops->take_fault(kit->device, text) && kit_now_ns() < until_ns)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_non_null(strstr(text, "GPU "));
    assert_non_null(strstr(text, "CUDA_ERROR_"));
    assert_false(kit->ops->take_fault(kit->device, text));
    kit->ops->abort(kit->device, DEVICE_ALL_RANKS);
    kit->ops->drain(kit->device);
    while (kit->ops->take_done(kit->device, &done)) {
        assert_true(done.failed && done.op <= 3 && !seen[done.op]);
        seen[done.op] = true;
    }
    assert_true(seen[1] && seen[2] && seen[3]);
    assert_int_equal(kit->engine[1]->op[0].value, 0);
    assert_int_equal(kit->waits[1]->word[0], 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_work_is_held_until_its_tokens_are_reached,
                                        setup_without_memops, teardown_injection),
        cmocka_unit_test_setup_teardown(a_signal_behind_a_held_work_comes_after_it,
                                        setup_without_memops, teardown_injection),
        cmocka_unit_test_setup_teardown(more_works_than_a_lane_has_events, setup_without_memops,
                                        teardown_injection),
        cmocka_unit_test_setup_teardown(what_is_held_goes_with_an_abort, setup_without_memops,
                                        teardown_injection),
        cmocka_unit_test_setup_teardown(events_are_for_streams_that_take_them, kit_setup,
                                        kit_teardown),
        cmocka_unit_test(memory_that_runs_out_with_the_first_gpu),
        cmocka_unit_test_setup_teardown(an_error_of_a_gpu_ends_the_device, kit_setup, kit_teardown),
    };

    (void)argc;
    if (!alone_inside())
        return alone_seeds(argv, GPUS);
    if (!kit_open())
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
