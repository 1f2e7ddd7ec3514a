# SPDX-License-Identifier: Apache-2.0
"""libgradwire-deepspeed: a job is configured by what gwctl plan says of the same file."""
import ctypes as C
import json
import subprocess

import pytest

import gw
from conftest import BUILD, GWCTL, SLOWER

LIBRARY = BUILD / "client/deepspeed/libgradwire-deepspeed.so"
MODEL = "a\t100x10\tu\nb\t10\tu\nc\t300\tv\n"


class Given(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("world", C.c_uint32), ("micro_steps", C.c_uint32),
                ("numel", C.c_uint64), ("bucket_bytes", C.c_uint64), ("version", C.c_char_p),
                ("accept_rejected", C.c_uint32)]


class Entry(C.Structure):
    _fields_ = [("key", C.c_char_p), ("value", C.c_char_p), ("meaning", C.c_char_p),
                ("status", C.c_uint32)]


class LossScale(C.Structure):
    _fields_ = [("struct_size", C.c_size_t)] + [
        (n, C.c_double) for n in ("static_scale", "initial_scale", "growth", "backoff",
                                  "min_scale", "clip_norm")] + [
        (n, C.c_uint32) for n in ("window", "hysteresis", "consecutive_hysteresis",
                                  "stay_at_min")]


def library():
    lib = C.CDLL(str(LIBRARY))
    lib.gw_deepspeed_status_name.restype = C.c_char_p
    lib.gw_deepspeed_free.argtypes = [C.c_void_p]
    return lib


def read_list(lib, config, which):
    out, entry = [], Entry()
    while lib.gw_deepspeed_get_entry(config, C.c_uint32(which), C.c_size_t(len(out)),
                                 C.byref(entry)) == 0:
        out.append({"key": entry.key.decode(), "value": json.loads(entry.value),
                    "status": lib.gw_deepspeed_status_name(C.c_uint32(entry.status)).decode(),
                    "meaning": entry.meaning.decode()})
    return out


def configure(path, **given):
    """options, keys, defaults, loss scale or None, options of parameters"""
    lib = library()
    options, config, scale = gw.ZeroOptions(), C.c_void_p(), LossScale()
    options.struct_size, scale.struct_size = C.sizeof(options), C.sizeof(scale)
    params = gw.ParamOptions(struct_size=C.sizeof(gw.ParamOptions), group=9)  # 9: written over
    if "version" in given:
        given["version"] = given["version"].encode()
    own = Given(struct_size=C.sizeof(Given), **{"world": 4, **given})
    gw.call("gw_job_options_from_deepspeed_file", str(path).encode(), C.byref(own),
            C.byref(options), C.byref(config), lib=lib)
    on = gw.call("gw_deepspeed_loss_scale", config, C.byref(scale), lib=lib)
    gw.call("gw_deepspeed_param_options", config, C.byref(params), lib=lib)
    result = (options, read_list(lib, config, 0), read_list(lib, config, 1),
              scale if on else None, params)
    lib.gw_deepspeed_free(config)
    return result


def gwctl(*args):
    return subprocess.run([str(GWCTL), "plan", *map(str, args)], capture_output=True, text=True,
                          timeout=60 * SLOWER)


@pytest.fixture
def ds(tmp_path):
    """ds(configuration or text) -> its path"""
    def write(configuration):
        path = tmp_path / "ds.json"
        path.write_text(configuration if isinstance(configuration, str)
                        else json.dumps(configuration))
        return path
    return write


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.tsv"
    path.write_text(MODEL)
    return path


def zero(**keys):
    return {"zero_optimization": keys}


CONFIGURATIONS = [
    {},
    zero(stage=2, reduce_bucket_size=1e3),
    {**zero(stage=3, reduce_bucket_size=300, stage3_prefetch_bucket_size=200,
            stage3_max_live_parameters=1e6, overlap_comm=False), "gradient_clipping": 0.5},
    {**zero(stage=1, reduce_scatter=True, overlap_comm=True),
     "fp16": {"enabled": True, "initial_scale_power": 16}},
    {**zero(stage=0, reduce_bucket_size=500), "gradient_accumulation_steps": 3,
     "wall_clock_breakdown": True, "bf16": {"enabled": True}},
    {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0},
    {**zero(stage=3, reduce_bucket_size=600, stage3_param_persistence_threshold=10,
            stage3_max_reuse_distance=400), "bf16": {"enabled": True},
     "communication_data_type": "fp16", "data_types": {"grad_accum_dtype": "bf16"}},
    {**zero(stage=2, reduce_bucket_size=600, mics_shard_size=2), "fp16": {"enabled": True}},
    zero(stage=2, reduce_bucket_size=600, reduce_scatter=False),
    {**zero(stage=3, reduce_bucket_size=600, zero_hpz_partition_size=2), "gradient_clipping": 0},
    {**zero(cpu_offload=False, ignore_unused_parameters=False), "no_such_key": [1, {"a": None}]},
]


def flags(options, params):
    """Of gwctl plan, for what a job got."""
    names = ("fp32", "fp16", "bf16")
    out = ["--stage", options.stage, "--bucket", options.bucket_bytes,
           "--micro-steps", options.micro_steps, "--dtype", names[params.dtype],
           "--grad-dtype", names[params.grad_dtype]]
    for flag, value in (("--reduce-dtype", options.reduce_dtype and names[options.reduce_dtype]),
                        ("--accumulators", options.accum_as_grads and "grads"),
                        ("--shard-ranks", options.shard_ranks),
                        ("--persist", options.persist_bytes), ("--reuse", options.reuse_bytes),
                        ("--secondary-ranks", options.secondary_ranks)):
        out += [flag, value] if value else []
    return out + (["--all-reduce"] if options.all_reduce else [])


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=range(len(CONFIGURATIONS)))
def test_a_job_gets_what_is_planned(ds, model, configuration):
    path = ds(configuration)
    done = gwctl("--model", model, "--ranks", 4, "--deepspeed", path, "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    options, keys, defaults, _, params = configure(path, numel=1310, accept_rejected=1)
    assert keys == planned["keys"]
    assert defaults == planned["defaults"][:len(defaults)]
    # Under the options that the job gets, the plan of its stage is the same.
    again = json.loads(gwctl("--model", model, "--ranks", 4, "--json",
                             *flags(options, params)).stdout)
    for figures in ("dtypes", "grad_dtypes"):
        assert again[figures] == planned[figures]
    for figures in ("calls", "payload_bytes", "ring_bytes", "shard_ranks", "persistent_params",
                    "reuse_bytes", "secondary_ranks"):
        assert again["stages"][0][figures] == planned["stages"][options.stage][figures], figures


def test_options_by_hand(ds):
    options, _, _, scale, _ = configure(ds({
        **zero(stage=3, reduce_bucket_size=300, overlap_comm=False), "gradient_clipping": 0.5,
        "gradient_accumulation_steps": 7}))
    assert (options.stage, options.bucket_bytes, options.overlap_off) == (3, 1200, 1)
    assert (options.clip_norm, options.micro_steps) == (0.5, 7) and scale is None
    assert options.struct_size == C.sizeof(gw.ZeroOptions)
    options = configure(ds(zero(reduce_bucket_size="auto")), bucket_bytes=64, micro_steps=2)[0]
    assert (options.bucket_bytes, options.micro_steps, options.clip_norm) == (64, 2, 1.0)
    assert configure(ds({}), version="0.14.0")[0].clip_norm == 0


def test_dtypes_by_hand(ds):
    def kinds(path, **given):
        options, _, _, _, params = configure(path, **given)
        assert (params.unit, params.group) == (None, 0)
        return params.dtype, params.grad_dtype, options

    assert kinds(ds({}))[:2] == (gw.FP32, gw.FP32)
    assert kinds(ds({"fp16": {"enabled": False}}))[:2] == (gw.FP32, gw.FP32)
    assert kinds(ds({"fp16": {"enabled": True}}))[:2] == (gw.FP16, gw.FP16)
    # Two bytes an element: 1000 of the bucket, 10 of what stays, 400 of reuse.
    *got, options = kinds(ds({**zero(
        stage=3, reduce_bucket_size=1000, stage3_param_persistence_threshold=10,
        stage3_max_reuse_distance=400, mics_shard_size=2), "bf16": {"enabled": True},
        "communication_data_type": "fp16", "data_types": {"grad_accum_dtype": "bf16"}}))
    assert got == [gw.BF16, gw.BF16]
    assert (options.bucket_bytes, options.persist_bytes, options.reuse_bytes) == (2000, 20, 800)
    assert (options.shard_ranks, options.reduce_dtype, options.accum_as_grads) == (2, gw.FP16, 1)


def test_g02_the_loss_scaler_of_an_old_example(ds):
    scale = configure(ds({**zero(stage=1), "fp16": {"enabled": True, "initial_scale_power": 16,
                                                    "hysteresis": 3}}), accept_rejected=1)[3]
    assert (scale.initial_scale, scale.hysteresis, scale.clip_norm) == (65536, 3, 1)
    state = C.create_string_buffer(512)
    gw.call("gw_loss_scale_init", state, C.byref(scale))


@pytest.mark.parametrize("text", [
    "{\n // one\n}", '{"a": 1,\n}', '{"zero_optimization": {"stage": "two"}}',
    '{"zero_optimization": {"reduce_bucket_size": 0}}', '{"train_batch_size": 7}',
    '{"zero_optimization": {"zero_hpz_partition_size": 3}}',
    '{"gradient_accumulation_steps": "auto"}', "", "[]"])
def test_what_the_plan_refuses_is_refused_in_the_same_words(ds, model, text):
    path = ds(text)
    done = gwctl("--model", model, "--ranks", 4, "--deepspeed", path)
    assert done.returncode == 78
    with pytest.raises(gw.Error) as caught:
        configure(path, accept_rejected=1)
    assert caught.value.name == "GW_E_INVALID"
    assert done.stderr == f"gwctl: {caught.value.text}\n"


def test_rejected_keys_stop_a_job_by_name(ds):
    path = ds({**zero(offload_param={"device": "cpu"}), "sparse_gradients": True})
    with pytest.raises(gw.Error) as caught:
        configure(path)
    assert caught.value.name == "GW_E_UNIMPLEMENTED"
    for words in ("zero_optimization.offload_param (", "sparse_gradients (", "accept_rejected"):
        assert words in caught.value.text
    configure(path, accept_rejected=1)
    configure(ds({**zero(offload_param={"device": "none"}), "sparse_gradients": False}))


def test_bad_calls(ds, tmp_path):
    for path, given, name, words in [
            (tmp_path / "gone", {}, "GW_E_IO", "No such file"),
            (tmp_path, {}, "GW_E_IO", "directory"),
            (ds({}), {"world": 0}, "GW_E_INVALID", "world is 0"),
            (ds({}), {"version": "new"}, "GW_E_INVALID", "no version"),
            (ds(" " * (1 << 20) + "{}"), {}, "GW_E_INVALID", "more than")]:
        with pytest.raises(gw.Error) as caught:
            configure(path, **given)
        assert caught.value.name == name and words in caught.value.text, caught.value.text


def run_rank(rank, world, socket, id_path, path):
    options, _, _, _, params = configure(path, world=world)
    job = gw.Job(rank, world, id_path=id_path, socket=socket)
    for param in range(4):
        gw.call("gw_param_add", job.handle, f"p{param}".encode(), C.c_uint64(100),
                C.byref(params), C.byref(C.c_uint32()))
    gw.call("gw_seal", job.handle, C.byref(options), C.c_int64(20 * gw.S))
    for param in reversed(range(4)):
        job.put(param, [1.0] * 100, dtype=params.grad_dtype)
    bucket = job.bucket(0)
    job.step_end()
    verdict = job.wait_step()
    kinds = dict(zip(gw.KINDS, (k.calls for k in job.stats().kinds)))
    job.close()
    return (verdict.norm, verdict.clip_factor, kinds["reduce_scatter"], kinds["all_reduce"],
            bucket.dtype, bucket.grad_dtype)


@pytest.mark.parametrize("half, dtype, scatter", [
    ({}, gw.FP32, True), ({"bf16": {"enabled": True}}, gw.BF16, True), ({}, gw.FP32, False)])
def test_a_job_runs_under_a_file(daemon, tmp_path, ds, half, dtype, scatter):
    path = ds({**zero(stage=1, reduce_bucket_size=200, overlap_comm=True, reduce_scatter=scatter),
               "gradient_clipping": 5.0, **half})
    for norm, clip, scatters, reduces, *dtypes in gw.run(2, run_rank, 2, str(daemon.socket),
                                                         str(tmp_path / "id"), str(path)):
        assert (norm, dtypes) == (20.0, [dtype, dtype])
        assert (scatters, reduces) == ((2, 0) if scatter else (0, 2))
        assert abs(clip - 0.25) < 1e-6


