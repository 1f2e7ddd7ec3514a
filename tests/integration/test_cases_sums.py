# SPDX-License-Identifier: Apache-2.0
"""Public failures of other systems (test_cases.py): dtypes, factors, groups.

Values are worked out by hand; where a rounding decides, the test says which.
ctest: device=cuda nodes=too
"""
import pytest

import gw
from test_cases import ALIGN_1, join, where  # noqa: F401  pylint: disable=unused-import

LOCAL, SHARD = 1, 2


def typed(rank, world, where, params, groups=(), job_options=None, **options):
    """A sealed job; params: (numel, {options of gw_param_add})."""
    job = join(rank, world, where, job_options)
    for ranks in groups:
        job.param_group(ranks)
    for j, (numel, more) in enumerate(params):
        job.param(f"p{j}", numel, **more)
    job.seal(**{"bucket_bytes": 4096, "shard_align_bytes": ALIGN_1, **options})
    return job


def halves(buffer, dtype):
    """A buffer's values, in that dtype."""
    return gw.values_at(gw.LIB.gw_buffer_data(buffer.handle), dtype)


def calls(stats):
    return {k: stats.kinds[i].calls for i, k in enumerate(gw.KINDS)}


# ---- buffers, dtypes -----------------------------------------------------------------------------


def r04_rank(rank, world, where):
    numel = 4096
    # Ring bytes of a reduction are 4 KiB: 0.2 s of the simulated link.
    job = typed(rank, world, where, [(numel, {"dtype": gw.FP16, "grad_dtype": gw.FP16})], stage=1,
                bucket_bytes=2 * numel, accumulate=SHARD, micro_steps=2,
                job_options={"link_bytes_per_s": 20 << 10})
    out = []
    for step in (1, 2):
        job.put(0, [(rank + 1.0) * step] * numel, gw.ACCUMULATE, dtype=gw.FP16)
        job.micro_step_end()
        job.put(0, [16.0 * (rank + 1)] * numel, dtype=gw.FP16)  # the same memory, at once
        job.step_end()
        job.wait_step()
        out += [set(row) for row in job.grads()]
    job.close()
    return out


def test_r04_a_buffer_is_refilled_after_its_slow_reduction(where):
    # (1+2) step + 16 (1+2), halved; a refill that came too early would give 16 (1+2) twice.
    assert gw.run(2, r04_rank, 2, where) == [[{25.5}, {27.0}]] * 2


def r09_rank(rank, world, where, stage):
    numel = 128 * 128
    job = typed(rank, world, where, [(numel, {})], stage=stage, bucket_bytes=10_000 * 4,
                reduce_dtype=gw.BF16)
    first = [1 + 2.0 ** -9, 1 + 2.0 ** -8 + 2.0 ** -16, 1 + 3 * 2.0 ** -8, -1.0]
    job.put(0, first * (numel // 4) if rank == 0 else [3.0] * numel)
    job.step_end()
    verdict = job.wait_step()
    spans = {s.bucket: s for s in job.spans()}
    out = []
    for piece in job.pieces(0):
        span = spans[piece.bucket]
        at = piece.param_offset + span.bucket_offset - piece.bucket_offset
        out += [((at + i) % 4, v) for i, v in enumerate(span.grads[0:span.valid_numel])]
    job.close()
    return len(spans), set(out), len(out), verdict.nonfinite


@pytest.mark.parametrize("stage", [1, 2])
def test_r09_a_parameter_larger_than_the_bucket_is_reduced_in_bf16(where, stage):
    # bf16 has steps of 2^-7 at 1: 1, 1 + 2^-7, and 1 + 2^-6 (a tie goes to even) are summed with 3
    # and halved in fp32, where 2 + 2^-8 is a value (in bf16 it is none).
    want = {(0, 2.0), (1, 2 + 2.0 ** -8), (2, 2 + 2.0 ** -7), (3, 1.0)}
    held = gw.run(2, r09_rank, 2, where, stage)
    assert sum(n for _, _, n, _ in held) == 128 * 128
    for buckets, got, _, nonfinite in held:
        assert (buckets, got, nonfinite) == (2, want, 0)


FP16S = {"dtype": gw.FP16, "grad_dtype": gw.FP16}


def r11_rank(rank, world, where):
    job = typed(rank, world, where, [(3, FP16S), (4, FP16S)], stage=1)
    for j, numel in ((1, 4), (0, 3)):
        job.put(j, [(rank + 1.0) * (j + 1)] * numel, dtype=gw.FP16)
    job.step_end()
    job.wait_step()
    got = job.grads(padding=True), [s.grads_dtype for s in job.spans()]
    job.close()
    return got


def test_r11_fp16_gradients_in_shards_that_cross_parameters(where):
    assert gw.run(2, r11_rank, 2, where) == [([[1.5, 1.5, 1.5, 3.0]], [gw.FP32]),
                                             ([[3.0, 3.0, 3.0, 0.0]], [gw.FP32])]


def r11_sum_rank(rank, world, where, accumulate, as_grads):
    job = typed(rank, world, where, [(4, FP16S)], stage=1, accumulate=accumulate, micro_steps=2,
                accum_as_grads=as_grads)
    job.put(0, [2048.0] * 4, gw.ACCUMULATE, dtype=gw.FP16)
    job.micro_step_end()
    job.put(0, [1.0] * 4, dtype=gw.FP16)
    job.step_end()
    job.wait_step()
    (span,) = job.spans()
    got = list(span.grads[0:span.numel]), span.grads_dtype
    job.close()
    return got


@pytest.mark.parametrize("accumulate", [LOCAL, SHARD])
@pytest.mark.parametrize("as_grads", [0, 1])
def test_r11_fp16_gradients_accumulate_in_fp32_unless_told(where, accumulate, as_grads):
    # fp16 has steps of 2 from 2048 on, and 2049 is a tie that goes to even.
    want = ([2048.0] * 2, gw.FP16) if as_grads else ([2049.0] * 2, gw.FP32)
    assert gw.run(2, r11_sum_rank, 2, where, accumulate, as_grads) == [want] * 2


def r16_rank(rank, world, where):
    job = typed(rank, world, where, [(world, {"grad_dtype": gw.BF16})], stage=2, scale=1.0,
                accum_as_grads=1)
    send, recv = job.buffer(4096), job.buffer(4096)
    mine = 256.0 if rank == 0 else 1.0
    halves(send, gw.BF16)[0:world] = [mine] * world
    job.wait(job.reduce_scatter(send.at(), recv.at(), 1, dtype=gw.BF16))
    out = [halves(recv, gw.BF16)[0]]
    job.wait(job.all_reduce(send.at(), recv.at(), world, dtype=gw.BF16))
    out += halves(recv, gw.BF16)[0:world]
    job.put(0, [mine] * world, dtype=gw.BF16)
    job.step_end()
    job.wait_step()
    out += [v for row in job.grads() for v in row]
    job.close()
    return set(out)


@pytest.mark.parametrize("world, want", [(2, 256.0), (3, 258.0), (4, 260.0), (5, 260.0),
                                         (8, 264.0)])
def test_r16_bf16_sums_are_rounded_once(where, world, want):
    # Steps of 2 at 256; 257, 259 and 263 are ties that go to even. Rounded at each addition, none
    # of the ones would be left beside 256.
    assert set().union(*gw.run(world, r16_rank, world, where)) == {want}


# ---- factors -------------------------------------------------------------------------------------

R12_FACTORS = [(mean, pre) for mean in (True, False) for pre in (1.0, 2.0, 4.0)]


def r12_rank(rank, world, where, stage, all_reduce):
    out = []
    for k, (mean, pre) in enumerate(R12_FACTORS):
        job = typed(rank, world, dict(where, id=f"{where['id']}{k}"), [(8, {})], stage=stage,
                    pre_scale=pre, scale=(0.5 if mean else 1.0) / pre, all_reduce=all_reduce)
        job.put(0, [rank + 1.0] * 8)
        job.step_end()
        job.wait_step()
        out.append({v for row in job.grads() for v in row})
        if stage == 0:  # and by calls
            send, recv = job.buffer(4096), job.buffer(4096)
            for i in range(2):
                send.floats[i] = rank + 1.0
            factors = {"pre_scale": pre, "scale": (0.5 if mean else 1.0) / pre}
            job.wait(job.reduce_scatter(send.at(), recv.at(), 1, **factors))
            out[-1].add(recv.floats[0])
            job.wait(job.all_reduce(send.at(), recv.at(), 2, **factors))
            out[-1] |= {recv.floats[0], recv.floats[1]}
        job.barrier()
        job.close()
    return out


@pytest.mark.parametrize("stage, all_reduce", [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1),
                                               (3, 1)])
def test_r12_mean_and_sum_by_any_factor_before(where, stage, all_reduce):
    want = [{1.5} if mean else {3.0} for mean, _ in R12_FACTORS]
    assert gw.run(2, r12_rank, 2, where, stage, all_reduce) == [want] * 2


def r13_rank(rank, world, where, stage, factor):
    job = typed(rank, world, where, [(8, {"group": 0}), (8, {"group": 1}), (8, {"group": 2})],
                groups=[[0, 1], [2, 3]], stage=stage, scale=1 / factor)
    for j in (1 + rank // 2, 0):
        job.put(j, [1.0] * 8)
    job.step_end()
    job.wait_step()
    reduced = {}
    for span in job.spans():
        members = job.bucket(span.bucket).members
        reduced.setdefault(members, set()).update(span.grads[0:span.valid_numel])
    called = {}
    send, recv = job.buffer(4096), job.buffer(4096)
    for i in range(world):
        send.floats[i] = 1.0
    groups = {2: [job.group(ranks) for ranks in ([0, 1], [2, 3]) if rank in ranks][0], 4: 0}
    for members, group in groups.items():
        job.wait(job.reduce_scatter(send.at(), recv.at(), 1, group=group, scale=1 / factor))
        called[members] = {recv.floats[0]}
        job.wait(job.all_reduce(send.at(), recv.at(), 2, group=group, scale=1 / factor))
        called[members] |= {recv.floats[0], recv.floats[1]}
    job.close()
    return reduced, called


@pytest.mark.parametrize("factor", [8.0, 3.0])
@pytest.mark.parametrize("stage", [0, 2])
def test_r13_groups_divide_by_the_factor_given_once(where, stage, factor):
    each = gw.f32(1 / factor)
    want = {2: {gw.f32(2 * each)}, 4: {gw.f32(4 * each)}}
    assert gw.run(4, r13_rank, 4, where, stage, factor) == [(want, want)] * 4


def r17_rank(rank, world, where, shard_ranks):
    job = typed(rank, world, where, [(16, {})], stage=2, scale=1 / 300, shard_ranks=shard_ranks)
    job.put(0, [(rank + 1.0) * (i + 1) for i in range(16)])
    job.step_end()
    norm = job.wait_step().norm
    (span,) = job.spans()
    got = span.bucket_offset, list(span.grads[0:span.valid_numel])
    counted = calls(job.stats())
    job.close()
    return got, counted["reduce_scatter"], counted["all_reduce"], norm


@pytest.mark.parametrize("shard_ranks", [0, 4, 2])
def test_r17_shard_times_replica_divides_once(where, shard_ranks):
    # 1+2+...+8 = 36: whole numbers below 2^24, exact in any order.
    whole = [gw.f32(gw.f32(1 / 300) * 36 * (i + 1)) for i in range(16)]
    shards = shard_ranks or 8
    numel = 16 // shards
    ranks = gw.run(8, r17_rank, 8, where, shard_ranks)
    for rank, (got, scatters, reduces, norm) in enumerate(ranks):
        at = rank % shards * numel
        assert got == (at, whole[at:at + numel]), f"rank {rank}"
        assert (scatters, reduces) == (1, 1 if shard_ranks else 0)
        assert norm == ranks[0][3] and abs(norm - sum(v * v for v in whole) ** 0.5) < 1e-6


def e03_rank(rank, world, where):
    job = typed(rank, world, where, [(8, {"dtype": gw.BF16, "grad_dtype": gw.BF16})], stage=2,
                scale=1.0, shard_ranks=2, micro_steps=3)
    out = []
    for _ in range(2):
        before = calls(job.stats())
        for micro, value in enumerate((256.0, 1.0, 1.0)):
            job.put(0, [value] * 8, gw.ACCUMULATE if micro < 2 else 0, dtype=gw.BF16)
            if micro < 2:
                job.micro_step_end()
        job.step_end()
        job.wait_step()
        after = calls(job.stats())
        out.append(({v for row in job.grads() for v in row},
                    after["reduce_scatter"] - before["reduce_scatter"],
                    after["all_reduce"] - before["all_reduce"]))
    job.close()
    return out


def test_e03_partials_of_three_micro_steps_are_summed_once_between_replicas(where):
    # 4 ranks of 256 + 1 + 1. In bf16, 512 + 2 is a tie that goes back to 512.
    assert gw.run(4, e03_rank, 4, where) == [[({1032.0}, 3, 1)] * 2] * 4


# ---- calls that make no sense --------------------------------------------------------------------


def t10_rank(rank, world, where):
    job = join(rank, world, where)
    small, large = job.buffer(4096), job.buffer(4096 * world)
    out = []
    for attempt in (
            lambda: job.reduce_scatter(small.at(), large.at(), 1024),
            lambda: job.reduce_scatter(large.at(1), small.at(), 1024),
            lambda: job.reduce_scatter(large.at(), small.at(1), 1024),
            lambda: job.all_gather(small.at(), small.at(), 1024),
            lambda: job.all_gather(small.at(), large.at(1), 1024),
            lambda: job.reduce_scatter(large.at(), small.at(), 2049, dtype=gw.BF16),
            lambda: job.broadcast(small.at(2048), 1, 0, dtype=gw.BF16),
            lambda: job.broadcast(small.at(2047), 1, 0, dtype=gw.BF16)):
        try:
            job.wait(attempt())
            out.append("taken")
        except gw.Error as e:
            out.append(e.name)
    large.floats[1023] = rank + 1.0
    job.wait(job.reduce_scatter(large.at(), small.at(), 1024))  # what fits, to the last element
    last = small.floats[1023]
    job.close()
    return out, last


def test_t10_lengths_that_do_not_add_up_are_refused(where):
    got = gw.run(2, t10_rank, 2, where)
    assert [last for _, last in got] == [3.0, 0.0]
    for answers, _ in got:
        assert answers == ["GW_E_INVALID"] * 7 + ["taken"]
