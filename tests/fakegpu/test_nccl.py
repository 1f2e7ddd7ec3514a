# SPDX-License-Identifier: Apache-2.0
# ctest: label=cuda timeout=240
"""The double of libnccl.so.2: what it computes, and that it tells each broken rule.

Each case is a small program (cases_nccl.c) with a fake GPU server of its own; what has to be in
that server's report stands here.
"""
import pytest

from fakegpus import HERE, FakeGpu

# Case: GPUs, injections.
GOOD = {
    "ring": (3, []),
    "not_the_tree": (4, []),
    "operators": (3, []),
    "non_blocking": (4, []),
    "sends": (3, []),
    "split": (4, []),
    "register": (2, []),
    "processes": (3, []),
    "nodes": (2, []),
    "revoke": (3, ["nccl-hang 1"]),
    "abort": (3, []),
    "hang": (2, ["nccl-hang"]),
    "async_error": (2, ["nccl-error 6"]),
    "init_hang": (2, ["nccl-init-hang"]),
    "init_error": (2, ["nccl-init-error 2"]),
    "call_error": (2, ["nccl-call-error 1"]),
    "dead_peer": (2, []),
    "version": (1, []),
}
# Case: GPUs, the rules that the report names, at least once each and no others.
BAD = {
    "bad_count": (2, {"nccl_mismatch"}),
    "bad_order": (2, {"nccl_mismatch"}),
    "bad_overlap": (2, {"nccl_overlap"}),
    "bad_unpolled": (2, {"nccl_unpolled"}),
    "bad_in_progress": (2, {"nccl_use"}),
    "bad_use_after_abort": (2, {"nccl_use"}),
    "bad_duplicate_gpu": (1, {"nccl_duplicate_gpu"}),
    "bad_leak": (2, {"nccl_leak"}),
    "bad_registration": (2, {"nccl_leak"}),
    "bad_registered": (2, {"nccl_registered"}),
    "bad_threads": (2, {"nccl_threads"}),
    "bad_launch_order": (2, {"nccl_order"}),
    "bad_device": (2, {"wrong_device"}),
    "bad_memory": (2, {"not_accessible", "out_of_bounds"}),
    "bad_free": (2, {"unmap_busy"}),
}
SEEDS = [1, 2, 3, 4, 5]
PROGRAM = HERE / "nccl_cases"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(),
                                reason="no CUDA headers, so no doubles")


@pytest.fixture(name="fake")
def fake_gpus(tmp_path):
    made = []

    def make(gpus, seed, *options):
        made.append(FakeGpu(tmp_path, gpus, seed, *options))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", GOOD)
def test_good(fake, record_property, case, seed):
    record_property("seed", seed)
    gpus, injections = GOOD[case]
    gpu = fake(gpus, seed, *(["--nodes", "2"] if case == "nodes" else []))
    for injection in injections:
        gpu.control("inject", *injection.split())
    done = gpu.run([PROGRAM, case])
    report = gpu.end()
    assert done.returncode == 0, done.stderr
    assert report["violations"] == [], report["violations"]


@pytest.mark.parametrize("case, seed", [(case, seed) for k, case in enumerate(BAD)
                                        for seed in (SEEDS[k % 5], SEEDS[(k + 2) % 5])])
def test_bad(fake, record_property, case, seed):
    record_property("seed", seed)
    gpus, rules = BAD[case]
    gpu = fake(gpus, seed)
    if case == "bad_free":
        gpu.control("inject", "nccl-delay", "200000000")
    done = gpu.run([PROGRAM, case])
    report = gpu.end()
    assert set(report["rules"]) == rules, (report["violations"], done.stderr)
    assert done.returncode == 0, done.stderr


def test_older_version(fake):
    gpu = fake(1, 1)
    assert gpu.run([PROGRAM, "version"], FAKENCCL_VERSION="22700").stdout == "22700\n"
    assert int(gpu.run([PROGRAM, "version"]).stdout) >= 22809
