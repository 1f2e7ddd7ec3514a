/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plug-in's device and fabric on doubles: every kind of op beside fabric local on the host.
 * exact: local's bits, which are checked against sums written out here; fabric: within n roundings,
 * and different somewhere. Figures are the same on both.
 * Started by itself: starts a server, and runs again under it (FAKEGPU_SOCKET).
 * ctest: label=cuda timeout=240
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/pages.h"
#include "daemon/device/plugin.h"
#include "tests/fakegpu/alone.h"

#define RANKS 4u
#define ROOM 165000u /* floats in each of a rank's three arenas */
#define DEADLINE_NS (60 * UINT64_C(1000000000))

static const struct plugin *plugin;
static uint8_t uuids[RANKS][GW_GPU_BYTES];

/* ---- two devices with the same memory -------------------------------------------------------- */

enum { IN, OUT, OTHER, AREAS };

struct side {
    const struct device_ops *device_ops;
    const struct fabric_ops *fabric_ops;
    struct device *device;
    struct fabric *fabric;
    struct device_memory *memory[RANKS][AREAS];
    struct device_memory *boards[RANKS], *verdicts[RANKS];
    uint64_t ops;
};

struct rig {
    uint32_t world;
    uint64_t room[AREAS]; /* floats */
    struct side host, cuda;
    float *values; /* of one area */
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void on_wake(void *user)
{
    (void)user;
}

/* Different magnitudes, so that another order of adding shows. */
static float value_of(uint32_t rank, uint32_t area, uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (rank * 4u + area) * UINT64_C(0xbf58476d);

    x ^= x >> 31;
    x *= UINT64_C(0x94d049bb133111eb);
    x ^= x >> 29;
    return ldexpf((float)(int32_t)(uint32_t)x, -31 + (int)(x >> 40 & 15));
}

static float *base_of(const struct side *side, uint32_t rank, uint32_t area)
{
    return (float *)side->memory[rank][area]->base;
}

static void fill(struct rig *rig)
{
    for (uint32_t rank = 0; rank < rig->world; rank++)
        for (uint32_t area = 0; area < AREAS; area++) {
            size_t bytes = rig->room[area] * sizeof(float);
            for (uint64_t i = 0; i < rig->room[area]; i++)
                rig->values[i] = value_of(area == OUT ? 0 : rank, area, i);
            rig->host.device_ops->copy(rig->host.device, base_of(&rig->host, rank, area),
                                       rig->values, bytes);
            rig->cuda.device_ops->copy(rig->cuda.device, base_of(&rig->cuda, rank, area),
                                       rig->values, bytes);
        }
}

static void start_side(struct side *side, uint32_t world, const uint64_t room[AREAS])
{
    char text[GW_TEXT_MAX + 1] = "";

    assert_int_equal(
        side->device_ops->device_new(&(struct device_config){on_wake, NULL}, &side->device), 0);
    for (uint32_t rank = 0; rank < world; rank++) {
        struct device_place place;
        memcpy(place.gpu, uuids[rank], sizeof(place.gpu));
        if (side->device_ops->place(side->device, rank, &place, text) != 0)
            fail_msg("place of rank %u: %s", rank, text);
    }
    assert_int_equal(
        side->fabric_ops->fabric_new(&(struct fabric_config){.device_ops = side->device_ops,
                                                             .device = side->device,
                                                             .world = world,
                                                             .op_timeout_ns = DEADLINE_NS},
                                     &side->fabric),
        0);
    for (uint32_t rank = 0; rank < world; rank++)
        for (uint32_t area = 0; area < AREAS; area++) {
            struct device_memory **memory = &side->memory[rank][area];
            assert_int_equal(side->device_ops->memory_new(side->device, DEVICE_MEMORY_ARENA, rank,
                                                          "test", room[area] * sizeof(float),
                                                          memory),
                             0);
            side->fabric_ops->memory_added(side->fabric, rank, *memory);
        }
    assert_int_equal(side->fabric_ops->form(side->fabric), 0);
}

static const uint32_t everyone[RANKS] = {0, 1, 2, 3};

static struct device_done wait_for(struct side *side, uint64_t op)
{
    uint64_t until_ns = now_ns() + DEADLINE_NS;
    const struct timespec nap = {0, 50000};
    char text[GW_TEXT_MAX + 1];
    struct device_done done = {0};

    while (now_ns() < until_ns) {
        if (side->device_ops->take_fault(side->device, text))
            fail_msg("%s: %s", side->device_ops->name, text);
        if (side->device_ops->take_done(side->device, &done)) {
            assert_int_equal(done.op, op);
            assert_false(done.failed);
            return done;
        }
        nanosleep(&nap, NULL);
    }
    fail_msg("%s: op %llu was not done in time", side->device_ops->name, (unsigned long long)op);
    return done;
}

/* What issuing threads were told before is done. */
static void settle(struct rig *rig)
{
    struct core_op op = {.kind = CORE_OP_BARRIER,
                         .stream = CORE_STREAM_CONTROL,
                         .traffic = GW_KINDS,
                         .world = rig->world,
                         .members = everyone,
                         .id = ++rig->cuda.ops};

    assert_int_equal(rig->cuda.fabric_ops->launch(rig->cuda.fabric, &(struct fabric_op){.op = &op}),
                     0);
    wait_for(&rig->cuda, op.id);
    rig->host.ops = rig->cuda.ops;
}

static struct rig *start_with(uint32_t world, uint64_t in, uint64_t out)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    *rig = (struct rig){
        .world = world,
        .room = {in, out, out},
        .host = {.device_ops = &device_host, .fabric_ops = &fabric_local},
        .cuda = {.device_ops = plugin->device_ops, .fabric_ops = plugin->fabric_ops},
        .values = malloc((in > out ? in : out) * sizeof(float)),
    };
    start_side(&rig->host, world, rig->room);
    start_side(&rig->cuda, world, rig->room);
    settle(rig);
    return rig;
}

static struct rig *start(uint32_t world)
{
    return start_with(world, ROOM, ROOM);
}

static void stop_side(struct side *side, uint32_t world)
{
    struct device_done done;

    side->fabric_ops->abort(side->fabric);
    side->device_ops->abort(side->device, DEVICE_ALL_RANKS);
    side->device_ops->drain(side->device);
    while (side->device_ops->take_done(side->device, &done))
        ;
    for (uint32_t rank = 0; rank < world; rank++) {
        for (uint32_t area = 0; area < AREAS; area++) {
            side->fabric_ops->memory_removed(side->fabric, rank, side->memory[rank][area]);
            side->device_ops->memory_free(side->device, side->memory[rank][area]);
        }
        if (side->verdicts[rank])
            side->device_ops->memory_free(side->device, side->verdicts[rank]);
        if (!side->boards[rank])
            continue;
        side->device_ops->page_remove(side->device, side->boards[rank]->base);
        pages_free(side->boards[rank]);
    }
    assert_null(side->fabric_ops->fabric_free(side->fabric));
    assert_null(side->device_ops->device_free(side->device));
}

static void stop(struct rig *rig)
{
    stop_side(&rig->host, rig->world);
    stop_side(&rig->cuda, rig->world);
    free(rig->values);
    free(rig);
}

/* ---- one op on both -------------------------------------------------------------------------- */

/* While an op is launched and runs, nothing may wait for a GPU. */
static void launch_one(struct side *side, const struct fabric_op *op)
{
    assert_true(alone_control("phase step all"));
    assert_int_equal(side->fabric_ops->launch(side->fabric, op), 0);
    wait_for(side, op->op->id);
    assert_true(alone_control("phase setup all"));
}

struct place {
    uint32_t area;
    uint64_t offset;
    bool none;
};

struct trial {
    struct core_op op;
    uint32_t ins, outs;
    struct place in[RANKS], out[RANKS];
};

static void launch(struct side *side, const struct trial *trial)
{
    const struct core_op *what = &trial->op;
    struct core_op op = *what;
    const float *in[RANKS] = {0};
    float *out[RANKS] = {0};
    bool own = what->kind == CORE_OP_LOCAL_ADD || what->kind == CORE_OP_ZERO;

    for (uint32_t i = 0; i < trial->ins; i++) {
        uint32_t rank = own || what->kind == CORE_OP_BROADCAST ? what->rank : what->members[i];
        in[i] =
            trial->in[i].none ? NULL : base_of(side, rank, trial->in[i].area) + trial->in[i].offset;
    }
    for (uint32_t i = 0; i < trial->outs; i++)
        out[i] = base_of(side, own ? what->rank : what->members[i], trial->out[i].area) +
                 trial->out[i].offset;
    op.id = ++side->ops;
    launch_one(side, &(struct fabric_op){.op = &op, .in = in, .out = out});
}

static float *area_of(struct rig *rig, struct side *side, uint32_t rank, uint32_t area)
{
    side->device_ops->copy(side->device, rig->values, base_of(side, rank, area),
                           rig->room[area] * sizeof(float));
    return rig->values;
}

static void assert_figures(struct rig *rig, const char *name)
{
    struct gw_counters host[GW_KINDS], cuda[GW_KINDS];

    for (uint32_t rank = 0; rank < rig->world; rank++) {
        rig->host.fabric_ops->counters(rig->host.fabric, rank, host);
        rig->cuda.fabric_ops->counters(rig->cuda.fabric, rank, cuda);
        for (uint32_t kind = 0; kind < GW_KINDS; kind++)
            if (memcmp(&host[kind], &cuda[kind], sizeof(host[kind])) != 0)
                fail_msg("%s: rank %u kind %u: calls %llu moved %llu, local has %llu and %llu",
                         name, rank, kind, (unsigned long long)cuda[kind].calls,
                         (unsigned long long)cuda[kind].moved_bytes,
                         (unsigned long long)host[kind].calls,
                         (unsigned long long)host[kind].moved_bytes);
    }
}

static void name_of(const struct trial *trial, char name[128])
{
    snprintf(name, 128, "kind %u order %u of %llu elements, %u ranks%s%s", trial->op.kind,
             trial->op.order, (unsigned long long)trial->op.numel, trial->op.world,
             trial->op.accumulate ? ", accumulating" : "",
             trial->ins && trial->in[0].none ? ", without an input" : "");
}

/* All memory of all ranks, beside what must stay as it is. */
static void compare(struct rig *rig, const struct trial *trial)
{
    char name[128];

    name_of(trial, name);
    launch(&rig->host, trial);
    launch(&rig->cuda, trial);
    for (uint32_t rank = 0; rank < rig->world; rank++)
        for (uint32_t area = 0; area < AREAS; area++) {
            const uint32_t *host = (const uint32_t *)rig->host.memory[rank][area]->base;
            const uint32_t *cuda =
                (const uint32_t *)(const void *)area_of(rig, &rig->cuda, rank, area);
            for (uint64_t i = 0; i < rig->room[area]; i++)
                if (host[i] != cuda[i])
                    fail_msg("%s: rank %u area %u element %llu: %08x, local has %08x", name, rank,
                             area, (unsigned long long)i, cuda[i], host[i]);
        }
    assert_figures(rig, name);
}

/* ---- exact ----------------------------------------------------------------------------------- */

/* The fourth is copied to scratch by four ranks and by three, and read in place by two. */
static const uint64_t sizes[] = {1, 4096, 4099, 40009, 70001};
#define SIZES(rig) ((rig)->world <= 2 ? 5u : 4u)

static struct trial trial_of(struct rig *rig, enum core_op_kind kind, uint64_t numel)
{
    struct trial trial = {.op = {.kind = (uint8_t)kind,
                                 .stream = CORE_STREAM_REDUCE,
                                 .numel = numel,
                                 .world = rig->world,
                                 .members = everyone,
                                 .scale = 0.3f,
                                 .payload_bytes = numel * rig->world * 4,
                                 .padding_bytes = 4},
                          .ins = rig->world,
                          .outs = rig->world};

    trial.op.traffic = kind == CORE_OP_ALL_REDUCE       ? GW_KIND_ALL_REDUCE
                       : kind == CORE_OP_BROADCAST      ? GW_KIND_BROADCAST
                       : kind == CORE_OP_BARRIER        ? GW_KIND_CONTROL
                       : kind == CORE_OP_REDUCE_SCATTER ? GW_KIND_REDUCE_SCATTER
                                                        : GW_KIND_ALL_GATHER;
    for (uint32_t i = 0; i < rig->world; i++)
        trial.out[i].area = OUT;
    return trial;
}

static void in_own_slices(struct trial *trial)
{
    for (uint32_t i = 0; i < trial->op.world; i++)
        trial->out[i] = (struct place){.area = IN, .offset = i * trial->op.numel};
}

static void each_world(void (*run)(struct rig *rig))
{
    for (uint32_t world = 1; world <= RANKS; world++) {
        struct rig *rig = start(world);
        fill(rig);
        run(rig);
        stop(rig);
    }
}

/* The tree written out: neighbours are added until one is left. */
static float tree(float values[RANKS], uint32_t n)
{
    for (; n > 1; n = (n + 1) / 2)
        for (uint32_t i = 0; i < (n + 1) / 2; i++)
            values[i] = 2 * i + 1 < n ? values[2 * i] + values[2 * i + 1] : values[2 * i];
    return values[0];
}

static void check_tree(struct rig *rig, uint64_t numel)
{
    for (uint32_t rank = 0; rank < rig->world; rank++) {
        const float *out = area_of(rig, &rig->cuda, rank, OUT);
        for (uint64_t i = 0; i < numel; i++) {
            float values[RANKS];
            for (uint32_t q = 0; q < rig->world; q++)
                values[q] = value_of(q, IN, rank * numel + i);
            assert_true(out[i] == tree(values, rig->world) * 0.3f);
        }
    }
}

static void exact_scatter(struct rig *rig)
{
    for (uint32_t s = 0; s < SIZES(rig); s++) {
        struct trial trial = trial_of(rig, CORE_OP_REDUCE_SCATTER, sizes[s]);
        fill(rig);
        compare(rig, &trial);
        check_tree(rig, sizes[s]);
        trial.op.accumulate = 1;
        compare(rig, &trial);
        trial.in[0].none = true;
        compare(rig, &trial);
        trial.in[0].none = false;
        trial.op.accumulate = 0;
        in_own_slices(&trial);
        compare(rig, &trial);
    }
}

static void exact_all_reduce(struct rig *rig)
{
    for (uint32_t s = 0; s < SIZES(rig); s++) {
        struct trial trial = trial_of(rig, CORE_OP_ALL_REDUCE, sizes[s]);
        fill(rig);
        compare(rig, &trial);
        trial.op.accumulate = 1;
        compare(rig, &trial);
        trial.op.accumulate = 0;
        trial.op.total_numel = sizes[s] * rig->world - (sizes[s] > 1 ? rig->world : 0);
        trial.in[0].none = true;
        compare(rig, &trial);
        trial.in[0].none = false;
        for (uint32_t i = 0; i < rig->world; i++)
            trial.out[i].area = IN;
        compare(rig, &trial);
    }
}

/* More than scratch holds at once: pieces, of 2796202 elements less what is no whole chunk. */
static void a_slice_in_pieces(void **state)
{
    struct rig *rig = start_with(4, 4 * 2800000, 16);
    struct trial trial = trial_of(rig, CORE_OP_REDUCE_SCATTER, 2800000);

    (void)state;
    fill(rig);
    in_own_slices(&trial);
    compare(rig, &trial);
    stop(rig);
}

/* order=fabric whose results have no place: an all-reduce goes by pieces, a slice that does not fit
 * into scratch (16 MiB of it) is summed exactly. */
static void fabric_sums_beyond_scratch(void **state)
{
    struct rig *rig = start_with(2, 2 * 4200000, 2 * 4200000);
    struct trial trial = trial_of(rig, CORE_OP_REDUCE_SCATTER, 4200000);

    (void)state;
    fill(rig);
    trial.op.order = GW_ORDER_FABRIC;
    trial.op.accumulate = 1;
    compare(rig, &trial);
    fill(rig);
    trial.op.kind = CORE_OP_ALL_REDUCE;
    trial.op.traffic = GW_KIND_ALL_REDUCE;
    compare(rig, &trial); /* two values have one order only */
    stop(rig);
}

static void exact_sums(void **state)
{
    (void)state;
    each_world(exact_scatter);
    each_world(exact_all_reduce);
}

/* ---- fabric ---------------------------------------------------------------------------------- */

/* Of one element: the exact value within n roundings of what was added. */
static void assert_near(struct rig *rig, const char *name, float got, float exact, float biggest,
                        uint64_t *differ)
{
    float bound = biggest * (float)(rig->world + 2) * 1.2e-7f;

    if (!(fabsf(got - exact) <= bound))
        fail_msg("%s: %.9g, exact %.9g, off by more than %.3g", name, (double)got, (double)exact,
                 (double)bound);
    *differ += got != exact;
}

static uint64_t near(struct rig *rig, const struct trial *trial, uint64_t numel)
{
    uint64_t differ = 0;
    char name[128];

    name_of(trial, name);
    launch(&rig->host, trial);
    launch(&rig->cuda, trial);
    for (uint32_t rank = 0; rank < rig->world; rank++) {
        const float *host =
            base_of(&rig->host, rank, trial->out[rank].area) + trial->out[rank].offset;
        const float *cuda =
            area_of(rig, &rig->cuda, rank, trial->out[rank].area) + trial->out[rank].offset;
        for (uint64_t i = 0; i < numel; i++)
            assert_near(rig, name, cuda[i], host[i], ldexpf((float)rig->world * 4, 16), &differ);
    }
    assert_figures(rig, name);
    return differ;
}

static void fabric_sums_of(struct rig *rig)
{
    uint64_t differ = 0;

    for (uint32_t s = 0; s < SIZES(rig); s++) {
        struct trial trial = trial_of(rig, CORE_OP_REDUCE_SCATTER, sizes[s]);
        trial.op.order = GW_ORDER_FABRIC;
        for (uint32_t accumulate = 0; accumulate < 2; accumulate++) {
            for (uint32_t missing = 0; missing < 2; missing++) {
                fill(rig);
                trial.op.accumulate = (uint8_t)accumulate;
                trial.in[0].none = missing;
                differ += near(rig, &trial, sizes[s]);
            }
        }
        trial.op.accumulate = 0;
        trial.in[0].none = false;
        in_own_slices(&trial);
        fill(rig);
        differ += near(rig, &trial, sizes[s]);
        trial = trial_of(rig, CORE_OP_ALL_REDUCE, sizes[s]);
        trial.op.order = GW_ORDER_FABRIC;
        for (uint32_t accumulate = 0; accumulate < 2; accumulate++) {
            for (uint32_t missing = 0; missing < 2; missing++) {
                fill(rig);
                trial.op.accumulate = (uint8_t)accumulate;
                trial.in[0].none = missing;
                differ += near(rig, &trial, sizes[s] * rig->world);
            }
        }
    }
    /* Two values have one order only. */
    if (rig->world > 2)
        assert_true(differ > 0);
}

static void fabric_sums(void **state)
{
    (void)state;
    each_world(fabric_sums_of);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void moves_of(struct rig *rig)
{
    for (uint32_t s = 0; s < SIZES(rig); s++) {
        struct trial trial = trial_of(rig, CORE_OP_ALL_GATHER, sizes[s]);
        fill(rig);
        compare(rig, &trial);
        for (uint32_t i = 0; i < rig->world; i++)
            trial.in[i] = (struct place){.area = OUT, .offset = i * sizes[s]};
        compare(rig, &trial);
        trial = trial_of(rig, CORE_OP_BROADCAST, sizes[s]);
        trial.op.rank = rig->world - 1;
        trial.ins = 1;
        compare(rig, &trial);
        trial = trial_of(rig, CORE_OP_LOCAL_ADD, sizes[s]);
        trial.op.traffic = GW_KINDS;
        trial.op.rank = rig->world - 1;
        trial.op.members = &everyone[rig->world - 1];
        trial.op.world = trial.ins = trial.outs = 1;
        compare(rig, &trial);
        trial.op.accumulate = 1;
        compare(rig, &trial);
        trial.op.accumulate = 0;
        trial.op.kind = CORE_OP_ZERO;
        trial.ins = 0;
        compare(rig, &trial);
    }
    {
        struct trial trial = trial_of(rig, CORE_OP_BARRIER, 0);
        trial.ins = trial.outs = 0;
        compare(rig, &trial);
    }
}

static void moves(void **state)
{
    (void)state;
    each_world(moves_of);
}

static void launch_gather(struct rig *rig, struct side *side, uint32_t rank, uint64_t slice)
{
    struct fabric_segment segments[8];
    uint32_t count = 0;
    struct core_op op = {.kind = CORE_OP_GATHER,
                         .stream = CORE_STREAM_GATHER,
                         .traffic = GW_KIND_ALL_GATHER,
                         .rank = rank,
                         .world = 1,
                         .members = &everyone[rank],
                         .id = ++side->ops,
                         .payload_bytes = slice * rig->world * 8};

    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t q = 0; q < rig->world; q++)
            segments[count++] =
                (struct fabric_segment){base_of(side, rank, OTHER) + (b * rig->world + q) * slice,
                                        base_of(side, q, IN) + b * slice, slice * sizeof(float)};
    launch_one(side, &(struct fabric_op){.op = &op, .segments = segments, .segment_count = count});
}

static void gathers(void **state)
{
    struct rig *rig = start(3);
    struct trial nothing = trial_of(rig, CORE_OP_BARRIER, 0);

    (void)state;
    fill(rig);
    nothing.ins = nothing.outs = 0;
    for (uint32_t rank = 0; rank < 3; rank++) {
        launch_gather(rig, &rig->host, rank, 5003);
        launch_gather(rig, &rig->cuda, rank, 5003);
        compare(rig, &nothing);
    }
    stop(rig);
}

/* Members in an order of their own, two groups beside each other, a group of one. */
static void groups(void **state)
{
    static const uint32_t lists[][3] = {{2, 0, 3}, {0, 2, 3}, {3, 1, 0}, {1, 0, 0}};
    static const uint32_t counts[] = {3, 3, 2, 1};
    struct rig *rig = start(4);

    (void)state;
    for (uint32_t g = 0; g < 4; g++)
        assert_int_equal(rig->cuda.fabric_ops->group(rig->cuda.fabric, lists[g], counts[g]), 0);
    settle(rig);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t g = 0; g < 4; g++) {
            struct trial trial = trial_of(rig, CORE_OP_ALL_GATHER, 4099);
            fill(rig);
            trial.op.members = lists[g];
            trial.op.world = trial.ins = trial.outs = counts[g];
            compare(rig, &trial);
            trial.op.kind = CORE_OP_REDUCE_SCATTER;
            trial.op.traffic = GW_KIND_REDUCE_SCATTER;
            compare(rig, &trial);
            trial.op.kind = CORE_OP_BROADCAST;
            trial.op.rank = lists[g][counts[g] - 1];
            trial.ins = 1;
            compare(rig, &trial);
        }
    stop(rig);
}

/* ---- verdict --------------------------------------------------------------------------------- */

#define BUCKETS 3u
#define PARAMS 75u
static const uint64_t slices[BUCKETS] = {5000, 4096, 77};

static void seal(struct rig *rig, struct side *side)
{
    const size_t bytes = sizeof(struct gw_shm_board) + BUCKETS * sizeof(struct gw_shm_slot) + 16;

    assert_int_equal(side->fabric_ops->sealed(side->fabric, slices, BUCKETS, PARAMS), 0);
    for (uint32_t rank = 0; rank < rig->world; rank++) {
        struct gw_shm_board *board;
        assert_int_equal(pages_new(PAGES_OUT, "board", bytes, &side->boards[rank]), 0);
        board = side->boards[rank]->base;
        board->buckets = BUCKETS;
        board->params = PARAMS;
        assert_int_equal(side->device_ops->page_add(side->device, board, bytes), 0);
        assert_int_equal(side->device_ops->memory_new(side->device, DEVICE_MEMORY_ARENA, rank,
                                                      "verdict", sizeof(struct gw_shm_verdict),
                                                      &side->verdicts[rank]),
                         0);
    }
}

/* Buckets one behind the other in OUT; the sums' inputs in IN. */
static void reduce_bucket(struct rig *rig, struct side *side, uint32_t bucket, uint32_t kind,
                          uint32_t order)
{
    struct trial trial = trial_of(rig, kind, slices[bucket]);
    uint64_t offset = bucket * 30000;

    trial.op.bucket = bucket;
    trial.op.partials = 1;
    trial.op.order = (uint8_t)order;
    for (uint32_t i = 0; i < rig->world; i++)
        trial.in[i].offset = trial.out[i].offset = offset;
    launch(side, &trial);
}

static void give_verdict(struct rig *rig, struct side *side, const uint8_t used[BUCKETS],
                         uint64_t step)
{
    static const uint8_t bits[10] = {255, 255, 255, 255, 255, 255, 255, 255, 9, 5};
    struct gw_shm_board *boards[RANKS];
    void *verdicts[RANKS];
    struct core_op op = {.kind = CORE_OP_VERDICT,
                         .stream = CORE_STREAM_CONTROL,
                         .traffic = GW_KIND_CONTROL,
                         .world = rig->world,
                         .members = everyone,
                         .wait_ops = &side->ops,
                         .wait_op_count = 1,
                         .payload_bytes = 8,
                         .step = step,
                         .clip_norm = 3,
                         .digest = 42,
                         .used_params = 70,
                         .used_bits = bits,
                         .used_buckets = used};

    for (uint32_t rank = 0; rank < rig->world; rank++) {
        boards[rank] = rank == 1 ? NULL : side->boards[rank]->base;
        verdicts[rank] = side->verdicts[rank]->base;
    }
    op.id = side->ops + 1;
    launch_one(side, &(struct fabric_op){.op = &op,
                                         .boards = boards,
                                         .verdicts = verdicts,
                                         .buckets = BUCKETS,
                                         .params = PARAMS});
    side->ops++;
}

static void compare_verdicts(struct rig *rig, uint64_t step)
{
    const struct gw_shm_board *first = rig->host.boards[0]->base;

    assert_int_equal(first->verdict.step, step);
    for (uint32_t rank = 0; rank < rig->world; rank++) {
        const struct gw_shm_board *host = rig->host.boards[rank]->base;
        const struct gw_shm_board *cuda = rig->cuda.boards[rank]->base;
        struct gw_shm_verdict copy;
        assert_memory_equal(&host->verdict, &cuda->verdict, sizeof(host->verdict));
        assert_memory_equal(&host->slots[BUCKETS], &cuda->slots[BUCKETS], 16);
        rig->cuda.device_ops->copy(rig->cuda.device, &copy, rig->cuda.verdicts[rank]->base,
                                   sizeof(copy));
        assert_memory_equal(&copy, &first->verdict, sizeof(copy));
    }
    assert_figures(rig, "verdict");
}

static void verdict_of(struct rig *rig)
{
    static const uint8_t used[][BUCKETS] = {{1, 1, 1}, {1, 0, 1}, {0, 0, 0}, {1, 1, 1}};
    struct side *sides[2] = {&rig->host, &rig->cuda};

    for (uint32_t i = 0; i < 2; i++)
        seal(rig, sides[i]);
    for (uint32_t step = 0; step < 4; step++) {
        /* Last, an infinity in the second bucket's last slice. */
        for (uint32_t i = 0; i < 2 && step == 3; i++)
            sides[i]->device_ops->copy(sides[i]->device,
                                       base_of(sides[i], 0, IN) + 30000 + 4096 * rig->world - 1,
                                       &(float){INFINITY}, sizeof(float));
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t b = 0; b < BUCKETS; b++)
                if (used[step][b])
                    reduce_bucket(rig, sides[i], b,
                                  step == 1 ? CORE_OP_ALL_REDUCE : CORE_OP_REDUCE_SCATTER,
                                  GW_ORDER_EXACT);
            give_verdict(rig, sides[i], used[step], step + 1);
        }
        compare_verdicts(rig, step + 1);
    }
}

static void verdicts(void **state)
{
    (void)state;
    each_world(verdict_of);
}

/* Norms of both orders agree, and the squares are of what was stored. */
static void verdict_of_fabric_order(void **state)
{
    static const uint8_t used[BUCKETS] = {1, 1, 1};
    struct rig *rig = start(4);
    const struct gw_shm_board *board;
    double norm[3];

    (void)state;
    fill(rig);
    seal(rig, &rig->cuda);
    board = rig->cuda.boards[0]->base;
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t b = 0; b < BUCKETS; b++)
            reduce_bucket(rig, &rig->cuda, b, i == 2 ? CORE_OP_ALL_REDUCE : CORE_OP_REDUCE_SCATTER,
                          i ? GW_ORDER_FABRIC : GW_ORDER_EXACT);
        give_verdict(rig, &rig->cuda, used, i + 1);
        norm[i] = board->verdict.norm;
    }
    for (uint32_t i = 1; i < 3; i++)
        assert_true(fabs(norm[i] - norm[0]) <= norm[0] * 1e-6 && norm[i] > 0);
    stop(rig);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static uint64_t gather_all(struct side *side, const struct trial *trial)
{
    struct core_op op = trial->op;
    const float *in[RANKS];
    float *out[RANKS];

    for (uint32_t r = 0; r < op.world; r++) {
        in[r] = base_of(side, r, IN);
        out[r] = base_of(side, r, OUT);
    }
    op.id = ++side->ops;
    assert_int_equal(side->fabric_ops->launch(side->fabric,
                                              &(struct fabric_op){.op = &op, .in = in, .out = out}),
                     0);
    return op.id;
}

/* What is under way when a job fails ends, a collective that hangs too, and the next generation
 * works. */
static void abort_and_form_again(void **state)
{
    struct rig *rig = start(3);
    struct trial trial = trial_of(rig, CORE_OP_ALL_GATHER, 4099);
    struct side *side = &rig->cuda;
    struct device_done done;

    (void)state;
    fill(rig);
    compare(rig, &trial);
    assert_true(alone_control("inject nccl-hang"));
    for (uint32_t i = 0; i < 3; i++)
        (void)gather_all(side, &trial);
    nanosleep(&(struct timespec){0, 50000000}, NULL); /* mostly it hangs by then */
    side->fabric_ops->abort(side->fabric);
    side->device_ops->abort(side->device, DEVICE_ALL_RANKS);
    side->device_ops->drain(side->device);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(side->device_ops->take_done(side->device, &done));
    assert_false(side->device_ops->take_done(side->device, &done));
    assert_int_equal(side->fabric_ops->launch(side->fabric, &(struct fabric_op){.op = &trial.op}),
                     GW_E_STATE);
    assert_true(alone_control("inject nccl-hang 1000000"));
    side->device_ops->resume(side->device);
    assert_int_equal(side->fabric_ops->form(side->fabric), 0);
    settle(rig);
    rig->cuda.fabric_ops->reset(rig->cuda.fabric);
    rig->host.fabric_ops->reset(rig->host.fabric);
    fill(rig);
    compare(rig, &trial);
    stop(rig);
}

/* 40000 ring bytes at 1 MB/s: the op takes its ranks' links for 40 ms. */
static void the_pace_holds_an_op_for_its_ring_bytes(void **state)
{
    struct rig *rig = start(2);
    struct trial trial = trial_of(rig, CORE_OP_ALL_GATHER, 10000);
    struct side *side = &rig->cuda;
    struct fabric *paced, *own = side->fabric;
    struct device_done done;

    (void)state;
    assert_int_equal(
        side->fabric_ops->fabric_new(&(struct fabric_config){.device_ops = side->device_ops,
                                                             .device = side->device,
                                                             .world = 2,
                                                             .link_bytes_per_s = 1000000},
                                     &paced),
        0);
    assert_int_equal(side->fabric_ops->form(paced), 0);
    side->fabric = paced;
    done = wait_for(side, gather_all(side, &trial));
    assert_true(done.done_ns - done.started_ns >= 40000000);
    assert_null(side->fabric_ops->fabric_free(paced));
    side->fabric = own;
    stop(rig);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(plugin->fabric_ops->name, "nccl");
    assert_string_equal(plugin->fabric_ops->order_name(GW_ORDER_EXACT), "nccl exact");
    assert_string_equal(plugin->fabric_ops->order_name(GW_ORDER_FABRIC), "nccl fabric");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(exact_sums),
        cmocka_unit_test(fabric_sums),
        cmocka_unit_test(moves),
        cmocka_unit_test(gathers),
        cmocka_unit_test(groups),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(verdict_of_fabric_order),
        cmocka_unit_test(abort_and_form_again),
        cmocka_unit_test(a_slice_in_pieces),
        cmocka_unit_test(the_pace_holds_an_op_for_its_ring_bytes),
        cmocka_unit_test(fabric_sums_beyond_scratch),
    };

    (void)argc;
    if (!alone_inside())
        return alone_run(argv, RANKS);
    plugin = alone_plugin(RANKS, uuids);
    return plugin ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
