/* SPDX-License-Identifier: Apache-2.0 */
/* Tags as hex digits. Pure; any thread. */
#include "daemon/base/tag.h"

#include <string.h>

#include "gradwire/errors.h"

static const char digits[] = "0123456789abcdef";

void tag_to_hex(const uint8_t tag[TAG_BYTES], char ret_hex[TAG_HEX_BYTES])
{
    for (size_t i = 0; i < TAG_BYTES; i++) {
        ret_hex[2 * i] = digits[tag[i] >> 4];
        ret_hex[2 * i + 1] = digits[tag[i] & 15u];
    }
    ret_hex[2 * TAG_BYTES] = 0;
}

int tag_from_hex(const char *hex, uint8_t ret_tag[TAG_BYTES])
{
    uint8_t tag[TAG_BYTES] = {0};
    const char *digit;

    if (!hex || strnlen(hex, TAG_HEX_BYTES) != 2 * TAG_BYTES)
        return GW_E_INVALID;
    for (size_t i = 0; i < 2 * TAG_BYTES; i++) {
        digit = memchr(digits, hex[i], 16);
        if (!digit)
            return GW_E_INVALID;
        tag[i / 2] = (uint8_t)((tag[i / 2] << 4) | (uint8_t)(digit - digits));
    }
    memcpy(ret_tag, tag, sizeof(tag));
    return 0;
}
