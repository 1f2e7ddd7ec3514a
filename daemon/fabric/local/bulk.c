/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums and copies of bulk data, in blocks that a stream's thread shares with its helpers when there
 * are bytes enough to be worth waking one. Blocks are whole chunks, so that partials and bits do
 * not depend on who computed them. Touches only what the op points to, and the counters.
 */
#include <stdatomic.h>

#include "daemon/fabric/local/local.h"

#define SHARED_BYTES (1u << 20) /* moved by an op, from which on it is shared */

/* One op on its way through the crew. */
struct bulk {
    struct local_op *op;
    uint64_t total;          /* sums: elements of the whole result */
    uint64_t blocks_of_part; /* blocks come part by part: slices of a sum, outputs of a gather */
    bool past;
    _Atomic uint64_t written;
};

static void run_blocks(struct bulk *bulk, const struct crew_work *work, uint64_t bytes)
{
    bulk->past = kernel_is_past(bytes);
    if (bytes >= SHARED_BYTES)
        crew_run(bulk->op->fabric->crew, work);
    else
        for (uint64_t block = 0; block < work->blocks; block++)
            work->run(bulk, block);
}

/* Blocks come part by part, and part i is in the memory of the i-th member (what is written there,
 * or read from there to be written everywhere). */
static void run_parts(struct bulk *bulk, void (*run)(void *arg, uint64_t block), uint64_t bytes)
{
    const struct core_op *what = &bulk->op->op;

    run_blocks(bulk,
               &(struct crew_work){.run = run,
                                   .arg = bulk,
                                   .blocks = what->world * bulk->blocks_of_part,
                                   .ranks = what->members,
                                   .parts = what->world},
               bytes);
}

/* All of them write into the memory of one rank. */
static void run_for_rank(struct bulk *bulk, void (*run)(void *arg, uint64_t block), uint64_t blocks,
                         uint64_t bytes)
{
    run_blocks(
        bulk,
        &(struct crew_work){
            .run = run, .arg = bulk, .blocks = blocks, .ranks = &bulk->op->op.rank, .parts = 1},
        bytes);
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
    uint64_t most = op->fabric->blocks.numel, at = block % bulk->blocks_of_part * most;
    uint64_t begin = slice * op->op.numel;
    uint64_t end = begin + op->op.numel < bulk->total ? begin + op->op.numel : bulk->total;

    if (begin + at >= end)
        return false;
    reduce->first = begin + at;
    reduce->count = end - begin - at < most ? end - begin - at : most;
    reduce->past = bulk->past;
    if (op->partials)
        reduce->partials = op->partials->at +
                           (op->op.slice_first + slice) * kernel_chunks(op->partials->numel) +
                           at / KERNEL_CHUNK;
    *ret_slice = (uint32_t)slice;
    return true;
}

/* What all blocks of the op have in common. */
struct kernel_reduce local_sum_of(const struct core_op *what)
{
    return (struct kernel_reduce){.n = what->world,
                                  .outs = 1,
                                  .in_dtype = what->in_dtype,
                                  .out_dtype = what->out_dtype,
                                  .round_dtype = what->round_dtype,
                                  .norm = what->norm,
                                  .scale = what->scale,
                                  .accumulate = what->accumulate};
}

static void add_moved(struct bulk *bulk, uint32_t slice, const struct kernel_moved *moved)
{
    atomic_fetch_add_explicit(&bulk->op->read[slice], moved->read, memory_order_relaxed);
    atomic_fetch_add_explicit(&bulk->written, moved->written, memory_order_relaxed);
}

static void all_reduce_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct local_op *op = bulk->op;
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce reduce = local_sum_of(&op->op);
    uint32_t slice;

    if (!place_of(bulk, block, &reduce, &slice))
        return;
    reduce.in = op->in;
    reduce.out = op->out;
    reduce.outs = op->op.world;
    kernel_reduce(&reduce, &moved);
    add_moved(bulk, slice, &moved);
}

uint64_t local_put_back(const struct core_op *what, const void *in, uint64_t begin,
                        const void *from, uint8_t from_dtype, uint64_t count, bool past)
{
    uint64_t size = gw_dtype_bytes(what->in_dtype);
    void *to = (char *)(uintptr_t)in + begin * size;
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce convert = {.in = &from,
                                    .n = 1,
                                    .out = &to,
                                    .outs = 1,
                                    .in_dtype = from_dtype,
                                    .out_dtype = what->in_dtype,
                                    .count = count,
                                    .scale = 1,
                                    .past = past};

    if (what->in_dtype != from_dtype)
        kernel_reduce(&convert, &moved);
    else
        (void)kernel_copy(to, from, count * size, past);
    return count * size;
}

/* Nobody else reads the inputs' part that this block was made of. */
static void put_back(struct bulk *bulk, uint32_t slice, const struct kernel_reduce *reduce)
{
    const struct local_op *op = bulk->op;
    uint64_t begin = slice * op->op.numel + reduce->first;
    const char *from = (const char *)op->out[slice] +
                       reduce->first * gw_dtype_bytes(op->op.out_dtype);

    for (uint32_t q = 0; q < op->op.world; q++)
        if (op->in[q])
            atomic_fetch_add_explicit(&op->read[q],
                                      local_put_back(&op->op, op->in[q], begin, from,
                                                     op->op.out_dtype, reduce->count, bulk->past),
                                      memory_order_relaxed);
}

/* An output has only its slice: there it begins where the inputs' slice does. */
static void reduce_scatter_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct local_op *op = bulk->op;
    uint64_t slice_bytes = op->op.numel * gw_dtype_bytes(op->op.in_dtype);
    const void *in[GW_RANKS_MAX];
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce reduce = local_sum_of(&op->op);
    uint32_t slice;

    if (!place_of(bulk, block, &reduce, &slice))
        return;
    reduce.in = in;
    reduce.out = &op->out[slice];
    reduce.first -= slice * op->op.numel;
    for (uint32_t q = 0; q < op->op.world; q++)
        in[q] = op->in[q] ? (const char *)op->in[q] + slice * slice_bytes : NULL;
    kernel_reduce(&reduce, &moved);
    add_moved(bulk, slice, &moved);
    if (op->op.shards)
        put_back(bulk, slice, &reduce);
}

static uint64_t blocks_of(const struct local_fabric *fabric, uint64_t numel)
{
    return (numel + fabric->blocks.numel - 1) / fabric->blocks.numel;
}

void local_reduce_scatter(struct local_op *op)
{
    const struct core_op *what = &op->op;
    uint32_t passes = what->shards ? 2 : 1; /* over the inputs */
    struct bulk bulk = {.op = op,
                        .total = what->world * what->numel,
                        .blocks_of_part = blocks_of(op->fabric, what->numel)};

    run_parts(&bulk, reduce_scatter_block,
              bulk.total * (passes * what->world * gw_dtype_bytes(what->in_dtype) +
                            gw_dtype_bytes(what->out_dtype)));
    for (uint32_t r = 0; r < what->world; r++)
        local_count(op, what->members[r], moved_of(&op->read[r]));
}

void local_all_reduce(struct local_op *op)
{
    const struct core_op *what = &op->op;
    struct bulk bulk = {.op = op,
                        .total = what->total_numel ? what->total_numel : what->world * what->numel,
                        .blocks_of_part = blocks_of(op->fabric, what->numel)};

    run_parts(&bulk, all_reduce_block,
              bulk.total * what->world *
                  (gw_dtype_bytes(what->in_dtype) + gw_dtype_bytes(what->out_dtype)));
    for (uint32_t r = 0; r < what->world; r++)
        local_count(op, what->members[r],
                    moved_of(&op->read[r]) + moved_of(&bulk.written) / what->world);
}

struct part {
    const struct kernel_reduce *reduce;
    uint64_t block_numel;
    _Atomic uint64_t read, written;
};

static void sum_block(void *arg, uint64_t block)
{
    struct part *part = arg;
    struct kernel_reduce reduce = *part->reduce;
    struct kernel_moved moved = {0, 0};
    uint64_t at = block * part->block_numel, rest = reduce.count - at;

    reduce.first += at;
    reduce.count = rest < part->block_numel ? rest : part->block_numel;
    if (reduce.partials)
        reduce.partials += at / KERNEL_CHUNK;
    kernel_reduce(&reduce, &moved);
    atomic_fetch_add_explicit(&part->read, moved.read, memory_order_relaxed);
    atomic_fetch_add_explicit(&part->written, moved.written, memory_order_relaxed);
}

void local_sum(struct local_fabric *fabric, const struct kernel_reduce *reduce,
               struct kernel_moved *moved)
{
    struct part part = {.reduce = reduce, .block_numel = fabric->blocks.numel};
    uint64_t blocks = blocks_of(fabric, reduce->count);

    if (reduce->count * (reduce->n + reduce->outs) * sizeof(float) >= SHARED_BYTES)
        crew_run(fabric->crew,
                 &(struct crew_work){.run = sum_block, .arg = &part, .blocks = blocks});
    else
        for (uint64_t block = 0; block < blocks; block++)
            sum_block(&part, block);
    moved->read += moved_of(&part.read);
    moved->written += moved_of(&part.written);
}

/* ---- a rank's own memory --------------------------------------------------------------------- */

static void add_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct local_op *op = bulk->op;
    struct kernel_moved moved = {0, 0};
    struct kernel_reduce reduce = {.in = op->in,
                                   .n = 1,
                                   .out = op->out,
                                   .outs = 1,
                                   .in_dtype = op->op.in_dtype,
                                   .out_dtype = op->op.out_dtype,
                                   .scale = 1,
                                   .accumulate = op->op.accumulate};
    uint32_t slice;

    if (place_of(bulk, block, &reduce, &slice))
        kernel_reduce(&reduce, &moved);
}

void local_add(struct local_op *op)
{
    const struct core_op *what = &op->op;
    struct bulk bulk = {
        .op = op, .total = what->numel, .blocks_of_part = blocks_of(op->fabric, what->numel)};

    run_for_rank(&bulk, add_block, bulk.blocks_of_part,
                 what->numel * (gw_dtype_bytes(what->in_dtype) + gw_dtype_bytes(what->out_dtype)));
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Piece `index` of a copy. */
static uint64_t copy_piece(const struct bulk *bulk, void *to, const void *from, uint64_t bytes,
                           uint64_t index)
{
    uint64_t most = bulk->op->fabric->blocks.copy_bytes;
    uint64_t at = index * most, rest = at < bytes ? bytes - at : 0;

    if (rest == 0 || to == from)
        return 0;
    return kernel_copy((char *)to + at, (const char *)from + at,
                       rest < most ? rest : most, bulk->past);
}

static uint64_t pieces_of(const struct local_fabric *fabric, uint64_t bytes)
{
    return (bytes + fabric->blocks.copy_bytes - 1) / fabric->blocks.copy_bytes;
}

/* Input by input, and of each piece of it all outputs: it is read from memory once. What is
 * elsewhere is left out. */
static void all_gather_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct core_op *what = &bulk->op->op;
    uint64_t q = block / bulk->blocks_of_part, piece = block % bulk->blocks_of_part;
    uint64_t bytes = what->numel * gw_dtype_bytes(what->in_dtype);

    for (uint32_t r = 0; bulk->op->in[q] && r < what->world; r++)
        if (bulk->op->out[r])
            atomic_fetch_add_explicit(&bulk->op->read[r],
                                      copy_piece(bulk, (char *)bulk->op->out[r] + q * bytes,
                                                 bulk->op->in[q], bytes, piece),
                                      memory_order_relaxed);
}

void local_all_gather(struct local_op *op)
{
    const struct core_op *what = &op->op;
    uint64_t bytes = what->numel * gw_dtype_bytes(what->in_dtype);
    struct bulk bulk = {.op = op, .blocks_of_part = pieces_of(op->fabric, bytes)};

    run_parts(&bulk, all_gather_block, bytes * what->world * (what->world + 1u));
    for (uint32_t r = 0; r < what->world; r++)
        local_count(op, what->members[r], moved_of(&op->read[r]));
}

/* ---- segments: one after the other, each in blocks ------------------------------------------- */

/* The last that begins with the block or before it: empty ones begin where the next does. */
static const struct local_segment *segment_of(const struct local_op *op, uint64_t block)
{
    uint32_t low = 0, high = op->segment_count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (op->segments[middle].first_block <= block)
            low = middle;
        else
            high = middle;
    }
    return &op->segments[low];
}

static void gather_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct local_segment *segment = segment_of(bulk->op, block);

    atomic_fetch_add_explicit(&bulk->written,
                              copy_piece(bulk, segment->at.to, segment->at.from, segment->at.bytes,
                                         block - segment->first_block),
                              memory_order_relaxed);
}

void local_gather(struct local_op *op)
{
    struct bulk bulk = {.op = op};

    run_for_rank(&bulk, gather_block, op->segment_blocks, 2 * op->segment_bytes);
    local_count(op, op->op.rank, moved_of(&bulk.written));
}

static void fill_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    const struct local_segment *segment = segment_of(bulk->op, block);

    atomic_fetch_add_explicit(&bulk->op->read[segment->at.owner],
                              copy_piece(bulk, segment->at.to, segment->at.from, segment->at.bytes,
                                         block - segment->first_block),
                              memory_order_relaxed);
}

void local_fill(struct local_op *op)
{
    const struct core_op *what = &op->op;
    struct bulk bulk = {.op = op};

    run_for_rank(&bulk, fill_block, op->segment_blocks, 2 * op->segment_bytes);
    for (uint32_t i = 0; i < what->world; i++)
        figures_moved(&op->fabric->counters, what, what->members[i],
                      moved_of(&op->read[what->members[i]]));
}

static void cast_block(void *arg, uint64_t block)
{
    struct bulk *bulk = arg;
    uint8_t dtype = bulk->op->op.out_dtype;
    const struct local_segment *segment = segment_of(bulk->op, block);
    uint64_t most = bulk->op->fabric->blocks.numel, at = (block - segment->first_block) * most;
    uint64_t rest = segment->at.bytes / gw_dtype_bytes(dtype) - at;

    kernel_cast((char *)segment->at.to + at * gw_dtype_bytes(dtype), dtype,
                (const float *)segment->at.from + at,
                rest < most ? rest : most, bulk->past);
}

void local_cast(struct local_op *op)
{
    struct bulk bulk = {.op = op};

    run_for_rank(&bulk, cast_block, op->segment_blocks,
                 op->segment_bytes + op->segment_bytes / gw_dtype_bytes(op->op.out_dtype) * 4);
}
