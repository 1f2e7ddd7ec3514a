/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared pages: words and slots between engine and clients, and data on its way. Host memory on
 * every device: zeroed, allocated for real, its size sealed. Any thread.
 */
#ifndef GW_DEVICE_PAGES_H
#define GW_DEVICE_PAGES_H

#include "daemon/device/device.h"

enum pages_kind {
    PAGES_SHARED, /* clients map it read-write */
    PAGES_OUT,    /* clients can only ever read it */
};

#define PAGES_ANYWHERE 0u

/* nodes: a set of NUMA nodes; one: memory comes from there while it has some; several: from all of
 * them in turn. That is a wish: memory->place_error says if it may not be told. GW_E_NOMEM,
 * GW_E_LIMIT (descriptors). */
int pages_new(enum pages_kind kind, const char *name, size_t bytes, uint64_t nodes,
              struct device_memory **ret_memory);
struct device_memory *pages_free(struct device_memory *memory);

#endif
