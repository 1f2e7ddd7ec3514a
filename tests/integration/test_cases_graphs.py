# SPDX-License-Identifier: Apache-2.0
"""Public failures of other systems (test_cases.py): micro-steps, parameters that are unused, shared
or empty, and what is gathered for whole layers and alternating graphs.

Values are worked out by hand.
ctest: device=cuda nodes=too
"""
import pytest

import gw
from test_cases import join, sealed, where  # noqa: F401  pylint: disable=unused-import
from test_cases_steps import bf16, descend, fetched
from test_cases_sums import LOCAL, SHARD, calls, typed

N = 8


def share(rank, value):
    """Of two ranks, whose mean is the value."""
    return value * (rank + 0.5)


def names(where, text):
    return dict(where, id=where["id"] + text)


# ---- micro-steps ---------------------------------------------------------------------------------

# Steps of micro-steps of {parameter: gradient}; what each step leaves of both, None: no gradient.
SCRIPTS = {
    "b01": ([[{0: 1, 1: 3}, {0: 2}]], [(3, 3)]),
    "b02": ([[{0: 7, 1: 7}], [{0: 1}]], [(7, 7), (1, None)]),
    "b03": ([[{0: 7, 1: 7}], [{0: 1, 1: 1}, {0: 1}]], [(7, 7), (2, 1)]),
    "b04": ([[{0: k, 1: k} for k in (1, 2, 3, 4)]], [(10, 10)]),
    "b06": ([[{1: 100}], [{0: 5, 1: 5}]], [(None, 100), (5, 5)]),  # the first one is given up
}


def micro_rank(rank, where, stage, accumulate, bucket):
    job = sealed(rank, 2, where, [N, N], stage=stage, accumulate=accumulate, bucket_bytes=bucket,
                 micro_steps=4)
    out = {}
    for case, (steps, _) in SCRIPTS.items():
        out[case] = []
        for micros in steps:
            for gradients in micros[:-1]:
                for j in sorted(gradients, reverse=True):
                    job.put(j, [share(rank, gradients[j])] * N, gw.ACCUMULATE)
                job.micro_step_end()
            for j in sorted(micros[-1], reverse=True):
                job.put(j, [share(rank, micros[-1][j])] * N)
            job.step_end()
            job.wait_step()
            out[case].append((owned(job), [job.used(j) for j in range(2)]))
    job.close()
    return out


def owned(job):
    """[values of parameter 0, of parameter 1] in the rank's shard, as sets."""
    seen = [set(), set()]
    spans = {s.bucket: s for s in job.spans()}
    for j in range(2):
        for p in job.pieces(j):
            s = spans[p.bucket]
            first = max(p.bucket_offset, s.bucket_offset)
            end = min(p.bucket_offset + p.numel, s.bucket_offset + s.numel)
            if first < end:
                seen[j] |= set(s.grads[first - s.bucket_offset:end - s.bucket_offset])
    return seen


@pytest.mark.parametrize("stage, accumulate, bucket", [
    (0, LOCAL, 64), (1, SHARD, 32), (2, SHARD, 64), (3, LOCAL, 64), (3, SHARD, 32)])
def test_b01_b02_b03_b04_b06_sums_over_micro_steps(where, stage, accumulate, bucket):
    """Both parameters in one bucket, or one in each."""
    got = gw.run(2, micro_rank, where, stage, accumulate, bucket)
    for case, (_, left) in SCRIPTS.items():
        for step, want in enumerate(left):
            values = [set().union(*(rank[case][step][0][j] for rank in got)) for j in range(2)]
            assert values == [{float(v or 0)} for v in want], f"{case}, step {step + 1}"
            for rank in got:
                assert rank[case][step][1] == [int(v is not None) for v in want], case


# ---- shared and empty parameters -----------------------------------------------------------------


def shared_rank(rank, where, hidden):
    """Layers 0 and 8 of nine are one: its parameters are there once, and fetched by either."""
    out = []
    sizes = [hidden * hidden, hidden] * 8  # weight and bias of layers 0 to 7
    units = [f"l{layer}" for layer in range(8) for _ in range(2)]
    for stage in range(4):
        job = join(rank, 2, names(where, str(stage)))
        for j, (numel, unit) in enumerate(zip(sizes, units)):
            job.param(f"p{j}", numel, unit)
        job.seal(stage=stage, bucket_bytes=4096)
        layers = [*range(8), 0]
        for layer in layers + layers[::-1]:
            job.wait(job.fetch(layer))
            job.release(layer)
        for layer in reversed(range(8)):
            uses = sum(k + 1 for k, of in enumerate(layers) if of == layer)
            for j in (2 * layer + 1, 2 * layer):
                job.put(j, [share(rank, uses)] * sizes[j])
        try:
            job.put(0, [1.0] * sizes[0])
            again = "taken", False
        except gw.Error as e:
            again = e.name, "p0" in e.text
        job.step_end()
        job.wait_step()
        descend(job)
        job.barrier()
        out.append((again, [set(job.read(j, numel)) for j, numel in enumerate(sizes)]))
        job.barrier()
        job.close()
    return out


@pytest.mark.parametrize("hidden", [4, 36])
def test_b05_a_shared_layer_is_one_parameter_in_all_stages(where, hidden):
    want = [{-10.0}] * 2 + [{-(layer + 1.0)} for layer in range(1, 8) for _ in range(2)]
    for stages in gw.run(2, shared_rank, where, hidden):
        for again, values in stages:
            assert again == ("GW_E_DUPLICATE", True)  # two uses are added up before they are told
            assert values == want


def empty_rank(rank, where, numels):
    out = []
    for stage in (1, 3):
        job = sealed(rank, 2, names(where, str(stage)), numels, ["u"] * 3, stage=stage,
                     bucket_bytes=4096)
        fetched(job, 0, [j for j in range(3) if numels[j]], 8)
        for j in reversed(range(3)):
            if numels[j]:
                job.put(j, [share(rank, j + 1)] * numels[j])
        job.step_end()
        job.wait_step()
        out.append((job.layout().buckets, [len(job.pieces(j)) for j in range(3)],
                    calls(job.stats())["reduce_scatter"],
                    sorted({v for row in job.grads() for v in row})))
        job.barrier()
        job.close()
    return out


@pytest.mark.parametrize("numels", [[8, 0, 24], [8, 24, 0]])
def test_b07_empty_parameters_cost_no_collective(where, numels):
    there = [float(j + 1) for j in range(3) if numels[j]]
    ranks = gw.run(2, empty_rank, where, numels)
    for stage in range(2):
        for rank in range(2):
            assert ranks[rank][stage][:3] == (1, [int(n > 0) for n in numels], 1)
        assert sorted({v for rank in ranks for v in rank[stage][3]}) == there


# ---- large values --------------------------------------------------------------------------------


def huge_rank(rank, where):
    job = typed(rank, 2, where, [(16, {"dtype": gw.BF16, "grad_dtype": gw.BF16})], stage=2)
    job.put(0, [bf16(1e30)] * 16, dtype=gw.BF16)
    job.step_end()
    verdict = job.wait_step()
    held = {v for row in job.grads() for v in row}
    job.close()
    return held, verdict.nonfinite


def test_r14_bf16_stays_finite_where_no_reduction_dtype_is_set(where):
    assert gw.run(2, huge_rank, where) == [({bf16(1e30)}, 0)] * 2


# ---- gathers -------------------------------------------------------------------------------------


def alternating_rank(rank, where):
    """Hits and misses of the fifth and sixth step."""
    units, numel = 10, 64
    job = sealed(rank, 2, where, [numel] * units, stage=3, bucket_bytes=4 * numel)
    before, wrong = None, []
    for step in range(6):
        if step == 4:
            before = job.stats()
        order = list(range(units))
        for unit in order + (order[::-1] if step % 2 == 0 else []):
            if fetched(job, unit, [unit], numel) != [{-1.0 * step}]:
                wrong.append((step, unit))
        for unit in reversed(order):
            job.put(unit, [1.0] * numel)
        job.step_end()
        job.wait_step()
        descend(job)
    after = job.stats()
    job.close()
    return wrong, after.prefetch_hits - before.prefetch_hits, \
        after.prefetch_misses - before.prefetch_misses


def test_d02_graphs_that_alternate_are_both_known(where):
    # A step's first fetch is missed, for nothing tells which graph comes.
    assert gw.run(2, alternating_rank, where) == [([], 19 + 9, 2)] * 2


def layer_rank(rank, where):
    layers, sizes = 3, [64] * 7 + [8] * 2
    job = sealed(rank, 2, where, sizes * layers,
                 [f"layer{n}" for n in range(layers) for _ in sizes], stage=3,
                 bucket_bytes=4 * sum(sizes))
    before = calls(job.stats())["all_gather"]
    for layer in range(layers):
        fetched(job, layer, range(layer * 9, layer * 9 + 9), 8)
    gathers = calls(job.stats())["all_gather"] - before
    job.barrier()
    job.close()
    return gathers


def test_d06_a_layer_of_many_parameters_is_one_gather(where):
    assert gw.run(2, layer_rank, where) == [3, 3]


def beyond_rank(rank, where):
    """Units of 1 KiB; how much was resident at most."""
    units, numel = 3, 256
    job = sealed(rank, 2, where, [numel] * units, stage=3, bucket_bytes=4 * numel, gather_bytes=64,
                 prefetch_bytes=64)
    if rank == 0:
        for j in range(units):
            job.write(j, [j + 1.0] * numel)
    job.barrier()
    seen = [fetched(job, unit, [unit], numel) for _ in range(3) for unit in range(units)]
    most = job.stats().gathered_bytes_max
    job.barrier()
    job.close()
    return seen, most


def test_t02_a_unit_beyond_the_budget_is_gathered_alone(where):
    for seen, most in gw.run(2, beyond_rank, where):
        assert seen == [[{1.0}], [{2.0}], [{3.0}]] * 3
        assert most == 1024
