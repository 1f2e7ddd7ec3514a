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

/* ---- the plan's draws ------------------------------------------------------------------------ */

uint32_t plan_micro_steps(const struct sim_plan *plan, uint32_t rank)
{
    uint32_t micro_steps = plan->seal.micro_steps ? plan->seal.micro_steps : 1;

    if (rank != SIM_NEVER && rank == plan->micro_short_rank && micro_steps > 1)
        return micro_steps - 1;
    return micro_steps;
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

static float scale_of(const struct sim_plan *plan)
{
    return (float)(plan->seal.scale != 0 ? plan->seal.scale : 1.0 / plan->world);
}

static bool sums_in_shards(const struct sim_plan *plan)
{
    if (plan->seal.accumulate == GW_ACCUMULATE_AUTO)
        return plan->seal.stage >= 2;
    return plan->seal.accumulate == GW_ACCUMULATE_SHARD;
}

static float contribution(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                          uint32_t param, uint64_t element)
{
    if (!plan_uses(plan, rank, step, micro, param))
        return 0;
    return plan_gradient(plan, rank, step, micro, param, element);
}

static float reduced(const struct sim_plan *plan, uint32_t step, uint32_t param, uint64_t element)
{
    uint32_t micro_steps = plan_micro_steps(plan, SIM_NEVER);
    float sums[SIM_RANKS_MAX] = {0}, total = 0, scale = scale_of(plan);

    if (sums_in_shards(plan)) {
        for (uint32_t m = 0; m < micro_steps; m++) {
            for (uint32_t r = 0; r < plan->world; r++)
                sums[r] = contribution(plan, r, step, m, param, element);
            total += scale * sim_tree_sum(sums, plan->world);
        }
        return total;
    }
    for (uint32_t r = 0; r < plan->world; r++) {
        sums[r] = 0;
        for (uint32_t m = 0; m < micro_steps; m++)
            sums[r] += contribution(plan, r, step, m, param, element);
    }
    return scale * sim_tree_sum(sums, plan->world);
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
