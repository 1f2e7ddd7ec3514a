# SPDX-License-Identifier: Apache-2.0
"""Clients that are killed in every state of a job of one rank, which is taken again each time."""
import ctypes as C
import os
import pathlib
import time

import gpu as gpus
import gw
from place import Service, until

S = gw.S
PARAMS = (("a", 5000, "u"), ("b", 3000, "v"), ("c", 1, "v"))
ROOM = 16 << 20  # of other things on the GPU

# In the order in which one job goes through them; what follows "updating" finds a torn shard.
STATES = ("joined", "sealed", "buffers", "collective", "fetched", "acquired", "declared", "ended",
          "verdict", "sealed again", "updating")


def join(id_path, socket):
    """The rank, once the engine knows of its last owner's death."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return gw.Job(0, 1, id_path, socket, linger_ns=4 * S)
        except gw.Error as error:
            if error.name == "GW_E_NOT_FOUND" or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def seal(job, stage):
    for name, numel, unit in PARAMS:
        job.param(name, numel, unit)
    job.seal(stage=stage, bucket_bytes=65536)  # fewer buckets than ring slots: none waits


def blocked(job, stream):
    """The stream waits for a word that nobody raises; what comes behind waits too."""
    gw.call("gw_stream_wait", job.handle, gw.Token(job.timeline(), 0, 1), stream)


def declare(job, tokens=()):
    for param in reversed(range(len(PARAMS))):
        for piece in reversed(range(len(job.pieces(param)))):
            to, count = job.acquire(param, piece)
            gw.fill(to, count, 1.0)
            job.ready(param, piece, tokens=tokens)


def buffers(job):
    imported, staged = C.c_void_p(), C.c_int()
    memory = gw.GPU.alloc(1 << 21)
    gw.call("gw_cuda_buffer_import", job.handle, C.c_void_p(memory), C.c_size_t(1 << 20),
            C.byref(imported), C.byref(staged))
    return job.buffer(1 << 20)


def go_on(job, state, stage):
    if state == "joined":
        return
    if state in ("buffers", "collective"):
        own = buffers(job)
        if state == "collective":
            blocked(job, gw.GPU.stream)
            job.all_reduce(own.at(), own.at(), 1 << 18)
        return
    seal(job, stage)
    if state == "fetched":
        job.wait(job.fetch(0))
        job.fetch(1)
    elif state == "acquired":
        job.acquire(len(PARAMS) - 1)
        job.acquire(0)
    elif state in ("declared", "ended"):
        declare(job, [gw.Token(job.timeline(), 0, 1)])
        if state == "ended":
            job.step_end()
    elif state in ("verdict", "updating"):
        declare(job)
        job.step_end()
        job.wait_step()
        if state == "updating":
            job.wait(job.update_begin())


def client(_, state, stage, id_path, socket, flag):
    """Reaches the state, says so, and waits for its end."""
    job = join(id_path, socket)
    go_on(job, state, stage)
    pathlib.Path(flag).touch()
    time.sleep(600)


def last(_, stage, id_path, socket):
    """The job, after all that: a collective works; the torn shard is told. The generation."""
    job = join(id_path, socket)
    data = job.buffer(4096)
    data.floats[0:3] = [1.0, 2.0, 3.0]
    job.wait(job.all_reduce(data.at(), data.at(), 3, scale=2.0))
    assert data.floats[0:3] == [2.0, 4.0, 6.0]
    data.free()
    told = "nothing"
    try:
        seal(job, stage)
    except gw.Error as error:
        told = error.name
    generation = job.generation()
    job.close()
    return generation, told


def free_bytes(gpu):
    free, total = C.c_size_t(), C.c_size_t()
    gpu.do("cuMemGetInfo_v2", C.byref(free), C.byref(total))
    return free.value


def one_job(service, work, stage, gpu):
    id_path, after = str(work / f"id-{stage}"), {}
    engine = None
    for state in STATES:
        flag = work / f"{stage}-{state.replace(' ', '-')}"
        ranks = gw.Ranks(1, client, state, stage, id_path, str(service.socket), str(flag))
        try:
            until(lambda: flag.exists() or ranks.procs[0][1].poll(), 30, f"the state {state}")
            if not flag.exists():
                raise AssertionError(f"stage {stage}, {state}: {ranks.join(5)}")
        finally:
            ranks.kill(0)
            ranks.join(5)
        engines = service.engines()
        assert engine in (None, *engines), f"stage {stage}: killed {state}, the engine ended"
        assert len(engines) == 1, f"stage {stage}: killed {state}, engines {engines}"
        engine = engines[0]
        after[state] = free_bytes(gpu)
    generation, told = gw.run(1, last, stage, id_path, str(service.socket), timeout=40)[0]
    assert generation > len(STATES), f"generation {generation} after {len(STATES)} deaths"
    assert told == "GW_E_TORN", f"stage {stage}: a torn shard was told as {told}"
    service.idle(40)
    lost = after["sealed"] - after["sealed again"]
    assert lost <= ROOM, f"stage {stage}: {lost} bytes of GPU memory are gone after the kills"
    return {"generation": generation, "killed": len(STATES)}


def all_states(work):
    os.environ["GW_TEST_DEVICE"] = "cuda"
    gpu = gpus.Gpu(0, gw.call)
    detail, before = {}, free_bytes(gpu)
    with Service(work) as service:
        for stage in (2, 3):
            detail[f"stage {stage}"] = one_job(service, work, stage, gpu)
    until(lambda: free_bytes(gpu) >= before - ROOM, 20, "the engines' GPU memory")
    detail["gpu_free_bytes"] = {"before": before, "after": free_bytes(gpu)}
    gpu.close()
    return detail
