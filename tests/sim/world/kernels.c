/* SPDX-License-Identifier: Apache-2.0 */
/* What each op does to memory, element by element, in the contract's order of sums. */
#include <math.h>
#include <string.h>

#include "tests/sim/world/internal.h"

/* What a slice of a result leaves for the verdict: its squares, or its largest element. */
static void leave_partials(struct sim *sim, const struct core_op *op, uint32_t slice,
                           const void *values, uint64_t numel)
{
    double *left = &sim->partials[op->bucket * SIM_RANKS_MAX + slice];
    uint64_t *nonfinite = &sim->nonfinite[op->bucket * SIM_RANKS_MAX + slice];

    *left = 0;
    *nonfinite = 0;
    for (uint64_t i = 0; i < numel; i++) {
        double value = (double)sim_load(values, op->out_dtype, i);

        if (op->norm == GW_NORM_MAX)
            *left = fabs(value) > *left ? fabs(value) : *left;
        else
            *left += value * value;
        *nonfinite += isfinite(value) ? 0 : 1;
    }
}

/* scale * (sum over members of element i), `from` NULL reading as zero. */
static float sum_at(const struct core_op *op, void *const *from, uint64_t i)
{
    float values[SIM_RANKS_MAX];

    for (uint32_t q = 0; q < op->world; q++) {
        values[q] = from[q] ? sim_load(from[q], op->in_dtype, i) : 0;
        values[q] = sim_round(values[q], op->round_dtype);
    }
    return op->scale * sim_tree_sum(values, op->world);
}

static void put(const struct core_op *op, void *to, uint64_t i, float value)
{
    if (op->accumulate)
        value = sim_load(to, op->out_dtype, i) + value;
    sim_store(to, op->out_dtype, i, value);
}

/* An all-reduce to shards: the slice goes over the inputs. */
static void put_back(const struct core_op *op, void *const *from, const void *slice, uint32_t r)
{
    for (uint64_t i = 0; i < op->numel; i++) {
        float value = sim_load(slice, op->out_dtype, i);

        for (uint32_t q = 0; q < op->world; q++) {
            if (from[q])
                sim_store(from[q], op->in_dtype, r * op->numel + i, value);
        }
    }
}

static void reduce_scatter(struct sim *sim, const struct core_op *op)
{
    void *from[SIM_RANKS_MAX], *to;

    for (uint32_t q = 0; q < op->world; q++)
        from[q] = memory_at(sim, &op->in[q], op->world * op->numel, op->in_dtype);
    for (uint32_t r = 0; r < op->world && !sim->failed; r++) {
        to = memory_at(sim, &op->out[r], op->numel, op->out_dtype);
        for (uint64_t i = 0; to && i < op->numel; i++)
            put(op, to, i, sum_at(op, from, r * op->numel + i));
        if (to && op->partials)
            leave_partials(sim, op, op->slice_first + r, to, op->numel);
        if (to && op->shards)
            put_back(op, from, to, r);
    }
}

static void all_reduce(struct sim *sim, const struct core_op *op)
{
    uint64_t numel = op->total_numel ? op->total_numel : op->world * op->numel;
    void *from[SIM_RANKS_MAX], *to[SIM_RANKS_MAX];

    for (uint32_t q = 0; q < op->world; q++) {
        from[q] = memory_at(sim, &op->in[q], numel, op->in_dtype);
        to[q] = memory_at(sim, &op->out[q], numel, op->out_dtype);
        if (sim->failed)
            return;
    }
    for (uint64_t i = 0; i < numel; i++) {
        float value = sum_at(op, from, i);

        for (uint32_t r = 0; r < op->world; r++) {
            if (to[r])
                put(op, to[r], i, value);
        }
    }
    for (uint32_t r = 0; r < op->world && op->partials; r++)
        leave_partials(sim, op, op->slice_first + r,
                       (char *)to[0] + r * op->numel * gw_dtype_bytes(op->out_dtype), op->numel);
}

static void gather_bucket(struct sim *sim, const struct core_op *op, uint32_t bucket)
{
    const struct gw_layout_bucket *at = &layout_buckets(core_layout(sim->core))[bucket];
    uint64_t numel = at->padded_numel / op->world, bytes = numel * gw_dtype_bytes(at->dtype);
    struct core_ref ref = op->out[0];
    char *to;

    ref.offset_bytes += core_gathered(sim->core, bucket, op->rank) -
                        core_gathered(sim->core, op->bucket, op->rank);
    to = memory_at(sim, &ref, at->padded_numel, at->dtype);
    for (uint32_t i = 0; i < op->world && to; i++) {
        struct core_ref slice = op->secondary
                                    ? core_secondary_slice(sim->core, bucket, op->members[i])
                                    : core_param_slice(sim->core, bucket, op->members[i]);
        const void *from = memory_at(sim, &slice, numel, at->dtype);

        if (from && !(op->in_place_skip && op->members[i] == op->rank))
            memcpy(to + i * bytes, from, bytes);
    }
}

static void gather(struct sim *sim, const struct core_op *op)
{
    for (uint32_t b = op->bucket; b < op->bucket + op->bucket_count && !sim->failed; b++)
        gather_bucket(sim, op, b);
}

static void fill(struct sim *sim, const struct core_op *op)
{
    for (uint32_t b = op->bucket; b < op->bucket + op->bucket_count && !sim->failed; b++) {
        const struct gw_layout_bucket *at = &layout_buckets(core_layout(sim->core))[b];
        uint64_t numel = at->padded_numel / op->world, bytes = numel * gw_dtype_bytes(at->dtype);
        struct core_ref ref = op->in[0];
        const char *from;

        ref.offset_bytes += core_gathered(sim->core, b, op->rank) -
                            core_gathered(sim->core, op->bucket, op->rank);
        from = memory_at(sim, &ref, at->padded_numel, at->dtype);
        for (uint32_t i = 0; i < op->world && from; i++) {
            struct core_ref slice = core_secondary_slice(sim->core, b, op->members[i]);
            void *to = memory_at(sim, &slice, numel, at->dtype);

            if (to)
                memcpy(to, from + i * bytes, bytes);
        }
    }
}

static void cast(struct sim *sim, const struct core_op *op)
{
    const struct layout *layout = core_layout(sim->core);

    for (uint32_t b = 0; b < layout_page(layout)->buckets; b++) {
        const struct gw_layout_bucket *at = &layout_buckets(layout)[b];
        struct core_ref master = core_master_slice(sim->core, b, op->rank);
        struct core_ref slice = core_param_slice(sim->core, b, op->rank);
        uint64_t offset, numel, valid;
        const void *from;
        void *to;

        if (at->dtype != op->out_dtype || slice.kind == GW_ARENA_NONE)
            continue;
        layout_slice(layout, b, 0, &offset, &numel, &valid);
        from = memory_at(sim, &master, numel, GW_DTYPE_FP32);
        to = memory_at(sim, &slice, numel, at->dtype);
        for (uint64_t i = 0; i < numel && from && to; i++)
            sim_store(to, at->dtype, i, sim_load(from, GW_DTYPE_FP32, i));
    }
}

static void all_gather(struct sim *sim, const struct core_op *op)
{
    uint64_t bytes = op->numel * gw_dtype_bytes(op->out_dtype);

    for (uint32_t r = 0; r < op->world; r++) {
        char *to = memory_at(sim, &op->out[r], op->world * op->numel, op->out_dtype);

        for (uint32_t q = 0; to && q < op->world; q++) {
            const void *from = memory_at(sim, &op->in[q], op->numel, op->in_dtype);

            if (from)
                memmove(to + q * bytes, from, bytes);
        }
    }
}

static void local(struct sim *sim, const struct core_op *op)
{
    bool adds = op->kind == CORE_OP_LOCAL_ADD;
    void *to = memory_at(sim, &op->out[0], op->numel, op->out_dtype);
    const void *from = adds ? memory_at(sim, &op->in[0], op->numel, op->in_dtype) : NULL;

    for (uint64_t i = 0; to && i < op->numel; i++) {
        float value = from ? sim_load(from, op->in_dtype, i) : 0;

        if (adds && op->accumulate)
            value = sim_load(to, op->out_dtype, i) + value;
        sim_store(to, op->out_dtype, i, value);
    }
}

/* Of a bucket, slice by slice. */
static double bucket_partials(const struct sim *sim, const struct core_op *op, uint32_t bucket,
                              uint64_t *ret_nonfinite)
{
    const struct gw_layout_page *page = layout_page(core_layout(sim->core));
    uint32_t group = layout_page_buckets(page)[bucket].group;
    double sum = 0;

    for (uint32_t i = 0; i < layout_page_groups(page)[group].members; i++) {
        double part = sim->partials[bucket * SIM_RANKS_MAX + i];

        *ret_nonfinite += sim->nonfinite[bucket * SIM_RANKS_MAX + i];
        if (op->norm != GW_NORM_MAX)
            sum += part;
        else if (part > sum)
            sum = part;
    }
    return sum;
}

static void verdict(struct sim *sim, const struct core_op *op)
{
    const struct gw_layout_page *page = layout_page(core_layout(sim->core));
    struct gw_shm_verdict out = {
        .step = op->step, .digest = op->digest, .clip_factor = 1, .used_params = op->used_params};
    double norm = 0;

    for (uint32_t b = 0; b < page->buckets; b++) {
        uint64_t nonfinite = 0;
        double part = op->used_buckets[b] ? bucket_partials(sim, op, b, &nonfinite) : 0;

        if (op->norm != GW_NORM_MAX)
            norm += part;
        else if (part > norm)
            norm = part;
        if (!nonfinite || out.nonfinite)
            continue;
        out.nonfinite = 1;
        out.clip_factor = 0;
        out.first_bucket = b;
    }
    out.norm = (float)(op->norm == GW_NORM_MAX ? norm : sqrt(norm));
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
        if (op->shards)
            reduce_scatter(sim, op);
        else
            all_reduce(sim, op);
        break;
    case CORE_OP_ALL_GATHER:
        all_gather(sim, op);
        break;
    case CORE_OP_GATHER:
        if (op->out[0].kind != GW_ARENA_NONE)
            gather(sim, op);
        break;
    case CORE_OP_FILL:
        fill(sim, op);
        break;
    case CORE_OP_BROADCAST:
        break; /* not used by the scripts */
    case CORE_OP_BARRIER:
        break;
    case CORE_OP_LOCAL_ADD:
    case CORE_OP_ZERO:
        local(sim, op);
        break;
    case CORE_OP_CAST:
        cast(sim, op);
        break;
    case CORE_OP_VERDICT:
        verdict(sim, op);
        break;
    default:
        sim_fail(sim, "op of kind %u", op->kind);
    }
}
