/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the protocol: one table, used by client, engine and supervisor alike. */
#ifndef GW_PROTO_LIMITS_H
#define GW_PROTO_LIMITS_H

#include <stdint.h>

#define GW_PROTOCOL_VERSION 1u /* of the client channel: Hello carries a range */
#define GW_CHANNEL_VERSION 1u  /* of the channel between gradwired and its engines */
#define GW_STAR_VERSION 1u     /* of the channel between the engines of a job's nodes */

/* Engine and client make the calls of CUDA 13.0, whatever newer driver is installed: the runtime
 * that the engine is built with is of 13 and needs such a driver. */
#define GW_CUDA_ABI 13000

#define GW_FRAME_MAX 65536u     /* bytes of one packet, header included */
#define GW_FRAME_FDS_MAX 8u     /* descriptors of one packet */
#define GW_HELLO_TIMEOUT_NS 2000000000ll

#define GW_RANKS_MAX 1024u        /* ranks of a job, on all its nodes */
#define GW_GPU_RANKS_MAX 64u      /* of a job on GPUs: bits of a word that kernels read */
#define GW_NODES_MAX 1024u        /* nodes of a job */
#define GW_GROUPS_MAX 64u         /* groups of a job, the world included */
#define GW_NAME_MAX 255u          /* bytes of a parameter's or unit's name */
#define GW_LABEL_MAX 63u          /* bytes of a job's, op's or array's name */
#define GW_TEXT_MAX 495u          /* bytes of an error text */
#define GW_PARAMS_MAX (1u << 20)  /* parameters of a job */
#define GW_FREEZE_PARAMS_MAX 480000u /* parameters of a job that freezes some: fit in a frame */
#define GW_BUCKETS_MAX (1u << 20) /* buckets of a job */
#define GW_PARAMS_PER_FRAME 128u  /* parameters of one Register frame */
#define GW_READY_PER_FRAME 256u   /* entries of one Ready frame */
#define GW_READY_TOKENS 4u        /* producer tokens of one entry */
#define GW_TIMELINES_MAX 64u      /* a client's own timelines */
#define GW_OPS_IN_FLIGHT 64u      /* collective ops of one rank */
#define GW_BUFFERS_MAX 1024u      /* registered buffers of one rank */
#define GW_ARRAYS_MAX 64u         /* shard arrays of one rank */
#define GW_OVERFLOW_MAX 1024u     /* overflow slots of one rank; and one per bucket at most */
#define GW_RING_SLOTS_MAX 64u
#define GW_STAGING_BYTES (512u << 10) /* of a rank's staging arena (param read/write) */
#define GW_STAGING_ALL_BYTES (32u << 20) /* of all ranks' at once: fits into a star's queue */
#define GW_TAG_BYTES 8u
#define GW_ID_MAX 256u
#define GW_FABRIC_ADDRESS_MAX 4096u /* bytes by which nodes' fabrics find each other */
#define GW_STAR_DATA_MAX 49152u     /* bytes of one StarData */
#define GW_STAR_DONE_MAX 32u        /* ops of one StarDone */
#define GW_NO_SLOT UINT32_MAX

/* What one parameter read or write of a rank may carry. */
static inline uint32_t gw_staging_bytes(uint32_t world)
{
    uint32_t most = GW_STAGING_ALL_BYTES / world & ~4095u;

    return most < GW_STAGING_BYTES ? most : GW_STAGING_BYTES;
}

#endif
