# SPDX-License-Identifier: Apache-2.0
"""The doubles' GPUs (tests/fakegpu) of one test: a server in a directory of its own, its control
lines, and its verdict on what the programs did.
"""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", "build/release")).resolve()
SLOWER = int(os.environ.get("GW_TEST_SLOWER", "1"))
PLACE = BUILD / "tests/fakegpu"


def control(socket, *command):
    """Answer to a control line (server_control.c lists them)."""
    done = subprocess.run([PLACE / "fakegpu-ctl", *map(str, command)], text=True,
                          env=os.environ | {"FAKEGPU_SOCKET": str(socket)},
                          timeout=20 * SLOWER, capture_output=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class FakeGpus:
    def __init__(self, gpus, seed, options=()):
        self.seed = seed
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="gw-gpu-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.socket = self.directory / "gpu"
        self.log_path = self.directory / "log"
        self.allowed = set()  # rules that the test breaks on purpose
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [PLACE / "fakegpu", "--socket", self.socket, "--gpus", str(gpus), "--seed",
                 str(seed), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 20 * SLOWER
        while not pathlib.Path(f"{self.socket}.ctl").exists():
            assert self.process.poll() is None, f"fakegpu ended at start: {self.log()}"
            assert time.monotonic() < deadline, "fakegpu does not start"
            time.sleep(0.005)

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def control(self, *command):
        return control(self.socket, *command)

    def report(self):
        return json.loads(self.control("report"))

    def streams(self):
        """What the head of every busy stream waits for."""
        return [line for line in self.control("streams").splitlines() if line != "ok"]

    def check(self):
        """Nothing was broken, nothing is left."""
        assert self.process.poll() is None, f"fakegpu died: {self.log()}"
        report = self.report()
        broken = [v for v in report["violations"] if v["rule"] not in self.allowed]
        told = "\n".join(f"  {v['rule']} (process {v['pid']}): {v['text']}: {v['where']}"
                         f" [{v['source']}]" for v in broken[:10])
        assert not broken, f"seed {self.seed}: {len(broken)} rules of CUDA or NCCL broken\n{told}"

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        shutil.rmtree(self.directory, ignore_errors=True)
