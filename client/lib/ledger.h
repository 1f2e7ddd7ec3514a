/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rank's own account of its gradients: which pieces it has handed over in this micro-step, how
 * many contributions to each bucket it has closed, and which ring slot holds what. Pure: no clock,
 * page or message; the caller serialises calls.
 *
 * Contributions are counted exactly as the engine counts them: every micro-step of a step closes
 * one contribution to each bucket, unless all pieces of the bucket were FINAL in an earlier
 * micro-step of the step (then none any more). It is closed when the bucket's last outstanding
 * piece is ready, else when the micro-step or step ends. The bucket's timeline counts those that
 * the engine has consumed, so memory of contribution c is free once the word is >= c.
 */
#ifndef GW_CLIENT_LEDGER_H
#define GW_CLIENT_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/layout_page.h"
#include "proto/shm.h"

struct ledger_piece {
    bool acquired, ready; /* in this micro-step */
    bool final;           /* in this step */
    bool frozen;          /* has no gradient until ledger_freeze says otherwise */
};

struct ledger_bucket {
    uint64_t count;       /* contributions closed, over all steps */
    uint32_t outstanding; /* pieces still to come in this micro-step */
    uint32_t finals;      /* pieces that were FINAL so far in this step, or are frozen */
    uint32_t declared;    /* pieces ready in this micro-step */
    uint32_t slot;        /* ring slot of the open contribution, or GW_NO_SLOT */
    bool closed;          /* this micro-step's contribution is closed, or there is none */
    uint8_t mode;         /* 0, or 1 + GW_GRAD_RUNNING bit of this step's contributions */
};

struct ledger_slot {
    bool filling;    /* holds an open contribution */
    uint32_t bucket; /* that used it last */
    uint64_t until;  /* free once the bucket's word is >= until; 0: never used */
    /* While it is filling: the use before, which may be over only for who waits in a stream. */
    uint32_t after_bucket;
    uint64_t after; /* 0: none */
    uint64_t given; /* which giving of the ledger's this use began with */
};

struct ledger {
    const struct gw_layout_piece *layout_pieces;
    const struct gw_layout_bucket *layout_buckets;
    uint32_t piece_count, bucket_count, slot_count, slot_room;
    uint64_t groups;
    uint32_t *frozen; /* by bucket: frozen pieces */
    uint32_t micro, micro_steps;
    bool ring;     /* gradients are written into ring slots */
    bool local;    /* accumulate = local: RUNNING is allowed */
    bool declared; /* some piece of this step was declared */
    bool shut;     /* nothing may be declared now (freeze.c) */
    struct ledger_piece *pieces;
    struct ledger_bucket *buckets;
    struct ledger_slot *slots;
    uint64_t gives; /* of slots to contributions, so far */
};

/* Why a call is refused; grad.c has the words. */
enum ledger_refusal {
    LEDGER_OK = 0,
    LEDGER_TWICE,     /* ready already in this micro-step */
    LEDGER_SHUT,      /* gw_freeze is under way */
    LEDGER_FROZEN,
    LEDGER_WAS_FINAL, /* FINAL in an earlier micro-step */
    LEDGER_NOT_ACQUIRED,
    LEDGER_MIXED,      /* RUNNING and REPLACE in one bucket and step */
    LEDGER_NOT_LOCAL,  /* RUNNING with accumulate = shard */
    LEDGER_LAST_MICRO, /* ACCUMULATE, or gw_micro_step_end, in the last micro-step */
};

/* The arrays of the layout stay the caller's. groups: a bit for each that the rank is in; it makes
 * no contribution to buckets of others. ring_slots 0: full gradient buffer. GW_E_NOMEM. */
int ledger_new(const struct gw_layout_page *page, const struct gw_layout_piece *pieces,
               const struct gw_layout_bucket *buckets, uint64_t groups, uint32_t ring_slots,
               uint32_t micro_steps, bool local, struct ledger **ret_ledger);
struct ledger *ledger_free(struct ledger *ledger);

enum ledger_refusal ledger_check_acquire(const struct ledger *ledger, uint32_t piece);
enum ledger_refusal ledger_check_ready(const struct ledger *ledger, uint32_t piece, uint32_t flags);
enum ledger_refusal ledger_check_micro_end(const struct ledger *ledger);

/* After a check said LEDGER_OK. */
void ledger_acquire(struct ledger *ledger, uint32_t piece);
/* True: the bucket's contribution is complete with this piece (ledger_completes tells before). */
bool ledger_ready(struct ledger *ledger, uint32_t piece, uint32_t flags);
bool ledger_completes(const struct ledger *ledger, uint32_t piece);
void ledger_micro_end(struct ledger *ledger);
void ledger_step_end(struct ledger *ledger);
/* Between steps: exactly these parameters' pieces are frozen from now on. bits: one for each
 * parameter, lowest first. */
void ledger_freeze(struct ledger *ledger, const struct gw_layout_param *params, uint32_t count,
                   const uint8_t *bits);

/* Gives the bucket's open contribution a slot that is free: never used, or consumed according to
 * the board's bucket words. `ignore_words`: the dropped edge BUFFER_CONSUMED. False: none free. */
bool ledger_slot_take(struct ledger *ledger, uint32_t bucket, const struct gw_shm_slot *words,
                      bool ignore_words);
/* An overflow slot was granted: slot numbers grow by one. GW_E_LIMIT when `slot` is not the next
 * number or one that is known. */
int ledger_slot_add(struct ledger *ledger, uint32_t slot);
/* A slot of ours whose reduction is launched: it may be used again behind a stream's wait for
 * ledger_slot_after. asked: ledger->gives when the engine was asked; nothing happens if the slot
 * was given away since, for then its answer is about an earlier use. GW_E_LIMIT: no such slot. */
int ledger_slot_reuse(struct ledger *ledger, uint32_t bucket, uint32_t slot, uint64_t asked);
/* What the memory of the bucket's open contribution was used for before: its bucket, and the value
 * of that bucket's word from which on it is over; 0: nothing. */
uint64_t ledger_slot_after(const struct ledger *ledger, uint32_t bucket, uint32_t *ret_bucket);
/* Gives a free slot to the bucket if its contribution is open and has none. */
void ledger_slot_give(struct ledger *ledger, uint32_t bucket, uint32_t slot);

#endif
