/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether another node's address is one: UCX takes addresses on trust, and aborts on what is none.
 * This tells one that was cut, damaged, or made by another version. It is no proof: whoever knows
 * the job's secret can seal nonsense too, and ends the engines of that job with it. Any thread.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/base/hash.h"
#include "daemon/fabric/ucx/net_internal.h"
#include "gradwire/errors.h"

#define MAGIC 0x58554757u /* "GWUX" */

static uint64_t digest_of(const struct net_address *head, const uint8_t *address, uint32_t bytes)
{
    uint64_t digest = hash_add(HASH_START, head, offsetof(struct net_address, digest));

    return hash_add(digest, address + sizeof(*head), bytes - sizeof(*head));
}

static void version(struct net_address *head)
{
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    head->major = (uint16_t)major;
    head->minor = (uint16_t)minor;
}

void net_address_seal(uint8_t *address, uint32_t bytes)
{
    struct net_address head;

    memcpy(&head, address, sizeof(head));
    head.magic = MAGIC;
    version(&head);
    head.digest = digest_of(&head, address, bytes);
    memcpy(address, &head, sizeof(head));
}

int net_address_check(const uint8_t *address, uint32_t bytes, char text[GW_TEXT_MAX + 1])
{
    struct net_address head = {0}, own = {0};

    version(&own);
    if (bytes >= sizeof(head))
        memcpy(&head, address, sizeof(head));
    if (head.magic == MAGIC && (head.major != own.major || head.minor != own.minor)) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "it has UCX %u.%u, and this node %u.%u: install one version on all nodes",
                 head.major, head.minor, own.major, own.minor);
        return GW_E_VERSION;
    }
    if (head.magic != MAGIC || head.bytes[NET_OUT] == 0 || head.bytes[NET_IN] == 0 ||
        (uint64_t)head.bytes[NET_OUT] + head.bytes[NET_IN] != bytes - sizeof(head) ||
        head.digest != digest_of(&head, address, bytes)) {
        snprintf(text, GW_TEXT_MAX + 1,
                 "what it gave as its address for UCX is none, or not whole: install one release "
                 "of gradwire on all nodes");
        return GW_E_PROTOCOL;
    }
    return 0;
}
