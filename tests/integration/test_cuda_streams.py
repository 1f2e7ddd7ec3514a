# SPDX-License-Identifier: Apache-2.0
# ctest: device=cuda timeout=300
"""What a rank on a GPU does in streams: waits and marks, memory both ways, the order of sums.

A stream is held by a wait for a timeline of the test's own; nothing here depends on how long.
"""
import ctypes
import json
import math
import os
import random
import re
import struct
import subprocess
import threading
import time

import pytest

import gw
from conftest import GWCTL, SLOWER, until

S = gw.S
N = 256


@pytest.fixture
def where(daemon, tmp_path, gpus):
    return {"socket": str(daemon.socket), "id": str(tmp_path / "job.id"), "dir": str(tmp_path),
            "gpus": gpus}


def flag(where, name):
    open(os.path.join(where["dir"], name), "w").close()


def await_flag(where, name, seconds=60):
    deadline = time.monotonic() + seconds
    while not os.path.exists(os.path.join(where["dir"], name)):
        assert time.monotonic() < deadline, f"no {name}"
        time.sleep(0.005)


def plain(where):
    """What can be sent to a rank's process."""
    return {k: v for k, v in where.items() if k != "gpus"}


def join(rank, world, where, **options):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1, **options)
    job.wait_ready()
    return job


def sealed(rank, world, where, numels, **options):
    job = join(rank, world, where)
    for j, numel in enumerate(numels):
        job.param(f"p{j}", numel, f"u{j}")
    job.seal(**{"bucket_bytes": N * 4, **options})
    return job


def ordering_told(rank, where):
    """What gwctl jobs says of a job that is there, for programs and for people."""
    job = join(rank, 1, where)

    def jobs(*args):
        return subprocess.run([GWCTL, "--socket", where["socket"], "jobs", *args], check=True,
                              capture_output=True, text=True, timeout=60 * SLOWER).stdout

    until(lambda: json.loads(jobs("--json"))["jobs"][0]["ranks_present"] == 1, what="the rank")
    told = json.loads(jobs("--json"))["jobs"][0]["ordering"], jobs()
    job.close()
    return told


def test_jobs_tell_how_streams_are_ordered(where, way="words"):
    ((ordering, table),) = gw.run(1, ordering_told, plain(where))
    assert ordering == way and f"cuda, {way} " in table, table


def streams_kept(rank, world, where):
    job = sealed(rank, world, where, [N], stage=2)
    job.put(0, [1.0] * N)
    job.step_end()
    job.wait_step()
    flag(where, f"there{rank}")
    await_flag(where, "seen")
    job.barrier()
    job.close()


def test_the_engines_streams_are_non_blocking_and_come_first(where, gpus, daemon):
    """With the greatest priority that the driver offers (-5 here), but for set-up's one per GPU."""
    ranks = gw.Ranks(2, streams_kept, 2, plain(where))
    for r in range(2):
        await_flag(where, f"there{r}")
    made = [line.split() for line in gpus.control("streams", "made").splitlines()[:-1]]
    (engine,) = daemon.engines()
    flag(where, "seen")
    assert ranks.join(60) == [("ok", None)] * 2
    for gpu in ("0", "1"):
        kinds = sorted((kind, int(priority)) for _, _, _, pid, _, on, kind, _, priority in made
                       if int(pid) == engine and on == gpu)
        # A lane has two, and there are three lanes.
        assert len(kinds) >= 1 + 2 * 3, made
        assert kinds == [("non-blocking", -5)] * (len(kinds) - 1) + [("non-blocking", 0)], made


class Gate:
    """A stream that goes on when the host says so."""

    def __init__(self, job, stream=None):
        self.job, self.timeline = job, job.timeline()
        gw.GPU.wait(job, gw.Token(self.timeline, 0, 1), stream)

    def open(self):
        self.job.raise_timeline(self.timeline, 1)


# ---- producers -----------------------------------------------------------------------------------


def two_producers(rank, world, where, stage):
    """R07: one bucket, written by two streams; the second is 50 ms late."""
    job = sealed(rank, world, where, [N // 2, N // 2], stage=stage)
    streams = [gw.GPU.new_stream(), gw.GPU.new_stream()]
    values = [gw.GPU.constant(N // 2, float(j + 1)) for j in range(2)]
    gate = Gate(job, streams[1])
    for j in range(2):
        p, n = job.acquire(j)
        # What acquire waits for is the job's stream's: the producers come behind it.
        gw.GPU.wait(job, gw.GPU.record(job, gw.Token()), streams[j])
        gw.GPU.copy(p.address, values[j], 4 * n, streams[j])
        job.ready(j, tokens=[gw.GPU.record(job, gw.Token(), streams[j])])
    late = threading.Timer(0.05, gate.open)
    late.start()
    job.step_end()
    verdict = job.wait_step()
    late.join()
    held = job.grads()
    job.barrier()
    job.close()
    return verdict.norm, held


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_r07_a_bucket_written_by_two_streams(where, stage):
    ranks = gw.run(2, two_producers, 2, plain(where), stage)
    norm = gw.f32(math.sqrt(N // 2 * (1 + 4)))
    assert [n for n, _ in ranks] == [norm, norm]
    flat = [v for _, rows in (ranks if stage else ranks[:1]) for row in rows for v in row]
    assert sorted(flat) == [1.0] * (N // 2) + [2.0] * (N // 2)


# ---- no host synchronization ---------------------------------------------------------------------


def streamed_step(job, values, scratch, stage, units=2):
    """A whole step without a look at the GPU."""
    gpu = gw.GPU
    for u in range(units):
        gpu.wait(job, job.fetch(u))
        gpu.copy(scratch, job.values(u, N, whole=True).address, 4 * N)
        job.release(u)
    for j in reversed(range(units)):
        p, n = job.acquire(j)
        gpu.copy(p.address, values, 4 * n)
        job.ready(j)
    token = job.step_end()
    gpu.wait(job, token)
    gpu.wait(job, job.update_begin())
    for s in job.spans():
        gpu.copy(s.params.address, s.grads.address, 4 * s.numel)
    job.update_commit()
    return token


def unsynchronized(rank, world, where, stage, steps):
    job = sealed(rank, world, where, [N, N], stage=stage)
    values, scratch = gw.GPU.constant(N, rank + 1.0), gw.GPU.alloc(4 * N)
    streamed_step(job, values, scratch, stage)  # what is made once is made now
    job.wait_step()
    job.barrier()
    gw.GPU.sync()
    flag(where, f"there{rank}")
    await_flag(where, "step")
    tokens = [streamed_step(job, values, scratch, stage) for _ in range(steps)]
    job.wait(tokens[-1])
    flag(where, f"done{rank}")
    await_flag(where, "setup")
    out = []
    for u in range(2):
        job.wait(job.fetch(u))
        out.append(set(job.values(u, N)))
        job.release(u)
    job.barrier()
    job.close()
    return out


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_no_host_synchronization_in_a_step(where, gpus, stage):
    ranks = gw.Ranks(2, unsynchronized, 2, plain(where), stage, 3)
    for r in range(2):
        await_flag(where, f"there{r}")
    gpus.control("phase", "step", "all")
    before = gpus.report()["counts"]
    flag(where, "step")
    for r in range(2):
        await_flag(where, f"done{r}")
    after = gpus.report()["counts"]
    gpus.control("phase", "setup", "all")
    flag(where, "setup")
    assert ranks.join(60) == [("ok", [{1.5}, {1.5}])] * 2
    assert after["syncs"] == before["syncs"], "a call blocked a host"
    assert after["kernels"] > before["kernels"]


def far_ahead(rank, world, where):
    """Rank 0's whole step is enqueued before rank 1 begins."""
    job = sealed(rank, world, where, [N, N], stage=2)
    values, scratch = gw.GPU.constant(N, rank + 1.0), gw.GPU.alloc(4 * N)
    job.barrier()
    if rank == 1:
        await_flag(where, "enqueued")
    token = streamed_step(job, values, scratch, 2)
    early = job.test(token)
    if rank == 0:
        flag(where, "enqueued")
    job.wait(token)
    gw.GPU.wait(job, job.fetch(0))
    got = set(job.values(0, N))
    job.release(0)
    job.barrier()
    job.close()
    return early, got


def test_a_whole_step_is_enqueued_before_another_rank_begins(where):
    (early, got), (_, other) = gw.run(2, far_ahead, 2, plain(where))
    assert early == 0
    assert got == other == {1.5}


# ---- memory --------------------------------------------------------------------------------------


def imported(rank, world, where, way):
    job = join(rank, world, where)
    size = 8 * N
    if way == "staged":
        address, size = gw.GPU.segment(size)
    else:
        address = gw.GPU.alloc(size)
    buffer, staged = ctypes.c_void_p(), ctypes.c_int()
    gw.call("gw_cuda_buffer_import", job.handle, ctypes.c_void_p(address),
            ctypes.c_size_t(8 * N), ctypes.byref(buffer), ctypes.byref(staged))
    assert gw.LIB.gw_buffer_data(buffer) == address
    memory = gw.device_floats(address)
    out = []
    for round_ in range(3):
        gw.fill(memory, 2 * N, float(rank + round_))
        token = job.all_reduce(gw.Slice(buffer, N), gw.Slice(buffer, N), N)
        job.wait(token)
        out.append((set(memory[0:N]), set(memory[N:2 * N])))
    bytes_ = job.stats().staged_bytes
    gw.call("gw_buffer_free", job.handle, buffer)
    if way != "ipc":
        gw.GPU.sync()
    if way == "staged":
        gw.GPU.segment_free(address, size)
    else:
        gw.GPU.free(address)
    job.barrier()
    job.close()
    return staged.value, bytes_, out


WARNED = {
    "staged": "exported (a stream-ordered pool or an expandable segment?)",
    "unopened": "opened by the engine (another PID namespace?)",
}


@pytest.mark.parametrize("way", ["ipc", "staged", "unopened"])
def test_a_callers_own_memory(where, way, gpus, daemon):
    """Opened; not exported by the rank's driver; or refused by the engine's."""
    if way == "unopened":
        gpus.control("inject", "ipc-open-fail", 2)
    for rank, (staged, copied, got) in enumerate(gw.run(2, imported, 2, plain(where), way)):
        assert got == [({float(rank + k)}, {2.0 * k + 1}) for k in range(3)]
        assert staged == (way in WARNED)
        # In: N floats; out: as many; three times.
        assert copied == (3 * 2 * 4 * N if way in WARNED else 0)
    told = [line for line in daemon.log().splitlines() if "own memory" in line]
    assert len(told) == (way in WARNED), told
    if told:
        assert re.search(rf"warning: rank [01]'s own memory \({8 * N} bytes\) cannot be "
                         + re.escape(WARNED[way]), told[0]), told
        assert "copies its operands in and its results out" in told[0]
        assert "staged_bytes" in told[0] and "use gw_buffer_new" in told[0]


def many_buffers(rank, world, where, rounds):
    job = join(rank, world, where)

    def cycle():
        job.buffer(4 * N).free()
        address = gw.GPU.alloc(4 * N)
        buffer, staged = ctypes.c_void_p(), ctypes.c_int()
        gw.call("gw_cuda_buffer_import", job.handle, ctypes.c_void_p(address),
                ctypes.c_size_t(4 * N), ctypes.byref(buffer), ctypes.byref(staged))
        gw.call("gw_buffer_free", job.handle, buffer)
        gw.GPU.free(address)

    for half in range(2):
        for _ in range(rounds // 2):
            cycle()
        flag(where, f"half{half}")
        await_flag(where, f"seen{half}")
    job.close()


def test_memory_does_not_grow_by_registrations(where, gpus, daemon):
    ranks = gw.Ranks(1, many_buffers, 1, plain(where), 100)
    seen = []
    for half in range(2):
        await_flag(where, f"half{half}", 120)
        (engine,) = daemon.engines()
        seen.append((gpus.report()["used_bytes"], daemon.fds(engine)))
        flag(where, f"seen{half}")
    assert ranks.join(60) == [("ok", None)]
    assert seen[0] == seen[1]


def verdict_on_the_gpu(rank, world, where):
    job = sealed(rank, world, where, [N], stage=2, clip_norm=2.0)
    address = ctypes.c_void_p()
    gw.call("gw_cuda_verdict_ptr", job.handle, ctypes.byref(address))
    copy = gw.GPU.alloc(48)  # the struct's 40 bytes, and a bit for the parameter
    out = []
    for step in range(2):
        job.put(0, [step + 1.0] * N)
        gw.GPU.wait(job, job.step_end())
        gw.GPU.copy(copy, address.value, 48)  # in stream order, the host looks later
        v = job.wait_step()
        gpu = gw.GPU.get(copy, 48)
        told = struct.unpack("=QdfIIIQ", gpu[:40]) + (gpu[40] & 1,)
        out.append((told, (v.step, v.norm, v.clip_factor, v.nonfinite, v.first_bucket,
                           v.used_params, v.digest, job.used(0))))
        job.wait(job.update_begin())
        job.update_commit()
    job.barrier()
    job.close()
    return out


def test_the_verdict_is_in_device_memory(where):
    for rows in gw.run(2, verdict_on_the_gpu, 2, plain(where)):
        for step, (on_gpu, on_host) in enumerate(rows):
            assert on_gpu == on_host
            assert on_gpu[:2] == (step + 1, 16.0 * (step + 1))


# ---- the order of sums ---------------------------------------------------------------------------


def reduced(rank, world, where, order, repeats):
    """Bits of the reduced gradient, and the contributions."""
    job = sealed(rank, world, where, [N], stage=0, bucket_bytes=N * 4, order=order)
    rng = random.Random(40 + rank)
    mine = [gw.f32(rng.uniform(-1, 1) * 10.0 ** rng.randint(-3, 3)) for _ in range(N)]
    got = []
    for _ in range(repeats):
        job.put(0, mine)
        job.step_end()
        job.wait_step()
        got.append(job.grads()[0])
    job.barrier()
    job.close()
    return mine, got


def test_order_fabric_is_repeatable_near_and_not_the_hosts_bits(where):
    world = 4
    ranks = gw.run(world, reduced, world, plain(where), 1, 3)
    exact = [gw.f32(gw.f32(1.0 / world) * gw.tree_sum([mine[i] for mine, _ in ranks]))
             for i in range(N)]
    first = ranks[0][1][0]
    assert all(got == first for _, rows in ranks for got in rows), "not repeatable"
    for i in range(N):
        size = sum(abs(mine[i]) for mine, _ in ranks) / world
        assert abs(first[i] - exact[i]) <= world * 2.0 ** -23 * size, i
    assert first != exact, "order=fabric passes the test of the host's bits"


def halved(rank, world, where, dtype, stage, repeats):
    """Rank's reduced gradient, as (offset, values), of each repeat, and its contributions."""
    job = join(rank, world, where)
    job.param("p0", N, dtype=dtype, grad_dtype=dtype)
    job.seal(stage=stage, bucket_bytes=N * 4, order=1)
    rng = random.Random(60 + rank)
    mine = [gw.from_half(gw.to_half(rng.uniform(-1, 1), dtype), dtype) for _ in range(N)]
    got = []
    for _ in range(repeats):
        job.put(0, mine, dtype=dtype)
        job.step_end()
        job.wait_step()
        got.append([(s.bucket_offset, list(s.grads[0:s.valid_numel])) for s in job.spans()])
    job.barrier()
    job.close()
    return mine, got


@pytest.mark.parametrize("stage, dtype, step", [(0, gw.FP16, 2.0 ** -11), (2, gw.BF16, 2.0 ** -8)])
def test_order_fabric_rounds_halves_at_each_hop(where, stage, dtype, step):
    """Within a rounding of the type for each addition, and not what rounding once gives."""
    world, differ = 4, 0
    ranks = gw.run(world, halved, world, plain(where), dtype, stage, 2)
    sent = [mine for mine, _ in ranks]
    for _, (first, again) in ranks:
        assert first == again, "not repeatable"
        for offset, values in first:
            for i, value in enumerate(values, offset):
                exact = gw.f32(gw.f32(1.0 / world) * gw.tree_sum([mine[i] for mine in sent]))
                size = sum(abs(mine[i]) for mine in sent) / world
                assert abs(value - exact) <= (world - 1) * step * size, i
                differ += value != exact
    assert differ > N // 2, "order=fabric sums halves as order=exact does"


def test_order_exact_has_the_hosts_bits(where):
    world = 4
    ranks = gw.run(world, reduced, world, plain(where), 0, 2)
    exact = [gw.f32(gw.f32(1.0 / world) * gw.tree_sum([mine[i] for mine, _ in ranks]))
             for i in range(N)]
    assert all(got == exact for _, rows in ranks for got in rows)


def in_groups(rank, world, where):
    job = join(rank, world, where)
    group = job.group([0, 2] if rank % 2 == 0 else [1, 3])
    buf = job.buffer(4 * N)
    out = []
    for order in (0, 1):
        gw.fill(buf.floats, N, float(rank + 1))
        job.wait(job.all_reduce(buf.at(), buf.at(), N, group=group, order=order))
        job.wait(job.all_reduce(buf.at(), buf.at(), N, order=order))
        out.append(set(buf.floats[0:N]))
    job.barrier()
    job.close()
    return out


def test_groups_beside_the_whole(where):
    # (1 + 3) and (2 + 4), then two of each
    assert gw.run(4, in_groups, 4, plain(where)) == [[{20.0}, {20.0}]] * 4
