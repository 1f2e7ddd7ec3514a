# SPDX-License-Identifier: Apache-2.0
"""gwbench: its table and JSON, its exit codes, that it verifies, and that it leaves nothing.

Sizes are tiny and no time decides anything.
ctest: timeout=600
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import jsonschema
import pytest

from conftest import BUILD, SLOWER, running, until

GWBENCH = BUILD / "client/bench/gwbench"
SOURCE = pathlib.Path(os.environ.get("GRADWIRE_SOURCE", pathlib.Path(__file__).parents[2]))
EX_WRONG, EX_USAGE, EX_UNAVAILABLE = 1, 64, 69
OPS = ("reduce-scatter", "all-gather", "all-reduce", "latency", "fetch", "step")
TINY = ("--ranks", "2", "--sizes", "4K", "--iterations", "6")

NUMBER = {"type": "number", "minimum": 0}
ROW = {
    "type": "object",
    "required": ["op", "variant", "dtype", "ranks", "bytes", "system", "p50_us", "p99_us",
                 "algbw_gbs", "busbw_gbs", "ops"],
    "additionalProperties": False,
    "properties": {
        "op": {"enum": list(OPS)}, "variant": {"type": ["string", "null"]},
        "dtype": {"const": "fp32"}, "ranks": {"type": "integer", "minimum": 2},
        "bytes": {"type": "integer", "minimum": 1},
        "system": {"enum": ["gradwire", "limit", "mpich", "openmpi"]},
        "p50_us": NUMBER, "p99_us": NUMBER, "algbw_gbs": NUMBER, "busbw_gbs": NUMBER,
        "ops": {"type": "integer", "minimum": 1}}}
SCHEMA = {
    "type": "object", "required": ["schema", "rows", "machine"],
    "properties": {
        "schema": {"const": 1}, "rows": {"type": "array", "items": ROW},
        "machine": {"type": "object",
                    "required": ["cpu", "arch", "cpus_online", "memory_bytes", "kernel",
                                 "compiler", "load_average", "limit_threads"]}}}


@pytest.fixture
def place(tmp_path_factory):
    """gwbench's directory for what it makes; afterwards it must be empty."""
    path = pathlib.Path(tmp_path_factory.mktemp("b"))
    yield path
    left = [str(p) for p in path.rglob("*")]
    assert left == [], left
    assert processes(path) == []


def processes(path):
    """Processes that name the directory in their arguments or environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(path).encode() in text and running(int(entry.name)):
            found.append(text[:200])
    return found


def environment(place, **more):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("GRADWIRE_") and k != "LD_PRELOAD"}
    return {**env, "TMPDIR": str(place), **more}


def bench(place, *args, code=0, **env):
    done = subprocess.run([str(GWBENCH), *map(str, args)], capture_output=True, text=True,
                          env=environment(place, **env), timeout=180 * SLOWER)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def rows(place, *args):
    document = json.loads(bench(place, *args, "--json").stdout)
    jsonschema.validate(document, SCHEMA)
    return document["rows"]


# ---- what it measures --------------------------------------------------------------------------

@pytest.mark.parametrize("op, variants, systems", [
    ("reduce-scatter", [None], {"limit", "gradwire"}),
    ("all-gather", ["mapped"], {"limit", "gradwire"}),
    ("all-reduce", [None], {"limit", "gradwire"}),
    ("latency", [None], {"limit", "gradwire"}),
    ("fetch", ["miss", "hit"], {"gradwire"}),
    ("step", ["stage0", "stage1", "stage2", "stage3"], {"gradwire"})])
def test_each_op_gives_its_rows(place, op, variants, systems):
    got = rows(place, op, *TINY)
    assert {(r["variant"], r["system"]) for r in got} == {(v, s) for v in variants
                                                          for s in systems}
    assert {(r["op"], r["ranks"], r["bytes"]) for r in got} == {(op, 2, 4096)}


def test_private_all_gather_copies(place):
    assert {r["variant"] for r in rows(place, "all-gather", "--private", *TINY)} == {"private"}


def test_lists_of_ranks_and_sizes(place):
    got = rows(place, "reduce-scatter", "--ranks", "2,3", "--sizes", "1000,4K", "--iterations", 3)
    # Rounded down to whole values of all ranks.
    assert [(r["ranks"], r["bytes"]) for r in got if r["system"] == "gradwire"] == [
        (2, 1000), (2, 4096), (3, 996), (3, 4092)]


@pytest.mark.parametrize("op, factor", [("reduce-scatter", 3 / 4), ("all-reduce", 6 / 4)])
def test_bandwidths_are_those_of_nccl_tests(place, op, factor):
    for row in rows(place, op, "--ranks", 4, "--sizes", "64K", "--iterations", 6):
        assert row["algbw_gbs"] == pytest.approx(row["bytes"] / row["p50_us"] / 1e3, rel=0.05)
        assert row["busbw_gbs"] == pytest.approx(row["algbw_gbs"] * factor, rel=0.01)
        assert row["p99_us"] >= row["p50_us"]


def test_a_number_of_ops_is_that_of_all_rounds(place):
    got = rows(place, "all-reduce", "--ranks", 2, "--sizes", "4K", "--iterations", 8,
               "--rounds", 4)
    assert {r["ops"] for r in got} == {8}


def test_time_bounds_the_ops(place):
    got = rows(place, "all-reduce", "--ranks", 2, "--sizes", "4K", "--seconds", "30ms")
    assert all(r["ops"] >= 1 for r in got)


def test_the_table_has_the_same_rows(place):
    lines = bench(place, "reduce-scatter", *TINY).stdout.splitlines()
    assert lines[0].split()[:2] == ["op", "variant"]
    assert [line.split()[3] for line in lines[1:]] == ["limit", "gradwire"]


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather", "all-reduce"])
def test_peers_that_are_installed(place, op):
    found = {n for n in ("mpich", "openmpi")
             if shutil.which(f"mpicc.{n}") and shutil.which(f"mpirun.{n}")}
    if not found:
        pytest.skip("neither MPICH nor Open MPI is installed")
    got = rows(place, op, "--peers", "--rounds", 1, *TINY)
    assert {r["system"] for r in got} == {"limit", "gradwire"} | found


def test_a_running_gradwired_is_used(place, daemon):
    got = rows(place, "latency", "--socket", daemon.socket, *TINY)
    assert {r["system"] for r in got} == {"limit", "gradwire"}


# ---- what it refuses ---------------------------------------------------------------------------

@pytest.mark.parametrize("args, told", [
    ([], "op"), (["storm"], "planned"), (["scatter"], "none"), (["latency", "x"], "not expected"),
    (["latency", "--dtypes", "bf16"], "must be fp32"),
    (["latency", "--dtypes", "fp32,fp16"], "must be fp32"),
    (["latency", "--dtypes", "int8"], "must be fp32"), (["latency", "--ranks", "1"], "--ranks"),
    (["latency", "--ranks", "65"], "--ranks"), (["latency", "--ranks", "2,"], "--ranks"),
    (["latency", "--sizes", "4X"], "--sizes"), (["latency", "--sizes", ""], "--sizes"),
    (["step", "--ranks", "4", "--sizes", "100"], "too small"),
    (["latency", "--iterations", "0"], "--iterations"), (["latency", "--seconds", "x"], "time"),
    (["latency", "--rounds", "0"], "--rounds"), (["latency", "--private"], "all-gather"),
    (["step", "--peers"], "peers"), (["latency", "--unknown"], "unknown")])
def test_wrong_use(place, args, told):
    done = bench(place, *args, code=EX_USAGE)
    assert told in done.stderr and done.stdout == ""


def test_no_gradwired(place, tmp_path):
    assert "did not start" in bench(place, "latency", "--gradwired", tmp_path / "none", *TINY,
                                    code=EX_UNAVAILABLE).stderr


def test_manual_and_help_know_the_same_options(place):
    described = set(re.findall(r"Fl -([a-z-]+)", (SOURCE / "client/man/gwbench.1").read_text()))
    assert described == set(re.findall(r"--([a-z-]+)", bench(place, "--help").stdout))


# ---- what it finds -----------------------------------------------------------------------------

def has_edges():
    cache = BUILD / "CMakeCache.txt"
    return cache.exists() and "GW_TEST_EDGES:BOOL=ON" in cache.read_text()


@pytest.mark.parametrize("system, args", [
    ("gradwire", ["reduce-scatter"]), ("gradwire", ["all-reduce"]), ("gradwire", ["latency"]),
    ("gradwire", ["all-gather"]), ("gradwire", ["all-gather", "--private"]),
    ("gradwire", ["fetch"]), ("gradwire", ["step"]), ("limit", ["reduce-scatter"]),
    ("limit", ["all-gather", "--private"]), ("peer", ["reduce-scatter", "--peers"])])
def test_a_wrong_value_is_found(place, system, args):
    if system == "peer" and not (shutil.which("mpicc.mpich") or shutil.which("mpicc.openmpi")):
        pytest.skip("neither MPICH nor Open MPI is installed")
    planted = has_edges()
    done = bench(place, *args, *TINY, "--json", code=EX_WRONG if planted else 0,
                 GRADWIRE_BENCH_PLANT=system)
    assert ("WRONG VALUE" in done.stderr) == planted


# ---- what it leaves ----------------------------------------------------------------------------

@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(place, number):
    process = subprocess.Popen([str(GWBENCH), "all-reduce", "--seconds", "60s"],
                               env=environment(place), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    until(lambda: list(place.glob("gwbench.*/run/engines/*")), what="a job")
    process.send_signal(number)
    assert process.wait(timeout=90 * SLOWER) not in (0, None)


def test_killed_it_leaves_no_process(place):
    process = subprocess.Popen([str(GWBENCH), "all-reduce", "--seconds", "60s"],
                               env=environment(place), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    until(lambda: list(place.glob("gwbench.*/run/engines/*")), what="a job")
    process.kill()
    process.wait(timeout=20 * SLOWER)
    until(lambda: processes(place) == [], what="the end of its processes")
    for directory in place.glob("gwbench.*"):  # nobody is left to remove it
        shutil.rmtree(directory, ignore_errors=True)
