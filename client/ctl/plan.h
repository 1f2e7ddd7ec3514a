/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gwctl plan: reads a model's list and options, works the plan out, prints it. One thread; asks no
 * gradwired. Functions that can fail say so themselves and return the exit code: 64 usage, 65 a bad
 * list, 66 a file that cannot be read, 71 no memory, 78 a bad configuration.
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

struct plan_args {
    const char *model_path;
    const char *deepspeed_path; /* NULL: none */
    uint32_t ranks, nodes;
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

struct plan_report {
    const struct plan_args *args;
    struct model *model;
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

/* plan_make.c: everything but printing. Free the report either way. */
int plan_make(const struct plan_args *args, struct plan_report *report);
void plan_report_free(struct plan_report *report);
bool plan_shows(const struct plan_report *report, uint32_t stage);
/* The plan in the accumulate mode that a stage would run in. */
const struct plan *plan_used(const struct plan_report *report, uint32_t stage);

/* How many parameters stay gathered. */
uint32_t plan_persistent(const struct plan *plan);

extern const char *const plan_dtype_names[GW_DTYPES];
extern const char *const plan_kind_names[GW_KINDS];
extern const char *const plan_memory_names[GW_MEMORIES];

int plan_print_json(const struct plan_report *report);
void plan_print_text(const struct plan_report *report);

#endif
