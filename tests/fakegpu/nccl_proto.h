/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libnccl's double asks of the server: requests FG_NCCL_FIRST + enum fgn_kind. Communicators
 * are named by server-wide numbers, one per rank; results of calls are enum fgn_result, equal to
 * ncclResult_t (nccl.h is not needed to build the server).
 */
#ifndef FAKEGPU_NCCL_PROTO_H
#define FAKEGPU_NCCL_PROTO_H

#include <stdint.h>

#include "tests/fakegpu/fakegpu.h"

/* Arguments a[] -> v[]; v[0] is a result unless it says otherwise. Times out nowhere: what takes
 * long is polled. */
enum fgn_kind {
    FGN_UNIQUE_ID = 0, /* -> two words that name it */
    FGN_INIT,          /* the two words, ranks, rank, most CTAs (0: default), FGN_INIT_*; device
                   * -> result, communicator; ends as FGN_STATE says */
    FGN_SPLIT,         /* communicator, color + 1 (0: none), key, most CTAs, FGN_INIT_*
                   * -> result, communicator (0: none); both end as FGN_STATE says */
    FGN_STATE,         /* communicator -> result, rank, ranks, device */
    FGN_GROUP,         /* calls; payload: struct fgn_call[]; all are judged before any is kept */
    FGN_FINALIZE,      /* communicator; ends as FGN_STATE says */
    FGN_DESTROY,       /* communicator; FG_BUSY: ask again */
    FGN_ABORT,         /* communicator; FG_BUSY: ask again */
    FGN_REVOKE,        /* communicator; ends as FGN_STATE says */
    FGN_REGISTER,      /* communicator, address, bytes, FGN_REGISTER_* -> result, registration */
    FGN_DEREGISTER,    /* communicator, registration, FGN_REGISTER_* */
    FGN_PREMUL,        /* communicator, type, 1: at once / 0: by address, value or address
                     * -> result, number of the operator, from FGN_OP_FIRST */
    FGN_PREMUL_FREE,   /* communicator, number */
};

enum fgn_result {
    FGN_SUCCESS = 0,
    FGN_UNHANDLED_CUDA_ERROR = 1,
    FGN_SYSTEM_ERROR = 2,
    FGN_INTERNAL_ERROR = 3,
    FGN_INVALID_ARGUMENT = 4,
    FGN_INVALID_USAGE = 5,
    FGN_REMOTE_ERROR = 6,
    FGN_IN_PROGRESS = 7,
};

enum { FGN_INIT_ZERO_CTA = 1 }; /* CTAPolicy: copy engines where windows allow */
enum { FGN_REGISTER_BUFFER = 0, FGN_REGISTER_WINDOW = 1, FGN_REGISTER_SYMMETRIC = 2 };

enum fgn_call_kind {
    FGN_ALL_REDUCE,
    FGN_REDUCE_SCATTER,
    FGN_ALL_GATHER,
    FGN_BROADCAST,
    FGN_REDUCE,
    FGN_SEND,
    FGN_RECV,
    FGN_CALL_KINDS,
};

/* ncclRedOp_t and ncclDataType_t. */
enum { FGN_SUM, FGN_PROD, FGN_MAX, FGN_MIN, FGN_AVG, FGN_OP_FIRST };
enum fgn_type {
    FGN_INT8,
    FGN_UINT8,
    FGN_INT32,
    FGN_UINT32,
    FGN_INT64,
    FGN_UINT64,
    FGN_FLOAT16,
    FGN_FLOAT32,
    FGN_FLOAT64,
    FGN_BFLOAT16,
    FGN_FLOAT8_E4M3,
    FGN_FLOAT8_E5M2,
    FGN_TYPES,
};

struct fgn_call {
    uint64_t comm, stream;
    uint32_t kind, type, op;
    uint32_t root;  /* or peer */
    uint64_t count; /* as NCCL counts it: per rank for reduce-scatter and all-gather */
    uint64_t send, recv; /* 0: not used by this rank */
};

static inline uint32_t fgn_type_bytes(uint32_t type)
{
    static const uint8_t bytes[FGN_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type < FGN_TYPES ? bytes[type] : 0;
}

#endif
