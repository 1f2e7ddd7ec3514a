/* SPDX-License-Identifier: Apache-2.0 */
/* gw_wait and its kin; see wait.h. Any thread. */
#include "client/lib/wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/lib/err.h"
#include "client/lib/guard.h"
#include "client/lib/zero.h"

#define SLICE_NS (200 * CLOCK_MS)       /* a dead engine is noticed within this */
#define SLICE_PENDING_NS (1 * CLOCK_MS) /* messages wait for room */
#define SLICE_OWN_NS (5 * CLOCK_MS)     /* own timelines do not move the wake word */

/* Boards exist from the seal on. Indices come from callers: checked at every use. */
static const struct gw_shm_slot *board_slot(const gw_job *job, uint32_t class, uint32_t index)
{
    const struct zero *zero = atomic_load_explicit(&job->zero, memory_order_acquire);

    if (!zero)
        return NULL;
    switch (class) {
    case GW_TL_BUCKET:
        return index < zero->page->buckets ? &zero->bucket_slots[index] : NULL;
    case GW_TL_UNIT:
        return index < zero->page->units ? &zero->unit_slots[index] : NULL;
    case GW_TL_STEP:
        return index == 0 ? &zero->board->step : NULL;
    case GW_TL_UPDATE:
        return index == 0 ? &zero->board->update : NULL;
    default:
        return NULL;
    }
}

int wait_slot(const gw_job *job, struct gw_token token, const struct gw_shm_slot **ret_slot)
{
    uint32_t class = GW_TIMELINE_CLASS(token.timeline);
    uint32_t index = GW_TIMELINE_INDEX(token.timeline);
    const struct gw_shm_slot *slot = NULL;

    if (class == GW_TL_NONE && index == 0) {
        *ret_slot = NULL;
        return 0;
    }
    if (class == GW_TL_CLIENT && index < atomic_load(&job->timelines)) {
        *ret_slot = NULL;
        return 0;
    }
    if (class == GW_TL_OP && index < GW_OPS_IN_FLIGHT)
        slot = &job->engine->op[index];
    else
        slot = board_slot(job, class, index);
    if (!slot)
        return err_set(GW_E_INVALID, "the token (timeline 0x%08x) is none of this job's",
                       token.timeline);
    *ret_slot = slot;
    return 0;
}

/* Acquire: what the engine stored before it raised the word is seen after it. */
uint64_t wait_word(const gw_job *job, struct gw_token token)
{
    uint32_t class = GW_TIMELINE_CLASS(token.timeline);
    uint32_t index = GW_TIMELINE_INDEX(token.timeline);
    const struct gw_shm_slot *slot;
    uint64_t word = 0;

    if (class == GW_TL_CLIENT) {
        if (index < GW_TIMELINES_MAX)
            word = atomic_load_explicit(&job->page->timeline[index], memory_order_acquire);
        return word == GW_TIMELINE_END ? 0 : word; /* the engine's, so that its streams go on */
    }
    slot = class == GW_TL_OP ? &job->engine->op[index % GW_OPS_IN_FLIGHT]
                             : board_slot(job, class, index);
    return slot ? atomic_load_explicit(&slot->value, memory_order_acquire) : 0;
}

/* A copy out of a staged buffer counts ops, and is worth nothing unless its op is done: a stream
 * that was released when the job failed goes on all the same. */
static bool copy_counts(const gw_job *job, struct gw_token token)
{
    struct gw_token op = {.timeline = GW_TIMELINE(GW_TL_OP, token.value % GW_OPS_IN_FLIGHT),
                          .value = token.value};

    if (!job->order.has_copies ||
        token.timeline != GW_TIMELINE(GW_TL_CLIENT, job->order.copy_timeline))
        return true;
    return wait_word(job, op) >= op.value;
}

bool wait_reached(gw_job *job, struct gw_token token)
{
    if (token.timeline == 0)
        return true;
    return (wait_word(job, token) >= token.value && copy_counts(job, token)) ||
           order_passed(job, token);
}

/* Stops at the first token that decides. */
static bool reached(gw_job *job, const struct gw_token *tokens, size_t count, bool any,
                    size_t *ret_index)
{
    for (size_t i = 0; i < count; i++) {
        bool is = wait_reached(job, tokens[i]);

        if (any && is) {
            *ret_index = i;
            return true;
        }
        if (!any && !is)
            return false;
    }
    return !any;
}

/* How long a nap may be: something must be done after it even if nobody wakes us. */
static int64_t slice_for(const struct gw_token *tokens, size_t count, bool pending)
{
    if (pending)
        return SLICE_PENDING_NS;
    for (size_t i = 0; i < count; i++) {
        if (GW_TIMELINE_CLASS(tokens[i].timeline) == GW_TL_CLIENT)
            return SLICE_OWN_NS;
    }
    return SLICE_NS;
}

void wait_wake(gw_job *job)
{
    syscall(SYS_futex, &job->engine->wake, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Where to sleep: a word of an engine's page, and the counts of who does. */
struct bed {
    const _Atomic uint32_t *wake;
    _Atomic uint32_t *counts;
};

static struct bed own_bed(gw_job *job)
{
    return (struct bed){&job->engine->wake, job->page->waiting};
}

/* What ends for all ranks at once: an op of all, a step. Else all would wake for one. On GPUs each
 * rank's stream ends by itself. */
static bool for_all(const gw_job *job, struct gw_token token)
{
    uint32_t class = GW_TIMELINE_CLASS(token.timeline);
    uint64_t apart = atomic_load_explicit(&job->apart, memory_order_relaxed);

    return class == GW_TL_STEP ||
           (class == GW_TL_OP && (apart >> GW_TIMELINE_INDEX(token.timeline) & 1) == 0);
}

static struct bed bed_for(gw_job *job, const struct gw_token *tokens, size_t count)
{
    bool all = !job->device;

    for (size_t i = 0; i < count && all; i++)
        all = for_all(job, tokens[i]);
    return all ? (struct bed){&job->common->wake, job->page->together} : own_bed(job);
}

static void announce(struct bed bed, uint32_t lines, uint32_t change)
{
    for (; lines != 0; lines &= lines - 1)
        atomic_fetch_add(&bed.counts[__builtin_ctz(lines)], change);
}

/* Until the time `end`. False: nobody woke us. */
static bool sleep_on(struct bed bed, uint32_t wake, uint32_t lines, int64_t end)
{
    struct timespec until = clock_timespec(end);

    return syscall(SYS_futex, bed.wake, FUTEX_WAIT_BITSET, wake, &until, NULL, lines) == 0 ||
           errno != ETIMEDOUT;
}

void wait_doze(gw_job *job, const struct gw_shm_slot *slot, uint32_t wake, int64_t slice_ns)
{
    uint32_t lines = 1u << gw_wake_line(slot);
    struct bed bed = own_bed(job);

    announce(bed, lines, 1);
    (void)sleep_on(bed, wake, lines, clock_now() + slice_ns);
    announce(bed, lines, UINT32_MAX);
}

/* Bits of all that may end the wait. Own timelines and failures wake every line. */
static uint32_t lines_of(const gw_job *job, const struct gw_token *tokens, size_t count)
{
    const struct gw_shm_slot *slot = NULL;
    uint32_t lines = 0;

    for (size_t i = 0; i < count; i++) {
        if (wait_slot(job, tokens[i], &slot) == 0 && slot)
            lines |= 1u << gw_wake_line(slot);
    }
    return lines ? lines : 1;
}

/* One sleep; returns when woken, at the time `end`, or at once if something has been reached.
 * False: nobody woke us. */
static bool nap(gw_job *job, const struct gw_token *tokens, size_t count, bool any, int64_t end)
{
    uint32_t wake, lines = lines_of(job, tokens, count);
    struct bed bed = bed_for(job, tokens, count);
    bool woken = true;
    size_t index = 0;

    /* Sequentially consistent, as the engine's two: so one side sees the other. */
    announce(bed, lines, 1);
    wake = atomic_load(bed.wake);
    if (!reached(job, tokens, count, any, &index) && atomic_load(&job->engine->error) == 0)
        woken = sleep_on(bed, wake, lines, end);
    announce(bed, lines, UINT32_MAX);
    return woken;
}

int wait_tokens(gw_job *job, const struct gw_token *tokens, size_t count, bool any,
                int64_t deadline, size_t *ret_index, struct wait_time *ret_time)
{
    int64_t last_look;
    int r;

    *ret_time = (struct wait_time){0};
    *ret_index = 0;
    if (reached(job, tokens, count, any, ret_index))
        return 0;
    ret_time->w0 = ret_time->w1 = last_look = clock_now();
    for (;;) {
        bool empty = channel_flush(&job->channel); /* what is waited for may be in the batch */
        bool woken;

        r = job_failure(job);
        /* Once more: what was reached before the failure succeeds. */
        if (reached(job, tokens, count, any, ret_index))
            return 0;
        if (r < 0)
            return r;
        if (ret_time->w1 >= deadline)
            return GW_E_TIMEOUT;
        woken = nap(job, tokens, count, any,
                    ret_time->w1 +
                        clock_slice(ret_time->w1, deadline, slice_for(tokens, count, !empty)));
        ret_time->w1 = clock_now();
        /* An engine that is gone wakes nobody, but signals and others' wakes may do so for ever. */
        if (!woken || ret_time->w1 - last_look >= SLICE_NS) {
            channel_poll(&job->channel);
            last_look = ret_time->w1;
        }
    }
}

/* Of the op that raised the slot to `value` or more; done 0 if it has not. */
static struct wait_op stamps_of(const struct gw_shm_slot *slot, uint64_t value)
{
    struct wait_op op = {0};
    uint64_t before = atomic_load_explicit(&slot->value, memory_order_acquire);

    if (before < value)
        return op;
    /* Acquire, each: `value` is read again after them. */
    op.ready = __atomic_load_n(&slot->ready_ns, __ATOMIC_ACQUIRE);
    op.started = __atomic_load_n(&slot->started_ns, __ATOMIC_ACQUIRE);
    op.done = __atomic_load_n(&slot->done_ns, __ATOMIC_ACQUIRE);
    if (atomic_load_explicit(&slot->value, memory_order_relaxed) != before)
        op.done = 0; /* raised again meanwhile: stamps of two ops may be mixed */
    return op;
}

/* Buckets that the token comes after, besides its own op: a step's verdict waits for all. */
static uint32_t buckets_before(const gw_job *job, struct gw_token token)
{
    const struct zero *zero = atomic_load_explicit(&job->zero, memory_order_acquire);

    return zero && GW_TIMELINE_CLASS(token.timeline) == GW_TL_STEP ? zero->page->buckets : 0;
}

/* Stamps are read at once: a slot's next op would overwrite them. */
void wait_record(gw_job *job, const struct gw_token *tokens, size_t count, struct wait_time time)
{
    struct wait_op few[4], *ops = few; /* without memory of its own, where it does */
    size_t room = count, used = 0;

    if (time.w1 <= time.w0)
        return;
    for (size_t i = 0; i < count; i++)
        room += buckets_before(job, tokens[i]);
    if (room > sizeof(few) / sizeof(few[0]))
        ops = calloc(room, sizeof(*ops));
    for (size_t i = 0; ops && i < count; i++) {
        uint32_t buckets = buckets_before(job, tokens[i]);
        const struct gw_shm_slot *slot = NULL;

        for (uint32_t b = 0; b < buckets; b++)
            ops[used++] = stamps_of(board_slot(job, GW_TL_BUCKET, b), 1);
        if (wait_slot(job, tokens[i], &slot) == 0 && slot)
            ops[used++] = stamps_of(slot, tokens[i].value);
    }
    split_add(&job->split, time.w0, time.w1, ops, used);
    if (ops != few)
        free(ops);
}

bool wait_dropped(const gw_job *job, const struct gw_token *tokens, size_t count)
{
    for (size_t i = 0; i < count && job->dropped_edges; i++) {
        uint32_t class = GW_TIMELINE_CLASS(tokens[i].timeline);

        if ((class == GW_TL_UNIT && job_edge_dropped(job, JOB_EDGE_GATHERED)) ||
            (class == GW_TL_STEP && job_edge_dropped(job, JOB_EDGE_VERDICT_READ)))
            return true;
    }
    return false;
}

/* Guard mode: the update window opens with its token. */
static void open_window(gw_job *job, const struct gw_token *tokens, size_t count)
{
    for (size_t i = 0; i < count && job->debug_guard; i++) {
        if (GW_TIMELINE_CLASS(tokens[i].timeline) != GW_TL_UPDATE || !wait_reached(job, tokens[i]))
            continue;
        pthread_mutex_lock(&job->lock);
        if (job->zero->updating)
            guard_update(job, job->zero, true);
        pthread_mutex_unlock(&job->lock);
    }
}

/* All tokens are checked before the first is waited for: a bad one is the caller's error, also
 * when the others would take an hour. */
static int wait_public(gw_job *job, const struct gw_token *tokens, size_t count, bool any,
                       int64_t timeout_ns, size_t *ret_index)
{
    const struct gw_shm_slot *slot;
    struct wait_time time;
    size_t index = 0;
    int r = job_enter(job);

    if (r == 0 && !tokens && count > 0)
        r = err_set(GW_E_INVALID, "tokens is NULL");
    for (size_t i = 0; i < count && r == 0; i++)
        r = wait_slot(job, tokens[i], &slot);
    if (r < 0)
        return r;
    if (wait_dropped(job, tokens, count)) {
        channel_flush(&job->channel);
        *ret_index = 0;
        return 0;
    }
    r = wait_tokens(job, tokens, count, any, clock_deadline(timeout_ns), &index, &time);
    if (r == 0)
        wait_record(job, any ? tokens + index : tokens, any ? 1 : count, time);
    if (job_deadline_passed(job, &r)) {
        split_defer(&job->split, time.w0, time.w1);
        return err_set(r, "%zu token%s not reached within %lld ms; it stays valid", count,
                       count == 1 ? " was" : "s were", (long long)(timeout_ns / CLOCK_MS));
    }
    if (r == 0) {
        open_window(job, tokens, count);
        *ret_index = index;
    }
    return r;
}

int gw_wait(gw_job *job, struct gw_token token, int64_t timeout_ns)
{
    size_t index = 0;

    return wait_public(job, &token, 1, false, timeout_ns, &index);
}

int gw_wait_any(gw_job *job, const struct gw_token *tokens, size_t count, int64_t timeout_ns,
                size_t *ret_index)
{
    if (!ret_index || count == 0)
        return err_set(GW_E_INVALID, "%s", ret_index ? "no token was given" : "ret_index is NULL");
    return wait_public(job, tokens, count, true, timeout_ns, ret_index);
}

int gw_wait_all(gw_job *job, const struct gw_token *tokens, size_t count, int64_t timeout_ns)
{
    size_t index = 0;

    return wait_public(job, tokens, count, false, timeout_ns, &index);
}

/* Looks after the socket only when the answer is not yes. */
int gw_test(gw_job *job, struct gw_token token)
{
    const struct gw_shm_slot *slot;
    int r = job_enter(job);

    if (r == 0)
        r = wait_slot(job, token, &slot);
    if (r < 0)
        return r;
    if (wait_dropped(job, &token, 1) || wait_reached(job, token)) {
        open_window(job, &token, 1);
        return 1;
    }
    channel_poll(&job->channel);
    r = job_failure(job);
    return r < 0 && !wait_reached(job, token) ? r : wait_reached(job, token);
}
