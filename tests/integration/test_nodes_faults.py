# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between nodes: ranks, engines and gradwireds that are killed, networks that are
cut, strangers at the star's port. Every rank of the job is told, with node and ranks; other jobs go
on, and the next job needs no new daemon.
ctest: label=nodes timeout=600
"""
import os
import signal
import socket
import time

import pytest

import gw
import network
import nodes
from conftest import ENGINE, SLOWER, until
from test_faults import (INITIAL, _second_life_of_rank_1, await_flag, dying_rank, flag,
                         training_rank)

S = gw.S
TOLD_S = 8 * SLOWER  # ten times what a lost node may take (star_lost, 800 ms)


def where_of(tmp_path, socket_, name):
    directory = tmp_path / name
    directory.mkdir()
    return {"socket": socket_, "id": str(directory / "job.id"), "dir": str(directory)}


def busy_rank(rank, world, where):
    """Barriers until an error comes; what it is, and when."""
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    job.param("p", 64)
    job.seal(stage=1, bucket_bytes=4096)
    job.barrier()
    flag(where, f"up{rank}")
    try:
        while True:
            job.barrier(60 * S)
    except gw.Error as e:
        told = e.name, e.text, time.monotonic()
    job.close()
    return told


def start_busy(cluster, tmp_path, place, name="busy"):
    world = len(place)
    where = where_of(tmp_path, cluster.spread(place), name)
    ranks = gw.Ranks(world, busy_rank, world, where)
    for rank in range(world):
        await_flag(where, f"up{rank}", 60 * SLOWER)
    return ranks


def all_told(ranks, since, cluster):
    """(name, text) by rank; the slowest within TOLD_S."""
    results = ranks.join(60 * SLOWER)
    assert all(kind == "ok" for kind, _ in results), f"{results}\n{cluster.logs()}"
    took = [at - since for _, (_, _, at) in results]
    print(f"told after {' '.join(f'{t:.3f}' for t in took)} s")
    assert max(took) < TOLD_S, results
    return [(name, text) for _, (name, text, _) in results]


def trains_anew(cluster, tmp_path, place=(0, 1), name="anew"):
    """A new job on the same gradwireds."""
    where = where_of(tmp_path, cluster.spread(list(place)), name)
    digests = gw.run(len(place), training_rank, len(place), where, 2, 2, False,
                     timeout=120 * SLOWER)
    assert len(set(digests)) == 1


# ---- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state, stage", [("joined", 0), ("ready", 2), ("verdict", 3),
                                          ("updating", 1), ("committed", 3)])
def test_a_killed_rank_comes_back_and_finds_its_values(runtime_dir, tmp_path, state, stage):
    """Rank 1 is alone on its node: its shards wait there."""
    with nodes.Cluster(runtime_dir, 2) as cluster:
        where = where_of(tmp_path, cluster.spread(), "job")
        ranks = gw.Ranks(2, dying_rank, where, state, stage)
        ranks.procs[1][0].join(60 * SLOWER)
        again = gw.Ranks(1, _second_life_of_rank_1, where, state, stage)
        (kind, value), _ = ranks.join(60 * SLOWER)
        (kind1, value1), = again.join(60 * SLOWER)
        assert (kind, kind1) == ("ok", "ok"), (value, value1, cluster.logs())
        told, rank0 = value
        assert told is not None and told[0] == "GW_E_PEER_LOST" and "rank 1" in told[1], told
        assert told[2] < 10 * SLOWER
        if state == "updating":
            assert rank0[0] == value1[0] == "GW_E_TORN"
        else:
            done = {"joined": 0, "committed": 2}.get(state, 1)
            want = [v - done for v in INITIAL], [v - done - 1 for v in INITIAL]
            assert rank0 == value1 == (2, *want, True)
        for node in cluster.nodes:
            node.ctl("stop", "--engines")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_engine_is_a_lost_node(runtime_dir, tmp_path, victim):
    """Node 0 is the root's. Another job, whose root is the other node, goes on."""
    with nodes.Cluster(runtime_dir, 2) as cluster:
        other = where_of(tmp_path, cluster.spread([1, 0]), "other")
        others = gw.Ranks(2, training_rank, 2, other, 2, 14, True)
        for rank in range(2):
            await_flag(other, f"running{rank}", 60 * SLOWER)
        before = set(cluster.nodes[victim].engines())
        ranks = start_busy(cluster, tmp_path, [0, 0, 1, 1])
        (engine,) = set(cluster.nodes[victim].engines()) - before
        since = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        told = all_told(ranks, since, cluster)
        here = (0, 1) if victim == 0 else (2, 3)
        for rank, (name, text) in enumerate(told):
            if rank in here:
                assert name == "GW_E_ENGINE_LOST", told
            else:
                assert name == "GW_E_PEER_LOST", told
                assert f"node{victim} (ranks {here[0]}, {here[1]})" in text, text
        flag(other, "go")
        digests = others.join(120 * SLOWER)
        assert {kind for kind, _ in digests} == {"ok"} and len(set(digests)) == 1, digests
        trains_anew(cluster, tmp_path)


def test_killed_gradwireds_are_not_noticed(runtime_dir, tmp_path):
    with nodes.Cluster(runtime_dir, 2) as cluster:
        quiet = where_of(tmp_path, cluster.spread(), "quiet")
        alone = gw.run(2, training_rank, 2, quiet, 2, 14, False, timeout=120 * SLOWER)
        where = where_of(tmp_path, cluster.spread(), "job")
        ranks = gw.Ranks(2, training_rank, 2, where, 2, 14, True)
        for rank in range(2):
            await_flag(where, f"running{rank}", 60 * SLOWER)
        for node in cluster.nodes:
            node.stop(signal.SIGKILL)
        for node in cluster.nodes:
            node.start()
            assert len(node.jobs()) == 1, "the living job was not adopted"
        flag(where, "go")
        assert ranks.join(120 * SLOWER) == [("ok", digest) for digest in alone]
        trains_anew(cluster, tmp_path)


# ---- the network ---------------------------------------------------------------------------------


def with_network(cluster):
    if cluster.network.why is not None:
        pytest.skip(f"no network that can be cut: {cluster.network.why}")
    return cluster.network


@pytest.mark.parametrize("how", ["unplug", "cut", "deafen"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_cut_network_is_told_to_every_rank(runtime_dir, tmp_path, victim, how):
    """On both sides of the cut. Mended, the next job runs."""
    with nodes.Cluster(runtime_dir, 2) as cluster:
        net = with_network(cluster)
        ranks = start_busy(cluster, tmp_path, [0, 0, 1, 1])
        since = time.monotonic()
        try:
            getattr(net, how)(victim)
        except network.Refused as error:
            for rank in range(4):
                ranks.kill(rank)
            pytest.skip(f"the network cannot be cut so: {error}")
        told = all_told(ranks, since, cluster)
        for rank, (name, text) in enumerate(told):
            lost = 1 - rank // 2
            assert name == "GW_E_PEER_LOST", told
            assert f"node{lost} (ranks {2 * lost}, {2 * lost + 1})" in text, text
        net.mend_all()
        for node in cluster.nodes:
            node.assert_idle(60)
        trains_anew(cluster, tmp_path)


def test_a_short_cut_is_nothing_but_a_delay(runtime_dir, tmp_path):
    """Shorter than star_lost: the connection may be made anew, but nothing is lost."""
    with nodes.Cluster(runtime_dir, 2, "star_lost = 60s\nstar_beat = 1s\n") as cluster:
        net = with_network(cluster)
        quiet = where_of(tmp_path, cluster.spread(), "quiet")
        alone = gw.run(2, training_rank, 2, quiet, 3, 14, False, timeout=120 * SLOWER)
        where = where_of(tmp_path, cluster.spread(), "job")
        ranks = gw.Ranks(2, training_rank, 2, where, 3, 14, True)
        for rank in range(2):
            await_flag(where, f"running{rank}", 60 * SLOWER)
        net.cut(1)
        flag(where, "go")
        time.sleep(1)
        net.mend_all()
        assert ranks.join(120 * SLOWER) == [("ok", digest) for digest in alone]


# ---- strangers -----------------------------------------------------------------------------------


def star_of(cluster, tmp_path, name):
    """Of the one job under that name: address and port."""
    job_id = gw.JobId()
    gw.call("gw_job_id_load", str(tmp_path / name / "job.id").encode(), gw.C.c_int64(20 * S),
            gw.C.byref(job_id))
    return "127.0.0.1", job_id.bytes[6] << 8 | job_id.bytes[7]


def slow(address):
    """Three bytes that could be the beginning of something, and then nothing."""
    connection = socket.create_connection(address, timeout=20)
    connection.sendall(b"GWS")
    return connection


def garbage(address):
    connection = socket.create_connection(address, timeout=20)
    try:
        connection.sendall(os.urandom(1 << 16))
    except OSError:
        pass  # it was thrown out before
    return connection


def closed(connection):
    """The other side has closed it; what it sent before is no matter."""
    connection.settimeout(20 * SLOWER)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    connection.close()
    return True


def late_rank(rank, world, where, steps):
    """The last rank comes when the strangers are there."""
    if rank == world - 1:
        await_flag(where, "crowded", 60 * SLOWER)
    return training_rank(rank, world, where, 2, steps, rank < 0)


@pytest.mark.parametrize("stranger, count", [(slow, 1), (garbage, 1), (slow, 100), (garbage, 100)],
                         ids=["slow", "garbage", "slow-100", "garbage-100"])
def test_strangers_at_the_star_port_keep_nobody_away(runtime_dir, tmp_path, stranger, count):
    with nodes.Cluster(runtime_dir, 2, namespaces=False) as cluster:
        quiet = where_of(tmp_path, cluster.spread(), "quiet")
        alone = gw.run(2, training_rank, 2, quiet, 2, 3, False, timeout=120 * SLOWER)
        where = where_of(tmp_path, cluster.spread(), "job")
        ranks = gw.Ranks(2, late_rank, 2, where, 3)
        address = star_of(cluster, tmp_path, "job")
        strangers = [stranger(address) for _ in range(count)]
        flag(where, "crowded")
        assert ranks.join(120 * SLOWER) == [("ok", digest) for digest in alone], cluster.logs()
        assert all(closed(connection) for connection in strangers)
        until(lambda: not any(cluster.engines()), what="the end of the job's engines")


# ---- another user --------------------------------------------------------------------------------


def foreign_rank(rank, world, where):
    """Rank 1 comes as somebody else first, from a process that cannot go back."""
    if rank == 0:
        return training_rank(rank, world, where, 2, 2, False)
    pid = os.fork()
    if pid == 0:
        os.setgid(65530)
        os.setuid(65530)
        try:
            gw.Job(rank, world, id_path=where["copy"], socket=where["socket"]).wait_ready()
            os._exit(1)
        except gw.Error as e:
            said = e.name == "GW_E_DENIED" and "node1" in e.text and "65530" in e.text
            print(e.name, e.text, flush=True)
            os._exit(0 if said else 2)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, training_rank(rank, world, where, 2, 2, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_rank_is_refused_though_it_has_the_id(runtime_dir, tmp_path):
    """The id was stolen; the job's own rank comes later, and nothing has happened to it."""
    if not all(place.stat().st_mode & 1 for place in (ENGINE, *ENGINE.parents)):
        pytest.skip(f"other users cannot run {ENGINE}")
    with nodes.Cluster(runtime_dir, 2) as cluster:
        where = where_of(tmp_path, cluster.spread(), "job")
        where["copy"] = str(runtime_dir / "stolen")
        os.chmod(cluster.nodes[1].socket, 0o666)
        ranks = gw.Ranks(2, foreign_rank, 2, where)
        job_id = gw.JobId()
        gw.call("gw_job_id_load", where["id"].encode(), gw.C.c_int64(20 * S), gw.C.byref(job_id))
        gw.call("gw_job_id_save", gw.C.byref(job_id), (where["copy"] + ".new").encode())
        os.chown(where["copy"] + ".new", 65530, 65530)
        os.rename(where["copy"] + ".new", where["copy"])
        (kind, digest), (kind1, value1) = ranks.join(120 * SLOWER)
        assert (kind, kind1) == ("ok", "ok"), (digest, value1, cluster.logs())
        assert value1 == (0, digest), cluster.logs()
