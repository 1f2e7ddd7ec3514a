/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's id (proto/job_id.h): the secret that lets a rank join, and the tag made from it, which
 * is public. Loop thread. The secret lies in locked memory that no core file holds, is compared in
 * constant time, and is never logged.
 *
 * The engine that a job's creator got makes the id. Those of the job's other nodes are started
 * with the tag alone, and take the id that the first JOIN brings, if the tag is made from it.
 */
#ifndef GW_ENGINE_ID_H
#define GW_ENGINE_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/job_id.h"
#include "proto/limits.h"

struct id {
    uint8_t bytes[JOB_ID_BYTES];
    uint8_t tag[GW_TAG_BYTES];
    bool known; /* else the tag alone */
};

/* GW_E_INTERNAL: no randomness; GW_E_NOMEM. */
int id_new(struct id **ret_id);
/* As yet unknown; GW_E_INTERNAL, GW_E_NOMEM. */
int id_follow(const uint8_t tag[GW_TAG_BYTES], struct id **ret_id);
struct id *id_free(struct id *id);
/* Before anybody was told the id: it is the same job's with another address. */
void id_set_address(struct id *id, const struct job_address *address);
/* 0: bytes are the id, which was known or is now. GW_E_DENIED: they are not. */
int id_take(struct id *id, const uint8_t *bytes, size_t count);
/* Overwrites what held a copy of the secret. */
void id_wipe(void *memory, size_t bytes);
/* BLAKE2b, 32 bytes. */
void id_hash(const void *data, size_t bytes, uint8_t ret_hash[32]);

#endif
