# SPDX-License-Identifier: Apache-2.0
"""Ways between nodes: what crosses goes by the transport and the network that it was told, and is
what the kernel counts there; nothing wakes a job that is idle; launchers that share a directory;
many groups at once.
ctest: label=nodes timeout=300
"""
import ctypes as C
import json
import os
import pathlib
import subprocess
import threading

import pytest

import gw
import nodes
from conftest import SLOWER, until
from test_faults import training_rank

S = gw.S
WORLD = 4


def where_of(tmp_path, cluster, name="job"):
    directory = tmp_path / name
    directory.mkdir()
    return {"socket": cluster.spread(), "id": str(directory / "job.id"), "dir": str(directory)}


def joined(rank, world, where):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    return job


def in_namespaces(cluster):
    if cluster.network.why is not None:
        pytest.skip(f"no network of its own: {cluster.network.why}")
    return cluster.network


def sent(net, node, interface="eth0"):
    """Bytes that the kernel has sent there."""
    said = net.switch.run(f"{net.inside(node)} ip -s -j link show {interface}")
    return json.loads(said)[0]["stats64"]["tx"]["bytes"]


# ---- transports ----------------------------------------------------------------------------------

NUMEL, SUMS = 1 << 20, 4  # 4 MiB


def counting_rank(rank, world, where):
    """What crosses in a few sums, as the service counts it."""
    job = joined(rank, world, where)
    send, recv = gw.Buffer(job, 4 * NUMEL), gw.Buffer(job, 4 * NUMEL // world)
    for i in range(0, NUMEL, NUMEL // 8):
        send.floats[i] = rank + 1
    where["all"].wait(60 * SLOWER)  # the links are looked at
    where["all"].wait(60 * SLOWER)
    for _ in range(SUMS):
        job.wait(job.reduce_scatter(send.at(), recv.at(), NUMEL // world))
    job.barrier()
    where["all"].wait(60 * SLOWER)
    where["all"].wait(60 * SLOWER)
    got, crossed = recv.floats[0], job.stats().kinds[1].cross_node_bytes
    job.close()
    return got, crossed


def test_what_crosses_is_what_the_links_carry(runtime_dir, tmp_path):
    """An outside witness of the counter: the kernel's, of the nodes' interfaces."""
    with nodes.Cluster(runtime_dir, 2) as cluster:
        net = in_namespaces(cluster)
        where = {**where_of(tmp_path, cluster), "all": gw.barrier(WORLD + 1)}
        ranks = gw.Ranks(WORLD, counting_rank, WORLD, where)
        where["all"].wait(60 * SLOWER)
        before = sum(sent(net, node) for node in range(2))
        where["all"].wait(60 * SLOWER)
        where["all"].wait(60 * SLOWER)
        carried = sum(sent(net, node) for node in range(2)) - before
        where["all"].wait(60 * SLOWER)
        results = ranks.join(60 * SLOWER)
        assert all(kind == "ok" for kind, _ in results), f"{results}\n{cluster.logs()}"
        assert [got for _, (got, _) in results] == [10.0] * WORLD
        crossed = sum(counted for _, (_, counted) in results)
        # Each of the two nodes sends one partial sum of each of the other's two slices.
        assert crossed == SUMS * 2 * 2 * 4 * NUMEL // WORLD
        print(f"{crossed} bytes crossed, {carried} over the links")
        # Headers, acknowledgements and the star's messages beside them.
        assert crossed <= carried < crossed * 1.1 + (1 << 20)


def refused_rank(rank, where):
    with pytest.raises(gw.Error) as refused:
        gw.Job(rank, 2, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    return refused.value.name, refused.value.text


@pytest.mark.parametrize("name, value", [("UCX_TLS", "rc"), ("UCX_NET_DEVICES", "no0")])
def test_ucx_has_no_way_but_those_that_it_is_told(runtime_dir, tmp_path, name, value):
    """Its variables count; where nothing is left of them, the text names them."""
    with nodes.Cluster(runtime_dir, 2, namespaces=False, env={name: value}) as cluster:
        ((error, text),) = gw.run(1, refused_rank, where_of(tmp_path, cluster))
        assert error == "GW_E_DEVICE" and name in text and "GPU" not in text, text


# ---- networks ------------------------------------------------------------------------------------


class TwoNetworks(nodes.Cluster):
    """Beside eth0 each node has eth1, on a network of its own that knows IPv6 alone."""

    def __init__(self, directory, count):
        super().__init__(directory, count, env={"UCX_NET_DEVICES": "eth1"})
        net = self.network
        if net.why is not None:
            return
        net.switch.run("ip link add br1 type bridge && ip link set br1 up")
        for node, pid in enumerate(net.pids):
            net.switch.run(f"""
                ip link add q{node} type veth peer name eth1 netns {pid}
                ip link set q{node} master br1 up
                {net.inside(node)} ip address add fd78::{node + 1}/64 dev eth1 nodad
                {net.inside(node)} ip link set eth1 up""")
            conf = directory / f"n{node}.conf"
            conf.write_text(conf.read_text().replace("= eth0", "= eth1"))


def test_a_job_keeps_to_the_network_that_it_is_told(runtime_dir, tmp_path):
    """The star, by star_interface, and the data, by UCX_NET_DEVICES; the other network is down."""
    with TwoNetworks(runtime_dir, 2) as cluster:
        net = in_namespaces(cluster)
        seen = subprocess.run([*net.prefix(0), "ls", "/sys/class/net"], capture_output=True,
                              text=True, check=True).stdout.split()
        if "eth1" not in seen:
            pytest.skip("sysfs cannot be mounted here: UCX would not see what a node has")
        for node in range(2):
            net.unplug(node)
        where = where_of(tmp_path, cluster)
        digests = gw.run(WORLD, training_rank, WORLD, where, 2, 2, False, timeout=120 * SLOWER)
        assert len(set(digests)) == 1
        assert all(sent(net, node, "eth1") > 10000 for node in range(2))


# ---- idle ----------------------------------------------------------------------------------------


def idle_rank(rank, world, where):
    job = joined(rank, world, where)
    job.param("p", 64)
    job.seal(stage=1, bucket_bytes=4096)
    job.barrier()
    where["all"].wait(60 * SLOWER)
    where["all"].wait(60 * SLOWER)
    job.close()


def switches(pid):
    """How often its threads have given up a processor."""
    said = {}
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        said[thread.name] = [line for line in (thread / "status").read_text().splitlines()
                             if line.startswith("voluntary_ctxt_switches")]
    return said


def test_an_idle_job_is_woken_by_beats_alone(runtime_dir, tmp_path):
    """Those are a minute apart here; UCX's thread and the star's sleep in between."""
    with nodes.Cluster(runtime_dir, 2, "star_beat = 60s\nstar_lost = 1h\n") as cluster:
        where = {**where_of(tmp_path, cluster), "all": gw.barrier(WORLD + 1)}
        ranks = gw.Ranks(WORLD, idle_rank, WORLD, where)
        where["all"].wait(60 * SLOWER)
        engines = [pid for pids in cluster.engines() for pid in pids]
        assert len(engines) == 2
        before = None

        def unchanged():  # what follows the last op does so for a moment
            nonlocal before
            threading.Event().wait(1)
            now, before = before, [switches(pid) for pid in engines]
            return now == before

        until(unchanged, what="a second in which no thread of the engines is woken")
        where["all"].wait(60 * SLOWER)
        assert ranks.join(60 * SLOWER) == [("ok", None)] * WORLD


# ---- launchers -----------------------------------------------------------------------------------


def launched_rank(rank, sockets, directory):
    """As torchrun starts it, two ranks on each node."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank % 2),
                      LOCAL_WORLD_SIZE="2", GROUP_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="run",
                      GRADWIRE_SOCKET=sockets[rank // 2], GRADWIRE_ID_DIR=directory)
    options, job = gw.JobOptions(struct_size=C.sizeof(gw.JobOptions), linger_ns=-1), C.c_void_p()
    gw.call("gw_launch_options", C.byref(options))
    gw.call("gw_launch_join", C.byref(options), None, C.c_int64(60 * S), C.byref(job))
    tag = C.create_string_buffer(17)
    gw.call("gw_job_tag", job, tag)
    gw.LIB.gw_job_close(job)
    return options.nodes, tag.value


def test_torchruns_variables_and_a_directory_make_a_job_of_two_nodes(make_nodes, tmp_path):
    daemons = make_nodes(2)
    said = gw.run(WORLD, launched_rank, [str(daemon.socket) for daemon in daemons], str(tmp_path),
                  timeout=60 * SLOWER)
    assert {nodes_ for nodes_, _ in said} == {2} and len({tag for _, tag in said}) == 1
    assert os.listdir(tmp_path) == []


# ---- groups --------------------------------------------------------------------------------------

GROUPS = [list(members) for members in (
    (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3),
    (0, 1, 2, 3), (3, 2, 1, 0))]
LARGE = 1 << 20  # elements: 4 MiB for each group


def groups_rank(rank, world, where):
    """An all-reduce in each of its groups, all under way at once."""
    job = joined(rank, world, where)
    mine = [(g, job.group(members)) for g, members in enumerate(GROUPS) if rank in members]
    send, got = gw.Buffer(job, 4 * LARGE), []
    ends = (0, LARGE // 2, LARGE - 1)
    for at in ends:
        send.floats[at] = 1 << rank
    out = [gw.Buffer(job, 4 * LARGE) for _ in mine]
    tokens = [job.all_reduce(send.at(), to.at(), LARGE, group=group)
              for (_, group), to in zip(mine, out)]
    for (g, _), to, token in zip(mine, out, tokens):
        job.wait(token, 120 * S)
        got.append((g, [to.floats[at] for at in ends]))
    job.close()
    return got


def test_twelve_groups_at_once(runtime_dir, tmp_path):
    with nodes.Cluster(runtime_dir, 2) as cluster:
        where = {**where_of(tmp_path, cluster), "socket": cluster.spread("dealt")}
        for rank, got in enumerate(gw.run(WORLD, groups_rank, WORLD, where, timeout=120 * SLOWER)):
            assert got == [(g, [float(sum(1 << r for r in members))] * 3)
                           for g, members in enumerate(GROUPS) if rank in members]
