#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The suite of run.sh: every step in a process of its own with a deadline, its result written as it
comes. README.md says what the results look like. Python's standard library alone.

    suite.py [--out FILE] [--fake] [--only NAME,...] [--budget SECONDS]
Exit codes: 0, 1 a check failed (--fake: or a figure could not be had), 69 no GPU.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]

import place  # noqa: E402 pylint: disable=wrong-import-position

BUDGET_S = 460
# Rules that steps break on purpose, for the doubles.
ALLOWED = {"nccl_twice": {"nccl_duplicate_gpu", "nccl_leak"}}


# ---- one step, in its own process ----------------------------------------------------------------


def steps():
    import checks  # pylint: disable=import-outside-toplevel
    import measures  # pylint: disable=import-outside-toplevel
    return [("checks", name, *step) for name, step in checks.ALL.items()] + \
        [("measurements", name, *step) for name, step in measures.ALL.items()]


def one(name, directory):
    """Runs the step and writes what it gave to <directory>/result."""
    (function,) = [f for _, n, f, _ in steps() if n == name]
    try:
        result = {"result": "ok", "values": function(pathlib.Path(directory))}
    except place.Skip as why:
        result = {"result": "skipped", "reason": str(why)}
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc()
        result = {"result": "failed", "reason": f"{type(error).__name__}: {error}"[-1500:]}
    (pathlib.Path(directory) / "result").write_text(json.dumps(result))
    end_gpu()


def end_gpu():
    """What this process has on the GPU is freed: what the doubles find later is a leak."""
    import gw  # pylint: disable=import-outside-toplevel
    if gw.GPU and not gw.OPEN:
        gw.GPU.close()
    sys.stdout.flush()
    os._exit(0)


# ---- all of them ---------------------------------------------------------------------------------


class Fake:
    """The doubles' GPU for one step; nothing without --fake."""

    def __init__(self, fake, name, seed):
        self.env, self.gpus = {}, None
        if fake:
            import fakegpus  # pylint: disable=import-outside-toplevel
            self.gpus = fakegpus.FakeGpus(1, seed, ["--mps"] if name.endswith("_mps") else [])
            self.gpus.allowed = ALLOWED.get(name, set())
            self.env = {"FAKEGPU_SOCKET": str(self.gpus.socket),
                        "CUDA_FAKEGPU_SOCKET": str(self.gpus.socket)}

    def close(self, result):
        if self.gpus is None:
            return
        try:
            if result["result"] == "ok":
                self.gpus.check()
        except AssertionError as error:
            result.update(result="failed", reason=str(error)[:1500])
        finally:
            self.gpus.kill()


def run_step(name, deadline_s, fake, seed):
    """{"result", "reason"?, "values"?, "seconds"}"""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="gw-gpu-step-", dir="/tmp"))
    directory.chmod(0o755)
    double = Fake(fake, name, seed)
    began, result = time.monotonic(), None
    with open(directory / "said", "wb") as said:
        process = subprocess.Popen([sys.executable, "-B", __file__, "--one", name, directory],
                                   stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                   env=os.environ | double.env, start_new_session=True)
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        result = {"result": "failed", "reason": f"did not end within {deadline_s:.0f} s"}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    place.end_all(directory)
    if result is None:
        with contextlib.suppress(OSError, ValueError):
            result = json.loads((directory / "result").read_text())
    result = result or {"result": "failed", "reason": f"ended with {process.returncode}"}
    said = (directory / "said").read_text(errors="replace")
    double.close(result)
    if result["result"] == "failed" and said:
        result["said"] = said[-3000:]
    result["seconds"] = round(time.monotonic() - began, 2)
    shutil.rmtree(directory, ignore_errors=True)
    return result


def machine(fake):
    """What it is; raises AssertionError without a GPU."""
    double = Fake(fake, "info", 1)
    try:
        about = json.loads(place.run(place.program("gpu_speed"), "info", env=double.env,
                                     timeout=60))
    finally:
        if double.gpus:
            double.gpus.kill()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        smi = subprocess.run(["nvidia-smi", "--query-gpu=driver_version,compute_mode,pstate",
                              "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
        if smi.returncode == 0 and not fake:
            about["driver"], about["compute_mode"], about["pstate"] = \
                [part.strip() for part in smi.stdout.splitlines()[0].split(",")][:3]
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    about["mps_running"] = pathlib.Path(pipe, "control").exists()
    about["mps_tool"] = shutil.which("nvidia-cuda-mps-control") is not None
    about["nccl_library"] = os.environ.get("GW_GPU_NCCL", "")
    about["kernel"], about["cpus"] = platform.release(), os.cpu_count()
    about["processor"] = platform.machine()
    with contextlib.suppress(OSError):
        names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        about["processor"] = names[0] if names else about["processor"]
    return about


def write(path, results):
    """Whole, or as before: a reader never sees half of it."""
    if path:
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(results, indent=1) + "\n")
        partial.replace(path)


def short(value):
    """Figures of a step on one line of the table."""
    if not isinstance(value, dict):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    parts = []
    for key, inner in value.items():
        if isinstance(inner, dict) and "p50" in inner:
            parts.append(f"{key} {inner['p50']:.4g}")
        elif isinstance(inner, (int, float)):
            parts.append(f"{key} {short(inner)}")
        elif isinstance(inner, dict):
            parts.append(f"{key}: [{short(inner)}]")
    return ", ".join(parts)


def line_of(name, result):
    text = result.get("reason") or short(result.get("values") or {})
    lines = text.splitlines() or [""]
    return f"{name:<16} {result['result']:<8} {result['seconds']:>6.1f} s  {lines[0][:400]}"


def run_all(options, results, out):
    began = time.monotonic()
    chosen = [s for s in steps() if not options.only or s[1] in options.only.split(",")]
    for number, (kind, name, _, deadline_s) in enumerate(chosen):
        left = options.budget - (time.monotonic() - began)
        if left < 8:
            result = {"result": "skipped", "reason": "no time was left", "seconds": 0.0}
        else:
            result = run_step(name, min(deadline_s, left), options.fake, options.seed + number)
        if kind == "measurements" and not options.fake and result["result"] == "failed":
            result["result"] = "skipped"  # figures are not judged
        results[kind][name] = result
        results["seconds"] = round(time.monotonic() - began, 1)
        write(out, results)
        print(line_of(name, result), flush=True)
        if result["result"] == "failed":
            print(result.get("said") or result.get("reason"), flush=True)
    results["complete"] = True
    write(out, results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=BUDGET_S)
    parser.add_argument("--one", nargs=2)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
    results = {"schema": 1, "on": "doubles" if options.fake else "gpu", "complete": False,
               "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
               "machine": {}, "seconds": 0.0, "checks": {}, "measurements": {}}
    write(options.out, results)
    try:
        results["machine"] = machine(options.fake)
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        print(f"gpu/run.sh: no GPU to work with: {error}", file=sys.stderr)
        return 69
    print(", ".join(f"{k} {v}" for k, v in results["machine"].items()), flush=True)
    run_all(options, results, options.out)
    failed = [name for kind in ("checks", "measurements") for name, r in results[kind].items()
              if r["result"] == "failed"]
    count = sum(r["result"] == "ok" for r in results["checks"].values())
    print(f"{count} of {len(results['checks'])} checks ok"
          + (f"; failed: {', '.join(failed)}" if failed else "") + f"; {results['seconds']} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
