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
import sys
import xml.etree.ElementTree

import jsonschema
import pytest

from conftest import BUILD, SLOWER, running, until

GWBENCH = BUILD / "client/bench/gwbench"
SOURCE = pathlib.Path(os.environ.get("GRADWIRE_SOURCE", pathlib.Path(__file__).parents[2]))
EX_WRONG, EX_USAGE, EX_UNAVAILABLE = 1, 64, 69
COLLECTIVES = ("reduce-scatter", "all-gather", "all-reduce", "latency")
OPS = (*COLLECTIVES, "fetch", "step", "ready", "storm", "idle")
SYSTEMS = ("gradwire", "limit", "mpich", "openmpi", "impi", "oneccl", "gloo")
PRIVATE = ("impi", "oneccl", "gloo")
TINY = ("--ranks", "2", "--sizes", "4K", "--iterations", "6")
FEW = ("--iterations", "2", "--rounds", "1")

NUMBER = {"type": ["number", "null"], "minimum": 0}
FIGURES = ("hidden_fraction", "comm_us", "comm_alone_us", "exposed_us", "compute_us",
           "compute_slowed", "step_beside_overlap_off", "step_beside_nothing_sent",
           "step_beside_stage2", "call_p50_us", "call_p99_us", "acquire_us", "clients", "jobs",
           "failures", "wakeups_per_s", "resident_mib", "threads", "link_gbits")
ROW = {
    "type": "object",
    "required": ["op", "variant", "dtype", "ranks", "bytes", "system", "p50_us", "p99_us",
                 "algbw_gbs", "busbw_gbs", "ops"],
    "additionalProperties": False,
    "properties": {
        "op": {"enum": list(OPS)}, "variant": {"type": ["string", "null"]},
        "dtype": {"enum": ["fp32", "fp16", "bf16", None]},
        "ranks": {"type": "integer", "minimum": 2},
        "nodes": {"type": "integer", "minimum": 2}, "shape": {"type": ["string", "null"]},
        "bytes": {"type": "integer", "minimum": 0},
        "system": {"enum": list(SYSTEMS)},
        "p50_us": NUMBER, "p99_us": NUMBER, "algbw_gbs": NUMBER, "busbw_gbs": NUMBER,
        "ops": {"type": "integer", "minimum": 0},
        "figures": {"type": "object", "minProperties": 1, "additionalProperties": False,
                    "properties": {name: NUMBER for name in FIGURES}}}}
SCHEMA = {
    "type": "object", "required": ["schema", "rows", "peers", "machine"],
    "additionalProperties": False,
    "properties": {
        "schema": {"const": 2}, "rows": {"type": "array", "items": ROW},
        "peers": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
        "links": {"enum": ["veth", "loopback"]},
        "machine": {"type": "object",
                    "required": ["cpu", "arch", "cpus_online", "memory_bytes", "kernel",
                                 "compiler", "load_average_before", "load_average",
                                 "limit_threads", "large_pages"]}}}


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
           if not k.startswith("GRADWIRE_") and k not in ("LD_PRELOAD", "UCX_TLS")}
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

@pytest.mark.parametrize("op, variants, limits", [
    ("reduce-scatter", [None, "gradients"], [None]), ("all-gather", ["mapped"], ["mapped"]),
    ("all-reduce", [None], [None]), ("latency", [None], [None]), ("fetch", ["miss", "hit"], []),
    ("step", ["stage0", "stage1", "stage2", "stage3", "overlap", "overlap-off", "covered",
              "covered-stage3", "nothing-sent"], [])])
def test_each_op_gives_its_rows(place, op, variants, limits):
    got = rows(place, op, *TINY, *FEW)
    assert [(r["variant"], r["system"]) for r in got if r["system"] == "limit"] == [
        (v, "limit") for v in limits]
    assert {r["variant"] for r in got if r["system"] == "gradwire"} == set(variants)
    assert {(r["op"], r["ranks"], r["bytes"]) for r in got} == {(op, 2, 4096)}


@pytest.mark.parametrize("op", [*COLLECTIVES, "fetch", "step"])
def test_half_types_have_rows_of_their_own(place, op):
    got = rows(place, op, "--dtypes", "fp16,fp32,bf16", *TINY, *FEW)
    systems = {"limit", "gradwire"} if op in COLLECTIVES else {"gradwire"}
    assert {(r["dtype"], r["system"]) for r in got} == {
        (d, s) for d in ("fp16", "fp32", "bf16") for s in systems}
    assert [r["dtype"] for r in got] == sorted((r["dtype"] for r in got),
                                               key=["fp16", "fp32", "bf16"].index)


def test_ready_marks_a_thousand_parameters(place):
    got, = rows(place, "ready", "--ranks", 2, "--sizes", "40K", "--iterations", 3, "--rounds", 1)
    # 10 values of 4 bytes for each of 1000 parameters fit into 40960 bytes.
    assert (got["bytes"], got["ops"], got["algbw_gbs"]) == (40000, 3, None)
    assert set(got["figures"]) == {"acquire_us"}


def test_the_sum_of_training_takes_turns_with_the_collective(place):
    got = rows(place, "reduce-scatter", "--ranks", 3, "--sizes", "1002", "--dtypes", "fp32,bf16",
               "--iterations", 4, "--rounds", 2)
    assert [(r["dtype"], r["bytes"], r["system"], r["variant"], r["ops"]) for r in got] == [
        (dtype, size, *row, 4) for dtype, size in (("fp32", 996), ("bf16", 1002))
        for row in (("limit", None), ("gradwire", None), ("gradwire", "gradients"))]
    for row in got:
        assert set(row.get("figures", {})) == ({"comm_us"} if row["variant"] else set())
        assert not row["variant"] or row["figures"]["comm_us"] > 0


def test_large_pages_are_told(place):
    done = bench(place, "latency", *TINY, *FEW, "--json")
    told = json.loads(done.stdout)["machine"]["large_pages"]
    for kind in ("enabled", "shmem_enabled"):
        path = pathlib.Path("/sys/kernel/mm/transparent_hugepage", kind)
        words = path.read_text().split() if path.exists() else ["[unknown]"]
        assert f"[{told[kind]}]" in words


def test_a_hit_s_call_is_told_without_the_clock(place):
    got = {r["variant"]: r for r in rows(place, "fetch", *TINY)}
    assert "figures" not in got["miss"] and set(got["hit"]["figures"]) == {"call_p50_us",
                                                                           "call_p99_us"}
    # The row has the slowest rank's times, the figures each rank's, and the clock's time is off.
    assert got["hit"]["figures"]["call_p50_us"] <= got["hit"]["figures"]["call_p99_us"]
    assert got["hit"]["figures"]["call_p50_us"] < got["hit"]["p50_us"]


def test_steps_are_told_beside_those_in_turns(place):
    got = {r["variant"]: r for r in rows(place, "step", *TINY, *FEW) if "figures" in r}
    assert set(got) == {"overlap", "overlap-off", "covered", "covered-stage3", "nothing-sent"}
    work = {"compute_us", "compute_slowed"}
    told = work | {"comm_us", "comm_alone_us", "exposed_us"}
    beside = {"overlap": {"step_beside_overlap_off": "overlap-off"}, "overlap-off": {},
              "covered": {"step_beside_nothing_sent": "nothing-sent"},
              "covered-stage3": {"step_beside_nothing_sent": "nothing-sent",
                                 "step_beside_stage2": "covered"},
              "nothing-sent": {}}
    for variant, row in got.items():
        figures = dict(row["figures"])
        hidden = figures.pop("hidden_fraction", None)  # not of less than 50 us
        assert hidden is None or 0 <= hidden <= 1
        assert hidden is not None or "overlap" not in variant
        assert set(figures) == (work if variant == "nothing-sent" else told) | set(beside[variant])
        assert figures["compute_us"] >= 30e3  # 20 ms backward, half of it forward
        for name, other in beside[variant].items():
            assert figures[name] == pytest.approx(row["p50_us"] / got[other]["p50_us"], rel=0.01)
    for variant in ("covered", "covered-stage3"):
        figures = got[variant]["figures"]
        assert figures["compute_us"] / figures["compute_slowed"] >= 20 * got["covered"][
            "figures"]["comm_alone_us"]


def test_a_storm_counts_its_clients(place):
    got = {r["variant"]: r for r in rows(place, "storm", "--ranks", 3, "--jobs", 4,
                                         "--iterations", 2)}
    assert {v: r["ops"] for v, r in got.items()} == {"create": 8, "join": 16, "complete": 24}
    for row in got.values():
        assert row["figures"] == {"clients": 12, "jobs": 4, "failures": 0}
        assert (row["bytes"], row["dtype"], row["busbw_gbs"]) == (0, None, None)


def test_a_storm_tells_how_many_failed(place):
    # An engine that ends at once: no job is created, and nobody can join one.
    done = bench(place, "storm", "--ranks", 2, "--jobs", 3, "--iterations", 1, "--engine",
                 shutil.which("false"), "--json", code=70)
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert {r["figures"]["failures"] for r in document["rows"]} == {6}
    assert {(r["ops"], r["p50_us"]) for r in document["rows"]} == {(0, None)}
    assert "create job" in done.stderr and "was not created" in done.stderr


def test_idle_processes_are_looked_at(place):
    got = rows(place, "idle", "--ranks", 2, "--seconds", "100ms")
    assert [r["variant"] for r in got] == ["gradwired", "gradwired-job", "engine"]
    for row in got:
        assert set(row["figures"]) == {"wakeups_per_s", "resident_mib", "threads"}
        assert row["figures"]["resident_mib"] > 0.5 and row["figures"]["threads"] >= 1
        assert (row["p50_us"], row["ops"]) == (None, 0)


def test_private_all_gather_copies(place):
    assert {r["variant"] for r in rows(place, "all-gather", "--private", *TINY)} == {"private"}


def test_lists_of_ranks_and_sizes(place):
    got = rows(place, "reduce-scatter", "--ranks", "2,3", "--sizes", "1000,4K", "--iterations", 3)
    # Rounded down to whole values of all ranks.
    assert [(r["ranks"], r["bytes"]) for r in got if r["system"] == "limit"] == [
        (2, 1000), (2, 4096), (3, 996), (3, 4092)]
    got = rows(place, "reduce-scatter", "--ranks", "3", "--sizes", "1000", "--dtypes", "bf16",
               "--iterations", 3)
    assert {r["bytes"] for r in got} == {996}  # 498 values


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
    lines = bench(place, "all-reduce", *TINY).stdout.splitlines()
    assert lines[0].split()[:2] == ["op", "variant"]
    assert [line.split()[4] for line in lines[1:]] == ["limit", "gradwire"]


def test_a_running_gradwired_is_used(place, daemon):
    got = rows(place, "latency", "--socket", daemon.socket, *TINY)
    assert {r["system"] for r in got} == {"limit", "gradwire"}


# ---- peers -------------------------------------------------------------------------------------

def mpis():
    return {n for n in ("mpich", "openmpi")
            if shutil.which(f"mpicc.{n}") and shutil.which(f"mpirun.{n}")}


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather", "all-reduce"])
def test_peers_that_are_installed(place, op, tmp_path):
    if not mpis():
        pytest.skip("neither MPICH nor Open MPI is installed")
    done = bench(place, op, "--peers", "--peers-dir", tmp_path, "--dtypes", "fp32,bf16", "--rounds",
                 1, "--json", *TINY)
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert {r["system"] for r in document["rows"] if r["dtype"] == "fp32"} == {
        "limit", "gradwire"} | mpis()
    assert set(document["peers"]) == mpis()
    for name in ({"mpich", "openmpi"} | set(PRIVATE)) - mpis():
        assert f"no peer {name}" in done.stderr
    assert done.stderr.count("--install-peers brings it") == len(PRIVATE)
    halves = {r["system"] for r in document["rows"] if r["dtype"] == "bf16"}
    for name in mpis() - halves:
        assert f"{name} has no {op} of bf16" in done.stderr


def test_peers_that_were_brought(place):
    """The real ones: only where somebody ran --install-peers, and said where."""
    root = os.environ.get("GRADWIRE_TEST_PEERS")
    if not root:
        pytest.skip("GRADWIRE_TEST_PEERS names no directory of gwbench --install-peers")
    for op in ("reduce-scatter", "all-gather", "all-reduce"):
        got = rows(place, op, "--peers", "--peers-dir", root, "--dtypes", "fp32,bf16,fp16",
                   "--rounds", 1, *TINY)
        for dtype in ("fp32", "bf16", "fp16"):
            assert set(PRIVATE) < {r["system"] for r in got if r["dtype"] == dtype}


def double_of_gloo(tmp_path, says, exit_code=0):
    """A private directory with a Python that, asked for a round, says that."""
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    lines = "\n".join(says)
    python.write_text(f"#!/bin/sh\n[ $# -gt 3 ] || exit 0\ncat <<'END'\n{lines}\nEND\n"
                      f"exit {exit_code}\n")
    python.chmod(0o755)
    return tmp_path


def gloo(place, tmp_path, says, code=0):
    return bench(place, "all-reduce", "--peers", "--peers-dir", double_of_gloo(tmp_path, says),
                 "--rounds", 2, "--json", *TINY, code=code)


def test_what_a_peer_says_is_its_row(place, tmp_path):
    document = json.loads(gloo(place, tmp_path, ["version gloo 7", "iterations 3", "ns 1000",
                                                 "ns 3000", "ns 2000", "ok"]).stdout)
    jsonschema.validate(document, SCHEMA)
    row, = (r for r in document["rows"] if r["system"] == "gloo")
    # Two rounds of three: 4096 bytes in 2 us; the 99th of 100 is the last of six.
    assert (row["ops"], row["p50_us"], row["p99_us"], row["algbw_gbs"], row["busbw_gbs"]) == (
        6, 2.0, 3.0, 2.048, 2.048)
    assert document["peers"]["gloo"] == "gloo 7"


def test_what_a_peer_lacks_is_told_once_and_has_no_row(place, tmp_path):
    done = gloo(place, tmp_path, ["version gloo 7", "lacks such sums"])
    assert done.stderr.count("gloo has no all-reduce of fp32: such sums") == 1
    assert "gloo" not in {r["system"] for r in json.loads(done.stdout)["rows"]}


def test_a_peer_that_fails_after_all_is_said_has_its_row(place, tmp_path):
    root = double_of_gloo(tmp_path, ["version g", "iterations 1", "ns 1000", "ok"], exit_code=9)
    found = rows(place, "all-reduce", "--peers", "--peers-dir", root, *TINY)
    assert [r["p50_us"] for r in found if r["system"] == "gloo"] == [1.0]


@pytest.mark.parametrize("says, code, told", [
    (["iterations 1", "ns 5", "wrong element 3"], EX_WRONG, "WRONG VALUE:  element 3"),
    (["it broke"], 70, "gloo: it broke")])
def test_a_peer_that_fails_ends_the_run_without_a_document(place, tmp_path, says, code, told):
    done = gloo(place, tmp_path, says, code=code)
    assert told in done.stderr and done.stdout == ""


PINNED = ["impi-rt==2021.19.0", "impi-devel==2021.19.0", "oneccl-cpu==2021.15.2",
          "oneccl-cpu-devel==2021.15.2", "torch==2.13.0+cpu"]


def install(place, tmp_path, pip_code, code):
    """--install-peers with doubles of Python and pip; what pip was asked for, a line each."""
    log = tmp_path / "log"
    double = tmp_path / "bin/python3"
    double.parent.mkdir()
    double.write_text(f"""#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python3"; exit; fi
echo "$*" >>{log}; echo "pip says no"; exit {pip_code}
""")
    double.chmod(0o755)
    done = bench(place, "--install-peers", "--peers-dir", tmp_path / "a/b", code=code,
                 PATH=f"{double.parent}:{os.environ['PATH']}")
    return done, log.read_text().splitlines()


def test_peers_are_brought_in_pinned_versions(place, tmp_path):
    done, asked = install(place, tmp_path, 0, 0)
    words = [word for line in asked for word in line.split() if "==" in word]
    assert words == PINNED and all("--only-binary :all:" in line for line in asked)
    assert done.stdout == "" and str(tmp_path / "a/b") in done.stderr


def test_a_peer_that_cannot_be_brought_is_told(place, tmp_path):
    done, asked = install(place, tmp_path, 1, EX_UNAVAILABLE)
    for name in PRIVATE:
        assert f"{name} could not be brought" in done.stderr
    assert "pip says no" in done.stderr
    # torch without CUDA is tried where its makers keep it, too.
    assert ["--extra-index-url" in line for line in asked] == [False, False, False, True]


# ---- a plot ------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def test_a_plot_has_a_curve_for_each_system(place, tmp_path):
    root = double_of_gloo(tmp_path, ["version g", "iterations 1", "ns 1000", "ok"])
    path = tmp_path / "plot.svg"
    bench(place, "all-reduce", "--ranks", "2,3", "--sizes", "64K,4K", "--dtypes", "fp32,fp16",
          "--iterations", 2, "--rounds", 1, "--peers", "--peers-dir", root, "--plot", path)
    tree = xml.etree.ElementTree.parse(path)
    panels = tree.findall(f"{SVG}g")
    titles = [panel.find(f"{SVG}text").text for panel in panels]
    assert titles == [f"all-reduce of {d}, {n} ranks" for d in ("fp32", "fp16") for n in (2, 3)]
    systems = {"limit", "gradwire", "gloo"}
    assert systems <= {t.text for t in tree.iter(f"{SVG}text")}
    for panel in panels:
        lines = panel.findall(f"{SVG}polyline")
        assert len(lines) >= len(systems)
        for line in lines:
            xs = [float(point.split(",")[0]) for point in line.get("points").split()]
            assert len(xs) == 2 and xs == sorted(xs)  # by size, however it was asked for


def test_a_plot_of_png(place, tmp_path):
    if not shutil.which("rsvg-convert"):
        pytest.skip("rsvg-convert is not installed")
    path = tmp_path / "plot.png"
    bench(place, "latency", *TINY, "--plot", path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_without_its_program_a_png_is_refused_before_measuring(place, tmp_path):
    done = bench(place, "latency", *TINY, "--plot", tmp_path / "plot.png", code=EX_USAGE,
                 PATH=str(tmp_path))
    assert "librsvg2-bin" in done.stderr and done.stdout == ""


def test_a_plot_that_cannot_be_written_is_told(place, tmp_path):
    done = bench(place, "latency", *TINY, "--plot", tmp_path / "none/plot.svg", code=73)
    assert "cannot write the plot" in done.stderr and "latency" in done.stdout


# ---- a record ----------------------------------------------------------------------------------

RECORD = SOURCE / "tests/bench/record.sh"


def record(tmp_path, says, *args):
    """record.sh with a double of gwbench that says so; its ops and options are in the log."""
    gwbench = tmp_path / "build/client/bench/gwbench"
    gwbench.parent.mkdir(parents=True)
    gwbench.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/log\n{says}\n')
    gwbench.chmod(0o755)
    (tmp_path / "results").mkdir()
    return subprocess.run([RECORD, *args], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "GWBENCH_RESULTS": str(tmp_path / "results")})


def test_a_record_holds_every_op(tmp_path):
    done = record(tmp_path, "echo {}", "quiet-one", tmp_path / "build", "--rounds", "9")
    assert done.returncode == 0, done.stderr
    runs = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert {run[0] for run in runs} == set(OPS)
    assert all("--json" in run and run[-3:-1] == ["--rounds", "9"] for run in runs)
    # all-gather is measured both ways, and half types apart.
    assert len(list((tmp_path / "results").glob("quiet-one-*.json"))) == len(OPS) + 2 == len(runs)
    assert not [run for run in runs if "--nodes" in run]


def test_parts_of_a_record(tmp_path):
    done = record(tmp_path, "echo {}", "quiet-one", tmp_path / "build", "latency", "nodes-storm",
                  "--seconds", "2")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()] == ["latency",
                                                                                         "storm"]
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "quiet-one-latency.json", "quiet-one-nodes-storm.json"}
    assert "2 documents" in done.stdout


def test_a_part_that_is_none_is_told(tmp_path):
    done = record(tmp_path, "echo {}", "quiet-one", tmp_path / "build", "steps")
    assert done.returncode == 64 and "'steps'" in done.stderr and "storm" in done.stderr
    assert not (tmp_path / "log").exists()


def test_a_record_that_fails_leaves_no_half_a_document(tmp_path):
    done = record(tmp_path, "echo half; exit 1", "quiet-one", tmp_path / "build")
    assert done.returncode == 1 and list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize("args, code, told", [
    ([], 64, "usage"), (["No Name"], 64, "usage"), (["a", "none"], 69, "build it")])
def test_wrong_use_of_the_record(tmp_path, args, code, told):
    done = subprocess.run([RECORD, *args], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "") and told in done.stderr


# ---- an op on GPUs -----------------------------------------------------------------------------

def test_what_an_op_on_gpus_costs_the_engine_is_told(tmp_path):
    if not (BUILD / "tests/fakegpu/fakegpu").exists():
        pytest.skip("this build has no doubles of GPUs")
    perf = subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-o", tmp_path / "data",
                           "true"], capture_output=True, text=True, timeout=60) \
        if shutil.which("perf") else None
    if perf is None or perf.returncode != 0:
        pytest.skip(f"perf cannot sample here: {perf.stderr if perf else 'it is not installed'}")
    done = subprocess.run([sys.executable, SOURCE / "tests/bench/cuda_op.py", "--build", BUILD,
                           "--ops", "100"], capture_output=True, text=True, timeout=120 * SLOWER)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ops"], told["ranks"], told["bytes"]) == (100, 2, 4096)
    parts = [told[f"{who}_us_per_op"] for who in ("ours", "kernel", "doubles", "unknown")]
    assert told["samples"] > 0 and min(parts[0], parts[2]) > 0
    assert sum(parts) == pytest.approx(told["engine_us_per_op"], abs=0.03)


# ---- what it refuses ---------------------------------------------------------------------------

@pytest.mark.parametrize("args, told", [
    ([], "op"), (["scatter"], "none"), (["latency", "x"], "not expected"),
    (["latency", "--dtypes", "int8"], "int8"), (["latency", "--dtypes", "fp32,"], "fp32, fp16"),
    (["latency", "--dtypes", ""], "fp32, fp16"), (["latency", "--ranks", "1"], "--ranks"),
    (["storm", "--sizes", "4K"], "--sizes"), (["idle", "--dtypes", "fp32"], "--dtypes"),
    (["storm", "--jobs", "0"], "--jobs"), (["storm", "--jobs", "65"], "--jobs"),
    (["latency", "--jobs", "5"], "storm"), (["idle", "--socket", "x"], "its own"),
    (["ready", "--sizes", "3999"], "too small"), (["storm", "--plot", "a.svg"], "bandwidth"),
    (["latency", "--plot", "a.gif"], ".svg or .png"), (["latency", "--plot", ".svg"], ".svg"),
    (["--install-peers", "latency"], "name no op"), (["storm", "--peers"], "collectives"),
    (["latency", "--ranks", "65"], "--ranks"), (["latency", "--ranks", "2,"], "--ranks"),
    (["latency", "--sizes", "4X"], "--sizes"), (["latency", "--sizes", ""], "--sizes"),
    (["step", "--ranks", "4", "--sizes", "100"], "too small"),
    (["latency", "--iterations", "0"], "--iterations"), (["latency", "--seconds", "x"], "time"),
    (["latency", "--rounds", "0"], "--rounds"), (["latency", "--private"], "all-gather"),
    (["step", "--config", "c", "--socket", "s"], "--config"),
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
    ("gradwire", ["reduce-scatter"]), ("gradients", ["reduce-scatter"]),
    ("gradients", ["reduce-scatter", "--dtypes", "bf16"]),
    ("gradwire", ["all-reduce"]), ("gradwire", ["latency"]),
    ("gradwire", ["all-gather"]), ("gradwire", ["all-gather", "--private"]),
    ("gradwire", ["fetch"]), ("gradwire", ["step"]), ("limit", ["reduce-scatter"]),
    ("gradwire", ["reduce-scatter", "--dtypes", "bf16"]),
    ("gradwire", ["all-reduce", "--dtypes", "fp16"]),
    ("gradwire", ["all-gather", "--private", "--dtypes", "bf16"]),
    ("gradwire", ["step", "--dtypes", "fp16"]), ("gradwire", ["fetch", "--dtypes", "bf16"]),
    ("gradwire", ["ready"]), ("limit", ["all-reduce", "--dtypes", "bf16"]),
    ("limit", ["all-gather", "--private"]), ("peer", ["reduce-scatter", "--peers"])])
def test_a_wrong_value_is_found(place, system, args):
    if system == "peer" and not (shutil.which("mpicc.mpich") or shutil.which("mpicc.openmpi")):
        pytest.skip("neither MPICH nor Open MPI is installed")
    planted = has_edges()
    done = bench(place, *args, *TINY, "--json", code=EX_WRONG if planted else 0,
                 GRADWIRE_BENCH_PLANT=system)
    assert (done.stdout == "") == planted
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
