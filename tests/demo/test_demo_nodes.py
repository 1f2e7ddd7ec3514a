# SPDX-License-Identifier: Apache-2.0
"""demo.sh on several nodes: the same promises, the bits of one node, and what crosses; and that
nothing stays behind, the network least of all.
ctest: label=nodes timeout=300
"""
import json
import pathlib
import re
import shutil
import signal
import time

import jsonschema
import pytest

from test_demo import (DEADLINE_S, SOURCE, TINY, nothing_left, processes_of, run, short_dir,
                       start)  # noqa: F401  pylint: disable=unused-import

needs_mpi = pytest.mark.skipif(not shutil.which("mpirun"), reason="no MPI is installed")


def namespaces(directory):
    """Network namespaces, beside ours, of processes that a demo in that directory has started:
    others on this machine may make some too."""
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={directory}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.add((path / "ns/net").readlink())
        except OSError:
            continue
    return found - {pathlib.Path("/proc/self/ns/net").readlink()}


@needs_mpi
def test_two_nodes_keep_the_promises(short_dir, tmp_path):
    code, out, errors = run(short_dir, *TINY, "--ranks", "4", "--nodes", "2", "--bucket", "20000",
                            "--shape", "10G", "--json", str(tmp_path / "demo.json"))
    assert code == 0, out + errors
    assert "BROKEN" not in out and re.search(r"^T5  ", out, re.M)
    assert re.search(r"tc shapes to bits per second of 10G$|loopback, which is not shaped$",
                     out, re.M)
    result = json.loads((tmp_path / "demo.json").read_text())
    jsonschema.validate(result, json.loads((SOURCE / "tests/demo/schema.json").read_text()))
    assert result["nodes"] == 2 and all(result["promises"].values())
    assert set(result["promises"]) >= {"crosses_as_planned", "nodes_bitwise"}
    runs = result["runs"] + result["extra_runs"]
    assert len(result["runs"]) == 8 and {tuple(r["node_of_rank"]) for r in result["runs"]} == {
        (0, 0, 1, 1)}
    assert {tuple(r["node_of_rank"]) for r in runs} == {(0,) * 4, (0, 0, 1, 1), (0, 1, 0, 1)}
    assert len({(tuple(r["loss"]), r["params_sha256"]) for r in runs}) == 1
    # Aligned blocks send one partial sum for two ranks: half of what ranks in turn do.
    sums = {(r["stage"], tuple(r["node_of_rank"])): r["cross_node_bytes"]["reduce_scatter"]
            for r in runs}
    for stage in (1, 2, 3):
        assert 2 * sums[stage, (0, 0, 1, 1)] == sums[stage, (0, 1, 0, 1)] > 0
    assert nothing_left(short_dir) and not namespaces(short_dir)


@needs_mpi
def test_an_interrupted_demo_leaves_no_node(short_dir):
    process = start(short_dir, "--hidden", "16", "--steps", "2000", "--ranks", "2", "--nodes", "2",
                    "--text", str(SOURCE / "LICENSE"))
    deadline = time.monotonic() + DEADLINE_S
    while not any("--rank 1" in line for line in processes_of(short_dir)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    print(f"{len(namespaces(short_dir))} namespaces")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert nothing_left(short_dir) and not namespaces(short_dir)


@pytest.mark.parametrize("args, message", [
    (["--nodes", "0"], "--nodes 0: must be a whole number from 1 to 16"),
    (["--nodes", "3", "--ranks", "2"], "--nodes 3: needs a rank for each; --ranks is 2"),
    (["--nodes", "2", "--shape", "1K"], "--shape 1K: must be bits per second"),
    (["--shape", "1G"], "--shape goes with --nodes"),
    (["--nodes", "2", "--device", "cuda"], "--nodes goes with --device host"),
])
def test_bad_options(short_dir, args, message):
    code, out, errors = run(short_dir, *args)
    assert (code, out) == (64, "") and message in errors
    assert nothing_left(short_dir)
