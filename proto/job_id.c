/* SPDX-License-Identifier: Apache-2.0 */
/* The id's bytes: see job_id.h. Pure. */
#include "proto/job_id.h"

#include <string.h>

#define VERSION 1
#define FAMILY_AT 5u
#define PORT_AT 6u
#define ADDRESS_AT 40u
#define ADDRESS_BYTES 16u

static const uint8_t magic[5] = {'G', 'W', 'I', 'D', VERSION};

void job_id_start(uint8_t id[JOB_ID_BYTES])
{
    memset(id, 0, JOB_ID_SECRET_AT);
    memset(id + ADDRESS_AT, 0, JOB_ID_BYTES - ADDRESS_AT);
    memcpy(id, magic, sizeof(magic));
}

void job_id_set_address(uint8_t id[JOB_ID_BYTES], const struct job_address *address)
{
    id[FAMILY_AT] = address->family;
    id[PORT_AT] = (uint8_t)(address->port >> 8);
    id[PORT_AT + 1] = (uint8_t)address->port;
    memcpy(id + ADDRESS_AT, address->bytes, ADDRESS_BYTES);
}

void job_id_address(const uint8_t id[JOB_ID_BYTES], struct job_address *ret_address)
{
    ret_address->family = id[FAMILY_AT];
    ret_address->port = (uint16_t)(id[PORT_AT] << 8 | id[PORT_AT + 1]);
    memcpy(ret_address->bytes, id + ADDRESS_AT, ADDRESS_BYTES);
}

bool job_id_good(const uint8_t *id, size_t bytes)
{
    struct job_address address;

    if (bytes != JOB_ID_BYTES || memcmp(id, magic, sizeof(magic)) != 0)
        return false;
    job_id_address(id, &address);
    return address.family == 0 || ((address.family == 4 || address.family == 6) && address.port);
}
