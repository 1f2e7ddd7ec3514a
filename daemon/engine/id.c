/* SPDX-License-Identifier: Apache-2.0 */
/* Sole user of libsodium in the engine. Loop thread. */
#include "daemon/engine/id.h"

#include <sodium.h>
#include <string.h>

#include "gradwire/errors.h"

/* A real 8-byte BLAKE2b, not a cut longer one: anybody can compute a tag from an id. */
static int tag_of(const uint8_t bytes[JOB_ID_BYTES], uint8_t ret_tag[GW_TAG_BYTES])
{
    return crypto_generichash_blake2b(ret_tag, GW_TAG_BYTES, bytes + JOB_ID_NAMED_AT,
                                      JOB_ID_NAMED_BYTES, NULL, 0) == 0
               ? 0
               : GW_E_INTERNAL;
}

static int make(struct id **ret_id)
{
    struct id *id;

    if (sodium_init() < 0)
        return GW_E_INTERNAL;
    id = sodium_malloc(sizeof(*id));
    if (!id)
        return GW_E_NOMEM;
    memset(id, 0, sizeof(*id));
    *ret_id = id;
    return 0;
}

int id_new(struct id **ret_id)
{
    struct id *id;
    int r = make(&id);

    if (r < 0)
        return r;
    job_id_start(id->bytes);
    randombytes_buf(id->bytes + JOB_ID_SECRET_AT, JOB_ID_SECRET_BYTES);
    id->known = true;
    r = tag_of(id->bytes, id->tag);
    if (r < 0) {
        id_free(id);
        return r;
    }
    *ret_id = id;
    return 0;
}

int id_follow(const uint8_t tag[GW_TAG_BYTES], struct id **ret_id)
{
    int r = make(ret_id);

    if (r == 0)
        memcpy((*ret_id)->tag, tag, GW_TAG_BYTES);
    return r;
}

struct id *id_free(struct id *id)
{
    sodium_free(id); /* wipes */
    return NULL;
}

void id_set_address(struct id *id, const struct job_address *address)
{
    job_id_set_address(id->bytes, address);
}

int id_take(struct id *id, const uint8_t *bytes, size_t count)
{
    uint8_t tag[GW_TAG_BYTES];

    if (id->known)
        return count == sizeof(id->bytes) && sodium_memcmp(id->bytes, bytes, count) == 0
                   ? 0
                   : GW_E_DENIED;
    if (!job_id_good(bytes, count) || tag_of(bytes, tag) < 0 ||
        sodium_memcmp(tag, id->tag, sizeof(tag)) != 0)
        return GW_E_DENIED;
    memcpy(id->bytes, bytes, count);
    id->known = true;
    return 0;
}

void id_wipe(void *memory, size_t bytes)
{
    sodium_memzero(memory, bytes);
}

void id_hash(const void *data, size_t bytes, uint8_t ret_hash[32])
{
    (void)crypto_generichash(ret_hash, 32, data, bytes, NULL, 0);
}
