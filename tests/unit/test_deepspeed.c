/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed configurations: what each key becomes, defaults, refusals with line and column. Values
 * are written out by hand; cases G01 to G04 and R10 are named.
 * ctest: link=gw_conf_json
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/conf/deepspeed.h"
#include "gradwire/errors.h"

#define ZERO(inside) "{\"zero_optimization\": {" inside "}}"

static char error[DEEPSPEED_ERROR_BYTES];
static struct deepspeed_given given;

static int set_up(void **state)
{
    (void)state;
    given = (struct deepspeed_given){.world = 4};
    return 0;
}

static struct deepspeed *parse(const char *text)
{
    struct deepspeed *config = NULL;
    int r = deepspeed_parse(text, strlen(text), "ds.json", &given, &config, error, sizeof(error));

    if (r != 0)
        fail_msg("%s: %s", text, error);
    return config;
}

static void assert_refused(const char *text, const char *message)
{
    struct deepspeed *config = NULL;
    int r = deepspeed_parse(text, strlen(text), "ds.json", &given, &config, error, sizeof(error));

    assert_null(config);
    if (r != GW_E_INVALID || !strstr(error, message))
        fail_msg("%s: %d, \"%s\"; expected \"%s\"", text, r, error, message);
}

static const struct deepspeed_entry *find(const struct deepspeed_list *list, const char *key)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->entries[i].key, key) == 0)
            return &list->entries[i];
    }
    fail_msg("%s is not in the list", key);
    return NULL;
}

static void assert_status(const char *text, const char *key, enum deepspeed_status status)
{
    struct deepspeed *config = parse(text);
    const struct deepspeed_entry *entry = find(&config->keys, key);

    if (entry->status != status)
        fail_msg("%s: %s (%s), expected %s", text, deepspeed_status_name(entry->status),
                 entry->meaning, deepspeed_status_name(status));
    assert_true(entry->meaning[0] != '\0');
    assert_null(deepspeed_free(config));
}

/* ---- values ---- */

static void keys_become_options(void **state)
{
    struct deepspeed *config =
        parse(ZERO("\"stage\": 3, \"reduce_bucket_size\": 1000, \"overlap_comm\": false,"
                   "\"stage3_prefetch_bucket_size\": 50, \"stage3_max_live_parameters\": 70,"
                   "\"ignore_unused_parameters\": false") "");

    (void)state;
    assert_int_equal(config->options.stage, 3);
    assert_int_equal(config->options.bucket_bytes, 4000);
    assert_int_equal(config->options.overlap_off, 1);
    assert_int_equal(config->options.prefetch_bytes, 200);
    assert_int_equal(config->options.gather_bytes, 280);
    assert_int_equal(config->options.unused, GW_UNUSED_ERROR);
    assert_int_equal(config->options.micro_steps, 1);
    assert_int_equal(config->options.struct_size, sizeof(config->options));
    deepspeed_free(config);
}

static void g01_absent_clipping_is_one_and_told(void **state)
{
    struct deepspeed *config = parse("{}");
    const struct deepspeed_entry *entry = find(&config->defaults, "gradient_clipping");

    (void)state;
    assert_true(config->options.clip_norm == 1.0);
    assert_string_equal(entry->value, "1.0");
    assert_non_null(strstr(entry->meaning, "0.19.8"));
    deepspeed_free(config);
    config = parse("{\"gradient_clipping\": 0.0}");
    assert_true(config->options.clip_norm == 0.0);
    assert_int_equal(find(&config->keys, "gradient_clipping")->status, DEEPSPEED_SUPPORTED);
    deepspeed_free(config);
    given.version = 18000; /* 0.18.0 did not clip */
    config = parse("{\"gradient_clipping\": null}");
    assert_true(config->options.clip_norm == 0.0);
    assert_string_equal(find(&config->defaults, "gradient_clipping")->value, "0.0");
    deepspeed_free(config);
}

static void g02_an_old_public_example_is_accepted(void **state)
{
    static const char text[] = "{\"zero_optimization\": {\"stage\": 1, \"reduce_scatter\": true, "
                               "\"overlap_comm\": true}, \"fp16\": {\"initial_scale_power\": 16, "
                               "\"enabled\": true}}";
    struct deepspeed *config = parse(text);

    (void)state;
    assert_int_equal(config->options.stage, 1);
    assert_int_equal(config->options.overlap_off, 0);
    deepspeed_free(config);
    assert_status(text, "zero_optimization.reduce_scatter", DEEPSPEED_SUPPORTED);
    assert_status(text, "fp16.enabled", DEEPSPEED_MAPPED);
    config = parse(text);
    assert_non_null(strstr(find(&config->keys, "fp16.initial_scale_power")->meaning, "search"));
    assert_int_equal(config->dtype, GW_DTYPE_FP16);
    assert_int_equal(config->grad_dtype, GW_DTYPE_FP16);
    deepspeed_free(config);
}

static void the_loss_scaler_is_configured(void **state)
{
    struct deepspeed *config =
        parse("{\"fp16\": {\"initial_scale_power\": 20, \"loss_scale_window\": 500, "
              "\"hysteresis\": 4, \"consecutive_hysteresis\": true, \"min_loss_scale\": 0.25, "
              "\"loss_scale\": 0, \"enabled\": true}, \"gradient_clipping\": 3}");

    (void)state;
    assert_int_equal(config->loss_scale.struct_size, sizeof(config->loss_scale));
    assert_true(config->loss_scale.initial_scale == 1048576);
    assert_true(config->loss_scale.min_scale == 0.25);
    assert_true(config->loss_scale.static_scale == 0);
    assert_true(config->loss_scale.clip_norm == 3);
    assert_int_equal(config->loss_scale.window, 500);
    assert_int_equal(config->loss_scale.hysteresis, 4);
    assert_int_equal(config->loss_scale.consecutive_hysteresis, 1);
    deepspeed_free(config);
    config = parse("{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}");
    assert_true(config->loss_scale.static_scale == 128);
    assert_true(config->loss_scale.clip_norm == 1);
    deepspeed_free(config);
    config = parse("{\"fp16\": {\"loss_scale\": 128}}");
    assert_int_equal(config->loss_scale.struct_size, 0);
    deepspeed_free(config);
#define FP16(inside) "{\"fp16\": {\"enabled\": true, " inside "}}"
    assert_refused(FP16("\"initial_scale_power\": 128"), "fp16.initial_scale_power must be");
    assert_refused(FP16("\"loss_scale\": -1"), "fp16.loss_scale must be above 0");
    assert_refused(FP16("\"loss_scale\": 1e39"), "fp16.loss_scale must be above 0 and at most");
    assert_refused(FP16("\"loss_scale_window\": 0"), "fp16.loss_scale_window must be 1 to");
    assert_refused(FP16("\"loss_scale_window\": 3e9"), "fp16.loss_scale_window must be 1 to");
    assert_refused(FP16("\"hysteresis\": 0"), "fp16.hysteresis must be 1 to");
    assert_refused(FP16("\"min_loss_scale\": 0"), "fp16.min_loss_scale must be above 0");
    assert_refused(FP16("\"initial_scale_power\": 2, \"min_loss_scale\": 5"),
                   "fp16.min_loss_scale is above the initial scale 4");
}

static void g03_floats_are_whole_numbers_where_they_are(void **state)
{
    struct deepspeed *config = parse(ZERO("\"reduce_bucket_size\": 5e8"));

    (void)state;
    assert_int_equal(config->options.bucket_bytes, 2000000000);
    assert_string_equal(find(&config->keys, "zero_optimization.reduce_bucket_size")->value,
                        "500000000.0");
    deepspeed_free(config);
    assert_refused(ZERO("\"reduce_bucket_size\": 5.5"), "must be a whole number");
}

static void g04_auto_is_refused_by_name_unless_filled_in(void **state)
{
    static const char text[] = "{\"zero_optimization\": {\"reduce_bucket_size\": \"auto\"}, "
                               "\"gradient_accumulation_steps\": \"auto\", "
                               "\"train_batch_size\": \"auto\", "
                               "\"optimizer\": {\"params\": {\"lr\": \"auto\"}}}";
    struct deepspeed *config;

    (void)state;
    assert_refused(text, "zero_optimization.reduce_bucket_size, gradient_accumulation_steps, "
                         "train_batch_size say \"auto\"");
    given.bucket_bytes = 4096;
    given.micro_steps = 3;
    config = parse(text);
    assert_int_equal(config->options.bucket_bytes, 4096);
    assert_int_equal(config->options.micro_steps, 3);
    deepspeed_free(config);
    assert_refused("{\"fp16\": {\"enabled\": \"auto\"}}", "fp16.enabled say \"auto\"");
}

static void r10_a_bucket_of_nothing_is_refused(void **state)
{
    (void)state;
    assert_refused(ZERO("\"reduce_bucket_size\": 0"),
                   "ds.json: zero_optimization.reduce_bucket_size must not be 0");
}

static void the_gather_budget_is_the_model_at_most(void **state)
{
    struct deepspeed *config;

    (void)state;
    given.numel = 1000;
    config = parse(ZERO("\"stage3_max_live_parameters\": 1e9"));
    assert_int_equal(config->options.gather_bytes, 4000);
    deepspeed_free(config);
    config = parse("{}");
    assert_int_equal(config->options.gather_bytes, 0); /* ours: three largest units */
    deepspeed_free(config);
}

/* ---- batch ---- */

static uint32_t steps_of(const char *text)
{
    struct deepspeed *config = parse(text);
    uint32_t steps = config->options.micro_steps;

    deepspeed_free(config);
    return steps;
}

static void batch_sizes_make_micro_steps(void **state)
{
    (void)state;
    assert_int_equal(steps_of("{}"), 1);
    assert_int_equal(steps_of("{\"gradient_accumulation_steps\": 5}"), 5);
    assert_int_equal(steps_of("{\"train_batch_size\": 48}"), 1);
    assert_int_equal(steps_of("{\"train_batch_size\": 48, \"train_micro_batch_size_per_gpu\": 3}"),
                     4);
    assert_int_equal(steps_of("{\"train_batch_size\": 48, \"train_micro_batch_size_per_gpu\": 6, "
                              "\"gradient_accumulation_steps\": 2}"),
                     2);
    assert_refused("{\"train_batch_size\": 48, \"train_micro_batch_size_per_gpu\": 5}",
                   "is another number");
    assert_refused("{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 3}",
                   "is another number");
    assert_refused("{\"train_batch_size\": 48, \"train_micro_batch_size_per_gpu\": 6, "
                   "\"gradient_accumulation_steps\": 3}",
                   "train_batch_size is 48");
    assert_refused("{\"train_batch_size\": 10}", "do not divide");
    assert_refused("{\"gradient_accumulation_steps\": 0}", "must be 1 to");
    assert_refused("{\"gradient_accumulation_steps\": 3e9}", "must be 1 to");
    assert_refused("{\"gradient_accumulation_steps\": 2000}", "at most 1024");
}

/* ---- status ---- */

/* As DeepSpeed's tutorial writes it: most parts are switched one level further down. */
#define COMPRESSION(quantized, reduced)                                                            \
    "{\"weight_quantization\": {\"shared_parameters\": {\"enabled\": " quantized                   \
    ", \"quantize_groups\": 1}, \"different_groups\": {\"wq1\": {\"params\": {}}}},"               \
    "\"sparse_pruning\": {\"shared_parameters\": {\"enabled\": false}},"                           \
    "\"head_pruning\": {}, \"layer_reduction\": {\"enabled\": " reduced ", \"teacher_layer\": []}}"

static const struct {
    const char *text, *key;
    enum deepspeed_status status;
} status_rows[] = {
#define IN_ZERO(key, value, status)                                                                \
    {                                                                                              \
        ZERO("\"" key "\": " value), "zero_optimization." key, DEEPSPEED_##status                  \
    }
#define TOP(key, value, status)                                                                    \
    {                                                                                              \
        "{\"" key "\": " value "}", key, DEEPSPEED_##status                                        \
    }
    IN_ZERO("stage", "2", SUPPORTED),
    IN_ZERO("contiguous_gradients", "true", NOT_NEEDED),
    IN_ZERO("reduce_scatter", "false", SUPPORTED),
    IN_ZERO("allgather_bucket_size", "2e8", NOT_NEEDED),
    IN_ZERO("allgather_partitions", "true", NOT_NEEDED),
    IN_ZERO("overlap_comm", "false", MAPPED),
    IN_ZERO("round_robin_gradients", "true", NOT_NEEDED),
    IN_ZERO("stage3_prefetch_bucket_size", "5e7", MAPPED),
    IN_ZERO("prefetch_bucket_size", "5e7", MAPPED), /* without its prefix */
    IN_ZERO("stage3_param_persistence_threshold", "1e5", MAPPED),
    IN_ZERO("stage3_param_persistence_threshold", "0", SUPPORTED),
    IN_ZERO("stage3_max_live_parameters", "1e9", MAPPED),
    IN_ZERO("stage3_model_persistence_threshold", "0", MAPPED),
    IN_ZERO("stage3_model_persistence_threshold", "1000", REJECTED),
    IN_ZERO("stage3_model_persistence_threshold", "9223372036854775807", NOT_NEEDED),
    IN_ZERO("stage3_max_reuse_distance", "1e9", MAPPED),
    IN_ZERO("stage3_max_reuse_distance", "0", SUPPORTED),
    IN_ZERO("stage3_gather_16bit_weights_on_model_save", "true", NOT_NEEDED),
    IN_ZERO("stage3_gather_fp16_weights_on_model_save", "true", NOT_NEEDED),
    IN_ZERO("stage3_module_granularity_threshold", "-1", NOT_NEEDED),
    IN_ZERO("leaf_module", "{\"classes\": []}", NOT_NEEDED),
    IN_ZERO("sub_group_size", "1e9", NOT_NEEDED),
    IN_ZERO("zero_hpz_partition_size", "2", MAPPED),
    IN_ZERO("zero_hpz_partition_size", "1", NOT_NEEDED),
    IN_ZERO("mics_shard_size", "4", MAPPED),
    IN_ZERO("mics_shard_size", "-1", NOT_NEEDED),
    IN_ZERO("offload_optimizer", "{\"device\": \"cpu\"}", REJECTED),
    IN_ZERO("offload_optimizer", "{\"device\": \"none\"}", NOT_NEEDED),
    IN_ZERO("offload_param", "null", NOT_NEEDED),
    IN_ZERO("offload_param", "\"none\"", NOT_NEEDED), /* turned off, in each way there is */
    IN_ZERO("offload_param", "\"cpu\"", REJECTED),
    IN_ZERO("offload_param", "0", NOT_NEEDED),
    IN_ZERO("offload_param", "0.0", NOT_NEEDED),
    IN_ZERO("offload_param", "1", REJECTED),
    IN_ZERO("offload_param", "{}", NOT_NEEDED), /* DeepSpeed's device is then none */
    IN_ZERO("offload_optimizer", "{\"pin_memory\": true}", NOT_NEEDED),
    IN_ZERO("zenflow", "[]", NOT_NEEDED),
    IN_ZERO("zenflow", "[0.1]", REJECTED),
    IN_ZERO("zenflow", "{}", REJECTED),
    IN_ZERO("cpu_offload", "true", REJECTED),
    IN_ZERO("cpu_offload", "false", NOT_NEEDED),
    IN_ZERO("zero_quantized_weights", "true", REJECTED),
    IN_ZERO("zero_quantized_gradients", "false", NOT_NEEDED),
    IN_ZERO("zenflow", "{\"topk_ratio\": 0.1}", REJECTED),
    IN_ZERO("reduce_buckets_size", "1", REJECTED), /* misspelled */
    TOP("communication_data_type", "\"fp32\"", SUPPORTED),
    TOP("communication_data_type", "\"bfp16\"", MAPPED),
    TOP("seq_parallel_communication_data_type", "\"fp32\"", SUPPORTED),
    TOP("seq_parallel_communication_data_type", "\"fp16\"", REJECTED),
    TOP("torch_autocast", "{\"enabled\": true}", REJECTED),
    TOP("communication_data_type", "null", NOT_NEEDED),
    TOP("prescale_gradients", "true", NOT_NEEDED),
    TOP("gradient_predivide_factor", "2.0", NOT_NEEDED),
    TOP("sparse_gradients", "true", REJECTED),
    TOP("wall_clock_breakdown", "true", NOT_NEEDED),
    TOP("comms_logger", "{\"enabled\": true, \"verbose\": true}", NOT_NEEDED),
    TOP("flops_profiler", "{\"enabled\": true}", NOT_NEEDED),
    TOP("tensorboard", "{\"enabled\": true}", NOT_NEEDED),
    TOP("amp", "{\"enabled\": true}", REJECTED),
    TOP("amp", "{\"enabled\": false}", NOT_NEEDED),
    TOP("amp", "{\"opt_level\": \"O1\"}", NOT_NEEDED), /* not enabled unless said */
    TOP("torch_autocast", "{}", NOT_NEEDED),
    TOP("quantize_training", "{}", NOT_NEEDED),
    TOP("quantize_training", "{\"enabled\": true}", REJECTED),
    TOP("elasticity", "{}", NOT_NEEDED),
    TOP("compression_training", "{}", NOT_NEEDED),
    TOP("compression_training", "false", NOT_NEEDED),
    TOP("compression_training", "true", REJECTED),
    TOP("compression_training", "{\"enabled\": true}", REJECTED),
    TOP("compression_training", COMPRESSION("false", "false"), NOT_NEEDED),
    TOP("compression_training", COMPRESSION("true", "false"), REJECTED),
    TOP("compression_training", COMPRESSION("false", "true"), REJECTED),
    TOP("no_such_key", "1", REJECTED),
    {"{\"data_types\": {\"grad_accum_dtype\": \"fp32\"}}", "data_types.grad_accum_dtype",
     DEEPSPEED_SUPPORTED},
    {"{\"data_types\": {\"grad_accum_dtype\": \"fp16\"}}", "data_types.grad_accum_dtype",
     DEEPSPEED_REJECTED},
    {"{\"fp16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"fp16\"}}",
     "data_types.grad_accum_dtype", DEEPSPEED_MAPPED},
    {"{\"bf16\": {\"enabled\": true}}", "bf16.enabled", DEEPSPEED_MAPPED},
    {"{\"bfloat16\": {\"enabled\": false}}", "bfloat16.enabled", DEEPSPEED_NOT_NEEDED},
    {"{\"fp16\": {\"loss_scale\": 0}}", "fp16.loss_scale", DEEPSPEED_NOT_NEEDED},
    {"{\"fp16\": {\"hysteresis\": 2, \"enabled\": true}}", "fp16.hysteresis", DEEPSPEED_MAPPED},
    {"{\"zero_optimization\": true}", "zero_optimization", DEEPSPEED_MAPPED},
};

static void each_key_has_its_status(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(status_rows) / sizeof(status_rows[0]); i++)
        assert_status(status_rows[i].text, status_rows[i].key, status_rows[i].status);
}

static void rejected_keys_change_no_option(void **state)
{
    struct deepspeed *plain = parse("{}");
    struct deepspeed *config =
        parse("{\"data_types\": {\"grad_accum_dtype\": \"bf16\"},"
              "\"elasticity\": {\"enabled\": true},"
              "\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\"}}}");

    (void)state;
    assert_memory_equal(&plain->options, &config->options, sizeof(plain->options));
    deepspeed_free(plain);
    deepspeed_free(config);
}

static void diagnostics_never_change_the_schedule(void **state)
{
    struct deepspeed *plain = parse("{}");
    struct deepspeed *config =
        parse("{\"wall_clock_breakdown\": true, \"comms_logger\": {\"enabled\": true},"
              "\"flops_profiler\": {\"enabled\": true}, \"tensorboard\": {\"enabled\": true},"
              "\"csv_monitor\": {\"enabled\": true}, \"wandb\": {\"enabled\": true},"
              "\"steps_per_print\": 1, \"memory_breakdown\": true, \"dump_state\": true}");

    (void)state;
    assert_memory_equal(&plain->options, &config->options, sizeof(plain->options));
    deepspeed_free(plain);
    deepspeed_free(config);
}

/* ---- refusals ---- */

static void what_is_not_json_is_told_with_line_and_column(void **state)
{
    (void)state;
    assert_refused("{\n \"a\": 1, // no\n}", "ds.json:2:10: ");
    assert_refused("{\n \"a\": 1, // no\n}", "comments are not JSON");
    assert_refused("# no\n{}", "ds.json:1:1: ");
    assert_refused(ZERO("\n\"stage\": 1,\n"), "ds.json:3:1: ");
    assert_refused(ZERO("\"stage\": 1 , \n"), "a comma before the end is not JSON");
    assert_refused("{\"comms_logger\": [1,]}", "a comma before the end is not JSON");
    assert_refused("{\"a\": 1, \"a\": 2}", "duplicate");
    assert_refused("{} x", "ds.json:1:4: ");
    assert_refused("", "ds.json:");
    assert_refused("{", "ds.json:");
    assert_refused("{\"a\": NaN}", "ds.json:1:");
    assert_refused("{'a': 1}", "ds.json:1:2: ");
    assert_refused("[]", "must be an object");
}

static void wrong_types_and_ranges_are_told_by_name(void **state)
{
    (void)state;
    assert_refused(ZERO("\"overlap_comm\": \"yes\""),
                   "ds.json: zero_optimization.overlap_comm is \"yes\", but must be true or false");
    assert_refused(ZERO("\"stage\": 4"), "zero_optimization.stage must be 0 to 3");
    assert_refused(ZERO("\"stage\": \"2\""), "must be a whole number");
    assert_refused(ZERO("\"reduce_bucket_size\": -1"), "must be a whole number from 0");
    assert_refused(ZERO("\"reduce_bucket_size\": 1e300"), "must be a whole number");
    assert_refused(ZERO("\"reduce_bucket_size\": 1e15"), "too large");
    assert_refused("{\"gradient_clipping\": -1}", "must be positive");
    assert_refused("{\"gradient_predivide_factor\": 0}", "must be positive");
    assert_refused("{\"communication_data_type\": \"int8\"}", "must be fp32, fp16 or bf16");
    assert_refused("{\"seq_parallel_communication_data_type\": \"x\"}", "must be fp32, fp16");
    assert_refused("{\"data_types\": {\"grad_accum_dtype\": \"half\"}}", "must be fp32, fp16");
    assert_refused(ZERO("\"stage3_param_persistence_threshold\": 1e15"), "too large");
    assert_refused(ZERO("\"stage3_max_reuse_distance\": 1e15"), "too large");
    assert_refused(ZERO("\"stage3_max_live_parameters\": 1e15"), "live_parameters is too large");
    assert_refused(ZERO("\"stage3_prefetch_bucket_size\": 1e15"), "bucket_size is too large");
    assert_refused(ZERO("\"reduce_bucket_size\": 5.5"), "must be a whole number");
    assert_refused(ZERO("\"reduce_bucket_size\": true"), "must be a whole number");
    assert_refused("{\"gradient_clipping\": \"1\"}", "must be a number");
    assert_refused("{\"communication_data_type\": 32}", "must be a text");
    assert_refused("{\"zero_optimization\": 3}", "zero_optimization must be an object");
    assert_refused("{\"fp16\": true}", "fp16 must be an object");
}

/* A name that no key can have is told, cut, and not taken for one that begins alike. */
static void names_that_are_too_long_are_told(void **state)
{
    char name[400], text[500];

    (void)state;
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    (void)snprintf(text, sizeof(text), "{\"fp16\": {\"%s\": 1}}", name);
    assert_refused(text, "is too long for a key");
    assert_non_null(strstr(error, "fp16.nnn"));
}

/* null is as good as no key: the default is told. */
static void null_leaves_the_default(void **state)
{
    struct deepspeed *config = parse(ZERO("\"reduce_bucket_size\": null"));

    (void)state;
    assert_int_equal(find(&config->keys, "zero_optimization.reduce_bucket_size")->status,
                     DEEPSPEED_NOT_NEEDED);
    assert_string_equal(find(&config->defaults, "zero_optimization.reduce_bucket_size")->value,
                        "500000000");
    assert_int_equal(config->options.bucket_bytes, 2000000000u);
    deepspeed_free(config);
}

/* What the caller says comes first, and the plan says so of the file's. */
static void the_callers_micro_steps_come_first(void **state)
{
    struct deepspeed *config;

    (void)state;
    given.micro_steps = 7;
    config = parse("{\"gradient_accumulation_steps\": 5}");
    assert_int_equal(config->options.micro_steps, 7);
    assert_non_null(strstr(find(&config->keys, "gradient_accumulation_steps")->meaning,
                           "micro_steps 7"));
    deepspeed_free(config);
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    assert_refused(ZERO("\"zero_hpz_partition_size\": 3"), "does not divide 4 ranks");
    assert_refused(ZERO("\"mics_shard_size\": 8"), "does not divide 4 ranks");
    assert_refused(ZERO("\"zero_hpz_partition_size\": 2, \"mics_shard_size\": 2"),
                   "zero_hpz_partition_size and mics_shard_size contradict each other");
    assert_refused("{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "contradict");
    assert_refused(ZERO("\"stage3_prefetch_bucket_size\": 1, \"prefetch_bucket_size\": 2"),
                   "contradicts");
    assert_refused("{\"bf16\": {\"enabled\": true}, \"bfloat16\": {\"enabled\": false}}",
                   "contradicts");
}

/* ---- dtypes ---- */

/* Sizes are elements of the parameters' dtype, buckets of the gradients'. */
static void half_precision_halves_the_sizes(void **state)
{
    struct deepspeed *config =
        parse("{\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 1001,"
              "\"stage3_prefetch_bucket_size\": 50, \"stage3_max_live_parameters\": 70,"
              "\"stage3_param_persistence_threshold\": 30, \"stage3_max_reuse_distance\": 90,"
              "\"mics_shard_size\": 2},"
              "\"bfloat16\": {\"enabled\": true}, \"communication_data_type\": \"fp16\","
              "\"data_types\": {\"grad_accum_dtype\": \"bfloat16\"}}");

    (void)state;
    assert_int_equal(config->dtype, GW_DTYPE_BF16);
    assert_int_equal(config->grad_dtype, GW_DTYPE_BF16);
    assert_true(config->half);
    assert_int_equal(config->options.bucket_bytes, 2004); /* a multiple of 4 */
    assert_int_equal(config->options.prefetch_bytes, 100);
    assert_int_equal(config->options.gather_bytes, 140);
    assert_int_equal(config->options.persist_bytes, 60);
    assert_int_equal(config->options.reuse_bytes, 180);
    assert_int_equal(config->options.shard_ranks, 2);
    assert_int_equal(config->options.reduce_dtype, GW_DTYPE_FP16);
    assert_int_equal(config->options.accum_as_grads, 1);
    deepspeed_free(config);
}

/* fp32 gradients of bf16 parameters, say. */
static void the_callers_dtypes_come_first(void **state)
{
    static const char text[] =
        "{\"zero_optimization\": {\"reduce_bucket_size\": 1000,"
        "\"stage3_prefetch_bucket_size\": 50},"
        "\"fp16\": {\"enabled\": true}}";
    struct deepspeed *config;

    (void)state;
    given.has_grad_dtype = true;
    given.grad_dtype = GW_DTYPE_FP32;
    config = parse(text);
    assert_int_equal(config->dtype, GW_DTYPE_FP16);
    assert_int_equal(config->options.bucket_bytes, 4000);
    assert_int_equal(config->options.prefetch_bytes, 100);
    deepspeed_free(config);
    given.has_dtype = true;
    given.dtype = GW_DTYPE_BF16;
    config = parse(text);
    assert_int_equal(config->dtype, GW_DTYPE_BF16);
    assert_non_null(strstr(find(&config->keys, "fp16.enabled")->meaning, "the caller"));
    deepspeed_free(config);
    given.has_dtype = given.has_grad_dtype = false;
    config = parse("{}");
    assert_int_equal(config->dtype, GW_DTYPE_FP32);
    assert_false(config->half);
    deepspeed_free(config);
}

/* A seal takes persist_bytes and secondary_ranks in stage 3 alone, shard_ranks not in stage 0; a
 * plan shows all. */
static void options_are_those_of_the_stage(void **state)
{
    static const uint64_t persist[] = {0, 0, 0, 40};
    static const uint32_t runs[] = {0, 2, 2, 2};
    struct deepspeed *config;
    char text[256];

    (void)state;
    for (unsigned stage = 0; stage < 4; stage++) {
        (void)snprintf(text, sizeof(text), "{\"zero_optimization\": {\"stage\": %u, "
                       "\"param_persistence_threshold\": 10, \"mics_shard_size\": 2}}", stage);
        config = parse(text);
        assert_int_equal(config->options.persist_bytes, persist[stage]);
        assert_int_equal(config->options.shard_ranks, runs[stage]);
        assert_int_equal(config->persist_bytes, 40);
        assert_int_equal(config->shard_ranks, 2);
        deepspeed_free(config);
    }
    for (unsigned stage = 0; stage < 4; stage++) {
        (void)snprintf(text, sizeof(text), "{\"zero_optimization\": {\"stage\": %u, "
                       "\"zero_hpz_partition_size\": 2, \"mics_shard_size\": 4}}", stage);
        config = parse(text);
        assert_int_equal(config->options.secondary_ranks, stage == 3 ? 2 : 0);
        assert_int_equal(config->secondary_ranks, 2);
        deepspeed_free(config);
    }
    config = parse("{\"zero_optimization\": {\"stage\": 3, "
                   "\"stage3_model_persistence_threshold\": 0, "
                   "\"param_persistence_threshold\": 10}}");
    assert_int_equal(config->options.persist_bytes, 0);
    deepspeed_free(config);
    given.numel = 500; /* then a bound of 500 binds nothing */
    assert_status("{\"zero_optimization\": {\"stage3_model_persistence_threshold\": 500}}",
                  "zero_optimization.stage3_model_persistence_threshold", DEEPSPEED_NOT_NEEDED);
    assert_status("{\"zero_optimization\": {\"stage3_model_persistence_threshold\": 499}}",
                  "zero_optimization.stage3_model_persistence_threshold", DEEPSPEED_REJECTED);
    given.numel = 0;
}

static void versions_are_three_numbers(void **state)
{
    static const char *const bad[] = {"", "0.19", "0.19.", "0.19.8a", "0.19.8.1", "x", "0.1000.1"};
    uint32_t version = 0;

    (void)state;
    assert_int_equal(deepspeed_version("0.19.8", &version), 0);
    assert_int_equal(version, DEEPSPEED_VERSION);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(deepspeed_version(bad[i], &version), GW_E_INVALID);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        TEST(keys_become_options),
        TEST(g01_absent_clipping_is_one_and_told),
        TEST(g02_an_old_public_example_is_accepted),
        TEST(the_loss_scaler_is_configured),
        TEST(g03_floats_are_whole_numbers_where_they_are),
        TEST(g04_auto_is_refused_by_name_unless_filled_in),
        TEST(r10_a_bucket_of_nothing_is_refused),
        TEST(the_gather_budget_is_the_model_at_most),
        TEST(batch_sizes_make_micro_steps),
        TEST(each_key_has_its_status),
        TEST(rejected_keys_change_no_option),
        TEST(diagnostics_never_change_the_schedule),
        TEST(what_is_not_json_is_told_with_line_and_column),
        TEST(wrong_types_and_ranges_are_told_by_name),
        TEST(names_that_are_too_long_are_told),
        TEST(null_leaves_the_default),
        TEST(the_callers_micro_steps_come_first),
        TEST(contradictions_are_refused),
        TEST(half_precision_halves_the_sizes),
        TEST(the_callers_dtypes_come_first),
        TEST(options_are_those_of_the_stage),
        TEST(versions_are_three_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
