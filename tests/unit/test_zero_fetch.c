/* SPDX-License-Identifier: Apache-2.0 */
/* Fetch and release in stage 3, private and mapped: which gathers, where to, and what is
 * signalled. */
#include "test_zero_fixture.h"

/* Two ranks, four units of 8 elements in buckets of 4 (two each), budget 24, 8 ahead. */
static struct fx *open_units(uint32_t gather)
{
    struct fx *fx = fx_new(3, 2, 4, 1);

    fx->options.gather = gather;
    fx->options.gather_bytes = 23 * 4;
    fx->options.prefetch_bytes = 8 * 4;
    fx->options.ring_slots = 8;
    fx_open(fx, 0, 8, 8, 8, 8);
    return fx;
}

static void use(struct fx *fx, uint32_t rank, uint32_t unit)
{
    assert_int_equal(fx_unit(fx, rank, WIRE_FETCH, unit), 0);
    assert_int_equal(fx_unit(fx, rank, WIRE_RELEASE, unit), 0);
}

static void end_step(struct fx *fx)
{
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    fx_all(fx, WIRE_UPDATE_BEGIN);
    fx_all(fx, WIRE_UPDATE_COMMIT);
    fx_lines(fx);
}

/* A fetch unit of two buckets is one op; the unit's word rises with it, with where it lies. */
static void a_fetch_is_one_gather(void **state)
{
    struct fx *fx = open_units(GW_GATHER_PRIVATE);

    (void)state;
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "GA@0 b2+2 n4 [L0:0] sig u1@0=1\n");
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 3), 0);
    fx_expect(fx, "GA@0 b6+2 n4 [L0:8] sig u3@0=1+8\n");
    /* again while it is under way: no gather, but after that one; when done: at once */
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 3), 0);
    fx_expect(fx, "SIG u3@0=2+8 <2\n");
    fx_all_done(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "SIG u1@0=2\n");
    /* the other rank has its own pool and words */
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 3), 0);
    fx_expect(fx, "GA@1 b6+2 n4 [L1:0] sig u3@1=1\n");
    fx_free(fx);
}

static void a_gather_carries_payload_and_padding(void **state)
{
    struct fx *fx = fx_new(3, 4, 8, 1);
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = 2};
    struct wire_msg msg = {.type = WIRE_FETCH};
    struct core_effect effect;

    (void)state;
    fx_open(fx, 0, 9); /* cut into 8 and 1 (padded 4) */
    event.msg = &msg;
    assert_int_equal(zero_event(fx->zero, 50, &event, &fx->fault), 0);
    assert_true(effects_take(fx->effects, &effect));
    assert_int_equal(effect.op.kind, CORE_OP_GATHER);
    assert_int_equal(effect.op.stream, CORE_STREAM_GATHER);
    assert_int_equal(effect.op.traffic, GW_KIND_ALL_GATHER);
    assert_int_equal(effect.op.rank, 2);
    assert_int_equal(effect.op.bucket_count, 2);
    assert_int_equal(effect.op.numel, 3);
    assert_int_equal(effect.op.payload_bytes, 36);
    assert_int_equal(effect.op.padding_bytes, 12);
    assert_int_equal(effect.op.in_place_skip, 0);
    assert_int_equal(effect.op.ready_ns, 50);
    fx_free(fx);
}

/* 3 Psi: two all-gathers per fetch unit, rank and step, from the first step on, in both modes. */
static void two_gathers_per_unit_and_step(void **state)
{
    (void)state;
    for (uint32_t mode = GW_GATHER_PRIVATE; mode <= GW_GATHER_MAPPED; mode++) {
        struct fx *fx = open_units(mode);

        for (uint32_t step = 1; step <= 3; step++) {
            for (uint32_t rank = 0; rank < 2; rank++) {
                for (uint32_t u = 0; u < 4; u++)
                    use(fx, rank, u);
                for (uint32_t u = 4; u-- > 0;)
                    use(fx, rank, u);
            }
            end_step(fx);
            assert_int_equal(fx->launched[CORE_OP_GATHER], step * 2 * 4 * 2);
        }
        fx_free(fx);
    }
}

/* Mapped: the same decisions, counted as such, but nothing to copy and no place. */
static void mapped_moves_nothing(void **state)
{
    struct wire_msg stats = {.type = WIRE_STATS};
    struct fx *fx = open_units(GW_GATHER_MAPPED);

    (void)state;
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 3), 0);
    fx_expect(fx, "GA@0 b2+2 n4 [-] sig u1@0=1\n"
                  "GA@0 b6+2 n4 [-] sig u3@0=1\n");
    zero_stats(fx->zero, 0, &stats);
    assert_int_equal(stats.u.stats.prefetch_misses, 2);
    assert_int_equal(stats.u.stats.gathered_bytes_now, 0);
    fx_free(fx);
}

/* Fetch current, then ahead of need: the order of launches on the rank's stream. */
static void the_second_step_gathers_ahead(void **state)
{
    struct wire_msg stats = {.type = WIRE_STATS};
    struct fx *fx = open_units(GW_GATHER_PRIVATE);

    (void)state;
    for (uint32_t u = 0; u < 4; u++)
        use(fx, 0, u);
    end_step(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0); /* after the verdict, op 4 + 1 + 8 zeroes */
    assert_non_null(strstr(fx_lines(fx), "GA@0 b0+2 n4 [L0:0] sig u0@0=2\nGA@0 b2+2 n4 [L0:8]\n"));
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 0), 0);
    fx_all_done(fx);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    fx_expect(fx, "SIG u1@0=2+8\nGA@0 b4+2 n4 [L0:0]\n");
    zero_stats(fx->zero, 0, &stats);
    assert_int_equal(stats.u.stats.prefetch_hits, 1);
    assert_int_equal(stats.u.stats.prefetch_misses, 5);
    assert_int_equal(stats.u.stats.gathered_bytes_now, 64);
    assert_int_equal(stats.u.stats.gathered_bytes_max, 64);
    fx_free(fx);
}

static void overlap_off_gathers_nothing_ahead(void **state)
{
    struct fx *fx = fx_new(3, 1, 4, 1);

    (void)state;
    fx->options.overlap_off = 1;
    fx_open(fx, 0, 4, 4, 4);
    for (int step = 0; step < 2; step++) {
        for (uint32_t u = 0; u < 3; u++) {
            assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, u), 0);
            assert_int_equal(fx_count(fx, "GA"), 1);
            assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, u), 0);
            assert_int_equal(fx_count(fx, "GA"), 0);
        }
        end_step(fx);
    }
    fx_free(fx);
}

/* C02: ranks fetch different units, or none; nobody waits for anybody. */
static void ranks_fetch_what_they_like(void **state)
{
    struct fx *fx = open_units(GW_GATHER_PRIVATE);

    (void)state;
    use(fx, 1, 3);
    end_step(fx);
    use(fx, 0, 2);
    fx_all_done(fx);
    end_step(fx);
    assert_int_equal(fx->launched[CORE_OP_GATHER], 2);
    fx_free(fx);
}

/* A fetch of the next step, made and given back before the others have committed, is served in
 * order when they have; the step's end belongs to that sequence too. */
static void early_fetches_are_served_in_order(void **state)
{
    struct fx *fx = open_units(GW_GATHER_PRIVATE);

    (void)state;
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 2), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 2), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 1), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    fx_expect(fx, "BA sig update@1=1\n"
                  "GA@0 b4+2 n4 [L0:0] sig u2@0=1\nGA@0 b2+2 n4 [L0:0] sig u1@0=1\n");
    /* now rank 1's end of step 2; then 2, 1 is the record of rank 0 */
    assert_int_equal(fx_bare(fx, 1, WIRE_STEP_END), 0);
    fx_all_done(fx);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 0), 0);
    fx_lines(fx);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 2), 0);
    assert_int_equal(fx_count(fx, "GA"), 3); /* rank 1's, served now, and rank 0's two */
    fx_free(fx);
}

static void the_budget_fault_names_unit_and_sizes(void **state)
{
    struct fx *fx = fx_new(3, 2, 4, 1);

    (void)state;
    fx->options.gather_bytes = 24 * 4; /* and one more: all there is */
    fx->options.prefetch_bytes = 8 * 4;
    fx_open(fx, 0, 8, 8, 8, 8);
    for (uint32_t u = 0; u < 4; u++)
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, u), 0);
    fx_free(fx);
    fx = fx_new(3, 2, 4, 1);
    fx->options.gather_bytes = 16 * 4;
    fx->options.prefetch_bytes = 8 * 4;
    fx_open(fx, 0, 8, 8, 8, 8);
    for (uint32_t u = 0; u < 3; u++)
        assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, u), 0);
    assert_int_equal(fx_unit(fx, 1, WIRE_FETCH, 3), GW_E_BUDGET);
    assert_int_equal(fx->fault.rank, 1);
    assert_string_equal(fx->fault.text,
                        "rank 1 fetched unit 'p3' of 32 bytes, but holds 96 bytes of other units "
                        "with a gather budget of 64: release units earlier, or raise gather_bytes");
    fx_free(fx);
}

/* Units of 1 and 3 elements fill the pool; those of 3 are released, and one of 4 finds no place. */
static void the_budget_fault_tells_of_a_pool_in_pieces(void **state)
{
    struct fx *fx = fx_new(3, 1, 1, 1);

    (void)state;
    fx->options.gather_bytes = 12 * 4; /* and one more: 16 elements */
    fx_open(fx, 0, 1, 3, 1, 3, 1, 3, 1, 3, 4);
    for (uint32_t u = 0; u < 8; u++)
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, u), 0);
    for (uint32_t u = 1; u < 8; u += 2)
        assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, u), 0);
    assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 8), GW_E_BUDGET);
    assert_string_equal(fx->fault.text,
                        "rank 0 fetched unit 'p8' of 16 bytes, but holds 16 bytes of other units "
                        "with a gather budget of 48: of its pool 48 bytes are free, but at most 12 "
                        "in one piece, between units held: release the oldest first, or raise "
                        "gather_bytes");
    fx_free(fx);
}

static void releases_and_ends_that_do_not_fit(void **state)
{
    struct fx *fx;

    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        fx = fx_new(stage, 1, 4, 1);
        fx_open(fx, 0, 4);
        assert_int_equal(fx_unit(fx, 0, WIRE_RELEASE, 0), GW_E_STATE);
        assert_non_null(strstr(fx->fault.text, "'p0'"));
        fx_free(fx);
        fx = fx_new(stage, 1, 4, 1);
        fx_open(fx, 0, 4);
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 1), GW_E_INVALID);
        fx_free(fx);
        fx = fx_new(stage, 1, 4, 1);
        fx_open(fx, 0, 4);
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), 0);
        assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), GW_E_STATE);
        assert_non_null(strstr(fx->fault.text, "'p0'"));
        fx_free(fx);
    }
}

/* A job without parameters has no unit that a step's end could be taken for (ASan looks). */
static void steps_without_units_end(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 4; stage++) {
        struct fx *fx = fx_new(stage, 2, 4, 1);

        fx_open_layout(fx, NULL, 0, 0);
        for (uint32_t i = 0; i < 2; i++) {
            fx_all(fx, WIRE_STEP_END);
            fx_all_done(fx);
        }
        assert_int_equal(fx_unit(fx, 0, WIRE_FETCH, 0), GW_E_INVALID);
        fx_free(fx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fetch_is_one_gather),
        cmocka_unit_test(a_gather_carries_payload_and_padding),
        cmocka_unit_test(two_gathers_per_unit_and_step),
        cmocka_unit_test(mapped_moves_nothing),
        cmocka_unit_test(the_second_step_gathers_ahead),
        cmocka_unit_test(overlap_off_gathers_nothing_ahead),
        cmocka_unit_test(ranks_fetch_what_they_like),
        cmocka_unit_test(early_fetches_are_served_in_order),
        cmocka_unit_test(the_budget_fault_names_unit_and_sizes),
        cmocka_unit_test(the_budget_fault_tells_of_a_pool_in_pieces),
        cmocka_unit_test(releases_and_ends_that_do_not_fit),
        cmocka_unit_test(steps_without_units_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
