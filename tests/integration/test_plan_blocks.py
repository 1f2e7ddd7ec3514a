# SPDX-License-Identifier: Apache-2.0
"""gwctl plan of jobs with secondary shards, against a real run's counters, and over nodes.

ctest: timeout=300
"""
import gw
from conftest import SLOWER
from planning import (RUN_BUCKET, STEPS, assert_memory, expected, gwctl, one_run, plan, planned,
                      run_options, write_model)
from models import gpt2  # noqa: I001 (planning knows where)

WORLD, BLOCK, MICRO_STEPS = 4, 2, 2
RUN = dict(stage=3, micro_steps=MICRO_STEPS, accumulate="auto", gather="private",
           secondary_ranks=BLOCK, all_reduce=0, bucket=RUN_BUCKET)
ROWS = gpt2(16, 67, 9)


def test_a_block_sends_what_was_planned(daemon, tmp_path):
    """Which rank of a block gathers a unit from all owners is open; what the block sends is not.
    The plan has the mean of its ranks, rounded down for each fetch unit."""
    path = write_model(tmp_path / "m.tsv", ROWS)
    ranks = gw.run(WORLD, one_run, WORLD, str(daemon.socket), str(tmp_path / "id"), ROWS, RUN,
                   timeout=240 * SLOWER)
    want = expected(path, WORLD, RUN)
    (stage,) = planned("--model", path, "--ranks", WORLD, *run_options(RUN))["stages"]
    gathered = want["payload_bytes"]["all_gather"] + want["padding_bytes"]["all_gather"]
    kept = gathered // (2 * MICRO_STEPS * BLOCK)
    for counters, memory, overflow in ranks:
        for kind in gw.KINDS:
            for figure in ("calls", "payload_bytes"):
                assert counters[kind][figure] == STEPS * stage[figure][kind], (kind, figure)
        assert counters["all_gather"]["moved_bytes"] == STEPS * (gathered + kept)
        assert_memory(memory, overflow, stage["memory_bytes"], want, RUN)
    for block in (ranks[:BLOCK], ranks[BLOCK:]):
        ring = sum(counters["all_gather"]["ring_bytes"] for counters, _, _ in block)
        rest = ring - STEPS * BLOCK * stage["ring_bytes"]["all_gather"]
        assert 0 <= rest <= STEPS * (BLOCK - 1) * want["fetch_units"]


def test_only_first_gathers_leave_a_node(tmp_path):
    """Of parameters that all ranks can share without padding."""
    path = write_model(tmp_path / "m.tsv", [(f"w{j}", (8 * 64,), f"u{j}") for j in range(5)])
    nodes = ["--model", path, "--ranks", 8, "--nodes", 2, "--stage", 3, "--bucket", 4096]
    flat, blocks = (planned(*nodes, *args)["stages"][0]["cross_node_bytes"]["all_gather"]
                    for args in ([], ["--secondary-ranks", 4]))
    assert flat == 2 * blocks > 0  # forward; backward stays inside the nodes
    sent = plan.expected(plan.read_model(path), 3, 8, 4096, nodes=[0] * 4 + [1] * 4,
                         secondary_ranks=4)["cross_node_bytes"]["all_gather"]
    assert sent == [blocks, blocks]
    assert "each block of 4 ranks keeps a copy" in gwctl(*nodes, "--secondary-ranks", 4).stdout
    spanned = gwctl("--model", path, "--ranks", 8, "--nodes", 4, "--bucket", 4096,
                    "--secondary-ranks", 4).stdout
    assert "do not lie inside a node" in spanned


def test_what_has_no_blocks_is_refused(tmp_path):
    path = write_model(tmp_path / "m.tsv", ROWS)
    for args, words in (([3], "must divide the 4 ranks"),
                        ([2, "--shard-ranks", 2], "use one of them"),
                        ([2, "--gather", "mapped"], "or gather private")):
        done = gwctl("--model", path, "--ranks", 4, "--secondary-ranks", *args, code=64)
        assert words in done.stderr
