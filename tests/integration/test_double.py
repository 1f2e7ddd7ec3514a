# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 device=cuda
"""All stages against a reference in double precision that knows nothing of buckets or shards.

Momentum on made-up gradients that depend on the parameters read, so that a wrong gather, sum, scale
or update in any step shows in the end. Singles against doubles: equal within rounding, not bitwise.
"""
import random

import pytest

import gw

NUMELS = [37, 0, 130, 5, 64, 1]
STEPS, RATE, KEEP = 6, 0.05, 0.9


def start(j):
    rng = random.Random(100 + j)
    return [gw.f32(rng.uniform(-1, 1)) for _ in range(NUMELS[j])]


def noise(rank, step, j):
    rng = random.Random((rank * 1000 + step) * 1000 + j)
    return [rng.uniform(-1, 1) for _ in range(NUMELS[j])]


def gradient(params, rank, step, j):
    return [p * (1 + 0.1 * rank) + n for p, n in zip(params, noise(rank, step, j))]


def reference(world):
    params = [start(j) for j in range(len(NUMELS))]
    speed = [[0.0] * n for n in NUMELS]
    for step in range(STEPS):
        for j, numel in enumerate(NUMELS):
            parts = [gradient(params[j], r, step, j) for r in range(world)]
            for i in range(numel):
                mean = sum(part[i] for part in parts) / world
                speed[j][i] = KEEP * speed[j][i] + mean
            params[j] = [p - RATE * v for p, v in zip(params[j], speed[j])]
    return params


def read(job):
    out = []
    for u, numel in enumerate(NUMELS):
        job.wait(job.fetch(u))
        out.append(job.values(u, numel) if numel else [])
        job.release(u)
    return out


def rank_main(rank, world, where, stage, overlap_off, gather):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    for j, numel in enumerate(NUMELS):
        job.param(f"p{j}", numel, f"u{j}")
    job.seal(stage=stage, bucket_bytes=50 * 4, overlap_off=overlap_off, gather=gather)
    for j in range(rank, len(NUMELS), world):
        if NUMELS[j]:
            job.write(j, start(j))
    job.barrier()
    speed, _ = job.array("speed")
    for step in range(STEPS):
        params = read(job)
        for j in reversed(range(len(NUMELS))):
            if NUMELS[j]:
                job.put(j, gradient(params[j], rank, step, j))
        job.step_end()
        job.wait_step()
        job.wait(job.update_begin())
        for s in job.spans():
            n, at = s.valid_numel, s.shard_offset
            new = [gw.f32(KEEP * v + g) for v, g in zip(speed[at:at + n], s.grads[0:n])]
            gw.fill(gw.shifted(speed, at), n, new)
            gw.fill(s.params, n, [p - RATE * v for p, v in zip(s.params[0:n], new)])
        job.update_commit()
    out = read(job)
    job.barrier()
    job.close()
    return out


@pytest.mark.parametrize("world", [
    3, *(pytest.param(n, marks=pytest.mark.host_only("time")) for n in (1, 4))])
@pytest.mark.parametrize("stage, overlap_off, gather",
                         [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0),
                          (3, 0, 0), (3, 1, 0),
                          pytest.param(3, 0, 1, marks=pytest.mark.host_only("mapped"))])
def test_training_follows_the_double_precision_reference(daemon, tmp_path, world, stage,
                                                         overlap_off, gather):
    where = {"socket": str(daemon.socket), "id": str(tmp_path / "id")}
    want = reference(world)
    for rank, got in enumerate(gw.run(world, rank_main, world, where, stage, overlap_off, gather)):
        for j, numel in enumerate(NUMELS):
            assert len(got[j]) == numel
            assert got[j] == pytest.approx(want[j], rel=1e-5, abs=1e-6), f"rank {rank} p{j}"
