/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, durations and ports from text, exactly. Pure; any thread. */
#include "daemon/base/parse.h"

#include <stdbool.h>
#include <stddef.h>
#include <strings.h>
#include <string.h>

#include "gradwire/errors.h"

#define EXPONENT_MAX 40 /* beyond it every non-zero mantissa overflows, or is a fraction */

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"", 1},
    {"b", 1},
    {"k", 1ull << 10},
    {"kib", 1ull << 10},
    {"m", 1ull << 20},
    {"mib", 1ull << 20},
    {"g", 1ull << 30},
    {"gib", 1ull << 30},
    {"t", 1ull << 40},
    {"tib", 1ull << 40},
    {"kb", 1000ull},
    {"mb", 1000000ull},
    {"gb", 1000000000ull},
    {"tb", 1000000000000ull},
    {NULL, 0},
};

static const struct unit time_units[] = {
    {"", 1000000000ull},      {"ns", 1},
    {"us", 1000ull},          {"ms", 1000000ull},
    {"s", 1000000000ull},     {"sec", 1000000000ull},
    {"min", 60000000000ull},  {"h", 3600000000000ull},
    {"d", 86400000000000ull}, {NULL, 0},
};

/* mantissa * 10^exponent */
struct decimal {
    uint64_t mantissa;
    int exponent;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int add_digit(uint64_t *value, char digit)
{
    if (__builtin_mul_overflow(*value, 10u, value) ||
        __builtin_add_overflow(*value, (uint64_t)(digit - '0'), value))
        return GW_E_LIMIT;
    return 0;
}

/* "e8", "E-3" after the digits. An e that no digit follows is left for the unit. */
static const char *parse_exponent(const char *at, int *exponent)
{
    const char *digits = at + 1;
    bool negative = false;
    int value = 0;

    if (*at != 'e' && *at != 'E')
        return at;
    if (*digits == '+' || *digits == '-')
        negative = *digits++ == '-';
    if (!is_digit(*digits))
        return at;
    for (; is_digit(*digits); digits++) {
        if (value <= EXPONENT_MAX)
            value = value * 10 + (*digits - '0');
    }
    *exponent += negative ? -value : value;
    return digits;
}

/* Digits, a point and digits, an exponent; *ret_rest: what follows. */
static int parse_decimal(const char *text, struct decimal *ret_decimal, const char **ret_rest)
{
    struct decimal decimal = {0, 0};
    const char *at = text;
    int r;

    if (!is_digit(*at))
        return GW_E_INVALID;
    for (; is_digit(*at); at++) {
        r = add_digit(&decimal.mantissa, *at);
        if (r < 0)
            return r;
    }
    if (*at == '.') {
        at++;
        if (!is_digit(*at))
            return GW_E_INVALID;
        for (; is_digit(*at); at++) {
            r = add_digit(&decimal.mantissa, *at);
            if (r < 0)
                return r;
            decimal.exponent--;
        }
    }
    *ret_rest = parse_exponent(at, &decimal.exponent);
    *ret_decimal = decimal;
    return 0;
}

/* The factor comes before the division, so that "1.5K" is whole. */
static int scale(struct decimal decimal, uint64_t factor, uint64_t *ret_value)
{
    uint64_t value;

    if (decimal.mantissa == 0) {
        *ret_value = 0;
        return 0;
    }
    while (decimal.exponent < 0 && decimal.mantissa % 10 == 0) {
        decimal.mantissa /= 10;
        decimal.exponent++;
    }
    if (__builtin_mul_overflow(decimal.mantissa, factor, &value))
        return GW_E_LIMIT;
    for (; decimal.exponent > 0; decimal.exponent--) {
        if (__builtin_mul_overflow(value, 10u, &value))
            return GW_E_LIMIT;
    }
    for (; decimal.exponent < 0; decimal.exponent++) {
        if (value % 10 != 0)
            return GW_E_INVALID;
        value /= 10;
    }
    *ret_value = value;
    return 0;
}

static int parse_units(const char *text, const struct unit *units, uint64_t *ret_value)
{
    struct decimal decimal;
    const char *rest;
    int r;

    if (!text)
        return GW_E_INVALID;
    r = parse_decimal(text, &decimal, &rest);
    if (r < 0)
        return r;
    for (; units->name; units++) {
        if (strcasecmp(rest, units->name) == 0)
            return scale(decimal, units->factor, ret_value);
    }
    return GW_E_INVALID;
}

int parse_size(const char *text, uint64_t *ret_size)
{
    return parse_units(text, size_units, ret_size);
}

int parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value)
{
    uint64_t value = 0;
    int r;

    if (!text || !*text)
        return GW_E_INVALID;
    for (; *text; text++) {
        if (!is_digit(*text))
            return GW_E_INVALID;
        r = add_digit(&value, *text);
        if (r < 0)
            return r;
    }
    if (value < min || value > max)
        return GW_E_LIMIT;
    *ret_value = value;
    return 0;
}

int parse_duration(const char *text, int64_t *ret_ns)
{
    uint64_t value;
    int r;

    if (text && strcmp(text, "infinity") == 0) {
        *ret_ns = INT64_MAX;
        return 0;
    }
    r = parse_units(text, time_units, &value);
    if (r < 0)
        return r;
    if (value > (uint64_t)INT64_MAX)
        return GW_E_LIMIT;
    *ret_ns = (int64_t)value;
    return 0;
}

int parse_ports(const char *text, uint16_t *ret_first, uint16_t *ret_last)
{
    const char *dash = text ? strchr(text, '-') : NULL;
    char digits[8] = "";
    uint64_t first = 0, last = 0;
    int r;

    if (text && strcmp(text, "0") == 0) {
        *ret_first = *ret_last = 0;
        return 0;
    }
    if (dash && (size_t)(dash - text) < sizeof(digits))
        memcpy(digits, text, (size_t)(dash - text)); /* empty: refused below */
    r = parse_u64(dash ? digits : text, 1, UINT16_MAX, &first);
    if (r == 0)
        r = parse_u64(dash ? dash + 1 : text, first, UINT16_MAX, &last);
    if (r < 0)
        return r;
    *ret_first = (uint16_t)first;
    *ret_last = (uint16_t)last;
    return 0;
}
