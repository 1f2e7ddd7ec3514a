# SPDX-License-Identifier: Apache-2.0
# ctest: label=edges timeout=600
"""Each row of edges.def left out in real processes: something must visibly go wrong.

A scenario is timed (slow simulated links, late ranks) so that only the row stands between it and
wrong values. With the row in force it gives the right values; without it, other values or a named
error. Needs a build with GW_TEST_EDGES. (tests/sim drops the same rows in virtual time.)
"""
import os
import pathlib
import re
import threading
import time

import pytest

import gw
from conftest import Daemon, serving

S = gw.S
SOURCE = pathlib.Path(os.environ["GRADWIRE_SOURCE"])
SLOW = 20 << 10  # bytes/s: the ring bytes of a 16 KiB bucket take 0.4 s
N = 4096
LATE = 0.4


def join(rank, where, link=0):
    job = gw.Job(rank, 2, id_path=where["id"], socket=where["socket"], linger_ns=-1,
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
        for i in range(s.numel):
            s.params[i] = value
    job.update_commit()


def grad_written(rank, where):
    """The gradient is written by another thread, after its declaration."""
    job = sealed(rank, where, 2)
    timeline = job.timeline()
    p, n = job.acquire(0)
    job.ready(0, tokens=[gw.Token(timeline, 0, 1)])

    def late():
        time.sleep(LATE)
        for i in range(n):
            p[i] = 2.0
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
    for i in range(n):
        p[i] = 2.0
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
    seen = job.spans()[0].grads[0]
    if rank == 0:
        job.update_commit()
    finish(job)
    return seen == 1.0 or rank == 1


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
    """Rank 0 updates while rank 1 still reads: views are the shards themselves."""
    job = sealed(rank, where, 3, gather=1)
    job.barrier()
    right = True
    if rank == 1:
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
        for i in range(s.numel):
            s.params[i] = 9.0
    job.update_commit()
    job.wait(job.fetch(0))
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


SCENARIOS = {f.__name__.upper(): f for f in (
    grad_written, all_ready, zero_filled, buffer_consumed, shard_consumed, verdict_last,
    verdict_read, reads_over, version, gathered, pool_free)}


def rows():
    text = (SOURCE / "daemon/core/edges.def").read_text()
    return re.findall(r"^X\((\w+), (\w+),", text, re.M)


def one_rank(rank, name, where):
    return SCENARIOS[name](rank, where)


def outcome(runtime_dir, tmp_path, name, drop):
    env = {"GRADWIRE_DROP_EDGE": name} if drop else {}
    config = tmp_path / "conf"
    config.write_text("[job]\nlinger = 0\n")
    daemon = Daemon(runtime_dir, env=env, args=["--config", str(config)])
    with serving(daemon):
        where = {"socket": str(daemon.socket), "id": str(tmp_path / f"id{drop}")}
        return gw.Ranks(2, one_rank, name, where, env=env).join(60)


def test_every_row_has_a_scenario():
    assert sorted(name for name, _ in rows()) == sorted(SCENARIOS)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_row_is_what_keeps_the_values_right(runtime_dir, tmp_path, name):
    kept = outcome(runtime_dir, tmp_path, name, False)
    assert kept == [("ok", True)] * 2
    dropped = outcome(runtime_dir, tmp_path, name, True)
    print(f"{name} dropped: {dropped}")
    assert all(kind in ("ok", "error") for kind, _ in dropped)
    assert any(kind == "error" or value is False for kind, value in dropped), \
        "nothing went wrong without it"
