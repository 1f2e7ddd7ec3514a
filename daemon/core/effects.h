/* SPDX-License-Identifier: Apache-2.0 */
/* Queue of effects between the parts of the core and core_next_effect. Pure; one thread. */
#ifndef GW_CORE_EFFECTS_H
#define GW_CORE_EFFECTS_H

#include "daemon/core/core.h"

struct effects;

int effects_new(struct effects **ret_effects);
struct effects *effects_free(struct effects *effects);
/* A zeroed effect at the queue's end, to be filled in at once (the pointer dies at the next call).
 * Never NULL: on lack of memory it is a scratch effect, and effects_failed() turns true. */
struct core_effect *effects_add(struct effects *effects, enum core_effect_kind kind);
/* Zeroed memory for an op's arrays; lives until the effect last added has been taken and the next
 * one is asked for. NULL on lack of memory (remembered as above). */
void *effects_alloc(struct effects *effects, size_t bytes);
/* Ids of ops, from 1, in launch order. */
uint64_t effects_next_op(struct effects *effects);
/* The next op in the queue that this has not returned yet; NULL: none. */
const struct core_op *effects_next_launch(struct effects *effects);
bool effects_failed(const struct effects *effects);
bool effects_take(struct effects *effects, struct core_effect *ret_effect);

#endif
