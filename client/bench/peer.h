/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: MPI libraries that are installed. Their program (tests/bench/peer_mpi.c, carried as text)
 * is compiled with each one's compiler, and each round starts it anew, so that no peer's waiting
 * takes a processor from another's round. The coordinator's thread.
 */
#ifndef GW_BENCH_PEER_H
#define GW_BENCH_PEER_H

#include "client/bench/bench.h"

enum { PEERS_MAX = 2 };

struct peer {
    const char *name; /* "mpich" */
    char program[192];
    uint64_t iterations; /* of a round; 0: not known yet */
};

struct peers {
    struct peer list[PEERS_MAX];
    uint32_t count;
    const char *directory;
};

/* Finds and compiles; a peer that is not there or does not compile is told and left out. */
int peers_find(struct peers *peers, const char *directory);
/* One round of a case; adds samples. */
int peer_round(const struct peers *peers, struct peer *peer, const struct bench_case *what,
               const struct bench_options *options, struct bench_samples *samples);

extern const unsigned char peer_source[];
extern const size_t peer_source_bytes;

#endif
