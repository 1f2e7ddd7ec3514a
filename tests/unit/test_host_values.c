/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine does with values itself: parameters in and out in fp32, rounded into every copy
 * that is fetched; shard arrays with a dtype. A job of three ranks on the host device, without
 * connections.
 * ctest: label=unit timeout=60 link=gw_job
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/engine/job_internal.h"
#include "proto/place.h"

#define WORLD 3u
#define PARAMS 4u

static const uint64_t numels[PARAMS] = {300, 41, 260, 17};
static const uint8_t dtypes[PARAMS] = {GW_DTYPE_FP32, GW_DTYPE_BF16, GW_DTYPE_FP16, GW_DTYPE_BF16};
static const uint32_t pair[2] = {2, 1};

struct bench {
    struct device *device;
    struct job *job;
    struct gw_engine_page *engine[WORLD];
    struct gw_client_page *client[WORLD];
    struct wire_msg reply[WORLD];
    uint32_t replies[WORLD];
};

static void on_reply(void *user, uint32_t rank, uint64_t joiner, const struct wire_msg *msg,
                     const int *fds, unsigned fd_count)
{
    struct bench *bench = user;
    struct job_port port = {
        .engine = bench->engine[rank], .client = bench->client[rank], .identity = rank + 1};

    (void)fds;
    (void)fd_count;
    if (joiner)
        job_attach(bench->job, rank, &port);
    bench->reply[rank] = *msg;
    bench->replies[rank]++;
}

static void on_failed(void *user, uint32_t rank, int code, const char *text)
{
    (void)user;
    fail_msg("job failed by rank %u (%d): %s", rank, code, text);
}

static void on_wake(void *user)
{
    (void)user;
}

/* Its reply. */
static const struct wire_msg *ask(struct bench *bench, uint32_t rank, struct wire_msg *msg)
{
    uint32_t before = bench->replies[rank];

    msg->request = 7;
    assert_int_equal(job_request(bench->job, 1000, rank, msg), 0);
    if (job_unheard(bench->job))
        assert_int_equal(job_heard(bench->job, 1000), 0);
    assert_int_equal(bench->replies[rank], before + 1);
    return &bench->reply[rank];
}

static void assert_done(const struct wire_msg *reply, int code)
{
    assert_int_equal(reply->type, WIRE_DONE);
    if (reply->u.done.code != code)
        fail_msg("code %d, expected %d: %s", reply->u.done.code, code, reply->u.done.text);
}

static void register_params(struct bench *bench, uint32_t rank)
{
    static const char *const names[PARAMS] = {"a", "b", "c", "d"};
    struct wire_msg msg = {.type = WIRE_PARAM_GROUP};
    struct wire_param params[PARAMS];

    msg.u.param_group.count = 2;
    msg.u.param_group.ranks = pair;
    assert_done(ask(bench, rank, &msg), 0);
    for (uint32_t p = 0; p < PARAMS; p++)
        params[p] = (struct wire_param){.name = names[p],
                                        .unit = "",
                                        .numel = numels[p],
                                        .dtype = dtypes[p],
                                        .grad_dtype = dtypes[p],
                                        .group = p == 3};
    msg = (struct wire_msg){.type = WIRE_REGISTER};
    msg.u.reg.total = msg.u.reg.count = PARAMS;
    msg.u.reg.params = params;
    assert_done(ask(bench, rank, &msg), 0);
}

static void start(struct bench *bench, uint32_t stage, uint32_t gather)
{
    struct job_config config = {
        .device_ops = &device_host,
        .fabric_ops = &fabric_local,
        .world = WORLD,
        .callbacks = {.reply = on_reply, .failed = on_failed, .user = bench}};

    memset(bench, 0, sizeof(*bench));
    assert_int_equal(device_host.device_new(&(struct device_config){.wake = on_wake, .user = bench},
                                            &bench->device),
                     0);
    config.device = bench->device;
    assert_int_equal(job_new(&config, &bench->job), 0);
    for (uint32_t r = 0; r < WORLD; r++) {
        bench->engine[r] = aligned_alloc(64, GW_ENGINE_PAGE_BYTES);
        bench->client[r] = aligned_alloc(64, GW_PAGE_BYTES);
        memset(bench->engine[r], 0, GW_ENGINE_PAGE_BYTES);
        memset(bench->client[r], 0, GW_PAGE_BYTES);
        assert_int_equal(job_join(bench->job, 1000, r, WORLD, 1, r + 1u), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++)
        register_params(bench, r);
    for (uint32_t r = 0; r < WORLD; r++) {
        struct wire_msg msg = {.type = WIRE_SEAL, .request = 9};
        msg.u.seal = (struct wire_seal){.stage = stage, .gather = gather, .bucket_bytes = 400};
        assert_int_equal(job_request(bench->job, 1000, r, &msg), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++)
        assert_int_equal(bench->reply[r].type, WIRE_SEALED);
}

static void stop(struct bench *bench)
{
    bench->job = job_free(bench->job);
    device_host.device_free(bench->device);
    for (uint32_t r = 0; r < WORLD; r++) {
        free(bench->engine[r]);
        free(bench->client[r]);
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

static float *staging(struct bench *bench, uint32_t rank)
{
    struct wire_msg msg = {.type = WIRE_ARENA_GET};

    msg.u.arena_get.kind = GW_ARENA_STAGING;
    assert_int_equal(ask(bench, rank, &msg)->type, WIRE_ARENA);
    return arenas_get(bench->job->arenas, GW_ARENA_STAGING, (int)rank, 0)->base;
}

static void move(struct bench *bench, uint32_t rank, bool write, uint32_t param, uint64_t offset,
                 uint64_t count)
{
    struct wire_msg msg = {.type = WIRE_PARAM_IO};

    msg.u.param_io.write = write;
    msg.u.param_io.param = param;
    msg.u.param_io.offset = offset;
    msg.u.param_io.count = count;
    assert_done(ask(bench, rank, &msg), 0);
}

/* More digits than a half has, and none below fp16's normal numbers. */
static float value_of(uint32_t param, uint64_t i)
{
    return (float)(param + 1) * 0.7f + (float)i * 0.01237f;
}

/* Significant bits of the dtype, ties to even. */
static float rounded(float value, uint8_t dtype)
{
    int bits = dtype == GW_DTYPE_FP32 ? 24 : dtype == GW_DTYPE_FP16 ? 11 : 8;
    double unit = ldexp(1, ilogbf(value) + 1 - bits);

    return (float)(rint((double)value / unit) * unit);
}

static float stored(const void *at, uint8_t dtype)
{
    uint16_t half;
    float value;

    memcpy(&value, at, dtype == GW_DTYPE_FP32 ? sizeof(value) : 0);
    memcpy(&half, at, sizeof(half));
    if (dtype == GW_DTYPE_BF16)
        memcpy(&value, &(uint32_t){(uint32_t)half << 16}, sizeof(value));
    if (dtype == GW_DTYPE_FP16)
        value = (float)ldexp((half & 0x3ff) | 0x400, (half >> 10) - 25);
    return value;
}

/* What the rank holds of a piece at `from`, elements of the bucket [begin, end) from there on. */
static void check_part(struct bench *bench, uint32_t rank, const struct gw_layout_piece *piece,
                       struct place_ref from, uint64_t begin, uint64_t end)
{
    int owner = from.kind == GW_ARENA_SHARED_PARAMS ? -1 : (int)rank;
    const struct device_memory *memory =
        arenas_get(bench->job->arenas, (enum gw_arena_kind)from.kind, owner, 0);
    uint32_t size = gw_dtype_bytes(from.dtype);

    assert_non_null(memory);
    assert_true(from.offset_bytes + (end - begin) * size <= memory->bytes);
    for (uint64_t i = 0; i < piece->numel; i++) {
        uint64_t at = piece->bucket_offset + i;
        float expected = rounded(value_of(piece->param, piece->param_offset + i), from.dtype), got;
        if (at < begin || at >= end)
            continue;
        got = stored((const char *)memory->base + from.offset_bytes + (at - begin) * size,
                     from.dtype);
        if (got != expected)
            fail_msg("rank %u, param %u element %llu: %a, expected %a", rank, piece->param,
                     (unsigned long long)(piece->param_offset + i), (double)got, (double)expected);
    }
}

static void check_rank(struct bench *bench, uint32_t rank, const struct place *place)
{
    const struct layout *layout = core_layout(bench->job->core);
    const struct gw_layout_page *page = layout_page(layout);
    uint32_t stage = page->stage;

    for (uint32_t i = 0; i < page->pieces; i++) {
        const struct gw_layout_piece *piece = &layout_pieces(layout)[i];
        const struct gw_layout_bucket *bucket = &layout_buckets(layout)[piece->bucket];
        uint32_t slice = layout_page_position(page, bucket->group, rank);
        uint64_t begin, numel, valid;
        struct place_ref master;
        if (slice == UINT32_MAX)
            continue;
        layout_slice(layout, piece->bucket, slice, &begin, &numel, &valid);
        master = place_master(place, piece->bucket, slice);
        assert_int_equal(master.dtype, GW_DTYPE_FP32);
        check_part(bench, rank, piece, master, begin, begin + numel);
        check_part(bench, rank, piece, place_shard(place, piece->bucket, slice), begin,
                   begin + numel);
        if (stage < 3 || place_mapped(place))
            check_part(bench, rank, piece, place_params(place, piece->bucket), 0,
                       bucket->padded_numel);
    }
}

static void values_reach_masters_and_all_copies(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 5; turn++) {
        uint32_t stage = turn < 3 ? turn : 3, gather = turn == 4;
        const struct gw_layout_page *page;
        struct bench bench;
        float *values;
        start(&bench, stage, gather);
        values = staging(&bench, 0);
        for (uint32_t p = 0; p < PARAMS; p++)
            for (uint64_t first = 0; first < numels[p]; first += 111) { /* in parts */
                uint64_t count = numels[p] - first < 111 ? numels[p] - first : 111;
                for (uint64_t i = 0; i < count; i++)
                    values[i] = value_of(p, first + i);
                move(&bench, 0, true, p, first, count);
            }
        page = layout_page(core_layout(bench.job->core));
        for (uint32_t r = 0; r < WORLD; r++) {
            struct place *place;
            assert_int_equal(
                place_new(page, core_options(bench.job->core), place_groups_of(page, r), &place),
                0);
            check_rank(&bench, r, place);
            place_free(place);
        }
        values = staging(&bench, 1);
        for (uint32_t p = 0; p < PARAMS; p++) { /* what was written, not what it was rounded to */
            move(&bench, 1, false, p, 5, numels[p] - 5);
            for (uint64_t i = 5; i < numels[p]; i++)
                assert_true(values[i - 5] == value_of(p, i));
        }
        stop(&bench);
    }
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static const struct wire_msg *array_get(struct bench *bench, uint32_t rank, const char *name,
                                        uint32_t dtype)
{
    struct wire_msg msg = {.type = WIRE_ARRAY_GET};

    snprintf(msg.u.array_get.name, sizeof(msg.u.array_get.name), "%s", name);
    msg.u.array_get.dtype = dtype;
    return ask(bench, rank, &msg);
}

static void arrays_keep_their_dtype(void **state)
{
    const struct wire_msg *reply;
    struct bench bench;
    uint64_t numel;

    (void)state;
    start(&bench, 2, GW_GATHER_PRIVATE);
    reply = array_get(&bench, 1, "exp_avg", GW_DTYPE_FP32);
    assert_int_equal(reply->type, WIRE_ARRAY_MADE);
    numel = reply->u.array_made.numel;
    assert_int_equal(reply->u.array_made.index, 0);
    assert_int_equal(arenas_get(bench.job->arenas, GW_ARENA_ARRAY, 1, 0)->bytes, numel * 4);
    reply = array_get(&bench, 1, "half", GW_DTYPE_BF16);
    assert_int_equal(reply->u.array_made.index, 1);
    assert_int_equal(reply->u.array_made.numel, numel);
    assert_int_equal(arenas_get(bench.job->arenas, GW_ARENA_ARRAY, 1, 1)->bytes, numel * 2);
    reply = array_get(&bench, 1, "half", GW_DTYPE_BF16);
    assert_int_equal(reply->u.array_made.index, 1);
    /* As large, and still not the same. */
    reply = array_get(&bench, 1, "half", GW_DTYPE_FP16);
    assert_done(reply, GW_E_MISMATCH);
    assert_non_null(strstr(reply->u.done.text, "rank 1 has shard array 'half'"));
    /* Rank 0 is not in the pair, and has less. */
    reply = array_get(&bench, 0, "exp_avg", GW_DTYPE_FP32);
    assert_true(reply->u.array_made.numel < numel);
    stop(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_reach_masters_and_all_copies),
        cmocka_unit_test(arrays_keep_their_dtype),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
