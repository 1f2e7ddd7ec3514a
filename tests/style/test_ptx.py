# SPDX-License-Identifier: Apache-2.0
# ctest: label=cuda
"""What nvcc made of the CUDA kernels, the example trainer's too: nothing is contracted or
reassociated, and kernels whose bits are promised have no way to depend on the order of threads."""
import os
import pathlib
import re

import pytest

LIB = pathlib.Path(os.environ.get("GRADWIRE_BUILD", "build/release")) / "lib"
SOURCE = pathlib.Path(os.environ.get("GRADWIRE_SOURCE") or pathlib.Path(__file__).parents[2])
# Kernels that may use atomics: on words that others look at.
SIGNALS = {"gw_k_finish", "gw_k_hold"}
# exp() and log() of CUDA's library are made of fma, and approximate on the way.
OF_LIBRARY = {"charlm_k_loss"}
CONTRACTED = re.compile(r"fma\b.*|mad\.(r[nzmp]\.)?(ftz\.)?(sat\.)?f(16|32|64)|mad\.f.*")
# Without .rn, ptxas is free to contract them.
FREE = re.compile(r"(add|sub|mul)\.(?!rn\.)\S*f(16|32|64)")
NOT_EXACT = re.compile(r"\S*\.(ftz|approx|full)(\.\S*)?|(div|sqrt|rcp)\.(?!rn\.)\S*f(32|64)")
TOGETHER = re.compile(r"(atom|red|shfl|vote|bar|barrier|match|redux|ld\.shared|st\.shared)\b.*")


def kernels(text):
    """{name: its instructions}; only what begins a statement is an instruction."""
    found = {}
    for part in re.split(r"(?=^\.visible \.entry )", text, flags=re.M)[1:]:
        name = re.match(r"\.visible \.entry (\w+)", part).group(1)
        found[name] = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)[\s;]", part, re.M)
    return found


def read(name):
    path = LIB / name
    if not path.exists():
        pytest.skip(f"{path}: built without CUDA")
    return path.read_text()


@pytest.fixture(scope="module")
def ptx():
    return read("kernels.ptx")


def found(text, pattern, skip=()):
    return [f"{name}: {one}" for name, all_of_it in kernels(text).items() if name not in skip
            for one in all_of_it if pattern.fullmatch(one)]


def test_every_kernel_is_there(ptx):
    source = (SOURCE / "daemon/device/cuda/kernels.cu").read_text()
    assert sorted(kernels(ptx)) == sorted(re.findall(r"^GW_KERNEL\((\w+)\)", source, re.M))
    assert len(kernels(ptx)) >= 10
    assert all(len(instructions) > 5 for instructions in kernels(ptx).values())


def test_nothing_is_contracted(ptx):
    assert found(ptx, CONTRACTED) == []
    assert found(ptx, FREE) == []


def test_numbers_are_rounded_as_ieee_754_says(ptx):
    assert found(ptx, NOT_EXACT) == []


def test_threads_of_sums_share_nothing(ptx):
    assert found(ptx, TOGETHER, SIGNALS) == []
    assert ".shared" not in ptx and ".local" not in ptx
    assert ".extern" not in ptx and ".func" not in ptx


def test_the_trainer_is_held_to_the_same():
    trainer = read("charlm_kernels.ptx")
    assert OF_LIBRARY < set(kernels(trainer))
    assert found(trainer, FREE) == []
    for rule in (CONTRACTED, NOT_EXACT, TOGETHER):
        assert found(trainer, rule, OF_LIBRARY) == []


def test_the_rules_find_what_they_look_for():
    bad = """
.visible .entry a(
        fma.rn.f32      %f1, %f2, %f3, %f4;
        @%p1 mad.rn.f64 %f1, %f2, %f3, %f4;
        mad.lo.s32      %r1, %r2, %r3, %r4;
        add.f32         %f1, %f2, %f3;
        mul.ftz.f32     %f1, %f2, %f3;
        add.rn.f64      %f1, %f2, %f3;
        div.full.f32    %f1, %f2, %f3;
        sqrt.rn.f64     %f1, %f2;
        atom.global.add.u32     %r1, [%rd1], 1;
        bar.sync        0;
        add.s64         %rd1, %rd2, 4;
"""
    assert found(bad, CONTRACTED) == ["a: fma.rn.f32", "a: mad.rn.f64"]
    assert found(bad, FREE) == ["a: add.f32", "a: mul.ftz.f32"]
    assert found(bad, NOT_EXACT) == ["a: mul.ftz.f32", "a: div.full.f32"]
    assert found(bad, TOGETHER) == ["a: atom.global.add.u32", "a: bar.sync"]
    assert found(bad, TOGETHER, {"a"}) == []
