/* SPDX-License-Identifier: Apache-2.0 */
/* Room that is short: the first error of a file is kept, cut but ended, wherever it is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/text.h"
#include "daemon/conf/conf.h"
#include "gradwire/errors.h"

static void test_errors_in_short_room(void **state)
{
    static const char text[] = "[no such section]\nkey = 1\n[another]\nkey = 2\n";
    static struct conf conf;
    char full[CONF_ERROR_BYTES];

    (void)state;
    conf_defaults(&conf);
    assert_int_equal(conf_parse(text, strlen(text), "f", &conf, full, sizeof(full)),
                     GW_E_INVALID);
    assert_true(strncmp(full, "f:", 2) == 0);
    for (size_t room = 1; room < 40; room++) {
        char error[64];

        memset(error, 'x', sizeof(error));
        assert_int_equal(conf_parse(text, strlen(text), "f", &conf, error, room), GW_E_INVALID);
        assert_true(strlen(error) < room);
        assert_int_equal(strncmp(error, full, strlen(error)), 0);
        assert_int_equal(error[room], 'x');
    }
}

static void test_lines_of_every_length(void **state)
{
    static char text[3 * CONF_LINE_MAX];
    static struct conf conf;
    char error[CONF_ERROR_BYTES];

    (void)state;
    for (size_t bytes = CONF_LINE_MAX - 3; bytes < CONF_LINE_MAX + 3; bytes++) {
        conf_defaults(&conf);
        memset(text, 'c', bytes);
        text[0] = '#';
        text[bytes - 1] = '\n';
        error[0] = 0;
        assert_int_equal(conf_parse(text, bytes, "f", &conf, error, sizeof(error)) < 0,
                         bytes > CONF_LINE_MAX);
    }
    for (size_t i = 0; i < conf_keys_count; i++) {
        int n = snprintf(text, sizeof(text), "[%s]\n%s =\n", conf_keys[i].section,
                         conf_keys[i].name);

        conf_defaults(&conf);
        (void)conf_parse(text, (size_t)n, "f", &conf, error, sizeof(error));
        (void)conf_set(&conf_keys[i], "", &conf);
    }
}

static void test_texts_in_short_room(void **state)
{
    (void)state;
    for (size_t room = 1; room < 12; room++) {
        char at[16];
        struct text text;

        memset(at, 'x', sizeof(at));
        text_start(&text, at, room);
        text_add(&text, "%s", "0123");
        text_add(&text, "%s", "4567");
        text_add(&text, "%s", "");
        text_add_escaped(&text, "a");
        assert_int_equal(text.cut, room < 8 + 1 + 1);
        assert_true(strlen(at) < room);
        assert_int_equal(at[room], 'x');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_in_short_room),
        cmocka_unit_test(test_lines_of_every_length),
        cmocka_unit_test(test_texts_in_short_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
