/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every structure that lies in memory shared between processes. WIRE.md draws them.
 *
 *   client page   client writes, engine reads   who waits, the client's own timelines; behind it
 *                                               the submission ring (submit.h)
 *   engine page   engine writes, client reads   wake word, error, slots of collective ops
 *   job page      engine writes, all ranks read   jobs in host memory: wake word of what all wait
 *                                               for
 *   board         engine writes, client reads   per sealed layout: step, update, bucket, unit
 *                                               slots, verdict, used-parameter bits
 *   wait pages    engine and client write       jobs on GPUs: the slots' values once more, for
 *                                               streams of the client to wait on
 *   stats page    engine writes, gradwired reads   one per engine
 *
 * A reader treats the content as hostile: copy, then check. Slots: the writer stores the time
 * stamps and offset first, then `value` with release; a reader loads `value` with acquire, reads
 * the rest, and trusts it only if `value` is still the same. All times are CLOCK_MONOTONIC ns.
 */
#ifndef GW_PROTO_SHM_H
#define GW_PROTO_SHM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define GW_SHM_MAGIC 0x31485347u /* "GSH1" */
#define GW_SHM_VERSION 1u
#define GW_PAGE_BYTES 4096u

enum gw_shm_kind {
    GW_SHM_CLIENT = 1,
    GW_SHM_ENGINE = 2,
    GW_SHM_BOARD = 3,
    GW_SHM_STATS = 4,
    GW_SHM_WAITS = 5,
    GW_SHM_JOB = 6,
};

struct gw_shm_header {
    uint32_t magic;
    uint32_t version;
    uint32_t kind; /* enum gw_shm_kind */
    uint32_t size; /* bytes of the whole mapping's used part */
};

/* One timeline with the time stamps of the op that last raised it; a cache line. */
struct gw_shm_slot {
    _Atomic uint64_t value;
    uint64_t ready_ns;   /* last rank had submitted */
    uint64_t started_ns;
    uint64_t done_ns;
    uint64_t offset; /* unit slots, stage 3 private: bytes into the gather pool arena */
    /* Unit slots of jobs on GPUs: fetch `placed` of the unit will be (or is) at placed_offset.
     * Stored by the engine's loop when it launches the gather, offset first, so that a client can
     * launch work on it behind a stream wait; a fetch that is not placed yet waits for other ranks'
     * calls or for room. */
    _Atomic uint64_t placed;
    uint64_t placed_offset;
    uint64_t since; /* ... on the host: see gw_shm_board */
};

/* Sleepers name what they wait for, coarsely: each slot has one of these lines, the same in every
 * process, for pages lie at multiples of their size. */
#define GW_WAKE_LINES 32u
#define GW_WAKE_ALL UINT32_MAX
static inline uint32_t gw_wake_line(const struct gw_shm_slot *slot)
{
    return (uint32_t)((uintptr_t)slot / sizeof(*slot) % GW_WAKE_LINES);
}

struct gw_client_page {
    struct gw_shm_header header;
    uint32_t reserved[12];
    _Atomic uint64_t timeline[GW_TIMELINES_MAX];
    _Atomic uint64_t put; /* submission ring: bytes ever written */
    uint64_t pad[7];
    /* Threads that sleep on the engine page's wake word until some slot of the line rises. */
    _Atomic uint32_t waiting[GW_WAKE_LINES];
    /* ... on the job page's. */
    _Atomic uint32_t together[GW_WAKE_LINES];
};
#define GW_SUBMIT_AT GW_PAGE_BYTES /* of the ring, from the page's start */
#define GW_SUBMIT_BYTES 131072u
#define GW_CLIENT_PAGE_BYTES (GW_SUBMIT_AT + GW_SUBMIT_BYTES)

struct gw_shm_error { /* written once, before engine_page.error */
    uint32_t rank;    /* that caused it, or UINT32_MAX */
    uint32_t reserved;
    char text[GW_TEXT_MAX + 1];
};

struct gw_engine_page {
    struct gw_shm_header header;
    _Atomic uint32_t wake;  /* futex word, +1 at each completion or failure */
    _Atomic int32_t error;  /* 0, or the GW_E_* that ended the job */
    _Atomic uint64_t taken; /* submission ring: bytes ever read */
    _Atomic uint32_t sleeps; /* odd: the engine sleeps, or is about to, and must be rung for */
    uint32_t reserved[7];
    struct gw_shm_error failure;
    uint8_t pad[8];
    struct gw_shm_slot op[GW_OPS_IN_FLIGHT]; /* op n raises slot n % 64 to n; n from 1 */
};

/* What ends for all ranks at once wakes them with one call. A thread sleeps on this word or on its
 * engine page's, as it likes; both rise. */
struct gw_job_page {
    struct gw_shm_header header;
    _Atomic uint32_t wake; /* futex word, +1 at completions and failures of any rank */
};

struct gw_shm_verdict { /* valid for step == board.step.value while unchanged */
    uint64_t step;
    double norm;
    float clip_factor;
    uint32_t nonfinite;
    uint32_t first_bucket;
    uint32_t used_params;
    uint64_t digest; /* of the step's ops; equal on all ranks */
};

/*
 * Header, then `buckets` slots, then `units` slots, then ceil(params/8) bytes of used bits.
 *
 * Stage 3 on the host: fetch `placed` of a unit is a hit at placed_offset, if declared now, unless
 * what was declared meanwhile ends the residency: a fetch that was no hit, or the step's end, after
 * `served`; or, if some unit of the same fetch unit was fetched by a declaration after `since`, a
 * fetch of another one after `served`. Numbers are of the rank's fetches and step ends, from 1 in
 * each generation. Stored: placed = 0, placed_offset, since, placed; and then `served`; read the
 * other way round, between two looks at placed. A client that finds a hit need not wait, nor ring
 * the doorbell before declaration `ring_at`, where the engine has more to gather ahead.
 */
struct gw_shm_board {
    struct gw_shm_header header;
    uint32_t buckets;
    uint32_t units;
    uint32_t params;
    uint32_t reserved;
    _Atomic uint64_t served;
    _Atomic uint64_t ring_at;
    uint64_t more_reserved[2];
    struct gw_shm_slot step;   /* value: steps whose verdict is in */
    struct gw_shm_slot update; /* value: step whose update, begun by this rank, may write: every
                                * rank has ended it */
    struct gw_shm_verdict verdict;
    uint8_t pad[24];
    struct gw_shm_slot slots[];
};

/*
 * Jobs on GPUs only. A stream of the client that waited on a slot could never be freed from it: the
 * client reads slots only, and an engine that is killed raises nothing any more. So streams wait on
 * these words, which both sides write: the engine stores slot.value here too, after the slot's;
 * whoever ends the job stores GW_TIMELINE_END to all (the engine when the job fails, after its GPUs
 * have stopped signalling; the client when it notices a failure or closes; the engine's guard
 * process when the engine dies). The engine never reads them: a client that writes nonsense here
 * deceives its own streams only.
 *   with JOINED  the words of op[]: word[n % 64]
 *   with SEALED  the board's: step, update, buckets, units
 */
struct gw_wait_page {
    struct gw_shm_header header;
    uint32_t count; /* words */
    uint32_t reserved[11];
    _Atomic uint64_t word[];
};
#define GW_WAIT_STEP 0u
#define GW_WAIT_UPDATE 1u
#define GW_WAIT_BUCKETS 2u /* then the units */
#define GW_WAIT_BYTES(words) (sizeof(struct gw_wait_page) + (size_t)(words) * sizeof(uint64_t))

enum gw_job_state {
    GW_JOB_FORMING = 1,
    GW_JOB_SEALED = 2,
    GW_JOB_RUNNING = 3,
    GW_JOB_BROKEN = 4,
    GW_JOB_LINGERING = 5,
};

/* Written under a sequence lock: odd while being written. */
struct gw_stats_page {
    struct gw_shm_header header;
    _Atomic uint32_t sequence;
    uint32_t state; /* enum gw_job_state */
    uint32_t world;
    uint32_t ranks_present;
    uint32_t stage; /* UINT32_MAX before the seal */
    uint32_t generation;
    uint64_t steps;
    uint64_t started_ns;
    uint64_t memory_bytes;   /* of all arenas */
    uint64_t calls[5];       /* by enum gw_kind, rank 0's; where it is not, of the first that is */
    uint64_t payload_bytes[5];
    uint64_t moved_bytes[5];
    char name[GW_LABEL_MAX + 1];
    char wait[GW_TEXT_MAX + 1]; /* what the job waits for, if it stalls; else "" */
    char device[16];            /* "host" */
    char fabric[32];            /* and its order of sums: "local exact" */
    /* Zeros up to the page's end, for older engines: what is added stands here. */
    uint64_t cross_node_bytes[5]; /* by enum gw_kind: sent to other nodes by this one */
    uint64_t idle_ns, ends_ns;    /* since when no client is there, and when the engine ends if none
                                   * comes (CLOCK_MONOTONIC); 0: some are, or it ends now */
    uint32_t over, reserved;      /* over 1: all ranks have left in good order, none was lost */
    char ordering[16];            /* of GPUs and other processes: "words", "events"; host: "" */
    char workers[16]; /* priority of threads that sum and copy in host memory: "equal", "nice",
                       * "idle"; GPUs: "" */
    char placement[128]; /* of threads and memory on NUMA nodes; "": they are not placed */
};

_Static_assert(sizeof(struct gw_shm_slot) == 64, "slot is a cache line");
_Static_assert(sizeof(struct gw_client_page) <= GW_PAGE_BYTES, "client page fits");
_Static_assert(offsetof(struct gw_client_page, put) % 64 == 0, "a cache line of its own");
_Static_assert(sizeof(struct gw_job_page) <= GW_PAGE_BYTES, "job page fits");
_Static_assert(sizeof(struct gw_shm_verdict) == 40, "verdict");
_Static_assert(offsetof(struct gw_engine_page, op) % 64 == 0, "slots are aligned");
_Static_assert(offsetof(struct gw_shm_board, slots) == 256, "slots are aligned");
_Static_assert(offsetof(struct gw_wait_page, word) == 64, "words follow the header's line");
_Static_assert(sizeof(struct gw_stats_page) <= GW_PAGE_BYTES, "stats page fits");

#define GW_ENGINE_PAGE_BYTES 8192u
_Static_assert(sizeof(struct gw_engine_page) <= GW_ENGINE_PAGE_BYTES, "engine page fits");

/* Token timelines: class in the upper 8 bits, index in the lower 24. 0 is "always reached". */
enum gw_timeline_class {
    GW_TL_NONE = 0,
    GW_TL_OP = 1,     /* engine page, op slot */
    GW_TL_BUCKET = 2, /* board; value: the rank's contributions to the bucket that are consumed */
    GW_TL_UNIT = 3,   /* board, registered unit; value: the rank's fetches served */
    GW_TL_STEP = 4,   /* board.step */
    GW_TL_UPDATE = 5, /* board.update */
    GW_TL_CLIENT = 6, /* client page */
};
/* What a word is raised to when nothing may wait for it any more. Not UINT64_MAX: streams compare
 * cyclically, (int64_t)(word - value) >= 0, and would wait for ever. */
#define GW_TIMELINE_END ((uint64_t)INT64_MAX)
#define GW_TIMELINE(cls, index) (((uint32_t)(cls) << 24) | (uint32_t)(index))
#define GW_TIMELINE_CLASS(t) ((t) >> 24)
#define GW_TIMELINE_INDEX(t) ((t)&0xffffffu)

#endif
