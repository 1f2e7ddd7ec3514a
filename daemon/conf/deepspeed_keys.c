/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of DeepSpeed's keys: the one place where it is written what each does here. Constant
 * data; any thread. Names and defaults: DeepSpeed 0.19.8, runtime/config.py and
 * runtime/zero/config.py.
 */
#include "daemon/conf/deepspeed_internal.h"

#define SUPPORTED DEEPSPEED_SUPPORTED
#define NOT_NEEDED DEEPSPEED_NOT_NEEDED
#define REJECTED DEEPSPEED_REJECTED
#define ZERO(name) "zero_optimization." name

/* A key whose meaning is always the same. */
#define KEY(path, type, status, meaning)                                                           \
    {                                                                                              \
        path, type, status, meaning, NULL, NULL                                                    \
    }
/* One that does something; `meaning` is for the function. */
#define DOES(path, type, take, initial, meaning)                                                   \
    {                                                                                              \
        path, type, SUPPORTED, meaning, initial, take                                              \
    }

#define PLANNED "planned, not in this release: "
#define TRAINER "the trainer's own; the service never sees it"
#define DIAGNOSTICS "diagnostics; they never change the schedule"
#define OFFLOAD                                                                                    \
    "offload is not done here: shards lie in the service's memory, and where the optimizer runs "  \
    "is the trainer's choice"
#define QUANTIZED "quantized communication is not done here: sums are exact"
#define SPARSE "sparse gradients and attention are not done here"
const struct deepspeed_key deepspeed_keys[] = {
    /* ---- ZeRO: reductions ---- */
    DOES(ZERO("stage"), KEY_COUNT, take_stage, "0", NULL),
    KEY(ZERO("contiguous_gradients"), KEY_BOOL, NOT_NEEDED,
        "gradients are always written into contiguous buckets"),
    DOES(ZERO("reduce_scatter"), KEY_BOOL, take_reduce_scatter, "true", NULL),
    DOES(ZERO("reduce_bucket_size"), KEY_COUNT, take_bucket, "500000000", NULL),
    DOES(ZERO("overlap_comm"), KEY_BOOL, take_overlap, "true", NULL),
    KEY(ZERO("round_robin_gradients"), KEY_BOOL, NOT_NEEDED,
        "every rank owns a slice of every bucket, so there is nothing to balance"),
    KEY(ZERO("use_multi_rank_bucket_allreduce"), KEY_BOOL, NOT_NEEDED,
        "one bucket is one collective to all its owners"),
    DOES(ZERO("ignore_unused_parameters"), KEY_BOOL, take_unused, "true", NULL),
    KEY(ZERO("legacy_stage1"), KEY_BOOL, REJECTED, "the old stage 1 is not done here"),
    /* ---- ZeRO: gathers ---- */
    KEY(ZERO("allgather_partitions"), KEY_BOOL, NOT_NEEDED,
        "updated shards are always all-gathered, never broadcast one by one"),
    KEY(ZERO("allgather_bucket_size"), KEY_COUNT, NOT_NEEDED,
        "stages 1 and 2 gather bucket by bucket: reduce_bucket_size is the size"),
    DOES(ZERO("stage3_prefetch_bucket_size"), KEY_COUNT, take_prefetch, "50000000", NULL),
    DOES(ZERO("stage3_param_persistence_threshold"), KEY_COUNT, take_persistence, "0",
         "parameters that stay gathered (DeepSpeed's default: 100000)"),
    DOES(ZERO("stage3_model_persistence_threshold"), KEY_COUNT, take_persistent_sum, NULL, NULL),
    DOES(ZERO("stage3_max_live_parameters"), KEY_COUNT, take_live, "0", NULL),
    DOES(ZERO("stage3_max_reuse_distance"), KEY_COUNT, take_reuse, "0",
         "keeping released units for reuse (DeepSpeed's default: 1000000000)"),
    KEY(ZERO("stage3_gather_16bit_weights_on_model_save"), KEY_BOOL, NOT_NEEDED,
        "any rank reads any parameter whole, without gathering the model (gw_param_read_sync)"),
    KEY(ZERO("stage3_gather_fp16_weights_on_model_save"), KEY_BOOL, NOT_NEEDED,
        "old spelling of stage3_gather_16bit_weights_on_model_save: any rank reads any parameter "
        "whole (gw_param_read_sync)"),
    KEY(ZERO("stage3_module_granularity_threshold"), KEY_WHOLE, NOT_NEEDED,
        "neighbouring units smaller than a bucket are always fetched together"),
    KEY(ZERO("leaf_module"), KEY_ANY, NOT_NEEDED,
        "parameters registered under one unit name are fetched together: a leaf is a unit"),
    KEY(ZERO("stage3_use_all_reduce_for_fetch_params"), KEY_BOOL, NOT_NEEDED,
        "a fetch is one all-gather without copies afterwards"),
    KEY(ZERO("stage3_allgather_sequential"), KEY_BOOL, NOT_NEEDED,
        "a fetch is one all-gather without copies afterwards"),
    KEY(ZERO("stage3_partition_stream_chunk_size"), KEY_COUNT, NOT_NEEDED,
        "initial values are written part by part (gw_param_write_sync)"),
    KEY(ZERO("memory_efficient_linear"), KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY(ZERO("override_module_apply"), KEY_BOOL, NOT_NEEDED, TRAINER),
    /* ---- ZeRO: groups ---- */
    DOES(ZERO("zero_hpz_partition_size"), KEY_COUNT, take_secondary, NULL, NULL),
    DOES(ZERO("mics_shard_size"), KEY_WHOLE, take_runs, NULL, NULL),
    KEY(ZERO("mics_hierarchical_params_gather"), KEY_BOOL, REJECTED,
        PLANNED "gathers in two levels (MiCS)"),
    /* ---- ZeRO: what is not done ---- */
    KEY(ZERO("offload_param"), KEY_SWITCH, REJECTED, OFFLOAD),
    KEY(ZERO("offload_optimizer"), KEY_SWITCH, REJECTED, OFFLOAD),
    KEY(ZERO("cpu_offload"), KEY_BOOL, REJECTED, "old spelling of offload_optimizer: " OFFLOAD),
    KEY(ZERO("cpu_offload_param"), KEY_BOOL, REJECTED, "old spelling of offload_param: " OFFLOAD),
    KEY(ZERO("cpu_offload_params"), KEY_BOOL, REJECTED, "old spelling of offload_param: " OFFLOAD),
    KEY(ZERO("cpu_offload_use_pin_memory"), KEY_BOOL, REJECTED, "old spelling: " OFFLOAD),
    KEY(ZERO("sub_group_size"), KEY_COUNT, NOT_NEEDED,
        "the optimizer works on spans, one per bucket: tiles of its own choice"),
    KEY(ZERO("zero_quantized_weights"), KEY_BOOL, REJECTED, QUANTIZED),
    KEY(ZERO("zero_quantized_nontrainable_weights"), KEY_BOOL, REJECTED, QUANTIZED),
    KEY(ZERO("zero_quantized_gradients"), KEY_BOOL, REJECTED, QUANTIZED),
    KEY(ZERO("zeropp_loco_param"), KEY_ANY, REJECTED, QUANTIZED),
    KEY(ZERO("zenflow"), KEY_ANY, REJECTED, "ZenFlow (" OFFLOAD ")"),
    KEY(ZERO("save_muon_momentum_buffer_in_memory"), KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY(ZERO("load_from_fp32_weights"), KEY_BOOL, NOT_NEEDED,
        "initial values are written by the trainer, in fp32"),
    KEY(ZERO("elastic_checkpoint"), KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY(ZERO("pipeline_loading_checkpoint"), KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY(ZERO("log_trace_cache_warnings"), KEY_BOOL, NOT_NEEDED, DIAGNOSTICS),
    KEY(ZERO("enable_sanity_checks"), KEY_BOOL, NOT_NEEDED,
        "every layout and collective is compared between ranks, always"),
    /* ---- sums ---- */
    DOES("gradient_clipping", KEY_NUMBER, take_clipping, "1.0", NULL),
    KEY("prescale_gradients", KEY_BOOL, NOT_NEEDED,
        "the mean is divided once, after the sum, which is made in fp32 and so does not overflow: "
        "the same value by any order of scaling"),
    DOES("gradient_predivide_factor", KEY_NUMBER, take_predivide, NULL, NULL),
    DOES("communication_data_type", KEY_TEXT, take_reduce_dtype, NULL, NULL),
    DOES("seq_parallel_communication_data_type", KEY_TEXT, take_other_dtype, NULL, NULL),
    DOES("data_types.grad_accum_dtype", KEY_TEXT, take_accum_dtype, NULL, NULL),
    KEY("sparse_gradients", KEY_BOOL, REJECTED, SPARSE),
    KEY("sparse_attention", KEY_ANY, REJECTED, SPARSE),
    KEY("disable_allgather", KEY_BOOL, REJECTED, "parameters would differ between ranks"),
    /* ---- batch ---- */
    DOES("train_batch_size", KEY_COUNT, take_batch, NULL, NULL),
    DOES("train_micro_batch_size_per_gpu", KEY_COUNT, take_batch, NULL, NULL),
    DOES("gradient_accumulation_steps", KEY_COUNT, take_batch, NULL, NULL),
    /* ---- precision ---- */
    DOES("fp16.enabled", KEY_BOOL, take_half, NULL, "fp16"),
    DOES("fp16.loss_scale", KEY_NUMBER, take_scaler, NULL, "static_scale"),
    DOES("fp16.initial_scale_power", KEY_COUNT, take_scaler, NULL, "initial_scale"),
    DOES("fp16.loss_scale_window", KEY_COUNT, take_scaler, NULL, "window"),
    DOES("fp16.hysteresis", KEY_COUNT, take_scaler, NULL, "hysteresis"),
    DOES("fp16.consecutive_hysteresis", KEY_BOOL, take_scaler, NULL, "consecutive_hysteresis"),
    DOES("fp16.min_loss_scale", KEY_NUMBER, take_scaler, NULL, "min_scale"),
    KEY("fp16.auto_cast", KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY("fp16.fused_mode", KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY("fp16.fp16_master_weights_and_grads", KEY_BOOL, REJECTED, "master weights are fp32 here"),
    DOES("bf16.enabled", KEY_BOOL, take_half, NULL, "bf16"),
    KEY("bf16.immediate_grad_update", KEY_BOOL, NOT_NEEDED,
        "gradients are declared the moment they are written"),
    KEY("bf16.check_grad_overflow", KEY_BOOL, NOT_NEEDED,
        "every step's verdict tells infinities and NaNs, with the first bucket"),
    KEY("bf16.bf16_master_weights_and_grads", KEY_BOOL, REJECTED, "master weights are fp32 here"),
    KEY("bf16.bf16_optimizer_states", KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY("amp", KEY_SWITCH, REJECTED, "Apex AMP is not known here: use fp16 or bf16"),
    KEY("torch_autocast", KEY_SWITCH, REJECTED,
        "a communication dtype per module is not done here: communication_data_type is for all"),
    KEY("zero_allow_untested_optimizer", KEY_BOOL, NOT_NEEDED, "any optimizer works on the spans"),
    KEY("zero_force_ds_cpu_optimizer", KEY_BOOL, NOT_NEEDED, TRAINER),
    /* ---- the trainer's ---- */
    KEY("optimizer", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("scheduler", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("activation_checkpointing", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("dataloader_drop_last", KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY("data_efficiency", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("curriculum_learning", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("progressive_layer_drop", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("vocabulary_size", KEY_COUNT, NOT_NEEDED, TRAINER),
    KEY("checkpoint", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("compile", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("graph_harvesting", KEY_BOOL, NOT_NEEDED, TRAINER),
    KEY("eigenvalue", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("pipeline", KEY_ANY, NOT_NEEDED,
        "the ranks of each pipeline stage are a parameter group of one job, with one norm"),
    KEY("tensor_parallel", KEY_ANY, NOT_NEEDED,
        "the ranks of each tensor-parallel position are a parameter group of one job"),
    KEY("hybrid_engine", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("compression_training", KEY_PARTS, REJECTED, QUANTIZED),
    KEY("quantize_training", KEY_SWITCH, REJECTED, QUANTIZED),
    KEY("aio", KEY_ANY, NOT_NEEDED, "only of use with offload"),
    KEY("nebula", KEY_ANY, NOT_NEEDED, TRAINER),
    KEY("elasticity", KEY_SWITCH, REJECTED, "the world's size is fixed when a job is made"),
    /* ---- diagnostics ---- */
    KEY("steps_per_print", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("wall_clock_breakdown", KEY_BOOL, NOT_NEEDED, DIAGNOSTICS),
    KEY("memory_breakdown", KEY_BOOL, NOT_NEEDED, DIAGNOSTICS),
    KEY("dump_state", KEY_BOOL, NOT_NEEDED, DIAGNOSTICS),
    KEY("comms_logger", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("flops_profiler", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("tensorboard", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("wandb", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("csv_monitor", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("comet", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("monitor_config", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
    KEY("autotuning", KEY_ANY, NOT_NEEDED, DIAGNOSTICS),
};

const size_t deepspeed_keys_count = sizeof(deepspeed_keys) / sizeof(deepspeed_keys[0]);
_Static_assert(sizeof(deepspeed_keys) / sizeof(deepspeed_keys[0]) <= DEEPSPEED_KEYS_MAX,
               "room to note each key");
