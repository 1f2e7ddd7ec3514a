/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the star's connections say, without sockets: the bytes of WIRE.md section 9, checked with
 * libsodium alone; numbers, acknowledgements and resuming.
 * ctest: link=gw_star_wire
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <sodium.h>

#include "daemon/engine/star_proof.h"
#include "gradwire/errors.h"

static const uint8_t secret[32] = "0123456789abcdef0123456789abcde";
static const uint8_t node_nonce[32] = "the nonce of a node, 32 bytes...";
static const uint8_t root_nonce[32] = "the nonce of its root, 32 bytes.";

struct pair {
    struct star_proof *node, *root;
};

static void make(struct pair *pair, const struct star_open *open)
{
    assert_true(sodium_init() >= 0);
    assert_int_equal(star_proof_new(secret, node_nonce, open, &pair->node), 0);
    assert_int_equal(star_proof_new(secret, root_nonce, NULL, &pair->root), 0);
}

static void done(struct pair *pair)
{
    pair->node = star_proof_free(pair->node);
    pair->root = star_proof_free(pair->root);
}

static void prove(struct pair *pair, const struct star_open *open)
{
    uint8_t step[STAR_STEP_MAX], answer[STAR_STEP_MAX];
    size_t bytes;

    make(pair, open);
    star_proof_hello(pair->node, step);
    assert_int_equal(star_proof_take(pair->root, step, answer, &bytes), 0);
    assert_int_equal(star_proof_take(pair->node, answer, step, &bytes), 0);
    assert_int_equal(star_proof_take(pair->root, step, answer, &bytes), 0);
    assert_int_equal(bytes, 0);
}

/* By hand: "gradwire star" and its 0, version 1, sender, both nonces. */
static void key_of(uint8_t sender, uint8_t key[32])
{
    uint8_t text[14 + 2 + 64];

    memcpy(text, "gradwire star", 14);
    text[14] = 1;
    text[15] = sender;
    memcpy(text + 16, node_nonce, 32);
    memcpy(text + 48, root_nonce, 32);
    assert_int_equal(crypto_generichash(key, 32, text, sizeof(text), secret, 32), 0);
}

static void open_by_hand(uint8_t sender, const uint8_t *header, const uint8_t *record,
                         const void *want, size_t bytes)
{
    crypto_secretstream_xchacha20poly1305_state state;
    uint8_t key[32], plain[64];
    const uint8_t length[4] = {(uint8_t)(bytes + 17)};
    unsigned long long got;
    uint8_t tag;

    key_of(sender, key);
    assert_int_equal(crypto_secretstream_xchacha20poly1305_init_pull(&state, header, key), 0);
    assert_memory_equal(record, length, 4);
    assert_int_equal(crypto_secretstream_xchacha20poly1305_pull(&state, plain, &got, &tag,
                                                                record + 4, bytes + 17, NULL, 0),
                     0);
    assert_int_equal(got, bytes);
    assert_memory_equal(plain, want, bytes);
}

static void test_bytes_of_the_proof(void **state)
{
    const struct star_open open = {.session = 0x1122334455667788, .received = 515, .resumed = true};
    const uint8_t open_record[18] = {2, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
                                     3, 2,    0,    0,    0,    0,    0,    0,    1};
    uint8_t step[STAR_STEP_MAX], answer[STAR_STEP_MAX];
    struct pair pair;
    size_t bytes;

    (void)state;
    make(&pair, &open);
    star_proof_hello(pair.node, step);
    assert_memory_equal(step, "GWST\1\0\0", 8);
    assert_memory_equal(step + 8, node_nonce, 32);
    assert_int_equal(star_proof_wants(pair.root), 40);
    assert_int_equal(star_proof_take(pair.root, step, answer, &bytes), 0);
    assert_int_equal(bytes, 86);
    assert_memory_equal(answer, "GWST\1\0\0", 8);
    assert_memory_equal(answer + 8, root_nonce, 32);
    open_by_hand(2, answer + 40, answer + 64, "\1", 1);
    assert_int_equal(star_proof_wants(pair.node), 86);
    assert_int_equal(star_proof_take(pair.node, answer, step, &bytes), 0);
    assert_int_equal(bytes, 63);
    assert_int_equal(star_proof_wants(pair.node), 0);
    open_by_hand(1, step, step + 24, open_record, 18);
    assert_int_equal(star_proof_wants(pair.root), 63);
    assert_int_equal(star_proof_take(pair.root, step, answer, &bytes), 0);
    assert_int_equal(star_proof_wants(pair.root), 0);
    assert_true(star_proof_open(pair.root)->session == 0x1122334455667788);
    assert_int_equal(star_proof_open(pair.root)->received, 515);
    assert_true(star_proof_open(pair.root)->resumed);
    done(&pair);
}

/* Each bit of each step turned over: the other side refuses. */
static void test_every_bit_counts(void **state)
{
    const struct star_open open = {.session = 1};
    uint8_t hello[STAR_STEP_MAX], answer[STAR_STEP_MAX], step[STAR_STEP_MAX], none[STAR_STEP_MAX];
    size_t bytes;

    (void)state;
    for (size_t bit = 0; bit < (86 + 63) * 8; bit++) {
        struct pair pair;
        int r;

        make(&pair, &open);
        star_proof_hello(pair.node, hello);
        assert_int_equal(star_proof_take(pair.root, hello, answer, &bytes), 0);
        if (bit < 86 * 8)
            answer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        r = star_proof_take(pair.node, answer, step, &bytes);
        if (bit < 86 * 8) {
            assert_int_equal(r, bit / 8 == 4 ? GW_E_VERSION : GW_E_DENIED);
            assert_int_equal(bytes, 0); /* and has said nothing of its own */
        } else {
            assert_int_equal(r, 0);
            step[bit / 8 - 86] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(star_proof_take(pair.root, step, none, &bytes), GW_E_DENIED);
            assert_int_equal(star_proof_wants(pair.root), 63);
        }
        done(&pair);
    }
}

static void test_records_in_their_order(void **state)
{
    const struct star_open open = {.session = 1};
    uint8_t sealed[3][STAR_SEALED_BYTES(8)], record[8];
    struct pair pair;
    size_t bytes;

    (void)state;
    prove(&pair, &open);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(star_seal(pair.node, (const uint8_t *)"abcdefgh" + i, 5, sealed[i]), 26);
    assert_int_equal(star_sealed_bytes(sealed[0]), 26);
    assert_int_equal(star_unseal(pair.root, sealed[1], 26, record, &bytes), GW_E_DENIED);
    assert_int_equal(star_unseal(pair.root, sealed[0], 26, record, &bytes), 0);
    assert_int_equal(bytes, 5);
    assert_memory_equal(record, "abcde", 5);
    assert_int_equal(star_unseal(pair.root, sealed[0], 26, record, &bytes), GW_E_DENIED);
    assert_int_equal(star_unseal(pair.root, sealed[2], 26, record, &bytes), GW_E_DENIED);
    assert_int_equal(star_unseal(pair.node, sealed[1], 26, record, &bytes), GW_E_DENIED);
    assert_int_equal(star_unseal(pair.root, sealed[1], 26, record, &bytes), 0);
    assert_memory_equal(record, "bcdef", 5);
    done(&pair);
}

static void test_lengths(void **state)
{
    static const struct {
        uint8_t length[4];
        size_t bytes;
    } rows[] = {
        {{0, 0, 0, 0}, 0},    {{17, 0, 0, 0}, 0},
        {{18, 0, 0, 0}, 22},  {{0x1e, 0, 1, 0}, 65570}, /* 17 + 9 + 4 + 65,536 */
        {{0x1f, 0, 1, 0}, 0}, {{0xff, 0xff, 0xff, 0xff}, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(star_sealed_bytes(rows[i].length), rows[i].bytes);
}

/* ---- messages -------------------------------------------------------------------------------- */

static uint8_t record[STAR_RECORD_MAX];
static char heard[256];

static int take(void *user, const uint8_t *message, size_t count)
{
    (void)user;
    strncat(heard, (const char *)message, count);
    strncat(heard, "|", 2);
    return count == 3 && memcmp(message, "bad", 3) == 0 ? GW_E_LIMIT : 0;
}

static void say(struct star_flow *flow, const char *text)
{
    struct star_list list;

    star_list_start(&list);
    for (; *text; text++)
        assert_int_equal(star_list_add(&list, text, 1), 0);
    star_flow_add(flow, &list);
    assert_null(list.first);
}

/* What `from` has to send, to `to`, whose engine has taken `acknowledge`: what comes out. */
static const char *pass(struct star_flow *from, struct star_flow *to, uint64_t acknowledge)
{
    const size_t bytes = star_flow_fill(from, acknowledge, record);
    size_t freed = 0;

    heard[0] = '\0';
    assert_int_equal(star_flow_take(to, record, bytes, take, NULL, &freed), 0);
    return heard;
}

static void test_flow(void **state)
{
    const uint8_t bytes[] = {4, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 'a', 1, 0, 0, 0, 'b'};
    struct star_flow a, b;
    size_t freed = 0;

    (void)state;
    star_flow_start(&a);
    star_flow_start(&b);
    say(&a, "ab");
    assert_int_equal(star_flow_fill(&a, 9, record), sizeof(bytes));
    assert_memory_equal(record, bytes, sizeof(bytes));
    assert_int_equal(star_flow_resume(&a, 0), 0);
    assert_string_equal(pass(&a, &b, 0), "a|b|");
    assert_string_equal(pass(&a, &b, 0), "");
    assert_int_equal(b.received, 2);
    /* b's engine has taken one: 1 byte and 64 are free again. */
    assert_int_equal(star_flow_fill(&b, 1, record), 9);
    assert_int_equal(star_flow_take(&a, record, 9, take, NULL, &freed), 0);
    assert_int_equal(freed, 65);
    /* Cut while c and d are on their way, of which b has heard nothing. */
    say(&a, "cd");
    assert_int_equal(star_flow_fill(&a, 0, record), 19);
    assert_int_equal(star_flow_resume(&a, b.received), 0);
    say(&a, "e");
    assert_string_equal(pass(&a, &b, 0), "c|d|e|");
    /* Cut again, while b had heard all. */
    assert_int_equal(star_flow_resume(&a, b.received), 0);
    assert_string_equal(pass(&a, &b, 0), "");
    (void)pass(&b, &a, 5);
    assert_null(a.kept.first);
    assert_int_equal(a.acknowledged, 5);
    say(&a, "f");
    assert_string_equal(pass(&a, &b, 0), "f|");
    star_flow_end(&a);
    star_flow_end(&b);
}

static void test_false_numbers(void **state)
{
    const uint8_t ack[4][9] = {{4, 2}, {4, 4}, {4, 1}, {4, 3}};
    struct star_flow a;
    size_t freed;

    (void)state;
    star_flow_start(&a);
    say(&a, "abcd");
    (void)star_flow_fill(&a, 0, record);
    assert_int_equal(star_flow_resume(&a, 5), GW_E_PROTOCOL);
    assert_int_equal(star_flow_resume(&a, 3), 0); /* d is not sent on this connection */
    assert_int_equal(star_flow_take(&a, ack[0], 9, take, NULL, &freed), 0);
    assert_int_equal(star_flow_take(&a, ack[1], 9, take, NULL, &freed), GW_E_PROTOCOL);
    assert_int_equal(star_flow_take(&a, ack[2], 9, take, NULL, &freed), GW_E_PROTOCOL);
    assert_int_equal(star_flow_resume(&a, 1), GW_E_PROTOCOL);
    assert_int_equal(star_flow_take(&a, ack[3], 9, take, NULL, &freed), 0);
    assert_int_equal(a.acknowledged, 3);
    star_flow_end(&a);
}

/* Records are filled up to the largest message's size, and no further. */
static void test_full_records(void **state)
{
    static uint8_t large[STAR_MESSAGE_MAX];
    struct star_flow flow;
    struct star_list list;
    size_t freed;

    (void)state;
    star_flow_start(&flow);
    star_list_start(&list);
    assert_int_equal(star_list_add(&list, large, 1), 0);
    assert_int_equal(star_list_add(&list, large, STAR_MESSAGE_MAX), 0);
    assert_int_equal(star_list_add(&list, large, 30000), 0);
    assert_int_equal(star_list_add(&list, large, 35532), 0); /* 65,540 with two lengths of 4 */
    assert_int_equal(star_list_add(&list, large, 1), 0);
    star_flow_add(&flow, &list);
    assert_int_equal(star_flow_fill(&flow, 0, record), 9 + 5);
    assert_int_equal(star_flow_fill(&flow, 0, record), 9 + 4 + 65536);
    assert_int_equal(star_flow_fill(&flow, 0, record), 9 + 65540);
    assert_int_equal(star_flow_fill(&flow, 0, record), 9 + 5);
    assert_int_equal(star_flow_fill(&flow, 0, record), 9);
    assert_int_equal(flow.sent, 5);
    star_flow_end(&flow);
    /* Who takes a message may refuse it. */
    star_flow_start(&flow);
    star_list_start(&list);
    assert_int_equal(star_list_add(&list, "bad", 3), 0);
    star_flow_add(&flow, &list);
    heard[0] = '\0';
    assert_int_equal(
        star_flow_take(&flow, record, star_flow_fill(&flow, 0, record), take, NULL, &freed),
        GW_E_LIMIT);
    assert_int_equal(flow.received, 0);
    star_flow_end(&flow);
}

static void test_byes(void **state)
{
    static const int codes[] = {GW_E_PEER_LOST, GW_E_PEER_LOST, GW_E_DENIED, GW_E_LIMIT,
                                GW_E_PEER_LOST, GW_E_PROTOCOL,  GW_E_LIMIT};

    (void)state;
    for (uint8_t reason = 0; reason < 10; reason++) {
        const uint8_t bye[2] = {5, reason};
        const bool known = reason >= 1 && reason <= 7;
        const char *text = NULL;
        int code = 0;

        assert_int_equal(star_bye_get(bye, 2, &code, &text), known ? 0 : GW_E_PROTOCOL);
        if (known) {
            assert_int_equal(code, codes[reason - 1]);
            assert_non_null(text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_the_proof),
        cmocka_unit_test(test_every_bit_counts),
        cmocka_unit_test(test_records_in_their_order),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_flow),
        cmocka_unit_test(test_false_numbers),
        cmocka_unit_test(test_full_records),
        cmocka_unit_test(test_byes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
