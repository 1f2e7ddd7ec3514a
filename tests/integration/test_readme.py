# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""README.md is true: its client is the example's text, compiles, and does what it says."""
import os
import pathlib
import re
import subprocess

from conftest import SANITIZE

SOURCE = pathlib.Path(os.environ.get("GRADWIRE_SOURCE",
                                     pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ["GRADWIRE_BUILD"])


def readme():
    return (SOURCE / "README.md").read_text()


def test_the_client_of_the_readme_compiles_and_reduces(daemon, tmp_path):
    (text,) = re.findall(r"```c\n(.*?)```", readme(), re.S)
    assert text == (SOURCE / "client/examples/minimal.c").read_text()
    (tmp_path / "minimal.c").write_text(text)
    library = BUILD / "client/lib"
    flags = [f"-fsanitize={SANITIZE}"] if SANITIZE else []
    env = dict(os.environ, GRADWIRE_SOCKET=str(daemon.socket))
    env.pop("LD_PRELOAD", None)
    subprocess.run(["cc", "-std=c99", "-Wall", "-Wextra", *flags, f"-I{SOURCE}/include",
                    "minimal.c", f"-L{library}", "-lgradwire", f"-Wl,-rpath,{library}", "-o",
                    "minimal"], cwd=tmp_path, env=env, check=True)
    ranks = [subprocess.Popen([tmp_path / "minimal", str(r), "2", str(tmp_path / "id")], env=env,
                              stdout=subprocess.PIPE, text=True) for r in range(2)]
    out = [p.communicate(timeout=60)[0] for p in ranks]
    assert [p.returncode for p in ranks] == [0, 0]
    # rank r gave (r+1)(i+1): the mean over two ranks is 1.5 (i+1)
    assert out == ["rank 0: 1.5 3 4.5 6\n", "rank 1: 7.5 9 10.5 12\n"]


def test_the_readme_asks_pkg_config_for_what_is_installed():
    (name,) = re.findall(r"pkg-config --cflags --libs ([\w-]+)", readme())
    assert list(BUILD.rglob(f"{name}.pc")), name


def test_paths_named_in_the_readme_exist():
    for name in re.findall(r"`((?:client|daemon|tests|proto|include|systemd|configs)/[^`*]*)`",
                           readme()):
        assert (SOURCE / name.rstrip("/")).exists(), name
    for script in ("demo.sh", "check.sh"):
        assert os.access(SOURCE / script, os.X_OK), script
