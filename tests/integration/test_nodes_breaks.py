# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between the nodes of a job, at the worst moment: clients that go while what
they said is on its way through the log, a seal that one node alone cannot make, and a node that
knows the job's secret and says what it likes.

ctest: label=nodes timeout=300
"""
import ctypes as C
import os
import signal
import struct
import threading
import time

import pytest

import gw
import wire
from conftest import SLOWER, running, until
from star_node import StarNode

S = gw.S
pytestmark = pytest.mark.host_only("jobs on GPUs have tests of their own across nodes")


class Place:
    """Where a job's ranks are: the node of each; one job after the other."""

    def __init__(self, daemons, places, directory):
        self.sockets = [str(daemon.socket) for daemon in daemons]
        self.places, self.directory, self.count = places, str(directory), 0

    def next(self):
        """For another job."""
        self.count += 1
        return self

    @property
    def id_path(self):
        return f"{self.directory}/{self.count}.id"

    def attach(self, rank, **options):
        options.setdefault("nodes", len(set(self.places)))
        job = gw.Job(rank, len(self.places), id_path=self.id_path,
                     socket=self.sockets[self.places[rank]], linger_ns=-1, **options)
        job.wait_ready(60 * S)
        return job

    def id(self):
        """As bytes, once rank 0 has saved it."""
        job_id = gw.JobId()
        gw.call("gw_job_id_load", self.id_path.encode(), gw.C.c_int64(60 * S), gw.C.byref(job_id))
        return bytes(job_id.bytes[:64])


def together(place, fn, *args, within=60):
    """Ranks as threads; [("ok", value) or ("error", (name, text))]."""
    results = [("hung", None)] * len(place.places)

    def one(rank):
        try:
            results[rank] = ("ok", fn(rank, place, *args))
        except gw.Error as e:
            results[rank] = ("error", (e.name, e.text))

    threads = [threading.Thread(target=one, args=(rank,), daemon=True)
               for rank in range(len(place.places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within * SLOWER)
    return results


# ---- clients that go -----------------------------------------------------------------------------


def dies_with_a_token(place, engine):
    """Declares a gradient that is not ready, and much else; dead before the engine, which it stops,
    has read any of it."""
    job = place.attach(1)
    p = job.param("p", 4096, "u")
    job.seal(stage=1, bucket_bytes=1 << 16)
    gradient, _ = job.acquire(p)
    gw.fill(gradient, 4096, 7.0)
    token = gw.Token(timeline=job.timeline(), value=1)
    job.barrier()  # rank 0 has declared
    pid = engine.recv()
    os.kill(pid, signal.SIGSTOP)
    job.ready(p, tokens=[token])
    for _ in range(1000):
        job.fetch(0)
        job.release(0)
    os.kill(os.getpid(), signal.SIGKILL)


def sums_with_it(place):
    job = place.attach(0)
    p = job.param("p", 4096, "u")
    job.seal(stage=1, bucket_bytes=1 << 16)
    job.acquire(p)
    (span,) = job.spans()
    job.ready(p)
    job.barrier()
    with pytest.raises(gw.Error) as lost:
        job.wait(job.step_end())
    seen = set(span.grads[:span.valid_numel])
    job.close()
    return lost.value.name, seen


def token_rank(rank, place, engine):
    return sums_with_it(place) if rank == 0 else dies_with_a_token(place, engine)


def test_a_token_of_a_rank_that_died_is_not_reached(make_nodes, tmp_path):
    """What a dead rank said comes through the log when its client is long gone."""
    daemons = make_nodes(2)
    place = Place(daemons, (0, 1), tmp_path)
    for _ in range(2):
        context = gw.multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        ranks = gw.Ranks(2, token_rank, place.next(), theirs)
        (pid,) = until(daemons[1].engines, 60, "the second node's engine")
        ours.send(pid)
        until(lambda: not running(ranks.pid(1)), 60, "the rank's death")
        os.kill(pid, signal.SIGCONT)
        (kind, value), died = ranks.join(60 * SLOWER)
        assert kind == "ok" and died == ("died", -signal.SIGKILL), (value, died)
        assert value == ("GW_E_PEER_LOST", {0.0}), "a sum of a gradient that was not ready"
        for daemon in daemons:
            daemon.assert_idle()


# ---- memory --------------------------------------------------------------------------------------


def sealing_rank(rank, place, daemons, all_here):
    """What it hears of a seal too large for node 1; and node 0 holds nothing of it then."""
    job = place.attach(rank)
    p = job.param("p", 4 << 20, "u")
    with pytest.raises(gw.Error) as refused:
        job.seal(stage=0, bucket_bytes=1 << 20)
    all_here.wait()
    if rank == 0:  # it is told before it is done
        until(lambda: daemons[0].shm_bytes() < 16 << 20, 20,
              "the end of what the other node could make")
    all_here.wait()
    job.close()
    return refused.value.name, refused.value.text


def test_a_seal_that_one_node_cannot_make_leaves_nothing_on_the_others(make_nodes, tmp_path):
    """32 MiB for each rank, and a node may have 50 million bytes; node 1 has two ranks."""
    daemons = make_nodes(2, "[job]\nmemory_max_bytes = 50000000\n")
    all_here = threading.Barrier(3, timeout=60 * SLOWER)
    results = together(Place(daemons, (0, 1, 1), tmp_path), sealing_rank, daemons, all_here)
    assert [kind for kind, _ in results] == ["ok"] * 3, results
    for _, (name, text) in results:
        assert name == "GW_E_LIMIT" and "at most 50000000" in text, (name, text)


NUMEL = 1 << 20  # 4 MiB


def moved(job, call, param, value=0.0):
    """gw_param_write_sync of that value throughout, or gw_param_read_sync; as bytes."""
    values = (gw.C.c_float * NUMEL).from_buffer(bytearray(struct.pack("<f", value) * NUMEL))
    gw.call(call, job.handle, gw.C.c_uint32(param), gw.C.c_uint64(0), gw.C.c_uint64(NUMEL), values,
            gw.C.c_int64(60 * S))
    return bytes(values)


def writing_rank(rank, place, at_once):
    """Whether it reads what the next rank has written, while all do so."""
    job = place.attach(rank)
    world = len(place.places)
    params = [job.param(f"p{r}", NUMEL, "u") for r in range(world)]
    job.seal(stage=3, bucket_bytes=1 << 20, timeout=60 * S)
    at_once.wait()
    moved(job, "gw_param_write_sync", params[rank], rank + 1.0)
    job.barrier(60 * S)
    at_once.wait()
    following = (rank + 1) % world
    seen = moved(job, "gw_param_read_sync", params[following])
    job.barrier(60 * S)
    job.close()
    return seen == struct.pack("<f", following + 1.0) * NUMEL


def test_all_ranks_write_and_read_parameters_at_once(make_nodes, tmp_path):
    """24 ranks of 4 MiB: more than may wait for the other node, so not all at a time."""
    places = (0,) * 24 + (1,)
    at_once = threading.Barrier(len(places), timeout=60 * SLOWER)
    results = together(Place(make_nodes(2), places, tmp_path), writing_rank, at_once)
    assert set(results) == {("ok", True)}, results


# ---- more than can be taken ----------------------------------------------------------------------


def talking_rank(rank, place, at_once, engine):
    """Rank 1 says more than can wait anywhere while the third node's engine stands still. How much
    that was."""
    job = place.attach(rank, op_timeout_ns=600 * S)
    job.param("p", 64, "u")
    job.seal(stage=0, bucket_bytes=4096)
    job.barrier()
    said = None
    at_once.wait()
    if rank == 1:
        (pid,) = engine()
        os.kill(pid, signal.SIGSTOP)
        said = talk_until_full(job)
        os.kill(pid, signal.SIGCONT)
        until(lambda: takes_more(job), 120, "room")
    at_once.wait()
    job.barrier(120 * S)  # behind all that was said
    generation = job.generation()
    job.close()
    return said, generation


def talk_until_full(job):
    """Until nothing has been taken for a second."""
    said, since = 0, time.monotonic()
    while time.monotonic() < since + SLOWER:
        if takes_more(job):
            said, since = said + 1, time.monotonic()
        else:
            time.sleep(0.01)
    return said


def takes_more(job):
    try:
        job.fetch(0)
        return True
    except gw.Error as e:
        assert e.name == "GW_E_AGAIN", e
        return False


def test_a_node_that_takes_nothing_slows_who_talks_and_nothing_is_lost(make_nodes, tmp_path):
    """Many times what may wait between two engines (64 MiB) could be said meanwhile. Root, in the
    middle, reads its other node no more, and that one its client."""
    daemons = make_nodes(3, "star_lost = 300s\nstar_beat = 100ms\n")
    at_once = threading.Barrier(3, timeout=120 * SLOWER)
    place = Place(daemons, (0, 1, 2), tmp_path)
    results = together(place, talking_rank, at_once, daemons[2].engines, within=150)
    assert [kind for kind, _ in results] == ["ok"] * 3, (results, daemons[0].log())
    print(f"{results[1][1][0]} fetches were taken before the next had to wait")
    assert {generation for _, (_, generation) in results} == {1}
    for daemon in daemons:
        daemon.assert_idle()


# ---- a node that lies ----------------------------------------------------------------------------

HUGE = (1 << 64) - 1
STAGING = 512 << 10  # bytes of a rank's request


def take_part(node):
    node.say("STAR_NODE", {1: 0, 2: "liar"})


def join(node, rank=1, world=2):
    take_part(node)
    node.event("JOIN", f4=1, f5=rank, f6=1, f7=world)


def speak_before_taking_part(node):
    node.event("JOIN", f4=1, f5=1, f6=1, f7=2)


def join_odd_ranks(node):
    take_part(node)
    for rank, world in ((0, 2), (2, 2), (63, 2), (63, 64), (1, 0), (1, 2)):
        node.event("JOIN", f4=HUGE, f5=rank, f6=0xFFFFFFFF, f7=world)


def every_event_of_every_rank(node):
    take_part(node)
    for kind in (*range(12), *range(127, 132), 255):
        for rank in (0, 1, 2, 63):
            node.event(kind, f5=rank, f7=2, f8=1 << 31, f10=HUGE, f11=HUGE, f14="x" * 500)


def much_built(node):
    join(node)
    for _ in range(100):
        node.say("STAR_BUILT", {1: 0})
    node.say("STAR_BUILT", {1: wire.zigzag(-3), 2: "no memory"})


def ops_that_never_were(node):
    join(node)
    node.say("STAR_DONE", {1: [0, 1, 1 << 19, (1 << 20) - 1, 1 << 20, 1 << 40, HUGE]})
    for op in range(0, 1 << 20, 1 << 12):
        node.say("STAR_DONE", {1: [op]})


def heard_what_never_was(node):
    join(node)
    for at in (0, 1 << 40, HUGE, 1):
        node.event("HEARD", f11=at)


def values_out_of_bounds(node):
    join(node)
    for read in (0, 1):
        for offset in (0, STAGING - 4, STAGING - 3, STAGING):
            for rank in (0, 1, 5, 63):
                node.say("STAR_DATA", {1: rank, 2: 7, 3: read, 4: offset, 5: b"four"})
    for offset in range(0, STAGING, 49152):
        node.say("STAR_DATA", {1: 1, 2: 8, 3: 0, 4: offset, 5: bytes(4096)})


def come_twice(node):
    join(node)
    for number in (0, 5, 63):
        node.say("STAR_NODE", {1: number, 2: "again", 3: b"q" * 500})


def requests_without_packets(node):
    join(node)
    for request in (0, 77):
        node.event("REQUEST", f5=1, f6=request)


def sends(kind, request=0):
    def says(node):
        join(node)
        node.event("REQUEST", f5=1, packet=wire.frame(kind, request, {}))
    says.__name__ = f"send_{kind}"
    return says


def a_packet_for_a_join(node):
    join(node)
    node.event("JOIN", f5=1, packet=wire.frame("LEAVE"))


def half_an_event(node):
    join(node)
    node.say("STAR_EVENT", {1: 3, 5: 1, 15: 1})


def an_event_in_an_event(node):
    half_an_event(node)
    half_an_event(node)


def garbage_for_a_packet(node):
    half_an_event(node)
    node.say_bytes(bytes(40))


def an_address_that_is_none(node):
    """Of any length; of the right beginning, with numbers of its own."""
    node.say("STAR_NODE", {1: 0, 2: "liar", 3: os.urandom(300)})


def another_ucx(node):
    head = struct.pack("<QIHHIIQ", 7, 0x58554757, 99, 7, 100, 100, 0)
    node.say("STAR_NODE", {1: 0, 2: "liar", 3: head + bytes(200)})


def a_damaged_address(node):
    """The right UCX: that which the honest node has."""
    major, minor, release = C.c_uint(), C.c_uint(), C.c_uint()
    C.CDLL("libucp.so.0").ucp_get_version(C.byref(major), C.byref(minor), C.byref(release))
    head = struct.pack("<QIHHIIQ", 7, 0x58554757, major.value, minor.value, 100, 100, 0)
    node.say("STAR_NODE", {1: 0, 2: "liar", 3: head + bytes(200)})


LIES = [an_address_that_is_none, another_ucx, a_damaged_address, speak_before_taking_part,
        join_odd_ranks, every_event_of_every_rank, much_built, ops_that_never_were,
        heard_what_never_was, values_out_of_bounds, come_twice, requests_without_packets,
        a_packet_for_a_join, half_an_event, an_event_in_an_event, garbage_for_a_packet,
        sends("LEAVE"), sends("BUFFER_NEW", 3), sends("JOINED"), sends("STEP_END"),
        sends("STAR_DATA"), sends("CLOSE")]


REFUSED = {another_ucx: ["node x: it has UCX 99.7, and this node "],
           an_address_that_is_none: ["node x: what it gave as its address for UCX is none"],
           a_damaged_address: ["node x: what it gave as its address for UCX is none"]}


def honest_rank(rank, place, lied):
    """How its job ends, which it awaits until all lies are told. Not by the engine's end."""
    job = gw.Job(rank, 2, id_path=place.id_path, socket=place.sockets[0], linger_ns=-1, nodes=3)
    try:
        until(lambda: lied.is_set() or is_ready(job), 60, "the end of the lies")
        job.wait_ready(0)
        job.barrier(2 * S)
        return "it went on"
    except gw.Error as e:
        return e.name
    finally:
        job.close()


def is_ready(job):
    try:
        job.wait_ready(0)
        return True
    except gw.Error as e:
        if e.name == "GW_E_TIMEOUT":
            return False
        raise


def test_a_node_that_lies_ends_its_job_at_most(make_nodes, tmp_path):
    (daemon,) = make_nodes(1)
    place = Place([daemon], (0,), tmp_path)
    for lie in LIES:
        results, lied = [], threading.Event()
        honest = threading.Thread(
            target=lambda: results.append(honest_rank(0, place.next(), lied)))
        honest.start()
        until(lambda: os.path.exists(place.id_path), what="the job's id")
        (pid,) = until(daemon.engines, what="the engine")
        node = StarNode(place.id())
        try:
            lie(node)
            while True:
                node.hear(0.2)
        except (TimeoutError, wire.Closed, ConnectionError):
            pass
        lived = running(pid)
        node.close()
        lied.set()
        honest.join(60 * SLOWER)
        for words in REFUSED.get(lie, []):
            assert words in daemon.log(), (lie.__name__, daemon.log())
        assert results and results[0] in ("it went on", "GW_E_PEER_LOST", "GW_E_TIMEOUT",
                                          "GW_E_STATE"), (lie.__name__, results, daemon.log())
        assert lived, (lie.__name__, daemon.log())
        daemon.assert_idle()


def test_a_number_that_the_log_does_not_know_is_given_again(make_nodes, tmp_path):
    (daemon,) = make_nodes(1)
    place = Place([daemon], (0,), tmp_path)
    job = gw.Job(0, 2, id_path=place.id_path, socket=place.sockets[0], linger_ns=0, nodes=2)

    def next_node():
        try:
            return StarNode(place.id())
        except AssertionError:  # the last one is counted yet
            return None

    for takes_part, number in ((False, 1), (False, 1), (True, 1), (True, 2), (False, 3)):
        node = until(next_node, what="room for a node")
        assert node.number == number
        if takes_part:
            take_part(node)
            until(lambda: node.hear().type == "STAR_NODE" or None, what="it is in the log")
        node.end()
    job.close()
    daemon.assert_idle()
