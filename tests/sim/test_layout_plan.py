# SPDX-License-Identifier: Apache-2.0
"""daemon/core/layout and tests/cases/plan.py, written apart, agree on random models.

argv of the C program: environment GW_LAYOUT_PRINT. Also plan.py's own figures, against values
worked out by hand.
"""
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cases"))
import plan  # noqa: E402

PRINT = os.environ.get("GW_LAYOUT_PRINT", "layout_print")


def print_layouts(worlds):
    """What the C code makes of a list of (stage, ranks, bucket, align, parameters)."""
    lines = []
    for stage, ranks, bucket, align, parameters in worlds:
        lines.append(f"{stage} {ranks} {bucket} {align} {len(parameters)}")
        lines += [f"{p.name} {p.unit or '-'} {p.numel}" for p in parameters]
    done = subprocess.run([PRINT], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_world(seed):
    """Like real models in little: units of a few parameters, some large, some empty."""
    rng = random.Random(seed)
    parameters = []
    for unit in range(rng.randint(1, 12)):
        name = rng.choice(("", f"unit{unit}", f"unit{unit}"))
        for index in range(rng.randint(1, 5)):
            numel = rng.choice((0, 1, rng.randint(1, 9), rng.randint(1, 100),
                                rng.randint(100, 5000), 4096))
            parameters.append(plan.Parameter(f"p{unit}.{index}", numel, name))
    ranks = rng.choice((1, 2, 3, 4, 5, 7, 8, 64))
    bucket = rng.choice((1, rng.randint(1, 50), rng.randint(50, 3000), 4096, 100000))
    return rng.randrange(4), ranks, bucket, rng.choice((1, 1, 4, 16)), parameters


def test_random_models_agree():
    worlds = [random_world(seed) for seed in range(600)]
    printed = print_layouts(worlds)
    assert len(printed) == len(worlds)
    for seed, (world, got) in enumerate(zip(worlds, printed)):
        stage, ranks, bucket, align, parameters = world
        layout = plan.make_layout(parameters, stage, ranks, bucket, align)
        want = plan.layout_dict(layout, parameters)
        assert got == want, f"seed {seed}: {world}"


def test_both_refuse_names_that_come_twice():
    twice = [plan.Parameter("a", 1), plan.Parameter("b", 1), plan.Parameter("a", 2)]
    back = [plan.Parameter("a", 1, "u"), plan.Parameter("b", 1, "v"), plan.Parameter("c", 1, "u")]
    assert print_layouts([(3, 2, 10, 1, twice), (3, 2, 10, 1, back)]) == [{"refused": 2}] * 2
    for parameters in (twice, back):
        with pytest.raises(ValueError):
            plan.make_layout(parameters, 3, 2, 10, 1)


def figures(stage, **more):
    """R02's eight tensors on four ranks: 32 elements, buckets of 6, 12, 10, 4; padded 8+12+12+4."""
    parameters = [plan.Parameter(f"p{i}", n) for i, n in enumerate((5, 1, 7, 3, 2, 6, 4, 4))]
    return plan.expected(parameters, stage, 4, 48, align_bytes=4, **more)


def test_r02_traffic():
    psi, padding = 32 * 4, 4 * 4
    zero = figures(0)
    assert zero["calls"] == dict(all_reduce=4, reduce_scatter=0, all_gather=0, broadcast=0,
                                 control=1)
    assert zero["payload_bytes"]["all_reduce"] == psi
    assert zero["padding_bytes"]["all_reduce"] == padding
    assert zero["ring_bytes"]["all_reduce"] == 2 * psi * 3 // 4
    for stage in (1, 2):
        one = figures(stage)
        assert one["calls"] == dict(all_reduce=0, reduce_scatter=4, all_gather=4, broadcast=0,
                                    control=1)
        assert one["payload_bytes"]["reduce_scatter"] == psi
        assert one["payload_bytes"]["all_gather"] == psi
        assert one["ring_bytes"]["all_gather"] == psi * 3 // 4
        assert one["payload_bytes"]["control"] == 0
    # Stage 3 starts a bucket with each fetch unit: 5+1, 7+3+2, 6+4, 4: the same buckets here.
    three = figures(3)
    assert three["fetch_units"] == 4
    assert three["calls"] == dict(all_reduce=0, reduce_scatter=4, all_gather=8, broadcast=0,
                                  control=1)
    assert three["payload_bytes"]["all_gather"] == 2 * psi
    assert three["padding_bytes"]["all_gather"] == 2 * padding


def test_r02_micro_steps_send_as_the_mode_says():
    assert figures(2, micro_steps=3)["calls"]["reduce_scatter"] == 12
    assert figures(2, micro_steps=3, accumulate="local")["calls"]["reduce_scatter"] == 4
    assert figures(1, micro_steps=3)["calls"]["reduce_scatter"] == 4
    assert figures(0, micro_steps=3, accumulate="shard")["calls"]["all_reduce"] == 12
    assert figures(3, micro_steps=3)["calls"]["all_gather"] == 24


def test_r02_memory():
    full, shard, bucket = 36 * 4, 36, 12 * 4
    zero, one, two, three = (figures(s)["memory_bytes"] for s in range(4))
    assert zero == dict(params=full, gradients=full, buckets=0, gathered=0, optimizer=2 * full)
    assert one == dict(params=full, gradients=full, buckets=0, gathered=0, optimizer=2 * shard)
    assert two == dict(params=full, gradients=shard, buckets=3 * bucket, gathered=0,
                       optimizer=2 * shard)
    # The three largest units (12+12+8) and one more of 12 would be more than all there is.
    assert three == dict(params=shard, gradients=shard, buckets=3 * bucket, gathered=full,
                         optimizer=2 * shard)
    assert figures(2, accumulate="local")["memory_bytes"]["gradients"] == full + shard
    assert figures(2, accumulate="local")["memory_bytes"]["buckets"] == 0
    assert figures(0, micro_steps=2)["memory_bytes"]["gradients"] == 2 * full
    in_shards = figures(1, micro_steps=2, accumulate="shard")
    assert in_shards["memory_bytes"]["gradients"] == full + shard
    assert figures(3, gather="mapped")["memory_bytes"]["gathered"] == 0


def test_r08_two_collectives():
    parameters = [plan.Parameter(f"p{i}", 100) for i in range(10)]
    result = plan.expected(parameters, 3, 2, 2000, align_bytes=4)
    assert result["calls"]["reduce_scatter"] == 2
    assert result["calls"]["all_gather"] == 4


def test_command_line(tmp_path):
    model = tmp_path / "model.tsv"
    model.write_text("# name\tshape\tunit\na\t3x4\tu\nb\t5\tu\n")
    run = [sys.executable, plan.__file__, str(model), "--stage", "1", "--ranks", "2"]
    done = subprocess.run([*run, "--bucket", "400"], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["payload_bytes"]["reduce_scatter"] == 17 * 4
    model.write_text("a\t3xfour\tu\n")
    done = subprocess.run([*run, "--bucket", "400"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "model.tsv:1" in done.stderr
