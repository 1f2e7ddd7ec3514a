/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter lists and their groups of ranks as the ranks register them, page by page, and how two
 * of them are compared.
 * A list is freed when the layout made from it is agreed (seal.c). Pure; the core's thread.
 */
#include "daemon/core/core_internal.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN_NAMES 4u /* of each side where the order differs */

const char *reg_name(const struct reg_list *list, uint32_t param)
{
    return list->names + list->params[param].name_at;
}

const char *reg_unit(const struct reg_list *list, uint32_t param)
{
    return list->names + list->params[param].unit_at;
}

/* Groups come before parameters: one that comes after them begins all of it anew. */
static bool begins_anew(const struct reg_list *list)
{
    return list->total > 0;
}

/* Parameters begun anew name the same groups. */
static void clear_params(struct reg_list *list)
{
    free(list->params);
    free(list->names);
    *list = (struct reg_list){.groups = list->groups, .group_count = list->group_count};
}

void reg_list_clear(struct reg_list *list)
{
    clear_params(list);
    for (uint32_t g = 0; g < list->group_count; g++)
        free(list->groups[g].ranks);
    free(list->groups);
    memset(list, 0, sizeof(*list));
}

/* ---- adding ---------------------------------------------------------------------------------- */

/* Room for count more parameters and bytes more of names. */
static int list_reserve(struct reg_list *list, uint32_t count, size_t bytes)
{
    uint32_t capacity = list->capacity ? list->capacity : count;
    size_t names_capacity = list->names_capacity ? list->names_capacity : bytes;
    struct reg_param *params;
    char *names;

    while (capacity < list->count + count)
        capacity *= 2;
    while (names_capacity < list->names_bytes + bytes)
        names_capacity *= 2;
    if (capacity != list->capacity) {
        params = realloc(list->params, capacity * sizeof(*params));
        if (!params)
            return GW_E_NOMEM;
        list->params = params;
        list->capacity = capacity;
    }
    if (names_capacity != list->names_capacity) {
        names = realloc(list->names, names_capacity);
        if (!names)
            return GW_E_NOMEM;
        list->names = names;
        list->names_capacity = names_capacity;
    }
    return 0;
}

static uint32_t list_put_name(struct reg_list *list, const char *name, size_t bytes)
{
    uint32_t at = (uint32_t)list->names_bytes;

    memcpy(list->names + at, name, bytes + 1);
    list->names_bytes += bytes + 1;
    return at;
}

static int list_add(struct reg_list *list, const struct wire_param *param)
{
    size_t name_bytes = strlen(param->name), unit_bytes = strlen(param->unit);
    struct reg_param *mine;
    int r;

    r = list_reserve(list, 1, name_bytes + unit_bytes + 2);
    if (r < 0)
        return r;
    mine = &list->params[list->count];
    mine->numel = param->numel;
    mine->flags = param->flags;
    mine->group = param->group;
    mine->dtype = (uint8_t)param->dtype;
    mine->grad_dtype = (uint8_t)param->grad_dtype;
    mine->name_at = list_put_name(list, param->name, name_bytes);
    mine->unit_at = list_put_name(list, param->unit, unit_bytes);
    list->count++;
    return 0;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int group_check(const struct core *core, uint32_t rank, const struct wire_msg *msg,
                       struct text *text)
{
    const struct wire_seal any = {.stage = 3};
    const struct core_rank *mine = &core->ranks[rank];
    const uint32_t *ranks = msg->u.param_group.ranks;
    uint32_t count = msg->u.param_group.count, world = core->config.world;
    uint32_t before = begins_anew(&mine->list) ? 0 : mine->list.group_count;
    struct ranks members = {{0}};

    if (core->sealed || mine->seal_request) {
        text_add(text, "rank %u adds a group after its seal: add groups before gw_seal", rank);
        return GW_E_STATE;
    }
    if (before + 1 >= GW_GROUPS_MAX) {
        text_add(text, "rank %u adds more groups than %u, the world included, which is the limit",
                 rank, GW_GROUPS_MAX);
        return GW_E_LIMIT;
    }
    if (count == 0 || count > GW_RANKS_MAX) {
        text_add(text, "a group has 1 to %u ranks, not %u", GW_RANKS_MAX, count);
        return GW_E_INVALID;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= world) {
            text_add(text, "a group cannot hold rank %u: the job has %u ranks", ranks[i], world);
            return GW_E_INVALID;
        }
        if (ranks_has(&members, ranks[i])) {
            text_add(text, "rank %u stands twice in a group's list", ranks[i]);
            return GW_E_INVALID;
        }
        ranks_add(&members, ranks[i]);
    }
    /* What the stage has to say is known at the seal. */
    return options_check_runs(&any, msg->u.param_group.shard_ranks, count, "a group's ", text);
}

static int group_add(struct reg_list *list, const struct wire_msg *msg)
{
    uint32_t count = msg->u.param_group.count;
    struct reg_group *groups, *group;
    uint32_t *ranks;

    groups = realloc(list->groups, (list->group_count + 1) * sizeof(*groups));
    if (!groups)
        return GW_E_NOMEM;
    list->groups = groups;
    ranks = malloc(count * sizeof(*ranks));
    if (!ranks)
        return GW_E_NOMEM;
    group = &groups[list->group_count++];
    group->count = count;
    group->shard_ranks = msg->u.param_group.shard_ranks;
    group->ranks = memcpy(ranks, msg->u.param_group.ranks, count * sizeof(*ranks));
    return 0;
}

void registry_group(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct reg_list *list = &core->ranks[rank].list;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    int r;

    r = group_check(core, rank, msg, &text);
    if (r < 0) {
        core_reply_done(core, rank, msg->request, r, "%s", line);
        return;
    }
    if (begins_anew(list))
        reg_list_clear(list);
    r = group_add(list, msg);
    core_reply_done(core, rank, msg->request, r, "%s",
                    r < 0 ? "no memory for one more group" : "");
}

/* ---- the message ----------------------------------------------------------------------------- */

static int params_check(const struct core *core, uint32_t rank, const struct wire_msg *msg,
                        struct text *text)
{
    uint32_t groups = 1 + core->ranks[rank].list.group_count;

    for (uint32_t i = 0; i < msg->u.reg.count; i++) {
        const struct wire_param *param = &msg->u.reg.params[i];

        if (param->group < groups && param->dtype < GW_DTYPES && param->grad_dtype < GW_DTYPES)
            continue;
        text_add(text, "parameter %u, ", msg->u.reg.first + i);
        core_add_name(text, param->name);
        if (param->group >= groups)
            text_add(text, ", is of group %u, but rank %u has added %u: add it first", param->group,
                     rank, groups - 1);
        else
            text_add(text, ", has a dtype that does not exist");
        return GW_E_INVALID;
    }
    return 0;
}

static int page_check(const struct core *core, uint32_t rank, const struct wire_msg *msg,
                      struct text *text)
{
    const struct core_rank *mine = &core->ranks[rank];
    uint32_t first = msg->u.reg.first, total = msg->u.reg.total, count = msg->u.reg.count;

    if (core->sealed || mine->seal_request) {
        text_add(text, "rank %u registers parameters after its seal: add them before gw_seal",
                 rank);
        return GW_E_STATE;
    }
    if (total > GW_PARAMS_MAX) {
        text_add(text, "%u parameters are more than the limit of %u", total, GW_PARAMS_MAX);
        return GW_E_LIMIT;
    }
    if (count == 0 || count > total || first > total - count) {
        text_add(text, "a page of %u parameters from index %u on does not fit a list of %u", count,
                 first, total);
        return GW_E_INVALID;
    }
    if (first != 0 && (first != mine->list.count || total != mine->list.total)) {
        text_add(text, "a page from index %u of %u follows %u of %u parameters: pages come in "
                 "order and all say the same total", first, total, mine->list.count,
                 mine->list.total);
        return GW_E_INVALID;
    }
    return params_check(core, rank, msg, text);
}

void registry_register(struct core *core, uint32_t rank, const struct wire_msg *msg)
{
    struct reg_list *list = &core->ranks[rank].list;
    char line[GW_TEXT_MAX + 1];
    struct text text = TEXT(line);
    int r;

    r = page_check(core, rank, msg, &text);
    if (r < 0) {
        core_reply_done(core, rank, msg->request, r, "%s", line);
        return;
    }
    if (msg->u.reg.first == 0)
        clear_params(list); /* a list begun anew */
    list->total = msg->u.reg.total;
    for (uint32_t i = 0; i < msg->u.reg.count && r == 0; i++)
        r = list_add(list, &msg->u.reg.params[i]);
    if (r < 0) {
        clear_params(list);
        core_reply_done(core, rank, msg->request, r,
                        "no memory for a list of %u parameters of rank %u", msg->u.reg.total, rank);
        return;
    }
    core_reply_done(core, rank, msg->request, 0, "%s", "");
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool param_equal(const struct reg_list *a, const struct reg_list *b, uint32_t param)
{
    const struct reg_param *x = &a->params[param], *y = &b->params[param];

    return x->numel == y->numel && x->flags == y->flags && x->group == y->group &&
           x->dtype == y->dtype && x->grad_dtype == y->grad_dtype &&
           strcmp(reg_name(a, param), reg_name(b, param)) == 0 &&
           strcmp(reg_unit(a, param), reg_unit(b, param)) == 0;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char **names_sorted(const struct reg_list *list)
{
    const char **names = malloc((list->count + 1) * sizeof(*names));

    for (uint32_t i = 0; names && i < list->count; i++)
        names[i] = reg_name(list, i);
    if (names)
        qsort(names, list->count, sizeof(*names), name_order);
    return names;
}

/* True if both lists hold the same names, in whatever order. (No memory: false; only a hint.) */
static bool same_names(const struct reg_list *a, const struct reg_list *b)
{
    const char **names_a = NULL, **names_b = NULL;
    bool same = a->count == b->count;

    if (same) {
        names_a = names_sorted(a);
        names_b = names_sorted(b);
        same = names_a && names_b;
    }
    for (uint32_t i = 0; same && i < a->count; i++)
        same = strcmp(names_a[i], names_b[i]) == 0;
    free(names_a);
    free(names_b);
    return same;
}

static void say_param(const struct reg_list *list, uint32_t param, const char *side,
                      struct text *text)
{
    const struct reg_param *of = &list->params[param];

    text_add(text, "%s has ", side);
    core_add_name(text, reg_name(list, param));
    text_add(text, " (%llu elements", (unsigned long long)of->numel);
    if (of->dtype != GW_DTYPE_FP32 || of->grad_dtype != GW_DTYPE_FP32)
        text_add(text, ", %s, gradients %s", core_dtype_name(of->dtype),
                 core_dtype_name(of->grad_dtype));
    if (*reg_unit(list, param)) {
        text_add(text, ", unit ");
        core_add_name(text, reg_unit(list, param));
    }
    if (of->group)
        text_add(text, ", group %u", of->group);
    if (of->flags)
        text_add(text, ", flags 0x%x", of->flags);
    text_add(text, ")");
}

static void say_order(const struct reg_list *list, uint32_t first, const char *side,
                      struct text *text)
{
    text_add(text, "%s:", side);
    for (uint32_t i = first; i < list->count && i < first + SHOWN_NAMES; i++) {
        text_add(text, i > first ? ", " : " ");
        core_add_name(text, reg_name(list, i));
    }
    text_add(text, list->count > first + SHOWN_NAMES ? ", ..." : "");
}

static void say_counts(const struct reg_list *a, const struct reg_list *b, const char *a_side,
                       const char *b_side, struct text *text)
{
    const struct reg_list *longer = a->count > b->count ? a : b;
    uint32_t shorter = a->count > b->count ? b->count : a->count;

    text_add(text, "%s has %u parameters, %s has %u; only %s has ", a_side, a->count, b_side,
             b->count, longer == a ? a_side : b_side);
    core_add_name(text, reg_name(longer, shorter));
    text_add(text, " at index %u", shorter);
}

/* "rank 0: group 1 = 0,4 in runs of 2" */
static void say_group(const struct reg_list *list, uint32_t group, const char *side,
                      struct text *text)
{
    const struct reg_group *of = &list->groups[group];

    text_add(text, "%s: ", side);
    if (group >= list->group_count) {
        text_add(text, "no group %u", group + 1);
        return;
    }
    text_add(text, "group %u = ", group + 1);
    for (uint32_t i = 0; i < of->count; i++)
        text_add(text, i ? ",%u" : "%u", of->ranks[i]);
    if (of->shard_ranks)
        text_add(text, " in runs of %u", of->shard_ranks);
}

static bool group_equal(const struct reg_group *a, const struct reg_group *b)
{
    return a->count == b->count && a->shard_ranks == b->shard_ranks &&
           memcmp(a->ranks, b->ranks, a->count * sizeof(a->ranks[0])) == 0;
}

static bool groups_equal(const struct reg_list *a, const struct reg_list *b, const char *a_side,
                         const char *b_side, struct text *text)
{
    uint32_t group = 0;

    while (group < a->group_count && group < b->group_count &&
           group_equal(&a->groups[group], &b->groups[group]))
        group++;
    if (group == a->group_count && group == b->group_count)
        return true;
    say_group(a, group, a_side, text);
    text_add(text, "; ");
    say_group(b, group, b_side, text);
    return false;
}

bool reg_list_equal(const struct reg_list *a, const struct reg_list *b, const char *a_side,
                    const char *b_side, struct text *text)
{
    uint32_t param = 0;

    if (!groups_equal(a, b, a_side, b_side, text))
        return false;
    while (param < a->count && param < b->count && param_equal(a, b, param))
        param++;
    if (param == a->count && param == b->count)
        return true;
    if (param == a->count || param == b->count) {
        say_counts(a, b, a_side, b_side, text);
        return false;
    }
    if (strcmp(reg_name(a, param), reg_name(b, param)) != 0 && same_names(a, b)) {
        text_add(text, "the same parameters come in another order from index %u on: ", param);
        say_order(a, param, a_side, text);
        text_add(text, "; ");
        say_order(b, param, b_side, text);
        return false;
    }
    text_add(text, "parameter %u: ", param);
    say_param(a, param, a_side, text);
    text_add(text, ", ");
    say_param(b, param, b_side, text);
    return false;
}
