/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charlm as one rank of a gradwire job: the same calls in the same order for all stages. Parameters
 * are read where the service keeps them, gradients are computed straight into its buffers, and each
 * is handed over as soon as it is there, so that its reduction runs beside the rest of backward.
 * One thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/charlm.h"
#include "client/examples/charlm_device.h"
#include "client/examples/charlm_math.h"

/* A step that never ends is ended by the job's own deadlines. */
#define WAIT GW_FOREVER

struct span {
    uint64_t from_ns, to_ns;
};

struct rank_run {
    const struct charlm_options *options;
    const struct text *text;
    struct model *model;
    struct charlm_result *result;
    gw_job *job;
    uint32_t units[MODEL_UNITS]; /* as the job numbers them */
    float *m, *v;                /* Adam's moments of the shard */
    float *scratch;              /* one parameter, where the arithmetic works */
    float *wide[2];              /* with --dtype bf16: fetched parameters of a layer as fp32 */
    uint16_t *halves;            /* ... and one gradient as bf16 */
    float *host;                 /* one parameter */
    double *loss;                /* steps x micro-steps, where the arithmetic works */
    double *norm;                /* steps, likewise */
    struct span *steps;          /* steps */
    struct span *backwards;      /* steps x micro-steps */
    struct gw_token before;      /* of the last step's end */
    struct gw_device *device;    /* NULL: the host */
};

/* ---- errors ---------------------------------------------------------------------------------- */

static int exit_code(int error)
{
    switch (error) {
    case GW_E_INVALID: /* of what the command line gave */
        return EX_USAGE;
    case GW_E_NO_DAEMON:
    case GW_E_NO_DEVICE:
    case GW_E_DRAINING:
        return EX_UNAVAILABLE;
    case GW_E_NOMEM:
    case GW_E_LIMIT:
        return EX_OSERR;
    case GW_E_IO:
        return EX_IOERR;
    case GW_E_TIMEOUT:
    case GW_E_AGAIN:
    case GW_E_PEER_LOST:
    case GW_E_ENGINE_LOST:
        return EX_TEMPFAIL;
    case GW_E_PROTOCOL:
    case GW_E_VERSION:
    case GW_E_MISMATCH:
    case GW_E_DUPLICATE:
        return EX_PROTOCOL;
    case GW_E_DENIED:
        return EX_NOPERM;
    default:
        return EX_SOFTWARE;
    }
}

/* 0, or an exit code after the one message that a failed call gets. */
static int check(const struct rank_run *run, const char *what, int r)
{
    if (r >= 0)
        return 0;
    fprintf(stderr, "charlm rank %u: %s: %s\n", run->options->rank, what, gw_last_error());
    return exit_code(r);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static int open_job(struct rank_run *run)
{
    const struct charlm_options *o = run->options;
    struct gw_job_options options = {
        .struct_size = sizeof options,
        .socket_path = o->socket,
        .rank = o->rank,
        .world = o->world,
        .join_timeout_ns = o->timeout_ns,
        .op_timeout_ns = o->timeout_ns,
        .linger_ns = -1, /* nobody comes back to this job */
        .link_bytes_per_s = o->link_bytes_per_s,
        .name = "charlm",
        .device = run->device,
        .nodes = o->nodes,
    };
    struct gw_job_id id;
    int r;

    if (o->rank == 0) {
        r = check(run, "create job", gw_job_create(&options, &run->job));
        if (r == 0)
            r = check(run, "job id", gw_job_get_id(run->job, &id));
        return r != 0 ? r : check(run, "save job id", gw_job_id_save(&id, o->id_file));
    }
    r = check(run, "load job id", gw_job_id_load(o->id_file, o->timeout_ns, &id));
    return r != 0 ? r : check(run, "join job", gw_job_join(&options, &id, &run->job));
}

/* Longer than the job's own deadlines: the engine, which knows who is missing, speaks first. */
static int64_t patience_ns(const struct charlm_options *options)
{
    return options->timeout_ns + 5000000000ll;
}

static int seal(struct rank_run *run)
{
    const struct charlm_options *o = run->options;
    struct gw_zero_options options = {
        .struct_size = sizeof options,
        .stage = o->stage,
        .accumulate = o->accumulate,
        .gather = o->gather,
        .overlap_off = o->overlap_off,
        .micro_steps = o->micro_steps,
        .bucket_bytes = o->bucket_bytes,
        .scale = 1.0 / (double)(o->world * o->micro_steps),
    };
    uint32_t param;
    int r = 0;

    for (uint32_t p = 0; r == 0 && p < MODEL_PARAMS; p++) {
        const struct model_param *mp = &run->model->params[p];
        uint32_t dtype = o->bf16 ? GW_DTYPE_BF16 : GW_DTYPE_FP32;
        struct gw_param_options po = {.struct_size = sizeof po,
                                      .unit = mp->unit_name,
                                      .dtype = dtype,
                                      .grad_dtype = dtype};

        r = check(run, mp->name, gw_param_add(run->job, mp->name, mp->numel, &po, &param));
    }
    if (r == 0)
        r = check(run, "seal", gw_seal(run->job, &options, patience_ns(o)));
    if (r == 0)
        r = check(run, "layout", gw_layout(run->job, &run->result->layout));
    for (uint32_t p = 0; r == 0 && p < MODEL_PARAMS; p++)
        r = check(run, "unit", gw_param_unit(run->job, p, &run->units[run->model->params[p].unit]));
    return r;
}

/* What is computed from here on comes after what the token stands for. */
static int wait_token(const struct rank_run *run, const char *what, struct gw_token token)
{
    return check(run, what, charlm_device_wait(run->job, token));
}

static int barrier(const struct rank_run *run)
{
    struct gw_token token;
    int r;

    r = check(run, "barrier", gw_barrier(run->job, NULL, &token));
    return r != 0 ? r : check(run, "barrier", gw_wait(run->job, token, WAIT));
}

/* Parameter p is written by rank p mod world, wherever it lies. */
static int write_initial(struct rank_run *run)
{
    const struct charlm_options *o = run->options;
    int r = 0;

    for (uint32_t p = 0; r == 0 && p < MODEL_PARAMS; p++) {
        const struct model_param *mp = &run->model->params[p];

        if (p % o->world != o->rank)
            continue;
        model_init_param(run->model, p, o->seed, run->host);
        r = check(run, "write initial values",
                  gw_param_write_sync(run->job, p, 0, mp->numel, run->host, patience_ns(o)));
    }
    return r != 0 ? r : barrier(run);
}

static int make_room(struct rank_run *run)
{
    const struct charlm_options *o = run->options;
    size_t largest = 0;

    for (uint32_t p = 0; p < MODEL_PARAMS; p++)
        largest = run->model->params[p].numel > largest ? run->model->params[p].numel : largest;
    run->scratch = math_alloc(largest * sizeof(float));
    if (o->bf16) {
        run->wide[0] = math_alloc(largest * sizeof(float));
        run->wide[1] = math_alloc(largest * sizeof(float));
        run->halves = math_alloc(largest * sizeof *run->halves);
    }
    run->host = malloc(largest * sizeof(float));
    run->loss = math_alloc((size_t)o->steps * o->micro_steps * sizeof *run->loss);
    run->norm = math_alloc(o->steps * sizeof *run->norm);
    run->steps = calloc(o->steps, sizeof *run->steps);
    run->backwards = calloc((size_t)o->steps * o->micro_steps, sizeof *run->backwards);
    if (run->scratch != NULL && run->host != NULL && run->loss != NULL && run->norm != NULL &&
        run->steps != NULL && run->backwards != NULL &&
        (!o->bf16 || (run->wide[0] != NULL && run->wide[1] != NULL && run->halves != NULL)))
        return 0;
    fprintf(stderr, "charlm rank %u: no memory for %zu values\n", o->rank, largest);
    return EX_OSERR;
}

static int set_up(struct rank_run *run)
{
    uint64_t numel;
    void *m = NULL, *v = NULL;
    int r;

    r = make_room(run);
    if (r == 0)
        r = check(run, "device", charlm_device_new(&run->device));
    if (r == 0)
        r = open_job(run);
    if (r == 0)
        r = check(run, "device", charlm_device_attach(run->job));
    if (r == 0)
        r = seal(run);
    if (r == 0)
        r = check(run, "device", charlm_device_sealed(run->job));
    if (r == 0)
        r = write_initial(run);
    if (r == 0)
        r = check(run, "shard array adam_m",
                  gw_shard_array(run->job, "adam_m", GW_DTYPE_FP32, &m, &numel));
    if (r == 0)
        r = check(run, "shard array adam_v",
                  gw_shard_array(run->job, "adam_v", GW_DTYPE_FP32, &v, &numel));
    run->m = m;
    run->v = v;
    if (r == 0 && run->options->measure)
        r = check(run, "measure", gw_measure_sync(run->job, patience_ns(run->options)));
    return r;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static int fetch(const struct rank_run *run, uint32_t unit, struct gw_token *ret_token)
{
    return check(run, "fetch", gw_fetch(run->job, run->units[unit], ret_token));
}

static int release(const struct rank_run *run, uint32_t unit)
{
    return check(run, "release", gw_release(run->job, run->units[unit]));
}

/* place: which of a layer's two parameters. */
static int values(const struct rank_run *run, uint32_t param, uint32_t place,
                  const float **ret_values)
{
    const void *at = NULL;
    int r = check(run, "parameter", gw_param_ptr(run->job, param, &at));

    *ret_values = at;
    if (r == 0 && run->options->bf16) {
        math_from_bf16(run->wide[place], at, run->model->params[param].numel);
        *ret_values = run->wide[place];
    }
    return r;
}

static int forward_unit(struct rank_run *run, uint32_t unit)
{
    const float *first = NULL, *second = NULL;
    struct gw_token token;
    int r;

    r = fetch(run, unit, &token);
    if (r == 0)
        r = wait_token(run, "wait for parameters", token);
    if (unit == 0) {
        if (r == 0)
            r = values(run, 0, 0, &first);
        if (r == 0)
            model_embed(run->model, first);
    } else {
        if (r == 0)
            r = values(run, 2 * unit - 1, 0, &first);
        if (r == 0)
            r = values(run, 2 * unit, 1, &second);
        if (r == 0)
            model_forward(run->model, unit - 1, first, second);
    }
    return r != 0 ? r : release(run, unit);
}

/* Pieces are ready one by one; the last lies in the last bucket, whose turn comes first. */
static int weight_gradient(struct rank_run *run, uint32_t layer, uint32_t flags)
{
    uint32_t param = 1 + 2 * layer, pieces;
    struct gw_piece_info info;
    uint64_t count;
    void *to;
    int r;

    r = check(run, "pieces", gw_param_pieces(run->job, param, &pieces));
    for (uint32_t i = pieces; r == 0 && i-- > 0;) {
        r = check(run, "piece", gw_param_piece(run->job, param, i, &info));
        if (r == 0)
            r = check(run, "acquire gradient",
                      gw_grad_acquire_sync(run->job, param, i, WAIT, &to, &count));
        if (r != 0)
            break;
        model_grad_weight(run->model, layer, info.param_offset, info.numel,
                          run->options->bf16 ? run->scratch : to);
        if (run->options->bf16)
            math_to_bf16(to, run->scratch, info.numel);
        r = check(run, "gradient ready", gw_grad_ready(run->job, param, i, flags, NULL, 0));
    }
    return r;
}

/* Small gradients are computed on the side and copied in. */
static int put(struct rank_run *run, uint32_t param, uint32_t flags)
{
    const void *from = run->scratch;

    if (run->options->bf16) {
        math_to_bf16(run->halves, run->scratch, run->model->params[param].numel);
        from = run->halves;
    }
    return check(run, "put gradient", gw_grad_put_sync(run->job, param, from, flags, WAIT));
}

/* Gradients need no parameters: they are computed while the unit is being fetched. */
static int backward_unit(struct rank_run *run, uint32_t unit, uint32_t flags)
{
    const float *weight = NULL;
    struct gw_token token;
    int r;

    r = fetch(run, unit, &token);
    if (r != 0)
        return r;
    if (unit == 0) {
        model_grad_embed(run->model, run->scratch);
        r = put(run, 0, flags);
    } else {
        model_grad_bias(run->model, unit - 1, run->scratch);
        r = put(run, 2 * unit, flags);
        if (r == 0)
            r = weight_gradient(run, unit - 1, flags);
    }
    if (r == 0)
        r = wait_token(run, "wait for parameters", token);
    if (r == 0 && unit > 0) {
        r = values(run, 2 * unit - 1, 0, &weight);
        if (r == 0)
            model_backward(run->model, unit - 1, weight);
    }
    return r != 0 ? r : release(run, unit);
}

static int micro_step(struct rank_run *run, uint32_t step, uint32_t micro)
{
    const struct charlm_options *o = run->options;
    struct text_draw draw = {o->seed, step, micro, o->rank};
    size_t at = (size_t)(step - 1) * o->micro_steps + micro;
    bool last = micro + 1 == o->micro_steps;
    int r = 0;

    model_load(run->model, run->text, &draw, 0, o->batch);
    for (uint32_t unit = 0; r == 0 && unit < MODEL_UNITS; unit++)
        r = forward_unit(run, unit);
    if (r != 0)
        return r;
    model_loss(run->model, run->loss + at);
    charlm_device_stamp(&run->backwards[at].from_ns);
    for (uint32_t unit = MODEL_UNITS; r == 0 && unit-- > 0;)
        r = backward_unit(run, unit, last ? GW_GRAD_FINAL : GW_GRAD_ACCUMULATE);
    charlm_device_stamp(&run->backwards[at].to_ns);
    if (r == 0 && !last)
        r = check(run, "end micro-step", gw_micro_step_end(run->job));
    return r;
}

static int update(struct rank_run *run, uint32_t step)
{
    const struct gw_span *spans;
    struct gw_token token;
    uint32_t count;
    int r;

    r = check(run, "begin update", gw_update_begin(run->job, &token));
    if (r == 0)
        r = wait_token(run, "begin update", token);
    if (r == 0)
        r = check(run, "shard", gw_shard_spans(run->job, &spans, &count));
    if (r != 0)
        return r;
    for (uint32_t i = 0; i < count; i++) {
        const struct gw_span *s = &spans[i];
        struct math_adam adam = {s->params, run->m + s->shard_offset, run->v + s->shard_offset,
                                 s->grads, s->valid_numel};

        math_adam(&adam, step);
    }
    return check(run, "commit update", gw_update_commit(run->job));
}

/* With streams nothing here waits but for the end of the step before, when all of this one is
 * enqueued: so what is enqueued has an end. */
static int train_step(struct rank_run *run, uint32_t step)
{
    const struct charlm_options *o = run->options;
    struct gw_token token = {0};
    int r = 0;

    charlm_device_stamp(&run->steps[step - 1].from_ns);
    for (uint32_t micro = 0; r == 0 && micro < o->micro_steps; micro++)
        r = micro_step(run, step, micro);
    if (r == 0)
        r = check(run, "end step", gw_step_end(run->job, &token));
    if (r == 0)
        r = wait_token(run, "wait for step", token);
    if (r == 0)
        r = check(run, "norm", charlm_device_norm(run->job, &run->norm[step - 1]));
    if (r == 0)
        r = update(run, step);
    if (r == 0 && step > 1)
        r = check(run, "verdict", gw_wait(run->job, run->before, WAIT));
    run->before = token;
    charlm_device_stamp(&run->steps[step - 1].to_ns);
    return r;
}

/* ---- the end --------------------------------------------------------------------------------- */

static int write_param(struct rank_run *run, uint32_t param, FILE *file)
{
    const float *from = NULL;
    int r = values(run, param, 0, &from);

    if (r != 0)
        return r;
    math_get(run->host, from, run->model->params[param].numel * sizeof *from);
    fwrite(run->host, sizeof *from, run->model->params[param].numel, file);
    return 0;
}

/* This rank's own view of all parameters, unit by unit; file NULL: only waits until they are
 * there. */
static int fetch_all(struct rank_run *run, FILE *file)
{
    struct gw_token token;
    int r = 0;

    for (uint32_t unit = 0; r == 0 && unit < MODEL_UNITS; unit++) {
        r = fetch(run, unit, &token);
        if (r == 0)
            r = wait_token(run, "wait for parameters", token);
        for (uint32_t p = 0; r == 0 && file != NULL && p < MODEL_PARAMS; p++) {
            if (run->model->params[p].unit == unit)
                r = write_param(run, p, file);
        }
        if (r == 0)
            r = release(run, unit);
    }
    return r;
}

static int dump(struct rank_run *run)
{
    const char *path = run->options->dump;
    FILE *file;
    bool bad = true;
    int r = 0;

    if (path == NULL)
        return 0;
    file = fopen(path, "we");
    if (file != NULL) {
        r = fetch_all(run, file);
        bad = ferror(file) != 0;
        bad = fclose(file) != 0 || bad;
    }
    if (r != 0 || !bad)
        return r;
    fprintf(stderr, "charlm rank %u: cannot write parameters to %s: %s\n", run->options->rank, path,
            strerror(errno));
    return EX_CANTCREAT;
}

/* Means over micro-steps, added up in their order. */
static int take_losses(struct rank_run *run)
{
    const struct charlm_options *o = run->options;
    size_t count = (size_t)o->steps * o->micro_steps;
    double *loss = malloc(count * sizeof *loss);

    if (loss == NULL) {
        fprintf(stderr, "charlm rank %u: no memory for %u losses\n", o->rank, o->steps);
        return EX_OSERR;
    }
    math_get(loss, run->loss, count * sizeof *loss);
    for (size_t i = 0; i < count; i++)
        run->result->loss[i / o->micro_steps] += loss[i];
    for (uint32_t step = 0; step < o->steps; step++)
        run->result->loss[step] /= (double)o->micro_steps;
    free(loss);
    return 0;
}

static void take_times(struct rank_run *run)
{
    const struct charlm_options *o = run->options;

    charlm_device_settle();
    math_get(run->result->norm, run->norm, o->steps * sizeof *run->norm);
    for (uint32_t step = 0; step < o->steps; step++) {
        run->result->step_ns[step] = run->steps[step].to_ns - run->steps[step].from_ns;
        for (uint32_t micro = 0; micro < o->micro_steps; micro++) {
            const struct span *backward = &run->backwards[(size_t)step * o->micro_steps + micro];

            run->result->backward_ns[step] += backward->to_ns - backward->from_ns;
        }
    }
}

/* What a rank is sent by another node is counted there: no rank asks before all have what the steps
 * gather, and none goes on before all have asked. */
static int take_stats(struct rank_run *run)
{
    bool spans = run->options->nodes > 1;
    int r = spans ? barrier(run) : 0;

    run->result->stats.struct_size = sizeof run->result->stats;
    if (r == 0)
        r = check(run, "figures",
                  gw_stats_sync(run->job, run->options->timeout_ns, &run->result->stats));
    return r == 0 && spans ? barrier(run) : r;
}

static int finish(struct rank_run *run)
{
    int r = 0;

    /* Stages 1 and 2 gather after the last rank's commit: the last step's belong to the figures. In
     * stage 3 this would gather once more than the steps did. */
    if (run->options->stage < 3)
        r = fetch_all(run, NULL);
    if (r == 0)
        r = take_losses(run); /* which waits for all of them, on a GPU too */
    if (r == 0)
        take_times(run);
    if (r == 0)
        r = take_stats(run);
    return r != 0 ? r : dump(run);
}

int charlm_run_rank(const struct charlm_options *options, const struct text *text,
                    struct model *model, struct charlm_result *result)
{
    struct rank_run run = {.options = options, .text = text, .model = model, .result = result};
    int r;

    r = set_up(&run);
    for (uint32_t step = 1; r == 0 && step <= options->steps; step++)
        r = train_step(&run, step);
    if (r == 0)
        r = finish(&run);
    math_free(run.scratch);
    math_free(run.wide[0]);
    math_free(run.wide[1]);
    math_free(run.halves);
    math_free(run.loss);
    math_free(run.norm);
    gw_job_close(run.job);
    charlm_device_free(run.device);
    free(run.host);
    free(run.steps);
    free(run.backwards);
    return r;
}
