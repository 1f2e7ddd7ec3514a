# SPDX-License-Identifier: Apache-2.0
"""gwbench --nodes: its rows, that it verifies them, what it refuses, and that no process and no
network namespace outlives it.

Sizes are tiny and no time decides anything but a link's shape, from below.
ctest: label=bench timeout=900
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess

import jsonschema
import pytest

import network
from conftest import SLOWER, until
from test_bench import (EX_USAGE, EX_WRONG, GWBENCH, SCHEMA, bench, environment, has_edges, mpis,
                        place, processes, rows)

__all__ = ["place"]
TINY = ("--sizes", "4K", "--iterations", "2", "--rounds", "1")


@pytest.fixture(scope="module")
def namespaces():
    """None, or why the kernel gives none here."""
    probe = network.Network(2, "100mbit")
    probe.close()
    return probe.why


@pytest.fixture
def veth(namespaces):
    if namespaces:
        pytest.skip(f"no network namespaces here: {namespaces}")


# ---- what it measures --------------------------------------------------------------------------

@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather", "all-reduce", "latency"])
def test_each_op_has_rows_of_every_placement(place, op):
    got = rows(place, op, "--nodes", 2, *TINY)
    # One rank on each node lies in one way, two in two.
    assert {(r["nodes"], r["ranks"], r["variant"], r["system"]) for r in got} == {
        (2, ranks, variant, system)
        for ranks, variant in ((2, "blocks"), (4, "blocks"), (4, "dealt"))
        for system in ("limit", "gradwire")}
    assert {(r["op"], r["bytes"], r["shape"]) for r in got} == {(op, 4096, None)}


def test_numbers_of_nodes_and_dtypes(place):
    got = rows(place, "reduce-scatter", "--nodes", "3,2", "--ranks", 1, "--dtypes", "fp32,bf16",
               *TINY)
    assert [(r["nodes"], r["ranks"], r["dtype"], r["bytes"]) for r in got
            if r["system"] == "gradwire"] == [(3, 3, "fp32", 4092), (3, 3, "bf16", 4092),
                                              (2, 2, "fp32", 4096), (2, 2, "bf16", 4096)]


def test_a_shaped_link_is_no_faster(place, veth):
    got = rows(place, "all-gather", "--nodes", 2, "--ranks", 1, "--shape", "none,100M", "--sizes",
               "4M", "--iterations", 2, "--rounds", 1)
    assert {(r["shape"], r["system"]) for r in got} == {
        (shape, system) for shape in (None, "100M") for system in ("limit", "gradwire")}
    # 2 MiB each way at 12.5 MB/s, but for what a link and its bucket hold: 1/100 s on either end.
    least_us = (2 * 2**20 / 12.5e6 - 2 * 0.01) * 1e6
    assert all(r["p50_us"] > least_us for r in got if r["shape"])
    # What the limit's row says of its link, by hand: a node sends half of the bytes.
    for row in got:
        if row["system"] == "limit":
            assert row["figures"]["link_gbits"] == pytest.approx(
                2 * 2**20 * 8 / (row["p50_us"] * 1e3), rel=1e-4)
        else:
            assert "figures" not in row


def test_a_shape_that_processors_do_not_reach_is_told(place, veth):
    done = bench(place, "all-gather", "--nodes", 2, "--ranks", 1, "--shape", "400G", "--sizes",
                 "16M", "--iterations", 2, "--rounds", 1)
    assert "links shaped to 400 Gbit/s carry" in done.stderr


def test_a_storm_joins_across_nodes(place):
    got = rows(place, "storm", "--nodes", 2, "--ranks", 2, "--jobs", 2, "--iterations", 1)
    assert [(r["variant"], r["nodes"], r["ranks"], r["ops"]) for r in got] == [
        ("create", 2, 4, 2), ("join", 2, 4, 6), ("complete", 2, 4, 8)]
    assert {(r["figures"]["clients"], r["figures"]["failures"]) for r in got} == {(8, 0)}


def test_the_table_tells_the_network(place, namespaces):
    lines = bench(place, "latency", "--nodes", 2, "--ranks", 1, *TINY).stdout.splitlines()
    where = "all on loopback" if namespaces else "in network namespaces"
    assert lines[1] == f"2 nodes, {where}, links not shaped"
    # Under the limit's row what the links carried.
    assert [line.split()[5 if len(line.split()) > 5 else 0] for line in lines[2:]] == [
        "limit", "link_gbits", "gradwire"]


def test_peers_over_the_same_links(place, veth, tmp_path):
    if not mpis() or os.geteuid() != 0:
        pytest.skip("neither MPICH nor Open MPI, or their launchers may not enter namespaces")
    done = bench(place, "reduce-scatter", "--nodes", 2, "--ranks", 2, "--peers", "--peers-dir",
                 tmp_path, "--json", *TINY)
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["links"] == "veth" and set(document["peers"]) == mpis()
    assert {(r["variant"], r["system"]) for r in document["rows"]} == {
        (variant, system) for variant in ("blocks", "dealt")
        for system in {"limit", "gradwire"} | mpis()}


def test_loopback_where_there_are_no_namespaces(place, tmp_path):
    for name in network.NEEDED:
        (tmp_path / name).write_text("#!/bin/sh\necho no namespaces >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = bench(place, "latency", "--nodes", 2, "--ranks", 1, "--shape", "none,1G", "--peers",
                 "--peers-dir", tmp_path, "--json", *TINY, PATH=path)
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["links"] == "loopback"
    assert {(r["shape"], r["system"]) for r in document["rows"]} == {
        (None, "limit"), (None, "gradwire")}
    assert "not shaped to 1G" in done.stderr and "no peers on 2 nodes" in done.stderr


# ---- what it refuses, and finds ------------------------------------------------------------------

@pytest.mark.parametrize("args, told", [
    (["latency", "--nodes", "1"], "2 to 16"), (["latency", "--nodes", "17"], "2 to 16"),
    (["latency", "--nodes", "2,"], "2 to 16"), (["latency", "--nodes", "x"], "2 to 16"),
    (["latency", "--nodes", "2", "--shape", "1K"], "bits per second"),
    (["latency", "--nodes", "2", "--shape", "0G"], "bits per second"),
    (["latency", "--nodes", "2", "--shape", "401G"], "bits per second"),
    (["latency", "--nodes", "2", "--shape", ""], "bits per second"),
    (["latency", "--shape", "1G"], "--nodes"), (["step", "--nodes", "2"], "--nodes"),
    (["latency", "--nodes", "2", "--socket", "x"], "of its own"),
    (["latency", "--nodes", "2", "--plot", "a.svg"], "--plot"),
    (["latency", "--nodes", "16", "--ranks", "5"], "to 64"),
    (["latency", "--nodes", "2", "--ranks", "0"], "--ranks"),
    (["latency", "--nodes", "4", "--sizes", "28"], "too small")])
def test_wrong_use(place, args, told):
    done = bench(place, *args, code=EX_USAGE)
    assert told in done.stderr and done.stdout == ""


def test_without_python_there_is_no_network(place, tmp_path):
    done = bench(place, "latency", "--nodes", 2, *TINY, code=69, PATH=str(tmp_path))
    assert "takes python3" in done.stderr


@pytest.mark.parametrize("system", ["gradwire", "limit", "peer"])
def test_a_wrong_value_is_found(place, system, namespaces, tmp_path):
    if system == "peer" and (namespaces or not mpis() or os.geteuid() != 0):
        pytest.skip("no peer can run on nodes here")
    more = ["--peers", "--peers-dir", tmp_path] if system == "peer" else []
    done = bench(place, "reduce-scatter", "--nodes", 2, "--ranks", 1, *more, *TINY, "--json",
                 code=EX_WRONG if has_edges() else 0, GRADWIRE_BENCH_PLANT=system)
    assert ("WRONG VALUE" in done.stderr) == has_edges()


# ---- what it leaves ----------------------------------------------------------------------------

def networks(only=None):
    """Inodes of the network namespaces of all processes, or of those that name a directory."""
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if only and str(only).encode() not in (entry / "environ").read_bytes():
                continue
            found.add(os.readlink(entry / "ns/net"))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_it_leaves_no_process_and_no_namespace(place, number, namespaces):
    process = subprocess.Popen([str(GWBENCH), "all-reduce", "--nodes", "2", "--seconds", "60s"],
                               env=environment(place), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    until(lambda: list(place.glob("gwbench.*/run1/engines/*")), what="a job on the second node")
    made = networks(place) - {os.readlink("/proc/self/ns/net")}
    assert len(made) == (0 if namespaces else 3)  # the bridge's and the nodes'
    process.send_signal(number)
    assert process.wait(timeout=90 * SLOWER) not in (0, None)
    until(lambda: processes(place) == [], what="the end of its processes")
    until(lambda: not made & networks(), what="the end of its namespaces")
    if number == signal.SIGKILL:
        for directory in place.glob("gwbench.*"):  # nobody is left to remove it
            shutil.rmtree(directory, ignore_errors=True)
