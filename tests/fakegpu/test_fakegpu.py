# SPDX-License-Identifier: Apache-2.0
# ctest: label=cuda timeout=240
"""The doubles of the CUDA driver and runtime: good programs pass, each rule is told.

Each case is a small program (cases_gpu*.c) with a server of its own; what has to be in that
server's report stands here.
"""
import json
import os
import pathlib
import subprocess
import time

import pytest

BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", "build/release")).resolve()
SLOWER = int(os.environ.get("GW_TEST_SLOWER", "1"))
HERE = BUILD / "tests/fakegpu"
SEEDS = [1, 2, 3, 4, 5]

# Case: control lines before it starts.
GOOD = {
    "copies": [], "pageable": [], "null_stream": [], "kernels": [], "nvcc": [],
    "registered": [], "vmm": [], "peers": [], "by_words": [], "cyclic": [], "queues": [],
    "touch": [], "forked": [], "entry_points": [], "ipc": [], "vmm_pair": [], "words": [],
    "dead_peer": [], "sticky": [], "free_waits": [], "nodes": [],
    "oom": ["inject oom 1"],
    "open_fails": ["inject ipc-open-fail 1"],
    "no_ipc": ["inject no-ipc"],
}
# Case: the rules that the report names, and no others; control lines.
BAD = {
    "use_after_free": ({"use_after_free"}, []),
    "out_of_bounds": ({"out_of_bounds"}, []),
    "overrun": ({"use_after_free"}, []),
    "no_peer_access": ({"not_accessible"}, []),
    "bad_foreign": ({"not_accessible"}, []),
    "read_only": ({"read_only"}, []),
    "double_free": ({"double_free"}, []),
    "open_own": ({"ipc_open_own"}, []),
    "bad_double_open": ({"ipc_double_open"}, []),
    "bad_free_open": ({"ipc_free_open"}, []),
    "never_recorded": ({"event_never_recorded"}, []),
    "bad_event_reuse": ({"event_reuse"}, []),
    "bad_event_free": ({"event_free_pending"}, []),
    "host_sync": ({"host_sync"}, ["phase step all"]),
    "allocate_in_step": ({"host_sync"}, ["phase step all"]),
    "unordered": ({"unordered"}, []),
    "unordered_kernel": ({"unordered"}, []),
    "unknown_kernel": ({"unknown_kernel"}, []),
    "call_in_hostfn": ({"call_in_hostfn"}, []),
    "wrong_device": ({"wrong_device"}, []),
    "unmap_busy": ({"unmap_busy", "use_after_free"}, []),
    "memop_address": ({"memop_address"}, []),
    "no_memops": ({"memops_missing"}, ["inject no-stream-memops"]),
    "stream_destroyed": ({"stream_destroyed"}, []),
    "leak_memory": ({"leak_memory"}, []),
    "leak_mapping": ({"leak_mapping"}, []),
    "leak_stream": ({"leak_stream"}, []),
}

pytestmark = pytest.mark.skipif(not (HERE / "gpu_cases").exists(),
                                reason="no CUDA headers, so no doubles")


class FakeGpu:
    def __init__(self, directory, seed, *options):
        self.socket = directory / "gpu"
        self.report_path = directory / "report.json"
        self.log = open(directory / "fakegpu.log", "wb")
        self.process = subprocess.Popen(
            [HERE / "fakegpu", "--socket", self.socket, "--gpus", "2", "--nodes", "2",
             "--seed", str(seed), "--kernels", BUILD / "lib/libfakegpu_kernels-cpu.so",
             "--report", self.report_path, *options], stdout=self.log, stderr=self.log)
        self.env = os.environ | {"FAKEGPU_SOCKET": str(self.socket),
                                 "FAKEGPU_CTL": str(HERE / "fakegpu-ctl"),
                                 "LD_LIBRARY_PATH": str(HERE / "lib")}
        deadline = time.monotonic() + 20 * SLOWER
        while not pathlib.Path(f"{self.socket}.ctl").exists():
            assert self.process.poll() is None, "fakegpu ended at start"
            assert time.monotonic() < deadline, "fakegpu does not start"
            time.sleep(0.01)

    def control(self, *command):
        return subprocess.run([HERE / "fakegpu-ctl", *command], env=self.env, check=True,
                              timeout=20 * SLOWER, stdout=subprocess.PIPE, text=True).stdout

    def run(self, case):
        return subprocess.run([HERE / "gpu_cases", case], env=self.env, text=True,
                              timeout=60 * SLOWER, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)

    def end(self):
        """Its report, once the connections of the case are gone."""
        self.control("quit")
        status = self.process.wait(20 * SLOWER)
        self.log.close()
        report = json.loads(self.report_path.read_text())
        assert status == (1 if report["violations"] else 0)
        return report


@pytest.fixture(name="fake")
def fake_gpus(tmp_path):
    made = []

    def make(seed, *options):
        made.append(FakeGpu(tmp_path, seed, *options))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def run(gpu, case, lines):
    for line in lines:
        gpu.control(line)
    done = gpu.run(case)
    report = gpu.end()
    if done.returncode == 77:
        pytest.skip("needs nvcc")
    assert done.returncode == 0, (done.stderr, report["violations"])
    return done.stdout, report


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", GOOD)
def test_good(fake, record_property, case, seed):
    record_property("seed", seed)
    _, report = run(fake(seed), case, GOOD[case])
    assert report["violations"] == []
    assert report["used_bytes"] == 0 or case == "sticky"


@pytest.mark.parametrize("case, seed", [(case, SEEDS[k % 5]) for k, case in enumerate(BAD)])
def test_bad(fake, record_property, case, seed):
    record_property("seed", seed)
    rules, lines = BAD[case]
    _, report = run(fake(seed), case, lines)
    assert set(report["rules"]) == rules, report["violations"]
    assert all(v["source"] and v["text"] for v in report["violations"])


def test_kernels_of_processes_take_turns(fake):
    assert run(fake(1), "overlap", [])[0] == "apart\n"


def test_kernels_of_processes_overlap_under_mps(fake):
    assert run(fake(1, "--mps"), "overlap", [])[0] == "overlap\n"


def test_every_rule_names_its_source():
    lines = subprocess.run([HERE / "fakegpu", "--rules"], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    assert len(lines) > 25
    assert all(line.endswith("]") and "[" in line for line in lines)
    mine = {line.split(":")[0] for line in lines if not line.startswith("nccl_")}
    assert mine == set().union(*(rules for rules, _ in BAD.values()))


def test_without_a_server_there_is_no_device():
    env = {**os.environ, "LD_LIBRARY_PATH": str(HERE / "lib")}
    env.pop("FAKEGPU_SOCKET", None)
    done = subprocess.run([HERE / "gpu_cases", "copies"], env=env, text=True,
                          stderr=subprocess.PIPE, timeout=20 * SLOWER)
    assert done.returncode == 1 and "no CUDA-capable device" in done.stderr
