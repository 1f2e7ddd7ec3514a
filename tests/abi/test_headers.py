# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, as strict C99 and as C++, with warnings as errors."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
HEADERS = sorted(p.relative_to(ROOT / "include") for p in (ROOT / "include").rglob("*.h"))
LANGUAGES = [
    ("cc", "c", ["-std=c99", "-Wstrict-prototypes", "-Wmissing-prototypes"]),
    ("g++", "c++", ["-std=c++11", "-Wold-style-cast"]),
    ("g++", "c++", ["-std=c++20"]),
]
WARNINGS = ["-pedantic-errors", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]


def compile_text(source, compiler, language, flags, *more):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    return subprocess.run([compiler, "-x", language, *flags, *WARNINGS, "-fsyntax-only",
                           "-I", ROOT / "include", *more, "-"],
                          input=source, text=True, capture_output=True, timeout=60)


def test_there_are_public_headers():
    assert {str(h) for h in HEADERS} == {"gradwire/gradwire.h", "gradwire/cuda.h",
                                         "gradwire/deepspeed.h", "gradwire/errors.h",
                                         "gradwire/launch.h", "gradwire/mpi.h"}


def mpi_includes():
    """Where each installed MPI has its header, as compiler options."""
    for name in ("mpich", "openmpi"):
        if shutil.which(f"mpicc.{name}"):
            words = subprocess.run([f"mpicc.{name}", "-show"], capture_output=True, text=True,
                                   check=True).stdout.split()
            yield [option for word in words if word.startswith("-I")
                   for option in ("-isystem", word[2:])]


@pytest.mark.parametrize("compiler, language, flags", LANGUAGES)
@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_header_compiles_alone(header, compiler, language, flags):
    of_mpi = header.name == "mpi.h"
    places = list(mpi_includes()) if of_mpi else [[]]
    if not places:
        pytest.skip("no MPI is installed")
    for more in places:
        # Open MPI's header keeps its C++ classes out only when it is told to.
        more = [*more, "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"] if of_mpi else more
        done = compile_text(f"#include <{header}>\n#include <{header}>\nint main(void);\n"
                            "int main(void) { return 0; }\n", compiler, language, flags, *more)
        assert done.returncode == 0, done.stderr


def test_headers_need_no_project_macro():
    """No _GNU_SOURCE, no include of ours but <gradwire/...>, and none of CUDA's."""
    for header in HEADERS:
        for line in (ROOT / "include" / header).read_text().splitlines():
            if line.startswith("#include"):
                assert line in ("#include <stddef.h>", "#include <stdint.h>",
                                "#include <gradwire/errors.h>",
                                "#include <gradwire/gradwire.h>") or \
                    (line, header.name) == ("#include <mpi.h>", "mpi.h"), f"{header}: {line}"


def test_struct_size_comes_first():
    """Option structs can grow: their first field says how large the caller's is."""
    source = "#include <gradwire/deepspeed.h>\n" + "".join(
        f"typedef char c_{s}[offsetof(struct {s}, struct_size) == 0 ? 1 : -1];\n"
        for s in ("gw_job_options", "gw_zero_options", "gw_op_options", "gw_stats",
                  "gw_loss_scale_options", "gw_state_options", "gw_deepspeed_given"))
    done = compile_text(source, "cc", "c", ["-std=c99"])
    assert done.returncode == 0, done.stderr
