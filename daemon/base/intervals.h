/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unions of time intervals [start, end), and how a rank's wait splits into its causes. Pure; one
 * thread per object.
 *
 * Lengths are taken after uniting, so nothing is counted twice. Memory is bounded: when `capacity`
 * disjoint intervals are held, adding one more joins the neighbours with the smallest gaps, a
 * quarter of all (so that they are looked for once in many times), at least one; by those gaps the
 * total is then too long.
 */
#ifndef GW_BASE_INTERVALS_H
#define GW_BASE_INTERVALS_H

#include <stddef.h>
#include <stdint.h>

struct interval {
    uint64_t start, end;
};

struct intervals;

/* capacity >= 1. GW_E_INVALID, GW_E_NOMEM. */
int intervals_new(size_t capacity, struct intervals **ret_set);
struct intervals *intervals_free(struct intervals *set);
void intervals_clear(struct intervals *set);
/* Empty ones (end <= start) are ignored; touching ones become one. */
void intervals_add(struct intervals *set, uint64_t start, uint64_t end);
/* Length of the union. */
uint64_t intervals_total(const struct intervals *set);
/* Those that do not end before `start`, found without a look at the others. Disjoint, ascending;
 * valid until the next change. */
const struct interval *intervals_from(const struct intervals *set, uint64_t start,
                                      size_t *ret_count);

/* An op that somebody waited for: when the last rank had submitted it, it started, it was done. */
struct wait_op {
    uint64_t ready, started, done;
};

struct wait_parts {
    uint64_t late;    /* the rest: before ready, another rank was slow */
    uint64_t queued;  /* in some [ready, started), and in no [started, done) */
    uint64_t exposed; /* in some [started, done) */
    uint64_t wakeup;  /* after the last done */
};

/* Splits the wait [w0, w1) for `count` ops. The parts add up to exactly w1 - w0 (0 if w1 < w0),
 * whatever the stamps are. An op whose done is 0 has no stamps and is left out; with no op left,
 * all is late. Time grows with the square of count: give the ops of one wait. */
void wait_split(uint64_t w0, uint64_t w1, const struct wait_op *ops, size_t count,
                struct wait_parts *ret_parts);

#endif
