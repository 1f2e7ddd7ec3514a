/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out in the parts that allocate: each allocation of one call, or of one step of a
 * job, fails in turn. The part says GW_E_NOMEM, or does what was asked; it never crashes or leaks.
 * ctest: timeout=120 link=gw_conf_json
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/conf/deepspeed.h"
#include "daemon/conf/model.h"
#include "daemon/core/effects.h"
#include "daemon/core/zero.h"
#include "tests/unit/wire_samples.h"

/* Sanitizers bring their own allocator; there the run would test theirs. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAILING 0
#else
#define FAILING 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *memory, size_t bytes);
#endif

static uint32_t allocations, fail_at; /* 0: none */

#if FAILING
static bool fails(void)
{
    return fail_at && ++allocations == fail_at;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(memory, bytes);
}
#endif

/* Calls what() until nothing fails in it any more. */
static void exhaust(int (*what)(void), uint32_t least)
{
    uint32_t turns = 0, told = 0;
    int r = GW_E_NOMEM;

    if (!FAILING) {
        print_message("SKIP: this build's sanitizer owns the allocator\n");
        skip();
    }
    do {
        turns++;
        allocations = 0;
        fail_at = turns;
        r = what();
        fail_at = 0;
        told += r == GW_E_NOMEM;
        assert_true(r == 0 || r == GW_E_NOMEM);
        assert_true(turns < 5000);
    } while (allocations >= turns);
    assert_int_equal(r, 0);
    assert_true(told >= least);
}

/* ---- readers --------------------------------------------------------------------------------- */

static int read_deepspeed(void)
{
    static const char text[] =
        "{\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 5e8, \"overlap_comm\":true,"
        " \"stage3_prefetch_bucket_size\": 7}, \"fp16\": {\"enabled\": true}, \"unknown\": 1,"
        " \"train_batch_size\": 8, \"gradient_accumulation_steps\": 2}";
    struct deepspeed_given given = {.world = 4, .numel = 1000};
    char error[DEEPSPEED_ERROR_BYTES] = "";
    struct deepspeed *config = NULL;
    int r;

    r = deepspeed_parse(text, strlen(text), "f", &given, &config, error, sizeof(error));
    deepspeed_free(config);
    /* Its reader of JSON tells lack of memory like any other thing that is wrong. */
    return r == GW_E_INVALID ? GW_E_NOMEM : r;
}

static int read_list(void)
{
    static const char text[] = "a\t2x3\tu\nb\t4\tv\nc\t5\tv\n";
    char error[MODEL_ERROR_BYTES] = "";
    struct model *model = NULL;
    int r;

    r = model_parse_text(text, strlen(text), "f", &model, error, sizeof(error));
    model_free(model);
    return r;
}

static int read_safetensors(void)
{
    static const char header[] =
        "{\"a.0.w\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}, "
        "\"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [24, 28]}}";
    char error[MODEL_ERROR_BYTES] = "";
    uint8_t data[512] = {sizeof(header) - 1};
    struct model *model = NULL;
    int r;

    memcpy(data + 8, header, sizeof(header) - 1);
    r = model_parse_safetensors(data, 8 + sizeof(header) - 1, "f", &model, error, sizeof(error));
    model_free(model);
    return r == GW_E_INVALID ? GW_E_NOMEM : r;
}

static void test_readers(void **state)
{
    (void)state;
    exhaust(read_deepspeed, 10);
    exhaust(read_list, 2);
    exhaust(read_safetensors, 3);
}

static struct wire_msg sample;

static int pass_message(void)
{
    static uint8_t packet[GW_FRAME_MAX];
    struct wire_msg *msg = NULL;
    uint32_t request;
    size_t bytes;
    int r;

    r = wire_encode(&sample, packet, sizeof(packet), &bytes);
    if (r == 0)
        r = wire_decode(packet, bytes, &msg, &request);
    if (r == 0)
        wire_free(msg);
    return r;
}

static void test_messages(void **state)
{
    (void)state;
    samples_make();
    for (size_t i = 0; i < samples_used; i++) {
        sample = samples_all[i];
        exhaust(pass_message, 1);
    }
}

/* ---- a job's step ---------------------------------------------------------------------------- */

static struct wire_seal options;
static struct zero *zero;
static struct effects *effects;
static int code; /* of the first message that failed */

static void drain(uint64_t *ret_last_op)
{
    static struct core_effect effect;

    while (effects_take(effects, &effect)) {
        if (effect.kind == CORE_EFF_LAUNCH)
            *ret_last_op = effect.op.id;
        if (effect.kind == CORE_EFF_REPLY && effect.reply.type == WIRE_DONE &&
            effect.reply.u.done.code == GW_E_NOMEM)
            code = GW_E_NOMEM;
    }
}

static void send(uint32_t rank, struct wire_msg *msg, uint16_t type)
{
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = rank, .msg = msg};
    struct core_fault fault = {0};
    uint64_t last = 0;
    int r;

    if (code < 0)
        return;
    msg->type = type;
    r = zero_event(zero, 1, &event, &fault);
    if (r == 0 && effects_failed(effects))
        r = GW_E_NOMEM;
    if (r < 0)
        code = r;
    drain(&last);
    for (uint64_t op = 1; op <= last && code == 0; op++)
        zero_op_done(zero, 1, op, 1, 1);
    drain(&last);
}

static void send_bare(uint32_t rank, uint16_t type)
{
    struct wire_msg msg = {.u.after = {.tokens = 1, .timeline = {1}, .value = {9}}};

    if (type == WIRE_UPDATE_BEGIN)
        memset(&msg, 0, sizeof(msg));
    send(rank, &msg, type);
}

static void send_ready(uint32_t rank, uint32_t param, uint32_t flags)
{
    struct wire_ready_entry entry = {.param = param, .flags = flags, .slot = param, .tokens = 1,
                                     .timeline = {2}, .value = {5}};
    struct wire_msg msg = {.u.ready = {1, &entry}};

    send(rank, &msg, WIRE_READY);
}

static void send_unit(uint32_t rank, uint16_t type, uint32_t unit)
{
    struct wire_msg msg = {.u.unit = {.unit = unit, .after = {.tokens = 1, .timeline = {3},
                                                              .value = {4}}}};

    send(rank, &msg, type);
}

static void go_through_step(uint32_t step)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        send_unit(rank, WIRE_FETCH, 0);
        send_unit(rank, WIRE_RELEASE, 0);
        send_ready(rank, 1, options.micro_steps > 1 ? GW_GRAD_ACCUMULATE : 0);
    }
    for (uint32_t rank = 0; rank < 2 && options.micro_steps > 1; rank++)
        send_bare(rank, WIRE_MICRO_END);
    send_ready(0, 0, 0);
    send_bare(0, WIRE_STEP_END);
    send_bare(0, WIRE_UPDATE_BEGIN);
    if (step == 0)
        send_bare(1, WIRE_STEP_END);
    send_ready(0, 1, 0);
    if (step == 1)
        send_bare(1, WIRE_STEP_END);
    send_bare(1, WIRE_UPDATE_BEGIN);
    send_bare(0, WIRE_UPDATE_COMMIT);
    send_bare(1, WIRE_UPDATE_COMMIT);
}

static int live(void)
{
    static const struct layout_param params[] = {
        {.name = "a", .unit = "", .numel = 4, .dtype = GW_DTYPE_BF16, .group = 1},
        {.name = "b", .unit = "", .numel = 4},
        {.name = "c", .unit = "", .numel = 4}};
    static const uint32_t turned[] = {1, 0};
    const struct layout_group group = {.ranks = turned, .count = 2};
    struct layout_options shape = {.stage = options.stage,
                                   .world = 2,
                                   .bucket_bytes = options.bucket_bytes,
                                   .align_bytes = options.shard_align_bytes,
                                   .persist_bytes = options.persist_bytes,
                                   .shard_ranks = options.shard_ranks,
                                   .groups = &group,
                                   .group_count = 1};
    struct layout *layout = NULL;
    uint32_t wrong;

    zero = NULL;
    effects = NULL;
    code = layout_new(&shape, params, 3, &layout, &wrong);
    if (code == 0)
        code = effects_new(&effects);
    if (code == 0)
        code = zero_new(layout, &options, 2, true, 0, effects, &zero);
    if (code == 0)
        go_through_step(0);
    zero_free(zero);
    effects_free(effects);
    layout_free(layout);
    return code;
}

static void test_a_step_of_each_stage(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        for (uint32_t mode = 0; mode < 4; mode++) {
            options = (struct wire_seal){.stage = stage,
                                         .accumulate = mode % 2 ? GW_ACCUMULATE_SHARD
                                                                : GW_ACCUMULATE_LOCAL,
                                         .ring_slots = 3,
                                         .micro_steps = 1 + mode / 2,
                                         .shard_align_bytes = 4,
                                         .bucket_bytes = 16,
                                         .shard_ranks = stage > 0 && mode == 3,
                                         .persist_bytes = stage == 3 && mode == 1 ? 8 : 0,
                                         .gather_bytes = 64,
                                         .prefetch_bytes = 64};
            exhaust(live, 30);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_a_step_of_each_stage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
