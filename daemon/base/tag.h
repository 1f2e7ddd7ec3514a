/* SPDX-License-Identifier: Apache-2.0 */
/* A job's tag: 8 bytes on the wire, 16 lower-case hex digits in paths and tables. Pure. */
#ifndef GW_BASE_TAG_H
#define GW_BASE_TAG_H

#include <stdint.h>

#define TAG_BYTES 8u
#define TAG_HEX_BYTES 17u /* 16 digits and the final 0 */

void tag_to_hex(const uint8_t tag[TAG_BYTES], char ret_hex[TAG_HEX_BYTES]);
/* GW_E_INVALID unless `hex` is exactly 16 lower-case digits: one spelling per tag, because it names
 * a directory. */
int tag_from_hex(const char *hex, uint8_t ret_tag[TAG_BYTES]);

#endif
