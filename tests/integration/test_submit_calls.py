# SPDX-License-Identifier: Apache-2.0
"""System calls of the submission path, counted by strace: of a rank, and of its engine.

ctest: timeout=300
"""
import collections
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import SANITIZE, SLOWER, until

PROGRAM = os.environ.get("GW_SUBMIT_CALLS") or os.path.join(
    os.environ["GRADWIRE_BUILD"], "tests/bin/submit_calls")
OPS, RANKS, PARAMS = 200, 2, 128
ALLOCATOR = {"brk", "mmap", "munmap", "madvise"}  # it may grow when a batch is packed

pytestmark = pytest.mark.skipif(
    bool(SANITIZE), reason="a sanitizer makes calls of its own, and finds no leaks when traced")


@pytest.fixture(scope="module", autouse=True)
def strace(tmp_path_factory):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    out = tmp_path_factory.mktemp("strace") / "out"
    traced = subprocess.run(["strace", "-o", str(out), "true"], capture_output=True, text=True,
                            timeout=60 * SLOWER)
    if traced.returncode != 0:
        pytest.skip(f"strace cannot trace here: {traced.stderr.strip()}")


def calls_of(trace):
    """Names in order; of access() with what it was called with."""
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"(?:\d+ +)?(?:<\.\.\. )?(\w+)\((?:[^\"]*\"([^\"]*)\")?", line)
        if match and "resumed>" not in line.split("(")[0]:
            yield f"mark {match[2]}" if match[1] == "access" else match[1]


def between_marks(trace):
    """{name of the closing mark: [calls since "begin", ...]}."""
    found, open_calls = collections.defaultdict(list), None
    for call in calls_of(trace):
        if call == "mark begin":
            open_calls = []
        elif call.startswith("mark ") and open_calls is not None:
            found[call[5:]].append(open_calls)
            open_calls = None
        elif open_calls is not None:
            open_calls.append(call)
    return found


def run_traced(daemon, tmp_path, what):
    trace = tmp_path / "trace"
    env = {**os.environ, "GRADWIRE_SOCKET": str(daemon.socket)}
    run = subprocess.run(["strace", "-f", "-o", str(trace), PROGRAM, what], env=env,
                         capture_output=True, text=True, timeout=200 * SLOWER)
    assert run.returncode == 0, (run.returncode, run.stderr)
    return between_marks(trace)


def test_a_fetch_that_hits_makes_no_system_call(daemon, tmp_path):
    """Nor its wait, its pointer and its release, where all of the step is gathered ahead."""
    found = run_traced(daemon, tmp_path, "fetch")
    assert len(found["hit"]) >= 10 and len(found["no hit"]) > 0
    assert [calls for calls in found["hit"] if calls] == []


def test_a_gradient_is_declared_without_a_system_call(daemon, tmp_path):
    """But for those that complete one of the four buckets, which may ring once each."""
    found = run_traced(daemon, tmp_path, "ready")
    assert len(found["ready"]) == PARAMS
    made = [call for calls in found["ready"] for call in calls if call not in ALLOCATOR]
    assert len(made) <= 4 and set(made) <= {"write"}, made


def wait_attached(tracer):
    while True:
        line = tracer.stderr.readline()
        assert line, "strace ended"
        if "attached" in line:
            return


def test_the_engine_s_calls_of_a_small_op(daemon, tmp_path):
    """No packet is sent or received; one call wakes all for one op; a wake-up of the engine
    costs two calls of epoll_wait, whoever rang, and no read."""
    id_file, trace = tmp_path / "id", tmp_path / "trace"
    env = {**os.environ, "GRADWIRE_SOCKET": str(daemon.socket)}
    ranks = [subprocess.Popen([PROGRAM, "ops", str(rank), str(id_file)], env=env, text=True,
                              stdout=subprocess.PIPE) for rank in range(RANKS)]
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "started\n"
        engine = until(daemon.engines)[0]
        tracer = subprocess.Popen(["strace", "-f", "-o", str(trace), "-p", str(engine)],
                                  stderr=subprocess.PIPE, text=True)
        try:
            wait_attached(tracer)
            pathlib.Path(f"{id_file}.go").touch()
            for rank in ranks:
                assert rank.stdout.readline() == "done\n"
        finally:
            tracer.terminate()
            tracer.communicate(timeout=60 * SLOWER)
        pathlib.Path(f"{id_file}.end").touch()
        assert [rank.wait(60 * SLOWER) for rank in ranks] == [0] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.stdout.close()
    calls = collections.Counter(calls_of(trace))
    print(dict(calls))
    assert calls["recvmsg"] == calls["sendmsg"] == calls["poll"] == 0
    assert calls["futex"] <= OPS + 20
    assert calls["read"] <= 20
    assert calls["epoll_wait"] + calls["epoll_pwait"] <= 2 * RANKS * OPS + 100
