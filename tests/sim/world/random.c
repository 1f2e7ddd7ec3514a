/* SPDX-License-Identifier: Apache-2.0 */
/* Plans drawn from a seed: small models, all options, all oddities that must not matter. */
#include <stdio.h>
#include <string.h>

#include "tests/sim/world/reference.h"
#include "tests/sim/world/sim.h"

static uint32_t pick(uint64_t seed, uint32_t what, uint32_t below)
{
    return (uint32_t)(sim_hash(seed, what, 42, 42, 42) % below);
}

void sim_model_random(struct sim_model *model, uint64_t seed)
{
    static const uint64_t sizes[] = {0, 1, 3, 5, 8, 13, 20, 4};
    uint32_t unit = 0;

    memset(model, 0, sizeof(*model));
    model->count = 1 + pick(seed, 1, 8);
    for (uint32_t p = 0; p < model->count; p++) {
        unit += pick(seed, 100 + p, 2);
        snprintf(model->names[p], sizeof(model->names[p]), "p%u", p);
        snprintf(model->units[p], sizeof(model->units[p]), "u%u", unit);
        model->params[p] = (struct layout_param){.name = model->names[p],
                                                 .unit = model->units[p],
                                                 .numel = sizes[pick(seed, 200 + p, 8)]};
    }
    /* One element at least, so that there is something to reduce. */
    if (!model->params[0].numel)
        model->params[0].numel = 2;
}

static uint32_t chance(uint64_t seed, uint32_t what, uint32_t per_mille)
{
    return pick(seed, what, 2) ? per_mille : 0;
}

static void draw_options(struct sim_plan *plan, uint64_t seed)
{
    static const uint64_t buckets[] = {4, 20, 48, 52, 400};
    struct wire_seal *seal = &plan->seal;

    seal->bucket_bytes = buckets[pick(seed, 10, 5)];
    seal->shard_align_bytes = pick(seed, 11, 3) ? 4 : 16;
    seal->accumulate = pick(seed, 12, 3);
    seal->micro_steps = 1 + pick(seed, 13, 3);
    seal->ring_slots = 1 + pick(seed, 14, 3);
    seal->overlap_off = pick(seed, 15, 4) == 0;
    seal->scale = pick(seed, 16, 3) ? 0 : 1;
    if (seal->stage == 3) {
        seal->gather = pick(seed, 17, 3) == 0;
        seal->prefetch_bytes = pick(seed, 18, 2) ? 0 : 64;
    }
    if (seal->bucket_bytes == 4)
        seal->ring_slots = 64; /* a bucket per element: any order is within the overflow quota */
    plan->running =
        pick(seed, 19, 2) && (seal->accumulate == GW_ACCUMULATE_LOCAL ||
                              (seal->accumulate == GW_ACCUMULATE_AUTO && seal->stage < 2));
}

void sim_plan_random(struct sim_plan *plan, const struct sim_model *model, uint32_t stage,
                     uint64_t seed)
{
    *plan = sim_plan_default(seed, stage, 1 + pick(seed, 20, 5), model->params, model->count);
    draw_options(plan, seed);
    plan->steps = 2 + pick(seed, 21, 3);
    plan->unused = chance(seed, 22, 300);
    plan->early_final = chance(seed, 23, 300);
    plan->token = chance(seed, 24, 400);
    plan->no_update = chance(seed, 25, 400);
    plan->run_ahead = chance(seed, 26, 700);
    plan->skip_unit = chance(seed, 27, 500);
    plan->other_order = chance(seed, 28, 300);
    plan->twice = chance(seed, 29, 200);
    plan->fetch = stage == 3 || pick(seed, 30, 2);
    plan->shuffle = pick(seed, 31, 2);
    plan->hold_units = 1 + pick(seed, 32, 2);
    plan->impatient = pick(seed, 36, 3) == 0;
    plan->early_grads = stage >= 2 && plan->seal.bucket_bytes > 4 && pick(seed, 37, 4) == 0;
    plan->blind = pick(seed, 38, 10) == 0;
    plan->measure = pick(seed, 33, 4) == 0;
    if (pick(seed, 34, 8) == 0)
        plan->infinite_step = pick(seed, 35, plan->steps);
    sim_plan_disturb(plan, seed);
}

/* ---- dtypes, groups and what belongs to them ------------------------------------------------- */

/* A divisor of count, or 0. */
static uint32_t draw_runs(uint64_t seed, uint32_t what, uint32_t count)
{
    uint32_t runs = 1 + pick(seed, what, count);

    return count % runs == 0 ? runs : 0;
}

/* Some ranks, in some order. */
static void draw_group(struct sim_model *model, const struct sim_plan *plan, uint64_t seed,
                       uint32_t g)
{
    uint32_t *ranks = model->ranks[g];
    uint32_t count = 0;

    for (uint32_t r = 0; r < plan->world; r++) {
        if (pick(seed, 500 + 20 * g + r, 3))
            ranks[count++] = r;
    }
    if (count == 0)
        ranks[count++] = plan->world - 1;
    for (uint32_t i = count; i > 1 && pick(seed, 600 + g, 2); i--) {
        uint32_t j = pick(seed, 620 + 20 * g + i, i), rank = ranks[j];

        ranks[j] = ranks[i - 1];
        ranks[i - 1] = rank;
    }
    model->groups[g] = (struct layout_group){.ranks = ranks, .count = count};
    if (plan->seal.stage > 0 && plan->seal.gather != GW_GATHER_MAPPED)
        model->groups[g].shard_ranks = draw_runs(seed, 700 + g, count);
}

void sim_plan_vary(struct sim_plan *plan, struct sim_model *model, uint64_t seed)
{
    struct wire_seal *seal = &plan->seal;
    bool typed = pick(seed, 800, 4), stage3 = seal->stage == 3;
    uint32_t grads = pick(seed, 801, 3);

    model->group_count = pick(seed, 802, SIM_GROUPS_MAX);
    for (uint32_t g = 0; g < model->group_count; g++)
        draw_group(model, plan, seed, g);
    for (uint32_t p = 0; p < model->count; p++) {
        struct layout_param *param = &model->params[p];

        param->group = pick(seed, 810 + p, model->group_count + 1);
        param->dtype = (uint8_t)(typed ? pick(seed, 840 + p, GW_DTYPES) : GW_DTYPE_FP32);
        param->grad_dtype = (uint8_t)(pick(seed, 870 + p, 4) ? grads : GW_DTYPE_FP32);
    }
    plan->groups = model->groups;
    plan->group_count = model->group_count;
    if (seal->stage > 0 && seal->gather != GW_GATHER_MAPPED && pick(seed, 803, 2))
        seal->shard_ranks = draw_runs(seed, 804, plan->world);
    seal->norm = pick(seed, 805, 3) == 0;
    seal->pre_scale = pick(seed, 806, 3) ? 0 : 0.375;
    seal->reduce_dtype = pick(seed, 807, 3) ? GW_DTYPE_FP32 : pick(seed, 808, GW_DTYPES);
    seal->accum_as_grads = pick(seed, 809, 4) == 0;
    seal->persist_bytes = stage3 && pick(seed, 890, 2) ? 4 + 8 * pick(seed, 891, 6) : 0;
    seal->reuse_bytes = stage3 && pick(seed, 892, 2) ? 32 * pick(seed, 893, 6) : 0;
    if (stage3 && seal->gather != GW_GATHER_MAPPED && !seal->shard_ranks && pick(seed, 894, 2))
        seal->secondary_ranks = draw_runs(seed, 895, plan->world);
    seal->all_reduce = pick(seed, 896, 4) == 0;
}

/* Between steps: not beside gradients that come early. */
void sim_plan_freeze(struct sim_plan *plan, uint64_t seed)
{
    plan->freeze = plan->early_grads ? 0 : chance(seed, 900, 500);
}

void sim_plan_describe(const struct sim_plan *plan, char *text, size_t bytes)
{
    const struct wire_seal *seal = &plan->seal;

    snprintf(text, bytes,
             "seed %lu stage %u world %u steps %u bucket %lu align %u accumulate %u micro %u ring "
             "%u overlap_off %u gather %u running %d unused %u freeze %u final %u token %u "
             "no_update %u ahead %u skip %u order %u twice %u fetch %d shuffle %d hold %u measure "
             "%d inf %u streams %d deaf %d narrow %d sums %d runs %u norm %u pre %g by %u accum %u "
             "persist %lu reuse %lu second %u all_reduce %u; params",
             (unsigned long)plan->seed, seal->stage, plan->world, plan->steps,
             (unsigned long)seal->bucket_bytes, seal->shard_align_bytes, seal->accumulate,
             seal->micro_steps, seal->ring_slots, seal->overlap_off, seal->gather, plan->running,
             plan->unused, plan->freeze, plan->early_final, plan->token, plan->no_update,
             plan->run_ahead, plan->skip_unit, plan->other_order, plan->twice, plan->fetch,
             plan->shuffle, plan->hold_units, plan->measure, plan->infinite_step, plan->streams,
             plan->deaf, plan->narrow, plan->sums, seal->shard_ranks, seal->norm, seal->pre_scale,
             seal->reduce_dtype, seal->accum_as_grads, (unsigned long)seal->persist_bytes,
             (unsigned long)seal->reuse_bytes, seal->secondary_ranks, seal->all_reduce);
    for (uint32_t p = 0; p < plan->param_count; p++)
        snprintf(text + strlen(text), bytes - strlen(text), " %lu/%s.%u%u g%u",
                 (unsigned long)plan->params[p].numel, plan->params[p].unit, plan->params[p].dtype,
                 plan->params[p].grad_dtype, plan->params[p].group);
    for (uint32_t g = 0; g < plan->group_count; g++) {
        snprintf(text + strlen(text), bytes - strlen(text), "; group %u runs %u:", g + 1,
                 plan->groups[g].shard_ranks);
        for (uint32_t i = 0; i < plan->groups[g].count; i++)
            snprintf(text + strlen(text), bytes - strlen(text), " %u", plan->groups[g].ranks[i]);
    }
}
