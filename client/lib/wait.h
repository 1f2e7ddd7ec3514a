/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens against the shared pages. A token is reached once its 64-bit word is >= its value; a
 * waiter sleeps on the engine page's wake word, or on the job page's, in slices; after one that
 * nobody ended, and after 200 ms of others, it looks after the socket.
 *
 *   engine: word = value; wake++; if (waiting > 0) FUTEX_WAKE(wake)
 *   client: waiting++; w = wake; word still too low? FUTEX_WAIT(wake, w); waiting--
 *
 * `waiting` is a count for each line of slots (proto/shm.h), and a line a bit of the futex: only
 * words of their own lines wake sleepers. Accesses of `wake` and `waiting` are sequentially
 * consistent on both sides: either the engine sees `waiting`, or the client sees the new word or
 * wake: no wake-up is lost. The job page's word, with counts of its own (`together`), rises with
 * any rank's: one call wakes all that wait for what ends for all at once. Any thread; no lock is
 * held while sleeping.
 */
#ifndef GW_CLIENT_WAIT_H
#define GW_CLIENT_WAIT_H

#include <stdbool.h>

#include "client/lib/job.h"

/* When a call slept: w0 == w1 if it did not. */
struct wait_time {
    int64_t w0, w1;
};

/* The token's slot (not for GW_TL_CLIENT and GW_TL_NONE: NULL). GW_E_INVALID for a token that this
 * job cannot have. */
int wait_slot(const gw_job *job, struct gw_token token, const struct gw_shm_slot **ret_slot);
/* The token's word; 0 for a token that this job cannot have. */
uint64_t wait_word(const gw_job *job, struct gw_token token);
bool wait_reached(gw_job *job, struct gw_token token);
/* All tokens, or the first of them (`any`; index in *ret_index). GW_E_TIMEOUT (no text set), or the
 * job's failure. *ret_time is set in any case. Does not record the wait. */
int wait_tokens(gw_job *job, const struct gw_token *tokens, size_t count, bool any,
                int64_t deadline, size_t *ret_index, struct wait_time *ret_time);
/* Adds a wait for tokens to the rank's split, by the ops that they stand for. */
void wait_record(gw_job *job, const struct gw_token *tokens, size_t count, struct wait_time time);
/* The edge that a public wait on these tokens stands for is dropped by a test. */
bool wait_dropped(const gw_job *job, const struct gw_token *tokens, size_t count);
/* Sleeps until something of the slot has changed since the wake word was `wake`, or the slice is
 * over. */
void wait_doze(gw_job *job, const struct gw_shm_slot *slot, uint32_t wake, int64_t slice_ns);
/* Wakes this process's own waiters (they look again). */
void wait_wake(gw_job *job);

#endif
