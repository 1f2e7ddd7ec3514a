/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DeepSpeed configuration (ds_config.json), read as what gradwire makes of it: options of a seal,
 * a report with one entry per key that is there, and one per default that was applied in its place.
 * Pure (text in, struct out; no files); any thread; holds nothing between calls.
 *
 * One table of keys (deepspeed_keys.c) is parser, report and defaults. Keys and defaults are those
 * of DeepSpeed 0.19.8; sizes that DeepSpeed counts in elements become bytes here: of parameters, or
 * for buckets of gradients, in the dtype that fp16.enabled, bf16.enabled or the caller says.
 *
 * What is refused outright (GW_E_INVALID): text that is not JSON, values of a wrong type or out of
 * range, keys that contradict each other, and "auto" where a value is needed. A key that asks for
 * what gradwire does not do is no failure: the report says `rejected`, and why, and the rest of the
 * options is as if the key were not there.
 */
#ifndef GW_CONF_DEEPSPEED_H
#define GW_CONF_DEEPSPEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gradwire/gradwire.h"

#define DEEPSPEED_ERROR_BYTES 1024u
#define DEEPSPEED_TEXT_MAX (1u << 20) /* bytes of a configuration */
#define DEEPSPEED_VERSION 19008u      /* 0.19.8: whose defaults are taken unless said otherwise */

enum deepspeed_status {
    DEEPSPEED_SUPPORTED,  /* does here what it does there */
    DEEPSPEED_MAPPED,     /* became an option of ours; the meaning says which */
    DEEPSPEED_NOT_NEEDED, /* changes nothing here */
    DEEPSPEED_REJECTED,   /* asks for what this release does not do */
};

struct deepspeed_entry {
    char *key;   /* "zero_optimization.reduce_scatter" */
    char *value; /* JSON */
    enum deepspeed_status status;
    char *meaning;
};

struct deepspeed_list {
    struct deepspeed_entry *entries;
    size_t count, room;
};

/* What the caller knows. Values that are not 0 come before the file's, and fill in its "auto". */
struct deepspeed_given {
    uint32_t world;        /* ranks, >= 1 */
    uint64_t numel;        /* of the model: bounds the gather budget; 0: unknown */
    uint64_t bucket_bytes; /* in place of reduce_bucket_size */
    uint32_t micro_steps;  /* in place of gradient_accumulation_steps */
    bool has_dtype, has_grad_dtype; /* in place of what fp16.enabled and bf16.enabled say: */
    uint32_t dtype, grad_dtype;     /* enum gw_dtype */
    uint32_t version;      /* whose defaults: deepspeed_version; 0: DEEPSPEED_VERSION */
};

struct deepspeed {
    struct gw_zero_options options;
    struct gw_loss_scale_options loss_scale; /* struct_size 0: fp16 is off */
    uint32_t dtype, grad_dtype;              /* of gw_param_options */
    bool half; /* dtype is said: fp16 or bf16 is on, or the caller's */
    uint64_t persist_bytes; /* whatever the stage; in options, where a seal takes them */
    uint32_t shard_ranks, secondary_ranks;
    struct deepspeed_list keys, defaults;
};

/* 0, GW_E_NOMEM, or GW_E_INVALID with `error` = "file:line:column: ..." or "file: key ...". */
int deepspeed_parse(const char *text, size_t bytes, const char *file,
                    const struct deepspeed_given *given, struct deepspeed **ret_config, char *error,
                    size_t error_bytes);
struct deepspeed *deepspeed_free(struct deepspeed *config);

/* "supported", "mapped", "not_needed", "rejected". */
const char *deepspeed_status_name(enum deepspeed_status status);
/* "0.19.8" -> 19008; GW_E_INVALID. */
int deepspeed_version(const char *text, uint32_t *ret_version);

#endif
