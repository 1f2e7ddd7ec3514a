# SPDX-License-Identifier: Apache-2.0
# ctest: device=cuda timeout=400
"""Jobs on GPUs of several nodes, on doubles: a step's values are those of one node, bit for bit,
wherever ranks are; collectives; and a rank or a node that is lost.
"""
import hashlib
import os
import random
import signal
import struct
import time

import pytest

import gw
import nodes
from conftest import SLOWER, until

S = gw.S
NUMELS = [5, 1000, 7, 300, 64, 0, 1234]
PLACES = {"blocks": "blocks", "dealt": "dealt", "uneven": [0, 1, 1, 1]}


def close(job):
    job.barrier()
    job.close()


def values(seed, count):
    draw = random.Random(seed)
    return [draw.uniform(-1, 1) for _ in range(count)]


def train(rank, world, where, stage, dtype):
    """Two steps with a parameter that only rank 0 uses; what all must agree on."""
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready(60 * S)
    for p, numel in enumerate(NUMELS):
        job.param(f"p{p}", numel, unit=f"u{p // 2}", dtype=dtype, grad_dtype=dtype)
    job.seal(stage=stage, bucket_bytes=4096, clip_norm=1.0, timeout=60 * S)
    for p, numel in enumerate(NUMELS):
        if numel and p % world == rank:
            job.write(p, values(p, numel), timeout=60 * S)
    job.barrier(60 * S)
    norms = []
    for step in range(2):
        for unit in range(4):
            job.wait(job.fetch(unit), 60 * S)
            job.release(unit)
        for p in reversed(range(len(NUMELS))):
            if NUMELS[p] and (p != 4 or rank == 0):
                job.put(p, values(step * 1000 + p * 10 + rank, NUMELS[p]), dtype=dtype,
                        timeout=60 * S)
        job.step_end()
        verdict = job.wait_step(60 * S)
        norms.append((verdict.norm, verdict.clip_factor, verdict.used_params))
        job.wait(job.update_begin(), 60 * S)
        for span in job.spans():
            n = span.valid_numel
            if n:
                old, grads = list(span.params[0:n]), list(span.grads[0:n])
                span.params[0:n] = [gw.f32(x - gw.f32(0.5 * g)) for x, g in zip(old, grads)]
        job.update_commit()
    job.barrier(60 * S)
    digest = hashlib.sha256()
    for p, numel in enumerate(NUMELS):
        digest.update(struct.pack(f"{numel}f", *job.read(p, numel, timeout=60 * S)))
    crossed = sum(k.cross_node_bytes for k in job.stats().kinds)
    close(job)
    return digest.hexdigest(), norms, crossed


def run(world, fn, *args):
    return gw.run(world, fn, *args, timeout=150 * SLOWER)


@pytest.mark.gpus(4, "--nodes", "2")
@pytest.mark.parametrize("stage", range(4))
def test_a_step_s_bits_are_those_of_one_node(runtime_dir, tmp_path, gpus, stage):
    dtype, place = (gw.FP32, gw.BF16)[gpus.seed % 2], sorted(PLACES)[gpus.seed % 3]
    found = []
    for count in (1, 2):
        directory = runtime_dir / str(count)
        directory.mkdir()
        with nodes.Cluster(directory, count, namespaces=False) as cluster:
            where = {"socket": cluster.spread(PLACES[place] if count == 2 else "blocks"),
                     "id": str(tmp_path / f"id{count}")}
            found.append(run(4, train, 4, where, stage, dtype))
    alone, spread = found
    assert {value[0] for value in spread} == {value[0] for value in alone}
    assert all(value[1] == alone[0][1] for value in spread)
    assert sum(value[2] for value in alone) == 0 < sum(value[2] for value in spread)


def collectives(rank, world, where):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready(60 * S)
    n = 96
    send, recv = job.buffer(4 * n * world), job.buffer(4 * n * world)
    send.floats[0:n * world] = [float((rank + 1) * (i + 1)) for i in range(n * world)]
    whole = sum(r + 1 for r in range(world))
    job.wait(job.reduce_scatter(send.at(), recv.at(), n))
    assert recv.floats[0:n] == [float(whole * (rank * n + i + 1)) for i in range(n)]
    job.wait(job.all_reduce(send.at(), recv.at(), n * world - 1))
    assert recv.floats[0:n] == [float(whole * (i + 1)) for i in range(n)]
    job.wait(job.all_gather(send.at(), recv.at(), n))
    for r in range(world):
        assert recv.floats[r * n:r * n + n] == [float((r + 1) * (i + 1)) for i in range(n)]
    job.wait(job.broadcast(send.at(), n, 1))
    assert send.floats[0:n] == [float(2 * (i + 1)) for i in range(n)]
    pair = job.group([1, 2]) if rank in (1, 2) else None
    if pair is not None:
        job.wait(job.all_reduce(send.at(), recv.at(), n, group=pair))
        assert recv.floats[0:n] == [float(4 * (i + 1)) for i in range(n)]
    close(job)


@pytest.mark.gpus(4, "--nodes", "3")
def test_collectives(runtime_dir, tmp_path):
    with nodes.Cluster(runtime_dir, 3, namespaces=False) as cluster:
        run(4, collectives, 4, {"socket": cluster.spread("dealt"), "id": str(tmp_path / "id")})


@pytest.mark.gpus(4, "--nodes", "2", "--no-memops")
def test_gpus_without_memory_operations_stay_on_one_node(runtime_dir, tmp_path):
    with nodes.Cluster(runtime_dir, 2, namespaces=False) as cluster:
        results = gw.Ranks(1, collectives, 2, {"socket": cluster.spread("dealt"),
                                               "id": str(tmp_path / "id")}).join(120 * SLOWER)
    kind, value = results[0]
    assert kind == "error" and value[0] == "GW_E_UNIMPLEMENTED", results
    assert "stream memory operations" in value[1], results


def wait_for_loss(rank, world, where, victim):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready(60 * S)
    job.barrier()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    open(f"{where['id']}.{rank}", "w").close()
    try:
        while True:
            job.barrier(60 * S)
            time.sleep(0.01)
    except gw.Error as error:
        job.close()
        return error.name, error.text


@pytest.mark.gpus(4, "--nodes", "2")
def test_a_lost_rank_is_told_on_every_node(runtime_dir, tmp_path, gpus):
    gpus.allowed.update({"unordered", "leak_stream", "leak_mapping", "leak_memory"})
    with nodes.Cluster(runtime_dir, 2, namespaces=False) as cluster:
        results = gw.Ranks(4, wait_for_loss, 4, {"socket": cluster.spread("dealt"),
                                                 "id": str(tmp_path / "id")},
                           3).join(timeout=150 * SLOWER)
    assert results[3][0] == "died"
    for kind, value in results[:3]:
        assert kind == "ok" and value[0] == "GW_E_PEER_LOST" and "rank 3" in value[1], results


@pytest.mark.gpus(4, "--nodes", "2")
def test_a_lost_node_is_told(runtime_dir, tmp_path, gpus):
    gpus.allowed.update({"unordered", "leak_stream", "leak_mapping", "leak_memory"})
    where = {"id": str(tmp_path / "id")}
    with nodes.Cluster(runtime_dir, 2, namespaces=False, lost=(1,)) as cluster:
        ranks = gw.Ranks(4, wait_for_loss, 4, {**where, "socket": cluster.spread("blocks")}, -1)
        until(lambda: all(os.path.exists(f"{where['id']}.{r}") for r in range(4)), timeout=60)
        os.kill(cluster.engines()[1][0], signal.SIGKILL)
        results = ranks.join(timeout=150 * SLOWER)
    for rank, (kind, value) in enumerate(results):
        assert kind == "ok", results
        assert value[0] == ("GW_E_PEER_LOST" if rank < 2 else "GW_E_ENGINE_LOST"), results
        assert rank >= 2 or "node1 (ranks 2, 3)" in value[1], results
