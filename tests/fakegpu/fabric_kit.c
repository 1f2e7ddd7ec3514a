/* SPDX-License-Identifier: Apache-2.0 */
/* See fabric_kit.h. */
#include "tests/fakegpu/fabric_kit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/pages.h"

const struct plugin *plugin;
uint8_t uuids[RANKS][GW_GPU_BYTES];
const uint32_t everyone[RANKS] = {0, 1, 2, 3};

/* ---- two devices with the same memory -------------------------------------------------------- */

uint64_t now_ns(void)
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
float value_of(uint32_t rank, uint32_t area, uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (rank * 4u + area) * UINT64_C(0xbf58476d);

    x ^= x >> 31;
    x *= UINT64_C(0x94d049bb133111eb);
    x ^= x >> 29;
    return ldexpf((float)(int32_t)(uint32_t)x, -31 + (int)(x >> 40 & 15));
}

float *base_of(const struct side *side, uint32_t rank, uint32_t area)
{
    return (float *)side->memory[rank][area]->base;
}

void fill(struct rig *rig)
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

    assert_int_equal(side->device_ops->device_new(
                         &(struct device_config){.wake = on_wake, .user = NULL}, &side->device),
                     0);
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

struct device_done wait_for(struct side *side, uint64_t op)
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
void settle(struct rig *rig)
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

struct rig *start_with(uint32_t world, uint64_t in, uint64_t out)
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

struct rig *start(uint32_t world)
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

void stop(struct rig *rig)
{
    stop_side(&rig->host, rig->world);
    stop_side(&rig->cuda, rig->world);
    free(rig->values);
    free(rig);
}

/* ---- one op on both -------------------------------------------------------------------------- */

/* While an op is launched and runs, nothing may wait for a GPU. */
void launch_one(struct side *side, const struct fabric_op *op)
{
    assert_true(alone_control("phase step all"));
    assert_int_equal(side->fabric_ops->launch(side->fabric, op), 0);
    wait_for(side, op->op->id);
    assert_true(alone_control("phase setup all"));
}

void launch(struct side *side, const struct trial *trial)
{
    const struct core_op *what = &trial->op;
    struct core_op op = *what;
    const void *in[RANKS] = {0};
    void *out[RANKS] = {0};
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

float *area_of(struct rig *rig, struct side *side, uint32_t rank, uint32_t area)
{
    side->device_ops->copy(side->device, rig->values, base_of(side, rank, area),
                           rig->room[area] * sizeof(float));
    return rig->values;
}

void assert_figures(struct rig *rig, const char *name)
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

void name_of(const struct trial *trial, char name[128])
{
    snprintf(name, 128, "kind %u order %u of %llu elements, %u ranks%s%s", trial->op.kind,
             trial->op.order, (unsigned long long)trial->op.numel, trial->op.world,
             trial->op.accumulate ? ", accumulating" : "",
             trial->ins && trial->in[0].none ? ", without an input" : "");
}

/* All memory of all ranks, beside what must stay as it is. */
void compare(struct rig *rig, const struct trial *trial)
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

/* ---- trials ---------------------------------------------------------------------------------- */

/* The fourth is copied to scratch by four ranks and by three, and read in place by two. */
const uint64_t sizes[5] = {1, 4096, 4099, 40009, 70001};
struct trial trial_of(struct rig *rig, enum core_op_kind kind, uint64_t numel)
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

void in_own_slices(struct trial *trial)
{
    for (uint32_t i = 0; i < trial->op.world; i++)
        trial->out[i] = (struct place){.area = IN, .offset = i * trial->op.numel};
}

void each_world(void (*run)(struct rig *rig))
{
    for (uint32_t world = 1; world <= RANKS; world++) {
        struct rig *rig = start(world);
        fill(rig);
        run(rig);
        stop(rig);
    }
}
