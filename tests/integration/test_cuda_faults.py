# SPDX-License-Identifier: Apache-2.0
# ctest: device=cuda timeout=300
"""What happens on GPUs when something dies, or the driver or NCCL says no: a named error, streams
that go on, other jobs untouched; and who may use a GPU.
"""
import ctypes
import os
import signal
import threading
import time

import pytest

import gw
from conftest import Daemon, device_args, serving

S = gw.S
N = 1024


@pytest.fixture
def where(daemon, tmp_path):
    return {"socket": str(daemon.socket), "id": str(tmp_path / "job.id"), "dir": str(tmp_path),
            "first": 0}


def flag(where, name):
    open(os.path.join(where["dir"], name), "w").close()


def await_flag(where, name, seconds=60):
    deadline = time.monotonic() + seconds
    while not os.path.exists(os.path.join(where["dir"], name)):
        assert time.monotonic() < deadline, f"no {name}"
        time.sleep(0.005)


def join(rank, world, where, **options):
    """On the GPUs from where["first"] on."""
    if gw.GPU is None:
        gw.use_gpu(where["first"] + rank)
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"],
                 **{"linger_ns": -1, **options})
    job.wait_ready()
    return job


def named(attempt):
    try:
        attempt()
        return "ok", ""
    except gw.Error as e:
        return e.name, e.text


def goes_on(stream=None, seconds=30):
    """Whether all that is in the stream runs, within the deadline."""
    query = gw.GPU.cuda.cuStreamQuery
    deadline = time.monotonic() + seconds
    while query(stream or gw.GPU.stream) != 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# ---- the dead, while streams wait ----------------------------------------------------------------


def waits_for_a_dead_engine(rank, world, where, what):
    job = join(rank, world, where)
    job.param("p0", N)
    job.seal(stage=2, bucket_bytes=4 * N)
    buf = job.buffer(4 * N)
    job.barrier()
    if rank == 0:  # rank 1 never makes its call
        if what == "op":
            token = job.all_reduce(buf.at(), buf.at(), N)
        else:
            p, n = job.acquire(0)
            job.ready(0)
            token = job.step_end()
        gw.GPU.wait(job, token)
        source = gw.GPU.alloc(4)
        gw.GPU.do("cuMemsetD8Async", ctypes.c_uint64(source), 0, ctypes.c_size_t(4), gw.GPU.stream)
    flag(where, f"waits{rank}")
    await_flag(where, "killed")
    told = named(lambda: job.barrier(30 * S))
    on = goes_on()
    job.close()
    return told[0], on


@pytest.mark.parametrize("what", ["op", "step"])
def test_streams_go_on_when_the_engine_dies(where, daemon, what):
    ranks = gw.Ranks(2, waits_for_a_dead_engine, 2, where, what)
    for r in range(2):
        await_flag(where, f"waits{r}")
    (engine,) = daemon.engines()
    os.kill(engine, signal.SIGKILL)
    flag(where, "killed")
    assert ranks.join(60) == [("ok", ("GW_E_ENGINE_LOST", True))] * 2
    daemon.assert_idle(30)


def waits_for_a_dead_rank(rank, world, where):
    job = join(rank, world, where)
    buf = job.buffer(4 * N)
    job.barrier()
    if rank == 1:
        flag(where, "there")
        time.sleep(60)
    token = job.all_reduce(buf.at(), buf.at(), N)
    gw.GPU.wait(job, token)
    flag(where, f"waits{rank}")
    await_flag(where, "killed")
    told = named(lambda: job.wait(token, 30 * S))
    on = goes_on()
    job.close()
    return told, on


def test_streams_go_on_when_a_rank_dies(where):
    ranks = gw.Ranks(3, waits_for_a_dead_rank, 3, where)
    for name in ("there", "waits0", "waits2"):
        await_flag(where, name)
    ranks.kill(1)
    flag(where, "killed")
    results = ranks.join(60)
    for r in (0, 2):
        kind, value = results[r]
        assert kind == "ok", results
        (name, text), on = value
        assert name == "GW_E_PEER_LOST" and "rank 1" in text and on


# ---- a close while streams are busy --------------------------------------------------------------


def closes_with_words_raised(rank, world, where):
    """Rank 1 dies while rank 0's gradient is not written yet, but all is declared and launched: the
    engine raises the words that its streams wait for."""
    job = join(rank, world, where)
    job.param("p0", N)
    job.seal(stage=2, bucket_bytes=4 * N)
    source = gw.GPU.constant(N, 1.0)
    job.barrier()
    p, n = job.acquire(0)
    go = gw.GPU.hold() if rank == 0 else None
    gw.GPU.copy(p.address, source, 4 * n)
    job.ready(0)
    job.step_end()
    flag(where, f"waits{rank}")
    await_flag(where, "killed")
    told = named(lambda: job.wait_step(30 * S))
    busy = gw.GPU.cuda.cuStreamQuery(gw.GPU.stream) != 0
    threading.Timer(0.2, go).start()
    job.close()
    return told[0], busy


def test_a_close_waits_for_streams_and_not_for_words(where, gpus):
    ranks = gw.Ranks(2, closes_with_words_raised, 2, where)
    for r in range(2):
        await_flag(where, f"waits{r}")
    ranks.kill(1)
    flag(where, "killed")
    results = ranks.join(60)
    assert results[0] == ("ok", ("GW_E_PEER_LOST", True)), results
    gpus.allowed = {"leak_mapping"}  # of a close that waited for long enough


def closes_behind_its_last_call(rank, world, where):
    job = join(rank, world, where)
    job.param("p0", N, "u0")
    job.seal(stage=0, bucket_bytes=4 * N)
    scratch, stream = gw.GPU.alloc(4 * N), gw.GPU.new_stream()
    token = job.fetch(0)
    job.wait(token)
    gw.GPU.wait(job, token, stream)  # reached: nothing is enqueued
    go = gw.GPU.hold(stream)
    gw.GPU.copy(scratch, job.values(0, N, whole=True).address, 4 * N, stream)
    threading.Timer(0.2, go).start()
    job.close()
    gw.GPU.sync(stream)


def test_a_close_waits_for_work_behind_the_last_call(where, gpus):
    gw.run(1, closes_behind_its_last_call, 1, where)
    gpus.allowed = {"leak_mapping"}


# ---- errors of the driver and of NCCL ------------------------------------------------------------


def breaks(rank, world, where, order):
    """Until something fails; what that was."""
    job = join(rank, world, where, op_timeout_ns=4 * S)
    buf, other = job.buffer(4 * N), job.buffer(4 * N * world)
    job.barrier()
    job.wait(job.all_reduce(buf.at(), buf.at(), N, order=order))
    flag(where, f"up{rank}")
    await_flag(where, "broken")

    def go():
        for _ in range(50):
            job.wait(job.all_reduce(buf.at(), buf.at(), N, order=order), 40 * S)
            job.wait(job.all_gather(buf.at(), other.at(), N), 40 * S)

    told = named(go)
    again = named(lambda: job.barrier(10 * S))
    on = goes_on()
    job.close()
    return told, again[0], on


def bystander(rank, world, where):
    """Another job, on other GPUs, from before the fault to after it."""
    job = join(rank, world, where)
    buf = job.buffer(4 * N)
    rounds = 0
    job.barrier()
    flag(where, f"by{rank}")
    over = False
    while not over:
        gw.fill(buf.floats, 2, [rank + 1.0, float(os.path.exists(where["dir"] + "/over"))])
        job.wait(job.all_reduce(buf.at(), buf.at(), N))
        got, ends = buf.floats[0:2]
        assert got == 3.0
        over, rounds = ends > 0, rounds + 1
    job.close()
    return rounds


FAULTS = {  # control line: order of sums, what may be told to the ranks
    "sticky": (0, {"GW_E_DEVICE"}),
    "nccl-error": (1, {"GW_E_DEVICE", "GW_E_FABRIC"}),
    "nccl-call-error": (1, {"GW_E_DEVICE", "GW_E_FABRIC"}),
    "nccl-hang": (1, {"GW_E_DEVICE", "GW_E_FABRIC", "GW_E_TIMEOUT"}),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_ends_one_job(where, daemon, gpus, tmp_path, record_property, fault):
    order, codes = FAULTS[fault]
    ranks = gw.Ranks(2, breaks, 2, where, order)
    for r in range(2):
        await_flag(where, f"up{r}")
    (engine,) = daemon.engines()
    others = gw.Ranks(2, bystander, 2, dict(where, id=str(tmp_path / "other.id"), first=4))
    for r in range(2):
        await_flag(where, f"by{r}")
    gpus.control("inject", *{"sticky": ("sticky", engine, 3), "nccl-error": ("nccl-error", 6),
                             "nccl-call-error": ("nccl-call-error", 1),
                             "nccl-hang": ("nccl-hang",)}[fault])
    flag(where, "broken")
    results = ranks.join(90)
    gpus.control("inject", "none")
    flag(where, "over")
    rest = others.join(60)
    assert all(kind == "ok" and rounds > 0 for kind, rounds in rest), rest
    assert all(kind == "ok" for kind, _ in results), results
    for (name, text), again, on in (value for _, value in results):
        print(f"{fault}: {name}: {text}")
        assert name in codes | {"GW_E_PEER_LOST"} and again != "ok" and on, results
    assert any(value[0][0] in codes for _, value in results)
    assert daemon.alive()
    # An engine whose device is broken frees nothing: such calls may wait for ever. Its end does.
    gpus.allowed = {"leak_memory", "leak_mapping", "leak_stream", "nccl_leak"}
    record_property("fault_caught", fault)


def test_out_of_memory_is_an_error_of_the_call(where, gpus):
    ranks = gw.Ranks(2, hungry_when_told, 2, where)
    for r in range(2):
        await_flag(where, f"up{r}")
    gpus.control("inject", "oom", 1)
    flag(where, "empty")
    results = ranks.join(60)
    assert all(kind == "ok" for kind, _ in results), results
    told = [value[0][0] for _, value in results]
    assert "GW_E_NOMEM" in told, results
    assert all(value[1] == 2.0 for _, value in results)


def hungry_when_told(rank, world, where):
    job = join(rank, world, where)
    job.barrier()
    flag(where, f"up{rank}")
    await_flag(where, "empty")
    told = named(lambda: gw.Buffer(job, 64 << 20))
    buf = job.buffer(4 * N)  # it goes on
    gw.fill(buf.floats, 1, 1.0)
    job.wait(job.all_reduce(buf.at(), buf.at(), 1))
    got = buf.floats[0]
    job.barrier()
    job.close()
    return told, got


# ---- leases --------------------------------------------------------------------------------------


def holds(rank, world, where):
    job = join(rank, world, where)
    flag(where, f"holds{rank}")
    await_flag(where, "over")
    job.close()


def tries(rank, world, where):
    return named(lambda: join(rank, world, where).close())


@pytest.mark.parametrize("sharing", ["off", "on"])
def test_a_gpu_is_one_jobs_unless_shared(runtime_dir, tmp_path, sharing):
    config = tmp_path / "conf"
    config.write_text(f"[job]\nlinger = 0\ngpu_sharing = {sharing}\n")
    with serving(Daemon(runtime_dir, args=["--config", str(config), *device_args()])) as daemon:
        where = {"socket": str(daemon.socket), "id": str(tmp_path / "id"), "dir": str(tmp_path),
                 "first": 0}
        first = gw.Ranks(1, holds, 1, where)
        await_flag(where, "holds0")
        (job,) = daemon.jobs()
        same = gw.run(1, tries, 1, dict(where, id=str(tmp_path / "two")))[0]
        free = gw.run(1, tries, 1, dict(where, id=str(tmp_path / "three"), first=1))[0]
        flag(where, "over")
        assert first.join(60) == [("ok", None)]
    assert free == ("ok", "")
    if sharing == "on":
        assert same == ("ok", "")
    else:
        assert same[0] == "GW_E_BUSY" and "GPU-" in same[1] and job["tag"] in same[1], same
        assert "gpu_sharing" in same[1]


# ---- hosts and GPUs side by side -----------------------------------------------------------------


def sums(rank, world, where, cuda):
    os.environ["GW_TEST_DEVICE"] = "cuda" if cuda else "host"
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    for j in range(2):
        job.param(f"p{j}", 300)
    job.seal(stage=2, bucket_bytes=1200)
    out = []
    for step in range(4):
        for j in (1, 0):
            job.put(j, [gw.f32(0.1 * (rank + 1) + 0.01 * i + step) for i in range(300)])
        job.step_end()
        out.append((job.wait_step().norm, job.grads()))
        job.wait(job.update_begin())
        job.update_commit()
    job.barrier()
    job.close()
    return out


def test_jobs_on_hosts_and_gpus_under_one_gradwired(where, daemon, tmp_path):
    jobs = [gw.Ranks(3, sums, 3, dict(where, id=str(tmp_path / f"{k}.id")), k % 2 == 0)
            for k in range(2)]
    on_gpus, on_hosts = (ranks.join(60) for ranks in jobs)
    assert all(kind == "ok" for kind, _ in on_gpus), on_gpus
    assert on_gpus == on_hosts
