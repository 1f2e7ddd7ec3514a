# SPDX-License-Identifier: Apache-2.0
"""gradwired and jobs of other nodes, with a fake engine: who names a tag of a job that spans nodes
gets an engine for it, one for all.

ctest: timeout=200
"""
import os
import signal

import pytest

import wire
from conftest import until

TAG = bytes.fromhex("00112233445566ff")
ENTRY = f"{TAG.hex()}.{os.getuid()}"


def knock(daemon, tag=TAG, spans=1):
    """A client that has said HELLO."""
    client = wire.Connection.to(daemon.socket)
    client.send(wire.hello(tag, spans=spans))
    return client


def engine_of(client):
    welcome = client.receive()
    assert welcome.type == "WELCOME", welcome
    return welcome.number(3)


@pytest.fixture
def go(runtime_dir):
    """The file that an engine waits for in the modes "hold", "closing" and "closed"."""
    path = runtime_dir.with_name(runtime_dir.name + ".go")
    yield path
    path.unlink(missing_ok=True)
    path.with_suffix(".ending").unlink(missing_ok=True)


def test_the_first_that_names_the_tag_starts_an_engine_for_all(make_daemon):
    with make_daemon() as daemon:
        clients = [knock(daemon)]
        pid = engine_of(clients[0])
        assert daemon.entries() == [ENTRY]
        assert [job["tag"] for job in daemon.jobs()] == [TAG.hex()]
        # Found again, also by one that does not say that the job spans nodes.
        clients += [knock(daemon), knock(daemon, spans=0)]
        assert [engine_of(c) for c in clients[1:]] == [pid, pid]
        for client in clients:
            client.close()
        daemon.assert_idle()
        assert daemon.jobs() == []


def test_a_job_of_one_node_is_not_looked_for_elsewhere(make_daemon):
    with make_daemon() as daemon, knock(daemon, spans=0) as client:
        close = client.wait_closed()
        assert close.code == "NOT_FOUND" and TAG.hex() in close.reason, close
        assert daemon.engines() == []


def test_the_creators_engine_serves_its_own_node(make_daemon):
    with make_daemon() as daemon:
        creator = wire.Connection.to(daemon.socket)
        creator.send(wire.hello())
        pid = engine_of(creator)
        (tag,) = [job["tag"] for job in daemon.jobs()]
        joiner = knock(daemon, bytes.fromhex(tag))
        assert engine_of(joiner) == pid
        assert daemon.engines() == [pid] and daemon.entries() == [tag]
        creator.close()
        joiner.close()


def test_clients_that_come_while_it_starts_share_it(make_daemon, go):
    with make_daemon("hold") as daemon:
        clients = [knock(daemon) for _ in range(4)]
        until(daemon.engines, what="the engine")
        clients.pop(0).close()  # it started for this one
        late = knock(daemon)
        assert daemon.status()["jobs"] == 1, daemon.log()
        go.touch()
        pids = {engine_of(client) for client in [*clients, late]}
        assert list(pids) == daemon.engines()
        for client in [*clients, late]:
            client.close()


def test_when_nobody_waits_any_more_it_ends(make_daemon):
    with make_daemon("hold") as daemon:
        clients = [knock(daemon) for _ in range(2)]
        until(daemon.engines, what="the engine")
        for client in clients:
            client.close()
        daemon.assert_idle()


@pytest.mark.parametrize("mode,code,words", [
    ("hold die", "ENGINE_LOST", "exit code 3"),
    ("hold refuse", "NOMEM", "no memory for"),
    ("hold stray", "INTERNAL", "another job's tag"),
])
def test_if_it_ends_before_it_is_ready_all_that_wait_hear_why(make_daemon, go, mode, code, words):
    with make_daemon(mode) as daemon:
        clients = [knock(daemon) for _ in range(3)]
        until(daemon.engines, what="the engine")
        assert daemon.status()["jobs"] == 1
        go.touch()
        for client in clients:
            close = client.wait_closed()
            assert close.code == code and words in close.reason, close
        daemon.assert_idle(60)


@pytest.mark.parametrize("mode", ["closing", "closed"])
def test_who_comes_while_it_ends_waits_for_the_next_one(make_daemon, go, mode):
    """One engine for all of them; until then nobody is told anything."""
    with make_daemon(mode) as daemon:
        first = knock(daemon)
        pid = engine_of(first)
        first.close()
        until(go.with_suffix(".ending").exists, what="an engine that is ending")
        clients = [knock(daemon) for _ in range(4)]
        clients.pop().close()  # it has had enough
        assert daemon.engines() == [pid], daemon.log()
        with pytest.raises(TimeoutError):
            clients[0].receive(0.2)
        go.touch()
        pids = {engine_of(client) for client in clients}
        assert pids == set(daemon.engines()) and pid not in pids, daemon.log()
        for client in clients:
            client.close()


def test_while_gradwired_drains_nobody_gets_the_next_one(make_daemon, go):
    with make_daemon("closed") as daemon:
        engine_of(first := knock(daemon))
        first.close()
        until(go.with_suffix(".ending").exists, what="an engine that is ending")
        with wire.Connection.to(daemon.admin_socket) as admin:
            admin.send(wire.frame("DRAIN", 1))
            until(lambda: daemon.status()["draining"])
            with knock(daemon) as late:
                go.touch()
                assert late.wait_closed().code == "DRAINING"
            assert admin.receive().code == "OK"


def test_limits_are_those_of_a_new_job(make_daemon):
    with make_daemon(conf="[job]\nlinger = 0\n[limits]\nmax_jobs_per_user = 1\n") as daemon:
        first = knock(daemon)
        pid = engine_of(first)
        with knock(daemon, TAG[::-1]) as refused:
            close = refused.wait_closed()
            assert close.code == "LIMIT" and "max_jobs_per_user" in close.reason, close
        with knock(daemon) as again:
            assert engine_of(again) == pid
        with wire.Connection.to(daemon.admin_socket) as admin:
            admin.send(wire.frame("DRAIN", 1))
            until(lambda: daemon.status()["draining"])
            with knock(daemon, TAG[::-1]) as refused:
                assert refused.wait_closed().code == "DRAINING"
            with knock(daemon) as again:
                assert engine_of(again) == pid
            first.close()
            assert admin.receive().code == "OK"


def test_a_new_gradwired_finds_it(make_daemon):
    with make_daemon() as daemon:
        client = knock(daemon)
        pid = engine_of(client)
        daemon.stop(signal.SIGKILL)
        daemon.start()
        with knock(daemon) as late:
            assert engine_of(late) == pid
        assert daemon.entries() == [ENTRY]
        client.close()


def test_what_is_configured_is_passed_on(make_daemon):
    conf = ("[job]\nlinger = 0\n[nodes]\nnode_name = left\nstar_interface = lo\n"
            "star_ports = 50000-50001\nstar_beat = 20ms\nstar_lost = 2s\n")
    with make_daemon(conf=conf) as daemon, knock(daemon) as client:
        engine_of(client)
        said = client.ask("DONE", {1: 0, 2: "nodes"})
        assert said.text(2) == "lo 50000-50001 20000000 2000000000 left", said


def test_unless_configured_the_engine_chooses(make_daemon):
    with make_daemon() as daemon, knock(daemon) as client:
        engine_of(client)
        said = client.ask("DONE", {1: 0, 2: "nodes"})
        assert said.text(2) == "None 46200-46399 100000000 800000000 None", said
