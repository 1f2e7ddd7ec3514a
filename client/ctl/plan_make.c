/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl plan: files read, options put together, and one plan per stage and accumulate mode. */
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "client/ctl/ctl.h"
#include "client/ctl/plan.h"
#include "daemon/base/escape.h"

#define TEXT_LIST_MAX ((size_t)256 << 20) /* bytes of a model's list */
#define BUCKET_DEFAULT 2000000000u        /* DeepSpeed's 5e8 elements */

_Static_assert(MODEL_NAME_MAX == GW_NAME_MAX && MODEL_PARAMS_MAX == GW_PARAMS_MAX,
               "a list that is planned can be registered");

const char *const plan_dtype_names[GW_DTYPES] = {"fp32", "fp16", "bf16"};
const char *const plan_kind_names[GW_KINDS] = {"all_reduce", "reduce_scatter", "all_gather",
                                               "broadcast", "control"};
const char *const plan_memory_names[GW_MEMORIES] = {"params", "gradients", "buckets", "gathered",
                                                    "optimizer"};

static int no_memory(void)
{
    ctl_say("no memory for the plan");
    return EX_OSERR;
}

/* What was asked for is too large for this machine. */
static int no_room(const struct plan_report *report)
{
    ctl_say("%u ranks, %u parameters and %u groups: the plan's tables do not fit in memory",
            report->args->ranks, report->model->count, report->groups.count + 1);
    return EX_DATAERR;
}

/* ---- model ----------------------------------------------------------------------------------- */

static int read_model(const struct plan_args *args, struct plan_report *report)
{
    char error[MODEL_ERROR_BYTES] = "";
    const char *dot = strrchr(args->model_path, '.');
    bool named = dot != NULL && strcmp(dot, ".safetensors") == 0;
    uint64_t header_bytes;
    char *data = NULL;
    size_t bytes;
    int r;

    r = plan_read(args->model_path, TEXT_LIST_MAX, true, &data, &bytes);
    if (r != 0)
        return r;
    if (named || model_is_safetensors((const uint8_t *)data, bytes, &header_bytes))
        r = model_parse_safetensors((const uint8_t *)data, bytes, args->model_path, &report->model,
                                    error, sizeof(error));
    else
        r = model_parse_text(data, bytes, args->model_path, &report->model, error, sizeof(error));
    free(data);
    if (r == GW_E_NOMEM)
        return no_memory();
    if (r < 0) {
        ctl_say("%s", error);
        return EX_DATAERR;
    }
    return 0;
}

static int add_numel(struct plan_report *report)
{
    struct model *model = report->model;

    for (uint32_t i = 0; i < model->count; i++) {
        if (__builtin_add_overflow(report->numel, model->params[i].numel, &report->numel)) {
            ctl_say("%s: too many elements in all", report->args->model_path);
            return EX_DATAERR;
        }
    }
    return 0;
}

/* The command line's dtype, else the configuration's, else the file's; gradients have it too unless
 * said otherwise. */
static int view_model(struct plan_report *report)
{
    const struct plan_args *args = report->args;
    const struct deepspeed *config = report->config;
    struct model *model = report->model;

    report->params = calloc(model->count, sizeof(*report->params));
    if (report->params == NULL)
        return no_room(report);
    for (uint32_t i = 0; i < model->count; i++) {
        uint8_t dtype = model->params[i].dtype, grad_dtype;

        if (args->dtype >= 0 || (config != NULL && config->half))
            dtype = (uint8_t)(args->dtype >= 0 ? (uint32_t)args->dtype : config->dtype);
        grad_dtype = args->grad_dtype >= 0 ? (uint8_t)args->grad_dtype : dtype;
        report->params[i] = (struct layout_param){
            .name = model->params[i].name,
            .unit = model->params[i].unit,
            .numel = model->params[i].numel,
            .group = report->groups.of_param[i],
            .dtype = dtype,
            .grad_dtype = grad_dtype,
        };
        report->dtype_numel[dtype] += model->params[i].numel;
        report->grad_numel[grad_dtype] += model->params[i].numel;
    }
    return 0;
}

/* Why the layout refused parameter `index`. */
static int bad_param(const struct plan_report *report, uint32_t index)
{
    const struct model_param *param = &report->model->params[index];
    char safe[ESCAPE_BYTES(MODEL_NAME_MAX)];
    bool twice = false;

    for (uint32_t i = 0; i < index && !twice; i++)
        twice = strcmp(report->model->params[i].name, param->name) == 0;
    (void)escape_string(twice || param->unit[0] == '\0' ? param->name : param->unit, safe,
                        sizeof(safe));
    ctl_say("%s:%u:1: %s %s %s", report->args->model_path, param->line, twice ? "name" : "unit",
            safe, twice ? "was there before" : "comes back after another unit");
    return EX_DATAERR;
}

/* ---- options --------------------------------------------------------------------------------- */

static int read_deepspeed(const struct plan_args *args, struct plan_report *report)
{
    struct deepspeed_given given = {
        .world = args->ranks,
        .numel = report->numel,
        .bucket_bytes = args->options.bucket_bytes,
        .micro_steps = args->options.micro_steps,
        .has_dtype = args->dtype >= 0,
        .dtype = (uint32_t)args->dtype,
        .has_grad_dtype = args->grad_dtype >= 0,
        .grad_dtype = (uint32_t)args->grad_dtype,
        .version = args->version,
    };
    char error[DEEPSPEED_ERROR_BYTES] = "";
    char *text = NULL;
    size_t bytes;
    int r;

    r = plan_read(args->deepspeed_path, DEEPSPEED_TEXT_MAX, false, &text, &bytes);
    if (r != 0)
        return r == EX_DATAERR ? EX_CONFIG : r;
    r = deepspeed_parse(text, bytes, args->deepspeed_path, &given, &report->config, error,
                        sizeof(error));
    free(text);
    if (r == GW_E_NOMEM)
        return no_memory();
    if (r < 0) {
        ctl_say("%s", error);
        return EX_CONFIG;
    }
    return 0;
}

static void add_default(struct plan_report *report, const char *key, uint64_t number,
                        const char *text, const char *meaning)
{
    report->defaults[report->default_count++] = (struct plan_default){key, number, text, meaning};
}

static void list_defaults(struct plan_report *report)
{
    const struct wire_seal *given = &report->args->options;

    if (given->bucket_bytes == 0 && report->config == NULL)
        add_default(report, "bucket_bytes", BUCKET_DEFAULT, NULL,
                    "DeepSpeed's 500000000 elements; a seal has no default: say it (--bucket)");
    if (given->micro_steps == 0 && report->config == NULL)
        add_default(report, "micro_steps", 1, NULL, "no accumulation (--micro-steps)");
    if (given->accumulate == GW_ACCUMULATE_AUTO)
        add_default(report, "accumulate", 0, "auto",
                    "local in stages 0 and 1, shard in stages 2 and 3 (--accumulate)");
    if (!report->args->gather_given)
        add_default(report, "gather", 0, "private",
                    "stage 3: units are copied into a pool of each rank (--gather)");
    if (given->ring_slots == 0)
        add_default(report, "ring_slots", 3, NULL,
                    "bucket buffers in stages 2 and 3, accumulate shard (--ring-slots)");
    if (given->shard_align_bytes == 0)
        add_default(report, "shard_align_bytes", 64, NULL, "slices are multiples of it (--align)");
}

/* The file's options, and over them the command line's. */
static void put_options(struct plan_report *report)
{
    const struct wire_seal *given = &report->args->options;
    struct wire_seal *options = &report->options;

    *options = *given;
    if (report->config != NULL) {
        const struct gw_zero_options *file = &report->config->options;

        options->stage = file->stage;
        options->unused = file->unused;
        options->overlap_off = file->overlap_off;
        options->clip_norm = file->clip_norm;
        options->gather_bytes = file->gather_bytes;
        options->prefetch_bytes = file->prefetch_bytes;
        options->bucket_bytes = file->bucket_bytes;
        options->micro_steps = file->micro_steps;
        if (options->reduce_dtype == 0)
            options->reduce_dtype = file->reduce_dtype;
        if (options->accum_as_grads == 0)
            options->accum_as_grads = file->accum_as_grads;
        if (options->all_reduce == 0)
            options->all_reduce = file->all_reduce;
        if (options->reuse_bytes == 0)
            options->reuse_bytes = file->reuse_bytes;
        /* Whatever its stage: all of them are shown. */
        if (options->persist_bytes == 0)
            options->persist_bytes = report->config->persist_bytes;
        if (options->shard_ranks == 0)
            options->shard_ranks = report->config->shard_ranks;
        if (options->secondary_ranks == 0)
            options->secondary_ranks = report->config->secondary_ranks;
    } else if (options->bucket_bytes == 0) {
        options->bucket_bytes = BUCKET_DEFAULT;
    }
    list_defaults(report);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static int make_one(struct plan_report *report, uint32_t stage, uint32_t mode)
{
    struct plan_request request = {
        .params = report->params,
        .param_count = report->model->count,
        .groups = report->groups.of,
        .group_count = report->groups.count,
        .world = report->args->ranks,
        .nodes = report->args->nodes,
        .rank = report->args->rank,
        .options = report->options,
    };
    char why[GW_TEXT_MAX + 1] = "";
    struct text text = TEXT(why);
    uint32_t param;
    int r;

    request.options.stage = stage;
    request.options.accumulate = mode == 0 ? GW_ACCUMULATE_LOCAL : GW_ACCUMULATE_SHARD;
    r = plan_new(&request, &report->plans[stage][mode], &text, &param);
    if (r == 0)
        return 0;
    if (r != GW_E_INVALID)
        return no_room(report);
    if (param != UINT32_MAX)
        return bad_param(report, param);
    ctl_say("%s", why);
    return report->config != NULL ? EX_CONFIG : EX_USAGE;
}

int plan_make(const struct plan_args *args, struct plan_report *report)
{
    int r;

    *report = (struct plan_report){.args = args};
    r = read_model(args, report);
    if (r == 0)
        r = add_numel(report);
    if (r == 0 && args->deepspeed_path != NULL)
        r = read_deepspeed(args, report);
    if (r == 0)
        r = plan_groups_make(report);
    if (r == 0)
        r = view_model(report);
    if (r == 0)
        put_options(report);
    for (uint32_t stage = 0; r == 0 && stage < PLAN_STAGES; stage++) {
        for (uint32_t mode = 0; r == 0 && mode < PLAN_MODES; mode++)
            r = make_one(report, stage, mode);
    }
    return r;
}

void plan_report_free(struct plan_report *report)
{
    for (uint32_t stage = 0; stage < PLAN_STAGES; stage++) {
        for (uint32_t mode = 0; mode < PLAN_MODES; mode++)
            (void)plan_free(report->plans[stage][mode]);
    }
    free(report->params);
    plan_groups_free(&report->groups);
    (void)deepspeed_free(report->config);
    (void)model_free(report->model);
}

bool plan_shows(const struct plan_report *report, uint32_t stage)
{
    return report->args->stage < 0 || (uint32_t)report->args->stage == stage;
}

const struct plan *plan_used(const struct plan_report *report, uint32_t stage)
{
    uint32_t accumulate = report->options.accumulate;
    bool shard =
        accumulate == GW_ACCUMULATE_SHARD || (accumulate == GW_ACCUMULATE_AUTO && stage >= 2);

    return report->plans[stage][shard ? 1 : 0];
}

bool plan_memory_by_group(unsigned memory)
{
    return memory != GW_MEMORY_BUCKETS && memory != GW_MEMORY_GATHERED;
}

uint32_t plan_persistent(const struct plan *plan)
{
    const struct gw_layout_page *page = layout_page(plan->layout);
    uint32_t count = 0;

    for (uint32_t p = 0; p < page->params; p++)
        count += layout_params(plan->layout)[p].persistent;
    return count;
}
