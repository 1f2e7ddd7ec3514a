# SPDX-License-Identifier: Apache-2.0
"""gwctl plan asked, and real runs whose counters it must equal; for the tests of plans."""
import ctypes as C
import json
import os
import pathlib
import subprocess
import sys

import gw
from conftest import GWCTL, SLOWER

SOURCE = pathlib.Path(os.environ.get("GRADWIRE_SOURCE", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(SOURCE / "tests/cases"))
import plan  # noqa: E402

STEPS, RUN_BUCKET, RING_SLOTS = 2, 4200, 3
RUNS = [dict(stage=stage, micro_steps=steps, accumulate=accumulate, gather=gather,
             secondary_ranks=0, all_reduce=0)
        for stage in range(4) for steps, accumulate in ((1, "auto"), (2, "local"), (2, "shard"))
        for gather in (("private", "mapped") if stage == 3 else ("private",))]
RUNS.append(dict(RUNS[-1], gather="private", secondary_ranks=1))
RUNS += [dict(RUNS[0], stage=stage, micro_steps=steps, accumulate=accumulate, all_reduce=1)
         for stage, steps, accumulate in ((1, 1, "auto"), (2, 2, "shard"), (3, 2, "local"))]
for _run in RUNS:
    _run["bucket"] = RUN_BUCKET
CODES = {"auto": 0, "local": 1, "shard": 2, "private": 0, "mapped": 1}


def gwctl(*args, code=0):
    done = subprocess.run([str(GWCTL), "plan", *map(str, args)], capture_output=True, text=True,
                          timeout=60 * SLOWER)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stderr}"
    return done


def planned(*args):
    return json.loads(gwctl(*args, "--json").stdout)


def write_model(path, rows):
    path.write_text("# name\tshape\tunit\n" + "".join(
        f"{name}\t{'x'.join(map(str, shape))}\t{unit}\n" for name, shape, unit in rows))
    return path


def run_options(run):
    """The command line of a run."""
    accumulate = [] if run["accumulate"] == "auto" else ["--accumulate", run["accumulate"]]
    blocks = ["--secondary-ranks", run["secondary_ranks"]] if run["secondary_ranks"] else []
    reductions = ["--all-reduce"] if run["all_reduce"] else []
    return ["--bucket", run["bucket"], "--stage", run["stage"], "--micro-steps", run["micro_steps"],
            "--gather", run["gather"], "--ring-slots", RING_SLOTS, *accumulate, *blocks,
            *reductions]


def expected(path, world, run):
    """The independent author's figures of a run."""
    return plan.expected(plan.read_model(path), run["stage"], world, run["bucket"],
                         micro_steps=run["micro_steps"], accumulate=run["accumulate"],
                         gather=run["gather"], ring_slots=RING_SLOTS,
                         secondary_ranks=run["secondary_ranks"],
                         all_reduce=run["all_reduce"])


# ---- the run -------------------------------------------------------------------------------------


def numel(row):
    return plan.parse_shape("x".join(map(str, row[1])))


def backward(job, rows, units, mine, last):
    for unit in reversed(range(len(units))):
        job.wait(job.fetch(unit))
        for param in reversed(units[unit]):
            if mine[param]:
                job.put(param, (C.c_float * numel(rows[param]))(),
                        flags=0 if last else gw.ACCUMULATE)
        job.release(unit)


def one_step(job, rows, units, mine, micro_steps):
    for micro_step in range(micro_steps):
        for unit in range(len(units)):
            job.wait(job.fetch(unit))
            job.release(unit)
        last = micro_step == micro_steps - 1
        backward(job, rows, units, mine, last)
        if not last:
            job.micro_step_end()
    job.step_end()
    job.wait_step()
    job.wait(job.update_begin())
    job.update_commit()


def one_run(rank, world, socket, id_path, rows, run, groups=(), group_of=None):
    """What a rank's counters say after some steps: per kind, and memory. groups: (ranks,
    shard_ranks) from group 1 on; group_of: of each parameter."""
    job = gw.Job(rank, world, id_path=id_path, socket=socket)
    group_of = group_of or [0] * len(rows)
    members = [range(world)] + [ranks for ranks, _ in groups]
    units = []
    for ranks, shard_ranks in groups:
        job.param_group(ranks, shard_ranks)
    for number, (name, shape, unit) in enumerate(rows):
        if number == 0 or rows[number - 1][2] != unit:
            units.append([])
        units[-1].append(job.param(name, numel((name, shape)), unit, group=group_of[number]))
    job.seal(stage=run["stage"], bucket_bytes=run["bucket"], micro_steps=run["micro_steps"],
             accumulate=CODES[run["accumulate"]], gather=CODES[run["gather"]],
             ring_slots=RING_SLOTS, secondary_ranks=run["secondary_ranks"],
             all_reduce=run["all_reduce"])
    for moment in ("exp_avg", "exp_avg_sq"):
        job.array(moment)
    mine = [rank in members[group] for group in group_of]
    for _ in range(STEPS):
        one_step(job, rows, units, mine, run["micro_steps"])
    if run["stage"] in (1, 2):  # the last gathers are under way: wait for them
        for unit in range(len(units)):
            job.wait(job.fetch(unit))
            job.release(unit)
    stats = job.stats()
    counters = {kind: {field: getattr(stats.kinds[i], field) for field, _ in gw.Counters._fields_}
                for i, kind in enumerate(gw.KINDS)}
    memory = dict(zip(gw.MEMORY, stats.memory_bytes))
    job.close()
    return counters, memory, stats.overflow_slots


def assert_memory(memory, overflow, planned_bytes, want, run):
    """Overflow slots are granted as the run goes, and not planned."""
    memory["buckets"] -= overflow * (want["memory_bytes"]["buckets"] // RING_SLOTS)
    assert memory == planned_bytes, f"{run}: {overflow} overflow slots"
