/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charlm alone, without libgradwire: the reference, which computes every rank's micro-batch and
 * adds the gradients as gradwire's contract says, and the plain run with one large batch, whose
 * sums differ by rounding. One thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/charlm.h"
#include "client/examples/charlm_math.h"

/* Enough for 1,024 ranks: partial sums of 1, 2, 4, ... 512 ranks and one more. */
enum { TREE_DEPTH = 12 };

struct alone {
    const struct charlm_options *options;
    const struct text *text;
    struct model *model;
    float *params, *m, *v;
    float *used;      /* what the model computes with: params, or they as bf16 have them */
    uint16_t *halves; /* NULL: all is fp32 */
    float *sum;              /* the step's gradient */
    double *loss;            /* of the last batch, where the arithmetic works */
    float *host;             /* all parameters */
    float *tree[TREE_DEPTH]; /* partial sums, the largest first; made when needed */
    uint32_t tree_ranks[TREE_DEPTH];
    uint32_t tree_count;
};

static int out_of_memory(const struct alone *a)
{
    char who[32];

    fprintf(stderr, "charlm %s: no memory for %zu parameters\n",
            charlm_who(a->options, who, sizeof who), a->model->numel);
    return EX_OSERR;
}

static float *vector(const struct alone *a)
{
    return math_alloc(a->model->numel * sizeof(float));
}

static int alone_init(struct alone *a)
{
    a->params = vector(a);
    a->m = vector(a);
    a->v = vector(a);
    a->sum = vector(a);
    a->loss = math_alloc(sizeof *a->loss);
    a->host = malloc(a->model->numel * sizeof *a->host);
    if (a->options->bf16) {
        a->halves = math_alloc(a->model->numel * sizeof *a->halves);
        a->used = vector(a);
    } else {
        a->used = a->params;
    }
    if (a->used == NULL || (a->options->bf16 && a->halves == NULL))
        return out_of_memory(a);
    if (a->params == NULL || a->m == NULL || a->v == NULL || a->sum == NULL || a->loss == NULL ||
        a->host == NULL)
        return out_of_memory(a);
    for (uint32_t p = 0; p < MODEL_PARAMS; p++)
        model_init_param(a->model, p, a->options->seed, a->host + a->model->params[p].offset);
    math_put(a->params, a->host, a->model->numel * sizeof *a->host);
    return 0;
}

static void alone_clear(struct alone *a)
{
    for (uint32_t i = 0; i < TREE_DEPTH; i++)
        math_free(a->tree[i]);
    if (a->used != a->params)
        math_free(a->used);
    math_free(a->halves);
    math_free(a->params);
    math_free(a->m);
    math_free(a->v);
    math_free(a->sum);
    math_free(a->loss);
    free(a->host);
}

/* As bf16 has them; fp32 runs have them already. */
static void round_values(const struct alone *a, float *to, const float *from)
{
    if (a->halves == NULL)
        return;
    math_to_bf16(a->halves, from, a->model->numel);
    math_from_bf16(to, a->halves, a->model->numel);
}

/* Forward and backward of what is loaded; the gradient into `grads`. */
static double compute(struct alone *a, float *grads)
{
    const struct model_param *p = a->model->params;
    double loss;

    round_values(a, a->used, a->params);
    model_embed(a->model, a->used + p[0].offset);
    for (uint32_t l = 0; l < MODEL_LAYERS; l++)
        model_forward(a->model, l, a->used + p[1 + 2 * l].offset, a->used + p[2 + 2 * l].offset);
    model_loss(a->model, a->loss);
    for (uint32_t l = MODEL_LAYERS; l-- > 0;) {
        model_grad_bias(a->model, l, grads + p[2 + 2 * l].offset);
        model_grad_weight(a->model, l, 0, p[1 + 2 * l].numel, grads + p[1 + 2 * l].offset);
        model_backward(a->model, l, a->used + p[1 + 2 * l].offset);
    }
    model_grad_embed(a->model, grads + p[0].offset);
    round_values(a, grads, grads);
    math_get(&loss, a->loss, sizeof loss);
    return loss;
}

/* A new leaf of the tree to write a rank's gradient to; NULL: no memory. */
static float *tree_push(struct alone *a)
{
    uint32_t top = a->tree_count;

    if (a->tree[top] == NULL)
        a->tree[top] = vector(a);
    if (a->tree[top] == NULL)
        return NULL;
    a->tree_ranks[top] = 1;
    a->tree_count++;
    return a->tree[top];
}

static void tree_merge_top(struct alone *a)
{
    a->tree_count--;
    math_add(a->tree[a->tree_count - 1], a->tree[a->tree_count], a->model->numel);
    a->tree_ranks[a->tree_count - 1] += a->tree_ranks[a->tree_count];
}

/* Neighbours of equal size are added at once; at the end, what is left is added from the right.
 * Both together are ((0+1)+(2+3))+..., an odd last one passing up. */
static void tree_settle(struct alone *a, bool last)
{
    while (a->tree_count > 1 &&
           (last || a->tree_ranks[a->tree_count - 1] == a->tree_ranks[a->tree_count - 2]))
        tree_merge_top(a);
}

/* The sum over ranks, scaled, is in tree[0]: put or add it into the step's gradient. */
static void tree_take(struct alone *a, bool add)
{
    uint32_t shares = a->options->world * a->options->micro_steps;
    size_t numel = a->model->numel;

    tree_settle(a, true);
    a->tree_count = 0;
    math_scale(a->tree[0], (float)(1.0 / (double)shares), numel);
    if (add)
        math_add(a->sum, a->tree[0], numel);
    else
        math_copy(a->sum, a->tree[0], numel);
}

/* One rank's micro-step `micro` of a step into a new leaf, or added to the top one. */
static int micro_batch(struct alone *a, uint32_t step, uint32_t micro, uint32_t rank, bool add,
                       double *loss)
{
    struct text_draw draw = {a->options->seed, step, micro, rank};
    float *grads = tree_push(a);

    if (grads == NULL)
        return out_of_memory(a);
    model_load(a->model, a->text, &draw, 0, a->options->batch);
    *loss += compute(a, grads);
    if (add)
        tree_merge_top(a);
    return 0;
}

/* Micro-steps are added on each rank first (local), or after the sum over ranks (shard). */
static int reference_step(struct alone *a, uint32_t step, double *ret_loss)
{
    const struct charlm_options *o = a->options;
    bool shard = o->accumulate == GW_ACCUMULATE_SHARD;
    double loss[64] = {0}, total = 0.0;
    int r;

    for (uint32_t outer = 0; outer < (shard ? o->micro_steps : 1); outer++) {
        for (uint32_t rank = 0; rank < o->world; rank++) {
            for (uint32_t inner = 0; inner < (shard ? 1 : o->micro_steps); inner++) {
                r = micro_batch(a, step, outer + inner, rank, inner > 0, &loss[rank]);
                if (r != 0)
                    return r;
            }
            a->tree_ranks[a->tree_count - 1] = 1;
            tree_settle(a, false);
        }
        tree_take(a, outer > 0);
    }
    for (uint32_t rank = 0; rank < o->world; rank++)
        total += loss[rank] / (double)o->micro_steps;
    *ret_loss = total / (double)o->world;
    return 0;
}

static double plain_step(struct alone *a, uint32_t step)
{
    const struct charlm_options *o = a->options;

    for (uint32_t i = 0; i < o->world * o->micro_steps; i++) {
        struct text_draw draw = {o->seed, step, i % o->micro_steps, i / o->micro_steps};

        model_load(a->model, a->text, &draw, i * o->batch, o->batch);
    }
    return compute(a, a->sum);
}

static int dump(const struct alone *a)
{
    const char *path = a->options->dump;
    FILE *file = fopen(path, "we");
    char who[32];
    size_t done;

    round_values(a, a->used, a->params);
    math_get(a->host, a->used, a->model->numel * sizeof *a->host);
    if (file != NULL) {
        done = fwrite(a->host, sizeof(float), a->model->numel, file);
        if (fclose(file) == 0 && done == a->model->numel)
            return 0;
    }
    fprintf(stderr, "charlm %s: cannot write parameters to %s: %s\n",
            charlm_who(a->options, who, sizeof who), path, strerror(errno));
    return EX_CANTCREAT;
}

int charlm_run_alone(const struct charlm_options *options, const struct text *text,
                     struct model *model, struct charlm_result *result)
{
    struct alone a = {.options = options, .text = text, .model = model};
    struct math_adam adam;
    int r;

    r = alone_init(&a);
    adam = (struct math_adam){a.params, a.m, a.v, a.sum, model->numel};
    for (uint32_t step = 1; r == 0 && step <= options->steps; step++) {
        if (options->mode == CHARLM_REFERENCE)
            r = reference_step(&a, step, &result->loss[step - 1]);
        else
            result->loss[step - 1] = plain_step(&a, step);
        if (r == 0)
            math_adam(&adam, step);
    }
    if (r == 0 && options->dump != NULL)
        r = dump(&a);
    alone_clear(&a);
    return r;
}
