/* SPDX-License-Identifier: Apache-2.0 */
/* What each op does to memory, element by element, in the contract's order of sums. */
#include <math.h>
#include <string.h>

#include "tests/sim/world/internal.h"

double kernel_squares(const float *values, uint64_t numel, uint64_t *ret_nonfinite)
{
    double sum = 0;

    for (uint64_t i = 0; i < numel; i++) {
        sum += (double)values[i] * (double)values[i];
        *ret_nonfinite += isfinite(values[i]) ? 0 : 1;
    }
    return sum;
}

/* scale * (sum over ranks of element i), `from` NULL reading as zero. */
static float sum_at(const struct core_op *op, float *const *from, uint64_t i)
{
    float values[SIM_RANKS_MAX];

    for (uint32_t q = 0; q < op->world; q++)
        values[q] = from[q] ? from[q][i] : 0;
    return op->scale * sim_tree_sum(values, op->world);
}

static void reduce_scatter(struct sim *sim, const struct core_op *op)
{
    float *from[SIM_RANKS_MAX], *to;
    double squares = 0;
    uint64_t nonfinite = 0;

    for (uint32_t q = 0; q < op->world; q++)
        from[q] = memory_at(sim, &op->in[q], op->world * op->numel);
    for (uint32_t r = 0; r < op->world && !sim->failed; r++) {
        to = memory_at(sim, &op->out[r], op->numel);
        for (uint64_t i = 0; to && i < op->numel; i++) {
            float value = sum_at(op, from, r * op->numel + i);

            to[i] = op->accumulate ? to[i] + value : value;
        }
        if (to)
            squares += kernel_squares(to, op->numel, &nonfinite);
    }
    if (op->partials) {
        sim->partials[op->bucket] = squares;
        sim->nonfinite[op->bucket] = nonfinite;
    }
}

static void all_reduce(struct sim *sim, const struct core_op *op)
{
    uint64_t numel = op->total_numel ? op->total_numel : op->world * op->numel;
    float *from[SIM_RANKS_MAX], *to[SIM_RANKS_MAX];

    for (uint32_t q = 0; q < op->world; q++) {
        from[q] = memory_at(sim, &op->in[q], numel);
        to[q] = memory_at(sim, &op->out[q], numel);
        if (sim->failed)
            return;
    }
    for (uint64_t i = 0; i < numel; i++) {
        float value = sum_at(op, from, i);

        for (uint32_t r = 0; r < op->world; r++) {
            if (to[r])
                to[r][i] = op->accumulate ? to[r][i] + value : value;
        }
    }
    if (op->partials) {
        double squares = 0;

        sim->nonfinite[op->bucket] = 0;
        for (uint32_t r = 0; r < op->world; r++) /* slice by slice, as a reduce-scatter adds them */
            squares +=
                kernel_squares(to[0] + r * op->numel, op->numel, &sim->nonfinite[op->bucket]);
        sim->partials[op->bucket] = squares;
    }
}

static void gather_bucket(struct sim *sim, const struct core_op *op, uint32_t bucket, float *to)
{
    for (uint32_t q = 0; q < sim->plan->world && !sim->failed; q++) {
        struct core_ref ref = core_param_slice(sim->core, bucket, q);
        uint64_t offset, numel, valid;
        const float *from;

        layout_span(core_layout(sim->core), bucket, q, &offset, &numel, &valid);
        from = memory_at(sim, &ref, numel);
        if (from && !(op->in_place_skip && q == op->rank))
            memcpy(to + offset, from, numel * sizeof(float));
    }
}

static void gather(struct sim *sim, const struct core_op *op)
{
    const struct gw_layout_bucket *buckets = layout_buckets(core_layout(sim->core));
    uint64_t start = buckets[op->bucket].offset;

    for (uint32_t b = op->bucket; b < op->bucket + op->bucket_count && !sim->failed; b++) {
        struct core_ref ref = op->out[0];
        float *to;

        ref.offset_bytes += (buckets[b].offset - start) * sizeof(float);
        to = memory_at(sim, &ref, buckets[b].padded_numel);
        if (to)
            gather_bucket(sim, op, b, to);
    }
}

static void all_gather(struct sim *sim, const struct core_op *op)
{
    for (uint32_t r = 0; r < op->world; r++) {
        float *to = memory_at(sim, &op->out[r], op->world * op->numel);

        for (uint32_t q = 0; to && q < op->world; q++) {
            const float *from = memory_at(sim, &op->in[q], op->numel);

            if (from)
                memmove(to + q * op->numel, from, op->numel * sizeof(float));
        }
    }
}

static void local(struct sim *sim, const struct core_op *op)
{
    float *to = memory_at(sim, &op->out[0], op->numel);
    const float *from =
        op->kind == CORE_OP_LOCAL_ADD ? memory_at(sim, &op->in[0], op->numel) : NULL;

    for (uint64_t i = 0; to && i < op->numel; i++) {
        float value = from ? from[i] : 0;

        to[i] = op->kind == CORE_OP_LOCAL_ADD && op->accumulate ? to[i] + value : value;
    }
}

static void verdict(struct sim *sim, const struct core_op *op)
{
    const struct gw_layout_page *page = layout_page(core_layout(sim->core));
    struct gw_shm_verdict out = {
        .step = op->step, .digest = op->digest, .clip_factor = 1, .used_params = op->used_params};
    double squares = 0;

    for (uint32_t b = page->buckets; b-- > 0;) {
        if (op->used_buckets[b] && sim->nonfinite[b]) {
            out.nonfinite = 1;
            out.clip_factor = 0;
            out.first_bucket = b;
        }
    }
    for (uint32_t b = 0; b < page->buckets; b++)
        squares += op->used_buckets[b] ? sim->partials[b] : 0;
    out.norm = (float)sqrt(squares);
    for (uint32_t r = 0; r < sim->plan->world; r++) {
        sim->boards[r].verdict = out;
        memcpy(sim->boards[r].used, op->used_bits, (page->params + 7) / 8);
    }
}

void kernel_run(struct sim *sim, const struct core_op *op)
{
    switch (op->kind) {
    case CORE_OP_REDUCE_SCATTER:
        reduce_scatter(sim, op);
        break;
    case CORE_OP_ALL_REDUCE:
        all_reduce(sim, op);
        break;
    case CORE_OP_ALL_GATHER:
        all_gather(sim, op);
        break;
    case CORE_OP_GATHER:
        if (op->out[0].kind != GW_ARENA_NONE)
            gather(sim, op);
        break;
    case CORE_OP_BROADCAST:
        break; /* not used by the scripts */
    case CORE_OP_BARRIER:
        break;
    case CORE_OP_LOCAL_ADD:
    case CORE_OP_ZERO:
        local(sim, op);
        break;
    case CORE_OP_VERDICT:
        verdict(sim, op);
        break;
    default:
        sim_fail(sim, "op of kind %u", op->kind);
    }
}
