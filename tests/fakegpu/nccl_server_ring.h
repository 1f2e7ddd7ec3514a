/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a collective does to memory, in NCCL's ring order: the part that ends at rank c begins at
 * rank c + 1 and is rounded to its type at each hop. No lock, no allocation: runs under guard_run.
 */
#ifndef FAKEGPU_NCCL_SERVER_RING_H
#define FAKEGPU_NCCL_SERVER_RING_H

#include <stdbool.h>

#include "tests/fakegpu/nccl_proto.h"

struct ring {
    uint32_t kind, type, op, root, ranks; /* enum fgn_call_kind and so on */
    uint64_t count;
    uint64_t random; /* order of the parts, pauses */
    /* A factor of each input: FGN_AVG and operators of FGN_PREMUL. Bits of a double. */
    bool scaled;
    double scale[FG_GPUS_MAX];
    const unsigned char *send[FG_GPUS_MAX]; /* NULL: not used */
    unsigned char *recv[FG_GPUS_MAX];
};

/* Bytes that a rank reads from send and writes to recv. */
uint64_t ring_send_bytes(uint32_t kind, uint64_t count, uint32_t type, uint32_t ranks);
uint64_t ring_recv_bytes(uint32_t kind, uint64_t count, uint32_t type, uint32_t ranks);
/* Whether the type can be added up here. */
bool ring_reduces(uint32_t type);
/* A value of the type: nearest to `value`, and from its bits. */
double ring_round(uint32_t type, double value);
double ring_value(uint32_t type, uint64_t bits);
void ring_run(const struct ring *ring);
void ring_send(const unsigned char *from, unsigned char *to, uint64_t bytes);

#endif
