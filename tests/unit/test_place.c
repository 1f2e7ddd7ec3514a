/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where things of a sealed job lie: bytes and offsets of every arena, by stage, modes, dtypes and
 * groups, worked out by hand. fp32 jobs of one group: beside the rules that they always had.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/layout.h"
#include "gradwire/errors.h"
#include "proto/place.h"

#define FP32 GW_DTYPE_FP32
#define FP16 GW_DTYPE_FP16
#define BF16 GW_DTYPE_BF16
#define COUNT(array) (uint32_t)(sizeof(array) / sizeof((array)[0]))
#define LOCAL GW_ACCUMULATE_LOCAL
#define SHARD GW_ACCUMULATE_SHARD

struct job {
    struct layout *layout;
    struct place *place;
};

static void check_ref(struct place_ref got, uint8_t kind, uint8_t dtype, uint64_t offset)
{
    assert_int_equal(got.kind, kind);
    assert_int_equal(got.dtype, dtype);
    assert_int_equal(got.offset_bytes, offset);
    assert_int_equal(got.index, 0);
}

static void check_none(struct place_ref got)
{
    assert_int_equal(got.kind, GW_ARENA_NONE);
}

/* ---- fp32, one group ------------------------------------------------------------------------- */

static const struct layout_param plain[] = {
    {.name = "a", .unit = "u", .numel = 30}, {.name = "b", .unit = "u", .numel = 7},
    {.name = "c", .unit = "v", .numel = 50}, {.name = "d", .unit = "w", .numel = 3},
    {.name = "e", .unit = "x", .numel = 9},
};

/* As it was before dtypes and groups: everything follows from flat offsets times four. */
static uint64_t plain_bytes(const struct layout *layout, const struct wire_seal *o,
                            enum gw_arena_kind kind)
{
    const struct gw_layout_page *page = layout_page(layout);
    bool local = o->accumulate == LOCAL, many = o->micro_steps > 1;
    bool ring = o->stage >= 2 && !local, mapped = o->gather == GW_GATHER_MAPPED;
    bool in_place = o->stage <= 1 && (local || !many);
    uint64_t full = page->padded_numel * 4, shard = o->stage ? full / page->world : full;
    uint64_t bucket = 0, fetch = 0;

    for (uint32_t b = 0; b < page->buckets; b++) {
        if (layout_buckets(layout)[b].padded_numel * 4 > bucket)
            bucket = layout_buckets(layout)[b].padded_numel * 4;
    }
    for (uint32_t f = 0; f < page->fetch_units; f++) {
        if (layout_fetch_units(layout)[f].padded_numel * 4 > fetch)
            fetch = layout_fetch_units(layout)[f].padded_numel * 4;
    }
    switch (kind) {
    case GW_ARENA_PARAMS:
        return o->stage < 3 ? full : mapped ? 0 : shard;
    case GW_ARENA_GRADS:
        return ring ? 0 : full;
    case GW_ARENA_ACC:
        return many && (local || o->stage == 0) ? full : 0;
    case GW_ARENA_RING:
        return ring ? o->ring_slots * bucket : 0;
    case GW_ARENA_OVERFLOW:
        return ring ? bucket : 0;
    case GW_ARENA_SHARD_GRADS:
        return o->stage >= 2 || (o->stage == 1 && !in_place) ? shard : 0;
    case GW_ARENA_POOL:
        if (o->stage < 3 || mapped)
            return 0;
        return o->gather_bytes + fetch < full ? o->gather_bytes + fetch : full;
    case GW_ARENA_ARRAY:
        return shard / 4;
    case GW_ARENA_STAGING:
        return GW_STAGING_BYTES;
    case GW_ARENA_SHARED_PARAMS:
        return mapped ? full : 0;
    default:
        return 0;
    }
}

static void check_plain_bucket(const struct job *job, const struct wire_seal *o, uint32_t b,
                               uint32_t rank)
{
    const struct gw_layout_bucket *bucket = &layout_buckets(job->layout)[b];
    uint32_t world = layout_page(job->layout)->world;
    bool local = o->accumulate == LOCAL, many = o->micro_steps > 1;
    bool in_place = o->stage <= 1 && (local || !many);
    uint64_t slice = bucket->padded_numel / world, flat = bucket->offset * 4;
    uint64_t span = o->stage ? flat / world : flat, own = flat + (o->stage ? rank * slice * 4 : 0);

    assert_int_equal(place_slice_numel(job->place, b), slice);
    assert_int_equal(place_span_numel(job->place, b), o->stage ? slice : bucket->padded_numel);
    assert_int_equal(place_span_offset(job->place, b), span / 4);
    assert_int_equal(place_in_place(job->place, b), in_place);
    assert_int_equal(place_sums(job->place, b), many && (local || o->stage == 0));
    if (place_arena_bytes(job->place, GW_ARENA_GRADS))
        check_ref(place_grads(job->place, b), GW_ARENA_GRADS, FP32, flat);
    else
        check_none(place_grads(job->place, b));
    if (place_arena_bytes(job->place, GW_ARENA_ACC))
        check_ref(place_acc(job->place, b), GW_ARENA_ACC, FP32, flat);
    else
        check_none(place_acc(job->place, b));
    if (o->stage == 0)
        check_ref(place_reduced(job->place, b, rank), in_place ? GW_ARENA_GRADS : GW_ARENA_ACC,
                  FP32, flat);
    else
        check_ref(place_reduced(job->place, b, rank),
                  in_place ? GW_ARENA_GRADS : GW_ARENA_SHARD_GRADS, FP32, in_place ? own : span);
    if (o->stage < 3)
        check_ref(place_params(job->place, b), GW_ARENA_PARAMS, FP32, flat);
    if (o->stage < 3)
        check_ref(place_shard(job->place, b, rank), GW_ARENA_PARAMS, FP32, own);
    else if (o->gather == GW_GATHER_MAPPED)
        check_ref(place_shard(job->place, b, rank), GW_ARENA_SHARED_PARAMS, FP32, own);
    else
        check_ref(place_shard(job->place, b, rank), GW_ARENA_PARAMS, FP32, span);
    check_ref(place_master(job->place, b, rank), place_shard(job->place, b, rank).kind, FP32,
              place_shard(job->place, b, rank).offset_bytes);
    if (o->stage == 3)
        assert_int_equal(place_gathered(job->place, b),
                         flat - layout_fetch_units(job->layout)[bucket->fetch_unit].offset * 4);
}

static void check_plain(const struct wire_seal *o, uint32_t world)
{
    struct layout_options options = {
        .stage = o->stage, .world = world, .bucket_bytes = 80, .align_bytes = 8};
    struct job job;
    uint32_t bad;

    assert_int_equal(layout_new(&options, plain, COUNT(plain), &job.layout, &bad), 0);
    assert_int_equal(place_new(layout_page(job.layout), o, 1, &job.place), 0);
    assert_int_equal(place_local(job.place), o->accumulate == LOCAL);
    assert_int_equal(place_ring(job.place), o->stage >= 2 && o->accumulate == SHARD);
    assert_int_equal(place_mapped(job.place), o->gather == GW_GATHER_MAPPED);
    for (unsigned k = 0; k < GW_ARENA_KINDS; k++)
        assert_int_equal(place_arena_bytes(job.place, (enum gw_arena_kind)k),
                         plain_bytes(job.layout, o, (enum gw_arena_kind)k));
    assert_int_equal(place_shard_numel(job.place), place_arena_bytes(job.place, GW_ARENA_ARRAY));
    for (uint32_t b = 0; b < layout_page(job.layout)->buckets; b++) {
        for (uint32_t rank = 0; rank < world; rank++)
            check_plain_bucket(&job, o, b, rank);
    }
    for (uint32_t f = 0; o->stage == 3 && f < layout_page(job.layout)->fetch_units; f++)
        assert_int_equal(place_fetch_bytes(job.place, f),
                         layout_fetch_units(job.layout)[f].padded_numel * 4);
    place_free(job.place);
    layout_free(job.layout);
}

static void fp32_of_one_group_lies_as_in_the_flat_order(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4 * 2 * 2 * 2 * 3; i++) {
        struct wire_seal o = {.stage = i % 4,
                              .accumulate = i / 4 % 2 ? LOCAL : SHARD,
                              .micro_steps = 1 + i / 8 % 2,
                              .gather = i % 4 == 3 && i / 16 % 2 ? GW_GATHER_MAPPED : 0,
                              .ring_slots = 2,
                              .gather_bytes = i / 32 * 100};

        for (uint32_t world = 1; world < 5; world++)
            check_plain(&o, world);
    }
}

/* ---- dtypes and groups ----------------------------------------------------------------------- */

/*
 * Four ranks, group 1 of ranks 2 and 0; align 4 bytes; buckets:
 *   0  fp32            8 of 8 elements, group 0
 *   1  bf16, bf16     15 of 16
 *   2  fp32            3 of 4, group 1
 *   3  bf16, fp32      2 of 8
 * Stage 3: three fetch units: u with 0 and 1, v with 2, w with 3.
 */
static const struct layout_param mixed[] = {
    {.name = "a", .unit = "u", .numel = 8},
    {.name = "b", .unit = "u", .numel = 15, .dtype = BF16, .grad_dtype = BF16},
    {.name = "d", .unit = "v", .numel = 3, .group = 1},
    {.name = "g", .unit = "w", .numel = 2, .dtype = BF16},
};

#define BOTH 3u /* the ranks of group 1; others have 1 */

static struct job open_mixed(struct wire_seal o, uint64_t groups, uint32_t shard_ranks)
{
    static const uint32_t ranks[] = {2, 0};
    static const struct layout_group group = {ranks, 2, 0};
    struct layout_options options = {.stage = o.stage,
                                     .world = 4,
                                     .bucket_bytes = o.stage == 3 ? 64 : 40,
                                     .align_bytes = 4,
                                     .accum_as_grads = o.accum_as_grads,
                                     .persist_bytes = o.persist_bytes,
                                     .shard_ranks = shard_ranks,
                                     .groups = &group,
                                     .group_count = 1};
    struct job job;
    uint32_t bad;

    if (o.ring_slots == 0)
        o.ring_slots = 3;
    if (o.micro_steps == 0)
        o.micro_steps = 1;
    assert_int_equal(layout_new(&options, mixed, COUNT(mixed), &job.layout, &bad), 0);
    assert_int_equal(layout_page(job.layout)->buckets, 4);
    assert_int_equal(place_new(layout_page(job.layout), &o, groups, &job.place), 0);
    return job;
}

static void close_job(struct job *job)
{
    job->place = place_free(job->place);
    job->layout = layout_free(job->layout);
    assert_null(job->place);
}

static void check_bytes(const struct job *job, enum gw_arena_kind kind, uint64_t bytes)
{
    assert_int_equal(place_arena_bytes(job->place, kind), bytes);
}

static void groups_of_a_rank(void **state)
{
    struct job job = open_mixed((struct wire_seal){.stage = 1, .accumulate = LOCAL}, BOTH, 0);

    (void)state;
    assert_int_equal(place_groups_of(layout_page(job.layout), 0), BOTH);
    assert_int_equal(place_groups_of(layout_page(job.layout), 1), 1);
    assert_int_equal(place_groups_of(layout_page(job.layout), 2), BOTH);
    assert_int_equal(place_groups_of(layout_page(job.layout), 3), 1);
    close_job(&job);
}

/* Gradients 32 + 32 + 16 + 32 bytes, parameters 32 + 32 + 16 + 16. */
static void stage_0_of_mixed_dtypes(void **state)
{
    struct job job = open_mixed((struct wire_seal){.stage = 0, .accumulate = LOCAL}, BOTH, 0);

    (void)state;
    check_bytes(&job, GW_ARENA_PARAMS, 96);
    check_bytes(&job, GW_ARENA_GRADS, 112);
    check_bytes(&job, GW_ARENA_ACC, 64); /* of b alone: bf16 gradients, fp32 sums: 16 * 4 */
    check_bytes(&job, GW_ARENA_SHARD_GRADS, 0);
    check_bytes(&job, GW_ARENA_MASTER, 64 + 32);
    check_bytes(&job, GW_ARENA_ARRAY, 8 + 16 + 4 + 8);
    check_ref(place_grads(job.place, 1), GW_ARENA_GRADS, BF16, 32);
    check_ref(place_grads(job.place, 2), GW_ARENA_GRADS, FP32, 64);
    check_ref(place_grads(job.place, 3), GW_ARENA_GRADS, FP32, 80);
    check_none(place_acc(job.place, 0));
    check_ref(place_acc(job.place, 1), GW_ARENA_ACC, FP32, 0);
    check_ref(place_reduced(job.place, 0, 3), GW_ARENA_GRADS, FP32, 0);
    check_ref(place_reduced(job.place, 1, 3), GW_ARENA_ACC, FP32, 0);
    check_ref(place_reduced(job.place, 3, 3), GW_ARENA_GRADS, FP32, 80);
    assert_false(place_sums(job.place, 1));
    assert_false(place_in_place(job.place, 1));
    assert_true(place_in_place(job.place, 3));
    check_ref(place_params(job.place, 3), GW_ARENA_PARAMS, BF16, 80);
    check_ref(place_shard(job.place, 3, 2), GW_ARENA_PARAMS, BF16, 80);
    check_ref(place_master(job.place, 0, 2), GW_ARENA_PARAMS, FP32, 0);
    check_ref(place_master(job.place, 1, 2), GW_ARENA_MASTER, FP32, 0);
    check_ref(place_master(job.place, 3, 2), GW_ARENA_MASTER, FP32, 64);
    close_job(&job);
}

/* Sums over micro-steps of all buckets: 32 + 64 + 16 + 32; in place where dtypes agree. */
static void stage_0_over_micro_steps(void **state)
{
    struct wire_seal o = {.stage = 0, .accumulate = LOCAL, .micro_steps = 2};
    struct job job = open_mixed(o, BOTH, 0);

    (void)state;
    check_bytes(&job, GW_ARENA_ACC, 144);
    check_ref(place_acc(job.place, 2), GW_ARENA_ACC, FP32, 96);
    check_ref(place_reduced(job.place, 2, 0), GW_ARENA_GRADS, FP32, 64);
    check_ref(place_reduced(job.place, 1, 0), GW_ARENA_ACC, FP32, 32);
    assert_true(place_sums(job.place, 1));
    close_job(&job);
    o.accumulate = SHARD;
    job = open_mixed(o, BOTH, 0);
    check_bytes(&job, GW_ARENA_ACC, 144);
    check_ref(place_reduced(job.place, 2, 0), GW_ARENA_ACC, FP32, 96);
    close_job(&job);
    o.accum_as_grads = 1;
    job = open_mixed(o, BOTH, 0);
    check_bytes(&job, GW_ARENA_ACC, 112);
    check_ref(place_reduced(job.place, 1, 0), GW_ARENA_ACC, BF16, 32);
    close_job(&job);
}

/* Slices of a quarter: 8, 4 (of 16), of group 1 the half: 2, and 2 elements. */
static void stage_1_of_mixed_dtypes(void **state)
{
    struct wire_seal o = {.stage = 1, .accumulate = LOCAL};
    struct job job = open_mixed(o, BOTH, 0);

    (void)state;
    check_bytes(&job, GW_ARENA_PARAMS, 96);
    check_bytes(&job, GW_ARENA_GRADS, 112);
    check_bytes(&job, GW_ARENA_ACC, 0);
    check_bytes(&job, GW_ARENA_SHARD_GRADS, 16); /* 4 of b, in fp32 */
    check_bytes(&job, GW_ARENA_MASTER, 16 + 8);
    check_bytes(&job, GW_ARENA_ARRAY, 2 + 4 + 2 + 2);
    assert_int_equal(place_span_offset(job.place, 3), 8);
    assert_int_equal(place_slice_numel(job.place, 2), 2);
    check_ref(place_reduced(job.place, 0, 3), GW_ARENA_GRADS, FP32, 3 * 8);
    check_ref(place_reduced(job.place, 1, 3), GW_ARENA_SHARD_GRADS, FP32, 0);
    check_ref(place_reduced(job.place, 2, 1), GW_ARENA_GRADS, FP32, 64 + 8);
    check_ref(place_shard(job.place, 1, 3), GW_ARENA_PARAMS, BF16, 32 + 3 * 8);
    check_ref(place_shard(job.place, 3, 1), GW_ARENA_PARAMS, BF16, 80 + 4);
    check_ref(place_master(job.place, 3, 1), GW_ARENA_MASTER, FP32, 16);
    check_ref(place_master(job.place, 2, 1), GW_ARENA_PARAMS, FP32, 64 + 8);
    close_job(&job);
    o.accum_as_grads = 1; /* then b too is reduced in place */
    job = open_mixed(o, BOTH, 0);
    check_bytes(&job, GW_ARENA_SHARD_GRADS, 0);
    check_ref(place_reduced(job.place, 1, 3), GW_ARENA_GRADS, BF16, 32 + 3 * 8);
    close_job(&job);
}

static void stage_1_over_micro_steps(void **state)
{
    struct wire_seal o = {.stage = 1, .accumulate = SHARD, .micro_steps = 3};
    struct job job = open_mixed(o, BOTH, 0);

    (void)state;
    check_bytes(&job, GW_ARENA_ACC, 0);
    check_bytes(&job, GW_ARENA_SHARD_GRADS, 8 + 16 + 8 + 8);
    check_ref(place_reduced(job.place, 2, 1), GW_ARENA_SHARD_GRADS, FP32, 24);
    assert_false(place_sums(job.place, 2));
    close_job(&job);
    o.accumulate = LOCAL;
    job = open_mixed(o, BOTH, 0);
    check_bytes(&job, GW_ARENA_ACC, 144);
    check_bytes(&job, GW_ARENA_SHARD_GRADS, 16);
    close_job(&job);
}

static void stage_2_of_mixed_dtypes(void **state)
{
    struct wire_seal o = {.stage = 2, .accumulate = SHARD, .micro_steps = 2};
    struct job job = open_mixed(o, BOTH, 0);
    struct place_ref slot;

    (void)state;
    check_bytes(&job, GW_ARENA_GRADS, 0);
    check_bytes(&job, GW_ARENA_RING, 3 * 32); /* the largest bucket: 8 fp32, 16 bf16 */
    check_bytes(&job, GW_ARENA_OVERFLOW, 32);
    check_bytes(&job, GW_ARENA_SHARD_GRADS, 40);
    check_none(place_grads(job.place, 0));
    check_ref(place_slot(job.place, 2), GW_ARENA_RING, FP32, 64);
    slot = place_slot(job.place, 4);
    assert_int_equal(slot.kind, GW_ARENA_OVERFLOW);
    assert_int_equal(slot.index, 1);
    assert_int_equal(slot.offset_bytes, 0);
    close_job(&job);
    o.accumulate = LOCAL;
    job = open_mixed(o, BOTH, 0);
    check_bytes(&job, GW_ARENA_GRADS, 112);
    check_bytes(&job, GW_ARENA_ACC, 144);
    check_bytes(&job, GW_ARENA_RING, 0);
    check_ref(place_reduced(job.place, 1, 0), GW_ARENA_SHARD_GRADS, FP32, 8);
    close_job(&job);
}

/* Fetched: u 32 + 32 bytes, v 16, w 16. */
static void stage_3_of_mixed_dtypes(void **state)
{
    struct wire_seal o = {.stage = 3, .accumulate = SHARD, .gather_bytes = 10};
    struct job job = open_mixed(o, BOTH, 0);

    (void)state;
    check_bytes(&job, GW_ARENA_PARAMS, 8 + 8 + 8 + 4);
    check_bytes(&job, GW_ARENA_MASTER, 16 + 8);
    check_bytes(&job, GW_ARENA_POOL, 64 + 10);
    assert_int_equal(place_pool_bytes(job.place), 74);
    assert_int_equal(place_fetch_bytes(job.place, 0), 64);
    assert_int_equal(place_fetch_bytes(job.place, 1), 16);
    assert_int_equal(place_fetch_bytes(job.place, 2), 16);
    assert_int_equal(place_fetch_bytes_max(job.place), 64);
    assert_int_equal(place_gathered(job.place, 0), 0);
    assert_int_equal(place_gathered(job.place, 1), 32);
    assert_int_equal(place_gathered(job.place, 2), 0);
    check_none(place_params(job.place, 1));
    check_ref(place_shard(job.place, 1, 3), GW_ARENA_PARAMS, BF16, 8);
    check_ref(place_shard(job.place, 3, 3), GW_ARENA_PARAMS, BF16, 24);
    check_ref(place_master(job.place, 0, 3), GW_ARENA_PARAMS, FP32, 0);
    check_ref(place_master(job.place, 3, 3), GW_ARENA_MASTER, FP32, 16);
    close_job(&job);
    o.gather_bytes = UINT64_MAX; /* no more than all */
    job = open_mixed(o, BOTH, 0);
    check_bytes(&job, GW_ARENA_POOL, 96);
    close_job(&job);
}

static void stage_3_mapped(void **state)
{
    struct wire_seal o = {.stage = 3, .accumulate = SHARD, .gather = GW_GATHER_MAPPED};
    struct job job = open_mixed(o, 1, 0);

    (void)state;
    check_bytes(&job, GW_ARENA_PARAMS, 0);
    check_bytes(&job, GW_ARENA_POOL, 0);
    check_bytes(&job, GW_ARENA_SHARED_PARAMS, 96); /* the job's, group 1's bucket too */
    check_bytes(&job, GW_ARENA_MASTER, 24);
    check_ref(place_params(job.place, 3), GW_ARENA_SHARED_PARAMS, BF16, 80);
    check_none(place_params(job.place, 2));
    check_ref(place_shard(job.place, 1, 2), GW_ARENA_SHARED_PARAMS, BF16, 32 + 16);
    check_ref(place_master(job.place, 1, 2), GW_ARENA_MASTER, FP32, 0);
    assert_int_equal(place_pool_bytes(job.place), 64); /* planned with: a budget of 0, u */
    close_job(&job);
}

/* v has 12 bytes and w 4: they persist. Their buckets come first, in the order of the groups. */
static void persistent_parameters_lie_before_the_pool(void **state)
{
    struct wire_seal o = {
        .stage = 3, .accumulate = SHARD, .gather_bytes = 1, .persist_bytes = 12};
    struct job job = open_mixed(o, BOTH, 0);

    (void)state;
    assert_int_equal(place_fetch_bytes(job.place, 0), 32);
    assert_int_equal(place_fetch_bytes(job.place, 1), 64);
    assert_int_equal(place_fetch_bytes_max(job.place), 64);
    assert_int_equal(place_pool_bytes(job.place), 64); /* all but the persistent ones */
    check_bytes(&job, GW_ARENA_POOL, 32 + 64);
    assert_int_equal(place_gathered(job.place, 1), 16);
    assert_int_equal(place_gathered(job.place, 3), 32);
    close_job(&job);
    job = open_mixed(o, 1, 0); /* a rank outside group 1 */
    assert_int_equal(place_fetch_bytes(job.place, 0), 16);
    check_bytes(&job, GW_ARENA_POOL, 16 + 64);
    assert_int_equal(place_gathered(job.place, 1), 0);
    close_job(&job);
}

/* Blocks of two: each rank keeps half of each bucket of the first group, in the parameters' dtype;
 * nothing of persistent parameters. */
static void secondary_shards_are_slices_of_a_block(void **state)
{
    struct wire_seal o = {
        .stage = 3, .accumulate = SHARD, .gather_bytes = 1, .secondary_ranks = 2};
    struct job job = open_mixed(o, BOTH, 0);

    (void)state;
    check_ref(place_secondary(job.place, 0), GW_ARENA_SECONDARY, FP32, 0);
    check_ref(place_secondary(job.place, 1), GW_ARENA_SECONDARY, BF16, 16);
    check_none(place_secondary(job.place, 2));
    check_ref(place_secondary(job.place, 3), GW_ARENA_SECONDARY, BF16, 32);
    check_bytes(&job, GW_ARENA_SECONDARY, 40);
    close_job(&job);
    o.persist_bytes = 12;
    job = open_mixed(o, 1, 0);
    check_none(place_secondary(job.place, 0));
    check_none(place_secondary(job.place, 1));
    check_ref(place_secondary(job.place, 3), GW_ARENA_SECONDARY, BF16, 16);
    check_bytes(&job, GW_ARENA_SECONDARY, 32);
    close_job(&job);
    o = (struct wire_seal){.stage = 3, .gather = GW_GATHER_MAPPED, .secondary_ranks = 2};
    job = open_mixed(o, 1, 0);
    check_bytes(&job, GW_ARENA_SECONDARY, 0);
    close_job(&job);
}

/* A rank outside a group has nothing of its buckets; what follows moves up. */
static void other_groups_buckets_take_no_room(void **state)
{
    struct wire_seal o = {.stage = 1, .accumulate = LOCAL, .micro_steps = 2};
    struct job job = open_mixed(o, 1, 0);

    (void)state;
    check_bytes(&job, GW_ARENA_PARAMS, 80);
    check_bytes(&job, GW_ARENA_GRADS, 96);
    check_bytes(&job, GW_ARENA_ACC, 128);
    check_bytes(&job, GW_ARENA_ARRAY, 8);
    assert_int_equal(place_span_numel(job.place, 2), 0);
    assert_int_equal(place_slice_numel(job.place, 2), 2);
    assert_int_equal(place_span_offset(job.place, 3), 6);
    check_none(place_grads(job.place, 2));
    check_none(place_acc(job.place, 2));
    check_none(place_reduced(job.place, 2, 0));
    check_none(place_params(job.place, 2));
    check_none(place_shard(job.place, 2, 0));
    check_none(place_master(job.place, 2, 0));
    assert_false(place_sums(job.place, 2));
    assert_false(place_in_place(job.place, 2));
    check_ref(place_grads(job.place, 3), GW_ARENA_GRADS, FP32, 64);
    close_job(&job);
    o = (struct wire_seal){.stage = 3, .accumulate = SHARD, .gather_bytes = 1};
    job = open_mixed(o, 1, 0);
    assert_int_equal(place_fetch_bytes(job.place, 1), 0);
    check_bytes(&job, GW_ARENA_POOL, 65);
    close_job(&job);
    job = open_mixed(o, 2, 0); /* of group 1 alone */
    check_bytes(&job, GW_ARENA_MASTER, 0);
    check_bytes(&job, GW_ARENA_RING, 3 * 32); /* slots are alike on all ranks */
    close_job(&job);
    job = open_mixed(o, 0, 0);
    check_bytes(&job, GW_ARENA_RING, 0);
    check_bytes(&job, GW_ARENA_OVERFLOW, 0);
    check_bytes(&job, GW_ARENA_POOL, 0);
    close_job(&job);
}

/* Two runs of two: slices are halves, the padding stays that of four. */
static void hybrid_slices_are_those_of_a_run(void **state)
{
    struct wire_seal o = {.stage = 1, .accumulate = LOCAL};
    struct job job = open_mixed(o, BOTH, 2);

    (void)state;
    assert_int_equal(place_slice_numel(job.place, 0), 4);
    assert_int_equal(place_slice_numel(job.place, 1), 8);
    assert_int_equal(place_slice_numel(job.place, 2), 2); /* of group 1: not hybrid */
    check_bytes(&job, GW_ARENA_ARRAY, 4 + 8 + 2 + 4);
    check_bytes(&job, GW_ARENA_MASTER, 32 + 16);
    check_bytes(&job, GW_ARENA_SHARD_GRADS, 32);
    check_ref(place_reduced(job.place, 0, 1), GW_ARENA_GRADS, FP32, 16);
    check_ref(place_shard(job.place, 1, 1), GW_ARENA_PARAMS, BF16, 32 + 16);
    close_job(&job);
    o.stage = 3;
    job = open_mixed(o, BOTH, 2);
    check_bytes(&job, GW_ARENA_PARAMS, 16 + 16 + 8 + 8);
    check_ref(place_shard(job.place, 3, 1), GW_ARENA_PARAMS, BF16, 40);
    close_job(&job);
    o.stage = 0; /* all of it on every rank, whatever is said */
    job = open_mixed(o, BOTH, 2);
    assert_int_equal(place_slice_numel(job.place, 0), 2);
    assert_int_equal(place_span_numel(job.place, 0), 8);
    close_job(&job);
}

/* fp16 is as long as bf16, and told apart. */
static void fp16_is_not_bf16(void **state)
{
    static const struct layout_param params[] = {
        {.name = "a", .unit = "", .numel = 4, .dtype = FP16, .grad_dtype = FP16},
        {.name = "b", .unit = "", .numel = 4, .dtype = BF16, .grad_dtype = FP16}};
    struct layout_options options = {
        .stage = 2, .world = 1, .bucket_bytes = 100, .align_bytes = 64, .accum_as_grads = 1};
    struct wire_seal o = {.stage = 2, .accumulate = LOCAL, .micro_steps = 1};
    struct job job;
    uint32_t bad;

    (void)state;
    assert_int_equal(layout_new(&options, params, 2, &job.layout, &bad), 0);
    assert_int_equal(place_new(layout_page(job.layout), &o, 1, &job.place), 0);
    /* Padded to 32 elements: 64 bytes of the shorter dtype. */
    check_ref(place_params(job.place, 1), GW_ARENA_PARAMS, BF16, 64);
    check_ref(place_grads(job.place, 1), GW_ARENA_GRADS, FP16, 64);
    check_ref(place_reduced(job.place, 1, 0), GW_ARENA_SHARD_GRADS, FP16, 64);
    check_ref(place_master(job.place, 1, 0), GW_ARENA_MASTER, FP32, 128);
    close_job(&job);
}

/* A ring that nobody can have is told, not wrapped around. */
static void a_ring_too_large_to_count(void **state)
{
    static const struct layout_param params[] = {{.name = "a", .unit = "", .numel = 1ull << 60}};
    struct layout_options options = {
        .stage = 2, .world = 1, .bucket_bytes = 1ull << 63, .align_bytes = 4};
    struct wire_seal o = {
        .stage = 2, .accumulate = SHARD, .micro_steps = 1, .ring_slots = GW_RING_SLOTS_MAX};
    struct job job;
    uint32_t bad;

    (void)state;
    assert_int_equal(layout_new(&options, params, 1, &job.layout, &bad), 0);
    assert_int_equal(place_new(layout_page(job.layout), &o, 1, &job.place), 0);
    check_bytes(&job, GW_ARENA_OVERFLOW, 1ull << 62);
    check_bytes(&job, GW_ARENA_RING, UINT64_MAX);
    close_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_of_one_group_lies_as_in_the_flat_order),
        cmocka_unit_test(groups_of_a_rank),
        cmocka_unit_test(stage_0_of_mixed_dtypes),
        cmocka_unit_test(stage_0_over_micro_steps),
        cmocka_unit_test(stage_1_of_mixed_dtypes),
        cmocka_unit_test(stage_1_over_micro_steps),
        cmocka_unit_test(stage_2_of_mixed_dtypes),
        cmocka_unit_test(stage_3_of_mixed_dtypes),
        cmocka_unit_test(stage_3_mapped),
        cmocka_unit_test(persistent_parameters_lie_before_the_pool),
        cmocka_unit_test(secondary_shards_are_slices_of_a_block),
        cmocka_unit_test(other_groups_buckets_take_no_room),
        cmocka_unit_test(hybrid_slices_are_those_of_a_run),
        cmocka_unit_test(fp16_is_not_bf16),
        cmocka_unit_test(a_ring_too_large_to_count),
    };

    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
