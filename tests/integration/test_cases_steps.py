# SPDX-License-Identifier: Apache-2.0
"""Public failures of other systems (test_cases.py): ranks that differ, fetches, frozen layers.

Values are worked out by hand.
ctest: device=cuda nodes=too
"""
import json
import struct
import threading

import pytest

import gw
from conftest import until
from fakegpus import control
from test_cases import ALIGN_1, sealed, where  # noqa: F401  pylint: disable=unused-import
from test_cases_sums import calls, typed


def bf16(value):
    """Rounded to nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7fff + ((bits >> 16) & 1)
    return struct.unpack("<f", struct.pack("<I", bits >> 16 << 16))[0]


def descend(job):
    """An update: every value of the shard minus its reduced gradient."""
    job.wait(job.update_begin())
    for s in job.spans():
        grads, params = s.grads[0:s.valid_numel], s.params[0:s.valid_numel]
        gw.fill(s.params, s.valid_numel, [p - g for p, g in zip(params, grads)])
    job.update_commit()


def fetched(job, unit, params, numel, **dtype):
    """Values of these parameters of a unit, each as the set of its values."""
    job.wait(job.fetch(unit))
    out = [set(job.values(j, numel, **dtype)) for j in params]
    job.release(unit)
    return out


# ---- ranks that differ ---------------------------------------------------------------------------


def c01_rank(rank, world, where, stage, unused):
    job = sealed(rank, world, where, [8] * 10, stage=stage, bucket_bytes=32 * 3, unused=unused,
                 shard_align_bytes=ALIGN_1)
    try:  # an error comes with the first call after it, which may be of the step before
        for j in reversed(range(10)):  # what would be summed again
            job.put(j, [100.0] * 8)
        job.step_end()
        job.wait_step()
        for j in reversed(range(10 if rank == 0 else 6)):
            job.put(j, [(rank + 1.0) * (j + 1)] * 8)
        job.step_end()
        job.wait_step()
    except gw.Error as e:
        return e.name, e.text
    starts = {}
    for j in range(10):
        for p in job.pieces(j):
            starts[p.bucket, p.bucket_offset] = j
    got = {}
    for s in job.spans():
        for i, v in enumerate(s.grads[0:s.valid_numel]):
            j = max((at, j) for (b, at), j in starts.items()
                    if b == s.bucket and at <= s.bucket_offset + i)[1]
            got.setdefault(j, set()).add(v)
    used = [job.used(j) for j in range(10)]
    job.close()
    return got, used


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_c01_missing_gradients_are_zero(where, stage):
    want = {j: {1.5 * (j + 1)} if j < 6 else {0.5 * (j + 1)} for j in range(10)}
    seen = {}
    for got, used in gw.run(2, c01_rank, 2, where, stage, 0):
        assert used == [1] * 10
        for j, values in got.items():
            seen.setdefault(j, set()).update(values)
    assert seen == want


def test_c01_missing_gradients_are_an_error_that_names_them(where):
    for name, text in gw.run(2, c01_rank, 2, where, 2, 1):
        assert name == "GW_E_UNUSED" and "rank 1" in text
        for j in range(10):
            assert (f"'p{j}'" in text) == (j >= 6), text


def c02_rank(rank, world, where):
    numel = 16 * 16
    job = sealed(rank, world, where, [numel] * 2, stage=3, bucket_bytes=4 * numel)
    if rank == 0:
        job.write(0, [10.0] * numel)
        job.write(1, [20.0] * numel)
    job.barrier()
    seen = []
    for step in range(3):
        mine = (rank + step) % 2
        seen.append((mine, fetched(job, mine, [mine], numel)[0]))
        fetched(job, mine, [mine], numel)  # backward
        job.put(mine, [rank + 1.0] * numel)
        job.step_end()
        job.wait_step()
        descend(job)
    job.close()
    return seen


def test_c02_each_rank_uses_another_layer(where):
    # Means: step 1 takes 0.5 from layer 0 and 1 from layer 1, step 2 the other way around.
    assert gw.run(2, c02_rank, 2, where) == [[(0, {10.0}), (1, {19.0}), (0, {8.5})],
                                             [(1, {20.0}), (0, {9.5}), (1, {18.5})]]


def c03_rank(rank, world, where, stage):
    job = typed(rank, world, where, [(16, {"dtype": gw.FP16, "grad_dtype": gw.FP16})] * 2,
                stage=stage, bucket_bytes=32, clip_norm=1.0)
    if rank == 0:
        for j in range(2):
            job.write(j, [2.0] * 16)
    job.barrier()
    out = []
    for step in range(3):
        gradient = [1.0] * 16
        if step == 1 and rank == 1:
            gradient[9] = float("inf")  # element 9 of 16: in the shard of rank 2 of 4
        before = calls(job.stats())
        job.put(1, gradient, dtype=gw.FP16)
        job.put(0, [1.0] * 16, dtype=gw.FP16)
        job.step_end()
        v = job.wait_step()
        after = calls(job.stats())
        out.append((v.nonfinite, v.first_bucket if v.nonfinite else None, v.clip_factor == 0,
                    after["control"] - before["control"]))
        if v.nonfinite == 0:
            descend(job)
    values = [set(job.read(j, 16)) for j in range(2)]
    job.close()
    return out, values


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_c03_an_infinity_in_one_shard_is_every_ranks_verdict(where, stage):
    good, bad = (0, None, False, 1), (1, 1, True, 1)
    assert gw.run(4, c03_rank, 4, where, stage) == [([good, bad, good], [{0.0}, {0.0}])] * 4


def c04_step(job, micro_steps):
    for micro in range(micro_steps):
        last = micro == micro_steps - 1
        for j in (1, 0):
            job.put(j, [1.0] * 8, 0 if last else gw.ACCUMULATE)
        if not last:
            job.micro_step_end()
    job.step_end()
    job.wait_step()


def c04_rank(rank, world, where, stage, gpus):
    job = sealed(rank, world, where, [8] * 2, stage=stage, bucket_bytes=32, micro_steps=2)
    c04_step(job, 2)
    job.barrier()
    if gpus and rank == 0:  # one rank waits for the other before the step that breaks
        broken = json.loads(control(gpus, "report"))["violations"]
        assert not broken, broken
    try:
        c04_step(job, 2 - rank)
    except gw.Error as e:
        return e.name, e.text
    finally:
        job.close()
    return "stepped"


@pytest.mark.parametrize("stage", [0, 2])
def test_c04_a_rank_with_fewer_micro_steps_is_named(where, stage, gpus):
    if gpus:
        gpus.allowed = {"unordered"}  # a sum of the broken step, which nobody gets
    got = gw.run(2, c04_rank, 2, where, stage, gpus and str(gpus.socket))
    for name, text in got:
        assert name == "GW_E_MISMATCH", text
        for word in ("rank 0", "rank 1", "step 2", "bucket 1", "micro-step"):
            assert word in text, text


# ---- fetches -------------------------------------------------------------------------------------


def orders_rank(rank, world, where, orders, options):
    """Steps that fetch their units in these orders; each changes all values by 1."""
    numel = 256
    units = 1 + max(u for order in orders for u in order)
    job = sealed(rank, world, where, [numel] * units, stage=3, bucket_bytes=4 * numel, **options)
    if rank == 0:
        for j in range(units):
            job.write(j, [1000.0 * j] * numel)
    job.barrier()
    wrong, most = [], 0
    for step, order in enumerate(orders):
        for unit in order:
            (got,) = fetched(job, unit, [unit], numel)
            if got != {1000.0 * unit - step}:
                wrong.append((step, unit, got))
            most = max(most, job.stats().gathered_bytes_now)
        for j in reversed(range(units)):
            job.put(j, [1.0] * numel)
        job.step_end()
        job.wait_step()
        descend(job)
    s = job.stats()
    job.close()
    return {"wrong": wrong, "most": max(most, s.gathered_bytes_max), "hits": s.prefetch_hits,
            "misses": s.prefetch_misses, "drops": s.prefetch_drops, "calls": s.kinds[2].calls}


def test_d01_a_layer_used_in_every_other_step(where):
    orders = [[0, 1, 2, 2, 1, 0] if step % 2 == 0 else [0, 2, 2, 0] for step in range(6)]
    fetches = sum(map(len, orders))
    for got in gw.run(2, orders_rank, 2, where, orders, {}):
        assert got["wrong"] == []
        assert got["hits"] + got["misses"] == fetches and got["hits"] > 0
        # A gather is a fetch's, or was in vain and is told: that of layer 1 in step 2, at least.
        assert got["drops"] >= 1 and got["calls"] == fetches + got["drops"]
        assert got["most"] <= 3 * 1024  # the default budget: three units


@pytest.mark.parametrize("reuse", [0, 1 << 20])
def test_d07_gathered_memory_stays_within_its_budget(where, reuse):
    orders = [[0, 1, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 1, 0]] * 4
    options = {"gather_bytes": 2 * 1024, "prefetch_bytes": 10_000_000, "reuse_bytes": reuse}
    for got in gw.run(2, orders_rank, 2, where, orders, options):
        assert got["wrong"] == []
        assert 2 * 1024 <= got["most"] <= 2 * 1024 + 1024
        assert got["hits"] > 0


def test_d08_orders_that_change_and_modules_that_are_skipped(where):
    orders = [[0, 1, 2, 3, 4, 5], [0, 1, 3, 2, 4, 5], [0, 1, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    # One unit is gathered ahead, by the order of the step before; an order left for good in a step
    # is not followed to its end.
    #   1: 6 misses
    #   2: 1 hit, 2 ahead, 3 missed, 2 hit, no longer followed: 4 misses
    #   3: 1 and 3 hit, 2 ahead and dropped: 3 misses
    #   4: begins where step 3 ended: 6 misses
    for got in gw.run(2, orders_rank, 2, where, orders, {}):
        assert got["wrong"] == []
        assert (got["hits"], got["misses"], got["drops"]) == (4, 6 + 4 + 3 + 6, 1)
        assert got["calls"] == 23 + 1


def d03_rank(rank, world, where):
    units, experts, numel = 12, 4, 64
    names = [f"u{u}" for u in range(units) for _ in range(experts)]
    job = sealed(rank, world, where, [numel] * (units * experts), units=names, stage=3,
                 bucket_bytes=4 * numel * experts)
    if rank == 0:
        for j in range(units * experts):
            job.write(j, [j + 1.0] * numel)
    job.barrier()
    before, wrong = calls(job.stats())["all_gather"], []
    together = threading.Barrier(2)
    both = threading.Barrier(2)

    def use():
        if gw.GPU:
            gw.GPU.enter()
        for u in range(units):
            together.wait(20)
            job.wait(job.fetch(u))
            both.wait(20)  # neither releases before both have it
            for j in range(u * experts, (u + 1) * experts):
                if set(job.values(j, numel)) != {j + 1.0}:
                    wrong.append(j)
            both.wait(20)
            job.release(u)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    gathers = calls(job.stats())["all_gather"] - before
    job.close()
    return gathers, wrong, [t.is_alive() for t in threads]


def test_d03_two_threads_fetch_one_unit_in_one_gather(where):
    assert gw.run(2, d03_rank, 2, where) == [(12, [], [False, False])] * 2


D04_VALUES = [1 + 2.0 ** -9, 1 + 3 * 2.0 ** -8, -1 - 2.0 ** -8, 0.5]


def d04_rank(rank, world, where):
    kinds = [(256 * 256, gw.BF16), (8 * 256, gw.FP32), (256 * 8, gw.FP32)]
    job = typed(rank, world, where,
                [(n, {"unit": "u", "dtype": d, "grad_dtype": d}) for n, d in kinds], stage=3,
                bucket_bytes=1 << 18)
    if rank == 1:
        for j, (numel, _) in enumerate(kinds):
            job.write(j, D04_VALUES * (numel // 4))
    job.barrier()
    seen = []
    for _ in range(2):
        job.wait(job.fetch(0))
        for j, (numel, dtype) in enumerate(kinds):
            values = job.values(j, numel, dtype=dtype)
            seen.append([set(values[k::4]) for k in range(4)])
        job.release(0)
        for j, (numel, dtype) in reversed(list(enumerate(kinds))):
            job.put(j, [0.25 * (2 * rank + 1)] * numel, dtype=dtype)  # mean: 0.5
        job.step_end()
        job.wait_step()
        descend(job)
    masters = job.read(0, 4)
    job.close()
    return seen, masters


def test_d04_one_unit_of_two_dtypes(where):
    full = [[{v} for v in D04_VALUES], [{v - 0.5} for v in D04_VALUES]]
    half = [[{1.0}, {1 + 2.0 ** -6}, {-1.0}, {0.5}],  # ties go to even
            [{bf16(v - 0.5)} for v in D04_VALUES]]
    want = [half[0], full[0], full[0], half[1], full[1], full[1]]
    masters = [v - 1.0 for v in D04_VALUES]
    assert gw.run(2, d04_rank, 2, where) == [(want, masters)] * 2


# ---- layers without a gradient -------------------------------------------------------------------


def f02_rank(rank, world, where, stage):
    numel = 40
    job = sealed(rank, world, where, [numel] * 2, stage=stage, bucket_bytes=4 * numel)
    if rank == 0:
        for j in range(2):
            job.write(j, [10.0] * numel)
    job.barrier()
    seen = []
    for frozen in (False, True, True, False):
        values = [fetched(job, j, [j], numel)[0] for j in range(2)]
        for j in (1,) if frozen else (1, 0):
            job.put(j, [rank + 1.0] * numel)
        job.step_end()
        job.wait_step()
        seen.append((values, [job.used(j) for j in range(2)]))
        descend(job)
    seen.append([fetched(job, j, [j], numel)[0] for j in range(2)])
    job.close()
    return seen


F02 = [([{10.0}, {10.0}], [1, 1]), ([{8.5}, {8.5}], [0, 1]), ([{8.5}, {7.0}], [0, 1]),
       ([{8.5}, {5.5}], [1, 1]), [{7.0}, {4.0}]]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_f02_a_layer_is_frozen_for_two_steps(where, stage):
    assert gw.run(2, f02_rank, 2, where, stage) == [F02] * 2


def f02_epochs_rank(rank, world, where, stage):
    """As f02_rank, layer 0 frozen by name; what each step sent beside it."""
    numel = 40
    kind = 1 if stage else 0  # reduce-scatter, all-reduce
    job = sealed(rank, world, where, [numel] * 2, stage=stage, bucket_bytes=4 * numel)
    if rank == 0:
        for j in range(2):
            job.write(j, [10.0] * numel)
    job.barrier()
    seen, sent, epochs, before = [], [], [], 0
    for frozen in ([], [0], [0], []):
        job.freeze(frozen)
        values = [fetched(job, j, [j], numel)[0] for j in range(2)]
        for j in (1, 0):
            if j not in frozen:
                job.put(j, [rank + 1.0] * numel)
        job.step_end()
        job.wait_step()
        stats = job.stats()
        sent.append(stats.kinds[kind].payload_bytes - before)
        epochs.append(stats.layout_epoch)
        before += sent[-1]
        seen.append((values, [job.used(j) for j in range(2)]))
        descend(job)
    seen.append([fetched(job, j, [j], numel)[0] for j in range(2)])
    with pytest.raises(gw.Error) as error:
        job.freeze([2])
    assert error.value.name == "GW_E_INVALID"
    job.close()
    return seen, sent, epochs


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_f02_each_freeze_is_a_new_layout_epoch(where, stage):
    want = F02, [320, 160, 160, 320], [1, 2, 3, 4]
    assert gw.run(2, f02_epochs_rank, 2, where, stage) == [want] * 2


def f02_early_rank(rank, world, where):
    """A frozen parameter of the bucket holds it back in no step: all is sent before its end."""
    job = sealed(rank, world, where, [8, 8], stage=2, bucket_bytes=64,
                 shard_align_bytes=ALIGN_1)
    job.freeze([0])
    sent = []
    for step in range(2):
        job.put(1, [rank + 1.0] * 8)
        until(lambda: job.stats().kinds[1].calls == step + 1, what="a reduction")
        job.step_end()
        job.wait_step()
        sent.append([set(g) for g in job.grads()])
    with pytest.raises(gw.Error) as error:
        job.put(0, [1.0] * 8)
    assert (error.value.name, "is frozen" in error.value.text) == ("GW_E_STATE", True)
    job.close()
    return sent


def test_f02_a_frozen_parameter_holds_nothing_back(where):
    halves = gw.run(2, f02_early_rank, 2, where)
    assert halves == [[[{0.0}]] * 2, [[{1.5}]] * 2]


def f02_differ_rank(rank, world, where):
    job = sealed(rank, world, where, [8, 8], stage=2, bucket_bytes=64,
                 shard_align_bytes=ALIGN_1)
    with pytest.raises(gw.Error) as error:
        job.freeze([rank])
    job.close()
    return error.value.name, error.value.text


def test_f02_ranks_that_freeze_other_parameters(where):
    first, second = gw.run(2, f02_differ_rank, 2, where)
    assert first == second and first[0] == "GW_E_MISMATCH"
    assert "parameter 0" in first[1] and "does not" in first[1]
