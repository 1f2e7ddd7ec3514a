/* SPDX-License-Identifier: Apache-2.0 */
/* gwctl plan --json: schema 1. Figures are plan.h's; of the accumulate mode that would be used. */
#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>

#include "client/ctl/ctl.h"
#include "client/ctl/plan.h"

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value); /* plan.c keeps figures below 2^63 */
}

/* One figure of every kind of collective; `member`: its place in struct plan_kind. */
static json_t *by_kind(const struct plan_kind kinds[GW_KINDS], size_t member)
{
    json_t *object = json_object();

    for (unsigned k = 0; k < GW_KINDS; k++) {
        const char *kind = (const char *)&kinds[k];

        (void)json_object_set_new(object, plan_kind_names[k],
                                  number(*(const uint64_t *)(const void *)(kind + member)));
    }
    return object;
}

/* What stages and groups have alike. */
static json_t *figures_of(uint32_t stage, const struct plan_kind kinds[GW_KINDS])
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "stage", number(stage), "calls",
                     by_kind(kinds, offsetof(struct plan_kind, calls)), "payload_bytes",
                     by_kind(kinds, offsetof(struct plan_kind, payload_bytes)), "ring_bytes",
                     by_kind(kinds, offsetof(struct plan_kind, ring_bytes)), "cross_node_bytes",
                     by_kind(kinds, offsetof(struct plan_kind, cross_node_bytes)));
}

/* Of a group, whose members share the rest with their other groups: without that. */
static json_t *memory(const uint64_t bytes[GW_MEMORIES], bool of_group)
{
    json_t *object = json_object();

    for (unsigned m = 0; m < GW_MEMORIES; m++) {
        if (!of_group || plan_memory_by_group(m))
            (void)json_object_set_new(object, plan_memory_names[m], number(bytes[m]));
    }
    return object;
}

static json_t *stage_of(const struct plan *plan)
{
    json_t *stage = figures_of(plan->options.stage, plan->kinds);

    (void)json_object_update_new(
        stage, json_pack("{s:o, s:o, s:o, s:o, s:o}", "memory_bytes",
                         memory(plan->memory_bytes, false),
                         "shard_ranks", number(layout_groups(plan->layout)[0].shard_ranks),
                         "persistent_params", number(plan_persistent(plan)), "reuse_bytes",
                         number(plan->options.reuse_bytes), "secondary_ranks",
                         number(plan->options.secondary_ranks)));
    return stage;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static json_t *group_stage_of(const struct plan *plan, uint32_t g)
{
    const struct plan_group *group = &plan->groups[g];
    json_t *stage = figures_of(plan->options.stage, group->kinds);

    (void)json_object_update_new(
        stage,
        json_pack("{s:o, s:o, s:o, s:o}", "memory_bytes", memory(group->memory_bytes, true),
                  "shard_ranks", number(layout_groups(plan->layout)[g].shard_ranks), "buckets",
                  number(group->buckets), "padding_bytes", number(group->padding_bytes)));
    return stage;
}

static json_t *group_of(const struct plan_report *report, uint32_t g)
{
    const struct plan *any = plan_used(report, 0);
    uint32_t members = layout_groups(any->layout)[g].members;
    char *ranks = plan_ranks_text(layout_page_members(layout_page(any->layout), g), members);
    json_t *stages = json_array(), *group;

    for (uint32_t s = 0; s < PLAN_STAGES; s++) {
        if (plan_shows(report, s))
            (void)json_array_append_new(stages, group_stage_of(plan_used(report, s), g));
    }
    group = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "name", report->groups.names[g], "ranks",
                      ranks != NULL ? json_string(ranks) : NULL, "members", number(members),
                      "params", number(report->groups.numel[g]), "rank",
                      number(any->groups[g].rank), "stages", stages);
    free(ranks);
    return group;
}

/* NULL: no memory, for a program must not miss one. */
static json_t *groups_of(const struct plan_report *report)
{
    json_t *groups = json_array();

    for (uint32_t g = 0; g <= report->groups.count; g++) {
        if (json_array_append_new(groups, group_of(report, g)) < 0) {
            json_decref(groups);
            return NULL;
        }
    }
    return groups;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Elements by dtype. */
static json_t *by_dtype(const uint64_t *numel)
{
    json_t *object = json_object();

    for (unsigned d = 0; d < GW_DTYPES; d++)
        (void)json_object_set_new(object, plan_dtype_names[d], number(numel[d]));
    return object;
}

static void add_entries(json_t *array, const struct deepspeed_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct deepspeed_entry *entry = &list->entries[i];

        (void)json_array_append_new(
            array, json_pack("{s:s, s:o, s:s, s:s}", "key", entry->key, "value",
                             json_loads(entry->value, JSON_DECODE_ANY, NULL), "status",
                             deepspeed_status_name(entry->status), "meaning", entry->meaning));
    }
}

static void add_own_defaults(json_t *array, const struct plan_report *report)
{
    for (uint32_t i = 0; i < report->default_count; i++) {
        const struct plan_default *own = &report->defaults[i];
        json_t *value = own->text != NULL ? json_string(own->text) : number(own->number);

        (void)json_array_append_new(
            array, json_pack("{s:s, s:o, s:s, s:s}", "key", own->key, "value", value, "status",
                             deepspeed_status_name(DEEPSPEED_SUPPORTED), "meaning", own->meaning));
    }
}

int plan_print_json(const struct plan_report *report)
{
    json_t *stages = json_array(), *keys = json_array(), *defaults = json_array();

    for (uint32_t s = 0; s < PLAN_STAGES; s++) {
        if (plan_shows(report, s))
            (void)json_array_append_new(stages, stage_of(plan_used(report, s)));
    }
    if (report->config != NULL) {
        add_entries(keys, &report->config->keys);
        add_entries(defaults, &report->config->defaults);
    }
    add_own_defaults(defaults, report);
    return print_json(
        json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "schema", 1,
                  "params", number(report->numel), "dtypes", by_dtype(report->dtype_numel),
                  "grad_dtypes", by_dtype(report->grad_numel), "ranks", number(report->args->ranks),
                  "ranks_max", number(GW_RANKS_MAX), "nodes", number(report->args->nodes), "rank",
                  number(report->args->rank), "stages", stages, "groups", groups_of(report), "keys",
                  keys, "defaults", defaults));
}
