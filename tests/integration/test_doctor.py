# SPDX-License-Identifier: Apache-2.0
"""gwctl doctor: its points beside what /proc and the shell say, and plug-ins that misbehave.
ctest: timeout=300
"""
import ctypes
import json
import os
import pathlib
import resource
import subprocess
import textwrap

import pytest

from conftest import GWCTL, SLOWER

EX_USAGE, EX_UNAVAILABLE = 64, 69
VERDICTS = {"good", "note", "warn", "bad"}

PLUGIN = """
#include <signal.h>
#include <unistd.h>
#include "daemon/device/plugin.h"
static void doctor(plugin_point *point, void *user)
{{
    {body}
}}
__attribute__((visibility("default"))) const struct plugin gradwire_plugin = {{
    .version = {version}, .device = GW_DEVICE_CUDA, .name = "cuda", .doctor = doctor}};
"""


def run(*args, code=0, **extra):
    done = subprocess.run([str(GWCTL), "doctor", *map(str, args)], capture_output=True, text=True,
                          timeout=120 * SLOWER, **extra)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def points(*args, code=0, **extra):
    report = json.loads(run("--json", *args, code=code, **extra).stdout)
    assert report["schema"] == 1
    assert report["good"] == (code == 0)
    names = [point["point"] for point in report["points"]]
    assert len(names) == len(set(names)), names
    assert {point["verdict"] for point in report["points"]} <= VERDICTS
    return {point["point"]: point for point in report["points"]}


@pytest.fixture
def plugin(tmp_path):
    """plugin(body, version): a directory with a plug-in whose doctor does that."""
    def make(body, version="GW_PLUGIN_VERSION"):
        source = os.environ["GRADWIRE_SOURCE"]
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # a sanitizer is for ours
        (tmp_path / "p.c").write_text(PLUGIN.format(body=textwrap.indent(body, "    "),
                                                    version=version))
        subprocess.run(["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-I", source,
                        "-I", f"{source}/include", "-o", str(tmp_path / "gradwire-cuda.so"),
                        str(tmp_path / "p.c")], check=True, timeout=60, env=env)
        return tmp_path
    return make


def test_says_what_the_system_says(daemon, tmp_path):
    there = points("--runtime-dir", daemon.directory, "--plugins", tmp_path)
    assert there["processors"]["found"].startswith(f"{len(os.sched_getaffinity(0))} of ")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert there["open files"]["found"] == f"at most {limit}"
    assert there["gradwired"]["verdict"] == "good"
    assert there["GPUs"]["verdict"] == "note"
    assert "host jobs" in there["GPUs"]["found"]


def first_line(path):
    try:
        return pathlib.Path(path).read_text().split("\n")[0].strip("\0")
    except OSError:
        return ""


def cgroup_limits(name, value):
    """Of this process' cgroup of version 2 and all above it."""
    own = first_line("/proc/self/cgroup")
    if not own.startswith("0::/"):
        return []
    place = pathlib.PurePath(own[3:])
    lines = [first_line(f"/sys/fs/cgroup{p}/{name}") for p in (place, *place.parents)]
    return [value(line) for line in lines if line and not line.startswith("max")]


def size(text):
    number, unit = text.split()
    return float(number) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit)


def test_memory_and_processors_are_those_of_the_system(tmp_path):
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path)
    info = dict(row.split(":") for row in pathlib.Path("/proc/meminfo").read_text().splitlines())
    total, swap = (int(info[name].split()[0]) for name in ("MemTotal", "SwapTotal"))
    memory = found["memory"]["found"]
    assert size(memory.split(",")[0]) == pytest.approx(1024 * total, rel=0.05)  # one decimal
    least = cgroup_limits("memory.max", int)
    assert found["memory"]["verdict"] == ("note" if least else "good")
    if least:
        limit = memory.split("limited to ")[1].removesuffix(" by the cgroup")
        assert size(limit) == pytest.approx(min(least), rel=0.05)
    assert ("swap" in found) == (swap > 0)
    least = cgroup_limits("cpu.max", lambda line: int(line.split()[0]) / int(line.split()[1]))
    processors = found["processors"]
    text = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable"
    if least:
        text += f", limited to {min(least):.1f} by the cgroup"
    assert processors["found"] == text
    few = least or len(os.sched_getaffinity(0)) < 2
    assert processors["verdict"] == ("warn" if few else "good")


def test_limits_and_security_are_those_of_the_system(tmp_path):
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path)
    hard = next(row for row in pathlib.Path("/proc/self/limits").read_text().splitlines()
                if row.startswith("Max locked memory")).split()[4]
    locked = found["locked memory"]
    if hard == "unlimited":
        assert (locked["verdict"], locked["found"]) == ("good", "no limit")
    else:
        assert (locked["verdict"], locked["found"]) == ("note", f"at most {int(hard) // 1024} KiB")
    setting = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    pages = found["large pages"]
    off = not setting or "[never]" in setting or "[deny]" in setting
    assert pages["verdict"] == ("note" if off else "good") and setting in pages["found"]
    enforces, label = (first_line(path) for path in ("/sys/fs/selinux/enforce",
                                                     "/proc/self/attr/current"))
    says = {"1": "SELinux enforces", "0": "SELinux is permissive"}.get(
        enforces, "none active" if label in ("", "unconfined") else "AppArmor confines")
    assert found["security modules"]["found"].startswith(says)
    log = ctypes.create_string_buffer(1 << 20)
    readable = ctypes.CDLL(None).klogctl(3, log, len(log)) >= 0  # syslog(2): read all
    assert ("may not be read" in found["security modules"]["found"]) == (not readable)


def test_a_container_is_told(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "KUBERNETES_SERVICE_HOST"}
    files = ("/.dockerenv", "/run/.containerenv")
    inside = any(map(os.path.exists, files)) or first_line("/run/systemd/container") != ""
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path, env=env)
    assert ("container" in found) == inside
    env["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path, env=env)["container"]
    assert found["verdict"] == "note" and "/run/gradwire" in found["advice"]


@pytest.fixture(scope="module", name="preload")
def preload_elsewhere(tmp_path_factory):
    """What LD_PRELOAD must be for gwctl to see another node (doctor/elsewhere.c)."""
    ours = os.environ.get("LD_PRELOAD")  # a sanitizer's, which comes first
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    library = tmp_path_factory.mktemp("elsewhere") / "elsewhere.so"
    source = pathlib.Path(__file__).parent / "doctor/elsewhere.c"
    subprocess.run(["cc", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
                    "-o", library, source], check=True, timeout=60, env=env)
    return f"{ours}:{library}" if ours else str(library)


SHMEM = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
SELINUX, APPARMOR = "/sys/fs/selinux/enforce", "/proc/self/attr/current"
CGROUP = {"/proc/self/cgroup": "0::/a.slice/b.scope"}
DENIED = ('audit: apparmor="DENIED" operation="open" profile="gradwired" name="/dev/nvidia0"\n'
          'audit: apparmor="DENIED" operation="open" profile="cupsd"\n'
          'audit: avc:  denied  { map } for  comm="gradwire-engine"\n')


@pytest.mark.parametrize("files, env, point, verdict, says, advice", [
    (CGROUP | {"/sys/fs/cgroup/a.slice/b.scope/memory.max": str(3 << 30)}, {},
     "memory", "note", "limited to 3.0 GiB by the cgroup", "gwctl plan"),
    (CGROUP | {"/sys/fs/cgroup/a.slice/b.scope/memory.max": "max",
               "/sys/fs/cgroup/a.slice/memory.max": str(5 << 20)}, {},
     "memory", "note", "limited to 5.0 MiB by the cgroup", "gwctl plan"),
    (CGROUP | {"/sys/fs/cgroup/a.slice/b.scope/cpu.max": "350000 100000",
               "/sys/fs/cgroup/a.slice/cpu.max": "60000 40000",
               "/sys/fs/cgroup/cpu.max": "max 100000"}, {},
     "processors", "warn", "limited to 1.5 by the cgroup", "CPUQuota="),
    ({SHMEM: "always within_size advise [never] deny force"}, {},
     "large pages", "note", "[never]", "echo advise"),
    ({SHMEM: "always within_size advise never [deny] force"}, {},
     "large pages", "note", "[deny]", "echo advise"),
    ({SHMEM: "always within_size [advise] never deny force"}, {},
     "large pages", "good", "[advise]", ""),
    ({SHMEM: ""}, {}, "large pages", "note", "none for memfds", ""),
    ({SELINUX: "1"}, {"ELSEWHERE_LOG": ""},
     "security modules", "good", "SELinux enforces; no denial", ""),
    ({SELINUX: "0"}, {"ELSEWHERE_LOG": ""},
     "security modules", "good", "SELinux is permissive; no denial", ""),
    ({SELINUX: "", APPARMOR: "docker-default (enforce)"}, {"ELSEWHERE_LOG": ""},
     "security modules", "good", "AppArmor confines this process; no denial", ""),
    ({SELINUX: "", APPARMOR: "unconfined"}, {"ELSEWHERE_LOG": DENIED},
     "security modules", "bad", "none active; 2 denials name gradwire", "dmesg"),
    ({}, {"ELSEWHERE_NO_MEMFD": "1"},
     "shared memory", "bad", "Operation not permitted", "seccomp"),
    # 2 * 64 MiB in 10 ms, the best of copies of 20, 10 and 30: every third call ends one.
    ({}, {"ELSEWHERE_TICKS": "30 10 20 40"}, "memory bandwidth", "good", "13.4 GB/s", ""),
])
def test_verdicts_on_another_node(preload, tmp_path, files, env, point, verdict, says, advice):
    here = {"LD_PRELOAD": preload, "ELSEWHERE_ROOT": str(tmp_path), "ELSEWHERE_TICKS": "100"}
    for path, text in files.items():
        there = tmp_path / path[1:]
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text + "\n" if text else "")
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path,
                   code=EX_UNAVAILABLE if verdict == "bad" else 0,
                   env=os.environ | here | env)[point]
    assert found["verdict"] == verdict and says in found["found"], found
    assert advice in found["advice"] and bool(advice) == bool(found["advice"]), found


def test_little_locked_memory_is_noted(tmp_path):
    def lower():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))

    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path,
                   preexec_fn=lower)["locked memory"]
    assert (found["verdict"], found["found"]) == ("note", "at most 64 KiB")
    assert "LimitMEMLOCK=infinity" in found["advice"]


def test_text_has_a_line_per_point(tmp_path):
    text = run("--runtime-dir", tmp_path, "--plugins", tmp_path).stdout.splitlines()
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path)
    assert [line[6:24].strip() for line in text if line[:4].strip()] == list(found)
    advice = [line.split("> ", 1)[1] for line in text if not line[:4].strip()]
    assert advice == [point["advice"] for point in found.values() if point["advice"]]


def test_few_descriptors_are_a_warning(tmp_path):
    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path, preexec_fn=lower)
    assert found["open files"] == {"point": "open files", "verdict": "warn",
                                   "found": "at most 256",
                                   "advice": found["open files"]["advice"]}
    assert "65536" in found["open files"]["advice"]


def test_no_gradwired_says_how_to_start_it(tmp_path):
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path)["gradwired"]
    assert found["verdict"] == "warn"
    assert str(tmp_path) in found["found"] and "gradwired --foreground" in found["advice"]


def test_points_of_the_plugin(plugin, tmp_path):
    where = plugin('point(user, "driver", PLUGIN_GOOD, "580.1", NULL);\n'
                   'point(user, "MPS", PLUGIN_WARN, "off", "start it");')
    found = points("--runtime-dir", tmp_path, "--plugins", where)
    assert found["driver"] == {"point": "driver", "verdict": "good", "found": "580.1",
                               "advice": ""}
    assert found["MPS"]["advice"] == "start it"
    assert found["plug-in"]["verdict"] == "good"
    assert found["plug-in"]["found"] == str(where / "gradwire-cuda.so")


def pci_gpus():
    """As lspci finds them: NVIDIA's, of class display controller."""
    def text(path):
        return path.read_text().strip()

    return sum(text(device / "vendor") == "0x10de" and text(device / "class").startswith("0x03")
               for device in pathlib.Path("/sys/bus/pci/devices").glob("*"))


@pytest.mark.parametrize("there", [True, False])
def test_a_node_without_gpus_is_well(plugin, tmp_path, there):
    """With a plug-in that has only a note on GPUs, or without one; GPUs that lie idle are told."""
    where = plugin('point(user, "GPUs", PLUGIN_NOTE, "no driver: host jobs", "a driver");')
    if not there:
        (where / "gradwire-cuda.so").unlink()
    found = points("--runtime-dir", tmp_path, "--plugins", where)
    assert found["GPUs"]["verdict"] == "note" and "host jobs" in found["GPUs"]["found"]
    assert ("plug-in" in found) == there
    count = pci_gpus()
    assert ("GPUs on PCI" in found) == (count > 0)
    if count:
        assert found["GPUs on PCI"]["verdict"] == "warn"
        assert found["GPUs on PCI"]["found"].startswith(f"{count} of NVIDIA")


@pytest.mark.parametrize("body, version, says", [
    ('point(user, "driver", PLUGIN_BAD, "too old", "newer");', "GW_PLUGIN_VERSION", "too old"),
    ("_exit(0);", "7u", "another release"),
    ("kill(getpid(), SIGKILL);", "GW_PLUGIN_VERSION", "signal 9"),
    ("_exit(3);", "GW_PLUGIN_VERSION", "exit code 3"),
])
def test_bad_points_end_with_69(plugin, tmp_path, body, version, says):
    found = points("--runtime-dir", tmp_path, "--plugins", plugin(body, version),
                   code=EX_UNAVAILABLE)
    bad = [point for point in found.values() if point["verdict"] == "bad"]
    assert len(bad) == 1 and says in bad[0]["found"], bad


@pytest.mark.parametrize("library, call, says", [
    ("libnccl.so.99", "ncclGetVersion", "NCCL 2.28 or newer (libnccl.so.2)"),
    ("libcudart.so.99", "cudaGetDevice", "CUDA 13 runtime (libcudart.so.13)"),
    ("libelse.so.1", "else_call", "install what it names"),
])
@pytest.mark.parametrize("gone", ["library", "symbol"])
def test_what_a_plugin_lacks_is_named(tmp_path, library, call, says, gone):
    """A plug-in that cannot be loaded is bad, GPUs or none; with what to install."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # a sanitizer is for ours

    def build(out, text, *args):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", out, "-x", "c", "-", "-x", "none", *args],
                       input=text, text=True, check=True, timeout=60, env=env, cwd=tmp_path)

    build(library, f"void {call}(void) {{ }}", f"-Wl,-soname,{library}")
    build("gradwire-cuda.so", f"void {call}(void); void go(void) {{ {call}(); }}",
          f"./{library}", f"-Wl,-rpath,{tmp_path}")
    if gone == "symbol":
        build(library, "", f"-Wl,-soname,{library}")
    else:
        (tmp_path / library).unlink()
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path, code=EX_UNAVAILABLE)
    point = found["plug-in"]
    assert point["verdict"] == "bad" and says in point["advice"], point
    assert (call if gone == "symbol" else library) in point["found"]


def test_file_that_is_no_plugin(tmp_path):
    (tmp_path / "gradwire-cuda.so").write_text("no library")
    found = points("--runtime-dir", tmp_path, "--plugins", tmp_path, code=EX_UNAVAILABLE)
    assert "gradwire-cuda.so" in found["plug-in"]["found"]


def test_wrong_use():
    assert "see gwctl doctor --help" in run("more", code=EX_USAGE).stderr
    run("--nothing", code=EX_USAGE)
    assert "--plugins" in run("--help").stdout
