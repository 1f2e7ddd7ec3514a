/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops of the ZeRO layer: how one is made, which are in flight, and how long a rank communicated.
 * Pure; one thread. What is launched when is decided elsewhere; a completion only frees memory for
 * new owners and is counted.
 */
#include "daemon/core/zero_internal.h"

#include <stdlib.h>
#include <string.h>

#define FLIGHT_ROOM 256u /* at first; a power of 2 */

/* ---- ops in flight --------------------------------------------------------------------------- */

/* Ids only rise, so an op's place is its id modulo the room; two ops in one place: more room. */
static struct zero_flight *flight_place(const struct zero *z, uint64_t id)
{
    return &z->flights[id & (z->flight_room - 1)];
}

static bool flights_grow(struct zero *z)
{
    uint64_t room = z->flight_room * 2;
    struct zero_flight *old = z->flights, *grown;

    for (;; room *= 2) {
        bool clash = false;

        grown = room < SIZE_MAX / sizeof(*grown) ? calloc(room, sizeof(*grown)) : NULL;
        if (!grown)
            return false;
        for (uint64_t i = 0; i < z->flight_room && !clash; i++) {
            struct zero_flight *to = &grown[old[i].id & (room - 1)];
            clash = old[i].id && to->id;
            if (old[i].id && !clash)
                *to = old[i];
        }
        if (!clash)
            break;
        free(grown);
    }
    free(old);
    z->flights = grown;
    z->flight_room = room;
    return true;
}

/* Reads or writes parameters. */
static bool moves(enum flight_kind kind)
{
    return kind == FLIGHT_GATHER || kind == FLIGHT_FILL || kind == FLIGHT_CAST;
}

static void flight_add(struct zero *z, uint64_t id, enum flight_kind kind)
{
    while (flight_place(z, id)->id) {
        if (!flights_grow(z)) {
            z->no_memory = true;
            return;
        }
    }
    *flight_place(z, id) = (struct zero_flight){
        .id = id, .step = z->step + 1, .ranks = z->everyone, .kind = (uint8_t)kind};
    z->flight_count++;
    z->moves_in_flight += moves(kind);
}

struct zero_flight *ops_flight(const struct zero *z, uint64_t op)
{
    struct zero_flight *at = flight_place(z, op);

    return op && at->id == op ? at : NULL;
}

/* ---- making ops ------------------------------------------------------------------------------ */

struct core_op *ops_new(struct zero *z, enum core_op_kind kind, enum core_stream stream,
                        enum gw_kind traffic, enum flight_kind flight)
{
    struct core_op *op = &effects_add(z->effects, CORE_EFF_LAUNCH)->op;

    op->id = effects_next_op(z->effects);
    op->kind = (uint8_t)kind;
    op->stream = (uint8_t)stream;
    op->traffic = (uint8_t)traffic;
    op->world = z->world;
    op->members = z->members;
    op->scale = 1;
    op->ready_ns = z->now_ns;
    op->step = z->step + 1;
    flight_add(z, op->id, flight);
    return op;
}

void ops_members(struct zero *z, struct core_op *op, const uint32_t *members, uint32_t count)
{
    struct zero_flight *flight = ops_flight(z, op->id);

    op->members = members;
    op->world = count;
    if (!flight)
        return;
    flight->ranks = (struct ranks){{0}};
    for (uint32_t i = 0; i < count; i++)
        ranks_add(&flight->ranks, members[i]);
}

struct core_ref *ops_refs(struct zero *z, uint32_t count)
{
    return effects_alloc(z->effects, count * sizeof(struct core_ref));
}

struct core_signal *ops_signals(struct zero *z, struct core_op *op, uint32_t count)
{
    struct core_signal *signals = effects_alloc(z->effects, count * sizeof(*signals));

    op->signals = signals;
    op->signal_count = signals ? count : 0;
    return signals;
}

/* Each once; what is done need not be waited for. */
void ops_wait(struct zero *z, struct core_op *op, const uint64_t *ids, uint32_t count)
{
    uint64_t *waits = NULL;

    op->wait_op_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool wanted = ops_flight(z, ids[i]) != NULL;

        for (uint32_t k = 0; k < op->wait_op_count && wanted; k++)
            wanted = waits[k] != ids[i];
        if (wanted && !waits)
            waits = effects_alloc(z->effects, count * sizeof(*waits));
        if (wanted && waits)
            waits[op->wait_op_count++] = ids[i];
    }
    op->wait_ops = waits;
}

struct core_op *ops_barrier(struct zero *z, enum core_stream stream, const uint32_t *members,
                            uint32_t count)
{
    struct core_op *op = ops_new(z, CORE_OP_BARRIER, stream, GW_KINDS, FLIGHT_OTHER);
    uint32_t *mine = effects_alloc(z->effects, count * sizeof(*mine));

    if (!mine)
        return op;
    memcpy(mine, members, count * sizeof(*mine));
    ops_members(z, op, mine, count);
    op->rank = members[0];
    return op;
}

void ops_signal(struct zero *z, struct core_signal signal, uint64_t after_op)
{
    struct core_effect *effect = effects_add(z->effects, CORE_EFF_SIGNAL);

    effect->signal = signal;
    effect->after_op = ops_flight(z, after_op) ? after_op : 0;
}

/* nccl-tests' size of a collective over whole buckets: without padding, which stands beside it. */
void ops_payload(const struct zero *z, struct core_op *op, enum ops_of what, uint32_t first_bucket,
                 uint32_t count)
{
    uint64_t padded = 0;

    for (uint32_t b = first_bucket; b < first_bucket + count; b++) {
        const struct gw_layout_bucket *at = &z->bucket_table[b];
        uint32_t bytes = gw_dtype_bytes(what == OPS_OF_PARAMS ? at->dtype : at->grad_dtype);

        padded += at->padded_numel;
        op->payload_bytes += at->numel * bytes;
        op->padding_bytes += (at->padded_numel - at->numel) * bytes;
    }
    op->bucket = first_bucket;
    op->bucket_count = count;
    op->numel = padded / zero_group_of(z, first_bucket)->shard_ranks;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Intervals of a step are united; when the step after the next begins, its length is taken. */
static void comm_add(struct zero_comm *comm, uint64_t step, uint64_t started_ns, uint64_t done_ns)
{
    unsigned i = step & 1;

    if (step > comm->step[i]) {
        comm->total_ns += intervals_total(comm->set[i]);
        intervals_clear(comm->set[i]);
        comm->step[i] = step;
    }
    intervals_add(comm->set[i], started_ns, done_ns);
}

/* Reductions and gathers are communication; local adds, zero fills, casts, the verdict are not. Nor
 * is what fills secondary shards: nobody waits for it as such. */
static void count_comm(struct zero *z, const struct zero_flight *flight, uint64_t started_ns,
                       uint64_t done_ns)
{
    if (flight->kind != FLIGHT_GATHER && flight->kind != FLIGHT_REDUCE)
        return;
    for (uint32_t r = ranks_first(&flight->ranks); r < z->world;
         r = ranks_next(&flight->ranks, r + 1))
        comm_add(&z->ranks[r].comm, flight->step, started_ns, done_ns);
}

void zero_op_done(struct zero *z, uint64_t now_ns, uint64_t op, uint64_t started_ns,
                  uint64_t done_ns)
{
    struct zero_flight *at = ops_flight(z, op), flight;

    if (!at)
        return;
    z->now_ns = now_ns;
    flight = *at;
    at->id = 0;
    z->flight_count--;
    z->moves_in_flight -= moves((enum flight_kind)flight.kind);
    count_comm(z, &flight, started_ns, done_ns);
    if (flight.kind == FLIGHT_REDUCE)
        slot_op_done(z, op);
    if (flight.kind == FLIGHT_GATHER)
        grant_gathered(z, &flight);
    if (flight.kind == FLIGHT_MEASURE)
        measure_op_done(z, &flight, done_ns > started_ns ? done_ns - started_ns : 0);
    slot_pump(z);
    measure_pump(z);
    freeze_pump(z);
    io_pump(z);
}

/* ---- life ------------------------------------------------------------------------------------ */

int ops_init(struct zero *z)
{
    int r;

    z->flight_room = FLIGHT_ROOM;
    z->flights = calloc(z->flight_room, sizeof(*z->flights));
    if (!z->flights)
        return GW_E_NOMEM;
    for (uint32_t rank = 0; rank < z->world; rank++) {
        for (unsigned i = 0; i < 2; i++) {
            r = intervals_new(ZERO_COMM_INTERVALS, &z->ranks[rank].comm.set[i]);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* Completions of ops launched before this are no longer known. */
void ops_reset(struct zero *z)
{
    memset(z->flights, 0, z->flight_room * sizeof(*z->flights));
    z->flight_count = z->moves_in_flight = 0;
    z->verdict_op = 0;
}

void ops_free(struct zero *z)
{
    for (uint32_t rank = 0; z->ranks && rank < z->world; rank++) {
        for (unsigned i = 0; i < 2; i++)
            z->ranks[rank].comm.set[i] = intervals_free(z->ranks[rank].comm.set[i]);
    }
    free(z->flights);
    z->flights = NULL;
}
