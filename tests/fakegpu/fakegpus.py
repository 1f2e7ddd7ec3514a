# SPDX-License-Identifier: Apache-2.0
"""A fake GPU server of a test's own, and programs under the doubles. For tests of this folder."""
import json
import os
import pathlib
import subprocess
import time

BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", "build/release")).resolve()
SLOWER = int(os.environ.get("GW_TEST_SLOWER", "1"))
HERE = BUILD / "tests/fakegpu"
KERNELS = BUILD / "lib/libgw_kernels-cpu.so"


class FakeGpu:
    def __init__(self, directory, gpus, seed, *options):
        self.directory = pathlib.Path(directory)
        self.socket = self.directory / f"gpu{seed}"
        self.log = open(self.directory / f"fakegpu{seed}.log", "wb")
        self.process = subprocess.Popen(
            [HERE / "fakegpu", "--socket", self.socket, "--gpus", str(gpus), "--seed", str(seed),
             "--kernels", KERNELS, *options], stdout=self.log, stderr=self.log)
        self.env = os.environ | {"FAKEGPU_SOCKET": str(self.socket),
                                 "LD_LIBRARY_PATH": str(HERE / "lib")}
        deadline = time.monotonic() + 20 * SLOWER
        while not pathlib.Path(f"{self.socket}.ctl").exists():
            assert self.process.poll() is None, "fakegpu ended at start"
            assert time.monotonic() < deadline, "fakegpu does not start"
            time.sleep(0.01)

    def control(self, *command):
        return subprocess.run([HERE / "fakegpu-ctl", *command], env=self.env, check=True,
                              timeout=20 * SLOWER, stdout=subprocess.PIPE, text=True).stdout

    def run(self, command, **env):
        return subprocess.run(command, env=self.env | env, text=True, timeout=120 * SLOWER,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(self):
        """The report."""
        report = json.loads(self.control("report"))
        self.control("quit")
        self.process.wait(20 * SLOWER)
        return report

    def kill(self):
        """Whatever became of the test."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()
