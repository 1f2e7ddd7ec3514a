# SPDX-License-Identifier: Apache-2.0
"""Figures of one GPU. Each function is a step: it takes the step's directory and returns figures,
or raises place.Skip with why there are none. No figure is judged.
"""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import pathlib

import gpu as gpus
import gw
from kills import free_bytes
from place import REDUCED, Service, Skip, rank_of, tool, until
from ranks import Trainer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "demo"))
import report  # noqa: E402 pylint: disable=wrong-import-position


@contextlib.contextmanager
def mps():
    """Environment in which CUDA programs share the GPU by an MPS control daemon of our own. The
    doubles' server was told already (suite.py)."""
    if "FAKEGPU_SOCKET" in os.environ:
        yield {}
        return
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise Skip("there is no nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory(prefix="gw-mps-", dir="/tmp") as directory:
        env = {"CUDA_MPS_PIPE_DIRECTORY": directory, "CUDA_MPS_LOG_DIRECTORY": directory}
        done = subprocess.run([control, "-d"], env=os.environ | env, text=True, timeout=30,
                              stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode != 0:
            raise Skip(f"MPS does not start: {(done.stderr or done.stdout).strip()[:200]}")
        try:
            try:
                tool("gpu_speed", "info", env=env, timeout=60)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                raise Skip(f"no CUDA under MPS: {str(error)[-200:]}") from error
            yield env
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input="quit -t 5\n", env=os.environ | env, text=True,
                               capture_output=True, timeout=20)
            # A daemon that did not quit is told by its own file.
            with contextlib.suppress(OSError, ValueError):
                pid = int((pathlib.Path(directory) / "nvidia-cuda-mps-control.pid").read_text())
                os.kill(pid, 15)


def words(_work):
    return tool("gpu_speed", "words", timeout=60)


def words_mps(_work):
    with mps() as env:
        return tool("gpu_speed", "words", timeout=60, env=env)


def sums(_work):
    """Our sum, beside a copy, in bytes read and written."""
    return tool("gpu_speed", "reduce", timeout=60)


def nccl_alone(_work):
    """NCCL in one process, one rank: launch, and wait of the host."""
    return tool("gpu_speed", "nccl", timeout=60)


def nccl_twice(_work):
    """Whether NCCL takes two ranks on one GPU."""
    answer = tool("gpu_speed", "twice", timeout=30)
    if not answer["allowed"]:
        raise Skip(f"NCCL {answer['version']} refuses two ranks on one GPU: {answer['answer']}")
    return answer


def latency(work):
    """From the call of a collective to its token, exact and fabric; read it beside nccl_alone."""
    with Service(work):
        return tool("gpu_trainer", "latency", timeout=80)


def latency_mps(work):
    with mps() as env, Service(work, env=env):
        return tool("gpu_trainer", "latency", timeout=80, env=env)


def overlap(work):
    """A trainer's matrix products beside the engine's kernels and copies, two processes."""
    with Service(work):
        return tool("gpu_trainer", "overlap", timeout=60)


def overlap_mps(work):
    with mps() as env, Service(work, env=env):
        return tool("gpu_trainer", "overlap", timeout=60, env=env)


def hidden_of(work, **more):
    sizes = ["--hidden", "32" if REDUCED else "2048", "--batch", "4" if REDUCED else "64"]
    figures = {}
    with Service(work, **more):
        for stage in (2,) if REDUCED else (1, 2, 3):
            for overlap_word in ("on", "off"):
                name = f"stage-{stage}-{overlap_word}"
                rank, _ = rank_of(work, name, stage, "--overlap", overlap_word, "--measure",
                                  "--steps", "2" if REDUCED else "12", "--bucket",
                                  "8192" if REDUCED else str(4 << 20), *sizes)
                figures[name] = report.step_times(rank)
    return figures


def hidden(work):
    """charlm-cuda: milliseconds per step, and the part of the communication that was hidden."""
    return hidden_of(work)


def hidden_mps(work):
    with mps() as env:
        with_env = dict(os.environ)
        os.environ.update(env)
        try:
            return hidden_of(work, env=env)
        finally:
            os.environ.clear()
            os.environ.update(with_env)


def engine_memory(work):
    """GPU memory that an engine takes before it holds anything, and with a small job."""
    watch = gpus.Gpu(0, gw.call)
    before = free_bytes(watch)
    with Service(work):
        with Trainer() as job:
            joined = free_bytes(watch)
            job.param("p", 1024)
            job.seal(stage=2, bucket_bytes=4096)
            sealed = free_bytes(watch)
        if gw.GPU:
            gw.GPU.close()
            gw.GPU = None
    with contextlib.suppress(AssertionError):
        until(lambda: free_bytes(watch) >= before, 5, "the memory")
    after = free_bytes(watch)
    watch.close()
    return {"joined_bytes": before - joined, "sealed_bytes": before - sealed,
            "left_bytes": before - after}


ALL = {  # name: (function, deadline in seconds)
    "words": (words, 60),
    "sums": (sums, 60),
    "nccl_alone": (nccl_alone, 60),
    "nccl_twice": (nccl_twice, 40),
    "latency": (latency, 60),
    "overlap": (overlap, 60),
    "hidden": (hidden, 90),
    "engine_memory": (engine_memory, 40),
    "words_mps": (words_mps, 60),
    "latency_mps": (latency_mps, 60),
    "overlap_mps": (overlap_mps, 60),
    "hidden_mps": (hidden_mps, 90),
}
