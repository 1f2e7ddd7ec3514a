# SPDX-License-Identifier: Apache-2.0
"""The table of configuration keys, the sample, the manual pages, --help and the units agree.

ctest: label=style timeout=60
"""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, GRADWIRED, GWCTL

SOURCE = pathlib.Path(os.environ.get("GRADWIRE_SOURCE", pathlib.Path(__file__).parents[2]))
SAMPLE = SOURCE / "configs/gradwired.conf"
PAGES = sorted((SOURCE / "client/man").glob("*.[1578]"))


def output(*args):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=60,
                          check=True).stdout


def table():
    """{(section, key): (default, reload)} as gradwired itself tells it."""
    keys, section = {}, None
    for line in output(GRADWIRED, "--help").splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif match := re.fullmatch(r"  ([* ]) (\w+) = ?(.*)", line):
            keys[section, match[2]] = (match[3], match[1] == "*")
    assert len(keys) > 10
    return keys


def test_the_sample_lists_every_key_with_its_default():
    keys, section, comment = {}, None, []
    for line in SAMPLE.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif match := re.fullmatch(r"#(\w+) = ?(.*)", line):
            keys[section, match[1]] = (match[2], "(reload)" in " ".join(comment))
        comment = comment + [line] if line.startswith("# ") else []
    assert keys == table()


def test_the_sample_is_right_as_it_is_and_with_every_key_set(tmp_path):
    output(GRADWIRED, "--check-config", "--config", SAMPLE)
    full = tmp_path / "full.conf"
    full.write_text(re.sub(r"(?m)^#(?=\w+ =)", "", SAMPLE.read_text()))
    assert full.read_text() != SAMPLE.read_text()
    output(GRADWIRED, "--check-config", "--config", full)


def test_the_manual_of_the_configuration_lists_every_key_with_its_default():
    keys, section, last = {}, None, None
    for line in (SOURCE / "client/man/gradwired.conf.5").read_text().splitlines():
        if match := re.fullmatch(r"\.Ss \[(\w+)\]", line):
            section = match[1]
        elif match := re.fullmatch(r"\.It Cm (\w+) No =(?: Li (.*))?", line):
            last = (section, match[1])
            keys[last] = (match[2] or "", False)
        elif line == ".Em reload" and last in keys:
            keys[last] = (keys[last][0], True)
    assert keys == table()


@pytest.mark.parametrize("program,page", [(GRADWIRED, "gradwired.8"), (GWCTL, "gwctl.1")])
def test_manual_and_help_know_the_same_options(program, page):
    text = (SOURCE / "client/man" / page).read_text()
    described = set(re.findall(r"Fl -([a-z-]+)", text))
    helps = output(program, "--help")
    if program == GWCTL:
        helps += output(program, "plan", "--help") + output(program, "doctor", "--help")
    helped = set(re.findall(r"--([a-z-]+)", helps))
    assert described == helped


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_manual_pages_have_no_lint(page):
    mandoc = shutil.which("mandoc")
    if not mandoc:
        pytest.skip("mandoc is not installed")
    result = subprocess.run([mandoc, "-T", "lint", "-W", "warning", str(page)],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


def test_the_unit_is_what_the_service_needs():
    unit = (BUILD / "systemd/gradwired.service").read_text()
    settings = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit))
    wanted = dict(Type="notify", KillMode="process", OOMPolicy="continue",
                  RuntimeDirectory="gradwire", RuntimeDirectoryPreserve="yes",
                  LimitMEMLOCK="infinity")
    assert {k: settings.get(k) for k in wanted} == wanted
    assert settings["ExecStart"].endswith("/sbin/gradwired")
    for breaks in ("PrivateUsers", "PrivateDevices", "ProtectClock"):
        assert breaks not in settings


@pytest.mark.parametrize("unit", ["gradwired.service", "gradwired.socket"])
def test_systemd_finds_no_fault_with_the_units(tmp_path, unit):
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("systemd-analyze is not installed")
    # The program and the manual pages need not be installed here.
    text = (BUILD / "systemd/gradwired.service").read_text()
    (tmp_path / "gradwired.service").write_text(re.sub(
        r"(?m)^(Documentation=.*|ExecStart=.*)$",
        lambda m: f"ExecStart={GRADWIRED}" if m[0].startswith("Exec") else "", text))
    socket = (SOURCE / "systemd/gradwired.socket").read_text()
    (tmp_path / "gradwired.socket").write_text(re.sub(r"(?m)^Documentation=.*$", "", socket))
    result = subprocess.run([analyze, "verify", str(tmp_path / unit)], capture_output=True,
                            text=True, timeout=60,
                            env=dict(os.environ, SYSTEMD_UNIT_PATH=f"{tmp_path}:"))
    complaints = [line for line in (result.stdout + result.stderr).splitlines()
                  if "gradwired" in line]
    assert complaints == []
