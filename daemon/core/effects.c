/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of effects: a linked list, so that an effect under construction does not move. Each
 * node owns the arrays of its op (blocks), which live until the effect after it is asked for.
 * Pure; one thread (the core's). Must not look into the effects it carries.
 */
#include "daemon/core/effects.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_MAX 32u /* nodes kept for reuse; an effect is over 1 KiB, a burst may be long */

struct block {
    struct block *next;
    max_align_t data[];
};

struct node {
    struct node *next;
    struct block *blocks;
    struct core_effect effect;
};

struct effects {
    struct node *head, *tail;
    struct node *taken; /* the caller of effects_take still reads its arrays */
    struct node *unseen; /* where effects_next_launch goes on */
    struct node *spare;
    uint32_t spares;
    uint64_t next_op;
    bool failed;
    struct core_effect scratch;
    struct block *early; /* allocated while the queue was empty: goes with the next effect */
};

static void blocks_free(struct block *block)
{
    while (block) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
}

static void node_recycle(struct effects *effects, struct node *node)
{
    if (!node)
        return;
    blocks_free(node->blocks);
    node->blocks = NULL;
    if (effects->spares >= SPARE_MAX) {
        free(node);
        return;
    }
    node->next = effects->spare;
    effects->spare = node;
    effects->spares++;
}

static void nodes_free(struct node *node)
{
    while (node) {
        struct node *next = node->next;
        blocks_free(node->blocks);
        free(node);
        node = next;
    }
}

int effects_new(struct effects **ret_effects)
{
    struct effects *effects = calloc(1, sizeof(*effects));

    if (!effects)
        return GW_E_NOMEM;
    effects->next_op = 1;
    *ret_effects = effects;
    return 0;
}

struct effects *effects_free(struct effects *effects)
{
    if (!effects)
        return NULL;
    nodes_free(effects->head);
    nodes_free(effects->taken);
    nodes_free(effects->spare);
    blocks_free(effects->early);
    free(effects);
    return NULL;
}

static struct node *node_get(struct effects *effects)
{
    struct node *node = effects->spare;

    if (!node)
        return calloc(1, sizeof(*node));
    effects->spare = node->next;
    effects->spares--;
    memset(node, 0, sizeof(*node));
    return node;
}

struct core_effect *effects_add(struct effects *effects, enum core_effect_kind kind)
{
    struct node *node = node_get(effects);

    if (!node) {
        effects->failed = true;
        memset(&effects->scratch, 0, sizeof(effects->scratch));
        effects->scratch.kind = kind;
        return &effects->scratch;
    }
    node->effect.kind = kind;
    node->blocks = effects->early;
    effects->early = NULL;
    if (effects->tail)
        effects->tail->next = node;
    else
        effects->head = node;
    effects->tail = node;
    if (!effects->unseen)
        effects->unseen = node;
    return &node->effect;
}

const struct core_op *effects_next_launch(struct effects *effects)
{
    while (effects->unseen) {
        struct node *node = effects->unseen;

        effects->unseen = node->next;
        if (node->effect.kind == CORE_EFF_LAUNCH)
            return &node->effect.op;
    }
    return NULL;
}

void *effects_alloc(struct effects *effects, size_t bytes)
{
    struct block **list = effects->tail ? &effects->tail->blocks : &effects->early;
    struct block *block = NULL;

    if (bytes <= SIZE_MAX - sizeof(*block))
        block = calloc(1, sizeof(*block) + bytes);
    if (!block) {
        effects->failed = true;
        return NULL;
    }
    block->next = *list;
    *list = block;
    return block->data;
}

uint64_t effects_next_op(struct effects *effects)
{
    return effects->next_op++;
}

bool effects_failed(const struct effects *effects)
{
    return effects->failed;
}

bool effects_take(struct effects *effects, struct core_effect *ret_effect)
{
    struct node *node = effects->head;

    node_recycle(effects, effects->taken);
    effects->taken = node;
    if (!node)
        return false;
    effects->head = node->next;
    if (!effects->head)
        effects->tail = NULL;
    if (effects->unseen == node)
        effects->unseen = node->next;
    node->next = NULL;
    *ret_effect = node->effect;
    return true;
}
