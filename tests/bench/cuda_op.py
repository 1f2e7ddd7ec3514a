#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an op costs the engine on the cuda path, on the doubles of tests/fakegpu: processor time in
our code alone, in all threads of the engine.

    tests/bench/cuda_op.py [--build DIR] [--ops N] [--ranks N] [--bytes N]

Ranks on GPUs of the doubles make all-reduces one after the other: first the engine's processor
time is taken, of all its threads; then, in as many ops, whose it is (perf record -e cpu-clock,
call chains by DWARF, which cost time of their own). A sample is the doubles' if, from the
innermost frame outwards, one of their libraries comes before gradwire-engine and gradwire-
cuda.so: it stands in for CUDA and NCCL, whose cost is not known here. Else it is ours, what we
ask of libc, libuv and protobuf-c included; kernel: of this, what lies in the kernel, most of it
sleeping and waking. Prints one JSON document.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading

SOURCE = pathlib.Path(__file__).resolve().parents[2]
WARM_UP = 50
OURS = re.compile(r"/(gradwire-engine|gradwire-cuda\.so)$")


def rank_main(rank, directory, socket, ops, nbytes):
    """One all-reduce after the other; the first are not counted."""
    import gw  # pylint: disable=import-outside-toplevel
    directory = pathlib.Path(directory)
    job = gw.Job(rank, int((directory / "ranks").read_text()), str(directory / "id"), socket)
    send, recv = job.buffer(nbytes), job.buffer(nbytes)

    def reduce(count):
        for _ in range(count):
            job.wait(job.all_reduce(send.at(), recv.at(), nbytes // 4))

    for step, count in enumerate((WARM_UP, ops, ops)):
        wait_for(directory / f"go{step}")
        reduce(count)
        (directory / f"done{step}.{rank}").touch()
    wait_for(directory / "end")
    job.close()


def wait_for(*paths):
    from conftest import until  # pylint: disable=import-outside-toplevel
    until(lambda: all(path.exists() for path in paths), 120, f"{paths}")


def cpu_ns(pid):
    """Of all threads that live."""
    return sum(int((task / "schedstat").read_text().split()[0])
               for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


def whose(frames, doubles):
    """frames: libraries, innermost first."""
    for library in frames:
        if OURS.search(library):
            return "kernel" if frames[0].startswith("[") else "ours"
        if library.startswith(doubles):
            return "doubles"
    return "unknown"


def count_samples(data, doubles):
    """{whose: samples}"""
    script = subprocess.run(["perf", "script", "-i", data, "-F", "ip,sym,dso"],
                            capture_output=True, text=True, timeout=600, check=True).stdout
    counts = collections.Counter()
    for block in script.split("\n\n"):
        frames = [line.rsplit("(", 1)[1].rstrip(")") for line in block.splitlines() if "(" in line]
        if frames:
            counts[whose(frames, doubles)] += 1
    return counts


def measure(daemon, directory, options):
    import gw  # pylint: disable=import-outside-toplevel

    def reduce(step):
        (directory / f"go{step}").touch()
        wait_for(*(directory / f"done{step}.{rank}" for rank in range(options.ranks)))

    (directory / "ranks").write_text(str(options.ranks))
    ranks = gw.Ranks(options.ranks, rank_main, str(directory), str(daemon.socket), options.ops,
                     options.bytes)
    reduce(0)
    engine, = daemon.engines()
    before = cpu_ns(engine)
    reduce(1)
    spent_us = (cpu_ns(engine) - before) / 1e3
    data = directory / "perf.data"
    perf = subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000",
                             "--call-graph", "dwarf,16384", "-o", data, "-p", str(engine)],
                            stderr=subprocess.PIPE, text=True)
    threading.Event().wait(0.5)  # it attaches
    reduce(2)
    perf.send_signal(signal.SIGINT)
    said = perf.communicate(timeout=60)[1]
    (directory / "end").touch()
    results = ranks.join(60)
    assert all(kind == "ok" for kind, _ in results), results
    assert data.exists(), f"perf cannot sample here: {said}"
    return spent_us / options.ops, count_samples(data, os.environ["LD_LIBRARY_PATH"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/release")
    parser.add_argument("--ops", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=4096)
    options = parser.parse_args()
    build = options.build.resolve()
    os.environ.update(GRADWIRE_BUILD=str(build), GW_TEST_DEVICE="cuda",
                      LD_LIBRARY_PATH=str(build / "tests/fakegpu/lib"),
                      FAKEGPU_KERNELS=str(build / "lib/libgw_kernels-cpu.so"))
    sys.path.insert(0, str(SOURCE / "tests/integration"))
    os.environ["PYTHONPATH"] = sys.path[0]
    import conftest  # pylint: disable=import-outside-toplevel
    import fakegpus  # pylint: disable=import-outside-toplevel
    fake = fakegpus.FakeGpus(options.ranks, 1)
    os.environ["FAKEGPU_SOCKET"] = os.environ["CUDA_FAKEGPU_SOCKET"] = str(fake.socket)
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as name:
        directory = pathlib.Path(name)
        (directory / "run").mkdir()
        config = directory / "conf"
        config.write_text(conftest.CONFIG)
        try:
            with conftest.serving(conftest.Daemon(
                    directory / "run", args=["--config", str(config),
                                             *conftest.device_args("cuda")])) as daemon:
                cpu_us, counts = measure(daemon, directory, options)
            fake.check()
        finally:
            fake.kill()
    samples = sum(counts.values())
    print(json.dumps({"ops": options.ops, "ranks": options.ranks, "bytes": options.bytes,
                      "samples": samples, "engine_us_per_op": round(cpu_us, 2),
                      **{f"{who}_us_per_op": round(cpu_us * counts[who] / samples, 2)
                         for who in ("ours", "kernel", "doubles", "unknown")}}))


if __name__ == "__main__":
    main()
