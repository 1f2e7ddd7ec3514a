# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 device=cuda
"""GPUs that do not reach each other's memory: jobs have the same bits there, and the doubles see no
access that CUDA gives nobody. And what doctor says of GPUs that work.
"""
import ctypes
import json
import subprocess

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


def doctor(code=None):
    done = subprocess.run([str(GWCTL), "doctor", "--json", "--plugins", str(PLUGINS)],
                          capture_output=True, text=True, timeout=120 * SLOWER, check=False)
    assert code in (None, done.returncode), done.stdout
    points = json.loads(done.stdout)["points"]
    return {point["point"]: point for point in points}


def test_doctor_tells_what_gpus_do_for_each_other_and_the_host(gpus, monkeypatch):
    gpus.control("inject", "peers", 2)
    found = doctor()
    assert found["peer access"]["verdict"] == "warn"
    assert found["peer access"]["found"] == "4 of 12 pairs of GPUs"
    for gpu in range(WORLD):
        point = found[f"GPU {gpu} atomics"]
        assert point["verdict"] == "note" and "not atomic to the CPU" in point["found"]
    assert found["NCCL"]["verdict"] == "good"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(DOUBLES / "old") + ":" + str(DOUBLES))
    found = doctor()
    assert found["NCCL"]["verdict"] == "note" and found["NCCL"]["found"] == "2.28.3"
    assert "ncclCommWindowRegister" in found["NCCL"]["advice"]


def test_doctor_tries_what_is_exported(gpus):
    assert not [name for name in doctor() if name.endswith(" sharing")]
    gpus.control("inject", "no-ipc")
    found = doctor()
    for gpu in range(WORLD):
        point = found[f"GPU {gpu} sharing"]
        assert (point["verdict"], point["found"]) == (
            "warn", "memory cannot be exported by CUDA IPC")
        assert "staging buffer" in point["advice"]


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
