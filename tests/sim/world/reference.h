/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the right values are: gradients drawn from the plan's seed, summed in the contract's tree,
 * and a plain optimizer, parameter by parameter; knows nothing of buckets, shards or time. Rounding
 * is done by arithmetic, apart from the conversions of devices.
 */
#ifndef GW_SIM_REFERENCE_H
#define GW_SIM_REFERENCE_H

#include "tests/sim/world/sim.h"

struct reference {
    const struct sim_plan *plan;
    uint32_t *param_at; /* of each parameter in the arrays below */
    uint32_t numel;
    float *values[SIM_STEPS_MAX + 1]; /* [s]: parameters during step s; masters, not rounded */
    float *grads[SIM_STEPS_MAX];      /* [s]: reduced gradient of step s */
};

uint64_t sim_hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
/* True with a chance per thousand. */
bool sim_chance(uint64_t hash, uint32_t per_mille);

struct reference *reference_new(const struct sim_plan *plan);
struct reference *reference_free(struct reference *reference);

/* What the plan draws, the same for clients and reference. */
/* The ranks freeze a set of parameters before the step; it is among those frozen in the step. */
bool plan_freezes(const struct sim_plan *plan, uint32_t step);
bool plan_frozen(const struct sim_plan *plan, uint32_t step, uint32_t param);
bool plan_uses(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
               uint32_t param);
/* FINAL is said with the contribution of this micro-step. */
bool plan_final(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                uint32_t param);
bool plan_updates(const struct sim_plan *plan, uint32_t step);
uint32_t plan_micro_steps(const struct sim_plan *plan, uint32_t rank);
float plan_gradient(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                    uint32_t param, uint64_t element);
bool reference_used(const struct reference *reference, uint32_t step, uint32_t param);
float reference_update(const struct sim_plan *plan, float value, float gradient);
/* Training goes on in `step` with the parameters that step `version` began with. */
void reference_restart(struct reference *reference, uint32_t step, uint32_t version);

/* To nearest, ties to even, in a dtype. */
float sim_round(float value, uint32_t dtype);
/* Elements of memory as a dtype. */
float sim_load(const void *from, uint32_t dtype, uint64_t at);
void sim_store(void *to, uint32_t dtype, uint64_t at, float value);

/* Ranks of a parameter's group, in order; *ret_shard_ranks: owners of a copy of the shards. */
uint32_t plan_group(const struct sim_plan *plan, uint32_t group, uint32_t ranks[SIM_RANKS_MAX],
                    uint32_t *ret_shard_ranks);
bool plan_holds(const struct sim_plan *plan, uint32_t rank, uint32_t param);
/* What a rank's memory holds of the gradient once the micro-step's piece is written. */
float plan_contribution(const struct sim_plan *plan, uint32_t rank, uint32_t step, uint32_t micro,
                        uint32_t param, uint64_t element);

/* The contract's tree over `count` values; overwrites them. */
float sim_tree_sum(float *values, uint32_t count);

#endif
