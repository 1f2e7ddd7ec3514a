# SPDX-License-Identifier: Apache-2.0
"""Where the suite's programs are, how they are started, and a gradwired for one step.

A build directory and what run.sh --pack leaves have one shape. Nothing here judges anything.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", "build/release")).resolve()
REDUCED = os.environ.get("GW_GPU_REDUCED") == "1"
GRADWIRED = BUILD / "daemon/supervisor/gradwired"
ENGINE = BUILD / "daemon/engine/gradwire-engine"
GWCTL = BUILD / "client/ctl/gwctl"
CHARLM = BUILD / "client/examples/charlm"
CPU_KERNELS = BUILD / "lib/libgw_kernels-cpu.so"
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 40


class Skip(Exception):
    """Why a step cannot be made here."""


def program(name):
    return BUILD / "tests/bin" / name


def until(condition, timeout, what):
    """Waits until condition() is true and returns its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {timeout} s")
        time.sleep(0.02)


def run(*command, timeout=120, env=None, codes=(0,)):
    """Its stdout; an exit code not among `codes` is an error with the end of stderr."""
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=timeout, env=os.environ | (env or {}))
    if done.returncode not in codes:
        told = (done.stderr.strip() or done.stdout.strip())[-600:]
        words = " ".join(map(str, command))
        raise AssertionError(f"{words} ended with {done.returncode}: {told}")
    return done.stdout


def tool(name, *args, **more):
    """JSON that a program of this directory prints."""
    reduced = ["reduced"] if REDUCED else []
    return json.loads(run(program(name), *args, *reduced, **more))


# ---- gradwired -----------------------------------------------------------------------------------


def processes_in(directory):
    """Pids of engines that hold a lock below the directory."""
    prefix, found = f"{directory}/", []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if os.readlink(entry / "exe").split(" (deleted)")[0] != str(ENGINE):
                continue
            for fd in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(fd).startswith(prefix):
                        found.append(int(entry.name))
                        break
    return sorted(found)


def end_all(directory):
    """Kills what a step left, its daemon's process group is gone already."""
    for pid in processes_in(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Service:
    """A gradwired of its own; engines share the GPU, and end with their last client unless a job
    says otherwise."""

    def __init__(self, directory, device="auto", env=None):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=directory))
        self.directory.chmod(0o755)
        self.socket = self.directory / "gradwired.sock"
        self.log_path = self.directory.with_name(self.directory.name + ".log")
        config = self.directory.with_name(self.directory.name + ".conf")
        config.write_text("[job]\nlinger = 0\ngpu_sharing = on\n")
        self.env = os.environ | (env or {})
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [GRADWIRED, "--foreground", "--runtime-dir", self.directory, "--config", config,
                 "--device", device, "--plugins", ENGINE.parent, "--engine", ENGINE],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        try:
            until(self.answers, 30, "gradwired's socket")
        except BaseException:
            self.process.kill()
            raise
        os.environ["GRADWIRE_SOCKET"] = str(self.socket)
        return self

    def answers(self):
        assert self.process.poll() is None, f"gradwired ended at start: {self.log()}"
        with contextlib.suppress(OSError), \
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(str(self.socket))
            return True
        return False

    def log(self):
        return self.log_path.read_text(errors="replace")[-2000:]

    def engines(self):
        return processes_in(self.directory)

    def idle(self, timeout=30):
        """All engines have ended by themselves."""
        until(lambda: not self.engines(), timeout, f"the engines' end ({self.log()})")

    def __exit__(self, kind, error, trace):
        if kind is not None:
            print(self.log())
        with contextlib.suppress(AssertionError):
            self.idle(10 if kind is None else 1)
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            run(GWCTL, "--runtime-dir", self.directory, "stop", "--engines", timeout=20,
                codes=(0, 1, 69))
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait(10)
        end_all(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)


# ---- charlm --------------------------------------------------------------------------------------


def charlm(work, name, *args, device="-cuda", timeout=120):
    """Runs it to its end: what it says of itself, and its parameters' bytes."""
    text, where = work / "text", work / name
    if not text.exists():
        text.write_text(TEXT)
    where.mkdir()
    run(f"{CHARLM}{device}", "--text", text, "--out", where / "out", "--dump", where / "dump",
        *args, timeout=timeout)
    return json.loads((where / "out").read_text()), (where / "dump").read_bytes()


def rank_of(work, name, stage, *args, **more):
    """charlm as the only rank of a job."""
    return charlm(work, name, "--rank", "0", "--world", "1", "--stage", str(stage), "--id-file",
                  work / f"{name}.id", *args, **more)
