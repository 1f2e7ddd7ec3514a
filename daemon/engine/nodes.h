/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job on several nodes: one log of events, and a whole core on every node that reads it. The root
 * engine, where the job's id was made, puts events in order; it takes them from its own clients and
 * from the other nodes' engines, which propose by the star (star.h) what their clients send. Loop
 * thread.
 *
 *   node                          root                            all nodes
 *   STAR_HELLO          ->        STAR_WELCOME
 *   STAR_NODE (address) ->        log: STAR_NODE            ->    known to the fabric at form()
 *   STAR_EVENT, packet  ->        log: STAR_EVENT, packet   ->    job_apply, in the log's order
 *   STAR_DONE, STAR_BUILT, HEARD -> when all nodes have: log
 *   STAR_DATA           ->        (to all, or to a rank's node) -> job_values
 *
 * The same events in the same order give the same decisions, so nothing else has to be agreed, and
 * no gradient waits for the star but by the time that a declaration needs to the root and back. The
 * root's clock counts, brought to each node's by an offset taken once: too early by at most a round
 * trip, never late.
 *
 * Who is slow makes all slower, and nothing is lost: while much waits for a node, the root takes
 * nothing from its clients nor from other nodes, and these, when much of theirs waits, nothing from
 * their own.
 *
 * Until all ranks have joined the root keeps the log, for nodes that come, and tells it as fast as
 * they hear. A node that is lost is lost with its ranks' shards: the job fails and cannot form
 * again. A node without its root ends.
 */
#ifndef GW_ENGINE_NODES_H
#define GW_ENGINE_NODES_H

#include "daemon/engine/job.h"
#include "proto/wire.h"

struct engine;
struct nodes;

/* Node: the job is made and known to the others; or, code < 0, never will be, and the engine is to
 * end. */
typedef void nodes_arrived_fn(struct engine *engine, int code, const char *text);

/* Before the job is made. Root: listens, and writes its address into the engine's id. */
int nodes_root(struct engine *engine, const struct wire_msg *create, struct nodes **ret_nodes,
               char text[GW_TEXT_MAX + 1]);
/* Node: connects to the engine that the id names. */
int nodes_follow(struct engine *engine, nodes_arrived_fn *arrived, struct nodes **ret_nodes,
                 char text[GW_TEXT_MAX + 1]);
/* For the job's configuration. */
void nodes_configure(struct nodes *nodes, struct job_config *config);
/* Root: its job is made. */
int nodes_made(struct nodes *nodes);
/* Before the loop waits. */
void nodes_turn(struct nodes *nodes);
/* More waits for other nodes than should: clients are not read meanwhile. */
bool nodes_full(const struct nodes *nodes);
/* Node: it can take JOINs. */
bool nodes_ready(const struct nodes *nodes);
/* NULL-safe. Before the job is freed no more events come. */
struct nodes *nodes_free(struct nodes *nodes);

#endif
