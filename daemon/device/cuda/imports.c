/* SPDX-License-Identifier: Apache-2.0 */
/* The list of imported allocations. Pure; see imports.h. */
#include "daemon/device/cuda/imports.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

struct cuda_import *cuda_imports_find(struct cuda_imports *imports, uint64_t client,
                                      const uint8_t handle[GW_IPC_HANDLE_BYTES])
{
    struct cuda_import *at = imports->first;

    while (at && (at->client != client || memcmp(at->handle, handle, GW_IPC_HANDLE_BYTES) != 0))
        at = at->next;
    return at;
}

int cuda_imports_add(struct cuda_imports *imports, const struct device_import *import,
                     uint32_t rank, uint64_t base, uint64_t bytes, struct cuda_import **ret_import)
{
    struct cuda_import *added = calloc(1, sizeof(*added));

    if (!added)
        return GW_E_NOMEM;
    added->client = import->client;
    memcpy(added->handle, import->handle, sizeof(added->handle));
    added->rank = rank;
    added->references = 1;
    added->base = base;
    added->bytes = bytes;
    added->next = imports->first;
    imports->first = added;
    *ret_import = added;
    return 0;
}

bool cuda_imports_drop(struct cuda_imports *imports, struct cuda_import *import)
{
    struct cuda_import **at = &imports->first;

    if (--import->references > 0)
        return false;
    while (*at && *at != import)
        at = &(*at)->next;
    if (*at)
        *at = import->next;
    return true;
}

int cuda_imports_check(const struct device_import *import, uint64_t driver_bytes,
                       char text[GW_TEXT_MAX + 1])
{
    /* The exporter's driver may round less than ours: more is no lie. */
    if (import->allocation_bytes > driver_bytes) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "the imported allocation has %" PRIu64 " bytes, not %" PRIu64
                 ": send the size that cuMemGetAddressRange tells",
                 driver_bytes, import->allocation_bytes);
        return GW_E_INVALID;
    }
    if (import->bytes == 0 || import->offset > driver_bytes ||
        import->bytes > driver_bytes - import->offset) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "%" PRIu64 " bytes at %" PRIu64 " do not lie in an allocation of %" PRIu64,
                 import->bytes, import->offset, driver_bytes);
        return GW_E_INVALID;
    }
    return 0;
}
