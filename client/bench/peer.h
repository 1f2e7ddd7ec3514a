/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: libraries that do the same collectives. Their programs (tests/bench/peer_*, carried as
 * text) are compiled where they run, and each round starts one anew, so that no peer's waiting
 * takes a processor from another's round. mpich and openmpi are the system's; impi, oneccl and gloo
 * are what --install-peers brought into a private directory. The coordinator's thread.
 */
#ifndef GW_BENCH_PEER_H
#define GW_BENCH_PEER_H

#include "client/bench/bench.h"

enum { PEERS_MAX = 5, PEER_PATH_BYTES = 384, PEER_WORDS = 56 };

struct peers;
struct peer;

/* What differs between peers; the table is in peer.c. */
struct peer_kind {
    const char *name; /* as rows have it */
    /* Makes peer->program, or tells why not and returns false. */
    bool (*find)(const struct peers *peers, struct peer *peer);
    /* How a round of so many ranks starts: words, ended by NULL, before those of the case. */
    void (*launch)(const struct peers *peers, const struct peer *peer, const char *ranks,
                   const char **argv);
    bool has_nodes; /* also launched on several, by nodes_launch */
};

struct peer {
    const struct peer_kind *kind;
    char program[PEER_PATH_BYTES], launcher[PEER_PATH_BYTES];
    const char *root;     /* whose libraries it runs with; NULL: the system's */
    char version[128];    /* once a round said so */
    uint64_t iterations;  /* of a round; 0: not known yet */
    bool lacks;           /* the case's op or type: it has no more rounds in it */
    bool told[GW_DTYPES]; /* that it lacks such an op of the run */
};

struct peers {
    struct peer list[PEERS_MAX];
    uint32_t count;
    const char *directory;           /* for programs and what they print */
    char root[PEER_PATH_BYTES - 64]; /* private directory of --install-peers */
};

/* Finds and compiles; a peer that is not there or does not compile is told and left out. */
int peers_find(struct peers *peers, const char *directory, const char *root, bool on_nodes);
/* A text that gwbench carries, as a file. Exit codes. */
int peer_write(const char *directory, const char *name, const unsigned char *source,
               size_t source_bytes);
/* A new case; iterations 0: as many as the first round finds to fit. */
void peer_begin(struct peer *peer, uint64_t iterations);
/* One round of a case; adds samples. */
int peer_round(const struct bench *bench, struct peer *peer, const struct bench_case *what,
               struct bench_samples *samples);
/* A JSON object: each peer's version. */
void peers_print(const struct peers *peers);

/* peer_install.c: brings impi, oneccl and gloo there. Exit code. */
int peers_install(const char *root);
/* The directory meant: `named`, else the user's own. EX_USAGE after a message: there is none. */
int peers_root(const char *named, char *ret_root, size_t root_bytes);

/* peer_run.c: runs a program with its output in the file `out`, in a process group of its own.
 * root: the private directory whose libraries it may want; NULL: none. Its exit code; -1 when it
 * had to be ended. */
int peer_run(const char *const argv[], const char *directory, const char *root, const char *out,
             uint64_t limit_ns);
/* The first lines of what it said, to standard error. */
void peer_tell(const char *who, const char *out);
/* In $PATH. */
bool peer_in_path(const char *program);

extern const unsigned char peer_mpi_source[], peer_oneccl_source[], peer_gloo_source[];
extern const size_t peer_mpi_source_bytes, peer_oneccl_source_bytes, peer_gloo_source_bytes;
/* tests/integration/network.py */
extern const unsigned char peer_network_source[];
extern const size_t peer_network_source_bytes;

#endif
