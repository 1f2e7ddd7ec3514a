# SPDX-License-Identifier: Apache-2.0
"""What a client sent before its end counts, however the engine learns of the end first.

The engine is stopped (SIGSTOP) while a client sends its last messages and closes, so that all of
it lies there when the engine goes on. LEAVE is the witness: a client that left is no loss.

ctest: label=security timeout=120
"""
import contextlib
import os
import select
import signal
import struct
import time

import pytest

import wire
from conftest import ENGINE, SLOWER, running, until
from test_engine import STAGING, error_of, start  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(not ENGINE.exists(), reason=f"{ENGINE} is not built")
PARAM = wire.body({1: "w", 2: 8, 3: "u"})
ZERO = {9: 4096, 10: 1.0}  # bucket_bytes, scale; the rest by default


class Stopped:
    """The engine stands still inside the block."""

    def __init__(self, engine):
        self.process = engine.process

    def __enter__(self):
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: state_of(self.process.pid) == "T")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def unread_reply(client):
    """The client has a reply that it will never read: its close resets the connection."""
    client.send(wire.frame("STATS_GET", 100))
    poll = select.poll()
    poll.register(client.sock, select.POLLIN)
    assert poll.poll(20000 * SLOWER)


def next_client(engine):
    """Its packets are watched for already, so what it sends first is read first."""
    client = engine.welcomed(engine.tag)
    assert client.ask("JOB_CREATE", {1: 0, 2: 1}).code == "STATE"
    return client


def check_left(engine, good):
    until(lambda: engine.stats()["present"] == 1)
    assert error_of(good)[0] == 0, error_of(good)
    assert good.ask("STATS_GET", request=9).type == "STATS"
    assert "is gone" not in engine.log()


@pytest.mark.parametrize("before", [0, 150])
@pytest.mark.parametrize("reset", [False, True])
def test_a_leave_counts_though_the_connection_is_reset(start, before, reset):
    engine = start()
    good = engine.create(world=2)
    client = engine.join(good.id, 1, 2)
    if reset:
        unread_reply(client)
    with Stopped(engine):
        for request in range(before):  # more than one turn's worth
            client.send(wire.frame("STATS_GET", 200 + request))
        client.send(wire.frame("LEAVE"))
        client.close()
    check_left(engine, good)


@pytest.mark.parametrize("reset", [False, True])
def test_a_leave_counts_though_replies_still_wait_for_room(start, reset):
    engine = start()
    good = engine.create(world=2)
    client = engine.join(good.id, 1, 2)
    for request in range(2, 480):  # fewer than close a client that reads nothing
        client.send(wire.frame("STATS_GET", request))
    until(lambda: client.submit.taken == client.submit.at)
    with Stopped(engine):
        if not reset:  # the engine writes first, and finds nobody
            client.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while client.sock.recv(wire.FRAME_MAX):
                    pass
        client.send(wire.frame("LEAVE"))
        client.close()
    check_left(engine, good)


def test_a_leave_counts_though_the_next_client_comes_first(start):
    engine = start()
    client = engine.create()
    following = next_client(engine)
    with Stopped(engine):
        following.send(wire.frame("JOIN", 1, {1: client.id, 2: 0, 3: 1}))
        client.send(wire.frame("LEAVE"))
    joined = following.receive()
    assert joined.type == "JOINED" and joined.number(2) == 2, joined
    assert "is gone" not in engine.log()


def test_a_loss_is_noticed_though_the_next_client_comes_first(start):
    engine = start()
    client = engine.create(world=2)
    other = engine.join(client.id, 1, 2)
    following = next_client(engine)
    with Stopped(engine):
        following.send(wire.frame("JOIN", 1, {1: client.id, 2: 0, 3: 2}))
        client.close()
    joined = following.receive()
    assert joined.type == "JOINED" and joined.number(2) == 2, joined
    assert error_of(other)[0] == "PEER_LOST"


def test_a_living_client_keeps_its_rank(start):
    engine = start()
    client = engine.create(world=2)
    following = next_client(engine)
    with Stopped(engine):
        following.send(wire.frame("JOIN", 1, {1: client.id, 2: 0, 3: 2}))
        client.send(wire.frame("STATS_GET", 5))
    assert following.receive().code == "DUPLICATE"
    assert client.receive().type == "STATS"


def test_a_dead_process_is_noticed_by_the_next_client_though_a_child_keeps_its_socket(start):
    engine = start()
    good = engine.create(world=2)
    following = next_client(engine)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client = engine.join(good.id, 1, 2)  # made here: the pair is of this process
            child = os.fork()
            if child == 0:
                time.sleep(60)  # holds the socket of client
                os._exit(0)
            os.write(write, struct.pack("i", child))
            time.sleep(60)
        finally:
            os._exit(1)
    child = struct.unpack("i", os.read(read, 4))[0]
    with Stopped(engine):
        following.send(wire.frame("JOIN", 1, {1: good.id, 2: 1, 3: 2}))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    joined = following.receive()
    assert joined.type == "JOINED" and joined.number(2) == 2, joined
    assert running(child)
    os.kill(child, signal.SIGKILL)


def seal(client):
    assert client.ask("REGISTER", {1: 0, 2: 1, 3: PARAM}, request=2).code == "OK"
    return client.ask("SEAL", ZERO, request=3)


@pytest.mark.parametrize("committed", [False, True])
def test_an_update_is_torn_only_without_its_commit(start, committed):
    """The commit is the last message of a client whose connection is reset."""
    engine = start()
    client = engine.create()
    assert seal(client).type == "SEALED"
    client.send(wire.frame("STEP_END"))
    client.send(wire.frame("UPDATE_BEGIN"))
    assert client.ask("STATS_GET", request=4).type == "STATS"  # the window is open by now
    unread_reply(client)
    following = next_client(engine)
    with Stopped(engine):
        following.send(wire.frame("JOIN", 1, {1: client.id, 2: 0, 3: 1}))
        if committed:
            client.send(wire.frame("UPDATE_COMMIT"))
        client.close()
    assert following.receive().type == "JOINED"
    sealed = seal(following)
    if committed:
        assert sealed.type == "SEALED" and sealed.number(4) == 1, sealed
    else:
        assert sealed.code == "TORN", sealed
