# SPDX-License-Identifier: Apache-2.0
"""libgradwire for tests: a thin ctypes binding, and real processes as ranks.

The library is $GRADWIRE_LIB (default: $GRADWIRE_BUILD/client/lib/libgradwire.so). With
$GW_TEST_DEVICE=cuda every rank has a GPU (gpu.py), and what calls return as pointers are arrays in
its memory, read and written like the host's. Nothing here knows what results should be; tests say
that.
"""
import ctypes as C
import multiprocessing
import os
import struct
import sys
import time
import traceback

FOREVER = (1 << 63) - 1
S = 1_000_000_000

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "control")
MEMORY = ("params", "gradients", "buckets", "gathered", "optimizer")
ACCUMULATE, RUNNING = 1, 2
FP32, FP16, BF16 = 0, 1, 2  # enum gw_dtype


class Token(C.Structure):
    _fields_ = [("timeline", C.c_uint32), ("reserved", C.c_uint32), ("value", C.c_uint64)]


class JobId(C.Structure):
    _fields_ = [("size", C.c_uint32), ("bytes", C.c_uint8 * 256)]


class JobOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("socket_path", C.c_char_p), ("rank", C.c_uint32),
                ("world", C.c_uint32), ("timeout_ns", C.c_int64), ("join_timeout_ns", C.c_int64),
                ("op_timeout_ns", C.c_int64), ("linger_ns", C.c_int64),
                ("link_bytes_per_s", C.c_uint64), ("name", C.c_char_p), ("device", C.c_void_p),
                ("nodes", C.c_uint32)]


class ZeroOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t)] + [
        (n, C.c_uint32) for n in ("stage", "accumulate", "gather", "unused", "overlap_off",
                                  "ring_slots", "micro_steps", "shard_align_bytes")] + [
        ("bucket_bytes", C.c_uint64), ("scale", C.c_double), ("clip_norm", C.c_double),
        ("gather_bytes", C.c_uint64), ("prefetch_bytes", C.c_uint64), ("order", C.c_uint32),
        ("norm", C.c_uint32), ("pre_scale", C.c_double), ("reduce_dtype", C.c_uint32),
        ("accum_as_grads", C.c_uint32), ("shard_ranks", C.c_uint32),
        ("persist_bytes", C.c_uint64), ("reuse_bytes", C.c_uint64),
        ("secondary_ranks", C.c_uint32), ("all_reduce", C.c_uint32)]


class ParamOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("unit", C.c_char_p), ("dtype", C.c_uint32),
                ("grad_dtype", C.c_uint32), ("group", C.c_uint32)]


class Slice(C.Structure):
    _fields_ = [("buffer", C.c_void_p), ("offset", C.c_uint64)]


class OpOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("name", C.c_char_p), ("scale", C.c_double),
                ("group", C.c_uint32), ("order", C.c_uint32), ("dtype", C.c_uint32),
                ("pre_scale", C.c_double)]


class Span(C.Structure):
    _fields_ = [("bucket", C.c_uint32), ("bucket_offset", C.c_uint64),
                ("shard_offset", C.c_uint64), ("numel", C.c_uint64), ("valid_numel", C.c_uint64),
                ("params", C.POINTER(C.c_float)), ("grads", C.c_void_p),
                ("grads_dtype", C.c_uint32)]


class SpanView:
    """A span, its pointers as floats() has them."""

    def __init__(self, span):
        for name, _ in Span._fields_[:5]:
            setattr(self, name, getattr(span, name))
        self.grads_dtype = span.grads_dtype
        self.params, self.grads = floats(span.params), values_at(span.grads, span.grads_dtype)


class Verdict(C.Structure):
    _fields_ = [("step", C.c_uint64), ("norm", C.c_double), ("clip_factor", C.c_float),
                ("nonfinite", C.c_uint32), ("first_bucket", C.c_uint32),
                ("used_params", C.c_uint32), ("digest", C.c_uint64)]


class LayoutInfo(C.Structure):
    _fields_ = [("buckets", C.c_uint32), ("units", C.c_uint32), ("fetch_units", C.c_uint32),
                ("params", C.c_uint32), ("numel", C.c_uint64), ("padded_numel", C.c_uint64),
                ("hash", C.c_uint8 * 32)]


class BucketInfo(C.Structure):
    _fields_ = [("offset", C.c_uint64), ("numel", C.c_uint64), ("padded_numel", C.c_uint64),
                ("fetch_unit", C.c_uint32), ("group", C.c_uint32), ("members", C.c_uint32),
                ("shard_ranks", C.c_uint32), ("dtype", C.c_uint32), ("grad_dtype", C.c_uint32),
                ("accum_dtype", C.c_uint32)]


class PieceInfo(C.Structure):
    _fields_ = [("bucket", C.c_uint32), ("bucket_offset", C.c_uint64),
                ("param_offset", C.c_uint64), ("numel", C.c_uint64)]


class Counters(C.Structure):
    _fields_ = [(n, C.c_uint64) for n in ("calls", "payload_bytes", "padding_bytes", "ring_bytes",
                                          "moved_bytes", "cross_node_bytes")]


class Stats(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("steps", C.c_uint64), ("kinds", Counters * 5),
                ("memory_bytes", C.c_uint64 * 5)] + [
        (n, C.c_uint64) for n in ("prefetch_hits", "prefetch_misses", "prefetch_drops",
                                  "gathered_bytes_now", "gathered_bytes_max", "overflow_slots",
                                  "copied_in_bytes", "comm_ns", "comm_alone_ns", "late_ns",
                                  "queued_ns", "exposed_ns", "wakeup_ns", "staged_bytes",
                                  "layout_epoch")]


class Error(Exception):
    """A failed call: .name is "GW_E_...", .text the library's message."""

    def __init__(self, code, name, text, call):
        super().__init__(f"{call}: {name}: {text}")
        self.code, self.name, self.text = code, name, text

    def __reduce__(self):
        return (Error, (self.code, self.name, self.text, ""))


def library():
    path = os.environ.get("GRADWIRE_LIB") or os.path.join(
        os.environ["GRADWIRE_BUILD"], "client/lib/libgradwire.so")
    lib = C.CDLL(path)
    lib.gw_last_error.restype = C.c_char_p
    lib.gw_error_name.restype = C.c_char_p
    lib.gw_job_close.restype = C.c_void_p
    lib.gw_job_close.argtypes = [C.c_void_p]
    lib.gw_buffer_data.restype = C.c_void_p
    lib.gw_buffer_data.argtypes = [C.c_void_p]
    lib.gw_buffer_size.restype = C.c_size_t
    lib.gw_buffer_size.argtypes = [C.c_void_p]
    return lib


LIB = None
GPU = None  # of this process, with $GW_TEST_DEVICE=cuda
OPEN = set()  # jobs of this process


def on_cuda():
    return os.environ.get("GW_TEST_DEVICE") == "cuda"


def use_gpu(ordinal):
    """This process's rank computes there; modulo the number of GPUs."""
    global GPU
    import gpu  # pylint: disable=import-outside-toplevel
    GPU = gpu.Gpu(ordinal, call)


def device_floats(address):
    """An array in this rank's GPU."""
    return GPU.floats(address)


def floats(pointer):
    """What a call returned as const float *: itself, or an array on the GPU."""
    return GPU.floats(C.cast(pointer, C.c_void_p).value) if GPU else pointer


def to_half(value, dtype):
    """The bits of a value that the dtype can hold exactly."""
    if dtype == FP16:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def from_half(bits, dtype):
    if dtype == FP16:
        return struct.unpack("<e", struct.pack("<H", bits))[0]
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


class Halves:
    """fp16 or bf16 in memory, read and written as Python floats."""

    def __init__(self, address, dtype):
        self.address, self.dtype = address, dtype

    def __getitem__(self, index):
        if isinstance(index, slice):
            start = index.start or 0
            at, count = self.address + 2 * start, index.stop - start
            data = GPU.get(at, 2 * count) if GPU else C.string_at(at, 2 * count)
            return [from_half(b, self.dtype) for b in struct.unpack(f"<{count}H", data)]
        return self[index:index + 1][0]

    def __setitem__(self, index, value):
        values = value if isinstance(index, slice) else [value]
        at = self.address + 2 * ((index.start or 0) if isinstance(index, slice) else index)
        data = struct.pack(f"<{len(values)}H", *(to_half(v, self.dtype) for v in values))
        if GPU:
            GPU.put(at, data)
        else:
            C.memmove(at, data, len(data))


def values_at(address, dtype):
    """An array of the dtype in what a call returned."""
    if dtype != FP32:
        return Halves(address, dtype)
    return GPU.floats(address) if GPU else C.cast(address, C.POINTER(C.c_float))


def packed(values, dtype):
    """A ctypes array of the dtype, for calls that take one; one that is given stays."""
    if isinstance(values, C.Array):
        return values
    if dtype == FP32:
        return (C.c_float * max(len(values), 1))(*values)
    return (C.c_uint16 * max(len(values), 1))(*(to_half(v, dtype) for v in values))


def shifted(pointer, count):
    """The array from its element `count` on."""
    if GPU:
        return GPU.floats(pointer.address + 4 * count)
    return C.cast(C.addressof(pointer.contents) + 4 * count, C.POINTER(C.c_float))


def move(to, address, nbytes):
    """memmove into what acquire() or spans() gave."""
    if GPU:
        GPU.put(to.address, C.string_at(address, nbytes))
    else:
        C.memmove(to, address, nbytes)


def fill(to, count, value):
    """`count` times the value, or a list of values, into what acquire() or spans() gave."""
    values = (C.c_float * count)(*(value if isinstance(value, list) else [value] * count))
    move(to, values, 4 * count)


def raw(values, count):
    """The bytes of `count` floats."""
    if GPU:
        return GPU.get(values.address, 4 * count)
    return C.string_at(C.addressof(values.contents), 4 * count)


def call(name, *args, lib=None):
    global LIB
    if LIB is None:
        LIB = library()
    r = getattr(lib or LIB, name)(*args)
    if r < 0:
        raise Error(r, LIB.gw_error_name(r).decode(), (LIB.gw_last_error() or b"").decode(), name)
    return r


class Buffer:
    def __init__(self, job, nbytes):
        self.job, self.handle = job, C.c_void_p()
        call("gw_buffer_new", job.handle, C.c_size_t(nbytes), C.byref(self.handle))
        data = LIB.gw_buffer_data(self.handle)
        self.floats = (GPU.floats(data) if GPU else
                       (C.c_float * (nbytes // 4)).from_address(data))

    def at(self, offset=0):
        return Slice(self.handle, offset)

    def free(self):
        call("gw_buffer_free", self.job.handle, self.handle)


class Spread:
    """The sockets of several nodes' gradwireds, and on which node a rank is: "blocks" (in order,
    the first ones a rank larger), "dealt" (in turn), or a list."""

    def __init__(self, sockets, place="blocks"):
        self.sockets, self.place = [str(s) for s in sockets], place

    def node(self, rank, world):
        nodes = len(self.sockets)
        if self.place == "dealt":
            return rank % nodes
        if self.place != "blocks":
            return self.place[rank]
        each, larger = divmod(world, nodes)
        in_larger = larger * (each + 1)
        return rank // (each + 1) if rank < in_larger else larger + (rank - in_larger) // each


def elsewhere(socket):
    """Where rank 0 of a job is not: another node, if there are several."""
    return socket.sockets[-1] if isinstance(socket, Spread) else socket


class Job:
    """One rank's handle; every method is one library call. socket: of a gradwired, or a Spread."""

    def __init__(self, rank, world, id_path=None, socket=None, job_id=None, **options):
        self.rank, self.world, self.handle = rank, world, C.c_void_p()
        ordinal = rank
        if isinstance(socket, Spread):
            node = socket.node(rank, world)
            os.environ["FAKEGPU_NODE"] = str(node)  # which GPUs the doubles show
            ordinal = sum(socket.node(r, world) == node for r in range(rank))
            options.setdefault("nodes", len(socket.sockets))
            socket = socket.sockets[node]
        if on_cuda() and GPU is None:
            use_gpu(ordinal)
        if "name" in options:
            options["name"] = options["name"].encode()
        o = JobOptions(struct_size=C.sizeof(JobOptions), rank=rank, world=world,
                       socket_path=socket.encode() if socket else None,
                       device=GPU.device if GPU else None, **options)
        if job_id is None and id_path is not None and (rank != 0 or os.path.exists(id_path)):
            job_id = JobId()
            call("gw_job_id_load", id_path.encode(), C.c_int64(20 * S), C.byref(job_id))
        if job_id is None:
            call("gw_job_create", C.byref(o), C.byref(self.handle))
            if id_path:
                call("gw_job_id_save", C.byref(self.id()), id_path.encode())
        else:
            call("gw_job_join", C.byref(o), C.byref(job_id), C.byref(self.handle))
        OPEN.add(self)
        if GPU:
            GPU.attach(self.handle)

    def close(self):
        if self.handle:
            LIB.gw_job_close(self.handle)
            OPEN.discard(self)
        self.handle = C.c_void_p()

    def id(self):
        i = JobId()
        call("gw_job_get_id", self.handle, C.byref(i))
        return i

    def tag(self):
        t = C.create_string_buffer(17)
        call("gw_job_tag", self.handle, t)
        return t.value.decode()

    def generation(self):
        return call("gw_job_generation", self.handle)

    def wait_ready(self, timeout=20 * S):
        call("gw_job_wait_ready", self.handle, C.c_int64(timeout))

    def wait(self, token, timeout=20 * S):
        call("gw_wait", self.handle, token, C.c_int64(timeout))

    def test(self, token):
        return call("gw_test", self.handle, token)

    def buffer(self, nbytes):
        return Buffer(self, nbytes)

    def group(self, ranks, timeout=20 * S):
        g = C.c_uint32()
        call("gw_group_new", self.handle, (C.c_uint32 * len(ranks))(*ranks),
             C.c_uint32(len(ranks)), C.c_int64(timeout), C.byref(g))
        return g.value

    def _op(self, fn, *args, name=None, **options):
        t = Token()
        o = OpOptions(struct_size=C.sizeof(OpOptions), name=name.encode() if name else None,
                      **options)
        call(fn, self.handle, *args, C.byref(o), C.byref(t))
        return t

    def reduce_scatter(self, send, recv, count, **k):
        return self._op("gw_reduce_scatter", send, recv, C.c_uint64(count), **k)

    def all_gather(self, send, recv, count, **k):
        return self._op("gw_all_gather", send, recv, C.c_uint64(count), **k)

    def all_reduce(self, send, recv, count, **k):
        return self._op("gw_all_reduce", send, recv, C.c_uint64(count), **k)

    def broadcast(self, data, count, root, **k):
        return self._op("gw_broadcast", data, C.c_uint64(count), C.c_uint32(root), **k)

    def barrier(self, timeout=20 * S, **k):
        self.wait(self._op("gw_barrier", **k), timeout)

    def param_group(self, ranks, shard_ranks=0):
        g = C.c_uint32()
        call("gw_param_group_add", self.handle, (C.c_uint32 * len(ranks))(*ranks),
             C.c_uint32(len(ranks)), C.c_uint32(shard_ranks), C.byref(g))
        return g.value

    def param(self, name, numel, unit=None, **options):
        p = C.c_uint32()
        o = ParamOptions(struct_size=C.sizeof(ParamOptions), unit=unit.encode() if unit else None,
                         **options)
        call("gw_param_add", self.handle, name.encode(), C.c_uint64(numel), C.byref(o),
             C.byref(p))
        return p.value

    def seal(self, timeout=20 * S, **options):
        o = ZeroOptions(struct_size=C.sizeof(ZeroOptions), **options)
        call("gw_seal", self.handle, C.byref(o), C.c_int64(timeout))

    def layout(self):
        i = LayoutInfo()
        call("gw_layout", self.handle, C.byref(i))
        return i

    def bucket(self, b):
        i = BucketInfo()
        call("gw_layout_bucket", self.handle, C.c_uint32(b), C.byref(i))
        return i

    def pieces(self, param):
        n = C.c_uint32()
        call("gw_param_pieces", self.handle, C.c_uint32(param), C.byref(n))
        out = []
        for k in range(n.value):
            i = PieceInfo()
            call("gw_param_piece", self.handle, C.c_uint32(param), C.c_uint32(k), C.byref(i))
            out.append(i)
        return out

    def write(self, param, values, offset=0, timeout=20 * S):
        a = (C.c_float * len(values))(*values)
        call("gw_param_write_sync", self.handle, C.c_uint32(param), C.c_uint64(offset),
             C.c_uint64(len(values)), a, C.c_int64(timeout))

    def read(self, param, count, offset=0, timeout=20 * S):
        a = (C.c_float * max(count, 1))()
        call("gw_param_read_sync", self.handle, C.c_uint32(param), C.c_uint64(offset),
             C.c_uint64(count), a, C.c_int64(timeout))
        return list(a)[:count]

    def fetch(self, unit):
        t = Token()
        call("gw_fetch", self.handle, C.c_uint32(unit), C.byref(t))
        return t

    def release(self, unit):
        call("gw_release", self.handle, C.c_uint32(unit))

    def values(self, param, numel, whole=False, dtype=FP32):
        """The parameter's values, or (whole) where they are."""
        p = C.c_void_p()
        call("gw_param_ptr", self.handle, C.c_uint32(param), C.byref(p))
        at = values_at(p.value, dtype)
        return at if whole else at[:numel]

    def acquire(self, param, piece=0, timeout=20 * S, dtype=FP32):
        p, n = C.c_void_p(), C.c_uint64()
        call("gw_grad_acquire_sync", self.handle, C.c_uint32(param), C.c_uint32(piece),
             C.c_int64(timeout), C.byref(p), C.byref(n))
        return values_at(p.value, dtype), n.value

    def ready(self, param, piece=0, flags=0, tokens=()):
        a = (Token * max(len(tokens), 1))(*tokens)
        call("gw_grad_ready", self.handle, C.c_uint32(param), C.c_uint32(piece),
             C.c_uint32(flags), a, C.c_size_t(len(tokens)))

    def put(self, param, values, flags=0, timeout=20 * S, dtype=FP32):
        a = packed(values, dtype)
        call("gw_grad_put_sync", self.handle, C.c_uint32(param), a, C.c_uint32(flags),
             C.c_int64(timeout))

    def micro_step_end(self):
        call("gw_micro_step_end", self.handle)

    def timeline(self):
        t = C.c_uint32()
        call("gw_timeline_new", self.handle, C.byref(t))
        return t.value

    def raise_timeline(self, timeline, value):
        call("gw_timeline_raise", self.handle, C.c_uint32(timeline), C.c_uint64(value))

    def step_end(self):
        t = Token()
        call("gw_step_end", self.handle, C.byref(t))
        return t

    def wait_step(self, timeout=20 * S):
        v = Verdict()
        call("gw_wait_step", self.handle, C.c_int64(timeout), C.byref(v))
        return v

    def used(self, param):
        return call("gw_param_used", self.handle, C.c_uint32(param))

    def spans(self):
        p, n = C.POINTER(Span)(), C.c_uint32()
        call("gw_shard_spans", self.handle, C.byref(p), C.byref(n))
        return [SpanView(p[i]) for i in range(n.value)]

    def grads(self, padding=False):
        """The reduced gradient of the shard, span by span."""
        return [list(s.grads[0:s.numel if padding else s.valid_numel]) for s in self.spans()]

    def array(self, name, dtype=FP32):
        p, n = C.c_void_p(), C.c_uint64()
        call("gw_shard_array", self.handle, name.encode(), C.c_uint32(dtype), C.byref(p),
             C.byref(n))
        return values_at(p.value, dtype), n.value

    def update_begin(self):
        t = Token()
        call("gw_update_begin", self.handle, C.byref(t))
        return t

    def update_commit(self):
        call("gw_update_commit", self.handle)

    def stats(self, timeout=20 * S):
        s = Stats(struct_size=C.sizeof(Stats))
        call("gw_stats_sync", self.handle, C.c_int64(timeout), C.byref(s))
        return s

    def freeze(self, params, timeout=20 * S):
        call("gw_freeze", self.handle, (C.c_uint32 * len(params))(*params),
             C.c_size_t(len(params)), C.c_int64(timeout))

    def measure(self, timeout=60 * S):
        call("gw_measure_sync", self.handle, C.c_int64(timeout))


def f32(x):
    """x rounded to fp32."""
    return struct.unpack("f", struct.pack("f", x))[0]


def tree_sum(values):
    """((0+1)+(2+3))+..., an odd last one passing up; every sum rounded to fp32."""
    values = [f32(v) for v in values]
    while len(values) > 1:
        up = [f32(a + b) for a, b in zip(values[0::2], values[1::2])]
        if len(values) % 2:
            up.append(values[-1])
        values = up
    return values[0]


# Ranks are forks of a process that has nothing of ours, but has imported what takes longest.
PRELOAD = ["pytest", "ctypes", "hashlib", "json", "random", "subprocess"]


def _rank_main(pipe, env, fn, args):
    os.environ.clear()
    os.environ.update(env)
    try:
        pipe.send(("ok", fn(*args)))
    except Error as e:
        pipe.send(("error", (e.name, e.text)))
    except BaseException:
        pipe.send(("raised", traceback.format_exc()))
    if GPU and OPEN:
        os._exit(0)  # as if it had died: what is left is no leak
    if GPU:
        GPU.close()
    sys.stdout.flush()
    sys.stderr.flush()
    C.PyDLL(None).exit(0)  # a fork leaves without: no destructors, and no look of a sanitizer


def barrier(parties):
    """For ranks of Ranks, and the test itself."""
    return multiprocessing.get_context("spawn").Barrier(parties)


class Ranks:
    """Processes, one per rank, each running fn(rank, *args); results in .join(). What the system
    or a sanitizer reads of env when a program starts needs start="spawn"."""

    def __init__(self, world, fn, *args, env=None, start="forkserver"):
        ctx = multiprocessing.get_context(start)
        ctx.set_forkserver_preload(PRELOAD)
        env = {**os.environ, **(env or {})}
        self.procs = []
        for rank in range(world):
            ours, theirs = ctx.Pipe()
            p = ctx.Process(target=_rank_main, args=(theirs, env, fn, (rank,) + args))
            p.start()
            theirs.close()
            self.procs.append((p, ours))

    def pid(self, rank):
        return self.procs[rank][0].pid

    def kill(self, rank):
        self.procs[rank][0].kill()

    def join(self, timeout=60):
        """List per rank: ("ok", value), ("error", (name, text)), ("raised", text), ("died", code)
        or ("hung", None); a hung process is killed."""
        deadline, out = time.monotonic() + timeout, []
        for p, pipe in self.procs:
            result = ("hung", None)
            while time.monotonic() < deadline:
                try:
                    # A forked child may hold the pipe open: its end is not the process's end.
                    ended = not p.is_alive()
                    if pipe.poll(0.05):
                        result = pipe.recv()
                        break
                    if ended:
                        raise EOFError
                except EOFError:
                    p.join(5)
                    result = ("died", p.exitcode)
                    break
            if result[0] == "hung":
                p.kill()
            p.join(10)
            out.append(result)
        return out


def run(world, fn, *args, timeout=60, env=None):
    """Results of fn(rank, *args) on every rank; any failure fails the test with all of them."""
    results = Ranks(world, fn, *args, env=env).join(timeout)
    assert all(kind == "ok" for kind, _ in results), "\n".join(
        f"rank {r}: {kind}: {value}" for r, (kind, value) in enumerate(results))
    return [value for _, value in results]
