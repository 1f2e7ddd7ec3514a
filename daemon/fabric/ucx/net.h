/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the fabrics of a job's nodes, over UCX: each is sent by one request and taken by
 * one that expects it, matched by (generation, op, piece, sender). Owns the UCX worker, its
 * endpoints, and one thread, which does all that UCX does and sleeps when there is nothing to do.
 *
 * A request is the caller's until it is posted and after it is in its inbox; in between it and its
 * buffer are the net's. What is said of requests here ends: with success, or after net_abort or a
 * fault with a status < 0. What comes before it is expected waits; of large messages only the
 * announcement does, their bytes go from buffer to buffer once both are there.
 *
 * Every message carries its op's digest, and a secret of the receiver's, which its address told: it
 * is compared before a byte of the message is used. Whoever does not know the secret is not heard.
 */
#ifndef GW_FABRIC_UCX_NET_H
#define GW_FABRIC_UCX_NET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/fabric/fabric.h"

#define NET_GRACE_NS 5000000000ull /* a peer that breaks away is told by the star before that */

enum net_flags {
    NET_EMPTY = 1, /* instead of the bytes: they are zeros */
    NET_SKIP = 2,  /* the fabric's own word to its like */
};

struct net_header {
    uint64_t secret, op, piece, digest;
    uint32_t generation;
    uint16_t from, flags;
};

/* Where finished requests wait for the thread that posted them. */
struct net_inbox {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct net_request *head, *tail;
    bool waiting;
};

struct net_request {
    /* The caller's. flags: of a send, what is said; of a receive, what was said, once it is done.
     * bytes: a receive takes as many, or none with NET_EMPTY. */
    bool send;
    uint16_t flags;
    uint32_t node;
    uint64_t op, piece, digest;
    void *buffer;
    uint64_t bytes;
    struct net_inbox *inbox;
    int status;
    /* The net's. */
    uint32_t generation;
    struct net_request *next;
    struct net_header header;
    struct net *net;
    void *announced; /* what UCX calls the message that has come */
};

struct net_config {
    const struct fabric_nodes *nodes;
    /* On the net's thread: it cannot go on. When it returns, no op may be taken for done any more,
     * for all requests end. */
    void (*fault)(void *user, const char *text);
    void *user;
};

struct net;

int net_new(const struct net_config *config, struct net **ret_net);
/* No request is under way. What was sent goes out first, for a second at most. NULL-safe. */
struct net *net_free(struct net *net);
void net_address(const struct net *net, uint8_t ret_address[GW_FABRIC_ADDRESS_MAX],
                 uint32_t *ret_bytes);
/* 0, or why it is no address to be reached: GW_E_VERSION, GW_E_PROTOCOL. */
int net_address_check(const uint8_t *address, uint32_t bytes, char text[GW_TEXT_MAX + 1]);

/* Loop thread: the next generation, whose endpoints are made; config.nodes is complete. */
int net_form(struct net *net);
/* Loop thread: all requests end, and all that are posted until net_form. Does not wait. */
void net_abort(struct net *net);
/* Any thread. */
void net_post(struct net *net, struct net_request *request);
/* Any thread: what the caller cannot go on for. All requests end, as after a fault of its own. */
void net_fail(struct net *net, const char *text);

void net_inbox_init(struct net_inbox *inbox);
void net_inbox_end(struct net_inbox *inbox);
/* Waits for one. */
struct net_request *net_inbox_take(struct net_inbox *inbox);

#endif
