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
        model->params[p] = (struct layout_param){model->names[p], model->units[p],
                                                 sizes[pick(seed, 200 + p, 8)], 0};
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

void sim_plan_describe(const struct sim_plan *plan, char *text, size_t bytes)
{
    const struct wire_seal *seal = &plan->seal;

    snprintf(text, bytes,
             "seed %lu stage %u world %u steps %u bucket %lu align %u accumulate %u micro %u ring "
             "%u overlap_off %u gather %u running %d unused %u final %u token %u no_update %u "
             "ahead %u skip %u order %u twice %u fetch %d shuffle %d hold %u measure %d inf %u "
             "streams %d deaf %d sums %d; params",
             (unsigned long)plan->seed, seal->stage, plan->world, plan->steps,
             (unsigned long)seal->bucket_bytes, seal->shard_align_bytes, seal->accumulate,
             seal->micro_steps, seal->ring_slots, seal->overlap_off, seal->gather, plan->running,
             plan->unused, plan->early_final, plan->token, plan->no_update, plan->run_ahead,
             plan->skip_unit, plan->other_order, plan->twice, plan->fetch, plan->shuffle,
             plan->hold_units, plan->measure, plan->infinite_step, plan->streams, plan->deaf,
             plan->sums);
    for (uint32_t p = 0; p < plan->param_count; p++)
        snprintf(text + strlen(text), bytes - strlen(text), " %lu/%s",
                 (unsigned long)plan->params[p].numel, plan->params[p].unit);
}
