# SPDX-License-Identifier: Apache-2.0
"""The demo's tables T0 to T5, from the dict that report.py puts together; decides nothing."""

SENT = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


def table(header, rows):
    """Columns as wide as they need; the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in [header] + rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        print("  " + "  ".join(cells).rstrip())


def number(value):
    return f"{value:,}".replace(",", " ")


def ms(value):
    return f"{value:.2f}"


def mib(value):
    return f"{value / 2**20:.2f}"


def title(text):
    print(f"\n{text}")


def pattern(report, runs, run_name):
    title("T0  what a step sends, per rank: counted | expected from names and shapes alone "
          f"(Ψ = {number(report['params'])} parameters, {number(4 * report['params'])} bytes)")
    rows = []
    for run in runs:
        for kind in SENT:
            if not run["calls"][kind] and not run["expected_calls"][kind]:
                continue
            counted, wanted = run["payload_bytes"][kind], run["expected_payload_bytes"][kind]
            padding = run["padding_bytes"][kind], run["expected_padding_bytes"][kind]
            calls = run["calls"][kind], run["expected_calls"][kind]
            right = counted == wanted and padding[0] == padding[1] and calls[0] == calls[1]
            rows.append([run_name(run), kind, f"{calls[0]} | {calls[1]}",
                         f"{number(counted)} | {number(wanted)}",
                         f"{counted / (4 * report['params']):.2f}",
                         f"{number(padding[0])} | {number(padding[1])}",
                         number(run["ring_bytes"][kind]), number(run["moved_bytes"][kind]),
                         "ok" if right else "WRONG"])
    table(["run", "kind", "calls", "payload bytes", "in Ψ", "padding bytes",
           "ring bytes (computed)", "moved bytes", ""], rows)
    for stage in sorted({run["stage"] for run in runs}):
        sums = {f"{sum(run['payload_bytes'][kind] for kind in SENT) / (4 * report['params']):.2f} Ψ"
                for run in runs if run["stage"] == stage}
        print(f"  stage {stage} sums to {' or '.join(sorted(sums))}"
              f"{' of all-reduce, which is 2 Ψ on a ring' if stage == 0 else ''}")
    control = {run["calls"]["control"] for run in runs}
    print(f"  besides, {' or '.join(map(str, sorted(control)))} control op per step (verdict)")


def per_bucket(runs, run_name):
    title("T1  collectives per bucket and step (stage 0: all-reduce, else reduce-scatter)")
    rows = []
    for run in runs:
        calls = run["calls"]["all_reduce" if run["stage"] == 0 else "reduce_scatter"]
        rows.append([run_name(run), run["buckets"], calls, f"{calls / run['buckets']:g}"])
    table(["run", "buckets", "collectives", "per bucket"], rows)


def short_name(run_name, run):
    return run_name(run).replace("stage ", "s").replace(" ", "-")


def losses(report, plain, runs, run_name):
    title("T2  loss (nats per character, mean over ranks) and checksum of the final parameters")
    steps = report["steps"]
    shown = sorted({1, steps} | set(range(max(steps // 6, 1), steps + 1, max(steps // 6, 1))))
    columns = [(short_name(run_name, run), run) for run in report["runs"]]
    columns += [("reference", report["reference"]), ("plain", plain)]
    rows = [[step] + [f"{column['loss'][step - 1]:.6f}" for _, column in columns]
            for step in shown]
    rows.append(["sha256"] + [column["params_sha256"][:8] for _, column in columns])
    table(["step"] + [name for name, _ in columns], rows)
    groups = {}
    for name, run in [(short_name(run_name, run), run) for run in runs] + \
            [("reference", report["reference"])]:
        groups.setdefault((tuple(run["loss"]), run["params_sha256"]), []).append(name)
    for (_, checksum), names in groups.items():
        equal = "bitwise equal" if len(names) > 1 else "equal to no other"
        print(f"  {equal}, losses of all {steps} steps and parameters ({checksum[:16]}...):")
        print("    " + " ".join(names))
    print("  plain: one batch of all ranks' samples, summed as it comes; not judged."
          " Largest relative difference from the reference"
          f" {report['reference']['plain_max_rel_diff']:.1e}")


def times(runs, run_name):
    rows = []
    for run in runs:
        hidden = run["hidden_fraction"]
        rows.append([run_name(run), ms(run["step_ms"]["p50"]), ms(run["step_ms"]["min"]),
                     ms(run["backward_ms"]), ms(run["comm_ms"]), ms(run["comm_alone_ms"])] +
                    [ms(run[part + "_ms"]) for part in ("late", "queued", "exposed", "wakeup")] +
                    ["-" if hidden is None else f"{hidden:.2f}"])
    table(["run", "step p50", "min", "backward", "comm", "comm alone", "late", "queued", "exposed",
           "wakeup", "hidden"], rows)


def overlap(report, run_name):
    title("T3  milliseconds per step of the slowest rank (step and backward: median, the rest: "
          "mean); its waits split into late, queued, exposed, wakeup")
    if report["device"] != "host":
        print(f"  on {report['device']}: exposed is all that the rank's stream stood still, and "
              "backward ends when it is enqueued")
    times(report["runs"], run_name)
    elsewhere = [run for run in report["extra_runs"]
                 if run["gather"] == "private" and not run["link_bytes_per_s"]]
    if elsewhere:
        print("  ranks elsewhere:")
        times(elsewhere, run_name)
    paced = [run for run in report["extra_runs"] if run["link_bytes_per_s"]]
    if not paced:
        return
    speed = paced[0]["link_bytes_per_s"] / 1e6
    print(f"  simulated link of {speed:.1f} MB/s per rank (each collective is held for its ring "
          "bytes):")
    times(paced, run_name)
    p50 = {run["overlap"]: run["step_ms"]["p50"] for run in paced}
    if len(p50) == 2:
        print(f"  step with overlap / without, on the simulated link: {p50[True] / p50[False]:.2f}")


def stage3(report, run_name):
    title("T4  stage 3 beside stage 2 (overlap on), and memory per rank in MiB")
    chosen = [run for run in report["runs"] + report["extra_runs"]
              if run["overlap"] and run["stage"] >= 2 and not run["link_bytes_per_s"]]
    base = next((run["step_ms"]["p50"] for run in chosen if run["stage"] == 2), None)
    rows = []
    for run in chosen:
        fetched = run["prefetch"]
        ratio = f"{run['step_ms']['p50'] / base:.2f}" if base else "-"
        rows.append([run_name(run), run["gather"], ms(run["step_ms"]["p50"]), ratio,
                     fetched["hits"], fetched["misses"], fetched["drops"],
                     number(run["payload_bytes"]["all_gather"]),
                     number(run["moved_bytes"]["all_gather"]),
                     number(run["memory_bytes"]["params"] + run["gathered_bytes_max"])])
    table(["run", "gather", "step p50", "/ stage 2", "prefetch hits", "misses", "drops",
           "gathered bytes", "of these moved", "resident parameter bytes"], rows)
    rows = []
    for run in report["runs"] + report["extra_runs"]:
        if run["overlap"] and not run["link_bytes_per_s"]:
            memory = run["memory_bytes"]
            rows.append([run_name(run)] + [mib(value) for value in memory.values()] +
                        [mib(sum(memory.values()))])
    table(["memory of", "params", "gradients", "buckets", "gathered", "optimizer", "sum"], rows)


def nodes(report, runs, run_name):
    title("T5  bytes that cross nodes in a step, sent by all nodes: counted | expected from names, "
          "shapes and places alone")
    rows = []
    for run in runs:
        for kind in SENT:
            counted, wanted = run["cross_node_bytes"][kind], run["expected_cross_node_bytes"][kind]
            if counted or wanted:
                rows.append([run_name(run), " ".join(map(str, run["node_of_rank"])), kind,
                             f"{number(counted)} | {number(wanted)}",
                             f"{counted / (4 * report['params']):.2f}",
                             "ok" if counted == wanted else f"{counted / max(wanted, 1):.2f} x"])
    table(["run", "node of each rank", "kind", "cross-node bytes", "in Ψ", ""], rows)
    print("  stage 3 plans to gather each slice twice, once for all ranks of a node; a rank copies "
          "from others of its node what they still hold, which may save the second time")


def print_all(report, plain, broken, run_name):
    runs = report["runs"] + report["extra_runs"]
    pattern(report, runs, run_name)
    per_bucket(runs, run_name)
    losses(report, plain, runs, run_name)
    overlap(report, run_name)
    stage3(report, run_name)
    if report["nodes"] > 1:
        nodes(report, runs, run_name)
    print()
    for promise, kept in report["promises"].items():
        print(f"  {'kept  ' if kept else 'BROKEN'}  {promise}")
        for text in broken.get(promise, [])[:8]:
            print(f"            {text}")
        if len(broken.get(promise, [])) > 8:
            print(f"            ... and {len(broken[promise]) - 8} more")
