/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parser of a DeepSpeed configuration, its table of keys, and what keys do. Pure. */
#ifndef GW_CONF_DEEPSPEED_INTERNAL_H
#define GW_CONF_DEEPSPEED_INTERNAL_H

#include <jansson.h>

#include "daemon/base/text.h"
#include "daemon/conf/deepspeed.h"

#define DEEPSPEED_MEANING_BYTES 512u
#define DEEPSPEED_KEYS_MAX 128u

enum key_type {
    KEY_ANY,
    KEY_SWITCH, /* an object that is off unless it says otherwise */
    KEY_PARTS,  /* an object of such */
    KEY_BOOL,
    KEY_COUNT, /* a whole number from 0; 5e8 is one */
    KEY_WHOLE, /* a whole number, negative too */
    KEY_NUMBER,
    KEY_TEXT,
};

struct reader;

/* An entry in the making. */
struct verdict {
    enum deepspeed_status status;
    struct text meaning;
};

/* A key's value, already of the right type. */
struct key_value {
    const json_t *json;
    int64_t whole; /* KEY_COUNT, KEY_WHOLE */
    double number; /* KEY_NUMBER */
    bool on; /* KEY_BOOL; others: not one of false, null, 0, "none", {"enabled": false}, ... */
    const char *text;
};

struct deepspeed_key {
    const char *path;
    enum key_type type;
    enum deepspeed_status status; /* of a key without `take`; a rejected one that is off is not
                                   * needed */
    const char *meaning;
    const char *initial; /* JSON; applied and reported when the key is not there; NULL: nothing */
    /* 0, or GW_E_INVALID after deepspeed_wrong. */
    int (*take)(struct reader *reader, const struct deepspeed_key *key,
                const struct key_value *value, struct verdict *verdict);
};

extern const struct deepspeed_key deepspeed_keys[];
extern const size_t deepspeed_keys_count;

struct reader {
    const char *file;
    const struct deepspeed_given *given;
    struct deepspeed *config;
    const json_t *seen_value[DEEPSPEED_KEYS_MAX]; /* in the file; NULL: not there */
    bool fp16, bf16;
    bool persists_nothing; /* stage3_model_persistence_threshold 0 */
    /* 0: not there */
    uint64_t train_batch, micro_batch, accumulation;
    char autos[512];
    struct text auto_list;
    char *error;
    size_t error_bytes;
};

/* "file: key what"; returns GW_E_INVALID. */
int deepspeed_wrong(struct reader *reader, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TAKE(name)                                                                                 \
    int name(struct reader *reader, const struct deepspeed_key *key,                               \
             const struct key_value *value, struct verdict *verdict)
TAKE(take_stage);
TAKE(take_reduce_scatter);
TAKE(take_bucket);
TAKE(take_overlap);
TAKE(take_unused);
TAKE(take_prefetch);
TAKE(take_live);
TAKE(take_persistence);
TAKE(take_persistent_sum);
TAKE(take_reuse);
TAKE(take_secondary);
TAKE(take_runs);
TAKE(take_clipping);
TAKE(take_predivide);
TAKE(take_reduce_dtype);
TAKE(take_other_dtype);
TAKE(take_accum_dtype);
TAKE(take_half);
TAKE(take_scaler);
TAKE(take_batch);

/* After all keys: micro-steps, and what must agree. */
int deepspeed_settle(struct reader *reader);

#endif
