/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection of the star: how both sides prove that they know the job's secret, and the sealing
 * of records afterwards. Fed bytes and asked for bytes: no sockets, no clock. One thread at a time.
 *
 *   node                                                root
 *   hello ------------------------------------------->
 *         <------------------- hello, header, sealed HERE
 *   header, sealed OPEN ----------------------------->
 *
 * A hello is "GWST", version, three zeros, a nonce. One key for each direction is BLAKE2b, keyed
 * with the secret, over (version, the sender's role, the node's nonce, the root's nonce); with it
 * starts a secretstream. So a side that lacks the secret fails at the first sealed record, what was
 * recorded earlier fails against the new nonce, and what is sent back to its sender against the
 * role. Each step has a fixed size: nothing is parsed before it is proved but 8 bytes of a hello.
 */
#ifndef GW_ENGINE_STAR_PROOF_H
#define GW_ENGINE_STAR_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/star_flow.h"

#define STAR_NONCE_BYTES 32u
#define STAR_HELLO_BYTES (8u + STAR_NONCE_BYTES)
#define STAR_HEADER_BYTES 24u /* of a secretstream */
#define STAR_LENGTH_BYTES 4u
#define STAR_SEAL_BYTES 17u /* what sealing adds to a record */
#define STAR_SEALED_BYTES(record) (STAR_LENGTH_BYTES + (record) + STAR_SEAL_BYTES)
#define STAR_STEP_MAX 128u /* bytes of a step, either way */

struct star_proof;

/* secret: not copied; in use until the proof is over. open: a node's, NULL for the root. */
int star_proof_new(const uint8_t *secret, const uint8_t nonce[STAR_NONCE_BYTES],
                   const struct star_open *open, struct star_proof **ret_proof);
struct star_proof *star_proof_free(struct star_proof *proof);

/* A node's first bytes. */
void star_proof_hello(const struct star_proof *proof, uint8_t ret_hello[STAR_HELLO_BYTES]);
/* Size of the other side's next step; 0: it has proved itself. */
size_t star_proof_wants(const struct star_proof *proof);
/* Takes that step; *ret_bytes of ret_answer are to be sent. GW_E_DENIED: the other side does not
 * know the secret, or is none of us; GW_E_VERSION: of another version; GW_E_PROTOCOL: knows the
 * secret and says nonsense. */
int star_proof_take(struct star_proof *proof, const uint8_t *step,
                    uint8_t ret_answer[STAR_STEP_MAX], size_t *ret_bytes);
/* Root, after the proof: what the node said. */
const struct star_open *star_proof_open(const struct star_proof *proof);

/* A record, sealed for the other side: STAR_SEALED_BYTES(bytes). */
size_t star_seal(struct star_proof *proof, const uint8_t *record, size_t bytes,
                 uint8_t *ret_sealed);
/* All bytes of a sealed record that begins so; 0: none does. */
size_t star_sealed_bytes(const uint8_t length[STAR_LENGTH_BYTES]);
/* GW_E_DENIED: not what the other side sealed next. */
int star_unseal(struct star_proof *proof, const uint8_t *sealed, size_t bytes, uint8_t *ret_record,
                size_t *ret_bytes);

#endif
