# SPDX-License-Identifier: Apache-2.0
"""daemon/core/layout and plan, and tests/cases/plan.py, written apart, agree on random models.

argv of the C program: environment GW_LAYOUT_PRINT. Also plan.py's own figures, against values
worked out by hand.
"""
import collections
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
DTYPES = ("fp32", "fp16", "bf16")
ACCUMULATE = {"auto": 0, "local": 1, "shard": 2}

World = collections.namedtuple("World", "parameters stage ranks bucket_bytes align_bytes groups "
                               "shard_ranks persist_bytes reuse_bytes accum_as_grads micro_steps "
                               "accumulate gather secondary_ranks all_reduce",
                               defaults=((), 0, 0, 0, False, 1, "auto", "private", 0, False))


def print_layouts(worlds):
    """What the C code makes of a list of worlds."""
    lines = []
    for w in worlds:
        lines.append(f"{w.stage} {w.ranks} {w.bucket_bytes} {w.align_bytes} "
                     f"{int(w.accum_as_grads)} {w.persist_bytes} {w.shard_ranks}")
        lines.append(f"{w.micro_steps} {ACCUMULATE[w.accumulate]} {int(w.gather == 'mapped')} "
                     f"{w.reuse_bytes} {w.secondary_ranks} {int(w.all_reduce)} {len(w.groups)} "
                     f"{len(w.parameters)}")
        lines += [f"{len(ranks)} {shard_ranks} {' '.join(map(str, ranks))}"
                  for ranks, shard_ranks in w.groups]
        lines += [f"{p.name} {p.unit or '-'} {p.numel} {p.group} {DTYPES.index(p.dtype)} "
                  f"{DTYPES.index(p.grad_dtype)}" for p in w.parameters]
    done = subprocess.run([PRINT], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def divisor_of(rng, number):
    return rng.choice([0] + [d for d in range(1, number + 1) if number % d == 0])


def random_groups(rng, ranks):
    """Up to two beside the world, in any order, some in runs."""
    groups = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        members = rng.sample(range(ranks), rng.randint(1, ranks))
        groups.append((tuple(members), divisor_of(rng, len(members))))
    return tuple(groups)


def random_world(seed):
    """Like real models in little: units of a few parameters, some large, some empty; half of the
    worlds of fp32 and one group alone."""
    rng = random.Random(seed)
    ranks = 64 if seed % 100 == 99 else rng.choice((1, 2, 3, 4, 5, 6, 8))
    plain = seed % 2 == 0
    groups = () if plain else random_groups(rng, ranks)
    dtypes = ("fp32",) if plain else rng.choice((DTYPES, ("fp32", "bf16"), ("fp16",)))
    parameters = []
    for unit in range(rng.randint(1, 12)):
        name = rng.choice(("", f"unit{unit}", f"unit{unit}"))
        group = rng.randint(0, len(groups))
        for index in range(rng.randint(1, 5)):
            numel = rng.choice((0, 1, rng.randint(1, 9), rng.randint(1, 100),
                                rng.randint(100, 5000), 4096))
            if rng.random() < 0.2:
                group = rng.randint(0, len(groups))
            parameters.append(plan.Parameter(f"p{unit}.{index}", numel, name, group,
                                             rng.choice(dtypes), rng.choice(dtypes)))
    stage = rng.randrange(4)
    bucket = 4 * rng.choice((rng.randint(1, 50), rng.randint(50, 3000), 4096, 100000))
    runs = 0 if plain or stage == 0 else divisor_of(rng, ranks)
    mapped = stage == 3 and not runs and all(not run for _, run in groups) and rng.random() < 0.3
    persist = rng.choice((0, 0, 4, rng.randint(1, 500), 10 ** 6)) if stage == 3 else 0
    reuse = rng.choice((0, 0, 1, rng.randint(1, 40000), 10 ** 9)) if stage == 3 else 0
    blocks = divisor_of(rng, ranks) if stage == 3 and not mapped and runs in (0, ranks) else 0
    return World(parameters, stage, ranks, bucket, rng.choice((4, 4, 16, 64)), groups,
                 runs, persist, reuse, not plain and rng.random() < 0.3, rng.choice((1, 1, 2, 3)),
                 rng.choice(("auto", "local", "shard")), "mapped" if mapped else "private", blocks,
                 rng.random() < 0.3)


def layout_of(world):
    return plan.make_layout(world.parameters, world.stage, world.ranks, world.bucket_bytes,
                            world.align_bytes, world.groups, world.shard_ranks,
                            world.persist_bytes, world.accum_as_grads)


def figures_of(world, rank):
    got = plan.expected(world.parameters, world.stage, world.ranks, world.bucket_bytes,
                        world.align_bytes, world.micro_steps, world.accumulate, world.gather,
                        gather_bytes=2 ** 62 if world.reuse_bytes else 0, rank=rank,
                        groups=world.groups, shard_ranks=world.shard_ranks,
                        persist_bytes=world.persist_bytes, reuse_bytes=world.reuse_bytes,
                        accum_as_grads=world.accum_as_grads,
                        secondary_ranks=world.secondary_ranks, all_reduce=world.all_reduce)
    return {name: got[name] for name in ("calls", "payload_bytes", "padding_bytes", "ring_bytes",
                                         "moved_bytes", "memory_bytes")}


def test_random_models_agree():
    worlds = [random_world(seed) for seed in range(400)]
    printed = print_layouts(worlds)
    assert len(printed) == len(worlds)
    for seed, (world, got) in enumerate(zip(worlds, printed)):
        want = plan.layout_dict(layout_of(world), world.parameters)
        assert got["layout"] == want, f"seed {seed}: {world}"
        assert len(got["plans"]) == min(world.ranks, 4)
        for rank, figures in enumerate(got["plans"]):
            assert figures == figures_of(world, rank), f"seed {seed}, rank {rank}: {world}"


def test_both_refuse_names_that_come_twice():
    twice = [plan.Parameter("a", 1), plan.Parameter("b", 1), plan.Parameter("a", 2)]
    back = [plan.Parameter("a", 1, "u"), plan.Parameter("b", 1, "v"), plan.Parameter("c", 1, "u")]
    worlds = [World(parameters, 3, 2, 40, 4) for parameters in (twice, back)]
    assert print_layouts(worlds) == [{"refused": 2}] * 2
    for world in worlds:
        with pytest.raises(ValueError):
            layout_of(world)


@pytest.mark.parametrize("groups, shard_ranks", [
    ([((0, 4), 0)], 0), ([((1, 1), 0)], 0), ([((0, 1, 2), 2)], 0), ([], 3)])
def test_both_refuse_groups_that_cannot_be(groups, shard_ranks):
    world = World([plan.Parameter("a", 8)], 1, 4, 40, 4, groups, shard_ranks)
    assert print_layouts([world]) == [{"refused": 2 ** 32 - 1}]
    with pytest.raises(ValueError):
        layout_of(world)


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


def mixed(stage, **more):
    """tests/unit/test_plan.c's: 8 fp32; 15 bf16; 3 fp32 of ranks 2 and 0; 2 bf16 of fp32 gradients.
    Padded to 8, 16, 4 and 8."""
    parameters = [plan.Parameter("a", 8), plan.Parameter("b", 15, "", 0, "bf16", "bf16"),
                  plan.Parameter("d", 3, "", 1), plan.Parameter("g", 2, "", 0, "bf16")]
    return plan.expected(parameters, stage, 4, 40, align_bytes=4, groups=[((2, 0), 0)], **more)


def test_dtypes_and_groups():
    member, outside = mixed(1), mixed(1, rank=1)
    assert member["payload_bytes"]["reduce_scatter"] == 32 + 30 + 12 + 8
    assert member["payload_bytes"]["all_gather"] == 32 + 30 + 12 + 4
    assert member["ring_bytes"]["reduce_scatter"] == 24 + 22 + 6 + 6
    assert outside["calls"]["reduce_scatter"] == 3
    assert member["memory_bytes"] == dict(params=96, gradients=112 + 16, buckets=0, gathered=0,
                                          optimizer=80 + 24)
    assert mixed(1, accum_as_grads=True)["memory_bytes"]["gradients"] == 112


def test_e03_hybrid_sharding():
    rank = mixed(2, rank=3, shard_ranks=2, micro_steps=2)
    assert rank["calls"] == dict(all_reduce=3, reduce_scatter=6, all_gather=3, broadcast=0,
                                 control=1)
    assert rank["payload_bytes"]["reduce_scatter"] == 2 * 70
    assert rank["payload_bytes"]["all_reduce"] == 16 + 28  # of 8, 15 and 2 the second halves
    assert rank["padding_bytes"]["all_reduce"] == 4 + 16


def test_persistence_and_reuse():
    # Persistent: 1 and 2 elements, padded to 4. Others: 12, 9 of 12, 8.
    kept = figures(3, persist_bytes=8)
    assert kept["calls"]["all_gather"] == 1 + 2 * 3
    assert kept["payload_bytes"]["all_gather"] == 12 + 2 * 116
    assert kept["memory_bytes"]["gathered"] == 16 + 128
    assert figures(3, reuse_bytes=1)["calls"]["all_gather"] == 7  # the last unit, at once again
    assert figures(3, reuse_bytes=1000, gather_bytes=1000, micro_steps=3)["calls"][
        "all_gather"] == 4


def test_secondary_shards():
    flat, blocks = figures(3), figures(3, secondary_ranks=2)
    assert blocks["calls"] == flat["calls"]
    assert blocks["payload_bytes"] == flat["payload_bytes"]
    # Of each unit the two ranks of a block gather four times: 3/4 of its bytes once, else 1/2.
    assert flat["ring_bytes"]["all_gather"] == 2 * 128 * 3 // 4
    assert blocks["ring_bytes"]["all_gather"] == (96 + 3 * 64) // 2
    # Half of the padded 144 bytes is kept, and was copied there.
    assert blocks["memory_bytes"]["params"] == 36 + 72
    assert blocks["moved_bytes"]["all_gather"] == 2 * 144 + 72
    assert figures(3, secondary_ranks=4) == flat


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
