/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The star: the root engine of a job that spans nodes, and the engines of its other nodes, each
 * with one connection to the root. Carries messages whole, in order, once; knows nothing of what
 * they say.
 *
 * A thread of its own does all socket work (the loop thread may be busy for seconds while memory is
 * made; that must not look like a dead node): star_send may be called on the loop thread alone, and
 * callbacks come on the loop thread alone, through an uv_async of config.loop.
 *
 * Proof before anything is parsed: each side sends a nonce; one key per direction is BLAKE2b keyed
 * with the job's secret over (version, role, both nonces), and libsodium's secretstream follows. A
 * side that lacks the secret fails at the first sealed message, and learns nothing. The root holds
 * at most STAR_STRANGERS connections that have not proved themselves, for 2 s each, and reads from
 * each no more than the proof needs.
 *
 * A connection that breaks, or is silent for lost_ns / 2 although beats are sent every beat_ns, is
 * made anew by the node; what was not acknowledged is sent again, so nothing is lost or doubled. A
 * node or root that is not back lost_ns after it was heard last is lost, once and for ever.
 */
#ifndef GW_ENGINE_STAR_H
#define GW_ENGINE_STAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "proto/job_id.h"
#include "proto/limits.h"

#define STAR_ROOT 0u /* the root, as peer of a node */
#define STAR_MESSAGE_MAX GW_FRAME_MAX
#define STAR_STRANGERS 64u
#define STAR_SPARE_PEERS 64u /* proved, and sent away, beside a full job */
#define STAR_FULL_BYTES (4u << 20)   /* of what waits for one peer: then it is time to say less */
#define STAR_QUEUE_BYTES (64u << 20) /* most that waits for one peer; then it is lost */
#define STAR_BEAT_NS 100000000ull
#define STAR_LOST_NS 800000000ull

struct star;

struct star_callbacks {
    /* Root: a node has proved itself: peer numbers rise from 1, one for each; never reused. Nodes:
     * the root has, once (peer STAR_ROOT). Messages may be sent to it from now on. from: the
     * address, for texts. */
    void (*joined)(void *user, uint32_t peer, const char *from);
    void (*message)(void *user, uint32_t peer, const uint8_t *bytes, size_t count);
    /* Nothing more comes from the peer. Nodes: also if the root was never reached; code says why:
     * GW_E_NOT_FOUND (nobody listens there, which a second's refusals show; or it cannot be
     * reached), GW_E_DENIED (it does not know the secret, or takes no more nodes), GW_E_VERSION,
     * GW_E_TIMEOUT, GW_E_PEER_LOST, GW_E_PROTOCOL, GW_E_LIMIT (too much waited). text: what
     * happened, without who. */
    void (*lost)(void *user, uint32_t peer, int code, const char *text);
    void *user;
};

struct star_config {
    uv_loop_t *loop;
    const uint8_t *secret; /* JOB_ID_SECRET_BYTES; copied into locked memory */
    /* Root: where to listen: an interface's name, an address, this node's name as a host, or
     * NULL: the address that a default route would use, else loopback's. Ports first..last; 0, 0:
     * any. */
    const char *interface;
    uint16_t port_first, port_last;
    uint64_t beat_ns, lost_ns;   /* 0: the defaults; else 1 ms or more, and 4 beats or more */
    uint32_t peers_max;          /* root: nodes that have proved themselves, at one time */
    uint64_t connect_timeout_ns; /* nodes: the first connection, retries included; 0: 10 s */
    struct star_callbacks callbacks;
};

/* Listens; *ret_address: for the id. GW_E_NOT_FOUND: no such interface or host, or without an
 * address;
 * GW_E_LIMIT: no port of the range is free; text says which and what to do. */
int star_root(const struct star_config *config, struct star **ret_star,
              struct job_address *ret_address, char text[GW_TEXT_MAX + 1]);
/* Connects in the background, to one address only. */
int star_node(const struct star_config *config, const struct job_address *root,
              struct star **ret_star);
/* Queued; copied. GW_E_LIMIT: too much waits for that peer already, and it is given up (lost);
 * GW_E_NOT_FOUND: no such peer, or it is lost or dropped; GW_E_INVALID: too long; GW_E_NOMEM. */
int star_send(struct star *star, uint32_t peer, const void *bytes, size_t count);
/* More than STAR_FULL_BYTES waits for some peer, and since then it has not fallen to half of that;
 * the loop turns when it has. A root gives its engine nothing meanwhile, so that what would be
 * passed on waits where it came from; loss of that peer ends this too. Cheap. */
bool star_full(const struct star *star);
/* What is queued goes out, for a second at most, then the peer hears that it was sent away.
 * No callback about it follows here. */
void star_drop(struct star *star, uint32_t peer);
/* Root: strangers are refused from now on; nodes that are known may come back. */
void star_close_door(struct star *star);
/* Joins the thread; what is queued is sent, for a second at most. NULL-safe; no callback after. May
 * be called in a callback. Its memory goes with the next turn of config.loop. */
struct star *star_free(struct star *star);

/* "10.0.0.1:46200", "[fd00::1]:46200" */
void star_address_text(const struct job_address *address, char *text, size_t text_bytes);

#endif
