/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ZeRO layer of one rank: parameters before the seal, layout, memory and step state after it.
 *
 * What the seal fixes (layout, maps, spans) is read without a lock; the rest is under job->lock.
 * Memory, by arena (proto/wire.h): gradients are written through `grads` or `ring`, gathered and
 * full parameters are read through read-only views, the rank's own spans are written through a
 * second, writable mapping of the same memory.
 */
#ifndef GW_CLIENT_ZERO_H
#define GW_CLIENT_ZERO_H

#include "client/lib/job.h"
#include "client/lib/layout_view.h"
#include "client/lib/ledger.h"
#include "proto/place.h"

struct params_entry {
    char *name, *unit; /* unit "" : one of its own */
    uint64_t numel;
    uint32_t dtype, grad_dtype, group;
};

struct params_group {
    uint32_t count, shard_ranks;
    uint32_t ranks[GW_RANKS_MAX];
};

/* The lists of gw_param_add and gw_param_group_add; kept after the seal for comparison only. Under
 * job->lock. */
struct params {
    struct params_entry *entries;
    uint32_t count, room;
    uint32_t registered; /* first entries that the engine has */
    struct params_group *groups; /* from group 1 on */
    uint32_t group_count, groups_registered;
    bool frozen;         /* gw_seal has begun */
    bool sealing;        /* some thread is inside gw_seal */
};

/* What tells whether a fetch is a hit (proto/shm.h, gw_shm_board): numbers of declarations, which
 * are the rank's fetches and step ends. */
struct hits {
    uint64_t declared;
    uint64_t cleared; /* the last fetch that was no hit, or step end */
    uint64_t fetched; /* the last fetch, of fetch unit `unit` */
    uint64_t other;   /* the last fetch of another one */
    uint32_t unit;
    uint64_t *touched; /* by fetch unit: its last fetch */
    struct hit {
        uint64_t value, offset; /* fetch `value` was a hit there; 0: none yet */
    } * last;                   /* by unit */
};

struct zero_array {
    struct zero_array *next;
    char name[GW_LABEL_MAX + 1];
    uint32_t dtype;
    struct map map;
};

struct zero {
    /* Fixed by the seal. */
    struct layout_view view;
    const struct gw_layout_page *page; /* = view.page */
    void *copy;                        /* the page's bytes */
    uint8_t hash[32];
    struct wire_seal options; /* defaults of 0 filled in, as far as the client needs them */
    struct place *place;
    struct gw_span *spans; /* of the buckets whose groups the rank is in */
    uint32_t span_count;
    uint32_t *span_of; /* by bucket; UINT32_MAX: none */
    struct map board_map;
    const struct gw_shm_board *board;
    const struct gw_shm_slot *bucket_slots, *unit_slots;
    const uint8_t *board_used;

    struct map params_view; /* read-only: full parameters (stages 0-2, mapped) */
    struct map params;      /* writable: full (stages 0-2, mapped) or the spans (private) */
    struct map master;      /* writable: fp32 spans of fp16 and bf16 parameters */
    struct map grads, grads_view, ring, acc, shard_grads, pool;
    struct map verdict; /* on a device, once asked for */

    /* Under job->lock. */
    struct ledger *ledger;
    struct map overflow[GW_OVERFLOW_MAX];
    struct map staging;
    bool staging_busy;
    bool acquiring; /* one thread asks for a ring slot, others wait on job->cond */
    bool asked;     /* an ACQUIRE whose deadline passed is still out, for asked_bucket */
    uint32_t asked_bucket;
    uint64_t asked_gives; /* the ledger's count of gives when it was sent */
    uint64_t *fetches, *releases;
    struct hits hits;
    uint64_t steps;         /* ended by this rank */
    uint64_t updated;       /* last step that was updated */
    uint64_t window_waited; /* step whose update window a stream of the caller waits for */
    bool updating, begun;   /* update window asked for; a call of the next step was made */
    uint64_t epoch;         /* gw_freeze calls that counted */
    uint64_t first;         /* steps that had ended when this handle was sealed */
    uint64_t waited;        /* step whose verdict was read last */
    uint8_t *used;          /* its used-parameter bits */
    struct zero_array *arrays;
    atomic_uint_fast64_t copied_in_bytes;
};

/* ---- set-up (seal.c, memory.c, params.c) */
void params_free(struct params *params);
/* Takes the SEALED reply: copies, checks and keeps the layout, maps the board. */
int zero_new(gw_job *job, const struct wire_seal *options, struct reply *reply,
             struct zero **ret_zero);
struct zero *zero_free(struct zero *zero);
void zero_close(gw_job *job);
/* Gets and maps what the stage has and is not mapped yet; fills the spans. */
int memory_map(gw_job *job, struct zero *zero, int64_t deadline);
/* Asks for one arena; `view` gets a read-only, `map` a writable mapping (either may be NULL). On a
 * device both are the same mapping; the memory's owner is `map` if both are asked for. */
int memory_get(gw_job *job, enum gw_arena_kind kind, uint32_t index, uint64_t bytes,
               const char *what, int64_t deadline, struct map *view, struct map *map);

/* ---- fetch.c */
/* A step end was sent. Lock held. */
void fetch_step_ended(struct zero *zero);

/* ---- state */
/* The job is sealed: *ret_zero. sealed: may have failed (job_enter); enter: has not (job_check). */
int zero_sealed(const gw_job *job, struct zero **ret_zero);
int zero_enter(gw_job *job, struct zero **ret_zero);
int zero_param_check(const struct zero *zero, uint32_t param);
/* ... and the rank is in its group: GW_E_NOT_FOUND. */
int zero_param_held(const gw_job *job, const struct zero *zero, uint32_t param);
/* The rank's span of a bucket; NULL: it is not in the bucket's group. */
static inline const struct gw_span *zero_span(const struct zero *zero, uint32_t bucket)
{
    return zero->span_of[bucket] == UINT32_MAX ? NULL : &zero->spans[zero->span_of[bucket]];
}
const char *zero_param_name(const struct zero *zero, uint32_t param);
/* Where a parameter that the rank holds begins: in the pool, its unit's gather being at
 * pool_offset; else in the full parameters. It has pieces. */
static inline uint64_t zero_param_at(const struct zero *zero, uint32_t param, uint64_t pool_offset)
{
    const struct gw_layout_param *p = &zero->view.params[param];
    const struct gw_layout_piece *piece = &zero->view.pieces[p->first_piece];
    uint64_t in_bucket = piece->bucket_offset * gw_dtype_bytes(p->dtype);

    if (!zero->pool.base)
        return place_params(zero->place, piece->bucket).offset_bytes + in_bucket;
    return (p->persistent ? 0 : pool_offset) + place_gathered(zero->place, piece->bucket) +
           in_bucket;
}
static inline struct gw_token zero_token(uint32_t timeline, uint64_t value)
{
    return (struct gw_token){.timeline = timeline, .value = value};
}

#endif
