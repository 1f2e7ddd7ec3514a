/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local fabric on the host device: values, forms in place, figures, the verdict, the pace.
 * ctest: label=tsan timeout=60
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/device.h"
#include "daemon/fabric/fabric.h"

#define DEVICE (&device_host)
#define FABRIC (&fabric_local)
#define WORLD 3u

struct world {
    struct device *device;
    struct fabric *fabric;
    uint64_t ops;
    float memory[WORLD][32], other[WORLD][32];
};

static const uint32_t members[WORLD] = {0, 1, 2};

static void on_wake(void *user)
{
    (void)user;
}

static struct world *start(uint64_t link_bytes_per_s)
{
    struct world *world = calloc(1, sizeof(*world));

    assert_int_equal(DEVICE->device_new(&(struct device_config){on_wake, NULL}, &world->device), 0);
    assert_int_equal(
        FABRIC->fabric_new(&(struct fabric_config){.device_ops = DEVICE,
                                                   .device = world->device,
                                                   .world = WORLD,
                                                   .link_bytes_per_s = link_bytes_per_s},
                           &world->fabric),
        0);
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint32_t i = 0; i < 32; i++)
            world->memory[r][i] = (float)(i + 100 * r);
    return world;
}

static void stop(struct world *world)
{
    assert_null(DEVICE->device_free(world->device));
    assert_null(FABRIC->fabric_free(world->fabric));
    free(world);
}

static struct device_done launch(struct world *world, struct core_op *op, struct fabric_op *to)
{
    struct device_done done;

    op->id = ++world->ops;
    op->members = members;
    if (op->world == 0)
        op->world = WORLD;
    to->op = op;
    assert_int_equal(FABRIC->launch(world->fabric, to), 0);
    DEVICE->drain(world->device);
    assert_true(DEVICE->take_done(world->device, &done));
    assert_int_equal(done.op, op->id);
    assert_false(done.failed);
    return done;
}

static void assert_counters(struct world *world, uint32_t rank, enum gw_kind kind, uint64_t calls,
                            uint64_t payload, uint64_t padding, uint64_t ring, uint64_t moved)
{
    struct gw_counters kinds[GW_KINDS];

    FABRIC->counters(world->fabric, rank, kinds);
    assert_int_equal(kinds[kind].calls, calls);
    assert_int_equal(kinds[kind].payload_bytes, payload);
    assert_int_equal(kinds[kind].padding_bytes, padding);
    assert_int_equal(kinds[kind].ring_bytes, ring);
    assert_int_equal(kinds[kind].moved_bytes, moved);
}

static void reduce_scatter_in_place(void **state)
{
    struct world *world = start(0);
    const float *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    float *out[WORLD] = {world->memory[0], world->memory[1] + 4, world->memory[2] + 8};

    (void)state;
    launch(world,
           &(struct core_op){.kind = CORE_OP_REDUCE_SCATTER,
                             .traffic = GW_KIND_REDUCE_SCATTER,
                             .scale = 0.5f,
                             .numel = 4,
                             .payload_bytes = 40,
                             .padding_bytes = 8},
           &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++) {
        for (uint32_t i = 0; i < 12; i++) {
            float mine = (float)(i + 100 * r), sum = (float)(3 * i + 300) * 0.5f;
            float expected = i / 4 == r ? sum : mine;
            assert_memory_equal(&world->memory[r][i], &expected, 4);
        }
        /* 40*2/3 = 26 whole bytes; read: three slices of 16 bytes */
        assert_counters(world, r, GW_KIND_REDUCE_SCATTER, 1, 40, 8, 26, 48);
        assert_counters(world, r, GW_KIND_ALL_REDUCE, 0, 0, 0, 0, 0);
    }
    stop(world);
}

static void a_missing_input_is_zeros_and_not_moved(void **state)
{
    struct world *world = start(0);
    const float *in[WORLD] = {world->memory[0], NULL, world->memory[2]};
    float *out[WORLD] = {world->other[0], world->other[1], world->other[2]};

    (void)state;
    world->other[1][2] = 5;
    launch(world,
           &(struct core_op){.kind = CORE_OP_REDUCE_SCATTER,
                             .traffic = GW_KIND_REDUCE_SCATTER,
                             .scale = 1,
                             .numel = 4,
                             .accumulate = 1,
                             .payload_bytes = 48},
           &(struct fabric_op){.in = in, .out = out});
    assert_true(world->other[1][2] == 5.0f + (float)(6 + 206));
    assert_counters(world, 1, GW_KIND_REDUCE_SCATTER, 1, 48, 0, 32, 32);
    stop(world);
}

static void all_reduce_in_place_of_a_count_that_does_not_divide(void **state)
{
    struct world *world = start(0);
    const float *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    float *out[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};

    (void)state;
    launch(world,
           &(struct core_op){.kind = CORE_OP_ALL_REDUCE,
                             .traffic = GW_KIND_ALL_REDUCE,
                             .scale = 1,
                             .numel = 4,
                             .total_numel = 10,
                             .payload_bytes = 40},
           &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++) {
        for (uint32_t i = 0; i < 12; i++) {
            float expected = i < 10 ? (float)(3 * i + 300) : (float)(i + 100 * r);
            assert_memory_equal(&world->memory[r][i], &expected, 4);
        }
        /* read: three inputs of the own share (4, 4, 2 elements); written: 10 elements */
        assert_counters(world, r, GW_KIND_ALL_REDUCE, 1, 40, 0, 53, (r == 2 ? 24u : 48u) + 40);
    }
    stop(world);
}

static void gathers_copy_what_is_not_there_yet(void **state)
{
    struct world *world = start(0);
    const float *in[WORLD] = {world->other[0], world->memory[1], world->memory[2]};
    float *out[WORLD] = {world->other[0], world->other[1], world->other[2]};
    struct fabric_segment segments[2] = {{world->other[0] + 20, world->memory[1], 16, 1},
                                         {world->other[0] + 24, world->memory[2], 8, 2}};

    (void)state;
    memcpy(world->other[0], world->memory[0], 16);
    launch(world,
           &(struct core_op){.kind = CORE_OP_ALL_GATHER,
                             .traffic = GW_KIND_ALL_GATHER,
                             .numel = 4,
                             .payload_bytes = 48},
           &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint32_t q = 0; q < WORLD; q++)
            assert_memory_equal(world->other[r] + 4 * q, world->memory[q], 16);
    assert_counters(world, 0, GW_KIND_ALL_GATHER, 1, 48, 0, 32, 32);
    assert_counters(world, 1, GW_KIND_ALL_GATHER, 1, 48, 0, 32, 48);
    launch(world,
           &(struct core_op){.kind = CORE_OP_GATHER,
                             .stream = CORE_STREAM_GATHER,
                             .traffic = GW_KIND_ALL_GATHER,
                             .rank = 1,
                             .world = 1,
                             .payload_bytes = 24},
           &(struct fabric_op){.segments = segments, .segment_count = 2});
    assert_memory_equal(world->other[0] + 20, world->memory[1], 16);
    assert_memory_equal(world->other[0] + 24, world->memory[2], 8);
    assert_counters(world, 1, GW_KIND_ALL_GATHER, 2, 72, 0, 48, 72);
    assert_counters(world, 2, GW_KIND_ALL_GATHER, 1, 48, 0, 32, 48);
    stop(world);
}

static void broadcast_barrier_add_and_zero(void **state)
{
    struct world *world = start(0);
    const float *in[1] = {world->memory[2]};
    float *out[WORLD] = {world->other[0], world->other[1], world->memory[2]};

    (void)state;
    launch(world,
           &(struct core_op){.kind = CORE_OP_BROADCAST,
                             .traffic = GW_KIND_BROADCAST,
                             .numel = 5,
                             .rank = 2,
                             .payload_bytes = 20},
           &(struct fabric_op){.in = in, .out = out});
    assert_memory_equal(world->other[0], world->memory[2], 20);
    assert_memory_equal(world->other[1], world->memory[2], 20);
    assert_counters(world, 0, GW_KIND_BROADCAST, 1, 20, 0, 20, 20);
    assert_counters(world, 2, GW_KIND_BROADCAST, 1, 20, 0, 20, 0);
    launch(world, &(struct core_op){.kind = CORE_OP_BARRIER, .traffic = GW_KIND_CONTROL},
           &(struct fabric_op){0});
    assert_counters(world, 1, GW_KIND_CONTROL, 1, 0, 0, 0, 0);
    launch(world,
           &(struct core_op){.kind = CORE_OP_LOCAL_ADD,
                             .traffic = GW_KINDS,
                             .numel = 5,
                             .accumulate = 1,
                             .world = 1},
           &(struct fabric_op){.in = in, .out = out});
    assert_true(world->other[0][4] == 2 * 204.0f);
    launch(world,
           &(struct core_op){.kind = CORE_OP_ZERO, .traffic = GW_KINDS, .numel = 4, .world = 1},
           &(struct fabric_op){.out = out});
    assert_true(world->other[0][3] == 0.0f && world->other[0][4] == 408.0f);
    stop(world);
}

/* ---- verdict --------------------------------------------------------------------------------- */

struct board { /* a multiple of 64 bytes */
    struct gw_shm_board board;
    struct gw_shm_slot slots[3];
    uint8_t bits[64];
};

static void reduce_bucket(struct world *world, uint32_t bucket, uint8_t measure)
{
    const float *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    float *out[WORLD] = {world->other[0], world->other[1], world->other[2]};

    launch(world,
           &(struct core_op){.kind = CORE_OP_REDUCE_SCATTER,
                             .traffic = GW_KIND_REDUCE_SCATTER,
                             .scale = 1,
                             .numel = 4,
                             .bucket = bucket,
                             .partials = 1,
                             .measure = measure,
                             .payload_bytes = 48},
           &(struct fabric_op){.in = in, .out = out});
}

static void verdict(struct world *world, const uint8_t used[2], double clip, struct board *boards)
{
    static const uint8_t bits[1] = {5};
    struct gw_shm_board *list[WORLD] = {&boards[0].board, NULL, &boards[2].board};

    for (uint32_t r = 0; r < WORLD; r++)
        boards[r].board.buckets = 2, boards[r].board.units = 1, boards[r].board.params = 3;
    launch(world,
           &(struct core_op){.kind = CORE_OP_VERDICT,
                             .stream = CORE_STREAM_CONTROL,
                             .traffic = GW_KIND_CONTROL,
                             .wait_ops = &world->ops,
                             .wait_op_count = 1,
                             .step = 7,
                             .clip_norm = clip,
                             .digest = 42,
                             .used_params = 2,
                             .used_bits = bits,
                             .used_buckets = used,
                             .payload_bytes = 8},
           &(struct fabric_op){.boards = list, .buckets = 2, .params = 3});
}

static void the_verdict_has_norm_clip_and_first_bad_bucket(void **state)
{
    struct world *world = start(0);
    struct board *boards = aligned_alloc(64, WORLD * sizeof(struct board));
    double squares = 0;
    const struct gw_shm_verdict *got = &boards[2].board.verdict;

    (void)state;
    memset(boards, 0, WORLD * sizeof(struct board));
    reduce_bucket(world, 0, 0);
    reduce_bucket(world, 1, 0);
    verdict(world, (const uint8_t[2]){0, 1}, 10, boards);
    for (uint32_t i = 0; i < 12; i++)
        squares += (3.0 * i + 300) * (3.0 * i + 300);
    assert_true(got->norm == (double)(float)sqrt(squares));
    assert_true(got->clip_factor == (float)(10 / (got->norm + 1e-6)));
    assert_int_equal(got->step, 7);
    assert_int_equal(got->nonfinite, 0);
    assert_int_equal(got->first_bucket, UINT32_MAX);
    assert_int_equal(got->used_params, 2);
    assert_int_equal(got->digest, 42);
    assert_int_equal(boards[2].bits[0], 5);
    assert_int_equal(boards[1].board.verdict.step, 0);
    assert_counters(world, 2, GW_KIND_CONTROL, 1, 8, 0, 10, sizeof(*got) + 1);
    assert_counters(world, 1, GW_KIND_CONTROL, 1, 8, 0, 10, 0);
    /* The next step starts anew: nothing of this one is left. */
    verdict(world, (const uint8_t[2]){1, 1}, 0, boards);
    assert_true(got->norm == 0 && got->clip_factor == 1);
    world->memory[1][9] = INFINITY;
    reduce_bucket(world, 1, 0);
    verdict(world, (const uint8_t[2]){1, 1}, 0, boards);
    assert_int_equal(got->nonfinite, 1);
    assert_int_equal(got->first_bucket, 1);
    assert_true(got->clip_factor == 0 && isinf(got->norm));
    free(boards);
    stop(world);
}

static void measured_passes_are_not_counted(void **state)
{
    struct world *world = start(0);

    (void)state;
    reduce_bucket(world, 0, 1);
    assert_counters(world, 0, GW_KIND_REDUCE_SCATTER, 0, 0, 0, 0, 0);
    reduce_bucket(world, 0, 0);
    assert_counters(world, 0, GW_KIND_REDUCE_SCATTER, 1, 48, 0, 32, 48);
    FABRIC->reset(world->fabric);
    assert_counters(world, 0, GW_KIND_REDUCE_SCATTER, 0, 0, 0, 0, 0);
    stop(world);
}

/* 32 ring bytes at 1600 bytes per second: 20 ms per op; a gather of another rank has its own
 * link. */
static void the_pace_holds_an_op_for_its_ring_bytes(void **state)
{
    struct world *world = start(1600);
    const float *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    float *out[WORLD] = {world->other[0], world->other[1], world->other[2]};
    struct core_op op = {.kind = CORE_OP_REDUCE_SCATTER,
                         .traffic = GW_KIND_REDUCE_SCATTER,
                         .scale = 1,
                         .numel = 4,
                         .payload_bytes = 48};
    struct device_done first = launch(world, &op, &(struct fabric_op){.in = in, .out = out});
    struct device_done second = launch(world, &op, &(struct fabric_op){.in = in, .out = out});

    (void)state;
    assert_true(first.done_ns - first.started_ns >= 20000000);
    assert_true(second.done_ns - first.started_ns >= 40000000);
    stop(world);
}

static void ring_bytes_of_each_kind(void **state)
{
    (void)state;
    assert_int_equal(fabric_ring_bytes(GW_KIND_REDUCE_SCATTER, 1200, 4), 900);
    assert_int_equal(fabric_ring_bytes(GW_KIND_ALL_GATHER, 1200, 4), 900);
    assert_int_equal(fabric_ring_bytes(GW_KIND_ALL_REDUCE, 1200, 4), 1800);
    assert_int_equal(fabric_ring_bytes(GW_KIND_BROADCAST, 1200, 4), 1200);
    assert_int_equal(fabric_ring_bytes(GW_KIND_ALL_REDUCE, 1200, 1), 0);
    assert_int_equal(fabric_ring_bytes(GW_KIND_REDUCE_SCATTER, 1ull << 62, 64),
                     (1ull << 62) / 64 * 63);
}

/* One address space: a generation needs nothing made, and an order that allows more changes
 * nothing. */
static void forming_and_orders(void **state)
{
    struct world *world = start(0);
    const float *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    float *out[WORLD] = {world->other[0], world->other[1], world->other[2]};

    (void)state;
    assert_int_equal(FABRIC->form(world->fabric), 0);
    assert_int_equal(FABRIC->group(world->fabric, members, 2), 0);
    for (uint32_t order = 0; order < 2; order++) {
        memset(world->other, 0, sizeof(world->other));
        world->memory[0][0] = 1e8f, world->memory[1][0] = 1, world->memory[2][0] = -1e8f;
        assert_string_equal(FABRIC->order_name(order), "local exact");
        launch(world,
               &(struct core_op){.kind = CORE_OP_REDUCE_SCATTER,
                                 .traffic = GW_KIND_REDUCE_SCATTER,
                                 .order = (uint8_t)order,
                                 .scale = 1,
                                 .numel = 4},
               &(struct fabric_op){.in = in, .out = out});
        assert_true(world->other[0][0] == (1e8f + 1.0f) + -1e8f);
    }
    FABRIC->abort(world->fabric);
    assert_int_equal(FABRIC->form(world->fabric), 0);
    stop(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_scatter_in_place),
        cmocka_unit_test(a_missing_input_is_zeros_and_not_moved),
        cmocka_unit_test(all_reduce_in_place_of_a_count_that_does_not_divide),
        cmocka_unit_test(gathers_copy_what_is_not_there_yet),
        cmocka_unit_test(broadcast_barrier_add_and_zero),
        cmocka_unit_test(the_verdict_has_norm_clip_and_first_bad_bucket),
        cmocka_unit_test(measured_passes_are_not_counted),
        cmocka_unit_test(the_pace_holds_an_op_for_its_ring_bytes),
        cmocka_unit_test(ring_bytes_of_each_kind),
        cmocka_unit_test(forming_and_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
