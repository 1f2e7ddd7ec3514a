# SPDX-License-Identifier: Apache-2.0
"""cmake/cuda-wheels.sh with a cmake and a python3 that only say so: no download is made here."""
import os
import pathlib
import subprocess
import zipfile

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
SCRIPT = ROOT / "cmake/cuda-wheels.sh"


def wheels(directory, functions):
    text = f". {SCRIPT}; {functions}\ngw_cuda_wheels '{directory}'"
    return subprocess.run(["bash", "-c", text, "check.sh"], capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL)


def test_nothing_missing_brings_nothing(tmp_path):
    done = wheels(tmp_path / "wheels", "cmake() { :; }; python3() { echo python3; }")
    assert (done.returncode, done.stdout) == (0, "")
    assert not (tmp_path / "wheels").exists()


def test_only_what_is_missing_is_asked_for(tmp_path):
    calls = tmp_path / "calls"
    fake = f'cmake() {{ echo nccl; }}; python3() {{ echo "$*" >>"{calls}"; return 1; }}'
    done = wheels(tmp_path, fake)
    assert done.returncode == 69
    assert "could not bring nvidia-nccl-cu13==2.28.9: install" in done.stderr
    assert "nvidia-cuda-nvcc" not in done.stdout + done.stderr
    assert sorted(os.listdir(tmp_path)) == ["calls"]


def test_wheels_are_unpacked_with_their_programs_executable(tmp_path):
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        for name, mode in (("nvidia/cu13/bin/nvcc", 0o755), ("nvidia/cu13/include/cuda.h", 0o644),
                           ("nvidia_x.dist-info/RECORD", 0o644)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100000 | mode) << 16
            made.writestr(entry, name)
    into = tmp_path / "into"
    (into / "nvidia/cu13").mkdir(parents=True)
    (into / "nvidia/cu13/half").write_text("of an interrupted one")
    # pip "downloads" the wheel above: --dest is the argument before the wheels' names.
    fake = f'''
cmake() {{ echo toolkit; }}
python3() {{
    if [[ $1 == -c ]]; then command python3 "$@"; return; fi
    while [[ $# -gt 1 && $1 != --dest ]]; do shift; done
    [[ $1 != --dest ]] || cp '{wheel}' "$2"
}}'''
    done = wheels(into, fake)
    assert done.returncode == 0, done.stderr
    assert "nvidia-cuda-nvcc==13.0.88" in done.stdout and "nccl" not in done.stdout
    assert sorted(os.listdir(into)) == ["nvidia"]
    assert sorted(os.listdir(into / "nvidia/cu13")) == ["bin", "include"]
    assert os.access(into / "nvidia/cu13/bin/nvcc", os.X_OK)
    assert not os.access(into / "nvidia/cu13/include/cuda.h", os.X_OK)
