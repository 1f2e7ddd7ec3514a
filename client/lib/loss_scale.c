/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss scale of fp16 training: gw_loss_scale_*. Arithmetic on the caller's struct alone; any
 * thread; touches no job.
 *
 * The rules are those of DeepSpeed's DynamicLossScaler (deepspeed/runtime/fp16/loss_scaler.py):
 * an overflow backs off once hysteresis is down to 1; with s = steps since the last overflow - 1,
 * a good step grows the scale where s > 0 and s is a multiple of the window. We count good steps
 * instead of iterations, so s is good_steps - 1. Growth ends at the largest fp32: a model whose
 * gradients are all zero would else reach infinity.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "client/lib/err.h"
#include "client/lib/options.h"
#include "daemon/base/text.h"
#include "gradwire/gradwire.h"

/* ---- options --------------------------------------------------------------------------------- */

static void fill_in(struct gw_loss_scale_options *o)
{
    o->initial_scale = o->initial_scale != 0 ? o->initial_scale : 65536;
    o->growth = o->growth != 0 ? o->growth : 2;
    o->backoff = o->backoff != 0 ? o->backoff : 0.5;
    o->min_scale = o->min_scale != 0 ? o->min_scale : 1;
    o->window = o->window ? o->window : 1000;
    o->hysteresis = o->hysteresis ? o->hysteresis : 2;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static bool is_scale(double scale)
{
    return scale > 0 && scale <= (double)FLT_MAX;
}

static int check(const struct gw_loss_scale_options *o)
{
    if (o->static_scale != 0 && !is_scale(o->static_scale))
        return err_set(GW_E_INVALID, "static_scale is %g; a loss scale is above 0 and finite",
                       o->static_scale);
    if (!is_scale(o->initial_scale) || !is_scale(o->min_scale))
        return err_set(GW_E_INVALID,
                       "initial_scale is %g and min_scale %g; a loss scale is above 0 and finite",
                       o->initial_scale, o->min_scale);
    if (o->min_scale > o->initial_scale)
        return err_set(GW_E_INVALID, "min_scale %g is above initial_scale %g", o->min_scale,
                       o->initial_scale);
    if (!(o->growth > 1) || !isfinite(o->growth))
        return err_set(GW_E_INVALID, "growth is %g; it must be above 1", o->growth);
    if (!(o->backoff > 0) || !(o->backoff < 1))
        return err_set(GW_E_INVALID, "backoff is %g; it must be between 0 and 1", o->backoff);
    if (!(o->clip_norm >= 0))
        return err_set(GW_E_INVALID, "clip_norm is %g; it must not be negative", o->clip_norm);
    return 0;
}

int gw_loss_scale_init(struct gw_loss_scale *ret_scale, const struct gw_loss_scale_options *options)
{
    struct gw_loss_scale_options o;
    int r = options_take(&o, sizeof(o), options, sizeof(o.struct_size), "gw_loss_scale_options");

    if (r == 0 && !ret_scale)
        r = err_set(GW_E_INVALID, "the place for the loss scale is NULL");
    if (r < 0)
        return r;
    fill_in(&o);
    r = check(&o);
    if (r < 0)
        return r;
    o.struct_size = sizeof(o);
    memset(ret_scale, 0, sizeof(*ret_scale));
    ret_scale->options = o;
    ret_scale->scale = o.static_scale != 0 ? o.static_scale : o.initial_scale;
    ret_scale->hysteresis_left = o.hysteresis;
    ret_scale->searching = o.static_scale != 0 ? 0 : 1;
    return 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static const char *const reasons[] = {
    [GW_LOSS_SCALE_GOOD] = "",
    [GW_LOSS_SCALE_SEARCH] = ": the loss scaler's normal search for a start, from above",
    [GW_LOSS_SCALE_PROBE] = ": normal, the grown scale was tried and is too large",
    [GW_LOSS_SCALE_OVERFLOW] = "",
};

static enum gw_loss_scale_cause cause_of(const struct gw_loss_scale *s)
{
    if (s->searching)
        return GW_LOSS_SCALE_SEARCH;
    return s->probing ? GW_LOSS_SCALE_PROBE : GW_LOSS_SCALE_OVERFLOW;
}

static int overflow(struct gw_loss_scale *s, const struct gw_verdict *verdict,
                    struct gw_loss_scale_step *step)
{
    struct text text = TEXT(step->text);
    const struct gw_loss_scale_options *o = &s->options;
    bool dynamic = o->static_scale == 0, back = dynamic && s->hysteresis_left <= 1;
    double next = larger(s->scale * o->backoff, o->min_scale);

    if (back && s->scale <= o->min_scale && !o->stay_at_min)
        return err_set(GW_E_LIMIT,
                       "step %llu: gradients overflow at the smallest loss scale, %g (first in "
                       "bucket %u): look at the model, the data and the learning rate; a smaller "
                       "min_scale or stay_at_min only puts it off",
                       (unsigned long long)verdict->step, s->scale, verdict->first_bucket);
    step->skip = 1;
    step->cause = cause_of(s);
    text_add(&text, "step %llu skipped: gradients overflowed at loss scale %g, first in bucket %u",
             (unsigned long long)verdict->step, s->scale, verdict->first_bucket);
    if (!dynamic)
        text_add(&text, "; the scale is static");
    else if (back)
        text_add(&text, "; next scale %g", next);
    else
        text_add(&text, "; scale kept, hysteresis %u left", s->hysteresis_left - 1);
    if (step->cause == GW_LOSS_SCALE_OVERFLOW)
        text_add(&text, ", after %llu good steps", (unsigned long long)s->good_steps);
    text_add(&text, "%s", reasons[step->cause]);
    s->good_steps = 0;
    if (back) {
        s->scale = next;
        s->probing = 0;
    } else if (dynamic) {
        s->hysteresis_left--;
    }
    return 0;
}

static double clip_factor(const struct gw_loss_scale *s, double norm)
{
    double limit = s->options.clip_norm;

    return limit > 0 ? smaller(1, limit / (norm / s->scale + 1e-6)) : 1;
}

static void good(struct gw_loss_scale *s, const struct gw_verdict *verdict,
                 struct gw_loss_scale_step *step)
{
    struct text text = TEXT(step->text);
    const struct gw_loss_scale_options *o = &s->options;
    uint64_t stable = s->good_steps++;

    step->grad_factor = clip_factor(s, verdict->norm) / s->scale;
    if (o->consecutive_hysteresis)
        s->hysteresis_left = o->hysteresis;
    if (o->static_scale != 0 || stable == 0 || stable % o->window != 0)
        return;
    s->hysteresis_left = o->hysteresis;
    s->searching = 0;
    s->probing = 1;
    s->scale = smaller(s->scale * o->growth, (double)FLT_MAX);
    text_add(&text, "step %llu: loss scale grows from %g to %g after %llu good steps",
             (unsigned long long)verdict->step, step->scale, s->scale,
             (unsigned long long)s->good_steps);
}

/* A scaler may come from a file. */
static int check_state(const struct gw_loss_scale *s)
{
    if (s->options.struct_size != sizeof(s->options) || !is_scale(s->scale) ||
        s->options.window == 0)
        return err_set(GW_E_INVALID, "the loss scale (%g) was not set up by gw_loss_scale_init",
                       s->scale);
    return check(&s->options);
}

int gw_loss_scale_update(struct gw_loss_scale *scale, const struct gw_verdict *verdict,
                         struct gw_loss_scale_step *ret_step)
{
    struct gw_loss_scale_step step;
    int r;

    if (!scale || !verdict || !ret_step)
        return err_set(GW_E_INVALID, "the loss scale, the verdict or the result is NULL");
    r = check_state(scale);
    if (r < 0)
        return r;
    memset(&step, 0, sizeof(step));
    step.scale = scale->scale;
    if (verdict->nonfinite)
        r = overflow(scale, verdict, &step);
    else
        good(scale, verdict, &step);
    if (r == 0)
        *ret_step = step;
    return r;
}
