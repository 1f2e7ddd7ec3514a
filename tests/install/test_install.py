# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` puts in place, and that it works from there."""
import os
import pathlib
import re
import shutil
import stat
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
BUILD = pathlib.Path(os.environ["GRADWIRE_BUILD"])
VERSION = re.search(r"project\(gradwire VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

PROGRAM = r"""
#include <gradwire/gradwire.h>
#include <stdio.h>
int main(void)
{
    gw_job *job = NULL;
    struct gw_job_options options = {0};

    options.struct_size = sizeof(options);
    options.socket_path = "/nonexistent/gradwired.sock";
    options.world = 1;
    printf("%s %s\n", gw_version(), gw_error_name(gw_job_create(&options, &job)));
    return 0;
}
"""

CUDA_PROGRAM = r"""
#include <gradwire/cuda.h>
#include <stdio.h>
int main(void)
{
    struct gw_device *device = NULL;
    int r = gw_cuda_device_new(-1, &device);

    printf("%s: %s\n", gw_error_name(r), gw_last_error());
    return 0;
}
"""


def run(*command, **options):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120,
                          **options)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The installed tree: every file by its path below the prefix."""
    destination = tmp_path_factory.mktemp("install")
    done = run("cmake", "--install", BUILD, env={**os.environ, "DESTDIR": str(destination)})
    assert done.returncode == 0, done.stderr
    return destination


@pytest.fixture(scope="module")
def prefix(tree):
    cache = (BUILD / "CMakeCache.txt").read_text()
    return tree / re.search(r"^CMAKE_INSTALL_PREFIX:PATH=/(.*)$", cache, re.M)[1]


def files(tree):
    return [p for p in tree.rglob("*") if p.is_file()]


def one(tree, pattern):
    found = [p for p in files(tree) if re.search(pattern, str(p.relative_to(tree)))]
    assert found, f"nothing installed matches {pattern}"
    return found[0]


@pytest.mark.parametrize("pattern", [
    r"/s?bin/gradwired$", r"/bin/gwctl$", r"/libexec/gradwire/gradwire-engine$",
    r"/libgradwire\.so\.0$", r"/libgradwire\.so$", r"/include/gradwire/gradwire\.h$",
    r"/include/gradwire/cuda\.h$", r"/include/gradwire/errors\.h$",
    r"/pkgconfig/libgradwire\.pc$", r"/include/gradwire/deepspeed\.h$",
    r"/libgradwire-deepspeed\.so\.0$", r"/pkgconfig/gradwire-deepspeed\.pc$",
    r"/include/gradwire/mpi\.h$",
    r"systemd/system/gradwired\.service$", r"gradwired\.conf$",
    r"/man8/gradwired\.8", r"/man1/gwctl\.1", r"/man5/gradwired\.conf\.5"])
def test_is_installed(tree, pattern):
    one(tree, pattern)


def test_nothing_internal_is_installed(tree):
    names = {p.name for p in files(tree)}
    strange = sorted(n for n in names if n.endswith((".a", ".cmake"))
                     or n in ("wire.h", "shm.h", "core.h") or n.startswith("test_"))
    assert not strange
    headers = {p.name for p in files(tree) if p.suffix == ".h"}
    assert headers == {"gradwire.h", "cuda.h", "deepspeed.h", "errors.h", "launch.h",
                       "mpi.h"}


def test_permissions(tree):
    for path in files(tree):
        mode = path.stat().st_mode
        assert not mode & (stat.S_IWGRP | stat.S_IWOTH), f"{path} can be written by others"
        assert not mode & (stat.S_ISUID | stat.S_ISGID), f"{path} is set-uid"
        assert mode & stat.S_IROTH, f"{path} cannot be read by everybody"


def test_no_trace_of_the_build_machine(tree):
    places = [str(BUILD).encode(), str(ROOT).encode(), str(tree).encode()]
    for path in files(tree):
        if path.suffix in (".so", ".0") or os.access(path, os.X_OK):
            out = run("readelf", "-d", path).stdout
            assert "RUNPATH" not in out and "RPATH" not in out, path
        else:
            content = path.read_bytes()
            assert not any(place in content for place in places), path


def build_with_pkg_config(tree, tmp_path, compiler, suffix, package, text):
    """What the program prints."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    pc = one(tree, rf"/{package}\.pc$")
    env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(tree)}
    assert run("pkg-config", "--modversion", package, env=env).stdout.strip() == VERSION
    flags = run("pkg-config", "--cflags", "--libs", package, env=env)
    assert flags.returncode == 0, flags.stderr
    source = tmp_path / f"program.{suffix}"
    source.write_text(text)
    done = run(compiler, source, "-Wall", "-Werror", "-o", tmp_path / "program",
               *flags.stdout.split())
    assert done.returncode == 0, done.stderr
    library = one(tree, r"libgradwire\.so\.0$").parent
    return run(tmp_path / "program", env={**os.environ, "LD_LIBRARY_PATH": str(library)}).stdout


@pytest.mark.parametrize("compiler, suffix", [("cc", "c"), ("g++", "cc")])
def test_program_builds_with_pkg_config(tree, tmp_path, compiler, suffix):
    out = build_with_pkg_config(tree, tmp_path, compiler, suffix, "libgradwire", PROGRAM)
    assert out == f"{VERSION} GW_E_NO_DAEMON\n"


@pytest.mark.parametrize("compiler, suffix", [("cc", "c"), ("g++", "cc")])
def test_cuda_program_builds_with_pkg_config(tree, tmp_path, compiler, suffix):
    """With or without a driver there is no GPU -1; the text says which of both is missing."""
    if not [p for p in files(tree) if p.name == "gradwire-cuda.pc"]:
        pytest.skip("libgradwire-cuda is not built: no CUDA headers")
    out = build_with_pkg_config(tree, tmp_path, compiler, suffix, "gradwire-cuda", CUDA_PROGRAM)
    assert re.match(r"GW_E_NO_DEVICE: (no NVIDIA driver|there is no GPU -1|cuInit)", out), out


@pytest.mark.parametrize("name", ["gradwired", "gwctl"])
def test_programs_tell_version_and_help(tree, name):
    program = one(tree, rf"bin/{name}$")
    done = run(program, "--version")
    assert done.returncode == 0 and VERSION in done.stdout
    done = run(program, "--help")
    assert done.returncode == 0 and "usage" in done.stdout.lower()


def test_sample_configuration_is_valid(tree):
    done = run(one(tree, r"bin/gradwired$"), "--check-config", "--config",
               one(tree, r"gradwired\.conf$"))
    assert done.returncode == 0, done.stderr


def test_units_are_accepted_by_systemd(tree, prefix, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze (package systemd)")
    units = [p for p in files(tree) if re.search(r"systemd/system/[^/]+$", str(p))]
    assert units
    real = "/" + str(prefix.relative_to(tree))
    for unit in units:  # as if the tree were the system
        text = unit.read_text()
        for line in re.findall(r"^Exec\w+=.*$", text, re.M):
            assert line.split("=", 1)[1].lstrip("-+!@:").startswith("/"), line
        (tmp_path / unit.name).write_text(text.replace(real + "/", str(prefix) + "/"))
    done = run("systemd-analyze", "verify", "--man=no", *[tmp_path / u.name for u in units])
    ours = [line for line in (done.stdout + done.stderr).splitlines()
            if any(u.name in line for u in units)]
    assert done.returncode == 0 and not ours, done.stdout + done.stderr


def test_man_pages_are_clean(tree):
    if not shutil.which("mandoc"):
        pytest.skip("no mandoc (package mandoc)")
    pages = [p for p in files(tree) if "/man/" in str(p)]
    assert pages
    for page in pages:
        done = run("mandoc", "-Tlint", "-Wwarning", page)
        assert done.returncode == 0, f"{page.name}:\n{done.stdout}{done.stderr}"
