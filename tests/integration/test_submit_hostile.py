# SPDX-License-Identifier: Apache-2.0
"""The submission ring in the hands of clients that break it: each hurts itself alone.

ctest: label=security timeout=240
"""
import contextlib
import os
import random
import signal
import struct
import threading

import pytest

import wire
from conftest import ENGINE, SLOWER, until
from test_engine import error_of, start  # noqa: F401 (a fixture)
from test_last_messages import Stopped

pytestmark = pytest.mark.skipif(not ENGINE.exists(), reason=f"{ENGINE} is not built")
BYTES = wire.Submissions.BYTES
ASK = wire.frame("STATS_GET", 5)


def pair(engine):
    good = engine.create(world=2)
    return good, engine.join(good.id, 1, 2)


def serves(client, request=9):
    return client.ask("STATS_GET", request=request).type == "STATS"


def check_closed(engine, good, bad):
    close = bad.wait_closed()
    assert close is not None and close.code == "PROTOCOL" and "ring" in close.reason, close
    until(lambda: error_of(good)[0] == "PEER_LOST")
    assert serves(good) and engine.alive()


POSITIONS = {
    "ahead by more than a ring": BYTES + 8,
    "back": -8,
    "between words": 4,
    "far ahead": 1 << 62,
    "far back": -(1 << 62),
}


@pytest.mark.parametrize("where", POSITIONS)
def test_a_position_that_cannot_be_closes_its_client_alone(start, where):
    engine = start()
    good, bad = pair(engine)
    assert serves(bad)
    bad.submit.tell((bad.submit.at + POSITIONS[where]) % (1 << 64))
    bad.submit.ring()
    check_closed(engine, good, bad)


RECORDS = {
    "no length": dict(length=0),
    "shorter than a frame": dict(length=15),
    "longer than a frame": dict(length=wire.FRAME_MAX + 1),
    "all ones": dict(length=0xFFFFFFFF),
    "past the position": dict(length=len(ASK) + 8),
    "reserved set": dict(zero=1),
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_that_cannot_be_closes_its_client_alone(start, what):
    engine = start()
    good, bad = pair(engine)
    bad.put(ASK, **RECORDS[what])
    check_closed(engine, good, bad)


def test_what_came_before_a_torn_record_counts(start):
    engine = start()
    good, bad = pair(engine)
    with Stopped(engine):
        bad.put(ASK)
        bad.put(ASK, length=3)
    assert bad.receive().type == "STATS"
    check_closed(engine, good, bad)


def test_a_packet_on_the_socket_after_joined_is_refused(start):
    engine = start()
    good, bad = pair(engine)
    before = engine.fds()
    bad.sock.send(ASK)
    check_closed(engine, good, bad)
    bad.close()
    until(lambda: engine.fds() < before)
    third = engine.join(good.id, 1, 2)
    wire.Connection(third.sock).send(ASK, [0] * 3)
    assert third.wait_closed().code == "PROTOCOL"


def test_a_ring_that_is_never_rung_for_waits_for_the_next_turn(start):
    engine = start()
    good, silent = pair(engine)
    silent.put(ASK, ring=False)
    silent.put(wire.frame("STATS_GET", 6), ring=False)
    assert serves(good)  # and so the engine had a turn
    assert [silent.receive().request for _ in range(2)] == [5, 6]


def test_a_storm_of_rings_changes_nothing(start):
    engine = start()
    good, bad = pair(engine)
    stop = threading.Event()

    def storm():
        while not stop.is_set():
            bad.submit.ring()

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        assert all(serves(good, request) for request in range(2, 200))
    finally:
        stop.set()
        thread.join()
    assert serves(bad) and error_of(good)[0] == 0


def test_who_fills_the_ring_waits_for_its_turn(start):
    """One rank asks for all memory that the job may have, in 256 pieces; the other's one request,
    put later, is handled after a turn of the first."""
    engine = start(memory_max=8 << 20)
    flood, other = pair(engine)
    with Stopped(engine):
        for request in range(2, 258):
            flood.put(wire.frame("BUFFER_NEW", request, {1: 32 << 10}))
        other.put(wire.frame("BUFFER_NEW", 7, {1: 4 << 20}))
    assert other.receive().type == "BUFFER_MADE"
    replies = []
    for _ in range(256):
        replies.append(flood.receive())
        for fd in replies[-1].fds:
            os.close(fd)
    kinds = [reply.type for reply in replies]
    assert [reply.request for reply in replies] == list(range(2, 258))
    assert kinds.count("BUFFER_MADE") == 128 and kinds[:64] == ["BUFFER_MADE"] * 64


def test_a_full_ring_is_taken_in_order(start):
    engine = start()
    good, other = pair(engine)
    groups = 0
    with Stopped(engine):
        # Unknown requests, which are answered in order; as many as replies may wait.
        while groups < 400:
            other.put(wire.frame(999, 100 + groups, b"\x0a\x64" + bytes(100)))
            groups += 1
    assert [other.receive().request for _ in range(groups)] == list(range(100, 100 + groups))
    assert serves(good)


@pytest.mark.parametrize("seed", range(3))
def test_a_ring_that_changes_while_it_is_read_hurts_nobody(start, seed):
    """A process writes all over its ring, position included, while the engine reads it."""
    engine = start()
    good = engine.create(world=2)
    chance = random.Random(seed)
    for _ in range(15):
        bad = engine.join(good.id, 1, 2)
        assert bad.joined.type == "JOINED", bad.joined
        submit = bad.submit
        for _ in range(chance.randrange(1, 40)):
            submit.put(wire.frame("STATS_GET", 5))
            at = chance.randrange(BYTES // 8)
            for place in (at, submit.at % BYTES // 8 - 1):
                submit.words[512 + place % (BYTES // 8)] = chance.choice(
                    [chance.getrandbits(64), 16, 65536, 0, chance.randrange(200)])
            if chance.random() < 0.1:
                submit.tell(chance.choice([chance.getrandbits(64), submit.at + 8]))
                submit.ring()
        bad.close()
        good.close()
        # The job forms anew, with both ranks.
        until(lambda: engine.stats()["present"] == 0)
        good = engine.join(good.id, 0, 2)
        assert good.joined.type == "JOINED", good.joined
        good.id = good.joined.fields[1][0]
    assert serves(good) and engine.alive()


def test_a_client_killed_while_it_writes_is_lost_alone(start):
    engine = start()
    good = engine.create(world=2)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            bad = engine.join(good.id, 1, 2)
            os.write(write, b"j")
            while True:
                bad.put(wire.frame("STATS_GET", 5))
                with contextlib.suppress(TimeoutError):
                    bad.receive(0)
        finally:
            os._exit(1)
    assert os.read(read, 1) == b"j"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: error_of(good)[0] == "PEER_LOST", timeout=20 * SLOWER)
    assert serves(good)


def test_an_idle_engine_is_not_woken(start):
    """Both ranks have joined and do nothing: the engine says that it sleeps, and stays so."""
    engine = start()
    good, other = pair(engine)
    assert serves(good) and serves(other)

    def sleeps():
        return struct.unpack_from("<I", good.engine_page, wire.Submissions.SLEEPS)[0]

    def switches():
        with open(f"/proc/{engine.process.pid}/status", encoding="ascii") as status:
            return [line for line in status if "ctxt_switches" in line]

    until(lambda: sleeps() % 2 == 1 and engine.stats()["sequence"] % 2 == 0)
    before = None

    def unchanged():  # its statistics page follows once, a while after the last change
        nonlocal before
        now, before = before, (sleeps(), switches())
        threading.Event().wait(1)
        return now == before == (sleeps(), switches())

    until(unchanged)
