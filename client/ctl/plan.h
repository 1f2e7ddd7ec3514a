/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwctl plan: reads a model's list and options, works the plan out, prints it. One thread; asks no
 * gradwired. Functions that can fail say so themselves and return the exit code: 64 usage, 65 a bad
 * list, or more ranks than there are tables or memory for, 66 a file that cannot be read, 71 no
 * memory to read it, 78 a bad configuration.
 */
#ifndef GW_CTL_PLAN_H
#define GW_CTL_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/conf/deepspeed.h"
#include "daemon/conf/model.h"
#include "daemon/core/plan.h"

#define PLAN_STAGES 4u
#define PLAN_LINKS_MAX 8u
#define PLAN_MODES 2u /* accumulate: local, shard */
#define PLAN_GROUPS_MAX (GW_GROUPS_MAX - 1u) /* beside that of all ranks */
#define PLAN_RULES_MAX 1024u

struct plan_args {
    const char *model_path;
    const char *deepspeed_path; /* NULL: none */
    uint32_t ranks, nodes;
    uint32_t rank;                       /* whose figures */
    const char *groups[PLAN_GROUPS_MAX]; /* NAME=RANKS, as given */
    uint32_t group_count;
    const char *rules[PLAN_RULES_MAX]; /* PATTERN=GROUP, as given */
    uint32_t rule_count;
    uint32_t expert_parallel; /* 0: not given */
    int stage;                /* -1: all */
    struct wire_seal options; /* as given; 0: not given */
    bool gather_given;
    int dtype, grad_dtype; /* enum gw_dtype; -1: not given */
    uint32_t version; /* of DeepSpeed; 0: not given */
    uint64_t links[PLAN_LINKS_MAX];
    uint32_t link_count;
    bool json;
};

/* What is not said on the command line or in a DeepSpeed file. */
struct plan_default {
    const char *key;
    uint64_t number;
    const char *text; /* in place of the number */
    const char *meaning;
};

struct plan_groups {
    char names[GW_GROUPS_MAX][GW_LABEL_MAX + 1]; /* by group; 0: "all" */
    struct layout_group of[PLAN_GROUPS_MAX];     /* from group 1 on; ranks are malloc'd */
    uint32_t count;                              /* of these */
    uint32_t *of_param;
    uint64_t numel[GW_GROUPS_MAX];
    uint32_t params[GW_GROUPS_MAX];
};

struct plan_report {
    const struct plan_args *args;
    struct model *model;
    struct plan_groups groups;
    struct layout_param *params; /* views of the model */
    struct deepspeed *config;    /* NULL: none */
    struct wire_seal options;    /* of all stages */
    struct plan *plans[PLAN_STAGES][PLAN_MODES];
    struct plan_default defaults[8];
    uint32_t default_count;
    uint64_t numel;
    uint64_t dtype_numel[GW_DTYPES], grad_numel[GW_DTYPES]; /* by dtype */
};

/* plan_file.c: the whole file, or its first bytes where it is a safetensors file; free it. */
int plan_read(const char *path, size_t bytes_max, bool safetensors, char **ret_data,
              size_t *ret_bytes);

/* plan_groups.c: which groups there are, and which parameter is of which; the report has its model.
 * Free them either way. */
int plan_groups_make(struct plan_report *report);
void plan_groups_free(struct plan_groups *groups);
/* Ranks as --group takes them, "0-6:2,9"; malloc'd, NULL: no memory. */
char *plan_ranks_text(const uint32_t *ranks, uint32_t count);

/* plan_make.c: everything but printing. Free the report either way. */
int plan_make(const struct plan_args *args, struct plan_report *report);
void plan_report_free(struct plan_report *report);
bool plan_shows(const struct plan_report *report, uint32_t stage);
/* The plan in the accumulate mode that a stage would run in. */
const struct plan *plan_used(const struct plan_report *report, uint32_t stage);

/* Memory that is each group's own; the rest serves all of a rank's groups. */
bool plan_memory_by_group(unsigned memory);

/* How many parameters stay gathered. */
uint32_t plan_persistent(const struct plan *plan);

extern const char *const plan_dtype_names[GW_DTYPES];
extern const char *const plan_kind_names[GW_KINDS];
extern const char *const plan_memory_names[GW_MEMORIES];

int plan_print_json(const struct plan_report *report);
void plan_print_text(const struct plan_report *report);

#endif
