/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA kernels do beside sums, in their CPU build: moving values, the step's verdict, time
 * stamps, signals, simulated links.
 * ctest: timeout=60 link=gw_kernels_cpu
 */
#include "cuda_kernels_kit.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>

#include "daemon/engine/waits.h"
#include "proto/shm.h"

#define ROOM 4200u

static uint8_t from[ROOM] __attribute__((aligned(64))), to[ROOM] __attribute__((aligned(64)));
static uint8_t expected[ROOM];

static void fill_bytes(void)
{
    for (uint32_t i = 0; i < ROOM; i++)
        from[i] = (uint8_t)(i * 7 + i / 256 + 1);
    memset(to, 0xa5, sizeof(to));
    memset(expected, 0xa5, sizeof(expected));
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void fill_repeats_the_word(void **state)
{
    static const uint8_t word[4] = {0x44, 0x33, 0x22, 0x11};

    (void)state;
    for (uint32_t bytes = 0; bytes < 4100; bytes = bytes < 70 ? bytes + 1 : bytes * 2 + 1) {
        const struct gw_k_fill arg = {.to = to + 4, .bytes = bytes, .word = 0x11223344};
        fill_bytes();
        for (uint32_t i = 0; i < bytes; i++)
            expected[4 + i] = word[i % 4];
        RUN(gw_k_fill, &arg, 5);
        assert_memory_equal(to, expected, sizeof(to));
    }
}

/* ---- verdict --------------------------------------------------------------------------------- */

#define BUCKETS 9u
#define CHUNKS 40u

static struct gw_k_partial chunks[BUCKETS][CHUNKS];
static struct gw_k_bucket buckets[BUCKETS];

/* Bucket b has 5 b chunks; 3 has no gradient. Sums that depend on their order. */
static double fill_buckets(double scale)
{
    uint64_t random = 0x2545f4914f6cdd1dull;
    volatile double sum = 0;

    for (uint32_t b = 0; b < BUCKETS; b++) {
        buckets[b] = (struct gw_k_bucket){chunks[b], b == 3 ? 0 : b * 5};
        for (uint32_t c = 0; c < CHUNKS; c++) {
            chunks[b][c].norm = scale / 3 * (double)next_random(&random);
            chunks[b][c].nonfinite = 0;
        }
        for (uint32_t c = 0; c < buckets[b].chunks; c++)
            sum = sum + chunks[b][c].norm;
    }
    return sum;
}

static void judge(double clip_norm, bool max, struct gw_shm_verdict ret_verdicts[2])
{
    static const uint8_t used[11] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    uint8_t more[sizeof(used) + 1];
    struct gw_k_verdict arg = {
        .buckets = buckets,
        .verdict = {(uint64_t *)(void *)&ret_verdicts[0], (uint64_t *)(void *)&ret_verdicts[1]},
        .used_bits = used,
        .bits = {to, more},
        .bits_bytes = sizeof(used),
        .step = 12345678901ull,
        .digest = 0xfedcba9876543210ull,
        .clip_norm = clip_norm,
        .bucket_count = BUCKETS,
        .used_params = 77,
        .max = max};

    memset(ret_verdicts, 0xa5, 2 * sizeof(*ret_verdicts));
    memset(more, 0x5a, sizeof(more));
    fill_bytes();
    memcpy(expected, used, sizeof(used));
    RUN(gw_k_verdict, &arg, 4);
    assert_memory_equal(to, expected, sizeof(to));
    assert_memory_equal(more, used, sizeof(used));
    assert_int_equal(more[sizeof(used)], 0x5a);
    assert_memory_equal(&ret_verdicts[0], &ret_verdicts[1], sizeof(*ret_verdicts));
    assert_int_equal(ret_verdicts->step, 12345678901ull);
    assert_int_equal(ret_verdicts->digest, 0xfedcba9876543210ull);
    assert_int_equal(ret_verdicts->used_params, 77);
}

static void the_verdict_is_the_ordered_sum(void **state)
{
    struct gw_shm_verdict verdicts[2];

    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        double squares = fill_buckets(i < 4 ? 1 : 1e-20), norm = (double)(float)sqrt(squares);
        double clips[] = {0, norm * 2, norm / 3, norm}; /* small ones feel the 1e-6 */
        double clip = clips[i % 4];
        double factor = clip > 0 ? clip / (norm + 1e-6) : 1;
        judge(clip, false, verdicts);
        assert_memory_equal(&verdicts[0].norm, &norm, sizeof(norm));
        assert_int_equal(bits_of(verdicts[0].clip_factor), bits_of(factor < 1 ? (float)factor : 1));
        assert_int_equal(verdicts[0].nonfinite, 0);
        assert_int_equal(verdicts[0].first_bucket, UINT32_MAX);
    }
    assert_true(verdicts[0].clip_factor > 0.9f && verdicts[0].clip_factor < 0.999f);
}

static void the_largest_partial_is_the_max_norm(void **state)
{
    struct gw_shm_verdict verdicts[2];

    (void)state;
    (void)fill_buckets(1e-6);
    chunks[3][0].norm = 1e30; /* of no gradient: not looked at */
    chunks[6][29].norm = 1e29;
    judge(1, true, verdicts);
    assert_true(verdicts[0].norm == (double)(float)1e29);
    chunks[2][1].norm = NAN;
    chunks[2][1].nonfinite = 1;
    judge(1, true, verdicts);
    assert_true(isnan(verdicts[0].norm) && verdicts[0].first_bucket == 2);
}

/* The root lies at a tie between two floats, and what the others hold is lost one by one, but not
 * together: the norm tells whether the large one came first. */
static void squares_are_added_in_order(void **state)
{
    struct gw_shm_verdict verdicts[2];
    const double tie = (1 + 0x1p-24) * (1 + 0x1p-24), little = 0.4 * 0x1p-52;

    (void)state;
    for (uint32_t large = 0; large < 16; large++) {
        volatile double sum = 0;
        for (uint32_t b = 0; b < BUCKETS; b++)
            buckets[b] = (struct gw_k_bucket){chunks[b], b < 2 ? 8 : 0};
        for (uint32_t c = 0; c < 16; c++) {
            struct gw_k_partial *chunk = &chunks[c / 8][c % 8];
            *chunk = (struct gw_k_partial){c == large ? tie : little, 0};
            sum = sum + chunk->norm;
        }
        judge(0, false, verdicts);
        assert_true(verdicts[0].norm == (double)(float)sqrt(sum));
        if (large == 0)
            assert_true(verdicts[0].norm == 1);
        if (large > 8)
            assert_true(verdicts[0].norm == 1 + 0x1p-23);
    }
}

static void the_verdict_names_the_first_bucket_with_an_overflow(void **state)
{
    struct gw_shm_verdict verdicts[2];

    (void)state;
    (void)fill_buckets(1);
    chunks[3][0].nonfinite = 1; /* of no gradient: not looked at */
    chunks[8][3].nonfinite = 1;
    chunks[5][24].nonfinite = 4096;
    chunks[5][24].norm = NAN;
    judge(1, false, verdicts);
    assert_int_equal(verdicts[0].nonfinite, 1);
    assert_int_equal(verdicts[0].first_bucket, 5);
    assert_true(isnan(verdicts[0].norm));
    assert_int_equal(bits_of(verdicts[0].clip_factor), 0);
}

static void a_verdict_of_nothing_is_zero(void **state)
{
    struct gw_shm_verdict verdict;
    const struct gw_k_verdict arg = {.verdict = {NULL, (uint64_t *)(void *)&verdict}, .step = 3};

    (void)state;
    RUN(gw_k_verdict, &arg, 1);
    assert_int_equal(verdict.step, 3);
    assert_true(verdict.norm == 0 && verdict.clip_factor == 1.0f && verdict.nonfinite == 0);
    assert_int_equal(verdict.first_bucket, UINT32_MAX);
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void begin(struct gw_k_lane *lane, struct gw_k_stamps *stamps, bool chained,
                  uint64_t ready_ns)
{
    const struct gw_k_begin arg = {
        .stamps = stamps, .lane = lane, .ready_ns = ready_ns, .chained = chained};

    memset(stamps, 0xa5, sizeof(*stamps));
    RUN(gw_k_begin, &arg, 2);
}

static void end(struct gw_k_lane *lane, struct gw_k_stamps *stamps)
{
    RUN(gw_k_end, (&(struct gw_k_end){.stamps = stamps, .lane = lane}), 2);
}

static void the_clock_is_that_of_the_arguments(void **state)
{
    uint64_t at, first = now_ns();

    (void)state;
    RUN(gw_k_stamp, (&(struct gw_k_stamp){.at = &at}), 1);
    assert_true(at >= first && at <= now_ns());
    RUN(gw_k_stamp, (&(struct gw_k_stamp){.at = &at, .clock_ns = -(int64_t)first}), 1);
    assert_true(at <= now_ns() - first);
    RUN(gw_k_stamp, (&(struct gw_k_stamp){.at = &at, .clock_ns = INT64_C(1) << 60}), 1);
    assert_true(at >= first + (UINT64_C(1) << 60));
}

static void chained_works_that_were_ready_share_their_start(void **state)
{
    struct gw_k_lane lane = {0, 0};
    struct gw_k_stamps a, b, c, d;

    (void)state;
    begin(&lane, &a, true, 1);
    assert_true(a.started_ns > 0 && a.run_started_ns == a.started_ns && a.done_ns == 0);
    end(&lane, &a);
    assert_true(a.done_ns >= a.started_ns);
    begin(&lane, &b, true, a.done_ns); /* ready when the last one ended */
    assert_true(b.started_ns >= a.done_ns && b.run_started_ns == a.started_ns);
    end(&lane, &b);
    begin(&lane, &c, false, 1); /* not chained */
    assert_int_equal(c.run_started_ns, c.started_ns);
    end(&lane, &c);
    begin(&lane, &d, true, c.done_ns + 1); /* ready later */
    assert_int_equal(d.run_started_ns, d.started_ns);
}

/* ---- signals --------------------------------------------------------------------------------- */

static struct gw_shm_slot slots[GW_K_SIGNALS];

static struct gw_k_signal signal_of(uint32_t slot, uint64_t value)
{
    return (struct gw_k_signal){.slot = (struct gw_k_slot *)(void *)&slots[slot],
                                .value = value,
                                .offset = 1000 + value};
}

static void signals_raise_slots_with_the_stamps_of_all_parts(void **state)
{
    const struct gw_k_stamps parts[3] = {{30, 20, 50}, {10, 25, 70}, {40, 15, 60}};
    struct gw_k_stamps result = {0, 0, 0};
    struct gw_k_finish arg = {
        .stamps = parts, .result = &result, .parts = 3, .ready_ns = 5, .signals = GW_K_SIGNALS};

    (void)state;
    memset(slots, 0, sizeof(slots));
    for (uint32_t i = 0; i < GW_K_SIGNALS; i++)
        arg.signal[i] = signal_of(i, i + 1);
    RUN(gw_k_finish, &arg, 7);
    for (uint32_t i = 0; i < GW_K_SIGNALS; i++) {
        assert_int_equal(atomic_load(&slots[i].value), i + 1);
        assert_int_equal(slots[i].ready_ns, 5);
        assert_int_equal(slots[i].started_ns, 15);
        assert_int_equal(slots[i].done_ns, 70);
        assert_int_equal(slots[i].offset, 1001 + i);
    }
    assert_true(result.started_ns == 10 && result.run_started_ns == 15 && result.done_ns == 70);
}

static void a_timeline_never_falls(void **state)
{
    const struct gw_k_stamps part = {1, 2, 0};
    struct gw_k_finish arg = {
        .signal = {signal_of(0, 8)}, .stamps = &part, .parts = 1, .signals = 1};

    (void)state;
    memset(slots, 0, sizeof(slots));
    RUN(gw_k_finish, &arg, 1);
    assert_true(slots[0].done_ns > 2); /* without a stamp: now */
    arg.signal[0] = signal_of(0, 7);
    RUN(gw_k_finish, &arg, 1);
    assert_int_equal(atomic_load(&slots[0].value), 8);
    assert_int_equal(slots[0].offset, 1008);
}

/* What a client's streams wait on follows the slot, and is left alone where it is higher. */
static void mirrors_follow_their_slots(void **state)
{
    const struct gw_k_stamps part = {1, 2, 3};
    uint64_t mirrors[2] = {0, GW_TIMELINE_END}, aborted = 0;
    struct gw_k_finish arg = {.signal = {signal_of(0, 8), signal_of(1, 9)},
                              .stamps = &part,
                              .parts = 1,
                              .signals = 2,
                              .aborted = &aborted,
                              .ranks = 1};

    (void)state;
    memset(slots, 0, sizeof(slots));
    for (uint32_t i = 0; i < 2; i++)
        arg.signal[i].mirror = &mirrors[i];
    RUN(gw_k_finish, &arg, 2);
    assert_true(mirrors[0] == 8 && mirrors[1] == GW_TIMELINE_END);
    arg.signal[0].value = 7;
    RUN(gw_k_finish, &arg, 2);
    assert_int_equal(mirrors[0], 8);
    arg.signal[0].value = 10;
    aborted = 1;
    RUN(gw_k_finish, &arg, 2);
    assert_int_equal(mirrors[0], 8);
}

static struct gw_wait_page *gap_page;
static size_t gap_bytes;
static uint64_t *gap_word;

/* Whoever ends the job comes between the halves of the kernel's atomic. */
static void release_in_the_gap(uint64_t *word)
{
    if (word == gap_word)
        waits_release(gap_page, gap_bytes);
}

/* Over PCIe a kernel's atomic is none to the CPU: what a host stores inside it is lost. That the
 * words are raised again is what frees the streams then. */
static void a_word_raised_inside_an_atomic_is_raised_again(void **state)
{
    static _Alignas(64) char room[sizeof(struct gw_wait_page) + 8 * sizeof(uint64_t)];
    const struct gw_k_stamps part = {1, 2, 3};
    struct gw_k_finish arg = {
        .signal = {signal_of(0, 8)}, .stamps = &part, .parts = 1, .signals = 1};

    (void)state;
    memset(slots, 0, sizeof(slots));
    gap_page = (struct gw_wait_page *)(void *)room;
    gap_bytes = sizeof(room);
    gap_word = (uint64_t *)(void *)&gap_page->word[3];
    arg.signal[0].mirror = gap_word;
    gw_kernel_gap = release_in_the_gap;
    RUN(gw_k_finish, &arg, 1);
    gw_kernel_gap = NULL;
    assert_int_equal(*gap_word, 8); /* lost */
    assert_true(atomic_load(&gap_page->word[2]) == GW_TIMELINE_END);
    waits_release(gap_page, gap_bytes); /* the next round of the guard, the next failure seen */
    assert_true(atomic_load(&gap_page->word[3]) == GW_TIMELINE_END);
    RUN(gw_k_finish, &arg, 1); /* one that is later still */
    assert_true(atomic_load(&gap_page->word[3]) == GW_TIMELINE_END);
}

static void nothing_is_told_of_an_aborted_rank(void **state)
{
    const struct gw_k_stamps part = {1, 2, 3};
    uint64_t aborted = 1u << 5;
    struct gw_k_finish arg = {.signal = {signal_of(0, 8)},
                              .stamps = &part,
                              .parts = 1,
                              .signals = 1,
                              .aborted = &aborted,
                              .ranks = 1u << 5 | 1u << 2};

    (void)state;
    memset(slots, 0, sizeof(slots));
    RUN(gw_k_finish, &arg, 1);
    assert_true(atomic_load(&slots[0].value) == 0 && slots[0].done_ns == 0);
    aborted = 1u << 4; /* of another op */
    RUN(gw_k_finish, &arg, 1);
    assert_int_equal(atomic_load(&slots[0].value), 8);
}

/* ---- simulated links ------------------------------------------------------------------------- */

static void a_link_is_taken_from_when_it_is_free(void **state)
{
    uint64_t first = now_ns(), free_ns = 0, at_ns;
    struct gw_k_hold arg = {.link_free_ns = &free_ns, .hold_ns = 2000000};

    (void)state;
    RUN(gw_k_hold, &arg, 2);
    assert_true(free_ns >= first + 2000000 && now_ns() >= free_ns);
    free_ns = at_ns = now_ns() + 1000000; /* taken: behind it */
    RUN(gw_k_hold, &arg, 1);
    assert_int_equal(free_ns, at_ns + 2000000);
    assert_true(now_ns() >= free_ns);
}

static void an_abort_ends_a_hold(void **state)
{
    uint64_t aborted = 2, free_ns = 0;
    struct gw_k_hold arg = {.link_free_ns = &free_ns,
                            .hold_ns = UINT64_C(1) << 62, /* a test that fails here never ends */
                            .aborted = &aborted,
                            .ranks = 3};

    (void)state;
    RUN(gw_k_hold, &arg, 1);
    assert_true(free_ns > UINT64_C(1) << 62);
}

static void *hold_some(void *arg)
{
    for (uint32_t i = 0; i < 100; i++)
        RUN(gw_k_hold, (struct gw_k_hold *)arg, 1);
    return NULL;
}

static void two_streams_share_a_link(void **state)
{
    uint64_t free_ns = now_ns(), first = free_ns;
    struct gw_k_hold arg = {.link_free_ns = &free_ns, .hold_ns = 10000};
    pthread_t threads[2];

    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hold_some, &arg), 0);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(free_ns >= first + 200 * 10000); /* none of 200 was lost */
    assert_true(now_ns() >= free_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fill_repeats_the_word),
        cmocka_unit_test(the_verdict_is_the_ordered_sum),
        cmocka_unit_test(squares_are_added_in_order),
        cmocka_unit_test(the_largest_partial_is_the_max_norm),
        cmocka_unit_test(the_verdict_names_the_first_bucket_with_an_overflow),
        cmocka_unit_test(a_verdict_of_nothing_is_zero),
        cmocka_unit_test(the_clock_is_that_of_the_arguments),
        cmocka_unit_test(chained_works_that_were_ready_share_their_start),
        cmocka_unit_test(signals_raise_slots_with_the_stamps_of_all_parts),
        cmocka_unit_test(a_timeline_never_falls),
        cmocka_unit_test(mirrors_follow_their_slots),
        cmocka_unit_test(a_word_raised_inside_an_atomic_is_raised_again),
        cmocka_unit_test(nothing_is_told_of_an_aborted_rank),
        cmocka_unit_test(a_link_is_taken_from_when_it_is_free),
        cmocka_unit_test(an_abort_ends_a_hold),
        cmocka_unit_test(two_streams_share_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
