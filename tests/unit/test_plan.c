/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's figures, worked out by hand on R02's eight tensors: 32 elements on four ranks, buckets
 * of 6, 12, 10 and 4, padded to 8, 12, 12 and 4; and what a plan refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/plan.h"
#include "daemon/fabric/fabric.h"

static const struct layout_param r02[] = {
    {"p0", "", 5, 0}, {"p1", "", 1, 0}, {"p2", "", 7, 0}, {"p3", "", 3, 0},
    {"p4", "", 2, 0}, {"p5", "", 6, 0}, {"p6", "", 4, 0}, {"p7", "", 4, 0},
};

#define PAYLOAD 128u /* bytes of 32 elements */
#define PADDED 144u  /* of 36 */
#define SHARD 36u

static char why[256];

static struct plan_request request_of(uint32_t stage)
{
    struct plan_request request = {.params = r02, .param_count = 8, .world = 4, .nodes = 1};

    request.options.stage = stage;
    request.options.bucket_bytes = 48;
    request.options.shard_align_bytes = 4;
    return request;
}

static struct plan *plan_of(const struct plan_request *request)
{
    struct text text = TEXT(why);
    struct plan *plan = NULL;
    uint32_t param;

    assert_int_equal(plan_new(request, &plan, &text, &param), 0);
    return plan;
}

static void assert_kind(const struct plan *plan, enum gw_kind kind, const struct plan_kind *want)
{
    const struct plan_kind *got = &plan->kinds[kind];

    assert_int_equal(got->calls, want->calls);
    assert_int_equal(got->payload_bytes, want->payload_bytes);
    assert_int_equal(got->padding_bytes, want->padding_bytes);
    assert_int_equal(got->ring_bytes, want->ring_bytes);
    assert_int_equal(got->in_node_bytes, want->in_node_bytes);
    assert_int_equal(got->cross_node_bytes, want->cross_node_bytes);
}

static void assert_memory(const struct plan *plan, uint64_t params, uint64_t gradients,
                          uint64_t buckets, uint64_t gathered, uint64_t optimizer)
{
    assert_int_equal(plan->memory_bytes[GW_MEMORY_PARAMS], params);
    assert_int_equal(plan->memory_bytes[GW_MEMORY_GRADIENTS], gradients);
    assert_int_equal(plan->memory_bytes[GW_MEMORY_BUCKETS], buckets);
    assert_int_equal(plan->memory_bytes[GW_MEMORY_GATHERED], gathered);
    assert_int_equal(plan->memory_bytes[GW_MEMORY_OPTIMIZER], optimizer);
}

static const struct plan_kind nothing;

/* Payloads of the buckets: 24, 48, 40, 16 bytes; a ring sends 3/4 of each, twice for all-reduce. */
static void each_stage_sends_what_the_paper_says(void **state)
{
    const struct plan_kind all_reduce = {4, PAYLOAD, 16, 192, 2 * PADDED, 0};
    const struct plan_kind scatter = {4, PAYLOAD, 16, 96, PADDED, 0};
    const struct plan_kind gather = {4, PAYLOAD, 16, 96, PADDED - SHARD, 0};
    const struct plan_kind fetches = {8, 2 * PAYLOAD, 32, 192, 2 * PADDED, 0};
    const struct plan_kind control = {.calls = 1};

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct plan_request request = request_of(stage);
        struct plan *plan = plan_of(&request);

        assert_kind(plan, GW_KIND_ALL_REDUCE, stage == 0 ? &all_reduce : &nothing);
        assert_kind(plan, GW_KIND_REDUCE_SCATTER, stage == 0 ? &nothing : &scatter);
        assert_kind(plan, GW_KIND_ALL_GATHER,
                    stage == 0   ? &nothing
                    : stage == 3 ? &fetches
                                 : &gather);
        assert_kind(plan, GW_KIND_BROADCAST, &nothing);
        assert_kind(plan, GW_KIND_CONTROL, &control);
        assert_null(plan_free(plan));
    }
}

static void memory_is_that_of_each_stage(void **state)
{
    struct plan_request request;
    struct plan *plan;

    (void)state;
    request = request_of(0);
    plan = plan_of(&request);
    assert_memory(plan, PADDED, PADDED, 0, 0, 2 * PADDED);
    plan_free(plan);
    request = request_of(1);
    plan = plan_of(&request);
    assert_memory(plan, PADDED, PADDED, 0, 0, 2 * SHARD);
    plan_free(plan);
    request = request_of(2);
    plan = plan_of(&request);
    assert_memory(plan, PADDED, SHARD, 3 * 48, 0, 2 * SHARD);
    plan_free(plan);
    /* Units are the parameters, merged as 5+1, 7+3+2, 6+4, 4; the three largest and one more would
     * be more than all there is. */
    request = request_of(3);
    plan = plan_of(&request);
    assert_memory(plan, SHARD, SHARD, 3 * 48, PADDED, 2 * SHARD);
    plan_free(plan);
}

static void mapped_gathers_move_nothing_and_hold_nothing(void **state)
{
    const struct plan_kind fetches = {8, 2 * PAYLOAD, 32, 192, 0, 0};
    struct plan_request request = request_of(3);
    struct plan *plan;

    (void)state;
    request.options.gather = GW_GATHER_MAPPED;
    plan = plan_of(&request);
    assert_kind(plan, GW_KIND_ALL_GATHER, &fetches);
    assert_memory(plan, SHARD, SHARD, 3 * 48, 0, 2 * SHARD);
    plan_free(plan);
    /* In other stages it says nothing. */
    request.options.stage = 1;
    plan = plan_of(&request);
    assert_int_equal(plan->options.gather, GW_GATHER_PRIVATE);
    plan_free(plan);
}

static void micro_steps_send_and_hold_as_the_mode_says(void **state)
{
    static const struct {
        uint32_t stage, accumulate;
        uint64_t reductions, gathers, gradients;
    } rows[] = {
        {0, GW_ACCUMULATE_LOCAL, 4, 0, 2 * PADDED},
        {0, GW_ACCUMULATE_SHARD, 12, 0, 2 * PADDED},
        {1, GW_ACCUMULATE_LOCAL, 4, 4, 2 * PADDED},
        {1, GW_ACCUMULATE_SHARD, 12, 4, PADDED + SHARD},
        {2, GW_ACCUMULATE_LOCAL, 4, 4, 2 * PADDED + SHARD},
        {2, GW_ACCUMULATE_SHARD, 12, 4, SHARD},
        {3, GW_ACCUMULATE_AUTO, 12, 24, SHARD},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct plan_request request = request_of(rows[i].stage);
        enum gw_kind kind = rows[i].stage ? GW_KIND_REDUCE_SCATTER : GW_KIND_ALL_REDUCE;
        struct plan *plan;

        request.options.micro_steps = 3;
        request.options.accumulate = rows[i].accumulate;
        plan = plan_of(&request);
        assert_int_equal(plan->kinds[kind].calls, rows[i].reductions);
        assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].calls, rows[i].gathers);
        assert_int_equal(plan->memory_bytes[GW_MEMORY_GRADIENTS], rows[i].gradients);
        plan_free(plan);
    }
}

/* Two nodes of two: each sends half of every bucket, once to reduce, once to gather. Three nodes,
 * 2+1+1: a single rank sends 3/4 to reduce; the pair sends its half of a gather to two others. */
static void nodes_send_partial_sums_and_slices(void **state)
{
    struct plan_request request = request_of(1);
    struct plan *plan;

    (void)state;
    request.nodes = 2;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_REDUCE_SCATTER].cross_node_bytes, 64);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].cross_node_bytes, 64);
    plan_free(plan);
    request.nodes = 3;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_REDUCE_SCATTER].cross_node_bytes, 96);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].cross_node_bytes, 128);
    plan_free(plan);
    request.options.stage = 0;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_REDUCE].cross_node_bytes, 64 + 128);
    plan_free(plan);
    /* A node per rank: what a ring sends. */
    request.options.stage = 1;
    request.nodes = 4;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_REDUCE_SCATTER].cross_node_bytes, 96);
    plan_free(plan);
}

static void ranks_lie_on_nodes_in_blocks(void **state)
{
    static const uint32_t want[][2] = {{0, 3}, {3, 3}, {6, 2}};
    uint32_t first, count;

    (void)state;
    for (uint32_t node = 0; node < 3; node++) {
        plan_node(8, 3, node, &first, &count);
        assert_int_equal(first, want[node][0]);
        assert_int_equal(count, want[node][1]);
    }
}

/* ((0+1)+(2+3))+((4+5)+6): drawn on paper for each row. */
static void partial_sums_are_maximal_aligned_subtrees(void **state)
{
    static const struct {
        uint32_t world, first, count, partials;
    } rows[] = {
        {8, 0, 8, 1}, {8, 0, 4, 1}, {8, 4, 4, 1}, {8, 1, 3, 2},  {8, 1, 7, 3},
        {7, 4, 3, 1}, {7, 0, 3, 2}, {7, 3, 4, 2}, {15, 0, 7, 3}, {15, 7, 8, 2},
        {6, 4, 2, 1}, {6, 2, 4, 2}, {5, 4, 1, 1}, {1, 0, 1, 1},  {3, 1, 2, 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(plan_partials(rows[i].world, rows[i].first, rows[i].count),
                         rows[i].partials);
}

static void ring_bytes_are_the_fabrics(void **state)
{
    static const uint64_t sizes[] = {0, 1, 4, 52, 1000004, (1ull << 50) + 12};

    (void)state;
    for (unsigned kind = 0; kind < GW_KINDS; kind++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            for (uint32_t world = 1; world < 70; world++)
                assert_int_equal(plan_ring_bytes((enum gw_kind)kind, sizes[i], world),
                                 fabric_ring_bytes((enum gw_kind)kind, sizes[i], world));
        }
    }
}

static void assert_refused(const struct plan_request *request, const char *text, uint32_t param)
{
    struct text out = TEXT(why);
    struct plan *plan = NULL;
    uint32_t bad = 0;

    assert_int_equal(plan_new(request, &plan, &out, &bad), GW_E_INVALID);
    assert_null(plan);
    assert_int_equal(bad, param);
    if (!strstr(why, text))
        fail_msg("expected \"%s\" in \"%s\"", text, why);
}

static void what_makes_no_job_makes_no_plan(void **state)
{
    static const struct layout_param twice[] = {{"a", "", 1, 0}, {"a", "", 2, 0}};
    static const struct layout_param huge[] = {{"a", "", 1ull << 60, 0}};
    struct plan_request request = request_of(1);

    (void)state;
    request.world = 0;
    assert_refused(&request, "0 ranks", UINT32_MAX);
    request.world = PLAN_WORLD_MAX + 1;
    assert_refused(&request, "1 to 1048576", UINT32_MAX);
    request = request_of(1);
    request.nodes = 5;
    assert_refused(&request, "4 ranks on 5 nodes", UINT32_MAX);
    request = request_of(3);
    request.nodes = 2;
    request.options.gather = GW_GATHER_MAPPED;
    assert_refused(&request, "gather mapped is for one node", UINT32_MAX);
    request = request_of(1);
    request.options.bucket_bytes = 0;
    assert_refused(&request, "bucket_bytes is 0", UINT32_MAX);
    request = request_of(1);
    request.params = twice;
    request.param_count = 2;
    assert_refused(&request, "parameters", 1);
    request = request_of(1);
    request.params = huge;
    request.param_count = 1;
    request.options.bucket_bytes = 1ull << 58;
    assert_refused(&request, "elements", UINT32_MAX);
}

static void parameters_of_no_element_send_nothing(void **state)
{
    static const struct layout_param empty[] = {{"a", "u", 0, 0}, {"b", "v", 0, 0}};
    struct plan_request request = request_of(3);
    struct plan *plan;

    (void)state;
    request.params = empty;
    request.param_count = 2;
    plan = plan_of(&request);
    assert_kind(plan, GW_KIND_REDUCE_SCATTER, &nothing);
    assert_kind(plan, GW_KIND_ALL_GATHER, &nothing);
    plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stage_sends_what_the_paper_says),
        cmocka_unit_test(memory_is_that_of_each_stage),
        cmocka_unit_test(mapped_gathers_move_nothing_and_hold_nothing),
        cmocka_unit_test(micro_steps_send_and_hold_as_the_mode_says),
        cmocka_unit_test(nodes_send_partial_sums_and_slices),
        cmocka_unit_test(ranks_lie_on_nodes_in_blocks),
        cmocka_unit_test(partial_sums_are_maximal_aligned_subtrees),
        cmocka_unit_test(ring_bytes_are_the_fabrics),
        cmocka_unit_test(what_makes_no_job_makes_no_plan),
        cmocka_unit_test(parameters_of_no_element_send_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
