/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's id: the secret that lets a rank join, and the tag made from it, which is public.
 * Loop thread. The secret lies in locked memory that no core file holds, is compared in constant
 * time, and is never logged.
 *
 *   | "GWID" | version | 3 zero | 32 bytes secret | 24 zero (an address, later) |
 */
#ifndef GW_ENGINE_ID_H
#define GW_ENGINE_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define ID_BYTES 64u

struct id {
    uint8_t bytes[ID_BYTES];
    uint8_t tag[GW_TAG_BYTES];
};

/* GW_E_INTERNAL: no randomness; GW_E_NOMEM. */
int id_new(struct id **ret_id);
struct id *id_free(struct id *id);
bool id_matches(const struct id *id, const uint8_t *bytes, size_t count);
/* Overwrites what held a copy of the secret. */
void id_wipe(void *memory, size_t bytes);
/* BLAKE2b, 32 bytes. */
void id_hash(const void *data, size_t bytes, uint8_t ret_hash[32]);

#endif
