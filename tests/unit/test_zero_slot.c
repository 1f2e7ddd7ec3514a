/* SPDX-License-Identifier: Apache-2.0 */
/* Ring slots: who may use which, whom ACQUIRE answers when, and overflow. */
#include "test_zero_fixture.h"

/* Two ranks, `slots` slots, six buckets of 4 elements (5 first in launch order). */
static struct fx *open_ring(uint32_t slots, uint32_t overlap_off)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    fx->options.ring_slots = slots;
    fx->options.overlap_off = overlap_off;
    fx_open(fx, 0, 4, 4, 4, 4, 4, 4);
    return fx;
}

/* ---- what is wrong with a slot --------------------------------------------------------------- */

static void a_held_slot_is_busy(void **state)
{
    struct fx *fx = open_ring(2, 0);

    (void)state;
    assert_int_equal(fx_ready(fx, 1, 5, 0, 1), 0);
    assert_int_equal(fx_ready(fx, 1, 4, 0, 1), GW_E_BUSY);
    assert_int_equal(fx->fault.rank, 1);
    assert_string_equal(
        fx->fault.text,
        "rank 1 put a gradient of bucket 4 into slot 1, which still holds bucket 5: "
        "acquire a free one first");
    fx_free(fx);
}

/* Launched is enough: the client sees the word before the core sees the completion. */
static void a_launched_slot_may_be_used_again(void **state)
{
    struct fx *fx = open_ring(2, 0);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 5, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 1, 5, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 4, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 1, 4, 0, 1), 0);
    fx_expect(fx, "RS b5 n2 [R0:0 R1:0] -> [S0:10 S1:10] sig b5@0=1 b5@1=1\n"
                  "RS b4 n2 [R0:0 R1:4] -> [S0:8 S1:8] sig b4@0=1 b4@1=1\n");
    fx_free(fx);
}

static void slots_out_of_range_or_mixed_are_refused(void **state)
{
    struct fx *fx = open_ring(2, 0);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 5, 0, 2), GW_E_INVALID);
    fx_free(fx);
    fx = open_ring(2, 0);
    assert_int_equal(fx_ready(fx, 0, 5, 0, GW_NO_SLOT), GW_E_INVALID);
    fx_free(fx);
    fx = fx_new(2, 2, 4, 1);
    fx_open(fx, 0, 2, 2);
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 1), GW_E_INVALID);
    assert_non_null(strstr(fx->fault.text, "slots 0 and 1"));
    fx_free(fx);
}

static void acquire_without_a_ring_is_answered(void **state)
{
    struct fx *fx = fx_new(0, 2, 4, 1);

    (void)state;
    fx_open(fx, 0, 4);
    assert_int_equal(fx_acquire(fx, 0, 0), 0);
    fx_expect(fx, "DONE@0 -1\n");
    fx_free(fx);
    fx = open_ring(2, 0);
    assert_int_equal(fx_acquire(fx, 0, 6), 0);
    fx_expect(fx, "DONE@0 -1\n");
    fx_free(fx);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* R05: three equal buckets through two buffers: the third waits for the first only. */
static void the_third_bucket_waits_for_the_first_only(void **state)
{
    struct fx *fx = open_ring(2, 0);

    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fx_ready(fx, rank, 5, 0, 0), 0);
        assert_int_equal(fx_ready(fx, rank, 4, 0, 1), 0);
    }
    assert_int_equal(fx_count(fx, "RS"), 2);
    assert_int_equal(fx_acquire(fx, 0, 3), 0);
    fx_expect(fx, ""); /* no overflow: a reduction in flight will free a slot */
    fx_done(fx, 1, 0, 1);
    fx_expect(fx, "ACQ@0 -1\n");
    assert_int_equal(fx_ready(fx, 0, 3, 0, 0), 0);
    fx_free(fx);
}

/* All slots hold declared buckets, and the head waits for another rank: wait too. */
static void waiting_for_a_slow_peer_grants_nothing(void **state)
{
    struct fx *fx = open_ring(2, 0);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 5, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 4, 0, 1), 0);
    assert_int_equal(fx_acquire(fx, 0, 3), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 1, 5, 0, 0), 0);
    fx_expect(fx, "RS b5 n2 [R0:0 R1:0] -> [S0:10 S1:10] sig b5@0=1 b5@1=1\n");
    fx_done(fx, 1, 0, 1);
    fx_expect(fx, "ACQ@0 -1\n");
    fx_free(fx);
}

/* One answer for each time that something became free; without news no answer, so no spinning. */
static void news_is_told_once(void **state)
{
    struct fx *fx = open_ring(2, 0);

    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, 5, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 4, 0, 1), 0);
    fx_lines(fx);
    fx_done(fx, 1, 0, 1); /* nobody waits */
    fx_expect(fx, "");
    assert_int_equal(fx_acquire(fx, 0, 3), 0); /* on its way when the slot became free */
    fx_expect(fx, "ACQ@0 -1\n");
    assert_int_equal(fx_acquire(fx, 0, 3), 0); /* another thread took it */
    fx_expect(fx, "");
    fx_free(fx);
}

/* ---- overflow -------------------------------------------------------------------------------- */

/* Both slots hold buckets that come later in the order than what is still to be written. */
static void an_overflow_slot_where_waiting_would_be_for_oneself(void **state)
{
    struct wire_msg stats = {.type = WIRE_STATS};
    struct fx *fx = open_ring(2, 0);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 1), 0);
    assert_int_equal(fx_acquire(fx, 0, 5), 0);
    fx_expect(fx, "OVF@0 0\n");
    assert_int_equal(fx_acquire(fx, 0, 5), 0); /* another piece of the same bucket */
    fx_expect(fx, "");
    assert_int_equal(fx_overflow(fx, 0, 0), 0);
    fx_expect(fx, "ACQ@0 2\nACQ@0 -1\n"); /* at most one per bucket: look again */
    assert_int_equal(fx_ready(fx, 0, 5, 0, 2), 0);
    assert_int_equal(fx_ready(fx, 1, 5, 0, 0), 0);
    fx_expect(fx, "RS b5 n2 [O0:0.0 R1:0] -> [S0:10 S1:10] sig b5@0=1 b5@1=1\n");
    zero_stats(fx->zero, 0, &stats);
    assert_int_equal(stats.u.stats.overflow_slots, 1);
    /* the slot stays the rank's */
    fx_done(fx, 1, 0, 1);
    assert_int_equal(fx_ready(fx, 0, 4, 0, 2), 0);
    assert_int_equal(fx_ready(fx, 1, 4, 0, 1), 0);
    fx_expect(fx, "RS b4 n2 [O0:0.0 R1:4] -> [S0:8 S1:8] sig b4@0=1 b4@1=1\n");
    fx_free(fx);
}

/* Gradients of the next step, declared inside the update window: their reductions wait for the
 * commit, which the rank may make after them. */
static void a_rank_inside_its_update_is_granted_one(void **state)
{
    struct fx *fx = open_ring(1, 0);

    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_bare(fx, rank, WIRE_STEP_END), 0);
    fx_all_done(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    assert_int_equal(fx_ready(fx, 0, 5, 0, 0), 0);
    fx_lines(fx);
    assert_int_equal(fx_acquire(fx, 0, 4), 0);
    fx_expect(fx, "OVF@0 0\n");
    fx_free(fx);
}

/* Two micro-steps inside one window need more slots than there are buckets: a named error. */
static void slots_end_with_the_tables(void **state)
{
    struct fx *fx = fx_new(2, 1, 4, 1);
    uint32_t slot = 0;

    (void)state;
    fx->options.ring_slots = 1;
    fx->options.micro_steps = 2;
    fx_open(fx, 0, 4, 4, 4);
    assert_int_equal(fx_bare(fx, 0, WIRE_STEP_END), 0);
    fx_all_done(fx);
    assert_int_equal(fx_bare(fx, 0, WIRE_UPDATE_BEGIN), 0);
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t bucket = 2 - i % 3;

        if (i > 0)
            assert_int_equal(fx_acquire(fx, 0, bucket), 0);
        if (i > 0 && i < 4) {
            assert_int_equal(fx_overflow(fx, 0, 0), 0);
            slot++;
        }
        if (i < 4)
            assert_int_equal(fx_ready(fx, 0, bucket, GW_GRAD_ACCUMULATE, slot), 0);
        if (i == 2)
            assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    }
    assert_int_equal(fx_count(fx, "DONE@0 -8"), 1);
    assert_non_null(strstr(fx->last_text, "its 3 overflow slots"));
    fx_free(fx);
}

/* A request whose caller gave up waiting and found a slot by itself (it sees words before the core
 * sees completions) is not granted one later: the bucket's next contribution would count it. */
static void a_stale_request_is_granted_nothing(void **state)
{
    struct fx *fx = open_ring(1, 0);

    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(fx_ready(fx, rank, 5, 0, 0), 0);
    fx_lines(fx);
    assert_int_equal(fx_acquire(fx, 0, 4), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_ready(fx, 0, 4, 0, 0), 0);
    fx_expect(fx, "ACQ@0 -1\n");
    fx_done(fx, 1, 0, 1);
    assert_int_equal(fx_ready(fx, 1, 4, 0, 0), 0);
    assert_int_equal(fx_ready(fx, 0, 1, 0, 0), 0);
    fx_lines(fx);
    fx_done(fx, 2, 1, 2);
    fx_expect(fx, ""); /* the head lacks rank 0, whose only slot is held, but nobody asks */
    assert_int_equal(fx_acquire(fx, 0, 3), 0);
    fx_expect(fx, "OVF@0 0\n");
    fx_free(fx);
}

/* What was declared by nobody so far may come to need the rank: looked at again at each launch. */
static void an_overflow_is_granted_when_the_head_comes_to_lack_the_rank(void **state)
{
    struct fx *fx = fx_new(2, 2, 4, 1);

    (void)state;
    fx->options.ring_slots = 1;
    fx->options.micro_steps = 2;
    fx_open(fx, 0, 4, 4, 4);
    /* rank 0 ended micro-step 0 with nothing in buckets 2 and 1, and holds bucket 0 */
    assert_int_equal(fx_ready(fx, 0, 0, GW_GRAD_ACCUMULATE, 0), 0);
    assert_int_equal(fx_bare(fx, 0, WIRE_MICRO_END), 0);
    assert_int_equal(fx_acquire(fx, 0, 2), 0);
    fx_expect(fx, "");
    assert_int_equal(fx_bare(fx, 1, WIRE_MICRO_END), 0);
    assert_int_equal(fx_count(fx, "RS b0"), 1);
    fx_done(fx, 1, 0, 1);
    fx_expect(fx, "ACQ@0 -1\n");
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0); /* again the last bucket first */
    assert_int_equal(fx_acquire(fx, 0, 2), 0);
    fx_expect(fx, "OVF@0 0\n");
    fx_free(fx);
}

static void no_memory_for_overflow_is_told(void **state)
{
    struct fx *fx = open_ring(1, 0);

    (void)state;
    assert_int_equal(fx_ready(fx, 0, 0, 0, 0), 0);
    assert_int_equal(fx_acquire(fx, 0, 5), 0);
    assert_int_equal(fx_overflow(fx, 0, GW_E_NOMEM), 0);
    fx_expect(fx, "OVF@0 0\nDONE@0 -3\n");
    assert_int_equal(fx_ready(fx, 0, 5, 0, 1), GW_E_INVALID); /* it was not made */
    fx_free(fx);
}

static void overlap_off_needs_a_slot_for_every_bucket(void **state)
{
    struct fx *fx = open_ring(2, 1);

    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(fx_ready(fx, rank, 5, 0, 0), 0);
        assert_int_equal(fx_ready(fx, rank, 4, 0, 1), 0);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(fx_acquire(fx, rank, 3 - i), 0);
            assert_int_equal(fx_overflow(fx, rank, 0), 0);
            assert_int_equal(fx_ready(fx, rank, 3 - i, 0, 2 + i), 0);
        }
    }
    assert_int_equal(fx_count(fx, "RS"), 6);
    assert_int_equal(fx->launched[CORE_OP_REDUCE_SCATTER], 6);
    fx_free(fx);
}

static void the_quota_is_told(void **state)
{
    struct fx *fx = fx_new(2, 1, 1, 1);
    enum { buckets = GW_OVERFLOW_MAX + 6 }; /* of one element */
    struct fx_unit params[1] = {{.numel = buckets}};

    (void)state;
    fx->options.ring_slots = 1;
    fx->options.overlap_off = 1;
    fx_open_layout(fx, params, 1, 0);
    for (uint32_t i = 0; i < GW_OVERFLOW_MAX + 2; i++) {
        struct wire_ready_entry entry = {.param = 0, .piece = buckets - 1 - i, .slot = i};

        if (i > 0) {
            assert_int_equal(fx_acquire(fx, 0, buckets - 1 - i), 0);
            if (i <= GW_OVERFLOW_MAX)
                assert_int_equal(fx_overflow(fx, 0, 0), 0);
        }
        if (i <= GW_OVERFLOW_MAX)
            assert_int_equal(fx_ready_one(fx, 0, entry), 0);
    }
    assert_int_equal(fx_count(fx, "DONE@0 -8"), 1);
    assert_non_null(strstr(fx->last_text, "1024 overflow slots"));
    fx_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_held_slot_is_busy),
        cmocka_unit_test(a_launched_slot_may_be_used_again),
        cmocka_unit_test(slots_out_of_range_or_mixed_are_refused),
        cmocka_unit_test(acquire_without_a_ring_is_answered),
        cmocka_unit_test(the_third_bucket_waits_for_the_first_only),
        cmocka_unit_test(waiting_for_a_slow_peer_grants_nothing),
        cmocka_unit_test(news_is_told_once),
        cmocka_unit_test(an_overflow_slot_where_waiting_would_be_for_oneself),
        cmocka_unit_test(a_rank_inside_its_update_is_granted_one),
        cmocka_unit_test(slots_end_with_the_tables),
        cmocka_unit_test(a_stale_request_is_granted_nothing),
        cmocka_unit_test(an_overflow_is_granted_when_the_head_comes_to_lack_the_rank),
        cmocka_unit_test(no_memory_for_overflow_is_told),
        cmocka_unit_test(overlap_off_needs_a_slot_for_every_bucket),
        cmocka_unit_test(the_quota_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
