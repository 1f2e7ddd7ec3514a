# SPDX-License-Identifier: Apache-2.0
"""What the plug-in and libgradwire-cuda ask of CUDA and NCCL is what the real libraries have, and
what the doubles of the tests have: the same names, in the same versions."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
BUILD = pathlib.Path(os.environ["GRADWIRE_BUILD"])
PLUGIN = BUILD / "daemon/engine/gradwire-cuda.so"
DOUBLES = BUILD / "tests/fakegpu/lib"
FOREIGN = re.compile(r"(__)?cuda[A-Z]|cu[A-Z]|nccl[A-Z]|pnccl[A-Z]")


def symbols(library, *flags):
    out = subprocess.run(["nm", "-D", *flags, library], capture_output=True, text=True,
                         check=True).stdout
    return {line.split()[-1].replace("@@", "@") for line in out.splitlines() if line.strip()}


def dynamic(library):
    return subprocess.run(["readelf", "-d", library], capture_output=True, text=True,
                          check=True).stdout


def real(name):
    """The library of that name that the plug-in was linked with."""
    paths = re.search(r"R(?:UN)?PATH.*\[(.*)\]", dynamic(PLUGIN))
    for directory in paths[1].split(":") if paths else []:
        if (pathlib.Path(directory) / name).exists():
            return pathlib.Path(directory) / name
    pytest.skip(f"{name} is no longer where the plug-in was linked with it")


@pytest.fixture(autouse=True)
def built():
    if not PLUGIN.exists():
        pytest.skip("the plug-in is not built: no CUDA toolkit or NCCL")


def wanted():
    names = {s for s in symbols(PLUGIN, "--undefined-only") if FOREIGN.match(s)}
    assert names
    return names


def test_exports_one_symbol():
    assert {s.split("@")[0] for s in symbols(PLUGIN, "--defined-only")
            if not s.startswith("GRADWIRE_")} == {"gradwire_plugin"}


def test_needs_runtime_and_nccl_but_no_driver():
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic(PLUGIN)))
    assert {"libcudart.so.13", "libnccl.so.2"} <= needed
    assert not [n for n in needed if n.startswith("libcuda.so")], needed
    assert not [s for s in wanted() if re.match(r"cu[A-Z]", s)]


@pytest.mark.parametrize("name", ["libcudart.so.13", "libnccl.so.2"])
def test_the_real_library_has_what_is_wanted(name):
    has = symbols(real(name), "--defined-only")
    prefix = "nccl" if "nccl" in name else "cuda"
    mine = {s for s in wanted() if prefix in s.split("@")[0]}
    assert mine and mine - has == set()


def test_the_doubles_have_what_is_wanted():
    if not DOUBLES.exists():
        pytest.skip("the doubles are not built")
    has = set().union(*(symbols(path, "--defined-only") for path in DOUBLES.glob("lib*.so*")))
    assert wanted() - has == set()


@pytest.mark.parametrize("name", ["libcudart.so.13", "libnccl.so.2"])
def test_a_double_has_nothing_that_the_real_library_lacks(name):
    if not (DOUBLES / name).exists():
        pytest.skip("the doubles are not built")
    extra = {s for s in symbols(DOUBLES / name, "--defined-only") if FOREIGN.match(s)}
    assert extra - symbols(real(name), "--defined-only") == set()


@pytest.mark.parametrize("header", ["daemon/device/cuda/driver.h", "client/cuda/driver.h"])
def test_the_doubles_driver_has_what_is_looked_up(header):
    looked_up = set(re.findall(r"\bCALL\((cu\w+)\)", (ROOT / header).read_text()))
    known = set(re.findall(r"\bROW\((cu\w+)\)",
                           (ROOT / "tests/fakegpu/driver_entry.c").read_text()))
    assert len(looked_up) > 20
    assert looked_up - known == set()
