/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every op that was launched and is not known to be done: the last of a job's silent waits. A
 * stream may wait for a token that a client never raises, or simply be slow. Pure; the core's
 * thread. Decides nothing.
 */
#include "daemon/core/core_internal.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_AT_FIRST 64u

static const char *const op_names[] = {
    [CORE_OP_REDUCE_SCATTER] = "reduce-scatter", [CORE_OP_ALL_REDUCE] = "all-reduce",
    [CORE_OP_ALL_GATHER] = "all-gather",         [CORE_OP_GATHER] = "all-gather",
    [CORE_OP_BROADCAST] = "broadcast",           [CORE_OP_BARRIER] = "update",
    [CORE_OP_LOCAL_ADD] = "local sum",           [CORE_OP_ZERO] = "zero-fill",
    [CORE_OP_CAST] = "rounding",                 [CORE_OP_VERDICT] = "verdict",
    [CORE_OP_FILL] = "fill of secondary shards",
};

/* Room for one more at the end: what was popped in front is used first. */
static bool reserve(struct core_flights *flying)
{
    uint32_t capacity = flying->capacity ? flying->capacity * 2 : ROOM_AT_FIRST;
    struct core_flight *grown;

    if (flying->first + flying->count < flying->capacity)
        return true;
    if (flying->first > flying->capacity / 2) {
        memmove(flying->at, flying->at + flying->first, flying->count * sizeof(*flying->at));
        flying->first = 0;
        return true;
    }
    grown = realloc(flying->at, capacity * sizeof(*grown));
    if (!grown)
        return false;
    flying->at = grown;
    flying->capacity = capacity;
    return true;
}

void flight_launched(struct core *core, const struct core_op *op)
{
    struct core_flights *flying = &core->flying;
    struct core_flight *flight;

    if (!reserve(flying)) {
        core->nomem = true;
        return;
    }
    flight = &flying->at[flying->first + flying->count];
    flying->count++;
    *flight = (struct core_flight){.id = op->id, .since_ns = core->now_ns, .step = op->step,
                                   .rank = op->rank, .bucket = op->bucket, .kind = op->kind,
                                   .traffic = op->traffic};
    for (uint32_t i = 0; i < op->wait_count; i++)
        ranks_add(&flight->producers, op->waits[i].rank);
}

void flight_done(struct core *core, uint64_t op_id)
{
    struct core_flights *flying = &core->flying;
    uint32_t low = flying->first, high = flying->first + flying->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (flying->at[middle].id < op_id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < flying->first + flying->count && flying->at[low].id == op_id)
        flying->at[low].done = true;
    while (flying->count && flying->at[flying->first].done) {
        flying->first++;
        flying->count--;
    }
    if (flying->count == 0)
        flying->first = 0;
}

void flight_reset(struct core *core)
{
    core->flying.first = core->flying.count = 0;
}

static void describe(const struct core_flight *flight, struct text *text)
{
    text_add(text, "%s", op_names[flight->kind]);
    if (flight->kind == CORE_OP_CAST)
        text_add(text, " of parameters");
    else if (flight->kind != CORE_OP_VERDICT && flight->kind != CORE_OP_BARRIER)
        text_add(text, " of bucket %u", flight->bucket);
    if (flight->kind == CORE_OP_GATHER || flight->kind == CORE_OP_LOCAL_ADD ||
        flight->kind == CORE_OP_ZERO || flight->kind == CORE_OP_CAST ||
        flight->kind == CORE_OP_FILL)
        text_add(text, " for rank %u", flight->rank);
    text_add(text, " (step %llu)", (unsigned long long)flight->step);
    if (ranks_any(&flight->producers)) {
        text_add(text, ", after tokens of ranks ");
        text_add_ranks(text, &flight->producers);
    }
}

bool flight_wait(const struct core *core, struct core_wait *ret_wait)
{
    const struct core_flight *flight;

    if (core->flying.count == 0)
        return false;
    flight = &core->flying.at[core->flying.first];
    ret_wait->since_ns = flight->since_ns;
    ret_wait->missing = (struct ranks){{0}};
    ret_wait->op = flight->id;
    return true;
}

void flight_describe_wait(const struct core *core, struct text *text)
{
    const struct core_flight *flight = &core->flying.at[core->flying.first];

    if (!lane_describe_flight(core, flight->id, text))
        describe(flight, text);
}
