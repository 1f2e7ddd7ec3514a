/* SPDX-License-Identifier: Apache-2.0 */
/* Sole user of libsodium in the engine. Loop thread. */
#include "daemon/engine/id.h"

#include <sodium.h>
#include <string.h>

#include "gradwire/errors.h"

#define ID_VERSION 1u
#define SECRET_AT 8u
#define SECRET_BYTES 32u

int id_new(struct id **ret_id)
{
    struct id *id;

    if (sodium_init() < 0)
        return GW_E_INTERNAL;
    id = sodium_malloc(sizeof(*id));
    if (!id)
        return GW_E_NOMEM;
    memset(id, 0, sizeof(*id));
    memcpy(id->bytes, "GWID", 4);
    id->bytes[4] = ID_VERSION;
    randombytes_buf(id->bytes + SECRET_AT, SECRET_BYTES);
    /* A real 8-byte BLAKE2b, not a cut longer one: anybody can compute a tag from an id. */
    if (crypto_generichash_blake2b(id->tag, sizeof(id->tag), id->bytes, sizeof(id->bytes), NULL,
                                   0) != 0) {
        id_free(id);
        return GW_E_INTERNAL;
    }
    *ret_id = id;
    return 0;
}

struct id *id_free(struct id *id)
{
    sodium_free(id); /* wipes */
    return NULL;
}

bool id_matches(const struct id *id, const uint8_t *bytes, size_t count)
{
    return count == sizeof(id->bytes) && sodium_memcmp(id->bytes, bytes, count) == 0;
}

void id_wipe(void *memory, size_t bytes)
{
    sodium_memzero(memory, bytes);
}

void id_hash(const void *data, size_t bytes, uint8_t ret_hash[32])
{
    (void)crypto_generichash(ret_hash, 32, data, bytes, NULL, 0);
}
