# SPDX-License-Identifier: Apache-2.0
# ctest: label=edges timeout=600 device=cuda
"""Each row of edges.def left out in real processes: something must visibly go wrong.

A scenario is timed (slow simulated links, late ranks, streams that are held) so that only the row
stands between it and wrong values. With the row in force it gives the right values, on GPUs under
five seeds; without it, under one of them at least, other values, a named error, or on GPUs
accesses that the doubles find unordered. Rows about streams are for GPUs alone. Needs a build with
GW_TEST_EDGES. (tests/sim drops the same rows in virtual time.)
"""
import contextlib
import os
import pathlib
import re
import threading
import time

import pytest

import fakegpus
import gw
from conftest import CONFIG, SEEDS, Daemon, device_args, serving

S = gw.S
SOURCE = pathlib.Path(os.environ["GRADWIRE_SOURCE"])
N = 4096
LATE = 0.2 if gw.on_cuda() else 0.4  # where there are more tries
SLOW = int(8192 / LATE)  # bytes/s: the ring bytes of a 16 KiB bucket take that long


def join(rank, where, link=0):
    job = gw.Job(rank, where["world"], id_path=where["id"], socket=where["socket"], linger_ns=-1,
                 op_timeout_ns=20 * S, link_bytes_per_s=link)
    job.wait_ready()
    return job


def sealed(rank, where, stage, params=1, link=0, **options):
    job = join(rank, where, link)
    for j in range(params):
        job.param(f"p{j}", N, f"u{j}")
    job.seal(**{"stage": stage, "bucket_bytes": N * 4, **options})
    return job


def finish(job):
    job.step_end()
    return job.wait_step()


def update(job, value):
    job.wait(job.update_begin())
    for s in job.spans():
        gw.fill(s.params, s.numel, value)
    job.update_commit()


def grad_written(rank, where):
    """The gradient is written by another thread, after its declaration."""
    if gw.on_cuda():
        return grad_written_in_a_stream(rank, where)
    job = sealed(rank, where, 2)
    timeline = job.timeline()
    p, n = job.acquire(0)
    job.ready(0, tokens=[gw.Token(timeline, 0, 1)])

    def late():
        time.sleep(LATE)
        gw.fill(p, n, 2.0)
        job.raise_timeline(timeline, 1)

    thread = threading.Thread(target=late)
    thread.start()
    finish(job)
    thread.join()
    return job.grads()[0][0] == 2.0


def all_ready(rank, where):
    """Rank 1 is late."""
    job = sealed(rank, where, 1)
    p, n = job.acquire(0)
    time.sleep(LATE * rank)
    gw.fill(p, n, 2.0)
    job.ready(0)
    finish(job)
    return job.grads()[0][0] == 2.0


def zero_filled(rank, where):
    """In the second step rank 1 has half of the bucket; the rest still holds the first step's."""
    job = sealed(rank, where, 0, params=2, bucket_bytes=2 * N * 4)
    for step in range(2):
        for j in (1, 0) if step == 0 or rank == 0 else (1,):
            job.put(j, [7.0 if step == 0 else 2.0] * N)
        finish(job)
    return [job.grads()[0][0], job.grads()[0][N]] == [1.0, 2.0]


def buffer_consumed(rank, where):
    """One bucket buffer, slow reductions: the second bucket comes into the first one's memory."""
    job = sealed(rank, where, 2, params=2, link=SLOW, ring_slots=1)
    for j in (1, 0):
        job.put(j, [float(j + 1)] * N)
    finish(job)
    return [row[0] for row in job.grads()] == [1.0, 2.0]


def shard_consumed(rank, where):
    """Rank 0 reads its reduced gradient late, after both ranks have declared the next one."""
    job = sealed(rank, where, 2)
    job.put(0, [1.0] * N)
    finish(job)
    job.wait(job.update_begin())
    if rank == 1:
        job.update_commit()
    job.put(0, [5.0] * N)
    time.sleep(LATE)
    seen = 1.0
    if rank == 0:
        seen = job.spans()[0].grads[0]
        job.update_commit()
    finish(job)
    return seen == 1.0


def verdict_last(rank, where):
    """The reduction is slow; the norm must be its result's."""
    job = sealed(rank, where, 2, link=SLOW)
    job.put(0, [1.0] * N)
    return finish(job).norm == 64.0


def verdict_read(rank, where):
    """The reduction is slow; its result is read after the verdict."""
    job = sealed(rank, where, 2, link=SLOW)
    job.put(0, [1.0] * N)
    finish(job)
    return job.grads()[0][0] == 1.0


def reads_over(rank, where):
    """Rank 0 updates while rank 1 still reads: views are the shards themselves. (On GPUs they are
    copies, made of the shards that rank 0 updates.)"""
    job = sealed(rank, where, 3, gather=0 if gw.on_cuda() else 1)
    job.barrier()
    right = True
    if rank == 1:
        if gw.on_cuda():
            time.sleep(LATE)
        job.wait(job.fetch(0))
        time.sleep(LATE)
        right = job.values(0, 1)[0] == 0.0
        job.release(0)
    job.step_end()
    update(job, 9.0)
    job.barrier()
    return right


def version(rank, where):
    """Rank 1 commits late; rank 0 must get both halves of the new version."""
    job = sealed(rank, where, 3)
    job.step_end()
    job.wait(job.update_begin())
    time.sleep(LATE * rank)
    for s in job.spans():
        gw.fill(s.params, s.numel, 9.0)
    job.update_commit()
    job.wait(job.fetch(0))
    values = job.values(0, N)
    job.release(0)
    return values == [9.0] * N


def rounded(rank, where):
    """Rank 1's masters take long to be rounded; rank 0 gathers the last of them."""
    big = N if gw.on_cuda() else 4096 * N
    job = join(rank, where)
    job.param("big", big, "u0", dtype=gw.BF16)
    job.param("p1", N, "u1", dtype=gw.BF16)
    job.seal(stage=3, bucket_bytes=big * 4, ring_slots=1)
    job.step_end()
    job.wait(job.update_begin())
    time.sleep(LATE * rank)
    for s in job.spans():
        if s.bucket == 1:
            gw.fill(s.params, s.numel, 9.0)
    job.update_commit()
    job.wait(job.fetch(1))
    values = job.values(1, N, dtype=gw.BF16)
    job.release(1)
    return values == [9.0] * N


def secondary(rank, where):
    """E01: two blocks of two ranks. Everything is slow: the gather of a block's first rank, then
    the fill of the block's copy, and beside them the gather from that copy."""
    job = sealed(rank, where, 3, link=SLOW, secondary_ranks=2)
    job.step_end()
    update(job, 9.0)
    job.barrier()
    token = job.fetch(0) if rank % 2 == 0 else None
    job.barrier()
    job.wait(token or job.fetch(0))
    values = job.values(0, N)
    job.release(0)
    return values == [9.0] * N


def gathered(rank, where):
    """The gather is slow; its values are read after it."""
    job = sealed(rank, where, 3, link=SLOW)
    job.step_end()
    update(job, 9.0)
    job.barrier()
    job.wait(job.fetch(0))
    values = job.values(0, N)
    job.release(0)
    return values == [9.0] * N


def pool_free(rank, where):
    """Two units are held at once."""
    job = sealed(rank, where, 3, params=2)
    if rank == 0:
        for j in range(2):
            job.write(j, [float(j + 1)] * N)
    job.barrier()
    for u in range(2):
        job.wait(job.fetch(u))
    values = [job.values(j, 1)[0] for j in range(2)]
    for u in range(2):
        job.release(u)
    return values == [1.0, 2.0]


# ---- streams -------------------------------------------------------------------------------------


def hold(job, stream=None):
    """What is enqueued from here on runs LATE after .start() of the timer that is returned."""
    timeline = job.timeline()
    gw.GPU.wait(job, gw.Token(timeline, 0, 1), stream)
    return threading.Timer(LATE, job.raise_timeline, (timeline, 1))


def grad_written_in_a_stream(rank, where):
    """A second stream writes the gradient."""
    job = sealed(rank, where, 2)
    stream, values = gw.GPU.new_stream(), gw.GPU.constant(N, 2.0)
    p, n = job.acquire(0)
    go = hold(job, stream)
    gw.GPU.copy(p.address, values, 4 * n, stream)
    job.ready(0, tokens=[gw.GPU.record(job, gw.Token(), stream)])
    go.start()
    finish(job)
    go.join()
    return job.grads()[0][0] == 2.0


def filled(rank, where):
    """A stream fills a buffer that an all-reduce was enqueued for."""
    job = join(rank, where)
    buf, values = job.buffer(4 * N), gw.GPU.constant(N, 2.0)
    job.barrier()
    go = hold(job)
    gw.GPU.copy(buf.floats.address, values, 4 * N)
    token = job.all_reduce(buf.at(), buf.at(), N)
    go.start()
    job.wait(token)
    go.join()
    return buf.floats[0:N] == [4.0] * N


def committed(rank, where):
    """A stream writes the parameters of a window that the host has closed."""
    job = sealed(rank, where, 3)
    values = gw.GPU.constant(N, 9.0)
    job.step_end()
    gw.GPU.wait(job, job.update_begin())
    go = hold(job)
    for s in job.spans():
        gw.GPU.copy(s.params.address, values, 4 * s.numel)
    job.update_commit()
    go.start()
    job.wait(job.fetch(0))
    go.join()
    got = job.values(0, N)
    job.release(0)
    return got == [9.0] * N


def reads_done(rank, where):
    """A stream of rank 1 reads its parameters while rank 0 has its update gathered to it."""
    job = sealed(rank, where, 1)
    seen = gw.device_floats(gw.GPU.alloc(4 * N))
    job.barrier()
    if rank == 0:
        job.step_end()
        update(job, 9.0)
        job.barrier()
        return True
    job.wait(job.fetch(0))
    view = job.values(0, N, whole=True)
    job.release(0)
    go = hold(job)
    gw.GPU.copy(seen.address, view.address, 4 * N)
    job.step_end()
    go.start()
    job.wait(job.fetch(0))  # without an update of its own
    go.join()
    right = seen[0:N] == [0.0] * N
    job.barrier()
    return right


def released(rank, where):
    """A stream still reads a unit whose place in the pool another unit gets."""
    job = sealed(rank, where, 3, params=3, gather_bytes=4 * N)
    if rank == 0:
        for j in range(3):
            job.write(j, [float(j + 1)] * N)
    seen = gw.device_floats(gw.GPU.alloc(4 * N))
    job.barrier()
    job.wait(job.fetch(0))
    view = job.values(0, N, whole=True)
    go = hold(job)
    gw.GPU.copy(seen.address, view.address, 4 * N)
    job.release(0)
    tokens = [job.fetch(1), job.fetch(2)]  # there is room for two
    go.start()
    for token in tokens:
        job.wait(token)
    same_place = view.address in [job.values(u, N, whole=True).address for u in (1, 2)]
    for u in (1, 2):
        job.release(u)
    go.join()
    return same_place and seen[0:N] == [1.0] * N


OF_STREAMS = [filled, committed, reads_done, released] if gw.on_cuda() else []
SCENARIOS = {f.__name__.upper(): f for f in (
    grad_written, all_ready, zero_filled, buffer_consumed, shard_consumed, verdict_last,
    verdict_read, reads_over, version, rounded, secondary, gathered, pool_free, *OF_STREAMS)}
WORLDS = {"SECONDARY": 4}  # others take two ranks
HOST_LACKS = {"FILLED", "COMMITTED", "READS_DONE", "RELEASED"}  # nothing there is late but the host


def rows():
    text = (SOURCE / "daemon/core/edges.def").read_text()
    return re.findall(r"^X\((\w+), (\w+),", text, re.M)


def one_rank(rank, name, where, seeds):
    """The scenario under each seed of the GPUs (None: on the host); where the values were right."""
    right = []
    for k, seed in enumerate(seeds):
        if rank == 0 and seed is not None:
            fakegpus.control(os.environ["FAKEGPU_SOCKET"], "seed", seed)
        right.append(SCENARIOS[name](rank, dict(where, id=f"{where['id']}.{k}")))
        for job in list(gw.OPEN):
            with contextlib.suppress(gw.Error):  # the other rank may be gone: it says why
                job.barrier()
            job.close()
    return right


def outcome(runtime_dir, tmp_path, name, seeds, drop):
    """The scenario's results, by rank."""
    env = {"GRADWIRE_DROP_EDGE": name} if drop else {}
    config = tmp_path / "conf"
    config.write_text(CONFIG)
    daemon = Daemon(runtime_dir, env=env, args=["--config", str(config), *device_args()])
    with serving(daemon):
        world = WORLDS.get(name, 2)
        where = {"socket": str(daemon.socket), "id": str(tmp_path / f"id{drop}"), "world": world}
        return gw.Ranks(world, one_rank, name, where, seeds, env=env).join(120)


@pytest.mark.no_gpus
def test_every_row_has_a_scenario():
    lacks = set() if gw.on_cuda() else HOST_LACKS
    assert {name for name, _ in rows()} == set(SCENARIOS) | lacks


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_row_is_what_keeps_the_values_right(runtime_dir, tmp_path, gpus, record_property, name):
    seeds = [gpus.seed + k for k in range(SEEDS)] if gpus else [None]
    right = [("ok", [True] * len(seeds))] * WORLDS.get(name, 2)
    kept = outcome(runtime_dir, tmp_path, name, seeds, False)
    assert kept == right
    if gpus:
        gpus.check()
    dropped = outcome(runtime_dir, tmp_path, name, seeds, True)
    told = set()
    if gpus:
        told = gpus.allowed = {v["rule"] for v in gpus.report()["violations"]}
    print(f"{name} dropped: {dropped} {told or ''}")
    assert all(kind in ("ok", "error") for kind, _ in dropped)
    assert told or dropped != right, "nothing went wrong without it"
    if gpus:
        record_property("edge_dropped", name)
        for seed in seeds[1:]:
            record_property("seed", seed)
