/* SPDX-License-Identifier: Apache-2.0 */
/* Secondary shards: who gathers from where, what fills a block's copy, and what makes it stale. */
#include "test_zero_fixture.h"

/* Four ranks in blocks of two; two units of 8 elements, a bucket each. */
static struct fx *open_blocks(uint64_t drop)
{
    struct fx *fx = fx_new(3, 4, 8, 1);

    fx->options.secondary_ranks = 2;
    fx->options.gather_bytes = 24 * 4;
    fx->options.ring_slots = 8;
    fx_open(fx, drop, 8, 8);
    return fx;
}

static void fetch(struct fx *fx, uint32_t rank, uint32_t unit)
{
    assert_int_equal(fx_unit(fx, rank, WIRE_FETCH, unit), 0);
}

static void release(struct fx *fx, uint32_t rank, uint32_t unit)
{
    assert_int_equal(fx_unit(fx, rank, WIRE_RELEASE, unit), 0);
}

/* A step in which rank 1 alone commits an update, if it does; the others go on without. */
static void end_step(struct fx *fx, bool update)
{
    fx_all(fx, WIRE_STEP_END);
    fx_all_done(fx);
    if (update) {
        assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_BEGIN), 0);
        fx_all_done(fx);
        assert_int_equal(fx_bare(fx, 1, WIRE_UPDATE_COMMIT), 0);
    }
    for (uint32_t rank = 0; rank < fx->world; rank++) {
        fetch(fx, rank, 1);
        release(fx, rank, 1);
    }
    fx_all_done(fx);
    fx_lines(fx);
}

/* The first of a block gathers from all four and fills; the others of the block, and the first one
 * again, read the copy, behind the fill (op 2). The other block has its own. */
static void a_block_gathers_once_from_all(void **state)
{
    struct fx *fx = open_blocks(0);

    (void)state;
    fetch(fx, 0, 1);
    fx_expect(fx, "GA@0 b1 n2 [L0:8] sig u1@0=1+8\n"
                  "FI@0 b1 n4 r0,1 [L0:8]\n"); /* op 2 */
    fetch(fx, 1, 1);
    fx_expect(fx, "GA@1 b1 n4 second r0,1 [L1:8] sig u1@1=1+8 <2\n");
    fetch(fx, 3, 1);
    fx_expect(fx, "GA@3 b1 n2 [L3:8] sig u1@3=1+8\n"
                  "FI@3 b1 n4 r2,3 [L3:8]\n");
    fetch(fx, 2, 1);
    fx_expect(fx, "GA@2 b1 n4 second r2,3 [L2:8] sig u1@2=1+8 <5\n");
    release(fx, 0, 1);
    fetch(fx, 0, 0);
    fx_expect(fx, "GA@0 b0 n2 [L0:0] sig u0@0=1\n"
                  "FI@0 b0 n4 r0,1 [L0:0]\n");
    fx_all_done(fx);
    fetch(fx, 0, 1);
    fx_expect(fx, "GA@0 b1 n4 second r0,1 [L0:8] sig u1@0=2+8\n");
    fx_free(fx);
}

/* What the engine is told: a gather from a copy counts as one over the block's ranks; the copy's
 * slices lie at equal places. */
static void ops_carry_sources_and_sizes(void **state)
{
    struct fx *fx = open_blocks(0);
    struct core_event event = {.kind = CORE_EV_REQUEST, .rank = 2};
    struct wire_msg msg = {.type = WIRE_FETCH, .u.unit.unit = 1};
    struct core_effect effect;

    (void)state;
    fetch(fx, 3, 1);
    event.msg = &msg;
    assert_int_equal(zero_event(fx->zero, 50, &event, &fx->fault), 0);
    assert_true(effects_take(fx->effects, &effect));
    assert_int_equal(effect.op.kind, CORE_OP_GATHER);
    assert_int_equal(effect.op.traffic, GW_KIND_ALL_GATHER);
    assert_int_equal(effect.op.secondary, 1);
    assert_int_equal(effect.op.world, 2);
    assert_int_equal(effect.op.payload_bytes, 32);
    for (uint32_t r = 0; r < 4; r++) {
        struct core_ref at = zero_secondary_slice(fx->zero, 1, r);

        assert_int_equal(at.kind, GW_ARENA_SECONDARY);
        assert_int_equal(at.rank, r);
        assert_int_equal(at.offset_bytes, 16); /* half of the bucket before it */
        assert_int_equal(zero_arena_bytes(fx->zero, GW_ARENA_SECONDARY, (int)r), 32);
    }
    assert_int_equal(zero_secondary_slice(fx->zero, 2, 0).kind, GW_ARENA_NONE);
    fx_free(fx);
}

/* The copy goes on as long as nobody commits; one owner's commit makes all of it stale. */
static void a_commit_makes_copies_stale(void **state)
{
    struct fx *fx = open_blocks(0);

    (void)state;
    fetch(fx, 0, 0);
    release(fx, 0, 0);
    end_step(fx, false);
    fetch(fx, 1, 0);
    assert_non_null(strstr(fx_lines(fx), "GA@1 b0 n4 second r0,1 "));
    release(fx, 1, 0);
    end_step(fx, true);
    fetch(fx, 1, 0);
    assert_non_null(strstr(fx_lines(fx), "GA@1 b0 n2 [L1:0] sig u0@1=2\nFI@1 b0 n4 r0,1 "));
    release(fx, 1, 0);
    fetch(fx, 0, 0);
    assert_non_null(strstr(fx_lines(fx), "GA@0 b0 n4 second r0,1 "));
    fx_free(fx);
}

/* E02: the primary shards are written between two steps. */
static void a_write_makes_copies_stale(void **state)
{
    struct fx *fx = open_blocks(0);

    (void)state;
    fetch(fx, 0, 0);
    release(fx, 0, 0);
    end_step(fx, false);
    assert_int_equal(fx_io(fx, 2, 1, 0, 3, 2), 0);
    fx_all_done(fx);
    fx_lines(fx);
    fetch(fx, 1, 0);
    assert_non_null(strstr(fx_lines(fx), "GA@1 b0 n2 [L1:0] sig u0@1=1\nFI@1 "));
    fx_free(fx);
}

/* A write waits for what fills a copy, which would bring the old values afterwards. */
static void a_write_waits_for_fills(void **state)
{
    struct fx *fx = open_blocks(0);

    (void)state;
    fetch(fx, 0, 0);
    release(fx, 0, 0);
    fx_all(fx, WIRE_STEP_END);
    fx_lines(fx);
    for (uint64_t op = 1, last = fx->open_count; op <= last; op++) {
        if (op != 2)
            fx_done(fx, op, 1, 2);
    }
    assert_int_equal(fx_io(fx, 1, 1, 0, 0, 1), 0);
    assert_int_equal(fx_count(fx, "IO"), 0);
    fx_done(fx, 2, 1, 2);
    assert_int_equal(fx_count(fx, "IO@1 w p0"), 1);
    fx_free(fx);
}

/* The window of an update waits for a fill as for the gather before it: the next one writes to the
 * same places. */
static void an_update_waits_for_fills(void **state)
{
    struct fx *fx = open_blocks(0);

    (void)state;
    fetch(fx, 0, 0);
    release(fx, 0, 0);
    fx_all(fx, WIRE_STEP_END);
    fx_lines(fx);
    assert_int_equal(fx_bare(fx, 3, WIRE_UPDATE_BEGIN), 0);
    fx_expect(fx, "BA sig update@3=1 <2\n");
    fx_free(fx);
}

/* A job that forms anew keeps no copy. */
static void a_new_generation_begins_without_copies(void **state)
{
    struct fx *fx = open_blocks(0);
    struct core_fault fault;

    (void)state;
    fetch(fx, 0, 0);
    fx_lines(fx);
    assert_int_equal(zero_reattach(fx->zero, &fault), 0);
    fetch(fx, 1, 0);
    fx_expect(fx, "GA@1 b0 n2 [L1:0] sig u0@1=1\nFI@1 b0 n4 r0,1 [L1:0]\n");
    fx_free(fx);
}

/* Edge SECONDARY left out (test builds): the copy is read without waiting. */
static void the_edge_can_be_left_out(void **state)
{
    struct fx *fx = open_blocks(1ull << EDGE_SECONDARY);

    (void)state;
    fetch(fx, 0, 1);
    fetch(fx, 1, 1);
#ifdef GW_TEST_EDGES
    assert_null(strstr(fx_lines(fx), "<2"));
#else
    assert_non_null(strstr(fx_lines(fx), "<2"));
#endif
    fx_free(fx);
}

/* Persistent parameters and other groups' have no copy; of a unit with both, each part goes its
 * way. Mapped, or in other stages, there is none at all. */
static void what_has_no_copy(void **state)
{
    static const uint32_t pair[] = {0, 1};
    static const struct fx_unit params[] = {
        {"a", 1, 0, 0, 0}, {"a", 8, 0, 0, 0}, {"b", 8, 1, 0, 0}, {"b", 8, 0, 0, 0}};
    struct fx *fx = fx_new(3, 4, 8, 1);

    (void)state;
    fx->options.secondary_ranks = 2;
    fx->options.persist_bytes = 4;
    fx->options.gather_bytes = 64 * 4;
    fx->options.ring_slots = 8;
    fx->groups[0] = (struct layout_group){.ranks = pair, .count = 2};
    fx->group_count = 1;
    fx_open_layout(fx, params, 4, 0);
    assert_int_equal(zero_secondary_slice(fx->zero, 0, 0).kind, GW_ARENA_NONE); /* persistent */
    fetch(fx, 0, 0);
    fx_lines(fx);
    fetch(fx, 1, 0);
    assert_non_null(strstr(fx_lines(fx), "GA@1 b0 n1 measure ["));
    fetch(fx, 0, 1);
    fx_expect(fx, "GA@0 b2 n4 r0,1 [L0:12]\n"
                  "GA@0 b3 n2 [L0:20] sig u1@0=1+12\n"
                  "FI@0 b3 n4 r0,1 [L0:20]\n");
    fetch(fx, 1, 1);
    assert_non_null(strstr(fx_lines(fx), "GA@1 b2 n4 r0,1 [L1:12]\n"
                                         "GA@1 b3 n4 second r0,1 [L1:20] sig u1@1=1+12"));
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_gathers_once_from_all),
        cmocka_unit_test(ops_carry_sources_and_sizes),
        cmocka_unit_test(a_commit_makes_copies_stale),
        cmocka_unit_test(a_write_makes_copies_stale),
        cmocka_unit_test(a_write_waits_for_fills),
        cmocka_unit_test(an_update_waits_for_fills),
        cmocka_unit_test(a_new_generation_begins_without_copies),
        cmocka_unit_test(the_edge_can_be_left_out),
        cmocka_unit_test(what_has_no_copy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
