# SPDX-License-Identifier: Apache-2.0
"""Adds up what CTest ran, and looks inside: pytest's and cmocka's own tests count one by one.

use: summary.py [--failed TEXT]... [--skipped TEXT]... NAME=BUILD_DIR...

Per build: BUILD_DIR/ctest.xml (ctest --output-junit), BUILD_DIR/junit/<test>.xml (pytest), and
BUILD_DIR/reports/ (sanitizers; any file there is a failure). The last line is the total alone,
"N passed, N failed, N skipped"; the reason of each skip stands before it. Exit code 1 when
something failed or nothing ran.
"""
import argparse
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

CMOCKA = {word: re.compile(rf"^\[\s*{word}\s*\] (?:\S+: )?(\d+) test\(s\)", re.M)
          for word in ("PASSED", "FAILED", "SKIPPED")}
# All that LeakSanitizer says of a process that was killed while it looked: tests kill at any time.
KILLED = re.compile(r"^==\d+==Unable to get registers from thread \d+\.$", re.M)
SKIP_LINE = re.compile(r"^\s*SKIP: *(.+)$", re.M)


# Properties that tests record, and what they count: different values each.
TOLD = {"seed": "seeds run on doubles of GPUs", "edge_dropped": "edges dropped there and caught",
        "fault_caught": "faults planted or injected there and caught"}
SEEDS_LEAST = 5  # of every test function that ran on doubles of GPUs, over all its parameters
SEED_LINE = re.compile(r"^GPUs with seed (\d+)$", re.M)  # of C programs


class Total:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []
        self.told = {name: set() for name in TOLD}
        self.nodes = collections.Counter()  # tests whose ranks were on so many nodes

    def check_seeds(self, seeds):
        """seeds: set of them, by test function. Of one that failed or was skipped some may lack."""
        unfinished = [what + ":" for what in self.failed + [what for what, _ in self.skipped]]
        for name, values in seeds.items():
            self.told["seed"] |= values
            if len(values) < SEEDS_LEAST and not any(what.startswith((name + "[", name + ":"))
                                                     for what in unfinished):
                self.failed.append(f"{name}: {len(values)} seeds of the doubles of GPUs, and "
                                   f"{SEEDS_LEAST} are the least")

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.nodes += other.nodes
        for name, values in other.told.items():
            self.told[name] |= values

    def __str__(self):
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def of_pytest(path, name):
    total, seeds = Total(), {}
    for case in ET.parse(path).iter("testcase"):
        full = f"{name}: {case.get('name')}"
        for told in case.iter("property"):
            if told.get("name") == "seed":
                seeds.setdefault(full.split("[")[0], set()).add(told.get("value"))
            elif told.get("name") == "nodes":
                total.nodes[int(told.get("value"))] += 1
            elif told.get("name") in TOLD:
                total.told[told.get("name")].add(told.get("value"))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            total.failed.append(full)
        elif skip is None:
            total.passed += 1
        elif skip.get("type") == "pytest.xfail":
            total.passed += 1
        else:
            total.skipped.append((full, skip.get("message") or "no reason given"))
    total.check_seeds(seeds)
    return total


def of_cmocka(output, name):
    """None when the output is no cmocka program's. One may run its tests several times."""
    counts = {word: pattern.findall(output) for word, pattern in CMOCKA.items()}
    if not counts["PASSED"] and not counts["FAILED"]:
        return None
    number = {word: sum(map(int, found)) for word, found in counts.items()}
    names = re.findall(r"^\[\s*FAILED\s*\] (?!.*test\(s\))(\S+)", output, re.M)
    reasons = SKIP_LINE.findall(output)
    total = Total()
    total.passed = number["PASSED"]
    total.failed = [f"{name}: {n}" for n in dict.fromkeys(names)]
    total.failed += [name] * (number["FAILED"] - len(total.failed))
    for k in range(number["SKIPPED"]):
        total.skipped.append((name, reasons[k] if k < len(reasons) else "no reason given"))
    seeds = set(SEED_LINE.findall(output))
    total.check_seeds({name: seeds} if seeds else {})
    return total


def of_case(case, junit):
    """One CTest test: its own tests if it tells them, else itself."""
    name, status = case.get("name"), case.get("status")
    output = case.findtext("system-out") or ""
    inside = None
    if (junit / f"{name}.xml").exists():
        try:
            inside = of_pytest(junit / f"{name}.xml", name)
        except ET.ParseError:  # killed while writing
            inside = None
    elif status != "notrun":
        inside = of_cmocka(output, name)
    total = inside or Total()
    if status == "run":
        if inside is None:
            total.passed = 1
    elif status == "notrun":
        skip = case.find("skipped")
        reason = SKIP_LINE.search(output)
        message = skip.get("message") if skip is not None else "did not run"
        if skip is not None and "SKIP_RETURN_CODE" in message:
            total.skipped.append((name, reason.group(1) if reason else "no reason given"))
        elif skip is not None and "SKIP_REGULAR" in message:
            total.skipped.append((name, reason.group(1) if reason else message))
        else:  # program not found, fixture failed
            total.failed.append(f"{name} ({message})")
    elif not total.failed:  # a deadline, a crash, an exit code
        failure = case.find("failure")
        message = failure.get("message") if failure is not None else status
        total.failed.append(f"{name} ({message or 'failed'})")
    return total


def of_build(name, directory):
    total = Total()
    try:
        cases = list(ET.parse(directory / "ctest.xml").iter("testcase"))
    except (OSError, ET.ParseError) as error:
        total.failed.append(f"{name}: no results of CTest ({error})")
        return total
    for case in cases:
        total.add(of_case(case, directory / "junit"))
    if not cases:
        total.failed.append(f"{name}: no test ran")
    for path in sorted((directory / "reports").glob("*")):
        text = KILLED.sub("", path.read_text(errors="replace"))
        if text.strip():
            total.failed.append(f"{name}: sanitizer report {path.name}")
            print(f"--- {path}\n" + "\n".join(text.splitlines()[:40]))
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--failed", action="append", default=[])
    parser.add_argument("--skipped", action="append", default=[])
    parser.add_argument("builds", nargs="*")
    args = parser.parse_args()
    total = Total()
    total.failed += args.failed
    total.skipped += [("check.sh", reason) for reason in args.skipped]
    for build in args.builds:
        name, directory = build.split("=", 1)
        one = of_build(name, pathlib.Path(directory))
        print(f"{name + ':':<9}{one}")
        one.failed = [f"[{name}] {what}" for what in one.failed]
        total.add(one)
    if total.told["seed"]:
        print("cuda:    " + ", ".join(f"{len(total.told[name])} {text}"
                                      for name, text in TOLD.items()))
    if total.nodes:
        print("nodes:   " + ", ".join(f"{times} tests once more across {count}"
                                      for count, times in sorted(total.nodes.items())))
    for what in total.failed:
        print(f"failed:  {what}")
    reasons = collections.defaultdict(list)
    for what, reason in total.skipped:
        reasons[reason].append(what)
    for reason, tests in sorted(reasons.items()):
        more = ", ..." if len(tests) > 1 else ""
        print(f"skipped: {len(tests)} times: {reason} ({tests[0]}{more})")
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
