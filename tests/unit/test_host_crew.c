/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of stream threads: every block once, several works at a time; and sums that are shared
 * have the bits of those that are not. Also run under ThreadSanitizer.
 * ctest: label=tsan timeout=60
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/device/host/affinity.h"
#include "daemon/device/host/crew.h"
#include "daemon/device/host/kernels.h"
#include "daemon/fabric/fabric.h"

#define BLOCKS 1000u
#define ROUNDS 50u
#define CALLERS 4u

struct caller {
    struct crew *crew;
    pthread_t thread;
    _Atomic uint32_t times[BLOCKS];
    uint32_t plain[BLOCKS]; /* seen by the caller without an atomic */
    uint64_t blocks;
};

static int new_crew(uint32_t helpers, struct crew **ret_crew)
{
    struct placement placement = {.count = 1, .node = {{.workers = helpers}}};

    return crew_new(&placement, ret_crew);
}

static void mark(void *arg, uint64_t block)
{
    struct caller *caller = arg;

    atomic_fetch_add(&caller->times[block], 1);
    caller->plain[block]++;
}

static void *call(void *arg)
{
    struct caller *caller = arg;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        crew_run(caller->crew,
                 &(struct crew_work){.run = mark, .arg = caller, .blocks = caller->blocks});
        for (uint64_t i = 0; i < caller->blocks; i++)
            if (caller->plain[i] != round + 1)
                return caller;
    }
    return NULL;
}

static void every_block_runs_once(void **state)
{
    static const uint32_t helpers[] = {0, 1, 3};

    (void)state;
    for (size_t h = 0; h < sizeof(helpers) / sizeof(helpers[0]); h++) {
        struct caller *callers = calloc(CALLERS, sizeof(*callers));
        struct crew *crew;
        assert_int_equal(new_crew(helpers[h], &crew), 0);
        for (uint32_t i = 0; i < CALLERS; i++) {
            callers[i].crew = crew;
            callers[i].blocks = i == 0 ? 1 : i == 1 ? 2 : BLOCKS - i;
            assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
        }
        for (uint32_t i = 0; i < CALLERS; i++) {
            void *bad;
            pthread_join(callers[i].thread, &bad);
            assert_null(bad);
            for (uint64_t b = 0; b < BLOCKS; b++)
                assert_int_equal(callers[i].times[b], b < callers[i].blocks ? ROUNDS : 0);
        }
        assert_null(crew_free(crew));
        free(callers);
    }
}

static void no_blocks_are_no_work(void **state)
{
    struct crew *crew;

    (void)state;
    assert_int_equal(new_crew(2, &crew), 0);
    crew_run(crew, &(struct crew_work){.run = mark});
    assert_null(crew_free(crew));
    assert_null(crew_free(NULL));
}

/* ---- turns ----------------------------------------------------------------------------------- */

#define TURN_BLOCKS 16u /* of one work before a helper looks for another */
#define LONG_WORK 100u

/* Two works whose callers stay in their first block until the one helper has done all others. */
struct turns {
    _Atomic uint32_t callers; /* in their first block */
    _Atomic uint32_t done;    /* the helper's blocks */
    uint8_t of[2 * LONG_WORK];
};

struct lane {
    struct crew *crew;
    struct turns *turns;
    pthread_t thread, caller; /* one written by who starts it, one by itself */
    uint8_t number;
};

static void lane_block(void *arg, uint64_t block)
{
    struct lane *lane = arg;
    struct turns *turns = lane->turns;

    (void)block;
    if (pthread_equal(pthread_self(), lane->caller)) {
        atomic_fetch_add(&turns->callers, 1);
        while (turns->done < 2 * (LONG_WORK - 1))
            sched_yield();
        return;
    }
    while (turns->callers < 2)
        sched_yield();
    turns->of[turns->done] = lane->number;
    atomic_fetch_add(&turns->done, 1);
}

static void *run_lane(void *arg)
{
    struct lane *lane = arg;

    lane->caller = pthread_self();
    crew_run(lane->crew,
             &(struct crew_work){.run = lane_block, .arg = lane, .blocks = LONG_WORK});
    return NULL;
}

/* Neither lane's work waits for the end of the other's. */
static void helpers_take_turns(void **state)
{
    struct turns turns = {0};
    struct lane lanes[2];
    struct crew *crew;
    uint32_t run = 0, both = 0;
    uint32_t left[2] = {LONG_WORK - 1, LONG_WORK - 1};

    (void)state;
    assert_int_equal(new_crew(1, &crew), 0);
    for (uint8_t i = 0; i < 2; i++) {
        lanes[i] = (struct lane){.crew = crew, .turns = &turns, .number = i};
        assert_int_equal(pthread_create(&lanes[i].thread, NULL, run_lane, &lanes[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        pthread_join(lanes[i].thread, NULL);
    for (uint32_t i = 0; i < 2 * (LONG_WORK - 1); i++) {
        run = i > 0 && turns.of[i] == turns.of[i - 1] ? run + 1 : 1;
        if (left[!turns.of[i]] > 0) {
            /* Who comes while another has its turn is behind that one's next. */
            assert_true(run <= (i < 2 * TURN_BLOCKS ? 2 : 1) * TURN_BLOCKS);
            both++;
        }
        left[turns.of[i]]--;
    }
    assert_true(both >= 2 * (LONG_WORK - 1) - 2 * TURN_BLOCKS);
    assert_int_equal(left[0] + left[1], 0);
    assert_null(crew_free(crew));
}

/* ---- NUMA nodes ------------------------------------------------------------------------------ */

#define PARTS 4u
#define PART_BLOCKS 10u

/* Which thread took which blocks first: the caller's is 0, the helper's 1. */
struct homes {
    pthread_t caller;
    _Atomic uint32_t began; /* threads that are in their first block */
    uint64_t first[2];
    bool in_first[2];
    _Atomic uint32_t times[PARTS * PART_BLOCKS];
};

static void take(void *arg, uint64_t block)
{
    struct homes *homes = arg;
    uint32_t self = pthread_equal(pthread_self(), homes->caller) ? 0 : 1;

    atomic_fetch_add(&homes->times[block], 1);
    if (homes->in_first[self])
        return;
    homes->in_first[self] = true;
    homes->first[self] = block;
    atomic_fetch_add(&homes->began, 1);
    while (homes->began < 2) /* until each has one: neither can take all */
        sched_yield();
}

/* Node 0 has all processors that there are, so the caller is on it, the helper on node 1. */
static void blocks_go_to_their_node_first(void **state)
{
    static const uint32_t ranks[PARTS] = {3, 5, 4, 6};
    struct placement placement = {.count = 2,
                                  .node = {{.number = 0, .workers = 0},
                                           {.number = 1, .workers = 1}},
                                  .rank_node = {[3] = 1, [5] = 0, [4] = 1, [6] = 0}};
    struct homes homes = {.caller = pthread_self()};
    struct crew *crew;

    (void)state;
    memset(&placement.node[0].cpus, 0xff, sizeof(placement.node[0].cpus));
    cpus_add(&placement.node[1].cpus, CPUS_MAX - 1);
    assert_int_equal(crew_new(&placement, &crew), 0);
    crew_run(crew, &(struct crew_work){.run = take,
                                       .arg = &homes,
                                       .blocks = PARTS * PART_BLOCKS,
                                       .ranks = ranks,
                                       .parts = PARTS});
    for (uint32_t b = 0; b < PARTS * PART_BLOCKS; b++)
        assert_int_equal(homes.times[b], 1);
    assert_int_equal(homes.first[0], PART_BLOCKS); /* of rank 5, the first on node 0 */
    assert_int_equal(homes.first[1], 0);           /* of rank 3 */
    assert_null(crew_free(crew));
}

/* ---- priority -------------------------------------------------------------------------------- */

static void no_wake(void *user)
{
    (void)user;
}

/* Of the stream's thread and of a helper that it started. */
struct seen {
    struct crew *crew;
    _Atomic int policy, niceness, helper_policy, helper_niceness;
    pthread_t stream;
    _Atomic bool helped;
};

static void look(void *arg, uint64_t block)
{
    struct seen *seen = arg;
    int policy = sched_getscheduler(0), niceness = getpriority(PRIO_PROCESS, (id_t)gettid());

    if (pthread_equal(pthread_self(), seen->stream)) {
        seen->policy = policy;
        seen->niceness = niceness;
        while (block == 0 && !seen->helped) /* the other block is the helper's */
            sched_yield();
    } else {
        seen->helper_policy = policy;
        seen->helper_niceness = niceness;
        seen->helped = true;
    }
}

static void look_in_stream(void *arg, void *native)
{
    struct seen *seen = arg;

    (void)native;
    seen->stream = pthread_self();
    while (!seen->helped || seen->policy < 0) /* either may be quick enough to take both blocks */
        crew_run(seen->crew, &(struct crew_work){.run = look, .arg = seen, .blocks = 2});
}

static void sums_have_the_priority_that_is_asked_for(void **state)
{
    static const struct {
        enum priority priority;
        int policy, nicer;
    } rows[] = {{PRIORITY_EQUAL, SCHED_OTHER, 0},
                {PRIORITY_NICE, SCHED_OTHER, PRIORITY_NICE_MORE},
                {PRIORITY_IDLE, SCHED_IDLE, 0}};
    int own = getpriority(PRIO_PROCESS, (id_t)gettid());

    (void)state;
    if (sched_getscheduler(0) != SCHED_OTHER) {
        print_message("SKIP: the test itself does not run as others do\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct device_config config = {.wake = no_wake, .priority = rows[i].priority};
        int niceness = own + rows[i].nicer < 19 ? own + rows[i].nicer : 19;
        struct seen seen = {.policy = -1};
        struct device_stream *stream;
        struct device *device;

        assert_int_equal(new_crew(1, &seen.crew), 0);
        assert_int_equal(device_host.device_new(&config, &device), 0);
        assert_int_equal(device_host.stream_new(device, "sums", &stream), 0);
        assert_int_equal(
            device_host.enqueue(
                stream, &(struct device_work){.op = 1, .run = look_in_stream, .arg = &seen}),
            0);
        device_host.drain(device);
        assert_int_equal(seen.policy, rows[i].policy);
        assert_int_equal(seen.niceness, niceness);
        assert_int_equal(seen.helper_policy, rows[i].policy);
        assert_int_equal(seen.helper_niceness, niceness);
        assert_null(device_host.device_free(device));
        assert_null(crew_free(seen.crew));
        /* The one that asked is as it was. */
        assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
        assert_int_equal(getpriority(PRIO_PROCESS, (id_t)gettid()), own);
    }
}

/* ---- shared ops ------------------------------------------------------------------------------ */

#define WORLD 3u
#define SLICE (5u * 16u * KERNEL_CHUNK + 4321u) /* blocks, a chunk, and a part of one */
#define WHOLE (WORLD * SLICE)

static const uint32_t members[WORLD] = {0, 1, 2};
static float input[WORLD][WHOLE], output[WORLD][WHOLE], expected[WHOLE];

static void on_wake(void *user)
{
    (void)user;
}

static const struct topology *nodes; /* NULL: nothing is placed */

static void run_op(struct core_op *op, struct fabric_op *to)
{
    struct device *device;
    struct fabric *fabric;
    struct device_done done;
    struct gw_counters counters[GW_KINDS];

    assert_int_equal(
        device_host.device_new(&(struct device_config){.wake = on_wake, .topology = nodes},
                               &device),
        0);
    assert_int_equal(
        fabric_local.fabric_new(
            &(struct fabric_config){.device_ops = &device_host, .device = device, .world = WORLD},
            &fabric),
        0);
    for (uint32_t r = 0; r < WORLD; r++)
        device_host.beside(device, r, getpid());
    assert_int_equal(fabric_local.form(fabric), 0);
    op->id = 1;
    op->members = members;
    op->world = WORLD;
    op->scale = 0.3f;
    to->op = op;
    assert_int_equal(fabric_local.launch(fabric, to), 0);
    device_host.drain(device);
    assert_true(device_host.take_done(device, &done));
    assert_false(done.failed);
    fabric_local.counters(fabric, 1, counters);
    if (op->traffic < GW_KINDS)
        assert_int_equal(counters[op->traffic].calls, 1);
    assert_null(device_host.device_free(device));
    assert_null(fabric_local.fabric_free(fabric));
}

static int fill(void **state)
{
    uint32_t bits = 12345;

    (void)state;
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint32_t i = 0; i < WHOLE; i++) {
            bits = bits * 1664525u + 1013904223u;
            input[r][i] = (float)(int32_t)bits * 1e-6f;
        }
    for (uint32_t i = 0; i < WHOLE; i++) {
        volatile float sum = input[0][i] + input[1][i];
        sum = sum + input[2][i];
        sum = sum * 0.3f;
        expected[i] = sum;
    }
    return 0;
}

static void shared_sums_have_the_same_bits(void **state)
{
    const void *in[WORLD] = {input[0], input[1], input[2]};
    void *out[WORLD] = {output[0], output[1], output[2]};
    struct core_op scatter = {
        .kind = CORE_OP_REDUCE_SCATTER, .numel = SLICE, .traffic = GW_KIND_REDUCE_SCATTER};
    struct core_op reduce = {.kind = CORE_OP_ALL_REDUCE,
                             .numel = SLICE,
                             .total_numel = WHOLE - 7,
                             .traffic = GW_KIND_ALL_REDUCE};

    (void)state;
    run_op(&scatter, &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++)
        assert_memory_equal(output[r], expected + r * SLICE, SLICE * sizeof(float));
    memset(output, 0, sizeof(output));
    run_op(&reduce, &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++) {
        assert_memory_equal(output[r], expected, (WHOLE - 7) * sizeof(float));
        assert_true(output[r][WHOLE - 7] == 0.0f);
    }
}

static void shared_copies_are_whole(void **state)
{
    const void *in[WORLD] = {input[0], input[1], input[2]};
    void *out[WORLD] = {output[0], output[1], output[2]};
    struct core_op all = {
        .kind = CORE_OP_ALL_GATHER, .numel = SLICE, .traffic = GW_KIND_ALL_GATHER};
    struct core_op one = {
        .kind = CORE_OP_GATHER, .rank = 1, .numel = SLICE, .traffic = GW_KIND_ALL_GATHER};
    struct fabric_segment segments[3] = {{output[0] + 1, input[0], SLICE * sizeof(float), 0},
                                         {output[1], input[1], 0, 0},
                                         {output[2], input[2], WHOLE * sizeof(float), 0}};

    (void)state;
    run_op(&all, &(struct fabric_op){.in = in, .out = out});
    for (uint32_t r = 0; r < WORLD; r++)
        for (uint32_t q = 0; q < WORLD; q++)
            assert_memory_equal(output[r] + q * SLICE, input[q], SLICE * sizeof(float));
    memset(output, 0, sizeof(output));
    run_op(&one, &(struct fabric_op){.segments = segments, .segment_count = 3});
    assert_memory_equal(output[0] + 1, input[0], SLICE * sizeof(float));
    assert_memory_equal(output[2], input[2], sizeof(output[2]));
    assert_true(output[0][0] == 0.0f && output[0][SLICE + 1] == 0.0f && output[1][0] == 0.0f);
}

static void shared_casts_and_adds_are_whole(void **state)
{
    static uint16_t to[WORLD][SLICE + 2], right[SLICE];
    const struct fabric_segment segments[4] = {{to[0] + 1, input[0], SLICE * sizeof(uint16_t), 0},
                                               {to[1], input[1], 0, 0},
                                               {to[1] + 1, input[1], SLICE * sizeof(uint16_t), 0},
                                               {to[2], input[2], sizeof(uint16_t), 0}};
    struct core_op cast = {.kind = CORE_OP_CAST, .traffic = GW_KINDS, .out_dtype = GW_DTYPE_BF16};
    struct core_op sum = {.kind = CORE_OP_LOCAL_ADD,
                          .traffic = GW_KINDS,
                          .in_dtype = GW_DTYPE_BF16,
                          .numel = SLICE,
                          .accumulate = 1};
    const void *in[1] = {to[0] + 1};
    void *out[1] = {output[0]};

    (void)state;
    run_op(&cast, &(struct fabric_op){.segments = segments, .segment_count = 4});
    for (uint32_t r = 0; r < 2; r++) {
        kernel_cast(right, GW_DTYPE_BF16, input[r], SLICE, false);
        assert_memory_equal(to[r] + 1, right, sizeof(right));
        assert_int_equal(to[r][0], 0);
        assert_int_equal(to[r][SLICE + 1], 0);
    }
    assert_int_equal(to[2][1], 0);
    memcpy(output[0], input[2], SLICE * sizeof(float));
    run_op(&sum, &(struct fabric_op){.in = in, .out = out});
    for (uint32_t i = 0; i < SLICE; i++) {
        uint32_t bits = (uint32_t)to[0][i + 1] << 16;
        float value;
        memcpy(&value, &bits, sizeof(value));
        assert_true(output[0][i] == input[2][i] + value);
    }
}

/* All processors but the first that we may use are on the second node. */
static int on_two_nodes(void **state)
{
    static struct topology two;
    struct cpus own = affinity_own(), rest = {{0}}, one = {{0}};
    uint32_t first = 0;

    (void)state;
    while (first < CPUS_MAX && !cpus_has(&own, first))
        first++;
    for (uint32_t cpu = first + 1; cpu < CPUS_MAX; cpu++)
        cpus_add(&rest, cpu);
    cpus_add(&one, first);
    two = (struct topology){0};
    topology_add(&two, 0, &one);
    topology_add(&two, 1, &rest);
    nodes = &two;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_runs_once),
        cmocka_unit_test(no_blocks_are_no_work),
        cmocka_unit_test(helpers_take_turns),
        cmocka_unit_test(blocks_go_to_their_node_first),
        cmocka_unit_test(sums_have_the_priority_that_is_asked_for),
        cmocka_unit_test(shared_sums_have_the_same_bits),
        cmocka_unit_test(shared_copies_are_whole),
        cmocka_unit_test(shared_casts_and_adds_are_whole),
        cmocka_unit_test_setup(shared_sums_have_the_same_bits, on_two_nodes),
        cmocka_unit_test_setup(shared_copies_are_whole, on_two_nodes),
        cmocka_unit_test_setup(shared_casts_and_adds_are_whole, on_two_nodes),
    };

    return cmocka_run_group_tests(tests, fill, NULL);
}
