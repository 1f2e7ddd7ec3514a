/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, durations and escaping, on any text: within bounds, and what is escaped is plain ASCII. */
#include <string.h>

#include "daemon/base/escape.h"
#include "daemon/base/parse.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char text[256], escaped[64];
    uint64_t size;
    int64_t ns = 0;
    size_t used;

    used = escape_text((const char *)data, bytes, escaped, sizeof(escaped));
    FUZZ_CHECK(used < sizeof(escaped) && strlen(escaped) == used);
    for (size_t i = 0; i < used; i++)
        FUZZ_CHECK(escaped[i] >= 0x20 && escaped[i] < 0x7f);
    if (bytes >= sizeof(text))
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    (void)parse_size(text, &size);
    if (parse_duration(text, &ns) == 0)
        FUZZ_CHECK(ns >= 0);
    (void)parse_u64(text, 0, UINT64_MAX, &size);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    static const char *const seeds[] = {
        "5e8", "1.5GiB", "64M", "infinity", "0.25h", "18446744073709551615", "1e-9", "10min"};

    if (index >= sizeof(seeds) / sizeof(seeds[0]) || bytes < 64)
        return 0;
    memcpy(buffer, seeds[index], strlen(seeds[index]));
    return strlen(seeds[index]);
}

void fuzz_repair(uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}
