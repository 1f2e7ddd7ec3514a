# SPDX-License-Identifier: Apache-2.0
"""cmake/cuda-wheels.sh and wheels.sh with a cmake and a python3 that only say so: no download is
made here."""
import os
import pathlib
import subprocess
import zipfile

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
SCRIPT = ROOT / "cmake/cuda-wheels.sh"


def wheels(directory, functions, what="gw_cuda_wheels"):
    text = f". {SCRIPT}; {functions}\n{what} '{directory}'"
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


def test_what_tests_read_with_is_brought_once(tmp_path):
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("safetensors/__init__.py", "")
        made.writestr("safetensors-0.5.3.dist-info/RECORD", "")
    into = tmp_path / "into"
    fake = f'''
python3() {{
    if [[ $1 == -c ]]; then command python3 "$@"; return; fi
    while [[ $# -gt 1 && $1 != --dest ]]; do shift; done
    [[ $1 != --dest ]] || {{ [[ $3 == safetensors==0.5.3 ]] && cp '{wheel}' "$2"; }}
}}'''
    done = wheels(into, fake, "gw_test_wheels")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(into)) == ["safetensors", "safetensors-0.5.3.dist-info"]
    assert os.listdir(into / "safetensors") == ["__init__.py"]
    done = wheels(into, "python3() { return 1; }", "gw_test_wheels")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_an_index_what_tests_read_with_is_missing_and_said_so(tmp_path):
    done = wheels(tmp_path, "python3() { return 1; }", "gw_test_wheels")
    assert done.returncode == 69 and os.listdir(tmp_path) == []
    assert "could not bring safetensors==0.5.3: what tests it is skipped" in done.stderr


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
