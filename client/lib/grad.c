/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients: where to write a piece (acquire), saying that it is written (ready), and both with a
 * copy (put). Any thread; only *_sync calls wait, without the lock.
 */
#include <string.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/guard.h"
#include "client/lib/wait.h"
#include "client/lib/zero.h"

#define ASK_PAUSE_NS (1 * CLOCK_MS) /* before a ring slot is asked for once more */

/* One piece of a parameter, as a call names it. */
struct target {
    uint32_t param, piece; /* piece of the parameter */
    uint32_t index;        /* of the piece in the layout */
    const struct gw_layout_piece *layout;
};

/* The words of the ledger's refusals: which parameter, when, and what to do. Lock held. */
static int refuse(gw_job *job, const struct zero *zero, const struct target *t,
                  enum ledger_refusal refusal)
{
    const char *name = zero_param_name(zero, t->param);
    uint32_t micro = zero->ledger->micro;
    unsigned long long step = zero->steps + 1;

    switch (refusal) {
    case LEDGER_OK:
        return 0;
    case LEDGER_TWICE:
        return err_set(GW_E_DUPLICATE,
                       "the gradient of %s (piece %u) was ready already in micro-step %u of step "
                       "%llu; add shared uses up before gw_grad_ready, or end the micro-step",
                       name, t->piece, micro, step);
    case LEDGER_SHUT:
        return err_set(GW_E_STATE, "the gradient of %s comes while gw_freeze is under way", name);
    case LEDGER_FROZEN:
        return err_set(GW_E_STATE,
                       "%s is frozen and has no gradient; call gw_freeze without it before "
                       "the step",
                       name);
    case LEDGER_WAS_FINAL:
        return err_set(GW_E_STATE,
                       "the gradient of %s (piece %u) was FINAL in an earlier micro-step of step "
                       "%llu; pass GW_GRAD_ACCUMULATE there",
                       name, t->piece, step);
    case LEDGER_NOT_ACQUIRED:
        return err_set(GW_E_STATE,
                       "the gradient of %s (piece %u) has no memory yet in micro-step %u; call "
                       "gw_grad_acquire_sync first",
                       name, t->piece, micro);
    case LEDGER_MIXED:
        return err_set(GW_E_STATE,
                       "the gradient of %s (piece %u) mixes RUNNING and REPLACE with others of "
                       "bucket %u in step %llu; use one of them for all",
                       name, t->piece, t->layout->bucket, step);
    case LEDGER_NOT_LOCAL:
        return err_set(GW_E_INVALID,
                       "GW_GRAD_RUNNING for %s needs accumulate = local; with shard the service "
                       "adds",
                       name);
    case LEDGER_LAST_MICRO:
        return err_set(
            GW_E_STATE,
            "GW_GRAD_ACCUMULATE for %s in micro-step %u, but micro_steps is %u: it is the "
            "step's last; pass GW_GRAD_FINAL, or seal with more micro_steps",
            name, micro, zero->options.micro_steps);
    }
    return channel_broken(&job->channel, "a gradient was refused for no reason");
}

/* Checks the call's numbers and turns them into the layout's piece. */
static int find(gw_job *job, uint32_t param, uint32_t piece, struct zero **ret_zero,
                struct target *ret_target)
{
    const struct gw_layout_param *p;
    int r = zero_enter(job, ret_zero);

    if (r == 0)
        r = zero_param_held(job, *ret_zero, param);
    if (r < 0)
        return r;
    p = &(*ret_zero)->view.params[param];
    if (piece >= p->pieces)
        return err_set(GW_E_INVALID, "parameter %s has %u pieces, not a piece %u",
                       zero_param_name(*ret_zero, param), p->pieces, piece);
    *ret_target = (struct target){.param = param,
                                  .piece = piece,
                                  .index = p->first_piece + piece,
                                  .layout = &(*ret_zero)->view.pieces[p->first_piece + piece]};
    return 0;
}

/* ---- ring slots ------------------------------------------------------------------------------ */

/* What the wait for a slot depends on: the buckets whose reductions hold the slots. Lock held. */
static uint32_t slot_tokens(const struct ledger *ledger, struct gw_token *tokens)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < ledger->slot_count; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];

        if (!slot->filling && slot->until > 0)
            tokens[count++] = zero_token(GW_TIMELINE(GW_TL_BUCKET, slot->bucket), slot->until);
    }
    return count;
}

/* A new slot, or with `launched` one of ours that is about to be free. */
struct grant {
    uint32_t slot;
    bool launched;
};

/* Asks the engine, which answers when a slot is free or grants a new one. Without the lock. */
static int ask_slot(gw_job *job, const struct zero *zero, uint32_t bucket, int64_t deadline,
                    struct grant *ret_grant)
{
    struct reply reply = {0};
    struct grant grant;
    struct wire_msg msg;
    int r;

    memset(&msg, 0, sizeof(msg));
    msg.type = WIRE_ACQUIRE;
    msg.u.acquire.bucket = bucket;
    msg.u.acquire.ordered = job->order.ops->streams;
    r = job_request(job, &msg, WIRE_ACQUIRED, CHANNEL_PARK_ANY, deadline, &reply);
    if (r < 0)
        return r;
    grant.slot = reply.msg->u.acquired.slot;
    grant.launched = reply.msg->u.acquired.launched;
    reply_free(&job->channel, &reply);
    if (grant.launched ? !job->order.ops->streams
                       : grant.slot != GW_NO_SLOT && grant.slot < zero->options.ring_slots)
        return err_set(GW_E_PROTOCOL, "the engine granted slot %u, which cannot be", grant.slot);
    *ret_grant = grant;
    return 0;
}

/* Memory of an overflow slot, the first time that a bucket is given it. Without the lock. */
static int map_overflow(gw_job *job, struct zero *zero, uint32_t bucket, int64_t deadline)
{
    uint64_t bytes = zero->page->max_bucket_bytes;
    uint32_t slot, index;
    struct map map = {0};
    bool have;
    int r;

    pthread_mutex_lock(&job->lock);
    slot = zero->ledger->buckets[bucket].slot;
    index = slot - zero->options.ring_slots;
    have = slot == GW_NO_SLOT || slot < zero->options.ring_slots || zero->overflow[index].base;
    pthread_mutex_unlock(&job->lock);
    if (have)
        return 0;
    r = memory_get(job, GW_ARENA_OVERFLOW, index, bytes, "overflow buffer", deadline, NULL, &map);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    if (!zero->overflow[index].base) {
        zero->overflow[index] = map;
        map = (struct map){0};
    }
    pthread_mutex_unlock(&job->lock);
    map_free(&map); /* another thread was faster */
    return 0;
}

/* A granted slot is for the bucket that asked, as the engine counts it; if that has closed its
 * contribution meanwhile, the slot is simply free. Lock held. */
static int take_grant(struct zero *zero, uint32_t bucket, struct grant grant)
{
    int r = grant.launched ? ledger_slot_reuse(zero->ledger, bucket, grant.slot, zero->asked_gives)
                           : ledger_slot_add(zero->ledger, grant.slot);

    if (r < 0)
        return err_set(GW_E_PROTOCOL, "the engine granted slot %u out of turn", grant.slot);
    if (!grant.launched)
        ledger_slot_give(zero->ledger, bucket, grant.slot);
    return 0;
}

/* One thread asks at a time. Lock held on entry and return. */
static int wait_slot_free(gw_job *job, struct zero *zero, uint32_t bucket, int64_t deadline)
{
    struct grant grant = {.slot = GW_NO_SLOT};
    int r;

    if (zero->acquiring)
        return job_cond_wait(job, deadline) || clock_now() < deadline ? 0 : GW_E_TIMEOUT;
    zero->acquiring = true;
    if (!zero->asked) {
        zero->asked_bucket = bucket;
        zero->asked_gives = zero->ledger->gives;
    }
    pthread_mutex_unlock(&job->lock);
    r = ask_slot(job, zero, bucket, deadline, &grant);
    pthread_mutex_lock(&job->lock);
    zero->acquiring = false;
    zero->asked = r == GW_E_TIMEOUT;
    pthread_cond_broadcast(&job->cond);
    if (r == 0 && grant.slot != GW_NO_SLOT)
        r = take_grant(zero, zero->asked_bucket, grant);
    return r;
}

/* The bucket's slot: the one it has, a free one, or one that the engine frees or grants. Lock held
 * on entry and return, not while waiting. */
static int take_slot(gw_job *job, struct zero *zero, uint32_t bucket, int64_t deadline,
                     bool *ret_waited)
{
    bool ignore = job_edge_dropped(job, JOB_EDGE_BUFFER_CONSUMED);
    int r = 0;

    for (bool again = false; r == 0; again = true) {
        if (zero->ledger->buckets[bucket].slot != GW_NO_SLOT)
            return 0;
        if (ledger_slot_take(zero->ledger, bucket, zero->bucket_slots, ignore))
            return 0;
        *ret_waited = true;
        if (again) /* a slot was free and went to another thread, or its word is not up yet */
            job_cond_wait(job, clock_now() + ASK_PAUSE_NS);
        r = clock_now() < deadline || !again ? wait_slot_free(job, zero, bucket, deadline)
                                             : GW_E_TIMEOUT;
    }
    return r;
}

static int acquire_ring(gw_job *job, struct zero *zero, const struct target *t, int64_t deadline)
{
    struct gw_token tokens[GW_RING_SLOTS_MAX + GW_OVERFLOW_MAX];
    struct wait_time time = {.w0 = clock_now()};
    bool waited = false;
    uint32_t count;
    int r;

    pthread_mutex_lock(&job->lock);
    count = slot_tokens(zero->ledger, tokens);
    r = take_slot(job, zero, t->layout->bucket, deadline, &waited);
    pthread_mutex_unlock(&job->lock);
    time.w1 = clock_now();
    if (waited && r == 0)
        wait_record(job, tokens, count, time);
    if (r == 0)
        return map_overflow(job, zero, t->layout->bucket, deadline);
    if (job_deadline_passed(job, &r))
        return err_set(r,
                       "no bucket buffer for the gradient of %s (bucket %u) became free before "
                       "the deadline: all %u hold gradients still being reduced",
                       zero_param_name(zero, t->param), t->layout->bucket,
                       zero->ledger->slot_count);
    return r;
}

/* ---- the memory's last reader ---------------------------------------------------------------- */

/* Of a ring slot on the host this is over already. */
static int wait_reader(gw_job *job, struct zero *zero, const struct target *t, int64_t deadline)
{
    struct wait_time time = {0};
    struct gw_token token = {0};
    uint32_t bucket = 0;
    int r;

    if (job_edge_dropped(job, JOB_EDGE_BUFFER_CONSUMED))
        return 0;
    pthread_mutex_lock(&job->lock);
    /* Pieces of a bucket whose contribution is closed are refused before, so in a full buffer the
     * count is that of the earlier micro-steps: the memory's last readers. */
    token.value = ledger_slot_after(zero->ledger, t->layout->bucket, &bucket);
    token.timeline = GW_TIMELINE(GW_TL_BUCKET, bucket);
    pthread_mutex_unlock(&job->lock);
    r = job->order.ops->wait(job, token, deadline, &time);
    if (r == 0)
        wait_record(job, &token, 1, time);
    if (job_deadline_passed(job, &r)) {
        split_defer(&job->split, time.w0, time.w1);
        return err_set(r,
                       "the gradient memory of %s (bucket %u) is still being read: contribution "
                       "%llu was not reduced before the deadline",
                       zero_param_name(zero, t->param), t->layout->bucket,
                       (unsigned long long)token.value);
    }
    return r;
}

/* ---- public ---------------------------------------------------------------------------------- */

/* Bytes of an element of the bucket's gradients. */
static uint32_t grad_bytes(const struct zero *zero, uint32_t bucket)
{
    return gw_dtype_bytes(zero->view.buckets[bucket].grad_dtype);
}

/* NULL: the bucket's contribution has no slot, or one whose memory is not mapped. Lock held. */
static void *memory_of(const struct zero *zero, const struct target *t)
{
    uint32_t bucket = t->layout->bucket, slot = zero->ledger->buckets[bucket].slot;
    uint8_t *base = NULL;

    if (!zero->ledger->ring)
        base = zero->grads.base + place_grads(zero->place, bucket).offset_bytes;
    else if (slot < zero->options.ring_slots)
        base = zero->ring.base + place_slot(zero->place, slot).offset_bytes;
    else if (slot != GW_NO_SLOT)
        base = zero->overflow[slot - zero->options.ring_slots].base;
    return base ? base + t->layout->bucket_offset * grad_bytes(zero, bucket) : NULL;
}

/* Before any wait: a refusal must not take the deadline to come. */
static int check_acquire(gw_job *job, const struct zero *zero, const struct target *t)
{
    int r;

    pthread_mutex_lock(&job->lock);
    r = refuse(job, zero, t, ledger_check_acquire(zero->ledger, t->index));
    pthread_mutex_unlock(&job->lock);
    return r;
}

/* Checked once more after the wait: another thread may have declared the piece meanwhile. */
static int acquire(gw_job *job, struct zero *zero, const struct target *t, int64_t deadline,
                   void **ret_values)
{
    int r = check_acquire(job, zero, t);

    if (r == 0 && zero->ledger->ring)
        r = acquire_ring(job, zero, t, deadline);
    if (r == 0)
        r = wait_reader(job, zero, t, deadline);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    r = refuse(job, zero, t, ledger_check_acquire(zero->ledger, t->index));
    if (r == 0 && !memory_of(zero, t))
        r = err_set(GW_E_STATE, "the micro-step ended while %s was being acquired",
                    zero_param_name(zero, t->param));
    if (r == 0) {
        ledger_acquire(zero->ledger, t->index);
        guard_bucket(job, zero, t->layout->bucket, zero->ledger->buckets[t->layout->bucket].slot,
                     true);
        *ret_values = memory_of(zero, t);
    }
    pthread_mutex_unlock(&job->lock);
    return r;
}

int gw_grad_acquire_sync(gw_job *job, uint32_t param, uint32_t piece, int64_t timeout_ns,
                         void **ret_values, uint64_t *ret_count)
{
    struct zero *zero = NULL;
    struct target target;
    int r = find(job, param, piece, &zero, &target);

    if (r == 0 && !ret_values)
        r = err_set(GW_E_INVALID, "ret_values is NULL");
    if (r == 0)
        r = acquire(job, zero, &target, clock_deadline(timeout_ns), ret_values);
    if (r == 0 && ret_count)
        *ret_count = target.layout->numel;
    return r;
}

/* Other timelines than the caller's own are the engine's words: it would wait for itself. */
static int fill_tokens(const gw_job *job, struct wire_ready_entry *entry,
                       const struct gw_token *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t index = GW_TIMELINE_INDEX(tokens[i].timeline);

        if (tokens[i].timeline == 0)
            continue; /* always reached */
        if (GW_TIMELINE_CLASS(tokens[i].timeline) != GW_TL_CLIENT ||
            index >= atomic_load(&job->timelines))
            return err_set(GW_E_INVALID, "token %zu is on no timeline of gw_timeline_new", i);
        entry->timeline[entry->tokens] = index;
        entry->value[entry->tokens++] = tokens[i].value;
    }
    return 0;
}

/* Lock held. */
static int declare(gw_job *job, struct zero *zero, const struct target *t,
                   struct wire_ready_entry *entry)
{
    uint32_t bucket = t->layout->bucket;
    int r;

    r = refuse(job, zero, t, ledger_check_ready(zero->ledger, t->index, entry->flags));
    if (r < 0)
        return r;
    entry->slot = zero->ledger->ring ? zero->ledger->buckets[bucket].slot : GW_NO_SLOT;
    job->order.ops->declared(job);
    r = channel_ready(&job->channel, entry, ledger_completes(zero->ledger, t->index));
    if (r < 0)
        return r;
    zero->begun = true;
    if (ledger_ready(zero->ledger, t->index, entry->flags))
        guard_bucket(job, zero, bucket, entry->slot, false);
    return 0;
}

/* One message at most, and most often none: the batch goes when its bucket is complete. */
int gw_grad_ready(gw_job *job, uint32_t param, uint32_t piece, uint32_t flags,
                  const struct gw_token *tokens, size_t token_count)
{
    struct wire_ready_entry entry = {.param = param, .piece = piece, .flags = flags};
    struct zero *zero = NULL;
    struct target target;
    int r = find(job, param, piece, &zero, &target);

    if (r < 0)
        return r;
    if (flags & ~(uint32_t)(GW_GRAD_ACCUMULATE | GW_GRAD_RUNNING))
        return err_set(GW_E_INVALID, "flags 0x%x hold unknown bits", flags);
    if (token_count > job->order.ops->tokens_max || (token_count > 0 && !tokens))
        return err_set(GW_E_INVALID, "%zu tokens; at most %u, and not NULL", token_count,
                       job->order.ops->tokens_max);
    r = fill_tokens(job, &entry, tokens, token_count);
    if (r < 0)
        return r;
    pthread_mutex_lock(&job->lock);
    r = declare(job, zero, &target, &entry);
    pthread_mutex_unlock(&job->lock);
    return r;
}

int gw_grad_put_sync(gw_job *job, uint32_t param, const void *values, uint32_t flags,
                     int64_t timeout_ns)
{
    int64_t deadline = clock_deadline(timeout_ns);
    struct zero *zero = NULL;
    int r = zero_enter(job, &zero);

    if (r == 0)
        r = zero_param_held(job, zero, param);
    if (r == 0 && !values && zero->view.params[param].numel > 0)
        r = err_set(GW_E_INVALID, "values is NULL");
    /* Last piece first: so are buckets reduced in a first step, and a small ring is enough. */
    for (uint32_t piece = r == 0 ? zero->view.params[param].pieces : 0; r == 0 && piece-- > 0;) {
        struct target target;
        void *memory = NULL;
        uint64_t size;

        r = find(job, param, piece, &zero, &target);
        if (r == 0)
            r = acquire(job, zero, &target, deadline, &memory);
        if (r < 0)
            break;
        size = grad_bytes(zero, target.layout->bucket);
        r = job->order.ops->copy_in(job, memory,
                                    (const char *)values + target.layout->param_offset * size,
                                    target.layout->numel * size, deadline);
        if (job_deadline_passed(job, &r))
            err_set(r, "the copy of %s was not done before the deadline",
                    zero_param_name(zero, param));
        if (r < 0)
            break;
        atomic_fetch_add(&zero->copied_in_bytes, target.layout->numel * size);
        r = gw_grad_ready(job, param, piece, flags, NULL, 0);
    }
    return r;
}
