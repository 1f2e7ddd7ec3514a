/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charlm: trains a character language model as one rank of a gradwire job, or alone. main() loads
 * the text, makes the model and hands over to charlm_rank.c or charlm_alone.c. One thread.
 */
#include <stdio.h>

#include "client/examples/charlm.h"
#include "client/examples/charlm_device.h"

static int print_model(const struct model *model)
{
    printf("# name\tshape\tunit\n");
    for (uint32_t p = 0; p < MODEL_PARAMS; p++) {
        const struct model_param *param = &model->params[p];

        if (param->rows > 1)
            printf("%s\t%zux%zu\t%s\n", param->name, param->rows, param->cols, param->unit_name);
        else
            printf("%s\t%zu\t%s\n", param->name, param->cols, param->unit_name);
    }
    return fflush(stdout) == 0 ? 0 : EX_IOERR;
}

static int train(const struct charlm_options *options, const struct text *text, struct model *model)
{
    struct charlm_result result;
    char who[32];
    int r;

    if (charlm_result_init(&result, options->steps) < 0) {
        fprintf(stderr, "charlm %s: no memory for %u steps\n", charlm_who(options, who, sizeof who),
                options->steps);
        return EX_OSERR;
    }
    if (options->mode == CHARLM_RANK)
        r = charlm_run_rank(options, text, model, &result);
    else
        r = charlm_run_alone(options, text, model, &result);
    if (r == 0)
        r = charlm_result_write(options, text, model, &result);
    charlm_result_clear(&result);
    return r;
}

int main(int argc, char **argv)
{
    struct charlm_options options;
    struct text text;
    struct model *model = NULL;
    uint32_t batch;
    char error[512], who[32];
    int r;

    r = charlm_options_parse(argc, argv, &options);
    if (r != 0)
        return r < 0 ? 0 : r;
    charlm_who(&options, who, sizeof who);
    r = text_load(options.text, MODEL_CONTEXT, &text, error, sizeof error);
    if (r != 0) {
        fprintf(stderr, "charlm %s: %s\n", who, error);
        return r;
    }
    r = charlm_device_start(options.gpu, options.rank);
    if (r != 0) {
        text_clear(&text);
        return r;
    }
    batch = options.batch;
    if (options.mode == CHARLM_PLAIN)
        batch *= options.world * options.micro_steps;
    if (model_new(text.vocab, options.hidden, batch, &model) < 0) {
        fprintf(stderr, "charlm %s: no memory for a model of width %u and %u samples\n", who,
                options.hidden, batch);
        r = EX_OSERR;
    } else if (options.mode == CHARLM_MODEL_TSV) {
        r = print_model(model);
    } else {
        r = train(&options, &text, model);
    }
    model_free(model);
    text_clear(&text);
    charlm_device_stop();
    return r;
}
