/* SPDX-License-Identifier: Apache-2.0 */
/* Contribution counts and ring slots; see ledger.h. Pure; the caller serialises. */
#include "client/lib/ledger.h"

#include <stdlib.h>

#include "gradwire/gradwire.h"

/* A new micro-step: who is still to come. A bucket whose pieces were all FINAL before has no
 * contribution any more. */
static void open_bucket(const struct ledger *ledger, uint32_t b)
{
    struct ledger_bucket *bucket = &ledger->buckets[b];

    bool member = ledger->groups >> ledger->layout_buckets[b].group & 1;

    bucket->outstanding = member ? ledger->layout_buckets[b].pieces - bucket->finals : 0;
    bucket->closed = bucket->outstanding == 0;
    bucket->declared = 0;
    bucket->slot = GW_NO_SLOT;
}

int ledger_new(const struct gw_layout_page *page, const struct gw_layout_piece *pieces,
               const struct gw_layout_bucket *buckets, uint64_t groups, uint32_t ring_slots,
               uint32_t micro_steps, bool local, struct ledger **ret_ledger)
{
    struct ledger *ledger = calloc(1, sizeof(*ledger));

    if (!ledger)
        return GW_E_NOMEM;
    ledger->layout_pieces = pieces;
    ledger->layout_buckets = buckets;
    ledger->piece_count = page->pieces;
    ledger->bucket_count = page->buckets;
    ledger->groups = groups;
    ledger->slot_count = ring_slots;
    ledger->slot_room = ring_slots ? ring_slots + GW_OVERFLOW_MAX : 0;
    ledger->micro_steps = micro_steps;
    ledger->ring = ring_slots > 0;
    ledger->local = local;
    ledger->pieces = calloc((size_t)page->pieces + 1, sizeof(*ledger->pieces));
    ledger->buckets = calloc((size_t)page->buckets + 1, sizeof(*ledger->buckets));
    ledger->frozen = calloc((size_t)page->buckets + 1, sizeof(*ledger->frozen));
    ledger->slots = calloc((size_t)ledger->slot_room + 1, sizeof(*ledger->slots));
    if (!ledger->pieces || !ledger->buckets || !ledger->slots || !ledger->frozen) {
        ledger_free(ledger);
        return GW_E_NOMEM;
    }
    for (uint32_t b = 0; b < page->buckets; b++)
        open_bucket(ledger, b);
    *ret_ledger = ledger;
    return 0;
}

struct ledger *ledger_free(struct ledger *ledger)
{
    if (!ledger)
        return NULL;
    free(ledger->pieces);
    free(ledger->buckets);
    free(ledger->slots);
    free(ledger->frozen);
    free(ledger);
    return NULL;
}

enum ledger_refusal ledger_check_acquire(const struct ledger *ledger, uint32_t piece)
{
    const struct ledger_piece *p = &ledger->pieces[piece];

    if (ledger->shut)
        return LEDGER_SHUT;
    if (p->ready)
        return LEDGER_TWICE;
    if (p->frozen)
        return LEDGER_FROZEN;
    return p->final ? LEDGER_WAS_FINAL : LEDGER_OK;
}

/* Checks come before the message is sent, changes after: a message that cannot be sent (GW_E_AGAIN)
 * leaves the account as it was. The engine would end the job for what is refused here. */
enum ledger_refusal ledger_check_ready(const struct ledger *ledger, uint32_t piece, uint32_t flags)
{
    const struct ledger_piece *p = &ledger->pieces[piece];
    const struct ledger_bucket *bucket = &ledger->buckets[ledger->layout_pieces[piece].bucket];
    uint8_t mode = flags & GW_GRAD_RUNNING ? 2 : 1;

    if (ledger->shut)
        return LEDGER_SHUT;
    if (p->ready)
        return LEDGER_TWICE;
    if (p->frozen)
        return LEDGER_FROZEN;
    if (p->final)
        return LEDGER_WAS_FINAL;
    if (!p->acquired)
        return LEDGER_NOT_ACQUIRED;
    if (mode == 2 && !ledger->local)
        return LEDGER_NOT_LOCAL;
    if (bucket->mode != 0 && bucket->mode != mode)
        return LEDGER_MIXED;
    if ((flags & GW_GRAD_ACCUMULATE) && ledger->micro + 1 >= ledger->micro_steps)
        return LEDGER_LAST_MICRO;
    return LEDGER_OK;
}

enum ledger_refusal ledger_check_micro_end(const struct ledger *ledger)
{
    return ledger->micro + 1 >= ledger->micro_steps ? LEDGER_LAST_MICRO : LEDGER_OK;
}

void ledger_acquire(struct ledger *ledger, uint32_t piece)
{
    ledger->pieces[piece].acquired = true;
}

static void close_contribution(struct ledger *ledger, struct ledger_bucket *bucket)
{
    struct ledger_slot *slot;

    bucket->closed = true;
    bucket->count++;
    if (bucket->slot == GW_NO_SLOT)
        return;
    slot = &ledger->slots[bucket->slot];
    slot->filling = false;
    /* A slot of which nothing was declared is unknown to the engine: it is as it was before. */
    if (bucket->declared > 0) {
        slot->until = bucket->count;
    } else {
        slot->bucket = slot->after_bucket;
        slot->until = slot->after;
    }
    bucket->slot = GW_NO_SLOT;
}

bool ledger_completes(const struct ledger *ledger, uint32_t piece)
{
    return ledger->buckets[ledger->layout_pieces[piece].bucket].outstanding == 1;
}

/* finals count at once, but the bucket's contribution of this micro-step is due all the same; they
 * matter when the next one opens. */
bool ledger_ready(struct ledger *ledger, uint32_t piece, uint32_t flags)
{
    struct ledger_piece *p = &ledger->pieces[piece];
    struct ledger_bucket *bucket = &ledger->buckets[ledger->layout_pieces[piece].bucket];

    p->ready = true;
    ledger->declared = true;
    bucket->mode = flags & GW_GRAD_RUNNING ? 2 : 1;
    bucket->declared++;
    if (!(flags & GW_GRAD_ACCUMULATE)) {
        p->final = true;
        bucket->finals++;
    }
    if (--bucket->outstanding > 0)
        return false;
    close_contribution(ledger, bucket);
    return true;
}

/* What was acquired and never declared is void: its memory may be another bucket's from now on. */
static void close_all(struct ledger *ledger)
{
    for (uint32_t b = 0; b < ledger->bucket_count; b++) {
        if (!ledger->buckets[b].closed)
            close_contribution(ledger, &ledger->buckets[b]);
    }
    for (uint32_t p = 0; p < ledger->piece_count; p++)
        ledger->pieces[p].acquired = ledger->pieces[p].ready = false;
}

void ledger_micro_end(struct ledger *ledger)
{
    close_all(ledger);
    ledger->micro++;
    ledger->declared = true;
    for (uint32_t b = 0; b < ledger->bucket_count; b++)
        open_bucket(ledger, b);
}

static void open_step(struct ledger *ledger)
{
    ledger->micro = 0;
    ledger->declared = false;
    for (uint32_t p = 0; p < ledger->piece_count; p++)
        ledger->pieces[p].final = false;
    for (uint32_t b = 0; b < ledger->bucket_count; b++) {
        ledger->buckets[b].finals = ledger->frozen[b];
        ledger->buckets[b].mode = 0;
        open_bucket(ledger, b);
    }
}

void ledger_step_end(struct ledger *ledger)
{
    close_all(ledger);
    open_step(ledger);
}

void ledger_freeze(struct ledger *ledger, const struct gw_layout_param *params, uint32_t count,
                   const uint8_t *bits)
{
    for (uint32_t b = 0; b < ledger->bucket_count; b++)
        ledger->frozen[b] = 0;
    for (uint32_t p = 0; p < count; p++) {
        bool frozen = bits[p / 8] >> (p & 7) & 1;

        for (uint32_t i = 0; i < params[p].pieces; i++) {
            uint32_t piece = params[p].first_piece + i;

            ledger->pieces[piece].frozen = frozen;
            ledger->frozen[ledger->layout_pieces[piece].bucket] += frozen;
        }
    }
    open_step(ledger);
}

/* `until` is the contribution that lay in the slot; the word counts the consumed ones. */
static bool slot_free(const struct ledger_slot *slot, const struct gw_shm_slot *words,
                      bool ignore_words)
{
    if (slot->filling)
        return false;
    if (slot->until == 0 || ignore_words)
        return true;
    return atomic_load_explicit(&words[slot->bucket].value, memory_order_acquire) >= slot->until;
}

void ledger_slot_give(struct ledger *ledger, uint32_t bucket, uint32_t slot)
{
    struct ledger_bucket *b = &ledger->buckets[bucket];

    if (b->closed || b->slot != GW_NO_SLOT || ledger->slots[slot].filling)
        return;
    ledger->slots[slot] = (struct ledger_slot){.filling = true,
                                               .bucket = bucket,
                                               .given = ++ledger->gives,
                                               .after_bucket = ledger->slots[slot].bucket,
                                               .after = ledger->slots[slot].until};
    b->slot = slot;
}

int ledger_slot_reuse(struct ledger *ledger, uint32_t bucket, uint32_t slot, uint64_t asked)
{
    if (slot >= ledger->slot_count)
        return GW_E_LIMIT;
    if (ledger->slots[slot].given > asked)
        return 0;
    ledger_slot_give(ledger, bucket, slot);
    return 0;
}

uint64_t ledger_slot_after(const struct ledger *ledger, uint32_t bucket, uint32_t *ret_bucket)
{
    const struct ledger_bucket *b = &ledger->buckets[bucket];

    *ret_bucket = bucket;
    if (!ledger->ring)
        return b->count; /* contributions before: the same memory */
    if (b->slot == GW_NO_SLOT)
        return 0;
    *ret_bucket = ledger->slots[b->slot].after_bucket;
    return ledger->slots[b->slot].after;
}

/* The lowest free slot: a ring that is larger than needed stays untouched at its end. */
bool ledger_slot_take(struct ledger *ledger, uint32_t bucket, const struct gw_shm_slot *words,
                      bool ignore_words)
{
    for (uint32_t i = 0; i < ledger->slot_count; i++) {
        if (!slot_free(&ledger->slots[i], words, ignore_words))
            continue;
        ledger_slot_give(ledger, bucket, i);
        return true;
    }
    return false;
}

int ledger_slot_add(struct ledger *ledger, uint32_t slot)
{
    if (slot > ledger->slot_count || slot >= ledger->slot_room)
        return GW_E_LIMIT;
    if (slot == ledger->slot_count)
        ledger->slot_count++;
    return 0;
}
