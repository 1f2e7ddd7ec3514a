/* SPDX-License-Identifier: Apache-2.0 */
/* What the ops are, and their words. Pure; any thread. */
#include "client/bench/bench.h"
#include "client/bench/values.h"

#define VARIANTS_NONE VARIANT_NONE, VARIANT_NONE

const struct bench_op_traits bench_ops[BENCH_OPS] = {
    /* name, sizes, granule, per rank, limit, peers, bandwidth, nodes, variants */
    [BENCH_REDUCE_SCATTER] = {"reduce-scatter", "4K,1M,64M", 1, true, true, true, true, true,
                              VARIANTS_NONE},
    [BENCH_ALL_GATHER] = {"all-gather", "4K,1M,64M", 1, true, true, true, true, true,
                          VARIANT_MAPPED, VARIANT_PRIVATE},
    [BENCH_ALL_REDUCE] = {"all-reduce", "4K,1M,64M", 1, true, true, true, true, true,
                          VARIANTS_NONE},
    [BENCH_LATENCY] = {"latency", "4K", 1, true, true, true, true, true, VARIANTS_NONE},
    [BENCH_FETCH] = {"fetch", "4K,1M,64M", 1, true, false, false, true, false, VARIANT_MISS,
                     VARIANT_HIT},
    /* 32 parameters, each a bucket. */
    [BENCH_STEP] = {"step", "4K,1M,64M", 32, true, false, false, true, false, VARIANT_STAGE0,
                    VARIANT_COVERED},
    [BENCH_READY] = {"ready", "4M", BENCH_READY_PARAMS, false, false, false, false, false,
                     VARIANTS_NONE},
    [BENCH_STORM] = {"storm", NULL, 1, false, false, false, false, true, VARIANT_CREATE,
                     VARIANT_COMPLETE},
    [BENCH_IDLE] = {"idle", NULL, 1, false, false, false, false, false, VARIANT_GRADWIRED,
                    VARIANT_ENGINE},
};
const char *const bench_variant_names[VARIANTS] = {
    [VARIANT_GRADIENTS] = "gradients",
    [VARIANT_MAPPED] = "mapped",
    [VARIANT_PRIVATE] = "private",
    [VARIANT_MISS] = "miss",
    [VARIANT_HIT] = "hit",
    [VARIANT_STAGE0] = "stage0",
    [VARIANT_STAGE1] = "stage1",
    [VARIANT_STAGE2] = "stage2",
    [VARIANT_STAGE3] = "stage3",
    [VARIANT_OVERLAP] = "overlap",
    [VARIANT_OVERLAP_OFF] = "overlap-off",
    [VARIANT_COVERED] = "covered",
    [VARIANT_COVERED_STAGE3] = "covered-stage3",
    [VARIANT_NOTHING_SENT] = "nothing-sent",
    [VARIANT_CREATE] = "create",
    [VARIANT_JOIN] = "join",
    [VARIANT_COMPLETE] = "complete",
    [VARIANT_GRADWIRED] = "gradwired",
    [VARIANT_GRADWIRED_JOB] = "gradwired-job",
    [VARIANT_ENGINE] = "engine",
    [VARIANT_BLOCKS] = "blocks",
    [VARIANT_DEALT] = "dealt",
};
const char *const bench_dtype_names[GW_DTYPES] = {
    [GW_DTYPE_FP32] = "fp32",
    [GW_DTYPE_FP16] = "fp16",
    [GW_DTYPE_BF16] = "bf16",
};

uint64_t bench_granule(enum bench_op op, uint64_t ranks, uint32_t dtype)
{
    const struct bench_op_traits *traits = &bench_ops[op];

    return traits->granule * (traits->per_rank ? ranks : 1) * values_bytes(dtype);
}
