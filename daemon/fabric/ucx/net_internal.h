/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the net: what its files share. Net thread, but for what is under the lock. */
#ifndef GW_FABRIC_UCX_NET_INTERNAL_H
#define GW_FABRIC_UCX_NET_INTERNAL_H

#include <ucp/api/ucp.h>

#include "daemon/fabric/ucx/net.h"

#define NET_AM_ID 0u
#define NET_SLOTS 1024u             /* of the tables; a power of two */
#define NET_EAGER_BYTES (8u << 10)  /* up to so many are sent without asking */
#define NET_HELD_BYTES (256u << 20) /* of messages that nobody expects yet */

/* A message that came before it was expected. */
struct net_held {
    struct net_held *next;
    struct net_header header;
    uint64_t bytes;
    void *announced; /* large ones; else the bytes lie behind this */
    uint8_t data[];
};

/* Two workers, so that there are two connections between two nodes, one for what each sends: what
 * asks for bytes never stands behind the bytes that go the same way. */
enum net_way { NET_OUT, NET_IN, NET_WAYS };

/* What an address begins with; then NET_OUT's worker's, then NET_IN's. Nodes are of one kind: in
 * the machine's byte order, and of one UCX. */
struct net_address {
    uint64_t secret;
    uint32_t magic;
    uint16_t major, minor; /* of UCX */
    uint32_t bytes[NET_WAYS];
    uint64_t digest; /* of all the rest */
};

struct net_list {
    struct net_request *head, *tail;
};

struct net_peer {
    struct net *net;
    ucp_ep_h endpoints[NET_WAYS]; /* NET_OUT: to its NET_IN, and the other way round */
    bool failed;
};

struct net {
    struct net_config config;
    ucp_context_h context;
    ucp_worker_h workers[NET_WAYS];
    int event_fds[NET_WAYS];
    uint64_t secret;
    uint8_t address[GW_FABRIC_ADDRESS_MAX];
    uint32_t address_bytes;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* what other threads say, up to `asleep` */
    struct net_list posted;
    struct fabric_nodes asked_nodes; /* as of the last form */
    char failure[GW_TEXT_MAX + 1];
    uint32_t asked_generation;
    bool asked_form, asked_abort, asked_end, refuses;
    bool asleep;

    struct fabric_nodes nodes; /* of the generation */
    uint32_t generation;
    bool open;          /* the generation goes on */
    bool faulted;       /* it has been told; everything is about to end */
    uint32_t under_way; /* UCX holds so many requests */
    uint64_t held_bytes, fault_at_ns;
    struct net_list expected[NET_SLOTS];
    struct net_held *held[NET_SLOTS];
    struct net_list matched; /* receives whose message has come: begun outside of UCX's callback */
    struct net_list parked;  /* failed, until somebody says why */
    struct net_peer peers[GW_NODES_MAX];
};

uint64_t net_now_ns(void);
void net_list_add(struct net_list *list, struct net_request *request);
struct net_request *net_list_take(struct net_list *list);
/* net.c */
void net_fault(struct net *net, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A peer broke away: if nobody says so in time, it is a fault. */
void net_broken(struct net *net);

/* address.c */
/* In the head that `address` begins with, whose secret and lengths are set. */
void net_address_seal(uint8_t *address, uint32_t bytes);

/* messages.c */
int net_messages_init(struct net *net);
void net_send(struct net *net, struct net_request *request);
void net_expect(struct net *net, struct net_request *request);
/* Those that have been matched; false: none were. */
bool net_receive(struct net *net);
/* All that wait for messages or have been parked end. */
void net_end_all(struct net *net, int status);
/* Of generations up to this one. */
void net_drop_held(struct net *net, uint32_t generation);
void net_end(struct net_request *request, int status);
bool net_waits_for_failed(const struct net *net);

#endif
