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
#include <unistd.h>

static struct local_fabric *local_of(struct fabric *fabric)
{
    return (struct local_fabric *)(void *)fabric;
}

#define USUAL_CACHE_BYTES (2u << 20)
#define CHUNKS_MIN 4u /* fewer, and taking turns costs more than a sum */
#define CHUNKS_MAX 64u

/* A copied block is read once and written to each output out of the second cache: a quarter of
 * it. Of a sum, the block of one array is an eighth: what 4 ranks bring and the result stay there
 * while an all-reduce writes that to all of them. */
struct local_blocks local_blocks_for(uint64_t cache_bytes)
{
    uint64_t chunks =
        (cache_bytes ? cache_bytes : USUAL_CACHE_BYTES) / 8 / (KERNEL_CHUNK * sizeof(float));

    chunks = chunks < CHUNKS_MIN ? CHUNKS_MIN : chunks > CHUNKS_MAX ? CHUNKS_MAX : chunks;
    return (struct local_blocks){.copy_bytes = 2 * chunks * KERNEL_CHUNK * sizeof(float),
                                 .numel = chunks * KERNEL_CHUNK};
}

int local_init(struct local_fabric *fabric, const struct fabric_config *config)
{
    long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);

    if (crew_new(NULL, &fabric->crew) < 0)
        return GW_E_NOMEM;
    fabric->config = *config;
    fabric->blocks = local_blocks_for(cache > 0 ? (uint64_t)cache : 0);
    pthread_mutex_init(&fabric->pace_lock, NULL);
    return 0;
}

static int local_new(const struct fabric_config *config, struct fabric **ret_fabric)
{
    struct local_fabric *fabric = calloc(1, sizeof(*fabric));

    if (!fabric)
        return GW_E_NOMEM;
    if (local_init(fabric, config) < 0) {
        free(fabric);
        return GW_E_NOMEM;
    }
    *ret_fabric = (struct fabric *)(void *)fabric;
    return 0;
}

static void drop_partials(struct local_fabric *fabric)
{
    for (uint32_t b = 0; b < fabric->partial_room; b++)
        fabric->partials[b] = local_partials_unref(fabric->partials[b]);
}

void local_end(struct local_fabric *fabric)
{
    drop_partials(fabric);
    free(fabric->partials);
    crew_free(fabric->crew);
    pthread_mutex_destroy(&fabric->pace_lock);
}

static struct fabric *local_free(struct fabric *fabric)
{
    if (!fabric)
        return NULL;
    local_end(local_of(fabric));
    free(fabric);
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

/* So little to do that handing it to another thread would take longer. */
bool local_is_quick(const struct local_op *op)
{
    const struct core_op *what = &op->op;
    uint64_t bytes = what->numel * gw_dtype_bytes(what->in_dtype);

    if (what->kind == CORE_OP_REDUCE_SCATTER || what->kind == CORE_OP_ALL_GATHER ||
        what->kind == CORE_OP_ALL_REDUCE)
        return bytes <= LOCAL_QUICK_BYTES / what->world && what->world <= LOCAL_QUICK_RANKS;
    if (what->kind == CORE_OP_BROADCAST)
        return bytes <= LOCAL_QUICK_BYTES && what->world <= LOCAL_QUICK_RANKS;
    if (what->kind == CORE_OP_GATHER || what->kind == CORE_OP_FILL)
        return op->segment_bytes <= LOCAL_QUICK_BYTES;
    return what->kind == CORE_OP_BARRIER;
}

int local_enqueue(struct local_fabric *fabric, const struct fabric_op *op, struct local_op *copy,
                  const struct local_way *way)
{
    struct device_stream *stream;
    int r;

    r = stream_of(fabric, op->op, &stream);
    if (r < 0)
        return r;
    return fabric->config.device_ops->enqueue(
        stream, &(struct device_work){.op = op->op->id,
                                      .wait_ops = way->wait_ops,
                                      .wait_op_count = way->wait_op_count,
                                      .ranks = figures_ranks(op->op),
                                      .ready_ns = op->op->ready_ns,
                                      .chained = op->op->stream == CORE_STREAM_GATHER &&
                                                 op->op->kind != CORE_OP_CAST,
                                      .quick = way->quick,
                                      .waits = op->waits,
                                      .wait_count = op->wait_count,
                                      .signals = op->signals,
                                      .signal_count = op->signal_count,
                                      .hold = copy->hold_ns ? local_hold : NULL,
                                      .hold_ns = copy->hold_ns,
                                      .run = way->run,
                                      .release = way->release,
                                      .arg = copy});
}

static int local_launch(struct fabric *fabric, const struct fabric_op *op)
{
    struct local_fabric *local = local_of(fabric);
    struct local_op *copy;
    int r;

    r = local_op_new(local, op, &copy);
    if (r < 0)
        return r;
    r = local_enqueue(local, op, copy,
                      &(struct local_way){.quick = local_is_quick(copy),
                                          .run = local_run,
                                          .release = local_op_free,
                                          .wait_ops = op->op->wait_ops,
                                          .wait_op_count = op->op->wait_op_count});
    if (r < 0)
        local_op_free(copy);
    return r;
}

static void local_counters(const struct fabric *fabric, uint32_t rank,
                           struct gw_counters ret_kinds[GW_KINDS])
{
    const struct local_fabric *local = (const struct local_fabric *)(const void *)fabric;

    figures_read(&local->counters, rank, ret_kinds);
}

void local_clear(struct local_fabric *fabric)
{
    drop_partials(fabric);
    figures_reset(&fabric->counters, fabric->config.world);
}

static void local_reset(struct fabric *fabric)
{
    local_clear(local_of(fabric));
}

int local_place(struct local_fabric *fabric)
{
    const struct fabric_config *config = &fabric->config;
    const struct placement *placement = NULL;
    struct crew *crew;
    int error, r;

    if (config->device_ops->placement)
        placement = config->device_ops->placement(config->device, &error);
    if (!placement)
        return 0;
    r = crew_new(placement, &crew);
    if (r < 0)
        return r;
    crew_free(fabric->crew);
    fabric->crew = crew;
    return 0;
}

/* Every rank's memory is in this process. */
static int local_form(struct fabric *fabric)
{
    return local_place(local_of(fabric));
}

static int local_group(struct fabric *fabric, const uint32_t *members, uint32_t count)
{
    (void)fabric;
    (void)members;
    (void)count;
    return 0;
}

/* Partials are made by their first reduction. */
static int local_sealed(struct fabric *fabric, const struct gw_layout_page *page)
{
    (void)fabric;
    (void)page;
    return 0;
}

static void local_memory(struct fabric *fabric, uint32_t rank, const struct device_memory *memory)
{
    (void)fabric;
    (void)rank;
    (void)memory;
}

/* An op waits for nobody once its turn has come; the device ends those that wait for it. */
static void local_abort(struct fabric *fabric)
{
    (void)fabric;
}

/* The fixed tree is the only order here: who allows another one gets the same bits. */
static const char *local_order_name(uint32_t order)
{
    (void)order;
    return "local exact";
}

const struct fabric_ops fabric_local = {
    .name = "local",
    .fabric_new = local_new,
    .fabric_free = local_free,
    .form = local_form,
    .group = local_group,
    .memory_added = local_memory,
    .memory_removed = local_memory,
    .sealed = local_sealed,
    .abort = local_abort,
    .launch = local_launch,
    .order_name = local_order_name,
    .counters = local_counters,
    .reset = local_reset,
};
