/* SPDX-License-Identifier: Apache-2.0 */
/* Records of works and lanes. Pure; see work.h. */
#include "daemon/device/cuda/work.h"

#include <stdlib.h>
#include <string.h>

#include "gradwire/errors.h"

/* ---- records --------------------------------------------------------------------------------- */

/* Arrays of 8-byte aligned things, one behind the other. */
static void *carve(char **at, const void *from, size_t bytes)
{
    char *part = *at;

    *at += (bytes + 7) & ~(size_t)7;
    return bytes && from ? memcpy(part, from, bytes) : part;
}

int cuda_work_new(const struct device_work *work, uint64_t parts, struct cuda_work **ret_work)
{
    size_t count = (size_t)__builtin_popcountll(parts);
    size_t waits = work->wait_count * sizeof(*work->waits);
    size_t signals = work->signal_count * sizeof(*work->signals);
    size_t ops = work->wait_op_count * sizeof(*work->wait_ops);
    size_t after = (work->wait_op_count + count) * sizeof(struct cuda_after);
    size_t items = count * sizeof(struct cuda_item);
    struct cuda_work *copy =
        calloc(1, sizeof(*copy) + waits + signals + ops + after + items + 5 * sizeof(uint64_t));
    struct cuda_item *item;
    char *at;

    if (!copy)
        return GW_E_NOMEM;
    at = (char *)(copy + 1);
    copy->work = *work;
    copy->work.waits = carve(&at, work->waits, waits);
    copy->work.signals = carve(&at, work->signals, signals);
    copy->work.wait_ops = carve(&at, work->wait_ops, ops);
    copy->after = carve(&at, NULL, after);
    copy->items = item = carve(&at, NULL, items);
    copy->done.op = work->op;
    copy->parts = parts;
    copy->pending = (uint32_t)count;
    for (uint64_t left = parts; left; left &= left - 1, item++) {
        item->rank = (uint32_t)__builtin_ctzll(left);
        item->work = copy;
    }
    *ret_work = copy;
    return 0;
}

struct cuda_work *cuda_work_free(struct cuda_work *work)
{
    free(work);
    return NULL;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Ops rise along each lane, so most lanes are ruled out by their ends. */
struct cuda_work *cuda_ledger_find(struct cuda_ledger *ledger, uint64_t op)
{
    for (uint32_t i = 0; op && i < ledger->lane_count; i++) {
        struct cuda_work *work = ledger->lanes[i].head;
        if (!work || work->work.op > op || ledger->lanes[i].tail->work.op < op)
            continue;
        while (work && work->work.op < op)
            work = work->next;
        if (work && work->work.op == op)
            return work;
    }
    return NULL;
}

/* The lane's work `op`, if it is unfinished: rather near the end. */
static const struct cuda_work *last_work(const struct cuda_lane *lane, uint64_t op)
{
    const struct cuda_work *work = lane->tail;

    while (work && work->work.op > op)
        work = work->before;
    return work && work->work.op == op ? work : NULL;
}

/* A work's parts reach into each other's memory, so each is behind the lane's last works of all its
 * ranks, and behind every part of those: another GPU's part of one may still read a rank's memory
 * when the rank's own is over. */
static void after_lane(const struct cuda_lane *lane, uint32_t index, struct cuda_work *work)
{
    uint64_t seen = 0;

    for (uint64_t left = work->parts; left; left &= left - 1) {
        uint64_t op = lane->last_op[__builtin_ctzll(left)];
        const struct cuda_work *other = op != seen ? last_work(lane, op) : NULL;
        if (other)
            work->after[work->after_count++] = (struct cuda_after){index, other->parts, op};
        seen = op;
    }
}

void cuda_ledger_add(struct cuda_ledger *ledger, uint32_t lane, struct cuda_work *work)
{
    struct cuda_lane *to = &ledger->lanes[lane];

    for (uint32_t i = 0; i < work->work.wait_op_count; i++) {
        const struct cuda_work *other = cuda_ledger_find(ledger, work->work.wait_ops[i]);
        if (other)
            work->after[work->after_count++] =
                (struct cuda_after){other->lane, other->parts, other->work.op};
    }
    after_lane(to, lane, work);
    for (uint64_t left = work->parts; left; left &= left - 1)
        to->last_op[__builtin_ctzll(left)] = work->work.op;
    work->lane = lane;
    work->before = to->tail;
    work->next = NULL;
    if (to->tail)
        to->tail->next = work;
    else
        to->head = work;
    to->tail = work;
    ledger->unfinished++;
}

static void put_done(struct cuda_ledger *ledger, struct cuda_work *work)
{
    work->next = NULL;
    if (ledger->done_tail)
        ledger->done_tail->next = work;
    else
        ledger->done_head = work;
    ledger->done_tail = work;
}

static void unlink_work(struct cuda_ledger *ledger, struct cuda_work *work)
{
    struct cuda_lane *lane = &ledger->lanes[work->lane];

    if (work->before)
        work->before->next = work->next;
    else
        lane->head = work->next;
    if (work->next)
        work->next->before = work->before;
    else
        lane->tail = work->before;
    ledger->unfinished--;
}

bool cuda_ledger_end(struct cuda_ledger *ledger, struct cuda_work *work)
{
    if (--work->pending > 0 || work->told)
        return false;
    unlink_work(ledger, work);
    put_done(ledger, work);
    return true;
}

/* The lane whose oldest work is the oldest; NULL: no lane has any. */
static struct cuda_work *oldest(struct cuda_ledger *ledger)
{
    struct cuda_work *first = NULL;

    for (uint32_t i = 0; i < ledger->lane_count; i++) {
        struct cuda_work *head = ledger->lanes[i].head;
        if (head && (!first || head->work.op < first->work.op))
            first = head;
    }
    return first;
}

bool cuda_ledger_give_up(struct cuda_ledger *ledger, uint64_t now_ns)
{
    struct cuda_work *work;

    while ((work = oldest(ledger)) != NULL) {
        struct cuda_work *told = calloc(1, sizeof(*told));
        if (!told)
            return false;
        told->done = (struct device_done){work->work.op, now_ns, now_ns, true};
        told->told = true;
        work->told = true;
        unlink_work(ledger, work);
        work->next = ledger->given_up;
        ledger->given_up = work;
        put_done(ledger, told);
    }
    return true;
}

struct cuda_work *cuda_ledger_take(struct cuda_ledger *ledger)
{
    struct cuda_work *work = ledger->done_head;

    if (work) {
        ledger->done_head = work->next;
        if (!ledger->done_head)
            ledger->done_tail = NULL;
    }
    return work;
}
