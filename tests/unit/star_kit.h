/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stars over loopback for their tests: any number of sides in one process and on one loop, each
 * with what it has heard; a relay between a node and its root, which the test cuts, stops, and
 * makes lie; and a peer without a star, which knows the secret and says what the test wants.
 *
 * A numbered message is its number (8 bytes), then bytes that follow from it: each side checks that
 * those of each peer come in order, once and whole.
 */
#ifndef TESTS_UNIT_STAR_KIT_H
#define TESTS_UNIT_STAR_KIT_H

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sodium.h>
#include <sys/socket.h>
#include <uv.h>

#include "daemon/base/parse.h"
#include "daemon/engine/star.h"
#include "daemon/engine/star_address.h"
#include "daemon/engine/star_proof.h"
#include "gradwire/errors.h"

#define KIT_PEERS 200u
#define MS 1000000ull
#define SECOND (1000 * MS)

/* Waits for it; no test judges how long that takes. */
#define KIT_WAIT(kit, condition)                                                                   \
    for (uint64_t kit_end_ns = kit_deadline_ns(); !(condition);) {                                 \
        if (uv_hrtime() > kit_end_ns)                                                              \
            fail_msg("waited too long for: %s", #condition);                                       \
        (void)uv_run(&(kit)->loop, UV_RUN_ONCE);                                                   \
    }

struct kit {
    uv_loop_t loop;
    uv_timer_t timer; /* so that conditions are looked at */
};

struct side {
    struct star *star;
    struct job_address address; /* a root's */
    unsigned joined, lost, messages;
    uint32_t last_joined, last_lost;
    int code;
    char text[GW_TEXT_MAX + 1], from[STAR_ADDRESS_TEXT];
    uint64_t heard[KIT_PEERS]; /* numbered messages of each peer */
    size_t last_bytes;
    void (*on_message)(struct side *side, uint32_t peer);
};

static const uint8_t kit_secret[JOB_ID_SECRET_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 250};

static inline uint64_t kit_deadline_ns(void)
{
    const char *slower = getenv("GW_TEST_SLOWER");

    return uv_hrtime() + 40 * SECOND * (slower && *slower == '3' ? 3 : 1);
}

static inline void kit_on_timer(uv_timer_t *timer)
{
    (void)timer;
}

static inline void kit_start(struct kit *kit)
{
    assert_int_equal(uv_loop_init(&kit->loop), 0);
    assert_int_equal(uv_timer_init(&kit->loop, &kit->timer), 0);
    assert_int_equal(uv_timer_start(&kit->timer, kit_on_timer, 2, 2), 0);
}

/* All stars are freed by then: nothing of theirs may hold the loop. */
static inline void kit_end(struct kit *kit)
{
    uv_close((uv_handle_t *)&kit->timer, NULL);
    (void)uv_run(&kit->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&kit->loop), 0);
}

static inline void kit_turn(struct kit *kit, uint64_t ns)
{
    const uint64_t end_ns = uv_hrtime() + ns;

    while (uv_hrtime() < end_ns)
        (void)uv_run(&kit->loop, UV_RUN_ONCE);
}

/* ---- numbered messages ----------------------------------------------------------------------- */

static inline size_t kit_bytes_of(uint64_t number)
{
    static const size_t sizes[] = {8, 100, 9, 1000, 8, 4000, 65536, 77, 30000};

    return sizes[number % (sizeof(sizes) / sizeof(sizes[0]))];
}

static inline uint8_t kit_byte_of(uint64_t number, size_t at)
{
    return (uint8_t)(number * 31 + at * 7);
}

static inline size_t kit_make(uint64_t number, size_t bytes, uint8_t *message)
{
    memcpy(message, &number, 8);
    for (size_t at = 8; at < bytes; at++)
        message[at] = kit_byte_of(number, at);
    return bytes;
}

static inline void kit_check(uint64_t number, const uint8_t *message, size_t bytes)
{
    uint64_t got;

    assert_true(bytes >= 8);
    memcpy(&got, message, 8);
    assert_int_equal(got, number);
    for (size_t at = 8; at < bytes; at++)
        if (message[at] != kit_byte_of(number, at))
            fail_msg("message %llu: byte %zu is wrong", (unsigned long long)number, at);
}

static inline int kit_send(struct side *side, uint32_t peer, uint64_t number)
{
    static uint8_t message[STAR_MESSAGE_MAX];

    return star_send(side->star, peer, message, kit_make(number, kit_bytes_of(number), message));
}

/* ---- sides ----------------------------------------------------------------------------------- */

static inline void kit_joined(void *user, uint32_t peer, const char *from)
{
    struct side *side = user;

    side->joined++;
    side->last_joined = peer;
    snprintf(side->from, sizeof(side->from), "%s", from);
}

static inline void kit_message(void *user, uint32_t peer, const uint8_t *bytes, size_t count)
{
    struct side *side = user;

    assert_true(side->joined > 0);
    assert_true(peer < KIT_PEERS);
    side->messages++;
    side->last_bytes = count;
    if (count >= 8)
        kit_check(side->heard[peer]++, bytes, count);
    if (side->on_message)
        side->on_message(side, peer);
}

static inline void kit_lost(void *user, uint32_t peer, int code, const char *text)
{
    struct side *side = user;

    side->lost++;
    side->last_lost = peer;
    side->code = code;
    snprintf(side->text, sizeof(side->text), "%s", text);
}

static inline struct star_config kit_config(struct kit *kit, struct side *side)
{
    return (struct star_config){
        .loop = &kit->loop,
        .secret = kit_secret,
        .interface = "127.0.0.1",
        .beat_ns = 20 * MS,
        .lost_ns = 60 * SECOND,
        .peers_max = 128,
        .callbacks = {kit_joined, kit_message, kit_lost, side},
    };
}

static inline void kit_root_as(const struct star_config *config, struct side *root)
{
    char text[GW_TEXT_MAX + 1] = "";

    assert_int_equal(star_root(config, &root->star, &root->address, text), 0);
    assert_string_equal(text, "");
    assert_true(root->address.port > 0);
}

static inline void kit_root(struct kit *kit, struct side *root)
{
    const struct star_config config = kit_config(kit, root);

    kit_root_as(&config, root);
}

static inline void kit_node(struct kit *kit, struct side *node, const struct job_address *to)
{
    const struct star_config config = kit_config(kit, node);

    assert_int_equal(star_node(&config, to, &node->star), 0);
}

/* ---- a peer without a star ------------------------------------------------------------------- */

struct raw {
    int fd;
    struct star_proof *proof;
};

static inline int raw_connect(const struct job_address *to)
{
    struct sockaddr_storage address;
    int fd;

    assert_true(star_address_socket(to, &address));
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(
        connect(fd, (struct sockaddr *)&address,
                to->family == 4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)),
        0);
    return fd;
}

static inline bool raw_write(int fd, const void *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t n = send(fd, (const uint8_t *)bytes + at, count - at, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

/* false: the other side has closed. */
static inline bool raw_read(int fd, void *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t n = recv(fd, (uint8_t *)bytes + at, count - at, 0);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

/* Reads away what comes until the other side closes. */
static inline void raw_expect_close(int fd)
{
    const struct timeval limit = {40, 0};
    uint8_t bytes[4096];
    ssize_t n;

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    do {
        n = recv(fd, bytes, sizeof(bytes), 0);
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0)
        assert_int_equal(errno, ECONNRESET);
}

/* Proves itself as a node. */
static inline void raw_open_as(struct raw *raw, const struct job_address *to,
                               const struct star_open *open)
{
    uint8_t nonce[STAR_NONCE_BYTES] = {9}, step[STAR_STEP_MAX], answer[STAR_STEP_MAX];
    size_t bytes;

    raw->fd = raw_connect(to);
    assert_int_equal(star_proof_new(kit_secret, nonce, open, &raw->proof), 0);
    star_proof_hello(raw->proof, step);
    assert_true(raw_write(raw->fd, step, STAR_HELLO_BYTES));
    assert_true(raw_read(raw->fd, step, star_proof_wants(raw->proof)));
    assert_int_equal(star_proof_take(raw->proof, step, answer, &bytes), 0);
    assert_true(raw_write(raw->fd, answer, bytes));
}

static inline void raw_open(struct raw *raw, const struct job_address *to, uint64_t session)
{
    const struct star_open open = {.session = session};

    raw_open_as(raw, to, &open);
}

static inline bool raw_say(struct raw *raw, const uint8_t *record, size_t bytes)
{
    static uint8_t sealed[STAR_SEALED_BYTES(STAR_RECORD_MAX)];

    return raw_write(raw->fd, sealed, star_seal(raw->proof, record, bytes, sealed));
}

/* The next record; false: closed. */
static inline bool raw_hear(struct raw *raw, uint8_t *record, size_t *ret_bytes)
{
    static uint8_t sealed[STAR_SEALED_BYTES(STAR_RECORD_MAX)];
    size_t bytes;

    if (!raw_read(raw->fd, sealed, STAR_LENGTH_BYTES))
        return false;
    bytes = star_sealed_bytes(sealed);
    assert_true(bytes > 0);
    if (!raw_read(raw->fd, sealed + STAR_LENGTH_BYTES, bytes - STAR_LENGTH_BYTES))
        return false;
    assert_int_equal(star_unseal(raw->proof, sealed, bytes, record, ret_bytes), 0);
    return true;
}

static inline void raw_close(struct raw *raw)
{
    close(raw->fd);
    raw->proof = star_proof_free(raw->proof);
}

#endif
