/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale: sequences worked out by hand from DeepSpeed's DynamicLossScaler, whose rule for
 * growth is (iteration - last overflow) - 1 > 0 and a multiple of the window, the last overflow
 * being -1 at first. ctest: link=gw_client */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradwire/gradwire.h"

static struct gw_loss_scale scale;
static struct gw_loss_scale_step step;
static uint64_t steps;

static void start(struct gw_loss_scale_options options)
{
    options.struct_size = sizeof(options);
    steps = 0;
    assert_int_equal(gw_loss_scale_init(&scale, &options), 0);
}

static int run(char what, double norm)
{
    struct gw_verdict verdict = {
        .step = ++steps, .norm = norm, .nonfinite = what == 'x', .first_bucket = 7};

    return gw_loss_scale_update(&scale, &verdict, &step);
}

/* 'x' overflows, '.' does not; the scale after each step, as powers of 2. */
static void expect(const char *what, const int *powers)
{
    for (size_t i = 0; what[i]; i++) {
        assert_int_equal(run(what[i], 1), 0);
        assert_int_equal(step.skip, what[i] == 'x');
        if (scale.scale != ldexp(1, powers[i]))
            fail_msg("step %zu of %s: scale is 2^%g, not 2^%d", i, what, log2(scale.scale),
                     powers[i]);
    }
}

static void test_defaults_are_deepspeeds(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){0});
    assert_true(scale.scale == 65536 && scale.options.min_scale == 1);
    assert_int_equal(scale.options.window, 1000);
    assert_int_equal(scale.options.hysteresis, 2);
    /* 1000 good steps are not enough, 1001 are; then every 1000. */
    for (int i = 0; i < 1000; i++)
        expect(".", (int[]){16});
    expect(".", (int[]){17});
    for (int i = 0; i < 999; i++)
        expect(".", (int[]){17});
    expect(".", (int[]){18});
}

static void test_hysteresis_is_used_up_once(void **state)
{
    (void)state;
    /* 2: the first overflow costs hysteresis alone, all later ones the scale, until growth. */
    start((struct gw_loss_scale_options){.window = 3, .hysteresis = 2});
    expect("xxx.x", (int[]){16, 15, 14, 14, 13});
    /* iterations 5, 6, 7, 8 with the last overflow at 4: s = 0, 1, 2, 3 -> grows at 8 */
    expect("....", (int[]){13, 13, 13, 14});
    expect("xx", (int[]){14, 13}); /* refilled by growth */
}

static void test_hysteresis_1_backs_off_at_once(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){.window = 2, .hysteresis = 1});
    expect("xx...x...", (int[]){15, 14, 14, 14, 15, 14, 14, 14, 15});
}

static void test_consecutive_hysteresis_is_refilled_by_good_steps(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){
        .window = 100, .hysteresis = 2, .consecutive_hysteresis = 1});
    expect("x.x.xx", (int[]){16, 16, 16, 16, 16, 15});
    /* without: used up by the first */
    start((struct gw_loss_scale_options){.window = 100, .hysteresis = 2});
    expect("x.x.xx", (int[]){16, 16, 15, 15, 14, 13});
}

static void test_window_of_one(void **state)
{
    (void)state;
    /* s = 0 never grows */
    start((struct gw_loss_scale_options){.window = 1, .hysteresis = 1});
    expect("...x..", (int[]){16, 17, 18, 17, 17, 18});
}

static void test_other_factors_and_the_minimum(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){.initial_scale = 100,
                                         .min_scale = 20,
                                         .backoff = 0.25,
                                         .growth = 3,
                                         .window = 1,
                                         .hysteresis = 1});
    assert_int_equal(run('x', 0), 0);
    assert_true(scale.scale == 25);
    assert_int_equal(run('x', 0), 0);
    assert_true(scale.scale == 20); /* not 6.25 */
    assert_int_equal(run('x', 0), GW_E_LIMIT);
    assert_non_null(strstr(gw_last_error(), "step 3"));
    assert_non_null(strstr(gw_last_error(), "bucket 7"));
    assert_true(scale.scale == 20);
    run('.', 1);
    run('.', 1);
    assert_true(scale.scale == 60);

    start((struct gw_loss_scale_options){
        .initial_scale = 1, .hysteresis = 1, .stay_at_min = 1});
    expect("xxx", (int[]){0, 0, 0});
}

static void test_growth_ends_below_infinity(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){.initial_scale = ldexp(1, 126), .window = 1});
    expect("..", (int[]){126, 127});
    run('.', 0);
    assert_true(isfinite((float)scale.scale));
    run('.', 0);
    assert_true(isfinite((float)scale.scale));
}

static void test_static_scale_never_changes(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){.static_scale = 128, .window = 1});
    expect("x..xx.", (int[]){7, 7, 7, 7, 7, 7});
    run('x', 0);
    assert_int_equal(step.cause, GW_LOSS_SCALE_OVERFLOW);
    assert_non_null(strstr(step.text, "static"));
}

static void test_factor_for_the_gradient(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){.initial_scale = 8});
    run('.', 12);
    assert_true(step.grad_factor == 1.0 / 8 && step.scale == 8);
    start((struct gw_loss_scale_options){.initial_scale = 8, .clip_norm = 1});
    run('.', 4); /* norm 0.5 without the scale */
    assert_true(step.grad_factor == 1.0 / 8);
    run('.', 32); /* norm 4 */
    assert_true(fabs(step.grad_factor - 1 / (4 + 1e-6) / 8) < 1e-15);
    run('x', 0);
    assert_true(step.grad_factor == 0);
    /* The step that grows was scaled with the old one. */
    start((struct gw_loss_scale_options){.initial_scale = 8, .window = 1});
    run('.', 1);
    run('.', 1);
    assert_true(scale.scale == 16 && step.scale == 8 && step.grad_factor == 1.0 / 8);
}

/* G02: the first overflows are the search for a start; what comes after is told otherwise. */
static void test_lines_for_the_log(void **state)
{
    (void)state;
    start((struct gw_loss_scale_options){.window = 2, .hysteresis = 1});
    run('x', 0);
    assert_int_equal(step.cause, GW_LOSS_SCALE_SEARCH);
    assert_string_equal(step.text,
                        "step 1 skipped: gradients overflowed at loss scale 65536, first in bucket "
                        "7; next scale 32768: the loss scaler's normal search for a start, from "
                        "above");
    run('.', 1);
    assert_string_equal(step.text, "");
    run('x', 0); /* one good step is no window */
    assert_int_equal(step.cause, GW_LOSS_SCALE_SEARCH);
    run('.', 1);
    run('.', 1);
    run('.', 1);
    assert_int_equal(step.cause, GW_LOSS_SCALE_GOOD);
    assert_string_equal(step.text,
                        "step 6: loss scale grows from 16384 to 32768 after 3 good steps");
    run('.', 1);
    run('x', 0);
    assert_int_equal(step.cause, GW_LOSS_SCALE_PROBE);
    assert_non_null(strstr(step.text, "step 8 skipped"));
    assert_non_null(strstr(step.text, "bucket 7"));
    assert_null(strstr(step.text, "search"));
    run('.', 1);
    run('x', 0);
    assert_int_equal(step.cause, GW_LOSS_SCALE_OVERFLOW);
    assert_string_equal(step.text,
                        "step 10 skipped: gradients overflowed at loss scale 16384, first in "
                        "bucket 7; next scale 8192, after 1 good steps");

    start((struct gw_loss_scale_options){0});
    run('x', 0);
    assert_non_null(strstr(step.text, "scale kept, hysteresis 1 left"));
    assert_non_null(strstr(step.text, "normal search"));
}

static void refused(struct gw_loss_scale_options options, const char *word)
{
    struct gw_loss_scale untouched = {.scale = 3};

    options.struct_size = sizeof(options);
    assert_int_equal(gw_loss_scale_init(&untouched, &options), GW_E_INVALID);
    assert_non_null(strstr(gw_last_error(), word));
    assert_true(untouched.scale == 3);
}

static void test_bad_options_are_named(void **state)
{
    struct gw_verdict verdict = {0};
    struct gw_loss_scale none = {0};

    (void)state;
    refused((struct gw_loss_scale_options){.static_scale = -1}, "static_scale");
    refused((struct gw_loss_scale_options){.static_scale = NAN}, "static_scale");
    refused((struct gw_loss_scale_options){.initial_scale = INFINITY}, "initial_scale");
    refused((struct gw_loss_scale_options){.min_scale = -2}, "min_scale");
    refused((struct gw_loss_scale_options){.min_scale = 70000}, "above initial_scale");
    refused((struct gw_loss_scale_options){.growth = 1}, "growth");
    refused((struct gw_loss_scale_options){.growth = NAN}, "growth");
    refused((struct gw_loss_scale_options){.backoff = 1}, "backoff");
    refused((struct gw_loss_scale_options){.clip_norm = -1}, "clip_norm");
    assert_int_equal(gw_loss_scale_init(&none, NULL), GW_E_INVALID);
    assert_int_equal(gw_loss_scale_update(&none, &verdict, &step), GW_E_INVALID);
    assert_non_null(strstr(gw_last_error(), "gw_loss_scale_init"));
    assert_int_equal(gw_loss_scale_update(NULL, &verdict, &step), GW_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_deepspeeds),
        cmocka_unit_test(test_hysteresis_is_used_up_once),
        cmocka_unit_test(test_hysteresis_1_backs_off_at_once),
        cmocka_unit_test(test_consecutive_hysteresis_is_refilled_by_good_steps),
        cmocka_unit_test(test_window_of_one),
        cmocka_unit_test(test_other_factors_and_the_minimum),
        cmocka_unit_test(test_growth_ends_below_infinity),
        cmocka_unit_test(test_static_scale_never_changes),
        cmocka_unit_test(test_factor_for_the_gradient),
        cmocka_unit_test(test_lines_for_the_log),
        cmocka_unit_test(test_bad_options_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
