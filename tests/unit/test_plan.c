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

#define PARAM(n, u, count) {.name = (n), .unit = (u), .numel = (count)}

static const struct layout_param r02[] = {
    PARAM("p0", "", 5), PARAM("p1", "", 1), PARAM("p2", "", 7), PARAM("p3", "", 3),
    PARAM("p4", "", 2), PARAM("p5", "", 6), PARAM("p6", "", 4), PARAM("p7", "", 4),
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

/* The same payload; the whole is written over what was read. Nothing more is held. */
static void reductions_may_be_all_reduces(void **state)
{
    const struct plan_kind all_reduce = {4, PAYLOAD, 16, 192, 2 * PADDED, 0};

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct plan_request request = request_of(stage);
        struct plan *scatters = plan_of(&request), *plan;

        request.options.all_reduce = 1;
        plan = plan_of(&request);
        assert_kind(plan, GW_KIND_ALL_REDUCE, &all_reduce);
        assert_kind(plan, GW_KIND_REDUCE_SCATTER, &nothing);
        assert_kind(plan, GW_KIND_ALL_GATHER, &scatters->kinds[GW_KIND_ALL_GATHER]);
        assert_memory_equal(plan->memory_bytes, scatters->memory_bytes, sizeof(plan->memory_bytes));
        assert_null(plan_free(scatters));
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

/* ((0+1)+(2+3))+((4+5)+6): drawn on paper for each row: the busiest node's partial sums, times the
 * share of other ranks in what is reduced. Nodes are blocks, the first ones larger. */
static void partial_sums_are_maximal_aligned_subtrees(void **state)
{
    static const struct {
        uint32_t world, nodes;
        uint64_t parts; /* of payload / world */
    } rows[] = {
        {8, 1, 0},     {8, 2, 4},   {8, 3, 2 * 5}, {7, 2, 4}, {15, 2, 8},
        {6, 2, 2 * 3}, {5, 2, 2 * 3}, {3, 2, 2},   {1, 1, 0}, {7, 3, 2 * 5},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct plan_request request = request_of(1);
        struct layout_param one = PARAM("a", "", 10 * rows[i].world);
        struct plan *plan;

        request.params = &one;
        request.param_count = 1;
        request.world = rows[i].world;
        request.nodes = rows[i].nodes;
        request.options.bucket_bytes = 1000;
        plan = plan_of(&request);
        assert_int_equal(plan->kinds[GW_KIND_REDUCE_SCATTER].cross_node_bytes, 40 * rows[i].parts);
        plan_free(plan);
    }
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
    static const struct layout_param twice[] = {PARAM("a", "", 1), PARAM("a", "", 2)};
    static const struct layout_param huge[] = {PARAM("a", "", 1ull << 60)};
    struct plan_request request = request_of(1);

    (void)state;
    request.world = 0;
    assert_refused(&request, "0 ranks", UINT32_MAX);
    request.world = PLAN_WORLD_MAX + 1;
    assert_refused(&request, "1 to 1048576", UINT32_MAX);
    request = request_of(1);
    request.rank = 4;
    assert_refused(&request, "rank 4 of 4", UINT32_MAX);
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
    static const struct layout_param empty[] = {PARAM("a", "u", 0), PARAM("b", "v", 0)};
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

/* ---- dtypes, groups, hybrid sharding --------------------------------------------------------- */

/* Buckets: 8 fp32; 15 of 16 bf16; of ranks 2 and 0 alone 3 of 4 fp32; 2 of 8 with bf16 values and
 * fp32 gradients. Slices of a quarter, of group 1 a half. */
static const struct layout_param mixed[] = {
    {.name = "a", .unit = "", .numel = 8},
    {.name = "b", .unit = "", .numel = 15, .dtype = GW_DTYPE_BF16, .grad_dtype = GW_DTYPE_BF16},
    {.name = "d", .unit = "", .numel = 3, .group = 1},
    {.name = "g", .unit = "", .numel = 2, .dtype = GW_DTYPE_BF16},
};

static struct plan_request mixed_of(uint32_t stage, uint32_t rank)
{
    static const uint32_t ranks[] = {2, 0};
    static const struct layout_group group = {ranks, 2, 0};
    struct plan_request request = {.params = mixed,
                                   .param_count = 4,
                                   .groups = &group,
                                   .group_count = 1,
                                   .world = 4,
                                   .nodes = 1,
                                   .rank = rank};

    request.options.stage = stage;
    request.options.bucket_bytes = 40;
    request.options.shard_align_bytes = 4;
    return request;
}

static void dtypes_and_groups_count_as_they_are(void **state)
{
    const struct plan_kind scatter = {4, 32 + 30 + 12 + 8, 2 + 4 + 24, 24 + 22 + 6 + 6,
                                      32 + 32 + 16 + 32, 0};
    const struct plan_kind gather = {4, 32 + 30 + 12 + 4, 2 + 4 + 12, 24 + 22 + 6 + 3,
                                     24 + 24 + 8 + 12, 0};
    const struct plan_kind outside = {3, 32 + 30 + 8, 2 + 24, 24 + 22 + 6, 32 + 32 + 32, 0};
    struct plan_request request = mixed_of(1, 0);
    struct plan *plan = plan_of(&request);

    (void)state;
    assert_kind(plan, GW_KIND_REDUCE_SCATTER, &scatter);
    assert_kind(plan, GW_KIND_ALL_GATHER, &gather);
    /* b is summed in fp32, 4 of 16; masters: 4 of b and 2 of g beside two moments of 10. */
    assert_memory(plan, 96, 112 + 16, 0, 0, 2 * 40 + 24);
    plan_free(plan);
    request.rank = 1;
    plan = plan_of(&request);
    assert_kind(plan, GW_KIND_REDUCE_SCATTER, &outside);
    assert_memory(plan, 80, 96 + 16, 0, 0, 2 * 32 + 24);
    plan_free(plan);
}

/* Group 1 is d alone: 12 bytes, padded to 16, between two. A rank outside is shown what its first
 * member, rank 2, sends for it; of the rank's own groups the parts add up, but for one verdict. */
static void each_group_has_its_part(void **state)
{
    const struct plan_kind scatter = {1, 12, 4, 6, 16, 0};
    const struct plan_kind gather = {1, 12, 4, 6, 8, 0};
    struct plan_request request;

    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        const struct plan_group *all, *pair;
        struct plan *plan;

        request = mixed_of(2, rank);
        plan = plan_of(&request);
        all = &plan->groups[0];
        pair = &plan->groups[1];
        assert_int_equal(all->rank, rank);
        assert_int_equal(pair->rank, rank % 2 == 0 ? rank : 2);
        assert_int_equal(all->buckets, 3);
        assert_int_equal(all->padding_bytes, 2 + 24);
        assert_int_equal(pair->buckets, 1);
        assert_int_equal(pair->padding_bytes, 4);
        assert_memory_equal(&pair->kinds[GW_KIND_REDUCE_SCATTER], &scatter, sizeof(scatter));
        assert_memory_equal(&pair->kinds[GW_KIND_ALL_GATHER], &gather, sizeof(gather));
        assert_int_equal(pair->kinds[GW_KIND_CONTROL].calls, 0);
        assert_int_equal(plan->kinds[GW_KIND_REDUCE_SCATTER].payload_bytes,
                         70 + (rank % 2 == 0 ? 12 : 0));
        /* d in full, its half reduced, two moments of that half. */
        assert_int_equal(pair->memory_bytes[GW_MEMORY_PARAMS], 16);
        assert_int_equal(pair->memory_bytes[GW_MEMORY_GRADIENTS], 8);
        assert_int_equal(pair->memory_bytes[GW_MEMORY_OPTIMIZER], 2 * 8);
        assert_int_equal(pair->memory_bytes[GW_MEMORY_BUCKETS], 0);
        plan_free(plan);
    }
}

/* Results are written with the accumulators' dtype; sums over micro-steps are read with it. */
static void accumulators_may_be_as_the_gradients(void **state)
{
    struct plan_request request = mixed_of(0, 0);
    struct plan *plan = plan_of(&request);

    (void)state;
    assert_int_equal(plan->kinds[GW_KIND_ALL_REDUCE].in_node_bytes, 64 + (32 + 64) + 32 + 64);
    assert_int_equal(plan->kinds[GW_KIND_ALL_REDUCE].payload_bytes, 82);
    plan_free(plan);
    request.options.accum_as_grads = 1;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_REDUCE].in_node_bytes, 64 + 64 + 32 + 64);
    plan_free(plan);
    request = mixed_of(1, 0);
    request.options.micro_steps = 2;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_REDUCE_SCATTER].in_node_bytes, 32 + 64 + 16 + 32);
    plan_free(plan);
    request.options.all_reduce = 1; /* over the gradients, or what was added up */
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_REDUCE].in_node_bytes, 2 * (32 + 64 + 16 + 32));
    plan_free(plan);
}

/* Rank 3: of group 0 alone, with the second of two slices. Each micro-step is reduced within
 * {2, 3}, and the sum of both between {1, 3}: 4, 7 and 0 elements of fp32. */
static void hybrid_sharding_reduces_within_and_between(void **state)
{
    const struct plan_kind scatter = {6, 2 * 70, 2 * 26, 2 * 35, 2 * 96, 0};
    const struct plan_kind replicas = {3, 16 + 28, 4 + 16, 16 + 28, 2 * (16 + 32 + 16), 100};
    const struct plan_kind gather = {3, 66, 14, 16 + 15 + 2, 16 + 16 + 8, 0};
    struct plan_request request = mixed_of(2, 3);
    struct plan *plan;

    (void)state;
    request.nodes = 2; /* a run each: only the sum between them crosses */
    request.options.micro_steps = 2;
    request.options.shard_ranks = 2;
    plan = plan_of(&request);
    assert_kind(plan, GW_KIND_REDUCE_SCATTER, &scatter);
    assert_kind(plan, GW_KIND_ALL_REDUCE, &replicas);
    assert_kind(plan, GW_KIND_ALL_GATHER, &gather);
    plan_free(plan);
    request.options.stage = 0; /* nothing is sharded */
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_REDUCE].calls, 3);
    assert_int_equal(plan->options.shard_ranks, 0);
    plan_free(plan);
    request.options.stage = 1;
    request.options.shard_ranks = 3;
    assert_refused(&request, "shard_ranks is 3", UINT32_MAX);
}

/* p1 and p4, 4 and 8 bytes: 3 elements, padded to 4. Others: 5+7, 3+6, 4+4. */
static void persistent_parameters_are_gathered_once(void **state)
{
    const struct plan_kind fetches = {1 + 2 * 3, 12 + 2 * 116, 4 + 2 * 12, 9 + 2 * (36 + 27 + 24),
                                      16 + 2 * 128, 0};
    struct plan_request request = request_of(3);
    struct plan *plan;

    (void)state;
    request.options.persist_bytes = 8;
    plan = plan_of(&request);
    assert_kind(plan, GW_KIND_ALL_GATHER, &fetches);
    assert_memory(plan, SHARD, SHARD, 3 * 48, 16 + 128, 2 * SHARD);
    plan_free(plan);
    request.options.stage = 2;
    plan = plan_of(&request);
    assert_int_equal(plan->options.persist_bytes, 0);
    plan_free(plan);
}

/* Two groups in one unit: a gather for each that the rank is in. */
static void a_fetch_unit_of_two_groups_is_two_gathers(void **state)
{
    struct layout_param params[] = {PARAM("a", "u", 8), PARAM("b", "u", 8)};
    struct plan_request request = mixed_of(3, 2);
    struct plan *plan;

    (void)state;
    params[1].group = 1;
    request.params = params;
    request.param_count = 2;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].calls, 4);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].payload_bytes, 2 * 64);
    plan_free(plan);
    request.rank = 1;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].calls, 2);
    plan_free(plan);
}

/* Fetch units of 24, 48, 40 and 16 bytes. The last one comes again at once. */
static void reused_units_are_gathered_once(void **state)
{
    struct plan_request request = request_of(3);
    struct plan *plan;

    (void)state;
    request.options.reuse_bytes = 1;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].calls, 7);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].payload_bytes, 2 * PAYLOAD - 16);
    plan_free(plan);
    /* All of them, over micro-steps too. */
    request.options.reuse_bytes = 1000;
    request.options.gather_bytes = 1000;
    request.options.micro_steps = 3;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].calls, 4);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].payload_bytes, PAYLOAD);
    plan_free(plan);
    request.options.overlap_off = 1;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].calls, 4);
    plan_free(plan);
}

/* Fetch units of 24, 48, 40 and 16 bytes, padded to 144 in all; blocks of two ranks, each on a
 * node. Of four gathers of a unit that the ranks of a block make in a step, one is from all
 * owners. */
static void secondary_shards_keep_gathers_inside_nodes(void **state)
{
    struct plan_request request = request_of(3);
    const struct plan_kind *gathers;
    struct plan *plan;

    (void)state;
    request.nodes = 2;
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].cross_node_bytes, 2 * 64);
    plan_free(plan);
    request.options.secondary_ranks = 2;
    plan = plan_of(&request);
    gathers = &plan->kinds[GW_KIND_ALL_GATHER];
    assert_int_equal(gathers->calls, 8);
    assert_int_equal(gathers->payload_bytes, 2 * PAYLOAD);
    assert_int_equal(gathers->ring_bytes, (96 + 3 * 64) / 2);
    assert_int_equal(gathers->cross_node_bytes, 64); /* the refetch: 0 */
    assert_int_equal(gathers->in_node_bytes, 2 * 144 + 72);
    assert_int_equal(plan->memory_bytes[GW_MEMORY_PARAMS], 36 + 72);
    plan_free(plan);
    request.nodes = 4; /* a block on two nodes: each sends the other what it has of all gathers */
    plan = plan_of(&request);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].cross_node_bytes, 96 + 2 * 64);
    plan_free(plan);
    request.nodes = 1;
    request.options.secondary_ranks = 4; /* all: the shards themselves */
    plan = plan_of(&request);
    assert_int_equal(plan->options.secondary_ranks, 0);
    assert_int_equal(plan->kinds[GW_KIND_ALL_GATHER].ring_bytes, 2 * 96);
    assert_int_equal(plan->memory_bytes[GW_MEMORY_PARAMS], 36);
    plan_free(plan);
    request.options.stage = 2;
    request.options.secondary_ranks = 2;
    plan = plan_of(&request);
    assert_int_equal(plan->options.secondary_ranks, 0);
    plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stage_sends_what_the_paper_says),
        cmocka_unit_test(reductions_may_be_all_reduces),
        cmocka_unit_test(memory_is_that_of_each_stage),
        cmocka_unit_test(mapped_gathers_move_nothing_and_hold_nothing),
        cmocka_unit_test(micro_steps_send_and_hold_as_the_mode_says),
        cmocka_unit_test(nodes_send_partial_sums_and_slices),
        cmocka_unit_test(partial_sums_are_maximal_aligned_subtrees),
        cmocka_unit_test(ring_bytes_are_the_fabrics),
        cmocka_unit_test(what_makes_no_job_makes_no_plan),
        cmocka_unit_test(parameters_of_no_element_send_nothing),
        cmocka_unit_test(dtypes_and_groups_count_as_they_are),
        cmocka_unit_test(each_group_has_its_part),
        cmocka_unit_test(accumulators_may_be_as_the_gradients),
        cmocka_unit_test(hybrid_sharding_reduces_within_and_between),
        cmocka_unit_test(persistent_parameters_are_gathered_once),
        cmocka_unit_test(a_fetch_unit_of_two_groups_is_two_gathers),
        cmocka_unit_test(reused_units_are_gathered_once),
        cmocka_unit_test(secondary_shards_keep_gathers_inside_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
