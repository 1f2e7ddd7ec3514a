/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies in a job's id: the secret that lets a rank join, and where the engine listens that made
 * it, if the job may span nodes. Pure; any thread. Whoever holds an id holds the secret.
 *
 *   0      4        5       6      8                40              56     64
 *   | GWID | version| family| port | secret         | address       | zero |
 *
 * family 4 or 6 (then port and address are in network order; IPv4: 4 bytes, then zeros), or 0: all
 * ranks are on one node. The tag, the job's public name, is the first 8 bytes of BLAKE2b over
 * JOB_ID_NAMED: an address may be set afterwards.
 */
#ifndef GW_PROTO_JOB_ID_H
#define GW_PROTO_JOB_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_ID_BYTES 64u
#define JOB_ID_SECRET_AT 8u
#define JOB_ID_SECRET_BYTES 32u
#define JOB_ID_NAMED_AT JOB_ID_SECRET_AT /* what the tag is made of */
#define JOB_ID_NAMED_BYTES JOB_ID_SECRET_BYTES

struct job_address {
    uint8_t family; /* 0, 4, 6 */
    uint16_t port;  /* host order */
    uint8_t bytes[16];
};

/* Everything but the secret, which stays as it is. */
void job_id_start(uint8_t id[JOB_ID_BYTES]);
void job_id_set_address(uint8_t id[JOB_ID_BYTES], const struct job_address *address);
/* Size, magic, version, and an address that can be one. */
bool job_id_good(const uint8_t *id, size_t bytes);
/* Of a good id. family 0: the job is on one node. */
void job_id_address(const uint8_t id[JOB_ID_BYTES], struct job_address *ret_address);

#endif
