/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of ops: see figures.h. Owns nothing; counters are atomic, the rest is arithmetic. */
#include "daemon/fabric/figures.h"

#define HOLD_MAX_NS 3600e9 /* a link slower than that is a slip; an op's deadline comes first */

uint64_t fabric_ring_bytes(enum gw_kind kind, uint64_t payload_bytes, uint32_t world)
{
    uint64_t one_way;

    if (world < 2)
        return 0;
    if (kind == GW_KIND_BROADCAST)
        return payload_bytes;
    one_way = payload_bytes / world * (world - 1) + payload_bytes % world * (world - 1) / world;
    return kind == GW_KIND_ALL_REDUCE || kind == GW_KIND_CONTROL
               ? payload_bytes / world * (world - 1) * 2 +
                     payload_bytes % world * (world - 1) * 2 / world
               : one_way;
}

static void add(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

void figures_count(struct fabric_counters *counters, const struct core_op *op, uint64_t ring_bytes,
                   uint32_t rank, uint64_t moved_bytes)
{
    struct fabric_counter *counter;

    if (op->measure || op->traffic >= GW_KINDS)
        return;
    counter = &counters->at[rank][op->traffic];
    add(&counter->calls, 1);
    add(&counter->payload, op->payload_bytes);
    add(&counter->padding, op->padding_bytes);
    add(&counter->ring, ring_bytes);
    add(&counter->moved, moved_bytes);
}

void figures_moved(struct fabric_counters *counters, const struct core_op *op, uint32_t rank,
                   uint64_t moved_bytes)
{
    if (!op->measure && op->traffic < GW_KINDS)
        add(&counters->at[rank][op->traffic].moved, moved_bytes);
}

void figures_crossed(struct fabric_counters *counters, const struct core_op *op, uint32_t rank,
                     uint64_t bytes)
{
    if (!op->measure && op->traffic < GW_KINDS)
        add(&counters->at[rank][op->traffic].cross, bytes);
}

static uint64_t read_one(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void figures_read(const struct fabric_counters *counters, uint32_t rank,
                  struct gw_counters ret_kinds[GW_KINDS])
{
    for (uint32_t kind = 0; kind < GW_KINDS; kind++) {
        const struct fabric_counter *from = &counters->at[rank][kind];
        ret_kinds[kind] = (struct gw_counters){.calls = read_one(&from->calls),
                                               .payload_bytes = read_one(&from->payload),
                                               .padding_bytes = read_one(&from->padding),
                                               .ring_bytes = read_one(&from->ring),
                                               .moved_bytes = read_one(&from->moved),
                                               .cross_node_bytes = read_one(&from->cross)};
    }
}

void figures_reset(struct fabric_counters *counters, uint32_t world)
{
    for (uint32_t rank = 0; rank < world; rank++)
        for (uint32_t kind = 0; kind < GW_KINDS; kind++) {
            struct fabric_counter *counter = &counters->at[rank][kind];
            atomic_store_explicit(&counter->calls, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->payload, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->padding, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->ring, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->moved, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->cross, 0, memory_order_relaxed);
        }
}

uint64_t figures_ring_bytes(const struct core_op *op)
{
    if (op->traffic >= GW_KINDS)
        return 0;
    return fabric_ring_bytes((enum gw_kind)op->traffic, op->payload_bytes, op->world);
}

struct ranks figures_ranks(const struct core_op *op)
{
    struct ranks ranks = {{0}};

    if (op->kind == CORE_OP_GATHER || op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_ZERO ||
        op->kind == CORE_OP_CAST || op->kind == CORE_OP_FILL)
        return ranks_one(op->rank);
    for (uint32_t i = 0; i < op->world; i++)
        ranks_add(&ranks, op->members[i]);
    return ranks;
}

uint64_t figures_hold_ns(const struct fabric_op *op, uint64_t ring_bytes, uint64_t link_bytes_per_s)
{
    double hold_ns;

    /* A mapped gather sends nothing over any link. */
    if (link_bytes_per_s == 0 || ring_bytes == 0 ||
        (op->op->kind == CORE_OP_GATHER && op->segment_count == 0))
        return 0;
    hold_ns = (double)ring_bytes * 1e9 / (double)link_bytes_per_s;
    return (uint64_t)(hold_ns < HOLD_MAX_NS ? hold_ns : HOLD_MAX_NS);
}
