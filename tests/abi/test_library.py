# SPDX-License-Identifier: Apache-2.0
"""The client libraries export what their headers declare, and cannot do what they promised not to.

libgradwire has the calls on a job, those of <gradwire/cuda.h> and launch.h too; libgradwire-cuda,
built where CUDA's headers are, has those that make and free a device, and links no CUDA library;
libgradwire-deepspeed has those of <gradwire/deepspeed.h>, and jansson, which no other one needs;
libgradwire-mpich and libgradwire-openmpi have that of <gradwire/mpi.h>, and their MPI."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
BUILD = pathlib.Path(os.environ["GRADWIRE_BUILD"])
LIBRARY = BUILD / "client/lib/libgradwire.so"
CUDA_LIBRARY = BUILD / "client/cuda/libgradwire-cuda.so"
DEEPSPEED_LIBRARY = BUILD / "client/deepspeed/libgradwire-deepspeed.so"
MPI_LIBRARIES = {BUILD / f"client/mpi/libgradwire-{name}.so": f"[lib{needed}.so."
                 for name, needed in (("mpich", "mpich"), ("openmpi", "mpi"))}
LIBRARIES = [LIBRARY, CUDA_LIBRARY, DEEPSPEED_LIBRARY, *MPI_LIBRARIES]
OF_CUDA_LIBRARY = {"gw_cuda_device_new", "gw_cuda_device_free"}
PRIVATE = {"gw_private_error"}  # from one to the others, in a version of its own

# No thread, no signal handler, no exit, no output, no change of the environment.
FORBIDDEN = re.compile(
    r"(pthread_create|thrd_create|clone|fork|vfork|posix_spawn\w*|system|popen|exec\w+"
    r"|exit|_exit|_Exit|quick_exit|abort|__assert_fail|raise|kill|atexit|on_exit"
    r"|signal|sigaction|sigprocmask|pthread_sigmask"
    r"|(__)?v?f?printf(_chk)?|puts|fputs|putchar|fputc|putc|fwrite|perror|stdout|stderr|syslog"
    r"|setenv|putenv|unsetenv|clearenv|chdir|umask|setlocale|srand\w*)$")


def symbols(library, *flags):
    out = subprocess.run(["nm", "-D", *flags, library], capture_output=True, text=True,
                         check=True).stdout
    return [line.split()[-1] for line in out.splitlines() if line.strip()]


def exports(library):
    names = {s.split("@")[0] for s in symbols(library, "--defined-only")}
    return {s for s in names if not s.isupper() and not s.startswith("GRADWIRE_")}


def declared(header):
    text = (ROOT / "include/gradwire" / header).read_text()
    return set(re.findall(r"^GW_API\s[^;]*?\b(gw_\w+)\(", text, re.M))


def dynamic(library):
    return subprocess.run(["readelf", "-d", library], capture_output=True, text=True,
                          check=True).stdout


@pytest.fixture(params=LIBRARIES, ids=lambda path: path.name)
def library(request):
    if request.param == CUDA_LIBRARY and not CUDA_LIBRARY.exists():
        pytest.skip("libgradwire-cuda is not built: no CUDA headers")
    if request.param in MPI_LIBRARIES and not request.param.exists():
        pytest.skip(f"{request.param.name} is not built: that MPI is not installed")
    assert request.param.exists(), f"{request.param} was not built"
    return request.param


def test_exports_exactly_the_declared_calls(library):
    everything = declared("gradwire.h") | declared("cuda.h") | declared("launch.h")
    assert len(declared("gradwire.h")) > 40 and len(declared("cuda.h")) > 5
    assert OF_CUDA_LIBRARY < declared("cuda.h")
    if library == CUDA_LIBRARY:
        assert exports(library) == OF_CUDA_LIBRARY
    elif library == DEEPSPEED_LIBRARY:
        assert exports(library) == declared("deepspeed.h")
    elif library in MPI_LIBRARIES:
        assert exports(library) == declared("mpi.h") == {"gw_mpi_join"}
    else:
        assert exports(library) == everything - OF_CUDA_LIBRARY | PRIVATE


def test_every_export_has_a_version(library):
    names = symbols(library, "--defined-only")
    bare = [s for s in names if s.startswith("gw_") and "@@" not in s]
    assert not bare, bare
    of_private = {s for s in names if "@@GRADWIRE_PRIVATE_" in s}
    assert {s.split("@")[0] for s in of_private} == (PRIVATE if library == LIBRARY else set())


def test_soname_is_versioned():
    out = dynamic(LIBRARY)
    assert "[libgradwire.so.0]" in out
    assert "TEXTREL" not in out and "RPATH" not in out and "RUNPATH" not in out


def test_jansson_is_the_deepspeed_librarys_alone():
    """A training process without such a configuration neither loads nor depends on it."""
    assert "[libgradwire-deepspeed.so.0]" in dynamic(DEEPSPEED_LIBRARY)
    for library in LIBRARIES:
        if library.exists():
            assert ("[libjansson." in dynamic(library)) == (library == DEEPSPEED_LIBRARY)


def test_mpi_is_its_librarys_alone():
    for library in LIBRARIES:
        if library.exists():
            needed = [n for n in MPI_LIBRARIES.values() if n in dynamic(library)]
            assert needed == ([MPI_LIBRARIES[library]] if library in MPI_LIBRARIES else [])


def test_soname_of_the_cuda_library():
    if not CUDA_LIBRARY.exists():
        pytest.skip("libgradwire-cuda is not built: no CUDA headers")
    out = dynamic(CUDA_LIBRARY)
    assert "[libgradwire-cuda.so.0]" in out
    assert "TEXTREL" not in out


def test_no_cuda_library_is_linked(library):
    """The driver is the calling process's own: found when the first device is made."""
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic(library))
    assert not [n for n in needed if re.match(r"lib(cuda|nccl|nv)", n)], needed
    used = [s.split("@")[0] for s in symbols(library, "--undefined-only")]
    assert not [s for s in used if re.match(r"cu[A-Z]|cuda[A-Z]|nccl[A-Z]", s)]


def test_promises_that_symbols_can_show(library):
    used = sorted(s.split("@")[0] for s in symbols(library, "--undefined-only"))
    bad = [s for s in used if FORBIDDEN.match(s)]
    assert not bad, f"{library.name} calls {bad}"
