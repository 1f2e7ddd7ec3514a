# SPDX-License-Identifier: Apache-2.0
# ctest: device=cuda timeout=600
"""Trainers that enqueue ahead, over micro-steps and steps, and an engine whose GPUs have one
hardware queue each: whatever of its streams and signals could wait for what stands behind it in
that queue would wait for ever.

charlm-cuda crosses the end of a step without waiting; it waits for the step before only.
"""
import pytest

from conftest import CONFIG, Daemon, device_args, serving
from test_train import overlaps, report, trainer  # noqa: F401 pylint: disable=unused-import

WORLD = 3

pytestmark = pytest.mark.cuda_only


@pytest.fixture(name="daemon", params=["1", "32"])
def daemon_of_queues(request, runtime_dir):
    config = runtime_dir.with_name(runtime_dir.name + ".conf")
    config.write_text(CONFIG)
    try:
        with serving(Daemon(runtime_dir, args=["--config", str(config), *device_args()],
                            env={"CUDA_DEVICE_MAX_CONNECTIONS": request.param})) as d:
            yield d
    finally:
        config.unlink(missing_ok=True)


@pytest.mark.parametrize("micro_steps", ["1", "2"])
@pytest.mark.parametrize("mode", ["local", "shard"])
def test_steps_ahead_have_the_same_bits(
        trainer, gpus, mode, micro_steps):  # noqa: F811 pylint: disable=redefined-outer-name
    common = ["--steps", "4", "--bucket", "4100", "--accumulate", mode,
              "--micro-steps", micro_steps]
    losses, digest = trainer.alone("--reference", str(WORLD), *common)
    for stage in "0123":
        overlap = overlaps(gpus, stage)[0]
        ranks = trainer.train(WORLD, "--stage", stage, "--overlap", overlap, *common)
        assert report.mean_losses("run", ranks) == losses, (stage, overlap)
        assert [rank["sha256"] for rank in ranks] == [digest] * WORLD, (stage, overlap)
