/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of the ZeRO layer, shared by daemon/core/zero*.c and nobody else. One thread (the core's).
 *
 *   zero.c          set-up, events, backlog of ranks that run ahead, the pump
 *   zero_group.c    groups of ranks: their buckets, launch orders, gates; parts of gathers
 *   zero_place.c    where things lie, as references
 *   zero_grad.c     ledger: pieces -> contributions, micro-step and step end
 *   zero_launch.c   local adds, zero fills, signals that give buffers back
 *   zero_reduce.c   reductions in launch order; hybrid sharding's second half
 *   zero_slot.c     ring slots: who holds them, ACQUIRE, overflow
 *   zero_step.c     verdict, update windows, commits, gathers that follow a version
 *   zero_fetch.c    fetch and release in all stages
 *   zero_secondary.c  secondary shards: which version a block of ranks has
 *   zero_measure.c  MEASURE
 *   zero_freeze.c   FREEZE: parameters without gradients
 *   zero_io.c       PARAM_IO
 *   zero_ops.c      ops: making them, what is in flight, times
 *   zero_tokens.c   what ops wait for: tokens of the ranks' declarations
 *   zero_report.c   oldest wait, who is needed, statistics
 *
 * Steps count from 1. `step` is the number of steps that every rank has ended; the ledger holds
 * step + 1. A rank that has ended it already is ahead: its next gradients wait in its backlog.
 * A group's `gate` is the number of steps that all its members have resolved (committed or
 * skipped): its parameters of step gate + 1 may be gathered, and reductions of its buckets in step
 * gate + 1 may write to shards. Groups launch what they launch in orders of their own: none waits
 * for another's members. Common to all are a step's end, with its verdict, and update windows.
 *
 * All this counts declarations. What a rank declares its streams may do later; so a declaration
 * carries tokens, and the ops that it lets go wait for them, on their streams (zero_tokens.c). An
 * op never waits for a later declaration than it needs: a client's stream may wait for that very op
 * first, and they would wait for each other. Nor is it launched before what the stream waits for
 * first (zero.h): one queue may hold both.
 *
 * Ops of one stream run in order wherever they have a rank in common; others may overtake each
 * other. So who needs all that the REDUCE stream did waits for the last op of each rank there, and
 * what an op there waits for beyond it is waited for once per rank.
 *
 * Hybrid sharding (group->shard_ranks < count): a contribution is reduced within each run of
 * shard_ranks members; once no more comes, each slice is summed between the runs (zero_reduce.c).
 */
#ifndef GW_CORE_ZERO_INTERNAL_H
#define GW_CORE_ZERO_INTERNAL_H

#include "daemon/base/intervals.h"
#include "daemon/base/ranks.h"
#include "daemon/base/text.h"
#include "daemon/core/edges.h"
#include "daemon/core/prefetch.h"
#include "daemon/core/zero.h"
#include "proto/place.h"

#define ZERO_TOKENS 8u       /* different timelines of one contribution */
#define ZERO_BACKLOG 4096u   /* events of a rank that is ahead; and its fetches in waiting */
#define ZERO_ACQUIRES 64u    /* ACQUIRE requests of a rank in waiting */
#define ZERO_COMM_INTERVALS 256u
#define ZERO_PASSES 3u       /* of a measurement */

/* Bits of a piece, per rank. */
enum {
    PIECE_READY = 1, /* in this micro-step */
    PIECE_FINAL = 2,
    PIECE_EVER = 4, /* in this step */
};

/* How a rank fills a bucket under accumulate=local in this step. */
enum { STYLE_NONE, STYLE_REPLACE, STYLE_RUNNING };

/* One rank's view of one bucket. Counters without "cumulative" start from 0 in each step. */
struct zero_entry {
    uint32_t left;     /* pieces outstanding in this micro-step */
    uint32_t finals;   /* pieces that were final */
    uint32_t closed;   /* contributions declared */
    uint32_t slot;     /* ring slot of the open contribution, or GW_NO_SLOT */
    bool filled;       /* the open contribution has a piece */
    bool closed_now;   /* declared in this micro-step */
    bool done;         /* no contribution any more in this step */
    bool ever;         /* some piece in this step */
    bool acc_valid;    /* ACC holds this step's sum */
    bool overflow;     /* an overflow slot was granted for the open contribution */
    uint8_t style;
    uint64_t consumed; /* cumulative: value of the BUCKET word once all launched ops are done */
    uint64_t last_op;  /* the last op that touches the rank's contribution */
    uint64_t gather_op; /* stages 1-2: last gather of the bucket for the rank */
};

/* A group of the layout. Without buckets it is idle. */
struct zero_group {
    const uint32_t *ranks; /* in its order */
    uint32_t count;
    uint32_t shard_ranks; /* owners of one copy of the shards */
    struct ranks members;
    float scale;
    bool rounds; /* some of its parameters are not fp32: their masters are rounded at a commit */
    uint32_t buckets;
    uint32_t *order, *recorded; /* bucket ids: launch order; its first member's in this step */
    uint32_t recorded_count;
    uint32_t pos_m, pos_i; /* next in launch order */
    uint32_t finals;       /* hybrid: buckets of the order that need no more for this step */
    uint32_t micro_max;    /* of all members, in the ledger's step */
    uint64_t digest;
    uint64_t gate;
    uint64_t committed; /* highest step that some member has committed */
    uint64_t commits;   /* of all members, ever */
    uint64_t gathered;  /* highest step whose gathers of stages 1-2, or of persistent parameters,
                         * are launched */
    struct ranks fresh; /* members whose persistent parameters are gathered and not written since */
};

/* What one GATHER brings: buckets of one group that follow each other. Stages 1-2: one bucket;
 * stage 3: those of a fetch unit. */
struct zero_part {
    uint32_t first_bucket, buckets;
    uint32_t group;
    uint32_t fetch_unit;
};

/* Contribution m of all ranks to one bucket. */
struct zero_due {
    bool any; /* rank has declared it */
    uint64_t first_ns, ready_ns;
};

struct zero_tokens {
    uint64_t value[ZERO_TOKENS];
    uint8_t timeline[ZERO_TOKENS];
    uint32_t count;
};

struct zero_slot {
    bool held;       /* by a contribution that is not launched yet */
    uint32_t bucket; /* its bucket */
    uint64_t op;     /* the reduction that reads it, while in flight; else 0 */
    bool used;       /* some reduction was launched that reads it */
    bool promised;   /* named in an answer, and not used since */
};

/* A request that is answered when every rank has made it. */
struct zero_ask {
    bool waiting;
    uint32_t request;
    uint64_t since_ns;
};

enum update_state { UPDATE_NONE, UPDATE_PENDING, UPDATE_BEGUN };

/* A message of a rank, kept for later. */
struct zero_late {
    struct zero_late *next;
    uint64_t now_ns;
    uint64_t step; /* fetch queue: the rank's step it belongs to */
    uint64_t behind; /* backlog: collectives of the rank that came before */
    uint16_t type;
    uint32_t unit;
    uint32_t count;
    struct wire_after after;
    struct wire_ready_entry entries[];
};

struct zero_queue {
    struct zero_late *head, *tail;
    uint32_t count;
};

struct zero_acquire {
    uint32_t request, bucket;
    bool ordered; /* a slot whose reduction is launched will do */
};

struct zero_comm { /* communication times of a rank, united per step */
    struct intervals *set[2];
    uint64_t step[2];
    uint64_t total_ns; /* of older steps */
};

struct zero_rank {
    uint64_t ended;    /* steps the rank has ended */
    uint64_t resolved; /* ... and committed or skipped */
    uint64_t ended_ns; /* when it ended the last */
    enum update_state update; /* of step `ended` */
    bool skipped;      /* that update */
    uint64_t update_told; /* value of its board's update word */
    const struct place *place;
    uint64_t groups;       /* with buckets, that it is in: a bit per group */
    uint32_t own_buckets;  /* of these groups */
    uint32_t dtypes;       /* of their parameters: a bit per dtype */
    uint32_t micro;    /* micro-step of the open step, from 0 */
    uint32_t open_buckets;   /* contributions not yet declared in this micro-step */
    uint32_t undone_buckets; /* buckets that are not done */
    uint32_t held;     /* fetches not yet released */
    struct zero_queue backlog, fetches;
    uint64_t taken, handled; /* messages in the rank's order */
    uint64_t ops_submitted, ops_launched; /* its collectives */
    struct zero_acquire *acquires; /* ZERO_ACQUIRES */
    uint32_t acquire_count;
    bool slot_news;        /* a slot became free since the last ACQUIRED */
    bool overflow_pending; /* CORE_EFF_OVERFLOW is out for acquires[0] */
    uint32_t overflows;    /* overflow slots made */
    struct {
        bool waiting;
        uint32_t request;
        uint32_t write, param;
        uint64_t offset, count;
        uint64_t since_ns;
    } io;
    struct zero_ask measure, freeze;
    uint64_t comm_alone_ns;
    struct zero_comm comm;
    /* Tokens of its declarations. By the step's lowest bit: the rank may be one step ahead of the
     * ops that wait. */
    struct wire_after ended_after[2];    /* of STEP_END */
    struct wire_after resolved_after[2]; /* of the commit, or of what skipped the update */
    struct wire_after committed_after;   /* of the last commit */
    uint64_t *released; /* by timeline, of all releases served: the highest values */
    uint64_t *gather_waits; /* what of these its GATHER stream waits for */
    uint64_t *said;     /* of all declarations */
    uint64_t commit_op;      /* done when the last commit's tokens are reached, masters rounded */
    uint64_t cast_op;        /* the last that rounds its masters */
    uint64_t persist_op;     /* its last gather of persistent parameters */
    uint64_t reduce_op;      /* the last op of the REDUCE stream that touches its memory */
    uint64_t shards_waited;  /* REDUCE stream: steps for whose resolving by this rank it waits */
    uint64_t verdict_seen;   /* REDUCE stream: the verdict that its ops with this rank come after */
    bool late_update;        /* it began an update after the generation had broken */
    struct prefetch *plan; /* stage 3 */
    uint64_t served;       /* fetches and step ends, of this generation */
};

enum flight_kind {
    FLIGHT_REDUCE,
    FLIGHT_GATHER,
    FLIGHT_FILL,
    FLIGHT_CAST,
    FLIGHT_OTHER,
    FLIGHT_MEASURE,
};

struct zero_flight { /* an op that was launched and is not known to be done */
    uint64_t id;
    uint64_t step;
    struct ranks ranks; /* that take part */
    uint32_t index; /* MEASURE: which of a pass's ops; GATHER, stage 3: fetch unit */
    uint8_t kind;
};

struct zero_grants;

/* A block's copy of a part. */
struct zero_secondary {
    uint64_t version; /* 0: none */
    uint64_t op;      /* that fills it */
};

struct zero_measure {
    uint32_t pass;      /* 0 .. 2 while running */
    bool running, gathers; /* second half of a pass */
    uint32_t in_flight;
    uint32_t reductions, ops; /* of one pass */
    uint64_t *durations_ns;   /* ZERO_PASSES for each op */
};

struct zero {
    const struct layout *layout;
    struct effects *effects;
    struct wire_seal options;
    uint32_t stage, micro_steps, ring_slots;
    bool local;  /* accumulate=local */
    bool ring;   /* contributions lie in slots of RING and OVERFLOW */
    bool mapped; /* stage 3, gather=mapped */
    uint64_t drop;      /* edges left out */
    uint32_t world;
    struct ranks everyone;
    uint32_t words;     /* of a set in a table's row */
    bool ordered;       /* clients order by streams: what they declare comes to pass later */
    uint32_t buckets, pieces, params, units, fetch_units;
    const struct gw_layout_bucket *bucket_table;
    uint32_t persistent_parts; /* the first ones: gathered to stay */
    uint32_t depth;     /* contributions of a rank kept per bucket and step: micro_steps, or 1 */
    uint32_t token_keys; /* per rank: slots or buckets */
    uint32_t slots;      /* per rank, overflow included */
    uint32_t *members;   /* 0 .. world-1 */
    struct core_fault fault;
    bool no_memory;      /* something could not be remembered: the engine must end */
    uint64_t now_ns;
    const struct wire_after *closing; /* tokens of the message that is being handled */

    struct zero_group *groups;
    uint32_t group_count;
    uint32_t *positions;   /* group x rank: place in the group; UINT32_MAX: none */
    uint32_t *orders[2];   /* bucket ids: what the groups' order and recorded lie in */
    struct zero_part *parts;
    uint32_t part_count;
    uint32_t *unit_parts;  /* stage 3: first part of each fetch unit, and the end */
    uint64_t *gather_commits; /* rank x group: commits that its GATHER stream waits for */
    uint64_t *gather_ops;     /* rank x group: its last gather of the group's parameters, or fill
                               * behind it */
    struct place **places; /* one for each set of groups that some rank is in */
    uint64_t *place_groups;
    uint32_t place_count;

    struct zero_rank *ranks;
    uint64_t *timelines;       /* rank x 3 x timeline: what `ranks` tell apart */
    struct zero_acquire *acquires; /* rank x ZERO_ACQUIRES */
    uint8_t *piece_bits;       /* rank x piece */
    struct zero_entry *entries; /* rank x bucket */
    uint32_t *contributions;   /* rank x bucket x depth: 0 empty; 1 + slot, or 1 */
    struct zero_tokens *tokens; /* rank x key */
    struct zero_slot *slot_table; /* rank x slot */
    struct zero_due *due;      /* bucket x depth */
    uint64_t *due_ranks;       /* bucket x depth: those that have declared it */
    uint64_t *done;            /* bucket: ranks with no contribution any more */
    uint32_t *launched;        /* bucket: contributions launched this step */
    uint8_t *valid;            /* bucket: holds a gradient of this step */
    uint8_t *zeroed;           /* bucket: was set to zero instead */
    uint8_t *used_bits;
    uint32_t used_params;
    uint8_t *frozen;           /* piece: its bits when a step begins */
    uint32_t *frozen_pieces;   /* bucket */
    uint8_t *freeze_wanted;    /* a bit for each parameter: what those who wait ask for */
    uint64_t *unit_fetches;    /* rank x unit, cumulative: served */
    uint32_t *unit_held;       /* rank x unit */
    uint64_t *unit_gather;     /* rank x fetch unit, stage 3: last gather op */
    struct zero_grants *grants; /* stage 3 on the host */
    uint32_t secondary_ranks;  /* of a block; 0: there are no secondary shards */
    struct zero_secondary *secondaries; /* part x block; NULL: none */

    uint64_t step;
    struct ranks declared;     /* that declared anything in the ledger's step */
    uint64_t verdict_op;       /* last verdict */
    uint64_t update_open;      /* steps whose update windows are open to who has begun */
    uint64_t committed;        /* highest step that some rank has committed */
    bool stale;                /* re-attached: what is made from masters may not be whole */
    uint64_t quiet_op;         /* waits for everything that was declared */
    bool loud;                 /* something was declared with tokens since */
    uint64_t writes;           /* PARAM_IOs that changed parameters, ever */
    uint32_t unheard;          /* PARAM_IO and MEASURE that came since CORE_EV_HEARD */

    struct zero_flight *flights; /* by id & (flight_room - 1) */
    uint64_t flight_room;
    uint32_t flight_count;
    uint32_t moves_in_flight; /* ops that read or write parameters */
    struct zero_measure measure;
};

/* ---- tables ---------------------------------------------------------------------------------- */

static inline struct zero_entry *zero_entry(const struct zero *z, uint32_t rank, uint32_t bucket)
{
    return &z->entries[(size_t)rank * z->buckets + bucket];
}

static inline uint8_t *zero_piece_bits(const struct zero *z, uint32_t rank, uint32_t piece)
{
    return &z->piece_bits[(size_t)rank * z->pieces + piece];
}

static inline uint32_t *zero_contribution(const struct zero *z, uint32_t rank, uint32_t bucket,
                                          uint32_t m)
{
    return &z->contributions[((size_t)rank * z->buckets + bucket) * z->depth + m];
}

static inline struct zero_due *zero_due(const struct zero *z, uint32_t bucket, uint32_t m)
{
    return &z->due[(size_t)bucket * z->depth + m];
}

/* Ranks that have declared contribution m; that give none any more. */
static inline uint64_t *zero_due_row(const struct zero *z, uint32_t bucket, uint32_t m)
{
    return &z->due_ranks[((size_t)bucket * z->depth + m) * z->words];
}

static inline uint64_t *zero_done_row(const struct zero *z, uint32_t bucket)
{
    return &z->done[(size_t)bucket * z->words];
}

/* Ranks from which contribution m of the bucket need not be waited for. */
static inline struct ranks zero_arrived(const struct zero *z, uint32_t bucket, uint32_t m)
{
    struct ranks due = ranks_of_row(zero_due_row(z, bucket, m), z->words);
    struct ranks done = ranks_of_row(zero_done_row(z, bucket), z->words);

    return ranks_or(&due, &done);
}

static inline struct zero_tokens *zero_tokens(const struct zero *z, uint32_t rank, uint32_t key)
{
    return &z->tokens[(size_t)rank * z->token_keys + key];
}

static inline struct zero_slot *zero_slot(const struct zero *z, uint32_t rank, uint32_t slot)
{
    return &z->slot_table[(size_t)rank * z->slots + slot];
}

/* The rank is in the group, which has buckets. */
static inline bool zero_in(const struct zero *z, uint32_t group, uint32_t rank)
{
    return z->ranks[rank].groups >> group & 1;
}

static inline struct zero_group *zero_group_of(const struct zero *z, uint32_t bucket)
{
    return &z->groups[z->bucket_table[bucket].group];
}

static inline bool zero_member(const struct zero *z, uint32_t bucket, uint32_t rank)
{
    return zero_in(z, z->bucket_table[bucket].group, rank);
}

static inline uint32_t zero_position(const struct zero *z, uint32_t group, uint32_t rank)
{
    return z->positions[(size_t)group * z->world + rank];
}

static inline uint64_t *zero_gather_op(const struct zero *z, uint32_t rank, uint32_t group)
{
    return &z->gather_ops[(size_t)rank * z->group_count + group];
}

/* Of the group's parameters: rises with every commit and write. From 1. */
static inline uint64_t zero_version(const struct zero *z, const struct zero_group *group)
{
    return group->commits + z->writes + 1;
}

static inline bool zero_hybrid(const struct zero_group *group)
{
    return group->shard_ranks < group->count;
}

/* Contributions are summed by all-reduces. */
static inline bool zero_all_reduces(const struct zero *z)
{
    return z->stage == 0 || z->options.all_reduce;
}

static inline bool zero_edge(const struct zero *z, enum edge edge)
{
    return edge_kept(z->drop, edge);
}

/* ---- zero.c ---------------------------------------------------------------------------------- */

/* Fills in the fault and returns code. */
int zero_fail(struct zero *z, int code, uint32_t rank, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a text with names: adds to *ret_text afterwards. */
int zero_fail_start(struct zero *z, int code, uint32_t rank, struct text *ret_text);
void zero_reply(struct zero *z, uint32_t rank, uint32_t request, int code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
const char *zero_param_name(const struct zero *z, uint32_t param);
const char *zero_unit_name(const struct zero *z, uint32_t unit);
/* Keeps a copy; GW_E_LIMIT or GW_E_NOMEM as a fault of the rank. */
int zero_queue_put(struct zero *z, struct zero_queue *queue, uint32_t rank,
                   const struct zero_late *what, const struct wire_ready_entry *entries);
/* Frees the head. */
void zero_queue_drop(struct zero_queue *queue);
/* Everything that has become possible is launched. */
int zero_pump(struct zero *z);

/* ---- zero_group.c ---------------------------------------------------------------------------- */

int groups_init(struct zero *z);
void groups_free(struct zero *z);
/* Launch orders as in the first step. */
void groups_first_order(struct zero *z);
/* What of a group belongs to the ledger's step. */
void groups_reset_step(struct zero *z);
/* The first member of the rank's run of owners. */
uint32_t groups_run(const struct zero *z, uint32_t group, uint32_t rank);
/* Ranks that have buckets in common with this one, itself included. */
struct ranks groups_neighbours(const struct zero *z, uint32_t rank);
/* Steps that all of the rank's groups have resolved. */
uint64_t groups_rank_gate(const struct zero *z, uint32_t rank);
void groups_committed(struct zero *z, uint32_t rank, uint64_t step);
/* All contributions of the ledger's step that there are so far are launched. */
bool groups_complete(const struct zero *z, const struct zero_group *group);

/* ---- zero_place.c ---------------------------------------------------------------------------- */

struct core_ref place_of_grads(const struct zero *z, uint32_t bucket, uint32_t rank);
struct core_ref place_of_acc(const struct zero *z, uint32_t bucket, uint32_t rank);
struct core_ref place_of_slot(const struct zero *z, uint32_t slot, uint32_t rank);
/* Stage 0: of the whole bucket; else of the rank's slice. */
struct core_ref place_of_reduced(const struct zero *z, uint32_t bucket, uint32_t rank);
struct core_ref place_of_params(const struct zero *z, uint32_t bucket, uint32_t rank);

/* ---- zero_tokens.c --------------------------------------------------------------------------- */

/* A rank declares something with tokens. */
void tokens_note(struct zero *z, uint32_t rank, const struct wire_after *after);
/* Room for `count` more waits of the op made last. False: no memory. */
bool tokens_room(struct zero *z, struct core_op *op, size_t count);
void tokens_add(struct core_op *op, uint32_t rank, const struct wire_after *after);
/* A release was served: its memory may be taken once the tokens are reached. */
void tokens_release(struct zero *z, uint32_t rank, const struct wire_after *after);
/* Of a gather: what it reads is committed, and rounded (of secondary shards: what filled them has
 * waited for that); what it overwrites is read. */
void tokens_gather(struct zero *z, struct core_op *op, uint32_t group);
/* Of an op that writes to reduced gradients: of its members, once per step; of one rank. */
void tokens_shards(struct zero *z, struct core_op *op);
void tokens_shard(struct zero *z, struct core_op *op, uint32_t rank);
/* Of an op that fills up a contribution with zeros: what the declaration that closed it said. */
void tokens_closing(struct zero *z, struct core_op *op, uint32_t rank);
/* Of an op that opens update windows: every rank's reads of the step are over. */
void tokens_reads(struct zero *z, struct core_op *op, uint64_t step);
/* True: all that was declared has come to pass. Else it is being waited for, and a completion will
 * tell. Not for the step path. */
bool tokens_quiet(struct zero *z);
void tokens_reset(struct zero *z);

/* ---- zero_grad.c ----------------------------------------------------------------------------- */

/* The rank's ledger for a new step; all ranks' tables of the step. */
void grad_reset_step(struct zero *z);
/* 1 (streams only): not before the last contribution to a buffer is launched. */
int grad_ready(struct zero *z, uint32_t rank, const struct wire_ready_entry *entries,
               uint32_t count);
/* accumulate=shard: some contribution of the rank to a bucket, be it empty, waits for its launch;
 * before: of an earlier micro-step than the rank's. */
bool grad_unlaunched(const struct zero *z, uint32_t rank, uint32_t bucket, bool before);
int grad_micro_end(struct zero *z, uint32_t rank);
int grad_step_end(struct zero *z, uint32_t rank);

/* ---- zero_launch.c --------------------------------------------------------------------------- */

/* ZERO ops over the pieces of a bucket that lack `bit`, and over its padding if `tail`, where its
 * gradients lie. */
void launch_zero_fill(struct zero *z, uint32_t rank, uint32_t bucket, uint8_t bit,
                      struct core_ref base, bool tail);
/* Adds the rank's GRADS of a bucket to its ACC. */
void launch_local_add(struct zero *z, uint32_t rank, uint32_t bucket);
/* Raises the rank's BUCKET word once last_op is done: its contribution was consumed. */
void launch_consumed(struct zero *z, uint32_t rank, uint32_t bucket);
/* Counts one more contribution as consumed; who raises the word? The caller. */
struct core_signal launch_bucket_signal(struct zero *z, uint32_t rank, uint32_t bucket);
/* Waits of an op of a contribution, in `waits` (NULL, or room for them), for its tokens, which are
 * then forgotten. */
void launch_waits(struct zero *z, struct core_op *op, struct core_token *waits, uint32_t rank,
                  struct zero_tokens *tokens);
/* Zeroes the reduced gradient of a bucket; consumed: and raises its members' BUCKET words. */
void launch_zero_reduced(struct zero *z, uint32_t bucket, bool consumed);

/* ---- zero_reduce.c --------------------------------------------------------------------------- */

/* Sums over the members from position `first` on: one per run of a group (flat: of all); between
 * runs, of slice `first`. Without inputs, outputs and what they wait for. */
struct core_op *reduce_within_op(struct zero *z, uint32_t bucket, uint32_t first,
                                 enum flight_kind flight);
struct core_op *reduce_between_op(struct zero *z, uint32_t bucket, uint32_t slice,
                                  enum flight_kind flight);
/* Launches what the order allows. True: something was. */
bool launch_reductions(struct zero *z);
/* All of the ledger's step is launched. */
bool launch_complete(const struct zero *z);

/* ---- zero_slot.c ----------------------------------------------------------------------------- */

/* A piece of the bucket's open contribution lies in `slot`. */
int slot_use(struct zero *z, uint32_t rank, uint32_t bucket, uint32_t slot);
int slot_acquire(struct zero *z, uint32_t rank, const struct wire_msg *msg);
void slot_overflow(struct zero *z, uint32_t rank, int code);
void slot_op_done(struct zero *z, uint64_t op);
/* Answers what can be answered. */
void slot_pump(struct zero *z);

/* ---- zero_step.c ----------------------------------------------------------------------------- */

/* The rank goes on: an update that was not begun is skipped. */
void step_touch(struct zero *z, uint32_t rank, const struct wire_after *after);
int step_update_begin(struct zero *z, uint32_t rank);
/* 1 (streams only): not before its window is open. */
int step_update_commit(struct zero *z, uint32_t rank, const struct wire_after *after);
/* Steps that every rank has resolved. */
uint64_t step_resolved(const struct zero *z);
/* Raises gates; launches gathers that follow a version. True: something changed. */
bool step_gate(struct zero *z);
/* Stages 1-2: every member's replica gets the slices that the other owners have updated. */
void step_gather_all(struct zero *z, uint32_t group, uint64_t step, bool counted);
/* The rank's masters, rounded, become what is gathered; once `after` is reached. */
void step_cast(struct zero *z, uint32_t rank, const struct wire_after *after);
/* Closes the ledger's step when every rank has ended it. */
bool step_close(struct zero *z);
/* Opens the update windows of the step that all have ended. True: some. */
bool step_open_updates(struct zero *z);

/* ---- zero_fetch.c ---------------------------------------------------------------------------- */

int fetch_declare(struct zero *z, uint32_t rank, uint32_t unit);
int fetch_release(struct zero *z, uint32_t rank, uint32_t unit, const struct wire_after *after);
int fetch_step_end(struct zero *z, uint32_t rank);
int fetch_pump(struct zero *z);
/* The name of some unit that the rank holds. */
const char *fetch_held_name(const struct zero *z, uint32_t rank);
/* One part of a gather, for the rank. Stage 3: its fetch unit lies at offset_bytes of the POOL. */
struct core_op *fetch_part_op(struct zero *z, uint32_t rank, uint32_t part, uint64_t offset_bytes,
                              enum flight_kind flight);
/* Where that part, or a bucket of it, goes. Mapped: NONE. */
struct core_ref fetch_place(const struct zero *z, uint32_t rank, uint32_t bucket,
                            uint64_t offset_bytes);
/* Stage 3: all of the rank's persistent parameters of a group. */
void fetch_persistent(struct zero *z, uint32_t rank, uint32_t group, uint64_t step, bool counted);
/* No rank holds a unit, and pools no longer hold what is in the shards: units are gathered anew. */
void fetch_forget(struct zero *z);
/* Bytes of the POOL that persistent parameters take. */
uint64_t fetch_persistent_bytes(const struct zero *z, uint32_t rank);

/* ---- zero_secondary.c: there need be none ---------------------------------------------------- */

int secondary_init(struct zero *z);
void secondary_free(struct zero *z);
/* There are no copies any more. */
void secondary_forget(struct zero *z);
/* The rank's block has a copy of the part, of the present version. */
bool secondary_holds(const struct zero *z, uint32_t rank, uint32_t part);
/* The gather of the part reads that copy. */
void secondary_read(struct zero *z, struct core_op *op, uint32_t part);
/* The rank has just gathered this: its block's copies are filled from it, where they are stale. */
void secondary_fill(struct zero *z, uint32_t rank, const struct prefetch_gather *gather);

/* ---- zero_grant.c: all do nothing where there are no grants ---------------------------------- */

int grant_init(struct zero *z);
void grant_free(struct zero *z);
void grant_reset(struct zero *z);
/* A residency begins with what is being served; ahead: of another unit than what is served. */
void grant_launched(struct zero *z, uint32_t rank, uint32_t fetch_unit, bool ahead);
void grant_gathered(struct zero *z, const struct zero_flight *flight);
/* Something of the rank was served, or residencies have ended. */
void grant_served(struct zero *z, uint32_t rank);

/* ---- zero_measure.c, zero_freeze.c, zero_io.c ------------------------------------------------ */

void measure_request(struct zero *z, uint32_t rank, uint32_t request);
void measure_pump(struct zero *z);
void measure_op_done(struct zero *z, const struct zero_flight *flight, uint64_t duration_ns);
void measure_reset(struct zero *z);
int freeze_request(struct zero *z, uint32_t rank, const struct wire_msg *msg);
void freeze_pump(struct zero *z);
void freeze_reset(struct zero *z);
/* No piece of it has a gradient. */
static inline bool zero_frozen(const struct zero *z, uint32_t bucket)
{
    return z->frozen_pieces[bucket] == z->bucket_table[bucket].pieces;
}
void io_request(struct zero *z, uint32_t rank, const struct wire_msg *msg);
void io_pump(struct zero *z);
/* The ranks that are at work on a step; *ret_why says what the lowest of them does, or "". */
struct ranks zero_busy(const struct zero *z, struct text *why);

/* ---- zero_ops.c ------------------------------------------------------------------------------ */

/* A LAUNCH effect with id, members = all ranks, now as ready time; remembered as in flight. For
 * some ranks: `members` outlive the op. */
struct core_op *ops_new(struct zero *z, enum core_op_kind kind, enum core_stream stream,
                        enum gw_kind traffic, enum flight_kind flight);
void ops_members(struct zero *z, struct core_op *op, const uint32_t *members, uint32_t count);
/* Record of an op in flight; NULL: done, or never known. */
struct zero_flight *ops_flight(const struct zero *z, uint64_t op);
/* Arrays of the op made last; NULL where memory is lacking (effects_failed then). */
struct core_ref *ops_refs(struct zero *z, uint32_t count);
struct core_signal *ops_signals(struct zero *z, struct core_op *op, uint32_t count);
/* The op made last waits for those of the ops that are not done. */
void ops_wait(struct zero *z, struct core_op *op, const uint64_t *ids, uint32_t count);
/* An op that only waits and signals, for the ranks in `members` (copied). */
struct core_op *ops_barrier(struct zero *z, enum core_stream stream, const uint32_t *members,
                            uint32_t count);
/* Signal after an op, or now if it is 0 or done. */
void ops_signal(struct zero *z, struct core_signal signal, uint64_t after_op);
/* Of whole buckets, as parameters or as gradients. */
enum ops_of { OPS_OF_PARAMS, OPS_OF_GRADS };
void ops_payload(const struct zero *z, struct core_op *op, enum ops_of what, uint32_t first_bucket,
                 uint32_t count);
int ops_init(struct zero *z);
void ops_reset(struct zero *z);
void ops_free(struct zero *z);

#endif
