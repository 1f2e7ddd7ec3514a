# SPDX-License-Identifier: Apache-2.0
"""Checks on one GPU. Each function is a step: it takes the step's directory and returns details,
raises place.Skip with why it cannot be made here, or AssertionError with what is wrong.
"""
import ctypes as C
import json
import os

import gw
import kills
from place import CPU_KERNELS, ENGINE, GWCTL, REDUCED, Service, charlm, rank_of, run, tool
from ranks import Trainer, staged_ranks

CYCLES = 60 if REDUCED else 10000
WARM_UP = 20 if REDUCED else 500


def doctor(work):
    """gwctl doctor finds the driver and says something of every point."""
    answer = json.loads(run(GWCTL, "doctor", "--json", "--plugins", ENGINE.parent, timeout=60,
                            codes=(0, 1, 2)))
    text = json.dumps(answer)
    assert "CUDA" in text or "cuda" in text, f"nothing of CUDA: {text[:600]}"
    return answer


def kernels(work):
    """Every type in and out, with NaN, infinities and denormals among the values."""
    return tool("gpu_kernels", CPU_KERNELS, timeout=200)


def pattern(count):
    return [float(i % 1000) - 300.0 for i in range(count)]


def ipc_exported(work):
    """The engine's memory, mapped here by its descriptor: written, summed there, read here."""
    count = 4099
    with Service(work), Trainer() as job:
        send, recv = job.buffer(4 * count), job.buffer(4 * count)
        send.floats[0:count] = pattern(count)
        job.wait(job.all_reduce(send.at(), recv.at(), count, scale=0.5))
        assert recv.floats[0:count] == [x * 0.5 for x in pattern(count)], "another sum"
        job.wait(job.all_gather(recv.at(), send.at(), count))
        assert send.floats[0:count] == [x * 0.5 for x in pattern(count)], "another gather"
        send.free()
        recv.free()
    return {"values": count}


def import_buffer(job, address, nbytes):
    """A buffer over the caller's own memory; whether it is staged."""
    buffer, staged = object.__new__(gw.Buffer), C.c_int()
    buffer.job, buffer.handle = job, C.c_void_p()
    gw.call("gw_cuda_buffer_import", job.handle, C.c_void_p(address), C.c_size_t(nbytes),
            C.byref(buffer.handle), C.byref(staged))
    return buffer, staged.value


def ipc_imported(work):
    """Memory of this process, opened by the engine by its handle; a part of an allocation."""
    count, offset, gpu = 4099, 8192, None
    with Service(work), Trainer() as job:
        gpu = gw.GPU
        memory = gpu.alloc(1 << 22)
        values = gpu.floats(memory + offset)
        buffer, staged = import_buffer(job, memory + offset, 8 * count)
        values[0:count] = pattern(count)
        job.wait(job.all_reduce(buffer.at(), buffer.at(count), count, scale=2.0))
        got = values[count:2 * count]
        stats = job.stats()
        buffer.free()
        gpu.free(memory)
    assert got == [2.0 * x for x in pattern(count)], "another sum"
    assert staged == 0, "the memory could not be exported: copies went between (gwctl doctor)"
    return {"values": count, "staged_bytes": stats.staged_bytes}


def tokens(work):
    """Streams wait for each other over gradwire, the host for nothing until the end."""
    count, rounds = 65536, 3 if REDUCED else 60  # a rank has at most 64 ops in flight
    with Service(work), Trainer() as job:
        gpu = gw.GPU
        side, after = gpu.new_stream(), gpu.new_stream()
        send, recv = job.buffer(4 * count), job.buffer(4 * count)
        result = gpu.alloc(4 * count)
        for k in range(1, rounds + 1):
            bits = C.c_uint32.from_buffer_copy(C.c_float(float(k))).value
            gpu.do("cuMemsetD32Async", C.c_uint64(send.floats.address), C.c_uint(bits),
                   C.c_size_t(count), side)
            written = gw.Token()
            gw.call("gw_record", job.handle, side, C.byref(written))
            gw.call("gw_stream_wait", job.handle, written, gpu.stream)
            reduced = job.all_reduce(send.at(), recv.at(), count)
            gw.call("gw_stream_wait", job.handle, reduced, after)
            gpu.do("cuMemcpyDtoDAsync_v2", C.c_uint64(result), C.c_uint64(recv.floats.address),
                   C.c_size_t(4 * count), after)
            # The next round writes behind this one's copy.
            copied = gw.Token()
            gw.call("gw_record", job.handle, after, C.byref(copied))
            gw.call("gw_stream_wait", job.handle, copied, side)
        got = gpu.floats(result)
        gpu.sync(after)
        values = got[0:count]
        gpu.free(result)
        send.free()
        recv.free()
    assert values == [float(rounds)] * count, f"{values[:3]}, not {float(rounds)}"
    return {"rounds": rounds}


def stages(work):
    """Every stage trains to charlm-cuda's own bits without gradwire."""
    common = ["--hidden", "24" if REDUCED else "192", "--batch", "4" if REDUCED else "16",
              "--steps", "3" if REDUCED else "20", "--bucket", "4100" if REDUCED else "65536"]
    alone, wanted = charlm(work, "alone", "--reference", "1", *common)
    _, host = charlm(work, "host", "--reference", "1", *common, device="")
    differ, detail = [], {"host_bits_equal": host == wanted, "parameters": alone["params"]}
    with Service(work):
        for stage in range(4):
            for overlap in ("on",) if REDUCED else ("on", "off"):
                name = f"stage-{stage}-{overlap}"
                out, got = rank_of(work, name, stage, "--overlap", overlap, *common)
                if got != wanted or out["loss"] != alone["loss"]:
                    differ.append(name)
        micro = ["--micro-steps", "2", *common]
        _, wanted = charlm(work, "micro", "--reference", "1", *micro)
        for stage in (1, 2):
            if rank_of(work, f"micro-{stage}", stage, *micro)[1] != wanted:
                differ.append(f"micro-{stage}")
    assert not differ, f"other bits than alone: {', '.join(differ)}"
    return detail


def two_clients(work):
    """Two ranks on one GPU: a job of the host, between copies from and to the GPU."""
    with Service(work) as service:
        return staged_ranks(service, 1025 if REDUCED else 1 << 20)


def figures_of(pid):
    status = {line.split(":")[0]: line.split()[1] for line in open(f"/proc/{pid}/status")
              if line.startswith(("VmRSS", "VmSize"))}
    return {"fds": len(os.listdir(f"/proc/{pid}/fd")), "rss_kib": int(status["VmRSS"])}


def register_cycles(work):
    """Buffers made, imported and freed: nothing grows here, in the engine, or on the GPU."""
    with Service(work) as service, Trainer() as job:
        gpu = gw.GPU
        memory = gpu.alloc(1 << 21)
        (engine,) = service.engines()
        before = None
        for k in range(WARM_UP + CYCLES):
            if k == WARM_UP:
                before = figures_of(engine), figures_of(os.getpid()), kills.free_bytes(gpu)
            if k % 64 == 0:  # another allocation, so another handle
                gpu.free(memory)
                memory = gpu.alloc(1 << 21)
            if k % 2:
                import_buffer(job, memory + 4096 * (k % 16), 65536)[0].free()
            else:
                job.buffer(65536).free()
        after = figures_of(engine), figures_of(os.getpid()), kills.free_bytes(gpu)
        gpu.free(memory)
    grown = []
    for who, old, new in zip(("engine", "client"), before, after):
        if new["fds"] > old["fds"]:
            grown.append(f"{who}: {old['fds']} descriptors became {new['fds']}")
        if new["rss_kib"] > old["rss_kib"] + 16384:
            grown.append(f"{who}: {old['rss_kib']} KiB became {new['rss_kib']}")
    if after[2] < before[2] - (8 << 20):
        grown.append(f"GPU: {before[2]} free bytes became {after[2]}")
    assert not grown, f"after {CYCLES} cycles: " + "; ".join(grown)
    return {"cycles": CYCLES, "engine": after[0], "client": after[1],
            "gpu_free_bytes": {"before": before[2], "after": after[2]}}


def kill_states(work):
    """kill -9 of a client in every state: its engine lives and takes the rank again; memory comes
    back."""
    return kills.all_states(work)


def fabric_order(work):
    """order=fabric with one rank is a copy: NCCL is there and comes through."""
    count = 4099
    with Service(work), Trainer() as job:
        send, recv = job.buffer(4 * count), job.buffer(4 * count)
        send.floats[0:count] = pattern(count)
        job.wait(job.all_reduce(send.at(), recv.at(), count, order=1))
        assert recv.floats[0:count] == pattern(count), "another sum"
        send.free()
        recv.free()
    return {"values": count}


ALL = {  # name: (function, deadline in seconds)
    "doctor": (doctor, 60),
    "kernels": (kernels, 100),
    "ipc_exported": (ipc_exported, 60),
    "ipc_imported": (ipc_imported, 60),
    "tokens": (tokens, 60),
    "order_fabric": (fabric_order, 60),
    "stages": (stages, 120),
    "two_clients": (two_clients, 60),
    "kill_states": (kill_states, 100),
    "register_cycles": (register_cycles, 100),
}
