# SPDX-License-Identifier: Apache-2.0
"""Rules of the tree that a program can hold; numbers and reasons are CONTRIBUTING's.

Looks at the files git knows (a tarball: all but build/), so build output is never judged.
"""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
C_SUFFIXES = (".c", ".h")
CODE_SUFFIXES = C_SUFFIXES + (".py", ".sh", ".cmake", ".proto", ".def")
FILE_LINES, FUNCTION_LINES, COLUMNS = 900, 70, 100
FORBIDDEN = re.compile(r"(?<![\w.>])(strcpy|strcat|sprintf|vsprintf|atoi|atol|atoll|atof|gets"
                       r"|alloca|strtok|tmpnam|mktemp)\s*\(")
# Built in two parts: these lines are looked at too.
HOME_PATH = re.compile("/" + r"(home|Users)/\w+|" + "/" + r"root/\w|" + "/" + r"work/\w")


def files():
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], capture_output=True, check=True).stdout
        names = [n for n in listed.decode().split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")
                 if p.is_file() and not str(p.relative_to(ROOT)).startswith(("build", ".git/"))]
    return sorted(ROOT / n for n in names if (ROOT / n).is_file())


FILES = files()
CODE = [f for f in FILES if f.suffix in CODE_SUFFIXES or f.name in ("CMakeLists.txt", "run")]
C_FILES = [f for f in FILES if f.suffix in C_SUFFIXES]


def text(path):
    return path.read_text(encoding="utf-8")


def code_only(source):
    """C without comments, strings and character constants; lines keep their numbers."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        kept = "\n" * match.group().count("\n")
        return '""' if match.group()[0] == '"' else (kept or " ")

    return pattern.sub(blank, source)


def functions(source):
    """(name, first line, lines) of each function: a brace in column 1 opens it and closes it."""
    lines = code_only(source).splitlines()
    opened = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            before = " ".join(lines[max(0, number - 6):number - 1])
            name = re.findall(r"(\w+)\s*\(", before)
            opened = (name[-1] if name else "?", number)
        elif line.startswith("}") and opened:
            yield opened[0], opened[1], number - opened[1] + 1
            opened = None


def report(problems):
    assert not problems, "\n" + "\n".join(problems)


def name(path):
    return str(path.relative_to(ROOT))


def test_there_are_files():
    assert len(C_FILES) > 50


def test_licence_stands_first():
    report([f"{name(f)}: no SPDX line among the first two" for f in CODE
            if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text(f).splitlines()[:2])])


def test_files_begin_with_what_they_are():
    problems = []
    for f in C_FILES:
        head = text(f).splitlines()[1:4]
        if not any(line.startswith("/*") for line in head):
            problems.append(f"{name(f)}: no header comment below the SPDX line")
    report(problems)


def test_files_are_short():
    report([f"{name(f)}: {n} lines, more than {FILE_LINES}" for f in CODE
            if (n := len(text(f).splitlines())) > FILE_LINES])


def test_functions_fit_the_screen():
    report([f"{name(f)}:{line}: {function} has {lines} lines, more than {FUNCTION_LINES}"
            for f in C_FILES for function, line, lines in functions(text(f))
            if lines > FUNCTION_LINES])


def test_forbidden_calls():
    problems = []
    for f in C_FILES:
        for number, line in enumerate(code_only(text(f)).splitlines(), 1):
            for call in FORBIDDEN.findall(line):
                problems.append(f"{name(f)}:{number}: {call}()")
    report(problems)


def test_lines_fit():
    report([f"{name(f)}:{number}: {len(line)} columns, more than {COLUMNS}"
            for f in CODE for number, line in enumerate(text(f).splitlines(), 1)
            if len(line) > COLUMNS])


def test_white_space():
    problems = []
    for f in CODE:
        content = text(f)
        for number, line in enumerate(content.splitlines(), 1):
            if line != line.rstrip():
                problems.append(f"{name(f)}:{number}: white space at the end")
            if "\t" in line:
                problems.append(f"{name(f)}:{number}: a tab")
        if content and not content.endswith("\n"):
            problems.append(f"{name(f)}: no newline at the end")
    report(problems)


def test_no_path_of_one_machine():
    problems = []
    for f in FILES:
        if "tests/fuzz/corpus/" in str(f):
            continue  # inputs of parsers, not text
        try:
            lines = text(f).splitlines()
        except UnicodeDecodeError:
            problems.append(f"{name(f)}: no text")
            continue
        problems += [f"{name(f)}:{number}: {line.strip()[:80]}"
                     for number, line in enumerate(lines, 1) if HOME_PATH.search(line)]
    report(problems)


def test_functions_are_found():
    """The rule above looks at something: this tree's own files, with functions of known lengths."""
    source = ("int a(void)\n{\n    return 0; /* } */\n}\n\n"
              "static void\nb(int x)\n{\n    if (x) {\n    }\n}\n")
    assert list(functions(source)) == [("a", 2, 3), ("b", 8, 4)]


@pytest.mark.parametrize("line, bad", [
    ("strcpy(a, b);", True), ("my_strcpy(a, b);", False), ("x = atoi (s);", True),
    ("/* sprintf() */", False), ('"alloca("', False), ("snprintf(a, 1, b);", False)])
def test_forbidden_calls_are_found(line, bad):
    assert bool(FORBIDDEN.search(code_only(line))) == bad
