/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charlm's model against a second one, written here in double precision from the definition alone:
 * its loss, its gradients by finite differences, the arithmetic's edges, and that bits do not
 * depend on how a gradient is cut. One process, no file but a temporary text.
 * ctest: link=gw_charlm_model
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "client/examples/charlm_math.h"
#include "client/examples/charlm_math_one.h"
#include "client/examples/charlm_model.h"

enum { HIDDEN = 21, BATCH = 5, WIDTH_MAX = MODEL_CONTEXT * MODEL_EMBED };

static const char sample_text[] = "the quick brown fox jumps over the lazy dog; "
                                  "pack my box with five dozen liquor jugs.\n";

struct fixture {
    struct text text;
    struct model *model;
    float *params, *grads;
};

static void write_text(const char *text, char path[32])
{
    FILE *file;
    int fd;

    snprintf(path, 32, "/tmp/charlm-test-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    file = fdopen(fd, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char path[32], error[256];

    assert_non_null(f);
    write_text(sample_text, path);
    assert_int_equal(text_load(path, MODEL_CONTEXT, &f->text, error, sizeof error), 0);
    unlink(path);
    assert_int_equal(model_new(f->text.vocab, HIDDEN, BATCH, &f->model), 0);
    f->params = calloc(f->model->numel, sizeof(float));
    f->grads = calloc(f->model->numel, sizeof(float));
    assert_non_null(f->params);
    assert_non_null(f->grads);
    for (uint32_t p = 0; p < MODEL_PARAMS; p++)
        model_init_param(f->model, p, 7, f->params + f->model->params[p].offset);
    /* Biases begin with 0: give them something to be wrong about. */
    for (size_t i = 0; i < f->model->numel; i++)
        f->params[i] += 0.01f * (float)((int)(i % 7) - 3);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    free(f->params);
    free(f->grads);
    model_free(f->model);
    text_clear(&f->text);
    free(f);
    return 0;
}

/* ---- the second model ------------------------------------------------------------------------ */

static const struct text_draw draw = {.seed = 3, .step = 2, .micro = 0, .rank = 1};

static double sample_loss(const struct fixture *f, const double *params, uint32_t sample)
{
    const uint8_t *at = f->text.symbols + text_sample(&f->text, &draw, sample, MODEL_CONTEXT);
    double in[WIDTH_MAX], out[WIDTH_MAX], sum = 0.0;
    size_t width = 0;

    for (size_t c = 0; c < MODEL_CONTEXT; c++) {
        for (size_t e = 0; e < MODEL_EMBED; e++)
            in[width++] = params[at[c] * MODEL_EMBED + e];
    }
    params += f->text.vocab * MODEL_EMBED;
    for (int layer = 0; layer < 7; layer++) {
        size_t outs = layer < 6 ? HIDDEN : f->text.vocab;

        for (size_t o = 0; o < outs; o++) {
            double z = params[width * outs + o];

            for (size_t i = 0; i < width; i++)
                z += in[i] * params[i * outs + o];
            out[o] = layer < 6 ? tanh(z) : z;
        }
        params += width * outs + outs;
        width = outs;
        memcpy(in, out, width * sizeof *in);
    }
    for (size_t v = 0; v < width; v++)
        sum += exp(in[v]);
    return log(sum) - in[at[MODEL_CONTEXT]];
}

static double batch_loss(const struct fixture *f, const double *params)
{
    double total = 0.0;

    for (uint32_t s = 0; s < BATCH; s++)
        total += sample_loss(f, params, s);
    return total / BATCH;
}

static double *as_doubles(const struct fixture *f)
{
    double *params = calloc(f->model->numel, sizeof *params);

    assert_non_null(params);
    for (size_t i = 0; i < f->model->numel; i++)
        params[i] = (double)f->params[i];
    return params;
}

/* ---- the model under test -------------------------------------------------------------------- */

static double forward(struct fixture *f)
{
    const struct model_param *p = f->model->params;
    double loss;

    model_load(f->model, &f->text, &draw, 0, BATCH);
    model_embed(f->model, f->params);
    for (uint32_t l = 0; l < MODEL_LAYERS; l++)
        model_forward(f->model, l, f->params + p[1 + 2 * l].offset,
                      f->params + p[2 + 2 * l].offset);
    model_loss(f->model, &loss);
    return loss;
}

static void backward(struct fixture *f)
{
    const struct model_param *p = f->model->params;

    for (uint32_t l = MODEL_LAYERS; l-- > 0;) {
        model_grad_weight(f->model, l, 0, p[1 + 2 * l].numel, f->grads + p[1 + 2 * l].offset);
        model_grad_bias(f->model, l, f->grads + p[2 + 2 * l].offset);
        model_backward(f->model, l, f->params + p[1 + 2 * l].offset);
    }
    model_grad_embed(f->model, f->grads);
}

static void test_loss(void **state)
{
    struct fixture *f = *state;
    double *params = as_doubles(f);
    double ours = forward(f), right = batch_loss(f, params);

    if (fabs(ours - right) > 1e-5)
        fail_msg("loss %.9g, in double %.9g", ours, right);
    free(params);
}

static void test_gradients(void **state)
{
    struct fixture *f = *state;
    double *params = as_doubles(f);

    forward(f);
    backward(f);
    for (uint32_t p = 0; p < MODEL_PARAMS; p++) {
        const struct model_param *mp = &f->model->params[p];
        size_t stride = mp->numel / 150 + 1; /* all of small ones, some of large ones */

        for (size_t n = 0; n < mp->numel; n += stride) {
            size_t i = mp->offset + n;
            double kept = params[i], above, below, slope;

            params[i] = kept + 1e-5;
            above = batch_loss(f, params);
            params[i] = kept - 1e-5;
            below = batch_loss(f, params);
            params[i] = kept;
            slope = (above - below) / 2e-5;
            if (fabs((double)f->grads[i] - slope) > 1e-6 + 1e-4 * fabs(slope))
                fail_msg("%s[%zu]: gradient %.9g, slope %.9g", mp->name, n, (double)f->grads[i],
                         slope);
        }
    }
    free(params);
}

static void test_cut_gradient_has_the_same_bits(void **state)
{
    struct fixture *f = *state;
    static const size_t cuts[] = {1, 5, HIDDEN - 1, HIDDEN, HIDDEN + 1, 3 * HIDDEN + 2, 1000};

    forward(f);
    backward(f);
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
        const struct model_param *mp = &f->model->params[1 + 2 * l];
        float *part = calloc(mp->numel + 1, sizeof *part);

        assert_non_null(part);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            for (size_t at = 0; at < mp->numel; at += cuts[c]) {
                size_t count = mp->numel - at < cuts[c] ? mp->numel - at : cuts[c];

                part[at + count] = 42.0f;
                model_grad_weight(f->model, l, at, count, part + at);
                assert_true(part[at + count] == 42.0f); /* nothing behind it is touched */
            }
            assert_memory_equal(part, f->grads + mp->offset, mp->numel * sizeof *part);
        }
        free(part);
    }
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static void test_gemm_is_one_chain_per_element(void **state)
{
    enum { ROWS = 11, COLS = 37, DEPTH = 600 }; /* no multiple of any block */
    static float a[ROWS * DEPTH], b[DEPTH * COLS], c[ROWS * COLS], first[COLS];
    struct math_gemm g = {ROWS, COLS, DEPTH, a, DEPTH, 1, b, COLS, first, c, COLS};

    (void)state;
    for (size_t i = 0; i < ROWS * DEPTH; i++)
        a[i] = (float)(text_mix(1, i) % 2001) / 1000.0f - 1.0f;
    for (size_t i = 0; i < DEPTH * COLS; i++)
        b[i] = (float)(text_mix(2, i) % 2001) / 1000.0f - 1.0f;
    for (size_t i = 0; i < COLS; i++)
        first[i] = (float)i;
    math_gemm(&g);
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < COLS; j++) {
            volatile float sum = first[j]; /* no compiler may reorder this one */

            for (size_t k = 0; k < DEPTH; k++) {
                volatile float product = a[i * DEPTH + k] * b[k * COLS + j];

                sum = sum + product;
            }
            if (c[i * COLS + j] != sum)
                fail_msg("c[%zu][%zu] = %.9g, not %.9g", i, j, (double)c[i * COLS + j],
                         (double)sum);
        }
    }
}

static void test_exp_and_tanh(void **state)
{
    (void)state;
    for (int i = -8700; i <= 8800; i++) {
        float x = (float)i / 100.0f, y = x, t = x;
        double right = exp((double)x);

        y = math_exp_one(y);
        math_tanh(&t, 1);
        if (fabs((double)y - right) > 1e-6 * right)
            fail_msg("exp(%g) = %.9g, not %.9g", (double)x, (double)y, right);
        if (fabs((double)t - tanh((double)x)) > 1e-6)
            fail_msg("tanh(%g) = %.9g, not %.9g", (double)x, (double)t, tanh((double)x));
    }
}

/* By hand, first step: m = 0.1 g, v = 0.001 g^2, both unbiased to g and g^2, so that the parameter
 * moves by 1e-3 against g's sign; a second step with the same g moves it as far again. */
static void test_adam(void **state)
{
    float param[3] = {1.0f, 1.0f, 1.0f}, m[3] = {0}, v[3] = {0};
    const float grads[3] = {4.0f, -0.25f, 0.0f};
    struct math_adam adam = {param, m, v, grads, 3};

    (void)state;
    math_adam(&adam, 1);
    assert_float_equal(param[0], 0.999f, 1e-6f);
    assert_float_equal(param[1], 1.001f, 1e-6f);
    assert_true(param[2] == 1.0f);
    assert_float_equal(m[0], 0.4f, 1e-6f);
    assert_float_equal(v[0], 0.016f, 1e-6f);
    math_adam(&adam, 2);
    assert_float_equal(param[0], 0.998f, 2e-6f);
    assert_float_equal(param[1], 1.002f, 2e-6f);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_text(void **state)
{
    struct text text;
    char path[32], error[256];
    const struct text_draw other = {.seed = 3, .step = 2, .micro = 0, .rank = 2};
    uint32_t differ = 0;

    (void)state;
    write_text("banana banana banana!", path);
    assert_int_equal(text_load(path, MODEL_CONTEXT, &text, error, sizeof error), 0);
    /* ' ' '!' 'a' 'b' 'n' in byte order. */
    assert_int_equal(text.vocab, 5);
    assert_int_equal(text.size, 21);
    assert_memory_equal(text.symbols, ((uint8_t[]){3, 2, 4, 2, 4, 2, 0}), 7);
    for (uint32_t s = 0; s < 100; s++) {
        size_t at = text_sample(&text, &draw, s, MODEL_CONTEXT);

        assert_in_range(at, 0, 4); /* 16 characters and the next one must fit in 21 */
        differ += at != text_sample(&text, &other, s, MODEL_CONTEXT);
    }
    assert_true(differ > 50);
    text_clear(&text);
    unlink(path);
}

static void test_bad_text(void **state)
{
    struct text text;
    char path[32], error[256];

    (void)state;
    assert_int_equal(text_load("/nonexistent/text", 16, &text, error, sizeof error), EX_NOINPUT);
    assert_non_null(strstr(error, "/nonexistent/text: No such file"));
    assert_int_equal(text_load("/tmp", 16, &text, error, sizeof error), EX_NOINPUT);
    assert_non_null(strstr(error, "Is a directory"));
    assert_int_equal(text_load("/dev/null", 16, &text, error, sizeof error), EX_NOINPUT);
    assert_non_null(strstr(error, "empty"));
    write_text("sixteen letters.", path);
    assert_int_equal(text_load(path, 16, &text, error, sizeof error), EX_DATAERR);
    assert_non_null(strstr(error, "shorter than one sample"));
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_loss, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gradients, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_gradient_has_the_same_bits, setup, teardown),
        cmocka_unit_test(test_gemm_is_one_chain_per_element),
        cmocka_unit_test(test_exp_and_tanh),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_bad_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
