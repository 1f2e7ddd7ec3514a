# SPDX-License-Identifier: Apache-2.0
# ctest: device=cuda timeout=300
"""GPUs without 64-bit stream memory operations: streams are ordered by events, and hosts wait where
streams cannot. The same bits, the same ends; no stream is left waiting for a process that died.

A stream is held by a host function here, in its own process.
"""
import ctypes
import math
import os
import signal
import subprocess
import threading
import time

import pytest

import gw
import test_cuda_faults
import test_cuda_streams
import test_faults
import test_train
from conftest import GWCTL, PLUGINS, SLOWER
from test_cuda_faults import await_flag, flag, goes_on, named
from test_train import trainer  # noqa: F401 (a fixture)

S = gw.S
N = 256

pytestmark = [pytest.mark.cuda_only, pytest.mark.gpu_options("--no-memops")]


@pytest.fixture
def where(daemon, tmp_path):
    return {"socket": str(daemon.socket), "id": str(tmp_path / "job.id"), "dir": str(tmp_path),
            "first": 0}


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
kept = []  # what the driver may still call


def hold(stream=None):
    """The stream stands still until the function that is returned is called, or 60 s."""
    go = threading.Event()
    kept.append(CALLBACK(lambda _: go.wait(60) and None))
    gw.GPU.do("cuLaunchHostFunc", stream or gw.GPU.stream, kept[-1], None)
    return go.set


# ---- what has other tests, here too --------------------------------------------------------------


@pytest.mark.parametrize("world, bucket", [(1, 20000), (2, 4100), (2, 30012),
                                           (2, 1 << 20), (3, 7780)])
def test_all_stages_have_the_references_bits(trainer, gpus, world, bucket):  # noqa: F811
    test_train.test_all_stages_have_the_references_bits(trainer, gpus, world, bucket)


@pytest.mark.parametrize("state, stage", [("fetched", 3), ("ready", 2), ("step_ended", 1),
                                          ("updating", 3), ("committed", 2)])
def test_a_rank_killed_in_any_state_and_the_job_formed_anew(where, daemon, state, stage):
    test_faults.test_a_rank_killed_in_any_state_and_the_job_formed_anew(where, daemon, state, stage)


@pytest.mark.parametrize("fault", ["sticky", "nccl-error"])
def test_a_fault_ends_one_job(where, daemon, gpus, tmp_path, record_property, fault):
    test_cuda_faults.test_a_fault_ends_one_job(where, daemon, gpus, tmp_path, record_property,
                                               fault)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_no_call_that_blocks_the_host_in_a_step(where, gpus, stage):
    test_cuda_streams.test_no_host_synchronization_in_a_step(where, gpus, stage)


# ---- tokens --------------------------------------------------------------------------------------


def two_producers(rank, world, where):
    """One bucket, written by two streams, the second of which is late."""
    job = test_cuda_streams.sealed(rank, world, where, [N // 2, N // 2], stage=2)
    streams = [gw.GPU.new_stream(), gw.GPU.new_stream()]
    values = [gw.GPU.constant(N // 2, float(j + 1)) for j in range(2)]
    go = hold(streams[1])
    for j in range(2):
        p, n = job.acquire(j)
        gw.GPU.copy(p.address, values[j], 4 * n, streams[j])
        job.ready(j, tokens=[gw.GPU.record(job, gw.Token(), streams[j])])
    late = threading.Timer(0.05, go)
    late.start()
    job.step_end()
    verdict = job.wait_step()
    late.join()
    job.barrier()
    job.close()
    return verdict.norm


def test_a_bucket_written_by_two_streams(where):
    norm = gw.f32(math.sqrt(N // 2 * (1 + 4)))
    assert gw.run(2, two_producers, 2, where) == [norm, norm]


def marked_often(rank, world, where):
    """More marks than a timeline has events, while the stream stands still."""
    job = test_cuda_faults.join(rank, world, where)
    buf = job.buffer(4 * N)
    values = gw.GPU.constant(N, 1.0)
    go = hold()
    first = gw.GPU.record(job, gw.Token())
    for _ in range(80):
        last = gw.GPU.record(job, gw.Token())
    early = [job.test(first), job.test(last)]
    gw.GPU.copy(buf.floats.address, values, 4 * N)
    token = job.all_reduce(buf.at(), buf.at(), N)
    early.append(job.test(token))
    go()
    job.wait(token)
    late = [job.test(first), job.test(last)]
    got = set(buf.floats[0:N])
    job.barrier()
    job.close()
    return early, late, got


def test_more_marks_than_events(where):
    assert gw.run(2, marked_often, 2, where) == [([0, 0, 0], [1, 1], {2.0})] * 2


# ---- the dead ------------------------------------------------------------------------------------


def waits_for_a_dead_engine(rank, world, where, what):
    """Rank 1 never makes its call; or both make so many that the engine dies among them."""
    job = test_cuda_streams.sealed(rank, world, where, [N, N], stage=2)
    values, scratch = gw.GPU.constant(N, rank + 1.0), gw.GPU.alloc(4 * N)
    job.barrier()
    flag(where, f"waits{rank}")

    def go():
        while what == "steps" or rank == 0:
            test_cuda_streams.streamed_step(job, values, scratch, 2)
        await_flag(where, "killed")
        job.barrier(30 * S)

    told = named(go)
    on = goes_on()
    job.close()
    return told[0], on


@pytest.mark.parametrize("what", ["lonely", "steps"])
def test_streams_go_on_when_the_engine_dies(where, daemon, what):
    ranks = gw.Ranks(2, waits_for_a_dead_engine, 2, where, what)
    for r in range(2):
        await_flag(where, f"waits{r}")
    time.sleep(0.2)
    (engine,) = daemon.engines()
    os.kill(engine, signal.SIGKILL)
    flag(where, "killed")
    assert ranks.join(60) == [("ok", ("GW_E_ENGINE_LOST", True))] * 2
    daemon.assert_idle(30)


def dies_busy(rank, where, first):
    """Rank 1 dies while its stream has not come to the gradient that it declared."""
    job = test_faults.attach(rank, where, 2)
    test_faults.seal(job, 2)
    if first and rank == 0:
        for j in range(2):
            job.write(j, [test_faults.INITIAL[j]] * test_faults.NUMELS[j])
    job.barrier()
    seen = test_faults.one_step(job)
    if first:
        if rank == 1:
            hold()
        for j in (1, 0):
            job.acquire(j)
            job.ready(j)
        job.step_end()
        if rank == 1:
            flag(where, "there")
            time.sleep(60)
        told = named(lambda: job.wait_step(30 * S))
        on = goes_on()
        job.close()
        return told, on, dies_busy(rank, where, False)
    job.barrier()
    generation = job.generation()
    job.close()
    return generation, [v[0] for v in seen]


def _back(_, where):
    return dies_busy(1, where, False)


def test_what_a_dead_rank_had_not_reached_holds_nobody_up(where, daemon):
    ranks = gw.Ranks(2, dies_busy, where, True)
    await_flag(where, "there")
    time.sleep(0.1)
    ranks.kill(1)
    again = gw.Ranks(1, _back, where)
    (kind, value), _ = ranks.join(60)
    (kind1, value1), = again.join(60)
    assert (kind, kind1) == ("ok", "ok"), (value, value1)
    (name, text), on, rank0 = value
    assert name == "GW_E_PEER_LOST" and "rank 1" in text and on
    assert rank0 == value1 == (2, [v - 1 for v in test_faults.INITIAL])
    daemon.ctl("stop", "--engines")


# ---- set-up --------------------------------------------------------------------------------------


def staged(rank, world, where):
    job = test_cuda_faults.join(rank, world, where)
    address, size = gw.GPU.segment(4 * N)
    buffer = ctypes.c_void_p()
    told = named(lambda: gw.call("gw_cuda_buffer_import", job.handle, ctypes.c_void_p(address),
                                 ctypes.c_size_t(4 * N), ctypes.byref(buffer), None))
    gw.GPU.segment_free(address, size)
    job.barrier()
    job.close()
    return told


def test_memory_that_cannot_be_exported_is_refused(where):
    ((name, text),) = gw.run(1, staged, 1, where)
    assert name == "GW_E_UNIMPLEMENTED" and "gw_buffer_new" in text


def test_jobs_tell_that_events_order_streams(where):
    test_cuda_streams.test_jobs_tell_how_streams_are_ordered(where, "events")


def test_doctor_says_which_way_and_what_it_costs():
    out = subprocess.run([GWCTL, "doctor", "--plugins", PLUGINS], capture_output=True, text=True,
                         timeout=60 * SLOWER).stdout
    assert "interprocess events are used instead" in out and "half a millisecond" in out, out
