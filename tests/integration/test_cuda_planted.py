# SPDX-License-Identifier: Apache-2.0
# ctest: label=edges timeout=300 device=cuda
"""Mistakes planted in the plug-in, in a real engine: its fake GPUs or the ranks' values show each.

The engine makes no call that blocks the host once steps run. tests/fakegpu/faults.def lists all
mistakes; test_faults.py there plants every one in the plug-in alone. Needs GW_TEST_EDGES.
"""
import pathlib
import time

import pytest

import gw
from conftest import CONFIG, PLUGINS, SLOWER, Daemon, device_args, serving, until

S = gw.S
WORLD = 3
NUMEL = WORLD * 40000  # inputs of a sum go through scratch
STEPS = 4
EXACT, FABRIC = 0, 1
VALUES = (1e8, 3.3, 3.4)  # of which every order of adding shows

PLUGIN = PLUGINS / "gradwire-cuda.so"
pytestmark = [
    pytest.mark.cuda_only, pytest.mark.gpus(WORLD),
    pytest.mark.skipif(not PLUGIN.exists() or b"GRADWIRE_PLANT" not in PLUGIN.read_bytes(),
                       reason="a build without GW_TEST_EDGES plants nothing")]

# Fault: the sums' order, and what shows it: a rule, or the ranks.
FAULTS = {
    "poll_left_out": (FABRIC, "nccl_unpolled"),
    "epilogue_skipped": (FABRIC, "values"),
    "order_passed_off": (EXACT, "values"),
    "scratch_shared": (EXACT, "values"),
    "host_sync": (EXACT, "host_sync"),
    "memory_in_step": (EXACT, "host_sync"),
    "page_unregistered_early": (EXACT, "use_after_free unmap_busy memop_address"),
    "communicator_left": (FABRIC, "nccl_leak"),
}


def touched(path, timeout=30):
    deadline = time.monotonic() + timeout
    while not pathlib.Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)


def right(job, order, step):
    """Whether the rank's slices are the scaled sums."""
    want = gw.f32(0.5 * gw.tree_sum([v + step for v in VALUES]))
    off = 0 if order == EXACT else 20  # some roundings of 1e8
    for span in job.spans():
        for at in (0, span.valid_numel - 1):
            if abs(span.grads[at] - want) > off:
                return False
    return True


def one_rank(rank, where, order):
    job = gw.Job(rank, WORLD, id_path=where["id"], socket=where["socket"], linger_ns=-1,
                 op_timeout_ns=5 * S)
    job.wait_ready()
    for j in range(2):
        job.param(f"p{j}", NUMEL, f"u{j}")
    job.seal(stage=2, bucket_bytes=NUMEL * 4, order=order, scale=0.5)
    job.barrier()
    pathlib.Path(where["ready"] + str(rank)).touch()
    touched(where["go"])
    good = True
    for step in range(STEPS):
        for j in (1, 0):
            p, n = job.acquire(j)
            gw.fill(p, n, VALUES[rank] + step)
            job.ready(j)
        job.step_end()
        job.wait_step()
        good = right(job, order, step) and good
        job.wait(job.update_begin())
        job.update_commit()
    pathlib.Path(where["done"] + str(rank)).touch()
    touched(where["end"])
    job.close()
    return good


def steps_under(gpus, daemon, ranks, where):
    """Steps in which the engine may not block; the ranks' results."""
    def alive():
        return any(p.is_alive() for p, _ in ranks.procs)

    def seen(name):
        return all(pathlib.Path(where[name] + str(r)).exists() for r in range(WORLD))

    until(lambda: seen("ready") or not alive(), 40, "the ranks")
    engines = daemon.engines()
    for pid in engines:
        gpus.control("phase", "step", pid)
    pathlib.Path(where["go"]).touch()
    deadline = time.monotonic() + 20 * SLOWER
    while not seen("done") and alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    if seen("done"):
        for pid in engines:
            gpus.control("phase", "setup", pid)
    pathlib.Path(where["end"]).touch()
    return ranks.join(30)


def outcome(gpus, runtime_dir, tmp_path, order, plant=None):
    """The ranks' results, and names of broken rules."""
    config = tmp_path / "conf"
    config.write_text(CONFIG)
    daemon = Daemon(runtime_dir, env={"GRADWIRE_PLANT": plant} if plant else {},
                    args=["--config", str(config), *device_args()])
    where = {name: str(tmp_path / name) for name in ("id", "ready", "go", "done", "end")}
    with serving(daemon):
        where["socket"] = str(daemon.socket)
        results = steps_under(gpus, daemon, gw.Ranks(WORLD, one_rank, where, order), where)
    return results, set(gpus.report()["rules"])


@pytest.mark.parametrize("order", [EXACT, FABRIC])
def test_steps_without_a_fault(gpus, runtime_dir, tmp_path, order):
    results, rules = outcome(gpus, runtime_dir, tmp_path, order)
    assert results == [("ok", True)] * WORLD
    assert rules == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(gpus, runtime_dir, tmp_path, record_property, fault):
    order, shown_by = FAULTS[fault]
    results, rules = outcome(gpus, runtime_dir, tmp_path, order, fault)
    shown = rules | (set() if results == [("ok", True)] * WORLD else {"values"})
    gpus.allowed = rules  # broken on purpose, and what is left by who failed
    print(f"{fault}: {results}, {rules}")
    assert shown & set(shown_by.split()), "it was not caught"
    record_property("fault_caught", fault)
