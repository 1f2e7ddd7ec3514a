# SPDX-License-Identifier: Apache-2.0
"""gwctl plan with groups of ranks: per group and in sum what tests/cases/plan.py says, written
apart, and what the ranks of real jobs count. Also how groups are named, and what is refused.
ctest: timeout=600
"""
import os
import random

import pytest

import gw
from conftest import SLOWER
from planning import (RUN_BUCKET, RUNS, STEPS, assert_memory, gwctl, one_run, plan, planned,
                      run_options, write_model)

EX_USAGE = 64
FIGURES = ("calls", "payload_bytes", "ring_bytes", "memory_bytes")


def moe(hidden, layers, experts):
    """A dense part, and experts that are units of their own."""
    rows = [("wte", (67, hidden), "embed")]
    for layer in range(layers):
        name = f"h.{layer}"
        rows.append((f"{name}.attn.weight", (hidden, 3 * hidden + 1), name))
        for expert in range(experts):
            unit = f"{name}.moe.experts.{expert}"
            rows += [(f"{unit}.w1", (hidden, 29), unit), (f"{unit}.w2", (29, hidden), unit)]
        rows.append((f"{name}.ln", (hidden,), f"{name}.ln"))
    return rows


def grouped(rows, group_of):
    return [plan.Parameter(name, plan.parse_shape("x".join(map(str, shape))), unit, group)
            for (name, shape, unit), group in zip(rows, group_of)]


def spell(ranks, shard_ranks):
    return ",".join(map(str, ranks)) + (f"/{shard_ranks}" if shard_ranks else "")


def group_options(rows, groups, group_of):
    """The command line of groups by number; each parameter is named."""
    args = []
    for number, (ranks, shard_ranks) in enumerate(groups, 1):
        args += ["--group", f"g{number}={spell(ranks, shard_ranks)}"]
    for (name, _, _), group in zip(rows, group_of):
        if group:
            args += ["--param-group", f"{name}=g{group}"]
    return args


def assert_groups(got, parameters, ranks, rank, groups, seed, **options):
    """Each group's figures are those of its member; the rank's own add up to the rank's."""
    members = [list(range(ranks))] + [list(of) for of, _ in groups]
    assert [group["members"] for group in got["groups"]] == [len(of) for of in members], seed
    for number, group in enumerate(got["groups"]):
        who = rank if rank in members[number] else members[number][0]
        assert group["rank"] == who, seed
        assert group["params"] == sum(p.numel for p in parameters if p.group == number)
        for stage in group["stages"]:
            of_stage = dict(options, group=number, rank=who, groups=groups)
            if stage["stage"] < 3:
                of_stage.update(gather="private", persist_bytes=0, reuse_bytes=0)
            want = plan.expected(parameters, stage["stage"], ranks, **of_stage)
            told = f"{seed}: group {number}, stage {stage['stage']}"
            for figure in (*FIGURES, "buckets"):
                assert stage[figure] == want[figure], f"{told}: {figure}"
            assert stage["padding_bytes"] == want["layout_padding_bytes"], told
    for index, stage in enumerate(got["stages"]):
        for figure in ("calls", "payload_bytes", "ring_bytes", "cross_node_bytes"):
            for kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
                assert stage[figure][kind] == sum(
                    group["stages"][index][figure][kind] for of, group in
                    zip(members, got["groups"]) if rank in of), f"{seed}: {figure}, {kind}"


def divisor(rng, count):
    return rng.choice([0] + [d for d in range(1, count + 1) if count % d == 0])


@pytest.mark.parametrize("seed", range(30))
def test_random_groups(tmp_path, seed):
    rng = random.Random(f"groups {seed}")
    ranks = rng.choice((2, 3, 4, 6, 8))
    rows = [(f"p{i}", (rng.choice((0, 1, rng.randint(1, 3000))),), f"u{i // 2}")
            for i in range(rng.randint(1, 24))]
    gather = rng.choice(("private", "mapped"))
    groups = []
    for _ in range(rng.randint(0, 4)):
        of = rng.sample(range(ranks), rng.randint(1, ranks))
        groups.append((of, divisor(rng, len(of)) if gather == "private" else 0))
    group_of = [rng.randint(0, len(groups)) for _ in rows]
    options = {"bucket_bytes": 4 * rng.randint(1, 2000), "micro_steps": rng.choice((1, 3)),
               "accumulate": rng.choice(("local", "shard")), "gather": gather,
               "shard_ranks": divisor(rng, ranks) if gather == "private" else 0,
               "persist_bytes": rng.choice((0, 4, 400)),
               "reuse_bytes": rng.choice((0, 0, 6000))}
    if gather == "private" and options["shard_ranks"] in (0, ranks):
        options["secondary_ranks"] = divisor(rng, ranks)
    rank = rng.randrange(ranks)
    options["all_reduce"] = rng.random() < 0.3
    path = write_model(tmp_path / "m.tsv", rows)
    args = [("--" + key.removesuffix("_bytes").replace("_", "-"), value)[:1 if value is True else 2]
            for key, value in options.items() if value]
    parameters = grouped(rows, group_of)
    got = planned("--model", path, "--ranks", ranks, "--rank", rank,
                  *[word for arg in args for word in arg], *group_options(rows, groups, group_of))
    assert got["rank"] == rank
    for stage in got["stages"]:
        of_stage = dict(options, groups=groups, rank=rank)
        if stage["stage"] < 3:
            of_stage.update(gather="private", persist_bytes=0, reuse_bytes=0)
        want = plan.expected(parameters, stage["stage"], ranks, **of_stage)
        for figure in FIGURES:
            assert stage[figure] == want[figure], f"{seed}: stage {stage['stage']}: {figure}"
    assert_groups(got, parameters, ranks, rank, groups, seed, **options)


# ---- against a real run --------------------------------------------------------------------------

WORLD, HIDDEN = 4, 16
ROWS = moe(HIDDEN, 2, 4)
EXPERTS = [((0, 2), 0), ((1, 3), 0)]
ODD = [((3, 1, 0, 2), 2), ((2, 3, 0), 0), ((1,), 0)]


def expert_groups():
    """Experts 0 and 1 of a layer on even ranks, 2 and 3 on odd ones."""
    return [1 + int(name.split(".")[4]) // 2 if "experts" in name else 0
            for name, _, _ in ROWS]


def odd_groups():
    return [number % (len(ODD) + 1) for number in range(len(ROWS))]


CASES = {"experts": (EXPERTS, expert_groups(), RUNS),
         "odd": (ODD, odd_groups(), [run for run in RUNS if run["gather"] == "private"])}


def all_runs(rank, socket, directory, groups, group_of, runs):
    """Stage 0 shards nothing: a job takes no runs there, and a plan ignores them."""
    return [one_run(rank, WORLD, socket, os.path.join(directory, f"id{number}"), ROWS, run,
                    [(ranks, shards if run["stage"] else 0) for ranks, shards in groups],
                    group_of) for number, run in enumerate(runs)]


def check_run(run, rank, result, stage, want):
    counters, memory, overflow = result
    for kind in gw.KINDS:
        told = f"{run}: rank {rank}: {kind}"
        for figure in ("calls", "payload_bytes", "ring_bytes"):
            assert counters[kind][figure] == STEPS * stage[figure][kind], f"{told}: {figure}"
        if kind != "control":
            assert counters[kind]["moved_bytes"] == STEPS * want["moved_bytes"][kind], told
    assert_memory(memory, overflow, stage["memory_bytes"], want, run)


@pytest.mark.parametrize("case", CASES)
def test_a_real_run_counts_what_was_planned(daemon, tmp_path, case):
    groups, group_of, runs = CASES[case]
    path = write_model(tmp_path / "m.tsv", ROWS)
    parameters = grouped(ROWS, group_of)
    args = ["--expert-parallel", 2] if case == "experts" else group_options(ROWS, groups, group_of)
    results = gw.run(WORLD, all_runs, str(daemon.socket), str(tmp_path), groups, group_of, runs,
                     timeout=240 * SLOWER)
    for number, run in enumerate(runs):
        options = {key: run[key] for key in ("micro_steps", "accumulate", "gather",
                                             "secondary_ranks", "all_reduce")}
        for rank in range(WORLD):
            got = planned("--model", path, "--ranks", WORLD, "--rank", rank, *run_options(run),
                          *args)
            (stage,) = got["stages"]
            want = plan.expected(parameters, run["stage"], WORLD, RUN_BUCKET, groups=groups,
                                 rank=rank, **options)
            check_run(run, rank, results[rank][number], stage, want)
            assert_groups(got, parameters, WORLD, rank, groups, run, bucket_bytes=RUN_BUCKET,
                          **options)


# ---- how groups are named ------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "m.tsv", ROWS)


def test_expert_parallel_is_short_for_groups_and_patterns(model):
    short = planned("--model", model, "--ranks", 8, "--nodes", 2, "--expert-parallel", 4)
    long = planned("--model", model, "--ranks", 8, "--nodes", 2, *(
        word for i in range(4) for word in (
            "--group", f"expert{i}={i}-7:4", "--param-group", f"h.?.moe.experts.{i}=expert{i}")))
    assert short == long
    assert [(group["name"], group["ranks"]) for group in short["groups"]] == [
        ("all", "0-7"), ("expert0", "0,4"), ("expert1", "1,5"), ("expert2", "2,6"),
        ("expert3", "3,7")]
    # Ranks 0-3 are a node: an expert's two ranks lie on both, and each sends its half.
    expert = 2 * 2 * 29 * HIDDEN * 4
    one = short["groups"][1]["stages"][1]
    assert one["payload_bytes"]["reduce_scatter"] == expert
    assert one["cross_node_bytes"]["reduce_scatter"] == expert / 2


def test_the_first_pattern_that_fits_counts(model):
    got = planned("--model", model, "--ranks", 4, "--group", "a=0,1", "--group", "b=2,3",
                  "--param-group", "h.0.*=b", "--param-group", "*experts*=a",
                  "--param-group", "h.1.attn.weight=all", "--param-group", "embed=a")
    of = {group["name"]: group["params"] for group in got["groups"]}
    layer = HIDDEN * (3 * HIDDEN + 1) + HIDDEN
    experts = 4 * 2 * 29 * HIDDEN
    assert of == {"all": layer, "a": experts + 67 * HIDDEN, "b": layer + experts}


@pytest.mark.parametrize("given, told", [
    ("0-3", "0-3"), ("3,1,0", "3,1,0"), ("0-7:2", "0-6:2"), ("0,1", "0-1"), ("5,0-2,7", "5,0-2,7"),
    ("0-6:3,1", "0-6:3,1"), ("7", "7"), ("0-0", "0")])
def test_ranks_are_told_as_they_are_given(model, given, told):
    got = planned("--model", model, "--ranks", 8, "--group", f"a={given}")
    assert got["groups"][1]["ranks"] == told
    again = planned("--model", model, "--ranks", 8, "--group", f"a={told}")
    assert again["groups"] == got["groups"]


def test_text_has_each_group_and_what_they_share(model):
    text = gwctl("--model", model, "--ranks", 4, "--nodes", 2, "--expert-parallel", 2,
                 "--group", "pair=0-3/2", "--param-group", "embed=pair").stdout
    for words in ("figures are rank 0's", "groups     3 beside all ranks", "0-3 in runs of 2",
                  "group all ", "group pair ", "each of expert0 to expert1", "crosses, all_gather",
                  "ring, reduce_scatter"):
        assert words in text, f"{words}\n{text}"
    alone = gwctl("--model", model, "--ranks", 4).stdout
    assert "group" not in alone


def test_more_than_a_job_has_is_refused_by_name(tmp_path):
    path = write_model(tmp_path / "m.tsv", moe(4, 1, 2))
    done = gwctl("--model", path, "--ranks", 64, "--expert-parallel", 2,
                 *(word for i in range(62) for word in ("--group", f"g{i}={i}")), code=EX_USAGE)
    assert "more than 63 groups" in done.stderr


@pytest.mark.parametrize("args, says", [
    (["--group", "a"], "expected NAME=RANKS"),
    (["--group", "=0"], "a group's name has 1 to 63 bytes"),
    (["--group", "a" * 64 + "=0"], "a group's name has 1 to 63 bytes"),
    (["--group", "a="], "expected NAME=RANKS"),
    (["--group", "a=0,"], "expected NAME=RANKS"),
    (["--group", "a=3-1"], "expected NAME=RANKS"),
    (["--group", "a=0-3:0"], "expected NAME=RANKS"),
    (["--group", "a=0-3/"], "expected NAME=RANKS"),
    (["--group", "a=0-3/0"], "expected NAME=RANKS"),
    (["--group", "a=0-3/2/2"], "expected NAME=RANKS"),
    (["--group", "a=0x1"], "expected NAME=RANKS"),
    (["--group", "a=" + "9" * 40], "expected NAME=RANKS"),
    (["--group", "a=0-3/3"], "runs of 3, which does not divide its 4 ranks"),
    (["--group", "a=2-5"], "rank 4 is not of the job"),
    (["--group", "a=0-2,1"], "rank 1 is in it twice"),
    (["--group", "all=0"], "group all is there already: it has all ranks"),
    (["--group", "a=0", "--group", "a=1"], "group a is there already"),
    (["--group", "expert1=0", "--expert-parallel", "2"], "group expert1 is there already"),
    (["--param-group", "x"], "expected PATTERN=GROUP"),
    (["--param-group", "=all"], "expected PATTERN=GROUP"),
    (["--param-group", "x=nobody"], "there is no group nobody"),
    (["--param-group", "x.*=all"], "no parameter and no unit"),
    (["--expert-parallel", "3"], "--expert-parallel 3 does not divide 4 ranks"),
    (["--expert-parallel", "0"], "a number from 1 to 63"),
    (["--rank", "4"], "--rank 4: the job's 4 ranks are counted from 0"),
    (["--group", "a=0-3/2", "--gather", "mapped"], "group 1's shard_ranks is 2"),
])
def test_bad_groups_end_with_64(model, args, says):
    done = gwctl("--model", model, "--ranks", 4, *args, code=EX_USAGE)
    assert says in done.stderr and done.stdout == ""


def test_experts_that_are_not_in_the_list_are_told(tmp_path):
    path = write_model(tmp_path / "m.tsv", moe(8, 1, 3))
    done = gwctl("--model", path, "--ranks", 4, "--expert-parallel", 2, code=EX_USAGE)
    assert "h.0.moe.experts. has 3 experts, which --expert-parallel 2 does not" in done.stderr
    path = write_model(tmp_path / "m.tsv", [("experts.gate_up", (4, 4), "")])
    done = gwctl("--model", path, "--ranks", 4, "--expert-parallel", 2, code=EX_USAGE)
    assert "no name in " in done.stderr and "--param-group" in done.stderr
