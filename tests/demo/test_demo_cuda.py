# SPDX-License-Identifier: Apache-2.0
"""demo.sh on doubles of GPUs: the same promises, with ranks that compute there.
ctest: label=cuda timeout=300
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import jsonschema
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", "build/release")).resolve()
DEADLINE_S = 240 * float(os.environ.get("GW_TEST_SLOWER", "1"))

pytestmark = pytest.mark.skipif(
    not (BUILD / "daemon/engine/gradwire-cuda.so").exists() or
    bool(os.environ.get("GW_TEST_PRELOAD")),
    reason="built without CUDA and NCCL, or with a sanitizer")


@pytest.fixture
def short_dir():
    """A directory with a name short enough for sockets in it."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="gw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_promises_hold_on_gpus(short_dir, tmp_path, seed, record_property):
    record_property("seed", seed)
    done = subprocess.run(
        [SOURCE / "demo.sh", "--device", "cuda", "--fake-gpus", "--ranks", "2", "--hidden", "16",
         "--steps", "2", "--json", tmp_path / "demo.json"],
        env=os.environ | {"TMPDIR": str(short_dir), "GW_CUDA_SEED": str(seed)},
        capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BROKEN" not in done.stdout
    result = json.loads((tmp_path / "demo.json").read_text())
    jsonschema.validate(result, json.loads((SOURCE / "tests/demo/schema.json").read_text()))
    assert [(run["stage"], run["overlap"]) for run in result["runs"]] == [
        (stage, overlap) for stage in range(4) for overlap in (True, False)]
    assert all(result["promises"].values())
    assert list(short_dir.iterdir()) == []
