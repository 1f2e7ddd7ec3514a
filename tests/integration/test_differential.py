# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 device=cuda nodes=too
"""Random jobs beside an independent reference (reference.py): models, worlds of 1 to 8, buckets,
dtypes, groups, hybrid sharding, accumulation, unused gradients, overlap, stages.

Every job prints its seed; GW_DIFFERENTIAL_SEED=N runs that one alone, GW_DIFFERENTIAL_JOBS=N more.
Across nodes they are those of three ranks and more, and gather into private memory.
Gradients, parameters and flags must have the reference's bits; norms, whose sum the contract orders
by buckets, its value.
"""
import collections
import ctypes
import itertools
import os

import pytest

import gw
from conftest import NODES

np = pytest.importorskip("numpy")
import reference  # noqa: E402  pylint: disable=wrong-import-position

JOBS = int(os.environ.get("GW_DIFFERENTIAL_JOBS", "6" if gw.on_cuda() or NODES else "24"))
STEPS = 3
LEARNING_RATE = np.float32(0.125)

Param = collections.namedtuple("Param", "name numel unit dtype grad_dtype group")


class World:
    """One random job, the same in every process that makes it from the seed."""

    def __init__(self, seed):
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.size = int(rng.integers(1, 9))
        stage = int(rng.integers(0, 4))
        self.local = bool(rng.integers(0, 2))
        self.micro_steps = int(rng.choice([1, 1, 2, 3]))
        self.running = self.local and self.micro_steps > 1 and bool(rng.integers(0, 2))
        self.groups = self._groups(rng, stage)
        self.params = self._params(rng)
        self.options = {
            "stage": stage, "accumulate": 1 if self.local else 2, "micro_steps": self.micro_steps,
            "gather": int(stage == 3 and not gw.on_cuda() and rng.integers(0, 3) == 0 and
                          not NODES),
            "overlap_off": int(rng.integers(0, 4) == 0),
            "ring_slots": int(rng.integers(1, 5)),
            "shard_align_bytes": int(rng.choice([4, 16, 64])),
            "bucket_bytes": int(rng.choice([64, 256, 1000, 4096])),
            "scale": float(rng.choice([0.0, 1.0, 0.3])),
            "pre_scale": float(rng.choice([0.0, 0.5, 3.0])),
            "norm": int(rng.integers(0, 2)),
            "clip_norm": float(rng.choice([0.0, 0.5])),
            "reduce_dtype": int(rng.choice([0, 0, 1, 2])),
            "accum_as_grads": int(rng.integers(0, 3) == 0),
            "shard_ranks": self._shard(rng, self.size, stage),
            "persist_bytes": int(rng.choice([0, 0, 64])) if stage == 3 else 0,
            "reuse_bytes": int(rng.choice([0, 1 << 20])) if stage == 3 else 0,
        }
        self.options["secondary_ranks"] = self._blocks()
        # Again from a stream of its own.
        self.options["all_reduce"] = int(np.random.default_rng([seed, 2, 0]).integers(0, 3) == 0)
        # Who has which gradient: some are missing on a rank, in a micro-step, or everywhere.
        self.present = rng.random((STEPS, self.micro_steps, self.size, len(self.params))) < 0.85
        for step in range(STEPS):
            self.present[step, :, :, rng.random(len(self.params)) < 0.1] = False
        self.inf_step = int(rng.integers(0, STEPS)) if rng.integers(0, 3) == 0 else -1
        self.inf_param = int(rng.integers(0, len(self.params)))

    @staticmethod
    def _shard(rng, members, stage):
        divisors = [d for d in range(1, members + 1) if members % d == 0]
        return int(rng.choice(divisors)) if stage > 0 and rng.integers(0, 3) == 0 else 0

    def _blocks(self):
        """From a stream of its own, so that a seed makes the world that it always made."""
        rng = np.random.default_rng([self.seed, 1])
        if self.options["stage"] < 3 or self.options["gather"] or self.options["shard_ranks"]:
            return 0
        divisors = [d for d in range(1, self.size + 1) if self.size % d == 0]
        return int(rng.choice(divisors)) if rng.integers(0, 3) else 0

    def _groups(self, rng, stage):
        """Beside that of all ranks; (ranks, shard_ranks)."""
        groups = []
        for _ in range(int(rng.integers(0, 4))):
            count = int(rng.integers(1, self.size + 1))
            ranks = [int(r) for r in rng.permutation(self.size)[:count]]
            groups.append((ranks, self._shard(rng, count, stage)))
        return groups

    def _params(self, rng):
        mixed = rng.integers(0, 3) > 0
        params = []
        for i in range(int(rng.integers(1, 14))):
            dtype, grad = (int(d) for d in rng.integers(0, 3 if mixed else 1, 2))
            group = int(rng.integers(0, len(self.groups) + 1)) if rng.integers(0, 2) else 0
            numel = int(rng.choice([0, 1, 5, 33, 200, 700]))
            unit = f"u{i // 3}" if rng.integers(0, 4) else None
            params.append(Param(f"p{i}", numel, unit, dtype, grad, group))
        if all(p.numel == 0 for p in params):
            params[0] = params[0]._replace(numel=3)
        # A unit's parameters are neighbours.
        seen, last = set(), None
        for i, p in enumerate(params):
            if p.unit != last and p.unit in seen:
                params[i] = p._replace(unit=None)
            seen.add(p.unit)
            last = params[i].unit
        return params

    def members(self, group):
        return list(range(self.size)) if group == 0 else self.groups[group - 1][0]

    def shard_ranks(self, group):
        given = self.options["shard_ranks"] if group == 0 else self.groups[group - 1][1]
        return given or len(self.members(group))

    def _random(self, *what):
        return np.random.default_rng([self.seed, *what])

    def initial(self, param):
        return self._random(1, param).standard_normal(self.params[param].numel, np.float32)

    def gradient(self, step, micro, rank, param):
        """As stored in the gradient's dtype; None: the rank has none there."""
        if rank not in self.members(self.params[param].group) or \
                not self.present[step, micro, rank, param]:
            return None
        values = self._random(2, step, micro, rank, param).standard_normal(
            self.params[param].numel, np.float32) * np.float32(4)
        if step == self.inf_step and param == self.inf_param and values.size:
            values[-1] = np.inf
        return reference.narrow(values, self.params[param].grad_dtype)

    def held(self, rank):
        return [i for i, p in enumerate(self.params) if rank in self.members(p.group)]


def seeds():
    if "GW_DIFFERENTIAL_SEED" in os.environ:
        return [int(os.environ["GW_DIFFERENTIAL_SEED"])]
    every = (seed for seed in itertools.count(1) if not NODES or World(seed).size >= 3)
    return list(itertools.islice(every, JOBS))


# ---- a rank --------------------------------------------------------------------------------------


def load(pointer, count, dtype):
    """What lies where a call pointed, as stored."""
    size = 4 if dtype == reference.FP32 else 2
    address = pointer if isinstance(pointer, int) else \
        getattr(pointer, "address", None) or ctypes.cast(pointer, ctypes.c_void_p).value
    data = gw.GPU.get(address, size * count) if gw.GPU else ctypes.string_at(address, size * count)
    return np.frombuffer(data, reference.STORED[dtype]).copy()


def store(pointer, values):
    address = getattr(pointer, "address", None) or ctypes.cast(pointer, ctypes.c_void_p).value
    if gw.GPU:
        gw.GPU.put(address, values.tobytes())
    else:
        ctypes.memmove(address, values.tobytes(), values.nbytes)


class Rank:
    def __init__(self, rank, world, where):
        self.rank, self.world = rank, world
        self.job = gw.Job(rank, world.size, id_path=where["id"], socket=where["socket"],
                          linger_ns=-1)
        self.job.wait_ready()
        for ranks, shard in world.groups:
            self.job.param_group(ranks, shard)
        for p in world.params:
            self.job.param(p.name, p.numel, p.unit, dtype=p.dtype, grad_dtype=p.grad_dtype,
                           group=p.group)
        self.job.seal(**world.options)
        self.units = [self._unit(i) for i in range(len(world.params))]
        for i, p in enumerate(world.params):
            if i % world.size == rank and p.numel:
                self.job.write(i, [float(v) for v in world.initial(i)])
        self.job.barrier()

    def _unit(self, param):
        unit = ctypes.c_uint32()
        gw.call("gw_param_unit", self.job.handle, ctypes.c_uint32(param), ctypes.byref(unit))
        return unit.value

    def fetch(self, units):
        """{param: values as stored} of the rank's parameters in these units."""
        seen = {}
        for unit in units:
            self.job.wait(self.job.fetch(unit))
            for i in self.world.held(self.rank):
                p = self.world.params[i]
                if self.units[i] == unit and p.numel:
                    at = self.job.values(i, p.numel, whole=True, dtype=p.dtype)
                    seen[i] = load(at, p.numel, p.dtype)
            self.job.release(unit)
        return seen

    def backward(self, step, micro):
        """Gradients from the last parameter to the first, as most models do."""
        last = micro + 1 == self.world.micro_steps
        flags = (0 if last else gw.ACCUMULATE) | (gw.RUNNING if self.world.running else 0)
        for i in reversed(self.world.held(self.rank)):
            gradient = self.world.gradient(step, micro, self.rank, i)
            p = self.world.params[i]
            if gradient is None or p.numel == 0:
                continue
            for piece in reversed(range(len(self.job.pieces(i)))):
                info = self.job.pieces(i)[piece]
                part = gradient[info.param_offset:info.param_offset + info.numel]
                memory, count = self.job.acquire(i, piece, dtype=p.grad_dtype)
                assert count == info.numel
                if self.world.running and (i, piece) in self.filled:
                    had = load(memory, count, p.grad_dtype)
                    part = reference.narrow(reference.widen(had, p.grad_dtype) +
                                            reference.widen(part, p.grad_dtype), p.grad_dtype)
                store(memory, part)
                self.filled.add((i, piece))
                self.job.ready(i, piece, flags)

    def owned(self):
        """[(param, offset, reduced gradient as float32, master's address, numel)]"""
        spans = {s.bucket: s for s in self.job.spans()}
        for i in self.world.held(self.rank):
            for piece in self.job.pieces(i):
                span = spans[piece.bucket]
                first = max(piece.bucket_offset, span.bucket_offset)
                end = min(piece.bucket_offset + piece.numel, span.bucket_offset + span.numel)
                if first < end:
                    yield i, piece.param_offset + first - piece.bucket_offset, span, \
                        first - span.bucket_offset, end - first

    def step(self, step):
        self.filled = set()
        order = list(dict.fromkeys(self.units))
        fetched = [self.fetch(order)]
        for micro in range(self.world.micro_steps):
            self.backward(step, micro)
            if micro + 1 < self.world.micro_steps:
                self.job.micro_step_end()
        fetched.append(self.fetch(order[::-1]))
        self.job.step_end()
        verdict = self.job.wait_step()
        used = [bool(self.job.used(i)) for i in range(len(self.world.params))]
        parts = []
        if not verdict.nonfinite:
            self.job.wait(self.job.update_begin())
        for i, offset, span, at, count in self.owned():
            grads = load(at_element(span.grads, at, span.grads_dtype), count, span.grads_dtype)
            parts.append((i, offset, reference.widen(grads, span.grads_dtype)))
            if not verdict.nonfinite:
                master = gw.shifted(span.params, at)
                values = load(master, count, reference.FP32)
                store(master, values - LEARNING_RATE * parts[-1][2])
        if not verdict.nonfinite:
            self.job.update_commit()
        return {"fetched": fetched, "grads": parts, "used": used, "norm": verdict.norm,
                "nonfinite": verdict.nonfinite, "clip": verdict.clip_factor}


def at_element(pointer, index, dtype):
    if dtype == reference.FP32:
        return gw.shifted(pointer, index)
    return pointer.address + 2 * index


def rank_of(rank, seed, where):
    me = Rank(rank, World(seed), where)
    steps = [me.step(step) for step in range(STEPS)]
    steps.append({"fetched": [me.fetch(list(dict.fromkeys(me.units)))]})
    me.job.barrier()
    me.job.close()
    return steps


# ---- comparison ----------------------------------------------------------------------------------


def check_gradients(world, params, step, got):
    """Every element at all its owners, with the reference's bits. Returns the reduced gradients."""
    reduced = [p.reduced(step) for p in params]
    owners = [np.zeros(p.numel, int) for p in world.params]
    for rank, told in enumerate(got):
        assert told[step]["used"] == [used for _, used in reduced], f"step {step} rank {rank}"
        for i, offset, values in told[step]["grads"]:
            want = reduced[i][0][offset:offset + len(values)]
            assert np.array_equal(values, want, equal_nan=True), \
                f"step {step} rank {rank} {world.params[i]} from {offset}: {values} not {want}"
            owners[i][offset:offset + len(values)] += 1
    for i, p in enumerate(world.params):
        members = len(world.members(p.group))
        copies = members if world.options["stage"] == 0 else members // world.shard_ranks(p.group)
        assert (owners[i] == copies).all(), f"{p}: owners {owners[i]}, not {copies}"
    return [values for values, _ in reduced]


def check_verdict(world, step, reduced, got):
    everything = np.concatenate(reduced)
    nonfinite = not np.isfinite(everything).all()
    verdicts = {(t[step]["norm"], t[step]["nonfinite"], t[step]["clip"]) for t in got
                if not nonfinite} or {(0, 1, 0)}
    assert len(verdicts) == 1, f"step {step}: {verdicts}"
    assert all(t[step]["nonfinite"] == nonfinite for t in got)
    if nonfinite:
        assert all(t[step]["clip"] == 0 for t in got)
        return False
    norm, _, clip = verdicts.pop()
    want = np.abs(everything).max(initial=0) if world.options["norm"] else \
        np.sqrt((everything.astype(np.float64) ** 2).sum())
    assert norm == pytest.approx(float(want), rel=1e-6)
    limit = world.options["clip_norm"]
    assert clip == pytest.approx(min(1.0, limit / (norm + 1e-6)) if limit else 1.0, rel=1e-6)
    return True


def check_fetched(world, params, step, got):
    for rank, told in enumerate(got):
        for seen in told[step]["fetched"]:
            assert sorted(seen) == [i for i in world.held(rank) if world.params[i].numel]
            for i, values in seen.items():
                assert np.array_equal(values, params[i].fetched()), \
                    f"step {step} rank {rank} {world.params[i]}: fetched {values}"


@pytest.mark.parametrize("seed", seeds())
def test_random_job(service, tmp_path, seed):
    world = World(seed)
    print(f"GW_DIFFERENTIAL_SEED={seed}: {world.size} ranks, {world.options}, {world.groups}, "
          f"{world.params}")
    where = {"id": str(tmp_path / "id"), "socket": service}
    got = gw.run(world.size, rank_of, seed, where, timeout=120)
    params = [reference.Parameter(world, i) for i in range(len(world.params))]
    for step in range(STEPS):
        check_fetched(world, params, step, got)
        reduced = check_gradients(world, params, step, got)
        if check_verdict(world, step, reduced, got):
            for p, gradient in zip(params, reduced):
                p.master = p.master - LEARNING_RATE * gradient
    check_fetched(world, params, STEPS, got)
