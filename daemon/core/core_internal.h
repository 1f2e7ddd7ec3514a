/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the core (core.c, member.., registry, seal, group, lane, wait) share: the one
 * struct of a job. The ZeRO layer and the layout are behind their own headers and see none of it.
 * Pure; one thread. Each part writes only its own fields, named below.
 */
#ifndef GW_CORE_CORE_INTERNAL_H
#define GW_CORE_CORE_INTERNAL_H

#include "daemon/base/text.h"
#include "daemon/core/core.h"
#include "daemon/core/effects.h"
#include "daemon/core/layout.h"
#include "daemon/core/zero.h"
#include "proto/place.h"

#define CORE_OPEN_MAX 64u   /* requests of one rank that wait for their reply */
/* Ops of a rank that were launched and not reported done: a client sees its op done before the core
 * is told, so more than 64 is legal. */
#define CORE_FLIGHT_MAX 256u
#define CORE_NO_RANK UINT32_MAX

/* ---- registry.c: parameter lists as registered ----------------------------------------------- */

struct reg_param {
    uint64_t numel;
    uint32_t flags, group;
    uint32_t name_at, unit_at; /* in the list's names */
    uint8_t dtype, grad_dtype;
};

struct reg_group { /* of ranks; the world is none of these */
    uint32_t count, shard_ranks;
    uint32_t *ranks; /* in group order */
};

struct reg_list {
    struct reg_group *groups; /* group g is at g - 1 */
    uint32_t group_count;
    struct reg_param *params;
    uint32_t count, total, capacity;
    char *names; /* strings one after the other */
    size_t names_bytes, names_capacity;
};

const char *reg_name(const struct reg_list *list, uint32_t param);
const char *reg_unit(const struct reg_list *list, uint32_t param);
void reg_list_clear(struct reg_list *list);
/* True if equal; else *text says the first difference, the sides named by the two words. */
bool reg_list_equal(const struct reg_list *a, const struct reg_list *b, const char *a_side,
                    const char *b_side, struct text *text);

/* ---- lane.c, lane_buffer.c, lane_op.c: buffers and collective ops ---------------------------- */

struct lane_buffer {
    uint32_t id;
    uint32_t uses; /* by ops that are queued or in flight */
    uint64_t bytes;
};

struct lane_op { /* submitted, not launched */
    struct wire_op op;
    uint64_t since_ns;
    bool marked; /* zero knows of it */
    uint64_t mark;
};

struct lane_rank {
    uint64_t sequence; /* of the last op taken */
    struct lane_op *pending; /* GW_OPS_IN_FLIGHT, in order; made with the first op */
    uint32_t pending_count;
    uint32_t in_flight;
    struct lane_buffer *buffers;
    uint32_t buffer_count, buffer_capacity;
};

struct lane_flight { /* launched, not done; all on one stream, so in order */
    struct lane_flight *next;
    uint64_t op_id;
    struct wire_op op; /* of the first member */
    uint32_t uses;
    struct lane_use {
        uint32_t rank, send_buffer, recv_buffer;
    } use[];
};

struct core_group {
    uint32_t count;
    uint32_t *ranks; /* in group order */
    struct ranks members;
    uint64_t launched; /* ops so far */
};

/* ---- flight.c: every op that was launched and is not done, of all layers --------------------- */

struct core_flight {
    uint64_t id, since_ns, step;
    struct ranks producers; /* ranks whose tokens it waits for */
    uint32_t rank, bucket;
    uint8_t kind, traffic;
    bool done;
};

struct core_flights { /* by id, oldest first; ops of different streams finish in any order */
    struct core_flight *at;
    uint32_t first, count, capacity;
};

/* ---- the job --------------------------------------------------------------------------------- */

struct open_request {
    uint32_t id;
    uint16_t type;
};

struct core_rank {
    struct open_request *open; /* request.c */
    uint32_t open_count, open_room;
    struct reg_list list;  /* registry.c */
    struct wire_seal seal; /* seal.c: as given, defaults filled in that need no layout */
    uint32_t seal_request;
    struct {
        uint32_t request; /* 0: none */
        uint32_t count, *ranks;
        uint64_t since_ns;
    } group; /* group.c */
    struct lane_rank lane;
};

struct core {
    struct core_config config;
    struct effects *effects;
    struct core_rank *ranks; /* world */
    uint64_t now_ns;
    struct ranks everyone; /* of the world */
    bool nomem;

    /* membership.c */
    uint32_t generation;        /* 0: nobody has joined yet */
    struct ranks present;       /* attached in this generation */
    struct ranks left;          /* left on purpose in this generation */
    struct ranks old;           /* still attached, but to a broken generation */
    bool complete;              /* all ranks of this generation have joined */
    bool broken;                /* `failure` ended this generation */
    bool ended;                 /* CORE_EFF_END was said */
    bool running;               /* a step or collective has begun in this generation */
    uint64_t first_join_ns, complete_ns, broken_ns;
    struct core_fault failure;

    /* seal.c */
    struct ranks sealed_ranks;  /* have called seal */
    uint64_t seal_since_ns;
    bool sealed;                /* in this generation */
    bool building;              /* BUILD was said, BUILT has not come */
    uint32_t build_generation;
    bool kept;                  /* layout, options and zero survive generations */
    struct layout *layout;
    struct zero *zero;
    struct wire_seal options;   /* defaults filled in */
    struct wire_seal kept_seal; /* as given */
    struct reg_list kept_list;

    /* group.c, lane.c */
    struct core_group groups[GW_GROUPS_MAX];
    uint32_t group_count;
    struct lane_flight *flights, **flights_end;
    uint64_t lane_launches;
    uint64_t lane_comm_ns;
    struct core_flights flying; /* flight.c */

    /* wait.c */
    struct {
        bool active, reported;
        uint64_t since_ns, report_ns, op;
        uint32_t source;
        char text[GW_TEXT_MAX + 1];
    } stall;
    uint64_t deadline_ns;
};

/* ---- core.c ---------------------------------------------------------------------------------- */

/* The job's generation ends: tells every rank. Only the first failure of a generation counts. What
 * hangs on the generation is freed at the end of core_handle, so callers may finish their loops. */
void core_fail(struct core *core, int code, uint32_t rank, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void core_fail_fault(struct core *core, const struct core_fault *fault, int r);
const char *core_dtype_name(uint32_t dtype);
/* 'name', escaped and cut. */
void core_add_name(struct text *text, const char *name);

/* ---- request.c ------------------------------------------------------------------------------- */

void request_handle(struct core *core, uint32_t rank, const struct wire_msg *msg);
/* A request has its reply. */
void request_close(struct core *core, uint32_t rank, uint32_t request);
/* Whoever waits for a reply learns why it does not come. */
void request_fail_all(struct core *core, int code, const char *text);
/* A reply to fill in; closes the request. */
struct core_effect *core_reply(struct core *core, uint32_t rank, uint32_t request, uint16_t type);
/* DONE with code and text ("" with 0). */
void core_reply_done(struct core *core, uint32_t rank, uint32_t request, int code,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Answers all open requests of a type. */
void core_reply_all(struct core *core, uint16_t type);

/* ---- membership.c ---------------------------------------------------------------------------- */

void member_join(struct core *core, const struct core_event *event);
void member_wait_ready(struct core *core, uint32_t rank, const struct wire_msg *msg);
void member_leave(struct core *core, uint32_t rank);
void member_lost(struct core *core, uint32_t rank, const char *how, bool with_shards);
/* The client broke the protocol: its connection goes, and with it the generation. */
void member_drop(struct core *core, uint32_t rank, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Failure if a rank that left is needed again. */
void member_check_left(struct core *core);

/* ---- registry.c, seal.c ---------------------------------------------------------------------- */

void registry_group(struct core *core, uint32_t rank, const struct wire_msg *msg);
void registry_register(struct core *core, uint32_t rank, const struct wire_msg *msg);
void seal_request(struct core *core, uint32_t rank, const struct wire_msg *msg);
void seal_built(struct core *core, const struct core_event *event);
/* Goes on when all have sealed and no collective is in flight. */
void seal_kick(struct core *core);
/* No collective may be launched: all have sealed, and memory is to be made. */
bool seal_holds(const struct core *core);
/* The rank's client is gone. */
void seal_detach(struct core *core, uint32_t rank);
/* What hangs on the generation. */
void seal_reset(struct core *core);
/* True while a rank that has called seal waits for the others. */
bool seal_pending(const struct core *core);

/* 0; GW_E_INVALID with *text: a seal of one rank is wrong by itself. Fills the defaults in that
 * need no layout. */
int options_check(struct wire_seal *seal, uint32_t world, uint32_t device, bool spans,
                  struct text *text);
/* Hybrid sharding of a group, or 0; `whose`: "" or of what group it is said. */
int options_check_runs(const struct wire_seal *seal, uint32_t shard_ranks, uint32_t members,
                       const char *whose, struct text *text);
/* Fills in what follows from the layout. GW_E_NOMEM. */
int options_complete(struct wire_seal *seal, const struct layout *layout);
bool options_equal(const struct wire_seal *a, const struct wire_seal *b, const char *a_side,
                   const char *b_side, struct text *text);

/* ---- group.c, lane.c ------------------------------------------------------------------------- */

void group_request(struct core *core, uint32_t rank, const struct wire_msg *msg);
/* Makes every group whose members have all called; called when all ranks have joined, too. */
void group_kick(struct core *core);
void group_detach(struct core *core, uint32_t rank);
void group_reset(struct core *core);
bool group_needs(const struct core *core, uint32_t rank);
bool group_wait(const struct core *core, struct core_wait *ret_wait);

void lane_buffer(struct core *core, const struct core_event *event);
void lane_buffer_free(struct core *core, uint32_t rank, const struct wire_msg *msg);
void lane_submit(struct core *core, uint32_t rank, const struct wire_msg *msg);
void lane_kick(struct core *core, uint32_t group);
void lane_kick_all(struct core *core);
/* Streams order the clients: what has become possible, in the order of each rank's calls. */
void lane_settle(struct core *core);
void lane_op_done(struct core *core, const struct core_event *event);
void lane_detach(struct core *core, uint32_t rank);
void lane_reset(struct core *core);
bool lane_needs(const struct core *core, uint32_t rank);
bool lane_wait(const struct core *core, struct core_wait *ret_wait);
/* What that wait is for: it says `op`, not the text. */
void lane_describe_wait(const struct core *core, struct text *text);
/* False: not an op of this layer. */
bool lane_describe_flight(const struct core *core, uint64_t op_id, struct text *text);
/* All factors in one, rounded once. */
float lane_scale(const struct wire_op *op);
/* "all_reduce 'x' of 8 elements" */
void lane_describe(const struct wire_op *op, struct text *text);
/* 0; or < 0 with *text: the op of one rank is wrong by itself. */
int lane_check(const struct core *core, uint32_t rank, const struct wire_op *op,
               struct text *text);
/* An op of a rank uses both its buffers (change +1), or no longer (-1). A barrier has none. */
void lane_use_buffers(struct core *core, uint32_t rank, const struct wire_op *op, int change);
struct lane_buffer *lane_find_buffer(const struct core *core, uint32_t rank, uint32_t id);

/* ---- flight.c -------------------------------------------------------------------------------- */

void flight_launched(struct core *core, const struct core_op *op);
void flight_done(struct core *core, uint64_t op_id);
void flight_reset(struct core *core);
/* The oldest one; nobody is missing, a stream works or waits. */
bool flight_wait(const struct core *core, struct core_wait *ret_wait);
/* As lane_describe_wait. */
void flight_describe_wait(const struct core *core, struct text *text);

/* ---- wait.c ---------------------------------------------------------------------------------- */

/* Reports, deadlines, and the next one: at the end of each event. */
void wait_update(struct core *core);

#endif
