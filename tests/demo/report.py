#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of demo.sh left behind: put together, judged against the promises, printed.

    report.py tables DIR [--json FILE]   tables T0 to T4; exit 1 when a promise is broken
    report.py link DIR/RUN               link speed at which communication takes half of backward

DIR/model.tsv lists the parameters; each DIR/<run>/ holds rank-<r>.json (charlm --out) and
rank-<r>.sha256 (of charlm --dump), and, if its ranks may be on several nodes, `nodes`: the node of
each rank. Figures are counted by the service per rank since the seal; here
they become figures per step, which only works if they divide evenly and all ranks agree: both are
checked. What to expect comes from tests/cases/plan.py, which knows names, shapes and units alone.
Exit codes: 0, 1 a promise is broken, 2 the files cannot be read.
"""
import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cases")]

import plan  # noqa: E402
import tables  # noqa: E402

KINDS = plan.KINDS
FIGURES = ("calls", "payload_bytes", "padding_bytes", "ring_bytes", "moved_bytes")
RING_SLOTS = 3  # the service's default
ALONE_MIN_MS = 0.05  # below, a hidden fraction says nothing
PROMISES = ("pattern", "one_collective_per_bucket", "overlap_bitwise", "stages_bitwise",
            "reference_bitwise")
NODES_PROMISES = ("crosses_as_planned", "nodes_bitwise")  # of a demo on several nodes


class Unreadable(Exception):
    """The files are not what a complete demo leaves."""


class Problems:
    """Broken promises, with what broke them."""

    def __init__(self):
        self.broken = {}

    def add(self, promise, text):
        self.broken.setdefault(promise, []).append(text)


# ---- reading -------------------------------------------------------------------------------------


def read_ranks(directory):
    """The dicts of all ranks of a run, in rank order, each with its "sha256"."""
    try:
        ranks = []
        for path in directory.glob("rank-*.json"):
            rank = json.loads(path.read_text())
            rank["sha256"] = path.with_suffix(".sha256").read_text().split()[0]
            ranks.append(rank)
        ranks.sort(key=lambda rank: rank.get("rank", 0))
        numbers = [rank.get("rank", 0) for rank in ranks]
        wanted = ranks[0]["world"] if ranks and ranks[0]["mode"] == "rank" else 1
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise Unreadable(f"{directory}: {type(error).__name__}: {error}") from error
    if numbers != list(range(wanted)):
        raise Unreadable(f"{directory}: ranks {numbers}, not 0 to {wanted - 1}")
    nodes = read_nodes(directory, wanted)
    for rank in ranks:
        rank["node_of_rank"] = nodes
    return ranks


def read_nodes(directory, world):
    """The node of each rank."""
    path = directory / "nodes"
    try:
        nodes = [int(word) for word in path.read_text().split()] if path.exists() else [0] * world
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from error
    if len(nodes) != world or min(nodes) < 0:
        raise Unreadable(f"{path}: {nodes} are not the nodes of {world} ranks")
    return nodes


def run_name(rank):
    name = f"stage {rank['stage']} {'on' if rank['overlap'] else 'off'}"
    if rank["gather"] != "private":
        name += f" {rank['gather']}"
    if rank["link_bytes_per_s"]:
        name += " paced"
    return name + place_name(rank["node_of_rank"])


def place_name(nodes):
    """Of the nodes of all ranks: nothing where it is one, which needs no word."""
    count = len(set(nodes))
    if count == 1:
        return ""
    return f" {count} nodes" + ("" if nodes == sorted(nodes) else " dealt")


# ---- figures per step ----------------------------------------------------------------------------


def per_step(name, ranks, problems):
    """{figure: {kind: per step}}; uneven or unequal numbers break the pattern. Control traffic is
    not part of it: set-up has some too. On several nodes what a rank's service moves depends on its
    place, and the largest figure is told."""
    steps, one_node = ranks[0]["steps"], len(set(ranks[0]["node_of_rank"])) == 1
    out = {}
    for figure in FIGURES:
        out[figure] = {}
        for kind in KINDS:
            totals = [rank["stats"]["kinds"][kind][figure] for rank in ranks]
            out[figure][kind] = max(totals) // steps
            if kind == "control" or (figure == "moved_bytes" and not one_node):
                continue
            if len(set(totals)) > 1:
                problems.add("pattern",
                             f"{name}: {figure} of {kind} differ between ranks: {totals}")
            if totals[0] % steps:
                problems.add("pattern", f"{name}: {figure} of {kind}: {totals[0]} in {steps} steps")
    return out


def may_cross(rank, parameters):
    """{kind: (least, planned, most)} bytes per step that all nodes send to others. They differ in
    stage 3 alone, where ranks of a node copy from each other what one of them still holds, so that
    a slice crosses once at least, and as often as the node's ranks fetch it at most."""
    nodes = rank["node_of_rank"]
    planned, once = (
        plan.expected(parameters, rank["stage"], rank["world"], rank["bucket_bytes"],
                      micro_steps=rank["micro_steps"], gathers=gathers, nodes=nodes)
        ["cross_node_bytes"] for gathers in (None, 1))
    bounds = {kind: (sum(sent),) * 3 for kind, sent in planned.items()}
    if rank["stage"] == 3:
        fetches = max(nodes.count(node) for node in nodes)
        total = sum(planned["all_gather"])
        bounds["all_gather"] = (sum(once["all_gather"]), total, total * fetches)
    return bounds


def crossed(name, ranks, bounds, problems):
    """{kind: bytes per step that all nodes sent to others}, judged."""
    steps, out = ranks[0]["steps"], {}
    for kind in KINDS:
        total = sum(rank["stats"]["kinds"][kind]["cross_node_bytes"] for rank in ranks)
        out[kind] = total // steps
        least, _, most = (steps * bound for bound in bounds[kind])
        if kind != "control" and not least <= total <= most:
            right = str(least) if least == most else f"from {least} to {most}"
            problems.add("crosses_as_planned",
                         f"{name}: {kind}: {total} bytes in {steps} steps, expected {right}")
    return out


def slowest(ranks):
    """The rank that spent most time in its steps: all times of a run are this one's."""
    return max(ranks, key=lambda rank: sum(rank["step_ns"]))


def step_times(rank):
    """Milliseconds per step, and how much of the communication was hidden."""
    stats, steps = rank["stats"], rank["steps"]

    def each(figure):
        return stats[figure] / steps / 1e6

    step_ms = [ns / 1e6 for ns in rank["step_ns"]]
    times = {"step_ms": {"p50": statistics.median(step_ms), "min": min(step_ms)},
             "backward_ms": statistics.median(rank["backward_ns"]) / 1e6,
             "comm_ms": each("comm_ns"),
             "comm_alone_ms": stats["comm_alone_ns"] / 1e6}
    for part in ("late", "queued", "exposed", "wakeup"):
        times[part + "_ms"] = each(part + "_ns")
    if rank["waited_ns"] is not None:  # the GPU's stream waited, which knows no parts
        times.update(late_ms=0.0, queued_ms=0.0, wakeup_ms=0.0,
                     exposed_ms=rank["waited_ns"] / steps / 1e6)
    alone = times["comm_alone_ms"]
    times["hidden_fraction"] = None
    if alone >= ALONE_MIN_MS:
        times["hidden_fraction"] = min(max(1 - times["exposed_ms"] / alone, 0.0), 1.0)
    return times


def mean_losses(name, ranks):
    """Per step: the ranks' losses added in rank order, in double, as the reference does."""
    losses = []
    for step, values in enumerate(zip(*(rank["loss"] for rank in ranks)), 1):
        if None in values:
            raise Unreadable(f"{name}: step {step} has no finite loss")
        total = 0.0
        for value in values:
            total += value
        losses.append(total / len(ranks))
    return losses


def expectation(rank, parameters):
    """plan.expected for the run of a rank. Without overlap nothing is reduced before all gradients
    are there, so that each bucket needs a buffer of its own."""
    def wanted(ring_slots):
        return plan.expected(parameters, rank["stage"], rank["world"], rank["bucket_bytes"],
                             micro_steps=rank["micro_steps"], gather=rank["gather"],
                             ring_slots=ring_slots)

    buckets = 0 if rank["overlap"] else wanted(RING_SLOTS)["buckets"]
    return wanted(max(RING_SLOTS, buckets))


def put_together(ranks, parameters, problems):
    """One entry of "runs" in the JSON."""
    first, name = ranks[0], run_name(ranks[0])
    wanted = expectation(first, parameters)
    run = {key: first[key] for key in ("stage", "overlap", "gather", "link_bytes_per_s")}
    run.update(per_step(name, ranks, problems))
    run["expected_calls"] = wanted["calls"]
    run["expected_payload_bytes"] = wanted["payload_bytes"]
    run["expected_padding_bytes"] = wanted["padding_bytes"]
    run["node_of_rank"] = first["node_of_rank"]
    run["nodes"] = len(set(first["node_of_rank"]))
    bounds = may_cross(first, parameters)
    run["expected_cross_node_bytes"] = {kind: bounds[kind][1] for kind in KINDS}
    run["cross_node_bytes"] = crossed(name, ranks, bounds, problems)
    run["buckets"] = first["layout"]["buckets"]
    run["fetch_units"] = first["layout"]["fetch_units"]
    run["loss"] = mean_losses(name, ranks)
    run["params_sha256"] = first["sha256"]
    run["ranks_agree"] = all((rank["sha256"], rank["norm"]) == (first["sha256"], first["norm"])
                             for rank in ranks)
    run.update(step_times(slowest(ranks)))
    run["prefetch"] = first["stats"]["prefetch"]
    run["gathered_bytes_max"] = max(rank["stats"]["gathered_bytes_max"] for rank in ranks)
    run["memory_bytes"] = {key: max(rank["stats"]["memory_bytes"][key] for rank in ranks)
                           for key in plan.MEMORIES}
    run["expected_memory_bytes"] = wanted["memory_bytes"]
    return run


# ---- promises ------------------------------------------------------------------------------------


def check_pattern(run, problems):
    name = run_name(run)
    for kind in KINDS:
        if kind == "control":
            continue
        for figure in ("calls", "payload_bytes", "padding_bytes"):
            counted, wanted = run[figure][kind], run["expected_" + figure][kind]
            if counted != wanted:
                problems.add("pattern", f"{name}: {figure} of {kind} per step: counted {counted}, "
                                        f"expected {wanted}")
    kind = "all_reduce" if run["stage"] == 0 else "reduce_scatter"
    if run["calls"][kind] != run["buckets"]:
        problems.add("one_collective_per_bucket", f"{name}: {run['calls'][kind]} {kind} for "
                                                  f"{run['buckets']} buckets")


def check_equal(promise, run, other_name, other, problems):
    """Losses of all steps and final parameters, bit for bit."""
    name = run_name(run)
    for step, (a, b) in enumerate(zip(run["loss"], other["loss"]), 1):
        if a != b:
            problems.add(promise, f"{name} and {other_name}: loss of step {step}: {a!r}, {b!r}")
            return
    if run["params_sha256"] != other["params_sha256"]:
        problems.add(promise, f"{name} and {other_name}: same losses, other parameters")


def check_bits(runs, reference, problems):
    for run in runs:
        if not run["ranks_agree"]:
            for promise in ("overlap_bitwise", "stages_bitwise", "reference_bitwise",
                            "nodes_bitwise"):
                problems.add(promise, f"{run_name(run)}: its ranks differ in parameters or norms")
        for other in runs:
            same = [run[key] == other[key] for key in ("stage", "gather", "link_bytes_per_s",
                                                       "node_of_rank")]
            if all(same) and run["overlap"] and not other["overlap"]:
                check_equal("overlap_bitwise", run, run_name(other), other, problems)
            if run["nodes"] > other["nodes"] == 1:
                check_equal("nodes_bitwise", run, run_name(other), other, problems)
        check_equal("stages_bitwise", run, run_name(runs[0]), runs[0], problems)
        check_equal("reference_bitwise", run, "the reference", reference, problems)


def largest_difference(losses, reference):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference))


def order(run):
    return (run["stage"], run["gather"], run["link_bytes_per_s"] or 0, -run["nodes"],
            run["node_of_rank"] != sorted(run["node_of_rank"]), not run["overlap"])


def collect(directory):
    """(the JSON's dict, problems, {name: losses of the plain run}) of a complete demo."""
    problems = Problems()
    try:
        parameters = plan.read_model(directory / "model.tsv")
    except (OSError, ValueError) as error:
        raise Unreadable(error) from error
    runs, alone = [], {}
    for path in sorted(directory.iterdir()):
        if not path.is_dir():
            continue
        ranks = read_ranks(path)
        if ranks[0]["mode"] == "rank":
            runs.append((ranks, put_together(ranks, parameters, problems)))
        else:
            alone[ranks[0]["mode"]] = {"loss": ranks[0]["loss"],
                                       "params_sha256": ranks[0]["sha256"]}
    if not runs or set(alone) != {"reference", "plain"}:
        raise Unreadable(f"{directory}: runs, a reference and a plain run are needed")
    first = runs[0][0][0]
    for key in ("world", "steps", "bucket_bytes", "params", "seed", "batch", "text_bytes",
                "device"):
        values = {rank[key] for ranks, _ in runs for rank in ranks}
        if len(values) > 1:
            raise Unreadable(f"{directory}: runs differ in {key}: {sorted(values)}")
    results = sorted((run for _, run in runs), key=order)
    for run in results:
        check_pattern(run, problems)
    reference, plain = alone["reference"], alone["plain"]
    check_bits(results, reference, problems)
    most = max(results, key=lambda run: (run["nodes"], run["node_of_rank"] == sorted(
        run["node_of_rank"])))
    normal = [run for run in results if run["gather"] == "private" and
              not run["link_bytes_per_s"] and run["node_of_rank"] == most["node_of_rank"]]
    promises = PROMISES + (NODES_PROMISES if most["nodes"] > 1 else ())
    if min(run["nodes"] for run in results) > 1:
        raise Unreadable(f"{directory}: no run on one node, which those on several must equal")
    report = {
        "schema": 1, "params": first["params"], "ranks": first["world"],
        "nodes": most["nodes"],
        "steps": first["steps"], "bucket_bytes": first["bucket_bytes"],
        "device": first["device"],
        "runs": normal, "extra_runs": [run for run in results if run not in normal],
        "reference": {
            "loss": reference["loss"], "params_sha256": reference["params_sha256"],
            "max_rel_diff": max(largest_difference(run["loss"], reference["loss"])
                                for run in results),
            "plain_max_rel_diff": largest_difference(plain["loss"], reference["loss"])},
        "promises": {promise: promise not in problems.broken for promise in promises},
    }
    return report, problems, plain


# ---- command line --------------------------------------------------------------------------------


def link_speed(ranks):
    """Bytes per second at which a ring's bytes of one step take half of its backward time; 0 where
    nothing is sent."""
    rank = slowest(ranks)
    sent = sum(kind["ring_bytes"] for kind in rank["stats"]["kinds"].values()) / rank["steps"]
    backward_ns = statistics.median(rank["backward_ns"])
    return int(sent / (backward_ns / 1e9 / 2))


def main(arguments):
    parser = argparse.ArgumentParser(description="Tables and promises of demo.sh.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("tables")
    command.add_argument("directory", type=pathlib.Path)
    command.add_argument("--json", metavar="FILE", type=pathlib.Path)
    commands.add_parser("link").add_argument("directory", type=pathlib.Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "link":
            print(link_speed(read_ranks(options.directory)))
            return 0
        report, problems, plain = collect(options.directory)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    except (OSError, Unreadable) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    sys.stdout.reconfigure(errors="replace")  # where the locale has no psi
    tables.print_all(report, plain, problems.broken, run_name)
    return 1 if problems.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
