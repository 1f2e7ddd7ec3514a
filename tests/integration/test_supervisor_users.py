# SPDX-License-Identifier: Apache-2.0
"""gradwired as root among several users, some hostile; and as an ordinary user.

Needs root, to become others. Users are bare numbers that exist in no database.

ctest: label=security timeout=200
"""
import json
import os
import pathlib
import subprocess

import pytest

import wire
from conftest import GRADWIRED, GWCTL, SLOWER, Daemon, running, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")

GROUP, ADMIN_GROUP, EXTRA = 48000, 48001, 48007
ALICE, BOB, STRANGER, ADMIN = 48111, 48112, 48113, 48114
GROUPS = {ALICE: [GROUP, EXTRA], BOB: [GROUP], STRANGER: [], ADMIN: [GROUP, ADMIN_GROUP]}
CONF = f"""[daemon]
group = {GROUP}
admin_group = {ADMIN_GROUP}
[job]
linger = 0
[limits]
max_half_open = 4
max_jobs_per_user = 2
"""

HEAD = """
import json, sys
import wire
socket_path, admin_path = sys.argv[1:3]
def say(value):
    print(json.dumps(value), flush=True)
"""
OPEN_JOB = """
client = wire.Connection.to(socket_path)
client.send(wire.hello())
welcome = client.receive()
say([welcome.type, welcome.number(3), client.ask("STATUS_GET").reason])
sys.stdin.read()
"""


@pytest.fixture
def daemon(make_daemon):
    with make_daemon(conf=CONF) as d:
        yield d


class User:
    """A Python process of another user, that prints JSON lines."""

    def __init__(self, daemon, uid, code, *args):
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-c", HEAD + code, str(daemon.socket), str(daemon.admin_socket),
             *map(str, args)],
            user=uid, group=uid, extra_groups=GROUPS[uid], cwd="/", stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(pathlib.Path(daemon.engine).parent), "PATH": "/usr/bin:/bin",
                 "PYTHONDONTWRITEBYTECODE": "1"})

    def line(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(30 * SLOWER)
        self.process.stdout.close()
        assert code == 0


def asks(daemon, uid, code, *args):
    """The one line that the code prints as that user."""
    user = User(daemon, uid, code, *args)
    try:
        return user.line()
    finally:
        user.end()


@pytest.fixture
def alice(daemon):
    user = User(daemon, ALICE, OPEN_JOB)
    user.welcome, user.engine, user.says = user.line()
    assert user.welcome == "WELCOME"
    yield user
    user.end()


def proc_status(pid, key):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(key + ":"):
            return line.split(":", 1)[1].split()
    return None


def test_an_engine_runs_as_its_client_with_its_groups_and_nothing_more(alice):
    assert alice.says == f"uid={ALICE} gid={ALICE} groups={sorted(GROUPS[ALICE])}"
    pid = alice.engine
    assert proc_status(pid, "Uid") == [str(ALICE)] * 4
    assert proc_status(pid, "Gid") == [str(ALICE)] * 4
    assert proc_status(pid, "NoNewPrivs") == ["1"]
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert proc_status(pid, capabilities) == ["0000000000000000"], capabilities
    environ = open(f"/proc/{pid}/environ").read()
    assert "HOME=" not in environ and "PYTEST" not in environ


def test_oom_score_of_an_engine_is_its_own(daemon):
    pathlib.Path(f"/proc/{daemon.pid}/oom_score_adj").write_text("300")
    user = User(daemon, ALICE, OPEN_JOB)
    _, engine, _ = user.line()
    assert pathlib.Path(f"/proc/{engine}/oom_score_adj").read_text().strip() == "0"
    user.end()


def test_a_foreign_user_cannot_join_and_sees_only_a_count(daemon, alice):
    (job,) = daemon.jobs()
    assert job["uid"] == ALICE and job["engine_pid"] == alice.engine
    close = asks(daemon, BOB, """
client = wire.Connection.to(socket_path)
client.send(wire.hello(bytes.fromhex(sys.argv[3])))
close = client.wait_closed()
say([close.code, close.reason])
""", job["tag"])
    assert close[0] == "DENIED" and job["tag"] in close[1], close
    seen = """
client = wire.Connection.to(socket_path)
status, jobs = client.ask("STATUS_GET"), client.ask("JOBS_GET")
say([status.number(5), jobs.number(1), [wire.job_fields(j) for j in jobs.fields.get(2, [])]])
"""
    assert asks(daemon, BOB, seen) == [1, 0, []]
    total, visible, (own,) = asks(daemon, ALICE, seen)
    assert (total, visible, own["tag"], own["pid"]) == (1, 1, job["tag"], alice.engine)
    assert "tried to join" in daemon.log()


def test_alice_may_join_her_own_job_from_another_process(daemon, alice):
    (job,) = daemon.jobs()
    assert asks(daemon, ALICE, """
client = wire.Connection.to(socket_path)
client.send(wire.hello(bytes.fromhex(sys.argv[3])))
say(client.receive().number(3))
""", job["tag"]) == alice.engine


CONNECT = """
results = []
for path in (socket_path, admin_path):
    try:
        results.append(wire.Connection.to(path).ask("STATUS_GET").type)
    except OSError as e:
        results.append(type(e).__name__)
say(results)
"""


@pytest.mark.parametrize("uid,client,admin", [
    (BOB, "STATUS", "PermissionError"),
    (STRANGER, "PermissionError", "PermissionError"),
    (ADMIN, "STATUS", "STATUS"),
])
def test_groups_decide_who_reaches_which_socket(daemon, uid, client, admin):
    assert asks(daemon, uid, CONNECT) == [client, admin]


def test_an_administrator_sees_all_jobs_and_may_stop_them(daemon, alice):
    jobs, done = asks(daemon, ADMIN, """
admin = wire.Connection.to(admin_path)
jobs = admin.ask("JOBS_GET")
say([[wire.job_fields(j)["uid"] for j in jobs.fields[2]], admin.ask("STOP", {1: 1}).code])
""")
    assert (jobs, done) == ([ALICE], "OK")
    assert daemon.stop() == 0
    assert not running(alice.engine)


def test_nobody_reaches_or_moves_the_entries_of_engines(daemon, alice):
    (entry,) = daemon.entries()
    for uid in (BOB, ALICE):
        assert asks(daemon, uid, """
import os
root = sys.argv[3]
results = []
for call in (lambda: wire.Connection.to(root + "/sock"), lambda: os.listdir(root),
             lambda: os.rename(root, root + "x"), lambda: os.unlink(root + "/lock"),
             lambda: os.mkdir(os.path.dirname(root) + "/0123456789abcdef"),
             lambda: os.unlink(socket_path)):
    try:
        results.append(repr(call()))
    except PermissionError:
        pass
say(results)
""", daemon.directory / "engines" / entry) == []


def test_limits_are_counted_per_user(daemon):
    silent = User(daemon, BOB, """
held = [wire.Connection.to(socket_path) for _ in range(5)]
say(held[-1].wait_closed().code)
sys.stdin.read()
""")
    assert silent.line() == "LIMIT"
    jobs = [User(daemon, ALICE, OPEN_JOB) for _ in range(2)]
    assert [job.line()[0] for job in jobs] == ["WELCOME"] * 2
    refused = """
client = wire.Connection.to(socket_path)
try:
    client.send(wire.hello())
except BrokenPipeError:
    pass
answer = client.receive()
say([answer.type, answer.code if answer.type == "CLOSE" else ""])
"""
    assert asks(daemon, ALICE, refused) == ["CLOSE", "LIMIT"]
    silent.end()
    until(lambda: asks(daemon, BOB, refused) == ["WELCOME", ""])
    for user in jobs:
        user.end()


def test_a_restarted_gradwired_knows_whose_engine_it_adopts(daemon, alice):
    (before,) = daemon.jobs()
    daemon.stop()
    daemon.start()
    job = until(lambda: [j for j in daemon.jobs() if j["engine_pid"]])[0]
    assert (job["uid"], job["tag"], job["engine_pid"]) == (ALICE, before["tag"], alice.engine)
    denied = asks(daemon, BOB, """
client = wire.Connection.to(socket_path)
client.send(wire.hello(bytes.fromhex(sys.argv[3])))
say(client.wait_closed().code)
""", job["tag"])
    assert denied == "DENIED"


def test_gwctl_tells_what_is_not_allowed(daemon):
    if not os.access(GWCTL, os.X_OK) or not all(
            p.stat().st_mode & 0o005 == 0o005 for p in GWCTL.parents):
        pytest.skip(f"other users cannot run {GWCTL}")

    def ctl(uid, *args):
        return subprocess.run([str(GWCTL), "--runtime-dir", str(daemon.directory), *args], user=uid,
                              group=uid, extra_groups=GROUPS[uid], capture_output=True, text=True,
                              timeout=30 * SLOWER)

    for command in ("drain", "stop"):
        result = ctl(BOB, command)
        assert result.returncode == 77 and "admin.sock" in result.stderr, result
    assert ctl(BOB, "status").returncode == 0
    result = ctl(STRANGER, "jobs")
    assert result.returncode == 77 and "gradwired.sock" in result.stderr, result


# ---- an ordinary user's gradwired ----------------------------------------------------------------


class UserDaemon(Daemon):
    """Runs as BOB; needs nothing of root."""

    def command(self):
        return ["setpriv", f"--reuid={BOB}", f"--regid={BOB}", "--clear-groups", "--",
                *super().command()]


@pytest.fixture
def bobs(runtime_dir, fake_engine):
    if not all(p.stat().st_mode & 0o005 == 0o005 for p in GRADWIRED.parents):
        pytest.skip(f"other users cannot run {GRADWIRED}")
    os.chown(runtime_dir, BOB, BOB)
    config = runtime_dir.with_name(runtime_dir.name + ".conf")
    config.write_text("[job]\nlinger = 0\n")
    config.chmod(0o644)
    daemon = UserDaemon(runtime_dir, engine=fake_engine, args=["--config", str(config)])
    try:
        daemon.start()
        yield daemon
        daemon.assert_idle()
        assert daemon.stop() == 0
        assert os.listdir(runtime_dir) == []
    finally:
        daemon.clean()
        config.unlink()


def test_an_ordinary_users_gradwired_serves_that_user_only(bobs):
    welcome, engine, says = asks(bobs, BOB, OPEN_JOB)
    assert welcome == "WELCOME" and says.startswith(f"uid={BOB} gid={BOB} ")
    assert oct(os.stat(bobs.socket).st_mode & 0o777) == "0o600"
    # Even root, whom no mode of a file stops.
    with wire.Connection.to(bobs.socket) as root:
        close = root.wait_closed()
        assert close.code == "DENIED" and str(BOB) in close.reason, close
    assert asks(bobs, ALICE, CONNECT) == ["PermissionError"] * 2
    until(lambda: not running(engine))


# ---- GPUs ----------------------------------------------------------------------------------------

LEASE = """
client = wire.Connection.to(socket_path)
client.send(wire.hello())
client.receive()
def ask(gpu):
    return client.ask("DONE", {1: 0, 2: "lease " + gpu}).text(2)
say(ask(sys.argv[3]))
for _ in sys.stdin:
    say(ask(sys.argv[3]))
"""


def again(user):
    user.process.stdin.write("\n")
    user.process.stdin.flush()
    return user.line()


def test_of_another_users_gpu_only_that_it_is_used_is_told(daemon):
    gpu = "GPU-00112233-4455-6677-8899-aabbccddeeff"
    alice = User(daemon, ALICE, LEASE, gpu)
    assert alice.line().strip() == "lease 0 1"
    lock = daemon.directory / "gpus" / gpu
    assert lock.stat().st_uid == 0 and lock.stat().st_mode & 0o777 == 0o600
    tag, uid = lock.read_text().split()
    assert int(uid) == ALICE
    own, bob = User(daemon, ALICE, LEASE, gpu), User(daemon, BOB, LEASE, gpu)
    said = own.line()
    assert said.startswith("lease -10 0") and f"job {tag}" in said, said
    said = bob.line()
    assert said.startswith("lease -10 0") and "another user" in said and tag not in said, said
    alice.end()
    # Its engine's end frees it, without a word to anybody.
    until(lambda: again(bob).strip() == "lease 0 1", what="the GPU")
    for user in (own, bob):
        user.end()


FOLLOW = """
client = wire.Connection.to(socket_path)
client.send(wire.hello(bytes.fromhex(sys.argv[3]), spans=1))
welcome = client.receive()
say([welcome.type, welcome.number(3)])
sys.stdin.read()
"""


def test_who_knows_no_more_than_a_tag_keeps_nobody_from_the_job(daemon, alice):
    """Tags are public: one user's engine for a tag is not in the way of another's."""
    (tag,) = daemon.entries()
    bob = User(daemon, BOB, FOLLOW, tag)
    welcome, engine = bob.line()
    assert welcome == "WELCOME" and engine != alice.engine
    assert proc_status(engine, "Uid") == [str(BOB)] * 4
    assert daemon.entries() == [tag, f"{tag}.{BOB}"]
    for uid, want in ((ALICE, alice.engine), (BOB, engine)):
        assert asks(daemon, uid, FOLLOW, tag) == ["WELCOME", want]
    other = "0123456789abcdef"
    assert asks(daemon, BOB, FOLLOW, other)[0] == "WELCOME"
    assert asks(daemon, ALICE, FOLLOW, other)[0] == "WELCOME"
    bob.end()
