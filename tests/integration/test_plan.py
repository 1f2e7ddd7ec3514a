# SPDX-License-Identifier: Apache-2.0
"""gwctl plan: its figures equal tests/cases/plan.py's, written apart, and a real run's counters.

Also its command line, what it says of DeepSpeed configurations, and its exit codes.
ctest: timeout=600
"""
import json
import os
import random
import re
import resource
import struct
import subprocess

import pytest

import gw
from conftest import GWCTL, SLOWER
from planning import (RUNS, SOURCE, STEPS, assert_memory, expected, gwctl, one_run, plan, planned,
                      run_options, write_model)
from models import KNOWN, gpt2, roberta  # noqa: I001 (planning knows where)

EX_USAGE, EX_DATAERR, EX_NOINPUT, EX_CONFIG = 64, 65, 66, 78
BUCKET = ["--bucket", "4000"]
RANKS_MAX = int(re.search(r"#define GW_RANKS_MAX (\d+)u",
                          (SOURCE / "proto/limits.h").read_text()).group(1))
PLAN_RANKS_MAX = 1 << 20


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model.tsv", gpt2(8, 33, 5))


@pytest.fixture
def deepspeed(tmp_path, model):
    """deepspeed(configuration or text, *args, code=0) -> result"""
    path = tmp_path / "ds.json"

    def run(configuration, *args, code=0):
        path.write_text(configuration if isinstance(configuration, str)
                        else json.dumps(configuration))
        return gwctl("--model", model, "--ranks", 4, "--deepspeed", path, *args, code=code)

    return run


# ---- against the independent author ------------------------------------------------------------


def assert_equal_plans(parameters, got, ranks, seed="", **options):
    assert got["schema"] == 1 and got["ranks"] == ranks, seed
    assert [stage["stage"] for stage in got["stages"]] == [0, 1, 2, 3], seed
    for stage in got["stages"]:
        assert set(stage) == {"stage", "calls", "payload_bytes", "ring_bytes", "cross_node_bytes",
                              "memory_bytes", "shard_ranks", "persistent_params", "reuse_bytes",
                              "secondary_ranks"}
        of_stage = dict(options)
        if stage["stage"] < 3:
            of_stage["gather"] = "private"
        want = plan.expected(parameters, stage["stage"], ranks, **of_stage)
        assert got["params"] == want["params"]
        for figure in ("calls", "payload_bytes", "ring_bytes", "memory_bytes"):
            assert stage[figure] == want[figure], f"{seed}: stage {stage['stage']}: {figure}"


def random_model(rng):
    rows = []
    for unit in range(rng.randint(1, 10)):
        name = rng.choice(("", f"unit{unit}", f"unit{unit}"))
        for index in range(rng.randint(1, 5)):
            shape = rng.choice(((0, 3), (1,), (rng.randint(1, 9),), (rng.randint(1, 40), 7),
                                (rng.randint(1, 60), rng.randint(1, 60))))
            rows.append((f"p{unit}.{index}", shape, name))
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_random_models(tmp_path, seed):
    rng = random.Random(seed)
    path = write_model(tmp_path / "m.tsv", random_model(rng))
    options = {"bucket_bytes": 4 * rng.choice((1, rng.randint(1, 50), rng.randint(50, 3000))),
               "align_bytes": rng.choice((4, 16, 64, 4096)),
               "micro_steps": rng.choice((1, 1, 2, 5)),
               "accumulate": rng.choice(("auto", "local", "shard")),
               "gather": rng.choice(("private", "private", "mapped")),
               "ring_slots": rng.choice((1, 3, 64))}
    ranks = rng.choice((1, 2, 3, 4, 5, 7, 8, 64))
    accumulate = [] if options["accumulate"] == "auto" else ["--accumulate", options["accumulate"]]
    got = planned("--model", path, "--ranks", ranks, "--bucket", options["bucket_bytes"],
                  "--align", options["align_bytes"], "--micro-steps", options["micro_steps"],
                  "--gather", options["gather"], "--ring-slots", options["ring_slots"],
                  *accumulate)
    assert_equal_plans(plan.read_model(path), got, ranks, f"seed {seed}", **options)


@pytest.mark.parametrize("name", KNOWN)
def test_known_models(tmp_path, name):
    path = write_model(tmp_path / "m.tsv", KNOWN[name])
    parameters = plan.read_model(path)
    for ranks, bucket in ((8, 100_000_000), (64, 2_000_000_000)):
        got = planned("--model", path, "--ranks", ranks, "--bucket", bucket)
        assert_equal_plans(parameters, got, ranks, name, bucket_bytes=bucket)


def test_one_layer_of_gpt2_by_hand(tmp_path):
    """51,380,224 + 1,048,576 + 12h² + 13h + 2h elements; h = 1024."""
    path = write_model(tmp_path / "m.tsv", gpt2(1024, 50304, 1024))
    psi = 50304 * 1024 + 1024 * 1024 + 12 * 1024 ** 2 + 15 * 1024
    got = planned("--model", path, "--ranks", 8, "--nodes", 2)
    assert got["params"] == psi == 65_158_144
    one, three = got["stages"][1], got["stages"][3]
    assert one["calls"] == dict(all_reduce=0, reduce_scatter=1, all_gather=1, broadcast=0,
                                control=1)
    assert one["ring_bytes"]["reduce_scatter"] == one["ring_bytes"]["all_gather"] == psi * 4 * 7 / 8
    assert one["cross_node_bytes"]["reduce_scatter"] == psi * 4 / 2
    assert three["payload_bytes"]["all_gather"] == 2 * psi * 4
    assert three["memory_bytes"]["params"] == psi * 4 / 8
    assert all(stage["memory_bytes"]["optimizer"] == 2 * psi * 4 / (8 if stage["stage"] else 1)
               for stage in got["stages"])


@pytest.mark.parametrize("ranks, nodes", [(4, 2), (8, 3), (8, 8), (7, 2)])
def test_what_crosses_is_that_of_the_busiest_node(tmp_path, ranks, nodes):
    """Of blocks of ranks; parameters that all ranks can share without padding."""
    rows = [(f"w{j}", (ranks * 64,), f"u{j}") for j in range(5)]
    path = write_model(tmp_path / "m.tsv", rows)
    where = [gw.Spread(range(nodes)).node(rank, ranks) for rank in range(ranks)]
    got = planned("--model", path, "--ranks", ranks, "--nodes", nodes,
                  "--bucket", 4096)
    for stage in got["stages"]:
        sent = plan.expected(plan.read_model(path), stage["stage"], ranks, 4096,
                             nodes=where)["cross_node_bytes"]
        assert stage["cross_node_bytes"] == {kind: max(of) for kind, of in sent.items()}


# ---- against a real run --------------------------------------------------------------------------

WORLD = 3


def all_runs(rank, socket, directory, rows):
    return [one_run(rank, WORLD, socket, os.path.join(directory, f"id{number}"), rows, run)
            for number, run in enumerate(RUNS)]


def moved_bytes(want, kind, run):
    """What fabric.h says of reading and copying, from the independent figures."""
    padded = want["payload_bytes"][kind] + want["padding_bytes"][kind]
    if kind == "all_gather" and run["secondary_ranks"]:  # once a step a slice is kept
        return padded + padded // (2 * run["micro_steps"] * run["secondary_ranks"])
    if kind == "all_gather":
        return {3: 0 if run["gather"] == "mapped" else padded}.get(
            run["stage"], padded * (WORLD - 1) // WORLD)
    return {"all_reduce": 2 * padded, "reduce_scatter": padded}.get(kind, 0)


def check_run(run, result, stage, want):
    counters, memory, overflow = result
    for kind in gw.KINDS:
        got = counters[kind]
        for figure in ("calls", "payload_bytes", "ring_bytes"):
            assert got[figure] == STEPS * stage[figure][kind], f"{run}: {kind}: {figure}"
        if kind != "control":
            assert got["moved_bytes"] == STEPS * moved_bytes(want, kind, run), f"{run}: {kind}"
    assert_memory(memory, overflow, stage["memory_bytes"], want, run)


@pytest.mark.parametrize("rows", [gpt2(16, 67, 9), roberta(16, 157, 9, 2)],
                         ids=["gpt2-345m-1layer", "roberta-10b"])  # scaled down
def test_a_real_run_counts_what_was_planned(daemon, tmp_path, rows):
    path = write_model(tmp_path / "m.tsv", rows)
    ranks = gw.run(WORLD, all_runs, str(daemon.socket), str(tmp_path), rows,
                   timeout=240 * SLOWER)
    for number, run in enumerate(RUNS):
        got = planned("--model", path, "--ranks", WORLD, *run_options(run))
        want = expected(path, WORLD, run)
        (stage,) = got["stages"]
        for rank in range(WORLD):
            check_run(run, ranks[rank][number], stage, want)


def whole_runs(rank, world, socket, directory, rows, runs):
    return [one_run(rank, world, socket, f"{directory}/whole-{n}", rows, run)
            for n, run in enumerate(runs)]


def test_a_layer_of_gpt2_345m_counts_what_was_planned(daemon, tmp_path):
    rows = KNOWN["gpt2-345m-1layer"]
    path = write_model(tmp_path / "m.tsv", rows)
    runs = [dict(stage=stage, micro_steps=1, accumulate="auto", gather="private",
                 secondary_ranks=0, all_reduce=0, bucket=50_000_000) for stage in range(4)]
    ranks = gw.run(2, whole_runs, 2, str(daemon.socket), str(tmp_path), rows, runs,
                   timeout=240 * SLOWER)
    for number, run in enumerate(runs):
        (stage,) = planned("--model", path, "--ranks", 2, *run_options(run))["stages"]
        for results in ranks:
            counters = results[number][0]
            for kind in gw.KINDS:
                for figure in ("calls", "payload_bytes", "ring_bytes"):
                    assert counters[kind][figure] == STEPS * stage[figure][kind], (run, kind)


# ---- what people see ---------------------------------------------------------------------------


def test_text_shows_both_modes_estimates_and_units(model):
    text = gwctl("--model", model, "--ranks", 4, "--nodes", 2, "--micro-steps", 2, *BUCKET,
                 "--link", "25GB", "--link", "1e9").stdout
    for words in ("stage 0     stage 1     stage 2     stage 3", "memory, accumulate local",
                  "memory, accumulate shard", "estimate at 23.3 GiB/s", "cross-node", "padding",
                  "Adam: two fp32 moments", "fetch units of stage 3", "embed", "ln_f",
                  "sums       exact: the fixed tree"):
        assert words in text, text
    assert "this release" not in text
    assert f"at most {RANKS_MAX} ranks" in gwctl("--model", model, "--ranks", RANKS_MAX + 1,
                                                 *BUCKET).stdout
    one = gwctl("--model", model, "--ranks", 4, *BUCKET, "--stage", 2).stdout
    assert "stage 2" in one and "stage 1" not in one and "buckets of stage 2" in one


def test_safetensors_headers_are_read(tmp_path):
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, _ in gpt2(8, 33, 5, layers=2):
        size = 4 * plan.parse_shape("x".join(map(str, shape)))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset,
                                                                                offset + size]}
        offset += size
    data = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data + b"\0" * offset)
    got = planned("--model", path, "--ranks", 2, *BUCKET)
    assert got["params"] == offset // 4
    text = gwctl("--model", path, "--ranks", 2, *BUCKET).stdout
    assert "units are guessed" in text and "h.0" in text and "h.1" in text
    path.write_bytes(struct.pack("<Q", 10 ** 6) + data)
    assert "ends inside" in gwctl("--model", path, "--ranks", 2, code=EX_DATAERR).stderr


def test_dtypes_are_the_files_or_those_asked_for(tmp_path):
    sizes = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8}
    header, offset = {}, 0
    for dtype, size in sizes.items():
        header[f"w.{dtype}"] = {"dtype": dtype, "shape": [64], "data_offsets": [
            offset, offset + 64 * size]}
        offset += 64 * size
    data = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    got = planned("--model", path, "--ranks", 2, "--stage", 1)
    assert got["dtypes"] == got["grad_dtypes"] == {"fp32": 128, "fp16": 64, "bf16": 64}
    assert got["stages"][0]["payload_bytes"]["all_gather"] == 128 * 4 + 128 * 2
    text = gwctl("--model", path, "--ranks", 2).stdout
    assert "another type in the file" in text and "128 fp32, 64 fp16, 64 bf16" in text
    got = planned("--model", path, "--ranks", 2, "--stage", 1, "--dtype", "bf16", "--grad-dtype",
                  "fp32")
    assert got["dtypes"]["bf16"] == got["grad_dtypes"]["fp32"] == 256
    assert got["stages"][0]["payload_bytes"]["all_gather"] == 512
    assert got["stages"][0]["payload_bytes"]["reduce_scatter"] == 1024


def test_our_defaults_are_told(model):
    defaults = {entry["key"]: entry["value"] for entry in
                planned("--model", model, "--ranks", 2)["defaults"]}
    assert defaults == {"bucket_bytes": 2_000_000_000, "micro_steps": 1, "accumulate": "auto",
                        "gather": "private", "ring_slots": 3, "shard_align_bytes": 64}
    told = planned("--model", model, "--ranks", 2, *BUCKET, "--accumulate", "local", "--gather",
                   "private", "--micro-steps", 1, "--ring-slots", 3, "--align", 64)
    assert told["defaults"] == [] and told["keys"] == []


# ---- DeepSpeed -----------------------------------------------------------------------------------


def test_deepspeed_keys_and_defaults_are_told(deepspeed):
    done = deepspeed({"zero_optimization": {"stage": 2, "reduce_bucket_size": 1e3},
                      "gradient_accumulation_steps": 3, "bf16": {"enabled": True}}, "--json")
    got = json.loads(done.stdout)
    assert set(got) == {"schema", "params", "dtypes", "grad_dtypes", "ranks", "ranks_max",
                        "nodes", "rank", "stages", "groups", "keys", "defaults"}
    keys = {entry["key"]: entry for entry in got["keys"]}
    assert list(keys) == ["zero_optimization.stage", "zero_optimization.reduce_bucket_size",
                          "gradient_accumulation_steps", "bf16.enabled"]
    assert keys["zero_optimization.reduce_bucket_size"]["value"] == 1000
    assert keys["zero_optimization.reduce_bucket_size"]["status"] == "mapped"
    assert keys["bf16.enabled"]["status"] == "mapped"
    assert got["dtypes"]["bf16"] == got["grad_dtypes"]["bf16"] == got["params"]
    assert done.stderr == ""
    rejected = deepspeed({"zero_optimization": {"legacy_stage1": True}})
    assert "1 key is rejected" in rejected.stderr
    defaults = {entry["key"]: entry["value"] for entry in got["defaults"]}
    assert defaults["gradient_clipping"] == 1.0
    text = deepspeed({}).stdout
    assert "gradient_clipping = 1.0" in text and "clips when the key is absent" in text


def test_deepspeed_options_are_planned(deepspeed, model):
    got = json.loads(deepspeed({"zero_optimization": {"reduce_bucket_size": 300},
                                "gradient_accumulation_steps": 2}, "--json").stdout)
    assert got["stages"] == planned("--model", model, "--ranks", 4, "--bucket", 1200,
                                    "--micro-steps", 2)["stages"]


def test_g02_old_examples_are_accepted(deepspeed):
    done = deepspeed({"zero_optimization": {"stage": 1, "reduce_scatter": True,
                                            "overlap_comm": True},
                      "fp16": {"enabled": True, "initial_scale_power": 16}}, "--json")
    one = json.loads(done.stdout)["stages"][1]
    assert one["calls"]["reduce_scatter"] == one["calls"]["all_gather"] == 1
    assert one["calls"]["all_reduce"] == 0


def test_reduce_scatter_off_is_planned_as_all_reduces(deepspeed, model):
    done = deepspeed({"zero_optimization": {"reduce_scatter": False, "reduce_bucket_size": 300}},
                     "--json")
    told = json.loads(done.stdout)
    assert done.stderr == "" and told["keys"][0]["status"] == "supported"
    asked = ("--model", model, "--ranks", 4, "--bucket", 1200)
    assert told["stages"] == planned(*asked, "--all-reduce")["stages"]
    for off, on in zip(told["stages"], planned(*asked)["stages"]):
        for figure, times in (("calls", 1), ("payload_bytes", 1), ("ring_bytes", 2)):
            if off["stage"]:
                assert off[figure]["all_reduce"] == times * on[figure]["reduce_scatter"] > 0
                assert off[figure]["reduce_scatter"] == on[figure]["all_reduce"] == 0
            else:
                assert off == on
        assert off["memory_bytes"] == on["memory_bytes"]
    assert "reductions are all-reduces" in gwctl(*asked, "--all-reduce").stdout


def test_g04_auto_can_be_filled_in(deepspeed):
    configuration = {"zero_optimization": {"reduce_bucket_size": "auto"},
                     "gradient_accumulation_steps": "auto"}
    done = deepspeed(configuration, code=EX_CONFIG)
    assert done.stdout == "" and "zero_optimization.reduce_bucket_size, gradient_acc" in done.stderr
    deepspeed(configuration, "--bucket", "4000", "--micro-steps", "2")


@pytest.mark.parametrize("text, message", [
    ("{\n // one\n}", "ds.json:2:2: "), ('{"a": 1,\n}', "ds.json:2:1: "),
    ('{"zero_optimization": {"stage": "two"}}', "zero_optimization.stage is \"two\""),
    ('{"zero_optimization": {"reduce_bucket_size": 0}}', "must not be 0"),
    ('{"zero_optimization": {"zero_hpz_partition_size": 3}}', "does not divide 4 ranks"),
    ('{"train_batch_size": 7}', "do not divide"),
    ('{"gradient_accumulation_steps": 1025}', "at most 1024")])
def test_bad_configurations_end_with_78(deepspeed, text, message):
    done = deepspeed(text, code=EX_CONFIG)
    assert message in done.stderr and done.stdout == ""


# ---- bad use -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, message", [
    ("a\t3xfour\tu\n", ":1:5: "), ("a\t1\tu\na\t2\tu\n", ":2:1: name a was there before"),
    ("a\t1\tu\nb\t1\tv\nc\t1\tu\n", ":3:1: unit u comes back"), ("", "no parameter"),
    ("a\t99999999999999999999\tu\n", ":1:3: "), ("\033[2Jx\n", "u001b[2Jx")])
def test_bad_lists_end_with_65(tmp_path, text, message):
    path = tmp_path / "m.tsv"
    path.write_text(text)
    done = gwctl("--model", path, "--ranks", 2, code=EX_DATAERR)
    assert message in done.stderr and done.stdout == "" and "\033" not in done.stderr


@pytest.mark.parametrize("args", [
    [], ["--ranks", "0"], ["--ranks", "2", "--nodes", "3"], ["--ranks", "x"],
    ["--ranks", "2", "--stage", "4"], ["--ranks", "2", "--bucket", "0"],
    ["--ranks", "2", "--bucket", "3"], ["--ranks", "2", "--align", "12"],
    ["--ranks", "2", "--accumulate", "both"], ["--ranks", "2", "--no-such-option"],
    ["--ranks", "2", "more"], ["--ranks"], ["--ranks", "2", "--ring-slots", "65"],
    ["--ranks", "2", "--nodes", "2", "--gather", "mapped"],
    ["--ranks", "2", "--deepspeed-version", "0.19.8"], ["--ranks", "2", "--link", "0"]])
def test_wrong_use_ends_with_64(model, args):
    done = gwctl("--model", model, *args, code=EX_USAGE)
    assert done.stdout == "" and re.match(r"gwctl: .+", done.stderr)


def test_more_ranks_than_a_job_has_are_planned_and_said_so(model):
    at_most = planned("--model", model, "--ranks", PLAN_RANKS_MAX, *BUCKET)
    assert (at_most["ranks"], at_most["ranks_max"]) == (PLAN_RANKS_MAX, RANKS_MAX)


@pytest.mark.parametrize("ranks", [PLAN_RANKS_MAX + 1, 2 ** 64 - 1, 10 ** 40])
def test_more_ranks_than_a_plan_is_for_end_with_65(model, ranks):
    done = gwctl("--model", model, "--ranks", ranks, *BUCKET, code=EX_DATAERR)
    assert done.stdout == ""
    assert done.stderr == (
        f"gwctl: --ranks {ranks}: more ranks than a plan's tables are for, which is "
        f"{PLAN_RANKS_MAX}; this release runs jobs of at most {RANKS_MAX}\n")


@pytest.mark.skipif(bool(os.environ.get("GW_TEST_PRELOAD")),
                    reason="a sanitizer's own memory is no business of a plan")
def test_tables_that_do_not_fit_in_memory_end_with_65(model):
    """A group of so many ranks has 4 MiB of them in each of eight plans, and there are two."""
    limit = 48 << 20
    done = subprocess.run(
        [str(GWCTL), "plan", "--model", str(model), "--ranks", str(PLAN_RANKS_MAX),
         "--group", f"g=0-{PLAN_RANKS_MAX - 1}"],
        capture_output=True, text=True, timeout=60 * SLOWER,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert (done.returncode, done.stdout) == (EX_DATAERR, "")
    assert re.fullmatch(rf"gwctl: {PLAN_RANKS_MAX} ranks, \d+ parameters and 2 groups: the plan's "
                        r"tables do not fit in memory\n", done.stderr)


def test_unreadable_files_end_with_66(model, tmp_path):
    assert "gone" in gwctl("--model", tmp_path / "gone", "--ranks", 2, code=EX_NOINPUT).stderr
    gwctl("--model", tmp_path, "--ranks", 2, code=EX_NOINPUT)
    gwctl("--model", model, "--ranks", 2, "--deepspeed", tmp_path / "gone", code=EX_NOINPUT)


def test_help_and_json_before_the_command(model):
    assert "--deepspeed FILE" in gwctl("--help").stdout
    done = subprocess.run([str(GWCTL), "--json", "plan", "--model", str(model), "--ranks", "2"],
                          capture_output=True, text=True, timeout=60 * SLOWER, check=True)
    assert json.loads(done.stdout)["ranks"] == 2
