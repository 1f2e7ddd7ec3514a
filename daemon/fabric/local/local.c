/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local fabric's table: which stream an op goes to, whom it fails with, and the counters. All
 * ranks are on this node and the device's work runs on the host, so a reduction is one pass over
 * every rank's bucket. Loop thread.
 */
#include "daemon/fabric/local/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct local_fabric *local_of(struct fabric *fabric)
{
    return (struct local_fabric *)(void *)fabric;
}

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

static int local_new(const struct fabric_config *config, struct fabric **ret_fabric)
{
    struct local_fabric *fabric = calloc(1, sizeof(*fabric));

    if (!fabric)
        return GW_E_NOMEM;
    fabric->config = *config;
    pthread_mutex_init(&fabric->pace_lock, NULL);
    *ret_fabric = (struct fabric *)(void *)fabric;
    return 0;
}

static void drop_partials(struct local_fabric *fabric)
{
    for (uint32_t b = 0; b < fabric->partial_room; b++)
        fabric->partials[b] = local_partials_unref(fabric->partials[b]);
}

static struct fabric *local_free(struct fabric *fabric)
{
    struct local_fabric *local = local_of(fabric);

    if (!local)
        return NULL;
    drop_partials(local);
    free(local->partials);
    pthread_mutex_destroy(&local->pace_lock);
    free(local);
    return NULL;
}

/* Streams are made when first used: a stage without gathers has no thread for them. */
static int stream_of(struct local_fabric *fabric, const struct core_op *op,
                     struct device_stream **ret_stream)
{
    struct device_stream **stream = op->stream == CORE_STREAM_REDUCE    ? &fabric->reduce
                                    : op->stream == CORE_STREAM_CONTROL ? &fabric->control
                                                                        : &fabric->gather[op->rank];
    char name[16];
    int r;

    if (!*stream) {
        if (op->stream == CORE_STREAM_GATHER)
            snprintf(name, sizeof(name), "gather%u", op->rank);
        else
            snprintf(name, sizeof(name), "%s",
                     op->stream == CORE_STREAM_REDUCE ? "reduce" : "control");
        r = fabric->config.device_ops->stream_new(fabric->config.device, name, stream);
        if (r < 0)
            return r;
    }
    *ret_stream = *stream;
    return 0;
}

static bool for_one_rank(const struct core_op *op)
{
    return op->kind == CORE_OP_GATHER || op->kind == CORE_OP_LOCAL_ADD || op->kind == CORE_OP_ZERO;
}

static uint64_t ranks_of(const struct core_op *op)
{
    uint64_t ranks = 0;

    if (for_one_rank(op))
        return 1ull << op->rank;
    for (uint32_t i = 0; i < op->world; i++)
        ranks |= 1ull << op->members[i];
    return ranks;
}

static bool held(const struct local_fabric *fabric, const struct local_op *op)
{
    if (fabric->config.link_bytes_per_s == 0 || op->ring_bytes == 0)
        return false;
    /* A mapped gather sends nothing over any link. */
    return op->op.kind != CORE_OP_GATHER || op->segment_count > 0;
}

static int local_launch(struct fabric *fabric, const struct fabric_op *op)
{
    struct local_fabric *local = local_of(fabric);
    struct device_stream *stream;
    struct local_op *copy;
    int r;

    r = stream_of(local, op->op, &stream);
    if (r < 0)
        return r;
    r = local_op_new(local, op, &copy);
    if (r < 0)
        return r;
    r = local->config.device_ops->enqueue(
        stream, &(struct device_work){.op = op->op->id,
                                      .wait_op = op->op->wait_op,
                                      .ranks = ranks_of(op->op),
                                      .ready_ns = op->op->ready_ns,
                                      .chained = op->op->stream == CORE_STREAM_GATHER,
                                      .waits = op->waits,
                                      .wait_count = op->wait_count,
                                      .signals = op->signals,
                                      .signal_count = op->signal_count,
                                      .hold = held(local, copy) ? local_hold : NULL,
                                      .run = local_run,
                                      .release = local_op_free,
                                      .arg = copy});
    if (r < 0)
        local_op_free(copy);
    return r;
}

static void local_counters(const struct fabric *fabric, uint32_t rank,
                           struct gw_counters ret_kinds[GW_KINDS])
{
    const struct local_fabric *local = (const struct local_fabric *)(const void *)fabric;

    for (uint32_t kind = 0; kind < GW_KINDS; kind++) {
        const struct local_counter *from = &local->counters[rank][kind];
        ret_kinds[kind] = (struct gw_counters){
            .calls = atomic_load_explicit(&from->calls, memory_order_relaxed),
            .payload_bytes = atomic_load_explicit(&from->payload, memory_order_relaxed),
            .padding_bytes = atomic_load_explicit(&from->padding, memory_order_relaxed),
            .ring_bytes = atomic_load_explicit(&from->ring, memory_order_relaxed),
            .moved_bytes = atomic_load_explicit(&from->moved, memory_order_relaxed),
        };
    }
}

static void local_reset(struct fabric *fabric)
{
    struct local_fabric *local = local_of(fabric);

    drop_partials(local);
    for (uint32_t rank = 0; rank < GW_RANKS_MAX; rank++)
        for (uint32_t kind = 0; kind < GW_KINDS; kind++) {
            struct local_counter *counter = &local->counters[rank][kind];
            atomic_store_explicit(&counter->calls, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->payload, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->padding, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->ring, 0, memory_order_relaxed);
            atomic_store_explicit(&counter->moved, 0, memory_order_relaxed);
        }
}

const struct fabric_ops fabric_local = {
    .name = "local",
    .fabric_new = local_new,
    .fabric_free = local_free,
    .launch = local_launch,
    .counters = local_counters,
    .reset = local_reset,
};
