/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second core of the same job, on another node: it is given the same events in the same order,
 * by a clock that is set otherwise, and other times of ops. It must ask for exactly the same. One
 * thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/world/internal.h"

#define CLOCK_OFFSET_NS 1234567ull /* its clock is ahead */

void twin_handle(struct sim *sim, const struct core_event *event)
{
    struct core_event own = *event;
    int r;

    if (event->kind == CORE_EV_OP_DONE) {
        own.started_ns = event->started_ns / 2;
        own.done_ns = event->done_ns / 2 + 1;
    }
    r = core_handle(sim->twin, sim->now_ns + CLOCK_OFFSET_NS, &own);
    if (r < 0)
        sim_fail(sim, "core_handle on the other node: %d", r);
}

static bool same_list(const void *one, const void *other, size_t count, size_t size)
{
    return count == 0 || memcmp(one, other, count * size) == 0;
}

static bool same_refs(const struct core_ref *one, const struct core_ref *other, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (one[i].kind != other[i].kind || one[i].rank != other[i].rank ||
            one[i].index != other[i].index || one[i].offset_bytes != other[i].offset_bytes)
            return false;
    return true;
}

static bool same_signal(const struct core_signal *one, const struct core_signal *other)
{
    return one->rank == other->rank && one->timeline == other->timeline &&
           one->value == other->value && one->offset == other->offset;
}

static bool same_order(const struct core_op *one, const struct core_op *other)
{
    bool same = one->wait_op_count == other->wait_op_count &&
                one->wait_count == other->wait_count && one->signal_count == other->signal_count &&
                same_list(one->wait_ops, other->wait_ops, one->wait_op_count, sizeof(uint64_t));

    for (uint32_t i = 0; same && i < one->wait_count; i++)
        same = one->waits[i].rank == other->waits[i].rank &&
               one->waits[i].index == other->waits[i].index &&
               one->waits[i].value == other->waits[i].value;
    for (uint32_t i = 0; same && i < one->signal_count; i++)
        same = same_signal(&one->signals[i], &other->signals[i]);
    return same;
}

static uint32_t refs_of(const struct core_op *op, bool out)
{
    switch ((enum core_op_kind)op->kind) {
    case CORE_OP_REDUCE_SCATTER:
    case CORE_OP_ALL_REDUCE:
    case CORE_OP_ALL_GATHER:
        return op->world;
    case CORE_OP_BROADCAST:
        return out ? op->world : 1;
    case CORE_OP_LOCAL_ADD:
        return 1;
    case CORE_OP_GATHER:
    case CORE_OP_ZERO:
        return out;
    default:
        return 0;
    }
}

static bool same_op(const struct core_op *one, const struct core_op *other)
{
    return one->id == other->id && one->kind == other->kind && one->stream == other->stream &&
           one->traffic == other->traffic && one->accumulate == other->accumulate &&
           one->measure == other->measure && one->shards == other->shards &&
           one->partials == other->partials &&
           one->rank == other->rank && one->world == other->world && one->scale == other->scale &&
           one->bucket == other->bucket && one->bucket_count == other->bucket_count &&
           one->version == other->version && one->numel == other->numel &&
           one->total_numel == other->total_numel && one->step == other->step &&
           one->digest == other->digest && one->used_params == other->used_params &&
           same_list(one->members, other->members, one->world, sizeof(uint32_t)) &&
           same_refs(one->in, other->in, refs_of(one, false)) &&
           same_refs(one->out, other->out, refs_of(one, true)) && same_order(one, other);
}

static bool same_reply(const struct wire_msg *one, const struct wire_msg *other)
{
    if (one->type != other->type || one->request != other->request)
        return false;
    if (one->type != WIRE_DONE)
        return true;
    return one->u.done.code == other->u.done.code &&
           strcmp(one->u.done.text, other->u.done.text) == 0;
}

static bool same_effect(const struct core_effect *one, const struct core_effect *other)
{
    if (one->kind != other->kind)
        return false;
    switch (one->kind) {
    case CORE_EFF_LAUNCH:
        return same_op(&one->op, &other->op);
    case CORE_EFF_SIGNAL:
        return one->after_op == other->after_op && same_signal(&one->signal, &other->signal);
    case CORE_EFF_REPLY:
        return one->rank == other->rank && same_reply(&one->reply, &other->reply);
    case CORE_EFF_PARAM_IO:
        return one->rank == other->rank && memcmp(&one->io, &other->io, sizeof(one->io)) == 0;
    case CORE_EFF_OVERFLOW:
        return one->rank == other->rank && one->index == other->index;
    case CORE_EFF_FAIL:
    case CORE_EFF_DROP:
        return one->rank == other->rank && one->code == other->code &&
               strcmp(one->text, other->text) == 0;
    case CORE_EFF_REPORT:
        return strcmp(one->text, other->text) == 0;
    default:
        return true;
    }
}

void twin_compare(struct sim *sim, const struct core_effect *effect)
{
    struct core_effect other = {.kind = CORE_EFF_END};
    bool some = core_next_effect(sim->twin, &other);

    if (effect ? !some || !same_effect(effect, &other) : some)
        sim_fail(sim, "another node's core asks for effect %d (op %" PRIu64 ", kind %d), not %d "
                 "(op %" PRIu64 ", kind %d)",
                 some ? (int)other.kind : -1, other.op.id, (int)other.op.kind,
                 effect ? (int)effect->kind : -1, effect ? effect->op.id : 0,
                 effect ? (int)effect->op.kind : 0);
}
