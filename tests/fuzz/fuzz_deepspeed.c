/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A DeepSpeed configuration: taken whole, with a report of every key, or refused with its file's
 * name. ctest: link=gw_conf_json
 */
#include <string.h>

#include "daemon/conf/deepspeed.h"
#include "gradwire/errors.h"
#include "tests/fuzz/fuzz.h"

static const char *const seeds[] = {
    "{}",
    "{\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": 5e8, \"overlap_comm\": true, "
    "\"stage3_prefetch_bucket_size\": 0, \"stage3_max_live_parameters\": 1e9, "
    "\"offload_param\": {\"device\": \"none\"}, \"zero_hpz_partition_size\": 2}}",
    "{\"zero_optimization\": true, \"train_batch_size\": 64, "
    "\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2}",
    "{\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 16}, "
    "\"bfloat16\": {\"enabled\": false}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
    "{\"gradient_clipping\": 0.5, \"communication_data_type\": null, \"comms_logger\": [1, {}], "
    "\"optimizer\": {\"params\": {\"lr\": \"auto\"}}, \"unknown\\u0000\": \"\\ud83d\\ude00\"}",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct deepspeed_given given = {.world = 8, .numel = 1000};
    char error[DEEPSPEED_ERROR_BYTES] = "";
    struct deepspeed *config = NULL;
    int r;

    r = deepspeed_parse((const char *)data, bytes, "fuzz", &given, &config, error, sizeof(error));
    FUZZ_CHECK(memchr(error, 0, sizeof(error)) != NULL);
    FUZZ_CHECK((r == 0) == (config != NULL));
    if (r < 0) {
        FUZZ_CHECK(r == GW_E_INVALID && strncmp(error, "fuzz:", 5) == 0);
        return 0;
    }
    FUZZ_CHECK(config->options.stage <= 3 && config->options.bucket_bytes > 0);
    FUZZ_CHECK(config->options.micro_steps >= 1 && config->options.micro_steps <= 1024);
    for (size_t i = 0; i < config->keys.count; i++)
        FUZZ_CHECK(config->keys.entries[i].key && config->keys.entries[i].meaning[0]);
    deepspeed_free(config);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *buffer, size_t bytes)
{
    size_t length;

    if (index >= sizeof(seeds) / sizeof(seeds[0]))
        return 0;
    length = strlen(seeds[index]);
    if (length > bytes)
        return 0;
    memcpy(buffer, seeds[index], length);
    return length;
}

void fuzz_repair(uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}
