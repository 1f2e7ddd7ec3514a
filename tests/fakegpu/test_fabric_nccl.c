/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plug-in's device and fabric on doubles: every kind of op beside fabric local on the host.
 * exact: local's bits, which are checked against sums written out here; fabric: within n roundings,
 * and different somewhere. Figures are the same on both.
 * Started by itself: starts a server, and runs again under it (FAKEGPU_SOCKET).
 * ctest: label=cuda timeout=240
 */
#include "tests/fakegpu/fabric_kit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/pages.h"

/* What daemon/fabric/nccl/nccl.h promises the trainer. */
#define CTAS_MAX 8
#define THREADS_MAX (32u * 256u)

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

/* Of which ranks keep their slices; the whole goes over the inputs. */
static void exact_all_reduce_to_shards(struct rig *rig)
{
    for (uint32_t s = 1; s < SIZES(rig); s += 2) {
        struct trial trial = trial_of(rig, CORE_OP_ALL_REDUCE, sizes[s]);
        trial.op.shards = 1;
        fill(rig);
        trial.op.accumulate = 1;
        compare(rig, &trial);
        trial.op.in_dtype = GW_DTYPE_BF16;
        compare(rig, &trial);
        trial.in[0].none = true;
        compare(rig, &trial);
        trial.op.in_dtype = GW_DTYPE_FP32;
        compare(rig, &trial);
        trial.in[0].none = false;
        trial.op.accumulate = 0;
        in_own_slices(&trial);
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
    each_world(exact_all_reduce_to_shards);
}

/* ---- fabric ---------------------------------------------------------------------------------- */

/* What is added up to element i of the rank's result, without signs. */
static float size_of(const struct rig *rig, const struct trial *trial, uint32_t rank, uint64_t i)
{
    bool slices = trial->op.kind == CORE_OP_REDUCE_SCATTER || trial->op.shards;
    uint64_t at = slices ? rank * trial->op.numel + i : i;
    float size = trial->op.accumulate ? fabsf(value_of(0, OUT, i)) : 0;

    for (uint32_t q = 0; q < rig->world; q++)
        size += fabsf(value_of(q, IN, at)) * trial->op.scale;
    return size;
}

/* Of one element: the exact value within n roundings of what was added. */
static void assert_near(struct rig *rig, const char *name, float got, float exact, float size,
                        uint64_t *differ)
{
    float bound = size * (float)(rig->world + 2) * 1.2e-7f;

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
            assert_near(rig, name, cuda[i], host[i], size_of(rig, trial, rank, i), &differ);
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
                if (s % 2)
                    continue;
                fill(rig);
                trial.op.shards = 1;
                differ += near(rig, &trial, sizes[s]);
                trial.op.shards = 0;
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
                                        base_of(side, q, IN) + b * slice, slice * sizeof(float),
                                        q};
    launch_one(side, &(struct fabric_op){.op = &op, .segments = segments, .segment_count = count});
}

/* Halves of what the rank has in OTHER, of two buckets: to OUT of the members. */
static void launch_fill(struct side *side, uint32_t rank, const uint32_t members[2], uint64_t slice)
{
    struct fabric_segment segments[4];
    uint32_t count = 0;
    struct core_op op = {.kind = CORE_OP_FILL,
                         .stream = CORE_STREAM_GATHER,
                         .traffic = GW_KIND_ALL_GATHER,
                         .rank = rank,
                         .world = 2,
                         .members = members,
                         .id = ++side->ops,
                         .payload_bytes = slice * 4 * sizeof(float)};

    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t i = 0; i < 2; i++)
            segments[count++] = (struct fabric_segment){
                base_of(side, members[i], OUT) + b * slice,
                base_of(side, rank, OTHER) + (2 * b + i) * slice, slice * sizeof(float),
                members[i]};
    launch_one(side, &(struct fabric_op){.op = &op, .segments = segments, .segment_count = count});
}

/* Behind the gather that has brought it there. */
static void fills(void **state)
{
    static const uint32_t blocks[][2] = {{0, 1}, {1, 0}, {2, 1}};
    struct rig *rig = start(3);
    struct trial nothing = trial_of(rig, CORE_OP_BARRIER, 0);

    (void)state;
    fill(rig);
    nothing.ins = nothing.outs = 0;
    for (uint32_t i = 0; i < 3; i++) {
        launch_gather(rig, &rig->host, blocks[i][0], 5003);
        launch_gather(rig, &rig->cuda, blocks[i][0], 5003);
        launch_fill(&rig->host, blocks[i][0], blocks[i], 4099);
        launch_fill(&rig->cuda, blocks[i][0], blocks[i], 4099);
        compare(rig, &nothing);
    }
    stop(rig);
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

/* What of a layout page fabrics read. */
static struct {
    struct gw_layout_page page;
    struct gw_layout_bucket buckets[BUCKETS];
    struct gw_layout_group group;
} layout;

static void layout_of(uint32_t world)
{
    memset(&layout, 0, sizeof(layout));
    layout.page.world = world;
    layout.page.buckets = BUCKETS;
    layout.page.params = PARAMS;
    layout.page.groups = 1;
    layout.page.buckets_at = (uint64_t)((char *)layout.buckets - (char *)&layout);
    layout.page.groups_at = (uint64_t)((char *)&layout.group - (char *)&layout);
    layout.group.members = layout.group.shard_ranks = world;
    for (uint32_t b = 0; b < BUCKETS; b++)
        layout.buckets[b].numel = layout.buckets[b].padded_numel = slices[b] * world;
}

static void seal(struct rig *rig, struct side *side)
{
    const size_t bytes = sizeof(struct gw_shm_board) + BUCKETS * sizeof(struct gw_shm_slot) + 16;

    layout_of(rig->world);
    assert_int_equal(side->fabric_ops->sealed(side->fabric, &layout.page), 0);
    for (uint32_t rank = 0; rank < rig->world; rank++) {
        struct gw_shm_board *board;
        assert_int_equal(
            pages_new(PAGES_OUT, "board", bytes, PAGES_ANYWHERE, &side->boards[rank]), 0);
        board = side->boards[rank]->base;
        board->buckets = BUCKETS;
        board->params = PARAMS;
        assert_int_equal(side->device_ops->page_add(side->device, board, bytes), 0);
        assert_int_equal(side->device_ops->memory_new(side->device, DEVICE_MEMORY_ARENA, rank,
                                                      "verdict",
                                                      sizeof(struct gw_shm_verdict) + 10,
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
    trial.op.slices = rig->world;
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
        uint8_t on_gpu[sizeof(struct gw_shm_verdict) + 10];
        const struct gw_shm_board *host = rig->host.boards[rank]->base;
        const struct gw_shm_board *cuda = rig->cuda.boards[rank]->base;
        assert_memory_equal(&host->verdict, &cuda->verdict, sizeof(host->verdict));
        assert_memory_equal(&host->slots[BUCKETS], &cuda->slots[BUCKETS], 16);
        rig->cuda.device_ops->copy(rig->cuda.device, on_gpu, rig->cuda.verdicts[rank]->base,
                                   sizeof(on_gpu));
        assert_memory_equal(on_gpu, &first->verdict, sizeof(first->verdict));
        assert_memory_equal(on_gpu + sizeof(first->verdict), &first->slots[BUCKETS], 10);
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
    const void *in[RANKS];
    void *out[RANKS];

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

/* A GPU has 32 hardware queues: what stands in one behind a stream that waits, waits too. So the
 * number of a GPU's streams must not grow with the job's ranks. */
static void ranks_cost_a_gpu_no_streams(void **state)
{
    (void)state;
    assert_true(alone_control("inject streams 8"));
    for (uint32_t world = 2; world <= 4; world += 2)
        stop(start(world));
    assert_true(alone_control("inject none"));
}

/* ---- registered memory ----------------------------------------------------------------------- */

static uint64_t zero_ctas_of(struct rig *rig, const struct trial *trial)
{
    uint64_t before = alone_count("zero_ctas");

    compare(rig, trial);
    return alone_count("zero_ctas") - before;
}

/* Small, so that it is NCCL's: in windows it costs no rank a CTA; where the ranks' buffers are not
 * alike it must not be a call on windows at all, which the server would tell. */
static void windows_of(struct rig *rig, bool old)
{
    struct trial trial = trial_of(rig, CORE_OP_ALL_GATHER, 4099);

    assert_int_equal(zero_ctas_of(rig, &trial), old ? 0 : rig->world);
    for (uint32_t i = 0; i < rig->world; i++)
        trial.in[i] = (struct place){.area = OUT, .offset = i * 4099};
    assert_int_equal(zero_ctas_of(rig, &trial), old ? 0 : rig->world); /* in place */
    trial.in[0] = (struct place){.area = OTHER};
    assert_int_equal(zero_ctas_of(rig, &trial), 0);
    trial.in[0] = (struct place){.area = OUT};
    trial.out[1].offset = 64;
    trial.in[1].offset += 64;
    assert_int_equal(zero_ctas_of(rig, &trial), 0);
}

static void all_gathers_in_windows(void **state)
{
    struct rig *rig = start(3);
    struct device_memory *more[RANKS];
    struct trial trial = trial_of(rig, CORE_OP_ALL_GATHER, 4099);
    const char *nccl = getenv("FAKEGPU_NCCL");

    (void)state;
    fill(rig);
    windows_of(rig, nccl != NULL);
    /* Windows come and go with memory of any one rank, while the others stay. */
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(rig->cuda.device_ops->memory_new(rig->cuda.device, DEVICE_MEMORY_ARENA,
                                                          rank, "more", 1 << 20, &more[rank]),
                         0);
        rig->cuda.fabric_ops->memory_added(rig->cuda.fabric, rank, more[rank]);
    }
    for (uint32_t rank = 3; rank-- > 0;) {
        rig->cuda.fabric_ops->memory_removed(rig->cuda.fabric, rank, more[rank]);
        rig->cuda.device_ops->memory_free(rig->cuda.device, more[rank]);
    }
    /* And with generations. */
    rig->cuda.fabric_ops->abort(rig->cuda.fabric);
    assert_int_equal(rig->cuda.fabric_ops->form(rig->cuda.fabric), 0);
    settle(rig);
    assert_int_equal(zero_ctas_of(rig, &trial), nccl ? 0 : 3);
    stop(rig);
}

/* The trainer computes on the same GPU. The first of all, for the counts are of the whole run:
 * later ones have lanes beside each other. */
static void collectives_and_kernels_are_small(void **state)
{
    const uint64_t numel = 5 * THREADS_MAX; /* a thread does four at a time */
    struct rig *rig = start_with(2, 2 * numel, 2 * numel);
    struct trial trial = trial_of(rig, CORE_OP_ALL_REDUCE, numel);

    (void)state;
    fill(rig);
    compare(rig, &trial);
    assert_int_equal(alone_count("threads_most"), THREADS_MAX);
    trial.op.order = GW_ORDER_FABRIC;
    compare(rig, &trial); /* two values have one order only */
    assert_int_equal(alone_count("threads_most"), THREADS_MAX);
    assert_int_equal(alone_count("ctas_most"), CTAS_MAX);
    stop(rig);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(plugin->fabric_ops->name, "nccl");
    assert_string_equal(plugin->fabric_ops->order_name(GW_ORDER_EXACT), "nccl exact");
    assert_string_equal(plugin->fabric_ops->order_name(GW_ORDER_FABRIC), "nccl fabric");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(collectives_and_kernels_are_small),
    cmocka_unit_test(names),
    cmocka_unit_test(exact_sums),
    cmocka_unit_test(fabric_sums),
    cmocka_unit_test(moves),
    cmocka_unit_test(gathers),
    cmocka_unit_test(fills),
    cmocka_unit_test(groups),
    cmocka_unit_test(verdicts),
    cmocka_unit_test(verdict_of_fabric_order),
    cmocka_unit_test(abort_and_form_again),
    cmocka_unit_test(a_slice_in_pieces),
    cmocka_unit_test(the_pace_holds_an_op_for_its_ring_bytes),
    cmocka_unit_test(fabric_sums_beyond_scratch),
    cmocka_unit_test(ranks_cost_a_gpu_no_streams),
    cmocka_unit_test(all_gathers_in_windows),
};

/* What depends on which GPUs reach each other. */
static const struct CMUnitTest no_room[] = {cmocka_unit_test(gathers), cmocka_unit_test(fills)};
static const struct CMUnitTest apart[] = {
    cmocka_unit_test(exact_sums), cmocka_unit_test(moves),  cmocka_unit_test(gathers),
    cmocka_unit_test(fills),      cmocka_unit_test(groups), cmocka_unit_test(verdicts),
    cmocka_unit_test(a_slice_in_pieces),
};

/* What depends on NCCL's version. */
static const struct CMUnitTest old[] = {cmocka_unit_test(fabric_sums), cmocka_unit_test(moves),
                                        cmocka_unit_test(all_gathers_in_windows)};

static int run_with(const char *line)
{
    if (getenv("FAKEGPU_NCCL"))
        return cmocka_run_group_tests(old, NULL, NULL);
    if (!line)
        return cmocka_run_group_tests(tests, NULL, NULL);
    if (!alone_control(line))
        return 1;
    return strstr(line, "few-peers") ? cmocka_run_group_tests(no_room, NULL, NULL)
                                     : cmocka_run_group_tests(apart, NULL, NULL);
}

/* All GPUs reach each other; none does; two and two; all could, but there is no room for peers. */
static char *const nodes[] = {NULL, "inject peers 1", "inject peers 2", "inject few-peers"};

int main(int argc, char **argv)
{
    int result = 0;

    if (alone_inside()) {
        plugin = alone_plugin(RANKS, uuids);
        return plugin ? run_with(argc > 1 ? argv[1] : NULL) : 1;
    }
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++)
        result |= alone_run((char *[]){argv[0], nodes[i], NULL}, RANKS);
    setenv("FAKEGPU_NCCL", "old", 1);
    return result | alone_run((char *[]){argv[0], NULL}, RANKS);
}
