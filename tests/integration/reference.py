# SPDX-License-Identifier: Apache-2.0
"""What a job must compute, in NumPy, from the words of the contract: for test_differential.py.

Works on whole parameters; knows no bucket, slice or padding. fp32 arithmetic is NumPy's float32,
operation by operation; bf16 is kept as the uint16 that are its bits.
"""
import numpy as np

FP32, FP16, BF16 = 0, 1, 2  # enum gw_dtype
STORED = {FP32: np.float32, FP16: np.float16, BF16: np.uint16}


def narrow(values, dtype):
    """float32 -> what is stored: rounded to nearest, ties to even."""
    values = np.asarray(values, np.float32)
    if dtype == FP32:
        return values
    if dtype == FP16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7fff) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7fc0), rounded).astype(np.uint16)


def widen(stored, dtype):
    """What is stored -> float32, exactly."""
    if dtype == BF16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32)


def rounded(values, dtype):
    return widen(narrow(values, dtype), dtype)


def tree(parts):
    """((0+1)+(2+3))+..., an odd last one passing up."""
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(parts) - len(parts) % 2:]
    return parts[0]


class Parameter:
    """One parameter of a world (test_differential.World)."""

    def __init__(self, world, index):
        self.world, self.index = world, index
        self.spec = world.params[index]
        self.members = world.members(self.spec.group)
        self.shard = world.shard_ranks(self.spec.group)
        self.accum = self.spec.grad_dtype if world.options["accum_as_grads"] else FP32
        self.master = world.initial(index)

    def fetched(self):
        return narrow(self.master, self.spec.dtype)

    def _scale(self):
        o = self.world.options
        scale = o["scale"] or 1.0 / len(self.members)
        return np.float32(scale * (o["pre_scale"] or 1.0))

    def _read(self, value):
        dtype = self.world.options["reduce_dtype"]
        return rounded(value, dtype) if dtype else value

    def _local(self, step, rank):
        """The rank's sum over its micro-steps, where it is kept; None: it has none."""
        total = None
        for micro in range(self.world.micro_steps):
            gradient = self.world.gradient(step, micro, rank, self.index)
            if gradient is None:
                continue
            gradient = widen(gradient, self.spec.grad_dtype)
            kept = self.accum if self.world.micro_steps > 1 else self.spec.grad_dtype
            if self.world.running:
                kept = self.spec.grad_dtype
            total = gradient if total is None else rounded(total + gradient, kept)
        return total

    def _contributions(self, step):
        """Per micro-step that is sent: the members' values, zeros where one has none."""
        zero = np.zeros(self.spec.numel, np.float32)
        if self.world.local:
            values = [self._local(step, rank) for rank in self.members]
            yield [v if v is not None else zero for v in values], any(
                v is not None for v in values)
            return
        for micro in range(self.world.micro_steps):
            values = [self.world.gradient(step, micro, rank, self.index) for rank in self.members]
            yield [zero if v is None else widen(v, self.spec.grad_dtype) for v in values], any(
                v is not None for v in values)

    def reduced(self, step):
        """(the reduced gradient as float32, whether any rank had one)"""
        runs = [range(first, first + self.shard)
                for first in range(0, len(self.members), self.shard)]
        hybrid = len(runs) > 1
        scale = np.float32(1) if hybrid else self._scale()
        sums, used = [None] * len(runs), False
        with np.errstate(over="ignore", invalid="ignore"):
            for values, some in self._contributions(step):
                used |= some
                for i, run in enumerate(runs):
                    value = tree([self._read(values[k]) for k in run]) * scale
                    if sums[i] is not None:
                        value = sums[i] + value
                    sums[i] = rounded(value, self.accum)
            if not used or self.spec.numel == 0:
                return np.zeros(self.spec.numel, np.float32), False
            if hybrid:
                return rounded(tree(sums) * self._scale(), self.accum), True
        return sums[0], True
