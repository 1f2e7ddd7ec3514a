# SPDX-License-Identifier: Apache-2.0
"""What the client library promises its callers, over real processes: threads, forks, deadlines,
event loops, and a typed error in bounded time whatever dies. ctest: timeout=600
"""
import contextlib
import ctypes as C
import os
import select
import signal
import subprocess
import threading
import time

import pytest

import gw
from conftest import SLOWER, until

S = gw.S
TEXT_ONE_LINE = 500
BOUND_S = 10 * SLOWER  # ten times the second that is promised


@pytest.fixture
def where(daemon, tmp_path):
    return {"socket": str(daemon.socket), "id": str(tmp_path / "job.id"), "dir": str(tmp_path)}


def attach(rank, world, where, **options):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1, **options)
    job.wait_ready(60 * S)
    return job


def flag(where, name):
    open(os.path.join(where["dir"], name), "w").close()


def await_flag(where, name, seconds=60):
    until(lambda: os.path.exists(os.path.join(where["dir"], name)), seconds, name)


def error(call, *args, **kwargs):
    """Name and text of the error that it must end with."""
    with pytest.raises(gw.Error) as caught:
        call(*args, **kwargs)
    return caught.value.name, caught.value.text


# ---- connecting ----------------------------------------------------------------------------------


def test_no_daemon_is_one_line_that_says_what_to_do(tmp_path):
    path = tmp_path / "gradwired.sock"
    name, text = error(gw.Job, 0, 1, socket=str(path))
    assert name == "GW_E_NO_DAEMON"
    assert str(path) in text and f"gradwired --runtime-dir {tmp_path})" in text
    assert "\n" not in text and len(text) < TEXT_ONE_LINE


def test_socket_path_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADWIRE_SOCKET", str(tmp_path / "elsewhere.sock"))
    name, text = error(gw.Job, 0, 1)
    assert name == "GW_E_NO_DAEMON" and "elsewhere.sock" in text


def test_a_socket_path_that_is_too_long_is_refused(tmp_path):
    name, text = error(gw.Job, 0, 1, socket="/tmp/" + "x" * 200)
    assert name == "GW_E_INVALID" and "205" in text and "107" in text


@pytest.mark.parametrize("rank, world, part", [(0, 0, "world is 0"), (2, 2, "rank is 2"),
                                               (0, 1025, "world is 1025")])
def test_ranks_that_cannot_be_are_refused_before_connecting(rank, world, part):
    name, text = error(gw.Job, rank, world, socket="/nowhere")
    assert name == "GW_E_INVALID" and part in text


def test_a_silent_daemon_times_out(tmp_path):
    import socket
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(1)
        started = time.monotonic()
        name, text = error(gw.Job, 0, 1, socket=path, timeout_ns=S // 5)
        assert name == "GW_E_TIMEOUT" and path in text
        assert time.monotonic() - started < BOUND_S


def test_an_id_of_a_job_that_is_gone_is_not_found(where):
    job = attach(0, 1, where)
    job.close()
    name, text = until(lambda: refused_join(where), 20, "NOT_FOUND")
    assert name == "GW_E_NOT_FOUND" and where["socket"] in text


def refused_join(where):
    """None while the old engine is still ending."""
    try:
        gw.Job(0, 1, id_path=where["id"], socket=where["socket"]).close()
    except gw.Error as e:
        return (e.name, e.text) if e.name == "GW_E_NOT_FOUND" else None
    return None


# ---- threads -------------------------------------------------------------------------------------

THREADS, ROUNDS = 4, 30


def threads_rank(rank, where):
    job = attach(rank, 2, where)
    # Ops of one group must come in one order on all ranks: so one group per thread.
    groups = [job.group([0, 1]) for _ in range(THREADS)]
    problems, done = [], threading.Event()

    def reduce(t):
        try:
            buffer = job.buffer(4 * 4)
            for i in range(ROUNDS):
                buffer.floats[0:4] = [rank + 1 + t + i] * 4
                job.wait(job.all_reduce(buffer.at(), buffer.at(), 4, group=groups[t],
                                        name=f"thread {t}"), 60 * S)
                if list(buffer.floats) != [3.0 + 2 * (t + i)] * 4:
                    problems.append((t, i, list(buffer.floats)))
            buffer.free()
        except Exception as e:  # noqa: BLE001: all of them fail the test
            problems.append((t, repr(e)))

    def ask():
        try:
            while not done.is_set():
                job.stats(60 * S)
        except Exception as e:  # noqa: BLE001
            problems.append(("stats", repr(e)))

    workers = [threading.Thread(target=reduce, args=(t,)) for t in range(THREADS)]
    asker = threading.Thread(target=ask)
    for w in workers + [asker]:
        w.start()
    for w in workers:
        w.join()
    done.set()
    asker.join()
    calls = job.stats().kinds[gw.KINDS.index("all_reduce")].calls
    job.barrier()
    job.close()
    return problems, calls


def test_every_call_may_come_from_any_thread(where):
    for problems, calls in gw.run(2, threads_rank, where, timeout=120 * SLOWER):
        assert problems == []
        assert calls == THREADS * ROUNDS


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_threads_of_a_whole_step(where, stage):
    program = os.environ.get("GW_CLIENT_THREADS") or os.path.join(
        os.environ["GRADWIRE_BUILD"], "tests/bin/client_threads")
    env = {**os.environ, "GRADWIRE_SOCKET": where["socket"]}
    ranks = [subprocess.Popen([program, str(r), "2", where["id"], str(stage), "4"], env=env,
                              stderr=subprocess.PIPE, text=True) for r in range(2)]
    said = [r.communicate(timeout=120 * SLOWER)[1] for r in ranks]
    assert [r.returncode for r in ranks] == [0, 0], said


def fill(values, n, value):
    for i in range(n):
        values[i] = value


def produced_rank(rank, where):
    """A gradient that another thread of the process is still writing: its token holds the sum."""
    job = attach(rank, 2, where)
    job.param("w", 32)
    job.seal(stage=2, bucket_bytes=128, scale=1.0)
    timeline = job.timeline()
    seen = []
    for step in range(1, 4):
        values, n = job.acquire(0)
        fill(values, n, -100.0)

        def produce(values=values, n=n, step=step):
            time.sleep(0.05)
            fill(values, n, step * (rank + 1.0))
            job.raise_timeline(timeline, step)

        producer = threading.Thread(target=produce)
        producer.start()
        job.ready(0, tokens=[gw.Token(timeline, 0, step)])
        job.wait(gw.Token(timeline, 0, step))
        job.step_end()
        job.wait_step()
        seen.append(job.grads())
        producer.join()
    stats = job.stats()
    job.close()
    return seen, stats.late_ns + stats.queued_ns + stats.exposed_ns + stats.wakeup_ns


def test_a_reduction_waits_for_its_producers(where):
    for seen, waited in gw.run(2, produced_rank, where):
        assert seen == [[[3.0 * step] * 16] for step in (1, 2, 3)]
        assert waited > 0


# ---- tokens and deadlines ------------------------------------------------------------------------


def deadlines_rank(rank, where):
    job = attach(rank, 2, where)
    out = {}
    if rank == 1:
        await_flag(where, "waited")
        job.barrier()
        job.barrier()
        job.close()
        return out
    first, second = job._op("gw_barrier"), job._op("gw_barrier")
    tokens = (gw.Token * 2)(second, first)
    index = C.c_size_t()
    out["wait"] = error(job.wait, first, S // 10)
    out["poll"] = error(job.wait, first, 0)
    out["any"] = error(gw.call, "gw_wait_any", job.handle, tokens, C.c_size_t(2),
                       C.c_int64(S // 50), C.byref(index))
    out["test"] = job.test(first)
    flag(where, "waited")
    gw.call("gw_wait_any", job.handle, tokens, C.c_size_t(2), C.c_int64(20 * S), C.byref(index))
    out["index"] = index.value
    gw.call("gw_wait_all", job.handle, tokens, C.c_size_t(2), C.c_int64(20 * S))
    out["after"] = [job.test(first), job.test(second), job.test(gw.Token())]
    out["foreign"] = error(job.wait, gw.Token(0x02000000, 0, 1))
    job.close()
    return out


def test_a_token_stays_valid_after_its_deadline(where):
    out, _ = gw.run(2, deadlines_rank, where)
    assert out["wait"][0] == out["poll"][0] == out["any"][0] == "GW_E_TIMEOUT"
    assert out["test"] == 0
    assert out["index"] in (0, 1)
    assert out["after"] == [1, 1, 1]
    assert out["foreign"][0] == "GW_E_INVALID"


def resumed_rank(rank, where):
    if rank == 1:
        await_flag(where, "tried")
    job = gw.Job(rank, 2, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    out = {}
    if rank == 0:
        out["ready"] = error(job.wait_ready, S // 10)
        flag(where, "tried")
    job.wait_ready()
    for i in range(300):  # several pages
        job.param(f"p{i}", 3)
    if rank == 0:
        out["seal"] = error(job.seal, S // 10, stage=3, bucket_bytes=256)
        out["other"] = error(job.seal, S // 10, stage=2, bucket_bytes=256)
        flag(where, "sealed")
    else:
        await_flag(where, "sealed")
    job.seal(stage=3, bucket_bytes=256)
    out["numel"] = job.layout().numel
    job.barrier()
    job.close()
    return out


def test_set_up_calls_can_be_repeated_after_their_deadline(where):
    out, other = gw.run(2, resumed_rank, where)
    assert out["ready"][0] == "GW_E_TIMEOUT"
    assert out["seal"][0] == "GW_E_TIMEOUT"
    assert out["other"][0] == "GW_E_STATE"
    assert out["numel"] == other["numel"] == 900


def stopped_rank(rank, where):
    """The engine stands still: one-way calls return all the same, and nothing is lost."""
    job = attach(rank, 1, where)
    job.param("w", 16, "u")
    job.seal(stage=0, bucket_bytes=64)
    flag(where, "there")
    await_flag(where, "stopped")
    started = time.monotonic()
    for _ in range(1500):
        token = job.fetch(0)
        job.release(0)
    seconds = time.monotonic() - started
    late = job.test(token)
    timeout = error(job.wait, token, S // 20)
    flag(where, "sent")
    job.wait(token, 60 * S)
    job.close()
    return seconds, late, timeout


def test_one_way_calls_never_block(where, daemon):
    ranks = gw.Ranks(1, stopped_rank, where)
    await_flag(where, "there")
    (engine,) = daemon.engines()
    os.kill(engine, signal.SIGSTOP)
    try:
        flag(where, "stopped")
        await_flag(where, "sent")
    finally:
        os.kill(engine, signal.SIGCONT)
    ((kind, value),) = ranks.join(60 * SLOWER)
    assert kind == "ok", value
    seconds, late, timeout = value
    print(f"3,000 calls to a stopped engine took {seconds:.3f} s")
    assert late == 0 and timeout[0] == "GW_E_TIMEOUT"
    assert seconds < BOUND_S


# ---- refusals of the ZeRO layer ------------------------------------------------------------------


def refusals_rank(rank, where):
    job = attach(rank, 1, where)
    out = {}
    out["early"] = error(job.fetch, 0)
    job.param("first.weight", 10, "a")
    job.param("empty", 0, "a")
    job.param("second.weight", 6, "b")
    out["bucket"] = error(job.seal, stage=1, bucket_bytes=0)
    out["stage"] = error(job.seal, stage=4, bucket_bytes=64)
    job.seal(stage=1, bucket_bytes=64, micro_steps=2)
    out["late add"] = error(job.param, "x", 1)
    out["ptr"] = error(job.values, 0, 10)
    out["release"] = error(job.release, 0)
    out["ready"] = error(job.ready, 0)
    out["piece"] = error(job.acquire, 0, 1)
    job.put(0, [1.0] * 10)
    out["twice"] = error(job.put, 0, [1.0] * 10)
    out["write"] = error(job.write, 0, [1.0])
    out["begin"] = error(job.update_begin)
    job.micro_step_end()
    out["final"] = error(job.put, 0, [1.0] * 10)
    out["accumulate"] = error(job.put, 2, [1.0] * 6, flags=gw.ACCUMULATE)
    out["micro"] = error(job.micro_step_end)
    out["verdict"] = error(job.wait_step)
    out["used"] = error(job.used, 0)
    job.wait(job.fetch(1))
    out["held"] = error(job.step_end)
    job.release(1)
    job.step_end()
    job.wait_step()
    out["uses"] = [job.used(0), job.used(1), job.used(2)]
    out["commit"] = error(job.update_commit)
    job.wait(job.update_begin())
    out["again"] = error(job.update_begin)
    out["end"] = error(job.step_end)
    job.update_commit()
    out["done"] = error(job.update_begin)
    out["read"] = job.read(0, 10)
    out["past"] = error(job.read, 0, 5, offset=6)
    job.close()
    return out


def test_misuse_is_a_named_error_and_ends_nothing(where):
    (out,) = gw.run(1, refusals_rank, where)
    named = {"early": "STATE", "bucket": "INVALID", "stage": "INVALID", "late add": "STATE",
             "ptr": "STATE", "release": "STATE", "ready": "STATE", "piece": "INVALID",
             "twice": "DUPLICATE", "write": "STATE", "begin": "STATE", "final": "STATE",
             "accumulate": "STATE", "micro": "STATE", "verdict": "STATE", "used": "STATE",
             "held": "STATE", "commit": "STATE", "again": "STATE", "end": "STATE", "done": "STATE",
             "past": "INVALID"}
    assert {what: out[what][0] for what in named} == {w: "GW_E_" + n for w, n in named.items()}
    for what in ("ptr", "ready", "piece", "twice", "final"):
        assert "first.weight" in out[what][1], what
    assert "second.weight" in out["accumulate"][1]
    assert "unit b" in out["held"][1]
    assert out["uses"] == [1, 0, 0]
    assert out["read"] == [0.0] * 10


# ---- forks ---------------------------------------------------------------------------------------


def in_child(job, fds):
    """Names of what the handle answers in a forked child; what is open and mapped there."""
    names = []
    for attempt in (job.stats, job.barrier, job.id, job.tag, job.step_end, job.timeline,
                    lambda: job.wait(gw.Token()), lambda: job.buffer(16)):
        try:
            attempt()
            names.append("ok")
        except gw.Error as e:
            names.append(e.name)
    still = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
    with open("/proc/self/maps") as maps:
        mapped = [line.split()[-2:] for line in maps if "memfd:gradwire" in line]
    job.close()
    return repr((names, still, mapped))


def service_fds():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(("socket:", "anon_inode:")):
                found.append(int(fd))
    return found


def forking_rank(rank, where):
    before = service_fds()
    job = attach(rank, 2, where)
    buffer = job.buffer(4096)
    job.param("w", 5000)
    job.seal(stage=2, bucket_bytes=8192)
    fd = C.c_int()
    gw.call("gw_job_event_fd", job.handle, C.byref(fd))
    ours = [f for f in service_fds() if f not in before]
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(into, in_child(job, ours).encode())
        os._exit(0)
    os.close(into)
    told = b""
    while part := os.read(out, 65536):
        told += part
    os.waitpid(child, 0)
    buffer.floats[0] = 1.0 + rank
    job.wait(job.all_reduce(buffer.at(), buffer.at(), 1))
    value = buffer.floats[0]
    job.close()
    return eval(told.decode()), len(ours), value  # noqa: S307: our own child's repr


def test_a_forked_child_holds_nothing(where):
    for (names, still, mapped), ours, value in gw.run(2, forking_rank, where):
        assert set(names) == {"GW_E_FORKED"}
        assert ours >= 4  # socket, doorbell, event, epoll
        assert still == [] and mapped == []
        assert value == 3.0


# ---- event loops ---------------------------------------------------------------------------------


def looping_rank(rank, where):
    job = attach(rank, 2, where)
    fd = C.c_int()
    gw.call("gw_job_event_fd", job.handle, C.byref(fd))
    poll = select.poll()
    poll.register(fd.value, select.POLLIN)
    rounds = 0
    for i in range(20):
        if i % 2 != rank:
            time.sleep(0.01)
        token = job._op("gw_barrier")
        while not job.test(token):
            assert poll.poll(20000 * SLOWER), "nothing came"
            gw.call("gw_job_event_clear", job.handle)
            rounds += 1
    own = job.timeline()
    gw.call("gw_job_event_clear", job.handle)
    job.raise_timeline(own, 1)  # no engine raises it, yet whoever waits for it must hear of it
    assert poll.poll(0), "an own timeline has risen"
    flag(where, f"looped{rank}")
    await_flag(where, "killed")
    deadline = time.monotonic() + BOUND_S
    failed = None
    while failed is None and time.monotonic() < deadline:
        assert poll.poll(20000 * SLOWER), "the end was not seen"
        gw.call("gw_job_event_clear", job.handle)
        try:
            job.test(gw.Token(0x01000000, 0, 1 << 60))
        except gw.Error as e:
            failed = e.name
    job.close()
    return rounds, failed


def test_an_event_loop_sees_tokens_and_the_end(where, daemon):
    ranks = gw.Ranks(2, looping_rank, where)
    for rank in range(2):
        await_flag(where, f"looped{rank}")
    (engine,) = daemon.engines()
    os.kill(engine, signal.SIGKILL)
    flag(where, "killed")
    for kind, value in ranks.join(60 * SLOWER):
        assert kind == "ok", value
        rounds, failed = value
        assert rounds < 20 * 10  # woken, not spinning
        assert failed == "GW_E_ENGINE_LOST"


# ---- a dead engine -------------------------------------------------------------------------------


def timed(call, *args):
    """How it failed, and the clock then."""
    try:
        call(*args)
        return "ok", "", time.monotonic()
    except gw.Error as e:
        return e.name, e.text, time.monotonic()


def orphans_rank(rank, where):
    """Rank 0 waits in every way there is, for things that rank 1 never does."""
    job = attach(rank, 2, where)
    job.param("w", 64)
    job.param("v", 64)
    job.seal(stage=2, bucket_bytes=256, ring_slots=1)
    if rank == 1:
        await_flag(where, "killed")
        got = [timed(job.barrier, 60 * S)]
        job.close()
        return got
    reached = job.fetch(0)
    job.wait(reached)
    job.release(0)
    barrier = job._op("gw_barrier")
    job.put(1, [1.0] * 64)  # holds the only slot; rank 1 never gives its part
    calls = [lambda: job.wait(barrier, 60 * S), lambda: job.acquire(0, 0, 60 * S),
             lambda: job.group([0, 1], 60 * S), lambda: job.measure(60 * S),
             lambda: job.write(0, [1.0], 0, 60 * S)]
    results = [None] * len(calls)

    def run(i):
        results[i] = timed(calls[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    time.sleep(0.3)
    flag(where, "waiting")
    for t in threads:
        t.join()
    results.append(timed(job.stats))
    results.append(timed(lambda: job.wait(reached)))  # was reached before: still is
    job.close()
    return results


def test_a_dead_engine_ends_every_wait(where, daemon):
    ranks = gw.Ranks(2, orphans_rank, where)
    await_flag(where, "waiting")
    (engine,) = daemon.engines()
    killed = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    flag(where, "killed")
    first, second = ranks.join(120 * SLOWER)
    assert first[0] == second[0] == "ok", (first, second)
    waits, (state, _, _) = first[1][:-1], first[1][-1]
    print("typed errors after", [f"{at - killed:.3f} s" for _, _, at in waits])
    # Some are refused at once (gradients are declared): those say STATE.
    assert [name for name, _, _ in waits[:3]] == ["GW_E_ENGINE_LOST"] * 3, waits
    assert all(name in ("GW_E_ENGINE_LOST", "GW_E_STATE") for name, _, _ in waits), waits
    assert all(at - killed < BOUND_S for _, _, at in waits)
    assert "engine" in waits[0][1]
    assert state == "ok"
    assert second[1][0][0] == "GW_E_ENGINE_LOST"


def interrupted_rank(rank, where):
    """Signals end each nap of the wait, none ends by time. Rank 1 never comes to the barrier."""
    job = attach(rank, 2, where)
    token, handled, got = None, [], None
    if rank == 0:
        token = job._op("gw_barrier")
        signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
        signal.siginterrupt(signal.SIGALRM, True)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        until(lambda: handled, what="a signal")
    flag(where, f"ready{rank}")
    if rank == 0:
        got = timed(job.wait, token, 60 * S)
        signal.setitimer(signal.ITIMER_REAL, 0)
        flag(where, "over")
    await_flag(where, "over", 120)
    job.close()
    return got


def test_a_dead_engine_ends_a_wait_that_signals_interrupt(where, daemon):
    ranks = gw.Ranks(2, interrupted_rank, where)
    for rank in range(2):
        await_flag(where, f"ready{rank}")
    (engine,) = daemon.engines()
    killed = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    (kind, got), second = ranks.join(150 * SLOWER)
    assert kind == "ok" and second == ("ok", None), (got, second)
    name, _, at = got
    print(f"typed error after {at - killed:.3f} s")
    assert name == "GW_E_ENGINE_LOST"
    assert at - killed < BOUND_S


# ---- GRADWIRE_DEBUG=guard ------------------------------------------------------------------------

PAGE = os.sysconf("SC_PAGESIZE")
LARGE = PAGE  # elements: four pages of fp32


def guarded_step(job, stage):
    """One step within the contract; the values that it ends with."""
    for unit in range(2):
        job.wait(job.fetch(unit))
        job.values(unit, LARGE)
        job.release(unit)
    for param in (1, 0):
        job.put(param, [1.0] * LARGE)
    job.step_end()
    job.wait_step()
    job.wait(job.update_begin())
    for span in job.spans():
        for i in range(0, span.valid_numel, 512):
            span.params[i] -= span.grads[i]
    job.update_commit()


def guarded_rank(rank, where, stage, gather, stray):
    job = attach(rank, 1, where)
    for param in range(2):
        job.param(f"p{param}", LARGE, f"u{param}")
    job.seal(stage=stage, gather=gather, bucket_bytes=4 * LARGE, shard_align_bytes=4096)
    guarded_step(job, stage)
    guarded_step(job, stage)
    if stray == "late store":
        values, n = job.acquire(1)
        values[n // 2] = 1.0
        job.ready(1)
        values[n // 2] = 2.0
    elif stray == "stale read":
        job.wait(job.fetch(0))
        pointer = C.POINTER(C.c_float)()
        gw.call("gw_param_ptr", job.handle, C.c_uint32(0), C.byref(pointer))
        _ = pointer[LARGE // 2]
        job.release(0)
        _ = pointer[LARGE // 2]
    elif stray == "early update":
        job.spans()[0].params[0] = 1.0
    values = job.read(0, 1)
    job.close()
    return values


@pytest.mark.parametrize("stage, gather", [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)])
@pytest.mark.parametrize("stray", ["none", "late store", "stale read", "early update"])
def test_guard_takes_access_away_outside_the_windows(where, monkeypatch, stage, gather, stray):
    # The fault is what is asked for: a sanitizer must not report it.
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0")
    monkeypatch.setenv("TSAN_OPTIONS", os.environ.get("TSAN_OPTIONS", "") + ":handle_segv=0")
    ranks = gw.Ranks(1, guarded_rank, where, stage, gather, stray, env={"GRADWIRE_DEBUG": "guard"},
                     start="spawn")
    ((kind, value),) = ranks.join(60 * SLOWER)
    if stray == "none":
        assert (kind, value) == ("ok", [-2.0])
    else:
        assert (kind, value) == ("died", -signal.SIGSEGV)


# ---- views ---------------------------------------------------------------------------------------


def stray_rank(rank, where, stage, gather):
    """A store into what was fetched."""
    job = attach(rank, 1, where)
    job.param("w", LARGE)
    job.seal(stage=stage, gather=gather, bucket_bytes=4 * LARGE)
    job.wait(job.fetch(0))
    view = job.values(0, LARGE, whole=True)
    _ = view[0]
    view[0] = 1.0
    return "stored"


@pytest.mark.parametrize("stage, gather", [(0, 0), (2, 0), (3, 0), (3, 1)])
def test_what_was_fetched_cannot_be_written(where, monkeypatch, stage, gather):
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0")
    monkeypatch.setenv("TSAN_OPTIONS", os.environ.get("TSAN_OPTIONS", "") + ":handle_segv=0")
    ranks = gw.Ranks(1, stray_rank, where, stage, gather, start="spawn")
    assert ranks.join(60 * SLOWER) == [("died", -signal.SIGSEGV)]


# ---- figures -------------------------------------------------------------------------------------


def figures_rank(rank, where):
    job = attach(rank, 2, where)
    job.param("w", 1000)
    job.seal(stage=1, bucket_bytes=4000)
    for _ in range(3):
        if rank == 1:
            time.sleep(0.05)  # rank 0 waits: late
        job.put(0, [1.0] * 1000)
        job.step_end()
        job.wait_step()
    stats = job.stats()
    job.close()
    return {n: getattr(stats, n) for n in ("steps", "copied_in_bytes", "late_ns", "queued_ns",
                                           "exposed_ns", "wakeup_ns")}


def test_waits_are_told_by_cause(where):
    first, second = gw.run(2, figures_rank, where)
    assert first["steps"] == second["steps"] == 3
    assert first["copied_in_bytes"] == 3 * 4000
    print("rank 0 waited", first, "rank 1", second)
    assert first["late_ns"] > 0
    assert first["late_ns"] > first["exposed_ns"]
