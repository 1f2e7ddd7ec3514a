# SPDX-License-Identifier: Apache-2.0
"""Public failures of other systems, each reduced to a small input with the right value.

The ids are those of the list of cases from the field; values are worked out by hand or by an
independent rule in the test. Every rank is a process; the daemon is the real one. On GPUs the same
values have to come, of smaller models where only size makes the time.
ctest: device=cuda nodes=too
"""
import array
import ctypes
import hashlib
import math
import os
import random
import signal
import time

import pytest

import gw

NS = 1_000_000_000
ALIGN_1 = 4  # bytes: slices are multiples of one element


def join(rank, world, where, job_options=None):
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"], linger_ns=-1,
                 **(job_options or {}))
    job.wait_ready()
    return job


def sealed(rank, world, where, numels, units=None, job_options=None, **options):
    job = join(rank, world, where, job_options)
    for j, numel in enumerate(numels):
        job.param(f"p{j}", numel, units[j] if units else None)
    job.seal(**options)
    return job


def no_update_step(job, order, value, numels):
    """One step without an update: gradient j = value(j) everywhere, in the given order."""
    for j in order:
        job.put(j, [value(j)] * numels[j])
    job.step_end()
    return job.wait_step()


def per_element(numels, spans, buckets, pieces, value):
    """What the rank's spans should hold: value(j) at each element of parameter j."""
    out = []
    for s in spans:
        row = [0.0] * s.numel
        for j in range(len(numels)):
            for p in pieces[j]:
                if p.bucket != s.bucket:
                    continue
                for i in range(p.numel):
                    at = p.bucket_offset + i - s.bucket_offset
                    if 0 <= at < s.numel:
                        row[at] = value(j)
        out.append(row)
    return out


@pytest.fixture
def where(service, tmp_path):
    return {"socket": service, "id": str(tmp_path / "job.id")}


# ---- reduction -----------------------------------------------------------------------------------


def r01_rank(rank, world, where, stage, all_reduce=0):
    numels = [1024] * 8
    job = sealed(rank, world, where, numels, stage=stage, bucket_bytes=2 * 1024 * 4,
                 all_reduce=all_reduce)
    no_update_step(job, reversed(range(8)), lambda j: 1.0, numels)
    s = job.stats()
    out = {k: (s.kinds[i].calls, s.kinds[i].ring_bytes, s.kinds[i].padding_bytes)
           for i, k in enumerate(gw.KINDS)}
    job.close()
    return out


@pytest.mark.parametrize("world", [2, 4])
def test_r01_stage_2_sends_reduce_scatter_only(where, world):
    psi = 8 * 1024 * 4
    for got in gw.run(world, r01_rank, world, where, 2):
        assert got["reduce_scatter"] == (4, psi * (world - 1) // world, 0)
        assert got["all_reduce"][0] == 0 and got["broadcast"][0] == 0


@pytest.mark.parametrize("world", [2, 4])
def test_r01_stage_2_with_reduce_scatter_off_sends_all_reduce_only(where, world):
    psi = 8 * 1024 * 4
    for got in gw.run(world, r01_rank, world, where, 2, 1):
        assert got["all_reduce"] == (4, 2 * psi * (world - 1) // world, 0)
        assert got["reduce_scatter"][0] == 0 and got["broadcast"][0] == 0


@pytest.mark.parametrize("world", [2, 4])
def test_r01_stage_0_sends_all_reduce_only(where, world):
    psi = 8 * 1024 * 4
    for got in gw.run(world, r01_rank, world, where, 0):
        assert got["all_reduce"] == (4, 2 * psi * (world - 1) // world, 0)
        assert got["reduce_scatter"][0] == 0 and got["all_gather"][0] == 0


R02_NUMELS = [5, 1, 7, 3, 2, 6, 4, 4]


def r02_rank(rank, world, where, stage, order):
    job = sealed(rank, world, where, R02_NUMELS, stage=stage, bucket_bytes=12 * 4,
                 shard_align_bytes=ALIGN_1)
    no_update_step(job, order, lambda j: (rank + 1.0) * (j + 1), R02_NUMELS)
    s = job.stats()
    calls = {k: s.kinds[i].calls for i, k in enumerate(gw.KINDS)}
    want = per_element(R02_NUMELS, job.spans(), job.layout().buckets,
                       [job.pieces(j) for j in range(8)], lambda j: 2.5 * (j + 1))
    got = job.grads(padding=True)
    job.close()
    return calls, job.rank, got, want


@pytest.mark.parametrize("order", [list(reversed(range(8))), list(range(8)),
                                   [3, 0, 7, 1, 6, 2, 5, 4]])
@pytest.mark.parametrize("stage", [1, 2])
def test_r02_any_arrival_order_is_one_reduce_scatter_per_bucket(where, stage, order):
    for calls, rank, got, want in gw.run(4, r02_rank, 4, where, stage, order):
        # buckets of 12: [5,1] [7,3,2] [6,4] [4]
        assert calls["reduce_scatter"] == 4 and calls["all_reduce"] == 0
        assert got == want, f"rank {rank}"


def r03_rank(rank, world, where, overlap_off, steps, link):
    tensors, numel = (8 if gw.on_cuda() else 64), 4096
    job = sealed(rank, world, where, [numel] * tensors, stage=2, bucket_bytes=8192 * 4,
                 overlap_off=overlap_off, job_options={"link_bytes_per_s": link})
    rng = random.Random(1000 + rank)
    pool = array.array("f", (rng.uniform(-1, 1) for _ in range(numel * 4)))
    digest = hashlib.sha256()
    norms = []
    for step in range(steps):
        for j in reversed(range(tensors)):
            p, n = job.acquire(j)
            at = (step * 977 + j * 131) % (3 * numel)
            gw.move(p, pool.buffer_info()[0] + 4 * at, 4 * n)
            job.ready(j)
        job.step_end()
        norms.append(job.wait_step().norm)
        for s in job.spans():
            digest.update(gw.raw(s.grads, s.numel))
    job.close()
    return digest.hexdigest(), norms


def test_r03_slow_reductions_give_the_same_bits_with_and_without_overlap(where, tmp_path):
    """64 tensors and 100 repeats on the host; 10 repeats across nodes and on doubles, and there of
    8 tensors, for each of their kernels and copies takes long."""
    # A bucket's ring bytes are 16 KiB: at 16 MiB/s a reduction takes 1 ms, far longer than the
    # producer takes for a bucket.
    few = gw.on_cuda() or isinstance(where["socket"], gw.Spread)
    slow, steps = 16 << 20, 10 if few else 100
    on = gw.run(2, r03_rank, 2, where, 0, steps, slow)
    off = gw.run(2, r03_rank, 2, dict(where, id=str(tmp_path / "off.id")), 1, steps, 0)
    assert on == off


def r03_value_rank(rank, world, where):
    job = sealed(rank, world, where, [4096], stage=2, bucket_bytes=8192 * 4)
    rng = random.Random(7 + rank)
    mine = [gw.f32(rng.uniform(-1, 1)) for _ in range(4096)]
    job.put(0, mine)
    job.step_end()
    job.wait_step()
    s = job.spans()[0]
    out = (s.bucket_offset, list(s.grads[0:s.numel]), mine)
    job.close()
    return out


@pytest.mark.parametrize("world", [2, 3, 5])
def test_r03_sum_is_the_fixed_tree_in_fp32(where, world):
    ranks = gw.run(world, r03_value_rank, world, where)
    scale = gw.f32(1.0 / world)
    for offset, got, _ in ranks:
        for i, g in enumerate(got):
            if offset + i >= 4096:
                assert g == 0.0
                continue
            want = gw.f32(scale * gw.tree_sum([r[2][offset + i] for r in ranks]))
            assert g == want, f"element {offset + i}: {g!r} != {want!r}"


BUCKET = 2 << 24  # GW_TL_BUCKET: how often a rank's part of the bucket has been taken


def r05_rank(rank, world, where):
    numels = [4096] * 3
    # ring bytes of a bucket: 8 KiB -> 0.4 s at 20 KiB/s
    job = sealed(rank, world, where, numels, stage=2, bucket_bytes=4096 * 4, ring_slots=2,
                 job_options={"link_bytes_per_s": 20 << 10})
    spans = {s.bucket: s for s in job.spans()}
    for j in (2, 1):
        gw.fill(*job.acquire(j), float(j + 1))
        job.ready(j)
    p, n = job.acquire(0)  # waits for bucket 2's reduction ...
    first = spans[2].grads[0]  # on GPUs it is the stream that waits, and a read waits for it
    taken = [job.test(gw.Token(BUCKET + b, 0, 1)) for b in (2, 1)]  # ... and not for bucket 1's
    gw.fill(p, n, 1.0)
    job.ready(0)
    job.step_end()
    v = job.wait_step()
    final = [spans[b].grads[0] for b in range(3)]
    overflow = job.stats().overflow_slots
    job.close()
    return first, taken, final, v.norm, overflow


def test_r05_third_bucket_waits_for_the_first_only(where):
    for first, taken, final, norm, overflow in gw.run(2, r05_rank, 2, where):
        assert first == 3.0
        assert taken == [1, 0], "bucket 1 was already reduced: the third waited for the second"
        assert final == [1.0, 2.0, 3.0]
        assert norm == gw.f32(math.sqrt(4096 * (1 + 4 + 9)))
        assert overflow == 0


def r06_rank(rank, world, where, stage, bucket, numels):
    job = sealed(rank, world, where, numels, stage=stage, bucket_bytes=bucket * 4)
    rng = random.Random(rank)
    whole = array.array("f", (rng.uniform(-1, 1) for _ in range(4096)))
    for j in reversed(range(3)):
        big = array.array("f", (whole * (numels[j] // 4096 + 1))[:numels[j]])
        a = (ctypes.c_float * numels[j]).from_buffer(big)
        gw.call("gw_grad_put_sync", job.handle, ctypes.c_uint32(j), a, ctypes.c_uint32(0),
                ctypes.c_int64(60 * NS))
    job.step_end()
    job.wait_step(60 * NS)
    # Un-permute: flat element of the unpadded parameter order -> value.
    starts = [0, numels[0], numels[0] + numels[1]]
    pieces = {}
    for j in range(3):
        for p in job.pieces(j):
            pieces.setdefault(p.bucket, []).append((p.bucket_offset, p.numel,
                                                    starts[j] + p.param_offset))
    out = []
    for s in job.spans():
        for at, numel, flat in pieces[s.bucket]:
            lo, hi = max(at, s.bucket_offset), min(at + numel, s.bucket_offset + s.numel)
            if lo < hi:
                raw = gw.raw(s.grads, hi - s.bucket_offset)[4 * (lo - s.bucket_offset):]
                out.append((flat + lo - at, raw))
    job.close()
    return out


def test_r06_bucket_size_does_not_change_a_bit(where, tmp_path):
    """A million elements on the host; 10,000 across nodes and on doubles, for time."""
    hashes = []
    few = gw.on_cuda() or isinstance(where["socket"], gw.Spread)
    numels = [3000, 4501, 2499] if few else [300_000, 450_001, 249_999]
    for parts in (1, 10, 50 if few else 100, 100 if few else 1000):
        bucket = sum(numels) // parts
        w = dict(where, id=str(tmp_path / f"{bucket}.id"))
        found = sorted(p for r in gw.run(2, r06_rank, 2, w, 2, bucket, numels, timeout=120)
                       for p in r)
        flat = b"".join(raw for _, raw in found)
        assert len(flat) == 4 * sum(numels)
        hashes.append(hashlib.sha256(flat).hexdigest())
    assert len(set(hashes)) == 1, hashes


def r08_rank(rank, world, where):
    numels = [100] * 10
    job = sealed(rank, world, where, numels, stage=3, bucket_bytes=500 * 4)
    before = job.stats()
    for j in range(10):
        job.wait(job.fetch(j))
        job.release(j)
    forward = job.stats()
    no_update_step(job, reversed(range(10)), lambda j: 1.0, numels)
    after = job.stats()
    job.close()
    return (forward.kinds[2].calls - before.kinds[2].calls, after.kinds[1].calls,
            after.kinds[0].calls)


def test_r08_ten_small_parameters_are_two_collectives(where):
    for gathers, reduce_scatters, all_reduces in gw.run(2, r08_rank, 2, where):
        assert (gathers, reduce_scatters, all_reduces) == (2, 2, 0)


def r10_zero_rank(rank, world, where):
    job = join(rank, world, where)
    job.param("a", 4)
    try:
        job.seal(stage=2, bucket_bytes=0)
    except gw.Error as e:
        return e.name, e.text
    finally:
        job.close()
    return None


def test_r10_bucket_size_zero_is_refused(where):
    (got,) = gw.run(1, r10_zero_rank, 1, where)
    assert got is not None and got[0] == "GW_E_INVALID" and "bucket" in got[1]


R10_NUMELS = [50, 0, 3, 0, 70]


def r10_rank(rank, world, where, stage):
    job = sealed(rank, world, where, R10_NUMELS, stage=stage, bucket_bytes=8 * 4,
                 shard_align_bytes=ALIGN_1)
    for j in (4, 2, 0):
        for k in reversed(range(len(job.pieces(j)))):
            p, n = job.acquire(j, k)
            for i in range(n):
                p[i] = (rank + 1.0) * (j + 1)
            job.ready(j, k)
    job.step_end()
    job.wait_step()
    buckets = job.layout().buckets
    sizes = [job.bucket(b).numel for b in range(buckets)]
    want = per_element(R10_NUMELS, job.spans(), buckets, [job.pieces(j) for j in range(5)],
                       lambda j: 1.5 * (j + 1))
    got = job.grads(padding=True)
    s = job.stats()
    job.close()
    return sizes, got, want, sum(s.kinds[k].calls for k in range(2))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_r10_large_and_empty_parameters(where, stage):
    for sizes, got, want, calls in gw.run(2, r10_rank, 2, where, stage):
        assert min(sizes) > 0 and max(sizes) <= 8 and sum(sizes) == 123
        assert calls == len(sizes)
        assert got == want


def r11_rank(rank, world, where):
    numels = [3, 4]
    job = sealed(rank, world, where, numels, stage=1, bucket_bytes=64,
                 shard_align_bytes=ALIGN_1)
    no_update_step(job, (1, 0), lambda j: (rank + 1.0) * (j + 1), numels)
    got = job.grads(padding=True)
    job.close()
    return got


def test_r11_stage_1_shards_cross_parameters(where):
    assert gw.run(2, r11_rank, 2, where) == [[[1.5, 1.5, 1.5, 3.0]], [[3.0, 3.0, 3.0, 0.0]]]


def r18_rank(rank, world, where, stage):
    job = sealed(rank, world, where, [1], stage=stage, bucket_bytes=64)
    no_update_step(job, (0,), lambda j: 0.3 if world == 1 else float(rank), [1])
    got = job.grads()
    job.close()
    return got[0]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_r18_mean_of_one_rank_is_identity(where, stage):
    assert gw.run(1, r18_rank, 1, where, stage) == [[gw.f32(0.3)]]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_r18_mean_of_two_ranks(where, stage):
    held = [v for row in gw.run(2, r18_rank, 2, where, stage) for v in row]
    assert held and all(v == 0.5 for v in held)


# ---- ranks that differ, die, or ask for nonsense -------------------------------------------------


def c05_rank(rank, where):
    if rank == 0:
        job = gw.Job(0, 8, id_path=where["id"], socket=where["socket"], linger_ns=-1)
        while not os.path.exists(where["id"] + ".done"):
            time.sleep(0.02)
        job.close()
        return None
    try:
        gw.Job(1, 1 + 1, id_path=where["id"], socket=where["socket"]).close()
    except gw.Error as e:
        return e.name, e.text
    finally:
        open(where["id"] + ".done", "w").close()
    return "joined"


def test_c05_wrong_world_is_refused_with_both_numbers(where):
    name, text = gw.run(2, c05_rank, where)[1]
    assert name == "GW_E_INVALID" and "8" in text and "2" in text


def duplicate_rank(rank, where):
    if rank == 0:
        return c05_rank(0, where)
    while not os.path.exists(where["id"]):
        time.sleep(0.02)
    try:
        job_id = gw.JobId()
        gw.call("gw_job_id_load", where["id"].encode(), ctypes.c_int64(5 * NS),
                ctypes.byref(job_id))
        gw.Job(0, 8, job_id=job_id, socket=gw.elsewhere(where["socket"])).close()
    except gw.Error as e:
        return e.name, e.text
    finally:
        open(where["id"] + ".done", "w").close()
    return "joined"


def test_a_rank_that_is_taken_is_refused(where):
    name, text = gw.run(2, duplicate_rank, where)[1]
    assert name == "GW_E_DUPLICATE" and "rank 0" in text


def c06_rank(rank, world, where, fork):
    job = join(rank, world, where)
    buf = job.buffer(1 << 20)
    if rank == 1:
        if fork and os.fork() == 0:
            time.sleep(30)  # outlives the rank and keeps its descriptors
            os._exit(0)
        open(where["id"] + ".up", "w").close()
        time.sleep(60)
    token = job.all_reduce(buf.at(), buf.at(), 1024, name="grad")
    open(f"{where['id']}.in{rank}", "w").close()
    while not os.path.exists(where["id"] + ".killed"):
        time.sleep(0.005)
    t0 = time.monotonic()
    try:
        job.wait(token, 30 * NS)
    except gw.Error as e:
        return e.name, e.text, time.monotonic() - t0
    finally:
        job.close()
    return "reached"


@pytest.mark.parametrize("fork", [False, True])
def test_c06_killed_rank_is_told_to_the_others(where, fork):
    ranks = gw.Ranks(3, c06_rank, 3, where, fork)
    deadline = time.monotonic() + 60
    while not all(os.path.exists(where["id"] + end) for end in (".up", ".in0", ".in2")):
        assert time.monotonic() < deadline, ranks.join(1)
        time.sleep(0.02)
    ranks.kill(1)
    open(where["id"] + ".killed", "w").close()
    results = ranks.join(40)
    for r in (0, 2):
        kind, value = results[r]
        assert kind == "ok", results
        name, text, seconds = value
        print(f"rank {r} was told after {seconds:.3f} s")
        assert name == "GW_E_PEER_LOST" and "rank 1" in text
        assert seconds < 10


def c06_big_rank(rank, world, where):
    """Rank 1 holds 32 MiB; the others stay in the broken job until they are told to go."""
    job = join(rank, world, where)
    job.barrier()
    if rank == 1:
        job.buffer(32 << 20)
        open(where["id"] + ".up", "w").close()
        time.sleep(60)
    while not os.path.exists(where["id"] + ".over"):
        time.sleep(0.01)
    job.close()


def c06_other_rank(rank, world, where):
    job = join(rank, world, where)
    buf = job.buffer(4096)
    rounds, over = 0, False
    while not over:
        buf.floats[0] = rank + 1.0
        buf.floats[1] = float(os.path.exists(where["id"] + ".over"))
        job.wait(job.all_reduce(buf.at(), buf.at(), 8))
        assert buf.floats[0] == 3.0
        rounds += 1
        if rounds == 1:
            open(f"{where['id']}.up{rank}", "w").close()
        over = buf.floats[1] > 0  # of all ranks alike: some rank has seen the end
    job.close()
    return rounds


def memory(daemons, gpus):
    """Bytes that jobs hold on the tests' device."""
    return gpus.report()["used_bytes"] if gpus else sum(daemon.shm_bytes() for daemon in daemons)


def test_c06_memory_of_a_killed_rank_goes_and_other_jobs_go_on(where, daemons, gpus, tmp_path):
    other = dict(where, id=str(tmp_path / "other.id"))
    bystanders = gw.Ranks(2, c06_other_rank, 2, other)
    ranks = gw.Ranks(3, c06_big_rank, 3, where)
    deadline = time.monotonic() + 30
    while not all(map(os.path.exists, (where["id"] + ".up", other["id"] + ".up0",
                                       other["id"] + ".up1"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    before, t0 = memory(daemons, gpus), time.monotonic()
    assert before >= 32 << 20
    ranks.kill(1)
    while memory(daemons, gpus) > before - (32 << 20) and time.monotonic() < t0 + 10:
        time.sleep(0.01)
    print(f"the memory was gone after {time.monotonic() - t0:.3f} s")
    after = memory(daemons, gpus)
    for path in (where["id"], other["id"]):
        open(path + ".over", "w").close()
    assert after <= before - (32 << 20)
    assert all(kind == "ok" and rounds > 0 for kind, rounds in bystanders.join(40))
    ranks.join(40)


def c07_rank(rank, world, where, what):
    job = join(rank, world, where)
    buf = job.buffer(4096)
    op = {"name": "a", "count": 8, "scale": 1.0, "dtype": gw.FP32}
    if rank != 0:
        op[what] = {"name": "b", "count": 16, "scale": 0.5, "dtype": gw.BF16}[what]
    count = op.pop("count")
    try:
        job.wait(job.all_reduce(buf.at(), buf.at(), count, **op))
    except gw.Error as e:
        return e.name, e.text
    finally:
        job.close()
    return "summed"


@pytest.mark.parametrize("what", ["name", "count", "scale", "dtype"])
def test_c07_ops_that_differ_are_refused_with_both_sides(where, what):
    got = gw.run(2, c07_rank, 2, where, what)
    assert got[0] == got[1] and got[0][0] == "GW_E_MISMATCH"
    assert "rank 0" in got[0][1] and "rank 1" in got[0][1]


def t01_rank(rank, world, where):
    job = join(rank, world, where)
    try:
        for name in ("left", "right") if rank == 0 else ("right", "left"):
            job.param(name, 8)
        job.seal(stage=2, bucket_bytes=1024)
    except gw.Error as e:
        return e.name, e.text
    finally:
        job.close()
    return "sealed"


def test_t01_another_order_of_registration_is_told_with_both_names(where):
    first, second = gw.run(2, t01_rank, 2, where)
    assert first == second and first[0] == "GW_E_MISMATCH"
    for words in ("rank 0", "rank 1", "left", "right"):
        assert words in first[1], first


def r15_rank(rank, world, where, counts):
    job = join(rank, world, where)
    a, b = job.buffer(4096), job.buffer(4096)
    for i in range(64):
        a.floats[i] = b.floats[i] = 1.0
    order = [("a", a, counts[0]), ("b", b, counts[1])]
    tokens = []
    try:
        for name, buf, count in order if rank == 0 else reversed(order):
            tokens.append(job.all_reduce(buf.at(), buf.at(), count, name=name))
        for t in tokens:
            job.wait(t)
    except gw.Error as e:
        return e.name, e.text, list(a.floats[:64]), list(b.floats[:64])
    finally:
        job.close()
    return "summed"


@pytest.mark.parametrize("counts", [(32, 32), (32, 64)])
def test_r15_opposite_order_is_refused_before_a_byte_is_summed(where, counts):
    for name, text, a, b in gw.run(2, r15_rank, 2, where, counts):
        assert name == "GW_E_MISMATCH"
        assert "'a'" in text and "'b'" in text
        assert a == [1.0] * 64 and b == [1.0] * 64


def t09_rank(rank, world, where):
    job = join(rank, world, where)
    out = []
    for attempt in (lambda: gw.Buffer(job, 1 << 50),
                    lambda: job.all_reduce(job_buf.at(), job_buf.at(), 8, group=63),
                    lambda: job.all_reduce(job_buf.at(), job_buf.at(2), 1 << 40),
                    lambda: job.all_reduce(job_buf.at(1), job_buf.at(), 1024)):
        job_buf = job.buffer(4096)
        try:
            attempt()
            out.append("taken")
        except gw.Error as e:
            out.append(e.name)
    buf = job.buffer(4096)
    buf.floats[0] = rank + 1.0
    job.wait(job.all_reduce(buf.at(), buf.at(), 8))
    out.append(buf.floats[0])
    job.close()
    return out


def test_t09_nonsense_is_a_typed_error_and_the_job_goes_on(where):
    for got in gw.run(2, t09_rank, 2, where):
        assert got[0] in ("GW_E_NOMEM", "GW_E_LIMIT")
        assert got[1] in ("GW_E_NOT_FOUND", "GW_E_INVALID")
        assert got[2] == got[3] == "GW_E_INVALID"
        assert got[4] == 3.0


def t04_rank(rank, world, where):
    job = join(rank, world, where)
    send, recv = job.buffer(4096), job.buffer(4096)
    for i in range(world):
        send.floats[i] = 10.0 * rank + i
    job.wait(job.reduce_scatter(send.at(), recv.at(), 1))
    got = recv.floats[0]
    job.close()
    return got


def test_t04_reduce_scatter_of_one_scalar_per_rank(where):
    assert gw.run(3, t04_rank, 3, where) == [30.0, 33.0, 36.0]


def t06_rank(rank, world, where):
    """Between 8 B and 64 MiB of all ranks (100,000 elements each on doubles of GPUs, for time)."""
    job = join(rank, world, where)
    most = 100_000 if os.environ.get("GW_TEST_DEVICE") == "cuda" else (16 << 20) // world
    a, b = job.buffer(4 * world * most), job.buffer(4 * world * most)
    bad = []
    for count in (2, 16384, 5, most, 1, 65536):
        for i in (0, count - 1):
            for r in range(world):
                a.floats[r * count + i] = (rank + 1) * (r + 1)
        job.wait(job.reduce_scatter(a.at(), b.at(), count))
        want = (rank + 1) * world * (world + 1) / 2
        if (b.floats[0], b.floats[count - 1]) != (want, want):
            bad.append(("rs", count))
        job.wait(job.reduce_scatter(a.at(), a.at(rank * count), count))  # in place
        if (a.floats[rank * count], a.floats[(rank + 1) * count - 1]) != (want, want):
            bad.append(("rs in place", count))
        job.wait(job.all_gather(a.at(rank * count), a.at(), count))  # in place
        sums = [(r + 1) * world * (world + 1) / 2 for r in range(world)]
        if [a.floats[r * count] for r in range(world)] != sums:
            bad.append(("ag in place", count))
        job.wait(job.all_gather(b.at(0), a.at(), count))
        if [a.floats[(r + 1) * count - 1] for r in range(world)] != sums:
            bad.append(("ag", count))
        a.floats[0] = rank
        job.wait(job.broadcast(a.at(), count, world - 1))
        if a.floats[0] != world - 1:
            bad.append(("bcast", count))
        b.floats[0] = b.floats[count - 1] = rank
        job.wait(job.all_reduce(b.at(), b.at(), count, scale=2.0))
        if b.floats[0] != world * (world - 1):
            bad.append(("ar", count))
        job.barrier()
    job.close()
    return bad


@pytest.mark.parametrize("world", [2, 3, 5, 6, 7])
def test_t06_alternating_sizes_mixed_ops(where, world):
    assert gw.run(world, t06_rank, world, where) == [[]] * world


def t03_rank(rank, where, value):
    job = join(rank, 2, where)
    buf = job.buffer(4096)
    total = 0.0
    for _ in range(50):
        buf.floats[0] = value
        job.wait(job.all_reduce(buf.at(), buf.at(), 8))
        total += buf.floats[0]
    job.close()
    return total


def test_t03_two_jobs_are_isolated(where, tmp_path):
    other = dict(where, id=str(tmp_path / "other.id"))
    one, two = gw.Ranks(2, t03_rank, where, 1.0), gw.Ranks(2, t03_rank, other, 10.0)
    assert one.join() == [("ok", 100.0)] * 2
    assert two.join() == [("ok", 1000.0)] * 2


# ---- fetch, layout -------------------------------------------------------------------------------


def f01_rank(rank, world, where):
    job = sealed(rank, world, where, [10], stage=2, bucket_bytes=4096, shard_align_bytes=64)
    (s,) = job.spans()
    out = (s.numel, s.valid_numel)
    job.close()
    return out


def test_f01_valid_length_per_rank(where):
    assert gw.run(8, f01_rank, 8, where) == [(16, 10)] + [(16, 0)] * 7


def d05_rank(rank, world, where, layers):
    h = 16
    numels = [12 * h * h] * layers
    job = sealed(rank, world, where, numels, stage=3, bucket_bytes=12 * h * h * 4)
    ahead = []
    for step in range(2):
        for k in list(range(layers)) + list(reversed(range(layers))):
            t = job.fetch(k)
            if step == 1:
                # Behind the middle the same unit comes again: nothing to gather ahead.
                calls, deadline = 0, time.monotonic() + (0 if k == layers - 1 else 10)
                want = base + len(ahead) + 2  # this one and the next
                last = len(ahead) + 1 == 2 * layers
                while time.monotonic() < deadline and not last:
                    calls = job.stats().kinds[2].calls
                    if calls >= want:
                        break
                    time.sleep(0.001)
                ahead.append(last or calls >= want or k in (layers - 1,))
            job.wait(t)
            job.release(k)
        job.step_end()
        job.wait_step()
        base = job.stats().kinds[2].calls
    s = job.stats()
    job.close()
    return ahead, s.prefetch_hits, s.prefetch_misses, s.kinds[2].calls


def test_d05_next_gather_is_issued_before_the_current_is_used(where):
    layers = 6 if gw.on_cuda() else 24
    for ahead, hits, misses, calls in gw.run(2, d05_rank, 2, where, layers):
        assert all(ahead), ahead
        assert calls == 2 * 2 * layers  # two all-gathers per unit and step
        assert (hits, misses) == (2 * layers - 1, 2 * layers + 1)


def t08_rank(rank, where, fork):
    job = gw.Job(0, 2, id_path=where["id"] + str(rank), socket=where["socket"], linger_ns=-1)
    job.param("w", 1 << 20)
    gw.Buffer(job, 1 << 20)
    if fork and os.fork() == 0:  # outlives the rank, and the check
        deadline = time.monotonic() + 30
        while not os.path.exists(where["id"] + ".over") and time.monotonic() < deadline:
            time.sleep(0.05)
        os._exit(0)
    return os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.one_node("each rank is the first of its job, and dies before another comes")
@pytest.mark.parametrize("fork, rounds", [(False, 3 if gw.on_cuda() else 25), (True, 3)])
def test_t08_memory_is_back_after_each_killed_client(where, daemons, gpus, fork, rounds):
    """All 100 kills on the host; on doubles, where a start takes far longer, 12 with each seed. And
    12 with a child that outlives the rank."""
    base = memory(daemons, gpus)
    for i in range(rounds):
        ranks = gw.Ranks(4, _t08_offset, where, 4 * i, fork)
        assert [k for k, _ in ranks.join()] == ["died"] * 4
    deadline = time.monotonic() + 10
    while (memory(daemons, gpus) > base or daemons[0].engines()) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = memory(daemons, gpus), daemons[0].engines()
    open(where["id"] + ".over", "w").close()
    assert left[0] <= base and left[1] == []


def _t08_offset(rank, where, first, fork):
    return t08_rank(first + rank, where, fork)
