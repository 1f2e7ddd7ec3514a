/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the core's references to pointers: an op is resolved and handed to the fabric, a signal to
 * the device. Pointers may be a device's: nothing here follows them. Loop thread.
 *
 * Every reference is checked against the arena it points into; one that does not fit is a fault of
 * the core, never of a client, and ends the engine.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/device/ring.h"
#include "daemon/engine/job_internal.h"
#include "daemon/engine/log.h"
#include "daemon/engine/waits.h"

int launch_new(struct job *job)
{
    struct scratch *scratch = &job->scratch;

    scratch->in = calloc(GW_RANKS_MAX, sizeof(*scratch->in));
    scratch->out = calloc(GW_RANKS_MAX, sizeof(*scratch->out));
    return scratch->in && scratch->out ? 0 : GW_E_NOMEM;
}

void launch_free(struct job *job)
{
    free(job->scratch.in);
    free(job->scratch.out);
    free(job->scratch.segments);
    free(job->scratch.waits);
    free(job->scratch.signals);
}

/* Room for count items of `size` bytes; NULL: no memory (the old block stays). */
static void *room(void *block, uint32_t *room_count, uint32_t count, size_t size)
{
    uint32_t wanted = *room_count ? *room_count : 16;
    void *grown;

    if (count <= *room_count)
        return block;
    while (wanted < count)
        wanted *= 2;
    grown = realloc(block, wanted * size);
    if (grown)
        *room_count = wanted;
    return grown;
}

/* ---- signals and waits ----------------------------------------------------------------------- */

static struct gw_shm_slot *slot_of(const struct job *job, uint32_t rank, uint32_t timeline)
{
    struct gw_shm_board *board = job->boards[rank] ? job->boards[rank]->base : NULL;
    uint32_t index = GW_TIMELINE_INDEX(timeline);

    if (GW_TIMELINE_CLASS(timeline) == GW_TL_OP)
        return &job->ports[rank].engine->op[index % GW_OPS_IN_FLIGHT];
    if (!board)
        return NULL;
    switch (GW_TIMELINE_CLASS(timeline)) {
    case GW_TL_BUCKET:
        return index < board->buckets ? &board->slots[index] : NULL;
    case GW_TL_UNIT:
        return index < board->units ? &board->slots[board->buckets + index] : NULL;
    case GW_TL_STEP:
        return &board->step;
    case GW_TL_UPDATE:
        return &board->update;
    default:
        return NULL;
    }
}

/* The slot's word for the client's streams. */
static _Atomic uint64_t *mirror_of(const struct job *job, uint32_t rank, uint32_t timeline)
{
    const struct device_memory *ops = job->ports[rank].waits, *board = job->board_waits[rank];
    uint32_t index = GW_TIMELINE_INDEX(timeline);

    if (GW_TIMELINE_CLASS(timeline) == GW_TL_OP)
        return ops ? waits_word(ops, index % GW_OPS_IN_FLIGHT) : NULL;
    if (!ops || !board)
        return NULL;
    switch (GW_TIMELINE_CLASS(timeline)) {
    case GW_TL_BUCKET:
        return waits_word(board, GW_WAIT_BUCKETS + index);
    case GW_TL_UNIT:
        return waits_word(board,
                          GW_WAIT_BUCKETS + index + layout_page(core_layout(job->core))->buckets);
    case GW_TL_STEP:
        return waits_word(board, GW_WAIT_STEP);
    case GW_TL_UPDATE:
        return waits_word(board, GW_WAIT_UPDATE);
    default:
        return NULL;
    }
}

/* False: nobody is there to be told. */
static bool resolve_signal(const struct job *job, const struct core_signal *signal,
                           struct device_signal *ret_signal)
{
    const struct job_port *port = &job->ports[signal->rank];
    struct gw_shm_slot *slot = port->engine ? slot_of(job, signal->rank, signal->timeline) : NULL;

    if (!slot)
        return false;
    *ret_signal = (struct device_signal){.slot = slot,
                                         .value = signal->value,
                                         .offset = signal->offset,
                                         .rank = signal->rank,
                                         .engine = port->engine,
                                         .client = port->client,
                                         .job = job->config.page,
                                         .mirror = mirror_of(job, signal->rank, signal->timeline)};
    return true;
}

/* Where a fetch will lie, before it does: the client may launch kernels on it behind a wait. */
static void tell_place(const struct job *job, const struct core_signal *signal)
{
    const struct job_port *port = &job->ports[signal->rank];
    struct device_signal resolved;

    if (!port->waits || GW_TIMELINE_CLASS(signal->timeline) != GW_TL_UNIT ||
        !resolve_signal(job, signal, &resolved))
        return;
    resolved.slot->placed_offset = signal->offset;
    atomic_store_explicit(&resolved.slot->placed, signal->value, memory_order_release);
    device_ring(port->engine, port->client, device_line(resolved.slot));
}

static int resolve_signals(struct job *job, const struct core_op *op, struct fabric_op *to)
{
    struct scratch *scratch = &job->scratch;
    struct device_signal *signals =
        room(scratch->signals, &scratch->signals_room, op->signal_count, sizeof(*signals));

    if (op->signal_count == 0)
        return 0;
    if (!signals)
        return GW_E_NOMEM;
    scratch->signals = signals;
    for (uint32_t i = 0; i < op->signal_count; i++)
        to->signal_count += resolve_signal(job, &op->signals[i], &signals[to->signal_count]);
    to->signals = signals;
    return 0;
}

/* The word of a token; NULL: it counts as reached, for the rank has no client. */
static const _Atomic uint64_t *word_of(const struct job *job, const struct core_token *token)
{
    const struct gw_client_page *page = job->ports[token->rank].client;

    if (token->index >= GW_TIMELINES_MAX)
        return NULL;
    return page ? &page->timeline[token->index] : span_kept_word(job, token->rank, token->index);
}

static int resolve_waits(struct job *job, const struct core_op *op, struct fabric_op *to)
{
    struct scratch *scratch = &job->scratch;
    struct device_wait *waits =
        room(scratch->waits, &scratch->waits_room, op->wait_count, sizeof(*waits));

    if (op->wait_count == 0)
        return 0;
    if (!waits)
        return GW_E_NOMEM;
    scratch->waits = waits;
    for (uint32_t i = 0; i < op->wait_count; i++) {
        const struct core_token *token = &op->waits[i];
        const _Atomic uint64_t *word = word_of(job, token);
        if (word)
            waits[to->wait_count++] = (struct device_wait){word, token->value, token->rank};
    }
    to->waits = waits;
    return 0;
}

static void publish_grant(const struct job *job, const struct core_grant *grant)
{
    struct gw_shm_slot *slot =
        slot_of(job, grant->rank, GW_TIMELINE(GW_TL_UNIT, grant->unit));

    if (!slot)
        return;
    atomic_store_explicit(&slot->placed, 0, memory_order_seq_cst);
    __atomic_store_n(&slot->placed_offset, grant->offset, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->since, grant->since, __ATOMIC_RELEASE);
    atomic_store_explicit(&slot->placed, grant->value, memory_order_release);
}

void launch_grants(struct job *job)
{
    struct core_progress progress;
    struct core_grant grant;

    /* What a client declares is known to all nodes only when the log has it. */
    if (job->config.log)
        return;

    while (core_next_grant(job->core, &grant))
        publish_grant(job, &grant);
    for (uint32_t rank = 0; rank < job->config.world; rank++) {
        struct gw_shm_board *board = job->boards[rank] ? job->boards[rank]->base : NULL;

        if (!core_progress(job->core, rank, &progress) || !board)
            continue;
        atomic_store_explicit(&board->ring_at, progress.ring_at, memory_order_release);
        atomic_store_explicit(&board->served, progress.served, memory_order_release);
    }
}

int launch_signal(struct job *job, const struct core_signal *signal, uint64_t after_op)
{
    struct device_signal resolved;

    if (!resolve_signal(job, signal, &resolved))
        return 0;
    tell_place(job, signal);
    return job->config.device_ops->signal_after(job->config.device, after_op, &resolved);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_here(const struct job *job, const struct core_ref *ref)
{
    return ref->rank < 0 || job_here(job, (uint32_t)ref->rank);
}

static int resolve(const struct job *job, const struct core_op *op, const struct core_ref *ref,
                   uint64_t bytes, void **ret_pointer)
{
    if (ref->kind == GW_ARENA_NONE || bytes == 0 || !is_here(job, ref)) {
        *ret_pointer = NULL;
        return 0;
    }
    *ret_pointer = arenas_at(job->arenas, ref, bytes);
    if (*ret_pointer)
        return 0;
    log_line("internal: op %llu (kind %u) refers to arena kind %u, rank %d, index %u, offset %llu, "
             "%llu bytes, which does not exist",
             (unsigned long long)op->id, op->kind, ref->kind, ref->rank, ref->index,
             (unsigned long long)ref->offset_bytes, (unsigned long long)bytes);
    return GW_E_INTERNAL;
}

/* What must be there. */
static int resolve_some(const struct job *job, const struct core_op *op, const char *what,
                        const struct core_ref *ref, uint64_t bytes, void **ret_pointer)
{
    int r = resolve(job, op, ref, bytes, ret_pointer);

    if (r < 0 || *ret_pointer || bytes == 0 || !is_here(job, ref))
        return r;
    log_line("internal: op %llu (kind %u) lacks %s", (unsigned long long)op->id, op->kind, what);
    return GW_E_INTERNAL;
}

/* Bytes of one input and one output of each kind of op. */
static void extents(const struct core_op *op, uint64_t *ret_in, uint64_t *ret_out)
{
    uint64_t whole = op->total_numel ? op->total_numel : op->numel * op->world;
    uint64_t in = op->numel, out = op->numel;

    if (op->kind == CORE_OP_REDUCE_SCATTER || op->kind == CORE_OP_ALL_REDUCE)
        in = whole;
    if (op->kind == CORE_OP_ALL_GATHER || (op->kind == CORE_OP_ALL_REDUCE && !op->shards))
        out = whole;
    *ret_in = in * gw_dtype_bytes(op->in_dtype);
    *ret_out = out * gw_dtype_bytes(op->out_dtype);
}

static int resolve_all(struct job *job, const struct core_op *op, uint32_t ins, uint32_t outs,
                       struct fabric_op *to)
{
    struct scratch *scratch = &job->scratch;
    uint64_t in_bytes, out_bytes;
    void *pointer = NULL;
    int r = 0;

    extents(op, &in_bytes, &out_bytes);
    for (uint32_t i = 0; r == 0 && i < ins; i++) {
        r = resolve(job, op, &op->in[i], in_bytes, &pointer);
        scratch->in[i] = pointer;
    }
    for (uint32_t i = 0; r == 0 && i < outs; i++)
        r = resolve_some(job, op, "an output", &op->out[i], out_bytes, &scratch->out[i]);
    to->in = scratch->in;
    to->out = scratch->out;
    return r;
}

static int segments_room(struct job *job, uint32_t count, struct fabric_op *to)
{
    struct scratch *scratch = &job->scratch;
    struct fabric_segment *segments =
        room(scratch->segments, &scratch->segments_room, count, sizeof(*segments));

    if (!segments)
        return count ? GW_E_NOMEM : 0;
    to->segments = scratch->segments = segments;
    return 0;
}

static void segment_add(struct job *job, struct fabric_op *to, void *at, const void *from,
                        uint64_t bytes, uint32_t owner)
{
    job->scratch.segments[to->segment_count++] = (struct fabric_segment){at, from, bytes, owner};
}

/* Slices of all owners to their places in the bucket. */
static int resolve_gathered(struct job *job, const struct core_op *op, uint32_t b,
                            struct fabric_op *to)
{
    const struct gw_layout_bucket *bucket = &layout_buckets(core_layout(job->core))[b];
    uint64_t whole = bucket->padded_numel * gw_dtype_bytes(bucket->dtype);
    uint64_t slice = whole / op->world;
    struct core_ref place = op->out[0];
    void *base, *from;
    int r;

    place.offset_bytes +=
        core_gathered(job->core, b, op->rank) - core_gathered(job->core, op->bucket, op->rank);
    r = resolve_some(job, op, "a place", &place, whole, &base);
    for (uint32_t q = 0; r == 0 && q < op->world; q++) {
        struct core_ref ref = op->secondary
                                  ? core_secondary_slice(job->core, b, op->members[q])
                                  : core_param_slice(job->core, b, op->members[q]);
        if (op->in_place_skip && op->members[q] == op->rank)
            continue;
        r = resolve_some(job, op, "a slice", &ref, slice, &from);
        segment_add(job, to, base ? (char *)base + q * slice : NULL, from, slice, op->members[q]);
    }
    return r;
}

static int resolve_gather(struct job *job, const struct core_op *op, struct fabric_op *to)
{
    int r;

    if (op->out[0].kind == GW_ARENA_NONE)
        return 0; /* mapped: the shards are what the client reads */
    r = segments_room(job, op->bucket_count * op->world, to);
    for (uint32_t b = op->bucket; r == 0 && b < op->bucket + op->bucket_count; b++)
        r = resolve_gathered(job, op, b, to);
    return r;
}

/* Slices of a gathered bucket, each to the secondary shard of its member. */
static int resolve_filled(struct job *job, const struct core_op *op, uint32_t b,
                          struct fabric_op *to)
{
    const struct gw_layout_bucket *bucket = &layout_buckets(core_layout(job->core))[b];
    uint64_t whole = bucket->padded_numel * gw_dtype_bytes(bucket->dtype);
    uint64_t slice = whole / op->world;
    struct core_ref place = op->in[0];
    void *base, *at;
    int r;

    place.offset_bytes +=
        core_gathered(job->core, b, op->rank) - core_gathered(job->core, op->bucket, op->rank);
    r = resolve_some(job, op, "a gathered bucket", &place, whole, &base);
    for (uint32_t q = 0; r == 0 && q < op->world; q++) {
        struct core_ref ref = core_secondary_slice(job->core, b, op->members[q]);
        r = resolve_some(job, op, "a secondary shard", &ref, slice, &at);
        segment_add(job, to, at, base ? (char *)base + q * slice : NULL, slice, op->members[q]);
    }
    return r;
}

static int resolve_fill(struct job *job, const struct core_op *op, struct fabric_op *to)
{
    int r = segments_room(job, op->bucket_count * op->world, to);

    for (uint32_t b = op->bucket; r == 0 && b < op->bucket + op->bucket_count; b++)
        r = resolve_filled(job, op, b, to);
    return r;
}

/* Of each of the rank's buckets of the dtype, its own span. */
static int resolve_cast(struct job *job, const struct core_op *op, struct fabric_op *to)
{
    const struct layout *layout = core_layout(job->core);
    uint32_t buckets = layout_page(layout)->buckets;
    int r;

    if (!job_here(job, op->rank))
        return 0;
    r = segments_room(job, buckets, to);
    for (uint32_t b = 0; r == 0 && b < buckets; b++) {
        struct core_ref shard = core_param_slice(job->core, b, op->rank);
        struct core_ref master = core_master_slice(job->core, b, op->rank);
        uint64_t offset, numel, valid, bytes;
        void *at, *from;
        if (layout_buckets(layout)[b].dtype != op->out_dtype || shard.kind == GW_ARENA_NONE)
            continue;
        layout_slice(layout, b, 0, &offset, &numel, &valid);
        bytes = numel * gw_dtype_bytes(op->out_dtype);
        r = resolve_some(job, op, "a shard", &shard, bytes, &at);
        if (r == 0)
            r = resolve_some(job, op, "a master", &master, numel * sizeof(float), &from);
        if (r == 0)
            segment_add(job, to, at, from, bytes, op->rank);
    }
    return r;
}

static void resolve_verdict(struct job *job, const struct core_op *op, struct fabric_op *to)
{
    const struct gw_layout_page *page = layout_page(core_layout(job->core));

    for (uint32_t i = 0; i < op->world; i++) {
        uint32_t rank = op->members[i];
        const struct device_memory *verdict =
            arenas_get(job->arenas, GW_ARENA_VERDICT, (int)rank, 0);
        job->scratch.boards[i] = job->boards[rank] ? job->boards[rank]->base : NULL;
        job->scratch.verdicts[i] = verdict ? verdict->base : NULL;
    }
    to->boards = job->scratch.boards;
    if (job->config.kind != GW_DEVICE_HOST)
        to->verdicts = job->scratch.verdicts;
    to->buckets = page->buckets;
    to->params = page->params;
}

static int resolve_memory(struct job *job, const struct core_op *op, struct fabric_op *to)
{
    switch ((enum core_op_kind)op->kind) {
    case CORE_OP_REDUCE_SCATTER:
    case CORE_OP_ALL_REDUCE:
    case CORE_OP_ALL_GATHER:
        return resolve_all(job, op, op->world, op->world, to);
    case CORE_OP_BROADCAST:
        return resolve_all(job, op, 1, op->world, to);
    case CORE_OP_LOCAL_ADD:
        return resolve_all(job, op, 1, 1, to);
    case CORE_OP_ZERO:
        return resolve_all(job, op, 0, 1, to);
    case CORE_OP_GATHER:
        return resolve_gather(job, op, to);
    case CORE_OP_FILL:
        return resolve_fill(job, op, to);
    case CORE_OP_CAST:
        return resolve_cast(job, op, to);
    case CORE_OP_VERDICT:
        resolve_verdict(job, op, to);
        return 0;
    case CORE_OP_BARRIER:
        return 0;
    }
    return GW_E_INTERNAL;
}

int launch_op(struct job *job, const struct core_op *op)
{
    struct fabric_op to = {.op = op};
    int r;

    r = resolve_memory(job, op, &to);
    if (r == 0)
        r = resolve_waits(job, op, &to);
    if (r == 0)
        r = resolve_signals(job, op, &to);
    if (r == 0)
        r = job->config.fabric_ops->launch(job->fabric, &to);
    for (uint32_t i = 0; r == 0 && i < op->signal_count; i++)
        tell_place(job, &op->signals[i]);
    return r;
}
