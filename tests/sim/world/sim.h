/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated job: the real core, a virtual clock, no process, thread or socket.
 *
 *   clients --queues--> core --effects--> streams of a virtual device --> words and memory
 *      ^                                                                      |
 *      '----------------------------------------------------------------------'
 *
 * Clients follow the rules of libgradwire; the device runs ops on real arrays, each stream in
 * order, streams in any order that waits and tokens allow; the next thing to happen is drawn from a
 * seed. Every value that a client may read is compared with the reference at the moment it may be
 * read. The first thing that is wrong ends the run and is kept as a text.
 *
 * Clients come in two kinds. On the host a client waits, reads, writes and then declares. With
 * streams (a job on GPUs) it only enqueues all that into streams of its own, declares at once, with
 * tokens that the streams raise when they get there, and runs ahead as far as its slots allow.
 *
 * One thread. `steps` here count from 0; boards and verdicts from 1.
 */
#ifndef GW_SIM_H
#define GW_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"

#define SIM_RANKS_MAX 8u
#define SIM_STEPS_MAX 16u
#define SIM_UNITS_MAX 64u
#define SIM_PARAMS_MAX 32u
#define SIM_REPORTS_MAX 16u
#define SIM_GROUPS_MAX 4u /* the world included */
#define SIM_NEVER UINT32_MAX

/* An fp32 parameter of all ranks. */
#define SIM_PARAM(name_, unit_, numel_)                                                            \
    {                                                                                              \
        .name = (name_), .unit = (unit_), .numel = (numel_)                                        \
    }

/* Edges that clients keep (edges.def, side CLIENT); to show that the simulator sees them broken. */
enum sim_client_edge {
    SIM_DROP_BUFFER_CONSUMED = 1u << 0,
    SIM_DROP_VERDICT_READ = 1u << 1,
    SIM_DROP_GATHERED = 1u << 2,
};

/* What is simulated. Chances are per thousand and drawn from the seed, so that the reference knows
 * them too. Speeds are weights of the draw; 0 means 10. */
struct sim_plan {
    uint64_t seed;
    uint32_t world, steps, param_count;
    const struct layout_param *params;
    const struct layout_group *groups; /* from group 1 on */
    uint32_t group_count;
    struct wire_seal seal;
    struct core_config config; /* world is filled in */

    uint32_t unused;      /* a rank does not use a parameter in a micro-step */
    uint32_t early_final; /* FINAL is said before the last micro-step in which it could be used */
    uint32_t token;       /* a gradient is declared before it is written */
    uint32_t no_update;   /* a step ends without an update */
    uint32_t run_ahead;   /* then: without waiting for the verdict either */
    uint32_t skip_unit;   /* a rank does not fetch a unit that it does not need in a step */
    uint32_t other_order; /* a rank fetches units in another order in a step */
    uint32_t freeze;      /* other parameters are frozen from a step on */
    uint32_t twice;       /* a unit is fetched by two threads at once */
    uint32_t hold_units;  /* how many units are held before the first is released; 0: one */
    bool running;         /* contributions are RUNNING (accumulate local) */
    bool fetch;           /* units are fetched, forward and backward */
    bool impatient;   /* clients do not wait for the answer when a slot becomes free by itself */
    bool blind;       /* updates use no gradient and wait for no verdict */
    bool early_grads; /* the next step's first gradients come inside the update window */
    bool shuffle;     /* gradients come in random order, other on each rank */
    bool streams;     /* clients of a job on GPUs */
    bool deaf;        /* the core hears of no completion while anything else can happen; and if the
                       * steps cannot go on without one, that is an error */
    bool narrow;      /* streams: the device has one queue, in which all ops and signals stand in
                       * the order of the core's effects */
    bool sums;        /* streams: a collective in each step */
    bool idle_skip;   /* who owns nothing makes no update */
    bool measure;     /* the comm_alone passes come first */
    uint32_t infinite_step;    /* rank 1 % world has an infinity then; SIM_NEVER */
    uint32_t micro_short_rank; /* ends one micro-step fewer (C04); SIM_NEVER */

    uint32_t client_speed[SIM_RANKS_MAX], wire_speed[SIM_RANKS_MAX];
    uint32_t stream_speed[SIM_RANKS_MAX];
    uint32_t reduce_speed, control_speed, gather_speed, done_speed;
    uint32_t drop_client; /* enum sim_client_edge */
    uint32_t slighted_rank; /* its gathers wait for all reductions; SIM_NEVER */

    /* Misfortune: rank `stop_rank` does nothing any more / is lost, in step `stop_step`, before its
     * action number stop_action of that step (modulo their count). */
    uint32_t stop_rank, stop_step, stop_action;
    bool stop_is_loss;
    bool stop_unread;     /* ... and what still lay in its socket is lost with it */
    bool rejoin;          /* then all ranks join again, once */
    bool wait_for_end;    /* or nobody does, and the run lasts until the job has ended */
    uint64_t sleep_ns;    /* the stop is a sleep */
    uint32_t never_joins; /* a rank; SIM_NEVER */
};

struct sim_report {
    uint64_t now_ns;
    char text[GW_TEXT_MAX + 1];
};

/* What came of it. */
struct sim_result {
    char error[1024]; /* a wrong value, a broken rule of the core, or who is stuck; "": none */
    int fail_code;    /* of the (last) CORE_EFF_FAIL; 0: all clients came to their end */
    uint32_t fail_rank;
    char fail_text[GW_TEXT_MAX + 1];
    uint64_t fail_ns, stop_ns; /* virtual times */
    bool ended;                /* CORE_EFF_END */
    struct sim_report reports[SIM_REPORTS_MAX];
    uint32_t report_count;
    uint64_t calls[GW_KINDS]; /* launched ops by traffic, in which rank 0 takes part */
    uint64_t payload_bytes[GW_KINDS], padding_bytes[GW_KINDS];
    uint64_t reductions[64]; /* by bucket (those below 64) */
    uint64_t second_gathers, fills; /* of all ranks: gathers from secondary shards, fills of them */
    uint64_t hits, misses, drops, gathered_max_bytes, overflow_slots; /* all ranks */
    uint64_t params_hash; /* of all final parameters, in registration order */
    uint64_t draws;       /* events until the end */
    bool rejoined;
    uint32_t steps_before; /* rejoin: completed when the job formed again */
    /* When a rank was lost: some owner had begun its update / had written in it / had committed one
     * update more than another. */
    bool lost_in_update, lost_half_written, lost_between_commits;
};

/* Parameters with the memory of their names. */
struct sim_model {
    struct layout_param params[SIM_PARAMS_MAX];
    char names[SIM_PARAMS_MAX][16], units[SIM_PARAMS_MAX][16];
    uint32_t count;
    struct layout_group groups[SIM_GROUPS_MAX - 1];
    uint32_t ranks[SIM_GROUPS_MAX - 1][SIM_RANKS_MAX];
    uint32_t group_count;
};

/* Runs a plan to its end. */
void sim_run(const struct sim_plan *plan, struct sim_result *ret_result);
/* A plan with defaults: nothing odd happens. */
struct sim_plan sim_plan_default(uint64_t seed, uint32_t stage, uint32_t world,
                                 const struct layout_param *params, uint32_t param_count);
/* Weights and orders drawn from the seed: slow devices, slow clients, slow wires. */
void sim_plan_disturb(struct sim_plan *plan, uint64_t seed);
/* The same plan for clients with streams, with what the host ones cannot do. */
void sim_plan_stream(struct sim_plan *plan, uint64_t seed);
/* A small model, and a plan over it in which everything that must not matter is drawn. */
void sim_model_random(struct sim_model *model, uint64_t seed);
void sim_plan_random(struct sim_plan *plan, const struct sim_model *model, uint32_t stage,
                     uint64_t seed);
/* The same plan with dtypes, groups, hybrid sharding, persistence and reuse drawn, too. */
void sim_plan_vary(struct sim_plan *plan, struct sim_model *model, uint64_t seed);
/* The same plan in which parameters freeze and thaw. */
void sim_plan_freeze(struct sim_plan *plan, uint64_t seed);
void sim_plan_describe(const struct sim_plan *plan, char *text, size_t bytes);

#endif
