/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is inside the star's records, and the messages between two peers: numbered from 1 in each
 * direction by their order alone, kept until acknowledged, sent again from where a new connection
 * takes up. No sockets, no clock, no lock. One thread at a time.
 *
 *   HERE   1 | kind |                                        root's first: the proof and no more
 *   OPEN   2 | kind | session u64 | received u64 | resumed u8 |  node's first
 *   OPENED 3 | kind | received u64 |                         root's second
 *   DATA   4 | kind | acknowledged u64 | { bytes u32 | message }... |   without messages: a beat
 *   BYE    5 | kind | reason u8 |                            last
 *
 * Little-endian. received: number of the last message that has come; the other side goes on with
 * the next one. acknowledged: number of the last message that was given to the engine; what is
 * above it waits, and counts against STAR_QUEUE_BYTES at its sender.
 */
#ifndef GW_ENGINE_STAR_FLOW_H
#define GW_ENGINE_STAR_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/star.h"

#define STAR_HERE_BYTES 1u
#define STAR_OPEN_BYTES 18u
#define STAR_OPENED_BYTES 9u
#define STAR_DATA_BYTES 9u /* without messages */
#define STAR_BYE_BYTES 2u
#define STAR_RECORD_MAX (STAR_DATA_BYTES + 4u + STAR_MESSAGE_MAX)
#define STAR_COST(bytes) ((size_t)(bytes) + 64u) /* of a message that waits */

enum star_kind { STAR_HERE = 1, STAR_OPEN, STAR_OPENED, STAR_DATA, STAR_BYE };

/* Why a side says BYE, and what the other one's engine is told then. X(name, value, code, text) */
#define STAR_BYE_MAP(X)                                                                            \
    X(ENDED, 1, GW_E_PEER_LOST, "it has ended the connection")                                     \
    X(SENT_AWAY, 2, GW_E_PEER_LOST, "it sent this node away")                                      \
    X(DOOR, 3, GW_E_DENIED, "the job takes no more nodes")                                         \
    X(FULL, 4, GW_E_LIMIT, "it has as many nodes as it can take")                                  \
    X(FORGOTTEN, 5, GW_E_PEER_LOST, "it has given this node up: not heard for too long")           \
    X(NONSENSE, 6, GW_E_PROTOCOL, "it could not make sense of what this node sent")                \
    X(BEHIND, 7, GW_E_LIMIT, "too much waited for this node: the connection is too slow")

enum star_bye {
#define STAR_BYE_ENUM(name, value, code, text) STAR_BYE_##name = value,
    STAR_BYE_MAP(STAR_BYE_ENUM)
#undef STAR_BYE_ENUM
};

struct star_open {
    uint64_t session; /* chosen by the node, at random */
    uint64_t received;
    bool resumed; /* it was OPENED before */
};

struct star_message {
    struct star_message *next;
    uint32_t bytes;
    uint8_t data[];
};

struct star_list {
    struct star_message *first, **last;
};

struct star_flow {
    struct star_list kept;       /* from number acknowledged + 1 on */
    struct star_message *unsent; /* first of them that this connection has not carried */
    uint64_t acknowledged, sent, received;
};

void star_put(uint8_t *at, unsigned bytes, uint64_t value);
uint64_t star_get(const uint8_t *at, unsigned bytes);

void star_list_start(struct star_list *list);
/* Freed by star_list_end, wiped: messages may hold secrets. */
int star_list_add(struct star_list *list, const void *bytes, size_t count);
void star_list_end(struct star_list *list);

void star_flow_start(struct star_flow *flow);
void star_flow_end(struct star_flow *flow);
/* Takes over all of the list's messages, to be sent. */
void star_flow_add(struct star_flow *flow, struct star_list *list);
/* A DATA record of at most STAR_RECORD_MAX bytes, with as many unsent messages as fit. */
size_t star_flow_fill(struct star_flow *flow, uint64_t acknowledge, uint8_t *ret_record);
/* A DATA record: *ret_freed is the cost of what it acknowledges, and each message goes to
 * take(user, ...), whose failure ends it. GW_E_PROTOCOL: it is malformed. */
int star_flow_take(struct star_flow *flow, const uint8_t *record, size_t bytes,
                   int (*take)(void *user, const uint8_t *message, size_t count), void *user,
                   size_t *ret_freed);
/* A new connection, whose other side has received so much. GW_E_PROTOCOL: that cannot be. */
int star_flow_resume(struct star_flow *flow, uint64_t received);

void star_here_put(uint8_t ret_record[STAR_HERE_BYTES]);
int star_here_get(const uint8_t *record, size_t bytes);
void star_open_put(const struct star_open *open, uint8_t ret_record[STAR_OPEN_BYTES]);
int star_open_get(const uint8_t *record, size_t bytes, struct star_open *ret_open);
void star_opened_put(uint64_t received, uint8_t ret_record[STAR_OPENED_BYTES]);
int star_opened_get(const uint8_t *record, size_t bytes, uint64_t *ret_received);
void star_bye_put(enum star_bye reason, uint8_t ret_record[STAR_BYE_BYTES]);
/* *ret_text: static. */
int star_bye_get(const uint8_t *record, size_t bytes, int *ret_code, const char **ret_text);

#endif
