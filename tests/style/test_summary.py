# SPDX-License-Identifier: Apache-2.0
"""tests/summary.py on what CTest really writes: what failed is never counted as anything else."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])

CMOCKA = """\
[==========] tests: Running 4 test(s).
[ RUN      ] a
[       OK ] a
[  SKIPPED ] b
SKIP: needs root
[ RUN      ] c
[  FAILED  ] c
[==========] tests: 4 test(s) run.
[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] b
[  FAILED  ] tests: 1 test(s), listed below:
[  FAILED  ] c
"""
PYTEST = """\
<testsuites><testsuite>
<testcase classname="t" name="one"/>
<testcase classname="t" name="two"><failure message="no">x</failure></testcase>
<testcase classname="t" name="three"><skipped type="pytest.skip" message="no root"/></testcase>
<testcase classname="t" name="four"><error message="fixture">x</error></testcase>
</testsuite></testsuites>
"""
PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(sample NONE)
enable_testing()
add_test(NAME plain COMMAND sh -c "echo fine")
add_test(NAME code COMMAND sh -c "exit 3")
add_test(NAME skip COMMAND sh -c "echo 'SKIP: no device'; exit 77")
add_test(NAME silent COMMAND sh -c "exit 77")
add_test(NAME slow COMMAND sh -c "sleep 60")
add_test(NAME crash COMMAND sh -c "kill -SEGV $$")
add_test(NAME absent COMMAND /nonexistent/program)
add_test(NAME cmocka COMMAND sh -c "cat ${CMAKE_SOURCE_DIR}/cmocka; exit 1")
add_test(NAME cmocka_crash COMMAND sh -c "echo '[  PASSED  ] 7 test(s).'; exit 1")
add_test(NAME pytest COMMAND sh -c "exit 1")
add_test(NAME pytest_stuck COMMAND sh -c "sleep 60")
set_tests_properties(skip silent PROPERTIES SKIP_RETURN_CODE 77)
set_tests_properties(slow pytest_stuck PROPERTIES TIMEOUT 1)
"""


def summary(*args):
    done = subprocess.run([sys.executable, "-B", ROOT / "tests/summary.py", *args], text=True,
                          capture_output=True, timeout=60)
    return done.returncode, done.stdout.splitlines()


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    source = tmp_path_factory.mktemp("sample")
    (source / "CMakeLists.txt").write_text(PROJECT)
    (source / "cmocka").write_text(CMOCKA)
    build = source / "build"
    subprocess.run(["cmake", "-S", source, "-B", build], check=True, capture_output=True)
    (build / "junit").mkdir()
    (build / "junit/pytest.xml").write_text(PYTEST)
    (build / "junit/pytest_stuck.xml").write_text("<testsuites><testsuite>")
    subprocess.run(["ctest", "--test-dir", build, "--output-junit", "ctest.xml",
                    "--test-output-size-passed", "100000", "--test-output-size-failed", "100000"],
                   capture_output=True, timeout=120)
    return build


def test_every_way_to_end_is_told(build):
    code, lines = summary(f"x={build}")
    failed = {line.split("[x] ", 1)[1].split(" (")[0] for line in lines
              if line.startswith("failed:")}
    assert failed == {"code", "slow", "crash", "absent", "cmocka: c", "cmocka_crash",
                      "pytest: two", "pytest: four", "pytest_stuck"}
    reasons = {line.split(": ", 2)[2].split(" (")[0] for line in lines
               if line.startswith("skipped:")}
    assert reasons == {"no device", "no reason given", "needs root", "no root"}
    # plain; 2 of cmocka; 7 of a program that then failed all the same; 1 of pytest
    assert lines[-1] == "11 passed, 9 failed, 4 skipped"
    assert code == 1


def test_a_sanitizer_report_fails(build, tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/asan.1").write_text("==1==ERROR: LeakSanitizer\n")
    (tmp_path / "reports/asan.2").write_text("")
    (tmp_path / "reports/asan.3").write_text("==3==Unable to get registers from thread 2.\n")
    (tmp_path / "ctest.xml").write_text(
        '<testsuite><testcase name="a" status="run"><system-out/></testcase></testsuite>')
    code, lines = summary(f"x={tmp_path}")
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")


def test_good_runs_pass_and_none_fails(tmp_path):
    (tmp_path / "ctest.xml").write_text(
        '<testsuite><testcase name="a" status="run"><system-out/></testcase></testsuite>')
    assert summary(f"x={tmp_path}")[0] == 0
    code, lines = summary("--failed", "build of y", f"x={tmp_path}")
    assert (code, lines[-1]) == (1, "1 passed, 1 failed, 0 skipped")
    assert summary()[0] == 1
    assert summary(f"x={tmp_path / 'nothing'}")[0] == 1
    (tmp_path / "ctest.xml").write_text("<testsuite></testsuite>")
    assert summary(f"x={tmp_path}")[0] == 1


def seeded(name, *seeds, inside=""):
    told = "".join(f'<property name="seed" value="{seed}"/>' for seed in seeds)
    return f'<testcase name="{name}"><properties>{told}</properties>{inside}</testcase>'


def test_a_case_on_gpus_has_five_seeds(tmp_path):
    """Over all its parameters; of one that failed or was skipped it is known that some may lack."""
    (tmp_path / "junit").mkdir()
    skip = '<skipped type="pytest.skip" message="no"/>'
    (tmp_path / "junit/p.xml").write_text("<testsuites><testsuite>" + "".join([
        *(seeded(f"dealt[s0-{k}]", k) for k in range(5)), seeded("several", 1, 2, 3, 4, 5),
        *(seeded(f"few[s{k}]", k) for k in range(4)), *(seeded(f"same[s{k}]", 7) for k in range(5)),
        seeded("left_out[s0]", 1, inside=skip), "<testcase name='none'/>",
    ]) + "</testsuite></testsuites>")
    program = "".join(f"GPUs with seed {{}}\n[  PASSED  ] {k} test(s).\n" for k in range(1, 6))
    (tmp_path / "ctest.xml").write_text("<testsuite>" + "".join(
        f'<testcase name="{name}" status="run"><system-out>{text}</system-out></testcase>'
        for name, text in (("p", ""), ("c", program.format(*range(5))),
                           ("d", program.format(*[3] * 5)))) + "</testsuite>")
    code, lines = summary(f"x={tmp_path}")
    assert [line.split("[x] ")[1].split(" seeds")[0] for line in lines
            if line.startswith("failed:")] == ["p: few: 4", "p: same: 1", "d: 1"]
    # 16 of pytest's, 15 of each program's
    assert (code, lines[-1]) == (1, "46 passed, 3 failed, 1 skipped")
    assert any(line.startswith("cuda:    7 seeds run") for line in lines), lines


def test_tests_across_nodes_are_counted(tmp_path):
    (tmp_path / "junit").mkdir()
    (tmp_path / "junit/p.xml").write_text("<testsuites><testsuite>" + "".join(
        f'<testcase name="t{k}"><properties><property name="nodes" value="{count}"/></properties>'
        "</testcase>" for k, count in enumerate((3, 2, 2))) +
        '<testcase name="on_one"/></testsuite></testsuites>')
    (tmp_path / "ctest.xml").write_text(
        '<testsuite><testcase name="p" status="run"><system-out/></testcase></testsuite>')
    code, lines = summary(f"x={tmp_path}")
    assert (code, lines[-1]) == (0, "4 passed, 0 failed, 0 skipped")
    assert "nodes:   2 tests once more across 2, 1 tests once more across 3" in lines
