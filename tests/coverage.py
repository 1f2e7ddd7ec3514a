# SPDX-License-Identifier: Apache-2.0
"""Branch coverage of the pure parts, from what gcov tells of a build with GW_COVERAGE.

use: coverage.py BUILD_DIR [--least PERCENT] [--missing]

A branch counts once, however many programs ran it; branches of assertions (both ways of a check
that must hold) and generated code are left out. Prints a line per folder and the total; exit code
1 when the total is below --least. --missing: each line with a branch never taken.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("daemon/base", "daemon/core", "daemon/conf", "proto")
ASSERTIONS = ("assert(",)


def gcov(build):
    """One JSON document per object file that was run."""
    for folder in FOLDERS:
        for data in sorted((build / folder).rglob("*.gcda")):
            done = subprocess.run(["gcov", "--json-format", "--stdout", "-b", data.name],
                                  cwd=data.parent, capture_output=True, text=True, timeout=60,
                                  check=True)
            for line in done.stdout.splitlines():
                if line.startswith("{"):
                    yield json.loads(line)


def folder_of(path):
    """None: not ours, or generated."""
    try:
        name = path.resolve().relative_to(SOURCE)
    except ValueError:
        return None
    if name.suffix not in (".c", ".h") or name.name.endswith(".pb-c.c"):
        return None
    parent = str(name.parent)
    return parent if parent in FOLDERS else None


def branches(build):
    """{file: {(function, line, number): taken}}"""
    found = collections.defaultdict(dict)
    for document in gcov(build):
        start = pathlib.Path(document["current_working_directory"])
        for file in document["files"]:
            path = start / file["file"]
            if folder_of(path) is None:
                continue
            lines = path.read_text(encoding="utf-8").splitlines()
            for line in file["lines"]:
                if any(word in lines[line["line_number"] - 1] for word in ASSERTIONS):
                    continue
                for number, branch in enumerate(line["branches"]):
                    key = (line.get("function_name"), line["line_number"], number)
                    mine = found[path.resolve()]
                    mine[key] = mine.get(key, False) or branch["count"] > 0
    return found


def percent(taken, total):
    return 100 * taken / total if total else 100.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--least", type=float, default=95)
    parser.add_argument("--missing", action="store_true")
    args = parser.parse_args()
    sums = {folder: [0, 0] for folder in FOLDERS}
    for path, mine in sorted(branches(args.build).items()):
        at = sums[folder_of(path)]
        at[0] += sum(mine.values())
        at[1] += len(mine)
        missing = collections.Counter(line for (_, line, _), taken in mine.items() if not taken)
        for line, count in sorted(missing.items() if args.missing else ()):
            print(f"{path.relative_to(SOURCE)}:{line}: {count} branches never taken")
    taken, total = (sum(at[i] for at in sums.values()) for i in (0, 1))
    for folder, at in sums.items():
        print(f"branches: {folder:<12} {percent(*at):5.1f} %  {at[0]} of {at[1]}")
    print(f"branches: {'total':<12} {percent(taken, total):5.1f} %  {taken} of {total}")
    return 0 if total and percent(taken, total) >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
