/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the log of a job on up to 1,000 nodes costs, in virtual time: a real core on every node, one
 * rank each, the star between them with a latency, and a root that needs time for each message.
 * Counts and bytes are those of real messages; times follow from the two constants below.
 * ctest: timeout=120 link=gw_proto
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/core.h"
#include "gradwire/errors.h"

#define ONE_WAY_NS 50000ull /* of the star, node to root */
#define MESSAGE_NS 2000ull  /* of the root, for each message in or out */
#define NODES_MOST 1000u

struct star {
    uint32_t nodes;
    struct core *cores[NODES_MOST];
    uint64_t now_ns[NODES_MOST]; /* when the node had applied the last entry */
    uint64_t root_free_ns;
    uint64_t messages, bytes; /* in and out of the root */
    uint32_t joined[NODES_MOST], failed[NODES_MOST];
    char fail_text[NODES_MOST][GW_TEXT_MAX + 1];
};

static void star_open(struct star *star, uint32_t nodes)
{
    *star = (struct star){.nodes = nodes};
    for (uint32_t i = 0; i < nodes; i++)
        assert_int_equal(core_new(&(struct core_config){.world = nodes,
                                                        .join_timeout_ns = 300000000000ull,
                                                        .op_timeout_ns = 1800000000000ull,
                                                        .spans = true},
                                  &star->cores[i]),
                         0);
}

static void star_end(struct star *star)
{
    for (uint32_t i = 0; i < star->nodes; i++)
        core_free(star->cores[i]);
}

static uint64_t message_bytes(const struct core_event *event)
{
    static uint8_t buffer[GW_FRAME_MAX];
    struct wire_msg msg = {.type = WIRE_STAR_EVENT};
    size_t bytes = 0, packet = 0;

    msg.u.star_event.kind = (uint32_t)event->kind;
    msg.u.star_event.now_ns = 1ull << 40;
    msg.u.star_event.node = event->rank;
    msg.u.star_event.cookie = 1;
    msg.u.star_event.rank = event->rank;
    msg.u.star_event.request = event->request;
    msg.u.star_event.world = event->world;
    msg.u.star_event.packet = event->msg != NULL;
    if (event->text)
        snprintf(msg.u.star_event.text, sizeof(msg.u.star_event.text), "%s", event->text);
    assert_int_equal(wire_encode(&msg, buffer, sizeof(buffer), &bytes), 0);
    if (event->msg)
        assert_int_equal(wire_encode(event->msg, buffer, sizeof(buffer), &packet), 0);
    return bytes + packet;
}

static void apply(struct star *star, uint32_t node, const struct core_event *event)
{
    static struct core_effect effect;
    uint64_t offset_ns = node * 1000000ull; /* no two clocks are alike */

    assert_int_equal(core_handle(star->cores[node], star->root_free_ns + offset_ns, event), 0);
    while (core_next_effect(star->cores[node], &effect)) {
        star->joined[node] += effect.kind == CORE_EFF_REPLY && effect.reply.type == WIRE_JOINED;
        if (effect.kind != CORE_EFF_FAIL)
            continue;
        star->failed[node]++;
        memcpy(star->fail_text[node], effect.text, sizeof(effect.text));
    }
}

/* Proposed by a node at that time; the root puts it in order and sends it to all others. */
static void put(struct star *star, uint32_t from, uint64_t at_ns, const struct core_event *event)
{
    uint64_t bytes = message_bytes(event), arrives_ns = at_ns + (from ? ONE_WAY_NS : 0);

    if (star->root_free_ns < arrives_ns)
        star->root_free_ns = arrives_ns;
    if (from) {
        star->root_free_ns += MESSAGE_NS;
        star->messages++;
        star->bytes += bytes;
    }
    star->now_ns[0] = star->root_free_ns;
    apply(star, 0, event);
    for (uint32_t node = 1; node < star->nodes; node++) {
        star->root_free_ns += MESSAGE_NS;
        star->messages++;
        star->bytes += bytes;
        star->now_ns[node] = star->root_free_ns + ONE_WAY_NS;
        apply(star, node, event);
    }
}

static uint64_t latest(const struct star *star)
{
    uint64_t latest_ns = 0;

    for (uint32_t i = 0; i < star->nodes; i++)
        if (star->now_ns[i] > latest_ns)
            latest_ns = star->now_ns[i];
    return latest_ns;
}

static void all_join(struct star *star)
{
    for (uint32_t rank = 0; rank < star->nodes; rank++)
        put(star, rank, 0,
            &(struct core_event){
                .kind = CORE_EV_JOIN, .rank = rank, .world = star->nodes, .request = 1});
}

static void test_join(void **state)
{
    static const uint32_t sizes[] = {4, 64, NODES_MOST};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint32_t n = sizes[i];
        static struct star star;
        double seconds;

        star_open(&star, n);
        all_join(&star);
        /* Each JOIN once in, but the root's own, and once to every other node. */
        assert_int_equal(star.messages, (n - 1) + n * (n - 1));
        for (uint32_t node = 0; node < n; node++) {
            assert_int_equal(star.joined[node], n);
            assert_int_equal(core_state(star.cores[node]), core_state(star.cores[0]));
        }
        /* In all, the way there and back, and the root's time. */
        assert_true(latest(&star) <= 2 * ONE_WAY_NS + star.messages * MESSAGE_NS);
        seconds = (double)latest(&star) / 1e9;
        printf("%4u nodes: all joined after %.1f ms; the root: %llu messages, %llu bytes, that is "
               "%.0f messages and %.1f MB per second\n",
               n, seconds * 1e3, (unsigned long long)star.messages, (unsigned long long)star.bytes,
               (double)star.messages / seconds, (double)star.bytes / seconds / 1e6);
        star_end(&star);
    }
}

static void test_a_lost_rank_is_told_everywhere(void **state)
{
    static struct star star;
    uint64_t before_ns;

    (void)state;
    star_open(&star, NODES_MOST);
    all_join(&star);
    before_ns = latest(&star);
    put(&star, 7, before_ns,
        &(struct core_event){.kind = CORE_EV_LOST, .rank = 7, .text = "node b is gone"});
    for (uint32_t node = 0; node < NODES_MOST; node++) {
        assert_int_equal(star.failed[node], 1);
        assert_non_null(strstr(star.fail_text[node], "node b is gone"));
        assert_string_equal(star.fail_text[node], star.fail_text[0]);
    }
    assert_true(latest(&star) - before_ns <= 2 * ONE_WAY_NS + NODES_MOST * MESSAGE_NS);
    printf("%u nodes: a loss is known everywhere %.2f ms after it is known\n", NODES_MOST,
           (double)(latest(&star) - before_ns) / 1e6);
    star_end(&star);
}

/* The declaration of one gradient bucket by every rank: what a step consists of. */
static void test_a_declaration(void **state)
{
    struct wire_ready_entry entry = {.param = 100, .piece = 1, .slot = 2};
    struct wire_msg ready = {.type = WIRE_READY};
    uint64_t bytes;

    (void)state;
    ready.u.ready.count = 1;
    ready.u.ready.entries = &entry;
    bytes = message_bytes(
        &(struct core_event){.kind = CORE_EV_REQUEST, .rank = 7, .msg = &ready});
    printf("a declaration: %llu bytes to each node; of one bucket by 1,000 nodes of one rank: "
           "%.0f kB into the root, %.1f MB out of it\n",
           (unsigned long long)bytes, 999.0 * (double)bytes / 1e3,
           1000.0 * 999.0 * (double)bytes / 1e6);
    assert_in_range(bytes, 2 * GW_FRAME_HEADER, 96);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_a_lost_rank_is_told_everywhere),
        cmocka_unit_test(test_a_declaration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
