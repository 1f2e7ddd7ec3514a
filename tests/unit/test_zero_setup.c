/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens between steps: memory of all stages and modes, where parameters lie, MEASURE and
 * PARAM_IO.
 */
#include "test_zero_fixture.h"

/* N=2, bucket 8, align 2: p0 (5), p1 (6): buckets of 5 (padded 8) and 6 (padded 8); 16 in all. */
static struct fx *open_memory(uint32_t stage, uint32_t accumulate, uint32_t micro, uint32_t gather)
{
    struct fx *fx = fx_new(stage, 2, 8, 2);

    fx->options.accumulate = accumulate;
    fx->options.micro_steps = micro;
    fx->options.gather = gather;
    fx->options.gather_bytes = stage == 3 ? 100 : 0;
    fx->options.prefetch_bytes = stage == 3 ? 32 : 0;
    fx_open(fx, 0, 5, 6);
    return fx;
}

/* ---- edges ----------------------------------------------------------------------------------- */

static void edges_are_known_by_name(void **state)
{
    (void)state;
    assert_true(edges_parse("GRAD_WRITTEN") == 1); /* the table's first row */
    assert_true(edges_parse("ALL_READY") == 2);
    assert_true(edges_parse("RELEASED") == 1ull << (EDGES - 1));
    assert_true(edges_parse("ALL_READ") == 0);
    assert_true(edges_parse("") == 0);
    assert_true(edges_parse(NULL) == 0);
#ifdef GW_TEST_EDGES
    assert_false(edge_kept(2, EDGE_ALL_READY));
#else
    assert_true(edge_kept(2, EDGE_ALL_READY)); /* other builds keep every row */
#endif
    assert_true(edge_kept(2, EDGE_GRAD_WRITTEN));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void arenas_of_all_stages_and_modes(void **state)
{
    enum { LOCAL = GW_ACCUMULATE_LOCAL, SHARD = GW_ACCUMULATE_SHARD };
    static const struct {
        uint32_t stage, accumulate, micro, gather;
        uint64_t params, grads, acc, ring, shard_grads, pool, shared; /* elements; pool: bytes */
    } rows[] = {
        {0, LOCAL, 1, 0, 16, 16, 0, 0, 0, 0, 0},  {0, LOCAL, 2, 0, 16, 16, 16, 0, 0, 0, 0},
        {0, SHARD, 1, 0, 16, 16, 0, 0, 0, 0, 0},  {0, SHARD, 2, 0, 16, 16, 16, 0, 0, 0, 0},
        {1, LOCAL, 1, 0, 16, 16, 0, 0, 0, 0, 0},  {1, LOCAL, 2, 0, 16, 16, 16, 0, 0, 0, 0},
        {1, SHARD, 1, 0, 16, 16, 0, 0, 0, 0, 0},  {1, SHARD, 2, 0, 16, 16, 0, 0, 8, 0, 0},
        {2, LOCAL, 1, 0, 16, 16, 0, 0, 8, 0, 0},  {2, LOCAL, 2, 0, 16, 16, 16, 0, 8, 0, 0},
        {2, SHARD, 1, 0, 16, 0, 0, 24, 8, 0, 0},  {2, SHARD, 2, 0, 16, 0, 0, 24, 8, 0, 0},
        {3, LOCAL, 1, 0, 8, 16, 0, 0, 8, 64, 0},  {3, SHARD, 2, 0, 8, 0, 0, 24, 8, 64, 0},
        {3, SHARD, 1, 1, 0, 0, 0, 24, 8, 0, 16},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fx *fx =
            open_memory(rows[i].stage, rows[i].accumulate, rows[i].micro, rows[i].gather);
        const struct zero *zero = fx->zero;

        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_PARAMS, rank), rows[i].params * 4);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_GRADS, rank), rows[i].grads * 4);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_ACC, rank), rows[i].acc * 4);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_RING, rank), rows[i].ring * 4);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_SHARD_GRADS, rank),
                             rows[i].shard_grads * 4);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_POOL, rank), rows[i].pool);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_OVERFLOW, rank),
                             rows[i].ring ? 32 : 0);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_ARRAY, rank),
                             rows[i].stage ? 8 : 16); /* of one byte an element */
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_STAGING, rank), 512 << 10);
            assert_int_equal(zero_arena_bytes(zero, GW_ARENA_SHARED_PARAMS, rank), 0);
        }
        assert_int_equal(zero_arena_bytes(zero, GW_ARENA_SHARED_PARAMS, -1), rows[i].shared * 4);
        assert_int_equal(zero_arena_bytes(zero, GW_ARENA_PARAMS, 2), 0);
        fx_free(fx);
    }
}

/* A budget of "all there is" is a pool of all units, and no sum wraps to a small one. */
static void a_gather_budget_past_the_end_is_a_pool_of_all_units(void **state)
{
    static const uint64_t budgets[] = {UINT64_MAX, UINT64_MAX - 31};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct fx *fx = fx_new(3, 2, 8, 1);

        fx->options.gather_bytes = budgets[i];
        fx_open(fx, 0, 8, 8); /* 32 bytes each: the sums are 31 and 0 if they wrap */
        assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_POOL, 0), 64);
        fx_free(fx);
    }
}

/* F01: 10 elements, 8 ranks, alignment 16: 128 in all, and rank 0 owns every value. */
static void ranks_past_the_end_own_padding_only(void **state)
{
    struct fx *fx = fx_new(1, 8, 512, 16);
    uint64_t count;

    (void)state;
    fx_open(fx, 0, 10);
    assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_PARAMS, 7), 128 * 4);
    for (uint64_t i = 0; i < 10; i++) {
        assert_int_equal(zero_param_ref(fx->zero, 0, i, 5, &count).offset_bytes, i * 4);
        assert_int_equal(count, 10 - i);
        assert_int_equal(zero_master_ref(fx->zero, 0, i, 0, &count).offset_bytes, i * 4);
        assert_int_equal(count, 10 - i);
        assert_int_equal(zero_master_ref(fx->zero, 0, i, 1, &count).kind, GW_ARENA_NONE);
        assert_int_equal(count, 10 - i);
    }
    assert_int_equal(zero_param_ref(fx->zero, 0, 10, 0, &count).kind, GW_ARENA_NONE);
    assert_int_equal(count, 0);
    assert_int_equal(zero_master_ref(fx->zero, 1, 0, 0, &count).kind, GW_ARENA_NONE);
    assert_int_equal(count, 0);
    fx_free(fx);
}

static void assert_ref(struct core_ref ref, uint8_t kind, int rank, uint64_t element)
{
    assert_int_equal(ref.kind, kind);
    assert_int_equal(ref.rank, rank);
    assert_int_equal(ref.offset_bytes, element * 4);
}

static void parameters_lie_with_their_owner(void **state)
{
    struct fx *fx;
    uint64_t count;

    (void)state;
    fx = open_memory(0, GW_ACCUMULATE_LOCAL, 1, 0);
    assert_ref(zero_param_slice(fx->zero, 1, 1), GW_ARENA_PARAMS, 1, 8);
    assert_ref(zero_param_ref(fx->zero, 1, 1, 0, &count), GW_ARENA_PARAMS, 0, 9);
    assert_int_equal(count, 5);
    assert_ref(zero_master_ref(fx->zero, 1, 1, 1, &count), GW_ARENA_PARAMS, 1, 9);
    assert_int_equal(count, 5);
    fx_free(fx);

    fx = open_memory(2, GW_ACCUMULATE_SHARD, 1, 0);
    assert_ref(zero_param_slice(fx->zero, 1, 1), GW_ARENA_PARAMS, 1, 12);
    assert_ref(zero_param_ref(fx->zero, 1, 1, 1, &count), GW_ARENA_PARAMS, 1, 9);
    assert_int_equal(count, 5); /* a whole replica */
    assert_ref(zero_master_ref(fx->zero, 1, 1, 0, &count), GW_ARENA_PARAMS, 0, 9);
    assert_int_equal(count, 3); /* to the end of rank 0's slice */
    assert_int_equal(zero_master_ref(fx->zero, 1, 1, 1, &count).kind, GW_ARENA_NONE);
    assert_int_equal(count, 3);
    assert_ref(zero_master_ref(fx->zero, 1, 5, 1, &count), GW_ARENA_PARAMS, 1, 13);
    assert_int_equal(count, 1);
    fx_free(fx);

    fx = open_memory(3, GW_ACCUMULATE_SHARD, 1, 0); /* spans one after the other: 4 + 4 */
    assert_ref(zero_param_slice(fx->zero, 1, 1), GW_ARENA_PARAMS, 1, 4);
    assert_ref(zero_param_ref(fx->zero, 1, 5, 1, &count), GW_ARENA_PARAMS, 1, 5);
    assert_ref(zero_master_ref(fx->zero, 1, 5, 1, &count), GW_ARENA_PARAMS, 1, 5);
    assert_int_equal(zero_param_ref(fx->zero, 1, 5, 0, &count).kind, GW_ARENA_NONE);
    assert_int_equal(count, 1);
    assert_ref(zero_param_ref(fx->zero, 0, 2, 0, &count), GW_ARENA_PARAMS, 0, 2);
    assert_int_equal(count, 2);
    fx_free(fx);

    fx = open_memory(3, GW_ACCUMULATE_SHARD, 1, GW_GATHER_MAPPED);
    assert_ref(zero_param_slice(fx->zero, 1, 1), GW_ARENA_SHARED_PARAMS, -1, 12);
    assert_ref(zero_param_ref(fx->zero, 1, 5, 0, &count), GW_ARENA_SHARED_PARAMS, -1, 13);
    assert_ref(zero_master_ref(fx->zero, 1, 5, 1, &count), GW_ARENA_SHARED_PARAMS, -1, 13);
    assert_int_equal(zero_master_ref(fx->zero, 1, 5, 0, &count).kind, GW_ARENA_NONE);
    fx_free(fx);
}

/* Every element of a parameter cut into buckets is found, once, in its flat place. */
static void pieces_of_a_cut_parameter_are_found(void **state)
{
    struct fx *fx = fx_new(1, 3, 6, 1);
    uint64_t count;

    (void)state;
    fx_open(fx, 0, 4, 20);
    for (uint64_t i = 0; i < 20; i++) {
        const struct gw_layout_param *param = &layout_params(fx->layout)[1];
        /* buckets of 6, slices of 2; the last has 2 elements, padded to 3: slices of 1 */
        uint32_t owner = (uint32_t)(i < 18 ? i % 6 / 2 : i - 18);

        for (uint32_t r = 0; r < 3; r++) {
            struct core_ref ref = zero_master_ref(fx->zero, 1, i, r, &count);

            if (r == owner)
                assert_ref(ref, GW_ARENA_PARAMS, (int)owner, param->offset + i);
            else
                assert_int_equal(ref.kind, GW_ARENA_NONE);
            assert_int_equal(count, i < 18 ? 2 - i % 2 : 1);
        }
    }
    fx_free(fx);
}

/* ---- MEASURE --------------------------------------------------------------------------------- */

/* Each op of a pass takes `duration`; the passes 1, 3 and 2 times that. */
static uint32_t run_passes(struct fx *fx, uint64_t duration_ns)
{
    static const uint64_t times[] = {1, 3, 2};
    uint32_t ops = 0, launches = 0;

    while (fx->open_count) {
        uint64_t id = fx->open[0];

        for (uint32_t i = 1; i < fx->open_count; i++)
            id = fx->open[i] < id ? fx->open[i] : id;
        launches = fx->launched[CORE_OP_REDUCE_SCATTER] + fx->launched[CORE_OP_ALL_REDUCE];
        fx_done(fx, id, 1000, 1000 + duration_ns * times[(launches - 1) / 2]);
        ops++;
    }
    return ops;
}

static void measure_runs_each_op_three_times_alone(void **state)
{
    /* stage 0: 2 reductions; 1-2: and 2 gathers; 3: two fetch units, counted twice each */
    static const uint64_t alone[4] = {2 * 14, 4 * 14, 4 * 14, 6 * 14};
    static const uint32_t ops[4] = {3 * 2, 3 * (2 + 4), 3 * (2 + 4), 3 * (2 + 4)};

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct wire_msg stats = {.type = WIRE_STATS};
        struct fx *fx = fx_new(stage, 2, 4, 1);

        fx_open(fx, 0, 4, 4);
        assert_int_equal(fx_request(fx, 1, WIRE_MEASURE), 0);
        fx_expect(fx, "");
        assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
        if (stage == 2)
            fx_expect(fx, "RS b0 n2 measure [R0:0 R1:0] -> [S0:0 S1:0]\n"
                          "RS b1 n2 measure [R0:4 R1:4] -> [S0:2 S1:2]\n");
        assert_int_equal(run_passes(fx, 7), ops[stage]);
        assert_non_null(strstr(fx_lines(fx), "DONE@0 0\nDONE@1 0\n"));
        for (uint32_t rank = 0; rank < 2; rank++) {
            zero_stats(fx->zero, rank, &stats);
            assert_int_equal(stats.u.stats.comm_alone_ns, alone[stage]);
            assert_int_equal(stats.u.stats.comm_ns, 0); /* no step was made */
        }
        /* the first step is as if nothing had been */
        for (uint32_t rank = 0; rank < 2; rank++)
            assert_int_equal(fx_ready(fx, rank, 1, 0, 0), 0);
        assert_non_null(strstr(fx_lines(fx), "sig b1@0=1 b1@1=1"));
        fx_free(fx);
    }
}

/* A step of accumulate=shard reduces each bucket in every micro-step. */
static void measured_reductions_count_for_each_micro_step(void **state)
{
    struct wire_msg stats = {.type = WIRE_STATS};
    struct fx *fx = fx_new(1, 1, 4, 1);

    (void)state;
    fx->options.accumulate = GW_ACCUMULATE_SHARD;
    fx->options.micro_steps = 3;
    fx_open(fx, 0, 4, 4);
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    run_passes(fx, 10);
    zero_stats(fx->zero, 0, &stats);
    assert_int_equal(stats.u.stats.comm_alone_ns, 2 * 20 * 3 + 2 * 20);
    fx_free(fx);
}

static void measure_is_for_before_the_first_step(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx_open(fx, 0, 4, 4);
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 1, 1, 0, 0), 0); /* then nobody can wait for rank 1's measure */
    fx_expect(fx, "DONE@0 -2\n");
    assert_non_null(strstr(fx->last_text, "rank 1"));
    assert_int_equal(fx_request(fx, 1, WIRE_MEASURE), 0);
    fx_expect(fx, "DONE@1 -2\n");
    fx_free(fx);
    /* a step's message in the middle of it */
    fx = fx_new(2, 1, 4, 1);
    fx_open(fx, 0, 4);
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), GW_E_STATE);
    fx_free(fx);
}

static void a_job_without_ops_measures_nothing(void **state)
{
    struct fx *fx = fx_new(3, 2, 4, 1);

    (void)state;
    fx_open(fx, 0, 0);
    assert_int_equal(fx_request(fx, 0, WIRE_MEASURE), 0);
    assert_int_equal(fx_request(fx, 1, WIRE_MEASURE), 0);
    fx_expect(fx, "DONE@0 0\nDONE@1 0\n");
    fx_free(fx);
}

/* ---- PARAM_IO -------------------------------------------------------------------------------- */

static struct fx *open_io(void)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    fx_open(fx, 0, 4, 3);
    return fx;
}

static void parameters_are_written_and_read_at_once(void **state)
{
    struct fx *fx = open_io();

    (void)state;
    assert_int_equal(fx_io(fx, 0, 1, 1, 1, 2), 0);
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 4), 0);
    assert_int_equal(fx_io(fx, 1, 0, 1, 3, 0), 0); /* nothing, at the end */
    fx_expect(fx, "IO@0 w p1 1+2\nIO@1 r p0 0+4\nIO@1 r p1 3+0\n");
    fx_free(fx);
}

static void parts_that_do_not_exist_are_refused(void **state)
{
    struct fx *fx = open_io();

    (void)state;
    assert_int_equal(fx_io(fx, 0, 1, 2, 0, 1), 0);
    assert_int_equal(fx_io(fx, 0, 1, 1, 2, 2), 0);
    assert_int_equal(fx_io(fx, 0, 1, 1, UINT64_MAX, 2), 0);
    assert_int_equal(fx_io(fx, 0, 1, 1, 1, UINT64_MAX), 0);
    fx_expect(fx, "DONE@0 -1\nDONE@0 -1\nDONE@0 -1\nDONE@0 -1\n");
    fx_free(fx);
    fx = fx_new(2, 1, 1 << 21, 1);
    fx_open(fx, 0, (1 << 17) + 1);
    assert_int_equal(fx_io(fx, 0, 1, 0, 0, 1 << 17), 0);
    assert_int_equal(fx_io(fx, 0, 1, 0, 0, (1 << 17) + 1), 0); /* more than staging holds */
    assert_int_equal(fx_count(fx, "DONE@0 -1"), 1);
    fx_free(fx);
}

static void not_in_the_middle_of_a_step(void **state)
{
    struct fx *fx = open_io();

    (void)state;
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 0), 0);
    fx_lines(fx);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 1), 0);
    fx_expect(fx, "DONE@0 -2\n");
    assert_non_null(strstr(fx->last_text, "rank 1 has fetched unit 'p0'"));
    assert_int_equal(fx_unit(fx, 1, WIRE_RELEASE, 0), 0);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 1), 0);
    fx_expect(fx, "IO@0 r p0 0+1\n");
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 1), 0);
    fx_expect(fx, "DONE@0 -2\n");
    assert_non_null(strstr(fx->last_text, "rank 1 is in step 1 already (gradients declared)"));
    fx_free(fx);
}

static void reads_wait_for_updates_and_gathers(void **state)
{
    struct fx *fx = open_io();

    (void)state;
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    fx_lines(fx);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 1), 0); /* nobody updates (yet): now */
    fx_expect(fx, "IO@0 r p0 0+1\n");
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA sig update@0=1\nBA sig update@1=1\n");
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 1), 0); /* it would wait for itself */
    fx_expect(fx, "DONE@1 -2\n");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 1), 0);
    fx_expect(fx, ""); /* rank 0 is writing */
    assert_int_equal(fx_io(fx, 1, 0, 0, 0, 2), 0); /* one at a time in its staging memory */
    fx_expect(fx, "DONE@1 -10\n");
    assert_true(zero_needs(fx->zero, 0));
    assert_false(zero_needs(fx->zero, 1));
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    assert_int_equal(fx_count(fx, "GA"), 4);
    fx_all_done(fx);
    fx_expect(fx, "IO@1 r p0 0+1\n");
    fx_free(fx);
}

/* One rank has updated, another has not gone on yet: shards are of two versions. */
static void reads_wait_for_one_version_everywhere(void **state)
{
    struct fx *fx = open_io();

    (void)state;
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_COMMIT), 0);
    fx_lines(fx);
    assert_int_equal(fx_io(fx, 0, 0, 0, 0, 1), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    fx_all_done(fx);
    assert_int_equal(fx_count(fx, "IO@0 r p0 0+1"), 1);
    fx_free(fx);
}

/* ---- what is judged by what all have said ---------------------------------------------------- */

/* Rank 1 has released before rank 0 asks, which another way than ours has told rank 0. */
static void a_release_that_is_still_unread_is_no_reason_to_refuse(void **state)
{
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct fx *fx = fx_new(stage, 2, 4, 1);
        struct wire_msg io, measure = {.type = WIRE_MEASURE, .request = 77};

        (void)state;
        fx_open(fx, 0, 4, 3);
        assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 0), 0);
        fx_all_done(fx);
        fx_lines(fx);
        io = fx_io_msg(fx, 0, 0, 0, 1);
        assert_int_equal(zero_unheard(fx->zero), 0);
        assert_int_equal(fx_send_early(fx, 0, &io), 0);
        assert_int_equal(fx_send_early(fx, 0, &measure), 0);
        assert_int_equal(zero_unheard(fx->zero), 2);
        fx_expect(fx, "");
        assert_int_equal(fx_unit(fx, 1, WIRE_RELEASE, 0), 0);
        fx_expect(fx, "");
        assert_int_equal(fx_heard(fx), 0);
        assert_int_equal(zero_unheard(fx->zero), 0);
        fx_expect(fx, "IO@0 r p0 0+1\n"); /* the measurement waits for rank 1 */
        assert_int_equal(fx_request(fx, 1, WIRE_MEASURE), 0);
        while (fx->open_count)
            fx_done(fx, fx->open[0], 0, 1);
        assert_non_null(strstr(fx_lines(fx), "DONE@0 0\nDONE@1 0\n"));
        fx_free(fx);
    }
}

static void a_step_s_end_that_is_still_unread_is_no_reason_to_refuse(void **state)
{
    struct fx *fx = open_io();
    struct wire_msg io = fx_io_msg(fx, 0, 0, 0, 1);

    (void)state;
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    assert_int_equal(fx_ready(fx, 1, 0, 0, 0), 0);
    fx_lines(fx);
    assert_int_equal(fx_send_early(fx, 0, &io), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    fx_all_done(fx);
    assert_int_equal(fx_count(fx, "DONE@0 -2"), 0);
    assert_int_equal(fx_heard(fx), 0);
    fx_expect(fx, "IO@0 r p0 0+1\n");
    fx_free(fx);
}

static void what_was_not_ended_before_is_refused(void **state)
{
    struct fx *fx = open_io();
    struct wire_msg io = fx_io_msg(fx, 0, 0, 0, 1), measure = {.type = WIRE_MEASURE, .request = 9};

    (void)state;
    assert_int_equal(fx_send_early(fx, 0, &io), 0);
    assert_int_equal(fx_send_early(fx, 0, &measure), 0);
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 0), 0); /* was sent before */
    fx_lines(fx);
    assert_int_equal(fx_heard(fx), 0);
    fx_expect(fx, "DONE@0 -2\nDONE@0 -2\n");
    assert_non_null(strstr(fx->last_text, "rank 1 has fetched unit 'p0'"));
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_are_known_by_name),
        cmocka_unit_test(arenas_of_all_stages_and_modes),
        cmocka_unit_test(a_gather_budget_past_the_end_is_a_pool_of_all_units),
        cmocka_unit_test(ranks_past_the_end_own_padding_only),
        cmocka_unit_test(parameters_lie_with_their_owner),
        cmocka_unit_test(pieces_of_a_cut_parameter_are_found),
        cmocka_unit_test(measure_runs_each_op_three_times_alone),
        cmocka_unit_test(measured_reductions_count_for_each_micro_step),
        cmocka_unit_test(measure_is_for_before_the_first_step),
        cmocka_unit_test(a_job_without_ops_measures_nothing),
        cmocka_unit_test(parameters_are_written_and_read_at_once),
        cmocka_unit_test(parts_that_do_not_exist_are_refused),
        cmocka_unit_test(not_in_the_middle_of_a_step),
        cmocka_unit_test(reads_wait_for_updates_and_gathers),
        cmocka_unit_test(reads_wait_for_one_version_everywhere),
        cmocka_unit_test(a_release_that_is_still_unread_is_no_reason_to_refuse),
        cmocka_unit_test(a_step_s_end_that_is_still_unread_is_no_reason_to_refuse),
        cmocka_unit_test(what_was_not_ended_before_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
