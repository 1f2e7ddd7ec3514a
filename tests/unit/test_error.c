/* SPDX-License-Identifier: Apache-2.0 */
/* Names and messages of errors: each has its own, and what is none says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/error.h"

static void test_each_error_has_its_own(void **state)
{
    (void)state;
    for (int a = GW_ERROR_LAST + 1; a <= 0; a++) {
        assert_true(strncmp(gw_base_error_name(a), a ? "GW_E_" : "GW_OK", 5) == 0);
        assert_non_null(gw_base_error_message(a));
        for (int b = GW_ERROR_LAST + 1; b < a; b++) {
            assert_string_not_equal(gw_base_error_name(a), gw_base_error_name(b));
            assert_string_not_equal(gw_base_error_message(a), gw_base_error_message(b));
        }
    }
    assert_string_equal(gw_base_error_name(GW_E_TORN), "GW_E_TORN");
}

static void test_what_is_no_error(void **state)
{
    (void)state;
    assert_string_equal(gw_base_error_name(1), "GW_E_?");
    assert_string_equal(gw_base_error_name(GW_ERROR_LAST), "GW_E_?");
    assert_string_equal(gw_base_error_message(-1000), "unknown error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_error_has_its_own),
        cmocka_unit_test(test_what_is_no_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
