/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checked form of every control message, and the only interface to the generated protobuf code.
 * Pure; any thread.
 *
 * wire_decode copies a packet into one allocation of bounded size, checks every bound of
 * proto/limits.h (lengths, counts, enums, finite numbers, names free of NUL) and nothing that needs
 * state. Unknown fields are ignored. An unknown type is GW_E_UNIMPLEMENTED (the frame's request is
 * still returned, so that it can be answered); anything malformed is GW_E_PROTOCOL.
 */
#ifndef GW_PROTO_WIRE_H
#define GW_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire/gradwire.h"
#include "proto/frame.h"
#include "proto/limits.h"

/* X(NAME, value, union member, proto message prefix, lower-case proto name)
 * The numbers are the frame's type and never change. */
#define WIRE_TYPE_MAP(X)                                                                           \
    X(HELLO, 1, hello, Hello, hello)                                                               \
    X(WELCOME, 2, welcome, Welcome, welcome)                                                       \
    X(CLOSE, 3, done, Close, close)                                                                \
    X(DONE, 4, done, Done, done)                                                                   \
    X(JOB_CREATE, 10, job_create, JobCreate, job_create)                                           \
    X(JOIN, 11, join, Join, join)                                                                  \
    X(JOINED, 12, joined, Joined, joined)                                                          \
    X(WAIT_READY, 13, empty, WaitReady, wait_ready)                                                \
    X(LEAVE, 14, empty, Leave, leave)                                                              \
    X(GROUP_NEW, 15, group_new, GroupNew, group_new)                                               \
    X(GROUP_MADE, 16, group_made, GroupMade, group_made)                                           \
    X(PARAM_GROUP, 19, param_group, ParamGroup, param_group)                                       \
    X(REGISTER, 20, reg, Register, register)                                                       \
    X(SEAL, 21, seal, Seal, seal)                                                                  \
    X(SEALED, 22, sealed, Sealed, sealed)                                                          \
    X(ARENA_GET, 23, arena_get, ArenaGet, arena_get)                                               \
    X(ARENA, 24, arena, Arena, arena)                                                              \
    X(BUFFER_NEW, 25, buffer_new, BufferNew, buffer_new)                                           \
    X(BUFFER_MADE, 26, buffer_made, BufferMade, buffer_made)                                       \
    X(BUFFER_FREE, 27, buffer_free, BufferFree, buffer_free)                                       \
    X(BUFFER_IMPORT, 28, buffer_import, BufferImport, buffer_import)                               \
    X(TIMELINE_EVENTS, 29, timeline_events, TimelineEvents, timeline_events)                       \
    X(OP, 30, op, Op, op)                                                                          \
    X(READY, 31, ready, Ready, ready)                                                              \
    X(ACQUIRE, 32, acquire, Acquire, acquire)                                                      \
    X(ACQUIRED, 33, acquired, Acquired, acquired)                                                  \
    X(MICRO_END, 34, after, MicroEnd, micro_end)                                                   \
    X(STEP_END, 35, after, StepEnd, step_end)                                                      \
    X(UPDATE_BEGIN, 36, empty, UpdateBegin, update_begin)                                          \
    X(UPDATE_COMMIT, 37, after, UpdateCommit, update_commit)                                       \
    X(FETCH, 38, unit, Fetch, fetch)                                                               \
    X(RELEASE, 39, unit, Release, release)                                                         \
    X(PARAM_IO, 40, param_io, ParamIo, param_io)                                                   \
    X(ARRAY_GET, 41, array_get, ArrayGet, array_get)                                               \
    X(ARRAY_MADE, 42, array_made, ArrayMade, array_made)                                           \
    X(MEASURE, 43, empty, Measure, measure)                                                        \
    X(STATS_GET, 44, empty, StatsGet, stats_get)                                                   \
    X(STATS, 45, stats, Stats, stats)                                                              \
    X(EVENT_GET, 46, empty, EventGet, event_get)                                                   \
    X(FREEZE, 47, freeze, Freeze, freeze)                                                          \
    X(STATUS_GET, 60, empty, StatusGet, status_get)                                                \
    X(STATUS, 61, status, Status, status)                                                          \
    X(JOBS_GET, 62, jobs_get, JobsGet, jobs_get)                                                   \
    X(JOBS, 63, jobs, Jobs, jobs)                                                                  \
    X(DRAIN, 64, empty, Drain, drain)                                                              \
    X(STOP, 65, stop, Stop, stop)                                                                  \
    X(ENGINE_READY, 80, engine_ready, EngineReady, engine_ready)                                   \
    X(HANDOVER, 81, handover, Handover, handover)                                                  \
    X(ENGINE_STOP, 82, empty, EngineStop, engine_stop)                                             \
    X(LEASE_GET, 83, lease_get, LeaseGet, lease_get)                                               \
    X(LEASE, 84, lease, Lease, lease)                                                              \
    X(LEASE_WANTED, 85, empty, LeaseWanted, lease_wanted)                                          \
    X(STAR_HELLO, 100, star_hello, StarHello, star_hello)                                          \
    X(STAR_WELCOME, 101, star_welcome, StarWelcome, star_welcome)                                  \
    X(STAR_NODE, 102, star_node, StarNode, star_node)                                              \
    X(STAR_EVENT, 103, star_event, StarEvent, star_event)                                          \
    X(STAR_DONE, 104, star_done, StarDone, star_done)                                              \
    X(STAR_BUILT, 105, done, StarBuilt, star_built)                                                \
    X(STAR_DATA, 106, star_data, StarData, star_data)

enum wire_type {
#define WIRE_TYPE_ENUM(name, value, member, message, lower) WIRE_##name = value,
    WIRE_TYPE_MAP(WIRE_TYPE_ENUM)
#undef WIRE_TYPE_ENUM
};

/* Memory of a job, by what lies in it. Index 0 but where several exist. */
enum gw_arena_kind {
    GW_ARENA_NONE = 0,          /* reads as zeros */
    GW_ARENA_PARAMS = 1,        /* stages 0-2: all buckets; stage 3 private: the rank's spans */
    GW_ARENA_GRADS = 2,         /* full gradient buffer: all buckets */
    GW_ARENA_ACC = 3,           /* second full buffer, for sums over micro-steps */
    GW_ARENA_RING = 4,          /* ring_slots bucket buffers */
    GW_ARENA_SHARD_GRADS = 5,   /* the rank's spans */
    GW_ARENA_POOL = 6,          /* gathered units */
    GW_ARENA_OVERFLOW = 7,      /* one bucket buffer; index i is ring slot ring_slots + i */
    GW_ARENA_ARRAY = 8,         /* a shard array */
    GW_ARENA_STAGING = 9,       /* GW_STAGING_BYTES */
    GW_ARENA_SHARED_PARAMS = 10, /* stage 3 mapped: all buckets, one for the job */
    GW_ARENA_BUFFER = 11,       /* a registered buffer; index: its id */
    GW_ARENA_VERDICT = 12,      /* struct gw_shm_verdict and used bits in device memory, per rank */
    GW_ARENA_MASTER = 13,       /* fp32 values of the rank's spans of fp16 and bf16 parameters */
    GW_ARENA_SECONDARY = 14,    /* secondary shards; the engine's own: ARENA_GET refuses it */
    GW_ARENA_KINDS
};

/* Where a job's bulk memory lies, and who orders its steps: the host, or streams of GPUs. */
enum gw_device_kind { GW_DEVICE_HOST = 0, GW_DEVICE_CUDA = 1, GW_DEVICE_KINDS };

#define GW_GPU_BYTES 16u        /* UUID of a GPU */
#define GW_IPC_HANDLE_BYTES 64u /* of CUDA */
#define GW_TIMELINE_EVENTS 32u  /* value v of a timeline is told by event v % 32 */

/* Why a buffer of the service's stands in for the client's own device memory. */
enum wire_stands_in {
    WIRE_STANDS_IN_NOT = 0,
    WIRE_STANDS_IN_UNEXPORTED = 1, /* the client's driver exports none of it */
    WIRE_STANDS_IN_UNOPENED = 2,   /* the engine could not open it */
    WIRE_STANDS_IN_KINDS,
};

enum wire_op_kind {
    WIRE_OP_REDUCE_SCATTER = 1,
    WIRE_OP_ALL_GATHER = 2,
    WIRE_OP_ALL_REDUCE = 3,
    WIRE_OP_BROADCAST = 4,
    WIRE_OP_BARRIER = 5,
};

struct wire_param {
    const char *name; /* 1..GW_NAME_MAX bytes */
    const char *unit; /* "" or a name */
    uint64_t numel;
    uint32_t flags;
    uint32_t dtype, grad_dtype; /* enum gw_dtype */
    uint32_t group;
};

/* Tokens on the client's own timelines. */
struct wire_after {
    uint32_t tokens; /* <= GW_READY_TOKENS */
    uint32_t timeline[GW_READY_TOKENS];
    uint64_t value[GW_READY_TOKENS];
};

struct wire_seal {
    uint32_t stage, accumulate, gather, unused, overlap_off;
    uint32_t ring_slots, micro_steps, shard_align_bytes;
    uint64_t bucket_bytes;
    double scale, clip_norm;
    uint64_t gather_bytes, prefetch_bytes;
    uint32_t order; /* enum gw_order */
    uint32_t norm;  /* enum gw_norm */
    double pre_scale;
    uint32_t reduce_dtype, accum_as_grads, shard_ranks;
    uint64_t persist_bytes, reuse_bytes;
    uint32_t secondary_ranks, all_reduce;
};

struct wire_op {
    uint32_t kind, group, root;
    uint32_t send_buffer, recv_buffer;
    uint64_t sequence, count, send_offset, recv_offset;
    double scale, pre_scale;
    uint32_t order; /* enum gw_order */
    uint32_t dtype; /* enum gw_dtype */
    struct wire_after after;
    char name[GW_LABEL_MAX + 1];
};

struct wire_ready_entry {
    uint32_t param, piece, flags, slot;
    uint32_t tokens; /* <= GW_READY_TOKENS */
    uint32_t timeline[GW_READY_TOKENS];
    uint64_t value[GW_READY_TOKENS];
};

struct wire_job {
    uint8_t tag[GW_TAG_BYTES];
    const char *name;
    const char *wait;
    const char *device, *fabric, *ordering, *workers, *placement;
    uint32_t uid, engine_pid, state, world, ranks_present, stage, generation;
    uint64_t steps, age_ns, memory_bytes;
    uint64_t calls[GW_KINDS], payload_bytes[GW_KINDS], moved_bytes[GW_KINDS];
    uint64_t cross_node_bytes[GW_KINDS];
};

#define WIRE_JOBS_PER_FRAME 32u

struct wire_msg {
    uint16_t type; /* enum wire_type */
    uint32_t request;
    union {
        struct {
            uint32_t version_min, version_max;
            uint64_t features;
            uint32_t tag_bytes; /* 0 or GW_TAG_BYTES */
            uint8_t tag[GW_TAG_BYTES];
            char client[GW_LABEL_MAX + 1];
            uint32_t spans;
        } hello;
        struct {
            uint32_t version, engine_pid;
            uint64_t features;
        } welcome;
        struct {
            int32_t code;
            char text[GW_TEXT_MAX + 1];
        } done;
        struct {
            uint32_t rank, world;
            uint64_t join_timeout_ns, op_timeout_ns;
            int64_t linger_ns;
            uint64_t link_bytes_per_s;
            char name[GW_LABEL_MAX + 1];
            uint32_t device, gpu_bytes; /* gpu_bytes: 0 or GW_GPU_BYTES */
            uint8_t gpu[GW_GPU_BYTES];
            uint32_t nodes;
        } job_create;
        struct {
            uint32_t rank, world, id_bytes;
            uint8_t id[GW_ID_MAX];
            uint32_t device, gpu_bytes;
            uint8_t gpu[GW_GPU_BYTES];
        } join;
        struct {
            uint32_t generation, id_bytes;
            uint8_t id[GW_ID_MAX];
            uint32_t device;
        } joined;
        struct {
            uint32_t count; /* 1..GW_RANKS_MAX */
            const uint32_t *ranks;
        } group_new;
        struct {
            uint32_t group;
        } group_made;
        struct {
            uint32_t count; /* 1..GW_RANKS_MAX */
            const uint32_t *ranks;
            uint32_t shard_ranks;
        } param_group;
        struct {
            uint32_t first, total, count; /* count <= GW_PARAMS_PER_FRAME */
            struct wire_param *params;    /* inside the message's allocation */
        } reg;
        struct wire_seal seal;
        struct {
            uint8_t layout_hash[32];
            uint64_t layout_bytes, board_bytes, steps;
        } sealed;
        struct {
            uint32_t kind, index;
        } arena_get;
        struct {
            uint64_t bytes, mapped_bytes;
            uint32_t device; /* enum gw_device_kind */
        } arena;
        struct {
            uint64_t bytes;
            uint32_t stands_in; /* enum wire_stands_in */
        } buffer_new;
        struct {
            uint32_t buffer;
            uint64_t bytes, mapped_bytes;
        } buffer_made;
        struct {
            uint32_t buffer;
        } buffer_free;
        struct {
            uint8_t handle[GW_IPC_HANDLE_BYTES];
            uint64_t allocation_bytes, offset, bytes;
        } buffer_import;
        struct {
            uint32_t timeline;   /* < GW_TIMELINES_MAX */
            size_t handle_bytes; /* GW_TIMELINE_EVENTS handles, or none: 0 */
            const uint8_t *handles;
        } timeline_events;
        struct wire_after after;
        struct wire_op op;
        struct {
            uint32_t count; /* 1..GW_READY_PER_FRAME */
            struct wire_ready_entry *entries;
        } ready;
        struct {
            uint32_t bucket, ordered;
        } acquire;
        struct {
            uint32_t slot, launched;
        } acquired;
        struct {
            uint32_t unit;
            struct wire_after after;
        } unit;
        struct {
            uint32_t write, param;
            uint64_t offset, count;
        } param_io;
        struct {
            size_t bytes;
            const uint8_t *params; /* a bit for each, lowest first */
        } freeze;
        struct {
            char name[GW_LABEL_MAX + 1];
            uint32_t dtype;
        } array_get;
        struct {
            uint32_t index;
            uint64_t numel;
        } array_made;
        struct {
            uint64_t steps;
            struct gw_counters kinds[GW_KINDS];
            uint64_t memory_bytes[GW_MEMORIES];
            uint64_t prefetch_hits, prefetch_misses, prefetch_drops;
            uint64_t gathered_bytes_now, gathered_bytes_max, overflow_slots;
            uint64_t comm_ns, comm_alone_ns;
        } stats;
        struct {
            char version[32];
            char socket[128];
            char devices[GW_TEXT_MAX + 1];
            char placement[GW_TEXT_MAX + 1];
            uint32_t pid, draining, jobs;
            uint64_t uptime_ns;
        } status;
        struct {
            uint32_t first;
        } jobs_get;
        struct {
            uint32_t total, count; /* count <= WIRE_JOBS_PER_FRAME */
            struct wire_job *jobs;
        } jobs;
        struct {
            uint32_t engines;
        } stop;
        struct {
            uint32_t channel_version, pid;
            uint8_t tag[GW_TAG_BYTES];
        } engine_ready;
        struct {
            size_t hello_bytes;
            const uint8_t *hello;
        } handover;
        struct {
            char gpu[GW_LABEL_MAX + 1];
        } lease_get;
        struct {
            int32_t code;
            char gpu[GW_LABEL_MAX + 1];
            char text[GW_TEXT_MAX + 1];
            uint32_t known;
        } lease;
        struct {
            uint32_t version, uid;
            char name[GW_LABEL_MAX + 1];
            uint64_t sent_ns;
        } star_hello;
        struct {
            uint32_t node, world, device;
            uint64_t sent_ns, now_ns;
            uint64_t join_timeout_ns, op_timeout_ns, link_bytes_per_s, stall_report_ns;
            int64_t linger_ns;
            char name[GW_LABEL_MAX + 1];
        } star_welcome;
        struct {
            uint32_t node;
            char name[GW_LABEL_MAX + 1];
            size_t address_bytes; /* 0..GW_FABRIC_ADDRESS_MAX */
            const uint8_t *address;
        } star_node;
        struct {
            uint32_t kind, node, rank, request, world, index, packet;
            int32_t code;
            uint64_t now_ns, cookie, size_bytes, op, started_ns, done_ns;
            char text[GW_TEXT_MAX + 1];
        } star_event;
        struct {
            uint32_t count; /* 1..GW_STAR_DONE_MAX */
            uint64_t ops[GW_STAR_DONE_MAX];
        } star_done;
        struct {
            uint32_t rank, request, read;
            uint64_t offset;
            size_t value_bytes; /* 1..GW_STAR_DATA_MAX */
            const uint8_t *values;
        } star_data;
    } u;
};

/* "SEAL", or "?" */
const char *wire_type_name(uint16_t type);

/* Packet (header included) -> message. *ret_msg is one allocation: wire_free. On GW_E_UNIMPLEMENTED
 * and on GW_E_PROTOCOL with a sound header, *ret_request is set too (else 0). */
int wire_decode(const uint8_t *packet, size_t packet_bytes, struct wire_msg **ret_msg,
                uint32_t *ret_request);
/* The same with another bound on what protobuf-c may allocate on the way (tests). */
int wire_decode_within(const uint8_t *packet, size_t packet_bytes, size_t max_bytes,
                       struct wire_msg **ret_msg, uint32_t *ret_request);
/* Message -> packet in `buffer` (GW_FRAME_MAX is always enough for what the bounds allow, else
 * GW_E_LIMIT). Pointers inside `msg` belong to the caller. */
int wire_encode(const struct wire_msg *msg, uint8_t *buffer, size_t buffer_bytes,
                size_t *ret_bytes);
struct wire_msg *wire_free(struct wire_msg *msg);

#endif
