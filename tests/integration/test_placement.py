# SPDX-License-Identifier: Apache-2.0
"""Where engines' threads and memory go, on real and made-up topologies of this node.

ctest: timeout=200
"""
import json
import os
import pathlib

import pytest

import wire
from conftest import ENGINE, until
from test_supervisor_real import create_job, shown
from test_train import Trainer

pytestmark = [pytest.mark.skipif(not ENGINE.exists(), reason=f"{ENGINE} is not built"),
              pytest.mark.host_only("works of GPUs are placed by their GPUs")]
OWN = sorted(os.sched_getaffinity(0))


@pytest.fixture
def real(make_daemon, monkeypatch):
    def make(synthetic=None, placement="auto"):
        if synthetic:
            monkeypatch.setenv("HWLOC_SYNTHETIC", synthetic)
        return make_daemon(conf=f"[job]\nlinger = 0\nplacement = {placement}\n", engine=ENGINE)
    return make


def threads(pid):
    """The processors that each thread of a process may use."""
    return [os.sched_getaffinity(int(task.name))
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]


def command(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def assert_engine_is_given(daemon, nodes):
    client, pid, _ = create_job(daemon)
    arguments = command(pid)
    assert arguments[arguments.index("--topology") + 1] == nodes
    client.close()
    daemon.assert_idle()


@pytest.mark.parametrize("synthetic, nodes", [
    ("numa:2 core:4 pu:2", "0:0-7 1:8-15"), ("numa:1 core:3 pu:1", "0:0-2"),
    ("pack:2 numa:2 core:1 pu:2", "0:0-1 1:2-3 2:4-5 3:6-7")])
def test_nodes_are_hwlocs_and_reach_the_engine(real, synthetic, nodes):
    with real(synthetic) as daemon:
        assert daemon.status()["placement"] == f"NUMA nodes {nodes}"
        assert f"placement  NUMA nodes {nodes}" in daemon.ctl("status").stdout
        assert_engine_is_given(daemon, nodes)


def test_status_says_that_it_shows_a_part(real):
    """Neighbours on two nodes: every processor is a number of its own."""
    nodes = " ".join(f"{n}:" + ",".join(map(str, range(n, 512, 2))) for n in range(2))
    with real("numa:2 core:256 pu:1(indexes=256*2:1*256)") as daemon:
        shown_nodes = daemon.status()["placement"].removeprefix("NUMA nodes ")
        assert shown_nodes.endswith("...") and len(shown_nodes) > 400
        assert nodes.startswith(shown_nodes[:-3])
        assert_engine_is_given(daemon, nodes)


def test_this_nodes_processors_are_found(real):
    with real() as daemon:
        found = daemon.status()["placement"].removeprefix("NUMA nodes ").split(" ")
    on_nodes = sorted(
        f"{path.name[4:]}:{cpus}" for path in
        pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")
        if (cpus := (path / "cpulist").read_text().strip()))
    if on_nodes:
        assert sorted(found) == on_nodes
    else:  # a kernel without NUMA
        assert len(found) == 1


@pytest.fixture
def one_processor():
    os.sched_setaffinity(0, {OWN[-1]})
    yield {OWN[-1]}
    os.sched_setaffinity(0, OWN)


def test_threads_stay_where_the_jobs_client_may_be(real, one_processor):
    with real() as daemon:
        os.sched_setaffinity(daemon.pid, OWN)  # it was started from here
        client, pid, _ = create_job(daemon)
        assert threads(pid) and all(cpus == one_processor for cpus in threads(pid))
        job = until(lambda: (job := shown(daemon)) and job["placement"] and job)
        assert job["placement"] == "0 workers on 1 processors of 1 NUMA node"
        client.close()
        daemon.assert_idle()


def ask_to_join(daemon, secret):
    """(connection, answer) of one more client, as rank 1 of 2."""
    late = wire.Connection.to(daemon.socket)
    late.send(wire.hello(bytes.fromhex(shown(daemon)["tag"])))
    for fd in late.receive().fds:
        os.close(fd)
    return late, late.ask("JOIN", {1: secret, 2: 1, 3: 2})


def test_ranks_elsewhere_widen_it(real, one_processor):
    with real() as daemon:
        os.sched_setaffinity(daemon.pid, OWN)
        client, pid, secret = create_job(daemon)
        os.sched_setaffinity(0, {OWN[0]})
        late, answer = ask_to_join(daemon, secret)
        assert answer.type == "JOINED"
        assert all(cpus == one_processor | {OWN[0]} for cpus in threads(pid))
        late.close()
        client.close()
        daemon.assert_idle()


def test_who_is_refused_moves_nothing(real, one_processor):
    with real() as daemon:
        os.sched_setaffinity(daemon.pid, OWN)
        client, pid, secret = create_job(daemon)
        left, answer = ask_to_join(daemon, secret)
        assert answer.type == "JOINED"
        left.send(wire.frame("LEAVE"))
        left.close()
        os.sched_setaffinity(0, {OWN[0]})

        def refused():
            late, answer = ask_to_join(daemon, secret)
            late.close()
            return answer.code == "STATE"  # DUPLICATE until LEAVE is read
        until(refused)
        assert all(cpus == one_processor for cpus in threads(pid))
        client.close()
        daemon.assert_idle()


def test_it_can_be_switched_off(real, one_processor):
    with real(placement="off") as daemon:
        os.sched_setaffinity(daemon.pid, OWN)
        assert daemon.status()["placement"] == "off (placement = off)"
        client, pid, _ = create_job(daemon)
        assert "--topology" not in command(pid)
        assert all(cpus == set(OWN) for cpus in threads(pid))
        assert shown(daemon)["placement"] is None
        client.close()
        daemon.assert_idle()


def test_placed_sums_have_the_same_bits(real, tmp_path):
    common = ["--stage", "2", "--steps", "3", "--bucket", "20000"]
    digests = []
    for synthetic, placement in ((None, "off"), ("numa:2 core:1 pu:1", "auto")):
        with real(synthetic, placement) as daemon:
            where = tmp_path / placement
            where.mkdir()
            ranks = Trainer(str(daemon.socket), where).train(2, *common)
            digests.append(json.dumps([rank["sha256"] for rank in ranks]))
    assert digests[0] == digests[1]
