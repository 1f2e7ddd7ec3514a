/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The star over connections that break: every message still comes once, in order and whole; a peer
 * that stays away is lost, once and for ever.
 * ctest: label=tsan timeout=120 link=gw_star
 */
#include "tests/unit/star_relay.h"

#define MESSAGES 600u

struct world {
    struct kit kit;
    struct side root, node;
    struct relay relay;
};

/* A node behind a relay. */
static void start(struct world *world, uint64_t root_lost_ns, uint64_t node_lost_ns)
{
    struct star_config config;

    memset(world, 0, sizeof(*world));
    kit_start(&world->kit);
    config = kit_config(&world->kit, &world->root);
    config.lost_ns = root_lost_ns;
    kit_root_as(&config, &world->root);
    relay_start(&world->kit, &world->relay, &world->root.address);
    config = kit_config(&world->kit, &world->node);
    config.lost_ns = node_lost_ns;
    assert_int_equal(star_node(&config, &world->relay.address, &world->node.star), 0);
    KIT_WAIT(&world->kit, world->root.joined && world->node.joined);
}

static void end(struct world *world)
{
    relay_cut(&world->relay); /* which cannot pass on good-byes while star_free waits */
    star_free(world->node.star);
    star_free(world->root.star);
    relay_end(&world->relay);
    kit_end(&world->kit);
}

/* Messages from..to-1, both ways. */
static void send_both(struct world *world, uint64_t from, uint64_t to)
{
    for (; from < to; from++) {
        assert_int_equal(kit_send(&world->root, 1, from), 0);
        assert_int_equal(kit_send(&world->node, STAR_ROOT, from), 0);
    }
}

static void expect_all(struct world *world, uint64_t count)
{
    KIT_WAIT(&world->kit, world->root.heard[1] == count && world->node.heard[STAR_ROOT] == count);
    assert_int_equal(world->root.messages, count);
    assert_int_equal(world->node.messages, count);
    assert_int_equal(world->root.joined, 1);
    assert_int_equal(world->node.joined, 1);
    assert_int_equal(world->root.lost + world->node.lost, 0);
}

/* Cut after numbers of bytes that fall into hellos, headers, proofs, lengths and messages alike. */
static void test_cut_anywhere(void **state)
{
    struct world world;
    uint64_t step = 1;
    unsigned cuts = 0;

    (void)state;
    start(&world, 60 * SECOND, 60 * SECOND);
    relay_cut(&world.relay);
    for (uint64_t sent = 0; sent < MESSAGES; sent += 10) {
        const uint64_t passed = world.relay.passed;

        send_both(&world, sent, sent + 10);
        world.relay.cut_at = passed + step;
        cuts++;
        KIT_WAIT(&world.kit, world.relay.cut_at == 0);
        step = step < 400 ? step + 13 : step * 5 / 4 % 300000 + 400;
    }
    expect_all(&world, MESSAGES);
    assert_int_equal(world.relay.cuts, cuts + 1);
    end(&world);
}

static void test_bits_turned_over(void **state)
{
    struct world world;

    (void)state;
    start(&world, 20 * SECOND,
          20 * SECOND); /* a longer length is noticed by the silence after it */
    for (uint64_t sent = 0; sent < MESSAGES; sent += 40) {
        send_both(&world, sent, sent + 40);
        world.relay.flip_at = world.relay.passed + 1 + sent * 37;
        KIT_WAIT(&world.kit, world.relay.flip_at == 0);
    }
    expect_all(&world, MESSAGES);
    assert_true(world.relay.connections > 1);
    end(&world);
}

static void test_delayed(void **state)
{
    struct world world;

    (void)state;
    start(&world, 60 * SECOND, 60 * SECOND);
    world.relay.delay_ns = 30 * MS;
    send_both(&world, 0, 100);
    kit_turn(&world.kit, 10 * MS);
    relay_cut(&world.relay);
    send_both(&world, 100, 200);
    expect_all(&world, 200);
    end(&world);
}

/* Nothing passes for longer than a connection may be silent, then all does again: two connections,
 * and what the first still held is not heard twice. */
static void test_stopped_and_resumed(void **state)
{
    struct world world;

    (void)state;
    start(&world, 60 * SECOND, 10 * SECOND);
    send_both(&world, 0, 100);
    world.relay.frozen = true;
    send_both(&world, 100, 200);
    KIT_WAIT(&world.kit, world.relay.connections > 1);
    world.relay.frozen = false;
    expect_all(&world, 200);
    end(&world);
}

static void test_lost_for_good(void **state)
{
    struct world world;

    (void)state;
    start(&world, 3 * SECOND, 3 * SECOND);
    send_both(&world, 0, 10);
    expect_all(&world, 10);
    world.relay.frozen = true;
    KIT_WAIT(&world.kit, world.root.lost && world.node.lost);
    assert_int_equal(world.root.code, GW_E_PEER_LOST);
    assert_int_equal(world.node.code, GW_E_PEER_LOST);
    assert_memory_equal(world.root.text, "nothing was heard of it for ", 28);
    assert_memory_equal(world.node.text, "nothing was heard of it for ", 28);
    world.relay.frozen = false;
    kit_turn(&world.kit, 50 * MS);
    assert_int_equal(world.root.lost + world.node.lost, 2);
    assert_int_equal(world.root.joined, 1);
    end(&world);
}

/* Whom the root gave up is told so, and does not come in again as somebody new. */
static void test_back_too_late(void **state)
{
    struct world world;

    (void)state;
    start(&world, 300 * MS, 60 * SECOND);
    relay_cut(&world.relay);
    world.relay.frozen = true;
    KIT_WAIT(&world.kit, world.root.lost);
    assert_int_equal(world.node.lost, 0);
    world.relay.frozen = false;
    relay_cut(&world.relay);
    KIT_WAIT(&world.kit, world.node.lost);
    assert_int_equal(world.node.code, GW_E_PEER_LOST);
    assert_non_null(strstr(world.node.text, "given this node up"));
    assert_int_equal(world.root.joined, 1);
    end(&world);
}

/* A node that was there may come back through a closed door. */
static void test_back_through_closed_door(void **state)
{
    struct world world;

    (void)state;
    start(&world, 60 * SECOND, 60 * SECOND);
    star_close_door(world.root.star);
    for (uint64_t i = 0; i < 5; i++) {
        relay_cut(&world.relay);
        send_both(&world, i, i + 1);
        expect_all(&world, i + 1);
    }
    assert_int_equal(world.relay.connections, 6);
    end(&world);
}

/* The network is gone and messages wait: star_free waits no longer than it says, star_drop does not
 * wait at all. */
static void test_free_while_cut(void **state)
{
    struct world world;

    (void)state;
    start(&world, 60 * SECOND, 60 * SECOND);
    world.relay.frozen = true;
    relay_cut(&world.relay);
    send_both(&world, 0, 30);
    star_drop(world.root.star, 1);
    assert_int_equal(star_send(world.root.star, 1, "x", 1), GW_E_NOT_FOUND);
    end(&world);
    assert_int_equal(world.root.lost + world.node.lost, 0);
}

/* A peer that takes nothing: what others say waits where it is until that one takes its own again,
 * or is no more; then it comes, whole and in order. */
static void test_full(void **state)
{
    (void)state;
    for (int drop = 0; drop < 2; drop++) {
        struct side quick = {0};
        struct world world;
        uint64_t sent = 0;

        start(&world, 60 * SECOND, 60 * SECOND);
        kit_node(&world.kit, &quick, &world.root.address);
        KIT_WAIT(&world.kit, world.root.joined == 2 && quick.joined);
        world.relay.frozen = true;
        for (size_t bytes = 0; bytes <= STAR_FULL_BYTES; bytes += kit_bytes_of(sent++) + 64) {
            assert_false(star_full(world.root.star));
            assert_int_equal(kit_send(&world.root, 1, sent), 0);
        }
        assert_true(star_full(world.root.star));
        assert_false(star_full(quick.star));
        for (uint64_t i = 0; i < 100; i++)
            assert_int_equal(kit_send(&quick, STAR_ROOT, i), 0);
        kit_turn(&world.kit, 100 * MS);
        assert_int_equal(world.root.messages, 0);
        assert_int_equal(world.root.lost, 0);
        if (drop)
            star_drop(world.root.star, 1);
        world.relay.frozen = drop;
        KIT_WAIT(&world.kit, world.root.heard[2] == 100 && !star_full(world.root.star));
        if (!drop)
            KIT_WAIT(&world.kit, world.node.heard[STAR_ROOT] == sent);
        star_free(quick.star);
        end(&world);
    }
}

/* The root's process is gone, and its port with it. */
static void test_root_gone(void **state)
{
    struct world world;

    (void)state;
    start(&world, 60 * SECOND, 400 * MS);
    uv_close((uv_handle_t *)&world.relay.listener, NULL);
    relay_cut(&world.relay);
    KIT_WAIT(&world.kit, world.node.lost);
    assert_int_equal(world.node.code, GW_E_PEER_LOST);
    star_free(world.node.star);
    star_free(world.root.star);
    uv_close((uv_handle_t *)&world.relay.timer, NULL);
    kit_end(&world.kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_bits_turned_over),
        cmocka_unit_test(test_delayed),
        cmocka_unit_test(test_stopped_and_resumed),
        cmocka_unit_test(test_lost_for_good),
        cmocka_unit_test(test_back_too_late),
        cmocka_unit_test(test_back_through_closed_door),
        cmocka_unit_test(test_free_while_cut),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_root_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
