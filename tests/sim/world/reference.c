/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: see reference.h. Plain loops, no cleverness. */
#include "tests/sim/world/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t sim_hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t words[] = {a, b, c, d}, x = seed;

    for (size_t i = 0; i < 4; i++) { /* splitmix64 */
        x += words[i] * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

bool sim_chance(uint64_t hash, uint32_t per_mille)
{
    return hash % 1000 < per_mille;
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

static const struct {
    int bits, smallest; /* of the significand; exponent of the smallest value */
    double most;        /* what rounds to more than the largest value */
} halves[GW_DTYPES] = {
    [GW_DTYPE_FP16] = {11, -24, 65520},
    [GW_DTYPE_BF16] = {8, -133, 0x1.ffp127},
};

float sim_round(float value, uint32_t dtype)
{
    int exponent;
    double grain;

    if (dtype == GW_DTYPE_FP32 || !isfinite(value))
        return value;
    if (fabs((double)value) >= halves[dtype].most)
        return value < 0 ? -INFINITY : INFINITY;
    (void)frexp((double)value, &exponent);
    exponent -= halves[dtype].bits;
    if (exponent < halves[dtype].smallest)
        exponent = halves[dtype].smallest;
    grain = ldexp(1, exponent);
    return (float)(nearbyint((double)value / grain) * grain);
}

static uint16_t fp16_bits(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs((double)value);
    int exponent;

    if (isnan(value))
        return 0x7e00;
    if (isinf(value))
        return sign | 0x7c00;
    if (size < 0x1p-14)
        return (uint16_t)(sign | (uint16_t)(size * 0x1p24));
    size = frexp(size, &exponent) * 2048 - 1024; /* [0, 1024) */
    return (uint16_t)(sign | (exponent + 14) << 10 | (int)size);
}

static float fp16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, rest = bits & 1023;
    double size = exponent ? ldexp(1024 + rest, exponent - 25) : ldexp(rest, -24);

    if (exponent == 31)
        size = rest ? (double)NAN : (double)INFINITY;
    return (float)(bits & 0x8000 ? -size : size);
}

float sim_load(const void *from, uint32_t dtype, uint64_t at)
{
    uint16_t half;
    uint32_t word;
    float value;

    if (dtype == GW_DTYPE_FP32) {
        memcpy(&value, (const char *)from + 4 * at, sizeof(value));
        return value;
    }
    memcpy(&half, (const char *)from + 2 * at, sizeof(half));
    if (dtype == GW_DTYPE_FP16)
        return fp16_value(half);
    word = (uint32_t)half << 16;
    memcpy(&value, &word, sizeof(value));
    return value;
}

void sim_store(void *to, uint32_t dtype, uint64_t at, float value)
{
    uint16_t half;
    uint32_t word;

    if (dtype == GW_DTYPE_FP32) {
        memcpy((char *)to + 4 * at, &value, sizeof(value));
        return;
    }
    value = sim_round(value, dtype);
    memcpy(&word, &value, sizeof(word));
    half = dtype == GW_DTYPE_FP16 ? fp16_bits(value) : (uint16_t)(word >> 16);
    if (dtype == GW_DTYPE_BF16 && isnan(value))
        half = 0x7fc0;
    memcpy((char *)to + 2 * at, &half, sizeof(half));
}

/* ---- groups ---------------------------------------------------------------------------------- */

uint32_t plan_group(const struct sim_plan *plan, uint32_t group, uint32_t ranks[SIM_RANKS_MAX],
                    uint32_t *ret_shard_ranks)
{
    uint32_t count = group ? plan->groups[group - 1].count : plan->world;
    uint32_t shard_ranks = group ? plan->groups[group - 1].shard_ranks : plan->seal.shard_ranks;

    for (uint32_t i = 0; i < count; i++)
        ranks[i] = group ? plan->groups[group - 1].ranks[i] : i;
    *ret_shard_ranks = shard_ranks ? shard_ranks : count;
    return count;
}

bool plan_holds(const struct sim_plan *plan, uint32_t rank, uint32_t param)
{
    uint32_t ranks[SIM_RANKS_MAX], shard_ranks;
    uint32_t count = plan_group(plan, plan->params[param].group, ranks, &shard_ranks);
    bool holds = false;

    for (uint32_t i = 0; i < count; i++)
        holds |= ranks[i] == rank;
    return holds;
}

/* ---- the plan's draws ------------------------------------------------------------------------ */

uint32_t plan_micro_steps(const struct sim_plan *plan, uint32_t rank)
{
    uint32_t micro_steps = plan->seal.micro_steps ? plan->seal.micro_steps : 1;

    if (rank != SIM_NEVER && rank == plan->micro_short_rank && micro_steps > 1)
        return micro_steps - 1;
    return micro_steps;
}

bool plan_freezes(const struct sim_plan *plan, uint32_t step)
{
    return sim_chance(sim_hash(plan->seed, step, 6, 6, 6), plan->freeze);
}

bool plan_frozen(const struct sim_plan *plan, uint32_t step, uint32_t param)
{
    for (uint32_t s = step + 1; plan->freeze && s-- > 0;) {
        if (plan_freezes(plan, s))
            return sim_chance(sim_hash(plan->seed, s, param, 7, 7), 400);
    }
    return false;
}

static bool draws_final(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                        uint32_t param)
{
    return sim_chance(sim_hash(plan->seed, 1 + rank, step * 64 + micro, param, 77),
                      plan->early_final);
}

bool plan_uses(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
               uint32_t param)
{
    bool uses = false;

    if (!plan_holds(plan, rank, param) || plan_frozen(plan, step, param))
        return false;
    for (uint32_t m = 0; m <= micro; m++) {
        uses = !sim_chance(sim_hash(plan->seed, 1 + rank, step * 64 + m, param, 33), plan->unused);
        if (m < micro && uses && draws_final(plan, rank, step, m, param))
            return false; /* never again after its FINAL */
    }
    return uses;
}

bool plan_final(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                uint32_t param)
{
    return micro + 1 == plan_micro_steps(plan, rank) || draws_final(plan, rank, step, micro, param);
}

bool plan_updates(const struct sim_plan *plan, uint32_t step)
{
    return step != plan->infinite_step &&
           !sim_chance(sim_hash(plan->seed, step, 5, 5, 5), plan->no_update);
}

/* In (-1, 1) with all mantissa bits drawn, so that any other order of summing shows. */
float plan_gradient(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                    uint32_t param, uint64_t element)
{
    uint64_t hash = sim_hash(plan->seed, ((uint64_t)param << 32) | element, rank, step, micro);

    if (step == plan->infinite_step && rank == 1 % plan->world && element == 0)
        return INFINITY;
    return ldexpf((float)(int32_t)(hash >> 32) + 0.5f, -31);
}

float reference_update(const struct sim_plan *plan, float value, float gradient)
{
    return plan->blind ? 0.5f * value + 1 : value - 0.25f * gradient;
}

float sim_tree_sum(float *values, uint32_t count)
{
    while (count > 1) {
        for (uint32_t i = 0; i < count / 2; i++)
            values[i] = values[2 * i] + values[2 * i + 1];
        if (count % 2)
            values[count / 2] = values[count - 1];
        count = (count + 1) / 2;
    }
    return values[0];
}

/* ---- one element of one step ----------------------------------------------------------------- */

static float scale_of(const struct sim_plan *plan, uint32_t members)
{
    double scale = plan->seal.scale != 0 ? plan->seal.scale : 1.0 / members;

    return (float)(scale * (plan->seal.pre_scale != 0 ? plan->seal.pre_scale : 1));
}

static bool sums_in_shards(const struct sim_plan *plan)
{
    if (plan->seal.accumulate == GW_ACCUMULATE_AUTO)
        return plan->seal.stage >= 2;
    return plan->seal.accumulate == GW_ACCUMULATE_SHARD;
}

static uint32_t accum_dtype(const struct sim_plan *plan, uint32_t param)
{
    return plan->seal.accum_as_grads ? plan->params[param].grad_dtype : GW_DTYPE_FP32;
}

float plan_contribution(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                        uint32_t param, uint64_t element)
{
    uint32_t dtype = plan->params[param].grad_dtype;
    float sum = 0;

    for (uint32_t m = plan->running ? 0 : micro; m <= micro; m++) {
        if (plan_uses(plan, rank, step, m, param))
            sum = sim_round(sum + plan_gradient(plan, rank, step, m, param, element), dtype);
    }
    return sum;
}

/* What a rank gives to a sum over ranks: of one micro-step, or what it has added up by itself. */
static float given(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                   uint32_t param, uint64_t element)
{
    uint32_t micro_steps = plan_micro_steps(plan, SIM_NEVER);
    float sum = 0;

    if (sums_in_shards(plan))
        return plan_contribution(plan, rank, step, micro, param, element);
    if (plan->running)
        return plan_contribution(plan, rank, step, micro_steps - 1, param, element);
    for (uint32_t m = 0; m < micro_steps; m++)
        sum = sim_round(sum + plan_contribution(plan, rank, step, m, param, element),
                        accum_dtype(plan, param));
    return sum;
}

/* Over some ranks in order, added up over micro-steps where each is sent. */
static float summed(const struct sim_plan *plan, const uint32_t *ranks, uint32_t count, float scale,
                    uint32_t step, uint32_t param, uint64_t element)
{
    uint32_t times = sums_in_shards(plan) ? plan_micro_steps(plan, SIM_NEVER) : 1;
    float sums[SIM_RANKS_MAX], total = 0;

    for (uint32_t m = 0; m < times; m++) {
        for (uint32_t i = 0; i < count; i++)
            sums[i] = sim_round(given(plan, ranks[i], step, m, param, element),
                                plan->seal.reduce_dtype);
        total = sim_round(total + scale * sim_tree_sum(sums, count), accum_dtype(plan, param));
    }
    return total;
}

static float reduced(const struct sim_plan *plan, uint32_t step, uint32_t param, uint64_t element)
{
    uint32_t ranks[SIM_RANKS_MAX], run;
    uint32_t count = plan_group(plan, plan->params[param].group, ranks, &run);
    float scale = scale_of(plan, count), sums[SIM_RANKS_MAX] = {0};

    if (run == count)
        return summed(plan, ranks, count, scale, step, param, element);
    for (uint32_t i = 0; i < count / run; i++)
        sums[i] = summed(plan, ranks + i * run, run, 1, step, param, element);
    return sim_round(scale * sim_tree_sum(sums, count / run), accum_dtype(plan, param));
}

bool reference_used(const struct reference *reference, uint32_t step, uint32_t param)
{
    const struct sim_plan *plan = reference->plan;

    for (uint32_t r = 0; r < plan->world; r++) {
        for (uint32_t m = 0; m < plan_micro_steps(plan, r); m++) {
            if (plan->params[param].numel && plan_uses(plan, r, step, m, param))
                return true;
        }
    }
    return false;
}

static void compute_step(struct reference *reference, uint32_t step)
{
    const struct sim_plan *plan = reference->plan;

    for (uint32_t p = 0; p < plan->param_count; p++) {
        for (uint64_t i = 0; i < plan->params[p].numel; i++) {
            uint64_t at = reference->param_at[p] + i;
            float value = reference->values[step][at];

            reference->grads[step][at] = reduced(plan, step, p, i);
            if (plan_updates(plan, step))
                value = reference_update(plan, value, reference->grads[step][at]);
            reference->values[step + 1][at] = value;
        }
    }
}

struct reference *reference_new(const struct sim_plan *plan)
{
    struct reference *reference = calloc(1, sizeof(*reference));

    reference->plan = plan;
    reference->param_at = calloc(plan->param_count, sizeof(*reference->param_at));
    for (uint32_t p = 0; p < plan->param_count; p++) {
        reference->param_at[p] = reference->numel;
        reference->numel += (uint32_t)plan->params[p].numel;
    }
    for (uint32_t s = 0; s <= plan->steps; s++) {
        reference->values[s] = calloc(reference->numel + 1, sizeof(float));
        if (s < plan->steps)
            reference->grads[s] = calloc(reference->numel + 1, sizeof(float));
    }
    for (uint32_t i = 0; i < reference->numel; i++)
        reference->values[0][i] = (float)(i % 1000) / 8 - 20;
    for (uint32_t s = 0; s < plan->steps; s++)
        compute_step(reference, s);
    return reference;
}

void reference_restart(struct reference *reference, uint32_t step, uint32_t version)
{
    if (step != version)
        memcpy(reference->values[step], reference->values[version],
               reference->numel * sizeof(float));
    for (uint32_t s = step; s < reference->plan->steps; s++)
        compute_step(reference, s);
}

struct reference *reference_free(struct reference *reference)
{
    if (!reference)
        return NULL;
    for (uint32_t s = 0; s <= SIM_STEPS_MAX; s++)
        free(reference->values[s]);
    for (uint32_t s = 0; s < SIM_STEPS_MAX; s++)
        free(reference->grads[s]);
    free(reference->param_at);
    free(reference);
    return NULL;
}
