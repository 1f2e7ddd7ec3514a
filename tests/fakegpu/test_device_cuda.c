/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda device on doubles, by its table alone: order, tokens, signals, aborts, memory that a
 * second process maps, memory that a client brings. Faults have a program of their own
 * (test_device_faults.c), for they leave things behind.
 * ctest: label=cuda timeout=120 link=gw_device
 */
#include "tests/fakegpu/device_kit.h"

/* ---- order ----------------------------------------------------------------------------------- */

static void a_lane_runs_in_order_and_signals_every_rank(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory[GPUS];

    for (uint32_t rank = 0; rank < GPUS; rank++)
        memory[rank] = kit_arena(kit, rank, 4096);
    for (uint64_t id = 1; id <= 20; id++) {
        struct device_signal signals[GPUS] = {kit_signal(kit, 0, 3, id), kit_signal(kit, 1, 3, id)};
        struct kit_item *item = kit_item(kit, id, memory[0], (uint32_t)id);
        item->memory[1] = memory[1];
        kit_enqueue(kit, 0, item,
                    &(struct device_work){
                        .ready_ns = id, .ranks = {{3}}, .signals = signals, .signal_count = GPUS});
    }
    for (uint64_t id = 1; id <= 20; id++) {
        struct device_done done = kit_done(kit);
        assert_int_equal(done.op, id);
        assert_false(done.failed);
        assert_true(done.started_ns > kit->started_ns && done.started_ns <= done.done_ns);
        assert_true(done.done_ns < kit_now_ns() + 1000000000u);
    }
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        const struct gw_shm_slot *slot = &kit->engine[rank]->op[3];
        assert_int_equal(slot->value, 20);
        assert_int_equal(slot->ready_ns, 20);
        assert_int_equal(slot->offset, 200);
        assert_true(slot->started_ns > 0 && slot->started_ns <= slot->done_ns);
        assert_int_equal(kit->waits[rank]->word[3], 20);
        kit_holds(kit, memory[rank], 20);
    }
    assert_int_equal(kit->released, 20);
    assert_int_equal(kit->runs, 40);
    assert_true(kit->wakes >= 1);
}

static void an_op_waits_for_ops_of_other_lanes(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory = kit_arena(kit, 0, 4096);
    struct device_wait wait = {&kit->client[0]->timeline[7], 1, 0};
    const uint64_t before[] = {1, 2};

    kit_enqueue(kit, 0, kit_item(kit, 1, memory, 1),
                &(struct device_work){.ranks = {{1}}, .waits = &wait, .wait_count = 1});
    kit_enqueue(kit, 1, kit_item(kit, 2, NULL, 0), &(struct device_work){.ranks = {{2}}});
    kit_enqueue(kit, 2, kit_item(kit, 3, memory, 3),
                &(struct device_work){.ranks = {{3}}, .wait_ops = before, .wait_op_count = 2});
    assert_int_equal(kit_done(kit).op, 2); /* of rank 1 alone: nothing holds it */
    kit_pause(kit);
    assert_true(kit_quiet(kit));
    kit_raise(kit, 0, 7, 1);
    assert_int_equal(kit_done(kit).op, 1);
    assert_int_equal(kit_done(kit).op, 3);
    kit_holds(kit, memory, 3);
}

static void tokens_may_be_raised_late_and_in_any_order(void **state)
{
    struct kit *kit = *state;
    struct device_wait waits[2] = {{&kit->client[0]->timeline[0], 5, 0},
                                   {&kit->client[1]->timeline[9], 1, 1}};

    kit_enqueue(kit, 0, kit_item(kit, 1, NULL, 0),
                &(struct device_work){.ranks = {{3}}, .waits = waits, .wait_count = 2});
    kit_raise(kit, 0, 0, 4);
    kit_raise(kit, 1, 9, 7);
    kit_pause(kit);
    assert_true(kit_quiet(kit));
    kit_raise(kit, 0, 0, 6);
    assert_int_equal(kit_done(kit).op, 1);
}

static void signals_asked_for_afterwards_come(void **state)
{
    struct kit *kit = *state;
    struct device_wait wait = {&kit->client[0]->timeline[0], 1, 0};
    struct device_signal signal = kit_signal(kit, 1, 1, 4);

    kit_enqueue(kit, 0, kit_item(kit, 1, NULL, 0),
                &(struct device_work){
                    .ranks = {{3}}, .ready_ns = 77, .waits = &wait, .wait_count = 1});
    assert_int_equal(kit->ops->signal_after(kit->device, 0, &signal), 0);
    assert_int_equal(kit->engine[1]->op[1].value, 4);
    assert_int_equal(kit->waits[1]->word[1], 4);
    for (uint32_t i = 10; i < 19; i++) {
        signal = kit_signal(kit, i % 2, i, 1);
        assert_int_equal(kit->ops->signal_after(kit->device, 1, &signal), 0);
    }
    assert_int_equal(kit->engine[0]->op[10].value, 0);
    kit_raise(kit, 0, 0, 1);
    assert_int_equal(kit_done(kit).op, 1);
    for (uint32_t i = 10; i < 19; i++) {
        assert_int_equal(kit->engine[i % 2]->op[i].value, 1);
        assert_int_equal(kit->engine[i % 2]->op[i].ready_ns, 77);
        assert_int_equal(kit->waits[i % 2]->word[i], 1);
    }
    signal = kit_signal(kit, 0, 10, 9); /* long done: at once */
    assert_int_equal(kit->ops->signal_after(kit->device, 1, &signal), 0);
    assert_int_equal(kit->engine[0]->op[10].value, 9);
}

/* Where a GPU raises a slot without atomics on host memory, a value that the host stores meanwhile
 * would be lost. */
static void signals_of_a_rank_follow_those_on_their_way(void **state)
{
    struct kit *kit = *state;
    struct device_wait wait = {&kit->client[0]->timeline[0], 1, 0};
    struct device_signal first = kit_signal(kit, 1, 1, 1), second = kit_signal(kit, 1, 1, 2);

    kit_enqueue(kit, 0, kit_item(kit, 1, NULL, 0),
                &(struct device_work){.ranks = {{3}}, .waits = &wait, .wait_count = 1});
    assert_int_equal(kit->ops->signal_after(kit->device, 1, &first), 0);
    assert_int_equal(kit->ops->signal_after(kit->device, 0, &second), 0);
    kit_pause(kit);
    assert_int_equal(kit->engine[1]->op[1].value, 0);
    kit_raise(kit, 0, 0, 1);
    assert_int_equal(kit_done(kit).op, 1);
    assert_int_equal(kit->engine[1]->op[1].value, 2);
    for (uint64_t op = 2; op < 200; op++) {
        first = kit_signal(kit, 1, 1, 2 * op - 1);
        second = kit_signal(kit, 1, 1, 2 * op);
        kit_enqueue(kit, 0, kit_item(kit, op, NULL, 0), &(struct device_work){.ranks = {{2}}});
        assert_int_equal(kit->ops->signal_after(kit->device, op, &first), 0);
        assert_int_equal(kit->ops->signal_after(kit->device, 1, &second), 0);
        assert_int_equal(kit_done(kit).op, op);
        assert_int_equal(kit->engine[1]->op[1].value, 2 * op);
        assert_int_equal(kit->waits[1]->word[1], 2 * op);
    }
}

/* More than stamps of their own are there for, over three lanes that wait for each other. */
static void thousands_of_works_pass(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory = kit_arena(kit, 0, 4096);
    struct device_wait wait = {&kit->client[0]->timeline[0], 1, 0};
    const uint64_t count = 2500;
    uint64_t sum = 0;

    for (uint64_t id = 1; id <= count; id++) {
        struct device_signal signal = kit_signal(kit, (uint32_t)(id % 2), (uint32_t)(id % 3), id);
        uint64_t before = id - 1;
        struct device_work work = {.ranks = {{1u << id % 2 | (id % 3 == 0 ? 3u : 0)}},
                                   .wait_ops = &before,
                                   .wait_op_count = 1,
                                   .signals = &signal,
                                   .signal_count = 1};
        if (id == 1) {
            work.waits = &wait;
            work.wait_count = 1;
        }
        kit_enqueue(kit, (int)(id % 3), kit_item(kit, id, id % 2 ? NULL : memory, (uint32_t)id),
                    &work);
    }
    kit_raise(kit, 0, 0, 1);
    for (uint64_t i = 0; i < count; i++) {
        struct device_done done = kit_done(kit);
        assert_false(done.failed);
        sum += done.op;
    }
    assert_int_equal(sum, count * (count + 1) / 2);
    kit_holds(kit, memory, (uint32_t)count);
}

#define WORKS 400u
#define REGION 256u

struct graph {
    struct kit *kit;
    uint32_t token[WORKS + 1]; /* timeline and value of the token that a work waits for; 0: none */
};

/* Tokens are raised in their order on each timeline, whatever streams have got to. */
static void *raise_tokens(void *arg)
{
    struct graph *graph = arg;

    for (uint32_t id = 1; id <= WORKS; id++)
        if (graph->token[id])
            kit_raise(graph->kit, id % GPUS, graph->token[id] % 8, graph->token[id]);
    return NULL;
}

/* Each work has a region of some GPU; it fills it, or copies the region of an earlier work that it
 * waits for. Whoever runs too early copies something else. */
static void any_graph_of_works_keeps_its_order(void **state)
{
    struct kit *kit = *state;
    struct graph graph = {.kit = kit};
    struct device_memory *memory[GPUS];
    uint32_t value[WORKS + 1], *words = malloc(WORKS * REGION + REGION), random = 12345;
    pthread_t thread;

    for (uint32_t rank = 0; rank < GPUS; rank++)
        memory[rank] = kit_arena(kit, rank, (WORKS + 1) * REGION);
    for (uint32_t id = 1; id <= WORKS; id++) {
        uint32_t rank = id % GPUS;
        uint64_t before[2] = {0, 0};
        struct kit_item *item = kit_item(kit, id, NULL, id);
        struct device_wait wait = {&kit->client[rank]->timeline[id % 8], id, rank};
        struct device_work work = {.ranks = {{1u << rank}}};

        random = random * 1664525u + 1013904223u;
        item->memory[rank] = item->memory[0] = memory[rank];
        item->at = id * REGION;
        item->bytes = REGION;
        value[id] = id;
        if (random >> 16 & 3 && id > 1) {
            before[0] = id - 1 - (random >> 20) % (id - 1 < 20 ? id - 1 : 20);
            before[1] = (random >> 8) % id;
            work.wait_ops = before;
            work.wait_op_count = 2;
            item->from = memory[before[0] % GPUS];
            item->from_at = before[0] * REGION;
            value[id] = value[before[0]];
        }
        if ((random >> 18 & 3) == 0) {
            graph.token[id] = id;
            work.waits = &wait;
            work.wait_count = 1;
        }
        kit_enqueue(kit, (int)(random >> 24) % LANES, item, &work);
    }
    assert_int_equal(pthread_create(&thread, NULL, raise_tokens, &graph), 0);
    for (uint32_t i = 0; i < WORKS; i++)
        assert_false(kit_done(kit).failed);
    pthread_join(thread, NULL);
    kit_phase("setup");
    for (uint32_t rank = 0; rank < GPUS; rank++) {
        kit->ops->copy(kit->device, words, memory[rank]->base, WORKS * REGION + REGION);
        for (uint32_t id = 1; id <= WORKS; id++)
            for (uint32_t i = 0; i < REGION / 4 && id % GPUS == rank; i++)
                assert_int_equal(words[id * REGION / 4 + i], value[id]);
    }
    free(words);
}

static void a_hold_takes_the_time_of_the_rank_s_link(void **state)
{
    struct kit *kit = *state;
    uint64_t before_ns = kit_now_ns();

    for (uint64_t id = 1; id <= 3; id++)
        kit_enqueue(kit, (int)id - 1, kit_item(kit, id, NULL, 0),
                    &(struct device_work){.ranks = {{1}}, .hold_ns = 10000000});
    for (uint64_t id = 1; id <= 3; id++)
        assert_true(kit_done(kit).op != 0);
    assert_true(kit_now_ns() - before_ns >= 30000000);
}

/* ---- aborts ---------------------------------------------------------------------------------- */

static void an_abort_frees_blocked_streams(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory = kit_arena(kit, 0, 4096);
    struct device_wait waits[2] = {{&kit->client[1]->timeline[5], 1000, 1},
                                   {&kit->client[0]->timeline[5], 3, 0}};
    struct device_signal signal = kit_signal(kit, 0, 0, 1), later = kit_signal(kit, 1, 1, 1);
    struct device_done done;

    kit_raise(kit, 1, 5, 17);
    kit_enqueue(
        kit, 0, kit_item(kit, 1, memory, 1),
        &(struct device_work){
            .ranks = {{3}}, .waits = waits, .wait_count = 2, .signals = &signal,
            .signal_count = 1});
    kit_enqueue(kit, 0, kit_item(kit, 2, memory, 2), &(struct device_work){.ranks = {{2}}});
    assert_int_equal(kit->ops->signal_after(kit->device, 1, &later), 0);
    kit_pause(kit);
    kit_raise(kit, 0, 5, 3);
    kit->ops->abort(kit->device, &(struct ranks){{2}});
    /* A client that has not noticed lowers the word again. */
    kit_raise(kit, 1, 5, 18);
    for (uint64_t sum = 0; sum != 3; sum += done.op) { /* GPU 1 may be done with both first */
        done = kit_done(kit);
        assert_true(done.failed);
    }
    assert_int_equal(kit->engine[0]->op[0].value, 0);
    assert_int_equal(kit->engine[1]->op[1].value, 0);
    assert_int_equal(kit->waits[0]->word[0], 0);
    /* Others go on, and a token of the dead rank counts as reached for them. */
    kit_enqueue(kit, 1, kit_item(kit, 3, memory, 3),
                &(struct device_work){.ranks = {{1}}, .waits = waits, .wait_count = 1});
    done = kit_done(kit);
    assert_true(done.op == 3 && !done.failed);
    kit_holds(kit, memory, 3);
    kit->ops->abort(kit->device, DEVICE_ALL_RANKS);
    kit->ops->drain(kit->device);
    kit->ops->resume(kit->device);
    assert_true(kit->client[1]->timeline[5] == 18);
    assert_true(kit->client[0]->timeline[5] == 3);
    kit_enqueue(kit, 0, kit_item(kit, 4, memory, 4), &(struct device_work){.ranks = {{3}}});
    done = kit_done(kit);
    assert_true(done.op == 4 && !done.failed);
}

static void a_device_is_freed_in_the_middle_of_works(void **state)
{
    struct kit *kit = *state;
    struct device_wait wait = {&kit->client[0]->timeline[5], 1, 0};

    for (uint64_t id = 1; id <= 5; id++)
        kit_enqueue(kit, (int)(id % 3), kit_item(kit, id, NULL, 0),
                    &(struct device_work){.ranks = {{3}}, .waits = &wait, .wait_count = 1});
    kit_phase("setup");
    kit->device = kit->ops->device_free(kit->device);
    assert_null(kit->device);
    assert_int_equal(kit->released, 5);
}

/* ---- clients --------------------------------------------------------------------------------- */

static void a_sleeping_client_is_woken(void **state)
{
    struct kit *kit = *state;
    const uint64_t rounds = 200;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, kit_sleeper, kit), 0);
    for (uint64_t id = 1; id <= rounds; id++) {
        struct device_wait wait = {&kit->client[0]->timeline[1], id - 1, 0};
        struct device_signal signal = kit_signal(kit, 0, 2, id);
        kit_enqueue(kit, 0, kit_item(kit, id, NULL, 0),
                    &(struct device_work){.ranks = {{1}},
                                          .waits = &wait,
                                          .wait_count = 1,
                                          .signals = &signal,
                                          .signal_count = 1});
    }
    kit_raise(kit, 0, 2, rounds); /* how many rounds it shall go */
    pthread_join(thread, NULL);
    for (uint64_t id = 1; id <= rounds; id++)
        assert_int_equal(kit_done(kit).op, id);
}

/* The client maps the arena, its streams raise a timeline, the engine's stream waits for it; then
 * the client's stream waits for the signal. */
static void a_second_process_shares_memory_and_order(void **state)
{
    struct kit *kit = *state;
    struct device_memory *arena = kit_arena(kit, 0, 1u << 20);
    struct device_memory *copy = kit_arena(kit, 0, 1u << 20);
    struct device_wait wait = {&kit->client[0]->timeline[0], 1, 0};
    struct device_signal signal = kit_signal(kit, 0, 0, 1);
    struct kit_item *item = kit_item(kit, 1, copy, 0);

    assert_true(arena->on_device && arena->mapped_bytes >= arena->bytes && arena->fd >= 0);
    assert_true(fcntl(arena->fd, F_GETFD) & FD_CLOEXEC);
    item->from = arena;
    kit_enqueue(
        kit, 0, item,
        &(struct device_work){
            .ranks = {{1}}, .waits = &wait, .wait_count = 1, .signals = &signal,
            .signal_count = 1});
    kit_pause(kit);
    assert_true(kit_quiet(kit));
    kit_client_start(kit, "map", arena);
    assert_int_equal(kit_done(kit).op, 1);
    kit_holds(kit, copy, 0x5a5a5a5a); /* what the client filled it with */
    kit_client_end(kit);
    kit_holds(kit, arena, 0x66666666); /* and after our signal */
}

static void a_client_brings_its_own_memory(void **state)
{
    struct kit *kit = *state;
    struct device_memory *first = NULL, *second = NULL, *none = NULL;
    struct device_import import = {.client = 9, .offset = 4096, .bytes = 8192};
    char text[GW_TEXT_MAX + 1] = "";

    kit_client_start(kit, "lend", NULL);
    kit_client_read(kit, &import.handle, sizeof(import.handle));
    kit_client_read(kit, &import.allocation_bytes, sizeof(import.allocation_bytes));
    assert_int_equal(kit->ops->memory_import(kit->device, 1, &import, &first, text), 0);
    assert_true(first->on_device && first->fd < 0);
    import.offset = 0;
    assert_int_equal(kit->ops->memory_import(kit->device, 1, &import, &second, text), 0);
    assert_ptr_equal((char *)first->base - 4096, second->base);
    import.bytes = import.allocation_bytes + 1;
    assert_int_equal(kit->ops->memory_import(kit->device, 1, &import, &none, text), GW_E_INVALID);
    import.bytes = 8192;
    import.allocation_bytes <<= 20;
    assert_int_equal(kit->ops->memory_import(kit->device, 1, &import, &none, text), GW_E_INVALID);
    memset(import.handle, 0, sizeof(import.handle));
    assert_int_equal(kit->ops->memory_import(kit->device, 1, &import, &none, text), GW_E_INVALID);
    assert_non_null(strstr(text, "cannot be opened"));
    kit_enqueue(kit, 0, kit_item(kit, 1, first, 0x22222222), &(struct device_work){.ranks = {{2}}});
    assert_int_equal(kit_done(kit).op, 1);
    kit_holds(kit, first, 0x22222222);
    assert_null(kit->ops->memory_free(kit->device, second));
    kit_enqueue(kit, 0, kit_item(kit, 2, first, 0x33333333), &(struct device_work){.ranks = {{2}}});
    assert_int_equal(kit_done(kit).op, 2);
    kit_phase("setup");
    assert_null(kit->ops->memory_free(kit->device, first));
    kit_client_end(kit); /* it has looked */
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void memory_is_zero_and_copied_everywhere(void **state)
{
    struct kit *kit = *state;
    struct device_memory *one = kit_arena(kit, 0, 3u << 20 | 4),
                         *other = kit_arena(kit, 1, 5u << 20);
    struct device_memory *staging = NULL;
    char back[64];

    kit_holds(kit, one, 0);
    kit_holds(kit, other, 0);
    assert_int_equal(
        kit->ops->memory_new(kit->device, DEVICE_MEMORY_STAGING, 0, "test", 8192, &staging), 0);
    assert_false(staging->on_device);
    memset(staging->base, 0x41, 64);
    kit->ops->copy(kit->device, one->base, staging->base, 64);
    kit->ops->copy(kit->device, (char *)other->base + 64, one->base, 64);
    kit->ops->copy(kit->device, back, (char *)other->base + 64, 64);
    assert_memory_equal(back, staging->base, 64);
    kit->ops->zero(kit->device, (char *)other->base + 64, 32);
    kit->ops->copy(kit->device, back, (char *)other->base + 64, 64);
    assert_true(back[31] == 0 && back[32] == 0x41);
    kit->ops->zero(kit->device, staging->base, 64);
    assert_int_equal(((char *)staging->base)[5], 0);
    assert_null(kit->ops->memory_free(kit->device, staging));
}

static void what_was_laid_ready_is_taken_in_a_step(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory[2] = {0};

    assert_int_equal(kit->ops->memory_reserve(kit->device, 1, 10000, 1), 0);
    assert_int_equal(kit->ops->memory_reserve(kit->device, 1, 10000, 2), 0);
    kit_phase("step");
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            kit->ops->memory_new(kit->device, DEVICE_MEMORY_RESERVED, 1, "test", 10000, &memory[i]),
            0);
    kit_phase("setup");
    assert_true(memory[0]->fd >= 0 && memory[0]->base != memory[1]->base);
    kit_holds(kit, memory[0], 0);
    for (int i = 0; i < 2; i++)
        assert_null(kit->ops->memory_free(kit->device, memory[i]));
}

static void what_cannot_be_had_is_told(void **state)
{
    struct kit *kit = *state;
    struct device_memory *memory = NULL;
    struct device_place place = {{0}};
    char text[GW_TEXT_MAX + 1] = "";

    assert_int_equal(
        kit->ops->memory_new(kit->device, DEVICE_MEMORY_ARENA, 0, "test", 1ull << 46, &memory),
        GW_E_NOMEM);
    assert_int_equal(kit->ops->memory_new(kit->device, DEVICE_MEMORY_ARENA, 0, "test", 0, &memory),
                     GW_E_NOMEM);
    assert_int_equal(kit->ops->memory_new(kit->device, DEVICE_MEMORY_ARENA, 7, "test", 64, &memory),
                     GW_E_NO_DEVICE);
    assert_null(memory);
    assert_int_equal(kit->ops->place(kit->device, 5, &place, text), GW_E_NO_DEVICE);
    assert_non_null(strstr(text, "GPU-00000000-0000"));
    memcpy(place.gpu, kit_uuid(0), sizeof(place.gpu));
    assert_int_equal(kit->ops->place(kit->device, 5, &place, text), GW_E_BUSY);
    assert_non_null(strstr(text, "rank 0"));
    assert_int_equal(kit->ops->place(kit->device, 0, &place, text), 0); /* again */
    assert_int_equal(kit->ops->place(kit->device, 1, &place, text), GW_E_MISMATCH);
    assert_false(kit->ops->take_fault(kit->device, text));
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, kit_setup, kit_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_lane_runs_in_order_and_signals_every_rank),
        TEST(an_op_waits_for_ops_of_other_lanes),
        TEST(tokens_may_be_raised_late_and_in_any_order),
        TEST(signals_asked_for_afterwards_come),
        TEST(signals_of_a_rank_follow_those_on_their_way),
        TEST(thousands_of_works_pass),
        TEST(any_graph_of_works_keeps_its_order),
        TEST(a_hold_takes_the_time_of_the_rank_s_link),
        TEST(an_abort_frees_blocked_streams),
        TEST(a_device_is_freed_in_the_middle_of_works),
        TEST(a_sleeping_client_is_woken),
        TEST(a_second_process_shares_memory_and_order),
        TEST(a_client_brings_its_own_memory),
        TEST(memory_is_zero_and_copied_everywhere),
        TEST(what_was_laid_ready_is_taken_in_a_step),
        TEST(what_cannot_be_had_is_told),
    };

    if (argc > 1)
        return kit_client_main(argc, argv);
    if (!alone_inside())
        return alone_seeds(argv, GPUS);
    if (!kit_open())
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
