/* SPDX-License-Identifier: Apache-2.0 */
/* Proof and sealing of one connection: see star_proof.h. Keys lie in libsodium's locked memory. */
#include "daemon/engine/star_proof.h"

#include <sodium.h>
#include <string.h>

#include "gradwire/errors.h"
#include "proto/job_id.h"
#include "proto/limits.h"

#define VERSION_AT 4u
#define NONCE_AT 8u
#define NODE_STEP (STAR_HEADER_BYTES + STAR_SEALED_BYTES(STAR_OPEN_BYTES))
#define ROOT_STEP (STAR_HELLO_BYTES + STAR_HEADER_BYTES + STAR_SEALED_BYTES(STAR_HERE_BYTES))

_Static_assert(STAR_HEADER_BYTES == crypto_secretstream_xchacha20poly1305_HEADERBYTES, "header");
_Static_assert(STAR_SEAL_BYTES == crypto_secretstream_xchacha20poly1305_ABYTES, "seal");
_Static_assert(ROOT_STEP <= STAR_STEP_MAX && NODE_STEP <= STAR_STEP_MAX, "steps");

enum role { NODE = 1, ROOT = 2 };

struct star_proof {
    const uint8_t *secret;
    enum role role;
    size_t wants;
    uint8_t nonce[STAR_NONCE_BYTES], others_nonce[STAR_NONCE_BYTES];
    struct star_open open;
    crypto_secretstream_xchacha20poly1305_state out, in;
};

static const uint8_t hello_start[NONCE_AT] = {'G', 'W', 'S', 'T', GW_STAR_VERSION, 0, 0, 0};

int star_proof_new(const uint8_t *secret, const uint8_t nonce[STAR_NONCE_BYTES],
                   const struct star_open *open, struct star_proof **ret_proof)
{
    struct star_proof *proof = sodium_malloc(sizeof(*proof));

    if (!proof)
        return GW_E_NOMEM;
    memset(proof, 0, sizeof(*proof));
    proof->secret = secret;
    proof->role = open ? NODE : ROOT;
    proof->wants = open ? ROOT_STEP : STAR_HELLO_BYTES;
    memcpy(proof->nonce, nonce, STAR_NONCE_BYTES);
    if (open)
        proof->open = *open;
    *ret_proof = proof;
    return 0;
}

struct star_proof *star_proof_free(struct star_proof *proof)
{
    sodium_free(proof); /* wipes */
    return NULL;
}

void star_proof_hello(const struct star_proof *proof, uint8_t ret_hello[STAR_HELLO_BYTES])
{
    memcpy(ret_hello, hello_start, sizeof(hello_start));
    memcpy(ret_hello + NONCE_AT, proof->nonce, STAR_NONCE_BYTES);
}

size_t star_proof_wants(const struct star_proof *proof)
{
    return proof->wants;
}

const struct star_open *star_proof_open(const struct star_proof *proof)
{
    return &proof->open;
}

static int take_hello(struct star_proof *proof, const uint8_t *hello)
{
    if (memcmp(hello, hello_start, VERSION_AT) != 0)
        return GW_E_DENIED;
    if (hello[VERSION_AT] != GW_STAR_VERSION)
        return GW_E_VERSION;
    if (memcmp(hello, hello_start, sizeof(hello_start)) != 0)
        return GW_E_DENIED;
    memcpy(proof->others_nonce, hello + NONCE_AT, STAR_NONCE_BYTES);
    return 0;
}

/* The key of what `sender` sends. */
static void make_key(const struct star_proof *proof, enum role sender,
                     uint8_t ret_key[crypto_secretstream_xchacha20poly1305_KEYBYTES])
{
    static const char name[] = "gradwire star";
    const bool node = proof->role == NODE;
    uint8_t text[sizeof(name) + 2 + 2 * STAR_NONCE_BYTES];

    memcpy(text, name, sizeof(name));
    text[sizeof(name)] = GW_STAR_VERSION;
    text[sizeof(name) + 1] = (uint8_t)sender;
    memcpy(text + sizeof(name) + 2, node ? proof->nonce : proof->others_nonce, STAR_NONCE_BYTES);
    memcpy(text + sizeof(name) + 2 + STAR_NONCE_BYTES, node ? proof->others_nonce : proof->nonce,
           STAR_NONCE_BYTES);
    (void)crypto_generichash(ret_key, crypto_secretstream_xchacha20poly1305_KEYBYTES, text,
                             sizeof(text), proof->secret, JOB_ID_SECRET_BYTES);
}

static void start_out(struct star_proof *proof, uint8_t ret_header[STAR_HEADER_BYTES])
{
    uint8_t key[crypto_secretstream_xchacha20poly1305_KEYBYTES];

    make_key(proof, proof->role, key);
    (void)crypto_secretstream_xchacha20poly1305_init_push(&proof->out, ret_header, key);
    sodium_memzero(key, sizeof(key));
}

/* The other side's header and first sealed record, of exactly `want` bytes. */
static int start_in(struct star_proof *proof, const uint8_t *step, size_t want, uint8_t *ret_record)
{
    uint8_t key[crypto_secretstream_xchacha20poly1305_KEYBYTES];
    size_t bytes;
    int r;

    make_key(proof, proof->role == NODE ? ROOT : NODE, key);
    r = crypto_secretstream_xchacha20poly1305_init_pull(&proof->in, step, key);
    sodium_memzero(key, sizeof(key));
    if (r != 0 || star_sealed_bytes(step + STAR_HEADER_BYTES) != STAR_SEALED_BYTES(want))
        return GW_E_DENIED;
    return star_unseal(proof, step + STAR_HEADER_BYTES, STAR_SEALED_BYTES(want), ret_record,
                       &bytes);
}

static int root_hello(struct star_proof *proof, const uint8_t *step, uint8_t *answer, size_t *bytes)
{
    uint8_t here[STAR_HERE_BYTES];
    int r = take_hello(proof, step);

    if (r < 0)
        return r;
    star_here_put(here);
    star_proof_hello(proof, answer);
    start_out(proof, answer + STAR_HELLO_BYTES);
    *bytes = STAR_HELLO_BYTES + STAR_HEADER_BYTES;
    *bytes += star_seal(proof, here, sizeof(here), answer + *bytes);
    proof->wants = NODE_STEP;
    return 0;
}

static int root_open(struct star_proof *proof, const uint8_t *step)
{
    uint8_t record[STAR_OPEN_BYTES];
    int r = start_in(proof, step, sizeof(record), record);

    if (r == 0)
        r = star_open_get(record, sizeof(record), &proof->open);
    if (r == 0)
        proof->wants = 0;
    return r;
}

static int node_answer(struct star_proof *proof, const uint8_t *step, uint8_t *answer,
                       size_t *bytes)
{
    uint8_t here[STAR_HERE_BYTES], record[STAR_OPEN_BYTES];
    int r = take_hello(proof, step);

    if (r == 0)
        r = start_in(proof, step + STAR_HELLO_BYTES, sizeof(here), here);
    if (r == 0)
        r = star_here_get(here, sizeof(here));
    if (r < 0)
        return r;
    star_open_put(&proof->open, record);
    start_out(proof, answer);
    *bytes = STAR_HEADER_BYTES;
    *bytes += star_seal(proof, record, sizeof(record), answer + *bytes);
    proof->wants = 0;
    return 0;
}

int star_proof_take(struct star_proof *proof, const uint8_t *step,
                    uint8_t ret_answer[STAR_STEP_MAX], size_t *ret_bytes)
{
    *ret_bytes = 0;
    if (proof->role == NODE)
        return node_answer(proof, step, ret_answer, ret_bytes);
    return proof->wants == STAR_HELLO_BYTES ? root_hello(proof, step, ret_answer, ret_bytes)
                                            : root_open(proof, step);
}

size_t star_seal(struct star_proof *proof, const uint8_t *record, size_t bytes, uint8_t *ret_sealed)
{
    star_put(ret_sealed, STAR_LENGTH_BYTES, bytes + STAR_SEAL_BYTES);
    (void)crypto_secretstream_xchacha20poly1305_push(&proof->out, ret_sealed + STAR_LENGTH_BYTES,
                                                     NULL, record, bytes, NULL, 0, 0);
    return STAR_SEALED_BYTES(bytes);
}

size_t star_sealed_bytes(const uint8_t length[STAR_LENGTH_BYTES])
{
    const uint64_t bytes = star_get(length, STAR_LENGTH_BYTES);

    if (bytes <= STAR_SEAL_BYTES || bytes > STAR_RECORD_MAX + STAR_SEAL_BYTES)
        return 0;
    return STAR_LENGTH_BYTES + (size_t)bytes;
}

int star_unseal(struct star_proof *proof, const uint8_t *sealed, size_t bytes, uint8_t *ret_record,
                size_t *ret_bytes)
{
    unsigned char tag;

    if (crypto_secretstream_xchacha20poly1305_pull(&proof->in, ret_record, NULL, &tag,
                                                   sealed + STAR_LENGTH_BYTES,
                                                   bytes - STAR_LENGTH_BYTES, NULL, 0) != 0)
        return GW_E_DENIED;
    *ret_bytes = bytes - STAR_LENGTH_BYTES - STAR_SEAL_BYTES;
    return 0;
}
