/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out: each allocation of a job's life fails in turn. The core must say
 * GW_E_NOMEM, or answer the request with it, and must not crash, leak or forget an answer.
 */
#include "tests/unit/test_core_kit.h"

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

static struct core_effect effect; /* large */
static uint32_t nomem_replies, launches, sealed;

/* False: the core has no memory, and the engine would end now. */
static bool feed(struct core *core, struct core_event *event)
{
    int r = core_handle(core, 100 * S, event);

    while (core_next_effect(core, &effect)) {
        nomem_replies += effect.kind == CORE_EFF_REPLY && effect.reply.type == WIRE_DONE &&
                         effect.reply.u.done.code == GW_E_NOMEM;
        launches += effect.kind == CORE_EFF_LAUNCH;
        sealed += effect.kind == CORE_EFF_REPLY && effect.reply.type == WIRE_SEALED;
    }
    assert_true(r == 0 || r == GW_E_NOMEM);
    return r == 0;
}

static bool feed_message(struct core *core, uint32_t rank, struct wire_msg *msg, uint16_t type,
                         uint32_t request)
{
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = rank, .msg = msg,
                               .request = request};

    msg->type = type;
    msg->request = request;
    return feed(core, &event);
}

/* Join, buffers, seal, collectives. True: went through to the end. */
static bool live(struct core *core)
{
    static struct wire_param params[2] = {
        {.name = "first", .unit = "unit", .numel = 8},
        {.name = "second", .unit = "unit", .numel = 8}};
    struct core_event built = {.kind = CORE_EV_BUILT}, done = {.kind = CORE_EV_OP_DONE, .op = 1};
    bool alive = true;

    for (uint32_t rank = 0; rank < 2 && alive; rank++) {
        struct core_event join = {.kind = CORE_EV_JOIN, .rank = rank, .world = 2, .request = 1};
        alive = feed(core, &join);
    }
    for (uint32_t rank = 0; rank < 2 && alive; rank++) {
        struct core_event buffer = {.kind = CORE_EV_BUFFER, .rank = rank, .index = 1,
                                    .size_bytes = 64};
        struct wire_msg msg = {.u.op = {.kind = WIRE_OP_ALL_REDUCE, .sequence = 1, .count = 16,
                                        .send_buffer = 1, .recv_buffer = 1}};

        alive = feed(core, &buffer) && feed_message(core, rank, &msg, WIRE_OP, 0);
    }
    for (uint32_t rank = 0; rank < 2 && alive; rank++) {
        struct wire_msg list = {.u.reg = {.total = 2, .count = 2, .params = params}};
        struct wire_msg seal = {.u.seal = {.stage = 2, .bucket_bytes = 64}};

        alive = feed_message(core, rank, &list, WIRE_REGISTER, 2) &&
                feed_message(core, rank, &seal, WIRE_SEAL, 3);
    }
    return alive && feed(core, &done) && feed(core, &built);
}

static void test_each_allocation_fails_in_turn(void **state)
{
    struct core_config config = {.world = 2};
    uint32_t turns = 0, told = 0;
    bool whole = false;

    (void)state;
    if (!FAILING) {
        print_message("SKIP: this build's sanitizer owns the allocator\n");
        skip();
    }
    for (fail_at = 1; !whole; fail_at = turns + 1) {
        struct core *core = NULL;
        int r;

        turns++;
        allocations = nomem_replies = launches = sealed = 0;
        r = core_new(&config, &core);
        if (r < 0) {
            assert_int_equal(r, GW_E_NOMEM);
            assert_null(core);
            continue;
        }
        if (live(core))
            told += nomem_replies > 0;
        whole = allocations < fail_at;
        core_free(core);
        assert_true(turns < 1000);
    }
    fail_at = 0;
    print_message("%u allocations failed in turn, %u of them told to the caller alone\n", turns - 1,
                  told);
    assert_true(turns > 10);
    /* The last run failed nothing. */
    assert_int_equal(launches, 1);
    assert_int_equal(sealed, 2);
    assert_int_equal(nomem_replies, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_fails_in_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
