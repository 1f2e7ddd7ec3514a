# SPDX-License-Identifier: Apache-2.0
"""gradwired with the real engine, spoken to by hand: what the fake engine cannot show.

ctest: timeout=200
"""
import json
import os
import pathlib
import signal
import subprocess

import pytest

import wire
from conftest import ENGINE, running, until

pytestmark = pytest.mark.skipif(not ENGINE.exists(), reason=f"{ENGINE} is not built")
CONF = "[job]\nlinger = {linger}\n"


@pytest.fixture
def real(make_daemon):
    def make(linger="0", more=""):
        return make_daemon(conf=CONF.format(linger=linger) + more, engine=ENGINE)
    return make


def create_job(daemon, world=2, name="byhand"):
    """Rank 0 of a new job: connection, engine's pid, id."""
    client = wire.Connection.to(daemon.socket)
    client.send(wire.hello())
    welcome = client.receive()
    assert welcome.type == "WELCOME" and len(welcome.fds) == 3, welcome
    for fd in welcome.fds:
        os.close(fd)
    joined = client.ask("JOB_CREATE", {1: 0, 2: world, 7: name})
    assert joined.type == "JOINED", joined
    return client, welcome.number(3), joined.fields[1][0]


def shown(daemon):
    """The one job that is shown, once its engine has told something of itself."""
    jobs = until(lambda: [j for j in daemon.jobs() if j["world"]])
    assert len(jobs) == 1
    return jobs[0]


def test_a_job_is_shown_as_its_engine_tells_it(real):
    with real() as daemon:
        client, pid, _ = create_job(daemon, world=3, name='na"me\u00e9')
        job = shown(daemon)
        assert (job["engine_pid"], job["world"], job["ranks_present"]) == (pid, 3, 1)
        assert (job["state"], job["stage"], job["steps"]) == ("forming", None, 0)
        assert (job["device"], job["workers"]) == ("host", "equal")
        assert job["name"] == 'na\\"me\\u00c3\\u00a9'
        client.close()
        daemon.assert_idle()


@pytest.mark.parametrize("priority", ["nice", "idle"])
def test_the_priority_of_sums_is_shown_where_it_is_not_the_usual(real, priority):
    with real(more=f"worker_priority = {priority}\n") as daemon:
        client, _, _ = create_job(daemon)
        assert shown(daemon)["workers"] == priority
        table = daemon.ctl("jobs").stdout
        assert f"host, {priority}" in table, table
        client.close()
        daemon.assert_idle()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_gradwired_adopts_the_engine_and_ranks_join_through_it(real, how):
    with real() as daemon:
        client, pid, secret = create_job(daemon)
        tag = shown(daemon)["tag"]
        daemon.stop(how)
        assert running(pid)
        daemon.start()
        assert shown(daemon)["tag"] == tag
        late = wire.Connection.to(daemon.socket)
        late.send(wire.hello(bytes.fromhex(tag)))
        welcome = late.receive()
        assert welcome.number(3) == pid
        for fd in welcome.fds:
            os.close(fd)
        joined = late.ask("JOIN", {1: secret, 2: 1, 3: 2})
        assert joined.type == "JOINED", joined
        # The other rank never noticed anything.
        assert client.ask("WAIT_READY", request=5).code == "OK"
        until(lambda: shown(daemon)["ranks_present"] == 2)
        late.close()
        client.close()
        daemon.assert_idle()


def test_an_engine_that_ends_without_a_gradwired_leaves_nothing_for_long(real):
    with real() as daemon:
        client, pid, _ = create_job(daemon)
        daemon.stop(signal.SIGKILL)
        client.close()
        until(lambda: not running(pid), what="the end of the engine")
        if os.geteuid() != 0:
            # The directory is the engine's own user's: it removes its entry itself.
            assert daemon.entries() == []
        daemon.start()
        assert daemon.entries() == [] and daemon.jobs() == []


def test_linger_of_the_configuration_reaches_the_engine(real):
    with real(linger="1h") as daemon:
        client, pid, _ = create_job(daemon)
        shown(daemon)
        client.close()
        until(lambda: shown(daemon)["ranks_present"] == 0)
        assert running(pid)
        daemon.ctl("stop", "--engines")
        assert not running(pid) and daemon.stop() == 0


def test_drain_returns_when_the_job_has_ended(real):
    with real() as daemon:
        client, pid, _ = create_job(daemon)
        drain = subprocess.Popen([daemon.ctl_path, "--runtime-dir", str(daemon.directory), "drain"])
        try:
            until(lambda: daemon.status()["draining"])
            assert drain.poll() is None
            client.close()
            assert drain.wait(60) == 0
            assert not running(pid)
        finally:
            drain.kill()
            drain.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
def test_the_engine_of_another_user(make_daemon, fake_engine):
    """gradwired is root, the job's user is not: start, adoption, end, with the real engine."""
    uid, group = 48333, 48000
    if not all(p.stat().st_mode & 0o005 == 0o005 for p in ENGINE.parents):
        pytest.skip(f"other users cannot run {ENGINE}")
    code = """
import json, sys, wire
client = wire.Connection.to(sys.argv[1])
client.send(wire.hello())
welcome = client.receive()
joined = client.ask("JOB_CREATE", {1: 0, 2: 1, 7: "theirs"})
print(json.dumps([welcome.number(3), joined.type]), flush=True)
sys.stdin.read()
"""
    with make_daemon(conf=f"[daemon]\ngroup = {group}\n[job]\nlinger = 0\n",
                     engine=ENGINE) as daemon:
        user = subprocess.Popen(
            ["/usr/bin/python3", "-c", code, str(daemon.socket)], user=uid, group=uid,
            extra_groups=[group], cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(pathlib.Path(fake_engine).parent), "PATH": "/usr/bin:/bin"})
        pid, joined = json.loads(user.stdout.readline())
        assert joined == "JOINED"
        assert os.stat(f"/proc/{pid}").st_uid == uid
        job = shown(daemon)
        assert (job["uid"], job["engine_pid"], job["name"]) == (uid, pid, "theirs")
        daemon.stop()
        daemon.start()
        assert (shown(daemon)["uid"], shown(daemon)["engine_pid"]) == (uid, pid)
        user.communicate(timeout=60)
        daemon.assert_idle()
