# SPDX-License-Identifier: Apache-2.0
"""Ranks on several nodes meet by the job's id alone: every node has a gradwired of its own that
knows of no other.

ctest: label=nodes timeout=300
"""
import collections
import pathlib
import signal
import socket
import threading

import pytest

import gw
from conftest import SLOWER, until

S = gw.S
SOURCE = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (SOURCE / "daemon/engine/nodes.c").exists(),
                                reason="engines know nothing of other nodes yet")


def attach(rank, places, where, nodes=None):
    """places: the node of each rank."""
    return gw.Job(rank, len(places), id_path=where["id"], socket=where["sockets"][places[rank]],
                  linger_ns=-1, nodes=nodes or len(set(places)))


def join_rank(rank, places, where):
    try:
        job = attach(rank, places, where)
        job.wait_ready(20 * S)
    except gw.Error:
        where["all"].abort()  # nobody need wait for this rank
        raise
    said = job.tag(), job.generation(), bytes(job.id().bytes[:64])
    where["all"].wait(60 * SLOWER)  # what the nodes show is looked at meanwhile
    where["seen"].wait(60 * SLOWER)
    job.close()
    return said


def placed(daemons, tmp_path, barriers=None):
    return {"sockets": [str(daemon.socket) for daemon in daemons], "id": str(tmp_path / "job.id"),
            **(barriers or {})}


@pytest.mark.parametrize("places", [
    (0, 1), (0, 1, 1, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 2), (0, 0, 1, 1, 2, 2, 2)],
    ids=lambda places: "".join(map(str, places)))
def test_ranks_of_several_nodes_meet_by_the_id(make_nodes, tmp_path, places):
    daemons = make_nodes(max(places) + 1)
    barriers = {name: gw.barrier(len(places) + 1) for name in ("all", "seen")}
    ranks = gw.Ranks(len(places), join_rank, places, placed(daemons, tmp_path, barriers))
    try:
        barriers["all"].wait(60 * SLOWER)
    except threading.BrokenBarrierError:
        pytest.fail(str(ranks.join(30 * SLOWER)))
    here = collections.Counter(places)
    for node, daemon in enumerate(daemons):
        (job,) = until(lambda d=daemon: [j for j in d.jobs() if j["world"]], what="the job")
        assert job["world"] == len(places), daemon.log()
        assert len(daemon.engines()) == 1
        assert here[node] > 0
    barriers["seen"].wait(60 * SLOWER)
    results = ranks.join(60 * SLOWER)
    assert all(kind == "ok" for kind, _ in results), results
    said = {value for _, value in results}
    assert len(said) == 1, "not one job"
    ((_, generation, id_),) = said
    assert generation == 1
    assert id_[:6] == b"GWID\1\4" and id_[40:44] == bytes([127, 0, 0, 1]), id_[:8]
    assert 46200 <= int.from_bytes(id_[6:8], "big") <= 46399
    for daemon in daemons:
        daemon.assert_idle()


def refused_rank(rank, places, where, change):
    """Rank 1 joins with what `change` made of the id, and says how it is refused; then rightly, at
    once: the engine that was refused is still ending."""
    if rank == 0:
        job = attach(rank, places, where)
        job.wait_ready(60 * S)
        job.close()
        return None
    job_id = gw.JobId()
    gw.call("gw_job_id_load", where["id"].encode(), gw.C.c_int64(60 * S), gw.C.byref(job_id))
    wrong = gw.JobId.from_buffer_copy(job_id)
    for at, value in change.items():
        wrong.bytes[at] = value if value >= 0 else wrong.bytes[at] ^ -value
    with pytest.raises(gw.Error) as refused:
        gw.Job(rank, len(places), socket=where["sockets"][places[rank]], job_id=wrong,
               join_timeout_ns=20 * S).wait_ready(20 * S)
    job = attach(rank, places, where)
    job.wait_ready(60 * S)
    job.close()
    return refused.value.name, refused.value.text


def test_an_id_with_another_secret_is_refused_and_does_no_harm(make_nodes, tmp_path):
    """Its tag names no job of the root's: nobody there knows that secret."""
    daemons = make_nodes(2)
    name, text = gw.run(2, refused_rank, (0, 1), placed(daemons, tmp_path), {20: -1})[1]
    assert name == "GW_E_DENIED", text


def test_an_id_whose_engine_is_gone_says_that_nobody_listens(make_nodes, tmp_path):
    """Port 1 of loopback."""
    daemons = make_nodes(2)
    name, text = gw.run(2, refused_rank, (0, 1), placed(daemons, tmp_path), {6: 0, 7: 1})[1]
    assert name == "GW_E_NOT_FOUND" and "127.0.0.1:1" in text, (name, text)


def patient_rank(_, daemon_socket, id_bytes):
    """The rank 1 of 2 of a job that is not where its id says."""
    job_id = gw.JobId(size=len(id_bytes))
    job_id.bytes[:len(id_bytes)] = id_bytes
    gw.Job(1, 2, socket=daemon_socket, job_id=job_id, timeout_ns=600 * S)


def test_while_the_root_is_looked_for_jobs_tell_so(make_nodes):
    """There it is silent."""
    (daemon,) = make_nodes(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        creator = gw.Job(0, 2, socket=str(daemon.socket), nodes=2)
        id_bytes = list(creator.id().bytes[:64])
        creator.close()
        daemon.assert_idle()
        id_bytes[6:8] = divmod(port, 256)
        ranks = gw.Ranks(1, patient_rank, str(daemon.socket), id_bytes)
        wait = f"connecting to the job's first engine, at 127.0.0.1:{port}"
        until(lambda: [job["wait"] for job in daemon.jobs()] == [wait], what=wait)
        assert wait in daemon.log()
        ranks.kill(0)
        assert ranks.join(20 * SLOWER) == [("died", -signal.SIGKILL)]


def one_node_rank(rank, places, where):
    if rank == 0:
        job = attach(rank, places, where, nodes=1)
        where["all"].wait(60 * SLOWER)
        job.close()
        return None
    try:
        with pytest.raises(gw.Error) as refused:
            attach(rank, places, where)
    finally:
        where["all"].wait(60 * SLOWER)
    return refused.value.name, refused.value.text


def test_a_job_of_one_node_has_no_ranks_elsewhere(make_nodes, tmp_path):
    daemons = make_nodes(2)
    where = placed(daemons, tmp_path, {"all": gw.barrier(2)})
    name, text = gw.run(2, one_node_rank, (0, 1), where)[1]
    assert name == "GW_E_NOT_FOUND" and "this node" in text, (name, text)


def crowd_rank(rank, places, where):
    """Of three nodes two are in the job; rank 2's is the third."""
    job = None
    if rank == 2:
        where["two"].wait(60 * SLOWER)
        with pytest.raises(gw.Error) as refused:
            attach(rank, places, where).wait_ready(20 * S)
        where["all"].wait(60 * SLOWER)
        return refused.value.name, refused.value.text
    job = attach(rank, places, where, nodes=2)
    where["two"].wait(60 * SLOWER)
    where["all"].wait(60 * SLOWER)
    job.close()
    return None


def test_no_more_nodes_than_the_creator_allowed(make_nodes, tmp_path):
    daemons = make_nodes(3)
    where = placed(daemons, tmp_path, {"two": gw.barrier(3), "all": gw.barrier(3)})
    name, text = gw.run(3, crowd_rank, (0, 1, 2), where)[2]
    assert name == "GW_E_LIMIT", (name, text)


def mapped_rank(rank, places, where):
    job = attach(rank, places, where)
    job.param("p", 64, "u")
    try:
        with pytest.raises(gw.Error) as refused:
            job.seal(stage=3, gather=1)
    finally:
        where["all"].wait(60 * SLOWER)
        job.close()
    return refused.value.name


def test_a_mapped_gather_needs_one_node(make_nodes, tmp_path):
    daemons = make_nodes(2)
    where = placed(daemons, tmp_path, {"all": gw.barrier(2)})
    assert gw.run(2, mapped_rank, (0, 1), where) == ["GW_E_INVALID"] * 2


LONG = 60000, 250  # parameters, bytes of their names


def early_rank(rank, world, where):
    """All but the last one register parameters; it comes from the other node when they have."""
    last = rank == world - 1
    if last:
        where["all"].wait(120 * SLOWER)
    job = attach(rank, (0,) * (world - 1) + (1,), where)
    refused = None
    if not last:
        for j in range(LONG[0]):
            job.param(str(j).rjust(LONG[1], "x"), 1)
        with pytest.raises(gw.Error) as error:
            job.seal(60 * S, stage=2, bucket_bytes=4096, shard_ranks=3)
        refused = error.value.name  # by the engine, when all are registered
        where["all"].wait(120 * SLOWER)
    job.wait_ready(60 * S)
    job.barrier(60 * S)
    job.close()
    return refused


def test_a_node_that_comes_late_hears_all_however_much(make_nodes, tmp_path):
    """Far more than may wait for one node (64 MiB) while the root says it."""
    daemons, world = make_nodes(2), 10
    assert (world - 1) * LONG[0] * LONG[1] > 128 << 20
    where = placed(daemons, tmp_path, {"all": gw.barrier(world)})
    assert gw.run(world, early_rank, world, where, timeout=240 * SLOWER) == \
        ["GW_E_INVALID"] * (world - 1) + [None], [daemon.log() for daemon in daemons]
