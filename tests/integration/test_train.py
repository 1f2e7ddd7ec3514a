# SPDX-License-Identifier: Apache-2.0
"""charlm end to end: every stage trains to the bits of a process that never heard of gradwire.

A tiny model (hidden width 32) on a short text; worlds of 1 to 4, bucket sizes that cut parameters
in odd places. Counted traffic and memory are compared with tests/cases/plan.py on the way. On GPUs
the bits are the host's: the reference is charlm's own, computed there.
ctest: timeout=900 device=cuda
"""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "demo"))

import report  # noqa: E402
from gw import on_cuda  # noqa: E402

CHARLM = os.path.join(os.environ["GRADWIRE_BUILD"], "client/examples/charlm")
RANK = CHARLM + "-cuda" if on_cuda() else CHARLM
DEADLINE_S = 60 * float(os.environ.get("GW_TEST_SLOWER", "1"))
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 3
EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_TEMPFAIL, EX_PROTOCOL = 65, 66, 69, 75, 76


class Trainer:
    """Runs charlm; every run has a directory of its own."""

    def __init__(self, socket, directory):
        self.socket, self.directory, self.runs = socket, directory, 0
        self.text = directory / "text"
        self.text.write_text(TEXT)
        self.common = ["--text", str(self.text), "--hidden", "32", "--batch", "4"]

    def start(self, args, program=RANK):
        return subprocess.Popen([program, *self.common, *args], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def alone(self, *args):
        """(losses, checksum)"""
        where = self.new_directory()
        process = self.start([*args, "--out", str(where / "out"), "--dump", str(where / "dump")],
                             CHARLM)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors
        return json.loads((where / "out").read_text())["loss"], checksum(where / "dump")

    def new_directory(self):
        self.runs += 1
        where = self.directory / f"run{self.runs}"
        where.mkdir()
        return where

    def start_ranks(self, where, world, args, extra):
        return [self.start(["--rank", str(rank), "--world", str(world),
                            "--id-file", str(where / "id"), "--socket", self.socket,
                            "--out", str(where / f"rank-{rank}.json"),
                            "--dump", str(where / f"rank-{rank}.params"),
                            *args, *extra.get(rank, [])])
                for rank in range(world)]

    def ends(self, world, *args, extra=None):
        """Exit codes and messages of all ranks; the directory."""
        where = self.new_directory()
        processes = self.start_ranks(where, world, args, extra or {})
        deadline, ended = time.monotonic() + DEADLINE_S, []
        for process in processes:
            try:
                _, errors = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
                ended.append((process.returncode, errors.strip()))
            except subprocess.TimeoutExpired:
                process.kill()
                ended.append(("hung", process.communicate()[1].strip()))
        return ended, where

    def train(self, world, *args):
        """What the ranks left, as the demo's report reads it."""
        ended, where = self.ends(world, *args)
        assert ended == [(0, "")] * world
        for rank in range(world):
            digest = checksum(where / f"rank-{rank}.params")
            (where / f"rank-{rank}.sha256").write_text(digest)
        return report.read_ranks(where)

    def parameters(self):
        tsv = self.directory / "model.tsv"
        tsv.write_text(subprocess.run([CHARLM, *self.common, "--model-tsv"], check=True, text=True,
                                      capture_output=True, timeout=DEADLINE_S).stdout)
        return report.plan.read_model(tsv)


def checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def trainer(daemon, tmp_path):
    return Trainer(str(daemon.socket), tmp_path)


def overlaps(gpus, stage):
    """Both; on GPUs one of them, by the seed."""
    return ("on", "off") if gpus is None else (("on", "off")[(gpus.seed + int(stage)) % 2],)


def check_run(ranks, parameters, reference, overflow_slots=0):
    """Bits, pattern, one collective per bucket and memory of one run."""
    problems = report.Problems()
    run = report.put_together(ranks, parameters, problems)
    report.check_pattern(run, problems)
    report.check_bits([run], {"loss": reference[0], "params_sha256": reference[1]}, problems)
    assert problems.broken == {}
    memory = run["expected_memory_bytes"]
    memory["buckets"] += memory["buckets"] // report.RING_SLOTS * overflow_slots
    assert run["memory_bytes"] == memory


ALL = [["--stage", str(stage), "--overlap", overlap] for stage in range(4)
       for overlap in ("off", "on")]
if not on_cuda():
    ALL.append(["--stage", "3", "--gather", "mapped"])


@pytest.mark.parametrize("world, bucket", [(1, 20000), (2, 1000), (2, 4100), (3, 7780), (4, 30012),
                                           (4, 1 << 20)])
def test_all_stages_have_the_references_bits(trainer, gpus, world, bucket):
    parameters = trainer.parameters()
    common = ["--steps", "5", "--bucket", str(bucket), "--seed", "9"]
    reference = trainer.alone("--reference", str(world), *common)
    for options in ALL:
        if gpus and options[3] not in overlaps(gpus, options[1]):
            continue
        check_run(trainer.train(world, *options, *common), parameters, reference)


def test_pieces_smaller_than_a_row(trainer):
    parameters = trainer.parameters()
    common = ["--steps", "2", "--bucket", "528" if on_cuda() else "132"]
    reference = trainer.alone("--reference", "2", *common)
    for stage in "0123":
        ranks = trainer.train(2, "--stage", stage, *common)
        slots = max(rank["stats"]["overflow_slots"] for rank in ranks)
        check_run(ranks, parameters, reference, overflow_slots=slots)


def test_a_slow_link_changes_no_bit(trainer, gpus):
    parameters = trainer.parameters()
    common = ["--steps", "4", "--bucket", "30000"]
    reference = trainer.alone("--reference", "3", *common)
    for stage in "0123":
        for overlap in overlaps(gpus, stage):
            ranks = trainer.train(3, "--stage", stage, "--overlap", overlap, "--link", "20000000",
                                  *common)
            check_run(ranks, parameters, reference)


def test_measuring_counts_nothing_and_changes_no_bit(trainer):
    parameters = trainer.parameters()
    common = ["--steps", "3", "--bucket", "30000", "--measure"]
    reference = trainer.alone("--reference", "2", "--steps", "3")
    for stage in "0123":
        ranks = trainer.train(2, "--stage", stage, *common)
        check_run(ranks, parameters, reference)
        assert all(rank["stats"]["comm_alone_ns"] > 0 for rank in ranks)


@pytest.mark.parametrize("mode", ["local", "shard"])
@pytest.mark.parametrize("micro_steps", [2, 3])
def test_micro_steps_have_the_same_bits_in_all_stages(trainer, gpus, mode, micro_steps):
    common = ["--steps", "3", "--bucket", "9004", "--accumulate", mode,
              "--micro-steps", str(micro_steps)]
    losses, digest = trainer.alone("--reference", "3", *common)
    for stage in "0123":
        for overlap in overlaps(gpus, stage):
            ranks = trainer.train(3, "--stage", stage, "--overlap", overlap, *common)
            assert report.mean_losses("run", ranks) == losses, (stage, overlap)
            assert [rank["sha256"] for rank in ranks] == [digest] * 3, (stage, overlap)


def test_the_norm_is_the_same_for_a_layout(trainer):
    norms = {}
    for stage in "012":
        for overlap in ("on", "off"):
            for rank in trainer.train(2, "--stage", stage, "--overlap", overlap, "--steps", "3",
                                      "--bucket", "30000"):
                norms.setdefault(tuple(rank["norm"]), []).append((stage, overlap, rank["rank"]))
    # Stages 1 and 2 cut buckets alike; the fixed chunks of stage 0 are its own.
    assert len({key for key, runs in norms.items() if any(run[0] != "0" for run in runs)}) == 1
    for a in norms:
        for b in norms:
            assert a == pytest.approx(b, rel=1e-6)


# ---- what goes wrong -----------------------------------------------------------------------------


def test_no_daemon_is_one_line_that_names_the_socket(tmp_path):
    trainer = Trainer(str(tmp_path / "nobody.sock"), tmp_path)
    ((code, message),), _ = trainer.ends(1, "--stage", "0")
    assert code == EX_UNAVAILABLE
    assert message.count("\n") == 0
    assert str(tmp_path / "nobody.sock") in message and "gradwired" in message


@pytest.mark.parametrize("text, code, why", [
    (None, EX_NOINPUT, "No such file"), ("", EX_NOINPUT, "is empty"),
    ("too short", EX_DATAERR, "shorter than one sample")])
def test_bad_text(trainer, text, code, why):
    path = trainer.directory / "bad"
    if text is not None:
        path.write_text(text)
    ended, _ = trainer.ends(1, "--stage", "0", "--text", str(path))
    assert ended[0][0] == code and why in ended[0][1] and str(path) in ended[0][1]


def test_a_rank_that_never_comes_is_named(trainer):
    ended, _ = trainer.ends(2, "--stage", "0", "--timeout", "1", extra={1: ["--text", "/none"]})
    assert re.search(r"ranks not arrived within \S+ s: 1\b", ended[0][1]), ended
    assert ended[0][0] == EX_TEMPFAIL and ended[1][0] == EX_NOINPUT, ended


def test_layouts_that_differ_are_told_to_every_rank(trainer):
    ended, _ = trainer.ends(3, "--stage", "2", extra={1: ["--hidden", "33"]})
    assert [code for code, _ in ended] == [EX_PROTOCOL] * 3, ended
    for _, message in ended:
        assert "h1.weight" in message, message


def test_settings_that_differ_are_told_to_every_rank(trainer):
    ended, _ = trainer.ends(2, extra={0: ["--stage", "1"], 1: ["--stage", "2"]})
    assert [code for code, _ in ended] == [EX_PROTOCOL] * 2, ended
    for _, message in ended:
        assert "stage" in message, message
