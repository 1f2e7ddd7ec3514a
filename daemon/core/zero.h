/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ZeRO layer of the core: ledger of gradients, steps, updates, fetches, for one sealed layout
 * and its groups of ranks. Pure; one thread. core.c owns membership and hands its events over.
 */
#ifndef GW_CORE_ZERO_H
#define GW_CORE_ZERO_H

#include "daemon/core/core.h"
#include "daemon/core/effects.h"

struct zero;

/* Something a client did that ends the job, and whose fault it was. */
struct core_fault {
    int code;
    uint32_t rank; /* cause, or UINT32_MAX */
    char text[GW_TEXT_MAX + 1];
};

/* The oldest thing that some ranks wait for. */
struct core_wait {
    uint64_t since_ns;    /* when the first rank arrived */
    struct ranks missing; /* that have not arrived */
    uint64_t op;          /* 0; or tells it from others, and the text is made when it is needed */
    char text[GW_TEXT_MAX + 1]; /* "reduce-scatter of bucket 3 (step 12)" */
};

/* `layout` and `effects` stay the caller's. options: defaults filled in. ordered: the clients order
 * their work by streams and declare it before it is done; else hosts wait before they declare. */
int zero_new(const struct layout *layout, const struct wire_seal *options, uint32_t world,
             bool ordered, uint64_t drop_edges, struct effects *effects, struct zero **ret_zero);
struct zero *zero_free(struct zero *zero);

/* REQUEST events of types READY, ACQUIRE, MICRO_END, STEP_END, UPDATE_BEGIN, UPDATE_COMMIT, FETCH,
 * RELEASE, PARAM_IO, MEASURE; HEARD and OVERFLOW. 0, or < 0 with *ret_fault: the job fails. */
int zero_event(struct zero *zero, uint64_t now_ns, const struct core_event *event,
               struct core_fault *ret_fault);
/* As core_unheard. */
uint32_t zero_unheard(const struct zero *zero);
/* An op of this layer (or any other: ignored) is done. */
void zero_op_done(struct zero *zero, uint64_t now_ns, uint64_t op, uint64_t started_ns,
                  uint64_t done_ns);
/* Rank is gone for good in this generation: true if something waits, or will wait, for it. */
bool zero_needs(const struct zero *zero, uint32_t rank);
/* The generation has broken, but a rank still says what it had begun before it knew: that it
 * updates its shard, or has. Only remembered, for zero_reattach. */
void zero_late_update(struct zero *zero, uint32_t rank, bool commit);
/* Oldest wait; false: none. */
bool zero_oldest_wait(const struct zero *zero, struct core_wait *ret_wait);
/* All ranks are back with an equal layout: forget the unfinished step. GW_E_TORN with *ret_fault if
 * an owner died inside its update or versions differ between owners. */
int zero_reattach(struct zero *zero, struct core_fault *ret_fault);
/* After that, once memory is made: launches what rounds and gathers the broken generation may not
 * have finished. */
void zero_renew(struct zero *zero, uint64_t now_ns);

/* Jobs whose clients order by streams only. A client's stream may wait for what the client declared
 * last before it does what is declared next. So what a rank declares is let go in the order of its
 * calls, over this layer and the collectives, and the order of effects is one in which everything
 * can run, one after the other: whatever launches and signals stand in one queue of the device, in
 * this order, none waits for what is behind it.
 * - a message with gradients, or the end of an update or step, is handled when the verdict, window
 *   and fetches before it are launched, or their signals given;
 * - a message is handled when the rank's collectives before it are launched;
 * - a collective may be launched when the messages before it are handled and their ops launched, as
 *   far as a stream may wait for these. */
/* The rank has submitted a collective; returns what zero_settled takes. */
uint64_t zero_op_submitted(struct zero *zero, uint32_t rank);
bool zero_settled(const struct zero *zero, uint32_t rank, uint64_t mark);
/* It was launched. Then zero_resume: messages that waited for it; as zero_event. */
void zero_op_launched(struct zero *zero, uint32_t rank);
int zero_resume(struct zero *zero, uint64_t now_ns, struct core_fault *ret_fault);

uint64_t zero_steps(const struct zero *zero);
uint64_t zero_arena_bytes(const struct zero *zero, enum gw_arena_kind kind, int rank);
struct core_ref zero_param_slice(const struct zero *zero, uint32_t bucket, uint32_t rank);
struct core_ref zero_master_slice(const struct zero *zero, uint32_t bucket, uint32_t rank);
struct core_ref zero_secondary_slice(const struct zero *zero, uint32_t bucket, uint32_t rank);
struct core_ref zero_param_ref(const struct zero *zero, uint32_t param, uint64_t offset,
                               uint32_t rank, uint64_t *ret_count);
struct core_ref zero_master_ref(const struct zero *zero, uint32_t param, uint64_t offset,
                                uint32_t rank, uint64_t *ret_count);
uint64_t zero_gathered(const struct zero *zero, uint32_t bucket, uint32_t rank);
void zero_stats(const struct zero *zero, uint32_t rank, struct wire_msg *msg);

/* ---- zero_grant.c: as core_next_grant and core_progress */
bool grant_next(struct zero *zero, struct core_grant *ret_grant);
bool grant_progress(struct zero *zero, uint32_t rank, struct core_progress *ret_progress);

#endif
