/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of ops for the issuing threads. Loop thread; owns the copies until the device releases
 * them.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/nccl/nccl.h"
#include "daemon/device/cuda/plant.h"

/* Hands out parts of one block; with block NULL it only adds up. */
struct carver {
    char *block;
    size_t used;
};

static void *carve(struct carver *carver, const void *from, size_t bytes)
{
    size_t at = carver->used;
    char *part;

    carver->used = (at + bytes + 15) & ~(size_t)15;
    if (!carver->block || !from)
        return NULL;
    part = carver->block + at;
    return bytes ? memcpy(part, from, bytes) : part;
}

static void carve_verdict(struct carver *carver, const struct fabric_op *from, struct nccl_op *op)
{
    size_t pointers = from->op->world * sizeof(void *);

    op->op.used_bits = carve(carver, from->op->used_bits, (from->params + 7) / 8);
    op->op.used_buckets = carve(carver, from->op->used_buckets, from->buckets);
    op->boards = carve(carver, from->boards, pointers);
    op->board_bits = carve(carver, from->boards, pointers);
    op->verdicts = carve(carver, from->verdicts, pointers);
}

static void carve_all(struct carver *carver, const struct fabric_op *from, struct nccl_op *op)
{
    const struct core_op *what = from->op;
    bool single = what->kind == CORE_OP_LOCAL_ADD || what->kind == CORE_OP_ZERO;
    size_t outs = single ? 1 : what->world;
    size_t ins = what->kind == CORE_OP_BROADCAST ? 1 : outs;

    (void)carve(carver, op, sizeof(*op));
    op->op.members = carve(carver, what->members, what->world * sizeof(*what->members));
    op->in = carve(carver, from->in, ins * sizeof(*from->in));
    op->out = carve(carver, from->out, outs * sizeof(*from->out));
    op->segments = carve(carver, from->segments, from->segment_count * sizeof(*from->segments));
    op->op.used_bits = op->op.used_buckets = NULL;
    if (what->kind == CORE_OP_VERDICT)
        carve_verdict(carver, from, op);
}

/* Boards are host pages: where the GPUs reach them. */
static int find_boards(struct nccl_op *op, const struct fabric_op *from)
{
    const struct device *device = op->fabric->config.device;

    for (uint32_t i = 0; i < op->op.world; i++) {
        struct gw_shm_board *board = from->boards[i];
        op->boards[i] = NULL;
        op->board_bits[i] = NULL;
        if (!board)
            continue;
        op->boards[i] = cuda_page_address(device, &board->verdict);
        if (from->params > 0)
            op->board_bits[i] =
                cuda_page_address(device, &board->slots[from->buckets + board->units]);
        if (!op->boards[i] || (from->params > 0 && !op->board_bits[i]))
            return GW_E_INTERNAL;
    }
    return 0;
}

static int find_partials(struct nccl_op *op)
{
    const struct nccl_fabric *fabric = op->fabric;
    const struct core_op *what = &op->op;

    if (what->bucket >= fabric->buckets || what->numel != fabric->slice_numel[what->bucket] ||
        what->slices != fabric->slices[what->bucket] || what->slice_first > what->slices ||
        what->world > what->slices - what->slice_first)
        return GW_E_INTERNAL;
    op->partials = fabric->partials + fabric->starts[what->bucket] +
                   what->slice_first * parts_chunks(what->numel);
    return 0;
}

/* order=fabric needs room where NCCL's result cannot go to its place, and real zeros for a rank
 * that has no input; NCCL rounds no inputs first. Where it cannot be, the sum is exact, which is
 * within what the order allows; every rank decides alike. All-reduces go by pieces, so they always
 * fit. */
static bool sums_exactly(const struct nccl_op *op)
{
    const struct core_op *what = &op->op;
    uint64_t half = NCCL_INPUT_BYTES / 2 / gw_dtype_bytes(what->in_dtype);

    if (what->order != GW_ORDER_FABRIC && !planted("order_passed_off"))
        return true;
    if (what->round_dtype != GW_DTYPE_FP32)
        return true;
    if (what->shards)
        return op->absent != 0; /* else it has all the room: the inputs */
    if (what->kind != CORE_OP_REDUCE_SCATTER)
        return false;
    if ((what->accumulate || what->in_dtype != what->out_dtype) && what->numel > half)
        return true;
    for (uint32_t i = 0; i < what->world; i++)
        if (op->absent >> i & 1 && what->numel > half / what->world)
            return true;
    return false;
}

static bool gathers_by_copies(const struct nccl_op *op)
{
    const struct core_op *what = &op->op;
    const struct device *device = op->fabric->config.device;

    if (what->kind != CORE_OP_ALL_GATHER ||
        what->numel * gw_dtype_bytes(what->in_dtype) < NCCL_GATHER_BYTES)
        return false;
    for (uint32_t r = 0; r < what->world; r++)
        for (uint32_t q = 0; q < what->world; q++)
            if (r != q && !cuda_peers(device, what->members[r], what->members[q]))
                return false;
    return true;
}

/* Clients' own memory among what ranks give and get; none of it has the length 0. */
static void find_lent(struct nccl_op *op)
{
    const struct core_op *what = &op->op;
    const struct device *device = op->fabric->config.device;
    bool many = what->kind == CORE_OP_REDUCE_SCATTER || what->kind == CORE_OP_ALL_REDUCE ||
                what->kind == CORE_OP_ALL_GATHER;

    for (uint32_t i = 0; many && i < what->world; i++) {
        op->lent_in |= (uint64_t)(op->in[i] && cuda_imported(device, op->in[i])) << i;
        op->lent_out |= (uint64_t)(op->out[i] && cuda_imported(device, op->out[i])) << i;
    }
}

/* Which members are here, and whose input is zeros: that is known of all. */
static void find_places(struct nccl_op *op, const struct fabric_op *from)
{
    const struct core_op *what = from->op;
    bool sums = what->kind == CORE_OP_REDUCE_SCATTER || what->kind == CORE_OP_ALL_REDUCE;
    bool spans = op->fabric->config.nodes != NULL;

    for (uint32_t i = 0; i < what->world; i++) {
        op->here |= (uint64_t)nccl_is_here(op->fabric, what->members[i]) << i;
        if (sums)
            op->absent |= (uint64_t)(spans ? what->in[i].kind == GW_ARENA_NONE : !op->in[i]) << i;
    }
    op->crosses = nccl_crosses(op->fabric, what);
}

static int find_group(struct nccl_op *op)
{
    const struct core_op *what = &op->op;
    bool sums = what->kind == CORE_OP_REDUCE_SCATTER || what->kind == CORE_OP_ALL_REDUCE;
    bool moves = what->kind == CORE_OP_ALL_GATHER || what->kind == CORE_OP_BROADCAST;

    find_lent(op);
    op->exact = sums && sums_exactly(op);
    op->copies = !op->crosses && gathers_by_copies(op);
    moves = moves && !op->copies;
    if (op->crosses)
        return nccl_group_get(op->world, what->members, what->world, what->stream, &op->group);
    if (what->numel == 0 || !(moves || (sums && !op->exact)))
        return 0;
    if (!op->here)
        return 0;
    if (!op->world->spans && nccl_alike(op)) {
        op->group = op->world->registered;
        return 0;
    }
    return nccl_group_get(op->world, what->members, what->world, 0, &op->group);
}

static int find_verdict(struct nccl_op *op, const struct fabric_op *from)
{
    int r = find_boards(op, from);

    return r < 0 ? r : find_group(op);
}

static int prepare(struct nccl_op *op, const struct fabric_op *from)
{
    const struct nccl_fabric *fabric = op->fabric;
    int r = 0;

    find_places(op, from);
    if (op->op.kind == CORE_OP_VERDICT)
        return from->buckets == fabric->buckets && from->params == fabric->params
                   ? find_verdict(op, from)
                   : GW_E_INTERNAL;
    if (op->op.partials && op->op.numel > 0)
        r = find_partials(op);
    return r < 0 ? r : find_group(op);
}

int nccl_op_new(struct nccl_fabric *fabric, const struct fabric_op *from, struct nccl_op **ret_op)
{
    struct nccl_op measure = {.op = *from->op}, *op;
    struct carver carver = {NULL, 0};
    int r;

    carve_all(&carver, from, &measure);
    op = calloc(1, carver.used);
    if (!op)
        return GW_E_NOMEM;
    carver = (struct carver){(char *)op, 0};
    op->op = *from->op;
    carve_all(&carver, from, op);
    op->fabric = fabric;
    op->world = fabric->world;
    op->world->references++;
    op->op.in = op->op.out = NULL;
    op->op.waits = NULL;
    op->op.wait_ops = NULL;
    op->op.signals = NULL;
    /* A gather that only has what is in place already takes its link's time all the same, as on
     * every fabric. */
    op->ring_bytes = figures_ring_bytes(from->op);
    op->hold_ns = figures_hold_ns(from, op->ring_bytes, fabric->config.link_bytes_per_s);
    op->segment_count = from->segment_count;
    r = prepare(op, from);
    /* Between nodes both sides must see the same pieces. */
    if (from->op->kind != CORE_OP_CAST && !op->crosses)
        op->segment_count = parts_coalesce(op->segments, from->segment_count);
    if (r < 0) {
        nccl_op_free(op);
        return r;
    }
    *ret_op = op;
    return 0;
}

void nccl_op_free(void *arg)
{
    struct nccl_op *op = (struct nccl_op *)arg;

    nccl_world_unref(op->world);
    free(op);
}
