# SPDX-License-Identifier: Apache-2.0
"""What one GPU can show: checks, each ok, failed or skipped with its reason, and measurements,
which nothing judges. Called by run.sh; README.md says what each is. Standard library only.

The JSON is written anew after every step. Exit code 1 when a check failed.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUDGET_S = 460  # of all steps
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 40


class Skip(Exception):
    """A step that this machine cannot do."""


class Failed(Exception):
    """A check that did not hold."""


class Suite:
    """Programs, a gradwired of our own, and the results."""

    def __init__(self, options):
        self.build, self.out, self.fake = options.build, options.out, options.fake
        self.source = options.source
        self.deadline = time.monotonic() + BUDGET_S
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gw-gpu-", dir="/tmp"))
        self.runtime = self.work / "run"
        self.processes = []
        self.results = {"schema": 1, "date": datetime.datetime.now().isoformat(timespec="seconds"),
                        "fake": self.fake, "machine": {"system": platform.platform(),
                                                       "cpus": os.cpu_count()},
                        "checks": [], "measured": {}}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
        (self.work / "text").write_text(TEXT)

    # ---- processes ----

    def start(self, *args, **options):
        process = subprocess.Popen([str(a) for a in args], env=self.env, stdin=subprocess.DEVNULL,
                                   **options)
        self.processes.append(process)
        return process

    def run(self, *args, limit_s=120):
        """stdout of a program that must end with 0."""
        left = min(limit_s, self.deadline - time.monotonic())
        if left < 1:
            raise Skip("no time was left")
        process = self.start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, errors = process.communicate(timeout=left)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise Failed(f"{pathlib.Path(args[0]).name} did not end within {left:.0f} s") from error
        if process.returncode:
            raise Failed(f"{pathlib.Path(args[0]).name} ended with {process.returncode}: "
                         f"{errors.strip()[-600:]}")
        return out

    def program(self, name, *args, **options):
        reduced = ["reduced"] if self.fake else []
        return json.loads(self.run(self.build / "tests/bin" / name, *args, *reduced, **options))

    def start_fake(self):
        """GPUs of the doubles, and for all that follows the libraries that ask them."""
        double = self.build / "tests/fakegpu"
        self.env.update(
            FAKEGPU_SOCKET=str(self.work / "gpu"), CUDA_FAKEGPU_SOCKET=str(self.work / "gpu"),
            FAKEGPU_KERNELS=":".join(str(self.build / "lib" / f"lib{name}-cpu.so") for name in (
                "gw_kernels", "charlm_kernels", "gpu_work")))
        server = self.start(double / "fakegpu", "--gpus", "1", "--socket", self.work / "gpu",
                            "--report", self.work / "gpu.json", stderr=subprocess.PIPE)
        self.wait_for(lambda: (self.work / "gpu.ctl").exists(), "the doubles")
        self.env["LD_LIBRARY_PATH"] = ":".join(
            [str(double / "lib")] + self.env.get("LD_LIBRARY_PATH", "").split(":"))
        os.environ.update(self.env)
        return server

    def start_daemon(self):
        self.runtime.mkdir(mode=0o755)
        (self.work / "conf").write_text("[job]\nlinger = 0\ngpu_sharing = on\n")
        daemon = self.start(self.build / "daemon/supervisor/gradwired", "--foreground",
                            "--runtime-dir", self.runtime, "--config", self.work / "conf",
                            "--engine", self.build / "daemon/engine/gradwire-engine",
                            "--device", "cuda", stderr=open(self.work / "log", "wb"))
        self.wait_for(lambda: (self.runtime / "gradwired.sock").exists(), "gradwired")
        self.env["GRADWIRE_SOCKET"] = str(self.runtime / "gradwired.sock")
        os.environ.update(self.env)
        return daemon

    def wait_for(self, condition, what, limit_s=60):
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                log = self.work / "log"
                raise Failed(f"{what} did not come: "
                             f"{log.read_text()[-600:] if log.exists() else ''}")
            time.sleep(0.02)

    def engines(self):
        """Pids of our gradwired's engines."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes()
                if line.startswith(str(self.build / "daemon/engine").encode()) and \
                        b"--guard" not in line and b"--probe" not in line:
                    found.append(int(path.parent.name))
        return found

    def idle(self):
        """No engine is left: each job of a check has ended."""
        self.wait_for(lambda: not self.engines(), "the end of the engines")

    # ---- steps ----

    def step(self, group, function, *args):
        """Runs one check or measurement, and writes what came of it."""
        name = function.__name__ + "".join(f" {a}" for a in args)
        began, value, state, reason = time.monotonic(), None, "ok", ""
        try:
            value = function(self, *args)
        except Skip as error:
            state, reason = "skipped", str(error)
        except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            state, reason = "failed", f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - began, 2)
        if group == "check":
            self.results["checks"].append({"name": name, "result": state, "reason": reason,
                                           "seconds": seconds, "found": value})
        elif state == "ok":
            self.results["measured"][name] = value
        else:
            self.results["measured"][name] = {state: reason}
        print(f"{group:<8} {name:<38} {state:<8} {seconds:>7.2f} s  {reason[:200]}", flush=True)
        self.write()

    def write(self):
        part = self.out.with_name(self.out.name + ".part")
        part.write_text(json.dumps(self.results, indent=1) + "\n")
        part.replace(self.out)

    def close(self):
        with contextlib.suppress(Failed, Skip):
            self.run(self.build / "client/ctl/gwctl", "--runtime-dir", self.runtime, "stop",
                     "--engines", limit_s=30)
        for process in reversed(self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
                if process.poll() is None:
                    process.terminate()
                    process.wait(20)
        shutil.rmtree(self.work, ignore_errors=True)


# ---- checks --------------------------------------------------------------------------------------


def kernels(suite):
    """Every kernel type by type: the CPU build's bits, and float64."""
    return suite.program("gpu_kernels", suite.build / "lib/libgw_kernels-cpu.so", limit_s=180)


def doctor(suite):
    out = json.loads(suite.run(suite.build / "client/ctl/gwctl", "doctor", "--json",
                               "--runtime-dir", suite.runtime, "--plugins",
                               suite.build / "daemon/engine", limit_s=90))
    return {point["point"]: f"{point['verdict']}: {point['found']}" for point in out["points"]}


def charlm(suite, program, name, *args):
    """(result, checksum of the parameters) of one rank or of a reference."""
    where = suite.work / f"{name}-{time.monotonic_ns()}"
    where.mkdir()
    size = ["--hidden", "32", "--steps", "4", "--batch", "4"] if suite.fake else \
        ["--hidden", "512", "--steps", "20"]
    suite.run(suite.build / "client/examples" / program, "--text", suite.work / "text", *size,
              "--out", where / "out", "--dump", where / "dump", *args)
    return json.loads((where / "out").read_text()), (where / "dump").read_bytes(), where


def stage(suite, number, overlap):
    """World size 1 through the service: the bits of a process without it, on the same GPU."""
    if not hasattr(suite, "reference"):
        suite.reference = charlm(suite, "charlm-cuda", "reference", "--reference", "1")[1]
    result, parameters, where = charlm(
        suite, "charlm-cuda", f"stage-{number}", "--rank", "0", "--world", "1", "--id-file",
        suite.work / f"id-{time.monotonic_ns()}", "--stage", number, "--overlap", overlap)
    suite.idle()
    if parameters != suite.reference:
        raise Failed("other parameters than the reference on the same GPU")
    host = charlm(suite, "charlm", "host", "--reference", "1")[1]
    shutil.rmtree(where)
    return {"loss": result["loss"][-1], "host_bits": parameters == host}


def binding(suite):
    """tests/integration/gw.py in this process' children, each with the GPU."""
    sys.path.insert(0, str(suite.source / "tests/integration"))
    os.environ.update(GRADWIRE_BUILD=str(suite.build), GW_TEST_DEVICE="cuda")
    import gw  # pylint: disable=import-outside-toplevel
    return gw


def in_rank(suite, function, *args, limit_s=120):
    gw = binding(suite)
    kind, value = gw.Ranks(1, function, str(suite.runtime / "gradwired.sock"), *args).join(
        min(limit_s, max(suite.deadline - time.monotonic(), 1)))[0]
    if kind != "ok":
        raise Failed(f"{kind}: {value}")
    suite.idle()
    return value


def tokens_rank(_, socket):
    """Gradient data from a second stream, a result waited for in a third: never by the host."""
    import ctypes  # pylint: disable=import-outside-toplevel
    import gw  # pylint: disable=import-outside-toplevel
    job = gw.Job(0, 1, socket=socket, linger_ns=-1)
    job.param("p", 4096)
    job.seal(stage=2, bucket_bytes=4 * 4096)
    p, n = job.acquire(0)
    producer = gw.GPU.new_stream()
    token = gw.Token()
    gw.GPU.put(p.address, bytes(bytearray(b"\0\0\x80\x3f" * n)), producer)
    gw.call("gw_record", job.handle, producer, ctypes.byref(token))
    job.ready(0, tokens=[token])
    ended = job.step_end()
    consumer = gw.GPU.new_stream()
    gw.call("gw_stream_wait", job.handle, ended, consumer)
    got = gw.GPU.get(job.spans()[0].grads.address, 4 * n, consumer)
    job.close()
    return got == b"\0\0\x80\x3f" * n


def tokens(suite):
    if not in_rank(suite, tokens_rank):
        raise Failed("the reduced gradient is not what the second stream wrote")


def import_rank(_, socket, cycles):
    """IPC both ways: own memory imported by the engine, the engine's exported to us; and again."""
    import ctypes  # pylint: disable=import-outside-toplevel
    import gw  # pylint: disable=import-outside-toplevel
    job = gw.Job(0, 1, socket=socket, linger_ns=-1)
    recv = job.buffer(4096)
    address = gw.GPU.alloc(1 << 20)
    gw.GPU.put(address + 4096, b"\0\0\x40\x40" * 1024)

    def once():
        handle, staged = ctypes.c_void_p(), ctypes.c_int()
        gw.call("gw_cuda_buffer_import", job.handle, ctypes.c_void_p(address + 4096),
                ctypes.c_size_t(4096), ctypes.byref(handle), ctypes.byref(staged))
        return handle, staged.value

    handle, staged = once()
    job.wait(job.all_reduce(gw.Slice(handle, 0), recv.at(), 1024))
    right = recv.floats[0:1024] == [3.0] * 1024
    gw.call("gw_buffer_free", job.handle, handle)
    begun = free_bytes(gw)
    for _ in range(cycles):
        gw.call("gw_buffer_free", job.handle, once()[0])
    grown = begun - free_bytes(gw)
    recv.free()
    gw.GPU.free(address)
    job.close()
    return {"right": right, "staged": staged, "cycles": cycles, "gpu_bytes_grown": grown}


def free_bytes(gw):
    import ctypes  # pylint: disable=import-outside-toplevel
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    gw.GPU.do("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def register_and_free(suite):
    found = in_rank(suite, import_rank, 50 if suite.fake else 10000, limit_s=200)
    if not found["right"]:
        raise Failed(f"wrong sums of imported memory: {found}")
    if found["gpu_bytes_grown"] > 4 << 20:
        raise Failed(f"GPU memory grew: {found}")
    return found


STATES = ("joined", "sealed", "acquired", "ready", "step_ended", "updating", "imported")


def killed_rank(_, socket, state, mark):
    import ctypes  # pylint: disable=import-outside-toplevel
    import gw  # pylint: disable=import-outside-toplevel
    job = gw.Job(0, 1, socket=socket, linger_ns=-1)

    def import_memory():
        gw.call("gw_cuda_buffer_import", job.handle, ctypes.c_void_p(gw.GPU.alloc(1 << 20)),
                ctypes.c_size_t(1 << 20), ctypes.byref(ctypes.c_void_p()),
                ctypes.byref(ctypes.c_int()))

    def seal():
        job.param("p", 4096)
        job.seal(stage=2, bucket_bytes=4 * 4096)

    steps = {"joined": [], "sealed": [seal], "imported": [import_memory],
             "acquired": [seal, lambda: job.acquire(0)],
             "ready": [seal, lambda: job.put(0, [1.0] * 4096)]}
    steps["step_ended"] = steps["ready"] + [job.step_end]
    steps["updating"] = steps["step_ended"] + [job.update_begin]
    for do in steps[state]:
        do()
    pathlib.Path(mark).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def killed(suite, state):
    """The engine sees the death, ends, and its GPU memory is back."""
    gw = binding(suite)
    mark = suite.work / f"mark-{state}"
    kind, value = gw.Ranks(1, killed_rank, str(suite.runtime / "gradwired.sock"), state,
                           str(mark)).join(60)[0]
    if kind != "died" or not mark.exists():
        raise Failed(f"the rank did not come to that state: {kind}: {value}")
    suite.idle()


def staged_rank(rank, socket, id_path):
    """A host job's rank that copies from and to the GPU: two of them may share one."""
    import gpu  # pylint: disable=import-outside-toplevel
    import gw  # pylint: disable=import-outside-toplevel
    job = gw.Job(rank, 2, id_path=id_path, socket=socket, linger_ns=-1)
    card = gpu.Gpu(0, gw.call)
    memory = card.alloc(4096)
    card.put(memory, gw.struct.pack("1024f", *[rank + 1.0] * 1024))
    buffer = job.buffer(4096)
    buffer.floats[0:1024] = gw.struct.unpack("1024f", card.get(memory, 4096))
    job.wait(job.all_reduce(buffer.at(), buffer.at(), 1024))
    card.put(memory, gw.struct.pack("1024f", *buffer.floats[0:1024]))
    got = gw.struct.unpack("1024f", card.get(memory, 4096))
    job.close()
    card.close()
    return got == (3.0,) * 1024


def two_ranks_on_one_gpu(suite):
    gw = binding(suite)
    results = gw.Ranks(2, staged_rank, str(suite.runtime / "gradwired.sock"),
                       str(suite.work / "staged.id"), env={"GW_TEST_DEVICE": "host"}).join(90)
    if results != [("ok", True)] * 2:
        raise Failed(str(results))
    suite.idle()


# ---- measurements --------------------------------------------------------------------------------


def words(suite):
    return suite.program("gpu_speed", "words")


def reduce(suite):
    return suite.program("gpu_speed", "reduce")


def nccl(suite):
    return suite.program("gpu_speed", "nccl")


def nccl_twice(suite):
    if suite.fake:
        raise Skip("the doubles report it as the broken rule that it is")
    return suite.program("gpu_speed", "twice")


def latency(suite):
    found = suite.program("gpu_trainer", "latency")
    suite.idle()
    return found


def overlap(suite):
    found = suite.program("gpu_trainer", "overlap")
    suite.idle()
    return found


def hidden(suite):
    """One rank sends nothing: what its stream still stands for is the service's own cost."""
    size = ["--hidden", "48", "--steps", "3"] if suite.fake else \
        ["--hidden", "2048", "--steps", "20", "--batch", "128", "--bucket", str(8 << 20)]
    found = {}
    for number in range(4):
        out = suite.work / f"hidden-{number}"
        suite.run(suite.build / "client/examples/charlm-cuda", "--text", suite.work / "text",
                  *size, "--rank", "0", "--world", "1", "--stage", number, "--measure",
                  "--id-file", suite.work / f"hidden-id-{number}", "--out", out)
        suite.idle()
        rank = json.loads(out.read_text())
        steps = sorted(rank["step_ns"])
        alone = rank["stats"]["comm_alone_ns"]
        waited = rank["waited_ns"] / rank["steps"]
        found[f"stage {number}"] = {
            "step_ms": steps[len(steps) // 2] / 1e6, "comm_alone_ms": alone / 1e6,
            "waited_ms": waited / 1e6,
            "hidden_fraction": min(max(1 - waited / alone, 0), 1) if alone >= 50000 else None}
    return found


def context_rank(_, socket):
    import gw  # pylint: disable=import-outside-toplevel
    import gpu  # pylint: disable=import-outside-toplevel
    card = gpu.Gpu(0, gw.call)
    gw.GPU = card
    before = free_bytes(gw)
    job = gw.Job(0, 1, socket=socket, linger_ns=-1)
    job.barrier()
    after = free_bytes(gw)
    job.close()
    return before - after


def engine_context(suite):
    """GPU memory that an engine takes before it holds anything of a job."""
    return {"bytes": in_rank(suite, context_rank)}


@contextlib.contextmanager
def mps(suite):
    """An MPS server of our own, in a directory of our own."""
    tool = shutil.which("nvidia-cuda-mps-control")
    if suite.fake or not tool:
        raise Skip("on the doubles: see fakegpu --mps" if suite.fake else
                   "nvidia-cuda-mps-control is not here")
    suite.env.update(CUDA_MPS_PIPE_DIRECTORY=str(suite.work / "mps"),
                     CUDA_MPS_LOG_DIRECTORY=str(suite.work / "mps-log"))
    for key in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        pathlib.Path(suite.env[key]).mkdir(exist_ok=True)
    os.environ.update(suite.env)
    try:
        suite.run(tool, "-d", limit_s=20)
        yield
    finally:
        subprocess.run([tool], input="quit\n", text=True, env=suite.env, timeout=30, check=False)
        for key in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            suite.env.pop(key)
            os.environ.pop(key, None)


def words_with_mps(suite):
    with mps(suite):
        return words(suite)


def overlap_with_mps(suite):
    with mps(suite):
        return overlap(suite)


# ---- all of it -----------------------------------------------------------------------------------


def machine(suite):
    suite.results["machine"].update(suite.program("gpu_speed", "info"))
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo", encoding="ascii", errors="replace"):
            if line.startswith("model name"):
                suite.results["machine"]["cpu"] = line.split(":", 1)[1].strip()
                break
    with contextlib.suppress(OSError):
        version = pathlib.Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        suite.results["machine"]["driver"] = version
    return suite.results["machine"]


def run_all(suite):
    suite.step("check", machine)
    suite.step("check", kernels)
    suite.step("measure", words)
    suite.step("measure", reduce)
    suite.step("measure", nccl)
    suite.step("measure", nccl_twice)
    suite.start_daemon()
    suite.step("check", doctor)
    for number in range(4):
        for way in ("on", "off"):
            suite.step("check", stage, number, way)
    suite.step("check", tokens)
    suite.step("check", register_and_free)
    for state in STATES:
        suite.step("check", killed, state)
    suite.step("check", two_ranks_on_one_gpu)
    suite.step("measure", latency)
    suite.step("measure", overlap)
    suite.step("measure", hidden)
    suite.step("measure", engine_context)
    suite.step("measure", words_with_mps)
    suite.step("measure", overlap_with_mps)


def print_measured(measured, indent=2):
    for name, value in measured.items():
        if isinstance(value, dict):
            print(" " * indent + name)
            print_measured(value, indent + 2)
        else:
            print(" " * indent + f"{name:<44} {value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("build", "source", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--fake", action="store_true")
    suite = Suite(parser.parse_args())
    server = None
    try:
        if suite.fake:
            server = suite.start_fake()
        run_all(suite)
    finally:
        suite.close()
    if server is not None and server.returncode:
        print(server.stderr.read().decode(errors="replace"), file=sys.stderr)
        suite.results["checks"].append({"name": "rules of the doubles", "result": "failed",
                                        "reason": "see stderr", "seconds": 0, "found": None})
        suite.write()
    print_measured(suite.results["measured"])
    counts = {state: sum(check["result"] == state for check in suite.results["checks"])
              for state in ("ok", "failed", "skipped")}
    print(f"{counts['ok']} ok, {counts['failed']} failed, {counts['skipped']} skipped; "
          f"results in {suite.out}")
    return 1 if counts["failed"] or not counts["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
