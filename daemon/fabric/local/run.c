/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carrying out ops, on stream threads: sums and copies (by bulk.c), the verdict, and the counters
 * of what these moved. Touches only what the op points to, the counters, and the simulated links'
 * clock.
 */
#include <math.h>
#include <string.h>

#include "daemon/fabric/local/local.h"

void local_count(const struct local_op *op, uint32_t rank, uint64_t moved_bytes)
{
    if (local_is_here(op->fabric, rank))
        figures_count(&op->fabric->counters, &op->op, op->ring_bytes, rank, moved_bytes);
}

static void run_broadcast(struct local_op *op)
{
    const struct core_op *what = &op->op;

    for (uint32_t r = 0; r < what->world; r++) {
        uint64_t moved = 0;
        if (what->members[r] != what->rank && op->out[r])
            moved = kernel_copy(op->out[r], op->in[0], what->numel * gw_dtype_bytes(what->in_dtype),
                                false);
        local_count(op, what->members[r], moved);
    }
}

static void run_barrier(struct local_op *op)
{
    for (uint32_t r = 0; r < op->op.world; r++)
        local_count(op, op->op.members[r], 0);
}

/* ---- verdict --------------------------------------------------------------------------------- */

/* Of numbers that are not negative, and of NaNs, which win. */
static double larger(double a, double b)
{
    uint64_t a_bits, b_bits;

    memcpy(&a_bits, &a, sizeof(a));
    memcpy(&b_bits, &b, sizeof(b));
    return a_bits > b_bits ? a : b;
}

struct summary {
    double norm;
    bool nonfinite;
    uint32_t first_bucket;
};

/* In (bucket, slice, chunk) order, which no overlap or placement changes. */
static struct summary add_up(const struct local_op *op)
{
    struct summary sum = {0, false, UINT32_MAX};
    bool max = op->op.norm == GW_NORM_MAX;

    for (uint32_t b = 0; b < op->buckets; b++) {
        const struct local_partials *partials = op->verdict[b];
        uint64_t chunks = partials ? partials->slices * kernel_chunks(partials->numel) : 0;
        for (uint64_t i = 0; i < chunks; i++) {
            double norm = partials->at[i].norm;
            sum.norm = max ? larger(sum.norm, norm) : sum.norm + norm;
            if (partials->at[i].nonfinite && !sum.nonfinite) {
                sum.nonfinite = true;
                sum.first_bucket = b;
            }
        }
    }
    if (!max)
        sum.norm = sqrt(sum.norm);
    return sum;
}

/* A reader may look at any time: field by field, relaxed; the step slot's value publishes. */
static uint64_t write_board(struct gw_shm_board *board, const struct gw_shm_verdict *verdict,
                            const uint8_t *used_bits, uint32_t params)
{
    const uint64_t *from = (const uint64_t *)(const void *)verdict;
    uint64_t *to = (uint64_t *)(void *)&board->verdict;
    uint8_t *bits = (uint8_t *)&board->slots[board->buckets + board->units];
    uint32_t bytes = (params + 7) / 8;

    for (size_t i = 0; i < sizeof(*verdict) / sizeof(*from); i++)
        __atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < bytes; i++)
        __atomic_store_n(&bits[i], used_bits[i], __ATOMIC_RELAXED);
    return sizeof(*verdict) + bytes;
}

void local_verdict(struct local_op *op)
{
    const struct core_op *what = &op->op;
    struct gw_shm_verdict verdict __attribute__((aligned(8)));
    const struct summary sum = add_up(op);
    double clip = 1;

    memset(&verdict, 0, sizeof(verdict));
    verdict.step = what->step;
    verdict.norm = (double)(float)sum.norm;
    if (what->clip_norm > 0)
        clip = what->clip_norm / (verdict.norm + 1e-6);
    verdict.clip_factor = sum.nonfinite ? 0.0f : clip < 1 ? (float)clip : 1.0f;
    verdict.nonfinite = sum.nonfinite;
    verdict.first_bucket = sum.first_bucket;
    verdict.used_params = what->used_params;
    verdict.digest = what->digest;
    for (uint32_t r = 0; r < what->world; r++) {
        uint64_t moved = 0;
        if (op->boards[r])
            moved = write_board(op->boards[r], &verdict, what->used_bits, op->params);
        local_count(op, what->members[r], moved);
    }
}

void local_run(void *arg, void *native)
{
    struct local_op *op = (struct local_op *)arg;

    (void)native;
    switch ((enum core_op_kind)op->op.kind) {
    case CORE_OP_REDUCE_SCATTER:
        local_reduce_scatter(op);
        break;
    case CORE_OP_ALL_REDUCE:
        if (op->op.shards)
            local_reduce_scatter(op);
        else
            local_all_reduce(op);
        break;
    case CORE_OP_ALL_GATHER:
        local_all_gather(op);
        break;
    case CORE_OP_GATHER:
        local_gather(op);
        break;
    case CORE_OP_FILL:
        local_fill(op);
        break;
    case CORE_OP_BROADCAST:
        run_broadcast(op);
        break;
    case CORE_OP_BARRIER:
        run_barrier(op);
        break;
    case CORE_OP_LOCAL_ADD:
        local_add(op);
        break;
    case CORE_OP_ZERO:
        memset(op->out[0], 0, op->op.numel * gw_dtype_bytes(op->op.out_dtype));
        break;
    case CORE_OP_CAST:
        local_cast(op);
        break;
    case CORE_OP_VERDICT:
        local_verdict(op);
        break;
    }
}

/* ---- simulated links ------------------------------------------------------------------------- */

/* An op takes the links of all ranks it is for, from when all are free, for hold_ns; the stream is
 * held until the end of that time. */
uint64_t local_hold(void *arg, uint64_t now_ns)
{
    struct local_op *op = (struct local_op *)arg;
    struct local_fabric *fabric = op->fabric;
    bool one = op->op.kind == CORE_OP_GATHER || op->op.kind == CORE_OP_FILL;
    uint32_t links = one ? 1 : op->op.world;
    const uint32_t *ranks = one ? &op->op.rank : op->op.members;
    uint64_t at_ns = now_ns;

    pthread_mutex_lock(&fabric->pace_lock);
    for (uint32_t i = 0; i < links; i++)
        if (fabric->link_free_ns[ranks[i]] > at_ns)
            at_ns = fabric->link_free_ns[ranks[i]];
    at_ns += op->hold_ns;
    for (uint32_t i = 0; i < links; i++)
        fabric->link_free_ns[ranks[i]] = at_ns;
    pthread_mutex_unlock(&fabric->pace_lock);
    return at_ns;
}
