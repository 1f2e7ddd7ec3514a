/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl plan: its command line. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "client/ctl/ctl.h"
#include "client/ctl/plan.h"
#include "daemon/base/parse.h"

enum option_id {
    OPT_MODEL,
    OPT_RANKS,
    OPT_NODES,
    OPT_RANK,
    OPT_GROUP,
    OPT_PARAM_GROUP,
    OPT_EXPERT_PARALLEL,
    OPT_DEEPSPEED,
    OPT_VERSION,
    OPT_STAGE,
    OPT_BUCKET,
    OPT_ACCUMULATE,
    OPT_MICRO_STEPS,
    OPT_GATHER,
    OPT_RING_SLOTS,
    OPT_ALIGN,
    OPT_DTYPE,
    OPT_GRAD_DTYPE,
    OPT_REDUCE_DTYPE,
    OPT_ACCUM,
    OPT_SHARD_RANKS,
    OPT_PERSIST,
    OPT_REUSE,
    OPT_SECONDARY,
    OPT_ALL_REDUCE,
    OPT_LINK,
    OPT_JSON,
    OPT_HELP,
};

static const struct option long_options[] = {
    {"model", required_argument, NULL, OPT_MODEL},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"nodes", required_argument, NULL, OPT_NODES},
    {"rank", required_argument, NULL, OPT_RANK},
    {"group", required_argument, NULL, OPT_GROUP},
    {"param-group", required_argument, NULL, OPT_PARAM_GROUP},
    {"expert-parallel", required_argument, NULL, OPT_EXPERT_PARALLEL},
    {"deepspeed", required_argument, NULL, OPT_DEEPSPEED},
    {"deepspeed-version", required_argument, NULL, OPT_VERSION},
    {"stage", required_argument, NULL, OPT_STAGE},
    {"bucket", required_argument, NULL, OPT_BUCKET},
    {"accumulate", required_argument, NULL, OPT_ACCUMULATE},
    {"micro-steps", required_argument, NULL, OPT_MICRO_STEPS},
    {"gather", required_argument, NULL, OPT_GATHER},
    {"ring-slots", required_argument, NULL, OPT_RING_SLOTS},
    {"align", required_argument, NULL, OPT_ALIGN},
    {"dtype", required_argument, NULL, OPT_DTYPE},
    {"grad-dtype", required_argument, NULL, OPT_GRAD_DTYPE},
    {"reduce-dtype", required_argument, NULL, OPT_REDUCE_DTYPE},
    {"accumulators", required_argument, NULL, OPT_ACCUM},
    {"shard-ranks", required_argument, NULL, OPT_SHARD_RANKS},
    {"persist", required_argument, NULL, OPT_PERSIST},
    {"reuse", required_argument, NULL, OPT_REUSE},
    {"secondary-ranks", required_argument, NULL, OPT_SECONDARY},
    {"all-reduce", no_argument, NULL, OPT_ALL_REDUCE},
    {"link", required_argument, NULL, OPT_LINK},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static void help(void)
{
    (void)puts("Usage: gwctl plan --model FILE --ranks N [OPTION]...\n"
               "\n"
               "What one optimizer step sends and a rank holds, stages 0 to 3 side by side.\n"
               "\n"
               "  --model FILE              lines of name<TAB>shape<TAB>unit, or safetensors\n"
               "  --ranks N, --nodes M      of the job; nodes in blocks of ranks (1)\n"
               "  --rank R                  whose figures (0)\n"
               "  --group NAME=RANKS[/S]    ranks 0-3, 1,5 or 0-6:2 (every 2nd), in runs of S;\n"
               "                            may come again\n"
               "  --param-group PATTERN=NAME  of parameters and units of such names; may come\n"
               "                            again: the first that fits\n"
               "  --expert-parallel E       groups expert0 to E-1 of every E-th rank; names with\n"
               "                            experts.K. are spread over them\n"
               "  --deepspeed FILE          options from a DeepSpeed configuration, and what each\n"
               "                            of its keys does here; those below come before it\n"
               "  --deepspeed-version V     whose defaults (0.19.8)\n"
               "  --stage S                 that one alone, with its buckets\n"
               "  --bucket BYTES            5e8, 25MB, 64MiB (2e9)\n"
               "  --accumulate local|shard  where micro-steps are added up (by stage)\n"
               "  --micro-steps K           per optimizer step (1)\n"
               "  --gather private|mapped   stage 3 (private)\n"
               "  --ring-slots K            bucket buffers, stages 2 and 3 (3)\n"
               "  --align BYTES             of slices, a power of 2 (64)\n"
               "  --dtype fp32|fp16|bf16    of parameters (the file's, else fp32)\n"
               "  --grad-dtype fp32|...     of gradients (the parameters')\n"
               "  --reduce-dtype fp16|bf16  gradients are rounded to it before the sum (no)\n"
               "  --accumulators fp32|grads dtype of reduced gradients (fp32)\n"
               "  --shard-ranks S           hybrid sharding: runs of S ranks (all)\n"
               "  --persist BYTES           stage 3: parameters up to it stay gathered (none)\n"
               "  --reuse BYTES             stage 3: units fetched again within it stay (none)\n"
               "  --secondary-ranks P       stage 3: blocks of P ranks keep a second copy (none)\n"
               "  --all-reduce              stages 1 to 3: in place of reduce-scatters (no)\n"
               "  --link BYTES_PER_S        estimate the time; may come again\n"
               "  --json                    for programs");
}

static int wrong(const char *option, const char *value, const char *allowed)
{
    ctl_say("--%s %s: expected %s; see gwctl plan --help", option, value, allowed);
    return EX_USAGE;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int take_count(const char *option, const char *value, uint64_t min, uint64_t max,
                      uint32_t *ret_count)
{
    char allowed[64];
    uint64_t number;

    if (parse_u64(value, min, max, &number) == 0) {
        *ret_count = (uint32_t)number;
        return 0;
    }
    (void)snprintf(allowed, sizeof(allowed), "a number from %llu to %llu", (unsigned long long)min,
                   (unsigned long long)max);
    return wrong(option, value, allowed);
}

/* A number that is too large is no wrong use, but a job of which there is no plan. */
static int take_ranks(const char *option, const char *value, uint32_t *ret_ranks)
{
    uint64_t ranks;

    if (value[0] == '\0' || value[strspn(value, "0123456789")] != '\0' ||
        parse_u64(value, 0, PLAN_WORLD_MAX, &ranks) == 0)
        return take_count(option, value, 1, PLAN_WORLD_MAX, ret_ranks);
    ctl_say("--%s %s: more ranks than a plan's tables are for, which is %u; this release runs jobs "
            "of at most %u",
            option, value, PLAN_WORLD_MAX, GW_RANKS_MAX);
    return EX_DATAERR;
}

static int take_size(const char *option, const char *value, uint64_t max, uint64_t *ret_size)
{
    uint64_t size;

    if (parse_size(value, &size) == 0 && size > 0 && size <= max) {
        *ret_size = size;
        return 0;
    }
    return wrong(option, value, "a size such as 500000000, 5e8, 25MB or 64MiB");
}

static int take_name(const char *option, const char *value, const char *first, uint32_t of_first,
                     const char *second, uint32_t of_second, uint32_t *ret_value)
{
    char allowed[64];

    if (strcmp(value, first) == 0 || strcmp(value, second) == 0) {
        *ret_value = strcmp(value, first) == 0 ? of_first : of_second;
        return 0;
    }
    (void)snprintf(allowed, sizeof(allowed), "%s or %s", first, second);
    return wrong(option, value, allowed);
}

static int take_dtype(const char *option, const char *value, int *ret_dtype)
{
    for (int dtype = 0; dtype < GW_DTYPES; dtype++) {
        if (strcmp(value, plan_dtype_names[dtype]) == 0) {
            *ret_dtype = dtype;
            return 0;
        }
    }
    return wrong(option, value, "fp32, fp16 or bf16");
}

static int take_reduce_dtype(const char *option, const char *value, uint32_t *ret_dtype)
{
    int dtype = 0;
    int r;

    r = take_dtype(option, value, &dtype);
    if (r == 0)
        *ret_dtype = (uint32_t)dtype;
    return r;
}

static int take_link(const char *option, const char *value, struct plan_args *args)
{
    if (args->link_count == PLAN_LINKS_MAX) {
        ctl_say("at most %u times --link", PLAN_LINKS_MAX);
        return EX_USAGE;
    }
    return take_size(option, value, INT64_MAX, &args->links[args->link_count++]);
}

/* Kept as it is; plan_groups.c reads it. */
static int take_text(const char *option, const char *value, uint32_t max, const char **list,
                     uint32_t *count)
{
    if (*count == max) {
        ctl_say("at most %u times --%s", max, option);
        return EX_USAGE;
    }
    list[(*count)++] = value;
    return 0;
}

static int take_groups(struct plan_args *args, int id, const char *value)
{
    const char *option = long_options[id].name;

    switch ((enum option_id)id) {
    case OPT_RANK:
        return take_count(option, value, 0, PLAN_WORLD_MAX - 1, &args->rank);
    case OPT_GROUP:
        return take_text(option, value, PLAN_GROUPS_MAX, args->groups, &args->group_count);
    case OPT_PARAM_GROUP:
        return take_text(option, value, PLAN_RULES_MAX, args->rules, &args->rule_count);
    default:
        return take_count(option, value, 1, PLAN_GROUPS_MAX, &args->expert_parallel);
    }
}

static int take_align(const char *option, const char *value, struct plan_args *args)
{
    uint64_t bytes;
    int r;

    r = take_size(option, value, UINT32_MAX, &bytes);
    if (r == 0)
        args->options.shard_align_bytes = (uint32_t)bytes; /* its limits: options.c's */
    return r;
}

/* Dtypes, and what of stage 3 is kept. */
static int take_values(struct plan_args *args, int id, const char *value)
{
    const char *option = long_options[id].name;
    struct wire_seal *seal = &args->options;

    switch ((enum option_id)id) {
    case OPT_DTYPE:
        return take_dtype(option, value, &args->dtype);
    case OPT_GRAD_DTYPE:
        return take_dtype(option, value, &args->grad_dtype);
    case OPT_REDUCE_DTYPE:
        return take_reduce_dtype(option, value, &seal->reduce_dtype);
    case OPT_ACCUM:
        return take_name(option, value, "fp32", 0, "grads", 1, &seal->accum_as_grads);
    case OPT_SHARD_RANKS:
        return take_count(option, value, 1, PLAN_WORLD_MAX, &seal->shard_ranks);
    case OPT_SECONDARY:
        return take_count(option, value, 1, PLAN_WORLD_MAX, &seal->secondary_ranks);
    case OPT_PERSIST:
        return take_size(option, value, INT64_MAX, &seal->persist_bytes);
    default:
        return take_size(option, value, INT64_MAX, &seal->reuse_bytes);
    }
}

static int take_option(struct plan_args *args, int id, const char *value)
{
    const char *option = long_options[id].name; /* ids are places in the table */
    struct wire_seal *seal = &args->options;
    uint32_t stage;
    int r;

    switch ((enum option_id)id) {
    case OPT_MODEL:
        args->model_path = value;
        return 0;
    case OPT_DEEPSPEED:
        args->deepspeed_path = value;
        return 0;
    case OPT_RANKS:
        return take_ranks(option, value, &args->ranks);
    case OPT_NODES:
        return take_count(option, value, 1, PLAN_WORLD_MAX, &args->nodes);
    case OPT_VERSION:
        return deepspeed_version(value, &args->version) < 0
                   ? wrong(option, value, "a version such as 0.19.8")
                   : 0;
    case OPT_STAGE:
        r = take_count(option, value, 0, PLAN_STAGES - 1, &stage);
        args->stage = r == 0 ? (int)stage : -1;
        return r;
    case OPT_BUCKET:
        return take_size(option, value, INT64_MAX, &seal->bucket_bytes);
    case OPT_ACCUMULATE:
        return take_name(option, value, "local", GW_ACCUMULATE_LOCAL, "shard", GW_ACCUMULATE_SHARD,
                         &seal->accumulate);
    case OPT_MICRO_STEPS:
        return take_count(option, value, 1, 1024, &seal->micro_steps);
    case OPT_GATHER:
        args->gather_given = true;
        return take_name(option, value, "private", GW_GATHER_PRIVATE, "mapped", GW_GATHER_MAPPED,
                         &seal->gather);
    case OPT_RING_SLOTS:
        return take_count(option, value, 1, GW_RING_SLOTS_MAX, &seal->ring_slots);
    case OPT_ALIGN:
        return take_align(option, value, args);
    case OPT_LINK:
        return take_link(option, value, args);
    case OPT_RANK:
    case OPT_GROUP:
    case OPT_PARAM_GROUP:
    case OPT_EXPERT_PARALLEL:
        return take_groups(args, id, value);
    case OPT_DTYPE:
    case OPT_GRAD_DTYPE:
    case OPT_REDUCE_DTYPE:
    case OPT_ACCUM:
    case OPT_SHARD_RANKS:
    case OPT_PERSIST:
    case OPT_REUSE:
    case OPT_SECONDARY:
        return take_values(args, id, value);
    case OPT_ALL_REDUCE:
        seal->all_reduce = 1;
        return 0;
    case OPT_JSON:
    case OPT_HELP:
        args->json = args->json || id == OPT_JSON;
        return 0;
    }
    return EX_USAGE;
}

/* ---- command line ---------------------------------------------------------------------------- */

static int check_args(const struct plan_args *args)
{
    if (args->model_path == NULL || args->ranks == 0) {
        ctl_say("%s is missing; see gwctl plan --help",
                args->model_path == NULL ? "--model FILE" : "--ranks N");
        return EX_USAGE;
    }
    if (args->rank >= args->ranks) {
        ctl_say("--rank %u: the job's %u ranks are counted from 0", args->rank, args->ranks);
        return EX_USAGE;
    }
    if (args->nodes > args->ranks) {
        ctl_say("%u ranks on %u nodes: a node has at least one rank", args->ranks, args->nodes);
        return EX_USAGE;
    }
    if (args->options.gather == GW_GATHER_MAPPED && args->nodes > 1) {
        ctl_say("--gather mapped is for one node, but there are %u", args->nodes);
        return EX_USAGE;
    }
    if (args->version != 0 && args->deepspeed_path == NULL) {
        ctl_say("--deepspeed-version goes with --deepspeed FILE");
        return EX_USAGE;
    }
    return 0;
}

/* A line to stderr, so that nobody misses what the report says. */
static void warn_rejected(const struct plan_report *report)
{
    size_t rejected = 0;

    for (size_t i = 0; report->config != NULL && i < report->config->keys.count; i++)
        rejected += report->config->keys.entries[i].status == DEEPSPEED_REJECTED;
    if (rejected > 0)
        ctl_say("%s: %zu key%s rejected; the plan is without: see the report",
                report->args->deepspeed_path, rejected, rejected == 1 ? " is" : "s are");
}

int plan_main(int argc, char **argv)
{
    struct plan_args args = {.nodes = 1, .stage = -1, .dtype = -1, .grad_dtype = -1};
    struct plan_report report;
    int id;
    int r;

    while ((id = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (id == OPT_HELP) {
            help();
            return 0;
        }
        if (id == ':' || id == '?') {
            ctl_say("%s %s; see gwctl plan --help",
                    id == ':' ? "a value is missing after" : "unknown option", argv[optind - 1]);
            return EX_USAGE;
        }
        r = take_option(&args, id, optarg);
        if (r != 0)
            return r;
    }
    if (optind + 1 < argc) { /* argv[optind] is the command */
        ctl_say("unexpected argument %s; see gwctl plan --help", argv[optind + 1]);
        return EX_USAGE;
    }
    r = check_args(&args);
    if (r != 0)
        return r;
    r = plan_make(&args, &report);
    if (r == 0 && args.json)
        r = plan_print_json(&report);
    else if (r == 0)
        plan_print_text(&report);
    if (r == 0)
        warn_rejected(&report);
    plan_report_free(&report);
    return r;
}
