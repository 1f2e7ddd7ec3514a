/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every key of a DeepSpeed configuration, with a value of every type: taken whole, or refused with
 * the file and the key named. ctest: link=gw_conf_json
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/conf/deepspeed_internal.h"
#include "gradwire/errors.h"

#define TEXT_BYTES 2048u

static const struct deepspeed_given given = {.world = 4, .numel = 1000};

/* {"a": {"b": value}} of "a.b" */
static void nest(const char *path, const char *value, char text[TEXT_BYTES])
{
    struct text out;
    unsigned depth = 1;

    text_start(&out, text, TEXT_BYTES);
    text_add(&out, "{\"");
    for (const char *at = path; *at; at++) {
        if (*at != '.') {
            text_add(&out, "%c", *at);
            continue;
        }
        text_add(&out, "\": {\"");
        depth++;
    }
    text_add(&out, "\": %s", value);
    while (depth-- > 0)
        text_add(&out, "}");
}

static int parse(const char *text, char error[DEEPSPEED_ERROR_BYTES])
{
    struct deepspeed *config = NULL;
    int r;

    error[0] = 0;
    r = deepspeed_parse(text, strlen(text), "ds", &given, &config, error, DEEPSPEED_ERROR_BYTES);
    assert_int_equal(r == 0, config != NULL);
    deepspeed_free(config);
    return r;
}

static void test_every_key_with_every_type(void **state)
{
    static const char *const values[] = {
        "null", "true", "false", "0", "1", "-1", "2.5", "1e9", "1e300", "\"none\"", "\"auto\"",
        "\"fp32\"", "\"text\"", "[]", "[1]", "{}", "{\"enabled\": true}", "{\"enabled\": false}",
        "\"bfloat16\"", "\"bfp16\"", "1e18", "0.0", "3e9",
        "{\"device\": \"none\"}", "{\"device\": \"cpu\"}"};
    char text[TEXT_BYTES], error[DEEPSPEED_ERROR_BYTES];
    uint32_t taken = 0, refused = 0;

    (void)state;
    for (size_t k = 0; k < deepspeed_keys_count; k++) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            int r;

            nest(deepspeed_keys[k].path, values[v], text);
            r = parse(text, error);
            taken += r == 0;
            refused += r < 0;
            if (r == 0)
                continue;
            assert_int_equal(r, GW_E_INVALID);
            assert_true(strncmp(error, "ds:", 3) == 0 && strlen(error) > 10);
        }
    }
    /* A key takes some value, and nearly each refuses some. */
    assert_true(taken > 2 * deepspeed_keys_count);
    assert_true(refused > deepspeed_keys_count);
}

static void test_wrong_files_are_named(void **state)
{
    static const char *const wrong[] = {"[]", "1", "\"a\"", "null", "{", "{\"a\": 1,}",
                                        "{\"zero_optimization\": []}", "{\"fp16\": 1}",
                                        "{\"bf16\": []}", "{} x"};
    char error[DEEPSPEED_ERROR_BYTES], text[TEXT_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (parse(wrong[i], error) < 0)
            assert_true(strncmp(error, "ds:", 3) == 0);
    }
    assert_int_equal(parse("{", error), GW_E_INVALID);
    /* Names longer than any path are shown cut, and nothing breaks. */
    memset(text, 'k', sizeof(text));
    memcpy(text, "{\"zero_optimization\": {\"", 24);
    memcpy(text + sizeof(text) - 8, "\": 1}}", 7);
    (void)parse(text, error);
    memset(text, 'k', sizeof(text));
    memcpy(text, "{\"bf16\": {\"", 11);
    memcpy(text + sizeof(text) - 8, "\": 1}}", 7);
    assert_int_equal(parse(text, error), GW_E_INVALID);
    /* A section that is none; "zero_optimization": true is of old. */
    assert_int_equal(parse("{\"zero_optimization\": true}", error), 0);
    assert_int_equal(parse("{\"zero_optimization\": false}", error), 0);
    assert_int_equal(parse("{\"fp16\": true}", error), GW_E_INVALID);
    /* The same thing under two spellings, alike and not. */
    (void)parse("{\"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": true}}", error);
    (void)parse("{\"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": false}}", error);
}

/* What the caller gives stands in for keys, whatever the file says of them. */
static void test_what_the_caller_gives(void **state)
{
    static const struct deepspeed_given all = {
        .world = 4, .numel = 1000, .bucket_bytes = 4096, .micro_steps = 2, .version = 10000};
    static const char *const texts[] = {
        "{}", "{\"gradient_accumulation_steps\": \"auto\"}",
        "{\"zero_optimization\": {\"reduce_bucket_size\": \"auto\"}}",
        "{\"gradient_accumulation_steps\": null, \"bfloat16\": {\"enabled\": true}}"};
    char error[DEEPSPEED_ERROR_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct deepspeed *config = NULL;

        assert_int_equal(deepspeed_parse(texts[i], strlen(texts[i]), "ds", &all, &config, error,
                                         sizeof(error)),
                         0);
        assert_int_equal(config->options.micro_steps, 2);
        assert_int_equal(config->options.bucket_bytes, 4096);
        deepspeed_free(config);
    }
}

static void test_versions(void **state)
{
    static const char *const wrong[] = {"", "1", "1.2", "1.2.", "a.b.c", "1.2.3.4", "1..2",
                                        "1.1000.2", "99999999999.1.1", "-1.2.3", "1.2.3 "};
    uint32_t version;

    (void)state;
    assert_int_equal(deepspeed_version("0.19.8", &version), 0);
    assert_int_equal(version, 19008);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        version = 7;
        if (deepspeed_version(wrong[i], &version) < 0)
            assert_int_equal(version, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_with_every_type),
        cmocka_unit_test(test_wrong_files_are_named),
        cmocka_unit_test(test_what_the_caller_gives),
        cmocka_unit_test(test_versions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
