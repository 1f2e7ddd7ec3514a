# SPDX-License-Identifier: Apache-2.0
"""libgradwire.so exports what its header declares, and cannot do what it promised not to."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
LIBRARY = pathlib.Path(os.environ["GRADWIRE_BUILD"]) / "client/lib/libgradwire.so"

# No thread, no signal handler, no exit, no output, no change of the environment.
FORBIDDEN = re.compile(
    r"(pthread_create|thrd_create|clone|fork|vfork|posix_spawn\w*|system|popen|exec\w+"
    r"|exit|_exit|_Exit|quick_exit|abort|__assert_fail|raise|kill|atexit|on_exit"
    r"|signal|sigaction|sigprocmask|pthread_sigmask"
    r"|(__)?v?f?printf(_chk)?|puts|fputs|putchar|fputc|putc|fwrite|perror|stdout|stderr|syslog"
    r"|setenv|putenv|unsetenv|clearenv|chdir|umask|setlocale|srand\w*)$")


def symbols(*flags):
    out = subprocess.run(["nm", "-D", *flags, LIBRARY], capture_output=True, text=True,
                         check=True).stdout
    return [line.split()[-1] for line in out.splitlines() if line.strip()]


@pytest.fixture(autouse=True)
def built():
    assert LIBRARY.exists(), f"{LIBRARY} was not built"


def test_exports_exactly_the_declared_calls():
    header = (ROOT / "include/gradwire/gradwire.h").read_text()
    declared = set(re.findall(r"^GW_API\s[^;]*?\b(gw_\w+)\(", header, re.M))
    exported = {s.split("@")[0] for s in symbols("--defined-only")}
    versions = {s for s in exported if s.isupper() or s.startswith("LIBGRADWIRE")}
    assert len(declared) > 40
    assert exported - versions == declared


def test_every_export_has_a_version():
    bare = [s for s in symbols("--defined-only") if s.startswith("gw_") and "@@" not in s]
    assert not bare, bare


def test_soname_is_versioned():
    out = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True,
                         check=True).stdout
    assert "[libgradwire.so.0]" in out
    assert "TEXTREL" not in out and "RPATH" not in out and "RUNPATH" not in out


def test_promises_that_symbols_can_show():
    used = sorted(s.split("@")[0] for s in symbols("--undefined-only"))
    bad = [s for s in used if FORBIDDEN.match(s)]
    assert not bad, f"libgradwire calls {bad}"
