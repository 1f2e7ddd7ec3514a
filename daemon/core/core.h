/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core: all decisions of one job, without I/O. It is fed (now, event) and asked for effects; it
 * never calls out, so a run can be replayed from its events. One thread at a time.
 *
 * Work is described, not done: an op names inputs, outputs, what it waits for (tokens) and what it
 * raises (signals). The engine hands ops to device streams in the order of the effects; streams run
 * in order; nothing here waits for an op to finish before the next is launched. Completion comes
 * back as an event, and decides only when memory may be reused by new clients, what is reported,
 * and when calls between steps go on (PARAM_IO, MEASURE); never what is launched in which order.
 *
 * "In order" is of ops of one stream that have ranks in common. What orders ops beyond that is
 * said: wait_ops, and tokens, which are the clients' own timelines: a client on a GPU declares what
 * its streams will have done when they raise the token. See zero_internal.h for what waits for
 * which declaration, and zero.h for why a rank's declarations are let go in the order of its
 * calls.
 */
#ifndef GW_CORE_CORE_H
#define GW_CORE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/ranks.h"
#include "daemon/core/layout.h"
#include "proto/shm.h"
#include "proto/wire.h"

struct core;

struct core_config {
    uint32_t world;
    uint64_t join_timeout_ns;
    uint64_t op_timeout_ns;
    uint64_t stall_report_ns; /* first report; then at doubled times; default 10 s */
    uint64_t drop_edges;      /* test builds: bit per row of edges.def; else 0 */
    uint32_t device;          /* enum gw_device_kind: where the job's bulk memory lies */
    bool spans;               /* ranks are on several nodes */
};

/* ---- references, tokens, ops ----------------------------------------------------------------- */

/* A place in a job's memory. */
struct core_ref {
    uint8_t kind;   /* enum gw_arena_kind; GW_ARENA_NONE reads as zeros */
    int16_t rank;   /* owner, or -1: of the job */
    uint32_t index; /* where several exist */
    uint64_t offset_bytes;
};

/* Something a stream waits for: a client's own timeline. (Order between streams: wait_ops.) */
struct core_token {
    uint32_t rank;
    uint32_t index; /* in the client page */
    uint64_t value;
};

/* Raise `timeline` (GW_TIMELINE) of a rank's pages to value. */
struct core_signal {
    uint32_t rank;
    uint32_t timeline;
    uint64_t value;
    uint64_t offset; /* into slot.offset (unit slots) */
};

enum core_stream {
    CORE_STREAM_REDUCE,  /* one for the job: reductions and collectives */
    CORE_STREAM_CONTROL, /* one for the job: verdict, windows of updates */
    CORE_STREAM_GATHER,  /* one per rank (op.rank): its gathers, and the ends of its updates */
};

enum core_op_kind {
    CORE_OP_REDUCE_SCATTER, /* out[r][0..numel) = (acc +) scale * sum_q in[q][slice of r] */
    CORE_OP_ALL_REDUCE,     /* out[r][0..world*numel) (acc +)= scale * sum_q in[q], every r.
                             * `shards`: out as of a REDUCE_SCATTER, and every in[q] that there is
                             * becomes all of them, one behind the other, rounded to in_dtype (with
                             * order fabric: the bare sum). Nobody reads it */
    CORE_OP_ALL_GATHER,     /* collectives layer: out[r][q*numel ..] = in[q][0..numel), every r */
    CORE_OP_GATHER,         /* ZeRO: `bucket_count` buckets of all owners, for op.rank: the first to
                             * out[0], others behind it as their core_gathered are */
    CORE_OP_FILL,           /* in[0], as a GATHER has left it there, to the secondary shards of the
                             * members: of each bucket, the i-th of `world` slices to member i's */
    CORE_OP_BROADCAST,      /* out[r] = in[0], every r but op.rank (the root) */
    CORE_OP_BARRIER,        /* nothing but what it waits for and signals; on any stream, for any
                             * of the ranks (members), also without signals */
    CORE_OP_LOCAL_ADD,      /* out[0] = in[0] or out[0] + in[0], `numel`; no communication */
    CORE_OP_ZERO,           /* out[0][0..numel) = 0 */
    CORE_OP_CAST,           /* op.rank's masters of all its buckets of out_dtype, rounded, to its
                             * shards; no communication */
    CORE_OP_VERDICT,        /* norm and flags of all buckets -> verdict of every rank's board */
};

/* Arrays belong to the core and are valid until the next core_next_effect or core_handle. */
struct core_op {
    uint64_t id; /* from 1, in launch order */
    uint8_t kind;
    uint8_t stream;
    uint8_t traffic;    /* enum gw_kind under which the fabric counts it; GW_KINDS: not counted */
    uint8_t accumulate; /* 1: add to out, 0: overwrite */
    uint8_t measure;    /* 1: a pass of gw_measure_sync: not counted */
    uint8_t partials;   /* 1: leave squares and non-finite counts of `bucket` for the verdict */
    uint8_t in_place_skip; /* GATHER: the rank's own slice is there already */
    uint8_t secondary;     /* GATHER: from the secondary shards of the members */
    uint8_t order;         /* enum gw_order, of sums over ranks */
    uint8_t shards;        /* ALL_REDUCE: see there */
    uint8_t in_dtype, out_dtype; /* enum gw_dtype of what in and out refer to. Sums are made in fp32
                            * and rounded once to out_dtype; what is added to out with `accumulate`
                            * is read from it. GATHER: each bucket has its own */
    uint8_t round_dtype;   /* sums over ranks: each input is rounded to it first; FP32: not */
    uint8_t norm;          /* enum gw_norm: what partials and verdict are of */
    uint32_t rank;      /* GATHER, FILL, LOCAL_ADD, ZERO, CAST: for whom, or whose in[0] is;
                         * BROADCAST: the root */
    uint32_t world;     /* members: entries of in and out; GATHER: owners of the slices, in order */
    const uint32_t *members; /* their ranks, in group order */
    float scale;
    uint32_t bucket, bucket_count; /* GATHER, FILL: all of one group */
    uint64_t version; /* GATHER: of the parameters: rises with every update and write */
    uint32_t slice_first, slices;  /* partials: member i leaves those of slice slice_first + i of
                                    * the `slices` that the bucket's result has in all */
    uint64_t numel; /* elements of one member's slice (padded); else as said at the kind */
    uint64_t total_numel; /* ALL_REDUCE of the collectives layer: all elements, which world does not
                           * always divide; slices are then numel = ceil(total / world) long, the
                           * last ones shorter or empty. 0: world * numel */
    uint64_t payload_bytes, padding_bytes;
    uint64_t ready_ns; /* when the last rank had submitted */
    const uint64_t *wait_ops; /* ops of other streams to wait for */
    uint32_t wait_op_count;
    const struct core_ref *in, *out;
    const struct core_token *waits;
    uint32_t wait_count;
    const struct core_signal *signals;
    uint32_t signal_count;
    /* VERDICT */
    uint64_t step;
    double clip_norm;
    uint64_t digest;
    uint32_t used_params;
    const uint8_t *used_bits; /* ceil(params/8) bytes */
    const uint8_t *used_buckets; /* 1 per bucket that holds a gradient this step; its partials are
                                  * those its last op left */
};

/* ---- events ---------------------------------------------------------------------------------- */

enum core_event_kind {
    CORE_EV_JOIN,       /* rank, request, world: the id was right. Reply JOINED or an error */
    CORE_EV_LEAVE,      /* rank: on purpose */
    CORE_EV_LOST,       /* rank: process or connection is gone; text: how. All that it had sent was
                         * handed in before (of JOIN: all that the rank's old client had sent): only
                         * its messages tell whether it was writing its shard. code < 0: its memory
                         * is lost as well */
    CORE_EV_REQUEST,    /* rank, msg: a decoded client message (REGISTER, SEAL, READY, ...) */
    CORE_EV_HEARD,      /* all that clients had sent before those PARAM_IO and MEASURE came that
                         * core_unheard counts was handed in: they are judged now */
    CORE_EV_BUILT,      /* answer to CORE_EFF_BUILD: code, text */
    CORE_EV_OVERFLOW,   /* answer to CORE_EFF_OVERFLOW: rank, code */
    CORE_EV_BUFFER,     /* a registered buffer was made: rank, buffer id in `index`, size_bytes */
    CORE_EV_OP_DONE,    /* op, started_ns, done_ns */
    CORE_EV_TICK,       /* time passed: core_deadline_ns */
    CORE_EV_DEVICE_LOST, /* code, text: a device or fabric failed; the job cannot go on */
};

struct core_event {
    enum core_event_kind kind;
    uint32_t rank;
    uint32_t request;
    uint32_t world;
    uint32_t index;
    int code;
    uint64_t size_bytes;
    uint64_t op, started_ns, done_ns;
    const struct wire_msg *msg; /* REQUEST; caller keeps it */
    const char *text;
};

/* ---- effects --------------------------------------------------------------------------------- */

enum core_effect_kind {
    CORE_EFF_REPLY,    /* rank, reply: send it (the engine adds id, hash, descriptors). index 1: the
                        * answer to a JOIN, for the connection that asked (the rank may be taken) */
    CORE_EFF_LAUNCH,   /* op */
    CORE_EFF_SIGNAL,   /* signal, once after_op is done (0: now). A unit's offset, here or with an
                        * op, is settled when the effect is taken: on GPUs it is told at once
                        * (slot.placed) */
    CORE_EFF_BUILD,    /* all ranks sealed alike, no op is in flight: make arenas
                        * (core_arena_bytes), boards; keep what exists with the right size (re-join)
                        * but zero GRADS, ACC, RING, POOL */
    CORE_EFF_OVERFLOW, /* rank: make arena OVERFLOW `index` of max_bucket_bytes */
    CORE_EFF_FAIL,     /* code, rank (cause, or UINT32_MAX), text: tell every rank; job is broken */
    CORE_EFF_DROP,     /* rank, code, text: this client broke the protocol: close it */
    CORE_EFF_PARAM_IO, /* rank, io: copy between staging and parameters now, then send `reply` */
    CORE_EFF_REPORT,   /* text: a stall, for log and status; "" : over */
    CORE_EFF_END,      /* the job cannot re-form any more (join deadline passed): end the engine */
};

struct core_effect {
    enum core_effect_kind kind;
    uint32_t rank, index;
    int code;
    uint64_t after_op;
    struct core_signal signal;
    struct core_op op;
    struct {
        uint32_t write, param;
        uint64_t offset, count; /* elements, inside the parameter; count * 4 <= gw_staging_bytes */
    } io;
    struct wire_msg reply; /* type, request and u set; GW_E_* replies are WIRE_DONE */
    char text[GW_TEXT_MAX + 1];
};

int core_new(const struct core_config *config, struct core **ret_core);
struct core *core_free(struct core *core);

/* 0, or GW_E_NOMEM / GW_E_INTERNAL: the engine must end. Everything a client does wrong is an
 * effect, never an error here. */
int core_handle(struct core *core, uint64_t now_ns, const struct core_event *event);
/* Takes the next effect. False: none. */
bool core_next_effect(struct core *core, struct core_effect *ret_effect);
/* When core_handle(TICK) is due at the latest; UINT64_MAX: never. */
uint64_t core_deadline_ns(const struct core *core);

/* PARAM_IO and MEASURE are refused while some rank is at work on a step, and ranks may order their
 * calls behind our back: what one had said before another asked may still be unread. So they wait
 * for CORE_EV_HEARD; 0: none does. */
uint32_t core_unheard(const struct core *core);

/* ---- hints for clients ----------------------------------------------------------------------- */

/* Stage 3 on the host: fetch `value` of the unit, if the rank declares it now, is a hit at `offset`
 * (see zero_grant.c for what else the client must know). value 0: none is. */
struct core_grant {
    uint32_t rank, unit;
    uint64_t value, offset, since;
};

/* Fetches and step ends of the rank that have been served, and from which one of them on the engine
 * should hear of it at once, because there is more to gather ahead. */
struct core_progress {
    uint64_t served, ring_at;
};

/* After the effects: what has changed, grants first. Nothing depends on their being asked for. */
bool core_next_grant(struct core *core, struct core_grant *ret_grant);
bool core_progress(struct core *core, uint32_t rank, struct core_progress *ret_progress);

/* ---- what the engine may ask ----------------------------------------------------------------- */

enum gw_job_state core_state(const struct core *core);
/* GW_JOB_LINGERING, and no rank was lost: all have left in good order. */
bool core_over(const struct core *core);
uint32_t core_generation(const struct core *core);
const struct ranks *core_present(const struct core *core); /* as it is until the next event */
uint64_t core_steps(const struct core *core);
const struct layout *core_layout(const struct core *core);      /* NULL before BUILD */
const struct wire_seal *core_options(const struct core *core);  /* defaults filled in */
/* Bytes of a rank's arena under the sealed layout; 0: it has none. rank -1: of the job. VERDICT: on
 * GPUs only, one per rank. */
uint64_t core_arena_bytes(const struct core *core, enum gw_arena_kind kind, int rank);
/* Where rank r's own slice of bucket b's parameters lies (source of gathers), and its master (fp32;
 * the same place where the parameters are fp32). kind NONE: it is not in the bucket's group. */
struct core_ref core_param_slice(const struct core *core, uint32_t bucket, uint32_t rank);
struct core_ref core_master_slice(const struct core *core, uint32_t bucket, uint32_t rank);
/* Rank r's secondary shard of bucket b: of the slices of its block, its own. */
struct core_ref core_secondary_slice(const struct core *core, uint32_t bucket, uint32_t rank);
/* Where element `offset` of a parameter lies in rank r's memory: as gathered or full (dtype of the
 * parameter), or its master. kind NONE: r holds none of it there. *ret_count: for how many elements
 * from there on the answer holds, contiguously. SHARED_PARAMS: told for every rank of the group. */
struct core_ref core_param_ref(const struct core *core, uint32_t param, uint64_t offset,
                               uint32_t rank, uint64_t *ret_count);
struct core_ref core_master_ref(const struct core *core, uint32_t param, uint64_t offset,
                                uint32_t rank, uint64_t *ret_count);
/* Stage 3 private: where bucket b begins behind the start of its fetch unit as r gathers it. */
uint64_t core_gathered(const struct core *core, uint32_t bucket, uint32_t rank);
/* Steps, prefetch, overflow and comm times of a rank into msg->u.stats (traffic is counted by the
 * fabric, memory by the engine's arenas). */
void core_stats(const struct core *core, uint32_t rank, struct wire_msg *msg);

#endif
