/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model: MODEL_CONTEXT characters -> embedding, put one after the other -> six tanh layers ->
 * scores of the next character. Forward and backward layer by layer, so that the caller decides
 * where parameters come from and where gradients go. Owns activations, never parameters or
 * gradients. Values are where the arithmetic works (charlm_math.h). One thread per model; no I/O.
 *
 * For a batch of samples: model_load; model_embed, model_forward(0..6), model_loss; then for
 * layer 6..0 model_grad_weight, model_grad_bias and model_backward, and after
 * model_backward(0) model_grad_embed.
 */
#ifndef CHARLM_MODEL_H
#define CHARLM_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "client/examples/charlm_text.h"

enum {
    MODEL_CONTEXT = 16,
    MODEL_EMBED = 32,
    MODEL_LAYERS = 7, /* six hidden ones and the output */
    MODEL_UNITS = 1 + MODEL_LAYERS,
    MODEL_PARAMS = 1 + 2 * MODEL_LAYERS,
};

/* Matrices lie in rows; a bias has one. Parameter 0 is the embedding, 1 + 2l the weight of layer l
 * (inputs x outputs), 2 + 2l its bias; unit 0 the embedding, 1 + l layer l. */
struct model_param {
    const char *name, *unit_name;
    uint32_t unit;
    size_t rows, cols, numel;
    size_t offset; /* in a flat vector of all parameters */
};

struct model {
    struct model_param params[MODEL_PARAMS];
    size_t numel;
    uint32_t vocab, batch;
    /* private */
    size_t width[MODEL_LAYERS + 1]; /* width[l]: inputs of layer l */
    float *values[MODEL_LAYERS + 1];
    float *deltas[MODEL_LAYERS + 1]; /* of the loss by values, before the layer's tanh */
    float *transposed;
    uint8_t *symbols;        /* batch x (context + 1), on the host */
    uint8_t *placed_symbols; /* the same where the arithmetic works */
};

/* 0, or -1: no memory. */
int model_new(uint32_t vocab, uint32_t hidden, uint32_t batch, struct model **ret_model);
struct model *model_free(struct model *model);

/* First values of a parameter, on the host: uniform, from the seed alone. */
void model_init_param(const struct model *model, uint32_t param, uint64_t seed, float *ret_values);

/* Samples [first, first + count) of the batch are those of `draw`, from its sample 0. */
void model_load(struct model *model, const struct text *text, const struct text_draw *draw,
                uint32_t first, uint32_t count);
void model_embed(struct model *model, const float *embed);
void model_forward(struct model *model, uint32_t layer, const float *weight, const float *bias);
/* Mean cross-entropy of the batch in nats into *mean, and the deltas of the scores. */
void model_loss(struct model *model, double *mean);
/* Deltas of the layer's inputs. */
void model_backward(struct model *model, uint32_t layer, const float *weight);
/* Elements [first, first + count) of the weight's gradient: same bits however it is cut. */
void model_grad_weight(const struct model *model, uint32_t layer, size_t first, size_t count,
                       float *ret_values);
void model_grad_bias(const struct model *model, uint32_t layer, float *ret_values);
void model_grad_embed(const struct model *model, float *ret_values);

#endif
