# SPDX-License-Identifier: Apache-2.0
# ctest: label=edges timeout=480
"""A test of the tests: mistakes planted in the plug-in, each shown by the doubles or by values.

faults.def lists them. The programs without a mistake have to pass, on every seed.
"""
import pathlib
import re

import pytest

from fakegpus import BUILD, HERE, SLOWER, FakeGpu

SOURCE = pathlib.Path(__file__).resolve().parent
ROOT = SOURCE.parent.parent
PLUGIN = BUILD / "daemon/engine/gradwire-cuda.so"
PROGRAM = HERE / "fault_cases"
SEEDS = [1, 2, 3, 4, 5]
GPUS = 3
DELAY_PERCENT = "2000"  # mistakes of order need somebody to be slow

FAULTS = [(name, case, rules.split()) for name, case, rules in re.findall(
    r'FAULT\((\w+), (\w+),\s*"[^"]*",\s*"([^"]*)"\)', (SOURCE / "faults.def").read_text())]
CASES = sorted({case for _, case, _ in FAULTS})

pytestmark = pytest.mark.skipif(not (PROGRAM.exists() and PLUGIN.exists()),
                                reason="built without CUDA, so no plug-in")


def run(tmp_path, case, seed, plant=None):
    """Exit code, stderr, report."""
    gpu = FakeGpu(tmp_path, GPUS, seed)
    gpu.control("delay", DELAY_PERCENT)
    # A fault may end in a hang, which need not last.
    env = {"FAULT_DEADLINE_S": str((5 if plant else 20) * SLOWER)}
    if plant:
        env["GRADWIRE_PLANT"] = plant
    try:
        done = gpu.run([PROGRAM, PLUGIN, case], **env)
        report = gpu.end()
    finally:
        gpu.kill()
    return done.returncode, done.stderr, report


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_without_a_fault(tmp_path, record_property, case, seed):
    record_property("seed", seed)
    code, stderr, report = run(tmp_path, case, seed)
    assert code == 0, stderr
    assert report["violations"] == [], report["violations"]


@pytest.mark.parametrize("fault,case,rules", FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_fault_is_caught(tmp_path, record_property, fault, case, rules):
    """By what the list says; what only chance brings to light has a few seeds for it, of which
    each fault begins with another."""
    shown, first = [], FAULTS.index((fault, case, rules)) % len(SEEDS)
    for seed in SEEDS[first:] + SEEDS[:first]:
        record_property("seed", seed)
        code, _, report = run(tmp_path, case, seed, fault)
        shown += list(report["rules"]) + (["values"] if code else [])
        if set(shown) & set(rules):
            break
    print(f"{fault}: caught by {', '.join(sorted(set(shown)))}")
    assert set(shown) & set(rules), f"{fault} was not caught: {shown}"
    record_property("fault_caught", fault)


def test_list_is_complete():
    planted = set()
    for path in ROOT.glob("daemon/*/*/*.c"):
        planted |= set(re.findall(r'planted\("(\w+)"\)', path.read_text()))
    assert planted == {fault for fault, _, _ in FAULTS}
    assert len(planted) >= 10
