/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who comes to a root's port without the secret, and who knows it and says nonsense: neither keeps
 * the job's nodes out, and none learns or changes anything.
 * ctest: timeout=120 link=gw_star
 */
#include <fcntl.h>

#include "tests/unit/star_relay.h"

/* A root with one node; a second one joins at the test's end. */
struct world {
    struct kit kit;
    struct side root, first, second;
    struct relay relay; /* to the first */
};

static void start(struct world *world)
{
    memset(world, 0, sizeof(*world));
    kit_start(&world->kit);
    kit_root(&world->kit, &world->root);
    relay_start(&world->kit, &world->relay, &world->root.address);
    kit_node(&world->kit, &world->first, &world->relay.address);
    KIT_WAIT(&world->kit, world->root.joined == 1 && world->first.joined);
}

static void end(struct world *world, unsigned lost)
{
    const unsigned joined = world->root.joined;

    kit_node(&world->kit, &world->second, &world->root.address);
    KIT_WAIT(&world->kit, world->second.joined);
    assert_int_equal(kit_send(&world->second, STAR_ROOT, 0), 0);
    assert_int_equal(kit_send(&world->first, STAR_ROOT, 0), 0);
    assert_int_equal(kit_send(&world->root, 1, 0), 0);
    KIT_WAIT(&world->kit, world->root.messages == 2 && world->first.messages == 1);
    assert_int_equal(world->root.joined, joined + 1);
    assert_int_equal(world->root.lost, lost);
    assert_int_equal(world->first.lost + world->second.lost, 0);
    relay_cut(&world->relay);
    star_free(world->first.star);
    star_free(world->second.star);
    star_free(world->root.star);
    relay_end(&world->relay);
    kit_end(&world->kit);
}

/* As many as there may be, and as many again, who say nothing and stay. */
static void test_many_silent(void **state)
{
    struct world world;
    int fds[2 * STAR_STRANGERS];

    (void)state;
    start(&world);
    for (unsigned i = 0; i < 2 * STAR_STRANGERS; i++)
        fds[i] = raw_connect(&world.root.address);
    raw_expect_close(fds[0]); /* the oldest made room */
    end(&world, 0);
    for (unsigned i = 0; i < 2 * STAR_STRANGERS; i++)
        close(fds[i]);
}

static void test_silent_is_closed(void **state)
{
    struct world world;
    int fd;

    (void)state;
    start(&world);
    fd = raw_connect(&world.root.address);
    assert_true(raw_write(fd, "GWST", 4));
    raw_expect_close(fd);
    close(fd);
    end(&world, 0);
}

static void test_garbage(void **state)
{
    static uint8_t bytes[1 << 20];
    uint64_t seed = 7;
    struct world world;

    (void)state;
    start(&world);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        bytes[i] = (uint8_t)(seed >> 56);
    }
    for (unsigned round = 0; round < 8; round++) {
        const int fd = raw_connect(&world.root.address);

        if (round % 2) /* begins as it should */
            memcpy(bytes, "GWST\1\0\0", 8);
        (void)raw_write(fd, bytes + round, sizeof(bytes) - 8);
        raw_expect_close(fd);
        close(fd);
    }
    end(&world, 0);
}

/* Another version: it hears which one is spoken here, then is closed. */
static void test_other_version(void **state)
{
    uint8_t hello[STAR_HELLO_BYTES] = {'G', 'W', 'S', 'T', 2};
    struct world world;
    int fd;

    (void)state;
    start(&world);
    fd = raw_connect(&world.root.address);
    assert_true(raw_write(fd, hello, sizeof(hello)));
    assert_true(raw_read(fd, hello, sizeof(hello)));
    assert_memory_equal(hello, "GWST\1\0\0", 8);
    raw_expect_close(fd);
    close(fd);
    end(&world, 0);
}

/* All that the first node said when it connected, said once more; and cut short everywhere. */
static void test_replayed(void **state)
{
    struct world world;
    uint8_t kept[RELAY_KEPT];

    (void)state;
    start(&world);
    assert_true(world.relay.kept_bytes >= 103); /* hello, header, OPEN: WIRE.md */
    memcpy(kept, world.relay.kept, sizeof(kept));
    for (size_t bytes = 1; bytes <= 103; bytes += 17) {
        const int fd = raw_connect(&world.root.address);

        assert_true(raw_write(fd, kept, bytes));
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        raw_expect_close(fd);
        close(fd);
    }
    assert_int_equal(world.root.joined, 1);
    end(&world, 0);
}

/* What the root says, sent back to it. */
static void test_reflected(void **state)
{
    uint8_t hello[STAR_HELLO_BYTES] = "GWST\1\0\0", answer[86];
    struct world world;
    int fd;

    (void)state;
    start(&world);
    fd = raw_connect(&world.root.address);
    assert_true(raw_write(fd, hello, sizeof(hello)));
    assert_true(raw_read(fd, answer, sizeof(answer)));
    (void)raw_write(fd, answer + STAR_HELLO_BYTES, sizeof(answer) - STAR_HELLO_BYTES);
    (void)raw_write(fd, answer, STAR_HELLO_BYTES);
    raw_expect_close(fd);
    close(fd);
    end(&world, 0);
}

/* A byte at a time, slower than anybody should be; then one that makes it in time. */
static void test_slow(void **state)
{
    struct world world;
    int fd;

    (void)state;
    start(&world);
    fd = raw_connect(&world.root.address);
    for (unsigned i = 0; i < 39; i++) {
        (void)raw_write(fd, "GWST\1\0\0\0" + (i < 8 ? i : 7), 1);
        kit_turn(&world.kit, 5 * MS);
    }
    raw_expect_close(fd);
    close(fd);
    end(&world, 0);
}

/* ---- who knows the secret -------------------------------------------------------------------- */

/* Passes over what else it says: OPENED, beats. */
static void expect_bye(struct raw *raw, enum star_bye reason)
{
    static uint8_t record[STAR_RECORD_MAX];
    size_t bytes;

    do {
        assert_true(raw_hear(raw, record, &bytes));
    } while (record[0] == STAR_OPENED || record[0] == STAR_DATA);
    assert_int_equal(bytes, 2);
    assert_int_equal(record[0], STAR_BYE);
    assert_int_equal(record[1], reason);
}

static void expect_nonsense(struct world *world, const uint8_t *record, size_t bytes)
{
    const unsigned lost = world->root.lost, joined = world->root.joined;
    struct raw raw;

    raw_open(&raw, &world->root.address, 1000 + lost);
    KIT_WAIT(&world->kit, world->root.joined == joined + 1);
    (void)raw_say(&raw, record, bytes);
    KIT_WAIT(&world->kit, world->root.lost == lost + 1);
    assert_int_equal(world->root.code, GW_E_PROTOCOL);
    assert_int_equal(world->root.last_lost, world->root.last_joined);
    assert_string_equal(world->root.text, "it sent a malformed record");
    expect_bye(&raw, STAR_BYE_NONSENSE);
    raw_expect_close(raw.fd);
    raw_close(&raw);
}

static void test_nonsense_of_a_peer(void **state)
{
    static const struct {
        size_t bytes;
        uint8_t record[20];
    } rows[] = {
        {1, {0}},                                   /* no such kind */
        {1, {6}},                                   /* nor that */
        {8, {4}},                                   /* DATA, too short */
        {9, {4, 1}},                                /* acknowledges what was not sent */
        {12, {4, [9] = 1}},                         /* half a length */
        {14, {4, [9] = 2, 0, 0, 0, 7}},             /* more than there is */
        {14, {4, [9] = 0xff, 0xff, 0xff, 0xff, 7}}, /* much more */
        {18, {2, 5}},                               /* OPEN once more */
        {9, {3}},                                   /* OPENED is the root's */
        {2, {5, 0}},                                /* BYE without a reason */
        {3, {5, 1, 0}},                             /* BYE and more */
    };
    struct world world;

    (void)state;
    start(&world);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        expect_nonsense(&world, rows[i].record, rows[i].bytes);
    world.root.messages = 0;
    end(&world, sizeof(rows) / sizeof(rows[0]));
}

/* More than may wait, while the engine takes nothing: 1023 of them may. */
static void test_too_much_of_a_peer(void **state)
{
    static uint8_t record[STAR_RECORD_MAX] = {STAR_DATA, [11] = 1};
    struct world world;
    struct raw raw;

    (void)state;
    start(&world);
    raw_open(&raw, &world.root.address, 5);
    KIT_WAIT(&world.kit, world.root.joined == 2);
    for (uint64_t i = 0; i < 1024; i++) {
        kit_make(i, STAR_MESSAGE_MAX, record + 13);
        (void)raw_say(&raw, record, sizeof(record));
    }
    expect_bye(&raw, STAR_BYE_NONSENSE);
    KIT_WAIT(&world.kit, world.root.lost);
    assert_int_equal(world.root.messages, 1023);
    assert_int_equal(world.root.code, GW_E_PROTOCOL);
    assert_string_equal(world.root.text, "it sent more than may wait");
    raw_close(&raw);
    world.root.messages = 0;
    end(&world, 1);
}

/* A claim to have received what was never sent; a session that nobody knows. */
static void test_false_claims(void **state)
{
    struct world world;
    const struct star_open opens[] = {{77, 3, false}, {78, 0, true}};
    const enum star_bye byes[] = {STAR_BYE_NONSENSE, STAR_BYE_FORGOTTEN};

    (void)state;
    start(&world);
    for (unsigned i = 0; i < 2; i++) {
        struct raw raw;

        raw_open_as(&raw, &world.root.address, &opens[i]);
        expect_bye(&raw, byes[i]);
        raw_close(&raw);
    }
    KIT_WAIT(&world.kit, world.root.lost == 1);
    assert_int_equal(world.root.joined, 2);
    end(&world, 1);
}

/* No more proved ones than the 128 that the kit allows, whatever the engine does with them. */
static void test_too_many_peers(void **state)
{
    struct world world;
    struct raw raws[128];
    uint8_t record[STAR_RECORD_MAX];
    size_t bytes;

    (void)state;
    start(&world);
    for (unsigned i = 0; i < 128; i++) {
        raw_open(&raws[i], &world.root.address, 100 + i);
        assert_true(raw_hear(&raws[i], record, &bytes));
        assert_int_equal(record[0], i < 127 ? STAR_OPENED : STAR_BYE);
    }
    assert_int_equal(record[1], STAR_BYE_FULL);
    KIT_WAIT(&world.kit, world.root.joined == 128);
    for (unsigned i = 0; i < 128; i++)
        raw_close(&raws[i]);
    for (uint32_t peer = 2; peer <= 128; peer++)
        star_drop(world.root.star, peer);
    kit_turn(&world.kit, 20 * MS);
    end(&world, 0);
}

/* ---- a root that is none --------------------------------------------------------------------- */

/* What a node makes of a root that answers its hello so, and then perhaps proves itself and says a
 * record too early. */
static void expect_of_root(const uint8_t *answer, size_t answer_bytes, const uint8_t *record,
                           size_t bytes, int code)
{
    struct job_address address = {.family = 4, .bytes = {127, 0, 0, 1}};
    uint8_t nonce[STAR_NONCE_BYTES] = {8}, step[STAR_STEP_MAX], own[STAR_STEP_MAX];
    char text[GW_TEXT_MAX + 1];
    struct side node = {0};
    struct raw raw = {0};
    struct kit kit;
    size_t own_bytes;
    int fd;

    kit_start(&kit);
    assert_int_equal(star_address_listen(&address, 0, 0, &fd, text), 0);
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0); /* may block */
    kit_node(&kit, &node, &address);
    raw.fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    assert_true(raw.fd >= 0);
    assert_true(raw_read(raw.fd, step, STAR_HELLO_BYTES));
    if (answer) {
        assert_true(raw_write(raw.fd, answer, answer_bytes));
    } else {
        assert_int_equal(star_proof_new(kit_secret, nonce, NULL, &raw.proof), 0);
        assert_int_equal(star_proof_take(raw.proof, step, own, &own_bytes), 0);
        assert_true(raw_write(raw.fd, own, own_bytes));
        assert_true(raw_read(raw.fd, step, star_proof_wants(raw.proof)));
        assert_int_equal(star_proof_take(raw.proof, step, own, &own_bytes), 0);
        assert_true(raw_say(&raw, record, bytes));
    }
    KIT_WAIT(&kit, node.lost);
    assert_int_equal(node.code, code);
    assert_int_equal(node.joined + node.messages, 0);
    raw_close(&raw);
    star_free(node.star);
    close(fd);
    kit_end(&kit);
}

static void test_false_roots(void **state)
{
    const uint8_t early[14] = {4, [9] = 1, 0, 0, 0, 'x'}, bye[2] = {5, 3};
    const uint8_t http[86] = "HTTP/1.1 400 Bad Request\r\n", other[86] = "GWST\2";
    const uint8_t silly[86] = "GWST\1";

    (void)state;
    expect_of_root(http, sizeof(http), NULL, 0, GW_E_DENIED);
    expect_of_root(other, sizeof(other), NULL, 0, GW_E_VERSION);
    expect_of_root(silly, sizeof(silly), NULL, 0, GW_E_DENIED);
    expect_of_root(NULL, 0, early, sizeof(early), GW_E_PROTOCOL);
    expect_of_root(NULL, 0, bye, sizeof(bye), GW_E_DENIED); /* STAR_BYE_DOOR */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_silent),
        cmocka_unit_test(test_silent_is_closed),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_replayed),
        cmocka_unit_test(test_reflected),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_nonsense_of_a_peer),
        cmocka_unit_test(test_too_much_of_a_peer),
        cmocka_unit_test(test_false_claims),
        cmocka_unit_test(test_too_many_peers),
        cmocka_unit_test(test_false_roots),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
