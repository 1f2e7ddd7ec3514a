/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imported allocations of clients: one opening per client and handle, shared by all buffers that
 * lie in it. Pure: opening and closing are the caller's. Loop thread.
 *
 * A handle names a whole allocation, and one context per device of a process may have it open.
 * Opened there once more, CUDA would count and give the same address (cuIpcOpenMemHandle); we count
 * ourselves, for the last buffer that goes is also the end of the lease. A client's number is never
 * used twice, so a handle of a client that is gone meets no new one.
 */
#ifndef GW_DEVICE_CUDA_IMPORTS_H
#define GW_DEVICE_CUDA_IMPORTS_H

#include "daemon/device/device.h"

struct cuda_import {
    struct cuda_import *next;
    uint64_t client;
    uint8_t handle[GW_IPC_HANDLE_BYTES];
    uint32_t rank; /* on whose GPU it is open */
    uint32_t references;
    uint64_t base, bytes; /* as the driver says */
};

struct cuda_imports {
    struct cuda_import *first;
};

/* NULL: not open. Not referenced by this. */
struct cuda_import *cuda_imports_find(struct cuda_imports *imports, uint64_t client,
                                      const uint8_t handle[GW_IPC_HANDLE_BYTES]);
/* With one reference. GW_E_NOMEM. */
int cuda_imports_add(struct cuda_imports *imports, const struct device_import *import,
                     uint32_t rank, uint64_t base, uint64_t bytes, struct cuda_import **ret_import);
/* True: that was the last reference: the caller closes it and frees the record. */
bool cuda_imports_drop(struct cuda_imports *imports, struct cuda_import *import);
/* What the client says against what the driver says: 0, or GW_E_INVALID and text. */
int cuda_imports_check(const struct device_import *import, uint64_t driver_bytes,
                       char text[GW_TEXT_MAX + 1]);

#endif
