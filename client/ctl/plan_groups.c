/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of gwctl plan: read from --group and --expert-parallel, and given to parameters by
 * --param-group and by the experts' numbers in their names. Says itself what is wrong. Asks nobody.
 */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "client/ctl/ctl.h"
#include "client/ctl/plan.h"
#include "daemon/base/escape.h"
#include "daemon/base/parse.h"

#define NO_GROUP UINT32_MAX
#define NUMBER_BYTES 24u
#define EXPERT_MAX 1000000u

static int no_memory(void)
{
    ctl_say("the groups' tables do not fit in memory");
    return EX_DATAERR;
}

/* ---- a list of ranks ------------------------------------------------------------------------- */

/* A number at *at, and the place behind it. */
static bool take_number(const char **at, uint64_t max, uint32_t *ret_number)
{
    size_t digits = strspn(*at, "0123456789");
    char text[NUMBER_BYTES];
    uint64_t number;

    if (digits >= sizeof(text))
        return false;
    memcpy(text, *at, digits);
    text[digits] = '\0';
    if (parse_u64(text, 0, max, &number) < 0)
        return false;
    *at += digits;
    *ret_number = (uint32_t)number;
    return true;
}

/* "3", "0-3" or "0-6:2", up to a comma, a slash or the end. */
static bool take_range(const char **at, uint32_t *ret_first, uint32_t *ret_last, uint32_t *ret_step)
{
    bool good = take_number(at, PLAN_WORLD_MAX, ret_first);

    *ret_last = *ret_first;
    *ret_step = 1;
    if (good && **at == '-') {
        (*at)++;
        good = take_number(at, PLAN_WORLD_MAX, ret_last) && *ret_last >= *ret_first;
        if (good && **at == ':') {
            (*at)++;
            good = take_number(at, PLAN_WORLD_MAX, ret_step) && *ret_step > 0;
        }
    }
    return good && strchr(",/", **at) != NULL; /* the end too */
}

/* Into ranks[world]; `there` marks those that are in already. */
static int add_range(const char *given, uint32_t world, uint32_t first, uint32_t last,
                     uint32_t step, struct layout_group *group, uint32_t *ranks, bool *there)
{
    for (uint64_t rank = first; rank <= last; rank += step) {
        if (rank >= world || there[rank]) {
            ctl_say("--group %s: rank %" PRIu64 " is %s", given, rank,
                    rank >= world ? "not of the job: they are counted from 0" : "in it twice");
            return EX_USAGE;
        }
        there[rank] = true;
        ranks[group->count++] = (uint32_t)rank;
    }
    return 0;
}

static int read_ranks(const char *given, const char *at, uint32_t world, struct layout_group *group,
                      uint32_t *ranks, bool *there)
{
    uint32_t first, last, step;
    bool good, more;
    int r;

    do {
        good = take_range(&at, &first, &last, &step);
        if (good) {
            r = add_range(given, world, first, last, step, group, ranks, there);
            if (r != 0)
                return r;
        }
        more = good && *at == ',';
        at += more;
    } while (more);
    if (good && *at == '/') {
        at++;
        good = take_number(&at, PLAN_WORLD_MAX, &group->shard_ranks) && *at == '\0' &&
               group->shard_ranks > 0;
        if (good && group->count % group->shard_ranks != 0) {
            ctl_say("--group %s: runs of %u, which does not divide its %u ranks", given,
                    group->shard_ranks, group->count);
            return EX_USAGE;
        }
    }
    if (good)
        return 0;
    ctl_say("--group %s: expected NAME=RANKS such as 0-3, 1,5 or 0-6:2, and then perhaps /S; see "
            "gwctl plan --help",
            given);
    return EX_USAGE;
}

char *plan_ranks_text(const uint32_t *ranks, uint32_t count)
{
    size_t bytes;
    char *text = NULL;
    FILE *file = open_memstream(&text, &bytes);
    uint32_t next;

    if (file == NULL)
        return NULL;
    for (uint32_t i = 0; i < count; i = next) {
        uint32_t step = i + 1 < count && ranks[i + 1] > ranks[i] ? ranks[i + 1] - ranks[i] : 0;

        for (next = i + 1; step > 0 && next < count && ranks[next] - ranks[next - 1] == step;)
            next++;
        if (step > 1 && next - i < 3) /* two that are not neighbours are no range */
            next = i + 1;
        (void)fprintf(file, "%s%u", i > 0 ? "," : "", ranks[i]);
        if (next - i > 1)
            (void)fprintf(file, "-%u", ranks[next - 1]);
        if (next - i > 1 && step > 1)
            (void)fprintf(file, ":%u", step);
    }
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static uint32_t find_group(const struct plan_groups *groups, const char *name)
{
    for (uint32_t g = 0; g <= groups->count; g++) {
        if (strcmp(groups->names[g], name) == 0)
            return g;
    }
    return NO_GROUP;
}

/* Room for one with that name. */
static int add_group(const struct plan_report *report, struct plan_groups *groups, const char *name,
                     size_t length, struct layout_group **ret_group, uint32_t **ret_ranks)
{
    char *own;

    if (groups->count == PLAN_GROUPS_MAX) {
        ctl_say("more than %u groups beside that of all ranks", PLAN_GROUPS_MAX);
        return EX_USAGE;
    }
    own = groups->names[groups->count + 1];
    if (length == 0 || length > GW_LABEL_MAX) {
        ctl_say("a group's name has 1 to %u bytes: %.*s", GW_LABEL_MAX, (int)length, name);
        return EX_USAGE;
    }
    memcpy(own, name, length);
    own[length] = '\0';
    if (find_group(groups, own) != NO_GROUP) {
        ctl_say("group %s is there already%s", own,
                strcmp(own, groups->names[0]) == 0 ? ": it has all ranks" : "");
        return EX_USAGE;
    }
    *ret_ranks = calloc(report->args->ranks, sizeof(**ret_ranks));
    if (*ret_ranks == NULL)
        return no_memory();
    *ret_group = &groups->of[groups->count++];
    (*ret_group)->ranks = *ret_ranks;
    return 0;
}

static int read_group(const struct plan_report *report, const char *given,
                      struct plan_groups *groups)
{
    const char *equals = strchr(given, '=');
    struct layout_group *group;
    uint32_t *ranks;
    bool *there;
    int r;

    if (equals == NULL) {
        ctl_say("--group %s: expected NAME=RANKS; see gwctl plan --help", given);
        return EX_USAGE;
    }
    r = add_group(report, groups, given, (size_t)(equals - given), &group, &ranks);
    if (r != 0)
        return r;
    there = calloc(report->args->ranks, sizeof(*there));
    if (there == NULL)
        return no_memory();
    r = read_ranks(given, equals + 1, report->args->ranks, group, ranks, there);
    free(there);
    return r;
}

/* Ranks i, i + E, i + 2E, ... have the same experts. */
static int add_expert_groups(const struct plan_report *report, struct plan_groups *groups)
{
    uint32_t world = report->args->ranks, experts = report->args->expert_parallel;
    int r = 0;

    if (experts > 0 && world % experts != 0) {
        ctl_say("--expert-parallel %u does not divide %u ranks", experts, world);
        return EX_USAGE;
    }
    for (uint32_t i = 0; i < experts && r == 0; i++) {
        struct layout_group *group;
        char name[NUMBER_BYTES];
        uint32_t *ranks;

        (void)snprintf(name, sizeof(name), "expert%u", i);
        r = add_group(report, groups, name, strlen(name), &group, &ranks);
        for (uint32_t rank = i; rank < world && r == 0; rank += experts)
            ranks[group->count++] = rank;
    }
    return r;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static int use_rule(const struct plan_report *report, const char *given, struct plan_groups *groups)
{
    const char *equals = strrchr(given, '=');
    const struct model *model = report->model;
    uint32_t group, matched = 0;
    char *pattern;

    if (equals == NULL || equals == given) {
        ctl_say("--param-group %s: expected PATTERN=GROUP; see gwctl plan --help", given);
        return EX_USAGE;
    }
    group = find_group(groups, equals + 1);
    if (group == NO_GROUP) {
        ctl_say("--param-group %s: there is no group %s: name it with --group %s=RANKS", given,
                equals + 1, equals + 1);
        return EX_USAGE;
    }
    pattern = strndup(given, (size_t)(equals - given));
    if (pattern == NULL)
        return no_memory();
    for (uint32_t i = 0; i < model->count; i++) {
        if (fnmatch(pattern, model->params[i].name, 0) != 0 &&
            fnmatch(pattern, model->params[i].unit, 0) != 0)
            continue;
        matched++;
        if (groups->of_param[i] == NO_GROUP)
            groups->of_param[i] = group;
    }
    free(pattern);
    if (matched > 0)
        return 0;
    ctl_say("--param-group %s: no parameter and no unit of %s has such a name", given,
            report->args->model_path);
    return EX_USAGE;
}

/* h.0.mlp.experts.7.w1: expert 7 of those that are alike up to their number. */
struct expert {
    const char *name;
    size_t before; /* bytes of the name, up to the number */
    uint32_t number, param;
};

static bool is_expert(const char *name, struct expert *ret_expert)
{
    static const char word[] = "experts.";
    const char *at = name, *after;
    uint32_t number;

    while ((at = strstr(at, word)) != NULL) {
        at += sizeof(word) - 1;
        after = at;
        if (take_number(&after, EXPERT_MAX, &number) && (*after == '.' || *after == '\0')) {
            ret_expert->name = name;
            ret_expert->before = (size_t)(at - name);
            ret_expert->number = number;
            return true;
        }
    }
    return false;
}

static bool are_alike(const struct expert *a, const struct expert *b)
{
    return a->before == b->before && memcmp(a->name, b->name, a->before) == 0;
}

static int compare_experts(const void *left, const void *right)
{
    const struct expert *a = left, *b = right;
    int r;

    r = memcmp(a->name, b->name, a->before < b->before ? a->before : b->before);
    if (r != 0)
        return r;
    if (a->before != b->before)
        return a->before < b->before ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* experts[count], sorted: of one layer after another. */
static int spread(const struct plan_report *report, const struct expert *experts, uint32_t count,
                  struct plan_groups *groups)
{
    uint32_t ways = report->args->expert_parallel, first = groups->count + 1 - ways, end;

    for (uint32_t i = 0; i < count; i = end) {
        uint32_t all;

        for (end = i + 1; end < count && are_alike(&experts[i], &experts[end]);)
            end++;
        all = experts[end - 1].number + 1;
        if (all % ways != 0) {
            char safe[ESCAPE_BYTES(MODEL_NAME_MAX)];

            (void)escape_text(experts[i].name, experts[i].before, safe, sizeof(safe));
            ctl_say("%s has %u experts, which --expert-parallel %u does not divide: the list names "
                    "those of all ranks",
                    safe, all, ways);
            return EX_USAGE;
        }
        for (; i < end; i++)
            groups->of_param[experts[i].param] = first + experts[i].number / (all / ways);
    }
    return 0;
}

static int use_experts(const struct plan_report *report, struct plan_groups *groups)
{
    const struct model *model = report->model;
    struct expert *experts = calloc(model->count, sizeof(*experts));
    uint32_t count = 0;
    int r;

    if (experts == NULL)
        return no_memory();
    for (uint32_t i = 0; i < model->count; i++) {
        if (groups->of_param[i] == NO_GROUP && is_expert(model->params[i].name, &experts[count]))
            experts[count++].param = i;
    }
    if (count > 0) {
        qsort(experts, count, sizeof(*experts), compare_experts);
        r = spread(report, experts, count, groups);
    } else {
        ctl_say("--expert-parallel: no name in %s has experts.K. with the number of an expert: "
                "give parameters to groups with --group and --param-group",
                report->args->model_path);
        r = EX_USAGE;
    }
    free(experts);
    return r;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int plan_groups_make(struct plan_report *report)
{
    const struct plan_args *args = report->args;
    struct plan_groups *groups = &report->groups;
    const struct model *model = report->model;
    int r = 0;

    (void)snprintf(groups->names[0], sizeof(groups->names[0]), "all");
    groups->of_param = calloc(model->count, sizeof(*groups->of_param));
    if (groups->of_param == NULL)
        return no_memory();
    for (uint32_t i = 0; i < model->count; i++)
        groups->of_param[i] = NO_GROUP;
    for (uint32_t i = 0; i < args->group_count && r == 0; i++)
        r = read_group(report, args->groups[i], groups);
    if (r == 0)
        r = add_expert_groups(report, groups);
    for (uint32_t i = 0; i < args->rule_count && r == 0; i++)
        r = use_rule(report, args->rules[i], groups);
    if (r == 0 && args->expert_parallel > 0)
        r = use_experts(report, groups);
    for (uint32_t i = 0; i < model->count && r == 0; i++) {
        if (groups->of_param[i] == NO_GROUP)
            groups->of_param[i] = 0;
        groups->numel[groups->of_param[i]] += model->params[i].numel;
        groups->params[groups->of_param[i]]++;
    }
    return r;
}

void plan_groups_free(struct plan_groups *groups)
{
    for (uint32_t g = 0; g < groups->count; g++)
        free((void *)(uintptr_t)groups->of[g].ranks);
    free(groups->of_param);
}
