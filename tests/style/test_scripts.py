# SPDX-License-Identifier: Apache-2.0
"""check.sh and cmake/deps.sh where nothing is built yet: wrong use, and missing packages."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
SCRIPTS = [ROOT / "check.sh", ROOT / "demo.sh", ROOT / "cmake/deps.sh", ROOT / ".ci/run",
           ROOT / "tests/bench/record.sh"]


def bash(text, *args, **options):
    return subprocess.run(["bash", "-c", text, "check.sh", *args], capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL, cwd=ROOT, **options)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_parse(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert os.access(script, os.X_OK) or script.name == "deps.sh"


def test_unknown_build_is_refused():
    done = subprocess.run([ROOT / "check.sh", "relase"], capture_output=True, text=True,
                          timeout=60, cwd="/")
    assert done.returncode == 64
    assert "check.sh [release]" in done.stderr


def test_nothing_missing_installs_nothing():
    done = bash(". cmake/deps.sh; gw_deps_missing() { :; }; apt-get() { echo apt-get; }; "
                "gw_install_deps test; echo end")
    assert (done.returncode, done.stdout) == (0, "end\n")


def test_without_apt_the_names_are_told():
    done = bash(". cmake/deps.sh; gw_deps_has_command() { return 1; }; gw_install_deps test")
    assert done.returncode == 69
    assert "check.sh: missing" in done.stderr and " cmake " in done.stderr
    assert "this system has no apt-get" in done.stderr


def test_without_rights_the_command_is_told():
    drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    text = (". cmake/deps.sh; gw_deps_missing() { echo libuv1-dev; }; "
            "gw_deps_has_command() { [[ $1 == apt-get ]]; }; gw_install_deps build")
    command = ["bash", "-c", text, "check.sh"]
    if os.geteuid() == 0:
        if not os.access(ROOT, os.X_OK) or any(not p.stat().st_mode & 1 for p in ROOT.parents):
            pytest.skip(f"another user cannot reach {ROOT}")
        command = drop + command
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 69
    assert "As root: apt-get install libuv1-dev" in done.stderr


def test_a_failing_apt_is_told():
    done = bash(". cmake/deps.sh; gw_deps_missing() { echo no-such-package; }; "
                "gw_deps_has_command() { return 0; }; sudo() { [[ $1 != -n ]] || shift; \"$@\"; }; "
                "apt-get() { echo E: broken; return 100; }; gw_install_deps build")
    assert done.returncode == 69
    assert "E: broken" in done.stderr and "could not install: no-such-package" in done.stderr
