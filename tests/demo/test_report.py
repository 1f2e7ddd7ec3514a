# SPDX-License-Identifier: Apache-2.0
"""report.py on made-up runs of two ranks whose figures are worked out by hand.

Two parameters of 40 and 20 elements in units of their own, buckets of 32 elements, slices aligned
to 16: stages 0 to 2 have buckets of 32 and 28 elements (4 of padding), stage 3 of 32 and 8 (24) for
the first unit and 20 (12) for the second.
"""
import copy
import hashlib
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys

import jsonschema
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("report", HERE / "report.py")
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)

STEPS = 4
PAYLOAD = 60 * 4
# Per step: {kind: (calls, payload bytes, padding bytes)}
RIGHT = {
    0: {"all_reduce": (2, PAYLOAD, 16)},
    1: {"reduce_scatter": (2, PAYLOAD, 16), "all_gather": (2, PAYLOAD, 16)},
    2: {"reduce_scatter": (2, PAYLOAD, 16), "all_gather": (2, PAYLOAD, 16)},
    3: {"reduce_scatter": (3, PAYLOAD, 144), "all_gather": (4, 2 * PAYLOAD, 288)},
}
LOSSES = [[4.0, 3.0, 2.5, 2.1], [4.5, 3.5, 2.0, 2.25]]
MEANS = [4.25, 3.25, 2.25, 2.175]


def counters(stage):
    kinds = {}
    for kind in report.KINDS:
        calls, payload, padding = RIGHT[stage].get(kind, (0, 0, 0))
        once = payload // 2  # of (n-1)/n
        kinds[kind] = {"calls": calls * STEPS, "payload_bytes": payload * STEPS,
                       "padding_bytes": padding * STEPS,
                       "ring_bytes": STEPS * (2 * once if kind == "all_reduce" else once),
                       "moved_bytes": payload * STEPS, "cross_node_bytes": 0}
    kinds["control"]["calls"] = STEPS + 1  # a barrier before the first step
    return kinds


def rank_result(rank, stage, overlap, gather="private", link=None):
    return {
        "mode": "rank", "rank": rank, "stage": stage, "overlap": overlap, "gather": gather,
        "bucket_bytes": 128, "measured": True, "link_bytes_per_s": link, "world": 2,
        "steps": STEPS, "seed": 1, "batch": 32, "micro_steps": 1, "hidden": 8, "vocab": 5,
        "text_bytes": 1000, "loss": LOSSES[rank], "norm": [1.0, 0.5, 0.25, 0.125],
        "step_ns": [n * 1000000 * (rank + 1) for n in (10, 12, 14, 16)],
        "backward_ns": [4000000] * STEPS, "device": "host", "waited_ns": None,
        "layout": {"buckets": 3 if stage == 3 else 2, "units": 2, "fetch_units": 2, "numel": 60,
                   "padded_numel": 96 if stage == 3 else 64, "hash": "00" * 32},
        "stats": {"steps": STEPS, "kinds": counters(stage),
                  "memory_bytes": dict.fromkeys(report.plan.MEMORIES, 256),
                  "prefetch": {"hits": 9, "misses": 3, "drops": 0}, "gathered_bytes_max": 384,
                  "overflow_slots": 0, "copied_in_bytes": 0, "comm_ns": 12000000,
                  "comm_alone_ns": 2000000, "late_ns": 400000, "queued_ns": 800000,
                  "exposed_ns": 2000000, "wakeup_ns": 40000},
        "params": 60,
    }


def alone_result(mode, losses):
    return {"mode": mode, "world": 2, "steps": STEPS, "seed": 1, "batch": 32, "micro_steps": 1,
            "hidden": 8, "vocab": 5, "text_bytes": 1000, "loss": losses, "params": 60}


def write(directory, results, content="parameters"):
    directory.mkdir(exist_ok=True)
    for result in results:
        name = f"rank-{result.get('rank', 0)}"
        (directory / f"{name}.json").write_text(json.dumps(result))
        digest = hashlib.sha256(content.encode()).hexdigest()
        (directory / f"{name}.sha256").write_text(f"{digest}  {name}.params\n")


def run_of(*args, **options):
    return [rank_result(rank, *args, **options) for rank in (0, 1)]


@pytest.fixture
def demo(tmp_path):
    (tmp_path / "model.tsv").write_text("# name\tshape\tunit\na\t5x8\tx\nb\t20\ty\n")
    for stage in range(4):
        for overlap in (True, False):
            write(tmp_path / f"s{stage}-{overlap}", run_of(stage, overlap))
    write(tmp_path / "paced-on", run_of(2, True, link=1000000))
    write(tmp_path / "paced-off", run_of(2, False, link=1000000))
    write(tmp_path / "mapped", run_of(3, True, gather="mapped"))
    write(tmp_path / "reference", [alone_result("reference", MEANS)])
    write(tmp_path / "plain", [alone_result("plain", [4.25, 3.25, 2.25, 2.1751])], "drifted")
    return tmp_path


def run_report(demo, *args):
    return subprocess.run([sys.executable, str(HERE / "report.py"), "tables", str(demo), *args],
                          capture_output=True, text=True, timeout=60, check=False)


def broken(demo):
    result, problems, _ = report.collect(demo)
    assert result["promises"] == {p: p not in problems.broken for p in report.PROMISES}
    return problems.broken


def test_right_runs_keep_all_promises(demo):
    out = run_report(demo, "--json", str(demo / "out.json"))
    assert out.returncode == 0, out.stdout + out.stderr
    result = json.loads((demo / "out.json").read_text())
    jsonschema.validate(result, json.loads((HERE / "schema.json").read_text()))
    assert set(result["promises"].values()) == {True}
    assert [(r["stage"], r["overlap"]) for r in result["runs"]] == [
        (s, o) for s in range(4) for o in (True, False)]
    assert [(r["stage"], r["overlap"], r["gather"], r["link_bytes_per_s"])
            for r in result["extra_runs"]] == [
        (2, True, "private", 1000000), (2, False, "private", 1000000), (3, True, "mapped", None)]


def test_figures_are_per_step_and_times_the_slowest_ranks(demo):
    result, _, _ = report.collect(demo)
    run = result["runs"][6]
    assert (run["stage"], run["overlap"], run["buckets"]) == (3, True, 3)
    assert run["loss"] == MEANS
    assert run["calls"] == {"all_reduce": 0, "reduce_scatter": 3, "all_gather": 4, "broadcast": 0,
                            "control": 1}
    assert run["payload_bytes"]["all_gather"] == run["expected_payload_bytes"]["all_gather"] == 480
    assert run["padding_bytes"]["all_gather"] == 288
    assert run["step_ms"] == {"p50": 26, "min": 20}  # rank 1 is twice as slow
    assert run["comm_ms"] == 3 and run["comm_alone_ms"] == 2
    assert run["exposed_ms"] == 0.5 and run["hidden_fraction"] == 0.75
    assert (run["late_ms"], run["queued_ms"], run["wakeup_ms"]) == (0.1, 0.2, 0.01)
    assert result["reference"]["max_rel_diff"] == 0
    assert result["reference"]["plain_max_rel_diff"] == pytest.approx(1e-4 / 2.175)


def test_tables_say_what_is_equal(demo):
    out = run_report(demo).stdout
    for word in ("T0", "T1", "T2", "T3", "T4", "bitwise equal", "simulated link of 1.0 MB/s",
                 "s0-on s0-off s1-on s1-off s2-on s2-off s3-on s3-off", "mapped"):
        assert word in out, out
    assert "BROKEN" not in out and "WRONG" not in out


@pytest.mark.parametrize("alone, exposed, wanted", [
    (2000000, 0, 1.0), (2000000, 4 * 3000000, 0.0), (49000, 0, None), (0, 0, None)])
def test_hidden_fraction_is_clipped_or_null(alone, exposed, wanted):
    rank = rank_result(0, 2, True)
    rank["stats"].update(comm_alone_ns=alone, exposed_ns=exposed)
    assert report.step_times(rank)["hidden_fraction"] == wanted


def test_link_takes_half_of_backward():
    # A step sends 120 + 120 bytes per rank of two; half of 4 ms backward is 2 ms.
    assert report.link_speed(run_of(2, False)) == 240 / 0.002


def change(demo, name, edit, ranks=(0, 1), content="parameters"):
    results = copy.deepcopy([json.loads((demo / name / f"rank-{r}.json").read_text())
                             for r in ranks])
    for result in results:
        edit(result)
    write(demo / name, results, content)


def count(kind, figure, more):
    def edit(result):
        result["stats"]["kinds"][kind][figure] += more
    return edit


def test_an_all_reduce_in_stage_2_breaks_the_pattern(demo):
    change(demo, "s2-True", count("all_reduce", "calls", STEPS))
    assert list(broken(demo)) == ["pattern"]
    out = run_report(demo)
    assert out.returncode == 1
    assert "BROKEN  pattern" in out.stdout and "calls of all_reduce" in out.stdout


def test_two_reductions_per_bucket(demo):
    change(demo, "s1-False", count("reduce_scatter", "calls", 2 * STEPS))
    assert set(broken(demo)) == {"pattern", "one_collective_per_bucket"}


def test_figures_that_do_not_divide_or_agree(demo):
    change(demo, "s3-True", count("all_gather", "payload_bytes", 1))
    assert "1921 in 4 steps" in str(broken(demo)["pattern"])
    change(demo, "s3-True", count("all_gather", "payload_bytes", 3), ranks=(1,))
    assert "differ between ranks" in str(broken(demo)["pattern"])


def test_one_bit_of_a_loss_between_overlaps(demo):
    def edit(result):
        result["loss"][2] += 2**-40
    change(demo, "s1-True", edit)
    assert set(broken(demo)) == {"overlap_bitwise", "stages_bitwise", "reference_bitwise"}
    assert "equal to no other" in run_report(demo).stdout


def test_other_parameters_behind_equal_losses(demo):
    change(demo, "s3-True", lambda result: None, content="other")
    change(demo, "s3-False", lambda result: None, content="other")
    problems = broken(demo)
    assert set(problems) == {"stages_bitwise", "reference_bitwise"}
    assert "same losses, other parameters" in problems["stages_bitwise"][0]


def test_ranks_of_one_run_that_differ(demo):
    change(demo, "s0-True", lambda result: None, ranks=(1,), content="other")
    assert "its ranks differ" in str(broken(demo)["overlap_bitwise"])


def test_another_reference(demo):
    write(demo / "reference", [alone_result("reference", MEANS)], "other")
    assert list(broken(demo)) == ["reference_bitwise"]


@pytest.mark.parametrize("path, message", [
    ("s0-True/rank-1.json", "ranks [0], not 0 to 1"),
    ("s0-True/rank-1.sha256", "rank-1.sha256"),
    ("reference/rank-0.json", "ranks [], not 0 to 0"),
    ("model.tsv", "model.tsv")])
def test_missing_files_are_not_a_broken_promise(demo, path, message):
    (demo / path).unlink()
    out = run_report(demo)
    assert out.returncode == 2 and message in out.stderr and out.stdout == ""


def test_a_loss_that_is_not_a_number(demo):
    change(demo, "mapped", lambda result: result["loss"].__setitem__(1, None))
    out = run_report(demo)
    assert out.returncode == 2 and "step 2 has no finite loss" in out.stderr


def test_runs_that_are_not_comparable(demo):
    change(demo, "mapped", lambda result: result.update(seed=2))
    out = run_report(demo)
    assert out.returncode == 2 and "runs differ in seed" in out.stderr


# ---- several nodes -------------------------------------------------------------------------------

# Each of two ranks has a node: half of all buckets, padding included, goes either way.
CROSS = {0: {"all_reduce": 2 * 256}, 1: {"reduce_scatter": 256, "all_gather": 256},
         2: {"reduce_scatter": 256, "all_gather": 256},
         3: {"reduce_scatter": 384, "all_gather": 768}}


def on_nodes(directory, stage):
    """The run's ranks on nodes 0 and 1."""
    for rank in (0, 1):
        path = directory / f"rank-{rank}.json"
        result = json.loads(path.read_text())
        for kind, both in CROSS[stage].items():
            result["stats"]["kinds"][kind]["cross_node_bytes"] = both // 2 * STEPS
        path.write_text(json.dumps(result))
    (directory / "nodes").write_text("0 1\n")


@pytest.fixture
def nodes_demo(demo):
    for stage in range(4):
        for overlap in (True, False):
            on_nodes(demo / f"s{stage}-{overlap}", stage)
    write(demo / "one-node", run_of(2, True))
    return demo


def test_runs_on_two_nodes_keep_all_promises(nodes_demo):
    out = run_report(nodes_demo, "--json", str(nodes_demo / "out.json"))
    assert out.returncode == 0, out.stdout + out.stderr
    result = json.loads((nodes_demo / "out.json").read_text())
    jsonschema.validate(result, json.loads((HERE / "schema.json").read_text()))
    assert result["nodes"] == 2 and {run["nodes"] for run in result["runs"]} == {2}
    for run in result["runs"]:
        crossed = {kind: count for kind, count in run["cross_node_bytes"].items() if count}
        assert crossed == CROSS[run["stage"]] and run["node_of_rank"] == [0, 1]
    assert result["promises"]["crosses_as_planned"] and result["promises"]["nodes_bitwise"]
    assert "T5  bytes that cross nodes" in out.stdout and "stage 3 on 2 nodes" in out.stdout


def test_a_sum_that_crosses_once_too_often(nodes_demo):
    change(nodes_demo, "s2-True", count("reduce_scatter", "cross_node_bytes", 4), ranks=(1,))
    assert list(broken_on_nodes(nodes_demo)) == ["crosses_as_planned"]


def test_a_slice_that_crosses_too_seldom(nodes_demo):
    change(nodes_demo, "s2-True", count("all_gather", "cross_node_bytes", -4), ranks=(1,))
    assert list(broken_on_nodes(nodes_demo)) == ["crosses_as_planned"]


def test_what_crosses_depends_on_who_still_holds_a_slice_in_stage_3_alone(nodes_demo):
    """By hand: of three ranks two share node 0. A slice has 16 elements at least, a bucket three:
    the parameters have one each, and each slice 64 bytes."""
    parameters = report.plan.read_model(nodes_demo / "model.tsv")
    once = 2 * 3 * 64
    rank = {"stage": 2, "world": 3, "bucket_bytes": 128, "micro_steps": 1,
            "node_of_rank": [0, 0, 1]}
    assert report.may_cross(rank, parameters)["all_gather"] == (once,) * 3
    # Node 0 sends one sum of two for the one slice of node 1, which sends its own for two.
    assert report.may_cross(rank, parameters)["reduce_scatter"] == (once,) * 3
    rank["stage"] = 3
    assert report.may_cross(rank, parameters)["all_gather"] == (once, 2 * once, 4 * once)


def test_what_may_cross_is_judged_at_both_ends():
    ranks = [{"stats": {"kinds": {kind: {"cross_node_bytes": 400 if kind == "all_gather" else 0}
                                  for kind in report.KINDS}}, "steps": 2} for _ in range(3)]
    for least, most, right in ((600, 600, True), (300, 601, True), (601, 700, False),
                               (0, 599, False)):
        bounds = {**dict.fromkeys(report.KINDS, (0, 0, 0)), "all_gather": (least, least, most)}
        problems = report.Problems()
        assert report.crossed("run", ranks, bounds, problems)["all_gather"] == 600
        assert (not problems.broken) == right


def test_other_parameters_than_on_one_node(nodes_demo):
    change(nodes_demo, "one-node", lambda result: None, content="other")
    assert "nodes_bitwise" in broken_on_nodes(nodes_demo)


def test_nothing_to_compare_several_nodes_with(nodes_demo):
    for name in ("one-node", "mapped", "paced-on", "paced-off"):
        shutil.rmtree(nodes_demo / name)
    out = run_report(nodes_demo)
    assert out.returncode == 2 and "no run on one node" in out.stderr


def test_places_that_are_none(nodes_demo):
    (nodes_demo / "s0-True" / "nodes").write_text("0\n")
    out = run_report(nodes_demo)
    assert out.returncode == 2 and "are not the nodes of 2 ranks" in out.stderr


def broken_on_nodes(demo):
    _, problems, _ = report.collect(demo)
    return problems.broken
