# SPDX-License-Identifier: Apache-2.0
"""Ranks of the checks: one on a GPU, and pairs of the host that copy from and to one."""
import ctypes as C
import struct

import gpu as gpus
import gw


class Trainer(gw.Job):
    """The only rank of a job, on the GPU."""

    def __init__(self, **options):
        super().__init__(0, 1, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        if gw.GPU:
            gw.GPU.sync()


def _staged(rank, id_path, socket, count):
    """A rank whose values are on the GPU, and whose job is the host's."""
    gpu = gpus.Gpu(0, gw.call)
    job = gw.Job(rank, 2, id_path, socket)
    values = gpu.alloc(4 * count)
    word = struct.unpack("I", struct.pack("f", 1.5 + rank))[0]
    gpu.do("cuMemsetD32Async", C.c_uint64(values), C.c_uint(word), C.c_size_t(count), gpu.stream)
    send, recv = job.buffer(4 * count), job.buffer(4 * count)
    for data, copy in ((send, "cuMemcpyDtoHAsync_v2"), (recv, "cuMemcpyHtoDAsync_v2")):
        address = C.c_void_p(gw.LIB.gw_buffer_data(data.handle))
        if data is send:
            gpu.do(copy, address, C.c_uint64(values), C.c_size_t(4 * count), gpu.stream)
            gpu.sync()
            job.wait(job.all_reduce(send.at(), recv.at(), count, scale=0.5))
        else:
            gpu.do(copy, C.c_uint64(values), address, C.c_size_t(4 * count), gpu.stream)
    got = gpu.floats(values)[0:count]
    job.barrier()
    job.close()
    gpu.free(values)
    gpu.close()
    return [got[0], got[-1], sum(x == got[0] for x in got)]


def staged_ranks(service, count):
    results = gw.run(2, _staged, str(service.directory.with_suffix(".id")), str(service.socket),
                     count, timeout=60, env={"GW_TEST_DEVICE": "host"})
    for rank, result in enumerate(results):
        assert result == [2.0, 2.0, count], f"rank {rank} has {result}, not 2.0 {count} times"
    return {"values": count, "ranks": 2}
