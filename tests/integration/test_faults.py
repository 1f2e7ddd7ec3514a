# SPDX-License-Identifier: Apache-2.0
"""What happens when something dies: a rank in every state, an engine, the daemon under load.

After a rank's death the others are told, the shards stay, and the same ranks form the job anew; a
shard whose owner died inside its update is never served.
ctest: device=cuda
"""
import hashlib
import os
import signal
import time

import pytest

import gw

S = gw.S
NUMELS = [10, 30]
INITIAL = [3.0, 5.0]
LINGER = 8 * S

# In the order of a rank's life; each is reached by both ranks, then rank 1 kills itself.
STATES = ["joined", "registered", "sealed", "written", "fetched", "acquired", "ready", "step_ended",
          "verdict", "updating", "committed"]


@pytest.fixture
def where(daemon, tmp_path):
    return {"socket": str(daemon.socket), "id": str(tmp_path / "job.id"), "dir": str(tmp_path)}


def attach(rank, where, stage):
    job = gw.Job(rank, 2, id_path=where["id"], socket=where["socket"], linger_ns=LINGER)
    job.wait_ready()
    return job


def seal(job, stage):
    for j, numel in enumerate(NUMELS):
        job.param(f"p{j}", numel, f"u{j}")
    job.seal(stage=stage, bucket_bytes=64)


def forward(job):
    seen = []
    for u in range(2):
        job.wait(job.fetch(u))
        seen.append(job.values(u, NUMELS[u]))
        job.release(u)
    return seen


def backward(job):
    for j in (1, 0):
        job.put(j, [1.0] * NUMELS[j])


def apply(job):
    """params -= gradient (which is 1 everywhere)."""
    for s in job.spans():
        n = s.valid_numel
        gw.fill(s.params, n, [p - g for p, g in zip(s.params[0:n], s.grads[0:n])])


def end_step(job):
    job.step_end()
    job.wait_step()
    job.wait(job.update_begin())
    apply(job)
    job.update_commit()


def one_step(job):
    seen = forward(job)
    backward(job)
    end_step(job)
    return seen


def until(job, state, stage, where, rank):
    """Runs a first whole step, then as far as `state`."""
    if state == "joined":
        return
    if state == "registered":
        for j, numel in enumerate(NUMELS):
            job.param(f"p{j}", numel, f"u{j}")
        return
    seal(job, stage)
    if state == "sealed":
        return
    if rank == 0:
        for j in range(2):
            job.write(j, [INITIAL[j]] * NUMELS[j])
    job.barrier()
    if state == "written":
        return
    one_step(job)
    job.wait(job.fetch(0))
    if state == "fetched":
        return
    job.release(0)
    p, n = job.acquire(1)
    if state == "acquired":
        return
    gw.fill(p, n, 1.0)
    job.ready(1)
    if state == "ready":
        return
    for k in range(1, len(job.pieces(1))):
        gw.fill(*job.acquire(1, k), 1.0)
        job.ready(1, k)
    job.put(0, [1.0] * NUMELS[0])
    job.step_end()
    if state == "step_ended":
        return
    job.wait_step()
    if state == "verdict":
        return
    job.wait(job.update_begin())
    apply(job)
    if state == "updating":
        return
    job.update_commit()
    if gw.GPU:
        # A commit counts once the engine was told that the stream has come to it; that goes before
        # what a fetch waits for.
        job.wait(job.fetch(0))
        job.release(0)


def flag(where, name):
    open(os.path.join(where["dir"], name), "w").close()


def await_flag(where, name, seconds=30):
    deadline = time.monotonic() + seconds
    while not os.path.exists(os.path.join(where["dir"], name)):
        assert time.monotonic() < deadline, f"no {name}"
        time.sleep(0.005)


def dying_rank(rank, where, state, stage):
    """Rank 1: up to the state, then SIGKILL; with .again: joins anew and runs a step."""
    job = attach(rank, where, stage)
    until(job, state, stage, where, rank)
    if rank == 1:
        flag(where, "there")
        await_flag(where, "both")
        os.kill(os.getpid(), signal.SIGKILL)
    await_flag(where, "there")
    flag(where, "both")
    t0 = time.monotonic()
    try:
        job.barrier(30 * S)
        told = None
    except gw.Error as e:
        told = (e.name, e.text, time.monotonic() - t0)
    job.close()
    return told, second_life(rank, where, state, stage)


def second_life(rank, where, state, stage):
    job = attach(rank, where, stage)
    try:
        seal(job, stage)
    except gw.Error as e:
        job.close()
        return e.name, e.text
    if state in ("joined", "registered", "sealed"):
        if rank == 0:
            for j in range(2):
                job.write(j, [INITIAL[j]] * NUMELS[j])
        job.barrier()
    first = one_step(job)
    second = forward(job)
    generation = job.generation()
    job.barrier()
    job.close()
    return generation, [v[0] for v in first], [v[0] for v in second], \
        all(len(set(v)) == 1 for v in first + second)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("state", STATES)
def test_a_rank_killed_in_any_state_and_the_job_formed_anew(where, daemon, state, stage):
    ranks = gw.Ranks(2, dying_rank, where, state, stage)
    ranks.procs[1][0].join(40)
    again = gw.Ranks(1, _second_life_of_rank_1, where, state, stage)
    (kind, value), _ = ranks.join(40)
    (kind1, value1), = again.join(40)
    assert (kind, kind1) == ("ok", "ok"), (value, value1)
    told, rank0 = value
    assert told is not None and told[0] == "GW_E_PEER_LOST" and "rank 1" in told[1], told
    assert told[2] < 10
    if state == "updating":
        assert rank0[0] == value1[0] == "GW_E_TORN"
        assert "rank" in rank0[1]
    else:
        steps_done = {"joined": 0, "registered": 0, "sealed": 0, "written": 0, "committed": 2}.get(
            state, 1)
        want = [v - steps_done for v in INITIAL]
        for value in (rank0, value1):
            assert len(value) == 4, (rank0, value1)
            generation, first, second, uniform = value
            assert generation == 2
            assert uniform
            assert first == want
            assert second == [v - 1 for v in want]
    daemon.ctl("stop", "--engines")


def _second_life_of_rank_1(_, where, state, stage):
    return second_life(1, where, state, stage)


# ---- hits of a job that was formed anew ----

LAYERS, WIDE, HITS = 6, 64, 8


def hitting_job(rank, where):
    job = attach(rank, where, 3)
    for j in range(LAYERS):
        job.param(f"h{j}", WIDE, f"u{j}")
    job.seal(stage=3, bucket_bytes=4 * WIDE, gather_bytes=LAYERS * 4 * WIDE,
             prefetch_bytes=LAYERS * 4 * WIDE)
    return job


def hitting_steps(job):
    """Steps until each rank has had enough hits; steps before, and this rank's hits in each. A step
    takes 1 from all values; layer u began with u."""
    before = int(-job.read(0, 1)[0])
    job.barrier()
    votes, hits, deadline = job.buffer(4), [], time.monotonic() + 30
    while votes.floats[0] < 2:
        assert time.monotonic() < deadline, hits
        hits.append(0)
        for u in range(LAYERS):
            token = job.fetch(u)
            hits[-1] += token.timeline == 0
            job.wait(token)
            assert set(job.values(u, WIDE)) == {u - before - len(hits) + 1.0}
            time.sleep(0.002)  # computes
            job.release(u)
        for u in reversed(range(LAYERS)):
            job.put(u, [1.0] * WIDE)
        end_step(job)
        votes.floats[0] = float(sum(hits) >= HITS)
        job.wait(job.all_reduce(votes.at(), votes.at(), 1))
    return before, hits


def hitting_rank(rank, where, again):
    """Rank 1 dies in a step whose units are gathered ahead, and is run once more."""
    job = hitting_job(rank, where)
    if not again:
        for u in range(LAYERS if rank == 0 else 0):
            job.write(u, [float(u)] * WIDE)
        job.barrier()
    lives = [hitting_steps(job)]
    if not again:
        job.wait(job.fetch(0))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(gw.Error, match="rank 1 is gone"):
            job.barrier(30 * S)
        job.close()
        job = hitting_job(rank, where)
        lives.append(hitting_steps(job))
    job.barrier()
    job.close()
    return lives


def _hitting_rank_1_again(_, where):
    return hitting_rank(1, where, True)


@pytest.mark.host_only("streams wait for fetches that hosts find done")
def test_hits_of_a_job_that_was_formed_anew(where, daemon):
    """In its first step nothing is known of the order, so none is; then each reads what is there
    by then."""
    ranks = gw.Ranks(2, hitting_rank, where, False)
    ranks.procs[1][0].join(40)
    again = gw.Ranks(1, _hitting_rank_1_again, where)
    (kind, value), _ = ranks.join(60)
    (kind1, value1), = again.join(60)
    assert (kind, kind1) == ("ok", "ok"), (value, value1)
    (before, first), (between, second) = value
    assert before == 0 and between == len(first) == value1[0][0]
    assert len(second) == len(value1[0][1])
    for hits in (first, second, value1[0][1]):
        assert hits[0] == 0 and sum(hits) >= HITS, value
    daemon.ctl("stop", "--engines")


# ---- a deadline of the job ----


def waiting_rank(rank, where, how):
    """Rank 1 goes no further; what rank 0's long wait ends with."""
    job = gw.Job(rank, 2, id_path=where["id"], socket=where["socket"], op_timeout_ns=S)
    job.wait_ready()
    seal(job, 2 if how == "acquire" else 0)
    if rank == 1:
        await_flag(where, "over")
        job.close()
        return None
    try:
        if how == "wait":
            job.barrier(60 * S, name="lonely")
        elif how == "step":
            job.step_end()
            job.wait_step(60 * S)
        else:  # more gradients than there are buffers: the first must be reduced
            for _ in range(50):
                backward(job)
                job.step_end()
        return "no error", ""
    except gw.Error as e:
        return e.name, e.text
    finally:
        flag(where, "over")
        job.close()


@pytest.mark.parametrize("how", ["wait", "step", "acquire"])
def test_a_wait_that_the_jobs_deadline_ends_tells_who_is_missing(where, daemon, how):
    """The code is that of a caller's own deadline, the text must not be."""
    name, text = gw.run(2, waiting_rank, where, how, timeout=90)[0]
    assert name == "GW_E_TIMEOUT" and "rank" in text and "1" in text, text
    assert "stays valid" not in text and "60000 ms" not in text, text
    assert how != "wait" or "'lonely'" in text


# ---- the engine ----------------------------------------------------------------------------------


def orphan_rank(rank, where):
    job = attach(rank, where, 2)
    seal(job, 2)
    t = job.fetch(0)
    job.wait(t)
    p, n = job.acquire(1)
    flag(where, f"up{rank}")
    await_flag(where, "killed")
    t0 = time.monotonic()
    gw.fill(p, n, 1.0)  # mapped memory stays: no SIGBUS
    names = []
    for attempt in (lambda: job.barrier(30 * S), lambda: job.stats(),
                    lambda: job.wait(job.fetch(1), 30 * S)):
        try:
            attempt()
            names.append("ok")
        except gw.Error as e:
            names.append(e.name)
    seconds = time.monotonic() - t0
    job.close()
    return names, seconds


def test_clients_of_a_killed_engine_get_a_typed_error(where, daemon):
    ranks = gw.Ranks(2, orphan_rank, where)
    for r in range(2):
        await_flag(where, f"up{r}")
    (engine,) = daemon.engines()
    os.kill(engine, signal.SIGKILL)
    flag(where, "killed")
    for kind, value in ranks.join(60):
        assert kind == "ok", value
        names, seconds = value
        print(f"three typed errors after {seconds:.3f} s")
        assert names == ["GW_E_ENGINE_LOST"] * 3, names
        assert seconds < 30
    daemon.assert_idle(30)


# ---- the daemon ----------------------------------------------------------------------------------


def training_rank(rank, world, where, stage, steps, flags):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    numels = [700, 1300, 64, 2049]
    for j, numel in enumerate(numels):
        job.param(f"p{j}", numel, f"u{j}")
    job.seal(stage=stage, bucket_bytes=4096, all_reduce=where.get("all_reduce", 0))
    if rank == 0:
        for j in range(4):
            job.write(j, [0.5 * (j + 1)] * numels[j])
    job.barrier()
    h = hashlib.sha256()
    for step in range(steps):
        if flags and step == 5:
            flag(where, f"running{rank}")
        if flags and step == 10:
            await_flag(where, "go")
        for u in range(4):
            job.wait(job.fetch(u))
            h.update(repr(job.values(u, 3)).encode())
            job.release(u)
        for j in (3, 2, 1, 0):
            job.put(j, [(rank + 1) * 0.001 * ((step * 7 + j) % 13)] * numels[j])
        job.step_end()
        h.update(repr(job.wait_step().norm).encode())
        job.wait(job.update_begin())
        for s in job.spans():
            n = s.valid_numel
            gw.fill(s.params, n, [p - 0.1 * g for p, g in zip(s.params[0:n], s.grads[0:n])])
        job.update_commit()
    job.barrier()
    job.close()
    return h.hexdigest()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_a_restart_of_the_daemon_is_not_noticed_by_running_jobs(where, daemon, tmp_path, how):
    undisturbed = gw.run(2, training_rank, 2, where, 2, 25, False)
    other = dict(where, id=str(tmp_path / "other.id"))
    ranks = gw.Ranks(2, training_rank, 2, other, 2, 25, True)
    for r in range(2):
        await_flag(where, f"running{r}")
    tags = [j["tag"] for j in daemon.jobs()]
    assert len(tags) == 1
    daemon.stop(getattr(signal, how))
    assert len(daemon.engines()) == 1, "the engine ended with the daemon"
    daemon.start()
    assert [j["tag"] for j in daemon.jobs()] == tags, "the living job was not adopted"
    flag(where, "go")
    # New clients join while the adopted job runs.
    late = dict(where, id=str(tmp_path / "late.id"))
    assert gw.run(2, training_rank, 2, late, 2, 25, False) == undisturbed
    assert ranks.join(60) == [("ok", v) for v in undisturbed]
    daemon.assert_idle(30)
