/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums and copies of bulk data, in blocks that a stream's thread shares with its helpers when there
 * are bytes enough to be worth waking one. Blocks are whole chunks, so that partials and bits do
 * not depend on who computed them. Touches only what the op points to, and the counters.
 */
#include <stdatomic.h>

#include "daemon/fabric/local/local.h"

#define BLOCK_NUMEL (16u * KERNEL_CHUNK)
#define COPY_BYTES (512u << 10) /* of one copied block */
#define SHARED_BYTES (1u << 20) /* moved by an op, from which on it is shared */

/* One op on its way through the crew. */
struct bulk {
    struct local_op *op;
    uint64_t total;          /* sums: elements of the whole result */
    uint64_t blocks_of_part; /* blocks come part by part: slices of a sum, outputs of a gather */
    bool past;
    _Atomic uint64_t read[GW_RANKS_MAX], written; /* by part; of all */
};

static void run_blocks(struct bulk *bulk, void (*run)(void *arg, uint64_t block), uint64_t blocks,
                       uint64_t bytes)
{
    bulk->past = kernel_is_past(bytes);
    if (bytes >= SHARED_BYTES)
        crew_run(bulk->op->fabric->crew, run, bulk, blocks);
    else
        for (uint64_t block = 0; block < blocks; block++)
            run(bulk, block);
}

static uint64_t moved_of(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The whole is cut into slices of `numel`, in an all-reduce too, so that norm partials fall as in a
 * reduce-scatter; the collectives layer's counts need not be a multiple of the members, then the
 * last slices are short or empty. */
static bool place_of(const struct bulk *bulk, uint64_t block, struct kernel_reduce *reduce,
                     uint32_t *ret_slice)
{
    const struct local_op *op = bulk->op;
    uint64_t slice = block / bulk->blocks_of_part;
    uint64_t at = block % bulk->blocks_of_part * BLOCK_NUMEL, begin = slice * op->op.numel;
    uint64_t end = begin + op->op.numel < bulk->total ? begin + op->op.numel : bulk->total;

    if (begin + at >= end)
        return false;
    reduce->first = begin + at;
    reduce->count = end - begin - at < BLOCK_NUMEL ? end - begin - at : BLOCK_NUMEL;
    reduce->n = op->op.world;
    reduce->scale = op->op.scale;
    reduce->accumulate = op->op.accumulate;
    reduce->past = bulk->past;
    if (op->partials)
        reduce->partials =
            op->partials->at + slice * kernel_chunks(op->partials->numel) + at / KERNEL_CHUNK;
    *ret_slice = (uint32_t)slice;
    return true;
}

static void add_moved(struct bulk *bulk, uint32_t slice, const struct kernel_moved *moved)
{
    atomic_fetch_add_explicit(&bulk->read[slice], moved->read, memory_order_relaxed);
    atomic_fetch_add_explicit(&bulk->written, moved->written, memory_order_relaxed);
}

static void all_reduce_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce reduce = {
        .in = bulk->op->in, .out = bulk->op->out, .outs = bulk->op->op.world};
    uint32_t slice;

    if (!place_of(bulk, block, &reduce, &slice))
        return;
    kernel_reduce(&reduce, &moved);
    add_moved(bulk, slice, &moved);
}

/* An output has only its slice: there it begins where the inputs' slice does. */
static void reduce_scatter_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct local_op *op = bulk->op;
    const float *in[GW_RANKS_MAX];
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce reduce = {.in = in, .outs = 1};
    uint32_t slice;

    if (!place_of(bulk, block, &reduce, &slice))
        return;
    reduce.out = &op->out[slice];
    reduce.first -= slice * op->op.numel;
    for (uint32_t q = 0; q < op->op.world; q++)
        in[q] = op->in[q] ? op->in[q] + slice * op->op.numel : NULL;
    kernel_reduce(&reduce, &moved);
    add_moved(bulk, slice, &moved);
}

void local_reduce_scatter(struct local_op *op)
{
    const struct core_op *what = &op->op;
    struct bulk bulk = {.op = op, .total = what->world * what->numel};

    bulk.blocks_of_part = (what->numel + BLOCK_NUMEL - 1) / BLOCK_NUMEL;
    run_blocks(&bulk, reduce_scatter_block, what->world * bulk.blocks_of_part,
               bulk.total * (what->world + 1u) * sizeof(float));
    for (uint32_t r = 0; r < what->world; r++)
        local_count(op, what->members[r], moved_of(&bulk.read[r]));
}

void local_all_reduce(struct local_op *op)
{
    const struct core_op *what = &op->op;
    struct bulk bulk = {.op = op,
                        .total = what->total_numel ? what->total_numel : what->world * what->numel};

    bulk.blocks_of_part = (what->numel + BLOCK_NUMEL - 1) / BLOCK_NUMEL;
    run_blocks(&bulk, all_reduce_block, what->world * bulk.blocks_of_part,
               bulk.total * what->world * 2u * sizeof(float));
    for (uint32_t r = 0; r < what->world; r++)
        local_count(op, what->members[r],
                    moved_of(&bulk.read[r]) + moved_of(&bulk.written) / what->world);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Piece `index` of a copy. */
static uint64_t copy_piece(void *to, const void *from, uint64_t bytes, uint64_t index, bool past)
{
    uint64_t at = index * COPY_BYTES, rest = at < bytes ? bytes - at : 0;

    if (rest == 0 || to == from)
        return 0;
    return kernel_copy((char *)to + at, (const char *)from + at,
                       rest < COPY_BYTES ? rest : COPY_BYTES, past);
}

static uint64_t pieces_of(uint64_t bytes)
{
    return (bytes + COPY_BYTES - 1) / COPY_BYTES;
}

/* Input by input, and of each piece of it all outputs: it is read from memory once. */
static void all_gather_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct core_op *what = &bulk->op->op;
    uint64_t q = block / bulk->blocks_of_part, piece = block % bulk->blocks_of_part;

    for (uint32_t r = 0; r < what->world; r++)
        atomic_fetch_add_explicit(&bulk->read[r],
                                  copy_piece(bulk->op->out[r] + q * what->numel, bulk->op->in[q],
                                             what->numel * sizeof(float), piece, bulk->past),
                                  memory_order_relaxed);
}

void local_all_gather(struct local_op *op)
{
    const struct core_op *what = &op->op;
    uint64_t bytes = what->numel * sizeof(float);
    struct bulk bulk = {.op = op, .blocks_of_part = pieces_of(bytes)};

    run_blocks(&bulk, all_gather_block, what->world * bulk.blocks_of_part,
               bytes * what->world * (what->world + 1u));
    for (uint32_t r = 0; r < what->world; r++)
        local_count(op, what->members[r], moved_of(&bulk.read[r]));
}

/* Segments one after the other, each in pieces. Found again for each block: there are few. */
static void gather_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct fabric_segment *segment = bulk->op->segments;

    for (; block >= pieces_of(segment->bytes); segment++)
        block -= pieces_of(segment->bytes);
    atomic_fetch_add_explicit(
        &bulk->written, copy_piece(segment->to, segment->from, segment->bytes, block, bulk->past),
        memory_order_relaxed);
}

void local_gather(struct local_op *op)
{
    struct bulk bulk = {.op = op};
    uint64_t blocks = 0, bytes = 0;

    for (uint32_t i = 0; i < op->segment_count; i++) {
        blocks += pieces_of(op->segments[i].bytes);
        bytes += 2 * op->segments[i].bytes;
    }
    run_blocks(&bulk, gather_block, blocks, bytes);
    local_count(op, op->op.rank, moved_of(&bulk.written));
}
