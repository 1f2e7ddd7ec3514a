# SPDX-License-Identifier: Apache-2.0
"""gradwire-engine alone: this file is its gradwired and its clients, down to single packets.

ctest: label=security timeout=240
"""
import contextlib
import fcntl
import hashlib
import mmap
import os
import random
import resource
import signal
import socket
import stat
import struct
import subprocess
import time

import pytest

import wire
from conftest import ENGINE, SLOWER, running, until

pytestmark = pytest.mark.skipif(not ENGINE.exists(), reason=f"{ENGINE} is not built")
PAGE = 4096
STATS = struct.Struct("<IIII I IIIII QQQ 5Q 5Q 5Q 64s 496s")
PARAMS, GRADS, STAGING, BUFFER = 1, 2, 9, 11


class Engine:
    """One engine process, started as gradwired starts it."""

    def __init__(self, directory, linger_s=30.0, memory_max=0, args=(), env=None, follow=None):
        if follow is not None:
            args = [*args, "--follow", follow.hex()]
        self.entry = directory / "engines" / "new-abcdef"
        self.entry.mkdir(parents=True)
        self.log_path = directory / "log"
        lock = os.open(self.entry / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.entry / "sock"))
        listener.listen(8)
        self.stats_fd = os.memfd_create("stats", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.stats_fd, PAGE)
        fcntl.fcntl(self.stats_fd, 1033, 0x2 | 0x4)  # F_ADD_SEALS: SHRINK, GROW
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = wire.Connection(ours)
        fds = [theirs.fileno(), listener.fileno(), lock, self.stats_fd]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [str(ENGINE), "--channel-fd", str(fds[0]), "--listen-fd", str(fds[1]),
                 "--lock-fd", str(lock), "--stats-fd", str(self.stats_fd),
                 "--owner-uid", str(os.getuid()), "--linger-ns", str(int(linger_s * 1e9)),
                 "--memory-max-bytes", str(memory_max), *args],
                env=dict(os.environ, **(env or {})), pass_fds=fds, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log)
        os.close(lock)
        theirs.close()
        listener.close()
        ready = self.channel.receive()
        assert ready.type == "ENGINE_READY" and ready.number(1) == 1, ready
        assert ready.number(3) == self.process.pid and ready.fds == []
        self.tag = ready.fields[2][0]
        # What gradwired does next: the entry gets its name.
        self.entry = self.entry.rename(
            self.entry.parent / (self.tag.hex() + (f".{os.getuid()}" if follow else "")))

    def log(self):
        return self.log_path.read_text(errors="replace")

    def client(self, tag=b"", hello=None):
        """A connection handed over, before its WELCOME is read."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        packet = wire.hello(tag) if hello is None else hello
        self.channel.send(wire.frame("HANDOVER", 0, {1: packet}), [theirs.fileno()])
        theirs.close()
        return wire.Connection(ours)

    def welcomed(self, tag=b""):
        client = self.client(tag)
        welcome = client.receive()
        assert welcome.type == "WELCOME" and len(welcome.fds) == 3, welcome
        client.pages = welcome.fds
        client.engine_page = mmap.mmap(welcome.fds[1], 2 * PAGE, prot=mmap.PROT_READ)
        return client

    def create(self, rank=0, world=1, **more):
        client = self.welcomed()
        joined = client.ask("JOB_CREATE", {1: rank, 2: world, 7: "test", **more})
        assert joined.type == "JOINED", joined
        client.id = joined.fields[1][0]
        client.pages += joined.fds
        return client

    def join(self, id_, rank, world):
        client = self.welcomed(self.tag)
        client.joined = client.ask("JOIN", {1: id_, 2: rank, 3: world})
        client.pages += client.joined.fds
        return client

    def stats(self):
        page = os.pread(self.stats_fd, STATS.size, 0)
        names = ("magic version kind size sequence state world present stage generation steps "
                 "started memory").split()
        return dict(zip(names, STATS.unpack(page)))

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def alive(self):
        return self.process.poll() is None

    def wait(self, timeout=20):
        return self.process.wait(timeout * SLOWER)


@pytest.fixture
def start(runtime_dir):
    """start(...) -> Engine; it must end well, without a word of a sanitizer."""
    engines = []

    def start_one(**options):
        directory = runtime_dir / str(len(engines))
        directory.mkdir()
        engines.append(Engine(directory, **options))
        return engines[-1]

    yield start_one
    for engine in engines:
        if engine.alive():
            try:
                engine.channel.send(wire.frame("ENGINE_STOP"))
            except OSError:
                engine.process.send_signal(signal.SIGTERM)
        try:
            code = engine.wait()
        except subprocess.TimeoutExpired:
            engine.process.kill()
            pytest.fail(f"the engine did not end\n{engine.log()}")
        assert code in (0, -signal.SIGKILL), f"ended with {code}\n{engine.log()}"
        assert not engine.entry.exists() or code < 0, "the entry is left"
        print(engine.log())


def error_of(client):
    """(code, text) of the engine page."""
    code = struct.unpack_from("<i", client.engine_page, 20)[0]
    text = client.engine_page[72:72 + 496].split(b"\0")[0].decode()
    return wire.CODES.get(code, code), text


# ---- life ----------------------------------------------------------------------------------------

def test_a_job_of_one_ends_at_once_with_linger_0(start):
    engine = start(linger_s=0)
    client = engine.create()
    assert hashlib.blake2b(client.id[8:40], digest_size=8).digest() == engine.tag
    assert client.id[:5] == b"GWID\1" and len(client.id) == 64
    assert client.ask("WAIT_READY", request=2).code == "OK"
    client.send(wire.frame("LEAVE"))
    client.close()
    assert engine.wait() == 0
    assert not engine.entry.exists()


def test_the_id_is_not_in_the_log(start):
    engine = start()
    client = engine.create()
    assert client.id.hex() not in engine.log() and client.id[8:40].hex() not in engine.log()


def test_two_engines_make_different_ids(start):
    a, b = start(), start()
    assert a.tag != b.tag and a.create().id[8:40] != b.create().id[8:40]


def test_an_engine_that_follows_has_the_tag_that_it_was_given(start):
    """Whose id does not fit the tag is none of the job's."""
    secret = bytes(range(1, 33))
    tag = hashlib.blake2b(secret, digest_size=8).digest()
    engine = start(follow=tag, linger_s=0)
    assert engine.tag == tag
    # Node 127.0.0.1, port 1.
    other = b"GWID\1\4\0\1" + secret[:-1] + b"\0" + bytes([127, 0, 0, 1]) + bytes(20)
    client = engine.join(other, 1, 2)
    assert client.joined.code == "DENIED", client.joined
    client.close()
    assert engine.wait() == 0
    assert not engine.entry.exists()


@pytest.mark.parametrize("args", [
    ["--follow", "0011"], ["--follow", "00112233445566FF"], ["--node-name", ""],
    ["--node-name", "n" * 64], ["--star-ports", "9-8"], ["--star-beat-ns", "0"],
    ["--star-lost-ns", "-1"], ["--star-interface", ""]])
def test_what_it_cannot_follow_is_a_usage_error(args):
    done = subprocess.run([str(ENGINE), *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and args[0] in done.stderr, done


def test_without_a_client_it_ends_after_linger(start):
    engine = start(linger_s=0.3)
    engine.create().close()
    assert engine.wait() == 0


def test_the_creator_chooses_how_long_it_lingers(start):
    engine = start(linger_s=600)
    client = engine.welcomed()
    # sint64 -1: no linger at all
    assert client.ask("JOB_CREATE", {1: 0, 2: 1, 5: wire.zigzag(-1)}).type == "JOINED"
    client.close()
    assert engine.wait() == 0


def test_a_client_that_never_creates_leaves_nothing(start):
    engine = start(linger_s=600)
    engine.welcomed().close()
    assert engine.wait() == 0


def test_it_outlives_gradwired_and_is_adopted(start):
    engine = start()
    client = engine.create(world=2)
    engine.channel.close()
    assert client.ask("STATS_GET", request=3).type == "STATS"
    adopter = wire.Connection.to(engine.entry / "sock")
    ready = adopter.receive()
    assert ready.type == "ENGINE_READY" and ready.fields[2][0] == engine.tag
    assert len(ready.fds) == 1 and os.fstat(ready.fds[0]).st_ino == os.fstat(engine.stats_fd).st_ino
    engine.channel = adopter
    other = engine.join(client.id, 1, 2)
    assert other.joined.type == "JOINED"
    assert client.ask("WAIT_READY", request=4).code == "OK"


def test_a_newer_channel_takes_the_place_of_the_old(start):
    engine = start()
    client = engine.create()
    newer = wire.Connection.to(engine.entry / "sock")
    assert newer.receive().type == "ENGINE_READY"
    assert engine.channel.wait_closed() is None
    engine.channel = newer
    assert client.ask("STATS_GET", request=3).type == "STATS"


@pytest.mark.parametrize("how", ["stop", "term"])
def test_told_to_stop_it_tells_its_clients(start, how):
    engine = start()
    client = engine.create()
    if how == "stop":
        engine.channel.send(wire.frame("ENGINE_STOP"))
    else:
        engine.process.send_signal(signal.SIGTERM)
    close = client.wait_closed()
    assert close.code == "ENGINE_LOST" and close.reason
    code, text = error_of(client)
    assert code == "ENGINE_LOST" and text == close.reason
    assert engine.wait() == 0


def test_clients_on_the_way_when_the_job_ends_are_told(start):
    engine = start()
    engine.create()
    os.kill(engine.process.pid, signal.SIGSTOP)
    engine.channel.send(wire.frame("ENGINE_STOP"))
    late = [engine.client(engine.tag) for _ in range(3)]
    os.kill(engine.process.pid, signal.SIGCONT)
    for client in late:
        close = client.wait_closed()
        assert close and close.code == "ENGINE_LOST" and close.reason
    assert engine.wait() == 0


def test_nonsense_on_the_channel_closes_only_the_channel(start):
    engine = start()
    client = engine.create()
    engine.channel.send(b"nonsense")
    assert engine.channel.wait_closed() is None
    assert client.ask("STATS_GET", request=3).type == "STATS"
    engine.channel = wire.Connection.to(engine.entry / "sock")
    assert engine.channel.receive().type == "ENGINE_READY"


def test_the_statistics_page_follows(start):
    engine = start()
    client = engine.create(world=2)
    until(lambda: engine.stats()["present"] == 1)
    assert engine.stats()["world"] == 2 and engine.stats()["state"] == 1
    before = engine.stats()["memory"]
    assert client.ask("BUFFER_NEW", {1: 1 << 20}, request=2).type == "BUFFER_MADE"
    until(lambda: engine.stats()["memory"] == before + (1 << 20))
    assert engine.stats()["sequence"] % 2 == 0


def test_options_that_make_no_sense_are_usage_errors():
    for args in ([], ["--channel-fd", "77777"], ["--linger-ns", "soon"], ["--bogus"], ["extra"]):
        result = subprocess.run([str(ENGINE), *args], capture_output=True, text=True, timeout=20)
        assert result.returncode == 64 and result.stderr, (args, result)
    assert "gradwire-engine" in subprocess.run([str(ENGINE), "--version"], capture_output=True,
                                               text=True, timeout=20).stdout
    assert "--listen-fd" in subprocess.run([str(ENGINE), "--help"], capture_output=True, text=True,
                                           timeout=20).stdout


# ---- who may take part ---------------------------------------------------------------------------

def test_a_wrong_secret_is_refused(start):
    engine = start()
    creator = engine.create(world=2)
    good = creator.id
    for bad in (good[:39] + bytes([good[39] ^ 1]) + good[40:], good[:-1], b"x", bytes(64),
                good + b"x"):
        client = engine.join(bad, 1, 2)
        assert client.joined.type == "DONE" and client.joined.code == "DENIED", bad
        assert client.wait_closed().code == "DENIED"
    assert engine.join(good, 1, 2).joined.type == "JOINED"


def memory_of(fds):
    return {os.fstat(fd).st_ino for fd in fds if stat.S_ISREG(os.fstat(fd).st_mode)}


def test_who_has_not_shown_the_secret_gets_no_page_of_others(start):
    """What all ranks sleep on could be woken, or its sleepers moved, by who can only read it."""
    engine = start()
    creator = engine.create(world=2)
    rank = engine.join(creator.id, 1, 2)
    page = memory_of(rank.joined.fds)
    assert len(page) == 1
    assert memory_of(creator.pages) & memory_of(rank.pages) == page
    strangers = [engine.welcomed(engine.tag), engine.welcomed(), engine.join(bytes(64), 0, 2)]
    assert strangers[2].joined.code == "DENIED"
    for stranger in strangers:
        assert len(stranger.pages) == 3 and len(memory_of(stranger.pages)) == 2
        assert not memory_of(stranger.pages) & memory_of(creator.pages + rank.pages)
    rank.close()
    until(lambda: error_of(creator)[0] == "PEER_LOST")
    again = engine.join(creator.id, 1, 2)
    assert memory_of(again.joined.fds) == page


def test_join_before_the_job_exists(start):
    client = start().welcomed()
    reply = client.ask("JOIN", {1: bytes(64), 2: 0, 3: 1})
    assert reply.type == "DONE" and reply.code == "NOT_FOUND"


def test_a_second_creation_is_refused(start):
    engine = start()
    first = engine.create()
    reply = engine.welcomed().ask("JOB_CREATE", {1: 0, 2: 1})
    assert reply.code == "STATE"
    assert first.ask("STATS_GET", request=3).type == "STATS"


@pytest.mark.parametrize("rank, world", [(0, 0), (1, 1), (0, 1025), (7, 4)])
def test_impossible_ranks_cannot_create(start, rank, world):
    engine = start()
    client = engine.welcomed()
    client.send(wire.frame("JOB_CREATE", 1, {1: rank, 2: world}))
    with contextlib.suppress(wire.Closed):
        reply = client.receive()
        assert (reply.type, reply.code) in (("DONE", "INVALID"), ("CLOSE", "PROTOCOL")), reply


def test_a_job_on_gpus_has_at_most_64_ranks(start):
    client = start().welcomed()
    reply = client.ask("JOB_CREATE", {1: 0, 2: 65, 8: 1, 9: b"G" * 16})
    assert reply.code == "LIMIT" and "a job of 65 ranks on GPUs" in reply.reason
    assert client.ask("JOB_CREATE", {1: 0, 2: 65}, request=2).type == "JOINED"


@pytest.mark.parametrize("room", [1, 2, 3, 4])
def test_a_client_for_whom_no_descriptor_is_left_is_told(start, room):
    engine = start()
    keep = engine.create()
    used = {int(fd) for fd in os.listdir(f"/proc/{engine.process.pid}/fd")}
    limit = [n for n in range(len(used) + room) if n not in used][room - 1] + 1
    hard = resource.prlimit(engine.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(engine.process.pid, resource.RLIMIT_NOFILE, (limit, hard))
    close = engine.client(engine.tag).wait_closed()
    assert close and close.code == "LIMIT" and "descriptors" in close.reason, close
    assert keep.ask("STATS_GET", request=3).type == "STATS"
    resource.prlimit(engine.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    engine.welcomed(engine.tag)


def test_another_version_or_tag_is_told(start):
    engine = start()
    keep = engine.create()
    for packet, code in ((wire.hello(version=(2, 9)), "VERSION"),
                         (wire.hello(tag=b"12345678"), "NOT_FOUND"),
                         (b"x" * 40, "PROTOCOL"), (wire.frame("STATS_GET", 1), "PROTOCOL")):
        close = engine.client(hello=packet).wait_closed()
        assert close.code == code, (packet, close)
    assert keep.ask("STATS_GET", request=3).type == "STATS"


def test_another_user_is_refused(start):
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    engine = start()
    keep = engine.create()
    # A socket pair's credentials are those of the process that made it.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            wire.Connection(ours).send(b"x", [a.fileno(), b.fileno()])
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    _, control, _, _ = theirs.recvmsg(16, socket.CMSG_SPACE(8))
    client, other = struct.unpack("ii", control[0][2][:8])
    engine.channel.send(wire.frame("HANDOVER", 0, {1: wire.hello()}), [other])
    os.close(other)
    close = wire.Connection(socket.socket(fileno=client)).wait_closed()
    assert close.code == "DENIED" and "65534" in close.reason
    assert keep.ask("STATS_GET", request=3).type == "STATS"


# ---- hostile clients -----------------------------------------------------------------------------

def test_pages_cannot_be_written_or_resized(start):
    client = start().create()
    page, engine_page, bell, job_page = client.pages
    mmap.mmap(page, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()
    for fd in (page, engine_page, job_page):
        with pytest.raises(OSError):
            os.ftruncate(fd, 0)
    for fd in (engine_page, job_page):
        with pytest.raises(PermissionError):
            mmap.mmap(fd, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        # Another mapping through /proc is as little writable.
        with pytest.raises(PermissionError):
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            mmap.mmap(again, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    os.write(bell, struct.pack("Q", 1))


HOSTILE = {
    "short": b"abc",
    "wrong magic": wire.frame("STATS_GET", 5, magic=1),
    "wrong length": wire.frame("STATS_GET", 5, length=7),
    "reserved set": wire.frame("STATS_GET", 5, zero=1),
    "garbage body": wire.frame("REGISTER", 5, b"\xff" * 40),
    "too long": b"\0" * 70000,
    "supervisor's": wire.frame("HANDOVER", 0, {1: b"x"}),
    "engine's own": wire.frame("WELCOME", 0, {1: 1}),
    "one-way as request": wire.frame("STEP_END", 5),
    "request as one-way": wire.frame("SEAL", 0, {1: 1}),
    "buffer without number": wire.frame("BUFFER_NEW", 0, {1: 4096}),
    "again hello": wire.hello(),
    "again create": wire.frame("JOB_CREATE", 5, {1: 0, 2: 2}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_broken_packet_closes_its_client_alone(start, what):
    engine = start()
    good = engine.create(world=2)
    bad = engine.join(good.id, 1, 2)
    bad.send(HOSTILE[what])
    close = bad.wait_closed()
    assert close is not None and close.code == "PROTOCOL" and close.reason, close
    # The job has lost a rank, and says so; the other client is served.
    until(lambda: error_of(good)[0] == "PEER_LOST")
    assert good.ask("STATS_GET", request=9).type == "STATS"
    assert engine.alive()


def test_unknown_requests_are_answered(start):
    client = start().create()
    reply = client.ask(999, request=77)
    assert reply.type == "DONE" and reply.code == "UNIMPLEMENTED" and reply.request == 77
    assert client.ask("STATS_GET", request=78).type == "STATS"


def test_descriptors_nobody_asked_for_close_the_client_and_are_closed(start):
    engine = start()
    keep = engine.create(world=2)
    before = engine.fds()
    for count in (1, 8, 20):
        client = engine.welcomed()
        client.send(wire.frame("STATS_GET", 5), [0] * count)
        assert client.wait_closed().code == "PROTOCOL"
        client.close()
    until(lambda: engine.fds() == before)
    assert keep.ask("STATS_GET", request=9).type == "STATS"


def test_a_client_that_does_not_read_its_replies_is_closed(start):
    engine = start()
    keep = engine.create(world=2)
    before = engine.fds()
    client = engine.join(keep.id, 1, 2)
    client.sock.setblocking(False)
    deadline = time.monotonic() + 60 * SLOWER
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        request = 2
        while time.monotonic() < deadline:
            try:
                client.send(wire.frame("ARENA_GET", request, {1: STAGING}))
                request += 1
            except BlockingIOError:
                time.sleep(0.001)
    client.close()
    until(lambda: engine.fds() <= before + 2)
    assert keep.ask("STATS_GET", request=9).type == "STATS"


def test_seeded_random_packets_hurt_nobody(start):
    engine = start()
    good = engine.create(world=2)
    chance = random.Random(20240607)
    types = list(wire.TYPES.values())
    for turn in range(150):
        client = engine.welcomed()
        if turn % 3 == 0:
            client.ask("JOIN", {1: good.id, 2: 1, 3: 2})
        for _ in range(8):
            content = bytes(chance.randrange(256) for _ in range(chance.randrange(60)))
            if chance.random() < 0.5:
                content = wire.body({chance.randrange(1, 14): chance.choice(
                    [chance.randrange(1 << 40), "x" * chance.randrange(300), 1.5])
                    for _ in range(chance.randrange(6))})
            with contextlib.suppress(OSError):
                client.send(wire.frame(chance.choice(types), chance.randrange(3), content))
        client.close()
    assert good.ask("STATS_GET", request=9).type == "STATS"
    assert engine.alive()


@pytest.fixture
def many_descriptors():
    """Room for 200 clients of this process, each with a socket and three descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"at most {hard} descriptors are allowed here, 2048 are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_clients_are_refused(many_descriptors, start):
    engine = start()
    keep = engine.create()
    clients = [engine.client() for _ in range(200)]
    kinds = [client.receive().type for client in clients]
    assert kinds.count("CLOSE") == 200 - (2 * 64 + 32 - 1)
    for client in clients:
        client.close()
    assert keep.ask("STATS_GET", request=9).type == "STATS"


# ---- memory --------------------------------------------------------------------------------------

def test_too_many_clients_are_refused_before_there_is_a_job(many_descriptors, start):
    engine = start()
    clients = [engine.client() for _ in range(200)]
    welcomes = [client.receive() for client in clients]
    assert [welcome.type for welcome in welcomes].count("CLOSE") == 200 - 160
    first = clients[[welcome.type for welcome in welcomes].index("WELCOME")]
    assert first.ask("JOB_CREATE", {1: 0, 2: 1, 7: "test"}).type == "JOINED"
    for client in clients:
        client.close()


def test_memory_beyond_the_limit_is_told_and_the_job_goes_on(start):
    engine = start(memory_max=8 << 20)
    client = engine.create()
    made = client.ask("BUFFER_NEW", {1: 6 << 20}, request=2)
    assert made.type == "BUFFER_MADE" and os.fstat(made.fds[0]).st_size == 6 << 20
    reply = client.ask("BUFFER_NEW", {1: 4 << 20}, request=3)
    assert reply.code == "LIMIT" and str(8 << 20) in reply.reason
    for size in (1 << 46, (1 << 64) - 1, 0):
        assert client.ask("BUFFER_NEW", {1: size}, request=4).code in ("LIMIT", "INVALID")
    assert client.ask("BUFFER_FREE", {1: made.number(1)}, request=5).code == "OK"
    assert client.ask("BUFFER_NEW", {1: 4 << 20}, request=6).type == "BUFFER_MADE"


def test_memory_that_does_not_exist_is_told(start):
    client = start().create()
    for size in (1 << 46, 1 << 62, (1 << 64) - 1):
        reply = client.ask("BUFFER_NEW", {1: size}, request=4)
        assert reply.code == "NOMEM" and "memory" in reply.reason
    for kind, index in ((PARAMS, 0), (GRADS, 0), (BUFFER, 1), (STAGING, 1), (STAGING, 1 << 31)):
        assert client.ask("ARENA_GET", {1: kind, 2: index}, request=5).code == "NOT_FOUND"
    assert client.ask("ARRAY_GET", {1: "m"}, request=6).code == "STATE"
    staging = client.ask("ARENA_GET", {1: STAGING}, request=7)
    assert staging.type == "ARENA" and staging.number(1) == 512 << 10 and len(staging.fds) == 1


def test_buffers_of_a_killed_client_are_freed(start):
    engine = start()
    keep = engine.create(world=2)
    until(lambda: engine.stats()["present"] == 1)
    before, fds = engine.stats()["memory"], engine.fds()
    for _ in range(20):
        # Each round the job re-forms with two new clients.
        client = engine.join(keep.id, 1, 2)
        assert client.joined.type == "JOINED", client.joined
        for request in range(2, 6):
            made = client.ask("BUFFER_NEW", {1: 1 << 20}, request=request)
            assert made.type == "BUFFER_MADE"
            os.close(made.fds[0])
        client.close()
        for fd in client.pages:
            os.close(fd)
        until(lambda: error_of(keep)[0] == "PEER_LOST")
        keep.close()
        keep = engine.join(keep.id, 0, 2)
        keep.id = keep.joined.fields[1][0]
    until(lambda: engine.stats()["memory"] == before)
    until(lambda: engine.fds() == fds)


def test_a_dead_process_is_noticed_though_a_child_keeps_its_socket(start):
    engine = start()
    good = engine.create(world=2)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client = engine.join(good.id, 1, 2)  # made here: the pair's process is this one
            child = os.fork()
            if child == 0:
                time.sleep(60)  # holds the socket
                os._exit(0)
            os.write(write, struct.pack("i", child))
            time.sleep(60)
        finally:
            os._exit(1)
    child = struct.unpack("i", os.read(read, 4))[0]
    until(lambda: engine.stats()["present"] == 2)
    os.kill(pid, signal.SIGKILL)
    begin = time.monotonic()
    until(lambda: error_of(good)[0] == "PEER_LOST", timeout=10)
    print(f"noticed after {time.monotonic() - begin:.3f} s")
    assert running(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_leaving_on_purpose_is_no_loss(start):
    engine = start()
    good = engine.create(world=2)
    other = engine.join(good.id, 1, 2)
    other.send(wire.frame("LEAVE"))
    other.close()
    until(lambda: engine.stats()["present"] == 1)
    assert error_of(good)[0] == 0
    assert good.ask("STATS_GET", request=3).type == "STATS"
