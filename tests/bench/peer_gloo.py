# SPDX-License-Identifier: Apache-2.0
"""gwbench's peer gloo, as torch.distributed has it: what peer_mpi.c does, with the same lines; it
lacks nothing.

    peer_gloo.py STORE RANKS OP DTYPE BYTES ITERATIONS BUDGET_NS [plant]
    peer_gloo.py            is there a torch with gloo?

STORE: a file that is not there yet, over which the ranks find each other. This process forks one
for each rank; they have one thread each beside gloo's own. Times hold what Python adds to a call.
"""
import os
import signal
import sys
import time
import traceback

import torch
import torch.distributed as dist

PERIOD, SPOTS, ITERATIONS_MAX, WARM_UPS = 61, 16, 20000, 5
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NEVER = -1
CHUNK = 1 << 20  # elements looked at in one go


def factor(dtype, rank):
    return 1 + (rank if dtype == "fp32" else rank % 4)


def whole(count, first, times):
    period = times * (1 + (torch.arange(PERIOD) + first) % PERIOD).float()
    return period.repeat(count // PERIOD + 1)[:count]


class Run:
    """One case: its tensors, and what must come."""

    def __init__(self, rank, ranks, op, dtype, size, plant):
        self.op, self.dtype, self.ranks = op, dtype, ranks
        numel = size // TYPES[dtype].itemsize
        part = numel // ranks
        sent, got = {"reduce-scatter": (numel, part), "all-gather": (part, numel)}.get(
            op, (numel, numel))
        first = rank * part if op == "all-gather" else 0
        self.send = whole(sent, first, factor(dtype, rank)).to(TYPES[dtype])
        if plant and rank == 0:
            self.send[sent // 2] *= 2
        self.recv = torch.zeros(got, dtype=TYPES[dtype])
        if op == "all-gather":
            self.must = torch.cat([whole(part, q * part, factor(dtype, q)) for q in range(ranks)])
        else:
            total = sum(factor(dtype, q) for q in range(ranks))
            self.must = whole(got, rank * part if op == "reduce-scatter" else 0, total)
        self.spots = torch.tensor([(got - 1) * i // (SPOTS - 1) for i in range(SPOTS)])
        if op not in ("reduce-scatter", "all-gather"):
            self.sent = self.send.clone()  # an all-reduce is in place

    def prepare(self):
        if self.op in ("reduce-scatter", "all-gather"):
            self.recv[self.spots] = float("nan")
        else:
            self.recv.copy_(self.sent)

    def collective(self):
        if self.op == "reduce-scatter":
            dist.reduce_scatter_tensor(self.recv, self.send)
        elif self.op == "all-gather":
            dist.all_gather_into_tensor(self.recv, self.send)
        else:
            dist.all_reduce(self.recv)

    def wrong(self, at):
        """Index of a wrong value among those at `at`, or NEVER. Sums may be rounded per hop."""
        slack = 0.0
        if self.dtype != "fp32" and self.op != "all-gather":
            slack = (1 / 2048 if self.dtype == "fp16" else 1 / 256) * self.ranks
        must = self.must[at]
        bad = ~((self.recv[at].float() - must).abs() <= must * slack)
        return int(torch.arange(len(self.must))[at][bad][0]) if bad.any() else NEVER

    def wrong_anywhere(self):
        parts = (self.wrong(slice(at, at + CHUNK)) for at in range(0, len(self.must), CHUNK))
        return next((at for at in parts if at != NEVER), NEVER)


def one_op(run, bad, everywhere=False):
    run.prepare()
    began = time.perf_counter_ns()
    run.collective()
    took = time.perf_counter_ns() - began
    at = run.wrong_anywhere() if everywhere else run.wrong(run.spots)
    if bad[0] == NEVER:
        bad[0] = at
    return took


def rounds(rank, run, iterations, budget_ns):
    bad = torch.full((1,), NEVER, dtype=torch.int64)
    one = sorted(one_op(run, bad) for _ in range(WARM_UPS))[WARM_UPS // 2]
    count = torch.tensor([iterations or min(max(budget_ns // (one + 1), 1), ITERATIONS_MAX)])
    dist.broadcast(count, 0)
    times = torch.tensor([one_op(run, bad) for _ in range(int(count))], dtype=torch.int64)
    one_op(run, bad, everywhere=True)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if rank == 0:
        print("iterations", int(count))
        print("\n".join(f"ns {ns}" for ns in times.tolist()))
        print("ok" if bad[0] == NEVER else f"wrong element {int(bad[0])}", flush=True)


def one_rank(rank, store, ranks, op, dtype, size, iterations, budget_ns, plant):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    if rank == 0:
        print(f"version gloo of torch {torch.__version__}", flush=True)
    run = Run(rank, ranks, op, dtype, size, plant)
    rounds(rank, run, iterations, budget_ns)
    dist.destroy_process_group()
    os._exit(0)


def main():
    torch.set_num_threads(1)
    if len(sys.argv) == 1:
        return 0 if dist.is_gloo_available() else 1
    store, ranks, op, dtype, size, iterations, budget_ns = sys.argv[1:8]
    children = []

    def end(*_):
        for child in children:
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    for rank in range(int(ranks)):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                one_rank(rank, store, int(ranks), op, dtype, int(size), int(iterations),
                         int(budget_ns), len(sys.argv) > 8)
            except Exception:  # whatever it is, this process must not go on as the parent
                traceback.print_exc()
            os._exit(70)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    return 70 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
