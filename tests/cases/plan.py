#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step must send and hold, worked out from names, shapes and units alone.

Written from the words of the design, not from the C code: demo.sh prints these numbers beside the
counted ones, and the tests compare daemon/core/layout with make_layout(). It shares nothing with
the service, so that one mistake cannot be in both.

    expected(parameters, stage=2, ranks=4, bucket_bytes=1 << 20) -> dict, per step and rank
    plan.py gpt2-345m.tsv --stage 3 --ranks 4 --bucket 100000000

Sizes are elements of 4 bytes unless the name ends in _bytes. Figures are one rank's.
"""
import argparse
import collections
import json
import sys

ELEMENT_BYTES = 4
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "control")
MEMORIES = ("params", "gradients", "buckets", "gathered", "optimizer")

Parameter = collections.namedtuple("Parameter", "name numel unit", defaults=("",))
Piece = collections.namedtuple("Piece", "param param_offset numel")


class Unit:
    """Consecutive parameters that are fetched together."""

    def __init__(self, name, params, numel):
        self.name, self.params, self.numel = name, params, numel


class Bucket:
    def __init__(self, pieces, grain, fetch_unit):
        self.pieces = pieces
        self.numel = sum(piece.numel for piece in pieces)
        self.padded = -(-self.numel // grain) * grain
        self.fetch_unit = fetch_unit  # None in stages 0 to 2
        self.offset = 0  # flat


class Layout:
    """Buckets in flat order, units, and fetch units as lists of unit indices."""

    def __init__(self, units, fetch_units, buckets, ranks, stage):
        self.units, self.fetch_units, self.buckets = units, fetch_units, buckets
        self.ranks, self.stage = ranks, stage
        flat = 0
        for bucket in buckets:
            bucket.offset = flat
            flat += bucket.padded
        self.padded = flat
        self.numel = sum(bucket.numel for bucket in buckets)

    def shard_numel(self):
        """Elements of one rank's spans. In stage 0 every rank has everything."""
        return self.padded if self.stage == 0 else self.padded // self.ranks

    def fetch_unit_buckets(self, fetch_unit):
        return [b for b in self.buckets if b.fetch_unit == fetch_unit]

    def span(self, bucket, rank):
        """(offset in the bucket, numel, valid numel) of what a rank owns of a bucket."""
        if self.stage == 0:
            return 0, bucket.padded, bucket.numel
        size = bucket.padded // self.ranks
        start = rank * size
        return start, size, min(max(bucket.numel - start, 0), size)


def split_units(parameters):
    """Runs of one unit name; a parameter without one is a unit of its own, under its own name."""
    units = []
    for index, parameter in enumerate(parameters):
        if parameter.unit and units and parameters[index - 1].unit == parameter.unit:
            units[-1].params.append(index)
            units[-1].numel += parameter.numel
        else:
            name = parameter.unit or parameter.name
            units.append(Unit(name, [index], parameter.numel))
    for what, names in (("parameter", [p.name for p in parameters]),
                        ("unit", [u.name for u in units])):
        for name, count in collections.Counter(names).items():
            if count > 1:
                raise ValueError(f"{what} {name!r} is there {count} times")
    return units


def merge_units(units, bucket_numel):
    """Stage 3: neighbours go together while their sum is not larger than a bucket."""
    merged, room = [], None
    for index, unit in enumerate(units):
        if room is not None and unit.numel <= room:
            merged[-1].append(index)
        else:
            merged.append([index])
            room = bucket_numel
        # A unit larger than a bucket leaves no room, not even for an empty neighbour.
        room = room - unit.numel if unit.numel <= room else None
    return merged


def chunks_of(numel, bucket_numel, grain):
    """Sizes of the pieces of one parameter: whole, or cut at multiples of the grain."""
    if numel <= bucket_numel:
        return [numel] if numel else []
    cut = max(bucket_numel - bucket_numel % grain, grain)
    full, rest = divmod(numel, cut)
    return [cut] * full + ([rest] if rest else [])


def pack(indices, parameters, bucket_numel, grain):
    """Lists of pieces, one list per bucket."""
    buckets, filled = [], None
    for index in indices:
        done = 0
        for nth, chunk in enumerate(chunks_of(parameters[index].numel, bucket_numel, grain)):
            # Only a parameter's first piece may join others; a larger one never fits there.
            if filled is None or nth or filled + parameters[index].numel > bucket_numel:
                buckets.append([])
                filled = 0
            buckets[-1].append(Piece(index, done, chunk))
            filled += chunk
            done += chunk
    return buckets


def make_layout(parameters, stage, ranks, bucket_numel, align_numel):
    """Where every parameter lies. ValueError names what is wrong."""
    if stage not in (0, 1, 2, 3) or ranks < 1 or bucket_numel < 1 or align_numel < 1:
        raise ValueError("stage 0 to 3; ranks, bucket and alignment from 1")
    grain = ranks * align_numel
    units = split_units(parameters)
    if stage < 3:
        fetch_units = [[u] for u in range(len(units))]
        packed = pack(range(len(parameters)), parameters, bucket_numel, grain)
        buckets = [Bucket(pieces, grain, None) for pieces in packed]
    else:
        fetch_units = merge_units(units, bucket_numel)
        buckets = []
        for number, members in enumerate(fetch_units):
            indices = [i for u in members for i in units[u].params]
            packed = pack(indices, parameters, bucket_numel, grain)
            buckets += [Bucket(pieces, grain, number) for pieces in packed]
    return Layout(units, fetch_units, buckets, ranks, stage)


# ---- what is sent --------------------------------------------------------------------------------


def ring_bytes(kind, payload_bytes, ranks):
    """What a ring would send per rank, worked out, not counted."""
    passes = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}.get(kind, 0)
    return passes * payload_bytes * (ranks - 1) // ranks


class Traffic:
    """Calls and bytes by kind."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.figures = {name: dict.fromkeys(KINDS, 0)
                        for name in ("calls", "payload_bytes", "padding_bytes", "ring_bytes")}

    def add(self, kind, buckets, times=1):
        """`times` collectives over a list of buckets each; payload is all n slices, unpadded."""
        payload = ELEMENT_BYTES * sum(b.numel for b in buckets)
        padding = ELEMENT_BYTES * sum(b.padded - b.numel for b in buckets)
        self.figures["calls"][kind] += times
        self.figures["payload_bytes"][kind] += times * payload
        self.figures["padding_bytes"][kind] += times * padding
        self.figures["ring_bytes"][kind] += times * ring_bytes(kind, payload, self.ranks)


def step_traffic(layout, sends, gathers):
    """One optimizer step: `sends` reductions of each bucket, `gathers` of each fetch unit."""
    traffic = Traffic(layout.ranks)
    for bucket in layout.buckets:
        traffic.add("all_reduce" if layout.stage == 0 else "reduce_scatter", [bucket], sends)
        if layout.stage in (1, 2):
            traffic.add("all_gather", [bucket])
    if layout.stage == 3:
        for number in range(len(layout.fetch_units)):
            buckets = layout.fetch_unit_buckets(number)
            if buckets:  # nothing but zero-size parameters: nothing to gather
                traffic.add("all_gather", buckets, gathers)
    traffic.add("control", [])
    return traffic.figures


# ---- what is held --------------------------------------------------------------------------------


def gradient_memory(layout, accumulate, micro_steps):
    """Elements of full gradient buffers, accumulators and gradient shards of a rank."""
    full, shard, several = layout.padded, layout.padded // layout.ranks, micro_steps > 1
    total = 0
    if layout.stage <= 1 or accumulate == "local":
        total += full  # where gradients are written
    if several and (accumulate == "local" or layout.stage == 0):
        total += full  # where they are added up over micro-steps
    if layout.stage >= 2 or (layout.stage == 1 and several and accumulate == "shard"):
        total += shard  # reduced gradients
    return total


def rank_memory(layout, accumulate, micro_steps, gather, ring_slots, gather_bytes, arrays):
    """Bytes of one rank by what lies in them. `arrays`: shard arrays of the optimizer."""
    fetch = sorted((sum(b.padded for b in layout.fetch_unit_buckets(number))
                    for number in range(len(layout.fetch_units))), reverse=True)
    largest_bucket = max((b.padded for b in layout.buckets), default=0)
    private = layout.stage == 3 and gather == "private"
    held = dict.fromkeys(MEMORIES, 0)
    held["params"] = ELEMENT_BYTES * layout.shard_numel() if layout.stage == 3 \
        else ELEMENT_BYTES * layout.padded
    held["gradients"] = ELEMENT_BYTES * gradient_memory(layout, accumulate, micro_steps)
    if layout.stage >= 2 and accumulate == "shard":
        slots = min(ring_slots, max(1, len(layout.buckets) * micro_steps))
        held["buckets"] = ELEMENT_BYTES * slots * largest_bucket
    if private and fetch:
        budget = gather_bytes or ELEMENT_BYTES * sum(fetch[:3])
        held["gathered"] = min(budget + ELEMENT_BYTES * fetch[0],
                               ELEMENT_BYTES * layout.padded)
    held["optimizer"] = ELEMENT_BYTES * arrays * layout.shard_numel()
    return held


def expected(parameters, stage, ranks, bucket_bytes, align_bytes=64, micro_steps=1,
             accumulate="auto", gather="private", ring_slots=3, gather_bytes=0,
             optimizer_arrays=2, gathers=None):
    """Figures of one optimizer step and the memory of one rank, named as in demo.sh's JSON.

    `parameters`: Parameter tuples in order of registration. `gathers`: how often a step gathers
    each fetch unit in stage 3 (None: forward and backward of each micro-step).
    """
    parameters = [Parameter(*p) for p in parameters]
    if accumulate == "auto":
        accumulate = "local" if stage <= 1 else "shard"
    if gathers is None:
        gathers = 2 * micro_steps
    layout = make_layout(parameters, stage, ranks, bucket_bytes // ELEMENT_BYTES,
                         max(align_bytes // ELEMENT_BYTES, 1))
    result = {"stage": stage, "ranks": ranks, "bucket_bytes": bucket_bytes,
              "accumulate": accumulate, "micro_steps": micro_steps, "gather": gather,
              "params": layout.numel, "padded": layout.padded, "buckets": len(layout.buckets),
              "units": len(layout.units), "fetch_units": len(layout.fetch_units)}
    result.update(step_traffic(layout, micro_steps if accumulate == "shard" else 1, gathers))
    result["memory_bytes"] = rank_memory(layout, accumulate, micro_steps, gather, ring_slots,
                                         gather_bytes, optimizer_arrays)
    return result


# ---- command line --------------------------------------------------------------------------------


def parse_shape(text):
    numel = 1
    for extent in text.split("x"):
        numel *= int(extent)
        if int(extent) < 0:
            raise ValueError(text)
    return numel


def read_model(path):
    """Lines of name<TAB>shape<TAB>unit, # for comments -> Parameter list."""
    parameters = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if not line or line.startswith("#"):
                continue
            fields = line.split("\t")
            try:
                name, shape, unit = fields if len(fields) > 2 else (*fields, "")
                parameters.append(Parameter(name, parse_shape(shape), unit))
            except ValueError:
                raise ValueError(f"{path}:{number}: not name<TAB>shape<TAB>unit: {line!r}") \
                    from None
    return parameters


def layout_dict(layout, parameters):
    """All of a layout as plain data; the same form as the C program of the comparison test."""
    pieces = [{"param": piece.param, "bucket": number, "param_offset": piece.param_offset,
               "numel": piece.numel}
              for number, bucket in enumerate(layout.buckets) for piece in bucket.pieces]
    spans = [[list(layout.span(bucket, rank)) for rank in range(layout.ranks)]
             for bucket in layout.buckets]
    return {
        "numel": layout.numel, "padded_numel": layout.padded, "shard_numel": layout.shard_numel(),
        "buckets": [{"offset": b.offset, "numel": b.numel, "padded_numel": b.padded,
                     "fetch_unit": b.fetch_unit} for b in layout.buckets],
        "pieces": pieces,
        "spans": spans,
        "units": [{"name": unit.name, "first_param": unit.params[0], "params": len(unit.params)}
                  for unit in layout.units],
        "fetch_units": [{"first_unit": members[0], "units": len(members),
                         "numel": sum(layout.units[u].numel for u in members)}
                        for members in layout.fetch_units],
        "names": [parameter.name for parameter in parameters],
    }


def main(arguments):
    parser = argparse.ArgumentParser(description="Expected traffic and memory of a step, as JSON.")
    parser.add_argument("model", help="lines of name<TAB>shape<TAB>unit")
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--bucket", type=int, required=True, metavar="BYTES")
    parser.add_argument("--align", type=int, default=64, metavar="BYTES")
    parser.add_argument("--micro-steps", type=int, default=1)
    parser.add_argument("--accumulate", choices=("auto", "local", "shard"), default="auto")
    parser.add_argument("--gather", choices=("private", "mapped"), default="private")
    parser.add_argument("--ring-slots", type=int, default=3)
    parser.add_argument("--gather-bytes", type=int, default=0)
    parser.add_argument("--optimizer-arrays", type=int, default=2)
    parser.add_argument("--layout", action="store_true", help="print the layout instead")
    options = parser.parse_args(arguments)
    try:
        parameters = read_model(options.model)
        if options.layout:
            layout = make_layout(parameters, options.stage, options.ranks,
                                 options.bucket // ELEMENT_BYTES, options.align // ELEMENT_BYTES)
            result = layout_dict(layout, parameters)
        else:
            result = expected(parameters, options.stage, options.ranks, options.bucket,
                              options.align, options.micro_steps, options.accumulate,
                              options.gather, options.ring_slots, options.gather_bytes,
                              options.optimizer_arrays)
    except (OSError, ValueError) as error:
        print(f"plan.py: {error}", file=sys.stderr)
        return 1
    json.dump(result, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
