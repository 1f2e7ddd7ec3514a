/* SPDX-License-Identifier: Apache-2.0 */
/* Unions of time intervals, and the split of a wait. Pure; one thread per object. */
#include "daemon/base/intervals.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

#define ROOM_FIRST 4u

/* list: disjoint, not touching, ascending; one entry more than capacity, while adding. */
struct intervals {
    size_t capacity, count;
    size_t room; /* of the list; grows up to capacity + 1 */
    struct interval *list;
};

int intervals_new(size_t capacity, struct intervals **ret_set)
{
    struct intervals *set;

    if (capacity == 0 || capacity == SIZE_MAX)
        return GW_E_INVALID;
    if (capacity + 1 > SIZE_MAX / sizeof(struct interval))
        return GW_E_NOMEM;
    set = malloc(sizeof(*set));
    if (!set)
        return GW_E_NOMEM;
    *set = (struct intervals){.capacity = capacity,
                              .room = capacity < ROOM_FIRST ? capacity + 1 : ROOM_FIRST};
    set->list = malloc(set->room * sizeof(*set->list));
    if (!set->list) {
        free(set);
        return GW_E_NOMEM;
    }
    *ret_set = set;
    return 0;
}

struct intervals *intervals_free(struct intervals *set)
{
    if (set)
        free(set->list);
    free(set);
    return NULL;
}

void intervals_clear(struct intervals *set)
{
    set->count = 0;
}

/* First interval whose end is not before `start`. */
static size_t find(const struct intervals *set, uint64_t start)
{
    size_t low = 0, high = set->count, middle;

    while (low < high) {
        middle = low + (high - low) / 2;
        if (set->list[middle].end < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Replaces `drop` entries at `at` by `put`. */
static void replace(struct intervals *set, size_t at, size_t drop, struct interval put)
{
    memmove(&set->list[at + 1], &set->list[at + drop],
            (set->count - at - drop) * sizeof(set->list[0]));
    set->list[at] = put;
    set->count = set->count - drop + 1;
}

static uint64_t gap_after(const struct intervals *set, size_t at)
{
    return set->list[at + 1].start - set->list[at].end;
}

static size_t gaps_below(const struct intervals *set, uint64_t bound)
{
    size_t below = 0;

    for (size_t i = 0; i + 1 < set->count; i++)
        below += gap_after(set, i) < bound;
    return below;
}

/* The smallest length such that `count` gaps are not longer. */
static uint64_t gap_limit(const struct intervals *set, size_t count)
{
    uint64_t low = 0, high = 0, middle;

    for (size_t i = 0; i + 1 < set->count; i++)
        if (gap_after(set, i) > high)
            high = gap_after(set, i);
    while (low < high) {
        middle = low + (high - low) / 2;
        if (gaps_below(set, middle + 1) >= count)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Of gaps of one length the earliest go. */
static void join_nearest(struct intervals *set)
{
    size_t joins = set->count / 4 > 0 ? set->count / 4 : 1, kept = 0, ties;
    uint64_t limit = gap_limit(set, joins);

    ties = joins - gaps_below(set, limit);
    for (size_t i = 0; i + 1 < set->count; i++) {
        const struct interval next = set->list[i + 1];
        uint64_t gap = next.start - set->list[kept].end;
        if (gap < limit || (gap == limit && ties > 0)) {
            ties -= gap == limit;
            set->list[kept].end = next.end;
        } else {
            set->list[++kept] = next;
        }
    }
    set->count = kept + 1;
}

/* Always leaves room for one more. False: no memory, which makes the capacity smaller. */
static bool grow(struct intervals *set)
{
    size_t room = set->room <= set->capacity / 2 ? set->room * 2 : set->capacity + 1;
    struct interval *list = realloc(set->list, room * sizeof(*list));

    if (!list)
        return false;
    set->list = list;
    set->room = room;
    return true;
}

void intervals_add(struct intervals *set, uint64_t start, uint64_t end)
{
    struct interval put = {start, end};
    size_t at, drop = 0;

    if (end <= start)
        return;
    at = find(set, start);
    while (at + drop < set->count && set->list[at + drop].start <= end) {
        if (set->list[at + drop].start < put.start)
            put.start = set->list[at + drop].start;
        if (set->list[at + drop].end > put.end)
            put.end = set->list[at + drop].end;
        drop++;
    }
    replace(set, at, drop, put);
    if (set->count > set->capacity || (set->count == set->room && !grow(set)))
        join_nearest(set);
}

uint64_t intervals_total(const struct intervals *set)
{
    uint64_t total = 0;

    for (size_t i = 0; i < set->count; i++)
        total += set->list[i].end - set->list[i].start;
    return total;
}

const struct interval *intervals_from(const struct intervals *set, uint64_t start,
                                      size_t *ret_count)
{
    size_t first = find(set, start);

    *ret_count = set->count - first;
    return set->list + first;
}

/* ---- split of a wait ------------------------------------------------------------------------- */

/* The next stamp after `t`, or `end`. Between two neighbouring stamps nothing changes. */
static uint64_t next_stamp(uint64_t t, uint64_t end, const struct wait_op *ops, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t stamps[3] = {ops[i].ready, ops[i].started, ops[i].done};

        for (size_t k = 0; ops[i].done != 0 && k < 3; k++) {
            if (stamps[k] > t && stamps[k] < end)
                end = stamps[k];
        }
    }
    return end;
}

static uint64_t *part_at(uint64_t t, const struct wait_op *ops, size_t count,
                         struct wait_parts *parts)
{
    bool queued = false, any = false, over = true;

    for (size_t i = 0; i < count; i++) {
        if (ops[i].done == 0)
            continue;
        any = true;
        if (ops[i].started <= t && t < ops[i].done)
            return &parts->exposed;
        if (ops[i].ready <= t && t < ops[i].started)
            queued = true;
        if (t < ops[i].done)
            over = false;
    }
    if (queued)
        return &parts->queued;
    return any && over ? &parts->wakeup : &parts->late;
}

void wait_split(uint64_t w0, uint64_t w1, const struct wait_op *ops, size_t count,
                struct wait_parts *ret_parts)
{
    struct wait_parts parts = {0};
    uint64_t next;

    for (uint64_t t = w0; t < w1; t = next) {
        next = next_stamp(t, w1, ops, count);
        *part_at(t, ops, count, &parts) += next - t;
    }
    *ret_parts = parts;
}
