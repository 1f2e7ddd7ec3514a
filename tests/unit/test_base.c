/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base: errors, escaping, tags, text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/error.h"
#include "daemon/base/escape.h"
#include "daemon/base/hash.h"
#include "daemon/base/tag.h"
#include "daemon/base/text.h"

static void errors_have_name_and_message(void **state)
{
    (void)state;
    assert_string_equal(gw_base_error_name(GW_E_INVALID), "GW_E_INVALID");
    assert_string_equal(gw_base_error_name(-18), "GW_E_PEER_LOST");
    assert_string_equal(gw_base_error_message(-18), "a rank of the job is gone");
    assert_string_equal(gw_base_error_name(0), "GW_OK");
    assert_string_equal(gw_base_error_name(GW_ERROR_LAST), "GW_E_?");
    assert_string_equal(gw_base_error_name(1), "GW_E_?");
    assert_string_equal(gw_base_error_message(INT32_MIN), "unknown error");
    for (int e = -24; e < 0; e++)
        assert_string_not_equal(gw_base_error_name(e), "GW_E_?");
}

static void escapes_what_a_terminal_or_json_would_act_on(void **state)
{
    char out[64];

    (void)state;
    assert_string_equal(escape_string("layer.0/w ~", out, sizeof(out)), "layer.0/w ~");
    assert_string_equal(escape_string("a\"b\\c", out, sizeof(out)), "a\\\"b\\\\c");
    assert_string_equal(escape_string("\x1b[2J\n\x7f", out, sizeof(out)),
                        "\\u001b[2J\\u000a\\u007f");
    /* UTF-8 byte by byte: plain ASCII whatever the encoding */
    assert_string_equal(escape_string("\xc3\xa9", out, sizeof(out)), "\\u00c3\\u00a9");
    assert_string_equal(escape_string(NULL, out, sizeof(out)), "");
    assert_int_equal(escape_text("a\0b", 3, out, sizeof(out)), 8);
    assert_string_equal(out, "a\\u0000b");
}

static void cuts_between_escapes(void **state)
{
    char out[16];

    (void)state;
    for (size_t room = 1; room <= 9; room++) {
        memset(out, '#', sizeof(out));
        /* "x", then 6, then 1 characters */
        assert_int_equal(escape_text("x\ny", 3, out, room), room <= 1   ? 0
                                                            : room <= 7 ? 1
                                                            : room <= 8 ? 7
                                                                        : 8);
        assert_int_equal(out[room], '#');
    }
    assert_int_equal(escape_text("x", 1, out, 0), 0);
    assert_int_equal(ESCAPE_BYTES(1), 7);
}

static void tags_have_one_spelling(void **state)
{
    const uint8_t tag[TAG_BYTES] = {0x00, 0x12, 0xab, 0xff, 0x80, 0x09, 0xf0, 0x0f};
    uint8_t back[TAG_BYTES] = {0};
    char hex[TAG_HEX_BYTES];

    (void)state;
    tag_to_hex(tag, hex);
    assert_string_equal(hex, "0012abff8009f00f");
    assert_int_equal(tag_from_hex(hex, back), 0);
    assert_memory_equal(tag, back, sizeof(tag));
    assert_int_equal(tag_from_hex("0012ABff8009f00f", back), GW_E_INVALID);
    assert_int_equal(tag_from_hex("0012abff8009f00", back), GW_E_INVALID);
    assert_int_equal(tag_from_hex("0012abff8009f00f0", back), GW_E_INVALID);
    assert_int_equal(tag_from_hex("../../../../etc/", back), GW_E_INVALID);
    assert_int_equal(tag_from_hex("", back), GW_E_INVALID);
    assert_int_equal(tag_from_hex(NULL, back), GW_E_INVALID);
    assert_memory_equal(tag, back, sizeof(tag));
}

static void text_is_cut_and_says_so(void **state)
{
    char buffer[10];
    struct text text;

    (void)state;
    text_start(&text, buffer, sizeof(buffer));
    assert_string_equal(buffer, "");
    text_add(&text, "%s%d", "abc", 45);
    assert_string_equal(buffer, "abc45");
    assert_false(text.cut);
    text_add(&text, "6789");
    assert_string_equal(buffer, "abc456789");
    assert_false(text.cut);
    text_add(&text, "x");
    assert_string_equal(buffer, "abc456789");
    assert_true(text.cut);
    assert_int_equal(text.used, 9);
}

static void text_cuts_no_escape_in_two(void **state)
{
    char buffer[9];
    struct text text = TEXT(buffer);

    (void)state;
    text_add_escaped(&text, "ab\n\n");
    assert_string_equal(buffer, "ab\\u000a");
    assert_true(text.cut);
    text_start(&text, buffer, sizeof(buffer));
    text_add_escaped(&text, NULL);
    assert_string_equal(buffer, "");
    assert_false(text.cut);
}

static void ranks_read_as_runs(void **state)
{
    static const struct {
        struct ranks ranks;
        const char *text;
    } cases[] = {
        {{{0}}, "none"},          {{{1}}, "0"},
        {{{3}}, "0, 1"},          {{{7}}, "0-2"},
        {{{0x9d}}, "0, 2-4, 7"},  {{{1ull << 63}}, "63"},
        {{{UINT64_MAX}}, "0-63"}, {{{3ull << 62}}, "62, 63"},
    };
    char buffer[64];
    struct text text;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        text_start(&text, buffer, sizeof(buffer));
        text_add_ranks(&text, &cases[i].ranks);
        assert_string_equal(buffer, cases[i].text);
    }
}

static void hash_is_fnv1a(void **state)
{
    const uint8_t bytes[8] = {0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01};

    (void)state;
    /* published test vectors of FNV-1a 64: "", "a", "foobar" */
    assert_true(hash_add(HASH_START, "", 0) == 0xcbf29ce484222325ull);
    assert_true(hash_add(HASH_START, "a", 1) == 0xaf63dc4c8601ec8cull);
    assert_true(hash_add(HASH_START, "foobar", 6) == 0x85944171f73967e8ull);
    assert_true(hash_add_u64(HASH_START, 0x0102030405060708ull) ==
                hash_add(HASH_START, bytes, sizeof(bytes)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_have_name_and_message),
        cmocka_unit_test(escapes_what_a_terminal_or_json_would_act_on),
        cmocka_unit_test(cuts_between_escapes),
        cmocka_unit_test(tags_have_one_spelling),
        cmocka_unit_test(text_is_cut_and_says_so),
        cmocka_unit_test(text_cuts_no_escape_in_two),
        cmocka_unit_test(ranks_read_as_runs),
        cmocka_unit_test(hash_is_fnv1a),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
