# SPDX-License-Identifier: Apache-2.0
"""The pure parts are pure: their undefined symbols, their includes, and who may include whom."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
BUILD = pathlib.Path(os.environ["GRADWIRE_BUILD"])
PURE = dict(line.split(" ", 1) for line in (BUILD / "tests/pure.txt").read_text().splitlines())

# Memory, strings, formatting into buffers, sorting, arithmetic. Nothing that knows the outside.
LIBC = set("""
malloc calloc realloc free memcpy memmove memset memcmp memchr memrchr explicit_bzero
strlen strnlen strcmp strncmp strcasecmp strncasecmp strchr strrchr strspn strcspn strstr
snprintf vsnprintf qsort bsearch strtoul strtoull strtol strtoll strtod
sqrt sqrtf fabs floor ceil ldexp frexp __assert_fail
__ctype_b_loc __ctype_tolower_loc tolower toupper isspace
__stack_chk_fail _GLOBAL_OFFSET_TABLE_ __popcountdi2
""".split())
ALSO = {"gw_proto": re.compile(r"protobuf_c_\w+$"), "gw_conf": re.compile(r"ini_parse\w*$"),
        "gw_conf_json": re.compile(r"json_\w+$|jsonp_\w+$")}
# In libgradwire too: what the library promises, its parts keep.
NO_ASSERT = {"gw_base", "gw_proto"}

HEADERS = {"stddef.h", "stdint.h", "stdbool.h", "stdarg.h", "stdlib.h", "stdio.h", "string.h",
           "strings.h", "limits.h", "math.h", "float.h", "inttypes.h", "assert.h", "ctype.h"}
# directory -> what its files may include
LAYERS = {
    "daemon/base": ("gradwire/errors.h", "proto/limits.h", "daemon/base/"),
    "proto": ("gradwire/", "daemon/base/", "proto/"),
    "daemon/core": ("gradwire/", "daemon/base/", "proto/", "daemon/core/"),
    "daemon/conf": ("gradwire/", "daemon/base/", "daemon/conf/"),
}
SYSTEM = {"proto": {"stdatomic.h"}, "daemon/conf": {"ini.h", "jansson.h"}}


def undefined(archive):
    """Symbols that the archive's members need and do not give each other."""
    out = subprocess.run(["nm", "-P", archive], capture_output=True, text=True, check=True).stdout
    wanted, given = set(), set()
    for line in out.splitlines():
        words = line.split()
        if len(words) < 2 or words[0].endswith(":"):
            continue
        (wanted if words[1] in "Uw" else given).add(words[0])
    return wanted - given, given


def plain(symbol):
    """memcpy of __memcpy_chk (fortified) and strtoul of __isoc23_strtoul."""
    match = re.fullmatch(r"__(?:(\w+)_chk|isoc\d\d_(\w+))", symbol)
    return (match.group(1) or match.group(2)) if match else symbol


def test_the_pure_parts_are_known():
    assert set(PURE) >= {"gw_base", "gw_proto", "gw_core", "gw_conf", "gw_conf_json"}


@pytest.mark.parametrize("library", sorted(PURE))
def test_undefined_symbols_are_allowed(library):
    ours = set().union(*(undefined(archive)[1] for archive in PURE.values()))
    wanted, _ = undefined(PURE[library])
    strange = sorted(s for s in wanted - ours if plain(s) not in LIBC
                     and not (library in ALSO and ALSO[library].match(s)))
    if library in NO_ASSERT and "__assert_fail" in wanted:
        strange.append("__assert_fail")
    assert not strange, f"{library} uses {strange}"


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1) == "<", match.group(2)


def sources(directory):
    return sorted(p for p in (ROOT / directory).rglob("*") if p.suffix in (".c", ".h"))


@pytest.mark.parametrize("directory", sorted(LAYERS))
def test_pure_sources_include_only_pure_things(directory):
    problems = []
    for path in sources(directory):
        for number, angle, name in includes(path):
            if angle and "/" not in name:
                good = name in HEADERS | SYSTEM.get(directory, set())
            else:
                good = name.startswith(LAYERS[directory])
            if name == "gradwire/v1/control.pb-c.h":
                good = path.parent.name == "proto" and path.name.startswith("wire")
            if not good:
                problems.append(f"{path.relative_to(ROOT)}:{number}: {name}")
    assert not problems, "\n".join(problems)


def check_own_includes(directory, allowed):
    problems = [f"{path.relative_to(ROOT)}:{number}: {name}"
                for path in sources(directory) for number, _, name in includes(path)
                if name.split("/")[0] in ("daemon", "client", "proto", "gradwire", "tests")
                and not name.startswith(allowed)]
    assert not problems, "\n".join(problems)


def test_the_library_includes_no_daemon():
    assert sources("client/lib"), "client/lib is missing"
    check_own_includes("client/lib", ("gradwire/", "proto/", "daemon/base/", "client/lib/"))


def test_the_cuda_library_knows_one_table_of_the_library():
    assert sources("client/cuda"), "client/cuda is missing"
    check_own_includes("client/cuda", ("gradwire/", "client/lib/device.h", "client/cuda/"))


def test_the_mpi_library_knows_the_public_headers():
    assert sources("client/mpi"), "client/mpi is missing"
    check_own_includes("client/mpi", ("gradwire/", "client/lib/device.h"))


def test_the_deepspeed_library_includes_the_parser():
    assert sources("client/deepspeed"), "client/deepspeed is missing"
    check_own_includes("client/deepspeed", ("gradwire/", "client/lib/device.h", "daemon/base/",
                                            "daemon/conf/deepspeed.h"))


def test_the_tool_includes_little_of_the_daemon():
    check_own_includes("client/ctl", ("gradwire/", "proto/", "daemon/base/", "client/ctl/",
                                      "daemon/core/layout.h", "daemon/core/plan.h",
                                      "daemon/conf/deepspeed.h", "daemon/conf/model.h",
                                      "daemon/device/plugin.h"))


def test_examples_use_the_public_header_alone():
    check_own_includes("client/examples", ("gradwire/", "client/examples/"))


def test_the_daemon_includes_no_client():
    check_own_includes("daemon", ("gradwire/", "proto/", "daemon/"))


def test_only_wire_knows_the_generated_code():
    users = {str(path.relative_to(ROOT)) for top in ("daemon", "client", "proto", "tests")
             for path in sources(top) for _, _, name in includes(path) if name.endswith(".pb-c.h")}
    assert users and all(user.startswith("proto/wire") for user in users), users
