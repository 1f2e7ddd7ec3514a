#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step must send and hold, worked out from names, shapes and units alone.

Written from the words of the design, not from the C code: demo.sh prints these numbers beside the
counted ones, and the tests compare daemon/core/layout with make_layout(). It shares nothing with
the service, so that one mistake cannot be in both.

    expected(parameters, stage=2, ranks=4, bucket_bytes=1 << 20) -> dict, per step and rank
    plan.py gpt2-345m.tsv --stage 3 --ranks 4 --bucket 100000000

Sizes are elements unless the name ends in _bytes. Figures are one rank's.
"""
import argparse
import collections
import json
import sys

SIZES = {"fp32": 4, "fp16": 2, "bf16": 2}  # bytes of an element
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "control")
MEMORIES = ("params", "gradients", "buckets", "gathered", "optimizer")

Parameter = collections.namedtuple("Parameter", "name numel unit group dtype grad_dtype",
                                   defaults=("", 0, "fp32", "fp32"))
Piece = collections.namedtuple("Piece", "param bucket_offset param_offset numel")
# Ranks in order; runs of shard_ranks of them hold one copy of the shards.
Group = collections.namedtuple("Group", "ranks shard_ranks")


class Unit:
    """Consecutive parameters with one unit name."""

    def __init__(self, name, params):
        self.name, self.params = name, params


class FetchUnit:
    """What stage 3 gathers together: units (none: persistent parameters), and their parameters."""

    def __init__(self, units, params):
        self.units, self.params = units, params


class Bucket:
    """Pieces of parameters of one group and one pair of dtypes."""

    def __init__(self, parameter, accum_dtype, grain, fetch_unit):
        self.group, self.dtype, self.grad_dtype = parameter[3:6]
        self.accum_dtype = accum_dtype
        self.grain, self.fetch_unit = grain, fetch_unit  # fetch unit: None in stages 0 to 2
        self.pieces = []
        self.numel = 0
        self.offset = 0  # flat

    def add(self, param, param_offset, numel):
        self.pieces.append(Piece(param, self.numel, param_offset, numel))
        self.numel += numel

    @property
    def padded(self):
        return -(-self.numel // self.grain) * self.grain

    def bytes_of(self, dtype, padded=True):
        return SIZES[dtype] * (self.padded if padded else self.numel)


class Layout:
    """Buckets in flat order, units, fetch units and groups."""

    def __init__(self, units, fetch_units, buckets, groups, stage, persistent):
        self.units, self.fetch_units, self.buckets = units, fetch_units, buckets
        self.groups, self.stage = groups, stage
        self.persistent = persistent  # indices of parameters; their fetch unit is the first
        self.fetched = collections.defaultdict(list)  # buckets by fetch unit
        flat = 0
        for bucket in buckets:
            bucket.offset = flat
            flat += bucket.padded
            self.fetched[bucket.fetch_unit].append(bucket)
        self.padded = flat
        self.numel = sum(bucket.numel for bucket in buckets)

    def fetch_unit_buckets(self, number):
        return self.fetched[number]

    def slice(self, bucket, index):
        """(offset in the bucket, numel, valid numel) of a slice. Stage 0: everybody has all."""
        if self.stage == 0:
            return 0, bucket.padded, bucket.numel
        size = bucket.padded // self.groups[bucket.group].shard_ranks
        start = index * size
        return start, size, min(max(bucket.numel - start, 0), size)

    def span(self, bucket):
        """Elements of a bucket that a rank of its group owns."""
        return self.slice(bucket, 0)[1]

    def of_rank(self, rank, group=None):
        return [b for b in self.buckets if rank in self.groups[b.group].ranks
                and group in (None, b.group)]


def split_units(parameters):
    """Runs of one unit name; a parameter without one is a unit of its own, under its own name."""
    units = []
    for index, parameter in enumerate(parameters):
        if parameter.unit and units and parameters[index - 1].unit == parameter.unit:
            units[-1].params.append(index)
        else:
            units.append(Unit(parameter.unit or parameter.name, [index]))
    for what, names in (("parameter", [p.name for p in parameters]),
                        ("unit", [u.name for u in units])):
        for name, count in collections.Counter(names).items():
            if count > 1:
                raise ValueError(f"{what} {name!r} is there {count} times")
    return units


def merge_units(units, parameters, bucket_bytes, persistent):
    """Stage 3: neighbours go together while their gradients are not larger than a bucket, and all
    are of one group. What persists, or is empty, does not count."""
    merged, room, last = [], None, None
    for number, unit in enumerate(units):
        left = [i for i in unit.params if parameters[i].numel and i not in persistent]
        if not left:
            continue
        size = sum(parameters[i].numel * SIZES[parameters[i].grad_dtype] for i in left)
        groups = {parameters[i].group for i in left}
        if room is not None and size <= room and len(groups) == 1 and groups == last:
            merged[-1].units.append(number)
            merged[-1].params += left
        else:
            merged.append(FetchUnit([number], left))
            room = bucket_bytes
        room = room - size if size <= room else None
        last = groups
    return merged


def chunks_of(numel, limit, grain):
    """Sizes of the pieces of one parameter: whole, or cut at multiples of the grain."""
    if numel <= limit:
        return [numel] if numel else []
    cut = max(limit - limit % grain, grain)
    full, rest = divmod(numel, cut)
    return [cut] * full + ([rest] if rest else [])


def in_order_of_appearance(indices, key):
    """Lists of indices with one key each."""
    lists = {}
    for index in indices:
        lists.setdefault(key(index), []).append(index)
    return list(lists.values())


class Packer:
    """Fills buckets; of each class one is open."""

    def __init__(self, parameters, groups, bucket_bytes, align_bytes, accum_as_grads):
        self.parameters, self.groups = parameters, groups
        self.bucket_bytes, self.align_bytes = bucket_bytes, align_bytes
        self.accum_as_grads = accum_as_grads
        self.buckets = []

    def pack(self, indices, fetch_unit):
        opened = {}
        for index in indices:
            parameter = self.parameters[index]
            smallest = min(SIZES[parameter.dtype], SIZES[parameter.grad_dtype])
            grain = len(self.groups[parameter.group].ranks) * (self.align_bytes // smallest)
            limit = self.bucket_bytes // SIZES[parameter.grad_dtype]
            accum = parameter.grad_dtype if self.accum_as_grads else "fp32"
            bucket, done = opened.get(parameter[3:6]), 0
            for nth, chunk in enumerate(chunks_of(parameter.numel, limit, grain)):
                # Only a parameter's first piece may join others; a larger one never fits there.
                if bucket is None or nth or bucket.numel + parameter.numel > limit:
                    bucket = Bucket(parameter, accum, grain, fetch_unit)
                    opened[parameter[3:6]] = bucket
                    self.buckets.append(bucket)
                bucket.add(index, done, chunk)
                done += chunk


def make_groups(stage, ranks, groups, shard_ranks):
    """Group 0 is all ranks. Stage 0 keeps no shards that replicas could share."""
    made = []
    for members, shards in [(tuple(range(ranks)), shard_ranks), *groups]:
        shards = shards or len(members)
        if len(members) % shards or len(set(members)) < len(members) or max(members) >= ranks:
            raise ValueError(f"no group: {members} in runs of {shards}")
        made.append(Group(tuple(members), shards if stage else len(members)))
    return made


def make_layout(parameters, stage, ranks, bucket_bytes, align_bytes, groups=(), shard_ranks=0,
                persist_bytes=0, accum_as_grads=False):
    """Where every parameter lies. groups: (ranks, shard_ranks) from group 1 on. ValueError names
    what is wrong."""
    if stage not in (0, 1, 2, 3) or ranks < 1 or bucket_bytes < 1 or align_bytes < 4:
        raise ValueError("stage 0 to 3; ranks, bucket and alignment from 1")
    groups = make_groups(stage, ranks, groups, shard_ranks)
    units = split_units(parameters)
    packer = Packer(parameters, groups, bucket_bytes, align_bytes, accum_as_grads)
    if stage < 3:
        fetch_units = [FetchUnit([u], unit.params) for u, unit in enumerate(units)]
        packer.pack(range(len(parameters)), None)
        return Layout(units, fetch_units, packer.buckets, groups, stage, [])
    persistent = [i for i, p in enumerate(parameters)
                  if p.numel and p.numel * SIZES[p.dtype] <= persist_bytes]
    fetch_units = [FetchUnit([], persistent)] if persistent else []
    fetch_units += merge_units(units, parameters, bucket_bytes, set(persistent))
    for number, fetch_unit in enumerate(fetch_units):
        for of_group in in_order_of_appearance(fetch_unit.params, lambda i: parameters[i].group):
            for of_class in in_order_of_appearance(of_group, lambda i: parameters[i][3:6]):
                packer.pack(of_class, number)
    return Layout(units, fetch_units, packer.buckets, groups, stage, persistent)


# ---- what is sent --------------------------------------------------------------------------------


def ring_bytes(kind, payload_bytes, ranks):
    """What a ring would send per rank, worked out, not counted."""
    passes = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}.get(kind, 0)
    return passes * payload_bytes * (ranks - 1) // ranks


class Traffic:
    """Calls and bytes by kind."""

    def __init__(self):
        self.figures = {name: dict.fromkeys(KINDS, 0) for name in
                        ("calls", "payload_bytes", "padding_bytes", "ring_bytes", "moved_bytes")}

    def add(self, kind, members, times, payload=0, padded=0, moved=0):
        """`times` collectives of so many bytes; payload is all slices, unpadded."""
        figures = {"calls": 1, "payload_bytes": payload, "padding_bytes": padded - payload,
                   "ring_bytes": ring_bytes(kind, payload, members), "moved_bytes": moved}
        for name, value in figures.items():
            self.figures[name][kind] += times * value


    def add_second(self, members, block, times, payload, padded):
        """Gathers from a block's secondary shards, but for the first that one of its ranks makes:
        it comes from all owners and fills them, a slice of each rank. Ring bytes: the block's
        mean."""
        self.add("all_gather", block, times, payload, padded, padded)
        total = ring_bytes("all_gather", payload, members) + \
            (block * times - 1) * ring_bytes("all_gather", payload, block)
        self.figures["ring_bytes"]["all_gather"] += \
            total // block - times * ring_bytes("all_gather", payload, block)
        self.figures["moved_bytes"]["all_gather"] += padded // block


def add_reduction(traffic, layout, bucket, rank, accumulate, micro_steps, all_reduce):
    """Of a bucket: within runs with every micro-step that sends, between them once. `all_reduce`
    in stages 1-3: the whole result goes over what was summed."""
    group = layout.groups[bucket.group]
    summed = accumulate == "local" and micro_steps > 1  # by the service, in accumulators
    read = bucket.bytes_of(bucket.accum_dtype if summed else bucket.grad_dtype)
    written = read if all_reduce else 0
    if layout.stage == 0:
        written = bucket.bytes_of(bucket.accum_dtype)
    traffic.add("all_reduce" if written else "reduce_scatter", group.shard_ranks,
                1 if accumulate == "local" else micro_steps,
                bucket.bytes_of(bucket.grad_dtype, False), bucket.bytes_of(bucket.grad_dtype),
                read + written)
    runs = len(group.ranks) // group.shard_ranks
    if runs > 1:
        _, numel, valid = layout.slice(bucket, group.ranks.index(rank) % group.shard_ranks)
        size = SIZES[bucket.accum_dtype]
        traffic.add("all_reduce", runs, 1, valid * size, numel * size, 2 * numel * size)


def gathers_of(layout, rank, micro_steps, reuse_bytes):
    """How often a step gathers each fetch unit: forward and backward, less where it is kept. The
    budget is taken to allow that."""
    sizes = [sum(b.bytes_of(b.dtype) for b in layout.fetch_unit_buckets(number)
                 if rank in layout.groups[b.group].ranks)
             for number in range(len(layout.fetch_units))]
    planned = [n for n, size in enumerate(sizes) if size and layout.fetch_units[n].units]
    order = (planned + planned[::-1]) * micro_steps
    times, between = collections.Counter(), {}
    for number in order:
        if between.get(number, reuse_bytes) >= reuse_bytes:
            times[number] += 1
        between = {other: passed + sizes[number] for other, passed in between.items()}
        between[number] = 0
    if layout.persistent:
        times[0] = 1
    return times


def second_buckets(layout, secondary_ranks):
    """Buckets whose parameters blocks of ranks keep a second time: not those that persist."""
    if not 0 < secondary_ranks < len(layout.groups[0].ranks):
        return []
    return [b for b in layout.buckets
            if b.group == 0 and layout.fetch_units[b.fetch_unit].units]


def step_traffic(layout, rank, accumulate, micro_steps, mapped, gathers, reuse_bytes, group,
                 secondary_ranks, all_reduce):
    """One optimizer step of a rank; `group`: that group's part of it, None: all."""
    second = second_buckets(layout, secondary_ranks)
    traffic = Traffic()
    for bucket in layout.of_rank(rank, group):
        add_reduction(traffic, layout, bucket, rank, accumulate, micro_steps, all_reduce)
        if layout.stage in (1, 2):
            traffic.add("all_gather", layout.groups[bucket.group].shard_ranks, 1,
                        bucket.bytes_of(bucket.dtype, False), bucket.bytes_of(bucket.dtype),
                        (bucket.padded - layout.span(bucket)) * SIZES[bucket.dtype])
    times = gathers_of(layout, rank, micro_steps, reuse_bytes) if layout.stage == 3 else {}
    for number, count in times.items():
        if gathers is not None and layout.fetch_units[number].units:
            count = gathers
        mine = [b for b in layout.fetch_unit_buckets(number)
                if rank in layout.groups[b.group].ranks and group in (None, b.group)]
        for buckets in in_order_of_appearance(mine, lambda b: b.group):  # one launch each
            padded = sum(b.bytes_of(b.dtype) for b in buckets)
            payload = sum(b.bytes_of(b.dtype, False) for b in buckets)
            owners = layout.groups[buckets[0].group].shard_ranks
            if buckets[0] in second:
                traffic.add_second(owners, secondary_ranks, count, payload, padded)
            else:
                traffic.add("all_gather", owners, count, payload, padded, 0 if mapped else padded)
    if group is None:
        traffic.add("control", 1, 1)
    return traffic.figures


# ---- what crosses nodes --------------------------------------------------------------------------


def partial_sums(nodes):
    """[(node, members)] of the partial sums that leave their nodes: of each largest subtree of the
    fixed tree whose members are all on one node. nodes: of the members, in order."""
    tree = [({node}, 1) for node in nodes]
    sent = []
    while len(tree) > 1:
        pairs = [tree[i:i + 2] for i in range(0, len(tree), 2)]
        tree = []
        for pair in pairs:
            where = set().union(*(on for on, _ in pair))
            if len(pair) > 1 and len(where) > 1:
                sent += [(*on, members) for on, members in pair if len(on) == 1]
            tree.append((where, sum(members for _, members in pair)))
    return sent


class Crossing:
    """Bytes that nodes send to others, by kind and node. nodes: of all ranks."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.sent = {kind: [0] * (max(nodes) + 1) for kind in KINDS}

    def add_sums(self, kind, ranks, slice_numel, dtype, times):
        """Partial sums, to the owner of each slice; a lone contribution as it is, sums in fp32."""
        on = [self.nodes[rank] for rank in ranks]
        for node, members in partial_sums(on):
            size = SIZES[dtype] if members == 1 else 4
            self.sent[kind][node] += times * slice_numel * size * (len(on) - on.count(node))

    def add_slices(self, kind, ranks, slice_bytes, times):
        """Each slice once to each other node."""
        on = [self.nodes[rank] for rank in ranks]
        for node in on:
            self.sent[kind][node] += times * slice_bytes * (len(set(on)) - 1)


def add_run(crossing, layout, bucket, run, times, gathers, all_reduce):
    """Of a bucket, over the ranks that share its shards."""
    numel = bucket.padded // len(run)
    kind = "all_reduce" if all_reduce or layout.stage == 0 else "reduce_scatter"
    crossing.add_sums(kind, run, numel, bucket.grad_dtype, times)
    if layout.stage:
        crossing.add_slices("all_gather", run, numel * SIZES[bucket.dtype], gathers)
    if kind == "all_reduce":
        result = bucket.grad_dtype if layout.stage else bucket.accum_dtype
        crossing.add_slices("all_reduce", run, numel * SIZES[result], times)


def add_blocks(crossing, layout, bucket, secondary_ranks, gathers):
    """Of a bucket that blocks of ranks keep a second time, what they gather from that."""
    ranks = layout.groups[bucket.group].ranks
    for first in range(0, len(ranks), secondary_ranks):
        crossing.add_slices("all_gather", ranks[first:first + secondary_ranks],
                            bucket.bytes_of(bucket.dtype) // secondary_ranks, gathers)


def cross_node_bytes(layout, nodes, accumulate, micro_steps, gathers, reuse_bytes,
                     secondary_ranks, all_reduce):
    """{kind: bytes that each node sends} of a step. Ranks of a node that gather the same at the
    same time share what comes. Without fills of secondary shards, which stay on a node if blocks
    do."""
    crossing, second = Crossing(nodes), second_buckets(layout, secondary_ranks)
    for bucket in layout.buckets:
        ranks, shards = layout.groups[bucket.group]
        for first in range(0, len(ranks), shards):
            run, count = ranks[first:first + shards], 1
            if layout.stage == 3:
                count = gathers_of(layout, run[0], micro_steps, reuse_bytes)[bucket.fetch_unit]
                if gathers is not None and layout.fetch_units[bucket.fetch_unit].units:
                    count = gathers
            if bucket in second:
                add_blocks(crossing, layout, bucket, secondary_ranks, count)
                count = 1
            add_run(crossing, layout, bucket, run, 1 if accumulate == "local" else micro_steps,
                    count, all_reduce)
        between = bucket.padded // len(ranks)
        for index in range(shards if shards < len(ranks) else 0):
            crossing.add_sums("all_reduce", ranks[index::shards], between, bucket.accum_dtype, 1)
            crossing.add_slices("all_reduce", ranks[index::shards],
                                between * SIZES[bucket.accum_dtype], 1)
    return crossing.sent


# ---- what is held --------------------------------------------------------------------------------


def gradient_memory(layout, buckets, accumulate, micro_steps):
    """Bytes of full gradient buffers, accumulators and gradient shards of a rank."""
    several, total = micro_steps > 1, 0
    for bucket in buckets:
        alike = bucket.accum_dtype == bucket.grad_dtype
        full = bucket.bytes_of(bucket.accum_dtype)
        if layout.stage <= 1 or accumulate == "local":
            total += bucket.bytes_of(bucket.grad_dtype)  # where gradients are written
        if several and (accumulate == "local" or layout.stage == 0):
            total += full  # where they are added up over micro-steps
        elif layout.stage == 0 and not alike:
            total += full  # where they are reduced to
        if layout.stage >= 2 or (layout.stage == 1 and
                                 (not alike or (several and accumulate == "shard"))):
            total += layout.span(bucket) * SIZES[bucket.accum_dtype]  # reduced gradients
    return total


def gathered_memory(layout, rank, gather_bytes):
    """The persistent parameters, and a pool for the others."""
    def bytes_for(whom, number):
        return sum(b.bytes_of(b.dtype) for b in layout.fetch_unit_buckets(number)
                   if whom in layout.groups[b.group].ranks)

    first = 1 if layout.persistent else 0
    numbers = range(first, len(layout.fetch_units))
    mine = [bytes_for(rank, n) for n in numbers]
    if gather_bytes == 0:  # the three largest of the rank that has the most
        gather_bytes = max((sum(sorted((bytes_for(r, n) for n in numbers), reverse=True)[:3])
                            for r in layout.groups[0].ranks), default=0)
    pool = min(gather_bytes + max(mine, default=0), sum(mine))
    return pool + (bytes_for(rank, 0) if layout.persistent else 0)


def rank_memory(layout, rank, accumulate, micro_steps, mapped, ring_slots, gather_bytes, arrays,
                group, secondary_ranks):
    """Bytes of one rank by what lies in them. `arrays`: fp32 shard arrays of the optimizer.
    `group`: its part, which the pools that serve all groups are none of."""
    buckets = layout.of_rank(rank, group)
    spans = sum(layout.span(b) for b in buckets)
    halves = sum(layout.span(b) for b in buckets if b.dtype != "fp32")
    held = dict.fromkeys(MEMORIES, 0)
    if mapped:  # one copy for all ranks
        held["params"] = sum(b.bytes_of(b.dtype) for b in layout.buckets
                             if group in (None, b.group)) // len(layout.groups[0].ranks)
    elif layout.stage == 3:
        held["params"] = sum(layout.span(b) * SIZES[b.dtype] for b in buckets)
        held["params"] += sum(b.bytes_of(b.dtype) // secondary_ranks
                              for b in second_buckets(layout, secondary_ranks) if b in buckets)
        held["gathered"] = gathered_memory(layout, rank, gather_bytes)
    else:
        held["params"] = sum(b.bytes_of(b.dtype) for b in buckets)
    held["gradients"] = gradient_memory(layout, buckets, accumulate, micro_steps)
    if layout.stage >= 2 and accumulate == "shard" and buckets:
        slots = min(ring_slots, max(1, len(layout.buckets) * micro_steps))
        held["buckets"] = slots * max(b.bytes_of(b.grad_dtype) for b in layout.buckets)
    held["optimizer"] = 4 * arrays * spans + 4 * halves  # and masters
    if group is not None:
        del held["buckets"], held["gathered"]
    return held


def expected(parameters, stage, ranks, bucket_bytes, align_bytes=64, micro_steps=1,
             accumulate="auto", gather="private", ring_slots=3, gather_bytes=0,
             optimizer_arrays=2, gathers=None, rank=0, groups=(), shard_ranks=0, persist_bytes=0,
             reuse_bytes=0, accum_as_grads=False, group=None, nodes=(), secondary_ranks=0,
             all_reduce=False):
    """Figures of one optimizer step and the memory of one rank, named as in demo.sh's JSON.

    `parameters`: Parameter tuples in order of registration. `gathers`: how often a step gathers
    each fetch unit in stage 3 (None: forward and backward of each micro-step). `group`: only what
    that group of the rank's sends and holds, its buckets and their padding. `nodes`: the node of
    each rank; then, by kind, what each node sends to others of all ranks' collectives.
    """
    parameters = [Parameter(*p) for p in parameters]
    if accumulate == "auto":
        accumulate = "local" if stage <= 1 else "shard"
    mapped = stage == 3 and gather == "mapped"
    if stage < 3:
        secondary_ranks = 0
    layout = make_layout(parameters, stage, ranks, bucket_bytes, max(align_bytes, 4), groups,
                         shard_ranks, persist_bytes, accum_as_grads)
    result = {"stage": stage, "ranks": ranks, "bucket_bytes": bucket_bytes,
              "accumulate": accumulate, "micro_steps": micro_steps, "gather": gather,
              "params": layout.numel, "padded": layout.padded, "buckets": len(layout.buckets),
              "units": len(layout.units), "fetch_units": len(layout.fetch_units)}
    result.update(step_traffic(layout, rank, accumulate, micro_steps, mapped, gathers,
                               reuse_bytes, group, secondary_ranks, all_reduce))
    result["memory_bytes"] = rank_memory(layout, rank, accumulate, micro_steps, mapped, ring_slots,
                                         gather_bytes, optimizer_arrays, group,
                                         secondary_ranks)
    if nodes:
        result["cross_node_bytes"] = cross_node_bytes(layout, nodes, accumulate, micro_steps,
                                                      gathers, reuse_bytes, secondary_ranks,
                                                      all_reduce)
    if group is not None:
        result["buckets"] = len(layout.of_rank(rank, group))
        result["layout_padding_bytes"] = sum(
            b.bytes_of(b.grad_dtype) - b.bytes_of(b.grad_dtype, False)
            for b in layout.of_rank(rank, group))
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
    of_param = collections.defaultdict(set)  # buckets
    for number, bucket in enumerate(layout.buckets):
        for piece in bucket.pieces:
            of_param[piece.param].add(number)
    fetch_unit_of = {u: f for f, fetch in enumerate(layout.fetch_units) for u in fetch.units}
    units = []
    for number, unit in enumerate(layout.units):
        held = set().union(*(of_param[i] for i in unit.params if i not in layout.persistent))
        units.append({"name": unit.name, "first_param": unit.params[0],
                      "params": len(unit.params), "first_bucket": min(held, default=0),
                      "buckets": max(held) - min(held) + 1 if held else 0,
                      "fetch_unit": fetch_unit_of.get(number),
                      "persistent": int(any(i in layout.persistent for i in unit.params))})
    return {
        "numel": layout.numel, "padded_numel": layout.padded,
        "max_bucket_bytes": max((b.bytes_of(b.grad_dtype) for b in layout.buckets), default=0),
        "buckets": [{"offset": b.offset, "numel": b.numel, "padded_numel": b.padded,
                     "group": b.group, "dtype": b.dtype, "grad_dtype": b.grad_dtype,
                     "accum_dtype": b.accum_dtype, "fetch_unit": b.fetch_unit}
                    for b in layout.buckets],
        "pieces": [{"param": piece.param, "bucket": number, "bucket_offset": piece.bucket_offset,
                    "param_offset": piece.param_offset, "numel": piece.numel}
                   for number, bucket in enumerate(layout.buckets) for piece in bucket.pieces],
        "slices": [[list(layout.slice(bucket, index))
                    for index in range(layout.groups[bucket.group].shard_ranks)]
                   for bucket in layout.buckets],
        "units": units,
        "fetch_units": [{"first_unit": min(fetch.units, default=0),
                         "units": max(fetch.units) - min(fetch.units) + 1 if fetch.units else 0,
                         "numel": sum(parameters[i].numel for i in fetch.params)}
                        for fetch in layout.fetch_units],
        "groups": [{"ranks": list(group.ranks), "shard_ranks": group.shard_ranks}
                   for group in layout.groups],
        "names": [parameter.name for parameter in parameters],
        "persistent": list(layout.persistent),
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
            layout = make_layout(parameters, options.stage, options.ranks, options.bucket,
                                 options.align)
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
