# SPDX-License-Identifier: Apache-2.0
"""demo.sh itself, on a tiny model with the programs of this build: what it prints and writes, what
it says about bad options, and that nothing stays behind however it ends.
ctest: label=e2e timeout=300
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import jsonschema
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 120 * float(os.environ.get("GW_TEST_SLOWER", "1"))
TINY = ["--hidden", "16", "--steps", "3"]


@pytest.fixture
def short_dir():
    """A directory with a name short enough for sockets in it."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="gw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def processes_of(directory):
    """Command lines of living processes that name the directory."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line:
            found.append(line)
    return found


def start(short_dir, *args):
    env = dict(os.environ, TMPDIR=str(short_dir))
    env.pop("LD_PRELOAD", None)  # a sanitizer is in our programs; the shell's leaks are its own
    return subprocess.Popen([str(SOURCE / "demo.sh"), *args], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=env)


def run(short_dir, *args):
    process = start(short_dir, *args)
    out, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, errors


def nothing_left(short_dir):
    return list(short_dir.iterdir()) == [] and processes_of(short_dir) == []


def test_tables_json_and_nothing_left(short_dir, tmp_path):
    code, out, errors = run(short_dir, *TINY, "--ranks", "3", "--bucket", "20000",
                            "--json", str(tmp_path / "demo.json"))
    assert code == 0, out + errors
    for table in ("T0", "T1", "T2", "T3", "T4"):
        assert re.search(rf"^{table}  ", out, re.M), out
    assert "BROKEN" not in out and "simulated link" in out
    result = json.loads((tmp_path / "demo.json").read_text())
    jsonschema.validate(result, json.loads((SOURCE / "tests/demo/schema.json").read_text()))
    assert [(run["stage"], run["overlap"]) for run in result["runs"]] == [
        (stage, overlap) for stage in range(4) for overlap in (True, False)]
    assert {(run["stage"], run["overlap"], run["gather"]) for run in result["extra_runs"]} == {
        (2, True, "private"), (2, False, "private"), (3, True, "mapped")}
    assert all(result["promises"].values())
    assert (result["ranks"], result["steps"], result["bucket_bytes"]) == (3, 3, 20000)
    assert nothing_left(short_dir)


def test_given_text_and_link(short_dir, tmp_path):
    (tmp_path / "text").write_text("To be, or not to be, that is the question. " * 5)
    code, out, errors = run(short_dir, *TINY, "--ranks", "2", "--text", str(tmp_path / "text"),
                            "--link", "12300000")
    assert code == 0, out + errors
    assert "simulated link of 12.3 MB/s" in out
    assert nothing_left(short_dir)


def test_one_rank_sends_nothing(short_dir):
    code, out, errors = run(short_dir, *TINY, "--ranks", "01")
    assert code == 0, out + errors
    assert "simulated" not in out


@pytest.mark.parametrize("args, code, message", [
    (["--stages"], 64, "--stages: no such option"),
    (["--ranks"], 64, "--ranks needs a value"),
    (["--text", ""], 64, "--text needs a value"),
    (["--json", ""], 64, "--json needs a value"),
    (["--ranks", "0"], 64, "--ranks 0: must be a whole number from 1 to 64"),
    (["--steps", "1e3"], 64, "--steps 1e3"),
    (["--bucket", "0"], 64, "--bucket 0"),
    (["--bucket", "1001"], 64, "must be a multiple of 4"),
    (["--text", "/nonexistent"], 66, "/nonexistent: not a readable file"),
    (["--text", "/dev/null"], 66, "/dev/null: not a readable file"),
    (["--json", "/nonexistent/x"], 73, "/nonexistent/x: cannot be written"),
])
def test_bad_options(short_dir, args, code, message):
    got, out, errors = run(short_dir, *args)
    assert (got, out) == (code, "") and message in errors
    assert nothing_left(short_dir)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(short_dir, number):
    process = start(short_dir, "--hidden", "16", "--steps", "100000", "--ranks", "2", "--text",
                    str(SOURCE / "LICENSE"))
    deadline = time.monotonic() + DEADLINE_S
    # The reference alone takes a while: its process means that all is set up.
    while not any("--reference" in line for line in processes_of(short_dir)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number
    assert nothing_left(short_dir)


def test_a_rank_that_dies_is_told_and_ends_the_demo(short_dir):
    process = start(short_dir, "--hidden", "16", "--steps", "2000", "--ranks", "3", "--text",
                    str(SOURCE / "LICENSE"))
    deadline, victim = time.monotonic() + DEADLINE_S, None
    while victim is None:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                line = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if str(short_dir).encode() in line and b"--rank\x001\x00" in line:
                victim = int(path.name)
    time.sleep(0.5)
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "run stage-0-off failed" in errors and "rank 1 is gone" in errors, errors
    assert nothing_left(short_dir)
