# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests with real processes: a gradwired of their own, in a directory of its own.

After each test nothing may be left: no process, no socket, no entry; that is part of every test.
With $GW_RANKS_ON_NODES the ranks of tests that ask for `service` are spread over nodes (nodes.py).
With $GW_TEST_DEVICE=cuda every test also has GPUs of its own (fakegpus.py), runs under several
seeds of theirs, and fails when they saw a rule broken or something left.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import zlib

import pytest

import fakegpus
from gw import on_cuda

BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", "build/release")).resolve()
SLOWER = int(os.environ.get("GW_TEST_SLOWER", "1"))
SANITIZE = re.search(r"^GW_SANITIZE:STRING=(.*)$", (BUILD / "CMakeCache.txt").read_text(),
                     re.M)[1]  # -fsanitize= value of the build, or empty
NODES = "GW_RANKS_ON_NODES" in os.environ
HERE = pathlib.Path(__file__).resolve().parent

GRADWIRED = BUILD / "daemon/supervisor/gradwired"
GWCTL = BUILD / "client/ctl/gwctl"
ENGINE = BUILD / "daemon/engine/gradwire-engine"
PLUGINS = BUILD / "daemon/engine"  # the directory of gradwire-cuda.so


# Jobs of one test may meet on a GPU, but where leases are what is tested.
CONFIG = "[job]\nlinger = 0\n" + ("gpu_sharing = on\n" if on_cuda() else "")

SEEDS = int(os.environ.get("GW_CUDA_SEEDS", "5"))  # of each test function


# ---- GPUs ----------------------------------------------------------------------------------------


def pytest_configure(config):
    config.addinivalue_line("markers", "host_only(why): not run with $GW_TEST_DEVICE=cuda")
    config.addinivalue_line("markers", "cuda_only: run with $GW_TEST_DEVICE=cuda alone")
    config.addinivalue_line("markers", "one_node(why): not run with $GW_RANKS_ON_NODES")
    config.addinivalue_line("markers", "gpus(n, *options): GPUs, and options of their server")
    config.addinivalue_line("markers", "gpu_options(*options): more options of their server")
    config.addinivalue_line("markers", "no_gpus: nothing in it runs on GPUs")


def pytest_collection_modifyitems(config, items):
    other = "host_only" if on_cuda() else "cuda_only"
    left_out = [item for item in items if item.get_closest_marker(other)]
    if NODES:
        import nodes  # pylint: disable=import-outside-toplevel
        left_out += [item for item in items if not nodes.spreads(item) and item not in left_out]
    if on_cuda():
        left_out += seeds_too_many([item for item in items if item not in left_out])
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def seeds_too_many(items):
    """Deals SEEDS seeds over a function's parameters, at least one to each; what is beyond."""
    functions = {}
    for item in items:
        if hasattr(item, "callspec") and "gpus" in item.callspec.params:
            functions.setdefault((item.path, item.function), []).append(item)
    left_out = []
    for of_one in functions.values():
        of_one.sort(key=lambda item: item.callspec.params["gpus"])
        parameters = sum(item.callspec.params["gpus"] == 0 for item in of_one)
        left_out += of_one[max(SEEDS, parameters):]
    return left_out


def pytest_generate_tests(metafunc):
    """Every set of parameters with each seed; seeds_too_many chooses. Or on 2 and on 3 nodes."""
    if NODES and "cluster" in metafunc.fixturenames:
        import nodes  # pylint: disable=import-outside-toplevel
        metafunc.parametrize("cluster", nodes.COUNTS, indirect=True,
                             ids=[f"n{count}" for count in nodes.COUNTS])
    if on_cuda() and not metafunc.definition.get_closest_marker("no_gpus"):
        metafunc.parametrize("gpus", range(SEEDS), indirect=True,
                             ids=[f"s{k}" for k in range(SEEDS)])


@pytest.fixture(autouse=True)
def gpus(request, record_property):
    """fakegpus.FakeGpus of this test, in the environment of what it starts; None on the host."""
    if not on_cuda() or request.node.get_closest_marker("no_gpus"):
        yield None
        return
    mark = request.node.get_closest_marker("gpus")
    count, *options = mark.args if mark else (8,)
    seed = int(os.environ.get("GW_CUDA_SEED") or zlib.crc32(request.node.nodeid.encode()) % 1000000)
    for more in request.node.iter_markers("gpu_options"):
        options += more.args
    fake = fakegpus.FakeGpus(count, seed, options)
    print(f"GPUs with seed {seed} (GW_CUDA_SEED={seed} repeats them)")
    record_property("seed", seed)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # The second name is for engines of a gradwired that is root's.
            patch.setenv("FAKEGPU_SOCKET", str(fake.socket))
            patch.setenv("CUDA_FAKEGPU_SOCKET", str(fake.socket))
            yield fake
        fake.check()
    finally:
        fake.kill()


# ---- gradwired -----------------------------------------------------------------------------------


def device_args(device=None):
    """gradwired's options for the tests' device."""
    device = device or os.environ.get("GW_TEST_DEVICE", "host")
    return ["--device", device] + (["--plugins", str(PLUGINS)] if device == "cuda" else [])


def until(condition, timeout=20, what="the condition"):
    """Waits until condition() is true and returns its value; fails after the deadline."""
    deadline = time.monotonic() + timeout * SLOWER
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come within {timeout * SLOWER} s"
        time.sleep(0.02)


def running(pid):
    """Alive, and not a zombie that nobody has reaped yet."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Daemon:
    """One gradwired with its own runtime directory; started again it is the same place."""

    def __init__(self, directory, engine=None, env=None, args=()):
        self.directory = pathlib.Path(directory)
        self.socket = self.directory / "gradwired.sock"
        self.admin_socket = self.directory / "admin.sock"
        self.log_path = self.directory.with_name(self.directory.name + ".log")
        self.engine = engine or ENGINE
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
        self.env.update(env or {})
        self.args = list(args)
        self.process = None

    # ---- life ----

    def command(self):
        return [str(GRADWIRED), "--foreground", "--runtime-dir", str(self.directory), "--engine",
                str(self.engine), *self.args]

    def start(self):
        """Returns when it takes connections."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), env=self.env, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        until(self.answers, what=f"an answer of gradwired ({self.log()})")

    def answers(self):
        assert self.process.poll() is None, f"gradwired ended at start:\n{self.log()}"
        with contextlib.suppress(OSError), \
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(self.socket))
            return True
        return False

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    def stop(self, number=signal.SIGTERM):
        """Its exit code; engines stay."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.send_signal(number)
        code = self.process.wait(timeout=20 * SLOWER)
        self.process = None
        return code

    def alive(self):
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    # ---- questions ----

    ctl_path = str(GWCTL)

    def ctl(self, *args, timeout=60, check=True):
        """Runs gwctl; its result."""
        result = subprocess.run([self.ctl_path, "--runtime-dir", str(self.directory), *args],
                                env=self.env, capture_output=True, text=True,
                                timeout=timeout * SLOWER)
        if check:
            assert result.returncode == 0, result.stderr + self.log()
        return result

    def status(self):
        return json.loads(self.ctl("status", "--json").stdout)

    def jobs(self):
        return json.loads(self.ctl("jobs", "--json").stdout)["jobs"]

    def entries(self):
        """Names under engines/."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.directory / "engines"))
        return []

    def engines(self):
        """Pids of living engines: the processes that hold a lock in our directory."""
        prefix, found = str(self.directory / "engines") + "/", []
        inodes = set()
        for name in self.entries():
            with contextlib.suppress(OSError):  # it may end at any time
                inodes.add(os.stat(self.directory / "engines" / name / "lock").st_ino)
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                for fd in (entry / "fd").iterdir():
                    link = os.readlink(fd)
                    if link.startswith(prefix) and "/lock" in link and running(entry.name):
                        # Of a renamed or removed entry the link tells the old name.
                        found.append(int(entry.name))
                        break
                    if inodes and link.endswith("/lock") and os.stat(fd).st_ino in inodes:
                        found.append(int(entry.name))
                        break
        return sorted(set(found) - {self.process.pid if self.process else 0})

    def fds(self, pid=None):
        """Number of descriptors of gradwired."""
        return len(os.listdir(f"/proc/{pid or self.pid}/fd"))

    def shm_bytes(self):
        """Bytes of all memory files that gradwired and its engines hold."""
        files = {}
        for pid in self.engines() + ([self.pid] if self.alive() else []):
            with contextlib.suppress(OSError):
                for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if os.readlink(fd).startswith("/memfd:"):
                            status = os.stat(fd)
                            files[status.st_ino] = status.st_blocks * 512
        return sum(files.values())

    # ---- end ----

    def assert_idle(self, timeout=20):
        """No engine and no entry is left, within the deadline."""
        until(lambda: not self.engines() and not self.entries(), timeout,
              f"the end of engines {self.engines()} and entries {self.entries()} ({self.log()})")

    def clean(self):
        """Ends everything, by force if need be; what had to be forced is returned."""
        forced = []
        if self.alive():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
        if self.alive():
            forced.append(f"gradwired {self.pid}")
            self.stop(signal.SIGKILL)
        for pid in self.engines():
            forced.append(f"engine {pid}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return forced


@pytest.fixture
def runtime_dir():
    """A short path: sockets live in it. Removed afterwards, with the log beside it."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="gw-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)
    path.with_name(path.name + ".log").unlink(missing_ok=True)


@contextlib.contextmanager
def serving(daemon, linger_s=30):
    """Starts it, and checks at the end that it ends well and leaves nothing behind."""
    try:
        daemon.start()
        yield daemon
        # A test's clients are gone now; what they started has linger_s to end.
        if daemon.alive():
            with contextlib.suppress(AssertionError):
                until(lambda: not daemon.engines() and not daemon.entries(), linger_s)
        engines, entries = daemon.engines(), daemon.entries()
        code = daemon.stop()
        assert code in (0, None), f"gradwired ended with {code}:\n{daemon.log()}"
        assert not engines and not entries, f"left: {engines} {entries}\n{daemon.log()}"
        left = sorted(p.name for p in daemon.directory.iterdir())
        assert left == [], f"left in the runtime directory: {left}\n{daemon.log()}"
    except BaseException:
        print(daemon.log())
        raise
    finally:
        daemon.clean()


@pytest.fixture
def daemon(runtime_dir):
    """gradwired with the real engine; linger 0, so that nothing outlives its test."""
    if not ENGINE.exists():
        pytest.skip(f"{ENGINE} is not built")
    config = runtime_dir.with_name(runtime_dir.name + ".conf")
    config.write_text(CONFIG)
    try:
        args = ["--config", str(config), *device_args()]
        with serving(Daemon(runtime_dir, args=args)) as d:
            yield d
    finally:
        config.unlink(missing_ok=True)


@pytest.fixture
def make_nodes(runtime_dir):
    """make_nodes(count, more configuration) -> that many gradwireds on this machine, each as if on
    a node of its own: "node0", "node1", ...; they know nothing of each other."""
    if not ENGINE.exists():
        pytest.skip(f"{ENGINE} is not built")
    import nodes  # pylint: disable=import-outside-toplevel
    with contextlib.ExitStack() as stack:
        yield lambda count, more="": stack.enter_context(
            nodes.Cluster(runtime_dir, count, more, namespaces=False)).nodes


@pytest.fixture(scope="session")
def networks():
    """By number of nodes; for tests that leave them as they are, since each takes its time."""
    made = {}
    yield made
    for network in made.values():
        network.close()


@pytest.fixture
def cluster(request, runtime_dir, networks, record_property):
    """The nodes over which a test's ranks are spread; None where `daemon` serves them."""
    if not NODES:
        yield None
        return
    import network  # pylint: disable=import-outside-toplevel
    import nodes  # pylint: disable=import-outside-toplevel
    count = request.param
    if count not in networks:
        networks[count] = network.Network(count)
    with nodes.Cluster(runtime_dir, count, lent=networks[count]) as made:
        yield made
    idle = [n for n, node in enumerate(made.nodes) if not re.search(r"job .* started", node.log())]
    assert not idle, f"no rank was on nodes {idle}"
    record_property("nodes", count)


@pytest.fixture
def service(request, cluster):
    """What a test's ranks connect to: the socket of `daemon`, or those of several nodes."""
    if cluster is None:
        return str(request.getfixturevalue("daemon").socket)
    import nodes  # pylint: disable=import-outside-toplevel
    place = nodes.place_of(request.node, len(cluster.nodes))
    print(f"{len(cluster.nodes)} nodes, ranks {'dealt' if place == 'dealt' else 'in blocks'}")
    return cluster.spread(place)


@pytest.fixture
def daemons(request, cluster):
    """gradwireds of all nodes that `service` names."""
    return cluster.nodes if cluster else [request.getfixturevalue("daemon")]


@pytest.fixture(scope="session")
def fake_engine(tmp_path_factory):
    """The fake engine where any user can run it."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="gw-fake-", dir="/tmp"))
    place.chmod(0o755)
    for name in ("fake_engine.py", "wire.py"):
        shutil.copy(HERE / name, place / name)
        (place / name).chmod(0o755)
    yield place / "fake_engine.py"
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def make_daemon(runtime_dir, fake_engine):
    """make_daemon(mode, config text, args...) -> context: gradwired with the fake engine."""
    config = runtime_dir.with_name(runtime_dir.name + ".conf")

    def make(mode="", conf="[job]\nlinger = 0\n", args=(), directory=None, engine=None):
        config.write_text(conf)
        return serving(Daemon(directory or runtime_dir, engine=engine or fake_engine,
                              env={"GRADWIRE_FAKE": mode},
                              args=["--config", str(config), *args]))

    yield make
    config.unlink(missing_ok=True)
