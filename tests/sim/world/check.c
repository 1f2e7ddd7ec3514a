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

/* ---- where a client finds things, as it works it out ----------------------------------------- */

float *span_params(struct sim *sim, uint32_t rank, uint32_t bucket)
{
    struct core_ref ref = {GW_ARENA_PARAMS, (int16_t)rank, 0, 0};
    uint64_t offset, numel, valid, flat;

    layout_span(layout_of(sim), bucket, rank, &offset, &numel, &valid);
    flat = layout_buckets(layout_of(sim))[bucket].offset + offset;
    if (sim->plan->seal.stage == 3 && sim->plan->seal.gather == GW_GATHER_MAPPED)
        ref = (struct core_ref){GW_ARENA_SHARED_PARAMS, -1, 0, 0};
    else if (sim->plan->seal.stage == 3)
        flat = layout_shard_offset(layout_of(sim), bucket);
    ref.offset_bytes = flat * sizeof(float);
    return memory_at(sim, &ref, numel);
}

const float *span_grads(struct sim *sim, uint32_t rank, uint32_t bucket)
{
    const struct wire_seal *seal = core_options(sim->core);
    bool several = seal->micro_steps > 1, shard = seal->accumulate == GW_ACCUMULATE_SHARD;
    struct core_ref ref = {GW_ARENA_GRADS, (int16_t)rank, 0, 0};
    uint64_t offset, numel, valid, flat;

    layout_span(layout_of(sim), bucket, rank, &offset, &numel, &valid);
    flat = layout_buckets(layout_of(sim))[bucket].offset + offset;
    if (seal->stage == 0 && several && shard)
        ref.kind = GW_ARENA_ACC;
    if (seal->stage >= 2 || (seal->stage == 1 && several && shard)) {
        ref.kind = GW_ARENA_SHARD_GRADS;
        flat = layout_shard_offset(layout_of(sim), bucket);
    }
    ref.offset_bytes = flat * sizeof(float);
    return memory_at(sim, &ref, numel);
}

static const float *view(struct sim *sim, const struct sim_client *client, uint32_t unit,
                         const struct gw_layout_param *param)
{
    const struct gw_layout_unit *u = &layout_units(layout_of(sim))[unit];
    struct core_ref ref = {GW_ARENA_PARAMS, (int16_t)client->rank, 0,
                           param->offset * sizeof(float)};

    if (sim->plan->seal.stage == 3 && sim->plan->seal.gather == GW_GATHER_MAPPED) {
        ref = (struct core_ref){GW_ARENA_SHARED_PARAMS, -1, 0, param->offset * sizeof(float)};
    } else if (sim->plan->seal.stage == 3) {
        uint64_t start = layout_fetch_units(layout_of(sim))[u->fetch_unit].offset;

        ref.kind = GW_ARENA_POOL;
        ref.offset_bytes =
            sim->boards[client->rank].units[unit].offset + (param->offset - start) * sizeof(float);
    }
    return memory_at(sim, &ref, param->numel);
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

void check_unit(struct sim *sim, struct sim_client *client, uint32_t step, uint32_t unit,
                const char *when)
{
    const struct gw_layout_unit *u = &layout_units(layout_of(sim))[unit];

    for (uint32_t p = u->first_param; p < u->first_param + u->params && !sim->failed; p++) {
        const struct gw_layout_param *param = &layout_params(layout_of(sim))[p];
        const float *want = sim->reference->values[step] + sim->reference->param_at[p];
        const float *have = param->numel ? view(sim, client, unit, param) : NULL;

        for (uint64_t i = 0; have && i < param->numel; i++) {
            if (same(have[i], want[i]))
                continue;
            sim_fail(sim, "rank %u step %u unit %u %s: element %lu of '%s' is %.9g, not %.9g",
                     client->rank, step, unit, when, (unsigned long)i,
                     sim->plan->params[p].name, (double)have[i], (double)want[i]);
            break;
        }
    }
}

void check_shard(struct sim *sim, struct sim_client *client, uint32_t step, const char *when)
{
    for (uint32_t b = 0; b < layout_page(layout_of(sim))->buckets && !sim->failed; b++) {
        const float *have = span_grads(sim, client->rank, b);
        uint64_t offset, numel, valid;

        layout_span(layout_of(sim), b, client->rank, &offset, &numel, &valid);
        for (uint64_t i = 0; have && i < numel; i++) {
            float want = flat_value(sim, sim->reference->grads[step], b, offset + i);

            if (same(have[i], want))
                continue;
            sim_fail(sim, "rank %u step %u %s: gradient %lu (%s) of bucket %u is %.9g, not %.9g",
                     client->rank, step, when, (unsigned long)(offset + i),
                     i < valid ? "valid" : "padding", b, (double)have[i], (double)want);
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

static double bucket_squares(const struct sim *sim, uint32_t step, uint32_t bucket,
                             uint64_t *ret_nonfinite)
{
    uint64_t padded = layout_buckets(layout_of(sim))[bucket].padded_numel;
    uint64_t slice = padded / sim->plan->world;
    double sum = 0;

    for (uint64_t start = 0; start < padded; start += slice) {
        double part = 0;

        for (uint64_t i = start; i < start + slice; i++) {
            float value = flat_value(sim, sim->reference->grads[step], bucket, i);

            part += (double)value * (double)value;
            *ret_nonfinite += isfinite(value) ? 0 : 1;
        }
        sum += part;
    }
    return sum;
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
    uint32_t first_bucket = UINT32_MAX;
    double squares = 0;

    for (uint32_t b = 0; b < layout_page(layout_of(sim))->buckets; b++) {
        uint64_t nonfinite = 0;

        if (!bucket_used(sim, step, b))
            continue;
        squares += bucket_squares(sim, step, b, &nonfinite);
        if (nonfinite && first_bucket == UINT32_MAX)
            first_bucket = b;
    }
    if (have->step != step + 1)
        sim_fail(sim, "rank %u: verdict of step %lu, not %u", client->rank,
                 (unsigned long)have->step, step + 1);
    if (have->nonfinite != (first_bucket != UINT32_MAX) ||
        (have->nonfinite && have->first_bucket != first_bucket))
        sim_fail(sim, "rank %u step %u: non-finite %u in bucket %u, expected bucket %u",
                 client->rank, step, have->nonfinite, have->first_bucket, first_bucket);
    if (!have->nonfinite && (float)have->norm != (float)sqrt(squares))
        sim_fail(sim, "rank %u step %u: norm %.17g, not %.17g", client->rank, step,
                 have->norm, (double)(float)sqrt(squares));
    check_used_bits(sim, client, step);
    check_shard(sim, client, step, "at the verdict");
}

/* After everything: shards (stage 3) or all replicas hold the last version. */
void check_final(struct sim *sim)
{
    const struct gw_layout_page *page = layout_page(layout_of(sim));
    const float *values = sim->reference->values[sim->plan->steps];
    uint64_t hash = 0;

    for (uint32_t r = 0; r < sim->plan->world; r++) {
        for (uint32_t b = 0; b < page->buckets && !sim->failed; b++) {
            uint64_t offset, numel, valid;
            float *have = span_params(sim, r, b);

            layout_span(layout_of(sim), b, r, &offset, &numel, &valid);
            if (have && sim->plan->seal.stage < 3) {
                have -= offset; /* the whole bucket */
                offset = 0;
                valid = layout_buckets(layout_of(sim))[b].numel;
            }
            for (uint64_t i = 0; have && i < valid && !sim->failed; i++) {
                float want = flat_value(sim, values, b, offset + i);

                if (!same(have[i], want))
                    sim_fail(sim, "at the end: rank %u bucket %u element %lu is %.9g, not %.9g", r,
                             b, (unsigned long)(offset + i), (double)have[i], (double)want);
            }
        }
    }
    for (uint32_t i = 0; i < sim->reference->numel; i++) {
        uint32_t bits;

        __builtin_memcpy(&bits, &values[i], sizeof(bits));
        hash = sim_hash(hash, bits, 0, 0, 0);
    }
    sim->result->params_hash = hash;
}
