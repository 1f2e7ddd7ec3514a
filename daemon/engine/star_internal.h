/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The star's parts among themselves.
 *
 *   star.c       the calls, on the loop thread; the star's thread; queues between the two
 *   star_peer.c  peers: what is sent to them and heard of them, until they are lost
 *   star_conn.c  connections: proof, records, good-byes
 *   star_ends.c  where connections come from: the root's listener, the node's attempts
 *
 * Everything is the star thread's, but what stands under "lock" or "loop thread".
 *
 *   connection:  PROVING --> PROVED (a node's: until OPENED) --> OPEN_NOW --> LEAVING --> closed
 *                (LEAVING: BYE is on its way; the peer has let go of it; closed when the other side
 *                has closed, or a second later. From any state: closed)
 *   peer:        joined --> [connection cut --> made anew]... --> lost, or dropped and drained
 */
#ifndef GW_ENGINE_STAR_INTERNAL_H
#define GW_ENGINE_STAR_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/engine/star.h"
#include "daemon/engine/star_address.h"
#include "daemon/engine/star_flow.h"
#include "daemon/engine/star_proof.h"

#define STAR_PROOF_NS 2000000000ull
#define STAR_LEAVE_NS 1000000000ull
#define STAR_ACK_BYTES (STAR_QUEUE_BYTES / 64)
#define STAR_NAMED 1024u /* rows: numbers rise one by one, so a row has one peer, or few */
#define STAR_RECORDS_PER_TURN 16u /* then other connections have their turn */
#define STAR_IN_BYTES (2 * STAR_SEALED_BYTES(STAR_RECORD_MAX))

enum star_event_kind { STAR_JOINED, STAR_MESSAGE, STAR_LOST };

/* On its way to the loop thread; holds a reference of its peer. */
struct star_event {
    struct star_event *next;
    struct star_peer *peer;
    enum star_event_kind kind;
    int code;
    uint32_t bytes;
    uint8_t data[]; /* message; or from, or text, with its 0 */
};

struct star_peer {
    struct star *star;
    struct star_peer *next_named; /* lock: of its row, while the engine may name it */
    uint32_t number;
    /* Lock. */
    unsigned references; /* the star thread's, the loop thread's, one for each event */
    bool deaf;           /* what is sent is dropped: its loss is on the way */
    bool full;           /* counted in star->full */
    bool behind;         /* too much waits */
    bool dropped;
    bool ack_wanted;
    struct star_list pending;
    size_t waiting;     /* cost of pending and flow.kept */
    size_t undelivered; /* cost of its messages among the events */
    size_t unacknowledged;
    uint64_t delivered;
    /* Loop thread. */
    bool forgotten;
    /* Star thread. */
    struct star_peer *next;
    struct star_conn *conn;
    struct star_flow flow;
    uint64_t session, heard_ns, leave_ns;
    enum star_bye leaving; /* 0: it is not */
    bool joined;
};

enum star_state { STAR_PROVING, STAR_PROVED, STAR_OPEN_NOW, STAR_LEAVING };

struct star_conn {
    struct star *star;
    struct star_conn *next;
    struct star_peer *peer; /* node: always the root; root: once it is proved */
    uv_tcp_t tcp;
    uv_timer_t timer; /* of the proof; of leaving */
    uv_connect_t connect;
    uv_write_t write;
    uv_shutdown_t shutdown;
    unsigned handles; /* open */
    enum star_state state;
    enum star_bye bye; /* LEAVING: still to be said */
    int failure; /* node: why, if it ends before it is open */
    bool closing, writing, beat, wrote;
    struct star_proof *proof;
    uint8_t step[STAR_STEP_MAX];
    size_t used;       /* of step, then of in */
    uint8_t *in, *out; /* once proved */
    char from[STAR_ADDRESS_TEXT];
};

struct star {
    bool root;
    uint8_t *secret; /* in locked memory */
    uint64_t beat_ns, lost_ns;
    struct star_callbacks callbacks;
    uv_async_t heard; /* of config.loop */
    uv_thread_t thread;
    atomic_uint full; /* peers for which more waits than should; changed under lock */
    bool freed;       /* loop thread */
    struct star_event *due, **last_due; /* loop thread: taken, and not called yet */

    uv_mutex_t lock;
    /* Lock. */
    struct star_peer *named[STAR_NAMED]; /* by number % STAR_NAMED */
    struct star_event *events, **last_event;
    bool door_closed, ending;

    /* Star thread. */
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t tick, leave, retry;
    bool ended; /* only handles are left */
    struct star_peer *peers;
    struct star_conn *conns;
    uint32_t peer_count, peers_max;
    uint64_t ticked_ns;
    uint8_t record_out[STAR_RECORD_MAX], record_in[STAR_RECORD_MAX];
    /* Root. */
    uv_tcp_t listener;
    uint32_t last_number;
    /* Node. */
    struct job_address to;
    uint64_t session, give_up_ns, retry_ns;
    uint64_t refused_ns; /* since when attempts have been refused; 0: the last was not */
    int failure;         /* of the attempts so far */
    int error;           /* libuv's, of the last that did not connect */
};

/* ---- star.c ---------------------------------------------------------------------------------- */

/* With the lock held. */
void star_release(struct star_peer *peer);
/* For the loop thread; false: no memory. */
bool star_tell(struct star_peer *peer, enum star_event_kind kind, int code, const void *data,
               size_t bytes);
/* With the lock held: what waits for it has become less, or is nobody's any more. True: the loop is
 * to be woken. */
bool star_eased(struct star_peer *peer);
/* Ends the thread if it shall end and nothing is left to do. */
void star_check_end(struct star *star);

/* ---- star_peer.c ----------------------------------------------------------------------------- */

int star_peer_new(struct star *star, uint32_t number, uint64_t session,
                  struct star_peer **ret_peer);
struct star_peer *star_peer_find(struct star *star, uint64_t session);
/* It has a connection that is proved, of whose other side `received` has come. */
void star_peer_open(struct star_peer *peer, struct star_conn *conn, uint64_t received);
/* The thread is done with it. */
void star_peer_end(struct star *star, struct star_peer *peer);
/* Once and for ever: the engine hears so, unless it dropped the peer. bye 0: none is said. */
void star_peer_lose(struct star_peer *peer, enum star_bye bye, int code, const char *text);
/* The next DATA record for it; 0: nothing to say. */
size_t star_peer_fill(struct star_peer *peer, bool beat, uint8_t *ret_record);
/* A record came. The peer may be gone then, and its connection be another's or closed. */
void star_peer_take(struct star_peer *peer, const uint8_t *record, size_t bytes);
/* Says good-bye if that is wanted and all that was queued is written. true: the peer is gone. */
bool star_peer_idle(struct star_peer *peer);
/* What the loop thread wants of peers. */
void star_peers_wake(struct star *star);

/* ---- star_conn.c ----------------------------------------------------------------------------- */

int star_conn_new(struct star *star, struct star_conn **ret_conn);
/* The socket is connected. */
void star_conn_begin(struct star_conn *conn);
void star_conn_close(struct star_conn *conn);
/* Root: the first record to a node that is known; false: closed. */
bool star_conn_opened(struct star_conn *conn, uint64_t received);
/* Sends what there is for its peer. Peer and connection may be gone then. */
void star_conn_pump(struct star_conn *conn);
/* Its peer, if any, has let go of it. */
void star_conn_bye(struct star_conn *conn, enum star_bye reason);
void star_conn_wait(struct star_conn *conn, uint64_t timeout_ns);

/* ---- star_ends.c ----------------------------------------------------------------------------- */

int star_listen(struct star *star, int fd);
/* Root: a connection has proved itself and said OPEN. */
void star_known(struct star *star, struct star_conn *conn);
void star_connect(struct star *star);
/* The peer's connection, or a node's attempt to make one, is no more. */
void star_cut(struct star *star, struct star_peer *peer, int failure);

#endif
