/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and durations: what people write, exactly, and what must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/base/parse.h"
#include "gradwire/errors.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct size_case {
    const char *text;
    int r;
    uint64_t value;
};

static const struct size_case sizes[] = {
    {"0", 0, 0},
    {"4096", 0, 4096},
    {"64M", 0, 67108864},
    {"64MiB", 0, 67108864},
    {"64mib", 0, 67108864},
    {"25MB", 0, 25000000},
    {"1GiB", 0, 1073741824},
    {"2T", 0, 2199023255552},
    {"1k", 0, 1024},
    {"1kB", 0, 1000},
    {"7B", 0, 7},
    {"5e8", 0, 500000000}, /* a JSON float, as in public configurations */
    {"5E8", 0, 500000000},
    {"5e+8", 0, 500000000},
    {"1.5G", 0, 1610612736},
    {"0.5e1", 0, 5},
    {"50e-1", 0, 5},
    {"2.50", GW_E_INVALID, 0},
    {"4.0", 0, 4},
    {"1.25K", 0, 1280},
    {"0e99999999999999999999", 0, 0},
    {"18446744073709551615", 0, UINT64_MAX},
    {"18446744073709551616", GW_E_LIMIT, 0},
    {"16777216T", GW_E_LIMIT, 0},
    {"16777215T", 0, 18446742974197923840u},
    {"1e19", 0, 10000000000000000000u},
    {"1e20", GW_E_LIMIT, 0},
    {"1e999999999999", GW_E_LIMIT, 0},
    {"1e-999999999999", GW_E_INVALID, 0},
    {"0.3GiB", GW_E_INVALID, 0}, /* no whole number of bytes */
    {"", GW_E_INVALID, 0},
    {" 1", GW_E_INVALID, 0},
    {"1 ", GW_E_INVALID, 0},
    {"-1", GW_E_INVALID, 0},
    {"+1", GW_E_INVALID, 0},
    {".5", GW_E_INVALID, 0},
    {"1.", GW_E_INVALID, 0},
    {"0x10", GW_E_INVALID, 0},
    {"1e", GW_E_INVALID, 0},
    {"1e+", GW_E_INVALID, 0},
    {"M", GW_E_INVALID, 0},
    {"1MM", GW_E_INVALID, 0},
    {"nan", GW_E_INVALID, 0},
    {"1,5", GW_E_INVALID, 0},
    {NULL, GW_E_INVALID, 0},
};

static void sizes_are_exact(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        uint64_t value = 77;
        const int r = parse_size(sizes[i].text, &value);

        if (r != sizes[i].r || value != (r < 0 ? 77 : sizes[i].value))
            fail_msg("\"%s\": %d %llu, not %d %llu", sizes[i].text ? sizes[i].text : "(null)", r,
                     (unsigned long long)value, sizes[i].r, (unsigned long long)sizes[i].value);
    }
}

static const struct {
    const char *text;
    int r;
    int64_t ns;
} durations[] = {
    {"0", 0, 0},
    {"10s", 0, 10000000000},
    {"10", 0, 10000000000},
    {"2min", 0, 120000000000},
    {"500ms", 0, 500000000},
    {"1.5h", 0, 5400000000000},
    {"3us", 0, 3000},
    {"7ns", 0, 7},
    {"1d", 0, 86400000000000},
    {"0.25", 0, 250000000},
    {"1e-9", 0, 1},
    {"1e-10", GW_E_INVALID, 0},
    {"0.5ns", GW_E_INVALID, 0},
    {"infinity", 0, INT64_MAX},
    {"infinite", GW_E_INVALID, 0},
    {"9223372036854775807ns", 0, INT64_MAX},
    {"9223372036854775808ns", GW_E_LIMIT, 0},
    {"106752d", GW_E_LIMIT, 0},
    {"1m", GW_E_INVALID, 0}, /* minutes, months, milli? */
    {"-1", GW_E_INVALID, 0},
    {"1min 30s", GW_E_INVALID, 0},
    {"", GW_E_INVALID, 0},
    {NULL, GW_E_INVALID, 0},
};

static void durations_are_exact(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(durations); i++) {
        int64_t ns = 77;
        const int r = parse_duration(durations[i].text, &ns);

        if (r != durations[i].r || ns != (r < 0 ? 77 : durations[i].ns))
            fail_msg("\"%s\": %d %lld, not %d %lld",
                     durations[i].text ? durations[i].text : "(null)", r, (long long)ns,
                     durations[i].r, (long long)durations[i].ns);
    }
}

static void plain_numbers_stay_in_range(void **state)
{
    uint64_t value = 77;

    (void)state;
    assert_int_equal(parse_u64("12", 1, 12, &value), 0);
    assert_int_equal(value, 12);
    assert_int_equal(parse_u64("13", 1, 12, &value), GW_E_LIMIT);
    assert_int_equal(parse_u64("0", 1, 12, &value), GW_E_LIMIT);
    assert_int_equal(parse_u64("18446744073709551616", 0, UINT64_MAX, &value), GW_E_LIMIT);
    assert_int_equal(parse_u64("1e3", 0, 5000, &value), GW_E_INVALID);
    assert_int_equal(parse_u64("-1", 0, 5000, &value), GW_E_INVALID);
    assert_int_equal(parse_u64("", 0, 5000, &value), GW_E_INVALID);
    assert_int_equal(parse_u64(NULL, 0, 5000, &value), GW_E_INVALID);
    assert_int_equal(value, 12);
}

struct ports_case {
    const char *text;
    int r;
    unsigned first, last;
};

static void ports_are_a_range_one_or_any(void **state)
{
    static const struct ports_case cases[] = {
        {"46200-46399", 0, 46200, 46399},
        {"1-65535", 0, 1, 65535},
        {"7", 0, 7, 7},
        {"7-7", 0, 7, 7},
        {"0", 0, 0, 0},
        {"8-7", GW_E_LIMIT, 0, 0},
        {"0-7", GW_E_LIMIT, 0, 0},
        {"65536", GW_E_LIMIT, 0, 0},
        {"1-65536", GW_E_LIMIT, 0, 0},
        {"0000000000000001-2", GW_E_INVALID, 0, 0},
        {"-7", GW_E_INVALID, 0, 0},
        {"7-", GW_E_INVALID, 0, 0},
        {"7-8-9", GW_E_INVALID, 0, 0},
        {"7 - 8", GW_E_INVALID, 0, 0},
        {"any", GW_E_INVALID, 0, 0},
        {"", GW_E_INVALID, 0, 0},
        {NULL, GW_E_INVALID, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint16_t first = 77, last = 78;
        const int r = parse_ports(cases[i].text, &first, &last);

        if (r != cases[i].r || first != (r < 0 ? 77 : cases[i].first) ||
            last != (r < 0 ? 78 : cases[i].last))
            fail_msg("\"%s\": %d %u-%u, not %d %u-%u", cases[i].text ? cases[i].text : "(null)", r,
                     first, last, cases[i].r, cases[i].first, cases[i].last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_exact),
        cmocka_unit_test(durations_are_exact),
        cmocka_unit_test(plain_numbers_stay_in_range),
        cmocka_unit_test(ports_are_a_range_one_or_any),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
