# SPDX-License-Identifier: Apache-2.0
"""Start and end of gradwired: options, exit codes, places that are taken, signals; and gwctl's.

ctest: timeout=200
"""
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import wire
from conftest import GRADWIRED, GWCTL, SLOWER, Daemon, until

USAGE, UNAVAILABLE, OSFILE, CANTCREAT, NOPERM, CONFIG = 64, 69, 72, 73, 77, 78
ENV = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}


def run(program, *args, env=None, **more):
    return subprocess.run([str(program), *map(str, args)], env=env or ENV, capture_output=True,
                          text=True, timeout=20 * SLOWER, **more)


def fails(code, *words, args, program=GRADWIRED, env=None):
    """One line on stderr with all the words (beside warnings of groups), and the exit code."""
    result = run(program, *args, env=env)
    assert result.returncode == code, (result.returncode, result.stderr)
    lines = [x for x in result.stderr.splitlines() if "there is no group" not in x]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert str(word) in lines[0], result.stderr


# ---- options -------------------------------------------------------------------------------------


def test_version_and_help():
    for program in (GRADWIRED, GWCTL):
        assert re.fullmatch(program.name + r" \d+\.\d+\.\d+\n", run(program, "--version").stdout)
        out = run(program, "--help")
        assert out.returncode == 0 and out.stdout.startswith("Usage: " + program.name)


@pytest.mark.parametrize("args,words", [
    (["--sokcet", "x"], ["--sokcet"]),
    (["--socket"], ["--socket", "missing"]),
    (["extra"], ["extra"]),
    (["--socket", ""], ["--socket", "empty"]),
])
def test_bad_options_of_gradwired(args, words):
    fails(USAGE, *words, args=args)


@pytest.mark.parametrize("args,words", [
    ([], ["command"]),
    (["stauts"], ["stauts"]),
    (["status", "jobs"], ["jobs"]),
    (["drain", "--json"], ["--json", "drain"]),
    (["status", "--engines"], ["--engines", "status"]),
    (["--what", "status"], ["--what"]),
    (["status", "--socket"], ["--socket", "missing"]),
    (["status", "--socket", "/" + "x" * 108], ["too long"]),
])
def test_bad_options_of_gwctl(args, words):
    fails(USAGE, *words, args=args, program=GWCTL)


def test_no_daemon_is_one_line_that_names_the_socket_and_how_to_start_it(runtime_dir):
    for command in ("status", "jobs", "drain", "stop"):
        fails(UNAVAILABLE, runtime_dir / "gradwired.sock", "gradwired --runtime-dir",
              args=["--runtime-dir", runtime_dir, command], program=GWCTL)
    # Another name or directory that could not be its own: no advice that would fail.
    fails(UNAVAILABLE, "/tmp/nobody.sock", "with --socket", program=GWCTL,
          args=["--socket", "/tmp/nobody.sock", "status"])
    fails(UNAVAILABLE, "/run/gradwire/gradwired.sock", "systemctl start gradwired",
          args=["status"], program=GWCTL) if not os.path.exists("/run/gradwire") else None


# ---- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize("text,line,words", [
    ("[limits]\nmax_jobs = 3\n", 2, ["unknown key 'max_jobs' in [limits]", "max_jobs_per_user"]),
    ("# x\n\n[job]\nlinger = soon\n", 4, ["bad value 'soon'", "60s"]),
    ("[limits]\nmax_half_open = 0\n", 2, ["bad value '0'", "from 1 to 65536"]),
    ("[daemon]\nsocket = relative\n", 2, ["absolute path"]),
    ("[daemon]\nsocket = /" + "x" * 107 + "\n", 2, ["absolute path of at most 107 bytes"]),
    ("[daemon]\nlog_level = loud\n", 2, ["error, warning, info, debug"]),
    ("just text\n", 1, ["key = value"]),
    ("[job]\nlinger = 1s\nlinger = 2s\n", 3, ["twice", "line 2"]),
])
def test_errors_of_the_configuration_name_file_and_line(runtime_dir, text, line, words):
    path = runtime_dir / "g.conf"
    path.write_text(text)
    for check in (["--check-config"], []):
        fails(CONFIG, f"{path}:{line}: ", *words,
              args=["--config", path, "--runtime-dir", runtime_dir, *check])
    assert os.listdir(runtime_dir) == ["g.conf"]


def test_a_configuration_that_is_missing_or_no_file(runtime_dir):
    fails(CONFIG, "No such file", args=["--check-config", "--config", runtime_dir / "none.conf"])
    fails(CONFIG, "not a regular file", args=["--check-config", "--config", runtime_dir])
    fails(CONFIG, "not a regular file", args=["--check-config", "--config", "/dev/zero"])


def test_check_config_says_that_all_is_right(runtime_dir):
    path = runtime_dir / "g.conf"
    path.write_text("[limits]\n  max_jobs_per_user = 3   ; three\n[job]\nmemory_max_bytes=1.5GiB\n")
    result = run(GRADWIRED, "--config", path, "--check-config")
    assert result.returncode == 0 and result.stdout == f"{path}: the configuration is right\n"
    result = run(GRADWIRED, "--check-config")
    (default,) = re.findall(r"--config FILE .*\((.*)\)", run(GRADWIRED, "--help").stdout)
    if not os.path.exists(default):
        assert result.stdout == f"{default}: there is no such file, the defaults are used\n"
    assert os.listdir(runtime_dir) == ["g.conf"]


# ---- places that are taken -----------------------------------------------------------------------


def test_a_second_daemon_refuses_and_says_which_one_is_there(make_daemon, fake_engine):
    with make_daemon() as daemon:
        fails(UNAVAILABLE, f"pid {daemon.pid}", daemon.directory,
              args=["--runtime-dir", daemon.directory, "--engine", fake_engine])
        assert daemon.status()["pid"] == daemon.pid


def test_a_socket_of_a_living_process_is_not_taken_over(make_daemon, runtime_dir, fake_engine):
    with make_daemon() as daemon:
        other = runtime_dir / "other"
        fails(UNAVAILABLE, daemon.socket, f"pid {daemon.pid}",
              args=["--runtime-dir", other, "--socket", daemon.socket, "--engine", fake_engine])
        assert daemon.status()["pid"] == daemon.pid
        assert not other.exists()


def test_a_stale_socket_and_lock_are_replaced(make_daemon, runtime_dir):
    for name in ("gradwired.sock", "admin.sock"):
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stale.bind(str(runtime_dir / name))
        stale.close()
    (runtime_dir / "gradwired.lock").write_text("1\n")
    with make_daemon() as daemon:
        assert daemon.status()["pid"] == daemon.pid


def test_nobody_else_can_open_the_lock_and_hold_it(make_daemon):
    with make_daemon() as daemon:
        assert (daemon.directory / "gradwired.lock").stat().st_mode & 0o777 == 0o600


def test_it_starts_again_after_sigkill(make_daemon):
    with make_daemon() as daemon:
        daemon.stop(signal.SIGKILL)
        assert daemon.socket.exists()
        daemon.start()
        assert daemon.status()["jobs"] == 0


def test_a_file_that_is_no_socket_is_not_touched(runtime_dir, fake_engine):
    precious = runtime_dir / "gradwired.sock"
    precious.write_text("keep me")
    fails(CANTCREAT, precious, "not a socket",
          args=["--runtime-dir", runtime_dir, "--engine", fake_engine])
    assert precious.read_text() == "keep me"
    assert sorted(os.listdir(runtime_dir)) == ["gradwired.sock"]


def test_paths_that_cannot_be(runtime_dir, fake_engine):
    engine = ["--engine", fake_engine]
    fails(CANTCREAT, "/none/there",
          args=["--runtime-dir", runtime_dir / "none/there", *engine])
    fails(CANTCREAT, "Not a directory", args=["--runtime-dir", "/dev/null/x", *engine])
    fails(USAGE, "too long", "107", args=["--runtime-dir", runtime_dir, *engine, "--socket",
                                          runtime_dir / ("s" * 108)])
    fails(USAGE, "too long", args=["--runtime-dir", runtime_dir / ("d" * 108), *engine])
    # Long enough for the socket, too long for those of engines.
    room = 107 - len(str(runtime_dir)) - len("/gradwired.sock") - 1
    fails(USAGE, "too long", args=["--runtime-dir", runtime_dir / ("d" * room), *engine])
    assert os.listdir(runtime_dir) == []


def test_a_missing_engine_is_told_at_start(runtime_dir):
    fails(OSFILE, "/none/engine", args=["--runtime-dir", runtime_dir, "--engine", "/none/engine"])
    fails(OSFILE, runtime_dir, args=["--runtime-dir", runtime_dir, "--engine", runtime_dir])
    assert os.listdir(runtime_dir) == []


def test_a_directory_of_somebody_else(runtime_dir, fake_engine):
    if os.geteuid() != 0:
        fails(NOPERM, "/", args=["--runtime-dir", "/", "--engine", fake_engine])
        return
    os.chown(runtime_dir, 4711, 4711)
    fails(NOPERM, "4711", runtime_dir,
          args=["--runtime-dir", runtime_dir, "--engine", fake_engine])
    os.chown(runtime_dir, 0, 0)
    runtime_dir.chmod(0o777)
    # Never a chmod: the directory may be /tmp.
    fails(NOPERM, "written by others; give one with --runtime-dir", runtime_dir,
          args=["--runtime-dir", runtime_dir, "--engine", fake_engine])


def test_the_environment_names_places_too(runtime_dir, fake_engine):
    with_env = dict(ENV, GRADWIRE_RUNTIME_DIR=str(runtime_dir / "rt"),
                    GRADWIRE_ENGINE=str(fake_engine), GRADWIRE_SOCKET=str(runtime_dir / "s.sock"))
    process = subprocess.Popen([str(GRADWIRED)], env=with_env, stderr=subprocess.PIPE, text=True)
    try:
        until((runtime_dir / "s.sock").exists)
        assert "s.sock" in run(GWCTL, "status", env=with_env).stdout
        # The administration socket lies beside the client socket.
        assert sorted(os.listdir(runtime_dir)) == ["admin.sock", "rt", "s.sock"]
        assert run(GWCTL, "stop", env=with_env).returncode == 0
        assert process.wait(20 * SLOWER) == 0
    finally:
        process.kill()
        process.communicate()
    assert os.listdir(runtime_dir) == []


# ---- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_and_removes_its_sockets(make_daemon, number):
    with make_daemon() as daemon:
        # With connections in every state.
        silent = wire.Connection.to(daemon.socket)
        asking = wire.Connection.to(daemon.admin_socket)
        assert asking.ask("STATUS_GET").type == "STATUS"
        start = time.monotonic()
        assert daemon.stop(number) == 0
        print(f"ended after {time.monotonic() - start:.3f} s")
        assert os.listdir(daemon.directory) == []
        for connection in (silent, asking):
            assert connection.wait_closed() is None


def test_sighup_takes_over_limits_and_says_what_needs_a_restart(make_daemon, runtime_dir):
    config = runtime_dir.with_name(runtime_dir.name + ".conf")
    with make_daemon() as daemon:
        config.write_text("[job]\nlinger = 0\n[limits]\nmax_connections_per_user = 1\n"
                          "[daemon]\ngroup = other\n")
        daemon.send_signal(signal.SIGHUP)
        until(lambda: "read " in daemon.log())
        assert "'max_connections_per_user' in [limits] has changed" in daemon.log()
        assert "'group' in [daemon] has changed, but needs a restart" in daemon.log()
        with wire.Connection.to(daemon.socket), wire.Connection.to(daemon.socket) as second:
            close = second.wait_closed()
            assert close.code == "LIMIT" and "max_connections_per_user" in close.reason, close
        config.write_text("[limits]\nmax_half_open = none\n")
        daemon.send_signal(signal.SIGHUP)
        until(lambda: f"{config}:2: bad value 'none'" in daemon.log())
        config.write_text("[limits]\nmax_connections_per_user = 9\n")
        daemon.send_signal(signal.SIGHUP)
        until(lambda: daemon.log().count("read ") == 2)
        with wire.Connection.to(daemon.socket), wire.Connection.to(daemon.socket) as second:
            assert second.ask("STATUS_GET").type == "STATUS"


def test_ready_and_stopping_are_told_to_systemd(runtime_dir, fake_engine):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(runtime_dir / "notify"))
        notify.settimeout(20 * SLOWER)
        daemon = Daemon(runtime_dir / "rt", engine=fake_engine,
                        env={"NOTIFY_SOCKET": str(runtime_dir / "notify")})
        try:
            daemon.start()
            assert notify.recv(4096).startswith(b"READY=1\n")
            assert daemon.stop() == 0
            assert notify.recv(4096) == b"STOPPING=1"
        finally:
            daemon.clean()
    assert not (runtime_dir / "rt").exists()


def test_sockets_may_come_from_systemd(runtime_dir, fake_engine):
    """As a .socket unit does it: descriptor 3, LISTEN_PID of the process itself."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = runtime_dir / "gradwired.sock"
    listener.bind(str(path))
    listener.listen(8)
    fd = os.dup2(listener.fileno(), 103)  # inheritable, and not 3 here
    script = 'exec 3<&103 103<&-; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
    process = subprocess.Popen(
        ["/bin/bash", "-c", script, "bash", str(GRADWIRED), "--foreground", "--runtime-dir",
         str(runtime_dir), "--engine", str(fake_engine)],
        env=ENV, pass_fds=[fd])
    os.close(fd)
    try:
        with wire.Connection.to(path) as client:
            assert client.ask("STATUS_GET").type == "STATUS"
        until((runtime_dir / "admin.sock").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20 * SLOWER) == 0
        # The socket is systemd's and stays.
        assert os.listdir(runtime_dir) == ["gradwired.sock"]
    finally:
        process.kill()
        process.wait()
        listener.close()
