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
import sys

import pytest

from conftest import CONFIG, ENGINE, SANITIZE, SLOWER, Daemon, serving, until

PROGRAM = os.environ.get("GW_SUBMIT_CALLS") or os.path.join(
    os.environ["GRADWIRE_BUILD"], "tests/bin/submit_calls")
OPS, SUMS, RANKS, PARAMS = 200, 20, 2, 128
FEW = 32  # per sum; allocations: in all
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


class Ranks:
    """RANKS processes of one job that go on when told; and their engine."""

    def __init__(self, daemon, id_file, what):
        env = {**os.environ, "GRADWIRE_SOCKET": str(daemon.socket)}
        self.id_file = id_file
        self.processes = [subprocess.Popen([PROGRAM, what, str(rank), str(id_file)], env=env,
                                           text=True, stdout=subprocess.PIPE)
                          for rank in range(RANKS)]
        try:
            self.await_("started")
            self.engine = until(daemon.engines)[0]
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()

    def await_(self, word):
        assert [p.stdout.readline() for p in self.processes] == [f"{word}\n"] * RANKS

    def go(self, word):
        pathlib.Path(f"{self.id_file}.{word}").touch()

    def end(self):
        self.go("end")
        assert [p.wait(60 * SLOWER) for p in self.processes] == [0] * RANKS

    def traced(self, word, trace):
        """The engine's system calls, all threads', from `word` until all are done: counted."""
        tracer = subprocess.Popen(["strace", "-f", "-o", str(trace), "-p", str(self.engine)],
                                  stderr=subprocess.PIPE, text=True)
        try:
            while "attached" not in (line := tracer.stderr.readline()):
                assert line, "strace ended"
            self.go(word)
            self.await_("done")
        finally:
            tracer.terminate()
            tracer.communicate(timeout=60 * SLOWER)
        return collections.Counter(calls_of(trace))


def test_the_engine_s_calls_of_a_small_op(daemon, tmp_path):
    """No packet is sent or received; one call wakes all for one op; a wake-up of the engine
    costs two calls of epoll_wait, whoever rang, and no read."""
    with Ranks(daemon, tmp_path / "id", "ops") as ranks:
        calls = ranks.traced("go", tmp_path / "trace")
        ranks.end()
    print(dict(calls))
    assert calls["recvmsg"] == calls["sendmsg"] == calls["poll"] == 0
    assert calls["futex"] <= OPS + 20
    assert calls["read"] <= 20
    assert calls["epoll_wait"] + calls["epoll_pwait"] <= 2 * RANKS * OPS + 100


COUNT_ALLOCATIONS = """
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
static atomic_ulong none, *count = &none;
__attribute__((constructor)) static void start(void)
{
    int fd = open(getenv("COUNT_FILE"), O_RDWR | O_CLOEXEC);
    count = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
}
void *malloc(size_t n) { (*count)++; return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { (*count)++; return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { (*count)++; return __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { (*count)++; return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n)
{
    (*count)++;
    *p = __libc_memalign(a, n);
    return *p ? 0 : ENOMEM;
}
"""


@pytest.fixture
def counted(runtime_dir, tmp_path):
    """gradwired, and a function: how often its engines have asked for memory."""
    library, counter, config = tmp_path / "count.so", tmp_path / "count", tmp_path / "conf"
    engine = tmp_path / "engine"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", library],
                   input=COUNT_ALLOCATIONS, text=True, check=True, timeout=60)
    counter.write_bytes(bytes(8))
    engine.write_text(f'#!/bin/sh\nLD_PRELOAD={library} COUNT_FILE={counter} exec {ENGINE} "$@"\n')
    engine.chmod(0o755)
    config.write_text(CONFIG)
    with serving(Daemon(runtime_dir, engine, args=["--config", str(config)])) as daemon:
        yield daemon, lambda: int.from_bytes(counter.read_bytes(), sys.byteorder)


def test_nothing_is_done_per_chunk(counted, tmp_path):
    """A sum of 16 MiB, of 1,024 chunks in 64 blocks that threads take, costs the engine no more
    system calls, waits for locks and allocations than one of 64 KiB, but for a few that hand it to
    the threads and back."""
    daemon, allocations = counted
    with Ranks(daemon, tmp_path / "id", "sums") as ranks:
        calls, asked = {}, {}
        for size in ("small", "large"):
            if calls:
                ranks.await_("started")
            before = allocations()
            calls[size] = ranks.traced(size, tmp_path / size)
            asked[size] = allocations() - before
        ranks.end()
    print(asked, *(dict(found) for found in calls.values()))
    assert asked["small"] > 0
    assert asked["large"] - asked["small"] <= FEW
    assert sum(calls["large"].values()) - sum(calls["small"].values()) <= FEW * SUMS
    assert calls["large"]["futex"] - calls["small"]["futex"] <= FEW * SUMS
