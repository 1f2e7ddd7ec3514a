/* SPDX-License-Identifier: Apache-2.0 */
/* struct_size handling; see options.h. Any thread. */
#include "client/lib/options.h"

#include <string.h>

#include "client/lib/err.h"
#include "gradwire/errors.h"

int options_take(void *options, size_t bytes, const void *given, size_t min_bytes, const char *what)
{
    size_t struct_size = 0;

    memset(options, 0, bytes);
    if (!given)
        return err_set(GW_E_INVALID, "%s is NULL", what);
    memcpy(&struct_size, given, sizeof(struct_size));
    if (struct_size < min_bytes || struct_size > 65536)
        return err_set(GW_E_INVALID, "%s.struct_size is %zu; set it to sizeof the struct (%zu)",
                       what, struct_size, bytes);
    for (size_t i = bytes; i < struct_size; i++) {
        if (((const unsigned char *)given)[i] != 0)
            return err_set(GW_E_UNIMPLEMENTED,
                           "%s uses a field (byte %zu) that this release does not know", what, i);
    }
    memcpy(options, given, struct_size < bytes ? struct_size : bytes);
    return 0;
}
