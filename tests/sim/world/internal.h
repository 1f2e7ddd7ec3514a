/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the simulator share: memory, boards, device, clients and the draw. One thread.
 */
#ifndef GW_SIM_INTERNAL_H
#define GW_SIM_INTERNAL_H

#include "proto/place.h"
#include "tests/sim/world/reference.h"
#include "tests/sim/world/sim.h"

#define SIM_STREAMS (CORE_STREAM_GATHER + SIM_RANKS_MAX)
#define SIM_TIMELINES 4u
#define SIM_ANSWERS_MAX 16u
#define SIM_BUFFER 7u /* id of a rank's registered buffer */
#define SIM_BUFFER_BYTES 16u
#define SIM_SLOTS_MAX (GW_RING_SLOTS_MAX + GW_OVERFLOW_MAX)

/* ---- memory.c -------------------------------------------------------------------------------- */

struct sim_arena {
    struct sim_arena *next;
    enum gw_arena_kind kind;
    int rank;
    uint32_t index;
    uint64_t bytes;
    void *data;
};

/* ---- device.c -------------------------------------------------------------------------------- */

struct sim_op {
    struct sim_op *next;
    struct core_op op; /* arrays copied */
    uint64_t started_ns, done_ns;
};

struct sim_stream {
    struct sim_op *head, **end;
};

struct sim_signal { /* waits for an op */
    struct sim_signal *next;
    uint64_t after_op;
    struct core_signal signal;
};

struct sim_slot {
    uint64_t value, offset;
};

/* What the engine writes and one rank reads. */
struct sim_board {
    struct sim_slot *buckets, *units;
    struct sim_slot step, update;
    struct sim_slot ops[GW_OPS_IN_FLIGHT];
    struct gw_shm_verdict verdict;
    uint8_t *used;
};

/* ---- client.c -------------------------------------------------------------------------------- */

enum sim_action_kind {
    ACT_JOIN,
    ACT_WAIT_READY,
    ACT_GROUP, /* a: the first is 0 */
    ACT_REGISTER,
    ACT_SEAL,
    ACT_PARAM_IO, /* a: param */
    ACT_BARRIER,
    ACT_BARRIER_WAIT,
    ACT_MEASURE,
    ACT_FREEZE,  /* a: step */
    ACT_REPLY,   /* waits for the reply of the request before */
    ACT_FETCH,   /* a: unit */
    ACT_USE,     /* a: unit; reads it */
    ACT_RELEASE, /* a: unit; reads it once more */
    ACT_GRAD,    /* a: param, b: piece */
    ACT_MICRO_END,
    ACT_STEP_END,
    ACT_VERDICT,
    ACT_UPDATE_BEGIN,
    ACT_UPDATE_WAIT,
    ACT_WRITE, /* a: bucket */
    ACT_COMMIT,
    ACT_BUFFER, /* registers one */
    ACT_SUM,    /* an all-reduce of the buffer, and a look at its result */
};

struct sim_action {
    enum sim_action_kind kind;
    uint32_t a, b;
};

struct sim_posted { /* a message on its way to the core */
    struct sim_posted *next;
    enum core_event_kind kind;
    uint32_t index; /* BUFFER */
    uint64_t size_bytes;
    struct wire_msg msg;
    struct wire_ready_entry entry;
};

struct sim_write { /* a declared gradient that is still to be written, by another thread */
    uint32_t param, piece, micro, step, timeline;
    uint64_t value;
    void *to;
};

struct sim_ring_slot {
    bool taken;
    uint32_t bucket;
    uint64_t count; /* free once the bucket's word is there */
    uint32_t after_bucket; /* taken: the same of its last use, for a stream to wait for */
    uint64_t after_count;
    uint32_t serial; /* of its last taking */
};

struct sim_bucket {       /* a client's own account */
    uint64_t closed;      /* contributions it has made */
    bool open;            /* one is due in this micro-step */
    uint32_t slot;        /* of the open contribution; GW_NO_SLOT */
    uint32_t declared;    /* pieces in this micro-step */
    uint32_t outstanding; /* pieces still expected in it */
    uint32_t final;       /* pieces that are final in this step */
};

/* ---- stream.c -------------------------------------------------------------------------------- */

enum sim_item_kind {
    ITEM_WAIT,  /* for a timeline of the engine's pages, or the client's own */
    ITEM_TOKEN, /* raises one of the client's own */
    ITEM_PIECE, /* writes a gradient */
    ITEM_READ,  /* a: unit */
    ITEM_VERDICT,
    ITEM_SPAN,  /* a: bucket; updates parameters */
    ITEM_SHARD, /* reads reduced gradients */
    ITEM_FILL,  /* the buffer of a collective */
    ITEM_SUM,   /* its result */
};

struct sim_item {
    struct sim_item *next;
    enum sim_item_kind kind;
    uint32_t step, a;
    uint32_t timeline; /* GW_TIMELINE */
    uint64_t value;
    const char *when;
    struct sim_write write;
};

#define SIM_MAIN 0u /* stream and timeline: the job's stream */
#define SIM_SIDE 1u /* another one, that writes some gradients */
#define SIM_QUEUES 2u

struct sim_queue {
    struct sim_item *head, **end;
};

struct sim_client {
    uint32_t rank;
    struct place *place; /* once the layout is known */
    bool gone, finished;
    bool in_update, wrote; /* as the core has heard; as is */
    uint32_t commits;      /* that the core has heard of */
    uint32_t ended, begun; /* steps that it has heard the end of; the last whose update has begun */
    struct sim_queue queues[SIM_QUEUES];
    uint64_t wakes_ns;     /* from its sleep; 0: has not slept */
    struct sim_action *actions;
    uint32_t action_count, action_room, at;
    uint32_t step;             /* of the next action */
    uint32_t grad_step, micro; /* of the next gradient: a step on, inside the update window */
    bool early;  /* the gradients of grad_step's first micro-step are declared already */
    bool set_up; /* the actions are still those of set-up */

    struct sim_posted *out, **out_end;
    uint32_t request; /* number of the last one */
    uint32_t awaited; /* whose reply ACT_REPLY waits for; 0: it has come */
    struct wire_msg reply;
    bool asked_slot; /* an ACQUIRE is under way */
    uint32_t slot_request, slot_bucket;
    uint32_t serial, slot_serial; /* slots taken so far; when the request was sent */

    struct sim_bucket *buckets;
    uint64_t *fetches; /* by unit */
    struct sim_ring_slot slots[SIM_SLOTS_MAX];
    uint32_t slot_count;
    uint64_t timelines[SIM_TIMELINES];
    uint64_t promised[SIM_TIMELINES];
    uint64_t heard[SIM_TIMELINES]; /* the highest values that the core was told */
    struct sim_write writes[SIM_TIMELINES];
    uint32_t write_count;
    uint64_t ops; /* collective ops submitted */
    uint8_t frozen[SIM_PARAMS_MAX / 8]; /* what it asked for last: a bit per parameter */
};

/* Orders of launches: reductions of a group, between runs and within; gathers of a group for a
 * rank. */
#define SIM_ORDER_VERDICT 0u
#define SIM_ORDER_REDUCE(within, group) (1u + 2u * (group) + (within))
#define SIM_ORDER_GATHER(rank, group) (1u + SIM_GROUPS_MAX * (2u + (rank)) + (group))
#define SIM_ORDERS SIM_ORDER_GATHER(SIM_RANKS_MAX, 0u)

struct sim {
    const struct sim_plan *plan;
    struct sim_result *result;
    struct core *core, *twin; /* of another node */
    struct reference *reference;
    uint64_t now_ns, random;
    bool failed; /* result->error is set */
    bool broken; /* CORE_EFF_FAIL */
    bool rejoined;
    uint32_t version; /* rejoin: updates that all owners have committed */
    bool handling;    /* inside core_handle and its effects */
    struct core_event answers[SIM_ANSWERS_MAX];
    uint32_t answer_count, answer_taken;
    struct sim_arena *arenas;
    struct sim_stream streams[SIM_STREAMS];
    struct sim_op *done, **done_end; /* executed, the core has not heard yet */
    struct sim_signal *signals;
    uint64_t launched;
    uint64_t launches[SIM_ORDERS]; /* orders so far */
    bool *executed; /* by op id */
    uint64_t executed_room;
    double *partials; /* bucket x slice: squares of what was reduced last, or its largest */
    uint64_t *nonfinite;
    struct sim_board boards[SIM_RANKS_MAX];
    struct sim_client clients[SIM_RANKS_MAX];
};

/* ---- twin.c ---------------------------------------------------------------------------------- */

void twin_handle(struct sim *sim, const struct core_event *event);
/* The next effect of both; NULL: there is none. */
void twin_compare(struct sim *sim, const struct core_effect *effect);

/* ---- sim.c ----------------------------------------------------------------------------------- */

enum sim_what { WHAT_CLIENT, WHAT_WIRE, WHAT_QUEUE, WHAT_STREAM, WHAT_REPORT };

struct sim_choice { /* something that can happen next */
    enum sim_what what;
    uint32_t which, weight;
};

#define SIM_CHOICES_MAX (SIM_RANKS_MAX * (2 + SIM_QUEUES) + SIM_STREAMS + 1)

/* A run in parts, for explore.c: the clients have not done anything yet. */
struct sim *sim_open(const struct sim_plan *plan, struct sim_result *result);
struct sim *sim_close(struct sim *sim);
/* All that can happen next, always in the same order. 0: nothing can. */
uint32_t sim_choices(struct sim *sim, struct sim_choice *choices);
void sim_take(struct sim *sim, const struct sim_choice *choice);
/* By the draw, up to the end; and what is checked there. */
void sim_go_on(struct sim *sim);
void sim_finish(struct sim *sim);
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint32_t sim_draw(struct sim *sim, uint32_t below);

/* effects.c */
void sim_post_event(struct sim *sim, const struct core_event *event);

/* memory.c */
int memory_add(struct sim *sim, enum gw_arena_kind kind, int rank, uint32_t index, uint64_t bytes);
void memory_build(struct sim *sim);
void memory_free(struct sim *sim);
/* NULL with sim_fail: no such place. kind NONE gives NULL without failing. */
void *memory_at(struct sim *sim, const struct core_ref *ref, uint64_t numel, uint32_t dtype);
/* A place of the client's as a reference. */
struct core_ref memory_ref(const struct sim_client *client, struct place_ref at);
void memory_param_io(struct sim *sim, const struct core_effect *effect);

/* device.c */
void device_launch(struct sim *sim, const struct core_op *op);
void device_signal(struct sim *sim, uint64_t after_op, const struct core_signal *signal);
bool device_can_run(const struct sim *sim, uint32_t stream);
void device_run(struct sim *sim, uint32_t stream);
void device_report(struct sim *sim); /* tells the core of the oldest done op */
void device_reset(struct sim *sim);
void device_free(struct sim *sim);

/* kernels.c: what ops do to memory */
void kernel_run(struct sim *sim, const struct core_op *op);

/* trace.c */
void trace_event(const struct sim *sim, const struct core_event *event);
void trace_effect(const struct sim *sim, const struct core_effect *effect);
void trace_run(const struct sim *sim, const char *what, uint64_t op);
void trace_item(const struct sim *sim, const struct sim_client *client, uint32_t queue,
                const struct sim_item *item);

/* client.c */
void client_start(struct sim *sim, struct sim_client *client, uint32_t rank);
bool client_can_act(struct sim *sim, struct sim_client *client);
void client_act(struct sim *sim, struct sim_client *client);
/* The rank is lost: the core hears of it after all that the client had sent. */
void client_die(struct sim *sim, struct sim_client *client);
void client_deliver(struct sim *sim, struct sim_client *client); /* oldest message to the core */
void client_reply(struct sim *sim, const struct core_effect *effect);
void client_free(struct sim_client *client);
/* A message for the core, in the client's queue; to be filled in. */
struct sim_posted *client_post(struct sim_client *client, uint16_t type, uint32_t request);
void client_describe(const struct sim_client *client, char *text, size_t bytes);

/* script.c: actions of set-up and of one step */
void script_set_up(struct sim *sim, struct sim_client *client);
void script_step(struct sim *sim, struct sim_client *client, uint32_t step);

/* gradient.c: acquire, write, declare; contributions as a client counts them */
bool gradient_can_act(struct sim *sim, struct sim_client *client, const struct sim_action *action);
void gradient_act(struct sim *sim, struct sim_client *client, const struct sim_action *action);
/* An overflow slot: for the bucket that asked, if that still fills its contribution. */
void gradient_granted(struct sim *sim, struct sim_client *client, uint32_t slot);
/* One of the promised writes happens. */
void gradient_write(struct sim *sim, struct sim_client *client);
void gradient_open_micro(struct sim *sim, struct sim_client *client, bool step_begins);
void gradient_close_micro(struct sim *sim, struct sim_client *client, bool step_ends);
bool gradient_in_ring(const struct sim *sim);

bool gradient_stream_can_act(struct sim *sim, struct sim_client *client,
                             const struct sim_action *action);
void gradient_stream_act(struct sim *sim, struct sim_client *client,
                         const struct sim_action *action);
/* A slot of the client's whose reduction is launched. */
void gradient_promised(struct sim *sim, struct sim_client *client, uint32_t slot);
/* What the item at a stream's head stands for. */
void gradient_write_piece(struct sim *sim, const struct sim_client *client,
                          const struct sim_write *write);

/* stream.c: clients with streams */
struct sim_item *stream_add(struct sim_client *client, uint32_t queue, enum sim_item_kind kind);
void stream_wait(struct sim_client *client, uint32_t queue, uint32_t timeline, uint64_t value);
/* A mark in the stream, as a declaration's tokens. */
struct wire_after stream_mark(struct sim_client *client, uint32_t queue);
void stream_act(struct sim *sim, struct sim_client *client, const struct sim_action *action);
bool stream_can_run(struct sim *sim, const struct sim_client *client, uint32_t queue);
void stream_run(struct sim *sim, struct sim_client *client, uint32_t queue);
bool stream_idle(const struct sim_client *client);
/* The job is broken: nothing holds the streams back. */
void stream_run_wild(struct sim *sim, struct sim_client *client);
void stream_free(struct sim_client *client);

/* client.c */
void write_span(struct sim *sim, struct sim_client *client, uint32_t bucket);

/* check.c: what a client may read in a step, against the reference */
void check_unit(struct sim *sim, struct sim_client *client, uint32_t step, uint32_t unit,
                const char *when);
void check_verdict(struct sim *sim, struct sim_client *client, uint32_t step);
void check_shard(struct sim *sim, struct sim_client *client, uint32_t step, const char *when);
void check_final(struct sim *sim);
/* The client's span of a bucket. False: it owns nothing of it. */
struct sim_span {
    uint64_t offset, numel, valid; /* in the bucket */
    float *masters;
    void *params; /* as they are gathered */
    const void *grads;
    uint32_t dtype, grads_dtype;
};
bool span_of(struct sim *sim, const struct sim_client *client, uint32_t bucket,
             struct sim_span *ret_span);
/* Reference at a flat position (padding: 0). */
float flat_value(const struct sim *sim, const float *by_param, uint32_t bucket, uint64_t offset);

#endif
