# SPDX-License-Identifier: Apache-2.0
# ctest: device=cuda timeout=300
"""The shipped charlm-cuda, trainers and engine: from the second step on no call blocks a host.

(That it computes the right bits on the way is test_train.py's.)
"""
import pytest

from conftest import until
from test_train import Trainer, trainer  # noqa: F401 pylint: disable=unused-import

WORLD = 2
STEPS = 6  # watched


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_charlm_never_blocks_in_a_step(
        trainer, daemon, gpus, stage, overlap):  # noqa: F811 pylint: disable=redefined-outer-name
    def steps():
        return max([job["steps"] for job in daemon.jobs()], default=0)

    def ended():
        return any(rank.poll() is not None for rank in ranks)

    def said():
        return [rank.communicate()[1] for rank in ranks if rank.poll() is not None]

    # It never comes to its last step, which may wait.
    ranks = trainer.start_ranks(trainer.new_directory(), WORLD, [
        "--stage", stage, "--overlap", overlap, "--steps", "100000"], {})
    try:
        until(lambda: steps() >= 1 or ended(), 60, "the first step's end")
        assert not ended(), said()
        gpus.control("phase", "step", "all")
        before, first = gpus.report()["counts"], steps()
        until(lambda: steps() >= first + STEPS or ended(), 60, "further steps")
        after = gpus.report()["counts"]
        gpus.control("phase", "setup", "all")
        assert not ended(), said()
        gpus.check()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(20)
            rank.stderr.close()
    assert after["syncs"] == before["syncs"], "a call blocked a host"
    assert after["kernels"] > before["kernels"]
    # Of ranks that were killed, the engine sums what is not written yet, and throws it away.
    gpus.allowed = {"unordered"}
