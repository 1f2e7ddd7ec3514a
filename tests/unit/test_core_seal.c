/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registering and sealing: pages, options and their defaults, ranks that differ, memory that cannot
 * be had, ranks that join again.
 */
#include "tests/unit/test_core_kit.h"

static const struct wire_seal plain = {.stage = 2, .bucket_bytes = 64};

/* ---- pages ----------------------------------------------------------------------------------- */

static uint32_t page(uint32_t first, uint32_t count, uint32_t total)
{
    static char names[GW_PARAMS_PER_FRAME][16];
    struct wire_param params[GW_PARAMS_PER_FRAME];
    struct wire_msg msg = {0};

    for (uint32_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "p%u", first + i);
        params[i] = (struct wire_param){.name = names[i], .unit = "", .numel = 1};
    }
    msg.u.reg.first = first;
    msg.u.reg.count = count;
    msg.u.reg.total = total;
    msg.u.reg.params = params;
    return kit_ask(0, &msg, WIRE_REGISTER);
}

static void test_pages_come_in_order(void **state)
{
    uint32_t seal;

    (void)state;
    kit_start(1, 300, 1800);
    kit_join_all(1, 1);
    kit_done(0, page(0, 128, 300), 0, "");
    kit_done(0, page(129, 100, 300), GW_E_INVALID, "from index 129 of 300 follows 128 of 300");
    kit_done(0, page(128, 100, 301), GW_E_INVALID, "all say the same total");
    kit_done(0, page(128, 0, 300), GW_E_INVALID, "page of 0 parameters");
    kit_done(0, page(250, 51, 300), GW_E_INVALID, "does not fit a list of 300");
    kit_done(0, page(UINT32_MAX, 2, 300), GW_E_INVALID, "does not fit");
    kit_done(0, page(0, 1, (1u << 20) + 1), GW_E_LIMIT, "limit of 1048576");
    kit_done(0, kit_seal(0, &plain), GW_E_STATE, "after 128 of 300 parameters");
    kit_done(0, page(128, 128, 300), 0, "");
    kit_done(0, page(256, 44, 300), 0, "");
    seal = kit_seal(0, &plain);
    kit_next(CORE_EFF_BUILD);
    kit_done(0, page(0, 1, 1), GW_E_STATE, "after its seal");
    kit_built(0, NULL);
    kit_reply(0, seal, WIRE_SEALED);
    kit_none();
    assert_int_equal(layout_page(core_layout(kit.core))->params, 300);
    assert_string_equal(layout_name(core_layout(kit.core),
                                    layout_params(core_layout(kit.core))[299].name_at), "p299");
}

static void test_first_page_begins_anew(void **state)
{
    (void)state;
    kit_start(1, 300, 1800);
    kit_join_all(1, 1);
    kit_done(0, page(0, 3, 3), 0, "");
    kit_done(0, page(0, 2, 2), 0, "");
    kit_seal(0, &plain);
    kit_next(CORE_EFF_BUILD);
    assert_int_equal(layout_page(core_layout(kit.core))->params, 2);
}

/* ---- options --------------------------------------------------------------------------------- */

static void test_wrong_options_are_named(void **state)
{
    static const struct {
        struct wire_seal seal;
        const char *text;
    } rows[] = {
        /* case R10: bucket size 0 */
        {{.stage = 2}, "bucket_bytes is 0"},
        {{.stage = 2, .bucket_bytes = 66}, "bucket_bytes is 66, but must be a multiple of 4"},
        {{.stage = 4, .bucket_bytes = 64}, "stage is 4, but must be 0 to 3"},
        {{.stage = 2, .bucket_bytes = 64, .gather = 1}, "gather mapped is for stage 3"},
        {{.stage = 3, .bucket_bytes = 64, .gather = 2}, "gather is 2"},
        {{.bucket_bytes = 64, .accumulate = 3}, "accumulate is 3"},
        {{.bucket_bytes = 64, .unused = 2}, "unused is 2"},
        {{.bucket_bytes = 64, .overlap_off = 2}, "overlap_off is 2"},
        {{.bucket_bytes = 64, .micro_steps = 1025}, "micro_steps is 1025, but must be 1 to 1024"},
        {{.bucket_bytes = 64, .ring_slots = 65}, "ring_slots is 65"},
        {{.bucket_bytes = 64, .shard_align_bytes = 2}, "shard_align_bytes is 2"},
        {{.bucket_bytes = 64, .shard_align_bytes = 24}, "24, but must be a power of 2"},
        {{.bucket_bytes = 64, .shard_align_bytes = 8192}, "shard_align_bytes is 8192"},
        {{.bucket_bytes = 64, .scale = 1e39}, "scale is 1e+39"},
        {{.bucket_bytes = 64, .clip_norm = -1}, "clip_norm is -1"},
        {{.bucket_bytes = 64, .order = 2}, "order is 2"},
        {{.bucket_bytes = 64, .order = GW_ORDER_FABRIC}, "order is fabric, but the job is in host"},
    };
    const struct kit_param param = {"w", "", 8};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_register(0, &param, 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        kit_done(0, kit_seal(0, &rows[i].seal), GW_E_INVALID, rows[i].text);
    kit_none();
    /* None of them counted as a seal. */
    kit_seal(0, &plain);
    kit_none();
}

static void check_seal(const struct wire_seal *seal, const struct wire_seal *expected)
{
#define CHECK(member)                                                                              \
    if (seal->member < expected->member || seal->member > expected->member)                        \
    fail_msg("option " #member ": expected %g, got %g", (double)expected->member,                  \
             (double)seal->member)
    CHECK(stage);
    CHECK(accumulate);
    CHECK(gather);
    CHECK(unused);
    CHECK(overlap_off);
    CHECK(ring_slots);
    CHECK(micro_steps);
    CHECK(shard_align_bytes);
    CHECK(bucket_bytes);
    CHECK(scale);
    CHECK(clip_norm);
    CHECK(gather_bytes);
    CHECK(prefetch_bytes);
    CHECK(order);
#undef CHECK
}

/*
 * Stage 3, two ranks, buckets of 8 elements, slices of any multiple of 1: units of 8, 6, 5, 7
 * elements; neighbours never fit one bucket together (14, 11, 12), so each is a fetch unit, padded
 * to even sizes 8, 6, 6, 8. The three largest: 8+8+6 = 22 elements = 88 bytes; the largest: 32.
 */
static void test_defaults_stage_3(void **state)
{
    const struct kit_param params[] = {{"a", "", 8}, {"b", "", 6}, {"c", "", 5}, {"d", "", 7}};
    const struct wire_seal given = {.stage = 3, .bucket_bytes = 32, .shard_align_bytes = 4};
    const struct wire_seal expected = {
        .stage = 3, .accumulate = GW_ACCUMULATE_SHARD, .ring_slots = 3, .micro_steps = 1,
        .shard_align_bytes = 4, .bucket_bytes = 32, .scale = 0.5, .gather_bytes = 88,
        .prefetch_bytes = 32};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        kit_register(rank, params, 4);
        kit_seal(rank, &given);
    }
    kit_next(CORE_EFF_BUILD);
    check_seal(core_options(kit.core), &expected);
}

static void test_given_options_stay(void **state)
{
    const struct kit_param param = {"a", "", 8};
    const struct wire_seal given = {
        .stage = 3, .accumulate = GW_ACCUMULATE_LOCAL, .gather = GW_GATHER_MAPPED, .unused = 1,
        .overlap_off = 1, .ring_slots = 4, .micro_steps = 4, .shard_align_bytes = 128,
        .bucket_bytes = 1024, .scale = 3, .clip_norm = 1, .gather_bytes = 4000,
        .prefetch_bytes = 2000};

    (void)state;
    kit_start(1, 300, 1800);
    kit_join_all(1, 1);
    kit_register(0, &param, 1);
    kit_seal(0, &given);
    kit_next(CORE_EFF_BUILD);
    check_seal(core_options(kit.core), &given);
}

static void test_accumulate_follows_the_stage(void **state)
{
    static const uint32_t expected[] = {GW_ACCUMULATE_LOCAL, GW_ACCUMULATE_LOCAL,
                                        GW_ACCUMULATE_SHARD, GW_ACCUMULATE_SHARD};
    const struct kit_param param = {"a", "", 8};

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        const struct wire_seal given = {.stage = stage, .bucket_bytes = 64};

        kit_start(1, 300, 1800);
        kit_join_all(1, 1);
        kit_register(0, &param, 1);
        kit_seal(0, &given);
        kit_next(CORE_EFF_BUILD);
        assert_int_equal(core_options(kit.core)->accumulate, expected[stage]);
        kit.core = core_free(kit.core);
    }
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

/* Ranks 0..2 register alike but the last one, who says `other`; the text all ranks get. */
static const char *differing(const struct kit_param *params, uint32_t count,
                             const struct wire_seal *seal, const struct kit_param *other,
                             uint32_t other_count, const struct wire_seal *other_seal)
{
    uint32_t requests[3];
    const char *text;

    kit_start(3, 300, 1800);
    kit_join_all(3, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        kit_register(rank, params, count);
        requests[rank] = kit_seal(rank, seal);
    }
    kit_none();
    kit_register(2, other, other_count);
    requests[2] = kit_seal(2, other_seal);
    text = kit_fail(GW_E_MISMATCH, 2);
    for (uint32_t rank = 0; rank < 3; rank++) /* one text, told to everybody */
        kit_done(rank, requests[rank], GW_E_MISMATCH, text);
    kit_none();
    assert_int_equal(core_state(kit.core), GW_JOB_BROKEN);
    assert_int_equal(fake.made, 0);
    return text;
}

static void test_other_parameter_is_named(void **state)
{
    const struct kit_param params[] = {{"a", "u", 8}, {"b", "u", 6}};
    const struct kit_param numel[] = {{"a", "u", 8}, {"b", "u", 7}};
    const struct kit_param name[] = {{"a", "u", 8}, {"x", "u", 6}};
    const struct kit_param unit[] = {{"a", "u", 8}, {"b", "", 6}};
    const struct kit_param fewer[] = {{"a", "u", 8}};

    (void)state;
    kit_has(differing(params, 2, &plain, numel, 2, &plain),
            "parameter 1: rank 0 has 'b' (6 elements, unit 'u'), rank 2 has 'b' (7 elements, unit "
            "'u')");
    core_free(kit.core);
    kit_has(differing(params, 2, &plain, name, 2, &plain),
            "rank 0 has 'b' (6 elements, unit 'u'), rank 2 has 'x' (6 elements, unit 'u')");
    core_free(kit.core);
    kit_has(differing(params, 2, &plain, unit, 2, &plain),
            "rank 0 has 'b' (6 elements, unit 'u'), rank 2 has 'b' (6 elements)");
    core_free(kit.core);
    kit_has(differing(params, 2, &plain, fewer, 1, &plain),
            "rank 0 has 2 parameters, rank 2 has 1; only rank 0 has 'b' at index 1");
}

/* Case T01: ranks register parameters in different order. */
static void test_t01_other_order_is_named(void **state)
{
    const struct kit_param params[] = {{"a", "", 1}, {"b", "", 1}, {"c", "", 1}, {"d", "", 1}};
    const struct kit_param other[] = {{"a", "", 1}, {"d", "", 1}, {"c", "", 1}, {"b", "", 1}};
    const char *text;

    (void)state;
    text = differing(params, 4, &plain, other, 4, &plain);
    kit_has(text, "the same parameters come in another order from index 1 on");
    kit_has(text, "rank 0: 'b', 'c', 'd'; rank 2: 'd', 'c', 'b'");
}

static void test_other_options_are_named(void **state)
{
    const struct kit_param param = {"a", "", 8};
    struct wire_seal other = plain;

    (void)state;
    other.stage = 3;
    kit_has(differing(&param, 1, &plain, &param, 1, &other),
            "option stage: rank 0 says 2, rank 2 says 3");
    core_free(kit.core);
    other = plain;
    other.bucket_bytes = 128;
    kit_has(differing(&param, 1, &plain, &param, 1, &other),
            "option bucket_bytes: rank 0 says 64, rank 2 says 128");
    core_free(kit.core);
    other = plain;
    other.scale = 1; /* the default is 1/3 */
    kit_has(differing(&param, 1, &plain, &param, 1, &other),
            "option scale: rank 0 says 0.33333333333333331, rank 2 says 1");
}

/* A default said aloud is the same as one left out. */
static void test_spelled_out_default_agrees(void **state)
{
    const struct kit_param param = {"a", "", 8};
    const struct wire_seal spelled = {
        .stage = 2, .bucket_bytes = 64, .accumulate = GW_ACCUMULATE_SHARD, .ring_slots = 3,
        .micro_steps = 1, .shard_align_bytes = 64, .scale = 0.5};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_register(0, &param, 1);
    kit_register(1, &param, 1);
    kit_seal(0, &plain);
    kit_seal(1, &spelled);
    kit_next(CORE_EFF_BUILD);
    kit_none();
}

static void test_names_of_clients_are_escaped(void **state)
{
    const struct kit_param param = {"a\n\x1b[1m", "", 8}, other = {"b", "", 8};

    (void)state;
    kit_has(differing(&param, 1, &plain, &other, 1, &plain), "'a\\u000a\\u001b[1m'");
}

/* ---- what cannot be built -------------------------------------------------------------------- */

static void test_no_memory_then_smaller(void **state)
{
    const struct kit_param param = {"w", "", 8};
    uint32_t first[2];

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        kit_register(rank, &param, 1);
        first[rank] = kit_seal(rank, &plain);
    }
    kit_next(CORE_EFF_BUILD);
    assert_non_null(core_layout(kit.core));
    assert_int_equal(core_arena_bytes(kit.core, GW_ARENA_PARAMS, 0), 4096);
    kit_built(GW_E_NOMEM, "4 TiB of parameters cannot be had");
    kit_done(0, first[0], GW_E_NOMEM, "4 TiB of parameters");
    kit_done(1, first[1], GW_E_NOMEM, "4 TiB of parameters");
    kit_none();
    assert_null(core_layout(kit.core));
    assert_int_equal(core_arena_bytes(kit.core, GW_ARENA_PARAMS, 0), 0);
    assert_int_equal(core_state(kit.core), GW_JOB_FORMING);
    assert_int_equal(fake.freed, 1);
    kit_seal_all(2);
    assert_int_equal(core_state(kit.core), GW_JOB_SEALED);
}

static void test_list_without_layout_is_refused(void **state)
{
    const struct kit_param params[] = {{"a", "", 8}, {"b", "", 6}, {"a", "", 8}};

    (void)state;
    kit_start(1, 300, 1800);
    kit_join_all(1, 1);
    kit_register(0, params, 3);
    kit_done(0, kit_seal(0, &plain), GW_E_INVALID, "parameter 2, 'a', cannot be laid out");
    kit_none();
    assert_int_equal(core_state(kit.core), GW_JOB_FORMING);
    kit_register(0, params, 2);
    kit_seal(0, &plain);
    kit_next(CORE_EFF_BUILD);
}

/* ---- order of calls -------------------------------------------------------------------------- */

static void test_seal_again_takes_the_place(void **state)
{
    const struct kit_param param = {"w", "", 8};
    uint32_t first, second, third;

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_register(0, &param, 1);
    kit_register(1, &param, 1);
    first = kit_seal(0, &plain);
    second = kit_seal(0, &plain); /* the caller's own deadline had passed */
    kit_done(0, first, GW_E_AGAIN, "took this one's place");
    third = kit_seal(1, &plain);
    kit_next(CORE_EFF_BUILD);
    kit_built(0, NULL);
    kit_reply(0, second, WIRE_SEALED);
    kit_reply(1, third, WIRE_SEALED);
    kit_done(1, kit_seal(1, &plain), GW_E_STATE, "sealed already");
    kit_none();
}

static void test_zero_messages_before_the_seal(void **state)
{
    struct wire_msg acquire = {.u.acquire.bucket = 0};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_done(1, kit_ask(1, &acquire, WIRE_ACQUIRE), GW_E_STATE, "ACQUIRE before the seal");
    kit_none();
    kit_tell(1, WIRE_STEP_END);
    kit_has(kit_fail(GW_E_STATE, 1), "rank 1 sent STEP_END before the seal");
    assert_int_equal(fake.last_type, 0);
}

static void test_zero_messages_after_the_seal(void **state)
{
    static const uint16_t one_way[] = {WIRE_READY,        WIRE_MICRO_END,     WIRE_STEP_END,
                                       WIRE_UPDATE_BEGIN, WIRE_UPDATE_COMMIT, WIRE_FETCH,
                                       WIRE_RELEASE};
    static const uint16_t asked[] = {WIRE_PARAM_IO, WIRE_MEASURE, WIRE_ACQUIRE};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    fake.unheard = 2;
    assert_int_equal(core_unheard(kit.core), 0);
    kit_seal_all(2);
    assert_int_equal(core_unheard(kit.core), 2);
    for (size_t i = 0; i < 2; i++) {
        kit_ask_empty(1, asked[i]);
        assert_int_equal(fake.last_type, asked[i]);
        assert_int_equal(core_state(kit.core), GW_JOB_SEALED);
    }
    kit_ask_empty(0, asked[2]);
    assert_int_equal(fake.last_type, asked[2]);
    for (size_t i = 0; i < sizeof(one_way) / sizeof(one_way[0]); i++) {
        kit_tell(1, one_way[i]);
        assert_int_equal(fake.last_type, one_way[i]);
        assert_int_equal(fake.last_rank, 1);
    }
    kit_none();
    assert_int_equal(core_state(kit.core), GW_JOB_RUNNING);
    /* A fault of the layer ends the job in its words, and answers what still waits. */
    fake.result = GW_E_DUPLICATE;
    fake.fault = (struct core_fault){GW_E_DUPLICATE, 0, "rank 0: parameter 'w' comes twice"};
    kit_tell(0, WIRE_READY);
    kit_has(kit_fail(GW_E_DUPLICATE, 0), "comes twice");
    kit_done(0, kit.request, GW_E_DUPLICATE, "comes twice");
    kit_done(1, kit.request - 2, GW_E_DUPLICATE, "comes twice");
    kit_done(1, kit.request - 1, GW_E_DUPLICATE, "comes twice");
    kit_none();
    assert_int_equal(core_unheard(kit.core), 0);
}

static void test_zero_replies_close_requests(void **state)
{
    struct core_effect *reply;
    uint32_t request;

    (void)state;
    kit_start(1, 300, 1800);
    kit_join_all(1, 1);
    kit_seal_all(1);
    request = kit_ask_empty(0, WIRE_ACQUIRE);
    reply = effects_add(fake.effects, CORE_EFF_REPLY);
    reply->reply.type = WIRE_ACQUIRED;
    reply->reply.request = request;
    kit_drain();
    kit_reply(0, request, WIRE_ACQUIRED);
    fake.result = GW_E_STATE;
    fake.fault = (struct core_fault){GW_E_STATE, 0, "x"};
    kit_tell(0, WIRE_STEP_END);
    kit_fail(GW_E_STATE, 0);
    kit_none(); /* no second reply */
}

/* ---- joining again --------------------------------------------------------------------------- */

/* A sealed job of two that lost rank 1; both are back. */
static void start_again(void)
{
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_seal_all(2);
    kit_gone(CORE_EV_LOST, 1, "killed");
    kit_fail(GW_E_PEER_LOST, 1);
    kit_gone(CORE_EV_LEAVE, 0, NULL);
    kit_none();
    fake.steps = 7;
    kit_join_all(2, 2);
    assert_int_equal(core_state(kit.core), GW_JOB_FORMING);
    assert_non_null(core_layout(kit.core)); /* shards are kept */
}

static void test_rejoin_keeps_the_layer(void **state)
{
    const struct kit_param param = {"w", "", 8};
    uint32_t requests[2];

    (void)state;
    start_again();
    kit_register(0, &param, 1);
    kit_register(1, &param, 1);
    requests[0] = kit_seal(0, &plain);
    requests[1] = kit_seal(1, &plain);
    kit_next(CORE_EFF_BUILD);
    /* The engine's new boards begin at the steps that are left: known before they are made. */
    assert_int_equal(fake.reattached, 1);
    assert_int_equal(core_steps(kit.core), 7);
    assert_int_equal(fake.renewed, 0); /* what it launches must find the new memory */
    kit_built(0, NULL);
    assert_int_equal(fake.renewed, 1);
    assert_int_equal(kit_reply(0, requests[0], WIRE_SEALED)->reply.u.sealed.steps, 7);
    assert_int_equal(kit_reply(1, requests[1], WIRE_SEALED)->reply.u.sealed.steps, 7);
    kit_none();
    assert_int_equal(fake.made, 1);
    assert_int_equal(fake.freed, 0);
    assert_int_equal(fake.reattached, 1);
    assert_int_equal(core_state(kit.core), GW_JOB_SEALED);
}

static void test_rejoin_with_another_model(void **state)
{
    const struct kit_param param = {"w", "", 9};

    (void)state;
    start_again();
    kit_register(0, &param, 1);
    kit_register(1, &param, 1);
    kit_seal(0, &plain);
    kit_seal(1, &plain);
    kit_has(kit_fail(GW_E_MISMATCH, UINT32_MAX),
            "another model than the job keeps: parameter 0: the job has 'w' (8 elements), rank 0 "
            "has 'w' (9 elements)");
    assert_int_equal(fake.reattached, 0);
    assert_int_equal(fake.freed, 0);
}

static void test_rejoin_torn(void **state)
{
    const struct kit_param param = {"w", "", 8};
    uint32_t request;

    (void)state;
    start_again();
    kit_register(0, &param, 1);
    kit_register(1, &param, 1);
    kit_seal(0, &plain);
    fake.reattach_result = GW_E_TORN;
    fake.fault = (struct core_fault){GW_E_TORN, 1, "the shard of rank 1 is torn"};
    request = kit_seal(1, &plain);
    kit_has(kit_fail(GW_E_TORN, 1), "shard of rank 1 is torn");
    kit_done(0, request - 1, GW_E_TORN, "torn");
    kit_done(1, request, GW_E_TORN, "torn");
    kit_none();
}

/* A surviving rank writes its shard while another dies; its messages come after the failure, the
 * last of them when the next generation forms already. */
static void test_update_that_overlaps_the_loss(void **state)
{
    (void)state;
    kit_start(3, 300, 1800);
    kit_join_all(3, 1);
    kit_seal_all(3);
    kit_gone(CORE_EV_LOST, 1, "killed");
    kit_fail(GW_E_PEER_LOST, 1);
    kit_tell(0, WIRE_UPDATE_BEGIN);
    assert_int_equal(fake.late_begins, 1);
    kit_tell(1, WIRE_UPDATE_BEGIN); /* it is gone: nobody says this */
    kit_tell(0, WIRE_STEP_END);
    kit_join_world(1, 3);
    kit_joined(1, 2);
    kit_tell(0, WIRE_UPDATE_COMMIT);
    kit_none();
    assert_int_equal(fake.late_begins, 1);
    assert_int_equal(fake.late_commits, 1);
    assert_int_equal(fake.last_rank, 0);
    assert_int_equal(fake.last_type, 0); /* no ordinary event */
}

/* A rank dies while the engine makes memory, and the next generation seals before it has. */
static void test_lost_while_building(void **state)
{
    const struct kit_param param = {"w", "", 8};
    uint32_t requests[2];

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        kit_register(rank, &param, 1);
        kit_seal(rank, &plain);
    }
    kit_next(CORE_EFF_BUILD);
    kit_gone(CORE_EV_LOST, 0, "killed");
    kit_fail(GW_E_PEER_LOST, 0);
    kit_done(1, kit.request, GW_E_PEER_LOST, "rank 0");
    kit_gone(CORE_EV_LEAVE, 1, NULL);
    kit_none();
    kit_join_all(2, 2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        kit_register(rank, &param, 1);
        requests[rank] = kit_seal(rank, &plain);
    }
    kit_none();
    kit_built(0, NULL); /* for the first generation */
    kit_next(CORE_EFF_BUILD);
    kit_built(0, NULL);
    kit_reply(0, requests[0], WIRE_SEALED);
    kit_reply(1, requests[1], WIRE_SEALED);
    kit_none();
    assert_int_equal(fake.made, 2);
    assert_int_equal(fake.freed, 1);
    assert_int_equal(fake.reattached, 0);
}

static void test_leave_while_sealing(void **state)
{
    const struct kit_param param = {"w", "", 8};

    (void)state;
    kit_start(2, 300, 1800);
    kit_join_all(2, 1);
    kit_register(0, &param, 1);
    kit_seal(0, &plain);
    kit_gone(CORE_EV_LEAVE, 1, NULL);
    kit_has(kit_fail(GW_E_PEER_LOST, 1), "others wait for it in the seal");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_pages_come_in_order, kit_stop),
        cmocka_unit_test_teardown(test_first_page_begins_anew, kit_stop),
        cmocka_unit_test_teardown(test_wrong_options_are_named, kit_stop),
        cmocka_unit_test_teardown(test_defaults_stage_3, kit_stop),
        cmocka_unit_test_teardown(test_given_options_stay, kit_stop),
        cmocka_unit_test_teardown(test_accumulate_follows_the_stage, kit_stop),
        cmocka_unit_test_teardown(test_other_parameter_is_named, kit_stop),
        cmocka_unit_test_teardown(test_t01_other_order_is_named, kit_stop),
        cmocka_unit_test_teardown(test_other_options_are_named, kit_stop),
        cmocka_unit_test_teardown(test_spelled_out_default_agrees, kit_stop),
        cmocka_unit_test_teardown(test_names_of_clients_are_escaped, kit_stop),
        cmocka_unit_test_teardown(test_no_memory_then_smaller, kit_stop),
        cmocka_unit_test_teardown(test_list_without_layout_is_refused, kit_stop),
        cmocka_unit_test_teardown(test_seal_again_takes_the_place, kit_stop),
        cmocka_unit_test_teardown(test_zero_messages_before_the_seal, kit_stop),
        cmocka_unit_test_teardown(test_zero_messages_after_the_seal, kit_stop),
        cmocka_unit_test_teardown(test_zero_replies_close_requests, kit_stop),
        cmocka_unit_test_teardown(test_rejoin_keeps_the_layer, kit_stop),
        cmocka_unit_test_teardown(test_rejoin_with_another_model, kit_stop),
        cmocka_unit_test_teardown(test_rejoin_torn, kit_stop),
        cmocka_unit_test_teardown(test_update_that_overlaps_the_loss, kit_stop),
        cmocka_unit_test_teardown(test_lost_while_building, kit_stop),
        cmocka_unit_test_teardown(test_leave_while_sealing, kit_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
