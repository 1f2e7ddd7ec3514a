/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's NCCL part: cliques (communicators) of members (a rank of one), plans (what a rank's
 * group asks of one communicator: one kernel) and jobs (what all ranks do together, once all of
 * them are on their GPUs). Server's lock held everywhere unless it says otherwise.
 *
 *   call -> plan, late -> op in the stream -> started -> jobs done -> op finished
 */
#ifndef FAKEGPU_NCCL_SERVER_H
#define FAKEGPU_NCCL_SERVER_H

#include "tests/fakegpu/nccl_proto.h"
#include "tests/fakegpu/nccl_server_ring.h"
#include "tests/fakegpu/server.h"

#define N_RANKS_MAX FG_GPUS_MAX
#define N_REGISTRATIONS_MAX 256
#define N_OPERATORS_MAX 32
#define N_ORDER_MAX 32

struct clique;
struct member;

struct plan {
    struct plan *next; /* of its member, oldest first */
    struct member *member;
    uint64_t stream; /* number */
    struct op *op;   /* NULL: late, or gone from the stream */
    uint32_t ctas;
    bool issued, started, finished;
    bool collective; /* has one: counts in `index` */
    bool running;    /* named by a job that runs now */
    uint64_t index;  /* of the clique's plans with collectives */
    bool collectives_done;
    uint32_t peers_left; /* sends and receives not yet done */
    uint32_t call_count;
    uint64_t *pair; /* per call: send, receive: which one between the two; UINT64_MAX: done */
    struct fgn_call *calls;
};

struct batch { /* of one group: issued together, late */
    struct batch *next;
    uint64_t due_ns;
    uint32_t count;
    struct plan *plans[];
};

enum member_state {
    MEMBER_LIVE,
    MEMBER_LEAVING, /* destroyed or aborted; resources go with the process' last member */
    MEMBER_GONE,    /* its number is remembered, to tell who still uses it */
};

struct registration {
    uint64_t number, address, bytes; /* number 0: free */
    uint32_t kind;
    uint64_t window; /* the rank's n-th, from 1; 0: none */
};

struct member {
    struct member *next; /* all of the server, oldest first */
    uint64_t number;
    struct clique *clique;   /* NULL: a split that waits for the others */
    struct process *process; /* NULL: it has ended */
    int gpu;
    uint32_t rank;
    enum member_state state;
    bool aborted, revoked, finalized;
    int result;      /* enum fgn_result, as ncclCommGetAsyncError says it */
    uint64_t due_ns; /* in progress for itself (init, split, finalize): earliest end; 0: not */
    uint32_t ctas;
    bool zero_cta;
    uint64_t unpolled; /* number of the stream with a call that nobody has asked after; 0: none */
    uint64_t collectives; /* plans with collectives called so far */
    uint64_t sends[N_RANKS_MAX], receives[N_RANKS_MAX];
    struct plan *plans;
    /* A split this member has called as a child. */
    struct member *parent;
    uint64_t split;
    int64_t color, key;
    uint64_t splits; /* called on this one */
    struct registration registrations[N_REGISTRATIONS_MAX];
    uint64_t windows; /* registered so far: all ranks do it together */
    double operators[N_OPERATORS_MAX];
    uint8_t operator_types[N_OPERATORS_MAX]; /* + 1; 0: free */
    bool operator_by_address[N_OPERATORS_MAX];
    uint64_t operator_address[N_OPERATORS_MAX];
};

struct slot { /* the index-th collective plan of all ranks */
    struct slot *next;
    uint64_t index;
    uint64_t digest; /* of the first caller's calls, and their beginning in words */
    char text[160];
    uint32_t first_rank;
    struct plan *plans[N_RANKS_MAX];
    uint32_t called, started;
    bool taken, broken; /* broken: never runs */
    int error;          /* injected: told instead of running */
    uint64_t due_ns;    /* once all have started */
    /* How many plans of each other clique the first caller's GPU had been given before. */
    const struct member *first;
    uint32_t order_count;
    struct {
        const struct clique *clique;
        uint64_t plans;
    } order[N_ORDER_MAX];
};

struct clique {
    struct clique *next;
    uint64_t id, secret; /* id 0: made by split */
    uint32_t ranks, joined;
    struct member *members[N_RANKS_MAX];
    int failed;      /* enum fgn_result for all its members */
    bool hung;       /* injected: never completes */
    uint32_t called; /* members that have called a collective: before all have, none is issued */
    struct slot *slots;
};

struct nccl_inject {
    uint32_t hang, error, init_hang, init_error, call_error; /* 0: off; 1: the next; n: the n-th */
    int error_code, init_code, call_code;
    int error_rank; /* -1: any */
    uint64_t delay_ns;
};

struct nccl {
    struct clique *cliques;
    struct member *members;
    struct batch *batches;
    uint64_t next_member, next_id, next_registration;
    uint64_t groups;
    bool issuing; /* own ops are being enqueued */
    struct nccl_inject inject;
};

extern struct nccl nccl;

struct request { /* one request while it is answered */
    struct server *s;
    struct process *p;
    const struct fg_request *q;
    const void *payload;
    struct fg_reply *reply;
};

/* nccl_server.c: members */
struct member *member_find(uint64_t number);
/* The member of the process for a call of that name; otherwise reports and gives NULL. */
struct member *member_of(struct request *r, uint64_t number, const char *call);
const char *call_name(uint32_t kind);
/* Everything the process' members of the clique have on streams has ended. */
bool members_quiet(const struct clique *clique, const struct process *process);

/* nccl_server_init.c */
void request_unique_id(struct request *r);
void request_init(struct request *r);
void request_split(struct request *r);
/* Those whose time has come get ready; when to look again. */
uint64_t init_tick(struct server *s, uint64_t now);

/* nccl_server_plan.c */
void request_group(struct request *r);
uint64_t plan_tick(struct server *s, uint64_t now);
/* Its late plans are never issued, its running ones end without having done anything. */
void plans_abort(struct server *s, struct member *member);
void plan_finish(struct server *s, struct plan *plan);
void plan_free(struct plan *plan);
void batch_forget(const struct plan *plan);

void slot_remove(struct clique *clique, struct slot *slot);
struct slot *slot_find(const struct clique *clique, uint64_t index);

/* nccl_server_order.c: what ranks must agree on */
uint64_t plan_digest(const struct plan *plan, char *ret_text, size_t size);
/* Whether the plan is what the other ranks call at this place; reports. */
bool slot_agrees(struct server *s, struct slot *slot, const struct plan *plan);
void slot_order_note(struct slot *slot, const struct member *member);
void slot_order_check(struct server *s, const struct slot *slot, const struct member *member);

/* nccl_server_check.c: one rank's calls. Reports; a result. */
int calls_check(struct request *r, const struct fgn_call *calls, uint32_t count);
/* The registration that holds all of it; NULL: none. */
const struct registration *registration_of(const struct member *member, uint64_t address,
                                           uint64_t bytes);
/* All ranks' plans of one place: what is registered, and where. Reports. */
void registered_check(struct server *s, struct plan *const *plans, uint32_t ranks, uint32_t at);

/* nccl_server_job.c */
uint64_t job_tick(struct server *s, uint64_t now);

#endif
