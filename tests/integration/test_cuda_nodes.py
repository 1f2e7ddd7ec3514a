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
GROUPED = [515, 33]  # then, of the ranks with even numbers alone
UNITS = [[0, 1], [2, 3], [4, 5], [6], [7], [8]]  # parameters of each

GPUS = 9  # of a node: all ranks' where they are on one
SERVER = (GPUS, "--nodes", "4")


def places(ranks):
    """Ranks of each node -> the node of each rank."""
    return [node for node, count in enumerate(ranks) for _ in range(count)]


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
    evens = job.param_group(range(0, world, 2))
    numels = NUMELS + GROUPED
    own = [p for p in range(len(numels)) if p < len(NUMELS) or rank % 2 == 0]
    for p, numel in enumerate(numels):
        job.param(f"p{p}", numel, unit=f"u{[p in unit for unit in UNITS].index(True)}", dtype=dtype,
                  grad_dtype=dtype, group=evens if p >= len(NUMELS) else 0)
    job.seal(stage=stage, bucket_bytes=4096, clip_norm=1.0, timeout=60 * S,
             all_reduce=where["all_reduce"])
    for p, numel in enumerate(numels):
        if numel and p % world == rank:
            job.write(p, values(p, numel), timeout=60 * S)
    job.barrier(60 * S)
    norms = []
    for step in range(2):
        for unit, params in enumerate(UNITS):
            if params[0] in own:
                job.wait(job.fetch(unit), 60 * S)
                job.release(unit)
        for p in reversed(own):
            if numels[p] and (p != 4 or rank == 0):
                job.put(p, values(step * 1000 + p * 10 + rank, numels[p]), dtype=dtype,
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
    for p, numel in enumerate(numels):
        digest.update(struct.pack(f"{numel}f", *job.read(p, numel, timeout=60 * S)))
    crossed = sum(k.cross_node_bytes for k in job.stats().kinds)
    close(job)
    return digest.hexdigest(), norms, crossed


def run(world, fn, *args):
    return gw.run(world, fn, *args, timeout=150 * SLOWER)


# Two to four nodes of one to eight ranks, in blocks and otherwise.
@pytest.mark.gpus(*SERVER)
@pytest.mark.parametrize("stage, place, all_reduce", [
    (0, [0, 1, 2, 3, 0, 2], 0), (1, places([3, 1, 2]), 0), (2, places([8, 1]), 0),
    (3, places([1, 2, 1, 4]), 0), (3, [0, 1], 0), (1, [0, 1], 1), (2, [1, 0, 1], 1)])
def test_a_step_s_bits_are_those_of_one_node(runtime_dir, tmp_path, gpus, stage, place,
                                             all_reduce):
    world, dtype, found = len(place), (gw.FP32, gw.BF16)[gpus.seed % 2], []
    for count in (1, max(place) + 1):
        directory = runtime_dir / str(count)
        directory.mkdir()
        with nodes.Cluster(directory, count, namespaces=False) as cluster:
            where = {"socket": cluster.spread(place if count > 1 else "blocks"),
                     "id": str(tmp_path / f"id{count}"),
                     "all_reduce": all_reduce if count > 1 else 0}
            found.append(run(world, train, world, where, stage, dtype))
    alone, spread = found
    assert {value[0] for value in spread} == {alone[0][0]} == {value[0] for value in alone}
    assert all(value[1] == alone[0][1] for value in spread + alone)
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


# Nodes: ranks, which are on them in turn; groups across nodes, inside one, and in no order.
GROUPS = {
    2: (5, [[0, 2, 4], [1, 2], [3, 1], [4]]),
    3: (6, [[0, 1, 2], [3, 4, 5], [0, 3], [5, 0, 4, 1]]),
    4: (7, [[0, 4, 1, 5], [2, 6, 3], [0, 1, 2, 3, 6]]),
}


def in_groups(rank, world, where, groups):
    """Sums and gathers of every group that the rank is in, all on their way at once beside one of
    the whole job."""
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready(60 * S)
    n = 40
    mine = [(ranks, job.group(ranks, 60 * S)) for ranks in groups if rank in ranks]
    send = job.buffer(4 * n * world)
    send.floats[0:n * world] = [float(rank + 1)] * (n * world)
    open_ops = []
    for ranks, group in [(list(range(world)), 0)] + mine:
        size = len(ranks)
        parts = [job.buffer(4 * n * size) for _ in range(3)]
        tokens = [job.reduce_scatter(send.at(), parts[0].at(), n, group=group),
                  job.all_reduce(send.at(), parts[1].at(), n, group=group),
                  job.all_gather(send.at(), parts[2].at(), n, group=group)]
        open_ops.append((ranks, parts, tokens))
    for ranks, parts, tokens in open_ops:
        for token in tokens:
            job.wait(token, 60 * S)
        whole = float(sum(r + 1 for r in ranks))
        assert parts[0].floats[0:n] == parts[1].floats[0:n] == [whole] * n, ranks
        gathered = [float(r + 1) for r in ranks for _ in range(n)]
        assert parts[2].floats[0:n * len(ranks)] == gathered, ranks
    close(job)


@pytest.mark.gpus(*SERVER)
@pytest.mark.parametrize("count", sorted(GROUPS))
def test_groups_across_nodes(runtime_dir, tmp_path, count):
    world, groups = GROUPS[count]
    with nodes.Cluster(runtime_dir, count, namespaces=False) as cluster:
        run(world, in_groups, world, {"socket": cluster.spread("dealt"),
                                      "id": str(tmp_path / "id")}, groups)


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
    try:
        job.barrier(60 * S)  # the victim may be out of it, and gone, before others are
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        open(f"{where['id']}.{rank}", "w").close()
        while True:
            job.barrier(60 * S)
            time.sleep(0.01)
    except gw.Error as error:
        job.close()
        return error.name, error.text


LEFT = {"unordered", "leak_stream", "leak_mapping", "leak_memory"}  # by who is killed


@pytest.mark.gpus(*SERVER)
@pytest.mark.parametrize("ranks, victim", [([2, 2], 3), ([1, 2, 1], 0), ([1, 1, 1, 3], 2)])
def test_a_lost_rank_is_told_on_every_node(runtime_dir, tmp_path, gpus, ranks, victim):
    gpus.allowed.update(LEFT)
    world = sum(ranks)
    with nodes.Cluster(runtime_dir, len(ranks), namespaces=False) as cluster:
        results = gw.Ranks(world, wait_for_loss, world, {
            "socket": cluster.spread(places(ranks)), "id": str(tmp_path / "id")},
            victim).join(timeout=150 * SLOWER)
    assert results.pop(victim)[0] == "died"
    for kind, value in results:
        assert kind == "ok" and value[0] == "GW_E_PEER_LOST", results
        assert f"rank {victim}" in value[1], results


@pytest.mark.gpus(*SERVER)
@pytest.mark.parametrize("ranks, lost, named", [
    ([2, 2], 1, "node1 (ranks 2, 3)"), ([1, 3, 1], 1, "node1 (ranks 1, 2, 3)"),
    ([1, 2, 1, 1], 3, "node3 (ranks 4)"), ([2, 1, 2], 0, "node0 (ranks 0, 1)")])
def test_a_lost_node_is_told(runtime_dir, tmp_path, gpus, ranks, lost, named):
    gpus.allowed.update(LEFT)
    where, place = {"id": str(tmp_path / "id")}, places(ranks)
    world = len(place)
    with nodes.Cluster(runtime_dir, len(ranks), namespaces=False, lost=(lost,)) as cluster:
        there = gw.Ranks(world, wait_for_loss, world, {**where, "socket": cluster.spread(place)},
                         -1)
        until(lambda: all(os.path.exists(f"{where['id']}.{r}") for r in range(world)), timeout=60)
        os.kill(cluster.engines()[lost][0], signal.SIGKILL)
        results = there.join(timeout=150 * SLOWER)
    for (kind, value), node in zip(results, place):
        assert kind == "ok", results
        assert value[0] == ("GW_E_ENGINE_LOST" if node == lost else "GW_E_PEER_LOST"), results
        assert node == lost or named in value[1], results
