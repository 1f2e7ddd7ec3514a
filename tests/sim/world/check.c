/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that a client may read, compared with the reference at the moment it may be read. */
#include <math.h>

#include "tests/sim/world/internal.h"

static bool same(float a, float b)
{
    return !(a < b) && !(a > b) && isnan(a) == isnan(b);
}

static const struct layout *layout_of(const struct sim *sim)
{
    return core_layout(sim->core);
}

/* ---- where a client finds things ------------------------------------------------------------- */

bool span_of(struct sim *sim, const struct sim_client *client, uint32_t bucket,
             struct sim_span *ret_span)
{
    const struct gw_layout_page *page = layout_page(layout_of(sim));
    const struct gw_layout_bucket *at = &layout_page_buckets(page)[bucket];
    uint32_t position = layout_page_position(page, at->group, client->rank), slice;
    struct place_ref reduced;
    struct core_ref ref;

    if (position == UINT32_MAX)
        return false;
    slice = position % layout_page_groups(page)[at->group].shard_ranks;
    layout_slice(layout_of(sim), bucket, slice, &ret_span->offset, &ret_span->numel,
                 &ret_span->valid);
    ref = memory_ref(client, place_master(client->place, bucket, slice));
    ret_span->masters = memory_at(sim, &ref, ret_span->numel, GW_DTYPE_FP32);
    ref = memory_ref(client, place_shard(client->place, bucket, slice));
    ret_span->params = memory_at(sim, &ref, ret_span->numel, at->dtype);
    ret_span->dtype = at->dtype;
    reduced = place_reduced(client->place, bucket, slice);
    ref = memory_ref(client, reduced);
    ret_span->grads = memory_at(sim, &ref, ret_span->numel, reduced.dtype);
    ret_span->grads_dtype = reduced.dtype;
    return ret_span->masters && ret_span->params && ret_span->grads;
}

/* Contiguous, from where its first piece lies. */
static const void *view(struct sim *sim, const struct sim_client *client, uint32_t unit,
                        const struct gw_layout_param *param)
{
    const struct gw_layout_piece *piece = &layout_pieces(layout_of(sim))[param->first_piece];
    struct core_ref ref = memory_ref(client, place_params(client->place, piece->bucket));

    if (ref.kind == GW_ARENA_NONE) /* stage 3, private */
        ref = (struct core_ref){
            GW_ARENA_POOL, (int16_t)client->rank, 0,
            place_gathered(client->place, piece->bucket) +
                (param->persistent ? 0 : sim->boards[client->rank].units[unit].offset)};
    ref.offset_bytes += piece->bucket_offset * gw_dtype_bytes(param->dtype);
    return memory_at(sim, &ref, param->numel, param->dtype);
}

float flat_value(const struct sim *sim, const float *by_param, uint32_t bucket, uint64_t offset)
{
    const struct gw_layout_bucket *b = &layout_buckets(layout_of(sim))[bucket];

    for (uint32_t i = b->first_piece; i < b->first_piece + b->pieces; i++) {
        const struct gw_layout_piece *piece = &layout_pieces(layout_of(sim))[i];

        if (offset >= piece->bucket_offset && offset < piece->bucket_offset + piece->numel)
            return by_param[sim->reference->param_at[piece->param] + piece->param_offset +
                            (offset - piece->bucket_offset)];
    }
    return 0; /* padding */
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void check_param(struct sim *sim, struct sim_client *client, uint32_t step, uint32_t unit,
                        uint32_t p, const char *when)
{
    const struct gw_layout_param *param = &layout_params(layout_of(sim))[p];
    const float *values = sim->reference->values[step] + sim->reference->param_at[p];
    const void *memory = param->numel ? view(sim, client, unit, param) : NULL;

    for (uint64_t i = 0; memory && i < param->numel; i++) {
        float have = sim_load(memory, param->dtype, i), want = sim_round(values[i], param->dtype);

        if (same(have, want))
            continue;
        sim_fail(sim, "rank %u step %u unit %u %s: element %lu of '%s' is %.9g, not %.9g",
                 client->rank, step, unit, when, (unsigned long)i, sim->plan->params[p].name,
                 (double)have, (double)want);
        break;
    }
}

void check_unit(struct sim *sim, struct sim_client *client, uint32_t step, uint32_t unit,
                const char *when)
{
    const struct gw_layout_unit *u = &layout_units(layout_of(sim))[unit];

    for (uint32_t p = u->first_param; p < u->first_param + u->params && !sim->failed; p++) {
        if (plan_holds(sim->plan, client->rank, p))
            check_param(sim, client, step, unit, p, when);
    }
}

void check_shard(struct sim *sim, struct sim_client *client, uint32_t step, const char *when)
{
    for (uint32_t b = 0; b < layout_page(layout_of(sim))->buckets && !sim->failed; b++) {
        struct sim_span span;

        if (!span_of(sim, client, b, &span))
            continue;
        for (uint64_t i = 0; i < span.numel; i++) {
            float want = flat_value(sim, sim->reference->grads[step], b, span.offset + i);
            float have = sim_load(span.grads, span.grads_dtype, i);

            if (same(have, want))
                continue;
            sim_fail(sim, "rank %u step %u %s: gradient %lu (%s) of bucket %u is %.9g, not %.9g",
                     client->rank, step, when, (unsigned long)(span.offset + i),
                     i < span.valid ? "valid" : "padding", b, (double)have, (double)want);
            break;
        }
    }
}

static bool bucket_used(const struct sim *sim, uint32_t step, uint32_t bucket)
{
    const struct gw_layout_bucket *b = &layout_buckets(layout_of(sim))[bucket];

    for (uint32_t i = b->first_piece; i < b->first_piece + b->pieces; i++) {
        if (reference_used(sim->reference, step, layout_pieces(layout_of(sim))[i].param))
            return true;
    }
    return false;
}

/* Squares of a bucket, or its largest, in shares of its group's members. */
static double bucket_norm(const struct sim *sim, uint32_t step, uint32_t bucket,
                          uint64_t *ret_nonfinite)
{
    const struct gw_layout_page *page = layout_page(layout_of(sim));
    const struct gw_layout_bucket *at = &layout_page_buckets(page)[bucket];
    uint64_t share = at->padded_numel / layout_page_groups(page)[at->group].members;
    double sum = 0, largest = 0;

    for (uint64_t start = 0; start < at->padded_numel; start += share) {
        double part = 0;

        for (uint64_t i = start; i < start + share; i++) {
            double value = (double)flat_value(sim, sim->reference->grads[step], bucket, i);

            part += value * value;
            largest = fabs(value) > largest ? fabs(value) : largest;
            *ret_nonfinite += isfinite(value) ? 0 : 1;
        }
        sum += part;
    }
    return sim->plan->seal.norm == GW_NORM_MAX ? largest : sum;
}

static void check_used_bits(struct sim *sim, const struct sim_client *client, uint32_t step)
{
    const struct sim_board *board = &sim->boards[client->rank];
    uint32_t count = 0;

    for (uint32_t p = 0; p < sim->plan->param_count; p++) {
        bool want = reference_used(sim->reference, step, p);
        bool have = board->used[p / 8] >> (p % 8) & 1;

        count += want;
        if (have != want && sim->plan->params[p].numel)
            sim_fail(sim, "rank %u step %u: used bit of '%s' is %d", client->rank, step,
                     sim->plan->params[p].name, have);
    }
    if (board->verdict.used_params != count)
        sim_fail(sim, "rank %u step %u: %u used parameters, not %u", client->rank, step,
                 board->verdict.used_params, count);
}

void check_verdict(struct sim *sim, struct sim_client *client, uint32_t step)
{
    const struct gw_shm_verdict *have = &sim->boards[client->rank].verdict;
    bool most = sim->plan->seal.norm == GW_NORM_MAX;
    uint32_t first_bucket = UINT32_MAX;
    double norm = 0;

    for (uint32_t b = 0; b < layout_page(layout_of(sim))->buckets; b++) {
        uint64_t nonfinite = 0;
        double part;

        if (!bucket_used(sim, step, b))
            continue;
        part = bucket_norm(sim, step, b, &nonfinite);
        norm = !most ? norm + part : part > norm ? part : norm;
        if (nonfinite && first_bucket == UINT32_MAX)
            first_bucket = b;
    }
    norm = (double)(float)(most ? norm : sqrt(norm));
    if (have->step != step + 1)
        sim_fail(sim, "rank %u: verdict of step %lu, not %u", client->rank,
                 (unsigned long)have->step, step + 1);
    if (have->nonfinite != (first_bucket != UINT32_MAX) ||
        (have->nonfinite && have->first_bucket != first_bucket))
        sim_fail(sim, "rank %u step %u: non-finite %u in bucket %u, expected bucket %u",
                 client->rank, step, have->nonfinite, have->first_bucket, first_bucket);
    if (!have->nonfinite && (have->norm < norm || have->norm > norm))
        sim_fail(sim, "rank %u step %u: norm %.17g, not %.17g", client->rank, step, have->norm,
                 norm);
    check_used_bits(sim, client, step);
    check_shard(sim, client, step, "at the verdict");
}

static void check_final_values(struct sim *sim, uint32_t rank, uint32_t bucket, const char *what,
                               const void *have, uint32_t dtype, uint64_t offset, uint64_t numel)
{
    const float *values = sim->reference->values[sim->plan->steps];

    for (uint64_t i = 0; have && i < numel && !sim->failed; i++) {
        float want = sim_round(flat_value(sim, values, bucket, offset + i), dtype);
        float is = sim_load(have, dtype, i);

        if (!same(is, want))
            sim_fail(sim, "at the end: rank %u bucket %u %s %lu is %.9g, not %.9g", rank, bucket,
                     what, (unsigned long)(offset + i), (double)is, (double)want);
    }
}

/* After everything: masters, shards, and all replicas of stages 0 to 2, hold the last version. */
void check_final(struct sim *sim)
{
    const struct gw_layout_page *page = layout_page(layout_of(sim));
    const float *values = sim->reference->values[sim->plan->steps];
    uint64_t hash = 0;

    for (uint32_t r = 0; r < sim->plan->world; r++) {
        for (uint32_t b = 0; b < page->buckets && !sim->failed; b++) {
            const struct gw_layout_bucket *at = &layout_page_buckets(page)[b];
            const struct sim_client *client = &sim->clients[r];
            struct sim_span span;
            struct core_ref ref;

            if (!span_of(sim, client, b, &span))
                continue;
            check_final_values(sim, r, b, "master", span.masters, GW_DTYPE_FP32, span.offset,
                               span.valid);
            check_final_values(sim, r, b, "parameter", span.params, span.dtype, span.offset,
                               span.valid);
            ref = memory_ref(client, place_params(client->place, b));
            check_final_values(sim, r, b, "replica", memory_at(sim, &ref, at->numel, at->dtype),
                               at->dtype, 0, at->numel);
        }
    }
    for (uint32_t i = 0; i < sim->reference->numel; i++) {
        uint32_t bits;

        __builtin_memcpy(&bits, &values[i], sizeof(bits));
        hash = sim_hash(hash, bits, 0, 0, 0);
    }
    sim->result->params_hash = hash;
}
