/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The star over loopback: who joins, what is said in which order, who is lost and why.
 * ctest: label=tsan timeout=120 link=gw_star
 */
#include "tests/unit/star_kit.h"

#include <dirent.h>
#include <fcntl.h>

static void test_joined_messages_lost(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {0};
    char at[STAR_ADDRESS_TEXT];

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    kit_node(&kit, &node, &root.address);
    KIT_WAIT(&kit, root.joined && node.joined);
    assert_int_equal(root.last_joined, 1);
    assert_int_equal(node.last_joined, STAR_ROOT);
    star_address_text(&root.address, at, sizeof(at));
    assert_string_equal(node.from, at);
    assert_memory_equal(root.from, "127.0.0.1:", 10);
    for (uint64_t i = 0; i < 300; i++) {
        assert_int_equal(kit_send(&root, 1, i), 0);
        assert_int_equal(kit_send(&node, STAR_ROOT, i), 0);
    }
    KIT_WAIT(&kit, root.messages == 300 && node.messages == 300);
    node.star = star_free(node.star);
    KIT_WAIT(&kit, root.lost);
    assert_int_equal(root.last_lost, 1);
    assert_int_equal(root.code, GW_E_PEER_LOST);
    assert_string_equal(root.text, "it has ended the connection");
    assert_int_equal(star_send(root.star, 1, "x", 1), GW_E_NOT_FOUND);
    assert_int_equal(root.joined + node.joined, 2);
    assert_int_equal(node.lost, 0);
    root.star = star_free(root.star);
    kit_end(&kit);
}

static void test_sizes(void **state)
{
    static uint8_t message[STAR_MESSAGE_MAX + 1];
    static const size_t sizes[] = {0, 1, 7, STAR_MESSAGE_MAX - 1, STAR_MESSAGE_MAX, 0};
    struct kit kit;
    struct side root = {0}, node = {0};

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    kit_node(&kit, &node, &root.address);
    KIT_WAIT(&kit, root.joined);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i] >= 8)
            kit_make(node.heard[STAR_ROOT], sizes[i], message);
        assert_int_equal(star_send(root.star, 1, message, sizes[i]), 0);
        KIT_WAIT(&kit, node.messages == i + 1);
        assert_int_equal(node.last_bytes, sizes[i]);
    }
    assert_int_equal(star_send(root.star, 1, message, STAR_MESSAGE_MAX + 1), GW_E_INVALID);
    assert_int_equal(star_send(root.star, 2, message, 1), GW_E_NOT_FOUND);
    star_free(node.star);
    star_free(root.star);
    kit_end(&kit);
}

static void test_wrong_secret(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {0};
    struct star_config config;
    uint8_t other[JOB_ID_SECRET_BYTES];

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    memcpy(other, kit_secret, sizeof(other));
    other[31] ^= 1;
    config = kit_config(&kit, &node);
    config.secret = other;
    assert_int_equal(star_node(&config, &root.address, &node.star), 0);
    KIT_WAIT(&kit, node.lost);
    assert_int_equal(node.code, GW_E_DENIED);
    assert_non_null(strstr(node.text, "does not know the job's secret"));
    assert_int_equal(node.joined, 0);
    assert_int_equal(root.joined, 0);
    star_free(node.star);
    star_free(root.star);
    kit_end(&kit);
}

/* Told long before the deadline: a root listens before anybody has its id. */
static void test_nobody_there(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {0};
    struct star_config config;

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    root.star = star_free(root.star); /* its port is nobody's now */
    config = kit_config(&kit, &node);
    config.connect_timeout_ns = 3600 * SECOND;
    assert_int_equal(star_node(&config, &root.address, &node.star), 0);
    KIT_WAIT(&kit, node.lost);
    assert_int_equal(node.code, GW_E_NOT_FOUND);
    assert_non_null(strstr(node.text, "nobody listens there"));
    star_free(node.star);
    kit_end(&kit);
}

/* A network may come up yet: only the deadline ends this. */
static void test_out_of_reach(void **state)
{
    struct job_address nowhere = {.family = 4, .port = 9, .bytes = {255, 255, 255, 255}};
    struct kit kit;
    struct side node = {0};
    struct star_config config;

    (void)state;
    kit_start(&kit);
    config = kit_config(&kit, &node);
    config.connect_timeout_ns = 200 * MS;
    assert_int_equal(star_node(&config, &nowhere, &node.star), 0);
    KIT_WAIT(&kit, node.lost);
    assert_int_equal(node.code, GW_E_NOT_FOUND);
    assert_non_null(strstr(node.text, "cannot be reached (network is unreachable)"));
    star_free(node.star);
    kit_end(&kit);
}

/* Somebody listens, and never says a word. */
static void test_no_answer(void **state)
{
    struct kit kit;
    struct side node = {0};
    struct star_config config;
    struct job_address address = {.family = 4, .bytes = {127, 0, 0, 1}};
    char text[GW_TEXT_MAX + 1];
    int fd;

    (void)state;
    kit_start(&kit);
    assert_int_equal(star_address_listen(&address, 0, 0, &fd, text), 0);
    config = kit_config(&kit, &node);
    config.connect_timeout_ns = 200 * MS;
    assert_int_equal(star_node(&config, &address, &node.star), 0);
    KIT_WAIT(&kit, node.lost);
    assert_int_equal(node.code, GW_E_TIMEOUT);
    star_free(node.star);
    close(fd);
    kit_end(&kit);
}

/* The root comes after its node has begun to look for it. */
static void test_root_comes_later(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {0};
    struct star_config config;

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    star_free(root.star);
    kit_node(&kit, &node, &root.address);
    kit_turn(&kit, 50 * MS);
    config = kit_config(&kit, &root);
    config.port_first = config.port_last = root.address.port;
    kit_root_as(&config, &root);
    KIT_WAIT(&kit, root.joined && node.joined);
    star_free(root.star);
    KIT_WAIT(&kit, node.lost);
    assert_int_equal(node.code, GW_E_PEER_LOST);
    star_free(node.star);
    kit_end(&kit);
}

/* What was queued before star_free or star_drop arrives, then the news. */
static void test_queued_arrives(void **state)
{
    struct kit kit;

    (void)state;
    for (int drop = 0; drop < 2; drop++) {
        struct side root = {0}, node = {0};

        kit_start(&kit);
        kit_root(&kit, &root);
        kit_node(&kit, &node, &root.address);
        KIT_WAIT(&kit, root.joined);
        for (uint64_t i = 0; i < 400; i++)
            assert_int_equal(kit_send(&root, 1, i), 0);
        if (drop)
            star_drop(root.star, 1);
        else
            root.star = star_free(root.star);
        if (drop)
            assert_int_equal(star_send(root.star, 1, "x", 1), GW_E_NOT_FOUND);
        KIT_WAIT(&kit, node.lost);
        assert_int_equal(node.messages, 400);
        assert_int_equal(node.code, GW_E_PEER_LOST);
        assert_string_equal(node.text,
                            drop ? "it sent this node away" : "it has ended the connection");
        assert_int_equal(root.lost, 0);
        star_free(root.star);
        star_free(node.star);
        kit_end(&kit);
    }
}

static void test_door_closed(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {0}, late = {0};

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    kit_node(&kit, &node, &root.address);
    KIT_WAIT(&kit, root.joined && node.joined);
    star_close_door(root.star);
    kit_node(&kit, &late, &root.address);
    KIT_WAIT(&kit, late.lost);
    assert_int_equal(late.code, GW_E_DENIED);
    assert_string_equal(late.text, "the job takes no more nodes");
    assert_int_equal(late.joined, 0);
    assert_int_equal(root.joined, 1);
    assert_int_equal(kit_send(&node, STAR_ROOT, 0), 0);
    KIT_WAIT(&kit, root.messages == 1);
    star_free(late.star);
    star_free(node.star);
    star_free(root.star);
    kit_end(&kit);
}

static void echo(struct side *side, uint32_t peer)
{
    assert_int_equal(kit_send(side, peer, side->heard[peer] - 1), 0);
}

/* Descriptors that an exec would pass on. */
static unsigned passed_on(void)
{
    DIR *directory = opendir("/proc/self/fd");
    const struct dirent *entry;
    unsigned count = 0;

    assert_non_null(directory);
    while ((entry = readdir(directory))) {
        uint64_t fd;

        if (parse_u64(entry->d_name, 0, 10000, &fd) == 0 && (int)fd != dirfd(directory) &&
            !(fcntl((int)fd, F_GETFD) & FD_CLOEXEC))
            count++;
    }
    closedir(directory);
    return count;
}

static void test_many_nodes(void **state)
{
    static struct side nodes[12];
    struct kit kit;
    struct side root = {.on_message = echo};
    const unsigned before = passed_on();
    unsigned back;

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    for (unsigned i = 0; i < 12; i++)
        kit_node(&kit, &nodes[i], &root.address);
    KIT_WAIT(&kit, root.joined == 12);
    for (uint64_t n = 0; n < 50; n++)
        for (unsigned i = 0; i < 12; i++)
            assert_int_equal(kit_send(&nodes[i], STAR_ROOT, n), 0);
    do {
        back = 0;
        KIT_WAIT(&kit, root.messages == 600);
        (void)uv_run(&kit.loop, UV_RUN_ONCE);
        for (unsigned i = 0; i < 12; i++)
            back += nodes[i].messages;
    } while (back < 600);
    assert_int_equal(passed_on(), before);
    for (unsigned i = 0; i < 12; i++)
        star_free(nodes[i].star);
    KIT_WAIT(&kit, root.lost == 12);
    star_free(root.star);
    kit_end(&kit);
}

/* 64 MiB are 1023 messages of 64 KiB + 64 bytes: what nobody acknowledges waits, then it ends. */
static void test_queue_limit(void **state)
{
    static uint8_t message[STAR_MESSAGE_MAX];
    struct kit kit;
    struct side root = {0};
    struct raw raw;
    unsigned sent = 0;
    int r;

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    raw_open(&raw, &root.address, 1);
    KIT_WAIT(&kit, root.joined);
    while ((r = star_send(root.star, 1, message, sizeof(message))) == 0)
        sent++;
    assert_int_equal(r, GW_E_LIMIT);
    assert_int_equal(sent, 1023);
    KIT_WAIT(&kit, root.lost);
    assert_int_equal(root.code, GW_E_LIMIT);
    assert_int_equal(star_send(root.star, 1, message, 1), GW_E_NOT_FOUND);
    raw_close(&raw);
    star_free(root.star);
    kit_end(&kit);
}

/* Three times as much as may wait, with an engine that takes it as it comes. */
static void test_more_than_may_wait(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {0};
    uint64_t sent = 0;
    size_t bytes = 0;

    (void)state;
    kit_start(&kit);
    kit_root(&kit, &root);
    kit_node(&kit, &node, &root.address);
    KIT_WAIT(&kit, root.joined);
    while (bytes < 3ull * STAR_QUEUE_BYTES) {
        for (unsigned i = 0; i < 90; i++, sent++) {
            assert_int_equal(kit_send(&root, 1, sent), 0);
            bytes += kit_bytes_of(sent);
        }
        KIT_WAIT(&kit, node.messages + 900 > sent);
    }
    KIT_WAIT(&kit, node.messages == sent);
    assert_int_equal(root.lost + node.lost, 0);
    star_free(node.star);
    star_free(root.star);
    kit_end(&kit);
}

static struct side *free_at_message;

static void free_now(struct side *side, uint32_t peer)
{
    (void)peer;
    if (side == free_at_message)
        side->star = star_free(side->star);
}

/* In a callback, with more events behind it. */
static void test_free_in_callback(void **state)
{
    struct kit kit;
    struct side root = {0}, node = {.on_message = free_now};

    (void)state;
    free_at_message = &node;
    kit_start(&kit);
    kit_root(&kit, &root);
    kit_node(&kit, &node, &root.address);
    KIT_WAIT(&kit, root.joined);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(kit_send(&root, 1, i), 0);
    KIT_WAIT(&kit, root.lost);
    assert_int_equal(node.messages, 1);
    assert_null(node.star);
    star_free(root.star);
    kit_end(&kit);
}

/* At any moment: after so many turns of the loop, messages on the way in both directions. */
static void test_free_at_any_moment(void **state)
{
    (void)state;
    for (unsigned turns = 0; turns < 24; turns++) {
        struct kit kit;
        struct side root = {.on_message = echo}, node = {0};

        kit_start(&kit);
        kit_root(&kit, &root);
        kit_node(&kit, &node, &root.address);
        for (uint64_t i = 0; i < 20; i++)
            assert_int_equal(kit_send(&node, STAR_ROOT, i), 0);
        for (unsigned i = 0; i < turns; i++)
            (void)uv_run(&kit.loop, UV_RUN_ONCE);
        if (turns % 2) {
            node.star = star_free(node.star);
            root.star = star_free(root.star);
        } else {
            root.star = star_free(root.star);
            node.star = star_free(node.star);
        }
        kit_end(&kit);
    }
}

static void test_what_cannot_be(void **state)
{
    struct kit kit;
    struct side side = {0};
    struct job_address nowhere = {0};
    struct star_config config;
    char text[GW_TEXT_MAX + 1] = "";

    (void)state;
    kit_start(&kit);
    config = kit_config(&kit, &side);
    assert_int_equal(star_node(&config, &nowhere, &side.star), GW_E_INVALID);
    config.beat_ns = 10 * MS;
    config.lost_ns = 39 * MS; /* silence of half of it must be more than a beat */
    assert_int_equal(star_root(&config, &side.star, &side.address, text), GW_E_INVALID);
    assert_non_null(strstr(text, "an argument is wrong"));
    assert_null(star_free(NULL));
    kit_end(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_messages_lost),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_out_of_reach),
        cmocka_unit_test(test_no_answer),
        cmocka_unit_test(test_root_comes_later),
        cmocka_unit_test(test_queued_arrives),
        cmocka_unit_test(test_door_closed),
        cmocka_unit_test(test_many_nodes),
        cmocka_unit_test(test_queue_limit),
        cmocka_unit_test(test_more_than_may_wait),
        cmocka_unit_test(test_free_in_callback),
        cmocka_unit_test(test_free_at_any_moment),
        cmocka_unit_test(test_what_cannot_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
