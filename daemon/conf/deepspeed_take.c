/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What DeepSpeed's keys do here: each function sets options and says in the verdict what it did.
 * Values come with their type checked. Pure; any thread.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "daemon/conf/deepspeed_internal.h"

#define BUCKET_MULTIPLE 4u /* a seal's bucket_bytes are one of fp32 */
#define ELEMENTS_MAX ((int64_t)1 << 48)
#define MICRO_STEPS_MAX 1024u /* as at a seal */
#define CLIPS_SINCE 19008u    /* 0.19.8 was measured to clip unasked; older ones not (case G01) */

#define SAY(verdict_status, ...)                                                                   \
    do {                                                                                           \
        verdict->status = (verdict_status);                                                        \
        text_add(&verdict->meaning, __VA_ARGS__);                                                  \
    } while (0)

static struct gw_zero_options *options_of(struct reader *reader)
{
    return &reader->config->options;
}

/* Bytes of parameters. */
static uint64_t bytes_of(const struct reader *reader, int64_t elements)
{
    return (uint64_t)elements * (reader->config->dtype == GW_DTYPE_FP32 ? 4 : 2);
}

static const char *dtype_name(uint32_t dtype)
{
    static const char *const names[] = {"fp32", "fp16", "bf16"};

    return names[dtype];
}

static int check_elements(struct reader *reader, const struct deepspeed_key *key, int64_t elements)
{
    if (elements <= ELEMENTS_MAX)
        return 0;
    return deepspeed_wrong(reader, key->path, "is too large: at most %" PRId64 " elements",
                           ELEMENTS_MAX);
}

/* ---- ZeRO ------------------------------------------------------------------------------------ */

TAKE(take_stage)
{
    if (value->whole > 3)
        return deepspeed_wrong(reader, key->path, "must be 0 to 3");
    options_of(reader)->stage = (uint32_t)value->whole;
    SAY(DEEPSPEED_SUPPORTED, "ZeRO stage %" PRId64, value->whole);
    return 0;
}

TAKE(take_reduce_scatter)
{
    (void)key;
    options_of(reader)->all_reduce = !value->on;
    SAY(DEEPSPEED_SUPPORTED, "stages 1 to 3: one true %s",
        value->on ? "reduce-scatter per bucket"
                  : "all-reduce per bucket: the same values for twice the bytes");
    return 0;
}

TAKE(take_bucket)
{
    uint32_t dtype = reader->config->grad_dtype;
    uint64_t bytes;
    int r;

    r = check_elements(reader, key, value->whole);
    if (r < 0)
        return r;
    if (value->whole == 0)
        return deepspeed_wrong(reader, key->path, "must not be 0");
    bytes = (uint64_t)value->whole * (dtype == GW_DTYPE_FP32 ? 4 : 2);
    bytes = (bytes + BUCKET_MULTIPLE - 1) / BUCKET_MULTIPLE * BUCKET_MULTIPLE;
    options_of(reader)->bucket_bytes = bytes;
    SAY(DEEPSPEED_MAPPED, "bucket_bytes %" PRIu64 " (%" PRId64 " %s elements)", bytes, value->whole,
        dtype_name(dtype));
    return 0;
}

TAKE(take_overlap)
{
    (void)key;
    options_of(reader)->overlap_off = !value->on;
    SAY(value->on ? DEEPSPEED_SUPPORTED : DEEPSPEED_MAPPED,
        "%s; the same bits either way (DeepSpeed's default: true in stage 3 only)",
        value->on ? "a bucket is reduced while backward goes on" : "overlap_off 1");
    return 0;
}

TAKE(take_unused)
{
    (void)key;
    options_of(reader)->unused = value->on ? GW_UNUSED_ZERO : GW_UNUSED_ERROR;
    SAY(DEEPSPEED_MAPPED, "unused %s: a parameter without gradient %s",
        value->on ? "zero" : "error", value->on ? "counts as zero" : "ends the job with its name");
    return 0;
}

TAKE(take_prefetch)
{
    int r;

    r = check_elements(reader, key, value->whole);
    if (r < 0)
        return r;
    /* 0 is our default, so that "nothing" is one byte: no unit is that small. */
    options_of(reader)->prefetch_bytes = value->whole ? bytes_of(reader, value->whole) : 1;
    SAY(DEEPSPEED_MAPPED, "prefetch_bytes %" PRIu64 " (stage 3: gathered ahead%s)",
        options_of(reader)->prefetch_bytes, value->whole ? "" : ": nothing");
    return 0;
}

TAKE(take_live)
{
    uint64_t bytes, model = bytes_of(reader, (int64_t)reader->given->numel);
    int r;

    r = check_elements(reader, key, value->whole);
    if (r < 0)
        return r;
    bytes = bytes_of(reader, value->whole);
    if (bytes == 0) {
        SAY(DEEPSPEED_MAPPED, "gather_bytes: the three largest units of the model");
        return 0;
    }
    if (model > 0 && bytes > model)
        bytes = model;
    options_of(reader)->gather_bytes = bytes;
    SAY(DEEPSPEED_MAPPED, "gather_bytes %" PRIu64 " (stage 3: gathered at once%s)", bytes,
        bytes == model ? "; the whole model, which is less" : "");
    return 0;
}

/* Elements, as bytes of an option of ours; 0: off. */
static int take_bytes(struct reader *reader, const struct deepspeed_key *key,
                      const struct key_value *value, struct verdict *verdict,
                      const char *option, const char *effect, uint64_t *at)
{
    int r;

    if (value->whole == 0) {
        SAY(DEEPSPEED_SUPPORTED, "0, off: %s", key->meaning);
        return 0;
    }
    r = check_elements(reader, key, value->whole);
    if (r < 0)
        return r;
    *at = bytes_of(reader, value->whole);
    SAY(DEEPSPEED_MAPPED, "%s %" PRIu64 " (stage 3: %s)", option, *at, effect);
    return 0;
}

TAKE(take_persistence)
{
    return take_bytes(reader, key, value, verdict, "persist_bytes",
                      "parameters of at most so many bytes stay gathered",
                      &reader->config->persist_bytes);
}

/* A bound on all of them together: only where it binds nothing, or everything. */
TAKE(take_persistent_sum)
{
    bool binds = value->whole <= ELEMENTS_MAX &&
                 (reader->given->numel == 0 || (uint64_t)value->whole < reader->given->numel);

    (void)key;
    if (value->whole == 0) {
        reader->persists_nothing = true;
        SAY(DEEPSPEED_MAPPED, "persist_bytes 0: no parameter stays gathered");
    } else if (!binds) {
        SAY(DEEPSPEED_NOT_NEEDED, "the model has no more elements than may stay gathered");
    } else {
        SAY(DEEPSPEED_REJECTED, "a bound on the sum of parameters that stay gathered is not done "
            "here: lower stage3_param_persistence_threshold");
    }
    return 0;
}

TAKE(take_reuse)
{
    return take_bytes(reader, key, value, verdict, "reuse_bytes",
                      "a released unit stays gathered if it is fetched again within so many bytes, "
                      "while gather_bytes allow",
                      &options_of(reader)->reuse_bytes);
}

/* 1, 0 and below: no such groups. */
static int check_runs(struct reader *reader, const struct deepspeed_key *key, int64_t ranks)
{
    if (ranks <= 1 || reader->given->world % (uint64_t)ranks == 0)
        return 0;
    return deepspeed_wrong(reader, key->path, "is %" PRId64 ", which does not divide %u ranks",
                           ranks, reader->given->world);
}

TAKE(take_secondary)
{
    int r;

    r = check_runs(reader, key, value->whole);
    if (r < 0)
        return r;
    if (value->whole <= 1) {
        SAY(DEEPSPEED_NOT_NEEDED, "off: no secondary shards");
        return 0;
    }
    reader->config->secondary_ranks = (uint32_t)value->whole;
    SAY(DEEPSPEED_MAPPED, "secondary_ranks %" PRId64 " (stage 3: each block of so many ranks keeps "
        "a second copy of the shards; of a version, a block gathers each unit once from all ranks, "
        "and else from that copy)", value->whole);
    return 0;
}

TAKE(take_runs)
{
    int r;

    r = check_runs(reader, key, value->whole);
    if (r < 0)
        return r;
    if (value->whole <= 1) {
        SAY(DEEPSPEED_NOT_NEEDED, "off: one group of all ranks");
        return 0;
    }
    reader->config->shard_ranks = (uint32_t)value->whole;
    SAY(DEEPSPEED_MAPPED, "shard_ranks %" PRId64 " (stages 1 to 3: each run of so many ranks holds "
        "the shards; gradients are all-reduced between runs once a step)", value->whole);
    return 0;
}

/* ---- sums ------------------------------------------------------------------------------------ */

TAKE(take_clipping)
{
    uint32_t version = reader->given->version ? reader->given->version : DEEPSPEED_VERSION;
    bool given = value->json != NULL;
    double norm = value->number;

    if (norm < 0)
        return deepspeed_wrong(reader, key->path, "must be positive, or 0 for none");
    if (!given && version < CLIPS_SINCE)
        norm = 0;
    options_of(reader)->clip_norm = norm;
    SAY(given ? DEEPSPEED_SUPPORTED : DEEPSPEED_MAPPED, "clip_norm %g%s", norm,
        given      ? ""
        : norm > 0 ? ": DeepSpeed 0.19.8 clips when the key is absent; older versions did not "
                     "(--deepspeed-version); write 0.0 for no clipping"
                   : ": DeepSpeed before 0.19.8 does not clip when the key is absent");
    return 0;
}

TAKE(take_predivide)
{
    if (value->number <= 0)
        return deepspeed_wrong(reader, key->path, "must be positive");
    SAY(DEEPSPEED_NOT_NEEDED, "divided before and multiplied after: the mean stays; it is divided "
                              "once here, after the sum, which is made in fp32");
    return 0;
}

static int read_dtype(struct reader *reader, const struct deepspeed_key *key, const char *text,
                      uint32_t *ret_dtype)
{
    if (strcmp(text, "bfp16") == 0 || strcmp(text, "bfloat16") == 0)
        text = "bf16"; /* other spellings that DeepSpeed takes */
    for (uint32_t dtype = 0; dtype < GW_DTYPES; dtype++) {
        if (strcmp(text, dtype_name(dtype)) == 0) {
            *ret_dtype = dtype;
            return 0;
        }
    }
    return deepspeed_wrong(reader, key->path, "must be fp32, fp16 or bf16");
}

TAKE(take_reduce_dtype)
{
    uint32_t dtype = 0;
    int r;

    r = read_dtype(reader, key, value->text, &dtype);
    if (r < 0)
        return r;
    options_of(reader)->reduce_dtype = dtype;
    if (dtype == GW_DTYPE_FP32)
        SAY(DEEPSPEED_SUPPORTED, "gradients are summed as they are given, in fp32");
    else
        SAY(DEEPSPEED_MAPPED, "reduce_dtype %s: each rank's gradient is rounded to it, and the "
            "sum is made in fp32", dtype_name(dtype));
    return 0;
}

TAKE(take_other_dtype)
{
    uint32_t dtype = 0;
    int r;

    r = read_dtype(reader, key, value->text, &dtype);
    if (r < 0)
        return r;
    if (dtype == GW_DTYPE_FP32)
        SAY(DEEPSPEED_SUPPORTED, "sums are made in fp32");
    else
        SAY(DEEPSPEED_REJECTED, "sequence-parallel groups have no dtype of their own here: "
            "communication_data_type is for all");
    return 0;
}

TAKE(take_accum_dtype)
{
    uint32_t dtype = 0, grad_dtype = reader->config->grad_dtype;
    int r;

    r = read_dtype(reader, key, value->text, &dtype);
    if (r < 0)
        return r;
    if (dtype == GW_DTYPE_FP32)
        SAY(DEEPSPEED_SUPPORTED, "accumulators and reduced gradients are fp32");
    else if (dtype != grad_dtype)
        SAY(DEEPSPEED_REJECTED, "accumulators are fp32, or of the gradients' dtype, which is %s",
            dtype_name(grad_dtype));
    else
        SAY(DEEPSPEED_MAPPED, "accum_as_grads 1: accumulators and reduced gradients are %s",
            dtype_name(dtype));
    options_of(reader)->accum_as_grads = dtype != GW_DTYPE_FP32 && dtype == grad_dtype;
    return 0;
}

/* ---- precision ------------------------------------------------------------------------------- */

TAKE(take_half)
{
    if (!value->on)
        SAY(DEEPSPEED_NOT_NEEDED, "off");
    else if (reader->given->has_dtype)
        SAY(DEEPSPEED_MAPPED, "the caller says which dtype");
    else
        SAY(DEEPSPEED_MAPPED, "dtype and grad_dtype %s of parameters (gw_param_options); shards "
            "are kept in fp32, and sizes below are of %s elements", key->meaning, key->meaning);
    return 0;
}

#define SCALE_POWER_MAX 127 /* 2^127 is the last below infinity in fp32 */

static int set_scale(struct reader *reader, const struct deepspeed_key *key, double scale,
                     double *at)
{
    if (!(scale > 0) || scale > ldexp(1, SCALE_POWER_MAX))
        return deepspeed_wrong(reader, key->path, "must be above 0 and at most 2^127");
    *at = scale;
    return 0;
}

static int set_count(struct reader *reader, const struct deepspeed_key *key, int64_t count,
                     uint32_t *at)
{
    if (count < 1 || count > INT32_MAX)
        return deepspeed_wrong(reader, key->path, "must be 1 to %d", INT32_MAX);
    *at = (uint32_t)count;
    return 0;
}

/* key->meaning: the member that is set. */
static int set_scaler(struct reader *reader, const struct deepspeed_key *key,
                      const struct key_value *value)
{
    struct gw_loss_scale_options *scaler = &reader->config->loss_scale;

    if (strcmp(key->meaning, "static_scale") == 0) /* 0: dynamic */
        return value->number == 0 ? 0
                                  : set_scale(reader, key, value->number, &scaler->static_scale);
    if (strcmp(key->meaning, "min_scale") == 0)
        return set_scale(reader, key, value->number, &scaler->min_scale);
    if (strcmp(key->meaning, "window") == 0)
        return set_count(reader, key, value->whole, &scaler->window);
    if (strcmp(key->meaning, "hysteresis") == 0)
        return set_count(reader, key, value->whole, &scaler->hysteresis);
    if (strcmp(key->meaning, "consecutive_hysteresis") == 0) {
        scaler->consecutive_hysteresis = value->on;
        return 0;
    }
    if (value->whole > SCALE_POWER_MAX)
        return deepspeed_wrong(reader, key->path, "must be at most %d", SCALE_POWER_MAX);
    scaler->initial_scale = ldexp(1, (int)value->whole);
    return 0;
}

/* reader->fp16 was looked up first: "enabled" may stand after its details. */
TAKE(take_scaler)
{
    int r;

    if (!reader->fp16) {
        SAY(DEEPSPEED_NOT_NEEDED, "fp16 is off");
        return 0;
    }
    r = set_scaler(reader, key, value);
    if (r == 0)
        SAY(DEEPSPEED_MAPPED,
            "the loss scaler's %s (gw_loss_scale_init); overflows of the first steps are its "
            "search, step and bucket are reported",
            key->meaning);
    return r;
}

/* ---- batch ----------------------------------------------------------------------------------- */

TAKE(take_batch)
{
    bool steps = strncmp(key->path, "gradient", 8) == 0;
    uint64_t *at = steps                                   ? &reader->accumulation
                   : strcmp(key->path, "train_batch_size") ? &reader->micro_batch
                                                           : &reader->train_batch;

    if (value->whole == 0 || value->whole > INT32_MAX)
        return deepspeed_wrong(reader, key->path, "must be 1 to %d", INT32_MAX);
    *at = (uint64_t)value->whole;
    if (!steps)
        SAY(DEEPSPEED_SUPPORTED,
            "train_batch_size = train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x %u ranks",
            reader->given->world);
    else
        SAY(DEEPSPEED_MAPPED, "micro_steps %u",
            reader->given->micro_steps ? reader->given->micro_steps : (unsigned)value->whole);
    return 0;
}

/* DeepSpeed's rules: of the three any may be missing, as long as one batch size is there. */
static int settle_batch(struct reader *reader, uint64_t *ret_steps)
{
    uint64_t world = reader->given->world, steps = reader->accumulation;
    uint64_t per_step = reader->micro_batch * world; /* both below 2^31 and 2^20 */

    if (steps == 0)
        steps = reader->train_batch && per_step ? reader->train_batch / per_step : 1;
    if (reader->train_batch && per_step &&
        (steps == 0 || per_step > reader->train_batch || reader->train_batch / per_step != steps ||
         reader->train_batch % per_step))
        return deepspeed_wrong(reader, "train_batch_size",
                               "is %" PRIu64 ", but train_micro_batch_size_per_gpu %" PRIu64
                               " x gradient_accumulation_steps %" PRIu64 " x %" PRIu64
                               " ranks is another number",
                               reader->train_batch, reader->micro_batch, steps ? steps : 1, world);
    if (reader->train_batch && !per_step && reader->train_batch % (steps * world))
        return deepspeed_wrong(reader, "train_batch_size",
                               "is %" PRIu64 ", which %" PRIu64 " ranks and %" PRIu64
                               " gradient_accumulation_steps do not divide",
                               reader->train_batch, world, steps);
    *ret_steps = steps;
    return 0;
}

/* The gradient's clip is the scaler's to do: a verdict's norm is that of the scaled gradient. */
static int settle_scaler(struct reader *reader)
{
    struct gw_loss_scale_options *scaler = &reader->config->loss_scale;
    double initial = scaler->initial_scale > 0 ? scaler->initial_scale : 65536;

    if (!reader->fp16)
        return 0;
    scaler->struct_size = sizeof(*scaler);
    if (scaler->min_scale > initial)
        return deepspeed_wrong(reader, "fp16.min_loss_scale", "is above the initial scale %g",
                               initial);
    return 0;
}

/* In the options only what a seal takes in the stage. */
static void settle_stage(struct reader *reader)
{
    struct deepspeed *config = reader->config;

    if (reader->persists_nothing)
        config->persist_bytes = 0;
    config->options.persist_bytes = config->options.stage == 3 ? config->persist_bytes : 0;
    config->options.shard_ranks = config->options.stage > 0 ? config->shard_ranks : 0;
    config->options.secondary_ranks = config->options.stage == 3 ? config->secondary_ranks : 0;
}

/* Runs of all ranks are none. */
static int check_blocks(struct reader *reader)
{
    const struct deepspeed *config = reader->config;

    if (config->secondary_ranks == 0 || config->shard_ranks == 0 ||
        config->shard_ranks == reader->given->world)
        return 0;
    return deepspeed_wrong(reader, "zero_optimization.zero_hpz_partition_size",
                           "and mics_shard_size contradict each other: with the latter each run "
                           "of ranks holds a whole copy of the shards already");
}

int deepspeed_settle(struct reader *reader)
{
    uint64_t steps = 0;
    int r;

    if (reader->fp16 && reader->bf16)
        return deepspeed_wrong(reader, "fp16.enabled", "and bf16.enabled contradict each other");
    r = settle_scaler(reader);
    if (r < 0)
        return r;
    r = check_blocks(reader);
    if (r < 0)
        return r;
    settle_stage(reader);
    if (reader->given->micro_steps) {
        options_of(reader)->micro_steps = reader->given->micro_steps;
        return 0;
    }
    r = settle_batch(reader, &steps);
    if (r < 0)
        return r;
    if (steps > MICRO_STEPS_MAX)
        return deepspeed_wrong(reader, "gradient_accumulation_steps",
                               "is %" PRIu64 ", but a step has at most %u micro-steps", steps,
                               MICRO_STEPS_MAX);
    options_of(reader)->micro_steps = (uint32_t)steps;
    return 0;
}
