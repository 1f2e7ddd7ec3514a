/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of the rank's waits by cause; see split.h. Any thread; own lock; reads no clock. */
#include "client/lib/split.h"

#include "client/lib/err.h"
#include "gradwire/errors.h"

/* Disjoint waits of one step before neighbours are joined; a job of collectives alone never ends a
 * step. What is lost is the smallest gaps, and only from a wait that another thread began before
 * them. */
#define STEP_WAITS 256

int split_init(struct split *split)
{
    if (intervals_new(STEP_WAITS, &split->covered) < 0)
        return err_set(GW_E_NOMEM, "no memory for the record of waits");
    pthread_mutex_init(&split->lock, NULL);
    return 0;
}

void split_deinit(struct split *split)
{
    if (!split->covered)
        return;
    split->covered = intervals_free(split->covered);
    pthread_mutex_destroy(&split->lock);
}

/* Drops ops that were over before the wait began: they explain nothing of it. The last of them is
 * kept, because time after the last done is wake-up, not lateness. Keeps wait_split's square small
 * when a step has thousands of buckets. */
static size_t relevant(uint64_t w0, struct wait_op *ops, size_t count)
{
    struct wait_op last = {0};
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (ops[i].done > w0)
            ops[kept++] = ops[i];
        else if (ops[i].done > last.done)
            last = ops[i];
    }
    if (kept == 0 && last.done > 0)
        ops[kept++] = last;
    return kept;
}

/* wait_split's parts add up to end - start exactly, so nothing is lost or counted twice. */
static void add_part(struct split *split, uint64_t start, uint64_t end, const struct wait_op *ops,
                     size_t count)
{
    struct wait_parts parts = {0};

    if (start >= end)
        return;
    wait_split(start, end, ops, count, &parts);
    split->total.late += parts.late;
    split->total.queued += parts.queued;
    split->total.exposed += parts.exposed;
    split->total.wakeup += parts.wakeup;
}

/* Splits what no earlier wait of the step covers. Lock held. */
static void add_new(struct split *split, uint64_t start, uint64_t end, const struct wait_op *ops,
                    size_t count)
{
    const struct interval *list;
    size_t intervals = 0;
    uint64_t at = start;

    list = intervals_from(split->covered, start, &intervals);
    for (size_t i = 0; i < intervals && at < end; i++) {
        if (list[i].end <= at)
            continue;
        add_part(split, at, list[i].start < end ? list[i].start : end, ops, count);
        at = list[i].end;
    }
    add_part(split, at, end, ops, count);
    intervals_add(split->covered, start, end);
}

static void resolve_deferred(struct split *split, const struct wait_op *ops, size_t count)
{
    for (size_t i = 0; i < split->deferred_count; i++)
        add_new(split, split->deferred[i].start, split->deferred[i].end, ops, count);
    split->deferred_count = 0;
}

/* Deferred waits began earlier: ops are kept by the earliest start. */
void split_add(struct split *split, int64_t w0, int64_t w1, struct wait_op *ops, size_t count)
{
    uint64_t first = (uint64_t)w0;

    if (w1 <= w0)
        return;
    pthread_mutex_lock(&split->lock);
    for (size_t i = 0; i < split->deferred_count; i++) {
        if (split->deferred[i].start < first)
            first = split->deferred[i].start;
    }
    count = relevant(first, ops, count);
    resolve_deferred(split, ops, count);
    add_new(split, (uint64_t)w0, (uint64_t)w1, ops, count);
    pthread_mutex_unlock(&split->lock);
}

void split_defer(struct split *split, int64_t w0, int64_t w1)
{
    if (w1 <= w0)
        return;
    pthread_mutex_lock(&split->lock);
    if (split->deferred_count == SPLIT_DEFERRED)
        resolve_deferred(split, NULL, 0); /* all late: nothing better is known */
    split->deferred[split->deferred_count++] =
        (struct interval){.start = (uint64_t)w0, .end = (uint64_t)w1};
    pthread_mutex_unlock(&split->lock);
}

void split_next_step(struct split *split)
{
    pthread_mutex_lock(&split->lock);
    resolve_deferred(split, NULL, 0);
    intervals_clear(split->covered);
    pthread_mutex_unlock(&split->lock);
}

void split_get(struct split *split, struct wait_parts *ret_total)
{
    pthread_mutex_lock(&split->lock);
    *ret_total = split->total;
    pthread_mutex_unlock(&split->lock);
}
