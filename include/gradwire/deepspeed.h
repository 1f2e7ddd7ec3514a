/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DeepSpeed configuration (ds_config.json) as options of a gradwire job: what `gwctl plan
 * --deepspeed` plans, for the job itself, by the same parser.
 *
 * In a library of its own, libgradwire-deepspeed (pkg-config gradwire-deepspeed): the parser needs
 * jansson, and a training process that has no such file should neither load it nor depend on its
 * version. Thread and error rules are those of gradwire.h. The calls need no job and no gradwired;
 * they read the one file that they are given.
 *
 *   struct gw_zero_options options = {.struct_size = sizeof(options)};
 *   struct gw_deepspeed_given given = {.struct_size = sizeof(given), .world = world};
 *   struct gw_param_options all = {.struct_size = sizeof(all)};
 *   r = gw_job_options_from_deepspeed_file("ds_config.json", &given, &options, &config);
 *   r = gw_deepspeed_param_options(config, &all);
 *   ... gw_param_add(job, name, numel, &all, &param); gw_seal(job, &options, timeout_ns);
 */
#ifndef GRADWIRE_DEEPSPEED_H
#define GRADWIRE_DEEPSPEED_H

#include <gradwire/gradwire.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gw_deepspeed; /* what was read */

/* What the file cannot know. Values that are not 0 come before the file's, and fill in its "auto"
 * (case G04: another "auto" is refused by name). */
struct gw_deepspeed_given {
    size_t struct_size;
    uint32_t world;           /* ranks, >= 1 */
    uint32_t micro_steps;     /* in place of gradient_accumulation_steps */
    uint64_t numel;           /* of the model: bounds the gather budget; 0: unknown */
    uint64_t bucket_bytes;    /* in place of reduce_bucket_size */
    const char *version;      /* of DeepSpeed, whose defaults are taken; NULL: "0.19.8" */
    uint32_t accept_rejected; /* 1: go on without what this release does not do */
};

/* Fills *ret_options (its struct_size is set by the caller), all of it: what the file does not say
 * is DeepSpeed's default, or 0. *ret_config (may be NULL): every key and default, for a log.
 * GW_E_IO: the file cannot be read. GW_E_INVALID: "file:line:column: ..." for what is no JSON
 * (comments and trailing commas are none), "file: key ..." for wrong types and contradictions.
 * GW_E_UNIMPLEMENTED: keys that ask for what this release does not do, each by name, unless
 * accept_rejected. Nothing is written then. */
GW_API int gw_job_options_from_deepspeed_file(const char *path,
                                              const struct gw_deepspeed_given *given,
                                              struct gw_zero_options *ret_options,
                                              struct gw_deepspeed **ret_config);
/* NULL is fine; returns NULL. */
GW_API struct gw_deepspeed *gw_deepspeed_free(struct gw_deepspeed *config);

/* The dtypes that the file asks for, of every parameter and its gradients: fp16 or bf16 where that
 * is enabled, else fp32. Fills all of *ret_options (its struct_size is set by the caller): unit
 * NULL and group 0, which no file knows. */
GW_API int gw_deepspeed_param_options(const struct gw_deepspeed *config,
                                      struct gw_param_options *ret_options);

/* 1: fp16 is on, and *ret_options (its struct_size is set by the caller) is for gw_loss_scale_init.
 * clip_norm is in both options: with a loss scale use gw_loss_scale_step.grad_factor, and not the
 * verdict's clip_factor. 0: it is off; nothing is written. */
GW_API int gw_deepspeed_loss_scale(const struct gw_deepspeed *config,
                                   struct gw_loss_scale_options *ret_options);

enum gw_deepspeed_status {
    GW_DEEPSPEED_SUPPORTED = 0,  /* does here what it does there */
    GW_DEEPSPEED_MAPPED = 1,     /* became an option of ours; the meaning says which */
    GW_DEEPSPEED_NOT_NEEDED = 2, /* changes nothing here */
    GW_DEEPSPEED_REJECTED = 3    /* asks for what this release does not do */
};
enum gw_deepspeed_list { GW_DEEPSPEED_KEYS = 0, GW_DEEPSPEED_DEFAULTS = 1 };
struct gw_deepspeed_entry {
    const char *key;   /* "zero_optimization.reduce_scatter" */
    const char *value; /* JSON */
    const char *meaning;
    uint32_t status; /* enum gw_deepspeed_status */
};
/* The list's entry: keys of the file in its order, or defaults that were applied. Texts live as
 * long as `config`. GW_E_NOT_FOUND: there are no more. */
GW_API int gw_deepspeed_get_entry(const struct gw_deepspeed *config, uint32_t list, size_t index,
                                  struct gw_deepspeed_entry *ret_entry);
/* "supported", "mapped", "not_needed", "rejected"; static storage. */
GW_API const char *gw_deepspeed_status_name(uint32_t status);

#ifdef __cplusplus
}
#endif
#endif
