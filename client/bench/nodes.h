/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes on this machine, a gradwired each. Their network is tests/integration/network.py's, which
 * gwbench carries as text and runs: a network namespace for each, joined by veth and a bridge, or
 * loopback where the kernel gives none. It lasts as long as a pipe is open here, and so never
 * longer than gwbench. The coordinator's thread; what a worker may call is said.
 */
#ifndef GW_BENCH_NODES_H
#define GW_BENCH_NODES_H

#include "client/bench/bench.h"

enum { NODES_MAX = 16, NODE_WORDS = 12 };

struct node {
    char interface[16], address[48];
    const char *enter[NODE_WORDS]; /* words before a command that is to run there, ended by NULL */
    struct bench_daemon daemon;
    char line[128]; /* where they are */
};

struct nodes {
    struct node list[NODES_MAX];
    uint32_t count;
    uint64_t shape_mbit; /* of each link, both ways; 0: as fast as it goes */
    bool is_loopback;    /* all of them are this machine */
    char agent[128];     /* a program that runs a command on the node of an address */
    int pid, stdin_fd;   /* of network.py */
};

/* nodes.c: all cases of the op on all networks that are asked for. Exit codes. */
int nodes_run(struct bench *bench);
/* What a node sends in an op, if each holds a whole result's part: all but its own, twice for an
 * all-reduce. Pure. */
uint64_t nodes_crossing_bytes(const struct bench_case *what);
/* Which node a rank is on: blocks of neighbours, or dealt, one to each node in turn. Pure. */
uint32_t nodes_of_rank(const struct bench_case *what, uint32_t rank);

/* nodes_network.c */
int network_start(struct nodes *nodes, const char *directory, uint32_t count, uint64_t shape_mbit);
void network_stop(struct nodes *nodes);

/* nodes_link.c, in a worker: nothing but the transfer, by TCP, of what has to cross; a worker on
 * each node, whose rank is the node. Its share's `link` must be there before it starts. */
extern const struct worker_ops worker_link;

/* nodes_peer.c: words, ended by NULL, that start an MPI's ranks on their nodes. */
struct peer;
void nodes_launch(const struct nodes *nodes, const struct peer *peer, const struct bench_case *what,
                  const char **argv);
/* Writes nodes->agent. Exit codes. */
int nodes_agent(struct nodes *nodes, const char *directory);

/* options: "none" or "1G", "100M" bits per second. */
bool shape_parse(const char *word, uint64_t *ret_mbit);
/* NULL: none. */
const char *shape_name(uint64_t mbit, char name[16]);

#endif
