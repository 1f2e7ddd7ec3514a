/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of the character model; see charlm_model.h. */
#include "client/examples/charlm_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/charlm_math.h"

static const char *const unit_names[MODEL_UNITS] = {"embed", "h1", "h2", "h3",
                                                    "h4",    "h5", "h6", "out"};
static const char *const param_names[MODEL_PARAMS] = {
    "embed.weight", "h1.weight", "h1.bias",   "h2.weight",  "h2.bias",
    "h3.weight",    "h3.bias",   "h4.weight", "h4.bias",    "h5.weight",
    "h5.bias",      "h6.weight", "h6.bias",   "out.weight", "out.bias",
};

static void set_param(struct model *model, uint32_t param, size_t rows, size_t cols)
{
    uint32_t unit = (param + 1) / 2;

    model->params[param] = (struct model_param){
        .name = param_names[param],
        .unit_name = unit_names[unit],
        .unit = unit,
        .rows = rows,
        .cols = cols,
        .numel = rows * cols,
        .offset = model->numel,
    };
    model->numel += rows * cols;
}

static int allocate(struct model *model)
{
    size_t largest = 0;

    for (uint32_t l = 0; l <= MODEL_LAYERS; l++) {
        model->values[l] = math_alloc(model->batch * model->width[l] * sizeof(float));
        model->deltas[l] = math_alloc(model->batch * model->width[l] * sizeof(float));
        if (model->values[l] == NULL || model->deltas[l] == NULL)
            return -1;
        if (l > 0 && model->params[2 * l - 1].numel > largest)
            largest = model->params[2 * l - 1].numel;
    }
    model->transposed = math_alloc(largest * sizeof(float));
    model->symbols = calloc(model->batch, MODEL_CONTEXT + 1);
    model->placed_symbols = math_alloc((size_t)model->batch * (MODEL_CONTEXT + 1));
    return model->transposed == NULL || model->symbols == NULL || model->placed_symbols == NULL
               ? -1
               : 0;
}

int model_new(uint32_t vocab, uint32_t hidden, uint32_t batch, struct model **ret_model)
{
    struct model *model = calloc(1, sizeof *model);

    if (model == NULL)
        return -1;
    model->vocab = vocab;
    model->batch = batch;
    model->width[0] = MODEL_CONTEXT * MODEL_EMBED;
    for (uint32_t l = 1; l < MODEL_LAYERS; l++)
        model->width[l] = hidden;
    model->width[MODEL_LAYERS] = vocab;
    set_param(model, 0, vocab, MODEL_EMBED);
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
        set_param(model, 1 + 2 * l, model->width[l], model->width[l + 1]);
        set_param(model, 2 + 2 * l, 1, model->width[l + 1]);
    }
    if (allocate(model) < 0) {
        model_free(model);
        return -1;
    }
    *ret_model = model;
    return 0;
}

struct model *model_free(struct model *model)
{
    if (model == NULL)
        return NULL;
    for (uint32_t l = 0; l <= MODEL_LAYERS; l++) {
        math_free(model->values[l]);
        math_free(model->deltas[l]);
    }
    math_free(model->transposed);
    math_free(model->placed_symbols);
    free(model->symbols);
    free(model);
    return NULL;
}

void model_init_param(const struct model *model, uint32_t param, uint64_t seed, float *ret_values)
{
    const struct model_param *p = &model->params[param];
    uint64_t state = text_mix(seed, param);
    float range = 0.5f;

    /* Glorot and Bengio 2010, equation 16; biases begin with 0. */
    if (param > 0)
        range = p->rows == 1 ? 0.0f : (float)sqrt(6.0 / (double)(p->rows + p->cols));
    for (size_t i = 0; i < p->numel; i++) {
        int32_t whole = (int32_t)(text_mix(state, i) >> 40) - (1 << 23);

        ret_values[i] = (float)whole * 0x1p-23f * range;
    }
}

void model_load(struct model *model, const struct text *text, const struct text_draw *draw,
                uint32_t first, uint32_t count)
{
    for (uint32_t s = 0; s < count; s++) {
        size_t at = text_sample(text, draw, s, MODEL_CONTEXT);

        memcpy(model->symbols + (size_t)(first + s) * (MODEL_CONTEXT + 1), text->symbols + at,
               MODEL_CONTEXT + 1);
    }
    math_put(model->placed_symbols + (size_t)first * (MODEL_CONTEXT + 1),
             model->symbols + (size_t)first * (MODEL_CONTEXT + 1),
             (size_t)count * (MODEL_CONTEXT + 1));
}

static struct math_samples samples(const struct model *model)
{
    return (struct math_samples){model->placed_symbols, model->batch, MODEL_CONTEXT};
}

void model_embed(struct model *model, const float *embed)
{
    struct math_samples s = samples(model);

    math_embed(&s, embed, MODEL_EMBED, model->values[0]);
}

void model_forward(struct model *model, uint32_t layer, const float *weight, const float *bias)
{
    size_t in = model->width[layer], out = model->width[layer + 1];
    struct math_gemm g = {
        .rows = model->batch,
        .cols = out,
        .depth = in,
        .a = model->values[layer],
        .a_row = in,
        .a_depth = 1,
        .b = weight,
        .b_row = out,
        .first = bias,
        .c = model->values[layer + 1],
        .c_row = out,
    };

    math_gemm(&g);
    if (layer + 1 < MODEL_LAYERS)
        math_tanh(model->values[layer + 1], model->batch * out);
}

void model_loss(struct model *model, double *mean)
{
    struct math_samples s = samples(model);

    math_loss(&s, model->values[MODEL_LAYERS], model->vocab, model->deltas[MODEL_LAYERS], mean);
}

void model_backward(struct model *model, uint32_t layer, const float *weight)
{
    size_t in = model->width[layer], out = model->width[layer + 1];
    struct math_gemm g = {
        .rows = model->batch,
        .cols = in,
        .depth = out,
        .a = model->deltas[layer + 1],
        .a_row = out,
        .a_depth = 1,
        .b = model->transposed,
        .b_row = in,
        .c = model->deltas[layer],
        .c_row = in,
    };

    math_transpose(weight, in, out, model->transposed);
    math_gemm(&g);
    if (layer > 0)
        math_tanh_back(model->deltas[layer], model->values[layer], model->batch * in);
}

/* Rows [row, row + rows), columns [col, col + cols) of inputs^T * deltas, put one row after the
 * other with `cols` elements each. */
static void grad_rows(const struct model *model, uint32_t layer, size_t row, size_t rows,
                      size_t col, size_t cols, float *ret_values)
{
    size_t in = model->width[layer], out = model->width[layer + 1];
    struct math_gemm g = {
        .rows = rows,
        .cols = cols,
        .depth = model->batch,
        .a = model->values[layer] + row,
        .a_row = 1,
        .a_depth = in,
        .b = model->deltas[layer + 1] + col,
        .b_row = out,
        .c = ret_values,
        .c_row = cols,
    };

    math_gemm(&g);
}

void model_grad_weight(const struct model *model, uint32_t layer, size_t first, size_t count,
                       float *ret_values)
{
    size_t cols = model->width[layer + 1];
    size_t row = first / cols, col = first % cols;

    /* The end of a row, whole rows, the beginning of a row. */
    if (col != 0 && count > 0) {
        size_t part = cols - col < count ? cols - col : count;

        grad_rows(model, layer, row++, 1, col, part, ret_values);
        ret_values += part;
        count -= part;
    }
    if (count >= cols) {
        grad_rows(model, layer, row, count / cols, 0, cols, ret_values);
        row += count / cols;
        ret_values += count / cols * cols;
        count %= cols;
    }
    if (count > 0)
        grad_rows(model, layer, row, 1, 0, count, ret_values);
}

void model_grad_bias(const struct model *model, uint32_t layer, float *ret_values)
{
    math_sum_rows(model->deltas[layer + 1], model->batch, model->width[layer + 1], ret_values);
}

void model_grad_embed(const struct model *model, float *ret_values)
{
    struct math_samples s = samples(model);

    math_embed_back(&s, model->deltas[0], model->vocab, MODEL_EMBED, ret_values);
}
