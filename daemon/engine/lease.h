/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs that this engine has leased from gradwired: asked for before a rank is placed, held to the
 * engine's end, by the lock on a descriptor, so that a new gradwired finds them taken. Loop thread.
 *
 *   lease  (none) --asked--> ASKED --LEASE--> HELD
 *                          ^ |   '--refused, too late, gradwired gone--> (none)
 *                          '-' its holder ends: asked again until LEASE_FREE_NS
 *                              it is busy: until LEASE_BUSY_NS, for that may not be known yet; not
 *                              at all where gradwired knows that lost ranks may come back
 */
#ifndef GW_ENGINE_LEASE_H
#define GW_ENGINE_LEASE_H

#include <sys/queue.h>

#include "daemon/ipc/packet.h"
#include "proto/wire.h"

#define LEASE_ANSWER_NS 5000000000ull
#define LEASE_FREE_NS 15000000000ull /* for the job before to give it back: contexts take seconds */
#define LEASE_BUSY_NS 2000000000ull
#define LEASE_AGAIN_NS 100000000ull

struct engine;
struct lease;
TAILQ_HEAD(lease_list, lease);

/* 0: it is held. GW_E_AGAIN: asked for, join_leased will be called. Else refused, with text. */
int lease_get(struct engine *engine, const uint8_t gpu[GW_GPU_BYTES], char text[GW_TEXT_MAX + 1]);
/* gradwired's LEASE; takes the packet's descriptor. */
void lease_answer(struct engine *engine, const struct wire_msg *msg, struct packet *packet);
/* There is no gradwired any more: what is asked for will not come. */
void lease_no_daemon(struct engine *engine);
void lease_end(struct engine *engine);

#endif
