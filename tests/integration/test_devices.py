# SPDX-License-Identifier: Apache-2.0
"""What lies between gradwired, an engine and a plug-in of GPUs: offers, leases, places, faults.

The plug-in is tests/fakeplugin: the host under the name cuda, which ends an engine that breaks the
order of its tables. Clients are this file, down to single packets.
ctest: label=e2e timeout=300
"""
import contextlib
import mmap
import os
import re
import select
import signal
import stat
import struct
import time

import pytest

import wire
from conftest import BUILD, ENGINE, GRADWIRED, SLOWER, Daemon, running, serving, until
from test_engine import Engine, error_of
from test_supervisor_start import run

PLUGINS = BUILD / "tests/bin/fakeplugin"
pytestmark = pytest.mark.skipif(not (PLUGINS / "gradwire-cuda.so").exists() or not ENGINE.exists(),
                                reason="the engine or tests/fakeplugin is not built")
PAGE = 4096
END = (1 << 63) - 1  # GW_TIMELINE_END
HOST, CUDA = 0, 1
GRADS, STAGING, VERDICT = 2, 9, 12
BARRIER = 5


def gpu(number):
    return bytes(15) + bytes([number])


def gpu_name(number):
    return f"GPU-00000000-0000-0000-0000-{number:012x}"


class Client(wire.Connection):
    """A rank without the library."""

    @classmethod
    def welcomed(cls, daemon, tag=b""):
        client = cls.to(daemon.socket)
        client.send(wire.hello(tag))
        client.welcome = client.receive()
        assert client.welcome.type == "WELCOME", client.welcome
        client.engine = client.welcome.number(3)
        client.take_pages(client.welcome)
        return client

    def take_pages(self, welcome):
        self.engine_page = mmap.mmap(welcome.fds[1], 2 * PAGE, prot=mmap.PROT_READ)
        self.doorbell = welcome.fds[2]

    def create(self, world=1, device=CUDA, place=0, linger_s=0):
        where = {8: device, 9: gpu(place)} if device == CUDA else {}
        self.joined = self.ask("JOB_CREATE", {1: 0, 2: world, 5: wire.zigzag(linger_s * 10 ** 9),
                                              7: "test", **where})
        return self.take_joined()

    def join(self, id_, rank, world, device=CUDA, place=0):
        where = {4: device, 5: gpu(place)} if device == CUDA else {}
        self.joined = self.ask("JOIN", {1: id_, 2: rank, 3: world, **where})
        return self.take_joined()

    def take_joined(self):
        if self.joined.type == "JOINED":
            self.id = self.joined.fields[1][0]
            if self.joined.number(3) == CUDA:
                self.op_waits = Waits(self.joined.fds[0])
        return self

    def value(self, slot):
        """Of an op's slot in the engine page."""
        return struct.unpack_from("<Q", self.engine_page, 64 * (slot + 1) + 512)[0]

    def ring(self):
        os.write(self.doorbell, struct.pack("<Q", 1))


class Waits:
    """A wait page."""

    def __init__(self, fd):
        self.page = mmap.mmap(fd, os.fstat(fd).st_size)
        self.magic, _, self.kind, self.size, self.count = struct.unpack_from("<IIIII", self.page)
        os.close(fd)

    def words(self):
        return list(struct.unpack_from(f"<{self.count}Q", self.page, 64))

    def released(self):
        return all(word == END for word in self.words())


@contextlib.contextmanager
def fake_daemon(runtime_dir, words="gpus=2", conf="", args=(), plugins=PLUGINS):
    config = runtime_dir.with_name(runtime_dir.name + ".conf")
    config.write_text(f"[job]\nlinger = 0\n{conf}")
    env = {"GRADWIRE_FAKEPLUGIN": words}
    if plugins:
        env["GRADWIRE_PLUGINS"] = str(plugins)
    try:
        with serving(Daemon(runtime_dir, env=env, args=["--config", str(config), *args])) as daemon:
            yield daemon
    finally:
        config.unlink(missing_ok=True)


def tag_of(client, daemon):
    return next(job["tag"] for job in daemon.jobs() if job["engine_pid"] == client.engine)


def pair(daemon, places=(0, 1)):
    """Two ranks that have joined one job."""
    first = Client.welcomed(daemon).create(world=2, place=places[0])
    assert first.joined.type == "JOINED", first.joined
    tag = bytes.fromhex(tag_of(first, daemon))
    second = Client.welcomed(daemon, tag).join(first.id, 1, 2, place=places[1])
    assert second.joined.type == "JOINED", second.joined
    return first, second


# ---- what is offered -----------------------------------------------------------------------------

def test_cuda_without_a_plugin_is_refused_with_what_to_install(runtime_dir, tmp_path):
    result = run(GRADWIRED, "--foreground", "--runtime-dir", runtime_dir / "r", "--device", "cuda",
                 "--plugins", tmp_path, "--engine", ENGINE)
    assert result.returncode == 69, result.stderr
    last = result.stderr.splitlines()[-1]
    for word in ("gradwire-cuda.so", str(tmp_path), "install", "CUDA 13", "NCCL", "--device host"):
        assert word in last, result.stderr
    assert not (runtime_dir / "r").exists()


@pytest.mark.parametrize("words,told", [("none", "no NVIDIA driver"),
                                        ("version", "of another release")])
def test_cuda_without_a_gpu_is_refused_with_the_reason(runtime_dir, words, told):
    result = run(GRADWIRED, "--foreground", "--runtime-dir", runtime_dir / "r", "--device", "cuda",
                 "--plugins", PLUGINS, "--engine", ENGINE,
                 env=dict(os.environ, GRADWIRE_FAKEPLUGIN=words))
    assert result.returncode == 69 and told in result.stderr.splitlines()[-1], result.stderr


def test_a_library_that_cannot_be_opened_is_named_with_what_it_needs(runtime_dir, tmp_path):
    (tmp_path / "gradwire-cuda.so").write_bytes(b"no library")
    result = run(GRADWIRED, "--foreground", "--runtime-dir", runtime_dir / "r", "--device", "cuda",
                 "--plugins", tmp_path, "--engine", ENGINE)
    assert result.returncode == 69, result.stderr
    for word in ("gradwire-cuda.so", "libcudart.so.13", "libnccl.so.2"):
        assert word in result.stderr.splitlines()[-1], result.stderr


def test_an_unknown_device_is_told_with_those_there_are(runtime_dir):
    result = run(GRADWIRED, "--runtime-dir", runtime_dir / "r", "--device", "gpu")
    assert result.returncode == 64
    assert "--device gpu: give auto, host or cuda" in result.stderr


@pytest.mark.parametrize("device,words,told", [
    ("auto", "gpus=2", "host, cuda (2 GPUs)"), ("cuda", "gpus=1", "host, cuda (1 GPU)"),
    ("auto", "none", "host; no cuda: no NVIDIA driver"), ("host", "gpus=2", "host (device = host)"),
])
def test_one_line_says_what_is_offered_and_why(runtime_dir, device, words, told):
    with fake_daemon(runtime_dir, words, args=["--device", device]) as daemon:
        until(lambda: "devices:" in daemon.log(), what="the line")
        assert daemon.log().count("devices:") == 1
        assert f"devices: {told}" in daemon.log()
        assert daemon.status()["devices"].startswith(told)
        assert f"devices    {told}" in daemon.ctl("status").stdout


@pytest.mark.parametrize("args,words,told", [
    (["--device", "host"], "gpus=2", "device = host"), ([], "none", "no NVIDIA driver")])
def test_a_job_on_gpus_that_are_not_offered_hears_why_and_one_on_the_host_runs(
        runtime_dir, args, words, told):
    with fake_daemon(runtime_dir, words, args=args) as daemon:
        with Client.welcomed(daemon) as client:
            done = client.create().joined
            assert done.code == "NO_DEVICE" and told in done.reason, done
            assert client.create(device=HOST).joined.type == "JOINED"


def test_an_engine_that_cannot_look_does_not_keep_gradwired_from_serving(make_daemon, tmp_path):
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\nexit 3\n")
    engine.chmod(0o755)
    with make_daemon(engine=engine) as daemon:
        until(lambda: "devices:" in daemon.log(), what="the line")
        assert "cuda is not known" in daemon.log() and "exit code 3" in daemon.log()


# ---- leases --------------------------------------------------------------------------------------

def test_a_gpu_is_one_jobs_and_the_other_hears_which(runtime_dir):
    with fake_daemon(runtime_dir) as daemon:
        first = Client.welcomed(daemon).create(place=1)
        assert first.joined.type == "JOINED" and first.joined.number(3) == CUDA, first.joined
        files = list((daemon.directory / "gpus").iterdir())
        assert [f.name for f in files] == [gpu_name(1)]
        assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
        tag = tag_of(first, daemon)
        with Client.welcomed(daemon) as other:
            done = other.create(place=1).joined
            assert done.code == "BUSY", done
            for word in (gpu_name(1), tag, "gpu_sharing"):
                assert word in done.reason, done
            # The refusal made no job: the next GPU will do.
            assert other.create(place=0).joined.type == "JOINED"
        first.close()
        until(lambda: not running(first.engine), what="the engine's end")
        with Client.welcomed(daemon) as third:
            assert third.create(place=1).joined.type == "JOINED"


def first_job(daemon):
    """On GPU 1; it would linger for ten minutes."""
    return Client.welcomed(daemon).create(place=1, linger_s=600)


def test_a_lingering_job_gives_its_gpu_to_the_next_one(runtime_dir):
    """Its only rank has left: it would stay for ten minutes, were it not for the second job."""
    with fake_daemon(runtime_dir) as daemon:
        first = first_job(daemon)
        tag = tag_of(first, daemon)
        first.send(wire.frame("LEAVE"))
        first.close()
        until(lambda: daemon.jobs()[0]["state"] == "lingering", what="that it lingers")
        assert running(first.engine)
        with Client.welcomed(daemon) as other:
            assert other.create(place=0).joined.type == "JOINED"  # that GPU is free
            assert tag in [job["tag"] for job in daemon.jobs()]
        with Client.welcomed(daemon) as third:
            assert third.create(place=1).joined.type == "JOINED", third.joined
            until(lambda: not running(first.engine), what="the engine's end")
            assert tag not in [job["tag"] for job in daemon.jobs()]


def test_a_job_that_lost_its_ranks_keeps_its_gpu_for_them(runtime_dir):
    """Who wants it hears at once whose it is, since when, until when; the rank finds its job."""
    with fake_daemon(runtime_dir) as daemon:
        first = first_job(daemon)
        tag = tag_of(first, daemon)
        first.close()  # without LEAVE
        until(lambda: daemon.jobs()[0]["state"] == "lingering", what="that it lingers")
        with Client.welcomed(daemon) as other:
            done = other.create(place=1).joined
            assert done.code == "BUSY", done
            assert re.search(rf"{gpu_name(1)} is kept for job {tag}: its ranks were lost \d+ s ago "
                             r"and may come back for (5\d\d|600) s more, or end its engine",
                             done.reason), done
        assert running(first.engine)
        with Client.welcomed(daemon, bytes.fromhex(tag)) as back:
            assert back.join(first.id, 0, 1, place=1).joined.type == "JOINED"
        os.kill(first.engine, signal.SIGTERM)
        until(lambda: not running(first.engine), what="the engine's end")


def test_what_is_known_of_a_gpu_is_told_at_once(alone):
    engine = alone()
    client = ask_create(engine)
    assert engine.channel.receive().type == "LEASE_GET"
    busy = {1: wire.zigzag(wire.ERRORS["BUSY"]), 2: gpu_name(0), 3: "kept", 4: 1}
    engine.channel.send(wire.frame("LEASE", 0, busy))
    done = client.receive()
    assert done.code == "BUSY" and done.reason == "kept", done
    with contextlib.suppress(TimeoutError):
        again = engine.channel.receive(0.5)
        raise AssertionError(f"asked again: {again}")


@pytest.mark.parametrize("leaves", [True, False])
def test_an_engine_that_is_wanted_ends_if_all_have_left(alone, leaves):
    engine = alone()
    client = ask_create(engine)
    assert engine.channel.receive().type == "LEASE_GET"
    engine.channel.send(wire.frame("LEASE", 0, {1: 0, 2: gpu_name(0)}))
    assert client.receive().type == "JOINED"
    wanted = wire.frame("LEASE_WANTED")
    engine.channel.send(wanted)  # while a rank is there: of no effect
    assert client.ask("STATS_GET", {}, 2).request == 2
    if leaves:
        client.send(wire.frame("LEAVE"))
    client.close()
    until(lambda: not engine.alive() or engine.stats()["present"] == 0, what="that it is gone")
    engine.channel.send(wanted)
    if leaves:
        assert engine.wait() == 0, engine.log()
        assert "another job wants a GPU" in engine.log()
        return
    engine.welcomed().close()  # handed over behind what was wanted
    assert engine.alive()


def test_a_lease_outlives_gradwired(runtime_dir):
    with fake_daemon(runtime_dir) as daemon:
        first = Client.welcomed(daemon).create()
        tag = tag_of(first, daemon)
        daemon.stop()
        assert running(first.engine)
        daemon.start()
        until(lambda: daemon.jobs(), what="the adoption")
        with Client.welcomed(daemon) as other:
            done = other.create().joined
            assert done.code == "BUSY" and tag in done.reason, done
        first.close()


def test_with_gpu_sharing_jobs_share_a_gpu(runtime_dir):
    with fake_daemon(runtime_dir, conf="gpu_sharing = on\n") as daemon:
        with Client.welcomed(daemon) as first, Client.welcomed(daemon) as second:
            assert first.create().joined.type == "JOINED"
            assert second.create().joined.type == "JOINED"
            assert not (daemon.directory / "gpus").exists()


def test_ranks_that_ask_for_one_gpu_at_once_all_hear(runtime_dir):
    with fake_daemon(runtime_dir, words="gpus=8") as daemon:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(Client.welcomed(daemon)).create(world=8)
            tag = bytes.fromhex(tag_of(first, daemon))
            others = [stack.enter_context(Client.welcomed(daemon, tag)) for _ in range(7)]
            for rank, client in enumerate(others, 1):
                client.send(wire.frame("JOIN", 1, {1: first.id, 2: rank, 3: 8, 4: CUDA,
                                                   5: gpu(1 + rank // 2)}))
            replies = [client.receive() for client in others]
            # One rank of a job per GPU.
            assert [r.type for r in replies].count("JOINED") == 4, replies
            assert [r.code for r in replies if r.type == "DONE"] == ["BUSY"] * 3, replies


@pytest.fixture
def alone(runtime_dir):
    """alone(...) -> an engine with the fake plug-in, whose gradwired this test is."""
    engines = []

    def start(words="gpus=2", **more):
        directory = runtime_dir / str(len(engines))
        directory.mkdir()
        engines.append(Engine(directory, args=["--plugins", str(PLUGINS)],
                              env={"GRADWIRE_FAKEPLUGIN": words}, **more))
        return engines[-1]

    yield start
    for engine in engines:
        if engine.alive():
            with contextlib.suppress(OSError):
                engine.process.send_signal(signal.SIGTERM)
        assert engine.wait() == 0, engine.log()


def ask_create(engine, place=0):
    client = engine.welcomed()
    client.send(wire.frame("JOB_CREATE", 1, {1: 0, 2: 1, 8: CUDA, 9: gpu(place)}))
    return client


def test_an_engine_asks_by_uuid_and_waits_for_the_answer(alone):
    engine = alone()
    client = ask_create(engine)
    ask = engine.channel.receive()
    assert ask.type == "LEASE_GET" and ask.text(1) == gpu_name(0), ask
    again = client.ask("JOB_CREATE", {1: 0, 2: 1}, request=2)
    assert again.request == 2 and again.code == "BUSY", again
    engine.channel.send(wire.frame("LEASE", 0, {1: 0, 2: gpu_name(0)}))
    assert client.receive().type == "JOINED"


@pytest.mark.parametrize("code,told", [("BUSY", "BUSY"), ("AGAIN", "BUSY"),
                                       ("LIMIT", "LIMIT"), ("IO", "IO")])
def test_a_refused_lease_is_told_as_gradwired_says_it(alone, code, told):
    """A GPU that somebody has is asked for again for a while: that job may be ending."""
    engine = alone()
    client = ask_create(engine)
    asked, deadline = 0, time.monotonic() + 20 * SLOWER
    while not select.select([client.sock], [], [], 0)[0]:
        assert time.monotonic() < deadline, "no answer"
        with contextlib.suppress(TimeoutError):
            assert engine.channel.receive(0.02).type == "LEASE_GET"
            asked += 1
            answer = {1: wire.zigzag(wire.ERRORS[code]), 2: gpu_name(0), 3: "taken"}
            engine.channel.send(wire.frame("LEASE", 0, answer))
    done = client.receive()
    assert done.code == told and done.reason == "taken", done
    assert asked > 1 if told == "BUSY" else asked == 1


def test_a_lease_that_others_hold_is_refused(alone, tmp_path):
    import fcntl
    engine = alone()
    client = ask_create(engine)
    assert engine.channel.receive().type == "LEASE_GET"
    with open(tmp_path / "lock", "w") as held, open(tmp_path / "lock") as passed:
        fcntl.flock(held, fcntl.LOCK_EX)
        engine.channel.send(wire.frame("LEASE", 0, {1: 0, 2: gpu_name(0)}), [passed.fileno()])
        done = client.receive()
    assert done.code == "BUSY" and gpu_name(0) in done.reason, done


def test_without_gradwired_nobody_lends_a_gpu(alone):
    engine = alone()
    client = engine.welcomed()
    engine.channel.close()
    time.sleep(0.1)
    client.send(wire.frame("JOB_CREATE", 1, {1: 0, 2: 1, 8: CUDA, 9: gpu(0)}))
    done = client.receive()
    assert done.code == "NO_DAEMON" and "start it" in done.reason, done


def test_a_gradwired_that_goes_while_it_is_asked_is_told(alone):
    engine = alone()
    client = ask_create(engine)
    assert engine.channel.receive().type == "LEASE_GET"
    engine.channel.close()
    done = client.receive()
    assert done.code == "NO_DAEMON" and gpu_name(0) in done.reason, done


def test_a_gradwired_that_does_not_answer_is_not_waited_for_long(alone):
    engine = alone()
    client = ask_create(engine)
    done = client.receive(timeout=5 * 10)
    assert done.code == "TIMEOUT" and gpu_name(0) in done.reason, done
    # Late, it is not taken; the next one is.
    assert engine.channel.receive().type == "LEASE_GET"
    engine.channel.send(wire.frame("LEASE", 0, {1: 0, 2: gpu_name(0)}))
    client.send(wire.frame("JOB_CREATE", 2, {1: 0, 2: 1, 8: CUDA, 9: gpu(0)}))
    assert engine.channel.receive().type == "LEASE_GET"
    engine.channel.send(wire.frame("LEASE", 0, {1: 0, 2: gpu_name(0)}))
    assert client.receive().type == "JOINED"


def test_a_client_that_goes_while_its_gpu_is_asked_for_leaves_nothing(alone):
    engine = alone(linger_s=600)
    client = ask_create(engine)
    assert engine.channel.receive().type == "LEASE_GET"
    client.close()
    assert engine.wait() == 0


@pytest.mark.parametrize("name", ["GPU-0", "../../etc/passwd", "GPU-" + "0" * 36, "x" * 63,
                                  gpu_name(10).upper(), gpu_name(0) + "0"])
def test_gradwired_lends_nothing_but_gpus(make_daemon, name):
    """A hostile engine; the fake one asks for what its client tells it."""
    with make_daemon() as daemon:
        client = wire.Connection.to(daemon.socket)
        client.send(wire.hello())
        assert client.receive().type == "WELCOME"
        done = client.ask("DONE", {1: 0, 2: "lease " + name})
        assert done.text(2).startswith("lease -1 0"), done
        assert not (daemon.directory / "gpus").exists()
        client.close()


# ---- places, pages, memory -----------------------------------------------------------------------

def test_ranks_with_and_without_a_gpu_do_not_mix(runtime_dir):
    with fake_daemon(runtime_dir) as daemon:
        for device, told in ((CUDA, "with host memory"), (HOST, "with a GPU")):
            with Client.welcomed(daemon) as first, contextlib.ExitStack() as stack:
                first.create(world=2, device=device)
                tag = bytes.fromhex(tag_of(first, daemon))
                other = stack.enter_context(Client.welcomed(daemon, tag))
                done = other.join(first.id, 1, 2, device=1 - device, place=1).joined
                assert done.code == "MISMATCH" and told in done.reason, done
                assert other.join(first.id, 1, 2, device=device, place=1).joined.type == "JOINED"


def test_a_gpu_that_is_not_here_is_refused(runtime_dir):
    with fake_daemon(runtime_dir) as daemon:
        with Client.welcomed(daemon) as client:
            done = client.create(place=7).joined
            assert done.code == "NO_DEVICE" and "not here" in done.reason, done
        until(lambda: not running(client.engine), what="the engine's end")


def test_a_job_on_gpus_steps_and_is_shown(runtime_dir):
    with fake_daemon(runtime_dir) as daemon, contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(client) for client in pair(daemon)]
        for client in ranks:
            waits = client.op_waits
            assert (waits.magic, waits.kind, waits.count) == (0x31485347, 5, 64)
            assert waits.words() == [0] * 64
            client.send(wire.frame("OP", 0, {1: BARRIER, 3: 1, 4: "together"}))
        for client in ranks:
            until(lambda c=client: c.value(1) == 1, what="the barrier")
            param = wire.body({1: "p", 2: 100})
            assert client.ask("REGISTER", {1: 0, 2: 1, 3: param}, 2).code == "OK"
            client.send(wire.frame("SEAL", 3, {1: 1, 9: 4096, 10: 0.5}))
        for client in ranks:
            sealed = client.receive()
            assert sealed.type == "SEALED" and len(sealed.fds) == 3, sealed
            client.board = mmap.mmap(sealed.fds[1], 0, prot=mmap.PROT_READ)
            client.board_waits = Waits(sealed.fds[2])
            assert (client.board_waits.kind, client.board_waits.count) == (5, 2 + 1 + 1)
            for kind in (GRADS, STAGING, VERDICT):
                arena = client.ask("ARENA_GET", {1: kind}, 4)
                assert arena.type == "ARENA" and len(arena.fds) == 1, arena
                assert arena.number(2) == os.fstat(arena.fds[0]).st_size
                # The fake's GPUs are the host.
                assert arena.number(3) == HOST
            client.send(wire.frame("STEP_END"))
        for client in ranks:
            until(lambda c=client: struct.unpack_from("<Q", c.board, 64)[0] == 1, what="the step")
        job = until(lambda: [j for j in daemon.jobs() if j["steps"] == 1], what="the count")[0]
        assert (job["device"], job["fabric"]) == ("cuda", "fake exact")
        table = daemon.ctl("jobs").stdout
        assert "cuda" in table and "fake exact" in table
        assert job["ordering"] is None and "cuda," not in table  # the fake's hosts wait


def test_a_clients_own_memory_is_a_buffer_without_a_descriptor(runtime_dir):
    with fake_daemon(runtime_dir) as daemon, Client.welcomed(daemon) as client:
        client.create()
        made = client.ask("BUFFER_IMPORT", {1: b"F" * 64, 2: 4096, 3: 256, 4: 512}, 2)
        assert made.type == "BUFFER_MADE" and made.fds == [] and made.number(2) == 512, made
        done = client.ask("BUFFER_IMPORT", {1: b"X" * 64, 2: 4096, 3: 256, 4: 512}, 3)
        assert done.code == "INVALID" and "no memory" in done.reason, done
        assert client.ask("BUFFER_FREE", {1: made.number(1)}, 4).code == "OK"


def test_the_host_imports_nothing(runtime_dir):
    with fake_daemon(runtime_dir) as daemon, Client.welcomed(daemon) as client:
        client.create(device=HOST)
        assert client.joined.number(3) == HOST
        done = client.ask("BUFFER_IMPORT", {1: b"F" * 64, 2: 4096, 3: 256, 4: 512}, 2)
        assert done.code == "UNIMPLEMENTED" and done.reason, done
        done = client.ask("ARENA_GET", {1: VERDICT}, 3)
        assert done.code == "NOT_FOUND", done


def test_a_rank_comes_back_to_its_gpu(runtime_dir):
    with fake_daemon(runtime_dir, words="gpus=3") as daemon, contextlib.ExitStack() as stack:
        first, second = pair(daemon)
        stack.enter_context(first)
        tag = bytes.fromhex(tag_of(first, daemon))
        second.close()
        until(lambda: error_of(first)[0] == "PEER_LOST", what="the loss")
        until(first.op_waits.released, what="the end of waits")
        again = [stack.enter_context(Client.welcomed(daemon, tag)) for _ in range(2)]
        done = again[1].join(first.id, 1, 2, place=2).joined
        assert done.code == "MISMATCH" and "another GPU" in done.reason, done
        for rank, client in enumerate(again):
            assert client.join(first.id, rank, 2, place=rank).joined.type == "JOINED"
            assert client.op_waits.words() == [0] * 64
            client.send(wire.frame("OP", 0, {1: BARRIER, 3: 1, 4: "together"}))
        for client in again:
            until(lambda c=client: c.value(1) == 1, what="the barrier")


# ---- faults --------------------------------------------------------------------------------------

def test_a_broken_gpu_ends_its_job_and_no_other(runtime_dir, tmp_path):
    flag = tmp_path / "fault"
    with fake_daemon(runtime_dir, words=f"gpus=4,fault={flag}") as daemon, \
            contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(client) for client in pair(daemon)]
        other = stack.enter_context(Client.welcomed(daemon)).create(place=2)
        tag = bytes.fromhex(tag_of(ranks[0], daemon))
        flag.touch()
        ranks[0].ring()
        for client in ranks:
            until(lambda c=client: error_of(c)[0] == "DEVICE", what="the fault")
            assert "GPU 0 has fallen off the bus" in error_of(client)[1]
            until(client.op_waits.released, what="the end of waits")
        flag.unlink()  # any engine with that plug-in looks for it when a bell rings
        late = stack.enter_context(Client.welcomed(daemon, tag))
        done = late.join(ranks[0].id, 0, 2).joined
        assert done.code == "DEVICE" and "start a new job" in done.reason, done
        for client in (*ranks, late):
            client.close()
        until(lambda: not running(ranks[0].engine), what="the engine's end")
        assert other.ask("STATS_GET", request=9).type == "STATS"
        assert error_of(other)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_an_engine_ends_no_stream_waits_for_it(runtime_dir, number):
    with fake_daemon(runtime_dir) as daemon, contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(client) for client in pair(daemon)]
        os.kill(ranks[0].engine, number)
        for client in ranks:
            until(client.op_waits.released, what="the end of waits")
        until(lambda: not guards(ranks[0].engine), 20, "the guard's end")


def guards(engine):
    """Guard processes of an engine that lives, or of any that do not."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and open(f"/proc/{entry}/comm").read() == "gradwire-guard\n":
                parent = int(open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[1])
                if parent in (engine, 1):
                    found.append(int(entry))
    return found


def test_only_jobs_on_gpus_have_a_guard(runtime_dir):
    with fake_daemon(runtime_dir) as daemon:
        with Client.welcomed(daemon) as host, Client.welcomed(daemon) as cuda:
            host.create(device=HOST)
            cuda.create()
            until(lambda: len(guards(cuda.engine)) == 1, what="a guard")
            guard = guards(cuda.engine)[0]
            # It holds nothing of the engine but pages and its socket.
            place = f"/proc/{guard}/fd"
            links = [os.readlink(f"{place}/{fd}") for fd in os.listdir(place)]
            assert not [link for link in links if "/lock" in link or "/gpus/" in link], links
            assert not guards(host.engine) or guards(host.engine) == guards(1)
        until(lambda: not running(guard), what="the guard's end")


def test_stall_reports_come_when_the_configuration_says(runtime_dir):
    with fake_daemon(runtime_dir, conf="stall_report = 200ms\n") as daemon:
        with Client.welcomed(daemon) as first:
            first.create(world=2, device=HOST)
            first.send(wire.frame("WAIT_READY", 5))
            job = until(lambda: [j for j in daemon.jobs() if j["wait"]], 20 * SLOWER,
                        "a stall report")[0]
            assert "rank" in job["wait"], job
