# SPDX-License-Identifier: Apache-2.0
"""gradwired and its engines, with a fake engine: start, failure, adoption, drain, stop.

ctest: timeout=300
"""
import ctypes
import os
import resource
import signal
import time

import pytest

import wire
from conftest import SLOWER, Daemon, running, serving, until


def new_job(daemon):
    """A client with an engine of its own; returns it with the engine's pid."""
    client = wire.Connection.to(daemon.socket)
    client.send(wire.hello())
    welcome = client.receive()
    assert welcome.type == "WELCOME", welcome
    return client, welcome.number(3)


def tags(daemon):
    return [job["tag"] for job in daemon.jobs()]


def test_a_client_gets_an_engine_of_its_own_and_others_find_it_by_tag(make_daemon):
    with make_daemon() as daemon:
        first, pid = new_job(daemon)
        (tag,) = tags(daemon)
        assert daemon.entries() == [tag]
        assert daemon.engines() == [pid]
        second = wire.Connection.to(daemon.socket)
        second.send(wire.hello(bytes.fromhex(tag)))
        assert second.receive().number(3) == pid, "another engine"
        # Both talk to the engine now, not to gradwired.
        for client in (first, second):
            assert client.ask("STATUS_GET").type == "DONE"
        other, other_pid = new_job(daemon)
        assert other_pid != pid and len(tags(daemon)) == 2
        for client in (first, second, other):
            client.close()
        daemon.assert_idle()
        assert daemon.jobs() == []


def test_an_unknown_tag_is_told_with_its_name(make_daemon):
    with make_daemon() as daemon, wire.Connection.to(daemon.socket) as client:
        client.send(wire.hello(bytes.fromhex("00112233445566ff")))
        close = client.wait_closed()
        assert close.code == "NOT_FOUND" and "00112233445566ff" in close.reason, close


class Unsignalled(Daemon):
    """A write past the limit of file sizes fails, as on a full disk, and does not kill."""

    def command(self):
        return ["env", "--ignore-signal=XFSZ", *super().command()]


def test_without_room_for_an_entry_the_client_is_told_the_true_reason(runtime_dir, fake_engine,
                                                                      tmp_path):
    config = tmp_path / "conf"
    config.write_text("[job]\nlinger = 0\n")
    with serving(Unsignalled(runtime_dir, fake_engine, args=["--config", str(config)])) as daemon:
        hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, hard))
        with wire.Connection.to(daemon.socket) as client:
            client.send(wire.hello())
            close = client.wait_closed()
        assert close.code == "IO" and "File too large" in close.reason, close
        assert daemon.entries() == []
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (hard, hard))
        client, _ = new_job(daemon)
        client.close()


@pytest.mark.parametrize("mode,code,words", [
    ("die", "ENGINE_LOST", "exit code 3"),
    ("refuse", "NOMEM", "no memory for \\u001b it"),
    ("garbage", "INTERNAL", "malformed"),
])
def test_an_engine_that_fails_before_it_is_ready_gives_the_client_its_reason(make_daemon, mode,
                                                                             code, words):
    with make_daemon(mode) as daemon:
        for _ in range(3):
            with wire.Connection.to(daemon.socket) as client:
                client.send(wire.hello())
                close = client.wait_closed()
                assert close.code == code and words in close.reason, close
        daemon.assert_idle()
        assert daemon.status()["jobs"] == 0


def test_an_engine_that_is_never_ready_is_killed_after_ten_seconds(make_daemon):
    with make_daemon("mute") as daemon, wire.Connection.to(daemon.socket) as client:
        start = time.monotonic()
        client.send(wire.hello())
        close = client.wait_closed(100)
        print(f"closed after {time.monotonic() - start:.2f} s")
        assert close.code == "TIMEOUT" and "10 s" in close.reason, close
        daemon.assert_idle()


def test_an_engine_that_cannot_be_run_is_named(make_daemon, runtime_dir):
    broken = runtime_dir.with_name(runtime_dir.name + ".engine")
    broken.write_bytes(b"\x7fELF this is no program")
    broken.chmod(0o755)
    try:
        with make_daemon(engine=broken) as daemon, wire.Connection.to(daemon.socket) as client:
            client.send(wire.hello())
            close = client.wait_closed()
            assert close.code == "ENGINE_LOST", close
            assert str(broken) in close.reason and "Exec format error" in close.reason, close
            daemon.assert_idle()
    finally:
        broken.unlink()


def test_a_client_that_leaves_while_its_engine_starts_takes_the_engine_with_it(make_daemon):
    with make_daemon("mute") as daemon:
        client = wire.Connection.to(daemon.socket)
        client.send(wire.hello())
        until(daemon.engines, what="the engine")
        client.close()
        daemon.assert_idle()


def test_an_engine_that_was_killed_is_forgotten_and_its_entry_removed(make_daemon):
    with make_daemon() as daemon:
        client, pid = new_job(daemon)
        os.kill(pid, signal.SIGKILL)
        daemon.assert_idle()
        assert daemon.jobs() == []
        assert client.wait_closed() is None
        assert "killed by signal 9" in daemon.log()


# ---- restart -------------------------------------------------------------------------------------


def ticks(pid):
    """Of the processor's time that the process has had, 100 a second."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_the_end_of_an_engine_that_somebody_traces_is_waited_for_in_peace(make_daemon):
    """The tracer hears of it first; until then its parent cannot reap it, though it has ended."""
    seize = 0x4206
    libc = ctypes.CDLL(None, use_errno=True)
    with make_daemon() as daemon:
        client, pid = new_job(daemon)
        if libc.ptrace(seize, pid, None, None) < 0:
            pytest.skip(f"no process may be traced here: {os.strerror(ctypes.get_errno())}")
        os.kill(pid, signal.SIGKILL)
        until(lambda: not running(pid), what="the engine's end")
        before = ticks(daemon.pid)
        time.sleep(1)
        assert ticks(daemon.pid) - before < 30, "gradwired is busy with nothing"
        assert len(daemon.entries()) == 1
        assert os.waitpid(pid, 0)[0] == pid
        daemon.assert_idle()
        assert "killed by signal 9" in daemon.log()
        client.close()


class Heedless(Daemon):
    """Started by who wants to hear of no child's end: then the kernel reaps them by itself."""

    def command(self):
        return ["env", "--ignore-signal=CHLD", *super().command()]


def test_whoever_started_gradwired_it_hears_of_its_engines_ends(runtime_dir, fake_engine):
    with serving(Heedless(runtime_dir, engine=fake_engine)) as daemon:
        client, pid = new_job(daemon)
        os.kill(pid, signal.SIGKILL)
        daemon.assert_idle()
        assert "killed by signal 9" in daemon.log()
        client.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_new_gradwired_adopts_living_engines_and_removes_dead_entries(make_daemon, how):
    with make_daemon() as daemon:
        client, pid = new_job(daemon)
        dead, dead_pid = new_job(daemon)
        before = tags(daemon)
        start = time.monotonic()
        daemon.stop(how)
        print(f"gradwired was gone after {time.monotonic() - start:.3f} s")
        assert running(pid), "the engine ended with gradwired"
        os.kill(dead_pid, signal.SIGKILL)
        until(lambda: not running(dead_pid))
        dead.close()
        assert client.ask("STATUS_GET").type == "DONE", "the client noticed"
        daemon.start()
        after = until(lambda: tags(daemon) if all(j["world"] for j in daemon.jobs()) else None)
        assert len(after) == 1 and after[0] in before
        assert daemon.entries() == after
        assert daemon.jobs()[0]["engine_pid"] == pid
        late = wire.Connection.to(daemon.socket)
        late.send(wire.hello(bytes.fromhex(after[0])))
        assert late.receive().number(3) == pid
        late.close()
        client.close()
        daemon.assert_idle()


def test_clients_that_join_while_an_engine_is_being_adopted_wait_for_it(make_daemon):
    with make_daemon() as daemon:
        client, pid = new_job(daemon)
        (tag,) = tags(daemon)
        daemon.stop(signal.SIGKILL)
        os.kill(pid, signal.SIGSTOP)  # it cannot answer the new gradwired yet
        try:
            daemon.start()
            joiners = [wire.Connection.to(daemon.socket) for _ in range(5)]
            for joiner in joiners:
                joiner.send(wire.hello(bytes.fromhex(tag)))
            joiners.pop().close()  # one does not wait for it
        finally:
            os.kill(pid, signal.SIGCONT)
        for joiner in joiners:
            assert joiner.receive(30).number(3) == pid
            joiner.close()
        client.close()
        daemon.assert_idle()


def test_an_engine_that_refuses_adoption_is_left_alone_and_not_served(make_daemon):
    with make_daemon("deaf") as daemon:
        client, pid = new_job(daemon)
        (tag,) = tags(daemon)
        daemon.stop(signal.SIGKILL)
        daemon.start()
        joiner = wire.Connection.to(daemon.socket)
        joiner.send(wire.hello(bytes.fromhex(tag)))
        close = joiner.wait_closed(60)
        assert close.code == "TIMEOUT", close
        assert running(pid)
        assert client.ask("STATUS_GET").type == "DONE"
        client.close()
        daemon.assert_idle(60)


def test_entries_that_are_not_engines_do_no_harm(make_daemon, runtime_dir):
    with make_daemon() as daemon:
        daemon.stop()
        engines = runtime_dir / "engines"
        engines.mkdir()
        (engines / "0123456789abcdef").mkdir()
        (engines / "0123456789abcdef/lock").write_text("garbage")
        (engines / "new-AAAAAA").mkdir()
        (engines / "0123456789ABCDEF").mkdir()
        (engines / "a-file").write_text("")
        daemon.start()
        assert daemon.entries() == ["0123456789ABCDEF", "a-file"]
        assert daemon.jobs() == []
        (engines / "a-file").unlink()
        (engines / "0123456789ABCDEF").rmdir()


# ---- drain and stop ------------------------------------------------------------------------------


def test_drain_refuses_new_jobs_serves_joins_and_returns_with_the_last_job(make_daemon):
    with make_daemon() as daemon:
        client, pid = new_job(daemon)
        (tag,) = tags(daemon)
        with wire.Connection.to(daemon.admin_socket) as admin:
            admin.send(wire.frame("DRAIN", 7))
            until(lambda: daemon.status()["draining"])
            with wire.Connection.to(daemon.socket) as refused:
                refused.send(wire.hello())
                close = refused.wait_closed()
                assert close.code == "DRAINING", close
            joiner = wire.Connection.to(daemon.socket)
            joiner.send(wire.hello(bytes.fromhex(tag)))
            assert joiner.receive().number(3) == pid
            joiner.close()
            with pytest.raises(TimeoutError):
                admin.receive(0.3)
            client.close()
            done = admin.receive()
            assert (done.type, done.request, done.code) == ("DONE", 7, "OK"), done
        assert daemon.ctl("drain").returncode == 0
        assert daemon.alive()


@pytest.mark.parametrize("mode", ["", "stubborn"])
def test_stop_with_engines_ends_all_and_answers_when_it_is_done(make_daemon, mode):
    with make_daemon(mode) as daemon:
        clients = [new_job(daemon) for _ in range(3)]
        daemon.ctl("stop", "--engines")
        assert [pid for _, pid in clients if running(pid)] == []
        assert daemon.stop() == 0
        for client, _ in clients:
            assert client.wait_closed() is None
        assert sorted(p.name for p in daemon.directory.iterdir()) == []


def test_stop_without_engines_leaves_them(make_daemon):
    with make_daemon() as daemon:
        client, pid = new_job(daemon)
        daemon.ctl("stop")
        assert daemon.stop() == 0
        assert not daemon.socket.exists() and not daemon.admin_socket.exists()
        assert running(pid) and client.ask("STATUS_GET").type == "DONE"
        daemon.start()
        client.close()
        daemon.assert_idle()


# ---- what is shown -------------------------------------------------------------------------------


def test_status_and_jobs_as_json(make_daemon):
    with make_daemon() as daemon:
        client, pid = new_job(daemon)
        status = daemon.status()
        assert status["pid"] == daemon.pid and status["jobs"] == 1
        assert status["socket"] == str(daemon.socket) and status["draining"] is False
        job = until(lambda: [j for j in daemon.jobs() if j["world"]])[0]
        assert job["engine_pid"] == pid and job["uid"] == os.getuid()
        assert (job["state"], job["world"], job["stage"], job["steps"]) == ("running", 4, 2, 7)
        assert (job["name"], job["wait"], job["ranks_present"]) == ("fake", "", 1)
        assert job["memory_bytes"] == 1 << 20
        kinds = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "control"]
        assert job["calls"] == dict(zip(kinds, [1, 2, 3, 4, 5]))
        assert job["payload_bytes"] == dict.fromkeys(kinds, 10)
        assert job["moved_bytes"] == dict.fromkeys(kinds, 20)
        assert job["cross_node_bytes"] == dict(zip(kinds, [30, 31, 32, 33, 34]))
        assert 0 < job["age_ns"] < 600e9 * SLOWER
        table = daemon.ctl("jobs").stdout.splitlines()
        assert table[0].split() == ["JOB", "NAME", "USER", "STATE", "RANKS", "DEVICE", "FABRIC",
                                    "STAGE", "STEPS", "AGE", "MEMORY", "PID"]
        for word in (job["tag"], "fake", "running", "1/4", "1.0", "MiB", str(pid)):
            assert word in table[1].split(), table
        client.close()


def test_what_an_older_engine_does_not_count_is_zero(make_daemon):
    with make_daemon("older") as daemon:
        client, _ = new_job(daemon)
        job = until(lambda: [j for j in daemon.jobs() if j["world"]])[0]
        assert set(job["moved_bytes"].values()) == {20}
        assert set(job["cross_node_bytes"].values()) == {0}
        client.close()


def test_a_hostile_statistics_page_is_clamped_and_escaped(make_daemon):
    with make_daemon("hostile") as daemon:
        client, _ = new_job(daemon)
        (job,) = daemon.jobs()
        assert job["state"] in ("starting", "unknown")
        assert job["world"] <= 1024 and job["ranks_present"] <= job["world"]
        assert job["stage"] is None
        assert job["name"].startswith("\\u001b[2J\\u000a\\u0007xxx") and len(job["name"]) <= 63
        assert all(" " <= c <= "~" for c in daemon.ctl("jobs").stdout.replace("\n", ""))
        client.close()


def test_many_jobs_are_paged(make_daemon):
    with make_daemon() as daemon:
        clients = [new_job(daemon)[0] for _ in range(35)]
        jobs = daemon.jobs()
        assert len({job["tag"] for job in jobs}) == len(jobs) == 35
        for client in clients:
            client.close()
        daemon.assert_idle(60)


def test_the_limit_of_jobs_is_told(make_daemon):
    with make_daemon(conf="[job]\nlinger = 0\n[limits]\nmax_jobs_per_user = 2\n") as daemon:
        clients = [new_job(daemon)[0] for _ in range(2)]
        with wire.Connection.to(daemon.socket) as third:
            third.send(wire.hello())
            close = third.wait_closed()
            assert close.code == "LIMIT" and "2 jobs" in close.reason, close
            assert "max_jobs_per_user" in close.reason
        clients.pop().close()
        until(lambda: len(daemon.entries()) == 1)
        clients.append(new_job(daemon)[0])
        for client in clients:
            client.close()


def test_engines_get_a_clean_process(make_daemon):
    """Own session, no_new_privs, nothing of gradwired's own environment; the fake engine itself
    refuses to start with descriptors it should not have."""
    with make_daemon() as daemon:
        daemon.stop()
        daemon.env.update(NOTIFY_SOCKET="@nobody", LISTEN_PID="1", LISTEN_FDS="1")
        read_end, write_end = os.pipe()
        os.set_inheritable(write_end, True)
        daemon.start()
        client, pid = new_job(daemon)
        environ = open(f"/proc/{pid}/environ").read()
        assert "NOTIFY_SOCKET" not in environ and "LISTEN_" not in environ
        assert "GRADWIRE_FAKE" in environ
        status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status") if ":\t" in line)
        assert status["NoNewPrivs"].strip() == "1"
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/fd/0") == os.readlink(f"/proc/{pid}/fd/1") == "/dev/null"
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        for fd in (read_end, write_end):
            os.close(fd)
        client.close()
