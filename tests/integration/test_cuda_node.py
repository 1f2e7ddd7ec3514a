# SPDX-License-Identifier: Apache-2.0
# ctest: device=cuda timeout=120
"""Nodes that lack something: no driver, no plug-in. And what the plug-in asks of CUDA and NCCL:
nothing that the doubles do not have, and nothing that the real headers do not declare.
"""
import ctypes
import functools
import os
import pathlib
import re
import subprocess

import pytest

import gw
from conftest import BUILD, CONFIG, PLUGINS, Daemon, serving

PLUGIN = PLUGINS / "gradwire-cuda.so"
DOUBLES = BUILD / "tests/fakegpu/lib"
SOURCE = pathlib.Path(os.environ["GRADWIRE_SOURCE"])


def host_rank(rank, where):
    os.environ["GW_TEST_DEVICE"] = "host"
    job = gw.Job(rank, 2, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    buf = job.buffer(4096)
    buf.floats[0] = 1.0
    job.wait(job.all_reduce(buf.at(), buf.at(), 8))
    got = buf.floats[0]
    job.close()
    return got


def gpu_rank(rank, where):
    try:
        gw.Job(0, 1, id_path=where["id"] + "gpu", socket=where["socket"], linger_ns=-1).close()
    except gw.Error as e:
        return e.name, e.text
    return "ok", ""


def without_driver():
    """The environment of a node that has the plug-in's libraries and no driver."""
    return {"FAKEGPU_SOCKET": "/nonexistent/gpu", "CUDA_FAKEGPU_SOCKET": "/nonexistent/gpu"}


def node(runtime_dir, tmp_path, *args, env=None):
    config = tmp_path / "conf"
    config.write_text(CONFIG)
    return Daemon(runtime_dir, env=env or {}, args=["--config", str(config), *args])


@pytest.mark.parametrize("lacks", ["driver", "plug-in"])
def test_a_node_that_lacks_something_serves_hosts_and_says_so(runtime_dir, tmp_path, lacks):
    empty = tmp_path / "empty"
    empty.mkdir()
    plugins = PLUGINS if lacks == "driver" else empty
    env = without_driver() if lacks == "driver" else {}
    with serving(node(runtime_dir, tmp_path, "--device", "auto", "--plugins", str(plugins),
                      env=env)) as daemon:
        where = {"socket": str(daemon.socket), "id": str(tmp_path / "id")}
        assert gw.run(2, host_rank, where) == [2.0, 2.0]
        (name, text), = gw.run(1, gpu_rank, where)
        log = daemon.log()
    line = next(row for row in log.splitlines() if "devices: host" in row)
    assert "no cuda" in line, log
    assert name == "GW_E_NO_DEVICE", (name, text)
    if lacks == "plug-in":
        assert "gradwire-cuda.so" in line and "install" in line
        assert "gradwire-cuda.so" in text and "install" in text
    else:
        assert "GPU" in line or "driver" in line, line


@pytest.mark.no_gpus
@pytest.mark.parametrize("lacks", ["driver", "plug-in"])
def test_device_cuda_is_refused_where_there_is_none(runtime_dir, tmp_path, lacks):
    plugins = PLUGINS if lacks == "driver" else tmp_path
    daemon = node(runtime_dir, tmp_path, "--device", "cuda", "--plugins", str(plugins),
                  env=without_driver() if lacks == "driver" else None)
    done = subprocess.run(daemon.command(), env=daemon.env, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == os.EX_UNAVAILABLE, done.stderr
    assert "device = cuda" in done.stderr and "--device host" in done.stderr
    if lacks == "plug-in":
        assert "gradwire-cuda.so is not in" in done.stderr and "install" in done.stderr


# ---- symbols -------------------------------------------------------------------------------------


def symbols(path, *options):
    done = subprocess.run(["nm", "-D", "--with-symbol-versions", *options, path], check=True,
                          capture_output=True, text=True)
    return [line.split()[-1] for line in done.stdout.splitlines() if line.strip()]


def of_cuda(names):
    return {n for n in names if re.match(r"(__cuda|cuda|nccl|cu[A-Z])", n)}


LIBRARIES = ("libcudart.so.13", "libcuda.so.1", "libnccl.so.2")


def unversioned(names):
    """As cuda.h, its macros apart, and callers write them."""
    return {re.sub(r"(_v[0-9]+)?(@.*)?$", "", n) for n in names}


def driver_names():
    """What the plug-in and the client library ask the driver for at run time, by name."""
    names = set()
    for header in ("daemon/device/cuda/driver.h", "client/cuda/driver.h"):
        found = re.findall(r"\bCALL\((cu\w+)", (SOURCE / header).read_text())
        assert len(found) > 20, header
        names |= set(found)
    return names


@pytest.mark.no_gpus
def test_the_doubles_have_what_the_plug_in_asks_for_under_the_same_versions():
    wanted = of_cuda(symbols(PLUGIN, "--undefined-only"))
    there = set()
    for name in ("libcudart.so.13", "libnccl.so.2"):
        there |= {n.replace("@@", "@") for n in symbols(DOUBLES / name, "--defined-only")}
    assert len(wanted) > 20
    assert {n.replace("@@", "@") for n in wanted} <= there
    # The driver's are found by name at run time.
    assert not {n for n in wanted if re.match(r"cu[A-Z]", n)}
    assert all("@" in n for n in wanted if not n.startswith("nccl")), wanted


@pytest.mark.no_gpus
def test_the_doubles_find_every_driver_call_by_name():
    there = unversioned(symbols(DOUBLES / "libcuda.so.1", "--defined-only"))
    assert driver_names() <= there
    find = ctypes.CDLL(str(DOUBLES / "libcudart.so.13")).cudaGetDriverEntryPointByVersion
    for name in sorted(driver_names()):
        entry, status = ctypes.c_void_p(), ctypes.c_int(-1)
        code = find(name.encode(), ctypes.byref(entry), ctypes.c_uint(13000),
                    ctypes.c_ulonglong(0), ctypes.byref(status))
        assert (code, status.value) == (0, 0) and entry.value, name


def callers():
    """Text, without comments, of all that may call CUDA or NCCL: what is shipped, and tests. Not of
    the doubles themselves, nor of this file."""
    files = [f for d in ("daemon", "client", "tests/gpu", "tests/integration")
             for f in (SOURCE / d).rglob("*") if f.suffix in (".c", ".h", ".cu", ".py")]
    files += [f for f in (SOURCE / "tests/fakegpu").iterdir() if re.match(
        r"(cases_|test_|kernels_test|device_kit|fabric_kit|alone)", f.name)]
    text = "\n".join(f.read_text() for f in files if f != pathlib.Path(__file__))
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


@pytest.mark.no_gpus
def test_the_doubles_have_nothing_that_nobody_calls():
    """Or another double is built on, or the output of nvcc calls: that is what crt/ declares."""
    called = set(re.findall(r"\b(?:cuda|cu[A-Z]|nccl)\w*", callers()))
    of_nvcc = set(re.findall(r"\b__cuda\w+", headers()))
    for library in LIBRARIES:
        used = unversioned(called) | of_nvcc
        for other in LIBRARIES:
            if other != library:
                used |= unversioned(symbols(DOUBLES / other, "--undefined-only"))
        there = unversioned(of_cuda(symbols(DOUBLES / library, "--defined-only")))
        assert len(there) > 20, library
        assert sorted(there - used) == [], library


@functools.cache
def headers():
    """Text of those that the build compiles with."""
    commands = (BUILD / "build.ninja").read_text()
    names = ("cuda_runtime_api.h", "cuda.h", "nccl.h", "crt/host_runtime.h",
             "crt/device_functions.h")
    places = {pathlib.Path(p) for p in re.findall(r"-isystem (\S+)", commands)}
    return "".join((place / name).read_text(errors="replace") for place in places
                   for name in names if (place / name).is_file())


@pytest.mark.no_gpus
def test_the_real_headers_declare_what_the_plug_in_asks_for():
    text = headers()
    if "ncclCommInitRankConfig" not in text or "cudaMemcpyAsync" not in text:
        pytest.skip("the headers of CUDA and NCCL are not where the build says")
    wanted = {n.split("@")[0] for n in of_cuda(symbols(PLUGIN, "--undefined-only"))}
    lacking = {n for n in wanted if not n.startswith("__cuda") and
               not re.search(rf"\b{re.sub('_v[0-9]+$', '', n)}\b", text)}
    assert not lacking
    assert not {n for n in driver_names() if not re.search(rf"\b{n}\b", text)}
