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
#include "daemon/fabric/local/local.h"

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

    assert_int_equal(
        DEVICE->device_new(&(struct device_config){.wake = on_wake, .user = NULL}, &world->device),
        0);
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
    if (!op->members)
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
    const void *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    void *out[WORLD] = {world->memory[0], world->memory[1] + 4, world->memory[2] + 8};

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
    const void *in[WORLD] = {world->memory[0], NULL, world->memory[2]};
    void *out[WORLD] = {world->other[0], world->other[1], world->other[2]};

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
    const void *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    void *out[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};

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
    const void *in[WORLD] = {world->other[0], world->memory[1], world->memory[2]};
    void *out[WORLD] = {world->other[0], world->other[1], world->other[2]};
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
                             .payload_bytes = 24},
           &(struct fabric_op){.segments = segments, .segment_count = 2});
    assert_memory_equal(world->other[0] + 20, world->memory[1], 16);
    assert_memory_equal(world->other[0] + 24, world->memory[2], 8);
    assert_counters(world, 1, GW_KIND_ALL_GATHER, 2, 72, 0, 48, 72);
    assert_counters(world, 2, GW_KIND_ALL_GATHER, 1, 48, 0, 32, 48);
    stop(world);
}

/* Of rank 0's memory, to ranks 1 and 2: moved into theirs, and nobody's call. */
static void a_fill_copies_to_its_members(void **state)
{
    static const uint32_t block[] = {1, 2};
    struct world *world = start(0);
    struct fabric_segment segments[2] = {{world->other[1] + 2, world->memory[0], 16, 1},
                                         {world->other[2], world->memory[0] + 4, 8, 2}};

    (void)state;
    launch(world,
           &(struct core_op){.kind = CORE_OP_FILL,
                             .stream = CORE_STREAM_GATHER,
                             .traffic = GW_KIND_ALL_GATHER,
                             .members = block,
                             .world = 2,
                             .payload_bytes = 24},
           &(struct fabric_op){.segments = segments, .segment_count = 2});
    assert_memory_equal(world->other[1] + 2, world->memory[0], 16);
    assert_memory_equal(world->other[2], world->memory[0] + 4, 8);
    assert_counters(world, 0, GW_KIND_ALL_GATHER, 0, 0, 0, 0, 0);
    assert_counters(world, 1, GW_KIND_ALL_GATHER, 0, 0, 0, 0, 16);
    assert_counters(world, 2, GW_KIND_ALL_GATHER, 0, 0, 0, 0, 8);
    stop(world);
}

static void broadcast_barrier_add_and_zero(void **state)
{
    struct world *world = start(0);
    const void *in[1] = {world->memory[2]};
    void *out[WORLD] = {world->other[0], world->other[1], world->memory[2]};

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

static struct board *boards_new(void)
{
    struct board *boards = aligned_alloc(64, WORLD * sizeof(struct board));

    assert_non_null(boards);
    memset(boards, 0, WORLD * sizeof(struct board));
    return boards;
}

static void reduce_bucket(struct world *world, uint32_t bucket, uint8_t measure, uint8_t norm)
{
    const void *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    void *out[WORLD] = {world->other[0], world->other[1], world->other[2]};

    launch(world,
           &(struct core_op){.kind = CORE_OP_REDUCE_SCATTER,
                             .traffic = GW_KIND_REDUCE_SCATTER,
                             .scale = 1,
                             .numel = 4,
                             .bucket = bucket,
                             .partials = 1,
                             .slices = WORLD,
                             .norm = norm,
                             .measure = measure,
                             .payload_bytes = 48},
           &(struct fabric_op){.in = in, .out = out});
}

static void verdict(struct world *world, const uint8_t used[2], double clip, uint8_t norm,
                    struct board *boards)
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
                             .norm = norm,
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
    struct board *boards = boards_new();
    double squares = 0;
    const struct gw_shm_verdict *got = &boards[2].board.verdict;

    (void)state;
    reduce_bucket(world, 0, 0, GW_NORM_2);
    reduce_bucket(world, 1, 0, GW_NORM_2);
    verdict(world, (const uint8_t[2]){0, 1}, 10, GW_NORM_2, boards);
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
    verdict(world, (const uint8_t[2]){1, 1}, 0, GW_NORM_2, boards);
    assert_true(got->norm == 0 && got->clip_factor == 1);
    world->memory[1][9] = INFINITY;
    reduce_bucket(world, 1, 0, GW_NORM_2);
    verdict(world, (const uint8_t[2]){1, 1}, 0, GW_NORM_2, boards);
    assert_int_equal(got->nonfinite, 1);
    assert_int_equal(got->first_bucket, 1);
    assert_true(got->clip_factor == 0 && isinf(got->norm));
    free(boards);
    stop(world);
}

static void the_verdict_of_the_largest_value(void **state)
{
    struct world *world = start(0);
    struct board *boards = boards_new();
    const struct gw_shm_verdict *got = &boards[2].board.verdict;

    (void)state;
    world->memory[1][3] = -3000;
    reduce_bucket(world, 0, 0, GW_NORM_MAX);
    world->memory[1][3] = 0;
    reduce_bucket(world, 1, 0, GW_NORM_MAX);
    verdict(world, (const uint8_t[2]){1, 1}, 1397, GW_NORM_MAX, boards);
    assert_true(got->norm == 3000.0 - 3 - 203);
    assert_true(got->clip_factor == (float)(1397 / (2794.0 + 1e-6)));
    assert_int_equal(got->nonfinite, 0);
    reduce_bucket(world, 0, 0, GW_NORM_MAX);
    world->memory[0][0] = NAN;
    reduce_bucket(world, 1, 0, GW_NORM_MAX);
    verdict(world, (const uint8_t[2]){1, 1}, 0, GW_NORM_MAX, boards);
    assert_true(isnan(got->norm) && got->clip_factor == 0);
    assert_int_equal(got->first_bucket, 1);
    free(boards);
    stop(world);
}

/* Ops over the replicas of some slices each leave theirs: together they are the bucket's norm. */
static void slices_of_several_ops_make_one_norm(void **state)
{
    static const uint32_t pairs[2][2] = {{0, 1}, {1, 2}};
    struct world *world = start(0);
    struct board *boards = boards_new();
    double squares = 0;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const void *in[2] = {world->memory[pairs[i][0]], world->memory[pairs[i][1]]};
        void *out[2] = {world->memory[pairs[i][0]], world->memory[pairs[i][1]]};
        struct core_op op = {.kind = CORE_OP_ALL_REDUCE,
                             .traffic = GW_KIND_ALL_REDUCE,
                             .world = 2,
                             .members = pairs[i],
                             .scale = 1,
                             .numel = 5,
                             .partials = 1,
                             .slice_first = 2 * i,
                             .slices = 4,
                             .payload_bytes = 40};
        for (uint32_t at = 0; at < 10; at++) {
            float sum = world->memory[pairs[i][0]][at] + world->memory[pairs[i][1]][at];
            squares += (double)sum * (double)sum;
        }
        launch(world, &op, &(struct fabric_op){.in = in, .out = out});
    }
    verdict(world, (const uint8_t[2]){1, 0}, 0, GW_NORM_2, boards);
    assert_true(boards[2].board.verdict.norm == (double)(float)sqrt(squares));
    /* Both ops of rank 1; others take part in one. Read: two halves of 5; written: 10. */
    assert_counters(world, 0, GW_KIND_ALL_REDUCE, 1, 40, 0, 40, 40 + 40);
    assert_counters(world, 1, GW_KIND_ALL_REDUCE, 2, 80, 0, 80, 160);
    free(boards);
    stop(world);
}

static void measured_passes_are_not_counted(void **state)
{
    struct world *world = start(0);

    (void)state;
    reduce_bucket(world, 0, 1, GW_NORM_2);
    assert_counters(world, 0, GW_KIND_REDUCE_SCATTER, 0, 0, 0, 0, 0);
    reduce_bucket(world, 0, 0, GW_NORM_2);
    assert_counters(world, 0, GW_KIND_REDUCE_SCATTER, 1, 48, 0, 32, 48);
    FABRIC->reset(world->fabric);
    assert_counters(world, 0, GW_KIND_REDUCE_SCATTER, 0, 0, 0, 0, 0);
    stop(world);
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* Small integers: exact in every dtype; 257 is not in bf16. Bits of them there, the long way. */
static uint16_t bf16(int value)
{
    int exponent = ilogb(value);

    return (uint16_t)((value < 0 ? 0x8000 : 0) | (127 + exponent) << 7 |
                      ((int)ldexp(abs(value), 7 - exponent) & 0x7f));
}

static void a_reduction_between_dtypes(void **state)
{
    struct world *world = start(0);
    uint16_t halves[WORLD][12], to[WORLD][4];
    const void *in[WORLD] = {halves[0], halves[1], NULL};
    void *out[WORLD] = {world->other[0], world->other[1], world->other[2]};
    void *same[WORLD] = {to[0], halves[1] + 4, to[2]};
    struct core_op op = {.kind = CORE_OP_REDUCE_SCATTER,
                         .traffic = GW_KIND_REDUCE_SCATTER,
                         .in_dtype = GW_DTYPE_BF16,
                         .scale = 2,
                         .numel = 4,
                         .payload_bytes = 24};

    (void)state;
    for (int i = 0; i < 12; i++)
        halves[0][i] = bf16(i + 1), halves[1][i] = bf16(-100 - i);
    launch(world, &op, &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint32_t i = 0; i < 4; i++)
            assert_true(world->other[r][i] == 2 * -99.0f);
    /* read: two slices of 4 halves */
    assert_counters(world, 2, GW_KIND_REDUCE_SCATTER, 1, 24, 0, 16, 16);
    op.out_dtype = GW_DTYPE_BF16;
    op.accumulate = 1;
    for (uint32_t i = 0; i < 4; i++)
        to[0][i] = bf16(59);
    launch(world, &op, &(struct fabric_op){.in = in, .out = same});
    /* 59 - 198; and where the rank's own slice is the sum's place, it is added to. */
    assert_int_equal(to[0][3], bf16(-139));
    assert_int_equal(halves[1][4], bf16(-104 - 198));
    stop(world);
}

static void inputs_are_rounded_before_they_are_added(void **state)
{
    struct world *world = start(0);
    const void *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    void *out[WORLD] = {world->other[0], world->other[1], world->other[2]};

    (void)state;
    world->memory[0][0] = 257; /* a tie: 256 is even */
    world->memory[1][0] = 259; /* 260 is */
    world->memory[2][0] = 1;
    launch(world,
           &(struct core_op){.kind = CORE_OP_ALL_REDUCE,
                             .traffic = GW_KIND_ALL_REDUCE,
                             .round_dtype = GW_DTYPE_BF16,
                             .out_dtype = GW_DTYPE_FP32,
                             .scale = 1,
                             .numel = 4,
                             .payload_bytes = 48},
           &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++)
        assert_true(world->other[r][0] == 256 + 260 + 1);
    stop(world);
}

static void copies_are_of_the_dtypes_bytes(void **state)
{
    struct world *world = start(0);
    uint16_t from[WORLD][4], to[WORLD][12] = {{0}};
    const void *in[WORLD] = {from[0], from[1], from[2]};
    void *out[WORLD] = {to[0], to[1], to[2]};
    struct core_op op = {.kind = CORE_OP_ALL_GATHER,
                         .traffic = GW_KIND_ALL_GATHER,
                         .in_dtype = GW_DTYPE_FP16,
                         .out_dtype = GW_DTYPE_FP16,
                         .numel = 4,
                         .payload_bytes = 24};

    (void)state;
    for (uint32_t i = 0; i < 12; i++)
        from[i / 4][i % 4] = (uint16_t)(i * 77);
    launch(world, &op, &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++)
        assert_memory_equal(to[r], from, sizeof(from));
    assert_counters(world, 1, GW_KIND_ALL_GATHER, 1, 24, 0, 16, 24);
    op.kind = CORE_OP_BROADCAST;
    op.traffic = GW_KIND_BROADCAST;
    op.rank = 1;
    op.numel = 3;
    op.payload_bytes = 6;
    launch(world, &op, &(struct fabric_op){.in = &in[1], .out = out});
    assert_memory_equal(to[2], from[1], 6);
    assert_int_equal(to[2][3], from[0][3]);
    assert_counters(world, 2, GW_KIND_BROADCAST, 1, 6, 0, 6, 6);
    stop(world);
}

static void adds_zeroes_and_casts_of_a_rank(void **state)
{
    struct world *world = start(0);
    uint16_t halves[8], rounded[8] = {0};
    const void *in[1] = {halves};
    void *sum[1] = {world->memory[0]}, *half[1] = {halves};
    struct fabric_segment segments[3] = {{rounded, world->memory[1], 6, 0},
                                         {rounded + 3, world->memory[2], 0, 0},
                                         {rounded + 4, world->memory[2], 4, 0}};
    struct core_op op = {.kind = CORE_OP_LOCAL_ADD,
                         .traffic = GW_KINDS,
                         .world = 1,
                         .in_dtype = GW_DTYPE_BF16,
                         .numel = 8,
                         .accumulate = 1};

    (void)state;
    for (int i = 0; i < 8; i++)
        halves[i] = bf16(3 * i + 1);
    launch(world, &op, &(struct fabric_op){.in = in, .out = sum});
    assert_true(world->memory[0][7] == 7 + 22 && world->memory[0][8] == 8);
    op = (struct core_op){.kind = CORE_OP_ZERO,
                          .traffic = GW_KINDS,
                          .world = 1,
                          .out_dtype = GW_DTYPE_BF16,
                          .numel = 7};
    launch(world, &op, &(struct fabric_op){.out = half});
    assert_true(halves[0] == 0 && halves[6] == 0 && halves[7] == bf16(22));
    world->memory[1][2] = 259;
    op = (struct core_op){.kind = CORE_OP_CAST,
                          .stream = CORE_STREAM_GATHER,
                          .traffic = GW_KINDS,
                          .rank = 1,
                          .out_dtype = GW_DTYPE_BF16};
    launch(world, &op, &(struct fabric_op){.segments = segments, .segment_count = 3});
    assert_int_equal(rounded[0], bf16(100));
    assert_int_equal(rounded[2], bf16(260));
    assert_int_equal(rounded[3], 0);
    assert_int_equal(rounded[5], bf16(201));
    assert_int_equal(rounded[6], 0);
    stop(world);
}

/* 32 ring bytes at 1600 bytes per second: 20 ms per op; a gather of another rank has its own
 * link. */
static void the_pace_holds_an_op_for_its_ring_bytes(void **state)
{
    struct world *world = start(1600);
    const void *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    void *out[WORLD] = {world->other[0], world->other[1], world->other[2]};
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
    const void *in[WORLD] = {world->memory[0], world->memory[1], world->memory[2]};
    void *out[WORLD] = {world->other[0], world->other[1], world->other[2]};

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

/* 4,096 floats are a chunk of the norm. */
static void blocks_fit_the_cache(void **state)
{
    static const struct {
        uint64_t cache_kib, copy_kib, numel;
    } rows[] = {
        {0, 512, 65536},    {2048, 512, 65536},   {1024, 256, 32768},     {512, 128, 16384},
        {256, 128, 16384},  {1280, 320, 40960},   {65536, 2048, 262144},  {1, 128, 16384},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct local_blocks blocks = local_blocks_for(rows[i].cache_kib << 10);

        assert_int_equal(blocks.copy_bytes, rows[i].copy_kib << 10);
        assert_int_equal(blocks.numel, rows[i].numel);
        assert_int_equal(blocks.numel % 4096, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_scatter_in_place),
        cmocka_unit_test(a_missing_input_is_zeros_and_not_moved),
        cmocka_unit_test(all_reduce_in_place_of_a_count_that_does_not_divide),
        cmocka_unit_test(gathers_copy_what_is_not_there_yet),
        cmocka_unit_test(a_fill_copies_to_its_members),
        cmocka_unit_test(broadcast_barrier_add_and_zero),
        cmocka_unit_test(the_verdict_has_norm_clip_and_first_bad_bucket),
        cmocka_unit_test(the_verdict_of_the_largest_value),
        cmocka_unit_test(slices_of_several_ops_make_one_norm),
        cmocka_unit_test(measured_passes_are_not_counted),
        cmocka_unit_test(a_reduction_between_dtypes),
        cmocka_unit_test(inputs_are_rounded_before_they_are_added),
        cmocka_unit_test(copies_are_of_the_dtypes_bytes),
        cmocka_unit_test(adds_zeroes_and_casts_of_a_rank),
        cmocka_unit_test(the_pace_holds_an_op_for_its_ring_bytes),
        cmocka_unit_test(ring_bytes_of_each_kind),
        cmocka_unit_test(forming_and_orders),
        cmocka_unit_test(blocks_fit_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
