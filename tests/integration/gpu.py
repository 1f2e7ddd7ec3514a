# SPDX-License-Identifier: Apache-2.0
"""A rank's GPU for gw.py, through the driver API (libcuda.so.1: real, or the double of
tests/fakegpu): context, stream, and memory that reads and writes like a list of floats.
"""
import ctypes as C
import os
import struct

NON_BLOCKING = 1


class CudaError(Exception):
    """A failed driver call."""


class Floats:
    """Device memory from an address on, as ctypes.POINTER(c_float) would show the host's. Each
    access is a copy on the rank's stream, and waits for it."""

    def __init__(self, gpu, address):
        self.gpu, self.address = gpu, address

    def __getitem__(self, key):
        if not isinstance(key, slice):
            return self[key:key + 1][0]
        first, last = key.start or 0, key.stop
        if last <= first:
            return []
        data = self.gpu.get(self.address + 4 * first, 4 * (last - first))
        return list(struct.unpack(f"{last - first}f", data))

    def __setitem__(self, key, value):
        if isinstance(key, slice):
            first, values = key.start or 0, list(value)
        else:
            first, values = key, [value]
        self.gpu.put(self.address + 4 * first, struct.pack(f"{len(values)}f", *values))


class Gpu:
    """The GPU that `rank` uses; `call` is gw.call. Lives as long as the process."""

    def __init__(self, rank, call):
        self.cuda = C.CDLL("libcuda.so.1")
        self.call = call
        self.library = C.CDLL(os.environ.get("GRADWIRE_CUDA_LIB") or os.path.join(
            os.environ["GRADWIRE_BUILD"], "client/cuda/libgradwire-cuda.so"), C.RTLD_GLOBAL)
        self.library.gw_cuda_device_free.argtypes = [C.c_void_p]
        self.do("cuInit", 0)
        count, self.context = C.c_int(), C.c_void_p()
        self.do("cuDeviceGetCount", C.byref(count))
        self.ordinal = rank % count.value
        self.do("cuDevicePrimaryCtxRetain", C.byref(self.context), self.ordinal)
        self.enter()
        self.streams, self.memory, self.pinned = [], set(), []
        self.stream = self.new_stream()
        self.device = C.c_void_p()
        self.gradwire("gw_cuda_device_new", self.ordinal, C.byref(self.device))

    def enter(self):
        """What each thread that uses it begins with."""
        self.do("cuCtxSetCurrent", self.context)

    def close(self):
        """Nothing is left then: what the doubles find after it is a leak."""
        self.sync()
        for address in list(self.memory):
            self.free(address)
        for stream in self.streams:
            self.do("cuStreamDestroy_v2", stream)
        for host in self.pinned:
            self.do("cuMemFreeHost", host)
        self.library.gw_cuda_device_free(self.device)
        self.do("cuDevicePrimaryCtxRelease_v2", self.ordinal)

    def do(self, name, *args):
        error = getattr(self.cuda, name)(*args)
        if error:
            text = C.c_char_p()
            self.cuda.cuGetErrorName(error, C.byref(text))
            raise CudaError(f"{name}: {(text.value or b'?').decode()} ({error})")

    def gradwire(self, name, *args):
        """A call of libgradwire-cuda, its errors as gw.call's."""
        return self.call(name, *args, lib=self.library)

    def new_stream(self):
        stream = C.c_void_p()
        self.do("cuStreamCreate", C.byref(stream), NON_BLOCKING)
        self.streams.append(stream)
        return stream

    def attach(self, job):
        self.gradwire("gw_cuda_set_stream", job, self.stream)

    def floats(self, address):
        return Floats(self, address)

    def alloc(self, nbytes):
        address = C.c_uint64()
        self.do("cuMemAlloc_v2", C.byref(address), C.c_size_t(nbytes))
        self.memory.add(address.value)
        return address.value

    def free(self, address):
        self.memory.discard(address)
        self.do("cuMemFree_v2", C.c_uint64(address))

    def segment(self, nbytes):
        """Address and bytes of memory that has no IPC handle, as expandable segments have none."""
        # CUmemAllocationProp: pinned, no handle type, on this device
        prop = struct.pack("=IIIIQQ", 1, 0, 1, self.ordinal, 0, 0)
        access = struct.pack("=III", 1, self.ordinal, 3)  # CUmemAccessDesc: read and write
        unit, handle, address = C.c_size_t(), C.c_uint64(), C.c_uint64()
        self.do("cuMemGetAllocationGranularity", C.byref(unit), prop, 0)
        size = C.c_size_t(-(-nbytes // unit.value) * unit.value)
        self.do("cuMemCreate", C.byref(handle), size, prop, C.c_uint64(0))
        self.do("cuMemAddressReserve", C.byref(address), size, C.c_size_t(0), C.c_uint64(0),
                C.c_uint64(0))
        self.do("cuMemMap", address, size, C.c_size_t(0), handle, C.c_uint64(0))
        self.do("cuMemSetAccess", address, size, access, C.c_size_t(1))
        self.do("cuMemRelease", handle)
        return address.value, size.value

    def segment_free(self, address, size):
        self.do("cuMemUnmap", C.c_uint64(address), C.c_size_t(size))
        self.do("cuMemAddressFree", C.c_uint64(address), C.c_size_t(size))

    def put(self, address, data, stream=None):
        self.do("cuMemcpyHtoDAsync_v2", C.c_uint64(address), data, C.c_size_t(len(data)),
                stream or self.stream)
        self.sync(stream)

    def get(self, address, nbytes, stream=None):
        data = C.create_string_buffer(nbytes)
        self.do("cuMemcpyDtoHAsync_v2", data, C.c_uint64(address), C.c_size_t(nbytes),
                stream or self.stream)
        self.sync(stream)
        return data.raw

    def copy(self, to, source, nbytes, stream=None):
        """Enqueued only: device to device."""
        self.do("cuMemcpyAsync", C.c_uint64(to), C.c_uint64(source), C.c_size_t(nbytes),
                stream or self.stream)

    def constant(self, count, value):
        """New device memory that holds `count` times the value."""
        address = self.alloc(4 * count)
        self.put(address, struct.pack("f", value) * count)
        return address

    def hold(self, stream=None):
        """The stream waits for a word of nobody's but ours; the function that is returned lets it
        go on."""
        host, address = C.c_void_p(), C.c_uint64()
        self.do("cuMemHostAlloc", C.byref(host), C.c_size_t(8), 1 | 2)  # portable, device map
        self.pinned.append(host)
        word = C.c_uint64.from_address(host.value)
        word.value = 0
        self.do("cuMemHostGetDevicePointer_v2", C.byref(address), host, 0)
        self.do("cuStreamWaitValue64_v2", stream or self.stream, address, C.c_uint64(1), 0)
        return lambda: setattr(word, "value", 1)

    def wait(self, job, token, stream=None):
        """gw_stream_wait; `token` is a gw.Token."""
        self.call("gw_stream_wait", job.handle, token, stream or self.stream)

    def record(self, job, token, stream=None):
        """gw_record into `token`, which is returned."""
        self.call("gw_record", job.handle, stream or self.stream, C.byref(token))
        return token

    def sync(self, stream=None):
        self.do("cuStreamSynchronize", stream or self.stream)
