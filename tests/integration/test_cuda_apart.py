# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 device=cuda
"""GPUs that do not reach each other's memory: jobs have the same bits there, and the doubles see no
access that CUDA gives nobody. And what doctor says of GPUs that work.
"""
import ctypes
import json
import subprocess
import sys

import pytest

import gw
from conftest import BUILD, GWCTL, PLUGINS, SLOWER

WORLD = 4
NUMELS = (9000, 3, 20001)
VALUES = (1e8, 3.3, 3.4, -7.7)  # of which every order of adding shows
STEPS = 3
DOUBLES = BUILD / "tests/fakegpu/lib"

pytestmark = [pytest.mark.cuda_only, pytest.mark.gpus(WORLD)]


def train(rank, where, stage):
    """What every rank sees of its parameters after some steps of plain descent from 0."""
    job = gw.Job(rank, WORLD, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    for j, numel in enumerate(NUMELS):
        job.param(f"p{j}", numel, f"u{j}")
    job.seal(stage=stage, bucket_bytes=1 << 16, scale=0.5)
    seen = []
    for step in range(STEPS):
        for j, numel in enumerate(NUMELS):
            job.put(j, [VALUES[rank] + step] * numel)
        job.step_end()
        job.wait_step()
        job.wait(job.update_begin())
        for span in job.spans():
            n = span.valid_numel
            span.params[0:n] = [gw.f32(p - g) for p, g in zip(span.params[0:n], span.grads[0:n])]
        job.update_commit()
        for j, numel in enumerate(NUMELS):
            job.wait(job.fetch(j))
            seen.append(set(job.values(j, numel)))
            job.release(j)
    job.close()
    return seen


def own_memory(rank, where, numel):
    """An all-reduce and an all-gather of the ranks' own memory, which the engine has opened."""
    job = gw.Job(rank, WORLD, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    address = gw.GPU.constant(numel, VALUES[rank])
    handle, staged = ctypes.c_void_p(), ctypes.c_int()
    gw.call("gw_cuda_buffer_import", job.handle, ctypes.c_void_p(address),
            ctypes.c_size_t(4 * numel), ctypes.byref(handle), ctypes.byref(staged))
    out = job.buffer(4 * numel * WORLD)
    job.wait(job.all_reduce(gw.Slice(handle, 0), out.at(), numel))
    got = [set(out.floats[0:numel])]
    job.wait(job.all_gather(gw.Slice(handle, 0), out.at(), numel))
    got += [set(out.floats[q * numel:(q + 1) * numel]) for q in range(WORLD)]
    gw.call("gw_buffer_free", job.handle, handle)
    gw.GPU.free(address)
    out.free()
    job.barrier()
    job.close()
    return staged.value, got


def seat(daemon, tmp_path):
    return {"socket": str(daemon.socket), "id": str(tmp_path / "id")}


@pytest.mark.parametrize("peers", [1, 2])
@pytest.mark.parametrize("stage", [1, 3])
def test_steps_of_gpus_that_do_not_reach_each_other(gpus, daemon, tmp_path, stage, peers):
    gpus.control("inject", "peers", peers)
    want, value = [], 0.0
    for step in range(STEPS):
        gradient = gw.f32(0.5 * gw.tree_sum([gw.f32(v + step) for v in VALUES]))
        value = gw.f32(value - gradient)
        want += [{value}] * len(NUMELS)
    assert gw.run(WORLD, train, seat(daemon, tmp_path), stage) == [want] * WORLD


@pytest.mark.parametrize("peers", [0, 1, 2])
@pytest.mark.parametrize("numel", [1000, 30001])
def test_memory_that_ranks_export_is_read_by_its_own_gpu_alone(gpus, daemon, tmp_path, numel,
                                                               peers):
    gpus.control("inject", "peers", peers)
    values = [gw.f32(v) for v in VALUES]
    want = [{gw.f32(gw.tree_sum(values))}] + [{v} for v in values]
    assert gw.run(WORLD, own_memory, seat(daemon, tmp_path), numel) == [(0, want)] * WORLD


# ---- doctor --------------------------------------------------------------------------------------


HOLDS_GPU_0 = """
import ctypes, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
print(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), flush=True)
sys.stdin.read()
cuda.cuDevicePrimaryCtxRelease_v2(0)
"""


def doctor(code=None):
    done = subprocess.run([str(GWCTL), "doctor", "--json", "--plugins", str(PLUGINS)],
                          capture_output=True, text=True, timeout=120 * SLOWER, check=False)
    assert code in (None, done.returncode), done.stdout
    points = json.loads(done.stdout)["points"]
    return {point["point"]: point for point in points}


def test_doctor_tells_what_gpus_do_for_each_other_and_the_host(gpus, monkeypatch):
    found = doctor()
    for gpu in range(WORLD):
        point = found[f"GPU {gpu} atomics"]
        assert point["verdict"] == "note" and "not atomic to the CPU" in point["found"]
    assert found["NCCL"]["verdict"] == "good"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(DOUBLES / "old") + ":" + str(DOUBLES))
    found = doctor()
    assert found["NCCL"]["verdict"] == "note" and found["NCCL"]["found"] == "2.28.3"
    assert "ncclCommWindowRegister" in found["NCCL"]["advice"]


ALL = "0,1,2,3"
LINKS_OF_PAIRS = ("rank 0, native atomics: among 0-1, among 2-3; "
                  "rank 1, no native atomics: 0-1 to 2-3, 2-3 to 0-1")


@pytest.mark.parametrize("lines, access, links, visible", [
    ([], ("good", "0-3 all"), ("good", "rank 0, native atomics: among 0-3"), ALL),
    (["peers 1"], ("warn", "0-3 none"), None, ALL),
    (["peers 2"], ("warn", "0-1 not 2-3; 2-3 not 0-1"),
     ("good", "rank 0, native atomics: among 0-1, among 2-3"), ALL),
    (["peers 2"], ("warn", "0,2 not 1,3; 1,3 not 0,2"),
     ("good", "rank 0, native atomics: among 0,2, among 1,3"), "3,0,2,1"),
    (["links 2"], ("good", "0-3 all"), ("note", LINKS_OF_PAIRS), ALL),
    (["peers 3", "links 1"], ("warn", "0-2 not 3; 3 none"),
     ("good", "rank 1, no native atomics: among 0-2"), ALL),
])
def test_doctor_names_gpus_that_reach_each_other_and_how(gpus, monkeypatch, lines, access, links,
                                                         visible):
    """By the numbers that processes know them by."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for line in lines:
        gpus.control("inject", *line.split())
    found = doctor()
    point = found["peer access"]
    assert (point["verdict"], point["found"]) == access
    assert ("go through the host" in point["advice"]) == (access[0] == "warn")
    point = found.get("peer links")
    assert (point and (point["verdict"], point["found"])) == links
    assert not point or ("those of one rank" in point["advice"]) == (links[0] == "note")


@pytest.mark.parametrize("lines, ipc, descriptors, code", [
    ([], "good", "good", 0),
    (["no-ipc"], "warn", "bad", 69),  # which takes descriptors too
    (["no-vmm-export"], "good", "bad", 69)])
def test_doctor_tries_what_is_exported(gpus, lines, ipc, descriptors, code):
    for line in lines:
        gpus.control("inject", line)
    found = doctor(code)
    for gpu in range(WORLD):
        point = found[f"GPU {gpu} IPC"]
        assert point["verdict"] == ipc
        assert ("staging buffer" in point["advice"]) == (ipc == "warn")
        point = found[f"GPU {gpu} descriptors"]
        assert point["verdict"] == descriptors
        assert ("cannot be exported" in point["found"]) == (descriptors == "bad")
        assert ("vGPU" in point["advice"]) == (descriptors == "bad")


# cuda.h: CU_COMPUTEMODE_DEFAULT, _PROHIBITED, _EXCLUSIVE_PROCESS
@pytest.mark.parametrize("mode, verdict, says, code", [
    (0, "good", "default", 0),
    (2, "bad", "prohibited", 69),
    (3, "warn", "a second one's context is refused", 0),
    pytest.param(3, "good", "that of MPS", 0, marks=pytest.mark.gpu_options("--mps"))])
def test_doctor_says_whom_the_compute_mode_keeps_out(gpus, mode, verdict, says, code):
    gpus.control("inject", "compute-mode", mode)
    found = doctor(code)
    for gpu in range(WORLD):
        point = found[f"GPU {gpu} mode"]
        assert point["verdict"] == verdict and says in point["found"]
        assert ("nvidia-smi -c DEFAULT" in point["advice"]) == (verdict != "good")
        assert found[f"GPU {gpu}"]["verdict"] == ("bad" if mode == 2 else "good")


def test_doctor_says_the_mode_of_a_gpu_that_another_process_keeps(gpus):
    """As a trainer does under exclusive-process: there is no context then, the mode says why."""
    gpus.control("inject", "compute-mode", 3)
    trainer = subprocess.Popen([sys.executable, "-c", HOLDS_GPU_0], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        assert trainer.stdout.readline() == b"0\n"
        found = doctor(69)
        assert found["GPU 0"]["verdict"] == "bad" and "no context" in found["GPU 0"]["found"]
        assert "busy or unavailable" in found["GPU 0"]["found"]
        assert found["GPU 0 mode"]["verdict"] == "warn"
        assert found["GPU 1"]["verdict"] == "good"
        trainer.communicate(timeout=20 * SLOWER)
    finally:
        trainer.kill()
        trainer.wait()


@pytest.mark.no_gpus
def test_doctor_takes_a_node_without_driver_as_one_for_host_jobs(monkeypatch):
    """The plug-in and its libraries load; without a server, the doubles have no driver."""
    monkeypatch.setenv("FAKEGPU_SOCKET", "/nonexistent/gpu")
    found = doctor(code=0)
    assert found["plug-in"]["verdict"] == found["NCCL"]["verdict"] == "good"
    assert found["GPUs"]["verdict"] == "note"
    assert found["GPUs"]["found"] == "no NVIDIA driver here: this node runs host jobs"
    assert not [name for name in found if name.startswith("GPU ")]


@pytest.mark.parametrize("error, verdict, says, code", [
    (100, "note", "none for this process: this node runs host jobs", 0),  # cudaErrorNoDevice
    (999, "bad", "none can be used", 69)])
def test_doctor_tells_no_gpu_from_a_broken_driver(gpus, monkeypatch, tmp_path, error, verdict,
                                                  says, code):
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", tmp_path / "count.so"],
                   input=f"int cudaGetDeviceCount(int *count) {{ *count = 0; return {error}; }}",
                   text=True, check=True, timeout=60)
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "count.so"))
    found = doctor(code)
    assert found["GPU driver"]["verdict"] == "good" and found["GPUs"]["verdict"] == verdict
    assert says in found["GPUs"]["found"] and "CUDA_VISIBLE_DEVICES" in found["GPUs"]["advice"]


def test_doctor_says_whose_mps_directory_counts(gpus, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert str(tmp_path) in doctor()["MPS"]["found"]
    (tmp_path / "control").touch()
    point = doctor()["MPS"]
    assert point["found"].startswith("on") and str(tmp_path) in point["found"]
    assert "CUDA_MPS_PIPE_DIRECTORY that gradwired was started with" in point["advice"]
