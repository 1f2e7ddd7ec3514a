/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nccl fabric's table: lanes, generations of communicators, memory that is registered with
 * them, and the counters. All ranks' GPUs are driven by this process. Loop thread.
 */
#include "daemon/fabric/nccl/nccl.h"

#include <stdlib.h>
#include <string.h>

static int fabric_new(const struct fabric_config *config, struct fabric **ret_fabric)
{
    struct nccl_fabric *fabric = calloc(1, sizeof(*fabric));

    if (!fabric)
        return GW_E_NOMEM;
    fabric->config = *config;
    *ret_fabric = (struct fabric *)(void *)fabric;
    return 0;
}

/* The last generation's communicators have ended on every GPU. */
static void settle_last(struct nccl_fabric *fabric)
{
    if (!fabric->last)
        return;
    nccl_world_settle(fabric->last);
    fabric->last = nccl_world_unref(fabric->last);
}

static void fabric_abort(struct fabric *fabric)
{
    struct nccl_fabric *nccl = nccl_of(fabric);

    if (!nccl->world)
        return;
    settle_last(nccl);
    nccl_world_abort(nccl->world);
    nccl->last = nccl->world;
    nccl->world = NULL;
}

static struct fabric *fabric_free(struct fabric *fabric)
{
    struct nccl_fabric *nccl = nccl_of(fabric);
    struct nccl_memory *memory, *next;

    if (!nccl)
        return NULL;
    fabric_abort(fabric);
    settle_last(nccl);
    nccl_unseal(nccl);
    for (uint32_t rank = 0; rank < nccl->config.world; rank++)
        if (nccl->scratch[rank].base)
            cuda_scratch_free(nccl->config.device, rank, nccl->scratch[rank].base);
    while (nccl->windows)
        (void)nccl_window_end(nccl, nccl->windows);
    for (memory = nccl->memory; memory; memory = next) {
        next = memory->next;
        free(memory);
    }
    free(nccl);
    return NULL;
}

/* ---- forming --------------------------------------------------------------------------------- */

static int lane_new(struct nccl_fabric *fabric, const char *name, struct device_stream **stream)
{
    return *stream ? 0 : fabric->config.device_ops->stream_new(fabric->config.device, name, stream);
}

/* All of them now: a step must not make streams. */
static int lanes_new(struct nccl_fabric *fabric)
{
    int r = lane_new(fabric, "reduce", &fabric->reduce);

    if (r == 0)
        r = lane_new(fabric, "control", &fabric->control);
    return r == 0 ? lane_new(fabric, "gather", &fabric->gather) : r;
}

/* A rank may have come back on another GPU. */
static int scratch_new(struct nccl_fabric *fabric, uint32_t rank)
{
    struct device *device = fabric->config.device;
    int gpu = cuda_gpu(device, rank);
    void *base;
    int r;

    if (gpu < 0)
        return GW_E_STATE;
    if (fabric->scratch[rank].base && fabric->scratch[rank].gpu == gpu)
        return 0;
    if (fabric->scratch[rank].base)
        cuda_scratch_free(device, rank, fabric->scratch[rank].base);
    fabric->scratch[rank].base = NULL;
    r = cuda_scratch_new(device, rank, NCCL_SCRATCH_BYTES + NCCL_WORDS_BYTES, &base);
    if (r < 0)
        return r;
    fabric->scratch[rank].base = base;
    fabric->scratch[rank].gpu = gpu;
    return 0;
}

/* The first node's: the ids of the communicators to come. Each is a small listening socket. */
static int fabric_address(struct fabric *fabric, uint8_t ret_address[GW_FABRIC_ADDRESS_MAX],
                          uint32_t *ret_bytes)
{
    struct nccl_fabric *nccl = nccl_of(fabric);
    char text[GW_TEXT_MAX + 1];
    ncclUniqueId id;

    *ret_bytes = 0;
    if (nccl->config.nodes->own != 0)
        return 0;
    if (nccl_library_find(&nccl->library, text) < 0)
        return GW_E_DEVICE;
    for (uint32_t i = 0; i < NCCL_IDS; i++) {
        if (ncclGetUniqueId(&id) != ncclSuccess)
            return GW_E_DEVICE;
        memcpy(ret_address + *ret_bytes, &id, sizeof(id));
        *ret_bytes += (uint32_t)sizeof(id);
    }
    return 0;
}

static int fabric_form(struct fabric *fabric)
{
    struct nccl_fabric *nccl = nccl_of(fabric);
    char text[GW_TEXT_MAX + 1];
    int r;

    fabric_abort(fabric);
    settle_last(nccl);
    r = nccl_library_find(&nccl->library, text);
    if (r < 0) {
        cuda_fault(nccl->config.device, "%s", text);
        return r;
    }
    r = lanes_new(nccl);
    for (uint32_t rank = 0; r == 0 && rank < nccl->config.world; rank++)
        r = nccl_is_here(nccl, rank) ? scratch_new(nccl, rank) : 0;
    if (r == 0)
        r = nccl_world_new(nccl, &nccl->world);
    if (r == 0 && !nccl->config.nodes)
        r = nccl_windows_register(nccl);
    if (r < 0)
        fabric_abort(fabric);
    return r;
}

static int fabric_group(struct fabric *fabric, const uint32_t *members, uint32_t count)
{
    struct nccl_fabric *nccl = nccl_of(fabric);
    struct nccl_group *group;

    return nccl->world ? nccl_group_get(nccl->world, members, count, 0, &group) : GW_E_STATE;
}

static int fabric_sealed(struct fabric *fabric, const struct gw_layout_page *page)
{
    return nccl_seal(nccl_of(fabric), page);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Only what the device made: a client's own allocation may be of a kind that NCCL refuses. What
 * cannot be registered for want of memory works unregistered. */
static void memory_added(struct fabric *fabric, uint32_t rank, const struct device_memory *memory)
{
    struct nccl_fabric *nccl = nccl_of(fabric);
    struct nccl_memory *added;

    if (!memory->on_device || memory->fd < 0 || rank >= nccl->config.world)
        return;
    added = calloc(1, sizeof(*added));
    if (!added)
        return;
    added->memory = memory;
    added->rank = rank;
    added->base = memory->base;
    added->bytes = memory->bytes;
    added->next = nccl->memory;
    nccl->memory = added;
    if (!nccl->config.nodes && nccl_window_try(nccl, added->bytes) < 0)
        cuda_fault(nccl->config.device, "no memory to register rank %u's with NCCL", rank);
}

/* Blocks until NCCL has let go of it: a short task of the issuing thread, at a time when no op of
 * the memory is left. */
static void memory_removed(struct fabric *fabric, uint32_t rank, const struct device_memory *memory)
{
    struct nccl_fabric *nccl = nccl_of(fabric);
    struct nccl_memory **at = &nccl->memory, *removed;

    (void)rank;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    removed = *at;
    if (!removed)
        return;
    *at = removed->next;
    settle_last(nccl);
    /* Otherwise a task may still come: what it names stays. */
    if (!removed->window || nccl_window_end(nccl, removed->window))
        free(removed);
}

/* ---- ops ------------------------------------------------------------------------------------- */

static struct device_stream *lane_of(const struct nccl_fabric *fabric, const struct core_op *op)
{
    if (op->stream == CORE_STREAM_GATHER)
        return fabric->gather;
    return op->stream == CORE_STREAM_CONTROL ? fabric->control : fabric->reduce;
}

static int fabric_launch(struct fabric *fabric, const struct fabric_op *op)
{
    struct nccl_fabric *nccl = nccl_of(fabric);
    struct nccl_op *copy;
    uint64_t ranks;
    int r;

    if (!nccl->world)
        return GW_E_STATE;
    r = nccl_op_new(nccl, op, &copy);
    if (r < 0)
        return r;
    ranks = nccl_parts_here(nccl, op->op);
    copy->nothing = ranks == 0;
    if (copy->nothing) /* it is waited for all the same */
        ranks = nccl->world->here & -nccl->world->here;
    r = nccl->config.device_ops->enqueue(
        lane_of(nccl, op->op),
        &(struct device_work){.op = op->op->id,
                              .wait_ops = op->op->wait_ops,
                              .wait_op_count = op->op->wait_op_count,
                              .ranks = {{ranks}},
                              .ready_ns = op->op->ready_ns,
                              .chained = op->op->stream == CORE_STREAM_GATHER,
                              .waits = op->waits,
                              .wait_count = op->wait_count,
                              .signals = op->signals,
                              .signal_count = op->signal_count,
                              .hold_ns = copy->hold_ns,
                              .run = nccl_run,
                              .release = nccl_op_free,
                              .arg = copy});
    if (r < 0)
        nccl_op_free(copy);
    return r;
}

static const char *order_name(uint32_t order)
{
    return order == GW_ORDER_FABRIC ? "nccl fabric" : "nccl exact";
}

static void fabric_counters(const struct fabric *fabric, uint32_t rank,
                            struct gw_counters ret_kinds[GW_KINDS])
{
    figures_read(&((const struct nccl_fabric *)(const void *)fabric)->counters, rank, ret_kinds);
}

static void fabric_reset(struct fabric *fabric)
{
    figures_reset(&nccl_of(fabric)->counters, nccl_of(fabric)->config.world);
}

const struct fabric_ops fabric_nccl = {
    .name = "nccl",
    .fabric_new = fabric_new,
    .fabric_free = fabric_free,
    .address = fabric_address,
    .form = fabric_form,
    .group = fabric_group,
    .memory_added = memory_added,
    .memory_removed = memory_removed,
    .sealed = fabric_sealed,
    .abort = fabric_abort,
    .launch = fabric_launch,
    .order_name = order_name,
    .counters = fabric_counters,
    .reset = fabric_reset,
};
