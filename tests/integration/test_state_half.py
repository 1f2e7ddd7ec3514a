# SPDX-License-Identifier: Apache-2.0
"""Saved state of parameters and shard arrays in half precision, and of ranks that hold nothing.

Masters are fp32 in the files, arrays what they are, bit for bit, NaNs included.
ctest: device=cuda timeout=300
"""
import ctypes as C

import pytest

import gw
from test_state import (MINUTE, bits, load, new_id, numel, owned,  # noqa: F401
                        read_state, save, where)

FP32, FP16, BF16 = gw.FP32, gw.FP16, gw.BF16
MODEL = [("a", (10, 10), FP16), ("b", (33,), BF16), ("c", (7,), FP32)]
ARRAYS = {"m16": FP16, "v16": BF16, "w": FP32}
BYTES = {FP32: 4, FP16: 2, BF16: 2}
NAMES = {FP32: "F32", FP16: "F16", BF16: "BF16"}
WORLD = 3


def array_bits(array, param):
    name, shape, _ = MODEL[param]
    return bits(f"{array}.{name}", numel(shape))[:BYTES[ARRAYS[array]] * numel(shape)]


def wanted():
    out = {name: ("F32", shape, bits(name, numel(shape))) for name, shape, _ in MODEL}
    return {**out, **{f"{array}.{name}": (NAMES[dtype], shape, array_bits(array, param))
                      for array, dtype in ARRAYS.items()
                      for param, (name, shape, _) in enumerate(MODEL)}}


def open_job(rank, world, where, stage, idle=None):
    """`idle` is the rank that is in no group."""
    job = gw.Job(rank, world, id_path=where["id"], socket=where["socket"])
    job.wait_ready()
    group = 0 if idle is None else job.param_group([r for r in range(world) if r != idle])
    for name, shape, dtype in MODEL:
        job.param(name, numel(shape), dtype=dtype, grad_dtype=dtype, group=group)
    job.seal(stage=stage, bucket_bytes=80, shard_align_bytes=4)
    assert (job.spans() == []) == (rank == idle)
    return job


def own_parts(job):
    """(array, address, its bytes) of all that the rank has of arrays."""
    for array, dtype in ARRAYS.items():
        values, count = job.array(array, dtype)
        assert count == sum(s.numel for s in job.spans())
        base = C.addressof(values.contents) if dtype == FP32 and not gw.GPU else values.address
        for param, offset, at, part in owned(job, MODEL):
            data = array_bits(array, param)
            yield (array, base + BYTES[dtype] * at,
                   data[BYTES[dtype] * offset:BYTES[dtype] * (offset + part)])


def fill_job(job):
    for param, (name, shape, _) in enumerate(MODEL if job.rank == 0 else ()):
        gw.call("gw_param_write_sync", job.handle, C.c_uint32(param), C.c_uint64(0),
                C.c_uint64(numel(shape)), bits(name, numel(shape)), C.c_int64(MINUTE))
    for _, address, data in own_parts(job):
        if gw.GPU:
            gw.GPU.put(address, data)
        else:
            C.memmove(address, data, len(data))
    job.barrier()


def check_job(job):
    for param, (name, shape, _) in enumerate(MODEL):
        data = C.create_string_buffer(4 * numel(shape))
        gw.call("gw_param_read_sync", job.handle, C.c_uint32(param), C.c_uint64(0),
                C.c_uint64(numel(shape)), data, C.c_int64(MINUTE))
        assert data.raw == bits(name, numel(shape)), name
    for array, address, data in own_parts(job):
        got = gw.GPU.get(address, len(data)) if gw.GPU else C.string_at(address, len(data))
        assert got == data, array


def save_all(job, where, number):
    save(job, f"{where['out']}/{number}", model=[(n, s, None) for n, s, _ in MODEL],
         arrays=list(ARRAYS))


def load_all(job, where, number, **options):
    load(job, f"{where['out']}/{number}", model=[(n, s, None) for n, s, _ in MODEL],
         arrays=list(ARRAYS), **options)


def first_rank(rank, world, where, stage, idle):
    job = open_job(rank, world, where, stage, idle)
    fill_job(job)
    save_all(job, where, 0)
    job.close()


def next_rank(rank, world, where, stage, idle, number):
    """Its arrays come to be with the load."""
    job = open_job(rank, world, where, stage, idle)
    load_all(job, where, number)
    check_job(job)
    save_all(job, where, number + 1)
    job.close()


# Rank 0 writes what all share of the files.
@pytest.mark.parametrize("stage, idle", [(0, 1), (1, 0), (2, 1), (3, 0)])
def test_halves_and_ranks_without_a_shard(where, stage, idle):  # noqa: F811
    gw.run(WORLD, first_rank, WORLD, new_id(where, "first"), stage, idle)
    assert read_state(f"{where['out']}/0") == wanted()
    for number, (world, other) in enumerate([(WORLD, 1 - idle), (2, None)]):
        gw.run(world, next_rank, world, new_id(where, number), (stage + 1) % 4, other, number)
        assert read_state(f"{where['out']}/{number + 1}") == wanted()


def refused_rank(rank, world, where):
    """Rank 1, which is idle, has made no array; then all have made them, m16 in another dtype."""
    job = open_job(rank, world, where, 3, 1)
    out, told = [], []
    if rank != 1:
        fill_job(job)
    else:
        job.barrier()
    with pytest.raises(gw.Error) as caught:
        save_all(job, where, 0)
    out.append((caught.value.name, caught.value.text))
    for array, dtype in ARRAYS.items():
        job.array(array, dtype)
    save_all(job, where, 0)
    job.close()
    job = open_job(rank, world, new_id(where, "again"), 3, 1)
    job.array("m16", BF16)
    with pytest.raises(gw.Error) as caught:
        load_all(job, where, 0, told=told)
    out.append((caught.value.name, caught.value.text))
    job.array("v16", FP32)  # was not made by a load that failed
    job.close()
    return out, told


def test_arrays_that_differ_are_told(where):  # noqa: F811
    results = gw.run(WORLD, refused_rank, WORLD, where)
    assert results[0] == results[1] == results[2]
    (unmade, differs), told = results[0]
    assert unmade[0] == "GW_E_NOT_FOUND" and "rank 1: there is no shard array m16" in unmade[1]
    assert differs[0] == "GW_E_MISMATCH" and "3 differences" in differs[1], differs
    assert told == [f"tensor m16.{name} has dtype F16 in the file, BF16 here"
                    for name, _, _ in MODEL]
