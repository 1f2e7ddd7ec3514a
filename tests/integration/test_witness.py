# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=60
"""moved_bytes beside an outside witness: the bytes that a client sees change in its own memory.

All bytes of the value are different from 0, fresh memory is all 0, and sizes leave no padding; so
what a gather moved to a rank can be counted where it arrived.
"""
import ctypes
import struct

import gw

VALUE = struct.unpack("<f", b"\x11\x22\x33\x41")[0]
NUMEL = 2 * 64 * 16  # two ranks, slices aligned to 16 elements


def changed(pointer, numel):
    return sum(b != 0 for b in ctypes.string_at(pointer, 4 * numel))


def gather_rank(rank, where):
    job = gw.Job(rank, 2, id_path=where["id"], socket=where["socket"], linger_ns=-1)
    job.wait_ready()
    job.param("p", NUMEL)
    job.seal(stage=3, bucket_bytes=NUMEL * 4)
    if rank == 0:
        job.write(0, [VALUE] * NUMEL)
    job.barrier()
    before = job.stats().kinds[2].moved_bytes
    job.wait(job.fetch(0))
    view = ctypes.POINTER(ctypes.c_float)()
    gw.call("gw_param_ptr", job.handle, ctypes.c_uint32(0), ctypes.byref(view))
    seen = changed(view, NUMEL)
    job.release(0)
    counted = job.stats().kinds[2].moved_bytes - before
    job.barrier()
    job.close()
    return seen, counted


def test_a_gather_moves_what_the_client_sees_arrive(daemon, tmp_path):
    where = {"socket": str(daemon.socket), "id": str(tmp_path / "id")}
    assert gw.run(2, gather_rank, where) == [(NUMEL * 4, NUMEL * 4)] * 2
